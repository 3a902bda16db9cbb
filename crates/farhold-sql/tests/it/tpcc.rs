//! TPC-C and CH-benCHmark in SQL: the DDL creates the tables that the stored procedures use, each consistency check
//! finds a planted violation, and every analytical query returns rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use farhold_bench::measure::Counter;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan};
use farhold_bench::workload::tpcc::input::Shares;
use farhold_bench::workload::tpcc::load::Loader;
use farhold_bench::workload::tpcc::population::Population;
use farhold_bench::workload::tpcc::{Scale, check, schema, tables::Tables};
use farhold_bench::workload::{TableSpec, ch};
use farhold_fabric::Executor;

use crate::harness::{Client, Db};

const SEED: u64 = 5;
const SCALE: Scale = Scale::tiny(2);
const NOW_US: i64 = 1_767_225_600_000_000;
/// Enough for every kind of transaction to have changed rows.
const TRANSACTIONS: u64 = 2_000;

/// Tables created by SQL, filled by the loader and changed by the transaction mix.
fn database() -> (Db, Client) {
    let db = Db::new();
    let client = db.client();
    for table in schema::TABLES.iter().chain(&ch::TABLES) {
        let ddl = table.ddl();
        for statement in ddl.split(';').map(str::trim).filter(|s| !s.is_empty()) {
            client.ok(statement);
        }
    }
    let executor = Executor::real(SEED);
    let handle = executor.handle();
    let worker = db.node.worker(&handle).expect("a worker");
    executor.run(async {
        ch::load(&worker, &db.node, SEED).await.expect("CH-benCHmark's tables");
        let tables = Tables::open(&db.node).expect("the tables made by SQL are TPC-C's");
        let (population, rows) = (Population::new(SCALE, SEED, NOW_US), Counter::default());
        let mut loader = Loader { worker: &worker, tables: &tables, population, rows: &rows };
        loader.items(SCALE).await.expect("the items");
        for w_id in 1..=SCALE.warehouses {
            loader.warehouse(SCALE, w_id).await.expect("a warehouse");
        }
        let plan = Plan {
            scale: SCALE,
            shares: Shares::default(),
            load_seed: SEED,
            seed: SEED,
            worker: 0,
            warehouses: vec![1, 2],
            in_flight: 1,
            clock_start_us: NOW_US,
            survives: false,
        };
        let (counters, stop) = (Arc::<Counters>::default(), Arc::new(AtomicBool::new(false)));
        let watch = handle.spawn({
            let (handle, counters, stop) = (handle.clone(), counters.clone(), stop.clone());
            async move {
                while counters.totals().commits() < TRANSACTIONS {
                    handle.yield_now().await;
                }
                stop.store(true, Ordering::Relaxed);
            }
        });
        driver::run(&worker, &handle, &tables, &plan, &counters, &stop).await.expect("the mix");
        watch.await;
        let snapshot = worker.snapshot().await.expect("a snapshot");
        assert_eq!(check::check(&snapshot, &tables).expect("the native check"), []);
    });
    (db, client)
}

/// The consistency conditions (1 to 12) for which SQL finds violations.
fn violated(client: &Client) -> Vec<usize> {
    (1..).zip(check::SQL).filter(|(_, sql)| !client.rows(sql).is_empty()).map(|(number, _)| number).collect()
}

#[test]
fn every_condition_notices_a_planted_violation() {
    let (_db, client) = database();
    assert_eq!(violated(&client), Vec::<usize>::new(), "the mix keeps the conditions");
    let newest = "(SELECT max(no_o_id) FROM new_order WHERE no_w_id = 1 AND no_d_id = 4)";
    let plant = |statement: &str, expected: &[usize]| {
        client.ok("BEGIN");
        client.ok(statement);
        let found = violated(&client);
        client.ok("ROLLBACK");
        assert_eq!(found, expected, "{statement}");
    };
    plant("UPDATE warehouse SET w_ytd = w_ytd + 0.01 WHERE w_id = 2", &[1, 8]);
    plant("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = 2 AND d_id = 3", &[2]);
    plant("UPDATE district SET d_ytd = 0 WHERE d_w_id = 2 AND d_id = 3", &[1, 9]);
    plant(&format!("DELETE FROM new_order WHERE no_w_id = 1 AND no_d_id = 4 AND no_o_id = {newest} - 1"), &[3, 5, 11]);
    plant("UPDATE orders SET o_ol_cnt = 99 WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 7", &[4, 6]);
    plant("UPDATE orders SET o_carrier_id = NULL WHERE o_w_id = 1 AND o_d_id = 1 AND o_id = 7", &[5, 7]);
    plant("DELETE FROM order_line WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 7 AND ol_number = 1", &[4, 6]);
    plant("UPDATE order_line SET ol_delivery_d = NULL WHERE ol_w_id = 1 AND ol_d_id = 1 AND ol_o_id = 7", &[7]);
    plant("DELETE FROM history WHERE h_w_id = 1 AND h_id = 7", &[8, 9, 10]);
    plant("UPDATE customer SET c_balance = c_balance + 1 WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 3", &[10, 12]);
    plant("UPDATE customer SET c_delivery_cnt = 1000 WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 3", &[11]);
    plant("UPDATE customer SET c_ytd_payment = 0 WHERE c_w_id = 1 AND c_d_id = 2 AND c_id = 3", &[12]);
}

#[test]
fn every_analytical_query_answers() {
    let (_db, client) = database();
    // With one hundredth of the cardinalities, these queries may return no rows.
    const MAY_BE_EMPTY: [usize; 7] = [2, 3, 7, 8, 11, 20, 21];
    for (number, sql) in (1..).zip(ch::QUERIES) {
        let rows = client.rows(sql);
        assert!(!rows.is_empty() || MAY_BE_EMPTY.contains(&number), "Q{number} has no rows");
    }
    assert_eq!(client.rows("SELECT count(*) FROM supplier"), ["10000"]);
    let named = |table: &TableSpec| client.rows(&format!("SELECT count(*) FROM {}", table.name));
    assert_eq!(schema::TABLES.map(|t| named(&t).len()), [1; 9]);
}
