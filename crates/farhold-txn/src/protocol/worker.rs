//! What one thread needs to run transactions.

use crate::base::error::TxnError;
use crate::base::slots::{Counter, OwnSlot};
use crate::node::Node;
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use crate::rpc::message::Request;
use farhold_fabric::{Handle, NodeId};
use std::rc::Rc;
use std::sync::Arc;

/// One thread's interface to the database. Not `Send`; clones are the same worker, so each of a thread's tasks may have
/// one.
///
/// Many transactions may be open on one worker at the same time. A transaction that waits lets the others run.
#[derive(Clone)]
pub struct Worker {
    pub(crate) core: Rc<Core>,
}

/// How often [`Worker::drain`] looks.
const DRAIN_LOOK_NS: u64 = 20_000;

/// How often [`Worker::run`] starts again, and how long it waits in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Most times that the body runs, the first included.
    pub attempts_max: u32,
    /// Longest wait before the second attempt; doubles with each one. The wait is random between zero and this.
    pub backoff_ns: u64,
    /// The doubling's end.
    pub backoff_ns_max: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts_max: 1000, backoff_ns: 1_000, backoff_ns_max: 1_000_000 }
    }
}

/// How long attempts are repeated that fail by anything but a conflict.
const SILENT_NS_MAX: u64 = 30_000_000_000;

impl Retry {
    /// Once, and no second time.
    #[must_use]
    pub const fn never() -> Self {
        Self { attempts_max: 1, backoff_ns: 0, backoff_ns_max: 0 }
    }

    /// The longest wait after `attempts` attempts.
    fn wait_ns_max(self, attempts: u32) -> u64 {
        let doubled = self.backoff_ns.saturating_mul(1 << (attempts - 1).min(32));
        doubled.min(self.backoff_ns_max)
    }
}

impl Node {
    /// A worker for this thread. It waits on the executor of `handle`.
    ///
    /// # Errors
    /// All 255 worker numbers are taken, or the fabric has no endpoint left.
    pub fn worker(self: &Arc<Self>, handle: &Handle) -> Result<Worker, TxnError> {
        Worker::new(self, handle)
    }
}

impl Worker {
    pub(crate) fn new(node: &Arc<Node>, handle: &Handle) -> Result<Self, TxnError> {
        Self::with_slot(node, handle, node.slots.take()?)
    }

    pub(crate) fn with_slot(node: &Arc<Node>, handle: &Handle, slot: OwnSlot) -> Result<Self, TxnError> {
        let me = node.id();
        let endpoint = node.fabric.endpoint(handle).map_err(|error| TxnError::far(error, me))?;
        let core = Core::new(node, endpoint, handle, slot);
        Ok(Self { core })
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.core.node
    }

    /// The executor that it waits on.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.core.handle
    }

    /// Starts a transaction.
    #[must_use]
    #[inline]
    pub fn begin(&self) -> Txn {
        Txn::begin(&self.core, false)
    }

    /// Starts a transaction that will not write: its commit takes no locks.
    #[must_use]
    #[inline]
    pub fn begin_read_only(&self) -> Txn {
        Txn::begin(&self.core, true)
    }

    /// Tells all living nodes that this one has started: they release what its earlier starts had locked and reserved
    /// there. The [`HomeAgent`](crate::HomeAgent) does so; without one, the program must call this once after a
    /// restart. Nodes that are down release these themselves when they start. Nodes that do not answer are told again
    /// in the background. Returns the nodes that have answered.
    ///
    /// # Errors
    /// [`TxnError::Remote`] from a node that has met an earlier start of this node which this node's memory does not record:
    /// the memory was lost. [`Node::refusal`](crate::Node::refusal) then says so too, also where that node is told in the
    /// background.
    pub async fn join_cluster(&self) -> Result<Vec<NodeId>, TxnError> {
        let node = self.node();
        let epoch = node.recovered().epoch;
        let (me, incarnation, birth) = (node.id(), node.store.incarnation(), node.birth(self.handle()));
        let hello = Request::Hello { node: me, incarnation, birth, epoch };
        let (mut heard, mut silent) = (Vec::new(), Vec::new());
        if node.replication.is_some() {
            // The others have released everything before they went on without this node.
            return Ok(heard);
        }
        for other in node.others() {
            if !node.fabric.node_is_live(other) {
                continue;
            }
            match self.core.call(other, &hello).await {
                Ok(_) => heard.push(other),
                Err(TxnError::NodeUnavailable { .. } | TxnError::Fabric(_)) => silent.push(other),
                Err(error) => {
                    let _ = node.refusal.set(error.clone());
                    return Err(error);
                }
            }
        }
        if !silent.is_empty() {
            // The message may be lost, where a node is cut off.
            let core = self.core.clone();
            self.core.leave(async move {
                if let Err(error) = core.tell_until_heard(silent, &hello).await {
                    let _ = core.node.refusal.set(error);
                }
            });
        }
        Ok(heard)
    }

    /// Runs `body` in a transaction and commits it; again after a conflict, as `retry` says.
    ///
    /// # Errors
    /// Whatever `body` or the commit fails with; [`TxnError::Conflict`] when the attempts are used up.
    pub async fn run<T>(
        &self,
        retry: Retry,
        mut body: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        let attempt = async || {
            let mut txn = self.begin();
            let value = body(&mut txn).await?;
            txn.commit().await.map(|_| value)
        };
        self.run_attempts(retry, attempt).await
    }

    /// As [`Self::run`], for a body that begins and commits its transaction itself.
    pub(crate) async fn run_attempts<T>(
        &self,
        retry: Retry,
        mut attempt: impl AsyncFnMut() -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        let mut attempts = 0;
        let silent_until_ns = self.core.handle.now_ns().saturating_add(SILENT_NS_MAX);
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            attempts += 1;
            // An attempt that meets a silent node which cannot be expelled takes as long as a request may.
            let is_late = || !matches!(error, TxnError::Conflict) && self.core.handle.now_ns() >= silent_until_ns;
            if !error.is_retryable() || !self.may_come_right(retry, attempts) || is_late() {
                return Err(error);
            }
            self.core.slot.count(Counter::Retries);
            self.back_off(retry, attempts).await;
        }
    }

    /// Waits until the work that this worker's transactions have left is done: commits past their commit point, also those
    /// that no caller waits for, keys to be given back, and deleted rows to be removed on other nodes. That work goes on
    /// in the background, so a caller needs this only before it ends the executor. False: not within `timeout_ns`. If the
    /// executor ends before that, and rows have copies, this node leaves the cluster
    /// ([`Node::is_expelled`](crate::Node::is_expelled)), and the others do the work.
    pub async fn drain(&self, timeout_ns: u64) -> bool {
        let handle = &self.core.handle;
        let until_ns = handle.now_ns().saturating_add(timeout_ns);
        while self.core.left.get() > 0 {
            if handle.now_ns() >= until_ns {
                return false;
            }
            handle.sleep_ns(DRAIN_LOOK_NS).await;
        }
        true
    }

    /// Whether to make another attempt after `attempts` attempts. None can succeed once the others go on without this
    /// node.
    pub(crate) fn may_come_right(&self, retry: Retry, attempts: u32) -> bool {
        attempts < retry.attempts_max && !self.core.node.is_expelled()
    }

    /// The wait before the attempt after `attempts` failed ones: random, longer each time.
    pub async fn back_off(&self, retry: Retry, attempts: u32) {
        let most_ns = retry.wait_ns_max(attempts);
        let wait_ns = self.core.handle.random_u64() % (most_ns + 1);
        if wait_ns == 0 { self.core.handle.yield_now().await } else { self.core.handle.sleep_ns(wait_ns).await }
    }
}
