//! A node dies at every moment of a transaction that has rows elsewhere, and starts again: what it had locked and reserved
//! at the others is free then, or known to be damaged.

use farhold_fabric::provider::sim::{Fault, Faults, Hop, Rdma, Sim};
use farhold_fabric::{Executor, Handle, NodeId};
use farhold_sim::workload::{Recorder, Row, Tables, Workload};
use farhold_txn::{Node, NodeConfig, Retry, TableDef, TxnError, Worker};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

fn start(sim: &Sim, node: u8) -> Arc<Node> {
    let config = NodeConfig { nodes: 2, region_bytes: 4 << 20, request_timeout_ns: 1_000_000, ..NodeConfig::default() };
    Node::open(sim.join(NodeId(node)).expect("not running"), config).expect("a node")
}

fn serve(node: &Arc<Node>, handle: &Handle) -> Worker {
    let server = node.worker(handle).expect("a worker");
    let serving = server.clone();
    drop(handle.spawn(async move {
        loop {
            serving.serve(1_000_000, usize::MAX).await;
        }
    }));
    server
}

/// A transaction of node 1 on rows of both nodes: an update, an insert and a delete on each.
async fn change(worker: &Worker) -> Result<(), TxnError> {
    let table = Tables::of(worker).spread;
    let row = |key: u32| Row { writer: 7, attribute: 1, padding: 100 }.value(&table, key);
    let mut txn = worker.begin();
    for key in [1, 2] {
        let found = txn.get(&table, &Row::key(key)).await?.ok_or(TxnError::Conflict)?;
        txn.update(found, &row(key))?;
        let found = txn.get(&table, &Row::key(key + 2)).await?.ok_or(TxnError::Conflict)?;
        txn.delete(found)?;
        txn.insert(&table, &Row::key(key + 100), &row(key + 100)).await?;
    }
    txn.commit().await.map(|_| ())
}

/// While a transaction of node 0 changes a row of each node, a reader on node 0 reads one row, and then a reader on node 1 the other:
/// `ns` nanoseconds after the transaction has begun. Returns whether they saw its change; `None` for a reader that had to try again.
fn look_after(ns: u64) -> [Option<bool>; 2] {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let nodes = [start(&sim, 0), start(&sim, 1)];
    executor.run(async {
        let workers = nodes.each_ref().map(|node| serve(node, &handle));
        let recorder = Rc::new(RefCell::new(Recorder::default()));
        Tables::create(&workers[0], &Workload::of_seed(1), &recorder).await.expect("the tables");
        let writing = workers[0].clone();
        let written = handle.spawn(async move {
            let table = Tables::of(&writing).spread;
            let mut txn = writing.begin();
            // Node 0 has the odd keys, node 1 the even ones.
            for key in [1, 2] {
                let row = txn.get(&table, &Row::key(key)).await?.ok_or(TxnError::Conflict)?;
                // As long as it was, and with its keys: it stays in its slot.
                let before = Row::of(&table, key, txn.value(row)).expect("a row");
                txn.update(row, &Row { writer: 7, ..before }.value(&table, key))?;
            }
            txn.commit().await.map(|_| ())
        });
        handle.sleep_ns(ns).await;
        let mut seen = [None; 2];
        for (worker, key) in workers.iter().zip([1, 2]) {
            let table = Tables::of(worker).spread;
            let mut txn = worker.begin_read_only();
            let row = txn.get(&table, &Row::key(key)).await.expect("a read").expect("a row");
            let saw = Row::of(&table, key, txn.value(row)).expect("a row").writer == 7;
            seen[(key - 1) as usize] = txn.commit().await.is_ok().then_some(saw);
        }
        handle.sleep_ns(1_000_000).await;
        assert_eq!(written.try_take(), Some(Ok(())));
        seen
    })
}

/// A read of one row is not validated where it need not be. It must be if a commit had the row locked: that commit has been seen elsewhere,
/// perhaps by a reader that has ended before this one began.
#[test]
fn a_later_reader_never_sees_an_older_state() {
    let seen: Vec<_> = (0..200).map(|step| look_after(step * 100)).collect();
    let older = seen.iter().position(|seen| *seen == [Some(true), Some(false)]);
    assert_eq!(older, None, "steps of 100 ns: {seen:?}");
    assert!(seen.contains(&[Some(true); 2]) && seen.contains(&[Some(false); 2]), "{seen:?}");
    assert!(seen.iter().any(|seen| seen[1].is_none()), "nobody ever met a lock: {seen:?}");
}

/// Kills node 1 `ns` nanoseconds after its transaction has begun. Returns how many rows of node 0 are damaged.
fn die_after(ns: u64) -> usize {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (home, dying) = (start(&sim, 0), start(&sim, 1));
    executor.run(async {
        let (keeper, doomed) = (serve(&home, &handle), serve(&dying, &handle));
        let recorder = Rc::new(RefCell::new(Recorder::default()));
        Tables::create(&keeper, &Workload::of_seed(1), &recorder).await.expect("the tables");
        // It runs in its own task, where it would notice that it is dead, so it is stopped for good.
        let changing = doomed.clone();
        let changing = handle.spawn(async move { change(&changing).await });
        handle.sleep_ns(ns).await;
        sim.inject(Fault::Kill(NodeId(1)));
        handle.sleep_ns(5_000_000).await;
        let _ = changing.try_take();
        std::mem::forget((doomed, dying));

        let again = start(&sim, 1);
        let reborn = serve(&again, &handle);
        assert_eq!(reborn.join_cluster().await, Ok(vec![NodeId(0)]));
        let damaged = home.recovered().damaged.len();
        let left = home.left_behind();
        let expected = if damaged == 0 { 0 } else { left.len() };
        assert_eq!(left.len(), expected, "killed after {ns} ns: {left:?}");
        if damaged == 0 {
            // Whatever its outcome, every row can be read and written again.
            let table = Tables::of(&reborn).spread;
            for key in [1, 2, 3, 4, 101, 102] {
                let written = reborn.run(Retry::default(), async |txn| {
                    let value = Row { writer: 8, attribute: 2, padding: 10 }.value(&table, key);
                    match txn.get(&table, &Row::key(key)).await? {
                        Some(row) => txn.update(row, &value),
                        None => txn.insert(&table, &Row::key(key), &value).await.map(|_| ()),
                    }
                });
                written.await.unwrap_or_else(|error| panic!("killed after {ns} ns, row {key}: {error}"));
            }
        }
        damaged
    })
}

/// More deaths with a snapshot open than there are snapshot slots: the others keep nothing for dead nodes.
#[test]
fn snapshots_of_the_dead_are_closed() {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let home = start(&sim, 0);
    executor.run(async {
        let _keeper = serve(&home, &handle);
        for death in 0..70 {
            let dying = start(&sim, 1);
            let doomed = serve(&dying, &handle);
            assert_eq!(doomed.join_cluster().await, Ok(vec![NodeId(0)]));
            assert_eq!(home.left_behind(), Vec::<String>::new(), "after {death} deaths");
            let snapshot = doomed.snapshot().await.expect("a snapshot");
            assert_eq!(home.left_behind().len(), 1);
            sim.inject(Fault::Kill(NodeId(1)));
            handle.sleep_ns(2_000_000).await;
            std::mem::forget((snapshot, doomed, dying));
        }
    });
}

/// One direction of a link is cut while a snapshot is taken and closed. It may fail; a while after the link has healed, neither node
/// keeps anything for it.
#[test]
fn snapshots_leave_nothing_behind_when_messages_are_lost() {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (home, other) = (start(&sim, 0), start(&sim, 1));
    executor.run(async {
        let (_keeper, taking) = (serve(&home, &handle), serve(&other, &handle));
        let mut failed = 0;
        for (from, to) in [(0, 1), (1, 0)] {
            for step in 0..30 {
                let taking = taking.clone();
                let taken = handle.spawn(async move { taking.snapshot().await.map(drop) });
                handle.sleep_ns(step * 500).await;
                let hop = Hop { from: NodeId(from), to: NodeId(to) };
                sim.inject(Fault::Cut(hop));
                handle.sleep_ns(5_000_000).await;
                failed += u32::from(taken.try_take().is_some_and(|taken| taken.is_err()));
                sim.inject(Fault::Heal(hop));
                handle.sleep_ns(5_000_000).await;
                for node in [&home, &other] {
                    assert_eq!(node.left_behind(), Vec::<String>::new(), "{hop:?} cut after {step} steps");
                }
            }
        }
        assert!(failed > 5, "{failed} snapshots failed");
    });
}

/// One direction of a link is cut while a table is dropped. A while after the link has healed, the table is gone on both nodes, and so
/// are its pages.
#[test]
fn a_dropped_table_goes_everywhere_when_messages_are_lost() {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (home, other) = (start(&sim, 0), start(&sim, 1));
    executor.run(async {
        let (dropping, _server) = (serve(&home, &handle), serve(&other, &handle));
        let recorder = Rc::new(RefCell::new(Recorder::default()));
        Tables::create(&dropping, &Workload::of_seed(1), &recorder).await.expect("the tables");
        let definition = Tables::of(&dropping).spread.definition();
        let mut failed = 0;
        for (from, to) in [(0, 1), (1, 0)] {
            for step in 0..30 {
                let again = TableDef { name: "again".to_owned(), ..definition.clone() };
                let table = dropping.create_table(again).await.expect("the name is free");
                let worker = dropping.clone();
                let dropped = handle.spawn(async move { worker.drop_table(&table).await });
                while home.table("again").is_some() {
                    handle.sleep_ns(100).await;
                }
                handle.sleep_ns(step * 500).await;
                let hop = Hop { from: NodeId(from), to: NodeId(to) };
                sim.inject(Fault::Cut(hop));
                handle.sleep_ns(5_000_000).await;
                failed += u32::from(dropped.try_take().is_some_and(|dropped| dropped.is_err()));
                sim.inject(Fault::Heal(hop));
                handle.sleep_ns(10_000_000).await;
                for node in [&home, &other] {
                    assert_eq!(node.leaks(), Vec::<String>::new(), "{hop:?} cut after {step} steps, {}", node.id());
                }
            }
        }
        assert!(failed > 2, "{failed} drops were not heard");
    });
}

#[test]
fn a_node_may_die_at_any_moment_of_a_transaction() {
    let damaged: Vec<usize> = (0..80).map(|step| die_after(step * 1_000)).collect();
    println!("damaged rows by the moment of death in µs: {damaged:?}");
    assert!(damaged.contains(&0));
}
