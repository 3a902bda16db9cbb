//! Rows of this node: looked up in its indexes and copied in place.

use crate::base::back_off::Patience;
use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::table::{Index, TableShared};
use crate::protocol::commit::section::ranges_stand;
use crate::protocol::txn::state::{Row, RowState, State};
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use farhold_fabric::NodeId;
use farhold_store::table::Occupant;
use farhold_store::{Object, ObjectRef, ReadError, Reserve, Stamp};
use std::ptr::NonNull;

/// How often a row that is being written, or whose entry leads elsewhere, is looked at before the thread does something
/// else. A local writer is at a row for some 100 ns.
const LOOKS_MAX: u32 = 200;
/// How often a locked row is looked at before it is read as it is, and the commit must validate it. Its owner is in its
/// commit: if that succeeds, this transaction's read is useless. 32 pauses are about 1 µs on Zen 3.
const LOCKED_LOOKS_MAX: u32 = 32;

/// The most rows of a transaction that checks, when it meets a taken key, whether its commit would be refused anyway.
pub(super) const DOOMED_ROWS_MAX: usize = 1_000;

/// Is an object in the middle of a commit that makes it a row? Index entries lead to it before it is written, and the row that it
/// replaces can no longer be found. If the coordinator has died, this may last until the others have noticed that.
pub(super) fn is_undecided(is_absent: bool, lock: u64) -> bool {
    is_absent && lock != 0 && !planted!(LockedAbsenceBelieved)
}

/// The outcome of copying one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NearRead {
    /// A row, now in the read set.
    Row(RowHandle),
    /// No row, which is now in the read set as well.
    Absent,
    /// The entry that led here is out of date.
    Stale,
    /// A writer is at work.
    Busy,
    /// A writer was at work when its process ended.
    Damaged,
}

impl State {
    /// Copies an object into the read set.
    #[inline]
    pub(crate) fn read_near(&mut self, table: NonNull<TableShared>, ident: Ident, object: Object<'_>) -> NearRead {
        let mut looks = 0;
        let mut len = 0;
        let read = loop {
            let read = match object.read(ident.reference().incarnation(), self.room(len)) {
                Ok(read) if read.lock == 0 || looks >= LOCKED_LOOKS_MAX || self.alone => break read,
                Err(ReadError::Stale) => return NearRead::Stale,
                Err(ReadError::TooShort { payload_len }) => Some(payload_len),
                Err(ReadError::Torn) if looks >= LOOKS_MAX || self.alone => {
                    return if object.is_damaged() { NearRead::Damaged } else { NearRead::Busy };
                }
                Ok(_) | Err(ReadError::Torn) => None,
            };
            if let Some(payload_len) = read {
                len = payload_len;
            } else {
                looks += 1;
                std::hint::spin_loop();
            }
        };
        if is_undecided(read.is_absent(), read.lock) {
            return NearRead::Busy;
        }
        self.met_lock |= read.lock != 0 && !planted!(LockedReadBelieved);
        let state = if read.is_absent() { RowState::Absent } else { RowState::Read };
        let handle = self.push(table, ident, read.version, state, read.key_len(), read.payload_len());
        if read.is_absent() { NearRead::Absent } else { NearRead::Row(handle) }
    }

    /// Is one of the row's unique keys taken by an insert of the transaction's own that no index names yet?
    #[cold]
    pub(crate) fn check_own_replacements(
        &self,
        table: SharedTable,
        node: NodeId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), TxnError> {
        let duplicate = |index| Err(TxnError::DuplicateKey { table: table.store.id(), index });
        if self.own_replacement(table.0, node, Index::Primary, key)?.is_some() {
            return duplicate(Index::Primary);
        }
        let mut made = Vec::new();
        for (index, keys) in table.all_keys().into_iter().filter(|(_, keys)| keys.unique()) {
            keys.make(&table.schema, key, value, &mut made)?;
            if self.own_replacement(table.0, node, index, &made)?.is_some() {
                return duplicate(index);
            }
        }
        Ok(())
    }

    /// The rows of a node that the transaction deletes, and that have a key of a new row in some unique index.
    pub(crate) fn deleted_with_keys_of(
        &self,
        table: SharedTable,
        node: NodeId,
        key: &[u8],
        value: &[u8],
    ) -> Result<Vec<ObjectRef>, TxnError> {
        let is_deleted = |row: &&Row| {
            row.table == table.0 && row.ident.node() == node && matches!(row.state, RowState::Deleted | RowState::Gone)
        };
        let mut deleted = self.rows.iter().filter(is_deleted).peekable();
        if deleted.peek().is_none() {
            return Ok(Vec::new());
        }
        let mut unique = Vec::new();
        for (_, keys) in table.all_keys().into_iter().filter(|(_, keys)| keys.unique()) {
            let mut made = Vec::new();
            keys.make(&table.schema, key, value, &mut made)?;
            unique.push((keys, made));
        }
        let (mut found, mut made) = (Vec::new(), Vec::new());
        for row in deleted {
            let mut is_same = self.key(row) == key;
            for (keys, of_new) in &unique {
                keys.make(&table.schema, self.key(row), self.old_value(row), &mut made)?;
                is_same |= made == *of_new;
            }
            if is_same {
                found.push(row.ident.reference());
            }
        }
        Ok(found)
    }

    /// The transaction's own insert of a key whose index entry still names a row that it deletes.
    #[cold]
    pub(crate) fn own_replacement(
        &self,
        table: NonNull<TableShared>,
        node: NodeId,
        index: Index,
        index_key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        let mut made = Vec::new();
        for &position in self.replacing_with(node, index, index_key) {
            let row = &self.rows[position as usize];
            if row.table != table || row.ident.node() != node || row.state != RowState::Inserted {
                continue;
            }
            let same = if index == Index::Primary {
                self.key(row) == index_key
            } else {
                let keys = row.table().any_keys_of(index)?;
                keys.make(&row.table().schema, self.key(row), self.old_value(row), &mut made)?;
                made == index_key
            };
            if same {
                return Ok(Some(RowHandle(position)));
            }
        }
        Ok(None)
    }
}

impl Txn {
    /// The row with this key, if it can be had without waiting: `None` means that a writer is at work.
    #[inline]
    pub(crate) fn get_near(
        &mut self,
        table: SharedTable,
        index: Index,
        key: &[u8],
    ) -> Option<Result<Option<RowHandle>, TxnError>> {
        for _ in 0..LOOKS_MAX {
            let found = table.store.lookup(key);
            let Some(reference) = found.found else {
                let stamp = if planted!(LateStamp) { table.store.lookup(key).stamp } else { found.stamp };
                self.keep_stamp(table, stamp);
                return Some(Ok(None));
            };
            let ident = self.near_ident(reference);
            if let Some(known) = self.state.find(ident) {
                if matches!(self.state.row(known).state, RowState::Absent | RowState::Skipped) {
                    // The object was found by another index, or as a row. The proof that this key has no row is this
                    // stamp.
                    self.keep_stamp(table, found.stamp);
                }
                return Some(self.state.own_view(table, index, key, known));
            }
            let read = self.state.read_near(table.0, ident, table.store.store().object(ident.reference()));
            match read {
                NearRead::Row(handle) => return Some(Ok(Some(handle))),
                NearRead::Absent => {
                    self.keep_stamp(table, found.stamp);
                    return Some(Ok(None));
                }
                NearRead::Stale => std::hint::spin_loop(),
                NearRead::Busy => return None,
                NearRead::Damaged => return Some(Err(TxnError::HALF_WRITTEN)),
            }
        }
        None
    }

    #[inline]
    fn keep_stamp(&mut self, table: SharedTable, stamp: Stamp) {
        let me = self.core.me;
        match stamp {
            Stamp::Leaf { index, leaf } => self.state.group(table.0, Index::from_number(index), me).leaves.push(leaf),
            Stamp::Bucket(bucket) => self.state.buckets.push((me, bucket)),
        }
    }

    /// As [`Self::get_near`], letting others run while a writer is at work.
    pub(crate) async fn get_near_patiently(
        &mut self,
        table: SharedTable,
        index: Index,
        key: &[u8],
    ) -> Result<Option<RowHandle>, TxnError> {
        let core = self.core.clone();
        let mut patience = Patience::default();
        while patience.wait(&core.handle).await {
            if let Some(got) = self.get_near(table, index, key) {
                return got;
            }
        }
        Err(TxnError::Conflict)
    }

    /// Reserves a row of this node.
    #[inline]
    pub(crate) fn insert_near(&mut self, table: SharedTable, key: &[u8], value: &[u8]) -> Result<RowHandle, TxnError> {
        if !self.state.replacing.is_empty() {
            let checked = self.state.check_own_replacements(table, self.core.me, key, value);
            // The key in the way may be that of a row that this transaction has made from one which another has changed
            // since.
            checked.map_err(|taken| self.unless_doomed(taken))?;
        }
        let me = self.core.me;
        let mut moved = std::mem::take(&mut self.state.moved);
        moved.clear();
        let reserved = {
            let state = &self.state;
            let mine = |reference| state.is_given_up(Ident::new(me, reference));
            let mut alloc = self.core.alloc.borrow_mut();
            table.store.reserve(key, value, &mut alloc, &mine, &mut |step| moved.push(step))
        };
        self.state.apply_moved(table.0, me, &moved);
        self.state.moved = moved;
        match reserved.map_err(|error| TxnError::store(error, me))? {
            Reserve::Reserved { reference, replaces } => {
                let version = table.store.store().object(reference).version();
                Ok(self.state.push_insert(table.0, Ident::new(me, reference), version, key, value, replaces))
            }
            Reserve::Exists { index, reference, occupant } => {
                Err(self.key_is_taken(table, Index::from_number(index), reference, occupant))
            }
        }
    }

    /// Why an insert is refused: the row in the way, which then counts as read, or another transaction's insert.
    #[cold]
    fn key_is_taken(&mut self, table: SharedTable, index: Index, reference: ObjectRef, occupant: Occupant) -> TxnError {
        let duplicate = TxnError::DuplicateKey { table: table.store.id(), index };
        let ident = self.near_ident(reference);
        if let Some(known) = self.state.find(ident) {
            let is_live = self.state.row(known).state.is_live();
            return if is_live { self.unless_doomed(duplicate) } else { TxnError::Conflict };
        }
        let object = table.store.store().object(reference);
        if occupant != Occupant::Live {
            return if object.is_damaged() { TxnError::HALF_WRITTEN } else { TxnError::Conflict };
        }
        match self.state.read_near(table.0, ident, object) {
            NearRead::Row(_) => self.unless_doomed(duplicate),
            NearRead::Damaged => TxnError::HALF_WRITTEN,
            _ => TxnError::Conflict,
        }
    }

    /// The error that a key is taken; or a conflict, if a near row that the transaction has read has changed since, or
    /// is being changed. Its commit would be refused then, and the row in its way may be one that it has changed, or
    /// has not found. Large transactions skip this check: they may meet as many taken keys as they have rows.
    #[cold]
    pub(crate) fn unless_doomed(&self, duplicate: TxnError) -> TxnError {
        let (store, me) = (&*self.core.node.store, self.core.me);
        let has_changed = |row: &Row| {
            row.ident.node() == me && row.is_of_others() && {
                let object = store.object(row.ident.reference());
                // The lock is read first: what was written under a lock that is released by now shows in the version.
                object.lock_word() != 0 || object.version().number() != row.version.number()
            }
        };
        let is_doomed = self.state.rows.len() <= DOOMED_ROWS_MAX
            && (self.state.rows.iter().any(has_changed) || !ranges_stand(&self.all_near(&self.core, 0)));
        if is_doomed { TxnError::Conflict } else { duplicate }
    }
}
