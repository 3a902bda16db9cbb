//! `farhold fabric info`: the providers of memory instructions on this machine, and their costs; the copy engine of its movers.

use farhold_bench::fabric::info::{self, Figure, INSTRUCTIONS, Info};
use farhold_fabric::mover;
use serde_json::{Value, json};

use super::args::FabricInfoArgs;

/// Describes and measures the providers, and says which device copies for the access path `offload`.
pub fn info(args: &FabricInfoArgs, json: bool) {
    let providers = info::providers(u64::from(args.milliseconds) * 1_000_000);
    let queue = mover::choose().queue;
    if json {
        let mover = match queue {
            Ok(queue) => json!({ "engine": "dsa", "queue": queue }),
            Err(reason) => json!({ "engine": "processor", "no_dsa_queue": reason }),
        };
        let providers = providers.iter().map(as_json).collect::<Vec<_>>();
        println!("{}", json!({ "providers": providers, "mover": mover }));
        return;
    }
    for (number, provider) in providers.iter().enumerate() {
        if number > 0 {
            println!();
        }
        println!("{}: {}", provider.name, provider.about);
        for (who, instructions) in by_doer(provider) {
            println!("  {who}: {}", instructions.join(", "));
        }
        match &provider.figures {
            Err(reason) => println!("  not measured: {reason}"),
            Ok(figures) => print_figures(figures),
        }
    }
    match queue {
        Ok(queue) => println!("\nmover: the device of the DSA work queue {queue} copies"),
        Err(reason) => println!("\nmover: the processor copies; no DSA work queue: {reason}"),
    }
}

/// The instructions of each doer, in the order of the table.
fn by_doer(provider: &Info) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    for (doer, (name, _)) in provider.does.iter().zip(INSTRUCTIONS) {
        let who = info::describe(*doer);
        match groups.iter_mut().find(|group| group.0 == who) {
            Some(group) => group.1.push(name),
            None => groups.push((who, vec![name])),
        }
    }
    groups
}

fn print_figures(figures: &[Figure]) {
    println!("  instruction      bytes       p50 us       p99 us        MB/s    measured");
    for figure in figures {
        println!(
            "  {:<12} {:>9} {:>12.3} {:>12.3} {:>11.0} {:>11}",
            figure.instruction,
            figure.bytes,
            figure.p50_ns as f64 / 1e3,
            figure.p99_ns as f64 / 1e3,
            figure.megabytes_per_second,
            figure.count,
        );
    }
}

fn as_json(provider: &Info) -> Value {
    let does = provider.does.iter().zip(INSTRUCTIONS).map(|(doer, (name, _))| {
        ((*name).to_owned(), json!({ "by": info::describe(*doer), "native": doer.is_native() }))
    });
    let mut all = json!({
        "name": provider.name, "about": provider.about,
        "instructions": does.collect::<serde_json::Map<String, Value>>(),
    });
    match &provider.figures {
        Err(reason) => all["not_measured"] = json!(reason),
        Ok(figures) => {
            let figure = |figure: &Figure| {
                json!({
                    "instruction": figure.instruction, "bytes": figure.bytes, "count": figure.count,
                    "p50_ns": figure.p50_ns, "p99_ns": figure.p99_ns,
                    "megabytes_per_second": figure.megabytes_per_second,
                })
            };
            all["figures"] = figures.iter().map(figure).collect();
        }
    }
    all
}
