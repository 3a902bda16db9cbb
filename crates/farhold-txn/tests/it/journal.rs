//! Nodes with a journal: restarts, checkpoints, and everything that must be refused.

use crate::common::{self, PATIENCE_NS, key, look, new_dir, people, put};
use farhold_fabric::{Executor, Fabric};
use farhold_store::durable::files::{Directory, DurableFile};
use farhold_store::durable::power::Volatile;
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_txn::{
    Generation, JournalConfig, JournalThreads, Node, NodeConfig, NodeId, ReplicationConfig, Retry, RowCounter,
    TableDef, TxnError, Worker,
};
use futures::poll;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use tempfile::TempDir;

const SEGMENT_BYTES: u64 = 64 << 10;

fn open_of(disk: &Volatile, dir: &TempDir, node: u8, nodes: u8) -> Result<Arc<Node>, TxnError> {
    open_on(Arc::new(disk.clone()), dir, node, nodes)
}

fn open_on(disk: Arc<dyn Directory>, dir: &TempDir, node: u8, nodes: u8) -> Result<Arc<Node>, TxnError> {
    open_with(journal_on(disk), dir, (node, nodes))
}

fn journal_on(disk: Arc<dyn Directory>) -> JournalConfig {
    JournalConfig { segment_bytes: SEGMENT_BYTES, threads: 2, ..JournalConfig::new(disk) }
}

fn open_with(journal: JournalConfig, dir: &TempDir, (node, nodes): (u8, u8)) -> Result<Arc<Node>, TxnError> {
    let generation = Generation::begin(&journal, NodeId(node), nodes, &ReplicationConfig::default())?;
    let regions = dir.path().join(generation.number().to_string());
    let fabric = Fabric::join_shm(regions, NodeId(node)).expect("the fabric");
    let config = NodeConfig {
        nodes,
        region_bytes: 16 << 20,
        journal: Some(journal),
        request_timeout_ns: common::PATIENCE_NS,
        ..NodeConfig::default()
    };
    Node::open_durable(fabric, config, generation)
}

fn open(disk: &Volatile) -> Result<(Arc<Node>, TempDir), TxnError> {
    let dir = new_dir();
    Ok((open_of(disk, &dir, 0, 1)?, dir))
}

/// Runs a test on a worker of a node whose journal is stepped beside it.
fn with<T>(node: &Arc<Node>, test: impl AsyncFnOnce(Worker) -> T) -> T {
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let (stepped, handle) = (node.clone(), executor.handle());
    let stepping = executor.handle().spawn(async move {
        loop {
            let _ = stepped.step_journal();
            handle.yield_now().await;
        }
    });
    let result = executor.run(test(worker));
    drop(stepping);
    result
}

async fn insert(worker: &Worker, ids: impl Iterator<Item = i32>) -> Result<(), TxnError> {
    let table = match worker.node().table("people") {
        Some(table) => table,
        // Over several nodes an index on other columns than the key's cannot be unique.
        None if worker.node().config().nodes > 1 => {
            worker.create_table(TableDef { indexes: Vec::new(), ..people() }).await?
        }
        None => worker.create_table(people()).await?,
    };
    for id in ids {
        worker.run(Retry::default(), async |txn| put(txn, &table, id, &format!("n{id}"), id).await).await?;
    }
    Ok(())
}

async fn has(worker: &Worker, id: i32) -> bool {
    let table = worker.node().table("people").expect("the table");
    look(&mut worker.begin(), &table, id).await == Some((format!("n{id}"), id))
}

/// A disk on which rows 0..40 are, half of them in a checkpoint.
fn written() -> Volatile {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        insert(&worker, 0..20).await.expect("inserted");
        assert_eq!(worker.node().checkpoint(&mut || true), Ok(true));
        insert(&worker, 20..40).await.expect("inserted");
    });
    drop(node);
    disk
}

fn files(disk: &Volatile) -> BTreeMap<String, Vec<u8>> {
    let names = disk.list().expect("names");
    names.iter().map(|name| (name.clone(), disk.bytes(name))).collect()
}

fn name_of(disk: &Volatile, part: &str) -> String {
    disk.list().expect("names").into_iter().find(|name| name.contains(part)).expect("such a file")
}

/// The error of a refused start, which leaves journals and checkpoints unchanged.
fn refusal(disk: &Volatile) -> String {
    let before = files(disk);
    let error = open(disk).map(drop).expect_err("a refusal");
    let after = files(disk);
    for (name, bytes) in before.iter().filter(|(name, _)| !["cluster", "node-0.files"].contains(&&***name)) {
        assert!(after.get(name) == Some(bytes), "{name} was changed by a start that failed");
    }
    error.to_string()
}

#[test]
fn rows_and_definitions_come_back_and_so_do_those_of_the_next_lives() {
    let disk = written();
    for life in 0..3 {
        let (node, _dir) = open(&disk).expect("a node");
        with(&node, async |worker| {
            for id in 0..40 + life * 10 {
                assert!(has(&worker, id).await, "row {id} in life {life}");
            }
            assert!(!has(&worker, 40 + life * 10).await);
            insert(&worker, 40 + life * 10..50 + life * 10).await.expect("inserted");
            if life == 1 {
                assert_eq!(worker.node().checkpoint(&mut || true), Ok(true));
            }
        });
    }
}

#[test]
fn a_journal_does_not_grow_for_ever() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    let segments = || disk.list().expect("names").iter().filter(|name| name.contains("journal")).count();
    with(&node, async |worker| {
        let mut most = 0;
        for round in 0..12 {
            insert(&worker, round * 150..(round + 1) * 150).await.expect("inserted");
            most = most.max(segments());
            assert_eq!(worker.node().checkpoint(&mut || true), Ok(true));
            assert!(segments() <= 3, "{} segments behind a checkpoint", segments());
        }
        assert!(most > 2, "more than a segment was written between checkpoints: {most}");
    });
    drop(node);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        for id in (0..1800).step_by(7) {
            assert!(has(&worker, id).await, "row {id}");
        }
    });
}

#[test]
fn a_log_with_flipped_bits_is_refused() {
    let disk = written();
    let name = name_of(&disk, "journal-00000001-00000000");
    for at in [8, 20, 4096 + 64 + 70, 4096 + 300] {
        disk.flip(&name, at, 1);
        let message = refusal(&disk);
        assert!(message.contains("damaged") || message.contains("is not this node's"), "{message}");
        assert!(message.contains(&name), "{message}");
        disk.flip(&name, at, 1);
    }
    let (node, _dir) = open(&disk).expect("whole again");
    with(&node, async |worker| assert!(has(&worker, 39).await));
}

/// Repeated refused starts leave the shortest segments, however long the others are.
#[test]
fn starts_that_are_refused_leave_little() {
    let disk = written();
    let name = name_of(&disk, "journal-");
    let bytes = || files(&disk).values().map(|bytes| bytes.len() as u64).sum::<u64>();
    let start = || {
        let dir = new_dir();
        let journal = JournalConfig { segment_bytes: 16 * SEGMENT_BYTES, ..journal_on(Arc::new(disk.clone())) };
        Ok::<_, TxnError>((open_with(journal, &dir, (0, 1))?, dir))
    };
    disk.flip(&name, 5000, 1);
    let before = bytes();
    for refused in 1..=3 {
        assert!(start().map(drop).expect_err("a refusal").to_string().contains(&name));
        let more = bytes() - before;
        assert!(more < refused * SEGMENT_BYTES + 1000, "{more} bytes after {refused} starts");
    }
    disk.flip(&name, 5000, 1);
    for _ in 0..2 {
        let (node, _dir) = start().expect("whole again");
        with(&node, async |worker| {
            for id in 0..40 {
                assert!(has(&worker, id).await, "row {id}");
            }
        });
    }
}

#[test]
fn a_checkpoint_that_is_damaged_truncated_or_foreign_is_refused() {
    let disk = written();
    let name = name_of(&disk, "checkpoint");
    let whole = disk.bytes(&name);
    for at in [0, 9, 17, 25, 4096 + 5, 4096 + 200, usize::midpoint(4096, whole.len()), whole.len() - 20] {
        disk.flip(&name, at, 4);
        let message = refusal(&disk);
        assert!(message.contains(&name), "{at}: {message}");
        disk.flip(&name, at, 4);
    }
    for len in [0, 100, 4096, whole.len() / 2, whole.len() - 1] {
        disk.create(&name).and_then(|file| file.write_at(0, &whole[..len])).expect("shorter");
        let message = refusal(&disk);
        assert!(
            message.contains("cut off") || message.contains("end is not there") || message.contains("length"),
            "{message}"
        );
    }
    let foreign = written();
    let theirs = foreign.bytes(&name_of(&foreign, "checkpoint"));
    disk.create(&name).and_then(|file| file.write_at(0, &theirs)).expect("another's");
    let message = refusal(&disk);
    assert!(message.contains("cluster") || message.contains("generation"), "{message}");
    disk.create(&name).and_then(|file| file.write_at(0, &whole)).expect("its own");
    open(&disk).expect("whole again");
}

#[test]
fn a_directory_of_another_cluster_s_shape_or_version_is_refused() {
    let disk = written();
    let message = open_of(&disk, &new_dir(), 0, 3).map(drop).expect_err("one node, not three").to_string();
    assert!(message.contains("number of nodes"), "{message}");
    disk.flip("cluster", 8, 2);
    let message = refusal(&disk);
    assert!(message.contains("version"), "{message}");
    disk.flip("cluster", 8, 2);
    let cluster = disk.bytes("cluster");
    disk.remove("cluster").expect("removed");
    let message = refusal(&disk);
    assert!(message.contains("missing"), "{message}");
    disk.create("cluster").and_then(|file| file.write_at(0, &cluster)).expect("there again");
    open(&disk).expect("whole again");
}

/// Without any one of its files, a database would look older than it is.
#[test]
fn a_missing_file_is_noticed_whichever_it_is() {
    let disk = written();
    // After a checkpoint that has ended earlier files.
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        for round in 0..4 {
            insert(&worker, 40 + round * 150..190 + round * 150).await.expect("inserted");
            assert_eq!(worker.node().checkpoint(&mut || true), Ok(true));
        }
        insert(&worker, 640..660).await.expect("inserted");
    });
    drop(node);
    let parts = ["journal-", "checkpoint-", ".files"];
    let names = files(&disk).into_keys().filter(|name| parts.iter().any(|part| name.contains(part)));
    let names: Vec<String> = names.collect();
    assert!(names.len() >= 4 && !names.iter().any(|name| name.contains("journal-00000001")), "{names:?}");
    for name in &names {
        let bytes = disk.bytes(name);
        disk.remove(name).expect("removed");
        let message = refusal(&disk);
        assert!(message.contains(name) && message.contains("it is missing"), "{name}: {message}");
        disk.create(name).and_then(|file| file.write_at(0, &bytes)).expect("there again");
    }
    let all: Vec<(String, Vec<u8>)> = names.iter().map(|name| (name.clone(), disk.bytes(name))).collect();
    for name in &names {
        disk.remove(name).expect("removed");
    }
    let message = refusal(&disk);
    assert!(message.contains("node-0.files"), "{message}");
    for (name, bytes) in all {
        disk.create(&name).and_then(|file| file.write_at(0, &bytes)).expect("there again");
    }
    let (node, _dir) = open(&disk).expect("whole again");
    with(&node, async |worker| {
        for id in 0..660 {
            assert!(has(&worker, id).await, "row {id}");
        }
    });
}

#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    let last = with(&node, async |worker| {
        insert(&worker, 0..10).await.expect("inserted");
        // The segments that are there may still be filled.
        disk.limit(3 * SEGMENT_BYTES);
        let mut id = 10;
        let refused = loop {
            match insert(&worker, std::iter::once(id)).await {
                Ok(()) => id += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, TxnError::DiskFull { .. }), "{refused:?}");
        assert!(refused.to_string().contains("nothing was written"), "{refused}");
        assert!(id > 50, "as long as there was room: {id}");
        assert!(has(&worker, id - 1).await && !has(&worker, id).await, "reads go on");
        disk.limit(0);
        insert(&worker, id..id + 5).await.expect("there is room again");
        id + 4
    });
    drop(node);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        for id in 0..=last {
            assert!(has(&worker, id).await, "row {id}");
        }
    });
}

#[test]
fn a_transaction_longer_than_the_journal_takes_is_refused() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        insert(&worker, 0..1).await.expect("inserted");
        let table = worker.node().table("people").expect("the table");
        let note = "x".repeat(5000);
        let mut txn = worker.begin();
        for id in 1..10 {
            let value = common::value(&table, &format!("n{id}"), id, &note);
            txn.insert(&table, &key(id), &value).await.expect("inserted");
        }
        let refused = txn.commit().await.expect_err("too large");
        assert!(matches!(refused, TxnError::TooLarge { .. }), "{refused:?}");
        insert(&worker, 1..2).await.expect("others go on");
    });
}

#[test]
fn two_nodes_with_one_name_are_one_too_many() {
    let disk = Volatile::default();
    let (node, dir) = open(&disk).expect("a node");
    let refused = open_of(&disk, &dir, 0, 1).map(drop).expect_err("it is taken").to_string();
    assert!(refused.contains("node 0") && refused.contains("held by a living process"), "{refused}");
    drop(node);
    open(&disk).expect("it is free again");
}

/// Runs a test on two nodes of this process, each with the threads of its journal.
fn with_two(disk: &Volatile, test: impl AsyncFnOnce(&Worker, &Worker)) -> Result<(), TxnError> {
    with_two_on([Arc::new(disk.clone()), Arc::new(disk.clone())], test)
}

/// The same, each node with a way of its own to the disk.
fn with_two_on(disks: [Arc<dyn Directory>; 2], test: impl AsyncFnOnce(&Worker, &Worker)) -> Result<(), TxnError> {
    with_two_journals(disks.map(journal_on), test)
}

fn with_two_journals(
    [one, other]: [JournalConfig; 2],
    test: impl AsyncFnOnce(&Worker, &Worker),
) -> Result<(), TxnError> {
    let dir = new_dir();
    let nodes = [open_with(one, &dir, (0, 2))?, open_with(other, &dir, (1, 2))?];
    let threads: Vec<_> = nodes.iter().map(|node| JournalThreads::start(node).expect("threads")).collect();
    let executor = Executor::real(1);
    let workers = nodes.each_ref().map(|node| node.worker(&executor.handle()).expect("a worker"));
    for worker in workers.clone() {
        drop(executor.handle().spawn(async move {
            loop {
                worker.poll();
                worker.handle().yield_now().await;
            }
        }));
    }
    executor.run(async {
        // The journals' threads meet the other node within a millisecond or so.
        for worker in &workers {
            static IDS: AtomicI32 = AtomicI32::new(100_000);
            let id = IDS.fetch_add(1, Ordering::Relaxed);
            while let Err(TxnError::NotDurable { .. }) = insert(worker, std::iter::once(id)).await {
                executor.handle().sleep_ns(1_000_000).await;
            }
        }
        test(&workers[0], &workers[1]).await;
    });
    drop(workers);
    drop(executor);
    drop(threads);
    Ok(())
}

/// The other node's journal does not grow: it makes checkpoints for the sake of this one's.
#[test]
fn a_journal_does_not_grow_because_another_node_writes_nothing() {
    let disk = Volatile::default();
    let journal = || journal_on(Arc::new(disk.clone()));
    let busy = JournalConfig { checkpoint_bytes: 2 * SEGMENT_BYTES, ..journal() };
    with_two_journals([busy, journal()], async |one, _| {
        let until_ns = one.handle().now_ns() + common::PATIENCE_NS;
        let mut ids = (0..).step_by(50);
        loop {
            let first = ids.next().expect("many");
            insert(one, first..first + 50).await.expect("inserted");
            let names = disk.list().expect("names");
            let of_busy = names.iter().filter_map(|name| name.strip_prefix("node-0.journal-"));
            let numbers: Vec<u32> = of_busy.map(|it| it[9..].parse().expect("a number")).collect();
            let last = numbers.iter().max().expect("one");
            if *last >= 20 && numbers.len() <= 10 {
                return;
            }
            assert!(one.handle().now_ns() < until_ns, "{names:?}");
        }
    })
    .expect("both start");
}

#[test]
fn transactions_over_two_nodes_come_back_on_both() {
    let disk = Volatile::default();
    for life in 0..3 {
        with_two(&disk, async |one, other| {
            for id in 0..life * 20 {
                assert!(has(one, id).await && has(other, id).await, "row {id} in life {life}");
            }
            assert!(!has(one, life * 20).await);
            insert(one, life * 20..life * 20 + 10).await.expect("inserted");
            insert(other, life * 20 + 10..life * 20 + 20).await.expect("inserted");
        })
        .expect("both start");
        let _ = disk.survivor();
    }
}

#[test]
fn without_the_other_node_s_journal_nothing_is_written() {
    let disk = Volatile::default();
    with_two(&disk, async |one, _| insert(one, 0..3).await.expect("inserted")).expect("both start");
    let dir = new_dir();
    let node = open_of(&disk, &dir, 0, 2).expect("one starts");
    with(&node, async |worker| {
        let table = worker.node().table("people").expect("the table");
        let refused = worker.run(Retry::never(), async |txn| put(txn, &table, 50, "new", 1).await).await;
        let message = refused.expect_err("the other node is not there").to_string();
        assert!(message.contains("unavailable") || message.contains("has not started yet"), "{message}");
    });
    // A node that starts later takes the same cut.
    let other = open_of(&disk, &dir, 1, 2).expect("the other starts");
    drop((node, other));
    with_two(&disk, async |one, _| assert!(has(one, 2).await)).expect("both start");
}

/// Access to a disk on which every sync fails from some moment on, or on which writes of checkpoints wait.
#[derive(Clone, Debug)]
struct Failing {
    disk: Volatile,
    fails: Arc<AtomicBool>,
    waits: Arc<(Mutex<bool>, Condvar)>,
}

#[derive(Debug)]
struct FailingFile {
    file: Arc<dyn DurableFile>,
    fails: Arc<AtomicBool>,
    waits: Option<Arc<(Mutex<bool>, Condvar)>>,
}

impl Failing {
    fn new(disk: &Volatile) -> Self {
        Self { disk: disk.clone(), fails: Arc::default(), waits: Arc::default() }
    }

    /// Makes writes of checkpoints wait, or not any more.
    fn hold_checkpoints(&self, waits: bool) {
        *self.waits.0.lock().expect("whole") = waits;
        self.waits.1.notify_all();
    }

    fn file(&self, name: &str, file: Arc<dyn DurableFile>) -> Arc<dyn DurableFile> {
        let waits = name.contains("checkpoint").then(|| self.waits.clone());
        Arc::new(FailingFile { file, fails: self.fails.clone(), waits })
    }
}

impl Directory for Failing {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.disk.create(name).map(|file| self.file(name, file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.disk.open(name).map(|file| self.file(name, file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn lock(&self, name: &str) -> io::Result<Option<Box<dyn Send + Sync>>> {
        self.disk.lock(name)
    }

    fn name(&self) -> String {
        self.disk.name()
    }
}

impl DurableFile for FailingFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_at(at, into)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Some(waits) = &self.waits {
            let held = waits.0.lock().expect("whole");
            drop(waits.1.wait_while(held, |held| *held).expect("whole"));
        }
        self.file.write_at(at, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        let fails = self.fails.load(Ordering::SeqCst);
        if fails { Err(io::Error::other("the disk reports an error")) } else { self.file.sync() }
    }
}

/// The result of a future; panics if it waits for longer than any machine takes.
async fn in_time<T>(worker: &Worker, future: impl Future<Output = T>) -> T {
    let until_ns = worker.handle().now_ns() + PATIENCE_NS;
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = poll!(&mut future) {
            return done;
        }
        assert!(worker.handle().now_ns() < until_ns, "it waits for ever");
        worker.handle().yield_now().await;
    }
}

/// Rows have one copy each, so nothing is durable without the journal of every node: when one of them cannot be written any more, the
/// sessions of all nodes get that error.
#[test]
fn a_journal_that_fails_ends_those_of_all_nodes() {
    let disk = Volatile::default();
    let failing = Failing::new(&disk);
    let mut told = 0;
    let ways: [Arc<dyn Directory>; 2] = [Arc::new(disk.clone()), Arc::new(failing.clone())];
    let tested = with_two_on(ways, async |one, other| {
        insert(one, 0..10).await.expect("inserted");
        failing.fails.store(true, Ordering::SeqCst);
        let error = loop {
            match in_time(one, insert(one, std::iter::once(10 + told))).await {
                Ok(()) => told += 1,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("the journal of node 1 cannot be written"), "{error}");
        for worker in [one, other] {
            let refused = in_time(worker, insert(worker, std::iter::once(1000))).await.expect_err("refused");
            assert!(matches!(refused, TxnError::NotDurable { committed: false, .. }), "{refused:?}");
        }
        // A result that is only in memory is withheld, and a transaction that only read has no outcome that could be
        // unknown.
        let mut reading = one.begin();
        look(&mut reading, &one.node().table("people").expect("the table"), 10 + told).await;
        let refused = in_time(one, reading.commit()).await.expect_err("not durable");
        assert!(matches!(refused, TxnError::NotDurable { committed: false, .. }), "{refused:?}");
        assert!(one.node().journal_failure().is_some() && other.node().journal_failure().is_some());
    });
    tested.expect("both start");
    with_two(&disk, async |one, _| {
        for id in 0..10 + told {
            assert!(has(one, id).await, "row {id} was acknowledged");
        }
        assert!(!has(one, 1000).await);
    })
    .expect("both start again");
}

#[test]
fn while_others_run_a_node_that_has_lost_its_memory_does_not_start() {
    let disk = Volatile::default();
    let dir = new_dir();
    let first = open_of(&disk, &dir, 0, 2).expect("a node");
    let second = open_of(&disk, &dir, 1, 2).expect("a node");
    drop(second);
    let message = open_of(&disk, &dir, 1, 2).map(drop).expect_err("node 0 still runs").to_string();
    assert!(message.contains("nodes 0 still run"), "{message}");
    drop(first);
    open_of(&disk, &dir, 1, 2).expect("now it may");
}

/// The journal of a node whose rows only others write holds little but page events, and these are needed until its own next checkpoint.
#[test]
fn pages_taken_since_a_checkpoint_outlast_the_checkpoints_of_others() {
    const ROWS: i32 = 2000;
    let disk = Volatile::default();
    with_two(&disk, async |one, other| {
        insert(one, 0..20).await.expect("inserted");
        assert_eq!(other.node().checkpoint(&mut || true), Ok(true));
        // Each commit is a batch in both journals, more than a segment of them in the other's; half of the rows are there.
        insert(one, 20..ROWS).await.expect("inserted");
        assert_eq!(one.node().checkpoint(&mut || true), Ok(true));
        insert(one, ROWS..ROWS + 50).await.expect("inserted");
    })
    .expect("both start");
    with_two(&disk, async |one, _| {
        for id in 0..ROWS + 50 {
            assert!(has(one, id).await, "row {id}");
        }
    })
    .expect("both start");
}

/// The result of a future while the node's journal is stepped.
async fn stepping<T>(node: &Node, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = poll!(&mut future) {
            return done;
        }
        let _ = node.step_journal();
    }
}

/// An insert reveals that its key was free, even if the transaction takes the insert back. A delete that is not durable yet may have
/// freed the key.
#[test]
fn an_insert_that_is_taken_back_waits_for_the_delete_that_made_its_key_free() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| insert(&worker, 0..2).await.expect("inserted"));
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let table = worker.node().table("people").expect("the table");
    executor.run(async {
        let mut deleting = pin!(worker.run(Retry::never(), async |txn| {
            let row = txn.get(&table, &key(1)).await?.expect("a row");
            txn.delete(row)
        }));
        assert!(poll!(&mut deleting).is_pending(), "it waits for the disk");
        let mut taken_back = pin!(worker.run(Retry::never(), async |txn| {
            // Long enough that it does not get the slot of the deleted row, which records the epoch of the delete.
            let row = txn.insert(&table, &key(1), &common::value(&table, "new", 1, &"x".repeat(900))).await?;
            txn.delete(row)
        }));
        assert!(poll!(&mut taken_back).is_pending(), "a power cut gives the row back");
        stepping(&node, taken_back).await.expect("done, and taken back");
        in_time(&worker, deleting).await.expect("the delete was durable before");
    });
}

/// The same for errors about tables: that one exists already, or is gone.
#[test]
fn what_is_told_of_a_table_waits_until_no_power_cut_takes_it_back() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| insert(&worker, 0..2).await.expect("inserted"));
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let table = worker.node().table("people").expect("the table");
    let pets = || TableDef { name: "pets".into(), indexes: Vec::new(), ..people() };
    executor.run(async {
        let mut creating = pin!(worker.create_table(pets()));
        assert!(poll!(&mut creating).is_pending(), "it waits for the disk");
        let mut creating_again = pin!(worker.create_table(pets()));
        assert!(poll!(&mut creating_again).is_pending(), "a power cut takes the first one back");
        let mut dropping = pin!(worker.drop_table(&table));
        assert!(poll!(&mut dropping).is_pending(), "it waits for the disk");
        let mut dropping_again = pin!(worker.drop_table(&table));
        assert!(poll!(&mut dropping_again).is_pending(), "a power cut gives the table back");
        let is_there = stepping(&node, creating_again).await;
        assert!(matches!(is_there, Err(TxnError::AlreadyExists { .. })), "{is_there:?}");
        let is_gone = stepping(&node, dropping_again).await;
        assert!(matches!(is_gone, Err(TxnError::NotFound { .. })), "{is_gone:?}");
        in_time(&worker, creating).await.expect("created");
        in_time(&worker, dropping).await.expect("dropped");
    });
}

/// Records that a snapshot has pushed into the next epoch are written with the epoch before it, but count only with their own: a reader
/// waits for that epoch.
#[test]
fn nothing_is_read_that_a_power_cut_could_take_back() {
    let disk = Volatile::default();
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| insert(&worker, 0..2).await.expect("inserted"));
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    let table = worker.node().table("people").expect("the table");
    let name = |seen: Option<(String, i32)>| seen.map(|(name, _)| name);
    executor.run(async {
        let snapshot = worker.snapshot().await.expect("a snapshot");
        let mut writing = pin!(worker.run(Retry::never(), async |txn| put(txn, &table, 2, "new", 2).await));
        assert!(poll!(&mut writing).is_pending(), "it waits for the disk");
        let _ = node.step_journal();
        let mut reading = pin!(async {
            let mut txn = worker.begin();
            let seen = look(&mut txn, &table, 2).await;
            txn.commit().await.expect("committed");
            seen
        });
        if let Poll::Ready(seen) = poll!(&mut reading) {
            let disk = disk.cut(&mut || 0);
            let (node, _dir) = open(&disk).expect("a node");
            let after = with(&node, async |worker| {
                let table = worker.node().table("people").expect("the table");
                name(look(&mut worker.begin(), &table, 2).await)
            });
            assert_eq!(name(seen), after, "a reader was told this before the power went");
            panic!("what is durable needed another step");
        }
        drop(snapshot);
        stepping(&node, reading).await;
        stepping(&node, writing).await.expect("written");
    });
}

/// A process ends between a write and its sync, and the system keeps what it wrote. What the next start shows of it is durable by then,
/// and so is everything that depends on it.
#[test]
fn what_a_restart_shows_is_not_taken_back_by_a_power_cut() {
    let disk = Volatile::default();
    let failing = Failing::new(&disk);
    let dir = new_dir();
    let node = open_on(Arc::new(failing.clone()), &dir, 0, 1).expect("a node");
    with(&node, async |worker| {
        insert(&worker, 0..3).await.expect("inserted");
        failing.fails.store(true, Ordering::SeqCst);
        insert(&worker, 3..4).await.expect_err("nobody knows");
    });
    drop(node);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        assert!(has(&worker, 3).await, "the system has it");
        insert(&worker, 4..6).await.expect("inserted");
    });
    let disk = disk.cut(&mut || 0);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        for id in 0..6 {
            assert!(has(&worker, id).await, "row {id}");
        }
    });
}

/// Writes go on while a checkpoint is written, however long that takes, although its thread makes no segments
/// meanwhile.
#[test]
fn the_journal_goes_on_while_a_checkpoint_waits_for_its_disk() {
    let disk = written();
    let failing = Failing::new(&disk);
    failing.hold_checkpoints(true);
    let dir = new_dir();
    // It begins one at once: the journals of before are to go.
    let node = open_on(Arc::new(failing.clone()), &dir, 0, 1).expect("a node");
    let threads = JournalThreads::start(&node).expect("threads").expect("a journal");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let table = worker.node().table("people").expect("the table");
        let note = "x".repeat(4000);
        for id in 100..200 {
            let value = common::value(&table, &format!("n{id}"), id, &note);
            let inserted = worker.run(Retry::never(), async |txn| txn.insert(&table, &key(id), &value).await.map(drop));
            in_time(&worker, inserted).await.expect("inserted");
        }
    });
    failing.hold_checkpoints(false);
    drop((worker, threads));
    drop(node);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        let table = worker.node().table("people").expect("the table");
        for id in 100..200 {
            assert!(look(&mut worker.begin(), &table, id).await.is_some(), "row {id}");
        }
    });
}

/// Only the list of files cannot be written. Checkpoints are not repeated endlessly, none is left beside another, and the rows come back.
#[test]
fn a_list_that_cannot_be_written_does_not_fill_the_disk() {
    let disk = written();
    let (node, _dir) = open(&disk).expect("a node");
    let checkpoints = || disk.list().expect("names").into_iter().filter(|name| name.contains("checkpoint-"));
    let before: BTreeSet<String> = checkpoints().collect();
    disk.break_file("node-0.files", true);
    // It begins one at once: the journals of before are to go.
    let threads = JournalThreads::start(&node).expect("threads").expect("a journal");
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        seen.extend(checkpoints());
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    drop((threads, node));
    assert_eq!(checkpoints().count(), 1);
    assert!(before.len() == 1 && seen.difference(&before).count() <= 1, "{seen:?}");
    disk.break_file("node-0.files", false);
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        for id in 0..40 {
            assert!(has(&worker, id).await, "row {id}");
        }
    });
}

/// A counter's word changes without a commit, so the journal does not have it, and a checkpoint has an arbitrary earlier
/// value.
#[test]
fn numbers_are_given_once_over_restarts() {
    let disk = Volatile::default();
    let (up, down) = ((counter_key(1), counter_key(2)), (counter_key(3), counter_key(4)));
    let mut given = BTreeSet::new();
    let mut gap_max = 0;
    for life in 0..4 {
        let (node, _dir) = open(&disk).expect("a node");
        with(&node, async |worker| {
            let table = match worker.node().table("counters") {
                Some(table) => table,
                None => worker.create_table(counters()).await.expect("a table"),
            };
            let rising = RowCounter { table: &table, key: &up.0, promise_key: &up.1, first: 1, last: i64::MAX };
            let falling = RowCounter { key: &down.0, promise_key: &down.1, first: u64::MAX, last: i64::MIN, ..rising };
            for round in 0..60 {
                let first = worker.take_numbers(rising, 3, 1).await.expect("numbers");
                gap_max = gap_max.max(first - given.last().map_or(0, |(_, last)| *last) - 1);
                for number in first..first + 3 {
                    assert!(given.insert((0, number)), "life {life}: {number} a second time");
                }
                if round == 20 * life {
                    assert_eq!(node.checkpoint(&mut || true), Ok(true));
                }
            }
            // The other way, with a block that was never promised at the end of each life.
            let before = worker.next_number(falling).await.expect("a number");
            let first = worker.take_numbers(falling, 5, -2).await.expect("numbers");
            assert!(life == 0 || first.cast_signed() < before.cast_signed(), "it had to move on");
            assert!(first.cast_signed() < 0, "{first}");
        });
    }
    assert!((1..=24).contains(&gap_max), "{gap_max} numbers were lost by a restart");
}

#[test]
fn a_counter_that_was_set_before_a_restart_begins_there() {
    let disk = Volatile::default();
    let keys = (counter_key(1), counter_key(2));
    for life in 0..3 {
        let (node, _dir) = open(&disk).expect("a node");
        with(&node, async |worker| {
            let table = match worker.node().table("counters") {
                Some(table) => table,
                None => worker.create_table(counters()).await.expect("a table"),
            };
            let it = RowCounter { table: &table, key: &keys.0, promise_key: &keys.1, first: 1, last: 1_000 };
            match life {
                0 => {
                    assert_eq!(worker.take_numbers(it, 50, 1).await, Ok(1));
                    assert_eq!(worker.set_number(it, 7).await, Ok(51));
                }
                1 => {
                    assert_eq!(worker.take_numbers(it, 1, 1).await, Ok(7));
                    assert_eq!(worker.swap_number(it, 8, 990).await, Ok(8));
                    assert_eq!(worker.swap_number(it, 8, 1).await, Ok(990), "it is not 8");
                    assert_eq!(worker.take_numbers(it, 4, 1).await, Ok(990));
                }
                // No further ahead than the last number that there is.
                _ => assert_eq!(worker.take_numbers(it, 1, 1).await, Ok(1_001)),
            }
        });
    }
}

/// A checkpoint has an arbitrary earlier value of a counter's word, possibly from before the counter was set back.
#[test]
fn a_counter_that_was_set_back_stays_so() {
    let disk = Volatile::default();
    let keys = (counter_key(1), counter_key(2));
    let open_with = async |worker: &Worker| match worker.node().table("counters") {
        Some(table) => table,
        None => worker.create_table(counters()).await.expect("a table"),
    };
    let (node, dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        let table = open_with(&worker).await;
        let it = RowCounter { table: &table, key: &keys.0, promise_key: &keys.1, first: 1, last: 1_000 };
        assert_eq!(worker.take_numbers(it, 990, 1).await, Ok(1));
        assert_eq!(node.checkpoint(&mut || true), Ok(true));
        assert_eq!(worker.set_number(it, 1).await, Ok(991));
        assert_eq!(worker.next_number(it).await, Ok(1));
        assert_eq!(worker.take_numbers(it, 2, 1).await, Ok(1));
    });
    drop((node, dir));
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        let table = open_with(&worker).await;
        let it = RowCounter { table: &table, key: &keys.0, promise_key: &keys.1, first: 1, last: 1_000 };
        let next = worker.take_numbers(it, 2, 1).await.expect("numbers");
        assert!((3..=19).contains(&next), "{next}: up to eight blocks are lost");
    });
}

/// Numbers that are further apart than half of all there are.
#[test]
fn a_counter_may_step_over_half_of_all_numbers() {
    let disk = Volatile::default();
    let keys = (counter_key(1), counter_key(2));
    let (node, _dir) = open(&disk).expect("a node");
    with(&node, async |worker| {
        let table = worker.create_table(counters()).await.expect("a table");
        let (first, step) = (-9_000_000_000_000_000_000_i64, 1_i64 << 62);
        let first_word = first.cast_unsigned();
        let it =
            RowCounter { table: &table, key: &keys.0, promise_key: &keys.1, first: first_word, last: -(first + 1) };
        for turn in 0..4 {
            let expected = (i128::from(first) + i128::from(step) * turn) as i64;
            assert_eq!(worker.take_numbers(it, 1, step).await.map(u64::cast_signed), Ok(expected));
        }
    });
}

fn counter_key(number: i64) -> [u8; 8] {
    (number.cast_unsigned() ^ 1 << 63).to_be_bytes()
}

fn counters() -> TableDef {
    let column = |name: &str| Column { name: name.into(), data_type: ColumnType::BigInt, nullable: false };
    let columns = std::iter::once("number").chain(RowCounter::COLUMNS).map(column).collect();
    let schema = Schema::new(columns, vec![0]).expect("a schema");
    TableDef { hash: false, ..TableDef::new("counters", schema) }
}
