//! Nodes of one process on real threads, whose histories are merged and checked: what a simulation cannot show, because it is one thread.
//!
//! Between two of its waits, a commit on one node is one step to a simulation. Here its latches, its validation and its writes meet those of
//! other threads. A section takes less than a microsecond, so threads that run undisturbed rarely meet in the middle of one. So workers'
//! threads are [shaken](farhold_txn::shake): they stop, now and then, where a defect may be planted, for as long as others need for many
//! transactions. Signals, whose handler slept at whatever instruction they met, were tried instead: of five defects they showed one.
//!
//! A seed decides what a run is made of, what its clients draw and how its threads stop, but not their order: the same seed may fail once
//! and pass then. A run that fails is still a bug report, as its history says who has seen what.

use crate::cluster::Outcome;
use crate::history::History;
use crate::workload::{Client, Recorder, Tables, Workload};
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_txn::{Defect, HomeAgent, Node, NodeConfig, ReplicationConfig, Statistics, Worker, plant, shake};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The machine may have much else to do.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Nodes found their cluster within a part of it.
const LEASE_NS: u64 = 4_000_000_000;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Decides what clients draw.
    pub seed: u64,
    /// The provider that nodes run over.
    pub provider: &'static str,
    /// How many nodes.
    pub nodes: u8,
    /// Copies of each row.
    pub replicas: u8,
    /// Whether rows are written, odd, before their records are sent.
    pub optimistic: bool,
    /// Threads of each node, beside its home agent: each has one worker and one client.
    pub threads: usize,
    /// Transactions that each client tries.
    pub transactions: usize,
    /// What they do.
    pub workload: Workload,
    /// Whether the workers' threads stop in the middle of what they do.
    pub shaken: bool,
    /// What is wrong on purpose in the workers' threads.
    pub planted: Option<Defect>,
}

impl Setup {
    /// Over shared memory, with four threads or more: more than the sections of one node can take in turns on any machine.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        // Most runs are of one node: there all of a commit is in sections.
        let (nodes, replicas, threads) = match seed / 4 % 4 {
            0 | 1 => (1, 1, 4),
            2 => (2, 1, 2),
            _ => (2, 2, 2),
        };
        let workload = Workload::of_seed(seed);
        // A snapshot of rows that are written all the time takes as long as many transactions.
        let transactions = if workload.snapshots > 1 { 300 } else { 600 };
        Self {
            seed,
            provider: "shm",
            nodes,
            replicas,
            optimistic: seed.is_multiple_of(2),
            threads,
            transactions,
            workload,
            shaken: true,
            planted: None,
        }
    }
}

/// Nodes with their home agents.
pub struct Cluster {
    agents: Vec<HomeAgent>,
    nodes: Vec<Arc<Node>>,
    threads: usize,
    planted: Option<Defect>,
    seed: u64,
    shaken: bool,
    dir: PathBuf,
}

impl Cluster {
    /// Starts one, and waits until it is whole.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(setup: &Setup) -> Self {
        static CLUSTERS: AtomicU64 = AtomicU64::new(0);
        let name = format!("farhold-threads-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Relaxed));
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let start = |node| {
            let fabric = Fabric::join(&dir, NodeId(node), setup.provider).expect("the fabric");
            let replication = ReplicationConfig {
                replicas: setup.replicas,
                lease_ns: LEASE_NS,
                optimistic: setup.optimistic,
                ..ReplicationConfig::default()
            };
            let config = NodeConfig {
                nodes: setup.nodes,
                region_bytes: 32 << 20,
                request_timeout_ns: PATIENCE_NS,
                replication,
                ..NodeConfig::default()
            };
            Node::open(fabric, config).expect("a node")
        };
        let nodes: Vec<_> = (0..setup.nodes).map(start).collect();
        let is_copied = setup.replicas > 1;
        let agent = |node| if is_copied { HomeAgent::start_member(node, &dir) } else { HomeAgent::start(node) };
        let agents = nodes.iter().map(|node| agent(node).expect("an agent")).collect();
        while !nodes.iter().all(|node| node.is_member()) {
            std::thread::yield_now();
        }
        Self {
            agents,
            nodes,
            threads: setup.threads,
            planted: setup.planted,
            seed: setup.seed,
            shaken: setup.shaken,
            dir,
        }
    }

    /// Runs `work` on the threads of each node, each with its own executor and worker.
    ///
    /// # Panics
    /// If one of them does.
    pub fn on_all_threads<T: Send>(&self, work: impl AsyncFn(usize, Worker) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.nodes.len() * self.threads)
                .map(|number| {
                    let node = &self.nodes[number % self.nodes.len()];
                    scope.spawn(move || {
                        plant(self.planted);
                        shake(if self.shaken { (self.seed << 8) | (number as u64 + 1) } else { 0 });
                        let executor = Executor::real(number as u64);
                        let worker = node.worker(&executor.handle()).expect("a worker");
                        let done = executor.run(work(number, worker.clone()));
                        assert!(executor.run(worker.drain(PATIENCE_NS)), "what transactions have left to be done");
                        done
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    /// Runs something on a worker of the first node.
    ///
    /// # Panics
    /// If the node has too many.
    pub fn on_one<T>(&self, work: impl AsyncFnOnce(Worker) -> T) -> T {
        let executor = Executor::real(99);
        let worker = self.nodes[0].worker(&executor.handle()).expect("a worker");
        executor.run(work(worker))
    }

    /// What is left once the agents have had time to serve what was told without an answer.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let left = || self.nodes.iter().flat_map(|node| node.left_behind()).collect::<Vec<_>>();
        self.on_one(async |worker| {
            // Messages on the way are seconds apart only if a thread has lost its core for so long.
            for _ in 0..10_000 {
                if left().is_empty() {
                    break;
                }
                worker.handle().sleep_ns(1_000_000).await;
            }
            left()
        })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agents.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs a setup to its end.
///
/// # Panics
/// If the cluster cannot be started, or a thread of it panics.
#[must_use]
pub fn run(setup: &Setup) -> Outcome {
    let cluster = Cluster::start(setup);
    let workload = &setup.workload;
    let clock = Arc::new(AtomicU64::new(1));
    let recorder = |number: u64| {
        Rc::new(RefCell::new(Recorder { clock: clock.clone(), last_id: number << 40, ..Recorder::default() }))
    };
    let initial = cluster.on_one(async |worker| {
        let recorder = recorder(1_000);
        Tables::create(&worker, workload, &recorder).await.expect("the tables");
        recorder.take().history.initial
    });
    let of_client = |recorder: Rc<RefCell<Recorder>>| {
        let Recorder { history, broken, .. } = recorder.take();
        (history.records, broken)
    };
    let mut recorded = cluster.on_all_threads(async |number, worker| {
        let recorder = recorder(number as u64);
        // The executor's randomness is seeded by the thread's number: each seed draws other transactions.
        for _ in 0..setup.seed % 1_000 {
            let _ = worker.handle().random_u64();
        }
        Client::new(number, &worker, workload, recorder.clone()).run(setup.transactions).await;
        of_client(recorder)
    });
    recorded.push(cluster.on_one(async |worker| {
        let recorder = recorder(1_001);
        Client::new(usize::MAX, &worker, workload, recorder.clone()).look_at_everything().await;
        of_client(recorder)
    }));
    let mut history = History { initial, records: Vec::new() };
    let mut broken = Vec::new();
    for (records, wrong) in recorded {
        history.records.extend(records);
        broken.extend(wrong);
    }
    let left_behind = cluster.left_behind();
    let nodes = &cluster.nodes;
    for mirror in nodes[0].configuration().iter().flat_map(|configuration| &configuration.mirrors) {
        let [on, of] = [mirror.on, mirror.of].map(|node| &nodes[usize::from(node.0)]);
        broken.extend(on.mirror_differs(of));
    }
    let statistics = cluster.nodes.iter().fold(Statistics::default(), |sum, node| sum + node.statistics());
    Outcome { trace_hash: 0, history, statistics, broken, left_behind }
}
