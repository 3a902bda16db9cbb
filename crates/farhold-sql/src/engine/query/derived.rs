//! Queries in the FROM of a correlated query, `SELECT … WHERE x > (SELECT max(v) FROM (SELECT v FROM t WHERE t.k = s.k) AS a)`.
//!
//! To join such a query, DataFusion hands the columns that its conditions compare up to its top, and adds them to the projections on the way.
//! It adds none to the alias of a query, and then does not find them above it. A projection whose columns bear the alias's name says the same.

use std::sync::Arc;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, SubqueryAlias};
use datafusion::optimizer::AnalyzerRule;

/// See the module.
#[derive(Debug)]
pub(super) struct Derived;

impl AnalyzerRule for Derived {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| match plan {
            LogicalPlan::SubqueryAlias(alias) if is_correlated(&alias.input)? => {
                projected(&alias).map(Transformed::yes)
            }
            other => Ok(Transformed::no(other)),
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "derived"
    }
}

/// Whether a plan names columns of a query around it.
fn is_correlated(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(node.expressions().iter().any(Expr::contains_outer)))
}

fn projected(alias: &SubqueryAlias) -> Result<LogicalPlan> {
    let names = alias.schema.fields().iter().map(|field| field.name().clone());
    let columns = alias.input.schema().iter().map(Column::from).zip(names);
    let columns = columns.map(|(column, name)| Expr::Column(column).alias_qualified(Some(alias.alias.clone()), name));
    LogicalPlanBuilder::from(Arc::unwrap_or_clone(Arc::clone(&alias.input)))
        .project(columns.collect::<Vec<_>>())?
        .build()
}
