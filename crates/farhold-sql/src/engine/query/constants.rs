//! Conditions above aggregates that have a row for no input, `SELECT count(*) … HAVING (SELECT false)`.
//!
//! DataFusion moves a condition below an aggregate if all of its columns are grouped by, which is so if it has none, and makes one without columns
//! of conditions that exclude each other (DataFusion 55). Above an aggregate without GROUP BY, or with sets of it, all conditions have to stay.
//!
//! And it takes `1 = a AND a = 1` for two conditions that exclude each other, `5 < a` for less than `a >= 5`: so constants stand at the right of
//! what they are compared with. Most do, but what a constant or a column is may be known only when others of its rules have run.
//!
//! Conditions with `random()` or its like stay as well, and those beside them ([`volatile`](super::volatile)).

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, Operator};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use super::volatile::is_volatile;

/// DataFusion's rule of the same name, for the other conditions.
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

/// DataFusion's rule puts conditions together with those right below.
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

/// Whether a plan is a condition right above an aggregate that has a row for no input.
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
