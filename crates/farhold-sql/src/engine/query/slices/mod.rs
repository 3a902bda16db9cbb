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

mod constants;
mod exec;
mod sizes;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};

use super::{BATCH_ROWS, exchanges, held, loops};
use crate::engine::cancel::CancelHandle;
use constants::{arrays_of, longest_constants};
use exec::Kept;

pub(super) use constants::CONSTANT_BYTES_MIN;
pub(super) use exec::{SliceExec, Step, in_slices, may_be_long};
pub(super) use sizes::{longest_row, value_bytes};

/// What a batch should not pass; a row alone may. A plan has some dozens of batches on their way.
pub(super) const BATCH_BYTES: usize = 2 << 20;

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
