//! What far memory costs over libfabric, on one machine: a far object in one round trip against the provider's own read of as
//! many bytes, alone and with a second read of the version behind it; and our shared memory against libfabric's. Rivals of
//! one row run interleaved, block by block; each figure is the median latency of single operations in microseconds. Who asks is
//! bound to one processor, who answers to another, ours and the rival's.
//!
//! `cargo bench -p farhold-fabric --features libfabric --bench libfabric -- [--quick] [--json FILE]`

use farhold_fabric::provider::libfabric::rival::Rival;
use farhold_fabric::provider::libfabric::{Config, Secret};
use farhold_fabric::provider::shm;
use farhold_fabric::{
    Batch, Endpoint, Executor, Fabric, FarPtr, Meta, NodeId, RegionId, RegionMemory, Version, object, processor,
};
use farhold_report::Report;
use std::cell::RefCell;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

const REGION: RegionId = RegionId(1);
const BYTES: u64 = 1 << 20;
/// Operations of a rival before the next has its turn.
const BLOCK: usize = 50;

#[allow(dead_code, reason = "the tests include this file as a module and call `run`")]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.get(at + 1).expect("--json FILE").clone());
    run(args.iter().any(|arg| arg == "--quick"), json.as_deref().map(Path::new));
}

/// Threads that are made while this runs answer on another processor than the one that asks and measures, the `number`th: else it
/// is the scheduler's whim that is measured, and whether two threads share a core.
fn elsewhere<T>(number: usize, make: impl FnOnce() -> T) -> T {
    static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
    let usable = USABLE.get_or_init(processor::usable);
    let (here, there) = (usable[0], usable[number % usable.len()]);
    processor::bind_this_thread(there);
    let made = make();
    processor::bind_this_thread(here);
    made
}

/// Runs all tables.
pub fn run(quick: bool, json: Option<&Path>) {
    let mut report = Report::new(quick);
    far_objects(&mut report);
    shared_memory(&mut report);
    if let Some(path) = json {
        report.write(path).expect("write the figures");
    }
}

fn blocks(report: &Report) -> usize {
    if report.quick { 1 } else { 100 }
}

/// A node that reads and a node with memory, over some provider.
struct Bed {
    dir: PathBuf,
    executor: Executor,
    endpoint: Endpoint,
    memory: Arc<RegionMemory>,
    _nodes: [Fabric; 2],
}

impl Bed {
    fn new(name: &str, join: impl Fn(&Path, NodeId) -> Fabric) -> Self {
        let dir = shm::default_cluster(&format!("bench-{name}-{}", std::process::id()));
        let nodes = elsewhere(1, || [join(&dir, NodeId(0)), join(&dir, NodeId(1))]);
        let memory = nodes[1].create_region(REGION, BYTES).expect("a region");
        let executor = Executor::real(1);
        let endpoint = nodes[0].endpoint(&executor.handle()).expect("an endpoint");
        Self { dir, executor, endpoint, memory, _nodes: nodes }
    }

    fn over_libfabric(provider: &str, agent_spins: bool) -> Self {
        let name = format!("libfabric-{}-{agent_spins}", provider.replace(';', "-"));
        let config = |node| {
            // Only the agent that is asked: the other would take its processor.
            let agent_spins = agent_spins && node == NodeId(1);
            Config { agent_spins, ..Config::new(provider, Secret::new(b"of the bench")) }
        };
        Self::new(&name, |dir, node| Fabric::join_libfabric(dir, node, config(node)).expect("a node"))
    }

    fn format(&self, payload_len: usize) {
        let word = |offset| self.memory.word(offset).expect("inside");
        word(object::META).store(Meta::new(1, Meta::ROW, 8, payload_len).0, Ordering::Relaxed);
        word(object::VERSION).store(Version::of_epoch(1).0, Ordering::Release);
    }

    /// One batch with one instruction, and what it brought.
    fn submit(&self, batch: &mut Batch, fill: impl FnOnce(&mut Batch)) {
        batch.clear();
        fill(batch);
        *batch = self.executor.run(self.endpoint.submit(std::mem::take(batch)));
        batch.all_done().expect("done");
        black_box(&batch);
    }

    /// Median microseconds of an operation of each rival, interleaved, with nobody polling but those who must.
    fn race(&self, blocks: usize, raw: &RefCell<Rival>, rivals: &mut [(Side, &mut dyn FnMut())]) -> Vec<f64> {
        let handle = self.executor.handle();
        let mut times = vec![Vec::new(); rivals.len()];
        for block in 0..=blocks {
            for ((side, rival), times) in rivals.iter_mut().zip(&mut times) {
                raw.borrow().set_polling(*side == Side::Raw);
                for _ in 0..BLOCK {
                    let before_ns = handle.now_ns();
                    rival();
                    // The first block warms up.
                    if block > 0 {
                        times.push((handle.now_ns() - before_ns) as f64 / 1000.0);
                    }
                }
            }
        }
        times
            .into_iter()
            .map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            })
            .collect()
    }
}

/// Whose other side must be awake.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Raw,
    Ours,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn far_objects(report: &mut Report) {
    for provider in ["tcp;ofi_rxm", "shm"] {
        far_objects_of(report, provider, false);
        far_objects_of(report, provider, true);
    }
}

fn far_objects_of(report: &mut Report, provider: &str, agent_spins: bool) {
    let agent = if agent_spins { "agent spins" } else { "agent sleeps" };
    report.table(&format!("A far object over libfabric's {provider}, {agent}: us"));
    let bed = Bed::over_libfabric(provider, agent_spins);
    let raw = RefCell::new(elsewhere(2, || Rival::open(provider, BYTES)).expect("the rival"));
    for payload_len in [64, 256, 1024, 4096, 8192] {
        bed.format(payload_len);
        let (mut batch, bytes) = (Batch::new(), object::HEADER_BYTES + payload_len);
        let at = FarPtr::new(NodeId(1), REGION, 0);
        let mut object = || bed.submit(&mut batch, |batch| _ = batch.read_object(at, payload_len));
        let mut read = || assert!(raw.borrow_mut().read(0, bytes));
        let mut twice = || assert!(raw.borrow_mut().read(0, bytes) && raw.borrow_mut().read(object::VERSION, 8));
        let times = bed.race(
            blocks(report),
            &raw,
            &mut [(Side::Ours, &mut object), (Side::Raw, &mut read), (Side::Raw, &mut twice)],
        );
        let figures = [
            ("object", times[0]),
            ("raw read", times[1]),
            ("read and reread", times[2]),
            ("object/raw", times[0] / times[1]),
            ("reread/object", times[2] / times[0]),
        ];
        report.row(&format!("far object, {provider}, {agent}"), &format!("{payload_len} B"), &figures);
    }
}

fn shared_memory(report: &mut Report) {
    report.table("Shared memory, ours and libfabric's: us a read");
    let ours = Bed::new("shm", |dir, node| Fabric::join_shm(dir, node).expect("a node"));
    let over = Bed::over_libfabric("shm", false);
    let raw = RefCell::new(elsewhere(2, || Rival::open("shm", BYTES)).expect("the rival"));
    for len in [64, 1024, 8192] {
        let at = FarPtr::new(NodeId(1), REGION, 0);
        let (mut batch, mut far_batch) = (Batch::new(), Batch::new());
        let mut near = || ours.submit(&mut batch, |batch| _ = batch.read(at, len));
        let mut libfabric = || over.submit(&mut far_batch, |batch| _ = batch.read(at, len));
        let mut read = || assert!(raw.borrow_mut().read(0, len));
        let times = ours.race(
            blocks(report),
            &raw,
            &mut [(Side::Ours, &mut near), (Side::Raw, &mut read), (Side::Ours, &mut libfabric)],
        );
        let figures = [
            ("shm", times[0]),
            ("raw libfabric shm", times[1]),
            ("agent over libfabric shm", times[2]),
            ("raw/shm", times[1] / times[0]),
        ];
        report.row("shared memory", &format!("{len} B"), &figures);
    }
}
