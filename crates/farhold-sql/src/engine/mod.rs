//! Catalog, planning and execution.

mod cancel;
mod copy;
mod output;
mod provisional;
mod session;

use std::rc::Rc;
use std::sync::Arc;

pub use cancel::CancelHandle;
pub use copy::CopyIn;
pub use output::{CommandTag, CopyOut, Output, OutputColumn, Prepared, QueryRows, Rows};
pub use provisional::{ColumnType, Datum, Node, Worker};
pub use session::{Session, TransactionState};

use crate::SqlError;

/// What an engine is told at its start.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The database's name, as clients ask for it.
    pub database: String,
    /// Threads that run analytical queries; also the partitions of a plan.
    pub query_threads: usize,
    /// What all running queries together may hold, in bytes; more is error 53200.
    pub query_memory_bytes: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            database: "farhold".to_owned(),
            query_threads: std::thread::available_parallelism().map_or(4, std::num::NonZero::get),
            query_memory_bytes: 2 << 30,
        }
    }
}

/// What all sessions of a process share: the node, the catalog's cache, the query threads.
pub struct Engine {
    #[allow(dead_code)]
    config: EngineConfig,
}

impl Engine {
    /// Opens the database of `node`: makes the system tables at the first start, reads the catalog.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    #[allow(clippy::unused_async)]
    pub async fn open(node: Arc<Node>, config: EngineConfig, worker: &Worker) -> Result<Arc<Self>, SqlError> {
        let _ = (node, worker);
        Ok(Arc::new(Self { config }))
    }

    /// A session for one connection, on the thread of `worker`.
    #[must_use]
    pub fn session(self: &Arc<Self>, worker: Rc<Worker>, user: &str) -> Session {
        Session::new(Arc::clone(self), worker, user)
    }
}
