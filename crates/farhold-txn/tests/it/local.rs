//! Transactions of one node: what each operation does, alone and against another transaction.

use crate::common::{AGE, NAME, aged, fill, ids, index_key, key, look, new_dir, open, people, put, value, with_people};
use farhold_fabric::Executor;
use farhold_store::row::Datum;
use farhold_txn::{HomeAgent, Index, ScanSpec, TxnError};
use std::cell::Cell;
use std::ops::Bound;
use std::rc::Rc;

#[test]
fn a_transaction_sees_its_own_writes_and_others_see_them_after_the_commit() {
    with_people(async |worker, table| {
        let mut txn = worker.begin();
        put(&mut txn, &table, 1, "ann", 30).await.expect("inserted");
        assert_eq!(look(&mut txn, &table, 1).await, Some(("ann".into(), 30)));
        assert_eq!(look(&mut worker.begin(), &table, 1).await, None);
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        assert_eq!(look(&mut txn, &table, 1).await, Some(("ann".into(), 30)));
        let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        txn.update(row, &value(&table, "ann", 31, "")).expect("updated");
        assert_eq!(look(&mut txn, &table, 1).await, Some(("ann".into(), 31)));
        assert_eq!(look(&mut worker.begin(), &table, 1).await, Some(("ann".into(), 30)));
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted");
        assert_eq!(look(&mut txn, &table, 1).await, None);
        txn.commit().await.expect("committed");
        assert_eq!(look(&mut worker.begin(), &table, 1).await, None);
        assert_eq!(table.row_count(), 0);
    });
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    with_people(async |worker, table| {
        let mut txn = worker.begin();
        put(&mut txn, &table, 1, "ann", 30).await.expect("inserted");
        txn.abort();
        assert_eq!(table.row_count(), 0);
        fill(&worker, &table, &[(1, "bob", 20)]).await;
        assert_eq!(look(&mut worker.begin(), &table, 1).await, Some(("bob".into(), 20)));
    });
}

#[test]
fn of_two_increments_one_is_refused() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30)]).await;
        let (mut one, mut two) = (worker.begin(), worker.begin());
        for txn in [&mut one, &mut two] {
            let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
            let age = table.layout().i32("age").expect("a column");
            let value = txn.value_mut(row);
            age.set(value, age.get(value) + 1);
        }
        one.commit().await.expect("first");
        assert_eq!(two.commit().await, Err(TxnError::Conflict));
        assert_eq!(look(&mut worker.begin(), &table, 1).await, Some(("ann".into(), 31)));
    });
}

#[test]
fn write_skew_is_refused() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 1), (2, "bob", 1)]).await;
        let (mut one, mut two) = (worker.begin(), worker.begin());
        for (txn, writes) in [(&mut one, 1), (&mut two, 2)] {
            for id in [1, 2] {
                let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
                if id == writes {
                    let _ = txn.value_mut(row);
                }
            }
        }
        one.commit().await.expect("first");
        assert_eq!(two.commit().await, Err(TxnError::Conflict));
    });
}

#[test]
fn a_phantom_is_refused() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30)]).await;
        let (mut one, mut two) = (worker.begin(), worker.begin());
        for (txn, id, name) in [(&mut one, 10, "x"), (&mut two, 20, "y")] {
            assert_eq!(ids(txn, &table, ScanSpec::all()).await, [1]);
            put(txn, &table, id, name, 5).await.expect("inserted");
        }
        // The second to insert has moved the other's leaf, so at most one of the two commits.
        let committed = [one.commit().await.is_ok(), two.commit().await.is_ok()];
        assert!(committed.iter().filter(|ok| **ok).count() <= 1, "{committed:?}");
        let mut none = worker.begin_read_only();
        assert_eq!(look(&mut none, &table, 99).await, None);
        assert_eq!(look(&mut none, &table, 1).await, Some(("ann".into(), 30)));
        fill(&worker, &table, &[(99, "zoe", 9)]).await;
        assert_eq!(none.commit().await, Err(TxnError::Conflict), "99 is there now");
    });
}

#[test]
fn its_own_inserts_do_not_disturb_its_scans() {
    with_people(async |worker, table| {
        let mut txn = worker.begin();
        for id in 0..200 {
            assert_eq!(
                ids(&mut txn, &table, ScanSpec::all().descending().limit(1)).await.first(),
                (id > 0).then_some(&(id - 1))
            );
            put(&mut txn, &table, id, &format!("n{id}"), id).await.expect("inserted");
        }
        txn.commit().await.expect("nobody else was there");
        assert_eq!(table.row_count(), 200);
    });
}

#[test]
fn duplicate_keys_are_named_and_the_transaction_goes_on() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30)]).await;
        let mut txn = worker.begin();
        let duplicate = |index| Err(TxnError::DuplicateKey { table: table.id(), index });
        assert_eq!(put(&mut txn, &table, 1, "bob", 1).await, duplicate(Index::Primary));
        assert_eq!(put(&mut txn, &table, 2, "ann", 1).await, duplicate(NAME));
        put(&mut txn, &table, 2, "bob", 1).await.expect("inserted");
        assert_eq!(put(&mut txn, &table, 2, "cid", 1).await, duplicate(Index::Primary));
        assert_eq!(put(&mut txn, &table, 3, "bob", 1).await, duplicate(NAME));
        txn.commit().await.expect("committed");
        assert_eq!(ids(&mut worker.begin(), &table, ScanSpec::all()).await, [1, 2]);
    });
}

/// A transaction whose reads are outdated has lost to another, and gets a conflict. The key in its way belongs to a row
/// that it has changed, or has not found; when it runs again, the key may be free.
#[test]
fn a_transaction_that_has_lost_is_not_told_of_duplicates() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 40)]).await;
        let mut swap = worker.begin();
        let bob = swap.get(&table, &key(2)).await.expect("a read").expect("a row");
        let ann = swap.get(&table, &key(1)).await.expect("a read").expect("a row");
        // The age is indexed, so the row is another object afterwards, with the same name.
        let mut other = worker.begin();
        let row = other.get(&table, &key(1)).await.expect("a read").expect("a row");
        other.update(row, &value(&table, "ann", 31, "")).expect("updated");
        other.commit().await.expect("committed");
        swap.update(bob, &value(&table, "ann", 40, "")).expect("updated");
        swap.update(ann, &value(&table, "bob", 30, "")).expect("updated");
        assert_eq!(swap.commit().await, Err(TxnError::Conflict));

        let mut late = worker.begin();
        assert_eq!(look(&mut late, &table, 3).await, None);
        fill(&worker, &table, &[(3, "cid", 50)]).await;
        assert_eq!(put(&mut late, &table, 3, "cid", 50).await, Err(TxnError::Conflict));
        let refused = put(&mut worker.begin(), &table, 3, "cid", 50).await;
        assert_eq!(refused, Err(TxnError::DuplicateKey { table: table.id(), index: Index::Primary }));
    });
}

#[test]
fn a_key_that_somebody_inserts_is_a_conflict_until_he_ends() {
    with_people(async |worker, table| {
        let mut first = worker.begin();
        put(&mut first, &table, 1, "ann", 30).await.expect("inserted");
        let mut second = worker.begin();
        assert_eq!(put(&mut second, &table, 1, "bob", 1).await, Err(TxnError::Conflict));
        assert_eq!(second.commit().await, Err(TxnError::Conflict), "nothing can be built on it");
        first.abort();
        fill(&worker, &table, &[(1, "bob", 1)]).await;
    });
}

#[test]
fn delete_then_insert_of_one_key_is_an_update() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 40)]).await;
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted");
        assert_eq!(look(&mut txn, &table, 1).await, None);
        put(&mut txn, &table, 1, "eve", 31).await.expect("inserted");
        assert_eq!(look(&mut txn, &table, 1).await, Some(("eve".into(), 31)));
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [1, 2]);
        let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted again");
        put(&mut txn, &table, 1, "ann", 32).await.expect("inserted again");
        put(&mut txn, &table, 3, "eve", 33).await.expect("eve is free again");
        let duplicate = |index| Err(TxnError::DuplicateKey { table: table.id(), index });
        assert_eq!(put(&mut txn, &table, 1, "x", 1).await, duplicate(Index::Primary), "its own insert");
        assert_eq!(put(&mut txn, &table, 9, "ann", 1).await, duplicate(NAME), "its own insert");
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().index(NAME)).await, [1, 2, 3]);
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        assert_eq!(look(&mut txn, &table, 1).await, Some(("ann".into(), 32)));
        assert_eq!(look(&mut txn, &table, 3).await, Some(("eve".into(), 33)));
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().index(NAME)).await, [1, 2, 3]);
        assert_eq!(aged(&mut txn, &table, 30).await, [0; 0]);
        assert_eq!(table.row_count(), 3);
    });
}

#[test]
fn a_unique_key_passes_from_a_deleted_row_to_another() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30)]).await;
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted");
        put(&mut txn, &table, 2, "ann", 1).await.expect("the name is free");
        let ann = index_key(&table, NAME, Datum::Text("ann".into()));
        let found = txn.get_by(&table, NAME, &ann).await.expect("a read").expect("a row");
        assert_eq!(txn.key(found), &*key(2));
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        let found = txn.get_by(&table, NAME, &ann).await.expect("a read").expect("a row");
        assert_eq!(txn.key(found), &*key(2));
    });
}

/// Rows move in the order in which they were read, which is not the order in which their keys become free.
#[test]
fn rows_may_trade_unique_keys() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 40)]).await;
        let mut txn = worker.begin();
        for (id, name) in [(2, "ann"), (1, "bob")] {
            let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
            txn.update(row, &value(&table, name, id, "")).expect("updated");
        }
        txn.commit().await.expect("both names are there once");
        let mut txn = worker.begin();
        assert_eq!(look(&mut txn, &table, 1).await, Some(("bob".into(), 1)));
        assert_eq!(look(&mut txn, &table, 2).await, Some(("ann".into(), 2)));
        let ann = index_key(&table, NAME, Datum::Text("ann".into()));
        let found = txn.get_by(&table, NAME, &ann).await.expect("a read").expect("a row");
        assert_eq!(txn.key(found), &*key(2));
    });
}

#[test]
fn a_row_outgrows_its_slot_and_changes_its_keys() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 40), (3, "cid", 40)]).await;
        let long = "long ".repeat(100);
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(2)).await.expect("a read").expect("a row");
        txn.update(row, &value(&table, "ann2", 30, &long)).expect("updated");
        assert_eq!(aged(&mut txn, &table, 30).await, [1, 2], "under its new key, before the commit");
        assert_eq!(aged(&mut txn, &table, 40).await, [3]);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().index(AGE).descending().limit(2)).await, [3, 2]);
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        assert_eq!(look(&mut txn, &table, 2).await, Some(("ann2".into(), 30)));
        assert_eq!(aged(&mut txn, &table, 30).await, [1, 2]);
        assert_eq!(aged(&mut txn, &table, 40).await, [3]);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [1, 2, 3]);
        let bob = index_key(&table, NAME, Datum::Text("bob".into()));
        assert!(txn.get_by(&table, NAME, &bob).await.expect("a read").is_none());
        txn.commit().await.expect("reads");
    });
}

#[test]
fn a_reader_of_a_row_that_moves_is_refused() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30)]).await;
        let mut reader = worker.begin();
        assert_eq!(look(&mut reader, &table, 1).await, Some(("ann".into(), 30)));
        let mut writer = worker.begin();
        let row = writer.get(&table, &key(1)).await.expect("a read").expect("a row");
        writer.update(row, &value(&table, "ann", 30, &"x".repeat(1000))).expect("updated");
        writer.commit().await.expect("moved");
        put(&mut reader, &table, 2, "bob", 1).await.expect("inserted");
        assert_eq!(reader.commit().await, Err(TxnError::Conflict));
    });
}

#[test]
fn savepoints_take_back_writes_but_not_reads() {
    with_people(async |worker, table| {
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 40)]).await;
        let age = table.layout().i32("age").expect("a column");
        let mut txn = worker.begin();
        let ann = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
        age.set(txn.value_mut(ann), 31);
        let before = txn.savepoint();
        age.set(txn.value_mut(ann), 32);
        let bob = txn.get(&table, &key(2)).await.expect("a read").expect("a row");
        txn.delete(bob).expect("deleted");
        put(&mut txn, &table, 3, "cid", 50).await.expect("inserted");
        let inner = txn.savepoint();
        put(&mut txn, &table, 2, "bob", 41).await.expect("inserted");
        txn.rollback_to(inner);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [1, 3]);
        txn.rollback_to(before);
        assert_eq!(age.get(txn.value(ann)), 31);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [1, 2]);
        put(&mut txn, &table, 3, "cid", 51).await.expect("inserted again");
        txn.rollback_to(before);
        put(&mut txn, &table, 4, "dan", 60).await.expect("inserted");
        txn.commit().await.expect("committed");
        let mut txn = worker.begin();
        assert_eq!(look(&mut txn, &table, 1).await, Some(("ann".into(), 31)));
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [1, 2, 4]);
        assert_eq!(table.row_count(), 3);
    });
}

#[test]
fn scans_have_bounds_order_and_limit() {
    with_people(async |worker, table| {
        let rows: Vec<_> = (0..100).map(|id| (id, format!("p{id:03}"), id / 10)).collect();
        let rows: Vec<_> = rows.iter().map(|(id, name, age)| (*id, name.as_str(), *age)).collect();
        fill(&worker, &table, &rows).await;
        let mut txn = worker.begin_read_only();
        let (lo, hi) = (key(20), key(25));
        assert_eq!(ids(&mut txn, &table, ScanSpec::range(&lo, &hi)).await, [20, 21, 22, 23, 24]);
        assert_eq!(ids(&mut txn, &table, ScanSpec::range(&lo, &hi).descending().limit(2)).await, [24, 23]);
        let after = ScanSpec { lo: Bound::Excluded(&lo), hi: Bound::Included(&hi), ..ScanSpec::all() };
        assert_eq!(ids(&mut txn, &table, after.limit(3)).await, [21, 22, 23]);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().limit(0)).await, [0; 0]);
        assert_eq!(aged(&mut txn, &table, 3).await, (30..40).collect::<Vec<_>>());
        txn.commit().await.expect("unchanged");
    });
}

/// A scan of 200,000 rows kept its thread busy, and with it every connection on that thread, until the scan had ended.
#[test]
fn a_long_scan_lets_others_run_and_can_be_stopped() {
    with_people(async |worker, table| {
        let rows: Vec<_> = (0..5_000).map(|id| (id, format!("p{id}"), id % 7)).collect();
        fill(&worker, &table, &rows).await;
        let turns = Rc::new(Cell::new(0));
        let others = Rc::clone(&turns);
        let handle = worker.handle().clone();
        let neighbour = async move {
            loop {
                others.set(others.get() + 1);
                handle.yield_now().await;
            }
        };
        drop(worker.handle().spawn(neighbour));
        let mut txn = worker.begin_read_only();
        let before = turns.get();
        assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, (0..5_000).collect::<Vec<_>>());
        let by_primary = turns.get() - before;
        assert!(by_primary >= 4, "the others had {by_primary} turns");
        let before = turns.get();
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().descending().limit(3_000)).await.len(), 3_000);
        assert_eq!(ids(&mut txn, &table, ScanSpec::all().index(NAME)).await.len(), 5_000);
        assert!(turns.get() - before >= 6);

        let asked = Cell::new(0);
        let twice = || {
            asked.set(asked.get() + 1);
            asked.get() <= 2
        };
        let some = txn.scan_while(&table, ScanSpec::all(), &twice).await.expect("a part");
        assert!(some.len() < 5_000 && asked.get() == 3, "{} rows", some.len());
        txn.commit().await.expect("unchanged");
    });
}

#[test]
fn read_only_transactions_refuse_writes_and_bad_keys_are_errors() {
    with_people(async |worker, table| {
        let mut txn = worker.begin_read_only();
        assert_eq!(put(&mut txn, &table, 1, "ann", 1).await, Err(TxnError::ReadOnly));
        assert!(matches!(txn.get(&table, b"abc").await, Err(TxnError::Row(_))));
        let huge = vec![0; 70_000];
        let mut txn = worker.begin();
        assert!(matches!(txn.insert(&table, &key(1), &huge).await, Err(TxnError::TooLarge { .. })));
        assert!(matches!(txn.insert(&table, &key(1), &[1, 2, 3]).await, Err(TxnError::Row(_))));
        assert!(matches!(
            txn.scan(&table, ScanSpec::all().index(Index::Secondary(9))).await,
            Err(TxnError::NotFound { .. })
        ));
        txn.commit().await.expect("nothing happened");
        assert_eq!(table.row_count(), 0);
    });
}

#[test]
fn tables_are_there_again_after_a_restart() {
    let dir = new_dir();
    for start in 0..3 {
        let node = open(&dir);
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            if start == 0 {
                worker.create_table(people()).await.expect("a table");
            }
            let table = worker.node().table("people").expect("the table");
            assert!(matches!(worker.create_table(people()).await, Err(TxnError::AlreadyExists { .. })));
            let mut definition = people();
            definition.name = format!("other{start}");
            worker.create_table(definition).await.expect("another table");
            fill(&worker, &table, &[(start, &format!("n{start}"), 30)]).await;
            assert_eq!(aged(&mut worker.begin(), &table, 30).await, (0..=start).collect::<Vec<_>>());
        });
        assert_eq!(node.tables().len(), 2 + start as usize);
    }
}

#[test]
fn a_snapshot_stays_as_it_was() {
    with_people(async |worker, table| {
        let rows: Vec<_> = (0..50).map(|id| (id, format!("p{id}"), 1)).collect();
        let rows: Vec<_> = rows.iter().map(|(id, name, age)| (*id, name.as_str(), *age)).collect();
        fill(&worker, &table, &rows).await;
        let age = table.layout().i32("age").expect("a column");
        let sum = |snapshot: &farhold_txn::Snapshot| {
            let (mut count, mut sum) = (0, 0);
            for task in snapshot.pages(&table).expect("pages") {
                let mut visit = |_: &[u8], value: &[u8]| (count, sum) = (count + 1, sum + age.get(value));
                snapshot.scan_page(&task, &mut visit).expect("a scan");
            }
            (count, sum)
        };
        let first = worker.snapshot().await.expect("a snapshot");
        assert_eq!(sum(&first), (50, 50));
        let mut txn = worker.begin();
        for id in 0..25 {
            let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
            match id % 3 {
                0 => txn.delete(row).expect("deleted"),
                1 => {
                    let long = value(&table, &format!("p{id}"), 3, &"n".repeat(300));
                    txn.update(row, &long).expect("updated");
                }
                _ => age.set(txn.value_mut(row), 3),
            }
        }
        for id in 100..110 {
            put(&mut txn, &table, id, &format!("q{id}"), 3).await.expect("inserted");
        }
        txn.commit().await.expect("committed");
        let second = worker.snapshot().await.expect("a snapshot");
        assert_eq!(sum(&first), (50, 50));
        assert_eq!(sum(&second), (51, 25 + 16 * 3 + 30));
        drop(first);
        fill(&worker, &table, &[(200, "r", 7)]).await;
        assert_eq!(sum(&second), (51, 25 + 16 * 3 + 30));
        drop(second);
        assert_eq!(sum(&worker.snapshot().await.expect("a snapshot")), (52, 25 + 16 * 3 + 30 + 7));
    });
}

/// No other test notices memory that is never released, until there is none left.
#[test]
fn what_is_kept_for_nobody_is_told() {
    with_people(async |worker, table| {
        let leaks = || worker.node().leaks();
        let nothing = Vec::<String>::new();
        fill(&worker, &table, &[(1, "ann", 30), (2, "bob", 20)]).await;
        assert_eq!(leaks(), nothing);
        let snapshot = worker.snapshot().await.expect("a snapshot");
        let mut txn = worker.begin();
        for id in [1, 2] {
            let row = txn.get(&table, &key(id)).await.expect("a read").expect("a row");
            let written = if id == 1 { txn.update(row, &value(&table, "ann", 31, "")) } else { txn.delete(row) };
            written.expect("written");
        }
        txn.commit().await.expect("committed");
        let kept = leaks();
        assert_eq!(kept.iter().filter(|what| what.ends_with("an older copy of a row")).count(), 2, "{kept:?}");
        // A row whose key in an index changes moves, and its old place is that of a deleted one.
        assert_eq!(kept.iter().filter(|what| what.ends_with("a deleted row")).count(), 2, "{kept:?}");
        drop(snapshot);
        worker.serve(0, 0).await;
        assert_eq!(leaks(), nothing);
        // Its pages are kept for a transaction that has begun before.
        let before = worker.begin();
        worker.drop_table(&table).await.expect("dropped");
        assert!(leaks().iter().any(|what| what.starts_with("pages of ")), "{:?}", leaks());
        // They go with the last handle.
        drop((before, table));
        for _ in 0..10_000 {
            if leaks().is_empty() {
                break;
            }
            worker.poll();
            worker.handle().sleep_ns(1_000_000).await;
        }
        assert_eq!(leaks(), nothing);
    });
}

/// As on a machine with 128 processors, which has two client threads each.
#[test]
fn as_many_workers_write_as_the_node_says() {
    let dir = new_dir();
    let node = open(&dir);
    let _agent = HomeAgent::start(&node).expect("an agent");
    assert!(node.writers_max() >= 128, "{}", node.writers_max());
    let executor = Executor::real(1);
    let handle = executor.handle();
    let workers: Vec<_> = (0..node.writers_max()).map(|_| node.worker(&handle).expect("a worker")).collect();
    // One that comes and goes.
    drop(node.worker(&handle).expect("a worker"));
    executor.run(async move {
        let table = workers[0].create_table(people()).await.expect("a table");
        for (id, worker) in (0..).zip(&workers) {
            fill(worker, &table, &[(id, &format!("p{id}"), id)]).await;
        }
        assert_eq!(table.row_count(), workers.len() as u64);
    });
}

/// Its own inserts make the index grow in which it has looked for an absent key. There is no other transaction that
/// could conflict.
#[test]
fn a_transaction_is_in_no_conflict_with_its_own_inserts() {
    with_people(async |worker, table| {
        let mut txn = worker.begin();
        for absent in 100_000..100_200 {
            assert_eq!(look(&mut txn, &table, absent).await, None);
        }
        for id in 0..6_000 {
            put(&mut txn, &table, id, &format!("somebody {id}"), id).await.expect("reserved");
        }
        txn.commit().await.expect("nobody else is there");
        assert_eq!(table.row_count(), 6_000);
    });
}
