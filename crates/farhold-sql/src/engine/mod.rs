//! Catalog, planning and execution.
//!
//! ```text
//!   text ─► parse ─► bind ─┬─► direct: a Program ───────────► Txn, on the session's thread
//!                          ├─► query: DataFusion ───────────► Snapshot pages, on the query threads
//!                          ├─► UPDATE … by a query: keys ───► Txn, by primary key
//!                          └─► utility: session, definitions
//! ```

mod cancel;
mod catalog;
mod config;
mod copy;
mod ddl;
mod dialect;
mod direct;
mod error;
mod notices;
mod output;
mod parse;
mod query;
mod result;
mod scalar;
mod scan;
mod sequence;
mod session;
mod settings;
mod types;
mod walk;

use std::rc::Rc;
use std::sync::Arc;

pub use cancel::CancelHandle;
pub(crate) use cancel::Pace;
pub use config::EngineConfig;
pub use copy::{CopyIn, CopyOut};
pub(crate) use copy::{csv_names, csv_types};
pub use farhold_store::row::{ColumnType, Datum};
pub use farhold_txn::{Node, Worker};
pub use output::{Output, Prepared, QueryRows, Rows};
use parse::OPERATOR_PREFIX;
pub(crate) use parse::{Opaque, Parsed, opaque_end};
pub use result::{CommandTag, OutputColumn};
pub(crate) use session::Mark;
pub use session::{Session, TransactionState};
pub(crate) use types::{cast as cast_datum, datum_at, from_arrow, from_field, to_arrow};

use self::catalog::Catalog;
use self::direct::RowNumbers;
use self::query::QueryEngine;
use self::scan::Paths;
use self::sequence::{Numbers, Sequences, SessionNumbers};
use crate::SqlError;

/// The stack of a thread that parses, plans or evaluates what clients send. It suffices for every statement within the
/// limits of `parse`, including code that parses, walks, prints and drops trees of 2,000 levels.
pub use farhold_join::STACK_BYTES;

/// The state shared by all sessions of a process: the node, the catalog cache, the query threads.
pub struct Engine {
    config: EngineConfig,
    catalog: Arc<Catalog>,
    queries: QueryEngine,
    row_numbers: RowNumbers,
    sequences: Sequences,
    /// The access paths to columns of other nodes.
    paths: Arc<Paths>,
}

impl Engine {
    /// Opens the database of `node`: reads the catalog, starts the query threads.
    ///
    /// # Errors
    /// The threads cannot be started.
    #[allow(clippy::unused_async)]
    pub async fn open(node: Arc<Node>, config: EngineConfig, worker: &Worker) -> Result<Arc<Self>, SqlError> {
        let _ = worker;
        let nodes = u64::from(node.config().nodes.max(1));
        let row_numbers = RowNumbers::new(node.id().0, scalar::wall_clock_us());
        let paths = Arc::new(Paths::open(&node));
        let catalog = Arc::new(Catalog::new(node));
        let queries = QueryEngine::new(&catalog, &config, nodes)?;
        Ok(Arc::new(Self { config, catalog, queries, row_numbers, sequences: Sequences::default(), paths }))
    }

    /// The configuration with which the engine was opened.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What went wrong when the engine opened, though it goes on: for the operator.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.paths.warning()
    }

    /// The source of the sequence and row numbers that a statement's expressions use.
    pub(crate) fn numbers<'a>(&'a self, session: &'a SessionNumbers, worker: &'a Worker) -> Numbers<'a> {
        Numbers { catalog: &self.catalog, sequences: &self.sequences, rows: &self.row_numbers, session, worker }
    }

    /// A session for one connection, on the thread of `worker`. The thread needs [`STACK_BYTES`] of stack, so that any
    /// statement may run.
    #[must_use]
    pub fn session(self: &Arc<Self>, worker: Rc<Worker>, user: &str) -> Session {
        Session::new(Arc::clone(self), worker, user)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.paths.close();
    }
}

#[cfg(test)]
mod tests {
    use super::EngineConfig;

    #[test]
    fn threads_of_queries_follow_their_memory() {
        let threads = |query_threads, mebibytes: usize| {
            let config = EngineConfig { query_threads, query_memory_bytes: mebibytes << 20, ..EngineConfig::default() };
            config.threads_of_queries()
        };
        assert_eq!([60, 256, 512, 2048, 8192].map(|mebibytes| threads(126, mebibytes)), [4, 8, 16, 64, 126]);
        assert_eq!([1, 2, 4, 8].map(|processors| threads(processors, 60)), [1, 2, 4, 4]);
        assert_eq!(threads(0, 256), 1);
    }
}
