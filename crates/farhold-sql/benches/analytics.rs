//! CH-benCHmark's queries over live rows, against DataFusion over in-memory Arrow tables of the same rows:
//! `cargo bench -p farhold-sql --bench analytics -- [--warehouses N] [--threads N] [--rounds N] [--only Q]`; `--quick` takes a small database.
//!
//! `--explain Q` prints both plans of query Q instead. Each query runs three times each way, and the best time counts.
//! It also prints how many rows per second a scan decodes.
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::RecordBatch;
use datafusion::common::config::Dialect;
use datafusion::datasource::MemTable;
use datafusion::prelude::{SessionConfig, SessionContext};
use farhold_bench::measure::Counter;
use farhold_bench::workload::ch;
use farhold_bench::workload::tpcc::load::Loader;
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_bench::workload::tpcc::{Scale, schema};
use farhold_fabric::{Executor, Fabric, Handle};
use farhold_sql::{Engine, EngineConfig, Output, Rows, Session};
use farhold_txn::{Node, NodeConfig, NodeId};

fn argument(name: &str) -> Option<usize> {
    let mut arguments = std::env::args();
    arguments.find(|a| a == name)?;
    arguments.next()?.parse().ok()
}

fn main() {
    let quick = std::env::args().any(|arg| arg == "--quick" || arg == "--test");
    let warehouses = i32::try_from(argument("--warehouses").unwrap_or(2)).expect("warehouses");
    let threads =
        argument("--threads").unwrap_or_else(|| std::thread::available_parallelism().map_or(4, std::num::NonZero::get));
    let scale = if quick { Scale::tiny(2) } else { Scale::full(warehouses) };
    let rounds = argument("--rounds").unwrap_or(if quick { 1 } else { 3 });
    run(scale, threads, u32::try_from(rounds).expect("rounds"));
}

fn run(scale: Scale, threads: usize, rounds: u32) {
    let dir = farhold_testkit::memory_directory();
    let fabric = Fabric::join_shm(&dir, NodeId(0)).expect("the fabric");
    let region_bytes = (scale.warehouses as u64 * 160 + 200) << 20;
    let node = Node::open(fabric, NodeConfig { region_bytes, ..NodeConfig::default() }).expect("a node");
    load(&node, scale);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rival =
        tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("a runtime");
    let worker = Rc::new(node.worker(&Handle::standalone(1)).expect("a worker"));
    let config = EngineConfig { query_threads: threads, query_memory_bytes: 8 << 30, ..EngineConfig::default() };
    let engine = runtime.block_on(Engine::open(Arc::clone(&node), config, &worker)).expect("an engine");
    let mut session = engine.session(worker, "bench");
    let context = memory_tables(&mut session, &runtime, threads);
    let lines = "SELECT count(*), sum(ol_o_id), sum(ol_i_id), sum(ol_supply_w_id) FROM order_line";
    let (rows, seconds) = ours(&mut session, &runtime, "SELECT count(*) FROM order_line", 1);
    let _ = (rows, seconds);
    let count = runtime.block_on(single(&mut session, "SELECT count(*) FROM order_line"));
    let (_, seconds) = ours(&mut session, &runtime, lines, rounds);
    println!(
        "scan of 3 narrow columns of {count} rows: {:.1} M rows/s on {threads} threads",
        count as f64 / seconds / 1e6
    );
    if let Some(number) = argument("--explain") {
        let sql = format!("EXPLAIN ANALYZE {}", ch::QUERIES[number - 1]);
        runtime.block_on(show(&mut session, &sql));
        let plan = rival.block_on(async { context.sql(&sql).await.expect("a plan").collect().await.expect("its run") });
        println!("{}", arrow::util::pretty::pretty_format_batches(&plan).expect("text"));
        return;
    }
    println!("{:>5} {:>12} {:>12} {:>7}", "query", "farhold ms", "memory ms", "ratio");
    let (mut all_ours, mut all_rival) = (0.0, 0.0);
    let only = argument("--only");
    for (number, sql) in (1..).zip(ch::QUERIES).filter(|(number, _)| only.is_none_or(|only| only == *number)) {
        let (our_rows, our_seconds) = ours(&mut session, &runtime, sql, rounds);
        let (rival_rows, rival_seconds) = theirs(&context, &rival, sql, rounds);
        assert_eq!(our_rows, rival_rows, "Q{number}");
        println!(
            "{number:>5} {:>12.1} {:>12.1} {:>7.2}",
            our_seconds * 1e3,
            rival_seconds * 1e3,
            our_seconds / rival_seconds
        );
        all_ours += our_seconds;
        all_rival += rival_seconds;
    }
    println!("{:>5} {:>12.1} {:>12.1} {:>7.2}", "all", all_ours * 1e3, all_rival * 1e3, all_ours / all_rival);
}

fn load(node: &Arc<Node>, scale: Scale) {
    const SEED: u64 = 5;
    let executor = Executor::real(SEED);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        Tables::create(&worker).await.expect("TPC-C's tables");
        let tables = Tables::open(node).expect("TPC-C's tables");
        ch::create(&worker).await.expect("CH-benCHmark's tables");
        ch::load(&worker, node, SEED).await.expect("CH-benCHmark's rows");
        let (population, rows) = (Population::new(scale, SEED, 1_767_225_600_000_000), Counter::default());
        let mut loader = Loader { worker: &worker, tables: &tables, population, rows: &rows };
        loader.items(scale).await.expect("the items");
        for w_id in 1..=scale.warehouses {
            loader.warehouse(scale, w_id).await.expect("a warehouse");
        }
    });
}

async fn batches(session: &mut Session, sql: &str) -> Vec<RecordBatch> {
    let prepared = session.prepare(sql, &[]).await.expect(sql);
    let mut all = Vec::new();
    match session.execute(&prepared, &[]).await.expect(sql) {
        Output::Rows(Rows::Batches(mut rows)) => {
            while let Some(batch) = rows.next().await {
                all.push(batch.expect(sql));
            }
        }
        _ => panic!("{sql} takes no planner"),
    }
    all
}

/// Prints the lines of an EXPLAIN.
async fn show(session: &mut Session, sql: &str) {
    let prepared = session.prepare(sql, &[]).await.expect(sql);
    if let Output::Rows(Rows::Direct { rows, .. }) = session.execute(&prepared, &[]).await.expect(sql) {
        let text = |datum| farhold_sql::format_datum(datum, farhold_sql::Zone::UTC);
        rows.iter().flatten().filter_map(text).for_each(|line| println!("{line}"));
    }
}

async fn single(session: &mut Session, sql: &str) -> i64 {
    use arrow::array::AsArray;
    batches(session, sql).await[0].column(0).as_primitive::<arrow::datatypes::Int64Type>().value(0)
}

/// The number of rows of the result, and the best time.
fn ours(session: &mut Session, runtime: &tokio::runtime::Runtime, sql: &str, rounds: u32) -> (usize, f64) {
    best(rounds, || runtime.block_on(batches(session, sql)).iter().map(RecordBatch::num_rows).sum())
}

fn theirs(context: &SessionContext, runtime: &tokio::runtime::Runtime, sql: &str, rounds: u32) -> (usize, f64) {
    best(rounds, || {
        let context = context.clone();
        let sql = sql.to_owned();
        let task = runtime.spawn(async move {
            let frame = context.sql(&sql).await.expect("DataFusion plans it");
            frame.collect().await.expect("DataFusion runs it").iter().map(RecordBatch::num_rows).sum()
        });
        runtime.block_on(task).expect("the query")
    })
}

fn best(rounds: u32, mut body: impl FnMut() -> usize) -> (usize, f64) {
    let mut best = f64::INFINITY;
    let mut rows = 0;
    for _ in 0..rounds {
        let start = Instant::now();
        rows = body();
        best = best.min(start.elapsed().as_secs_f64());
    }
    (rows, best)
}

/// The same rows as Arrow tables, with one partition per thread.
fn memory_tables(session: &mut Session, runtime: &tokio::runtime::Runtime, threads: usize) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(threads);
    config.options_mut().sql_parser.dialect = Dialect::PostgreSQL;
    config.options_mut().sql_parser.parse_float_as_decimal = true;
    let context = SessionContext::new_with_config(config);
    for table in schema::TABLES.iter().chain(&ch::TABLES) {
        let all = runtime.block_on(batches(session, &format!("SELECT * FROM {}", table.name)));
        let Some(first) = all.first() else { continue };
        let schema = first.schema();
        let mut partitions = vec![Vec::new(); threads];
        for (n, batch) in all.into_iter().enumerate() {
            partitions[n % threads].push(batch);
        }
        let table_rows = MemTable::try_new(schema, partitions).expect("a table");
        context.register_table(table.name, Arc::new(table_rows)).expect("a table");
    }
    context
}
