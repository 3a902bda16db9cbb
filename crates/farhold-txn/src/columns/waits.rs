//! How long queries have waited for columns: counts by length, which all threads add to and read.
//!
//! Buckets are log-linear, 16 for each power of two: a bound is at most 6.3 % above the waits below it. (farhold-bench has such buckets for
//! one writer; no crate above this one can be named here.)

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 4;
const SUB: usize = 1 << SUB_BITS;
/// Waits up to 2^40 ns (18 minutes) have buckets of their own; longer ones share the last.
const POWERS: usize = 40 - SUB_BITS as usize + 1;
const BUCKETS: usize = SUB * POWERS;

/// The waits of a node's queries.
pub(crate) struct Waits(Box<[AtomicU64]>);

impl Default for Waits {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Waits {
    /// Counts one wait.
    pub fn count(&self, ns: u64) {
        self.0[bucket_of(ns)].fetch_add(1, Relaxed);
    }

    /// (Longest wait of a bucket in nanoseconds, waits in it), ascending, without empty buckets.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().enumerate().map(|(bucket, count)| (upper_bound(bucket), count.load(Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - SUB_BITS;
    let sub = (ns >> power) as usize & (SUB - 1);
    ((power as usize + 1) * SUB + sub).min(BUCKETS - 1)
}

/// The longest wait that falls into a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let (power, sub) = (bucket / SUB, (bucket % SUB) as u64);
    if power == 0 { sub } else { ((SUB as u64 + sub + 1) << (power - 1)) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_little_above_the_waits_below_it() {
        for ns in (0..10_000).chain((14..40).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1, (1 << p) * 3 / 2])) {
            let bound = upper_bound(bucket_of(ns));
            assert!(bound >= ns && (bound - ns) as f64 <= ns as f64 / 15.0, "{ns} fell to {bound}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        let waits = Waits::default();
        for ns in [0, 5, 5, 1_000_000] {
            waits.count(ns);
        }
        assert_eq!(waits.counts(), [(0, 1), (5, 2), (upper_bound(bucket_of(1_000_000)), 1)]);
    }
}
