//! Binds a parsed expression to a [`Scalar`]: resolves names to columns, and types as PostgreSQL does.

mod functions;
mod operators;
mod types;

use datafusion::sql::sqlparser::ast::{CastKind, Expr, Ident, Value};

use super::{Comparison, Scalar};
use crate::engine::types::from_sql;
use crate::engine::{ColumnType, Datum};
use crate::value::{Zone, exact_decimal, parse_datum};
use crate::{SqlError, SqlState};
use functions::is_session_word;
use operators::{boolean, not_if};
use types::{fold_cast, with_digits};

pub(crate) use functions::{built_in_name, without_regclass};
pub(crate) use types::{assignable, is_kept_by_null_if, same_kind};

/// Why an expression was not bound.
#[derive(Debug)]
pub(crate) enum BindError {
    /// It may be correct, but needs the planner.
    Complex,
    /// It is incorrect.
    Wrong(SqlError),
}

impl From<SqlError> for BindError {
    fn from(error: SqlError) -> Self {
        Self::Wrong(error)
    }
}

/// A bound expression and its type; `None` for NULL, an untyped string literal, or a parameter of unknown type.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    pub(crate) scalar: Scalar,
    pub(crate) data_type: Option<ColumnType>,
}

/// A column to which expressions may refer.
#[derive(Clone, Debug)]
pub(crate) struct ColumnRef {
    /// The table's name or alias.
    pub(crate) qualifier: String,
    pub(crate) name: String,
    pub(crate) data_type: ColumnType,
}

/// The columns in scope, and the known types of parameters.
pub(crate) struct Binder<'a> {
    /// The row's columns: [`Scalar::Column`] is an index into them.
    pub(crate) columns: &'a [ColumnRef],
    /// Types of `$1`, `$2`, …; extended during binding.
    pub(crate) parameters: &'a mut Vec<Option<ColumnType>>,
    /// The session's time zone.
    pub(crate) zone: Zone,
    /// Whether what is bound is kept for sessions of all time zones, so that this one decides no more than what literals mean.
    pub(crate) is_kept: bool,
}

/// An identifier as the catalog has it: folded to lower case unless quoted.
pub(crate) fn fold(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

type Result<T> = std::result::Result<T, BindError>;

impl Binder<'_> {
    /// Binds `expression` and converts it to the type `to`, as in an assignment to a column.
    pub(crate) fn bind_to(&mut self, expression: &Expr, to: ColumnType) -> Result<Scalar> {
        let bound = self.bind(expression)?;
        self.assign(bound, to)
    }

    /// Converts `bound` to the type `to`, as in an assignment.
    pub(crate) fn assign(&mut self, bound: Bound, to: ColumnType) -> Result<Scalar> {
        match bound.data_type {
            None => self.stored(bound.scalar, to),
            Some(from) if same_kind(from, to) => Ok(bound.scalar),
            Some(from) if !assignable(from, to) => Err(BindError::Wrong(SqlError::new(
                SqlState::DATATYPE_MISMATCH,
                format!("a value of type {from} cannot be assigned to a column of type {to}"),
            ))),
            Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to, cut: false }),
        }
    }

    /// Binds a condition.
    pub(crate) fn bind_condition(&mut self, expression: &Expr) -> Result<Scalar> {
        let bound = self.bind(expression)?;
        self.boolean(bound, "WHERE")
    }

    /// Binds the condition of a CHECK constraint.
    pub(crate) fn bind_check(&mut self, expression: &Expr) -> Result<Scalar> {
        let bound = self.bind(expression)?;
        self.boolean(bound, "CHECK")
    }

    /// Binds an expression.
    #[recursive::recursive]
    pub(crate) fn bind(&mut self, expression: &Expr) -> Result<Bound> {
        match expression {
            Expr::Nested(inner) => self.bind(inner),
            Expr::Identifier(name) if name.quote_style.is_none() && is_session_word(&name.value) => {
                Err(BindError::Complex)
            }
            Expr::Identifier(name) => self.column(None, name),
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [qualifier, name] => self.column(Some(qualifier), name),
                [schema, qualifier, name] if fold(schema) == "public" => self.column(Some(qualifier), name),
                _ => Err(BindError::Complex),
            },
            Expr::Value(value) => self.value(&value.value),
            Expr::TypedString(typed) => {
                let to = from_sql(&typed.data_type).map_err(|_| BindError::Complex)?;
                match &typed.value.value {
                    Value::SingleQuotedString(text) => {
                        let literal = self.stored(Scalar::Literal(Datum::Text(text.clone())), to)?;
                        Ok(known(with_digits(fold_cast(literal, to, self.zone)?, &typed.data_type), to))
                    }
                    _ => Err(BindError::Complex),
                }
            }
            Expr::UnaryOp { op, expr } => self.unary(*op, expr),
            Expr::BinaryOp { left, op, right } => self.binary(left, op, right),
            Expr::IsNull(inner) | Expr::IsUnknown(inner) => self.is_null(inner, false),
            Expr::IsNotNull(inner) | Expr::IsNotUnknown(inner) => self.is_null(inner, true),
            Expr::IsTrue(inner) => self.is_boolean(inner, true, false),
            Expr::IsNotTrue(inner) => self.is_boolean(inner, true, true),
            Expr::IsFalse(inner) => self.is_boolean(inner, false, false),
            Expr::IsNotFalse(inner) => self.is_boolean(inner, false, true),
            Expr::IsDistinctFrom(a, b) => self.distinct(a, b, false),
            Expr::IsNotDistinctFrom(a, b) => self.distinct(a, b, true),
            Expr::Between { expr, negated, low, high } => {
                let subject = self.bind(expr)?;
                let (low, high) = (self.bind(low)?, self.bind(high)?);
                let least = self.compare(Comparison::GreaterEqual, subject.clone(), low)?;
                let most = self.compare(Comparison::LessEqual, subject, high)?;
                Ok(boolean(not_if(*negated, Scalar::And(Box::new(least), Box::new(most)))))
            }
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated),
            Expr::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like((expr, pattern), *negated, false, escape_char.as_ref())
            }
            Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like((expr, pattern), *negated, true, escape_char.as_ref())
            }
            Expr::Cast {
                kind: CastKind::Cast | CastKind::DoubleColon,
                expr,
                data_type,
                array: false,
                format: None,
            } => {
                let to = from_sql(data_type).map_err(|_| BindError::Complex)?;
                let bound = self.bind(expr)?;
                let scalar = match bound.data_type {
                    None => self.stored(bound.scalar, to)?,
                    Some(_) => bound.scalar,
                };
                Ok(known(with_digits(fold_cast(scalar, to, self.zone)?, data_type), to))
            }
            Expr::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref())
            }
            Expr::Function(function) => self.function(function),
            Expr::AtTimeZone { timestamp, time_zone } => {
                let zone = self.bind(time_zone)?;
                let moment = self.bind(timestamp)?;
                self.at_zone(zone, moment)
            }
            _ => Err(BindError::Complex),
        }
    }

    fn column(&mut self, qualifier: Option<&Ident>, name: &Ident) -> Result<Bound> {
        let (qualifier, name) = (qualifier.map(fold), fold(name));
        let mut found = self
            .columns
            .iter()
            .enumerate()
            .filter(|(_, c)| c.name == name && qualifier.as_ref().is_none_or(|q| *q == c.qualifier));
        let Some((index, column)) = found.next() else {
            let full = qualifier.as_ref().map_or_else(|| format!("\"{name}\""), |q| format!("{q}.{name}"));
            if let Some(q) = qualifier
                && !self.columns.iter().any(|c| c.qualifier == q)
            {
                let message = format!("missing FROM-clause entry for table \"{q}\"");
                return Err(SqlError::new(SqlState::UNDEFINED_TABLE, message).into());
            }
            return Err(SqlError::new(SqlState::UNDEFINED_COLUMN, format!("column {full} does not exist")).into());
        };
        if qualifier.is_none() && found.next().is_some_and(|(_, other)| other.qualifier != "excluded") {
            return Err(
                SqlError::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{name}\" is ambiguous")).into()
            );
        }
        Ok(known(Scalar::Column(index), column.data_type))
    }

    fn value(&mut self, value: &Value) -> Result<Bound> {
        Ok(match value {
            Value::Number(text, _) => number(text)?,
            Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) => {
                Bound { scalar: Scalar::Literal(Datum::Text(text.clone())), data_type: None }
            }
            Value::DollarQuotedString(text) => {
                Bound { scalar: Scalar::Literal(Datum::Text(text.value.clone())), data_type: None }
            }
            Value::Boolean(v) => boolean(Scalar::Literal(Datum::Boolean(*v))),
            Value::Null => Bound { scalar: Scalar::Literal(Datum::Null), data_type: None },
            Value::Placeholder(text) => {
                let index = parameter_index(text)?;
                if self.parameters.len() <= index {
                    self.parameters.resize(index + 1, None);
                }
                Bound { scalar: Scalar::Parameter(index), data_type: self.parameters[index] }
            }
            _ => return Err(BindError::Complex),
        })
    }

    fn boolean(&mut self, bound: Bound, place: &str) -> Result<Scalar> {
        match bound.data_type {
            Some(ColumnType::Boolean) => Ok(bound.scalar),
            None => self.resolve(bound.scalar, ColumnType::Boolean),
            Some(other) => Err(SqlError::new(
                SqlState::DATATYPE_MISMATCH,
                format!("argument of {place} must be type boolean, not type {other}"),
            )
            .into()),
        }
    }
}

/// The index of `$n`, from 0.
pub(crate) fn parameter_index(text: &str) -> std::result::Result<usize, SqlError> {
    text.strip_prefix('$')
        .and_then(|n| n.parse::<usize>().ok())
        .filter(|n| (1..=65_535).contains(n))
        .map(|n| n - 1)
        .ok_or_else(|| SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {text}")))
}

fn number(text: &str) -> Result<Bound> {
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        if let Ok(v) = text.parse::<i32>() {
            return Ok(known(Scalar::Literal(Datum::Int(v)), ColumnType::Int));
        }
        if let Ok(v) = text.parse::<i64>() {
            return Ok(known(Scalar::Literal(Datum::BigInt(v)), ColumnType::BigInt));
        }
    }
    match exact_decimal(text) {
        Some(datum @ Datum::Decimal { scale, .. }) => {
            Ok(known(Scalar::Literal(datum), ColumnType::Decimal { precision: 38, scale }))
        }
        // A number with more digits than a decimal can hold.
        _ => Ok(known(Scalar::Literal(parse_datum(text, ColumnType::Double, Zone::UTC)?), ColumnType::Double)),
    }
}

fn known(scalar: Scalar, data_type: ColumnType) -> Bound {
    Bound { scalar, data_type: Some(data_type) }
}
