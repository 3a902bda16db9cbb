//! `farhold bench htap`: TPC-C and CH-benCHmark's queries at the same time, on one node.
//!
//! ```text
//!  this process                                        node process, new for each measurement
//!    Q query clients ── check, query, check, … ──────► SQL ──┐
//!    W freshness clients ── number, number, … ───────► SQL ──┤ rows, their columns, a journal
//!    commands ── run, stop ──────────────────────────► W workers: TPC-C
//! ```
//!
//! Source: Milkai, Chronis, Gaffney, Guo, Patel and Yu, "How Good is My HTAP System?" (SIGMOD 2022). As in that paper, the report has the *throughput
//! frontier*, transactions and queries a second for several mixes of W workers and Q clients; and *freshness*, the age of the oldest commit that a query does
//! not see. A query here waits for its columns until it sees everything that was acknowledged before it began, so its age is 0. The bench measures these waits,
//! and [`clients`] checks that no acknowledged commit is ever missed.
//!
//! Each mix is measured on a node that keeps columns and on one that does not, in turn; both have a journal, or neither. Each measurement loads a new node, because
//! transactions make the tables grow, which slows queries down.

mod clients;
mod report;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use self::clients::{Answered, Clients};
use super::args::{ColumnsLevel, DurabilityArgs, HtapArgs, Mix, ReplicaArgs};
use super::clock::Stopwatch;
use super::cluster::{Cluster, ClusterPlan, QueryPlan};
use super::demo::{self, MixPlan};
use super::event::{Columns, Command, Event, Interval};
use super::signal::Endings;

/// The interval at which the state of the columns is checked.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The number of checks without a change after which merging counts as complete.
const LOOKS_AT_REST: u32 = 4;
/// The longest time until then.
const BUILD_SECONDS_MAX: f64 = 600.0;

/// The source that queries read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Columns of the large tables.
    Columns,
    /// Rows only, for comparison.
    Rows,
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Self::Columns => "columns",
            Self::Rows => "rows",
        }
    }
}

/// One measurement.
struct Measured {
    mix: Mix,
    kept: Kept,
    /// The number of its run, from 0.
    run: u32,
    seconds: f64,
    transactions: Interval,
    answered: Answered,
    /// From a snapshot to a view of a table's columns: (upper bound of a bucket in nanoseconds, views).
    waits_ns: Vec<(u64, u64)>,
    /// Tables that were read by rows at the end, because their columns had no room.
    without_room: usize,
}

/// Runs the command; the error is for a person.
pub async fn run(args: &HtapArgs, json: bool) -> Result<(), String> {
    durability(args, args.journal.as_deref()).check()?;
    let mut endings = Endings::register()?;
    let measured = tokio::select! {
        measured = measure_all(args, json) => measured?,
        signal = endings.next() => return Err(format!("stopped by {signal}")),
    };
    if json {
        println!("{}", report::as_json(args, &measured));
    } else {
        report::print_summary(args, &measured);
    }
    let missed: usize = measured.iter().map(|one| one.answered.missed.len()).sum();
    match measured.iter().find_map(|one| one.answered.missed.first()) {
        Some(first) => Err(format!(
            "{missed} times a query missed a transaction that was acknowledged before the query began: {first}"
        )),
        None => Ok(()),
    }
}

async fn measure_all(args: &HtapArgs, json: bool) -> Result<Vec<Measured>, String> {
    if !json {
        report::print_head(args);
    }
    let mut all = Vec::new();
    for run in 0..args.runs {
        for &mix in &args.mixes {
            // The order alternates, because the machine's speed drifts.
            let order = if run % 2 == 0 { [Kept::Columns, Kept::Rows] } else { [Kept::Rows, Kept::Columns] };
            for kept in order {
                let measured =
                    measure(args, mix, kept, run).await.map_err(|why| format!("{mix} on {}: {why}", kept.name()))?;
                if json {
                    println!("{}", json!({ "event": "measured", "of": report::one_as_json(&measured) }));
                } else {
                    report::print_one(&measured);
                }
                all.push(measured);
            }
        }
    }
    Ok(all)
}

/// Loads a new node, and runs the mix on it.
async fn measure(args: &HtapArgs, mix: Mix, kept: Kept, run: u32) -> Result<Measured, String> {
    // Declared first, so that the node ends before its journal is removed.
    let journal = JournalDirectory::new(args.journal.as_deref());
    let mut cluster = Cluster::start(&plan(args, mix, kept, journal.path()))?;
    let listen = cluster.ready().await?.ok_or("the node does not answer SQL")?;
    demo::create_and_load(&mut cluster, |_, _| {}).await?;
    let url = format!("postgresql://farhold@{listen}/farhold");
    let clients = Clients::connect(&url, mix, kept == Kept::Columns).await?;
    if kept == Kept::Columns {
        wait_for_columns(&mut cluster).await?;
    }
    if args.warm_up > 0 {
        run_mix(&mut cluster, &clients, mix, args.warm_up).await?;
    }
    let before = columns(&mut cluster).await?;
    let (transactions, mut answered) = run_mix(&mut cluster, &clients, mix, args.seconds).await?;
    let after = columns(&mut cluster).await?;
    answered.missed.extend(clients.check_at_rest().await?);
    let waits_ns = since(&after.waits_ns, &before.waits_ns);
    if kept == Kept::Columns && mix.clients > 0 && waits_ns.is_empty() {
        return Err("no query has read columns: no table is large enough, or --seconds is too small".to_owned());
    }
    let (seconds, without_room) = (f64::from(args.seconds), after.without_room);
    Ok(Measured { mix, kept, run, seconds, transactions, answered, waits_ns, without_room })
}

fn plan(args: &HtapArgs, mix: Mix, kept: Kept, journal: &Path) -> ClusterPlan {
    let columns = match kept {
        Kept::Columns => ColumnsLevel::Auto,
        Kept::Rows => ColumnsLevel::None,
    };
    ClusterPlan {
        nodes: 1,
        // A worker loads the rows even if no worker runs transactions.
        workers: mix.workers.max(1),
        warehouses: warehouses(args),
        in_flight: args.in_flight,
        memory: args.memory,
        populate: 0,
        remote_item_percent: 1,
        remote_payment_percent: 15,
        seed: args.seed,
        pin: args.pin,
        listen: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        ch: true,
        without: None,
        provider: "shm".to_owned(),
        replicas: ReplicaArgs::NONE,
        durability: durability(args, has_journal(args).then_some(journal)),
        queries: QueryPlan { columns, column_memory: args.column_memory, threads: query_threads(args, mix) },
    }
}

fn durability(args: &HtapArgs, journal: Option<&Path>) -> DurabilityArgs {
    DurabilityArgs { level: args.durability, journal: journal.map(Path::to_owned), assume_persistence: false }
}

fn has_journal(args: &HtapArgs) -> bool {
    durability(args, None).has_journal()
}

/// Warehouses of each measurement: the same for all mixes.
fn warehouses(args: &HtapArgs) -> u32 {
    let workers_max = args.mixes.iter().map(|mix| mix.workers).max().unwrap_or(1);
    match args.warehouses {
        0 => u32::from(workers_max).max(1),
        warehouses => warehouses,
    }
}

fn query_threads(args: &HtapArgs, mix: Mix) -> u16 {
    let left = processors().saturating_sub(usize::from(mix.workers)).max(1);
    if args.query_threads == 0 { u16::try_from(left).unwrap_or(u16::MAX) } else { args.query_threads }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Runs the mix's workers and clients.
async fn run_mix(
    cluster: &mut Cluster,
    clients: &Clients,
    mix: Mix,
    seconds: u32,
) -> Result<(Interval, Answered), String> {
    let running = clients.start(f64::from(seconds));
    let transactions = if mix.workers > 0 {
        demo::run_mix(cluster, MixPlan { seconds, tick_ms: 1_000, failure: None }, |_, _| {}).await?.total
    } else {
        tokio::time::sleep(Duration::from_secs(seconds.into())).await;
        Interval::default()
    };
    Ok((transactions, running.end().await?))
}

/// Waits until all wanted columns have been built and merging is complete.
async fn wait_for_columns(cluster: &mut Cluster) -> Result<(), String> {
    let clock = Stopwatch::start();
    let (mut at_rest, mut delta_rows) = (0, u64::MAX);
    while at_rest < LOOKS_AT_REST {
        if clock.seconds() > BUILD_SECONDS_MAX {
            return Err(format!("the columns were not built and merged within {BUILD_SECONDS_MAX} s"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        let now = columns(cluster).await?;
        if now.without_room > 0 {
            let tables = now.without_room;
            return Err(format!("the columns of {tables} tables have no room; --column-memory gives them more"));
        }
        at_rest = if now.building == 0 && now.delta_rows == delta_rows { at_rest + 1 } else { 0 };
        delta_rows = now.delta_rows;
    }
    Ok(())
}

/// The state of the node's columns. It cannot be read while the node's workers run, because the node then accepts no other command.
async fn columns(cluster: &mut Cluster) -> Result<Columns, String> {
    cluster.tell(0, &Command::Columns)?;
    loop {
        if let (0, Event::Columns(columns)) = cluster.next().await? {
            return Ok(columns);
        }
    }
}

/// The difference between `after` and `before`, earlier counts of the same buckets.
fn since(after: &[(u64, u64)], before: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let earlier = |bound: u64| before.iter().find(|bucket| bucket.0 == bound).map_or(0, |bucket| bucket.1);
    let more = after.iter().map(|&(bound, count)| (bound, count.saturating_sub(earlier(bound))));
    more.filter(|bucket| bucket.1 > 0).collect()
}

/// A directory for one node's journal. The node makes it; it is removed when this is dropped.
struct JournalDirectory(PathBuf);

impl JournalDirectory {
    fn new(below: Option<&Path>) -> Self {
        let below = below.map_or_else(std::env::temp_dir, Path::to_owned);
        Self(below.join(format!("farhold-htap-{}", std::process::id())))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for JournalDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // it is missing if the node has not started
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_a_span() {
        assert_eq!(since(&[(1, 5), (2, 3), (9, 1)], &[(1, 5), (2, 1)]), [(2, 2), (9, 1)]);
        assert_eq!(since(&[(1, 5)], &[(1, 5)]), []);
    }
}
