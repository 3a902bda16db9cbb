//! Evaluates a bound expression on one row.

use std::cmp::Ordering;

use super::like::like;
use super::{Function, Parameters, Scalar, wall_clock_us};
use crate::engine::types::{cast, instant_of, local_of};
use crate::engine::{ColumnType, Datum};
use crate::value::{Zone, date_in_range, round_timestamp};
use crate::{SqlError, SqlState};

impl Scalar {
    /// The expression's value on `row`.
    #[recursive::recursive]
    pub(crate) fn evaluate(&self, row: &[Datum], parameters: Parameters<'_>) -> Result<Datum, SqlError> {
        let eval = |scalar: &Self| scalar.evaluate(row, parameters);
        let zone = parameters.zone;
        Ok(match self {
            Self::Literal(datum) => datum.clone(),
            Self::Parameter(index) => parameters.values.get(*index).cloned().ok_or_else(|| {
                SqlError::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${}", index + 1))
            })?,
            Self::Column(index) => row[*index].clone(),
            Self::Negate(inner) => negate(eval(inner)?)?,
            Self::Arithmetic(op, data_type, a, b) => {
                let (a, b) = (eval(a)?, eval(b)?);
                if a.is_null() || b.is_null() {
                    return Ok(Datum::Null);
                }
                op.apply(&widen(a, *data_type)?, &widen(b, *data_type)?)?
            }
            Self::DatePlusDays(date, days) => match (eval(date)?, cast(eval(days)?, ColumnType::Int, zone)?) {
                // An infinite date stays the same.
                (date @ Datum::Date(i32::MIN | i32::MAX), Datum::Int(_)) => date,
                (Datum::Date(date), Datum::Int(days)) => Datum::Date(
                    date.checked_add(days)
                        .and_then(date_in_range)
                        .ok_or_else(|| SqlError::new(SqlState::DATETIME_OVERFLOW, "date out of range"))?,
                ),
                _ => Datum::Null,
            },
            Self::DateMinusDate(a, b) => match (eval(a)?, eval(b)?) {
                (Datum::Date(i32::MIN | i32::MAX), Datum::Date(_))
                | (Datum::Date(_), Datum::Date(i32::MIN | i32::MAX)) => {
                    return Err(SqlError::new(SqlState::DATETIME_OVERFLOW, "cannot subtract infinite dates"));
                }
                (Datum::Date(a), Datum::Date(b)) => Datum::Int(a.wrapping_sub(b)),
                _ => Datum::Null,
            },
            Self::Compare(comparison, a, b) => {
                order(&eval(a)?, &eval(b)?)?.map_or(Datum::Null, |order| Datum::Boolean(comparison.holds(order)))
            }
            Self::DistinctFrom(a, b) => {
                let (a, b) = (eval(a)?, eval(b)?);
                Datum::Boolean(match order(&a, &b)? {
                    Some(order) => order.is_ne(),
                    None => a.is_null() != b.is_null(),
                })
            }
            Self::And(a, b) => match (eval(a)?, b) {
                (Datum::Boolean(false), _) => Datum::Boolean(false),
                (a, b) => match (a, eval(b)?) {
                    (_, Datum::Boolean(false)) => Datum::Boolean(false),
                    (Datum::Boolean(true), b) => b,
                    _ => Datum::Null,
                },
            },
            Self::Or(a, b) => match (eval(a)?, b) {
                (Datum::Boolean(true), _) => Datum::Boolean(true),
                (a, b) => match (a, eval(b)?) {
                    (_, Datum::Boolean(true)) => Datum::Boolean(true),
                    (Datum::Boolean(false), b) => b,
                    _ => Datum::Null,
                },
            },
            Self::Not(inner) => match eval(inner)? {
                Datum::Boolean(v) => Datum::Boolean(!v),
                _ => Datum::Null,
            },
            Self::IsNull(inner) => Datum::Boolean(eval(inner)?.is_null()),
            Self::IsBoolean(inner, wanted) => Datum::Boolean(eval(inner)? == Datum::Boolean(*wanted)),
            Self::InList(needle, list) => {
                let needle = eval(needle)?;
                let mut unknown = needle.is_null() && !list.is_empty();
                for item in list {
                    match order(&needle, &eval(item)?)? {
                        Some(Ordering::Equal) => return Ok(Datum::Boolean(true)),
                        Some(_) => {}
                        None => unknown = true,
                    }
                }
                if unknown { Datum::Null } else { Datum::Boolean(false) }
            }
            Self::Like { text, pattern, any_case, escape } => match (eval(text)?, eval(pattern)?) {
                (Datum::Text(text), Datum::Text(pattern)) => Datum::Boolean(like(&text, &pattern, *any_case, *escape)?),
                _ => Datum::Null,
            },
            Self::Cast { inner, to, cut } => {
                let datum = cast(eval(inner)?, *to, zone)?;
                if *cut { cut_to(datum, *to) } else { datum }
            }
            Self::Case(whens, otherwise) => {
                for (condition, result) in whens {
                    if eval(condition)? == Datum::Boolean(true) {
                        return eval(result);
                    }
                }
                eval(otherwise)?
            }
            Self::Coalesce(list) => {
                for item in list {
                    let datum = eval(item)?;
                    if !datum.is_null() {
                        return Ok(datum);
                    }
                }
                Datum::Null
            }
            Self::NullIf(a, b) => {
                let (a, b) = (eval(a)?, eval(b)?);
                if order(&a, &b)? == Some(Ordering::Equal) { Datum::Null } else { a }
            }
            Self::Call(Function::TransactionTime, _) => Datum::Timestamptz(parameters.times.transaction_us),
            Self::Call(Function::StatementTime, _) => Datum::Timestamptz(parameters.times.statement_us),
            Self::Call(Function::ClockTime, _) => Datum::Timestamptz(wall_clock_us()),
            Self::Call(function, arguments) => {
                let arguments = arguments.iter().map(eval).collect::<Result<Vec<_>, _>>()?;
                call(*function, arguments, zone)?
            }
            Self::Sequence(call, _) => return Err(crate::engine::sequence::out_of_place(*call)),
        })
    }

    /// Whether the expression is true on `row`, as in a WHERE clause.
    pub(crate) fn holds(&self, row: &[Datum], parameters: Parameters<'_>) -> Result<bool, SqlError> {
        Ok(self.evaluate(row, parameters)? == Datum::Boolean(true))
    }
}

/// Converts a number for arithmetic; a decimal keeps its own scale.
fn widen(datum: Datum, data_type: ColumnType) -> Result<Datum, SqlError> {
    match (data_type, datum) {
        (ColumnType::Decimal { .. }, d @ Datum::Decimal { .. }) => Ok(d),
        (ColumnType::Decimal { .. }, d) => cast(d, ColumnType::Decimal { precision: 38, scale: 0 }, Zone::UTC),
        (data_type, d) => cast(d, data_type, Zone::UTC),
    }
}

/// The order of two values whose types the binder has made comparable; `None` if one is NULL.
fn order(a: &Datum, b: &Datum) -> Result<Option<Ordering>, SqlError> {
    if a.is_null() || b.is_null() {
        return Ok(None);
    }
    a.compare(b).map(Some).ok_or_else(|| {
        SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: {} = {}", a.kind(), b.kind()))
    })
}

fn negate(datum: Datum) -> Result<Datum, SqlError> {
    let range = |name: &str| SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{name} out of range"));
    Ok(match datum {
        Datum::SmallInt(v) => Datum::SmallInt(v.checked_neg().ok_or_else(|| range("smallint"))?),
        Datum::Int(v) => Datum::Int(v.checked_neg().ok_or_else(|| range("integer"))?),
        Datum::BigInt(v) => Datum::BigInt(v.checked_neg().ok_or_else(|| range("bigint"))?),
        Datum::Real(v) => Datum::Real(-v),
        Datum::Double(v) => Datum::Double(-v),
        Datum::Decimal { unscaled, scale } => Datum::Decimal { unscaled: -unscaled, scale },
        Datum::Null => Datum::Null,
        other => {
            let message = format!("operator does not exist: - {}", other.kind());
            return Err(SqlError::new(SqlState::UNDEFINED_FUNCTION, message));
        }
    })
}

/// A string cut to the length of its type.
pub(crate) fn cut_to(datum: Datum, to: ColumnType) -> Datum {
    match (to, datum) {
        (ColumnType::Char(n) | ColumnType::Varchar(n), Datum::Text(mut text)) => {
            if let Some((at, _)) = text.char_indices().nth(n as usize) {
                text.truncate(at);
            }
            if matches!(to, ColumnType::Char(_)) {
                text.truncate(text.trim_end_matches(' ').len());
            }
            Datum::Text(text)
        }
        (_, datum) => datum,
    }
}

fn call(function: Function, arguments: Vec<Datum>, zone: Zone) -> Result<Datum, SqlError> {
    let best = |wanted: Ordering| -> Result<Datum, SqlError> {
        let mut best = Datum::Null;
        for datum in &arguments {
            if best.is_null() || order(datum, &best)? == Some(wanted) {
                best = datum.clone();
            }
        }
        Ok(best)
    };
    Ok(match (function, arguments.first()) {
        (Function::Greatest, _) => best(Ordering::Greater)?,
        (Function::Least, _) => best(Ordering::Less)?,
        (Function::Concat, _) => {
            let mut text = String::new();
            for datum in arguments {
                match cast(datum, ColumnType::Text, zone)? {
                    Datum::Text(part) => text.push_str(&part),
                    _ => return Ok(Datum::Null),
                }
            }
            Datum::Text(text)
        }
        (Function::TimestampDigits(digits), Some(Datum::Timestamp(moment))) => {
            Datum::Timestamp(round_timestamp(*moment, digits))
        }
        (Function::TimestampDigits(digits), Some(Datum::Timestamptz(moment))) => {
            Datum::Timestamptz(round_timestamp(*moment, digits))
        }
        (Function::AtZone, _) => match arguments.as_slice() {
            [Datum::Text(zone), Datum::Timestamptz(instant)] => {
                Datum::Timestamp(local_of(*instant, Zone::of_text(zone)?)?)
            }
            [Datum::Text(zone), Datum::Timestamp(local)] => {
                Datum::Timestamptz(instant_of(*local, Zone::of_text(zone)?)?)
            }
            _ => Datum::Null,
        },
        (Function::Lower, Some(Datum::Text(text))) => Datum::Text(super::lower(text)),
        (Function::Upper, Some(Datum::Text(text))) => Datum::Text(super::upper(text)),
        (Function::Length, Some(Datum::Text(text))) => {
            Datum::Int(i32::try_from(text.chars().count()).unwrap_or(i32::MAX))
        }
        (Function::Abs, Some(datum)) => match datum {
            Datum::SmallInt(v) if *v < 0 => negate(datum.clone())?,
            Datum::Int(v) if *v < 0 => negate(datum.clone())?,
            Datum::BigInt(v) if *v < 0 => negate(datum.clone())?,
            Datum::Decimal { unscaled, .. } if *unscaled < 0 => negate(datum.clone())?,
            Datum::Real(v) => Datum::Real(v.abs()),
            Datum::Double(v) => Datum::Double(v.abs()),
            other => other.clone(),
        },
        _ => Datum::Null,
    })
}
