//! Counters and latches: `cargo bench -p farhold-bench --bench sync -- [--custom 0,2,1] [--span-ms 100] [--quick] [--json FILE]`
//!
//! Threads from one to as many as there are processors, laid onto them in natural, interleaved and custom order (without
//! `--custom`, the last processors first); three levels of contention; the home agent, the processor, both mixed, the
//! provider, and a mutex.

use farhold_bench::fabric::words::{Plan, run};
use farhold_report::Report;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let quick = args.iter().any(|arg| arg == "--quick" || arg == "--test");
    let span_ms: u64 =
        value("--span-ms").map_or(if quick { 2 } else { 100 }, |text| text.parse().expect("milliseconds"));
    let custom = value("--custom").map(|list| list.split(',').map(|n| n.parse().expect("a processor")).collect());
    let mut report = Report::new(quick);
    run(&Plan::of_this_machine(span_ms * 1_000_000, custom), &mut report).expect("a measurement");
    if let Some(path) = value("--json") {
        report.write(path.as_ref()).expect("write the figures");
    }
}
