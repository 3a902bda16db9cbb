//! A smoke test of all parts.

use std::rc::Rc;

use farhold_sql::{Output, Rows, Zone};

use crate::harness::Db;

#[test]
fn create_insert_select() {
    let db = Db::new();
    let client = db.client();
    assert_eq!(
        client.ok("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, price NUMERIC(8,2))"),
        "CREATE TABLE"
    );
    assert_eq!(client.ok("INSERT INTO t VALUES (1, 'one', 1.5), (2, 'two', NULL), (3, 'three', 3)"), "INSERT 0 3");
    assert_eq!(client.rows("SELECT * FROM t WHERE id = 2"), ["2|two|NULL"]);
    assert!(client.run("SELECT * FROM t WHERE id = 2").unwrap().direct);
    assert_eq!(client.rows("SELECT id, price FROM t ORDER BY name"), ["1|1.50", "3|3.00", "2|NULL"]);
    assert_eq!(client.rows("SELECT count(*), sum(price) FROM t"), ["3|4.50"]);
    assert_eq!(client.ok("UPDATE t SET price = price + 1 WHERE id = 1"), "UPDATE 1");
    assert_eq!(client.ok("DELETE FROM t WHERE id IN (SELECT id FROM t WHERE price IS NULL)"), "DELETE 1");
    assert_eq!(client.rows("SELECT id, price FROM t ORDER BY id"), ["1|2.50", "3|3.00"]);
    client.ok("BEGIN");
    client.ok("INSERT INTO t VALUES (4, 'four', 4)");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["3"]);
    client.ok("ROLLBACK");
    assert_eq!(client.rows("SELECT count(*) FROM t"), ["2"]);
    drop(client);
    let client = db.reopen().client();
    assert_eq!(client.rows("SELECT id, name, price FROM t ORDER BY id"), ["1|one|2.50", "3|three|3.00"]);
}

/// A query bounded only by a large LIMIT is planned once for each version of the catalog, from the tree that it keeps.
#[test]
fn a_prepared_query_of_many_rows_follows_the_catalog() {
    let db = Db::new();
    let client = db.client();
    client.ok("CREATE TABLE t (id INT PRIMARY KEY)");
    client.ok("INSERT INTO t VALUES (1), (2)");
    let other = db.client();
    client.with(move |session, runtime| {
        runtime.block_on(async {
            let prepared = session.prepare("SELECT * FROM t LIMIT 20000", &[]).await.expect("a statement");
            assert!(prepared.is_direct());
            let mut rows = async |prepared: &Rc<farhold_sql::Prepared>| {
                let output = session.execute(prepared, &[]).await?;
                let Output::Rows(Rows::Batches(mut batches)) = output else { panic!("rows of a planned query") };
                let mut count = 0;
                while let Some(rows) = batches.next_rows(Zone::UTC).await {
                    count += rows?.len();
                }
                Ok::<usize, farhold_sql::SqlError>(count)
            };
            assert_eq!(rows(&prepared).await.expect("rows"), 2);
            other.ok("INSERT INTO t VALUES (3)");
            assert_eq!(rows(&prepared).await.expect("rows"), 3);
            other.ok("CREATE TABLE u (id INT PRIMARY KEY)");
            assert_eq!(rows(&prepared).await.expect("rows"), 3);
        });
    });
}
