//! The command line: every flag of the `farhold` binary, with its help text.

#![allow(clippy::doc_markdown, reason = "these are the texts of --help, which would show the backticks")]

mod bench;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use bench::{BenchArgs, ChArgs, HtapArgs, KvArgs, Mix, PutBy, SmallbankArgs, TpccArgs, Workload};

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
    /// Machine-readable output: one JSON object per line on standard output.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Replication.
#[derive(Debug, Clone, Args)]
pub struct ReplicaArgs {
    /// Copies of each row in total, each on a different node: committed transactions survive the loss of all but one of these
    /// nodes. 1 = no replicas.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub replicas: u8,
    /// Lease of a member, in milliseconds: the others go on without a node that they have not heard from for this long.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    pub lease_ms: u64,
    /// Make rows visible only after they are replicated, to measure the cost of that order.
    #[arg(long)]
    pub pessimistic: bool,
}

impl ReplicaArgs {
    /// One copy of each row.
    pub const NONE: Self = Self { replicas: 1, lease_ms: 100, pessimistic: false };
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run TPC-C on three node processes of this machine while SQL reads the same rows, then check that no transaction was lost.
    Demo(DemoArgs),
    /// Serve one node of a database over the PostgreSQL protocol.
    Serve(ServeArgs),
    /// Run a SQL prompt, or statements from -c or from standard input.
    Sql(SqlArgs),
    /// Measure a workload.
    Bench(BenchArgs),
    /// Show a cluster with replicas: its members, the partitions that each serves, and the state of recovery.
    Cluster(ClusterArgs),
    /// Show the providers that execute memory instructions on this machine.
    Fabric(FabricArgs),
    /// Load a Parquet or CSV file into a table.
    Import(ImportArgs),
    /// Check a TPC-C database against the specification's consistency conditions, by SQL.
    Check(CheckArgs),
    /// Run one node of a demo or bench; the parent process commands it over standard input (internal).
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Flags of `farhold cluster`.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// What to show of the cluster.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// The subcommands of `farhold cluster`.
#[derive(Debug, Clone, Subcommand)]
pub enum ClusterCommand {
    /// Show the configuration, the roles, the replication lag, the state of recovery, and the tables that the nodes keep as columns.
    Status(StatusArgs),
}

/// Flags of `farhold cluster status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Directory of the cluster, as given to `farhold serve`. Either this or --register is required.
    #[arg(long, short = 'd')]
    pub dir: Option<PathBuf>,
    /// Register of the cluster, as given to `farhold serve`, if it is not in --dir. In etcd the nodes also report their own
    /// state. --dir gives the state of this host's nodes while etcd does not answer.
    #[arg(long)]
    pub register: Option<String>,
    /// Repeat after this many milliseconds, until Ctrl-C.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(10..))]
    pub watch: Option<u64>,
}

/// Flags of `farhold demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Number of node processes.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// TPC-C warehouses in total, at least one per node. Each takes about 110 MB, and more as the run adds rows.
    #[arg(long, short = 'w', default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub warehouses: u32,
    /// Duration of the transaction mix, in seconds.
    #[arg(long, short = 's', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
    /// Workers (threads) of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: u8,
    /// Address at which node 0 serves the PostgreSQL protocol. Port 0 selects a free port.
    #[arg(long, default_value = "127.0.0.1:5433", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Memory of each node's region, e.g. 1300M or 2G. The system provides a page when it is first touched.
    #[arg(long, default_value = "1300M", value_parser = parse_bytes)]
    pub memory: u64,
    /// Seed of the population and of the mix.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// Keep serving after the summary until Ctrl-C, so that psql can query the rows.
    #[arg(long)]
    pub stay: bool,
    /// How nodes reach each other: shm, or libfabric:NAME (tcp;ofi_rxm, shm, verbs;ofi_rxm, efa).
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Keep three copies of each row. Kill the last node during the run (kill -9), show that the others go on, and restart it.
    #[arg(long)]
    pub kill: bool,
}

/// Flags of `farhold serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Directory of the cluster's regions. Rows live as long as its files. A path on a DAX or CXL mount works as well. Default: a
    /// new directory in shared memory, removed at the end.
    #[arg(long, short = 'd')]
    pub dir: Option<PathBuf>,
    /// Address of the PostgreSQL protocol. An address other than loopback requires --password-file.
    #[arg(long, short = 'l', default_value = "127.0.0.1:5433", value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// Folder for a Unix socket, which costs local clients less than TCP: psql -h FOLDER.
    #[arg(long)]
    pub unix_socket_dir: Option<PathBuf>,
    /// Register of a cluster with replicas: the store through which its nodes agree on the members. file:///DIRECTORY on one host
    /// (default: --dir), or etcd://HOST:PORT[,HOST:PORT...]/PREFIX for several hosts, in a build with the feature `etcd`.
    #[arg(long)]
    pub register: Option<String>,
    /// Durability of a commit.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Number of this node, from 0.
    #[arg(long, default_value_t = 0)]
    pub node: u8,
    /// Number of nodes in the cluster. Nodes on one host use the same directory.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub nodes: u8,
    /// How nodes reach each other: shm, for processes of one host, or libfabric:NAME for a network (tcp;ofi_rxm, shm,
    /// verbs;ofi_rxm, efa). With nodes on other hosts each node has its own directory, and the URL names the peers:
    /// 'libfabric:tcp;ofi_rxm?listen=10.0.0.1:7470&peer=1@10.0.0.2:7470&secret-file=PATH', with one peer for each other node and
    /// the same secret for all.
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Memory of this node's region, e.g. 512M or 4G. The system provides a page when it is first touched.
    #[arg(long, short = 'm', default_value = "4G", value_parser = parse_bytes)]
    pub memory: u64,
    /// Amount of that memory to allocate at the start, and as much again for the mirror of each other node, so that no transaction waits for it later.
    #[arg(long, default_value = "0", value_parser = parse_bytes)]
    pub populate: u64,
    /// Free the rows of this node that were half written when its process ended. These rows are lost. Without this flag they stay, and statements that read
    /// them fail (XX001). Use this flag for one start, after the log has named the rows.
    #[arg(long)]
    pub forget_half_written: bool,
    /// Memory that all running queries may use together, e.g. 512M or 4G.
    #[arg(long, default_value = "2G", value_parser = parse_bytes)]
    pub query_memory: u64,
    /// The part of --query-memory that joins may use; a join spills what does not fit. Default: all of it.
    #[arg(long, value_parser = parse_bytes)]
    pub join_memory: Option<u64>,
    /// Directory that joins spill to. Default: the system's directory for temporary files.
    #[arg(long)]
    pub spill_dir: Option<PathBuf>,
    /// Default for tables whose CREATE TABLE has no option WITH (columns = ...): whether they are also kept as columns, for faster scans. The option is 'auto',
    /// 'all', 'none' or names of columns. On several nodes, columns need --durability disk or nvm.
    #[arg(long, value_enum, default_value_t = ColumnsLevel::Auto)]
    pub columns: ColumnsLevel,
    /// Memory that the columns of all tables may use, in addition to --memory. Queries read the rows of tables whose columns have no room.
    #[arg(long, default_value = "1G", value_parser = parse_bytes)]
    pub column_memory: u64,
    /// Make plans without this rule around the joins: for figures.
    #[arg(long, value_name = "RULE", value_parser = RULES, hide = true)]
    pub without: Option<String>,
    /// Replication.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Threads that serve clients. 0 = two per core. At most 245, or 38 with --replicas 2 or more.
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Bind these threads to processors, for more statements a second on a machine that does little else.
    #[arg(long)]
    pub pin: bool,
    /// File of users, one per line: `name:SCRAM-SHA-256$...` (as PostgreSQL stores it) or `name:plain password`.
    #[arg(long)]
    pub password_file: Option<PathBuf>,
    /// TLS certificate (PEM).
    #[arg(long, requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// TLS private key (PEM).
    #[arg(long, requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}

/// Rules around the joins that a node can do without (`farhold_join.`).
const RULES: [&str; 4] = ["common", "decimals", "enabled", "reduce"];

/// Which tables are kept as columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColumnsLevel {
    /// Tables of 65,536 rows or more.
    Auto,
    /// All.
    All,
    /// None.
    None,
}

/// Durability of a commit.
#[derive(Debug, Clone, Args)]
pub struct DurabilityArgs {
    /// What a commit survives: with `memory`, the end of processes; with `disk` and `nvm`, a power failure of all nodes. With --replicas 2 or more, `disk` and
    /// `nvm` survive both.
    #[arg(id = "durability", long = "durability", value_name = "LEVEL", value_enum, default_value_t = DurabilityLevel::Memory)]
    pub level: DurabilityLevel,
    /// Directory of the journal and the checkpoints, the same for all nodes. For nvm it must be on a DAX mount.
    #[arg(long, required_if_eq_any([("durability", "disk"), ("durability", "nvm")]))]
    pub journal: Option<PathBuf>,
    /// Treat flushed cache lines below --journal as durable, although its file system does not promise it.
    #[arg(long)]
    pub assume_persistence: bool,
}

impl DurabilityArgs {
    /// No journal.
    pub const NONE: Self = Self { level: DurabilityLevel::Memory, journal: None, assume_persistence: false };

    /// Refuses flags that would have no effect.
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
        self.level != DurabilityLevel::Memory
    }
}

/// Levels of durability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityLevel {
    /// In the memory of as many nodes as a row has replicas.
    Memory,
    /// In a journal on persistent memory.
    Nvm,
    /// In a journal on disk.
    Disk,
}

/// How a client command connects to its database.
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
    /// Statements to run instead of a prompt. If standard input is not a terminal, they are read from it.
    #[arg(long, short = 'c')]
    pub command: Option<String>,
}

/// Flags of `farhold fabric`.
#[derive(Debug, Clone, Args)]
pub struct FabricArgs {
    /// What to show of the fabric.
    #[command(subcommand)]
    pub command: FabricCommand,
}

/// The subcommands of `farhold fabric`.
#[derive(Debug, Clone, Subcommand)]
pub enum FabricCommand {
    /// Show each provider of this machine: native and emulated instructions, latency and bandwidth from 64 B to 1 MiB. Then show which device copies for the
    /// access path `offload`: a work queue of Intel's DSA or the processor, and in that case why.
    Info(FabricInfoArgs),
}

/// Flags of `farhold fabric info`.
#[derive(Debug, Clone, Args)]
pub struct FabricInfoArgs {
    /// Duration of the measurement of each provider.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=600_000))]
    pub milliseconds: u32,
}

/// Flags of `farhold import`.
#[derive(Debug, Clone, Args)]
pub struct ImportArgs {
    /// The file to load: .parquet or .csv (with a header line).
    pub file: PathBuf,
    /// Name of the table. Default: the name of the file.
    #[arg(long, short = 't')]
    pub table: Option<String>,
    /// Create the table from the file's columns, with this column as primary key.
    #[arg(long, value_name = "KEY_COLUMN")]
    pub create: Option<String>,
    /// Format of the file. Default: from the file name's extension.
    #[arg(long, value_enum)]
    pub format: Option<FileFormat>,
    /// How to reach the database.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// File formats that `farhold import` reads.
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
    /// Amount of it to allocate at the start, and as much again for each mirror.
    #[arg(long, default_value_t = 0)]
    pub populate: u64,
    /// Workers of this node.
    #[arg(long)]
    pub workers: u8,
    /// Warehouses in total.
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
    /// Replication.
    #[command(flatten)]
    pub replicas: ReplicaArgs,
    /// Durability of a commit.
    #[command(flatten)]
    pub durability: DurabilityArgs,
    /// Register of a cluster with replicas, as for `farhold serve`.
    #[arg(long)]
    pub register: Option<String>,
    /// Bind workers to processors, from this number on.
    #[arg(long)]
    pub pin_from: Option<usize>,
    /// Address at which this node serves the PostgreSQL protocol.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    /// Also load the CH-benCHmark tables.
    #[arg(long)]
    pub ch: bool,
    /// Plan without this rule of the joins.
    #[arg(long)]
    pub without: Vec<String>,
    /// Which of the tables of --ch are kept as columns.
    #[arg(long, value_enum, default_value_t = ColumnsLevel::Auto)]
    pub columns: ColumnsLevel,
    /// Bytes that columns may use.
    #[arg(long, default_value_t = 1 << 30)]
    pub column_memory: u64,
    /// Query threads. 0 = one per processor.
    #[arg(long, default_value_t = 0)]
    pub query_threads: usize,
    /// How nodes reach each other.
    #[arg(long, default_value = "shm")]
    pub provider: String,
    /// Go on when another node does not answer, and count these transactions.
    #[arg(long)]
    pub survive: bool,
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
