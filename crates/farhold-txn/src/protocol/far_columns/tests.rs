use super::*;
use crate::base::definition::TableDef;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::durability::JournalConfig;
use crate::durability::open::Generation;
use crate::node::{Node, NodeConfig};
use farhold_fabric::provider::sim::{Faults, Rdma, Sim};
use farhold_fabric::{Executor, Fabric};
use farhold_store::column::copy::{ColumnCopy, CopyConfig, Kept};
use farhold_store::column::memory::ColumnMemory;
use farhold_store::durable::power::Volatile;
use farhold_store::row::{Column, ColumnType};

/// The snapshots of a node that leaves are closed while the configuration changes, and its process may read for a moment longer. Until
/// the next configuration begins, nothing that it may read is used again.
#[test]
fn nothing_is_freed_while_the_configuration_changes() {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
    let replication = ReplicationConfig { replicas: 2, rings: 3, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
    let config = NodeConfig { nodes: 2, region_bytes: 16 << 20, replication, ..NodeConfig::default() };
    let node = Node::open(fabric, config).expect("a node");
    let region = RegionMemory::anonymous(FarPtr::new(NodeId(0), COLUMNS, 0), 1 << 20).expect("memory");
    let memory = ColumnMemory::new(Arc::new(region));
    let view = &node.replication.as_ref().expect("copies").view;
    let founded = Configuration::first(2, 2);
    view.install(&Arc::new(founded.clone()), &node.catalog);
    let used_after_dropping_some = || {
        drop(memory.store([&[1; 100][..]]).expect("room"));
        node.reclaim_columns(&memory);
        memory.statistics().held_bytes
    };
    assert_eq!(used_after_dropping_some(), 0);
    let without = Arc::new(founded.without(&[NodeId(1)], NodeId(0)));
    assert!(view.freeze(&without, &node.catalog));
    assert_eq!(used_after_dropping_some(), 128);
    view.install(&without, &node.catalog);
    assert_eq!(used_after_dropping_some(), 0);
}

#[test]
fn answers_come_back() {
    let reasons = NoColumns::EXAMPLES.map(ViewAnswer::None);
    let there = ViewAnswer::There { incarnation: 7, offset: 1 << 40, bytes: 99 };
    for answer in reasons.into_iter().chain([there, ViewAnswer::Coming { complete: 8 }]) {
        let mut w = Writer::default();
        answer.encode(&mut w);
        assert_eq!(ViewAnswer::decode(&mut Reader(&w.0)), Ok(answer));
        for len in 0..w.0.len() {
            assert!(ViewAnswer::decode(&mut Reader(&w.0[..len])).is_err());
        }
    }
    assert!(ViewAnswer::decode(&mut Reader(&[2, 77, 0, 0, 0, 0])).is_err());
}

/// A copy without rows that nothing ever brings further, as if its thread had no processor.
fn add_copy_that_stays_behind(node: &Node, table: &Table) {
    let feed = node.column_feed().expect("a journal");
    let copy = ColumnCopy::new(table.schema(), Kept::All, CopyConfig::default(), feed.memory().expect("a region"));
    copy.install(copy.build(), 0).expect("no rows");
    feed.set_applied(true);
    assert!(feed.add(table.id(), Arc::new(copy), 0));
}

/// Three nodes are behind with two tables, each for as long as a query waits for it. The query waits for all of them together that long, and
/// not six times. What the nodes have answered is in the order of tables and nodes.
#[test]
fn nodes_that_are_behind_are_waited_for_at_the_same_time() {
    const NODES: u8 = 4;
    const WITHOUT: NodeId = NodeId(2);
    let executor = Executor::virtual_time(1);
    let handle = executor.handle();
    let (sim, disk) = (Sim::new(&handle, Rdma, Faults::default()), Volatile::default());
    let workers: Vec<Worker> = (0..NODES)
        .map(|number| {
            let fabric = sim.join(NodeId(number)).expect("a fabric");
            let journal = JournalConfig { threads: 1, ..JournalConfig::new(Arc::new(disk.clone())) };
            let generation = Generation::begin(&journal, NodeId(number), NODES, &ReplicationConfig::default());
            let config = NodeConfig {
                nodes: NODES,
                region_bytes: 8 << 20,
                columns_bytes_max: 1 << 20,
                journal: Some(journal),
                ..NodeConfig::default()
            };
            let node = Node::open_durable(fabric, config, generation.expect("a start")).expect("a node");
            node.worker(&handle).expect("a worker")
        })
        .collect();
    for worker in &workers {
        let (keeper, server) = (worker.clone(), worker.clone());
        drop(handle.spawn(async move { keeper.keep_journal().await }));
        drop(handle.spawn(async move {
            loop {
                server.serve(1_000_000, 64).await;
            }
        }));
    }
    executor.run(async {
        let has_all = |worker: &Worker| worker.node().journaling.as_ref().is_some_and(|it| it.unknown().is_empty());
        while !workers.iter().all(has_all) {
            handle.sleep_ns(1_000_000).await;
        }
        let mut tables = Vec::new();
        for name in ["one", "other"] {
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let definition = TableDef { columns: KeptColumns::All, ..TableDef::new(name, schema) };
            tables.push(workers[0].create_table(definition).await.expect("a table"));
        }
        for node in workers[1..].iter().map(Worker::node) {
            for table in &tables {
                if (node.id(), table.name()) != (WITHOUT, "other") {
                    add_copy_that_stays_behind(node, &node.table(table.name()).expect("it has been told"));
                }
            }
        }
        let snapshot = Arc::new(workers[0].snapshot().await.expect("a snapshot"));
        let began_ns = handle.now_ns();
        let found = workers[0].columns_of_tables(&snapshot, &[&tables[0], &tables[1]]).await;
        let waited_ns = handle.now_ns() - began_ns;
        assert!((COMING_NS_MAX..2 * COMING_NS_MAX).contains(&waited_ns), "{waited_ns}");
        for (table, found) in tables.iter().zip(found) {
            let found: Vec<_> = found.into_iter().map(|(node, found)| (node, found.err())).collect();
            let reason = |node| match node {
                NodeId(0) => NoColumns::Building,
                WITHOUT if table.name() == "other" => NoColumns::Building,
                _ => NoColumns::Behind(0),
            };
            let expected: Vec<_> = (0..NODES).map(NodeId).map(|node| (node, Some(reason(node)))).collect();
            assert_eq!(found, expected, "{}", table.name());
        }
    });
    drop((executor, workers));
}
