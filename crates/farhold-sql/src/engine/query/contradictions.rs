//! Finds joins that have no rows. `ol_delivery_d > o_entry_d` is true for no pair of rows if the latest delivery is no later than the earliest entry. The zone
//! maps of columns show this before any row is read. The join then has no rows. Inner joins and groups above it have none either, and none of their tables is
//! read.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, NullEquality};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{JoinType, Operator};
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_expr::{PhysicalExprRef, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::engine::scan::{Bounds, SnapshotScan};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;
type Plan = Arc<dyn ExecutionPlan>;

/// Puts the rule before the one that chooses the build side of joins. Farhold's join rules come after that one.
pub(super) fn before_joins(mut rules: Vec<Rule>) -> Vec<Rule> {
    if let Some(joins) = rules.iter().position(|rule| rule.name() == "join_selection") {
        rules.insert(joins, Arc::new(Contradictions));
    }
    rules
}

/// See the module.
#[derive(Debug)]
struct Contradictions;

impl PhysicalOptimizerRule for Contradictions {
    fn optimize(&self, plan: Plan, _: &ConfigOptions) -> Result<Plan> {
        let without_rows = |plan: Plan| {
            if has_no_rows(&plan) {
                Ok(Transformed::yes(Arc::new(EmptyExec::new(plan.schema())) as Plan))
            } else {
                Ok(Transformed::no(plan))
            }
        };
        plan.transform_up(without_rows).data()
    }

    fn name(&self) -> &'static str {
        "contradictions"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether an operator has no rows. Its inputs without rows have already been replaced by [`EmptyExec`].
fn has_no_rows(plan: &Plan) -> bool {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return needs_both(*join.join_type()) && never_matches(join)
            || join_of(*join.join_type(), is_empty(join.left()), is_empty(join.right()));
    }
    if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        return join_of(*join.join_type(), is_empty(join.left()), is_empty(join.right()));
    }
    if let Some(join) = plan.downcast_ref::<CrossJoinExec>() {
        return is_empty(join.left()) || is_empty(join.right());
    }
    if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        // Without keys, or with an empty grouping set, an aggregation of no rows returns a row.
        let keys = aggregate.group_expr();
        return keys.is_single() && !keys.expr().is_empty() && is_empty(aggregate.input());
    }
    let keeps_rows = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<SortExec>()
        || plan.is::<RepartitionExec>()
        || plan.is::<CoalescePartitionsExec>();
    keeps_rows && plan.children().into_iter().all(is_empty)
}

fn is_empty(plan: &Plan) -> bool {
    plan.is::<EmptyExec>()
}

/// Whether each row of a join comes from a matching pair.
fn needs_both(join: JoinType) -> bool {
    matches!(join, JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi)
}

/// Whether a join has no rows, given whether its left and right sides have none.
fn join_of(join: JoinType, left: bool, right: bool) -> bool {
    match join {
        JoinType::Inner | JoinType::LeftSemi | JoinType::RightSemi => left || right,
        JoinType::Left | JoinType::LeftAnti | JoinType::LeftMark => left,
        JoinType::Right | JoinType::RightAnti | JoinType::RightMark => right,
        JoinType::Full => left && right,
    }
}

/// Whether a join's condition is true for no pair of rows.
fn never_matches(join: &HashJoinExec) -> bool {
    let sides = [join.left(), join.right()];
    let equals_nulls = join.null_equality() == NullEquality::NullEqualsNull;
    let never = |one: (usize, usize), operator: Operator, other: (usize, usize)| {
        // Rows that are in no segment are read only if all other rows contradict; those of one side first.
        [(false, false), (true, false), (true, true)].into_iter().all(|(of_one, of_other)| {
            let bounds = |(side, column): (usize, usize), has_delta| bounds(sides[side], column, has_delta);
            let both = bounds(one, of_one).zip(bounds(other, of_other));
            both.is_some_and(|(one, other)| one.never(operator, &other))
        })
    };
    let keys = join.on().iter().filter_map(|(left, right)| column(left).zip(column(right)));
    if !equals_nulls && keys.into_iter().any(|(left, right)| never((0, left), Operator::Eq, (1, right))) {
        return true;
    }
    let Some(filter) = join.filter() else { return false };
    let place = |expr: &PhysicalExprRef| {
        let of = filter.column_indices().get(column(expr)?)?;
        match of.side {
            JoinSide::Left => Some((0, of.index)),
            JoinSide::Right => Some((1, of.index)),
            JoinSide::None => None,
        }
    };
    split_conjunction(filter.expression()).into_iter().any(|condition| {
        condition.downcast_ref::<BinaryExpr>().is_some_and(|comparison| {
            place(comparison.left())
                .zip(place(comparison.right()))
                .is_some_and(|(one, other)| never(one, *comparison.op(), other))
        })
    })
}

fn column(expr: &PhysicalExprRef) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// The bounds of an operator's column that comes from a scan. Operators between drop rows and add NULLs, which does not exceed the bounds.
fn bounds(plan: &Plan, at: usize, has_delta: bool) -> Option<Bounds> {
    if let Some(scan) = plan.downcast_ref::<SnapshotScan>() {
        return scan.bounds(at, has_delta);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        return bounds(projection.input(), column(&projection.expr().get(at)?.expr)?, has_delta);
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let at = filter.projection().as_ref().map_or(Some(at), |kept| kept.get(at).copied())?;
        return bounds(filter.input(), at, has_delta);
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        let at = join.projection.as_ref().map_or(Some(at), |kept| kept.get(at).copied())?;
        let lefts = join.left().schema().fields().len();
        return match join.join_type() {
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full if at >= lefts => {
                bounds(join.right(), at - lefts, has_delta)
            }
            JoinType::Inner
            | JoinType::Left
            | JoinType::Right
            | JoinType::Full
            | JoinType::LeftSemi
            | JoinType::LeftAnti => bounds(join.left(), at, has_delta),
            JoinType::RightSemi | JoinType::RightAnti => bounds(join.right(), at, has_delta),
            JoinType::LeftMark | JoinType::RightMark => None,
        };
    }
    let keeps_columns = plan.is::<SortExec>() || plan.is::<RepartitionExec>() || plan.is::<CoalescePartitionsExec>();
    keeps_columns.then(|| bounds(plan.children().first()?, at, has_delta)).flatten()
}
