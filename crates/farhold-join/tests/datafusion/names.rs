//! Filters of joins above schemas that have a name twice: they drop no row of the wrong table.
//!
//! Scans of Parquet files apply a filter to every row here, so that each row that it drops is noticed.

use tempfile::TempDir;

use super::bed::{Bed, Table, config, keys, on_runtime, plain, rows};
use super::parquet::{register, write};

/// `c` has only the first few row numbers; keys spread them over all rows of `a` and `b`.
fn tables() -> [Table; 3] {
    let table = |name, seed, rows| Table {
        name,
        keys: keys(rows, seed, 0, |random| random % 2000),
        text_bytes: 4,
        partitions: 2,
    };
    [table("a", 1, 3000), table("b", 2, 3000), table("c", 3, 20)]
}

/// A query, and whether each join's filter is known to find its column.
const QUERIES: [(&str, bool); 7] = [
    ("SELECT a.id, b.id, c.pad FROM a JOIN b ON a.k64 = b.k64 JOIN c ON b.id = c.id", false),
    ("SELECT a.id, b.id, c.pad FROM a JOIN b ON a.k64 = b.k64 JOIN c ON a.id = c.id", true),
    ("SELECT a.id, b.id, c.pad FROM a JOIN b ON a.k64 = b.k64 AND a.id + b.id > 300 JOIN c ON c.id = b.id", false),
    (
        "SELECT c.id, x, y, tag FROM c JOIN (SELECT a.id AS x, b.id AS y, a.text || '!' AS tag FROM a JOIN b ON a.k64 = b.k64) ON c.id = y",
        true,
    ),
    (
        "SELECT c.id, a.id, b.id, tag FROM c JOIN (SELECT a.id, b.id, a.text || '!' AS tag FROM a JOIN b ON a.k64 = b.k64) ON c.id = b.id",
        false,
    ),
    (
        "SELECT c.id, a.id, b.id, tag FROM c JOIN (SELECT a.id, b.id, a.text || '!' AS tag FROM a JOIN b ON a.k64 = b.k64) ON c.id = a.id",
        false,
    ),
    (
        "SELECT c.id, x, y FROM c JOIN (SELECT a.id AS x, b.id AS y FROM a LEFT JOIN b ON a.k64 = b.k64 UNION ALL SELECT k64, id FROM b) ON c.id = y",
        false,
    ),
];

async fn bed(folders: &[TempDir; 3], partitioning: &str) -> Bed {
    let bed = Bed::new(&[], 2, None, config(partitioning, "auto"));
    for (table, folder) in tables().iter().zip(folders) {
        register(&bed.context, table.name, folder.path()).await;
    }
    // The smaller side of each join is the build side, by statistics of the files, and its filter is on the other side.
    bed.context.sql("SET datafusion.optimizer.join_reordering = true").await.unwrap();
    bed.context.sql("SET datafusion.execution.parquet.pushdown_filters = true").await.unwrap();
    bed
}

#[test]
fn a_filter_drops_no_row_by_another_column_of_its_name() {
    on_runtime(async {
        let folders = tables().map(|table| {
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &table.batch());
            folder
        });
        let plain = plain(&tables(), 2);
        for partitioning in ["partitioned", "shared", "auto"] {
            let bed = bed(&folders, partitioning).await;
            for (query, is_found) in QUERIES {
                let expected = rows(&plain, query).await.unwrap();
                assert!(!expected.is_empty(), "{query}");
                assert!(bed.rows(query).await.unwrap() == expected, "{partitioning}: {query}");
                let plan = bed.explain(query).await;
                assert!(!is_found || plan.matches("DynamicFilter").count() >= 2, "the joins have filters: {plan}");
            }
            bed.assert_clean();
        }
    });
}
