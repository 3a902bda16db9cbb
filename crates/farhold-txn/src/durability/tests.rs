use crate::base::definition::{Placement, TableDef};
use crate::base::epoch::EPOCH_LAST;
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::durability::JournalConfig;
use crate::durability::follow::Applied;
use crate::durability::journaling::{Journaling, Step};
use crate::durability::open::Generation;
use crate::durability::watch::{HANG_LOOK_NS_MAX, HANG_NS_MAX};
use crate::node::{Node, NodeConfig};
use crate::protocol::worker::{Retry, Worker};
use farhold_fabric::{Executor, Fabric, FarPtr, NodeId, RegionMemory, Version};
use farhold_store::Store;
use farhold_store::TableId;
use farhold_store::column::copy::{ColumnCopy, CopyConfig, Kept};
use farhold_store::column::memory::ColumnMemory;
use farhold_store::durable::DurableError;
use farhold_store::durable::files::Directory;
use farhold_store::durable::journal::{self};
use farhold_store::durable::power::Volatile;
use farhold_store::log::{Change, Entry, RecordWriter};
use farhold_store::row::{Column, ColumnType, Datum, Schema};
use futures::poll;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Poll;

/// A start of one of two nodes with copies, as far as its journal goes.
fn start(directory: &Volatile, node: NodeId) -> (Arc<Journaling>, Arc<Store>) {
    let config = JournalConfig {
        segment_bytes: journal::SEGMENT_BYTES_MIN,
        threads: 1,
        ..JournalConfig::new(Arc::new(directory.clone()))
    };
    let replication = ReplicationConfig { replicas: 2, ..ReplicationConfig::default() };
    let generation = Generation::begin(&config, node, 2, &replication).expect("a start");
    let memory = Arc::new(RegionMemory::anonymous(FarPtr::new(node, DATA, 0), 4 << 20).expect("memory"));
    generation.restore(&config, &memory).expect("a region");
    let (store, _) = Store::attach(memory.clone(), node).expect("a store");
    let journaling = Journaling::new(config, generation, memory, true).expect("a journal");
    (journaling, store)
}

/// A node that comes back has an empty region. Even if it is mistaken for a founder's, its checkpoint must not end the files with the
/// rows.
#[test]
fn an_empty_region_is_no_checkpoint_of_the_rows_before() {
    let directory = Volatile::default();
    let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
    let (first, store) = start(&directory, NodeId(0));
    let (_other, _) = start(&directory, NodeId(1));
    first.install(&founded);
    // This node does not learn where the other journals end, but it learns the epoch.
    while first.step(&store) != Step::Closed {}
    drop((first, store));
    let again = |next: &Configuration| {
        let (back, store) = start(&directory, NodeId(0));
        assert!(back.generation().comes_back());
        assert!(!back.settle(3));
        assert_eq!(back.write_checkpoint(&store, &mut || true).map(|it| it.is_some()), Ok(false), "nothing is known");
        back.install(next);
        let written = back.write_checkpoint(&store, &mut || true).map(|it| it.is_some());
        (written, back.failure().is_some())
    };
    let (written, has_failed) = again(&Configuration { births: vec![2, 1], ..founded.clone() });
    assert!(matches!(written, Err(DurableError::Foreign { found: 2, expected: 1, .. })) && has_failed);
    let joining = founded.without(&[NodeId(0)], NodeId(1)).promoted(NodeId(0), NodeId(1)).with_joining(NodeId(0), 3);
    assert_eq!(again(&joining), (Ok(true), false));
    let joined = Configuration { births: vec![4, 1], rows_since: vec![4, 1], ..joining.joined(NodeId(0)) };
    assert_eq!(again(&joined), (Ok(true), false));
}

/// Begins a table's copy, which must be of this configuration.
fn begin_copy(journaling: &Journaling, configuration: u64) -> bool {
    let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), DATA, 0), 1 << 20).expect("memory");
    let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
    let memory = ColumnMemory::new(Arc::new(memory));
    let copy = ColumnCopy::new(&schema, Kept::All, CopyConfig::default(), &memory);
    journaling.feed.add(TableId(20), Arc::new(copy), configuration)
}

/// Closes an epoch in a configuration; the keeper's word is not needed for it.
fn close(journaling: &Journaling, store: &Store, epoch: u32) {
    journaling.settle(epoch + 1);
    while journaling.closed() < epoch {
        journaling.step(store);
    }
}

/// Copies are of the configuration that the node is in, and of no other; none begin while it changes. What follows the nodes of an earlier
/// configuration says nothing of the next.
#[test]
fn copies_are_of_one_configuration() {
    let directory = Volatile::default();
    let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
    let (node, store) = start(&directory, NodeId(0));
    let (other, others_store) = start(&directory, NodeId(1));
    let has_copy = |configuration| node.feed.copy_of(TableId(20), configuration).is_some();
    assert!(!begin_copy(&node, 0) && !begin_copy(&node, founded.number), "it is in none");
    node.install(&founded);
    other.install(&founded);
    assert!(!begin_copy(&node, 0) && begin_copy(&node, founded.number));
    assert!(has_copy(founded.number) && !has_copy(0));
    node.follow(Some(&founded)).expect("a journal");
    close(&other, &others_store, 9);
    node.heard[1].closed.store(other.closed(), SeqCst);
    let complete = || node.feed.copy(TableId(20)).expect("a copy").complete_to();
    close(&node, &store, 3);
    assert_eq!((node.apply_to_columns(0), complete()), (Applied::All, 3));
    let alone = founded.without(&[NodeId(1)], NodeId(0)).promoted(NodeId(1), NodeId(0));
    node.freeze(&alone);
    assert!(!has_copy(founded.number) && !node.feed.is_wanted());
    assert!(!begin_copy(&node, founded.number) && !begin_copy(&node, alone.number));
    node.install(&alone);
    assert!(!has_copy(alone.number) && begin_copy(&node, alone.number));
    close(&node, &store, 5);
    assert_eq!((node.apply_to_columns(0), complete()), (Applied::All, 0), "nothing is followed yet");
    node.follow(Some(&alone)).expect("nothing to follow");
    assert_eq!((node.apply_to_columns(0), complete()), (Applied::All, 5));
}

/// The others go on without a node that does not know. What they commit then is not for its rows, and its copies end.
#[test]
fn what_is_written_in_a_later_configuration_is_not_followed() {
    let directory = Volatile::default();
    let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
    let (left, _) = start(&directory, NodeId(0));
    let (other, store) = start(&directory, NodeId(1));
    left.install(&founded);
    let go_on = |configuration: &Configuration, epoch| {
        other.install(configuration);
        close(&other, &store, epoch);
        left.heard[1].closed.store(other.closed(), SeqCst);
    };
    go_on(&founded, 5);
    assert!(begin_copy(&left, founded.number));
    left.follow(Some(&founded)).expect("a journal");
    assert_eq!((left.apply_to_columns(0), left.feed.copies().len()), (Applied::All, 1));
    let without = founded.without(&[NodeId(0)], NodeId(1)).promoted(NodeId(0), NodeId(1));
    go_on(&without, 7);
    left.apply_to_columns(0);
    assert_eq!(left.feed.copies().len(), 0, "records of the later configuration are not for this node");
    assert_eq!(left.feed.statistics(0, false).losses, 1);
    assert!(begin_copy(&left, founded.number));
    let followed = left.follow(Some(&founded));
    assert!(matches!(followed, Err(TxnError::Recovering { node: NodeId(1) })), "{followed:?}");
}

/// More records than the existing segments hold, on a full disk: they are written when there is room again.
#[test]
fn what_the_dead_have_left_waits_for_room_on_the_disk() {
    let directory = Volatile::default();
    let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
    let (first, store) = start(&directory, NodeId(0));
    first.install(&founded);
    while first.step(&store) != Step::Closed {}
    first.make_spare().expect("there is room");
    let words = |number: usize| format!("left by the dead: {number:06}").repeat(40).into_bytes();
    let (mut count, mut bytes) = (0, 0);
    while bytes < 5 * journal::SEGMENT_BYTES_MIN / 2 {
        let value = words(count);
        let mut record = RecordWriter::default();
        record.begin(9, founded.number, 1);
        record.add(&Entry {
            node: NodeId(0),
            change: Change::Write,
            mirrored: true,
            table: farhold_store::TableId(20),
            reference: farhold_store::ObjectRef::new(4096, 1),
            old: Version(0),
            new: Version(Version::ONE),
            key: b"the key",
            value: &value,
        });
        record.end();
        let (behind, mark) = record.place(0, 0);
        first.append_left(0, behind, mark, 1);
        (count, bytes) = (count + 1, bytes + value.len() as u64);
    }
    let _ = store.superblock().advance_epoch();
    directory.limit(1);
    for _ in 0..3 {
        assert_eq!(first.step(&store), Step::Stuck);
    }
    assert!(
        first.failure().is_none() && matches!(first.spare.refused(), Some(TxnError::DiskFull { .. })),
        "{:?}",
        first.failure()
    );
    directory.limit(0);
    while first.step(&store) != Step::Closed {
        assert!(first.failure().is_none(), "{:?}", first.failure());
    }
    assert_eq!(first.pending.load(SeqCst), 0);
    let names = directory.list().expect("names");
    let files: Vec<Vec<u8>> = names.iter().map(|name| directory.bytes(name)).collect();
    for number in 0..count {
        let words = words(number);
        let has = |file: &Vec<u8>| file.windows(words.len()).any(|part| part == words);
        assert_eq!(files.iter().filter(|file| has(file)).count(), 1, "record {number}");
    }
}

/// After the last epoch there is none: the journal reports that, and does not wrap.
#[test]
fn the_last_epoch_is_the_last() {
    let directory = Volatile::default();
    let (journaling, store) = start(&directory, NodeId(0));
    journaling.install(&Configuration { births: vec![1, 1], ..Configuration::first(2, 2) });
    while journaling.step(&store) != Step::Closed {}
    store.superblock().raise_epoch(EPOCH_LAST);
    for _ in 0..5 {
        journaling.step(&store);
    }
    assert!(journaling.failure().is_some_and(|reason| reason.contains("used up")));
}

/// The system call that writes a disk does not end. Where rows have copies the node goes, and the others go on.
#[test]
fn a_disk_that_hangs_is_given_up() {
    let directory = Volatile::default();
    let (journaling, _store) = start(&directory, NodeId(0));
    let (looks, mut now_ns) = (HANG_NS_MAX / HANG_LOOK_NS_MAX, 5);
    let mut look = |by_ns| {
        now_ns += by_ns;
        journaling.fail_if_hung(now_ns);
        journaling.failure().is_some()
    };
    journaling.steps.note(Some(5));
    assert!(!look(0));
    assert!(!look(10 * HANG_NS_MAX), "the machine has slept");
    assert!(!(1..looks).any(|_| look(HANG_LOOK_NS_MAX)));
    journaling.steps.note(None);
    assert!(!look(HANG_LOOK_NS_MAX), "it has ended");
    journaling.steps.note(Some(9));
    assert!(!(0..=looks).any(|_| look(HANG_LOOK_NS_MAX)), "another one");
    assert!(look(1));
}

/// No commit waits for ever for an epoch that no disk takes.
#[test]
fn who_waits_for_a_disk_that_hangs_hears_of_it() {
    let regions = tempfile::tempdir().expect("a directory");
    let journal = JournalConfig::new(Arc::new(Volatile::default()));
    let generation = Generation::begin(&journal, NodeId(0), 1, &ReplicationConfig::default()).expect("a start");
    let config = NodeConfig { region_bytes: 8 << 20, journal: Some(journal), ..NodeConfig::default() };
    let fabric = Fabric::join_shm(regions.path(), NodeId(0)).expect("the fabric");
    let node = Node::open_durable(fabric, config, generation).expect("a node");
    let executor = Executor::real(1);
    let worker = node.worker(&executor.handle()).expect("a worker");
    executor.run(async {
        let epoch = worker.core.read_epoch().await.expect("an epoch") + 1;
        let mut waiting = pin!(worker.core.durable_within(epoch, 1_000_000));
        let told = loop {
            if let Poll::Ready(told) = poll!(&mut waiting) {
                break told;
            }
            worker.handle().yield_now().await;
        };
        assert!(matches!(told, Err(TxnError::NotDurable { committed: true, .. })), "{told:?}");
        // A wait that is not being polled is woken.
        let waiter = worker.clone();
        let late = worker.handle().spawn(async move { waiter.core.durable_within(epoch, 1_000_000).await });
        worker.handle().sleep_ns(20_000_000).await;
        assert!(late.try_take().is_none());
        journaling_of(&worker).wake_the_late();
        while late.try_take().is_none() {
            worker.handle().yield_now().await;
        }
    });
    drop((worker, node));
}

fn journaling_of(worker: &Worker) -> &Journaling {
    worker.node().journaling.as_ref().expect("a journal")
}

/// A look of each node at the other's journal, and a step of its own.
async fn step_all(workers: &[Worker]) {
    for worker in workers {
        let journaling = journaling_of(worker);
        journaling.look(&worker.core.endpoint).await;
        let _ = journaling.make_spare();
        journaling.step(&worker.node().store);
        worker.handle().yield_now().await;
    }
}

/// Runs something while the journals are stepped.
async fn with_steps<T>(workers: &[Worker], work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        if let Poll::Ready(done) = poll!(&mut work) {
            return done;
        }
        step_all(workers).await;
    }
}

/// A worker of node 0 deletes a row of node 1, whose slot is free at once, at an epoch that node 1 does not know yet. A checkpoint of
/// node 1 lacks the row, so it must still wait for that epoch.
#[test]
fn a_checkpoint_waits_for_deletes_by_other_nodes() {
    let directory = Volatile::default();
    let regions = tempfile::tempdir().expect("a directory");
    let nodes = [NodeId(0), NodeId(1)].map(|id| {
        let journal =
            JournalConfig { segment_bytes: 1 << 20, threads: 1, ..JournalConfig::new(Arc::new(directory.clone())) };
        let generation = Generation::begin(&journal, id, 2, &ReplicationConfig::default()).expect("a start");
        let config = NodeConfig {
            nodes: 2,
            region_bytes: 8 << 20,
            request_timeout_ns: 60_000_000_000,
            journal: Some(journal),
            ..NodeConfig::default()
        };
        Node::open_durable(Fabric::join_shm(regions.path(), id).expect("the fabric"), config, generation)
            .expect("a node")
    });
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
        let [one, other] = &workers;
        while workers.iter().any(|worker| !journaling_of(worker).unknown().is_empty()) {
            step_all(&workers).await;
        }
        let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
        let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new("t", schema) };
        let table = with_steps(&workers, one.create_table(definition)).await.expect("a table");
        let key = |id: u32| (id ^ 0x8000_0000).to_be_bytes();
        let mut value = Vec::new();
        table.schema().encode_value(&[Datum::Int(0)], &mut value).expect("a value");
        let filled = one.run(Retry::never(), async |txn| {
            for id in 1..=4 {
                txn.insert(&table, &key(id), &value).await?;
            }
            Ok(())
        });
        with_steps(&workers, filled).await.expect("rows");
        let _ = one.node().store.superblock().advance_epoch();
        let mut deleted = pin!(one.run(Retry::never(), async |txn| {
            let row = txn.get(&table, &key(2)).await?.expect("a row");
            txn.delete(row)
        }));
        let its_rows = || other.node().table("t").expect("the table").row_count();
        assert_eq!(its_rows(), 2);
        while its_rows() == 2 {
            assert!(poll!(&mut deleted).is_pending(), "no journal has it");
            one.handle().yield_now().await;
        }
        let (epoch, journaling) = (one.node().store.superblock().epoch(), journaling_of(other));
        assert!(journaling.epoch() >= epoch, "{} at a delete of epoch {epoch}", journaling.epoch());
        let written = journaling.write_checkpoint(&other.node().store, &mut || true).expect("written");
        let written = written.expect("begun");
        assert!(written.until >= epoch && !journaling.is_good(&written));
        with_steps(&workers, deleted).await.expect("deleted");
        while !journaling.is_good(&written) {
            step_all(&workers).await;
        }
        // The pages of a dropped table on another node are free only when no restart can bring its rows back.
        let is_there = || other.node().table("t").is_some();
        let mut dropped = pin!(one.drop_table(&table));
        for _ in 0..1_000 {
            assert!(poll!(&mut dropped).is_pending() && is_there(), "no journal has the drop");
            one.handle().yield_now().await;
        }
        with_steps(&workers, dropped).await.expect("dropped");
        assert!(!is_there());
    });
    drop((workers, executor, nodes));
}
