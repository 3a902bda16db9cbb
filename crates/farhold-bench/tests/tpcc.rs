//! TPC-C over real transactions: the population arrives whole, each transaction does what the specification says, and the
//! consistency conditions hold after many of them.

use farhold_bench::measure::Counter;
use farhold_bench::workload::ch;
use farhold_bench::workload::tpcc::driver::{self, Counters, Plan, Totals};
use farhold_bench::workload::tpcc::input::{
    Customer, Delivery, Kind, Line, NewOrder, OrderStatus, Payment, Shares, StockLevel,
};
use farhold_bench::workload::tpcc::load::{Loader, row_counts, warehouses_of};
use farhold_bench::workload::tpcc::population::{Population, TableKind};
use farhold_bench::workload::tpcc::procedure::{self, Scratch};
use farhold_bench::workload::tpcc::tables::Tables;
use farhold_bench::workload::tpcc::{Scale, check};
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_store::row::{Datum, StackKey};
use farhold_txn::{HomeAgent, Node, NodeConfig, Retry, ScanSpec, Txn, TxnError, Worker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tempfile::TempDir;

const SEED: u64 = 11;
const NOW_US: i64 = 1_767_225_600_000_000;
const MIB: u64 = 1 << 20;

/// A directory in shared memory that goes with the test.
struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(farhold_testkit::memory_directory())
    }

    fn node(&self, node: u8, nodes: u8) -> Arc<Node> {
        let fabric = Fabric::join_shm(&self.0, NodeId(node)).unwrap();
        Node::open(fabric, NodeConfig { nodes, region_bytes: 256 * MIB, ..NodeConfig::default() }).unwrap()
    }
}

async fn load(worker: &Worker, node: &Node, scale: Scale, warehouses: impl Iterator<Item = i32>) -> Tables {
    let tables = Tables::open(node).unwrap();
    let rows = Counter::default();
    let mut loader = Loader { worker, tables: &tables, population: Population::new(scale, SEED, NOW_US), rows: &rows };
    if node.id() == NodeId(0) {
        loader.items(scale).await.unwrap();
    }
    for w_id in warehouses {
        loader.warehouse(scale, w_id).await.unwrap();
    }
    tables
}

/// Runs `body` on a single node with a tiny database of two warehouses.
fn with_database(body: impl AsyncFnOnce(&Worker, &Tables)) {
    let directory = Directory::new();
    let node = directory.node(0, 1);
    let executor = Executor::real(SEED);
    let worker = node.worker(&executor.handle()).unwrap();
    executor.run(async {
        Tables::create(&worker).await.unwrap();
        let tables = load(&worker, &node, Scale::tiny(2), 1..=2).await;
        body(&worker, &tables).await;
        let violations = violations(&worker, &tables).await;
        assert!(violations.is_empty(), "{violations:?}");
    });
}

async fn violations(worker: &Worker, tables: &Tables) -> Vec<check::Violation> {
    let seen = worker.run(Retry::default(), async |txn| check::check_in(txn, tables).await).await.unwrap();
    let snapshot = worker.snapshot().await.unwrap();
    assert_eq!(check::check(&snapshot, tables).unwrap(), seen, "a snapshot and a transaction see the same");
    drop(snapshot);
    seen
}

async fn commit<T>(worker: &Worker, body: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>) -> T {
    worker.run(Retry::default(), body).await.unwrap()
}

/// One column of one row, as SQL would see it.
async fn column(worker: &Worker, tables: &Tables, kind: TableKind, key: &[u8], name: &str) -> Datum {
    let table = tables.get(kind);
    let mut row = Vec::new();
    commit(worker, async |txn| {
        let handle = txn.get(table, key).await?.expect("the row");
        table.schema().decode_row(txn.key(handle), txn.value(handle), &mut row)?;
        Ok(())
    })
    .await;
    row[table.schema().column_index(name).unwrap()].clone()
}

fn key(parts: &[i64], kind: TableKind) -> Vec<u8> {
    let key = StackKey::<16>::new().with(parts[0] as i32);
    match kind {
        TableKind::Warehouse => key,
        TableKind::District => key.with(parts[1] as i16),
        TableKind::Stock => key.with(parts[1] as i32),
        TableKind::History => key.with(parts[1]),
        TableKind::OrderLine => key.with(parts[1] as i16).with(parts[2] as i32).with(parts[3] as i16),
        _ => key.with(parts[1] as i16).with(parts[2] as i32),
    }
    .as_slice()
    .to_vec()
}

fn decimal(unscaled: i128, scale: u8) -> Datum {
    Datum::Decimal { unscaled, scale }
}

#[test]
fn the_population_arrives_whole() {
    with_database(async |worker, tables| {
        let [warehouses, districts, customers, history, new_orders, orders, lines, items, stock] =
            row_counts(worker, tables).await.unwrap();
        assert_eq!([warehouses, districts, customers, history], [2, 20, 600, 600]);
        assert_eq!([new_orders, orders, items, stock], [180, 600, 1000, 2000]);
        assert!((5_000..7_000).contains(&lines), "{lines}");
    });
}

#[test]
fn new_order_enters_an_order() {
    with_database(async |worker, tables| {
        use TableKind::{District, OrderLine, Orders, Stock};
        let mut lines = [Line::default(); 15];
        lines[0] = Line { i_id: 7, supply_w_id: 1, quantity: 3 };
        lines[1] = Line { i_id: 9, supply_w_id: 2, quantity: 10 };
        let input = NewOrder { w_id: 1, d_id: 4, c_id: 5, lines, line_count: 2 };
        let quantity =
            async |w: i64, i: i64| match column(worker, tables, Stock, &key(&[w, i], Stock), "s_quantity").await {
                Datum::SmallInt(quantity) => quantity,
                other => panic!("{other:?}"),
            };
        let before = (quantity(1, 7).await, quantity(2, 9).await);
        let mut scratch = Scratch::default();
        let ordered =
            commit(worker, async |txn| procedure::new_order(txn, tables, &input, NOW_US + 5, &mut scratch).await).await;
        assert_eq!(ordered.unwrap().o_id, 31);

        let left = |before: i16, sold: i16| if before - sold >= 10 { before - sold } else { before - sold + 91 };
        assert_eq!((quantity(1, 7).await, quantity(2, 9).await), (left(before.0, 3), left(before.1, 10)));
        let of = async |kind, parts: &[i64], name: &str| column(worker, tables, kind, &key(parts, kind), name).await;
        assert_eq!(of(District, &[1, 4], "d_next_o_id").await, Datum::Int(32));
        assert_eq!(of(Orders, &[1, 4, 31], "o_c_id").await, Datum::Int(5));
        assert_eq!(of(Orders, &[1, 4, 31], "o_entry_d").await, Datum::Timestamp(NOW_US + 5));
        assert_eq!(of(Orders, &[1, 4, 31], "o_carrier_id").await, Datum::Null);
        assert_eq!(of(Orders, &[1, 4, 31], "o_ol_cnt").await, Datum::SmallInt(2));
        assert_eq!(of(Orders, &[1, 4, 31], "o_all_local").await, Datum::SmallInt(0));
        assert_eq!(of(OrderLine, &[1, 4, 31, 2], "ol_supply_w_id").await, Datum::Int(2));
        assert_eq!(of(OrderLine, &[1, 4, 31, 2], "ol_delivery_d").await, Datum::Null);
        let Datum::Decimal { unscaled: price, .. } =
            column(worker, tables, TableKind::Item, StackKey::<4>::new().with(9).as_slice(), "i_price").await
        else {
            panic!("a price is a decimal")
        };
        assert_eq!(of(OrderLine, &[1, 4, 31, 2], "ol_amount").await, decimal(price * 10, 2));
        let dist_info = of(OrderLine, &[1, 4, 31, 2], "ol_dist_info").await;
        assert_eq!(dist_info, of(Stock, &[2, 9], "s_dist_04").await);
        for (name, local, remote) in [("s_ytd", 3, 10), ("s_order_cnt", 1, 1), ("s_remote_cnt", 0, 1)] {
            assert_eq!(of(Stock, &[1, 7], name).await, Datum::Int(local), "{name}");
            assert_eq!(of(Stock, &[2, 9], name).await, Datum::Int(remote), "{name}");
        }
    });
}

#[test]
fn new_order_with_an_unused_item_leaves_nothing() {
    with_database(async |worker, tables| {
        let mut lines = [Line { i_id: 7, supply_w_id: 1, quantity: 3 }; 15];
        lines[4].i_id = 1001;
        let input = NewOrder { w_id: 1, d_id: 4, c_id: 5, lines, line_count: 5 };
        let before = row_counts(worker, tables).await.unwrap();
        let mut txn = worker.begin();
        let ordered = procedure::new_order(&mut txn, tables, &input, NOW_US, &mut Scratch::default()).await.unwrap();
        assert_eq!(ordered, None);
        txn.abort();
        let next = column(worker, tables, TableKind::District, &key(&[1, 4], TableKind::District), "d_next_o_id").await;
        assert_eq!(next, Datum::Int(31));
        assert_eq!(row_counts(worker, tables).await.unwrap(), before);
    });
}

#[test]
fn payment_moves_money_and_marks_bad_credit() {
    with_database(async |worker, tables| {
        use TableKind::{Customer as CustomerTable, District, History, Warehouse};
        let mut scratch = Scratch::default();
        let mut seen = [false; 2];
        for c_id in 1..=30_i32 {
            let input = Payment { w_id: 1, d_id: 2, c_w_id: 2, c_d_id: 3, customer: Customer::Id(c_id), amount: 1234 };
            let h_id = 1_000_000 + i64::from(c_id);
            let data = async || {
                column(worker, tables, CustomerTable, &key(&[2, 3, i64::from(c_id)], CustomerTable), "c_data").await
            };
            let Datum::Text(before) = data().await else { panic!("text") };
            let paid =
                commit(worker, async |txn| procedure::payment(txn, tables, &input, NOW_US, h_id, &mut scratch).await)
                    .await;
            assert_eq!((paid.c_id, paid.balance), (c_id, -1000 - 1234));
            let Datum::Text(after) = data().await else { panic!("text") };
            seen[usize::from(paid.bad_credit)] = true;
            if paid.bad_credit {
                let expected: String = format!("{c_id} 3 2 2 1 1234 {before}").chars().take(500).collect();
                assert_eq!(after, expected);
            } else {
                assert_eq!(after, before);
            }
            let of =
                async |kind, parts: &[i64], name: &str| column(worker, tables, kind, &key(parts, kind), name).await;
            let paid_so_far = i128::from(c_id) * 1234;
            assert_eq!(of(Warehouse, &[1], "w_ytd").await, decimal(300_000 + paid_so_far, 2));
            assert_eq!(of(District, &[1, 2], "d_ytd").await, decimal(30_000 + paid_so_far, 2));
            assert_eq!(of(CustomerTable, &[2, 3, i64::from(c_id)], "c_ytd_payment").await, decimal(2234, 2));
            assert_eq!(of(CustomerTable, &[2, 3, i64::from(c_id)], "c_payment_cnt").await, Datum::Int(2));
            assert_eq!(of(History, &[1, h_id], "h_c_w_id").await, Datum::Int(2));
            assert_eq!(of(History, &[1, h_id], "h_d_id").await, Datum::SmallInt(2));
            let (Datum::Text(w), Datum::Text(d), Datum::Text(h)) = (
                of(Warehouse, &[1], "w_name").await,
                of(District, &[1, 2], "d_name").await,
                of(History, &[1, h_id], "h_data").await,
            ) else {
                panic!("texts")
            };
            assert_eq!(h, format!("{w}    {d}"));
        }
        assert_eq!(seen, [true; 2], "a tenth of the customers has bad credit");
    });
}

#[test]
fn customers_of_one_name_are_taken_from_the_middle() {
    with_database(async |worker, tables| {
        // Three customers of district 5 get the name of the first, and first names whose order is not theirs.
        let table = tables.get(TableKind::Customer);
        let columns = tables.columns.customer;
        let (name, len) = farhold_bench::workload::tpcc::last_name(0);
        let name = Customer::LastName(name, len as u8);
        let mut buffer = Vec::new();
        commit(worker, async |txn| {
            for (c_id, first) in [(1, "Cccccccc"), (8, "Aaaaaaaa"), (9, "Dddddddd"), (10, "Bbbbbbbb")] {
                let row = txn.get(table, &key(&[1, 5, c_id], TableKind::Customer)).await?.expect("the customer");
                columns.last.replace(txn.value(row), &[b"BARBARBAR"], &mut buffer);
                let renamed = buffer.clone();
                columns.first.replace(&renamed, &[first.as_bytes()], &mut buffer);
                txn.update(row, &buffer)?;
            }
            Ok(())
        })
        .await;
        let mut scratch = Scratch::default();
        let input = OrderStatus { w_id: 1, d_id: 5, customer: name };
        let state = commit(worker, async |txn| procedure::order_status(txn, tables, &input, &mut scratch).await).await;
        assert_eq!(state.c_id, 10, "second of four by first name");
        assert_eq!(state.balance, -1000);
    });
}

#[test]
fn order_status_finds_the_last_order_and_delivery_delivers_the_oldest() {
    with_database(async |worker, tables| {
        let mut scratch = Scratch::default();
        let mut lines = [Line::default(); 15];
        lines[0] = Line { i_id: 1, supply_w_id: 1, quantity: 2 };
        lines[1] = Line { i_id: 2, supply_w_id: 1, quantity: 1 };
        let input = NewOrder { w_id: 1, d_id: 1, c_id: 7, lines, line_count: 2 };
        commit(worker, async |txn| procedure::new_order(txn, tables, &input, NOW_US, &mut scratch).await).await;
        let status = OrderStatus { w_id: 1, d_id: 1, customer: Customer::Id(7) };
        let before =
            commit(worker, async |txn| procedure::order_status(txn, tables, &status, &mut scratch).await).await;
        assert_eq!((before.o_id, before.lines, before.lines_delivered, before.carrier_id), (31, 2, 0, None));

        // Nine initial orders of each district are open, and one more of district 1.
        let input = Delivery { w_id: 1, carrier_id: 6 };
        for round in 0..11 {
            let delivered =
                commit(worker, async |txn| procedure::delivery(txn, tables, &input, NOW_US + 9, &mut scratch).await)
                    .await;
            let expected = match round {
                0..9 => 10,
                9 => 1,
                _ => 0,
            };
            assert_eq!((delivered.orders, delivered.skipped), (expected, 10 - expected), "round {round}");
        }
        let after = commit(worker, async |txn| procedure::order_status(txn, tables, &status, &mut scratch).await).await;
        assert_eq!((after.o_id, after.lines_delivered, after.carrier_id), (31, 2, Some(6)));
        assert!(after.balance >= before.balance + after.amount && after.amount > 0);
    });
}

#[test]
fn stock_level_counts_different_items_of_the_last_orders() {
    with_database(async |worker, tables| {
        let mut scratch = Scratch::default();
        // Twenty orders of the same two items: all that count in district 9.
        let mut lines = [Line::default(); 15];
        lines[0] = Line { i_id: 11, supply_w_id: 1, quantity: 1 };
        lines[1] = Line { i_id: 12, supply_w_id: 1, quantity: 1 };
        let input = NewOrder { w_id: 1, d_id: 9, c_id: 7, lines, line_count: 2 };
        for _ in 0..20 {
            commit(worker, async |txn| procedure::new_order(txn, tables, &input, NOW_US, &mut scratch).await).await;
        }
        let columns = tables.columns.stock;
        commit(worker, async |txn| {
            let row =
                txn.get(tables.get(TableKind::Stock), &key(&[1, 11], TableKind::Stock)).await?.expect("the stock");
            columns.quantity.set(txn.value_mut(row), 14);
            let row =
                txn.get(tables.get(TableKind::Stock), &key(&[1, 12], TableKind::Stock)).await?.expect("the stock");
            columns.quantity.set(txn.value_mut(row), 15);
            Ok(())
        })
        .await;
        for (threshold, expected) in [(14, 0), (15, 1), (16, 2)] {
            let input = StockLevel { w_id: 1, d_id: 9, threshold };
            let low = commit(worker, async |txn| procedure::stock_level(txn, tables, &input, &mut scratch).await).await;
            assert_eq!(low, expected, "threshold {threshold}");
        }
    });
}

/// The mix on `nodes` nodes of this process, each with `workers` workers, until `transactions` have committed.
struct Mix {
    nodes: u8,
    workers: u32,
    in_flight: u16,
    transactions: u64,
    shares: Shares,
}

impl Mix {
    fn run(&self) {
        let scale = Scale::tiny(2 * i32::from(self.nodes));
        let directory = Directory::new();
        let nodes: Vec<Arc<Node>> = (0..self.nodes).map(|node| directory.node(node, self.nodes)).collect();
        let agents: Vec<HomeAgent> = nodes.iter().map(|node| HomeAgent::start(node).unwrap()).collect();
        let executor = Executor::real(SEED);
        let worker = nodes[0].worker(&executor.handle()).unwrap();
        executor.run(Tables::create(&worker)).unwrap();
        let tables = executor.run(load(&worker, &nodes[0], scale, warehouses_of(0, self.nodes, scale.warehouses)));
        for (number, node) in (1..).zip(&nodes[1..]) {
            let executor = Executor::real(SEED);
            let worker = node.worker(&executor.handle()).unwrap();
            executor.run(load(&worker, node, scale, warehouses_of(number, self.nodes, scale.warehouses)));
        }
        let totals = self.drive(&nodes, scale);

        assert!(totals.commits() >= self.transactions && totals.kinds.iter().all(|k| k.given_up == 0), "{totals:?}");
        assert!(totals.rollbacks() > 0);
        let share = totals.new_orders() as f64 / totals.commits() as f64;
        assert!((0.43..0.47).contains(&share), "{share}");
        let [_, _, _, history, _, orders, ..] = executor.run(row_counts(&worker, &tables)).unwrap();
        let initial = (scale.warehouses * scale.customers * 10) as u64;
        assert_eq!(orders, initial + totals.new_orders());
        assert_eq!(history, initial + totals.kinds[Kind::Payment as usize].commits);
        let violations = executor.run(violations(&worker, &tables));
        assert!(violations.is_empty(), "{violations:?}");
        drop(agents);
    }

    fn drive(&self, nodes: &[Arc<Node>], scale: Scale) -> Totals {
        let stop = Arc::new(AtomicBool::new(false));
        let counters: Vec<Arc<Counters>> = (0..u32::from(self.nodes) * self.workers).map(|_| Arc::default()).collect();
        let threads: Vec<_> = counters
            .iter()
            .zip(0..)
            .map(|(counters, number)| {
                let node = nodes[(number / self.workers) as usize].clone();
                let (counters, stop) = (counters.clone(), stop.clone());
                let plan = Plan {
                    scale,
                    shares: self.shares,
                    load_seed: SEED,
                    seed: SEED,
                    worker: number,
                    warehouses: warehouses_of(node.id().0, self.nodes, scale.warehouses).collect(),
                    in_flight: self.in_flight,
                    clock_start_us: NOW_US,
                    survives: false,
                };
                std::thread::spawn(move || {
                    let executor = Executor::real(SEED + u64::from(number));
                    let handle = executor.handle();
                    let worker = node.worker(&handle).unwrap();
                    let tables = Tables::open(&node).unwrap();
                    executor.run(driver::run(&worker, &handle, &tables, &plan, &counters, &stop)).unwrap();
                })
            })
            .collect();
        let totals = || Totals::of(counters.iter().map(AsRef::as_ref));
        while totals().commits() < self.transactions && !threads.iter().any(std::thread::JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        stop.store(true, Relaxed);
        for thread in threads {
            thread.join().unwrap();
        }
        totals()
    }
}

/// Two workers on two threads, several transactions in flight on each, over the same two warehouses so that they collide.
#[test]
fn the_mix_keeps_the_conditions() {
    let shares = Shares { remote_item_percent: 10, remote_payment_percent: 15 };
    Mix { nodes: 1, workers: 2, in_flight: 4, transactions: 20_000, shares }.run();
}

/// Half of what transactions touch lies on another node, so most of them are distributed.
#[test]
fn the_mix_keeps_the_conditions_across_nodes() {
    let shares = Shares { remote_item_percent: 20, remote_payment_percent: 60 };
    Mix { nodes: 3, workers: 1, in_flight: 4, transactions: 10_000, shares }.run();
}

/// With one worker, a seed is a run: the same transactions in the same order leave the same rows. Virtual time stands in
/// for the clock, which would otherwise be in the rows.
#[test]
fn a_seed_is_a_run() {
    let rows_after = |seed: u64| {
        let directory = Directory::new();
        let node = directory.node(0, 1);
        let executor = Executor::virtual_time(seed);
        let handle = executor.handle();
        let worker = node.worker(&handle).unwrap();
        let counters: Arc<Counters> = Arc::default();
        executor.run(async {
            Tables::create(&worker).await.unwrap();
            let tables = load(&worker, &node, Scale::tiny(2), 1..=2).await;
            let plan = Plan {
                scale: Scale::tiny(2),
                shares: Shares::default(),
                load_seed: SEED,
                seed,
                worker: 0,
                warehouses: vec![1, 2],
                in_flight: 3,
                clock_start_us: NOW_US,
                survives: false,
            };
            let stop = Arc::new(AtomicBool::new(false));
            let watch = handle.spawn({
                let (handle, stop) = (handle.clone(), stop.clone());
                async move {
                    handle.sleep_ns(100_000).await;
                    stop.store(true, Relaxed);
                }
            });
            driver::run(&worker, &handle, &tables, &plan, &counters, &stop).await.unwrap();
            watch.await;
            let rows = commit(&worker, async |txn| {
                let mut rows = Vec::new();
                for kind in [TableKind::Stock, TableKind::History, TableKind::OrderLine, TableKind::Customer] {
                    for row in txn.scan(tables.get(kind), ScanSpec::all()).await? {
                        rows.push((txn.key(row).to_vec(), txn.value(row).to_vec()));
                    }
                }
                Ok(rows)
            });
            (counters.totals().kinds.map(|k| (k.commits, k.conflicts, k.rollbacks)), rows.await)
        })
    };
    let (counts, rows) = rows_after(7);
    assert!(counts.iter().map(|c| c.0).sum::<u64>() > 100, "{counts:?}");
    assert!((counts, rows) == rows_after(7));
    assert_ne!(counts, rows_after(8).0);
}

#[test]
fn the_tables_of_ch_are_loaded() {
    let directory = Directory::new();
    let node = directory.node(0, 1);
    let executor = Executor::real(SEED);
    let worker = node.worker(&executor.handle()).unwrap();
    executor.run(async {
        ch::create(&worker).await.unwrap();
        assert_eq!(ch::load(&worker, &node, SEED).await.unwrap(), 5 + 62 + 10_000);
        let rows = worker.row_count(&node.table("supplier").unwrap()).await.unwrap();
        assert_eq!(rows, 10_000);
    });
}
