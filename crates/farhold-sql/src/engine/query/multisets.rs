//! INTERSECT ALL and EXCEPT ALL.
//!
//! DataFusion plans both as a semi or anti join, which keeps all equal rows of the left side or none. But a row that
//! occurs m times on the left and n times on the right must occur min(m, n) times in the result, or m - n times. So
//! equal rows are numbered on both sides, and the number becomes a join key: the i-th row of the left has a partner if
//! the right has at least i of them.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Distinct, Expr, ExprFunctionExt, Join, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

/// See the module.
#[derive(Debug)]
pub(super) struct Multisets;

impl AnalyzerRule for Multisets {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(counted).data()
    }

    fn name(&self) -> &'static str {
        "multisets"
    }
}

/// Whether a join is an INTERSECT or EXCEPT: these are the only semi and anti joins for which NULL equals NULL.
pub(super) fn is_set_operation(join: &Join) -> bool {
    matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti)
        && join.null_equality == NullEquality::NullEqualsNull
        && join.filter.is_none()
}

/// Rewrites a set operation with ALL, which is one that does not make the left side distinct.
fn counted(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut join = match plan {
        LogicalPlan::Join(join)
            if is_set_operation(&join) && !matches!(*join.left, LogicalPlan::Distinct(Distinct::All(_))) =>
        {
            join
        }
        other => return Ok(Transformed::no(other)),
    };
    let wanted: Vec<Expr> = join.left.schema().columns().into_iter().map(Expr::from).collect();
    let (left, left_number) = numbered(&join.left, "__number_left")?;
    let (right, right_number) = numbered(&join.right, "__number_right")?;
    (join.left, join.right) = (Arc::new(left), Arc::new(right));
    join.on.push((left_number, right_number));
    let joined = LogicalPlan::Join(join).recompute_schema()?;
    Ok(Transformed::yes(LogicalPlanBuilder::from(joined).project(wanted)?.build()?))
}

/// The rows, numbered among equal ones.
fn numbered(plan: &Arc<LogicalPlan>, name: &str) -> Result<(LogicalPlan, Expr)> {
    let mut columns: Vec<Expr> = plan.schema().columns().into_iter().map(Expr::from).collect();
    let number = row_number().partition_by(columns.clone()).build()?;
    let numbered = LogicalPlanBuilder::from(Arc::clone(plan)).window(vec![number])?;
    let last = numbered.schema().columns().pop().map(Expr::from);
    columns.extend(last.map(|number| number.alias(name)));
    let plan = numbered.project(columns)?.build()?;
    Ok((plan, Expr::Column(Column::from_name(name))))
}
