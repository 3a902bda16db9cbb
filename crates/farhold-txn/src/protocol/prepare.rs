//! Before the commit: changed rows that cannot stay where they are become a delete and an insert.
//!
//! An object keeps its index keys for its whole life, and its slot has a length. So a new value that changes an index key, or
//! that is longer than the slot, goes into a new object; the index entries are swung when the commit is certain.

use crate::txn::state::RowState;
use crate::txn::{RowHandle, SharedTable, Txn};
use crate::{Index, TxnError};

impl Txn {
    /// Moves the near rows that have to.
    #[inline]
    pub(crate) fn prepare(&mut self) -> Result<(), TxnError> {
        let count = self.state.rows.len();
        for position in 0..count {
            let row = &self.state.rows[position];
            if row.has_new_value() && row.ident.node() == self.core.me && self.must_move(position)? {
                self.move_near(RowHandle(position as u32))?;
            }
        }
        Ok(())
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
    fn move_near(&mut self, handle: RowHandle) -> Result<(), TxnError> {
        let row = *self.state.row(handle);
        let (key, value) = (self.state.key(&row).to_vec(), self.state.value(&row).to_vec());
        self.state.delete(handle);
        match self.insert_near(SharedTable(row.table), &key, &value) {
            Ok(_) => Ok(()),
            // The key leads to another object than the one read: somebody else has moved the row.
            Err(TxnError::DuplicateKey { index: Index::Primary, .. }) => Err(TxnError::Conflict),
            Err(error) => Err(error),
        }
    }
}
