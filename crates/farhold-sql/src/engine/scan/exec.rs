//! The scan of a snapshot: pages to batches, partition by partition.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_scan::rows::RowFilter;
use farhold_txn::{PageTask, Snapshot};

use super::decode::BatchDecoder;
use super::filter::ScanFilter;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;
use crate::engine::error;

/// Scans a table of a snapshot. Partition `p` of `n` takes the page tasks `p`, `p + n`, `p + 2n`, …: fixed, so that a plan
/// may run again.
#[derive(Clone)]
pub(crate) struct SnapshotScan {
    table: Arc<TableInfo>,
    schema: SchemaRef,
    columns: Arc<[usize]>,
    snapshot: Option<Arc<Snapshot>>,
    tasks: Arc<[PageTask]>,
    filter: Arc<RowFilter>,
    /// The conditions of `filter`, as the plan has them.
    conditions: Vec<Expr>,
    limit: Option<usize>,
    cancel: CancelHandle,
    statistics: Statistics,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SnapshotScan {
    pub(super) fn new(
        (table, schema, columns): (Arc<TableInfo>, SchemaRef, Vec<usize>),
        (snapshot, tasks): (Arc<Snapshot>, Arc<[PageTask]>),
        (filter, conditions): (&ScanFilter, Vec<Expr>),
        partitions: usize,
        limit: Option<usize>,
        cancel: CancelHandle,
        statistics: Statistics,
    ) -> Self {
        let properties = Self::properties_of(&schema, partitions);
        let filter = Arc::new(filter.on_rows(&table));
        Self {
            table,
            schema,
            columns: columns.into(),
            snapshot: Some(snapshot),
            tasks,
            filter,
            conditions,
            limit,
            cancel,
            statistics,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// A scan that is planned but never run.
    pub(super) fn nothing(table: Arc<TableInfo>, schema: SchemaRef, statistics: Statistics) -> Self {
        let properties = Self::properties_of(&schema, 1);
        Self {
            table,
            schema,
            columns: Arc::from([]),
            snapshot: None,
            tasks: Arc::from([]),
            filter: Arc::new(RowFilter::default()),
            conditions: Vec::new(),
            limit: None,
            cancel: CancelHandle::default(),
            statistics,
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
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

/// Whether two plans are scans of the same rows, partition by partition: of one snapshot, with the same conditions.
pub(crate) fn is_same_scan(one: &Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>) -> bool {
    let Some((one, other)) = one.downcast_ref::<SnapshotScan>().zip(other.downcast_ref::<SnapshotScan>()) else {
        return false;
    };
    let Some((snapshot, other_snapshot)) = one.snapshot.as_ref().zip(other.snapshot.as_ref()) else { return false };
    Arc::ptr_eq(snapshot, other_snapshot)
        && Arc::ptr_eq(&one.tasks, &other.tasks)
        && one.table.table.id() == other.table.table.id()
        && one.columns == other.columns
        && one.conditions == other.conditions
        && one.limit.is_none()
        && other.limit.is_none()
}

impl fmt::Debug for SnapshotScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotScan").field("table", &self.table.name).finish_non_exhaustive()
    }
}

impl DisplayAs for SnapshotScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(
            f,
            "FarholdScan: table={}, columns=[{}], page_tasks={}",
            self.table.name,
            names.join(", "),
            self.tasks.len()
        )?;
        if !self.filter.is_empty() {
            write!(f, ", filter on row bytes")?;
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
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
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
        let decoder = BatchDecoder::new(&self.table, &self.columns, Arc::clone(&self.schema), batch_rows);
        let mut part = Part {
            value_bytes: decoder.value_bytes().max(self.filter.value_bytes()),
            room: Vec::new(),
            scratch: Vec::new(),
            decoder,
            snapshot,
            tasks: Arc::clone(&self.tasks),
            next: partition,
            step: self.properties.partitioning.partition_count(),
            filter: Arc::clone(&self.filter),
            left: self.limit.unwrap_or(usize::MAX),
            cancel: self.cancel.clone(),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let batches = std::iter::from_fn(move || {
            let timer = metrics.elapsed_compute().timer();
            let batch = part.next_batch().transpose();
            timer.done();
            if let Some(Ok(batch)) = &batch {
                metrics.record_output(batch.num_rows());
            }
            batch
        });
        let stream = futures::stream::iter(batches);
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream)))
    }
}

/// One partition while it runs.
struct Part {
    decoder: BatchDecoder,
    /// What is read of each row's value, from its start.
    value_bytes: usize,
    room: Vec<u8>,
    scratch: Vec<u8>,
    snapshot: Arc<Snapshot>,
    tasks: Arc<[PageTask]>,
    next: usize,
    step: usize,
    filter: Arc<RowFilter>,
    left: usize,
    cancel: CancelHandle,
}

impl Part {
    /// Whole tasks until a batch is full; a task is a few pages, so batches stay near their size.
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        while self.left > 0 && !self.decoder.is_full() {
            let Some(task) = self.tasks.get(self.next) else { break };
            self.next += self.step;
            self.cancel.check().map_err(|e| DataFusionError::External(Box::new(e)))?;
            let (decoder, filter, scratch) = (&mut self.decoder, &self.filter, &mut self.scratch);
            let (snapshot, bytes, room) = (&self.snapshot, self.value_bytes, &mut self.room);
            let scanned = if filter.is_empty() {
                snapshot.scan_page_part(task, bytes, room, &mut |key, value| decoder.append(key, value))
            } else {
                snapshot.scan_page_part(task, bytes, room, &mut |key, value| {
                    if filter.matches(key, value, scratch) {
                        decoder.append(key, value);
                    }
                })
            };
            scanned.map_err(|e| DataFusionError::External(Box::new(error::from_txn(&e))))?;
        }
        if self.decoder.rows() == 0 || self.left == 0 {
            return Ok(None);
        }
        let batch = self.decoder.finish()?;
        let kept = batch.num_rows().min(self.left);
        self.left -= kept;
        Ok(Some(if kept < batch.num_rows() { batch.slice(0, kept) } else { batch }))
    }
}
