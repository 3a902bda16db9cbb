//! What a commit leaves at a home that has not answered in time that its indexes lead to the new rows, where rows have no copies.
//!
//! ```text
//!   commit point ─► publish ─► write far, unlock ─► remove        the caller is told: committed
//!                      │ no answer in time: rows of other homes are written, the caller is told: committed, but the node is unavailable
//!                      └─► publish, again and again, as a task of its own
//!                             ├─ answered ──────► write far, unlock ─► remove
//!                             ├─ process ended ─► write far, unlock          its next start makes the indexes from the rows
//!                             └─ started again ─► nothing                    it has freed the locks and the reservations
//! ```
//!
//! Invariant: no row at a home changes before all its indexes lead to the rows that take the places of others.
//!
//! The home may stand still while its memory can be written. When it goes on, its own threads may look before any of them has served its
//! inbox. They meet the old rows locked, as in the middle of any commit, and are refused. Had the rows been written, a deleted row would be
//! absent to them while no index leads to its successor: reads would miss it, and its unique key would be free. That the threads serve
//! the inbox first would not help: a thread may wake in the middle of a look-up.
//!
//! While one home is asked, another may end and start again, which frees its locks too: so the transaction looks at them after the wait, before
//! it writes rows anywhere.
//!
//! What it costs: rows there stay locked as long as the home stands still, and until the coordinator's next start if the coordinator ends
//! meanwhile. Over a network nobody knows that a process has ended: a home that never comes back is asked for ever, and memory of tables that
//! are dropped meanwhile stays in use. A home that is killed and starts again between two looks of the coordinator has the rows as they were before.

use crate::NodeId;
use crate::durability::Durably;
use crate::protocol::ident::Ident;
use crate::txn::Txn;
use crate::worker::Core;
use farhold_fabric::FabricError;

/// How long the task rests between two rounds. A round takes as long as a request may, or, at a process that has ended, as it takes to see
/// that; the next start of such a process takes longer than both.
const AGAIN_NS: u64 = 2_000_000;

/// What the rows that a transaction has locked at homes say after a wait.
#[derive(Default)]
pub(super) struct Locks {
    held: Vec<Ident>,
    /// By a later start of the home.
    pub freed: Vec<Ident>,
    /// Of a home that cannot be read.
    unknown: Vec<Ident>,
}

impl Locks {
    pub fn are_held(&self) -> bool {
        self.freed.is_empty() && self.unknown.is_empty()
    }
}

impl Txn {
    /// Finishes a commit at the `silent` homes, each as soon as it has answered or ended. The journal's epoch stays open until then, as for
    /// any commit whose rows are not written: without those homes nothing becomes durable anyway.
    pub(super) async fn finish_at_silent(self, epoch: u32, durably: Durably, mut silent: Vec<NodeId>) {
        let core = self.core.clone();
        // Where some rows may be written already, by instructions whose answers were lost.
        let mut begun = Vec::new();
        while !silent.is_empty() && core.node.fabric.node_is_live(core.me) {
            core.handle.sleep_ns(AGAIN_NS).await;
            let unheard = self.publish_far(&core, 0, |node| silent.contains(&node)).await;
            let mut left = Vec::new();
            for node in silent {
                if unheard.contains(&node) && !core.has_certainly_ended(node) {
                    left.push(node);
                    continue;
                }
                let Locks { held, unknown, .. } = self.look_at_locks(&core, |it| it == node).await;
                if held.is_empty() && unknown.is_empty() && !begun.contains(&node) {
                    // Its next start.
                    continue;
                }
                begun.push(node);
                let lost = self.write_far(&core, epoch, |it| held.contains(&it)).await;
                if lost.is_some() || !unknown.is_empty() {
                    left.push(node);
                } else {
                    self.tidy_up_far(epoch, |it| it == node).await;
                }
            }
            silent = left;
        }
        drop(durably);
    }

    /// Which of its locks the transaction still holds, of those at some homes. Only a home's next start frees them.
    pub(super) async fn look_at_locks(&self, core: &Core, is_of: impl Fn(NodeId) -> bool) -> Locks {
        let mut batch = core.take_batch();
        let rows = self.far_writes().map(|row| row.ident).filter(|ident| is_of(ident.node()));
        let looks: Vec<_> = rows.map(|ident| (ident, batch.read(Core::lock_place(ident), 8))).collect();
        let batch = core.endpoint.submit(batch).await;
        let (owner, mut locks) = (self.owner.word().to_le_bytes(), Locks::default());
        for (ident, look) in looks {
            match batch.bytes(look) {
                Ok(word) if word == owner => locks.held.push(ident),
                Ok(_) | Err(FabricError::StaleKey { .. } | FabricError::NoSuchRegion { .. }) => locks.freed.push(ident),
                Err(_) => locks.unknown.push(ident),
            }
        }
        core.give_batch(batch);
        locks
    }
}

impl Core {
    /// Has the process of a node ended, for certain? Only fabrics that map its memory can tell; over others it may be cut off.
    fn has_certainly_ended(&self, node: NodeId) -> bool {
        self.endpoint.maps_others() && !self.node.fabric.node_is_live(node)
    }
}
