//! COPY in and out.

use farhold_sql::TransactionState;

use crate::harness::Db;

#[test]
fn csv_in_and_out() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, s TEXT, n NUMERIC(6,2), d DATE DEFAULT '2020-01-01')");
    let data = "id,s,n\n1,plain,1.5\n2,\"quoted, \"\"so\"\"\nand on\",\n3,,2\n4,\"\",3\n";
    assert_eq!(client.copy("COPY t (id, s, n) FROM STDIN WITH (FORMAT csv, HEADER)", data).unwrap(), "COPY 4");
    assert_eq!(
        client.rows("SELECT id, s, n, d FROM t ORDER BY id"),
        [
            "1|plain|1.50|2020-01-01",
            "2|quoted, \"so\"\nand on|NULL|2020-01-01",
            "3|NULL|2.00|2020-01-01",
            "4||3.00|2020-01-01"
        ]
    );
    assert_eq!(
        client.rows("COPY (SELECT id, s, n FROM t ORDER BY id) TO STDOUT WITH (FORMAT csv, HEADER)").join("\n"),
        "id,s,n\n1,plain,1.50\n2,\"quoted, \"\"so\"\"\nand on\",\n3,,2.00\n4,\"\",3.00"
    );
    assert_eq!(client.rows("COPY t (id, s) TO STDOUT WITH (DELIMITER '|', NULL 'nothing')").len(), 4);
    assert_eq!(
        client.copy("COPY t (id, s) FROM STDIN WITH (DELIMITER '|', NULL '-')", "5|a\n6|-\n").unwrap(),
        "COPY 2"
    );
    assert_eq!(client.rows("SELECT s FROM t WHERE id = 6"), ["NULL"]);
}

/// COPY FROM restores exactly what COPY TO wrote: years BC, infinities, NaN.
#[test]
fn extremes_come_back() {
    let db = Db::new();
    let client = db.client();
    for table in ["t", "u"] {
        client.ok(&format!(
            "CREATE TABLE {table} (id INT PRIMARY KEY, d DATE, t TIMESTAMP, f DOUBLE PRECISION, b BYTEA)"
        ));
    }
    client.ok(r"INSERT INTO t VALUES
          (1, '0044-03-15 BC', '0044-03-15 12:30:00 BC', 'NaN', '\x00ff'),
          (2, 'infinity', 'infinity', 'infinity', '\x'),
          (3, '-infinity', '-infinity', '-infinity', NULL),
          (4, '9999-12-31', '4713-01-01 00:00:00 BC', '-0', '\x5c')");
    let expected = client.rows("SELECT * FROM t ORDER BY id");
    assert_eq!(expected[0], r"1|0044-03-15 BC|0044-03-15 12:30:00 BC|NaN|\x00ff");
    for format in ["text", "csv"] {
        let written = client.rows(&format!("COPY t TO STDOUT (FORMAT {format})")).join("\n");
        assert_eq!(client.copy(&format!("COPY u FROM STDIN (FORMAT {format})"), &written).unwrap(), "COPY 4");
        assert_eq!(client.rows("SELECT * FROM u ORDER BY id"), expected, "{format}");
        assert_eq!(
            client.rows("SELECT count(*) FROM t JOIN u ON t.id = u.id AND t.d = u.d AND t.t = u.t AND t.f = u.f"),
            ["4"]
        );
        client.ok("DELETE FROM u");
    }
}

/// Control characters are written as a backslash and a letter where PostgreSQL does so.
#[test]
fn control_characters_come_back() {
    let db = Db::new();
    let client = db.client();
    for table in ["t", "u"] {
        client.ok(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, s TEXT)"));
    }
    client.ok(r"INSERT INTO t VALUES (1, E'a\bb\fc\x0bd\te\nf\rg\\h'), (2, E'\\b'), (3, E'\x01\x7f\x1b')");
    let expected = client.rows("SELECT * FROM t ORDER BY id");
    let written = client.rows("COPY (SELECT * FROM t ORDER BY id) TO STDOUT").join("\n");
    assert_eq!(written, "1\ta\\bb\\fc\\vd\\te\\nf\\rg\\\\h\n2\t\\\\b\n3\t\u{1}\u{7f}\u{1b}");
    assert_eq!(client.copy("COPY u FROM STDIN", &written).unwrap(), "COPY 3");
    assert_eq!(client.rows("SELECT * FROM u ORDER BY id"), expected);
    client.ok("DELETE FROM u");
    // The unescaped characters.
    assert_eq!(client.copy("COPY u FROM STDIN", "1\ta\u{8}b\u{c}c\u{b}d\\te\\nf\\rg\\\\h\n").unwrap(), "COPY 1");
    assert_eq!(client.rows("SELECT * FROM u"), expected[..1]);
    for delimiter in ["b", "0", ".", "\\"] {
        let copy = format!("COPY t TO STDOUT (DELIMITER '{delimiter}')");
        assert_eq!(client.err(&copy).state.code(), "22023", "{delimiter}");
    }
    assert_eq!(client.rows("COPY t (id) TO STDOUT (FORMAT csv, DELIMITER 'b')").len(), 3);
}

#[test]
fn a_bad_line_takes_all_back() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL)");
    assert_eq!(client.copy("COPY t (id, id) FROM STDIN", "1\t2\n").unwrap_err().state.code(), "42701");
    for (data, state) in [
        ("1,1\n2,x\n", "22P02"),
        ("1,1\n2\n", "22P04"),
        ("1,1\n2,3,4\n", "22P04"),
        ("1,1\n1,2\n", "23505"),
        ("1,1\n2,\n", "23502"),
        ("1,1\n2,\"open\n", "22P04"),
    ] {
        let error = client.copy("COPY t FROM STDIN (FORMAT csv)", data).unwrap_err();
        assert_eq!(error.state.code(), state, "{data:?}: {error}");
        assert!(error.detail.as_ref().is_some_and(|d| d.contains("line")), "{error}");
        assert_eq!(client.rows("SELECT count(*) FROM t"), ["0"], "{data:?}");
    }
    assert_eq!(client.copy_aborted("COPY t FROM STDIN (FORMAT csv)", "1,1\n2,2\n").state.code(), "57014");
    assert_eq!(client.copy("COPY t FROM STDIN (FORMAT csv)", "1,1\n2,2").unwrap(), "COPY 2");
}

#[test]
fn in_a_block_and_in_chunks() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("BEGIN");
    client.copy("COPY t FROM STDIN", "1\n2\n").unwrap();
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["2"]);
    client.ok("ROLLBACK");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["0"]);
    client.ok("BEGIN");
    client.ok("INSERT INTO t VALUES (7)");
    client.copy("COPY t FROM STDIN", "7\n").unwrap_err();
    assert_eq!(client.state(), TransactionState::Failed);
    client.ok("ROLLBACK");
    client.ok("SET farhold.copy_chunk_rows = 10");
    let lines = (0..25).map(|n| n.to_string() + "\n").collect::<String>();
    let error = client.copy("COPY t FROM STDIN", &(lines + "oops\n")).unwrap_err();
    assert_eq!(error.hint.as_deref(), Some("The first 20 rows have been committed (farhold.copy_chunk_rows)."));
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["20"]);
}

#[test]
fn a_query_is_copied_as_it_is_written() {
    let db = Db::new();
    let client = db.client();
    let to_stdout = |query: &str| client.rows(&format!("COPY ({query}) TO STDOUT"));
    assert_eq!(to_stdout("SELECT 'a''''b'"), ["a''b"]);
    assert_eq!(to_stdout("SELECT - -1, 'header 1'"), ["1\theader 1"]);
    assert_eq!(to_stdout("SELECT header, 1 FROM (SELECT 2 AS header) AS x"), ["2\t1"]);
    assert_eq!(to_stdout("SELECT 2 freeze, 0"), ["2\t0"]);
    let with_header = client.rows("COPY (SELECT 2 header, 1 n) TO STDOUT (FORMAT csv, HEADER 1)");
    assert_eq!(with_header, ["header,n", "2,1"]);
    assert_eq!(to_stdout("SELECT '\\''', 1 + 1"), ["\\\\'\t2"]);
    assert_eq!(
        to_stdout("SELECT 'x''''y' FROM pg_catalog.pg_class WHERE relname = 'none' UNION ALL SELECT 'a''''b'"),
        ["a''b"]
    );
}

/// It is treated as a statement of its own, so that a read-only transaction rejects it.
#[test]
fn a_query_for_update_is_copied() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("INSERT INTO t VALUES (1), (2)");
    let copy = "COPY (SELECT id FROM t ORDER BY id FOR UPDATE) TO STDOUT";
    assert_eq!(client.rows(copy), ["1", "2"]);
    client.ok("BEGIN");
    assert_eq!(client.rows(copy), ["1", "2"]);
    client.ok("COMMIT");
    client.ok("BEGIN READ ONLY");
    assert_eq!(client.err(copy).state.code(), "25006");
    client.ok("ROLLBACK");
    assert_eq!(client.err("COPY (SELECT id FROM (SELECT id FROM t FOR UPDATE) AS x) TO STDOUT").state.code(), "0A000");
}

#[test]
fn lists_and_intervals_are_copied_as_they_are_sent() {
    let db = Db::new();
    let client = db.client();
    let lines = client.rows("COPY (SELECT ARRAY[1, NULL, 3], INTERVAL '1 mon 2 days') TO STDOUT");
    assert_eq!(lines, ["{1,NULL,3}\t1 mon 2 days"]);
}

/// All rows or none are one transaction, for which the journal has a limit.
#[test]
fn more_rows_than_the_journal_takes_at_once() {
    let db = Db::with_journal();
    let client = db.client();
    std::thread::scope(|scope| {
        let created = std::sync::mpsc::channel();
        let (client, told) = (&client, created.0);
        let created = created.1;
        scope.spawn(move || told.send(client.run("CREATE TABLE t (id INT PRIMARY KEY, s TEXT)").is_ok()));
        assert!(db.step_until(&created));
    });
    let rows: Vec<String> = (0..400).map(|id| format!("{id}\t{}\n", "x".repeat(100))).collect();
    let error = client.copy("COPY t FROM STDIN", &rows.concat()).expect_err("more than a quarter of a segment");
    assert_eq!(error.state.code(), "54000", "{error}");
    assert!(error.hint.as_deref().is_some_and(|hint| hint.contains("farhold.copy_chunk_rows")), "{error:?}");
}
