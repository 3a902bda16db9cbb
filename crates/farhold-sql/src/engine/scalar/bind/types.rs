//! The common types of values.

use datafusion::sql::sqlparser::ast;

use super::super::{Function, Parameters, Scalar};
use super::{Binder, Bound, Result};
use crate::engine::types::{cast, timestamp_digits, type_of_parameter};
use crate::engine::{ColumnType, Datum};
use crate::value::{ANY_LENGTH, Zone, parse_datum, parse_stored, round_timestamp};
use crate::{SqlError, SqlState};

impl Binder<'_> {
    /// Gives an untyped expression the type `to`, by the rules of a cast or an assignment to a column.
    pub(super) fn stored(&mut self, scalar: Scalar, to: ColumnType) -> Result<Scalar> {
        match scalar {
            Scalar::Literal(Datum::Text(text)) => Ok(Scalar::Literal(parse_stored(&text, to, self.zone)?)),
            other => self.resolve(other, to),
        }
    }

    /// Gives an untyped expression the type `to`.
    pub(super) fn resolve(&mut self, scalar: Scalar, to: ColumnType) -> Result<Scalar> {
        match scalar {
            Scalar::Literal(Datum::Text(text)) => {
                let datum = parse_datum(&text, to, self.zone)?;
                Ok(Scalar::Literal(datum))
            }
            Scalar::Parameter(index) => match self.parameters[index] {
                None => {
                    self.parameters[index] = Some(type_of_parameter(to));
                    Ok(Scalar::Parameter(index))
                }
                Some(from) if same_kind(from, to) => Ok(Scalar::Parameter(index)),
                Some(_) => Ok(Scalar::Cast { inner: Box::new(Scalar::Parameter(index)), to, cut: false }),
            },
            other => Ok(other),
        }
    }

    /// Converts both sides to comparable types.
    pub(super) fn unify(&mut self, left: Bound, right: Bound) -> Result<(Scalar, Scalar)> {
        use ColumnType as T;
        let (a, b) = match (left.data_type, right.data_type) {
            (None, None) => (T::Text, T::Text),
            (Some(t), None) | (None, Some(t)) => (t, t),
            (Some(a), Some(b)) => (a, b),
        };
        let is_fixed = self.zone.is_fixed() && !self.is_kept;
        let common = match (a, b) {
            (a, b) if same_kind(a, b) && !matches!((a, b), (T::Char(_), _) | (_, T::Char(_))) => None,
            // Beside TEXT a CHAR counts as text, without trailing blanks. Beside VARCHAR the trailing blanks of the
            // VARCHAR do not count either.
            (T::Char(_), T::Char(_) | T::Text) | (T::Text, T::Char(_)) => None,
            (T::Char(_), b) if b.is_text() => Some(T::Char(ANY_LENGTH)),
            (a, T::Char(_)) if a.is_text() => Some(T::Char(ANY_LENGTH)),
            (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => Some(T::Timestamp),
            // In a zone that never changes both types have the same order, and an index of the column can be used.
            (T::Timestamp, T::Timestamptz) if is_fixed && is_column_beside_constant(&left, &right) => {
                Some(T::Timestamp)
            }
            (T::Timestamptz, T::Timestamp) if is_fixed && is_column_beside_constant(&right, &left) => {
                Some(T::Timestamp)
            }
            (T::Date | T::Timestamp, T::Timestamptz) | (T::Timestamptz, T::Date | T::Timestamp) => Some(T::Timestamptz),
            (a, b) => match common_number(a, b) {
                Some(T::Decimal { .. }) => Some(T::Decimal { precision: 38, scale: 0 }),
                Some(common) => Some(common),
                None => {
                    let message = format!("operator does not exist: {a} = {b}");
                    return Err(SqlError::new(SqlState::UNDEFINED_FUNCTION, message)
                        .with_hint("You might need to add explicit type casts.")
                        .into());
                }
            },
        };
        let zone = self.zone;
        let mut side = |bound: Bound, own: ColumnType| -> Result<Scalar> {
            let scalar = match bound.data_type {
                None => self.resolve(bound.scalar, own)?,
                Some(_) => bound.scalar,
            };
            Ok(match common {
                Some(T::Char(_)) if matches!(own, T::Char(_)) => scalar,
                Some(to @ T::Char(_)) => fold_cast(scalar, to, zone)?,
                // A decimal operand stays as it is: decimals of different scales compare.
                Some(T::Decimal { .. }) if matches!(own, T::Decimal { .. }) => scalar,
                Some(to) if !same_kind(own, to) => fold_plain_cast(scalar, to, zone)?,
                _ => scalar,
            })
        };
        Ok((side(left, a)?, side(right, b)?))
    }

    /// Converts all of `list` to one type, for CASE, COALESCE and GREATEST.
    pub(super) fn unify_all(&mut self, list: Vec<Bound>) -> Result<(Vec<Scalar>, Option<ColumnType>)> {
        let mut common: Option<ColumnType> = None;
        for data_type in list.iter().filter_map(|b| b.data_type) {
            common = Some(match common {
                None => data_type,
                Some(t) => common_type(t, data_type).ok_or_else(|| {
                    SqlError::new(SqlState::DATATYPE_MISMATCH, format!("types {t} and {data_type} cannot be matched"))
                })?,
            });
        }
        // Texts have the type of the first one; as CHARs the others lose trailing blanks.
        let is_char = matches!(list.iter().find_map(|bound| bound.data_type), Some(ColumnType::Char(_)));
        // CHAR(n) and VARCHAR(n) keep their length only if all values have the same type.
        if let Some(to) = common.filter(|to| to.is_text())
            && list.iter().any(|bound| bound.data_type != Some(to))
        {
            common = Some(if is_char { ColumnType::Char(ANY_LENGTH) } else { ColumnType::Text });
        }
        let Some(to) = common else {
            let scalars = list.into_iter().map(|b| self.resolve(b.scalar, ColumnType::Text)).collect::<Result<_>>()?;
            return Ok((scalars, Some(ColumnType::Text)));
        };
        // A decimal keeps its own scale: the type of a computed decimal does not determine it.
        let cast_to = match to {
            ColumnType::Decimal { .. } => ColumnType::Decimal { precision: 38, scale: 0 },
            other => other,
        };
        let scalars = list
            .into_iter()
            .map(|bound| match bound.data_type {
                None if is_char => self.resolve(bound.scalar, ColumnType::Char(ANY_LENGTH)),
                Some(from) if is_char && from.is_text() && !matches!(from, ColumnType::Char(_)) => {
                    fold_cast(bound.scalar, ColumnType::Char(ANY_LENGTH), self.zone)
                }
                None => self.resolve(bound.scalar, to),
                Some(from) if same_kind(from, to) => Ok(bound.scalar),
                Some(_) => Ok(Scalar::Cast { inner: Box::new(bound.scalar), to: cast_to, cut: false }),
            })
            .collect::<Result<_>>()?;
        Ok((scalars, Some(to)))
    }
}

/// Whether the first is a column and the second reads none.
fn is_column_beside_constant(column: &Bound, constant: &Bound) -> bool {
    matches!(column.scalar, Scalar::Column(_)) && constant.scalar.is_constant()
}

/// An explicit cast, evaluated at once for a literal.
pub(super) fn fold_cast(scalar: Scalar, to: ColumnType, zone: Zone) -> Result<Scalar> {
    let literal = matches!(scalar, Scalar::Literal(_));
    let cast = Scalar::Cast { inner: Box::new(scalar), to, cut: true };
    Ok(if literal { Scalar::Literal(cast.evaluate(&[], Parameters::constant(zone))?) } else { cast })
}

/// A timestamp rounded to the fractional digits that its type specifies.
pub(super) fn with_digits(scalar: Scalar, data_type: &ast::DataType) -> Scalar {
    match (timestamp_digits(data_type), scalar) {
        (None, scalar) => scalar,
        (Some(digits), Scalar::Literal(Datum::Timestamp(moment))) => {
            Scalar::Literal(Datum::Timestamp(round_timestamp(moment, digits)))
        }
        (Some(digits), Scalar::Literal(Datum::Timestamptz(moment))) => {
            Scalar::Literal(Datum::Timestamptz(round_timestamp(moment, digits)))
        }
        (Some(digits), scalar) => Scalar::Call(Function::TimestampDigits(digits), vec![scalar]),
    }
}

pub(super) fn fold_plain_cast(scalar: Scalar, to: ColumnType, zone: Zone) -> Result<Scalar> {
    Ok(match scalar {
        Scalar::Literal(datum) => Scalar::Literal(cast(datum, to, zone)?),
        other => Scalar::Cast { inner: Box::new(other), to, cut: false },
    })
}

/// The rank of a numeric type in the order of implicit casts.
pub(super) fn rank(data_type: ColumnType) -> Option<u8> {
    Some(match data_type {
        ColumnType::SmallInt => 0,
        ColumnType::Int => 1,
        ColumnType::BigInt => 2,
        ColumnType::Decimal { .. } => 3,
        ColumnType::Real => 4,
        ColumnType::Double => 5,
        _ => return None,
    })
}

/// The type to which an operator converts two numbers.
pub(super) fn common_number(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType as T;
    let wider = rank(a)? >= rank(b)?;
    Some(match (a, b) {
        (T::Decimal { scale: s, .. }, T::Decimal { scale: t, .. }) => T::Decimal { precision: 38, scale: s.max(t) },
        // PostgreSQL uses double precision for a real and an exact number.
        (T::Real, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. })
        | (T::SmallInt | T::Int | T::BigInt | T::Decimal { .. }, T::Real) => T::Double,
        _ if wider => a,
        _ => b,
    })
}

/// Whether NULLIF has the type of its first argument although that is cast for the comparison. PostgreSQL has `=`
/// operators for integers of different sizes, for REAL with DOUBLE PRECISION (to which exact numbers are cast), and for
/// DATE with TIMESTAMP, with or without time zone.
pub(crate) fn is_kept_by_null_if(first: ColumnType, second: ColumnType) -> bool {
    use ColumnType as T;
    matches!(
        (first, second),
        (T::SmallInt, T::Int | T::BigInt)
            | (T::Int, T::BigInt)
            | (T::Real, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. } | T::Double)
            | (T::Date, T::Timestamp | T::Timestamptz)
            | (T::Timestamp, T::Timestamptz)
    )
}

/// The type of NULLIF: that of the left operand of its `=` operator.
pub(super) fn type_of_null_if(types: (Option<ColumnType>, Option<ColumnType>)) -> ColumnType {
    use ColumnType as T;
    match types {
        // VARCHAR is compared as TEXT, and an untyped value has no length.
        (Some(T::Varchar(_)), _) | (None, None | Some(T::Char(_) | T::Varchar(_))) => T::Text,
        (None, Some(only)) | (Some(only), None) => only,
        (Some(a @ (T::SmallInt | T::Int | T::BigInt)), Some(T::SmallInt | T::Int | T::BigInt))
        | (Some(a @ T::Decimal { .. }), Some(T::Decimal { .. })) => a,
        (Some(a), Some(b)) if is_kept_by_null_if(a, b) => a,
        (Some(T::SmallInt | T::Int | T::BigInt), Some(T::Decimal { .. })) => T::Decimal { precision: 38, scale: 0 },
        (Some(a), Some(b)) => common_number(a, b).unwrap_or(a),
    }
}

/// The type of the values of CASE, COALESCE and GREATEST, to which the others can be cast. Beside exact numbers a REAL
/// stays a REAL.
fn common_type(a: ColumnType, b: ColumnType) -> Option<ColumnType> {
    use ColumnType as T;
    Some(match (a, b) {
        (a, b) if a == b => a,
        (T::Decimal { scale: s, .. }, T::Decimal { scale: t, .. }) => T::Decimal { precision: 38, scale: s.max(t) },
        (a, b) if a.is_text() && b.is_text() => T::Text,
        (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => T::Timestamp,
        (T::Date | T::Timestamp, T::Timestamptz) | (T::Timestamptz, T::Date | T::Timestamp) => T::Timestamptz,
        (a, b) if rank(a)? >= rank(b)? => a,
        (_, b) => b,
    })
}

/// Whether the datums of two types have the same representation, so that no cast is needed.
pub(crate) fn same_kind(a: ColumnType, b: ColumnType) -> bool {
    a == b || (a.is_text() && b.is_text()) || matches!((a, b), (ColumnType::Decimal { .. }, ColumnType::Decimal { .. }))
}

/// PostgreSQL's assignment casts.
pub(crate) fn assignable(from: ColumnType, to: ColumnType) -> bool {
    use ColumnType as T;
    let is_moment = |of| matches!(of, T::Date | T::Timestamp | T::Timestamptz);
    same_kind(from, to)
        || to.is_text()
        || (rank(from).is_some() && rank(to).is_some())
        || (is_moment(from) && is_moment(to))
}
