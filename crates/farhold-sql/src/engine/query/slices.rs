//! Batches of fewer rows, where a plan makes long rows of short ones.
//!
//! An operator makes a batch at a time, and a batch on its way to the next operator is in no operator's reservation. A constant of a megabyte among
//! the items of a SELECT is 8 GiB in a batch of 8192 rows, made on one poll, which no cancel ends. So batches are kept near [`BATCH_BYTES`]:
//!
//! | what is long | batches are short because |
//! |---|---|
//! | a constant in an expression | all batches of the query have fewer rows |
//! | the arrays that `unnest` makes rows of | they are made of a few rows after the others; one for which there is no room is tried with half of its rows |
//! | one array of them | it becomes several rows with a part of it each |
//! | the rows of a cross join's left side | those of its right side come in slices |
//! | the groups that a row is in, by grouping sets | rows are grouped in slices |
//! | the rows of a nested loop | its batches have few rows: [`loops`] |
//! | the rows of a cross join, which makes a batch of each row of its left side | they are gathered until they are a batch |
//! | the rows that a filter keeps | a batch of them ends with the row that brings it to so many bytes |
//! | the rows of a window | they come in slices, or go on in slices: [`held`] |
//!
//! What an exchange gathers is counted: [`exchanges`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions};
use arrow::buffer::OffsetBuffer;
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::common::cast::as_boolean_array;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column, InListExpr, Literal};
use datafusion::physical_expr::{Partitioning, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_join::datafusion::Batches;
use futures::{Stream, StreamExt, TryStreamExt, future, stream};

use super::exchanges::{self, Way, long_bytes};
use super::held::Held;
use super::{BATCH_ROWS, held, loops};
use crate::engine::cancel::CancelHandle;

/// What a batch should not pass; a row alone may. A plan has some dozens of batches on their way.
pub(super) const BATCH_BYTES: usize = 2 << 20;

/// Constants that are shorter make no batch of more than [`BATCH_BYTES`].
pub(super) const CONSTANT_BYTES_MIN: usize = BATCH_BYTES / BATCH_ROWS;

/// Rows of the first slice of which arrays are made: how long they are shows only then.
const FIRST_ROWS: usize = 64;

/// Rows of a slice for a window, however long one has been: each slice takes it some time.
const LONG_ROWS_MIN: usize = 16;

/// Rows of a slice times its grouping sets. The groups of a slice are found on one poll.
const GROUPED_ROWS: usize = 4 * BATCH_ROWS;

/// A plan with its slices, and how it is to run.
pub(super) struct Sliced {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
    /// For constants of which a single one passes [`BATCH_BYTES`], until the plan has run.
    pub(super) room: MemoryReservation,
}

/// Puts slices into a plan.
pub(super) fn slice(plan: Arc<dyn ExecutionPlan>, state: &SessionState, cancel: &CancelHandle) -> Result<Sliced> {
    let constants = longest_constants(&plan)?;
    let room = MemoryConsumer::new("constants").register(&state.runtime_env().memory_pool);
    if constants > BATCH_BYTES {
        // The constants, and the row that they are put in.
        room.try_grow(constants.saturating_mul(2))?;
    }
    let rows = (BATCH_BYTES / constants.max(1)).clamp(1, BATCH_ROWS);
    let plan = plan.transform_up(|node| sliced(node, rows, cancel)).data()?;
    let plan = plan.transform_up(|node| exchanges::counted(node, cancel)).data()?;
    if rows == BATCH_ROWS {
        return Ok(Sliced { plan, context: state.task_ctx(), room });
    }
    let mut state = state.clone();
    *state.config_mut() = state.config().clone().with_batch_size(rows);
    Ok(Sliced { plan, context: state.task_ctx(), room })
}

fn sliced(
    node: Arc<dyn ExecutionPlan>,
    rows: usize,
    cancel: &CancelHandle,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let slices = |input: &Arc<dyn ExecutionPlan>, step: Step| SliceExec::over(input, step, cancel);
    let over = |node: &Arc<dyn ExecutionPlan>, inputs: Vec<Arc<dyn ExecutionPlan>>| {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Arc::clone(node).replace_children(inputs, options).map(Transformed::yes)
    };
    if let Some(unnest) = node.downcast_ref::<UnnestExec>() {
        let mut input = Arc::clone(unnest.input());
        if let Some((projection, partitioning)) = arrays_of(unnest) {
            let mut rows = Arc::clone(projection.input());
            if let Some(partitioning) = partitioning {
                rows = Arc::new(RepartitionExec::try_new(rows, partitioning)?);
            }
            let expressions = projection.expr().iter().map(|item| Arc::clone(&item.expr)).collect();
            input = Arc::new(SliceExec {
                properties: Arc::clone(unnest.input().properties()),
                input: rows,
                step: Step::Evaluate(expressions),
                cancel: cancel.clone(),
            });
        }
        let lists: Vec<usize> = unnest.list_column_indices().iter().map(|list| list.index_in_input_schema).collect();
        let is_list =
            |n: &usize| matches!(input.schema().field(*n).data_type(), DataType::List(_) | DataType::LargeList(_));
        // What is in the arrays of an array is not known before they are unnested.
        if unnest.list_column_indices().iter().all(|list| list.depth == 1) && lists.iter().all(is_list) {
            input = slices(&input, Step::Part(lists.into()));
        }
        return over(&node, vec![input]);
    }
    if let Some(join) = node.downcast_ref::<CrossJoinExec>() {
        let longest = Arc::new(AtomicUsize::new(0));
        let left = slices(join.left(), Step::Measure(Arc::clone(&longest)));
        let right = slices(join.right(), Step::Beside(longest));
        let join = over(&node, vec![left, right])?;
        // It makes a batch of each row of its left side and each batch of its right one.
        if join.data.schema().fields().is_empty() {
            return Ok(join);
        }
        return Ok(join.update_data(|join| slices(&join, Step::Gather(rows))));
    }
    if node.downcast_ref::<NestedLoopJoinExec>().is_some() {
        return loops::with_short_batches(node);
    }
    if let Some(window) = node.downcast_ref::<WindowAggExec>() {
        return held::counted(window, cancel).map(Transformed::yes);
    }
    if let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() {
        let of_inputs = window.input().schema().fields().len();
        if window.schema().fields().iter().skip(of_inputs).any(|value| may_be_long(value.data_type())) {
            let input = slices(window.input(), Step::Long);
            return over(&node, vec![input]);
        }
    }
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let sets = aggregate.group_expr().groups().len();
        if sets > GROUPED_ROWS / BATCH_ROWS {
            let input = slices(aggregate.input(), Step::Rows((GROUPED_ROWS / sets).max(1)));
            return over(&node, vec![input]);
        }
    }
    // Scans give all rows of some pages, however few were asked for.
    if rows < BATCH_ROWS && node.children().is_empty() {
        return Ok(Transformed::yes(slices(&node, Step::Rows(rows))));
    }
    // DataFusion's gathers so many rows, as the planner has told it, however long they are.
    if let Some(filter) = node.downcast_ref::<FilterExec>() {
        if node.schema().fields().iter().any(|field| may_be_long(field.data_type())) {
            let step = Step::Filter(Kept::by(filter), rows);
            let properties = Arc::clone(node.properties());
            return Ok(Transformed::yes(SliceExec::with_properties(filter.input(), step, properties, cancel)));
        }
        if rows < BATCH_ROWS {
            return Ok(Transformed::yes(Arc::new(filter.with_batch_size(rows)?)));
        }
    }
    Ok(Transformed::no(node))
}

/// The projection that makes the arrays of an `unnest`, and how its rows are dealt out to partitions between them. They may as well be dealt out
/// before it.
fn arrays_of(unnest: &UnnestExec) -> Option<(&ProjectionExec, Option<Partitioning>)> {
    let input = unnest.input();
    let Some(repartition) = input.downcast_ref::<RepartitionExec>() else {
        return input.downcast_ref().map(|projection| (projection, None));
    };
    let partitioning = repartition.partitioning();
    let projection = repartition.input().downcast_ref::<ProjectionExec>()?;
    let is_dealt = matches!(partitioning, Partitioning::RoundRobinBatch(_)) && !repartition.preserve_order();
    is_dealt.then(|| (projection, Some(partitioning.clone())))
}

/// The bytes of the constants that an operator puts in each of its rows: those of the operator that has most. Arrays that are unnested are in no
/// row above.
#[recursive::recursive]
fn longest_constants(plan: &Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut bytes = 0;
    let mut inputs = plan.children();
    plan.apply_expressions(&mut |expression| {
        bytes += constant_bytes(expression);
        Ok(TreeNodeRecursion::Continue)
    })?;
    if let Some(unnest) = plan.downcast_ref::<UnnestExec>()
        && let Some((projection, _)) = arrays_of(unnest)
    {
        let lists = unnest.list_column_indices();
        let stays = |n: usize| lists.iter().all(|list| list.index_in_input_schema != n);
        let items = projection.expr().iter().enumerate().filter(|(n, _)| stays(*n));
        bytes += items.map(|(_, item)| constant_bytes(&item.expr)).sum::<usize>();
        inputs = vec![projection.input()];
    }
    for input in inputs {
        bytes = bytes.max(longest_constants(input)?);
    }
    Ok(bytes)
}

/// The bytes of the constants that an expression puts beside its columns.
fn constant_bytes(expression: &Arc<dyn PhysicalExpr>) -> usize {
    match constants(expression) {
        Constants::All => evaluated_bytes(expression),
        Constants::Some(bytes) => bytes,
    }
}

/// What of an expression has the same value in all rows.
enum Constants {
    All,
    /// Parts that have so many bytes together.
    Some(usize),
}

#[recursive::recursive]
fn constants(expression: &Arc<dyn PhysicalExpr>) -> Constants {
    let children = expression.children();
    if children.is_empty() {
        let is_constant = expression.downcast_ref::<Literal>().is_some();
        return if is_constant { Constants::All } else { Constants::Some(0) };
    }
    let parts: Vec<Constants> = children.iter().map(|child| constants(child)).collect();
    if !expression.is_volatile_node() && parts.iter().all(|part| matches!(part, Constants::All)) {
        return Constants::All;
    }
    // What is compared with a constant is not put beside it.
    let compares = expression.downcast_ref::<InListExpr>().is_some()
        || expression.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
            let operator = binary.op();
            operator.supports_propagation() || matches!(operator, Operator::NotEq | Operator::IsDistinctFrom)
        });
    let bytes = |(child, part)| match part {
        Constants::Some(bytes) => bytes,
        Constants::All if compares => 0,
        Constants::All => evaluated_bytes(child),
    };
    Constants::Some(children.into_iter().zip(parts).map(bytes).sum())
}

/// The bytes of a constant's value. The planner leaves functions where their values are too long for a plan: [`folded`](super::folded). One that has
/// no value, for want of room or otherwise, takes none either.
fn evaluated_bytes(constant: &Arc<dyn PhysicalExpr>) -> usize {
    let of_scalar = |value: &ScalarValue| value.size().saturating_sub(size_of::<ScalarValue>());
    let bytes = if let Some(literal) = constant.downcast_ref::<Literal>() {
        of_scalar(literal.value())
    } else {
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
        match row.map(|row| constant.evaluate(&row)) {
            Ok(Ok(ColumnarValue::Scalar(value))) => of_scalar(&value),
            Ok(Ok(ColumnarValue::Array(values))) => values.get_array_memory_size(),
            _ => 0,
        }
    };
    if bytes < CONSTANT_BYTES_MIN { 0 } else { bytes }
}

/// What becomes of the batches of an input.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// The expressions of a projection, of a slice of rows at a time.
    Evaluate(Arc<[Arc<dyn PhysicalExpr>]>),
    /// Long arrays in these columns become several rows.
    Part(Arc<[usize]>),
    /// So many rows at a time.
    Rows(usize),
    /// Those of a filter, so many at a time or, if they are long, about [`BATCH_BYTES`].
    Filter(Kept, usize),
    /// So many at a time at least, or about [`BATCH_BYTES`].
    Gather(usize),
    /// They go on as they are; what their longest row has is kept.
    Measure(Arc<AtomicUsize>),
    /// Fewer rows at a time, the longer the measured row is that goes beside each of them.
    Beside(Arc<AtomicUsize>),
    /// Fewer rows at a time, the longer the longest has been: it may stand beside each of them.
    Long,
    /// The rows go to an operator that keeps them all; they are taken from the queries' memory.
    Hold(Held),
    /// The rows of that operator, few at a time if they are long. What was taken is given back behind the last.
    Release(Held),
    /// The rows go into an exchange; they are taken from the queries' memory.
    Enter(Way),
    /// The rows come out of that exchange; they are given back.
    Leave(Way),
}

/// What a filter keeps.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    predicate: Arc<dyn PhysicalExpr>,
    columns: Option<Arc<[usize]>>,
    fetch: usize,
}

impl Kept {
    fn by(filter: &FilterExec) -> Self {
        Self {
            predicate: Arc::clone(filter.predicate()),
            columns: filter.projection().as_ref().map(|columns| columns.iter().copied().collect()),
            fetch: filter.fetch().unwrap_or(usize::MAX),
        }
    }

    fn of(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let keep = self.predicate.evaluate(batch)?.into_array(batch.num_rows())?;
        let batch = match &self.columns {
            Some(columns) => &batch.project(columns)?,
            None => batch,
        };
        Ok(filter_record_batch(batch, as_boolean_array(&keep)?)?)
    }
}

#[derive(Debug)]
pub(super) struct SliceExec {
    input: Arc<dyn ExecutionPlan>,
    step: Step,
    properties: Arc<PlanProperties>,
    cancel: CancelHandle,
}

impl DisplayAs for SliceExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Step::Evaluate(expressions) => {
                let expressions: Vec<String> = expressions.iter().map(ToString::to_string).collect();
                write!(f, "SliceExec: expr=[{}]", expressions.join(", "))
            }
            Step::Filter(kept, _) => write!(f, "SliceExec: filter={}", kept.predicate),
            _ => write!(f, "SliceExec"),
        }
    }
}

impl ExecutionPlan for SliceExec {
    fn name(&self) -> &'static str {
        "SliceExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        let expressions: &[Arc<dyn PhysicalExpr>] = match &self.step {
            Step::Evaluate(expressions) => expressions,
            Step::Filter(kept, _) => std::slice::from_ref(&kept.predicate),
            _ => &[],
        };
        for expression in expressions {
            if f(expression)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = children.into_iter().next().unwrap_or_else(|| Arc::clone(&self.input));
        let (step, properties) = (self.step.clone(), Arc::clone(&self.properties));
        Ok(Arc::new(Self { input, step, properties, cancel: self.cancel.clone() }))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Step::Release(held) = &self.step {
            let room = held.begin(partition, context.memory_pool());
            let input = self.input.execute(partition, context)?;
            let slices = input.map_ok(|batch| stream::iter(short(batch).map(Ok)));
            return Ok(make_cooperative(self.stream(slices.try_flatten().inspect_ok(move |_| {
                let _held = &room;
            }))));
        }
        if let Step::Leave(way) = &self.step {
            let (context, room) = way.begin(&context)?;
            let input = self.input.execute(partition, context)?;
            return Ok(make_cooperative(self.stream(input.inspect_ok(move |batch| {
                // No more than went in, so that there is room for it.
                room.shrink(long_bytes(batch).min(room.size()));
            }))));
        }
        if let Step::Enter(way) = &self.step
            && let Some((context, room)) = way.before()
        {
            let input = self.input.execute(partition, context)?;
            return Ok(make_cooperative(self.stream(input.and_then(move |batch| {
                let taken = room.try_grow(long_bytes(&batch));
                future::ready(taken.map(|()| batch))
            }))));
        }
        let input = self.input.execute(partition, context)?;
        let schema = self.schema();
        Ok(make_cooperative(match &self.step {
            Step::Evaluate(expressions) => self.stream(evaluated(input, Arc::clone(expressions), schema)),
            Step::Part(lists) => {
                let lists = Arc::clone(lists);
                let parts = input.map_ok(move |batch| stream::iter(Parts::new(batch, Arc::clone(&lists))));
                self.stream(parts.try_flatten())
            }
            Step::Rows(rows) => {
                let rows = *rows;
                let slices = input.map_ok(move |batch| stream::iter(in_slices(batch, rows).map(Ok)));
                self.stream(slices.try_flatten())
            }
            Step::Filter(kept, rows) => self.stream(gathered(input, Some(kept.clone()), *rows, schema)),
            Step::Gather(rows) => self.stream(gathered(input, None, *rows, schema)),
            Step::Measure(longest) => {
                let longest = Arc::clone(longest);
                self.stream(input.inspect_ok(move |batch| {
                    let bytes = (0..batch.num_rows()).map(|row| row_bytes(batch, row, &[])).max();
                    longest.fetch_max(bytes.unwrap_or(0), Ordering::Relaxed);
                }))
            }
            Step::Beside(longest) => {
                let longest = Arc::clone(longest);
                let slices = input.map_ok(move |batch| {
                    // The left side has been read to its end by then.
                    let rows = (BATCH_BYTES / longest.load(Ordering::Relaxed).max(1)).max(1);
                    stream::iter(in_slices(batch, rows).map(Ok))
                });
                self.stream(slices.try_flatten())
            }
            Step::Long => {
                let mut longest = 0;
                let slices = input.map_ok(move |batch| {
                    longest = longest_row(&batch).max(longest);
                    let rows = (BATCH_BYTES / longest).clamp(LONG_ROWS_MIN, BATCH_ROWS);
                    stream::iter(in_slices(batch, rows).map(Ok))
                });
                self.stream(slices.try_flatten())
            }
            Step::Hold(held) => {
                let room = held.of(partition);
                self.stream(input.and_then(move |batch| {
                    let taken = room.as_ref().map_or(Ok(()), |room| room.try_grow(held::kept_bytes(&batch)));
                    future::ready(taken.map(|()| batch))
                }))
            }
            // Above.
            Step::Release(_) | Step::Enter(_) | Step::Leave(_) => self.stream(input),
        }))
    }
}

impl SliceExec {
    /// What becomes of an operator's batches by a step.
    pub(super) fn over(input: &Arc<dyn ExecutionPlan>, step: Step, cancel: &CancelHandle) -> Arc<dyn ExecutionPlan> {
        Self::with_properties(input, step, Arc::clone(input.properties()), cancel)
    }

    /// That, with properties other than the operator's.
    pub(super) fn with_properties(
        input: &Arc<dyn ExecutionPlan>,
        step: Step,
        properties: Arc<PlanProperties>,
        cancel: &CancelHandle,
    ) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { input: Arc::clone(input), step, properties, cancel: cancel.clone() })
    }

    /// The stream, until the query is cancelled.
    fn stream(&self, batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static) -> SendableRecordBatchStream {
        let cancel = self.cancel.clone();
        let batches = batches.map(move |batch| {
            cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
            batch
        });
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches))
    }
}

pub(super) fn in_slices(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(rows);
    starts.map(move |start| batch.slice(start, rows.min(batch.num_rows() - start)))
}

/// A batch in slices of at most [`BATCH_ROWS`] rows and, unless it is one row, about [`BATCH_BYTES`].
fn short(batch: RecordBatch) -> impl Iterator<Item = RecordBatch> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let first = start;
        let (rows_max, mut bytes) = ((batch.num_rows() - first).min(BATCH_ROWS), 0);
        while start - first < rows_max && bytes < BATCH_BYTES {
            bytes += row_bytes(&batch, start, &[]);
            start += 1;
        }
        (first < start).then(|| batch.slice(first, start - first))
    })
}

/// Whether values of a type have any length.
pub(super) fn may_be_long(data_type: &DataType) -> bool {
    data_type.primitive_width().is_none() && !matches!(data_type, DataType::Boolean | DataType::Null)
}

/// The expressions of a stream's rows, of so many of them at a time as made about [`BATCH_BYTES`] before.
fn evaluated(
    input: SendableRecordBatchStream,
    expressions: Arc<[Arc<dyn PhysicalExpr>]>,
    schema: SchemaRef,
) -> impl Stream<Item = Result<RecordBatch>> {
    struct Evaluation {
        input: SendableRecordBatchStream,
        /// What is left of the last batch.
        left: Option<RecordBatch>,
        rows: usize,
    }
    let may_repeat = !expressions.iter().any(is_volatile);
    let constants: usize = expressions.iter().map(constant_bytes).sum();
    let rows = FIRST_ROWS.min(BATCH_BYTES / constants.max(1)).max(1);
    stream::try_unfold(Evaluation { input, left: None, rows }, move |mut state| {
        let (expressions, schema) = (Arc::clone(&expressions), Arc::clone(&schema));
        async move {
            loop {
                let Some(batch) = state.left.take() else {
                    match state.input.try_next().await? {
                        Some(batch) => state.left = Some(batch),
                        None => return Ok(None),
                    }
                    continue;
                };
                let count = batch.num_rows();
                let rows = state.rows.min(count);
                match evaluate(&batch.slice(0, rows), &expressions, &schema) {
                    Ok((result, made)) => {
                        state.left = (rows < count).then(|| batch.slice(rows, count - rows));
                        let fitting = rows.saturating_mul(BATCH_BYTES) / made.max(1);
                        state.rows = fitting.clamp(1, state.rows.saturating_mul(4).min(BATCH_ROWS));
                        return Ok(Some((result, state)));
                    }
                    Err(error) if rows > 1 && may_repeat && is_without_room(&error) => {
                        state.rows = rows / 2;
                        state.left = Some(batch);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    })
}

/// All rows, or those that a filter keeps.
fn gathered(
    input: SendableRecordBatchStream,
    kept: Option<Kept>,
    rows: usize,
    schema: SchemaRef,
) -> impl Stream<Item = Result<RecordBatch>> {
    let fetch = kept.as_ref().map_or(usize::MAX, |kept| kept.fetch);
    let state = (input, Batches::new(schema, rows, BATCH_BYTES), 0, false);
    stream::try_unfold(state, move |(mut input, mut output, mut found, mut is_done)| {
        let kept = kept.clone();
        async move {
            loop {
                if let Some(batch) = output.next_full() {
                    return Ok(Some((batch, (input, output, found, is_done))));
                }
                if is_done {
                    return Ok(None);
                }
                let batch = if found < fetch { input.try_next().await? } else { None };
                if let Some(batch) = batch {
                    let batch = kept.as_ref().map_or(Ok(batch.clone()), |kept| kept.of(&batch))?;
                    let batch = batch.slice(0, batch.num_rows().min(fetch - found));
                    found += batch.num_rows();
                    output.push(batch)?;
                } else {
                    output.finish()?;
                    is_done = true;
                }
            }
        }
    })
}

fn is_without_room(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// The expressions of a batch's rows, and the bytes of what is not in the batch already.
fn evaluate(
    batch: &RecordBatch,
    expressions: &[Arc<dyn PhysicalExpr>],
    schema: &SchemaRef,
) -> Result<(RecordBatch, usize)> {
    let mut made = 0;
    let mut columns = Vec::with_capacity(expressions.len());
    for expression in expressions {
        let column = expression.evaluate(batch)?.into_array(batch.num_rows())?;
        if expression.downcast_ref::<Column>().is_none() {
            made += column.get_array_memory_size();
        }
        columns.push(column);
    }
    Ok((of_columns(schema, columns, batch.num_rows())?, made))
}

fn of_columns(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}

/// A batch for `unnest`, in parts of which each makes about [`BATCH_BYTES`] and at most [`BATCH_ROWS`].
struct Parts {
    batch: RecordBatch,
    lists: Arc<[usize]>,
    row: usize,
    /// Elements of the row that are done.
    done: usize,
}

impl Parts {
    fn new(batch: RecordBatch, lists: Arc<[usize]>) -> Self {
        Self { batch, lists, row: 0, done: 0 }
    }

    /// The rows that `unnest` makes of one.
    fn elements(&self, row: usize) -> usize {
        self.lists.iter().map(|&n| list_length(self.batch.column(n), row)).max().unwrap_or(0)
    }

    /// The rows of a row that make a batch.
    fn elements_max(&self, row: usize) -> usize {
        (BATCH_BYTES / row_bytes(&self.batch, row, &self.lists)).clamp(1, BATCH_ROWS)
    }

    /// Some elements of a row, as a row.
    fn part(&self, elements: usize) -> Result<RecordBatch> {
        let end = self.done + elements;
        let part = |(n, column): (usize, &ArrayRef)| -> ArrayRef {
            if !self.lists.contains(&n) {
                return column.slice(self.row, 1);
            }
            match column.data_type() {
                DataType::LargeList(of) => part_of_list(column.as_list::<i64>(), of, self.row, self.done..end),
                DataType::List(of) => part_of_list(column.as_list::<i32>(), of, self.row, self.done..end),
                _ => column.slice(self.row, 1),
            }
        };
        let columns = self.batch.columns().iter().enumerate().map(part).collect();
        of_columns(&self.batch.schema(), columns, 1)
    }
}

impl Iterator for Parts {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        let first = self.row;
        // The share of a batch that is full.
        let mut full = 0.0;
        while self.row < self.batch.num_rows() {
            let (elements, elements_max) = (self.elements(self.row), self.elements_max(self.row));
            if elements > elements_max {
                if first < self.row {
                    break;
                }
                let part = self.part(elements_max);
                self.done += elements_max;
                if self.done >= elements {
                    (self.row, self.done) = (self.row + 1, 0);
                }
                return Some(part);
            }
            full += elements as f64 / elements_max as f64;
            if full > 1.0 && first < self.row {
                break;
            }
            self.row += 1;
        }
        (first < self.row).then(|| Ok(self.batch.slice(first, self.row - first)))
    }
}

fn list_length(array: &ArrayRef, row: usize) -> usize {
    match array.data_type() {
        _ if array.is_null(row) => 0,
        DataType::LargeList(_) => array.as_list::<i64>().value_length(row) as usize,
        _ => array.as_list::<i32>().value_length(row) as usize,
    }
}

/// Some elements of a row's list, as a list; none of a null.
fn part_of_list<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    of: &FieldRef,
    row: usize,
    elements: Range<usize>,
) -> ArrayRef {
    let values = list.value(row);
    let length = if list.is_null(row) { 0 } else { values.len() };
    let (start, end) = (elements.start.min(length), elements.end.min(length));
    let offsets = OffsetBuffer::from_lengths([end - start]);
    Arc::new(GenericListArray::<O>::new(Arc::clone(of), offsets, values.slice(start, end - start), None))
}

/// The bytes of a row's values, but for those of some columns; at least 1.
fn row_bytes(batch: &RecordBatch, row: usize, but: &[usize]) -> usize {
    let columns = batch.columns().iter().enumerate().filter(|(n, _)| !but.contains(n));
    columns.map(|(_, column)| value_bytes(column, row)).sum::<usize>().max(1)
}

/// The bytes of a batch's longest row, at most; at least 1.
pub(super) fn longest_row(batch: &RecordBatch) -> usize {
    let longest = |column: &ArrayRef| match column.data_type().primitive_width() {
        Some(bytes) => bytes,
        None => (0..column.len()).map(|row| value_bytes(column, row)).max().unwrap_or(0),
    };
    batch.columns().iter().map(longest).sum::<usize>().max(1)
}

pub(super) fn value_bytes(array: &ArrayRef, row: usize) -> usize {
    /// Where nothing else is known.
    const BYTES: usize = 16;
    match array.data_type() {
        _ if array.is_null(row) => 1,
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as usize,
        DataType::Utf8View => array.as_string_view().value(row).len(),
        DataType::Binary => array.as_binary::<i32>().value_length(row) as usize,
        DataType::LargeBinary => array.as_binary::<i64>().value_length(row) as usize,
        DataType::BinaryView => array.as_binary_view().value(row).len(),
        DataType::List(_) => elements_bytes(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => elements_bytes(&array.as_list::<i64>().value(row)),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|column| value_bytes(column, row)).sum(),
        other => other.primitive_width().unwrap_or(BYTES),
    }
}

fn elements_bytes(elements: &ArrayRef) -> usize {
    match elements.data_type().primitive_width() {
        Some(bytes) => bytes * elements.len(),
        None => (0..elements.len()).map(|row| value_bytes(elements, row)).sum(),
    }
}
