//! Databases with replicas, used as a library.

use farhold::{Config, Database};
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_txn::{Placement, Retry, TableDef};
use std::time::Duration;

/// A transaction that is given up releases its keys on other nodes, also when it is the last work of its thread.
#[test]
fn what_is_given_up_is_free_again() {
    let dir = farhold_testkit::memory_directory();
    // Other tests may have all processors for a while.
    let config =
        |node| Config::at(dir.path()).node(node, 2).memory_bytes(32 << 20).replicas(2).lease(Duration::from_secs(10));
    // Both found the cluster, so each waits for the other.
    let open = |node| {
        let config = config(node);
        std::thread::spawn(move || Database::open(&config).expect("a node"))
    };
    let nodes = [0, 1].map(open).map(|node| node.join().expect("open"));
    let created = nodes[0].run(async |worker, _| {
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new("t", schema) };
        worker.create_table(definition).await.map(|_| ())
    });
    assert_eq!(created.expect("a worker"), Ok(()));
    for id in 0..20 {
        let given_up = nodes[0].run(async |worker, _| {
            let table = worker.node().table("t").expect("on every node");
            let mut txn = worker.begin();
            let inserted = txn.insert(&table, &key(id), &[]).await;
            txn.abort();
            inserted.map(|_| ())
        });
        assert_eq!(given_up.expect("a worker"), Ok(()), "{id}");
        let inserted = nodes[1].run(async |worker, _| {
            let table = worker.node().table("t").expect("on every node");
            worker.run(Retry::never(), async |txn| txn.insert(&table, &key(id), &[]).await.map(|_| ())).await
        });
        assert_eq!(inserted.expect("a worker"), Ok(()), "{id}");
    }
}
