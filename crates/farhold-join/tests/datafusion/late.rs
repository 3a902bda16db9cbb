//! Scans of Parquet files that read columns late: the same rows, and only where few are left.

use std::fs::File;
use std::path::Path;

use arrow::array::RecordBatch;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use farhold_join::datafusion::JoinConfig;

use super::bed::{Bed, Table, keys, on_runtime, plain, rows};

/// Row groups and pages so small that a filter leaves some of them empty.
pub fn write(folder: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(5000))
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(100)
        .build();
    for (number, start) in (0..batch.num_rows()).step_by(12_000).enumerate() {
        let file = File::create(folder.join(format!("{number}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.clone())).unwrap();
        writer.write(&batch.slice(start, 12_000.min(batch.num_rows() - start))).unwrap();
        writer.close().unwrap();
    }
}

pub async fn register(context: &SessionContext, name: &str, folder: &Path) {
    let options = ParquetReadOptions::default();
    context.register_parquet(name, folder.to_str().unwrap(), options).await.unwrap();
}

/// A build side of `rows` keys from 0 to 20,000, with nulls among them.
fn build_side(rows: u64) -> Table {
    Table { name: "l", keys: keys(rows, 11, 7, |random| random % 20_000), text_bytes: 4, partitions: 2 }
}

fn probe_side() -> Table {
    Table { name: "r", keys: keys(30_000, 12, 500, |random| random % 20_000), text_bytes: 20, partitions: 2 }
}

const QUERIES: [&str; 7] = [
    "SELECT l.id, r.id, r.pad, r.price FROM l JOIN r ON l.k64 = r.k64",
    "SELECT l.id, r.pad, r.text FROM l JOIN r ON l.k32 = r.k32 AND r.id % 3 = 0",
    "SELECT r.pad FROM r WHERE r.k64 IN (SELECT l.k64 FROM l)",
    "SELECT l.id FROM l WHERE l.k64 NOT IN (SELECT r.k64 FROM r WHERE r.id > 100)",
    "SELECT l.id, r.pad, r.real FROM l JOIN r ON l.k64 IS NOT DISTINCT FROM r.k64",
    "SELECT l.id, a.n, a.pad FROM l JOIN (SELECT k64, count(*) AS n, max(pad) AS pad, min(real) FROM r GROUP BY k64) a ON l.k64 = a.k64",
    "SELECT r.pad, r.text, r.real FROM r WHERE r.id BETWEEN 12300 AND 12340 OR r.id = 29000",
];

fn config(late: bool) -> JoinConfig {
    let mut config = JoinConfig::default();
    config.late = late;
    config
}

#[test]
fn rows_are_the_same_whatever_the_filters_keep() {
    on_runtime(async {
        let folder = tempfile::tempdir().unwrap();
        let probe = probe_side();
        write(folder.path(), &probe.batch());
        for build in [build_side(0), build_side(3), build_side(300), build_side(25_000)] {
            let plain = plain(&[build.clone(), probe.clone()], 2);
            for late in [true, false] {
                let bed = Bed::new(std::slice::from_ref(&build), 2, None, config(late));
                register(&bed.context, "r", folder.path()).await;
                for query in QUERIES {
                    let answer = bed.rows(query).await.unwrap();
                    assert!(answer == rows(&plain, query).await.unwrap(), "{} rows: {query}", build.keys.len());
                    let plan = bed.explain(query).await;
                    assert!(late || !plan.contains("LateScanExec"), "{plan}");
                }
                bed.assert_clean();
            }
        }
    });
}

#[test]
fn columns_are_read_late_where_few_rows_are_left() {
    on_runtime(async {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &probe_side().batch());
        for (build_rows, is_late) in [(100, true), (15_000, false)] {
            let bed = Bed::new(&[build_side(build_rows)], 2, None, config(true));
            register(&bed.context, "r", folder.path()).await;
            for query in [QUERIES[0], QUERIES[5]] {
                let plan = bed.explain(&format!("ANALYZE {query}")).await;
                let wanted = if is_late {
                    "columns=late (the first filter is expected to keep 0."
                } else {
                    "columns=all at once"
                };
                assert!(plan.contains(wanted), "{build_rows} build rows: {plan}");
                assert!(!is_late || !plan.contains("pushdown_rows_pruned=0,"), "{plan}");
            }
            assert!(bed.explain(QUERIES[0]).await.contains("columns=as the filters turn out"));
        }
        // By statistics of the scan's own condition.
        let bed = Bed::new(&[], 2, None, config(true));
        register(&bed.context, "r", folder.path()).await;
        for (condition, is_late) in [("id BETWEEN 12300 AND 12340", true), ("id BETWEEN 12300 AND 22340", false)] {
            let plan = bed.explain(&format!("ANALYZE SELECT pad, text, real FROM r WHERE {condition}")).await;
            assert_eq!(plan.contains("columns=late"), is_late, "{condition}: {plan}");
        }
    });
}

/// A plan that runs twice chooses twice.
#[test]
fn a_plan_that_is_kept_reads_all_files_each_time() {
    on_runtime(async {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &probe_side().batch());
        let bed = Bed::new(&[build_side(100)], 2, None, config(true));
        register(&bed.context, "r", folder.path()).await;
        let plan = bed.context.sql(QUERIES[0]).await.unwrap().create_physical_plan().await.unwrap();
        let mut counts = Vec::new();
        for _ in 0..3 {
            let plan =
                datafusion::physical_plan::execution_plan::reset_plan_states(std::sync::Arc::clone(&plan)).unwrap();
            let batches = datafusion::physical_plan::collect(plan, bed.context.task_ctx()).await.unwrap();
            counts.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert!(counts[0] > 50 && counts.iter().all(|&count| count == counts[0]), "{counts:?}");
    });
}
