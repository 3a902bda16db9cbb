//! The operator that returns the rows of one of several equal plans, for all of them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Statistics;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions, reset_plan_states};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, StatisticsArgs,
};
use futures::{StreamExt, TryStreamExt, stream};

use crate::blocks::{batch_bytes, without_idle_bytes};
use crate::datafusion::build::panicked;
use crate::datafusion::error::to_datafusion;
use crate::datafusion::exec::spill_directory;
use crate::datafusion::memory::lock;
use crate::datafusion::once::Once;
use crate::spill::{SharedFile, SpillFile, Writer};

/// The kept rows of a plan may take one part in this many of the memory pool: joins and aggregates above, which begin later, need memory too.
const POOL_SHARE: u64 = 8;

/// The bytes that all parts of a plan keep in memory.
#[derive(Debug, Default)]
pub struct PlanRows {
    bytes: AtomicU64,
}

impl PlanRows {
    /// True if the sum is then at most `limit`.
    fn try_grow(&self, bytes: u64, limit: u64) -> bool {
        let more = |kept: u64| kept.checked_add(bytes).filter(|&kept| kept <= limit);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The memory of the rows of a partition.
struct Room {
    of_pool: MemoryReservation,
    of_plan: Arc<PlanRows>,
    /// The most bytes of the plan.
    limit: u64,
    bytes: u64,
}

impl Room {
    fn try_grow(&mut self, bytes: u64) -> bool {
        if !self.of_plan.try_grow(bytes, self.limit) {
            return false;
        }
        if self.of_pool.try_grow(bytes as usize).is_err() {
            self.of_plan.shrink(bytes);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.of_plan.shrink(self.bytes);
    }
}

/// The state that the copies of one part of a plan share.
pub struct Common {
    /// The copies that are executed.
    copies: usize,
    /// Shared with all other parts of the plan.
    of_plan: Arc<PlanRows>,
    /// One run for each context in which the plan runs.
    runs: Mutex<Vec<Run>>,
}

impl Common {
    pub fn new(copies: usize, of_plan: Arc<PlanRows>) -> Self {
        Self { copies, of_plan, runs: Mutex::default() }
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common").field("copies", &self.copies).finish_non_exhaustive()
    }
}

/// An execution of all copies.
struct Run {
    context: Weak<TaskContext>,
    rows: Rows,
    /// Streams of all copies that have been requested, and those of them that have not ended.
    begun: usize,
    live: usize,
    /// Identifies the run: a plan that is reset runs again in the same context.
    id: Arc<()>,
}

/// The rows of each partition, once all rows have been kept.
type Rows = Once<Vec<Kept>>;

/// A stream that has not ended.
struct Live {
    common: Arc<Common>,
    of: Arc<()>,
    partitions: usize,
    baseline: BaselineMetrics,
}

impl Live {
    fn saw(&self, batch: &RecordBatch) {
        self.baseline.record_output(batch.num_rows());
    }
}

impl Drop for Live {
    /// The last stream of all copies ends the run, so that a plan that is kept holds no memory. A run that is not
    /// finished ends with the last stream that exists: no stream waits for it.
    fn drop(&mut self) {
        let mut runs = lock(&self.common.runs);
        let Some(at) = runs.iter().position(|run| Arc::ptr_eq(&run.id, &self.of)) else { return };
        let run = &mut runs[at];
        run.live -= 1;
        if run.live == 0 && (run.begun == self.common.copies * self.partitions || !run.rows.has_ended()) {
            let over = runs.swap_remove(at);
            drop(runs);
            drop(over);
        }
    }
}

/// One copy of a part that its plan has several times.
#[derive(Debug)]
pub struct CommonExec {
    plan: Arc<dyn ExecutionPlan>,
    common: Arc<Common>,
    /// Whether the plan has been run; a plan that runs again must first be reset.
    has_run: AtomicBool,
    metrics: ExecutionPlanMetricsSet,
}

impl CommonExec {
    pub fn new(plan: Arc<dyn ExecutionPlan>, common: Arc<Common>) -> Self {
        Self { plan, common, has_run: AtomicBool::new(false), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whether the two are copies of one part.
    pub fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.common, &other.common)
    }

    fn begin(&self, context: &Arc<TaskContext>) -> Result<Rows> {
        let mut plan = Arc::clone(&self.plan);
        if self.has_run.swap(true, Ordering::Relaxed) {
            plan = reset_plan_states(plan)?;
        }
        let pool = context.memory_pool();
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes as u64 / POOL_SHARE,
            _ => u64::MAX,
        };
        let mut keeping = Vec::new();
        for partition in 0..plan.output_partitioning().partition_count() {
            let of_pool = MemoryConsumer::new("rows of a common part").with_can_spill(true).register(pool);
            let room = Room { of_pool, of_plan: Arc::clone(&self.common.of_plan), limit, bytes: 0 };
            let input = plan.execute(partition, Arc::clone(context))?;
            let spilled_rows = MetricBuilder::new(&self.metrics).spilled_rows(partition);
            keeping.push(keep(input, room, spilled_rows, Arc::clone(context)));
        }
        Ok(Once::new(async move {
            let tasks: Vec<_> = keeping.into_iter().map(SpawnedTask::spawn).collect();
            let mut rows = Vec::with_capacity(tasks.len());
            for task in tasks {
                rows.push(task.join().await.map_err(panicked)??);
            }
            Ok(rows)
        }))
    }
}

/// The rows of a partition.
struct Kept {
    batches: Vec<RecordBatch>,
    /// The rows for which there was no room in memory.
    file: Option<SpillFile>,
    _room: Room,
}

async fn keep(
    mut input: SendableRecordBatchStream,
    mut room: Room,
    spilled_rows: Count,
    context: Arc<TaskContext>,
) -> Result<Kept> {
    let (mut batches, mut writer) = (Vec::new(), None);
    while let Some(batch) = input.next().await.transpose()? {
        if batch.num_rows() == 0 {
            continue;
        }
        let batch = without_idle_bytes(&batch).map_err(to_datafusion)?;
        let bytes = batch_bytes(&batch);
        if writer.is_none() && room.try_grow(bytes) {
            batches.push(batch);
            continue;
        }
        let writer = if let Some(writer) = &mut writer {
            writer
        } else {
            let directory = spill_directory(&context)?;
            let file = SharedFile::new(&directory, false);
            writer.insert(Writer::create(file, &batch.schema()).map_err(to_datafusion)?)
        };
        writer.push(&batch).map_err(to_datafusion)?;
        spilled_rows.add(batch.num_rows());
    }
    let file = writer.map(Writer::finish).transpose().map_err(to_datafusion)?;
    Ok(Kept { batches, file, _room: room })
}

/// The rows of a partition, as they were handed out.
fn read(schema: SchemaRef, rows: &Kept) -> Result<SendableRecordBatchStream> {
    let batches = stream::iter(rows.batches.clone().into_iter().map(Ok));
    let Some(file) = &rows.file else { return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches))) };
    let from_file = stream::try_unfold(file.read().map_err(to_datafusion)?, |mut reader| async move {
        let next = move || {
            let batch = reader.next();
            (reader, batch)
        };
        let (reader, batch) = SpawnedTask::spawn_blocking(next).join().await.map_err(panicked)?;
        Ok(batch.transpose().map_err(to_datafusion)?.map(|batch| (batch, reader)))
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, batches.chain(from_file))))
}

impl DisplayAs for CommonExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let separator = if format == DisplayFormatType::TreeRender { "" } else { "CommonExec: " };
        write!(f, "{separator}copies={}, run in one", self.common.copies)
    }
}

impl ExecutionPlan for CommonExec {
    fn name(&self) -> &'static str {
        "CommonExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.plan]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = children.pop().unwrap_or_else(|| Arc::clone(&self.plan));
        Ok(Arc::new(Self::new(plan, Arc::clone(&self.common))))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(children, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    /// The caller that resets the whole plan also resets the plan below. Kept rows are dropped: a plan is reset in
    /// order to run anew.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        lock(&self.common.runs).clear();
        Ok(Arc::new(Self::new(Arc::clone(&self.plan), Arc::clone(&self.common))))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (rows, of) = {
            let mut runs = lock(&self.common.runs);
            runs.retain(|run| run.context.strong_count() > 0);
            let is_now = |run: &Run| std::ptr::eq(run.context.as_ptr(), Arc::as_ptr(&context));
            let at = if let Some(at) = runs.iter().position(is_now) {
                at
            } else {
                let rows = self.begin(&context)?;
                runs.push(Run { context: Arc::downgrade(&context), rows, begun: 0, live: 0, id: Arc::default() });
                runs.len() - 1
            };
            let run = &mut runs[at];
            run.begun += 1;
            run.live += 1;
            (run.rows.clone(), Arc::clone(&run.id))
        };
        let partitions = self.plan.output_partitioning().partition_count();
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let live = Live { common: Arc::clone(&self.common), of, partitions, baseline };
        let schema = self.schema();
        let begin = async move { read(schema, &rows.get().await?[partition]) };
        let batches = stream::once(begin).try_flatten();
        // The closure owns `live`, so it ends with the stream.
        let batches = batches.inspect_ok(move |batch| live.saw(batch));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }
}
