//! Nodes that start together, later or after each other: which generation each is in, and what counts of those before.

use super::lock::running_name;
use super::*;
use crate::durable::files::DurableFile;
use crate::durable::power::Volatile;
use crate::durable::{inventory, journal};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::{fmt, io};

fn shape(directory: &Volatile, cluster: &Cluster, node: NodeId, start: u32) -> journal::Shape {
    let identity = Identity { node, ..cluster.identity };
    let segment_bytes = journal::SEGMENT_BYTES_MIN;
    let inventory = Arc::new(inventory::Inventory::open(directory, &identity).expect("a list"));
    journal::Shape { directory: Arc::new(directory.clone()), identity, start, segment_bytes, inventory }
}

/// A start of one of two nodes with copies.
fn begin(directory: &Volatile, node: u8) -> Begun {
    begin_of(directory, (NodeId(node), 2), true).expect("a start")
}

fn begin_of_three(directory: &Volatile, node: u8, comes_back: bool) -> Result<Begun, DurableError> {
    begin_of(directory, (NodeId(node), 3), comes_back)
}

fn begin_of(directory: &Volatile, (node, nodes): (NodeId, u8), comes_back: bool) -> Result<Begun, DurableError> {
    let mark = |cluster: &Cluster, start| shape(directory, cluster, node, start).make_segment(0).map(drop);
    Cluster::begin(directory, 7, (node, nodes), comes_back, &mark)
}

/// A start writes the first configuration of its generation.
fn found(directory: &Volatile, begun: &Begun, number: u64) {
    let cluster = &begun.cluster;
    let shape = shape(directory, cluster, cluster.identity.node, begun.start);
    let standing = Standing { number, starts: vec![begun.start; 2], rows_since: vec![1; 2], bytes: [0; 8].into() };
    let mut item = Vec::new();
    standing.push(&mut item);
    let mut journal = journal::Journal::new(shape.clone(), shape.make_segment(1).expect("a segment"));
    let closing = journal::Closing { closed: cluster.epoch_first, epoch_max: 0, configuration: number };
    journal.write(&[&item], closing).expect("written");
}

/// With replicas a node that starts while others run comes back to them. But all nodes may be started at once after a power
/// cut, and a node that waits for its turn does not run.
#[test]
fn those_who_start_at_once_begin_a_generation_together() {
    let directory = Volatile::default();
    let begin = |node| {
        let begun = begin(&directory, node);
        (begun.cluster.generation, begun.start, begun.lock)
    };
    let first = [begin(0), begin(1)];
    assert!(first.iter().all(|(generation, start, _)| (*generation, *start) == (1, 1)));
    let [ended, other] = first;
    drop(ended);
    let back = begin(0);
    assert_eq!((back.0, back.1), (1, 2), "the other runs");
    drop((other, back));
    let waits = directory.lock("node-0.lock").expect("a lock");
    let begun = begin(1);
    assert_eq!((begun.0, begun.1), (3, 3), "nobody runs");
    drop(waits);
    let last = begin(0);
    assert_eq!((last.0, last.1), (3, 3));
}

/// Of a member's journal some segment has a batch. Were there none, it would look as if the node had closed nothing.
#[test]
fn a_member_whose_journal_has_lost_all_batches_is_refused() {
    let directory = Volatile::default();
    let begun = [begin(&directory, 0), begin(&directory, 1)];
    found(&directory, &begun[0], 1);
    let shape = shape(&directory, &begun[1].cluster, NodeId(1), begun[1].start);
    shape.make_segment(1).expect("a segment");
    shape.inventory.forget_segments(begun[1].start, 1).expect("forgotten");
    directory.remove("node-1.journal-00000001-00000000").expect("removed");
    drop(begun);
    let refused = begin_of(&directory, (NodeId(0), 2), true).map(drop);
    assert!(matches!(refused, Err(DurableError::Damaged { .. })), "{refused:?}");
}

/// Node 0 begins a generation and node 1 enters it; both end. Then one of them begins the next generation and ends, and the
/// other takes its turn: the generation that it finds has ended, although it was not in it.
#[test]
fn a_generation_in_which_nobody_runs_is_entered_by_nobody() {
    let directory = Volatile::default();
    let begin = |node| begin(&directory, node);
    drop([begin(0), begin(1)]);
    drop(begin(0));
    let other = begin(1);
    assert_eq!((other.cluster.generation, other.start), (3, 3), "the second is over");
    let first = begin(0);
    assert_eq!((first.cluster.generation, first.start, first.is_late), (3, 3, false));
}

/// The process of a start ends, and still has one of its two locks. The next start does not go on without that lock, because
/// others would take it for a node that does not run.
#[test]
fn a_start_waits_until_the_one_before_has_ended() {
    let directory = Volatile::default();
    drop([begin(&directory, 0), begin(&directory, 1)]);
    let left = directory.lock(&running_name(NodeId(0))).expect("a lock").expect("free");
    let has_ended = AtomicBool::new(false);
    let (has_waited, begun) = std::thread::scope(|scope| {
        let start = scope.spawn(|| {
            let begun = begin(&directory, 0);
            (has_ended.load(SeqCst), begun)
        });
        for _ in 0..10_000 {
            if start.is_finished() {
                break;
            }
            std::thread::yield_now();
        }
        has_ended.store(true, SeqCst);
        drop(left);
        start.join().expect("a start")
    });
    assert!(has_waited && directory.lock(&running_name(NodeId(0))).is_ok_and(|lock| lock.is_none()));
    drop(begun);
}

/// A crash in the middle of making a segment leaves its bytes under another name; they would take room for ever.
#[test]
fn what_an_earlier_start_has_not_finished_goes() {
    let directory = Volatile::default();
    let first = begin(&directory, 0);
    let unfinished = ["node-0.journal-00000001-00000007.fresh", "node-0.checkpoint.part"];
    let others = ["node-1.journal-00000001-00000007.fresh", "node-00.fresh"];
    for name in unfinished.iter().chain(&others) {
        directory.create(name).expect("a file");
    }
    let has = |name: &&str| directory.list().expect("names").iter().any(|found| found == name);
    drop(first);
    drop(begin(&directory, 0));
    assert!(!unfinished.iter().any(has) && others.iter().all(has), "{:?}", directory.list());
}

/// A node without any of its files looks like one that has never been there, and nothing of the generation would count.
#[test]
fn without_the_files_of_a_node_nobody_starts() {
    let directory = Volatile::default();
    drop([begin(&directory, 0), begin(&directory, 1)]);
    for name in directory.list().expect("names").iter().filter(|name| name.starts_with("node-1.")) {
        directory.remove(name).expect("removed");
    }
    let start = |node, comes_back| {
        Cluster::begin(&directory, 7, (NodeId(node), 2), comes_back, &|_, _| panic!("it begins")).map(drop)
    };
    for (node, comes_back) in [(0, false), (0, true), (1, false), (1, true)] {
        let error = start(node, comes_back).expect_err("a refusal").to_string();
        assert!(error.contains("node-1.files"), "{error}");
    }
}

/// A disk on which something happens just before the first look whether node 1 runs, or which is listed as it was some time
/// ago.
#[derive(Default)]
struct Meanwhile {
    disk: Volatile,
    happens: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    names_before: Option<Vec<String>>,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)
    }
}

impl Directory for Meanwhile {
    fn list(&self) -> io::Result<Vec<String>> {
        self.names_before.clone().map_or_else(|| self.disk.list(), Ok)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DurableFile>> {
        self.disk.open(name)
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
        if name == running_name(NodeId(1)) {
            let happens = self.happens.lock().expect("no panic").take();
            if let Some(happens) = happens {
                happens();
            }
        }
        self.disk.lock(name)
    }

    fn name(&self) -> String {
        self.disk.name()
    }
}

/// All nodes are killed and started at once. A node makes its last segment, with the last epoch that it has closed, and ends,
/// after another starting node has listed the files. A third node has ended as well, or runs.
#[test]
fn what_a_node_has_done_to_its_end_counts() {
    for third_runs in [false, true] {
        let disk = Volatile::default();
        let [ended, lives, third] = [0, 1, 2].map(|node| begin_of_three(&disk, node, true).expect("a start"));
        drop(ended);
        let third = third_runs.then_some(third);
        let shape = shape(&disk, &lives.cluster, NodeId(1), lives.start);
        let happens = move || {
            let mut journal = journal::Journal::new(shape.clone(), shape.make_segment(1).expect("a segment"));
            let closing = journal::Closing { closed: 40, ..journal::Closing::default() };
            journal.write(&[], closing).expect("written");
            drop(lives);
        };
        let disk = Meanwhile { disk, happens: Mutex::new(Some(Box::new(happens))), names_before: None };
        let begun = Cluster::begin(&disk, 7, (NodeId(0), 3), true, &|_, _| Ok(())).expect("nothing is missing");
        let expected = if third.is_some() { (1, 1, 2) } else { (2, 41, 2) };
        assert_eq!((begun.cluster.generation, begun.cluster.epoch_first, begun.start), expected);
    }
}

/// A node has ended while another one runs, and one of its files is missing: a third node that has rows to restore does not
/// start without it.
#[test]
fn while_others_run_the_files_of_those_who_have_ended_must_be_there() {
    let disk = Volatile::default();
    drop([0, 1, 2].map(|node| begin_of_three(&disk, node, false).expect("a start")));
    let [_lives, ended] = [0, 1].map(|node| begin_of_three(&disk, node, false).expect("a start"));
    drop(ended);
    let missing = journal::segment_name(NodeId(1), 1, 0);
    let bytes = disk.bytes(&missing);
    disk.remove(&missing).expect("removed");
    let error = begin_of_three(&disk, 2, false).map(drop).expect_err("a refusal").to_string();
    assert!(error.contains(&missing), "{error}");
    disk.create(&missing).and_then(|file| file.write_at(0, &bytes)).expect("there again");
    begin_of_three(&disk, 2, false).expect("nothing is missing");
}

/// A start that gets its rows from the others reads no journals: a missing file of those does not prevent it.
#[test]
fn a_late_start_needs_no_files_of_others() {
    let disk = Volatile::default();
    let [lives, ended, late] = [0, 1, 2].map(|node| begin_of_three(&disk, node, true).expect("a start"));
    found(&disk, &lives, 4);
    drop([ended, late]);
    disk.remove(&journal::segment_name(NodeId(1), 1, 0)).expect("removed");
    assert!(begin_of_three(&disk, 2, true).expect("nothing is missing").is_late);
    begin_of_three(&disk, 1, true).map(drop).expect_err("its own file is missing");
}

/// Another host has begun the cluster, or goes on with it, and this host does not see its files yet.
#[test]
fn a_directory_that_is_listed_as_it_was_begins_nothing() {
    for generations in [1, 2] {
        let disk = Volatile::default();
        let mut names = Vec::new();
        for _ in 1..generations {
            drop([begin(&disk, 0), begin(&disk, 1)]);
            names = disk.list().expect("names");
        }
        let lives = begin(&disk, 0);
        let disk = Meanwhile { disk, names_before: Some(names), ..Meanwhile::default() };
        let start = || Cluster::begin(&disk, 8, (NodeId(1), 2), true, &|_, _| panic!("it begins")).map(drop);
        assert!(matches!(start(), Err(DurableError::Busy { .. })), "{:?}", start());
        assert_eq!(Cluster::read(&disk).map(|found| found.map(|it| it.generation)), Ok(Some(generations)));
        assert_eq!(lives.cluster.generation, generations);
    }
}

/// With a new cluster beside it, a list would be foreign, and the old cluster's files would be foreign as well.
#[test]
fn no_cluster_begins_beside_what_is_left_of_another() {
    for left in ["node-1.files", "node-1.journal-00000001-00000000", "node-1.checkpoint-00000001-0000000007"] {
        let directory = Volatile::default();
        directory.create(left).expect("a file");
        let error = Cluster::begin(&directory, 7, (NodeId(0), 2), true, &|_, _| panic!("it begins")).map(drop);
        assert!(error.expect_err("a refusal").to_string().contains(left));
        assert!(!directory.list().expect("names").contains(&NAME.to_owned()));
    }
}

/// Rows of a generation that was never founded are in no mirror: a start that ends before the founding leaves its place to
/// the next.
#[test]
fn a_start_in_a_generation_that_is_not_founded_restores_its_rows() {
    let directory = Volatile::default();
    let begin = |node| begin(&directory, node);
    drop([begin(0), begin(1)]);
    let (ended, other) = (begin(0), begin(1));
    assert_eq!((ended.start, other.start), (2, 2));
    drop(ended);
    let again = begin(0);
    assert_eq!((again.cluster.generation, again.start, again.is_late), (2, 3, false));
    // After the founding the others have what the node had.
    found(&directory, &other, 4);
    drop(again);
    let back = begin(0);
    assert_eq!((back.cluster.generation, back.start, back.is_late), (2, 4, true));
    drop((back, other));
    let next = begin(0);
    assert_eq!((next.cluster.generation, next.start, next.is_late), (5, 5, false));
}

fn standing() -> Standing {
    Standing { number: 5, starts: vec![1, 0, 4], rows_since: vec![1, 2, 4], bytes: b"configuration".as_slice().into() }
}

#[test]
fn other_bytes_are_refused() {
    let identity = Identity { cluster: 7, node: NodeId(0), nodes: 3 };
    let cuts = vec![Cut { node: NodeId(0), start: 1, epoch: 8 }, Cut { node: NodeId(2), start: 2, epoch: 90 }];
    for standing in [None, Some(standing())] {
        let cuts = cuts.clone();
        let begun = [5, 0, 0, 1];
        let cluster = Cluster { identity, generation: 3, start_last: 4, epoch_first: 93, begun, cuts, standing };
        let bytes = cluster.encode();
        assert_eq!(Cluster::decode(&bytes), Ok(cluster));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            Cluster::decode(&other).expect_err("a flipped bit");
            Cluster::decode(&bytes[..at]).expect_err("cut off");
        }
        let mut older = bytes[..16].to_vec();
        older[8] -= 1;
        assert!(matches!(Cluster::decode(&older), Err(DurableError::Foreign { what: "version", .. })));
    }
}
