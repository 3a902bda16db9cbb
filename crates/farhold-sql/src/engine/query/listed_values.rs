//! Columns of VALUES lists. The planner (DataFusion 55) finds no common type of an untyped string literal and a date, timestamp,
//! interval or boolean, and rounds one beside decimals to their scale. Where the syntax of all values of a column shows their
//! types, they are cast here; a column with others is decided when the planner knows them ([`listed`](super::listed)).

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType as SqlType, Expr, Ident, Parens, Query, SetExpr, TimezoneInfo, TypedString, UnaryOperator,
    Value, ValueWithSpan, Values, VisitorMut,
};

use super::assigned::is_assigned;
use super::listed::listed;
use crate::engine::ColumnType;
use crate::engine::parse::{parse_expr, unnested};
use crate::engine::types::from_sql;
use crate::value::{Zone, exact_decimal, format_datum};

/// See the module.
pub(super) struct ListedValues;

impl VisitorMut for ListedValues {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        each_list(&mut query.body, &mut in_values);
        ControlFlow::Continue(())
    }
}

/// Applies `change` to each VALUES list of a body, but not to parenthesised queries, which are visited separately.
#[recursive::recursive]
fn each_list(body: &mut SetExpr, change: &mut dyn FnMut(&mut Values)) {
    match body {
        SetExpr::Values(values) => change(values),
        SetExpr::SetOperation { left, right, .. } => {
            each_list(left, change);
            each_list(right, change);
        }
        _ => {}
    }
}

fn in_values(values: &mut Values) {
    let width = values.rows.first().map_or(0, |row| row.content.len());
    let is_list = values.rows.len() > 1;
    for column in 0..width {
        let is_computed = |row: &Parens<Vec<Expr>>| row.content.get(column).is_some_and(|item| !is_plain(item));
        if is_list && values.rows.iter().any(is_computed) {
            for item in values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)) {
                *item = listed(std::mem::replace(item, Expr::value(Value::Null)));
            }
            continue;
        }
        let floats = values.rows.iter().filter_map(|row| float_of(row.content.get(column)?));
        if let Some(float) = floats.max_by_key(|of| matches!(of, SqlType::DoublePrecision)) {
            for expr in values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)) {
                become_type(expr, &float);
            }
            continue;
        }
        if values.rows.iter().filter_map(|row| row.content.get(column)).any(is_decimal) {
            values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)).for_each(become_decimal);
            continue;
        }
        if is_first_char(values.rows.iter().filter_map(|row| row.content.get(column))) {
            values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)).for_each(become_char);
            continue;
        }
        let moments = values.rows.iter().filter_map(|row| moment_of(row.content.get(column)?));
        if moments.max() == Some(Moment::Timestamptz) {
            // The planner would convert dates and timestamps in UTC, or leave the others without a time zone.
            let with_zone = SqlType::Timestamp(None, TimezoneInfo::WithTimeZone);
            for expr in values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)) {
                become_type(expr, &with_zone);
            }
            continue;
        }
        let types = values.rows.iter().filter_map(|row| type_of(row.content.get(column)?));
        // A date becomes a timestamp if the column also has timestamps.
        let Some(data_type) = types.max_by_key(|of| from_sql(of) == Ok(ColumnType::Timestamp)) else { continue };
        for expr in values.rows.iter_mut().filter_map(|row| row.content.get_mut(column)) {
            if is_untyped_literal(expr) {
                become_type(expr, &data_type);
            }
        }
    }
}

/// Whether the type of an expression is known by its syntax, or assigned.
fn is_plain(expr: &Expr) -> bool {
    match unnested(expr) {
        Expr::Value(_) => !is_parameter(expr),
        // The planner sees a parameter of a stated type as a VARCHAR or CHAR.
        Expr::Cast { expr, data_type, .. } => {
            !(is_parameter(expr) && from_sql(data_type).is_ok_and(ColumnType::is_text))
        }
        Expr::TypedString(_) | Expr::Interval(_) => true,
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => is_plain(expr),
        Expr::Function(call) => is_assigned(call),
        _ => false,
    }
}

/// Whether it is a parameter, or casts of one.
fn is_parameter(expr: &Expr) -> bool {
    match unnested(expr) {
        Expr::Value(value) => matches!(value.value, Value::Placeholder(_)),
        Expr::Cast { expr, .. } => is_parameter(expr),
        _ => false,
    }
}

fn become_type(expr: &mut Expr, data_type: &SqlType) {
    let inner = Box::new(std::mem::replace(expr, Expr::value(Value::Null)));
    let data_type = data_type.clone();
    *expr = Expr::Cast { kind: CastKind::Cast, expr: inner, data_type, array: false, format: None };
}

/// The floating-point type of an expression.
fn float_of(expr: &Expr) -> Option<SqlType> {
    let named = match unnested(expr) {
        Expr::UnaryOp { expr, .. } => return float_of(expr),
        Expr::Cast { data_type, array: false, .. } => data_type,
        Expr::TypedString(typed) => &typed.data_type,
        _ => return None,
    };
    match from_sql(named) {
        Ok(ColumnType::Real) => Some(SqlType::Real),
        Ok(ColumnType::Double) => Some(SqlType::DoublePrecision),
        _ => None,
    }
}

/// A type of dates or timestamps. Where several are in a column, the greatest is its type.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Date,
    Timestamp,
    Timestamptz,
}

/// The type of a date or timestamp.
fn moment_of(expr: &Expr) -> Option<Moment> {
    let (Expr::Cast { data_type, array: false, .. } | Expr::TypedString(TypedString { data_type, .. })) =
        unnested(expr)
    else {
        return None;
    };
    match from_sql(data_type).ok()? {
        ColumnType::Date => Some(Moment::Date),
        ColumnType::Timestamp => Some(Moment::Timestamp),
        ColumnType::Timestamptz => Some(Moment::Timestamptz),
        _ => None,
    }
}

/// Whether an expression is a decimal.
fn is_decimal(expr: &Expr) -> bool {
    match unnested(expr) {
        Expr::Value(value) => matches!(&value.value, Value::Number(digits, _) if digits.contains(['.', 'e', 'E'])),
        Expr::UnaryOp { expr, .. } => is_decimal(expr),
        Expr::Cast { data_type, array: false, .. } => {
            matches!(data_type, SqlType::Numeric(_) | SqlType::Decimal(_) | SqlType::Dec(_))
        }
        _ => false,
    }
}

/// An untyped string literal becomes the number that it contains. For other strings the planner reports an error.
fn become_decimal(expr: &mut Expr) {
    let Expr::Value(value) = unnested(expr) else { return };
    let Value::SingleQuotedString(text) = &value.value else { return };
    let number = exact_decimal(text.trim()).and_then(|number| format_datum(&number, Zone::UTC));
    if let Some(number) = number.and_then(|number| parse_expr(&number).ok()) {
        *expr = number;
    }
}

/// Whether the first typed value of a column is a CHAR: then the others become one.
fn is_first_char<'a>(mut column: impl Iterator<Item = &'a Expr>) -> bool {
    column.find(|expr| !is_untyped(expr)).is_some_and(is_char)
}

fn is_char(expr: &Expr) -> bool {
    match unnested(expr) {
        Expr::Cast { data_type, array: false, .. } => matches!(from_sql(data_type), Ok(ColumnType::Char(_))),
        _ => false,
    }
}

/// A text as a CHAR without a length.
fn become_char(expr: &mut Expr) {
    match expr {
        Expr::Nested(inner) => become_char(inner),
        Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), .. }) => {
            text.truncate(text.trim_end_matches(' ').len());
        }
        expr if is_untyped(expr) || is_char(expr) => {}
        expr => become_type(expr, &SqlType::Custom(vec![Ident::new("bpchar")].into(), Vec::new())),
    }
}

/// Whether an expression has no type of its own: an untyped string literal, NULL.
fn is_untyped(expr: &Expr) -> bool {
    is_untyped_literal(expr) || matches!(unnested(expr), Expr::Value(value) if value.value == Value::Null)
}

fn is_untyped_literal(expr: &Expr) -> bool {
    matches!(unnested(expr), Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)))
}

/// The type of an expression, judged by its syntax, if the planner accepts no string beside it.
fn type_of(expr: &Expr) -> Option<SqlType> {
    let named = match unnested(expr) {
        Expr::Cast { data_type, array: false, .. } => data_type,
        Expr::TypedString(typed) => &typed.data_type,
        Expr::Interval(_) => return Some(SqlType::Interval { fields: None, precision: None }),
        Expr::Value(value) if matches!(value.value, Value::Boolean(_)) => return Some(SqlType::Boolean),
        _ => return None,
    };
    let is_taken = matches!(
        named,
        SqlType::Date | SqlType::Timestamp(..) | SqlType::Interval { .. } | SqlType::Boolean | SqlType::Bool
    );
    is_taken.then(|| named.clone())
}
