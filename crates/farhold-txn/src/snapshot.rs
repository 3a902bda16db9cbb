//! One consistent state of all tables, for analytical scans.

use crate::{Table, TxnError};

/// The state of all tables at one epoch. May be shared by threads; scans never block a writer, never fail because of
/// one, and wait only for rows that are in the middle of a commit. Older copies of rows are kept until it is dropped.
pub struct Snapshot;

/// A part of a table for one thread to scan.
#[derive(Clone, Debug)]
pub struct PageTask;

impl PageTask {
    /// The node whose pages they are.
    #[must_use]
    pub fn node(&self) -> crate::lower::NodeId {
        unimplemented!()
    }

    /// Bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        unimplemented!()
    }
}

impl Snapshot {
    /// Which state: the transactions of all epochs up to this one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        unimplemented!()
    }

    /// Splits a table, on all nodes, into tasks of one page or a few.
    ///
    /// # Errors
    /// An unavailable node, a dropped table.
    pub fn pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let _ = table;
        unimplemented!()
    }

    /// Visits (key bytes, value bytes) of every row of this state in these pages.
    ///
    /// # Errors
    /// An unavailable node.
    pub fn scan_page(&self, task: &PageTask, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), TxnError> {
        let _ = (task, visit);
        unimplemented!()
    }
}
