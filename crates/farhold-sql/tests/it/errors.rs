//! Errors have PostgreSQL's SQLSTATE, roll back the transaction and leave no row reserved.

use std::sync::Arc;

use farhold_fabric::Executor;
use farhold_sql::{ColumnType, Datum, EngineConfig, TransactionState};
use farhold_store::row::{Column, Schema};
use farhold_testkit::memory_directory;
use farhold_txn::TableDef;

use crate::harness::{Client, Db};

/// The error for an unsupported plan must not contain the planner's own terms.
#[test]
fn what_is_not_planned_is_said_in_words() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, v INT)");
    let error = client.err("SELECT id, EXISTS (SELECT 1 FROM t AS o WHERE o.v < t.id) FROM t");
    assert_eq!(error.state.code(), "0A000", "{error}");
    assert!(
        !error.to_string().contains("subquery: <") && error.to_string().contains("a correlated subquery"),
        "{error}"
    );
}

/// Each statement fails with the expected state; afterwards another session can change every row involved.
#[test]
fn states_and_nothing_left_behind() {
    let db = Db::new();
    let client = db.client();
    let other = db.client();
    client.ok(
        "CREATE TABLE t (id INT PRIMARY KEY, v SMALLINT NOT NULL, s VARCHAR(3), n NUMERIC(4,2), u INT UNIQUE, d DATE)",
    );
    client.ok("INSERT INTO t VALUES (1, 1, 'a', 1, 1, NULL), (2, 2, 'b', 2, 2, NULL)");
    for (sql, state) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nowhere", "42P01"),
        ("INSERT INTO nowhere VALUES (1)", "42P01"),
        ("SELECT nothing FROM t", "42703"),
        ("CREATE TABLE t (id INT PRIMARY KEY)", "42P07"),
        ("INSERT INTO t (id, v) VALUES (7, 'x')", "22P02"),
        ("INSERT INTO t (id, v) VALUES (7, true)", "42804"),
        ("SELECT id FROM t WHERE s = 1", "42883"),
        ("SELECT id + true FROM t WHERE id = 1", "42883"),
        ("INSERT INTO t (id, v) VALUES (7, 40000)", "22003"),
        ("UPDATE t SET v = v + 32767 WHERE id = 1", "22003"),
        ("UPDATE t SET n = 100", "22003"),
        ("INSERT INTO t (id, v, s) VALUES (7, 1, 'long')", "22001"),
        ("UPDATE t SET s = s || 'xyz' WHERE id = 1", "22001"),
        ("INSERT INTO t (id, v, d) VALUES (7, 1, 'tomorrow')", "22007"),
        ("INSERT INTO t (id, v, d) VALUES (7, 1, '2024-02-31')", "22008"),
        ("UPDATE t SET v = v / (id - 1)", "22012"),
        ("INSERT INTO t (id) VALUES (7)", "23502"),
        ("UPDATE t SET v = NULL WHERE id = 2", "23502"),
        ("INSERT INTO t VALUES (7, 7, 'c', 1, 7, NULL), (1, 1, 'a', 1, 9, NULL)", "23505"),
        ("INSERT INTO t VALUES (7, 7, 'c', 1, 2, NULL)", "23505"),
        ("INSERT INTO t SELECT id + 6, v, s, n, u, d FROM t", "23505"),
        ("UPDATE t SET u = 2 WHERE id = 1", "23505"),
        ("SELECT (SELECT id FROM t)", "21000"),
        ("DELETE FROM t WHERE id = (SELECT id FROM t)", "21000"),
        ("ALTER TABLE t DROP COLUMN v", "0A000"),
        ("MERGE INTO t USING t AS o ON t.id = o.id WHEN MATCHED THEN DELETE", "0A000"),
    ] {
        for block in [false, true] {
            if block {
                client.ok("BEGIN");
                client.ok("UPDATE t SET n = 9 WHERE id = 2");
            }
            let error = client.err(sql);
            assert_eq!(error.state.code(), state, "{sql}: {error}");
            if block {
                assert_eq!(client.state(), TransactionState::Failed, "{sql}");
                assert_eq!(client.err("SELECT 1").state.code(), "25P02");
                assert_eq!(client.ok("COMMIT"), "ROLLBACK");
            }
            assert_eq!(client.state(), TransactionState::Idle);
            assert_eq!(other.rows("SELECT id, v, n, u FROM t ORDER BY id"), ["1|1|1.00|1", "2|2|2.00|2"], "{sql}");
        }
    }
    let nul = farhold_sql::Datum::Text("a\0b".to_owned());
    assert_eq!(
        client.run_with("INSERT INTO t (id, v, s) VALUES (7, 1, $1)", &[nul]).unwrap_err().state.code(),
        "22021"
    );
    // No row is reserved or locked: the keys that failed can be used, and the rows changed.
    assert_eq!(other.ok("INSERT INTO t VALUES (7, 7, 'c', 1, 7, NULL)"), "INSERT 0 1");
    assert_eq!(other.ok("UPDATE t SET v = 0"), "UPDATE 3");
    assert_eq!(other.ok("DELETE FROM t"), "DELETE 3");
}

#[test]
fn duplicates_name_their_key() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (a INT, b TEXT, PRIMARY KEY (a, b), c INT, CONSTRAINT c_once UNIQUE (c))");
    client.ok("INSERT INTO t VALUES (1, 'x', 5)");
    let error = client.err("INSERT INTO t VALUES (1, 'x', 6)");
    assert_eq!(error.constraint.as_deref(), Some("t_pkey"));
    assert_eq!(error.detail.as_deref(), Some("Key (a, b)=(1, x) already exists."));
    let error = client.err("INSERT INTO t VALUES (2, 'x', 5)");
    assert_eq!(error.message, "duplicate key value violates unique constraint \"c_once\"");
    assert_eq!(error.detail.as_deref(), Some("Key (c)=(5) already exists."));
    assert_eq!(error.table.as_deref(), Some("t"));
}

#[test]
fn a_query_over_its_memory_stops_and_the_next_one_runs() {
    let config = EngineConfig { query_threads: 2, query_memory_bytes: 2 << 20, ..EngineConfig::default() };
    let db = Db::with(config);
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    client.ok("INSERT INTO t SELECT value, repeat('x', 100) || value FROM generate_series(1, 20000)");
    let error = client.err("SELECT count(*) FROM (SELECT s, count(*) FROM t GROUP BY s) x");
    assert_eq!(error.state.code(), "53200", "{error}");
    // The message names the option that the user can set, and the detail lists the consumers of memory from its second
    // line on.
    assert!(error.message.contains("--query-memory"), "{error}");
    let detail = error.detail.unwrap_or_default();
    assert!(detail.lines().count() > 1 && detail.contains("consumed"), "{detail}");
    assert_eq!(client.rows("SELECT count(*) FROM t WHERE id <= 100"), ["100"]);
}

/// One of the last lines describes the fault in the pattern.
#[test]
fn details_of_patterns_have_all_their_lines() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (s TEXT)");
    client.ok("INSERT INTO t VALUES ('a')");
    for wrong in ["regexp_replace(s, '(', 'b')", "s ~ '('", "regexp_match(s, '(')", "substring(s from '(')"] {
        let error = client.err(&format!("SELECT {wrong} FROM t"));
        assert_eq!(error.state.code(), "2201B", "{wrong}: {error}");
        let detail = error.detail.unwrap_or_default();
        assert!(detail.contains("\nerror: unclosed group"), "{wrong}: {detail}");
    }
}

#[test]
fn pads_take_the_room_that_their_result_needs() {
    let db = Db::with(EngineConfig { query_threads: 1, query_memory_bytes: 2 << 20, ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    client.ok("INSERT INTO t VALUES (1, 'x'), (2, 'y')");
    assert_eq!(client.rows("SELECT length(lpad(s, 900000)) FROM t ORDER BY id"), ["900000", "900000"]);
    assert_eq!(client.err("SELECT length(rpad(s, 900000, 'ü')) FROM t").state.code(), "53200");
    assert_eq!(client.err("SELECT length(rpad(s, 300000000)) FROM t").state.code(), "54000");
}

/// The rows that a query in a block reads through the transaction count towards its memory, but only the columns that
/// it uses.
#[test]
fn a_query_of_a_block_has_a_limit_too() {
    let db = Db::with(EngineConfig { query_threads: 1, query_memory_bytes: 2 << 20, ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL, n INT)");
    client.ok("INSERT INTO t SELECT value, repeat('x', 1000), value FROM generate_series(1, 10000)");
    client.ok("BEGIN");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["10000"]);
    assert_eq!(client.rows("SELECT sum(n), min(id) FROM t WHERE n > 5000"), ["37502500|5001"]);
    assert_eq!(client.rows("SELECT max(a.n) FROM t a JOIN t b ON a.id = b.n WHERE b.id < 10"), ["9"]);
    client.ok("SAVEPOINT s");
    assert_eq!(client.err("SELECT max(length(s)) FROM t").state.code(), "53200");
    client.ok("ROLLBACK TO s");
    assert_eq!(client.rows("SELECT max(length(s)) FROM t WHERE id < 10"), ["1000"]);
    client.ok("ROLLBACK");
}

/// The results of these expressions would exceed the memory of the machine.
#[test]
fn results_far_longer_than_what_they_are_made_of_are_refused() {
    let db = Db::with(EngineConfig { query_threads: 1, query_memory_bytes: 8 << 20, ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    client.ok("INSERT INTO t SELECT value, 'a' FROM generate_series(1, 5000)");
    let million = "repeat('a', 1000000)";
    for long in [
        format!("replace({million}, 'a', {million})"),
        format!("regexp_replace({million}, 'a', {million}, 'g')"),
        format!("regexp_replace({million}, '(.*)', '{}')", "\\1".repeat(2000)),
        "array_repeat(1, 2147483647)".to_owned(),
        "array_resize(ARRAY[1], 2147483647, 2)".to_owned(),
        "range(0, 1000000000000)".to_owned(),
        "generate_series(1000000000000, 0, -1)".to_owned(),
        format!("array_to_string(range(0, 100000), {million})"),
        format!("concat_ws({million}{})", ", 'a'".repeat(2000)),
    ] {
        assert_eq!(client.err(&format!("SELECT {long}")).state.code(), "54000", "{long}");
    }
    // A batch of 5,000 rows.
    for long in ["repeat(s, 10000) || s", "concat(s, repeat(s, 10000))", "replace(s, 'a', repeat(s, 10000))"] {
        assert_eq!(client.err(&format!("SELECT max(length({long})) FROM t")).state.code(), "53200", "{long}");
    }
    for (short, length) in [
        ("replace(repeat('a', 1000000), 'ab', repeat('c', 1000000))", 1_000_000),
        ("regexp_replace(repeat('a', 1000000), 'a$', repeat('c', 1000000), 'g')", 1_999_999),
        ("repeat('a', 1000000) || repeat('b', 1000000)", 2_000_000),
    ] {
        assert_eq!(client.rows(&format!("SELECT length({short})")), [length.to_string()], "{short}");
    }
    assert_eq!(client.rows("SELECT s || id || NULL, s || id FROM t WHERE id + 0 = 7"), ["NULL|a7"]);
    assert_eq!(client.rows("SELECT array_repeat(1, 3), range(1, 4)"), ["{1,1,1}|{1,2,3}"]);
}

/// A batch of 5,000 such rows would take several GiB.
#[test]
fn long_rows_are_made_few_at_a_time() {
    let db = Db::with(EngineConfig { query_threads: 1, query_memory_bytes: 8 << 20, ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    client.ok("INSERT INTO t SELECT value, 'a' FROM generate_series(1, 5000)");
    for (query, answer) in [
        ("SELECT max(length(repeat('a', 10000) || s)) FROM t", "10001"),
        ("SELECT max(length(replace(s, 'a', repeat('b', 10000)))) FROM t", "10000"),
        ("SELECT max(length(g || s)) FROM t CROSS JOIN (SELECT repeat('y', 100000) g) y", "100001"),
        ("SELECT max(length(g || s)) FROM t CROSS JOIN (SELECT repeat(s, 100000) g FROM t WHERE id = 1) y", "100001"),
        ("SELECT sum(array_length(array_append(array_repeat(1, 5000), id), 1)) FROM t", "25005000"),
        ("SELECT count(*), sum(n) FROM (SELECT s, generate_series(1, 200) n FROM t) q", "1000000|100500000"),
        ("SELECT count(*), max(n) FROM (SELECT generate_series(1, id) n FROM t WHERE id <= 1000) q", "500500|1000"),
        (
            "SELECT count(n), max(id) FROM (SELECT id, unnest(array_repeat(1, 20000)) n FROM t WHERE id <= 50) q",
            "1000000|50",
        ),
    ] {
        assert_eq!(client.rows(query), [answer], "{query}");
    }
    for window in ["array_agg(s) OVER (ORDER BY id)", "array_agg(s) OVER ()", "string_agg(s, ',') OVER (ORDER BY id)"] {
        assert_eq!(client.err(&format!("SELECT {window} FROM t")).state.code(), "53200", "{window}");
    }
    assert_eq!(client.rows("SELECT array_agg(s) OVER (ORDER BY id) FROM t WHERE id < 4"), ["{a}", "{a,a}", "{a,a,a}"]);
}

/// A table of 300 rows of 60 KB.
fn long_rows(config: EngineConfig) -> (Db, Client) {
    let db = Db::with(config);
    let client = db.client();
    client.ok("CREATE TABLE l (id INT PRIMARY KEY, k INT, t TEXT)");
    client.ok("CREATE TABLE s (id INT PRIMARY KEY, k INT)");
    for first in (0..300).step_by(50) {
        let last = first + 49;
        client.ok(&format!(
            "INSERT INTO l SELECT value, value % 7, repeat('x', 60000) FROM generate_series({first}, {last})"
        ));
    }
    client.ok("INSERT INTO s SELECT value, value % 7 FROM generate_series(0, 299)");
    (db, client)
}

/// A window without ORDER BY keeps all of its rows until the last one has arrived.
#[test]
fn a_window_over_long_rows_needs_room() {
    let (_db, client) =
        long_rows(EngineConfig { query_threads: 2, query_memory_bytes: 12 << 20, ..EngineConfig::default() });
    for window in ["id, t, sum(k) OVER ()", "id, last_value(t) OVER ()", "id, max(t) OVER ()"] {
        assert_eq!(client.err(&format!("SELECT {window} FROM l")).state.code(), "53200", "{window}");
    }
    assert_eq!(client.rows("SELECT count(*), max(s) FROM (SELECT sum(k) OVER () s FROM l) w"), ["300|897"]);
    let few = "SELECT count(*), max(length(a)), max(length(b)), sum(n) FROM (SELECT lag(t) OVER (ORDER BY id) a, \
               max(t) OVER (PARTITION BY k) b, row_number() OVER () n FROM l WHERE id < 20) w";
    assert_eq!(client.rows(few), ["20|60000|60000|210"]);
}

/// On either side of the join.
#[test]
fn nested_loops_over_long_rows_have_short_batches() {
    let (_db, client) =
        long_rows(EngineConfig { query_threads: 2, query_memory_bytes: 32 << 20, ..EngineConfig::default() });
    for (query, answer) in [
        ("SELECT count(*), sum(length(l.t)) FROM l JOIN s ON l.id < s.id AND s.id < l.id + 3", "597|35820000"),
        ("SELECT count(*), sum(length(l.t)) FROM s LEFT JOIN l ON l.id < s.id AND s.id < l.id + 3", "598|35820000"),
        ("SELECT count(*), sum(length(l.t)) FROM l LEFT JOIN s ON l.id < s.id AND s.id < l.id + 3", "598|35880000"),
        ("SELECT count(*), sum(length(l.t)) FROM l FULL JOIN s ON l.id < s.id AND s.id < l.id + 3", "599|35880000"),
        ("SELECT count(*), sum(length(t)) FROM l WHERE EXISTS (SELECT 1 FROM s WHERE s.id < l.id - 9)", "290|17400000"),
        (
            "SELECT count(*), sum(length(t)) FROM l WHERE NOT EXISTS (SELECT 1 FROM s WHERE s.id < l.id - 9)",
            "10|600000",
        ),
        (
            "SELECT count(*), sum(length(l.t || k.t)) FROM l JOIN l k ON l.id < k.id WHERE l.id < 20 AND k.id < 20",
            "190|22800000",
        ),
    ] {
        assert_eq!(client.rows(query), [answer], "{query}");
    }
}

/// Two steps would hold the groups twice, and no reservation would count those that the first one returns.
#[test]
fn one_thread_groups_a_union_in_one_step() {
    for (query_threads, modes) in [(1, vec!["Single"]), (2, vec!["FinalPartitioned", "Partial"])] {
        let (_db, client) =
            long_rows(EngineConfig { query_threads, query_memory_bytes: 48 << 20, ..EngineConfig::default() });
        let union = "SELECT t, k FROM l UNION SELECT t, k FROM l WHERE id < 3";
        let plan = client.rows(&format!("EXPLAIN {union}")).join("\n");
        let found: Vec<&str> =
            plan.split("AggregateExec: mode=").skip(1).filter_map(|it| it.split(',').next()).collect();
        assert_eq!(found, modes, "{plan}");
        assert_eq!(client.rows(&format!("SELECT count(*), sum(k), sum(length(t)) FROM ({union}) u")), ["7|21|420000"]);
        assert_eq!(
            client.rows("SELECT count(*), sum(k) FROM (SELECT k FROM l UNION ALL SELECT k FROM s) u"),
            ["600|1794"]
        );
        // The order of rows in a group.
        let ordered = "SELECT k, string_agg(id::text, ',' ORDER BY id DESC), array_agg(id ORDER BY id) \
                       FROM (SELECT k, id FROM l WHERE id < 9 UNION ALL SELECT k, id + 100 FROM s WHERE id < 2) u \
                       WHERE k < 2 GROUP BY k ORDER BY k";
        assert_eq!(client.rows(ordered), ["0|100,7,0|{0,7,100}", "1|101,8,1|{1,8,101}"]);
    }
}

/// The planner copies a constant into names many times.
#[test]
fn a_constant_that_is_long_stays_out_of_the_plan() {
    let (_db, client) =
        long_rows(EngineConfig { query_threads: 1, query_memory_bytes: 48 << 20, ..EngineConfig::default() });
    let long = "string_to_array(repeat('a,', 200000), ',')";
    assert_eq!(
        client.rows(&format!("SELECT count(a), max(array_length(a, 1)) FROM (SELECT {long} a FROM s) q")),
        ["300|200001"]
    );
    assert_eq!(client.rows(&format!("SELECT array_length({long}, 1)")), ["200001"]);
    let plan = client.rows(&format!("EXPLAIN SELECT array_length(array_append({long}, k::text), 1) FROM s"));
    assert!(plan.iter().all(|line| line.len() < 10_000), "{} bytes", plan.iter().map(String::len).sum::<usize>());
    for refused in [
        "array_length(string_to_array(repeat('a,', 5000000), ','), 1)",
        "repeat('a', 9000000), repeat('b', 9000000), repeat('c', 9000000), repeat('d', 9000000)",
    ] {
        assert_eq!(client.err(&format!("SELECT {refused}")).state.code(), "53200", "{refused}");
    }
    assert_eq!(
        client.rows("SELECT string_to_array('a,b,', ','), string_to_array('ab', NULL), string_to_array('', ',')"),
        ["{a,b,\"\"}|{a,b}|{}"]
    );
}

/// The output of `encode` may be four times as long as its input.
#[test]
fn what_is_encoded_needs_room() {
    let db = Db::with(EngineConfig { query_threads: 1, query_memory_bytes: 1 << 20, ..EngineConfig::default() });
    let client = db.client();
    let long =
        |count: usize, format: &str| format!("SELECT length(encode(decode(repeat('ff', {count}), 'hex'), '{format}'))");
    assert_eq!(client.err(&long(400_000, "escape")).state.code(), "53200");
    assert_eq!(client.rows(&long(200_000, "escape")), ["800000"]);
    assert_eq!(client.rows(&long(400_000, "hex")), ["800000"]);
    assert_eq!(client.rows(&long(400_000, "base64")), ["540353"]);
}

/// The work is proportional to the product of the lengths, and the function does not check for cancellation.
#[test]
fn levenshtein_takes_short_texts() {
    let db = Db::new();
    let client = db.client();
    assert_eq!(client.rows("SELECT levenshtein('kitten', 'sitting')"), ["3"]);
    assert_eq!(client.rows("SELECT levenshtein(repeat('a', 255), 'b')"), ["255"]);
    let error = client.err("SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))");
    assert_eq!(error.state.code(), "22023");
}

/// A table with an unreadable definition keeps its name until it is dropped.
#[test]
fn a_table_that_cannot_be_read_can_be_dropped() {
    let db = Db::new();
    let client = db.client();
    // A default that is not a valid expression, in the encoding of table attributes.
    let mut attributes = vec![b'S', 2, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, b'\''];
    attributes.extend([0, 0]);
    let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
    let definition = TableDef { attributes, ..TableDef::new("broken", schema) };
    let again = definition.clone();
    let executor = Executor::real(1);
    let worker = db.node.worker(&executor.handle()).expect("a worker");
    executor.run(async move {
        worker.create_table(definition).await.expect("a table");
    });
    assert_eq!(client.err("SELECT * FROM broken").state.code(), "42P01");
    assert_eq!(client.err("CREATE TABLE broken (id INT PRIMARY KEY)").state.code(), "42P07");
    assert_eq!(client.ok("DROP TABLE broken"), "DROP TABLE");
    // Dropping the table drops its sequences.
    client.ok("CREATE TABLE broken (id SERIAL PRIMARY KEY)");
    let node = Arc::clone(&db.node);
    let executor = Executor::real(2);
    let worker = db.node.worker(&executor.handle()).expect("a worker");
    executor.run(async move {
        let table = node.tables().into_iter().find(|table| table.name() == "broken").expect("the table");
        worker.drop_table(&table).await.expect("it is dropped");
        worker.create_table(again).await.expect("a table");
    });
    assert_eq!(client.rows("SELECT nextval('broken_id_seq')"), ["1"]);
    assert_eq!(client.ok("DROP TABLE broken"), "DROP TABLE");
    assert_eq!(client.err("SELECT nextval('broken_id_seq')").state.code(), "42P01");
    client.ok("CREATE SEQUENCE broken_id_seq");
}

#[test]
fn a_full_region_is_an_error() {
    let db = Db::open(memory_directory(), EngineConfig { query_threads: 1, ..EngineConfig::default() }, 16 << 20);
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
    let mut rounds = 0;
    let error = loop {
        let sql =
            format!("INSERT INTO t SELECT value + {}, repeat('x', 1000) FROM generate_series(1, 2000)", rounds * 2000);
        match client.run(&sql) {
            Ok(_) => rounds += 1,
            Err(error) => break error,
        }
        assert!(rounds < 100, "16 MiB hold no 200 MB");
    };
    assert_eq!(error.state.code(), "53200", "{error}");
    // The failed statement left no rows; the earlier rows are still there.
    assert_eq!(client.rows("SELECT count(*) FROM t"), [(rounds * 2000).to_string()]);
    assert_eq!(client.ok("DELETE FROM t WHERE id <= 1000"), "DELETE 1000");
    // Rows of about the same size fit again.
    client.ok("INSERT INTO t VALUES (-1, repeat('y', 1000))");
}

/// The space of a dropped table is available at once for rows of every size; a CREATE TABLE that fails for lack of
/// space leaves nothing behind.
#[test]
fn a_full_region_has_room_after_a_drop() {
    let db = Db::open(memory_directory(), EngineConfig { query_threads: 1, ..EngineConfig::default() }, 16 << 20);
    let client = db.client();
    for round in 1..4 {
        let bytes = 1500 / round;
        client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT NOT NULL)");
        let rows = |from: i32| {
            format!("INSERT INTO t SELECT value, repeat('x', {bytes}) FROM generate_series({from}, {})", from + 99)
        };
        let error = (0..1000).find_map(|batch| client.run(&rows(batch * 100)).err()).expect("16 MiB hold no 50 MB");
        assert_eq!(error.state.code(), "53200", "{error}");
        let room = client.rows("SELECT sum(length(s)) FROM t")[0].parse::<u64>().expect("a number");
        assert!(room > 8 << 20, "round {round}: {room} bytes of rows");
        // There is no space for another table; the failed attempt does not take the name.
        let table = |number: i32| format!("u{number}");
        let made = (0..4096)
            .take_while(|number| client.run(&format!("CREATE TABLE {} (id INT PRIMARY KEY)", table(*number))).is_ok());
        let made = made.count() as i32;
        for _ in 0..2 {
            let error = client.err(&format!("CREATE TABLE {} (id INT PRIMARY KEY)", table(made)));
            assert_eq!(error.state.code(), "53200", "{error}");
        }
        assert_eq!(client.err(&format!("DROP TABLE {}", table(made))).state.code(), "42P01");
        for number in 0..made {
            client.ok(&format!("DROP TABLE {}", table(number)));
        }
        client.ok("DROP TABLE t");
    }
}

#[test]
fn a_row_too_large() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT, k TEXT UNIQUE)");
    let big = "x".repeat(70_000);
    assert_eq!(client.err(&format!("INSERT INTO t (id, s) VALUES (1, '{big}')")).state.code(), "54000");
    client.ok("INSERT INTO t VALUES (1, 'small')");
    assert_eq!(client.err(&format!("UPDATE t SET s = '{big}' WHERE id = 1")).state.code(), "54000");
    assert_eq!(client.rows("SELECT s FROM t WHERE id = 1"), ["small"]);
    // Values longer than the maximum key length are compared like any others.
    client.ok("CREATE TABLE k (a TEXT, b TEXT, PRIMARY KEY (a, b))");
    client.ok("INSERT INTO k VALUES ('x', 'y')");
    client.ok("UPDATE t SET k = 'y' WHERE id = 1");
    let long = "y".repeat(70_000);
    for (condition, found) in [
        (format!("a = 'x' AND b < '{long}'"), 1),
        (format!("a = 'x' AND b >= '{long}'"), 0),
        (format!("a = 'x' AND b <> '{long}'"), 1),
        (format!("a = 'x' AND b = '{long}'"), 0),
        (format!("a = '{long}' AND b > ''"), 0),
        (format!("a < '{long}'"), 1),
    ] {
        assert_eq!(client.rows(&format!("SELECT count(*) FROM k WHERE {condition}")), [found.to_string()]);
        assert_eq!(client.rows(&format!("SELECT b FROM k WHERE {condition}")).len(), found);
        client.ok(&format!("UPDATE k SET b = b WHERE {condition}"));
    }
    assert_eq!(client.rows(&format!("SELECT id FROM t WHERE k = '{long}'")).len(), 0);
    client.ok(&format!("DELETE FROM k WHERE a = '{long}' OR b = '{long}'"));
    client.ok(&format!("DELETE FROM k WHERE a = 'x' AND b = '{long}'"));
    assert_eq!(client.rows("SELECT a FROM k"), ["x"]);
}

#[test]
fn a_running_query_can_be_cancelled() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("INSERT INTO t SELECT value FROM generate_series(1, 3000)");
    let endless = "SELECT count(*) FROM t a, t b, t c WHERE a.id + b.id + c.id = 7";
    for block in [false, true] {
        if block {
            client.ok("BEGIN");
        }
        let answer = client.start(endless);
        // A cancel request that arrives before the statement runs has no effect, so send requests until one takes
        // effect.
        let error = loop {
            client.cancel.cancel();
            if let Ok(outcome) = answer.recv_timeout(std::time::Duration::from_millis(5)) {
                break outcome.unwrap_err();
            }
        };
        assert_eq!(error.state.code(), "57014", "{error}");
        if block {
            assert_eq!(client.state(), TransactionState::Failed);
            client.ok("ROLLBACK");
        }
        assert_eq!(client.rows("SELECT count(*) FROM t"), ["3000"]);
    }
    // Writes stop as well, and have no effect.
    let answer =
        client.start("DELETE FROM t WHERE id IN (SELECT a.id FROM t a, t b, t c WHERE a.id + b.id + c.id > 0)");
    let error = loop {
        client.cancel.time_out();
        if let Ok(outcome) = answer.recv_timeout(std::time::Duration::from_millis(5)) {
            break outcome.unwrap_err();
        }
    };
    assert_eq!(error.message, "canceling statement due to statement timeout");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["3000"]);
}

/// The only query thread must become free before the plan is complete, which would take minutes.
#[test]
fn a_plan_that_is_being_made_can_be_cancelled() {
    let db = Db::with(EngineConfig { query_threads: 1, ..EngineConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, n NUMERIC)");
    let answer = client.start(&format!("SELECT n{} FROM t", " % 1000000007 / 1".repeat(900)));
    let error = loop {
        client.cancel.cancel();
        if let Ok(outcome) = answer.recv_timeout(std::time::Duration::from_millis(5)) {
            break outcome.unwrap_err();
        }
    };
    assert_eq!(error.state.code(), "57014", "{error}");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["0"]);
}

/// Represented as chains of operators they would need a stack level for each element.
#[test]
fn long_lists_and_rows_are_answered() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, k INT)");
    client.ok("INSERT INTO t VALUES (1, 1), (2, 200000), (3, NULL)");
    let numbers = |count: i32| (0..count).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let list = numbers(100_000);
    let pairs = (0..10_000).map(|n| format!("({n},{n})")).collect::<Vec<_>>().join(",");
    for (condition, ids) in [
        (format!("k IN ({list})"), &["1"][..]),
        (format!("k IN (0.5, {list})"), &["1"]),
        (format!("k NOT IN ({list})"), &["2"]),
        (format!("k = ANY ('{{{list}}}')"), &["1"]),
        (format!("k <> ANY ('{{{list}}}')"), &["1", "2"]),
        (format!("k <> ALL (ARRAY[{list}])"), &["2"]),
        (format!("k > ALL (ARRAY[{list}])"), &["2"]),
        (format!("k > ANY ('{{{list}}}'::bigint[])"), &["1", "2"]),
        (format!("k > ALL ('{{{list},NULL}}')"), &[]),
        (format!("(id, k) IN ({pairs})"), &["1"]),
    ] {
        let sql = format!("SELECT id FROM t WHERE {condition} ORDER BY id");
        assert_eq!(client.rows(&sql), ids, "{}", &condition[..20]);
    }
    let row = |last: &str| format!("({},{last})", numbers(1663));
    let (one, two, null) = (row("1"), row("2"), row("NULL"));
    let comparisons = [
        format!("{one} = {two}"),
        format!("{one} <> {two}"),
        format!("{one} < {two}"),
        format!("{one} >= {null}"),
        format!("{null} IS NOT NULL"),
        format!("{one} IS DISTINCT FROM {null}"),
    ];
    let answers = comparisons.map(|comparison| client.rows(&format!("SELECT {comparison}")).concat());
    assert_eq!(answers, ["f", "t", "t", "NULL", "f", "t"]);
    let patterns = format!("SELECT 'a' ~ ANY (ARRAY[{}'b'])", "'a', ".repeat(1_000));
    assert_eq!(client.err(&patterns).state.code(), "54001");
    assert_eq!(client.rows("SELECT 'a' ~ ANY (ARRAY['b', 'a'])"), ["t"]);
}

/// A parameter has no array type, but its text can be an array.
#[test]
fn parameters_are_arrays_behind_any_and_all() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, k INT, n NUMERIC(6,1), c CHAR(4))");
    client.ok("INSERT INTO t VALUES (1, 3, 1.5, 'ab'), (2, 1, 2, 'cd'), (3, NULL, NULL, NULL)");
    let ids = |condition: &str, parameter: Datum| {
        let answer = client.run_with(&format!("SELECT id FROM t WHERE {condition} ORDER BY id"), &[parameter]);
        answer.map(|answer| answer.lines().concat()).map_err(|error| error.state.code())
    };
    let text = |text: &str| Datum::Text(text.to_owned());
    for array in ["$1", "$1::int[]"] {
        assert_eq!(ids(&format!("k = ANY ({array})"), text("{1,NULL}")), Ok("2".to_owned()), "{array}");
        assert_eq!(ids(&format!("k <> ALL ({array})"), text("{1,NULL}")), Ok(String::new()), "{array}");
        assert_eq!(ids(&format!("k <> ALL ({array})"), text("{1,2}")), Ok("1".to_owned()), "{array}");
        assert_eq!(ids(&format!("k > ANY ({array})"), text("{1,NULL}")), Ok("1".to_owned()), "{array}");
        assert_eq!(ids(&format!("k >= ALL ({array})"), text("{{1},{2}}")), Ok("1".to_owned()), "{array}");
        assert_eq!(ids(&format!("k = ANY ({array})"), text("{1,}")), Err("22P02"), "{array}");
        assert_eq!(ids(&format!("k = ANY ({array})"), text("{x}")), Err("22P02"), "{array}");
        assert_eq!(ids(&format!("k = ANY ({array})"), Datum::Null), Ok(String::new()), "{array}");
        assert_eq!(ids(&format!("NOT k <> ALL ({array})"), text("{}")), Ok(String::new()), "{array}");
        assert_eq!(ids(&format!("k < ALL ({array})"), text("{}")), Ok("123".to_owned()), "{array}");
    }
    assert_eq!(ids("n = ANY ($1)", text("{1.50,2.25}")), Ok("1".to_owned()));
    assert_eq!(ids("n < ANY ($1)", text("{1.55}")), Ok("1".to_owned()));
    assert_eq!(ids("c = ANY ($1)", text("{\"ab  \",x}")), Ok("1".to_owned()));
    let answer = client.run_with("SELECT k = ANY ($1) FROM t WHERE id = 1", &[text("{3}")]).expect("an answer");
    assert_eq!((answer.columns[0].0.as_str(), answer.lines()), ("?column?", vec!["t".to_owned()]));
}

#[test]
fn deep_statements_are_refused_not_fatal() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, k INT, s TEXT, b BOOLEAN)");
    let nested = |levels: usize, open: &str, close: &str| format!("{}k{}", open.repeat(levels), close.repeat(levels));
    for deep in [
        nested(5_000, "(", ")"),
        nested(300, "(", ")"),
        nested(1_000, "NOT ", ""),
        nested(1_000, "- ", ""),
        nested(1_000, "CASE WHEN b THEN ", " END"),
        nested(1_000, "abs(", ")"),
        nested(1_000, "", "::bigint::int"),
        nested(1_000, "k + (", ")"),
        nested(3_000, "", " + k"),
        nested(3_000, "k = ", ""),
        nested(30_000, "", " + k"),
        nested(3_000, "b AND ", ""),
        nested(3_000, "", " IS NULL"),
        nested(3_000, "s || ", ""),
    ] {
        for sql in [
            format!("SELECT {deep} FROM t"),
            format!("SELECT 1 FROM t WHERE {deep}"),
            format!("SELECT max(id) FROM t GROUP BY {deep} ORDER BY 1"),
            format!("UPDATE t SET k = {deep}"),
            format!("INSERT INTO t (id, k) VALUES (1, {deep})"),
            format!("EXPLAIN SELECT {deep} FROM t"),
            format!("CREATE TABLE u (k INT DEFAULT {deep})"),
        ] {
            let state = client.err(&sql).state;
            // The parser reports operands of NOT and signs beyond its depth limit as syntax errors.
            assert!(matches!(state.code(), "54001" | "42601"), "{state:?} {}", &sql[..60]);
        }
    }
    let many = format!("SELECT 1 FROM t{}", ", t".repeat(20_000));
    assert_eq!(client.err(&many).state.code(), "54001");
    let from = format!("SELECT 1 FROM {}t{}", "(SELECT * FROM ".repeat(1_000), ") AS x".repeat(1_000));
    assert_eq!(client.err(&from).state.code(), "54001");
    assert_eq!(client.rows("SELECT 1"), ["1"]);
}

/// A regression: the names and types of all nodes below were computed again at each level, so that 300 terms took 25 s,
/// and 600 overflowed the stack of the thread.
#[test]
fn long_chains_are_answered() {
    const TERMS: usize = 1_000;
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, k BIGINT, f DOUBLE PRECISION, s TEXT, b BOOLEAN)");
    client.ok("INSERT INTO t VALUES (1, 1, 0.5, 'a', true), (2, NULL, NULL, NULL, NULL)");
    let chain = |term: &str, op: &str| vec![term; TERMS].join(op);
    let numbered = |term: &dyn Fn(usize) -> String, op: &str| (0..TERMS).map(term).collect::<Vec<_>>().join(op);
    // A comparison of expressions of text columns needs the planner.
    let of = |items: &str| client.rows(&format!("SELECT {items} FROM t WHERE s || s > '' OR b IS NULL ORDER BY id"));
    assert_eq!(of(&chain("k", " + ")), ["1000", "NULL"]);
    assert_eq!(of(&chain("k", " - ")), ["-998", "NULL"]);
    assert_eq!(of(&format!("{} - 1000", chain("k", " * k + "))), ["0", "NULL"]);
    assert_eq!(of(&chain("f", " + ")), ["500", "NULL"]);
    assert_eq!(of(&format!("length({})", chain("s", " || "))), ["1000", "NULL"]);
    assert_eq!(of(&chain("b", " AND ")), ["t", "NULL"]);
    assert_eq!(of(&chain("b", " OR ")), ["t", "NULL"]);
    assert_eq!(of(&numbered(&|n| format!("k = {n} AND id = {n}"), " OR ")), ["t", "NULL"]);
    let ids = |condition: &str| client.rows(&format!("SELECT id FROM t WHERE s || s > '' AND ({condition})"));
    assert_eq!(ids(&numbered(&|n| format!("k <> {}", n + 2), " AND ")), ["1"]);
    assert_eq!(ids(&numbered(&|n| format!("k + id = {n}"), " OR ")), ["1"]);
    // Intermediate results are checked for overflow.
    let half = vec!["9223372036854775807"; TERMS / 4].join(" - 9223372036854775807 + ");
    assert_eq!(of(&format!("k - k + {half}")), ["9223372036854775807", "NULL"]);
    assert_eq!(client.err(&format!("SELECT k + {half} FROM t WHERE s || s > ''")).state.code(), "22003");
}

/// Each of these adds a join or an operator on top of the plan.
#[test]
fn what_makes_plans_deep_is_refused() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, k INT)");
    client.ok("INSERT INTO t VALUES (1, 1)");
    let list =
        |count: usize, item: &dyn Fn(usize) -> String, by: &str| (0..count).map(item).collect::<Vec<_>>().join(by);
    let with = |count: usize, twice: bool| {
        let next = |n: usize| {
            let beside = if twice { format!(", w{n} AS y") } else { String::new() };
            format!(", w{} AS (SELECT x.k FROM w{n} AS x{beside})", n + 1)
        };
        format!("WITH w0 AS (SELECT k FROM t){} SELECT k FROM w{count}", list(count, &next, ""))
    };
    assert_eq!(client.rows(&with(100, false)), ["1"]);
    assert_eq!(client.rows(&with(5, true)), ["1"]);
    let exists = |n: usize| format!("NOT EXISTS (SELECT 1 FROM t AS u WHERE u.k = t.k + {})", n + 1);
    assert_eq!(client.rows(&format!("SELECT id FROM t WHERE {}", list(20, &exists, " AND "))), ["1"]);
    let window = |n: usize| format!("sum(k) OVER (ORDER BY id + {n})");
    for sql in [
        with(500, false),
        with(30, true),
        format!("SELECT id FROM t WHERE {}", list(101, &exists, " AND ")),
        format!("SELECT {} FROM t", list(101, &|n| format!("(SELECT max(k) + {n} FROM t)"), ", ")),
        format!("SELECT {} FROM t", list(201, &window, ", ")),
        format!("UPDATE t SET k = 1 WHERE {}", list(101, &exists, " OR ")),
        format!("INSERT INTO t VALUES (2, {})", list(101, &|n| format!("(SELECT max(k) + {n} FROM t)"), " + ")),
    ] {
        assert_eq!(client.err(&sql).state.code(), "54001", "{}", &sql[..60]);
    }
    // A name in a WITH clause of a subquery hides the outer name only within that subquery.
    let hiding = "SELECT 1 FROM (WITH w20 AS (SELECT 1) SELECT * FROM w20) AS z, w20";
    let hidden = with(20, true).replace("SELECT k FROM w20", hiding);
    assert_eq!(client.err(&hidden).state.code(), "54001");
}

/// Each link is a level of the plan: 2,000 overflowed the stack of the thread.
#[test]
fn long_chains_of_queries_are_refused_not_fatal() {
    let db = Db::new();
    let client = db.client();
    let chain =
        |links: usize| format!("SELECT count(*) FROM (SELECT 1, 2{}) AS x", " UNION ALL SELECT 1, 2".repeat(links));
    assert_eq!(client.rows(&chain(500)), ["501"]);
    assert_eq!(client.err(&chain(501)).state.code(), "54001");
    assert_eq!(client.err(&chain(50_000)).state.code(), "54001");

    // A VALUES list may have any length if few of its rows contain subqueries.
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    let list = |plain: usize, queries: usize| {
        let query = "((SELECT max(id) FROM t))";
        let rows = (0..plain).map(|n| format!("({n})")).chain(std::iter::repeat_n(query.to_owned(), queries));
        format!("SELECT count(*), count(x), max(x) FROM (VALUES {}) AS v (x)", rows.collect::<Vec<_>>().join(", "))
    };
    assert_eq!(client.rows(&list(20_000, 1)), ["20001|20000|19999"]);
    assert_eq!(client.rows(&list(0, 100)), ["100|0|NULL"]);
    assert_eq!(client.err(&list(3, 501)).state.code(), "54001");
    assert_eq!(client.rows("SELECT 1"), ["1"]);
}

/// The name of an argument is not a column name; few of PostgreSQL's own functions have argument names.
#[test]
fn arguments_by_name() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)");
    client.ok("INSERT INTO t VALUES (1, 'abc')");
    assert_eq!(client.rows("SELECT substr(str => s, start_pos => id + 1) FROM t"), ["bc"]);
    for sql in ["SELECT abs(id => id) FROM t", "SELECT abs(x => id) FROM t", "SELECT nothing(x => 1)"] {
        assert_eq!(&client.err(sql).state.code()[..2], "42", "{sql}");
    }
}
