//! Partial aggregates of rows in runs: the same groups, whatever the order of the rows.

use farhold_join::datafusion::JoinConfig;

use super::bed::{Bed, Table, keys, mix, on_runtime, plain, rows};

/// Enough rows for each of two partitions to be judged by its first rows.
const ROWS: u64 = 120_000;

fn table(key: impl Fn(u64) -> Option<u64>) -> Table {
    Table { name: "r", keys: (0..ROWS).map(key).collect(), text_bytes: 4, partitions: 2 }
}

const QUERIES: [&str; 4] = [
    "SELECT k64, count(*), sum(id), avg(id), min(real), max(pad), sum(price) FROM r GROUP BY k64",
    "SELECT k64, k32, count(id) FILTER (WHERE id % 3 = 0), min(id) FILTER (WHERE id % 5 = 1) FROM r GROUP BY k64, k32",
    "SELECT text, sum(id), count(real) FROM r WHERE id % 7 <> 3 GROUP BY text",
    "SELECT k64 FROM r GROUP BY k64",
];

#[test]
fn groups_are_the_same_and_runs_are_found_where_they_are() {
    let in_runs = |row: u64| (!(row / 5).is_multiple_of(11)).then_some(row / 5);
    let anyhow = |row: u64| Some(mix(row) % 3000);
    let tables = [
        ("runs", table(in_runs), true),
        ("no order", table(anyhow), false),
        ("runs of keys that come again", table(|row| Some(row / 5 % 40)), false),
        ("runs at first", table(|row| if row % (ROWS / 2) < ROWS / 3 { in_runs(row) } else { anyhow(row) }), true),
        ("one key in every batch, null", table(|_| None), false),
        ("few rows", Table { keys: keys(100, 1, 5, |random| random % 9), ..table(|_| None) }, false),
        ("none", Table { keys: Vec::new(), ..table(|_| None) }, false),
    ];
    on_runtime(async {
        for (name, table, has_runs) in tables {
            let plain = plain(std::slice::from_ref(&table), 2);
            for runs in [true, false] {
                let mut config = JoinConfig::default();
                config.runs = runs;
                let bed = Bed::new(std::slice::from_ref(&table), 2, None, config);
                for query in QUERIES {
                    assert!(
                        bed.rows(query).await.unwrap() == rows(&plain, query).await.unwrap(),
                        "{name}, {runs}: {query}"
                    );
                }
                let plan = bed.explain(&format!("ANALYZE {}", QUERIES[0])).await;
                assert_eq!(plan.contains("RunsExec: "), runs, "{name}: {plan}");
                assert!(!has_runs || plan.contains("rows_in_runs=120") == runs, "{name}, {runs}: {plan}");
                assert!(
                    !(name == "no order" || name.contains("again")) || !runs || plan.contains("rows_in_runs=0"),
                    "{name}: {plan}"
                );
                bed.assert_clean();
            }
        }
    });
}
