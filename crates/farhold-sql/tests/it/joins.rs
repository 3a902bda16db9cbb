//! Joins within a memory budget: they spill what does not fit, and return the same rows.

use std::fs;

use farhold_sql::engine::EngineConfig;
use farhold_testkit::SmallDisk;

use super::harness::Db;

const PAIRS: &str = "SELECT count(*), sum(a.n), min(b.pad), max(a.pad) FROM a JOIN b ON a.k = b.k";
const ALL: &str = "SELECT count(*), count(a.id), count(b.id), sum(a.n + b.n), max(length(a.pad || b.pad)) FROM a FULL JOIN b ON a.k = b.k AND a.n <> b.n";

fn filled(config: EngineConfig) -> Db {
    let db = Db::with(EngineConfig { query_threads: 3, ..config });
    let client = db.client();
    for table in ["a", "b"] {
        client.ok(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, k BIGINT, n INT NOT NULL, pad TEXT NOT NULL)"));
        let step = if table == "a" { 7 } else { 11 };
        client.ok(&format!(
            "INSERT INTO {table} SELECT value, CASE WHEN value % 19 = 0 THEN NULL ELSE value * {step} % 30011 END, \
             value % 100, repeat('p', 250) || value FROM generate_series(1, 20000)"
        ));
    }
    db
}

#[test]
fn a_join_under_a_small_budget_gives_the_same_rows() {
    let roomy = filled(EngineConfig::default());
    let tight = filled(EngineConfig { join_memory_bytes: Some(3 << 20), ..EngineConfig::default() });
    for query in [PAIRS, ALL] {
        assert_eq!(tight.client().rows(query), roomy.client().rows(query), "{query}");
    }
    let plan = roomy.client().rows(&format!("EXPLAIN {ALL}")).join("\n");
    assert!(plan.contains("JoinExec: partitioning=") && plan.contains("algorithm="), "{plan}");
    let plan = tight.client().rows(&format!("EXPLAIN ANALYZE {ALL}")).join("\n");
    assert!(plan.contains("actual=[") && !plan.contains(" 0 bytes spilled"), "{plan}");
}

/// A regression: the rows of the window are partitioned by `k`. The join above it spills, and its rows were taken to be
/// partitioned by `k` as well, so its groups were returned twice.
#[test]
fn groups_above_a_spilling_join_are_whole() {
    let db = Db::with(EngineConfig { query_threads: 3, join_memory_bytes: Some(6 << 20), ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE s (id BIGINT PRIMARY KEY, j BIGINT)");
    client.ok("CREATE TABLE b (id BIGINT PRIMARY KEY, k BIGINT, j BIGINT)");
    client.ok("INSERT INTO s SELECT value, value % 60000 FROM generate_series(1, 120000)");
    client.ok("INSERT INTO b SELECT value, value % 20, value * 7919 % 160000 FROM generate_series(1, 160000)");
    let query = "SELECT r.k, count(*), sum(rn) FROM s JOIN \
                 (SELECT k, j, row_number() OVER (PARTITION BY k ORDER BY id) AS rn FROM b) r ON s.j = r.j GROUP BY r.k";
    let plan = client.rows(&format!("EXPLAIN ANALYZE {query}")).join("\n");
    assert!(!plan.contains(" 0 bytes spilled"), "{plan}");
    // Each `j` in `s` has two rows there.
    let (mut rows, mut groups) = ([0_u64; 20], [(0_u64, 0_u64); 20]);
    for id in 1..=160_000 {
        let k = id as usize % 20;
        rows[k] += 1;
        if id * 7919 % 160_000 < 60_000 {
            groups[k] = (groups[k].0 + 2, groups[k].1 + 2 * rows[k]);
        }
    }
    let expected = groups.iter().enumerate().map(|(k, (count, sum))| format!("{k}|{count}|{sum}"));
    assert_eq!(client.sorted(query), {
        let mut all: Vec<_> = expected.collect();
        all.sort();
        all
    });
}

#[test]
fn a_spill_directory_that_is_not_there() {
    let config = EngineConfig {
        join_memory_bytes: Some(3 << 20),
        spill_directory: "/nonexistent/directory".into(),
        ..EngineConfig::default()
    };
    let db = filled(config);
    let error = db.client().err(ALL);
    assert_eq!(error.state.code(), "58030", "{error}");
    assert_eq!(db.client().rows("SELECT count(*) FROM a JOIN b ON a.id = b.id WHERE a.id < 9 AND b.id < 9"), ["8"]);
}

/// On a file system that is full after 256 KiB.
#[test]
fn a_full_disk() {
    let Some(disk) = SmallDisk::mount("size=256k") else { return };
    let config = EngineConfig {
        join_memory_bytes: Some(3 << 20),
        spill_directory: disk.path().into(),
        ..EngineConfig::default()
    };
    let db = filled(config);
    let error = db.client().err(ALL);
    assert_eq!(error.state.code(), "53100", "{error}");
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "files are left");
    fs::write(disk.path().join("room"), vec![1; 200 << 10]).expect("the space is free again");
    assert_eq!(db.client().rows("SELECT count(*) FROM a JOIN b ON a.id = b.id WHERE a.id < 9 AND b.id < 9"), ["8"]);
}

#[test]
fn a_budget_below_the_minimum_is_out_of_memory() {
    let db = filled(EngineConfig { join_memory_bytes: Some(1 << 19), ..EngineConfig::default() });
    let error = db.client().err(PAIRS);
    assert_eq!(error.state.code(), "53200", "{error}");
    assert!(error.detail.as_deref().unwrap_or_default().contains("a join needs at least"), "{error:?}");
}

#[test]
fn a_part_that_stands_twice_in_a_plan_is_computed_once() {
    let db = filled(EngineConfig::default());
    let client = db.client();
    let twice = |one: &str, other: &str| {
        let groups = |table: &str| format!("SELECT k, sum(n) AS n FROM {table} GROUP BY k");
        let query =
            format!("SELECT count(*), sum(x.n + y.n) FROM ({}) x JOIN ({}) y ON x.k = y.k", groups(one), groups(other));
        let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
        (plan.matches("CommonExec: copies=2").count(), client.rows(&query))
    };
    let ids = "(SELECT * FROM a WHERE id > 7) s";
    assert_eq!(twice(ids, ids).0, 2);
    // A different predicate, or a different table.
    let (common, rows) = twice(ids, "(SELECT * FROM a WHERE id > 8) s");
    assert_eq!(common, 0, "{rows:?}");
    assert_eq!(twice("a", "b").0, 0);
    // The rows are the same as without the rule.
    let plain = filled(EngineConfig { without_rules: vec!["common".to_owned()], ..EngineConfig::default() });
    let query = "WITH s AS (SELECT k, sum(n) AS n FROM a WHERE id > 7 GROUP BY k) \
                 SELECT count(*), sum(x.n * y.n) FROM s x JOIN s y ON x.k = y.k WHERE x.n = (SELECT max(n) FROM s)";
    assert_eq!(client.rows(query), plain.client().rows(query));
    assert!(!plain.client().rows(&format!("EXPLAIN {query}")).join("\n").contains("CommonExec"));
}

/// The keys of a join above one of two equal parts reach no scan of the part.
#[test]
fn keys_of_joins_drop_no_rows_of_an_equal_part() {
    let db = filled(EngineConfig { query_threads: 3, ..EngineConfig::default() });
    let plain = filled(EngineConfig { without_rules: vec!["common".to_owned()], ..EngineConfig::default() });
    let client = db.client();
    let few = "SELECT v.k, v.n FROM (SELECT k FROM a WHERE id = 7) s JOIN v ON s.k = v.k";
    for part in [
        "SELECT k, sum(n) AS n FROM b GROUP BY k",
        "SELECT b.k, b.n + a.n AS n FROM a JOIN b ON a.id = b.id WHERE a.n < 40",
    ] {
        let query = format!("WITH v AS ({part}) {few} UNION ALL SELECT k, n FROM v");
        let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
        assert_eq!(plan.matches("CommonExec: copies=2").count(), 2, "{plan}");
        let apart = plain.client().rows(&format!("EXPLAIN {query}")).join("\n");
        // The copies of a join have the keys of its own build side, and none of the join above.
        let keys = |plan: &str| plan.matches("keys of joins").count() + plan.matches("SieveExec").count();
        assert!(keys(&apart) > keys(&plan), "{apart}");
        assert_eq!(client.sorted(&query), plain.client().sorted(&query), "{query}");
    }
}
