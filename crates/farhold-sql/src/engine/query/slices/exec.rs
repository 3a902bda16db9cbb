//! The operator that processes a limited number of rows at a time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::cast::as_boolean_array;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::coop::make_cooperative;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use farhold_join::datafusion::Batches;
use futures::{Stream, StreamExt, TryStreamExt, future, stream};

use super::super::exchanges::{ExchangeState, long_bytes};
use super::super::held::Held;
use super::super::{BATCH_ROWS, held};
use super::constants::constant_bytes;
use super::sizes::{Parts, longest_row, row_bytes};
use super::{BATCH_BYTES, LONG_ROWS_MIN};
use crate::engine::cancel::CancelHandle;

/// Rows of the first slice when arrays are made: their length is known only afterwards.
const FIRST_ROWS: usize = 64;

/// How the batches of an input are processed.
#[derive(Clone, Debug)]
pub(in crate::engine::query) enum Step {
    /// Evaluates the expressions of a projection, on a slice of rows at a time.
    Evaluate(Arc<[Arc<dyn PhysicalExpr>]>),
    /// Splits long arrays in these columns over several rows.
    Part(Arc<[usize]>),
    /// Passes at most this number of rows at a time.
    Rows(usize),
    /// Gathers the rows that a filter keeps, up to a number of rows or, if they are long, about [`BATCH_BYTES`].
    Filter(Kept, usize),
    /// Gathers rows up to a number of rows or about [`BATCH_BYTES`].
    Gather(usize),
    /// Passes batches unchanged and records the size of the longest row.
    Measure(Arc<AtomicUsize>),
    /// Passes fewer rows at a time the longer the measured row is, which is copied beside each of them.
    Beside(Arc<AtomicUsize>),
    /// Passes fewer rows at a time the longer the longest row so far is: it may be copied beside each of them.
    Long,
    /// Reserves the rows in the queries' memory; the operator above keeps them all.
    ReserveWindow(Held),
    /// Passes the rows of that operator in slices, and releases the reservation after the last one.
    UnreserveWindow(Held),
    /// Reserves the rows in the queries' memory before they enter an exchange.
    ReserveExchange(ExchangeState),
    /// Releases the rows that leave that exchange.
    UnreserveExchange(ExchangeState),
}

/// The rows and columns that a filter keeps.
#[derive(Clone, Debug)]
pub(in crate::engine::query) struct Kept {
    predicate: Arc<dyn PhysicalExpr>,
    columns: Option<Arc<[usize]>>,
    fetch: usize,
}

impl Kept {
    pub(super) fn by(filter: &FilterExec) -> Self {
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
pub(in crate::engine::query) struct SliceExec {
    pub(super) input: Arc<dyn ExecutionPlan>,
    pub(super) step: Step,
    pub(super) properties: Arc<PlanProperties>,
    pub(super) cancel: CancelHandle,
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
        if let Step::UnreserveWindow(held) = &self.step {
            let room = held.begin(partition, context.memory_pool());
            let input = self.input.execute(partition, context)?;
            let slices = input.map_ok(|batch| stream::iter(short(batch).map(Ok)));
            return Ok(make_cooperative(self.stream(slices.try_flatten().inspect_ok(move |_| {
                let _held = &room;
            }))));
        }
        if let Step::UnreserveExchange(exchange_state) = &self.step {
            let (context, room) = exchange_state.begin(&context)?;
            let input = self.input.execute(partition, context)?;
            return Ok(make_cooperative(self.stream(input.inspect_ok(move |batch| {
                // Not more than was reserved.
                room.shrink(long_bytes(batch).min(room.size()));
            }))));
        }
        if let Step::ReserveExchange(exchange_state) = &self.step
            && let Some((context, room)) = exchange_state.before()
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
                    // By then the left side has been read to its end.
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
            Step::ReserveWindow(held) => {
                let room = held.of(partition);
                self.stream(input.and_then(move |batch| {
                    let taken = room.as_ref().map_or(Ok(()), |room| room.try_grow(held::kept_bytes(&batch)));
                    future::ready(taken.map(|()| batch))
                }))
            }
            // These steps are handled above.
            Step::UnreserveWindow(_) | Step::ReserveExchange(_) | Step::UnreserveExchange(_) => self.stream(input),
        }))
    }
}

impl SliceExec {
    /// Applies a step to an operator's batches.
    pub(in crate::engine::query) fn over(
        input: &Arc<dyn ExecutionPlan>,
        step: Step,
        cancel: &CancelHandle,
    ) -> Arc<dyn ExecutionPlan> {
        Self::with_properties(input, step, Arc::clone(input.properties()), cancel)
    }

    /// As [`Self::over`], with other properties than the operator's.
    pub(in crate::engine::query) fn with_properties(
        input: &Arc<dyn ExecutionPlan>,
        step: Step,
        properties: Arc<PlanProperties>,
        cancel: &CancelHandle,
    ) -> Arc<dyn ExecutionPlan> {
        Arc::new(Self { input: Arc::clone(input), step, properties, cancel: cancel.clone() })
    }

    /// A stream that ends with an error once the query is cancelled.
    fn stream(&self, batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static) -> SendableRecordBatchStream {
        let cancel = self.cancel.clone();
        let batches = batches.map(move |batch| {
            cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
            batch
        });
        Box::pin(RecordBatchStreamAdapter::new(self.schema(), batches))
    }
}

pub(in crate::engine::query) fn in_slices(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(rows);
    starts.map(move |start| batch.slice(start, rows.min(batch.num_rows() - start)))
}

/// Splits a batch into slices of at most [`BATCH_ROWS`] rows and, except for a single row, about [`BATCH_BYTES`].
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

/// Whether the values of a type have variable length.
pub(in crate::engine::query) fn may_be_long(data_type: &DataType) -> bool {
    data_type.primitive_width().is_none() && !matches!(data_type, DataType::Boolean | DataType::Null)
}

/// Evaluates expressions on a stream's rows. The number of rows per slice is chosen so that, judging by the last slice,
/// the result has about [`BATCH_BYTES`].
fn evaluated(
    input: SendableRecordBatchStream,
    expressions: Arc<[Arc<dyn PhysicalExpr>]>,
    schema: SchemaRef,
) -> impl Stream<Item = Result<RecordBatch>> {
    struct Evaluation {
        input: SendableRecordBatchStream,
        /// The rest of the last batch.
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

/// Gathers all rows, or those that a filter keeps.
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

/// Evaluates expressions on a batch's rows. Also returns the size of the columns that the batch did not already
/// contain.
pub(super) fn evaluate(
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

pub(super) fn of_columns(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
