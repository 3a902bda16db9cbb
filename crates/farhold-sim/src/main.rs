//! Replays one seed of a cluster whose nodes die, and tells its story: `farhold-sim --seed 17 [--trace]`.

use farhold_sim::failover::{Failover, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let Some(first) = value_of("--seed") else {
        println!("usage: farhold-sim --seed N [--seeds COUNT] [--quiet]");
        return ExitCode::from(2);
    };
    let mut worst = ExitCode::SUCCESS;
    for seed in first..first + value_of("--seeds").unwrap_or(1) {
        let setup = Failover::of_seed(seed);
        let aftermath = run(&setup);
        let outcome = aftermath.check();
        if outcome.is_ok() && arguments.iter().any(|argument| argument == "--quiet") {
            continue;
        }
        println!(
            "seed {seed}: {} nodes, {} copies of each row, {} clients",
            setup.nodes,
            setup.replicas,
            setup.nodes as usize * setup.clients
        );
        aftermath.story.iter().for_each(|line| println!("{line}"));
        println!(
            "             {} transactions, configuration {}, trace {:016x}",
            aftermath.history.records.len(),
            aftermath.configuration,
            aftermath.trace_hash
        );
        match outcome {
            Ok(()) => println!("in order: every history has a serial order, nothing acknowledged is lost"),
            Err(what) => {
                println!("NOT in order: {what}");
                aftermath.broken.iter().skip(1).for_each(|what| println!("              {what}"));
                worst = ExitCode::FAILURE;
            }
        }
    }
    worst
}
