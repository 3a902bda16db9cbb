//! One transaction.

use crate::lower::NodeId;
use crate::{Index, Table, TxnError};
use std::ops::Bound;
use std::rc::Rc;

/// A row that a transaction has read or made: good for that transaction alone, while the savepoint it was made after stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowHandle(pub(crate) u32);

/// A point that a transaction can go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    pub(crate) mark: u32,
}

/// Which nodes a scan asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// Those that the bounds leave possible: one, if the index begins with the placement column and both bounds agree in
    /// it; else all, their rows merged in key order. This node alone for a replicated table.
    #[default]
    Auto,
    /// This one.
    Node(NodeId),
}

/// What to scan. Bounds are encoded keys of the index, or prefixes of such.
#[derive(Clone, Copy, Debug)]
pub struct ScanSpec<'a> {
    /// Which index.
    pub index: Index,
    /// Where keys begin.
    pub lo: Bound<&'a [u8]>,
    /// Where keys end.
    pub hi: Bound<&'a [u8]>,
    /// From the end to the beginning?
    pub descending: bool,
    /// Most rows to return. The scan is protected against phantoms as far as it went, no further.
    pub limit: usize,
    /// Which nodes.
    pub partition: Partition,
}

impl<'a> ScanSpec<'a> {
    /// All rows of the table, by primary key.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            index: Index::Primary,
            lo: Bound::Unbounded,
            hi: Bound::Unbounded,
            descending: false,
            limit: usize::MAX,
            partition: Partition::Auto,
        }
    }

    /// Keys from `lo` to before `hi`, by primary key.
    #[must_use]
    pub const fn range(lo: &'a [u8], hi: &'a [u8]) -> Self {
        Self { lo: Bound::Included(lo), hi: Bound::Excluded(hi), ..Self::all() }
    }

    /// By another index.
    #[must_use]
    pub const fn index(self, index: Index) -> Self {
        Self { index, ..self }
    }

    /// The last keys first.
    #[must_use]
    pub const fn descending(self) -> Self {
        Self { descending: true, ..self }
    }

    /// At most `limit` rows.
    #[must_use]
    pub const fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }
}

/// What a commit tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// The epoch: a snapshot taken before this call has a smaller one or shows its writes.
    pub epoch: u32,
    /// Rows written, inserted and deleted.
    pub rows_written: u32,
}

/// A serializable transaction. Dropping it aborts it. Its worker's thread is its own.
pub struct Txn {
    _not_send: Rc<()>,
}

impl Txn {
    /// The row with this primary key.
    ///
    /// # Errors
    /// [`TxnError::Conflict`], an unavailable node, a dropped table.
    #[inline]
    pub async fn get(&mut self, table: &Table, key: &[u8]) -> Result<Option<RowHandle>, TxnError> {
        let _ = (table, key);
        unimplemented!()
    }

    /// The row with this key in a unique index (all its columns, encoded).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn get_by(&mut self, table: &Table, index: Index, key: &[u8]) -> Result<Option<RowHandle>, TxnError> {
        let _ = (table, index, key);
        unimplemented!()
    }

    /// The row's primary key.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    #[must_use]
    #[inline]
    pub fn key(&self, row: RowHandle) -> &[u8] {
        let _ = row;
        unimplemented!()
    }

    /// The row's value, with this transaction's changes.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    #[must_use]
    #[inline]
    pub fn value(&self, row: RowHandle) -> &[u8] {
        let _ = row;
        unimplemented!()
    }

    /// The row's value, to be changed in place; its length stays. Marks the row as written, changed or not, so it is also how
    /// to lock a row against others until commit in the sense of SELECT ... FOR UPDATE.
    ///
    /// Indexed columns may change; the commit then moves the index entries.
    ///
    /// # Panics
    /// If the handle is not of this transaction, the row is deleted, or the transaction is read-only.
    #[must_use]
    #[inline]
    pub fn value_mut(&mut self, row: RowHandle) -> &mut [u8] {
        let _ = row;
        unimplemented!()
    }

    /// Gives the row another value, of any length.
    ///
    /// # Errors
    /// [`TxnError::ReadOnly`], [`TxnError::TooLarge`], [`TxnError::NotFound`] if this transaction has deleted the row.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    pub fn update(&mut self, row: RowHandle, value: &[u8]) -> Result<(), TxnError> {
        let _ = (row, value);
        unimplemented!()
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] if a row with this primary key, or with the same key in a unique index, is there;
    /// [`TxnError::Conflict`] if another transaction is inserting or deleting one; [`TxnError::ReadOnly`],
    /// [`TxnError::TooLarge`], [`TxnError::OutOfMemory`], an unavailable node, a dropped table.
    pub async fn insert(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<RowHandle, TxnError> {
        let _ = (table, key, value);
        unimplemented!()
    }

    /// Deletes the row. Its key and value can still be read through the handle.
    ///
    /// # Errors
    /// [`TxnError::ReadOnly`], [`TxnError::NotFound`] if this transaction has deleted the row before.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    pub fn delete(&mut self, row: RowHandle) -> Result<(), TxnError> {
        let _ = row;
        unimplemented!()
    }

    /// The rows of a range of an index, in its order; with this transaction's own changes.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn scan(&mut self, table: &Table, spec: ScanSpec<'_>) -> Result<Vec<RowHandle>, TxnError> {
        let _ = (table, spec);
        unimplemented!()
    }

    /// As [`scan`](Self::scan), appending to `rows`.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub async fn scan_into(
        &mut self,
        table: &Table,
        spec: ScanSpec<'_>,
        rows: &mut Vec<RowHandle>,
    ) -> Result<(), TxnError> {
        let _ = (table, spec, rows);
        unimplemented!()
    }

    /// Marks this point.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        unimplemented!()
    }

    /// Takes back every write since `savepoint`, which stays. Reads since then still count: they were seen.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        let _ = savepoint;
        unimplemented!()
    }

    /// Whether it was begun read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        unimplemented!()
    }

    /// Makes all its writes visible at one moment, or none.
    ///
    /// # Errors
    /// [`TxnError::Conflict`]; an unavailable node (with `committed` if its part alone may be missing).
    pub async fn commit(self) -> Result<CommitInfo, TxnError> {
        unimplemented!()
    }

    /// Forgets all its writes. Dropping does the same.
    pub fn abort(self) {}
}
