//! Ways to read the columns of another node, in one run, taking turns.
//!
//! ```text
//! cargo bench -p farhold-scan --bench paths                          every experiment over shm, with columns up to 1 GiB
//! cargo bench -p farhold-scan --bench paths -- blocks flight         some of them
//!                              ... --provider shm|tcp|sim            tcp needs the feature libfabric; sim counts virtual time
//!                              ... --memory 512                      MiB of the longest copy and column
//!                              ... --quick                           what the tests run: figures without meaning
//!                              ... --json FILE
//!                              ... choice --observations FILE        adds a line for each of its scans, for the bench `model`
//! ```
//!
//! The experiments are those of Dreseler et al. on the copy engine of an SGI UV ("GRU"), with 10-bit codes:
//!
//! | experiment | of | measures |
//! |---|---|---|
//! | copy | ADMS 2017, figure 3 | copies that the caller waits for, and asynchronous ones, by size |
//! | scan | figure 5 | time a row by the column's size: in place, with one buffer, with two |
//! | blocks | figure 6 | time a row by the bytes of a block |
//! | overlap | (none) | the time of a scan with two buffers over the longer of copying and scanning alone, by the bytes of a block |
//! | flight | (none) | time a row by the copies in flight |
//! | result | Adaptive Access Path Selection, figure 5 | time a row by the part of the rows that pass |
//! | aggregates | (none) | time a row of a sum and a maximum, which `pushdown` computes at the home node |
//! | relaxed | the same, figure 7 | reads of bytes that never change, and reads by the home node's agent, by size |
//! | choice | the same, section 5 | scans of random configurations by every path; only where it is named |
//!
//! Both nodes are in this process, so shm measures memory of this machine, not of another socket. In the simulation a scan takes no
//! time; only reads do.
#![expect(clippy::cast_precision_loss, reason = "rates, not counts")]

mod choice;

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use farhold_fabric::bytes::Bytes;
use farhold_fabric::mover::{Mover, Piece, Processor};
use farhold_fabric::provider::sim::{Faults, Numa, Sim};
use farhold_fabric::{Batch, Endpoint, Executor, Fabric, FarPtr, NodeId, RegionId, RegionMemory, Slot};
use farhold_report::Report;
use farhold_scan::access_path::pushdown::{Messages, RegionHome, answer};
use farhold_scan::access_path::{
    Aggregate, FarChunk, FarSegment, Found, Pinned, Reader, Scan, Settings, Values, Wanted, by_name,
};
use farhold_scan::predicate::{Comparison, Condition, Constant, Predicate};
use farhold_store::column::{CHUNK_ROWS_MAX, Nulls, encode_integers};
use farhold_store::row::{Column, ColumnType, Schema};
use farhold_testkit::{TempDir, memory_directory};

const READER: NodeId = NodeId(1);
const HOME: NodeId = NodeId(2);
const BYTES: RegionId = RegionId(1);
const COLUMNS: RegionId = RegionId(2);
const SECOND_NS: u64 = 1_000_000_000;

/// Its name, and how it is measured.
type Experiment = (&'static str, fn(&mut Bench));

const EXPERIMENTS: [Experiment; 8] = [
    ("copy", copy),
    ("scan", scan),
    ("blocks", blocks),
    ("overlap", overlap),
    ("flight", flight),
    ("result", result),
    ("aggregates", aggregates),
    ("relaxed", relaxed),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value =
        |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    // `cargo test --benches` runs it without `--bench`.
    let quick = arguments.iter().any(|argument| argument == "--quick") || !arguments.iter().any(|a| a == "--bench");
    let memory_mib = value("--memory").map_or(1024, |mib| mib.parse().expect("--memory takes a number of MiB"));
    let provider = value("--provider").map_or("shm", String::as_str);
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    let all = !asked("choice") && !EXPERIMENTS.iter().any(|(name, _)| asked(name));
    let bytes = if quick { 1 << 20 } else { memory_mib << 20 };
    let mut bench = Bench::new(provider, bytes, quick);
    for (_, run) in EXPERIMENTS.iter().filter(|(name, _)| all || asked(name)) {
        run(&mut bench);
    }
    if quick || asked("choice") {
        choice::choice(&mut bench, value("--observations").map(Path::new));
    }
    if let Some(path) = value("--json") {
        bench.report.write(Path::new(path)).expect("the file of the figures");
    }
}

/// The columns of the bench are written once, and stay until it ends.
struct Always;

// SAFETY: the bench writes a region's chunks when it makes the region, and neither changes nor removes it while it reads.
unsafe impl Pinned for Always {
    fn covers(&self, _: FarChunk) -> bool {
        true
    }
}

/// Two nodes, what the reading one reads with, and what has been measured.
struct Bench {
    report: Report,
    executor: Executor,
    #[cfg_attr(not(feature = "libfabric"), expect(dead_code, reason = "kept for its end, which removes it"))]
    directory: Option<TempDir>,
    nodes: [Fabric; 2],
    endpoint: Endpoint,
    agent: Endpoint,
    mover: Mover,
    schema: Schema,
    /// Bytes of the longest copy and column.
    bytes: usize,
    rounds: usize,
}

/// Rows of the home node as chunks.
struct Far {
    memory: Arc<RegionMemory>,
    segments: Vec<FarSegment>,
}

impl Far {
    fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }
}

impl Bench {
    fn new(provider: &str, bytes: usize, quick: bool) -> Self {
        let directory = memory_directory();
        let (executor, nodes) = match provider {
            "shm" => {
                (Executor::real(1), [READER, HOME].map(|node| Fabric::join_shm(&directory, node).expect("a node")))
            }
            "tcp" => (Executor::real(1), [READER, HOME].map(|node| join_tcp(directory.path(), node, 64 << 10))),
            "sim" => {
                let executor = Executor::virtual_time(1);
                let sim = Sim::new(&executor.handle(), Numa, Faults::default());
                let nodes = [READER, HOME].map(|node| sim.join(node).expect("a node"));
                (executor, nodes)
            }
            other => panic!("--provider {other}: shm, tcp or sim"),
        };
        let [endpoint, agent] = [0, 1].map(|node| nodes[node].endpoint(&executor.handle()).expect("an endpoint"));
        // Chunks do not know of keys.
        let columns = ["code", "payload"].map(|name| Column::new(name, ColumnType::BigInt));
        Self {
            report: Report::new(quick),
            executor,
            directory: (provider != "sim").then_some(directory),
            nodes,
            endpoint,
            agent,
            mover: Mover::start(1, Processor).expect("a thread"),
            schema: Schema::new(columns.into(), vec![0]).expect("a schema"),
            // Each line of a simulated copy is an event.
            bytes: if provider == "sim" { bytes.min(16 << 20) } else { bytes },
            rounds: if quick { 1 } else { 7 },
        }
    }

    /// A region of the home node with `bytes` bytes that are no zeros.
    fn region(&self, bytes: usize) -> Arc<RegionMemory> {
        let _ = self.nodes[1].remove_region(BYTES);
        let memory = self.nodes[1].create_region(BYTES, bytes as u64).expect("a region");
        memory.reserve(0, bytes as u64).expect("memory for a region");
        let some: Vec<u8> = (0..1 << 20).map(|at| (at * 7 % 251) as u8).collect();
        for start in (0..bytes).step_by(some.len()) {
            memory.copy_in(start as u64, &some[..some.len().min(bytes - start)]).expect("inside");
        }
        let _ = self.endpoint.refresh(HOME, BYTES);
        memory
    }

    /// Segments whose first column has about `bytes` bytes of 10-bit codes, and whose second one has 32-bit codes, if it is wanted.
    fn columns(&self, bytes: usize, has_payload: bool) -> Far {
        let mut random = fastrand::Rng::with_seed(1);
        let mut chunk = |limit: i64| {
            let mut values: Vec<i64> = (0..CHUNK_ROWS_MAX).map(|_| random.i64(0..limit)).collect();
            (values[0], values[1]) = (0, limit - 1);
            encode_integers(&values, &Nulls::default())
        };
        let different: Vec<[Vec<u8>; 2]> = (0..4).map(|_| [chunk(1024), chunk(1 << 32)]).collect();
        let code_bytes = different[0][0].len();
        let count = (bytes / code_bytes).max(1);
        let segment_bytes = code_bytes + if has_payload { different[0][1].len() } else { 0 };
        let _ = self.nodes[1].remove_region(COLUMNS);
        let memory = self.nodes[1].create_region(COLUMNS, (count * segment_bytes) as u64).expect("a region");
        memory.reserve(0, (count * segment_bytes) as u64).expect("memory for the columns");
        let _ = self.endpoint.refresh(HOME, COLUMNS);
        let mut end = 0;
        let segments = (0..count).map(|segment| {
            let [code, payload] = &different[segment % different.len()];
            let mut put = |bytes: &[u8]| {
                memory.copy_in(end, bytes).expect("inside");
                let chunk = FarChunk { at: memory.far_ptr(end), bytes: bytes.len() as u32 };
                end += bytes.len() as u64;
                chunk
            };
            let code = put(code);
            let payload = if has_payload { put(payload) } else { code };
            FarSegment { rows: CHUNK_ROWS_MAX, chunks: vec![code, payload], ended: Vec::new() }
        });
        let segments = segments.collect();
        Far { memory, segments }
    }

    /// How long a future takes.
    fn time_ns(&self, future: impl Future) -> f64 {
        let handle = self.executor.handle();
        let since_ns = handle.now_ns();
        black_box(self.executor.run(future));
        (handle.now_ns() - since_ns) as f64
    }

    /// How long `count` reads take, one after the other. The batch has its memory before: pages that are touched for the first time cost more than
    /// what is read into them.
    fn reads_ns(&self, count: usize, read: impl Fn(&mut Batch, usize) -> Slot) -> f64 {
        let mut batch = Batch::new();
        let mut reads = async |count: usize| {
            for n in 0..count {
                batch.clear();
                let slot = read(&mut batch, n);
                batch = self.endpoint.submit(std::mem::take(&mut batch)).await;
                black_box(batch.bytes(slot).expect("a read"));
            }
        };
        self.executor.run(reads(1));
        self.time_ns(reads(count))
    }

    /// How long the mover takes for some pieces of mapped memory, one after the other, into a buffer whose pages are there.
    fn moved_ns(
        &self,
        memory: &Arc<RegionMemory>,
        bytes_max: usize,
        pieces: impl Iterator<Item = (u64, usize)>,
    ) -> f64 {
        let mut buffer = Some(touched(bytes_max));
        self.time_ns(async {
            for (offset, bytes) in pieces {
                let piece = Piece { memory: memory.clone(), offset, bytes };
                let transfer = self.mover.copy(vec![piece], buffer.take().expect("a buffer"));
                buffer = Some(transfer.expect("room in the queue").await.expect("a copy"));
            }
        })
    }

    /// Nanoseconds a row of a scan by a path from the reading node; `None` if it cannot be used.
    fn scan_ns(
        &self,
        path: &str,
        far: &Far,
        mover: &Mover,
        settings: Settings,
        predicate: &Predicate,
        wanted: Wanted<'_>,
    ) -> Option<f64> {
        self.scan_from(&self.endpoint, path, far, mover, settings, predicate, wanted)
    }

    /// The same from an endpoint.
    #[expect(clippy::too_many_arguments, reason = "as [`Self::scan_ns`], and where it begins")]
    fn scan_from(
        &self,
        endpoint: &Endpoint,
        path: &str,
        far: &Far,
        mover: &Mover,
        settings: Settings,
        predicate: &Predicate,
        wanted: Wanted<'_>,
    ) -> Option<f64> {
        let path = by_name(path).expect("a path");
        let line = Messages::new(endpoint, self.agent.address(), 60 * SECOND_NS);
        let reader = Reader { endpoint, pinned: &Always, mover: Some(mover), line: Some(&line), settings };
        let scan = Scan { schema: &self.schema, segments: &far.segments, predicate, wanted };
        if path.unusable(&reader, &scan).is_some() {
            return None;
        }
        // The result: the positions and values of the rows that pass, or the aggregates of each segment.
        let mut positions: Vec<u32> = Vec::new();
        let mut sink = |found: &Found<'_>| {
            if let Values::OfAll(chunks) | Values::OfPassing(chunks) = found.values {
                positions.clear();
                positions.extend(found.places().map(|(row, _)| row as u32));
                for chunk in chunks {
                    black_box(found.places().filter_map(|(_, at)| chunk.integer(at)).fold(0, i64::wrapping_add));
                }
            }
            black_box((found, &positions));
            ControlFlow::Continue(())
        };
        let home = RegionHome { schema: &self.schema, memory: &far.memory, pinned: &Always };
        let agent = async {
            loop {
                let message = self.agent.recv().await;
                answer(&self.agent, &home, &message).await.expect("room for the reply");
            }
        };
        let scanning = async { path.scan(&reader, &scan, &mut sink).await.expect("a scan") };
        // An agent that polls beside a scan which needs none would cost it time.
        let ns = if path.name == "pushdown" { self.time_ns(beside(scanning, agent)) } else { self.time_ns(scanning) };
        Some(ns / far.rows() as f64)
    }

    /// Times of several ways, in turns: the median of each, by its name.
    fn in_turns(&self, ways: &[(&'static str, &dyn Fn() -> Option<f64>)]) -> Vec<(&'static str, f64)> {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        for _ in 0..self.rounds {
            for ((_, way), times) in ways.iter().zip(&mut times) {
                times.extend(way());
            }
        }
        let named = ways.iter().zip(&mut times).filter(|(_, times)| !times.is_empty());
        named.map(|((name, _), times)| (*name, median(times))).collect()
    }

    /// Powers of `factor` from `from` to the longest.
    fn sizes(&self, from: usize, factor: usize) -> Vec<usize> {
        std::iter::successors(Some(from), |size| size.checked_mul(factor))
            .take_while(|size| *size <= self.bytes)
            .collect()
    }
}

#[cfg(feature = "libfabric")]
fn join_tcp(directory: &Path, node: NodeId, bulk_bytes_min: usize) -> Fabric {
    use farhold_fabric::provider::libfabric::{Config, Secret};
    let mut config = Config::new("tcp;ofi_rxm", Secret::new(b"the secret of the bench").expect("a secret"));
    config.bulk_bytes_min = bulk_bytes_min;
    Fabric::join_libfabric(directory, node, config).expect("libfabric's tcp")
}

#[cfg(not(feature = "libfabric"))]
fn join_tcp(_: &Path, _: NodeId, _: usize) -> Fabric {
    panic!("--provider tcp needs --features libfabric")
}

/// Polls both until the first is over.
async fn beside<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> T {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|cx| {
        let polled = first.as_mut().poll(cx);
        if polled.is_pending() {
            let _ = second.as_mut().poll(cx);
        }
        polled
    })
    .await
}

/// Bytes whose pages are there.
fn touched(size: usize) -> Bytes {
    let mut bytes = Bytes::zeroed(size);
    bytes[..size].fill(1);
    bytes
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Codes equal to one of 1,024 values: a bit a row is the result.
fn equality() -> Predicate {
    let mut predicate = Predicate::everything();
    predicate.push(Condition::Compare(0, Comparison::Equal, Constant::Integer(511)), 0.001);
    predicate
}

/// Codes below a constant: so many 1,024ths of the rows pass.
fn below(passing: u32) -> Predicate {
    let mut predicate = Predicate::everything();
    let condition = Condition::Compare(0, Comparison::Less, Constant::Integer(passing.into()));
    predicate.push(condition, f64::from(passing) / 1024.0);
    predicate
}

/// Figure 3: gigabytes a second by size.
fn copy(bench: &mut Bench) {
    bench.report.table("copies that are waited for, and asynchronous copies, GB/s by bytes");
    let memory = bench.region(bench.bytes);
    let is_mapped = bench.endpoint.mapped(HOME, BYTES).is_some();
    let sizes: Vec<usize> = bench.sizes(100, 10).into_iter().chain([bench.bytes]).collect();
    for size in sizes {
        // Short copies are many: each at a place of its own, so that caches do not have it.
        let count = (bench.bytes / size).clamp(1, if bench.report.quick { 4 } else { 2000 });
        let at = |n: usize| (n * (bench.bytes / count)) as u64;
        let waited = || Some(bench.reads_ns(count, |batch, n| batch.read(FarPtr::new(HOME, BYTES, at(n)), size)));
        let plain = || {
            let mut buffer = touched(size);
            is_mapped.then(|| {
                bench.time_ns(async {
                    for n in 0..count {
                        memory.copy_out(at(n), &mut buffer[..size]).expect("inside");
                    }
                    black_box(&buffer);
                })
            })
        };
        let moved = || is_mapped.then(|| bench.moved_ns(&memory, size, (0..count).map(|n| (at(n), size))));
        let ways: [(_, &dyn Fn() -> _); 3] = [("memcpy", &plain), ("submit", &waited), ("mover", &moved)];
        let rates = bench.in_turns(&ways).into_iter().map(|(name, ns)| (name, (size * count) as f64 / ns));
        let rates: Vec<(&str, f64)> = rates.collect();
        bench.report.row("copy", &size.to_string(), &rates);
    }
}

/// Figure 5: nanoseconds a row by the column's bytes.
fn scan(bench: &mut Bench) {
    bench.report.table("scans of a column of 10-bit codes, ns a row by the column's bytes");
    for size in bench.sizes(256 << 10, 4) {
        let far = bench.columns(size, false);
        let settings = |buffers| Settings { buffers, ..Settings::default() };
        let predicate = equality();
        let by = |path, buffers| {
            bench.scan_ns(path, &far, &bench.mover, settings(buffers), &predicate, Wanted::Columns(&[]))
        };
        let times = bench.in_turns(&[
            ("direct", &|| by("direct", 1)),
            ("one_buffer", &|| by("offload", 1)),
            ("two_buffers", &|| by("offload", 2)),
            ("relaxed", &|| by("relaxed", 1)),
            ("pushdown", &|| by("pushdown", 1)),
        ]);
        bench.report.row("scan", &size.to_string(), &times);
    }
}

/// The column of the sweeps.
fn swept(bench: &Bench) -> Far {
    bench.columns((bench.bytes / 4).max(1 << 20), false)
}

/// Figure 6: nanoseconds a row by a block's bytes.
fn blocks(bench: &mut Bench) {
    bench.report.table("scans with two buffers, ns a row by the bytes of a block");
    let far = swept(bench);
    for block_bytes in (12..=24).map(|bits| 1_usize << bits).filter(|bytes| *bytes <= bench.bytes) {
        let by = |buffers| {
            let settings = Settings { block_bytes, buffers, ..Settings::default() };
            bench.scan_ns("offload", &far, &bench.mover, settings, &equality(), Wanted::Columns(&[]))
        };
        let times = bench.in_turns(&[("one_buffer", &|| by(1)), ("two_buffers", &|| by(2))]);
        bench.report.row("blocks", &block_bytes.to_string(), &times);
    }
}

/// Nanoseconds a row of a scan with two buffers, of copying the same blocks one after the other, and of scanning where the bytes are. `ratio`
/// is the first over the greater of the others: 1 where the shorter one is hidden.
fn overlap(bench: &mut Bench) {
    bench.report.table("scans with two buffers beside copying and scanning alone, ns a row by the bytes of a block");
    let far = swept(bench);
    let is_mapped = bench.endpoint.mapped(HOME, COLUMNS).is_some();
    for block_bytes in (14..=22).map(|bits| 1_usize << bits).filter(|bytes| *bytes <= bench.bytes) {
        let settings = Settings { block_bytes, ..Settings::default() };
        let scan = |endpoint, path| {
            bench.scan_from(endpoint, path, &far, &bench.mover, settings, &equality(), Wanted::Columns(&[]))
        };
        // A column's chunks follow each other here.
        let bytes: usize = far.segments.iter().map(|segment| segment.chunks[0].bytes as usize).sum();
        let blocks = bytes.div_ceil(block_bytes);
        let at = |n: usize| ((n * block_bytes) as u64, block_bytes.min(bytes - n * block_bytes));
        let copied = || {
            let ns = if is_mapped {
                bench.moved_ns(&far.memory, block_bytes, (0..blocks).map(at))
            } else {
                bench.reads_ns(blocks, |batch, n| batch.read_immutable(far.memory.far_ptr(at(n).0), at(n).1))
            };
            Some(ns / far.rows() as f64)
        };
        let mut times = bench.in_turns(&[
            ("two_buffers", &|| scan(&bench.endpoint, "offload")),
            ("copying", &copied),
            ("scanning", &|| scan(&bench.agent, "direct")),
        ]);
        let of = |name: &str| times.iter().find(|(other, _)| *other == name).map_or(0.0, |(_, ns)| *ns);
        times.push(("ratio", of("two_buffers") / of("copying").max(of("scanning"))));
        bench.report.row("overlap", &block_bytes.to_string(), &times);
    }
}

/// Nanoseconds a row by the copies that are in flight while one block is scanned.
fn flight(bench: &mut Bench) {
    bench.report.table("scans with several copies in flight, ns a row by copies");
    let far = swept(bench);
    let two = Mover::start(2, Processor).expect("threads");
    for copies in [0, 1, 2, 3, 4, 6, 8, 12, 16] {
        let by = |mover, block_bytes| {
            let settings = Settings { block_bytes, buffers: copies + 1, ..Settings::default() };
            bench.scan_ns("offload", &far, mover, settings, &equality(), Wanted::Columns(&[]))
        };
        let times = bench.in_turns(&[
            ("blocks_of_64_kib", &|| by(&bench.mover, 64 << 10)),
            ("blocks_of_256_kib", &|| by(&bench.mover, 256 << 10)),
            ("two_movers_256_kib", &|| by(&two, 256 << 10)),
        ]);
        bench.report.row("flight", &copies.to_string(), &times);
    }
}

/// Nanoseconds a row by the part of the rows that pass, in 1,024ths. The result is positions, and a column of 32-bit values.
fn result(bench: &mut Bench) {
    bench.report.table("scans by the part of the rows that pass, ns a row by 1,024ths");
    by_passing(bench, "result", &[0, 1, 4, 16, 64, 256, 512, 1024], Wanted::Columns(&[1]));
}

/// Nanoseconds a row of aggregates, by the part of the rows that pass, in 1,024ths.
fn aggregates(bench: &mut Bench) {
    bench.report.table("a sum and a maximum of the rows that pass, ns a row by 1,024ths");
    by_passing(bench, "aggregates", &[1, 64, 1024], Wanted::Aggregates(&[Aggregate::Sum(1), Aggregate::Max(1)]));
}

/// Rows of a table: what is wanted, by each path, of so many 1,024ths of the rows.
fn by_passing(bench: &mut Bench, table: &str, parts: &[u32], wanted: Wanted<'_>) {
    let far = bench.columns((bench.bytes / 8).max(256 << 10), true);
    for passing in parts {
        let predicate = below(*passing);
        let by = |path| bench.scan_ns(path, &far, &bench.mover, Settings::default(), &predicate, wanted);
        let times = bench.in_turns(&[
            ("direct", &|| by("direct")),
            ("offload", &|| by("offload")),
            ("pushdown", &|| by("pushdown")),
            ("relaxed", &|| by("relaxed")),
        ]);
        bench.report.row(table, &passing.to_string(), &times);
    }
}

/// Gigabytes a second by the bytes of a read. Over shm the caller's processor does both; over libfabric the agent does what is not
/// known to be immutable, if a node allows that for any length.
fn relaxed(bench: &mut Bench) {
    bench.report.table("reads of immutable bytes, and reads by the home node's agent, GB/s by bytes");
    #[cfg(feature = "libfabric")]
    if bench.endpoint.mapped(HOME, BYTES).is_none() && !bench.executor.handle().is_virtual() {
        // A node whose NIC reads nothing else.
        let directory = bench.directory.as_ref().expect("libfabric's nodes have a directory").path().join("agents");
        bench.nodes = [READER, HOME].map(|node| join_tcp(&directory, node, usize::MAX));
        let handle = bench.executor.handle();
        bench.endpoint = bench.nodes[0].endpoint(&handle).expect("an endpoint");
        bench.agent = bench.nodes[1].endpoint(&handle).expect("an endpoint");
    }
    bench.region(bench.bytes.min(64 << 20));
    let bytes = bench.bytes.min(64 << 20);
    for size in bench.sizes(4 << 10, 4).into_iter().filter(|size| *size <= bytes) {
        let count = (bytes / size).clamp(1, if bench.report.quick { 4 } else { 500 });
        let by = |is_immutable: bool| {
            Some(bench.reads_ns(count, |batch, n| {
                let at = FarPtr::new(HOME, BYTES, (n * (bytes / count)) as u64);
                if is_immutable { batch.read_immutable(at, size) } else { batch.read(at, size) }
            }))
        };
        let times = bench.in_turns(&[("immutable", &|| by(true)), ("agent", &|| by(false))]);
        let rates: Vec<(&str, f64)> = times.iter().map(|(name, ns)| (*name, (size * count) as f64 / ns)).collect();
        bench.report.row("relaxed", &size.to_string(), &rates);
    }
}
