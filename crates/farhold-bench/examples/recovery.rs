//! Restart from disk, measured:
//!
//! ```text
//! cargo run --release -p farhold-bench --example recovery -- fill DIRECTORY WAREHOUSES      TPC-C's rows, a checkpoint, more rows; then it ends itself hard
//! cargo run --release -p farhold-bench --example recovery -- restore DIRECTORY              everything again, in a new process
//! ```
//!
//! `scripts/figures recovery` runs both. Each prints one line of JSON.

use farhold_bench::measure::Counter;
use farhold_bench::workload::tpcc::Scale;
use farhold_bench::workload::tpcc::load::{Loader, row_counts};
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_store::durable::files::Disk;
use farhold_txn::{Generation, JournalConfig, JournalThreads, Node, NodeConfig, ReplicationConfig, TxnError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use tempfile::TempDir;

const SEED: u64 = 42;
/// Warehouses loaded after the checkpoint: the rows that only the journal has, some 80 MB.
const AFTER_CHECKPOINT: i32 = 1;

struct Open {
    node: Arc<Node>,
    threads: Option<JournalThreads>,
    config: JournalConfig,
    regions: TempDir,
}

fn open(directory: &Path, region_bytes: u64) -> Result<Open, Box<dyn std::error::Error>> {
    let mut config = JournalConfig::new(Arc::new(Disk::open(directory)?));
    // The fill says when.
    config.checkpoint_bytes = u64::MAX / 4;
    let generation = Generation::begin(&config, NodeId(0), 1, &ReplicationConfig::default())?;
    let regions = tempfile::Builder::new().prefix("farhold-").tempdir_in("/dev/shm")?;
    let fabric = Fabric::join_shm(&regions, NodeId(0))?;
    let node_config = NodeConfig { region_bytes, journal: Some(config.clone()), ..NodeConfig::default() };
    let node = Node::open_durable(fabric, node_config, generation)?;
    Ok(Open { node, threads: None, config, regions })
}

#[expect(clippy::disallowed_methods, reason = "a program's own clock")]
fn fill(directory: &Path, warehouses: i32) -> Result<(), Box<dyn std::error::Error>> {
    let scale = Scale::full(warehouses);
    let mut open = open(directory, (400 + warehouses as u64 * 150) << 20)?;
    open.threads = JournalThreads::start(&open.node)?;
    let node = &open.node;
    let executor = Executor::real(SEED);
    let handle = executor.handle();
    let worker = node.worker(&handle)?;
    let started = Instant::now();
    let load = async |from: i32, to: i32, items: bool| {
        let loaders: Vec<_> = (from..=to)
            .map(|w_id| {
                let (worker, node) = (worker.clone(), node.clone());
                handle.spawn(async move {
                    let (tables, rows) = (Tables::open(&node)?, Counter::default());
                    let population = Population::new(scale, SEED, 1_700_000_000_000_000);
                    let mut loader = Loader { worker: &worker, tables: &tables, population, rows: &rows };
                    if items && w_id == from {
                        loader.items(scale).await?;
                    }
                    loader.warehouse(scale, w_id).await
                })
            })
            .collect();
        for loader in loaders {
            loader.await?;
        }
        Ok::<(), TxnError>(())
    };
    executor.run(async {
        Tables::create(&worker).await?;
        load(1, warehouses - AFTER_CHECKPOINT, true).await
    })?;
    let loaded = started.elapsed().as_secs_f64();
    let began = Instant::now();
    node.checkpoint(&mut || true)?;
    let checkpoint = began.elapsed().as_secs_f64();
    executor.run(load(warehouses - AFTER_CHECKPOINT + 1, warehouses, false))?;
    let memory = node.memory();
    let counts = executor.run(row_counts(&worker, &Tables::open(node)?))?;
    println!(
        "{{\"rows\": {}, \"data_bytes\": {}, \"load_seconds\": {loaded:.2}, \"checkpoint_seconds\": {checkpoint:.2}, \"counts\": {counts:?}}}",
        memory.rows, memory.data_bytes
    );
    drop(open.regions);
    // The hardest end that a program can give itself; what was acknowledged has been synced.
    std::process::abort();
}

#[expect(clippy::disallowed_methods, reason = "a program's own clock")]
fn restore(directory: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let open = open(directory, 1 << 30)?;
    let seconds = started.elapsed().as_secs_f64();
    let executor = Executor::real(SEED);
    let worker = open.node.worker(&executor.handle())?;
    let counts = executor.run(row_counts(&worker, &Tables::open(&open.node)?))?;
    let (memory, progress) = (open.node.memory(), &open.config.progress);
    println!(
        "{{\"seconds\": {seconds:.3}, \"rows\": {}, \"data_bytes\": {}, \"file_bytes\": {}, \"threads\": {}, \"counts\": {counts:?}}}",
        memory.rows,
        memory.data_bytes,
        progress.bytes.load(Relaxed),
        open.config.threads,
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "fill", directory, warehouses] => fill(Path::new(directory), warehouses.parse()?),
        [_, "restore", directory] => restore(Path::new(directory)),
        _ => Err("usage: recovery fill DIRECTORY WAREHOUSES | recovery restore DIRECTORY".into()),
    }
}
