//! Operators above a join that spills may rely only on what the join keeps: the last of its shares hands out the
//! spilled rows of all.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;

use super::bed::{Bed, MIB, Table, config, keys, on_runtime, plain, rows};

/// `w` numbers the rows of each key: a probe side that is partitioned by its key.
const NUMBERED: &str = "(SELECT k32, id, row_number() OVER (PARTITION BY k32 ORDER BY id) AS rn FROM r)";

fn tables() -> [Table; 2] {
    let table = |name, rows, text_bytes| Table {
        name,
        keys: keys(rows, rows, 0, |random| random % 20),
        text_bytes,
        partitions: 3,
    };
    [table("l", 12_000, 600), table("r", 9_000, 5)]
}

/// A session whose joins have room for only a part of `l`.
fn tight(partitioning: &str) -> Bed {
    Bed::with_runtime(&tables(), 3, RuntimeEnvBuilder::new(), Some(6 * MIB), config(partitioning, "auto"))
}

#[test]
fn groups_and_windows_above_a_spilling_join_are_whole() {
    let joined = format!("FROM l JOIN {NUMBERED} w ON l.id = w.id");
    let queries = [
        format!("SELECT w.k32, count(*), sum(rn), count(l.pad) {joined} GROUP BY w.k32"),
        format!("SELECT DISTINCT w.k32, length(l.pad) {joined}"),
        format!(
            "SELECT k32, max(n), max(pad) FROM (SELECT w.k32, l.pad, sum(rn) OVER (PARTITION BY w.k32) AS n {joined}) s GROUP BY k32"
        ),
    ];
    on_runtime(async {
        for query in queries {
            let expected = rows(&plain(&tables(), 3), &query).await.unwrap();
            for partitioning in ["shared", "auto", "single", "partitioned"] {
                let bed = tight(partitioning);
                assert_eq!(bed.rows(&query).await.unwrap(), expected, "{partitioning}: {query}");
                let shown = bed.explain(&format!("ANALYZE {query}")).await;
                assert!(partitioning == "partitioned" || !shown.contains(" 0 bytes spilled"), "it spills: {shown}");
                bed.assert_clean();
            }
        }
    });
}

/// Each input of a UNION ALL has a constant of its own. Rows sorted in each partition are also sorted by it, but not
/// the rows that a join makes of them.
#[test]
fn constants_of_partitions_do_not_pass_a_join() {
    let unions = |side: &str, other: &str| {
        format!(
            "SELECT u.tag FROM (SELECT 2 AS tag, id, pad FROM {side} UNION ALL SELECT 1, id, pad FROM {side} \
             UNION ALL SELECT 3, id, pad FROM {side}) u JOIN {other} ON u.id = {other}.id AND length(u.pad) > 0 ORDER BY u.tag"
        )
    };
    on_runtime(async {
        for query in [unions("l", "r"), unions("r", "l")] {
            let bed = tight("shared");
            let batches: Vec<RecordBatch> = bed.context.sql(&query).await.unwrap().collect().await.unwrap();
            let tags = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().iter());
            let tags: Vec<Option<i64>> = tags.collect();
            assert_eq!(tags.len(), 27_000, "{query}");
            assert!(tags.is_sorted(), "{query}");
            drop(batches);
            bed.assert_clean();
        }
    });
}

/// Both inputs have nine partitions, so the probe side has nine, whichever it is; a share for each would take memory that three
/// threads cannot use.
#[test]
fn a_probe_side_of_many_partitions_has_as_many_shares_as_threads() {
    let union =
        |side: &str| format!("(SELECT id FROM {side} UNION ALL SELECT id FROM {side} UNION ALL SELECT id FROM {side})");
    let query = format!("SELECT count(*), sum(u.id) FROM {} u JOIN {} v ON u.id = v.id", union("l"), union("r"));
    on_runtime(async {
        let expected = rows(&plain(&tables(), 3), &query).await.unwrap();
        let bed = tight("shared");
        let shown = bed.explain(&query).await;
        assert!(shown.contains("FewerExec: partitions=3"), "{shown}");
        assert_eq!(bed.rows(&query).await.unwrap(), expected);
        bed.assert_clean();
    });
}
