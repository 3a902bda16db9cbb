use super::*;
use datafusion::logical_expr::{col, lit};
use farhold_fabric::{Executor, Fabric};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{NoColumns, Node, NodeConfig, NodeId, PageTask, Retry, TableDef};

const ROWS: i32 = 20_000;

/// A scan yields its thread between two page tasks once its turn is over, even while it finds nothing, and finds the same rows.
#[test]
fn scans_of_rows_take_turns() {
    let directory = tempfile::tempdir().expect("a directory");
    let fabric = Fabric::join_shm(directory.path(), NodeId(0)).expect("the fabric");
    let config = NodeConfig { region_bytes: 32 << 20, ..NodeConfig::default() };
    let node = Node::open(fabric, config).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let (table, snapshot, pages) = executor.run(async {
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let table = worker.create_table(TableDef::new("t", schema)).await.expect("a table");
        for first in (0..ROWS).step_by(1_000) {
            let filled = worker.run(Retry::never(), async |txn| {
                for id in first..first + 1_000 {
                    let (mut key, mut value) = (Vec::new(), Vec::new());
                    table.schema().encode_key(&[Datum::Int(id)], &mut key).expect("a key");
                    table.schema().encode_value(&[Datum::Int(id)], &mut value).expect("a value");
                    txn.insert(&table, &key, &value).await?;
                }
                Ok(())
            });
            filled.await.expect("inserted");
        }
        let snapshot = Arc::new(worker.snapshot().await.expect("a snapshot"));
        let pages: Arc<[PageTask]> = worker.snapshot_pages(&snapshot, &table).await.expect("pages").into();
        (Arc::new(TableInfo::new(table).expect("a table")), snapshot, pages)
    });
    assert!(pages.len() > 3, "{}", pages.len());
    let found = |condition: Expr, turn| {
        let schema = Arc::new(table.arrow_full.project(&[0]).expect("its column"));
        let conditions = [condition];
        let (filter, undecided) = ScanFilter::split(&table, &conditions);
        assert!(undecided.is_empty());
        let scan = SnapshotScan::new(
            (Arc::clone(&table), Arc::clone(&schema), vec![0]),
            (Arc::clone(&snapshot), Access::Rows { pages: Arc::clone(&pages), reason: NoColumns::NotKept }),
            (&filter, Vec::new()),
            1,
            None,
            CancelHandle::default(),
            Statistics::new_unknown(&schema),
        );
        let mut part = Part::new(&scan, 0, BATCH_ROWS, Arc::clone(&snapshot), None);
        let (mut rows, mut pauses) = (0, 0);
        loop {
            match part.take_turn(turn).expect("a turn") {
                Turn::Batch(batch) => rows += batch.num_rows(),
                Turn::Pause => pauses += 1,
                Turn::End => return (rows, pauses),
            }
        }
    };
    assert_eq!(found(col("id").lt(lit(0)), Duration::MAX), (0, 0));
    assert_eq!(found(col("id").lt(lit(0)), Duration::ZERO), (0, pages.len()));
    let (rows, pauses) = found(col("id").gt_eq(lit(0)), Duration::ZERO);
    assert!(rows == ROWS as usize && (1..pages.len()).contains(&pauses), "{rows} {pauses}");
    drop((snapshot, worker, executor));
}
