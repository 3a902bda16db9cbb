//! A node whose file system runs full: the transaction is refused and rolled back, the node goes on.
//!
//! Mounts a small file system of its own, which takes root; says so and passes elsewhere.

use crate::common::{Dir, key, look, open, people, value};
use farhold_fabric::Executor;
use farhold_txn::{TxnError, Worker};
use std::process::Command;

/// A mounted file system that goes with the test.
struct Mount(Dir);

impl Mount {
    /// `None` if mounting is not permitted here.
    fn new(size: &str) -> Option<Self> {
        let dir = Dir::new();
        std::fs::create_dir_all(&dir.0).expect("a directory");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", size, "farhold-test"]).arg(&dir.0).output();
        if mount.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        println!("SKIPPED: mounting a small tmpfs is not permitted here (it takes root)");
        None
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).output();
    }
}

#[test]
fn a_full_file_system_refuses_a_transaction_and_the_node_goes_on() {
    let Some(mount) = Mount::new("size=8m,mode=0700") else { return };
    let node = open(&mount.0); // Its region is longer than the file system.
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
