//! Measures the joins on a GPU and prints one JSON object a line: `scripts/gpu-suite` runs it and draws the plots.
//!
//! `gpu_suite CUBINS SECONDS` - kernels from the folder CUBINS (`-`: compiled by NVRTC), and no new measurement after SECONDS.
//! Exit status 3: there is no GPU, and nothing was measured.
//!
//! Every join's answer is checked: the build keys are 0..n, once each, so every probe tuple with a key below n has one match.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use farhold_join::gpu::kernels::{AccessArguments, bytes_of};
use farhold_join::gpu::{
    Buffer, Cuda, Device, Feed, GpuError, GpuOptions, Grid, Histogram, Partitioner, Place, Relation, Scheme, Stream,
    cpu_partitioned, no_partition, triton,
};
use farhold_join::{Columns, Run, algorithm};

const GIB: f64 = (1u64 << 30) as f64;

#[expect(clippy::disallowed_methods, reason = "a measurement of a real device")]
fn now() -> Instant {
    Instant::now()
}

struct Suite<'d> {
    device: &'d Cuda,
    started: Instant,
    seconds_max: f64,
}

/// Pinned relations with unique build keys, made once and used in prefixes.
struct Data<'d> {
    build: Buffer<'d>,
    probe: Buffer<'d>,
    tuples: u64,
}

/// A bijection of 0..2^bits: shuffles without a table.
fn shuffle(x: u64, bits: u32) -> u64 {
    let mask = (1 << bits) - 1;
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    let x = x ^ x >> (bits / 2 + 1);
    x.wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask
}

impl<'d> Data<'d> {
    fn new(device: &'d dyn Device, bits: u32) -> Result<Self, GpuError> {
        let tuples = 1u64 << bits;
        let make = |salt: u64| -> Result<Buffer<'d>, GpuError> {
            let mut buffer = Buffer::new(device, Place::Host, tuples * 16)?;
            // SAFETY: nothing is queued on this memory.
            let words = unsafe { buffer.words_mut(0, 2 * tuples as usize) };
            let (keys, payloads) = words.split_at_mut(tuples as usize);
            keys.iter_mut().zip(0..).for_each(|(key, i)| *key = shuffle(i ^ salt, bits));
            payloads.iter_mut().zip(0..).for_each(|(payload, i)| *payload = i);
            Ok(buffer)
        };
        Ok(Self { build: make(0)?, probe: make(0x2a)?, tuples })
    }

    fn side(&self, buffer: &'d Buffer<'d>, count: u64) -> Relation<'d> {
        // SAFETY: written in `new`, and never again; joins only read it.
        let words = unsafe { buffer.words(0, 2 * self.tuples as usize) };
        Relation {
            keys: &words[..count as usize],
            payloads: &words[self.tuples as usize..][..count as usize],
            is_pinned: true,
        }
    }
}

impl<'d> Suite<'d> {
    fn time_is_up(&self) -> bool {
        self.started.elapsed().as_secs_f64() > self.seconds_max
    }

    fn say(figure: &str, fields: &[(&str, String)]) {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
        println!("{{\"figure\": \"{figure}\", {}}}", fields.join(", "));
    }

    /// Best of three, in seconds.
    fn best(mut work: impl FnMut() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let started = now();
            work()?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// Copy engines: each direction alone and both at once.
    fn link(&self) -> Result<(), GpuError> {
        let bytes = 1u64 << 30;
        let pair =
            || Ok((Buffer::new(self.device, Place::Host, bytes)?, Buffer::new(self.device, Place::Device, bytes)?));
        let (host, device) = pair()?;
        let (other_host, other_device) = pair()?;
        // SAFETY: the four buffers live to the end of this function, and every copy is waited for.
        let copy = |stream, to: &Buffer<'_>, from: &Buffer<'_>| unsafe {
            self.device.copy(Stream(stream), to.address(), from.address(), bytes)
        };
        let down = Self::best(|| copy(0, &device, &host).and_then(|()| self.device.synchronize(Stream(0))))?;
        let up = Self::best(|| copy(0, &other_host, &other_device).and_then(|()| self.device.synchronize(Stream(0))))?;
        let both = Self::best(|| {
            copy(0, &device, &host)?;
            copy(1, &other_host, &other_device)?;
            self.device.synchronize(Stream(0))?;
            self.device.synchronize(Stream(1))
        })?;
        for (name, seconds, moved) in
            [("host_to_device", down, bytes), ("device_to_host", up, bytes), ("both", both, 2 * bytes)]
        {
            Self::say(
                "link",
                &[("direction", format!("\"{name}\"")), ("gib_per_s", (moved as f64 / GIB / seconds).to_string())],
            );
        }
        Ok(())
    }

    /// Figure 6: kernels on pinned host memory, by granularity; and 512 bytes misaligned by 16.
    fn granularity(&self) -> Result<(), GpuError> {
        let bytes = 1u64 << 30;
        let host = Buffer::new(self.device, Place::Host, bytes + 4096)?;
        let sink = Buffer::new(self.device, Place::Device, 8)?;
        let grid = Grid { blocks: 4 * self.device.properties()?.multiprocessors, threads: 512, shared_bytes: 0 };
        let cases =
            [4u32, 8, 16, 32, 64, 128, 256, 512].map(|size| (size, 0)).into_iter().chain([(512, 16), (128, 16)]);
        for (granularity_bytes, misalign_bytes) in cases {
            for way in ["read", "write"] {
                let word = granularity_bytes.min(16);
                let arguments = AccessArguments {
                    at: host.address(),
                    bytes,
                    accesses: (64 << 20) / u64::from(granularity_bytes.max(16)) * 4,
                    granularity_bytes,
                    misalign_bytes,
                    sink: sink.address(),
                    ..AccessArguments::default()
                };
                let groups = u64::from(grid.blocks * grid.threads / (granularity_bytes / word));
                let moved = arguments.accesses / groups * groups * u64::from(granularity_bytes);
                let seconds = Self::best(|| {
                    // SAFETY: the range ends before the buffer does (4 KiB more than `bytes`), and the launch is waited for.
                    unsafe { self.device.launch(Stream(1), &format!("{way}_{word}"), grid, bytes_of(&arguments)) }?;
                    self.device.synchronize(Stream(1))
                })?;
                let fields = [
                    ("way", format!("\"{way}\"")),
                    ("bytes", granularity_bytes.to_string()),
                    ("misaligned_by", misalign_bytes.to_string()),
                    ("gib_per_s", (moved as f64 / GIB / seconds).to_string()),
                ];
                Self::say("granularity", &fields);
            }
        }
        Ok(())
    }

    /// One join, checked and timed (second of two runs: the first one loads kernels).
    fn join(
        &self,
        figure: &str,
        driver: &str,
        data: &Data<'d>,
        (build, probe): (u64, u64),
        options: GpuOptions,
        note: &str,
    ) {
        if self.time_is_up() {
            return Self::say(figure, &[("driver", format!("\"{driver}\"")), ("skipped", "\"no time left\"".into())]);
        }
        let run = || {
            let (build, probe) = (data.side(&data.build, build), data.side(&data.probe, probe));
            match driver {
                "no_partition" => no_partition(self.device, build, probe, options),
                "cpu_partitioned" => cpu_partitioned(self.device, build, probe, options),
                _ => triton(self.device, build, probe, options),
            }
        };
        let mut fields = vec![
            ("driver", format!("\"{driver}\"")),
            ("build", build.to_string()),
            ("probe", probe.to_string()),
            ("note", format!("\"{note}\"")),
        ];
        let first = run();
        let started = now();
        match first.and_then(|_| run()) {
            Ok(answer) => {
                let seconds = started.elapsed().as_secs_f64();
                // With equal sides the keys of both are the same numbers; a prefix of a shuffle has some of them.
                let whole = build == data.tuples;
                assert!(!whole || answer.sum.pairs == probe, "{driver}: {} matches of {probe}", answer.sum.pairs);
                fields.push(("seconds", seconds.to_string()));
                fields.push(("gtuples_per_s", ((build + probe) as f64 / 1e9 / seconds).to_string()));
                fields.push(("matches", answer.sum.pairs.to_string()));
                fields.push(("pages_cached", answer.pages_cached.to_string()));
                fields.push(("pages_spilled", answer.pages_spilled.to_string()));
            }
            Err(error) => fields.push(("error", format!("{:?}", error.to_string()))),
        }
        Self::say(figure, &fields);
    }

    fn joins(&self, data: &Data<'d>) {
        let default = GpuOptions::default();
        let all = data.tuples;
        // Figure 17: the first pass's partitioner, without a cache, and how it is fed.
        for partitioner in Partitioner::ALL {
            for feed in [Feed::CopyEngine, Feed::Kernels] {
                let options = GpuOptions { partitioner, feed, cache_bytes_max: Some(0), ..default };
                self.join(
                    "partitioners",
                    "triton",
                    data,
                    (all, all),
                    options,
                    &format!("{} {feed:?}", partitioner.name()),
                );
            }
        }
        // Figure 13: sizes and algorithms.
        let mut size = 128 << 20;
        while size <= all {
            for scheme in [Scheme::Chaining, Scheme::Perfect { key_min: 0, key_max: all - 1 }] {
                for driver in ["triton", "no_partition"] {
                    self.join(
                        "scaling",
                        driver,
                        data,
                        (size, size),
                        GpuOptions { scheme, ..default },
                        if scheme == Scheme::Chaining { "hash" } else { "perfect" },
                    );
                }
            }
            size *= 2;
        }
        self.join("scaling", "cpu_partitioned", data, (128 << 20, 128 << 20), default, "one CPU thread");
        // Figure 19: cache.
        for gib in [0u64, 8, 16, 32, 64] {
            self.join(
                "cache",
                "triton",
                data,
                (all, all),
                GpuOptions { cache_bytes_max: Some(gib << 30), ..default },
                &format!("{gib} GiB"),
            );
        }
        // Figure 20: who counts. Figure 21: ratios. Figure 24: multiprocessors.
        for histogram in [Histogram::Device, Histogram::Host] {
            self.join(
                "histogram",
                "triton",
                data,
                (all, all),
                GpuOptions { histogram, ..default },
                &format!("{histogram:?}"),
            );
        }
        for ratio in [1, 2, 4, 8, 16, 32] {
            self.join("ratio", "triton", data, (all / ratio, all), default, &format!("1:{ratio}"));
        }
        for count in [8, 16, 32, 64, 96, 132] {
            self.join(
                "multiprocessors",
                "triton",
                data,
                (all / 4, all / 4),
                GpuOptions { multiprocessors_max: Some(count), ..default },
                &count.to_string(),
            );
        }
        self.join(
            "materialize",
            "triton",
            data,
            (all / 8, all / 8),
            GpuOptions { materialize: true, ..default },
            "rows to the host",
        );
    }

    /// The CPU's radix join on the same host.
    fn cpu(&self, data: &Data<'d>) {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let run = Run::with_threads(threads);
        for size in [128u64 << 20, 512 << 20].into_iter().filter(|&size| size <= data.tuples) {
            if self.time_is_up() {
                return;
            }
            let (build, probe) = (data.side(&data.build, size), data.side(&data.probe, size));
            let radix = algorithm::by_name("radix").expect("the CPU's radix join");
            let started = now();
            let joined = Columns::new(build.keys, build.payloads)
                .and_then(|columns| radix.build(columns, &run))
                .and_then(|table| table.sum(Columns::new(probe.keys, probe.payloads)?, &run));
            let seconds = started.elapsed().as_secs_f64();
            let outcome = match joined {
                Ok(sum) => ("matches", sum.pairs.to_string()),
                Err(error) => ("error", format!("{:?}", error.to_string())),
            };
            let rate = (2 * size) as f64 / 1e9 / seconds;
            Self::say(
                "scaling",
                &[
                    ("driver", "\"cpu radix\"".into()),
                    ("build", size.to_string()),
                    ("probe", size.to_string()),
                    ("threads", threads.to_string()),
                    ("gtuples_per_s", rate.to_string()),
                    outcome,
                ],
            );
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let cubins = arguments.get(1).filter(|folder| *folder != "-").map(Path::new);
    let seconds_max = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(480.0);
    let device = match Cuda::open(0, cubins) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("gpu_suite: {error}; nothing was measured");
            return ExitCode::from(3);
        }
    };
    match measure(&device, seconds_max) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu_suite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(device: &Cuda, seconds_max: f64) -> Result<(), GpuError> {
    let suite = Suite { device, started: now(), seconds_max };
    let properties = device.properties()?;
    let fields = [
        ("name", format!("{:?}", properties.name)),
        ("multiprocessors", properties.multiprocessors.to_string()),
        ("memory_bytes", properties.memory_bytes.to_string()),
        ("free_bytes", properties.free_bytes.to_string()),
    ];
    Suite::say("device", &fields);
    suite.link()?;
    suite.granularity()?;
    // The largest inputs for which the host has room beside their spilled copy: 2^31 tuples a side need 128 GiB.
    let host_bytes = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
    });
    let bits = (host_bytes.unwrap_or(8 << 20) * 1024 / 80).max(1 << 20).ilog2().min(31);
    let data = Data::new(device, bits)?;
    suite.joins(&data);
    suite.cpu(&data);
    Ok(())
}
