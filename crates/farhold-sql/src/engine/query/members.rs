//! `x IN (SELECT s …)` with three-valued logic.
//!
//! DataFusion plans it as a mark join, whose mark says found or not found. If neither is certain, because x or some s
//! is NULL, the result is NULL. This matters below NOT, IS NULL and CASE, and where the result is a value. DataFusion
//! keeps those conditions of a WHERE clause for which NULL is equivalent to false: `x IN (…)` below only AND and OR,
//! and `x NOT IN (…)` of a column and an uncorrelated query as a conjunct, which becomes a NULL-aware anti join. All
//! others become
//!
//! ```text
//!   CASE WHEN x IN (S) THEN true
//!        WHEN some s of S is NULL, or x is NULL and S has rows, THEN NULL
//!        ELSE false END
//! ```
//!
//! without those parts of the second line that columns declared NOT NULL rule out. In a WHERE clause the first line
//! remains a subquery. In a projection or an aggregate, for which DataFusion has no such join, the mark join is added
//! here; EXISTS, and IN of a correlated query, count rows there.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema, JoinType, ScalarValue, Spans};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery, TryCast};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, lit, not, when,
};
use datafusion::optimizer::AnalyzerRule;

use super::correlated::subquery;
use super::functions;

/// See the module.
#[derive(Debug)]
pub(super) struct Members;

impl AnalyzerRule for Members {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let marks = Cell::new(0);
        plan.transform_up_with_subqueries(|plan| in_operator(plan, &marks)).data()
    }

    fn name(&self) -> &'static str {
        "members"
    }
}

/// Rewrites one operator. `marks` counts the added mark joins, for their names.
fn in_operator(plan: LogicalPlan, marks: &Cell<usize>) -> Result<Transformed<LogicalPlan>> {
    let mut has_subquery = false;
    plan.apply_expressions(|expr| {
        has_subquery |= expr.exists(|inner| Ok(matches!(inner, Expr::InSubquery(_) | Expr::Exists(_))))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    if !has_subquery {
        return Ok(Transformed::no(plan));
    }
    let schema = merge_schema(&plan.inputs());
    match plan {
        LogicalPlan::Filter(mut filter) => {
            let predicate = condition(filter.predicate, &schema, Place::Conjunct)?;
            filter.predicate = predicate.data;
            Ok(Transformed::new_transformed(LogicalPlan::Filter(filter), predicate.transformed))
        }
        plan @ (LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_)) => {
            let names = NamePreserver::new(&plan);
            let mut input = plan.inputs()[0].clone();
            let changed = plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let value = expr.transform_up(|expr| match expr {
                    Expr::InSubquery(asked) if asked.subquery.outer_ref_columns.is_empty() => {
                        let known = Known::of(&asked, &schema)?;
                        marks.set(marks.get() + 1);
                        let (marked, mark) = mark_join(input.clone(), &asked, &format!("__in_{}", marks.get()))?;
                        input = marked;
                        Ok(Transformed::yes(known.value(mark, asked)?))
                    }
                    // There is no mark join for a correlated query: its rows are counted.
                    Expr::InSubquery(asked) if !asked.expr.exists(|inner| Ok(subquery(inner).is_some()))? => {
                        let found = Expr::Exists(Exists { subquery: equal(&asked, &schema)?, negated: false });
                        Ok(Transformed::yes(Known::of(&asked, &schema)?.value(found, asked)?))
                    }
                    other => Ok(Transformed::no(other)),
                })?;
                let value = value.transform_data(|expr| {
                    expr.transform_up(|expr| match expr {
                        Expr::Exists(asked) => {
                            let found = counted(LogicalPlan::clone(&asked.subquery.subquery), &asked.subquery)?;
                            Ok(Transformed::yes(if asked.negated { not(found) } else { found }))
                        }
                        other => Ok(Transformed::no(other)),
                    })
                })?;
                Ok(value.update_data(|expr| name.restore(expr)))
            })?;
            if !changed.transformed {
                return Ok(changed);
            }
            let expressions = changed.data.expressions();
            Ok(Transformed::yes(changed.data.with_new_exprs(expressions, vec![input])?))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The position of an expression in a WHERE clause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A conjunct of the clause.
    Conjunct,
    /// Below AND and OR only: NULL is equivalent to false.
    Positive,
    Elsewhere,
}

fn condition(expr: Expr, schema: &DFSchema, place: Place) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if place != Place::Elsewhere =>
        {
            let place = if op == Operator::And { place } else { Place::Positive };
            let (left, right) = (condition(*left, schema, place)?, condition(*right, schema, place)?);
            let is_changed = left.transformed || right.transformed;
            let both = BinaryExpr::new(Box::new(left.data), op, Box::new(right.data));
            Ok(Transformed::new_transformed(Expr::BinaryExpr(both), is_changed))
        }
        Expr::Not(inner) if place == Place::Conjunct => match *inner {
            Expr::InSubquery(mut asked) => {
                asked.negated = !asked.negated;
                condition(Expr::InSubquery(asked), schema, place)
            }
            inner => Ok(condition(inner, schema, Place::Elsewhere)?.update_data(not)),
        },
        Expr::InSubquery(asked) => {
            let is_left = match place {
                Place::Conjunct => {
                    !asked.negated || asked.subquery.outer_ref_columns.is_empty() && is_column(&asked.expr)
                }
                Place::Positive => !asked.negated,
                Place::Elsewhere => false,
            };
            let known = Known::of(&asked, schema)?;
            let is_correlated = !asked.subquery.outer_ref_columns.is_empty();
            if known.is_certain() && place == Place::Conjunct && asked.negated && is_correlated {
                // DataFusion's anti join would have to be NULL-aware in the correlated columns, which it is not.
                let found = Expr::InSubquery(InSubquery { negated: false, ..asked });
                return Ok(Transformed::yes(found.is_not_true()));
            }
            if is_left || known.is_certain() {
                return Ok(Transformed::no(Expr::InSubquery(asked)));
            }
            let found = Expr::InSubquery(InSubquery { negated: false, ..asked.clone() });
            // NOT must not be applied to a plain IN either: if the optimiser finds that NULLs are impossible, it would
            // still make that anti join.
            let found = if is_correlated && asked.negated { found.is_true() } else { found };
            Ok(Transformed::yes(known.value(found, asked)?))
        }
        other => other.map_children(|inner| condition(inner, schema, Place::Elsewhere)),
    }
}

/// Whether an expression still has columns after optimisation. Any other may become a constant (`coalesce(1, k)`),
/// which cannot be a join key, and an anti join without keys is not NULL-aware.
fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) => true,
        Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) => is_column(expr),
        Expr::ScalarFunction(call) => functions::cast_of(call).is_some_and(is_column),
        _ => false,
    }
}

/// Where NULLs are possible.
struct Known {
    asked_may_be_null: bool,
    some_may_be_null: bool,
}

impl Known {
    fn of(asked: &InSubquery, schema: &DFSchema) -> Result<Self> {
        let of_query = asked.subquery.subquery.schema();
        Ok(Self {
            asked_may_be_null: asked.expr.nullable(schema)?,
            some_may_be_null: of_query.fields().iter().any(|field| field.is_nullable()),
        })
    }

    fn is_certain(&self) -> bool {
        !self.asked_may_be_null && !self.some_may_be_null
    }

    /// The result, given whether a match is `found`.
    fn value(&self, found: Expr, asked: InSubquery) -> Result<Expr> {
        let InSubquery { expr, subquery, negated } = asked;
        let mut unknown = Vec::new();
        if self.some_may_be_null {
            let column = Expr::Column(subquery.subquery.schema().columns().remove(0));
            let nulls = LogicalPlanBuilder::from(Arc::clone(&subquery.subquery)).filter(column.is_null())?.build()?;
            unknown.push(has_rows(nulls, &subquery)?);
        }
        if self.asked_may_be_null {
            let all = LogicalPlan::clone(&subquery.subquery);
            unknown.push(expr.is_null().and(has_rows(all, &subquery)?));
        }
        match unknown.into_iter().reduce(Expr::or) {
            None => Ok(if negated { not(found) } else { found }),
            Some(unknown) => {
                when(found, lit(!negated)).when(unknown, lit(ScalarValue::Boolean(None))).otherwise(lit(negated))
            }
        }
    }
}

/// Whether a query derived from that of `subquery` has rows. An uncorrelated one is evaluated once.
fn has_rows(plan: LogicalPlan, subquery: &Subquery) -> Result<Expr> {
    if !subquery.outer_ref_columns.is_empty() {
        return Ok(Expr::Exists(Exists { subquery: subquery.with_plan(Arc::new(plan)), negated: false }));
    }
    counted(plan, subquery)
}

/// As [`has_rows`], by counting rows; for an uncorrelated query, one row is enough.
fn counted(plan: LogicalPlan, subquery: &Subquery) -> Result<Expr> {
    let mut rows = LogicalPlanBuilder::from(plan);
    if subquery.outer_ref_columns.is_empty() {
        rows = rows.limit(0, Some(1))?;
    }
    let plan = rows.aggregate(Vec::<Expr>::new(), vec![count(lit(1_i64))])?.build()?;
    let outer_ref_columns = plan.all_out_ref_exprs();
    let counted = Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Spans::new() };
    Ok(Expr::ScalarSubquery(counted).gt(lit(0_i64)))
}

/// The rows of a query that equal the needle, an expression over the columns of `schema`.
fn equal(asked: &InSubquery, schema: &DFSchema) -> Result<Subquery> {
    let sought = asked.expr.as_ref().clone().transform_up(|expr| match expr {
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    let column = Expr::Column(asked.subquery.subquery.schema().columns().remove(0));
    let rows =
        LogicalPlanBuilder::from(Arc::clone(&asked.subquery.subquery)).filter(column.eq(sought.data))?.build()?;
    let outer_ref_columns = rows.all_out_ref_exprs();
    Ok(Subquery { subquery: Arc::new(rows), outer_ref_columns, spans: Spans::new() })
}

/// `input` with a column that tells for each row whether the query has its value.
fn mark_join(input: LogicalPlan, asked: &InSubquery, name: &str) -> Result<(LogicalPlan, Expr)> {
    let query = LogicalPlanBuilder::from(Arc::clone(&asked.subquery.subquery)).alias(name)?.build()?;
    let column = Expr::Column(query.schema().columns().remove(0));
    let equal = asked.expr.as_ref().clone().eq(column);
    let joined = LogicalPlanBuilder::from(input).join_on(query, JoinType::LeftMark, Some(equal))?.build()?;
    Ok((joined, Expr::Column(Column::new(Some(name), "mark"))))
}
