//! What belongs to a transaction or to a statement: settings, cursors, portals, cancel requests, panics.

use crate::client::{Answer, Client, bind, error, execute, message, parse, query, rows, startup, status, sync, tags};
use crate::node::{server, server_of, server_with};
use farhold_sql::engine::EngineConfig;

/// The tags of `CommandComplete`, and the SQLSTATEs of errors.
fn outcomes(answers: &[Answer]) -> Vec<String> {
    let text = |body: &[u8]| String::from_utf8(body[..body.len() - 1].to_vec()).unwrap();
    let outcome = |answer: &Answer| match answer.0 {
        b'C' => Some(text(&answer.1)),
        b'E' => error(std::slice::from_ref(answer)),
        _ => None,
    };
    answers.iter().filter_map(outcome).collect()
}

fn states(client: &mut Client, sql: &str) -> Vec<String> {
    outcomes(&client.ask(&query(sql)))
}

#[test]
fn begin_read_only_counts_in_the_middle_of_a_string() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_ro (i int PRIMARY KEY)");
    let answers = client.ask(&query("SELECT 1; BEGIN READ ONLY; INSERT INTO s_ro VALUES (5); COMMIT"));
    assert_eq!((outcomes(&answers), status(&answers)), (vec!["SELECT 1".into(), "BEGIN".into(), "25006".into()], b'E'));
    client.run("ROLLBACK");
    // Writes before BEGIN READ ONLY are allowed.
    client.run("INSERT INTO s_ro VALUES (6); BEGIN READ ONLY; SELECT 1; COMMIT");
    assert_eq!(states(&mut client, "SET TRANSACTION READ ONLY; INSERT INTO s_ro VALUES (7)"), ["SET", "25006"]);
    assert_eq!(client.rows("SELECT i FROM s_ro"), [["6"]]);
}

#[test]
fn a_portal_that_is_done_says_so_before_the_commit() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_done (i int PRIMARY KEY)");
    let twice = |sql| [parse("", sql), bind("", "", &[]), execute("", 0), execute("", 0), sync()].concat();
    let answers = client.ask(&twice("INSERT INTO s_done VALUES (1)"));
    assert_eq!(tags(&answers), b"12CEZ", "{answers:?}");
    assert_eq!(error(&answers).as_deref(), Some("55000"));
    assert_eq!(client.rows("SELECT count(*) FROM s_done"), [["0"]]);
    // A portal with rows has none left, which is not an error.
    let cases = [
        ("SELECT 1", ["SELECT 1", "SELECT 0"]),
        ("INSERT INTO s_done VALUES (2) RETURNING i", ["INSERT 0 1", "INSERT 0 0"]),
        ("SHOW work_mem", ["SHOW", "SHOW"]),
        ("BEGIN", ["BEGIN", "55000"]),
    ];
    for (sql, expected) in cases {
        assert_eq!(outcomes(&client.ask(&twice(sql))), expected, "{sql}");
    }
    client.run("ROLLBACK");
    assert_eq!(client.rows("SELECT i FROM s_done"), [["2"]]);
}

#[test]
fn cursors_go_with_what_is_undone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let mut check = |sql: &str, expected: &str| {
        let outcome = states(&mut client, sql).pop().unwrap();
        assert_eq!(outcome, expected, "{sql}");
        client.ask(&query("ROLLBACK; CLOSE ALL"));
    };
    check("BEGIN; SAVEPOINT a; DECLARE c CURSOR FOR SELECT 1; ROLLBACK TO a; FETCH c", "34000");
    check("BEGIN; SAVEPOINT a; DECLARE c CURSOR WITH HOLD FOR SELECT 1; ROLLBACK TO a; FETCH c", "34000");
    check("BEGIN; SAVEPOINT a; SAVEPOINT b; DECLARE c CURSOR FOR SELECT 1; RELEASE b; ROLLBACK TO a; FETCH c", "34000");
    check("BEGIN; SAVEPOINT a; DECLARE c CURSOR FOR SELECT 1; RELEASE a; FETCH c", "FETCH 1");
    check("BEGIN; SAVEPOINT a; DECLARE c CURSOR FOR SELECT 1; SAVEPOINT b; ROLLBACK TO b; FETCH c", "FETCH 1");
    check("BEGIN; DECLARE c CURSOR FOR SELECT 1; SAVEPOINT a; ROLLBACK TO a; FETCH c", "FETCH 1");
    check("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; ROLLBACK; FETCH c", "34000");
    check("BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT; FETCH c", "FETCH 1");
    // The end of a transaction closes its cursors, also within a string of statements.
    check("BEGIN; DECLARE c CURSOR FOR SELECT 1; COMMIT; FETCH c", "34000");
    check("DECLARE c CURSOR WITH HOLD FOR SELECT 1; SELECT 1 / 0", "22012");
    check("FETCH c", "34000");

    // The same for portals of the protocol.
    client.run("BEGIN; SAVEPOINT a");
    client.ask(&[parse("", "SELECT 1"), bind("p", "", &[]), sync()].concat());
    client.run("ROLLBACK TO a");
    assert_eq!(error(&client.ask(&[execute("p", 0), sync()].concat())).as_deref(), Some("34000"));
    client.run("ROLLBACK");
}

/// The values that `ParameterStatus` messages report for a name.
fn told(answers: &[Answer], name: &str) -> Vec<String> {
    let value = |body: &[u8]| {
        let rest = body.strip_prefix(name.as_bytes())?.strip_prefix(b"\0")?;
        Some(String::from_utf8(rest.strip_suffix(b"\0")?.to_vec()).unwrap())
    };
    answers.iter().filter(|(tag, _)| *tag == b'S').filter_map(|(_, body)| value(body)).collect()
}

#[test]
fn settings_go_with_what_is_undone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let name = |client: &mut Client| client.rows("SHOW application_name").concat().concat();
    client.ask(&query("SET application_name = 'a'; SELECT 1 / 0"));
    assert_eq!(name(&mut client), "");
    let run = |sql| [parse("", sql), bind("", "", &[]), execute("", 0)].concat();
    client.ask(&[run("SET application_name = 'b'"), run("SELECT 1 / 0"), sync()].concat());
    assert_eq!(name(&mut client), "");
    client.ask(&[run("SET application_name = 'c'"), run("SELECT 1"), sync()].concat());
    assert_eq!(name(&mut client), "c");
    // The client receives both changes.
    assert_eq!(told(&client.ask(&query("BEGIN; SET application_name = 'd'")), "application_name"), ["d"]);
    let answers = client.ask(&query("SELECT 1 / 0"));
    assert_eq!((told(&answers, "application_name"), status(&answers)), (vec!["c".to_owned()], b'E'));
    client.run("ROLLBACK");
    // A timeout that is rolled back has no effect.
    client.run("BEGIN; SET statement_timeout = '50ms'; ROLLBACK");
    client.run("SELECT count(*) FROM generate_series(1, 20000000)");
    // For one string of statements.
    client.run("SET LOCAL application_name = 'e'; SELECT 1");
    assert_eq!(name(&mut client), "c");
}

#[test]
fn discard_all_forgets_the_numbers_of_sequences() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE SEQUENCE s_discard; SELECT nextval('s_discard')");
    assert_eq!(client.rows("SELECT currval('s_discard'), lastval()"), [["1", "1"]]);
    client.run("DISCARD ALL");
    assert_eq!(error(&client.ask(&query("SELECT currval('s_discard')"))).as_deref(), Some("55000"));
    assert_eq!(error(&client.ask(&query("SELECT lastval()"))).as_deref(), Some("55000"));
}

/// A regression: RESET restored the built-in defaults.
#[test]
fn reset_goes_back_to_what_the_client_began_with() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    let options = "-c statement_timeout=7s -c my.name=x";
    client.send(&startup(0, &[("user", "test"), ("application_name", "start"), ("options", options)]));
    assert_eq!(error(&client.until_ready()), None);
    for reset in [
        "RESET application_name; RESET statement_timeout; RESET my.name",
        "SET application_name TO DEFAULT; SET statement_timeout TO DEFAULT; SET my.name TO DEFAULT",
        "RESET ALL",
        "DISCARD ALL",
    ] {
        client.run("SET application_name = 'other'; SET statement_timeout = '1min'; SET my.name = 'y'");
        let answers = client.ask(&query(reset));
        assert_eq!((error(&answers), told(&answers, "application_name")), (None, vec!["start".to_owned()]), "{reset}");
        for (name, value) in [("application_name", "start"), ("statement_timeout", "7s"), ("my.name", "x")] {
            assert_eq!(client.rows(&format!("SHOW {name}")), [[value]], "{reset}");
        }
    }
}

/// A query that runs longer than any test.
const ENDLESS: &str = "SELECT a.value FROM generate_series(1, 100000) a, generate_series(1, 100000) b, \
                       generate_series(1, 100000) c WHERE a.value + b.value + c.value < 0";

fn cancel(server: &crate::node::Running, key: &[u8]) {
    let mut other = Client::open(server.local_addr());
    let length = u32::try_from(key.len()).unwrap() + 8;
    other.send(&[&length.to_be_bytes()[..], &0x04d2_162e_u32.to_be_bytes(), key].concat());
    assert_eq!(other.until_end(), []);
}

/// A client and its cancel key.
fn with_key(server: &crate::node::Running) -> (Client, Vec<u8>) {
    let mut client = Client::open(server.local_addr());
    client.send(&startup(0, &[("user", "test")]));
    let key = client.until_ready().iter().find(|(tag, _)| *tag == b'K').unwrap().1.clone();
    (client, key)
}

/// A regression: FETCH ran the cursor's query under the cancel flag of the statement that had declared it, which had
/// ended.
#[test]
fn a_fetch_can_be_cancelled_and_times_out() {
    let server = server();
    let (mut client, key) = with_key(&server);
    let fetches = [
        query("FETCH 1 FROM c"),
        query("MOVE ALL c"),
        [parse("", "FETCH c"), bind("", "", &[]), execute("", 0), sync()].concat(),
    ];
    for fetch in fetches {
        client.run(&format!("BEGIN; DECLARE c CURSOR FOR {ENDLESS}"));
        client.run("SELECT 1");
        client.send(&fetch);
        let answers = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.until_ready());
            while !waiter.is_finished() {
                cancel(&server, &key);
                std::thread::yield_now();
            }
            waiter.join().unwrap()
        });
        assert_eq!((error(&answers).as_deref(), status(&answers)), (Some("57014"), b'E'));
        client.run("ROLLBACK");
    }
    client.run(&format!("BEGIN; DECLARE c CURSOR FOR {ENDLESS}"));
    client.run("SET LOCAL statement_timeout = '100ms'");
    assert_eq!(states(&mut client, "FETCH c"), ["57014"]);
    client.run("ROLLBACK");
    // A portal of the protocol that is read in parts.
    client.run("BEGIN; SET LOCAL statement_timeout = '100ms'");
    let slow = format!("SELECT 1 UNION ALL {ENDLESS}");
    let answers =
        client.ask(&[parse("", &slow), bind("p", "", &[]), execute("p", 1), execute("p", 1), sync()].concat());
    assert_eq!(error(&answers).as_deref(), Some("57014"), "{answers:?}");
    client.run("ROLLBACK");
}

/// The cursor's join holds the memory that the next join needs to start, and proceeds only when this session fetches.
#[test]
fn a_join_does_not_wait_for_its_own_session() {
    let engine = EngineConfig { query_threads: 1, join_memory_bytes: Some(1400 << 10), ..EngineConfig::default() };
    let server = server_of(engine, |_| {});
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE a (id BIGINT PRIMARY KEY)");
    client.run("INSERT INTO a SELECT value FROM generate_series(1, 20000)");
    // Effectively endless: each row finds two hundred.
    let join = "SELECT a.id + b.id AS n FROM a JOIN a AS b ON a.id % 100 = b.id % 100";
    client.run(&format!("BEGIN; DECLARE c CURSOR FOR {join}"));
    client.run("FETCH 1 FROM c");
    client.run("SAVEPOINT s");
    let answers = client.ask(&query(&format!("SELECT count(*) FROM ({join}) AS j WHERE n > 0")));
    assert_eq!(error(&answers).as_deref(), Some("53200"), "{answers:?}");
    client.run("ROLLBACK");
    assert_eq!(client.rows("SELECT count(*) FROM a JOIN a AS b ON a.id = b.id + 0"), [["20000"]]);
}

/// A cursor of another session holds the memory that the join needs: it waits until the cursor is closed, and can be
/// cancelled while it waits.
#[test]
fn a_join_waits_for_the_memory_of_another_session() {
    let engine = EngineConfig { query_threads: 1, join_memory_bytes: Some(1400 << 10), ..EngineConfig::default() };
    let server = server_of(engine, |_| {});
    let mut holder = Client::connect(server.local_addr());
    holder.run("CREATE TABLE a (id BIGINT PRIMARY KEY)");
    holder.run("INSERT INTO a SELECT value FROM generate_series(1, 20000)");
    holder.run("BEGIN; DECLARE c CURSOR FOR SELECT a.id + b.id AS n FROM a JOIN a AS b ON a.id % 100 = b.id % 100");
    holder.run("FETCH 1 FROM c");
    let mut waiter = Client::connect(server.local_addr());
    let join = "SELECT count(*) FROM a JOIN a AS b ON a.id = b.id + 0";
    waiter.run("SET statement_timeout = 300");
    let answers = waiter.ask(&query(join));
    assert_eq!(error(&answers).as_deref(), Some("57014"), "{answers:?}");
    waiter.run("SET statement_timeout = 0");
    waiter.send(&query(join));
    holder.run("COMMIT");
    let answers = waiter.until_ready();
    assert_eq!(error(&answers), None, "{answers:?}");
}

#[test]
fn a_client_that_vanishes_during_a_fetch_ends_it() {
    let server = server_with(|config| config.limits.connections_max = 1);
    let mut client = Client::connect(server.local_addr());
    client.run(&format!("BEGIN; DECLARE c CURSOR FOR {ENDLESS}"));
    client.run("SELECT 1");
    client.send(&query("FETCH c"));
    drop(client);
    // The connection slot becomes free only when the statement has ended.
    loop {
        let mut next = Client::open(server.local_addr());
        next.send(&startup(0, &[("user", "test")]));
        match error(&next.until_ready()) {
            None => break,
            Some(state) => assert_eq!(state, "53300"),
        }
    }
}

/// The query of an open cursor reads ahead while the session is idle. A regression: a cancel request that found no
/// statement cancelled it.
#[test]
fn a_cancel_between_fetches_hits_no_cursor() {
    let server = server();
    let (mut client, key) = with_key(&server);
    client.run("BEGIN; DECLARE c CURSOR FOR SELECT value FROM generate_series(1, 1000000)");
    for _ in 0..3 {
        cancel(&server, &key);
        assert_eq!(states(&mut client, "FETCH 1000 FROM c"), ["FETCH 1000"]);
    }
    cancel(&server, &key);
    assert_eq!(states(&mut client, "MOVE ALL c"), ["MOVE 997000"]);
}

/// Nested subqueries are checked 2^n times: twenty levels took 19 s and could not be cancelled.
#[test]
fn planning_ends() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let nested = |levels| (0..levels).fold("1".to_owned(), |inner, _| format!("(SELECT {inner} + 1)"));
    for levels in [1, 5, 9] {
        assert_eq!(client.rows(&format!("SELECT {}", nested(levels))), [[(levels + 1).to_string()]]);
    }
    for levels in [13, 100] {
        let refused = states(&mut client, &format!("SELECT {}", nested(levels)));
        assert_eq!(refused, ["54001"]);
    }
    // Twelve levels take long in builds with assertions, and observe the timeout.
    client.run("SET statement_timeout = 1");
    assert_eq!(states(&mut client, &format!("SELECT {}", nested(12))), ["57014"]);
}

/// Every statement inside every statement that takes one: an error or an answer, and the connection stays usable.
#[test]
fn statements_within_statements() {
    const INNER: [&str; 40] = [
        "",
        "SELECT 1",
        "VALUES (1), (2)",
        "(SELECT 1)",
        "TABLE s_in",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "SELECT * FROM s_in FOR UPDATE",
        "INSERT INTO s_in VALUES (1)",
        "INSERT INTO s_in VALUES (2) RETURNING i",
        "INSERT INTO s_in SELECT 3",
        "UPDATE s_in SET i = i",
        "UPDATE s_in SET i = i RETURNING i",
        "DELETE FROM s_in WHERE i IN (SELECT 9)",
        "BEGIN",
        "BEGIN READ ONLY",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "ROLLBACK TO x",
        "RELEASE x",
        "SET work_mem = '1'",
        "SHOW work_mem",
        "SHOW ALL",
        "RESET ALL",
        "DISCARD ALL",
        "CREATE TABLE s_in2 (i int PRIMARY KEY)",
        "DROP TABLE IF EXISTS s_in2",
        "TRUNCATE s_in",
        "CREATE INDEX ON s_in (i)",
        "ANALYZE",
        "EXPLAIN SELECT 1",
        "COPY s_in TO STDOUT",
        "COPY s_in FROM STDIN",
        "COPY (SELECT 1) TO STDOUT",
        "PREPARE z AS SELECT 1",
        "EXECUTE known",
        "DEALLOCATE known",
        "DECLARE d CURSOR FOR SELECT 1",
        "FETCH d",
        "CLOSE d",
    ];
    let outer: [fn(&str) -> String; 6] = [
        |inner| format!("PREPARE p AS {inner}; EXECUTE p"),
        |inner| format!("DECLARE c CURSOR FOR {inner}; FETCH c"),
        |inner| format!("DECLARE c CURSOR WITH HOLD FOR {inner}"),
        |inner| format!("EXPLAIN {inner}"),
        |inner| format!("EXPLAIN ANALYZE {inner}"),
        |inner| format!("COPY ({inner}) TO STDOUT"),
    ];
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_in (i int PRIMARY KEY)");
    for begin in ["", "BEGIN READ ONLY"] {
        for inner in INNER {
            for outer in outer {
                client.ask(&query("ROLLBACK; DEALLOCATE ALL; CLOSE ALL"));
                client.run("PREPARE known AS SELECT 1");
                client.ask(&query(begin));
                let sql = outer(inner);
                let outcome = states(&mut client, &sql);
                let last = outcome.last().unwrap_or_else(|| panic!("{begin}; {sql}: no answer"));
                assert!(!last.starts_with("XX"), "{begin}; {sql}: {outcome:?}");
            }
        }
    }
    client.ask(&query("ROLLBACK"));
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

#[test]
fn prepare_and_declare_take_what_postgresql_takes() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("PREPARE a AS SELECT 1");
    for inner in ["EXECUTE a", "BEGIN", "PREPARE c AS SELECT 1", "FETCH x", "EXPLAIN SELECT 1", "SHOW ALL", ""] {
        assert_eq!(states(&mut client, &format!("PREPARE b AS {inner}")), ["42601"], "{inner}");
        let declared = states(&mut client, &format!("BEGIN; DECLARE c CURSOR FOR {inner}"));
        assert_eq!(declared, ["BEGIN", "42601"], "{inner}");
        client.run("ROLLBACK");
    }
    let written = "BEGIN; DECLARE c CURSOR FOR INSERT INTO s VALUES (1) RETURNING 1";
    client.run("CREATE TABLE s (i int PRIMARY KEY)");
    assert_eq!(states(&mut client, written), ["BEGIN", "42601"]);
    client.run("ROLLBACK");
    // A statement of the protocol may be an EXECUTE, which may execute another EXECUTE, but not itself.
    client.ask(&[parse("b", "EXECUTE a"), parse("c", "EXECUTE b"), parse("self", "EXECUTE self"), sync()].concat());
    assert_eq!(client.rows("EXECUTE c"), [["1"]]);
    let answers = client.ask(&[bind("", "c", &[]), execute("", 0), sync()].concat());
    assert_eq!(rows(&answers), [["1"]]);
    assert_eq!(states(&mut client, "EXECUTE self"), ["54001"]);
    client.ask(&[parse("begin", "BEGIN"), parse("fetch", "FETCH c"), sync()].concat());
    assert_eq!(status(&client.ask(&query("EXECUTE begin"))), b'T');
    client.run("DECLARE c CURSOR FOR SELECT 7");
    assert_eq!(client.rows("EXECUTE fetch"), [["7"]]);
    assert_eq!(states(&mut client, "DISCARD ALL"), ["25001"]);
    let nested = "DECLARE c CURSOR FOR ".repeat(20_000);
    assert_eq!(states(&mut client, &format!("ROLLBACK; {nested} SELECT 1")).pop().as_deref(), Some("42601"));
}

/// A regression: the statements before one with a syntax error were executed and committed.
#[test]
fn a_string_with_an_error_of_syntax_does_nothing() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_whole (i int PRIMARY KEY)");
    for sql in [
        "DROP TABLE s_whole; SELEC 1",
        "BEGIN; INSERT INTO s_whole VALUES (1); COMMIT; SELEC 1",
        "SELECT 1; SELEC 1; SELECT 2",
        "SELECT 1; FETCH",
        "SELECT 1; DECLARE c CURSOR FOR SELEC 1",
        "SELECT 1; PREPARE p AS SELEC 1",
    ] {
        let answers = client.ask(&query(sql));
        assert_eq!((outcomes(&answers), status(&answers)), (vec!["42601".to_owned()], b'I'), "{sql}");
    }
    assert_eq!(client.rows("SELECT count(*) FROM s_whole"), [["0"]]);
    // A syntax error fails an open block, like any other error.
    client.run("BEGIN; INSERT INTO s_whole VALUES (2)");
    let answers = client.ask(&query("COMMIT; SELEC 1"));
    assert_eq!((outcomes(&answers), status(&answers)), (vec!["42601".to_owned()], b'E'));
    assert_eq!(states(&mut client, "COMMIT; SELECT count(*) FROM s_whole"), ["ROLLBACK", "SELECT 1"]);
    assert_eq!(client.rows("SELECT count(*) FROM s_whole"), [["0"]]);
    // A missing table is found only when its statement runs.
    assert_eq!(states(&mut client, "INSERT INTO s_whole VALUES (3); SELECT x FROM nowhere"), ["INSERT 0 1", "42P01"]);
}

/// A regression: a cursor took the types of its parameters from its query, so that 2.5 beside an INT became 3.
#[test]
fn a_cursor_keeps_the_types_that_are_stated() {
    const NUMERIC: u32 = 1700;
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_typed (id int PRIMARY KEY, d date)");
    client.run("INSERT INTO s_typed VALUES (2, '2024-01-01'), (3, '2024-01-02'), (4, NULL)");
    let declare = "DECLARE c CURSOR FOR SELECT id FROM s_typed WHERE id > $1 ORDER BY id";
    let types = [&[0_u8, 1][..], &NUMERIC.to_be_bytes()].concat();
    let parse_typed = message(b'P', &[&b"typed\0"[..], declare.as_bytes(), b"\0", &types].concat());
    client.run("BEGIN");
    let answers = client.ask(&[parse_typed, bind("", "typed", &["2.5"]), execute("", 0), sync()].concat());
    assert_eq!(outcomes(&answers), ["DECLARE CURSOR"]);
    assert_eq!(client.rows("FETCH ALL FROM c"), [["3"], ["4"]]);
    client.run("CLOSE c; EXECUTE typed(2.5)");
    assert_eq!(client.rows("FETCH ALL FROM c"), [["3"], ["4"]]);
}

#[test]
fn an_argument_of_execute_is_one_expression() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("PREPARE added (int, int) AS SELECT $1 + $2");
    for (arguments, sum) in [("1, 2", "3"), ("(SELECT 4), abs(-5)", "9"), ("1 /* , */ , $$2$$::int", "3")] {
        assert_eq!(client.rows(&format!("EXECUTE added({arguments})")), [[sum]], "{arguments}");
    }
    for arguments in ["1", "1, 2 +", "1, 2 FROM x", "DISTINCT 1, 2", "1 AS a, 2", "*, 1", "1, "] {
        assert_eq!(states(&mut client, &format!("EXECUTE added({arguments})")), ["42601"], "{arguments}");
    }
    // As everywhere, syntax is checked first.
    assert_eq!(states(&mut client, "EXECUTE missing(1)"), ["26000"]);
    assert_eq!(states(&mut client, "EXECUTE missing(1 +)"), ["42601"]);
    assert_eq!(states(&mut client, "PREPARE added (int) AS SELECT 1"), ["42P05"]);
    assert_eq!(states(&mut client, "PREPARE added (int int) AS SELECT 1"), ["42601"]);
    assert_eq!(states(&mut client, "PREPARE added (int) AS SELEC 1"), ["42601"]);
    assert_eq!(states(&mut client, "PREPARE other (int int) AS SELECT $1"), ["42601"]);
    assert_eq!(states(&mut client, "PREPARE other (int) AS SELEC 1"), ["42601"]);
    assert_eq!(states(&mut client, "SELECT 1; EXECUTE added(1, 2 +)"), ["42601"]);
    // A comment that ends an argument hides none of the next.
    let deep = format!("1 --x\n, 1{}", "+1".repeat(200_000));
    assert_eq!(states(&mut client, &format!("EXECUTE added({deep})")), ["54001"]);
    assert_eq!(
        states(&mut client, &format!("PREPARE deep (int --x\n, int{}) AS SELECT 1", "[]".repeat(200_000))),
        ["54001"]
    );
}

/// The query of a cursor is prepared with its DECLARE, and again only after a change of the catalog.
#[test]
fn a_cursor_follows_the_catalog() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_grows (i int PRIMARY KEY)");
    client.run("INSERT INTO s_grows VALUES (1)");
    client.ask(&[parse("d", "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM s_grows"), sync()].concat());
    for _ in 0..2 {
        client.run("EXECUTE d");
        assert_eq!(client.rows("FETCH ALL FROM c"), [["1"]]);
        client.run("CLOSE c");
    }
    client.run("DROP TABLE s_grows");
    assert_eq!(states(&mut client, "EXECUTE d"), ["42P01"]);
    client.run("CREATE TABLE s_grows (i int PRIMARY KEY, n int)");
    client.run("INSERT INTO s_grows VALUES (2, 3)");
    client.run("EXECUTE d");
    assert_eq!(client.rows("FETCH ALL FROM c"), [["2", "3"]]);
}

/// The rows that a query produces for a write are written batch by batch: all of them would not fit in memory.
#[test]
fn planned_writes_begin_before_their_query_ends() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_stream (i int PRIMARY KEY, n int NOT NULL); SET statement_timeout = '10s'");
    let endless = "FROM generate_series(1, 100000) a, generate_series(1, 100000) b";
    assert_eq!(states(&mut client, &format!("INSERT INTO s_stream SELECT 1, 1 {endless}")), ["23505"]);
    client.run("INSERT INTO s_stream VALUES (1, 1), (2, 2)");
    let update = format!("UPDATE s_stream SET n = nullif(a.value, a.value) {endless}");
    assert_eq!(states(&mut client, &update), ["23502"]);
    assert_eq!(client.rows("SELECT i FROM s_stream ORDER BY i"), [["1"], ["2"]]);
    // A row that a join returns repeatedly is written once.
    let few = "(SELECT g.value FROM generate_series(1, 20000) g) x";
    assert_eq!(states(&mut client, &format!("DELETE FROM s_stream USING {few} WHERE i = 2")), ["DELETE 1"]);
}

#[test]
fn columns_are_counted() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let columns = |count: usize| (0..count).map(|n| format!("{n} AS c{n}")).collect::<Vec<_>>().join(", ");
    assert_eq!(client.rows(&format!("SELECT {}", columns(1664)))[0].len(), 1664);
    for sql in [
        format!("SELECT {}", columns(1665)),
        format!("SELECT {}", columns(65_536)),
        format!("SELECT {} FROM generate_series(1, 2)", columns(1665)),
        // Rejected before the columns are compared with each other, which takes minutes.
        format!("SELECT {} FROM generate_series(1, 2)", columns(400_000)),
        format!("SELECT 1 FROM (SELECT {} FROM generate_series(1, 2)) x", columns(400_000)),
        format!("VALUES ({})", vec!["1"; 1665].join(", ")),
        format!("COPY (SELECT {}) TO STDOUT", columns(65_536)),
        format!("PREPARE p AS SELECT {}", columns(65_536)),
        format!("BEGIN; DECLARE c CURSOR FOR SELECT {}", columns(65_536)),
    ] {
        assert_eq!(states(&mut client, &sql).pop().as_deref(), Some("54011"), "{}", &sql[..40]);
        client.ask(&query("ROLLBACK"));
    }
    assert_eq!(states(&mut client, "SELECT $70000"), ["42P02"]);
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

/// A regression: one message of 4 MB took a minute, a hundred times as long as the same rows in short messages.
#[test]
#[expect(clippy::disallowed_methods, reason = "what it takes is what is tested")]
fn a_long_message_of_copy_data() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_copy (i int PRIMARY KEY, s text DEFAULT '')");
    let lines: Vec<String> = (0..50_000).map(|i: u32| format!("{i}\t{}\n", "s".repeat(80))).collect();
    let [short, long] = [100, lines.len()].map(|lines_a_message| {
        client.run("TRUNCATE s_copy");
        client.send(&query("COPY s_copy FROM STDIN"));
        assert_eq!(client.answer().unwrap().0, b'G');
        let messages = lines.chunks(lines_a_message).map(|lines| message(b'd', lines.concat().as_bytes()));
        let all: Vec<u8> = messages.chain([message(b'c', b"")]).flatten().collect();
        let begun = std::time::Instant::now();
        assert_eq!(outcomes(&client.ask(&all)), ["COPY 50000"]);
        begun.elapsed()
    });
    assert!(long < 10 * short, "{long:?}, {short:?} in short messages");
    // A client that never stops sending is timed out.
    client.run("TRUNCATE s_copy");
    // Long enough for the COPY to start.
    client.run("SET statement_timeout = '2s'");
    client.send(&query("COPY s_copy (i) FROM STDIN"));
    assert_eq!(client.answer().unwrap().0, b'G');
    let mut sent = 0_u32;
    let answers = std::thread::scope(|scope| {
        let mut sender = client.duplicate();
        let told = scope.spawn(move || client.until_ready());
        while !told.is_finished() {
            let row = format!("{sent}\n");
            sender.send(&message(b'd', row.as_bytes()));
            sent += 1;
        }
        told.join().unwrap()
    });
    assert_eq!(error(&answers).as_deref(), Some("57014"));
}

/// A regression: a planned UPDATE did not yield its front-end thread, so the timeout never fired, and neighbours had to
/// wait.
#[test]
fn a_planned_update_times_out() {
    let server = server();
    let [mut client, mut neighbour] = [(); 2].map(|()| Client::connect(server.local_addr()));
    client.run("CREATE TABLE s_update (id int PRIMARY KEY, n int)");
    client.run("INSERT INTO s_update SELECT value, 0 FROM generate_series(1, 30000)");
    client.run("SET statement_timeout = '30ms'");
    for sql in [
        "UPDATE s_update SET n = n + 1 WHERE id IN (SELECT id FROM s_update)",
        "UPDATE s_update SET n = s_update.n + 1 FROM s_update o WHERE o.id = s_update.id",
    ] {
        client.send(&query(sql));
        assert_eq!(neighbour.rows("SELECT 1"), [["1"]]);
        assert_eq!(error(&client.until_ready()).as_deref(), Some("57014"), "{sql}");
        assert_eq!(neighbour.rows("SELECT count(*), sum(n) FROM s_update"), [["30000", "0"]], "{sql}");
    }
}

/// A regression: a COPY cancelled while it waited for its client did not return the transaction that it had borrowed.
#[test]
fn a_savepoint_saves_a_block_from_a_copy_that_is_stopped() {
    let server = server();
    let (mut client, key) = with_key(&server);
    client.run("CREATE TABLE s_stop (i int PRIMARY KEY)");
    let stop: [fn(&crate::node::Running, &mut Client, &[u8]); 2] = [
        |server, _, key| cancel(server, key),
        // Invalid UTF-8.
        |_, client, _| client.send(&message(b'f', b"\xff\0")),
    ];
    for (n, stop) in stop.into_iter().enumerate() {
        client.run(&format!("BEGIN; INSERT INTO s_stop VALUES ({n}); SAVEPOINT a"));
        client.send(&query("COPY s_stop FROM STDIN"));
        assert_eq!(client.answer().unwrap().0, b'G');
        client.send(&message(b'd', b"70\n71\n"));
        stop(&server, &mut client, &key);
        let answers = client.until_ready();
        assert_eq!(status(&answers), b'E', "{answers:?}");
        client.run("ROLLBACK TO a; COMMIT");
    }
    assert_eq!(client.rows("SELECT i FROM s_stop ORDER BY i"), [["0"], ["1"]]);
}

/// A client that is told that its statement was cancelled will retry it.
#[test]
fn what_has_committed_is_sent_to_its_end() {
    const ROWS: usize = 4000;
    let server = server();
    let (mut client, key) = with_key(&server);
    client.run("CREATE TABLE s_over (i int PRIMARY KEY, t text)");
    // Far more than the socket buffers hold: the server blocks in the middle of sending.
    let values: Vec<String> = (0..ROWS).map(|i| format!("({i}, '{}')", "x".repeat(1000))).collect();
    let insert = format!("INSERT INTO s_over VALUES {} RETURNING {}", values.join(", "), ["t"; 16].join(" || "));
    let stopped = |client: &mut Client| {
        client.send(&query(&insert));
        assert_eq!(client.answer().unwrap().0, b'T');
        cancel(&server, &key);
        outcomes(&client.until_ready())
    };
    assert_eq!(stopped(&mut client), [format!("INSERT 0 {ROWS}")]);
    assert_eq!(client.rows("SELECT count(*) FROM s_over"), [[ROWS.to_string()]]);
    // In a block the statement has not committed, so it is cancelled.
    client.run("DELETE FROM s_over; BEGIN");
    assert_eq!(stopped(&mut client), ["57014"]);
    client.run("ROLLBACK");
}

/// A regression: its plan kept running and kept its memory.
#[test]
fn an_explain_analyze_that_is_stopped_ends() {
    // Memory for the rows of one of these joins.
    let server = server_of(EngineConfig { query_memory_bytes: 1200 << 10, ..EngineConfig::default() }, |_| {});
    let mut client = Client::connect(server.local_addr());
    let join = |rows: u64| {
        format!("FROM generate_series(1, 100000) a, generate_series(1, {rows}) b WHERE a.value + b.value < 0")
    };
    let short = format!("SELECT count(*) {}", join(2));
    assert_eq!(states(&mut client, &short), ["SELECT 1"]);
    // Long enough for the planner.
    client.run("SET statement_timeout = '500ms'");
    assert_eq!(states(&mut client, &format!("EXPLAIN ANALYZE SELECT 1 {}", join(10_000_000_000))), ["57014"]);
    client.run("SET statement_timeout = 0");
    // Its threads may not have noticed the cancellation yet.
    assert!((0..1000).any(|_| states(&mut client, &short) == ["SELECT 1"]));
}

/// A product or quotient of NUMERICs, one of which is a parameter, has the scale of the actual values: no common type
/// would fit both.
#[test]
fn parameters_are_factors_of_long_decimals() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_long (k int PRIMARY KEY, a numeric(10, 2), b numeric(38, 20))");
    client.run("INSERT INTO s_long VALUES (1, 1.5, 2.5)");
    client.run(
        "PREPARE products AS SELECT round($1 * b, 2), round(b * $1, 2), round($1 * (a * b), 2), round((a * b) * $1, 2), \
         round($1 / b, 2) FROM s_long",
    );
    assert_eq!(client.rows("EXECUTE products(2)"), [["5.00", "5.00", "7.50", "7.50", "0.80"]]);
    client.run(
        "PREPARE quotients(numeric) AS SELECT NULL::int / $1, NULL / $1, round(k / $1, 2), k * $1 = $1 FROM s_long",
    );
    assert_eq!(client.rows("EXECUTE quotients(0.0000000001)")[0][2..], ["10000000000.00", "t"]);
    assert_eq!(client.rows("EXECUTE quotients(3)")[0][2..], ["0.33", "t"]);
}

/// A product or quotient with a parameter, below aggregates and GROUP BY, is planned before the number of decimals of
/// the value is known.
#[test]
fn a_parameter_may_have_more_decimals_than_its_neighbour() {
    const CASES: [(&str, &str, &str); 6] = [
        ("SELECT round(sum(n * $1), 4) FROM s_factors", "0.1111111111111111111111111111111111111", "0.5000"),
        ("SELECT round(sum(n * $1), 4) FROM s_factors", "2.5", "11.2500"),
        ("SELECT sum(n * $1) > 0.4 FROM s_factors", "0.11111111111111111111111111111111111111", "t"),
        ("SELECT round(max(n / $1), 4) FROM s_factors", "0.9999999999999999999999999999999999999", "3.0000"),
        ("SELECT round(max(n / $1), 4) FROM s_factors", "4", "0.7500"),
        ("SELECT count(*) FROM s_factors GROUP BY n * $1 LIMIT 1", "0.11111111111111111111111111111111111111", "1"),
    ];
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE s_factors (n numeric(20,5))");
    client.run("INSERT INTO s_factors VALUES (1.5), (3)");
    for (statement, value, expected) in CASES {
        client.run(&format!("PREPARE p AS {statement}"));
        assert_eq!(client.rows(&format!("EXECUTE p({value})")), [[expected]], "{statement}, {value}");
        client.run("DEALLOCATE p");
    }
}
