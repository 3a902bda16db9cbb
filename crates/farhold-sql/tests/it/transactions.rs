//! Transactions of several sessions.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farhold_fabric::Handle;
use farhold_sql::{CancelHandle, Datum, TransactionState};
use farhold_txn::NodeId;

use crate::harness::{Client, Db, run, run_with_waits};

/// Longer than an answer takes that does not wait for the disk.
const NO_ANSWER: Duration = Duration::from_millis(100);

#[test]
fn concurrent_increments_are_all_there() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE c (id INT PRIMARY KEY, n INT NOT NULL)");
    client.ok("INSERT INTO c VALUES (1, 0), (2, 0)");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let client = db.client();
                for round in 0..200 {
                    client.ok("UPDATE c SET n = n + 1 WHERE id = 1");
                    if round % 10 == 0 {
                        // Through the planner.
                        client.ok("UPDATE c SET n = n + 1 WHERE id IN (SELECT id FROM c WHERE id = 2)");
                    }
                }
            });
        }
    });
    assert_eq!(client.rows("SELECT n FROM c ORDER BY id"), ["600", "60"]);
}

/// The rows that a transaction has read are outdated, so it cannot commit. An error caused by a mixture of old and new
/// rows must be reported as a conflict.
#[test]
fn errors_of_doomed_transactions_are_conflicts() {
    let db = Db::new();
    let [one, other] = [(); 2].map(|()| db.client());
    one.ok("CREATE TABLE sl (id INT PRIMARY KEY, e INT NOT NULL, UNIQUE (id, e))");
    one.ok("CREATE TABLE v (id INT PRIMARY KEY, v INT NOT NULL)");
    one.ok("INSERT INTO sl VALUES (1, 1)");
    one.ok("INSERT INTO v VALUES (1, 5), (2, 5)");
    for again in
        ["UPDATE sl SET e = 3000 WHERE id = 1", "INSERT INTO sl VALUES (1, 7) ON CONFLICT (id) DO UPDATE SET e = 3000"]
    {
        one.ok("BEGIN");
        one.ok("UPDATE sl SET e = 1000 WHERE id = 1");
        other.ok("UPDATE sl SET e = e + 1 WHERE id = 1");
        // The transaction's own new row conflicts with the row that it derives from the other session's update.
        assert_eq!(one.err(again).state.code(), "40001", "{again}");
        one.ok("ROLLBACK");
    }
    one.ok("BEGIN");
    assert_eq!(one.rows("SELECT v FROM v WHERE id = 1"), ["5"]);
    other.ok("UPDATE v SET v = 0");
    assert_eq!(one.err("SELECT 1 / v FROM v WHERE id = 2").state.code(), "40001");
    one.ok("ROLLBACK");
    assert_eq!(one.err("SELECT 1 / v FROM v WHERE id = 2").state.code(), "22012", "nobody is in the way");
    // The rows of a planned query arrive after the statement has started.
    other.ok("UPDATE v SET v = 5");
    one.ok("BEGIN");
    assert_eq!(one.rows("SELECT v FROM v WHERE id = 1"), ["5"]);
    other.ok("UPDATE v SET v = 0");
    assert_eq!(one.err("SELECT sum(1 / v) FROM v").state.code(), "40001");
    one.ok("ROLLBACK");
    assert_eq!(one.err("SELECT sum(1 / v) FROM v").state.code(), "22012");
    // A COPY.
    one.ok("BEGIN");
    assert_eq!(one.rows("SELECT v FROM v WHERE id = 1"), ["0"]);
    other.ok("UPDATE v SET v = 6");
    assert_eq!(one.copy("COPY v FROM STDIN", "1\t1\n").expect_err("a duplicate").state.code(), "40001");
    one.ok("ROLLBACK");
    assert_eq!(one.copy("COPY v FROM STDIN", "1\t1\n").expect_err("a duplicate").state.code(), "23505");
}

/// Another session inserts the key between any two steps of an upsert, including the step between its lookup, which
/// finds nothing, and its insert, which waits for the home node of the key. That is a conflict, which is retried, and
/// not a duplicate.
#[test]
fn an_upsert_meets_another_at_each_of_its_waits() {
    const UPSERT: &str = "INSERT INTO up VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET n = up.n + excluded.n";
    /// More steps than the other session needs for an insert without contention.
    const ALONE: u32 = 100;
    let mut nodes = Db::cluster(2);
    nodes[0].client().ok("CREATE TABLE up (id INT PRIMARY KEY, n INT NOT NULL)");
    // From here on the test decides when messages are handled.
    nodes.iter_mut().for_each(Db::stop_serving);
    let table = nodes[0].node.table("up").expect("the table");
    let is_far = |id: &i32| table.home_of(&(id.cast_unsigned() ^ 0x8000_0000).to_be_bytes()) == NodeId(1);
    let handles = [1, 2, 3].map(Handle::standalone);
    let worker = |node: usize, handle: &Handle| nodes[node].node.worker(handle).expect("a worker");
    let mut here = nodes[0].engine.session(Rc::new(worker(0, &handles[0])), "here");
    let mut there = nodes[1].engine.session(Rc::new(worker(1, &handles[1])), "there");
    let server = worker(1, &handles[2]);
    let mut beside = handles.each_ref().map(|handle| Box::pin(handle.drive()));
    let mut go_on = || {
        server.poll();
        for beside in &mut beside {
            assert!(now(beside.as_mut()).is_none());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    let upsert_here = runtime.block_on(here.prepare(UPSERT, &[])).expect("prepared");
    let upsert_there = runtime.block_on(there.prepare(UPSERT, &[])).expect("prepared");
    assert!(upsert_here.is_direct() && upsert_there.is_direct());
    // For each number of waits, whether the other session's insert completed in between.
    let mut came_between = Vec::new();
    for id in (1..).filter(is_far) {
        let row = |n| [Datum::Int(id), Datum::Int(n)];
        let (one, other) = (row(1), row(10));
        let (mut one, mut other) = (pin!(here.execute(&upsert_here, &one)), pin!(there.execute(&upsert_there, &other)));
        let mut first = None;
        for wait in 0..came_between.len() {
            if wait > 0 {
                go_on();
            }
            first = now(one.as_mut());
            if first.is_some() {
                break;
            }
        }
        let is_last = first.is_some();
        let mut second = (0..ALONE).find_map(|_| now(other.as_mut()));
        came_between.push(first.is_none() && second.is_some());
        while first.is_none() || second.is_none() {
            go_on();
            first = first.or_else(|| now(one.as_mut()));
            second = second.or_else(|| now(other.as_mut()));
        }
        for outcome in [first, second].into_iter().flatten() {
            outcome.unwrap_or_else(|error| panic!("after {} waits: {error}", came_between.len() - 1));
        }
        if is_last {
            break;
        }
    }
    assert!(came_between[1..].contains(&true), "before each wait: {came_between:?}");
    drop((here, there, server));
    nodes.iter_mut().for_each(Db::serve);
    let rows = format!("{}|11|11", came_between.len());
    assert_eq!(nodes[0].client().rows("SELECT count(*), min(n), max(n) FROM up"), [rows]);
}

/// The result of a future if its first poll completes it.
fn now<T>(future: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Option<T> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

const COUNTS: &str = "SELECT (SELECT count(*) FROM emptied) AS a, (SELECT count(*) FROM emptied_too) AS b";

fn two_tables(client: &Client, rows: usize) {
    for table in ["emptied", "emptied_too"] {
        client.ok(&format!("CREATE TABLE {table} (id INT PRIMARY KEY)"));
        client.ok(&format!("INSERT INTO {table} SELECT value FROM generate_series(1, {rows})"));
    }
}

/// Concurrent queries see all rows of all tables, or none.
#[test]
fn truncate_empties_all_tables_at_one_moment() {
    const ROWS: usize = 3000;
    let db = Db::new();
    let (client, neighbour) = (db.client(), db.client());
    two_tables(&client, ROWS);
    let (looked, looks) = std::sync::mpsc::channel();
    let look = async move |_: &CancelHandle| looked.send(neighbour.rows(COUNTS)).expect("the test listens");
    let truncated = run_with_waits(&client, "TRUNCATE emptied, emptied_too", look);
    assert_eq!(truncated.expect("truncated"), "TRUNCATE TABLE");
    let looks: Vec<Vec<String>> = looks.iter().collect();
    // Some of them ran while the second table was being emptied.
    assert!(looks.len() >= 2 * ROWS / 256 / 2, "{} looks", looks.len());
    let (full, empty) = (format!("{ROWS}|{ROWS}"), "0|0");
    assert!(looks.iter().all(|look| *look == [full.as_str()] || *look == [empty]), "{looks:?}");
    assert_eq!(client.rows(COUNTS), [empty]);
}

/// The statement is cancelled after each of its waits in turn: all rows of all tables remain, until it completes
/// without being cancelled.
#[test]
fn truncate_that_is_stopped_empties_no_table() {
    const ROWS: usize = 1500;
    let db = Db::new();
    let client = db.client();
    two_tables(&client, ROWS);
    for waits in 0_usize.. {
        let mut left = waits;
        let stop = async move |cancel: &CancelHandle| {
            if left == 0 {
                cancel.cancel();
            }
            left = left.saturating_sub(1);
        };
        match run_with_waits(&client, "TRUNCATE emptied, emptied_too", stop) {
            Ok(_) => {
                assert!(waits >= 2 * ROWS / 256 / 2, "stopped {waits} times");
                break;
            }
            Err(error) => assert_eq!(error.state.code(), "57014", "{error}"),
        }
        assert_eq!(client.rows(COUNTS), [format!("{ROWS}|{ROWS}")], "stopped after {waits} waits");
    }
    assert_eq!(client.rows(COUNTS), ["0|0"]);
}

/// Transfers preserve the sum; every query sees the same sum, on every path.
#[test]
fn queries_see_one_state() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE acc (id INT PRIMARY KEY, v INT NOT NULL)");
    client.ok("INSERT INTO acc SELECT value, 100 FROM generate_series(1, 500)");
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let db = &db;
                scope.spawn(move || {
                    let client = db.client();
                    for n in 0..150 {
                        let (from, to) = ((n * 7 + w * 13) % 500 + 1, (n * 11 + 3) % 500 + 1);
                        if from == to {
                            continue;
                        }
                        loop {
                            client.ok("BEGIN");
                            let moved = client
                                .run(&format!("UPDATE acc SET v = v - 1 WHERE id = {from}"))
                                .and_then(|_| client.run(&format!("UPDATE acc SET v = v + 1 WHERE id = {to}")))
                                .and_then(|_| client.run("COMMIT"));
                            match moved {
                                Ok(_) => break,
                                Err(error) => {
                                    assert_eq!(error.state.code(), "40001", "{error}");
                                    if client.state() != TransactionState::Idle {
                                        client.ok("ROLLBACK");
                                    }
                                }
                            }
                        }
                    }
                })
            })
            .collect();
        let reader = db.client();
        while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_eq!(reader.rows("SELECT sum(v), count(*) FROM acc"), ["50000|500"]);
            reader.ok("BEGIN READ ONLY");
            assert_eq!(reader.rows("SELECT count(*) FROM acc WHERE v < 0"), ["0"]);
            // The reads of a block are validated: it may fail, but must not return wrong results.
            let sum = reader.run("SELECT sum(v) FROM acc");
            let committed = reader.run("COMMIT");
            if let (Ok(sum), Ok(committed)) = (sum, committed)
                && committed.tag == "COMMIT"
            {
                assert_eq!(sum.lines(), ["50000"]);
            }
        }
    });
    assert_eq!(client.rows("SELECT sum(v) FROM acc"), ["50000"]);
}

#[test]
fn own_writes_are_seen_by_every_way_of_reading() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, g INT, s TEXT)");
    client.ok("INSERT INTO t VALUES (1, 1, 'a'), (2, 1, 'b'), (3, 2, 'c')");
    client.ok("BEGIN");
    client.ok("INSERT INTO t VALUES (4, 2, 'd')");
    client.ok("UPDATE t SET g = 9 WHERE id = 1");
    client.ok("DELETE FROM t WHERE id = 2");
    assert_eq!(client.rows("SELECT g FROM t WHERE id = 1"), ["9"]);
    assert_eq!(client.rows("SELECT g, count(*) FROM t GROUP BY g ORDER BY g"), ["2|2", "9|1"]);
    assert_eq!(client.sorted("SELECT id FROM t WHERE id IN (SELECT id FROM t WHERE g = 2)"), ["3", "4"]);
    assert_eq!(client.rows("SELECT id FROM t ORDER BY id DESC LIMIT 2"), ["4", "3"]);
    assert_eq!(db.client().rows("SELECT count(*) FROM t"), ["3"]);
    client.ok("COMMIT");
    assert_eq!(db.client().rows("SELECT id, g, s FROM t ORDER BY id"), ["1|9|a", "3|2|c", "4|2|d"]);
}

#[test]
fn a_batch_is_one_transaction() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.batch("INSERT INTO t VALUES (1); INSERT INTO t VALUES (2)").unwrap();
    let error =
        client.batch("INSERT INTO t VALUES (3); INSERT INTO t VALUES (1); INSERT INTO t VALUES (4)").unwrap_err();
    assert_eq!(error.state.code(), "23505");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["2"]);
    client.batch("INSERT INTO t VALUES (3); COMMIT; INSERT INTO t VALUES (1)").unwrap_err();
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["3"]);
    client.batch("INSERT INTO t VALUES (4); BEGIN; INSERT INTO t VALUES (5)").unwrap();
    assert_eq!(client.state(), TransactionState::Open);
    client.ok("ROLLBACK");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["3"]);
}

#[test]
fn a_dropped_session_leaves_nothing() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("BEGIN");
    client.ok("INSERT INTO t VALUES (1)");
    drop(client);
    let client = db.client();
    client.ok("INSERT INTO t VALUES (1)");
    assert_eq!(client.rows("SELECT * FROM t"), ["1"]);
}

#[test]
fn definitions_reach_sessions_that_have_prepared() {
    let db = Db::new();
    let (client, other) = (db.client(), db.client());
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, v INT)");
    client.ok("INSERT INTO t VALUES (1, 10)");
    let same = client.with(|session, runtime| {
        runtime
            .block_on(async { session.prepare("SELECT v FROM t WHERE id = $1", &[]).await.unwrap().parameters.len() })
    });
    assert_eq!(same, 1);
    other.ok("DROP TABLE t");
    assert_eq!(client.err("SELECT v FROM t WHERE id = 1").state.code(), "42P01");
    other.ok("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)");
    client.ok("INSERT INTO t VALUES (1, 'text')");
    assert_eq!(client.rows("SELECT v FROM t WHERE id = 1"), ["text"]);
}

#[test]
fn a_stale_statement_is_bound_again() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, v INT)");
    client.ok("INSERT INTO t VALUES (1, 10)");
    client.with(|session, runtime| {
        runtime.block_on(async {
            let read = session.prepare("SELECT v FROM t WHERE id = $1", &[]).await.unwrap();
            crate::harness::run(session, "CREATE TABLE unrelated (id INT PRIMARY KEY)", &[]).await.unwrap();
            assert!(session.execute(&read, &[Datum::Int(1)]).await.is_ok());
            crate::harness::run(session, "DROP TABLE t", &[]).await.unwrap();
            let error = session.execute(&read, &[Datum::Int(1)]).await.err().expect("the table is gone");
            assert_eq!(error.state.code(), "42P01");
            crate::harness::run(session, "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", &[]).await.unwrap();
            let error = session.execute(&read, &[Datum::Int(1)]).await.err().expect("another type");
            assert_eq!(error.message, "cached plan must not change result type");
        });
    });
}

/// `now()` is the start of the transaction on the direct path, in the planner and in defaults. A regression: the
/// planner used the time at which the engine started, and the direct path read the clock for each row.
#[test]
fn now_stands_still_within_a_transaction() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE ts (id INT PRIMARY KEY, a TIMESTAMP DEFAULT now(), b TIMESTAMP)");
    let ids = |from: i32| (from..from + 500).map(|id| format!("({id})")).collect::<Vec<_>>().join(", ");
    client.ok(&format!("INSERT INTO ts (id) VALUES {}", ids(0)));
    assert_eq!(client.rows("SELECT count(DISTINCT a) FROM ts"), ["1"]);
    assert_eq!(client.rows("SELECT count(DISTINCT now()), count(*) FROM ts WHERE now() > a"), ["1|500"]);
    let lines = (1_000..1_500).fold(String::new(), |lines, id: u32| lines + &id.to_string() + "\n");
    client.copy("COPY ts (id) FROM STDIN", &lines).unwrap();
    assert_eq!(client.rows("SELECT count(DISTINCT a) FROM ts"), ["2"]);

    client.ok("DELETE FROM ts");
    client.ok("BEGIN");
    let begun = client.rows("SELECT now()::timestamp");
    client.ok(&format!("INSERT INTO ts (id) VALUES {}", ids(0)));
    client.ok("UPDATE ts SET b = current_timestamp WHERE id < 100");
    client.ok("UPDATE ts SET b = now() WHERE id >= 100 AND id IN (SELECT id FROM ts)");
    client.ok("INSERT INTO ts (id, b) SELECT 2000 + value, now() FROM generate_series(1, 10)");
    client.ok("INSERT INTO ts VALUES (1, now(), now()) ON CONFLICT (id) DO UPDATE SET b = now()");
    assert_eq!(client.rows("SELECT DISTINCT a FROM ts"), begun);
    assert_eq!(client.rows("SELECT DISTINCT b FROM ts"), begun);
    assert_eq!(client.rows("SELECT count(*) FROM ts WHERE b = now()"), ["510"]);
    assert_eq!(client.rows("SELECT b = transaction_timestamp() FROM ts WHERE id = 7"), ["t"]);
    assert_eq!(client.rows("SELECT statement_timestamp() > now()"), ["t"]);
    client.ok("COMMIT");
    assert_eq!(client.rows("SELECT now() > b FROM ts WHERE id = 7"), ["t"]);
    // Within a string of statements it is the time of the first one.
    let answers = client.batch("SELECT now(); SELECT max(b) FROM ts; SELECT now()").unwrap();
    assert_eq!(answers[0].rows, answers[2].rows);
}

/// Statements that process many rows yield to the other connections of their thread. A neighbour takes numbers from the
/// sequence that numbers the rows, so its numbers show when it ran.
#[test]
fn long_statements_let_their_neighbours_run() {
    const ROWS: usize = 20_000;
    let statements = [
        "INSERT INTO many SELECT value FROM generate_series(1, 20000)",
        "UPDATE many SET n = DEFAULT",
        "UPDATE many SET n = DEFAULT WHERE id IN (SELECT id FROM many)",
        "INSERT INTO many SELECT id FROM many ON CONFLICT (id) DO UPDATE SET n = nextval('s')",
    ];
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE s");
    client.ok("CREATE TABLE many (id INT PRIMARY KEY, n BIGINT DEFAULT nextval('s'))");
    for sql in statements {
        let (engine, node) = (Arc::clone(&db.engine), Arc::clone(&db.node));
        let before = client.rows("SELECT nextval('s')")[0].parse::<i64>().unwrap();
        let numbers: Vec<i64> = client.with(move |session, runtime| {
            let worker = Rc::new(node.worker(&Handle::standalone(7)).unwrap());
            let mut neighbour = engine.session(worker, "neighbour");
            runtime.block_on(async {
                let mut numbers = Vec::new();
                let mut statement = std::pin::pin!(run(session, sql, &[]));
                loop {
                    tokio::select! {
                        biased;
                        done = statement.as_mut() => {
                            assert_eq!(done.unwrap().tag.rsplit(' ').next(), Some("20000"), "{sql}");
                            return numbers;
                        }
                        () = tokio::task::yield_now() => {
                            let answer = run(&mut neighbour, "SELECT nextval('s')", &[]).await.unwrap();
                            numbers.push(answer.lines()[0].parse().unwrap());
                        }
                    }
                }
            })
        });
        // The numbers that the neighbour took between the first and the last number of the statement.
        let (first, last) = (before + 1, client.rows("SELECT max(n) FROM many")[0].parse::<i64>().unwrap());
        let own: Vec<i64> = client.rows("SELECT n FROM many ORDER BY n").iter().map(|n| n.parse().unwrap()).collect();
        assert_eq!(own.len(), ROWS);
        let between = numbers.iter().filter(|n| own[0] < **n && **n < last && **n >= first).count();
        assert!(between >= ROWS / 256 / 2, "{sql}: the neighbour ran {between} times");
    }
}

#[test]
fn long_statements_can_be_stopped() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE many (id INT PRIMARY KEY, n BIGINT)");
    client.ok("INSERT INTO many SELECT value, 0 FROM generate_series(1, 20000)");
    let statements = [
        "UPDATE many SET n = n + 1",
        "UPDATE many SET n = n + 1 WHERE id IN (SELECT id FROM many)",
        "DELETE FROM many",
        "SELECT * FROM many FOR UPDATE",
    ];
    for sql in statements {
        let error = client.with(move |session, runtime| {
            let cancel = session.cancel_handle();
            runtime.block_on(async {
                let mut statement = std::pin::pin!(run(session, sql, &[]));
                loop {
                    tokio::select! {
                        biased;
                        done = statement.as_mut() => return done.map(|answer| answer.tag),
                        () = tokio::task::yield_now() => cancel.cancel(),
                    }
                }
            })
        });
        assert_eq!(error.unwrap_err().state.code(), "57014", "{sql}");
        assert_eq!(client.rows("SELECT count(*), sum(n) FROM many"), ["20000|0"], "{sql}");
    }
}

/// An error that reveals a row which is not yet durable is reported once the row is durable.
#[test]
fn an_error_of_values_waits_until_they_are_durable() {
    let db = Db::with_journal();
    let [writer, reader] = [db.client(), db.client()];
    let created = writer.start("CREATE TABLE shares (id INT PRIMARY KEY, n INT)");
    db.step_until(&created).expect("a table");
    let statements = [
        ("SELECT 6 / n FROM shares WHERE id = 1", "22012"),
        ("UPDATE shares SET n = 6 / n WHERE id = 2", "22012"),
        ("INSERT INTO shares VALUES (3, 1)", "23505"),
    ];
    for (id, (sql, state)) in (1..).zip(statements) {
        let inserted = writer.start(&format!("INSERT INTO shares VALUES ({id}, 0)"));
        // Reads in a block do not wait for the disk.
        let is_there = || {
            reader.ok("BEGIN");
            let rows = reader.rows(&format!("SELECT n FROM shares WHERE id = {id}"));
            reader.ok("ROLLBACK");
            !rows.is_empty()
        };
        while !is_there() {
            std::thread::yield_now();
        }
        let told = reader.start(sql);
        assert!(told.recv_timeout(NO_ANSWER).is_err(), "{sql}");
        assert_eq!(db.step_until(&told).unwrap_err().state.code(), state, "{sql}");
        db.step_until(&inserted).expect("a row");
    }
}
