//! Functions of texts below joins give the answers that they give above them.

use super::harness::Db;

/// A query with `S` for the small table, and whether a function moves.
const QUERIES: [(&str, bool); 16] = [
    ("SELECT sum(CASE WHEN s.t LIKE 'p%' THEN b.n ELSE 0 END) FROM b, S s WHERE b.k = s.id", true),
    (
        "SELECT substr(s.t, 1, 3) AS part, count(*), sum(b.n) FROM b JOIN S s ON b.k = s.id GROUP BY substr(s.t, 1, 3)",
        true,
    ),
    ("SELECT s.t NOT LIKE '%1', ascii(s.t), count(DISTINCT b.n) FROM b JOIN S s ON b.k = s.id GROUP BY 1, 2", true),
    ("SELECT b.n, ascii(substr(s.t, 2)), length(s.t) FROM b JOIN S s ON b.k = s.id WHERE b.n < 400", true),
    ("SELECT b.n, s.t ILIKE 'P_1%' FROM b JOIN S s ON b.k = s.id WHERE s.t LIKE 'p1%'", true),
    ("SELECT b.n, o.n FROM b JOIN S s ON b.k = s.id JOIN b AS o ON o.n = ascii(s.t) AND o.k = s.id", true),
    // The small table is kept whole, and may lack partners.
    ("SELECT ascii(s.t), count(b.n) FROM S s LEFT JOIN b ON b.k = s.id GROUP BY ascii(s.t)", true),
    ("SELECT ascii(s.t), count(b.n) FROM b RIGHT JOIN S s ON b.k = s.id GROUP BY ascii(s.t)", true),
    ("SELECT ascii(s.t), count(*) FROM S s WHERE EXISTS (SELECT 1 FROM b WHERE b.k = s.id) GROUP BY ascii(s.t)", true),
    ("SELECT ascii(s.t), count(*) FROM S s WHERE s.id NOT IN (SELECT k FROM b WHERE k IS NOT NULL) GROUP BY 1", true),
    (
        "SELECT s.t LIKE 'p%', count(*) FROM S s JOIN b ON b.k = s.id JOIN b AS o ON o.n = b.n WHERE b.n % 3 = 0 GROUP BY 1",
        true,
    ),
    // Its rows are extended by NULLs, for which the function is computed above the join.
    ("SELECT ascii(s.t), count(*) FROM b LEFT JOIN S s ON b.k = s.id GROUP BY ascii(s.t)", false),
    ("SELECT ascii(s.t), count(*), count(s.t) FROM b FULL JOIN S s ON b.k = s.id GROUP BY ascii(s.t)", false),
    // The function is of the large table, of both, or may fail.
    ("SELECT b.t LIKE 'p%', count(*) FROM b JOIN S s ON b.k = s.id GROUP BY 1", false),
    ("SELECT substr(s.t, b.k % 3), count(*) FROM b JOIN S s ON b.k = s.id GROUP BY 1", false),
    ("SELECT s.t LIKE 'p\\1%', repeat(s.t, 2), count(*) FROM b JOIN S s ON b.k = s.id GROUP BY 1, 2", false),
];

#[test]
fn functions_below_joins_give_the_same_answers() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE s (id INT PRIMARY KEY, t TEXT)");
    client.ok("CREATE TABLE b (n INT PRIMARY KEY, k INT, t TEXT)");
    client.ok("INSERT INTO s SELECT value, CASE value % 5 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'p' || value \
         WHEN 3 THEN 'P' || value ELSE 'é' || value END FROM generate_series(1, 60) AS g(value)");
    // Some keys have no partner, and some are NULL.
    client.ok("INSERT INTO b SELECT value, CASE WHEN value % 11 = 0 THEN NULL ELSE value % 50 END, 'p' || value \
         FROM generate_series(1, 1000) AS g(value)");
    for (query, moves) in QUERIES {
        let (plain, behind) = (query.replace(" S ", " s "), query.replace(" S ", " (SELECT * FROM s LIMIT 1000) "));
        let plan = client.rows(&format!("EXPLAIN {plain}")).join("\n");
        assert_eq!(plan.contains("__early"), moves, "{plain}\n{plan}");
        let plan = client.rows(&format!("EXPLAIN {behind}")).join("\n");
        assert!(!plan.contains("__early"), "{behind}\n{plan}");
        let answer = client.sorted(&plain);
        assert!(!answer.is_empty(), "{plain}");
        assert_eq!(answer, client.sorted(&behind), "{plain}");
    }
}

#[test]
fn a_function_that_moves_follows_its_table() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE s (id INT PRIMARY KEY, t TEXT)");
    client.ok("CREATE TABLE b (n INT PRIMARY KEY, k INT)");
    client.ok("INSERT INTO b SELECT value, value % 10 FROM generate_series(1, 100) AS g(value)");
    client.ok("INSERT INTO s VALUES (1, 'p'), (2, 'q')");
    let counted = "SELECT s.t LIKE 'p%', count(*) FROM b JOIN s ON b.k = s.id GROUP BY 1 ORDER BY 1";
    assert_eq!(client.rows(counted), ["f|10", "t|10"]);
    client.ok("UPDATE s SET t = 'pp' WHERE id = 2");
    client.ok("INSERT INTO s VALUES (3, NULL)");
    assert_eq!(client.rows(counted), ["t|20", "NULL|10"]);
    client.ok("UPDATE b SET k = ascii(s.t) FROM s WHERE b.k = s.id AND s.id < 3 AND b.n < 50");
    assert_eq!(client.rows("SELECT count(*) FROM b WHERE k = 112"), ["10"]);
    client.ok("DELETE FROM s");
    assert_eq!(client.rows(counted), [""; 0]);
}

/// Tables are compared behind their filters, by the estimates of their scans.
#[test]
fn filters_say_which_table_is_small() {
    let db = Db::new();
    let client = db.client();
    for (table, rows) in [("s", 400), ("b", 1000), ("l", 3000)] {
        client.ok(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, k INT, t TEXT)"));
        client.ok(&format!("INSERT INTO {table} SELECT i, i % 100, 'p' || i FROM generate_series(1, {rows}) AS g(i)"));
    }
    // A scan takes the sample, which a change of the catalog drops.
    for table in ["s", "b", "l"] {
        client.rows(&format!("SELECT max(k) FROM {table} WHERE t <> ''"));
    }
    let join = |table: &str, filter: &str| {
        format!("SELECT {table}.t LIKE '%7', count(*) FROM {table} JOIN b ON {table}.k = b.k WHERE {filter} GROUP BY 1")
    };
    for (table, filter, moves) in [
        ("s", "b.id > 0", true),
        // Few rows of the other table are left.
        ("s", "b.id <= 20", false),
        ("s", "b.id = 20", false),
        ("s", "b.id % 3 = 0", false),
        ("s", "b.id % 3 = 0 AND s.id <= 20", true),
        // Few rows of a large table are left.
        ("l", "l.id > 0", false),
        ("l", "l.id <= 30", true),
        ("l", "l.id = 30", true),
        ("l", "l.id <= 30 AND b.id <= 30", false),
    ] {
        let query = join(table, filter);
        let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
        assert_eq!(plan.contains("__early"), moves, "{query}\n{plan}");
        let other =
            query.replacen(&format!("FROM {table} "), &format!("FROM (SELECT * FROM {table} LIMIT 9000) {table} "), 1);
        assert_eq!(client.sorted(&query), client.sorted(&other), "{query}");
    }
}

/// Equal parts of a plan stay equal.
#[test]
fn parts_that_a_function_has_moved_in_are_computed_once() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE s (id INT PRIMARY KEY, t TEXT)");
    client.ok("CREATE TABLE b (n INT PRIMARY KEY, k INT)");
    client.ok("INSERT INTO s SELECT i, 'p' || i FROM generate_series(1, 60) AS g(i)");
    client.ok("INSERT INTO b SELECT i, i % 50 FROM generate_series(1, 1000) AS g(i)");
    let query = "WITH v AS (SELECT substr(s.t, 1, 2) AS p, sum(b.n) AS n FROM b JOIN s ON b.k = s.id GROUP BY 1) \
                 SELECT p FROM v WHERE n = (SELECT max(n) FROM v)";
    let plan = client.rows(&format!("EXPLAIN {query}")).join("\n");
    assert!(plan.contains("__early") && plan.matches("CommonExec: copies=2").count() == 2, "{plan}");
    assert_eq!(client.rows(query), ["p4"]);
}
