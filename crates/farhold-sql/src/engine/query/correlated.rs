//! Refuses correlated subqueries that DataFusion would join with wrong results, or not at all.
//!
//! To join a correlated subquery, DataFusion takes the conditions that name outer columns out of the subquery and makes
//! them conditions of the join. The operators above these conditions then see other rows. A subquery is refused if that
//! changes its result:
//!
//! - an aggregate without GROUP BY, unless it is the top of a scalar subquery ([`single_rows`](super::single_rows)
//!   rewrites most others to that form),
//! - a window, LIMIT and OFFSET (except a limit of EXISTS), and DISTINCT ON,
//! - the nullable side of an outer join.
//!
//! No join finds a column of a query further out; a subquery that names one is refused as well.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, JoinType};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{Distinct, Expr, FetchType, LogicalPlan, LogicalPlanBuilder, SkipType, Subquery, lit};
use datafusion::optimizer::AnalyzerRule;

use super::single_rows::{is_aggregate, with_outer_columns};
use crate::SqlError;

/// See the module.
#[derive(Debug)]
pub(super) struct Correlated;

impl AnalyzerRule for Correlated {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.transform_up_with_subqueries(conditions_above)?.data;
        let plan = plan.transform_up_with_subqueries(|node| node.map_expressions(|e| e.transform_up(rows_alone)))?.data;
        plan.apply_with_subqueries(|node| {
            if has_subquery(node)? {
                check(node)?;
            }
            // LATERAL is joined in the same way.
            if let LogicalPlan::Subquery(asked) = node {
                let query = asked.subquery.as_ref();
                if is_aggregate(query) { below_aggregate(query)? } else { below(query)? }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(plan)
    }

    fn name(&self) -> &'static str {
        "correlated"
    }
}

// The outer columns of a subquery

/// The subquery of an expression, if it is one.
pub(super) fn subquery(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::ScalarSubquery(subquery)
        | Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. }) => Some(subquery),
        _ => None,
    }
}

/// Whether an operator has subqueries in its expressions.
pub(super) fn has_subquery(plan: &LogicalPlan) -> Result<bool> {
    let mut is_found = false;
    plan.apply_expressions(|expr| {
        is_found |= expr.exists(|inner| Ok(subquery(inner).is_some()))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_found)
}

/// The outer columns that a query, or a subquery in it, names. LATERAL is skipped, since it is joined to those columns.
#[recursive::recursive]
pub(super) fn outer_columns(plan: &LogicalPlan) -> Result<Vec<Column>> {
    let mut found = Vec::new();
    plan.apply(|node| {
        if matches!(node, LogicalPlan::Subquery(_)) {
            return Ok(TreeNodeRecursion::Jump);
        }
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expr| {
            expr.apply(|inner| {
                if let Expr::OuterReferenceColumn(_, column) = inner {
                    found.push(column.clone());
                }
                if let Some(asked) = subquery(inner) {
                    found.extend(further_out(asked, &schema)?);
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(found)
}

/// The outer columns that a subquery names and that the query around it, with the columns `schema`, does not have.
fn further_out(asked: &Subquery, schema: &DFSchema) -> Result<Vec<Column>> {
    let mut columns = outer_columns(&asked.subquery)?;
    columns.retain(|column| !schema.has_column(column));
    Ok(columns)
}

// What is refused

/// Checks the subqueries in the expressions of an operator.
fn check(node: &LogicalPlan) -> Result<()> {
    let schema = merge_schema(&node.inputs());
    node.apply_expressions(|expr| {
        expr.apply(|inner| {
            if let Some(asked) = subquery(inner)
                && !outer_columns(&asked.subquery)?.is_empty()
            {
                let has_place =
                    matches!(node, LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::Aggregate(_));
                if !has_place {
                    return refused("a correlated subquery in this place");
                }
                if !further_out(asked, &schema)?.is_empty() {
                    return refused("a subquery that uses columns from more than one query level out");
                }
                let query = asked.subquery.as_ref();
                match inner {
                    Expr::ScalarSubquery(_) if is_aggregate(query) => below_aggregate(query)?,
                    Expr::Exists(_) => below(without_limit(query)?)?,
                    _ => below(query)?,
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(())
}

fn refused<T>(what: &str) -> Result<T> {
    Err(DataFusionError::External(Box::new(SqlError::unsupported(what))))
}

fn below_aggregate(plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Projection(projection) => below_aggregate(&projection.input),
        LogicalPlan::Aggregate(aggregate) => below(&aggregate.input),
        other => below(other),
    }
}

/// The query of EXISTS without a limit that leaves at least one row.
fn without_limit(plan: &LogicalPlan) -> Result<&LogicalPlan> {
    match plan {
        LogicalPlan::Limit(limit) => match (limit.get_skip_type()?, limit.get_fetch_type()?) {
            (SkipType::Literal(0), FetchType::Literal(None | Some(1..))) => Ok(&limit.input),
            _ => Ok(plan),
        },
        other => Ok(other),
    }
}

/// Checks an operator of a correlated subquery, and those below it.
#[recursive::recursive]
fn below(plan: &LogicalPlan) -> Result<()> {
    if outer_columns(plan)?.is_empty() {
        return Ok(());
    }
    let what = match plan {
        LogicalPlan::Aggregate(aggregate)
            if aggregate.group_expr.is_empty()
                || aggregate.group_expr.iter().any(|by| matches!(by, Expr::GroupingSet(_))) =>
        {
            Some("an aggregate without GROUP BY, or with grouping sets, below other operators")
        }
        LogicalPlan::Window(_) => Some("a window"),
        LogicalPlan::Limit(_) => Some("LIMIT"),
        LogicalPlan::Distinct(Distinct::On(_)) => Some("DISTINCT ON"),
        LogicalPlan::RecursiveQuery(_) => Some("WITH RECURSIVE"),
        LogicalPlan::Join(join) => {
            let names_outer = |side: &LogicalPlan| Ok::<_, DataFusionError>(!outer_columns(side)?.is_empty());
            let in_condition = plan.expressions().iter().any(Expr::contains_outer);
            let in_absent = match join.join_type {
                JoinType::Inner => false,
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                    names_outer(&join.right)?
                }
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                    names_outer(&join.left)?
                }
                JoinType::Full => true,
            };
            (in_condition || in_absent).then_some("this join with outer columns")
        }
        _ => None,
    };
    match what {
        Some(what) => refused(&format!("{what} in a correlated subquery")),
        None => plan.inputs().into_iter().try_for_each(below),
    }
}

/// Whether a plan has a correlated subquery.
pub(super) fn has_some(plan: &LogicalPlan) -> bool {
    let mut is_found = false;
    let walked = plan.apply_with_subqueries(|node| {
        is_found |= node.expressions().iter().any(Expr::contains_outer);
        Ok(if is_found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.is_ok() && is_found
}

// What is rewritten

/// EXISTS of a query whose items name outer columns: items, DISTINCT, ORDER BY and a limit do not affect whether it has
/// rows.
fn rows_alone(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::Exists(Exists { subquery, negated }) = &expr else { return Ok(Transformed::no(expr)) };
    let mut rows = subquery.subquery.as_ref();
    let mut names_outer = false;
    while let Some(input) = with_same_rows(rows)? {
        names_outer |= rows.expressions().iter().any(Expr::contains_outer);
        rows = input;
    }
    if !names_outer {
        return Ok(Transformed::no(expr));
    }
    let rows = LogicalPlanBuilder::from(rows.clone()).project([lit(true).alias("__row")])?.build()?;
    let exists = Exists { subquery: subquery.with_plan(Arc::new(rows)), negated: *negated };
    Ok(Transformed::yes(with_outer_columns(Expr::Exists(exists))))
}

/// The input of an operator that has rows exactly if its input has.
fn with_same_rows(plan: &LogicalPlan) -> Result<Option<&LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::Projection(projection) => Some(&projection.input),
        LogicalPlan::Distinct(Distinct::All(input)) => Some(input),
        LogicalPlan::Sort(sort) => Some(&sort.input),
        LogicalPlan::Limit(_) => Some(without_limit(plan)?).filter(|input| !std::ptr::eq(*input, plan)),
        _ => None,
    })
}

/// Moves a condition of an inner join that names outer columns to a filter above it, since DataFusion looks for them
/// only in WHERE. Merges two filters if the lower one names outer columns, which DataFusion would lose otherwise.
fn conditions_above(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Join(mut join)
            if join.join_type == JoinType::Inner && join.filter.as_ref().is_some_and(Expr::contains_outer) =>
        {
            let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
            let (outer, own): (Vec<Expr>, Vec<Expr>) = conditions.into_iter().partition(Expr::contains_outer);
            join.filter = conjunction(own);
            let builder = LogicalPlanBuilder::from(LogicalPlan::Join(join));
            match conjunction(outer) {
                Some(condition) => Ok(Transformed::yes(builder.filter(condition)?.build()?)),
                None => builder.build().map(Transformed::no),
            }
        }
        LogicalPlan::Filter(mut filter) => match filter.input.as_ref() {
            LogicalPlan::Filter(below) if below.predicate.contains_outer() => {
                filter.predicate = below.predicate.clone().and(filter.predicate);
                filter.input = Arc::clone(&below.input);
                Ok(Transformed::yes(LogicalPlan::Filter(filter)))
            }
            _ => Ok(Transformed::no(LogicalPlan::Filter(filter))),
        },
        other => Ok(Transformed::no(other)),
    }
}
