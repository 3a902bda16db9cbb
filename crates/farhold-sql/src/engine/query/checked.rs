//! Integer arithmetic that overflows is an error and not another number.
//!
//! DataFusion's operators wrap unless each is told otherwise, and nobody tells them. So the finished physical plan is
//! gone through, and every `+ - *` in projections, filters and aggregates is told; constants, which the optimiser would
//! fold before that, are checked in the logical plan.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::{SqlError, SqlState};

/// See the module.
#[derive(Debug)]
pub(super) struct CheckedArithmetic;

impl PhysicalOptimizerRule for CheckedArithmetic {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(check_node).data()
    }

    fn name(&self) -> &'static str {
        "checked_arithmetic"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn check_node(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut changed = false;
        let mut expressions = Vec::with_capacity(projection.expr().len());
        for item in projection.expr() {
            let checked = check(&item.expr)?;
            changed |= checked.transformed;
            expressions.push(ProjectionExpr { expr: checked.data, alias: item.alias.clone() });
        }
        if changed {
            let new = ProjectionExec::try_new(expressions, Arc::clone(projection.input()))?;
            return Ok(Transformed::yes(Arc::new(new)));
        }
    } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let checked = check(filter.predicate())?;
        if checked.transformed {
            let new = FilterExecBuilder::from(filter).with_predicate(checked.data).build()?;
            return Ok(Transformed::yes(Arc::new(new)));
        }
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let mut changed = false;
        let mut functions = Vec::with_capacity(aggregate.aggr_expr().len());
        for function in aggregate.aggr_expr() {
            let all = function.all_expressions();
            let mut arguments = Vec::with_capacity(all.args.len());
            let mut any = false;
            for argument in &all.args {
                let checked = check(argument)?;
                any |= checked.transformed;
                arguments.push(checked.data);
            }
            let new = if any { function.with_new_expressions(arguments, all.order_by_exprs) } else { None };
            changed |= new.is_some();
            functions.push(new.map_or_else(|| Arc::clone(function), Arc::new));
        }
        if changed {
            return Ok(Transformed::yes(Arc::new(aggregate.with_new_aggr_exprs(functions))));
        }
    }
    Ok(Transformed::no(plan))
}

fn check(expression: &Arc<dyn PhysicalExpr>) -> Result<Transformed<Arc<dyn PhysicalExpr>>> {
    Arc::clone(expression).transform_up(|expression| {
        let Some(binary) = expression.downcast_ref::<BinaryExpr>() else { return Ok(Transformed::no(expression)) };
        if !matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply) {
            return Ok(Transformed::no(expression));
        }
        let checked = BinaryExpr::new(Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right()))
            .with_fail_on_overflow(true);
        Ok(Transformed::yes(Arc::new(checked)))
    })
}

/// 22003 for an overflow among constants.
pub(super) fn check_constants(plan: &LogicalPlan) -> Result<(), SqlError> {
    let mut overflow = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            expression.apply(|e| {
                if matches!(e, Expr::BinaryExpr(_)) && constant(e) == Constant::Overflow {
                    overflow = true;
                    return Ok(TreeNodeRecursion::Stop);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map_err(|e: DataFusionError| crate::engine::error::from_datafusion(&e))?;
    if overflow {
        return Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "bigint out of range"));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Constant {
    Integer(i64),
    Overflow,
    Other,
}

fn constant(expression: &Expr) -> Constant {
    match expression {
        Expr::Literal(ScalarValue::Int64(Some(v)), _) => Constant::Integer(*v),
        Expr::Literal(ScalarValue::Int32(Some(v)), _) => Constant::Integer(i64::from(*v)),
        Expr::Negative(inner) => match constant(inner) {
            Constant::Integer(v) => v.checked_neg().map_or(Constant::Overflow, Constant::Integer),
            other => other,
        },
        Expr::BinaryExpr(binary) => match (constant(&binary.left), constant(&binary.right)) {
            (Constant::Integer(a), Constant::Integer(b)) => {
                let result = match binary.op {
                    Operator::Plus => a.checked_add(b),
                    Operator::Minus => a.checked_sub(b),
                    Operator::Multiply => a.checked_mul(b),
                    _ => return Constant::Other,
                };
                result.map_or(Constant::Overflow, Constant::Integer)
            }
            _ => Constant::Other,
        },
        _ => Constant::Other,
    }
}
