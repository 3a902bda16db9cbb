//! Before the commit: changed rows that cannot stay where they are become a delete and an insert.
//!
//! An object keeps its index keys for its whole life, and its slot has a length. So a new value that changes an index key, or
//! that is longer than the slot, goes into a new object; the index entries are swung when the commit is certain.
//! All that move are deleted before the first is inserted, so they may trade keys.

use crate::base::error::TxnError;
use crate::base::table::Index;
use crate::protocol::core::Core;
use crate::protocol::txn::state::RowState;
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use farhold_fabric::NodeId;
use farhold_store::object::size_class;

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
    fn take_out(&mut self, handle: RowHandle) -> Moving {
        let row = *self.state.row(handle);
        let (key, value) = (self.state.key(&row).to_vec(), self.state.value(&row).to_vec());
        self.state.delete(handle);
        Moving { table: SharedTable(row.table), node: row.ident.node(), key, value }
    }
}

impl Txn {
    /// Moves the far rows that have to, and brings the copies of changed replicated rows into the write set.
    pub(super) async fn prepare_far(&mut self) -> Result<(), TxnError> {
        let mut moving = Vec::new();
        for handle in (0..self.state.rows.len() as u32).map(RowHandle) {
            let row = self.state.row(handle);
            if row.ident.node() != self.core.me && row.has_new_value() && self.must_move_far(handle)? {
                moving.push(handle);
            }
        }
        let moving: Vec<Moving> = moving.into_iter().map(|handle| self.take_out(handle)).collect();
        for moving in moving {
            self.put_far(moving).await?;
        }
        for position in 0..self.state.rows.len() {
            let row = *self.state.row(RowHandle(position as u32));
            let is_copied = row.table().route.writes_everywhere() && row.ident.node() == self.core.me && !self.copying;
            if row.state.is_write() && is_copied {
                let core = self.core.clone();
                for node in core.node.others() {
                    self.copy_to(node, RowHandle(position as u32)).await?;
                }
            }
        }
        Ok(())
    }

    /// As `must_move`, by the size class that the row needs now: that of its slot is known at home alone.
    fn must_move_far(&self, handle: RowHandle) -> Result<bool, TxnError> {
        let row = self.state.row(handle);
        if !matches!(row.state, RowState::Written | RowState::Inserted) {
            return Ok(false);
        }
        let (key, old, new) = (self.state.key(row), self.state.old_value(row), self.state.value(row));
        if new.len() > old.len() && !size_class::fits(key.len() + old.len(), key.len() + new.len()) {
            return Ok(true);
        }
        if row.table().has_secondary() { row.table().changes_keys(key, old, new) } else { Ok(false) }
    }

    async fn put_far(&mut self, moving: Moving) -> Result<(), TxnError> {
        let Moving { table, node, key, value } = moving;
        self.insert_far(table, node, &key, &value).await.map(|_| ()).map_err(moved_meanwhile)
    }

    /// Applies to a node's copy of a replicated row the change that this node's copy will get.
    async fn copy_to(&mut self, node: NodeId, handle: RowHandle) -> Result<(), TxnError> {
        let row = *self.state.row(handle);
        let table = SharedTable(row.table);
        let (key, value) = (self.state.key(&row).to_vec(), self.state.value(&row).to_vec());
        // If this node's copy and the other differ, another transaction is changing all of them and holds the lock of
        // one. Or a death has left the copies different; then this write makes them alike.
        let may_differ = self.core.node.records_may_differ();
        if row.state == RowState::Inserted {
            match self.insert_far(table, node, &key, &value).await {
                Ok(_) => return Ok(()),
                Err(TxnError::DuplicateKey { index: Index::Primary, .. }) if may_differ => {}
                Err(error) => return Err(taken_meanwhile(error)),
            }
        }
        let Some(copy) = self.get_far(table, node, Index::Primary, &key).await? else {
            return match row.state {
                // A joining node may not have received its copy yet. If the copy is just being sent, one of the two
                // transactions is refused.
                _ if self.core.is_joining(node) => Ok(()),
                RowState::Deleted if may_differ => Ok(()),
                RowState::Inserted => Err(TxnError::Conflict),
                _ if may_differ => self.insert_far(table, node, &key, &value).await.map(drop).map_err(taken_meanwhile),
                _ => Err(TxnError::Conflict),
            };
        };
        if row.state == RowState::Deleted {
            self.state.delete(copy);
            return Ok(());
        }
        self.check_room(value.len())?;
        self.state.set_value(copy, &value);
        if self.must_move_far(copy)? {
            let moving = self.take_out(copy);
            self.put_far(moving).await
        } else {
            Ok(())
        }
    }
}

impl Core {
    /// Is a node receiving its copies of replicated tables?
    fn is_joining(&self, node: NodeId) -> bool {
        self.node.replication.as_ref().is_some_and(|it| it.view.configuration().joining.contains(&node))
    }
}

/// A changed row that has been deleted and will be inserted.
struct Moving {
    table: SharedTable,
    node: NodeId,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// Why a changed row cannot be inserted.
fn moved_meanwhile(error: TxnError) -> TxnError {
    match error {
        // The key leads to another object than the one read: another transaction has moved the row.
        TxnError::DuplicateKey { index: Index::Primary, .. } => TxnError::Conflict,
        error => error,
    }
}

/// At a node without a copy of this row, a taken primary key is a conflict. A taken key of another index stays an error
/// for the caller.
fn taken_meanwhile(error: TxnError) -> TxnError {
    match error {
        TxnError::DuplicateKey { index: Index::Primary, .. } => TxnError::Conflict,
        error => error,
    }
}
