//! Transactions over three nodes in one process: the same operations, on rows that live elsewhere.

use crate::common::{self, Cluster, aged, fill, ids, key, look, people, put, value};
use farhold_store::row::{Datum, SecondaryIndex};
use farhold_txn::{Index, NodeId, Placement, Retry, ScanSpec, TableDef, TxnError};
use std::cell::Cell;
use std::rc::Rc;

/// People whose names need not be unique: no node could tell.
fn spread() -> TableDef {
    let mut definition = people();
    definition.indexes[0].unique = false;
    definition
}

/// With ids 1 to 9, three on each of three nodes.
fn nine() -> Vec<(i32, String, i32)> {
    (1..=9).map(|id| (id, format!("p{id}"), id % 4)).collect()
}

#[test]
fn far_rows_are_read_written_inserted_and_deleted() {
    Cluster::new(3).run(async |cluster| {
        let table = cluster.workers[0].create_table(spread()).await.expect("a table");
        fill(&cluster.workers[0], &table, &nine()).await;
        for id in 1..=9 {
            assert_eq!(table.home_of(&key(id)), NodeId(((id - 1) % 3) as u8));
        }
        for worker in &cluster.workers {
            let table = worker.node().table("people").expect("on every node");
            assert_eq!(table.row_count(), 3);
            assert_eq!(worker.row_count(&table).await, Ok(9));
            let mut txn = worker.begin_read_only();
            for (id, name, age) in nine() {
                assert_eq!(look(&mut txn, &table, id).await, Some((name, age)));
            }
            assert_eq!(look(&mut txn, &table, 10).await, None);
            assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, (1..=9).collect::<Vec<_>>());
            assert_eq!(ids(&mut txn, &table, ScanSpec::all().descending().limit(4)).await, [9, 8, 7, 6]);
            assert_eq!(aged(&mut txn, &table, 1).await, [1, 5, 9]);
            txn.commit().await.expect("nobody writes");
        }
        let worker = &cluster.workers[1];
        let table = worker.node().table("people").expect("the table");
        let mut txn = worker.begin();
        let rows = txn.scan(&table, ScanSpec::all()).await.expect("a scan");
        for (i, row) in rows.iter().enumerate() {
            match i % 3 {
                0 => txn.delete(*row).expect("deleted"),
                1 => {
                    let long = value(&table, &format!("q{i}"), 70, &"x".repeat(500));
                    txn.update(*row, &long).expect("updated");
                }
                _ => {
                    let note = value(&table, &format!("p{}", i + 1), 71, "");
                    txn.value_mut(*row).copy_from_slice(&note);
                }
            }
        }
        put(&mut txn, &table, 12, "new", 72).await.expect("inserted");
        assert_eq!(aged(&mut txn, &table, 70).await, [2, 5, 8]);
        txn.commit().await.expect("committed");
        // Deleted rows leave the indexes when their home learns of the delete, which moves the leaves that scans stamp.
        cluster.serve().await;
        for worker in &cluster.workers {
            let table = worker.node().table("people").expect("on every node");
            let mut txn = worker.begin_read_only();
            assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await, [2, 3, 5, 6, 8, 9, 12]);
            assert_eq!(aged(&mut txn, &table, 70).await, [2, 5, 8]);
            assert_eq!(aged(&mut txn, &table, 71).await, [3, 6, 9]);
            assert_eq!(look(&mut txn, &table, 12).await, Some(("new".into(), 72)));
            assert_eq!(look(&mut txn, &table, 1).await, None);
            txn.commit().await.expect("nobody writes");
        }
        cluster.assert_quiet().await;
    });
}

#[test]
fn far_conflicts_are_found() {
    Cluster::new(3).run(async |cluster| {
        let table = cluster.workers[0].create_table(spread()).await.expect("a table");
        fill(&cluster.workers[0], &table, &nine()).await;
        let (one, two) = (&cluster.workers[0], &cluster.workers[1]);
        let tables = [one.node().table("people").expect("it"), two.node().table("people").expect("it")];
        // Two increments of a row of the third node.
        let (mut a, mut b) = (one.begin(), two.begin());
        for (txn, table) in [(&mut a, &tables[0]), (&mut b, &tables[1])] {
            let row = txn.get(table, &key(3)).await.expect("a read").expect("a row");
            let _ = txn.value_mut(row);
        }
        a.commit().await.expect("first");
        assert_eq!(b.commit().await, Err(TxnError::Conflict));
        // Write skew over two nodes.
        let (mut a, mut b) = (one.begin(), two.begin());
        for (txn, table, writes) in [(&mut a, &tables[0], 1), (&mut b, &tables[1], 2)] {
            for id in [1, 2] {
                let row = txn.get(table, &key(id)).await.expect("a read").expect("a row");
                if id == writes {
                    let _ = txn.value_mut(row);
                }
            }
        }
        a.commit().await.expect("first");
        assert_eq!(b.commit().await, Err(TxnError::Conflict));
        // A key that is not there, by hash and by range, until another transaction inserts it.
        let (mut by_hash, mut by_range) = (one.begin_read_only(), one.begin_read_only());
        assert_eq!(look(&mut by_hash, &tables[0], 15).await, None);
        assert_eq!(ids(&mut by_range, &tables[0], ScanSpec::all()).await.len(), 9);
        let mut b = two.begin();
        put(&mut b, &tables[1], 15, "new", 1).await.expect("inserted");
        b.commit().await.expect("committed");
        assert_eq!(look(&mut by_hash, &tables[0], 1).await.map(|it| it.1), Some(1));
        assert_eq!(by_hash.commit().await, Err(TxnError::Conflict));
        assert_eq!(by_range.commit().await, Err(TxnError::Conflict));
        // Keys that are taken.
        let mut a = one.begin();
        let duplicate = |index| Err(TxnError::DuplicateKey { table: tables[0].id(), index });
        assert_eq!(put(&mut a, &tables[0], 15, "other", 1).await, duplicate(Index::Primary));
        put(&mut a, &tables[0], 18, "newer", 1).await.expect("inserted");
        let mut b = two.begin();
        assert_eq!(put(&mut b, &tables[1], 18, "x", 1).await, Err(TxnError::Conflict));
        drop((a, b));
        let mut late = one.begin();
        assert_eq!(look(&mut late, &tables[0], 20).await, None);
        let mut b = two.begin();
        put(&mut b, &tables[1], 20, "first", 1).await.expect("inserted");
        b.commit().await.expect("committed");
        assert_eq!(put(&mut late, &tables[0], 20, "second", 1).await, Err(TxnError::Conflict), "it has lost already");
        drop(late);
        let mut b = two.begin();
        cluster.serve().await;
        put(&mut b, &tables[1], 18, "x", 1).await.expect("free again");
        b.abort();
        cluster.serve().await;
        cluster.assert_quiet().await;
    });
}

#[test]
fn its_own_far_inserts_do_not_disturb_its_searches() {
    Cluster::new(2).run(async |cluster| {
        let worker = &cluster.workers[0];
        let table = worker.create_table(spread()).await.expect("a table");
        let mut txn = worker.begin();
        for id in (2..100).step_by(2) {
            assert_eq!(look(&mut txn, &table, id).await, None, "{id}");
            assert_eq!(ids(&mut txn, &table, ScanSpec::all()).await.len(), id as usize / 2 - 1);
            put(&mut txn, &table, id, &format!("p{id}"), id).await.expect("inserted");
            assert_eq!(look(&mut txn, &table, id).await.map(|it| it.1), Some(id));
        }
        txn.commit().await.expect("nobody else was there");
        cluster.assert_quiet().await;
    });
}

#[test]
fn replicated_rows_are_written_everywhere() {
    Cluster::new(3).run(async |cluster| {
        let definition = TableDef { placement: Placement::Replicated, ..people() };
        let table = cluster.workers[2].create_table(definition).await.expect("a table");
        fill(&cluster.workers[2], &table, &nine()).await;
        let on = |node: usize| cluster.workers[node].node().table("people").expect("on every node");
        for round in 0..3 {
            for node in 0..3 {
                let mut txn = cluster.workers[node].begin();
                let table = on(node);
                let row = txn.get(&table, &key(1)).await.expect("a read").expect("a row");
                let (_, age) = look(&mut txn, &table, 1).await.expect("a row");
                let note = "n".repeat(100 * (round * 3 + node));
                txn.update(row, &value(&table, "p1", age + 1, &note)).expect("updated");
                txn.commit().await.expect("committed");
            }
        }
        let mut txn = cluster.workers[0].begin();
        let row = txn.get(&on(0), &key(2)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted");
        txn.commit().await.expect("committed");
        cluster.serve().await;
        for node in 0..3 {
            let mut txn = cluster.workers[node].begin_read_only();
            assert_eq!(on(node).row_count(), 8);
            assert_eq!(look(&mut txn, &on(node), 1).await, Some(("p1".into(), 10)));
            assert_eq!(look(&mut txn, &on(node), 2).await, None);
            assert_eq!(aged(&mut txn, &on(node), 10).await, [1]);
        }
        cluster.assert_quiet().await;
    });
}

#[test]
fn a_snapshot_covers_all_nodes() {
    Cluster::new(3).run(async |cluster| {
        let table = cluster.workers[0].create_table(spread()).await.expect("a table");
        fill(&cluster.workers[0], &table, &nine()).await;
        let age = table.layout().i32("age").expect("a column");
        let count = async |snapshot: &farhold_txn::Snapshot| {
            let (worker, mut sum) = (&cluster.workers[0], (0, 0));
            for task in worker.snapshot_pages(snapshot, &table).await.expect("pages") {
                let add = &mut |_: &[u8], value: &[u8]| sum = (sum.0 + 1, sum.1 + age.get(value));
                worker.scan_page(snapshot, &task, add).await.expect("a scan");
            }
            sum
        };
        let sum: i32 = nine().iter().map(|row| row.2).sum();
        let before = cluster.workers[0].snapshot().await.expect("a snapshot");
        let other = &cluster.workers[1];
        let there = other.node().table("people").expect("the table");
        for id in 1..=9 {
            let mut txn = other.begin();
            let row = txn.get(&there, &key(id)).await.expect("a read").expect("a row");
            match id % 3 {
                0 => txn.delete(row).expect("deleted"),
                _ => age.set(txn.value_mut(row), 100),
            }
            txn.commit().await.expect("committed");
        }
        assert_eq!(count(&before).await, (9, sum));
        let after = cluster.workers[0].snapshot().await.expect("a snapshot");
        assert_eq!(count(&after).await, (6, 600));
        // The same on a thread that has no worker, while the nodes are served here.
        let by_thread = std::thread::spawn({
            let table = table.clone();
            move || {
                [before, after].map(|snapshot| {
                    let mut sum = (0, 0);
                    for task in snapshot.pages(&table).expect("pages") {
                        let add = &mut |_: &[u8], value: &[u8]| sum = (sum.0 + 1, sum.1 + age.get(value));
                        snapshot.scan_page(&task, add).expect("a scan");
                    }
                    sum
                })
            }
        });
        while !by_thread.is_finished() {
            cluster.workers[0].handle().yield_now().await;
        }
        assert_eq!(by_thread.join().expect("no panic"), [(9, sum), (6, 600)]);
        cluster.assert_quiet().await;
    });
}

/// All workers are tasks of one thread, and rows are locked while their owners wait for answers. A scan that kept the thread busy would
/// wait for itself.
#[test]
fn a_scan_lets_those_go_on_whom_it_waits_for() {
    Cluster::new(3).run(async |cluster| {
        let table = cluster.workers[0].create_table(spread()).await.expect("a table");
        fill(&cluster.workers[0], &table, &nine()).await;
        let age = table.layout().i32("age").expect("a column");
        let sum: i32 = nine().iter().map(|row| row.2).sum();
        let (is_over, moves) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        for other in [1, 2] {
            let (worker, is_over, moves) = (cluster.workers[other].clone(), Rc::clone(&is_over), Rc::clone(&moves));
            drop(cluster.workers[0].handle().spawn(async move {
                let there = worker.node().table("people").expect("the table");
                while !is_over.get() {
                    let moved = worker.run(Retry::default(), async |txn| {
                        for (id, change) in [(1, 1), (2, -1), (3, 1), (4, -1)] {
                            // Between the two steps of an update of an indexed column the row cannot be seen, and a
                            // transaction that misses it cannot commit.
                            let row = txn.get(&there, &key(id)).await?.ok_or(TxnError::Conflict)?;
                            let value = txn.value_mut(row);
                            age.set(value, age.get(value) + change);
                        }
                        Ok(())
                    });
                    moved.await.expect("moved");
                    moves.set(moves.get() + 1);
                }
            }));
        }
        let worker = &cluster.workers[0];
        while moves.get() < 300 {
            let snapshot = worker.snapshot().await.expect("a snapshot");
            let mut seen = 0;
            for task in worker.snapshot_pages(&snapshot, &table).await.expect("pages") {
                worker.scan_page(&snapshot, &task, &mut |_, value| seen += age.get(value)).await.expect("a scan");
            }
            assert_eq!(seen, sum);
            worker.handle().yield_now().await;
        }
        is_over.set(true);
    });
}

#[test]
fn a_dropped_table_is_gone_everywhere() {
    Cluster::new(2).run(async |cluster| {
        let worker = &cluster.workers[0];
        let table = worker.create_table(spread()).await.expect("a table");
        fill(worker, &table, &nine()).await;
        let mut open = worker.begin();
        assert!(look(&mut open, &table, 1).await.is_some());
        worker.drop_table(&table).await.expect("dropped");
        assert_eq!(open.get(&table, &key(1)).await, Err(TxnError::SchemaChanged));
        assert!(cluster.workers[1].node().table("people").is_none());
        assert!(matches!(worker.drop_table(&table).await, Err(TxnError::NotFound { .. })));
        drop(open);
        let again = worker.create_table(spread()).await.expect("the name is free");
        assert_ne!(again.id(), table.id());
        assert_eq!(worker.run(Retry::default(), async |txn| txn.scan(&again, ScanSpec::all()).await).await, Ok(vec![]));
    });
}

/// A table is there on the node that creates it, and on its way to another one, whose directory does not have its hash
/// index yet. A transaction that looks for a row there gets that node's answer.
#[test]
fn a_row_of_a_table_that_is_just_being_created_is_looked_for_at_its_home() {
    Cluster::new(2).run(async |cluster| {
        let [one, two] = [0, 1].map(|number| cluster.workers[number].node().clone());
        let worker = &cluster.workers[0];
        let mut create = Box::pin(worker.create_table(TableDef { hash: true, ..spread() }));
        while one.table("people").is_none() {
            assert!(futures::poll!(&mut create).is_pending());
            if one.table("people").is_none() {
                worker.handle().yield_now().await;
            }
        }
        let table = one.table("people").expect("just made");
        assert!(two.table("people").is_none(), "it has not heard of it");
        assert_eq!(table.home_of(&key(2)), NodeId(1));
        let mut txn = worker.begin();
        assert_eq!(txn.get(&table, &key(2)).await, Ok(None));
        drop(txn);
        create.await.expect("created");
    });
}

#[test]
fn an_index_is_filled_while_others_write() {
    Cluster::new(3).run(async |cluster| {
        let worker = &cluster.workers[0];
        let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
        let rows: Vec<_> = (1..=600).map(|id| (id, format!("p{id}"), id % 10)).collect();
        fill(worker, &table, &rows).await;
        let mut before = worker.begin();
        put(&mut before, &table, 1001, "before", 5).await.expect("inserted");
        let by_age = SecondaryIndex { name: "by_age".into(), columns: vec![2], unique: false };
        let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![0, 1], unique: true };
        // Others go on moving rows between ages.
        let other = cluster.workers[1].clone();
        let there = other.node().table("people").expect("the table");
        let age = table.layout().i32("age").expect("a column");
        let writer = async {
            for round in 0..40_i32 {
                let moved = other.run(Retry::default(), async |txn| {
                    for id in [1 + round * 3, 2 + round * 5, 3 + round * 7] {
                        let row = txn.get(&there, &key(id)).await?.ok_or(TxnError::Conflict)?;
                        age.set(txn.value_mut(row), 77);
                    }
                    put(txn, &there, 2000 + round, "new", 77).await
                });
                moved.await.expect("moved");
            }
        };
        let (created, ()) = futures::join!(worker.create_index(&table, by_age.clone()), writer);
        let index = created.expect("an index");
        assert_eq!(before.commit().await, Err(TxnError::Conflict), "it might not be in the index");
        assert!(matches!(worker.create_index(&table, by_age).await, Err(TxnError::AlreadyExists { .. })));
        assert_eq!(worker.create_index(&table, by_name).await, Ok(Index::Secondary(1)));
        cluster.serve().await;
        let count = async |worker: &farhold_txn::Worker, age: i32| {
            let table = worker.node().table("people").expect("the table");
            let mut txn = worker.begin_read_only();
            let lo = common::index_key(&table, index, Datum::Int(age));
            let hi = common::index_key(&table, index, Datum::Int(age + 1));
            let by_index = ids(&mut txn, &table, ScanSpec::range(&lo, &hi).index(index)).await;
            let mut by_scan = Vec::new();
            for id in ids(&mut txn, &table, ScanSpec::all()).await {
                if look(&mut txn, &table, id).await.is_some_and(|row| row.1 == age) {
                    by_scan.push(id);
                }
            }
            txn.commit().await.expect("nobody writes");
            assert_eq!(by_index, by_scan, "age {age}");
            by_index.len()
        };
        assert!(count(worker, 77).await > 100);
        assert!(count(&cluster.workers[2], 5).await > 30);
        cluster.assert_quiet().await;
        worker.drop_index(&table, "by_age").await.expect("dropped");
        assert!(matches!(worker.drop_index(&table, "by_age").await, Err(TxnError::NotFound { .. })));
        let mut txn = worker.begin();
        let gone = txn.scan(&table, ScanSpec::all().index(index)).await;
        assert_eq!(gone, Err(TxnError::SchemaChanged));
        // A scan that began earlier asks for it after the first check.
        assert_eq!(table.keys_of(index).map(|_| ()), Err(TxnError::SchemaChanged));
        drop(txn);
        let unique_age = SecondaryIndex { name: "age".into(), columns: vec![0, 2], unique: true };
        worker.create_index(&table, unique_age).await.expect("ids are unique, so this is");
    });
}

#[test]
fn a_unique_index_over_equal_rows_is_refused_and_leaves_nothing() {
    let dir = common::new_dir();
    for start in 0..2 {
        let node = common::open(&dir);
        let executor = farhold_fabric::Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            if start == 0 {
                let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
                fill(&worker, &table, &[(1, "ann", 1), (2, "ann", 2)]).await;
                let unique = |column| SecondaryIndex { name: "names".into(), columns: vec![column], unique: true };
                let refused = worker.create_index(&table, unique(1)).await;
                assert_eq!(refused, Err(TxnError::DuplicateKey { table: table.id(), index: Index::Secondary(0) }));
                put(&mut worker.begin(), &table, 3, "ann", 3).await.expect("nothing forbids it");
                assert_eq!(worker.create_index(&table, unique(2)).await, Ok(Index::Secondary(1)));
            }
            let table = node.table("people").expect("the table");
            let mut txn = worker.begin();
            let duplicate = Err(TxnError::DuplicateKey { table: table.id(), index: Index::Secondary(1) });
            assert_eq!(put(&mut txn, &table, 4, "bob", 2).await, duplicate);
            let rows = txn.scan(&table, ScanSpec::all().index(Index::Secondary(1))).await.expect("a scan");
            assert_eq!(rows.len(), 2);
            assert_eq!(table.indexes().len(), 1);
        });
    }
}

#[test]
fn the_pages_of_dropped_tables_come_back() {
    Cluster::new(2).run(async |cluster| {
        let (worker, other) = (&cluster.workers[0], &cluster.workers[1]);
        let free = || cluster.workers.iter().map(|worker| worker.node().free_bytes()).collect::<Vec<_>>();
        let mut before = Vec::new();
        for round in 0..20 {
            let table = worker.create_table(spread()).await.expect("a table");
            let rows: Vec<_> = (1..=300).map(|id| (id, format!("p{id}"), id)).collect();
            fill(worker, &table, &rows).await;
            // A transaction that has read the table when it is dropped: the table's pages have to wait.
            let mut reader = other.begin();
            let there = other.node().table("people").expect("the table");
            assert!(look(&mut reader, &there, 1).await.is_some());
            worker.drop_table(&table).await.expect("dropped");
            drop((table, there));
            cluster.serve().await;
            worker.handle().sleep_ns(100_000).await;
            let kept = free();
            drop(reader);
            for _ in 0..1_000 {
                if free()[0] > kept[0] && free()[1] > kept[1] {
                    break;
                }
                worker.handle().sleep_ns(100_000).await;
            }
            if round == 0 {
                before = free();
            }
            assert!(free()[0] > kept[0] && free()[1] > kept[1], "round {round}: {kept:?} {:?}", free());
        }
        // The workers' own stocks of slots go with the next table's.
        for (first, last) in before.iter().zip(free()) {
            assert!(last + (1 << 20) > *first, "{before:?} {:?}", free());
        }
    });
}

/// One row moves, so its home must learn which rows are replaced. There are more of them than one message can name. Nothing may be half
/// done.
#[test]
fn a_row_that_moves_beside_very_many_deletes_is_refused_or_found() {
    const ROWS: i32 = 9_000;
    Cluster::new(2).run(async |cluster| {
        let worker = &cluster.workers[0];
        let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
        let rows: Vec<_> = (1..=ROWS).map(|id| (2 * id, "p", id)).collect();
        for some in rows.chunks(1_000) {
            fill(&cluster.workers[1], &cluster.workers[1].node().table("people").expect("it"), some).await;
        }
        let mut txn = worker.begin();
        let row = txn.get(&table, &key(2)).await.expect("a read").expect("a row");
        txn.delete(row).expect("deleted");
        put(&mut txn, &table, 2, "q", 1).await.expect("reserved");
        for id in 2..=ROWS {
            let row = txn.get(&table, &key(2 * id)).await.expect("a read").expect("a row");
            txn.delete(row).expect("deleted");
        }
        let committed = txn.commit().await;
        assert!(matches!(committed, Err(TxnError::TooLarge { .. })), "{committed:?}");
        cluster.assert_quiet().await;
        assert_eq!(worker.row_count(&table).await, Ok(ROWS as u64));
    });
}

/// A caller that reads its inbox late, as on a busy machine: there are more answers than its inbox takes, and more than are kept for
/// it. Each arrives, although all requests are served before the first answer is read.
#[test]
fn no_answer_to_a_slow_caller_is_lost() {
    const CALLERS: usize = 120;
    const LOOKS_MAX: u32 = 1_000_000;
    Cluster::new(2).run(async |cluster| {
        let table = cluster.workers[1].create_table(spread()).await.expect("a table");
        let rows: Vec<_> = (1..=1500).map(|id| (2 * id, format!("p{id}"), id)).collect();
        fill(&cluster.workers[1], &table, &rows).await;
        let table = cluster.workers[0].node().table("people").expect("on every node");
        // Before its first range there the caller looks at its home's memory.
        let mut first = cluster.workers[0].begin_read_only();
        first.scan(&table, ScanSpec::all().on(NodeId(1)).limit(1)).await.expect("a scan");
        drop(first);
        let ask = |_| {
            let (worker, table) = (cluster.workers[0].clone(), table.clone());
            cluster.workers[0].handle().spawn(async move {
                let mut txn = worker.begin_read_only();
                let rows = txn.scan(&table, ScanSpec::all().on(NodeId(1))).await;
                rows.map(|rows| rows.len())
            })
        };
        let asking: Vec<_> = (0..CALLERS).map(ask).collect();
        // Each transaction sends its request in its first turn, and node 1 serves one request a turn.
        for _ in 0..4 {
            cluster.workers[0].handle().yield_now().await;
        }
        // Over a network they arrive when another thread has had its turn.
        let (mut served, mut looks) = (0, 0);
        while served <= CALLERS / 2 && looks < LOOKS_MAX {
            if cluster.workers[1].poll() {
                served += 1;
            } else {
                looks += 1;
                std::thread::yield_now();
            }
        }
        assert!(served > CALLERS / 2, "{served} served in a row");
        while cluster.workers[1].poll() {}
        for (number, caller) in asking.into_iter().enumerate() {
            assert_eq!(caller.await, Ok(1500), "caller {number}");
        }
    });
}
