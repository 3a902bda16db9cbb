//! What one thread needs to run transactions.

use crate::lower::SecondaryIndex;
use crate::{Snapshot, Table, TableDef, Txn, TxnError};
use std::rc::Rc;

/// One thread's way into the database. Not `Send`; clones are the same worker, so each of a thread's tasks may have one.
///
/// Many transactions may be open on one worker at the same time; whichever waits lets the others run.
#[derive(Clone)]
pub struct Worker {
    _not_send: Rc<()>,
}

/// How often [`Worker::run`] starts again, and how long it waits in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Most times that the body runs, the first included.
    pub attempts_max: u32,
    /// Longest wait before the second attempt; doubles with each one. The wait is random between zero and this.
    pub backoff_ns: u64,
    /// The doubling's end.
    pub backoff_ns_max: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts_max: 1000, backoff_ns: 1_000, backoff_ns_max: 1_000_000 }
    }
}

impl Worker {
    /// Starts a transaction.
    #[must_use]
    pub fn begin(&self) -> Txn {
        unimplemented!()
    }

    /// Starts a transaction that will not write: its commit takes no locks.
    #[must_use]
    pub fn begin_read_only(&self) -> Txn {
        unimplemented!()
    }

    /// Serves this node's home inbox, one step; true if there was something to do.
    #[allow(clippy::must_use_candidate)]
    pub fn poll(&self) -> bool {
        unimplemented!()
    }

    /// Runs `body` in a transaction and commits it; again after a conflict, as `retry` says.
    ///
    /// # Errors
    /// Whatever `body` or the commit fails with; [`TxnError::Conflict`] when the attempts are used up.
    pub async fn run<T>(
        &self,
        retry: Retry,
        body: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        let _ = (retry, body);
        unimplemented!()
    }

    /// Creates a table on every node and records it.
    ///
    /// # Errors
    /// [`TxnError::AlreadyExists`]; [`TxnError::Row`] for a definition that makes no sense; an unavailable node.
    pub async fn create_table(&self, definition: TableDef) -> Result<Table, TxnError> {
        let _ = definition;
        unimplemented!()
    }

    /// Drops a table on every node; transactions that use it fail with [`TxnError::SchemaChanged`].
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node.
    pub async fn drop_table(&self, table: &Table) -> Result<(), TxnError> {
        let _ = table;
        unimplemented!()
    }

    /// Creates an index and fills it, on every node, while others go on reading and writing the table.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] when rows there contradict a unique index; [`TxnError::AlreadyExists`]; an unavailable node.
    pub async fn create_index(&self, table: &Table, definition: SecondaryIndex) -> Result<(), TxnError> {
        let _ = (table, definition);
        unimplemented!()
    }

    /// Drops the secondary index of this name.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]; an unavailable node.
    pub async fn drop_index(&self, table: &Table, name: &str) -> Result<(), TxnError> {
        let _ = (table, name);
        unimplemented!()
    }

    /// The state of all tables at this moment, for scans that neither block writers nor fail because of them.
    ///
    /// # Errors
    /// An unavailable node; too many snapshots open.
    pub async fn snapshot(&self) -> Result<Snapshot, TxnError> {
        unimplemented!()
    }

    /// Live rows of a table on all nodes, about.
    ///
    /// # Errors
    /// An unavailable node.
    pub async fn row_count(&self, table: &Table) -> Result<u64, TxnError> {
        let _ = table;
        unimplemented!()
    }
}
