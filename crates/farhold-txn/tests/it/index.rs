//! Indexes come and go while threads of all nodes write the table.
//!
//! Rows carry tokens, one each, all different; writers hand a token from one key to another, change ages, and begin inserts
//! that they take back. So the number of rows and the set of tokens never change, a unique index over the tokens can always be
//! made, and after each round the index must contain what a scan of the table finds: nothing lost, nothing twice, no entry
//! that leads nowhere.

use crate::common::{self, key, new_dir, people, put};
use farhold_fabric::Executor;
use farhold_store::row::{Datum, SecondaryIndex};
use farhold_txn::{
    HomeAgent, Index, Node, NodeConfig, Placement, Retry, ScanSpec, Table, TableDef, Txn, TxnError, Worker,
};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;
use tempfile::TempDir;

const KEYS: i32 = 90;
const ROWS: i32 = 60;

fn nodes(dir: &TempDir, count: u8) -> Vec<(HomeAgent, Arc<Node>)> {
    let start = |node| {
        let fabric = common::join(dir, node);
        let config = NodeConfig {
            nodes: count,
            region_bytes: 32 << 20,
            request_timeout_ns: common::PATIENCE_NS,
            ..NodeConfig::default()
        };
        let node = Node::open(fabric, config).expect("a node");
        (HomeAgent::start(&node).expect("an agent"), node)
    };
    (0..count).map(start).collect()
}

fn age_of(table: &Table, txn: &Txn, row: farhold_txn::RowHandle) -> (i32, String, i32) {
    let mut datums = Vec::new();
    table.schema().decode_row(txn.key(row), txn.value(row), &mut datums).expect("a row");
    match datums.as_slice() {
        [Datum::Int(id), Datum::Text(name), Datum::Int(age), _] => (*id, name.clone(), *age),
        other => panic!("{other:?}"),
    }
}

async fn all(worker: &Worker, table: &Table, index: Index) -> Vec<(i32, String, i32)> {
    let scanned = worker.run(Retry::default(), async |txn| {
        let rows = txn.scan(table, ScanSpec::all().index(index)).await?;
        Ok(rows.into_iter().map(|row| age_of(table, txn, row)).collect())
    });
    scanned.await.expect("nobody writes")
}

/// Writes until the round is over.
async fn write(worker: &Worker, seed: u64, rounds: &AtomicUsize, over: &AtomicUsize) {
    let table = worker.node().table("people").expect("the table");
    let age = table.layout().i32("age").expect("a column");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut below = move |limit: i32| random.i32(0..limit);
    while over.load(SeqCst) == 0 {
        let (from, to, years, what) = (1 + below(KEYS), 1 + below(KEYS), below(8), below(8));
        let mut txn = worker.begin();
        let done = async {
            let Some(row) = txn.get(&table, &key(from)).await? else { return Ok(false) };
            let token = age_of(&table, &txn, row).1;
            if what < 3 {
                age.set(txn.value_mut(row), years);
            } else if what < 6 {
                if txn.get(&table, &key(to)).await?.is_some() {
                    return Ok(false);
                }
                txn.delete(row)?;
                put(&mut txn, &table, to, &token, years).await?;
            } else {
                // This fails: the token is taken, or the transaction does not commit.
                put(&mut txn, &table, to, if what == 6 { "nobody's" } else { &token }, years).await?;
                return Ok(false);
            }
            Ok::<_, TxnError>(true)
        };
        let outcome = match done.await {
            Ok(true) => txn.commit().await.map(|_| ()),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(()) | Err(TxnError::Conflict | TxnError::DuplicateKey { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        rounds.fetch_add(1, SeqCst);
        worker.handle().yield_now().await;
    }
}

/// Runs writers on threads of every node while `act` runs on this one; it begins when they all write.
fn beside_writers<T>(nodes: &[(HomeAgent, Arc<Node>)], round: u64, act: impl FnOnce() -> T) -> T {
    let (over, rounds) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (number, (_, node)) in (0_u64..).zip(nodes.iter().flat_map(|node| [node; 2])) {
            let (over, rounds) = (&over, &rounds);
            scope.spawn(move || {
                let executor = Executor::real(number);
                let worker = node.worker(&executor.handle()).expect("a worker");
                executor.run(write(&worker, round * 100 + number, rounds, over));
            });
        }
        while rounds.load(SeqCst) < 200 {
            std::thread::yield_now();
        }
        let done = act();
        over.store(1, SeqCst);
        done
    })
}

/// Nothing is left once the home agents know of the last transactions that were given up.
fn assert_quiet(node: &Node, round: u64) {
    const LOOKS_MAX: u32 = 100_000;
    let mut left = node.left_behind();
    for _ in 0..LOOKS_MAX {
        if left.is_empty() {
            return;
        }
        std::thread::yield_now();
        left = node.left_behind();
    }
    panic!("round {round}, {}: {left:?}", node.id());
}

fn come_and_go(count: u8, placement: Placement, unique: &[usize]) {
    let dir = new_dir();
    let nodes = nodes(&dir, count);
    let executor = Executor::real(7);
    let workers: Vec<_> = nodes.iter().map(|(_, node)| node.worker(&executor.handle()).expect("a worker")).collect();
    let table = executor.run(async {
        let table =
            workers[0].create_table(TableDef { placement, indexes: Vec::new(), ..people() }).await.expect("a table");
        let rows: Vec<_> = (1..=ROWS).map(|id| (id, format!("t{id}"), id % 8)).collect();
        common::fill(&workers[0], &table, &rows).await;
        table
    });
    let definitions = [
        SecondaryIndex { name: "by_age".into(), columns: vec![2], unique: false },
        SecondaryIndex { name: "by_token".into(), columns: unique.to_vec(), unique: true },
    ];
    for round in 0..6 {
        let definition = &definitions[round as usize % 2];
        let index = beside_writers(&nodes, round, || executor.run(workers[0].create_index(&table, definition.clone())));
        let index = index.expect("an index");
        for worker in &workers {
            executor.run(async {
                let table = worker.node().table("people").expect("the table");
                let mut by_scan = all(worker, &table, Index::Primary).await;
                let mut by_index = all(worker, &table, index).await;
                by_scan.sort();
                by_index.sort();
                assert_eq!(by_scan.len(), ROWS as usize, "round {round}, {}", worker.node().id());
                assert_eq!(by_scan, by_index, "round {round}, {}", worker.node().id());
                assert_quiet(worker.node(), round);
            });
        }
        let dropped = beside_writers(&nodes, round, || executor.run(workers[0].drop_index(&table, &definition.name)));
        dropped.expect("dropped");
        assert!(nodes.iter().all(|(_, node)| node.table("people").expect("the table").indexes().is_empty()));
    }
}

#[test]
fn on_one_node() {
    come_and_go(1, Placement::ByInteger, &[1]);
}

#[test]
fn on_three_nodes() {
    come_and_go(3, Placement::ByInteger, &[0, 1]);
}

#[test]
fn on_three_nodes_with_copies() {
    come_and_go(3, Placement::Replicated, &[1]);
}

#[test]
fn nobody_waits_for_it_any_more() {
    let dir = new_dir();
    let nodes = nodes(&dir, 2);
    let executor = Executor::real(7);
    let worker = nodes[0].1.worker(&executor.handle()).expect("a worker");
    let none =
        |name: &str| TableDef { placement: Placement::Replicated, indexes: Vec::new(), name: name.into(), ..people() };
    let indexes = |node: usize| nodes[node].1.table("people").expect("the table").indexes();
    let by_name = SecondaryIndex { name: "by_name".into(), columns: vec![1], unique: true };
    executor.run(async {
        let table = worker.create_table(none("people")).await.expect("a table");
        common::fill(&worker, &table, &[(1, "ann", 1)]).await;
        // It is undecided yet whether this will be a row, and so whether the index is possible.
        let mut undecided = worker.begin();
        put(&mut undecided, &table, 2, "ann", 2).await.expect("inserted");
        let mut creating = Box::pin(worker.create_index(&table, by_name.clone()));
        std::future::poll_fn(|cx| {
            assert!(creating.as_mut().poll(cx).is_pending());
            cx.waker().wake_by_ref();
            if indexes(1).is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        drop(creating);
        // Answered after the message that removes the index.
        worker.create_table(none("others")).await.expect("a table");
        assert!(indexes(0).is_empty() && indexes(1).is_empty());
        assert_eq!(undecided.commit().await, Err(TxnError::Conflict), "it began before the index");
        let index = worker.create_index(&table, by_name.clone()).await.expect("the name is free");
        let refused = put(&mut worker.begin(), &table, 2, "ann", 2).await;
        assert_eq!(refused, Err(TxnError::DuplicateKey { table: table.id(), index }));
        assert!(indexes(1)[0].ready);
    });
}

/// A number is never used again, but the limit is of indexes at a time; a restart finds those that are left.
#[test]
fn dropped_indexes_take_no_place() {
    const DROPPED: usize = 40;
    const AT_A_TIME: usize = 32;
    let dir = new_dir();
    let definition = |name: String| SecondaryIndex { name, columns: vec![2], unique: false };
    let executor = Executor::real(7);
    let on_one_node = |test: &dyn Fn(&Worker)| {
        let nodes = nodes(&dir, 1);
        test(&nodes[0].1.worker(&executor.handle()).expect("a worker"));
    };
    on_one_node(&|worker| {
        executor.run(async {
            let table = worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await.expect("a table");
            common::fill(worker, &table, &[(1, "ann", 30)]).await;
            for round in 0..DROPPED {
                worker.create_index(&table, definition("again".into())).await.expect("an index");
                worker.drop_index(&table, "again").await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            for number in 0..AT_A_TIME {
                worker.create_index(&table, definition(format!("i{number}"))).await.expect("an index");
            }
            let refused = worker.create_index(&table, definition("one more".into())).await;
            assert_eq!(refused, Err(TxnError::TooMany { what: "indexes of a table", limit: AT_A_TIME }));
            worker.drop_index(&table, "i7").await.expect("dropped");
        });
    });
    on_one_node(&|worker| {
        executor.run(async {
            let table = worker.node().table("people").expect("the table");
            let live = table.indexes().into_iter().filter(|index| index.ready).map(|index| index.index);
            let live: Vec<Index> = live.collect();
            assert_eq!(live.len(), AT_A_TIME - 1);
            for index in live {
                assert_eq!(all(worker, &table, index).await, [(1, "ann".into(), 30)]);
            }
            worker.create_index(&table, definition("one more".into())).await.expect("room for one");
        });
    });
}
