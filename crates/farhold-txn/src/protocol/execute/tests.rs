use crate::base::definition::{Placement, TableDef};
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::base::table::Index;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::node::{Node, NodeConfig};
use crate::protocol::txn::spec::ScanSpec;
use crate::protocol::worker::Worker;
use farhold_fabric::{Executor, Fabric, NodeId, Version};
use farhold_store::row::{Column, ColumnType, Datum, Schema, SecondaryIndex};
use farhold_store::{Object, Owner};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Runs a test on `count` nodes of this process, which answer each other.
fn with_nodes(count: u8, test: impl AsyncFnOnce(&[Worker])) {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let start = |number| {
        let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
        let timeout = 60_000_000_000;
        let config =
            NodeConfig { nodes: count, region_bytes: 16 << 20, request_timeout_ns: timeout, ..NodeConfig::default() };
        Node::open(fabric, config).expect("a node").worker(&executor.handle()).expect("a worker")
    };
    let workers: Vec<Worker> = (0..count).map(start).collect();
    for worker in workers.clone() {
        drop(executor.handle().spawn(async move {
            loop {
                worker.poll();
                worker.handle().yield_now().await;
            }
        }));
    }
    executor.run(test(&workers));
    drop((executor, workers));
}

fn people(indexes: Vec<SecondaryIndex>) -> TableDef {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("age", ColumnType::Int)];
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { indexes, placement: Placement::ByInteger, ..TableDef::new("people", schema) }
}

fn key(id: u32) -> [u8; 4] {
    (id ^ 0x8000_0000).to_be_bytes()
}

fn value(age: i32) -> Vec<u8> {
    let mut value = Vec::new();
    people(Vec::new()).schema.encode_value(&[Datum::Int(0), Datum::Int(age)], &mut value).expect("a value");
    value
}

/// A row has been deleted by another node, and is still in all indexes. A transaction meets it by one of them. From the
/// other it knows that no row has its key, and must still know so at its commit.
#[test]
fn a_key_without_a_row_is_looked_for_again_at_the_commit() {
    with_nodes(1, async |workers| {
        let worker = &workers[0];
        let by_age = SecondaryIndex { name: "by_age".into(), columns: vec![1], unique: false };
        let table = worker.create_table(people(vec![by_age])).await.expect("a table");
        let mut txn = worker.begin();
        for id in 1..=1_000 {
            txn.insert(&table, &key(id), &value(id as i32)).await.expect("inserted");
        }
        txn.commit().await.expect("committed");
        let store = &worker.node().store;
        let deleted = table.0.store.lookup(&key(500)).found.expect("a row");
        let object = Object::at(store.memory(), deleted.offset());
        let version = object.lock(deleted.incarnation(), Owner::new(1, NodeId(0), 0, 99)).expect("free");
        object.restamp(version.next(store.superblock().epoch()).with(Version::ABSENT));
        object.unlock();

        let mut reader = worker.begin();
        let age = key(500);
        let spec = ScanSpec {
            index: Index::Secondary(0),
            lo: Bound::Included(&age),
            hi: Bound::Excluded(&[0x80, 0, 1, 0xf5]),
            ..ScanSpec::all()
        };
        assert!(reader.scan(&table, spec).await.expect("a scan").is_empty());
        assert!(reader.get(&table, &key(500)).await.expect("a look").is_none());
        let mut writer = worker.begin();
        writer.insert(&table, &key(500), &value(900_000)).await.expect("inserted");
        let other = writer.get(&table, &key(1)).await.expect("a look").expect("a row");
        writer.update(other, &value(1)).expect("updated");
        writer.commit().await.expect("committed");
        assert!(reader.get(&table, &key(1)).await.expect("a look").is_some(), "as the writer left it");
        assert_eq!(
            reader.commit().await.map(drop),
            Err(TxnError::Conflict),
            "it has seen one write, and not the other"
        );
    });
}

/// The keeper of the epoch starts again, and a commit finds its new region before any read of its rows does. What the worker knew of the
/// earlier region is void from then on.
#[test]
fn a_commit_that_finds_a_new_region_forgets_what_it_knew_of_the_old_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let executor = Executor::real(1);
    let start = |number| {
        let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
        let replication =
            ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
        let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
        Node::open(fabric, config).expect("a node")
    };
    let (me, keeper) = (start(0), NodeId(1));
    let other = start(1);
    let worker = me.worker(&executor.handle()).expect("a worker");
    let replication = me.replication.clone().expect("copies");
    replication.view.install(&Arc::new(Configuration { keeper, ..Configuration::first(2, 2) }), &me.catalog);
    let core = &worker.core;
    let find = || {
        let version = me.catalog.indexes_version();
        let look_again = |node, region| core.look_again(node, region);
        core.rings.borrow_mut().find(&core.endpoint, (me.id(), 0), &replication, &me.catalog, version, &look_again)
    };
    assert!(find());
    let before = core.starts_met.get();
    assert!(find() && !core.has_met_start(keeper, before), "the same region");
    drop(other);
    let _again = start(1);
    assert!(find());
    assert!(core.has_met_start(keeper, before));
    let met = core.starts_met.get();
    assert!(core.look_again(keeper, DATA) && !core.has_met_start(keeper, met), "another task has met this start");
    drop(executor);
}

/// A node has stopped, or ended, while a thread of it changed a bucket of its hash index.
#[test]
fn a_look_up_in_a_locked_bucket_ends() {
    with_nodes(2, async |workers| {
        let table = workers[0].create_table(people(Vec::new())).await.expect("a table");
        let its = (1..100).find(|id| table.0.route.home(&key(*id)) == NodeId(1)).expect("a key of node 1");
        let mut txn = workers[0].begin();
        assert!(txn.get(&table, &key(its)).await.expect("a look").is_none());
        let (home, stamp) = txn.state.buckets.as_slice().first().copied().expect("a bucket");
        assert_eq!(home, NodeId(1));
        txn.commit().await.expect("committed");
        let bucket = workers[1].node().store.memory().word(stamp.offset).expect("a word");
        bucket.fetch_or(1, SeqCst);
        assert_eq!(workers[0].begin().get(&table, &key(its)).await.map(drop), Err(TxnError::Conflict));
        bucket.fetch_and(!1, SeqCst);
        assert!(workers[0].begin().get(&table, &key(its)).await.expect("a look").is_none());
    });
}
