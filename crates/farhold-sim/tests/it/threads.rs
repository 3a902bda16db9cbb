//! The same on real threads and shared memory: three nodes in one process, some threads each, with one copy of each row
//! and with three. Their histories are merged and checked, and transfers must not make or lose money.

use farhold_sim::threads::{Cluster, Journals, Setup, run};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{Placement, Retry, ScanSpec, TableDef};
use std::sync::atomic::{AtomicU64, Ordering};

/// What they run over, and how many transactions each thread does there.
const PROVIDERS: &[(&str, usize)] = &[
    ("shm", 300),
    #[cfg(feature = "libfabric")]
    ("libfabric:shm?timeout-ms=60000", 60),
    #[cfg(feature = "libfabric")]
    ("libfabric:tcp;ofi_rxm?timeout-ms=60000", 60),
];

/// As many threads as a machine of tests can run, three nodes, not disturbed.
fn setup((provider, transactions): (&'static str, usize), kind: u64, replicas: u8) -> Setup {
    Setup {
        provider,
        nodes: 3,
        replicas,
        threads: 2,
        transactions,
        beside: false,
        region_bytes: 32 << 20,
        journals: Journals::None,
        shaken: false,
        ..Setup::of_seed(kind)
    }
}

/// Without a limit on attempts: the owner of a lock may be without a processor for as long as the machine is busy.
const UNTIL_DONE: Retry = Retry { attempts_max: u32::MAX, backoff_ns: 1_000, backoff_ns_max: 1_000_000 };

fn check(setup: &Setup) {
    let outcome = run(setup);
    println!("{setup:?}: {} transactions committed", outcome.history.records.len());
    outcome.check().unwrap_or_else(|anomaly| panic!("{setup:?}: {anomaly}"));
}

#[test]
fn merged_histories_of_threads_are_serializable() {
    for (provider, kind) in PROVIDERS.iter().flat_map(|provider| (0..4).map(|kind| (*provider, kind))) {
        check(&setup(provider, kind, 1));
        check(&setup(provider, kind, 3));
    }
}

/// One of each kind of load, on each kind of cluster, with tables that come and go beside them. `farhold-sim threads` runs more.
#[test]
fn histories_of_threads_that_stop_in_the_middle_of_sections_are_serializable() {
    for seed in 0..16 {
        check(&Setup::of_seed(seed));
    }
}

#[test]
fn transfers_between_nodes_neither_make_nor_lose_money() {
    for provider in PROVIDERS {
        transfers(&setup(*provider, 0, 3));
    }
}

fn transfers(setup: &Setup) {
    const ACCOUNTS: i32 = 30;
    const EACH: i64 = 100;
    let cluster = Cluster::start(setup);
    let key = |id: i32| (id.cast_unsigned() ^ 0x8000_0000).to_be_bytes();
    cluster.on_one(async |worker| {
        let columns = vec![Column::new("id", ColumnType::Int), Column::new("balance", ColumnType::BigInt)];
        let schema = Schema::new(columns, vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new("account", schema) };
        let table = worker.create_table(definition).await.expect("the table");
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(0), Datum::BigInt(EACH)], &mut value).expect("a value");
        let filled = worker.run(Retry::never(), async |txn| {
            for id in 1..=ACCOUNTS {
                txn.insert(&table, &key(id), &value).await?;
            }
            Ok(())
        });
        filled.await.expect("filled");
    });
    let transfers = AtomicU64::new(0);
    cluster.on_all_threads(async |number, worker| {
        let table = worker.node().table("account").expect("the table");
        let balance = table.layout().i64("balance").expect("a column");
        let account = || 1 + (worker.handle().random_u64() % ACCOUNTS as u64) as i32;
        for round in 0..400 {
            worker.poll();
            match (number + round) % 10 {
                // A sum in a transaction, and one over a snapshot.
                0 => {
                    let sum = worker.run(UNTIL_DONE, async |txn| {
                        let rows = txn.scan(&table, ScanSpec::all()).await?;
                        Ok(rows.iter().map(|row| balance.get(txn.value(*row))).sum::<i64>())
                    });
                    assert_eq!(sum.await, Ok(i64::from(ACCOUNTS) * EACH));
                }
                1 => {
                    let snapshot = worker.snapshot().await.expect("a snapshot");
                    let mut sum = 0;
                    for task in worker.snapshot_pages(&snapshot, &table).await.expect("pages") {
                        let add = &mut |_: &[u8], value: &[u8]| sum += balance.get(value);
                        worker.scan_page(&snapshot, &task, add).await.expect("a scan");
                    }
                    assert_eq!(sum, i64::from(ACCOUNTS) * EACH, "epoch {}", snapshot.epoch());
                }
                _ => {
                    let (from, to, amount) = (account(), account(), (round % 7) as i64);
                    let moved = worker.run(UNTIL_DONE, async |txn| {
                        for (id, change) in [(from, -amount), (to, amount)] {
                            let row = txn.get(&table, &key(id)).await?.expect("accounts stay");
                            let value = txn.value_mut(row);
                            balance.set(value, balance.get(value) + change);
                        }
                        Ok(())
                    });
                    moved.await.expect("moved");
                    transfers.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    println!("{} transfers", transfers.load(Ordering::Relaxed));
    assert_eq!(cluster.left_behind(), Vec::<String>::new());
}
