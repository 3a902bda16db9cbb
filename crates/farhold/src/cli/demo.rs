//! `farhold demo`: node processes run TPC-C while a SQL client runs analytical queries over the same rows; then SQL checks that
//! no transaction was lost.
//!
//! ```text
//!  demo (this process) ──pipes──> node 0 (SQL, workers)   node 1 (workers)   node 2 (workers)
//!     │ SQL client ──PostgreSQL protocol──^ │                   │                  │
//!     └ progress, checks, summary           └── shm: each process maps every node's rows ──┘
//! ```

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::args::{DemoArgs, DurabilityArgs, ReplicaArgs};
use super::check;
use super::client;
use super::clock::Stopwatch;
use super::cluster::{Cluster, ClusterPlan, QueryPlan};
use super::event::{Command, Event, Interval, Memory, TypeTotals, merge_buckets, quantile};
use super::failure::{Failure, LOOK_EVERY, LostNode, Mark, Story};
use super::signal::Endings;

/// Analytical queries that run while the mix does. The first must return no row at any moment, because a query sees one
/// consistent state.
const QUESTIONS: [(&str, &str); 4] = [
    (
        "warehouses whose total differs from their districts'",
        "SELECT count(*) FROM warehouse JOIN (SELECT d_w_id, sum(d_ytd) AS ytd FROM district GROUP BY d_w_id) AS d \
         ON w_id = d_w_id WHERE w_ytd <> ytd",
    ),
    (
        "orders whose lines are not all there",
        "SELECT count(*) FROM orders LEFT JOIN (SELECT ol_w_id, ol_d_id, ol_o_id, count(*) AS lines FROM order_line \
         GROUP BY ol_w_id, ol_d_id, ol_o_id) AS l ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id \
         WHERE o_ol_cnt <> coalesce(lines, 0)",
    ),
    ("revenue of all order lines", "SELECT sum(ol_amount) FROM order_line"),
    (
        "the state whose customers owe most",
        "SELECT c_state || ' owes ' || CAST(sum(c_balance) AS VARCHAR) FROM customer GROUP BY c_state \
         ORDER BY sum(c_balance) DESC, c_state LIMIT 1",
    ),
];

/// What the SQL client saw.
#[derive(Debug, Default)]
struct Answers {
    count: u64,
    inconsistent: u64,
    slowest_ms: u64,
    last: String,
    failed: Option<String>,
}

/// What a run adds up to, over all nodes.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What each node did, tick by tick.
    pub samples: Vec<Sample>,
    /// What happened to the cluster.
    pub marks: Vec<Mark>,
    /// Nodes that were started again.
    pub returned: Vec<usize>,
    /// Some node died before it reported all that it had acknowledged.
    pub died: bool,
    /// What had been acknowledged when all nodes were killed, by type; not in `transactions`.
    pub before: Vec<TypeTotals>,
    /// Where SQL is answered since then, if it is.
    pub listen: Option<String>,
    /// All transactions.
    pub total: Interval,
    /// By type.
    pub transactions: Vec<TypeTotals>,
    /// Memory at the end.
    pub memory: Memory,
}

impl Outcome {
    /// Whether a node is to report how the run ended for it.
    fn expects(&self, node: usize) -> bool {
        !self.returned.contains(&node)
    }
}

/// How long after the end of a run a cluster may take to become idle.
const PATIENCE_SECONDS: f64 = 120.0;

/// What a load adds up to, over all nodes.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Rows.
    pub rows: u64,
    /// Memory.
    pub memory: Memory,
}

/// Runs the demo; the error is for a person.
pub async fn run(args: &DemoArgs, json: bool) -> Result<(), String> {
    /// The end of a process is known without the lease. With more work than processors, threads that renew leases were seen to
    /// stop for more than a second.
    const LEASE_MS: u64 = 2_000;
    let warehouses = args.warehouses.max(u32::from(args.nodes) * u32::from(args.workers));
    let plan = ClusterPlan {
        nodes: args.nodes,
        workers: args.workers,
        warehouses,
        in_flight: 1,
        memory: args.memory,
        populate: 0,
        remote_item_percent: 1,
        remote_payment_percent: 15,
        seed: args.seed,
        pin: false,
        listen: Some(args.listen),
        ch: false,
        without: None,
        provider: args.provider.clone(),
        replicas: ReplicaArgs {
            replicas: if args.kill { args.nodes.min(3) } else { 1 },
            lease_ms: LEASE_MS,
            ..ReplicaArgs::NONE
        },
        durability: DurabilityArgs::NONE,
        queries: QueryPlan::DEFAULT,
    };
    if args.kill && args.nodes < 2 {
        return Err("--kill needs --nodes 2 or more: the others take over the killed node's rows".to_owned());
    }
    let whole = Stopwatch::start();
    let mut endings = Endings::register()?;
    let mut cluster = Cluster::start(&plan)?;
    let outcome = tokio::select! {
        outcome = drive(&mut cluster, args, &plan, json) => outcome,
        signal = endings.next() => {
            Err(format!("stopped by {signal}; the processes have ended and their shared memory is removed"))
        }
    };
    drop(cluster);
    outcome?;
    if !json {
        let program = std::env::args().next().unwrap_or_else(|| "farhold".to_owned());
        println!("\nDone in {:.0} s. Next: `{program} serve`, then `psql -h 127.0.0.1 -p 5433`.", whole.seconds());
    }
    Ok(())
}

async fn drive(cluster: &mut Cluster, args: &DemoArgs, plan: &ClusterPlan, json: bool) -> Result<(), String> {
    if !json {
        println!(
            "Farhold demo: {} node processes x {} worker, {} TPC-C warehouses, seed {}",
            plan.nodes, plan.workers, plan.warehouses, plan.seed
        );
        println!(
            "memory instructions: provider {}, regions in {} (ordinary DRAM)",
            plan.provider,
            cluster.dir().display()
        );
    }
    let url = load(cluster, json).await?;
    if !json {
        println!("SQL at {url} (psql works while this runs)\n");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(Mutex::new(Answers::default()));
    let asking = tokio::spawn(ask(url.clone(), stop.clone(), answers.clone()));
    let half = Duration::from_secs_f64(f64::from(args.seconds) / 2.0);
    let lost = LostNode { node: usize::from(plan.nodes) - 1, after: half / 2, freeze: false, return_after: Some(half) };
    let failure = args.kill.then_some(Failure::One(lost));
    let run = MixPlan { seconds: args.seconds, tick_ms: 1_000, failure };
    let outcome = mix(cluster, run, &answers, json).await?;
    stop.store(true, Ordering::Relaxed);
    asking.await.map_err(|error| format!("the SQL client has failed: {error}"))?;

    let connection = client::connect(&url).await?;
    let conditions = check::conditions(&connection.client, json).await?;
    let lost = check::lost_transactions(&connection.client, plan.warehouses, &outcome).await?;
    summary(&outcome, &answers.lock().expect("no holder panics"), conditions, &lost, json);
    if conditions.violated > 0 || !lost.is_empty() || answers.lock().expect("no holder panics").inconsistent > 0 {
        return Err("the database is not consistent; see above".to_owned());
    }
    if args.stay {
        println!("\nServing until Ctrl-C: psql {url}");
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// Starts the nodes, creates the tables, loads with progress; returns the URL of the database.
async fn load(cluster: &mut Cluster, json: bool) -> Result<String, String> {
    let listen = cluster.ready().await?.ok_or("no node of the cluster answers SQL")?;
    let clock = Stopwatch::start();
    let live = std::io::stdout().is_terminal() && !json;
    let loaded = create_and_load(cluster, |rows, total| {
        if live {
            print!("\rloading {} {:>3} %", bar(rows, total), rows * 100 / total.max(1));
            let _ = std::io::stdout().flush();
        }
    })
    .await?;
    let Memory { data, used } = loaded.memory;
    let (rows, seconds) = (loaded.rows, clock.seconds());
    if json {
        println!(
            "{}",
            json!({ "event": "loaded", "rows": rows, "seconds": seconds, "data_bytes": data, "used_bytes": used })
        );
    } else {
        println!(
            "{}loaded {rows} rows in {seconds:.1} s: {} MB of rows and keys in {} MB of memory ({:.2}x)",
            if live { "\r" } else { "" },
            data >> 20,
            used >> 20,
            used as f64 / data.max(1) as f64
        );
    }
    Ok(format!("postgresql://farhold@{listen}/farhold"))
}

/// Creates the tables and loads every warehouse; `show` gets (rows so far, rows in all).
pub async fn create_and_load(cluster: &mut Cluster, mut show: impl FnMut(u64, u64)) -> Result<Loaded, String> {
    cluster.tell(0, &Command::Create)?;
    while !matches!(cluster.next().await?, (0, Event::Created)) {}
    cluster.tell_all(&Command::Load)?;
    let mut progress = vec![(0, 0); cluster.node_count()];
    let of_nodes = cluster
        .all(
            |event| if let Event::Loaded { rows, memory } = event { Some((*rows, *memory)) } else { None },
            |node, event| {
                if let Event::Loading { rows, rows_total } = event {
                    progress[node] = (*rows, *rows_total);
                    show(progress.iter().map(|p| p.0).sum(), progress.iter().map(|p| p.1).sum());
                }
            },
        )
        .await?;
    let mut loaded = Loaded::default();
    for (rows, memory) in of_nodes {
        loaded.rows += rows;
        loaded.memory.data += memory.data;
        loaded.memory.used += memory.used;
    }
    Ok(loaded)
}

/// Runs the mix and shows it live.
async fn mix(cluster: &mut Cluster, plan: MixPlan, answers: &Mutex<Answers>, json: bool) -> Result<Outcome, String> {
    if !json {
        println!("  time      tx/s  new-orders/s  aborts     p50     p99   p99.9   SQL answers over the same rows");
    }
    let clock = Stopwatch::start();
    let mut shown = 0;
    let mut told = 0;
    let outcome = run_mix(cluster, plan, |interval, marks| {
        shown += 1;
        for mark in &marks[told..] {
            tell_mark(mark, json);
        }
        told = marks.len();
        show_second(shown, interval, &answers.lock().expect("no holder panics"), clock.seconds(), json);
    })
    .await?;
    // The run continues without load until the node is back.
    outcome.marks[told..].iter().for_each(|mark| tell_mark(mark, json));
    Ok(outcome)
}

/// How the mix is run.
#[derive(Debug, Clone, Copy)]
pub struct MixPlan {
    /// Its duration.
    pub seconds: u32,
    /// Milliseconds between two samples.
    pub tick_ms: u64,
    /// What happens meanwhile.
    pub failure: Option<Failure>,
}

/// What a node did in a span of time.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// The span's end, in seconds from the beginning of the run.
    pub at: f64,
    /// Its length in seconds.
    pub seconds: f64,
    /// Committed transactions.
    pub commits: u64,
}

/// Runs the mix on every node; `show` gets each tick of the whole cluster, and what has happened so far.
pub async fn run_mix(
    cluster: &mut Cluster,
    plan: MixPlan,
    mut show: impl FnMut(&Interval, &[Mark]),
) -> Result<Outcome, String> {
    cluster.tell_all(&Command::Run { seconds: plan.seconds, tick_ms: plan.tick_ms })?;
    let mut story = Story::begin(plan.failure);
    let nodes = cluster.node_count();
    let mut outcome = Outcome::default();
    let mut finished: Vec<Option<(Vec<TypeTotals>, Interval, Memory)>> = vec![None; nodes];
    let mut ticked: Vec<Interval> = vec![Interval::default(); nodes];
    let mut shown = Interval::default();
    let mut next_show = plan.tick_ms as f64 / 1e3;
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let patience = f64::from(plan.seconds) + PATIENCE_SECONDS;
    while (0..nodes).any(|node| cluster.is_wanted(node) && outcome.expects(node) && finished[node].is_none())
        || !story.is_over()
    {
        if story.seconds() > patience {
            return Err(format!("the cluster has not recovered {PATIENCE_SECONDS} s after the run: {:?}", story.marks));
        }
        let (node, event) = tokio::select! {
            event = cluster.next() => event?,
            _ = looks.tick(), if plan.failure.is_some() => {
                if story.step(cluster)? {
                    outcome.died = true;
                    outcome.before = std::mem::take(&mut ticked).iter().flat_map(told_by_ticks).collect();
                    ticked = vec![Interval::default(); nodes];
                    outcome.listen = cluster.ready().await?;
                    story.all_returned();
                    let left = f64::from(plan.seconds) - story.seconds();
                    cluster.tell_all(&Command::Run { seconds: left.max(1.0) as u32, tick_ms: plan.tick_ms })?;
                }
                continue;
            }
        };
        match event {
            Event::Tick(interval) => {
                let seconds = interval.elapsed_us as f64 / 1e6;
                outcome.samples.push(Sample { at: story.seconds(), seconds, commits: interval.commits });
                ticked[node].add(&interval);
                shown.add(&interval);
                if story.seconds() >= next_show {
                    // Spans of several nodes, side by side.
                    shown.elapsed_us = plan.tick_ms * 1_000;
                    show(&std::mem::take(&mut shown), &story.marks);
                    next_show += plan.tick_ms as f64 / 1e3;
                }
            }
            Event::Finished { transactions, total, memory } => finished[node] = Some((transactions, total, memory)),
            // The node is back; it no longer takes part in the run.
            Event::Ready { .. } => outcome.returned.push(node),
            _ => {}
        }
    }
    outcome.marks = story.marks;
    // A killed node has reported what it had acknowledged until its last tick.
    for (finished, ticked) in finished.iter_mut().zip(&ticked).filter(|(finished, _)| finished.is_none()) {
        *finished = Some((told_by_ticks(ticked).into(), Interval::default(), Memory::default()));
        outcome.died = true;
    }
    let finished = finished.into_iter().flatten();
    for (transactions, total, memory) in finished {
        outcome.total.add(&total);
        outcome.memory.data += memory.data;
        outcome.memory.used += memory.used;
        for of_type in transactions {
            match outcome.transactions.iter_mut().find(|t| t.name == of_type.name) {
                Some(sum) => {
                    sum.commits += of_type.commits;
                    sum.aborts += of_type.aborts;
                    sum.rollbacks += of_type.rollbacks;
                    merge_buckets(&mut sum.latency_us, &of_type.latency_us);
                }
                None => outcome.transactions.push(of_type),
            }
        }
    }
    Ok(outcome)
}

/// What a killed node had acknowledged until its last tick.
fn told_by_ticks(ticked: &Interval) -> [TypeTotals; 2] {
    [("new-order", ticked.new_orders), ("payment", ticked.payments)].map(|(name, commits)| TypeTotals {
        name: name.to_owned(),
        commits,
        ..TypeTotals::default()
    })
}

/// Shows what happened to the cluster.
pub fn tell_mark(mark: &Mark, json: bool) {
    if json {
        println!("{}", json!({ "event": "mark", "seconds": mark.at, "what": mark.what }));
    } else {
        println!("  ▼ {:.3} s: {}", mark.at, mark.what);
    }
}

fn show_second(second: u32, interval: &Interval, answers: &Answers, elapsed: f64, json: bool) {
    if json {
        println!(
            "{}",
            json!({
                "event": "second", "seconds": elapsed, "transactions_per_second": interval.rate(interval.commits),
                "new_orders_per_second": interval.rate(interval.new_orders), "abort_percent": interval.abort_percent(),
                "p50_us": interval.quantile_us(0.5), "p99_us": interval.quantile_us(0.99),
                "p999_us": interval.quantile_us(0.999), "sql_answers": answers.count,
            })
        );
        return;
    }
    println!(
        "{second:>4} s {:>9.0} {:>13.0} {:>6.2}% {:>7} {:>7} {:>7}   {}: {}",
        interval.rate(interval.commits),
        interval.rate(interval.new_orders),
        interval.abort_percent(),
        micros(interval.quantile_us(0.5)),
        micros(interval.quantile_us(0.99)),
        micros(interval.quantile_us(0.999)),
        answers.count,
        answers.failed.as_ref().unwrap_or(&answers.last)
    );
}

/// Runs the queries in turn until told to stop.
async fn ask(url: String, stop: Arc<AtomicBool>, answers: Arc<Mutex<Answers>>) {
    let failed = |message: String| answers.lock().expect("no holder panics").failed = Some(message);
    let connection = match client::connect(&url).await {
        Ok(connection) => connection,
        Err(message) => return failed(message),
    };
    for (index, (title, sql)) in QUESTIONS.iter().enumerate().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let clock = Stopwatch::start();
        match client::query_patiently(&connection.client, sql).await {
            Err(error) => return failed(client::describe(&error)),
            Ok(results) => {
                let value = results.first().and_then(|r| r.rows.first()).and_then(|r| r[0].clone());
                let value = value.unwrap_or_else(|| "NULL".to_owned());
                let milliseconds = (clock.seconds() * 1e3) as u64;
                let mut answers = answers.lock().expect("no holder panics");
                answers.count += 1;
                answers.slowest_ms = answers.slowest_ms.max(milliseconds);
                if index < 2 && value != "0" {
                    answers.inconsistent += 1;
                }
                answers.last = format!("{title}: {value} ({milliseconds} ms)");
            }
        }
        // Queries at a person's pace, so that the mix keeps most of a small machine.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

fn summary(outcome: &Outcome, answers: &Answers, conditions: check::Conditions, lost: &[String], json: bool) {
    let total = &outcome.total;
    if json {
        let types: Vec<_> = outcome
            .transactions
            .iter()
            .map(|t| {
                json!({ "name": t.name, "commits": t.commits, "aborts": t.aborts, "rollbacks": t.rollbacks,
                        "p50_us": quantile(&t.latency_us, 0.5), "p99_us": quantile(&t.latency_us, 0.99),
                        "p999_us": quantile(&t.latency_us, 0.999) })
            })
            .collect();
        println!(
            "{}",
            json!({
                "event": "summary", "transactions_per_second": total.rate(total.commits),
                "new_orders_per_second": total.rate(total.new_orders), "commits": total.commits,
                "abort_percent": total.abort_percent(), "transactions": types, "sql_answers": answers.count,
                "sql_inconsistent": answers.inconsistent, "conditions_held": conditions.held,
                "conditions_violated": conditions.violated, "lost": lost,
                "data_bytes": outcome.memory.data, "used_bytes": outcome.memory.used,
            })
        );
        return;
    }
    println!("\nSummary");
    print_transactions(outcome);
    println!(
        "  SQL: {} analytical answers while the mix ran, slowest {} ms, {} saw an inconsistent state",
        answers.count, answers.slowest_ms, answers.inconsistent
    );
    if let Some(message) = &answers.failed {
        println!("  SQL: the client stopped early: {message}");
    }
    println!(
        "  Consistency: {} of {} conditions of the TPC-C specification hold",
        conditions.held,
        conditions.held + conditions.violated
    );
    if lost.is_empty() {
        println!("  Nothing lost: the rows hold every order and payment that a worker saw committed");
    }
    for line in lost {
        println!("  LOST: {line}");
    }
    println!(
        "  Memory: {} MB of rows and keys in {} MB ({:.2}x)",
        outcome.memory.data >> 20,
        outcome.memory.used >> 20,
        outcome.memory.used as f64 / outcome.memory.data.max(1) as f64
    );
}

/// The table of transaction types.
pub fn print_transactions(outcome: &Outcome) {
    let total = &outcome.total;
    println!("  transaction     committed      tx/s   aborts  rolled back      p50      p99    p99.9");
    for t in &outcome.transactions {
        println!(
            "  {:<14} {:>10} {:>9.0} {:>8} {:>12} {:>8} {:>8} {:>8}",
            t.name,
            t.commits,
            total.rate(t.commits),
            t.aborts,
            t.rollbacks,
            micros(quantile(&t.latency_us, 0.5)),
            micros(quantile(&t.latency_us, 0.99)),
            micros(quantile(&t.latency_us, 0.999)),
        );
    }
    println!(
        "  {:<14} {:>10} {:>9.0}   ({} new-orders/s; closed loop, no think time: not comparable with audited tpmC)",
        "all",
        total.commits,
        total.rate(total.commits),
        total.rate(total.new_orders) as u64
    );
}

fn bar(done: u64, total: u64) -> String {
    let full = (done * 30 / total.max(1)).min(30) as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(30 - full))
}

/// Microseconds as a person reads them.
pub fn micros(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..100_000 => format!("{:.1} ms", us as f64 / 1e3),
        100_000..10_000_000 => format!("{} ms", us / 1000),
        _ => format!("{} s", us / 1_000_000),
    }
}
