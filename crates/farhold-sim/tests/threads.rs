//! The same on real threads and shared memory: three nodes in one process, some threads each, with one copy of each row and with three, whose
//! histories are merged and checked; and transfers that must not make or lose money.

use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_sim::history::History;
use farhold_sim::workload::{Client, Recorder, Tables, Workload};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{HomeAgent, Node, NodeConfig, Placement, ReplicationConfig, Retry, ScanSpec, TableDef, Worker};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const NODES: u8 = 3;
const THREADS: usize = 2;
/// The machine may have much else to do.
const PATIENCE_NS: u64 = 60_000_000_000;
/// Nodes found their cluster within a part of it.
const LEASE_NS: u64 = 4_000_000_000;

/// The provider that they run over: `over_*.rs` run them again over others.
fn provider() -> &'static str {
    match env!("CARGO_CRATE_NAME") {
        "over_libfabric_shm" => "libfabric:shm?timeout-ms=60000",
        "over_libfabric_tcp" => "libfabric:tcp;ofi_rxm?timeout-ms=60000",
        _ => "shm",
    }
}

struct Cluster {
    agents: Vec<HomeAgent>,
    nodes: Vec<Arc<Node>>,
    dir: PathBuf,
}

impl Cluster {
    fn new(name: &str, replicas: u8) -> Self {
        let dir = std::env::temp_dir().join(format!("farhold-threads-{name}-{replicas}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let start = |node| {
            let fabric = Fabric::join(&dir, NodeId(node), provider()).expect("the fabric");
            let replication = ReplicationConfig { replicas, lease_ns: LEASE_NS, ..ReplicationConfig::default() };
            let config = NodeConfig {
                nodes: NODES,
                region_bytes: 32 << 20,
                request_timeout_ns: PATIENCE_NS,
                replication,
                ..NodeConfig::default()
            };
            Node::open(fabric, config).expect("a node")
        };
        let nodes: Vec<_> = (0..NODES).map(start).collect();
        let agent = |node| if replicas > 1 { HomeAgent::start_member(node, &dir) } else { HomeAgent::start(node) };
        let agents = nodes.iter().map(|node| agent(node).expect("an agent")).collect();
        while !nodes.iter().all(|node| node.is_member()) {
            std::thread::yield_now();
        }
        Self { agents, nodes, dir }
    }

    /// Runs `work` on some threads of each node, each with its own executor and worker.
    fn on_all_threads<T: Send>(&self, work: impl AsyncFn(usize, Worker) -> T + Sync) -> Vec<T> {
        let work = &work;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..usize::from(NODES) * THREADS)
                .map(|number| {
                    let node = &self.nodes[number % usize::from(NODES)];
                    scope.spawn(move || {
                        let executor = Executor::real(number as u64);
                        let worker = node.worker(&executor.handle()).expect("a worker");
                        let done = executor.run(work(number, worker.clone()));
                        assert!(executor.run(worker.drain(PATIENCE_NS)), "what transactions have left to be done");
                        done
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    /// Runs something on a worker of the first node.
    fn on_one<T>(&self, work: impl AsyncFnOnce(Worker) -> T) -> T {
        let executor = Executor::real(99);
        let worker = self.nodes[0].worker(&executor.handle()).expect("a worker");
        executor.run(work(worker))
    }

    /// Nothing is left, once the agents have served what was told without an answer.
    fn assert_quiet(&self) {
        let left = || self.nodes.iter().flat_map(|node| node.left_behind()).collect::<Vec<_>>();
        self.on_one(async |worker| {
            // Messages on the way are seconds apart only if a thread has lost its core for so long.
            for _ in 0..10_000 {
                if left().is_empty() {
                    return;
                }
                worker.handle().sleep_ns(1_000_000).await;
            }
            panic!("left behind: {:?}", left());
        });
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.agents.clear();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn merged_histories_of_threads_are_serializable() {
    for (kind, replicas) in (0..4).flat_map(|kind| [(kind, 1), (kind, 3)]) {
        let cluster = Cluster::new(&format!("history{kind}"), replicas);
        let workload = Workload::of_seed(kind);
        let clock = Arc::new(AtomicU64::new(1));
        let recorder = |number: u64| {
            Rc::new(RefCell::new(Recorder { clock: clock.clone(), last_id: number << 40, ..Recorder::default() }))
        };
        let initial = cluster.on_one(async |worker| {
            let recorder = recorder(100);
            Tables::create(&worker, &workload, &recorder).await.expect("the tables");
            recorder.take().history.initial
        });
        let recorded = cluster.on_all_threads(async |number, worker| {
            let recorder = recorder(number as u64);
            Client::new(number, &worker, &workload, recorder.clone())
                .run(if provider() == "shm" { 300 } else { 60 })
                .await;
            let Recorder { history, broken, .. } = recorder.take();
            (history.records, broken)
        });
        let mut history = History { initial, records: Vec::new() };
        for (records, broken) in recorded {
            assert_eq!(broken, Vec::<String>::new());
            history.records.extend(records);
        }
        println!("workload {kind}, {replicas} copies: {} transactions committed", history.records.len());
        history.check().unwrap_or_else(|anomaly| panic!("workload {kind}, {replicas} copies: {anomaly}"));
        cluster.assert_quiet();
    }
}

#[test]
fn transfers_between_nodes_neither_make_nor_lose_money() {
    const ACCOUNTS: i32 = 30;
    const EACH: i64 = 100;
    let cluster = Cluster::new("bank", 3);
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
                    let sum = worker.run(Retry::default(), async |txn| {
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
                    let moved = worker.run(Retry::default(), async |txn| {
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
    cluster.assert_quiet();
}
