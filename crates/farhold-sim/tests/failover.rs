//! Nodes die, pause, are cut off and come back; nothing acknowledged is lost, and everything heals.

use farhold_sim::failover::{Failover, run};

#[test]
fn a_healthy_cluster_replicates() {
    for seed in 0..4 {
        let setup = Failover { blows: Vec::new(), ..Failover::of_seed(seed) };
        let aftermath = run(&setup);
        if let Err(what) = aftermath.check() {
            panic!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
        }
    }
}

#[test]
fn what_was_acknowledged_survives() {
    let mut commits = 0;
    let seeds = std::env::var("FARHOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200);
    let mut bad = Vec::new();
    for seed in 0..seeds {
        let aftermath = run(&Failover::of_seed(seed));
        if let Err(what) = aftermath.check() {
            println!("seed {seed}: {what}\n{}", aftermath.story.join("\n"));
            bad.push(seed);
        }
        commits += aftermath.history.records.len();
    }
    println!("{commits} transactions committed");
    assert!(bad.is_empty(), "{} of {seeds} seeds: {bad:?}", bad.len());
}

#[test]
fn a_seed_is_a_run() {
    for seed in [1, 2, 3, 6, 9] {
        let (one, two) = (run(&Failover::of_seed(seed)), run(&Failover::of_seed(seed)));
        assert_eq!(one.story, two.story, "seed {seed}");
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed}");
    }
}
