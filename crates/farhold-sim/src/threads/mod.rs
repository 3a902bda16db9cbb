//! Nodes of one process on real threads; their histories are merged and checked. This finds defects that a simulation cannot, because a simulation has one
//! thread.
//!
//! Between two of its waits, a commit on one node is one step to a simulation. Here its latches, its validation and its writes meet those of other threads. A
//! section takes less than a microsecond, so threads that run undisturbed rarely meet in the middle of one. All threads of a node, including those of its home
//! agent and its journal, are therefore [shaken](farhold_planted::shake): they stop at random where a defect may be planted, for as long as other threads need
//! for many transactions. Signals whose handler slept at an arbitrary instruction were tried instead: they revealed one of five defects.
//!
//! ```text
//!   clients    random transactions, recorded and checked; between them a transfer in the bank, and a visit to a table that comes and goes
//!   bank.rs    one thread looks at snapshots: the sum over all accounts is always the same
//!   tables.rs  one thread makes and drops tables, and indexes on the clients' table, and fills small regions
//!   restart.rs with journals: another cluster starts from what is left, at the end or after a cut of the power
//! ```
//! A seed determines the setup of a run, the random choices of its clients and the stops of its threads, but not the order of the threads: the same seed may
//! fail once and pass the next time. A failing run is still a bug report, because its history shows what each transaction has read.

mod bank;
mod restart;
mod tables;

use crate::cluster::{Outcome, is_expected};
use crate::history::History;
use crate::workload::{Client, Recorder, Row, Tables, Workload};
use bank::Bank;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_planted::{Defect, plant, shake};
use farhold_store::durable::files::{Directory, Disk};
use farhold_store::durable::power::Volatile;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{
    Generation, HomeAgent, JournalConfig, JournalThreads, Node, NodeConfig, ReplicationConfig, Retry, Statistics,
    TableDef, TxnError, Worker,
};
use restart::Cut;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use tempfile::TempDir;

/// The machine may have much else to do.
const PATIENCE_NS: u64 = 60_000_000_000;
/// No node dies, and a machine that is busy with other work must not make one look dead.
const LEASE_NS: u64 = PATIENCE_NS;
/// Between two looks at whether the cluster is whole.
const LOOK_NS: u64 = 1_000_000;

/// Transactions of a client between two turns with the bank and the tables that come and go.
const TURN: usize = 8;
/// The longest time for which a long transaction or snapshot stays open.
const PAUSE_NS_MAX: u64 = 1_000_000;
/// Bytes of a region that is filled, and of one that is not.
const SMALL_BYTES: u64 = 4 << 20;
const LARGE_BYTES: u64 = 32 << 20;
/// Looks at snapshots to a cut of the power, on average.
const SNAPSHOTS_PER_CUT: u64 = 4;
/// A transaction may write a quarter of a segment: more than any does.
const SEGMENT_BYTES: u64 = 1 << 20;

/// What the nodes' journals are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Journals {
    /// There are none.
    None,
    /// This machine's disk. The cluster starts again from it at the end.
    Disk,
    /// A simulated disk, whose power is cut this many times while everything runs. Another cluster starts from what each cut has
    /// left.
    PowerCuts(usize),
}

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
    /// Whether other load runs beside them: transfers and snapshots of the accounts, tables and indexes that come and
    /// go.
    pub beside: bool,
    /// Bytes of a node's region. Small ones are filled now and then.
    pub region_bytes: u64,
    /// The nodes' journals.
    pub journals: Journals,
    /// Whether threads stop in the middle of what they do.
    pub shaken: bool,
    /// The defect that is planted in the threads of the nodes.
    pub planted: Option<Defect>,
}

impl Setup {
    /// Over shared memory, with four client threads in all: on any machine, sections of one node then run at the same time.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        // Half of the runs have one node: there the whole commit is in sections.
        let (nodes, replicas, threads) = match seed / 4 % 4 {
            0 | 1 => (1, 1, 4),
            2 => (2, 1, 2),
            _ => (2, 2, 2),
        };
        let workload = Workload::of_seed(seed);
        // On a node alone, of several, and with copies.
        let journals = match (seed + seed / 16) % 16 {
            3 => Journals::Disk,
            6 => Journals::PowerCuts(3),
            // A cluster with copies is founded in a part of a lease.
            13 => Journals::PowerCuts(1),
            _ => Journals::None,
        };
        let transactions = match journals {
            // A snapshot of rows that are constantly written takes as long as many transactions.
            Journals::None if workload.snapshots > 1 => 300,
            Journals::None => 600,
            // Each transaction waits for the journal.
            _ => 80,
        };
        let are_small = !seed.is_multiple_of(2) && journals == Journals::None;
        Self {
            seed,
            provider: "shm",
            nodes,
            replicas,
            optimistic: seed.is_multiple_of(2),
            threads,
            transactions,
            workload,
            beside: true,
            region_bytes: if are_small { SMALL_BYTES } else { LARGE_BYTES },
            journals,
            shaken: true,
            planted: None,
        }
    }

    /// As [`Self::of_seed`], with journals and many cuts of the power, without copies.
    #[must_use]
    pub fn with_power_cuts(seed: u64) -> Self {
        let (journals, this) = (Journals::PowerCuts(8), Self::of_seed(seed));
        Self { replicas: 1, journals, region_bytes: LARGE_BYTES, transactions: 120, ..this }
    }

    fn are_regions_small(&self) -> bool {
        self.region_bytes == SMALL_BYTES
    }
}

/// May a correct transaction fail with this error beside all others?
fn may_happen(error: &TxnError) -> bool {
    is_expected(error) || matches!(error, TxnError::OutOfMemory { .. })
}

/// Yields to other threads.
async fn pause(worker: &Worker) {
    let handle = worker.handle();
    handle.sleep_ns(handle.random_u64() % PAUSE_NS_MAX).await;
}

/// Nodes with their home agents and journals.
pub struct Cluster {
    agents: Vec<HomeAgent>,
    journals: Vec<JournalThreads>,
    nodes: Vec<Arc<Node>>,
    threads: usize,
    planted: Option<Defect>,
    seed: u64,
    shaken: bool,
    _dir: TempDir,
}

fn open_node(setup: &Setup, id: NodeId, dir: &Path, disk: Option<&Arc<dyn Directory>>) -> Arc<Node> {
    let replication = ReplicationConfig {
        replicas: setup.replicas,
        lease_ns: LEASE_NS,
        optimistic: setup.optimistic,
        ..ReplicationConfig::default()
    };
    let journal = disk.map(|disk| JournalConfig {
        segment_bytes: SEGMENT_BYTES,
        checkpoint_bytes: SEGMENT_BYTES / 2,
        step_ns: 200_000,
        threads: 1,
        ..JournalConfig::new(disk.clone())
    });
    let fabric = Fabric::join(dir, id, setup.provider).expect("the fabric");
    let config = NodeConfig {
        nodes: setup.nodes,
        region_bytes: setup.region_bytes,
        request_timeout_ns: PATIENCE_NS,
        replication,
        journal,
        ..NodeConfig::default()
    };
    let generation = config.journal.as_ref().map(|journal| {
        Generation::begin(journal, id, setup.nodes, &config.replication).expect("nobody else has the journals")
    });
    let node = match generation {
        Some(generation) => Node::open_durable(fabric, config, generation),
        None => Node::open(fabric, config),
    };
    node.expect("a node")
}

impl Cluster {
    /// Starts one, and waits until it is whole.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(setup: &Setup) -> Self {
        Self::start_on(setup, None)
    }

    /// As [`Self::start`], with journals on a disk, and what is in them.
    fn start_on(setup: &Setup, disk: Option<&Arc<dyn Directory>>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let nodes: Vec<_> = (0..setup.nodes).map(|node| open_node(setup, NodeId(node), dir.path(), disk)).collect();
        // The nodes' own threads have the defect of this one, and are shaken if it is.
        plant(setup.planted);
        shake(if setup.shaken { setup.seed + 1 } else { 0 });
        let journal = |node| JournalThreads::start(node).expect("the journal's threads");
        let journals = nodes.iter().filter_map(journal).collect();
        let is_copied = setup.replicas > 1;
        let agent = |node| if is_copied { HomeAgent::start_member(node, dir.path()) } else { HomeAgent::start(node) };
        let agents = nodes.iter().map(|node| agent(node).expect("an agent")).collect();
        plant(None);
        shake(0);
        let waiting = Executor::real(0);
        waiting.run(async {
            while !nodes.iter().all(|node| node.is_member()) {
                waiting.handle().sleep_ns(LOOK_NS).await;
            }
        });
        Self {
            agents,
            journals,
            nodes,
            threads: setup.threads,
            planted: setup.planted,
            seed: setup.seed,
            shaken: setup.shaken,
            _dir: dir,
        }
    }

    /// Runs `work` on the threads of each node, each with its own executor and worker.
    ///
    /// # Panics
    /// If one of them does.
    pub fn on_all_threads<T: Send>(&self, work: impl AsyncFn(usize, Worker) -> T + Sync) -> Vec<T> {
        self.on_threads(self.nodes.len() * self.threads, work)
    }

    /// As [`Self::on_all_threads`], on `count` threads, which take the nodes in turn.
    fn on_threads<T: Send>(&self, count: usize, work: impl AsyncFn(usize, Worker) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count)
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

    /// Waits until each node knows the journals of the others; nothing is durable before that.
    fn wait_for_journals(&self) {
        const NAME: &str = "first";
        let is_early = |error: &TxnError| matches!(error, TxnError::NotDurable { committed: false, .. });
        self.on_threads(1, async |_, worker| {
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            while let Err(error) = worker.create_table(TableDef::new(NAME, schema.clone())).await {
                assert!(is_early(&error), "the first table: {error}");
                pause(&worker).await;
            }
        });
        self.on_threads(self.nodes.len(), async |number, worker| {
            let table = worker.node().table(NAME).expect("created before");
            let mut value = Vec::new();
            table.schema().encode_value(&[Datum::Int(0)], &mut value).expect("a row");
            loop {
                let inserted = worker.run(Retry::default(), async |txn| {
                    txn.insert(&table, &Row::key(number as u32), &value).await.map(|_| ())
                });
                match inserted.await {
                    Ok(()) => break,
                    Err(error) => assert!(is_early(&error), "the first row of a node: {error}"),
                }
                pause(&worker).await;
            }
        });
        self.on_threads(1, async |_, worker| {
            let table = worker.node().table(NAME).expect("created before");
            worker.drop_table(&table).await.expect("dropped");
        });
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

    /// The leaks that remain once the agents have had time to serve messages without an answer.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let left_on = |node: &Arc<Node>| node.left_behind().into_iter().chain(node.leaks()).collect::<Vec<_>>();
        let left = || self.nodes.iter().flat_map(left_on).collect::<Vec<_>>();
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
        // The last steps of each need the others.
        std::thread::scope(|scope| self.journals.drain(..).for_each(|it| drop(scope.spawn(move || drop(it)))));
        self.nodes.iter().for_each(|node| node.close());
    }
}

/// Counts a client out, however it ends.
struct Going<'c>(&'c AtomicUsize);

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The state that all threads of a run share.
struct Shared<'s> {
    setup: &'s Setup,
    /// Clients that are not done.
    going: AtomicUsize,
    clock: Arc<AtomicU64>,
    /// The disk whose power is cut, and what it had each time.
    power: Option<Volatile>,
    cuts: Mutex<Vec<Cut>>,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        self.going.load(SeqCst) == 0
    }

    fn recorder(&self, number: u64) -> Recorder {
        Recorder { clock: self.clock.clone(), last_id: number << 40, ..Recorder::default() }
    }

    fn cuts(&self) -> std::sync::MutexGuard<'_, Vec<Cut>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power if it is to be cut once more.
    fn may_cut(&self, worker: &Worker) {
        let Journals::PowerCuts(cuts_max) = self.setup.journals else { return };
        let is_time = worker.handle().random_u64().is_multiple_of(SNAPSHOTS_PER_CUT) && self.cuts().len() < cuts_max;
        let Some(disk) = self.power.as_ref().filter(|_| is_time) else { return };
        let at = self.clock.fetch_add(1, SeqCst);
        let cut = Cut { at, disk: disk.cut(&mut || worker.handle().random_u64()) };
        self.cuts().push(cut);
    }

    /// A client, with its turns at the bank and with the tables that come and go.
    async fn run_client(&self, number: usize, worker: &Worker, recorder: &Rc<RefCell<Recorder>>) {
        let _going = Going(&self.going);
        let Setup { workload, transactions, .. } = self.setup;
        let client = || Client::new(number, worker, workload, recorder.clone()).in_small_regions();
        if !self.setup.beside {
            return client().run(*transactions).await;
        }
        let bank = Bank::of(worker);
        for _ in 0..transactions / TURN {
            client().run(TURN).await;
            let done = match bank.transfer().await {
                Ok(()) => tables::visit(worker).await,
                failed => failed,
            };
            if let Err(error) = done {
                recorder.borrow_mut().broken.push(format!("client {number}, beside its transactions: {error}"));
                return;
            }
        }
    }

    /// Looks at snapshots until the clients are done.
    async fn analyse(&self, worker: &Worker) -> Result<(), String> {
        let bank = Bank::of(worker);
        loop {
            // Also a snapshot of the final state, when nothing writes any more.
            let is_last = self.is_over();
            let snapshot = match worker.snapshot().await {
                // Mirrors are still being filled.
                Err(TxnError::Recovering { .. }) if !is_last => {
                    pause(worker).await;
                    continue;
                }
                taken => taken.map_err(|error| format!("a snapshot: {error}"))?,
            };
            bank.look(&snapshot).await?;
            tables::look(worker, &snapshot).await?;
            drop(snapshot);
            if is_last {
                return Ok(());
            }
            self.may_cut(worker);
            pause(worker).await;
        }
    }
}

/// Runs a setup to its end.
///
/// # Panics
/// If the cluster cannot be started, or a thread of it panics.
#[must_use]
pub fn run(setup: &Setup) -> Outcome {
    let power = matches!(setup.journals, Journals::PowerCuts(_)).then(Volatile::default);
    let dir = tempfile::tempdir().expect("a directory");
    let disk: Option<Arc<dyn Directory>> = match setup.journals {
        Journals::None => None,
        Journals::Disk => Some(Arc::new(Disk::open(dir.path()).expect("a directory"))),
        Journals::PowerCuts(_) => power.clone().map(|power| Arc::new(power) as Arc<dyn Directory>),
    };
    run_on(setup, disk, power)
}

fn run_on(setup: &Setup, disk: Option<Arc<dyn Directory>>, power: Option<Volatile>) -> Outcome {
    let cluster = Cluster::start_on(setup, disk.as_ref());
    if disk.is_some() {
        cluster.wait_for_journals();
    }
    let workload = &setup.workload;
    let clients = cluster.nodes.len() * cluster.threads;
    let shared = Shared {
        setup,
        going: AtomicUsize::new(clients),
        clock: Arc::new(AtomicU64::new(1)),
        power,
        cuts: Mutex::default(),
    };
    let new_recorder = |number| Rc::new(RefCell::new(shared.recorder(number)));
    let initial = cluster.on_one(async |worker| {
        let recorder = new_recorder(1_000);
        Tables::create(&worker, workload, &recorder).await.expect("the tables");
        if setup.beside {
            Bank::create(&worker).await.expect("the bank");
        }
        recorder.take().history.initial
    });
    let of_client = |recorder: Rc<RefCell<Recorder>>| {
        let Recorder { history, broken, .. } = recorder.take();
        (history.records, broken)
    };
    let beside = if setup.beside { 2 } else { 0 };
    let mut recorded = cluster.on_threads(clients + beside, async |number, worker| {
        let recorder = new_recorder(number as u64);
        // The executor's randomness is seeded by the thread's number: each seed draws other transactions.
        for _ in 0..setup.seed % 1_000 {
            let _ = worker.handle().random_u64();
        }
        let done = match number.checked_sub(clients) {
            None => {
                shared.run_client(number, &worker, &recorder).await;
                Ok(())
            }
            Some(0) => {
                let are_small = setup.are_regions_small();
                tables::come_and_go(&worker, setup.seed, are_small, || shared.is_over()).await
            }
            Some(_) => shared.analyse(&worker).await,
        };
        recorder.borrow_mut().broken.extend(done.err());
        of_client(recorder)
    });
    recorded.push(cluster.on_one(async |worker| {
        let recorder = new_recorder(1_001);
        Client::new(usize::MAX, &worker, workload, recorder.clone()).look_at_everything().await;
        of_client(recorder)
    }));
    let mut history = History { initial, ..History::default() };
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
    broken.extend(nodes.iter().skip(1).flat_map(|node| node.copies_differ(&nodes[0])));
    broken.extend(nodes.iter().filter_map(|node| node.journal_failure()).map(String::from));
    let statistics = cluster.nodes.iter().fold(Statistics::default(), |sum, node| sum + node.statistics());
    drop(cluster);
    for (number, cut) in (1_002..).zip(&*shared.cuts()) {
        broken.extend(restart::after_a_cut(setup, cut, &history, shared.recorder(number)));
    }
    if let (Journals::Disk, Some(disk)) = (setup.journals, disk) {
        broken.extend(restart::after_an_end(setup, &disk, &mut history, shared.recorder(1_002)));
    }
    Outcome { trace_hash: 0, history, statistics, broken, left_behind }
}
