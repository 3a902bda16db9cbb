//! Maps an output column of a plan to the column of a child, where rows that fail a condition on it may also be dropped
//! in the child.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{JoinSide, JoinType};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::joins::utils::build_join_schema;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use super::exec::JoinExec;

/// Whether an expression of an operator may have other values for the same rows.
fn is_volatile_in(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut found = false;
    let looked = plan.apply_expressions(&mut |expression| {
        found |= is_volatile(expression);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || looked.is_err()
}

/// The column of child number `child` of `plan` whose values the output's `column` has. A condition on it that drops
/// rows of the child drops those rows of the output for which it is false, and changes no others. `None` where it
/// might.
pub fn of_child(plan: &Arc<dyn ExecutionPlan>, child: usize, column: usize) -> Option<usize> {
    // Fewer rows would change which ones a limit keeps, and the values of volatile expressions (`nextval`).
    if plan.fetch().is_some() || is_volatile_in(plan) {
        return None;
    }
    if let Some(join) = plan.downcast_ref::<JoinExec>() {
        return of_join(join.planned(), child, column);
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return of_join(join, child, column);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return number_of(&projection.expr().get(column)?.expr);
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        // All rows of a group have the same values of the grouping expressions.
        let by = aggregate.group_expr();
        let is_by_groups = by.is_single() && aggregate.limit_options().is_none();
        return by.expr().get(column).filter(|_| is_by_groups).and_then(|(by, _)| number_of(by));
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        return match filter.projection().as_ref() {
            Some(projection) => projection.get(column).copied(),
            None => Some(column),
        };
    }
    let is_same = plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<CooperativeExec>()
        || plan.is::<SortExec>()
        || plan.is::<SortPreservingMergeExec>()
        || plan.is::<UnionExec>()
        || plan.is::<InterleaveExec>();
    is_same.then_some(column)
}

fn number_of(expression: &PhysicalExprRef) -> Option<usize> {
    Some(expression.downcast_ref::<Column>()?.index())
}

/// The column of the side from which all rows come, or of the other side of a semi-join by its keys.
fn of_join(join: &HashJoinExec, child: usize, column: usize) -> Option<usize> {
    let kind = *join.join_type();
    let column = join.projection.as_ref().map_or(Some(column), |projection| projection.get(column).copied())?;
    let (left, right) = (join.left().schema(), join.right().schema());
    let (_, columns) = build_join_schema(&left, &right, &kind);
    let from = columns.get(column)?;
    let keeps = match from.side {
        JoinSide::Left => !matches!(kind, JoinType::Right | JoinType::Full),
        JoinSide::Right => !matches!(kind, JoinType::Left | JoinType::Full),
        JoinSide::None => false,
    };
    if !keeps {
        return None;
    }
    if (from.side == JoinSide::Left) == (child == 0) {
        return Some(from.index);
    }
    let is_semi = matches!(kind, JoinType::LeftSemi | JoinType::RightSemi);
    join.on().iter().filter(|_| is_semi).find_map(|(left, right)| {
        let (from_key, other_key) = if child == 0 { (right, left) } else { (left, right) };
        (number_of(from_key)? == from.index).then(|| number_of(other_key)).flatten()
    })
}
