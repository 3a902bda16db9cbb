//! A cluster of simulated nodes, from its start to the final check of its state.

use crate::hiccups::Hiccups;
use crate::history::{Anomaly, History};
use crate::workload::{Client, Recorder, Tables, Workload};
use farhold_fabric::provider::sim::Sim;
use farhold_fabric::{Handle, NodeId};
use farhold_txn::{Node, NodeConfig, Statistics, TxnError, Worker};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// The definition of a run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Determines every time, every order and every choice.
    pub seed: u64,
    /// The number of nodes.
    pub nodes: u8,
    /// Workers of each node.
    pub workers: usize,
    /// Clients of each worker, whose transactions take turns on it.
    pub clients: usize,
    /// Transactions that each client tries.
    pub transactions: usize,
    /// Their operations.
    pub workload: Workload,
}

impl Setup {
    /// Three nodes, small enough for hundreds of seeds in a test.
    #[must_use]
    pub fn small(seed: u64) -> Self {
        Self { seed, nodes: 3, workers: 1, clients: 3, transactions: 12, workload: Workload::of_seed(seed) }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// A hash of the trace: two runs have the same hash only if they were the same.
    pub trace_hash: u64,
    /// The reads and writes of the transactions.
    pub history: History,
    /// All nodes' counts, summed.
    pub statistics: Statistics,
    /// Rows with bytes that no transaction wrote; errors that must not occur.
    pub broken: Vec<String>,
    /// Locks and reservations without a living holder, and other leaks.
    pub left_behind: Vec<String>,
}

impl Outcome {
    /// Checks that everything is in order.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        if let Some(broken) = self.broken.first() {
            return Err(broken.clone());
        }
        if let Some(left) = self.left_behind.first() {
            return Err(format!("left behind: {left}"));
        }
        self.history.check().map_err(|anomaly: Box<Anomaly>| anomaly.to_string())
    }
}

/// How long a server sleeps without a request.
const SERVE_NS: u64 = 1_000_000;

/// Runs a setup to its end.
///
/// # Panics
/// If the cluster cannot even be started.
#[must_use]
pub fn run(setup: &Setup) -> Outcome {
    let hiccups = Hiccups::of_seed(setup.seed);
    let executor = Hiccups::executor(hiccups, setup.seed);
    let handle = executor.handle();
    let sim = Hiccups::network(hiccups, &handle);
    let nodes = start_nodes(&sim, setup);
    let mut outcome = executor.run(drive(setup.clone(), nodes.clone(), handle));
    outcome.trace_hash = sim.trace_hash();
    drop(executor);
    outcome
}

fn start_nodes(sim: &Sim, setup: &Setup) -> Vec<Arc<Node>> {
    let start = |node| {
        let fabric = sim.join(NodeId(node)).expect("a node that does not run yet");
        // Hardware transactions abort at unpredictable moments, so a seed would not replay.
        let (nodes, hardware_transactions) = (setup.nodes, false);
        let config = NodeConfig { nodes, region_bytes: 4 << 20, hardware_transactions, ..NodeConfig::default() };
        Node::open(fabric, config).expect("a fresh region")
    };
    (0..setup.nodes).map(start).collect()
}

async fn drive(setup: Setup, nodes: Vec<Arc<Node>>, handle: Handle) -> Outcome {
    let workers: Vec<Worker> =
        nodes.iter().flat_map(|node| (0..setup.workers).map(|_| node.worker(&handle).expect("a worker"))).collect();
    // Each node has a server beside its workers: the workers also serve while they wait, but not between two
    // operations.
    for node in &nodes {
        let server = node.worker(&handle).expect("a worker");
        drop(handle.spawn(async move {
            loop {
                server.serve(SERVE_NS, usize::MAX).await;
            }
        }));
    }
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    Tables::create(&workers[0], &setup.workload, &recorder).await.expect("the tables");
    let mut clients = Vec::new();
    for (number, worker) in workers.iter().flat_map(|worker| (0..setup.clients).map(move |_| worker)).enumerate() {
        let client = Client::new(number, worker, &setup.workload, recorder.clone());
        clients.push(handle.spawn(client.run(setup.transactions)));
    }
    for client in clients {
        client.await;
    }
    // Messages without an answer may still be in flight.
    handle.sleep_ns(SERVE_NS).await;
    let last = Client::new(usize::MAX, &workers[0], &setup.workload, recorder.clone());
    last.look_at_everything().await;
    // The other nodes learn that the snapshot of this check is closed, and release what they kept for it.
    for _ in 0..2 {
        handle.sleep_ns(2 * SERVE_NS).await;
        for worker in &workers {
            worker.serve(0, 0).await;
        }
    }
    let left_behind = nodes.iter().flat_map(|node| node.left_behind().into_iter().chain(node.leaks())).collect();
    let statistics = nodes.iter().fold(Statistics::default(), |sum, node| sum + node.statistics());
    let Recorder { history, broken, .. } = recorder.take();
    Outcome { trace_hash: 0, history, statistics, broken, left_behind }
}

/// The errors that a client may meet and then try again.
#[must_use]
pub fn is_expected(error: &TxnError) -> bool {
    // A half-written row stays so for ever. If no node has reported it, the run fails when its client gives up.
    *error == TxnError::HALF_WRITTEN
        || matches!(error, TxnError::Conflict | TxnError::DuplicateKey { .. } | TxnError::Recovering { .. })
}
