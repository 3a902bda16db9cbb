//! Runs many seeds on all processors. A run stays on one thread from its beginning to its end, so its result is the
//! same as when it runs alone.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread::{available_parallelism, scope};

/// As many as the machine has processors.
#[must_use]
pub fn jobs_max() -> usize {
    available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Runs seeds, `jobs` at a time, and hands over the outcome of each in the order of seeds.
///
/// # Panics
/// If a run panics.
pub fn run_each<T: Send>(
    seeds: Range<u64>,
    jobs: usize,
    run: impl Fn(u64) -> T + Sync,
    mut hand_over: impl FnMut(u64, T),
) {
    let (next, (sender, done)) = (AtomicU64::new(seeds.start), channel());
    scope(|threads| {
        for _ in 0..jobs.max(1) {
            let (sender, next, run, end) = (sender.clone(), &next, &run, seeds.end);
            threads.spawn(move || {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= end || sender.send((seed, run(seed))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let (mut early, mut due) = (BTreeMap::new(), seeds.start);
        for (seed, became) in done {
            early.insert(seed, became);
            while let Some(became) = early.remove(&due) {
                hand_over(due, became);
                due += 1;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failover::{Failover, run};

    #[test]
    fn seeds_are_handed_over_in_order_and_are_what_they_are_alone() {
        let alone: Vec<u64> = (3..23).map(|seed| run(&Failover::of_seed(seed)).trace_hash).collect();
        for jobs in [0, 1, 3, 40] {
            let mut together = Vec::new();
            run_each(
                3..23,
                jobs,
                |seed| run(&Failover::of_seed(seed)).trace_hash,
                |seed, hash| together.push((seed, hash)),
            );
            assert!(together.iter().copied().eq((3..23).zip(alone.iter().copied())), "{jobs} at a time");
        }
    }
}
