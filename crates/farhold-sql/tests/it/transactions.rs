//! Transactions of several sessions.

use farhold_sql::{Datum, TransactionState};

use crate::harness::Db;

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
                        // By the planner's way.
                        client.ok("UPDATE c SET n = n + 1 WHERE id IN (SELECT id FROM c WHERE id = 2)");
                    }
                }
            });
        }
    });
    assert_eq!(client.rows("SELECT n FROM c ORDER BY id"), ["600", "60"]);
}

/// Transfers keep the sum; every query sees the same one, whichever way it reads.
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
            // The reads of a block are validated: it may fail, but never lie.
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
