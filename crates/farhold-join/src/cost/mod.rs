//! The costs on the CPU of building a table and of probing it, in nanoseconds, and how they are fitted to measurements.
//!
//! A phase has four terms: starting each further thread; the processor's work for a row; the additional cost of a row
//! because the data that all threads touch exceed the second-level cache; and the additional cost because they exceed a
//! quarter of the last-level cache. The rest of that cache is left to other programs and to streamed data (with 32 MiB
//! of cache, tables of 16 MiB were missed every second time).
//!
//! So a phase is linear in its constants, and [`fit`] finds them by least squares of the relative errors. `cargo bench
//! -p farhold-join --bench joins -- --fit` measures and prints the text of [`FITTED`].

mod machine;

use crate::gpu::Description;

pub(crate) use machine::no_gpu_wanted;
pub use machine::{AskGpu, Machine};

/// A join whose costs are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Build rows.
    pub build_rows: usize,
    /// Probe rows in all.
    pub probe_rows: u64,
    /// Threads.
    pub threads: usize,
    /// Threads that probe, each with rows of its own. 1: one probe at a time, on all threads.
    pub probers: usize,
    /// Whether the build keys are unique and leave few holes, so that an array can index them.
    pub fills_interval: bool,
    /// Where it runs.
    pub machine: &'a Machine,
    /// The GPU that it may use.
    pub gpu: Option<&'a Description>,
}

impl Expected<'_> {
    /// The fitted costs of an algorithm for these keys.
    pub fn costs_of(&self, algorithm: &str) -> Option<&'static Costs> {
        costs_of(algorithm, self.fills_interval)
    }

    /// Nanoseconds of building the table and probing it once, by these costs.
    pub fn ns(&self, costs: &Costs) -> f64 {
        costs.ns(self.build_rows as f64, self.probe_rows as f64, self.threads as f64, self.machine).iter().sum()
    }
}

/// Nanoseconds of one of the threads, while all of them work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// For each thread beyond the first.
    pub thread: f64,
    /// For each row.
    pub row: f64,
    /// For each row, in addition, when nothing that it touches is in the second-level cache.
    pub beyond_l2: f64,
    /// For each row, in addition, when nothing is in the last-level cache.
    pub beyond_l3: f64,
}

/// The phases of building and probing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phases {
    /// Its rows are those of the build side.
    pub build: Phase,
    /// Its rows are those of the probe side.
    pub probe: Phase,
}

/// The costs of an algorithm for a kind of keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Its name.
    pub algorithm: &'static str,
    /// Whether the build keys are unique and leave few holes, so that an array can index them.
    pub fills_interval: bool,
    /// Bytes that the threads touch for a build row: those of the table, or of a tuple that is written and read again.
    pub bytes: f64,
    /// Build rows of the greatest table that the radix join does not partition: threads are then started for two steps,
    /// not three.
    pub whole_rows: f64,
    /// The constants of its phases.
    pub phases: Phases,
}

/// Fitted on an AMD EPYC (Zen 3, 512 KiB of second-level cache a core, 32 MiB of last-level cache shared) with 4
/// virtual processors, 20 K to 64 M rows a side, and payloads that are row numbers. Ratios matter more than values.
pub const FITTED: [Costs; 4] = include!("fitted.in");

/// The costs of an algorithm for such keys.
pub fn costs_of(algorithm: &str, fills_interval: bool) -> Option<&'static Costs> {
    FITTED.iter().find(|costs| costs.algorithm == algorithm && costs.fills_interval == fills_interval)
}

/// A phase of a join of `build_rows` build rows, which works on `rows` rows of either side.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Build rows.
    pub build_rows: f64,
    /// Rows of the side that the phase works on.
    pub rows: f64,
    /// Threads.
    pub threads: f64,
}

/// The factors of a phase's constants.
fn terms(costs: &Costs, work: Work, machine: &Machine) -> [f64; 4] {
    let Work { build_rows, rows, threads } = work;
    let touched_bytes = costs.bytes * build_rows;
    let beyond = |cache: u64| 1.0 - (cache as f64 / touched_bytes.max(1.0)).min(1.0);
    let share = rows / threads;
    let steps = if build_rows <= costs.whole_rows { 2.0 / 3.0 } else { 1.0 };
    [(threads - 1.0) * steps, share, share * beyond(machine.l2_bytes), share * beyond(machine.l3_bytes / 4)]
}

impl Phase {
    fn ns(&self, terms: [f64; 4]) -> f64 {
        let constants = [self.thread, self.row, self.beyond_l2, self.beyond_l3];
        constants.iter().zip(terms).map(|(constant, term)| constant * term).sum()
    }
}

impl Costs {
    /// Nanoseconds of building a table and of probing it, on all threads.
    pub fn ns(&self, build_rows: f64, probe_rows: f64, threads: f64, machine: &Machine) -> [f64; 2] {
        let ns = |phase: &Phase, rows| phase.ns(terms(self, Work { build_rows, rows, threads }, machine));
        [ns(&self.phases.build, build_rows), ns(&self.phases.probe, probe_rows)]
    }
}

/// The constants, none negative, that predict these times (nanoseconds) of one phase with the least squares of relative
/// errors. Only the fields of `costs` that say how rows count are used.
pub fn fit(costs: &Costs, measured: &[(Work, f64)], machine: &Machine) -> Phase {
    // Each prediction should be 1 in units of its measurement.
    let rows: Vec<[f64; 4]> =
        measured.iter().map(|&(work, ns)| terms(costs, work, machine).map(|term| term / ns)).collect();
    let mut constants = [0.0; 4];
    // One constant at a time, with the others held. It converges, since the squares are a convex function.
    for _ in 0..20_000 {
        for constant in 0..4 {
            let (mut above, mut below) = (0.0, 0.0);
            for row in &rows {
                let others: f64 =
                    (0..4).filter(|&other| other != constant).map(|other| constants[other] * row[other]).sum();
                above += row[constant] * (1.0 - others);
                below += row[constant] * row[constant];
            }
            constants[constant] = if below > 0.0 { (above / below).max(0.0) } else { 0.0 };
        }
    }
    let [thread, row, beyond_l2, beyond_l3] = constants;
    Phase { thread, row, beyond_l2, beyond_l3 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_constants_behind_exact_times() {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, gpu: no_gpu_wanted, ..Machine::detect() };
        let phase = Phase { thread: 40_000.0, row: 3.0, beyond_l2: 2.5, beyond_l3: 11.0 };
        let costs = costs_of("radix", true).unwrap();
        let measured: Vec<(Work, f64)> = (12..27)
            .map(|log| Work { build_rows: f64::from(1 << log), rows: f64::from(2 << log), threads: 4.0 })
            .map(|work| (work, phase.ns(terms(costs, work, &machine))))
            .collect();
        let found = fit(costs, &measured, &machine);
        for (found, expected) in [
            (found.thread, phase.thread),
            (found.row, phase.row),
            (found.beyond_l2, phase.beyond_l2),
            (found.beyond_l3, phase.beyond_l3),
        ] {
            assert!((found / expected - 1.0).abs() < 0.01, "{found} is not {expected}");
        }
    }
}
