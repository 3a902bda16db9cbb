//! The join algorithms on 16-byte tuples, beside what the memory's bandwidth allows.
//!
//! ```text
//! cargo bench -p farhold-join --bench joins                    16 M x 16 M and 64 M x 64 M, all cores, 3 rounds
//! cargo bench -p farhold-join --bench joins -- --quick         what the tests run: seconds, figures without meaning
//! cargo bench -p farhold-join --bench joins -- --json FILE     also as JSON
//! cargo bench -p farhold-join --bench joins -- --raw           only the raw columns (--arrow: only the budgets)
//! cargo bench -p farhold-join --bench joins -- --only radix    one algorithm, as for a profile
//! cargo bench -p farhold-join --bench joins -- --threads 2     on two threads
//! cargo bench -p farhold-join --bench joins -- --sweep         the model's choice beside the best, 20 K to 64 M tuples a side
//! cargo bench -p farhold-join --bench joins -- --fit           the same sizes, and the constants of the model that fit the times
//! cargo bench -p farhold-join --bench joins -- --serve --rows N [--sparse]    one join a line of input: for scripts/compare-joins
//! ```
//!
//! Further tables join Arrow batches of the same tuples within 1/2, 1/4 and 1/10 of the build side's bytes, on one
//! thread and on all. A join in memory has one build side. A join beyond memory distributes rows by their keys first;
//! that is part of its time.
//!
//! Build keys are unique and in random order, foreign keys are uniform, and the answer is the sums of both payloads.
//! Rates are millions of tuples (of both sides) a second: the median of the rounds. In each round the algorithms run
//! one after another. `dense` keys are 0..n, `sparse` keys are any 64-bit words.
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]

use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::take_record_batch;
use arrow::datatypes::UInt64Type;
use farhold_join::algorithm::{self, Columns, Shape, Sum};
use farhold_join::cost::{self, Costs, Machine, Work};
use farhold_join::model;
use farhold_join::{
    Algorithm, BUDGET_BYTES_MIN, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, PageStore, Run,
};
use farhold_report::Report;

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
    let mut report = Report::new(quick);
    if has("--sweep") || has("--fit") {
        let measured = sweep(&options, &mut report);
        if has("--fit") {
            print_fitted(&measured);
        }
    } else {
        if !has("--arrow") {
            raw(&options, &mut report);
        }
        if !has("--raw") {
            budgets(&options, &mut report);
        }
    }
    if let Some(path) = value("--json") {
        report.write(Path::new(&path)).expect("write the figures");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The least of the times: other load on the machine only adds to a time.
fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
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
        Self::of(rows, rows, sparse)
    }

    fn of(rows: usize, probe_rows: usize, sparse: bool) -> Self {
        let spread = |key: u64| if sparse { mix(key) } else { key };
        let mut keys: Vec<u64> = (0..rows as u64).collect();
        for place in (1..rows).rev() {
            keys.swap(place, (mix(place as u64) % (place as u64 + 1)) as usize);
        }
        let build_keys: Vec<u64> = keys.into_iter().map(spread).collect();
        let probe_keys: Vec<u64> = (0..probe_rows as u64).map(|row| spread(mix(row ^ 0xabcd) % rows as u64)).collect();
        Self {
            build_payloads: (0..rows as u64).collect(),
            probe_payloads: (0..probe_rows as u64).collect(),
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

/// The time of a join: seconds to build the table and to probe it.
fn join(algorithm: &dyn Algorithm, sides: &Sides, run: &Run) -> (Sum, &'static str, [f64; 2]) {
    let (table, build) = seconds(|| algorithm.build(sides.build(), run).expect("build"));
    let (sum, probe) = seconds(|| table.sum(sides.probe(), run).expect("sum"));
    (sum, table.scheme(), [build, probe])
}

/// For each line of input, runs the join that the model chooses, and prints the seconds.
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

/// The model's choice beside the best, over sizes and shapes; the least times of the rounds. Joins of up to 8 M rows
/// take turns, so that the rounds of each lie as far apart as all of them take. Other load that lasts a second then
/// spoils no join.
fn sweep(options: &Options, report: &mut Report) -> Vec<Swept> {
    let run = kept_pages(options.threads);
    let mut sizes: Vec<(usize, usize)> = if options.quick {
        vec![(1000, 1000), (20_000, 20_000), (1000, 20_000)]
    } else {
        [20, 50, 100, 200, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000].map(|k| (1000 * k, 1000 * k)).to_vec()
    };
    if !options.quick {
        sizes.extend(
            [(5, 2000), (50, 4000), (500, 8000), (4000, 32_000)].map(|(build, probe)| (1000 * build, 1000 * probe)),
        );
    }
    report.table(&format!("the model's choice over the best, {} threads", options.threads));
    let (small, big): (Vec<_>, Vec<_>) = sizes.into_iter().partition(|&(_, probe_rows)| probe_rows <= 8_000_000);
    let groups = std::iter::once(small).chain(big.into_iter().map(|size| vec![size]));
    let mut swept = Vec::new();
    for group in groups {
        let mut joins: Vec<Sweeping> = group
            .iter()
            .flat_map(|&(rows, probe_rows)| [false, true].map(|sparse| Sweeping::new(rows, probe_rows, sparse)))
            .collect();
        let rounds = if group.len() > 1 { 4 * options.rounds } else { options.rounds };
        for round in 0..=rounds {
            for join in &mut joins {
                join.run(round > 0, &run);
            }
        }
        for join in joins {
            swept.extend(join.report(options, report));
        }
    }
    swept
}

const CONTENDERS: [&str; 2] = ["no_partition", "radix"];

/// A join of the sweep.
struct Sweeping {
    sides: Sides,
    sparse: bool,
    /// For each contender: seconds to build the table and to probe it.
    times: [Vec<[f64; 2]>; 2],
}

impl Sweeping {
    fn new(rows: usize, probe_rows: usize, sparse: bool) -> Self {
        Self { sides: Sides::of(rows, probe_rows, sparse), sparse, times: [vec![], vec![]] }
    }

    fn run(&mut self, counts: bool, run: &Run) {
        for (name, times) in CONTENDERS.iter().zip(&mut self.times) {
            let (sum, _, phases) = join(algorithm::by_name(name).expect("an algorithm"), &self.sides, run);
            assert_eq!(sum.pairs, self.sides.probe_keys.len() as u64);
            times.extend(counts.then_some(phases));
        }
    }

    fn report(self, options: &Options, report: &mut Report) -> [Swept; 2] {
        let (rows, probe_rows) = (self.sides.build_keys.len(), self.sides.probe_keys.len());
        let probe = if rows == probe_rows { String::new() } else { format!(" x {probe_rows}") };
        let totals =
            [0, 1].map(|at| (CONTENDERS[at], least(self.times[at].iter().map(|[build, probe]| build + probe))));
        compare_choice(
            report,
            &format!("{rows}{probe} {}", if self.sparse { "sparse" } else { "dense" }),
            Shape { build_rows: rows, probe_rows, threads: options.threads },
            !self.sparse,
            &totals,
        );
        [0, 1].map(|at| Swept {
            algorithm: CONTENDERS[at],
            fills_interval: !self.sparse,
            rows: [rows as f64, probe_rows as f64],
            threads: options.threads as f64,
            phases_ns: [0, 1].map(|phase| least(self.times[at].iter().map(|phases| phases[phase])) * 1e9),
        })
    }
}

/// The time of a join of the sweep: nanoseconds to build the table and to probe it.
struct Swept {
    algorithm: &'static str,
    fills_interval: bool,
    /// Rows of the build side and of the probe side.
    rows: [f64; 2],
    threads: f64,
    phases_ns: [f64; 2],
}

/// The text of `src/cost/fitted.in`.
fn print_fitted(swept: &[Swept]) {
    let machine = Machine::detect();
    println!("[");
    for costs in &cost::FITTED {
        let Costs { algorithm, fills_interval, bytes, whole_rows, .. } = *costs;
        let joins = swept.iter().filter(|s| s.algorithm == algorithm && s.fills_interval == fills_interval);
        let [build, probe] = [0, 1].map(|phase| {
            let work = |s: &Swept| Work { build_rows: s.rows[0], rows: s.rows[phase], threads: s.threads };
            let measured: Vec<(Work, f64)> = joins.clone().map(|s| (work(s), s.phases_ns[phase])).collect();
            let cost::Phase { thread, row, beyond_l2, beyond_l3 } = cost::fit(costs, &measured, &machine);
            let us = (thread / 1e3).max(1.0);
            format!(
                "Phase {{ thread: {us:.0}_000.0, row: {row:.2}, beyond_l2: {beyond_l2:.2}, beyond_l3: {beyond_l3:.2} }}"
            )
        });
        println!("    Costs {{\n        algorithm: {algorithm:?},\n        fills_interval: {fills_interval},");
        println!("        bytes: {bytes:.1},\n        whole_rows: {whole_rows:.1},\n        phases: Phases {{");
        println!("            build: {build},");
        println!("            probe: {probe},\n        }},\n    }},");
    }
    println!("]");
}

/// A round may use again the pages that an earlier one has used, as the allocators of DuckDB and Polars do.
fn kept_pages(threads: usize) -> Run {
    Run { seed: 1, pages: PageStore::keeping(8 << 30), ..Run::with_threads(threads) }
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
        let mut memory = Memory::new(if options.quick { 1 << 16 } else { 1 << 25 });
        report.table(&format!("raw columns, {rows} x {rows} tuples, {} threads", options.threads));
        for (kind, sparse) in [("dense", false), ("sparse", true)] {
            let sides = Sides::new(rows, sparse);
            let mut times: Vec<(&str, Vec<f64>, Vec<f64>)> = vec![("", vec![], vec![]); contenders.len()];
            let (mut cold, mut bandwidths) = (Vec::new(), Vec::new());
            for round in 0..=options.rounds {
                if round > 0 {
                    bandwidths.push(memory.bandwidth(&run));
                }
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
            let gb_s = |of: fn(&Bandwidth) -> f64| median(bandwidths.iter().map(of).collect()) / 1e9;
            report.row(
                "bandwidth",
                &format!("{rows} {kind}"),
                &[("read_gb_s", gb_s(|bandwidth| bandwidth.read)), ("zip_gb_s", gb_s(|bandwidth| bandwidth.zip))],
            );
            let mut totals = Vec::new();
            for ((algorithm, (scheme, builds, probes)), cold) in contenders.iter().zip(times).zip(cold) {
                let times: Vec<f64> = builds.iter().zip(&probes).map(|(build, probe)| build + probe).collect();
                let all = median(times.clone());
                totals.push((algorithm.name(), all));
                let mut figures = vec![
                    ("mtuples_s", 2.0 * rows as f64 / all / 1e6),
                    ("build_s", median(builds)),
                    ("probe_s", median(probes)),
                    ("cold_mtuples_s", 2.0 * rows as f64 / cold / 1e6),
                ];
                if algorithm.name() == "radix" {
                    let shares = |key_reads, tuple_bytes| {
                        let bounds = bandwidths.iter().map(|memory| memory.radix_seconds(rows, key_reads, tuple_bytes));
                        let mut shares: Vec<f64> = bounds.zip(&times).map(|(bound, time)| bound / time).collect();
                        shares.sort_by(f64::total_cmp);
                        shares
                    };
                    // Both sides' keys are read for histograms, the build side's for its interval.
                    let usual = shares(3.0, 16.0);
                    figures.push(("bandwidth_share", median(usual.clone())));
                    figures.push(("bandwidth_share_min", usual[0]));
                    figures.push(("bandwidth_share_max", usual[usual.len() - 1]));
                    // No histograms are made. With row numbers as payloads, tuples of offsets have 8 bytes, tuples of
                    // hashes 12. A few thousand keys show that keys are sparse.
                    let (key_reads, tuple_bytes) = if sparse { (0.0, 12.0) } else { (1.0, 8.0) };
                    figures.push(("moved_share", median(shares(key_reads, tuple_bytes))));
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

/// How a join of batches is divided among threads, as DataFusion's joins are.
#[derive(Clone, Copy, PartialEq)]
enum Division {
    /// One thread.
    None,
    /// One build side, which all threads probe: for build sides that fit in memory.
    Shared,
    /// Rows are distributed by their keys, and each thread joins its own: for build sides that do not fit.
    Partitioned,
}

/// Time and memory of a join within a budget.
struct Taken {
    seconds: f64,
    /// The most bytes reserved.
    peak: u64,
    spilled: u64,
}

fn join_batches(
    [build, probe]: [&[RecordBatch]; 2],
    budget: u64,
    by: Division,
    threads: usize,
    pages: &PageStore,
) -> Taken {
    let spec = JoinSpec::new(build[0].schema(), probe[0].schema(), vec![(0, 0)], JoinKind::Inner);
    let pool = MemoryPool::new(budget);
    let (rows, spilled) = (AtomicUsize::new(0), AtomicU64::new(0));
    let open = || {
        let shares = if by == Division::Shared { threads } else { 1 };
        let run = Run { pages: pages.clone(), ..Run::with_threads(shares) };
        let options = JoinOptions { run, shares, ..JoinOptions::new(Arc::clone(&pool)) };
        Join::new(spec.clone(), options)
    };
    let fill = |mut join: Join, build: &[RecordBatch]| -> Result<Join, JoinError> {
        build.iter().try_for_each(|batch| join.push_build(batch))?;
        join.finish_build()?;
        Ok(join)
    };
    let drain = |join: &mut Join| -> Result<(), JoinError> {
        while let Some(batch) = join.next_output()? {
            rows.fetch_add(batch.num_rows(), Relaxed);
        }
        Ok(())
    };
    let finish = |mut join: Join, mut next: &mut dyn FnMut() -> Option<RecordBatch>| -> Result<(), JoinError> {
        for batch in iter::from_fn(&mut next) {
            join.push_probe(&batch)?;
            drain(&mut join)?;
        }
        join.finish_probe()?;
        drain(&mut join)?;
        spilled.fetch_add(join.report().spilled_bytes, Relaxed);
        Ok(())
    };
    let run = Run::with_threads(threads);
    let slots = |joins: Vec<Join>| -> Vec<Mutex<Option<Join>>> {
        joins.into_iter().map(|join| Mutex::new(Some(join))).collect()
    };
    let take = |slot: &Mutex<Option<Join>>| slot.lock().expect("nobody panics").take().expect("a join for each");
    let (answer, seconds) = seconds(|| match by {
        Division::None => {
            let mut batches = probe.iter().cloned();
            finish(fill(open()?, build)?, &mut || batches.next())
        }
        Division::Shared => {
            let (shares, next) = (slots(fill(open()?, build)?.split()?), AtomicUsize::new(0));
            run.on_all(|thread| finish(take(&shares[thread]), &mut || probe.get(next.fetch_add(1, Relaxed)).cloned()))?;
            Ok(())
        }
        Division::Partitioned => {
            // Each join takes its least memory before any of them takes the rest, as in a plan.
            let joins = slots((0..threads).map(|_| open()).collect::<Result<_, _>>()?);
            let (build, probe) = (by_key(build, &run)?, by_key(probe, &run)?);
            run.on_all(|thread| {
                let mut batches = probe[thread].iter().cloned();
                finish(fill(take(&joins[thread]), &build[thread])?, &mut || batches.next())
            })?;
            Ok(())
        }
    });
    let answer: Result<(), JoinError> = answer;
    answer.expect("a join");
    assert_eq!(rows.into_inner(), probe.iter().map(RecordBatch::num_rows).sum::<usize>());
    Taken { seconds, peak: pool.peak(), spilled: spilled.into_inner() }
}

/// The rows of each thread's keys.
fn by_key(batches: &[RecordBatch], run: &Run) -> Result<Vec<Vec<RecordBatch>>, JoinError> {
    let split = run.on_tasks(batches.len(), |number| {
        let mut rows = vec![Vec::new(); run.threads];
        let keys = batches[number].column(0).as_primitive::<UInt64Type>().values();
        keys.iter().zip(0_u32..).for_each(|(&key, row)| rows[(mix(!key) % run.threads as u64) as usize].push(row));
        let parts = rows.into_iter().map(|rows| take_record_batch(&batches[number], &UInt32Array::from(rows)));
        Ok(parts.collect::<Result<Vec<_>, _>>()?)
    })?;
    let mut all = vec![Vec::new(); run.threads];
    for parts in split {
        all.iter_mut().zip(parts).for_each(|(all, part)| all.push(part));
    }
    Ok(all)
}

fn budgets(options: &Options, report: &mut Report) {
    let rows = options.rows.unwrap_or(if options.quick { 100_000 } else { 16_000_000 });
    let sides = Sides::new(rows, true);
    let (build, probe) =
        (batches(&sides.build_keys, &sides.build_payloads), batches(&sides.probe_keys, &sides.probe_payloads));
    drop(sides);
    let build_bytes = 16 * rows as u64;
    let parts = [("1/2", 2), ("1/4", 4), ("1/10", 10)];
    for threads in if options.threads > 1 { vec![1, options.threads] } else { vec![1] } {
        report.table(&format!("Arrow batches, {rows} x {rows} rows of 16 bytes, {threads} threads"));
        let (in_memory, divisions): (_, &[_]) = match threads {
            1 => (Division::None, &[(Division::None, "")]),
            _ => (Division::Shared, &[(Division::Partitioned, ", by key"), (Division::Shared, ", one build side")]),
        };
        // The others are compared with the first. Each has at least the memory that one join per thread needs.
        let (all, kept, fresh) = (u64::MAX / 2, PageStore::keeping(8 << 30), PageStore::default());
        let mut runs = vec![
            (format!("in memory, {threads} threads"), all, in_memory, &fresh),
            (format!("in memory, pages of the round before, {threads} threads"), all, in_memory, &kept),
        ];
        for &(by, how) in divisions {
            let bytes = |part: u64| (build_bytes / part).max((threads as u64 + 1) * BUDGET_BYTES_MIN);
            runs.extend(parts.map(|(name, part)| (format!("{name}, {threads} threads{how}"), bytes(part), by, &fresh)));
        }
        let mut taken: Vec<Vec<Taken>> = runs.iter().map(|_| Vec::new()).collect();
        for _ in 0..=options.rounds {
            for ((_, budget, by, pages), taken) in runs.iter().zip(&mut taken) {
                taken.push(join_batches([&build, &probe], *budget, *by, threads, pages));
            }
        }
        // The first round is left out: no pages of an earlier round exist in it.
        for times in &mut taken {
            times.remove(0);
        }
        for ((name, budget, ..), times) in runs.iter().zip(&taken) {
            let over = |base: usize| {
                let base = taken[base].iter();
                times.iter().zip(base).map(|(time, base)| time.seconds / base.seconds)
            };
            let slowdowns = || over(0);
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let figures = [
                ("mtuples_s", 2.0 * rows as f64 / median(times.iter().map(|time| time.seconds).collect()) / 1e6),
                ("slowdown", median(slowdowns().collect())),
                ("slowdown_min", least(slowdowns())),
                ("slowdown_max", slowdowns().fold(0.0, f64::max)),
                ("over_kept_pages", median(over(1).collect())),
                ("budget_mib", if *budget == all { 0.0 } else { mib(*budget) }),
                ("reserved_mib", mib(times[0].peak)),
                ("spilled_mib", mib(times[0].spilled)),
            ];
            report.row("budgets", name, &figures);
        }
    }
}

/// The arrays on which memory bandwidth is measured, anew each time: neighbours on a virtual machine take part of it.
struct Memory {
    columns: [Vec<u64>; 2],
    /// On huge pages, as partitions are.
    tuples: Vec<u64>,
}

/// Bytes a second that memory gives all threads. `read`: by a sum. `zip`: two columns are read and streamed as tuples
/// of 16 bytes, as partitioning does (bytes read + bytes written).
struct Bandwidth {
    read: f64,
    zip: f64,
}

impl Memory {
    fn new(words: usize) -> Self {
        Self { columns: [(); 2].map(|()| (0..words as u64).collect()), tuples: on_huge_pages(2 * words) }
    }

    /// The best of three.
    fn bandwidth(&mut self, run: &Run) -> Bandwidth {
        let (columns, words) = (&self.columns, self.columns[0].len());
        let mut best = Bandwidth { read: 0.0, zip: 0.0 };
        for _ in 0..3 {
            let (sums, time) = seconds(|| {
                run.on_all(|worker| Ok(columns[0][run.part(words, worker)].iter().fold(0_u64, |sum, word| sum ^ word)))
            });
            std::hint::black_box(sums.expect("sums"));
            best.read = best.read.max(8.0 * words as f64 / time);
            let part_words = words.div_ceil(run.threads).next_multiple_of(TUPLES_A_LINE);
            let parts: Vec<_> = self.tuples.chunks_mut(2 * part_words).map(std::sync::Mutex::new).collect();
            let (done, time) = seconds(|| {
                run.on_all(|worker| {
                    let range = (worker * part_words).min(words)..((worker + 1) * part_words).min(words);
                    if let Some(part) = parts.get(worker) {
                        zip(&columns[0][range.clone()], &columns[1][range], &mut part.lock().expect("one worker"));
                    }
                    Ok(())
                })
            });
            done.expect("copies");
            best.zip = best.zip.max(32.0 * words as f64 / time);
        }
        best
    }
}

impl Bandwidth {
    /// The least time of a radix join of one pass. The keys of a side are read `key_reads` times by themselves. Every
    /// row of both sides is read and written as a tuple, and the tuple is read again.
    fn radix_seconds(&self, rows: usize, key_reads: f64, tuple_bytes: f64) -> f64 {
        let rows = rows as f64;
        (key_reads * 8.0 + 2.0 * tuple_bytes) * rows / self.read + 2.0 * (16.0 + tuple_bytes) * rows / self.zip
    }
}

/// Zeroes, on huge pages where the kernel gives them. The array begins at the start of a cache line.
fn on_huge_pages(words: usize) -> Vec<u64> {
    let mut array = Vec::with_capacity(words);
    #[cfg(target_os = "linux")]
    {
        let (start, page) = (array.as_ptr() as usize, 2 << 20);
        let (first, end) = (start.next_multiple_of(page), (start + 8 * words) / page * page);
        if first < end {
            // SAFETY: the pages lie in the array's memory; advice does not change what they hold.
            unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_HUGEPAGE) };
        }
    }
    array.resize(words, 0);
    array
}

const TUPLES_A_LINE: usize = 4;

/// Streams the columns' rows as tuples.
fn zip(keys: &[u64], payloads: &[u64], tuples: &mut [u64]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_set_epi64x, _mm_sfence, _mm_stream_si128};
        let has_avx512 = is_x86_feature_detected!("avx512f");
        // Vectors of the allocator begin 16 bytes into a page, and so may the parts of several workers.
        let head = (tuples.as_ptr().align_offset(64) / 2).min(keys.len());
        let lines = if has_avx512 { (keys.len() - head) / TUPLES_A_LINE } else { 0 };
        let whole = head..head + lines * TUPLES_A_LINE;
        if has_avx512 {
            // SAFETY: the processor has AVX-512; from `head` on the tuples begin with a line.
            unsafe {
                zip_lines(&keys[whole.clone()], &payloads[whole.clone()], &mut tuples[2 * whole.start..2 * whole.end]);
            };
        }
        for row in (0..keys.len()).filter(|row| !whole.contains(row)) {
            let tuple = &mut tuples[2 * row..2 * row + 2];
            // SAFETY: the tuple has 16 bytes, and the allocator aligns big arrays to 16.
            unsafe {
                _mm_stream_si128(tuple.as_mut_ptr().cast(), _mm_set_epi64x(payloads[row] as i64, keys[row] as i64));
            };
        }
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_sfence() };
    }
    #[cfg(not(target_arch = "x86_64"))]
    for ((key, payload), tuple) in keys.iter().zip(payloads).zip(tuples.chunks_exact_mut(2)) {
        tuple.copy_from_slice(&[*key, *payload]);
    }
}

/// # Safety
/// The processor has AVX-512. `tuples` is aligned to a line and twice as long as the columns, whose length is a
/// multiple of the rows of a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn zip_lines(keys: &[u64], payloads: &[u64], tuples: &mut [u64]) {
    use std::arch::x86_64::{
        _mm256_loadu_si256, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64, _mm512_castsi256_si512, _mm512_inserti64x4,
        _mm512_stream_si512,
    };
    assert!(keys.len() == payloads.len() && tuples.len() == 2 * keys.len());
    for row in (0..keys.len()).step_by(TUPLES_A_LINE) {
        // SAFETY: four rows from here on are in both columns, and an aligned line of tuples is theirs. (Which of the
        // four comes first does not matter here.)
        unsafe {
            let keys = _mm256_loadu_si256(keys.as_ptr().add(row).cast());
            let payloads = _mm256_loadu_si256(payloads.as_ptr().add(row).cast());
            let (low, high) = (_mm256_unpacklo_epi64(keys, payloads), _mm256_unpackhi_epi64(keys, payloads));
            let line = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
            _mm512_stream_si512(tuples.as_mut_ptr().add(2 * row).cast(), line);
        }
    }
}
