//! The rows of a mirror become rows of this node, by ordinary replicated transactions: so each of them has its copies before
//! anybody else can change it.

use super::Moving;
use crate::membership::{Configuration, Serving};
use crate::txn::SharedTable;
use crate::{NodeId, Placement, Retry, TxnError, Worker};
use std::collections::BTreeMap;

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
        let rows = replication.applier().mirror(gone).map(|mirror| mirror.rows()).unwrap_or_default();
        let mut by_table: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (_, copy) in rows {
            by_table.entry(copy.table).or_default().push(copy);
        }
        let rows_total = by_table.values().map(|rows: &Vec<_>| rows.len() as u64).sum();
        let mut done = 0;
        for (table, rows) in by_table {
            // Of a table that has been dropped since.
            let Some(table) = node.table_by_id(table) else { continue };
            if table.placement() == Placement::Replicated {
                continue;
            }
            let is_its = |key: &[u8]| {
                let partition = table.0.route.partition(key);
                configuration.partitions.get(usize::from(partition.0)) == Some(&Serving::From(gone))
            };
            // Parts of other partitions are what a successor had begun to insert before it died.
            let rows: Vec<_> = rows.into_iter().filter(|row| is_its(row.key())).collect();
            for some in rows.chunks(ROWS_PER_TRANSACTION) {
                let inserted = self.run(Retry::default(), async |txn| {
                    let shared = txn.enter(&table)?;
                    for row in some {
                        match txn.insert_near(SharedTable(shared.0), row.key(), row.value()) {
                            Ok(_) | Err(TxnError::DuplicateKey { .. }) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(())
                });
                inserted.await?;
                done += some.len() as u64;
                let moving = Moving { rows: done, rows_total };
                replication.note(|progress| progress.promoting = Some((gone, moving)));
                // On memory that is mapped nothing waits: the lease of this node has to be renewed meanwhile.
                self.handle().yield_now().await;
            }
        }
        Ok(())
    }
}
