//! A commit whose future is dropped, and a change of definitions.

use crate::common::{Cluster, PATIENCE_NS, fill, key, look, people};
use farhold_txn::{TableDef, TxnError, Worker};
use std::future::Future;
use std::pin::Pin;
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
        // The other nodes' threads may be so fast that a commit does not wait behind its commit point: it is tried again.
        let mut waits = 0;
        for years in 1000..3000 {
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
            if !ended {
                happened[usize::from(is_there)] += 1;
                waits += 1;
            } else if happened.contains(&0) {
                waits = 0;
            } else {
                break;
            }
        }
        assert!(happened[0] > 0 && happened[1] > 0, "dropped before and behind the commit point: {happened:?}");
    });
}

/// Polls it `waits` times, and then drops it. True: it has ended before.
async fn drop_after<T>(worker: &Worker, waits: u32, mut work: Pin<Box<dyn Future<Output = T> + '_>>) -> bool {
    for _ in 0..=waits {
        if std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await {
            return true;
        }
        worker.handle().yield_now().await;
    }
    false
}

/// Dropped at each of its waits in turn. What is recorded is so on all nodes, or clients would lose what they write into a
/// table that is recorded as dropped.
#[test]
fn a_table_that_nobody_waits_for_is_what_is_recorded() {
    Cluster::new(3).run(async |cluster| {
        let worker = &cluster.workers[0];
        let plain = || TableDef { indexes: Vec::new(), ..people() };
        let tables = || cluster.workers.iter().map(|worker| worker.node().table("people")).collect::<Vec<_>>();
        for is_created in [true, false] {
            let mut happened = [0; 2];
            for waits in 0.. {
                if is_created {
                    if let Some(table) = worker.node().table("people") {
                        worker.drop_table(&table).await.expect("dropped");
                    }
                } else if worker.node().table("people").is_none() {
                    worker.create_table(plain()).await.expect("a table");
                }
                let table = worker.node().table("people");
                let ended = match &table {
                    None => drop_after(worker, waits, Box::pin(worker.create_table(plain()))).await,
                    Some(table) => drop_after(worker, waits, Box::pin(worker.drop_table(table))).await,
                };
                assert!(worker.drain(PATIENCE_NS).await, "after {waits} waits: something is left to be done");
                let are_there = tables().iter().map(Option::is_some).collect::<Vec<_>>();
                let is_there = match worker.create_table(plain()).await {
                    Ok(_) => false,
                    Err(TxnError::AlreadyExists { .. }) => true,
                    Err(error) => panic!("after {waits} waits: {error}"),
                };
                assert_eq!(are_there, [is_there; 3], "after {waits} waits");
                happened[usize::from(is_there == is_created)] += 1;
                if ended {
                    break;
                }
            }
            assert!(happened[1] > 1, "dropped behind the commit point: {happened:?}");
        }
    });
}

/// The same of an index: one that is recorded as dropped is gone on all nodes.
#[test]
fn an_index_whose_drop_nobody_waits_for_is_what_is_recorded() {
    Cluster::new(3).run(async |cluster| {
        let worker = &cluster.workers[0];
        let by_age = people().indexes[1].clone();
        let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
        let mut happened = [0; 2];
        for waits in 0.. {
            if table.indexes().is_empty() {
                worker.create_index(&table, by_age.clone()).await.expect("an index");
            }
            let ended = drop_after(worker, waits, Box::pin(worker.drop_index(&table, &by_age.name))).await;
            assert!(worker.drain(PATIENCE_NS).await, "after {waits} waits: something is left to be done");
            let count = |worker: &Worker| worker.node().table("people").expect("the table").indexes().len();
            let counts = cluster.workers.iter().map(count).collect::<Vec<_>>();
            // One that is recorded as live is in the way of another of its name.
            let is_there = match worker.create_index(&table, by_age.clone()).await {
                Ok(_) => false,
                Err(TxnError::AlreadyExists { .. }) => true,
                Err(error) => panic!("after {waits} waits: {error}"),
            };
            assert_eq!(counts, [usize::from(is_there); 3], "after {waits} waits");
            happened[usize::from(!is_there)] += 1;
            if ended {
                break;
            }
        }
        assert!(happened[1] > 1, "dropped behind the commit point: {happened:?}");
    });
}
