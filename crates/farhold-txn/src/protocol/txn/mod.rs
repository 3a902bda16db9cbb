//! One transaction, as its user sees it.

pub(crate) mod scan;
pub(crate) mod spec;
pub(crate) mod stamps;
pub(crate) mod state;

use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::phases::Running;
use crate::base::table::{Index, Table, TableShared};
use crate::protocol::commit::Held;
use crate::protocol::core::Core;
use crate::protocol::txn::spec::ScanSpec;
use crate::rpc::message::Request;
use farhold_fabric::NodeId;
use farhold_store::Owner;
use farhold_store::object::size_class::PAYLOAD_BYTES_MAX;
use state::{RowState, State};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::rc::Rc;

/// A row that a transaction has read or made: good for that transaction alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowHandle(pub(crate) u32);

/// A point that a transaction can go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    pub(crate) mark: u32,
}

/// What a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitInfo {
    /// The epoch: a snapshot taken before this call has a smaller one or shows its writes. 0 if nothing was written.
    pub epoch: u32,
    /// Rows written, inserted and deleted.
    pub rows_written: u32,
    /// For histories: a number from one counter of the process, drawn while all rows to write were locked and before anything
    /// was validated. 0 unless built with the feature `planted`.
    pub serial: u64,
}

/// A serializable transaction. Dropping it aborts it. It stays on its worker's thread.
///
/// It reads committed rows, but they need not be of one moment: a transaction whose reads contradict each other is refused
/// at its commit. So what was read is certain only when [`commit`](Self::commit) has returned.
pub struct Txn {
    pub(crate) core: Rc<Core>,
    /// Taken out by `drop` alone.
    pub(crate) state: ManuallyDrop<Box<State>>,
    pub(crate) owner: Owner,
    running: Running,
    /// The node's count of index changes when it began.
    pub(crate) indexes_version: u64,
    read_only: bool,
    pub(crate) stage: Stage,
    /// What its commit has locked so far.
    pub(crate) held: Held,
    /// See [`CommitInfo::serial`].
    pub(crate) serial: u64,
    /// [`Core::starts_met`] when it began. What it has read at a node is void once a later start of that node is met, because that start
    /// has other indexes.
    pub(crate) starts_met: u64,
    /// The same count when it took its locks. A start that is met later has freed them.
    pub(crate) locked_met: u64,
    /// It writes copies of a replicated table one by one: a write to one copy goes to no other copy.
    pub(crate) copying: bool,
    /// Its commit returns when its outcome is known, or this node is out of the cluster, however long that takes.
    pub(crate) is_patient: bool,
}

/// The state of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It reads and writes.
    Running,
    /// An operation has failed in a way that rules out a commit.
    Failed,
    /// Committed, or taken back.
    Over,
}

impl Txn {
    #[inline]
    pub(crate) fn begin(core: &Rc<Core>, read_only: bool) -> Self {
        Self {
            owner: core.next_owner(),
            state: ManuallyDrop::new(core.take_state()),
            running: core.slot.begin(),
            indexes_version: core.node.catalog.indexes_version(),
            core: core.clone(),
            read_only,
            stage: Stage::Running,
            held: Held::default(),
            serial: 0,
            starts_met: core.starts_met.get(),
            locked_met: core.starts_met.get(),
            copying: false,
            is_patient: false,
        }
    }

    /// The row with this primary key.
    ///
    /// # Errors
    /// [`TxnError::Conflict`], an unavailable node, a dropped table; [`TxnError::Row`] for a key that is none;
    /// [`TxnError::TooLarge`] if the transaction holds 2 GiB.
    #[inline]
    pub async fn get(&mut self, table: &Table, key: &[u8]) -> Result<Option<RowHandle>, TxnError> {
        let shared = self.enter(table)?;
        shared.check_key(key)?;
        let home = shared.route.home(key);
        let got = if home == self.core.me {
            match self.get_near(shared, Index::Primary, key) {
                Some(got) => got,
                None => Box::pin(self.get_near_patiently(shared, Index::Primary, key)).await,
            }
        } else {
            Box::pin(self.get_far(shared, home, Index::Primary, key)).await
        };
        self.note(got)
    }

    /// Starts loading where [`get`](Self::get) of this key will look first, for code that knows its keys some 100 ns before
    /// it needs the rows: its bucket of the hash index, or its leaf of the ordered one. A hint, and no read: nothing depends on
    /// it. Does nothing for a row of another node.
    ///
    /// TPC-C's new-order knows its 20 item and stock rows at its start; with both steps it takes a quarter less time, since
    /// their cache misses overlap.
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    #[inline]
    pub fn prefetch(&self, table: &Table, key: &[u8]) {
        if table.0.route.home(key) == self.core.me {
            table.0.store.prefetch(key);
        }
    }

    /// The second step: starts loading the first `bytes` bytes of the row itself, header and key included.
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    #[inline]
    pub fn prefetch_row(&self, table: &Table, key: &[u8], bytes: u64) {
        if table.0.route.home(key) == self.core.me {
            table.0.store.prefetch_row(key, bytes);
        }
    }

    /// The row with this key in a unique index: all its columns, encoded by the index's
    /// [key maker](crate::Table::keys_of).
    ///
    /// # Errors
    /// As [`get`](Self::get); [`TxnError::NotFound`] for an index that is not there.
    pub async fn get_by(&mut self, table: &Table, index: Index, key: &[u8]) -> Result<Option<RowHandle>, TxnError> {
        if index == Index::Primary {
            return self.get(table, key).await;
        }
        let spec = ScanSpec {
            lo: std::ops::Bound::Included(key),
            hi: std::ops::Bound::Included(key),
            limit: 1,
            ..ScanSpec::all()
        };
        let mut rows = Vec::new();
        self.scan_into(table, spec.index(index), &mut rows).await?;
        Ok(rows.first().copied())
    }

    /// The row's primary key.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    #[must_use]
    #[inline]
    pub fn key(&self, row: RowHandle) -> &[u8] {
        self.state.key(self.state.row(row))
    }

    /// The row's value, with this transaction's changes.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    #[must_use]
    #[inline]
    pub fn value(&self, row: RowHandle) -> &[u8] {
        self.state.value(self.state.row(row))
    }

    /// The row's value, to be changed in place; its length stays. Marks the row as written, changed or not, so it is
    /// also how SELECT ... FOR UPDATE says that no other transaction may write the row before this transaction's
    /// commit.
    ///
    /// Indexed columns may change; the commit then moves the index entries.
    ///
    /// # Panics
    /// If the handle is not of this transaction, the row is deleted, or the transaction is read-only.
    #[must_use]
    #[inline]
    pub fn value_mut(&mut self, row: RowHandle) -> &mut [u8] {
        assert!(!self.read_only, "value_mut in a read-only transaction");
        assert!(self.state.row(row).state.is_live(), "value_mut of a row that this transaction has deleted");
        self.state.value_mut(row)
    }

    /// Gives the row another value, of any length.
    ///
    /// # Errors
    /// [`TxnError::ReadOnly`], [`TxnError::TooLarge`], [`TxnError::NotFound`] if this transaction has deleted the row.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    pub fn update(&mut self, row: RowHandle, value: &[u8]) -> Result<(), TxnError> {
        let found = self.state.row(row);
        self.may_write(found.key_len as usize + value.len())?;
        if !found.state.is_live() {
            return Err(deleted());
        }
        self.state.set_value(row, value);
        Ok(())
    }

    /// Inserts a row.
    ///
    /// # Errors
    /// [`TxnError::DuplicateKey`] if a row with this primary key, or with the same key in a unique index, is there (it then
    /// counts as read: the transaction may go on, knowing that);
    /// [`TxnError::Conflict`] if another transaction is inserting one; [`TxnError::ReadOnly`], [`TxnError::TooLarge`],
    /// [`TxnError::OutOfMemory`], an unavailable node, a dropped table.
    #[inline]
    pub async fn insert(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<RowHandle, TxnError> {
        let shared = self.enter(table)?;
        shared.check_key(key)?;
        self.may_write(key.len() + value.len())?;
        let home = shared.route.home(key);
        let inserted = if home == self.core.me {
            self.insert_near(shared, key, value)
        } else {
            Box::pin(self.insert_far(shared, home, key, value)).await
        };
        self.note(inserted)
    }

    /// Inserts a row into one node's copy of a replicated table.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub(crate) async fn insert_on(
        &mut self,
        node: NodeId,
        table: &Table,
        key: &[u8],
        value: &[u8],
    ) -> Result<RowHandle, TxnError> {
        debug_assert!(self.copying, "the commit would insert it into all of them");
        let shared = self.enter(table)?;
        self.may_write(key.len() + value.len())?;
        let inserted = if node == self.core.me {
            self.insert_near(shared, key, value)
        } else {
            Box::pin(self.insert_far(shared, node, key, value)).await
        };
        self.note(inserted)
    }

    /// Deletes the row. Its key and value can still be read through the handle.
    ///
    /// # Errors
    /// [`TxnError::ReadOnly`], [`TxnError::NotFound`] if this transaction has deleted the row before.
    ///
    /// # Panics
    /// If the handle is not of this transaction.
    pub fn delete(&mut self, row: RowHandle) -> Result<(), TxnError> {
        self.may_write(0)?;
        if !self.state.row(row).state.is_live() {
            return Err(deleted());
        }
        self.state.delete(row);
        Ok(())
    }

    /// Marks this point.
    #[must_use]
    pub fn savepoint(&mut self) -> Savepoint {
        self.state.savepoint()
    }

    /// Takes back every write since `savepoint`, which stays. Reads since then still count: they were seen. Handles of rows
    /// inserted since then are those of deleted rows.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        self.state.rollback_to(savepoint);
    }

    /// Whether it was begun read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether anything is to be written so far.
    #[must_use]
    pub fn has_writes(&self) -> bool {
        self.state.writes > 0
    }

    /// Forgets all its writes. Dropping does the same.
    pub fn abort(self) {}

    /// Checks that the transaction can use the table.
    #[inline]
    pub(crate) fn enter(&self, table: &Table) -> Result<SharedTable, TxnError> {
        let shared = &table.0;
        assert!(shared.owner == self.core.node.tag, "a table of another node");
        if shared.is_dropped() {
            return Err(TxnError::SchemaChanged);
        }
        if self.stage == Stage::Failed {
            return Err(TxnError::Conflict);
        }
        self.check_room(0)?;
        self.core.serve_now_and_then();
        Ok(SharedTable(NonNull::from(&**shared)))
    }

    /// Remembers an error that rules out a commit.
    #[inline]
    pub(crate) fn note<T>(&mut self, result: Result<T, TxnError>) -> Result<T, TxnError> {
        match result {
            Err(error) if !error.leaves_transaction_whole() => {
                self.stage = Stage::Failed;
                Err(self.core.retryable(error))
            }
            result => result,
        }
    }

    #[inline]
    fn may_write(&self, payload_len: usize) -> Result<(), TxnError> {
        if self.read_only {
            return Err(TxnError::ReadOnly);
        }
        if payload_len > PAYLOAD_BYTES_MAX {
            return Err(TxnError::TooLarge { what: "a row", bytes: payload_len, bytes_max: PAYLOAD_BYTES_MAX });
        }
        self.check_room(payload_len)
    }

    /// Is there room for `len` more bytes?
    #[inline]
    pub(crate) fn check_room(&self, len: usize) -> Result<(), TxnError> {
        let bytes = self.state.bytes_used() + len;
        if bytes > state::BYTES_MAX {
            return Err(TxnError::TooLarge { what: "a transaction", bytes, bytes_max: state::BYTES_MAX });
        }
        Ok(())
    }
}

/// A table in use by a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedTable(pub NonNull<TableShared>);

impl std::ops::Deref for SharedTable {
    type Target = TableShared;

    #[inline]
    fn deref(&self) -> &TableShared {
        // SAFETY: made by `Txn::enter` from a table that was in the catalog after the transaction had counted itself
        // in; the catalog releases a table only when every transaction counted in before the drop has ended.
        unsafe { self.0.as_ref() }
    }
}

#[cold]
fn deleted() -> TxnError {
    TxnError::NotFound { what: "such row: this transaction has deleted it".into() }
}

impl Drop for Txn {
    #[inline]
    fn drop(&mut self) {
        if self.held.near || !self.held.far.is_empty() {
            self.let_go();
        }
        if self.stage != Stage::Over {
            self.take_back();
        }
        // SAFETY: nothing uses the state after `drop`.
        let state = unsafe { ManuallyDrop::take(&mut self.state) };
        self.core.give_state(state);
        self.core.slot.end(self.running);
    }
}

impl Txn {
    /// Gives reservations back.
    fn take_back(&mut self) {
        let core = self.core.clone();
        for row in self.state.rows.iter().filter(|row| matches!(row.state, RowState::Inserted | RowState::Gone)) {
            if row.ident.node() == core.me {
                row.table().store.cancel(row.ident.reference(), &mut core.alloc.borrow_mut());
            }
        }
        for (node, answered) in &self.state.reserved_at {
            let request = Request::Forget { owner: self.owner.word(), answered: *answered };
            core.tell_all_the_same(*node, request);
        }
    }

    /// The ident of an object of this node.
    #[inline]
    pub(crate) fn near_ident(&self, reference: farhold_store::ObjectRef) -> Ident {
        Ident::new(self.core.me, reference)
    }

    /// This node.
    #[inline]
    pub(crate) fn me(&self) -> NodeId {
        self.core.me
    }
}
