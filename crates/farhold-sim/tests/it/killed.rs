//! Node processes that end in the middle of their work, where rows have one copy and no journal. Only the content of shared memory is
//! left.

use farhold_bench::random::Random;
use farhold_fabric::{Executor, Fabric};
use farhold_planted::watch;
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{
    Node, NodeConfig, NodeId, Placement, Retry, RowHandle, ScanSpec, Table, TableDef, Txn, TxnError, Worker,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory, gone afterwards, with all copies that were made of it.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        // Copies of memory, of which there are thousands, stay memory.
        let shared = PathBuf::from("/dev/shm");
        let root = if shared.is_dir() { shared } else { std::env::temp_dir() };
        Self(root.join(format!("farhold-killed-{name}-{}", std::process::id())))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let (Some(parent), Some(name)) = (self.0.parent(), self.0.file_name()) else { return };
        let (name, copies) = (name.to_string_lossy(), format!("{}.", name.to_string_lossy()));
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let found = entry.file_name();
            let found = found.to_string_lossy();
            if found == name || found.starts_with(&copies) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

fn config() -> NodeConfig {
    // A copy of a file takes memory for all of it. Nothing is kept as columns here.
    let columns_bytes_max = 0;
    NodeConfig { region_bytes: REGION_BYTES, request_timeout_ns: SOON_NS, columns_bytes_max, ..NodeConfig::default() }
}

fn open(directory: &Path, node: u8, nodes: u8, region_bytes: u64) -> Result<Arc<Node>, TxnError> {
    let fabric = Fabric::join_shm(directory, NodeId(node)).expect("the fabric");
    Node::open(fabric, NodeConfig { nodes, region_bytes, ..config() })
}

/// Of people, whose names are unique where no other node has any.
fn people(nodes: u8) -> TableDef {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Text)];
    let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: nodes == 1 };
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { placement: Placement::ByInteger, indexes: vec![by_name], ..TableDef::new("people", schema) }
}

fn row(table: &Table, id: i32, name: &str) -> (Vec<u8>, Vec<u8>) {
    let (row, mut key, mut value) = ([Datum::Int(id), Datum::Text(name.into())], Vec::new(), Vec::new());
    table.schema().encode_key(&row, &mut key).expect("a key");
    table.schema().encode_value(&row, &mut value).expect("a value");
    (key, value)
}

async fn rename(txn: &mut Txn, table: &Table, id: i32, name: &str) -> Result<(), TxnError> {
    let (key, value) = row(table, id, name);
    let handle = txn.get(table, &key).await?.ok_or(TxnError::Conflict)?;
    txn.update(handle, &value)
}

const REGION_BYTES: u64 = 1 << 20;
const SOON_NS: u64 = 20_000_000_000;

thread_local! {
    static HERE: RefCell<PathBuf> = const { RefCell::new(PathBuf::new()) };
    static COPIES: Cell<u32> = const { Cell::new(0) };
}

fn copy_of(directory: &Path, number: u32) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// Keeps the memory as it is now, without messages.
fn keep_copy() {
    if std::thread::panicking() {
        return;
    }
    let here = HERE.with_borrow(Clone::clone);
    let to = copy_of(&here, COPIES.replace(COPIES.get() + 1));
    std::fs::create_dir_all(&to).expect("a directory");
    let files = std::fs::read_dir(&here).expect("files").flatten();
    for file in files.filter(|file| !file.file_name().to_string_lossy().contains("inbox")) {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

/// The names of the people with the first ids, after a start from what was left in a directory. Nothing is reported as lost or left
/// behind.
fn start_from(directory: &Path, executor: &Executor) -> Vec<Option<String>> {
    let node = open(directory, 0, 1, REGION_BYTES).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    watch(None);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let table = node.table("people").expect("the table");
    let damaged = node.recovered().damaged;
    assert!(damaged.is_empty(), "{}: {damaged:?}", directory.display());
    assert_eq!([node.left_behind(), node.leaks()].concat(), Vec::<String>::new(), "{}", directory.display());
    executor.run(async {
        let mut found = Vec::new();
        for id in 1..=7 {
            let mut txn = worker.begin_read_only();
            let handle = txn.get(&table, &row(&table, id, "").0).await.expect("a read");
            found.push(handle.map(|handle| name_of(&txn, &table, handle)));
            txn.commit().await.expect("nobody else is there");
        }
        found
    })
}

/// A transaction in which a row outgrows its place, two others trade their names, one gives its name to a new one, and one that has the
/// name of a second one is inserted and deleted. All rows replace others. Wherever the process ends, and wherever its next start ends,
/// the start after that has all of the transaction or nothing.
#[test]
fn no_row_is_lost_with_a_process_that_ends_in_a_commit() {
    let directory = Dir::new("commit");
    let node = open(&directory.0, 0, 1, REGION_BYTES).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let long = "x".repeat(300);
    executor.run(async {
        let table = worker.create_table(people(1)).await.expect("a table");
        let filled = worker.run(Retry::never(), async |txn| {
            for (id, name) in [(1, "short"), (2, "ann"), (3, "bob"), (4, "eve")] {
                let (key, value) = row(&table, id, name);
                txn.insert(&table, &key, &value).await?;
            }
            Ok(())
        });
        filled.await.expect("filled");
        let mut txn = worker.begin();
        rename(&mut txn, &table, 1, &long).await.expect("renamed");
        rename(&mut txn, &table, 2, "-").await.expect("renamed");
        rename(&mut txn, &table, 3, "ann").await.expect("renamed");
        rename(&mut txn, &table, 2, "bob").await.expect("renamed");
        let (key, _) = row(&table, 4, "eve");
        let gone = txn.get(&table, &key).await.expect("a read").expect("a row");
        txn.delete(gone).expect("deleted");
        let (key, value) = row(&table, 5, "eve");
        txn.insert(&table, &key, &value).await.expect("reserved");
        let (key, value) = row(&table, 6, "max");
        let gone = txn.insert(&table, &key, &value).await.expect("reserved");
        txn.delete(gone).expect("deleted");
        let (key, value) = row(&table, 7, "max");
        txn.insert(&table, &key, &value).await.expect("reserved");
        HERE.set(directory.0.clone());
        watch(Some(keep_copy));
        let committed = txn.commit().await;
        watch(None);
        committed.expect("committed");
    });
    drop((worker, node));
    let names = |names: [&str; 7]| names.map(|name| (!name.is_empty()).then(|| name.to_owned()));
    let before = names(["short", "ann", "bob", "eve", "", "", ""]);
    let after = names([&long, "bob", "ann", "", "eve", "", "max"]);
    let mut seen = [0; 2];
    for number in 0..COPIES.take() {
        let copy = Dir(copy_of(&directory.0, number));
        HERE.set(copy.0.clone());
        watch(Some(keep_copy));
        let found = start_from(&copy.0, &executor);
        assert!(found == before || found == after, "copy {number}: {found:?}");
        seen[usize::from(found == after)] += 1;
        for end in 0..COPIES.take() {
            let copy = Dir(copy_of(&copy.0, end));
            assert_eq!(start_from(&copy.0, &executor), found, "copy {number}, and the end {end} of its start");
        }
    }
    assert!(seen[0] > 0 && seen[1] > 0, "before and behind the commit point: {seen:?}");
}

/// By id.
type Names = BTreeMap<i32, String>;

const IDS: i32 = 6;
const PROPER: [&str; 4] = [
    "ann",
    "bob",
    "eve",
    "a name that is longer than the others and outgrows its place, whatever it was before, as often as it comes",
];

/// Some nodes on this thread, and what runs them.
struct Cluster {
    directory: Dir,
    nodes: Vec<Arc<Node>>,
    workers: Vec<Worker>,
    executor: Executor,
}

impl Cluster {
    fn open(directory: Dir, count: u8) -> Self {
        Self::open_with(directory, &NodeConfig { nodes: count, ..config() })
    }

    fn open_with(directory: Dir, config: &NodeConfig) -> Self {
        let executor = Executor::real(1);
        let start =
            |node| Node::open(Fabric::join_shm(&directory.0, NodeId(node)).expect("the fabric"), config.clone());
        let nodes: Vec<_> = (0..config.nodes).map(|node| start(node).expect("a node starts")).collect();
        for node in &nodes {
            assert_eq!(node.recovered().unopened, [], "{}", directory.0.display());
        }
        let workers = nodes.iter().map(|node| node.worker(&executor.handle()).expect("a worker")).collect();
        Self { directory, nodes, workers, executor }
    }

    /// Ends all processes; the directory stays.
    fn end(self) -> Dir {
        let Self { directory, nodes, workers, executor } = self;
        drop((workers, executor, nodes));
        directory
    }

    /// Runs this on the first node while the others serve.
    fn run<T>(&self, what: impl AsyncFnOnce(&Worker) -> T) -> T {
        self.run_on(0, what)
    }

    /// The same on another one.
    fn run_on<T>(&self, node: usize, what: impl AsyncFnOnce(&Worker) -> T) -> T {
        self.executor.run(async {
            let is_over = Rc::new(Cell::new(false));
            for worker in self.workers.iter().enumerate().filter(|(number, _)| *number != node).map(|(_, it)| it) {
                let (worker, is_over) = (worker.clone(), is_over.clone());
                drop(self.executor.handle().spawn(async move {
                    while !is_over.get() {
                        worker.poll();
                        worker.handle().yield_now().await;
                    }
                }));
            }
            let done = what(&self.workers[node]).await;
            is_over.set(true);
            done
        })
    }

    /// Announces the start of each node, which agents otherwise do.
    fn say_hello(&self) {
        for node in 0..self.workers.len() {
            self.run_on(node, async |worker| _ = worker.join_cluster().await.expect("answers"));
        }
    }

    /// Waits until this is so, while all serve.
    fn wait_until(&self, what: &str, state: impl Fn() -> String, is_so: impl Fn() -> bool) {
        self.run(async |worker| {
            let until_ns = worker.handle().now_ns() + SOON_NS;
            while !is_so() {
                assert!(worker.handle().now_ns() < until_ns, "{what}: {}", state());
                worker.poll();
                worker.handle().yield_now().await;
            }
        });
    }

    /// The names of all tables, by node.
    fn tables(&self) -> Vec<BTreeSet<String>> {
        let names = |node: &Arc<Node>| node.tables().iter().map(|table| table.name().to_owned()).collect();
        self.nodes.iter().map(names).collect()
    }

    /// Each node can create tables and drop what there is.
    fn change_tables(&self, what: &str) {
        for (number, node) in self.nodes.iter().enumerate() {
            let definition = |name: String| TableDef { name, ..people(self.nodes.len() as u8) };
            self.run_on(number, async |worker| {
                for name in [format!("of {number}"), format!("also of {number}")] {
                    let made = worker.create_table(definition(name)).await;
                    let table = made.unwrap_or_else(|error| panic!("{what}, node {number}: {error}"));
                    some_writes(worker, &table, &mut Random::new(5), &Names::new(), false).await;
                }
                for name in ["others", "coming"] {
                    if let Some(table) = node.table(name) {
                        let dropped = worker.drop_table(&table).await;
                        dropped.unwrap_or_else(|error| panic!("{what}, node {number}, {name}: {error}"));
                    }
                    if number == 0 {
                        let made = worker.create_table(definition(name.to_owned())).await;
                        made.unwrap_or_else(|error| panic!("{what}, node {number}, {name}: {error}"));
                    }
                }
            });
        }
    }

    /// All names of a table, without rows that are reported as damaged; these are the second value.
    fn names(&self, table: &str) -> (Names, BTreeSet<i32>) {
        let damaged = self.nodes.iter().flat_map(|node| node.recovered().damaged);
        let damaged: BTreeSet<Vec<u8>> = damaged.filter(|(of, _)| of == table).map(|(_, key)| key).collect();
        let table = self.nodes[0].table(table).expect("the table");
        let (lost, whole): (BTreeSet<i32>, BTreeSet<i32>) =
            (1..=IDS).partition(|id| damaged.contains(&row(&table, *id, "").0));
        let found = self.run(async |worker| {
            let mut found = Names::new();
            for id in whole {
                let mut txn = worker.begin_read_only();
                if let Some(handle) = txn.get(&table, &row(&table, id, "").0).await.expect("a read") {
                    found.insert(id, name_of(&txn, &table, handle));
                }
                txn.commit().await.expect("nobody else is there");
            }
            found
        });
        (found, lost)
    }

    /// A transaction that meets such a row gets that error at once, however it finds the row.
    fn check_refusals(&self, lost: &BTreeSet<i32>) {
        let table = self.nodes[0].table("people").expect("the table");
        self.run(async |worker| {
            let began_ns = worker.handle().now_ns();
            for id in lost {
                let (key, value) = row(&table, *id, "anybody");
                let read = worker.begin().get(&table, &key).await.map(drop);
                assert_eq!(read, Err(TxnError::HALF_WRITTEN), "a read of {id}");
                let inserted = worker.begin().insert(&table, &key, &value).await.map(drop);
                assert_eq!(inserted, Err(TxnError::HALF_WRITTEN), "an insert of {id}");
            }
            let scanned = worker.begin().scan(&table, ScanSpec::all()).await.map(drop);
            assert_eq!(scanned, Err(TxnError::HALF_WRITTEN), "a scan");
            let snapshot = worker.snapshot().await.expect("a snapshot");
            let mut pages = snapshot.pages(&table).expect("pages").into_iter();
            let met = pages.find_map(|page| snapshot.scan_page(&page, &mut |_, _| ()).err());
            assert_eq!(met, Some(TxnError::HALF_WRITTEN), "a query");
            drop(snapshot);
            let by_both = SecondaryIndex { name: "of_the_lost".into(), columns: vec![1, 0], unique: false };
            let indexed = worker.create_index(&table, by_both).await;
            assert!(indexed.is_err(), "an index without {lost:?}");
            let took_ns = worker.handle().now_ns() - began_ns;
            assert!(took_ns < SOON_NS / 10, "{took_ns} ns");
        });
    }

    /// Starts again without such rows: their keys are free.
    fn start_without(self, lost: &BTreeSet<i32>) -> Self {
        let Self { directory, nodes, workers, executor } = self;
        let config = NodeConfig { nodes: nodes.len() as u8, forgets_half_written: true, ..config() };
        drop((workers, nodes, executor));
        let again = Self::open_with(directory, &config);
        let forgotten: Vec<_> = again.nodes.iter().flat_map(|node| node.recovered().forgotten).collect();
        assert_eq!(forgotten.len(), lost.len(), "{forgotten:?}");
        let (found, still_lost) = again.names("people");
        assert!(still_lost.is_empty() && lost.iter().all(|id| !found.contains_key(id)), "{found:?}, {still_lost:?}");
        let table = again.nodes[0].table("people").expect("the table");
        let put = again.run(async |worker| {
            let put = worker.run(Retry::never(), async |txn| {
                for id in lost {
                    let (key, value) = row(&table, *id, &format!("{id} is back"));
                    txn.insert(&table, &key, &value).await?;
                }
                Ok(())
            });
            put.await
        });
        put.expect("put back");
        again
    }
}

fn name_of(txn: &Txn, table: &Table, handle: RowHandle) -> String {
    let mut datums = Vec::new();
    table.schema().decode_row(txn.key(handle), txn.value(handle), &mut datums).expect("a row");
    let Some(Datum::Text(name)) = datums.pop() else { panic!("no name") };
    name
}

/// The table of people; its index by name may come after one that is dropped.
async fn table_of(worker: &Worker, is_later: bool) -> Table {
    let mut definition = people(worker.node().config().nodes);
    if !is_later {
        return worker.create_table(definition).await.expect("a table");
    }
    let mut indexes = std::mem::take(&mut definition.indexes);
    let table = worker.create_table(definition).await.expect("a table");
    let first = SecondaryIndex { name: "first".into(), columns: vec![1], unique: false };
    for index in [first, indexes.pop().expect("by name")] {
        worker.create_index(&table, index).await.expect("an index");
    }
    worker.drop_index(&table, "first").await.expect("dropped");
    table
}

/// A few writes, and what is there afterwards.
async fn some_writes(worker: &Worker, table: &Table, random: &mut Random, before: &Names, copies: bool) -> Names {
    // Where another node remembers an earlier row, it is refused at first.
    let (begun, done) = (random.clone(), RefCell::new((random.clone(), before.clone())));
    let written = worker.run(Retry::default(), async |txn| {
        watch(None);
        let (mut random, mut after) = (begun.clone(), before.clone());
        for _ in 0..=random.below(5) {
            let id = 1 + random.below(IDS as u64) as i32;
            let proper = PROPER[random.below(PROPER.len() as u64) as usize];
            let name =
                if random.below(2) == 0 { proper.to_owned() } else { format!("{proper} of {}", random.below(1 << 40)) };
            // The row that has that name gives it up.
            let other = after.iter().find(|(other, it)| **it == name && **other != id).map(|(other, _)| *other);
            if let Some(other) = other {
                let another = format!("not {proper} but {}", random.below(1 << 40));
                let (key, value) = row(table, other, &another);
                let gone = txn.get(table, &key).await?.ok_or(TxnError::Conflict)?;
                txn.delete(gone)?;
                txn.insert(table, &key, &value).await?;
                after.insert(other, another);
            }
            let (key, value) = row(table, id, &name);
            match txn.get(table, &key).await? {
                Some(handle) if random.below(4) == 0 => {
                    txn.delete(handle)?;
                    after.remove(&id);
                }
                Some(handle) => {
                    txn.update(handle, &value)?;
                    after.insert(id, name);
                }
                None => {
                    txn.insert(table, &key, &value).await?;
                    after.insert(id, name);
                }
            }
        }
        done.replace((random, after));
        watch(copies.then_some(keep_copy));
        Ok(())
    });
    let written = written.await;
    watch(None);
    written.expect("nobody else is there");
    let after;
    (*random, after) = done.into_inner();
    after
}

/// Whatever is done to tables, once in a while.
async fn some_change(worker: &Worker, table: &Table, random: &mut Random) {
    let by_both = SecondaryIndex { name: "by_both".into(), columns: vec![1, 0], unique: false };
    let indexed = table.indexes().into_iter().any(|index| index.definition.name == by_both.name);
    let other = worker.node().table("others");
    watch(Some(keep_copy));
    match (random.below(2), other) {
        (0, _) if indexed => worker.drop_index(table, &by_both.name).await.expect("dropped"),
        (0, _) => _ = worker.create_index(table, by_both).await.expect("created"),
        (_, Some(other)) => worker.drop_table(&other).await.expect("dropped"),
        (_, None) => {
            let definition = TableDef { name: "others".into(), ..people(worker.node().config().nodes) };
            let other = worker.create_table(definition).await.expect("created");
            some_writes(worker, &other, random, &Names::new(), false).await;
        }
    }
    watch(None);
}

/// Starts again from each copy, and from each copy that is made of such a start. Each row is as it was before or after, or is reported,
/// and every table can be changed.
fn look_at_copies(what: &str, directory: &Path, nodes: u8, before: &Names, after: &Names, ends_again: bool) -> usize {
    let mut all_lost = 0;
    for number in 0..COPIES.take() {
        let what = format!("{what}, copy {number}");
        let copy = copy_of(directory, number);
        if ends_again {
            HERE.set(copy.clone());
            watch(Some(keep_copy));
        }
        let again = Cluster::open(Dir(copy.clone()), nodes);
        watch(None);
        again.say_hello();
        again.wait_until(
            &what,
            || format!("{:?}", again.tables()),
            || {
                let tables = again.tables();
                tables.iter().all(|some| *some == tables[0])
            },
        );
        all_lost += look_at_copies(&what, &copy, nodes, before, after, false);
        let (mut found, lost) = again.names("people");
        // Here a process ends between its stores, not in the middle of one.
        assert!(lost.is_empty() || nodes > 1, "{what}: {lost:?}");
        let reserved = |node: &Arc<Node>| node.left_behind().into_iter().filter(|what| what.contains("reserved"));
        assert_eq!(again.nodes.iter().flat_map(reserved).collect::<Vec<_>>(), Vec::<String>::new(), "{what}");
        for id in (1..=IDS).filter(|id| !lost.contains(id)) {
            let is_known = found.get(&id) == before.get(&id) || found.get(&id) == after.get(&id);
            assert!(
                is_known,
                "{what}: {:?} of {id}, {:?} became {:?}",
                found.get(&id),
                before.get(&id),
                after.get(&id)
            );
        }
        all_lost += lost.len();
        let again = if lost.is_empty() {
            again
        } else {
            again.check_refusals(&lost);
            let again = again.start_without(&lost);
            found = again.names("people").0;
            again
        };
        let table = again.nodes[0].table("people").expect("the table");
        again.run(async |worker| {
            let changed = worker.run(Retry::never(), async |txn| {
                for (id, name) in &found {
                    rename(txn, &table, *id, &format!("{name}, again")).await?;
                }
                Ok(())
            });
            changed.await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(worker.drain(SOON_NS).await, "{what}: what is to be told");
        });
        let changes_tables = number.is_multiple_of(4);
        if changes_tables {
            again.change_tables(&what);
        }
        // Messages without an answer are still on their way.
        let left = |node: &Arc<Node>| node.leaks().into_iter().chain(node.left_behind());
        let left = || again.nodes.iter().flat_map(left).collect::<Vec<String>>();
        again.wait_until(&what, || format!("{:?}", left()), || left().is_empty());
        if !changes_tables {
            continue;
        }
        let (tables, found) = (again.tables(), again.names("people"));
        let once_more = Cluster::open(again.end(), nodes);
        assert_eq!((once_more.tables(), once_more.names("people")), (tables, found), "{what}, started once more");
    }
    all_lost
}

/// Of all processes at once.
fn end_anywhere(nodes: u8, seeds: std::ops::Range<u64>) {
    const STEPS: usize = 8;
    let (mut copies, mut lost) = (0, 0);
    for seed in seeds {
        let mut random = Random::new(seed);
        let cluster = Cluster::open(Dir::new(&format!("anywhere-{nodes}-{seed}")), nodes);
        let path = cluster.directory.0.clone();
        HERE.set(path.clone());
        let table = cluster.run(async |worker| table_of(worker, seed % 2 == 1).await);
        let mut names = Names::new();
        for step in 0..STEPS {
            let changes_tables = random.below(4) == 0;
            let after = cluster.run(async |worker| {
                if changes_tables {
                    some_change(worker, &table, &mut random).await;
                    return names.clone();
                }
                some_writes(worker, &table, &mut random, &names, true).await
            });
            copies += COPIES.get();
            lost += look_at_copies(&format!("seed {seed}, step {step}"), &path, nodes, &names, &after, true);
            HERE.set(path.clone());
            names = after;
        }
    }
    println!("{copies} copies, {lost} rows lost");
    assert!(copies > 100 && (nodes == 1 || lost > 0), "{copies} copies, {lost} rows lost");
}

#[test]
fn no_row_is_lost_wherever_a_process_ends() {
    end_anywhere(1, 0..6);
}

#[test]
fn no_row_is_lost_wherever_two_processes_end() {
    end_anywhere(2, 0..6);
}

/// While a node makes its indexes anew, other nodes find no region of it, rather than an index that lacks rows.
#[test]
fn rows_of_a_node_that_is_starting_are_not_absent() {
    const ROWS: i32 = 20_000;
    const LIVES: u32 = 12;
    let directory = Dir::new("starting");
    let bytes = 32 << 20;
    let node = open(&directory.0, 0, 2, bytes).expect("a node");
    let lives = Arc::new(AtomicU32::new(0));
    let (path, lived) = (directory.0.clone(), lives.clone());
    let (made, is_made) = std::sync::mpsc::channel();
    let home = std::thread::spawn(move || {
        while lived.load(Ordering::SeqCst) < LIVES {
            let node = open(&path, 1, 2, bytes).expect("it starts");
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).expect("a worker");
            let _ = made.send(());
            executor.run(async {
                let until_ns = worker.handle().now_ns() + 20_000_000;
                while node.table("filled").is_none() || worker.handle().now_ns() < until_ns {
                    worker.poll();
                    worker.handle().yield_now().await;
                }
            });
            lived.fetch_add(1, Ordering::SeqCst);
        }
    });
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    is_made.recv().expect("the other node");
    executor.run(async {
        let table = worker.create_table(TableDef { indexes: Vec::new(), ..people(2) }).await.expect("a table");
        for some in (0..ROWS).step_by(500) {
            let filled = worker.run(Retry::default(), async |txn| {
                for id in some..some + 500 {
                    let (key, value) = row(&table, id, "somebody");
                    txn.insert(&table, &key, &value).await?;
                }
                Ok(())
            });
            filled.await.expect("filled");
        }
        worker
            .create_table(TableDef { name: "filled".into(), indexes: Vec::new(), ..people(2) })
            .await
            .expect("a table");
        let (mut reads, mut random) = (0, fastrand::Rng::with_seed(1));
        while lives.load(Ordering::SeqCst) < LIVES {
            let (key, _) = row(&table, random.i32(0..ROWS), "");
            if table.home_of(&key) == node.id() {
                continue;
            }
            let mut txn = worker.begin_read_only();
            match txn.get(&table, &key).await {
                Ok(found) => {
                    let is_there = found.is_some();
                    if txn.commit().await.is_ok() {
                        assert!(is_there, "a row of {:?} is absent", table.home_of(&key));
                        reads += 1;
                    }
                }
                Err(_) => worker.handle().yield_now().await,
            }
        }
        assert!(reads > LIVES, "{reads} reads");
    });
    home.join().expect("the other node");
}
