//! Processes of nodes that end in the middle of what they do, where rows have one copy and no journal: what they leave in shared memory is all there is.

use farhold_fabric::{Executor, Fabric};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{Node, NodeConfig, NodeId, Placement, Retry, Table, TableDef, Txn, TxnError, watch};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of its own for each test, gone afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("farhold-killed-{name}-{}", std::process::id())))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(directory: &Path, node: u8, nodes: u8, region_bytes: u64) -> Result<Arc<Node>, TxnError> {
    let fabric = Fabric::join_shm(directory, NodeId(node)).expect("the fabric");
    let request_timeout_ns = 1_000_000_000;
    Node::open(fabric, NodeConfig { nodes, region_bytes, request_timeout_ns, ..NodeConfig::default() })
}

/// Of people, whose names are unique.
fn people() -> TableDef {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Text)];
    let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: true };
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

thread_local! {
    static HERE: RefCell<PathBuf> = const { RefCell::new(PathBuf::new()) };
    static COPIES: Cell<u32> = const { Cell::new(0) };
}

fn copy_of(directory: &Path, number: u32) -> PathBuf {
    directory.with_extension(format!("copy-{number}"))
}

/// Keeps the memory as it is now, but for messages.
fn keep_copy() {
    let here = HERE.with_borrow(Clone::clone);
    let to = copy_of(&here, COPIES.replace(COPIES.get() + 1));
    std::fs::create_dir_all(&to).expect("a directory");
    let files = std::fs::read_dir(&here).expect("files").flatten();
    for file in files.filter(|file| !file.file_name().to_string_lossy().contains("inbox")) {
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

/// A transaction in which a row outgrows its place, two others trade their names, and one gives its name to a new one. Wherever the process ends, the next
/// start has a row of each key, with its old value or its new one, or reports it.
#[test]
fn no_row_is_lost_with_a_process_that_ends_in_a_commit() {
    let directory = Dir::new("commit");
    let node = open(&directory.0, 0, 1, REGION_BYTES).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let long = "x".repeat(300);
    executor.run(async {
        let table = worker.create_table(people()).await.expect("a table");
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
        HERE.set(directory.0.clone());
        watch(Some(keep_copy));
        let committed = txn.commit().await;
        watch(None);
        committed.expect("committed");
    });
    drop((worker, node));
    let copies = COPIES.get();
    let mut seen = [0; 2];
    for number in 0..copies {
        let copy = Dir(copy_of(&directory.0, number));
        let node = open(&copy.0, 0, 1, REGION_BYTES).unwrap_or_else(|error| panic!("copy {number}: {error}"));
        let worker = node.worker(&executor.handle()).expect("a worker");
        let table = node.table("people").expect("the table");
        let damaged: Vec<Vec<u8>> = node.recovered().damaged.into_iter().map(|(_, key)| key).collect();
        let found = executor.run(async {
            let mut found = Vec::new();
            for id in 1..=5 {
                let (key, _) = row(&table, id, "");
                if damaged.contains(&key) {
                    found.push(Some("damaged".to_owned()));
                    continue;
                }
                let mut txn = worker.begin_read_only();
                let mut datums = Vec::new();
                if let Some(handle) = txn.get(&table, &key).await.expect("a read") {
                    table.schema().decode_row(txn.key(handle), txn.value(handle), &mut datums).expect("a row");
                }
                txn.commit().await.expect("nobody else is there");
                found.push(datums.pop().map(|name| if let Datum::Text(name) = name { name } else { String::new() }));
            }
            found
        });
        let may_be = |id: usize, names: &[&str]| match &found[id - 1] {
            None => false,
            Some(name) => name == "damaged" || names.contains(&&**name),
        };
        let are_there = may_be(1, &["short", &long]) && may_be(2, &["ann", "bob"]) && may_be(3, &["ann", "bob"]);
        assert!(are_there && (may_be(4, &["eve"]) || may_be(5, &["eve"])), "copy {number} of {copies}: {found:?}");
        seen[usize::from(found[0].as_deref() == Some(&long))] += 1;
        let leaks = if damaged.is_empty() { node.leaks() } else { Vec::new() };
        assert_eq!(leaks, Vec::<String>::new(), "copy {number}");
    }
    assert!(seen[0] > 0 && seen[1] > 0, "before and behind the commit point: {seen:?}");
}

/// While a node makes its indexes anew, others find no memory of it, and not an index that lacks rows.
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
        let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
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
            .create_table(TableDef { name: "filled".into(), indexes: Vec::new(), ..people() })
            .await
            .expect("a table");
        let (mut reads, mut random) = (0, 1_u64);
        while lives.load(Ordering::SeqCst) < LIVES {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (key, _) = row(&table, (random >> 33) as i32 % ROWS, "");
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
