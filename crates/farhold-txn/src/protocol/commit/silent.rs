//! What a commit leaves undone at a home, where rows have no copies: the home has not confirmed in time that its
//! indexes lead to the new rows, or was cut off while its rows were written.
//!
//! ```text
//!   commit point ─► publish ─► write far, unlock ─► remove        the caller is told: committed
//!                      │ no answer  │ cut off: rows of other homes are written, the caller is told: committed, but the node is unavailable
//!                      │ in time    └─► look at the rows, again and again, as a task of its own
//!                      │                   ├─ started again ─► nothing        it has freed the locks and the reservations, or reports the rows
//!                      │                   └─ otherwise ─────► write far, what is not written yet, unlock ─► remove
//!                      └─► publish, again and again, as a task of its own
//!                             ├─ answered ──────► write far, unlock ─► remove
//!                             ├─ process ended ─► write far, unlock          its next start makes the indexes from the rows
//!                             └─ started again ─► nothing                    it has freed the locks and the reservations
//! ```
//!
//! Invariant: no row at a home changes before all its indexes lead to the rows that take the places of others.
//!
//! The home's process may be stopped while its memory can be written. When it goes on, its own threads may look before
//! any of them has served its inbox. They find the old rows locked, as in the middle of any commit, and are refused.
//! Had the rows been written, a deleted row would be absent to them while no index leads to its successor: reads would
//! miss it, and its unique key would be free. Serving the inbox first would not help: a thread may wake in the middle
//! of a look-up.
//!
//! While one home is asked, another may end and start again, which frees its locks too. So the transaction looks at its
//! locks after the wait, before it writes rows anywhere. [`Core::has_met_start`] also says whether the worker has met a
//! later start of a home since it locked rows there.
//!
//! The cost: rows there stay locked as long as the home is stopped or cut off, and until the coordinator's next start
//! if the coordinator ends meanwhile. Over a network the end of a process is not known: a home that never comes back is
//! asked for ever, and the memory of tables that are dropped meanwhile stays in use. A home that is killed and starts
//! again between two looks of the coordinator has the rows as they were before.

use crate::base::ident::Ident;
use crate::protocol::commit::durable::Durably;
use crate::protocol::commit::section::new_version;
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use farhold_fabric::object::VERSION;
use farhold_fabric::{FabricError, NodeId, Version};
use farhold_store::Owner;
use std::rc::Rc;

/// How long the task rests between two rounds. A round takes as long as a request may, or, at a process that has ended, as it takes to see
/// that; the next start of such a process takes longer than both.
const AGAIN_NS: u64 = 2_000_000;

/// The state, after a wait, of the rows that a transaction has locked at homes.
#[derive(Default)]
pub(super) struct Locks {
    held: Vec<Ident>,
    /// The lock was released before the version arrived, because both are written in one batch.
    unlocked_early: Vec<Ident>,
    /// By a later start of the home, or by the transaction.
    pub freed: Vec<Ident>,
    /// Of a home that cannot be read.
    unknown: Vec<Ident>,
    has_started_again: bool,
}

impl Locks {
    pub fn are_held(&self) -> bool {
        self.freed.is_empty() && self.unknown.is_empty()
    }
}

impl Txn {
    /// Finishes a commit at the `silent` homes, each as soon as it has answered or ended, and at those where writes were
    /// `lost`. The journal's epoch stays open until then, as for any commit whose rows are not written: without those homes
    /// nothing becomes durable anyway.
    pub(super) async fn finish_at_silent(
        self,
        epoch: u32,
        durably: Durably,
        mut silent: Vec<NodeId>,
        mut lost: Vec<NodeId>,
    ) {
        let core = self.core.clone();
        while !(silent.is_empty() && lost.is_empty()) && core.node.fabric.node_is_live(core.me) {
            core.handle.sleep_ns(AGAIN_NS).await;
            let unheard = self.publish_far(&core, 0, |node| silent.contains(&node)).await;
            let asked = silent.iter().map(|node| (*node, false)).chain(lost.iter().map(|node| (*node, true)));
            let (mut still_silent, mut still_lost) = (Vec::new(), Vec::new());
            // Where writes were lost, some rows may be written already, by instructions whose answers were lost.
            for (node, has_begun) in asked {
                if !has_begun && unheard.contains(&node) && !core.has_certainly_ended(node) {
                    still_silent.push(node);
                } else if self.write_what_is_left(&core, epoch, node, has_begun).await {
                    still_lost.push(node);
                }
            }
            (silent, lost) = (still_silent, still_lost);
        }
        drop(durably);
    }

    /// Writes the rows at a home that are not written yet; true if this must be repeated.
    async fn write_what_is_left(&self, core: &Core, epoch: u32, node: NodeId, has_begun: bool) -> bool {
        let found = self.look_at_locks(core, |it| it == node).await;
        let is_another = found.has_started_again || core.has_met_start(node, self.locked_met);
        let nothing_is_left = !has_begun && found.held.is_empty() && found.unknown.is_empty();
        if is_another || nothing_is_left {
            return false;
        }
        let mut is_lost = !self.write_far(core, epoch, |it| found.held.contains(&it)).await.is_empty();
        is_lost |= !found.unlocked_early.is_empty() && self.write_versions(core, epoch, &found.unlocked_early).await;
        if is_lost || !found.unknown.is_empty() {
            return true;
        }
        self.tidy_up_far(epoch, |it| it == node).await;
        false
    }

    /// Gives the rows that have their values their versions; true if an instruction was lost.
    async fn write_versions(&self, core: &Core, epoch: u32, idents: &[Ident]) -> bool {
        let mut batch = core.take_batch();
        let rows = self.far_writes().filter(|row| idents.contains(&row.ident));
        let begun =
            rows.map(|row| (row, row.version.with(Version::WRITING).0, new_version(row.state, row.version, epoch)));
        let slots: Vec<_> =
            begun.map(|(row, begun, new)| batch.compare_swap(row.ident.far().add(VERSION), begun, new.0)).collect();
        let batch = core.endpoint.submit(batch).await;
        let is_lost = slots.into_iter().any(|slot| batch.done(slot).is_err());
        core.give_batch(batch);
        is_lost
    }

    /// Which of its locks the transaction still holds, of those at some homes. Besides the transaction, only a home's
    /// next start frees them.
    pub(super) async fn look_at_locks(&self, core: &Core, is_of: impl Fn(NodeId) -> bool) -> Locks {
        let mut batch = core.take_batch();
        let rows = self.far_writes().filter(|row| is_of(row.ident.node()));
        // Lock and version.
        let looks: Vec<_> = rows.map(|row| (row, batch.read(row.ident.far(), 16))).collect();
        let batch = core.endpoint.submit(batch).await;
        let (owner, mut locks) = (self.owner.word().to_le_bytes(), Locks::default());
        for (row, look) in looks {
            let begun = row.version.with(Version::WRITING).0.to_le_bytes();
            match batch.bytes(look) {
                Ok(header) if header[..8] == owner => locks.held.push(row.ident),
                // A start that found the row half written has set this lock.
                Ok(header) if header[..8] == Owner::DAMAGED.word().to_le_bytes() => locks.freed.push(row.ident),
                Ok(header) if header[8..] == begun => locks.unlocked_early.push(row.ident),
                Ok(_) => locks.freed.push(row.ident),
                Err(FabricError::StaleKey { .. } | FabricError::NoSuchRegion { .. }) => {
                    locks.freed.push(row.ident);
                    locks.has_started_again = true;
                }
                Err(_) => locks.unknown.push(row.ident),
            }
        }
        core.give_batch(batch);
        locks
    }
}

/// Frees locks at homes that were cut off, when they can be reached, unless their next starts have.
pub(super) async fn unlock_when_reached(core: Rc<Core>, mut idents: Vec<Ident>, owner: u64) {
    while !idents.is_empty() && core.node.fabric.node_is_live(core.me) {
        core.handle.sleep_ns(AGAIN_NS).await;
        let mut batch = core.take_batch();
        let slots: Vec<_> = idents.iter().map(|ident| batch.compare_swap(Core::lock_place(*ident), owner, 0)).collect();
        let batch = core.endpoint.submit(batch).await;
        let is_lost = |slot| {
            let freed =
                matches!(batch.done(slot), Err(FabricError::StaleKey { .. } | FabricError::NoSuchRegion { .. }));
            batch.done(slot).is_err() && !freed
        };
        let mut are_lost = slots.into_iter().map(is_lost).collect::<Vec<_>>().into_iter();
        core.give_batch(batch);
        idents.retain(|ident| are_lost.next().unwrap_or(false) && !core.has_certainly_ended(ident.node()));
    }
}

impl Core {
    /// Has the process of a node ended, for certain? Only fabrics that map its memory can tell; over others it may be cut off.
    fn has_certainly_ended(&self, node: NodeId) -> bool {
        self.endpoint.maps_others() && !self.node.fabric.node_is_live(node)
    }
}
