//! What the tests of transactions share: directories, a table of people, a cluster in one process.

use farhold_fabric::{Executor, Fabric};
pub use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{
    Index, Node, NodeConfig, NodeId, Placement, Retry, ScanSpec, Table, TableDef, Txn, TxnError, Worker,
};
use std::sync::Arc;

use tempfile::TempDir;

/// A directory of its own for each test, gone afterwards.
pub fn new_dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// People: id (key), name (indexed, unique), age (indexed), note.
pub fn people() -> TableDef {
    let columns = vec![
        Column::new("id", ColumnType::Int),
        Column::new("name", ColumnType::Varchar(30)),
        Column::new("age", ColumnType::Int),
        Column::new("note", ColumnType::Text),
    ];
    let index = |name: &str, column, unique| SecondaryIndex { name: name.into(), columns: vec![column], unique };
    TableDef {
        placement: Placement::ByInteger,
        indexes: vec![index("people_name", 1, true), index("people_age", 2, false)],
        ..TableDef::new("people", Schema::new(columns, vec![0]).expect("a schema"))
    }
}

pub const NAME: Index = Index::Secondary(0);
pub const AGE: Index = Index::Secondary(1);

/// How long a request may take: these tests are not about time, and machines that run them may have much else to do.
pub const PATIENCE_NS: u64 = 60_000_000_000;

/// Says in the environment over which provider the tests run, if not over shared memory.
pub const PROVIDER: &str = "FARHOLD_TEST_PROVIDER";

pub fn join(dir: &TempDir, node: u8) -> Fabric {
    let provider = std::env::var(PROVIDER);
    Fabric::join(dir.path(), NodeId(node), provider.as_deref().unwrap_or("shm")).expect("the fabric")
}

pub fn open(dir: &TempDir) -> Arc<Node> {
    let fabric = join(dir, 0);
    Node::open(fabric, NodeConfig { region_bytes: 64 << 20, ..NodeConfig::default() }).expect("a node")
}

/// Runs a test on a worker with an empty table of people.
pub fn with_people(test: impl AsyncFnOnce(Worker, Table)) {
    let dir = new_dir();
    let node = open(&dir);
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async move {
        let table = worker.create_table(people()).await.expect("a table");
        test(worker, table).await;
    });
}

pub fn value(table: &Table, name: &str, age: i32, note: &str) -> Vec<u8> {
    let row = [Datum::Int(0), Datum::Text(name.into()), Datum::Int(age), Datum::Text(note.into())];
    let mut value = Vec::new();
    table.schema().encode_value(&row, &mut value).expect("a value");
    value
}

pub fn index_key(table: &Table, index: Index, datum: Datum) -> Vec<u8> {
    let mut key = Vec::new();
    table.keys_of(index).expect("an index").encode_parts(table.schema(), &[datum], &mut key).expect("a key");
    key
}

pub async fn put(txn: &mut Txn, table: &Table, id: i32, name: &str, age: i32) -> Result<(), TxnError> {
    txn.insert(table, &key(id), &value(table, name, age, "")).await.map(|_| ())
}

/// Name and age of a row.
pub async fn look(txn: &mut Txn, table: &Table, id: i32) -> Option<(String, i32)> {
    let row = txn.get(table, &key(id)).await.expect("a read")?;
    let mut datums = Vec::new();
    table.schema().decode_row(txn.key(row), txn.value(row), &mut datums).expect("a row");
    match (&datums[1], &datums[2]) {
        (Datum::Text(name), Datum::Int(age)) => Some((name.clone(), *age)),
        other => panic!("{other:?}"),
    }
}

/// Ids in the order of a scan.
pub async fn ids(txn: &mut Txn, table: &Table, spec: ScanSpec<'_>) -> Vec<i32> {
    let rows = txn.scan(table, spec).await.expect("a scan");
    rows.iter().map(|row| i32::from_be_bytes(txn.key(*row).try_into().expect("four bytes")) ^ i32::MIN).collect()
}

/// Ids of people of this age.
pub async fn aged(txn: &mut Txn, table: &Table, age: i32) -> Vec<i32> {
    let lo = index_key(table, AGE, Datum::Int(age));
    let hi = index_key(table, AGE, Datum::Int(age + 1));
    ids(txn, table, ScanSpec::range(&lo, &hi).index(AGE)).await
}

pub async fn fill(worker: &Worker, table: &Table, rows: &[(i32, impl AsRef<str>, i32)]) {
    let filled = worker.run(Retry::never(), async |txn| {
        for (id, name, age) in rows {
            put(txn, table, *id, name.as_ref(), *age).await?;
        }
        Ok(())
    });
    filled.await.expect("filled");
}

/// Nodes of one process, each with one worker, all on one thread.
pub struct Cluster {
    pub workers: Vec<Worker>,
    executor: Option<Executor>,
    _dir: TempDir,
}

impl Cluster {
    pub fn new(nodes: u8) -> Self {
        let dir = new_dir();
        let executor = Executor::real(1);
        let start = |node| {
            let fabric = join(&dir, node);
            let config =
                NodeConfig { nodes, region_bytes: 32 << 20, request_timeout_ns: PATIENCE_NS, ..NodeConfig::default() };
            Node::open(fabric, config).expect("a node")
        };
        let nodes: Vec<_> = (0..nodes).map(start).collect();
        let workers = nodes.iter().map(|node| node.worker(&executor.handle()).expect("a worker")).collect();
        Self { workers, executor: Some(executor), _dir: dir }
    }

    /// Runs a test, with all nodes serving their inboxes beside it.
    pub fn run(mut self, test: impl AsyncFnOnce(&Self)) {
        let executor = self.executor.take().expect("it runs once");
        for worker in &self.workers {
            let worker = worker.clone();
            drop(executor.handle().spawn(async move {
                loop {
                    worker.poll();
                    worker.handle().yield_now().await;
                }
            }));
        }
        executor.run(test(&self));
        drop(executor);
    }

    /// Has everything served that has been sent so far: messages of a worker to a node come in order, so what was told
    /// before is served when a question behind it is answered.
    pub async fn serve(&self) {
        for worker in &self.workers {
            let heard = worker.join_cluster().await.expect("answers");
            assert_eq!(heard.len(), self.workers.len() - 1, "all nodes live");
        }
    }

    /// No lock and no reservation is left anywhere.
    pub async fn assert_quiet(&self) {
        self.serve().await;
        for worker in &self.workers {
            let left = worker.node().left_behind();
            assert_eq!(left, Vec::<String>::new(), "{}", worker.node().id());
        }
    }
}
