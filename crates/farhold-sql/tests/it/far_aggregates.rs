//! Aggregates without groups that other nodes compute of their columns: their answers are those of every other access path, and of rows.

use farhold_txn::CopyConfig;
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::harness::{Client, Db, wait_until};

const COLUMNS: &str = "id bigint PRIMARY KEY, s smallint, i int, b bigint, d numeric(20,3), h numeric(31,2), w numeric(38,5), \
                       r real, f double precision, g double precision, day date, at timestamp, t text, v varchar(40), c char(8), o boolean, y bytea";
const LETTERS: [char; 6] = ['a', 'á', 'b', 'z', ' ', '\u{1F600}'];
/// Other access paths than `pushdown`.
const OTHERS: [&str; 4] = ["relaxed", "offload", "direct", "rows"];
/// Aggregates that homes compute.
const AT_HOME: [&str; 37] = [
    "count(*)", "count(s)", "count(f)", "count(t)", "count(o)", "count(y)", "count(w)", "sum(s)", "sum(i)", "sum(b)",
    "sum(d)", "sum(h)", "sum(r)", "sum(f)", "sum(g)", "avg(s)", "avg(i)", "avg(b)", "avg(d)", "avg(h)", "avg(f)",
    "avg(g)", "min(s)", "max(i)", "min(b)", "max(d)", "min(w)", "max(r)", "min(f)", "max(f)", "min(g)", "max(g)",
    "min(day)", "max(at)", "min(t)", "max(v)", "min(y)",
];
/// Aggregates that they do not.
const NOT_AT_HOME: [&str; 6] = [
    "sum(w)",
    "count(DISTINCT s)",
    "sum(i + 1)",
    "max(length(t))",
    "count(*) FILTER (WHERE i > 0)",
    "string_agg(c, ',' ORDER BY id)",
];

/// A value of each column but the first, NULL now and then.
fn row(random: &mut Rng, id: i64) -> String {
    fn some(random: &mut Rng, value: impl FnOnce(&mut Rng) -> String) -> String {
        if random.u8(..8) == 0 { "NULL".to_owned() } else { value(random) }
    }
    fn pick(random: &mut Rng, of: &[&str]) -> String {
        of[random.usize(..of.len())].to_owned()
    }
    let quarters = |random: &mut Rng| format!("{}", f64::from(random.i32(-4000..4000)) / 4.0);
    let decimal = |random: &mut Rng, digits: usize, scale: usize| {
        let sign = if random.bool() { "-" } else { "" };
        let digits: String = (0..random.usize(1..=digits - scale)).map(|_| random.digit(10)).collect();
        format!("{sign}{digits}.{}", random.u32(..10u32.pow(scale as u32)))
    };
    let text = |random: &mut Rng| {
        let length = random.usize(..30);
        let letters: String = (0..length).map(|_| LETTERS[random.usize(..LETTERS.len())]).collect();
        format!("'{}'", letters.trim_end())
    };
    let values = [
        some(random, |r| if r.u8(..9) == 0 { pick(r, &["-32768", "32767"]) } else { r.i16(..).to_string() }),
        some(random, |r| {
            if r.u8(..9) == 0 { pick(r, &["-2147483648", "2147483647"]) } else { r.i32(-100..100).to_string() }
        }),
        some(random, |r| {
            if r.u8(..3) == 0 {
                pick(r, &["-9223372036854775808", "9223372036854775807"])
            } else {
                r.i64(..).to_string()
            }
        }),
        some(random, |r| decimal(r, 20, 3)),
        some(random, |r| decimal(r, 31, 2)),
        some(random, |r| decimal(r, 38, 5)),
        some(random, |r| if r.u8(..9) == 0 { "'-0'".to_owned() } else { quarters(r) }),
        some(random, |r| if r.u8(..9) == 0 { pick(r, &["'-0'", "0"]) } else { quarters(r) }),
        some(random, |r| if r.u8(..20) == 0 { pick(r, &["'NaN'", "'Infinity'", "'-Infinity'"]) } else { quarters(r) }),
        some(random, |r| {
            if r.u8(..20) == 0 {
                pick(r, &["'infinity'", "'-infinity'"])
            } else {
                format!("date '2020-01-01' + {}", r.i32(-9000..9000))
            }
        }),
        some(random, |r| format!("timestamp '2020-01-01 00:00:00' + interval '{} seconds'", r.i32(..))),
        some(random, text),
        some(random, text),
        some(random, |r| pick(r, &["'a'", "'b  '", "''", "'abcdefgh'"])),
        some(random, |r| r.bool().to_string()),
        some(random, |r| pick(r, &[r"'\x'", r"'\x00ff'", r"'\x00'", r"'\xff00ff'"])),
    ];
    format!("({id}, {})", values.join(", "))
}

fn condition(random: &mut Rng, depth: u8) -> String {
    let (small, id) = (random.i32(-110..110), random.i32(-50..1600));
    match random.u8(..if depth == 0 { 15 } else { 18 }) {
        0 => format!("id < {id}"),
        1 => format!("id BETWEEN {id} AND {}", id + 100),
        2 => format!("i > {small}"),
        3 => format!("i IN ({small}, {}, 7, NULL)", small + 1),
        4 => format!("s <= {}", small * 300),
        5 => format!("b >= {}", i64::from(small) << 56),
        6 => format!("d < {small}.5"),
        7 => format!("f <= {small}.25"),
        8 => format!("g > {small}"),
        9 => format!("day >= date '2020-01-01' + {}", small * 50),
        10 => "t LIKE 'a%'".to_owned(),
        11 => "v IS NULL".to_owned(),
        12 => "w IS NOT NULL".to_owned(),
        13 => "o".to_owned(),
        14 => "id < -1".to_owned(),
        15 => format!("({} OR {})", condition(random, depth - 1), condition(random, depth - 1)),
        _ => format!("{} AND {}", condition(random, depth - 1), condition(random, depth - 1)),
    }
}

fn forced<'a>(client: &'a Client, path: &str) -> &'a Client {
    client.ok(&format!("SET farhold.access_path = '{path}'"));
    client
}

/// The lines of a plan about scans, and about aggregates at homes.
fn plan(client: &Client, query: &str) -> (Vec<String>, Vec<String>) {
    let lines = client.rows(query);
    let of = |name: &str| lines.iter().filter(|line| line.contains(name)).cloned().collect();
    (of("FarholdScan: table=t"), of("FarholdAggregates: table=t"))
}

fn numbers(lines: &[String], name: &str) -> u64 {
    let number = |line: &String| {
        let rest = line.split(&format!("{name}=")).nth(1)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    lines.iter().filter_map(number).sum()
}

/// Three nodes with the same rows as columns and as rows.
fn cluster(random: &mut Rng) -> (Vec<Db>, Vec<Client>) {
    let config = CopyConfig { segment_rows: 64, changes_min: 16, changed_part: 8 };
    let nodes = Db::cluster_with_columns("shm", 3, config);
    let clients: Vec<Client> = nodes.iter().map(Db::client).collect();
    for (table, columns) in [("t", "all"), ("rows", "none")] {
        clients[0].ok(&format!("CREATE TABLE {table} ({COLUMNS}) WITH (columns = '{columns}')"));
    }
    for (number, first) in (0..1500).step_by(100).enumerate() {
        let rows: Vec<String> = (first..first + 100).map(|id| row(random, id)).collect();
        for table in ["t", "rows"] {
            clients[number % 3].ok(&format!("INSERT INTO {table} VALUES {}", rows.join(", ")));
        }
    }
    for client in &clients {
        forced(client, "pushdown");
        wait_until("columns of all nodes are read", || {
            let (scans, at_home) = plan(client, "EXPLAIN SELECT count(*) FROM t");
            scans.iter().all(|line| !line.contains("page_tasks")) && numbers(&at_home, "far_segments") >= 10
        });
    }
    (nodes, clients)
}

#[test]
fn aggregates_at_homes_are_those_of_every_path() {
    let random = &mut Rng::with_seed(1);
    let (_nodes, clients) = cluster(random);
    let (mut pushed, mut answered) = (0, 0);
    for round in 0..60 {
        let client = &clients[round % 3];
        if round % 4 == 3 {
            // Fewer rows than a merge takes, on all nodes: they end in segments, and the rest is in the delta.
            let (from, id) = (random.i64(..1500), 10_000 + round as i64);
            let change = match round % 12 {
                3 => format!(
                    "UPDATE {{}} SET i = 50, t = 'new' || id, f = f + 1 WHERE id BETWEEN {from} AND {}",
                    from + 5
                ),
                7 => format!("DELETE FROM {{}} WHERE id BETWEEN {from} AND {}", from + 5),
                _ => format!("INSERT INTO {{}} VALUES {}", row(random, id)),
            };
            for table in ["t", "rows"] {
                client.ok(&change.replace("{}", table));
            }
        }
        for _ in 0..4 {
            let mut aggregates: Vec<&str> =
                (0..random.usize(1..6)).map(|_| AT_HOME[random.usize(..AT_HOME.len())]).collect();
            let is_at_home = random.u8(..5) > 0;
            if !is_at_home {
                aggregates.push(NOT_AT_HOME[random.usize(..NOT_AT_HOME.len())]);
            }
            let condition = if random.u8(..5) == 0 { "true".to_owned() } else { condition(random, 2) };
            let query = format!("SELECT {} FROM t WHERE {condition}", aggregates.join(", "));
            let expected = client.run(&query.replace("FROM t", "FROM rows")).map(|answer| answer.lines());
            for path in OTHERS.iter().chain(&["pushdown"]) {
                let found = forced(client, path).run(&query).map(|answer| answer.lines());
                match (&found, &expected) {
                    (Ok(found), Ok(expected)) => {
                        assert_eq!(found, expected, "{path}, round {round}: {query}");
                        answered += 1;
                    }
                    (Err(found), Err(expected)) => assert_eq!(found.state, expected.state, "{path}: {query}"),
                    _ => panic!("{path}, round {round}: {found:?}, not {expected:?}: {query}"),
                }
            }
            let (scans, at_home) = plan(client, &format!("EXPLAIN {query}"));
            if is_at_home {
                assert_eq!(numbers(&scans, "far_segments"), 0, "{query}: {scans:?}");
                pushed += usize::from(!at_home.is_empty());
                assert!(at_home.iter().all(|line| line.contains("access_path=pushdown of node ")), "{at_home:?}");
            } else {
                assert!(at_home.is_empty(), "{query}: {at_home:?}");
            }
        }
    }
    assert!(pushed > 60 && answered > 60 * 4 * 4, "{pushed} queries, {answered} answers");
}

/// What EXPLAIN says, and plans in which some scans are split and others are not.
#[test]
fn plans_with_aggregates_at_homes() {
    let random = &mut Rng::with_seed(2);
    let (_nodes, clients) = cluster(random);
    let client = &clients[1];
    let query = "SELECT count(*), sum(i), min(t), avg(f) FROM t WHERE i > -50";
    let (scans, at_home) = plan(client, &format!("EXPLAIN {query}"));
    assert_eq!((scans.len(), at_home.len()), (1, 1), "{scans:?} {at_home:?}");
    assert!(at_home[0].contains("aggregates=[count(*), sum(i), min(t), avg(f)], far_segments="), "{at_home:?}");
    assert!(at_home[0].contains("of node 0") && at_home[0].contains("of node 2"), "{at_home:?}");
    // Homes refuse segments that they have merged meanwhile.
    wait_until("homes aggregate", || {
        let (scans, analyzed) = plan(client, &format!("EXPLAIN ANALYZE {query}"));
        assert!(analyzed[0].contains("pushdown_time="), "{analyzed:?}");
        assert!(!scans[0].contains("pushdown_time="), "{scans:?}");
        let all = numbers(&analyzed, "far_segments");
        numbers(&analyzed, "segments_at_home") == all && numbers(&analyzed, "output_rows") == all
    });
    for path in OTHERS {
        let (_, at_home) = plan(forced(client, path), &format!("EXPLAIN {query}"));
        assert!(at_home.is_empty(), "{path}: {at_home:?}");
    }
    forced(client, "pushdown");
    let (_, grouped) = plan(client, "EXPLAIN SELECT i, count(*) FROM t GROUP BY i");
    assert!(grouped.is_empty(), "{grouped:?}");
    for query in [
        "SELECT (SELECT sum(i) FROM {}), (SELECT max(i) FROM {}), (SELECT count(*) FROM {}), (SELECT count(*) FROM {})",
        "SELECT count(*), (SELECT sum(i) FROM {}) FROM {} a JOIN {} b ON a.id = b.id",
        "SELECT id FROM {} WHERE i > (SELECT avg(i) FROM {}) AND i < (SELECT max(i) FROM {}) ORDER BY id",
        "SELECT sum(i) FROM {} UNION ALL SELECT sum(i) FROM {} UNION ALL SELECT min(b) FROM {}",
        "SELECT count(*) + 1, sum(x) / 2 FROM (SELECT i AS x, t AS y FROM {} WHERE f < 100) z HAVING count(y) > 3",
        "SELECT sum(i) AS x FROM {} HAVING count(*) < 0",
        "SELECT n, sum(n) OVER () FROM (SELECT count(*) AS n FROM {}) x",
        "WITH x AS (SELECT sum(i) AS s, count(*) AS n FROM {}) SELECT a.s, b.n FROM x a, x b",
        "SELECT count(*) FROM (SELECT i FROM {} ORDER BY id LIMIT 7) x",
        "SELECT count(1), count(i), count(NULL) FROM {} WHERE id < 0",
    ] {
        assert_eq!(client.sorted(&query.replace("{}", "t")), client.sorted(&query.replace("{}", "rows")), "{query}");
    }
    // Equal subqueries are computed once, and those of other rows or other aggregates each for itself.
    let subquery = "(SELECT sum(i) AS s FROM {} WHERE i > -50)";
    for (other, is_equal) in [
        (subquery, true),
        ("(SELECT sum(i) AS s FROM {} WHERE i > -49)", false),
        ("(SELECT sum(id) AS s FROM {} WHERE i > -50)", false),
    ] {
        let query = format!("SELECT a.s, b.s FROM {subquery} a, {other} b");
        let shared = client.rows(&format!("EXPLAIN {}", query.replace("{}", "t"))).join("\n");
        assert_eq!(shared.matches("FarholdAggregates: table=t").count(), 2, "{shared}");
        assert_eq!(shared.matches("CommonExec: copies=2").count(), if is_equal { 2 } else { 0 }, "{shared}");
        assert_eq!(client.rows(&query.replace("{}", "t")), client.rows(&query.replace("{}", "rows")), "{query}");
    }
    // The request does not fit into a message, so the segments are read.
    let ids: Vec<String> = (0..9_000).map(|id| (id * 3).to_string()).collect();
    let query = |table: &str| format!("SELECT count(*), sum(i), max(t) FROM {table} WHERE id IN ({})", ids.join(", "));
    assert_eq!(client.rows(&query("t")), client.rows(&query("rows")));
    let (_, analyzed) = plan(client, &format!("EXPLAIN ANALYZE {}", query("t")));
    assert!(numbers(&analyzed, "segments_read") > 0 && numbers(&analyzed, "segments_at_home") == 0, "{analyzed:?}");
}

/// While clients of all nodes change both tables in the same transactions, each snapshot has the same aggregates of both.
#[test]
fn aggregates_while_rows_change() {
    let random = &mut Rng::with_seed(3);
    let (nodes, clients) = cluster(random);
    let stop = AtomicBool::new(false);
    let writers: Vec<(Client, u64)> = nodes.iter().zip(10..).map(|(node, seed)| (node.client(), seed)).collect();
    std::thread::scope(|scope| {
        /// Ends the writers, also if the test fails.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        for (writer, seed) in writers {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed);
                while !stop.load(SeqCst) {
                    let id = random.i64(..1500);
                    let change = match random.u8(..4) {
                        0 => format!("DELETE FROM {{}} WHERE id = {id}"),
                        1 => format!("INSERT INTO {{}} VALUES {}", row(&mut random, id)),
                        _ => format!(
                            "UPDATE {{}} SET i = {}, t = 'text {id}' WHERE id BETWEEN {id} AND {}",
                            id % 100,
                            id + 3
                        ),
                    };
                    // One that meets another is given up.
                    writer.ok("BEGIN");
                    let is_done = ["t", "rows"].iter().all(|table| writer.run(&change.replace("{}", table)).is_ok());
                    let _ = writer.run(if is_done { "COMMIT" } else { "ROLLBACK" });
                }
            });
        }
        let _stop = Stop(&stop);
        let mut at_home = 0;
        for round in 0..120 {
            let client = &clients[round % 3];
            let of = |table: &str| {
                format!(
                    "SELECT count(*) n, sum(i) s, avg(d) a, max(t) m, min(f) f, max(b) b, sum(b) x FROM {table} WHERE i > -60"
                )
            };
            let query = format!("SELECT * FROM ({}) a, ({}) b", of("t"), of("rows"));
            let found = client.rows(&query);
            let values: Vec<&str> = found[0].split('|').collect();
            let (of_columns, of_rows) = values.split_at(values.len() / 2);
            assert_eq!(of_columns, of_rows, "round {round}");
            let (_, analyzed) = plan(client, &format!("EXPLAIN ANALYZE {}", of("t")));
            at_home += numbers(&analyzed, "segments_at_home");
        }
        assert!(at_home > 120, "{at_home} segments");
    });
}
