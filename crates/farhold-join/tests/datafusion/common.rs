//! Parts that a plan has twice: the rows are the same, and they are computed once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use farhold_join::datafusion::JoinConfig;
use futures::TryStreamExt;

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
const QUERIES: [(&str, usize); 33] = [
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
    // A part of a part runs in one copy of the whole, and serves the third place too.
    (
        "WITH v AS (SELECT k64, count(*) AS n FROM r GROUP BY k64), w AS (SELECT n, count(*) AS m FROM v GROUP BY n)
         SELECT m FROM w UNION ALL SELECT m FROM w UNION ALL SELECT n FROM v",
        5,
    ),
    // Joins, windows, sorts with a limit, and unions of them.
    (
        "WITH v AS (SELECT l.id, r.pad FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100)
         SELECT id, pad FROM v UNION ALL SELECT id, pad FROM v",
        2,
    ),
    (
        "WITH v AS (SELECT l.id, r.pad FROM l LEFT JOIN r ON l.k64 = r.k64 AND r.id < 200 AND l.id + r.id > 90)
         SELECT a.id, b.pad FROM v a JOIN v b ON a.id = b.id AND a.pad = b.pad",
        2,
    ),
    (
        "WITH v AS (SELECT id, k64, row_number() OVER (PARTITION BY k64 ORDER BY id) AS n FROM r)
         SELECT a.id, b.n FROM v a JOIN v b ON a.id = b.id WHERE a.n < 3 AND b.n < 3",
        2,
    ),
    (
        "WITH v AS (SELECT id, sum(id) OVER (PARTITION BY k64) AS n, min(id) OVER (ORDER BY id ROWS 3 PRECEDING) AS m FROM r)
         SELECT a.n, b.m FROM v a JOIN v b ON a.id = b.id AND a.n = b.n AND a.m = b.m",
        2,
    ),
    (
        "WITH v AS (SELECT id FROM r ORDER BY k64 DESC, id LIMIT 30 OFFSET 5) SELECT a.id + b.id FROM v a CROSS JOIN v b",
        2,
    ),
    (
        "WITH v AS (SELECT l.id FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 90 UNION ALL SELECT id FROM r)
         SELECT a.id FROM v a JOIN v b ON a.id = b.id",
        2,
    ),
    // Each of the two parts stands twice in the other, which stands twice.
    (
        "WITH v AS (SELECT l.id, r.k32 FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100),
            w AS (SELECT a.id, max(b.k32) AS n FROM v a JOIN v b ON a.id = b.id AND a.k32 = b.k32 GROUP BY a.id)
         SELECT n FROM w UNION ALL SELECT n + 1 FROM w",
        6,
    ),
    (
        "WITH v AS (SELECT k64, sum(id) AS n FROM r GROUP BY k64) (SELECT n FROM v) UNION ALL (SELECT n FROM v LIMIT 0)",
        0,
    ),
    // The second join hands out fewer columns, and is above one that does.
    (
        "SELECT l.k64, sum(r.id) FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100 GROUP BY l.k64
         HAVING sum(r.id) > (SELECT avg(r.id) FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100)",
        2,
    ),
    (
        "SELECT a.id AS x, l.id AS y, r.id AS z FROM l JOIN r ON l.k64 = r.k64 JOIN l a ON a.id = r.id AND a.id < l.id WHERE r.id < 100
         UNION ALL SELECT a.id, 0, 0 FROM l JOIN r ON l.k64 = r.k64 JOIN l a ON a.id = r.id AND a.id < l.id WHERE r.id < 100",
        2,
    ),
    // Of two narrower joins one is shared. The other makes more rows than it reads.
    (
        "SELECT l.id AS x, r.id AS y FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100
         UNION ALL SELECT l.id, 0 FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100
         UNION ALL SELECT a.id, b.k64 FROM r a JOIN r b ON a.k64 = b.k64
         UNION ALL SELECT a.id, 0 FROM r a JOIN r b ON a.k64 = b.k64",
        2,
    ),
    // The columns are others, or the rows.
    (
        "SELECT l.k64, l.k32, sum(r.id) FROM l JOIN r ON l.k64 = r.k64 AND l.k32 <= r.k32 WHERE r.id < 100 GROUP BY l.k64, l.k32
         HAVING sum(r.id) > (SELECT avg(r.id) FROM l JOIN r ON l.k64 = r.k64 AND l.k32 < r.k32 WHERE r.id < 100)",
        0,
    ),
    (
        "SELECT l.id AS x, r.id AS y FROM l LEFT JOIN r ON l.k64 = r.k64 AND r.id < 100
         UNION ALL SELECT l.id, 0 FROM l LEFT JOIN r ON l.k64 = r.k64 AND r.id < 100",
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
    (
        "WITH v AS (SELECT l.id, r.pad FROM l JOIN r ON l.k64 = r.k64 WHERE r.id < 100)
         SELECT id, pad FROM v UNION ALL SELECT id, pad FROM v WHERE id < 70",
        0,
    ),
    (
        "SELECT l.id FROM l LEFT JOIN r ON l.k64 = r.k64 AND r.id < 90
         UNION ALL SELECT l.id FROM l RIGHT JOIN r ON l.k64 = r.k64 AND r.id < 90",
        0,
    ),
    (
        "SELECT first_value(k32) IGNORE NULLS OVER (PARTITION BY k64 % 7 ORDER BY id) AS n FROM r
         UNION ALL SELECT first_value(k32) OVER (PARTITION BY k64 % 7 ORDER BY id) FROM r",
        0,
    ),
    (
        "SELECT sum(id) OVER (ORDER BY id ROWS 2 PRECEDING) AS n FROM r
         UNION ALL SELECT sum(id) OVER (ORDER BY id ROWS 3 PRECEDING) FROM r",
        0,
    ),
    (
        "SELECT n FROM (SELECT id AS n FROM r ORDER BY id LIMIT 3)
         UNION ALL SELECT n FROM (SELECT id AS n FROM r ORDER BY id LIMIT 4)",
        0,
    ),
    // Neither are these worth it: scans, and more rows than were read.
    ("WITH v AS (SELECT id + 1 AS n FROM r WHERE k64 > 9) SELECT n FROM v UNION ALL SELECT n FROM v", 0),
    (
        "WITH v AS (SELECT l.id + r.id AS n, row_number() OVER (ORDER BY l.id, r.id) AS m FROM l CROSS JOIN r WHERE l.id < 20)
         SELECT a.n FROM v a JOIN v b ON a.m = b.m AND a.n = b.n",
        0,
    ),
    // The condition of a window's FILTER cannot be compared.
    (
        "WITH v AS (SELECT id, sum(id) FILTER (WHERE id % 2 = 0) OVER (PARTITION BY k64) AS n FROM r)
         SELECT a.n FROM v a JOIN v b ON a.id = b.id AND a.n = b.n",
        0,
    ),
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
        for part in [
            "SELECT sum(random()) AS n FROM r",
            "SELECT n FROM (SELECT l.id, random() AS n FROM l JOIN r ON l.k64 = r.k64) ORDER BY id LIMIT 1",
            "SELECT max(m) AS n FROM (SELECT sum(id) FILTER (WHERE random() < 0.5) OVER () AS m FROM r)",
        ] {
            let query = format!("WITH v AS ({part}) SELECT a.n = b.n FROM v a CROSS JOIN v b");
            assert_eq!(bed.rows(&query).await.unwrap(), ["false"], "{part}");
        }
    });
}

/// A join above one copy keeps few keys; the other copy is read whole.
#[test]
fn a_filter_of_one_copy_drops_no_rows_of_the_other() {
    let parts = [
        "SELECT k64 AS k, sum(id) AS n FROM r GROUP BY k64",
        "SELECT r.k64 AS k, r.id AS n FROM l JOIN r ON l.id = r.id WHERE l.k32 > 3",
    ];
    let few = "SELECT v.k, v.n FROM (SELECT k64 FROM l WHERE id = 3) s JOIN v ON s.k64 = v.k";
    let all = "SELECT k, n FROM v";
    on_runtime(async {
        let plain = plain(&tables(), 2);
        let [with, without] = [true, false].map(|common| {
            let mut config = JoinConfig::default();
            config.common = common;
            Bed::new(&tables(), 2, None, config)
        });
        for (part, (one, other)) in parts.into_iter().flat_map(|part| [(part, (few, all)), (part, (all, few))]) {
            let query = format!("WITH v AS ({part}) {one} UNION ALL {other}");
            assert_eq!(copies(&with.explain(&query).await), 2, "{query}");
            assert!(without.explain(&query).await.contains("SieveExec"), "no filter to hand down: {query}");
            let expected = rows(&plain, &query).await.unwrap();
            assert!(with.rows(&query).await.unwrap() == expected, "{query}");
        }
    });
}

#[test]
fn what_has_no_room_is_kept_in_files() {
    let wide = Table { name: "r", keys: keys(40_000, 2, 9, |random| random), text_bytes: 90, partitions: 2 };
    for part in [
        "SELECT pad, k64, max(id) AS n FROM r GROUP BY pad, k64",
        "SELECT a.pad, b.id AS n FROM r a JOIN r b ON a.k64 = b.k64",
    ] {
        let query = format!("WITH v AS ({part}) SELECT pad, n FROM v UNION ALL SELECT pad, n + 1 FROM v");
        on_runtime(async {
            let expected = rows(&plain(std::slice::from_ref(&wide), 2), &query).await.unwrap();
            let runtime = RuntimeEnvBuilder::new().with_memory_limit(24 * MIB as usize, 1.0);
            let bed = Bed::with_runtime(std::slice::from_ref(&wide), 2, runtime, None, JoinConfig::default());
            assert!(bed.rows(&query).await.unwrap() == expected);
            let plan = bed.explain(&format!("ANALYZE {query}")).await;
            let spilled = |line: &&str| {
                line.contains("CommonExec: ") && line.contains("spilled_rows=") && !line.contains("spilled_rows=0")
            };
            assert_eq!(plan.lines().filter(spilled).count(), 1, "{plan}");
            bed.assert_clean();
        });
    }
}

/// The streams of a plan's partitions, those of one copy behind those of the other.
fn streams(bed: &Bed, plan: &Arc<dyn ExecutionPlan>) -> Vec<SendableRecordBatchStream> {
    let context = bed.context.task_ctx();
    let partitions = plan.output_partitioning().partition_count();
    (0..partitions).map(|partition| plan.execute(partition, Arc::clone(&context)).unwrap()).collect()
}

#[test]
fn copies_are_read_one_after_the_other_and_may_be_left_early() {
    on_runtime(async {
        let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
        let (query, _) = QUERIES[5];
        let plan = bed.context.sql(query).await.unwrap().create_physical_plan().await.unwrap();
        let copies = streams(&bed, &plan);
        let half = copies.len() / 2;
        let mut rows = Vec::new();
        for stream in copies {
            let batches: Vec<_> = stream.try_collect().await.unwrap();
            rows.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert_eq!(rows[..half], rows[half..]);
        assert!(rows.iter().sum::<usize>() > 0);
        bed.assert_clean();
        // The first copy is left behind its first batch, before the second is read, or not read at all.
        for is_begun in [true, false] {
            let plan = reset_plan_states(Arc::clone(&plan)).unwrap();
            let mut first = streams(&bed, &plan);
            let second = first.split_off(half);
            if is_begun {
                first[0].try_next().await.unwrap();
            }
            drop(first);
            for (stream, rows) in second.into_iter().zip(&rows[half..]) {
                let batches: Vec<_> = stream.try_collect().await.unwrap();
                assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), *rows);
            }
            bed.assert_clean();
        }
        // All are left before the part has been computed.
        drop(streams(&bed, &reset_plan_states(plan).unwrap()));
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
fn a_part_that_fails_fails_all_its_copies() {
    for part in [
        "SELECT k64, sum(1 / (id - 77)) AS n FROM r GROUP BY k64",
        "SELECT l.k64, 1 / (l.id - 77) AS n FROM l JOIN r ON l.id = r.id",
    ] {
        let bed = on_runtime(async {
            let bed = Bed::new(&tables(), 2, None, JoinConfig::default());
            let query = format!("WITH v AS ({part}) SELECT k64, n FROM v UNION ALL SELECT k64, n FROM v");
            assert_eq!(copies(&bed.explain(&query).await), 2, "{query}");
            let plan = bed.context.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
            for stream in streams(&bed, &plan) {
                let error = stream.try_collect::<Vec<_>>().await.unwrap_err().to_string();
                assert!(error.to_lowercase().contains("divide by zero"), "{error}");
            }
            bed
        });
        // The work beside the part that failed ends with the runtime.
        bed.assert_clean();
    }
}
