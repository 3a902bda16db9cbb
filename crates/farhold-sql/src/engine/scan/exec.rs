//! The scan of a snapshot. It decodes pages or column segments to batches.

use std::fmt;
use std::iter;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet, Time,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_scan::columns::ColumnFilter;
use farhold_scan::kernels::Bits;
use farhold_scan::model::{Choice, PATHS, PathKind};
use farhold_scan::predicate::Predicate;
use farhold_scan::rows::RowFilter;
use farhold_store::column::{BLOCK_ROWS, Chunk};
use farhold_txn::{PageTask, Snapshot, TxnError};

use super::BATCH_ROWS;
use super::access::{self, Access, Aggregated, Columns, FarRead, Source, far_chunks};
use super::aggregates::are_same;
use super::bounds::Bounds;
use super::decode::BatchDecoder;
use super::far::{FarRuns, Run};
use super::filter::ScanFilter;
use super::keys::KeySets;
use super::paths::now;
use super::runtime::{RuntimeFilters, exact_column};
use crate::engine::cancel::CancelHandle;
use crate::engine::catalog::TableInfo;
use crate::engine::error;

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

    /// The execution state of a partition.
    fn part(
        &self,
        partition: usize,
        batch_rows: usize,
        snapshot: Arc<Snapshot>,
        room: Option<MemoryReservation>,
    ) -> Part {
        let decoder = BatchDecoder::new(&self.table, &self.columns, Arc::clone(&self.schema), batch_rows);
        Part {
            value_bytes: decoder.value_bytes().max(self.filter.value_bytes()),
            room: Vec::new(),
            scratch: Vec::new(),
            decoder,
            snapshot,
            table: Arc::clone(&self.table),
            access: self.access.clone(),
            block: 0,
            runs: FarRuns::new(room),
            reads_ahead: self.limit.is_none(),
            spent_ns: 0,
            metrics: None,
            predicate: Arc::clone(&self.predicate),
            next: partition,
            step: self.properties.partitioning.partition_count(),
            filter: Arc::clone(&self.filter),
            of_query: Arc::clone(&self.predicate),
            columns: Arc::clone(&self.columns),
            runtime: RuntimeFilters::new(Arc::clone(&self.runtime)),
            keys: KeySets::default(),
            left: self.limit.unwrap_or(usize::MAX),
            cancel: self.cancel.clone(),
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
    let mut part = scan.part(0, BATCH_ROWS, Arc::clone(snapshot), None);
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
        let mut part = self.part(partition, batch_rows, snapshot, Some(room));
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        part.metrics =
            Some(PathMetrics { set: self.metrics.clone(), partition, times: Default::default(), skipped: None });
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

/// The result of one turn of a partition.
enum Turn {
    Batch(RecordBatch),
    /// No full batch yet: it goes on in the next turn.
    Pause,
    End,
}

/// The execution state of one partition.
struct Part {
    decoder: BatchDecoder,
    /// The number of bytes to read from the start of each row's value.
    value_bytes: usize,
    room: Vec<u8>,
    scratch: Vec<u8>,
    snapshot: Arc<Snapshot>,
    table: Arc<TableInfo>,
    access: Access,
    /// The next part.
    next: usize,
    /// The next block of that part.
    block: usize,
    /// Runs of other nodes' segments.
    runs: FarRuns,
    reads_ahead: bool,
    /// The time that the part has taken so far.
    spent_ns: u64,
    /// For EXPLAIN ANALYZE.
    metrics: Option<PathMetrics>,
    /// The conditions that rows must pass, for columns and for rows: the query's own predicate, and the filters that joins have published.
    predicate: Arc<Predicate>,
    filter: Arc<RowFilter>,
    of_query: Arc<Predicate>,
    columns: Arc<[usize]>,
    runtime: RuntimeFilters,
    keys: KeySets,
    step: usize,
    left: usize,
    cancel: CancelHandle,
}

/// The metrics of a partition for each access path.
struct PathMetrics {
    set: ExecutionPlanMetricsSet,
    partition: usize,
    times: [Option<Time>; PATHS],
    /// Segments of other nodes that were skipped by the keys of joins.
    skipped: Option<Count>,
}

impl PathMetrics {
    fn add_time(&mut self, path: PathKind, ns: u64) {
        let metric = || MetricBuilder::new(&self.set).subset_time(format!("{}_time", path.name()), self.partition);
        self.times[path as usize].get_or_insert_with(metric).add_duration(Duration::from_nanos(ns));
    }

    fn add_skipped(&mut self, segments: usize) {
        let metric = || MetricBuilder::new(&self.set).counter("far_segments_skipped", self.partition);
        self.skipped.get_or_insert_with(metric).add(segments);
    }
}

impl Part {
    /// Reads parts until a batch is full, and returns it; after `turn` at the end of a part.
    fn take_turn(&mut self, turn: Duration) -> Result<Turn> {
        let since = now();
        while self.left > 0 && !self.decoder.is_full() {
            self.cancel.check().map_err(|e| DataFusionError::External(Box::new(e)))?;
            self.add_keys_of_joins()?;
            let has_more = match &self.access {
                Access::Rows { pages, .. } => self.read_pages(&Arc::clone(pages))?,
                Access::Columns(columns) => self.read_columns(&columns.clone())?,
            };
            if !has_more {
                break;
            }
            if since.elapsed() >= turn && !self.decoder.is_full() {
                return Ok(Turn::Pause);
            }
        }
        if self.decoder.rows() == 0 || self.left == 0 {
            return Ok(Turn::End);
        }
        let batch = self.decoder.finish()?;
        let kept = batch.num_rows().min(self.left);
        self.left -= kept;
        Ok(Turn::Batch(if kept < batch.num_rows() { batch.slice(0, kept) } else { batch }))
    }

    /// Adds the filters that joins have published since the last part.
    fn add_keys_of_joins(&mut self) -> Result<()> {
        let has_bounds = matches!(self.access, Access::Columns(_));
        let Some((filter, keys)) = self.runtime.refresh(&self.table, &self.columns, has_bounds)? else { return Ok(()) };
        let mut predicate = self.of_query.as_ref().clone();
        predicate.push_all(filter.predicate());
        self.keys = keys;
        self.filter = Arc::new(RowFilter::new(self.table.schema(), &predicate));
        self.value_bytes = self.value_bytes.max(self.filter.value_bytes());
        self.predicate = Arc::new(predicate);
        self.access.shorten();
        Ok(())
    }

    /// Reads the next page task; returns false if there is none. A task has only a few pages, so a batch exceeds its
    /// capacity only slightly.
    fn read_pages(&mut self, pages: &[PageTask]) -> Result<bool> {
        let Some(task) = pages.get(self.next) else { return Ok(false) };
        self.next += self.step;
        self.read_task(task)?;
        Ok(true)
    }

    fn read_task(&mut self, task: &PageTask) -> Result<()> {
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
        scanned.map_err(|error| failed(&error))
    }

    /// Reads blocks of the next part until the batch is full or the part ends; returns false if there is no part.
    fn read_columns(&mut self, columns: &Columns) -> Result<bool> {
        let Some(part) = columns.parts.get(self.next) else { return Ok(false) };
        let since = now();
        let (filter, scratch) = (&self.filter, &mut self.scratch);
        let mut has_more = false;
        match &part.source {
            Source::Pages(task) => self.read_task(task)?,
            Source::Delta(view, rows) => view.visit_delta(rows.clone(), &mut |key, value| {
                if filter.matches(key, value, scratch) {
                    self.decoder.append(key, value);
                }
            }),
            Source::FarDelta(far, rows) => {
                for (key, value) in far.view().delta_part(rows.clone()) {
                    if filter.matches(key, value, scratch) {
                        self.decoder.append(key, value);
                    }
                }
            }
            Source::Segment(view, segment) => {
                let chunks = segment.chunks();
                let predicate = Arc::clone(&self.predicate);
                let filter = ColumnFilter::new(self.table.schema(), &predicate, &chunks);
                let select = |block, bits: &mut Bits| view.select(segment, block, bits);
                has_more = self.read_blocks(segment.rows(), &chunks, &filter, select);
            }
            Source::FarSegment(far, number)
                if self.block == 0 && !far.may_pass(*number, self.table.schema(), &self.predicate) =>
            {
                self.count_skipped(1);
            }
            Source::FarSegment(far, number) => {
                let segment = &far.segments()[*number];
                let table = Arc::clone(&self.table);
                let chunks = far_chunks(far, segment, &table).map_err(|error| failed(&error))?;
                let predicate = Arc::clone(&self.predicate);
                let filter = ColumnFilter::of_some(table.schema(), &predicate, segment.rows(), chunks.of_some());
                let select = |block, bits: &mut Bits| segment.select(block, bits);
                has_more = self.read_blocks(segment.rows(), &chunks.all, &filter, select);
                // The data that was read counts only if it was kept until now.
                far.pin().check().map_err(|error| failed(&error))?;
            }
            Source::FarRun(far, _) => {
                if !self.runs.is_decoding() {
                    self.read_run(columns)?;
                }
                has_more = self.runs.decode(far, &self.table, &self.columns, &mut self.keys, &mut self.decoder)?;
            }
        }
        self.spent_ns += since.elapsed().as_nanos() as u64;
        if !has_more {
            self.next += self.step;
            self.block = 0;
            let ns = std::mem::take(&mut self.spent_ns);
            let path = match (&part.meter, &part.source) {
                (Some(meter), Source::Pages(_) | Source::FarSegment(..) | Source::FarRun(..)) => {
                    meter.add(ns);
                    meter.choice.path
                }
                (_, Source::Pages(_)) => PathKind::Rows,
                _ => PathKind::Direct,
            };
            if let Some(metrics) = &mut self.metrics {
                metrics.add_time(path, ns);
            }
        }
        Ok(true)
    }

    /// Waits for the next part, which is a run, and starts the one after it. A limit may be reached before that.
    fn read_run(&mut self, columns: &Columns) -> Result<()> {
        let ahead = self.reads_ahead.then_some(self.next + self.step);
        for number in iter::once(self.next).chain(ahead) {
            let Some(access::Part { source: Source::FarRun(far, segments), meter: Some(meter) }) =
                columns.parts.get(number)
            else {
                continue;
            };
            let run = Run { far, segments: segments.clone(), meter };
            let is_needed = number == self.next;
            let skipped = self.runs.ask(number, is_needed, &run, &self.table, &self.predicate, &self.columns)?;
            self.count_skipped(skipped);
        }
        match columns.parts.get(self.next) {
            Some(access::Part { source: Source::FarRun(far, _), meter: Some(meter) }) => {
                self.runs.receive(far, meter, &self.cancel)
            }
            _ => Ok(()),
        }
    }

    fn count_skipped(&mut self, segments: usize) {
        if let Some(metrics) = self.metrics.as_mut().filter(|_| segments > 0) {
            metrics.add_skipped(segments);
        }
    }

    /// Reads the next blocks of a segment until the batch is full; returns whether some are left.
    fn read_blocks(
        &mut self,
        rows: usize,
        chunks: &[Chunk<'_>],
        filter: &ColumnFilter<'_>,
        select: impl Fn(usize, &mut Bits),
    ) -> bool {
        let blocks = rows.div_ceil(BLOCK_ROWS);
        while self.block < blocks && !self.decoder.is_full() {
            let mut bits = [0; BLOCK_ROWS / 64];
            filter.select(self.block, &mut bits);
            select(self.block, &mut bits);
            self.keys.select(chunks, self.block, &mut bits);
            if bits.iter().any(|word| *word != 0) {
                self.decoder.append_block(chunks, self.block, &bits);
            }
            self.block += 1;
        }
        self.block < blocks
    }
}

fn failed(error: &TxnError) -> DataFusionError {
    DataFusionError::External(Box::new(error::from_txn(error)))
}

#[cfg(test)]
mod tests;
