//! A node: one process's (or one simulated machine's) store, tables and workers.

use crate::lower::{Fabric, Handle, NodeId};
use crate::{Table, TableId, TxnError, Worker};
use std::sync::Arc;

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How many nodes the cluster has: they are 0..`nodes`.
    pub nodes: u8,
    /// Bytes of this node's region, when it is created.
    pub region_bytes: u64,
    /// How long a request to another node may take before the node counts as unavailable.
    pub request_timeout_ns: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { nodes: 1, region_bytes: 1 << 30, request_timeout_ns: 2_000_000_000 }
    }
}

/// This node's part of the database: its region, its tables, what its workers share.
pub struct Node;

impl Node {
    /// Creates this node's region, or attaches the one that a predecessor left: then reads its system table, rebuilds its
    /// indexes and releases the locks that the predecessor held here.
    ///
    /// # Errors
    /// The region is not ours, is damaged, or cannot be had.
    pub fn open(fabric: Fabric, config: NodeConfig) -> Result<Arc<Self>, TxnError> {
        let _ = (fabric, config);
        unimplemented!()
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        unimplemented!()
    }

    /// A worker for this thread, whose waiting goes by `handle`.
    ///
    /// # Errors
    /// All 255 worker numbers are taken, or the fabric has no endpoint left.
    pub fn worker(self: &Arc<Self>, handle: Handle) -> Result<Worker, TxnError> {
        let _ = handle;
        unimplemented!()
    }

    /// The table of this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<Table> {
        let _ = name;
        unimplemented!()
    }

    /// The table with this number.
    #[must_use]
    pub fn table_by_id(&self, id: TableId) -> Option<Table> {
        let _ = id;
        unimplemented!()
    }

    /// All tables, by number.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        unimplemented!()
    }

    /// Grows with every change of a table or index on this node: what a cache of definitions compares.
    #[must_use]
    pub fn catalog_version(&self) -> u64 {
        unimplemented!()
    }

    /// What its workers have done so far, summed.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        unimplemented!()
    }
}

/// Counts since the node was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions committed, read-only ones included.
    pub commits: u64,
    /// Commits refused because a row or a range read had changed.
    pub aborts_validation: u64,
    /// Commits refused because a row to write was locked by another.
    pub aborts_lock: u64,
    /// Transactions stopped for another reason: the caller, an error.
    pub aborts_other: u64,
    /// Times that [`Worker::run`] started a transaction again.
    pub retries: u64,
    /// Requests answered for other nodes.
    pub requests_served: u64,
}
