//! Runs of many seeds, all of which have to be in order.

use farhold_sim::failover::{Aftermath, Failover, run};
use std::ops::Range;

/// The seeds of each scenario that are always the same. `fresh` runs hundreds of others each time.
pub const FIXED: Range<u64> = 0..12;
/// Those that run twice.
pub const TWICE: Range<u64> = 0..4;

/// Seeds one after the other, until one is not in order; the transactions that they have committed.
pub fn are_in_order(seeds: Range<u64>, setup: impl Fn(u64) -> Failover) -> u64 {
    let mut commits = 0;
    for seed in seeds {
        let aftermath = run(&setup(seed));
        if let Err(what) = aftermath.check() {
            panic!("seed {seed}: {what}\n{}", told(&aftermath));
        }
        commits += aftermath.commits();
    }
    commits
}

/// Seeds that are run twice: both runs are the same.
pub fn are_the_same_again(seeds: impl Iterator<Item = u64>, setup: impl Fn(u64) -> Failover) {
    for seed in seeds {
        let [once, again] = [(); 2].map(|()| run(&setup(seed)));
        assert_eq!(once.trace_hash, again.trace_hash, "seed {seed}");
    }
}

/// Every second seed from `first` on, of 60 or `FARHOLD_SEEDS`, each run twice: both runs are the same, and all are in order.
pub fn are_in_order_twice(first: u64, setup: impl Fn(u64) -> Failover) {
    let mut commits = 0;
    let seeds = std::env::var("FARHOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    let mut bad = Vec::new();
    for seed in (first..seeds).step_by(2) {
        let (aftermath, again) = (run(&setup(seed)), run(&setup(seed)));
        assert_eq!(aftermath.story, again.story, "seed {seed}");
        assert_eq!(aftermath.trace_hash, again.trace_hash, "seed {seed}");
        if let Err(what) = aftermath.check() {
            println!("seed {seed}: {what}\n{}", told(&aftermath));
            bad.push(seed);
        }
        commits += aftermath.commits();
    }
    println!("{commits} transactions committed");
    assert!(bad.is_empty(), "{} of {seeds} seeds: {bad:?}", bad.len());
}

fn told(aftermath: &Aftermath) -> String {
    aftermath.story.join("\n")
}
