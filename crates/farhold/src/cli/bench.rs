//! `farhold bench`: the workloads, measured.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use farhold_bench::workload::ch;
use serde_json::{Value, json};

use super::args::{ChArgs, DurabilityArgs, ReplicaArgs, TpccArgs};
use super::check;
use super::client;
use super::clock::Stopwatch;
use super::cluster::{Cluster, ClusterPlan, QueryPlan};
use super::demo::{self, MixPlan, Outcome};
use super::event::{Command, Event, Memory, quantile};
use super::failure::{Failure, LostNode};
use super::plot;
use super::signal::Endings;

/// `farhold bench tpcc`.
pub async fn tpcc(args: &TpccArgs, json: bool) -> Result<(), String> {
    args.durability.check()?;
    let workers = u32::from(args.nodes) * u32::from(args.workers);
    let plan = ClusterPlan {
        nodes: args.nodes,
        workers: args.workers,
        warehouses: if args.warehouses == 0 { workers } else { args.warehouses.max(workers) },
        in_flight: args.in_flight,
        memory: args.memory,
        populate: args.populate,
        remote_item_percent: args.remote_item_percent,
        remote_payment_percent: args.remote_payment_percent,
        seed: args.seed,
        pin: args.pin,
        listen: args.audit.then(|| SocketAddr::from(([127, 0, 0, 1], 0))),
        ch: false,
        without: None,
        provider: args.provider.clone(),
        replicas: args.replicas.clone(),
        durability: args.durability.clone(),
        queries: QueryPlan::DEFAULT,
    };
    let failure = failure_of(args)?;
    // Fine enough to see a failure of some tens of milliseconds.
    let tick_ms = if args.plot.is_some() || failure.is_some() { 20 } else { 1_000 };
    let mix = MixPlan { seconds: args.seconds, tick_ms, failure };
    let mut endings = Endings::register()?;
    let mut cluster = Cluster::start(&plan)?;
    let outcome = tokio::select! {
        outcome = run_tpcc(&mut cluster, &plan, mix, args.audit, json) => outcome,
        signal = endings.next() => Err(format!("stopped by {signal}")),
    };
    drop(cluster);
    let (memory_after_load, outcome) = outcome?;
    let copies = match plan.replicas.replicas {
        1 => "no replication".to_owned(),
        replicas => format!("{replicas} copies of each row"),
    };
    let copies = copies + if args.durability.has_journal() { ", with a journal" } else { "" };
    if let Some(path) = &args.plot {
        let title = format!("TPC-C, {} nodes x {} workers, {copies}", plan.nodes, plan.workers);
        let rates = plot::rates(&outcome.samples, PLOT_BIN, f64::from(args.seconds));
        let picture = plot::svg(&title, &rates, PLOT_BIN, &outcome.marks);
        std::fs::write(path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let recovery = failure.and_then(|failure| match failure {
        Failure::One(lost) => Some(recovery_of(&outcome, &lost, args.seconds, plan.replicas.lease_ms)),
        Failure::All(_) => None,
    });
    let total = &outcome.total;
    if json {
        let memory = |m: Memory| json!({ "data": m.data, "used": m.used });
        println!(
            "{}",
            json!({
                "workload": "tpcc",
                "configuration": {
                    "nodes": plan.nodes, "workers_per_node": plan.workers, "warehouses": plan.warehouses,
                    "in_flight": plan.in_flight, "seconds": args.seconds, "seed": plan.seed, "pinned": plan.pin,
                    "remote_item_percent": plan.remote_item_percent,
                    "remote_payment_percent": plan.remote_payment_percent, "provider": plan.provider,
                    "replicas": plan.replicas.replicas, "lease_ms": plan.replicas.lease_ms,
                    "optimistic": !plan.replicas.pessimistic, "journal": args.durability.has_journal(),
                },
                "acknowledged_before_all_were_killed": outcome.before.iter().map(|t| t.commits).sum::<u64>(),
                "marks": outcome.marks.iter().map(|mark| json!({ "seconds": mark.at, "what": mark.what })).collect::<Vec<_>>(),
                "recovery": recovery, "given_up_because_unavailable": total.unavailable,
                "transactions_per_second": total.rate(total.commits),
                "new_orders_per_second": total.rate(total.new_orders),
                "abort_percent": total.abort_percent(),
                "p50_us": total.quantile_us(0.5), "p99_us": total.quantile_us(0.99), "p999_us": total.quantile_us(0.999),
                "transactions": outcome.transactions.iter().map(|t| json!({
                    "name": t.name, "commits": t.commits, "aborts": t.aborts, "rollbacks": t.rollbacks,
                    "p50_us": quantile(&t.latency_us, 0.5), "p99_us": quantile(&t.latency_us, 0.99),
                })).collect::<Vec<Value>>(),
                "memory_after_load": memory(memory_after_load), "memory_after_run": memory(outcome.memory),
            })
        );
    } else {
        println!(
            "TPC-C, {} nodes x {} workers, {} warehouses, provider {}, {copies}, {} s",
            plan.nodes, plan.workers, plan.warehouses, plan.provider, args.seconds
        );
        outcome.marks.iter().for_each(|mark| demo::tell_mark(mark, false));
        if let Some(Failure::All(_)) = failure {
            let before = outcome.before.iter().map(|t| t.commits).sum::<u64>();
            println!("  before that {before} new-orders and payments were acknowledged; below is what came after it");
        }
        if let Some(recovery) = &recovery {
            println!("  before, after, and back to 90 % of that: {recovery}");
        }
        demo::print_transactions(&outcome);
        println!(
            "  p50 {}, p99 {}, p99.9 {}; {:.2} % of attempts lost a conflict",
            demo::micros(total.quantile_us(0.5)),
            demo::micros(total.quantile_us(0.99)),
            demo::micros(total.quantile_us(0.999)),
            total.abort_percent()
        );
        println!(
            "  memory after the load: {} MB of rows and keys in {} MB ({:.2}x)",
            memory_after_load.data >> 20,
            memory_after_load.used >> 20,
            memory_after_load.used as f64 / memory_after_load.data.max(1) as f64
        );
    }
    Ok(())
}

/// Seconds of a point of the picture.
const PLOT_BIN: f64 = 0.05;

fn failure_of(args: &TpccArgs) -> Result<Option<Failure>, String> {
    let seconds = |value: f64| {
        let fits = value > 0.0 && value < f64::from(args.seconds);
        if fits {
            return Ok(Duration::from_secs_f64(value));
        }
        Err(format!("a failure after {value} s is not within the run of {} s; change it or --seconds", args.seconds))
    };
    if let Some(after) = args.kill_all_after {
        if !args.durability.has_journal() {
            return Err("--kill-all-after needs --durability disk or nvm: the rows come back from journals".to_owned());
        }
        return Ok(Some(Failure::All(seconds(after)?)));
    }
    let Some(after) = args.kill_after else { return Ok(None) };
    let node = usize::from(args.kill_node.unwrap_or(args.nodes - 1));
    if args.replicas.replicas < 2 {
        return Err("--kill-after needs --replicas 2 or more: without them the killed node's rows are lost".to_owned());
    }
    if node >= usize::from(args.nodes) {
        return Err(format!(
            "--kill-node {node} of --nodes {}: nodes are numbered 0 to {}",
            args.nodes,
            args.nodes - 1
        ));
    }
    if args.audit && node == 0 {
        let why = "--kill-node 0: node 0 answers the questions of --audit; kill another node, or leave --audit out";
        return Err(why.to_owned());
    }
    let return_after = args.return_after.map(seconds).transpose()?;
    Ok(Some(Failure::One(LostNode { node, after: seconds(after)?, freeze: args.freeze, return_after })))
}

/// Throughput before and well after a failure, and the time from the end of the dead node's lease until throughput reaches 90 %
/// of the latter. The others may act on a death before the lease ends, if the kernel reports it. The time counts from the lease's
/// end all the same, and is 0 then. Bins of 50 ms.
fn recovery_of(outcome: &Outcome, failure: &LostNode, seconds: u32, lease_ms: u64) -> Value {
    let rates = plot::rates(&outcome.samples, PLOT_BIN, f64::from(seconds));
    let struck = outcome.marks.first().map_or(failure.after.as_secs_f64(), |mark| mark.at);
    let bin_of = |at: f64| ((at / PLOT_BIN) as usize).min(rates.len());
    let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    let before = mean(&rates[bin_of(struck / 2.0)..bin_of(struck)]);
    // The throughput of the survivors: the last part of the run before a node returns, without the very end.
    let until = failure.return_after.map_or(f64::from(seconds) - 0.5, |after| after.as_secs_f64());
    let after = mean(&rates[bin_of(struck + (until - struck) * 0.5)..bin_of(until)]);
    let wanted = after * 0.9;
    // It is back for good: no later half second is lower.
    let window = (0.5 / PLOT_BIN) as usize;
    let from = bin_of(struck);
    let back = (from..bin_of(until).saturating_sub(window))
        .find(|at| rates[*at] >= wanted && mean(&rates[*at..*at + window]) >= wanted)
        .map(|at| (at as f64 * PLOT_BIN - struck).max(0.0));
    let lowest =
        rates[from..bin_of(struck + 1.0).max(from + 1).min(rates.len())].iter().copied().fold(f64::MAX, f64::min);
    json!({
        "before": before, "after": after, "lowest": lowest, "seconds_to_90_percent": back,
        "seconds_after_lease": back.map(|back| (back - lease_ms as f64 / 1e3).max(0.0)),
    })
}

async fn run_tpcc(
    cluster: &mut Cluster,
    plan: &ClusterPlan,
    mix: MixPlan,
    audit: bool,
    json: bool,
) -> Result<(Memory, Outcome), String> {
    let listen = cluster.ready().await?;
    let loaded = demo::create_and_load(cluster, |_, _| {}).await?;
    let outcome = demo::run_mix(cluster, mix, |_, _| {}).await?;
    if let (true, Some(listen)) = (audit, outcome.listen.as_ref().or(listen.as_ref())) {
        let connection = client::connect(&format!("postgresql://farhold@{listen}/farhold")).await?;
        let conditions = check::conditions(&connection.client, json).await?;
        let lost = check::lost_transactions(&connection.client, plan.warehouses, &outcome).await?;
        if conditions.violated > 0 || !lost.is_empty() {
            return Err(format!("{} conditions do not hold; lost: {lost:?}", conditions.violated));
        }
    }
    Ok((loaded.memory, outcome))
}

/// `farhold bench ch`.
pub async fn ch(args: &ChArgs, json: bool) -> Result<(), String> {
    args.durability.check()?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = ClusterPlan {
        nodes: 1,
        workers: cores.min(64) as u8,
        warehouses: args.warehouses,
        in_flight: 1,
        memory: args.memory,
        populate: 0,
        remote_item_percent: 1,
        remote_payment_percent: 15,
        seed: args.seed,
        pin: false,
        listen: Some(args.listen),
        ch: true,
        without: None,
        provider: "shm".into(),
        replicas: ReplicaArgs::NONE,
        durability: args.durability.clone(),
        queries: QueryPlan { columns: args.columns, ..QueryPlan::DEFAULT },
    };
    let mut endings = Endings::register()?;
    let mut cluster = Cluster::start(&plan)?;
    let without = args.without.is_some().then(|| ClusterPlan {
        without: args.without.clone(),
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        durability: DurabilityArgs::NONE,
        ..plan
    });
    let mut without = without.map(|plan| Cluster::start(&plan)).transpose()?;
    let outcome = tokio::select! {
        outcome = run_ch(&mut cluster, without.as_mut(), args, json) => outcome,
        signal = endings.next() => if args.stay { Ok(()) } else { Err(format!("stopped by {signal}")) },
    };
    drop((cluster, without));
    outcome
}

/// Loads a cluster; where it answers SQL.
async fn load_ch(cluster: &mut Cluster) -> Result<String, String> {
    let listen = cluster.ready().await?.ok_or("the node does not answer SQL")?;
    demo::create_and_load(cluster, |_, _| {}).await?;
    Ok(listen)
}

async fn run_ch(
    cluster: &mut Cluster,
    mut without: Option<&mut Cluster>,
    args: &ChArgs,
    json: bool,
) -> Result<(), String> {
    let listen = load_ch(cluster).await?;
    let url = |listen: &str| format!("postgresql://farhold@{listen}/farhold");
    if json {
        println!("{}", json!({ "event": "listening", "listen": listen }));
    } else {
        println!("loaded {} warehouses; SQL at {}", args.warehouses, url(&listen));
    }
    if args.stay {
        return std::future::pending().await;
    }
    let connection = client::connect(&url(&listen)).await?;
    let without = match &mut without {
        Some(cluster) => Some(client::connect(&url(&load_ch(cluster).await?)).await?),
        None => None,
    };
    // What each query is compared with, and its key in the JSON.
    let (heading, key) = match &args.without {
        Some(rule) => (format!("without {rule}"), "without_ms"),
        None => ("arrow".to_owned(), "arrow_ms"),
    };
    let compares = args.against_arrow || without.is_some();
    let mut lines = Vec::new();
    if !json {
        println!("query        ms{}", if compares { format!("  {heading} ms  ratio") } else { String::new() });
    }
    for (number, sql) in ch::QUERIES.iter().enumerate() {
        let (mut ours, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let mut rows = 0;
        for run in 0..args.runs.max(1) {
            let of = async |client: &_| -> Result<(f64, usize), String> {
                let clock = Stopwatch::start();
                let answers = client::query(client, sql)
                    .await
                    .map_err(|error| format!("query {}: {}", number + 1, client::describe(&error)))?;
                Ok((clock.seconds() * 1e3, answers.iter().map(|a| a.rows.len()).sum()))
            };
            // Which one is first changes: the second finds the processor's caches full of the other's rows.
            let mut other = None;
            if let Some(without) = without.as_ref().filter(|_| run % 2 == 1) {
                other = Some(of(&without.client).await?.0);
            }
            let (ms, count) = of(&connection.client).await?;
            rows = count;
            if let Some(without) = without.as_ref().filter(|_| run % 2 == 0) {
                other = Some(of(&without.client).await?.0);
            }
            if args.against_arrow {
                other = Some(arrow_ms(cluster, sql).await?);
            }
            ours.push(ms);
            if let Some(other) = other {
                others.push(other);
                ratios.push(ms / other);
            }
        }
        let (ours, other, ratio) = (median(&mut ours), median(&mut others), median(&mut ratios));
        if !json {
            print!("Q{:<5} {ours:>9.1}", number + 1);
            if compares {
                print!(" {other:>9.1} {ratio:>6.2}");
            }
            println!();
            let _ = std::io::stdout().flush();
        }
        lines.push(json!({ "query": number + 1, "ms": ours, key: other, "ratio": ratio, "rows": rows }));
    }
    if json {
        println!("{}", json!({ "workload": "ch", "warehouses": args.warehouses, "runs": args.runs, "queries": lines }));
    } else {
        let sum = |key: &str| lines.iter().filter_map(|l| l[key].as_f64()).sum::<f64>();
        println!("all    {:>9.1} ms", sum("ms"));
        if compares {
            let compared = if without.is_some() { heading } else { "DataFusion over Arrow memory".to_owned() };
            println!("{compared} {:.1} ms, ratio {:.2}", sum(key), sum("ms") / sum(key));
        }
    }
    Ok(())
}

/// The query in DataFusion over the node's rows in Arrow memory.
async fn arrow_ms(cluster: &mut Cluster, sql: &str) -> Result<f64, String> {
    cluster.tell(0, &Command::ArrowQuery { sql: sql.to_owned() })?;
    loop {
        if let (0, Event::ArrowAnswer { microseconds }) = cluster.next().await? {
            return Ok(microseconds as f64 / 1e3);
        }
    }
}

/// The median; 0 of nothing.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
