//! The costs of the fabric on shared memory: batches behind `dyn` against a generic rival, `read_object` against a plain copy,
//! atomics, messages, and the executor's switch. Rivals of one table run interleaved, round by round; each figure is the median
//! of the rounds.
//!
//! `cargo bench -p farhold-fabric --bench dispatch -- [--quick] [--json FILE]`
//!
//! Decided by it, on a shared 4-core Zen virtual machine, so orders of magnitude (ns an object of 100 bytes, hot, batches of
//! 1 / 2 / 4 / 8 / 16): `dyn` 19.6 / 14.4 / 11.7 / 10.3 / 10.0, generic 14.3 / 12.5 / 10.9 / 10.5 / 10.6. The dynamic form
//! stays: generics win 5 ns on a batch of one and nothing from four on. (Before a `Batch` was one pointer wide it was 35 on a
//! batch of one, and 16 at sixteen.) On a batch of one with cold objects generics win up to 2x, because more of the next
//! batch fits into the processor's window while a miss is under way; code that decides by what it reads has no next batch.

use farhold_fabric::{
    Address, Batch, Endpoint, Executor, Fabric, FabricError, FarPtr, Handle, Message, Meta, NodeId, ObjectHeader,
    RegionId, RegionMemory, Version, object,
};
use farhold_report::Report;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// Says to a child process which cluster it answers in.
const CHILD: &str = "FARHOLD_FABRIC_BENCH_CHILD";
const REGION: RegionId = RegionId(1);

#[allow(dead_code, reason = "the tests include this file as a module and call `run`")]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let json = args.iter().position(|arg| arg == "--json").map(|at| args.get(at + 1).expect("--json FILE").clone());
    run(args.iter().any(|arg| arg == "--quick"), json.as_deref().map(Path::new), &["--child"]);
}

/// Runs all tables. `child_args` start this executable so that it comes here again.
pub fn run(quick: bool, json: Option<&Path>, child_args: &[&str]) {
    if let Some(cluster) = std::env::var_os(CHILD) {
        return answer_as_child(Path::new(&cluster));
    }
    let mut report = Report::new(quick);
    let bed = Bed::new(quick);
    dispatch(&bed, &mut report);
    objects(&bed, &mut report);
    copies(&bed, &mut report);
    atomics(&bed, &mut report);
    messages(&bed, &mut report, child_args);
    switches(&bed, &mut report);
    if let Some(path) = json {
        report.write(path).expect("write the figures");
    }
}

/// A cluster with a large region full of objects.
struct Bed {
    cluster: TempDir,
    fabric: Fabric,
    memory: Arc<RegionMemory>,
    executor: Executor,
    endpoint: Endpoint,
    handle: Handle,
    quick: bool,
}

impl Bed {
    fn new(quick: bool) -> Self {
        let cluster = farhold_testkit::memory_directory();
        let fabric = Fabric::join_shm(&cluster, NodeId(0)).expect("join");
        let len = if quick { 4 << 20 } else { 512 << 20 };
        let memory = fabric.create_region(REGION, len).expect("a region");
        let executor = Executor::real(1);
        let handle = executor.handle();
        let endpoint = fabric.endpoint(&handle).expect("an endpoint");
        let bed = Self { cluster, fabric, memory, executor, endpoint, handle, quick };
        bed.format(64);
        bed
    }

    fn rounds(&self) -> usize {
        if self.quick { 1 } else { 21 }
    }

    fn count(&self, full: usize) -> usize {
        if self.quick { 64 } else { full }
    }

    /// Fills the region with objects of one payload length; returns how many.
    fn format(&self, payload_len: usize) -> u64 {
        let stride = stride(payload_len);
        let count = self.memory.len() / stride;
        let payload = vec![7; payload_len];
        for index in 0..count {
            let at = index * stride;
            let word = |offset| self.memory.word(at + offset).expect("inside");
            word(object::VERSION).store(Version::of_epoch(1).0, Ordering::Relaxed);
            word(object::META).store(Meta::new(1, Meta::ROW, 8, payload_len).0, Ordering::Relaxed);
            self.memory.copy_in(at + object::PAYLOAD, &payload).expect("inside");
        }
        count
    }

    fn at(&self, offset: u64) -> FarPtr {
        FarPtr::new(self.fabric.node(), REGION, offset)
    }

    /// Median nanoseconds an item of each rival, interleaved. A rival does `items` items a call.
    fn race(&self, items: usize, rivals: &mut [&mut dyn FnMut()]) -> Vec<f64> {
        let mut times = vec![Vec::new(); rivals.len()];
        for _ in 0..=self.rounds() {
            for (rival, times) in rivals.iter_mut().zip(&mut times) {
                let before_ns = self.handle.now_ns();
                rival();
                times.push((self.handle.now_ns() - before_ns) as f64 / items as f64);
            }
        }
        times
            .into_iter()
            .map(|mut times| {
                times.remove(0); // the warm-up
                times.sort_by(f64::total_cmp);
                times[times.len() / 2]
            })
            .collect()
    }
}

fn stride(payload_len: usize) -> u64 {
    (object::PAYLOAD + payload_len as u64).next_multiple_of(64)
}

/// Object numbers to visit: one place (hot), or all over the region so that hardly one is in the cache (cold).
fn places(count: u64, hot: bool, visits: usize) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..visits).map(|_| random.u64(..if hot { 16.min(count) } else { count })).collect()
}

// ---------------------------------------------------------------------------------------------------------------------
// The rival of `Batch` and `dyn Provider`: instructions are types, the batch is a slice of one type, the provider is a type
// parameter, so that everything inlines. It does the same checks.

trait Instruction {
    type Output;
    fn run(&self, memory: &RegionMemory, room: &mut [u8]) -> Result<Self::Output, FabricError>;
    fn at(&self) -> FarPtr;
    fn room(&self) -> usize;
}

struct ReadObject {
    at: FarPtr,
    payload_len_max: usize,
}

impl Instruction for ReadObject {
    type Output = ObjectHeader;
    fn run(&self, memory: &RegionMemory, room: &mut [u8]) -> Result<ObjectHeader, FabricError> {
        memory.read_object(self.at.offset(), room)
    }
    fn at(&self) -> FarPtr {
        self.at
    }
    fn room(&self) -> usize {
        self.payload_len_max
    }
}

trait Regions {
    fn region(&self, at: FarPtr) -> Result<&RegionMemory, FabricError>;
}

struct Known {
    memory: Arc<RegionMemory>,
    key: u64,
    directory: Arc<AtomicU64>,
}

struct Table(Vec<Option<Vec<Option<Known>>>>);

impl Regions for Table {
    fn region(&self, at: FarPtr) -> Result<&RegionMemory, FabricError> {
        let node = self.0[usize::from(at.node().0)].as_ref().ok_or(FabricError::NodeUnavailable { node: at.node() })?;
        let known = node[usize::from(at.region().0)]
            .as_ref()
            .ok_or(FabricError::NoSuchRegion { node: at.node(), region: at.region() })?;
        if known.directory.load(Ordering::Acquire) != known.key {
            return Err(FabricError::StaleKey { node: at.node(), region: at.region() });
        }
        Ok(&known.memory)
    }
}

struct GenericEndpoint<R> {
    regions: R,
}

impl<R: Regions> GenericEndpoint<R> {
    #[allow(clippy::unused_async, reason = "as the real one, which may have to wait")]
    async fn submit<I: Instruction>(
        &self,
        batch: &[I],
        data: &mut [u8],
        results: &mut Vec<Result<I::Output, FabricError>>,
    ) {
        let mut used = 0;
        for instruction in batch {
            let room = &mut data[used..used + instruction.room()];
            used = (used + instruction.room() + 63) & !63;
            results.push(self.regions.region(instruction.at()).and_then(|memory| instruction.run(memory, room)));
        }
    }
}

fn dispatch(bed: &Bed, report: &mut Report) {
    report.table("Batches of read_object, 100-byte payload: ns an object");
    let payload_len = 100;
    let objects = bed.format(payload_len);
    let mut regions: Vec<Option<Vec<Option<Known>>>> = (0..256).map(|_| None).collect();
    let mut known: Vec<Option<Known>> = (0..256).map(|_| None).collect();
    known[usize::from(REGION.0)] =
        Some(Known { memory: bed.memory.clone(), key: 1, directory: Arc::new(AtomicU64::new(1)) });
    regions[0] = Some(known);
    let rival = GenericEndpoint { regions: Table(regions) };
    let visits = bed.count(64_000);
    for hot in [true, false] {
        let places = places(objects, hot, visits);
        for size in [1, 2, 4, 8, 16] {
            let mut batch = Batch::new();
            let mut slots = Vec::new();
            let mut behind_dyn = || {
                bed.executor.run(async {
                    for group in places.chunks(size) {
                        batch.clear();
                        slots.clear();
                        slots.extend(
                            group.iter().map(|place| batch.read_object(bed.at(place * stride(payload_len)), 128)),
                        );
                        batch = bed.endpoint.submit(std::mem::take(&mut batch)).await;
                        for slot in &slots {
                            black_box(batch.object(*slot).expect("whole").payload[0]);
                        }
                    }
                });
            };
            let (mut ops, mut data, mut results) = (Vec::new(), vec![0; 128 * size], Vec::new());
            let mut generic = || {
                bed.executor.run(async {
                    for group in places.chunks(size) {
                        ops.clear();
                        results.clear();
                        let op =
                            |place: &u64| ReadObject { at: bed.at(place * stride(payload_len)), payload_len_max: 128 };
                        ops.extend(group.iter().map(op));
                        rival.submit(&ops, &mut data, &mut results).await;
                        for (index, result) in results.iter().enumerate() {
                            black_box((result.as_ref().expect("whole").version, data[index * 128]));
                        }
                    }
                });
            };
            let times = bed.race(visits, &mut [&mut behind_dyn, &mut generic]);
            let name = format!("{}, {size} a batch", if hot { "hot" } else { "cold" });
            report.row(
                "dispatch",
                &name,
                &[("dyn", times[0]), ("generic", times[1]), ("dyn/generic", times[0] / times[1])],
            );
        }
    }
}

fn objects(bed: &Bed, report: &mut Report) {
    report.table("read_object against a plain copy of the same bytes: ns");
    for payload_len in [64, 256, 1024, 4096, 8192] {
        let count = bed.format(payload_len);
        let visits = bed.count(if payload_len > 1024 { 8_000 } else { 32_000 });
        for hot in [true, false] {
            let places = places(count, hot, visits);
            let stride = stride(payload_len);
            let base: *const AtomicU64 = bed.memory.word(0).expect("inside");
            let base = base.cast::<u8>();
            let room = aligned_room(payload_len + 64);
            let mut plain = || {
                for place in &places {
                    // SAFETY: no thread writes the region now, and place * stride + 32 + payload_len is inside it.
                    unsafe {
                        let from = base.add((place * stride + object::PAYLOAD) as usize);
                        std::ptr::copy(black_box(from), room.as_mut_ptr(), black_box(payload_len));
                    }
                    black_box(room[0]);
                }
            };
            let room2 = aligned_room(payload_len + 64);
            let mut in_place = || {
                for place in &places {
                    black_box(bed.memory.read_object(place * stride, &mut room2[..payload_len]).expect("whole"));
                    black_box(room2[0]);
                }
            };
            let submit = |size: usize| {
                let (places, mut batch, mut slots) = (&places, Batch::new(), Vec::new());
                move || {
                    bed.executor.run(async {
                        for group in places.chunks(size) {
                            batch.clear();
                            slots.clear();
                            slots.extend(
                                group.iter().map(|place| batch.read_object(bed.at(place * stride), payload_len)),
                            );
                            batch = bed.endpoint.submit(std::mem::take(&mut batch)).await;
                            for slot in &slots {
                                black_box(batch.object(*slot).expect("whole").payload[0]);
                            }
                        }
                    });
                }
            };
            let (mut one, mut eight) = (submit(1), submit(8));
            let times = bed.race(visits, &mut [&mut plain, &mut in_place, &mut one, &mut eight]);
            let name = format!("{payload_len} B {}", if hot { "hot" } else { "cold" });
            let figures = [
                ("copy", times[0]),
                ("in place", times[1]),
                ("batch of 1", times[2]),
                ("batch of 8", times[3]),
                ("in place/copy", times[1] / times[0]),
                ("batch of 1/copy", times[2] / times[0]),
            ];
            report.row("read_object", &name, &figures);
        }
    }
}

/// Room whose first byte used is on a cache line, as a batch's.
fn aligned_room(len: usize) -> &'static mut [u8] {
    let room = vec![0u8; len + 64].leak();
    let skip = room.as_ptr().align_offset(64);
    &mut room[skip..]
}

fn copies(bed: &Bed, report: &mut Report) {
    report.table("Racing copies out of the region: ns");
    for len in [64, 256, 1024, 8192, 65536] {
        let visits = bed.count(10_000);
        let mut room = vec![0; len];
        let base: *const AtomicU64 = bed.memory.word(0).expect("inside");
        let base = base.cast::<u8>();
        let mut kernel = || {
            for _ in 0..visits {
                bed.memory.copy_out(black_box(4096 + 32), &mut room).expect("inside");
            }
        };
        let mut room2 = vec![0u8; len];
        let mut plain = || {
            for _ in 0..visits {
                // SAFETY: no thread writes the region now, and these bytes are inside it.
                unsafe { std::ptr::copy(black_box(base.add(4096 + 32)), room2.as_mut_ptr(), black_box(len)) };
            }
        };
        let mut room3 = vec![0u8; len];
        let mut rep_movsb = || {
            for _ in 0..visits {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `rep movsb` touches exactly the `len` bytes of each side, which are inside.
                unsafe {
                    std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") base.add(4096 + 32) => _,
                        inout("rdi") room3.as_mut_ptr() => _, options(nostack, preserves_flags));
                }
                black_box(room3[0]);
            }
        };
        let mut room4 = vec![0u64; len / 8];
        let mut word_wise = || {
            for _ in 0..visits {
                for (index, word) in room4.iter_mut().enumerate() {
                    *word = bed.memory.word(4096 + 32 + index as u64 * 8).expect("inside").load(Ordering::Relaxed);
                }
                black_box(room4[0]);
            }
        };
        let times = bed.race(visits, &mut [&mut kernel, &mut plain, &mut rep_movsb, &mut word_wise]);
        let figures = [("kernel", times[0]), ("ptr::copy", times[1]), ("rep movsb", times[2]), ("word-wise", times[3])];
        report.row("copies", &format!("{len} B"), &figures);
    }
}

fn atomics(bed: &Bed, report: &mut Report) {
    report.table("fetch_add on a word: ns");
    let visits = bed.count(64_000);
    let word = bed.memory.word(0).expect("inside");
    let mut raw = || {
        for _ in 0..visits {
            black_box(word.fetch_add(1, Ordering::SeqCst));
        }
    };
    let submit = |size: usize| {
        let (mut batch, mut slots) = (Batch::new(), Vec::new());
        move || {
            bed.executor.run(async {
                for _ in 0..visits / size {
                    batch.clear();
                    slots.clear();
                    slots.extend((0..size).map(|_| batch.fetch_add(bed.at(0), 1)));
                    batch = bed.endpoint.submit(std::mem::take(&mut batch)).await;
                    for slot in &slots {
                        black_box(batch.word(*slot).expect("done"));
                    }
                }
            });
        }
    };
    let (mut one, mut sixteen) = (submit(1), submit(16));
    let times = bed.race(visits, &mut [&mut raw, &mut one, &mut sixteen]);
    report.row("atomics", "fetch_add", &[("CPU", times[0]), ("batch of 1", times[1]), ("batch of 16", times[2])]);
}

/// Sends everything back to where it came from, until an empty message.
fn answer(endpoint: &Endpoint) {
    let mut message = Message::default();
    let mut idle = 0u32;
    loop {
        if endpoint.try_recv_home_into(&mut message) {
            idle = 0;
            if message.bytes.is_empty() {
                return;
            }
            endpoint.send(message.from, &message.bytes).expect("an answer");
        } else {
            idle += 1;
            // It polls busily, but ends if the asking process is gone.
            if idle > 1 << 22 && !endpoint.wait(1_000_000) && idle > (1 << 22) + 10_000 {
                return;
            }
        }
    }
}

fn answer_as_child(cluster: &Path) {
    let fabric = Fabric::join_shm(cluster, NodeId(1)).expect("join");
    let executor = Executor::real(1);
    let endpoint = fabric.endpoint(&executor.handle()).expect("an endpoint");
    answer(&endpoint);
}

fn messages(bed: &Bed, report: &mut Report, child_args: &[&str]) {
    report.table("Message there and back between two busy pollers: ns");
    let ask = |report: &mut Report, name: &str| {
        for len in [16, 256, 4096] {
            let mut times = Vec::new();
            let mut message = Message::default();
            let text = vec![1; len];
            let to = Address::home(NodeId(1));
            for _ in 0..bed.count(20_000) {
                let before_ns = bed.handle.now_ns();
                // Not there yet: only before the first.
                while bed.endpoint.send(to, &text).is_err() {
                    std::thread::yield_now();
                }
                while !bed.endpoint.try_recv_into(&mut message) {
                    std::hint::spin_loop();
                }
                times.push((bed.handle.now_ns() - before_ns) as f64);
            }
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
            report.row("messages", &format!("{name}, {len} B"), &[("p50", at(0.5)), ("p99", at(0.99))]);
        }
        bed.endpoint.send(Address::home(NodeId(1)), b"").expect("the end");
    };
    std::thread::scope(|scope| {
        let other = Fabric::join_shm(&bed.cluster, NodeId(1)).expect("join");
        scope.spawn(move || {
            let executor = Executor::real(1);
            answer(&other.endpoint(&executor.handle()).expect("an endpoint"));
        });
        ask(report, "two threads");
    });
    let mut child = std::process::Command::new(std::env::current_exe().expect("this executable"))
        .args(child_args)
        .env(CHILD, bed.cluster.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("a child");
    while !bed.fabric.node_is_live(NodeId(1)) {
        std::thread::yield_now();
    }
    ask(report, "two processes");
    child.wait().expect("the child");
}

fn switches(bed: &Bed, report: &mut Report) {
    report.table("Executor: ns a suspend and resume");
    for tasks in [1, 16, 256] {
        let rounds = bed.count(200_000) / tasks + 1;
        let mut run = || {
            bed.executor.run(async {
                let task = || {
                    let handle = bed.handle.clone();
                    bed.handle.spawn(async move {
                        for _ in 0..rounds {
                            handle.yield_now().await;
                        }
                    })
                };
                let all: Vec<_> = (0..tasks).map(|_| task()).collect();
                for task in all {
                    task.await;
                }
            });
        };
        let times = bed.race(rounds * tasks, &mut [&mut run]);
        report.row("executor", &format!("{tasks} tasks"), &[("yield", times[0])]);
    }
}
