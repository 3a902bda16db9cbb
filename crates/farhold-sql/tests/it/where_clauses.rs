//! UPDATE and DELETE must affect exactly the rows that their WHERE clause selects: a naive oracle decides row by row.
//!
//! The clauses are ones that the planner's hooks for table providers are known to drop or to widen.

use crate::harness::{Client, Db};
use farhold_sql::Datum;

#[derive(Clone, Copy, Debug)]
struct Row {
    id: i32,
    a: Option<i32>,
    b: i32,
    s: Option<&'static str>,
}

/// SQL's three-valued logic: `None` is unknown.
type Truth = Option<bool>;

struct World {
    rows: Vec<Row>,
    /// The table `q`: one column, including a NULL.
    q: Vec<Option<i32>>,
}

fn and(a: Truth, b: Truth) -> Truth {
    match (a, b) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

fn or(a: Truth, b: Truth) -> Truth {
    not(and(not(a), not(b)))
}

fn not(a: Truth) -> Truth {
    a.map(|v| !v)
}

fn equal(a: Option<i32>, b: Option<i32>) -> Truth {
    Some(a? == b?)
}

/// `x IN (list)`.
fn within(x: Option<i32>, list: &[Option<i32>]) -> Truth {
    list.iter().map(|item| equal(x, *item)).reduce(or).unwrap_or(Some(false))
}

fn world() -> World {
    let texts = [Some("alpha"), Some("beta"), None, Some("a%b"), Some("")];
    let rows = (0..40)
        .map(|n| Row {
            id: n,
            a: (n % 4 != 3).then_some(n % 7),
            b: (n * 5) % 11,
            s: texts[usize::try_from(n % 5).unwrap()],
        })
        .collect();
    World { rows, q: vec![Some(1), Some(3), Some(5), None] }
}

type Oracle = fn(&Row, &World) -> Truth;

fn clauses() -> Vec<(&'static str, Oracle)> {
    vec![
        ("true", |_, _| Some(true)),
        ("false", |_, _| Some(false)),
        ("NULL", |_, _| None),
        ("1 = 2", |_, _| Some(false)),
        ("id = 7", |r, _| Some(r.id == 7)),
        ("id = 7 AND false", |_, _| Some(false)),
        ("a = 3", |r, _| equal(r.a, Some(3))),
        ("a <> 3", |r, _| not(equal(r.a, Some(3)))),
        ("NOT (a = 3)", |r, _| not(equal(r.a, Some(3)))),
        ("a IS NULL", |r, _| Some(r.a.is_none())),
        ("a IS NOT NULL AND a > 2", |r, _| Some(r.a.is_some_and(|a| a > 2))),
        ("a = NULL", |_, _| None),
        ("a IS DISTINCT FROM 3", |r, _| Some(r.a != Some(3))),
        ("a BETWEEN 2 AND 4", |r, _| Some((2..=4).contains(&r.a?))),
        ("a NOT BETWEEN 2 AND 4", |r, _| Some(!(2..=4).contains(&r.a?))),
        ("a IN (1, 2, NULL)", |r, _| within(r.a, &[Some(1), Some(2), None])),
        ("a NOT IN (1, 2)", |r, _| not(within(r.a, &[Some(1), Some(2)]))),
        ("a NOT IN (1, NULL)", |r, _| not(within(r.a, &[Some(1), None]))),
        ("a IN (SELECT x FROM q)", |r, w| within(r.a, &w.q)),
        ("a NOT IN (SELECT x FROM q)", |r, w| not(within(r.a, &w.q))),
        ("a NOT IN (SELECT x FROM q WHERE x IS NOT NULL)", |r, w| {
            let known: Vec<_> = w.q.iter().copied().flatten().map(Some).collect();
            not(within(r.a, &known))
        }),
        ("a IN (SELECT x FROM q WHERE false)", |_, _| Some(false)),
        ("a NOT IN (SELECT x FROM q WHERE false)", |_, _| Some(true)),
        ("EXISTS (SELECT 1 FROM q)", |_, _| Some(true)),
        ("EXISTS (SELECT 1 FROM q WHERE x = 99)", |_, _| Some(false)),
        ("NOT EXISTS (SELECT 1 FROM q WHERE x = 99)", |_, _| Some(true)),
        ("EXISTS (SELECT 1 FROM q WHERE q.x = t.a)", |r, w| Some(w.q.iter().any(|x| equal(r.a, *x) == Some(true)))),
        ("NOT EXISTS (SELECT 1 FROM q WHERE q.x = t.a)", |r, w| {
            Some(!w.q.iter().any(|x| equal(r.a, *x) == Some(true)))
        }),
        ("EXISTS (SELECT 1 FROM t AS o WHERE o.b = t.b AND o.id < t.id)", |r, w| {
            Some(w.rows.iter().any(|o| o.b == r.b && o.id < r.id))
        }),
        ("b = (SELECT max(b) FROM t)", |r, w| Some(w.rows.iter().map(|o| o.b).max()? == r.b)),
        ("a > (SELECT avg(x) FROM q)", |r, _| Some(r.a? > 3)),
        ("a = (SELECT x FROM q WHERE x > 100)", |_, _| None),
        ("a > (SELECT min(x) FROM q WHERE q.x = t.b)", |r, w| {
            Some(r.a? > w.q.iter().flatten().copied().filter(|x| *x == r.b).min()?)
        }),
        ("a = 1 OR b = 5 OR id IN (SELECT x FROM q)", |r, w| {
            or(or(equal(r.a, Some(1)), Some(r.b == 5)), within(Some(r.id), &w.q))
        }),
        ("a = 1 OR NULL", |r, _| or(equal(r.a, Some(1)), None)),
        ("(a = 1 AND b > 3) OR (a = 2 AND NOT b > 3)", |r, _| {
            or(and(equal(r.a, Some(1)), Some(r.b > 3)), and(equal(r.a, Some(2)), Some(r.b <= 3)))
        }),
        ("CASE WHEN a > 3 THEN b > 5 ELSE id < 10 END", |r, _| {
            Some(if r.a.is_some_and(|a| a > 3) { r.b > 5 } else { r.id < 10 })
        }),
        ("CASE a WHEN 1 THEN true WHEN 2 THEN NULL ELSE false END", |r, _| match r.a {
            Some(1) => Some(true),
            Some(2) => None,
            _ => Some(false),
        }),
        ("s LIKE 'a%'", |r, _| Some(r.s?.starts_with('a'))),
        ("s NOT LIKE '%a'", |r, _| Some(!r.s?.ends_with('a'))),
        ("s LIKE 'a\\%%'", |r, _| Some(r.s?.starts_with("a%"))),
        ("s = ''", |r, _| Some(r.s?.is_empty())),
        ("s || 'x' = 'betax'", |r, _| Some(r.s? == "beta")),
        ("substr(s, 2, 1) = 'l'", |r, _| Some(r.s?.get(1..2) == Some("l"))),
        ("coalesce(a, -1) < 1", |r, _| Some(r.a.unwrap_or(-1) < 1)),
        ("a + b > 9", |r, _| Some(r.a? + r.b > 9)),
        ("b % 2 = 0", |r, _| Some(r.b % 2 == 0)),
        ("b / 2 = 2", |r, _| Some(r.b / 2 == 2)),
        ("(a = 1) IS NOT TRUE", |r, _| Some(r.a != Some(1))),
        ("(a = 1) IS NULL", |r, _| Some(r.a.is_none())),
        ("id >= 30 AND id < 35", |r, _| Some((30..35).contains(&r.id))),
        ("id > 10 AND id > 30", |r, _| Some(r.id > 30)),
        ("id = 5 AND id = 6", |_, _| Some(false)),
        ("id IN (3, 4, 100)", |r, _| Some(r.id == 3 || r.id == 4)),
        ("id = ANY (SELECT x FROM q)", |r, w| within(Some(r.id), &w.q)),
    ]
}

fn fill(client: &Client, world: &World) {
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT NOT NULL, s TEXT, mark INT NOT NULL DEFAULT 0)");
    client.ok("CREATE TABLE q (x INT)");
    for row in &world.rows {
        let text = |v: Option<String>| v.unwrap_or_else(|| "NULL".to_owned());
        client.ok(&format!(
            "INSERT INTO t VALUES ({}, {}, {}, {})",
            row.id,
            text(row.a.map(|a| a.to_string())),
            row.b,
            text(row.s.map(|s| format!("'{s}'")))
        ));
    }
    client.ok("INSERT INTO q VALUES (1), (3), (5), (NULL)");
}

fn expected(world: &World, oracle: Oracle) -> Vec<String> {
    let mut ids: Vec<_> =
        world.rows.iter().filter(|r| oracle(r, world) == Some(true)).map(|r| r.id.to_string()).collect();
    ids.sort();
    ids
}

#[test]
fn each_clause_hits_its_rows_and_no_other() {
    let db = Db::new();
    let client = db.client();
    let world = world();
    fill(&client, &world);
    for (clause, oracle) in clauses() {
        let expected = expected(&world, oracle);
        assert_eq!(client.sorted(&format!("SELECT id FROM t WHERE {clause}")), expected, "SELECT {clause}");
        // In a block, which is rolled back.
        client.ok("BEGIN");
        assert_eq!(client.sorted(&format!("SELECT id FROM t WHERE {clause}")), expected, "block: SELECT {clause}");
        assert_eq!(client.sorted(&format!("DELETE FROM t WHERE {clause} RETURNING id")), expected, "DELETE {clause}");
        let left = world.rows.len() - expected.len();
        assert_eq!(client.rows("SELECT count(*) FROM t"), [left.to_string()], "DELETE {clause}");
        client.ok("ROLLBACK");
        // Without FROM.
        let updated = client.ok(&format!("UPDATE t SET mark = mark + 1 WHERE {clause}"));
        assert_eq!(updated, format!("UPDATE {}", expected.len()), "UPDATE {clause}");
        assert_eq!(client.sorted("SELECT id FROM t WHERE mark = 1"), expected, "UPDATE {clause}");
        client.ok("UPDATE t SET mark = 0");
        // With FROM: the clause and a join that returns each row twice.
        let updated = client.ok(&format!("UPDATE t SET mark = 1 FROM q AS twice WHERE twice.x < 5 AND ({clause})"));
        assert_eq!(updated, format!("UPDATE {}", expected.len()), "UPDATE FROM {clause}");
        assert_eq!(client.sorted("SELECT id FROM t WHERE mark = 1"), expected, "UPDATE FROM {clause}");
        client.ok("UPDATE t SET mark = 0");
    }
}

#[test]
fn what_the_planner_cannot_is_refused() {
    let db = Db::new();
    let client = db.client();
    fill(&client, &world());
    for clause in ["a > (SELECT min(x) FROM q WHERE q.x > t.b)", "a = (SELECT x FROM q WHERE q.x > t.b)"] {
        for sql in [format!("DELETE FROM t WHERE {clause}"), format!("UPDATE t SET mark = 1 WHERE {clause}")] {
            assert_eq!(client.err(&sql).state.code(), "0A000", "{sql}");
        }
    }
    assert_eq!(client.rows("SELECT count(*), sum(mark) FROM t"), ["40|0"]);
}

#[test]
fn parameters_in_clauses() {
    let db = Db::new();
    let client = db.client();
    let world = world();
    fill(&client, &world);
    let count = |sql: &str, parameters: &[Datum]| client.run_with(sql, parameters).unwrap().tag;
    let int = Datum::Int;
    assert_eq!(count("UPDATE t SET mark = $1 WHERE id = $2", &[int(1), int(3)]), "UPDATE 1");
    assert_eq!(
        count("UPDATE t SET mark = mark + $1 WHERE a IN (SELECT x FROM q WHERE x = $2)", &[int(1), int(3)]),
        "UPDATE 4"
    );
    assert_eq!(count("DELETE FROM t WHERE a = $1", &[Datum::Null]), "DELETE 0");
    assert_eq!(
        count("DELETE FROM t WHERE a IN (SELECT x FROM q WHERE x < $1) AND b > $2", &[int(3), int(20)]),
        "DELETE 0"
    );
    assert_eq!(count("SELECT id FROM t WHERE s = $1 AND b >= $2", &[Datum::Text("beta".into()), int(0)]), "SELECT 8");
    assert_eq!(count("SELECT count(*) FROM t WHERE id > $1 LIMIT $2", &[int(3), Datum::BigInt(1)]), "SELECT 1");
    assert_eq!(count("INSERT INTO q SELECT $1", &[int(7)]), "INSERT 0 1");
    let series = [Datum::BigInt(1), Datum::BigInt(5)];
    assert_eq!(count("SELECT n FROM generate_series($1, $2) AS g (n) WHERE n > 1", &series), "SELECT 4");
    // A parameter compared with an empty array is still a parameter.
    let nothing = "SELECT id FROM t WHERE id < $1 AND NOT $2 = ANY ('{}') AND ($3 + 1) <> ALL ('{}')";
    assert_eq!(
        count(nothing, &[int(4), Datum::Text("beta".into()), Datum::BigInt(1)]),
        count("SELECT id FROM t WHERE id < $1", &[int(4)])
    );
}

/// Parameters take their type from the values that they are compared with as elements of an array, or subtracted from.
#[test]
fn parameters_of_differences_and_arrays() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE m (id INT PRIMARY KEY, c CHAR(3), t TIMESTAMP)");
    client.ok("INSERT INTO m VALUES (1, 'a', '2024-01-02 12:00:00')");
    let text = |text: &str| Datum::Text(text.to_owned());
    let value = |sql: &str, parameters: &[Datum]| {
        let rows = client.run_with(sql, parameters).unwrap().rows;
        rows.into_iter().next().and_then(|row| row.into_iter().next().flatten())
    };
    let new_year = [Datum::Timestamp(1_704_067_200_000_000)];
    assert_eq!(value("SELECT t - $1 FROM m", &new_year).as_deref(), Some("1 day 12:00:00"));
    assert_eq!(value("SELECT $1 - t FROM m", &new_year).as_deref(), Some("-1 days -12:00:00"));
    let by_id = "SELECT id FROM m WHERE id = ANY (ARRAY[$1, $2])";
    assert_eq!(value(by_id, &[Datum::Int(2), Datum::Int(1)]).as_deref(), Some("1"));
    let by_text = "SELECT id FROM m WHERE c = ANY (ARRAY[$1, $2])";
    assert_eq!(value(by_text, &[text("b"), text("a")]).as_deref(), Some("1"));
    assert_eq!(value(by_text, &[text("b"), text("a ")]), None);
}

/// Parameters without a type take the type of the other operand, or of the function or clause that uses them.
#[test]
fn parameters_without_a_type() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE g (a INT, c BOOLEAN, n NUMERIC(10, 2), b BIGINT, d DATE, ts TIMESTAMP)");
    client.ok("INSERT INTO g VALUES (1, true, 1.5, 1, '2020-01-01', NULL), (2, false, 2.5, 3, NULL, '2021-01-01')");
    let (int, bool) = (Datum::Int, Datum::Boolean);
    let decimal = |unscaled, scale| Datum::Decimal { unscaled, scale };
    let text = |text: &str| Datum::Text(text.to_owned());
    // 2020-05-05 12:34.
    let noon = Datum::Timestamp(1_588_682_040_000_000);
    for (sql, parameters, expected) in [
        ("SELECT $1 + a FROM g ORDER BY 1", vec![int(3)], vec!["4", "5"]),
        ("SELECT abs($1) FROM g LIMIT 1", vec![Datum::Double(-3.0)], vec!["3"]),
        ("SELECT power($1, 2) FROM g LIMIT 1", vec![Datum::Double(3.0)], vec!["9"]),
        ("SELECT CASE WHEN c THEN c ELSE $1 END FROM g", vec![bool(true)], vec!["t", "t"]),
        ("SELECT CASE a WHEN $1 THEN 'one' ELSE 'more' END FROM g ORDER BY a", vec![int(1)], vec!["one", "more"]),
        ("SELECT a FROM g UNION SELECT $1 ORDER BY 1", vec![int(7)], vec!["1", "2", "7"]),
        ("SELECT a FROM g WHERE NOT $1 ORDER BY 1", vec![bool(false)], vec!["1", "2"]),
        ("SELECT a FROM g WHERE $1 ORDER BY 1", vec![bool(true)], vec!["1", "2"]),
        ("SELECT count(*) FROM g WHERE $1 AND $2", vec![bool(true), bool(false)], vec!["0"]),
        ("SELECT sum(a) FROM g GROUP BY c HAVING $1 ORDER BY 1", vec![bool(true)], vec!["1", "2"]),
        ("SELECT a FROM g WHERE $1 IN (a, 3)", vec![int(1)], vec!["1"]),
        ("SELECT a FROM g WHERE $1 BETWEEN a AND 5 ORDER BY 1", vec![int(1)], vec!["1"]),
        ("SELECT a FROM g WHERE $1 IS NOT TRUE ORDER BY 1", vec![bool(false)], vec!["1", "2"]),
        ("SELECT count(*) FILTER (WHERE $1) FROM g AS x JOIN g AS y ON $2", vec![bool(true); 2], vec!["4"]),
        ("SELECT bool_or($1) FROM g", vec![bool(true)], vec!["t"]),
        ("SELECT floor($1), ceil($2)", vec![Datum::Double(1.5); 2], vec!["1|2"]),
        ("(SELECT a FROM g INTERSECT SELECT $1) EXCEPT SELECT $2", vec![int(1), int(2)], vec!["1"]),
        ("(SELECT $1 INTERSECT SELECT a FROM g) EXCEPT SELECT $2", vec![int(1), int(2)], vec!["1"]),
        ("SELECT nullif(a, $1) FROM g ORDER BY 1", vec![int(1)], vec!["2", "NULL"]),
        // Several uses, and uses beside several types: the first one decides.
        ("SELECT a FROM g WHERE a = $1 OR b = $1 ORDER BY 1", vec![int(1)], vec!["1"]),
        ("SELECT a FROM g WHERE a = $1 OR $1 IS NULL ORDER BY 1", vec![int(1)], vec!["1"]),
        ("SELECT a FROM g WHERE a = $1 AND $1 > 0", vec![int(1)], vec!["1"]),
        ("SELECT a FROM g WHERE a = $1 UNION SELECT a FROM g WHERE b = $1 ORDER BY 1", vec![int(1)], vec!["1"]),
        // The common type of the others.
        ("SELECT coalesce($1, a, 2.5) FROM g LIMIT 1", vec![decimal(275, 2)], vec!["2.75"]),
        ("SELECT greatest(a, $1, n) FROM g ORDER BY a", vec![decimal(275, 2)], vec!["2.75", "2.75"]),
        ("SELECT least(a, $1, b) FROM g ORDER BY a", vec![Datum::BigInt(1)], vec!["1", "1"]),
        ("SELECT a FROM g WHERE a IN ($1, 1.5) ORDER BY 1", vec![decimal(20, 1)], vec!["2"]),
        ("SELECT n FROM g WHERE n IN (1, $1) ORDER BY 1", vec![decimal(25, 1)], vec!["2.50"]),
        (
            "SELECT a FROM g WHERE $1 + 0 NOT IN (2.50, $2, 1::numeric) ORDER BY 1",
            vec![int(7), decimal(1, 1)],
            vec!["1", "2"],
        ),
        ("SELECT a FROM g WHERE $1 IN ($2, 2::bigint, $3) ORDER BY 1", vec![Datum::BigInt(7); 3], vec!["1", "2"]),
        ("SELECT count(*) FROM g WHERE $1 IN ($2, $3, b::text)", vec![text("1 "), text("2"), text("1")], vec!["0"]),
        ("SELECT (($1 + 1::bigint) NOT IN (1::numeric, 2.50, $2))", vec![Datum::BigInt(3), decimal(1, 1)], vec!["t"]),
        // A parameter used in a join, or beside another parameter.
        (
            "SELECT $1 - b FROM g LEFT JOIN (SELECT $2 || $3 AS t) s ON $4 ORDER BY 1",
            vec![Datum::BigInt(5), text("a"), text("b"), bool(true)],
            vec!["2", "4"],
        ),
        ("SELECT x || $1 FROM (SELECT $2 AS x) s", vec![text("a"), text("b")], vec!["ba"]),
        ("SELECT $1 * 2::numeric * $2 FROM g", vec![decimal(15, 1), decimal(1, 0)], vec!["3.0", "3.0"]),
        ("SELECT 1 UNION SELECT 2.5 UNION SELECT $1 ORDER BY 1", vec![decimal(275, 2)], vec!["1.00", "2.50", "2.75"]),
        ("SELECT 2.5 UNION (SELECT 1 UNION SELECT $1) ORDER BY 1", vec![int(3)], vec!["1.0", "2.5", "3.0"]),
        (
            "SELECT CASE a WHEN 1 THEN d WHEN 3 THEN ts ELSE $1 END FROM g ORDER BY a",
            vec![noon.clone()],
            vec!["2020-01-01 00:00:00", "2020-05-05 12:34:00"],
        ),
        ("SELECT coalesce($1, d, ts) FROM g LIMIT 1", vec![noon], vec!["2020-05-05 12:34:00"]),
        ("SELECT coalesce($1, '\\x0a'::bytea)", vec![Datum::Bytea(vec![11])], vec!["\\x0b"]),
        (
            "SELECT a FROM g WHERE $2::int2 IN ($1, 2) AND $3 ORDER BY a LIMIT $4",
            vec![Datum::SmallInt(1), Datum::SmallInt(1), bool(true), Datum::BigInt(1)],
            vec!["1"],
        ),
    ] {
        let answer = client.run_with(sql, &parameters).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(answer.lines(), expected, "{sql}");
    }
}

/// Parameters without a type in the place of a number of characters, digits or rows are integers, as in PostgreSQL.
#[test]
fn parameters_that_count() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE g (a INT, n NUMERIC(10, 3), t TEXT)");
    client.ok("INSERT INTO g VALUES (1, 1.234, 'abcd'), (2, 2.345, 'a,b')");
    let int = Datum::Int;
    let text = |text: &str| Datum::Text(text.to_owned());
    for (sql, parameters, expected) in [
        ("SELECT round(n, $1) FROM g ORDER BY a", vec![int(1)], vec!["1.2", "2.3"]),
        ("SELECT trunc(n, $1) = 2.3 FROM g ORDER BY a", vec![int(1)], vec!["f", "t"]),
        ("SELECT left(t, $1), right(t, $2) FROM g ORDER BY a", vec![int(1), int(2)], vec!["a|cd", "a|,b"]),
        ("SELECT lpad(t, $1), rpad(t, $1, $2) FROM g WHERE a = 2", vec![int(4), text("-")], vec![" a,b|a,b-"]),
        ("SELECT repeat($2, $1)", vec![int(3), text("ab")], vec!["ababab"]),
        ("SELECT substr(t, $1), substr(t, $1, $2) FROM g WHERE a = 1", vec![int(2), int(2)], vec!["bcd|bc"]),
        ("SELECT split_part(t, $1, $2) FROM g WHERE a = 2", vec![text(","), int(2)], vec!["b"]),
        ("SELECT overlay(t PLACING 'x' FROM $1 FOR $2) FROM g WHERE a = 1", vec![int(2), int(2)], vec!["axd"]),
        ("SELECT chr($1), make_date($2, $3, $3)", vec![int(65), int(2024), int(2)], vec!["A|2024-02-02"]),
        ("SELECT t FROM g WHERE left(t, $1) = $2", vec![int(2), text("ab")], vec!["abcd"]),
        ("SELECT lag(a, $1, $2) OVER (ORDER BY a) FROM g ORDER BY a", vec![int(1), int(7)], vec!["7", "1"]),
        ("SELECT nth_value(a, $1) OVER (ORDER BY a DESC) FROM g ORDER BY a", vec![int(1)], vec!["2", "2"]),
        ("SELECT ntile($1) OVER (ORDER BY a) FROM g ORDER BY a", vec![int(2)], vec!["1", "2"]),
        ("SELECT gcd(a, $1) FROM g ORDER BY a", vec![int(4)], vec!["1", "2"]),
        ("SELECT mod(a, $1) FROM g ORDER BY a", vec![int(2)], vec!["1", "0"]),
        (
            "SELECT get_byte('\\x0102', $1), width_bucket(n, 1, 3, $2) FROM g ORDER BY a",
            vec![int(1), int(4)],
            vec!["2|1", "2|3"],
        ),
        ("SELECT get_byte($1, 1)", vec![Datum::Bytea(vec![1, 2])], vec!["2"]),
        // PostgreSQL chooses the variant of this function that takes a pattern.
        ("SELECT substring(t from $1) FROM g ORDER BY a", vec![text("b.")], vec!["bc", "NULL"]),
    ] {
        let answer = client.run_with(sql, &parameters).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(answer.lines(), expected, "{sql}");
    }
}

/// A query bounded only by a large LIMIT runs like an unbounded one: from a snapshot, batch by batch.
#[test]
fn long_limits_are_for_the_planner() {
    use farhold_sql::Datum;
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    client.ok("INSERT INTO t SELECT value, 'x' || value FROM generate_series(1, 20000)");
    let is_direct = |sql: &str, values: &[Datum]| {
        let answer = client.run_with(sql, values).unwrap();
        (answer.rows.len(), answer.direct)
    };
    assert_eq!(is_direct("SELECT * FROM t LIMIT 100", &[]), (100, true));
    assert_eq!(is_direct("SELECT * FROM t LIMIT 15000", &[]), (15_000, false));
    assert_eq!(is_direct("SELECT * FROM t LIMIT 10 OFFSET 15000", &[]), (10, false));
    let by_parameter = "SELECT id, s FROM t WHERE id > $1 ORDER BY id LIMIT $2";
    assert_eq!(is_direct(by_parameter, &[Datum::Int(5), Datum::BigInt(7)]), (7, true));
    assert_eq!(is_direct(by_parameter, &[Datum::Int(5), Datum::BigInt(15_000)]), (15_000, false));
    assert_eq!(is_direct("SELECT * FROM t WHERE id = 3 LIMIT 15000", &[]), (1, true));
    assert_eq!(client.rows("COPY (SELECT id FROM t LIMIT 15000) TO STDOUT").len(), 15_000);
    // In a block it reads through the transaction.
    client.ok("BEGIN");
    assert_eq!(is_direct("SELECT * FROM t LIMIT 15000", &[]), (15_000, true));
    client.ok("COMMIT");
}

/// NUMERIC parameters of planned statements: with more than ten decimals, from 1e28 on, and with 38 digits.
#[test]
fn numeric_parameters_keep_all_their_digits() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, n NUMERIC(38, 17), w NUMERIC(38))");
    client.ok("CREATE TABLE u (id INT PRIMARY KEY, n NUMERIC(38, 17), w NUMERIC(38))");
    let decimal = |unscaled, scale| Datum::Decimal { unscaled, scale };
    let fine = decimal(12_345_678_901_234_567, 17);
    let wide = [decimal(10_i128.pow(28), 0), decimal(10_i128.pow(38) - 1, 0), decimal(1 - 10_i128.pow(38), 0)];
    let texts = ["10000000000000000000000000000", &"9".repeat(38), &format!("-{}", "9".repeat(38))];
    for (id, (wide, text)) in wide.iter().zip(texts).enumerate() {
        let parameters = [fine.clone(), wide.clone()];
        let insert = format!("INSERT INTO t SELECT {id}, $1, $2 WHERE EXISTS (SELECT 1)");
        assert_eq!(client.run_with(&insert, &parameters).unwrap().tag, "INSERT 0 1", "{text}");
        assert_eq!(
            client.rows(&format!("SELECT n, w FROM t WHERE id = {id}")),
            [format!("0.12345678901234567|{text}")]
        );
        client.ok(&format!("INSERT INTO u SELECT id, n, w FROM t WHERE id = {id}"));
        let joined = "SELECT t.id FROM t JOIN u ON t.id = u.id WHERE t.n = $1 AND u.w = $2";
        assert_eq!(client.run_with(joined, &parameters).unwrap().lines(), [id.to_string()], "{text}");
        let off = [decimal(12_345_678_901_234_568, 17), wide.clone()];
        assert_eq!(client.run_with(joined, &off).unwrap().lines(), Vec::<String>::new(), "the last place counts");
    }
    let sum = client.run_with("SELECT max(n + $1) FROM t", &[decimal(1, 17)]).unwrap();
    assert_eq!(sum.lines(), ["0.12345678901234568"]);
}
