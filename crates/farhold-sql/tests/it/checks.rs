//! CHECK constraints: on every path that writes, after restarts, and added while other sessions write.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use farhold_sql::{CancelHandle, SqlError};
use farhold_store::durable::power::Volatile;
use farhold_txn::CopyConfig;

use crate::harness::{Client, Db, run_with_waits};

const ADD: &str = "ALTER TABLE t ADD CONSTRAINT positive CHECK (a > 0)";
const DROP: &str = "ALTER TABLE t DROP CONSTRAINT positive";
const WRONG: &str = "SELECT count(*) FROM t WHERE a <= 0";

/// 23514 of this check.
#[track_caller]
fn assert_violates(error: &SqlError, check: &str) {
    assert_eq!((error.state.code(), error.constraint.as_deref()), ("23514", Some(check)), "{error}");
    assert_eq!(error.table.as_deref(), Some("t"));
}

fn codes(outcome: &Result<impl Sized, SqlError>) -> &'static str {
    outcome.as_ref().map_or_else(|error| error.state.code(), |_| "00000")
}

#[test]
fn errors_name_the_check_and_the_row() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT CHECK (a > 0), s TEXT)");
    let error = client.err("INSERT INTO t VALUES (1, 0, NULL)");
    assert_violates(&error, "t_a_check");
    assert_eq!(error.message, "new row for relation \"t\" violates check constraint \"t_a_check\"");
    assert_eq!(error.detail.as_deref(), Some("Failing row contains (1, 0, null)."));
    let error = client.err("ALTER TABLE t ADD CONSTRAINT b CHECK (a > 1), ADD CHECK (a > 2)");
    assert_eq!(error.state.code(), "0A000");
    client.ok("INSERT INTO t VALUES (1, 1, NULL)");
    let error = client.err("ALTER TABLE t ADD CONSTRAINT b CHECK (s IS NOT NULL)");
    assert_violates(&error, "b");
    assert_eq!(error.message, "check constraint \"b\" of relation \"t\" is violated by some row");
    let answer = client.run("ALTER TABLE t DROP CONSTRAINT IF EXISTS b").unwrap();
    assert_eq!(answer.notices, ["constraint \"b\" of relation \"t\" does not exist, skipping"]);
}

/// COPY in one transaction, and in chunks between which the check is added or dropped.
#[test]
fn copies_are_checked() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT DEFAULT -1 CONSTRAINT positive CHECK (a > 0), n NUMERIC(3,1) CHECK (n < 1))");
    let error = client.copy("COPY t (id, a) FROM STDIN", "1\t1\n2\t0\n3\t1\n").unwrap_err();
    assert_violates(&error, "positive");
    assert_eq!(error.detail.as_deref(), Some("Failing row contains (2, 0, null). COPY t, line 2"));
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["0"]);
    assert_violates(&client.copy("COPY t (id) FROM STDIN WITH (FORMAT csv)", "1\n").unwrap_err(), "positive");
    assert_violates(&client.copy("COPY t FROM STDIN", "1\t1\t0.97\n").unwrap_err(), "t_n_check");
    assert_eq!(client.copy("COPY t FROM STDIN", "1\t1\t0.94\n2\t\\N\t\\N\n").unwrap(), "COPY 2");
    client.ok("SET farhold.copy_chunk_rows = 2");
    let error = client.copy("COPY t (id, a) FROM STDIN", "11\t1\n12\t1\n13\t1\n14\t0\n").unwrap_err();
    assert_violates(&error, "positive");
    assert_eq!(client.rows("SELECT id FROM t WHERE id > 10 ORDER BY id"), ["11", "12"]);
    // Another session drops the check, or adds it, between two chunks.
    for (change, wrong, expected) in [(DROP, 0, "00000"), (ADD, 0, "23514")] {
        client.ok("DELETE FROM t");
        let other = db.client();
        let copied = client.with(move |session, runtime| {
            runtime.block_on(async {
                let prepared = session.prepare("COPY t (id, a) FROM STDIN", &[]).await?;
                let farhold_sql::Output::CopyIn(mut copy) = session.execute(&prepared, &[]).await? else {
                    panic!("not a COPY FROM STDIN")
                };
                copy.push(b"1\t1\n2\t1\n").await?;
                other.ok(change);
                copy.push(format!("3\t1\n4\t{wrong}\n").as_bytes()).await?;
                copy.finish().await.map(|tag| tag.to_string())
            })
        });
        assert_eq!(codes(&copied), expected, "{change}: {copied:?}");
    }
    assert_eq!(client.rows("SELECT id FROM t ORDER BY id"), ["1", "2"]);
}

/// A statement that was prepared before a check is added, or dropped, goes by the checks of its execution.
#[test]
fn prepared_statements_follow_checks() {
    for sql in [
        "INSERT INTO t VALUES (2, -2)",
        "INSERT INTO t SELECT id + 1, a - 3 FROM t WHERE id = 1",
        "UPDATE t SET a = -3 WHERE id = 1",
        "UPDATE t SET a = -4 WHERE id IN (SELECT min(id) FROM t)",
        "INSERT INTO t VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET a = -5",
    ] {
        let db = Db::new();
        let (client, other) = (db.client(), db.client());
        client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
        client.ok("INSERT INTO t VALUES (1, 1)");
        let outcomes = client.with(move |session, runtime| {
            runtime.block_on(async {
                let prepared = session.prepare(sql, &[]).await.expect("prepared");
                let mut outcomes = Vec::new();
                for change in [ADD, DROP] {
                    other.ok(change);
                    outcomes.push(session.execute(&prepared, &[]).await.map(drop));
                }
                outcomes
            })
        });
        assert_eq!(outcomes.iter().map(codes).collect::<Vec<_>>(), ["23514", "00000"], "{sql}");
        assert_eq!(client.rows(WRONG), ["1"], "{sql}");
    }
}

/// A transaction that has written when a check is added cannot have evaluated it: it does not commit. One that begins later does.
#[test]
fn transactions_that_run_while_a_check_is_added_do_not_commit() {
    let nodes = Db::cluster(2);
    let (one, other) = (nodes[0].client(), nodes[1].client());
    one.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
    one.ok("INSERT INTO t SELECT value, 1 FROM generate_series(1, 20)");
    for writer in [&one, &other] {
        for sql in ["UPDATE t SET a = -1", "INSERT INTO t VALUES (100, -1)", "UPDATE t SET a = 2"] {
            writer.ok("BEGIN");
            writer.ok(sql);
            one.ok(ADD);
            assert_eq!(writer.err("COMMIT").state.code(), "40001", "{sql}");
            assert_eq!(one.rows(WRONG), ["0"], "{sql}");
            assert_violates(&writer.err("UPDATE t SET a = -1 WHERE id = 3"), "positive");
            writer.ok("BEGIN");
            writer.ok("UPDATE t SET a = 3");
            writer.ok("COMMIT");
            other.ok(DROP);
        }
    }
    // One that only reads goes on.
    other.ok("BEGIN");
    assert_eq!(other.rows(WRONG), ["0"]);
    one.ok(ADD);
    assert_eq!(other.rows(WRONG), ["0"]);
    other.ok("COMMIT");
}

/// In a block a definition comes before the first statement: the block's transaction begins after it.
#[test]
fn a_block_that_begins_with_a_definition_commits() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
    client.ok("BEGIN");
    client.ok(ADD);
    client.ok("CREATE INDEX t_a ON t (a)");
    client.ok("INSERT INTO t VALUES (1, 1)");
    client.ok("COMMIT");
    client.ok("BEGIN");
    client.ok("INSERT INTO t VALUES (2, 2)");
    client.ok(DROP);
    assert_eq!(client.err("COMMIT").state.code(), "40001");
    assert_eq!(client.rows("SELECT id, a FROM t"), ["1|1"]);
}

/// A check is added while a statement that violates it waits, at each of its first waits, and then after twice as many: between its binding,
/// the start of its transaction, its rows and its commit. It is never too late for the check.
#[test]
fn a_check_comes_in_the_midst_of_a_statement() {
    for sql in [
        "INSERT INTO t SELECT value, -value FROM generate_series(1000, 1600)",
        "UPDATE t SET a = -a WHERE id IN (SELECT id FROM t WHERE a > 0)",
        "UPDATE t SET a = -a",
    ] {
        let db = Db::new();
        let client = db.client();
        client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
        for waits in (0..16_usize).chain((4..usize::BITS).map(|power| 1 << power)) {
            client.ok("DELETE FROM t");
            client.ok("INSERT INTO t SELECT value, value FROM generate_series(1, 600)");
            let (other, (tell, told)) = (db.client(), mpsc::channel());
            let mut left = waits;
            let between = async move |_: &CancelHandle| {
                if left == 0 {
                    tell.send(other.run(ADD).map(drop)).expect("the test listens");
                }
                left = left.wrapping_sub(1);
            };
            let done = run_with_waits(&client, sql, between);
            let Ok(added) = told.try_recv() else {
                assert!(done.is_ok() && waits > 0, "{sql}: {done:?} after {waits} waits");
                break;
            };
            match codes(&added) {
                // The statement had committed.
                "23514" => assert_eq!(codes(&done), "00000", "{sql}, {waits} waits"),
                "00000" => {
                    assert_eq!(codes(&done), "23514", "{sql}, {waits} waits");
                    assert_eq!(client.rows(WRONG), ["0"], "{sql}, {waits} waits");
                    client.ok(DROP);
                }
                other => panic!("{sql}, {waits} waits: {other}"),
            }
        }
    }
}

/// Another session writes a row that violates the check at each wait of the statement that adds it. Either it is refused, or the check is.
#[test]
fn rows_come_while_a_check_is_added() {
    const ROWS: usize = 20_000;
    for nodes in [1, 2] {
        let nodes = Db::cluster(nodes);
        let client = nodes[0].client();
        client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
        client.ok(&format!("INSERT INTO t SELECT value, value FROM generate_series(1, {ROWS})"));
        let writer = nodes.last().expect("a node").client();
        let (tell, told) = mpsc::channel();
        let mut id = ROWS;
        let between = async move |_: &CancelHandle| {
            id += 1;
            let written = writer.run(&format!("INSERT INTO t VALUES ({id}, -1)"));
            tell.send(codes(&written)).expect("the test listens");
        };
        let added = run_with_waits(&client, ADD, between);
        let written: Vec<&str> = told.iter().collect();
        assert!(written.iter().all(|code| ["00000", "23514"].contains(code)), "{written:?}");
        assert!(written.contains(&"23514"), "{written:?}");
        let has_written = written.contains(&"00000");
        assert_eq!(codes(&added), if has_written { "23514" } else { "00000" }, "{written:?}");
        let checks = "SELECT count(*) FROM pg_constraint WHERE conname = 'positive'";
        assert_eq!(client.rows(checks), [if has_written { "0" } else { "1" }]);
    }
}

/// A statement that meets another definition of its table at each of its tries gives up. It is bound again each time.
#[test]
fn a_statement_whose_table_always_changes_gives_up() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
    client.ok("INSERT INTO t VALUES (1, 1), (2, 2)");
    let other = db.client();
    let between = async move |_: &CancelHandle| {
        other.ok(&format!("{ADD} NOT VALID"));
        other.ok(DROP);
    };
    let written = run_with_waits(&client, "UPDATE t SET a = u.a + 1 FROM (SELECT 5 AS a) u", between);
    assert_eq!(codes(&written), "40001");
    assert_eq!(client.sorted("SELECT a FROM t"), ["1", "2"]);
}

/// A statement that adds a check and is stopped leaves none, at whichever of its waits.
#[test]
fn a_check_that_is_stopped_on_its_way_is_none() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
    client.ok("INSERT INTO t SELECT value, value FROM generate_series(1, 20000)");
    for waits in 0_usize.. {
        let mut left = waits;
        let stop = async move |cancel: &CancelHandle| {
            if left == 0 {
                cancel.cancel();
            }
            left = left.wrapping_sub(1);
        };
        match run_with_waits(&client, ADD, stop) {
            // The last wait is behind the last look.
            Ok(_) => {
                assert!(waits > 3, "stopped {waits} times");
                break;
            }
            Err(error) => assert_eq!(error.state.code(), "57014", "{error}"),
        }
        client.ok("INSERT INTO t VALUES (-1, -1)");
        client.ok("DELETE FROM t WHERE id = -1");
        assert_eq!(client.rows("SELECT count(*) FROM pg_constraint WHERE contype = 'c'"), ["0"]);
    }
    assert_violates(&client.err("INSERT INTO t VALUES (-1, -1)"), "positive");
}

/// Sessions of all nodes turn values round by every path while a check is added and dropped. When it is there, no value is wrong.
fn writers_meet_checks(nodes: &[Db], rounds: u32) {
    const IDS: u64 = 4;
    let client = nodes[0].client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, s TEXT)");
    client.ok("CREATE TABLE turns (id INT PRIMARY KEY, a INT NOT NULL)");
    client.ok("INSERT INTO turns VALUES (1, -1), (2, 1)");
    let (is_over, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().cycle().take(nodes.len().max(3)).enumerate() {
            let (is_over, refused) = (&is_over, &refused);
            scope.spawn(move || {
                let client = node.client();
                let first = number as u64 * IDS;
                let mut turn = number as u64;
                while !is_over.load(Ordering::Relaxed) {
                    turn += 1;
                    let (id, a) = (first + turn / 2 % IDS, if turn.is_multiple_of(2) { -1 } else { 1 });
                    let written = write(&client, turn / (2 * IDS), id, a);
                    match codes(&written) {
                        // A block or a COPY is not tried again after a conflict.
                        "00000" | "40001" => {}
                        "23514" if a < 0 => _ = refused.fetch_add(1, Ordering::Relaxed),
                        _ => panic!("{a}: {written:?}"),
                    }
                }
            });
        }
        let (mut added, mut tries) = (0, 0);
        let adder = nodes.last().expect("a node").client();
        while added < rounds {
            tries += 1;
            assert!(tries < 200_000, "{added} of {rounds} in {tries} tries");
            let how = if tries % 3 == 0 { format!("{ADD} NOT VALID") } else { ADD.to_owned() };
            let mut outcome = adder.run(&how);
            if outcome.is_ok() && tries % 3 == 0 {
                outcome = client.run("ALTER TABLE t VALIDATE CONSTRAINT positive");
                if outcome.is_err() {
                    client.ok(DROP);
                }
            }
            match codes(&outcome) {
                "00000" => added += 1,
                "23514" => continue,
                _ => panic!("{outcome:?}"),
            }
            for reader in [&client, &adder] {
                assert_eq!(reader.rows(WRONG), ["0"]);
            }
            client.ok(DROP);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(refused.load(Ordering::Relaxed) > 0, "the check has refused nothing");
}

/// Gives a row a value, each time in another way.
fn write(client: &Client, way: u64, id: u64, a: i32) -> Result<(), SqlError> {
    let run = |sql: String| client.run(&sql).map(drop);
    let there = run(format!("INSERT INTO t VALUES ({id}, 1) ON CONFLICT DO NOTHING"));
    match way % 6 {
        0 => there.and_then(|()| run(format!("UPDATE t SET a = {a} WHERE id = {id}"))),
        1 => {
            there.and_then(|()| run(format!("UPDATE t SET a = turns.a FROM turns WHERE t.id = {id} AND turns.a = {a}")))
        }
        2 => there.and_then(|()| run(format!("INSERT INTO t VALUES ({id}, 1) ON CONFLICT (id) DO UPDATE SET a = {a}"))),
        3 => run(format!("DELETE FROM t WHERE id = {id}"))
            .and_then(|()| run(format!("INSERT INTO t VALUES ({id}, {a})"))),
        4 => run(format!("DELETE FROM t WHERE id = {id}"))
            .and_then(|()| client.copy("COPY t (id, a) FROM STDIN", &format!("{id}\t{a}\n")).map(drop)),
        _ => {
            let written = there
                .and_then(|()| run("BEGIN".to_owned()))
                .and_then(|()| run(format!("UPDATE t SET a = {a}, s = 'block' WHERE id = {id}")))
                .and_then(|()| run("COMMIT".to_owned()));
            if written.is_err() {
                client.run("ROLLBACK").map(drop).expect("rolled back");
            }
            written
        }
    }
}

#[test]
fn sessions_write_while_checks_come_and_go() {
    writers_meet_checks(&[Db::new()], 60);
}

#[test]
fn nodes_write_while_checks_come_and_go() {
    writers_meet_checks(&Db::cluster(2), 60);
}

/// The same with journals, and over a network's messages.
#[test]
fn nodes_with_journals_write_while_checks_come_and_go() {
    writers_meet_checks(&Db::cluster_with_columns("shm", 2, CopyConfig::default()), 10);
}

/// Sessions add checks at the same time: none is lost, and each name is given once.
#[test]
fn checks_are_added_at_once() {
    let nodes = Db::cluster(2);
    nodes[0].client().ok("CREATE TABLE t (id INT PRIMARY KEY, a INT)");
    let names: Vec<String> = std::thread::scope(|scope| {
        let of = |node: &'static str, db| {
            scope.spawn(move || {
                let client = Db::client(db);
                for number in 0..5 {
                    client.ok(&format!("ALTER TABLE t ADD CONSTRAINT {node}{number} CHECK (a > {number})"));
                }
                let same = (0..5).map(|number| {
                    client.run(&format!("ALTER TABLE t ADD CONSTRAINT same{number} CHECK (a > {number})"))
                });
                same.flatten().count()
            })
        };
        let (one, other) = (of("one", &nodes[0]), of("other", &nodes[1]));
        assert_eq!(one.join().expect("ended") + other.join().expect("ended"), 5);
        nodes[1].client().rows("SELECT conname FROM pg_constraint WHERE contype = 'c' ORDER BY 1")
    });
    let expected: BTreeSet<String> =
        ["one", "other", "same"].iter().flat_map(|name| (0..5).map(move |number| format!("{name}{number}"))).collect();
    assert_eq!(names, expected.into_iter().collect::<Vec<_>>());
}

fn with_checks(client: &Client) {
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, a INT CHECK (a < 10), b INT)");
    client.ok("INSERT INTO t VALUES (1, -1, 1)");
    client.ok(&format!("{ADD} NOT VALID"));
    client.ok("ALTER TABLE t ADD CONSTRAINT gone CHECK (b > 0)");
    client.ok("ALTER TABLE t DROP CONSTRAINT gone");
    client.ok("ALTER TABLE t ADD CONSTRAINT late CHECK (b > 0)");
}

fn has_checks(client: &Client) {
    let found = client.rows("SELECT conname, convalidated FROM pg_constraint WHERE contype = 'c' ORDER BY 1");
    assert_eq!(found, ["late|t", "positive|f", "t_a_check|t"]);
    assert_violates(&client.err("INSERT INTO t VALUES (2, 10, 1)"), "t_a_check");
    assert_violates(&client.err("INSERT INTO t VALUES (2, 0, 1)"), "positive");
    assert_violates(&client.err("INSERT INTO t VALUES (2, 1, 0)"), "late");
    assert_violates(&client.err("ALTER TABLE t VALIDATE CONSTRAINT positive"), "positive");
}

#[test]
fn checks_survive_a_restart() {
    let db = Db::new();
    with_checks(&db.client());
    let db = db.reopen();
    has_checks(&db.client());
}

#[test]
fn checks_come_back_from_the_journal() {
    let disk = Volatile::default();
    let db = Db::on_disk(&disk);
    with_checks(&db.client());
    drop(db);
    for _ in 0..2 {
        let db = Db::on_disk(&disk);
        has_checks(&db.client());
        drop(db);
    }
}
