//! Loading the population through transactions.

use super::Scale;
use super::population::{Population, TableKind, Unit, item_units, warehouse_units};
use super::tables::Tables;
use crate::measure::Counter;
use farhold_txn::{Retry, TxnError, Worker};

/// Rows of one transaction: large enough to share its commit, small enough to stay in the cache.
const ROWS_PER_TRANSACTION: usize = 256;
/// The same for rows that go to every node.
const REPLICATED_ROWS_PER_TRANSACTION: usize = 64;

/// Loads units, one worker's share.
pub struct Loader<'a> {
    /// The worker.
    pub worker: &'a Worker,
    /// The tables.
    pub tables: &'a Tables,
    /// Makes the rows.
    pub population: Population,
    /// Rows loaded so far; this worker is its only writer.
    pub rows: &'a Counter,
}

impl Loader<'_> {
    /// Loads the items; once for the whole database.
    ///
    /// # Errors
    /// As [`farhold_txn::Txn::insert`]; [`TxnError::DuplicateKey`] when there are items.
    pub async fn items(&mut self, scale: Scale) -> Result<(), TxnError> {
        self.units(item_units(scale)).await
    }

    /// Loads one warehouse. It is quickest on the node where the warehouse lives.
    ///
    /// # Errors
    /// As [`farhold_txn::Txn::insert`]; [`TxnError::DuplicateKey`] when it is there.
    pub async fn warehouse(&mut self, scale: Scale, w_id: i32) -> Result<(), TxnError> {
        self.units(warehouse_units(scale, w_id)).await
    }

    async fn units(&mut self, units: impl Iterator<Item = Unit>) -> Result<(), TxnError> {
        for unit in units {
            let (worker, tables, counter) = (self.worker, self.tables, self.rows);
            let batch = match unit {
                Unit::Items { .. } => REPLICATED_ROWS_PER_TRANSACTION,
                _ => ROWS_PER_TRANSACTION,
            };
            let rows = self.population.rows(unit);
            for start in (0..rows.len()).step_by(batch) {
                let end = (start + batch).min(rows.len());
                worker
                    .run(Retry::default(), async |txn| {
                        for (table, key, value) in (start..end).map(|i| rows.get(i)) {
                            txn.insert(tables.get(table), key, value).await?;
                        }
                        Ok(())
                    })
                    .await?;
                counter.add((end - start) as u64);
                worker.poll();
            }
        }
        Ok(())
    }
}

/// The warehouses that live on node `node` of `nodes`.
pub fn warehouses_of(node: u8, nodes: u8, warehouses: i32) -> impl Iterator<Item = i32> + Clone {
    (1 + i32::from(node)..=warehouses).step_by(usize::from(nodes))
}

/// Whether [`Loader`] has put every table's rows there, as far as the row counts tell: for tests.
///
/// # Errors
/// An unavailable node.
pub async fn row_counts(worker: &Worker, tables: &Tables) -> Result<[u64; 9], TxnError> {
    const KINDS: [TableKind; 9] = [
        TableKind::Warehouse,
        TableKind::District,
        TableKind::Customer,
        TableKind::History,
        TableKind::NewOrder,
        TableKind::Orders,
        TableKind::OrderLine,
        TableKind::Item,
        TableKind::Stock,
    ];
    let mut counts = [0; 9];
    for (count, kind) in counts.iter_mut().zip(KINDS) {
        *count = worker.row_count(tables.get(kind)).await?;
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    #[test]
    fn warehouses_live_where_placement_by_integer_puts_them() {
        let of = |node| super::warehouses_of(node, 3, 7).collect::<Vec<_>>();
        assert_eq!([of(0), of(1), of(2)], [vec![1, 4, 7], vec![2, 5], vec![3, 6]]);
    }
}
