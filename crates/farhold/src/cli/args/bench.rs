//! The flags of `farhold bench` and of its workloads.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{ColumnsLevel, DurabilityArgs, DurabilityLevel, RULES, ReplicaArgs, parse_bytes, parse_listen};

/// Flags of `farhold bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Which workload.
    #[command(subcommand)]
    pub workload: Workload,
}

/// The workloads of `farhold bench`.
#[derive(Debug, Clone, Subcommand)]
pub enum Workload {
    /// Run TPC-C: the full mix, in a closed loop without think time.
    Tpcc(TpccArgs),
    /// Run the 22 CH-benCHmark queries over TPC-C's rows, without writers.
    Ch(ChArgs),
    /// Run TPC-C and the 22 CH-benCHmark queries at the same time, on one node, with and without columns. Report both rates for each mix and how
    /// long queries wait for the columns, and check that queries see everything that was acknowledged.
    Htap(HtapArgs),
    /// Get remote rows by one-sided reads, while other threads put rows.
    Kv(KvArgs),
    /// Run SmallBank: six short transactions on accounts, on nodes in this process, with an audit of the money at the end.
    Smallbank(SmallbankArgs),
}

/// Flags of `farhold bench smallbank`.
#[derive(Debug, Clone, Args)]
pub struct SmallbankArgs {
    /// Number of nodes, all in this process.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// Number of nodes that have workers; these workers also read and write the rows of the other nodes. 0 = all nodes.
    #[arg(long, default_value_t = 0)]
    pub working_nodes: u8,
    /// Workers (threads) of each node that has workers.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Transactions in flight on each worker.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u16,
    /// Percentage of two-customer transactions whose second customer is on another node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub distributed_percent: u32,
    /// Percentage of transactions on hot accounts.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub hot_percent: u32,
    /// Number of accounts on each node.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2..=50_000_000))]
    pub accounts: u32,
    /// Number of hot accounts on each node.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub hot: u32,
    /// Copies of each row in total, each on a different node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub replicas: u8,
    /// Make rows visible only after they are replicated, instead of at once.
    #[arg(long)]
    pub pessimistic: bool,
    /// Duration of the measurement, in seconds.
    #[arg(long, short = 's', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Bind worker n to processor n.
    #[arg(long)]
    pub pin: bool,
}

/// Flags of `farhold bench kv`.
#[derive(Debug, Clone, Args)]
pub struct KvArgs {
    /// Length of a value in bytes, rounded up to whole words. Several lengths run one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 1024, 8192], value_parser = clap::value_parser!(u32).range(8..=32_768))]
    pub sizes: Vec<u32>,
    /// Number of rows.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Threads that get rows.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub readers: u16,
    /// Threads that put rows.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub writers: u16,
    /// Gets in one batch.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: u16,
    /// How writers put values: by a message to the home node, or by a transaction of the writer.
    #[arg(long, value_enum, default_value_t = PutBy::Message)]
    pub put: PutBy,
    /// Choose keys by Zipf's law with this exponent, between 0 and 1 (YCSB: 0.99). Default: uniformly.
    #[arg(long, value_parser = parse_theta)]
    pub zipf: Option<f64>,
    /// Duration of the measurement of each length, in seconds.
    #[arg(long, short = 's', default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Seed of the choice of keys.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Also run the same gets against a Redis that listens on this port of 127.0.0.1, with as many clients and as many keys per pipeline. The keys are loaded
    /// into Redis and stay there.
    #[arg(long, value_name = "PORT")]
    pub redis_port: Option<u16>,
    /// How readers and writers reach the node of the rows: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
}

/// How writers put values in `farhold bench kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PutBy {
    /// The home node of the key writes.
    Message,
    /// The writer locks, validates and writes the row remotely.
    Transaction,
}

impl PutBy {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Transaction => "transaction",
        }
    }
}

/// Flags of `farhold bench tpcc`.
#[derive(Debug, Clone, Args)]
pub struct TpccArgs {
    /// Number of node processes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// Workers (threads) of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Warehouses in total. 0 = one per worker.
    #[arg(long, short = 'w', default_value_t = 0)]
    pub warehouses: u32,
    /// Duration of the measurement, in seconds.
    #[arg(long, short = 's', default_value_t = 10)]
    pub seconds: u32,
    /// Transactions in flight on each worker.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u16,
    /// Memory of each node's region.
    #[arg(long, default_value = "3G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Amount of that memory to allocate at the start, and as much again for the mirror of each other node.
    #[arg(long, default_value = "0", value_parser = parse_bytes)]
    pub populate: u64,
    /// Percentage of new-order items from another warehouse.
    #[arg(long, default_value_t = 1)]
    pub remote_item_percent: u8,
    /// Percentage of payments by a customer of another warehouse.
    #[arg(long, default_value_t = 15)]
    pub remote_payment_percent: u8,
    /// Seed of the population and of the mix.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Bind worker n to processor n. A node process keeps its other threads off the processors of its workers, as far as there are others.
    #[arg(long)]
    pub pin: bool,
    /// How nodes reach each other: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Replication.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Kill a node (kill -9) this many seconds after the start of the run. Requires --replicas 2 or more.
    #[arg(long, value_name = "SECONDS")]
    pub kill_after: Option<f64>,
    /// Number of the node to kill. Default: the last node.
    #[arg(long, value_name = "NODE", requires = "kill_after")]
    pub kill_node: Option<u8>,
    /// Stop the node instead (SIGSTOP). It pauses beyond its lease and still believes that it is a member, so the others must kill it.
    #[arg(long, requires = "kill_after")]
    pub freeze: bool,
    /// Restart the killed node this many seconds after the start of the run. The others admit it while they go on.
    #[arg(long, value_name = "SECONDS", requires = "kill_after")]
    pub return_after: Option<f64>,
    /// Durability of a commit.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Kill every node (kill -9) this many seconds after the start of the run, discard the memory of their rows as a power failure does, restart them from
    /// their journals, and go on. Requires --durability disk or nvm.
    #[arg(long, value_name = "SECONDS", conflicts_with = "kill_after")]
    pub kill_all_after: Option<f64>,
    /// Draw throughput over time into this SVG file, with failure and recovery marked.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// At the end, check the specification's consistency conditions and that every acknowledged transaction is in the tables.
    #[arg(long)]
    pub audit: bool,
}

/// Flags of `farhold bench ch`.
#[derive(Debug, Clone, Args)]
pub struct ChArgs {
    /// Warehouses to load.
    #[arg(long, short = 'w', default_value_t = 1)]
    pub warehouses: u32,
    /// Number of runs of each query. The median is reported.
    #[arg(long, default_value_t = 3)]
    pub runs: u32,
    /// Memory of the node's region.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Seed of the population.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Also run each query in DataFusion over the same rows in Arrow memory, in turn.
    #[arg(long, conflicts_with = "without")]
    pub against_arrow: bool,
    /// Also run each query on a second node, in turn, that plans without this rule of the joins (`farhold_join.`).
    #[arg(long, value_name = "RULE", conflicts_with = "durability", value_parser = RULES)]
    pub without: Option<String>,
    /// Durability.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Which tables are also kept as columns. The queries do not wait until the columns are built.
    #[arg(long, value_enum, default_value_t = ColumnsLevel::None)]
    pub columns: ColumnsLevel,
    /// Load the rows, then serve them until Ctrl-C instead of running the queries.
    #[arg(long)]
    pub stay: bool,
    /// Address at which the node serves the PostgreSQL protocol. Port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:0", value_parser = parse_listen)]
    pub listen: SocketAddr,
}

/// Flags of `farhold bench htap`.
#[derive(Debug, Clone, Args)]
pub struct HtapArgs {
    /// Mixes to measure, separated by commas: W:Q is W workers that run TPC-C and Q clients that run queries, all in closed loops. W:0 shows what the columns
    /// cost transactions; 0:Q shows the rate of the queries alone.
    #[arg(long, value_name = "W:Q", value_delimiter = ',', default_values = ["1:0", "1:1", "0:1"], value_parser = parse_mix)]
    pub mixes: Vec<Mix>,
    /// Warehouses to load for each measurement. 0 = one for each worker of the largest mix.
    #[arg(long, short = 'w', default_value_t = 0)]
    pub warehouses: u32,
    /// Duration of each measurement, in seconds. Each client should have time for all 22 queries.
    #[arg(long, short = 's', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Warm-up before each measurement, in seconds: the same load, not counted.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub warm_up: u32,
    /// Number of measurements of each mix with columns, and the same number without, alternating. Each loads a new node.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Transactions in flight on each worker. Each transaction waits for the disk when it commits.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..))]
    pub in_flight: u16,
    /// Query threads of the node. 0 = one for each processor that the workers of the mix do not use, but at least one.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=1024))]
    pub query_threads: u16,
    /// Memory of the node's region.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Memory that the columns may use, in addition to --memory.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub column_memory: u64,
    /// What a commit survives: `memory` keeps no journal, and workers hand rows to the columns themselves; `disk` keeps one, which the
    /// columns are fed from.
    #[arg(long, value_name = "LEVEL", value_enum, default_value_t = DurabilityLevel::Disk)]
    pub durability: DurabilityLevel,
    /// Directory in which each measurement creates a directory for its journal, and removes it again. Default: the system's directory for temporary files. On
    /// an in-memory file system, commits do not wait for a disk.
    #[arg(long)]
    pub journal: Option<PathBuf>,
    /// Seed of the population and of the mix.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Bind worker n to processor n. A node process keeps its other threads off the processors of its workers, as far as there are others.
    #[arg(long)]
    pub pin: bool,
}

/// How many run transactions and queries at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Workers that run TPC-C.
    pub workers: u8,
    /// Clients that run queries.
    pub clients: u8,
}

impl std::fmt::Display for Mix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Padded as a text is.
        f.pad(&format!("{}:{}", self.workers, self.clients))
    }
}

/// Workers, and clients, of a mix.
const MIX_MAX: u8 = 64;

/// Parses `1:2`.
fn parse_mix(text: &str) -> Result<Mix, String> {
    let number = |text: &str| text.parse().ok().filter(|number| *number <= MIX_MAX);
    let parsed = text.split_once(':').and_then(|(workers, clients)| Some((number(workers)?, number(clients)?)));
    match parsed {
        None => Err(format!("`{text}` is not a mix; write W:Q with at most {MIX_MAX} each, for example 1:1")),
        Some((0, 0)) => Err("a mix needs a worker or a client".to_owned()),
        Some((workers, clients)) => Ok(Mix { workers, clients }),
    }
}

/// An exponent of Zipf's law.
fn parse_theta(text: &str) -> Result<f64, String> {
    let theta: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if theta > 0.0 && theta < 1.0 { Ok(theta) } else { Err(format!("`{text}` is not between 0 and 1")) }
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use clap::Parser;

    #[test]
    fn exponents_and_lists() {
        assert_eq!(parse_theta("0.99"), Ok(0.99));
        assert!(parse_theta("1").unwrap_err().contains("between"));
        assert!(parse_theta("much").unwrap_err().contains("not a number"));
        let cli = Cli::parse_from(["farhold", "bench", "kv", "--sizes", "128,4096"]);
        let Command::Bench(BenchArgs { workload: Workload::Kv(args) }) = cli.command else { panic!("{cli:?}") };
        assert_eq!((args.sizes, args.put), (vec![128, 4096], PutBy::Message));
    }

    #[test]
    fn mixes() {
        assert_eq!(parse_mix("2:0"), Ok(Mix { workers: 2, clients: 0 }));
        assert!(parse_mix("0:0").unwrap_err().contains("a worker or a client"));
        for wrong in ["1", "1:", "a:1", "65:1", "1:1:1"] {
            assert!(parse_mix(wrong).unwrap_err().contains("W:Q"), "{wrong}");
        }
        let of = |flags: &[&str]| {
            let cli = Cli::parse_from(["farhold", "bench", "htap"].iter().chain(flags));
            let Command::Bench(BenchArgs { workload: Workload::Htap(args) }) = cli.command else { panic!("{cli:?}") };
            args.mixes.iter().map(Mix::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((of(&[]), of(&["--mixes", "4:0,0:2"])), ("1:0 1:1 0:1".to_owned(), "4:0 0:2".to_owned()));
    }
}
