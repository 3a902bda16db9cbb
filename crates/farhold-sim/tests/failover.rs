//! Nodes die, pause, are cut off and come back; nothing acknowledged is lost, and everything heals. Each seed runs twice, and
//! both runs are the same.

use farhold_sim::failover::{Failover, run};

#[test]
fn a_healthy_cluster_replicates() {
    for seed in 0..12 {
        let setup = Failover { blows: Vec::new(), ..Failover::of_seed(seed) };
        let aftermath = run(&setup);
        if let Err(what) = aftermath.check() {
            panic!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
        }
    }
}

/// Members are expelled while they renew their leases.
#[test]
fn a_slow_register_expels_nobody_who_still_acts() {
    for seed in 0..60 {
        let aftermath = run(&Failover::with_slow_register(seed));
        if let Err(what) = aftermath.check() {
            panic!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
        }
    }
}

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
        let (aftermath, again) = (run(&Failover::of_seed(seed)), run(&Failover::of_seed(seed)));
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
