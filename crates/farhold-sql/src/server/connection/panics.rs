//! Statements that are special in this crate's unit tests: `SELECT PANIC` panics after writing half of a message, and
//! [`COUNTED`] counts how often a text with `/* counted */` is prepared.

#[allow(dead_code, reason = "the tests of the protocol use all of it")]
#[path = "../../../tests/protocol/client.rs"]
mod client;
#[allow(dead_code, reason = "the tests of the protocol use all of it")]
#[path = "../../../tests/protocol/node.rs"]
mod node;

use std::sync::atomic::{AtomicUsize, Ordering};

use client::{Client, bind, error, execute, parse, query, status, sync, tags};

/// See the module.
pub static COUNTED: AtomicUsize = AtomicUsize::new(0);

/// A regression: DECLARE planned the query for its parameters, and its execution again.
#[test]
fn the_query_of_a_cursor_is_prepared_once() {
    let server = node::server();
    let mut client = Client::connect(server.local_addr());
    client.run("BEGIN");
    client.run("DECLARE c CURSOR FOR SELECT value /* counted */ FROM generate_series(1, 2)");
    assert_eq!(client.rows("FETCH ALL FROM c"), [["1"], ["2"]]);
    assert_eq!(COUNTED.load(Ordering::Relaxed), 1);
    client.run("DECLARE d CURSOR FOR SELECT 1 /* counted */; COMMIT");
    assert_eq!(COUNTED.load(Ordering::Relaxed), 2);
}

#[test]
fn a_panic_fails_its_statement_alone() {
    let server = node::server_with(|config| config.front_end_threads = 1);
    let mut client = Client::connect(server.local_addr());
    let mut neighbour = Client::connect(server.local_addr());
    client.run("CREATE TABLE p (i int PRIMARY KEY)");
    // The earlier statement stays answered, and later ones are not run.
    let answers = client.ask(&query("INSERT INTO p VALUES (1); SELECT PANIC; INSERT INTO p VALUES (2)"));
    assert_eq!((tags(&answers), error(&answers).as_deref()), (b"CEZ".to_vec(), Some("XX000")));
    assert_eq!(status(&answers), b'I');
    assert_eq!(client.rows("SELECT count(*) FROM p"), [["0"]]);

    // In a block, no savepoint restores the transaction.
    client.run("BEGIN; INSERT INTO p VALUES (3); SAVEPOINT a");
    let batch = [parse("", "SELECT 1"), parse("", "SELECT PANIC"), bind("", "", &[]), execute("", 0), sync()].concat();
    let answers = client.ask(&batch);
    assert_eq!((tags(&answers), status(&answers)), (b"1EZ".to_vec(), b'E'));
    assert_eq!(error(&client.ask(&query("ROLLBACK TO a"))).as_deref(), Some("40001"));
    client.run("ROLLBACK");
    assert_eq!(client.rows("SELECT count(*) FROM p"), [["0"]]);
    assert_eq!(neighbour.rows("SELECT 1"), [["1"]]);
}
