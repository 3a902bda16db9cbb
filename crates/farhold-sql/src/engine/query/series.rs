//! `generate_series` in a SELECT list, `SELECT id, generate_series(1, 3) FROM t`, which returns a set of rows.
//!
//! In DataFusion it is a function that returns an array, and `unnest` turns it into rows: several arrays side by side,
//! with the shorter ones padded with NULL, as in PostgreSQL. But PostgreSQL makes the rows after grouping and window
//! functions, DataFusion before. Such queries are refused here, as are those that PostgreSQL refuses itself.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectItem, Value, VisitorMut,
};

use super::subqueries;
use crate::SqlError;
use crate::engine::direct::output_name;
use crate::engine::scalar::{built_in_name, fold};
use crate::engine::walk;

const SERIES: &str = "generate_series";
const UNNEST: &str = "unnest";

/// Adds `unnest` around the calls, and stops at calls in other positions.
pub(super) struct Series<'a> {
    /// The names of aggregate functions.
    aggregates: &'a HashSet<String>,
    /// Whether the next call is an argument of `unnest`.
    is_unnested: bool,
}

impl<'a> Series<'a> {
    pub(super) fn new(aggregates: &'a HashSet<String>) -> Self {
        Self { aggregates, is_unnested: false }
    }
}

impl VisitorMut for Series<'_> {
    type Break = SqlError;

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        if !select.projection.iter().filter_map(subqueries::item_value).any(has_call) {
            return ControlFlow::Continue(());
        }
        let mut values = select.projection.iter().filter_map(subqueries::item_value);
        if !subqueries::is_plain(select)
            || values.any(|value| subqueries::is_aggregate_expression(value, self.aggregates))
        {
            let error = SqlError::unsupported("generate_series together with groups, aggregates or window functions");
            return ControlFlow::Break(error.with_hint("Call it in an outer query."));
        }
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && has_call(expr)
            {
                let alias = Ident::with_quote('"', output_name(expr));
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
            }
            if let SelectItem::ExprWithAlias { expr, .. } = item {
                unnest(expr);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let is_unnested = std::mem::take(&mut self.is_unnested);
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        if is_call(function, SERIES) && !is_unnested {
            return ControlFlow::Break(SqlError::unsupported("generate_series in an expression in this place"));
        }
        self.is_unnested = is_call(function, UNNEST);
        ControlFlow::Continue(())
    }
}

fn is_call(function: &Function, of: &str) -> bool {
    function.over.is_none() && built_in_name(function).is_some_and(|name| fold(name) == of)
}

/// Whether an expression calls it, not counting subqueries.
fn has_call(expr: &Expr) -> bool {
    walk::exists_outside_queries(expr, |expr| matches!(expr, Expr::Function(function) if is_call(function, SERIES)))
}

/// Adds `unnest` around calls that are operands of operators or arguments of functions. Others stay: PostgreSQL refuses
/// such a call in CASE or COALESCE, and one in the arguments of another would be unnested twice.
fn unnest(expr: &mut Expr) {
    match expr {
        Expr::Function(function) if is_call(function, SERIES) => {
            let series = std::mem::replace(expr, Expr::value(Value::Null));
            *expr = subqueries::call(UNNEST, vec![series]);
        }
        Expr::Function(function) if !is_call(function, UNNEST) && !is_call(function, "coalesce") => {
            let FunctionArguments::List(list) = &mut function.args else { return };
            for argument in &mut list.args {
                if let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = argument {
                    unnest(value);
                }
            }
        }
        Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } | Expr::Cast { expr: inner, .. } => unnest(inner),
        Expr::BinaryOp { left, right, .. } => {
            unnest(left);
            unnest(right);
        }
        _ => {}
    }
}
