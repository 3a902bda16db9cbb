//! Conditions above aggregates that have a row for no input, `SELECT count(*) … HAVING (SELECT false)`.
//!
//! DataFusion moves a condition below an aggregate if all of its columns are grouped by, which is so if it has none, and makes one without columns
//! of conditions that exclude each other (DataFusion 55). Above an aggregate without GROUP BY, or with sets of it, all conditions have to stay.

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

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
        if is_above_one_row(&plan) { Ok(Transformed::no(plan)) } else { self.0.rewrite(plan, config) }
    }
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
