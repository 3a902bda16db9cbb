//! The table provider for DataFusion's planner.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::stats::Precision;
use datafusion::common::{DFSchema, Statistics};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::{TableProvider, TableType};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExecBuilder;
use farhold_scan::model::PathKind;
use farhold_txn::{NoColumns, NodeColumns, NodeId, PageTask, Placement, Snapshot, TableId};

use super::access::{Access, Wanted};
use super::exec::SnapshotScan;
use super::filter::ScanFilter;
use super::paths::Paths;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;

/// The source of a query's rows; part of the session configuration of a plan.
pub(crate) enum RowSource {
    /// No rows, for planning only.
    Nothing,
    /// A snapshot of the database, the tables that the plan scans, and the paths to columns of other nodes.
    Snapshot(Arc<Snapshot>, HashMap<TableId, TableAt>, PathsOf),
    /// The rows that a transaction has read for this plan, by [`scan_key`], and their memory reservation.
    Gathered(
        HashMap<ScanKey, Gathered>,
        #[expect(dead_code, reason = "held as long as the rows")] Option<MemoryReservation>,
    ),
}

/// The access paths to columns of other nodes.
pub(crate) struct PathsOf {
    pub(crate) paths: Arc<Paths>,
    /// The path that the session requires.
    pub(crate) forced: Option<PathKind>,
}

/// The pages and column segments of a table at the snapshot.
pub(crate) struct TableAt {
    pub(crate) pages: Arc<[PageTask]>,
    /// One for each node that has rows of the table.
    pub(crate) columns: Arc<[(NodeId, std::result::Result<NodeColumns, NoColumns>)]>,
}

impl RowSource {
    /// The source for a plan without scans.
    pub(crate) fn none() -> Self {
        Self::Gathered(HashMap::new(), None)
    }
}

/// The rows that a transaction has read for a scan, with the columns that the plan uses.
pub(crate) struct Gathered {
    pub(crate) columns: Vec<usize>,
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

/// The rows of a statement and its cancel flag.
pub(crate) struct QueryInput {
    pub(crate) rows: RowSource,
    pub(crate) cancel: CancelHandle,
}

/// Identifies a scan of a plan by its table and its filters. The filters are compared as expressions, since the texts
/// of different filters can be equal, for example with dates beyond the range of the calendar.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct ScanKey {
    table: TableId,
    with_row_number: bool,
    filters: Vec<Expr>,
}

/// The key of the scan of `table` with `filters`.
pub(crate) fn scan_key(table: &FarTable, filters: &[Expr]) -> ScanKey {
    ScanKey { table: table.info.table.id(), with_row_number: table.with_row_number, filters: filters.to_vec() }
}

/// A table.
#[derive(Debug)]
pub(crate) struct FarTable {
    pub(crate) info: Arc<TableInfo>,
    /// Whether the scan returns the hidden row number, for the target of an UPDATE or DELETE.
    pub(crate) with_row_number: bool,
    /// The number of nodes of the cluster.
    nodes: u64,
}

impl FarTable {
    /// `nodes`: the number of nodes of the cluster.
    pub(crate) fn new(info: Arc<TableInfo>, with_row_number: bool, nodes: u64) -> Self {
        Self { info, with_row_number, nodes }
    }

    /// An estimate of the number of live rows, which assumes as many rows on each other node as on this one.
    fn row_count(&self) -> u64 {
        let own = self.info.table.row_count();
        if self.info.table.placement() == Placement::Replicated { own } else { own * self.nodes }
    }

    /// An estimate of how many rows pass the filters that a scan evaluates itself: that of the scan once the table has been scanned. And
    /// whether there are other filters.
    pub(crate) fn rows_passing(&self, filters: &[Expr]) -> (usize, bool) {
        let (filter, others) = ScanFilter::split(&self.info, filters);
        let (access, _, _) = crate::engine::direct::choose(&self.info, filter.sargs(), &[]);
        let unknown = || filter.predicate().selectivity();
        let selectivity =
            self.info.sample.last().map_or_else(unknown, |sample| sample.selectivity(&self.info, &filter));
        let rows = if access.point { 1 } else { ((self.row_count() as f64 * selectivity) as usize).max(1) };
        (rows, !others.is_empty())
    }

    fn statistics_of(&self, schema: &SchemaRef, filter: &ScanFilter, bound: bool) -> Statistics {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let rows =
            if bound { 1 } else { ((self.row_count() as f64 * filter.predicate().selectivity()) as usize).max(1) };
        let width: usize = schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(24)).sum();
        let mut statistics = Statistics::new_unknown(schema);
        statistics.num_rows = Precision::Inexact(rows);
        statistics.total_byte_size = Precision::Inexact(rows * width.max(1));
        statistics
    }
}

#[async_trait]
impl TableProvider for FarTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(if self.with_row_number { &self.info.arrow_full } else { &self.info.arrow })
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(self.statistics_of(&self.schema(), &ScanFilter::default(), false))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let decide = |filter: &&Expr| {
            if ScanFilter::supports(&self.info, filter) {
                TableProviderFilterPushDown::Exact
            } else {
                TableProviderFilterPushDown::Unsupported
            }
        };
        Ok(filters.iter().map(decide).collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let input = state
            .config()
            .get_extension::<QueryInput>()
            .ok_or_else(|| DataFusionError::Internal("a scan without rows to read".to_owned()))?;
        let full = self.schema();
        let mut columns: Vec<usize> = projection.cloned().unwrap_or_else(|| (0..full.fields().len()).collect());
        let (_, others) = ScanFilter::split(&self.info, filters);
        if let Some(rest) = conjunction(others.into_iter().cloned()) {
            // The other filters are evaluated above the scan, which returns all columns for them.
            let decided: Vec<Expr> = filters.iter().filter(|f| ScanFilter::supports(&self.info, f)).cloned().collect();
            let all = self.scan_decided(&input, state, (0..full.fields().len()).collect(), filters, &decided, None)?;
            let predicate = state.create_physical_expr(rest, &DFSchema::try_from(full.as_ref().clone())?)?;
            let filtered =
                FilterExecBuilder::new(predicate, all).apply_projection(Some(std::mem::take(&mut columns)))?;
            return Ok(Arc::new(filtered.build()?));
        }
        self.scan_decided(&input, state, columns, filters, filters, limit)
    }
}

impl FarTable {
    /// The scan with filters that it can evaluate itself. `named` are the filters in the scan's key.
    fn scan_decided(
        &self,
        input: &QueryInput,
        state: &dyn Session,
        columns: Vec<usize>,
        named: &[Expr],
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let full = self.schema();
        let schema = Arc::new(full.project(&columns)?);
        let (filter, _) = ScanFilter::split(&self.info, filters);
        let (access, _, _) = crate::engine::direct::choose(&self.info, filter.sargs(), &[]);
        let statistics = self.statistics_of(&schema, &filter, access.point);
        match &input.rows {
            RowSource::Nothing => Ok(Arc::new(SnapshotScan::nothing(Arc::clone(&self.info), schema, statistics))),
            RowSource::Gathered(gathered, _) => {
                let gathered = gathered.get(&scan_key(self, named)).ok_or_else(|| {
                    DataFusionError::Internal(format!("the rows of {} were not gathered", self.info.name))
                })?;
                let places = columns.iter().map(|column| gathered.columns.iter().position(|kept| kept == column));
                let places: Vec<usize> = places.collect::<Option<_>>().ok_or_else(|| {
                    DataFusionError::Internal(format!("a column of {} was not gathered", self.info.name))
                })?;
                let (batches, schema) = (std::slice::from_ref(&gathered.batches), Arc::clone(&gathered.schema));
                Ok(MemorySourceConfig::try_new_exec(batches, schema, Some(places))?)
            }
            RowSource::Snapshot(snapshot, tables, PathsOf { paths, forced }) => {
                let at = tables.get(&self.info.table.id()).ok_or_else(|| {
                    DataFusionError::Internal(format!("the pages of {} were not asked for", self.info.name))
                })?;
                let sample = self.info.sample.get(self.row_count(), snapshot, &at.pages);
                let statistics = if access.point {
                    statistics
                } else {
                    sample.statistics(&self.info, (&columns, &schema), &filter, self.row_count())
                };
                let threads = state.config().target_partitions();
                let wanted = Wanted { filter: &filter, columns: &columns, threads };
                let access = Access::of(at, &self.info, &wanted, (paths, *forced));
                let access = access.map_err(|error| DataFusionError::External(Box::new(error)))?;
                Ok(Arc::new(SnapshotScan::new(
                    (Arc::clone(&self.info), schema, columns),
                    (Arc::clone(snapshot), access),
                    (&filter, filters.to_vec()),
                    threads,
                    limit,
                    input.cancel.clone(),
                    statistics,
                )))
            }
        }
    }
}
