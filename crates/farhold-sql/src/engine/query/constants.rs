//! Conditions above aggregates that return a row for empty input, `SELECT count(*) … HAVING (SELECT false)`.
//!
//! DataFusion (55) moves a condition below an aggregate if it uses only grouping columns, and so also if it uses no
//! columns; it turns contradictory conditions into one without columns. Above an aggregate without GROUP BY, or with
//! grouping sets, all conditions must stay.
//!
//! It also takes `1 = a AND a = 1` for a contradiction, and likewise `5 < a` beside `a >= 5`. So constants are moved to
//! the right side of comparisons. Most already are, but which operand is a constant or a column may be known only after
//! other rules have run.
//!
//! Conditions with volatile functions such as `random()` also stay, and so do those beside them
//! ([`volatile`](super::volatile)).

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, Operator};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::volatile::is_volatile;

/// DataFusion's rule of the same name, for all other conditions.
#[derive(Debug, Default)]
pub(super) struct Conditions(PushDownFilter);

impl OptimizerRule for Conditions {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if is_above_one_row(&plan) {
            return Ok(Transformed::no(plan));
        }
        match plan {
            LogicalPlan::Filter(filter) if !is_volatile(&filter) => {
                self.0.rewrite(LogicalPlan::Filter(with_constants_right(filter)), config)
            }
            LogicalPlan::Join(join) if !join.filter.as_ref().is_some_and(Expr::is_volatile) => {
                self.0.rewrite(LogicalPlan::Join(join), config)
            }
            other => Ok(Transformed::no(other)),
        }
    }
}

/// Applies to filters directly below too, because DataFusion's rule merges them.
fn with_constants_right(mut filter: Filter) -> Filter {
    filter.predicate = constants_right(filter.predicate);
    if let LogicalPlan::Filter(below) = filter.input.as_ref() {
        filter.input = Arc::new(LogicalPlan::Filter(with_constants_right(below.clone())));
    }
    filter
}

fn constants_right(condition: Expr) -> Expr {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = condition else { return condition };
    let (left, op, right) = match op.swap() {
        _ if op == Operator::And => (Box::new(constants_right(*left)), op, Box::new(constants_right(*right))),
        Some(swapped) if left.as_literal().is_some() && right.as_literal().is_none() => (right, swapped, left),
        _ => (left, op, right),
    };
    Expr::BinaryExpr(BinaryExpr { left, op, right })
}

/// Whether a plan is a filter above an aggregate that returns a row for empty input.
fn is_above_one_row(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Filter(filter) = plan else { return false };
    match filter.input.as_ref() {
        LogicalPlan::Aggregate(aggregate) => {
            let is_set = |by: &Expr| matches!(by, Expr::GroupingSet(_));
            aggregate.group_expr.is_empty() || aggregate.group_expr.iter().any(is_set)
        }
        below => is_above_one_row(below),
    }
}
