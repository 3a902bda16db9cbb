//! Latencies, counted by length: any thread may read the counts while others add to them.
//!
//! Buckets are log-linear, 32 for each power of two: a reported quantile is at most 3.2 % above the true one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 5;
const SUB: usize = 1 << SUB_BITS;
/// Values up to 2^40 ns (18 minutes) have buckets of their own; larger ones share the last.
const POWERS: usize = 40 - SUB_BITS as usize + 1;
const BUCKETS: usize = SUB * POWERS;

/// Counts latencies in nanoseconds. Either one thread calls [`Self::record`], or any number call [`Self::record_shared`].
pub struct LatencyRecorder {
    buckets: Box<[AtomicU64]>,
}

impl Default for LatencyRecorder {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl std::fmt::Debug for LatencyRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.latencies().fmt(f)
    }
}

impl LatencyRecorder {
    /// Counts one latency, for a load and a store. The caller is the only thread that counts here.
    #[inline]
    pub fn record(&self, ns: u64) {
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.store(bucket.load(Relaxed) + 1, Relaxed);
    }

    /// Counts one latency, while other threads may do so too.
    #[inline]
    pub fn record_shared(&self, ns: u64) {
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
    }

    /// The latencies so far.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        Latencies { counts: self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect() }
    }
}

#[inline]
fn bucket_of(ns: u64) -> usize {
    if ns < SUB as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() - SUB_BITS;
    let sub = (ns >> power) as usize & (SUB - 1);
    ((power as usize + 1) * SUB + sub).min(BUCKETS - 1)
}

/// The largest value that falls into a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let (power, sub) = (bucket / SUB, (bucket % SUB) as u64);
    if power == 0 { sub } else { ((SUB as u64 + sub + 1) << (power - 1)) - 1 }
}

/// A set of latencies at one moment; sets of several workers or spans add and subtract.
#[derive(Clone, PartialEq, Eq)]
pub struct Latencies {
    counts: Vec<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

impl std::fmt::Debug for Latencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} latencies, p50 {} ns, p99 {} ns", self.count(), self.quantile_ns(0.5), self.quantile_ns(0.99))
    }
}

impl Latencies {
    /// Adds another set.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(a, b)| *a += b);
    }

    /// The latencies since `earlier`, a set of the same recorders.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self { counts: self.counts.iter().zip(&earlier.counts).map(|(a, b)| a.saturating_sub(*b)).collect() }
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The latency that `fraction` of them did not exceed, in nanoseconds; 0 when there are none.
    #[must_use]
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        let wanted = ((fraction * self.count() as f64).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return upper_bound(bucket);
            }
        }
        0
    }

    /// (Upper bound in nanoseconds, count) of each bucket that is not empty, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
            .map(|(bucket, count)| (upper_bound(bucket), *count))
    }

    /// The same with microseconds as bounds (rounded up), equal bounds merged.
    #[must_use]
    pub fn buckets_us(&self) -> Vec<(u64, u64)> {
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (bound, count) in self.buckets() {
            let bound = bound.div_ceil(1000);
            match merged.last_mut() {
                Some(last) if last.0 == bound => last.1 += count,
                _ => merged.push((bound, count)),
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_three_percent_wide() {
        for ns in (0..100_000).chain((17..41).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1, (1 << p) * 3 / 2])) {
            let bound = upper_bound(bucket_of(ns));
            if ns < 1 << 40 {
                assert!(bound >= ns && (bound - ns) as f64 <= ns as f64 / 31.0, "{ns} fell to {bound}");
            }
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_and_differences() {
        let recorder = LatencyRecorder::default();
        (1..=1000).for_each(|us| recorder.record(us * 1000));
        let early = recorder.latencies();
        assert!((495_000..520_000).contains(&early.quantile_ns(0.5)), "{early:?}");
        assert!((985_000..1_030_000).contains(&early.quantile_ns(0.99)));
        recorder.record(5);
        let late = recorder.latencies();
        assert_eq!((late.count(), late.since(&early).count(), late.since(&early).quantile_ns(0.5)), (1001, 1, 5));
        assert_eq!(late.buckets_us().iter().map(|b| b.1).sum::<u64>(), 1001);
        assert_eq!(Latencies::default().quantile_ns(0.5), 0);
    }

    #[test]
    fn shared_recorders_lose_nothing() {
        let recorder = LatencyRecorder::default();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..10_000).for_each(|n| recorder.record_shared(n % 2 * 7)));
            }
        });
        assert_eq!(recorder.latencies().buckets().collect::<Vec<_>>(), [(0, 10_000), (7, 10_000)]);
    }
}
