//! The cost model: which algorithm, why, and how close the prediction was.
//!
//! It counts what bounds a join in memory: the processor's work for a row, accesses that miss the caches, and bytes
//! that are streamed. Each algorithm predicts its own costs ([`Algorithm::predicted_ns`]); [`cost`](crate::cost) has the
//! constants, fitted to measurements of `benches/joins.rs`.

use arrow::datatypes::DataType;

use crate::algorithm::{self, Algorithm};
use crate::cost::{Expected, Machine};
use crate::gpu::{Description, Gpu};

/// The number of tuples below which no GPU is asked: a radix join of them takes some tens of milliseconds on one core.
const GPU_TUPLES_MIN: u64 = 2 << 20;

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
        let device = if algorithm.is_on_gpu() {
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
        self.algorithm.is_on_gpu()
    }
}

/// The cheapest algorithm for a build side of `build_rows` and `probe_rows` probe tuples in all. `fills_interval`: the
/// build keys are unique and leave few holes, so that an array can index them.
pub fn choose(build_rows: usize, probe_rows: u64, threads: usize, fills_interval: bool, machine: &Machine) -> Choice {
    let gpu = gpu_for(build_rows as u64 + probe_rows, machine);
    let gpu_used = gpu.as_ref().ok();
    let join = Expected { build_rows, probe_rows, threads, probers: 1, fills_interval, machine, gpu: gpu_used };
    let candidates = Candidates::of(&join);
    let best = candidates.cheapest();
    candidates.choice(best, best.reason(&join), gpu)
}

/// The GPU for a join of so many tuples, or why there is none.
fn gpu_for(tuples: u64, machine: &Machine) -> Result<Description, String> {
    if tuples < GPU_TUPLES_MIN { Err(format!("{tuples} tuples are too few for a GPU")) } else { (machine.gpu)() }
}

/// The algorithms that can run a join, with their nanoseconds.
struct Candidates(Vec<(&'static dyn Algorithm, f64)>);

impl Candidates {
    fn of(join: &Expected<'_>) -> Self {
        let predicted = |algorithm: &'static dyn Algorithm| Some((algorithm, algorithm.predicted_ns(join)?));
        Self(algorithm::ALL.into_iter().filter_map(predicted).collect())
    }

    fn cheapest(&self) -> &'static dyn Algorithm {
        let best = self.0.iter().min_by(|a, b| a.1.total_cmp(&b.1));
        best.expect("the algorithms of the CPU can run any join").0
    }

    fn choice(self, best: &'static dyn Algorithm, reason: String, gpu: Result<Description, String>) -> Choice {
        let device = match gpu {
            Ok(gpu) if best.is_on_gpu() => gpu.name,
            Ok(gpu) => format!("cpu (predicted to be faster than {})", gpu.name),
            Err(why) => format!("cpu ({why})"),
        };
        let predicted_ns = self.0.iter().map(|&(algorithm, ns)| (algorithm.name(), ns as u64)).collect();
        Choice { algorithm: best, reason, device, predicted_ns, actual_build_ns: 0 }
    }
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

/// As [`choose`], for batches. An algorithm that rearranges the probe side, on a GPU too, pays for gathering its
/// columns out of order. An algorithm that takes the rows as they come finds them in the cache.
pub fn choose_for_batches(build_rows: usize, probe: &ProbeSide, threads: usize, machine: &Machine) -> Choice {
    let &ProbeSide { rows: probe_rows, width, probers } = probe;
    let gpu = gpu_for(build_rows as u64 + probe_rows, machine);
    let gpu_used = gpu.as_ref().ok();
    let join = Expected { build_rows, probe_rows, threads, probers, fills_interval: false, machine, gpu: gpu_used };
    let mut candidates = Candidates::of(&join);
    let first = candidates.cheapest();
    for (algorithm, ns) in &mut candidates.0 {
        let at_once = algorithm.probe_rows_wanted(build_rows);
        if at_once > 0 {
            let gathered_bytes = (width.row_bytes as u64 * probe_rows.min(at_once as u64)) as f64;
            // A GPU moves keys and places itself.
            let keys_ns = if algorithm.is_on_gpu() { 0.0 } else { REARRANGED_NS };
            let column_ns = REARRANGED_NS + machine.access_ns(gathered_bytes, 10.0);
            let gather_ns = keys_ns + width.columns as f64 * column_ns;
            *ns += probe_rows as f64 * gather_ns / threads as f64;
        }
    }
    let may_be_chosen = |algorithm: &dyn Algorithm| build_rows <= algorithm.build_rows_estimated_max();
    candidates.0.retain(|candidate| may_be_chosen(candidate.0));
    let best = candidates.cheapest();
    let reason = if best.name() == first.name() {
        best.reason(&join)
    } else if !may_be_chosen(first) {
        format!("{probe_rows} probe rows are an estimate: a list of build rows would not stand more")
    } else {
        let (name, columns) = (first.name(), width.columns);
        format!("{name} would cost less but for rearranging the keys and {columns} columns of the probe side")
    };
    candidates.choice(best, reason, gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{AskGpu, no_gpu_wanted};
    use crate::gpu::Driver;

    #[test]
    fn the_algorithms_of_the_cpu_have_costs_for_every_kind_of_keys() {
        let machine = Machine { gpu: no_gpu_wanted, ..Machine::detect() };
        for algorithm in algorithm::ALL.into_iter().filter(|algorithm| !algorithm.is_on_gpu()) {
            for fills_interval in [false, true] {
                let (build_rows, probe_rows, gpu) = (1000, 1000, None);
                let machine = &machine;
                let join = Expected { build_rows, probe_rows, threads: 1, probers: 1, fills_interval, machine, gpu };
                assert!(algorithm.predicted_ns(&join).is_some_and(|ns| ns > 0.0), "{algorithm:?}");
            }
        }
    }

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
        assert!(narrow.algorithm.is_on_gpu() && narrow.device.contains("H100"), "{narrow:?}");
        assert!(narrow.reason.contains("link of 55 GB/s"), "{narrow:?}");
        let wide = chosen_for_batches(rows, rows as u64, 12, 16, fast);
        assert!(!wide.algorithm.is_on_gpu(), "{wide:?}");
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
        let choice = chosen_beside_a_gpu(256 << 20, Machine::detect().gpu, u64::MAX);
        assert!(!choice.device.starts_with("emulation"), "{choice:?}");
    }
}
