//! LATERAL queries whose items name columns of preceding FROM items.
//!
//! DataFusion (55) joins a LATERAL query by its conditions, and resolves outer columns only there. So the items are
//! computed above the join. If the query has exactly one row, no join is needed:
//!
//! | written | planned as |
//! |---|---|
//! | `l, LATERAL (SELECT e WHERE c)` | `SELECT l.*, e FROM l WHERE c` |
//! | `l, LATERAL (SELECT e FROM …) q` | `SELECT l.*, e FROM l, LATERAL (SELECT columns FROM …) q` |
//!
//! In a LEFT JOIN, `e` is NULL where the query has no row.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, DFSchema, JoinType, Spans};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Join, LogicalPlan, LogicalPlanBuilder, Subquery, lit};
use datafusion::optimizer::AnalyzerRule;

use super::correlated::has_subquery;
use super::single_rows::{Row, case, is_aggregate};

/// See the module.
#[derive(Debug)]
pub(super) struct Laterals;

impl AnalyzerRule for Laterals {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(joined).data()
    }

    fn name(&self) -> &'static str {
        "laterals"
    }
}

fn joined(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(join) = plan else { return Ok(Transformed::no(plan)) };
    let planned = match lateral(&join) {
        Some(query) => match of_one_row(&join, query)? {
            Some(planned) => Some(planned),
            None => items_above(&join, query)?,
        },
        None => None,
    };
    Ok(planned.map_or_else(|| Transformed::no(LogicalPlan::Join(join)), Transformed::yes))
}

/// The query of a join's right side, if it is LATERAL.
fn lateral(join: &Join) -> Option<&LogicalPlan> {
    let right = match join.right.as_ref() {
        LogicalPlan::SubqueryAlias(alias) => alias.input.as_ref(),
        other => other,
    };
    match right {
        LogicalPlan::Subquery(asked) if matches!(join.join_type, JoinType::Inner | JoinType::Left) => {
            Some(&asked.subquery)
        }
        _ => None,
    }
}

/// The condition of a join, including its keys.
fn condition(join: &Join) -> Option<Expr> {
    let keys = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
    conjunction(keys.chain(join.filter.clone()))
}

/// The columns of the left side.
fn left_columns(join: &Join) -> Vec<Expr> {
    join.left.schema().columns().into_iter().map(Expr::Column).collect()
}

/// The columns of the left side, and the given values for those of the right side.
fn with_values(join: &Join, values: impl IntoIterator<Item = Expr>) -> Vec<Expr> {
    let named = join.right.schema().iter().zip(values);
    let named = named.map(|((qualifier, field), value)| value.alias_qualified(qualifier.cloned(), field.name()));
    left_columns(join).into_iter().chain(named).collect()
}

fn of_one_row(join: &Join, query: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    // DataFusion can join an aggregate.
    if is_aggregate(query) {
        return Ok(None);
    }
    let Some(row) = Row::of(query)? else { return Ok(None) };
    let Row { conditions, columns } = row.in_scope(join.left.schema())?;
    let left = LogicalPlanBuilder::from(Arc::clone(&join.left));
    let plan = if join.join_type == JoinType::Left {
        let values = columns.into_iter().map(|value| case(conditions.clone(), value, None));
        let plan = left.project(with_values(join, values))?;
        match condition(join) {
            Some(condition) => {
                let right = join.right.schema().columns().into_iter();
                let values = right.map(|column| case(vec![condition.clone()], Expr::Column(column), None));
                plan.project(with_values(join, values))?
            }
            None => plan,
        }
    } else {
        let left = match conjunction(conditions) {
            Some(condition) => left.filter(condition)?,
            None => left,
        };
        let plan = left.project(with_values(join, columns))?;
        match condition(join) {
            Some(condition) => plan.filter(condition)?,
            None => plan,
        }
    };
    plan.build().map(Some)
}

/// The items of a query, and the plan to whose columns they refer.
struct Items<'p> {
    exprs: Vec<Expr>,
    input: &'p LogicalPlan,
}

impl<'p> Items<'p> {
    /// `None` if the items cannot be evaluated elsewhere.
    fn of(plan: &'p LogicalPlan) -> Result<Option<Self>> {
        let projection = match plan {
            LogicalPlan::SubqueryAlias(alias) => return Self::of(&alias.input),
            LogicalPlan::Projection(projection) => projection,
            _ => return Ok(None),
        };
        if has_subquery(plan)? || projection.expr.iter().any(Expr::is_volatile) {
            return Ok(None);
        }
        let exprs = projection.expr.iter().map(|expr| expr.clone().unalias_nested().data);
        let Some(below) = Self::of(&projection.input)? else {
            return Ok(Some(Self { exprs: exprs.collect(), input: &projection.input }));
        };
        let schema = projection.input.schema();
        let exprs = exprs.map(|expr| replaced(expr, schema, &below.exprs)).collect::<Result<_>>()?;
        Ok(Some(Self { exprs, ..below }))
    }
}

/// An expression in which the columns of a schema are replaced by values.
pub(super) fn replaced(expr: Expr, schema: &DFSchema, values: &[Expr]) -> Result<Expr> {
    expr.transform_up(|inner| match &inner {
        Expr::Column(column) if schema.has_column(column) => {
            Ok(Transformed::yes(values[schema.index_of_column(column)?].clone()))
        }
        _ => Ok(Transformed::no(inner)),
    })
    .data()
}

/// The query as LATERAL, or as an ordinary one if no outer column is left in it.
fn asked(query: LogicalPlan) -> LogicalPlan {
    let outer_ref_columns = query.all_out_ref_exprs();
    if outer_ref_columns.is_empty() {
        return query;
    }
    LogicalPlan::Subquery(Subquery { subquery: Arc::new(query), outer_ref_columns, spans: Spans::new() })
}

fn items_above(join: &Join, query: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let Some(Items { exprs, input }) = Items::of(query)? else { return Ok(None) };
    let (Some(alias), _) = join.right.schema().qualified_field(0) else { return Ok(None) };
    if !exprs.iter().any(Expr::contains_outer) {
        return Ok(None);
    }
    // Names that no column of either side has.
    let names: Vec<String> = (0..input.schema().fields().len()).map(|n| format!("__lateral_{n}")).collect();
    let columns = input.schema().columns().into_iter().zip(&names);
    let has_row = "__lateral_row";
    let wanted = columns.map(|(column, name)| Expr::Column(column).alias(name));
    let wanted = wanted.chain([lit(true).alias(has_row)]);
    let rows = LogicalPlanBuilder::from(input.clone()).project(wanted)?.build()?;
    let right = LogicalPlanBuilder::from(asked(rows)).alias(alias.clone())?.build()?;

    let column = |name: &str| Expr::Column(Column::new(Some(alias.clone()), name));
    let inner: Vec<Expr> = names.iter().map(|name| column(name)).collect();
    let values = exprs.into_iter().map(|expr| replaced(expr, input.schema(), &inner)).collect::<Result<_>>()?;
    let values = Row { conditions: Vec::new(), columns: values }.in_scope(join.left.schema())?.columns;
    let condition = condition(join).map(|condition| replaced(condition, join.right.schema(), &values)).transpose()?;
    let joined = LogicalPlanBuilder::from(Arc::clone(&join.left)).join_on(right, join.join_type, condition)?;
    let is_left = join.join_type == JoinType::Left;
    let values = values.into_iter().map(|value| if is_left { case(vec![column(has_row)], value, None) } else { value });
    joined.project(with_values(join, values))?.build().map(Some)
}
