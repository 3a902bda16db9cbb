//! The cost model: which algorithm, why, and how close the prediction was.
//!
//! It counts what bounds a join in memory: the processor's work for a row, accesses that miss the caches, and bytes
//! that are streamed. The constants are in `model/cost.rs`, fitted to measurements of `benches/joins.rs`.

pub mod cost;

use std::fs;
use std::sync::OnceLock;

use arrow::datatypes::DataType;

use crate::algorithm::{self, Algorithm};
use crate::gpu::{self, Description, Driver, Gpu, Work};

/// The GPU that the model may choose, with the memory that is free now, or why there is none. It is asked only for
/// joins that are long enough, since the first answer may have to open the device.
pub type AskGpu = fn() -> Result<Description, String>;

/// The algorithms for more than a handful of rows.
pub(crate) const SCALABLE: [&str; 2] = ["no_partition", "radix"];

/// The model's knowledge of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Second-level cache of a core.
    pub l2_bytes: u64,
    /// Last-level cache.
    pub l3_bytes: u64,
    /// Bytes a second that all cores stream, reads and writes together.
    pub bytes_per_s: f64,
    /// How to ask for the GPU.
    pub gpu: AskGpu,
    /// The most bytes of host memory that a join may take; an algorithm of the GPU that needs more is not chosen.
    pub budget_bytes: u64,
}

/// The number of tuples below which no GPU is asked: a radix join of them takes some tens of milliseconds on one core.
const GPU_TUPLES_MIN: u64 = 2 << 20;

/// The machine's own GPU, or the one that was handed over. An emulation that was not handed over is refused.
fn gpu_of_this_machine() -> Result<Description, String> {
    let gpu = Gpu::of_this_machine().map_err(|error| error.to_string())?;
    let described = gpu.describe().map_err(|error| error.to_string())?;
    if gpu.may_be_chosen() { Ok(described) } else { Err(format!("the only GPU is an {}", described.name)) }
}

/// For joins that must stay on the CPU.
pub(crate) fn no_gpu_wanted() -> Result<Description, String> {
    Err("GPUs are switched off".into())
}

impl Machine {
    /// Cache sizes as the system reports them, where it does, and a bandwidth of 50 GB/s.
    pub fn detect() -> Self {
        // The system is asked once: every join of every plan needs the sizes.
        static CACHES: OnceLock<[u64; 2]> = OnceLock::new();
        let cache = |index: u32| {
            let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
            let number: u64 = text.trim().trim_end_matches(['K', 'M']).parse().ok()?;
            Some(if text.contains('M') { number << 20 } else { number << 10 })
        };
        let [l2_bytes, l3_bytes] = *CACHES.get_or_init(|| [cache(2).unwrap_or(1 << 20), cache(3).unwrap_or(32 << 20)]);
        Self { l2_bytes, l3_bytes, bytes_per_s: 50e9, gpu: gpu_of_this_machine, budget_bytes: u64::MAX }
    }

    /// Nanoseconds that a random access into `bytes` costs beyond one to the second-level cache. `memory_ns` is the
    /// cost of a miss of all caches with many misses in flight. Half of the last-level cache is left to other programs.
    fn access_ns(&self, bytes: f64, memory_ns: f64) -> f64 {
        let miss_share = |cache: u64| 1.0 - (cache as f64 / bytes.max(1.0)).min(1.0);
        miss_share(self.l2_bytes) * 2.5 + miss_share(self.l3_bytes / 2) * memory_ns
    }
}

/// An algorithm, and the reason for it.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    /// Why, in one sentence.
    pub reason: String,
    /// Where it runs. For the CPU, also why not on a GPU: "cpu (no GPU can be used: ...)". A later fallback is in
    /// [`JoinReport::fallback`](crate::JoinReport::fallback).
    pub device: String,
    /// Predicted nanoseconds of building the table and probing it once, for every candidate.
    pub predicted_ns: Vec<(&'static str, u64)>,
    /// Nanoseconds that building the table took, once it has been built.
    pub actual_build_ns: u64,
}

impl Choice {
    /// A choice that the caller has made.
    pub fn given(algorithm: &'static dyn Algorithm) -> Self {
        // A GPU is opened only if the caller asks for one of its algorithms.
        let device = if is_of_a_gpu(algorithm.name()) {
            let described = Gpu::of_this_machine().and_then(|gpu| gpu.describe());
            described.map_or_else(|why| format!("none ({why})"), |described| described.name)
        } else {
            "cpu".into()
        };
        Self { algorithm, reason: "asked for".into(), device, predicted_ns: Vec::new(), actual_build_ns: 0 }
    }

    /// Whether the algorithm is one of a GPU.
    #[cfg(feature = "datafusion")]
    pub(crate) fn is_on_gpu(&self) -> bool {
        is_of_a_gpu(self.algorithm.name())
    }
}

/// The cheapest algorithm for a build side of `build_rows` and `probe_rows` probe tuples in all. `fills_interval`: the
/// build keys are unique and leave few holes, so that an array can index them.
pub fn choose(build_rows: usize, probe_rows: u64, threads: usize, fills_interval: bool, machine: &Machine) -> Choice {
    let costs = Costs::of(Sides { build_rows, probe_rows, threads, probers: 1 }, fills_interval, machine);
    let best = costs.cheapest();
    let reason = costs.reason(best);
    costs.choice(best, reason)
}

/// The cost of histograms and write-combining buffers of the radix join, however few the rows are.
const RADIX_START_NS: f64 = 20_000.0;

/// The sides of the join.
#[derive(Clone, Copy)]
struct Sides {
    build_rows: usize,
    probe_rows: u64,
    threads: usize,
    /// Threads that probe, each with rows of its own.
    probers: usize,
}

/// The costs of each candidate.
struct Costs {
    sides: Sides,
    /// Bytes of the table that all threads access at random.
    table_bytes: u64,
    l3_bytes: u64,
    /// Names and nanoseconds.
    candidates: Vec<(&'static str, f64)>,
    gpu: Result<Description, String>,
}

impl Costs {
    fn of(sides: Sides, fills_interval: bool, machine: &Machine) -> Self {
        let Sides { build_rows, probe_rows, threads, .. } = sides;
        let tuples = build_rows as u64 + probe_rows;
        let (build, probe, threads) = (build_rows as f64, probe_rows as f64, threads as f64);
        let mut candidates = vec![("nested_loop", 0.5 * build * probe)];
        let mut table_bytes = 0;
        for costs in SCALABLE.iter().filter_map(|name| cost::costs_of(name, fills_interval)) {
            let ns: f64 = costs.ns(build, probe, threads, machine).iter().sum();
            candidates.push(match costs.algorithm {
                "radix" => {
                    // Keys are read for the histogram, rows are read, tuples are written and read again.
                    let stream = (build + probe) * (8.0 + 16.0 + 2.0 * costs.bytes) / machine.bytes_per_s * 1e9;
                    ("radix", RADIX_START_NS + ns.max(stream))
                }
                name => {
                    table_bytes = (costs.bytes * build) as u64;
                    (name, ns)
                }
            });
        }
        let gpu = if tuples < GPU_TUPLES_MIN {
            Err(format!("{tuples} tuples are too few for a GPU"))
        } else {
            (machine.gpu)()
        };
        if let Ok(gpu) = &gpu {
            candidates.extend(on_gpu(gpu, sides, machine));
        }
        Self { sides, table_bytes, l3_bytes: machine.l3_bytes, candidates, gpu }
    }

    fn cheapest(&self) -> &'static str {
        self.candidates.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or("no_partition", |best| best.0)
    }

    /// The reason why it is the cheapest.
    fn reason(&self, best: &str) -> String {
        let Sides { build_rows, probe_rows, threads, .. } = self.sides;
        let (mib, l3_mib) = (self.table_bytes >> 20, self.l3_bytes >> 20);
        let beside = format!("random accesses to a table of {mib} MiB beside {l3_mib} MiB of cache");
        match (best, &self.gpu) {
            ("nested_loop", _) => format!("{build_rows} x {probe_rows} comparisons cost less than a table"),
            ("radix", _) => format!("{beside} cost more than partitioning both sides"),
            (_, Ok(gpu)) if is_of_a_gpu(best) => format!(
                "moving {} MiB over a link of {:.0} GB/s costs less than partitioning them on {threads} threads",
                (16 * (build_rows as u64 + probe_rows)) >> 20,
                gpu.to_device_bytes_per_s / 1e9,
            ),
            _ => format!("{beside} cost less than partitioning both sides"),
        }
    }

    fn choice(self, best: &'static str, reason: String) -> Choice {
        let device = match self.gpu {
            Ok(gpu) if is_of_a_gpu(best) => gpu.name,
            Ok(gpu) => format!("cpu (predicted to be faster than {})", gpu.name),
            Err(why) => format!("cpu ({why})"),
        };
        Choice {
            algorithm: algorithm::by_name(best).unwrap_or(algorithm::ALL[0]),
            reason,
            device,
            predicted_ns: self.candidates.iter().map(|&(name, ns)| (name, ns as u64)).collect(),
            actual_build_ns: 0,
        }
    }
}

fn is_of_a_gpu(name: &str) -> bool {
    Driver::ALL.iter().any(|driver| driver.name() == name)
}

/// The joins of a GPU that have room on the device and in the budget, with their nanoseconds.
fn on_gpu(gpu: &Description, sides: Sides, machine: &Machine) -> Vec<(&'static str, f64)> {
    let Sides { build_rows, probe_rows, threads, probers } = sides;
    let predicted = |driver: Driver| {
        let algorithm = algorithm::by_name(driver.name())?;
        if algorithm::memory_bytes_of_all(algorithm, build_rows, threads, probers) > machine.budget_bytes {
            return None;
        }
        let work = Work {
            build_rows: build_rows as u64,
            probe_rows,
            // Probers take turns, and each has rows of its own.
            probes: probe_rows.div_ceil(algorithm.probe_rows_wanted(build_rows) as u64).max(probers as u64),
            words: 1,
            rows: probe_rows,
            is_pinned: false,
            threads,
        };
        let options = gpu::tuned(gpu, &work);
        Some((driver.name(), gpu::predict(driver, gpu, &work, &options).ok()?.seconds * 1e9))
    };
    Driver::ALL.into_iter().filter_map(predicted).collect()
}

/// The part of the probe side that a join of batches hands out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width {
    /// Columns.
    pub columns: usize,
    /// Bytes of a row in these columns, approximately.
    pub row_bytes: usize,
}

impl Width {
    /// The width of these columns; a text counts as 24 bytes.
    pub fn of<'a>(types: impl Iterator<Item = &'a DataType>) -> Self {
        types.fold(Self { columns: 0, row_bytes: 0 }, |width, kind| Self {
            columns: width.columns + 1,
            row_bytes: width.row_bytes + kind.primitive_width().unwrap_or(24),
        })
    }
}

/// The probe side of a join of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSide {
    /// Rows in all, or an estimate.
    pub rows: u64,
    /// The columns that are handed out.
    pub width: Width,
    /// Threads that probe the table at once, each with rows of its own. 1: one probe at a time, on all threads.
    pub probers: usize,
}

/// The cost of a column of a probe row that is gathered out of order, from the many batches that have waited together.
/// Key and place count as one column, too. Estimated from queries of TPC-H, not fitted: Q18 at scale factor 1, with one
/// such column, took 325 ms with the radix join and 222 without; Q22 at 10, without any column, 326 and 147.
const REARRANGED_NS: f64 = 25.0;

/// Build rows that a list may have where the number of probe rows is an estimate: a list of so few costs no more than a
/// table.
const LIST_ROWS_MAX: usize = 16;

/// As [`choose`], for batches. An algorithm that rearranges the probe side, on a GPU too, pays for gathering its
/// columns out of order. An algorithm that takes the rows as they come finds them in the cache.
pub fn choose_for_batches(build_rows: usize, probe: &ProbeSide, threads: usize, machine: &Machine) -> Choice {
    let sides = Sides { build_rows, probe_rows: probe.rows, threads, probers: probe.probers };
    let mut costs = Costs::of(sides, false, machine);
    let first = costs.cheapest();
    for (name, ns) in &mut costs.candidates {
        let at_once = algorithm::by_name(name).map_or(0, |algorithm| algorithm.probe_rows_wanted(build_rows));
        if at_once > 0 {
            let gathered_bytes = (probe.width.row_bytes as u64 * probe.rows.min(at_once as u64)) as f64;
            // A GPU moves keys and places itself.
            let keys_ns = if is_of_a_gpu(name) { 0.0 } else { REARRANGED_NS };
            let column_ns = REARRANGED_NS + machine.access_ns(gathered_bytes, 10.0);
            let gather_ns = keys_ns + probe.width.columns as f64 * column_ns;
            *ns += probe.rows as f64 * gather_ns / threads as f64;
        }
    }
    if build_rows > LIST_ROWS_MAX {
        costs.candidates.retain(|candidate| candidate.0 != "nested_loop");
    }
    let best = costs.cheapest();
    let reason = if best == first {
        costs.reason(best)
    } else if first == "nested_loop" {
        format!("{} probe rows are an estimate: a list of build rows would not stand more", probe.rows)
    } else {
        let columns = probe.width.columns;
        format!("{first} would cost less but for rearranging the keys and {columns} columns of the probe side")
    };
    costs.choice(best, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(build_rows: usize, probe_rows: u64, fills_interval: bool) -> &'static str {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, gpu: no_gpu_wanted, ..Machine::detect() };
        let choice = choose(build_rows, probe_rows, 1, fills_interval, &machine);
        let predicted = |name| choice.predicted_ns.iter().find(|prediction| prediction.0 == name).unwrap().1;
        assert!(choice.predicted_ns.iter().all(|other| predicted(choice.algorithm.name()) <= other.1));
        assert!(choice.reason.contains("cost") && choice.device.starts_with("cpu ("));
        choice.algorithm.name()
    }

    #[test]
    fn the_choice_follows_the_sizes() {
        assert_eq!(chosen(2, 3, false), "nested_loop");
        assert_eq!(chosen(500, 500, false), "no_partition");
        assert_eq!(chosen(1_000_000, 1_000_000, false), "radix");
        assert_eq!(chosen(50_000, 50_000, true), "no_partition");
        assert_eq!(chosen(500_000, 8_000_000, true), "no_partition");
        assert_eq!(chosen(16_000_000, 16_000_000, true), "radix");
    }

    /// The choice for rows of `columns` columns of 8 bytes.
    fn chosen_for_batches(build_rows: usize, rows: u64, columns: usize, probers: usize, gpu: AskGpu) -> Choice {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, gpu, ..Machine::detect() };
        let probe = ProbeSide { rows, width: Width { columns, row_bytes: 8 * columns }, probers };
        choose_for_batches(build_rows, &probe, probers, &machine)
    }

    #[test]
    fn wide_probe_rows_are_not_rearranged() {
        let chosen = |columns| chosen_for_batches(64_000_000, 16_000_000, columns, 1, no_gpu_wanted).algorithm.name();
        assert_eq!((chosen(0), chosen(6)), ("radix", "no_partition"));
        assert_eq!(chosen_for_batches(200_000, 15_000_000, 0, 4, no_gpu_wanted).algorithm.name(), "no_partition");
    }

    #[test]
    fn an_estimate_of_few_probe_rows_makes_no_long_list() {
        let few = |build_rows| chosen_for_batches(build_rows, 3, 1, 4, no_gpu_wanted);
        assert_eq!(few(10).algorithm.name(), "nested_loop");
        let more = few(100);
        assert!(more.algorithm.name() != "nested_loop" && more.reason.contains("are an estimate"), "{more:?}");
    }

    #[test]
    fn a_gpu_is_weighed_for_batches_and_rearranges_them_too() {
        let fast: AskGpu = || Ok(Description { host_read_bytes_per_s: 200e9, ..Description::published_h100() });
        let rows = 256 << 20;
        let narrow = chosen_for_batches(rows, rows as u64, 0, 16, fast);
        assert!(is_of_a_gpu(narrow.algorithm.name()) && narrow.device.contains("H100"), "{narrow:?}");
        assert!(narrow.reason.contains("link of 55 GB/s"), "{narrow:?}");
        let wide = chosen_for_batches(rows, rows as u64, 12, 16, fast);
        assert!(!is_of_a_gpu(wide.algorithm.name()), "{wide:?}");
        assert!(
            wide.device.contains("faster than H100") && wide.reason.contains("12 columns of the probe side"),
            "{wide:?}"
        );
        let predicted = |choice: &Choice| {
            let triton = choice.predicted_ns.iter().find(|prediction| prediction.0 == Driver::Triton.name());
            triton.expect("there is room").1
        };
        let machine = Machine { gpu: fast, ..Machine::detect() };
        let together = ProbeSide { rows: 1 << 20, width: Width { columns: 0, row_bytes: 0 }, probers: 1 };
        let apart = ProbeSide { probers: 16, ..together };
        let [together, apart] = [together, apart].map(|probe| choose_for_batches(rows, &probe, 16, &machine));
        assert!(predicted(&apart) > predicted(&together), "each prober goes past the whole build side");
    }

    fn chosen_beside_a_gpu(rows: usize, gpu: AskGpu, budget_bytes: u64) -> Choice {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, bytes_per_s: 36e9, gpu, budget_bytes };
        choose(rows, rows as u64, 16, false, &machine)
    }

    #[test]
    fn a_gpu_is_chosen_where_its_link_memory_and_the_budget_allow() {
        let fast: AskGpu = || Ok(Description { host_read_bytes_per_s: 200e9, ..Description::published_h100() });
        let slow: AskGpu =
            || Ok(Description { to_device_bytes_per_s: 1e9, both_bytes_per_s: 2e9, ..Description::published_h100() });
        let full: AskGpu = || Ok(Description { free_bytes: 1 << 20, ..Description::published_h100() });
        let broken: AskGpu = || Err("it has failed before: planted".into());
        let large = chosen_beside_a_gpu(256 << 20, fast, u64::MAX);
        assert!(Driver::ALL.iter().any(|driver| driver.name() == large.algorithm.name()), "{large:?}");
        assert!(large.device.contains("H100") && large.reason.contains("link of 55 GB/s"), "{large:?}");
        let small = chosen_beside_a_gpu(1000, fast, u64::MAX);
        assert!(small.device.contains("too few"), "{small:?}");
        for (gpu, budget, why) in [
            (slow, u64::MAX, "predicted to be faster"),
            (full, u64::MAX, "predicted to be faster"),
            (fast, 1 << 30, "predicted to be faster"),
            (broken, u64::MAX, "failed before"),
        ] {
            let choice = chosen_beside_a_gpu(256 << 20, gpu, budget);
            assert!(choice.device.starts_with("cpu (") && choice.device.contains(why), "{choice:?}");
        }
    }

    #[test]
    fn no_emulation_is_ever_chosen() {
        let choice = chosen_beside_a_gpu(256 << 20, gpu_of_this_machine, u64::MAX);
        assert!(!choice.device.starts_with("emulation"), "{choice:?}");
    }
}
