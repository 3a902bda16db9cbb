//! A commit whose future is dropped.

mod common;

use common::{Cluster, PATIENCE_NS, fill, key, look, people};
use farhold_txn::TableDef;
use std::future::Future;
use std::task::Poll;

#[test]
fn a_commit_that_nobody_waits_for_happens_wholly_or_not_at_all() {
    // Dropped at each of its waits in turn, on both sides of the commit point: index entries on two other nodes move.
    Cluster::new(3).run(async |cluster| {
        let worker = &cluster.workers[0];
        let definition = TableDef { indexes: vec![people().indexes[1].clone()], ..people() };
        let table = worker.create_table(definition).await.expect("a table");
        fill(worker, &table, &[(1, "ann", 1), (2, "bob", 2), (3, "cid", 3)]).await;
        let age = table.layout().i32("age").expect("a column");
        let (mut happened, mut before) = ([0; 2], vec![1, 2, 3]);
        for waits in 0.. {
            let years = 1000 + waits;
            let mut txn = worker.begin();
            for id in 1..=3 {
                let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
                age.set(txn.value_mut(row), years);
            }
            let mut commit = Box::pin(txn.commit());
            let mut ended = false;
            for _ in 0..=waits {
                ended = std::future::poll_fn(|cx| Poll::Ready(commit.as_mut().poll(cx).is_ready())).await;
                if ended {
                    break;
                }
                worker.handle().yield_now().await;
            }
            drop(commit);
            // What goes on behind it: the rest of the commit, or the freeing of its locks.
            assert!(worker.drain(PATIENCE_NS).await, "after {waits} waits: something is left to be done");
            cluster.assert_quiet().await;
            let mut txn = worker.begin();
            let mut ages = Vec::new();
            for id in 1..=3 {
                ages.push(look(&mut txn, &table, id).await.expect("a row").1);
            }
            txn.commit().await.expect("nobody else writes");
            let is_there = ages == [years; 3];
            assert!(is_there || ages == before, "after {waits} waits: {ages:?}");
            before = ages;
            assert!(is_there || !ended);
            if ended {
                break;
            }
            happened[usize::from(is_there)] += 1;
        }
        assert!(happened[0] > 0 && happened[1] > 0, "dropped before and behind the commit point: {happened:?}");
    });
}
