//! Inserts on other nodes: the home node reserves the row, and tells what that has done to the stamps of its indexes.

use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::table::TableShared;
use crate::protocol::execute::far::FarRead;
use crate::protocol::txn::stamps::Stamps;
use crate::protocol::txn::state::State;
use crate::protocol::txn::{RowHandle, SharedTable, Txn};
use crate::rpc::message::{Request, Reserved, Taken};
use farhold_btree::{Change, LeafStamp};
use farhold_fabric::{NodeId, Version};
use farhold_store::Moved;
use std::cell::Cell;
use std::ptr::NonNull;

impl Txn {
    /// Reserves a row at its home.
    pub(crate) async fn insert_far(
        &mut self,
        table: SharedTable,
        home: NodeId,
        key: &[u8],
        value: &[u8],
    ) -> Result<RowHandle, TxnError> {
        self.state.far = true;
        self.check_room(key.len() + value.len())?;
        self.core.check_served(home)?;
        if !self.state.replacing.is_empty()
            && let Err(taken) = self.state.check_own_replacements(table, home, key, value)
        {
            return Err(self.far_unless_doomed(taken).await);
        }
        let mine = self.state.deleted_with_keys_of(table, home, key, value)?;
        let configuration = self.core.node.configuration().map_or(0, |installed| installed.number);
        let (table_id, owner) = (table.store.id(), self.owner.word());
        let request = Request::Reserve { table: table_id, owner, configuration, key, value, mine };
        // Marked as unanswered until the answer comes: meanwhile this transaction may be dropped, or learn that the
        // node does not answer.
        let unanswered = self.state.reserved_at.insert(home, false);
        let is_posted = Cell::new(false);
        let reserved = self.core.clone().ask_noting(home, &request, Reserved::decode, &is_posted).await;
        match unanswered {
            // A node that has received nothing has reserved nothing.
            None if !is_posted.get() => drop(self.state.reserved_at.remove(&home)),
            Some(before) if reserved.is_ok() || !is_posted.get() => drop(self.state.reserved_at.insert(home, before)),
            None if reserved.is_ok() => drop(self.state.reserved_at.insert(home, true)),
            _ => {}
        }
        let reserved = reserved?;
        self.state.apply_moved(table.0, home, &reserved.moved);
        match reserved.outcome {
            Ok(made) => {
                let ident = Ident::new(home, made.reference);
                Ok(self.state.push_insert(table.0, ident, Version(made.version), key, value, made.replaces))
            }
            Err(taken) => Err(self.key_is_taken_far(table, home, taken).await),
        }
    }

    /// Why an insert is refused: the row in the way, which then counts as read, or another transaction's insert.
    async fn key_is_taken_far(&mut self, table: SharedTable, home: NodeId, taken: Taken) -> TxnError {
        let duplicate = TxnError::DuplicateKey { table: table.store.id(), index: taken.index };
        let ident = Ident::new(home, taken.reference);
        if let Some(known) = self.state.find(ident) {
            // It was skipped on the way to another row, but now it matters.
            self.state.unskip(known);
            let is_live = self.state.row(known).state.is_live();
            return if is_live { self.far_unless_doomed(duplicate).await } else { TxnError::Conflict };
        }
        if !taken.live {
            return self.core.clone().check_damage(ident.far()).await.err().unwrap_or(TxnError::Conflict);
        }
        match self.read_object_far(table, ident, table.payload_hint()).await {
            Ok(FarRead::Row(_)) => self.far_unless_doomed(duplicate).await,
            Ok(_) => TxnError::Conflict,
            Err(error) => error,
        }
    }
}

impl State {
    /// Carries the stamps of a node over a reservation of the transaction's own there.
    pub(crate) fn apply_moved(&mut self, table: NonNull<TableShared>, node: NodeId, moved: &[Moved]) {
        for moved in moved {
            match moved {
                Moved::Leaves { index, changes } => {
                    let groups = self.groups_mut().iter_mut();
                    for group in groups
                        .filter(|it| it.table == table && it.node == node && it.index.number() == usize::from(*index))
                    {
                        carry_leaves(changes.as_slice(), &mut group.leaves);
                    }
                }
                Moved::Bucket { before, after, half } => {
                    let after = std::iter::once(*after).chain(*half);
                    self.buckets.carry((node, *before), after.map(|bucket| (node, bucket)));
                }
            }
        }
    }
}

/// As [`farhold_btree::Changes::apply`].
fn carry_leaves(changes: &[Change], stamps: &mut Stamps<LeafStamp>) {
    for split in changes.chunk_by(|one, next| one.before == next.before) {
        stamps.carry(split[0].before, split.iter().map(|step| step.after));
    }
}
