//! What far memory costs over libfabric, on one machine. It compares a far object in one round trip with the provider's own read
//! of as many bytes, alone and with a second read of the version behind it. Beside them stand two bare messages of libfabric with
//! as many bytes as this crate's have, which is the least that a request can take (at a target that could sleep, if the home
//! agent can). It also compares this crate's shared memory with libfabric's.
//!
//! How long a message takes depends on which two processors talk: on a virtual machine the host decides how near they are. So the
//! asking thread and the answering thread are bound. Rivals take turns on the same two processors, block by block, and every
//! ordered pair of processors has its turn in every round. The answering threads of the other rivals wait on a third processor. A
//! time is the median over all blocks of the median of a block's single operations, in microseconds. A ratio compares the blocks
//! of one turn: the median of each pair of processors, and of these the median, the least and the most.
//!
//! `cargo bench -p farhold-fabric --features libfabric --bench libfabric -- [--quick] [--json FILE]`

use farhold_fabric::processor::Thread;
use farhold_fabric::provider::libfabric::rival::Rival;
use farhold_fabric::provider::libfabric::{Config, Secret};
use farhold_fabric::{
    Batch, Endpoint, Executor, Fabric, FarPtr, Handle, Meta, NodeId, RegionId, RegionMemory, Version, object, processor,
};
use farhold_report::Report;
use std::cell::RefCell;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

const REGION: RegionId = RegionId(1);
const BYTES: u64 = 1 << 20;
/// Bytes of a request for one object, and of an answer beside the object.
const REQUEST: usize = 88;
const ANSWER: usize = 48;
/// Operations of a rival before the next has its turn.
const BLOCK: usize = 50;
/// Turns that each rival has on each pair of processors.
const ROUNDS: usize = 25;

#[allow(dead_code, reason = "the tests include this file as a module and call `run`")]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.get(at + 1).expect("--json FILE").clone());
    run(args.iter().any(|arg| arg == "--quick"), json.as_deref().map(Path::new));
}

/// A value, and the threads that were started with it: they answer, so a bench binds them.
struct Served<T> {
    made: T,
    by: Vec<Thread>,
}

impl<T> Served<T> {
    fn new(make: impl FnOnce() -> T) -> Self {
        let before = processor::threads();
        let made = make();
        let by = processor::threads().into_iter().filter(|thread| !before.contains(thread)).collect();
        Self { made, by }
    }
}

/// The processors of the asking thread, of the answering thread, and of the threads whose turn it is not.
#[derive(Clone, Copy)]
struct Places {
    asks: usize,
    answers: usize,
    waits: usize,
}

impl Places {
    /// Every ordered pair of the processors that this process may use.
    fn all(quick: bool) -> Vec<Self> {
        static USABLE: OnceLock<Vec<usize>> = OnceLock::new();
        let usable = USABLE.get_or_init(processor::usable);
        let pairs = usable.iter().flat_map(|asks| usable.iter().map(move |answers| (*asks, *answers)));
        let other = |asks, answers| *usable.iter().find(|it| **it != asks && **it != answers).unwrap_or(&answers);
        let apart = pairs.filter(|(asks, answers)| asks != answers || usable.len() == 1);
        apart
            .map(|(asks, answers)| Self { asks, answers, waits: other(asks, answers) })
            .take(if quick { 1 } else { usize::MAX })
            .collect()
    }
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

/// A node that reads and a node with memory, over some provider.
struct Bed {
    _dir: TempDir,
    executor: Executor,
    endpoint: Endpoint,
    memory: Arc<RegionMemory>,
    nodes: Served<[Fabric; 2]>,
}

impl Bed {
    fn new(join: impl Fn(&Path, NodeId) -> Fabric) -> Self {
        let dir = farhold_testkit::memory_directory();
        let nodes = Served::new(|| [0, 1].map(|node| join(dir.path(), NodeId(node))));
        let memory = nodes.made[1].create_region(REGION, BYTES).expect("a region");
        let executor = Executor::real(1);
        let endpoint = nodes.made[0].endpoint(&executor.handle()).expect("an endpoint");
        Self { _dir: dir, executor, endpoint, memory, nodes }
    }

    fn over_libfabric(provider: &str, agent_spins: bool) -> Self {
        let config = |node| {
            // Only the agent that is asked: the other would take its processor.
            let agent_spins = agent_spins && node == NodeId(1);
            Config { agent_spins, ..Config::new(provider, Secret::new(b"the bench's own secret").unwrap()) }
        };
        Self::new(|dir, node| Fabric::join_libfabric(dir, node, config(node)).expect("a node"))
    }

    fn format(&self, payload_len: usize) {
        let word = |offset| self.memory.word(offset).expect("inside");
        word(object::META).store(Meta::new(1, Meta::ROW, 8, payload_len).0, Ordering::Relaxed);
        word(object::VERSION).store(Version::of_epoch(1).0, Ordering::Release);
    }

    /// One batch with one instruction, and its result.
    fn submit(&self, batch: &mut Batch, fill: impl FnOnce(&mut Batch)) {
        batch.clear();
        fill(batch);
        *batch = self.executor.run(self.endpoint.submit(std::mem::take(batch)));
        batch.all_done().expect("done");
        black_box(&batch);
    }
}

/// The provider's own reads, and the thread of their other side.
type Raw = Served<RefCell<Rival>>;

fn raw(provider: &str, can_wait: bool) -> Raw {
    Served::new(|| RefCell::new(Rival::open(provider, BYTES, can_wait).expect("the rival")))
}

/// One of the rivals.
struct Rivalling<'a> {
    /// The threads that answer.
    by: &'a [Thread],
    /// The provider's other side, which is awake only meanwhile, so that its processor is free.
    raw: Option<&'a Raw>,
    ask: &'a mut dyn FnMut(),
}

/// How long each of the rivals took: medians of blocks, by rival, pair of processors and round.
struct Race {
    places: Vec<Places>,
    times_us: Vec<Vec<Vec<f64>>>,
}

impl Race {
    fn run(quick: bool, clock: &Handle, rivals: &mut [Rivalling<'_>]) -> Self {
        let (places, rounds) = (Places::all(quick), if quick { 1 } else { ROUNDS });
        let mut times_us = vec![vec![Vec::new(); places.len()]; rivals.len()];
        for round in 0..rounds {
            for (number, pair) in places.iter().enumerate() {
                processor::bind_this_thread(pair.asks);
                // Each rival is the first in one of the turns.
                for turn in 0..rivals.len() {
                    let current = (round + turn) % rivals.len();
                    bind_all(rivals.iter().flat_map(|rival| rival.by), pair.waits);
                    let rival = &mut rivals[current];
                    bind_all(rival.by, pair.answers);
                    let set_polling = |polls| rival.raw.iter().for_each(|raw| raw.made.borrow().set_polling(polls));
                    set_polling(true);
                    times_us[current][number].push(block(clock, rival.ask));
                    set_polling(false);
                }
            }
        }
        Self { places, times_us }
    }

    /// The median over everything.
    fn time_us(&self, rival: usize) -> f64 {
        median(self.times_us[rival].iter().flatten().copied())
    }

    /// How much longer one takes than another, by pair of processors.
    fn ratios(&self, over: usize, under: usize) -> Vec<f64> {
        let pairs = self.times_us[over].iter().zip(&self.times_us[under]);
        pairs.map(|(over, under)| median(over.iter().zip(under).map(|(over, under)| over / under))).collect()
    }
}

fn bind_all<'a>(threads: impl IntoIterator<Item = &'a Thread>, processor: usize) {
    threads.into_iter().for_each(|thread| processor::bind(*thread, processor));
}

/// The median of some operations. Operations before them wake sleeping threads and load what they need into their processor's
/// caches.
fn block(clock: &Handle, ask: &mut dyn FnMut()) -> f64 {
    (0..BLOCK / 5).for_each(|_| ask());
    let mut time = || {
        let before_ns = clock.now_ns();
        ask();
        (clock.now_ns() - before_ns) as f64 / 1000.0
    };
    median((0..BLOCK).map(|_| time()))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Median, least and most of ratios.
fn summary(ratios: &[f64]) -> [f64; 3] {
    let (least, most) =
        (ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max));
    [median(ratios.iter().copied()), least, most]
}

fn far_objects(report: &mut Report) {
    for provider in ["tcp;ofi_rxm", "shm"] {
        for agent_spins in [false, true] {
            far_objects_of(report, provider, agent_spins);
        }
    }
}

fn far_objects_of(report: &mut Report, provider: &str, agent_spins: bool) {
    let agent = if agent_spins { "agent spins" } else { "agent sleeps" };
    report.table(&format!("A far object over libfabric's {provider}, {agent}: us"));
    let bed = Bed::over_libfabric(provider, agent_spins);
    let (asked, raw, clock) = (raw(provider, !agent_spins), raw(provider, false), bed.executor.handle());
    let mut by_pair = Vec::new();
    for payload_len in [64, 256, 1024, 4096, 8192] {
        bed.format(payload_len);
        let (mut batch, bytes) = (Batch::new(), object::HEADER_BYTES + payload_len);
        let at = FarPtr::new(NodeId(1), REGION, 0);
        let mut object = || bed.submit(&mut batch, |batch| _ = batch.read_object(at, payload_len));
        let mut read = || assert!(raw.made.borrow_mut().read(0, bytes));
        let mut twice = || {
            let mut raw = raw.made.borrow_mut();
            assert!(raw.read(0, bytes) && raw.read(object::VERSION, 8));
        };
        let mut exchange = || asked.made.borrow_mut().exchange(REQUEST, ANSWER + bytes);
        let mut rivals = [
            Rivalling { by: &bed.nodes.by, raw: None, ask: &mut object },
            Rivalling { by: &raw.by, raw: Some(&raw), ask: &mut read },
            Rivalling { by: &raw.by, raw: Some(&raw), ask: &mut twice },
            Rivalling { by: &asked.by, raw: Some(&asked), ask: &mut exchange },
        ];
        let race = Race::run(report.quick, &clock, &mut rivals);
        let (over_raw, over_object) = (race.ratios(0, 1), race.ratios(2, 0));
        let ([over, over_least, over_most], [gain, gain_least, gain_most]) =
            (summary(&over_raw), summary(&over_object));
        let figures = [
            ("object", race.time_us(0)),
            ("raw read", race.time_us(1)),
            ("read and reread", race.time_us(2)),
            ("raw exchange", race.time_us(3)),
            ("object/raw", over),
            ("least", over_least),
            ("most", over_most),
            ("reread/object", gain),
            ("the least", gain_least),
            ("the most", gain_most),
            ("object/exchange", summary(&race.ratios(0, 3))[0]),
        ];
        report.row(&format!("far object, {provider}, {agent}"), &format!("{payload_len} B"), &figures);
        by_pair.push((payload_len, race.places, over_raw, over_object));
    }
    report.table(&format!("The same by pair of processors (who asks - who answers), {provider}, {agent}"));
    for (payload_len, places, over_raw, over_object) in by_pair {
        for (name, ratios) in [("object/raw", over_raw), ("reread/object", over_object)] {
            let pairs: Vec<String> = places.iter().map(|pair| format!("{}-{}", pair.asks, pair.answers)).collect();
            let figures: Vec<(&str, f64)> = pairs.iter().map(String::as_str).zip(ratios).collect();
            report.row(&format!("by pair, {provider}, {agent}"), &format!("{payload_len} B, {name}"), &figures);
        }
    }
}

fn shared_memory(report: &mut Report) {
    report.table("Shared memory, ours and libfabric's: us a read");
    let ours = Bed::new(|dir, node| Fabric::join_shm(dir, node).expect("a node"));
    let over = Bed::over_libfabric("shm", false);
    let (raw, clock) = (raw("shm", false), ours.executor.handle());
    for len in [64, 1024, 8192] {
        let at = FarPtr::new(NodeId(1), REGION, 0);
        let (mut batch, mut far_batch) = (Batch::new(), Batch::new());
        let mut near = || ours.submit(&mut batch, |batch| _ = batch.read(at, len));
        let mut libfabric = || over.submit(&mut far_batch, |batch| _ = batch.read(at, len));
        let mut read = || assert!(raw.made.borrow_mut().read(0, len));
        let mut rivals = [
            Rivalling { by: &ours.nodes.by, raw: None, ask: &mut near },
            Rivalling { by: &raw.by, raw: Some(&raw), ask: &mut read },
            Rivalling { by: &over.nodes.by, raw: None, ask: &mut libfabric },
        ];
        let race = Race::run(report.quick, &clock, &mut rivals);
        let [gain, least, most] = summary(&race.ratios(1, 0));
        let figures = [
            ("shm", race.time_us(0)),
            ("raw libfabric shm", race.time_us(1)),
            ("agent over libfabric shm", race.time_us(2)),
            ("raw/shm", gain),
            ("least", least),
            ("most", most),
        ];
        report.row("shared memory", &format!("{len} B"), &figures);
    }
}
