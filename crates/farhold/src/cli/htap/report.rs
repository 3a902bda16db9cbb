//! The output of `farhold bench htap`: a line for each measurement, medians of each mix, and the cost of the columns for transactions.

use std::io::Write;

use farhold_bench::workload::ch::QUERIES;
use serde_json::{Value, json};

use super::super::args::{HtapArgs, Mix};
use super::super::bench::median;
use super::super::demo::micros;
use super::super::event::quantile;
use super::{Kept, Measured, has_journal, processors, query_threads, warehouses};

impl Measured {
    fn transactions_per_second(&self) -> f64 {
        self.transactions.rate(self.transactions.commits)
    }

    fn queries_per_second(&self) -> f64 {
        self.answered.queries() as f64 / self.seconds
    }

    /// The least number of times that any query was answered.
    fn rounds(&self) -> usize {
        self.answered.times_us.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// The wait that a share of the views did not exceed, in microseconds.
    fn wait_us(&self, fraction: f64) -> u64 {
        quantile(&self.waits_ns, fraction).div_ceil(1000)
    }

    fn views(&self) -> u64 {
        self.waits_ns.iter().map(|bucket| bucket.1).sum()
    }
}

/// The share of TPC-C's rate that is lost, run by run.
struct Cost {
    mix: Mix,
    /// Lost to columns, compared with the same mix on rows.
    of_columns: Vec<f64>,
    /// Lost to columns and queries, compared with the same workers on rows without queries; empty if that mix is not measured.
    of_both: Vec<f64>,
}

/// The costs for each mix with workers.
fn costs(args: &HtapArgs, all: &[Measured]) -> Vec<Cost> {
    let rate = |mix: Mix, kept: Kept, run: u32| {
        let of = all.iter().find(|one| one.mix == mix && one.kept == kept && one.run == run);
        of.map(Measured::transactions_per_second)
    };
    let cost = |mix: Mix, beside: Mix| {
        let shares = (0..args.runs).filter_map(|run| {
            Some(1.0 - rate(mix, Kept::Columns, run)? / rate(beside, Kept::Rows, run).filter(|rate| *rate > 0.0)?)
        });
        shares.collect()
    };
    let mixes = args.mixes.iter().filter(|mix| mix.workers > 0);
    mixes.map(|&mix| Cost { mix, of_columns: cost(mix, mix), of_both: cost(mix, Mix { clients: 0, ..mix }) }).collect()
}

/// The figures of a measurement.
pub fn one_as_json(one: &Measured) -> Value {
    let mut check_us = one.answered.check_us.clone();
    check_us.sort_unstable();
    let check = |fraction| exact(&check_us, fraction);
    let (transactions, answered) = (&one.transactions, &one.answered);
    let query_ms = answered.times_us.iter().map(|times| {
        let mut times: Vec<f64> = times.iter().map(|us| *us as f64 / 1e3).collect();
        if times.is_empty() { Value::Null } else { json!(median(&mut times)) }
    });
    json!({
        "workers": one.mix.workers, "clients": one.mix.clients, "kept": one.kept.name(), "run": one.run,
        "transactions_per_second": one.transactions_per_second(),
        "new_orders_per_second": transactions.rate(transactions.new_orders),
        "abort_percent": transactions.abort_percent(),
        "p50_us": transactions.quantile_us(0.5), "p99_us": transactions.quantile_us(0.99),
        "queries_per_second": one.queries_per_second(), "queries": answered.queries(), "rounds": one.rounds(),
        "query_ms": query_ms.collect::<Vec<_>>(),
        "freshness": {
            "acknowledged": answered.acknowledged, "checks": answered.check_us.len(), "missed": answered.missed,
            "check_us": { "p50": check(0.5), "p99": check(0.99), "max": check(1.0) },
        },
        "waits_us": {
            "views": one.views(), "p50": one.wait_us(0.5), "p99": one.wait_us(0.99), "max": one.wait_us(1.0),
        },
        "tables_without_room": one.without_room,
    })
}

/// All measurements.
pub fn as_json(args: &HtapArgs, all: &[Measured]) -> Value {
    let threads: serde_json::Map<String, Value> =
        args.mixes.iter().map(|mix| (mix.to_string(), json!(query_threads(args, *mix)))).collect();
    let costs = costs(args, all).into_iter().map(|cost| {
        json!({
            "workers": cost.mix.workers, "clients": cost.mix.clients,
            "of_columns": cost.of_columns, "of_both": cost.of_both,
        })
    });
    json!({
        "workload": "htap",
        "configuration": {
            "mixes": args.mixes.iter().map(Mix::to_string).collect::<Vec<_>>(), "warehouses": warehouses(args),
            "seconds": args.seconds, "warm_up": args.warm_up, "runs": args.runs, "in_flight": args.in_flight,
            "query_threads": threads, "processors": processors(), "seed": args.seed, "pinned": args.pin,
            "column_memory": args.column_memory, "journal": has_journal(args),
        },
        "measured": all.iter().map(one_as_json).collect::<Vec<_>>(),
        "costs": costs.collect::<Vec<_>>(),
    })
}

/// A description of the measurement, and the heading of the lines.
pub fn print_head(args: &HtapArgs) {
    println!(
        "TPC-C and CH-benCHmark's queries at the same time: {} warehouses, one node {} a journal, {} processors;\n\
         {} s after {} s, {} transactions in flight on each worker, {} runs in turns",
        warehouses(args),
        if has_journal(args) { "with" } else { "without" },
        processors(),
        args.seconds,
        args.warm_up,
        args.in_flight,
        args.runs
    );
    println!("mix    kept           tx/s  queries/s    tx p99  wait p50       p99       max  checks  missed");
}

/// The line of a measurement.
pub fn print_one(one: &Measured) {
    let waits = [0.5, 0.99, 1.0].map(|fraction| match one.kept {
        Kept::Columns if one.mix.clients > 0 => micros(one.wait_us(fraction)),
        _ => String::new(),
    });
    let p99 = if one.mix.workers > 0 { micros(one.transactions.quantile_us(0.99)) } else { String::new() };
    println!(
        "{:<6} {:<8} {:>10.0} {:>10.1} {p99:>9} {:>9} {:>9} {:>9} {:>7} {:>7}",
        one.mix,
        one.kept.name(),
        one.transactions_per_second(),
        one.queries_per_second(),
        waits[0],
        waits[1],
        waits[2],
        one.answered.check_us.len(),
        one.answered.missed.len()
    );
    if one.mix.clients > 0 && one.rounds() == 0 {
        let count = QUERIES.len();
        println!("       not all {count} queries were answered: the rate is that of the others; --seconds is too few");
    }
    if one.without_room > 0 {
        let tables = one.without_room;
        println!("       {tables} tables were read by rows at the end; --column-memory gives columns more room");
    }
    let _ = std::io::stdout().flush(); // as for println!
}

/// Medians of each mix, and the costs.
pub fn print_summary(args: &HtapArgs, all: &[Measured]) {
    println!("\nmedians                      tx/s  queries/s");
    for &mix in &args.mixes {
        for kept in [Kept::Columns, Kept::Rows] {
            let of = |rate: fn(&Measured) -> f64| {
                let runs = all.iter().filter(|one| one.mix == mix && one.kept == kept);
                median(&mut runs.map(rate).collect::<Vec<_>>())
            };
            let (transactions, queries) = (of(Measured::transactions_per_second), of(Measured::queries_per_second));
            println!("{mix:<6} {:<8} {transactions:>17.0} {queries:>10.1}", kept.name());
        }
    }
    println!("\nshare of TPC-C's rate, median (least to most), pair by pair");
    for Cost { mix, of_columns, of_both } in costs(args, all) {
        println!("{mix:<6} of the columns, beside {mix} on rows: {}", spread(of_columns));
        if mix.clients > 0 && !of_both.is_empty() {
            println!("{:<6} of columns and queries, beside {}:0 on rows: {}", "", mix.workers, spread(of_both));
        }
    }
}

fn spread(mut shares: Vec<f64>) -> String {
    let middle = median(&mut shares);
    let [least, most] = [shares.first(), shares.last()].map(|share| share.copied().unwrap_or(0.0));
    format!("{:.1} % ({:.1} to {:.1})", middle * 100.0, least * 100.0, most * 100.0)
}

/// The value that a share of sorted values does not exceed; 0 of none.
fn exact(sorted: &[u64], fraction: f64) -> u64 {
    let wanted = (fraction * sorted.len() as f64).ceil() as usize;
    sorted.get(wanted.max(1) - 1).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_shares() {
        let values: Vec<u64> = (1..=100).collect();
        assert_eq!((exact(&values, 0.5), exact(&values, 0.99), exact(&values, 1.0), exact(&[], 0.5)), (50, 99, 100, 0));
        assert_eq!(spread(vec![0.05, -0.01, 0.02]), "2.0 % (-1.0 to 5.0)");
    }
}
