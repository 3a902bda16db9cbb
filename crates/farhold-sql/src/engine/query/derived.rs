//! Queries in the FROM clause of a correlated query, `SELECT … WHERE x > (SELECT max(v) FROM (SELECT v FROM t WHERE t.k
//! = s.k) AS a)`.
//!
//! To join such a query, DataFusion passes the columns that its conditions compare up to its top, and adds them to the
//! projections on the way. It does not add them to the alias of a query, and then does not find them above it. A
//! projection whose columns are qualified by the alias is equivalent.

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
            LogicalPlan::SubqueryAlias(alias) if hides_columns(&alias)? => projected(&alias).map(Transformed::yes),
            other => Ok(Transformed::no(other)),
        })
        .data()
    }

    fn name(&self) -> &'static str {
        "derived"
    }
}

/// Whether a query compares a column that it does not return with an outer column. LATERAL is exempt: it is joined
/// differently.
fn hides_columns(alias: &SubqueryAlias) -> Result<bool> {
    if matches!(alias.input.as_ref(), LogicalPlan::Subquery(_)) {
        return Ok(false);
    }
    alias.input.exists(|node| {
        let expressions = node.expressions();
        let mut outer = expressions.iter().filter(|expression| expression.contains_outer());
        Ok(outer.any(|expression| !expression.column_refs().iter().all(|column| is_given(alias, column))))
    })
}

/// Whether the query returns this column under its own name, and no other column has that name.
fn is_given(alias: &SubqueryAlias, column: &Column) -> bool {
    let is_single = alias.schema.fields().iter().filter(|field| *field.name() == column.name).count() == 1;
    let is_it = |item: &Expr| matches!(item, Expr::Column(given) if given == column);
    is_single
        && matches!(alias.input.as_ref(), LogicalPlan::Projection(projection) if projection.expr.iter().any(is_it))
}

fn projected(alias: &SubqueryAlias) -> Result<LogicalPlan> {
    let names = alias.schema.fields().iter().map(|field| field.name().clone());
    let columns = alias.input.schema().iter().map(Column::from).zip(names);
    let columns = columns.map(|(column, name)| Expr::Column(column).alias_qualified(Some(alias.alias.clone()), name));
    LogicalPlanBuilder::from(Arc::unwrap_or_clone(Arc::clone(&alias.input)))
        .project(columns.collect::<Vec<_>>())?
        .build()
}
