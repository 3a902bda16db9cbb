//! The sections of the suite. Each is one figure of the paper and has its share of the time. Sections are independent:
//! when one fails, the results of the others stay.
//!
//! Every join's answer is checked. Keys of both sides are unique, and any prefix of whole blocks has the same keys on
//! both.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use farhold_join::gpu::kernels::{AccessArguments, bytes_of};
use farhold_join::gpu::{
    Buffer, Description, Device, Driver, Feed, Gpu, GpuAnswer, GpuError, GpuOptions, Grid, Histogram, Layout,
    Partitioner, Place, Relation, Scheme, Stream, Tuning, Work, predict, tuned,
};
use farhold_join::{Columns, Run, by_name};

const GIB: f64 = (1u64 << 30) as f64;

/// How large everything is.
pub struct Sizes {
    /// Log2 of the tuples a side of the largest join.
    pub tuples_log: u32,
    /// Log2 of the tuples within which the probe side is in another order.
    pub block_log: u32,
    /// The unit of sizes, "M" in the paper.
    pub unit: u64,
    /// Bytes that a link measurement moves.
    pub link_bytes: u64,
    /// Bytes that an access measurement moves.
    pub access_bytes: u64,
    /// Cache caps, in bytes.
    pub caches: Vec<u64>,
    /// Log2 of the fan-outs.
    pub fan_out_logs: std::ops::RangeInclusive<u32>,
    /// Payload words of the widest tuples are one of 1, 3, 7.
    pub widths: Vec<u32>,
    /// Runs of each measurement; the best counts.
    pub rounds: usize,
}

impl Sizes {
    /// Sizes for which the host has memory: 2^31 tuples a side are 64 GiB, beside which spilled partitions need room.
    pub fn of_this_host() -> Self {
        let tuples = host_bytes_available() / 48;
        Self {
            tuples_log: tuples.max(1 << 21).ilog2().min(31),
            block_log: 20,
            unit: 1 << 20,
            link_bytes: 1 << 30,
            access_bytes: 1 << 30,
            caches: [0, 8, 16, 32, 64].map(|gib| gib << 30).into(),
            fan_out_logs: 1..=11,
            widths: vec![1, 3, 7],
            rounds: 3,
        }
    }

    /// Sizes that are enough to go through every section in the emulation.
    pub fn small() -> Self {
        Self {
            tuples_log: 11,
            block_log: 6,
            unit: 1,
            link_bytes: 1 << 12,
            access_bytes: 1 << 12,
            caches: vec![0, 1 << 12, 1 << 16],
            fan_out_logs: 1..=3,
            widths: vec![1, 3],
            rounds: 1,
        }
    }
}

fn host_bytes_available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse().ok());
    kib.unwrap_or(8 << 20_u64) << 10
}

#[expect(clippy::disallowed_methods, reason = "a measurement of a real device")]
fn now() -> Instant {
    Instant::now()
}

type Section<'s> = fn(&mut Suite<'s>) -> Result<(), GpuError>;

/// Runs every section on the device; `say` gets a line of JSON for each measurement. Returns the number of sections
/// that failed.
pub fn measure(device: &Arc<dyn Device>, sizes: &Sizes, seconds: f64, say: &mut dyn FnMut(String)) -> usize {
    let mut suite = Suite {
        device: Arc::clone(device),
        sizes,
        run: Run::with_threads(std::thread::available_parallelism().map_or(1, usize::from)),
        description: Description::published_h100(),
        data: None,
        deadline: (now(), 0.0),
        figure: "device",
        say,
    };
    // Name, the figure of the paper, share of the time.
    let sections: [(&'static str, f64, Section<'_>); 15] = [
        ("device", 0.02, Suite::describe),
        ("link", 0.02, Suite::link),
        ("granularity (figure 6)", 0.04, Suite::granularity),
        ("inputs", 0.15, Suite::make_data),
        ("sizes (figure 13)", 0.20, Suite::scaling),
        ("CPU beside (figure 13)", 0.08, Suite::cpu),
        ("partitioners (figure 18)", 0.10, Suite::partitioners),
        ("partitioners in a join (figure 17)", 0.06, Suite::partitioners_in_a_join),
        ("cache (figure 19)", 0.07, Suite::cache),
        ("who counts, feeds, maps (figure 20)", 0.06, Suite::choices),
        ("ratios (figure 21)", 0.05, Suite::ratios),
        ("multiprocessors (figure 24)", 0.04, Suite::multiprocessors),
        ("breakdown (figure 15)", 0.03, Suite::breakdown),
        ("rows to the host", 0.02, Suite::rows),
        ("payloads (figure 22)", 0.06, Suite::payloads),
    ];
    let (begun, mut due, mut failed) = (now(), 0.0, 0);
    for (figure, share, section) in sections {
        due += share * seconds; // a section's unused time goes to the next one
        suite.figure = figure;
        suite.deadline = (begun, due);
        let started = now();
        eprintln!("gpu_suite: {figure} ({:.0} s of {seconds:.0})", begun.elapsed().as_secs_f64());
        if let Err(error) = section(&mut suite) {
            failed += 1;
            suite.say(&[("failed", text(&error.to_string()))]);
        }
        suite.say(&[("section_seconds", started.elapsed().as_secs_f64().to_string())]);
    }
    failed
}

struct Suite<'s> {
    device: Arc<dyn Device>,
    sizes: &'s Sizes,
    run: Run,
    description: Description,
    data: Option<Data>,
    /// When the section's time began, and the seconds after which it starts nothing new.
    deadline: (Instant, f64),
    figure: &'static str,
    say: &'s mut dyn FnMut(String),
}

/// Pinned relations, made once and used in prefixes.
struct Data {
    build: Buffer,
    probe: Buffer,
    tuples: u64,
    columns: u64,
}

fn text(value: &str) -> String {
    format!("{value:?}")
}

/// A bijection of 0..2^bits: shuffles without a table.
fn shuffle(x: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    let x = x ^ x >> (bits / 2 + 1);
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask
}

impl Data {
    fn new(
        device: &Arc<dyn Device>,
        tuples_log: u32,
        block_log: u32,
        columns: u64,
        run: &Run,
    ) -> Result<Self, GpuError> {
        let tuples = 1u64 << tuples_log;
        let block_mask = (1 << block_log) - 1;
        let make = |is_probe: bool| -> Result<Buffer, GpuError> {
            let mut buffer = Buffer::new(device, Place::Host, tuples * 8 * (1 + columns))?;
            // SAFETY: nothing is queued on this memory.
            let words = unsafe { buffer.words_mut(0, (tuples * (1 + columns)) as usize) };
            let each = words.len().div_ceil(run.threads);
            let fill = |part: &mut [u64], begin: u64| {
                for (word, at) in part.iter_mut().zip(begin..) {
                    let row = at & (tuples - 1);
                    // The probe side has every block of rows in another order.
                    let row = if is_probe { row & !block_mask | shuffle(row & block_mask, block_log) } else { row };
                    *word = if at < tuples { shuffle(row, tuples_log) } else { row };
                }
            };
            std::thread::scope(|scope| {
                for (part, number) in words.chunks_mut(each).zip(0..) {
                    scope.spawn(move || fill(part, number * each as u64));
                }
            });
            Ok(buffer)
        };
        Ok(Self { build: make(false)?, probe: make(true)?, tuples, columns })
    }

    /// A prefix of a side. With several payload columns: all tuples.
    fn side(&self, is_probe: bool, count: u64) -> Relation<'_> {
        let buffer = if is_probe { &self.probe } else { &self.build };
        // SAFETY: written in `new`, and never again; joins only read it.
        let words = unsafe { buffer.words(0, (self.tuples * (1 + self.columns)) as usize) };
        let payloads = if self.columns == 1 { count } else { self.tuples * self.columns };
        Relation {
            keys: &words[..count as usize],
            payloads: &words[self.tuples as usize..][..payloads as usize],
            is_pinned: true,
        }
    }
}

/// A join, and its name in the results.
struct Case {
    driver: Driver,
    build: u64,
    probe: u64,
    options: GpuOptions,
    note: String,
}

impl Suite<'_> {
    fn time_is_up(&self) -> bool {
        self.deadline.0.elapsed().as_secs_f64() > self.deadline.1
    }

    fn say(&mut self, fields: &[(&str, String)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name:?}: {value}")).collect();
        (self.say)(format!("{{\"figure\": {:?}, {}}}", self.figure, fields.join(", ")));
    }

    /// The best of the rounds, in seconds.
    fn best(&self, mut work: impl FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let mut best = f64::INFINITY;
        for _ in 0..self.sizes.rounds {
            let started = now();
            work()?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    fn options(&self) -> GpuOptions {
        let tuples = 1u64 << self.sizes.tuples_log;
        let work = Work {
            build_rows: tuples,
            probe_rows: tuples,
            probes: 1,
            words: 1,
            rows: 0,
            is_pinned: true,
            threads: self.run.threads,
        };
        GpuOptions {
            tuning: Tuning::for_rows(tuples, self.description.is_emulation),
            ..tuned(&self.description, &work)
        }
    }

    fn describe(&mut self) -> Result<(), GpuError> {
        self.description = Gpu::new(Arc::clone(&self.device))?.describe()?;
        let d = self.description.clone();
        let options = self.options();
        self.say(&[
            ("name", text(&d.name)),
            ("is_emulation", d.is_emulation.to_string()),
            ("multiprocessors", d.multiprocessors.to_string()),
            ("memory_bytes", d.memory_bytes.to_string()),
            ("free_bytes", d.free_bytes.to_string()),
            ("host_bytes_available", host_bytes_available().to_string()),
            ("threads", self.run.threads.to_string()),
            ("calibration", text(&format!("{d:?}"))),
            ("options", text(&format!("{options:?}"))),
        ]);
        Ok(())
    }

    /// Copy engines: each direction alone and both at once.
    fn link(&mut self) -> Result<(), GpuError> {
        let bytes = self.sizes.link_bytes;
        let new = |place| Buffer::new(&self.device, place, bytes);
        let (host, near, other_host, other_near) =
            (new(Place::Host)?, new(Place::Device)?, new(Place::Host)?, new(Place::Device)?);
        // SAFETY: the four buffers live to the end of this function, and every copy is waited for.
        let copy = |stream, to: &Buffer, from: &Buffer| unsafe {
            self.device.copy(Stream(stream), to.address(), from.address(), bytes)
        };
        let wait = |stream| self.device.synchronize(Stream(stream));
        let down = self.best(|| copy(0, &near, &host).and_then(|()| wait(0)))?;
        let up = self.best(|| copy(0, &other_host, &other_near).and_then(|()| wait(0)))?;
        let both = self.best(|| {
            copy(0, &near, &host)?;
            copy(1, &other_host, &other_near)?;
            wait(0).and_then(|()| wait(1))
        })?;
        for (name, seconds, moved) in
            [("host_to_device", down, bytes), ("device_to_host", up, bytes), ("both", both, 2 * bytes)]
        {
            self.say(&[("direction", text(name)), ("gib_per_s", (moved as f64 / GIB / seconds).to_string())]);
        }
        Ok(())
    }

    /// Kernels on pinned host memory, by granularity, in order and at random; misaligned ones.
    fn granularity(&mut self) -> Result<(), GpuError> {
        let bytes = self.sizes.access_bytes;
        let host = Buffer::new(&self.device, Place::Host, bytes + 4096)?;
        let sink = Buffer::new(&self.device, Place::Device, 8)?;
        let threads = if self.description.is_emulation { 64 } else { 512 };
        let grid = Grid { blocks: 4 * self.description.multiprocessors, threads, shared_bytes: 0 };
        let aligned = [4u32, 8, 16, 32, 64, 128, 256, 512].map(|size| (size, 0));
        for (granularity_bytes, misalign_bytes) in aligned.into_iter().chain([(512, 16), (256, 16), (128, 16)]) {
            for (way, is_sequential) in [("read", 0), ("write", 0), ("read", 1), ("write", 1)] {
                if self.time_is_up() {
                    self.skip();
                    return Ok(());
                }
                let word = granularity_bytes.min(16);
                let arguments = AccessArguments {
                    at: host.address(),
                    bytes,
                    // As many accesses as the array has of 16 bytes: smaller ones take as long each. At least one a
                    // thread.
                    accesses: (bytes / u64::from(granularity_bytes.max(16))).max(u64::from(grid.blocks * grid.threads)),
                    granularity_bytes,
                    misalign_bytes,
                    is_sequential,
                    sink: sink.address(),
                    ..AccessArguments::default()
                };
                let groups = u64::from(grid.blocks * grid.threads / (granularity_bytes / word));
                let moved = arguments.accesses / groups * groups * u64::from(granularity_bytes);
                let seconds = self.best(|| {
                    // SAFETY: the range ends before the buffer does (4 KiB more than `bytes`), and the launch is waited for.
                    unsafe { self.device.launch(Stream(1), &format!("{way}_{word}"), grid, bytes_of(&arguments)) }?;
                    self.device.synchronize(Stream(1))
                })?;
                self.say(&[
                    ("way", text(way)),
                    ("order", text(if is_sequential == 1 { "in order" } else { "at random" })),
                    ("bytes", granularity_bytes.to_string()),
                    ("misaligned_by", misalign_bytes.to_string()),
                    ("gib_per_s", (moved as f64 / GIB / seconds).to_string()),
                ]);
            }
        }
        Ok(())
    }

    fn skip(&mut self) {
        self.say(&[("skipped", text("no time left"))]);
    }

    fn make_data(&mut self) -> Result<(), GpuError> {
        let started = now();
        let mut tuples_log = self.sizes.tuples_log;
        self.data = loop {
            match Data::new(&self.device, tuples_log, self.sizes.block_log, 1, &self.run) {
                Ok(data) => break Some(data),
                // The host does not pin as much memory as it has.
                Err(GpuError::OutOfMemory { .. }) if tuples_log > self.sizes.block_log => tuples_log -= 1,
                Err(error) => return Err(error),
            }
        };
        let tuples = 1u64 << tuples_log;
        self.say(&[("tuples", tuples.to_string()), ("seconds", started.elapsed().as_secs_f64().to_string())]);
        Ok(())
    }

    fn data(&self) -> Result<&Data, GpuError> {
        self.data.as_ref().ok_or_else(|| GpuError::Invalid("there are no inputs".into()))
    }

    fn all(&self) -> Result<u64, GpuError> {
        Ok(self.data()?.tuples)
    }

    /// One join, checked and timed. The first of several runs loads kernels and does not count.
    fn join(&mut self, case: &Case) -> Result<Option<GpuAnswer>, GpuError> {
        let data = self.data.take().ok_or_else(|| GpuError::Invalid("there are no inputs".into()))?;
        let answer = self.join_of(&data, case);
        self.data = Some(data);
        answer
    }

    fn join_of(&mut self, data: &Data, case: &Case) -> Result<Option<GpuAnswer>, GpuError> {
        let Case { driver, build, probe, options, note } = case;
        let words = data.columns as u32;
        let work = Work {
            build_rows: *build,
            probe_rows: *probe,
            probes: 1,
            words,
            rows: if options.materialize { *build } else { 0 },
            is_pinned: true,
            threads: self.run.threads,
        };
        let predicted = predict(*driver, &self.description, &work, options);
        let mut fields = vec![
            ("driver", text(driver.name())),
            ("build", build.to_string()),
            ("probe", probe.to_string()),
            ("words", words.to_string()),
            ("note", text(note)),
        ];
        let spilled = (build + probe) * 8 * u64::from(words + 1);
        let cached = options.cache_bytes_max.unwrap_or(u64::MAX).min(self.description.free_bytes);
        let needs_host =
            *driver != Driver::NoPartition && spilled.saturating_sub(cached) > host_bytes_available() / 10 * 9;
        if self.time_is_up() || needs_host {
            let why = if needs_host { "the host has no memory for the spilled partitions" } else { "no time left" };
            fields.push(("skipped", text(why)));
            self.say(&fields);
            return Ok(None);
        }
        let run = || driver.join(&self.device, data.side(false, *build), data.side(true, *probe), *options, &self.run);
        let mut last = Ok(GpuAnswer::default());
        let started = now();
        let mut seconds = f64::INFINITY;
        for round in 0..self.sizes.rounds {
            let begun = now();
            last = run();
            if round > 0 || self.sizes.rounds == 1 {
                seconds = seconds.min(begun.elapsed().as_secs_f64());
            }
            if last.is_err() || started.elapsed().as_secs_f64() > 10.0 && round > 0 {
                break;
            }
        }
        let answer = match last {
            Ok(answer) => answer,
            // That a join does not fit is a result too; a device that failed ends the section.
            Err(error @ GpuError::OutOfMemory { .. }) => {
                fields.push(("error", text(&error.to_string())));
                self.say(&fields);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let matches = (*build).min(*probe);
        let payloads = u64::from(words).wrapping_mul(matches.wrapping_mul(matches.wrapping_sub(1)) / 2);
        let is_right = answer.sum.pairs == matches && (answer.sum.build, answer.sum.probe) == (payloads, payloads);
        if !is_right {
            return Err(GpuError::Failed {
                operation: "check the answer",
                message: format!("{note}: {:?} instead of {matches} matches, {payloads}", answer.sum),
            });
        }
        fields.push(("seconds", seconds.to_string()));
        fields.push(("gtuples_per_s", ((build + probe) as f64 / 1e9 / seconds).to_string()));
        fields.push(("pages_cached", answer.pages_cached.to_string()));
        fields.push(("pages_spilled", answer.pages_spilled.to_string()));
        if let Ok(predicted) = predicted {
            fields.push(("modelled_seconds", predicted.seconds.to_string()));
        }
        self.say(&fields);
        Ok(Some(answer))
    }

    fn scaling(&mut self) -> Result<(), GpuError> {
        let (all, unit) = (self.all()?, self.sizes.unit);
        let sizes: Vec<u64> = [128, 256, 512, 1024, 1536, 2048].map(|m| m * unit).into();
        for size in sizes.into_iter().filter(|&size| size <= all) {
            for (note, scheme) in
                [("hash", Scheme::Chaining), ("perfect", Scheme::Perfect { key_min: 0, key_max: all - 1 })]
            {
                for driver in [Driver::Triton, Driver::NoPartition] {
                    let options = GpuOptions { scheme, ..self.options() };
                    self.join(&Case { driver, build: size, probe: size, options, note: note.into() })?;
                }
            }
        }
        for size in [128 * unit, 512 * unit].into_iter().filter(|&size| size <= all) {
            let note = format!("{} threads partition", self.run.threads);
            self.join(&Case {
                driver: Driver::CpuPartitioned,
                build: size,
                probe: size,
                options: self.options(),
                note,
            })?;
        }
        Ok(())
    }

    /// The CPU's radix join on the same host.
    fn cpu(&mut self) -> Result<(), GpuError> {
        let (all, unit) = (self.all()?, self.sizes.unit);
        for size in [128 * unit, 512 * unit].into_iter().filter(|&size| size <= all) {
            if self.time_is_up() {
                self.skip();
                return Ok(());
            }
            let radix = by_name("radix").ok_or_else(|| GpuError::Invalid("there is no radix join".into()))?;
            let data = self.data()?;
            let (build, probe) = (data.side(false, size), data.side(true, size));
            let mut seconds = f64::INFINITY;
            for _ in 0..self.sizes.rounds.min(2) {
                let started = now();
                let sum = Columns::new(build.keys, build.payloads)
                    .and_then(|columns| radix.build(columns, &self.run))
                    .and_then(|table| table.sum(Columns::new(probe.keys, probe.payloads)?, &self.run))?;
                seconds = seconds.min(started.elapsed().as_secs_f64());
                if sum.pairs != size {
                    return Err(GpuError::Invalid(format!("the CPU found {} matches of {size}", sum.pairs)));
                }
            }
            let threads = self.run.threads.to_string();
            self.say(&[
                ("driver", text("cpu radix")),
                ("build", size.to_string()),
                ("probe", size.to_string()),
                ("threads", threads),
                ("gtuples_per_s", ((2 * size) as f64 / 1e9 / seconds).to_string()),
            ]);
        }
        Ok(())
    }

    /// The first pass alone, with everything spilled. Kernels are timed by events; the first of two runs does not
    /// count.
    fn partitioners(&mut self) -> Result<(), GpuError> {
        let tuples = (self.all()? / 8).max(1 << self.sizes.block_log);
        for partitioner in Partitioner::ALL {
            for bits in self.sizes.fan_out_logs.clone() {
                if self.time_is_up() {
                    self.skip();
                    return Ok(());
                }
                let options = GpuOptions {
                    partitioner,
                    first_bits: Some(bits),
                    cache_bytes_max: Some(0),
                    profile: true,
                    ..self.options()
                };
                let mut kernel_ms = 0.0;
                let mut seconds = f64::INFINITY;
                for _ in 0..self.sizes.rounds.min(2) {
                    let data = self.data()?;
                    let started = now();
                    let built =
                        Driver::Triton.build(&self.device, data.side(false, tuples), tuples, options, &self.run)?;
                    seconds = seconds.min(started.elapsed().as_secs_f64());
                    let kernels = built.profile().iter().filter(|(name, _)| name.starts_with("partition"));
                    kernel_ms = kernels.map(|(_, ms)| ms).sum();
                }
                let bytes = (tuples * 32) as f64 / GIB;
                self.say(&[
                    ("partitioner", text(partitioner.name())),
                    ("fan_out", (1u64 << bits).to_string()),
                    ("tuples", tuples.to_string()),
                    ("kernel_ms", kernel_ms.to_string()),
                    ("seconds", seconds.to_string()),
                    // Read and written, as the paper counts.
                    ("gib_per_s", if kernel_ms > 0.0 { bytes / kernel_ms * 1e3 } else { bytes / seconds }.to_string()),
                ]);
            }
        }
        Ok(())
    }

    fn partitioners_in_a_join(&mut self) -> Result<(), GpuError> {
        let size = self.all()? / 2;
        for partitioner in Partitioner::ALL {
            let options = GpuOptions { partitioner, cache_bytes_max: Some(0), ..self.options() };
            let note = partitioner.name().into();
            self.join(&Case { driver: Driver::Triton, build: size, probe: size, options, note })?;
        }
        Ok(())
    }

    fn cache(&mut self) -> Result<(), GpuError> {
        let all = self.all()?;
        for size in [all, all / 4] {
            for cache in self.sizes.caches.clone() {
                let options = GpuOptions { cache_bytes_max: Some(cache), ..self.options() };
                let note = format!("{} MiB", cache >> 20);
                self.join(&Case { driver: Driver::Triton, build: size, probe: size, options, note })?;
            }
        }
        Ok(())
    }

    /// What the defaults decide, each alternative beside the other, so that the better one can become the default.
    fn choices(&mut self) -> Result<(), GpuError> {
        let size = self.all()? / 4;
        let default = self.options();
        let cases = [Histogram::Device, Histogram::Host]
            .map(|histogram| (format!("counted by {histogram:?}"), GpuOptions { histogram, ..default }))
            .into_iter()
            .chain(
                [Feed::CopyEngine, Feed::Kernels]
                    .map(|feed| (format!("fed by {feed:?}"), GpuOptions { feed, ..default })),
            )
            .chain([Layout::Directory, Layout::Mapped].map(|layout| {
                // Half of the pages on each side of the link.
                let cache_bytes_max = Some(size * 16);
                (format!("layout {layout:?}"), GpuOptions { layout, cache_bytes_max, ..default })
            }));
        for (note, options) in cases.collect::<Vec<_>>() {
            self.join(&Case { driver: Driver::Triton, build: size, probe: size, options, note })?;
        }
        Ok(())
    }

    fn ratios(&mut self) -> Result<(), GpuError> {
        let all = self.all()?;
        for driver in [Driver::Triton, Driver::NoPartition] {
            for ratio in [1, 2, 4, 8, 16, 32] {
                let (options, note) = (self.options(), format!("1:{ratio}"));
                self.join(&Case { driver, build: all / ratio, probe: all, options, note })?;
            }
        }
        Ok(())
    }

    fn multiprocessors(&mut self) -> Result<(), GpuError> {
        let size = self.all()? / 4;
        let most = self.description.multiprocessors;
        for count in
            [most / 16, most / 8, most / 4, most / 2, most * 3 / 4, most].into_iter().filter(|&count| count > 0)
        {
            let options = GpuOptions { multiprocessors_max: Some(count), ..self.options() };
            self.join(&Case { driver: Driver::Triton, build: size, probe: size, options, note: count.to_string() })?;
        }
        Ok(())
    }

    fn breakdown(&mut self) -> Result<(), GpuError> {
        let all = self.all()?;
        for size in [all / 16, all / 4, all] {
            // As in the paper, the device counts, so that all of the work is measured.
            let options = GpuOptions { profile: true, histogram: Histogram::Device, ..self.options() };
            let case =
                Case { driver: Driver::Triton, build: size, probe: size, options, note: "timed by kernel".into() };
            let Some(answer) = self.join(&case)? else { continue };
            let mut phases: Vec<(&str, f64)> = Vec::new();
            for (kernel, ms) in &answer.profile {
                let phase = phase_of(kernel);
                match phases.iter_mut().find(|(name, _)| *name == phase) {
                    Some((_, sum)) => *sum += ms,
                    None => phases.push((phase, *ms)),
                }
            }
            let whole: f64 = phases.iter().map(|phase| phase.1).sum();
            for (phase, ms) in phases {
                self.say(&[
                    ("phase", text(phase)),
                    ("build", size.to_string()),
                    ("ms", ms.to_string()),
                    ("percent", (100.0 * ms / whole.max(1e-9)).to_string()),
                ]);
            }
        }
        Ok(())
    }

    fn rows(&mut self) -> Result<(), GpuError> {
        let size = self.all()? / 8;
        let options = GpuOptions { materialize: true, ..self.options() };
        self.join(&Case { driver: Driver::Triton, build: size, probe: size, options, note: "every match".into() })?;
        Ok(())
    }

    /// Payload columns that travel with the key (the paper fetches them afterwards; this join has no late
    /// materialization).
    fn payloads(&mut self) -> Result<(), GpuError> {
        self.data = None; // its memory is needed
        for words in self.sizes.widths.clone() {
            let tuples_log = self.sizes.tuples_log.saturating_sub(4).max(self.sizes.block_log);
            let data = Data::new(&self.device, tuples_log, self.sizes.block_log, u64::from(words), &self.run)?;
            let case = Case {
                driver: Driver::Triton,
                build: data.tuples,
                probe: data.tuples,
                options: self.options(),
                note: format!("{words} payload columns"),
            };
            self.join_of(&data, &case)?;
        }
        Ok(())
    }
}

/// The paper's names of the kernels.
fn phase_of(kernel: &str) -> &'static str {
    match kernel {
        _ if kernel.starts_with("histogram_columns") => "PS 1",
        _ if kernel.starts_with("prefix_sum") => "PS",
        _ if kernel.starts_with("histogram_rows") => "PS 2",
        _ if kernel.starts_with("partition") && kernel.contains("columns") => "Part 1",
        _ if kernel.starts_with("partition") => "Part 2",
        _ if kernel.starts_with("schedule") => "Sched",
        _ => "Join",
    }
}
