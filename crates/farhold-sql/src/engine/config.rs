//! The engine's configuration.

use std::path::PathBuf;

use farhold_txn::KeptColumns;

/// The engine's configuration, fixed when it opens.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The database's name in the catalog. Clients may ask for any name when they connect.
    pub database: String,
    /// Threads that run analytical queries, and so the number of partitions of a plan. The default is one per
    /// processor. At most one thread runs per 32 MiB of query memory (but four always may): each partition of each
    /// operator has buffers.
    pub query_threads: usize,
    /// The memory limit of all running queries together, in bytes; beyond it a query fails with 53200.
    pub query_memory_bytes: usize,
    /// The part of it that joins may use; the rest spills. `None` means all of it.
    pub join_memory_bytes: Option<usize>,
    /// The directory to which joins spill. The files in it have no names (they are unlinked).
    pub spill_directory: PathBuf,
    /// Which columns of a table are kept as columns too if its definition does not say (`WITH (columns = …)`).
    pub columns: KeptColumns,
    /// Planner rules around the joins that are switched off, by their settings' names (`farhold_join.`).
    pub without_rules: Vec<String>,
}

/// The memory that each query thread should have, and the number of threads allowed with less.
const THREAD_BYTES: usize = 32 << 20;
const THREADS_ALWAYS: usize = 4;

impl EngineConfig {
    pub(super) fn threads_of_queries(&self) -> usize {
        self.query_threads.min((self.query_memory_bytes / THREAD_BYTES).max(THREADS_ALWAYS)).max(1)
    }
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            database: "farhold".to_owned(),
            query_threads: std::thread::available_parallelism().map_or(4, std::num::NonZero::get),
            query_memory_bytes: 2 << 30,
            join_memory_bytes: None,
            spill_directory: std::env::temp_dir(),
            columns: KeptColumns::Auto,
            without_rules: Vec::new(),
        }
    }
}
