//! Parts that a plan has twice: the rows are the same, and they are computed once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use farhold_join::datafusion::JoinConfig;

use super::bed::{Bed, MIB, Table, keys, on_runtime, plain, rows};

fn tables() -> [Table; 2] {
    let table = |name, seed, rows| Table {
        name,
        keys: keys(rows, seed, 9, |random| random % 40),
        text_bytes: 40,
        partitions: 2,
    };
    [table("l", 1, 500), table("r", 2, 4000)]
}

/// A query, and the number of copies of parts in its plan.
const QUERIES: [(&str, usize); 13] = [
    // The shape of TPC-H's query 15.
    (
        "WITH v AS (SELECT k64, sum(id) AS n FROM r GROUP BY k64)
         SELECT l.id, v.n FROM l JOIN v ON l.k64 = v.k64 WHERE v.n = (SELECT max(n) FROM v)",
        2,
    ),
    (
        "WITH v AS (SELECT k64, sum(id) AS n FROM r WHERE id % 3 = 1 GROUP BY k64)
         SELECT n FROM v UNION ALL SELECT n FROM v UNION ALL SELECT n + 1 FROM v",
        3,
    ),
    (
        "WITH v AS (SELECT l.k64, max(r.pad) AS n FROM l JOIN r ON l.k64 = r.k64 GROUP BY l.k64)
         SELECT a.k64, b.n FROM v a JOIN v b ON a.n = b.n",
        2,
    ),
    ("WITH v AS (SELECT count(*) AS n FROM r WHERE id > 7) SELECT a.n + b.n FROM v a CROSS JOIN v b", 2),
    // A part of a part is counted once.
    (
        "WITH v AS (SELECT k64, count(*) AS n FROM r GROUP BY k64), w AS (SELECT n, count(*) AS m FROM v GROUP BY n)
         SELECT m FROM w UNION ALL SELECT m FROM w UNION ALL SELECT n FROM v",
        2,
    ),
    (
        "WITH v AS (SELECT k64, sum(id) AS n FROM r GROUP BY k64) (SELECT n FROM v) UNION ALL (SELECT n FROM v LIMIT 0)",
        0,
    ),
    // These are not the same.
    ("WITH v AS (SELECT sum(id) AS n, min(id) AS m FROM r GROUP BY k64) SELECT n FROM v UNION ALL SELECT m FROM v", 0),
    (
        "SELECT sum(id) AS n FROM r WHERE id > 5 GROUP BY k64 UNION ALL SELECT sum(id) FROM r WHERE id > 6 GROUP BY k64",
        0,
    ),
    ("SELECT sum(id) AS n FROM r GROUP BY k64 UNION ALL SELECT min(id) FROM r GROUP BY k64", 0),
    ("SELECT sum(id) AS n FROM r GROUP BY k64 UNION ALL SELECT sum(DISTINCT id) FROM r GROUP BY k64", 0),
    ("SELECT sum(id) FILTER (WHERE id > 3) AS n FROM r GROUP BY k64 UNION ALL SELECT sum(id) FROM r GROUP BY k64", 0),
    ("SELECT sum(id) AS n FROM r GROUP BY k64 UNION ALL SELECT sum(id) FROM l GROUP BY k64", 0),
    ("SELECT sum(id) AS n FROM r GROUP BY k64 UNION ALL SELECT sum(id) FROM r GROUP BY k32", 0),
];

fn copies(plan: &str) -> usize {
    plan.matches("CommonExec: ").count()
}

#[test]
fn rows_are_the_same_and_equal_parts_are_found() {
    on_runtime(async {
        for threads in [1, 2, 5] {
            let plain = plain(&tables(), threads);
            for common in [true, false] {
                let mut config = JoinConfig::default();
                config.common = common;
                let bed = Bed::new(&tables(), threads, None, config);
                for (query, expected_copies) in QUERIES {
                    let answer = bed.rows(query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
                    assert!(answer == rows(&plain, query).await.unwrap(), "{threads} threads, {common}: {query}");
                    let plan = bed.explain(query).await;
                    assert_eq!(copies(&plan), if common { expected_copies } else { 0 }, "{query}: {plan}");
                }
                bed.assert_clean();
            }
        }
    });
}

#[test]
fn a_part_is_run_in_one_of_its_copies() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let plan = bed.explain(&format!("ANALYZE {}", QUERIES[1].0)).await;
        let filters = plan.lines().filter(|line| line.contains("FilterExec: "));
        let ran: Vec<bool> = filters.map(|line| line.contains("output_rows=1.33 K")).collect();
        assert_eq!(ran.iter().filter(|&&ran| ran).count(), 1, "{plan}");
        assert_eq!(ran.len(), 3, "{plan}");
    });
}

#[test]
fn random_numbers_are_drawn_for_each() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "WITH v AS (SELECT sum(random()) AS n FROM r) SELECT a.n = b.n FROM v a CROSS JOIN v b";
        assert_eq!(bed.rows(query).await.unwrap(), ["false"]);
    });
}

#[test]
fn what_has_no_room_is_kept_in_files() {
    let wide = Table { name: "r", keys: keys(40_000, 2, 9, |random| random), text_bytes: 90, partitions: 2 };
    let query = "WITH v AS (SELECT pad, k64, max(id) AS n FROM r GROUP BY pad, k64)
        SELECT pad, n FROM v UNION ALL SELECT pad, n + 1 FROM v";
    on_runtime(async {
        let expected = rows(&plain(std::slice::from_ref(&wide), 2), query).await.unwrap();
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(24 * MIB as usize, 1.0);
        let bed = Bed::with_runtime(std::slice::from_ref(&wide), 2, runtime, None, JoinConfig::default());
        assert!(bed.rows(query).await.unwrap() == expected);
        let plan = bed.explain(&format!("ANALYZE {query}")).await;
        let spilled = |line: &&str| {
            line.contains("CommonExec: ") && line.contains("spilled_rows=") && !line.contains("spilled_rows=0")
        };
        assert_eq!(plan.lines().filter(spilled).count(), 1, "{plan}");
        bed.assert_clean();
    });
}

#[test]
fn a_plan_that_is_kept_holds_nothing_and_runs_again() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 3, None, JoinConfig::default());
        for (query, _) in QUERIES {
            let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
            let mut counts = Vec::new();
            for _ in 0..3 {
                let plan = reset_plan_states(Arc::clone(&plan)).unwrap();
                let batches = datafusion::physical_plan::collect(plan, bed.context.task_ctx()).await.unwrap();
                counts.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
                bed.assert_clean();
            }
            assert!(counts.iter().all(|&count| count == counts[0]), "{query}: {counts:?}");
        }
    });
}

#[test]
fn a_part_that_fails_fails_the_query() {
    let bed = on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let query = "WITH v AS (SELECT k64, sum(1 / (id - 77)) AS n FROM r GROUP BY k64)
            SELECT a.n, b.n FROM v a JOIN v b ON a.k64 = b.k64";
        assert_eq!(copies(&bed.explain(query).await), 2);
        let error = bed.rows(query).await.unwrap_err().to_string();
        assert!(error.to_lowercase().contains("divide by zero"), "{error}");
        bed
    });
    // The work beside the part that failed ends with the runtime.
    bed.assert_clean();
}
