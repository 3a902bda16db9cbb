//! Seeds that have not been run before: each run of this test takes another range. It prints the range, and for each seed that is not in
//! order the command that replays it. `FARHOLD_FRESH=N` runs the range that begins with N again.

use farhold_sim::failover::{Scenario, run};
use farhold_sim::seeds::{jobs_max, run_each};
use std::hash::{BuildHasher, Hasher, RandomState};

/// Seeds of each scenario. All of them together take one processor about six minutes in the profile of the tests.
const SEEDS: u64 = 300;
/// Ranges begin below this.
const FIRST_MAX: u64 = 1_000_000_000;

/// Names the seed whose run panics.
struct Naming(Scenario, u64);

impl Drop for Naming {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("panicked: {}", self.0.command(self.1));
        }
    }
}

#[test]
fn fresh_seeds_of_every_scenario_are_in_order() {
    let given = std::env::var("FARHOLD_FRESH").ok().and_then(|first| first.parse().ok());
    let first = given.unwrap_or_else(|| RandomState::new().build_hasher().finish() % FIRST_MAX);
    println!("seeds {first} to {}: FARHOLD_FRESH={first} runs them again", first + SEEDS - 1);
    let mut bad = Vec::new();
    for scenario in Scenario::ALL {
        let one = |seed| {
            let _naming = Naming(scenario, seed);
            run(&(scenario.of_seed)(seed)).check()
        };
        run_each(first..first + SEEDS, jobs_max(), one, |seed, outcome| {
            if let Err(what) = outcome {
                let command = scenario.command(seed);
                println!("{command}\n    {what}");
                bad.push(command);
            }
        });
    }
    assert!(bad.is_empty(), "not in order:\n{}", bad.join("\n"));
}
