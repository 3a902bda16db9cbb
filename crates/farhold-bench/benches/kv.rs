//! The key-value workload without the binary: `cargo bench -p farhold-bench --bench kv -- [--redis-port PORT] [--seconds 2]
//! [--quick] [--json FILE]`
//!
//! Values of 128 B to 8 KiB; uniform and Zipf; single gets and batches of eight; without puts, and with a writer by message
//! and by transaction. With a port, also the same gets against the Redis there, turn by turn.

use farhold_bench::report::Report;
use farhold_bench::workload::kv::{self, Outcome, Plan, Put, Spread};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let quick = args.iter().any(|arg| arg == "--quick" || arg == "--test");
    let seconds: u64 = value("--seconds").map_or(2, |text| text.parse().expect("seconds"));
    let port: Option<u16> = value("--redis-port").map(|text| text.parse().expect("a port"));
    let mut report = Report::new(quick);
    let (keys, span_ns) = if quick { (200, 20_000_000) } else { (20_000, seconds * 1_000_000_000) };
    let readers = 1;
    for batch in [1, 8] {
        report.table(&format!("{readers} reader, {batch} gets a batch, {keys} keys"));
        for value_bytes in [128, 1024, 8192] {
            for (spread, spread_name) in [(Spread::Uniform, "uniform"), (Spread::Zipf(0.99), "zipf")] {
                for (writers, put, writer) in [
                    (0, Put::Message, "no puts"),
                    (1, Put::Message, "puts by message"),
                    (1, Put::Transaction, "puts by transaction"),
                ] {
                    let plan = Plan { keys, value_bytes, readers, writers, batch, spread, put, span_ns, seed: 42 };
                    let ours = kv::run(&plan).expect("a run");
                    let redis = port.filter(|_| writers == 0).map(|port| kv::redis::run(&plan, port).expect("a run"));
                    let name = format!("{value_bytes} B x {batch}, {spread_name}, {writer}");
                    report.row("kv", &name, &figures(&ours, redis.as_ref()));
                }
            }
        }
    }
    if let Some(path) = value("--json") {
        report.write(path.as_ref()).expect("write the figures");
    }
}

fn figures(ours: &Outcome, redis: Option<&Outcome>) -> Vec<(&'static str, f64)> {
    let mut figures = vec![
        ("million gets/s", ours.gets_per_second() / 1e6),
        ("thousand puts/s", ours.puts_per_second() / 1e3),
        ("p50 us", ours.batch_latency.quantile_ns(0.5) as f64 / 1e3),
        ("p99 us", ours.batch_latency.quantile_ns(0.99) as f64 / 1e3),
        ("torn %", 100.0 * ours.torn as f64 / (ours.gets + ours.torn).max(1) as f64),
    ];
    if let Some(redis) = redis {
        figures.push(("redis million gets/s", redis.gets_per_second() / 1e6));
        figures.push(("farhold/redis", ours.gets_per_second() / redis.gets_per_second().max(1.0)));
    }
    figures
}
