//! The command line: every flag of the `farhold` binary, with the help texts that teach it.

#![allow(clippy::doc_markdown, reason = "these are the texts of --help, which would show the backticks")]

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "farhold",
    version,
    about = "An in-memory database for far memory: serializable transactions and SQL over the same live rows",
    long_about = "Farhold keeps rows in memory regions that other processes read and write by explicit memory \
instructions. It runs serializable transactions across nodes and answers SQL over the same live rows, through the \
PostgreSQL protocol.\n\nStart here:\n  farhold demo                         three nodes on this machine, TPC-C and SQL at once\n  \
farhold serve                        a database on 127.0.0.1:5433; then: psql -h 127.0.0.1 -p 5433\n  \
farhold sql -c 'SELECT 1'            one statement, or a prompt without -c\n  \
farhold bench tpcc --workers 1       measure this machine"
)]
pub struct Cli {
    /// Machine-readable output: one JSON object a line on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Copies of rows on other nodes.
#[derive(Debug, Clone, Args)]
pub struct ReplicaArgs {
    /// Copies of each row, the first included, each on another node: committed transactions survive the loss of all but one of
    /// these nodes. 1 = none.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub replicas: u8,
    /// Milliseconds for which a node may go unheard before the others go on without it.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub lease_ms: u64,
    /// Make rows visible only when they are replicated: to measure what it costs.
    #[arg(long)]
    pub pessimistic: bool,
}

impl ReplicaArgs {
    /// One copy of each row.
    pub const NONE: Self = Self { replicas: 1, lease_ms: 100, pessimistic: false };
}

/// What the binary does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Three node processes on this machine run TPC-C while SQL reads the same rows; then proves that nothing was lost.
    Demo(DemoArgs),
    /// Serve one node of a database over the PostgreSQL protocol.
    Serve(ServeArgs),
    /// A SQL prompt, or statements by -c or from standard input.
    Sql(SqlArgs),
    /// Measure a workload.
    Bench(BenchArgs),
    /// A cluster whose rows are replicated: who is there, who serves what, what recovery is doing.
    Cluster(ClusterArgs),
    /// What carries memory instructions on this machine.
    Fabric(FabricArgs),
    /// Load a Parquet or CSV file into a table.
    Import(ImportArgs),
    /// Check a database that holds TPC-C: the specification's consistency conditions, by SQL.
    Check(CheckArgs),
    /// One node of a demo or bench, driven by its parent over standard input (internal).
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Flags of `farhold cluster`.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// What of the cluster.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What `farhold cluster` does.
#[derive(Debug, Clone, Subcommand)]
pub enum ClusterCommand {
    /// Configuration, roles, how far copies lag behind, and what recovery is doing.
    Status(StatusArgs),
}

/// Flags of `farhold cluster status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Directory of the cluster, as given to `farhold serve`. This or --register is needed.
    #[arg(long, short = 'd')]
    pub dir: Option<PathBuf>,
    /// Register of the cluster, as given to `farhold serve`, where it is not in --dir. An etcd has what nodes say of themselves, too; --dir says what those
    /// of this host do while it does not answer.
    #[arg(long)]
    pub register: Option<String>,
    /// Show it again and again, this many milliseconds apart, until Ctrl-C.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(10..))]
    pub watch: Option<u64>,
}

/// Flags of `farhold demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Node processes to start.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// TPC-C warehouses in all; about 110 MB each, plus what the run adds. At least one a node.
    #[arg(long, short = 'w', default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub warehouses: u32,
    /// Seconds that the transaction mix runs.
    #[arg(long, short = 's', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Workers (threads) a node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Where node 0 answers the PostgreSQL protocol; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:5433", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Memory of each node's region, e.g. 1300M or 2G; pages are used as they are touched.
    #[arg(long, default_value = "1300M", value_parser = parse_bytes)]
    pub memory: u64,
    /// Seed of the population and of the mix.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Keep serving after the summary until Ctrl-C, so that psql can look around.
    #[arg(long)]
    pub stay: bool,
    /// How nodes reach each other: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Keep three copies of each row, kill the last node during the run (kill -9), show how the others go on, and start it again.
    #[arg(long)]
    pub kill: bool,
}

/// Flags of `farhold serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Directory of the cluster's regions. Left out: a new one in shared memory, removed at the end. A path on a DAX or
    /// CXL mount works as well. Rows live as long as the files do.
    #[arg(long, short = 'd')]
    pub dir: Option<PathBuf>,
    /// Address of the PostgreSQL protocol. Anything but loopback needs --password-file.
    #[arg(long, short = 'l', default_value = "127.0.0.1:5433", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Folder for a Unix socket, which costs clients of this machine less than TCP: psql -h FOLDER.
    #[arg(long)]
    pub unix_socket_dir: Option<PathBuf>,
    /// Where the nodes of a cluster with replicas agree who belongs to it: file:///DIRECTORY (--dir otherwise), or, for many hosts,
    /// etcd://HOST:PORT[,HOST:PORT...]/PREFIX in a build with the feature `etcd`.
    #[arg(long)]
    pub register: Option<String>,
    /// What a commit survives.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// This node's number, from 0.
    #[arg(long, default_value_t = 0)]
    pub node: u8,
    /// Nodes of the cluster; those of one host use the same directory.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// How nodes reach each other: shm, for processes of one host, or libfabric:NAME for a network (tcp;ofi_rxm, shm,
    /// verbs;ofi_rxm, efa). Nodes on other hosts, each with a directory of its own, are named behind it:
    /// 'libfabric:tcp;ofi_rxm?listen=10.0.0.1:7470&peer=1@10.0.0.2:7470&secret-file=PATH', one peer for each other node and
    /// the same secret for all.
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Memory of this node's region, e.g. 512M or 4G; pages are used as they are touched.
    #[arg(long, short = 'm', default_value = "4G", value_parser = parse_bytes)]
    pub memory: u64,
    /// How much of it gets memory from the system at the start, and as much for the copy of each other node's rows, so that no
    /// transaction waits for it later.
    #[arg(long, default_value = "0", value_parser = parse_bytes)]
    pub populate: u64,
    /// Free the rows of this node that were half written when its process ended. They are lost; without this flag they stay, and
    /// statements that meet them fail (XX001). Take it for one start, when the log has named them.
    #[arg(long)]
    pub forget_half_written: bool,
    /// Memory that all running queries together may hold, e.g. 512M or 4G.
    #[arg(long, default_value = "2G", value_parser = parse_bytes)]
    pub query_memory: u64,
    /// How much of it joins may hold; what does not fit is spilled. Left out: all of it.
    #[arg(long, value_parser = parse_bytes)]
    pub join_memory: Option<u64>,
    /// Directory that joins spill to. Left out: the system's for temporary files.
    #[arg(long)]
    pub spill_dir: Option<PathBuf>,
    /// Copies of rows on other nodes.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Threads that talk to clients. 0 = two a core. There are at most 245, with --replicas 2 or more 38.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Bind these threads to processors: more statements a second where the machine does little else.
    #[arg(long)]
    pub pin: bool,
    /// File of users, one `name:SCRAM-SHA-256$...` a line (as PostgreSQL stores it), or `name:plain password`.
    #[arg(long)]
    pub password_file: Option<PathBuf>,
    /// TLS certificate (PEM).
    #[arg(long, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// TLS private key (PEM).
    #[arg(long, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// What a commit survives.
#[derive(Debug, Clone, Args)]
pub struct DurabilityArgs {
    /// What a commit survives: `replicated` the end of processes, `disk` and `nvm` a power cut of every node. Together with --replicas, both.
    #[arg(id = "durability", long = "durability", value_name = "LEVEL", value_enum, default_value_t = DurabilityLevel::Replicated)]
    pub level: DurabilityLevel,
    /// Directory of the journal and the checkpoints, the same for all nodes; for nvm on a DAX mount.
    #[arg(long, required_if_eq_any([("durability", "disk"), ("durability", "nvm")]))]
    pub journal: Option<PathBuf>,
    /// Take it for granted that flushed cache lines below --journal are durable, though its file system does not promise it.
    #[arg(long)]
    pub assume_persistence: bool,
}

impl DurabilityArgs {
    /// No journal.
    pub const NONE: Self = Self { level: DurabilityLevel::Replicated, journal: None, assume_persistence: false };

    /// Flags that would have no effect are refused.
    pub fn check(&self) -> Result<(), String> {
        if self.journal.is_some() && !self.has_journal() {
            return Err("--journal needs --durability disk or nvm: without that no journal is kept".to_owned());
        }
        if self.assume_persistence && self.level != DurabilityLevel::Nvm {
            return Err("--assume-persistence is for --durability nvm".to_owned());
        }
        Ok(())
    }

    /// Whether nodes keep journals.
    pub fn has_journal(&self) -> bool {
        self.level != DurabilityLevel::Replicated
    }
}

/// Levels of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityLevel {
    /// In the memory of as many nodes as there are replicas.
    Replicated,
    /// In a journal on persistent memory.
    Nvm,
    /// In a journal on disk.
    Disk,
}

/// How a client command reaches its database.
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    /// A PostgreSQL URL, e.g. `postgresql://user:password@127.0.0.1:5433/farhold`.
    #[arg(long, short = 'C', default_value = "postgresql://farhold@127.0.0.1:5433/farhold", env = "FARHOLD_URL")]
    pub connect: String,
}

/// Flags of `farhold sql`.
#[derive(Debug, Clone, Args)]
pub struct SqlArgs {
    /// How to reach the database.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Statements to run instead of a prompt; where standard input is no terminal they are read from there.
    #[arg(long, short = 'c')]
    pub command: Option<String>,
}

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
    /// TPC-C: the full mix, closed loop without think time.
    Tpcc(TpccArgs),
    /// The 22 CH-benCHmark queries over TPC-C's rows, without writers.
    Ch(ChArgs),
    /// Gets of far rows by one-sided reads, with puts beside them.
    Kv(KvArgs),
    /// SmallBank: six short transactions on accounts, in nodes of this process; audits the money at the end.
    Smallbank(SmallbankArgs),
}

/// Flags of `farhold bench smallbank`.
#[derive(Debug, Clone, Args)]
pub struct SmallbankArgs {
    /// Nodes, all in this process.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// On how many of them workers run; the others' rows are read and written from there. 0 = on all.
    #[arg(long, default_value_t = 0)]
    pub working_nodes: u8,
    /// Workers (threads) of each of these.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Transactions in flight on each worker.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u16,
    /// Percentage of transactions with two customers whose second one is another node's.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub distributed_percent: u32,
    /// Percentage of transactions on hot accounts.
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub hot_percent: u32,
    /// Accounts of a node.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2..=50_000_000))]
    pub accounts: u32,
    /// Hot accounts of a node.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub hot: u32,
    /// Copies of each row, on as many nodes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub replicas: u8,
    /// Make rows visible only when they are replicated, instead of at once.
    #[arg(long)]
    pub pessimistic: bool,
    /// Seconds to measure.
    #[arg(long, short = 's', default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Seed of everything drawn.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Bind worker n to processor n.
    #[arg(long)]
    pub pin: bool,
}

/// Flags of `farhold bench kv`.
#[derive(Debug, Clone, Args)]
pub struct KvArgs {
    /// Bytes of a value; several sizes run one after the other. Rounded up to whole words.
    #[arg(long, value_delimiter = ',', default_values_t = [128, 1024, 8192], value_parser = clap::value_parser!(u32).range(8..=32_768))]
    pub sizes: Vec<u32>,
    /// Rows.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Threads that get.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub readers: u16,
    /// Threads that put.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=64))]
    pub writers: u16,
    /// Gets in one batch.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch: u16,
    /// How values are put: by a message to their home, or by a transaction of the writer.
    #[arg(long, value_enum, default_value_t = PutBy::Message)]
    pub put: PutBy,
    /// Ask for keys by Zipf's law with this exponent, between 0 and 1 (YCSB: 0.99). Left out: all alike.
    #[arg(long, value_parser = parse_theta)]
    pub zipf: Option<f64>,
    /// Seconds to measure each size.
    #[arg(long, short = 's', default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Seed of the choice of keys.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Also the same gets against a Redis that listens on this port of 127.0.0.1: as many clients, as many keys a pipeline.
    /// The keys are loaded into it and stay there.
    #[arg(long, value_name = "PORT")]
    pub redis_port: Option<u16>,
    /// How readers and writers reach the rows' node: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
}

/// How `farhold bench kv` puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PutBy {
    /// The key's home writes.
    Message,
    /// The writer locks, validates and writes from afar.
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

/// Flags of `farhold fabric`.
#[derive(Debug, Clone, Args)]
pub struct FabricArgs {
    /// What of the fabric.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// What `farhold fabric` does.
#[derive(Debug, Clone, Subcommand)]
pub enum FabricCommand {
    /// The providers of this machine: what is native, what is emulated, latency and bandwidth from 64 B to 1 MiB.
    Info(FabricInfoArgs),
}

/// Flags of `farhold fabric info`.
#[derive(Debug, Clone, Args)]
pub struct FabricInfoArgs {
    /// How long to measure each provider.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub milliseconds: u32,
}

/// Flags of `farhold bench tpcc`.
#[derive(Debug, Clone, Args)]
pub struct TpccArgs {
    /// Node processes.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// Workers (threads) a node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Warehouses in all; 0 = one a worker.
    #[arg(long, short = 'w', default_value_t = 0)]
    pub warehouses: u32,
    /// Seconds to measure.
    #[arg(long, short = 's', default_value_t = 10)]
    pub seconds: u32,
    /// Transactions in flight on each worker.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u16,
    /// Memory of each node's region.
    #[arg(long, default_value = "3G", value_parser = parse_bytes)]
    pub memory: u64,
    /// How much of it gets memory from the system at the start, and as much for the copy of each other node's rows.
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
    /// Bind worker n to processor n.
    #[arg(long)]
    pub pin: bool,
    /// How nodes reach each other: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Copies of rows on other nodes.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Kill a node (kill -9) after so many seconds of the run. Needs --replicas 2 or more.
    #[arg(long, value_name = "SECONDS")]
    pub kill_after: Option<f64>,
    /// Which node is killed; the last one otherwise.
    #[arg(long, value_name = "NODE", requires = "kill_after")]
    pub kill_node: Option<u8>,
    /// Stop it instead (SIGSTOP): it stands still beyond its lease, believing that it lives, and has to be ended by the others.
    #[arg(long, requires = "kill_after")]
    pub freeze: bool,
    /// Start the killed node again after so many seconds of the run; the others let it in while they go on.
    #[arg(long, value_name = "SECONDS", requires = "kill_after")]
    pub return_after: Option<f64>,
    /// What a commit survives.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Kill every node (kill -9) after so many seconds of the run, give up the memory of their rows as a power cut does, start them again
    /// from their journals, and go on. Needs --durability disk or nvm.
    #[arg(long, value_name = "SECONDS", conflicts_with = "kill_after")]
    pub kill_all_after: Option<f64>,
    /// Draw throughput over time, with failure and recovery marked, into this file (SVG).
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// At the end check the specification's consistency conditions, and that every acknowledged transaction is there.
    #[arg(long)]
    pub audit: bool,
}

/// Flags of `farhold bench ch`.
#[derive(Debug, Clone, Args)]
pub struct ChArgs {
    /// Warehouses to load.
    #[arg(long, short = 'w', default_value_t = 1)]
    pub warehouses: u32,
    /// Runs of each query; the median is reported.
    #[arg(long, default_value_t = 3)]
    pub runs: u32,
    /// Memory of the node's region.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Seed of the population.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Also run each query in DataFusion over the same rows in Arrow memory, in turn.
    #[arg(long)]
    pub against_arrow: bool,
    /// Load, then serve until Ctrl-C instead of running the queries.
    #[arg(long)]
    pub stay: bool,
    /// Where the node answers the PostgreSQL protocol; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0", value_parser = parse_listen)]
    pub listen: SocketAddr,
}

/// Flags of `farhold import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The file: .parquet or .csv (with a header line).
    pub file: PathBuf,
    /// The table; by default the file's name.
    #[arg(long, short = 't')]
    pub table: Option<String>,
    /// Create the table from the file's columns, with this column as primary key.
    #[arg(long, value_name = "KEY_COLUMN")]
    pub create: Option<String>,
    /// The format, where the file's ending does not tell.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// How to reach the database.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// What `farhold import` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileFormat {
    /// Comma-separated values with a header line.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// Flags of `farhold check`.
#[derive(Debug, Clone, Args)]
pub struct CheckArgs {
    /// How to reach the database.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Flags of the hidden `farhold node`.
#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    /// Directory of the cluster's regions.
    #[arg(long)]
    pub dir: PathBuf,
    /// This node's number.
    #[arg(long)]
    pub node: u8,
    /// Nodes of the cluster.
    #[arg(long)]
    pub nodes: u8,
    /// Memory of this node's region in bytes.
    #[arg(long)]
    pub memory: u64,
    /// How much of it gets memory at the start, and as much for each mirror.
    #[arg(long, default_value_t = 0)]
    pub populate: u64,
    /// Workers of this node.
    #[arg(long)]
    pub workers: u8,
    /// Warehouses in all.
    #[arg(long)]
    pub warehouses: u32,
    /// Transactions in flight on each worker.
    #[arg(long, default_value_t = 1)]
    pub in_flight: u16,
    /// Percentage of new-order items from another warehouse.
    #[arg(long, default_value_t = 1)]
    pub remote_item_percent: u8,
    /// Percentage of payments by a customer of another warehouse.
    #[arg(long, default_value_t = 15)]
    pub remote_payment_percent: u8,
    /// Seed.
    #[arg(long)]
    pub seed: u64,
    /// Copies of rows on other nodes.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// What a commit survives.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Where nodes with copies of rows agree who belongs to the cluster, as for `farhold serve`.
    #[arg(long)]
    pub register: Option<String>,
    /// Bind workers to processors from this one on.
    #[arg(long)]
    pub pin_from: Option<usize>,
    /// Answer the PostgreSQL protocol here.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Also load the CH-benCHmark tables.
    #[arg(long)]
    pub ch: bool,
    /// How nodes reach each other.
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Go on when another node does not answer, and count it.
    #[arg(long)]
    pub survive: bool,
}

/// An exponent of Zipf's law.
fn parse_theta(text: &str) -> Result<f64, String> {
    let theta: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if theta > 0.0 && theta < 1.0 { Ok(theta) } else { Err(format!("`{text}` is not between 0 and 1")) }
}

/// Parses `127.0.0.1:5433`.
fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is not an IP address and a port; write for example 127.0.0.1:5433"))
}

/// Parses `512M`, `4G`, `65536`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is not a size; write for example 512M or 4G"))?;
    let factor: u64 = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        unit => return Err(format!("`{unit}` is not a unit of size; use K, M, G or T")),
    };
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is more than this machine can address"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

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
    fn addresses() {
        assert_eq!(parse_listen("127.0.0.1:0"), Ok(SocketAddr::from(([127, 0, 0, 1], 0))));
        assert!(parse_listen("localhost:5433").unwrap_err().contains("127.0.0.1:5433"));
    }

    #[test]
    fn flags_without_effect_are_refused() {
        let refused = |flags: &[&str]| {
            let cli = Cli::parse_from(["farhold", "serve"].iter().chain(flags));
            let Command::Serve(args) = cli.command else { panic!("{cli:?}") };
            args.durability.check().err()
        };
        assert!(refused(&["--journal", "there"]).expect("refused").contains("--durability"));
        assert!(refused(&["--durability", "disk", "--journal", "there", "--assume-persistence"]).is_some());
        assert_eq!(refused(&["--durability", "nvm", "--journal", "there", "--assume-persistence"]), None);
    }

    #[test]
    fn sizes_with_units() {
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("4GiB"), Ok(4 << 30));
        assert_eq!(parse_bytes("65536"), Ok(65536));
        assert!(parse_bytes("4X").unwrap_err().contains("unit"));
        assert!(parse_bytes("many").unwrap_err().contains("not a size"));
        assert!(parse_bytes("99999999T").is_err());
    }
}
