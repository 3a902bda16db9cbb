//! Aggregates without groups, computed by the nodes that have the columns.
//!
//! ```text
//!   Final ── Partial ── scan                                  before
//!
//!   Final ── Union ┬─ Partial ── scan of what is left         own columns, pages, rows that are in no segment
//!                  └─ FarholdAggregates                       segments of other nodes: a row of partial states each
//! ```
//! The states have the types of the accumulators in `Partial` ([`states`]). If a home cannot compute the states of some aggregate, the plan does not change.

mod exec;
mod states;

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use farhold_scan::model::Choice;

use self::exec::AggregatesExec;
use self::states::States;
use super::access::FarRead;
use super::exec::SnapshotScan;
use super::paths::{FarPart, passes};

/// The plan, with aggregates computed at the homes of columns where that is the best way to read them.
pub(crate) fn at_homes(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let aggregated = node.downcast_ref::<AggregateExec>().map(in_final).transpose()?.flatten();
        let Some(input) = aggregated else { return Ok(Transformed::no(node)) };
        node.replace_children(vec![input], recompute()).map(Transformed::yes)
    })
    .data()
}

/// Whether two plans are the same aggregates at the same homes.
pub(super) fn are_same(one: &Arc<dyn ExecutionPlan>, other: &Arc<dyn ExecutionPlan>) -> bool {
    let homes = one.downcast_ref::<AggregatesExec>().zip(other.downcast_ref::<AggregatesExec>());
    homes.is_some_and(|(one, other)| one.is_same(other))
}

fn recompute() -> ReplaceChildrenOptions {
    ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)
}

/// The new input of the second step of an aggregation.
fn in_final(last: &AggregateExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(first) = last.input().downcast_ref::<AggregateExec>() else { return Ok(None) };
    let is_whole = *last.mode() == AggregateMode::Final
        && *first.mode() == AggregateMode::Partial
        && first.group_expr().is_true_no_grouping()
        && first.filter_expr().iter().all(Option::is_none);
    if !is_whole {
        return Ok(None);
    }
    let (mut input, mut projections) = (first.input(), Vec::new());
    while let Some(projection) = input.downcast_ref::<ProjectionExec>() {
        projections.push(projection);
        input = projection.input();
    }
    let Some(scan) = input.downcast_ref::<SnapshotScan>() else { return Ok(None) };
    let Some(states) = States::of(first, &projections, scan)? else { return Ok(None) };
    let Some((left, aggregated)) = scan.split(|read| choice(scan, read, &states)) else { return Ok(None) };
    let scan: Arc<dyn ExecutionPlan> = Arc::new(left.clone());
    let first = Arc::clone(last.input()).transform_up(|node| {
        let is_scan = node.is::<SnapshotScan>();
        Ok(if is_scan { Transformed::yes(Arc::clone(&scan)) } else { Transformed::no(node) })
    });
    let first = first.data()?;
    let homes = AggregatesExec::new(first.schema(), left, states, aggregated);
    UnionExec::try_new(vec![first, Arc::new(homes)]).map(Some)
}

/// The choice for a node's part of a scan, if its home is to aggregate it.
fn choice(scan: &SnapshotScan, read: &FarRead, states: &States) -> Option<Choice> {
    let part = FarPart {
        far: &read.far,
        segments: &read.segments,
        page_bytes: 0,
        columns: &scan.columns,
        predicate: &scan.predicate,
        threads: 1,
    };
    let selectivity = scan.predicate.selectivity().clamp(0.0, 1.0);
    let rows = |number: &usize| read.far.segments()[*number].rows();
    let found = read.segments.iter().map(|number| passes(selectivity, rows(number))).sum::<f64>();
    read.paths().with_aggregates(read.choice(), part, found * states.bytes() as f64)
}
