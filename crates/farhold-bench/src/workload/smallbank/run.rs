//! A cluster in this process: its nodes are loaded, measured, audited.

use super::driver::{self, Counters, Totals};
use super::input::Inputs;
use super::{Scale, Tables, audit};
use crate::random::Random;
use farhold_fabric::ephemeral::Ephemeral;
use farhold_fabric::{Executor, Fabric, FabricError, NodeId, processor};
use farhold_txn::{Hardware, HomeAgent, Node, NodeConfig, ReplicationConfig, TxnError};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The bank.
    pub scale: Scale,
    /// Number of nodes that have workers; these workers also read and write the rows of the other nodes.
    pub working_nodes: u8,
    /// Workers (threads) of each of these.
    pub workers: u8,
    /// Transactions in flight on each worker.
    pub in_flight: u16,
    /// Of 100 transactions with two customers, those between two nodes.
    pub distributed_percent: u32,
    /// Of 100 transactions: on hot accounts.
    pub hot_percent: u32,
    /// Copies of each row.
    pub replicas: u8,
    /// Whether rows are visible before they are replicated.
    pub optimistic: bool,
    /// How long.
    pub span_ns: u64,
    /// Of everything drawn.
    pub seed: u64,
    /// Bind the workers to processors, from 0, and all other threads of the nodes to the others, if there are some.
    pub pin: bool,
    /// The fabric's provider.
    pub provider: String,
    /// Hardware transactions, where the processor has them.
    pub hardware: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Nanoseconds measured.
    pub elapsed_ns: u64,
    /// What was counted.
    pub totals: Totals,
    /// Hardware transactions, of each node.
    pub hardware: Vec<Hardware>,
}

impl Outcome {
    /// Committed transactions a second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.totals.committed() as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A transaction, or the set-up.
    #[error(transparent)]
    Txn(#[from] TxnError),
    /// The fabric.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The nodes have not become a cluster in time.
    #[error("the nodes have not become a cluster within {} s", FOUNDING.as_secs())]
    NotFounded,
    /// Money is missing, or there is too much.
    #[error("audit: {0}")]
    Audit(String),
}

/// How long the nodes may take to find each other.
const FOUNDING: Duration = Duration::from_secs(20);
/// Bytes of a node's region for each of its accounts: two rows, two entries in each of two indexes, room.
const BYTES_PER_ACCOUNT: u64 = 1_000;

/// The nodes, in a directory of their own.
struct Cluster {
    // Fields are dropped in this order.
    agents: Vec<HomeAgent>,
    nodes: Vec<Arc<Node>>,
    directory: Ephemeral,
}

impl Cluster {
    fn start(plan: &Plan) -> Result<Self, RunError> {
        let mut this = Self { agents: Vec::new(), nodes: Vec::new(), directory: Ephemeral::new()? };
        let nodes = plan.scale.nodes;
        let replication = ReplicationConfig {
            replicas: plan.replicas,
            optimistic: plan.optimistic,
            rings: plan.workers + 4,
            // No node dies in this run, and a machine that is busy with other work must not look as if one did.
            lease_ns: 10_000_000_000,
            ..ReplicationConfig::default()
        };
        let region_bytes = (64 << 20) + u64::from(plan.scale.accounts) * BYTES_PER_ACCOUNT;
        for node in 0..nodes {
            let fabric = Fabric::join(this.directory.path(), NodeId(node), &plan.provider)?;
            let (replication, hardware_transactions) = (replication.clone(), plan.hardware);
            let config =
                NodeConfig { nodes, region_bytes, replication, hardware_transactions, ..NodeConfig::default() };
            this.nodes.push(Node::open(fabric, config)?);
        }
        for node in &this.nodes {
            this.agents.push(match plan.replicas {
                0 | 1 => HomeAgent::start(node)?,
                _ => HomeAgent::start_member(node, this.directory.path())?,
            });
        }
        let handle = Executor::real(plan.seed).handle();
        let until_ns = handle.now_ns() + FOUNDING.as_nanos() as u64;
        while plan.replicas > 1 && !this.nodes.iter().all(|node| node.is_member()) {
            if handle.now_ns() > until_ns {
                return Err(RunError::NotFounded);
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        Ok(this)
    }

    /// Creates the tables and the accounts, each node its own.
    fn load(&self, plan: &Plan) -> Result<(), RunError> {
        let executor = Executor::real(plan.seed);
        let workers = self.nodes.iter().map(|node| node.worker(&executor.handle())).collect::<Result<Vec<_>, _>>()?;
        executor.run(async {
            let mut created = Tables::create(&workers[0]).await;
            let until_ns = executor.handle().now_ns() + FOUNDING.as_nanos() as u64;
            while matches!(&created, Err(error) if error.is_retryable()) && executor.handle().now_ns() < until_ns {
                executor.handle().sleep_ns(1_000_000).await;
                created = Tables::create(&workers[0]).await;
            }
            created?;
            for (worker, node) in workers.iter().zip(0..) {
                let tables = Tables::open(worker.node())?;
                tables.load(worker, plan.scale, node, 0..plan.scale.accounts).await?;
            }
            Ok(())
        })
    }
}

impl Cluster {
    /// Every mirror is what its node has.
    fn compare_mirrors(&self) -> Result<(), RunError> {
        let Some(configuration) = self.nodes[0].configuration() else { return Ok(()) };
        for mirror in &configuration.mirrors {
            let [of, on] = [mirror.of, mirror.on].map(|node| &self.nodes[usize::from(node.0)]);
            let differences = on.mirror_differs(of);
            if let Some(first) = differences.first() {
                return Err(RunError::Audit(format!("{} differences, the first: {first}", differences.len())));
            }
        }
        Ok(())
    }
}

/// Loads, runs, and audits.
///
/// # Errors
/// See [`RunError`].
pub fn run(plan: &Plan) -> Result<Outcome, RunError> {
    let all = processor::usable();
    if plan.pin {
        // This moves the threads of other nodes above all. In a real cluster they are not on this node's processors, and a bound
        // worker cannot make way for them.
        let count = usize::from(plan.working_nodes) * usize::from(plan.workers);
        let others: Vec<usize> = all.iter().copied().filter(|processor| *processor >= count).collect();
        processor::bind_this_thread_to(&others);
    }
    let outcome = run_here(plan);
    if plan.pin {
        processor::bind_this_thread_to(&all);
    }
    outcome
}

fn run_here(plan: &Plan) -> Result<Outcome, RunError> {
    let cluster = Cluster::start(plan)?;
    cluster.load(plan)?;
    let stop = Arc::new(AtomicBool::new(false));
    let count = usize::from(plan.working_nodes) * usize::from(plan.workers);
    let counters: Vec<Arc<Counters>> = (0..count).map(|_| Arc::default()).collect();
    let start = Barrier::new(count + 1);
    let elapsed_ns = std::thread::scope(|scope| {
        let threads: Vec<_> = counters
            .iter()
            .enumerate()
            .map(|(number, counters)| {
                let node = number / usize::from(plan.workers);
                let (cluster, start, stop) = (&cluster, &start, stop.clone());
                scope.spawn(move || {
                    let ended = work(cluster, plan, node, number, start, counters, &stop);
                    if ended.is_err() {
                        stop.store(true, Relaxed);
                    }
                    ended
                })
            })
            .collect();
        start.wait();
        let clock = Executor::real(0).handle();
        let began_ns = clock.now_ns();
        while clock.now_ns() - began_ns < plan.span_ns && !stop.load(Relaxed) {
            let left_ns = (plan.span_ns + began_ns).saturating_sub(clock.now_ns()).min(10_000_000);
            std::thread::park_timeout(Duration::from_nanos(left_ns));
        }
        stop.store(true, Relaxed);
        let elapsed_ns = clock.now_ns() - began_ns;
        for thread in threads {
            thread.join().expect("a worker's thread")?;
        }
        Ok::<u64, TxnError>(elapsed_ns)
    })?;
    let totals = Totals::of(counters.iter().map(|counters| &**counters));
    let executor = Executor::real(plan.seed);
    let auditor = cluster.nodes[0].worker(&executor.handle())?;
    let audited = executor.run(async {
        let tables = Tables::open(auditor.node()).map_err(|error| error.to_string())?;
        audit(&auditor, &tables, plan.scale, totals.added).await
    });
    audited.map_err(RunError::Audit)?;
    cluster.compare_mirrors()?;
    let hardware = cluster.nodes.iter().map(|node| node.statistics().hardware).collect();
    Ok(Outcome { elapsed_ns, totals, hardware })
}

/// One worker's thread.
fn work(
    cluster: &Cluster,
    plan: &Plan,
    node: usize,
    number: usize,
    start: &Barrier,
    counters: &Arc<Counters>,
    stop: &Arc<AtomicBool>,
) -> Result<(), TxnError> {
    if plan.pin {
        processor::bind_this_thread(number);
    }
    let executor = Executor::real(plan.seed ^ number as u64);
    let handle = executor.handle();
    let opened = cluster.nodes[node].worker(&handle).and_then(|worker| Ok((Tables::open(worker.node())?, worker)));
    start.wait();
    let (tables, worker) = opened?;
    let tables = Rc::new(tables);
    let inputs = Rc::new(Inputs {
        scale: plan.scale,
        node: node as u8,
        distributed_percent: plan.distributed_percent,
        hot_percent: plan.hot_percent,
    });
    executor.run(async {
        let terminals: Vec<_> = (0..plan.in_flight.max(1))
            .map(|terminal| {
                let random = Random::part(plan.seed, &[number as u64, u64::from(terminal)]);
                let (worker, tables, inputs) = (worker.clone(), tables.clone(), inputs.clone());
                let (counters, stop) = (counters.clone(), stop.clone());
                handle.spawn(async move {
                    let ended = driver::run(&worker, &tables, &inputs, random, &counters, &stop).await;
                    if ended.is_err() {
                        stop.store(true, Relaxed);
                    }
                    ended
                })
            })
            .collect();
        let mut ended = Ok(());
        for terminal in terminals {
            ended = ended.and(terminal.await);
        }
        ended
    })
}
