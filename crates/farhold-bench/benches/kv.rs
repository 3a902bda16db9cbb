//! The key-value workload without the binary: `cargo bench -p farhold-bench --bench kv -- [--redis-port PORT] [--seconds 2]
//! [--quick] [--json FILE]`
//!
//! Values of 128 B to 8 KiB; uniform and Zipf; single gets and batches of eight; without puts, and with a writer by message
//! and by transaction. With a port, also the same gets against the Redis there, turn by turn: as many clients, as many gets in
//! flight, rows that caches hold and rows that they do not. Built with `--features farhold-fabric/libfabric` also over TCP, with a
//! home agent that sleeps when nobody asks and with one that spins.

use farhold_bench::workload::kv::{self, Outcome, Plan, Put, Spread};
use farhold_fabric::provider;
use farhold_report::Report;

/// Pairs of runs beside Redis, whose median ratio is reported.
const PAIRS: usize = 3;
/// Gets in flight on each client, over a network.
const IN_FLIGHT: usize = 32;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let quick = args.iter().any(|arg| arg == "--quick" || arg == "--test");
    let seconds: u64 = value("--seconds").map_or(2, |text| text.parse().expect("seconds"));
    let port: Option<u16> = value("--redis-port").map(|text| text.parse().expect("a port"));
    let mut report = Report::new(quick);
    let (keys, span_ns) = if quick { (200, 20_000_000) } else { (20_000, seconds * 1_000_000_000) };
    let plan = Plan {
        keys,
        value_bytes: 128,
        readers: 1,
        writers: 0,
        batch: 1,
        spread: Spread::Uniform,
        put: Put::Message,
        span_ns,
        seed: 42,
        provider: "shm".into(),
    };
    for batch in [1, 8] {
        report.table(&format!("1 reader, {batch} gets a batch, {keys} keys"));
        for value_bytes in [128, 1024, 8192] {
            for (spread, spread_name) in [(Spread::Uniform, "uniform"), (Spread::Zipf(0.99), "zipf")] {
                for (writers, put, writer) in [
                    (0, Put::Message, "no puts"),
                    (1, Put::Message, "puts by message"),
                    (1, Put::Transaction, "puts by transaction"),
                ] {
                    let plan = Plan { value_bytes, writers, batch, spread, put, ..plan.clone() };
                    let name = format!("{value_bytes} B x {batch}, {spread_name}, {writer}");
                    report.row("kv", &name, &beside(&plan, port.filter(|_| writers == 0)));
                }
            }
        }
    }
    if let Some(port) = port {
        report.table("More clients, and rows that no cache holds: uniform, no puts");
        for (keys, readers, batch) in [(keys, 2, 1), (keys, 4, 1), (keys, 4, 8), (10 * keys, 1, 1), (10 * keys, 1, 8)] {
            for value_bytes in [128, 1024] {
                let plan = Plan { keys, readers, batch, value_bytes, ..plan.clone() };
                let name = format!("{value_bytes} B x {batch}, {readers} clients, {keys} keys");
                report.row("clients", &name, &beside(&plan, Some(port)));
            }
        }
    }
    for provider in over_tcp() {
        report.table(&format!(
            "Over {provider}: uniform, no puts, {keys} keys; thousand gets/s, one by one and {IN_FLIGHT} in flight"
        ));
        for readers in [1, 2, 4] {
            for value_bytes in [128, 1024] {
                let plan =
                    Plan { provider: provider.clone(), readers, value_bytes, span_ns: span_ns / 2, ..plan.clone() };
                report.row(&provider, &format!("{value_bytes} B, {readers} clients"), &over_network(&plan, port));
            }
        }
    }
    if let Some(path) = value("--json") {
        report.write(path.as_ref()).expect("write the figures");
    }
}

/// Gets one by one and many in flight, and a Redis asked both ways, turn by turn: medians, and the ratios of the medians.
fn over_network(plan: &Plan, port: Option<u16>) -> Vec<(&'static str, f64)> {
    let many = Plan { batch: IN_FLIGHT, ..plan.clone() };
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..PAIRS {
        for (turn, rates) in rates.iter_mut().enumerate() {
            let plan = if turn % 2 == 0 { plan } else { &many };
            let outcome = match port {
                _ if turn < 2 => kv::run(plan),
                Some(port) => kv::redis::run(plan, port),
                None => continue,
            };
            rates.push(outcome.expect("a run").gets_per_second() / 1e3);
        }
    }
    let median = |mut rates: Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    };
    let [Some(single), Some(many), redis, pipelined] = rates.map(median) else { unreachable!("all but Redis ran") };
    let mut figures = vec![("single", single), ("in flight", many)];
    if let (Some(redis), Some(pipelined)) = (redis, pipelined) {
        figures.extend([
            ("redis GET", redis),
            ("redis pipelined", pipelined),
            ("in flight/GET", many / redis),
            ("single/GET", single / redis),
            ("in flight/pipelined", many / pipelined),
        ]);
    }
    figures
}

/// The ways over TCP of this build and machine.
fn over_tcp() -> Vec<String> {
    let here = provider::ALL.iter().flat_map(|kind| (kind.here)());
    let tcp = here.map(|here| here.name).filter(|name| name.ends_with("tcp;ofi_rxm"));
    tcp.flat_map(|name| [format!("{name}?agent=sleeps"), format!("{name}?agent=spins")]).collect()
}

/// A run, or pairs of runs beside the Redis at a port.
fn beside(plan: &Plan, port: Option<u16>) -> Vec<(&'static str, f64)> {
    let Some(port) = port else { return figures(&kv::run(plan).expect("a run")) };
    let plan = Plan { span_ns: plan.span_ns / 2, ..plan.clone() };
    let mut pairs: Vec<(Outcome, Outcome)> =
        (0..PAIRS).map(|_| (kv::run(&plan).expect("a run"), kv::redis::run(&plan, port).expect("a run"))).collect();
    let ratio = |(ours, theirs): &(Outcome, Outcome)| ours.gets_per_second() / theirs.gets_per_second().max(1.0);
    pairs.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let median = &pairs[PAIRS / 2];
    let mut all = figures(&median.0);
    all.push(("redis million gets/s", median.1.gets_per_second() / 1e6));
    all.push(("redis p50 us", median.1.batch_latency.quantile_ns(0.5) as f64 / 1e3));
    all.push(("farhold/redis", ratio(median)));
    all.push(("least", ratio(&pairs[0])));
    all
}

fn figures(ours: &Outcome) -> Vec<(&'static str, f64)> {
    vec![
        ("million gets/s", ours.gets_per_second() / 1e6),
        ("thousand puts/s", ours.puts_per_second() / 1e3),
        ("p50 us", ours.batch_latency.quantile_ns(0.5) as f64 / 1e3),
        ("p99 us", ours.batch_latency.quantile_ns(0.99) as f64 / 1e3),
        ("torn %", 100.0 * ours.torn as f64 / (ours.gets + ours.torn).max(1) as f64),
    ]
}
