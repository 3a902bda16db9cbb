//! Trailing blanks of parameters: whether they are significant depends on the type of the parameter and on what it is
//! compared with.

use crate::client::{Client, bind, error, execute, message, rows, sync};
use crate::node::server;

/// The values, and in `CASES` the rows that PostgreSQL 15 finds for each of them.
const VALUES: [&str; 3] = ["ab", "ab ", "ab   "];

/// A type of `$1`, a condition on it, and the rows.
const CASES: [(&str, &str, [&str; 3]); 50] = [
    ("text", "c = $1", ["1,2,4", "", ""]),
    ("text", "$1 = c", ["1,2,4", "", ""]),
    ("text", "c <> $1", ["3", "1,2,3,4", "1,2,3,4"]),
    ("text", "c IN ($1)", ["1,2,4", "", ""]),
    ("text", "c IN ($1, 'zz')", ["1,2,4", "1,2,4", "1,2,4"]),
    ("text", "c NOT IN ('zz', $1)", ["3", "3", "3"]),
    ("text", "c BETWEEN $1 AND 'abz'", ["1,2,4", "", ""]),
    ("text", "c < $1", ["", "1,2,4", "1,2,4"]),
    ("text", "c >= $1", ["1,2,3,4", "3", "3"]),
    ("text", "CASE c WHEN $1 THEN true END", ["1,2,4", "", ""]),
    ("text", "nullif(c, $1) IS NULL", ["1,2,4,5", "5", "5"]),
    ("text", "c IS DISTINCT FROM $1", ["3,5", "1,2,3,4,5", "1,2,3,4,5"]),
    ("text", "c = ANY (ARRAY[$1, 'zz'])", ["1,2,4", "", ""]),
    ("text", "(c, i) = ($1, 2)", ["2", "", ""]),
    ("text", "c = $1 AND i = 1", ["1", "", ""]),
    ("text", "i IN (1, 2, 3, 4) AND c = $1", ["1,2,4", "", ""]),
    ("text", "length($1) = 3 AND c = 'ab'", ["", "1,2,4", ""]),
    ("text", "v = $1", ["1", "2", ""]),
    ("text", "t = $1", ["1", "2", ""]),
    ("text", "t LIKE $1", ["1", "2", ""]),
    ("varchar", "c = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("varchar", "c < $1", ["", "", ""]),
    ("varchar", "v = $1", ["1", "2", ""]),
    ("varchar", "t = $1", ["1", "2", ""]),
    ("varchar", "c IN ($1, 'zz')", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "c = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "v = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "v <> $1", ["3", "3", "3"]),
    ("bpchar", "v IN ($1)", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "v IN ($1, 'zz')", ["1", "1", "1"]),
    ("bpchar", "v BETWEEN $1 AND 'abz'", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "CASE v WHEN $1 THEN true END", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "nullif(v, $1) IS NULL", ["1,2,4,5", "1,2,4,5", "1,2,4,5"]),
    ("bpchar", "v LIKE $1", ["1", "1", "1"]),
    ("bpchar", "v = $1 AND i = 1", ["1", "1", "1"]),
    ("bpchar", "i IN (1, 2, 3, 4) AND v = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("bpchar", "t = $1", ["1", "1", "1"]),
    ("bpchar", "t <> $1", ["2,3,4", "2,3,4", "2,3,4"]),
    ("bpchar", "length($1) = 3 AND t = 'ab'", ["", "", ""]),
    ("char(4)", "v = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("char(4)", "t = $1", ["1", "1", "1"]),
    ("char(4)", "t < $1", ["", "", ""]),
    ("", "c = $1", ["1,2,4", "1,2,4", "1,2,4"]),
    ("", "c IN ($1, 'zz')", ["1,2,4", "1,2,4", "1,2,4"]),
    ("", "v = $1", ["1", "2", ""]),
    ("", "t = $1", ["1", "2", ""]),
    ("", "c = $1 AND t = $1", ["1", "1", "1"]),
    ("", "greatest(c, $1) = 'ab'", ["1,2,4,5", "1,2,4,5", "1,2,4,5"]),
    ("text", "greatest(c, $1) = 'ab'", ["1,2,4,5", "1,2,4,5", "1,2,4,5"]),
    ("text", "greatest(t, $1) = 'ab'", ["1,5", "", ""]),
];

fn filled(client: &mut Client, table: &str) {
    client.run(&format!("CREATE TABLE {table} (i int PRIMARY KEY, c char(4), v varchar(4), t text)"));
    client.run(&format!("CREATE INDEX {table}_c ON {table} (c)"));
    let texts = ["ab", "ab ", "ac", "ab  "].iter().enumerate();
    let row = |(n, text): (usize, &&str)| format!("({}, '{text}', '{text}', '{text}')", n + 1);
    let values: Vec<String> = texts.map(row).collect();
    client.run(&format!("INSERT INTO {table} VALUES {}, (5, NULL, NULL, NULL)", values.join(", ")));
}

fn numbers(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>().join(",")
}

/// One statement for the direct path, and one whose additional condition requires the planner.
fn statements(table: &str, condition: &str) -> [String; 2] {
    let statement = |condition: &str| format!("SELECT i FROM {table} WHERE {condition} ORDER BY i");
    [statement(condition), statement(&format!("({condition}) AND i < (SELECT 10)"))]
}

#[test]
fn of_prepared_statements() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    filled(&mut client, "b_blanks");
    let mut wrong = Vec::new();
    for (of, condition, expected) in CASES {
        for statement in statements("b_blanks", condition) {
            let types = if of.is_empty() { String::new() } else { format!("({of})") };
            client.run(&format!("PREPARE p{types} AS {statement}"));
            for (value, expected) in VALUES.into_iter().zip(expected) {
                let found = numbers(&client.rows(&format!("EXECUTE p('{value}')")));
                if found != expected {
                    wrong.push(format!("{types} {statement}, {value:?}: {found}, not {expected}"));
                }
            }
            client.run("DEALLOCATE p");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The types as OIDs in `Parse`.
#[test]
fn of_messages() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    filled(&mut client, "b_blanks_of_messages");
    let mut wrong = Vec::new();
    for (of, condition, expected) in CASES {
        let number: u32 = match of {
            "" => 0,
            "text" => 25,
            "varchar" => 1043,
            _ => 1042,
        };
        for statement in statements("b_blanks_of_messages", condition) {
            let parse = [b"\0", statement.as_bytes(), b"\0\0\x01", number.to_be_bytes().as_slice()].concat();
            for (value, expected) in VALUES.into_iter().zip(expected) {
                let batch = [message(b'P', &parse), bind("", "", &[value]), execute("", 0), sync()].concat();
                let answers = client.ask(&batch);
                assert_eq!(error(&answers), None, "{statement}");
                let found = numbers(&rows(&answers));
                if found != expected {
                    wrong.push(format!("{number} {statement}, {value:?}: {found}, not {expected}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A statement that is bound again after a change of the catalog must keep the stated types.
#[test]
fn after_a_change_of_the_catalog() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    filled(&mut client, "b_blanks_again");
    for (n, statement) in statements("b_blanks_again", "c = $1").into_iter().enumerate() {
        client.run(&format!("PREPARE stated(text) AS {statement}"));
        client.run(&format!("PREPARE found AS {statement}"));
        client.run(&format!("CREATE TABLE b_blanks_change_{n} (i int PRIMARY KEY)"));
        assert_eq!(numbers(&client.rows("EXECUTE stated('ab ')")), "", "{statement}");
        assert_eq!(numbers(&client.rows("EXECUTE found('ab ')")), "1,2,4", "{statement}");
        client.run("DEALLOCATE ALL");
    }
    // A long statement is parsed again.
    let blanks = " ".repeat(100_000);
    client.run(&format!("PREPARE long(text) AS SELECT i {blanks} FROM b_blanks_again WHERE c = $1 ORDER BY i"));
    client.run("CREATE TABLE b_blanks_change_of_long (i int PRIMARY KEY)");
    assert_eq!(numbers(&client.rows("EXECUTE long('ab')")), "1,2,4");
}

/// The rows of VALUES have a common type, also if one has a parameter of a stated type and the next one DEFAULT or
/// NULL.
#[test]
fn in_rows_of_values() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run("CREATE TABLE b_listed (i int PRIMARY KEY, c varchar(3), t timestamp)");
    for (n, of) in ["varchar", "bpchar", "text", "char(2)"].into_iter().enumerate() {
        let (i, moment) = (2 * n, "date_trunc('day', timestamp '2023-12-31 23:59:59')");
        client.run(&format!(
            "PREPARE stated({of}) AS INSERT INTO b_listed VALUES ({i}, DEFAULT, {moment}), ({}, $1, {moment})",
            i + 1
        ));
        client.run("EXECUTE stated('ab')");
        client
            .run(&format!("PREPARE listed({of}) AS SELECT x FROM (VALUES (1, NULL), (2, $1)) AS v (i, x) WHERE i = 2"));
        assert_eq!(client.rows("EXECUTE listed('ab')").len(), 1, "{of}");
        // The numbers of the rows have several scales, so the list is split into several lists.
        client.run(&format!(
            "PREPARE scales({of}) AS VALUES (1, $1), (ceil(2.5), NULL), (CAST(NULL AS numeric(6,2)), NULL)"
        ));
        assert_eq!(client.rows("EXECUTE scales('ab')").len(), 3, "{of}");
        client.run("DEALLOCATE ALL");
    }
    assert_eq!(numbers(&client.rows("SELECT i FROM b_listed WHERE c = 'ab' ORDER BY i")), "1,3,5,7");
}
