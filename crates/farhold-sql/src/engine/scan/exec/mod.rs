//! The scan of a snapshot as an operator of a plan: what it reads, and what the rules of joins and aggregates ask of it.
//!
//! Each partition has a state of its own ([`part`]), which decodes pages or column segments to batches.

mod metrics;
mod part;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_scan::model::Choice;
use farhold_scan::predicate::Predicate;
use farhold_scan::rows::RowFilter;
use farhold_txn::Snapshot;

use self::metrics::PathMetrics;
use self::part::{Part, Turn};
use super::BATCH_ROWS;
use super::access::{Access, Aggregated, FarRead};
use super::aggregates::are_same;
use super::bounds::Bounds;
use super::filter::ScanFilter;
use super::runtime::exact_column;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;

/// Scans a table of a snapshot. Partition `p` of `n` reads the page tasks or column parts `p`, `p + n`, `p + 2n`, …;
/// the assignment is fixed, so that a plan can run again.
#[derive(Clone)]
pub(crate) struct SnapshotScan {
    pub(super) table: Arc<TableInfo>,
    pub(super) schema: SchemaRef,
    pub(super) columns: Arc<[usize]>,
    snapshot: Option<Arc<Snapshot>>,
    access: Access,
    pub(super) predicate: Arc<Predicate>,
    filter: Arc<RowFilter>,
    /// The conjuncts of `filter` as logical expressions.
    conditions: Vec<Expr>,
    /// Filters of the joins above, over `columns`.
    runtime: Arc<[PhysicalExprRef]>,
    limit: Option<usize>,
    pub(super) cancel: CancelHandle,
    statistics: Statistics,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SnapshotScan {
    pub(super) fn new(
        (table, schema, columns): (Arc<TableInfo>, SchemaRef, Vec<usize>),
        (snapshot, access): (Arc<Snapshot>, Access),
        (filter, conditions): (&ScanFilter, Vec<Expr>),
        partitions_max: usize,
        limit: Option<usize>,
        cancel: CancelHandle,
        statistics: Statistics,
    ) -> Self {
        let partitions = partitions_max.clamp(1, access.part_count().max(1));
        let properties = Self::properties_of(&schema, partitions);
        let predicate = Arc::new(filter.predicate().clone());
        let filter = Arc::new(filter.on_rows(&table));
        Self {
            table,
            schema,
            columns: columns.into(),
            snapshot: Some(snapshot),
            access,
            predicate,
            filter,
            conditions,
            runtime: Arc::from([]),
            limit,
            cancel,
            statistics,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// A scan for a plan that is never executed.
    pub(super) fn nothing(table: Arc<TableInfo>, schema: SchemaRef, statistics: Statistics) -> Self {
        let properties = Self::properties_of(&schema, 1);
        Self {
            table,
            schema,
            columns: Arc::from([]),
            snapshot: None,
            access: Access::nothing(),
            predicate: Arc::default(),
            filter: Arc::new(RowFilter::default()),
            conditions: Vec::new(),
            runtime: Arc::from([]),
            limit: None,
            cancel: CancelHandle::default(),
            statistics,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Splits the scan into the part that remains here and the segments that other nodes will aggregate ([`Access::split`]).
    pub(super) fn split(&self, choose: impl Fn(&FarRead) -> Option<Choice>) -> Option<(Self, Vec<Aggregated>)> {
        // A limit has to count rows, and a filter of a join has to see them.
        if self.limit.is_some() || !self.runtime.is_empty() || self.snapshot.is_none() {
            return None;
        }
        let (access, aggregated) = self.access.split(choose)?;
        let partitions = self.properties.partitioning.partition_count().min(access.part_count().max(1));
        let properties = Self::properties_of(&self.schema, partitions);
        let metrics = ExecutionPlanMetricsSet::new();
        Some((Self { access, properties, metrics, ..self.clone() }, aggregated))
    }

    /// Whether both return the same rows per partition. Of scans that have been [split](Self::split), the same nodes aggregate the rest.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let snapshots = self.snapshot.as_ref().zip(other.snapshot.as_ref());
        snapshots.is_some_and(|(one, other)| Arc::ptr_eq(one, other))
            && self.access.is_same(&other.access)
            && self.table.table.id() == other.table.table.id()
            && self.columns == other.columns
            && self.conditions == other.conditions
            && self.limit.is_none()
            && other.limit.is_none()
    }

    /// The bounds of the values of one of its columns ([`Access::bounds`]).
    pub(crate) fn bounds(&self, column: usize, has_delta: bool) -> Option<Bounds> {
        self.access.bounds(&self.table, *self.columns.get(column)?, has_delta)
    }

    fn properties_of(schema: &SchemaRef, partitions: usize) -> Arc<PlanProperties> {
        Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(schema)),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ))
    }
}

/// Reads the rows of a table that pass a filter, on this thread, and forgets them; how many they are.
pub(super) fn read_all(
    table: &Arc<TableInfo>,
    snapshot: &Arc<Snapshot>,
    access: Access,
    columns: &[usize],
    filter: &ScanFilter,
) -> Result<usize> {
    let schema = Arc::new(table.arrow_full.project(columns)?);
    let statistics = Statistics::new_unknown(&schema);
    let scan = SnapshotScan::new(
        (Arc::clone(table), schema, columns.to_vec()),
        (Arc::clone(snapshot), access),
        (filter, Vec::new()),
        1,
        None,
        CancelHandle::default(),
        statistics,
    );
    let mut part = Part::new(&scan, 0, BATCH_ROWS, Arc::clone(snapshot), None);
    let mut rows = 0;
    loop {
        match part.take_turn(Duration::MAX)? {
            Turn::Batch(batch) => rows += batch.num_rows(),
            Turn::Pause => {}
            Turn::End => return Ok(rows),
        }
    }
}

/// The scan with filters of joins above; `None` if the plan is not a scan that can test them.
pub(crate) fn filtered_scan(
    plan: &Arc<dyn ExecutionPlan>,
    filters: &[PhysicalExprRef],
) -> Option<Arc<dyn ExecutionPlan>> {
    let scan = plan.downcast_ref::<SnapshotScan>()?;
    // A limit counts rows that a filter of a join drops.
    if scan.limit.is_some() || scan.snapshot.is_none() {
        return None;
    }
    Some(Arc::new(SnapshotScan { runtime: filters.into(), ..scan.clone() }))
}

/// Whether the plan is a scan that tests keys of joins above as bits. Only scans of columns do so.
pub(crate) fn tests_keys(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let Some(scan) = plan.downcast_ref::<SnapshotScan>() else { return false };
    let is_tested = |key: &PhysicalExprRef| exact_column(key, &scan.table, &scan.columns).is_some();
    matches!(scan.access, Access::Columns(_))
        && scan.runtime.iter().any(|filter| filter.children().into_iter().any(is_tested))
}

/// Whether two plans are scans of the same snapshot with the same predicates, and so return the same rows per
/// partition, or aggregates that other nodes compute of such scans.
pub(crate) fn is_same_scan(one: &Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>) -> bool {
    let scans = one.downcast_ref::<SnapshotScan>().zip(other.downcast_ref::<SnapshotScan>());
    scans.map_or_else(|| are_same(one, other), |(one, other)| one.is_same(other))
}

impl fmt::Debug for SnapshotScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotScan").field("table", &self.table.name).finish_non_exhaustive()
    }
}

impl DisplayAs for SnapshotScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "FarholdScan: table={}, columns=[{}], {}", self.table.name, names.join(", "), self.access)?;
        if !self.filter.is_empty() {
            let on = if matches!(self.access, Access::Rows { .. }) { "row bytes" } else { "codes" };
            write!(f, ", filter on {on}")?;
        }
        if !self.runtime.is_empty() {
            f.write_str(", keys of joins")?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", limit={limit}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for SnapshotScan {
    fn name(&self) -> &'static str {
        "FarholdScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let mut go_on = TreeNodeRecursion::Continue;
        for filter in self.runtime.iter() {
            go_on = go_on.visit_sibling(|| f(filter))?;
        }
        Ok(go_on)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        match partition {
            None => Ok(Arc::new(self.statistics.clone())),
            Some(_) => Ok(Arc::new(Statistics::new_unknown(&self.schema))),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(snapshot) = self.snapshot.clone() else {
            return Err(DataFusionError::Internal("a scan without rows to read".to_owned()));
        };
        let batch_rows = context.session_config().batch_size();
        let room = MemoryConsumer::new("columns of other nodes").register(context.memory_pool());
        let mut part = Part::new(self, partition, batch_rows, snapshot, Some(room));
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        part.metrics = Some(PathMetrics::new(self.metrics.clone(), partition));
        let stream = futures::stream::poll_fn(move |context| {
            let timer = metrics.elapsed_compute().timer();
            let turn = part.take_turn(TURN_MAX);
            timer.done();
            match turn {
                Ok(Turn::Batch(batch)) => {
                    metrics.record_output(batch.num_rows());
                    Poll::Ready(Some(Ok(batch)))
                }
                Ok(Turn::Pause) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Ok(Turn::End) => Poll::Ready(None),
                Err(error) => Poll::Ready(Some(Err(error))),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream)))
    }
}

/// How long a scan that finds few rows keeps its thread before it yields to the other tasks of the query threads. A part takes up to some milliseconds;
/// compared with that, a yield costs almost nothing.
const TURN_MAX: Duration = Duration::from_millis(5);
