//! Columns of another node: views of it show the rows of their snapshots, and its memory waits for snapshots of any node.

use crate::columns::{Row, Stop, accounts, change, decode, encode, rows_of_pages};
use crate::common::{PATIENCE_NS, new_dir};
use farhold_fabric::{Batch, Endpoint, Executor, Fabric, FarPtr, RegionId};
use farhold_scan::access_path::{self, AccessPath, Aggregate, FarChunk, Pinned, Settings, Value};
use farhold_scan::predicate::{Comparison, Condition, Constant, Predicate};
use farhold_store::Superblock;
use farhold_store::column::copy::{BlockBits, FarViewSegment};
use farhold_store::column::{BLOCK_ROWS, Chunk, double_of};
use farhold_store::durable::files::{Directory, Disk};
use farhold_store::durable::power::Volatile;
use farhold_store::row::Schema;
use farhold_txn::{
    CopyConfig, FarColumns, FarScan, FarWanted, Generation, HomeAgent, JournalConfig, JournalThreads, KeptColumns,
    NoColumns, Node, NodeConfig, NodeId, Placement, ReplicationConfig, Retry, Snapshot, Table, TableDef, TxnError,
    Worker,
};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::TryRecvError;

const READER: NodeId = NodeId(0);
/// It has the rows.
const HOME: NodeId = NodeId(1);
const COLUMNS: RegionId = RegionId(2);
pub const ALL: [usize; 3] = [0, 1, 2];

/// A node with its threads, which end before it.
struct Running {
    _threads: Option<JournalThreads>,
    agent: Option<HomeAgent>,
    node: Arc<Node>,
}

fn start(path: &Path, disk: Arc<dyn Directory>, id: NodeId, columns_bytes_max: u64) -> Running {
    let journal = JournalConfig { segment_bytes: 1 << 20, threads: 2, ..JournalConfig::new(disk) };
    let generation = Generation::begin(&journal, id, 2, &ReplicationConfig::default()).expect("a generation");
    let regions = path.join(generation.number().to_string());
    let provider = std::env::var(crate::common::PROVIDER);
    let fabric = Fabric::join(&regions, id, provider.as_deref().unwrap_or("shm")).expect("the fabric");
    let config = NodeConfig {
        nodes: 2,
        region_bytes: 64 << 20,
        journal: Some(journal),
        columns: CopyConfig { segment_rows: 32, changes_min: 8, changed_part: 8 },
        columns_bytes_max,
        request_timeout_ns: PATIENCE_NS,
        ..NodeConfig::default()
    };
    let node = Node::open_durable(fabric, config, generation).expect("a node");
    let threads = JournalThreads::start(&node).expect("threads");
    Running { _threads: threads, agent: Some(HomeAgent::start(&node).expect("an agent")), node }
}

fn definition(name: &str) -> TableDef {
    TableDef { name: name.into(), placement: Placement::ByInteger, ..accounts() }
}

/// What the tests have: a worker of each node.
struct Two {
    reader: Worker,
    home: Worker,
    endpoint: Endpoint,
}

fn with_two(columns_bytes_max: u64, test: impl AsyncFnOnce(Two)) {
    let (dir, disk) = (new_dir(), Volatile::default());
    let nodes = [READER, HOME].map(|id| start(dir.path(), Arc::new(disk.clone()), id, columns_bytes_max));
    let executor = Executor::real(1);
    let [reader, home] = nodes.each_ref().map(|it| it.node.worker(&executor.handle()).expect("a worker"));
    let endpoint = nodes[0].node.fabric().endpoint(&executor.handle()).expect("an endpoint");
    executor.run(test(Two { reader, home, endpoint }));
    drop(executor);
    drop(nodes);
}

/// Inserts rows that are the home's: those with even numbers.
async fn fill(home: &Worker, table: &Table, numbers: std::ops::Range<i64>) {
    let filled = home.run(Retry::default(), async |txn| {
        for number in numbers.clone() {
            let (key, value) = encode(table.schema(), &(2 * number, Some(format!("owner {number}")), 0));
            txn.insert(table, &key, &value).await?;
        }
        Ok(())
    });
    filled.await.expect("inserted");
}

/// The home makes a table, as soon as its journal has met the other one.
async fn create(home: &Worker, definition: TableDef) -> Table {
    loop {
        match home.create_table(definition.clone()).await {
            Err(TxnError::NotDurable { .. }) => home.handle().sleep_ns(1_000_000).await,
            made => return made.expect("a table"),
        }
    }
}

impl Two {
    /// The reader's handle of a table that the home has made.
    fn table(&self, name: &str) -> Table {
        self.reader.node().table(name).expect("it has been told")
    }

    async fn create(&self, name: &str) -> Table {
        create(&self.home, definition(name)).await
    }

    /// Columns of the home at a new snapshot, once they are built.
    async fn columns(&self, table: &Table) -> (Arc<Snapshot>, FarColumns) {
        columns(&self.reader, table).await
    }

    async fn until(&self, what: &str, is_it: impl Fn() -> bool) {
        let until_ns = self.home.handle().now_ns() + PATIENCE_NS;
        while !is_it() {
            let node = self.home.node();
            assert!(self.home.handle().now_ns() < until_ns, "{what}: {:?} {:?}", node.column_memory(), node.columns());
            self.home.handle().sleep_ns(1_000_000).await;
        }
    }

    async fn rows(&self, columns: &FarColumns, schema: &Schema) -> Result<Vec<Row>, String> {
        rows_of(&self.endpoint, columns, schema).await
    }

    /// All of the home's memory is free.
    fn is_memory_free(&self) -> bool {
        self.home.node().column_memory().is_some_and(|all| all.free_bytes == all.bytes)
    }
}

async fn columns(reader: &Worker, table: &Table) -> (Arc<Snapshot>, FarColumns) {
    let until_ns = reader.handle().now_ns() + PATIENCE_NS;
    loop {
        let snapshot = Arc::new(reader.snapshot().await.expect("a snapshot"));
        match reader.columns_of(&snapshot, table, HOME, &ALL).await {
            Ok(found) => return (snapshot, found),
            Err(NoColumns::Building | NoColumns::Past(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(reader.handle().now_ns() < until_ns, "the columns are never built");
        reader.handle().sleep_ns(1_000_000).await;
    }
}

/// The rows of a view; a text if its memory has something else.
pub async fn rows_of(endpoint: &Endpoint, columns: &FarColumns, schema: &Schema) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for segment in columns.segments() {
        let mut batch = Batch::new();
        assert!(segment.chunks().iter().all(|chunk| columns.pin().covers(*chunk)));
        let read = |chunk: &FarChunk| batch.read_immutable(chunk.at, chunk.bytes as usize);
        let slots: Vec<_> = segment.chunks().iter().map(read).collect();
        let batch = endpoint.submit(batch).await;
        let bytes: Vec<&[u8]> = slots.iter().map(|slot| batch.bytes(*slot).expect("read")).collect();
        let chunks: Result<Vec<Chunk<'_>>, _> = bytes.iter().map(|bytes| Chunk::open(bytes)).collect();
        let chunks = chunks.map_err(|error| error.to_string())?;
        if chunks.iter().any(|chunk| chunk.rows() != segment.rows() || chunk.verify().is_err()) {
            return Err("another chunk".to_owned());
        }
        for block in 0..segment.rows().div_ceil(BLOCK_ROWS) {
            let mut bits: BlockBits = [u64::MAX; BLOCK_ROWS / 64];
            segment.select(block, &mut bits);
            let here = (segment.rows() - block * BLOCK_ROWS).min(BLOCK_ROWS);
            for row in (0..here).filter(|row| bits[row / 64] >> (row % 64) & 1 == 1) {
                let row = block * BLOCK_ROWS + row;
                let owner = chunks[1].text(row).map(|text| String::from_utf8_lossy(text).into_owned());
                let (id, amount) = (chunks[0].integer(row).ok_or("no id")?, chunks[2].integer(row).ok_or("no amount")?);
                rows.push((id, owner, double_of(amount).to_bits()));
            }
        }
    }
    rows.extend(columns.view().delta().map(|(key, value)| decode(schema, key, value)));
    rows.sort();
    columns.pin().check().map_err(|error| error.to_string())?;
    Ok(rows)
}

/// While two threads of the home change rows and its segments are made anew, a view from afar has the rows of its snapshot, also when it is
/// read once more later. In the end all memory comes back.
#[test]
fn views_from_afar_have_the_rows_of_their_snapshots() {
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (node, made, stop, done) = (two.home.node(), &made, &stop, &done);
                scope.spawn(move || {
                    let executor = Executor::real(2 + thread);
                    let worker = node.worker(&executor.handle()).expect("a worker");
                    let mut random = fastrand::Rng::with_seed(thread);
                    while !stop.load(SeqCst) {
                        executor.run(change(&worker, made, &mut random, (400, 2))).expect("committed");
                        done.fetch_add(1, SeqCst);
                    }
                });
            }
            let stopped = Stop(&stop);
            let executor = Executor::real(9);
            let reader = two.reader.node().worker(&executor.handle()).expect("a worker");
            let endpoint = two.reader.node().fabric().endpoint(&executor.handle()).expect("an endpoint");
            executor.run(async {
                let (mut held, mut random, mut segments) = (Vec::new(), fastrand::Rng::with_seed(5), 0);
                for round in 0..40 {
                    let before = done.load(SeqCst);
                    let (snapshot, found) = columns(&reader, &table).await;
                    let expected = rows_of_pages(&snapshot, &table);
                    assert_eq!(rows_of(&endpoint, &found, table.schema()).await.as_ref(), Ok(&expected), "{round}");
                    segments += found.segments().len();
                    held.push((found, expected));
                    if held.len() > 3 {
                        let (found, expected) = held.swap_remove(random.usize(..4));
                        assert_eq!(rows_of(&endpoint, &found, table.schema()).await, Ok(expected), "before {round}");
                    }
                    if round % 10 == 9 {
                        held.clear();
                    }
                    drop(snapshot);
                    let until_ns = reader.handle().now_ns() + PATIENCE_NS;
                    while done.load(SeqCst) < before + 20 && reader.handle().now_ns() < until_ns {
                        reader.handle().sleep_ns(100_000).await;
                    }
                }
                assert!(segments > 40, "{segments} segments");
            });
            drop(stopped);
        });
        assert!(!two.is_memory_free());
        two.home.drop_table(&made).await.expect("dropped");
        two.until("memory", || two.is_memory_free()).await;
    });
}

/// The rows that a path finds in a view, four segments at a time.
pub(crate) fn rows_by(
    path: &'static AccessPath,
    columns: &Arc<FarColumns>,
    table: &Table,
    scanned_at_home: &mut usize,
) -> Result<Vec<Row>, String> {
    let (mut rows, all) = (Vec::new(), columns.segments().len());
    for first in (0..all).step_by(4) {
        let scan = FarScan {
            columns: columns.clone(),
            table: table.clone(),
            segments: (first..(first + 4).min(all)).collect(),
            predicate: Arc::default(),
            wanted: FarWanted::Columns(Arc::from(ALL)),
            path,
            settings: Settings { block_bytes: 512, ..Settings::default() },
            is_given_up: Arc::default(),
        };
        let answered = scan.start().map_err(|error| error.to_string())?;
        let scanned = answered.recv().map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
        for found in &scanned.segments {
            *scanned_at_home += usize::from(found.is_of_passing);
            let segment = &columns.segments()[found.segment];
            let rows_of = |bytes: &Vec<u8>| Chunk::open(bytes).map(|chunk| chunk.rows()).unwrap_or_default();
            // Every row passes, so both kinds of chunks have the same rows.
            assert_eq!(found.passing, segment.rows());
            assert!(found.chunks.len() == 3 && found.chunks.iter().all(|bytes| rows_of(bytes) == segment.rows()));
            let chunk = |column: usize| Chunk::open(&found.chunks[column]).expect("opened above");
            for (block, bits) in found.bits.iter().enumerate() {
                let mut bits = *bits;
                segment.select(block, &mut bits);
                for row in (0..BLOCK_ROWS).filter(|row| bits[row / 64] >> (row % 64) & 1 == 1) {
                    let row = block * BLOCK_ROWS + row;
                    let owner = chunk(1).text(row).map(|text| String::from_utf8_lossy(text).into_owned());
                    let (id, amount) =
                        (chunk(0).integer(row).ok_or("no id")?, chunk(2).integer(row).ok_or("no amount")?);
                    rows.push((id, owner, double_of(amount).to_bits()));
                }
            }
        }
    }
    rows.extend(columns.view().delta().map(|(key, value)| decode(table.schema(), key, value)));
    rows.sort();
    Ok(rows)
}

/// What aggregates say of a view of `accounts`: how many rows, of owners and of amounts, and of numbers the sum, the least and the greatest.
#[derive(Debug, Default, PartialEq)]
struct Totals {
    counts: [i128; 3],
    sum: i128,
    ends: Option<(i128, i128)>,
}

impl Totals {
    fn of(rows: &[Row]) -> Self {
        let numbers = || rows.iter().map(|(number, ..)| i128::from(*number));
        let owners = rows.iter().filter(|(_, owner, _)| owner.is_some()).count();
        Self {
            counts: [rows.len() as i128, owners as i128, rows.len() as i128],
            sum: numbers().sum(),
            ends: numbers().min().zip(numbers().max()),
        }
    }

    fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.sum += other.sum;
        self.ends = match (self.ends, other.ends) {
            (Some((least, most)), Some((other, more))) => Some((least.min(other), most.max(more))),
            (one, other) => one.or(other),
        };
    }
}

/// The totals of a view that a path finds, and how many of its segments the home has scanned.
fn totals_by(path: &'static AccessPath, columns: &Arc<FarColumns>, table: &Table) -> Result<(Totals, usize), String> {
    let all = columns.segments().len();
    let (mut totals, mut at_home) = (Totals::default(), 0);
    let wanted = [
        Aggregate::Rows,
        Aggregate::Count(1),
        Aggregate::Count(2),
        Aggregate::Sum(0),
        Aggregate::Min(0),
        Aggregate::Max(0),
    ];
    for first in (0..all).step_by(4) {
        let scan = FarScan {
            columns: columns.clone(),
            table: table.clone(),
            segments: (first..(first + 4).min(all)).collect(),
            predicate: Arc::default(),
            wanted: FarWanted::Aggregates(Arc::from(wanted)),
            path,
            settings: Settings { block_bytes: 512, ..Settings::default() },
            is_given_up: Arc::default(),
        };
        let answered = scan.start().map_err(|error| error.to_string())?;
        let scanned = answered.recv().map_err(|_| "no answer")?.map_err(|error| error.to_string())?;
        for found in &scanned.segments {
            assert!(found.bits.is_empty() && found.chunks.is_empty());
            let integer =
                |value: &Value| if let Value::Integer(integer) = value { *integer } else { panic!("{value:?}") };
            let numbers: Vec<i128> = found.aggregates.iter().map(integer).collect();
            let [rows, owners, amounts, sum, least, most] = numbers[..] else { panic!("{numbers:?}") };
            assert_eq!(rows, found.passing as i128);
            totals.add(&Totals { counts: [rows, owners, amounts], sum, ends: Some((least, most)) });
        }
        at_home += if scanned.is_of_home { scanned.segments.len() } else { 0 };
    }
    let delta: Vec<Row> = columns.view().delta().map(|(key, value)| decode(table.schema(), key, value)).collect();
    totals.add(&Totals::of(&delta));
    Ok((totals, at_home))
}

/// While rows of its segments end, each path finds the aggregates of those that have not ended at the snapshot.
#[test]
fn aggregates_are_those_of_their_snapshots() {
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..300).await;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (node, made, stop_it) = (two.home.node(), &made, &stop);
            scope.spawn(move || {
                let executor = Executor::real(2);
                let worker = node.worker(&executor.handle()).expect("a worker");
                let mut random = fastrand::Rng::with_seed(2);
                while !stop_it.load(SeqCst) {
                    executor.run(change(&worker, made, &mut random, (400, 2))).expect("committed");
                }
            });
            let stopped = Stop(&stop);
            let executor = Executor::real(9);
            let reader = two.reader.node().worker(&executor.handle()).expect("a worker");
            executor.run(async {
                let (mut segments, mut at_home, mut ended) = (0, 0, 0);
                for round in 0..20 {
                    let (snapshot, found) = columns(&reader, &table).await;
                    let (expected, found) = (Totals::of(&rows_of_pages(&snapshot, &table)), Arc::new(found));
                    segments += found.segments().len();
                    let ended_of = |bits: BlockBits| bits.iter().map(|word| word.count_ones()).sum::<u32>();
                    ended += found.segments().iter().flat_map(FarViewSegment::ended).map(ended_of).sum::<u32>();
                    for name in ["offload", "relaxed", "pushdown"] {
                        let path = access_path::by_name(name).expect("a path");
                        let (totals, scanned_at_home) = totals_by(path, &found, &table).expect("totals");
                        assert_eq!(totals, expected, "{name}, {round}");
                        assert!(name == "pushdown" || scanned_at_home == 0);
                        at_home += scanned_at_home;
                    }
                }
                assert!(at_home > segments / 4, "{at_home} of {segments} segments");
                assert!(segments > 20 && ended > 20, "{segments} segments, {ended} rows that have ended");
            });
            drop(stopped);
        });
    });
}

/// While a thread of the home changes rows, each path that copies finds the rows of the snapshot, also from a thread without a worker.
#[test]
fn paths_that_copy_find_the_rows_of_their_snapshots() {
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..300).await;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (node, made, stop_it) = (two.home.node(), &made, &stop);
            scope.spawn(move || {
                let executor = Executor::real(2);
                let worker = node.worker(&executor.handle()).expect("a worker");
                let mut random = fastrand::Rng::with_seed(1);
                while !stop_it.load(SeqCst) {
                    executor.run(change(&worker, made, &mut random, (400, 2))).expect("committed");
                }
            });
            let stopped = Stop(&stop);
            let executor = Executor::real(9);
            let reader = two.reader.node().worker(&executor.handle()).expect("a worker");
            executor.run(async {
                let (mut segments, mut pushed_down) = (0, 0);
                for round in 0..20 {
                    let (snapshot, found) = columns(&reader, &table).await;
                    let (expected, found) = (rows_of_pages(&snapshot, &table), Arc::new(found));
                    segments += found.segments().len();
                    for name in ["offload", "relaxed", "pushdown"] {
                        let path = access_path::by_name(name).expect("a path");
                        let mut scanned_at_home = 0;
                        let rows = rows_by(path, &found, &table, &mut scanned_at_home);
                        assert_eq!(rows.as_ref(), Ok(&expected), "{name}, {round}");
                        assert!(name == "pushdown" || scanned_at_home == 0);
                        pushed_down += scanned_at_home;
                    }
                }
                // The home refuses what it has merged meanwhile.
                assert!(pushed_down > segments / 4, "{pushed_down} of {segments} segments");
                assert!(segments > 20, "{segments} segments");
            });
            drop(stopped);
        });
    });
}

/// A home is asked for nothing more once a scan is given up. No row passes, so what is found never ends the scan.
#[test]
fn a_home_does_not_go_on_with_a_scan_that_is_given_up() {
    let (dir, disk) = (new_dir(), Volatile::default());
    let mut nodes = [READER, HOME].map(|id| start(dir.path(), Arc::new(disk.clone()), id, u64::MAX));
    let executor = Executor::real(1);
    let [reader, home] = nodes.each_ref().map(|it| it.node.worker(&executor.handle()).expect("a worker"));
    executor.run(async {
        let until_ns = executor.handle().now_ns() + 2 * PATIENCE_NS;
        let is_time = || executor.handle().now_ns() < until_ns;
        let made = create(&home, definition("accounts")).await;
        let table = reader.node().table("accounts").expect("it has been told");
        fill(&home, &made, 0..1_000).await;
        let (_snapshot, found) = loop {
            let (snapshot, found) = columns(&reader, &table).await;
            // Nothing is left to be merged, so the home keeps these segments.
            if found.view().delta_rows() == 0 {
                break (snapshot, Arc::new(found));
            }
            assert!(is_time(), "the rows are never in segments");
            executor.handle().sleep_ns(1_000_000).await;
        };
        let all = found.segments().len();
        assert!(all >= 20, "{all} segments");
        let mut nothing = Predicate::everything();
        nothing.push(Condition::Compare(0, Comparison::Less, Constant::Integer(-1)), 0.5);
        let predicate = Arc::new(nothing);
        // From here on the test itself answers what the home is asked: a segment a question, one at a time.
        drop(nodes[1].agent.take());
        let questions = |is_given_up_after_one: bool| {
            let is_given_up = Arc::new(AtomicBool::new(false));
            let scan = FarScan {
                columns: found.clone(),
                table: table.clone(),
                segments: (0..all).collect(),
                predicate: predicate.clone(),
                wanted: FarWanted::Aggregates(Arc::from([Aggregate::Rows])),
                path: access_path::by_name("pushdown").expect("a path"),
                settings: Settings { segments_per_request: 1, requests: 1, ..Settings::default() },
                is_given_up: is_given_up.clone(),
            };
            let answer = scan.start().expect("a thread");
            let mut questions = 0;
            loop {
                match answer.try_recv() {
                    Ok(scanned) => break (questions, scanned.expect("scanned")),
                    Err(error) => assert_eq!(error, TryRecvError::Empty),
                }
                assert!(is_time(), "no answer");
                if home.poll() {
                    questions += 1;
                    is_given_up.store(is_given_up_after_one, SeqCst);
                } else {
                    std::thread::yield_now();
                }
            }
        };
        let (asked, scanned) = questions(false);
        assert!(scanned.is_of_home && scanned.segments.is_empty() && asked >= all, "{asked} of {all}: {scanned:?}");
        // The next question may have been on its way.
        let (asked, scanned) = questions(true);
        assert!((1..5).contains(&asked) && scanned.segments.is_empty(), "{asked} questions: {scanned:?}");
        nodes[1].agent = Some(HomeAgent::start(&nodes[1].node).expect("an agent"));
    });
    drop((reader, home));
    drop(executor);
}

/// A table's columns go, and others take their memory, while a snapshot of another node has a view of them. True if the view still has its
/// rows.
fn is_view_kept() -> bool {
    let mut is_kept = false;
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..1_000).await;
        let (_snapshot, found) = two.columns(&table).await;
        let expected = two.rows(&found, table.schema()).await.expect("rows");
        two.home.keep_columns(&made, KeptColumns::None).await.expect("changed");
        let other = two.create("other").await;
        fill(&two.home, &other, 0..2_000).await;
        let (_, built) = two.columns(&two.table("other")).await;
        assert!(!built.segments().is_empty() || built.view().delta_rows() > 0);
        is_kept = two.rows(&found, table.schema()).await == Ok(expected);
    });
    is_kept
}

#[test]
fn a_view_keeps_its_memory() {
    assert!(is_view_kept());
}

#[cfg(feature = "planted")]
#[test]
fn memory_that_is_used_too_early_is_noticed() {
    assert!(!farhold_planted::with(farhold_planted::Defect::ColumnsNotHeld, is_view_kept));
}

/// What is asked for with a snapshot that the home does not have open is refused, and so are columns that there are none of.
#[test]
fn what_a_snapshot_does_not_cover_is_refused() {
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..10).await;
        let (snapshot, found) = two.columns(&table).await;
        let lacking = two.reader.columns_of(&snapshot, &table, HOME, &[0, 3]).await;
        assert_eq!(lacking.err(), Some(NoColumns::Lacking));
        let covers =
            |node, region, offset, bytes| found.pin().covers(FarChunk { at: FarPtr::new(node, region, offset), bytes });
        let chunk = found.segments().first().map(|segment| segment.chunks()[0]);
        if let Some(FarChunk { at, bytes }) = chunk {
            assert!(covers(HOME, COLUMNS, at.offset(), bytes) && covers(HOME, COLUMNS, at.offset() + 1, bytes - 1));
            assert!(!covers(HOME, COLUMNS, at.offset() + 1, bytes) && !covers(HOME, COLUMNS, 1 << 40, 1));
            assert!(!covers(READER, COLUMNS, at.offset(), bytes) && !covers(HOME, RegionId(0), at.offset(), bytes));
        }
        // The home goes on without the reader, and the reader does not know.
        if let Some(memory) = two.endpoint.mapped(HOME, RegionId(0)) {
            Superblock::of(&memory).expect("a superblock").release_of(|holder| holder.node == READER);
            assert!(found.pin().check().is_err());
            assert!(chunk.is_none_or(|chunk| !covers(HOME, COLUMNS, chunk.at.offset(), chunk.bytes)));
            let refused = two.reader.columns_of(&snapshot, &table, HOME, &ALL).await;
            assert_eq!(refused.err(), Some(NoColumns::Unreachable));
        }
    });
}

/// A home without memory for descriptions says so, its own queries go on, and the memory comes back when the snapshot is closed.
#[test]
fn full_memory() {
    with_two(1 << 20, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..1_000).await;
        let (snapshot, _) = two.columns(&table).await;
        let mut views = 0;
        let reason = loop {
            match two.reader.columns_of(&snapshot, &table, HOME, &ALL).await {
                Ok(_) => views += 1,
                Err(reason) => break reason,
            }
            assert!(views < 100_000, "{:?}", two.home.node().column_memory());
        };
        assert_eq!(reason, NoColumns::NoRoom);
        let own = two.home.snapshot().await.expect("a snapshot");
        two.home.home_columns(&own, &made).await.expect("its own columns");
        drop((own, snapshot));
        let (_, found) = loop {
            let snapshot = Arc::new(two.reader.snapshot().await.expect("a snapshot"));
            match two.reader.columns_of(&snapshot, &table, HOME, &ALL).await {
                Ok(found) => break (snapshot, found),
                Err(NoColumns::NoRoom) => two.home.handle().sleep_ns(1_000_000).await,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(two.rows(&found, table.schema()).await.expect("rows").len(), 1_000);
    });
}

/// The description of a view that something has written over is an error.
#[test]
fn a_damaged_description() {
    with_two(u64::MAX, async |two| {
        let made = two.create("accounts").await;
        let table = two.table("accounts");
        fill(&two.home, &made, 0..100).await;
        two.columns(&table).await;
        let Some(memory) = two.endpoint.mapped(HOME, COLUMNS) else { return };
        // What describes the next view is the first free extent; all of them are turned over until the reader has read one.
        let stop = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            let stopped = Stop(&stop);
            let (memory, stop) = (&memory, &stop);
            scope.spawn(move || {
                let mut at = 0;
                while !stop.load(SeqCst) {
                    if memory.word(at).expect("a word").load(SeqCst) == u64::from_le_bytes(*b"FARVIEW2") {
                        memory.word(at + 8).expect("a word").fetch_xor(1 << 40, SeqCst);
                    }
                    at = (at + 64) % (1 << 20);
                }
            });
            let executor = Executor::real(9);
            let reader = two.reader.node().worker(&executor.handle()).expect("a worker");
            let found = executor.run(async {
                let until_ns = reader.handle().now_ns() + PATIENCE_NS;
                loop {
                    let snapshot = Arc::new(reader.snapshot().await.expect("a snapshot"));
                    match reader.columns_of(&snapshot, &table, HOME, &ALL).await {
                        Err(reason) => return Err(reason),
                        Ok(_) if reader.handle().now_ns() < until_ns => {}
                        Ok(_) => return Ok(()),
                    }
                }
            });
            drop(stopped);
            found
        });
        assert_eq!(found, Err(NoColumns::Damaged));
    });
}

/// Says in the environment where the cluster is that this program's other process reads.
const PLACE: &str = "FARHOLD_TEST_FAR_READER";

/// Both processes' disk.
fn disk_of(place: &Path) -> Arc<dyn Directory> {
    Arc::new(Disk::open(place.join("disk")).expect("a folder"))
}

/// What the test below starts as another process: a reader with a view, which it holds until it is killed.
#[test]
fn as_another_process() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let reader = start(Path::new(&place), disk_of(Path::new(&place)), READER, u64::MAX);
    let executor = Executor::real(3);
    let worker = reader.node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = loop {
            if let Some(table) = reader.node.table("accounts") {
                break table;
            }
            executor.handle().sleep_ns(1_000_000).await;
        };
        let (_snapshot, _found) = loop {
            let (snapshot, found) = columns(&worker, &table).await;
            if !found.segments().is_empty() {
                break (snapshot, found);
            }
        };
        std::fs::write(Path::new(&place).join("ready"), []).expect("a file");
        loop {
            executor.handle().sleep_ns(1_000_000_000).await;
        }
    });
}

pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The memory that a reader's snapshot holds back is free after the end of the reader's process.
#[test]
fn a_dead_reader_holds_nothing() {
    let dir = new_dir();
    let mut reader = Command::new(std::env::current_exe().expect("this program"));
    reader.args(["far_columns::as_another_process", "--exact", "--nocapture"]).env(PLACE, dir.path());
    let running = start(dir.path(), disk_of(dir.path()), HOME, u64::MAX);
    let child = reader.stdout(Stdio::null()).spawn().expect("a process");
    let mut child = Killed(child);
    let executor = Executor::real(4);
    let home = running.node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let until_ns = executor.handle().now_ns() + PATIENCE_NS;
        let mut wait = async |what: &str, is_it: &dyn Fn() -> bool| {
            while !is_it() {
                assert!(child.0.try_wait().expect("its state").is_none() || what == "memory", "it ended");
                let memory = running.node.column_memory();
                assert!(executor.handle().now_ns() < until_ns, "{what}: {memory:?} {:?}", running.node.columns());
                executor.handle().sleep_ns(1_000_000).await;
            }
        };
        let made = loop {
            match home.create_table(definition("accounts")).await {
                Err(TxnError::NotDurable { .. } | TxnError::NodeUnavailable { .. }) => {
                    executor.handle().sleep_ns(1_000_000).await;
                }
                made => break made.expect("a table"),
            }
        };
        fill(&home, &made, 0..1_000).await;
        let ready = dir.path().join("ready");
        wait("the reader", &|| ready.exists()).await;
        home.keep_columns(&made, KeptColumns::None).await.expect("changed");
        let memory = || running.node.column_memory().expect("memory");
        wait("what is held", &|| memory().held_bytes > 0).await;
        executor.handle().sleep_ns(50_000_000).await;
        assert!(memory().held_bytes > 0, "its snapshot is open");
        child.0.kill().expect("killed");
        child.0.wait().expect("its end");
        let free = || memory().free_bytes == memory().bytes;
        while !free() {
            assert!(executor.handle().now_ns() < until_ns, "{:?}", memory());
            executor.handle().sleep_ns(1_000_000).await;
        }
    });
}
