//! A node whose file system or region runs full: the transaction is refused and rolled back, the node goes on, and starts again.
//!
//! Mounts a small file system of its own, which takes root.

use crate::common::{PATIENCE_NS, join, key, look, new_dir, open, people, value};
use farhold_fabric::{Executor, Fabric};
use farhold_store::durable::power::Volatile;
use farhold_testkit::SmallDisk;
use farhold_txn::{Generation, JournalConfig, Node, NodeConfig, NodeId, ReplicationConfig, TableDef, TxnError, Worker};
use std::sync::Arc;
use tempfile::TempDir;

#[test]
fn a_full_file_system_refuses_a_transaction_and_the_node_goes_on() {
    let Some(disk) = SmallDisk::mount("size=8m,mode=0700") else { return };
    let node = open(disk.directory()); // Its region is longer than the file system.
    let executor = Executor::real(1);
    let worker: Worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(people()).await.expect("a table");
        let many = async |first: i32, count: i32| {
            let mut txn = worker.begin();
            for id in first..first + count {
                let row = value(&table, &format!("somebody {id}"), 30, "old");
                txn.insert(&table, &key(id), &row).await?;
            }
            txn.commit().await.map(|_| ())
        };
        let mut first = 0;
        let refused = loop {
            match many(first, 100).await {
                Ok(()) => first += 100,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, TxnError::OutOfMemory { node: node.id() });
        // All of the refused transaction is undone, and nothing else.
        assert_eq!(node.left_behind(), Vec::<String>::new());
        assert_eq!(table.row_count(), first as u64);
        for id in (0..first).step_by(97).chain([first - 1]) {
            assert_eq!(look(&mut worker.begin(), &table, id).await, Some((format!("somebody {id}"), 30)));
        }
        assert_eq!(look(&mut worker.begin(), &table, first).await, None);

        // Reads, deletes and changes in place go on; what a delete frees is used again.
        let mut txn = worker.begin();
        for id in 0..200 {
            let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
            if id < 100 {
                txn.delete(row).expect("deleted");
            } else {
                txn.update(row, &value(&table, &format!("somebody {id}"), 30, "new")).expect("updated");
            }
        }
        txn.commit().await.expect("committed");
        assert_eq!(look(&mut worker.begin(), &table, 50).await, None);
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(150)).await.expect("a read").expect("a row");
        assert_eq!(txn.value(row), value(&table, "somebody 150", 30, "new"));
        drop(txn);
        many(0, 100).await.expect("room again");
        assert_eq!(many(first, 100).await, Err(TxnError::OutOfMemory { node: node.id() }));
        assert_eq!(node.left_behind(), Vec::<String>::new());
    });
}

/// A full node must be able to start again with what it has: indexes are made anew from the rows, and take no more room
/// than the earlier ones.
#[test]
fn a_node_whose_region_is_full_starts_again() {
    for (disk, seed) in
        [None, Some(Volatile::default())].into_iter().flat_map(|it| (0..8).map(move |seed| (it.clone(), seed)))
    {
        let dir = new_dir();
        let mut rows = 0;
        for life in 0..3 {
            let node = start(&dir, disk.as_ref());
            let node = node.unwrap_or_else(|error| panic!("life {life}, seed {seed}, {}: {error}", disk.is_some()));
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).expect("a worker");
            let (stepped, handle) = (node.clone(), executor.handle());
            let stepping = executor.handle().spawn(async move {
                while stepped.config().journal.is_some() {
                    let _ = stepped.step_journal();
                    handle.yield_now().await;
                }
            });
            executor.run(async {
                for name in ["one", "two"] {
                    let table = match node.table(name) {
                        Some(table) => table,
                        None => worker.create_table(TableDef { name: name.into(), ..people() }).await.expect("a table"),
                    };
                    if life > 0 {
                        assert_eq!(table.row_count(), rows, "{name}");
                    }
                }
                let tables = ["one", "two"].map(|name| node.table(name).expect("a table"));
                let mut refused = Ok(());
                while refused.is_ok() {
                    let mut txn = worker.begin();
                    refused = async {
                        for table in &tables {
                            let number = table.row_count() as i32;
                            let id = (number.wrapping_mul(0x9e37_79b1_u32.cast_signed())) ^ seed;
                            let note = "x".repeat((number.wrapping_mul(7919) as usize % 90) + 3 * seed as usize);
                            let row = value(table, &format!("{id}"), number, &note);
                            txn.insert(table, &key(id), &row).await?;
                        }
                        txn.commit().await.map(|_| ())
                    }
                    .await;
                }
                assert_eq!(refused, Err(TxnError::OutOfMemory { node: node.id() }));
                rows = tables[0].row_count();
            });
            drop(stepping);
        }
    }
}

fn start(dir: &TempDir, disk: Option<&Volatile>) -> Result<Arc<Node>, TxnError> {
    let config = NodeConfig { region_bytes: 4 << 20, request_timeout_ns: PATIENCE_NS, ..NodeConfig::default() };
    let Some(disk) = disk else { return Node::open(join(dir, 0), config) };
    let journal = JournalConfig { segment_bytes: 1 << 20, threads: 2, ..JournalConfig::new(Arc::new(disk.clone())) };
    let generation = Generation::begin(&journal, NodeId(0), 1, &ReplicationConfig::default())?;
    let fabric = Fabric::join_shm(dir.path().join(generation.number().to_string()), NodeId(0)).expect("the fabric");
    Node::open_durable(fabric, NodeConfig { journal: Some(journal), ..config }, generation)
}
