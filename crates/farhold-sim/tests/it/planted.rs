//! Mutation tests: some seed notices each planted defect. `farhold-sim teeth` prints how many seeds it takes.

use farhold_sim::teeth::{Wrong, run_in_child};
use std::path::Path;

/// Several times the average number of seeds that the slowest defect takes.
const SEEDS: u64 = 400;

/// Those that clusters of threads notice too seldom for a test (docs/internals/simulation.md). `farhold-sim threads --planted` runs them.
const TOO_SELDOM: [&str; 3] = ["IndexUnseen", "PagesUnderSnapshot", "StaleCache"];

#[test]
fn every_planted_defect_is_noticed() {
    let program = Path::new(env!("CARGO_BIN_EXE_farhold-sim"));
    let mut missed = Vec::new();
    for wrong in Wrong::all().into_iter().filter(|wrong| !TOO_SELDOM.contains(&wrong.name().as_str())) {
        let noticed = run_in_child(program, wrong, SEEDS, 1);
        println!("{}: {} seeds, {}", wrong.name(), noticed.seeds, noticed.by.first().map_or("", String::as_str));
        if noticed.by.is_empty() {
            missed.push(wrong);
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
