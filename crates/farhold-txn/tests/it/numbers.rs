//! Counters in rows.

use crate::common::{self, Cluster, new_dir, open};
use farhold_fabric::Executor;
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_txn::{Placement, RowCounter, Table, TableDef, TxnError};
use std::collections::BTreeSet;

fn counters() -> TableDef {
    let column = |name: &str| Column { name: name.into(), data_type: ColumnType::BigInt, nullable: false };
    let columns = ["number"].iter().chain(&RowCounter::COLUMNS).map(|name| column(name)).collect();
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { placement: Placement::ByInteger, hash: false, ..TableDef::new("counters", schema) }
}

/// Used only where a word may be lost.
const PROMISE: [u8; 8] = [1; 8];

fn counter<'a>(table: &'a Table, key: &'a [u8]) -> RowCounter<'a> {
    RowCounter { table, key, promise_key: &PROMISE, first: 100, last: i64::MAX }
}

/// Each node takes blocks from counters on each node, all at the same time: also the first time, when all of them make the row.
#[test]
fn nodes_take_different_numbers() {
    for nodes in 1..=3 {
        Cluster::new(nodes).run(async |cluster| {
            cluster.workers[0].create_table(counters()).await.expect("a table");
            let takers = cluster.workers.iter().map(async |worker| {
                let table = worker.node().table("counters").expect("known everywhere");
                let mut taken = Vec::new();
                for round in 0..30 {
                    let place = key(1_i64 + round % 3);
                    let first = worker.take_numbers(counter(&table, &place), 4, 2).await.expect("numbers");
                    taken.extend((0..4).map(|n| (round % 3, first + 2 * n)));
                    worker.handle().yield_now().await;
                }
                taken
            });
            let taken = futures::future::join_all(takers).await.concat();
            let unique: BTreeSet<(i64, u64)> = taken.iter().copied().collect();
            assert_eq!(unique.len(), taken.len(), "{nodes} nodes: a number was given twice");
            // No number is missing: each counter has given a third, from its first number on.
            for of in 0..3 {
                let own: Vec<u64> = unique.iter().filter(|(counter, _)| *counter == of).map(|(_, n)| *n).collect();
                assert_eq!(own, (0..own.len() as u64).map(|n| 100 + 2 * n).collect::<Vec<_>>(), "{nodes} nodes");
            }
            cluster.assert_quiet().await;
        });
    }
}

#[test]
fn a_counter_is_set_swapped_and_lives_on() {
    let dir = new_dir();
    let executor = Executor::real(1);
    let place = key(1_i64);
    {
        let node = open(&dir);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let table = worker.create_table(counters()).await.expect("a table");
            let it = counter(&table, &place);
            assert_eq!(worker.next_number(it).await, Ok(100));
            assert_eq!(worker.take_numbers(it, 10, -3).await, Ok(100));
            assert_eq!(worker.next_number(it).await, Ok(70));
            assert_eq!(worker.set_number(it, 7).await, Ok(70));
            assert_eq!(worker.swap_number(it, 8, 9).await, Ok(7), "it is not 8");
            assert_eq!(worker.swap_number(it, 7, 9).await, Ok(7));
            assert_eq!(worker.take_numbers(it, 1, 1).await, Ok(9));
        });
        node.close();
    }
    let node = open(&dir);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = node.table("counters").expect("it was recorded");
        let it = counter(&table, &place);
        assert_eq!(worker.take_numbers(it, 1, 1).await, Ok(10), "after a restart");
        worker.drop_table(&table).await.expect("dropped");
        assert_eq!(worker.take_numbers(it, 1, 1).await, Err(TxnError::SchemaChanged));
    });
}

/// A row that another transaction made is left alone.
#[test]
fn what_is_no_counter_is_refused() {
    common::with_people(async |worker, table| {
        common::fill(&worker, &table, &[(1, "ann", 30)]).await;
        let key = common::key(1);
        let it = RowCounter { table: &table, key: &key, promise_key: &key, first: 0, last: 9 };
        assert!(matches!(worker.take_numbers(it, 1, 1).await, Err(TxnError::Corrupt { .. })));
        let mut txn = worker.begin();
        assert_eq!(common::look(&mut txn, &table, 1).await, Some(("ann".to_owned(), 30)));
    });
}
