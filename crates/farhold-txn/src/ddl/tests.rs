mod attributes;

use super::*;
use crate::base::definition::Placement;
use crate::base::table::Index;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::cluster::view::Moment;
use crate::ddl::here::fill;
use crate::node::{Node, NodeConfig};
use crate::rpc::message::IndexStep;
use farhold_fabric::{Executor, Fabric, NodeId, Version};
use farhold_store::ObjectRef;
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_store::table::SECONDARIES_MAX;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Longer than any machine takes.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Runs a test on two nodes of this process that have a table of two integers.
fn with_two(test: impl AsyncFnOnce(&[Worker; 2], Table)) {
    with_two_served(async |workers, table, _| test(workers, table).await);
}

/// The same; what node 1 is asked it answers only while it may.
fn with_two_served(test: impl AsyncFnOnce(&[Worker; 2], Table, &Cell<bool>)) {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let workers = [0, 1].map(|number| {
        let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
        let config =
            NodeConfig { nodes: 2, region_bytes: 16 << 20, request_timeout_ns: 1_000_000_000, ..NodeConfig::default() };
        Node::open(fabric, config).expect("a node").worker(&executor.handle()).expect("a worker")
    });
    let is_served = Rc::new(Cell::new(true));
    for worker in workers.clone() {
        let is_served = is_served.clone();
        drop(executor.handle().spawn(async move {
            loop {
                if worker.core.me == NodeId(0) || is_served.get() {
                    worker.poll();
                }
                worker.handle().yield_now().await;
            }
        }));
    }
    executor.run(async {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let table = workers[0].create_table(TableDef::new("people", schema)).await.expect("a table");
        test(&workers, table, &is_served).await;
    });
    drop(executor);
    drop(workers);
}

fn by_age() -> SecondaryIndex {
    SecondaryIndex { name: "by_age".into(), columns: vec![1], unique: false }
}

/// A node starts again after it has filled an index, and before all nodes know so: it no longer has the index, and checks no
/// value.
#[test]
fn an_index_that_a_node_has_lost_is_none() {
    with_two(async |[one, two], table| {
        let (slot, recorded) = one.record_index(&table, &by_age()).await.expect("recorded");
        one.fill_everywhere(&table, slot, &recorded).await.expect("filled");
        let there = two.node().table("people").expect("the table");
        there.0.drop_index(slot);
        let recorded = one.record_live(&table, slot, 0).await;
        assert!(matches!(recorded, Err(TxnError::NotFound { .. })), "{recorded:?}");
        let slot = one.create_index(&table, by_age()).await.expect("created");
        assert_eq!(slot, Index::Secondary(1));
    });
}

/// A node learns of an index after the index was dropped, because a message was delayed. It must not keep the index for
/// ever.
#[test]
fn what_adds_an_index_comes_after_its_drop() {
    with_two(async |[one, two], table| {
        let (slot, recorded) = one.record_index(&table, &by_age()).await.expect("recorded");
        let there = two.node().table("people").expect("the table").0;
        two.core.step_index_here(&there, slot, IndexStep::Drop).expect("dropped");
        let added = two.core.add_index_here(&there, slot, &recorded, (NodeId(0), system::start(one.node())));
        assert!(matches!(added, Err(TxnError::NotFound { .. })), "{added:?}");
        assert!(there.all_keys().is_empty() && !there.has_secondary());
        assert_eq!(one.create_index(&table, by_age()).await, Ok(Index::Secondary(slot + 1)));
    });
}

/// Indexes that are created at the same time: of one name only one succeeds, and of others no more than a table may
/// have.
#[test]
fn indexes_made_at_once_keep_to_the_limits() {
    with_two(async |[one, _], table| {
        let named = |number: usize| SecondaryIndex { name: format!("i{number}"), ..by_age() };
        let begin = async |definition: SecondaryIndex| {
            let (slot, recorded) = one.record_index(&table, &definition).await.expect("none is complete");
            one.fill_everywhere(&table, slot, &recorded).await.expect("filled");
            slot
        };
        let begun = [begin(by_age()).await, begin(by_age()).await];
        one.finish_index(&table, begun[0], 0, Ok(())).await.expect("the first");
        let second = one.finish_index(&table, begun[1], 0, Ok(())).await;
        assert!(matches!(second, Err(TxnError::AlreadyExists { .. })), "{second:?}");
        let mut begun = Vec::new();
        for number in 1..=SECONDARIES_MAX {
            begun.push(begin(named(number)).await);
        }
        let last = begun.pop().expect("one more than there is room for");
        for slot in begun {
            one.finish_index(&table, slot, 0, Ok(())).await.expect("there is room");
        }
        let refused = one.finish_index(&table, last, 0, Ok(())).await;
        assert!(matches!(refused, Err(TxnError::TooMany { limit: SECONDARIES_MAX, .. })), "{refused:?}");
        let indexes = table.indexes();
        assert_eq!(indexes.iter().filter(|index| index.ready).count(), SECONDARIES_MAX);
        assert_eq!(indexes.len(), SECONDARIES_MAX, "of the others nothing is left");
    });
}

/// Nodes whose records differ, because a coordinator died in between, have the same records afterwards: tables, indexes, and numbers.
#[test]
fn records_that_differ_become_alike() {
    with_two(async |[one, two], table| {
        let system = one.system_table().expect("the system table");
        let index = one.create_index(&table, by_age()).await.expect("created");
        let definition = |name: &str| TableDef { name: name.into(), ..TableDef::new("", table.schema().clone()) };
        let bytes = |name: &str| definition(name).encode(&[]).expect("encoded");
        // Only here: a table, an index that is recorded as dropped, the last number; another's drop.
        let dropped = one.create_table(definition("dropped")).await.expect("created");
        let changed = one.run(Retry::never(), async |txn| {
            txn.copying = true;
            let (key, value) = system::encode_row(system.schema(), "new", TableId(40), &bytes("new"))?;
            txn.insert_on(NodeId(0), &system, &key, &value).await?;
            let (counter, value) = system::encode_row(system.schema(), "", TableId(40), &[])?;
            let row = txn.get(&system, &counter).await?.expect("the last number");
            txn.update(row, &value)?;
            let Index::Secondary(slot) = index else { panic!("{index:?}") };
            one.enter_drop(txn, &table, slot).await?;
            one.take_out(txn, "dropped", dropped.id()).await
        });
        changed.await.expect("changed");
        two.join_cluster().await.expect("answers");
        let is_alike = |worker: &Worker| {
            let names: Vec<String> = worker.node().tables().iter().map(|it| it.name().to_owned()).collect();
            let has_no_index = worker.node().table("people").is_some_and(|it| it.indexes().is_empty());
            names == ["people", "new"] && has_no_index && system::differences(worker.node()).is_empty()
        };
        let until_ns = one.handle().now_ns() + PATIENCE_NS;
        while !is_alike(one) || !is_alike(two) {
            let state = || [one, two].map(|it| (it.node().tables(), system::differences(it.node())));
            assert!(one.handle().now_ns() < until_ns, "{:?}", state());
            one.handle().yield_now().await;
        }
        let next = two.create_table(definition("next")).await.expect("created");
        assert_eq!(next.id(), TableId(41));
        one.drop_table(&one.node().table("next").expect("there")).await.expect("dropped");
        assert!(two.node().table("next").is_none());
        let left = one.run(Retry::never(), async |txn| {
            Ok(txn.scan(&system, crate::protocol::txn::spec::ScanSpec::all()).await?.len())
        });
        assert_eq!(left.await, Ok(3), "the last number and two tables: of the dropped ones nothing is left");
    });
}

/// The coordinator of a drop dies as soon as it has recorded it.
async fn record_drop(worker: &Worker, table: &Table, slot: u16) {
    let recorded = worker.run(Retry::default(), async |txn| worker.enter_drop(txn, table, slot).await);
    recorded.await.expect("recorded");
}

/// Node 0 starts again, from node 1's point of view.
async fn start_again(workers: &[Worker; 2]) {
    let incarnation = workers[0].node().store.incarnation() + 1;
    let hello = Request::Hello { node: NodeId(0), incarnation, birth: u64::from(incarnation), epoch: 1 };
    workers[0].core.call(NodeId(1), &hello).await.expect("heard");
}

async fn until(worker: &Worker, what: &str, is_so: impl Fn() -> bool) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    while !is_so() {
        assert!(worker.handle().now_ns() < until_ns, "{what}");
        worker.handle().yield_now().await;
    }
}

/// The coordinator of a drop dies when only node 1 knows of it. Node 0 still has the table, so it never reports the end
/// of its transactions, and the pages would be held back for ever.
#[test]
fn what_was_not_told_of_a_drop_is_asked_for() {
    with_two(async |workers, table| {
        let nodes = workers.each_ref().map(|worker| worker.node().clone());
        let id = table.id();
        let taken = workers[1].run(Retry::default(), async |txn| workers[1].take_out(txn, table.name(), id).await);
        taken.await.expect("deleted");
        drop((table, nodes[1].catalog.retire(id)));
        until(&workers[0], "node 0 still has it", || nodes[0].table_by_id(id).is_none()).await;
        let is_held = |node: &Arc<Node>| node.catalog.has_retired();
        until(&workers[0], "its pages are held back", || !nodes.iter().any(is_held)).await;
    });
}

/// A node looks for recorded changes that are not done while another change of the table is in flight: the record is odd. It looks
/// again.
#[test]
fn a_drop_is_seen_whose_record_was_just_being_written() {
    with_two(async |workers, table| {
        let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
        let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else { panic!("no index") };
        record_drop(&workers[0], &table, slot).await;
        for (worker, table) in workers.iter().zip(&tables) {
            worker.core.step_index_here(&table.0, slot, IndexStep::Close).expect("closed");
        }
        let system = workers[0].system_table().expect("it is there");
        let (key, _) = system::encode_row(system.schema(), table.name(), table.id(), &[]).expect("a key");
        let word = system.0.store.primary().get(&key).value.expect("recorded");
        let reference = farhold_store::ObjectRef::from_bits(word);
        let (node, handle) = (workers[0].node().clone(), workers[0].handle().clone());
        let version = node.store.object(reference).version();
        let version = version.next(version.epoch());
        node.store.object(reference).restamp(version.with(farhold_fabric::Version::ODD));
        drop(workers[0].handle().spawn(async move {
            handle.sleep_ns(10 * ASK_EVERY_NS).await;
            node.store.object(reference).settle(version);
        }));
        workers[0].finish_drops().await;
        let left = tables.each_ref().map(|table| (table.indexes().len(), table.0.has_secondary()));
        assert_eq!(left, [(0, false); 2]);
    });
}

/// A node that has begun to drop a table reads that the table is recorded. And a node that has missed a table has no index of it to
/// drop.
#[test]
fn a_table_that_is_going_or_gone_holds_nobody_up() {
    with_two(async |workers, table| {
        let node = workers[1].node();
        node.catalog.retire(table.id());
        assert_eq!(system::reconcile(node).map(drop), Ok(()));
        let tell = async |step| {
            let request = Request::StepIndex { table: TableId(1 << 20), slot: 0, step };
            workers[0].core.call(NodeId(1), &request).await.map(drop)
        };
        assert_eq!(tell(IndexStep::Close).await, Ok(()));
        assert_eq!(tell(IndexStep::Drop).await, Ok(()));
        assert_eq!(tell(IndexStep::Open).await, Err(TxnError::SchemaChanged));
    });
}

/// A commit that changes a replicated table holds the rows of each node's copy as well.
#[test]
fn a_commit_is_refused_whose_copies_need_more_memory_than_a_transaction_may() {
    with_two(async |workers, _| {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("body", ColumnType::Bytea)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::Replicated, ..TableDef::new("replicated", schema) };
        let table = workers[0].create_table(definition).await.expect("a table");
        let insert = async |count: i32| {
            let mut txn = workers[0].begin();
            for id in 0..count {
                let row = [Datum::Int(id), Datum::Bytea(vec![7; 50_000])];
                let (mut key, mut value) = (Vec::new(), Vec::new());
                table.schema().encode_key(&row, &mut key).expect("a key");
                table.schema().encode_value(&row, &mut value).expect("a value");
                txn.insert(&table, &key, &value).await.expect("room");
            }
            txn.commit().await
        };
        let refused = insert(12).await;
        assert!(matches!(refused, Err(TxnError::TooLarge { what: "a transaction", .. })), "{refused:?}");
        assert!(insert(8).await.is_ok(), "and nothing is left of it");
    });
}

/// Where rows have one copy a death leaves a replicated row on one node and not on the other. Every write of it makes them
/// alike; it is refused nowhere.
#[test]
fn a_write_makes_copies_alike_that_a_death_has_left_different() {
    with_two(async |workers, _| {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::Replicated, ..TableDef::new("replicated", schema) };
        let table = workers[0].create_table(definition).await.expect("a table");
        let row = |age: i32| {
            let (mut key, mut value, row) = (Vec::new(), Vec::new(), [Datum::Int(7), Datum::Int(age)]);
            table.schema().encode_key(&row, &mut key).expect("a key");
            table.schema().encode_value(&row, &mut value).expect("a value");
            (key, value)
        };
        let (key, _) = row(0);
        let lose = |node: &Node| {
            let (table, mut alloc) = (node.table("replicated").expect("it"), node.store.alloc_cache());
            let reference = ObjectRef::from_bits(table.0.store.primary().get(&key).value.expect("there"));
            let object = node.store.object(reference);
            object.restamp(object.version().next(1).with(Version::ABSENT));
            table.0.store.remove(reference, 1, &mut alloc);
        };
        let is = async |age: Option<i32>| {
            for worker in workers {
                let mut txn = worker.begin_read_only();
                let found = txn.get(&worker.node().table("replicated").expect("it"), &key).await.expect("read");
                assert_eq!(found.map(|found| txn.value(found).to_vec()), age.map(|age| row(age).1));
                txn.commit().await.expect("read");
            }
        };
        for (turn, (loser, writer)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
            let [first, changed] = [10, 20].map(|age| age + turn as i32);
            let (lost, writing) = (workers[loser].node(), &workers[writer]);
            let here = writing.node().table("replicated").expect("it");
            let insert = async |age| {
                let write = async |txn: &mut Txn| txn.insert(&here, &key, &row(age).1).await.map(drop);
                writing.run(Retry::never(), write).await
            };
            let change = async |age: Option<i32>| {
                let write = async |txn: &mut Txn| {
                    let found = txn.get(&here, &key).await?.expect("there");
                    match age {
                        Some(age) => txn.update(found, &row(age).1),
                        None => txn.delete(found),
                    }
                };
                writing.run(Retry::never(), write).await
            };
            assert_eq!(insert(first).await, Ok(()));
            lose(lost);
            let written = if loser == writer { insert(changed).await } else { change(Some(changed)).await };
            assert_eq!(written, Ok(()), "lost by {loser}, written by {writer}");
            is(Some(changed)).await;
            lose(lost);
            if loser == writer {
                assert_eq!(insert(first).await, Ok(()));
            }
            assert_eq!(change(None).await, Ok(()));
            is(None).await;
        }
    });
}

/// The coordinator of a drop dies when it has recorded it and closed the index on its own node, where it can no longer
/// be named. It may be dropped again from the other node, and each node that knows of it completes the drop. However
/// often a node closes it, writers maintain it until all nodes have closed it.
#[test]
fn a_drop_that_was_told_in_part_comes_to_its_end() {
    with_two(async |workers, table| {
        let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
        let count = || tables.each_ref().map(|table| (table.indexes().len(), table.0.has_secondary()));
        for is_retried in [true, false] {
            let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else {
                panic!("no index")
            };
            record_drop(&workers[0], &table, slot).await;
            workers[0].core.step_index_here(&table.0, slot, IndexStep::Close).expect("closed");
            assert!(workers[0].drop_index(&table, "by_age").await.is_err(), "there is none of this name here");
            assert!(tables[1].indexes()[0].ready, "it has not heard of it");
            if is_retried {
                for _ in 0..2 {
                    workers[1].step_index(&tables[1], slot, IndexStep::Close).await.expect("closed");
                    assert_eq!(count(), [(1, true); 2], "writers keep it");
                }
                workers[1].drop_everywhere(&tables[1], slot).await.expect("dropped");
            } else {
                system::reconcile(workers[1].node()).expect("definitions");
                assert!(!tables[1].indexes()[0].ready && tables[1].0.has_secondary(), "others may still read theirs");
                workers[1].finish_drops().await;
            }
            assert_eq!(count(), [(0, false); 2]);
        }
    });
}

/// The coordinator of a drop dies when all have closed the index, and starts again; rows have no copies, so no node is
/// expelled. The drop comes to its end on all nodes: a closed index goes on refusing keys that it has, and cannot be
/// named.
#[test]
fn a_drop_whose_coordinator_starts_again_comes_to_its_end() {
    with_two(async |workers, table| {
        let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
        let Ok(Index::Secondary(slot)) = workers[0].create_index(&table, by_age()).await else { panic!("no index") };
        record_drop(&workers[0], &table, slot).await;
        workers[0].step_index(&table, slot, IndexStep::Close).await.expect("closed");
        start_again(workers).await;
        let is_left = || tables.iter().any(|table| !table.indexes().is_empty() || table.0.has_secondary());
        until(&workers[0], "the index is only closed", || !is_left()).await;
    });
}

/// A node does not answer in time while an index is dropped, and is back a little later. It then learns of the drop,
/// and no node keeps the index.
#[test]
fn a_drop_that_a_node_does_not_hear_in_time_is_told_again() {
    with_two_served(async |workers, table, is_served| {
        let tables = [table.clone(), workers[1].node().table_by_id(table.id()).expect("the table")];
        let index = workers[0].create_index(&table, by_age()).await.expect("an index");
        let Index::Secondary(slot) = index else { panic!("{index}") };
        record_drop(&workers[0], &table, slot).await;
        is_served.set(false);
        let dropped = workers[0].drop_everywhere(&table, slot).await;
        assert_eq!(dropped, Err(TxnError::NodeUnavailable { node: NodeId(1), committed: true }));
        assert!(tables.iter().all(|table| table.0.has_secondary()), "node 1 may still read its index");
        is_served.set(true);
        let is_left = || tables.iter().any(|table| !table.indexes().is_empty() || table.0.has_secondary());
        until(&workers[0], "writers keep it", || !is_left()).await;
    });
}

/// The coordinator of an index dies when all have filled it, and starts again; rows have no copies. No node keeps the
/// index, and the requests of the coordinator's earlier start come too late.
#[test]
fn an_index_goes_when_its_coordinator_starts_again() {
    with_two(async |workers, table| {
        let other = workers[1].node().table_by_id(table.id()).expect("the table");
        let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
        workers[0].fill_everywhere(&table, slot, &definition).await.expect("filled");
        assert_eq!(other.0.is_filled(slot), Ok(true));
        let (slot, definition) =
            workers[0].record_index(&table, &by_age()).await.expect("one that others do not know yet");
        start_again(workers).await;
        assert!(other.indexes().is_empty() && !other.0.has_secondary());
        let all = definition.encode(&vec![Recorded::Live; definition.indexes.len()]).expect("bytes");
        let since = system::start(workers[0].node());
        let late = Request::AddIndex { table: table.id(), slot, since, definition: &all };
        let refused = workers[0].core.call(NodeId(1), &late).await;
        assert!(matches!(refused, Err(TxnError::Recovering { .. })), "{refused:?}");
        assert!(other.indexes().is_empty() && !other.0.has_secondary());
    });
}

/// While a configuration without the coordinator of an index begins, the coordinator's record may still be redone here. The index waits
/// for that, even when another node, which waits for the end of a table, makes this one read the records.
#[test]
fn an_index_waits_until_what_its_coordinator_has_recorded_is_redone() {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
    let replication = ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
    let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
    let node = Node::open(fabric, config).expect("a node");
    let worker = node.worker(&executor.handle()).expect("a worker");
    let view = &node.replication.as_ref().expect("copies").view;
    let install = |next: &Configuration| {
        view.install(&Arc::new(next.clone()), &node.catalog);
        node.present.set(next.everybody());
    };
    let (me, other) = (NodeId(0), NodeId(1));
    let alone = Configuration::first(2, 2).without(&[other], me).promoted(other, me);
    let together = alone.with_joining(other, 7).joined(other);
    let without = together.without(&[other], me);
    executor.run(async {
        install(&alone);
        view.set_lease(Moment::exactly_now(worker.handle()), PATIENCE_NS);
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
        let people = TableDef::new("people", Schema::new(columns, vec![0]).expect("a schema"));
        let table = worker.create_table(people).await.expect("a table");
        let (slot, definition) = worker.record_index(&table, &by_age()).await.expect("recorded");
        install(&together);
        worker.core.add_index_here(&table.0, slot, &definition, (other, together.number)).expect("kept");
        assert!(view.freeze(&Arc::new(without.clone()), &node.catalog));
        system::reconcile(&node).expect("definitions");
        assert_eq!(table.indexes().len(), 1, "it may be recorded as complete");
        install(&without);
        system::reconcile(&node).expect("definitions");
        assert!(table.indexes().is_empty(), "it is not");
    });
    drop((worker, node, executor));
}

/// A joining node is asked to make a table, and about a table that it does not have, before it has received the table of tables.
#[test]
fn a_node_that_is_joining_goes_by_its_records() {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
    let replication = ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
    let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
    let node = Node::open(fabric, config).expect("a node");
    let view = &node.replication.as_ref().expect("copies").view;
    let install = |next: &Configuration| view.install(&Arc::new(next.clone()), &node.catalog);
    let (me, other) = (NodeId(0), NodeId(1));
    let joining = Configuration::first(2, 2).without(&[me], other).promoted(me, other).with_joining(me, 7);
    let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
    let definition = TableDef::new("people", schema).encode(&[]).expect("bytes");
    let worker = node.worker(&executor.handle()).expect("a worker");
    // It got the request just before it joined.
    system::make(&node, TableId(98), &definition).expect("there is room");
    install(&joining);
    assert_eq!(system::make(worker.node(), TableId(99), &definition), Ok(()));
    assert!(
        node.catalog.by_id(TableId(99)).is_none(),
        "its record is still to come, and may say something else by then"
    );
    system::reconcile(&node).expect("definitions");
    assert!(node.catalog.by_id(TableId(98)).is_some(), "its record may be still to come");
    assert_eq!(system::reconcile_all(&node), Ok(true));
    assert!(node.catalog.by_id(TableId(98)).is_none(), "its drop was not told here");
    system::add(&node, TableId(97), &definition).expect("there is room");
    worker.core.forget_everybody();
    assert!(node.catalog.even_dropped(TableId(97)).is_none() && node.catalog.by_id(system::ID).is_some());
    system::add(&node, TableId(97), &definition).expect("it has never been");
    drop((worker, node, executor));
}

/// A node joins when a table is already recorded as dropped. It never had the table, but mirrors rows of it: from
/// records, and from a node that filled the mirror before it knew of the drop. It forgets these rows when the others
/// release the table.
#[test]
fn a_table_that_is_let_go_is_forgotten_by_a_node_that_never_had_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let together = Configuration::first(2, 2);
    let workers = [0, 1].map(|number| {
        let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
        let replication = ReplicationConfig { replicas: 2, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
        let node = Node::open(fabric, config).expect("a node");
        let worker = node.worker(&executor.handle()).expect("a worker");
        let replication = node.replication.as_ref().expect("copies");
        replication.view.install(&Arc::new(together.clone()), &node.catalog);
        replication.view.set_lease(Moment::exactly_now(worker.handle()), PATIENCE_NS);
        node.present.set(together.everybody());
        replication.applier().begin_mirrors(&together, NodeId(number));
        worker
    });
    for worker in workers.clone() {
        drop(executor.handle().spawn(async move {
            loop {
                worker.poll();
                worker.handle().yield_now().await;
            }
        }));
    }
    executor.run(async {
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let definition = TableDef::new("people", schema).encode(&[]).expect("bytes");
        let (node, id) = (workers[0].node(), TableId(99));
        system::add(node, id, &definition).expect("there is room");
        let applier = || workers[1].node().replication.as_ref().expect("copies").applier();
        let (reference, version) = (farhold_store::ObjectRef::new(64, 1), farhold_fabric::Version::ONE);
        let version = farhold_fabric::Version(version);
        applier().mirror(NodeId(0)).expect("begun").take(reference, version, id, b"key!", b"value");
        assert!(applier().tables().contains(&id));
        node.catalog.retire(id);
        until(&workers[0], "its rows are kept", || applier().tables().is_empty()).await;
        assert!(!node.catalog.has_retired());
    });
    drop(executor);
    drop(workers);
}

/// A thread that makes a recorded table is delayed until another thread, which found no table here, has taken the
/// record back. Nothing would take the table out of use any more.
#[test]
fn a_table_whose_record_is_gone_is_not_made() {
    with_two(async |workers, table| {
        let node = workers[1].node();
        let definition = TableDef { name: "gone".into(), ..table.definition() };
        let bytes = definition.encode(&[]).expect("bytes");
        system::make(node, TableId(99), &bytes).expect("there is room");
        assert!(node.table("gone").is_none() && node.table("people").is_some());
    });
}

/// The task that fills an index ends before the index is full. The coordinator gets an error; otherwise it would ask
/// for ever.
#[test]
fn an_index_whose_filler_ends_early_is_refused() {
    with_two(async |workers, table| {
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(1), Datum::Int(30)], &mut value).expect("a value");
        let filled = workers[0].run(Retry::never(), async |txn| {
            for id in 1..=16_u32 {
                txn.insert(&table, &(id ^ 0x8000_0000).to_be_bytes(), &value).await?;
            }
            Ok(())
        });
        filled.await.expect("rows");
        let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
        let coordinator = (NodeId(0), system::start(workers[0].node()));
        workers[0].core.add_index_here(&table.0, slot, &definition, coordinator).expect("kept");
        table.0.begin_filling(slot).expect("begun");
        let mut filling = Box::pin(fill(table.clone(), slot, workers[0].handle().clone()));
        assert!(futures::poll!(&mut filling).is_pending() && table.0.is_filled(slot) == Ok(false));
        drop(filling);
        assert!(matches!(table.0.is_filled(slot), Err(TxnError::Corrupt { .. })));
    });
}

/// An index whose coordinator has died is removed, unless it is recorded as complete; then it is opened.
#[test]
fn an_index_whose_coordinator_is_gone_is_what_is_recorded() {
    with_two(async |workers, table| {
        let state = || table.indexes().first().map(|index| index.ready);
        for recorded in [Recorded::Begun, Recorded::Live] {
            let (slot, definition) = workers[0].record_index(&table, &by_age()).await.expect("recorded");
            let all = vec![recorded; usize::from(slot) + 1];
            workers[0].fill_everywhere(&table, slot, &definition).await.expect("filled");
            assert_eq!(table.0.orphans(&|_| true), []);
            table.0.follow(&all, &[]);
            assert_eq!(state(), Some(recorded == Recorded::Live), "its coordinator goes on");
            let orphans = table.0.orphans(&|_| false);
            assert_eq!(orphans.is_empty(), recorded == Recorded::Live);
            table.0.follow(&all, &orphans);
            assert_eq!(state(), (recorded == Recorded::Live).then_some(true));
        }
    });
}
