//! Three real processes on shared memory, copies of each row: one is killed while money moves, the others go on, it comes
//! back. With journals all of them are killed as well, and start again. What each client was told is there, and no money is made or lost.
//!
//! The test starts itself again as the nodes (`FARHOLD_NODE` names the node).

use farhold_fabric::persist::Domain;
use farhold_fabric::{Executor, Fabric, NodeId};
use farhold_store::durable::files::{Directory, Disk};
use farhold_store::durable::nvm::Nvm;
use farhold_store::row::key_of as key;
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use farhold_txn::{
    FileRegister, Generation, HomeAgent, JournalConfig, JournalThreads, Node, NodeConfig, Placement, ReplicationConfig,
    Retry, ScanSpec, Table, TableDef, Txn, TxnError, Worker,
};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const NODE: &str = "FARHOLD_NODE";
const CLUSTER: &str = "FARHOLD_CLUSTER";
/// Where the journals are, if there are any.
const JOURNAL: &str = "FARHOLD_JOURNAL";
/// The journals are written as to persistent memory; the test asserts that the directory is on such.
const NVM: &str = "FARHOLD_NVM";
const REPLICAS: &str = "FARHOLD_REPLICAS";
/// Each node has as many workers as it has rings, so there is none for a thread that helps to take over rows.
const CROWDED: &str = "FARHOLD_CROWDED";
const NODES: u8 = 3;
const ACCOUNTS: i32 = 30;
const EACH: i64 = 100;
/// Counters of the clients are rows behind the accounts: one for each start of a node.
const COUNTERS: i32 = 100;
/// One cluster at a time.
static TURN: Mutex<()> = Mutex::new(());
/// How long the test waits for anything: only a stuck cluster takes this long.
const PATIENCE: Duration = Duration::from_mins(2);

async fn add(txn: &mut Txn, table: &Table, id: i32, change: i64) -> Result<(), TxnError> {
    let balance = table.layout().i64("balance")?;
    let row = txn.get(table, &key(id)).await?.ok_or(TxnError::Conflict)?;
    let value = txn.value_mut(row);
    balance.set(value, balance.get(value) + change);
    Ok(())
}

/// Rows that no client changes. There are enough of them that a node takes over another's part in several pieces.
const BALLAST: i32 = 3_000;

async fn fill(worker: &Worker) -> Result<(), TxnError> {
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("content", ColumnType::BigInt)];
    let schema = Schema::new(columns, vec![0])?;
    let ballast =
        worker.create_table(TableDef { placement: Placement::ByInteger, ..TableDef::new("ballast", schema) }).await?;
    for first in (0..BALLAST).step_by(100) {
        worker
            .run(Retry::default(), async |txn| {
                for id in first..first + 100 {
                    let mut value = Vec::new();
                    ballast.schema().encode_value(&[Datum::Int(id), Datum::BigInt(i64::from(id))], &mut value)?;
                    txn.insert(&ballast, &key(id), &value).await?;
                }
                Ok(())
            })
            .await?;
    }
    let columns = vec![Column::new("id", ColumnType::Int), Column::new("balance", ColumnType::BigInt)];
    let schema = Schema::new(columns, vec![0])?;
    let table =
        worker.create_table(TableDef { placement: Placement::ByInteger, ..TableDef::new("account", schema) }).await?;
    worker
        .run(Retry::default(), async |txn| {
            for id in (1..=ACCOUNTS).chain(COUNTERS..COUNTERS + 10) {
                let mut value = Vec::new();
                let balance = if id < COUNTERS { EACH } else { 0 };
                table.schema().encode_value(&[Datum::Int(id), Datum::BigInt(balance)], &mut value)?;
                txn.insert(&table, &key(id), &value).await?;
            }
            Ok(())
        })
        .await
}

async fn audit(worker: &Worker, table: &Table) -> Result<String, TxnError> {
    let ballast = worker.node().table("ballast").ok_or(TxnError::Conflict)?;
    let content = ballast.layout().i64("content")?;
    let found = worker
        .run(Retry::default(), async |txn| {
            let rows = txn.scan(&ballast, ScanSpec::all()).await?;
            Ok(rows.iter().map(|row| content.get(txn.value(*row))).collect::<Vec<_>>())
        })
        .await?;
    assert!(found.iter().copied().eq(0..i64::from(BALLAST)), "{} rows of {BALLAST}, or others", found.len());
    let balance = table.layout().i64("balance")?;
    let rows = worker
        .run(Retry::default(), async |txn| {
            let rows = txn.scan(table, ScanSpec::all()).await?;
            Ok(rows.iter().map(|row| balance.get(txn.value(*row))).collect::<Vec<_>>())
        })
        .await?;
    let (accounts, counters) = rows.split_at(ACCOUNTS as usize);
    Ok(format!("audit {} {counters:?}", accounts.iter().sum::<i64>()))
}

/// Starts a node.
fn open(cluster: &Path, id: NodeId) -> (Arc<Node>, Option<JournalThreads>, HomeAgent) {
    let replicas = std::env::var(REPLICAS).map_or(3, |replicas| replicas.parse().expect("a number"));
    // The end of a process is known at once, so the lease may be long. On an overloaded machine no living process may
    // count as dead: on a third of a processor, the threads that renew leases were seen to stand still for more than a
    // second.
    let lease_ns = 3_000_000_000;
    let replication = ReplicationConfig { replicas, ring_bytes: 64 << 10, lease_ns, ..ReplicationConfig::default() };
    let directory = |path| -> std::io::Result<Arc<dyn Directory>> {
        match std::env::var_os(NVM) {
            Some(_) => Ok(Arc::new(Nvm::open(path, Domain::Assumed)?)),
            None => Ok(Arc::new(Disk::open(path)?)),
        }
    };
    let journal = std::env::var_os(JOURNAL).map(|path| JournalConfig {
        segment_bytes: 256 << 10,
        checkpoint_bytes: 512 << 10,
        ..JournalConfig::new(directory(path).expect("a directory"))
    });
    let begin = |journal| Generation::begin(journal, id, NODES, &replication).expect("a start");
    let generation = journal.as_ref().map(begin);
    let cluster = generation.as_ref().map_or(cluster.to_owned(), |it| cluster.join(it.number().to_string()));
    std::fs::create_dir_all(&cluster).expect("a directory");
    while !FileRegister::is_free(&cluster, id).expect("a register") {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let fabric = Fabric::join_shm(&cluster, id).expect("the fabric");
    let config = NodeConfig {
        nodes: NODES,
        region_bytes: 32 << 20,
        request_timeout_ns: PATIENCE.as_nanos() as u64,
        replication,
        journal,
        ..NodeConfig::default()
    };
    let node = match generation {
        Some(generation) => Node::open_durable(fabric, config, generation),
        None => Node::open(fabric, config),
    };
    let node = node.expect("a node");
    let threads = JournalThreads::start(&node).expect("threads");
    let agent = HomeAgent::start_member(&node, &cluster).expect("an agent");
    (node, threads, agent)
}

/// A node: moves money until it is told to look.
fn node(cluster: &Path, number: u8, counter: i32) {
    let (node, _threads, _agent) = open(cluster, NodeId(number));
    let (commands, asked) = channel::<String>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| commands.send(line));
    });
    let watched = node.clone();
    std::thread::spawn(move || {
        loop {
            // A run takes seconds: a process that still runs prints its state.
            std::thread::park_timeout(Duration::from_secs(30));
            eprintln!(
                "node {number}: member {}, {:?}, {:?}, {:?}",
                watched.is_member(),
                watched.configuration(),
                watched.statistics(),
                watched.left_behind()
            );
        }
    });
    let executor = Executor::real(u64::from(number));
    let worker = node.worker(&executor.handle()).expect("a worker");
    let crowd = || node.worker(&executor.handle()).expect("a worker");
    let crowd_len = std::env::var_os(CROWDED).map_or(0, |_| ReplicationConfig::default().rings);
    let _crowd: Vec<Worker> = (0..crowd_len).map(|_| crowd()).collect();
    executor.run(async {
        while !node.is_member() {
            worker.handle().sleep_ns(1_000_000).await;
        }
        println!("member");
        if counter == COUNTERS && node.table("account").is_none() {
            fill(&worker).await.expect("the accounts");
        }
        let table = loop {
            match node.table("account") {
                Some(table) => break table,
                None => worker.handle().sleep_ns(1_000_000).await,
            }
            worker.poll();
        };
        // The first start of node 0 dies with a snapshot open.
        let mut open = None;
        while counter == COUNTERS && open.is_none() {
            open = worker.snapshot().await.ok();
            worker.poll();
        }
        let (mut moved, mut paused) = (0, false);
        loop {
            match asked.try_recv().as_deref() {
                Ok("pause") => {
                    paused = true;
                    println!("moved {moved}");
                    println!("paused");
                }
                Ok("audit") => {
                    let is_snapshot = |left: &String| left.starts_with("a snapshot");
                    assert_eq!(node.left_behind().into_iter().find(is_snapshot), None, "of a process that is dead");
                    println!("{}", audit(&worker, &table).await.expect("an audit"));
                }
                Ok(_) | Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            if paused {
                worker.poll();
                worker.handle().sleep_ns(100_000).await;
                continue;
            }
            let account = || 1 + (worker.handle().random_u64() % ACCOUNTS as u64) as i32;
            let (from, to) = (account(), account());
            let done = worker
                .run(Retry { attempts_max: 20_000, ..Retry::default() }, async |txn| {
                    add(txn, &table, from, -1).await?;
                    add(txn, &table, to, 1).await?;
                    add(txn, &table, counter, 1).await
                })
                .await;
            match done {
                Ok(()) => moved += 1,
                // The table is being made on the other nodes, and then filled.
                Err(TxnError::Conflict | TxnError::SchemaChanged) if moved == 0 => {}
                // The others are killed as well, and then this one.
                Err(error) if error.is_retryable() && std::env::var_os(JOURNAL).is_some() => {}
                Err(error) => panic!("node {number}: {error}; {:?}, {:?}", node.left_behind(), node.configuration()),
            }
            if moved % 50 == 0 {
                println!("moved {moved}");
            }
            worker.poll();
        }
    });
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    moved: i64,
}

impl Process {
    fn start_with(cluster: &Path, number: u8, counter: i32, more: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "processes::a_killed_node_is_replaced_and_comes_back", "--nocapture"])
            // With one thread, as on a part of a processor, the harness would write the test's name before the first line.
            .arg("--test-threads=2")
            .env(NODE, format!("{number} {counter}"))
            .env(CLUSTER, cluster)
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let stdin = child.stdin.take().expect("piped");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let _ = out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        });
        Self { child, stdin, lines, moved: 0 }
    }

    /// Reads lines until one begins with `start`; remembers what was acknowledged.
    fn until(&mut self, start: &str) -> String {
        loop {
            let line = match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => panic!("no \"{start}\" in {PATIENCE:?}: the cluster does not get on"),
                Err(RecvTimeoutError::Disconnected) => panic!("the node has ended"),
            };
            if let Some(moved) = line.strip_prefix("moved ") {
                self.moved = moved.parse().expect("a number");
            }
            if line.starts_with(start) {
                return line;
            }
        }
    }

    /// Waits until it has moved `by` more.
    fn goes_on(&mut self, by: i64) {
        let goal = self.moved + by;
        while self.moved < goal {
            self.until("moved ");
        }
    }
}

impl Process {
    /// Kill -9; what it had acknowledged by then.
    fn kill(&mut self) -> i64 {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
        let told = self.lines.iter().filter_map(|line| line.strip_prefix("moved ")?.parse().ok()).last();
        self.moved = told.unwrap_or(self.moved);
        self.moved
    }

    /// Looks at everything: no money is made or lost, and each client's count is at least what it was told.
    fn audit(&mut self, acknowledged: &[i64]) {
        writeln!(self.stdin, "audit").expect("a pipe");
        let line = self.until("audit");
        let (sum, counters) = line["audit ".len()..].split_once(' ').expect("two parts");
        assert_eq!(sum.parse(), Ok(i64::from(ACCOUNTS) * EACH), "money was made or lost");
        let counters: Vec<i64> =
            counters.trim_matches(['[', ']']).split(", ").map(|count| count.parse().expect("a count")).collect();
        for (client, (counted, told)) in counters.iter().zip(acknowledged).enumerate() {
            assert!(*counted >= *told, "client {client} was told {told} and {counted} are there");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_killed_node_is_replaced_and_comes_back() {
    if let (Ok(task), Some(cluster)) = (std::env::var(NODE), std::env::var_os(CLUSTER)) {
        let (number, counter) = task.split_once(' ').expect("two numbers");
        return node(&PathBuf::from(cluster), number.parse().expect("a node"), counter.parse().expect("a counter"));
    }
    one_is_replaced(&[]);
}

#[test]
fn rows_are_taken_over_where_no_thread_can_help() {
    one_is_replaced(&[(CROWDED, "yes")]);
}

fn one_is_replaced(more: &[(&str, &str)]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = farhold_testkit::memory_directory();
    let start = |number: u8, counter: i32| Process::start_with(cluster.path(), number, counter, more);
    let mut nodes: Vec<Process> = (0..NODES).map(|number| start(number, COUNTERS + i32::from(number))).collect();
    for node in &mut nodes {
        node.until("member");
        node.goes_on(300);
    }
    // The epoch keeper dies.
    let dead_moved = nodes[0].kill();
    nodes[1].goes_on(1_000);
    nodes[2].goes_on(1_000);
    nodes[0] = start(0, COUNTERS + 3);
    nodes[0].until("member");
    for node in &mut nodes {
        node.goes_on(300);
    }
    for node in &mut nodes {
        writeln!(node.stdin, "pause").expect("a pipe");
        node.until("paused");
    }
    let acknowledged = [dead_moved, nodes[1].moved, nodes[2].moved, nodes[0].moved];
    for node in &mut nodes {
        node.audit(&acknowledged);
    }
}

/// With copies and journals: one node is killed, comes back or not, and then all are, in the middle of their work.
fn all_are_killed(replicas: u8, comes_back: bool, on: &[(&str, &str)]) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (cluster, journal) = (farhold_testkit::memory_directory(), tempfile::tempdir().expect("a directory"));
    let (replicas, path) = (replicas.to_string(), journal.path().display().to_string());
    let more = [&[(JOURNAL, &*path), (REPLICAS, &*replicas)], on].concat();
    let mut clients = 0;
    // Each start of a node has a counter of its own.
    let mut start = |number: u8| {
        clients += 1;
        (clients - 1, Process::start_with(cluster.path(), number, COUNTERS + clients as i32 - 1, &more))
    };
    let mut acknowledged = [0; 10];
    let mut nodes: Vec<(usize, Process)> = (0..NODES).map(&mut start).collect();
    for (_, node) in &mut nodes {
        node.until("member");
        node.goes_on(200);
    }
    let (client, node) = &mut nodes[0];
    acknowledged[*client] = node.kill();
    for (_, node) in &mut nodes[1..] {
        node.goes_on(200);
    }
    if comes_back {
        nodes[0] = start(0);
        nodes[0].1.until("member");
        for (_, node) in &mut nodes {
            node.goes_on(100);
        }
    }
    // All of them at once, whatever they are doing.
    for (_, node) in &mut nodes {
        let _ = node.child.kill();
    }
    for (client, node) in &mut nodes {
        acknowledged[*client] = acknowledged[*client].max(node.kill());
    }
    let mut again: Vec<(usize, Process)> = (0..NODES).map(&mut start).collect();
    for (_, node) in &mut again {
        node.until("member");
    }
    for (_, node) in &mut again {
        node.goes_on(100);
    }
    for (client, node) in &mut again {
        writeln!(node.stdin, "pause").expect("a pipe");
        node.until("paused");
        acknowledged[*client] = node.moved;
    }
    for (_, node) in &mut again {
        node.audit(&acknowledged);
    }
}

#[test]
fn with_journals_all_may_be_killed_after_one_was_replaced() {
    all_are_killed(2, false, &[]);
}

#[test]
fn with_journals_all_may_be_killed_after_one_has_come_back() {
    all_are_killed(3, true, &[]);
}

#[test]
fn with_journals_on_persistent_memory_all_may_be_killed() {
    all_are_killed(2, true, &[(NVM, "assumed")]);
}
