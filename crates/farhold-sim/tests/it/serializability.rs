//! Hundreds of seeds of random transactions on a simulated cluster: each history must have a serial order, nothing may be
//! left behind, and a seed must give the same run each time.

use farhold_planted::{Defect, plant};
use farhold_sim::cluster::{Setup, run};

#[test]
fn every_history_is_serializable() {
    let mut commits = 0;
    for seed in 0..seeds() {
        let outcome = run(&Setup::small(seed));
        if let Err(what) = outcome.check() {
            panic!("seed {seed}: {what}");
        }
        commits += outcome.history.records.len();
    }
    println!("{commits} transactions committed");
}

#[test]
fn histories_of_one_two_four_and_five_nodes_are_serializable() {
    for seed in 0..seeds() / 2 {
        // Each size meets each kind of load, which go by the seed's remainder.
        let nodes = [1, 2, 4, 5][(seed / 4 % 4) as usize];
        if let Err(what) = run(&Setup { nodes, ..Setup::small(seed) }).check() {
            panic!("seed {seed}, {nodes} nodes: {what}");
        }
    }
}

#[test]
fn a_seed_is_a_run() {
    for seed in [1, 2, 3, 99] {
        let (one, two) = (run(&Setup::small(seed)), run(&Setup::small(seed)));
        assert_eq!(one.trace_hash, two.trace_hash, "seed {seed}");
        assert_eq!(one.history.records.len(), two.history.records.len());
    }
    assert_ne!(run(&Setup::small(1)).trace_hash, run(&Setup::small(5)).trace_hash);
}

#[test]
fn the_body_of_the_hardware_transaction_is_as_good_as_latches() {
    plant(Some(Defect::SoftRtm));
    let (mut commits, mut commits_far) = (0, 0);
    for seed in 0..seeds() / 4 {
        let outcome = run(&Setup::small(seed));
        if let Err(what) = outcome.check() {
            panic!("seed {seed}: {what}");
        }
        commits += outcome.statistics.hardware.commits;
        commits_far += outcome.statistics.hardware.commits_far;
    }
    plant(None);
    assert!(commits > 0 && commits_far > 0, "{commits} sections without latches, {commits_far} of far transactions");
}

/// 200, or what the environment asks for.
fn seeds() -> u64 {
    std::env::var("FARHOLD_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}
