//! Nodes that are cut off from each other for longer than a request may take, and starts of nodes of which others learn
//! late or in another order, where rows have no copies. In the end a commit is there completely or not at all, and
//! nothing stays locked or reserved for nodes that are gone.

use farhold_fabric::provider::sim::{Fault, Faults, Hop, Rdma, Sim};
use farhold_fabric::{Executor, Handle, RegionId};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_txn::{Node, NodeConfig, NodeId, Placement, Retry, Table, TableDef, Txn, TxnError, Worker};

const TIMEOUT_NS: u64 = 1_000_000;
/// More time than a node needs that is back.
const SOON_NS: u64 = 20 * TIMEOUT_NS;
const HOME: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);
/// Keys of rows on node 0 are odd, those on node 1 even.
const ROWS: i32 = 8;

fn definition() -> TableDef {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("name", ColumnType::Varchar(3_000))];
    let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: false };
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { placement: Placement::ByInteger, hash: true, indexes: vec![by_name], ..TableDef::new("person", schema) }
}

fn key(table: &Table, id: i32) -> Vec<u8> {
    let mut key = Vec::new();
    table.schema().encode_key_parts(&[Datum::Int(id)], &mut key).expect("a key");
    key
}

fn value(table: &Table, id: i32, name: &str) -> Vec<u8> {
    let mut value = Vec::new();
    table.schema().encode_value(&[Datum::Int(id), Datum::Text(name.into())], &mut value).expect("a value");
    value
}

async fn put(txn: &mut Txn, table: &Table, id: i32, name: &str) -> Result<(), TxnError> {
    let (key, value) = (key(table, id), value(table, id, name));
    match txn.get(table, &key).await? {
        Some(row) => txn.update(row, &value),
        None => txn.insert(table, &key, &value).await.map(|_| ()),
    }
}

async fn name(txn: &mut Txn, table: &Table, id: i32) -> Result<Option<String>, TxnError> {
    let Some(row) = txn.get(table, &key(table, id)).await? else { return Ok(None) };
    let mut datums = Vec::new();
    table.schema().decode_row(txn.key(row), txn.value(row), &mut datums)?;
    let Datum::Text(name) = &datums[1] else { panic!("{datums:?}") };
    Ok(Some(name.clone()))
}

fn machine() -> (Executor, Handle, Sim) {
    let executor = Executor::virtual_time(3);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    (executor, handle, sim)
}

/// Kills a node, and waits until no task waits for it any more.
async fn end(sim: &Sim, handle: &Handle, node: NodeId) {
    sim.inject(Fault::Kill(node));
    handle.sleep_ns(5 * TIMEOUT_NS).await;
}

/// Removes the region of rows of a node that does not run.
fn lose_memory(sim: &Sim, node: NodeId) {
    let fabric = sim.join(node).expect("it does not run");
    fabric.remove_region(RegionId(0)).expect("lost");
}

fn start(sim: &Sim, node: NodeId, handle: &Handle) -> Worker {
    let fabric = sim.join(node).expect("a node that does not run");
    let config =
        NodeConfig { nodes: 2, region_bytes: 4 << 20, request_timeout_ns: TIMEOUT_NS, ..NodeConfig::default() };
    Node::open(fabric, config).and_then(|node| node.worker(handle)).expect("a node")
}

fn serve(worker: &Worker) {
    let serving = worker.clone();
    drop(worker.handle().spawn(async move {
        loop {
            serving.serve(TIMEOUT_NS, usize::MAX).await;
        }
    }));
}

async fn fill(worker: &Worker) -> Table {
    let table = worker.create_table(definition()).await.expect("a table");
    let filled = worker.run(Retry::never(), async |txn| {
        for id in 1..=ROWS {
            put(txn, &table, id, "ann").await?;
        }
        Ok(())
    });
    filled.await.expect("filled");
    table
}

/// Rows of both nodes: one grows out of its slot, one goes, one comes, one stays in its place.
async fn change(worker: Worker, table: Table) -> Result<(), TxnError> {
    let mut txn = worker.begin();
    for of_node in [0, 1] {
        put(&mut txn, &table, 1 + of_node, &"bob".repeat(500)).await?;
        let row = txn.get(&table, &key(&table, 3 + of_node)).await?.ok_or(TxnError::Conflict)?;
        txn.delete(row)?;
        put(&mut txn, &table, ROWS + 1 + of_node, "bob").await?;
        put(&mut txn, &table, 5 + of_node, "eve").await?;
    }
    txn.commit().await.map(|_| ())
}

async fn assert_nothing_is_left(workers: &[Worker]) {
    for worker in workers {
        assert!(worker.drain(SOON_NS).await, "what commits have left");
    }
    workers[0].handle().sleep_ns(SOON_NS).await;
    for worker in workers {
        assert_eq!(worker.node().left_behind(), Vec::<String>::new(), "{}", worker.node().id());
        assert_eq!(worker.node().leaks(), Vec::<String>::new(), "{}", worker.node().id());
    }
}

/// A transaction of node 0 changes rows of both nodes; `ns` nanoseconds after its beginning, links are cut. Returns what its client hears
/// once they are healed.
fn cut_after(ns: u64, hops: &[Hop]) -> Result<(), TxnError> {
    let (executor, handle, sim) = machine();
    executor.run(async {
        let workers = [HOME, OTHER].map(|node| start(&sim, node, &handle));
        workers.iter().for_each(serve);
        let table = fill(&workers[0]).await;
        let changing = handle.spawn(change(workers[0].clone(), table.clone()));
        handle.sleep_ns(ns).await;
        for hop in hops {
            sim.inject(Fault::Cut(*hop));
        }
        handle.sleep_ns(5 * TIMEOUT_NS).await;
        for hop in hops {
            sim.inject(Fault::Heal(*hop));
        }
        assert_nothing_is_left(&workers).await;
        let told = changing.try_take().expect("an answer in time");
        let is_committed = matches!(told, Ok(()) | Err(TxnError::NodeUnavailable { committed: true, .. }));
        let mut txn = workers[1].begin_read_only();
        let table = workers[1].node().table("person").expect("on every node");
        for of_node in [0, 1] {
            let (ann, bob) = (Some("ann".to_owned()), Some("bob".to_owned()));
            let expected = if is_committed {
                [Some("bob".repeat(500)), None, bob, Some("eve".to_owned())]
            } else {
                [ann.clone(), ann.clone(), None, ann]
            };
            for (id, expected) in [1, 3, ROWS + 1, 5].into_iter().zip(expected) {
                let found = name(&mut txn, &table, id + of_node).await.expect("a read");
                assert_eq!(found, expected, "row {}, cut after {ns} ns, told {told:?}", id + of_node);
            }
        }
        txn.commit().await.expect("a read");
        told
    })
}

/// A node has a table's record, but the message to make the table is lost. No configuration change follows that would make it look.
#[test]
fn a_table_is_made_by_a_node_that_was_cut_off_when_it_should_have_been_told() {
    let mut told = Vec::new();
    for step in 0..160 {
        let (executor, handle, sim) = machine();
        executor.run(async {
            let workers = [HOME, OTHER].map(|node| start(&sim, node, &handle));
            workers.iter().for_each(serve);
            let creating = workers[0].clone();
            let created = handle.spawn(async move { creating.create_table(definition()).await.map(drop) });
            handle.sleep_ns(step * 200).await;
            let way = Hop { from: HOME, to: OTHER };
            sim.inject(Fault::Cut(way));
            handle.sleep_ns(5 * TIMEOUT_NS).await;
            sim.inject(Fault::Heal(way));
            assert_nothing_is_left(&workers).await;
            let is_there = workers.each_ref().map(|worker| worker.node().table("person").is_some());
            assert_eq!(is_there[0], is_there[1], "cut after {} ns", step * 200);
            told.push((created.try_take().expect("an answer in time"), is_there[0]));
        });
    }
    let was_missed = |it: &&(Result<(), TxnError>, bool)| {
        matches!(it, (Err(TxnError::NodeUnavailable { committed: true, .. }), true))
    };
    assert!(told.iter().filter(was_missed).count() > 3, "{told:?}");
    assert!(told.iter().all(|(told, is_there)| *is_there || told.is_err()), "{told:?}");
}

/// Locks, reservations and rows that were on their way when a link was cut: the coordinator lives, and only it can
/// finish or release them.
#[test]
fn a_commit_that_is_cut_off_is_whole_or_not_there() {
    let (there, back) = (Hop { from: HOME, to: OTHER }, Hop { from: OTHER, to: HOME });
    for hops in [&[there][..], &[back], &[there, back]] {
        let told: Vec<_> = (0..160).map(|step| cut_after(step * 500, hops)).collect();
        let count = |of: fn(&Result<(), TxnError>) -> bool| told.iter().filter(|told| of(told)).count();
        let is_late =
            |told: &Result<(), TxnError>| matches!(told, Err(TxnError::NodeUnavailable { committed: true, .. }));
        assert!(
            count(is_late) > 3 && count(Result::is_ok) > 3 && count(Result::is_err) > count(is_late) + 3,
            "{told:?}"
        );
    }
}

/// A node has locked rows of another one and ends, and its next start cannot reach that node at first.
#[test]
fn a_start_that_others_have_not_heard_of_is_told_again() {
    let (executor, handle, sim) = machine();
    let home = start(&sim, HOME, &handle);
    executor.run(async {
        serve(&home);
        let dying = start(&sim, OTHER, &handle);
        serve(&dying);
        fill(&home).await;
        let changing = handle.spawn(change(dying.clone(), dying.node().table("person").expect("on every node")));
        while !home.node().left_behind().iter().any(|what| what.contains("locked")) {
            handle.sleep_ns(200).await;
        }
        end(&sim, &handle, OTHER).await;
        assert!(changing.try_take().is_some());
        let again = start(&sim, OTHER, &handle);
        sim.inject(Fault::Cut(Hop { from: OTHER, to: HOME }));
        assert_eq!(again.join_cluster().await, Ok(Vec::new()));
        assert_ne!(home.node().left_behind(), Vec::<String>::new());
        sim.inject(Fault::Heal(Hop { from: OTHER, to: HOME }));
        serve(&again);
        assert!(again.drain(SOON_NS).await, "it is heard");
        assert_eq!(home.node().left_behind(), Vec::<String>::new());
        std::mem::forget(dying);
    });
}

/// A node starts with empty memory while another one runs that has met it before: two starts would have the same number.
#[test]
fn a_node_whose_memory_is_lost_is_refused_until_all_have_ended() {
    let (executor, handle, sim) = machine();
    let home = start(&sim, HOME, &handle);
    executor.run(async {
        serve(&home);
        let dying = start(&sim, OTHER, &handle);
        assert_eq!(dying.join_cluster().await, Ok(vec![HOME]));
        assert_eq!(dying.join_cluster().await, Ok(vec![HOME]), "the same start once more");
        serve(&dying);
        fill(&home).await;
        end(&sim, &handle, OTHER).await;
        lose_memory(&sim, OTHER);
        for is_cut_off in [false, true] {
            end(&sim, &handle, OTHER).await;
            if is_cut_off {
                lose_memory(&sim, OTHER);
                sim.inject(Fault::Kill(OTHER));
            }
            let empty = start(&sim, OTHER, &handle);
            let way = Hop { from: OTHER, to: HOME };
            if is_cut_off {
                sim.inject(Fault::Cut(way));
                assert_eq!(empty.join_cluster().await, Ok(Vec::new()));
                assert_eq!(empty.node().refusal(), None);
                sim.inject(Fault::Heal(way));
                assert!(empty.drain(SOON_NS).await, "it is heard");
            } else {
                let refused = empty.join_cluster().await.expect_err("its numbers are an earlier start's").to_string();
                assert!(refused.contains("the memory of node 1 was lost"), "{refused}");
            }
            assert!(empty.node().refusal().is_some());
            std::mem::forget(empty);
        }
        std::mem::forget(dying);
    });
}

/// A transaction deletes more rows of another node than a message has room to name, and inserts some there.
#[test]
fn an_insert_after_many_far_deletes_names_the_rows_that_matter() {
    const COUNT: i32 = 9_000;
    let (executor, handle, sim) = machine();
    let workers = [HOME, OTHER].map(|node| start(&sim, node, &handle));
    executor.run(async {
        workers.iter().for_each(serve);
        let columns = ["home", "id", "number"].map(|name| Column::new(name, ColumnType::Int)).to_vec();
        let by_number = SecondaryIndex { name: "by_number".into(), columns: vec![0, 2], unique: true };
        let schema = Schema::new(columns, vec![0, 1]).expect("a schema");
        let definition =
            TableDef { placement: Placement::ByInteger, indexes: vec![by_number], ..TableDef::new("numbers", schema) };
        let far = workers[0].create_table(definition).await.expect("a table");
        let near = workers[1].node().table("numbers").expect("on every node");
        let row = |id: i32, number: i32| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let datums = [Datum::Int(2), Datum::Int(id), Datum::Int(number)];
            far.schema().encode_key(&datums, &mut key).expect("a key");
            far.schema().encode_value(&datums, &mut value).expect("a value");
            (key, value)
        };
        for first in (0..COUNT).step_by(500) {
            let filled = workers[1].run(Retry::never(), async |txn| {
                for id in first..first + 500 {
                    let (key, value) = row(id, id);
                    txn.insert(&near, &key, &value).await?;
                }
                Ok(())
            });
            filled.await.expect("filled");
        }
        for (replaced, number) in [(Some(2), 4), (None, COUNT)] {
            let mut txn = workers[0].begin();
            for id in 0..COUNT {
                let found = txn.get(&far, &row(id, id).0).await.expect("a read").expect("a row");
                txn.delete(found).expect("deleted");
            }
            let mut insert = async |id, number| {
                let (key, value) = row(id, number);
                txn.insert(&far, &key, &value).await.map(|_| ())
            };
            let id = replaced.unwrap_or(COUNT);
            assert_eq!(insert(id, number).await, Ok(()), "the key of one row, and the number of another");
            for (id, number) in [(id, COUNT + 1), (COUNT + 1, number)] {
                let taken = insert(id, number).await;
                assert!(matches!(taken, Err(TxnError::DuplicateKey { .. })), "{taken:?}");
            }
            let committed = txn.commit().await.map(|_| ());
            if replaced.is_some() {
                let refused = committed.expect_err("its home would have to hear of all deleted rows").to_string();
                assert!(refused.contains("deletes on another node, beside some that move"), "{refused}");
            } else {
                assert_eq!(committed, Ok(()));
            }
        }
        // The deleted rows are just leaving the indexes.
        let read = workers[0].run(Retry::default(), async |txn| {
            let found = txn.get(&far, &row(COUNT, COUNT).0).await?.map(|found| txn.value(found).to_vec());
            Ok((txn.get(&far, &row(4, 4).0).await?, found))
        });
        assert_eq!(read.await, Ok((None, Some(row(COUNT, COUNT).1))));
        assert_nothing_is_left(&workers).await;
    });
}

/// A node is stopped while another one starts twice. When it goes on, it learns of the first of these starts, and holds
/// locks of the second.
#[test]
fn a_start_releases_nothing_that_a_later_one_has_locked() {
    let (executor, handle, sim) = machine();
    let home = start(&sim, HOME, &handle.of_machine(0, 0));
    executor.run(async {
        serve(&home);
        let first = start(&sim, OTHER, &handle);
        serve(&first);
        fill(&home).await;
        end(&sim, &handle, OTHER).await;
        let second = start(&sim, OTHER, &handle);
        sim.inject(Fault::Pause(HOME, handle.now_ns() + 3 * TIMEOUT_NS));
        assert_eq!(second.join_cluster().await, Ok(Vec::new()), "it is told, and does not answer");
        sim.inject(Fault::Kill(OTHER));
        handle.sleep_ns(TIMEOUT_NS + TIMEOUT_NS / 2).await;
        let third = start(&sim, OTHER, &handle);
        let table = third.node().table("person").expect("on every node");
        // The row grows: its home gets a request past the commit point, with the old row locked, and learns of the earlier
        // start first.
        let mut txn = third.begin();
        let row = txn.get(&table, &key(&table, 1)).await.expect("by the hash index").expect("a row");
        txn.update(row, &value(&table, 1, &"bob".repeat(500))).expect("room");
        let told = txn.commit().await.map(|_| ());
        assert_eq!(told, Ok(()));
        serve(&third);
        handle.sleep_ns(SOON_NS).await;
        let mut txn = third.begin_read_only();
        assert_eq!(name(&mut txn, &table, 1).await, Ok(Some("bob".repeat(500))));
        assert_eq!(home.node().left_behind(), Vec::<String>::new());
        std::mem::forget((first, second));
    });
}

/// A request to reserve a key arrives after the next start of its node has announced itself.
#[test]
fn nothing_is_reserved_for_a_start_that_is_over() {
    let (executor, handle, sim) = machine();
    let home = start(&sim, HOME, &handle);
    executor.run(async {
        serve(&home);
        let dying = start(&sim, OTHER, &handle);
        serve(&dying);
        let table = fill(&home).await;
        let way = Hop { from: OTHER, to: HOME };
        sim.inject(Fault::Delay(way, TIMEOUT_NS / 2));
        let (inserting, there) = (dying.clone(), dying.node().table("person").expect("on every node"));
        let inserting = handle.spawn(async move {
            let mut txn = inserting.begin();
            let inserted = txn.insert(&there, &key(&there, ROWS + 1), &value(&there, ROWS + 1, "bob")).await;
            inserted.map(|_| ())
        });
        handle.sleep_ns(1_000).await;
        sim.inject(Fault::Kill(OTHER));
        sim.inject(Fault::Heal(way));
        handle.sleep_ns(1_000).await;
        let again = start(&sim, OTHER, &handle);
        assert_eq!(again.join_cluster().await, Ok(vec![HOME]));
        handle.sleep_ns(SOON_NS).await;
        assert!(inserting.try_take().is_some_and(|inserted| inserted.is_err()));
        assert_eq!(home.node().left_behind(), Vec::<String>::new());
        let mut txn = home.begin();
        assert_eq!(put(&mut txn, &table, ROWS + 1, "eve").await, Ok(()));
        txn.commit().await.expect("the key is free");
        std::mem::forget(dying);
    });
}

/// A node ends while a snapshot of another one is open, and its next start has none of the older copies that the snapshot would read. The
/// snapshot must not treat its rows as absent.
#[test]
fn a_snapshot_shows_nothing_of_a_node_s_next_start() {
    let (executor, handle, sim) = machine();
    let home = start(&sim, HOME, &handle);
    executor.run(async {
        serve(&home);
        let dying = start(&sim, OTHER, &handle);
        serve(&dying);
        let table = fill(&home).await;
        let snapshot = home.snapshot().await.expect("a snapshot");
        let tasks = home.snapshot_pages(&snapshot, &table).await.expect("pages");
        let there = dying.node().table("person").expect("on every node");
        let changed = dying.run(Retry::never(), async |txn| put(txn, &there, 2, "bob").await);
        changed.await.expect("changed");
        end(&sim, &handle, OTHER).await;
        let again = start(&sim, OTHER, &handle);
        serve(&again);
        // A transaction of the same worker meets the next start first.
        let found = home.run(Retry::default(), async |txn| name(txn, &table, 2).await);
        assert_eq!(found.await, Ok(Some("bob".to_owned())));
        let gone = Err(TxnError::Recovering { node: OTHER });
        for task in tasks {
            let scanned = home.scan_page(&snapshot, &task, &mut |_, _| {}).await;
            assert_eq!(scanned, if task.node() == OTHER { gone.clone() } else { Ok(()) });
        }
        assert_eq!(home.snapshot_pages(&snapshot, &table).await.map(|_| ()), gone);
        std::mem::forget(dying);
    });
}

/// The node that keeps the epoch starts again. Others go on with rows of their own, and access only its epoch.
#[test]
fn rows_of_one_s_own_are_written_after_the_epoch_s_keeper_has_started_again() {
    let (executor, handle, sim) = machine();
    let other = start(&sim, OTHER, &handle);
    executor.run(async {
        let dying = start(&sim, HOME, &handle);
        [&other, &dying].into_iter().for_each(serve);
        fill(&dying).await;
        let table = other.node().table("person").expect("on every node");
        let write = async |name| other.run(Retry::default(), async |txn| put(txn, &table, 2, name).await).await;
        assert_eq!(write("bob").await, Ok(()));
        end(&sim, &handle, HOME).await;
        let again = start(&sim, HOME, &handle);
        serve(&again);
        assert_eq!(write("eve").await, Ok(()));
        std::mem::forget(dying);
    });
}
