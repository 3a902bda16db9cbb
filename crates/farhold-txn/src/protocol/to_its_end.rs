//! Work that completes although its caller is gone: the part of a commit past its commit point, a change of tables.
//!
//! ```text
//!   caller polls ToItsEnd ──► done
//!        │ dropped, or it takes too long
//!        └──► Owed, a task of the executor ──► done
//!                  │ the executor ends
//!                  └──► Core::abandon: the node is over
//! ```

use crate::base::error::TxnError;
use crate::protocol::core::{Core, Left};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What is to be done.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = Result<T, TxnError>>>>;

/// The caller does the work while it polls this. The executor goes on with it once this is dropped, or once it takes too long; the caller
/// then does not know the outcome. [`Worker::drain`](crate::Worker::drain) waits for it in both cases.
pub(crate) struct ToItsEnd<T: 'static> {
    work: Option<Work<T>>,
    core: Rc<Core>,
    until_ns: u64,
    /// Dropped last.
    _left: Left,
}

impl<T: 'static> ToItsEnd<T> {
    /// The node may be cut off, and never learn the outcome. So the caller waits until `until_ns` at most.
    pub fn of(core: &Rc<Core>, work: Work<T>, until_ns: u64) -> Self {
        Self { work: Some(work), core: core.clone(), until_ns, _left: Left::of(core.clone()) }
    }
}

impl<T: 'static> Future for ToItsEnd<T> {
    type Output = Result<T, TxnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let work = self.work.as_mut().expect("not polled again after its end");
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        } else if self.core.handle.now_ns() >= self.until_ns && !planted!(OutcomeWaitedFor) {
            // What waits here looks again by itself every few microseconds, so this comes in time.
            return Poll::Ready(Err(TxnError::OutcomeUnknown));
        }
        done
    }
}

impl<T: 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.core.leave_owed(async move { drop(work.await) });
        }
    }
}

/// What a commit still owes to other nodes, as a task. If its executor ends before the task, the node counts as ended.
pub(crate) struct Owed {
    work: Option<Pin<Box<dyn Future<Output = ()>>>>,
    core: Rc<Core>,
}

impl Owed {
    pub fn of(core: &Rc<Core>, work: impl Future<Output = ()> + 'static) -> Self {
        Self { work: Some(Box::pin(work)), core: core.clone() }
    }
}

impl Future for Owed {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        let done = work.as_mut().poll(cx);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        // Before what the work holds is dropped: until then its commit is open.
        if self.work.is_some() {
            self.core.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::settings::ReplicationConfig;
    use crate::node::{Node, NodeConfig};
    use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
    use farhold_fabric::{Executor, NodeId};
    use std::cell::Cell;
    use std::sync::Arc;

    const DRAIN_NS: u64 = 1_000_000;

    /// A node with copies whose executor ends when `then` is over.
    fn after(then: impl AsyncFnOnce(&crate::Worker)) -> Arc<Node> {
        let executor = Executor::virtual_time(1);
        let fabric = Sim::new(&executor.handle(), Rdma, Faults::default()).join(NodeId(0)).expect("a fabric");
        let replication = ReplicationConfig { replicas: 2, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 4 << 20, replication, ..NodeConfig::default() };
        let node = Node::open(fabric, config).expect("a node");
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(then(&worker));
        drop(worker);
        node
    }

    fn never() -> Work<()> {
        Box::pin(std::future::pending())
    }

    /// A later worker with the same number would write behind the hole that is left in its rings.
    #[test]
    fn a_node_whose_executor_ends_before_a_commit_does_is_over() {
        let node = after(async |worker| {
            let commit = ToItsEnd::of(&worker.core, never(), u64::MAX);
            drop(worker.handle().spawn(async move { drop(commit.await) }));
            worker.handle().yield_now().await;
            assert!(!worker.drain(DRAIN_NS).await, "it waits for a commit that another task polls");
        });
        assert!(node.is_expelled());
        // Its caller has given it up.
        let node = after(async |worker| drop(ToItsEnd::of(&worker.core, never(), u64::MAX)));
        assert!(node.is_expelled());
    }

    #[test]
    fn a_node_whose_commits_have_ended_goes_on() {
        let count = Rc::new(Cell::new(0));
        let node = after(async |worker| {
            for is_given_up in [false, true] {
                let (counted, handle) = (count.clone(), worker.handle().clone());
                let work: Work<()> = Box::pin(async move {
                    handle.sleep_ns(DRAIN_NS / 2).await;
                    counted.set(counted.get() + 1);
                    Ok(())
                });
                let commit = ToItsEnd::of(&worker.core, work, u64::MAX);
                if is_given_up {
                    drop(commit);
                } else {
                    drop(worker.handle().spawn(async move { drop(commit.await) }));
                }
            }
            assert!(worker.drain(10 * DRAIN_NS).await);
            assert!(worker.drain(0).await, "nothing is counted twice");
        });
        assert_eq!(count.get(), 2);
        assert!(!node.is_expelled());
    }
}
