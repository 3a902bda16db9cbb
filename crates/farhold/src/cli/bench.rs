//! `farhold bench`: the workloads, measured.

use std::io::Write;

use farhold_bench::workload::ch;
use serde_json::{Value, json};

use super::args::{ChArgs, TpccArgs};
use super::client;
use super::clock::Stopwatch;
use super::cluster::{Cluster, ClusterPlan};
use super::demo::{self, Outcome};
use super::event::{Command, Event, Memory, quantile};

/// `farhold bench tpcc`.
pub async fn tpcc(args: &TpccArgs, json: bool) -> Result<(), String> {
    let workers = u32::from(args.nodes) * u32::from(args.workers);
    let plan = ClusterPlan {
        nodes: args.nodes,
        workers: args.workers,
        warehouses: if args.warehouses == 0 { workers } else { args.warehouses.max(workers) },
        in_flight: args.in_flight,
        memory: args.memory,
        remote_item_percent: args.remote_item_percent,
        remote_payment_percent: args.remote_payment_percent,
        seed: args.seed,
        pin: args.pin,
        listen: None,
        ch: false,
        provider: args.provider.clone(),
    };
    let mut cluster = Cluster::start(&plan)?;
    let outcome = tokio::select! {
        outcome = run_tpcc(&mut cluster, args.seconds) => outcome,
        _ = tokio::signal::ctrl_c() => Err("stopped by Ctrl-C".to_owned()),
    };
    drop(cluster);
    let (memory_after_load, outcome) = outcome?;
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
                    "remote_payment_percent": plan.remote_payment_percent, "provider": plan.provider, "replicas": 1,
                },
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
            "TPC-C, {} nodes x {} workers, {} warehouses, provider {}, no replication, {} s",
            plan.nodes, plan.workers, plan.warehouses, plan.provider, args.seconds
        );
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

async fn run_tpcc(cluster: &mut Cluster, seconds: u32) -> Result<(Memory, Outcome), String> {
    cluster.ready().await?;
    let loaded = demo::create_and_load(cluster, |_, _| {}).await?;
    let outcome = demo::run_mix(cluster, seconds, |_| {}).await?;
    Ok((loaded.memory, outcome))
}

/// `farhold bench ch`.
pub async fn ch(args: &ChArgs, json: bool) -> Result<(), String> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let plan = ClusterPlan {
        nodes: 1,
        workers: cores.min(64) as u8,
        warehouses: args.warehouses,
        in_flight: 1,
        memory: args.memory,
        remote_item_percent: 1,
        remote_payment_percent: 15,
        seed: args.seed,
        pin: false,
        listen: Some(args.listen),
        ch: true,
        provider: "shm".into(),
    };
    let mut cluster = Cluster::start(&plan)?;
    let outcome = tokio::select! {
        outcome = run_ch(&mut cluster, args, json) => outcome,
        _ = tokio::signal::ctrl_c() => if args.stay { Ok(()) } else { Err("stopped by Ctrl-C".to_owned()) },
    };
    drop(cluster);
    outcome
}

async fn run_ch(cluster: &mut Cluster, args: &ChArgs, json: bool) -> Result<(), String> {
    let listen = cluster.ready().await?.ok_or("the node does not answer SQL")?;
    demo::create_and_load(cluster, |_, _| {}).await?;
    let url = format!("postgresql://farhold@{listen}/farhold");
    if json {
        println!("{}", json!({ "event": "listening", "listen": listen }));
    } else {
        println!("loaded {} warehouses; SQL at {url}", args.warehouses);
    }
    if args.stay {
        return std::future::pending().await;
    }
    let connection = client::connect(&url).await?;
    let mut lines = Vec::new();
    if !json {
        println!("query        ms{}", if args.against_arrow { "  arrow ms  ratio" } else { "" });
    }
    for (number, sql) in ch::QUERIES.iter().enumerate() {
        let (mut ours, mut arrow) = (Vec::new(), Vec::new());
        let mut rows = 0;
        for _ in 0..args.runs.max(1) {
            let clock = Stopwatch::start();
            let answers = client::query(&connection.client, sql)
                .await
                .map_err(|error| format!("query {}: {}", number + 1, client::describe(&error)))?;
            ours.push(clock.seconds() * 1e3);
            rows = answers.iter().map(|a| a.rows.len()).sum();
            if args.against_arrow {
                cluster.tell(0, &Command::ArrowQuery { sql: (*sql).to_owned() })?;
                loop {
                    if let (0, Event::ArrowAnswer { microseconds }) = cluster.next().await? {
                        arrow.push(microseconds as f64 / 1e3);
                        break;
                    }
                }
            }
        }
        let (ours, arrow) = (median(&mut ours), median(&mut arrow));
        if !json {
            print!("Q{:<5} {ours:>9.1}", number + 1);
            if args.against_arrow {
                print!(" {arrow:>9.1} {:>6.2}", ours / arrow);
            }
            println!();
            let _ = std::io::stdout().flush();
        }
        lines.push(json!({ "query": number + 1, "ms": ours, "arrow_ms": arrow, "rows": rows }));
    }
    if json {
        println!("{}", json!({ "workload": "ch", "warehouses": args.warehouses, "runs": args.runs, "queries": lines }));
    } else {
        let sum = |key: &str| lines.iter().filter_map(|l| l[key].as_f64()).sum::<f64>();
        println!("all    {:>9.1} ms", sum("ms"));
        if args.against_arrow {
            println!(
                "DataFusion over Arrow memory {:.1} ms, ratio {:.2}",
                sum("arrow_ms"),
                sum("ms") / sum("arrow_ms")
            );
        }
    }
    Ok(())
}

/// The median; 0 of nothing.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
