//! The names of select items without an alias.

use datafusion::sql::sqlparser::ast::{self, Expr, ObjectNamePart, SelectItem, SetExpr};

use crate::engine::scalar::fold;
use crate::engine::types::from_sql;
use crate::engine::{ColumnType, OPERATOR_PREFIX};

/// PostgreSQL's name for an item without an alias.
pub(crate) fn output_name(expression: &Expr) -> String {
    match expression {
        Expr::Identifier(ident) => fold(ident),
        Expr::CompoundIdentifier(parts) => parts.last().map_or_else(|| "?column?".to_owned(), fold),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let field = access_chain.iter().rev().find_map(|access| match access {
                ast::AccessExpr::Dot(Expr::Identifier(field)) => Some(fold(field)),
                _ => None,
            });
            field.unwrap_or_else(|| output_name(root))
        }
        Expr::Function(function) => match function.name.0.last() {
            Some(ObjectNamePart::Identifier(ident)) if !ident.value.starts_with(OPERATOR_PREFIX) => fold(ident),
            _ => "?column?".to_owned(),
        },
        Expr::Case { else_result: Some(e), .. } if matches!(e.as_ref(), Expr::Identifier(_)) => output_name(e),
        Expr::Case { .. } => "case".to_owned(),
        Expr::Nested(inner) => output_name(inner),
        Expr::Cast { expr, data_type, .. } => match output_name(expr) {
            name if name != "?column?" => name,
            _ => from_sql(data_type).map_or_else(|_| "?column?".to_owned(), type_name),
        },
        Expr::TypedString(typed) => from_sql(&typed.data_type).map_or_else(|_| "?column?".to_owned(), type_name),
        Expr::Value(value) if matches!(value.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        Expr::Exists { .. } => "exists".to_owned(),
        Expr::Substring { shorthand: true, .. } => "substr".to_owned(),
        Expr::Substring { .. } => "substring".to_owned(),
        Expr::Extract { .. } => "extract".to_owned(),
        Expr::AtTimeZone { .. } => "timezone".to_owned(),
        Expr::Subquery(query) => match query.body.as_ref() {
            SetExpr::Select(select) => match select.projection.as_slice() {
                [SelectItem::UnnamedExpr(e)] => output_name(e),
                [SelectItem::ExprWithAlias { alias, .. }] => fold(alias),
                _ => "?column?".to_owned(),
            },
            _ => "?column?".to_owned(),
        },
        _ => "?column?".to_owned(),
    }
}

/// PostgreSQL's internal name of a type.
fn type_name(data_type: ColumnType) -> String {
    match data_type {
        ColumnType::Boolean => "bool",
        ColumnType::SmallInt => "int2",
        ColumnType::Int => "int4",
        ColumnType::BigInt => "int8",
        ColumnType::Real => "float4",
        ColumnType::Double => "float8",
        ColumnType::Decimal { .. } => "numeric",
        ColumnType::Char(_) => "bpchar",
        ColumnType::Varchar(_) => "varchar",
        ColumnType::Text => "text",
        ColumnType::Bytea => "bytea",
        ColumnType::Date => "date",
        ColumnType::Timestamp => "timestamp",
        ColumnType::Timestamptz => "timestamptz",
    }
    .to_owned()
}
