//! The cost model: which algorithm, why, and how right that was.
//!
//! It counts what bounds a join in memory: bytes that stream past, and accesses that miss the caches. Constants were
//! measured on a 4-core AMD EPYC (Zen 5, 1 MiB + 32 MiB of cache); they are per core, and ratios matter more than values.

use std::fs;
use std::time::Instant;

use crate::algorithm::{self, Algorithm, Shape};

/// What the model knows of the machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Second-level cache of a core.
    pub l2_bytes: u64,
    /// Last-level cache.
    pub l3_bytes: u64,
    /// Bytes a second that one core streams, reads and writes together.
    pub core_bytes_per_s: f64,
    /// Bytes a second that all cores stream.
    pub all_bytes_per_s: f64,
    /// Accesses to memory that miss, a second and core, with as many under way as the core can have.
    pub core_misses_per_s: f64,
}

impl Machine {
    /// Cache sizes from the system where it tells, and constants.
    pub fn detect() -> Self {
        let cache = |index: u32| {
            let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
            let number: u64 = text.trim().trim_end_matches(['K', 'M']).parse().ok()?;
            Some(if text.contains('M') { number << 20 } else { number << 10 })
        };
        Self {
            l2_bytes: cache(2).unwrap_or(1 << 20),
            l3_bytes: cache(3).unwrap_or(32 << 20),
            core_bytes_per_s: 16e9,
            all_bytes_per_s: 36e9,
            core_misses_per_s: 80e6,
        }
    }
}

/// An algorithm, and the reason.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: &'static dyn Algorithm,
    /// Why, in one sentence.
    pub reason: String,
    /// Predicted nanoseconds of building the table and probing it once, of every candidate.
    pub predicted_ns: Vec<(&'static str, u64)>,
    /// What building the table took, once it has been built.
    pub actual_build_ns: u64,
}

impl Choice {
    /// The caller's choice.
    pub fn given(algorithm: &'static dyn Algorithm) -> Self {
        Self { algorithm, reason: "asked for".into(), predicted_ns: Vec::new(), actual_build_ns: 0 }
    }
}

/// The cheapest algorithm for a build side of that shape and `probe_rows` probe tuples in all.
pub fn choose(shape: Shape, probe_rows: u64, machine: &Machine) -> Choice {
    let (build, probe) = (shape.build_rows as f64, probe_rows as f64);
    let threads = shape.threads as f64;
    let bytes_per_s = (machine.core_bytes_per_s * threads).min(machine.all_bytes_per_s);
    // Keys, copy, and the tuple's own read.
    let partition_ns =
        |rows: f64, passes: f64| rows * ((8.0 + 32.0 * passes + 16.0) / bytes_per_s * 1e9 + 2.5 * passes / threads);
    let table_bytes = 24 * shape.build_rows as u64;
    let miss_share = 1.0 - (machine.l3_bytes as f64 / table_bytes.max(1) as f64).min(1.0);
    let miss_ns = 1e9 / (machine.core_misses_per_s * threads);
    // A directory slot and a tuple.
    let no_partition =
        partition_ns(build, 1.0) + 4.0 * build / threads + probe * (2.5 / threads + 2.0 * miss_share * miss_ns);
    let radix = partition_ns(build, 1.0) + partition_ns(probe, 1.0) + (build * 3.0 + probe * 3.5) / threads;
    let nested_loop = 0.5 * build * probe;
    let candidates = [("nested_loop", nested_loop), ("no_partition", no_partition), ("radix", radix)];
    let best = candidates.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or("no_partition", |best| best.0);
    let (mib, l3_mib) = (table_bytes >> 20, machine.l3_bytes >> 20);
    let reason = match best {
        "nested_loop" => format!("{} x {probe_rows} comparisons cost less than a table", shape.build_rows),
        "radix" => {
            format!("a table of {mib} MiB misses the {l3_mib} MiB cache more often than partitioning both sides costs")
        }
        _ => format!(
            "a table of {mib} MiB beside {l3_mib} MiB of cache is probed faster than both sides are partitioned"
        ),
    };
    Choice {
        algorithm: algorithm::by_name(best).unwrap_or(algorithm::ALL[0]),
        reason,
        predicted_ns: candidates.iter().map(|&(name, ns)| (name, ns as u64)).collect(),
        actual_build_ns: 0,
    }
}

/// Measures what EXPLAIN shows beside the prediction; decides nothing.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    #[expect(clippy::disallowed_methods, reason = "the time that EXPLAIN shows is the real one")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(build_rows: usize, probe_rows: u64) -> &'static str {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, ..Machine::detect() };
        let choice = choose(Shape { build_rows, probe_rows: 0, threads: 4 }, probe_rows, &machine);
        assert_eq!(choice.predicted_ns.len(), algorithm::ALL.len().min(3));
        choice.algorithm.name()
    }

    #[test]
    fn the_choice_follows_the_sizes() {
        assert_eq!(chosen(2, 3), "nested_loop");
        assert_eq!(chosen(100_000, 10_000_000), "no_partition");
        assert_eq!(chosen(200_000_000, 200_000_000), "radix");
    }
}
