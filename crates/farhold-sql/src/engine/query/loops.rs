//! Nested loops over long rows.
//!
//! A nested loop (DataFusion 55) gathers rows until they are a batch, copies them, and counts nothing of it: 8192 rows of 60 KB are half a
//! gigabyte. It repeats its left row for all rows of a right batch, too. So its batches get as many rows as fit [`LOOP_BYTES`]: by the longest row
//! of its left side, which is read before, and that of the first right batch. Right batches come in slices; where longer rows come later, what
//! a batch of them may take is taken from the queries' memory.

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

/// What a batch of long rows should not pass, where the queries' memory has it; where it has not, [`BATCH_BYTES`].
const LOOP_BYTES: usize = 8 << 20;

/// Rows of a batch while no row is known to be long: one that comes later makes that many times itself.
const ROWS_MAX: usize = BATCH_ROWS / 4;

/// A loop that has a batch of at least this many times the rows of a right batch does several left rows at once, and copies none of them.
const LEFT_ROWS: usize = 11;

/// The loop, if its rows can be long.
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
    /// The loop, over what has been read.
    join: Arc<dyn ExecutionPlan>,
    left_read: Arc<ReadExec>,
    right_read: Arc<ReadExec>,
    left_rows: Mutex<Option<LeftRows>>,
}

/// The longest row of the left side, once it has been read.
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
    // The loop takes room for each of them itself.
    let batches = stream::iter(batches).map(|(batch, room)| {
        drop(room);
        Ok(batch)
    });
    read.put(0, Box::pin(RecordBatchStreamAdapter::new(input.schema(), batches)));
    Ok(longest)
}

/// How the rows of a partition are looped over.
struct Lengths {
    /// Of a batch.
    rows: usize,
    left_longest: usize,
    /// What a batch may take beyond [`BATCH_BYTES`].
    room: MemoryReservation,
}

impl Lengths {
    /// By the longest row of each side, as far as they are known.
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

    /// A right batch in slices, once there is room for what may become of it.
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

/// The same with batches of other lengths.
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

/// An input of which something has been read: gives that, and the rest.
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
