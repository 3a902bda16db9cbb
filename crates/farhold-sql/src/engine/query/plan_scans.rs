//! The scans of a plan, and the source of their rows: a snapshot's pages, or a transaction.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::source_as_provider;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::{Expr, LogicalPlan};
use farhold_txn::{ScanSpec, Table, Txn, TxnError, Worker};

use super::BATCH_ROWS;
use crate::engine::cancel::{CancelHandle, Pace};
use crate::engine::catalog::TableInfo;
use crate::engine::scalar::Parameters;
use crate::engine::scan::{
    BatchDecoder, FarTable, Gathered, PathsOf, RowSource, ScanFilter, ScanKey, TableAt, scan_key,
};
use crate::engine::{direct, error};
use crate::{SqlError, SqlState};

/// Rows that a transaction reads for a query before their memory is reserved. With several nodes, whose rows are merged
/// in key order, all rows are read at once.
const GATHERED_ROWS_MAX: usize = 256;

/// One scan of a bound plan.
pub(crate) struct PlanScan {
    table: Arc<TableInfo>,
    with_row_number: bool,
    filters: Vec<Expr>,
    /// The columns that scans with this key need, in the order of the table.
    columns: BTreeSet<usize>,
    pub(super) key: ScanKey,
}

/// The scans of this database's tables in a bound plan, including subqueries, each only once.
pub(crate) fn scans(plan: &LogicalPlan) -> Result<Vec<PlanScan>, SqlError> {
    let mut found: Vec<PlanScan> = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(table) = provider.downcast_ref::<FarTable>()
        {
            // The planner strips the qualifiers before it passes filters to the table; this must do the same.
            let filters: Vec<Expr> = unnormalize_cols(scan.filters.iter().cloned());
            let key = scan_key(table, &filters);
            let is_decided = ScanFilter::split(&table.info, &filters).1.is_empty();
            let columns: BTreeSet<usize> = match &scan.projection {
                // Filters that cannot be evaluated on encoded rows need all columns.
                Some(columns) if is_decided => columns.iter().copied().collect(),
                _ => (0..scan.source.schema().fields().len()).collect(),
            };
            match found.iter_mut().find(|known| known.key == key) {
                Some(known) => known.columns.extend(columns),
                None => found.push(PlanScan {
                    table: Arc::clone(&table.info),
                    with_row_number: table.with_row_number,
                    filters,
                    columns,
                    key,
                }),
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(|e| error::from_datafusion(&e))?;
    Ok(found)
}

/// Whether each scan reaches only few rows by an index. Then reads of a transaction are cheaper than a snapshot's
/// pages.
pub(crate) fn all_narrow(scans: &[PlanScan]) -> bool {
    !scans.is_empty()
        && scans.iter().all(|scan| {
            let (filter, _) = ScanFilter::split(&scan.table, &scan.filters);
            let (access, _, _) = direct::choose(&scan.table, filter.sargs(), &[]);
            access.is_narrow(&scan.table)
        })
}

/// A snapshot of the database, with the pages of the tables that a plan scans.
pub(crate) async fn snapshot(scans: &[PlanScan], worker: &Worker, paths: PathsOf) -> Result<RowSource, SqlError> {
    let snapshot = worker.snapshot().await.map_err(|e| match e {
        // Each query takes one snapshot. The error is temporary, since running queries end.
        TxnError::TooMany { limit, .. } => {
            SqlError::new(SqlState::TOO_MANY_CONNECTIONS, format!("more than {limit} queries at the same time"))
        }
        other => error::from_txn(&other),
    })?;
    let snapshot = Arc::new(snapshot);
    let mut tables: Vec<&Table> = Vec::with_capacity(scans.len());
    for scan in scans {
        let table = &scan.table.table;
        if tables.iter().all(|known| known.id() != table.id()) {
            tables.push(table);
        }
    }
    let mut pages = Vec::with_capacity(tables.len());
    for table in &tables {
        pages.push(worker.snapshot_pages(&snapshot, table).await.map_err(|e| error::from_txn(&e))?);
    }
    // Of all tables together, because columns of another node may have to be waited for.
    let columns = worker.columns_of_tables(&snapshot, &tables).await;
    let at = |(pages, columns): (Vec<_>, Vec<_>)| TableAt { pages: pages.into(), columns: columns.into() };
    let sources = pages.into_iter().zip(columns).map(at);
    let pages = tables.into_iter().map(Table::id).zip(sources).collect();
    Ok(RowSource::Snapshot(snapshot, pages, paths))
}

/// Reads the rows of one scan through a transaction.
pub(super) async fn gather(
    scan: &PlanScan,
    txn: &mut Txn,
    cancel: &CancelHandle,
    room: &MemoryReservation,
    nodes: u64,
) -> Result<Gathered, SqlError> {
    let table = &scan.table;
    let (filter, _) = ScanFilter::split(table, &scan.filters);
    let rows = filter.on_rows(table);
    let (access, _, _) = direct::choose(table, filter.sargs(), &[]);
    let full = if scan.with_row_number { &table.arrow_full } else { &table.arrow };
    let columns: Vec<usize> = scan.columns.iter().copied().collect();
    let schema = Arc::new(full.project(&columns).map_err(|e| SqlError::internal(e.to_string()))?);
    let mut decoder = BatchDecoder::new(table, &columns, Arc::clone(&schema), BATCH_ROWS);
    let mut batches = Vec::new();
    let mut finish = |decoder: &mut BatchDecoder| -> Result<(), SqlError> {
        let batch = decoder.finish().map_err(|e| SqlError::internal(e.to_string()))?;
        room.try_grow(batch.get_array_memory_size()).map_err(|e| error::from_datafusion(&e))?;
        batches.push(batch);
        Ok(())
    };
    let mut pace = Pace::new(cancel);
    let mut scratch = Vec::new();
    let whole = access.equal.is_empty() && access.lower.is_none() && access.upper.is_none();
    let rows_max = if whole && nodes == 1 { GATHERED_ROWS_MAX } else { usize::MAX };
    let mut last: Option<Vec<u8>> = None;
    loop {
        let handles = if whole {
            let lo = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            direct::scan(txn, table, ScanSpec { lo, limit: rows_max, ..ScanSpec::all() }, cancel).await?
        } else {
            access.rows(txn, table, Parameters::NONE, usize::MAX, cancel).await?
        };
        for &handle in &handles {
            pace.step().await?;
            let (key, value) = (txn.key(handle), txn.value(handle));
            if !rows.matches(key, value, &mut scratch) {
                continue;
            }
            decoder.append(key, value);
            if decoder.is_full() {
                finish(&mut decoder)?;
            }
        }
        match handles.last() {
            Some(handle) if handles.len() == rows_max => last = Some(txn.key(*handle).to_vec()),
            _ => break,
        }
    }
    if decoder.rows() > 0 {
        finish(&mut decoder)?;
    }
    Ok(Gathered { columns, schema, batches })
}
