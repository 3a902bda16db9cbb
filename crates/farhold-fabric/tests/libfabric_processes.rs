//! libfabric between real processes: peers that are killed or stopped in the middle of a transfer.
//!
//! The test starts itself again as the other process (`FARHOLD_LIBFABRIC_CHILD` says where).
#![cfg(feature = "libfabric")]

use farhold_fabric::{Address, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, NodeId, RegionId};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const CHILD: &str = "FARHOLD_LIBFABRIC_CHILD";
const PROVIDER: &str = "FARHOLD_LIBFABRIC_PROVIDER";
const PROVIDERS: [&str; 2] = ["libfabric:shm", "libfabric:tcp;ofi_rxm"];
const REGION: RegionId = RegionId(1);
const BYTES: usize = 8 << 20;
const MIB: usize = 1 << 20;
/// The provider's time-outs are 2 s; a paused machine may make it more.
const IN_TIME_NS: u64 = 30_000_000_000;

struct Cluster {
    dir: TempDir,
    provider: &'static str,
    test: &'static str,
}

impl Cluster {
    fn new(provider: &'static str, test: &'static str) -> Self {
        let dir = farhold_testkit::memory_directory();
        Self { dir, provider, test }
    }

    fn join(&self, node: u8) -> Fabric {
        Fabric::join(&self.dir, NodeId(node), self.provider).unwrap()
    }

    /// Node 1 in a process of its own, which has said that it is ready.
    fn child(&self, home: &Endpoint) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.test, "--nocapture"])
            .envs([(CHILD, &*self.dir.path().to_string_lossy()), (PROVIDER, self.provider)])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Process(child);
        loop {
            if home.wait(10_000_000)
                && let Some(message) = home.try_recv_home()
            {
                assert_eq!(message.bytes, b"ready");
                return child;
            }
            assert_eq!(child.0.try_wait().unwrap(), None, "the child is at work");
        }
    }
}

struct Process(Child);

impl Process {
    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }

    /// Kills it, and removes what libfabric's shared memory leaves of a process that could not clean up.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        let segments = format!("{}:", self.0.id());
        for file in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if file.file_name().to_string_lossy().starts_with(&segments) {
                let _ = std::fs::remove_file(file.path());
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.kill();
        }
    }
}

/// As node 1: a region, which the next start attaches to, and a word to node 0; then idle until killed.
fn child() -> bool {
    let Some(dir) = std::env::var_os(CHILD) else { return false };
    let fabric = Fabric::join(PathBuf::from(dir), NodeId(1), &std::env::var(PROVIDER).unwrap()).unwrap();
    let _memory = fabric.attach_region(REGION).or_else(|_| fabric.create_region(REGION, BYTES as u64)).unwrap();
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).unwrap();
    while endpoint.send(Address::home(NodeId(0)), b"ready").is_err() {
        let _ = endpoint.wait(1_000_000);
    }
    loop {
        let _ = endpoint.wait(1_000_000_000);
    }
}

fn at(node: u8, offset: usize) -> FarPtr {
    FarPtr::new(NodeId(node), REGION, offset as u64)
}

fn run(executor: &Executor, endpoint: &Endpoint, fill: impl FnOnce(&mut Batch)) -> Result<(), FabricError> {
    let mut batch = Batch::new();
    fill(&mut batch);
    executor.run(async { endpoint.submit(batch).await.all_done() })
}

/// Runs long and short instructions on node 1 until one fails. After `after` rounds it calls `happens`, which harms the node.
fn until_failure(
    executor: &Executor,
    endpoint: &Endpoint,
    after: u32,
    mut happens: impl FnMut(),
) -> (FabricError, u64) {
    let bytes = vec![5; 2 * MIB];
    let handle = executor.handle();
    let (began_ns, mut since_ns) = (handle.now_ns(), None);
    let mut round = 0;
    loop {
        let fill = |batch: &mut Batch| {
            batch.write(at(1, 0), &bytes);
            batch.read(at(1, 4 * MIB), 2 * MIB);
            batch.fetch_add(at(1, 3 * MIB), 1);
            batch.read(at(1, 3 * MIB), 100);
        };
        // Under way when it happens: posted, and not answered.
        let result = executor.run(async {
            let mut batch = Batch::new();
            fill(&mut batch);
            let mut submit = std::pin::pin!(endpoint.submit(batch));
            let mut polls = 0;
            std::future::poll_fn(|cx| {
                polls += 1;
                // If this process was delayed between two polls, everything is done by now: then try in the next round.
                if round >= after && polls == 3 && since_ns.is_none() {
                    happens();
                    since_ns = Some(handle.now_ns());
                }
                submit.as_mut().poll(cx)
            })
            .await
            .all_done()
        });
        match (result, since_ns) {
            (Ok(()), _) => round += 1,
            (Err(error), Some(since_ns)) => return (error, handle.now_ns() - since_ns),
            // A node that has just started may for a moment be mistaken for its earlier start, which is dead.
            (Err(error), None) => assert!(handle.now_ns() < began_ns + IN_TIME_NS, "{error}, though it lives"),
        }
    }
}

/// Killed in the middle: an error in time, others are reached, and the node's next start as well.
#[test]
fn a_peer_that_is_killed_in_the_middle_of_a_transfer() {
    if child() {
        return;
    }
    for provider in PROVIDERS {
        let cluster = Cluster::new(provider, "a_peer_that_is_killed_in_the_middle_of_a_transfer");
        let (zero, two) = (cluster.join(0), cluster.join(2));
        two.create_region(REGION, BYTES as u64).unwrap();
        let executor = Executor::real(1);
        let endpoint = zero.endpoint(&executor.handle()).unwrap();
        for after in [0, 3, 11] {
            let mut process = cluster.child(&endpoint);
            let _ = endpoint.refresh(NodeId(1), REGION);
            let (error, waited_ns) = until_failure(&executor, &endpoint, after, || process.kill());
            println!("{provider}: {error}, after {} ms", waited_ns / 1_000_000);
            assert_eq!(error, FabricError::NodeUnavailable { node: NodeId(1) });
            assert!(waited_ns < IN_TIME_NS, "{waited_ns}");
            assert!(!zero.node_is_live(NodeId(1)));
            assert!(endpoint.send(Address::home(NodeId(1)), b"?").is_err());
            assert_eq!(run(&executor, &endpoint, |batch| _ = batch.fetch_add(at(2, 0), 1)), Ok(()));
        }
        // What it remembers of the region is from an earlier start.
        let _process = cluster.child(&endpoint);
        let stale = FabricError::StaleKey { node: NodeId(1), region: REGION };
        assert_eq!(run(&executor, &endpoint, |batch| _ = batch.read(at(1, 0), 8)), Err(stale));
        endpoint.refresh(NodeId(1), REGION).unwrap();
        // The region outlived its processes, and the process that died in the middle has touched nothing except what it was to
        // write.
        let mut found = whole_region(&executor, &endpoint, 1);
        assert!(found[..2 * MIB].iter().all(|byte| *byte == 5), "{provider}");
        found[..2 * MIB].fill(0);
        found[3 * MIB..3 * MIB + 8].fill(0);
        assert!(found.iter().all(|byte| *byte == 0), "{provider}: node 1");
        let mut found = whole_region(&executor, &endpoint, 2);
        assert_eq!(found[..8], 3_u64.to_le_bytes());
        found[..8].fill(0);
        assert!(found.iter().all(|byte| *byte == 0), "{provider}: node 2");
    }
}

fn whole_region(executor: &Executor, endpoint: &Endpoint, node: u8) -> Vec<u8> {
    let mut found = Vec::with_capacity(BYTES);
    for offset in (0..BYTES).step_by(MIB) {
        let mut batch = Batch::new();
        let slot = batch.read(at(node, offset), MIB);
        let batch = executor.run(endpoint.submit(batch));
        found.extend_from_slice(batch.bytes(slot).unwrap());
    }
    found
}

/// Stopped in the middle, which nothing reports: an error when the time is over, and the node is used again when it goes on.
#[test]
fn a_peer_that_says_nothing_any_more() {
    if child() {
        return;
    }
    for provider in PROVIDERS {
        let cluster = Cluster::new(provider, "a_peer_that_says_nothing_any_more");
        let (zero, two) = (cluster.join(0), cluster.join(2));
        two.create_region(REGION, BYTES as u64).unwrap();
        let executor = Executor::real(1);
        let endpoint = zero.endpoint(&executor.handle()).unwrap();
        let process = cluster.child(&endpoint);
        let (error, waited_ns) = until_failure(&executor, &endpoint, 5, || process.signal("-STOP"));
        println!("{provider}: {error}, after {} ms", waited_ns / 1_000_000);
        assert_eq!(error, FabricError::NodeUnavailable { node: NodeId(1) });
        assert!(waited_ns < IN_TIME_NS, "{waited_ns}");
        assert_eq!(run(&executor, &endpoint, |batch| _ = batch.fetch_add(at(2, 0), 1)), Ok(()));
        process.signal("-CONT");
        let until_ns = executor.handle().now_ns() + IN_TIME_NS;
        while run(&executor, &endpoint, |batch| _ = batch.write(at(1, 0), &vec![6; 2 * MIB])).is_err() {
            assert!(executor.handle().now_ns() < until_ns, "it lives, and is reached");
        }
        // Transfers that fill all places and may never end do not keep other nodes' transfers waiting.
        let many = |node| move |batch: &mut Batch| (0..12).for_each(|_| _ = batch.read(at(node, 0), 2 * MIB));
        executor.run(async {
            let mut batch = Batch::new();
            many(1)(&mut batch);
            let mut stuck = std::pin::pin!(endpoint.submit(batch));
            let mut polls = 0;
            let stuck = std::future::poll_fn(|cx| {
                polls += 1;
                if polls == 3 {
                    process.signal("-STOP");
                }
                stuck.as_mut().poll(cx)
            });
            // On a fast machine all is done by then.
            drop(stuck.await.all_done());
        });
        let began_ns = executor.handle().now_ns();
        assert_eq!(run(&executor, &endpoint, many(2)), Ok(()));
        assert!(executor.handle().now_ns() < began_ns + IN_TIME_NS);
        process.signal("-CONT");
        let until_ns = executor.handle().now_ns() + IN_TIME_NS;
        while run(&executor, &endpoint, |batch| _ = batch.write(at(1, 0), &vec![6; 2 * MIB])).is_err() {
            assert!(executor.handle().now_ns() < until_ns, "it lives, and is reached");
        }
    }
}

/// A process that was stopped or got no processor has received nothing, but that is not the other side's silence.
#[test]
fn a_pause_of_ones_own_breaks_nothing() {
    if child() {
        return;
    }
    const TIMEOUT_NS: u64 = 1_000_000_000;
    for provider in ["libfabric:shm?timeout-ms=1000", "libfabric:tcp;ofi_rxm?timeout-ms=1000"] {
        let cluster = Cluster::new(provider, "a_pause_of_ones_own_breaks_nothing");
        let zero = cluster.join(0);
        let executor = Executor::real(1);
        let endpoint = zero.endpoint(&executor.handle()).unwrap();
        let process = cluster.child(&endpoint);
        assert_eq!(run(&executor, &endpoint, |batch| _ = batch.fetch_add(at(1, 0), 1)), Ok(()));
        process.signal("-STOP");
        let handle = executor.handle();
        let (mut began_ns, mut goes_on) = (None, false);
        let batch = executor.run(async {
            let mut batch = Batch::new();
            batch.fetch_add(at(1, 0), 1);
            let mut submit = std::pin::pin!(endpoint.submit(batch));
            std::future::poll_fn(|cx| {
                let polled = submit.as_mut().poll(cx);
                let began_ns = *began_ns.get_or_insert_with(|| {
                    // Posted; now neither side polls or answers for longer than an answer may take.
                    let until_ns = handle.now_ns() + 3 * TIMEOUT_NS / 2;
                    while handle.now_ns() < until_ns {
                        let _ = endpoint.wait(until_ns.saturating_sub(handle.now_ns()));
                    }
                    until_ns
                });
                // Both go on, the other one later.
                if !goes_on && handle.now_ns() > began_ns + TIMEOUT_NS / 4 {
                    process.signal("-CONT");
                    goes_on = true;
                }
                polled
            })
            .await
        });
        assert_eq!(batch.all_done(), Ok(()), "{provider}");
    }
}
