//! The façade: opens a node of a database from a few settings, and gives workers that run transactions on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use farhold_fabric::ephemeral::Ephemeral;
use farhold_fabric::persist::Domain;
use farhold_fabric::{Executor, Fabric, FabricError, Handle, NodeId, private};
use farhold_store::durable::Progress;
use farhold_store::durable::files::{Directory as Files, Disk};
use farhold_store::durable::nvm::Nvm;
use farhold_txn::{
    ColumnThreads, FileRegister, Generation, HomeAgent, JournalConfig, JournalThreads, Node, NodeConfig,
    ReplicationConfig, TxnError, Worker,
};

/// What a commit has survived when it is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Durability {
    /// The end of the node's process: rows are in shared memory, on as many nodes as they have replicas ([`Config::replicas`]). A power failure of all these
    /// nodes loses everything.
    Memory,
    /// A power failure: the commit is in a journal on persistent memory, in a directory of a DAX mount.
    Nvm(PathBuf),
    /// As [`Nvm`](Self::Nvm), on a mount that does not promise durability. The caller vouches for it: the memory is battery-backed, or this is a test.
    NvmAssumed(PathBuf),
    /// A power failure: the commit is in a journal on disk, in this directory.
    Disk(PathBuf),
}

impl Durability {
    fn journal(&self, progress: &Arc<Progress>) -> Result<Option<JournalConfig>, OpenError> {
        let nvm = |path: &PathBuf, domain| Nvm::open(path, domain).map(|nvm| Arc::new(nvm) as Arc<dyn Files>);
        let (path, opened) = match self {
            Self::Memory => return Ok(None),
            Self::Nvm(path) => (path, nvm(path, Domain::Asserted)),
            Self::NvmAssumed(path) => (path, nvm(path, Domain::Assumed)),
            Self::Disk(path) => (path, Disk::open(path).map(|disk| Arc::new(disk) as Arc<dyn Files>)),
        };
        let directory = opened.map_err(|error| OpenError::Directory(path.clone(), error))?;
        Ok(Some(JournalConfig { progress: progress.clone(), ..JournalConfig::new(directory) }))
    }
}

/// Configuration of a node: where its rows live, and how much room they have.
#[derive(Debug, Clone)]
pub struct Config {
    dir: Option<PathBuf>,
    node: u8,
    nodes: u8,
    memory_bytes: u64,
    populate_bytes: u64,
    column_bytes: u64,
    forgets_half_written: bool,
    provider: String,
    replication: ReplicationConfig,
    durability: Durability,
    register: Option<String>,
    progress: Arc<Progress>,
}

impl Config {
    /// A database of one node in memory. Its rows end with the [`Database`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            dir: None,
            node: 0,
            nodes: 1,
            memory_bytes: 1 << 30,
            populate_bytes: 0,
            column_bytes: 1 << 30,
            forgets_half_written: false,
            provider: "shm".into(),
            replication: replication(),
            durability: Durability::Memory,
            register: None,
            progress: Arc::default(),
        }
    }

    /// A database in this directory. Its rows live as long as its files. The directory may be in shared memory, or on a DAX or
    /// CXL mount. It is created if it does not exist; otherwise the node attaches to the rows in it.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..Self::in_memory() }
    }

    /// Length in bytes of this node's region when it is created (default: 1 GiB). The system provides a page when it is first
    /// touched.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Number of bytes of this node's region, and of its mirror of each other node, for which the system provides memory when the
    /// database opens (default: 0). No transaction waits for these pages later.
    #[must_use]
    pub fn populate_bytes(mut self, bytes: u64) -> Self {
        self.populate_bytes = bytes;
        self
    }

    /// Number of bytes that the columns of all tables may take (default: 1 GiB), in addition to the region. Queries read the rows of tables whose columns have
    /// no room.
    #[must_use]
    pub fn column_bytes(mut self, bytes: u64) -> Self {
        self.column_bytes = bytes;
        self
    }

    /// Whether the node frees the rows that were half written when its process ended (default: false). Freed rows are lost.
    /// Otherwise they stay, and a transaction that reads one fails with [`TxnError::HALF_WRITTEN`]. With replicas or a journal
    /// there are no such rows.
    #[must_use]
    pub fn forget_half_written(mut self, forgets: bool) -> Self {
        self.forgets_half_written = forgets;
        self
    }

    /// How nodes reach each other's rows: `shm` (the default), or `libfabric:` and the name of a provider of libfabric, such as
    /// `libfabric:tcp;ofi_rxm`, with the feature `libfabric`. With several hosts, the URL also names the other nodes: see
    /// [`Fabric::join`].
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = provider.into();
        self
    }

    /// What a commit survives (default: [`Durability::Memory`]). With a journal, a restart restores everything that was
    /// acknowledged from the journal, and the directory of regions is only memory. All nodes of a cluster must use the same
    /// journal directory. With replicas as well, the other nodes go on when one node ends, and a restart of all nodes restores
    /// everything.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Register of a cluster with replicas, where its nodes agree on the members: `file:///DIRECTORY` on one host (default: the
    /// directory of the regions), or `etcd://HOST:PORT[,HOST:PORT...]/PREFIX` with the feature `etcd`. It must be the same for
    /// all nodes.
    #[must_use]
    pub fn register(mut self, url: impl Into<String>) -> Self {
        self.register = Some(url.into());
        self
    }

    /// Progress of [`Database::open`] while it restores from a journal; another thread may show it.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Makes this node number `node` of `nodes`. Each node is a process (or a `Database`) of its own, and all use the same
    /// directory.
    #[must_use]
    pub fn node(mut self, node: u8, nodes: u8) -> Self {
        (self.node, self.nodes) = (node, nodes);
        self
    }

    /// Copies of each row in total, each on a different node. Committed rows survive the loss of all but one of these nodes. The
    /// default of 1 means no replicas. It must be the same for all nodes. With replicas, a node that restarts while others run
    /// begins empty, and the others send it the rows that it needs.
    #[must_use]
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replication.replicas = replicas;
        self
    }

    /// Lease of a member: the others go on without a node that they have not heard from for this long (default: 100 ms). It must
    /// be the same for all nodes.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX / 4);
        (self.replication.lease_ns, self.replication.clock_skew_ns_max) = (lease_ns, lease_ns / 10);
        self
    }

    /// Whether the rows of a commit are visible while they are being replicated (default: true). Use false to measure the difference.
    #[must_use]
    pub fn optimistic(mut self, optimistic: bool) -> Self {
        self.replication.optimistic = optimistic;
        self
    }
}

/// Why a database does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made.
    #[error("{}: {}", .0.display(), .1)]
    Directory(PathBuf, std::io::Error),
    /// The regions are not available: a living process runs this node, another version wrote the files, or the disk is full.
    #[error(transparent)]
    Fabric(FabricError),
    /// The node's content cannot be used.
    #[error(transparent)]
    Node(TxnError),
    /// The settings contradict each other.
    #[error("{0}")]
    Settings(&'static str),
    /// The node did not become a member: its register cannot be read, the cluster has expelled it, or `give_up` ended the wait.
    #[error("{0}")]
    Membership(String),
}

/// The length and the number of rings: enough for the threads of a server.
fn replication() -> ReplicationConfig {
    ReplicationConfig { rings: 48, ring_bytes: 2 << 20, ..ReplicationConfig::default() }
}

/// Interval at which a node that waits for its cluster checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// An open node. A thread of it serves the other nodes of its cluster. Dropping the value closes the node.
pub struct Database {
    // The fields are dropped in this order: first the home agent stops serving other nodes, then the node closes, then its files
    // go.
    agent: Option<HomeAgent>,
    journal: Option<JournalThreads>,
    columns: Option<ColumnThreads>,
    node: Arc<Node>,
    dir: Directory,
}

impl Database {
    /// Opens the node. With replicas, it returns when the node is a member of its cluster. At the founding it waits until all
    /// nodes have started. Later it waits until the others have noticed the end of its predecessor, and have sent the node the
    /// rows that it needs.
    ///
    /// # Errors
    /// [`OpenError`] with the reason.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        Self::open_unless(config, || false)
    }

    /// As [`open`](Self::open), but ends the wait when `give_up` returns true.
    ///
    /// # Errors
    /// As there, and [`OpenError::Membership`] when the wait has been given up.
    pub fn open_unless(config: &Config, give_up: impl Fn() -> bool) -> Result<Self, OpenError> {
        let dir = match &config.dir {
            Some(path) => {
                private::directory(path).map_err(|error| OpenError::Directory(path.clone(), error))?;
                Directory::Named(path.clone())
            }
            None => Directory::Ephemeral(Ephemeral::new().map_err(OpenError::Fabric)?),
        };
        let replicas = config.replication.replicas;
        if replicas == 0 || replicas > config.nodes {
            return Err(OpenError::Settings(
                "each replica is on a node of its own: replicas must be at least 1 and at most the number of nodes",
            ));
        }
        let is_replicated = replicas > 1;
        let id = NodeId(config.node);
        let journal = config.durability.journal(&config.progress)?;
        let begin = |journal: &JournalConfig| {
            Generation::begin(journal, id, config.nodes, &config.replication).map_err(OpenError::Node)
        };
        let generation = journal.as_ref().map(begin).transpose()?;
        let wait = |ready: &dyn Fn() -> Result<bool, OpenError>| {
            while !ready()? {
                if give_up() {
                    return Err(OpenError::Membership("ended before the node was a member of its cluster".to_owned()));
                }
                std::thread::park_timeout(LOOK_AGAIN);
            }
            Ok(())
        };
        // Regions of an earlier generation are of no use. The node must not mistake them for current ones, nor earlier members
        // for current members.
        let number = generation.as_ref().map(Generation::number);
        let regions = number.map_or(Ok(dir.path().to_owned()), |number| generation_directory(dir.path(), number))?;
        let register = Place::of(config, dir.path(), number)?;
        if let (true, Place::File(path)) = (is_replicated, &register) {
            let is_free = || FileRegister::is_free(path, id);
            wait(&|| is_free().map_err(|error| OpenError::Membership(error.to_string())))?;
        }
        let fabric = Fabric::join(&regions, id, &config.provider).map_err(OpenError::Fabric)?;
        let node_config = NodeConfig {
            nodes: config.nodes,
            region_bytes: config.memory_bytes,
            populate_bytes: config.populate_bytes,
            columns_bytes_max: config.column_bytes,
            forgets_half_written: config.forgets_half_written,
            replication: config.replication.clone(),
            journal,
            ..NodeConfig::default()
        };
        let node = match generation {
            Some(generation) => Node::open_durable(fabric, node_config, generation),
            None => Node::open(fabric, node_config),
        };
        let node = node.map_err(OpenError::Node)?;
        let journal = JournalThreads::start(&node).map_err(OpenError::Node)?;
        let columns = ColumnThreads::start(&node).map_err(OpenError::Node)?;
        let agent = if is_replicated {
            let agent = register.start_member(&node, config, dir.path())?;
            wait(&|| {
                if let Some(error) = node.refusal() {
                    return Err(OpenError::Node(error));
                }
                if node.is_expelled() {
                    return Err(OpenError::Membership(
                        "the cluster has expelled this node while it was joining".to_owned(),
                    ));
                }
                Ok(node.is_member())
            })?;
            Some(agent)
        } else if config.nodes > 1 {
            Some(HomeAgent::start(&node).map_err(OpenError::Node)?)
        } else {
            // A cluster of one node has no other node to serve.
            None
        };
        Ok(Self { agent, journal, columns, node, dir })
    }

    /// The node: its tables and statistics; it makes workers for other threads.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The directory of the regions.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `body` to its end on this thread, with a worker and the executor's handle (clock, waits, more tasks). It then runs
    /// the remaining work of the body's transactions, for at most the time-out of a request.
    ///
    /// With replicas, if a commit has not reached all nodes by then, this node leaves the cluster
    /// ([`Node::is_expelled`](farhold_txn::Node::is_expelled)): the others finish the commit. Without replicas, if another node
    /// has paused since a commit that moved rows there, those rows stay locked until that node or this node restarts. The
    /// commit has reported that the node is unavailable.
    ///
    /// # Errors
    /// [`TxnError::TooMany`] if the node has no worker left. An error that `body` returns is not an error of this call.
    pub fn run<T>(&self, body: impl AsyncFnOnce(Worker, Handle) -> T) -> Result<T, TxnError> {
        let executor = Executor::real(u64::from(std::process::id()));
        let handle = executor.handle();
        let worker = self.node.worker(&handle)?;
        let done = executor.run(body(worker.clone(), handle));
        executor.run(worker.drain(self.node.config().request_timeout_ns));
        Ok(done)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.agent.take());
        drop(self.journal.take());
        drop(self.columns.take());
        self.node.close();
    }
}

/// Place of the register.
enum Place {
    /// In this directory.
    File(PathBuf),
    #[cfg(feature = "etcd")]
    Etcd(farhold_etcd::EtcdUrl),
}

impl Place {
    /// The place of the register of a generation of a cluster with journals, or of a cluster without journals.
    fn of(config: &Config, dir: &Path, generation: Option<u32>) -> Result<Self, OpenError> {
        let of_generation = |path: &Path| match generation {
            Some(number) => path.join(generation_name(number)),
            None => path.to_owned(),
        };
        let Some(url) = &config.register else { return Ok(Self::File(of_generation(dir))) };
        if let Some(path) = url.strip_prefix("file://") {
            return Ok(Self::File(of_generation(Path::new(path))));
        }
        if !is_etcd(url) {
            return Err(OpenError::Membership(unknown_register(url)));
        }
        #[cfg(feature = "etcd")]
        return farhold_etcd::EtcdUrl::parse(url).map_err(OpenError::Membership).map(|url| {
            let prefix = of_generation(Path::new(&url.prefix)).display().to_string();
            Self::Etcd(farhold_etcd::EtcdUrl { prefix, ..url })
        });
        #[cfg(not(feature = "etcd"))]
        Err(OpenError::Membership(without_etcd(url)))
    }

    fn start_member(self, node: &Arc<Node>, config: &Config, dir: &Path) -> Result<HomeAgent, OpenError> {
        let started = match self {
            Self::File(path) => {
                private::directory(&path).map_err(|error| OpenError::Directory(path.clone(), error))?;
                HomeAgent::start_member_by(node, dir, FileRegister::new(&path, node.fabric(), config.nodes))
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(url) => {
                // An answer that arrives after the lease is of no use.
                let timeout = Duration::from_nanos(config.replication.lease_ns);
                let register = farhold_etcd::EtcdRegister::new(url, config.nodes, timeout);
                let register = register.map_err(|error| OpenError::Membership(error.to_string()))?;
                HomeAgent::start_member_by(node, dir, register)
            }
        };
        started.map_err(OpenError::Node)
    }
}

/// Is this the URL of a register in an etcd?
pub(crate) fn is_etcd(url: &str) -> bool {
    url.starts_with("etcd://") || url.starts_with("etcds://")
}

/// The message about a register that is neither in a directory nor in etcd.
pub(crate) fn unknown_register(url: &str) -> String {
    format!("the register \"{url}\" is neither file:///DIRECTORY nor etcd[s]://HOST:PORT[,HOST:PORT...]/PREFIX")
}

/// The message about a register in etcd.
#[cfg(not(feature = "etcd"))]
pub(crate) fn without_etcd(url: &str) -> String {
    format!(
        "{url}: this program is built without the feature `etcd`; registers can be in a directory (file:///DIRECTORY)"
    )
}

pub(crate) fn generation_name(number: u32) -> String {
    format!("generation-{number}")
}

/// The generation number in the name of a folder, or in the last part of a prefix.
pub(crate) fn generation_of(name: &str) -> Option<u32> {
    name.strip_prefix("generation-")?.parse().ok()
}

/// The folders of generations in the directory of a cluster, with their numbers.
fn generations(dir: &Path) -> std::io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(generation_of);
        found.extend(number.map(|number| (number, entry.path())));
    }
    Ok(found)
}

/// The current place of the register of the cluster in this directory. With journals each generation has its own register.
#[cfg(feature = "cli")]
pub(crate) fn register_of(dir: &Path) -> PathBuf {
    let latest = generations(dir).unwrap_or_default().into_iter().max();
    latest.map_or_else(|| dir.to_owned(), |(_, path)| path)
}

/// The folder for the regions of a generation. Removes the folders of earlier generations.
fn generation_directory(dir: &Path, generation: u32) -> Result<PathBuf, OpenError> {
    let failed = |error| OpenError::Directory(dir.to_owned(), error);
    for (number, path) in generations(dir).map_err(failed)? {
        if number < generation {
            let _ = std::fs::remove_dir_all(path); // another node may be at it as well
        }
    }
    let path = dir.join(generation_name(generation));
    private::directory(&path).map_err(failed)?;
    Ok(path)
}

/// The directory of the regions.
#[derive(Debug)]
enum Directory {
    Named(PathBuf),
    /// Removed when the database closes.
    Ephemeral(Ephemeral),
}

impl Directory {
    fn path(&self) -> &Path {
        match self {
            Self::Named(path) => path,
            Self::Ephemeral(directory) => directory.path(),
        }
    }
}
