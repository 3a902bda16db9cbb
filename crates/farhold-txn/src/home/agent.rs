//! A thread that serves the node's inbox when its workers do not.

use crate::{Node, TxnError, Worker};
use farhold_fabric::Executor;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::JoinHandle;

/// Says hello to the cluster, then sleeps until a message comes, serves it, sleeps again. Stopped and joined on drop.
pub struct HomeAgent {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How long it sleeps at most: how late it hears that it shall stop.
const SLEEP_NS_MAX: u64 = 20_000_000;
/// How often it looks again before it sleeps: answers come in bursts, and a sleep and its end cost some 10 µs.
const LOOKS: u32 = 200;

impl HomeAgent {
    /// Starts the agent of a node.
    ///
    /// # Errors
    /// No worker number or endpoint is left for it.
    pub fn start(node: &Arc<Node>) -> Result<Self, TxnError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, node) = (stop.clone(), node.clone());
        let (report, started) = std::sync::mpsc::channel();
        let run = move || {
            let executor = Executor::real(u64::from(node.id().0));
            let worker = match node.worker(&executor.handle()) {
                Ok(worker) => worker,
                Err(error) => return drop(report.send(Err(error))),
            };
            let _ = report.send(Ok(()));
            executor.run(serve(worker, stopped));
        };
        let spawned = std::thread::Builder::new().name("farhold-home".into()).spawn(run);
        let thread = spawned.map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })?;
        started.recv().unwrap_or(Err(TxnError::Corrupt { what: "the home agent ended at its start" }))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

async fn serve(worker: Worker, stop: Arc<AtomicBool>) {
    // What this node's earlier starts had locked elsewhere. Until the others have heard, it is a conflict, no more; one that
    // does not answer does the same for itself when it starts.
    let _ = worker.join_cluster().await;
    let mut idle = 0;
    while !stop.load(Acquire) {
        if worker.poll() {
            idle = 0;
        } else if idle < LOOKS {
            idle += 1;
            worker.handle().yield_now().await;
        } else {
            worker.core.alloc.borrow_mut().collect();
            let _ = worker.core.endpoint.wait(SLEEP_NS_MAX);
            idle = 0;
        }
    }
}

impl Drop for HomeAgent {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
