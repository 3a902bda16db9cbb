//! A node dies at every moment of a transaction that has rows elsewhere, and starts again: what it had locked and reserved
//! at the others is free then, or known to be damaged.

use farhold_fabric::provider::sim::{Fault, Faults, Rdma, Sim};
use farhold_fabric::{Executor, Handle, NodeId};
use farhold_sim::workload::{Recorder, Row, Tables, Workload};
use farhold_txn::{Node, NodeConfig, Retry, TxnError, Worker};
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

/// Kills node 1 so many nanoseconds after its transaction has begun; how many rows of node 0 are damaged.
fn die_after(ns: u64) -> usize {
    let executor = Executor::virtual_time(9);
    let handle = executor.handle();
    let sim = Sim::new(&handle, Rdma, Faults::default());
    let (home, dying) = (start(&sim, 0), start(&sim, 1));
    executor.run(async {
        let (keeper, doomed) = (serve(&home, &handle), serve(&dying, &handle));
        let recorder = Rc::new(RefCell::new(Recorder::default()));
        Tables::create(&keeper, &Workload::of_seed(1), &recorder).await.expect("the tables");
        // It goes on in its own task, where it will hear that it is dead; so it is stopped for good.
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
            // Whatever became of it, every row can be read and written again.
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

#[test]
fn a_node_may_die_at_any_moment_of_a_transaction() {
    let damaged: Vec<usize> = (0..80).map(|step| die_after(step * 1_000)).collect();
    println!("damaged rows by the moment of death in µs: {damaged:?}");
    assert!(damaged.contains(&0));
}
