//! What a transaction costs on one worker of one node.
//!
//! `cargo bench -p farhold-txn` prints nanoseconds a transaction, the best of several rounds (the machines this runs on are
//! shared); `-- --quick` runs everything once, tiny, which is how the tests keep it alive.

use farhold_fabric::{Executor, Fabric};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{
    ColumnThreads, HomeAgent, KeptColumns, Node, NodeConfig, NodeId, Placement, ScanSpec, Table, TableDef, Worker,
};
use std::hint::black_box;

const ROWS: u64 = 100_000;

struct Bench {
    worker: Worker,
    rounds: u32,
    per_round: u64,
}

fn key(id: u64) -> [u8; 8] {
    (id ^ 1 << 63).to_be_bytes()
}

impl Bench {
    /// Times `body`, which is called with a number that is never the same, in batches; prints the best.
    async fn time(&self, name: &str, mut body: impl AsyncFnMut(u64)) {
        let mut best = f64::MAX;
        let mut number = 0;
        for _ in 0..self.rounds {
            let start = self.worker.handle().now_ns();
            for _ in 0..self.per_round {
                body(number).await;
                number += 1;
            }
            let ns = self.worker.handle().now_ns() - start;
            best = best.min(ns as f64 / self.per_round as f64);
        }
        println!("{name:<44} {best:>9.0} ns");
    }

    async fn table(&self, name: &str, hash: bool, rows: u64) -> Table {
        let columns = vec![
            Column::new("id", ColumnType::BigInt),
            Column::new("count", ColumnType::BigInt),
            Column::new("filler", ColumnType::Bytea),
        ];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::ByInteger, hash, ..TableDef::new(name, schema) };
        let table = self.worker.create_table(definition).await.expect("a table");
        let value = value(&table);
        for from in (0..rows).step_by(1_000) {
            let mut txn = self.worker.begin();
            for id in from..(from + 1_000).min(rows) {
                txn.insert(&table, &key(id), &value).await.expect("inserted");
            }
            txn.commit().await.expect("committed");
        }
        table
    }
}

/// A value of 100 bytes, about.
fn value(table: &Table) -> Vec<u8> {
    let mut value = Vec::new();
    let row = [Datum::BigInt(0), Datum::BigInt(0), Datum::Bytea(vec![7; 90])];
    table.schema().encode_value(&row, &mut value).expect("a value");
    value
}

async fn run(bench: &Bench, rows: u64) {
    let worker = &bench.worker;
    let random = || worker.handle().random_u64() % rows;
    bench.time("begin, commit", async |_| drop(black_box(worker.begin().commit().await))).await;
    let mut tables = Vec::new();
    for (name, hash) in [("hash", true), ("ordered", false)] {
        let table = bench.table(name, hash, rows).await;
        bench
            .time(&format!("begin, get, commit ({name})"), async |_| {
                let mut txn = worker.begin();
                let row = txn.get(&table, &key(random())).await.expect("a read").expect("a row");
                black_box(txn.value(row));
                txn.commit().await.expect("committed");
            })
            .await;
        tables.push(table);
    }
    let table = &tables[0];
    bench
        .time("the same read-only, of one hot row", async |_| {
            let mut txn = worker.begin_read_only();
            let row = txn.get(table, &key(1)).await.expect("a read").expect("a row");
            black_box(txn.value(row));
            txn.commit().await.expect("committed");
        })
        .await;
    change(bench, table, "", random).await;
    let new = value(table);
    for (table, name) in [(&tables[0], "hash"), (&tables[1], "ordered")] {
        bench
            .time(&format!("insert of 1 ({name})"), async |number| {
                let mut txn = worker.begin();
                txn.insert(table, &key(rows + number), &new).await.expect("inserted");
                txn.commit().await.expect("committed");
            })
            .await;
        bench
            .time(&format!("delete of 1 ({name})"), async |number| {
                let mut txn = worker.begin();
                let row = txn.get(table, &key(rows + number)).await.expect("a read").expect("a row");
                txn.delete(row).expect("deleted");
                txn.commit().await.expect("committed");
            })
            .await;
    }
    let mut found = Vec::new();
    bench
        .time("scan of 20", async |_| {
            let mut txn = worker.begin_read_only();
            let (lo, hi) = (key(random()), key(u64::MAX >> 2));
            found.clear();
            txn.scan_into(&tables[1], ScanSpec::range(&lo, &hi).limit(20), &mut found).await.expect("a scan");
            for row in &found {
                black_box(txn.value(*row));
            }
            txn.commit().await.expect("committed");
        })
        .await;
}

/// Transactions that change rows with such numbers.
async fn change(bench: &Bench, table: &Table, what: &str, number: impl Fn() -> u64) {
    let worker = &bench.worker;
    let count = table.layout().i64("count").expect("a column");
    for rows_changed in [1, 10] {
        bench
            .time(&format!("{what}read-modify-write of {rows_changed}"), async |_| {
                let mut txn = worker.begin();
                for _ in 0..rows_changed {
                    let row = txn.get(table, &key(number())).await.expect("a read").expect("a row");
                    let value = txn.value_mut(row);
                    count.set(value, count.get(value) + 1);
                }
                txn.commit().await.expect("committed");
            })
            .await;
    }
}

/// Rows of a table that is kept as columns too, without a journal: what the records cost.
async fn run_with_columns(bench: &Bench, rows: u64) {
    let worker = &bench.worker;
    let _threads = ColumnThreads::start(worker.node()).expect("threads");
    let table = bench.table("kept", true, rows).await;
    worker.keep_columns(&table, KeptColumns::All).await.expect("changed");
    while worker.node().columns_of(&table).1.is_some() {
        worker.handle().sleep_ns(1_000_000).await;
    }
    change(bench, &table, "kept as columns: ", || worker.handle().random_u64() % rows).await;
}

/// Rows of another node of this process: what the instructions cost, without the way between machines.
async fn run_far(bench: &Bench, rows: u64) {
    let worker = &bench.worker;
    let table = bench.table("far", true, rows).await;
    // Odd keys are on this node: 1 is placed first.
    let far = || worker.handle().random_u64() % (rows / 2) * 2;
    bench
        .time("far: begin, get, commit", async |_| {
            let mut txn = worker.begin();
            let row = txn.get(&table, &key(far())).await.expect("a read").expect("a row");
            black_box(txn.value(row));
            txn.commit().await.expect("committed");
        })
        .await;
    change(bench, &table, "far: ", far).await;
}

fn main() {
    let has = |wanted: &str| std::env::args().any(|word| word == wanted);
    let quick = has("--quick") || !has("--bench");
    let dir = tempfile::tempdir().expect("a directory");
    let fabric = Fabric::join_shm(&dir, NodeId(0)).expect("the fabric");
    let region_bytes = if quick { 32 << 20 } else { 1 << 30 };
    let node = Node::open(fabric, NodeConfig { region_bytes, ..NodeConfig::default() }).expect("a node");
    let executor = Executor::real(7);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let (rounds, per_round, rows) = if quick { (1, 50, 1_000) } else { (20, 20_000, ROWS) };
    let bench = Bench { worker, rounds, per_round };
    executor.run(run(&bench, rows));
    executor.run(run_with_columns(&bench, rows));
    drop((bench, node));

    let open = |id| {
        let fabric = Fabric::join_shm(dir.path().join("pair"), NodeId(id)).expect("the fabric");
        Node::open(fabric, NodeConfig { nodes: 2, region_bytes, ..NodeConfig::default() }).expect("a node")
    };
    let pair = [open(0), open(1)];
    let _agent = HomeAgent::start(&pair[1]).expect("an agent");
    let worker = pair[0].worker(&executor.handle()).expect("a worker");
    let bench = Bench { worker, rounds, per_round };
    executor.run(run_far(&bench, rows));
}
