//! Databases with several nodes over a network.
#![cfg(feature = "libfabric")]

use farhold::{Config, Database};
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{Placement, Retry, TableDef};

/// One node writes rows of both in one transaction, the other reads them.
#[test]
fn two_nodes_over_tcp() {
    let dir = tempfile::tempdir().expect("a directory");
    let config = |node| Config::at(dir.path()).node(node, 2).memory_bytes(32 << 20).provider("libfabric:tcp;ofi_rxm");
    let nodes = [0, 1].map(|node| Database::open(&config(node)).expect("a node"));
    let written = nodes[0].run(async |worker, _| {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("amount", ColumnType::BigInt)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new("account", schema) };
        let table = worker.create_table(definition).await?;
        worker
            .run(Retry::default(), async |txn| {
                for id in 1..=10 {
                    let mut value = Vec::new();
                    let row = [Datum::Int(0), Datum::BigInt(i64::from(id))];
                    table.schema().encode_value(&row, &mut value).expect("a value");
                    txn.insert(&table, &key(id), &value).await?;
                }
                Ok(())
            })
            .await
    });
    assert_eq!(written.expect("a worker"), Ok(()));
    let sum = nodes[1].run(async |worker, _| {
        let table = worker.node().table("account").expect("on every node");
        let amount = table.layout().i64("amount").expect("a column");
        worker
            .run(Retry::default(), async |txn| {
                let mut sum = 0;
                for id in 1..=10 {
                    let row = txn.get(&table, &key(id)).await?.expect("a row");
                    sum += amount.get(txn.value(row));
                }
                Ok(sum)
            })
            .await
    });
    assert_eq!(sum.expect("a worker"), Ok(55));
}
