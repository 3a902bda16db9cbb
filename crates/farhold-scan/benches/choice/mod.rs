//! Scans of random configurations by every path that can be used: the observations that `benches/model.rs` evaluates.
//!
//! A configuration is a column's length, the part of the rows that pass, whether a second column is wanted, and what else goes on: nothing,
//! reads of other instructions over the same fabric, or copies that wait at the mover. Every path scans each configuration several times, in
//! turns. The features are what a query knows before it scans, by the formulas of the query planner. Both nodes are in this process, so the
//! latency is that of the provider, and varies little.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use farhold_fabric::bytes::Bytes;
use farhold_fabric::mover::{Piece, Transfer};
use farhold_fabric::{Batch, Executor, Fabric, FarPtr, RegionMemory};
use farhold_scan::access_path::{Settings, Wanted, expected_bytes, first_and_late};
use farhold_scan::model::Features;
use farhold_scan::predicate::Predicate;

use super::{BYTES, Bench, Far, HOME, below, median};

/// A fifth of them is held out.
const CONFIGURATIONS: usize = 1500;
/// Scans of each configuration by each path.
const ROUNDS: usize = 5;
const PATHS: [&str; 4] = ["direct", "offload", "pushdown", "relaxed"];
/// How long traffic is measured before a scan, as in queries.
const TRAFFIC_NS: u64 = 20_000_000;
/// Bytes of a read of the background.
const READ_BYTES: usize = 256 << 10;
/// Bytes of a copy that waits at the mover, and how many wait at most.
const QUEUED_BYTES: usize = 1 << 20;
const QUEUE_COPIES_MAX: usize = 32;

/// What else goes on.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    /// Reads of the same home, with so many nanoseconds between them.
    Traffic(u64),
    /// So many copies at the mover.
    Queue(usize),
}

struct Configuration {
    segments: usize,
    /// In 1,024ths.
    passing: u32,
    wants_payload: bool,
    load: Load,
}

impl Configuration {
    /// Lengths, parts and loads are as likely to lie between 1 and 2 as between 2 and 4. There is no mover where nothing is mapped.
    fn random(random: &mut fastrand::Rng, segments_max: usize, is_mapped: bool) -> Self {
        let mut log = |greatest: f64| greatest.powf(random.f64());
        let segments = log(segments_max as f64).round() as usize;
        let passing = log(1025.0).round() as u32 - 1;
        let (pause_ns, queued) = (log(1e6) as u64, log(QUEUE_COPIES_MAX as f64).round() as usize);
        let load = match random.u8(0..10) {
            0..4 => Load::Nothing,
            4..7 => Load::Traffic(pause_ns),
            _ if is_mapped => Load::Queue(queued),
            _ => Load::Nothing,
        };
        Self { segments, passing, wants_payload: random.bool(), load }
    }
}

/// A scan's features, the bytes that wait at the mover, and the times of its rounds by each path, in nanoseconds.
struct Observed {
    features: Features,
    queued: usize,
    ns: [Vec<f64>; PATHS.len()],
}

/// Writes a line for each scan to the file, and reports how often each path was the fastest.
pub fn choice(bench: &mut Bench, observations: Option<&Path>) {
    if bench.executor.handle().is_virtual() {
        println!("\nno scans of random configurations: in the simulation a scan takes no time");
        return;
    }
    bench
        .report
        .table("scans of random configurations: the share in which a path was the fastest, and its median time");
    let mut file = observations.map(|path| File::options().create(true).append(true).open(path).expect("the file"));
    let all = bench.columns((bench.bytes / 64).max(1 << 20), true);
    let queue = bench.region(QUEUE_COPIES_MAX * QUEUED_BYTES);
    let is_mapped = bench.endpoint.mapped(HOME, BYTES).is_some();
    let background = Background::start(bench.nodes[0].clone());
    let mut random = fastrand::Rng::with_seed(1);
    let count = if bench.report.quick { 20 } else { CONFIGURATIONS };
    let mut fastest = [0.0; PATHS.len()];
    let mut medians: [Vec<f64>; PATHS.len()] = Default::default();
    for number in 0..count {
        let configuration = Configuration::random(&mut random, all.segments.len(), is_mapped);
        let far = Far { memory: all.memory.clone(), segments: all.segments[..configuration.segments].to_vec() };
        let mut observed = observe(bench, &far, &configuration, &background, &queue);
        if let Some(file) = &mut file {
            let name = format!("{}-{number}", bench.nodes[0].provider());
            write(file, &observed, &name).expect("room for the observations");
        }
        let ns = observed.ns.each_mut().map(|ns| if ns.is_empty() { f64::INFINITY } else { median(ns) });
        ns.iter().zip(&mut medians).filter(|(ns, _)| ns.is_finite()).for_each(|(ns, all)| all.push(*ns));
        let best = (0..PATHS.len()).min_by(|left, right| ns[*left].total_cmp(&ns[*right]));
        fastest[best.expect("a path")] += 1.0 / count as f64;
    }
    for ((path, fastest), medians) in PATHS.into_iter().zip(fastest).zip(&mut medians) {
        if !medians.is_empty() {
            bench.report.row("choice", path, &[("fastest", fastest), ("us", median(medians) / 1e3)]);
        }
    }
}

fn write(file: &mut File, observed: &Observed, configuration: &str) -> std::io::Result<()> {
    let Features { bytes, latency_ns, result_bytes, traffic_bytes_s, .. } = observed.features;
    for (path, all) in PATHS.into_iter().zip(&observed.ns) {
        let queue_bytes = if path == "offload" { observed.queued } else { 0 };
        for ns in all {
            writeln!(
                file,
                "{{\"path\": \"{path}\", \"bytes\": {bytes:.0}, \"latency_ns\": {latency_ns:.0}, \"result_bytes\": {result_bytes:.0}, \
                 \"traffic_bytes_s\": {traffic_bytes_s:.0}, \"queue_bytes\": {queue_bytes}, \"time_ns\": {ns:.0}, \
                 \"configuration\": \"{configuration}\"}}"
            )?;
        }
    }
    Ok(())
}

/// Scans a configuration by every path, in turns.
fn observe(
    bench: &Bench,
    far: &Far,
    configuration: &Configuration,
    background: &Background,
    queue: &Arc<RegionMemory>,
) -> Observed {
    let predicate = below(configuration.passing);
    let columns: &[usize] = if configuration.wants_payload { &[1] } else { &[] };
    let mut features = features(far, &predicate, columns);
    features.latency_ns = bench.reads_ns(5, |batch, _| batch.read(FarPtr::new(HOME, BYTES, 0), 8)) / 5.0;
    if let Load::Traffic(pause_ns) = configuration.load {
        background.read_every(Some(pause_ns));
        features.traffic_bytes_s = traffic(bench);
    }
    let copies = if let Load::Queue(copies) = configuration.load { copies } else { 0 };
    let mut ns: [Vec<f64>; PATHS.len()] = Default::default();
    for round in 0..ROUNDS {
        for turn in 0..PATHS.len() {
            let at = (turn + round) % PATHS.len();
            let waiting: Vec<_> = (0..copies).map(|copy| waiting(bench, queue, copy)).collect();
            let by =
                bench.scan_ns(PATHS[at], far, &bench.mover, Settings::default(), &predicate, Wanted::Columns(columns));
            ns[at].extend(by.map(|ns| ns * far.rows() as f64));
            for copy in waiting {
                bench.executor.run(copy).expect("a copy");
            }
        }
    }
    background.read_every(None);
    Observed { features, queued: copies * QUEUED_BYTES, ns }
}

/// A copy at the mover.
fn waiting<'a>(bench: &'a Bench, queue: &Arc<RegionMemory>, copy: usize) -> Transfer<'a> {
    let piece = Piece { memory: queue.clone(), offset: (copy * QUEUED_BYTES) as u64, bytes: QUEUED_BYTES };
    bench.mover.copy(vec![piece], Bytes::zeroed(QUEUED_BYTES)).expect("room in the queue")
}

/// What is known of a scan before it starts: the formulas of the query planner.
fn features(far: &Far, predicate: &Predicate, columns: &[usize]) -> Features {
    let (first, late) = first_and_late(predicate, columns);
    let segments = far.segments.iter().map(|segment| {
        let of = |columns: &[usize]| columns.iter().map(|at| f64::from(segment.chunks[*at].bytes)).sum::<f64>();
        (segment.rows, of(&first), of(&late))
    });
    let (bytes, result_bytes) = expected_bytes(predicate.selectivity(), segments);
    Features { bytes, result_bytes, ..Features::default() }
}

/// Bytes a second that the fabric moves for others now.
fn traffic(bench: &Bench) -> f64 {
    let handle = bench.executor.handle();
    let (since_ns, before) = (handle.now_ns(), bench.nodes[0].bytes_moved());
    bench.executor.run(handle.sleep_ns(TRAFFIC_NS));
    (bench.nodes[0].bytes_moved() - before) as f64 * 1e9 / (handle.now_ns() - since_ns) as f64
}

/// A thread that reads the home's memory over the fabric, one read after the other.
struct Background {
    /// Nanoseconds between two reads; [`Self::REST`]: it reads nothing.
    pause_ns: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    const REST: u64 = u64::MAX;

    fn start(fabric: Fabric) -> Self {
        let (pause_ns, is_over) = (Arc::new(AtomicU64::new(Self::REST)), Arc::new(AtomicBool::new(false)));
        let (pause, over) = (pause_ns.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            let executor = Executor::real(2);
            let handle = executor.handle();
            let endpoint = fabric.endpoint(&handle).expect("an endpoint");
            while !over.load(Relaxed) {
                let pause_ns = pause.load(Relaxed);
                if pause_ns == Self::REST {
                    std::thread::park();
                    continue;
                }
                executor.run(async {
                    let mut batch = Batch::new();
                    let slot = batch.read(FarPtr::new(HOME, BYTES, 0), READ_BYTES);
                    endpoint.submit(batch).await.bytes(slot).expect("a read");
                    handle.sleep_ns(pause_ns).await;
                });
            }
        });
        Self { pause_ns, is_over, thread: Some(thread) }
    }

    fn read_every(&self, pause_ns: Option<u64>) {
        self.pause_ns.store(pause_ns.unwrap_or(Self::REST), Relaxed);
        self.wake();
    }

    fn wake(&self) {
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
