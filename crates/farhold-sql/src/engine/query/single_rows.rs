//! Correlated subqueries that always have one row: aggregates without GROUP BY, and queries without FROM.
//!
//! DataFusion joins a correlated subquery grouped by its correlation keys, and an empty group does not exist. So
//! `EXISTS`, `IN`, `ANY` and `ALL` miss the row of an empty group, and in a scalar subquery only a bare aggregate gets
//! its value for empty input. So an expression over the aggregates is computed in the outer query, and each aggregate
//! becomes a scalar subquery of its own. With `e` for its item and `h` for its HAVING:
//!
//! | written | planned as |
//! |---|---|
//! | `(SELECT e … HAVING h)` | `CASE WHEN h THEN e END` |
//! | `EXISTS (SELECT e … HAVING h)` | `h IS TRUE` |
//! | `x IN (SELECT e … HAVING h)` | `CASE WHEN h THEN x = e ELSE false END` |
//! | `x op ALL (SELECT e … HAVING h)` | `CASE WHEN h THEN x op e ELSE true END` |
//!
//! Projections, conditions, aliases, orders and limits above the aggregate become parts of `e` and `h`, and so does an
//! aggregate of that single row. A query of another form that contains such an aggregate is refused:
//! [`correlated`](super::correlated).

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Spans};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_nested::make_array::{make_array, make_array_udf};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, merge_schema};
use datafusion::logical_expr::{
    Aggregate, BinaryExpr, Case, Distinct, Expr, FetchType, LogicalPlan, LogicalPlanBuilder, Operator, SkipType,
    Subquery, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::correlated::{has_subquery, outer_columns, subquery};
use super::scalars::SINGLE_VALUE;

/// See the module.
#[derive(Debug)]
pub(super) struct SingleRows;

impl AnalyzerRule for SingleRows {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(in_operator).data()
    }

    fn name(&self) -> &'static str {
        "single_rows"
    }
}

fn in_operator(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !has_subquery(&plan)? {
        return Ok(Transformed::no(plan));
    }
    let schema = merge_schema(&plan.inputs());
    let names = NamePreserver::new(&plan);
    plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(|expr| computed(expr, &schema))?.update_data(|expr| name.restore(expr)))
    })
}

/// The value of a subquery with one row; `outer` are the columns of the outer query.
fn computed(expr: Expr, outer: &DFSchema) -> Result<Transformed<Expr>> {
    if let Expr::ScalarFunction(function) = &expr
        && function.name() == SINGLE_VALUE
        && let [array] = function.args.as_slice()
        && let Some(value) = only_element(array)
    {
        return Ok(Transformed::yes(value));
    }
    let Some(asked) = subquery(&expr) else { return Ok(Transformed::no(expr)) };
    // An uncorrelated subquery is evaluated once, as written.
    if outer_columns(&asked.subquery)?.is_empty() {
        return asked_once(expr);
    }
    let is_joined = matches!(expr, Expr::ScalarSubquery(_)) && is_aggregate(&asked.subquery);
    let row = if is_joined && !is_of_one_row(&asked.subquery)? { None } else { Row::of(&asked.subquery)? };
    let Some(row) = row else { return Ok(Transformed::yes(with_outer_columns(expr))) };
    let row = row.in_scope(outer)?;
    let value = match expr {
        Expr::ScalarSubquery(_) => row.value(|column| column, None),
        Expr::Exists(Exists { negated, .. }) => match conjunction(row.conditions) {
            None => lit(!negated),
            Some(condition) if negated => condition.is_not_true(),
            Some(condition) => condition.is_true(),
        },
        Expr::InSubquery(InSubquery { expr, negated, .. }) => {
            let op = if negated { Operator::NotEq } else { Operator::Eq };
            row.value(|column| compared(expr, op, column), Some(negated))
        }
        Expr::SetComparison(SetComparison { expr, op, quantifier, .. }) => {
            row.value(|column| compared(expr, op, column), Some(quantifier == SetQuantifier::All))
        }
        other => other,
    };
    Ok(Transformed::yes(value))
}

/// For an uncorrelated query that always has one row, turns IN and quantified comparisons into a comparison with its
/// value.
fn asked_once(expr: Expr) -> Result<Transformed<Expr>> {
    let has_row = |asked: &Subquery| {
        Ok::<_, DataFusionError>(Row::of(&asked.subquery)?.is_some_and(|row| row.conditions.is_empty()))
    };
    Ok(match expr {
        Expr::InSubquery(InSubquery { expr, subquery, negated }) if has_row(&subquery)? => {
            let op = if negated { Operator::NotEq } else { Operator::Eq };
            Transformed::yes(compared(expr, op, Expr::ScalarSubquery(subquery)))
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, .. }) if has_row(&subquery)? => {
            Transformed::yes(compared(expr, op, Expr::ScalarSubquery(subquery)))
        }
        other => Transformed::no(other),
    })
}

fn compared(left: Box<Expr>, op: Operator, right: Expr) -> Expr {
    Expr::BinaryExpr(BinaryExpr::new(left, op, Box::new(right)))
}

/// Whether a query is a single aggregate and nothing else, which DataFusion can join.
pub(super) fn is_aggregate(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => {
            let [item] = projection.expr.as_slice() else { return false };
            matches!(item.clone().unalias(), Expr::Column(_)) && is_aggregate(&projection.input)
        }
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty() && aggregate.aggr_expr.len() == 1,
        _ => false,
    }
}

/// Whether the aggregate of such a query has at most one input row.
fn is_of_one_row(plan: &LogicalPlan) -> Result<bool> {
    match plan {
        LogicalPlan::Projection(projection) => is_of_one_row(&projection.input),
        LogicalPlan::Aggregate(aggregate) => Ok(Row::of(&aggregate.input)?.is_some()),
        _ => Ok(false),
    }
}

/// A subquery with its list of outer columns computed again, since rewriting its contents may have changed it.
pub(super) fn with_outer_columns(mut expr: Expr) -> Expr {
    if let Expr::ScalarSubquery(subquery)
    | Expr::Exists(Exists { subquery, .. })
    | Expr::InSubquery(InSubquery { subquery, .. })
    | Expr::SetComparison(SetComparison { subquery, .. }) = &mut expr
    {
        subquery.outer_ref_columns = subquery.subquery.all_out_ref_exprs();
    }
    expr
}

/// The size limit of the expressions that replace a query of one row: each column is expanded wherever it is named, and
/// again by the next query.
const PARTS_MAX: usize = 1_000;
/// The size of a subquery, which becomes a join.
const SUBQUERY_PARTS: usize = 20;

/// Whether a value is a constant other than NULL.
fn is_there(value: &Expr) -> bool {
    matches!(value, Expr::Literal(value, _) if !value.is_null())
}

/// Whether a query is volatile.
fn varies(plan: &LogicalPlan) -> Result<bool> {
    let mut varies = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            varies |= expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(varies)
}

/// The only row of a query.
#[derive(Default)]
pub(super) struct Row {
    /// The conditions without which the query has no row.
    pub(super) conditions: Vec<Expr>,
    pub(super) columns: Vec<Expr>,
}

impl Row {
    /// `None` for queries of other forms.
    #[recursive::recursive]
    pub(super) fn of(plan: &LogicalPlan) -> Result<Option<Self>> {
        Ok(match plan {
            LogicalPlan::EmptyRelation(empty) if empty.produce_one_row => Some(Self::default()),
            LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => match Self::of(&aggregate.input)? {
                Some(row) => row.summarised(aggregate)?,
                None => Self::aggregated(aggregate)?,
            },
            LogicalPlan::Projection(projection) => match Self::of(&projection.input)? {
                Some(row) => {
                    row.evaluated(&projection.expr, projection.input.schema())?.map(|columns| Self { columns, ..row })
                }
                None => None,
            },
            LogicalPlan::Filter(filter) => match Self::of(&filter.input)? {
                Some(mut row) => {
                    let condition = row.evaluated(std::slice::from_ref(&filter.predicate), filter.input.schema())?;
                    condition.map(|condition| {
                        row.conditions.extend(condition);
                        row
                    })
                }
                None => None,
            },
            LogicalPlan::SubqueryAlias(alias) => Self::of(&alias.input)?,
            LogicalPlan::Sort(sort) => Self::of(&sort.input)?,
            LogicalPlan::Distinct(Distinct::All(input)) => Self::of(input)?,
            LogicalPlan::Limit(limit) => match (limit.get_skip_type()?, limit.get_fetch_type()?) {
                (SkipType::Literal(0), FetchType::Literal(None | Some(1..))) => Self::of(&limit.input)?,
                (SkipType::Literal(_), FetchType::Literal(_)) => Self::of(&limit.input)?.map(|mut row| {
                    row.conditions.push(lit(false));
                    row
                }),
                _ => None,
            },
            _ => None,
        })
    }

    /// Turns each aggregate into a subquery. `None` if there are several aggregates and the input may differ between
    /// evaluations.
    fn aggregated(aggregate: &Aggregate) -> Result<Option<Self>> {
        if aggregate.aggr_expr.len() > 1
            && (varies(&aggregate.input)? || aggregate.aggr_expr.iter().any(Expr::is_volatile))
        {
            return Ok(None);
        }
        let alone = |of: &Expr| {
            let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input));
            let plan = input.aggregate(Vec::<Expr>::new(), vec![of.clone()])?;
            let value = Expr::Column(plan.schema().columns().remove(0));
            let plan = plan.project(vec![value.alias("__aggregate")])?.build()?;
            let outer_ref_columns = plan.all_out_ref_exprs();
            Ok(Expr::ScalarSubquery(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: Spans::default() }))
        };
        let columns = aggregate.aggr_expr.iter().map(alone).collect::<Result<Vec<Expr>>>()?;
        Ok(Some(Self { conditions: Vec::new(), columns }))
    }

    /// Aggregates of at most one row, computed from its values. `None` for aggregates whose type differs from their
    /// argument's.
    fn summarised(&self, aggregate: &Aggregate) -> Result<Option<Self>> {
        let mut columns = Vec::with_capacity(aggregate.aggr_expr.len());
        for expr in &aggregate.aggr_expr {
            let Expr::AggregateFunction(function) = expr.clone().unalias_nested().data else { return Ok(None) };
            // An aggregate over outer columns only belongs to the outer query.
            let names_outer = function.params.args.iter().any(Expr::contains_outer);
            if names_outer && !function.params.args.iter().any(Expr::any_column_refs) {
                return Ok(None);
            }
            let arguments = self.evaluated(&function.params.args, aggregate.input.schema())?;
            let Some([value]) = arguments.as_deref().filter(|_| function.params.filter.is_none()) else {
                return Ok(None);
            };
            let when = |mut conditions: Vec<Expr>, value: Expr, without: Option<Expr>| {
                conditions.extend(self.conditions.iter().cloned());
                case(conditions, value, without)
            };
            columns.push(match function.func.name() {
                "count" => {
                    let is_there = if is_there(value) { Vec::new() } else { vec![value.clone().is_not_null()] };
                    when(is_there, lit(1_i64), Some(lit(0_i64)))
                }
                "min" | "max" | "first_value" => when(Vec::new(), value.clone(), None),
                "array_agg" => when(Vec::new(), make_array(vec![value.clone()]), None),
                _ => return Ok(None),
            });
        }
        Ok(Some(Self { conditions: Vec::new(), columns }))
    }

    /// Expressions over the columns named by `schema`, with the columns replaced by their values. `None` if they are
    /// not the same when evaluated elsewhere, or become too large.
    fn evaluated(&self, exprs: &[Expr], schema: &DFSchema) -> Result<Option<Vec<Expr>>> {
        if !self.is_copied_well(exprs, schema)? {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(exprs.len());
        for expr in exprs {
            let names_column = |inner: &Expr| match subquery(inner) {
                Some(asked) => Ok(outer_columns(&asked.subquery)?.iter().any(|column| schema.has_column(column))),
                None => Ok(false),
            };
            if expr.is_volatile() || expr.exists(names_column)? {
                return Ok(None);
            }
            let value = expr.clone().unalias_nested().data.transform_up(|inner| match &inner {
                Expr::Column(column) => Ok(Transformed::yes(self.columns[schema.index_of_column(column)?].clone())),
                _ => Ok(Transformed::no(inner)),
            })?;
            values.push(value.data);
        }
        Ok(Some(values))
    }

    /// Whether each column may be copied to wherever the expressions name it.
    fn is_copied_well(&self, exprs: &[Expr], schema: &DFSchema) -> Result<bool> {
        let mut mentions = vec![0_usize; self.columns.len()];
        for expr in exprs {
            expr.apply(|inner| {
                if let Expr::Column(column) = inner {
                    mentions[schema.index_of_column(column)?] += 1;
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let (mut parts, mut is_well) = (0_usize, true);
        for (value, mentions) in self.columns.iter().zip(mentions).filter(|(_, mentions)| *mentions > 0) {
            let mut size = 0;
            value.apply(|inner| {
                let asked = subquery(inner);
                size += if asked.is_some() { SUBQUERY_PARTS } else { 1 };
                // The row's conditions would be a second place of evaluation.
                is_well &= match asked {
                    Some(asked) => (mentions == 1 && self.conditions.is_empty()) || !varies(&asked.subquery)?,
                    None => true,
                };
                Ok(TreeNodeRecursion::Continue)
            })?;
            parts += mentions * size;
        }
        Ok(is_well && parts <= PARTS_MAX)
    }

    /// The row in the scope of the outer query: outer references to the columns of `outer` become plain columns.
    pub(super) fn in_scope(self, outer: &DFSchema) -> Result<Self> {
        let named = |expr: Expr| {
            expr.transform_up(|inner| match inner {
                Expr::OuterReferenceColumn(_, column) if outer.has_column(&column) => {
                    Ok(Transformed::yes(Expr::Column(column)))
                }
                inner => Ok(Transformed::no(inner)),
            })
            .data()
        };
        let all = |exprs: Vec<Expr>| exprs.into_iter().map(named).collect::<Result<Vec<Expr>>>();
        Ok(Self { conditions: all(self.conditions)?, columns: all(self.columns)? })
    }

    /// An expression over the first column; without a row it is the constant `without`, or NULL.
    fn value(mut self, of: impl FnOnce(Expr) -> Expr, without: Option<bool>) -> Expr {
        let value = of(self.columns.swap_remove(0));
        case(self.conditions, value, without.map(lit))
    }
}

/// `CASE WHEN conditions THEN value ELSE without END`
pub(super) fn case(conditions: Vec<Expr>, value: Expr, without: Option<Expr>) -> Expr {
    match conjunction(conditions) {
        None => value,
        Some(condition) => {
            Expr::Case(Case::new(None, vec![(Box::new(condition), Box::new(value))], without.map(Box::new)))
        }
    }
}

/// The only element of `[value]`, or of `CASE WHEN condition THEN [value] END`.
fn only_element(array: &Expr) -> Option<Expr> {
    match array {
        Expr::ScalarFunction(function) if function.name() == make_array_udf().name() => {
            match function.args.as_slice() {
                [value] => Some(value.clone()),
                _ => None,
            }
        }
        Expr::Case(Case { expr: None, when_then_expr, else_expr: None }) => match when_then_expr.as_slice() {
            [(condition, array)] => Some(case(vec![condition.as_ref().clone()], only_element(array)?, None)),
            _ => None,
        },
        _ => None,
    }
}
