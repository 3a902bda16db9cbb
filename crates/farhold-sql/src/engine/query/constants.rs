//! Conditions without columns above aggregates, `SELECT count(*) … HAVING (SELECT false)`.
//!
//! DataFusion moves a condition below an aggregate if all of its columns are grouped by, which is so if it has none (DataFusion 55). An
//! aggregate without GROUP BY, or with sets of it, has a row for no input: there such a condition has to stay above.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan};
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
        if !is_above_one_row(&plan) {
            return self.0.rewrite(plan, config);
        }
        let (mut conditions, mut input) = (Vec::new(), plan);
        while let LogicalPlan::Filter(filter) = input {
            // Those below come first, as they were decided.
            let above = std::mem::replace(&mut conditions, split_conjunction_owned(filter.predicate));
            conditions.extend(above);
            input = Arc::unwrap_or_clone(filter.input);
        }
        let (with_columns, without): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(Expr::any_column_refs);
        let below = match conjunction(with_columns) {
            None => Transformed::no(input),
            Some(moved) => self.0.rewrite(LogicalPlan::Filter(Filter::try_new(moved, Arc::new(input))?), config)?,
        };
        below.map_data(|input| {
            Ok(match conjunction(without) {
                None => input,
                Some(kept) => LogicalPlan::Filter(Filter::try_new(kept, Arc::new(input))?),
            })
        })
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
