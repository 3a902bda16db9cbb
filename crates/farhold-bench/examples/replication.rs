//! What copies of rows cost TPC-C: three nodes of one worker each, in this process, with one copy of each row, with three, and with
//! three in the pessimistic order, in turn: `cargo run --release -p farhold-bench --example replication -- SECONDS ROUNDS`
//!
//! `scripts/figures replication` measures node processes through the `farhold` binary; this is the shortest way from a change to a
//! number.

use farhold_bench::measure::Counter;
use farhold_bench::workload::tpcc::Scale;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan, Totals};
use farhold_bench::workload::tpcc::input::Shares;
use farhold_bench::workload::tpcc::load::{Loader, warehouses_of};
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_txn::{HomeAgent, Node, NodeConfig, ReplicationConfig, TxnError, Worker};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SEED: u64 = 42;
const NODES: u8 = 3;
/// Long enough for a machine on which threads wait for processors: nobody dies here.
const LEASE_NS: u64 = 60_000_000_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let argument = |n: usize, default: u64| std::env::args().nth(n).map_or(Ok(default), |a| a.parse());
    let (seconds, rounds) = (argument(1, 5)?, argument(2, 3)?);
    let mut costs = Vec::new();
    for _ in 0..rounds {
        let one = rate(1, true, seconds)?;
        let (optimistic, pessimistic) = (rate(3, true, seconds)?, rate(3, false, seconds)?);
        costs.push(1.0 - optimistic / one);
        println!(
            "one copy {one:.0}/s, three optimistic {optimistic:.0}/s, pessimistic {pessimistic:.0}/s; optimistic / pessimistic {:.3}",
            optimistic / pessimistic
        );
    }
    costs.sort_by(f64::total_cmp);
    println!("cost of three copies: median {:.1} % of one copy's rate ({costs:.3?})", costs[costs.len() / 2] * 100.0);
    Ok(())
}

/// Transactions a second of a new cluster.
fn rate(replicas: u8, optimistic: bool, seconds: u64) -> Result<f64, Failure> {
    let directory = std::path::PathBuf::from(format!("/dev/shm/farhold-example-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let rate = rate_in(&directory, replicas, optimistic, seconds);
    let _ = std::fs::remove_dir_all(&directory);
    rate
}

#[expect(clippy::disallowed_methods, reason = "a program's own clock")]
fn rate_in(directory: &Path, replicas: u8, optimistic: bool, seconds: u64) -> Result<f64, Failure> {
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
        let fabric = Fabric::join_shm(directory, NodeId(number))?;
        let config = NodeConfig {
            nodes: NODES,
            region_bytes: (400 + seconds * 100) << 20,
            replication: replication.clone(),
            ..NodeConfig::default()
        };
        let node = Node::open(fabric, config)?;
        agents.push(if replicas > 1 { HomeAgent::start_member(&node, directory)? } else { HomeAgent::start(&node)? });
        let (counters, stop, barrier) = (counters[usize::from(number)].clone(), stop.clone(), barrier.clone());
        threads.push(std::thread::spawn(move || run_node(&node, &counters, &stop, &barrier)));
    }
    // Members, tables, rows; then all begin together.
    for _ in 0..3 {
        barrier.wait();
    }
    let began = Instant::now();
    std::thread::park_timeout(Duration::from_secs(seconds));
    let totals = Totals::of(counters.iter().map(AsRef::as_ref));
    let elapsed = began.elapsed().as_secs_f64();
    stop.store(true, Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a worker panicked")??;
    }
    drop(agents);
    Ok(totals.commits() as f64 / elapsed)
}

fn run_node(
    node: &Arc<Node>,
    counters: &Arc<Counters>,
    stop: &Arc<AtomicBool>,
    barrier: &Barrier,
) -> Result<(), TxnError> {
    let number = node.id().0;
    let executor = Executor::real(SEED + u64::from(number));
    let handle = executor.handle();
    let worker = node.worker(&handle)?;
    let scale = Scale::full(i32::from(NODES));
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
        in_flight: 2,
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
