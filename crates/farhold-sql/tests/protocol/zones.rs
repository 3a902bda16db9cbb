//! Timestamps with time zone and the session's zone on the wire.

use crate::client::{Answer, Client, bind, describe, error, execute, message, parse, query, rows, startup, sync};
use crate::node::server;

/// The type `timestamp with time zone`, and its arrays.
const TIMESTAMPTZ: u32 = 1184;
const TIMESTAMPTZ_ARRAY: u32 = 1185;
/// 2026-07-15 10:00 in UTC, in microseconds since 2000.
const SUMMER_US: i64 = 837_424_800_000_000;

/// The values that `ParameterStatus` messages report for the time zone.
fn zones(answers: &[Answer]) -> Vec<String> {
    let value = |body: &[u8]| {
        let rest = body.strip_prefix(b"TimeZone\0")?;
        Some(String::from_utf8(rest.strip_suffix(b"\0")?.to_vec()).unwrap())
    };
    answers.iter().filter(|(tag, _)| *tag == b'S').filter_map(|(_, body)| value(body)).collect()
}

/// The types of a `RowDescription`.
fn types(answers: &[Answer]) -> Vec<u32> {
    let (_, body) = answers.iter().find(|(tag, _)| *tag == b'T').expect("a description");
    let mut rest = &body[2..];
    let mut types = Vec::new();
    while !rest.is_empty() {
        let name = rest.iter().position(|byte| *byte == 0).unwrap();
        let fields = &rest[name + 1..];
        types.push(u32::from_be_bytes(fields[6..10].try_into().unwrap()));
        rest = &fields[18..];
    }
    types
}

#[test]
fn the_zone_is_told() {
    let server = server();
    let mut client = Client::open(server.local_addr());
    client.send(&startup(0, &[("user", "test"), ("TimeZone", "europe/berlin")]));
    assert_eq!(zones(&client.until_ready()), ["Europe/Berlin"]);
    assert_eq!(client.rows("SELECT timestamptz '2026-07-15 12:00'"), [["2026-07-15 12:00:00+02"]]);
    assert_eq!(zones(&client.ask(&query("SET TIME ZONE 'utc'"))), ["UTC"]);
    assert_eq!(zones(&client.ask(&query("SELECT set_config('timezone', '-7', false)"))), ["<-07>+07"]);
    // A rollback is told too; a statement before it saw the zone of the block.
    let answers = client.ask(&query("BEGIN; SET TIME ZONE 'Asia/Tokyo'; SELECT timestamptz '2026-07-15 10:00Z'"));
    assert_eq!(
        (zones(&answers), rows(&answers)),
        (vec!["Asia/Tokyo".into()], vec![vec!["2026-07-15 19:00:00+09".into()]])
    );
    assert_eq!(zones(&client.ask(&query("ROLLBACK"))), ["<-07>+07"]);
    assert_eq!(zones(&client.ask(&query("RESET timezone"))), ["Europe/Berlin"]);
    let answers = client.ask(&query("SET TIME ZONE 'Europe/Nowhere'"));
    assert_eq!((error(&answers).as_deref(), zones(&answers).len()), (Some("22023"), 0));
    let mut refused = Client::open(server.local_addr());
    refused.send(&startup(0, &[("user", "test"), ("TimeZone", "Europe/Nowhere")]));
    assert_eq!(error(&refused.until_end()).as_deref(), Some("22023"));
}

/// A plan belongs to the zone for which it was made.
#[test]
fn prepared_statements_follow_the_zone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE z_plans (id INT PRIMARY KEY, at TIMESTAMPTZ, local TIMESTAMP)");
    client
        .run("INSERT INTO z_plans VALUES (1, '2026-07-15 10:00Z', '2026-07-15 10:00'), (2, '2026-07-15 12:00Z', NULL)");
    let statements = [
        // On the direct path, and by the planner.
        "SELECT at, at::date FROM z_plans WHERE id = 1",
        "SELECT count(*), min(at::text) FROM z_plans WHERE at <= '2026-07-15 12:00'",
        "SELECT count(*) FROM z_plans WHERE at = local",
        "SELECT date_trunc('day', at) FROM z_plans WHERE id + 0 = 2",
        "SELECT extract(hour FROM at), at + interval '1 month' FROM z_plans WHERE id + 0 = 2",
        "SELECT timestamptz '2026-07-15 12:00', $1::timestamptz, now()::timestamp = localtimestamp",
    ];
    for (n, sql) in statements.iter().enumerate() {
        client.ask(&[parse(&format!("s{n}"), sql), sync()].concat());
    }
    let mut answers_in = |zone: &str| -> Vec<String> {
        client.run(&format!("SET TIME ZONE '{zone}'"));
        let run = |n: usize| {
            let parameters: &[&str] = if n == 5 { &["2026-07-15 10:00"] } else { &[] };
            let answers = client.ask(&[bind("", &format!("s{n}"), parameters), execute("", 0), sync()].concat());
            assert!(error(&answers).is_none(), "{answers:?}");
            rows(&answers).concat().join(" ")
        };
        (0..statements.len()).map(run).collect()
    };
    let in_utc = [
        "2026-07-15 10:00:00+00 2026-07-15",
        "2 2026-07-15 10:00:00+00",
        "1",
        "2026-07-15 00:00:00+00",
        "12 2026-08-15 12:00:00+00",
        "2026-07-15 12:00:00+00 2026-07-15 10:00:00+00 t",
    ];
    assert_eq!(answers_in("UTC"), in_utc);
    assert_eq!(
        answers_in("Europe/Berlin"),
        [
            "2026-07-15 12:00:00+02 2026-07-15",
            "1 2026-07-15 12:00:00+02",
            "0",
            "2026-07-15 00:00:00+02",
            "14 2026-08-15 14:00:00+02",
            "2026-07-15 12:00:00+02 2026-07-15 10:00:00+02 t",
        ]
    );
    assert_eq!(
        answers_in("Pacific/Kiritimati"),
        [
            "2026-07-16 00:00:00+14 2026-07-16",
            "0 NULL",
            "0",
            "2026-07-16 00:00:00+14",
            "2 2026-08-16 02:00:00+14",
            "2026-07-15 12:00:00+14 2026-07-15 10:00:00+14 t",
        ]
    );
    assert_eq!(answers_in("UTC"), in_utc);
}

/// A Bind message with one parameter, and with results in binary format.
fn bind_binary(statement: &str, is_binary: bool, parameter: &[u8]) -> Vec<u8> {
    let mut body = [b"\0", statement.as_bytes(), b"\0\0\x01\0", &[u8::from(is_binary)], b"\0\x01"].concat();
    body.extend(u32::try_from(parameter.len()).unwrap().to_be_bytes());
    body.extend(parameter);
    body.extend([0, 1, 0, 1]);
    message(b'B', &body)
}

#[test]
fn binary_values_are_instants() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("SET TIME ZONE 'Europe/Berlin'");
    client.run("CREATE TABLE z_binary (at TIMESTAMPTZ PRIMARY KEY)");
    // The parameter's type follows from the column.
    let answers = client
        .ask(&[parse("put", "INSERT INTO z_binary VALUES ($1) RETURNING at"), describe(b'S', "put"), sync()].concat());
    let (_, parameters) = answers.iter().find(|(tag, _)| *tag == b't').expect("parameters");
    assert_eq!(parameters[..], [&[0, 1][..], &TIMESTAMPTZ.to_be_bytes()].concat());
    assert_eq!(types(&answers), [TIMESTAMPTZ]);
    let value = |answers: &[Answer]| {
        assert!(error(answers).is_none(), "{answers:?}");
        let (_, body) = answers.iter().find(|(tag, _)| *tag == b'D').expect("a row");
        body[2..].to_vec()
    };
    let binary = |micros: i64| [&8_u32.to_be_bytes()[..], &micros.to_be_bytes()].concat();
    let put = |is_binary, parameter: &[u8]| [bind_binary("put", is_binary, parameter), execute("", 0), sync()].concat();
    assert_eq!(value(&client.ask(&put(true, &SUMMER_US.to_be_bytes()))), binary(SUMMER_US));
    // A text without a zone is one of the session's; an hour later than the value above.
    assert_eq!(value(&client.ask(&put(false, b"2026-07-15 13:00"))), binary(SUMMER_US + 3_600_000_000));
    assert_eq!(value(&client.ask(&put(true, &i64::MAX.to_be_bytes()))), binary(i64::MAX));
    let answers = client.ask(&put(true, &(i64::MAX - 1).to_be_bytes()));
    assert_eq!(error(&answers).as_deref(), Some("22008"));
    assert_eq!(
        client.rows("SELECT at FROM z_binary ORDER BY at"),
        [["2026-07-15 12:00:00+02"], ["2026-07-15 13:00:00+02"], ["infinity"]]
    );
    // From the planner: a value, an array, and a record, which is text.
    let sql = "SELECT max(at), array_agg(at), $1::timestamptz FROM z_binary WHERE at < '2026-07-15 12:30'";
    let answers = client.ask(&[parse("get", sql), describe(b'S', "get"), sync()].concat());
    assert_eq!(types(&answers), [TIMESTAMPTZ, TIMESTAMPTZ_ARRAY, TIMESTAMPTZ]);
    let get = [bind_binary("get", true, &SUMMER_US.to_be_bytes()), execute("", 0), sync()].concat();
    let array = [&1_u32.to_be_bytes()[..], &[0; 4], &TIMESTAMPTZ.to_be_bytes(), &[0, 0, 0, 1, 0, 0, 0, 1]].concat();
    let array = [array, binary(SUMMER_US)].concat();
    let array = [u32::try_from(array.len()).unwrap().to_be_bytes().to_vec(), array].concat();
    assert_eq!(value(&client.ask(&get)), [binary(SUMMER_US), array, binary(SUMMER_US)].concat());
    assert_eq!(
        client.rows("SELECT array_agg(at ORDER BY at), row(min(at), 1) FROM z_binary WHERE at < 'infinity'"),
        [[
            "{\"2026-07-15 12:00:00+02\",\"2026-07-15 13:00:00+02\"}".to_owned(),
            "(\"2026-07-15 12:00:00+02\",1)".to_owned()
        ]]
    );
}

#[test]
fn a_cursor_shows_the_zone_of_each_fetch() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("BEGIN; DECLARE c CURSOR FOR SELECT timestamptz '2026-07-15 10:00Z' + n * interval '1 hour' FROM generate_series(0, 3) g(n)");
    assert_eq!(client.rows("FETCH c"), [["2026-07-15 10:00:00+00"]]);
    client.run("SET TIME ZONE 'Asia/Kolkata'");
    assert_eq!(client.rows("FETCH c"), [["2026-07-15 16:30:00+05:30"]]);
}

#[test]
fn copies_are_in_the_zone() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE z_copy (id INT PRIMARY KEY, at TIMESTAMPTZ, made TIMESTAMPTZ DEFAULT now())");
    client.run("SET TIME ZONE 'Europe/Berlin'");
    let copied = |data: &[u8]| [message(b'd', data), message(b'c', b"")].concat();
    for (sql, data) in [
        ("COPY z_copy (id, at) FROM STDIN", &b"1\t2026-07-15 12:00\n2\t2026-07-15 12:00Z\n"[..]),
        (
            "COPY z_copy (id, at) FROM STDIN (FORMAT csv)",
            b"3,2026-03-29 02:30\n4,\n5,\"1890-01-01 00:00 Europe/Berlin\"\n",
        ),
    ] {
        let answers = client.ask(&[query(sql), copied(data)].concat());
        assert!(error(&answers).is_none(), "{sql}: {answers:?}");
    }
    let lines = |answers: &[Answer]| {
        let data = answers.iter().filter(|(tag, _)| *tag == b'd').map(|(_, body)| body.clone());
        String::from_utf8(data.collect::<Vec<_>>().concat()).unwrap()
    };
    let out = lines(&client.ask(&query("COPY (SELECT id, at FROM z_copy WHERE id = 2) TO STDOUT")));
    assert_eq!(out, "2\t2026-07-15 14:00:00+02\n");
    let out = lines(&client.ask(&query("COPY (SELECT at, id FROM z_copy ORDER BY id) TO STDOUT (FORMAT csv)")));
    let expected = "2026-07-15 12:00:00+02,1\n2026-07-15 14:00:00+02,2\n2026-03-29 03:30:00+02,3\n,4\n1890-01-01 00:00:00+00:53:28,5\n";
    assert_eq!(out, expected);
    assert_eq!(client.rows("SELECT count(*) FROM z_copy WHERE now() - made < interval '1 hour'"), [["5"]]);
    let answers = client
        .ask(&[query("COPY z_copy (id, at) FROM STDIN"), copied(b"6\t2026-07-15 12:00 Europe/Nowhere\n")].concat());
    assert_eq!(error(&answers).as_deref(), Some("22023"));
}
