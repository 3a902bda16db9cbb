//! Removes repeated keys in the order of an aggregate function.
//!
//! The optimiser may make two keys equal: `CASE WHEN true THEN a ELSE b END` becomes `a`. DataFusion (55) drops the
//! second of two equal keys in the comparison of `first_value`, but not in the columns it passes to it, and panics.
//! DISTINCT ON is planned with such functions. So only the first of equal keys is kept; the others have no effect.
//! Aliases are ignored: physical plans have none.

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::AggregateFunctionParams;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// See the module. It must run after the rules that simplify expressions.
#[derive(Debug)]
pub(super) struct RepeatedKeys;

impl OptimizerRule for RepeatedKeys {
    fn name(&self) -> &'static str {
        "repeated_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !matches!(plan, LogicalPlan::Aggregate(_)) {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(once_each(expr).update_data(|expr| name.restore(expr)))
        })
    }
}

/// An aggregate function with each key only once.
fn once_each(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::Alias(mut alias) => once_each(std::mem::take(alias.expr.as_mut())).update_data(|expr| {
            *alias.expr = expr;
            Expr::Alias(alias)
        }),
        Expr::AggregateFunction(mut function) => {
            let AggregateFunctionParams { order_by, .. } = &mut function.params;
            let count = order_by.len();
            let mut met: Vec<Expr> = Vec::with_capacity(count);
            order_by.retain(|by| {
                let plain = by.expr.clone().unalias_nested().data;
                let is_first = !met.contains(&plain);
                met.push(plain);
                is_first
            });
            let is_shorter = order_by.len() < count;
            Transformed::new_transformed(Expr::AggregateFunction(function), is_shorter)
        }
        other => Transformed::no(other),
    }
}
