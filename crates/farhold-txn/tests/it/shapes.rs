//! A node that is started with other settings than those of its directory or of its cluster's register: refused, and nothing is lost.

use crate::common::{self, join, key, new_dir, people, put};
use farhold_fabric::Executor;
use farhold_txn::{HomeAgent, Node, NodeConfig, ReplicationConfig, TxnError};
use std::sync::Arc;
use tempfile::TempDir;

/// Node 0 of a cluster, with this number of nodes and of copies of each row.
fn open(dir: &TempDir, nodes: u8, replicas: u8) -> Result<Arc<Node>, TxnError> {
    let replication = ReplicationConfig { replicas, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
    Node::open(join(dir, 0), NodeConfig { nodes, region_bytes: 16 << 20, replication, ..NodeConfig::default() })
}

fn refusal(dir: &TempDir, nodes: u8, replicas: u8) -> String {
    match open(dir, nodes, replicas).map(drop) {
        Err(TxnError::OtherCluster { reason }) => reason.into(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_of_a_cluster_of_another_shape_is_refused_and_its_rows_stay() {
    let dir = new_dir();
    let node = open(&dir, 1, 1).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.create_table(people()).await.expect("a table");
        let mut txn = worker.begin();
        put(&mut txn, &table, 1, "ann", 30).await.expect("inserted");
        txn.commit().await.expect("committed");
    });
    drop(worker);
    node.close();
    drop(node);
    // With copies, a node makes its region anew at each start: here that would take the only copy away.
    let words = refusal(&dir, 3, 2);
    assert!(words.contains("directory") && words.contains("1 nodes with 1 copies"), "{words}");
    refusal(&dir, 3, 1);
    let node = open(&dir, 1, 1).expect("as it was");
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = node.table("people").expect("the table");
        assert_eq!(common::look(&mut worker.begin(), &table, 1).await, Some(("ann".into(), 30)));
        assert!(worker.begin().get(&table, &key(2)).await.expect("a read").is_none());
    });
}

#[test]
fn what_an_earlier_start_with_copies_has_left_is_made_anew_and_nobody_else_takes_it() {
    let dir = new_dir();
    drop(open(&dir, 3, 2).expect("a node"));
    let words = refusal(&dir, 3, 1);
    assert!(words.contains("3 nodes with 2 copies"), "{words}");
    drop(open(&dir, 3, 3).expect("a node again: what it is a member of, the register says"));
}

/// Waits until the node's cluster refuses it.
fn refused(node: &Arc<Node>, dir: &TempDir) -> String {
    let agent = HomeAgent::start_member(node, dir.path()).expect("an agent");
    let error = loop {
        match node.refusal() {
            Some(error) => break error,
            None => std::thread::yield_now(),
        }
    };
    assert!(node.is_expelled() && !node.is_member());
    drop(agent);
    error.to_string()
}

#[test]
fn a_register_of_another_cluster_refuses_the_node_and_says_why() {
    let dir = new_dir();
    let first = open(&dir, 2, 2).expect("a node");
    let agent = HomeAgent::start_member(&first, dir.path()).expect("an agent");
    // It has founded the cluster, and is its only node.
    while !matches!(farhold_txn::FileRegister::peek(dir.path()), Ok(Some(_))) {
        std::thread::yield_now();
    }
    drop((agent, first));
    for (nodes, replicas) in [(3, 2), (3, 3)] {
        let node = open(&dir, nodes, replicas).expect("a node");
        let words = refused(&node, &dir);
        assert!(words.contains("register") && words.contains("2 nodes with 2 copies"), "{words}");
    }
    std::fs::write(dir.path().join("register"), "somebody else's").expect("written");
    let words = refused(&open(&dir, 2, 2).expect("a node"), &dir);
    assert!(words.contains("not this cluster's"), "{words}");
}

/// A mirror could not say where the last of its rows are.
#[test]
fn a_region_that_no_mirror_takes_is_refused_before_anything_is_made() {
    let dir = new_dir();
    let of = |replicas, region_bytes| {
        let replication = ReplicationConfig { replicas, ring_bytes: 64 << 10, ..ReplicationConfig::default() };
        Node::open(join(&dir, 0), NodeConfig { nodes: 2, region_bytes, replication, ..NodeConfig::default() })
    };
    let refused = of(2, (48 << 30) + 4096).map(drop).expect_err("too long").to_string();
    assert!(refused.contains("takes") && refused.contains(&(48_u64 << 30).to_string()), "{refused}");
    drop(of(2, 16 << 20).expect("a node"));
}
