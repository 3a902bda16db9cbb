//! Rows of far scans go through the conditions of joins above as long as these keep few: the same rows, whatever they keep.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use std::sync::Arc;

use super::bed::{Bed, Table, on_runtime, plain, rows};
use super::late::{register, write};

/// The sum of a counter over all operators of a name.
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
