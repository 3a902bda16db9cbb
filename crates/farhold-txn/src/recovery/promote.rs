//! The rows of a mirror become rows of this node, by ordinary replicated transactions: so each of them has its copies before
//! anybody else can change it.

use super::Moving;
use crate::membership::{Configuration, Serving};
use crate::replication::SlotCopy;
use crate::txn::SharedTable;
use crate::{NodeId, Placement, Retry, Table, TxnError, Worker};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Transactions under way at a time: over a network each waits for its record to be at its holders.
const TASKS: usize = 8;
/// Rows in one transaction.
const ROWS_PER_TRANSACTION: usize = 32;

impl Worker {
    /// Inserts what the mirror of `gone` has of the partitions that it served. Done twice, it finds the rows there.
    ///
    /// # Errors
    /// Those of a commit.
    pub(crate) async fn promote(&self, configuration: &Arc<Configuration>, gone: NodeId) -> Result<(), TxnError> {
        let Some(replication) = &self.node().replication else { return Ok(()) };
        let slots = match replication.applier().mirror(gone) {
            Some(mirror) if mirror.is_behind(|table| self.node().table_by_id(table).is_some()) => {
                return Err(TxnError::Corrupt { what: "a mirror lacks a version of a row that has a later one" });
            }
            Some(mirror) => mirror.slots(),
            None => Vec::new(),
        };
        let moving = Rc::new(Cell::new(Moving { rows: 0, rows_total: slots.len() as u64 }));
        // Each has a part of its own, so that they rarely meet in an index.
        let part_len = slots.len().div_ceil(TASKS).max(1);
        let parts: Vec<_> = slots
            .chunks(part_len)
            .map(|part| {
                let (worker, configuration, moving) = (self.clone(), configuration.clone(), moving.clone());
                let part = part.to_vec();
                self.handle().spawn(async move { worker.promote_some(&configuration, gone, &part, &moving).await })
            })
            .collect();
        let mut done = Ok(());
        for part in parts {
            done = done.and(part.await);
        }
        done
    }

    async fn promote_some(
        &self,
        configuration: &Configuration,
        gone: NodeId,
        slots: &[u32],
        moving: &Cell<Moving>,
    ) -> Result<(), TxnError> {
        let node = self.node();
        let Some(replication) = &node.replication else { return Ok(()) };
        // Nothing changes in this mirror any more: whose rows they are is gone.
        for some in slots.chunks(ROWS_PER_TRANSACTION) {
            let rows: Vec<(Table, SlotCopy)> = {
                let mut applier = replication.applier();
                let Some(mirror) = applier.mirror(gone) else { break };
                let of_table = |slot: &u32| {
                    let row = mirror.row(*slot)?;
                    // `None`: of a table that has been dropped since.
                    let table = node.table_by_id(row.table)?;
                    let partition = table.0.route.partition(row.key());
                    // Rows of other partitions are what a successor had begun to insert before it died.
                    let is_its = table.placement() != Placement::Replicated
                        && configuration.partitions.get(usize::from(partition.0)) == Some(&Serving::From(gone));
                    is_its.then(|| (table, row.clone()))
                };
                some.iter().filter_map(of_table).collect()
            };
            let inserted = self.run(Retry::default(), async |txn| {
                for (table, row) in &rows {
                    let shared = txn.enter(table)?;
                    match txn.insert_near(SharedTable(shared.0), row.key(), row.value()) {
                        Ok(_) | Err(TxnError::DuplicateKey { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            });
            inserted.await?;
            moving.update(|moving| Moving { rows: moving.rows + some.len() as u64, ..moving });
            replication.note(|progress| progress.promoting = Some((gone, moving.get())));
            // On memory that is mapped nothing waits: the lease of this node has to be renewed meanwhile.
            self.handle().yield_now().await;
        }
        Ok(())
    }
}
