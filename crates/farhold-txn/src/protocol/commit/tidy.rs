//! After the commit: deleted rows leave the indexes, and rows that were inserted and deleted are removed.

use crate::base::error::TxnError;
use crate::protocol::commit::far::STAMPS_MAX;
use crate::protocol::core::Core;
use crate::protocol::execute::peer::by_node;
use crate::protocol::txn::Txn;
use crate::protocol::txn::state::RowState;
use crate::replication::Replication;
use crate::replication::promise::Sent;
use crate::rpc::message::Request;
use farhold_fabric::NodeId;
use farhold_store::{ObjectRef, TableId};

impl Txn {
    /// On this node.
    #[inline]
    pub(crate) fn tidy_up(&mut self, epoch: u32) {
        let core = &*self.core;
        for row in &self.state.rows {
            if row.ident.node() != core.me {
                continue;
            }
            crate::base::planted::may_stop();
            match row.state {
                RowState::Deleted => {
                    row.table().store.remove(row.ident.reference(), epoch, &mut core.alloc.borrow_mut());
                }
                RowState::Gone => row.table().store.cancel(row.ident.reference(), &mut core.alloc.borrow_mut()),
                _ => {}
            }
        }
    }

    /// Tells some homes of far deletes that the rows can leave the indexes, and of what was inserted and deleted.
    pub(super) async fn tidy_up_far(&self, epoch: u32, is_of: impl Fn(NodeId) -> bool) {
        // A node that has ended finds both out for itself when it starts again.
        for (node, request) in self.removals(epoch).into_iter().chain(self.cancellations()) {
            if !is_of(node) {
                continue;
            }
            // The request reaches also a node that is stopped or cut off for longer than a request may take.
            if self.core.endpoint.maps_others() {
                self.core.tell_certainly(node, &request).await;
            } else {
                self.core.tell_for_certain(node, request);
            }
        }
    }

    /// As [`Self::tidy_up_far`], certainly, and without making the commit wait. The record is finished only afterwards:
    /// if this node dies before the homes have heard, only the record tells which rows must leave the indexes.
    pub(super) fn tidy_up_far_later(&self, epoch: u32, number: u64, sent: Sent) {
        let (removals, cancellations) = (self.removals(epoch), self.cancellations());
        if removals.is_empty() && cancellations.is_empty() {
            sent.finish(self.core.node.journaling.as_deref(), epoch);
            return;
        }
        let core = self.core.clone();
        self.core.leave_owed(async move {
            for (node, request) in removals {
                if let Err(TxnError::NodeUnavailable { .. }) = core.insist_call(node, &request, number).await {
                    // This node is expelled; the others redo the record.
                    return;
                }
            }
            sent.finish(core.node.journaling.as_deref(), epoch);
            core.cancel_certainly(cancellations, number).await;
        });
    }

    /// As [`Self::tidy_up_far_later`], of a transaction that has written nothing.
    pub(super) fn cancel_later(&self, replication: &Replication) {
        let cancellations = self.cancellations();
        if !cancellations.is_empty() {
            let (core, number) = (self.core.clone(), replication.view.configuration().number);
            self.core.leave(async move { core.cancel_certainly(cancellations, number).await });
        }
    }

    /// What the coordinator must tell homes about rows that it has deleted there.
    fn removals(&self, epoch: u32) -> Vec<(NodeId, Request<'static>)> {
        self.of_far_rows(RowState::Deleted, |table, references| Request::Remove { table, epoch, references })
    }

    /// What the coordinator must tell homes about rows that it has inserted there and deleted again.
    fn cancellations(&self) -> Vec<(NodeId, Request<'static>)> {
        self.of_far_rows(RowState::Gone, |table, references| Request::Cancel { table, references })
    }

    /// Requests of far rows in a state, to their homes, each of one table and of as many rows as a message takes.
    fn of_far_rows(
        &self,
        state: RowState,
        request: impl Fn(TableId, Vec<ObjectRef>) -> Request<'static>,
    ) -> Vec<(NodeId, Request<'static>)> {
        let me = self.core.me;
        let rows = self.state.rows.iter().filter(|row| row.state == state && row.ident.node() != me);
        let named = by_node(rows.map(|row| (row.ident.node(), row.table().store.id(), row.ident.reference())));
        let chunks = named
            .iter()
            .flat_map(|(node, table, all)| all.chunks(STAMPS_MAX).map(|some| (*node, *table, some.to_vec())));
        chunks.map(|(node, table, references)| (node, request(table, references))).collect()
    }
}

impl Core {
    /// Gives reservations on other nodes back, and repeats the request as often as needed.
    async fn cancel_certainly(&self, cancellations: Vec<(NodeId, Request<'static>)>, number: u64) {
        for (node, request) in cancellations {
            let _ = self.insist_call(node, &request, number).await;
        }
    }
}
