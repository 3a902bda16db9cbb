//! The four mechanisms of atomic reads beside each other, in one run, turn by turn: near (in place) and far (through a
//! fabric, `shm`), without writers and with up to four.
//!
//! A figure is nanoseconds of one reader per object that it got whole, the median of the turns; `torn` is attempts that gave
//! nothing, in percent. The set-up is that of Daglis et al. (`SABRes`, section 7.2): a hundred objects a size and mechanism, so
//! that writers and readers meet. Each writer has a part of them for itself; a reader that got nothing tries the same object
//! again. How often a writer writes is the load, so it is the same for all mechanisms: nearly as often as the slowest of them
//! can. In a closed loop the mechanism with the cheapest writes would have the most conflicts.
//!
//! Without writers everything lies in the reader's own caches. With writers it mostly lies in a writer's, as all of it lies at
//! the home node in the paper's figure 8, at each number of writers. So the effect of conflicts shows in a comparison with
//! objects that another processor has `written elsewhere` just before and then leaves alone.
//!
//! `by words` is the stripping of `line_versions` by loads and stores of words, as FaRM published it and as a compiler makes it,
//! because a compiler must not widen atomic accesses; `line_versions` itself uses this project's kernel of wide moves.

use farhold_fabric::{Batch, Endpoint, Executor, Fabric, FarPtr, Handle, NodeId, RegionId, RegionMemory};
use farhold_report::Report;
use farhold_store::Owner;
use farhold_store::atomicity::{ALL, FarRead, Mechanism, Unread};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const REGION: RegionId = RegionId(1);
const OBJECTS: u64 = 100;
/// Bytes of payload of each mechanism that no cache holds.
const FAR_BYTES: u64 = 128 << 20;
const SIZES: [usize; 4] = [128, 1024, 4096, 8192];
/// Far reads in one batch.
const BATCH: usize = 8;

pub fn run(report: &mut Report) {
    let bed = Bed::new(report.quick, OBJECTS);
    let memory = Bed::new(report.quick, if report.quick { OBJECTS } else { 0 });
    local(&bed, &memory, report);
    drop(memory);
    for writers in if report.quick { 0..2 } else { 0..5 } {
        report.table(&format!("Atomic reads with {writers} writers: ns an object, hot"));
        for size in SIZES {
            let objects = Objects::new(&bed.memory, size, OBJECTS);
            rows(
                report,
                "atomicity",
                &format!("{writers} writers, {size} B"),
                &bed.turns(&objects, writers),
                writers > 0,
            );
        }
    }
    report.table("Atomic reads without conflicts, of objects that another processor has just written: ns an object");
    for size in SIZES {
        let objects = Objects::new(&bed.memory, size, OBJECTS);
        rows(
            report,
            "written elsewhere",
            &format!("written elsewhere, {size} B"),
            &bed.written_elsewhere(&objects),
            false,
        );
    }
    layouts(report);
}

/// Near, far one by one, far in batches: a row each.
fn rows(report: &mut Report, table: &str, name: &str, turns: &[Vec<Turns>; 3], has_torn: bool) {
    for (place, turns) in ["near", "far, 1 a batch", "far, 8 a batch"].iter().zip(turns) {
        let mut figures: Vec<(String, f64)> = Vec::new();
        let of = |name: &str| {
            let found = turns.iter().zip(ALL).find(|(_, mechanism)| mechanism.name() == name);
            found.expect("it is one of them").0
        };
        let base = of("destination");
        for (turn, mechanism) in turns.iter().zip(ALL) {
            figures.push((mechanism.name().into(), turn.ns()));
        }
        for (turn, mechanism) in turns.iter().zip(ALL).filter(|(_, mechanism)| mechanism.name() != "destination") {
            figures.push((format!("{}/destination", mechanism.name()), turn.over(base)));
        }
        figures.push(("line_versions - destination".into(), of("line_versions").ns() - base.ns()));
        if has_torn {
            for (turn, mechanism) in turns.iter().zip(ALL) {
                figures.push((format!("{} torn", mechanism.name()), turn.torn_percent()));
            }
        }
        let figures: Vec<(&str, f64)> = figures.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        report.row(table, &format!("{name}, {place}"), &figures);
    }
}

/// Local reads without writers (the paper's figure 10): into private memory, and used where they lie; of objects in the caches
/// and of objects in memory; beside the stripping of `line_versions` by words.
fn local(bed: &Bed, memory: &Bed, report: &mut Report) {
    report.table("Local reads: ns an object; destination GB/s");
    for (bed, place, objects) in [(bed, "cached", OBJECTS), (memory, "in memory", memory.objects)] {
        for size in SIZES {
            let objects = Objects::new(&bed.memory, size, if objects == 0 { FAR_BYTES / size as u64 } else { objects });
            for what in [What::Read, What::Use] {
                let figures = local_row(bed, &objects, what);
                let figures: Vec<(&str, f64)> = figures.iter().map(|(name, value)| (name.as_str(), *value)).collect();
                report.row("local", &format!("{size} B, {place}, {}", what.name()), &figures);
            }
        }
    }
}

/// What is done with an object.
#[derive(Clone, Copy)]
enum What {
    /// It is read into private memory.
    Read,
    /// All of its words are used, where they lie or in a copy.
    Use,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Use => "used",
        }
    }
}

fn local_row(bed: &Bed, objects: &Objects, what: What) -> Vec<(String, f64)> {
    let position = |name: &str| ALL.iter().position(|mechanism| mechanism.name() == name).expect("one of them");
    let lines = position("line_versions");
    let reads = bed.reads(objects.size);
    let mut into = vec![0_u64; objects.size / 8];
    let mut random = fastrand::Rng::with_seed(7);
    let mut by_words = |reads: u64| {
        for _ in 0..reads {
            let at = objects.place(lines, random.u64(..));
            black_box(strip_by_words(&bed.memory, at, &mut into));
            if let What::Use = what {
                black_box(into.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
            }
        }
    };
    let mut turns = vec![Turns::default(); ALL.len() + 1];
    for round in 0..=bed.rounds() {
        for (number, turn) in turns.iter_mut().enumerate() {
            let before_ns = bed.handle.now_ns();
            match ALL.get(number) {
                Some(mechanism) => _ = bed.near(*mechanism, objects, number, reads, what),
                None => by_words(reads),
            }
            // The first round warms up.
            if round > 0 {
                turn.ns.push((bed.handle.now_ns() - before_ns) as f64 / reads as f64);
            }
        }
    }
    let names = || ALL.iter().map(|mechanism| mechanism.name()).chain(["line_versions by words"]);
    let base = &turns[position("destination")];
    let mut figures: Vec<(String, f64)> =
        names().zip(&turns).map(|(name, turn)| (name.to_owned(), turn.ns())).collect();
    for (name, turn) in names().zip(&turns).filter(|(name, _)| *name != "destination") {
        figures.push((format!("{name}/destination"), turn.over(base)));
    }
    figures.push(("GB/s".to_owned(), objects.size as f64 / base.ns()));
    figures
}

/// One state of a `line_versions` object, or a mix: is it one?
fn strip_by_words(memory: &RegionMemory, at: u64, into: &mut [u64]) -> bool {
    let word = |offset: u64| memory.word(at + offset).expect("inside").load(Ordering::Relaxed);
    let version = memory.word(at).expect("inside").load(Ordering::Acquire);
    let (first, rest) = into.split_at_mut(5);
    for (to, offset) in first.iter_mut().zip((24..).step_by(8)) {
        *to = word(offset);
    }
    let mut differences = 0;
    for (line, offset) in rest.chunks_mut(7).zip((64..).step_by(64)) {
        differences |= word(offset) ^ version;
        for (to, offset) in line.iter_mut().zip((offset + 8..).step_by(8)) {
            *to = word(offset);
        }
    }
    std::sync::atomic::fence(Ordering::Acquire);
    differences == 0 && word(0) == version
}

/// What a mechanism takes of memory.
fn layouts(report: &mut Report) {
    report.table("Bytes of an object");
    for size in SIZES {
        let figures: Vec<(&str, f64)> =
            ALL.iter().map(|mechanism| (mechanism.name(), mechanism.bytes(size) as f64)).collect();
        report.row("bytes", &format!("{size} B"), &figures);
    }
}

/// The turns of one mechanism.
#[derive(Clone, Default)]
struct Turns {
    ns: Vec<f64>,
    whole: u64,
    torn: u64,
}

impl Turns {
    fn ns(&self) -> f64 {
        let mut ns = self.ns.clone();
        ns.sort_by(f64::total_cmp);
        ns[ns.len() / 2]
    }

    /// How much longer it takes than another, turn by turn: the median.
    fn over(&self, other: &Self) -> f64 {
        let ns = self.ns.iter().zip(&other.ns).map(|(a, b)| a / b).collect();
        Self { ns, ..Self::default() }.ns()
    }

    fn torn_percent(&self) -> f64 {
        100.0 * self.torn as f64 / (self.torn + self.whole) as f64
    }
}

/// Objects of one size, of all mechanisms.
struct Objects {
    size: usize,
    count: u64,
    /// Where each mechanism's start.
    starts: Vec<u64>,
}

impl Objects {
    fn new(memory: &RegionMemory, size: usize, count: u64) -> Self {
        let (mut at, mut starts) = (0, Vec::new());
        // The objects that earlier sizes have left would have another layout.
        let zeros = vec![0; 1 << 20];
        for at in (0..memory.len()).step_by(zeros.len()) {
            let len = zeros.len().min((memory.len() - at) as usize);
            memory.copy_in(at, &zeros[..len]).expect("its own length");
        }
        for mechanism in ALL {
            starts.push(at);
            for _ in 0..count {
                mechanism.create(memory, at, &vec![7; size]).expect("room");
                at += mechanism.bytes(size) as u64;
            }
        }
        Self { size, count, starts }
    }

    fn place(&self, mechanism: usize, object: u64) -> u64 {
        self.starts[mechanism] + object % self.count * ALL[mechanism].bytes(self.size) as u64
    }
}

struct Bed {
    _cluster: TempDir,
    memory: Arc<RegionMemory>,
    executor: Executor,
    handle: Handle,
    /// An endpoint of another node, and the memory as it has it mapped.
    away: Endpoint,
    mapped: Arc<RegionMemory>,
    _home: Fabric,
    quick: bool,
    /// Objects of a mechanism; 0: as many as [`FAR_BYTES`] hold.
    objects: u64,
}

impl Bed {
    fn new(quick: bool, objects: u64) -> Self {
        let cluster = farhold_testkit::memory_directory();
        let home = Fabric::join_shm(&cluster, NodeId(0)).expect("join");
        // The layouts take up to half as much again as their payloads.
        let bytes = if objects == 0 { FAR_BYTES * 3 / 2 * ALL.len() as u64 } else { 4 << 20 };
        let memory = home.create_region(REGION, bytes).expect("a region");
        let executor = Executor::real(1);
        let handle = executor.handle();
        let away = Fabric::join_shm(&cluster, NodeId(1)).expect("join").endpoint(&handle).expect("an endpoint");
        let mapped = away.mapped(NodeId(0), REGION).expect("shm maps all regions");
        Self { _cluster: cluster, memory, executor, handle, away, mapped, _home: home, quick, objects }
    }

    fn rounds(&self) -> usize {
        match (self.quick, self.objects) {
            (true, _) => 1,
            (false, 0) => 7,
            (false, _) => 21,
        }
    }

    /// Reads of a turn: some milliseconds, so that writers run meanwhile.
    fn reads(&self, size: usize) -> u64 {
        if self.quick { 64 } else { (50_000_000 / size as u64).min(100_000) }
    }

    /// From the start of a write to that of the next, for all mechanisms: half as much again as the slowest of them needs.
    fn pause(&self, objects: &Objects) -> Duration {
        let clock = Handle::standalone(1);
        let payload = vec![8_u8; objects.size];
        let of = |(number, mechanism): (usize, &&dyn Mechanism)| {
            let before = Instant::now();
            for object in 0..objects.count {
                let owner = Owner::new(1, NodeId(0), 1, 1);
                let _ = mechanism.write(&self.memory, objects.place(number, object), &payload, owner, &clock);
            }
            before.elapsed() / objects.count as u32
        };
        // What is written for the first time counts as well: objects mostly lie in a reader's cache.
        ALL.iter().enumerate().map(of).max().unwrap_or_default() * 3 / 2
    }

    /// Near, far one by one, far in batches; of each, the turns of each mechanism.
    fn turns(&self, objects: &Objects, writers: u8) -> [Vec<Turns>; 3] {
        // With writers a turn may take long, where there are more threads than cores.
        let rounds = if writers > 0 { self.rounds().min(15) } else { self.rounds() };
        let reads = self.reads(objects.size);
        let pause = if writers > 0 { self.pause(objects) } else { Duration::ZERO };
        let mut turns = [(); 3].map(|()| vec![Turns::default(); ALL.len()]);
        let (stop, current) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for writer in 1..=writers {
                let (stop, current, memory) = (&stop, &current, &self.memory);
                scope.spawn(move || write_until(stop, current, memory, objects, (writer, writers), pause));
            }
            for round in 0..=rounds {
                for (number, mechanism) in ALL.iter().enumerate() {
                    current.store(number, Ordering::Relaxed);
                    let parts: [&dyn Fn(u64) -> (u64, u64); 3] = [
                        &|reads| self.near(*mechanism, objects, number, reads, What::Read),
                        &|reads| self.far(*mechanism, objects, number, reads, 1),
                        &|reads| self.far(*mechanism, objects, number, reads, BATCH),
                    ];
                    for (part, turns) in parts.iter().zip(&mut turns) {
                        let before_ns = self.handle.now_ns();
                        let (whole, torn) = part(reads);
                        let ns = (self.handle.now_ns() - before_ns) as f64 / whole.max(1) as f64;
                        // The first round warms up.
                        if round > 0 {
                            let turns = &mut turns[number];
                            turns.ns.push(ns);
                            turns.whole += whole;
                            turns.torn += torn;
                        }
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        turns
    }

    /// As [`Self::turns`] without writers, but before as many reads as there are objects all are written anew, by a thread that then
    /// stands still: what writers bring with them beside conflicts, since lines come from another processor's cache.
    fn written_elsewhere(&self, objects: &Objects) -> [Vec<Turns>; 3] {
        /// The value that ends the writers, beside the numbers of the mechanisms whose objects they are to write.
        const DONE: usize = usize::MAX;
        const END: usize = usize::MAX - 1;
        let times = (self.reads(objects.size) / objects.count).max(1);
        let mut turns = [(); 3].map(|()| vec![Turns::default(); ALL.len()]);
        let order = AtomicUsize::new(DONE);
        std::thread::scope(|scope| {
            let (order, memory) = (&order, &self.memory);
            scope.spawn(move || {
                let clock = Handle::standalone(1);
                let payload = vec![9_u8; objects.size];
                loop {
                    match order.load(Ordering::Acquire) {
                        DONE => std::hint::spin_loop(),
                        END => return,
                        number => {
                            for object in 0..objects.count {
                                let place = objects.place(number, object);
                                let owner = Owner::new(1, NodeId(0), 1, 1);
                                // A reader's lease that has not ended yet.
                                while ALL[number].write(memory, place, &payload, owner, &clock).is_err() {}
                            }
                            order.store(DONE, Ordering::Release);
                        }
                    }
                }
            });
            for round in 0..=self.rounds().min(15) {
                for (number, mechanism) in ALL.iter().enumerate() {
                    let parts: [&dyn Fn(u64) -> (u64, u64); 3] = [
                        &|reads| self.near(*mechanism, objects, number, reads, What::Read),
                        &|reads| self.far(*mechanism, objects, number, reads, 1),
                        &|reads| self.far(*mechanism, objects, number, reads, BATCH),
                    ];
                    for (part, turns) in parts.iter().zip(&mut turns) {
                        let (mut ns, mut whole_reads) = (0, 0);
                        for _ in 0..times {
                            order.store(number, Ordering::Release);
                            while order.load(Ordering::Acquire) != DONE {
                                std::hint::spin_loop();
                            }
                            let before_ns = self.handle.now_ns();
                            let (whole, torn) = part(objects.count);
                            ns += self.handle.now_ns() - before_ns;
                            whole_reads += whole;
                            turns[number].torn += torn;
                        }
                        if round > 0 {
                            turns[number].ns.push(ns as f64 / whole_reads as f64);
                            turns[number].whole += whole_reads;
                        }
                    }
                }
            }
            order.store(END, Ordering::Release);
        });
        turns
    }

    /// Whole and torn reads in place.
    fn near(&self, mechanism: &dyn Mechanism, objects: &Objects, number: usize, reads: u64, what: What) -> (u64, u64) {
        let (mut random, mut torn) = (fastrand::Rng::with_seed(7), 0);
        let mut into = aligned(objects.size);
        for _ in 0..reads {
            let at = objects.place(number, random.u64(..));
            loop {
                let got = match what {
                    What::Read => mechanism.read(&self.memory, at, &mut into, &self.handle).map(|seen| (seen, 0)),
                    What::Use => mechanism.total(&self.memory, at, &mut into, &self.handle),
                };
                match got {
                    Ok(got) => {
                        black_box((got, into[0]));
                        break;
                    }
                    Err(Unread::Torn) => torn += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        (reads, torn)
    }

    /// Whole and torn reads through the fabric, several at a time; a torn read takes part in the next batch.
    fn far(&self, mechanism: &dyn Mechanism, objects: &Objects, number: usize, reads: u64, size: usize) -> (u64, u64) {
        let (mut random, mut torn, mut whole) = (fastrand::Rng::with_seed(7), 0, 0);
        let mut into = aligned(objects.size);
        let mut batch = Batch::new();
        let mut group: Vec<FarRead<'_>> = Vec::new();
        self.executor.run(async {
            while whole < reads {
                group.extend((group.len()..size).map(|_| {
                    let at = FarPtr::new(NodeId(0), REGION, objects.place(number, random.u64(..)));
                    FarRead::new(at, objects.size).mapped(Some(&self.mapped))
                }));
                batch.clear();
                for read in &mut group {
                    mechanism.post(read, &mut batch, &self.handle);
                }
                batch = self.away.submit(std::mem::take(&mut batch)).await;
                group.retain_mut(|read| match mechanism.judge(read, &batch, &mut into, &self.handle) {
                    Ok(Some(view)) => {
                        black_box(view.payload[0]);
                        whole += 1;
                        false
                    }
                    Ok(None) => true,
                    Err(Unread::Torn) => {
                        read.again();
                        torn += 1;
                        true
                    }
                    Err(error) => panic!("{error}"),
                });
            }
        });
        (whole, torn)
    }
}

/// Room that starts on a cache line, as a batch's.
fn aligned(len: usize) -> impl std::ops::DerefMut<Target = [u8]> {
    struct Aligned(Vec<u8>, usize);
    impl std::ops::Deref for Aligned {
        type Target = [u8];
        fn deref(&self) -> &[u8] {
            &self.0[self.1..]
        }
    }
    impl std::ops::DerefMut for Aligned {
        fn deref_mut(&mut self) -> &mut [u8] {
            &mut self.0[self.1..]
        }
    }
    let room = vec![0; len + 64];
    let skip = room.as_ptr().align_offset(64);
    Aligned(room, skip)
}

/// Writes objects of the current mechanism: this writer's part of them.
fn write_until(
    stop: &AtomicBool,
    current: &AtomicUsize,
    memory: &RegionMemory,
    objects: &Objects,
    (writer, writers): (u8, u8),
    pause: Duration,
) {
    let mut next = Instant::now();
    let clock = Handle::standalone(u64::from(writer));
    let mut payload = vec![0_u8; objects.size];
    for object in (u64::from(writer - 1)..).step_by(usize::from(writers)).map(|object| object % objects.count) {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // A late writer does not make up for it.
        next = next.max(Instant::now()) + pause;
        let number = current.load(Ordering::Relaxed);
        payload[0] = payload[0].wrapping_add(1);
        // Busy, by a lease: another object, then.
        let place = objects.place(number, object);
        let _ = ALL[number].write(memory, place, &payload, Owner::new(1, NodeId(0), writer, 1), &clock);
        while Instant::now() < next {
            std::hint::spin_loop();
        }
    }
}
