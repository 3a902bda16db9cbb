//! A home that is stopped for longer than a request may take, in a cluster without copies: its memory can be written,
//! but it serves nothing.
//!
//! ```text
//!   coordinator   reserve ─► lock ─► commit point ─► "publish" … no answer ─► "committed, but that node is unavailable"
//!   home                    stands still ............................................ goes on: its own threads first, then its inbox
//! ```
//!
//! After the home goes on and before it serves its inbox, its own threads must not treat the rows as deleted, nor their keys as free. The
//! tests run in virtual time, except where the home ends: that needs memory which outlives it.

use crate::common::new_dir;
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, Fabric, Handle};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{
    Index, Node, NodeConfig, NodeId, Placement, Retry, ScanSpec, Table, TableDef, Txn, TxnError, Worker,
};
use futures::future::{Either, select};
use futures::poll;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use tempfile::TempDir;

const TIMEOUT_NS: u64 = 1_000_000;
/// How long a home sleeps between two looks into its inbox.
const LOOK_NS: u64 = 2_000;
/// More time than a home needs after it goes on.
const SOON_NS: u64 = 20 * TIMEOUT_NS;
/// The node that is stopped, and what places rows on it.
const HOME: NodeId = NodeId(1);
const THERE: i32 = 2;
const NAME: Index = Index::Secondary(0);

/// People by town; a name is unique in its town.
fn towns(hash: bool) -> TableDef {
    let columns = vec![
        Column::new("town", ColumnType::Int),
        Column::new("id", ColumnType::Int),
        Column::new("name", ColumnType::Varchar(30)),
    ];
    let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![0, 2], unique: true };
    let schema = Schema::new(columns, vec![0, 1]).expect("a schema");
    TableDef { placement: Placement::ByInteger, hash, indexes: vec![by_name], ..TableDef::new("person", schema) }
}

fn key(table: &Table, town: i32, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.schema().encode_key_parts(&[Datum::Int(town), Datum::Int(id)], &mut key).expect("a key");
    key
}

fn name_key(table: &Table, name: &str) -> Vec<u8> {
    let (keys, mut key) = (table.keys_of(NAME).expect("an index"), Vec::new());
    keys.encode_parts(table.schema(), &[Datum::Int(THERE), Datum::Text(name.into())], &mut key).expect("a key");
    key
}

async fn put(txn: &mut Txn, table: &Table, town: i32, id: i32, name: &str) -> Result<(), TxnError> {
    let mut value = Vec::new();
    let row = [Datum::Int(town), Datum::Int(id), Datum::Text(name.into())];
    table.schema().encode_value(&row, &mut value).expect("a value");
    txn.insert(table, &key(table, town, id), &value).await.map(|_| ())
}

async fn delete(txn: &mut Txn, table: &Table, town: i32, id: i32) {
    let row = txn.get(table, &key(table, town, id)).await.expect("a read").expect("a row");
    txn.delete(row).expect("deleted");
}

fn id_of(table: &Table, txn: &Txn, row: farhold_txn::RowHandle) -> i32 {
    let mut datums = Vec::new();
    table.schema().decode_row(txn.key(row), txn.value(row), &mut datums).expect("a row");
    let Datum::Int(id) = datums[1] else { panic!("{datums:?}") };
    id
}

/// Ids of a town's people, by primary key.
async fn ids(worker: &Worker, town: i32) -> Result<Vec<i32>, TxnError> {
    let table = worker.node().table("person").expect("on every node");
    let mut txn = worker.begin_read_only();
    let rows = txn.scan(&table, ScanSpec::range(&key(&table, town, 0), &key(&table, town, i32::MAX))).await?;
    let found = rows.iter().map(|row| id_of(&table, &txn, *row)).collect();
    txn.commit().await.map(|_| found)
}

/// The id of the person in [`THERE`] with this name, by the unique index, as a read sees it before its commit.
async fn named(worker: &Worker, name: &str) -> Result<Option<i32>, TxnError> {
    let table = worker.node().table("person").expect("on every node");
    let mut txn = worker.begin_read_only();
    let row = txn.get_by(&table, NAME, &name_key(&table, name)).await?;
    let found = row.map(|row| id_of(&table, &txn, row));
    txn.commit().await.map(|_| found)
}

/// Three nodes; the one that is [`HOME`] serves its inbox only while it is not stopped.
struct Cluster {
    workers: Vec<Worker>,
    is_still: Rc<Cell<bool>>,
    handle: Handle,
    table: Table,
}

impl Cluster {
    async fn new(handle: Handle, hash: bool) -> Self {
        Self::of_patience(handle, hash, TIMEOUT_NS).await
    }

    /// One whose requests have this time.
    async fn of_patience(handle: Handle, hash: bool, request_timeout_ns: u64) -> Self {
        let sim = Sim::new(&handle, Rdma, Faults::default());
        let open = |node| {
            let fabric = sim.join(NodeId(node)).expect("a node that does not run yet");
            let config = NodeConfig { nodes: 3, region_bytes: 4 << 20, request_timeout_ns, ..NodeConfig::default() };
            Node::open(fabric, config).expect("a fresh region").worker(&handle).expect("a worker")
        };
        let workers: Vec<Worker> = (0..3).map(open).collect();
        let is_still = Rc::new(Cell::new(false));
        for worker in &workers {
            let (worker, is_still) = (worker.clone(), Rc::clone(&is_still));
            drop(handle.spawn(async move {
                loop {
                    if worker.node().id() != HOME || !is_still.get() {
                        worker.poll();
                    }
                    worker.handle().sleep_ns(LOOK_NS).await;
                }
            }));
        }
        let table = workers[0].create_table(towns(hash)).await.expect("a table");
        let filled = workers[0].run(Retry::never(), async |txn| {
            for town in 1..=3 {
                put(txn, &table, town, 1, "ann").await?;
                put(txn, &table, town, 2, "bob").await?;
            }
            Ok(())
        });
        filled.await.expect("filled");
        Self { workers, is_still, handle, table }
    }

    /// Commits on node 0 what `body` does, while the home is stopped from just before the commit on.
    async fn commit_beside_still_home(&self, body: impl AsyncFnOnce(&mut Txn, &Table)) {
        let mut txn = self.workers[0].begin();
        body(&mut txn, &self.table).await;
        self.is_still.set(true);
        let told = txn.commit().await.map(|_| ());
        assert_eq!(told, Err(TxnError::NodeUnavailable { node: HOME, committed: true }));
    }

    /// The home serves again: nothing is left behind anywhere, and every index leads to every row.
    async fn go_on(&self) {
        self.is_still.set(false);
        assert!(self.workers[0].drain(SOON_NS).await, "what the commit has left");
        self.handle.sleep_ns(SOON_NS).await;
        for worker in &self.workers {
            assert_eq!(worker.node().left_behind(), Vec::<String>::new(), "{}", worker.node().id());
            assert_eq!(worker.node().leaks(), Vec::<String>::new(), "{}", worker.node().id());
        }
    }
}

fn in_virtual_time(test: impl AsyncFn(Cluster)) {
    for hash in [true, false] {
        let executor = Executor::virtual_time(1);
        let handle = executor.handle();
        executor.run(async { test(Cluster::new(handle, hash).await).await });
    }
}

/// The row that takes a unique value over has another key: the primary index leads to it from the start, the unique one only when its
/// home knows of it.
#[test]
fn a_unique_value_that_goes_to_another_key_is_found_afterwards() {
    in_virtual_time(async |cluster| {
        cluster
            .commit_beside_still_home(async |txn, table| {
                delete(txn, table, THERE, 1).await;
                put(txn, table, THERE, 3, "ann").await.expect("reserved");
            })
            .await;
        cluster.go_on().await;
        for worker in &cluster.workers {
            assert_eq!(named(worker, "ann").await, Ok(Some(3)));
            assert_eq!(ids(worker, THERE).await, Ok(vec![2, 3]));
        }
    });
}

/// As an UPDATE of the unique column, twice over: two rows trade their values, and the index must lead to both new
/// objects.
#[test]
fn rows_that_trade_unique_values_are_found_afterwards() {
    in_virtual_time(async |cluster| {
        cluster
            .commit_beside_still_home(async |txn, table| {
                delete(txn, table, THERE, 1).await;
                delete(txn, table, THERE, 2).await;
                put(txn, table, THERE, 1, "bob").await.expect("reserved");
                put(txn, table, THERE, 2, "ann").await.expect("reserved");
            })
            .await;
        cluster.go_on().await;
        for worker in &cluster.workers {
            assert_eq!(named(worker, "ann").await, Ok(Some(2)));
            assert_eq!(named(worker, "bob").await, Ok(Some(1)));
        }
    });
}

/// The key is taken over by way of an insert that the same transaction gives up again.
#[test]
fn a_value_that_was_given_up_in_between_is_found_afterwards() {
    in_virtual_time(async |cluster| {
        cluster
            .commit_beside_still_home(async |txn, table| {
                delete(txn, table, THERE, 1).await;
                put(txn, table, THERE, 5, "eve").await.expect("reserved");
                delete(txn, table, THERE, 5).await;
                put(txn, table, THERE, 6, "eve").await.expect("reserved");
                put(txn, table, THERE, 1, "ann").await.expect("reserved");
            })
            .await;
        cluster.go_on().await;
        for worker in &cluster.workers {
            assert_eq!(named(worker, "eve").await, Ok(Some(6)));
            assert_eq!(named(worker, "ann").await, Ok(Some(1)));
        }
    });
}

/// The home goes on, and its own threads run before it serves its inbox: their reads are refused, or correct.
#[test]
fn threads_of_the_home_believe_nothing_before_they_have_heard() {
    in_virtual_time(async |cluster| {
        cluster
            .commit_beside_still_home(async |txn, table| {
                delete(txn, table, THERE, 1).await;
                put(txn, table, THERE, 3, "ann").await.expect("reserved");
            })
            .await;
        let home = &cluster.workers[usize::from(HOME.0)];
        let there = home.node().table("person").expect("on every node");
        let by_name = named(home, "ann").await;
        assert!(matches!(by_name, Err(TxnError::Conflict)), "{by_name:?}");
        let by_key = ids(home, THERE).await;
        assert!(matches!(by_key, Err(TxnError::Conflict)), "{by_key:?}");
        let mut second = home.begin();
        let inserted = match put(&mut second, &there, THERE, 4, "ann").await {
            Ok(()) => second.commit().await.map(|_| ()),
            Err(error) => Err(error),
        };
        let is_refused = matches!(inserted, Err(TxnError::Conflict | TxnError::DuplicateKey { index: NAME, .. }));
        assert!(is_refused, "a second row with a unique value: {inserted:?}");
        cluster.go_on().await;
        assert_eq!(named(home, "ann").await, Ok(Some(3)));
        assert_eq!(ids(home, THERE).await, Ok(vec![2, 3]));
    });
}

/// What a transaction that looks for the only row of [`THERE`] sees before its commit, by each access path.
async fn looks(worker: &Worker) -> [Result<usize, TxnError>; 3] {
    let table = worker.node().table("note").expect("on every node");
    let by_name = {
        let (keys, mut key) = (table.keys_of(NAME).expect("an index"), Vec::new());
        keys.encode_parts(table.schema(), &[Datum::Int(THERE), Datum::Text("ann".into())], &mut key).expect("a key");
        key
    };
    let key = key(&table, THERE, 1);
    let mut txn = worker.begin_read_only();
    let by_key = txn.get(&table, &key).await.map(|row| row.iter().count());
    let mut txn = worker.begin_read_only();
    let named = txn.get_by(&table, NAME, &by_name).await.map(|row| row.iter().count());
    let mut txn = worker.begin_read_only();
    let scanned = txn.scan(&table, ScanSpec::range(&by_name, &name_after(&by_name)).index(NAME)).await;
    [by_key, named, scanned.map(|rows| rows.len())]
}

fn name_after(key: &[u8]) -> Vec<u8> {
    let mut after = key.to_vec();
    after.push(u8::MAX);
    after
}

/// A row gets a value for which its slot is too short, from another node. The coordinator may end between any two steps of the commit,
/// and the others hear of that only later: until then each reader finds the row, or finds that it is being changed.
#[test]
fn a_row_that_moves_is_there_at_each_step_of_its_commit() {
    for hash in [true, false] {
        let found = while_it_moves(hash);
        assert!(found.len() > 30 && found.contains(&Err(TxnError::Conflict)), "{} looks", found.len());
        let strange = found.iter().find(|found| !matches!(found, Ok(1) | Err(TxnError::Conflict)));
        assert_eq!(strange, None, "{found:?}");
        #[cfg(feature = "planted")]
        {
            farhold_planted::plant(Some(farhold_planted::Defect::LockedAbsenceBelieved));
            let found = while_it_moves(hash);
            farhold_planted::plant(None);
            assert!(found.contains(&Ok(0)), "a reader that believes what is being changed does not find the row");
        }
    }
}

/// What others find of a row while it moves: all looks after each step.
fn while_it_moves(hash: bool) -> Vec<Result<usize, TxnError>> {
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    executor.run(async {
        let cluster = Cluster::of_patience(handle.clone(), hash, 1_000 * TIMEOUT_NS).await;
        let coordinator = &cluster.workers[0];
        let mut columns = towns(hash).schema.columns().to_vec();
        columns.push(Column::new("note", ColumnType::Varchar(500)));
        let schema = Schema::new(columns, vec![0, 1]).expect("a schema");
        let definition = TableDef { name: "note".into(), schema, ..towns(hash) };
        let table = coordinator.create_table(definition).await.expect("a table");
        let value = |note: usize| {
            let row = [Datum::Int(THERE), Datum::Int(1), Datum::Text("ann".into()), Datum::Text("n".repeat(note))];
            let mut value = Vec::new();
            table.schema().encode_value(&row, &mut value).expect("a value");
            value
        };
        let key = key(&table, THERE, 1);
        let filled = coordinator.run(Retry::never(), async |txn| txn.insert(&table, &key, &value(1)).await.map(drop));
        filled.await.expect("filled");
        let mut txn = coordinator.begin();
        let row = txn.get(&table, &key).await.expect("a read").expect("a row");
        txn.update(row, &value(400)).expect("written");
        let mut commit = pin!(txn.commit());
        let mut found = Vec::new();
        while poll!(commit.as_mut()).is_pending() {
            handle.sleep_ns(200).await;
            for worker in &cluster.workers[1..] {
                found.extend(looks(worker).await);
            }
        }
        for worker in &cluster.workers {
            assert_eq!(looks(worker).await, [Ok(1), Ok(1), Ok(1)]);
        }
        found
    })
}

/// Rows elsewhere wait for nothing.
#[test]
fn rows_of_other_homes_are_there_at_once() {
    in_virtual_time(async |cluster| {
        cluster
            .commit_beside_still_home(async |txn, table| {
                for town in [1, THERE, 3] {
                    delete(txn, table, town, 1).await;
                    put(txn, table, town, 3, "ann").await.expect("reserved");
                }
            })
            .await;
        for node in [0, 2] {
            assert_eq!(ids(&cluster.workers[node], 1 + node as i32).await, Ok(vec![2, 3]), "node {node}");
        }
        cluster.go_on().await;
        assert_eq!(ids(&cluster.workers[0], THERE).await, Ok(vec![2, 3]));
    });
}

/// Does something while a worker of another node serves.
async fn beside<T>(server: &Worker, work: impl Future<Output = T>) -> T {
    let serve = async {
        loop {
            server.poll();
            server.handle().yield_now().await;
        }
    };
    match select(pin!(work), pin!(serve)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => unreachable!("it serves without an end"),
    }
}

/// Two nodes or three on shared memory, in real time: a home's memory outlives it.
struct Pair {
    executor: Executor,
    dir: TempDir,
    nodes: u8,
}

impl Pair {
    const TIMEOUT_NS: u64 = 1_000_000_000;

    fn new() -> Self {
        Self { executor: Executor::real(1), dir: new_dir(), nodes: 2 }
    }

    fn open(&self, node: NodeId) -> Worker {
        let fabric = Fabric::join_shm(self.dir.path(), node).expect("the fabric");
        let request_timeout_ns = Self::TIMEOUT_NS;
        let config =
            NodeConfig { nodes: self.nodes, region_bytes: 8 << 20, request_timeout_ns, ..NodeConfig::default() };
        Node::open(fabric, config).expect("a node").worker(&self.executor.handle()).expect("a worker")
    }

    /// A unique value goes from row 1 to row 3, by a commit on `worker` that the home does not answer.
    async fn commit_beside_still_home(&self, worker: &Worker, home: &Worker) {
        let (txn, table) = beside(home, async {
            let table = worker.create_table(towns(true)).await.expect("a table");
            let mut txn = worker.begin();
            put(&mut txn, &table, THERE, 1, "ann").await.expect("reserved");
            txn.commit().await.expect("committed");
            let mut txn = worker.begin();
            delete(&mut txn, &table, THERE, 1).await;
            put(&mut txn, &table, THERE, 3, "ann").await.expect("reserved");
            (txn, table)
        })
        .await;
        let told = txn.commit().await.map(|_| ());
        assert_eq!(told, Err(TxnError::NodeUnavailable { node: HOME, committed: true }));
        assert_eq!(table.home_of(&key(&table, THERE, 1)), HOME);
    }

    /// The home's next start has nothing half done, and this row alone.
    async fn assert_has(worker: &Worker, home: &Worker, id: i32) {
        beside(worker, home.join_cluster()).await.expect("answers");
        assert_eq!(home.node().left_behind(), Vec::<String>::new());
        assert_eq!(home.node().leaks(), Vec::<String>::new());
        beside(worker, async {
            assert_eq!(named(home, "ann").await, Ok(Some(id)));
            assert_eq!(ids(home, THERE).await, Ok(vec![id]));
        })
        .await;
    }
}

/// The home never goes on: its process ends. What it leaves in its region is whole for its next start.
#[test]
fn a_home_that_ends_instead_has_the_rows_when_it_starts_again() {
    let pair = Pair::new();
    pair.executor.run(async {
        let (worker, home) = (pair.open(NodeId(0)), pair.open(HOME));
        pair.commit_beside_still_home(&worker, &home).await;
        drop(home);
        assert!(worker.drain(10 * Pair::TIMEOUT_NS).await, "a process that has ended answers nothing more");
        Pair::assert_has(&worker, &pair.open(HOME), 3).await;
    });
}

/// It ends and starts again before the coordinator has looked. The coordinator must then not touch what is in the
/// slots.
#[test]
fn a_home_that_starts_again_at_once_is_left_as_it_is() {
    let pair = Pair::new();
    pair.executor.run(async {
        let (worker, home) = (pair.open(NodeId(0)), pair.open(HOME));
        pair.commit_beside_still_home(&worker, &home).await;
        drop(home);
        let home = pair.open(HOME);
        let table = worker.node().table("person").expect("on every node");
        beside(&home, async {
            // What its earlier start was known by is void, also for the rest of the commit.
            let put_there = worker.run(Retry::default(), async |txn| {
                txn.get(&table, &key(&table, THERE, 1)).await?;
                put(txn, &table, 4, 1, "bob").await
            });
            put_there.await.expect("the new start serves");
            assert!(worker.drain(10 * Pair::TIMEOUT_NS).await, "it answers");
            let removed = worker.run(Retry::default(), async |txn| {
                let row = txn.get(&table, &key(&table, 4, 1)).await?.ok_or(TxnError::Conflict)?;
                txn.delete(row)
            });
            removed.await.expect("removed");
            worker.join_cluster().await.expect("served in order");
        })
        .await;
        Pair::assert_has(&worker, &home, 1).await;
    });
}

/// While a commit waits for the answer of one home, another one ends and starts again, and a transaction changes the
/// row there whose lock that start has freed.
#[test]
fn a_home_that_starts_again_while_another_is_asked_is_left_as_it_is() {
    let waits = async |txn: &mut Txn, table: &Table| {
        delete(txn, table, THERE, 1).await;
        put(txn, table, THERE, 3, "ann").await.expect("reserved");
    };
    let (told, there) = beside_another_that_starts_again(&waits);
    assert_eq!(told, Err(TxnError::NodeUnavailable { node: OTHER, committed: true }));
    assert_eq!(there, [3], "that home has answered");
}

/// The same before the commit point: it asks a home whether a range stands.
#[test]
fn a_home_that_starts_again_while_a_range_is_validated_is_left_as_it_is() {
    let waits = async |txn: &mut Txn, table: &Table| {
        let range = (key(table, THERE, 0), key(table, THERE, i32::MAX));
        txn.scan(table, ScanSpec::range(&range.0, &range.1)).await.expect("a scan");
    };
    let (told, there) = beside_another_that_starts_again(&waits);
    assert_eq!(told, Err(TxnError::Conflict));
    assert_eq!(there, [1]);
}

/// A range is empty at one start of a home. The next start makes its index anew, with a row in the range, and as many changes
/// as there were before.
#[test]
fn a_range_is_of_one_start_of_its_home() {
    [false, true].into_iter().for_each(a_range_of_one_start);
}

/// Also if its worker has met nothing of the home but the range.
fn a_range_of_one_start(is_first: bool) {
    let pair = Pair::new();
    pair.executor.run(async {
        let (worker, home) = (pair.open(NodeId(0)), pair.open(HOME));
        let fresh = worker.node().worker(&pair.executor.handle()).expect("another worker");
        let scans = if is_first { &fresh } else { &worker };
        let (txn, table) = beside(&home, async {
            let table = worker.create_table(towns(true)).await.expect("a table");
            let filled = worker.run(Retry::default(), async |txn| put(txn, &table, THERE, 1, "ann").await);
            filled.await.expect("filled");
            let mut txn = scans.begin();
            let range = (key(&table, THERE, 5), key(&table, THERE, 9));
            let found = txn.scan(&table, ScanSpec::range(&range.0, &range.1)).await.expect("a scan");
            assert_eq!(found.len(), 0);
            put(&mut txn, &table, 1, 1, "nobody is there").await.expect("reserved");
            (txn, table)
        })
        .await;
        assert_eq!([THERE, 1].map(|town| table.home_of(&key(&table, town, 1))), [HOME, NodeId(0)]);
        let there = home.node().table("person").expect("on every node");
        let moved = home.run(Retry::default(), async |txn| {
            delete(txn, &there, THERE, 1).await;
            put(txn, &there, THERE, 7, "bob").await
        });
        moved.await.expect("nobody else writes");
        drop((there, home));
        let home = pair.open(HOME);
        assert_eq!(beside(&home, txn.commit()).await.map(|_| ()), Err(TxnError::Conflict));
    });
}

const OTHER: NodeId = NodeId(2);

/// The outcome of a commit that waits for [`HOME`] by what `waits` does, and deletes a row on [`OTHER`]; and the
/// numbers in [`THERE`] afterwards.
fn beside_another_that_starts_again(waits: &impl AsyncFn(&mut Txn, &Table)) -> (Result<(), TxnError>, Vec<i32>) {
    const TOWN: i32 = 3;
    let pair = Pair { nodes: 3, ..Pair::new() };
    pair.executor.run(async {
        let (worker, home, other) = (pair.open(NodeId(0)), pair.open(HOME), pair.open(OTHER));
        let made = beside(&home, beside(&other, worker.create_table(towns(true))));
        let table = made.await.expect("a table");
        let rename = async |txn: &mut Txn, name: &str| {
            let row = txn.get(&table, &key(&table, TOWN, 1)).await?.ok_or(TxnError::Conflict)?;
            let mut value = Vec::new();
            let named = [Datum::Int(TOWN), Datum::Int(1), Datum::Text(name.into())];
            table.schema().encode_value(&named, &mut value).expect("a value");
            txn.delete(row)?;
            txn.insert(&table, &key(&table, TOWN, 1), &value).await.map(|_| ())
        };
        let txn = beside(
            &home,
            beside(&other, async {
                let filled = worker.run(Retry::default(), async |txn| {
                    put(txn, &table, THERE, 1, "ann").await?;
                    put(txn, &table, TOWN, 1, "ann").await
                });
                filled.await.expect("filled");
                assert_eq!([THERE, TOWN].map(|town| table.home_of(&key(&table, town, 1))), [HOME, OTHER]);
                let mut txn = worker.begin();
                waits(&mut txn, &table).await;
                delete(&mut txn, &table, TOWN, 1).await;
                txn
            }),
        )
        .await;
        let mut committing = pin!(txn.commit());
        // Until it waits for the home that serves nothing.
        for _ in 0..1_000 {
            assert!(poll!(&mut committing).is_pending());
            worker.handle().yield_now().await;
        }
        drop(other);
        let other = pair.open(OTHER);
        beside(&other, async {
            // What its earlier start was known by is void, also for the rest of the commit.
            let renamed = worker.run(Retry::default(), async |txn| rename(txn, "zoe").await);
            renamed.await.expect("the new start serves");
        })
        .await;
        let told = beside(&home, &mut committing).await.map(|_| ());
        let there = beside(
            &home,
            beside(&other, async {
                assert!(worker.drain(10 * Pair::TIMEOUT_NS).await, "it answers");
                let mut txn = worker.begin_read_only();
                let row = txn.get(&table, &key(&table, TOWN, 1)).await.expect("a read").expect("a row");
                assert!(txn.value(row).windows(3).any(|part| part == b"zoe"), "the later commit stands");
                ids(&worker, THERE).await.expect("read")
            }),
        )
        .await;
        (told, there)
    })
}
