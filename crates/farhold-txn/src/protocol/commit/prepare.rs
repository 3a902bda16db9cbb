//! Before the commit: changed rows that cannot stay where they are become a delete and an insert.
//!
//! An object keeps its index keys for its whole life, and its slot has a length. So a new value that changes an index key, or
//! that is longer than the slot, goes into a new object; the index entries are swung when the commit is certain.
//! All that move are deleted before the first is inserted, so they may trade keys.

use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::protocol::txn::state::RowState;
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use farhold_fabric::NodeId;

impl Txn {
    /// Moves the near rows that have to.
    #[inline]
    pub(crate) fn prepare(&mut self) -> Result<(), TxnError> {
        let mut moving = Vec::new();
        for position in 0..self.state.rows.len() {
            let row = &self.state.rows[position];
            if row.has_new_value() && row.ident.node() == self.core.me && self.must_move(position)? {
                moving.push(RowHandle(position as u32));
            }
        }
        if moving.is_empty() { Ok(()) } else { self.move_near(&moving) }
    }

    /// Is the new value too long for the slot, or under another key in some index?
    #[inline]
    pub(crate) fn must_move(&self, position: usize) -> Result<bool, TxnError> {
        let row = &self.state.rows[position];
        if !matches!(row.state, RowState::Written | RowState::Inserted) {
            return Ok(false);
        }
        let (old, new) = (self.state.old_value(row), self.state.value(row));
        if new.len() > old.len() {
            let payload_len = row.key_len as usize + new.len();
            let fits = payload_len <= self.core.node.store.payload_bytes_max(row.ident.reference());
            if !fits {
                return Ok(true);
            }
        }
        if row.table().has_secondary() {
            return row.table().changes_keys(self.state.key(row), old, new);
        }
        Ok(false)
    }

    #[cold]
    fn move_near(&mut self, moving: &[RowHandle]) -> Result<(), TxnError> {
        let moving: Vec<Moving> = moving.iter().map(|handle| self.take_out(*handle)).collect();
        for Moving { table, key, value, .. } in moving {
            self.check_room(key.len() + value.len())?;
            self.insert_near(table, &key, &value).map_err(moved_meanwhile)?;
        }
        Ok(())
    }

    /// Deletes a changed row.
    pub(crate) fn take_out(&mut self, handle: RowHandle) -> Moving {
        let row = *self.state.row(handle);
        let (key, value) = (self.state.key(&row).to_vec(), self.state.value(&row).to_vec());
        self.state.delete(handle);
        Moving { table: SharedTable(row.table), node: row.ident.node(), key, value }
    }
}

/// A changed row that has been deleted and is to be inserted.
pub(crate) struct Moving {
    pub table: SharedTable,
    pub node: NodeId,
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

/// Why a changed row cannot be inserted.
pub(crate) fn moved_meanwhile(error: TxnError) -> TxnError {
    match error {
        // The key leads to another object than the one read: somebody else has moved the row.
        TxnError::DuplicateKey { index: Index::Primary, .. } => TxnError::Conflict,
        error => error,
    }
}
