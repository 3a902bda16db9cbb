//! Limits the rows per batch where a plan makes long rows of short ones.
//!
//! An operator makes one batch at a time, and a batch on its way to the next operator is in no operator's reservation.
//! A constant of a megabyte in a SELECT list takes 8 GiB in a batch of 8192 rows, made in one poll, which cannot be
//! cancelled. So batches are kept near [`BATCH_BYTES`]:
//!
//! | long values | how batches stay short |
//! |---|---|
//! | a constant in an expression | all batches of the query have fewer rows |
//! | the arrays that `unnest` expands | they are made of a few rows at a time; if memory is short, of half as many |
//! | a single such array | it is split over several rows |
//! | the rows of a cross join's left side | those of its right side come in slices |
//! | the groups of a row, by grouping sets | rows are grouped in slices |
//! | the rows of a nested loop | its batches have few rows: [`loops`] |
//! | the rows of a cross join, which makes a batch for each row of its left side | they are gathered to full batches |
//! | the rows that a filter keeps | a batch ends with the row that reaches the size limit |
//! | the rows of a window | they come in slices, or are passed on in slices: [`held`] |
//!
//! The memory of exchanges is accounted for separately: [`exchanges`].

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

/// The size limit of a batch, except for a single row. A plan has some dozens of batches in flight.
pub(super) const BATCH_BYTES: usize = 2 << 20;

/// The least rows of a slice for a window, however long one row was: each slice costs the window some time.
const LONG_ROWS_MIN: usize = 16;

/// The limit on the product of a slice's rows and its grouping sets. The groups of a slice are computed in one poll.
const GROUPED_ROWS: usize = 4 * BATCH_ROWS;

/// A plan with its slices, and the context to run it in.
pub(super) struct Sliced {
    pub(super) plan: Arc<dyn ExecutionPlan>,
    pub(super) context: Arc<TaskContext>,
    /// Reserved while the plan runs, for constants larger than [`BATCH_BYTES`].
    pub(super) room: MemoryReservation,
}

/// Adds slices to a plan.
pub(super) fn slice(plan: Arc<dyn ExecutionPlan>, state: &SessionState, cancel: &CancelHandle) -> Result<Sliced> {
    let constants = longest_constants(&plan)?;
    let room = MemoryConsumer::new("constants").register(&state.runtime_env().memory_pool);
    if constants > BATCH_BYTES {
        // The constants, and the row that contains them.
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
        // The contents of nested arrays are not known before they are unnested.
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
        // A cross join makes a batch for each row of its left side and each batch of its right side.
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
    // A scan returns all rows of some pages, even if fewer were asked for.
    if rows < BATCH_ROWS && node.children().is_empty() {
        return Ok(Transformed::yes(slices(&node, Step::Rows(rows))));
    }
    // DataFusion's filter gathers the number of rows that the planner has set, however long they are.
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
