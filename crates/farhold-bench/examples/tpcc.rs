//! TPC-C on one node of this process: `cargo run --release -p farhold-bench --example tpcc -- WAREHOUSES SECONDS WORKERS IN_FLIGHT [JOURNAL | latches | columns]`
//! (`latches`: no hardware transactions, where the processor has them; `columns`: large tables are kept as columns too, without a journal.)
//!
//! The `farhold` binary measures clusters; this is the shortest way from a change to a number, and what a profiler is
//! pointed at.

use farhold_bench::measure::Counter;
use farhold_bench::workload::tpcc::Scale;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan, Totals};
use farhold_bench::workload::tpcc::input::{Kind, Shares};
use farhold_bench::workload::tpcc::load::Loader;
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_store::durable::files::Disk;
use farhold_txn::{
    ColumnThreads, Generation, JournalConfig, JournalThreads, KeptColumns, Node, NodeConfig, ReplicationConfig,
    TxnError,
};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SEED: u64 = 42;

#[expect(clippy::disallowed_methods, reason = "a program's own clock")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |n: usize, default: u64| std::env::args().nth(n).map_or(Ok(default), |a| a.parse());
    let warehouses = argument(1, 1)? as i32;
    let seconds = argument(2, 10)?;
    let workers = argument(3, 1)? as u32;
    let in_flight = argument(4, 1)? as u16;
    let scale = Scale::full(warehouses);
    let directory = tempfile::Builder::new().prefix("farhold-").tempdir_in("/dev/shm")?;
    let fabric = Fabric::join_shm(&directory, NodeId(0))?;
    let megabytes = 200 + warehouses as u64 * 250 + seconds * u64::from(workers) * 100;
    let region_bytes = megabytes << 20;
    let option = std::env::args().nth(5);
    let hardware_transactions = option.as_deref() != Some("latches");
    let has_columns = option.as_deref() == Some("columns");
    let node = match option.as_ref().filter(|_| hardware_transactions && !has_columns) {
        None => Node::open(fabric, NodeConfig { region_bytes, hardware_transactions, ..NodeConfig::default() })?,
        Some(path) => {
            let journal = JournalConfig::new(Arc::new(Disk::open(path)?));
            let generation = Generation::begin(&journal, NodeId(0), 1, &ReplicationConfig::default())?;
            let config = NodeConfig { region_bytes, journal: Some(journal), ..NodeConfig::default() };
            Node::open_durable(fabric, config, generation)?
        }
    };
    let _journal = JournalThreads::start(&node)?;
    let _columns = if has_columns { ColumnThreads::start(&node)? } else { None };

    let started = Instant::now();
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as i64;
    let executor = Executor::real(SEED);
    let worker = node.worker(&executor.handle())?;
    let rows = Counter::default();
    executor.run(async {
        Tables::create(&worker).await?;
        let tables = Tables::open(&node)?;
        let population = Population::new(scale, SEED, now_us);
        let mut loader = Loader { worker: &worker, tables: &tables, population, rows: &rows };
        loader.items(scale).await?;
        for w_id in 1..=warehouses {
            loader.warehouse(scale, w_id).await?;
        }
        for table in node.tables().into_iter().filter(|_| has_columns) {
            worker.keep_columns(&table, KeptColumns::Auto).await?;
        }
        Ok::<(), TxnError>(())
    })?;
    drop(worker);
    let loaded = started.elapsed().as_secs_f64();
    println!("loaded {} rows in {loaded:.1} s, {:.0} rows/s", rows.get(), rows.get() as f64 / loaded);
    for table in node.tables() {
        println!("{:12} {:?}", table.name(), table.memory());
    }
    let memory = node.memory();
    let (data, keys, used) = (memory.data_bytes, memory.key_bytes, memory.used_bytes);
    let each = |bytes: u64| used as f64 / bytes as f64;
    println!(
        "{used} bytes for {data} of rows and {keys} of index keys: {:.3}x of rows, {:.3}x of both",
        each(data),
        each(data + keys)
    );

    let counters: Vec<Arc<Counters>> = (0..workers).map(|_| Arc::default()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let barrier = Arc::new(Barrier::new(workers as usize + 1));
    let threads: Vec<_> = counters
        .iter()
        .zip(0..)
        .map(|(counters, number)| {
            let (node, counters, stop, barrier) = (node.clone(), counters.clone(), stop.clone(), barrier.clone());
            std::thread::spawn(move || -> Result<(), TxnError> {
                let executor = Executor::real(SEED + u64::from(number));
                let handle = executor.handle();
                let worker = node.worker(&handle)?;
                let tables = Tables::open(&node)?;
                let own = (1..=warehouses)
                    .filter(|w| {
                        (w - 1) as u32 % workers.min(warehouses as u32) == number % (warehouses as u32).min(workers)
                    })
                    .collect();
                let plan = Plan {
                    scale,
                    shares: Shares::default(),
                    load_seed: SEED,
                    seed: SEED,
                    worker: number,
                    warehouses: own,
                    in_flight,
                    clock_start_us: now_us,
                    survives: false,
                };
                barrier.wait();
                executor.run(driver::run(&worker, &handle, &tables, &plan, &counters, &stop))
            })
        })
        .collect();
    barrier.wait();
    let started = Instant::now();
    let mut last = Totals::default();
    for _ in 0..seconds {
        std::thread::park_timeout(Duration::from_secs(1));
        let now = Totals::of(counters.iter().map(AsRef::as_ref));
        println!("{} transactions/s", now.commits() - last.commits());
        last = now;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let totals = Totals::of(counters.iter().map(AsRef::as_ref));
    stop.store(true, Relaxed);
    for thread in threads {
        thread.join().map_err(|_| "a worker panicked")??;
    }
    if has_columns {
        println!("{:?}", node.columns());
    }
    let rate = |n: u64| n as f64 / elapsed;
    println!(
        "{:.0} transactions/s, {:.0} new-orders/s, {:.3} % aborts",
        rate(totals.commits()),
        rate(totals.new_orders()),
        totals.abort_rate() * 100.0
    );
    let hardware = node.statistics().hardware;
    if hardware.attempts() > 0 {
        println!("{} attempts of hardware transactions: {hardware:?}", hardware.attempts());
    }
    for (kind, k) in Kind::ALL.iter().zip(&totals.kinds) {
        let us = |q| k.latency.quantile_ns(q) as f64 / 1000.0;
        println!(
            "{:12} {:>9} commits {:>7} conflicts {:>6} rollbacks   p50 {:>7.1} µs  p99 {:>7.1}  p99.9 {:>7.1}",
            kind.name(),
            k.commits,
            k.conflicts,
            k.rollbacks,
            us(0.5),
            us(0.99),
            us(0.999)
        );
    }
    Ok(())
}
