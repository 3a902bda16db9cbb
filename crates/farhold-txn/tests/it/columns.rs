//! Column copies: views show the rows of their snapshots, while transactions run, rows are merged, and the node starts again.

use crate::common::{PATIENCE_NS, new_dir};
use farhold_fabric::{Executor, Fabric};
use farhold_store::column::copy::{ColumnView, ViewPart};
use farhold_store::column::{BLOCK_ROWS, Chunk, double_of};
use farhold_store::durable::power::Volatile;
use farhold_store::row::{Column, ColumnReader, ColumnType, Datum, Schema};
use farhold_txn::{
    CopyConfig, Generation, JournalConfig, JournalThreads, KeptColumns, NoColumns, Node, NodeConfig, NodeId,
    ReplicationConfig, Retry, Snapshot, Table, TableDef, TxnError, Worker,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use tempfile::TempDir;

fn open(disk: &Volatile) -> (Arc<Node>, TempDir) {
    open_with(disk, u64::MAX)
}

fn open_with(disk: &Volatile, columns_bytes_max: u64) -> (Arc<Node>, TempDir) {
    let dir = new_dir();
    let journal = JournalConfig { segment_bytes: 1 << 20, threads: 2, ..JournalConfig::new(Arc::new(disk.clone())) };
    let generation = Generation::begin(&journal, NodeId(0), 1, &ReplicationConfig::default()).expect("a generation");
    let regions = dir.path().join(generation.number().to_string());
    let fabric = Fabric::join_shm(regions, NodeId(0)).expect("the fabric");
    let config = NodeConfig {
        region_bytes: 64 << 20,
        journal: Some(journal),
        // Segments are short, and made often.
        columns: CopyConfig { segment_rows: 32, changes_min: 8, changed_part: 8 },
        columns_bytes_max,
        request_timeout_ns: PATIENCE_NS,
        ..NodeConfig::default()
    };
    (Node::open_durable(fabric, config, generation).expect("a node"), dir)
}

fn accounts() -> TableDef {
    let columns = vec![
        Column::new("id", ColumnType::BigInt),
        Column::new("owner", ColumnType::Text).nullable(),
        Column::new("amount", ColumnType::Double),
    ];
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { columns: KeptColumns::All, ..TableDef::new("accounts", schema) }
}

type Row = (i64, Option<String>, u64);

fn encode(schema: &Schema, (id, owner, amount): &Row) -> (Vec<u8>, Vec<u8>) {
    let owner = owner.clone().map_or(Datum::Null, Datum::Text);
    let row = [Datum::BigInt(*id), owner, Datum::Double(f64::from_bits(*amount))];
    let (mut key, mut value) = (Vec::new(), Vec::new());
    schema.encode_key(&row, &mut key).expect("a key");
    schema.encode_value(&row, &mut value).expect("a value");
    (key, value)
}

fn decode(schema: &Schema, key: &[u8], value: &[u8]) -> Row {
    let [id, owner, amount] = [0, 1, 2].map(|column| ColumnReader::new(schema, column));
    let mut scratch = Vec::new();
    let text = (!owner.is_null(value)).then(|| owner.bytes(key, value, &mut scratch).to_vec());
    (
        id.integer(key, value),
        text.map(|bytes| String::from_utf8(bytes).expect("a text")),
        amount.f64(key, value).to_bits(),
    )
}

fn rows_of_columns(view: &ColumnView, schema: &Schema) -> Vec<Row> {
    let mut rows = Vec::new();
    for part in view.parts() {
        match part {
            ViewPart::Segment(segment) => {
                let chunks: Vec<Chunk<'_>> = segment.chunks();
                for row in 0..segment.rows() {
                    let (block, place) = (row / BLOCK_ROWS, row % BLOCK_ROWS);
                    let mut bits = [0; BLOCK_ROWS / 64];
                    bits[place / 64] = 1 << (place % 64);
                    view.select(&segment, block, &mut bits);
                    if bits[place / 64] != 0 {
                        let owner = chunks[1].text(row).map(|text| String::from_utf8(text.to_vec()).expect("a text"));
                        let amount = double_of(chunks[2].integer(row).expect("an amount"));
                        rows.push((chunks[0].integer(row).expect("an id"), owner, amount.to_bits()));
                    }
                }
            }
            ViewPart::Delta(part) => {
                view.visit_delta(part, &mut |key, value| rows.push(decode(schema, key, value)));
            }
        }
    }
    rows.sort();
    rows
}

fn rows_of_pages(snapshot: &Snapshot, table: &Table) -> Vec<Row> {
    let mut rows = Vec::new();
    for task in snapshot.pages(table).expect("pages") {
        snapshot.scan_page(&task, &mut |key, value| rows.push(decode(table.schema(), key, value))).expect("rows");
    }
    rows.sort();
    rows
}

/// Waits until the table's columns are there.
async fn columns(worker: &Worker, table: &Table) -> (Snapshot, ColumnView) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        let snapshot = worker.snapshot().await.expect("a snapshot");
        match worker.columns(&snapshot, table).await {
            Ok(view) => return (snapshot, view),
            Err(NoColumns::Building | NoColumns::Past(_)) => {}
            Err(error) => panic!("{error}: {:?}", worker.node().columns()),
        }
        assert!(worker.handle().now_ns() < until_ns, "the columns are never built");
        worker.handle().sleep_ns(1_000_000).await;
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn row(&mut self, id: i64) -> Row {
        let owner = match self.below(6) {
            0 => None,
            1 => Some("o".repeat(self.below(300) as usize)),
            n => Some(format!("owner {n}")),
        };
        (id, owner, (self.below(1 << 40) as f64 / 7.0).to_bits())
    }
}

/// Inserts, changes that keep and that change a row's length, deletes, and transactions that are given up.
async fn change(worker: &Worker, table: &Table, random: &mut Random, ids: u64) -> Result<(), TxnError> {
    let schema = table.schema();
    let seed = random.below(1 << 31);
    worker
        .run(Retry::default(), async |txn| {
            let mut random = Random(seed);
            for _ in 0..=random.below(4) {
                let id = random.below(ids) as i64;
                let row = random.row(id);
                let (key, value) = encode(schema, &row);
                match txn.get(table, &key).await? {
                    None => drop(txn.insert(table, &key, &value).await?),
                    Some(found) if random.below(4) == 0 => txn.delete(found)?,
                    Some(found) => txn.update(found, &value)?,
                }
            }
            Ok(())
        })
        .await
}

/// While two threads change rows, each view has exactly the rows that a scan of its snapshot finds; also after the node has started
/// again.
#[test]
fn views_have_the_rows_of_their_snapshots() {
    let disk = Volatile::default();
    for start in 0..2_u64 {
        let (node, _dir) = open(&disk);
        let threads = JournalThreads::start(&node).expect("threads");
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let table = match node.table("accounts") {
                Some(table) => table,
                None => worker.create_table(accounts()).await.expect("a table"),
            };
            let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let (node, table, stop, done) = (&node, &table, &stop, &done);
                    scope.spawn(move || {
                        let executor = Executor::real(2 + thread);
                        let worker = node.worker(&executor.handle()).expect("a worker");
                        let mut random = Random(start * 10 + thread);
                        while !stop.load(SeqCst) {
                            executor.run(change(&worker, table, &mut random, 400)).expect("committed");
                            done.fetch_add(1, SeqCst);
                        }
                    });
                }
                // Every scope of threads ends, also when an assertion fails.
                let stopped = Stop(&stop);
                executor.run(async {
                    for _ in 0..40 {
                        let before = done.load(SeqCst);
                        let (snapshot, view) = columns(&worker, &table).await;
                        assert_eq!(view.epoch(), snapshot.epoch());
                        assert_eq!(rows_of_columns(&view, table.schema()), rows_of_pages(&snapshot, &table));
                        drop(snapshot);
                        let until_ns = worker.handle().now_ns() + PATIENCE_NS;
                        while done.load(SeqCst) < before + 20 && worker.handle().now_ns() < until_ns {
                            worker.handle().sleep_ns(100_000).await;
                        }
                    }
                });
                drop(stopped);
            });
            let waits = node.column_waits();
            assert!(waits.iter().map(|wait| wait.1).sum::<u64>() >= 40, "one for each view: {waits:?}");
            // Merges follow in the background.
            let until_ns = worker.handle().now_ns() + PATIENCE_NS;
            while node.columns().size.segments <= 3 {
                assert!(worker.handle().now_ns() < until_ns, "{:?}", node.columns());
                worker.handle().sleep_ns(1_000_000).await;
            }
            let (snapshot, view) = columns(&worker, &table).await;
            assert!(view.has_segments());
            assert_eq!(rows_of_columns(&view, table.schema()), rows_of_pages(&snapshot, &table));
        });
        drop(worker);
        drop(threads);
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A row that has just been committed is in the next view, also when nothing else happens on the node.
#[test]
fn a_view_has_what_was_committed_before() {
    let (node, _dir) = open(&Volatile::default());
    let _threads = JournalThreads::start(&node).expect("threads");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        columns(&worker, &table).await;
        for id in 0..50 {
            let row = (id, Some(format!("owner {id}")), 0);
            let (key, value) = encode(table.schema(), &row);
            worker.run(Retry::never(), async |txn| txn.insert(&table, &key, &value).await.map(drop)).await.expect("in");
            let snapshot = worker.snapshot().await.expect("a snapshot");
            let view = worker.columns(&snapshot, &table).await.expect("columns");
            assert_eq!(rows_of_columns(&view, table.schema()).last(), Some(&row));
        }
        worker.drop_table(&table).await.expect("dropped");
        let again = worker.create_table(accounts()).await.expect("a table");
        let (_snapshot, view) = columns(&worker, &again).await;
        assert_eq!(rows_of_columns(&view, again.schema()), []);
    });
}

/// Why there are none is said.
#[test]
fn tables_without_columns() {
    let dir = new_dir();
    let fabric = Fabric::join_shm(dir.path(), NodeId(0)).expect("the fabric");
    let node = Node::open(fabric, NodeConfig { region_bytes: 16 << 20, ..NodeConfig::default() }).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        assert_eq!(table.kept_columns(), KeptColumns::All);
        let plain = worker
            .create_table(TableDef { columns: KeptColumns::None, name: "plain".into(), ..accounts() })
            .await
            .expect("t");
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(worker.columns(&snapshot, &table).await.err(), Some(NoColumns::NoJournal));
        assert_eq!(worker.columns(&snapshot, &plain).await.err(), Some(NoColumns::NotKept));
    });
}

/// Inserts rows with these ids, and texts of so many bytes.
async fn insert_long(worker: &Worker, table: &Table, ids: std::ops::Range<i64>, bytes: usize) {
    for first in ids.clone().step_by(500) {
        worker
            .run(Retry::default(), async |txn| {
                for id in first..ids.end.min(first + 500) {
                    let (key, value) = encode(table.schema(), &(id, Some(format!("{id:0bytes$}")), 0));
                    txn.insert(table, &key, &value).await?;
                }
                Ok(())
            })
            .await
            .expect("inserted");
    }
}

async fn insert(worker: &Worker, table: &Table, ids: std::ops::Range<i64>) {
    insert_long(worker, table, ids, 10).await;
}

/// Waits until a query gets this answer to its question for columns.
async fn wait_for(worker: &Worker, table: &Table, is_it: impl Fn(&Result<ColumnView, NoColumns>) -> bool) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        let snapshot = worker.snapshot().await.expect("a snapshot");
        let found = worker.columns(&snapshot, table).await;
        if is_it(&found) {
            return;
        }
        assert!(worker.handle().now_ns() < until_ns, "{:?}", found.map(|view| view.kept().clone()));
        drop(snapshot);
        worker.handle().sleep_ns(1_000_000).await;
    }
}

/// Which columns are kept can be changed, and stands after a restart.
#[test]
fn what_is_kept_changes() {
    let disk = Volatile::default();
    let these = KeptColumns::These(vec![0, 2]);
    {
        let (node, _dir) = open(&disk);
        let threads = JournalThreads::start(&node).expect("threads");
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let table = worker.create_table(accounts()).await.expect("a table");
            insert(&worker, &table, 0..100).await;
            let has =
                |view: &Result<ColumnView, NoColumns>, column| view.as_ref().is_ok_and(|it| it.kept().has(column));
            wait_for(&worker, &table, |found| has(found, 1)).await;
            worker.keep_columns(&table, these.clone()).await.expect("changed");
            wait_for(&worker, &table, |found| has(found, 0) && !has(found, 1) && has(found, 2)).await;
            worker.keep_columns(&table, KeptColumns::None).await.expect("changed");
            wait_for(&worker, &table, |found| found.as_ref().err() == Some(&NoColumns::NotKept)).await;
            worker.keep_columns(&table, KeptColumns::These(vec![3])).await.expect_err("no such column");
            assert_eq!(table.kept_columns(), KeptColumns::None);
            worker.keep_columns(&table, these.clone()).await.expect("changed");
            worker.drop_table(&table).await.expect("dropped");
            assert_eq!(worker.keep_columns(&table, KeptColumns::All).await, Err(TxnError::SchemaChanged));
            let table = worker.create_table(accounts()).await.expect("a table");
            insert(&worker, &table, 0..100).await;
            worker.keep_columns(&table, these.clone()).await.expect("changed");
        });
        drop(worker);
        drop(threads);
    }
    let (node, _dir) = open(&disk);
    let _threads = JournalThreads::start(&node).expect("threads");
    let table = node.table("accounts").expect("the table");
    assert_eq!(table.kept_columns(), these);
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(wait_for(&worker, &table, |found| found.as_ref().is_ok_and(|view| !view.kept().has(1))));
}

/// A table is kept by itself once it is large.
#[test]
fn large_tables_are_kept_by_themselves() {
    let (node, _dir) = open(&Volatile::default());
    let _threads = JournalThreads::start(&node).expect("threads");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let definition = TableDef { columns: KeptColumns::Auto, ..accounts() };
        let table = worker.create_table(definition).await.expect("a table");
        let rows = KeptColumns::AUTO_ROWS.cast_signed();
        insert(&worker, &table, 0..rows - 1).await;
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(worker.columns(&snapshot, &table).await.err(), Some(NoColumns::NotKept));
        drop(snapshot);
        insert(&worker, &table, rows - 1..rows).await;
        let (snapshot, view) = columns(&worker, &table).await;
        assert_eq!(rows_of_columns(&view, table.schema()), rows_of_pages(&snapshot, &table));
        let (size, reason) = node.columns_of(&table);
        assert!(size.segments > 0 && reason.is_none(), "{size:?} {reason:?}");
    });
}

/// Columns that do not fit their room are forgotten, and there is none for them until a definition changes.
#[test]
fn columns_without_room() {
    let (node, _dir) = open_with(&Volatile::default(), 4_000_000);
    let _threads = JournalThreads::start(&node).expect("threads");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let small = worker.create_table(accounts()).await.expect("a table");
        insert(&worker, &small, 0..100).await;
        columns(&worker, &small).await;
        // It grows out of its room.
        let large = worker.create_table(TableDef { name: "large".into(), ..accounts() }).await.expect("a table");
        columns(&worker, &large).await;
        insert_long(&worker, &large, 0..20_000, 300).await;
        wait_for(&worker, &large, |found| found.as_ref().err() == Some(&NoColumns::NoRoom)).await;
        assert_eq!(node.columns().without_room, 1);
        columns(&worker, &small).await;
        // Other definitions change, and it still finds none while it is built.
        let third = worker.create_table(TableDef { name: "third".into(), ..accounts() }).await.expect("a table");
        columns(&worker, &third).await;
        wait_for(&worker, &large, |found| found.as_ref().err() == Some(&NoColumns::NoRoom)).await;
        worker.keep_columns(&large, KeptColumns::These(vec![2])).await.expect("changed");
        wait_for(&worker, &large, Result::is_ok).await;
    });
}
