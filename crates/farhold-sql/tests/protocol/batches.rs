//! Batches of the extended protocol: pipelines, errors, portals, transactions.

use crate::client::{Client, bind, describe, error, execute, message, parse, query, rows, status, sync, tags};
use crate::node::server;

fn tag_text(answers: &[(u8, Vec<u8>)]) -> Vec<String> {
    let text = |body: &[u8]| String::from_utf8(body[..body.len() - 1].to_vec()).unwrap();
    answers.iter().filter(|(tag, _)| *tag == b'C').map(|(_, body)| text(body)).collect()
}

#[test]
fn a_batch_is_answered_in_order() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_order (i int PRIMARY KEY, t text)");
    let batch = [
        parse("ins", "INSERT INTO b_order VALUES ($1, $2)"),
        bind("", "ins", &["1", "one"]),
        execute("", 0),
        bind("", "ins", &["2", "two"]),
        execute("", 0),
        parse("", "SELECT t FROM b_order WHERE i = $1"),
        describe(b'S', ""),
        bind("", "", &["2"]),
        describe(b'P', ""),
        execute("", 0),
        sync(),
    ]
    .concat();
    let answers = client.ask(&batch);
    assert_eq!(tags(&answers), b"12C2C1tT2TDCZ", "{answers:?}");
    assert_eq!(tag_text(&answers), ["INSERT 0 1", "INSERT 0 1", "SELECT 1"]);
    assert_eq!(rows(&answers), [["two"]]);
    // The same batch, one byte at a time.
    client.run("DELETE FROM b_order");
    for byte in &batch[parse("ins", "INSERT INTO b_order VALUES ($1, $2)").len()..] {
        client.send(&[*byte]);
    }
    assert_eq!(tags(&client.until_ready()), b"2C2C1tT2TDCZ");
}

/// Statements are retried after conflicts even if the client sends each Sync slightly later than its Execute.
#[test]
fn a_sync_may_come_a_little_later() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_later (i int PRIMARY KEY, n int); INSERT INTO b_later VALUES (1, 0)");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Client::connect(server.local_addr());
                let parsed = client.ask(&[parse("up", "UPDATE b_later SET n = n + 1 WHERE i = 1"), sync()].concat());
                assert_eq!(tags(&parsed), b"1Z");
                for _ in 0..50 {
                    client.send(&[bind("", "up", &[]), execute("", 0)].concat());
                    assert_eq!(tags(&client.ask(&sync())), b"2CZ");
                }
            });
        }
    });
    assert_eq!(client.rows("SELECT n FROM b_later"), [["200"]]);
}

#[test]
fn after_an_error_everything_waits_for_sync() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_error (i int PRIMARY KEY)");
    let insert = |value| [bind("", "ins", &[value]), execute("", 0)].concat();
    let batch = [
        parse("ins", "INSERT INTO b_error VALUES ($1)"),
        insert("1"),
        insert("1"),
        insert("2"),
        query("SELECT 1"),
        message(b'd', b"copy data out of place"),
        sync(),
    ];
    let answers = client.ask(&batch.concat());
    assert_eq!(tags(&answers), b"12C2EZ", "{answers:?}");
    assert_eq!(error(&answers).as_deref(), Some("23505"));
    assert_eq!(status(&answers), b'I');
    // The statements up to Sync formed one transaction.
    assert_eq!(client.rows("SELECT count(*) FROM b_error"), [["0"]]);
    // Each Sync ends the error state.
    let answers = client.ask(&[insert("1"), sync()].concat());
    assert_eq!(tags(&answers), b"2CZ");
    client.send(&[insert("1"), sync(), insert("2"), sync()].concat());
    assert_eq!(tags(&client.until_ready()), b"2EZ");
    assert_eq!(tags(&client.until_ready()), b"2CZ");
    assert_eq!(client.rows("SELECT count(*) FROM b_error"), [["2"]]);
}

#[test]
fn an_error_is_told_before_sync() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.send(&[parse("", "SELECT * FROM nothing"), describe(b'S', ""), message(b'H', b"")].concat());
    assert_eq!(client.answer().unwrap().0, b'E');
    assert_eq!(tags(&client.ask(&sync())), b"Z");
}

#[test]
fn an_explicit_block_spans_batches() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_block (i int PRIMARY KEY)");
    let run = |sql| [parse("", sql), bind("", "", &[]), execute("", 0)].concat();
    let answers = client.ask(&[run("BEGIN"), run("INSERT INTO b_block VALUES (1)"), sync()].concat());
    assert_eq!((tags(&answers), status(&answers)), (b"12C12CZ".to_vec(), b'T'));
    let answers = client.ask(&[run("SELECT nothing"), sync()].concat());
    assert_eq!(status(&answers), b'E');
    let answers = client.ask(&[run("SELECT 1"), sync()].concat());
    assert_eq!(error(&answers).as_deref(), Some("25P02"));
    let answers = client.ask(&[run("COMMIT"), sync()].concat());
    assert_eq!((tag_text(&answers), status(&answers)), (vec!["ROLLBACK".to_owned()], b'I'));
    assert_eq!(client.rows("SELECT count(*) FROM b_block"), [["0"]]);
}

/// Parameter values are not read either.
#[test]
fn a_failed_block_takes_no_parameters() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.ask(&[parse("s", "SELECT $1::int"), sync()].concat());
    client.run("BEGIN");
    assert_eq!(error(&client.ask(&[bind("", "s", &["x"]), sync()].concat())).as_deref(), Some("22P02"));
    assert_eq!(error(&client.ask(&[bind("", "s", &["x"]), sync()].concat())).as_deref(), Some("25P02"));
    client.run("ROLLBACK");
    assert_eq!(error(&client.ask(&[bind("", "s", &["1"]), sync()].concat())), None);
}

/// Trailing blanks are not part of a `character` value.
#[test]
fn a_character_has_no_blanks_at_its_end() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_character (i int PRIMARY KEY, c char(3), t text)");
    client.run("INSERT INTO b_character VALUES (1, 'a', 'a'), (2, ' ', '')");
    let sql = "SELECT i FROM (SELECT $1 AS c) AS q JOIN b_character AS b ON q.c = b.c AND q.c = b.t";
    for (value, row) in [("a ", "1"), (" ", "2")] {
        let statement = [b"\0", sql.as_bytes(), b"\0\0\x01", 1042_u32.to_be_bytes().as_slice()].concat();
        let answers = client.ask(&[message(b'P', &statement), bind("", "", &[value]), execute("", 0), sync()].concat());
        assert_eq!(rows(&answers), [[row]], "{value:?}: {answers:?}");
    }
}

#[test]
fn a_portal_is_read_in_parts() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_portal (i int PRIMARY KEY)");
    let values: Vec<String> = (0..10).map(|i| format!("({i})")).collect();
    client.run(&format!("INSERT INTO b_portal VALUES {}", values.join(", ")));
    client.run("BEGIN");
    let begin = [parse("s", "SELECT i FROM b_portal ORDER BY i"), bind("p", "s", &[]), execute("p", 4), sync()];
    let answers = client.ask(&begin.concat());
    assert_eq!(tags(&answers), b"12DDDDsZ", "{answers:?}");
    let answers = client.ask(&[execute("p", 4), sync()].concat());
    assert_eq!(rows(&answers), [["4"], ["5"], ["6"], ["7"]]);
    // Another statement in between does not affect the portal.
    assert_eq!(client.rows("SELECT count(*) FROM b_portal"), [["10"]]);
    let answers = client.ask(&[execute("p", 4), sync()].concat());
    assert_eq!((tags(&answers), tag_text(&answers)), (b"DDCZ".to_vec(), vec!["SELECT 2".to_owned()]));
    client.run("COMMIT");
    // The end of the transaction closes its portals.
    let answers = client.ask(&[execute("p", 0), sync()].concat());
    assert_eq!(error(&answers).as_deref(), Some("34000"));
}

#[test]
fn names_are_made_once_and_missed_when_gone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let first_error = |client: &mut Client, bytes: &[u8]| error(&client.ask(&[bytes, &sync()].concat()));
    assert_eq!(first_error(&mut client, &parse("s", "SELECT 1")), None);
    assert_eq!(first_error(&mut client, &parse("s", "SELECT 1")).as_deref(), Some("42P05"));
    assert_eq!(first_error(&mut client, &bind("", "other", &[])).as_deref(), Some("26000"));
    assert_eq!(first_error(&mut client, &execute("other", 0)).as_deref(), Some("34000"));
    assert_eq!(first_error(&mut client, &bind("", "s", &["1"])).as_deref(), Some("08P01"));
    // Closing an unknown name is not an error.
    assert_eq!(first_error(&mut client, &message(b'C', b"Sother\0")), None);
    assert_eq!(first_error(&mut client, &message(b'C', b"Ss\0")), None);
    assert_eq!(first_error(&mut client, &describe(b'S', "s")).as_deref(), Some("26000"));
    // SQL's PREPARE creates statements that the protocol can use.
    client.run("PREPARE s AS SELECT 7");
    let answers = client.ask(&[bind("", "s", &[]), execute("", 0), sync()].concat());
    assert_eq!(rows(&answers), [["7"]]);
}

#[test]
fn empty_statements() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    for sql in ["", " ; ", "-- nothing"] {
        assert_eq!(tags(&client.ask(&query(sql))), b"IZ", "{sql:?}");
    }
    let batch = [parse("", ""), describe(b'S', ""), bind("", "", &[]), describe(b'P', ""), execute("", 0), sync()];
    assert_eq!(tags(&client.ask(&batch.concat())), b"1tn2nIZ");
}

#[test]
fn text_that_is_no_utf8_fails_its_statement_alone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let answers = client.ask(&message(b'Q', b"SELECT '\xff'\0"));
    assert_eq!(error(&answers).as_deref(), Some("22021"));
    let mut bad = bind("", "", &["ab"]);
    let at = bad.len() - 3;
    bad[at] = 0xfe;
    let answers = client.ask(&[parse("", "SELECT $1::text"), bad, sync()].concat());
    assert_eq!(error(&answers).as_deref(), Some("22021"));
    assert_eq!(client.rows("SELECT 1"), [["1"]]);
}

#[test]
fn copy_by_the_simple_and_the_extended_protocol() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_copy (i int PRIMARY KEY, t text)");
    client.send(&query("COPY b_copy FROM STDIN"));
    assert_eq!(client.answer().unwrap().0, b'G');
    // Chunks may end anywhere.
    let answers = client.ask(
        &[message(b'd', b"1\to"), message(b'd', b"ne\n2\t"), message(b'd', b"two\n"), message(b'c', b"")].concat(),
    );
    assert_eq!(tag_text(&answers), ["COPY 2"]);

    let begin = [parse("", "COPY b_copy FROM STDIN"), bind("", "", &[]), describe(b'P', ""), execute("", 0)];
    client.send(&begin.concat());
    let opened: Vec<u8> = (0..4).map(|_| client.answer().unwrap().0).collect();
    assert_eq!(opened, b"12nG");
    let answers = client.ask(&[message(b'd', b"3\tthree\n"), message(b'c', b""), sync()].concat());
    assert_eq!((tags(&answers), tag_text(&answers)), (b"CZ".to_vec(), vec!["COPY 1".to_owned()]));

    // The client aborts the COPY.
    client.send(&query("COPY b_copy FROM STDIN"));
    assert_eq!(client.answer().unwrap().0, b'G');
    let answers = client.ask(&[message(b'd', b"4\tfour\n"), message(b'f', b"changed my mind\0")].concat());
    assert_eq!(error(&answers).as_deref(), Some("57014"));
    assert_eq!(client.rows("SELECT count(*) FROM b_copy"), [["3"]]);
}

/// A function call ends its batch, as Sync does. A regression: the next batch was not a transaction.
#[test]
fn a_function_call_ends_its_batch() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_call (i int PRIMARY KEY)");
    client.ask(&[parse("ins", "INSERT INTO b_call VALUES ($1)"), sync()].concat());
    let insert = |value| [bind("", "ins", &[value]), execute("", 0)].concat();
    let answers = client.ask(&[insert("1"), message(b'F', b"\0\0\0\0\0\0\0\0\0\0")].concat());
    assert_eq!((tags(&answers), error(&answers).as_deref()), (b"2CEZ".to_vec(), Some("0A000")));
    let answers = client.ask(&[insert("2"), insert("2"), sync()].concat());
    assert_eq!(error(&answers).as_deref(), Some("23505"));
    assert_eq!(client.rows("SELECT count(*) FROM b_call"), [["0"]]);
}

/// An empty query ends a batch. A regression: when its commit failed, the connection was closed.
#[test]
fn a_commit_that_fails_behind_an_empty_query_is_told() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    let mut other = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_late (i int PRIMARY KEY, n int)");
    client.run("INSERT INTO b_late VALUES (1, 0)");
    let update = "UPDATE b_late SET n = n + 1 WHERE i = 1";
    client.send(&[parse("", update), bind("", "", &[]), execute("", 0), message(b'H', b"")].concat());
    let begun: Vec<u8> = (0..3).map(|_| client.answer().unwrap().0).collect();
    assert_eq!(begun, b"12C");
    other.run(update);
    let answers = client.ask(&query(""));
    assert_eq!((tags(&answers), error(&answers).as_deref()), (b"IEZ".to_vec(), Some("40001")));
    assert_eq!(client.rows("SELECT n FROM b_late"), [["1"]]);
}

/// Invalid formats in a Bind fail only the batch, like other errors in it.
#[test]
fn wrong_formats_fail_the_batch_alone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    // Unnamed portal and statement; formats of parameters; one parameter, 7; formats of the result.
    let bind = |parameters: &[u16], results: &[u16]| {
        let codes = |codes: &[u16]| {
            let count = u16::try_from(codes.len()).unwrap().to_be_bytes();
            [&count[..], &codes.iter().flat_map(|code| code.to_be_bytes()).collect::<Vec<_>>()].concat()
        };
        message(b'B', &[&b"\0\0"[..], &codes(parameters), b"\0\x01\0\0\0\x017", &codes(results)].concat())
    };
    let run = |client: &mut Client, parameters: &[u16], results: &[u16]| {
        let sql = "SELECT CAST($1 AS INT) + 1";
        client.ask(&[parse("", sql), bind(parameters, results), execute("", 0), sync()].concat())
    };
    for (parameters, results, state) in [
        (&[0, 0][..], &[][..], "08P01"),
        (&[2], &[], "22023"),
        (&[0x0100], &[], "22023"),
        (&[0], &[0, 0], "08P01"),
        (&[0], &[0x0101], "22023"),
    ] {
        let answers = run(&mut client, parameters, results);
        assert_eq!((error(&answers).as_deref(), status(&answers)), (Some(state), b'I'), "{parameters:?} {results:?}");
        assert_eq!(rows(&run(&mut client, &[0], &[0])), [["8"]]);
    }
}
