//! Parameters with a type whose value is NULL, beside values of other types. The expectations are those of PostgreSQL 15.

use crate::client::Client;
use crate::node::server;

/// A type, an expression of `$1` of this type, and its values for both rows of the table.
const CASES: &[(&str, &str, [&str; 2])] = &[
    ("timestamptz", "coalesce($1, ts)", ["2024-03-31 02:30:00-04", "0044-03-15 00:00:00-04:56:02 BC"]),
    ("timestamptz", "CASE WHEN id = 1 THEN day ELSE $1 END", ["2024-03-31 00:00:00-04", "NULL"]),
    ("timestamptz", "CASE WHEN id = 1 THEN $1 ELSE ts END", ["NULL", "0044-03-15 00:00:00-04:56:02 BC"]),
    ("timestamptz", "greatest(day, $1)", ["2024-03-31 00:00:00-04", "0044-03-15 00:00:00-04:56:02 BC"]),
    (
        "timestamptz",
        "ARRAY[ts, $1]",
        ["{\"2024-03-31 02:30:00-04\",NULL}", "{\"0044-03-15 00:00:00-04:56:02 BC\",NULL}"],
    ),
    ("timestamptz", "least($1, ts)::text", ["2024-03-31 02:30:00-04", "0044-03-15 00:00:00-04:56:02 BC"]),
    ("timestamp", "coalesce(day, $1)", ["2024-03-31 00:00:00", "0044-03-15 00:00:00 BC"]),
    ("timestamp", "coalesce($1, tz)", ["2024-07-30 22:30:00-04", "NULL"]),
    ("timestamp", "ARRAY[$1, day]", ["{NULL,\"2024-03-31 00:00:00\"}", "{NULL,\"0044-03-15 00:00:00 BC\"}"]),
    ("timestamp", "nullif(day, $1)", ["2024-03-31", "0044-03-15 BC"]),
    ("date", "coalesce($1, tz)", ["2024-07-30 22:30:00-04", "NULL"]),
    ("date", "nullif(ts, $1)", ["2024-03-31 02:30:00", "0044-03-15 00:00:00 BC"]),
    ("date", "CASE WHEN id = 1 THEN ts ELSE $1 END", ["2024-03-31 02:30:00", "NULL"]),
    ("float8", "CASE WHEN i = 1 THEN i ELSE $1 END / 4", ["0.25", "NULL"]),
    ("float8", "coalesce($1, n) / 4", ["0.9375", "0.1875"]),
    ("float8", "coalesce($1, i) / 2", ["0.5", "1.5"]),
    ("real", "(CASE WHEN id = 1 THEN n ELSE $1 END) / 4", ["0.9375", "NULL"]),
    ("real", "coalesce($1::numeric, f) / 4", ["0.5625", "0.125"]),
    ("real", "coalesce(i, $1) / 2", ["0.5", "1.5"]),
    ("numeric", "coalesce($1, r) / 4", ["0.375", "NaN"]),
    ("numeric", "coalesce($1, f) * 2", ["4.5", "1"]),
    ("numeric", "n + coalesce($1, 1)", ["4.75", "1.75"]),
    ("numeric", "coalesce($1, n)", ["3.75", "0.75"]),
];

#[test]
fn nulls_keep_their_type() {
    let server = server();
    let mut client = Client::connect(server.local_addr());
    client.run(
        "CREATE TABLE n_given (id INT PRIMARY KEY, tz TIMESTAMPTZ, ts TIMESTAMP, day DATE, r REAL, f DOUBLE PRECISION, n NUMERIC(10,2), i INT)",
    );
    client.run(
        "INSERT INTO n_given VALUES (1, '2024-07-31 02:30+00', '2024-03-31 02:30', '2024-03-31', 1.5, 2.25, 3.75, 1), \
         (2, NULL, '0044-03-15 BC', '0044-03-15 BC', 'NaN', 0.5, 0.75, 3)",
    );
    client.run("CREATE TABLE n_kept (id INT PRIMARY KEY, at TIMESTAMPTZ)");
    client.run("SET TIME ZONE 'America/New_York'");
    for (number, (of, expression, expected)) in CASES.iter().enumerate() {
        client.run(&format!(
            "PREPARE n{number}({of}) AS SELECT ({expression})::text FROM (SELECT * FROM n_given OFFSET 0) g ORDER BY id"
        ));
        let rows = client.rows(&format!("EXECUTE n{number}(NULL)"));
        assert_eq!(rows.concat(), expected, "{of}: {expression}");
    }
    client
        .run("PREPARE stored(timestamptz) AS INSERT INTO n_kept SELECT id, coalesce($1, ts) FROM n_given WHERE id = 1");
    client.run("EXECUTE stored(NULL)");
    assert_eq!(client.rows("SELECT at FROM n_kept"), [["2024-03-31 02:30:00-04"]]);
    client.run("PREPARE changed(timestamptz) AS UPDATE n_kept SET at = greatest($1, day) FROM n_given g WHERE g.id = n_kept.id");
    client.run("EXECUTE changed(NULL)");
    assert_eq!(client.rows("SELECT at FROM n_kept"), [["2024-03-31 00:00:00-04"]]);
    client.run("RESET TIME ZONE");
    assert_eq!(client.rows("SELECT at FROM n_kept"), [["2024-03-31 04:00:00+00"]]);
}
