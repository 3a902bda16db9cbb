//! `SmallBank` on nodes of this process: `cargo run --release -p farhold-bench --example smallbank -- [NAME VALUE]...`
//!
//! Names, with what they are when left out: nodes 3, working-nodes 1, workers 1, in-flight 1, replicas 1, pessimistic 0,
//! distributed 1 (percent), hot-percent 90, accounts 100000 (a node), hot 4000, seconds 5, seed 42, pin 0, latches 0 (1: no hardware
//! transactions), provider shm. Prints one line of JSON; the money is audited at the end.
//!
//! The `farhold` binary has the same as `farhold bench smallbank`; this is the shortest way from a change to a number.

use farhold_bench::workload::smallbank::Scale;
use farhold_bench::workload::smallbank::input::Kind;
use farhold_bench::workload::smallbank::run::{Plan, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| {
        let given = words.chunks(2).find(|pair| pair[0] == name).and_then(|pair| pair.get(1));
        given.map_or(Ok(default), |word| word.parse::<u64>())
    };
    let provider = words.chunks(2).find(|pair| pair[0] == "provider").and_then(|pair| pair.get(1));
    let plan = Plan {
        scale: Scale {
            nodes: value("nodes", 3)? as u8,
            accounts: value("accounts", 100_000)? as u32,
            hot: value("hot", 4_000)? as u32,
        },
        working_nodes: value("working-nodes", 1)? as u8,
        workers: value("workers", 1)? as u8,
        in_flight: value("in-flight", 1)? as u16,
        distributed_percent: value("distributed", 1)? as u32,
        hot_percent: value("hot-percent", 90)? as u32,
        replicas: value("replicas", 1)? as u8,
        optimistic: value("pessimistic", 0)? == 0,
        span_ns: value("seconds", 5)? * 1_000_000_000,
        seed: value("seed", 42)?,
        pin: value("pin", 0)? != 0,
        provider: provider.map_or("shm", String::as_str).to_owned(),
        hardware: value("latches", 0)? == 0,
    };
    let outcome = run(&plan)?;
    let totals = &outcome.totals;
    let kinds: Vec<String> =
        Kind::ALL.iter().zip(totals.commits).map(|(kind, commits)| format!("\"{}\": {commits}", kind.name())).collect();
    let hardware: Vec<String> = outcome.hardware.iter().map(|node| format!("\"{node:?}\"")).collect();
    println!(
        "{{\"workload\": \"smallbank\", \"transactions_per_second\": {:.0}, \"refused\": {}, \"conflicts\": {}, \
         \"p50_ns\": {}, \"p99_ns\": {}, \"commits\": {{{}}}, \"hardware\": [{}]}}",
        outcome.per_second(),
        totals.refused,
        totals.conflicts,
        totals.latency.quantile_ns(0.5),
        totals.latency.quantile_ns(0.99),
        kinds.join(", "),
        hardware.join(", ")
    );
    Ok(())
}
