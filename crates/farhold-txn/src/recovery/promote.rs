//! The rows of a mirror become rows of this node, by ordinary replicated transactions: so each of them has its copies before
//! anybody else can change it.

use super::Moving;
use crate::membership::{Configuration, Serving};
use crate::replication::SlotCopy;
use crate::txn::SharedTable;
use crate::{NodeId, Placement, Retry, Table, TxnError, Worker};

/// Rows in one transaction.
const ROWS_PER_TRANSACTION: usize = 32;

impl Worker {
    /// Inserts what the mirror of `gone` has of the partitions that it served. Done twice, it finds the rows there.
    ///
    /// # Errors
    /// Those of a commit.
    pub(crate) async fn promote(&self, configuration: &Configuration, gone: NodeId) -> Result<(), TxnError> {
        let node = self.node();
        let Some(replication) = &node.replication else { return Ok(()) };
        let slots = match replication.applier().mirror(gone) {
            Some(mirror) if mirror.is_behind() => {
                return Err(TxnError::Corrupt { what: "a mirror lacks a version of a row that has a later one" });
            }
            Some(mirror) => mirror.slots(),
            None => Vec::new(),
        };
        let mut moving = Moving { rows: 0, rows_total: slots.len() as u64 };
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
            moving.rows += some.len() as u64;
            replication.note(|progress| progress.promoting = Some((gone, moving)));
            // On memory that is mapped nothing waits: the lease of this node has to be renewed meanwhile.
            self.handle().yield_now().await;
        }
        Ok(())
    }
}
