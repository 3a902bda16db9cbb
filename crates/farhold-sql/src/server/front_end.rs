//! One front-end thread: a current-thread runtime, a worker, and the connections of its sessions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::engine::{Node, STACK_BYTES, Worker};
use farhold_fabric::{Handle, processor};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

use super::acceptor::{Arrival, Shared};
use super::auth::random;
use super::config::ServerError;
use super::connection;

/// The state that all connections of a thread share.
#[derive(Clone)]
pub struct FrontEnd {
    /// The state shared by all threads.
    pub shared: Arc<Shared>,
    /// The thread's access to the node.
    pub worker: Rc<Worker>,
    /// The server's shutdown.
    pub stopping: Rc<Stopping>,
}

/// The progress of a shutdown, as seen by the connections of one thread.
///
/// A connection checks it at each wait for its client; a channel shared by all threads would need a lock there.
#[derive(Default)]
pub struct Stopping {
    phase: Cell<Phase>,
    wakers: RefCell<HashMap<u64, Waker>>,
    next_waiter: Cell<u64>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    #[default]
    Serving,
    /// Idle clients are disconnected; statements may finish.
    Draining,
    /// Statements are cancelled.
    GraceOver,
}

impl Stopping {
    fn enter(&self, phase: Phase) {
        self.phase.set(phase);
        for waker in self.wakers.borrow_mut().drain().map(|(_, waker)| waker) {
            waker.wake();
        }
    }

    /// Completes when the server shuts down.
    pub async fn stopped(&self) {
        self.reached(Phase::Draining).await;
    }

    /// Completes when running statements must stop.
    pub async fn grace_is_over(&self) {
        self.reached(Phase::GraceOver).await;
    }

    async fn reached(&self, phase: Phase) {
        if self.phase.get() >= phase {
            return;
        }
        let waiter = Waiter { stopping: self, id: self.next_waiter.get() };
        self.next_waiter.set(waiter.id + 1);
        std::future::poll_fn(|cx| {
            if self.phase.get() >= phase {
                return Poll::Ready(());
            }
            self.wakers.borrow_mut().entry(waiter.id).or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
            Poll::Pending
        })
        .await;
    }
}

struct Waiter<'a> {
    stopping: &'a Stopping,
    id: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.stopping.wakers.borrow_mut().remove(&self.id);
    }
}

/// Starts a thread; returns when it is ready to serve.
pub fn start(
    index: usize,
    shared: &Arc<Shared>,
    node: &Arc<Node>,
    incoming: mpsc::UnboundedReceiver<Arrival>,
    stopped: watch::Receiver<bool>,
) -> Result<JoinHandle<()>, ServerError> {
    let (shared, node) = (Arc::clone(shared), Arc::clone(node));
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("farhold-front-{index}"))
        .stack_size(STACK_BYTES)
        .spawn(move || match prepare(index, &shared, &node) {
            Ok((runtime, front_end)) => {
                let _ = ready.send(Ok(()));
                let local = LocalSet::new();
                local.block_on(&runtime, serve(front_end, incoming, stopped));
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        })
        .map_err(ServerError::Thread)?;
    match started.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ServerError::Worker("the thread ended at its start".to_owned())),
    }
}

fn prepare(
    index: usize,
    shared: &Arc<Shared>,
    node: &Arc<Node>,
) -> Result<(tokio::runtime::Runtime, FrontEnd), ServerError> {
    if shared.config.pin_front_ends {
        let processors = processor::usable();
        if let Some(&processor) = processors.get(index % processors.len().max(1)) {
            processor::bind_this_thread(processor);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(ServerError::Thread)?;
    // Waits inside the engine wake themselves, so they work under tokio as under the fabric's own executor.
    let handle = Handle::standalone(u64::from_ne_bytes(random()));
    let worker = node.worker(&handle).map_err(|error| ServerError::Worker(error.to_string()))?;
    Ok((runtime, FrontEnd { shared: Arc::clone(shared), worker: Rc::new(worker), stopping: Rc::default() }))
}

/// Serves until the server stops and the last connection has ended.
async fn serve(
    front_end: FrontEnd,
    mut incoming: mpsc::UnboundedReceiver<Arrival>,
    mut stopped: watch::Receiver<bool>,
) {
    /// The time for final messages after statements were cancelled; clients that have not read them by then are
    /// disconnected.
    const FINAL_DRAIN: Duration = Duration::from_secs(1);
    // The work that transactions leave behind: the rest of a commit whose client is gone, rows to be removed at other
    // nodes.
    drop(tokio::task::spawn_local(front_end.worker.handle().drive()));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => break,
            Some(arrival) = incoming.recv() => {
                connections.spawn_local(connection::serve(front_end.clone(), arrival));
            }
            // Collects finished connections; a panic ends only its own connection.
            Some(_) = connections.join_next() => {}
            else => break,
        }
    }
    drop(incoming);
    let grace = front_end.shared.config.limits.shutdown_grace;
    for (phase, patience) in [(Phase::Draining, grace), (Phase::GraceOver, FINAL_DRAIN)] {
        front_end.stopping.enter(phase);
        let all_ended = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(patience, all_ended).await.is_ok() {
            break;
        }
    }
    connections.shutdown().await;
    front_end.worker.drain(FINAL_DRAIN.as_nanos() as u64).await;
}
