//! What replicas cost TPC-C. Three nodes of one worker each, in this process, run with one copy of each row, with three, and with
//! three in the pessimistic order, in turn. Over `shm` the first two also run with memory that the system must find and clear
//! meanwhile: `cargo run --release -p farhold-bench --example replication -- SECONDS ROUNDS PROVIDER`
//!
//! With a fourth number, the transactions under way on each worker, it compares the two orders alone, on warehouses of a tenth of
//! their size. How much one order gains over the other depends on how many transactions want the same rows while replication is
//! under way.
//!
//! Beside the rates it reports the processor time a transaction takes: that of the workers, and that of all other threads of this
//! process, which are the home agents. The example `smallbank` and `scripts/figures replication` measure the same through node
//! processes; this is the shortest way from a change to a number.

use farhold_bench::measure::Counter;
use farhold_bench::workload::tpcc::Scale;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan, Totals};
use farhold_bench::workload::tpcc::input::Shares;
use farhold_bench::workload::tpcc::load::{Loader, warehouses_of};
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_txn::{HomeAgent, Node, NodeConfig, ReplicationConfig, TxnError, Worker};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SEED: u64 = 42;
const NODES: u8 = 3;
/// Transactions under way on each worker, by default.
const IN_FLIGHT: u16 = 2;
/// The name of a worker's thread.
const WORKER: &str = "worker";
/// Long enough for a machine on which threads wait for processors: no node dies in this run.
const LEASE_NS: u64 = 10_000_000_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let argument = |n: usize, default: u64| std::env::args().nth(n).map_or(Ok(default), |a| a.parse());
    let (seconds, rounds) = (argument(1, 5)?, argument(2, 3)?);
    let provider = std::env::args().nth(3).unwrap_or_else(|| "shm".into());
    let in_flight = argument(4, 0)? as u16;
    if in_flight > 0 {
        return compare_orders(&provider, seconds, rounds, in_flight);
    }
    let mut costs = Vec::new();
    for _ in 0..rounds {
        let measure = |replicas, optimistic, populated| {
            let (in_flight, scale) = (IN_FLIGHT, Scale::full(i32::from(NODES)));
            measure(&Setup { replicas, optimistic, populated, provider: &provider, seconds, in_flight, scale })
        };
        let one = measure(1, true, true)?;
        let (optimistic, pessimistic) = (measure(3, true, true)?, measure(3, false, true)?);
        costs.push(1.0 - optimistic.rate / one.rate);
        println!(
            "one copy {one}\nthree     {optimistic}\npessimistic {pessimistic}\noptimistic / pessimistic {:.3}",
            optimistic.rate / pessimistic.rate
        );
        if provider != "shm" {
            continue;
        }
        println!("unpopulated one {}\nunpopulated three {}", measure(1, true, false)?, measure(3, true, false)?);
    }
    costs.sort_by(f64::total_cmp);
    println!("cost of three copies: median {:.1} % of one copy's rate ({costs:.3?})", costs[costs.len() / 2] * 100.0);
    Ok(())
}

/// Three copies in both orders, in turn.
fn compare_orders(provider: &str, seconds: u64, rounds: u64, in_flight: u16) -> Result<(), Failure> {
    // Over a network too little is written in a second for its memory to matter.
    let populated = provider == "shm";
    for _ in 0..rounds {
        for (name, optimistic) in [("optimistic", true), ("pessimistic", false)] {
            let scale = Scale { warehouses: i32::from(NODES), items: 10_000, customers: 300 };
            let setup = Setup { replicas: 3, optimistic, populated, provider, seconds, in_flight, scale };
            let Measured { rate, conflicts, .. } = measure(&setup)?;
            println!("{name} {rate:.0}/s, {conflicts:.3} conflicts a transaction");
        }
    }
    Ok(())
}

/// What a cluster has done.
struct Measured {
    /// Transactions a second.
    rate: f64,
    /// Attempts that conflicted with others, for each transaction.
    conflicts: f64,
    /// Nanoseconds of processors for a transaction: workers, home agents.
    workers_ns: f64,
    agents_ns: f64,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, workers_ns, agents_ns, .. } = self;
        write!(f, "{rate:.0}/s, a transaction: workers {workers_ns:.0} ns, agents {agents_ns:.0} ns")
    }
}

/// A cluster to measure.
struct Setup<'a> {
    replicas: u8,
    optimistic: bool,
    /// The memory for later writes is taken before the run.
    populated: bool,
    provider: &'a str,
    seconds: u64,
    /// Transactions under way on each worker.
    in_flight: u16,
    scale: Scale,
}

impl Setup<'_> {
    /// Memory of a node that the population takes, about.
    fn loaded_bytes(&self) -> u64 {
        self.scale.rows_per_warehouse() * 400
    }
}

/// A new cluster.
fn measure(setup: &Setup<'_>) -> Result<Measured, Failure> {
    let directory = tempfile::Builder::new().prefix("farhold-").tempdir_in("/dev/shm")?;
    measure_in(directory.path(), setup)
}

/// Nanoseconds that processors have spent on this process's workers and on its other threads.
fn processor_ns() -> std::io::Result<(u64, u64)> {
    let (mut workers, mut others) = (0, 0);
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        let (Ok(name), Ok(spent)) =
            (std::fs::read_to_string(path.join("comm")), std::fs::read_to_string(path.join("schedstat")))
        else {
            continue;
        };
        let spent: u64 = spent.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        if name.trim() == WORKER { workers += spent } else { others += spent }
    }
    Ok((workers, others))
}

#[expect(clippy::disallowed_methods, reason = "a program's own clock")]
fn measure_in(directory: &Path, setup: &Setup<'_>) -> Result<Measured, Failure> {
    let &Setup { replicas, optimistic, seconds, in_flight, scale, .. } = setup;
    let replication = ReplicationConfig {
        replicas,
        optimistic,
        lease_ns: LEASE_NS,
        clock_skew_ns_max: LEASE_NS / 10,
        ..ReplicationConfig::default()
    };
    let stop = Arc::new(AtomicBool::new(false));
    let counters: Vec<Arc<Counters>> = (0..NODES).map(|_| Arc::default()).collect();
    let barrier = Arc::new(Barrier::new(usize::from(NODES) + 1));
    let mut agents = Vec::new();
    let mut threads = Vec::new();
    for number in 0..NODES {
        let fabric = Fabric::join(directory, NodeId(number), setup.provider)?;
        let config = NodeConfig {
            nodes: NODES,
            region_bytes: 2 * setup.loaded_bytes() + ((seconds * 100) << 20),
            populate_bytes: if setup.populated { setup.loaded_bytes() + ((seconds * 100) << 20) } else { 0 },
            replication: replication.clone(),
            ..NodeConfig::default()
        };
        let node = Node::open(fabric, config)?;
        agents.push(if replicas > 1 { HomeAgent::start_member(&node, directory)? } else { HomeAgent::start(&node)? });
        let (counters, stop, barrier) = (counters[usize::from(number)].clone(), stop.clone(), barrier.clone());
        let thread = std::thread::Builder::new().name(WORKER.into());
        threads.push(thread.spawn(move || run_node(&node, scale, in_flight, &counters, &stop, &barrier))?);
    }
    // Members, tables, rows; then all begin together.
    for _ in 0..3 {
        barrier.wait();
    }
    let (began, before) = (Instant::now(), processor_ns()?);
    std::thread::park_timeout(Duration::from_secs(seconds));
    let totals = Totals::of(counters.iter().map(AsRef::as_ref));
    let (elapsed, after) = (began.elapsed().as_secs_f64(), processor_ns()?);
    stop.store(true, Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a worker panicked")??;
    }
    drop(agents);
    let commits = totals.commits() as f64;
    Ok(Measured {
        rate: commits / elapsed,
        conflicts: totals.conflicts() as f64 / commits,
        workers_ns: (after.0 - before.0) as f64 / commits,
        agents_ns: (after.1 - before.1) as f64 / commits,
    })
}

fn run_node(
    node: &Arc<Node>,
    scale: Scale,
    in_flight: u16,
    counters: &Arc<Counters>,
    stop: &Arc<AtomicBool>,
    barrier: &Barrier,
) -> Result<(), TxnError> {
    let number = node.id().0;
    let executor = Executor::real(SEED + u64::from(number));
    let handle = executor.handle();
    let worker = node.worker(&handle)?;
    let warehouses: Vec<i32> = warehouses_of(number, NODES, i32::from(NODES)).collect();
    executor.run(async {
        while !node.is_member() {
            handle.sleep_ns(1_000_000).await;
        }
    });
    barrier.wait();
    if number == 0 {
        executor.run(Tables::create(&worker))?;
    }
    barrier.wait();
    let tables = Tables::open(node)?;
    executor.run(load(&worker, &tables, scale, &warehouses))?;
    barrier.wait();
    let plan = Plan {
        scale,
        shares: Shares::default(),
        load_seed: SEED,
        seed: SEED,
        worker: u32::from(number),
        warehouses,
        in_flight,
        clock_start_us: 0,
        survives: false,
    };
    executor.run(driver::run(&worker, &handle, &tables, &plan, counters, stop))
}

async fn load(worker: &Worker, tables: &Tables, scale: Scale, warehouses: &[i32]) -> Result<(), TxnError> {
    let rows = Counter::default();
    let mut loader = Loader { worker, tables, population: Population::new(scale, SEED, 0), rows: &rows };
    if worker.node().id().0 == 0 {
        loader.items(scale).await?;
    }
    for warehouse in warehouses {
        loader.warehouse(scale, *warehouse).await?;
    }
    Ok(())
}
