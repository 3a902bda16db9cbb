//! The join algorithms on 16-byte tuples, beside what the memory's bandwidth allows.
//!
//! ```text
//! cargo bench -p farhold-join --bench joins                    16 M x 16 M and 64 M x 64 M, all cores, 3 rounds
//! cargo bench -p farhold-join --bench joins -- --quick         what the tests run: seconds, figures without meaning
//! cargo bench -p farhold-join --bench joins -- --json FILE     also as JSON
//! cargo bench -p farhold-join --bench joins -- --raw           only the raw columns (--arrow: only the budgets)
//! cargo bench -p farhold-join --bench joins -- --only radix    one algorithm, as for a profile
//! cargo bench -p farhold-join --bench joins -- --threads 2     on so many threads
//! cargo bench -p farhold-join --bench joins -- --sweep         the model's choice beside the best, 50 K to 64 M tuples a side
//! cargo bench -p farhold-join --bench joins -- --serve --rows N [--sparse]    one join a line of input: for scripts/compare-joins
//! ```
//!
//! The second table joins Arrow batches of the same tuples within 1/2, 1/4 and 1/10 of the build side's bytes, on one thread.
//!
//! Unique build keys in random order, uniform foreign keys, the sums of both payloads. Rates are millions of tuples (of both
//! sides) a second: the median of the rounds, which run turn and turn about. `dense` keys are 0..n, `sparse` ones any
//! 64-bit words.
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]

use std::fmt::Write;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use farhold_join::algorithm::{self, Columns, Shape, Sum};
use farhold_join::model::{self, Machine};
use farhold_join::{
    Algorithm, BUDGET_BYTES_MIN, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, PageStore, Run,
};

struct Options {
    quick: bool,
    rounds: usize,
    threads: usize,
    rows: Option<usize>,
    only: Option<String>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let value =
        |name: &str| args.iter().position(|arg| arg == name).map(|at| args.get(at + 1).expect("a value").clone());
    let number = |name: &str| value(name).map(|text| text.parse().expect("a number"));
    let quick = !has("--bench") || has("--quick");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        quick,
        rounds: number("--rounds").unwrap_or(if quick { 1 } else { 3 }),
        threads: number("--threads").unwrap_or(cores),
        rows: number("--rows"),
        only: value("--only"),
    };
    if has("--serve") {
        return serve(options.rows.expect("--rows"), has("--sparse"), options.threads);
    }
    let mut report = Report { quick, json: String::new() };
    if has("--sweep") {
        sweep(&options, &mut report);
    } else {
        if !has("--arrow") {
            raw(&options, &mut report);
        }
        if !has("--raw") {
            budgets(&options, &mut report);
        }
    }
    if let Some(path) = value("--json") {
        report.write(Path::new(&path));
    }
}

/// Prints rows, and keeps them as JSON.
struct Report {
    quick: bool,
    json: String,
}

impl Report {
    fn table(&self, title: &str) {
        println!("\n{title}{}", if self.quick { " (quick: the figures mean nothing)" } else { "" });
    }

    fn row(&mut self, table: &str, name: &str, figures: &[(&str, f64)]) {
        let mut line = format!("  {name:<34}");
        let mut json = format!("  {{\"table\": \"{table}\", \"row\": \"{name}\"");
        for (figure, value) in figures {
            write!(line, "  {figure} {value:>8.2}").expect("a string");
            write!(json, ", \"{figure}\": {value:.3}").expect("a string");
        }
        println!("{line}");
        self.json += &json;
        self.json += "},\n";
    }

    fn write(&self, path: &Path) {
        std::fs::write(path, format!("[\n{}\n]\n", self.json.trim_end_matches(",\n"))).expect("write the figures");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seconds<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let answer = work();
    (answer, start.elapsed().as_secs_f64())
}

/// A bijection of 64-bit words.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

struct Sides {
    build_keys: Vec<u64>,
    build_payloads: Vec<u64>,
    probe_keys: Vec<u64>,
    probe_payloads: Vec<u64>,
}

impl Sides {
    /// `rows` tuples a side; sparse keys are `mix` of the dense ones.
    fn new(rows: usize, sparse: bool) -> Self {
        let spread = |key: u64| if sparse { mix(key) } else { key };
        let mut keys: Vec<u64> = (0..rows as u64).collect();
        for place in (1..rows).rev() {
            keys.swap(place, (mix(place as u64) % (place as u64 + 1)) as usize);
        }
        let build_keys: Vec<u64> = keys.into_iter().map(spread).collect();
        let probe_keys: Vec<u64> = (0..rows as u64).map(|row| spread(mix(row ^ 0xabcd) % rows as u64)).collect();
        Self {
            build_payloads: (0..rows as u64).collect(),
            probe_payloads: (0..rows as u64).collect(),
            build_keys,
            probe_keys,
        }
    }

    fn build(&self) -> Columns<'_> {
        Columns::new(&self.build_keys, &self.build_payloads).expect("columns")
    }

    fn probe(&self) -> Columns<'_> {
        Columns::new(&self.probe_keys, &self.probe_payloads).expect("columns")
    }
}

/// What a join took: seconds to build the table and to probe it.
fn join(algorithm: &dyn Algorithm, sides: &Sides, run: &Run) -> (Sum, &'static str, [f64; 2]) {
    let (table, build) = seconds(|| algorithm.build(sides.build(), run).expect("build"));
    let (sum, probe) = seconds(|| table.sum(sides.probe(), run).expect("sum"));
    (sum, table.scheme(), [build, probe])
}

/// Runs the join that the model chooses once a line of input, and prints the seconds.
fn serve(rows: usize, sparse: bool, threads: usize) {
    let (sides, run) = (Sides::new(rows, sparse), kept_pages(threads));
    let choice = model::choose(rows, rows as u64, threads, !sparse, &Machine::detect());
    println!("Farhold {}", choice.algorithm.name());
    for line in std::io::stdin().lines() {
        line.expect("a line");
        let ((sum, ..), time) = seconds(|| join(choice.algorithm, &sides, &run));
        assert_eq!(sum.probe, (rows as u64) * (rows as u64 - 1) / 2);
        println!("{time}");
    }
}

/// The model's choice beside the best, over sizes and shapes.
fn sweep(options: &Options, report: &mut Report) {
    let run = kept_pages(options.threads);
    let sizes: &[usize] = if options.quick {
        &[1000, 20_000]
    } else {
        &[50_000, 200_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 16_000_000, 32_000_000, 64_000_000]
    };
    let contenders = ["no_partition", "radix"].map(|name| algorithm::by_name(name).expect("an algorithm"));
    report.table(&format!("the model's choice over the best, rows x rows, {} threads", options.threads));
    for &rows in sizes {
        for (kind, sparse) in [("dense", false), ("sparse", true)] {
            let sides = Sides::new(rows, sparse);
            let rounds = options.rounds.max((2_000_000 / rows).min(50));
            let mut times = [vec![], vec![]];
            for round in 0..=rounds {
                for (algorithm, times) in contenders.iter().zip(&mut times) {
                    let ((sum, ..), time) = seconds(|| join(*algorithm, &sides, &run));
                    assert_eq!(sum.pairs, rows as u64);
                    if round > 0 {
                        times.push(time);
                    }
                }
            }
            let [no_partition, radix] = times.map(median);
            compare_choice(
                report,
                &format!("{rows} {kind}"),
                Shape { build_rows: rows, probe_rows: rows, threads: options.threads },
                !sparse,
                &[("no_partition", no_partition), ("radix", radix)],
            );
        }
    }
}

/// What a round has used, the next may use again, as the allocators of DuckDB and Polars do.
fn kept_pages(threads: usize) -> Run {
    Run { pages: PageStore::keeping(8 << 30), ..Run::with_threads(threads) }
}

fn raw(options: &Options, report: &mut Report) {
    // The first round, on fresh pages, is `cold`.
    let run = kept_pages(options.threads);
    let contenders: Vec<&dyn Algorithm> = algorithm::ALL
        .into_iter()
        .filter(|algorithm| algorithm.name() != "nested_loop" && algorithm.check_available().is_ok())
        .filter(|algorithm| options.only.as_ref().is_none_or(|only| only == algorithm.name()))
        .collect();
    let sizes = options
        .rows
        .map_or_else(|| if options.quick { vec![20_000] } else { vec![16_000_000, 64_000_000] }, |rows| vec![rows]);
    for rows in sizes {
        let memory = Bandwidth::measure(if options.quick { 1 << 16 } else { 1 << 26 }, &run);
        report.table(&format!("raw columns, {rows} x {rows} tuples, {} threads", options.threads));
        report.row(
            "bandwidth",
            &format!("{rows}"),
            &[("read_gb_s", memory.read / 1e9), ("copy_gb_s", memory.copy / 1e9)],
        );
        for (kind, sparse) in [("dense", false), ("sparse", true)] {
            let sides = Sides::new(rows, sparse);
            let mut times: Vec<(&str, Vec<f64>, Vec<f64>)> = vec![("", vec![], vec![]); contenders.len()];
            let mut cold = Vec::new();
            for round in 0..=options.rounds {
                for (algorithm, (scheme, builds, probes)) in contenders.iter().zip(&mut times) {
                    let (sum, used, [build, probe]) = join(*algorithm, &sides, &run);
                    assert_eq!(
                        (sum.pairs, sum.probe),
                        (rows as u64, (rows as u64) * (rows as u64 - 1) / 2),
                        "{}",
                        algorithm.name()
                    );
                    *scheme = used;
                    if round == 0 {
                        cold.push(build + probe);
                        continue;
                    }
                    builds.push(build);
                    probes.push(probe);
                }
            }
            let mut totals = Vec::new();
            for ((algorithm, (scheme, builds, probes)), cold) in contenders.iter().zip(times).zip(cold) {
                let all = median(builds.iter().zip(&probes).map(|(build, probe)| build + probe).collect());
                totals.push((algorithm.name(), all));
                let mut figures = vec![
                    ("mtuples_s", 2.0 * rows as f64 / all / 1e6),
                    ("build_s", median(builds)),
                    ("probe_s", median(probes)),
                    ("cold_mtuples_s", 2.0 * rows as f64 / cold / 1e6),
                ];
                if algorithm.name() == "radix" {
                    figures.push(("bandwidth_share", memory.radix_seconds(rows) / all));
                }
                report.row("raw", &format!("{rows} {kind} {} {scheme}", algorithm.name()), &figures);
            }
            compare_choice(
                report,
                &format!("{rows} {kind}"),
                Shape { build_rows: rows, probe_rows: rows, threads: options.threads },
                !sparse,
                &totals,
            );
        }
    }
}

/// The model's choice for these sides, and how its time compares with the best.
fn compare_choice(report: &mut Report, name: &str, shape: Shape, fills_interval: bool, times: &[(&str, f64)]) {
    let choice =
        model::choose(shape.build_rows, shape.probe_rows as u64, shape.threads, fills_interval, &Machine::detect());
    let best = times.iter().map(|time| time.1).fold(f64::INFINITY, f64::min);
    let chosen = times.iter().find(|time| time.0 == choice.algorithm.name()).map_or(f64::NAN, |time| time.1);
    let mut figures = vec![("over_best", chosen / best)];
    for &(candidate, time) in times {
        figures.push((if candidate == "radix" { "radix_ms" } else { "no_partition_ms" }, time * 1e3));
    }
    for &(candidate, time) in times {
        let predicted = choice
            .predicted_ns
            .iter()
            .find(|prediction| prediction.0 == candidate)
            .map_or(0, |prediction| prediction.1);
        figures.push((
            if candidate == "radix" { "radix_predicted_over_actual" } else { "no_partition_predicted_over_actual" },
            predicted as f64 / 1e9 / time,
        ));
    }
    report.row("choice", &format!("{name} choice {}", choice.algorithm.name()), &figures);
}

/// One side as Arrow batches of 8192 rows.
fn batches(keys: &[u64], payloads: &[u64]) -> Vec<RecordBatch> {
    let column = |values: &[u64]| -> ArrayRef { Arc::new(UInt64Array::from(values.to_vec())) };
    let rows = keys.chunks(8192).zip(payloads.chunks(8192));
    rows.map(|(keys, payloads)| {
        RecordBatch::try_from_iter([("key", column(keys)), ("payload", column(payloads))]).expect("a batch")
    })
    .collect()
}

/// Joins within a budget; seconds, the most memory reserved, bytes spilled.
fn join_batches(build: &[RecordBatch], probe: &[RecordBatch], budget: u64) -> (f64, u64, u64) {
    let spec = JoinSpec::new(build[0].schema(), probe[0].schema(), vec![(0, 0)], JoinKind::Inner);
    let options = JoinOptions::new(MemoryPool::new(budget));
    let pool = options.pool.clone();
    let mut rows = 0;
    let (report, time) = seconds(|| {
        let mut join = Join::new(spec, options)?;
        build.iter().try_for_each(|batch| join.push_build(batch))?;
        join.finish_build()?;
        let mut drain = |join: &mut Join| -> Result<(), JoinError> {
            while let Some(batch) = join.next_output()? {
                rows += batch.num_rows();
            }
            Ok(())
        };
        for batch in probe {
            join.push_probe(batch)?;
            drain(&mut join)?;
        }
        join.finish_probe()?;
        drain(&mut join)?;
        Ok::<_, JoinError>(join.report().clone())
    });
    assert_eq!(rows, probe.iter().map(RecordBatch::num_rows).sum::<usize>());
    (time, pool.peak(), report.expect("a join").spilled_bytes)
}

fn budgets(options: &Options, report: &mut Report) {
    let rows = options.rows.unwrap_or(if options.quick { 100_000 } else { 16_000_000 });
    let sides = Sides::new(rows, true);
    let (build, probe) =
        (batches(&sides.build_keys, &sides.build_payloads), batches(&sides.probe_keys, &sides.probe_payloads));
    drop(sides);
    report.table(&format!("Arrow batches, {rows} x {rows} rows of 16 bytes, 1 thread"));
    let build_bytes = 16 * rows as u64;
    let (_, peak, _) = join_batches(&build, &probe, u64::MAX / 2);
    let budgets = [("in memory", peak), ("1/2", build_bytes / 2), ("1/4", build_bytes / 4), ("1/10", build_bytes / 10)];
    let mut times = vec![(vec![], 0); budgets.len()];
    for _ in 0..options.rounds {
        for ((_, budget), (times, spilled)) in budgets.iter().zip(&mut times) {
            let (time, _, bytes) = join_batches(&build, &probe, (*budget).max(BUDGET_BYTES_MIN));
            times.push(time);
            *spilled = bytes;
        }
    }
    let in_memory = times[0].0.clone();
    for ((name, budget), (times, spilled)) in budgets.iter().zip(times) {
        let slowdown = median(times.iter().zip(&in_memory).map(|(time, base)| time / base).collect());
        let rate = 2.0 * rows as f64 / median(times) / 1e6;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        report.row(
            "budgets",
            name,
            &[("mtuples_s", rate), ("slowdown", slowdown), ("budget_mib", mib(*budget)), ("spilled_mib", mib(spilled))],
        );
    }
}

/// Bytes a second that memory gives: read by a sum, and copied by streaming stores (bytes read + bytes written).
struct Bandwidth {
    read: f64,
    copy: f64,
}

impl Bandwidth {
    fn measure(words: usize, run: &Run) -> Self {
        let from: Vec<u64> = (0..words as u64).collect();
        let mut to = vec![1_u64; words];
        let mut best = Self { read: 0.0, copy: 0.0 };
        for _ in 0..5 {
            let (sums, time) = seconds(|| {
                run.on_all(|worker| Ok(from[run.part(words, worker)].iter().fold(0_u64, |sum, word| sum ^ word)))
                    .expect("sum")
            });
            std::hint::black_box(sums);
            best.read = best.read.max(8.0 * words as f64 / time);
            let parts: Vec<_> = to.chunks_mut(words.div_ceil(run.threads)).map(std::sync::Mutex::new).collect();
            let (_, time) = seconds(|| {
                run.on_all(|worker| {
                    let start = worker * words.div_ceil(run.threads);
                    stream(&from[start..], &mut parts[worker].lock().expect("one worker"));
                    Ok(())
                })
            });
            best.copy = best.copy.max(16.0 * words as f64 / time);
        }
        best
    }

    /// The least time of a radix join of one pass: both sides' keys are read for the histograms and the build side's once
    /// more for its interval; every tuple is read, written, and read again.
    fn radix_seconds(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        (8.0 * 2.0 + 8.0 + 16.0 * 2.0) * rows / self.read + 32.0 * 2.0 * rows / self.copy
    }
}

fn stream(from: &[u64], to: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let head = to.as_ptr().align_offset(16).min(to.len());
        for (from, to) in from[head..].chunks_exact(2).zip(to[head..].chunks_exact_mut(2)) {
            // SAFETY: both are 16 bytes, and `to` is 16-byte aligned after the head.
            unsafe { _mm_stream_si128(ptr::from_mut(to).cast(), _mm_loadu_si128(ptr::from_ref(from).cast())) };
        }
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    to.copy_from_slice(&from[..to.len()]);
}
