//! Changes that their coordinators have left half done: every node completes them.

use crate::base::back_off::BackOff;
use crate::base::error::TxnError;
use crate::ddl::ASK_EVERY_NS;
use crate::node::{Node, system};
use crate::protocol::worker::Worker;
use std::sync::Arc;

/// The longest pause before what is recorded and not done here is tried again.
const FINISH_EVERY_NS_MAX: u64 = 64 * ASK_EVERY_NS;

impl Worker {
    /// Completes changes of tables and indexes that coordinators may have left because they died or could not reach a
    /// node, and changes that were being recorded when this node looked. Every node does so: a node that has missed
    /// something knows that it has. One worker of a node does it at a time.
    #[inline]
    pub(crate) fn finish_drops_if_any(&self) {
        if self.node().catalog.is_behind() {
            self.begin_finishing();
        }
    }

    #[cold]
    fn begin_finishing(&self) {
        if self.node().is_member()
            && let Some(turn) = Turn::take(self.node())
        {
            let worker = self.clone();
            drop(self.handle().spawn(async move {
                worker.finish_drops().await;
                drop(turn);
            }));
        }
    }

    /// While this node is no member, the work is deferred; after this node's end, its next start does it.
    pub(super) async fn finish_drops(&self) {
        let node = self.node();
        let catalog = &node.catalog;
        let mut again = BackOff::new(ASK_EVERY_NS, FINISH_EVERY_NS_MAX);
        while node.is_member() && node.fabric.node_is_live(node.id()) {
            // Work that is left half done from here on sets the flag again.
            catalog.set_behind(false);
            self.make_all_records_alike().await;
            let left = system::reconcile(self.node());
            if left.is_ok() && !catalog.is_behind() {
                return;
            }
            // Another worker goes on if this one ends.
            catalog.set_behind(true);
            for (table, slot) in left.unwrap_or_default() {
                let _ = self.drop_everywhere(&table, slot).await;
            }
            again.rest(self.handle()).await;
        }
    }

    /// As [`Self::make_records_alike`], if deaths may have left them different. A node that is down is included when it is back and says
    /// so.
    pub(super) async fn make_all_records_alike(&self) {
        if !self.node().records_may_differ() {
            return;
        }
        let made = match self.make_records_alike(None).await {
            // The others make of it what is recorded now.
            Ok(true) => self.join_cluster().await.map(drop),
            made => made.map(drop),
        };
        match made {
            Err(TxnError::NodeUnavailable { node, .. }) if !self.node().fabric.node_is_live(node) => {}
            Err(_) => self.node().catalog.set_behind(true),
            Ok(()) => system::discard_unrecorded(self.node()),
        }
    }
}

/// A node's turn to drop indexes to the end.
struct Turn(Arc<Node>);

impl Turn {
    fn take(node: &Arc<Node>) -> Option<Self> {
        node.catalog.begin_finishing().then(|| Self(node.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.catalog.end_finishing();
    }
}
