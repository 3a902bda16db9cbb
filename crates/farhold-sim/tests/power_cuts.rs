//! Nodes with copies and journals die, pause and come back, and then the power of all is cut: from the files everything acknowledged is there
//! again, and of every other transaction all or nothing. Each seed runs twice, and both runs are the same.

use farhold_sim::failover::{Failover, run};

/// Two threads: half of the seeds each.
#[test]
fn what_was_acknowledged_survives_even_seeds() {
    what_was_acknowledged_survives(0);
}

#[test]
fn what_was_acknowledged_survives_odd_seeds() {
    what_was_acknowledged_survives(1);
}

fn what_was_acknowledged_survives(first: u64) {
    let mut commits = 0;
    let seeds = std::env::var("FARHOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let mut bad = Vec::new();
    for seed in (first..seeds).step_by(2) {
        let (aftermath, again) = (run(&Failover::with_power_cuts(seed)), run(&Failover::with_power_cuts(seed)));
        assert_eq!(aftermath.story, again.story, "seed {seed}");
        assert_eq!(aftermath.trace_hash, again.trace_hash, "seed {seed}");
        if let Err(what) = aftermath.check() {
            println!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
            bad.push(seed);
        }
        commits += aftermath.commits();
    }
    println!("{commits} transactions committed");
    assert!(bad.is_empty(), "{} of {seeds} seeds: {bad:?}", bad.len());
}

/// An expelled node goes on writing its journal.
#[test]
fn what_an_expelled_keeper_writes_does_not_count() {
    for seed in 0..40 {
        let aftermath = run(&Failover::with_zombie_keeper(seed));
        if let Err(what) = aftermath.check() {
            panic!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
        }
    }
}
