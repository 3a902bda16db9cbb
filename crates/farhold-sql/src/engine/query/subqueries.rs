//! Rewrites subqueries to forms that DataFusion can plan.

use std::collections::HashSet;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, DataType, Distinct, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArgumentClause, FunctionArgumentList, FunctionArguments, GroupByExpr, Ident, LimitClause, OrderByExpr,
    OrderByKind, Query, Select, SelectItem, SetExpr, SetOperator, SetQuantifier, Statement, TableFactor,
    TableWithJoins, Value, Values,
};

use super::scalars::SINGLE_VALUE;
use crate::engine::parse::{SET_OPERATIONS_MAX, parse_one};
use crate::engine::scalar::{built_in_name, fold};
use crate::engine::walk;
use crate::{SqlError, SqlState};

/// `name(arguments)`.
pub(super) fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    Expr::Function(function(name, arguments))
}

fn function(name: &str, arguments: Vec<Expr>) -> Function {
    let args = arguments.into_iter().map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))).collect();
    Function {
        name: vec![Ident::new(name)].into(),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// `(left op right)`.
pub(super) fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    nested(Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) })
}

pub(super) fn nested(expr: Expr) -> Expr {
    Expr::Nested(Box::new(expr))
}

/// `SELECT projection FROM from`.
pub(super) fn select(projection: Vec<SelectItem>, from: Vec<TableWithJoins>) -> Result<Box<Query>, SqlError> {
    // Parsed from a template, since a SELECT has many fields that stay empty.
    let mut query = query_of("SELECT 1")?;
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.projection = projection;
        select.from = from;
    }
    Ok(query)
}

fn query_of(text: &str) -> Result<Box<Query>, SqlError> {
    match parse_one(text)? {
        Statement::Query(query) => Ok(query),
        _ => Err(SqlError::internal("a query was expected")),
    }
}

/// `SELECT * FROM (VALUES …)`: DataFusion does not name the column of a VALUES list in an expression.
pub(super) fn select_of(values: Values) -> Result<SetExpr, SqlError> {
    let mut query = query_of("SELECT * FROM (SELECT 1) AS __values")?;
    if let SetExpr::Select(select) = query.body.as_mut()
        && let [TableWithJoins { relation: TableFactor::Derived { subquery, .. }, .. }] = select.from.as_mut_slice()
    {
        *subquery.body = SetExpr::Values(values);
    }
    Ok(*query.body)
}

/// Rewrites a VALUES list with subqueries, for which DataFusion has no operator, or with casts beside other values,
/// which it refuses. Each row that has one becomes a query, in the order of the rows; those between them stay lists.
pub(super) fn rows_as_queries(values: &Values) -> Result<Option<Box<Query>>, SqlError> {
    let count = values.rows.iter().map(|row| row.content.len()).min().unwrap_or(0);
    let differing: Vec<usize> = (0..count).filter(|column| casts_differ(values, *column)).collect();
    let is_query = |row: &[Expr]| {
        row.iter().any(walk::has_query) || differing.iter().any(|column| cast_to(&row[*column]).is_some())
    };
    let with_queries: Vec<bool> = values.rows.iter().map(|row| is_query(&row.content)).collect();
    let queries = with_queries.iter().filter(|has_query| **has_query).count();
    if queries == 0 {
        return Ok(None);
    }
    if queries > SET_OPERATIONS_MAX {
        let message = format!("a VALUES list has at most {SET_OPERATIONS_MAX} rows with subqueries or casts");
        return Err(SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, message));
    }
    if values.rows.iter().any(|row| row.content.len() != count) {
        return Err(SqlError::syntax("VALUES lists must all be the same length"));
    }
    let mut arms: Vec<SetExpr> = Vec::new();
    for ((n, row), has_query) in values.rows.iter().enumerate().zip(with_queries) {
        let mut row = row.clone();
        row.content.push(Expr::value(Value::Number(n.to_string(), false)));
        match arms.last_mut() {
            _ if has_query => {
                let named =
                    |(column, expr)| SelectItem::ExprWithAlias { expr, alias: Ident::new(format!("column{column}")) };
                arms.push(*select((1..).zip(row.content).map(named).collect(), Vec::new())?.body);
            }
            Some(SetExpr::Values(rows)) => rows.rows.push(row),
            _ => arms.push(SetExpr::Values(Values { explicit_row: false, rows: vec![row], value_keyword: false })),
        }
    }
    let columns = (1..=count).map(|n| format!("column{n}")).collect::<Vec<_>>().join(", ");
    // Parsed from a template; the user's expressions are inserted as parsed.
    let mut query =
        query_of(&format!("SELECT {columns} FROM (SELECT 1) AS __values ({columns}, __row) ORDER BY __values.__row"))?;
    if let SetExpr::Select(select) = query.body.as_mut()
        && let [TableWithJoins { relation: TableFactor::Derived { subquery, .. }, .. }] = select.from.as_mut_slice()
    {
        *subquery.body = union_all(arms)?;
    }
    Ok(Some(query))
}

/// Keeps the order of [`rows_as_queries`] inside another query, where the planner drops it unless there is a LIMIT. A
/// correlated query must not have one.
pub(super) fn keep_order(rows: &mut Query, count: usize) {
    let limit = Some(Expr::value(Value::Number(count.to_string(), false)));
    rows.limit_clause = Some(LimitClause::LimitOffset { limit, offset: None, limit_by: Vec::new() });
}

/// The type to which a value, or an operand in it, is cast, if the type has a name or length that belongs to the
/// values.
fn cast_to(value: &Expr) -> Option<&DataType> {
    let (data_type, inner) = match value {
        Expr::Nested(inner) | Expr::UnaryOp { expr: inner, .. } => return cast_to(inner),
        Expr::Cast { data_type, expr, .. } => (data_type, Some(expr)),
        Expr::TypedString(typed) => (&typed.data_type, None),
        _ => return None,
    };
    let keeps = matches!(
        data_type,
        DataType::Numeric(_)
            | DataType::Decimal(_)
            | DataType::Dec(_)
            | DataType::Char(_)
            | DataType::Character(_)
            | DataType::Varchar(_)
            | DataType::CharVarying(_)
            | DataType::CharacterVarying(_)
            | DataType::Custom(..)
    );
    if keeps { Some(data_type) } else { cast_to(inner?) }
}

/// Whether the values of a column are cast to different types, or only some are cast.
fn casts_differ(values: &Values, column: usize) -> bool {
    let mut casts = values.rows.iter().map(|row| cast_to(&row.content[column]));
    let first = casts.next().flatten();
    casts.any(|cast| cast != first)
}

/// Combines all queries by UNION ALL to a tree of few levels.
fn union_all(mut arms: Vec<SetExpr>) -> Result<SetExpr, SqlError> {
    while arms.len() > 1 {
        let mut rest = arms.into_iter();
        let mut pairs = Vec::with_capacity(rest.len().div_ceil(2));
        while let Some(left) = rest.next() {
            pairs.push(match rest.next() {
                Some(right) => SetExpr::SetOperation {
                    op: SetOperator::Union,
                    set_quantifier: SetQuantifier::All,
                    left: Box::new(left),
                    right: Box::new(right),
                },
                None => left,
            });
        }
        arms = pairs;
    }
    arms.pop().ok_or_else(|| SqlError::internal("a UNION of nothing"))
}

/// The value of a correlated subquery without aggregates, whose names are resolved. DataFusion joins only aggregates.
///
/// All values for an outer row are collected below the join, and the check for a second value comes above it: below, it
/// would also fail for keys that no outer row has. A subquery without FROM becomes its item, or the only element of the
/// array that it unnests. `None` for other forms.
pub(super) fn single_value(query: &Query, name: &str, aggregates: &HashSet<String>) -> Option<Expr> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let [SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }] = select.projection.as_slice()
    else {
        return None;
    };
    if !is_plain(select) || query.fetch.is_some() || is_aggregate_expression(value, aggregates) {
        return None;
    }
    let is_distinct = matches!(select.distinct, Some(Distinct::Distinct));
    let is_first = is_first_only(query.limit_clause.as_ref())?;
    if select.from.is_empty() && select.selection.is_none() && !is_first {
        return match unnested(value) {
            Some(array) if is_distinct => Some(call(SINGLE_VALUE, vec![call("array_distinct", vec![array.clone()])])),
            Some(array) => Some(call(SINGLE_VALUE, vec![array.clone()])),
            None if makes_rows(value) => None,
            None => Some(Expr::Nested(Box::new(value.clone()))),
        };
    }
    if is_first && is_distinct || makes_rows(value) {
        return None;
    }
    let mut collected = function(if is_first { "first_value" } else { "array_agg" }, vec![value.clone()]);
    if let FunctionArguments::List(list) = &mut collected.args {
        list.duplicate_treatment = is_distinct.then_some(DuplicateTreatment::Distinct);
        if is_first && let Some(order) = &query.order_by {
            let OrderByKind::Expressions(by) = &order.kind else { return None };
            let by = by.iter().map(|by| OrderByExpr { expr: by_value(&by.expr, value), ..by.clone() }).collect();
            list.clauses = vec![FunctionArgumentClause::OrderBy(by)];
        }
    }
    let mut query = query.clone();
    (query.order_by, query.limit_clause) = (None, None);
    if let SetExpr::Select(select) = query.body.as_mut() {
        select.distinct = None;
        let (expr, alias) = (Expr::Function(collected), Ident::with_quote('"', name));
        select.projection = vec![SelectItem::ExprWithAlias { expr, alias }];
    }
    let subquery = Expr::Subquery(Box::new(query));
    Some(if is_first { subquery } else { call(SINGLE_VALUE, vec![subquery]) })
}

/// The array of `unnest(array)`.
fn unnested(expr: &Expr) -> Option<&Expr> {
    let Expr::Function(function) = expr else { return None };
    built_in_name(function).filter(|name| fold(name) == "unnest")?;
    match &function.args {
        FunctionArguments::List(list) => match list.args.as_slice() {
            [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] => Some(array),
            _ => None,
        },
        _ => None,
    }
}

/// Whether an item of a query's SELECT may make several rows.
pub(super) fn unnests(query: &Query) -> bool {
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    select.projection.iter().any(|item| match item {
        SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } => makes_rows(value),
        _ => false,
    })
}

fn makes_rows(value: &Expr) -> bool {
    walk::exists_outside_queries(value, |expr| unnested(expr).is_some())
}

/// Whether a SELECT has only items, FROM, WHERE and DISTINCT.
pub(super) fn is_plain(select: &Select) -> bool {
    let is_ungrouped = matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty());
    let is_on = matches!(select.distinct, Some(Distinct::On(_)));
    is_ungrouped && !is_on && select.having.is_none() && select.qualify.is_none() && select.into.is_none()
}

/// Whether the limit is the first row; `None` for other limits.
fn is_first_only(limit: Option<&LimitClause>) -> Option<bool> {
    match limit {
        None => Some(false),
        Some(LimitClause::LimitOffset { limit: Some(Expr::Value(limit)), offset: None, limit_by }) => {
            let is_one = matches!(&limit.value, Value::Number(text, _) if text == "1");
            (is_one && limit_by.is_empty()).then_some(true)
        }
        Some(_) => None,
    }
}

/// The sort expression of an item of ORDER BY, in which a number refers to the only item.
fn by_value(by: &Expr, value: &Expr) -> Expr {
    match by {
        Expr::Value(number) if matches!(number.value, Value::Number(..)) => value.clone(),
        other => other.clone(),
    }
}

/// The expression of a SELECT item, unless it is a `*`.
pub(super) fn item_value(item: &SelectItem) -> Option<&Expr> {
    match item {
        SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } => Some(value),
        _ => None,
    }
}

/// Whether an expression calls an aggregate or a window function.
pub(super) fn is_aggregate_expression(expr: &Expr, aggregates: &HashSet<String>) -> bool {
    walk::exists_outside_queries(expr, |expr| match expr {
        Expr::Function(function) => function.over.is_some() || is_aggregate(function, aggregates),
        _ => false,
    })
}

/// Whether a function has the name of an aggregate.
pub(super) fn is_aggregate(function: &Function, aggregates: &HashSet<String>) -> bool {
    let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold);
    name.is_some_and(|name| aggregates.contains(&name))
}
