//! Shared memory between real processes: the state that a process leaves when it is killed at the worst moment.
//!
//! The test starts itself again as the other process (`FARHOLD_FABRIC_CHILD` says as what).

use farhold_fabric::{
    Address, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId, provider::shm,
};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use tempfile::TempDir;

const CHILD: &str = "FARHOLD_FABRIC_CHILD";
const REGION: RegionId = RegionId(1);
const TURN_NS: u64 = 1_000_000;
/// Of the child's start.
const BIRTH: u64 = 7;

struct Cluster(TempDir);

impl Cluster {
    fn new() -> Self {
        Self(farhold_testkit::memory_directory())
    }

    fn child(&self, test: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, self.0.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

fn child_of() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// As node 1: a region with a word and a message to node 0; then counts until it is killed.
fn counting_child(cluster: &Path) {
    let fabric = Fabric::join_shm(cluster, NodeId(1)).unwrap();
    fabric.set_birth(BIRTH);
    let memory = fabric.create_region(REGION, 1 << 20).unwrap();
    memory.copy_in(4096, b"left behind").unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    endpoint.send(Address::home(NodeId(0)), b"ready").unwrap();
    loop {
        // With pauses: the watching process may have this processor, too.
        (0..1000).for_each(|_| _ = memory.word(0).unwrap().fetch_add(1, Ordering::Relaxed));
        std::thread::yield_now();
    }
}

/// Waits until the message of a [`counting_child`] is there. A single wait may end earlier, because a sender that takes a lane
/// wakes, too.
fn hear_of(child: &mut Child, endpoint: &Endpoint) {
    let message = loop {
        if let Some(message) = endpoint.try_recv_home() {
            break message;
        }
        assert_eq!(child.try_wait().unwrap(), None, "the child is at work");
        let _ = endpoint.wait(TURN_NS);
    };
    assert_eq!(message.bytes, b"ready");
}

/// A killed process leaves its region to readers, gives its node back, and the next process of that node goes on with it.
#[test]
fn a_killed_process_leaves_its_region() {
    if let Some(cluster) = child_of() {
        return counting_child(&cluster);
    }
    let cluster = Cluster::new();
    let fabric = Fabric::join_shm(&cluster.0, NodeId(0)).unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    let mut child = cluster.child("a_killed_process_leaves_its_region");
    hear_of(&mut child, &endpoint);

    let pid = child.id();
    let taken = Fabric::join_shm(&cluster.0, NodeId(1)).err().unwrap();
    assert!(
        matches!(taken, FabricError::NodeInUse { node: NodeId(1), holder_pid, .. } if holder_pid == pid),
        "{taken}"
    );
    assert!(matches!(shm::remove(cluster.0.path()), Err(FabricError::NodeInUse { .. })));
    assert!(fabric.node_is_live(NodeId(1)));

    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!fabric.node_is_live(NodeId(1)));
    let at = |offset| FarPtr::new(NodeId(1), REGION, offset);
    executor.run(async {
        let mut batch = Batch::new();
        let text = batch.read(at(4096), 11);
        let count = batch.fetch_add(at(0), 0);
        let batch = endpoint.submit(batch).await;
        assert_eq!(batch.bytes(text).unwrap(), b"left behind", "readable without its process");
        let count = batch.word(count).unwrap();

        let heir = Fabric::join_shm(&cluster.0, NodeId(1)).unwrap();
        let memory = heir.attach_region(REGION).unwrap();
        assert_eq!(memory.word(0).unwrap().load(Ordering::Relaxed), count);
    });
}

/// As node 1: floods node 0's home inbox until killed.
fn flooding_child(cluster: &Path) {
    let fabric = Fabric::join_shm(cluster, NodeId(1)).unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    for number in 0u64.. {
        let message: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(8 * (1 + number as usize % 500)).collect();
        while endpoint.send(Address::home(NodeId(0)), &message).is_err() {
            std::thread::yield_now();
        }
    }
}

/// A sender that is killed in the middle of a put harms no other: what it completed is whole and in order, others still send, and
/// its lane is used again.
#[test]
fn a_killed_sender_does_not_wedge_an_inbox() {
    if let Some(cluster) = child_of() {
        return flooding_child(&cluster);
    }
    let cluster = Cluster::new();
    let fabric = Fabric::join_shm(&cluster.0, NodeId(0)).unwrap();
    let executor = Executor::real(1);
    let (endpoint, other) =
        (fabric.endpoint(&executor.handle()).unwrap(), fabric.endpoint(&executor.handle()).unwrap());
    for round in 0..10 {
        let mut child = cluster.child("a_killed_sender_does_not_wedge_an_inbox");
        let mut next = 0u64;
        let mut check = |bytes: &[u8]| {
            let message: Vec<u8> = next.to_le_bytes().into_iter().cycle().take(8 * (1 + next as usize % 500)).collect();
            assert_eq!(bytes, message, "message {next} of round {round}");
            next += 1;
        };
        for _ in 0..3000 + round * 97 {
            let message = loop {
                match endpoint.try_recv_home() {
                    Some(message) => break message,
                    None => _ = endpoint.wait(TURN_NS),
                }
            };
            check(&message.bytes);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        other.send(Address::home(NodeId(0)), b"the living").unwrap();
        loop {
            let message = endpoint.try_recv_home().expect("the living are heard");
            if message.from == other.address() {
                assert_eq!(message.bytes, b"the living");
                // The dead sender's messages that come behind this one's stay whole and in order.
                while let Some(message) = endpoint.try_recv_home() {
                    check(&message.bytes);
                }
                break;
            }
            check(&message.bytes);
        }
    }
}

/// More killed senders than an inbox has lanes: lanes of the dead are taken over.
#[test]
fn lanes_of_the_dead_are_taken_over() {
    if let Some(cluster) = child_of() {
        let fabric = Fabric::join_shm(cluster, NodeId(1)).unwrap();
        let executor = Executor::real(1);
        let senders: Vec<_> =
            (0..farhold_fabric::provider::LANES).map(|_| fabric.endpoint(&executor.handle()).unwrap()).collect();
        for sender in &senders {
            sender.send(Address::home(NodeId(0)), b"last words").unwrap();
        }
        std::process::abort();
    }
    let cluster = Cluster::new();
    let fabric = Fabric::join_shm(&cluster.0, NodeId(0)).unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    for _ in 0..2 {
        let mut child = cluster.child("lanes_of_the_dead_are_taken_over");
        assert!(!child.wait().unwrap().success());
        for _ in 0..farhold_fabric::provider::LANES {
            assert_eq!(endpoint.try_recv_home().unwrap().bytes, b"last words");
        }
    }
    endpoint.send(Address::home(NodeId(0)), b"mine").unwrap();
    assert_eq!(endpoint.try_recv_home().unwrap().bytes, b"mine");
}

/// Once the call has fenced a node, the node's process touches nothing any more.
#[test]
fn a_fenced_process_has_ended() {
    if let Some(cluster) = child_of() {
        return counting_child(&cluster);
    }
    let cluster = Cluster::new();
    let fabric = Fabric::join_shm(&cluster.0, NodeId(0)).unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    assert!(fabric.fence(NodeId(1), BIRTH).unwrap(), "nobody to shut out");
    let mut child = cluster.child("a_fenced_process_has_ended");
    hear_of(&mut child, &endpoint);
    let memory = endpoint.mapped(NodeId(1), REGION).unwrap();
    assert!(fabric.fence(NodeId(1), BIRTH + 1).unwrap(), "another start has ended before");
    assert_eq!(child.try_wait().unwrap(), None, "and this one goes on");
    while !fabric.fence(NodeId(1), BIRTH).unwrap() {}
    let count = memory.word(0).unwrap().load(Ordering::Relaxed);
    assert!(!fabric.node_is_live(NodeId(1)));
    assert!(!child.wait().unwrap().success());
    assert_eq!(memory.word(0).unwrap().load(Ordering::Relaxed), count, "it counts no more");
    let own = Fabric::join_shm(&cluster.0, NodeId(2)).unwrap();
    assert!(matches!(fabric.fence(own.node(), BIRTH), Err(FabricError::Unsupported { .. })), "not this very process");
}

/// A process that is out of descriptors cannot check another process; the failure says nothing about the other.
#[test]
fn a_failed_look_is_no_death() {
    if let Some(cluster) = child_of() {
        let fabric = Fabric::join_shm(cluster, NodeId(0)).unwrap();
        assert!(fabric.node_is_live(NodeId(1)), "seen");
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call reads the limits alone. This process is the test's own child.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        assert!(fabric.node_is_live(NodeId(1)), "it may live");
        let fenced = fabric.fence(NodeId(1), BIRTH);
        assert!(matches!(fenced, Err(FabricError::Io(_))), "not shut out, and said so: {fenced:?}");
        return;
    }
    let cluster = Cluster::new();
    let living = Fabric::join_shm(&cluster.0, NodeId(1)).unwrap();
    living.set_birth(BIRTH);
    assert!(cluster.child("a_failed_look_is_no_death").wait().unwrap().success());
}

/// Number and start time of its process in a node's entry.
const AT_PID: u64 = 16;
const AT_STARTED: u64 = 24;

/// A lock that another process has taken keeps no dead node alive. A process that has been given the dead process's number is not
/// ended in its place.
#[test]
fn a_number_alone_is_no_process() {
    let cluster = Cluster::new();
    let fabric = Fabric::join_shm(&cluster.0, NodeId(0)).unwrap();
    drop(Fabric::join_shm(&cluster.0, NodeId(1)).unwrap());
    let mut innocent = Command::new("sleep").arg("1000").spawn().unwrap();
    let entry = std::fs::OpenOptions::new().read(true).write(true).open(cluster.0.path().join("node-001")).unwrap();
    entry.write_all_at(&u64::from(innocent.id()).to_le_bytes(), AT_PID).unwrap();
    entry.write_all_at(&1_u64.to_le_bytes(), AT_STARTED).unwrap();
    entry.lock().unwrap();
    let is_live = fabric.node_is_live(NodeId(1));
    let is_fenced = fabric.fence(NodeId(1), BIRTH);
    let ended = innocent.try_wait().unwrap();
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    assert_eq!((is_live, is_fenced, ended), (false, Ok(true), None));
}

/// Other users of the host neither read nor lock a cluster's files, and no link at one of their names is followed.
#[test]
fn a_cluster_is_its_user_s_alone() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("cluster");
    let fabric = Fabric::join_shm(&cluster, NodeId(0)).unwrap();
    fabric.create_region(REGION, 1 << 20).unwrap();
    let executor = Executor::real(1);
    let _endpoint = fabric.endpoint(&executor.handle()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&cluster), 0o700);
    let files: Vec<_> = std::fs::read_dir(&cluster).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 4, "entry, region and two inboxes: {files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    let bait = cluster.join("bait");
    std::fs::write(&bait, b"to be kept").unwrap();
    symlink(&bait, cluster.join("node-002")).unwrap();
    let refused = Fabric::join_shm(&cluster, NodeId(2)).err().unwrap();
    assert!(matches!(&refused, FabricError::Io(why) if why.reason.contains("link")), "{refused}");
    assert_eq!(std::fs::read(&bait).unwrap(), b"to be kept");
    let link = directory.path().join("link");
    symlink(&cluster, &link).unwrap();
    assert!(Fabric::join_shm(&link, NodeId(2)).is_err());
}
