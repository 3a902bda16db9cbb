//! Rows of far scans go through the conditions of joins above as long as these keep few rows. The result has the same
//! rows, whatever they keep.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use std::sync::Arc;

use super::bed::{Bed, Table, on_runtime, plain, rows};
use super::parquet::{register, write};

/// The sum of a counter over all operators with a name.
fn counted(plan: &Arc<dyn ExecutionPlan>, operator: &str, counter: &str) -> usize {
    let below: usize = plan.children().into_iter().map(|child| counted(child, operator, counter)).sum();
    let is_wanted = |value: &MetricValue| value.name() == counter;
    let metrics = plan.metrics().filter(|_| plan.name() == operator);
    let here = metrics.and_then(|metrics| metrics.sum(|metric| is_wanted(metric.value())));
    below + here.map_or(0, |value| value.as_usize())
}

/// Three fifths of the rows have a build key, the others have none.
#[test]
fn a_condition_that_keeps_most_rests_until_it_keeps_few() {
    on_runtime(async {
        let table = |name, keys| Table { name, keys, text_bytes: 4, partitions: 1 };
        let build = table("l", (0..15_000).map(|row| Some(4 * row)).collect());
        let key = |row: u64| if row < 60_000 { row / 4 * 4 } else { row % 15_000 * 4 + 1 };
        let probe = table("r", (0..100_000).map(|row| Some(key(row))).collect());
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &probe.batch());
        let query = "SELECT l.id, a.n, a.pad FROM l JOIN (SELECT k64, count(*) AS n, max(pad) AS pad FROM r GROUP BY k64) a ON l.k64 = a.k64";
        let expected = rows(&plain(&[build.clone(), probe], 1), query).await.unwrap();
        assert_eq!(expected.len(), 15_000);
        for threads in [1, 3] {
            let bed = Bed::new(std::slice::from_ref(&build), threads, None, super::bed::config("auto", "auto"));
            register(&bed.context, "r", folder.path()).await;
            assert!(bed.rows(query).await.unwrap() == expected, "{threads} threads");
            let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
            datafusion::physical_plan::collect(Arc::clone(&plan), bed.context.task_ctx()).await.unwrap();
            let sieve = |counter| counted(&plan, "SieveExec", counter);
            assert_eq!(sieve("input_rows"), 100_000);
            assert!(sieve("output_rows") < 100_000 && sieve("output_rows") >= 60_000, "{}", sieve("output_rows"));
            if threads == 1 {
                assert!(sieve("asked_rows") < 200_000, "of three conditions none rests: {}", sieve("asked_rows"));
            }
            bed.assert_clean();
        }
    });
}

/// An operator between a join and a scan, and whether rows of the scan may be dropped because they have no key of the
/// join's build side.
const BETWEEN: [(&str, bool); 15] = [
    ("SELECT k64, count(*) AS n FROM r GROUP BY k64", true),
    ("SELECT k64, count(*) AS n FROM r GROUP BY k64, k32 HAVING count(*) > 1", true),
    ("SELECT k64, n FROM (SELECT k32, k64, count(*) AS n FROM r WHERE id > 7 GROUP BY k32, k64)", true),
    ("SELECT k64, count(*) AS n FROM r GROUP BY k64 UNION ALL SELECT k64, sum(id) AS n FROM s GROUP BY k64", true),
    ("SELECT k64, count(*) AS n FROM r WHERE k64 IN (SELECT k64 FROM s WHERE id % 3 > 0) GROUP BY k64", true),
    ("SELECT k64, count(*) AS n FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.k64 = r.k64) GROUP BY k64", true),
    ("SELECT r.k64, count(s.id) AS n FROM r LEFT JOIN s ON r.k64 = s.k64 GROUP BY r.k64", true),
    ("SELECT r.k64, count(s.id) AS n FROM s RIGHT JOIN r ON r.k64 = s.k64 GROUP BY r.k64", true),
    ("SELECT s.k64, count(*) AS n FROM r LEFT JOIN s ON r.k64 = s.k64 GROUP BY s.k64", false),
    ("SELECT r.k64, count(s.id) AS n FROM r FULL JOIN s ON r.k64 = s.k64 GROUP BY r.k64", false),
    ("SELECT k64, count(*) AS n FROM (SELECT * FROM r ORDER BY id LIMIT 3000) GROUP BY k64", false),
    ("SELECT k64, max(n) AS n FROM (SELECT k64, row_number() OVER (ORDER BY id) AS n FROM r) GROUP BY k64", false),
    ("SELECT k64, count(*) AS n FROM r GROUP BY GROUPING SETS ((k64), (k32))", false),
    ("SELECT k64 + 1 AS k64, count(*) AS n FROM r GROUP BY k64 + 1", false),
    ("SELECT max(k64) AS k64, k32 AS n FROM r GROUP BY k32", false),
];

#[test]
fn rows_without_a_key_of_the_build_side_are_dropped_where_nobody_else_misses_them() {
    on_runtime(async {
        let keys = |rows: u64, seed, of| super::bed::keys(rows, seed, 9, move |random| random % of);
        // With more partitions than threads, DataFusion would begin to read before the build side is complete.
        for threads in [2, 3] {
            let table = |name, keys| Table { name, keys, text_bytes: 4, partitions: threads };
            let tables =
                [table("l", keys(40, 1, 2000)), table("r", keys(9000, 2, 2000)), table("s", keys(500, 3, 2000))];
            let plain = plain(&tables, threads);
            let bed = Bed::new(&tables, threads, None, super::bed::config("auto", "auto"));
            // The second key stops at the aggregate; the third condition has nulls that match.
            for on in ["l.k64 = a.k64", "l.k64 = a.k64 AND l.id % 5 = a.n % 5", "l.k64 IS NOT DISTINCT FROM a.k64"] {
                for (between, is_free) in BETWEEN {
                    let query = format!("SELECT l.id, a.n FROM l JOIN ({between}) a ON {on}");
                    let expected = rows(&plain, &query).await.unwrap();
                    assert!(bed.rows(&query).await.unwrap() == expected, "{threads} threads: {query}");
                    let plan = bed.context.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
                    datafusion::physical_plan::collect(Arc::clone(&plan), bed.context.task_ctx()).await.unwrap();
                    let (came, left) =
                        (counted(&plan, "SieveExec", "input_rows"), counted(&plan, "SieveExec", "output_rows"));
                    // Below an inner join, that join's own filter may drop rows.
                    assert_eq!(came > 0 && left < came / 2, is_free, "{came} to {left}: {query}");
                }
            }
            bed.assert_clean();
        }
    });
}
