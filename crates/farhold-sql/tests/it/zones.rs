//! Timestamps with time zone across restarts, in COPY, and by which path they are found.

use crate::harness::Db;

#[test]
fn moments_stay_after_a_restart() {
    let db = Db::new();
    let client = db.client();
    client.ok("SET TIME ZONE 'Asia/Tokyo'");
    client.ok("CREATE TABLE t (at TIMESTAMPTZ PRIMARY KEY, seen TIMESTAMPTZ DEFAULT '2026-01-01 09:00', n INT)");
    client.ok("CREATE INDEX t_seen ON t (seen)");
    client.ok("INSERT INTO t VALUES ('2026-07-15 19:00', NULL, 1), ('infinity', '1850-01-01', 2)");
    client.ok("INSERT INTO t (at, n) VALUES ('4713-01-01 00:00+00 BC', 3)");
    drop(client);
    let client = db.reopen().client();
    let rows = ["4713-01-01 00:00:00+00 BC|2026-01-01 00:00:00+00|3", "2026-07-15 10:00:00+00|NULL|1"];
    assert_eq!(client.rows("SELECT * FROM t WHERE at < 'infinity' ORDER BY at"), rows);
    client.ok("SET TIME ZONE 'America/St_Johns'");
    client.ok("INSERT INTO t (at, n) VALUES ('2026-07-15 07:31', 4)");
    assert_eq!(client.err("INSERT INTO t (at) VALUES ('2026-07-15 12:00+02')").state.code(), "23505");
    assert_eq!(client.rows("SELECT seen FROM t WHERE n = 4"), ["2025-12-31 20:30:00-03:30"]);
    assert_eq!(client.rows("SELECT n FROM t WHERE at = '2026-07-15 07:30'"), ["1"]);
    assert_eq!(client.sorted("SELECT n FROM t WHERE seen = '2026-01-01 00:00Z'"), ["3", "4"]);
    // The local mean time of Tokyo, by that of St. John's.
    assert_eq!(client.rows("SELECT seen FROM t WHERE n = 2"), ["1849-12-31 11:10:09-03:30:52"]);
}

/// What is read and written without a planner, and what scans test in the bytes of rows.
#[test]
fn moments_are_found_by_key_and_by_scans() {
    let db = Db::new();
    let client = db.client();
    client.ok("SET TIME ZONE 'Europe/Berlin'");
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMPTZ NOT NULL, local TIMESTAMP)");
    client.ok("CREATE INDEX t_at ON t (at)");
    client.ok("INSERT INTO t SELECT n, timestamptz '2026-10-24 12:00' + n * interval '1 hour', NULL FROM generate_series(0, 47) AS s(n)");
    client.ok("UPDATE t SET local = at");
    let answer = client.run("SELECT id FROM t WHERE at = '2026-10-25 02:00'").unwrap();
    assert!(answer.direct);
    // The later of both, after the clocks are set back.
    assert_eq!(answer.lines(), ["15"]);
    assert_eq!(client.rows("SELECT id FROM t WHERE at = '2026-10-25 02:00 CEST'"), ["14"]);
    assert_eq!(client.rows("SELECT local FROM t WHERE id IN (14, 15)"), ["2026-10-25 02:00:00"; 2]);
    assert_eq!(client.rows("SELECT count(*) FROM t WHERE at::date = '2026-10-25'"), ["25"]);
    assert_eq!(client.rows("SELECT count(*) FROM t WHERE at >= '2026-10-25' AND at < '2026-10-26'"), ["25"]);
    assert_eq!(client.rows("SELECT count(*) FROM t WHERE at <> local"), ["1"]);
    assert_eq!(client.rows("SELECT count(*) FROM t a JOIN t b ON a.at = b.at"), ["48"]);
    assert_eq!(client.rows("SELECT count(*) FROM t a JOIN t b ON a.at = b.local"), ["48"]);
}

#[test]
fn copies_are_in_the_sessions_zone() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMPTZ)");
    client.ok("SET TIME ZONE 'Asia/Kolkata'");
    assert_eq!(
        client.copy("COPY t FROM STDIN", "1\t2026-07-15 15:30\n2\t2026-07-15 10:00Z\n3\t\\N\n").unwrap(),
        "COPY 3"
    );
    let csv = "4,2026-07-15 12:00 Europe/Berlin\n5,\"epoch\"\n";
    assert_eq!(client.copy("COPY t FROM STDIN WITH (FORMAT csv)", csv).unwrap(), "COPY 2");
    let copied = client.rows("COPY (SELECT id, at FROM t WHERE id IN (1, 3) ORDER BY id) TO STDOUT");
    assert_eq!(copied, ["1\t2026-07-15 15:30:00+05:30", "3\t\\N"]);
    client.ok("SET TIME ZONE 'UTC'");
    let rows = ["1|2026-07-15 10:00:00+00", "2|2026-07-15 10:00:00+00", "3|NULL", "4|2026-07-15 10:00:00+00"];
    assert_eq!(client.rows("SELECT * FROM t WHERE id < 5 ORDER BY id"), rows);
    assert_eq!(client.rows("SELECT at FROM t WHERE id = 5"), ["1970-01-01 00:00:00+00"]);
    assert_eq!(client.copy("COPY t FROM STDIN", "6\t2026-02-30\n").unwrap_err().state.code(), "22008");
}
