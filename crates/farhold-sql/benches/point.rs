//! The cost of a statement on the direct path: `cargo bench -p farhold-sql --bench point` prints a table; `--quick`
//! runs each part briefly.
//!
//! One session on one thread, without the wire protocol: `Session::execute` of prepared statements, each in its own
//! transaction.
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use farhold_fabric::{Fabric, Handle};
use farhold_sql::{Datum, Engine, EngineConfig, Output, Prepared, Rows, Session};
use farhold_txn::{Node, NodeConfig, NodeId};

struct Turns {
    rows: i32,
    turns: u32,
}

/// Prints the table.
pub fn main() {
    // The tests always run it quick.
    let quick = cfg!(test) || std::env::args().any(|arg| arg == "--quick" || arg == "--test");
    let turns = if quick { Turns { rows: 200, turns: 200 } } else { Turns { rows: 100_000, turns: 300_000 } };
    for (name, nanoseconds) in run(&turns) {
        println!("{name:<52} {nanoseconds:>9.0} ns");
    }
}

fn run(turns: &Turns) -> Vec<(&'static str, f64)> {
    let dir = farhold_testkit::memory_directory();
    let fabric = Fabric::join_shm(&dir, NodeId(0)).expect("the fabric");
    let node = Node::open(fabric, NodeConfig { region_bytes: 512 << 20, ..NodeConfig::default() }).expect("a node");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let worker = Rc::new(node.worker(&Handle::standalone(1)).expect("a worker"));
    let config = EngineConfig { query_threads: 1, ..EngineConfig::default() };
    runtime.block_on(async {
        let engine = Engine::open(Arc::clone(&node), config, &worker).await.expect("an engine");
        let mut session = engine.session(worker, "bench");
        measure(&mut session, turns).await
    })
}

async fn prepare(session: &mut Session, sql: &str) -> Rc<Prepared> {
    let prepared = session.prepare(sql, &[]).await.expect(sql);
    assert!(prepared.is_direct(), "{sql} takes a planner");
    prepared
}

async fn execute(session: &mut Session, prepared: &Rc<Prepared>, parameters: &[Datum]) -> u64 {
    match session.execute(prepared, parameters).await.unwrap_or_else(|error| panic!("{}: {error}", prepared.sql())) {
        Output::Rows(Rows::Direct { rows, .. }) => rows.len() as u64,
        Output::Command(tag) => tag.rows.unwrap_or(0),
        _ => panic!("not direct"),
    }
}

async fn measure(session: &mut Session, turns: &Turns) -> Vec<(&'static str, f64)> {
    let ddl = "CREATE TABLE t (id INT PRIMARY KEY, a INT NOT NULL, b BIGINT NOT NULL, c NUMERIC(12,2) NOT NULL, \
               d VARCHAR(16) NOT NULL, e TIMESTAMP NOT NULL, f CHAR(10), g INT, h DATE, i TEXT)";
    for sql in [ddl, "CREATE TABLE counters (id INT PRIMARY KEY, n INT NOT NULL)"] {
        let prepared = session.prepare(sql, &[]).await.expect(sql);
        session.execute(&prepared, &[]).await.expect(sql);
    }
    let insert = "INSERT INTO t VALUES ($1, $2, 7, 1.25, 'sixteen letters!', '2024-01-01 00:00:00', 'ten', 5, '2024-01-01', 'x')";
    let insert = prepare(session, insert).await;
    let mut results = Vec::new();
    let start = Instant::now();
    for id in 0..turns.rows {
        execute(session, &insert, &[Datum::Int(id), Datum::Int(id % 100)]).await;
    }
    results.push(("INSERT of 10 columns, 2 of them parameters", per(start, turns.rows.cast_unsigned())));
    let cases: [(&'static str, &str); 7] = [
        ("SELECT 1", "SELECT 1 + $1 * 0"),
        ("SELECT of 1 column by primary key", "SELECT a FROM t WHERE id = $1"),
        ("SELECT of 10 columns by primary key", "SELECT * FROM t WHERE id = $1"),
        ("SELECT of 1 column by primary key, missing", "SELECT a FROM t WHERE id = -1 - $1"),
        ("SELECT of 10 rows by a range of the primary key", "SELECT a FROM t WHERE id >= $1 ORDER BY id LIMIT 10"),
        ("UPDATE of 1 column by primary key", "UPDATE t SET a = a + 1 WHERE id = $1"),
        ("UPDATE … RETURNING by primary key", "UPDATE t SET b = b + 1 WHERE id = $1 RETURNING b"),
    ];
    for (name, sql) in cases {
        let prepared = prepare(session, sql).await;
        let mut random = fastrand::Rng::with_seed(1);
        let start = Instant::now();
        for _ in 0..turns.turns {
            execute(session, &prepared, &[Datum::Int(random.i32(0..turns.rows))]).await;
        }
        results.push((name, per(start, turns.turns)));
    }
    let upsert =
        prepare(session, "INSERT INTO counters VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = counters.n + 1").await;
    let start = Instant::now();
    for n in 0..turns.turns {
        execute(session, &upsert, &[Datum::Int((n % 1000).cast_signed())]).await;
    }
    results.push(("INSERT … ON CONFLICT DO UPDATE", per(start, turns.turns)));
    let delete = prepare(session, "DELETE FROM t WHERE id = $1").await;
    let start = Instant::now();
    for id in 0..turns.rows {
        execute(session, &delete, &[Datum::Int(id)]).await;
    }
    results.push(("DELETE by primary key", per(start, turns.rows.cast_unsigned())));
    results
}

fn per(start: Instant, turns: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(turns.max(1))
}
