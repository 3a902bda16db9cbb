//! `farhold bench smallbank`: six short transactions on accounts, and the audit of the money.

use farhold_bench::workload::smallbank::Scale;
use farhold_bench::workload::smallbank::input::Kind;
use farhold_bench::workload::smallbank::run::{self, Outcome, Plan};
use serde_json::{Value, json};

use super::args::SmallbankArgs;

/// Runs the workload and prints its results.
pub fn run(args: &SmallbankArgs, json: bool) -> Result<(), String> {
    let plan = plan(args)?;
    let outcome = run::run(&plan).map_err(|error| error.to_string())?;
    if json {
        println!("{}", as_json(&plan, &outcome));
    } else {
        print(&plan, &outcome);
    }
    Ok(())
}

fn plan(args: &SmallbankArgs) -> Result<Plan, String> {
    if args.replicas > args.nodes {
        return Err(format!(
            "--replicas {} of --nodes {}: each copy of a row needs a node of its own",
            args.replicas, args.nodes
        ));
    }
    if args.working_nodes > args.nodes {
        return Err(format!(
            "--working-nodes {} of --nodes {}: there are fewer nodes than that",
            args.working_nodes, args.nodes
        ));
    }
    Ok(Plan {
        scale: Scale { nodes: args.nodes, accounts: args.accounts, hot: args.hot.min(args.accounts) },
        working_nodes: if args.working_nodes == 0 { args.nodes } else { args.working_nodes },
        workers: args.workers,
        in_flight: args.in_flight,
        distributed_percent: args.distributed_percent,
        hot_percent: args.hot_percent,
        replicas: args.replicas,
        optimistic: !args.pessimistic,
        span_ns: u64::from(args.seconds) * 1_000_000_000,
        seed: args.seed,
        pin: args.pin,
        provider: "shm".to_owned(),
        hardware: true,
    })
}

fn as_json(plan: &Plan, outcome: &Outcome) -> Value {
    let totals = &outcome.totals;
    let commits: serde_json::Map<String, Value> =
        Kind::ALL.iter().zip(totals.commits).map(|(kind, commits)| (kind.name().to_owned(), json!(commits))).collect();
    json!({
        "workload": "smallbank",
        "configuration": {
            "nodes": plan.scale.nodes, "accounts": plan.scale.accounts, "hot": plan.scale.hot,
            "working_nodes": plan.working_nodes, "workers": plan.workers, "in_flight": plan.in_flight,
            "distributed_percent": plan.distributed_percent, "hot_percent": plan.hot_percent, "replicas": plan.replicas,
            "optimistic": plan.optimistic, "seed": plan.seed, "pinned": plan.pin, "provider": "shm",
        },
        "transactions_per_second": outcome.per_second(),
        "refused": totals.refused, "conflicts": totals.conflicts,
        "p50_ns": totals.latency.quantile_ns(0.5), "p99_ns": totals.latency.quantile_ns(0.99),
        "commits": commits,
    })
}

fn print(plan: &Plan, outcome: &Outcome) {
    let totals = &outcome.totals;
    let copies = match plan.replicas {
        1 => "no replication".to_owned(),
        copies => format!("{copies} copies, {} order", if plan.optimistic { "optimistic" } else { "pessimistic" }),
    };
    println!(
        "SmallBank, {} of {} nodes x {} workers, {} % distributed, provider shm, {copies}",
        plan.working_nodes, plan.scale.nodes, plan.workers, plan.distributed_percent
    );
    for (kind, commits) in Kind::ALL.iter().zip(totals.commits) {
        println!("  {:<18} {commits:>12} committed", kind.name());
    }
    println!(
        "  {:.0} transactions/s; {} refused for want of money, {} attempts lost a conflict; p50 {} ns, p99 {} ns",
        outcome.per_second(),
        totals.refused,
        totals.conflicts,
        totals.latency.quantile_ns(0.5),
        totals.latency.quantile_ns(0.99)
    );
    println!("  audit: every cent is there");
}
