//! Joins that have no rows, as the zone maps of columns show: they read nothing, and their queries have the answers of rows.

use farhold_txn::CopyConfig;

use super::harness::{Client, Db, wait_until};

/// Queries of two tables whose columns `at` overlap in no value, and whether zone maps show something. `l` has the keys 1 to 400
/// and `at` from 1,000 on, `r` the keys 1 to 300 and `at` up to 900.
const QUERIES: [(&str, bool); 23] = [
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.at < r.at", true),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND r.at >= l.at", true),
    ("SELECT count(*), sum(l.at), max(r.at) FROM l JOIN r ON l.id = r.id WHERE l.at <= r.at", true),
    ("SELECT l.id % 3, count(*) FROM l JOIN r ON l.id = r.id AND l.at < r.at GROUP BY l.id % 3", true),
    ("SELECT l.id, r.id FROM l JOIN r ON l.at = r.at", true),
    ("SELECT l.id FROM l WHERE l.at IN (SELECT at FROM r)", true),
    ("SELECT l.id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.id = l.id AND l.at < r.at)", false),
    ("SELECT l.id, r.id FROM l LEFT JOIN r ON l.id = r.id AND l.at < r.at", false),
    ("SELECT l.id, r.id FROM l FULL JOIN r ON l.id = r.id AND l.at < r.at", false),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.at > r.at", false),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.at <> r.at", false),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.at IS NOT DISTINCT FROM r.at", false),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.nothing > r.at", true),
    ("SELECT l.id, r.id, o.id FROM l JOIN r ON l.id = r.id AND l.at < r.at JOIN l AS o ON o.id = r.id", true),
    ("SELECT o.id, r.id FROM l AS o LEFT JOIN (l JOIN r ON l.id = r.id AND l.at < r.at) ON o.id = r.id", true),
    ("SELECT (SELECT max(l.id) FROM l JOIN r ON l.id = r.id AND l.at < r.at), count(*) FROM l", true),
    ("SELECT id FROM l WHERE id < 5 UNION ALL SELECT l.id FROM l JOIN r ON l.id = r.id AND l.at < r.at", true),
    ("SELECT l.id, r.id FROM l JOIN r ON l.id = r.id AND l.at + 0 < r.at", false),
    ("SELECT id FROM l WHERE at NOT IN (SELECT l.at FROM l JOIN r ON l.id = r.id AND l.at < r.at)", true),
    ("SELECT id FROM l WHERE id = 1 OR at NOT IN (SELECT l.at FROM l JOIN r ON l.id = r.id AND l.at < r.at)", true),
    ("SELECT l.id, count(*) FROM l JOIN r ON l.id = r.id AND l.at < r.at GROUP BY GROUPING SETS ((l.id), ())", true),
    (
        "SELECT o.id, x.id FROM (SELECT l.id FROM l JOIN r ON l.id = r.id AND l.at < r.at) x RIGHT JOIN l o ON o.id = x.id",
        true,
    ),
    (
        "SELECT o.id, x.id FROM (SELECT l.id FROM l JOIN r ON l.id = r.id AND l.at < r.at) x FULL JOIN l o ON o.id = x.id",
        true,
    ),
];

fn check(client: &Client, shows: bool, what: &str) {
    for (query, is_seen) in QUERIES {
        let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
        // A column without values matches nothing.
        let shows = shows || query.contains("nothing");
        assert_eq!(plan.contains("EmptyExec"), is_seen && shows, "{what}: {query}\n{plan}");
        let answer = client.sorted(query);
        client.ok("SET farhold.access_path = 'rows'");
        let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
        assert!(!plan.contains("EmptyExec"), "{what}: {query}\n{plan}");
        assert_eq!(answer, client.sorted(query), "{what}: {query}");
        client.ok("RESET farhold.access_path");
    }
}

#[test]
fn joins_without_rows_read_nothing() {
    let db = Db::with_columns(CopyConfig { changes_min: 64, ..CopyConfig::default() });
    let client = db.client();
    for table in ["l", "r"] {
        client.ok(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, at BIGINT, nothing BIGINT)"));
    }
    client
        .ok("INSERT INTO l SELECT i, CASE WHEN i % 7 = 0 THEN NULL ELSE 999 + i END FROM generate_series(1, 400) g(i)");
    client.ok("INSERT INTO r SELECT i, CASE WHEN i % 5 = 0 THEN NULL ELSE 3 * i END FROM generate_series(1, 300) g(i)");
    let is_merged = |table: &str| {
        let plan = client.rows(&format!("EXPLAIN SELECT sum(at) FROM {table}")).join("\n");
        plan.contains("column_segments=1") && plan.contains("delta_rows=0")
    };
    wait_until("the rows are in segments", || is_merged("l") && is_merged("r"));
    check(&client, true, "segments");
    // A row that is in no segment yet, and within the bounds.
    client.ok("INSERT INTO r VALUES (1000, 5)");
    check(&client, true, "a row in no segment");
    // One that matches.
    client.ok("UPDATE r SET at = 5000 WHERE id = 100");
    check(&client, false, "a row that matches");
    client.ok("UPDATE r SET at = 900 WHERE id = 100");
    client.ok("DELETE FROM l WHERE id = 17");
    check(&client, true, "the row is gone");
}
