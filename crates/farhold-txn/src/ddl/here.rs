//! What a node does for a change of tables and indexes that another node coordinates: it adds, fills, opens and removes
//! an index.

use crate::base::definition::TableDef;
use crate::base::error::TxnError;
use crate::base::table::{Coordinator, Index, Table, TableShared};
use crate::node::system;
use crate::protocol::core::Core;
use crate::rpc::message::IndexStep;
use farhold_fabric::{Executor, Handle};
use farhold_store::StoreError;
use farhold_store::table::FillRoom;

/// Slots between two turns of letting others run.
const SLOTS_PER_TURN: usize = 256;
/// How long a filler waits for one row that stays locked: then its owner is dead.
const LOCKED_NS_MAX: u64 = 10_000_000_000;

impl Core {
    /// Lets this node's writers know of an index. Transactions that have begun before will be refused at their commit, or hold
    /// the locks of what they write.
    pub fn add_index_here(
        &self,
        table: &TableShared,
        slot: u16,
        definition: &TableDef,
        coordinator: Coordinator,
    ) -> Result<(), TxnError> {
        table.add_index(slot, definition, coordinator)?;
        if !system::is_there(&self.node, coordinator) {
            // The thread that noted its end may have looked for its indexes before this one was there.
            table.drop_index(slot);
            return Err(TxnError::Recovering { node: coordinator.0 });
        }
        crate::base::planted::may_stop();
        self.node.catalog.indexes_changed();
        self.node.catalog.changed();
        Ok(())
    }

    /// Makes the index and begins to fill it: on a thread of its own, or in virtual time as a task.
    pub fn fill_index_here(&self, table: &Table, slot: u16) -> Result<(), TxnError> {
        table.0.begin_filling(slot)?;
        let table = table.clone();
        if self.handle.is_virtual() {
            drop(self.handle.spawn(fill(table, slot, self.handle.clone())));
            return Ok(());
        }
        let hand_on = crate::base::planted::hand_on();
        let run = move || {
            hand_on();
            let executor = Executor::real(u64::from(slot));
            executor.run(fill(table, slot, executor.handle()));
        };
        let spawned = std::thread::Builder::new().name("farhold-index".into()).spawn(run);
        spawned.map(|_| ()).map_err(|_| TxnError::TooMany { what: "threads", limit: 0 })
    }

    /// Brings the index into its intended state.
    pub fn step_index_here(&self, table: &TableShared, slot: u16, step: IndexStep) -> Result<(), TxnError> {
        match step {
            IndexStep::Open => table.open_index(slot)?,
            IndexStep::Close => table.close_index(slot),
            IndexStep::Drop => table.drop_index(slot),
        }
        self.node.catalog.changed();
        Ok(())
    }
}

/// Brings all rows of this node into an index.
pub(crate) async fn fill(table: Table, slot: u16, handle: Handle) {
    let outcome = Err(TxnError::Corrupt { what: "a thread that fills an index has ended early" });
    let mut filling = Filling { table, slot, outcome };
    filling.outcome = fill_slots(&filling.table.0, slot, &handle).await;
}

/// Its drop notes how filling an index has ended, even when the thread panics: others wait for that without a time
/// limit.
struct Filling {
    table: Table,
    slot: u16,
    outcome: Result<(), TxnError>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.table.0.end_filling(self.slot, self.outcome.clone());
    }
}

async fn fill_slots(shared: &TableShared, slot: u16, handle: &Handle) -> Result<(), TxnError> {
    let index = Index::Secondary(slot);
    let refused = |error| match error {
        StoreError::Duplicate { .. } => TxnError::DuplicateKey { table: shared.store.id(), index },
        other => TxnError::store(other, shared.store.store().node()),
    };
    let mut room = FillRoom::default();
    let runs = shared.store.pages();
    for (count, offset) in runs.iter().flat_map(farhold_store::Run::slots).enumerate() {
        if count.is_multiple_of(SLOTS_PER_TURN) {
            handle.yield_now().await;
        }
        crate::base::planted::may_stop();
        let until_ns = handle.now_ns() + LOCKED_NS_MAX;
        while !shared.store.fill_slot(index.number(), offset, &mut room).map_err(refused)? {
            if handle.now_ns() > until_ns {
                return Err(TxnError::Conflict);
            }
            handle.yield_now().await;
        }
    }
    Ok(())
}
