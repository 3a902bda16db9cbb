//! The façade: a node of a database, opened with a few settings, and a worker to run transactions on.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use farhold_fabric::{Executor, Fabric, FabricError, Handle, NodeId};
use farhold_txn::{HomeAgent, Node, NodeConfig, TxnError, Worker};

/// Where a node's rows live and how much room they have.
#[derive(Debug, Clone)]
pub struct Config {
    dir: Option<PathBuf>,
    node: u8,
    nodes: u8,
    memory_bytes: u64,
    provider: String,
}

impl Config {
    /// A database of one node in memory that ends with the [`Database`].
    #[must_use]
    pub fn in_memory() -> Self {
        Self { dir: None, node: 0, nodes: 1, memory_bytes: 1 << 30, provider: "shm".into() }
    }

    /// A database in this directory, whose rows live as long as its files: a folder of shared memory, or of a DAX or CXL
    /// mount. It is created, or attached with the rows it has.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: Some(dir.into()), ..Self::in_memory() }
    }

    /// Bytes of this node's region when it is created (1 GiB otherwise). Pages are used as they are touched.
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// How nodes reach each other's rows: `shm` otherwise, or `libfabric:` and the name of one of libfabric's providers, as
    /// `libfabric:tcp;ofi_rxm`, with the feature `libfabric`. Nodes on several hosts are named behind it: see
    /// [`Fabric::join`].
    #[must_use]
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.provider = provider.into();
        self
    }

    /// This is node `node` of `nodes`, each in a process (or `Database`) of its own, all in the same directory.
    #[must_use]
    pub fn node(mut self, node: u8, nodes: u8) -> Self {
        (self.node, self.nodes) = (node, nodes);
        self
    }
}

/// Why a database does not open.
#[derive(Debug)]
pub enum OpenError {
    /// The directory cannot be made.
    Directory(PathBuf, std::io::Error),
    /// The regions cannot be had: a living process holds this node, the files are another version's, the disk is full.
    Fabric(FabricError),
    /// The node's content cannot be used.
    Node(TxnError),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Fabric(error) => error.fmt(f),
            Self::Node(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

/// An open node, which serves the other nodes of its cluster by a thread of its own. Dropping it closes the node.
pub struct Database {
    // Fields are dropped in this order: nobody is served any more, then the node goes, then its files.
    agent: Option<HomeAgent>,
    node: Arc<Node>,
    dir: Directory,
}

impl Database {
    /// Opens the node.
    pub fn open(config: &Config) -> Result<Self, OpenError> {
        let dir = match &config.dir {
            Some(path) => {
                std::fs::create_dir_all(path).map_err(|error| OpenError::Directory(path.clone(), error))?;
                Directory { path: path.clone(), ephemeral: false }
            }
            None => Directory { path: ephemeral_directory()?, ephemeral: true },
        };
        let fabric = Fabric::join(&dir.path, NodeId(config.node), &config.provider).map_err(OpenError::Fabric)?;
        let node_config =
            NodeConfig { nodes: config.nodes, region_bytes: config.memory_bytes, ..NodeConfig::default() };
        let node = Node::open(fabric, node_config).map_err(OpenError::Node)?;
        // A node alone has nobody to serve.
        let agent = if config.nodes > 1 { Some(HomeAgent::start(&node).map_err(OpenError::Node)?) } else { None };
        Ok(Self { agent, node, dir })
    }

    /// The node: its tables, statistics, and workers for other threads.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// The directory of the regions.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir.path
    }

    /// Runs `body` to its end on this thread, with a worker and the executor's handle (clock, waiting, more tasks).
    pub fn run<T>(&self, body: impl AsyncFnOnce(Worker, Handle) -> T) -> Result<T, TxnError> {
        let executor = Executor::real(u64::from(std::process::id()));
        let handle = executor.handle();
        let worker = self.node.worker(&handle)?;
        Ok(executor.run(body(worker, handle)))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.agent.take());
        self.node.close();
    }
}

/// The directory, removed at the end if it was made for this database alone.
#[derive(Debug)]
struct Directory {
    path: PathBuf,
    ephemeral: bool,
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.ephemeral {
            let _ = std::fs::remove_dir_all(&self.path); // nothing is lost: nobody else knows the name
        }
    }
}

/// Where directories that nobody named are made.
pub(crate) const DIRECTORY_VARIABLE: &str = "FARHOLD_SHM_DIR";

/// A new directory below the one that the environment names, in shared memory, or in the temporary folder where there is none.
pub(crate) fn ephemeral_directory() -> Result<PathBuf, OpenError> {
    let shm = Path::new("/dev/shm");
    let root = match std::env::var_os(DIRECTORY_VARIABLE) {
        Some(root) => PathBuf::from(root),
        None if shm.is_dir() => shm.to_owned(),
        None => std::env::temp_dir(),
    };
    let mut attempt = 0_u32;
    loop {
        let path = root.join(format!("farhold-{}-{attempt}", std::process::id()));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(error) => return Err(OpenError::Directory(path, error)),
        }
    }
}
