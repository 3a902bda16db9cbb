//! Sequences used by several sessions and nodes, and across restarts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use farhold_sql::Datum;

use crate::harness::Db;

#[test]
fn sessions_share_a_nodes_numbers_in_order() {
    let db = Db::new();
    let (one, two) = (db.client(), db.client());
    one.ok("CREATE TABLE t (id BIGSERIAL PRIMARY KEY, who INT)");
    for turn in 0..40 {
        assert_eq!(one.rows("INSERT INTO t (who) VALUES (1) RETURNING id"), [format!("{}", 2 * turn + 1)]);
        assert_eq!(two.rows("INSERT INTO t (who) VALUES (2) RETURNING id"), [format!("{}", 2 * turn + 2)]);
        assert_eq!(one.rows("SELECT lastval()"), [format!("{}", 2 * turn + 1)]);
    }
}

#[test]
fn numbers_go_on_after_a_restart() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE s INCREMENT 2 CACHE 10");
    client.ok("CREATE TABLE t (id INT GENERATED ALWAYS AS IDENTITY, a INT)");
    client.ok("INSERT INTO t (a) SELECT value FROM generate_series(1, 100)");
    assert_eq!(client.rows("SELECT nextval('s')"), ["1"]);
    drop(client);
    let db = db.reopen();
    let client = db.client();
    // Only the rest of the block is lost: 1, 3, …, 19 were used.
    assert_eq!(client.rows("SELECT nextval('s')"), ["21"]);
    client.ok("INSERT INTO t (a) VALUES (0)");
    assert_eq!(client.rows("SELECT count(*), count(DISTINCT id) FROM t"), ["101|101"]);
    let next: i64 = client.rows("SELECT id FROM t WHERE a = 0")[0].parse().unwrap();
    assert!((101..=129).contains(&next), "{next}");
    assert_eq!(client.err("INSERT INTO t VALUES (1, 1)").state.code(), "428C9");
    client.ok("DROP TABLE t");
    assert_eq!(client.err("SELECT nextval('t_id_seq')").state.code(), "42P01");
}

#[test]
fn threads_never_get_the_same_number() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE s CACHE 3");
    let of_threads: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let client = db.client();
                    (0..300).map(|_| client.rows("SELECT nextval('s')")[0].parse().unwrap()).collect::<Vec<i64>>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for numbers in &of_threads {
        assert!(numbers.is_sorted(), "a session's numbers rise: {numbers:?}");
    }
    let numbers = of_threads.concat();
    let unique: BTreeSet<i64> = numbers.iter().copied().collect();
    assert_eq!(unique.len(), 1200);
    // No node has failed: the only gaps are the rests of the last blocks.
    assert!(unique.first() == Some(&1) && unique.last().is_some_and(|last| *last <= 1200 + 12), "{:?}", unique.last());
}

#[test]
fn nodes_never_get_the_same_number() {
    let nodes = Db::cluster(3);
    let client = nodes[1].client();
    client.ok("CREATE SEQUENCE s CACHE 4 INCREMENT BY -1 MAXVALUE 0 MINVALUE -1000000");
    client.ok("CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, who INT NOT NULL)");
    std::thread::scope(|scope| {
        for (who, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let client = node.client();
                for _ in 0..200 {
                    client.ok(&format!("INSERT INTO t (who) VALUES ({who})"));
                    client.ok("SELECT nextval('s')");
                }
            });
        }
    });
    assert_eq!(client.rows("SELECT count(*), count(DISTINCT id) FROM t"), ["600|600"]);
    // All numbers came from one counter; what is missing here is in the blocks of the other two nodes.
    let last: i64 = client.rows("SELECT nextval('s')")[0].parse().unwrap();
    assert!((-620..=-600).contains(&last), "{last}");
    // Each node takes numbers from blocks of its own.
    let mine: Vec<i64> =
        client.rows("SELECT id FROM t WHERE who = 1 ORDER BY id").iter().map(|id| id.parse().unwrap()).collect();
    assert!(mine.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() > 150, "{mine:?}");
    // All nodes see the sequence at once, and it is dropped for all of them.
    nodes[2].client().ok("DROP TABLE t");
    assert_eq!(nodes[0].client().err("SELECT nextval('t_id_seq')").state.code(), "42P01");
}

/// A sequence is dropped while other sessions take numbers from it: they receive numbers or an error, and must not
/// write to memory that has been reused.
#[test]
fn a_sequence_goes_while_it_is_used() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE canary (id INT PRIMARY KEY, a BIGINT NOT NULL)");
    for round in 0..20 {
        client.ok("CREATE SEQUENCE s CACHE 1");
        std::thread::scope(|scope| {
            let user = scope.spawn(|| {
                let client = db.client();
                let mut numbers = 0;
                loop {
                    match client.run("SELECT nextval('s')") {
                        Ok(_) => numbers += 1,
                        Err(error) => {
                            assert!(["42P01", "40001"].contains(&error.state.code()), "{error}");
                            return numbers;
                        }
                    }
                }
            });
            client.ok("SELECT nextval('s')");
            client.ok("DROP SEQUENCE s");
            user.join().unwrap();
        });
        client.ok(&format!("INSERT INTO canary VALUES ({round}, 77)"));
    }
    assert_eq!(client.rows("SELECT count(*), min(a), max(a) FROM canary"), ["20|77|77"]);
}

#[test]
fn copy_and_parameters() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT GENERATED ALWAYS AS IDENTITY, a TEXT)");
    client.copy("COPY t (a) FROM STDIN", "x\ny\n").unwrap();
    assert_eq!(client.rows("SELECT id, a FROM t ORDER BY id"), ["1|x", "2|y"]);
    let next = client.run_with("SELECT nextval($1)", &[Datum::Text("t_id_seq".to_owned())]).unwrap();
    assert_eq!(next.lines(), ["3"]);
    client.run_with("INSERT INTO t (a) VALUES ($1)", &[Datum::Text("z".to_owned())]).unwrap();
    assert_eq!(client.rows("SELECT id FROM t WHERE a = 'z'"), ["4"]);
}

#[test]
fn queries_take_numbers_from_their_sessions() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE s CACHE 1");
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("INSERT INTO t SELECT value FROM generate_series(1, 3000)");
    // Two queries at a time, on the threads shared by all sessions: no number is returned twice.
    let count = 5;
    let took = std::thread::scope(|scope| {
        let take = || {
            let client = db.client();
            (0..count).flat_map(|_| client.rows("SELECT nextval('s') FROM t WHERE id > 0")).collect::<Vec<_>>()
        };
        let (one, two) = (scope.spawn(take), scope.spawn(take));
        one.join().unwrap().into_iter().chain(two.join().unwrap()).collect::<BTreeSet<_>>()
    });
    assert_eq!(took.len(), 2 * count * 3000);
    let given = client.run_with("SELECT nextval($1) FROM t WHERE id <= $2", &[Datum::Text("s".into()), Datum::Int(2)]);
    assert_eq!(given.unwrap().lines(), ["30001", "30002"]);
    // A query that is cancelled while it waits for numbers.
    let answer = client.start("SELECT max(nextval('s')) FROM t a, t b");
    let error = loop {
        client.cancel.cancel();
        if let Ok(outcome) = answer.recv_timeout(std::time::Duration::from_millis(5)) {
            break outcome.unwrap_err();
        }
    };
    assert_eq!(error.state.code(), "57014", "{error}");
    assert_eq!(client.rows("SELECT nextval('s') > 30002 FROM t WHERE id = 1"), ["t"]);
    let shown = client.rows("EXPLAIN ANALYZE SELECT nextval('s') FROM t WHERE id > 1");
    assert!(shown.iter().any(|line| line.contains("nextval")), "{shown:?}");
}

/// A block requested before `setval` must not be used after it, even if the block arrives later.
#[test]
fn a_sequence_that_is_set_goes_on_from_there() {
    const ROUNDS: i64 = 1_000;
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE s CACHE 2");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = db.client();
                while !over.load(Ordering::Relaxed) {
                    client.ok("SELECT nextval('s')");
                }
            });
        }
        let numbers: Vec<(i64, i64)> = (1..=ROUNDS)
            .map(|round| {
                let from = round * 1_000_000;
                client.ok(&format!("SELECT setval('s', {from})"));
                (from, client.rows("SELECT nextval('s')")[0].parse().unwrap())
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        for (from, number) in numbers {
            assert!(number > from, "{number} behind setval('s', {from})");
        }
    });
}

/// A join's keys drop no rows below expressions that count them.
#[test]
fn nextval_below_a_join_is_called_for_each_row() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE SEQUENCE q");
    client.ok("CREATE TABLE big (id int PRIMARY KEY)");
    client.ok("INSERT INTO big SELECT i FROM generate_series(1, 1000) g(i)");
    client.ok("CREATE TABLE small (id int PRIMARY KEY)");
    client.ok("INSERT INTO small VALUES (500)");
    client.rows("SELECT b.n FROM small s JOIN (SELECT id, nextval('q') AS n FROM big) b ON b.id = s.id");
    assert_eq!(client.rows("SELECT nextval('q')"), ["1001"]);
    client.rows("SELECT s.id FROM small s JOIN (SELECT id FROM big WHERE nextval('q') > 0) b ON b.id = s.id");
    assert_eq!(client.rows("SELECT nextval('q')"), ["2002"]);
}
