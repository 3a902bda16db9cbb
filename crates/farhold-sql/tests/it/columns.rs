//! Tables that are kept as columns: what EXPLAIN says of them, and rows that change. `slt.rs` runs all suites on such tables.

use farhold_fabric::{Fabric, NodeId};
use farhold_testkit::memory_directory;
use farhold_txn::{CopyConfig, KeptColumns};

use crate::harness::{Client, Db, wait_until};

/// The line of the plan about the scan of a table.
fn scan(client: &Client, query: &str) -> String {
    let plan = client.rows(&format!("EXPLAIN {query}"));
    plan.into_iter().find(|line| line.contains("FarholdScan")).expect("a scan").trim().to_owned()
}

fn number(line: &str, name: &str) -> u64 {
    let rest = line.split(&format!("{name}=")).nth(1).unwrap_or_else(|| panic!("{name} in {line}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).expect("a number")
}

#[test]
fn a_scan_reads_segments_and_the_rows_behind_them() {
    let config = CopyConfig { changes_min: 300, ..CopyConfig::default() };
    for db in [Db::with_columns(config), Db::with_columns_in_memory(config, KeptColumns::All)] {
        let client = db.client();
        client.ok("CREATE TABLE t (id bigint PRIMARY KEY, name text, n int)");
        client.ok("CREATE TABLE rows (id bigint PRIMARY KEY, name text, n int) WITH (columns = 'none')");
        client.ok("INSERT INTO rows SELECT i, CASE WHEN i % 10 = 0 THEN NULL ELSE 'name ' || i % 7 END, i % 100 FROM generate_series(1, 5000) g(i)");
        client.ok("INSERT INTO t SELECT * FROM rows");
        let same = |what: &str| {
            for query in [
                "SELECT count(*), sum(n), min(name), max(id) FROM {}",
                "SELECT name, count(*), sum(id) FROM {} WHERE n < 40 GROUP BY name",
                "SELECT id FROM {} WHERE name = 'name 3' AND n IN (1, 2, 3, 50)",
                "SELECT id FROM {} WHERE name IS NULL AND id > 4000",
                "SELECT id FROM {} WHERE name LIKE 'name 1%' OR n > 97",
            ] {
                let [of_columns, of_rows] = ["t", "rows"].map(|table| client.sorted(&query.replace("{}", table)));
                assert_eq!(of_columns, of_rows, "{what}: {query}");
            }
        };
        same("after the load");
        // Merging is due: more than 300 rows have come.
        let mut merged = String::new();
        wait_until("changes are merged", || {
            merged = scan(&client, "SELECT sum(n) FROM t");
            number(&merged, "column_segments") == 1 && number(&merged, "delta_rows") == 0
        });
        assert_eq!(number(&merged, "segments_skipped"), 0);
        same("merged");
        let line = scan(&client, "SELECT sum(n) FROM t WHERE n > 1000");
        assert_eq!((number(&line, "column_segments"), number(&line, "segments_skipped")), (0, 1), "{line}");
        assert!(scan(&client, "SELECT sum(n) FROM t WHERE n < 5").contains("filter on codes"));
        for table in ["t", "rows"] {
            client.ok(&format!("UPDATE {table} SET n = n + 1000, name = repeat('x', id::int % 50) WHERE id % 100 = 1"));
            client.ok(&format!("DELETE FROM {table} WHERE id % 77 = 5"));
            client.ok(&format!("UPDATE {table} SET id = id + 100000 WHERE id % 500 = 3"));
        }
        same("changed");
        let line = scan(&client, "SELECT sum(n) FROM t");
        assert!(number(&line, "delta_rows") > 0, "{line}");
        assert!(scan(&client, "SELECT sum(n) FROM rows").contains("page_tasks="));
        // Inside a transaction's block rows are read.
        client.ok("BEGIN");
        client.ok("INSERT INTO t VALUES (-1, 'mine', 7)");
        assert_eq!(client.rows("SELECT count(*) FROM t WHERE name = 'mine'"), ["1"]);
        client.ok("ROLLBACK");
        for table in ["t", "rows"] {
            client.ok(&format!("TRUNCATE {table}"));
            client.ok(&format!("INSERT INTO {table} VALUES (1, 'one', 1)"));
        }
        same("truncated");
    }
}

/// As a node is unless it is told otherwise.
#[test]
fn a_large_table_is_kept_by_itself_without_a_journal() {
    let db = Db::with_columns_in_memory(CopyConfig::default(), KeptColumns::Auto);
    let client = db.client();
    client.ok("CREATE TABLE t (id bigint PRIMARY KEY, n int)");
    client.ok("CREATE TABLE small (id bigint PRIMARY KEY, n int)");
    client.ok("INSERT INTO t SELECT i, i % 100 FROM generate_series(1, 70000) g(i)");
    client.ok("INSERT INTO small VALUES (1, 2)");
    wait_until("segments are read", || {
        let line = scan(&client, "SELECT sum(n) FROM t");
        line.contains("column_segments=") && number(&line, "column_segments") == 2
    });
    for round in 0..20 {
        client.ok(&format!("UPDATE t SET n = n + 1000 WHERE id = {}", round * 3 + 1));
        client.ok(&format!("DELETE FROM t WHERE id = {}", 60_000 + round));
        let found = format!("{}|{}", 70_000 - round - 1, round + 1);
        assert_eq!(client.rows("SELECT count(*), count(*) FILTER (WHERE n >= 1000) FROM t"), [found]);
    }
    let line = scan(&client, "SELECT sum(n) FROM small");
    assert!(line.contains("page_tasks=") && !line.contains("no column segments"), "{line}");
    let shown = "SELECT relname, option, state FROM pg_catalog.farhold_columns ORDER BY relname";
    assert_eq!(client.rows(shown), ["small|auto|none: the table is small", "t|auto|kept"]);
}

#[test]
fn without_journals_several_nodes_read_rows() {
    let nodes = Db::cluster(2);
    let client = nodes[0].client();
    client.ok("CREATE TABLE t (id bigint PRIMARY KEY, n int) WITH (columns = 'all')");
    client.ok("INSERT INTO t VALUES (1, 2)");
    let why = "those of several nodes are made from their journals, and they have none";
    let line = scan(&client, "SELECT sum(n) FROM t");
    assert!(line.contains(&format!("no column segments: {why}")), "{line}");
    assert_eq!(client.rows("SELECT state FROM pg_catalog.farhold_columns"), [format!("none: {why}")]);
    // A small table is read by rows anyway.
    client.ok("ALTER TABLE t SET (columns = 'auto')");
    let line = scan(&client, "SELECT sum(n) FROM t");
    assert!(!line.contains("no column segments"), "{line}");
}

#[test]
fn some_columns_are_kept() {
    let db = Db::with_columns(CopyConfig { changes_min: 1, ..CopyConfig::default() });
    let client = db.client();
    client.ok("CREATE TABLE t (id bigint PRIMARY KEY, \"A, b\" text, n int, m int) WITH (columns = 'n, ID')");
    client.ok("INSERT INTO t SELECT i, 'text ' || i, i % 10, i % 7 FROM generate_series(1, 3000) g(i)");
    let reads_segments = |query: &str| {
        wait_until("segments are read", || {
            scan(&client, query).contains("column_segments=1, segments_skipped=0, delta_rows=0")
        });
    };
    let reads_rows = |query: &str, why: &str| {
        wait_until("rows are read", || {
            let line = scan(&client, query);
            line.contains("page_tasks=")
                && line.contains("no column segments: ") != why.is_empty()
                && line.contains(why)
        });
    };
    let lacks = "they lack a column that the query needs";
    reads_segments("SELECT sum(n) FROM t WHERE id > 7");
    reads_segments("SELECT count(*) FROM t");
    reads_rows("SELECT sum(m) FROM t", lacks);
    reads_rows("SELECT sum(n) FROM t WHERE m = 3 OR n = 1", lacks);
    assert_eq!(
        client.rows("SELECT sum(n), sum(m), max(\"A, b\") FROM t WHERE n = 4 AND m <> 2"),
        ["1028|816|text 994"]
    );
    assert_eq!(client.rows("SELECT count(*), sum(n) FROM t WHERE n = 4"), ["300|1200"]);
    client.ok("ALTER TABLE t SET (columns = '\"A, b\" , m')");
    reads_segments("SELECT max(\"A, b\") FROM t WHERE m = 3");
    reads_rows("SELECT sum(n) FROM t", lacks);
    assert_eq!(client.rows("SELECT count(*), max(\"A, b\") FROM t WHERE m = 3"), ["429|text 997"]);
    let shown = "SELECT relname, option, state, table_rows, segment_rows, segments, delta_rows, bytes > 10000 FROM pg_catalog.farhold_columns";
    assert_eq!(client.rows(shown), ["t|\"A, b\", m|kept|3000|3000|1|0|t"]);
    client.ok("ALTER TABLE t SET (columns = 'none')");
    reads_rows("SELECT sum(m) FROM t", "");
    assert_eq!(client.rows("SELECT option, state, bytes FROM pg_catalog.farhold_columns"), ["none|none|0"]);
    client.ok("ALTER TABLE t SET (columns = ' ALL ')");
    reads_segments("SELECT sum(m), sum(n) FROM t");
    client.ok("CREATE TABLE hidden (\"all\" int, \"Auto\" int) WITH (columns = '\"all\", \"Auto\"')");
    let option = "SELECT option FROM pg_catalog.farhold_columns WHERE relname = 'hidden'";
    assert_eq!(client.rows(option), ["\"all\", \"Auto\""]);
    client.ok("ALTER TABLE hidden SET (columns = \"Auto\", fillfactor = 50)");
    assert_eq!(client.rows(option), ["\"Auto\""]);
    for (statement, state) in [
        ("CREATE TABLE u (id bigint PRIMARY KEY) WITH (columns = 'some')", "42703"),
        ("ALTER TABLE hidden SET (columns = 'farhold_row_number')", "42703"),
        ("CREATE TABLE u (id bigint) WITH (columns = '')", "22023"),
        ("CREATE TABLE u (id bigint) WITH (columns = 'id,')", "22023"),
        ("CREATE TABLE u (id bigint) WITH (columns = 'id id')", "22023"),
        ("CREATE TABLE u (id bigint PRIMARY KEY, n int) WITH (columns = 'id, x')", "42703"),
        ("ALTER TABLE t SET (columns = 'id, x')", "42703"),
        ("CREATE TABLE u (id bigint PRIMARY KEY, n int) WITH (columns = 'id, id')", "42701"),
        ("CREATE TABLE u (id bigint PRIMARY KEY, n int) WITH (columns = 'n, \"id\", ID')", "42701"),
        ("ALTER TABLE t SET (columns = 'id, id')", "42701"),
        ("ALTER TABLE t SET (columns = 'n, m, \"n\"')", "42701"),
        ("ALTER TABLE t SET (placement = 'replicated')", "0A000"),
        ("ALTER TABLE t SET (fancy = 1)", "22023"),
        ("ALTER TABLE t SET (columns = 'id', columns = 'n')", "22023"),
        ("ALTER TABLE nothing SET (columns = 'all')", "42P01"),
    ] {
        assert_eq!(client.err(statement).state.code(), state, "{statement}");
    }
    let refused = client.err("ALTER TABLE t SET (columns = 'm, N, n')");
    assert_eq!(refused.message, "column \"n\" specified more than once");
    // A refused statement has changed nothing.
    assert_eq!(
        client.rows("SELECT relname, option FROM pg_catalog.farhold_columns WHERE relname IN ('t', 'u')"),
        ["t|all"]
    );
    reads_segments("SELECT sum(m), sum(n) FROM t");
}

/// A scan drops rows whose keys no build side has, and every join has the rows that it has without that: a key that is computed reaches no
/// scan.
#[test]
fn keys_of_joins_reach_the_scan() {
    let db = Db::with_columns(CopyConfig { changes_min: 300, ..CopyConfig::default() });
    let client = db.client();
    for (table, columns) in [("big", "all"), ("rows", "none")] {
        client.ok(&format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY, k int, d date, p numeric(12,2), s smallint) WITH (columns = '{columns}')"
        ));
        client.ok(&format!(
            "INSERT INTO {table} SELECT i, CASE WHEN i % 9 <> 0 THEN i % 3000 END, DATE '2020-01-01' + i % 700, i % 400 / 4.0, i % 500 \
             FROM generate_series(1, 20000) g(i)"
        ));
    }
    client.ok("CREATE TABLE few (id int PRIMARY KEY, k int, d date, p numeric(12,2), s smallint, word text)");
    client.ok(
        "INSERT INTO few SELECT i, CASE WHEN i % 8 <> 7 THEN i END, DATE '2020-01-01' + i, i / 4.0, i, CASE WHEN i % 500 = 7 THEN 'yes' WHEN i % 5 = 3 THEN 'some' ELSE 'no' END \
         FROM generate_series(1, 2000) g(i)",
    );
    wait_until("changes are merged", || number(&scan(&client, "SELECT sum(k) FROM big"), "delta_rows") == 0);
    let read = |table: &str, word: &str| {
        let plan = client.rows(&format!(
            "EXPLAIN ANALYZE SELECT count(*), sum(b.id) FROM {table} b JOIN few ON b.k = few.k WHERE few.word = '{word}'"
        ));
        let Some(line) = plan.iter().find(|line| line.contains(&format!("FarholdScan: table={table}"))) else {
            // No row of `few` passes, as its dictionary shows.
            assert!(plan.iter().any(|line| line.contains("EmptyExec")), "{plan:?}");
            return 0;
        };
        assert!(line.contains("keys of joins"), "{line}");
        number(line, "output_rows")
    };
    for table in ["big", "rows"] {
        let (one, none) = (read(table, "yes"), read(table, "never"));
        assert!(one < 100 && none == 0, "{table}: {one} and {none} rows");
    }
    // Too many for a list: of 3,000 keys that `big` has, bits keep 350, and bounds 2,000.
    assert!((1..=2_500).contains(&read("big", "some")), "{} rows", read("big", "some"));
    client.ok("UPDATE big SET k = k + 1 WHERE id % 50 = 3");
    client.ok("UPDATE rows SET k = k + 1 WHERE id % 50 = 3");
    for word in ["yes", "some", "no", "never"] {
        for key in ["k", "d", "p", "s"] {
            let zero = if key == "d" { "0::int" } else { "0" };
            for join in [
                "SELECT count(*), sum(b.id), sum(f.id) FROM BIG b JOIN FEW f ON KEY",
                "SELECT count(*), sum(b.id), sum(f.id) FROM BIG b LEFT JOIN FEW f ON KEY",
                "SELECT count(*), sum(b.id), sum(f.id) FROM BIG b RIGHT JOIN FEW f ON KEY",
                "SELECT count(*), sum(b.id), sum(f.id) FROM BIG b FULL JOIN FEW f ON KEY",
                "SELECT count(*), sum(b.id) FROM BIG b WHERE EXISTS (SELECT 1 FROM FEW f WHERE KEY)",
                "SELECT count(*), sum(b.id) FROM BIG b WHERE NOT EXISTS (SELECT 1 FROM FEW f WHERE KEY)",
                "SELECT count(*), sum(f.id) FROM FEW f WHERE EXISTS (SELECT 1 FROM BIG b WHERE KEY)",
                "SELECT count(*), sum(n), max(f.id) FROM FEW f JOIN (SELECT b.k, b.d, b.p, b.s, count(*) n FROM BIG b GROUP BY 1, 2, 3, 4) b ON KEY",
                "SELECT count(*), sum(b.id) FROM BIG b JOIN FEW f ON KEY JOIN BIG c ON c.id = b.id",
            ] {
                let few = format!("(SELECT * FROM few WHERE word = '{word}')");
                let query = |table: &str, condition: &str| {
                    let query = join.replace("BIG", table).replace("FEW", &few).replace("KEY", condition);
                    client.rows(&query)
                };
                let computed = query("rows", &format!("b.{key} + {zero} = f.{key}"));
                for table in ["big", "rows"] {
                    assert_eq!(query(table, &format!("b.{key} = f.{key}")), computed, "{word}, {key}, {table}: {join}");
                }
            }
            let distinct = |table: &str, condition: &str| {
                client.rows(&format!(
                    "SELECT count(*), sum(b.id) FROM {table} b JOIN (SELECT * FROM few WHERE word = '{word}') f ON {condition}"
                ))
            };
            let computed = distinct("rows", &format!("b.{key} + {zero} IS NOT DISTINCT FROM f.{key}"));
            assert_eq!(distinct("big", &format!("b.{key} IS NOT DISTINCT FROM f.{key}")), computed, "{word}, {key}");
        }
    }
}

#[test]
fn queries_read_the_columns_of_all_nodes() {
    let nodes = read_columns_of_all_nodes("shm", &["auto", "direct", "offload", "pushdown", "relaxed", "rows"]);
    the_model_is_kept_in_a_file(&nodes[0]);
}

/// What an engine has measured, the next one of its node takes from the file, unless that is damaged.
fn the_model_is_kept_in_a_file(db: &Db) {
    let planned = |client: &Client| {
        let mut line = String::new();
        wait_until("columns of other nodes are read", || {
            line = scan(client, "SELECT p FROM t");
            line.contains("access_path=")
        });
        line
    };
    let next = db.another_engine();
    assert_eq!(next.engine.warning(), None);
    let line = planned(&next.client());
    assert!(line.contains(" ms") && !line.contains("not measured yet"), "{line}");
    // Its end would write the file.
    drop(next);
    let journal = db.node.config().journal.as_ref().expect("a journal");
    let file = journal.directory.open("scan-model-0").expect("the file of the model");
    let mut byte = [0];
    file.read_at(100, &mut byte).expect("a byte");
    file.write_at(100, &[!byte[0]]).expect("room");
    let next = db.another_engine();
    let warning = next.engine.warning().expect("a warning").to_owned();
    assert!(
        warning.contains("scan-model-0") && warning.contains("damaged") && warning.contains("measured again"),
        "{warning}"
    );
    let client = next.client();
    assert!(planned(&client).contains("(predicted: not measured yet)"));
    wait_until("the paths are measured again", || planned(&client).contains(" ms"));
}

#[test]
fn queries_read_the_columns_of_all_nodes_over_a_network() {
    const PROVIDER: &str = "libfabric:tcp;ofi_rxm?timeout-ms=60000";
    if let Err(error) = Fabric::join(memory_directory(), NodeId(0), PROVIDER) {
        return farhold_testkit::skipped(&format!("columns over a network: {error}"));
    }
    let nodes = read_columns_of_all_nodes(PROVIDER, &["auto", "offload", "pushdown", "relaxed", "rows"]);
    let client = nodes[0].client();
    client.ok("SET farhold.access_path = 'direct'");
    wait_until("there are columns of another node", || client.run("SELECT sum(n) FROM t").is_err());
    let error = client.err("SELECT sum(n) FROM t");
    assert_eq!(error.state.code(), "0A000", "{error}");
    assert!(error.message.contains("the access path direct cannot be used: the memory of node"), "{error}");
    client.ok("SET farhold.access_path = 'auto'");
    client.ok("SELECT sum(n) FROM t");
    let error = client.err("SET farhold.access_path = 'fast'");
    assert_eq!(error.state.code(), "22023", "{error}");
}

/// By their zone maps, segments are skipped on all nodes: by a condition, and by the keys of a join. `t` has some 24 of them.
fn few_segments_are_read(client: &Client) {
    let of = |query: &str| {
        let line = scan(client, query);
        (number(&line, "column_segments"), number(&line, "segments_skipped"), line)
    };
    let (all, none_skipped, line) = of("SELECT n FROM t");
    assert!(all >= 1500 / 64 && none_skipped == 0, "{line}");
    let (read, skipped, line) = of("SELECT n FROM t WHERE n > 1000");
    assert_eq!((read, skipped), (0, all), "{line}");
    let join = "SELECT sum(a.n), count(*) FROM {} a JOIN rows b ON a.id = b.n + 1000000 WHERE b.id BETWEEN 20 AND 40";
    assert_eq!(client.rows(&join.replace("{}", "t")), client.rows(&join.replace("{}", "rows")));
    let analyzed = client.rows(&format!("EXPLAIN ANALYZE {}", join.replace("{}", "t")));
    let line = analyzed.iter().find(|line| line.contains("table=t")).expect("a scan");
    assert!(number(line, "far_segments_skipped") > all / 4, "{line}");
}

/// Each node reads its own columns and, by each path, those of the others. The answers are those of rows, while all nodes change both.
fn read_columns_of_all_nodes(provider: &str, paths: &[&str]) -> Vec<Db> {
    let config = CopyConfig { segment_rows: 64, changes_min: 16, changed_part: 8 };
    let nodes = Db::cluster_with_columns(provider, 3, config);
    let clients: Vec<Client> = nodes.iter().map(Db::client).collect();
    for (table, columns) in [("t", "all"), ("some", "id, n"), ("rows", "none")] {
        clients[0].ok(&format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY, name text, n int, p numeric(20,3)) WITH (columns = '{columns}')"
        ));
    }
    let mut changes = 0;
    let mut change = |statement: &str| {
        for table in ["t", "some", "rows"] {
            clients[changes % 3].ok(&statement.replace("{}", table));
        }
        changes += 1;
    };
    for first in (1..1500).step_by(100) {
        change(&format!(
            "INSERT INTO {{}} SELECT i, CASE WHEN i % 10 <> 0 THEN repeat('name ', i % 7) END, i % 100, i / 8.0 FROM generate_series({first}, {}) g(i)",
            first + 99
        ));
    }
    let same = |path: &str, clients: &[Client]| {
        for client in clients {
            client.ok(&format!("SET farhold.access_path = '{path}'"));
        }
        for query in [
            "SELECT count(*), sum(n), min(name), max(id), sum(p) FROM {}",
            "SELECT n, count(*), sum(id) FROM {} WHERE n < 40 GROUP BY n",
            "SELECT id FROM {} WHERE n IN (1, 2, 3, 50)",
            "SELECT id, name FROM {} WHERE name IS NULL AND id > 900",
            "SELECT a.id, b.n FROM {} a JOIN {} b ON a.n = b.id WHERE b.n < 5",
        ] {
            for client in clients {
                let [of_columns, of_some, of_rows] =
                    ["t", "some", "rows"].map(|table| client.sorted(&query.replace("{}", table)));
                assert_eq!(of_columns, of_rows, "{path}: {query}");
                assert_eq!(of_some, of_rows, "{path}: {query}");
            }
        }
    };
    for (number, path) in paths.iter().enumerate() {
        same(path, &clients[number % 3..=number % 3]);
    }
    // The request to scan at the home does not fit into a message.
    let numbers: Vec<String> = (0..9_000).map(|number| (number * 3).to_string()).collect();
    let count = |table: &str| format!("SELECT count(*), sum(id) FROM {table} WHERE id IN ({})", numbers.join(", "));
    clients[0].ok("SET farhold.access_path = 'pushdown'");
    assert_eq!(clients[0].rows(&count("t")), clients[0].rows(&count("rows")));
    let copying = ["offload", "pushdown", "relaxed"];
    for client in &clients {
        for path in copying {
            client.ok(&format!("SET farhold.access_path = '{path}'"));
            wait_until("columns of all nodes are read", || {
                let line = scan(client, "SELECT p FROM t");
                line.contains(&format!("access_path={path} of node "))
                    && !line.contains("page_tasks")
                    && number(&line, "column_segments") >= 1500 / 64
            });
            let analyzed = client.rows("EXPLAIN ANALYZE SELECT p FROM t");
            let shows = |word: &str| analyzed.iter().any(|line| line.contains(word));
            assert!(shows(&format!("{path}_time=")) && shows("; required; took "), "{analyzed:?}");
        }
        client.ok("SET farhold.access_path = 'rows'");
        let line = scan(client, "SELECT sum(p) FROM t");
        assert!(line.contains("no column segments: the session requires rows"), "{line}");
        client.ok("SET farhold.access_path = 'auto'");
        // All paths have been measured once a query has found columns of another node.
        wait_until("the paths are measured", || {
            let line = scan(client, "SELECT p FROM t");
            copying.iter().chain(&["rows"]).all(|path| line.contains(&format!("{path} ")) && line.contains(" ms"))
        });
        client.ok(&format!("SET farhold.access_path = '{}'", paths[1]));
        wait_until("columns of some", || scan(client, "SELECT sum(n) FROM some").contains("far_segments="));
        assert!(scan(client, "SELECT sum(p) FROM some").contains("they lack a column that the query needs"));
        for path in paths.iter().filter(|path| !["auto", "rows"].contains(*path)) {
            client.ok(&format!("SET farhold.access_path = '{path}'"));
            few_segments_are_read(client);
        }
    }
    for round in 0..6 {
        change(&format!("UPDATE {{}} SET n = n + 1, name = repeat('x', {round} * 40) WHERE id % 11 = {round}"));
        change(&format!("DELETE FROM {{}} WHERE id % 37 = {round}"));
        change(&format!("UPDATE {{}} SET id = id + 100000 WHERE id % 101 = {round}"));
        same(paths[round % paths.len()], &clients);
    }
    change("TRUNCATE {}");
    change("INSERT INTO {} VALUES (1, 'one', 1, 1), (2, 'two', 2, 2), (3, 'three', 3, 3)");
    same("auto", &clients);
    change("INSERT INTO {} SELECT i, 'name', i % 100, i / 8.0 FROM generate_series(10, 999) g(i)");
    drop(clients);
    nodes
}
