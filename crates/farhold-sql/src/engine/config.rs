//! What an engine is told at its start.

use std::path::PathBuf;

/// What an engine is told at its start.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The database's name, as clients ask for it.
    pub database: String,
    /// Threads that run analytical queries, which is also the partitions of a plan: as many as processors, but no more than one for each
    /// 32 MiB of the queries' memory (four always). Each partition of each operator has buffers.
    pub query_threads: usize,
    /// What all running queries together may hold, in bytes; more is error 53200.
    pub query_memory_bytes: usize,
    /// How much of that joins may hold; what does not fit is spilled. Without it, all.
    pub join_memory_bytes: Option<usize>,
    /// Where joins spill to. Files have no name there.
    pub spill_directory: PathBuf,
    /// Rules around the joins that plans are made without, by their settings' names (`farhold_join.`).
    pub without_rules: Vec<String>,
}

/// What a thread of the queries should have, and how many threads there may be with less.
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
            without_rules: Vec::new(),
        }
    }
}
