//! `farhold bench kv`: gets of far rows, with puts beside them, and the same gets against a Redis.

use farhold_bench::workload::kv::{self, Outcome, Plan, Put, Spread};
use serde_json::{Value, json};

use super::args::{KvArgs, PutBy};

/// Runs the workload once for each size of values.
pub fn run(args: &KvArgs, json: bool) -> Result<(), String> {
    if !json {
        println!(
            "{} readers, {} writers by {}, batches of {}, {} keys, {}, provider {}, {} s each",
            args.readers,
            args.writers,
            args.put.name(),
            args.batch,
            args.keys,
            args.zipf.map_or("uniform".to_owned(), |theta| format!("Zipf {theta}")),
            args.provider,
            args.seconds,
        );
        println!("   bytes       gets/s    puts/s  p50 batch  p99 batch   torn %  index reads %");
    }
    for &value_bytes in &args.sizes {
        let plan = plan(args, value_bytes);
        let ours = kv::run(&plan).map_err(|error| error.to_string())?;
        let ask = |port| kv::redis::run(&plan, port).map_err(|error| format!("port {port} of 127.0.0.1: {error}"));
        let redis = args.redis_port.map(ask).transpose()?;
        if json {
            println!("{}", as_json(args, &plan, &ours, redis.as_ref()));
            continue;
        }
        print_row(&value_bytes.to_string(), &ours);
        if let Some(redis) = &redis {
            print_row("Redis", redis);
            println!("  ratio  {:>10.1}x", ours.gets_per_second() / redis.gets_per_second().max(1.0));
        }
    }
    Ok(())
}

fn plan(args: &KvArgs, value_bytes: u32) -> Plan {
    Plan {
        keys: args.keys,
        value_bytes: value_bytes.next_multiple_of(8) as usize,
        readers: args.readers,
        clients: 1,
        writers: args.writers,
        batch: args.batch.into(),
        spread: args.zipf.map_or(Spread::Uniform, Spread::Zipf),
        put: match args.put {
            PutBy::Message => Put::Message,
            PutBy::Transaction => Put::Transaction,
        },
        span_ns: u64::from(args.seconds) * 1_000_000_000,
        seed: args.seed,
        provider: args.provider.clone(),
        bound: false,
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

fn print_row(name: &str, outcome: &Outcome) {
    println!(
        "{name:>8} {:>12.0} {:>9.0} {:>7.2} us {:>7.2} us {:>8.3} {:>14.2}",
        outcome.gets_per_second(),
        outcome.puts_per_second(),
        outcome.batch_latency.quantile_ns(0.5) as f64 / 1e3,
        outcome.batch_latency.quantile_ns(0.99) as f64 / 1e3,
        percent(outcome.torn, outcome.gets + outcome.torn),
        percent(outcome.index_reads, outcome.gets),
    );
}

fn figures(outcome: &Outcome) -> Value {
    json!({
        "gets_per_second": outcome.gets_per_second(), "puts_per_second": outcome.puts_per_second(),
        "batch_p50_ns": outcome.batch_latency.quantile_ns(0.5), "batch_p99_ns": outcome.batch_latency.quantile_ns(0.99),
        "torn_percent": percent(outcome.torn, outcome.gets + outcome.torn),
        "index_read_percent": percent(outcome.index_reads, outcome.gets),
    })
}

fn as_json(args: &KvArgs, plan: &Plan, ours: &Outcome, redis: Option<&Outcome>) -> Value {
    let mut all = json!({
        "workload": "kv",
        "configuration": {
            "keys": plan.keys, "value_bytes": plan.value_bytes, "readers": plan.readers, "writers": plan.writers,
            "batch": plan.batch, "zipf": args.zipf, "put": args.put.name(), "seconds": args.seconds, "seed": plan.seed,
            "provider": plan.provider,
        },
        "farhold": figures(ours),
    });
    if let Some(redis) = redis {
        all["redis"] = figures(redis);
        all["ratio"] = json!(ours.gets_per_second() / redis.gets_per_second().max(1.0));
    }
    all
}
