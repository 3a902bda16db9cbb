//! The operator that requests aggregates from homes.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_scan::access_path::Value;
use farhold_scan::model::PathKind;
use farhold_scan::predicate::Predicate;
use farhold_store::row::Schema;
use farhold_txn::{FarWanted, ScannedSegment};

use super::super::access::Aggregated;
use super::super::exec::SnapshotScan;
use super::super::far::{Asked, Wish, bytes_of};
use super::super::paths::now;
use super::states::States;
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;

/// The number of requests to one home in flight.
const ASKED_MAX: usize = 2;

/// Partial states of aggregates over segments of other nodes: one partition per node, and one row per segment with passing rows.
pub(super) struct AggregatesExec {
    schema: SchemaRef,
    states: States,
    /// The scan that has the other rows.
    left: SnapshotScan,
    aggregated: Arc<[Aggregated]>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl AggregatesExec {
    /// `schema`: of the states. `left`: the scan that has the other rows.
    pub(super) fn new(schema: SchemaRef, left: SnapshotScan, states: States, aggregated: Vec<Aggregated>) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(Arc::clone(&schema)),
            Partitioning::UnknownPartitioning(aggregated.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self {
            schema,
            states,
            left,
            aggregated: aggregated.into(),
            properties,
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// Whether both have the same states of the same rows: the scans beside them say which nodes aggregate, and of which snapshot.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.states == other.states && self.left.is_same(&other.left)
    }
}

impl fmt::Debug for AggregatesExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregatesExec").field("table", &self.left.table.name).finish_non_exhaustive()
    }
}

impl DisplayAs for AggregatesExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments: usize = self.aggregated.iter().flat_map(|of| &of.runs).map(Vec::len).sum();
        let (table, names) = (&self.left.table.name, self.states.names.join(", "));
        write!(f, "FarholdAggregates: table={table}, aggregates=[{names}], far_segments={segments}")?;
        for of in self.aggregated.iter() {
            write!(f, ", {}", of.meter.describe())?;
        }
        Ok(())
    }
}

impl ExecutionPlan for AggregatesExec {
    fn name(&self) -> &'static str {
        "FarholdAggregates"
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

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let of = self.aggregated.get(partition).cloned();
        let of = of.ok_or_else(|| DataFusionError::Internal("a partition of no node".to_owned()))?;
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let count = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        let mut asking = Asking {
            of,
            schema: Arc::clone(&self.schema),
            states: self.states.clone(),
            table: Arc::clone(&self.left.table),
            predicate: Arc::clone(&self.left.predicate),
            cancel: self.left.cancel.clone(),
            next: 0,
            asked: VecDeque::new(),
            room: MemoryConsumer::new("aggregates of other nodes").register(context.memory_pool()),
            held: 0,
            at_home: count("segments_at_home"),
            read: count("segments_read"),
            time: MetricBuilder::new(&self.metrics)
                .subset_time(format!("{}_time", PathKind::Pushdown.name()), partition),
        };
        let stream = futures::stream::poll_fn(move |context| {
            let timer = baseline.elapsed_compute().timer();
            let run = asking.next_run().transpose();
            timer.done();
            match run {
                // Other queries may use the thread between two runs.
                Some(Ok(batch)) if batch.num_rows() == 0 => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
                Some(Ok(batch)) => {
                    baseline.record_output(batch.num_rows());
                    Poll::Ready(Some(Ok(batch)))
                }
                Some(Err(error)) => {
                    asking.end();
                    Poll::Ready(Some(Err(error)))
                }
                None => Poll::Ready(None),
            }
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), stream)))
    }
}

/// The execution state of one partition.
struct Asking {
    of: Aggregated,
    schema: SchemaRef,
    states: States,
    table: Arc<TableInfo>,
    predicate: Arc<Predicate>,
    cancel: CancelHandle,
    /// The next run to request.
    next: usize,
    asked: VecDeque<Asked>,
    /// Memory of the query for the requested runs, and for the last batch.
    room: MemoryReservation,
    /// Bytes of it that the last batch has.
    held: usize,
    /// Segments that the home has aggregated, and segments that it has refused, which were read.
    at_home: Count,
    read: Count,
    time: Time,
}

impl Asking {
    /// The states of the next run; without rows if no row of the run passes.
    fn next_run(&mut self) -> Result<Option<RecordBatch>> {
        self.room.shrink(std::mem::take(&mut self.held));
        self.cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
        let since = now();
        while self.asked.len() < ASKED_MAX && self.next < self.of.runs.len() && self.ask()? {}
        let Some(asked) = self.asked.pop_front() else { return Ok(None) };
        let scanned = asked.wait(&self.of.meter, &self.cancel)?;
        let count = if scanned.is_of_home { &self.at_home } else { &self.read };
        count.add(scanned.segments.len());
        let batch = self.batch(&scanned.segments, asked.bytes)?;
        let ns = since.elapsed().as_nanos() as u64;
        self.of.meter.add(ns);
        self.time.add_duration(Duration::from_nanos(ns));
        Ok(Some(batch))
    }

    /// Requests nothing more.
    fn end(&mut self) {
        self.next = self.of.runs.len();
        self.asked.clear();
    }

    /// Requests the next run. False: there is no memory for it, and another request is in flight.
    fn ask(&mut self) -> Result<bool> {
        let (far, segments) = (&self.of.far, self.of.runs[self.next].clone());
        // A text is no longer than its chunk, and no longer than a row.
        let text = |column, segment: &usize| (bytes_of(far, &[*segment], column) as usize).min(Schema::PART_BYTES_MAX);
        let of_column = |column| segments.iter().map(|segment| text(column, segment)).sum::<usize>();
        let bytes = self.states.texts(&self.table).map(of_column).sum::<usize>() + self.states.bytes() * segments.len();
        match self.room.try_grow(bytes) {
            Err(error) if self.asked.is_empty() => return Err(error),
            Err(_) => return Ok(false),
            Ok(()) => {}
        }
        self.asked.push_back(Asked::start(Wish {
            far,
            segments,
            table: &self.table,
            predicate: &self.predicate,
            wanted: FarWanted::Aggregates(Arc::clone(&self.states.wanted)),
            meter: &self.of.meter,
            bytes,
        })?);
        self.next += 1;
        Ok(true)
    }

    /// The states of a run for which this much memory has been reserved.
    fn batch(&mut self, segments: &[ScannedSegment], reserved: usize) -> Result<RecordBatch> {
        let values: Vec<&[Value]> = segments.iter().map(|found| found.aggregates.as_slice()).collect();
        let batch = self.states.batch(&self.schema, &values)?;
        self.held = reserved.min(batch.get_array_memory_size());
        self.room.shrink(reserved - self.held);
        Ok(batch)
    }
}
