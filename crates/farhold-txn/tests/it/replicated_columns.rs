//! Columns where rows have replicas too: views show the rows of their snapshots while nodes die, are replaced and come back.

use crate::columns::{
    Held, Row, Running, Slow, Stop, accounts, change, decode, encode, rows_of_columns, rows_of_pages, table_of,
};
use crate::common::{PATIENCE_NS, new_dir};
use crate::far_columns::{ALL, Killed, rows_by, rows_of};
use farhold_fabric::{Endpoint, Executor, Fabric};
use farhold_scan::access_path;
use farhold_store::durable::files::{Directory, Disk};
use farhold_store::durable::power::Volatile;
use farhold_txn::{
    ColumnReport, CopyConfig, FileRegister, Generation, HomeAgent, JournalConfig, JournalThreads, KeptColumns,
    NoColumns, Node, NodeColumns, NodeConfig, NodeId, Placement, ReplicationConfig, Retry, Snapshot, Table,
    TableColumns, TableDef, TxnError, Worker,
};
use fastrand::Rng;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

const NODES: u8 = 3;
/// The end of a process is known at once. No living node may be taken for dead, however slow the machine is.
const LEASE_NS: u64 = 6_000_000_000;
/// A request may wait as long for a node that is killed before it answers.
const REQUEST_NS: u64 = 5_000_000_000;

/// A node with its threads, which end before it.
struct Member {
    _threads: Option<JournalThreads>,
    _agent: HomeAgent,
    node: Arc<Node>,
    /// Where it says what it does.
    cluster: PathBuf,
}

impl Member {
    fn start(place: &Path, disk: Arc<dyn Directory>, id: NodeId, replicas: u8) -> Self {
        let journal = JournalConfig { segment_bytes: 256 << 10, threads: 2, ..JournalConfig::new(disk) };
        let replication = ReplicationConfig {
            replicas,
            rings: 16,
            ring_bytes: 128 << 10,
            lease_ns: LEASE_NS,
            ..ReplicationConfig::default()
        };
        let generation = Generation::begin(&journal, id, NODES, &replication).expect("a generation");
        let cluster = place.join(generation.number().to_string());
        std::fs::create_dir_all(&cluster).expect("a directory");
        while !FileRegister::is_free(&cluster, id).expect("a register") {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        let fabric = Fabric::join_shm(&cluster, id).expect("the fabric");
        let config = NodeConfig {
            nodes: NODES,
            region_bytes: 32 << 20,
            replication,
            journal: Some(journal),
            columns: CopyConfig { segment_rows: 32, changes_min: 8, changed_part: 8 },
            columns_bytes_max: 32 << 20,
            request_timeout_ns: REQUEST_NS,
            ..NodeConfig::default()
        };
        let node = Node::open_durable(fabric, config, generation).expect("a node");
        let threads = JournalThreads::start(&node).expect("threads");
        let agent = HomeAgent::start_member(&node, &cluster).expect("an agent");
        Self { _threads: threads, _agent: agent, node, cluster }
    }
}

impl Drop for Member {
    /// The thread of far reads holds the node for a while.
    fn drop(&mut self) {
        self.node.close();
    }
}

impl Member {
    /// What it has told operators of its columns of a table.
    fn told(&self, table: &str) -> Option<TableColumns> {
        let status = FileRegister::status(&self.cluster, self.node.id())?;
        let mut report = ColumnReport::default();
        let lines = status.lines().filter_map(|line| line.split_once(' '));
        lines.for_each(|(name, value)| report.add_line(name, value));
        report.tables.into_iter().find(|columns| columns.table == table)
    }
}

/// Some nodes of a cluster in this process. Each test runs on one executor, with a worker of each.
struct Cluster {
    workers: Vec<Worker>,
    executor: Executor,
    members: Vec<Member>,
    _dir: Option<TempDir>,
}

impl Cluster {
    /// All nodes.
    fn start(disk: impl Fn(u8) -> Arc<dyn Directory>, replicas: u8) -> Self {
        let dir = new_dir();
        let members = (0..NODES).map(|id| Member::start(dir.path(), disk(id), NodeId(id), replicas)).collect();
        Self::of(members, Some(dir))
    }

    fn of(members: Vec<Member>, dir: Option<TempDir>) -> Self {
        let executor = Executor::real(1);
        let worker = |member: &Member| member.node.worker(&executor.handle()).expect("a worker");
        let workers = members.iter().map(worker).collect();
        Self { workers, executor, members, _dir: dir }
    }

    fn make_tables(&self) {
        self.executor.run(async {
            for definition in [accounts(), copied()] {
                self.table(definition).await;
            }
        });
    }

    /// Makes a table as soon as that can be.
    async fn table(&self, definition: TableDef) -> Table {
        let worker = &self.workers[0];
        until(worker, "members", || self.members.iter().all(|member| member.node.is_member())).await;
        let until_ns = worker.handle().now_ns() + PATIENCE_NS;
        loop {
            if let Some(table) = worker.node().table(&definition.name) {
                return table;
            }
            match worker.create_table(definition.clone()).await {
                Ok(table) => return table,
                Err(error) => {
                    assert!(is_passing(&error) && worker.handle().now_ns() < until_ns, "no table: {error}");
                }
            }
            worker.handle().sleep_ns(1_000_000).await;
        }
    }

    /// Waits until these nodes are all that there are, all rows have a home, and no replica is missing.
    async fn settle(&self, members: &[u8]) {
        let members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        until(&self.workers[0], "the configuration", || {
            self.members.iter().all(|member| {
                let is_it = member.node.configuration().is_some_and(|now| {
                    let is_whole = now.mirrors.iter().all(|mirror| mirror.whole);
                    now.members == members && now.joining.is_empty() && now.unserved().is_empty() && is_whole
                });
                is_it && member.node.is_member()
            })
        })
        .await;
    }

    /// A thread of each node that changes rows of all nodes, until the run is stopped.
    fn change_all<'s>(
        &'s self,
        scope: &'s std::thread::Scope<'s, '_>,
        names: &'static [&'static str],
        run: &'s Running,
    ) {
        for (member, seed) in self.members.iter().zip(2_u64..) {
            scope.spawn(move || {
                let executor = Executor::real(seed);
                let worker = member.node.worker(&executor.handle()).expect("a worker");
                executor.run(change_while(&worker, names, seed, || {
                    run.done.fetch_add(1, SeqCst);
                    !run.stop.load(SeqCst)
                }));
            });
        }
    }
}

/// May the same succeed a little later, while nodes come and go?
fn is_passing(error: &TxnError) -> bool {
    error.is_retryable() || matches!(error, TxnError::NotDurable { .. } | TxnError::OutcomeUnknown)
}

async fn until(worker: &Worker, what: &str, is_it: impl Fn() -> bool) {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    while !is_it() {
        let node = worker.node();
        assert!(
            worker.handle().now_ns() < until_ns,
            "{what}: {:?} {:?} {:?}",
            node.configuration(),
            node.progress(),
            node.columns()
        );
        worker.handle().sleep_ns(1_000_000).await;
    }
}

async fn change_while(worker: &Worker, names: &[&str], seed: u64, mut goes_on: impl FnMut() -> bool) {
    let mut random = Rng::with_seed(seed);
    while goes_on() {
        for name in names {
            let table = table_of(worker.node(), name);
            if let Err(error) = change(worker, &table, &mut random, (300, 1)).await {
                assert!(is_passing(&error), "{error}");
                worker.handle().sleep_ns(1_000_000).await;
            }
        }
    }
    assert!(worker.drain(PATIENCE_NS).await);
}

/// What a comparison of columns with pages has found.
#[derive(Debug)]
enum Looked {
    /// So many rows.
    Same(usize),
    Other,
    /// There are no columns now, or the configuration has changed meanwhile.
    NotYet,
}

fn compare(columns: &[Row], pages: &[Row]) -> Looked {
    if columns == pages { Looked::Same(pages.len()) } else { Looked::Other }
}

/// The rows of some node at a snapshot, or of all; `None` if it does not stand any more.
fn rows_at(snapshot: &Snapshot, table: &Table, home: Option<NodeId>) -> Option<Vec<Row>> {
    let passing = |error: TxnError| assert!(is_passing(&error), "{error}");
    let mut rows = Vec::new();
    let tasks = snapshot.pages(table).map_err(passing).ok()?;
    for task in tasks.iter().filter(|task| home.is_none_or(|home| task.node() == home)) {
        let mut visit = |key: &[u8], value: &[u8]| rows.push(decode(table.schema(), key, value));
        snapshot.scan_page(task, &mut visit).map_err(passing).ok()?;
    }
    rows.sort();
    Some(rows)
}

fn is_coming(reason: NoColumns) -> bool {
    matches!(reason, NoColumns::Building | NoColumns::Past(_) | NoColumns::Behind(_) | NoColumns::Changing)
}

async fn snapshot(worker: &Worker) -> Option<Arc<Snapshot>> {
    match worker.snapshot().await {
        Ok(snapshot) => Some(Arc::new(snapshot)),
        Err(error) => {
            assert!(is_passing(&error), "{error}");
            None
        }
    }
}

/// Compares a node's columns with its pages.
async fn look(worker: &Worker, name: &str) -> Looked {
    let table = table_of(worker.node(), name);
    let Some(snapshot) = snapshot(worker).await else { return Looked::NotYet };
    match worker.home_columns(&snapshot, &table).await {
        Ok(view) => {
            assert_eq!(view.epoch(), snapshot.epoch());
            let pages = rows_at(&snapshot, &table, Some(worker.node().id()));
            pages.map_or(Looked::NotYet, |pages| compare(&rows_of_columns(&view, table.schema()), &pages))
        }
        Err(reason) => {
            assert!(is_coming(reason), "{reason}");
            Looked::NotYet
        }
    }
}

/// As [`look`], once there are columns. Returns the number of rows.
async fn check(worker: &Worker, name: &str) -> usize {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        match look(worker, name).await {
            Looked::Same(rows) => return rows,
            Looked::Other => panic!("{}'s columns of {name} have other rows than its pages", worker.node().id()),
            Looked::NotYet => {}
        }
        let node = worker.node();
        assert!(worker.handle().now_ns() < until_ns, "never built: {:?} {:?}", node.columns(), node.configuration());
        worker.handle().sleep_ns(1_000_000).await;
    }
}

/// Compares the columns of all nodes, read from one of them, with the pages of all, once each node has some.
async fn check_all(worker: &Worker, endpoint: &Endpoint, name: &str) -> usize {
    let table = table_of(worker.node(), name);
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    loop {
        if let Some(snapshot) = snapshot(worker).await
            && let Some(rows) = rows_of_all(worker, endpoint, &snapshot, &table).await
            && let Some(pages) = rows_at(&snapshot, &table, None)
        {
            assert_eq!(rows, pages);
            return rows.len();
        }
        assert!(worker.handle().now_ns() < until_ns, "never built: {:?}", worker.node().columns());
        worker.handle().sleep_ns(1_000_000).await;
    }
}

async fn rows_of_all(
    worker: &Worker,
    endpoint: &Endpoint,
    snapshot: &Arc<Snapshot>,
    table: &Table,
) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    for (node, found) in worker.columns_by_node(snapshot, table).await {
        match found {
            Ok(NodeColumns::Own(view)) => rows.extend(rows_of_columns(&view, table.schema())),
            Ok(NodeColumns::Far(far)) => match rows_of(endpoint, &far, table.schema()).await {
                Ok(found) => {
                    // The thread of far reads outlives the starts of the other nodes.
                    for path in
                        ["offload", "relaxed", "pushdown"].map(|name| access_path::by_name(name).expect("a path"))
                    {
                        match rows_by(path, &far, table, &mut 0) {
                            Ok(by_path) => assert_eq!(by_path, found, "{}", path.name),
                            Err(error) => {
                                assert!(far.pin().check().is_err(), "{}: {error}", path.name);
                                return None;
                            }
                        }
                    }
                    rows.extend(found);
                }
                Err(error) => {
                    assert!(far.pin().check().is_err(), "{error}");
                    return None;
                }
            },
            Err(reason) => {
                assert!(is_coming(reason) || reason == NoColumns::Unreachable, "{node}: {reason}");
                return None;
            }
        }
    }
    rows.sort();
    Some(rows)
}

fn copied() -> TableDef {
    TableDef { name: "copied".into(), placement: Placement::Replicated, ..accounts() }
}

const BOTH: &[&str] = &["accounts", "copied"];

/// While threads of all nodes change rows of all nodes, each node's view has exactly its rows of the snapshot, and so have all views
/// together; also after the whole cluster has started again, while its nodes fill new mirrors.
#[test]
fn each_node_has_the_columns_of_its_rows() {
    for replicas in [2, 3] {
        let files = new_dir();
        let disk: Arc<dyn Directory> = Arc::new(Disk::open(files.path().join("journals")).expect("a directory"));
        for start in 0..2 {
            let cluster = Cluster::start(|_| disk.clone(), replicas);
            cluster.make_tables();
            let running = Running::default();
            std::thread::scope(|scope| {
                cluster.change_all(scope, BOTH, &running);
                let stopped = Stop(&running.stop);
                cluster.executor.run(async {
                    let reader = &cluster.workers[start];
                    let endpoint = reader.node().fabric().endpoint(reader.handle()).expect("an endpoint");
                    for _ in 0..10 {
                        let before = running.done.load(SeqCst);
                        for worker in &cluster.workers {
                            check(worker, "accounts").await;
                            check(worker, "copied").await;
                        }
                        check_all(reader, &endpoint, "accounts").await;
                        until(reader, "changes", || running.done.load(SeqCst) >= before + 5).await;
                    }
                });
                drop(stopped);
            });
            // Nothing else happens any more.
            cluster.executor.run(async {
                let mut rows = 0;
                for worker in &cluster.workers {
                    rows += check(worker, "accounts").await;
                    assert_eq!(worker.node().columns().losses, 0);
                }
                let snapshot = cluster.workers[0].snapshot().await.expect("a snapshot");
                let pages = rows_of_pages(&snapshot, &table_of(cluster.workers[0].node(), "accounts"));
                assert_eq!(rows, pages.len());
                assert!(rows > 0);
            });
        }
    }
}

/// Says in the environment where the cluster is of which this program's other process is a node, and how many replicas there are.
const PLACE: &str = "FARHOLD_TEST_COLUMNS_PLACE";
const REPLICAS: &str = "FARHOLD_TEST_COLUMNS_REPLICAS";

/// Both processes' disk.
fn disk_of(place: &Path) -> Arc<dyn Directory> {
    Arc::new(Disk::open(place.join("disk")).expect("a folder"))
}

/// What the test below starts as another process: a node that changes rows until it is killed, and compares its columns with its pages.
#[test]
fn as_another_process() {
    let (Some(place), Ok(replicas)) = (std::env::var_os(PLACE), std::env::var(REPLICAS)) else { return };
    let place = Path::new(&place);
    let member = Member::start(place, disk_of(place), NodeId(2), replicas.parse().expect("a number"));
    let executor = Executor::real(3);
    let worker = member.node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let node = &member.node;
        until(&worker, "tables", || node.is_member() && BOTH.iter().all(|name| node.table(name).is_some())).await;
        for seed in 0.. {
            let mut left = 20;
            change_while(&worker, BOTH, seed, || {
                left -= 1;
                left > 0
            })
            .await;
            println!("checked {} {}", check(&worker, "accounts").await, check(&worker, "copied").await);
        }
    });
}

/// The other process.
struct Process {
    _killed: Killed,
    lines: Receiver<String>,
}

impl Process {
    fn start(place: &Path, replicas: u8) -> Self {
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        // With one thread the harness would write the test's name before the first line.
        program.args(["replicated_columns::as_another_process", "--exact", "--nocapture", "--test-threads=2"]);
        program.env(PLACE, place).env(REPLICAS, replicas.to_string()).stdout(Stdio::piped());
        let mut child = program.spawn().expect("a process");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let _ = out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line));
        });
        Self { _killed: Killed(child), lines }
    }

    /// Waits until it has compared its columns once more, beside `meanwhile`; its rows of the tables.
    async fn checked(&self, meanwhile: &Worker) -> (usize, usize) {
        let until_ns = meanwhile.handle().now_ns() + PATIENCE_NS;
        while self.lines.try_recv().is_ok() {}
        loop {
            while let Ok(line) = self.lines.try_recv() {
                let mut words = line.strip_prefix("checked ").into_iter().flat_map(|rows| rows.split(' '));
                if let (Some(accounts), Some(copied)) = (words.next(), words.next()) {
                    return (accounts.parse().expect("a number"), copied.parse().expect("a number"));
                }
            }
            assert!(meanwhile.handle().now_ns() < until_ns, "the other process checks nothing");
            meanwhile.handle().sleep_ns(1_000_000).await;
        }
    }
}

/// A node's process is killed while all change rows. At each moment what the others show as columns is what their pages have, and so it is
/// when one of them has taken the dead node's rows over, and when the node has come back.
#[test]
fn columns_while_a_node_is_killed_and_comes_back() {
    for replicas in [2, 3] {
        let dir = new_dir();
        let place = dir.path();
        let killed = Process::start(place, replicas);
        let members = [0, 1].map(|id| Member::start(place, disk_of(place), NodeId(id), replicas)).into();
        let cluster = Cluster::of(members, None);
        cluster.make_tables();
        let running = Running::default();
        let back = std::thread::scope(|scope| {
            cluster.change_all(scope, BOTH, &running);
            let stopped = Stop(&running.stop);
            let back = cluster.executor.run(go_through_a_death(&cluster, killed, place, replicas));
            drop(stopped);
            back
        });
        // The last one that runs.
        drop((cluster, back));
    }
}

async fn go_through_a_death(cluster: &Cluster, killed: Process, place: &Path, replicas: u8) -> Process {
    let reader = &cluster.workers[0];
    let endpoint = reader.node().fabric().endpoint(reader.handle()).expect("an endpoint");
    let check_some = async |times| {
        for _ in 0..times {
            for worker in &cluster.workers {
                check(worker, "accounts").await;
                check(worker, "copied").await;
            }
            check_all(reader, &endpoint, "accounts").await;
        }
    };
    check_some(3).await;
    let (of_it, copied) = killed.checked(reader).await;
    assert!(of_it > 0 && copied > 0);
    let number = || reader.node().configuration().map_or(0, |now| now.number);
    let before = number();
    drop(killed);
    // While the others notice it and take its rows over.
    let until_ns = reader.handle().now_ns() + PATIENCE_NS;
    while !reader.node().is_member() || number() < before + 2 {
        for worker in &cluster.workers {
            for name in BOTH {
                let looked = look(worker, name).await;
                assert!(!matches!(looked, Looked::Other), "{} {name}", worker.node().id());
            }
        }
        assert!(reader.handle().now_ns() < until_ns, "{:?}", reader.node().configuration());
    }
    cluster.settle(&[0, 1]).await;
    check_some(3).await;
    let back = Process::start(place, replicas);
    for _ in 0..3 {
        let (of_it, copied) = back.checked(reader).await;
        assert!(of_it == 0 && copied > 0, "the successor serves its rows: {of_it} {copied}");
        check_some(1).await;
    }
    cluster.settle(&[0, 1, 2]).await;
    check_some(2).await;
    assert!(reader.node().columns().views > 0);
    back
}

/// Homes by number: rows 1, 4, 7 and so on are node 0's.
fn by_number(name: &str, columns: KeptColumns) -> TableDef {
    TableDef { name: name.into(), placement: Placement::ByInteger, columns, ..accounts() }
}

async fn put(worker: &Worker, name: &str, (id, amount): (i64, u64)) {
    let table = table_of(worker.node(), name);
    let (key, value) = encode(table.schema(), &(id, None, f64::to_bits(amount as f64)));
    let done = worker.run(Retry::default(), async |txn| match txn.get(&table, &key).await? {
        Some(row) => txn.update(row, &value),
        None => txn.insert(&table, &key, &value).await.map(drop),
    });
    done.await.expect("committed");
}

/// A node changes rows of another, which cannot read that for a while. Meanwhile a third node ends, so the configuration changes. The
/// followers of the new one begin behind these changes. Returns whether the columns have the rows of the pages in the end.
fn are_columns_true_after_a_change() -> bool {
    let disk = Volatile::default();
    let slow = Slow { disk: disk.clone(), prefix: "node-1.journal", hold: Arc::default() };
    let directory =
        |id| -> Arc<dyn Directory> { if id == 0 { Arc::new(slow.clone()) } else { Arc::new(disk.clone()) } };
    let mut cluster = Cluster::start(directory, 2);
    let (home, writer) = (cluster.workers[0].clone(), cluster.workers[1].clone());
    let mut found = Looked::NotYet;
    cluster.executor.run(async {
        cluster.settle(&[0, 1, 2]).await;
        cluster.table(by_number("accounts", KeptColumns::All)).await;
        cluster.table(by_number("later", KeptColumns::None)).await;
    });
    cluster.executor.run(async {
        for id in 0..40 {
            put(&writer, "accounts", (3 * id + 1, 1)).await;
            put(&writer, "later", (3 * id + 1, 1)).await;
        }
        assert_eq!(check(&home, "accounts").await, 40);
    });
    let held = Held::new(&slow);
    cluster.executor.run(async {
        put(&writer, "accounts", (1, 2)).await;
        until(&home, "a wait", || slow.is_waited_for()).await;
        for id in 0..40 {
            put(&writer, "accounts", (3 * id + 1, 3)).await;
        }
    });
    // Its threads end, and then its fabric says that it has ended.
    drop((cluster.workers.pop(), cluster.members.pop()));
    cluster.executor.run(cluster.settle(&[0, 1]));
    drop(held);
    cluster.executor.run(async {
        home.keep_columns(&table_of(home.node(), "later"), KeptColumns::All).await.expect("changed");
        assert_eq!(check(&home, "later").await, 40);
        let until_ns = home.handle().now_ns() + PATIENCE_NS;
        while matches!(found, Looked::NotYet) {
            assert!(home.handle().now_ns() < until_ns, "never built: {:?}", home.node().columns());
            home.handle().sleep_ns(1_000_000).await;
            found = look(&home, "accounts").await;
        }
    });
    matches!(found, Looked::Same(40))
}

#[test]
fn columns_are_forgotten_when_the_configuration_changes() {
    assert!(are_columns_true_after_a_change());
}

#[cfg(feature = "planted")]
#[test]
fn columns_that_are_not_forgotten_are_noticed() {
    assert!(!farhold_planted::with(farhold_planted::Defect::ColumnsNotForgotten, are_columns_true_after_a_change));
}

/// What was got with a snapshot of an earlier configuration counts no more, and nothing more is got with it. A snapshot of the next one gets
/// columns again.
#[test]
fn an_earlier_configuration_s_snapshots_get_no_columns() {
    let disk = Volatile::default();
    let mut cluster = Cluster::start(|_| Arc::new(disk.clone()), 2);
    let (reader, home) = (cluster.workers[0].clone(), cluster.workers[1].clone());
    cluster.executor.run(async {
        cluster.settle(&[0, 1, 2]).await;
        cluster.table(by_number("accounts", KeptColumns::All)).await;
    });
    let endpoint = reader.node().fabric().endpoint(reader.handle()).expect("an endpoint");
    let table = table_of(reader.node(), "accounts");
    let mut earlier = None;
    cluster.executor.run(async {
        for id in 0..100 {
            put(&reader, "accounts", (id, 1)).await;
        }
        assert_eq!(check(&home, "accounts").await, 33);
        check(&reader, "accounts").await;
        let snapshot = Arc::new(reader.snapshot().await.expect("a snapshot"));
        let far = reader.columns_of(&snapshot, &table, NodeId(1), &ALL).await.expect("columns");
        assert_eq!(rows_of(&endpoint, &far, table.schema()).await.map(|rows| rows.len()), Ok(33));
        let own = reader.home_columns(&snapshot, &table).await.expect("columns");
        earlier = Some((snapshot, far, rows_of_columns(&own, table.schema()), own));
    });
    drop((cluster.workers.pop(), cluster.members.pop()));
    cluster.executor.run(cluster.settle(&[0, 1]));
    cluster.executor.run(async {
        let (snapshot, far, rows, own) = earlier.expect("a view");
        assert!(matches!(far.pin().check(), Err(TxnError::Recovering { .. })));
        assert!(snapshot.pages(&table).is_err(), "as little as its rows");
        // Once they are built again.
        check(&home, "accounts").await;
        check(&reader, "accounts").await;
        assert_eq!(reader.home_columns(&snapshot, &table).await.err(), Some(NoColumns::Changing));
        let again = reader.columns_of(&snapshot, &table, NodeId(1), &ALL).await;
        assert_eq!(again.err(), Some(NoColumns::Changing));
        assert_eq!(rows_of_columns(&own, table.schema()), rows, "it is still that state");
        drop((snapshot, far, own));
        assert_eq!(check_all(&reader, &endpoint, "accounts").await, 100);
    });
}

/// Operators hear from each node what it keeps as columns, also after all columns were forgotten and built again.
#[test]
fn nodes_say_what_they_keep_as_columns() {
    let disk = Volatile::default();
    let mut cluster = Cluster::start(|_| Arc::new(disk.clone()), 2);
    let worker = cluster.workers[0].clone();
    cluster.executor.run(async {
        cluster.settle(&[0, 1, 2]).await;
        cluster.table(by_number("accounts", KeptColumns::All)).await;
        cluster.table(by_number("later", KeptColumns::None)).await;
        for id in 0..90 {
            put(&worker, "accounts", (id, 1)).await;
        }
    });
    // All of them are in segments, or in the delta.
    let says = |member: &Member, rows| {
        member.told("accounts").is_some_and(|told| {
            let is_there = told.size.segment_rows + told.size.delta_rows >= rows && told.size.bytes() > 0;
            told.reason.is_none() && told.table_rows == rows && is_there && told.epochs_behind < 1_000
        })
    };
    cluster.executor.run(until(&worker, "reports", || cluster.members.iter().all(|member| says(member, 30))));
    assert!(cluster.members.iter().all(|member| member.told("later").is_none()), "it is not to be kept");
    drop((cluster.workers.pop(), cluster.members.pop()));
    cluster.executor.run(cluster.settle(&[0, 1]));
    // One of them has taken over the rows of the node that is gone.
    let is_taken_over = |[one, other]: [&Member; 2]| says(one, 60) && says(other, 30);
    cluster.executor.run(until(&worker, "reports of the next configuration", || {
        let [one, other] = [&cluster.members[0], &cluster.members[1]];
        is_taken_over([one, other]) || is_taken_over([other, one])
    }));
}
