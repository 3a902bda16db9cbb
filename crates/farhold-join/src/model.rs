//! The cost model: which algorithm, why, and how right that was.
//!
//! It counts what bounds a join in memory: the processor's work a tuple, accesses that miss the caches, and bytes that stream
//! past. The constants are nanoseconds of one thread, fitted to `benches/joins.rs` from 50 K to 64 M tuples a side on an AMD
//! EPYC (Zen 5, 1 MiB of second-level cache, 32 MiB shared); their ratios matter more than their values.

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
    /// Bytes a second that all cores stream, reads and writes together.
    pub bytes_per_s: f64,
}

impl Machine {
    /// Cache sizes from the system where it tells, and a bandwidth of 36 GB/s.
    pub fn detect() -> Self {
        let cache = |index: u32| {
            let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()?;
            let number: u64 = text.trim().trim_end_matches(['K', 'M']).parse().ok()?;
            Some(if text.contains('M') { number << 20 } else { number << 10 })
        };
        Self { l2_bytes: cache(2).unwrap_or(1 << 20), l3_bytes: cache(3).unwrap_or(32 << 20), bytes_per_s: 36e9 }
    }

    /// Nanoseconds that an access at random into `bytes` costs beyond one to the second-level cache, when `memory_ns` is what
    /// a miss of all caches costs with many under way. Half of the last-level cache belongs to others.
    fn access_ns(&self, bytes: f64, memory_ns: f64) -> f64 {
        let miss_share = |cache: u64| 1.0 - (cache as f64 / bytes.max(1.0)).min(1.0);
        miss_share(self.l2_bytes) * 2.5 + miss_share(self.l3_bytes / 2) * memory_ns
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

/// The cheapest algorithm for a build side of that shape and `probe_rows` probe tuples in all. `fills_interval`: the build
/// keys are unique and leave few holes, so that an array finds them.
pub fn choose(shape: Shape, probe_rows: u64, fills_interval: bool, machine: &Machine) -> Choice {
    let (build, probe, threads) = (shape.build_rows as f64, probe_rows as f64, shape.threads as f64);
    let slot_bytes = if fills_interval { 8.0 } else { 24.0 };
    let table_bytes = slot_bytes * build;
    let start_ns = 15_000.0 * (threads - 1.0);
    let no_partition = if fills_interval {
        build * (3.0 + machine.access_ns(table_bytes, 11.0)) + probe * (3.0 + machine.access_ns(table_bytes, 5.0))
    } else {
        // Partitioned and sorted; then a directory slot and a tuple a probe.
        build * 12.0 + probe * (8.0 + 2.0 * machine.access_ns(table_bytes, 10.0))
    };
    let radix = if fills_interval { build * 6.0 + probe * 10.0 } else { build * 7.5 + probe * 17.0 };
    // Keys read for the histogram, tuples read, their pages zeroed, written, and read again.
    let radix_stream = (build + probe) * (8.0 + 16.0 + 16.0 + 16.0 + 16.0) / machine.bytes_per_s * 1e9;
    let candidates = [
        ("nested_loop", 0.5 * build * probe),
        ("no_partition", start_ns + no_partition / threads),
        ("radix", 2.0 * start_ns + (radix / threads).max(radix_stream)),
    ];
    let best = candidates.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map_or("no_partition", |best| best.0);
    let (mib, l3_mib) = (table_bytes as u64 >> 20, machine.l3_bytes >> 20);
    let reason = match best {
        "nested_loop" => format!("{} x {probe_rows} comparisons cost less than a table", shape.build_rows),
        "radix" => format!(
            "random accesses to a table of {mib} MiB beside {l3_mib} MiB of cache cost more than partitioning both sides"
        ),
        _ => format!(
            "random accesses to a table of {mib} MiB beside {l3_mib} MiB of cache cost less than partitioning both sides"
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

    fn chosen(build_rows: usize, probe_rows: u64, fills_interval: bool) -> &'static str {
        let machine = Machine { l2_bytes: 1 << 20, l3_bytes: 32 << 20, ..Machine::detect() };
        let choice = choose(Shape { build_rows, probe_rows: 0, threads: 1 }, probe_rows, fills_interval, &machine);
        let predicted = |name| choice.predicted_ns.iter().find(|prediction| prediction.0 == name).unwrap().1;
        assert!(choice.predicted_ns.iter().all(|other| predicted(choice.algorithm.name()) <= other.1));
        assert!(choice.reason.contains("cost"));
        choice.algorithm.name()
    }

    #[test]
    fn the_choice_follows_the_sizes() {
        assert_eq!(chosen(2, 3, false), "nested_loop");
        assert_eq!(chosen(50_000, 50_000, false), "no_partition");
        assert_eq!(chosen(1_000_000, 1_000_000, false), "radix");
        assert_eq!(chosen(1_000_000, 1_000_000, true), "no_partition");
        assert_eq!(chosen(16_000_000, 16_000_000, true), "radix");
    }
}
