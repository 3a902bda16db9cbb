//! Column copies: views show the rows of their snapshots, while transactions run, rows are merged, and the node starts again.

use crate::common::{PATIENCE_NS, new_dir};
use farhold_fabric::{Executor, Fabric};
use farhold_store::column::copy::{ColumnView, ViewPart};
use farhold_store::column::{BLOCK_ROWS, Chunk, double_of};
use farhold_store::durable::files::{Directory, Disk, DurableFile};
use farhold_store::durable::power::Volatile;
use farhold_store::row::{Column, ColumnReader, ColumnType, Datum, Schema};
use farhold_txn::{
    ColumnThreads, CopyConfig, Generation, HomeAgent, JournalConfig, JournalThreads, KeptColumns, NoColumns, Node,
    NodeConfig, NodeId, Placement, ReplicationConfig, Retry, Snapshot, Table, TableDef, TxnError, Worker,
};
use fastrand::Rng;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use tempfile::TempDir;

/// Where a node that is alone keeps its rows: it can be started there again.
struct Place {
    /// Its journal, if it has one.
    disk: Option<Volatile>,
    dir: TempDir,
}

/// The threads of a node.
struct Threads {
    _of_journal: Option<JournalThreads>,
    _of_columns: Option<ColumnThreads>,
}

impl Place {
    /// Without a journal.
    fn in_memory() -> Self {
        Self { disk: None, dir: new_dir() }
    }

    /// With a journal, and without.
    fn both() -> [Self; 2] {
        [Self { disk: Some(Volatile::default()), dir: new_dir() }, Self::in_memory()]
    }

    fn start(&self) -> (Arc<Node>, Threads) {
        self.start_with(u64::MAX)
    }

    fn start_with(&self, columns_bytes_max: u64) -> (Arc<Node>, Threads) {
        let node = if let Some(disk) = &self.disk {
            let journal = JournalConfig::new(Arc::new(disk.clone()));
            let journal = JournalConfig { segment_bytes: 1 << 20, threads: 2, ..journal };
            open_node(journal, self.dir.path(), (0, 1), columns_bytes_max)
        } else {
            let fabric = Fabric::join_shm(self.dir.path(), NodeId(0)).expect("the fabric");
            Node::open(fabric, config(1, columns_bytes_max)).expect("a node")
        };
        let of_journal = JournalThreads::start(&node).expect("threads");
        let of_columns = ColumnThreads::start(&node).expect("threads");
        assert_ne!(of_journal.is_some(), of_columns.is_some());
        (node, Threads { _of_journal: of_journal, _of_columns: of_columns })
    }
}

fn config(nodes: u8, columns_bytes_max: u64) -> NodeConfig {
    NodeConfig {
        nodes,
        region_bytes: 128 << 20,
        // Segments are short, and made often.
        columns: CopyConfig { segment_rows: 32, changes_min: 8, changed_part: 8 },
        columns_bytes_max,
        request_timeout_ns: PATIENCE_NS,
        ..NodeConfig::default()
    }
}

fn open_node(journal: JournalConfig, dir: &Path, (node, nodes): (u8, u8), columns_bytes_max: u64) -> Arc<Node> {
    let id = NodeId(node);
    let generation = Generation::begin(&journal, id, nodes, &ReplicationConfig::default()).expect("a generation");
    let regions = dir.join(generation.number().to_string());
    let fabric = Fabric::join_shm(regions, id).expect("the fabric");
    let config = NodeConfig { journal: Some(journal), ..config(nodes, columns_bytes_max) };
    Node::open_durable(fabric, config, generation).expect("a node")
}

pub fn accounts() -> TableDef {
    let columns = vec![
        Column::new("id", ColumnType::BigInt),
        Column::new("owner", ColumnType::Text).nullable(),
        Column::new("amount", ColumnType::Double),
    ];
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { columns: KeptColumns::All, ..TableDef::new("accounts", schema) }
}

pub type Row = (i64, Option<String>, u64);

pub fn encode(schema: &Schema, (id, owner, amount): &Row) -> (Vec<u8>, Vec<u8>) {
    let owner = owner.clone().map_or(Datum::Null, Datum::Text);
    let row = [Datum::BigInt(*id), owner, Datum::Double(f64::from_bits(*amount))];
    let (mut key, mut value) = (Vec::new(), Vec::new());
    schema.encode_key(&row, &mut key).expect("a key");
    schema.encode_value(&row, &mut value).expect("a value");
    (key, value)
}

pub fn decode(schema: &Schema, key: &[u8], value: &[u8]) -> Row {
    let [id, owner, amount] = [0, 1, 2].map(|column| ColumnReader::new(schema, column));
    let mut scratch = Vec::new();
    let text = (!owner.is_null(value)).then(|| owner.bytes(key, value, &mut scratch).to_vec());
    (
        id.integer(key, value),
        text.map(|bytes| String::from_utf8(bytes).expect("a text")),
        amount.f64(key, value).to_bits(),
    )
}

pub fn rows_of_columns(view: &ColumnView, schema: &Schema) -> Vec<Row> {
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

pub fn rows_of_pages(snapshot: &Snapshot, table: &Table) -> Vec<Row> {
    rows_of_home(snapshot, table, None)
}

/// Those on one node, or all.
fn rows_of_home(snapshot: &Snapshot, table: &Table, home: Option<NodeId>) -> Vec<Row> {
    let mut rows = Vec::new();
    let tasks = snapshot.pages(table).expect("pages").into_iter();
    for task in tasks.filter(|task| home.is_none_or(|home| task.node() == home)) {
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
        match worker.home_columns(&snapshot, table).await {
            Ok(view) => return (snapshot, view),
            Err(NoColumns::Building | NoColumns::Past(_)) => {}
            Err(error) => panic!("{error}: {:?}", worker.node().columns()),
        }
        assert!(worker.handle().now_ns() < until_ns, "the columns are never built: {:?}", worker.node().columns());
        worker.handle().sleep_ns(1_000_000).await;
    }
}

fn random_row(random: &mut Rng, id: i64) -> Row {
    let owner = match random.u8(..6) {
        0 => None,
        1 => Some("o".repeat(random.usize(..300))),
        n => Some(format!("owner {n}")),
    };
    (id, owner, (random.u64(..1 << 40) as f64 / 7.0).to_bits())
}

/// Inserts, changes that keep and that change a row's length, deletes, and transactions that are given up, of so many ids with this
/// distance.
pub async fn change(worker: &Worker, table: &Table, random: &mut Rng, (ids, step): (u64, i64)) -> Result<(), TxnError> {
    let schema = table.schema();
    let seed = random.u64(..);
    worker
        .run(Retry::default(), async |txn| {
            let mut random = Rng::with_seed(seed);
            for _ in 0..=random.u8(..4) {
                let id = random.u64(..ids) as i64 * step;
                let row = random_row(&mut random, id);
                let (key, value) = encode(schema, &row);
                match txn.get(table, &key).await? {
                    None => drop(txn.insert(table, &key, &value).await?),
                    Some(found) if random.u8(..4) == 0 => txn.delete(found)?,
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
    let places = Place::both();
    for (place, start) in [(&places[0], 0), (&places[0], 1), (&places[1], 0), (&places[1], 1)] {
        let (node, threads) = place.start();
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
                        let mut random = Rng::with_seed(start * 10 + thread);
                        while !stop.load(SeqCst) {
                            executor.run(change(&worker, table, &mut random, (400, 1))).expect("committed");
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

pub struct Stop<'s>(pub &'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// A row that has just been committed is in the next view, also when nothing else happens on the node.
#[test]
fn a_view_has_what_was_committed_before() {
    for place in Place::both() {
        let (node, _threads) = place.start();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let table = worker.create_table(accounts()).await.expect("a table");
            columns(&worker, &table).await;
            for id in 0..50 {
                let row = (id, Some(format!("owner {id}")), 0);
                let (key, value) = encode(table.schema(), &row);
                worker
                    .run(Retry::never(), async |txn| txn.insert(&table, &key, &value).await.map(drop))
                    .await
                    .expect("in");
                let snapshot = worker.snapshot().await.expect("a snapshot");
                let view = worker.home_columns(&snapshot, &table).await.expect("columns");
                assert_eq!(rows_of_columns(&view, table.schema()).last(), Some(&row));
            }
            worker.drop_table(&table).await.expect("dropped");
            let again = worker.create_table(accounts()).await.expect("a table");
            let (_snapshot, view) = columns(&worker, &again).await;
            assert_eq!(rows_of_columns(&view, again.schema()), []);
        });
    }
}

/// Why there are none is said: of two nodes without journals each would miss what the other commits.
#[test]
fn tables_without_columns() {
    let dir = new_dir();
    let executor = Executor::real(1);
    let nodes = [0, 1].map(|id| {
        let fabric = Fabric::join_shm(dir.path(), NodeId(id)).expect("the fabric");
        let node = Node::open(fabric, config(2, u64::MAX)).expect("a node");
        assert!(ColumnThreads::start(&node).expect("none").is_none());
        node
    });
    let _agent = HomeAgent::start(&nodes[1]).expect("an agent");
    let worker = nodes[0].worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        assert_eq!(table.kept_columns(), KeptColumns::All);
        let plain = worker
            .create_table(TableDef { columns: KeptColumns::None, name: "plain".into(), ..accounts() })
            .await
            .expect("t");
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(worker.home_columns(&snapshot, &table).await.err(), Some(NoColumns::NoJournal));
        assert_eq!(worker.home_columns(&snapshot, &plain).await.err(), Some(NoColumns::NotKept));
    });
}

/// Changes rows until it is stopped, on a thread that stops now and then where others can interfere.
fn change_until(node: &Arc<Node>, table: &Table, stop: &AtomicBool, seed: u64) {
    #[cfg(feature = "planted")]
    farhold_planted::shake(seed);
    let executor = Executor::real(2 + seed);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let mut random = Rng::with_seed(seed);
    while !stop.load(SeqCst) {
        // So many ids that hardly any row is changed twice in a round.
        executor.run(change(&worker, table, &mut random, (1 << 14, 1))).expect("committed");
    }
}

/// Without a journal, while threads change rows, and the only copy begins and ends again and again: does each view have the rows of its
/// snapshot?
fn are_views_true() -> bool {
    let place = Place::in_memory();
    let (node, _threads) = place.start();
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopped = Stop(&stop);
            for seed in 1..=2 {
                let (node, table, stop, hand_on) = (&node, &table, &stop, farhold_planted::hand_on());
                scope.spawn(move || {
                    hand_on();
                    change_until(node, table, stop, seed);
                });
            }
            let are_true = executor.run(async {
                for _ in 0..30 {
                    for _ in 0..3 {
                        let (snapshot, view) = columns(&worker, &table).await;
                        if rows_of_columns(&view, table.schema()) != rows_of_pages(&snapshot, &table) {
                            return false;
                        }
                    }
                    worker.keep_columns(&table, KeptColumns::None).await.expect("changed");
                    wait_until(&worker, || node.columns().tables == 0).await;
                    worker.keep_columns(&table, KeptColumns::All).await.expect("changed");
                }
                true
            });
            drop(stopped);
            are_true
        })
    })
}

#[test]
fn a_copy_begins_while_rows_change() {
    assert!(are_views_true());
}

#[cfg(feature = "planted")]
#[test]
fn records_that_a_view_lacks_are_noticed() {
    use farhold_planted::Defect;
    for defect in [Defect::CopyBegunUnseen, Defect::OpenIgnored, Defect::LateRecord] {
        assert!(!farhold_planted::with(defect, are_views_true), "{defect:?}");
    }
}

/// Nothing is left for columns while there are none, and nothing waits once the threads have ended.
#[test]
fn without_threads_nothing_is_kept() {
    let place = Place::in_memory();
    let (node, threads) = place.start();
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        insert(&worker, &table, 0..100).await;
        columns(&worker, &table).await;
        wait_until(&worker, || node.columns().is_merged).await;
        assert_eq!(node.columns().size.delta_rows, 0, "those of the last epoch included");
        drop(threads);
        insert(&worker, &table, 100..200).await;
        assert_eq!((node.columns().tables, node.columns().losses), (0, 0));
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(worker.home_columns(&snapshot, &table).await.err(), Some(NoColumns::Building));
    });
}

/// A transaction may write more than its record may have: the columns are built again.
#[test]
fn a_transaction_that_writes_very_much() {
    let place = Place::in_memory();
    let (node, _threads) = place.start();
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(accounts()).await.expect("a table");
        insert(&worker, &table, 0..100).await;
        columns(&worker, &table).await;
        insert_in_one(&worker, &table, 100..1_300, 60_000).await;
        wait_until(&worker, || node.columns().losses == 1).await;
        let (snapshot, view) = columns(&worker, &table).await;
        assert_eq!(rows_of_columns(&view, table.schema()), rows_of_pages(&snapshot, &table));
    });
}

/// Waits until something has happened that other threads do.
async fn wait_until(worker: &Worker, mut has_happened: impl FnMut() -> bool) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    while !has_happened() {
        assert!(worker.handle().now_ns() < until_ns, "{:?}", worker.node().columns());
        worker.handle().sleep_ns(1_000_000).await;
    }
}

/// Inserts rows with these ids, and texts of so many bytes.
async fn insert_long(worker: &Worker, table: &Table, ids: std::ops::Range<i64>, bytes: usize) {
    for first in ids.clone().step_by(500) {
        insert_in_one(worker, table, first..ids.end.min(first + 500), bytes).await;
    }
}

/// As [`insert_long`], in one transaction.
async fn insert_in_one(worker: &Worker, table: &Table, ids: std::ops::Range<i64>, bytes: usize) {
    worker
        .run(Retry::default(), async |txn| {
            for id in ids.clone() {
                let owner = "0".repeat(bytes.saturating_sub(10)) + &format!("{id:010}");
                let (key, value) = encode(table.schema(), &(id, Some(owner), 0));
                txn.insert(table, &key, &value).await?;
            }
            Ok(())
        })
        .await
        .expect("inserted");
}

async fn insert(worker: &Worker, table: &Table, ids: std::ops::Range<i64>) {
    insert_long(worker, table, ids, 10).await;
}

/// Waits until a query gets this answer to its question for columns.
async fn wait_for(worker: &Worker, table: &Table, is_it: impl Fn(&Result<ColumnView, NoColumns>) -> bool) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        let snapshot = worker.snapshot().await.expect("a snapshot");
        let found = worker.home_columns(&snapshot, table).await;
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
    for place in Place::both() {
        let these = KeptColumns::These(vec![0, 2]);
        {
            let (node, threads) = place.start();
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
        let (node, _threads) = place.start();
        let table = node.table("accounts").expect("the table");
        assert_eq!(table.kept_columns(), these);
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(wait_for(&worker, &table, |found| found.as_ref().is_ok_and(|view| !view.kept().has(1))));
    }
}

/// A table is kept by itself once it is large.
#[test]
fn large_tables_are_kept_by_themselves() {
    for place in Place::both() {
        let (node, _threads) = place.start();
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let definition = TableDef { columns: KeptColumns::Auto, ..accounts() };
            let table = worker.create_table(definition).await.expect("a table");
            let rows = KeptColumns::AUTO_ROWS.cast_signed();
            insert(&worker, &table, 0..rows - 1).await;
            let snapshot = worker.snapshot().await.expect("a snapshot");
            assert_eq!(worker.home_columns(&snapshot, &table).await.err(), Some(NoColumns::NotKept));
            drop(snapshot);
            insert(&worker, &table, rows - 1..rows).await;
            let (snapshot, view) = columns(&worker, &table).await;
            assert_eq!(rows_of_columns(&view, table.schema()), rows_of_pages(&snapshot, &table));
            let (size, reason) = node.columns_of(&table);
            assert!(size.segments > 0 && reason.is_none(), "{size:?} {reason:?}");
        });
    }
}

/// Columns that do not fit their room are forgotten, and there is none for them until a definition changes.
#[test]
fn columns_without_room() {
    for place in Place::both() {
        let (node, _threads) = place.start_with(4_000_000);
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
}

/// The nodes of a cluster in this process, with the threads of each. Dropped from the first on.
struct Cluster {
    workers: Vec<Worker>,
    executor: Executor,
    _threads: Vec<JournalThreads>,
    _agents: Vec<HomeAgent>,
    nodes: Vec<Arc<Node>>,
    _dir: TempDir,
}

impl Cluster {
    /// One node for each journal.
    fn start(journals: Vec<JournalConfig>) -> Self {
        let dir = new_dir();
        let count = journals.len() as u8;
        let journals = journals.into_iter().zip(0..);
        let nodes: Vec<_> =
            journals.map(|(journal, node)| open_node(journal, dir.path(), (node, count), u64::MAX)).collect();
        let agents = nodes.iter().map(|node| HomeAgent::start(node).expect("an agent")).collect();
        let threads =
            nodes.iter().map(|node| JournalThreads::start(node).expect("threads").expect("a journal")).collect();
        let executor = Executor::real(1);
        let workers = nodes.iter().map(|node| node.worker(&executor.handle()).expect("a worker")).collect();
        Self { workers, executor, _threads: threads, _agents: agents, nodes, _dir: dir }
    }

    /// Runs a test with a worker of each node, once they have met.
    fn run(&self, test: impl AsyncFnOnce(&[Worker])) {
        self.executor.run(async {
            let met = TableDef { name: "met".into(), columns: KeptColumns::None, ..accounts() };
            self.table(met).await;
            for worker in &self.workers {
                let met = table_of(worker.node(), "met");
                while let Err(error) = change(worker, &met, &mut Rng::with_seed(0), (10, 1)).await {
                    assert!(matches!(error, TxnError::NotDurable { committed: false, .. }), "{error}");
                    worker.handle().sleep_ns(1_000_000).await;
                }
            }
            test(&self.workers).await;
        });
    }

    async fn table(&self, definition: TableDef) -> Table {
        let worker = &self.workers[0];
        match self.nodes[0].table(&definition.name) {
            Some(table) => table,
            None => loop {
                match worker.create_table(definition.clone()).await {
                    Ok(table) => return table,
                    Err(TxnError::NotDurable { .. }) => worker.handle().sleep_ns(1_000_000).await,
                    Err(error) => panic!("{error}"),
                }
            },
        }
    }

    /// Changes rows of all nodes on two threads of each, until what is returned is dropped, which says how much was changed.
    fn change_all<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>, table: &str, run: &'s Running, seed: u64) {
        for (node, number) in self.nodes.iter().zip(0_u64..) {
            let table = table_of(node, table);
            scope.spawn(move || {
                let executor = Executor::real(2 + number);
                let worker = node.worker(&executor.handle()).expect("a worker");
                let mut random = Rng::with_seed(seed * 10 + number);
                executor.run(async {
                    while !run.stop.load(SeqCst) {
                        change(&worker, &table, &mut random, (400, 1)).await.expect("committed");
                        run.done.fetch_add(1, SeqCst);
                    }
                    worker.drain(PATIENCE_NS).await;
                });
            });
        }
    }
}

#[derive(Default)]
pub struct Running {
    pub stop: AtomicBool,
    pub done: AtomicU64,
}

pub fn table_of(node: &Node, name: &str) -> Table {
    node.table(name).expect("the table is on all nodes")
}

/// Journals of so many nodes in a directory, with short segments.
fn journals(nodes: usize, directory: impl Fn(usize) -> Arc<dyn Directory>) -> Vec<JournalConfig> {
    let journal = |node| JournalConfig { segment_bytes: 64 << 10, threads: 2, ..JournalConfig::new(directory(node)) };
    (0..nodes).map(journal).collect()
}

/// Waits until a node's columns are there, and compares them with its pages. Returns its rows.
async fn check_home(worker: &Worker, name: &str) -> u64 {
    let table = table_of(worker.node(), name);
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        let snapshot = worker.snapshot().await.expect("a snapshot");
        match worker.home_columns(&snapshot, &table).await {
            Ok(view) => {
                assert_eq!(view.epoch(), snapshot.epoch());
                let rows = rows_of_home(&snapshot, &table, Some(worker.node().id()));
                assert_eq!(
                    rows_of_columns(&view, table.schema()),
                    rows,
                    "{} epoch {}",
                    worker.node().id(),
                    view.epoch()
                );
                return rows.len() as u64;
            }
            Err(NoColumns::Building | NoColumns::Past(_) | NoColumns::Behind(_)) => {}
            Err(error) => panic!("{error}: {:?}", worker.node().columns()),
        }
        drop(snapshot);
        assert!(worker.handle().now_ns() < until_ns, "never built: {:?}", worker.node().columns());
        worker.handle().sleep_ns(1_000_000).await;
    }
}

/// While threads of all nodes change rows of all nodes, each node's view has exactly its rows of the snapshot; also of a table whose
/// copy begins meanwhile, and after the whole cluster has started again.
#[test]
fn each_node_has_the_columns_of_its_rows() {
    for nodes in [2, 3] {
        let files = new_dir();
        let disk: Arc<dyn Directory> = Arc::new(Disk::open(files.path().join("journals")).expect("a directory"));
        for start in 0..2_u64 {
            let cluster = Cluster::start(journals(nodes, |_| disk.clone()));
            cluster.run(async |workers| {
                let table = cluster.table(accounts()).await;
                let later = TableDef { name: "later".into(), columns: KeptColumns::None, ..accounts() };
                let later = cluster.table(later).await;
                let running = Running::default();
                std::thread::scope(|scope| {
                    cluster.change_all(scope, "accounts", &running, start);
                    cluster.change_all(scope, "later", &running, start + 5);
                    let stopped = Stop(&running.stop);
                    cluster.executor.run(async {
                        for round in 0..30 {
                            let before = running.done.load(SeqCst);
                            for worker in workers {
                                check_home(worker, "accounts").await;
                            }
                            if round == 10 {
                                let kept =
                                    if start == 0 { KeptColumns::All } else { KeptColumns::These(vec![0, 1, 2]) };
                                workers[0].keep_columns(&later, kept).await.expect("changed");
                            }
                            let until_ns = workers[0].handle().now_ns() + PATIENCE_NS;
                            while running.done.load(SeqCst) < before + 20 && workers[0].handle().now_ns() < until_ns {
                                workers[0].handle().sleep_ns(100_000).await;
                            }
                        }
                        for worker in workers {
                            check_home(worker, "later").await;
                        }
                    });
                    drop(stopped);
                });
                // Nothing else happens any more.
                let mut rows = 0;
                for worker in workers {
                    rows += check_home(worker, "accounts").await;
                    check_home(worker, "later").await;
                    assert_eq!(worker.node().columns().losses, 0);
                }
                let snapshot = workers[0].snapshot().await.expect("a snapshot");
                assert_eq!(rows, rows_of_pages(&snapshot, &table).len() as u64);
                assert!(rows > 0);
            });
        }
    }
}

/// A directory whose files of some name cannot be opened while it is held.
#[derive(Clone, Debug)]
pub struct Slow {
    pub disk: Volatile,
    pub prefix: &'static str,
    pub hold: Arc<(Mutex<Hold>, Condvar)>,
}

/// Whether files cannot be opened, and how many threads wait for that.
#[derive(Debug, Default)]
pub struct Hold {
    is_held: bool,
    waiting: usize,
}

impl Slow {
    fn hold(&self, is_held: bool) {
        self.hold.0.lock().expect("no panic").is_held = is_held;
        self.hold.1.notify_all();
    }

    /// Does a thread wait?
    pub fn is_waited_for(&self) -> bool {
        self.hold.0.lock().expect("no panic").waiting > 0
    }
}

/// Held until this is dropped, also when an assertion fails.
pub struct Held<'s>(&'s Slow);

impl<'s> Held<'s> {
    pub fn new(slow: &'s Slow) -> Self {
        slow.hold(true);
        Self(slow)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.hold(false);
    }
}

impl Directory for Slow {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        if name.starts_with(self.prefix) {
            let mut hold = self.hold.0.lock().expect("no panic");
            hold.waiting += 1;
            let mut hold = self.hold.1.wait_while(hold, |hold| hold.is_held).expect("no panic");
            hold.waiting -= 1;
        }
        self.disk.open(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.disk.lock(name)
    }

    fn name(&self) -> String {
        self.disk.name()
    }
}

/// Segments of a journal are removed before another node has read them: its columns are forgotten, and built again.
#[test]
fn columns_that_miss_records_are_built_again() {
    let disk = Volatile::default();
    let slow = Slow { disk: disk.clone(), prefix: "node-1.journal", hold: Arc::default() };
    let mut journals = journals(2, |node| if node == 0 { Arc::new(slow.clone()) } else { Arc::new(disk.clone()) });
    for journal in &mut journals {
        journal.checkpoint_bytes = 128 << 10;
    }
    let cluster = Cluster::start(journals);
    cluster.run(async |workers| {
        let table = cluster.table(accounts()).await;
        check_home(&workers[0], "accounts").await;
        let first_of_1 = || {
            let names = disk.list().expect("names");
            names.iter().filter_map(|name| name.strip_prefix("node-1.journal-")?[9..].parse::<u32>().ok()).min()
        };
        let (followed, of_1) = (first_of_1().expect("a segment"), table_of(workers[1].node(), "accounts"));
        let held = Held::new(&slow);
        let until_ns = workers[0].handle().now_ns() + PATIENCE_NS;
        let mut ids = (0_i64..).step_by(50);
        while first_of_1().expect("a segment") < followed + 3 {
            let first = ids.next().expect("many");
            insert_long(&workers[1], &of_1, first..first + 50, 100).await;
            // Each node makes checkpoints because of the other.
            insert(&workers[0], &table, -first - 50..-first).await;
            assert!(workers[0].handle().now_ns() < until_ns, "nothing is removed: {:?}", disk.list());
        }
        assert_eq!(workers[0].node().columns().losses, 0);
        drop(held);
        while workers[0].node().columns().losses == 0 {
            assert!(workers[0].handle().now_ns() < until_ns, "{:?}", workers[0].node().columns());
            workers[0].handle().sleep_ns(1_000_000).await;
        }
        for worker in workers {
            assert!(check_home(worker, "accounts").await > 0);
        }
    });
}

/// On an idle cluster a view comes as soon as a snapshot does, and has what any node has committed. A table with all rows on all nodes
/// has its columns on each.
#[test]
fn views_of_an_idle_cluster() {
    let disk = Volatile::default();
    let cluster = Cluster::start(journals(2, |_| Arc::new(disk.clone())));
    cluster.run(async |workers| {
        let table = cluster.table(accounts()).await;
        let copied = TableDef { name: "copied".into(), placement: Placement::Replicated, ..accounts() };
        let copied = cluster.table(copied).await;
        let (mut slowest_ns, mut random) = (0, Rng::with_seed(1));
        for round in 0..60 {
            let writer = &workers[round % 2];
            change(writer, &table_of(writer.node(), "accounts"), &mut random, (100, 1)).await.expect("committed");
            change(writer, &table_of(writer.node(), "copied"), &mut random, (100, 1)).await.expect("committed");
            for worker in workers {
                check_home(worker, "accounts").await;
                if round > 0 {
                    let (table, snapshot) =
                        (table_of(worker.node(), "accounts"), worker.snapshot().await.expect("one"));
                    let began_ns = worker.handle().now_ns();
                    worker.home_columns(&snapshot, &table).await.expect("columns");
                    slowest_ns = slowest_ns.max(worker.handle().now_ns() - began_ns);
                }
                let copied = table_of(worker.node(), "copied");
                let (snapshot, view) = columns(worker, &copied).await;
                assert_eq!(rows_of_columns(&view, copied.schema()), rows_of_pages(&snapshot, &copied));
            }
        }
        assert!(slowest_ns < 5_000_000_000, "{slowest_ns}");
        assert_eq!(workers[0].home_columns(&workers[0].snapshot().await.expect("one"), &copied).await.err(), None);
        assert_eq!(table.kept_columns(), KeptColumns::All);
    });
}
