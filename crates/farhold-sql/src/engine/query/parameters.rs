//! `$1`, `$2`, … in queries that take a planner: how many, of what types, and their values.

use std::ops::ControlFlow;

use datafusion::common::{ParamValues, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator, CharacterLength, ExactNumberInfo, Expr, LimitClause, Query, TimezoneInfo, Value, Visitor,
};

use crate::SqlError;
use crate::engine::scalar::parameter_index;
use crate::engine::types::{from_arrow, from_sql};
use crate::engine::{ColumnType, error, walk};

/// The highest parameter of a statement.
pub(super) fn count(statement: &ast::Statement) -> usize {
    struct Highest(usize);
    impl Visitor for Highest {
        type Break = ();

        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            if let Some(index) = placeholder(expression) {
                self.0 = self.0.max(index + 1);
            }
            ControlFlow::Continue(())
        }
    }
    let mut highest = Highest(0);
    let _ = walk::visit(statement, &mut highest);
    highest.0
}

fn placeholder(expression: &Expr) -> Option<usize> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Placeholder(text) => parameter_index(text).ok(),
            _ => None,
        },
        Expr::Nested(inner) => placeholder(inner),
        _ => None,
    }
}

/// Takes the types that the planner has found.
pub(super) fn infer(plan: &LogicalPlan, types: &mut [Option<ColumnType>]) {
    let Ok(found) = plan.get_parameter_types() else { return };
    for (name, data_type) in found {
        let Ok(index) = parameter_index(&name) else { continue };
        if let (Some(slot @ None), Some(data_type)) = (types.get_mut(index), data_type) {
            *slot = from_arrow(&data_type);
        }
    }
}

/// Finds types by where a parameter stands: `CAST($1 AS t)`, LIMIT, LIKE, beside a literal.
pub(super) fn infer_by_syntax(statement: &ast::Statement, types: &mut [Option<ColumnType>]) {
    let mut finder = Finder { types };
    let _ = walk::visit(statement, &mut finder);
}

struct Finder<'a> {
    types: &'a mut [Option<ColumnType>],
}

impl Finder<'_> {
    fn found(&mut self, expression: &Expr, data_type: ColumnType) {
        if let Some(slot @ None) = placeholder(expression).and_then(|i| self.types.get_mut(i)) {
            *slot = Some(data_type);
        }
    }
}

fn literal_type(expression: &Expr) -> Option<ColumnType> {
    match expression {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) if text.contains(['.', 'e', 'E']) => {
                Some(ColumnType::Decimal { precision: 38, scale: 16 })
            }
            Value::Number(..) => Some(ColumnType::BigInt),
            Value::Boolean(_) => Some(ColumnType::Boolean),
            _ => None,
        },
        Expr::Cast { data_type, .. } => from_sql(data_type).ok(),
        Expr::TypedString(typed) => from_sql(&typed.data_type).ok(),
        _ => None,
    }
}

impl Visitor for Finder<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause {
            for expression in limit.iter().chain(offset.as_ref().map(|o| &o.value)) {
                self.found(expression, ColumnType::BigInt);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        match expression {
            Expr::Cast { expr, data_type, .. } => {
                if let Ok(data_type) = from_sql(data_type) {
                    self.found(expr, data_type);
                }
            }
            Expr::Like { expr, pattern, .. } | Expr::ILike { expr, pattern, .. } => {
                self.found(expr, ColumnType::Text);
                self.found(pattern, ColumnType::Text);
            }
            Expr::BinaryOp { left, op, right } => {
                if matches!(op, BinaryOperator::And | BinaryOperator::Or) {
                    self.found(left, ColumnType::Boolean);
                    self.found(right, ColumnType::Boolean);
                } else {
                    if let Some(t) = literal_type(right) {
                        self.found(left, t);
                    }
                    if let Some(t) = literal_type(left) {
                        self.found(right, t);
                    }
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// A type's name for the planner.
pub(crate) fn to_sql(data_type: ColumnType) -> ast::DataType {
    use ast::DataType as T;
    match data_type {
        ColumnType::Boolean => T::Boolean,
        ColumnType::SmallInt => T::SmallInt(None),
        ColumnType::Int => T::Int(None),
        ColumnType::BigInt => T::BigInt(None),
        ColumnType::Real => T::Real,
        ColumnType::Double => T::DoublePrecision,
        ColumnType::Decimal { precision, scale } => {
            T::Numeric(ExactNumberInfo::PrecisionAndScale(u64::from(precision), i64::from(scale)))
        }
        ColumnType::Char(_) | ColumnType::Varchar(_) => T::Varchar(None::<CharacterLength>),
        ColumnType::Text => T::Text,
        ColumnType::Bytea => T::Bytea,
        ColumnType::Date => T::Date,
        ColumnType::Timestamp => T::Timestamp(Some(6), TimezoneInfo::None),
    }
}

/// Puts values in the place of parameters.
pub(super) fn put_in(plan: LogicalPlan, values: Vec<ScalarValue>) -> Result<LogicalPlan, SqlError> {
    let values = ParamValues::from(values);
    plan.replace_params_with_values(&values).map_err(|e| error::from_datafusion(&e))
}
