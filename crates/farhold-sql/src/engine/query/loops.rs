//! Nested loop joins over long rows.
//!
//! A nested loop (DataFusion 55) copies rows until they fill a batch, and counts no memory for it: 8192 rows of 60 KB
//! are half a gigabyte. It also repeats its left row for all rows of a right batch. So the number of rows per batch is
//! chosen such that a batch fits in [`LOOP_BYTES`], by the longest row of the left side, which is read first, and that
//! of the first right batch. Right batches are passed in slices. If longer rows come later, the possible size of their
//! batches is reserved in the queries' memory.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, TryStreamExt, future, stream};

use super::BATCH_ROWS;
use super::slices::{BATCH_BYTES, in_slices, longest_row, may_be_long};

/// The size limit of a batch of long rows, if the queries' memory has room for it; otherwise [`BATCH_BYTES`] is the
/// limit.
const LOOP_BYTES: usize = 8 << 20;

/// The limit on rows per batch while no row is known to be long; a long row that comes later is copied so many times.
const ROWS_MAX: usize = BATCH_ROWS / 4;

/// If an output batch holds at least this many times the rows of a right batch, the loop handles several left rows at
/// once, and copies none of them.
const LEFT_ROWS: usize = 11;

/// Replaces the loop if its rows may be long.
pub(super) fn with_short_batches(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let [left, right] = both(node.children().into_iter().cloned().collect())?;
    let is_short = |schema: SchemaRef| !schema.fields().iter().any(|field| may_be_long(field.data_type()));
    if is_short(left.schema()) && is_short(right.schema()) {
        return Ok(Transformed::no(node));
    }
    Ok(Transformed::yes(Arc::new(LoopExec::new(node, left, right)?)))
}

fn both(inputs: Vec<Arc<dyn ExecutionPlan>>) -> Result<[Arc<dyn ExecutionPlan>; 2]> {
    inputs.try_into().map_err(|_| internal_datafusion_err!("a loop has two inputs"))
}

/// See the module.
#[derive(Debug)]
struct LoopExec {
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    /// The nested loop join, over the two read inputs.
    join: Arc<dyn ExecutionPlan>,
    left_read: Arc<ReadExec>,
    right_read: Arc<ReadExec>,
    left_rows: Mutex<Option<LeftRows>>,
}

/// The length of the left side's longest row, once that side has been read.
type LeftRows = Shared<BoxFuture<'static, std::result::Result<usize, Arc<DataFusionError>>>>;

impl LoopExec {
    fn new(join: Arc<dyn ExecutionPlan>, left: Arc<dyn ExecutionPlan>, right: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let (left_read, right_read) = (Arc::new(ReadExec::of(&left)), Arc::new(ReadExec::of(&right)));
        let inputs: Vec<Arc<dyn ExecutionPlan>> = vec![Arc::clone(&left_read) as _, Arc::clone(&right_read) as _];
        let join = join.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?;
        Ok(Self { left, right, join, left_read, right_read, left_rows: Mutex::default() })
    }

    /// Reads the left side, once for all partitions.
    fn left_rows(&self, context: &Arc<TaskContext>) -> Result<LeftRows> {
        let mut rows = lock(&self.left_rows);
        if let Some(rows) = &*rows {
            return Ok(rows.clone());
        }
        let input = self.left.execute(0, Arc::clone(context))?;
        let room = MemoryConsumer::new("nested loop").register(context.memory_pool());
        let reading = read_left(input, room, Arc::clone(&self.left_read)).map(|read| read.map_err(Arc::new));
        Ok(rows.insert(reading.boxed().shared()).clone())
    }
}

async fn read_left(
    mut input: SendableRecordBatchStream,
    room: MemoryReservation,
    read: Arc<ReadExec>,
) -> Result<usize> {
    let (mut batches, mut longest) = (Vec::new(), 0);
    while let Some(batch) = input.try_next().await? {
        let bytes = batch.get_array_memory_size();
        room.try_grow(bytes)?;
        longest = longest_row(&batch).max(longest);
        batches.push((batch, room.split(bytes)));
    }
    // The loop reserves each batch itself.
    let batches = stream::iter(batches).map(|(batch, room)| {
        drop(room);
        Ok(batch)
    });
    read.put(0, Box::pin(RecordBatchStreamAdapter::new(input.schema(), batches)));
    Ok(longest)
}

/// The batch sizes of one partition.
struct Lengths {
    /// Rows per batch.
    rows: usize,
    left_longest: usize,
    /// The reservation for what a batch may take beyond [`BATCH_BYTES`].
    room: MemoryReservation,
}

impl Lengths {
    /// From the longest row of each side, as far as these are known.
    fn new(left_longest: usize, right_longest: usize, rows_max: usize, context: &TaskContext) -> Self {
        let room = MemoryConsumer::new("nested loop").register(context.memory_pool());
        let longest = left_longest + right_longest;
        let mut rows = rows_max.min(ROWS_MAX);
        if rows.saturating_mul(longest) > BATCH_BYTES {
            let has_room = room.try_grow(LOOP_BYTES).is_ok();
            let fitting = if has_room { LOOP_BYTES } else { BATCH_BYTES } / longest;
            rows = fitting.clamp(1, rows);
        }
        Self { rows, left_longest, room }
    }

    /// Splits a right batch into slices, after reserving the possible size of the output.
    fn slices(&self, batch: RecordBatch) -> Result<impl Iterator<Item = RecordBatch> + use<>> {
        let bytes = self.rows.saturating_mul(self.left_longest + longest_row(&batch));
        let is_long = bytes > BATCH_BYTES;
        let missing = bytes.saturating_sub(BATCH_BYTES.max(self.room.size()));
        if missing > 0 {
            self.room.try_grow(missing)?;
        }
        let rows = if is_long { (self.rows / LEFT_ROWS).max(1) } else { batch.num_rows().max(1) };
        Ok(in_slices(batch, rows))
    }
}

impl DisplayAs for LoopExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.join.fmt_as(format, f)
    }
}

impl ExecutionPlan for LoopExec {
    fn name(&self) -> &'static str {
        "LoopExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        self.join.maintains_input_order()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.left, &self.right]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.join.apply_expressions(f)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let [left, right] = both(children)?;
        Ok(Arc::new(Self::new(Arc::clone(&self.join), left, right)?))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (left_rows, mut right) = (self.left_rows(&context)?, self.right.execute(partition, Arc::clone(&context))?);
        let (join, right_read) = (Arc::clone(&self.join), Arc::clone(&self.right_read));
        let rows = async move {
            let left_longest = left_rows.await.map_err(DataFusionError::Shared)?;
            let first = right.try_next().await?;
            let right_longest = first.as_ref().map_or(0, longest_row);
            let rows_max = context.session_config().batch_size();
            let lengths = Lengths::new(left_longest, right_longest, rows_max, &context);
            let context = with_batch_rows(&context, lengths.rows);
            let schema = right.schema();
            let batches = stream::iter(first.map(Ok)).chain(right);
            let slices = batches
                .and_then(move |batch| future::ready(lengths.slices(batch).map(|slices| stream::iter(slices.map(Ok)))))
                .try_flatten();
            right_read.put(partition, Box::pin(RecordBatchStreamAdapter::new(schema, slices)));
            join.execute(partition, context)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), stream::once(rows).try_flatten())))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.join.metrics()
    }
}

/// The same context with another batch size.
fn with_batch_rows(context: &TaskContext, rows: usize) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone().with_batch_size(rows),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        context.runtime_env(),
    ))
}

/// An input of which a part has been read: it returns that part and then the rest.
struct ReadExec {
    properties: Arc<PlanProperties>,
    streams: Mutex<HashMap<usize, SendableRecordBatchStream>>,
}

impl ReadExec {
    fn of(input: &Arc<dyn ExecutionPlan>) -> Self {
        Self { properties: Arc::clone(input.properties()), streams: Mutex::default() }
    }

    fn put(&self, partition: usize, stream: SendableRecordBatchStream) {
        lock(&self.streams).insert(partition, stream);
    }
}

impl fmt::Debug for ReadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadExec").finish_non_exhaustive()
    }
}

impl DisplayAs for ReadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadExec")
    }
}

impl ExecutionPlan for ReadExec {
    fn name(&self) -> &'static str {
        "ReadExec"
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

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        lock(&self.streams)
            .remove(&partition)
            .ok_or_else(|| internal_datafusion_err!("an input is read before its join"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
