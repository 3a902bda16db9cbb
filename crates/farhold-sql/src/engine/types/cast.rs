//! Conversion of values between types, for CAST and assignment.

use super::type_of;
use crate::engine::{ColumnType, Datum};
use crate::value::{
    ANY_DIGITS, DAY_MICROSECONDS, Zone, base_name, format_datum, parse_datum, parse_stored, timestamp_in_range,
};
use crate::{SqlError, SqlState};

/// `datum` as a value of `data_type`. The encoder of the column checks length and precision. Timestamps with time zone are
/// converted in `zone`, the session's.
pub(crate) fn cast(datum: Datum, data_type: ColumnType, zone: Zone) -> Result<Datum, SqlError> {
    use ColumnType as T;
    if datum.is_null() {
        return Ok(Datum::Null);
    }
    Ok(match (data_type, datum) {
        (T::Boolean, d @ Datum::Boolean(_))
        | (T::SmallInt, d @ Datum::SmallInt(_))
        | (T::Int, d @ Datum::Int(_))
        | (T::BigInt, d @ Datum::BigInt(_))
        | (T::Real, d @ Datum::Real(_))
        | (T::Double, d @ Datum::Double(_))
        | (T::Char(_) | T::Varchar(_) | T::Text, d @ Datum::Text(_))
        | (T::Bytea, d @ Datum::Bytea(_))
        | (T::Date, d @ Datum::Date(_))
        | (T::Timestamp, d @ Datum::Timestamp(_))
        | (T::Timestamptz, d @ Datum::Timestamptz(_)) => d,
        (T::Decimal { precision, scale }, Datum::Text(text)) if (precision, scale) != ANY_DIGITS => {
            cast(parse_stored(&text, data_type, zone)?, data_type, zone)?
        }
        (_, Datum::Text(text)) => parse_stored(&text, data_type, zone)?,
        (T::Char(_) | T::Varchar(_) | T::Text, Datum::Boolean(v)) => Datum::Text(v.to_string()),
        (T::Char(_) | T::Varchar(_) | T::Text, d) => Datum::Text(format_datum(&d, zone).unwrap_or_default()),
        (T::SmallInt, d) => {
            Datum::SmallInt(i16::try_from(integer(&d, data_type)?).map_err(|_| out_of_range(data_type))?)
        }
        (T::Int, d) => Datum::Int(i32::try_from(integer(&d, data_type)?).map_err(|_| out_of_range(data_type))?),
        (T::BigInt, d) => Datum::BigInt(i64::try_from(integer(&d, data_type)?).map_err(|_| out_of_range(data_type))?),
        // Conversion to a double first would round twice.
        (T::Real, d @ Datum::Decimal { .. }) => {
            parse_datum(&format_datum(&d, zone).unwrap_or_default(), data_type, zone)?
        }
        (T::Real, d) => {
            let wide = double(&d, data_type)?;
            #[allow(clippy::cast_possible_truncation)]
            let narrow = wide as f32;
            if (narrow.is_infinite() && wide.is_finite()) || (narrow == 0.0 && wide != 0.0) {
                return Err(out_of_range(data_type));
            }
            Datum::Real(narrow)
        }
        (T::Double, d) => Datum::Double(double(&d, data_type)?),
        (T::Decimal { precision, scale }, d) => {
            let (unscaled, from) = match d {
                Datum::Decimal { unscaled, scale } => (unscaled, scale),
                Datum::Real(_) | Datum::Double(_) => return decimal_of_float(&d, precision, scale),
                d => (integer(&d, data_type)?, 0),
            };
            let unscaled = round_decimal(unscaled, from, scale)
                .filter(|v| v.unsigned_abs() < 10_u128.pow(u32::from(precision)))
                .ok_or_else(|| field_overflow(precision, scale))?;
            Datum::Decimal { unscaled, scale }
        }
        (T::Boolean, Datum::Int(v)) => Datum::Boolean(v != 0),
        (T::Date, Datum::Timestamp(i64::MAX)) => Datum::Date(i32::MAX),
        (T::Date, Datum::Timestamp(i64::MIN)) => Datum::Date(i32::MIN),
        (T::Timestamp, Datum::Date(i32::MAX)) => Datum::Timestamp(i64::MAX),
        (T::Timestamp, Datum::Date(i32::MIN)) => Datum::Timestamp(i64::MIN),
        (T::Date, Datum::Timestamp(v)) => Datum::Date(
            i32::try_from(v.div_euclid(DAY_MICROSECONDS))
                .map_err(|_| SqlError::new(SqlState::DATETIME_OVERFLOW, "date out of range"))?,
        ),
        (T::Timestamp, Datum::Date(v)) => {
            Datum::Timestamp(i64::from(v).checked_mul(DAY_MICROSECONDS).ok_or_else(no_timestamp)?)
        }
        (T::Timestamptz, Datum::Timestamp(v)) => Datum::Timestamptz(instant_of(v, zone)?),
        (T::Timestamp, Datum::Timestamptz(v)) => Datum::Timestamp(local_of(v, zone)?),
        (T::Timestamptz, d @ Datum::Date(_)) | (T::Date, d @ Datum::Timestamptz(_)) => {
            cast(cast(d, T::Timestamp, zone)?, data_type, zone)?
        }
        (_, d) => return Err(mismatch(&d, data_type)),
    })
}

/// The local time of an instant, as a timestamp.
///
/// # Errors
/// 22008.
pub(crate) fn local_of(instant: i64, zone: Zone) -> Result<i64, SqlError> {
    let is_infinite = matches!(instant, i64::MIN | i64::MAX);
    let local = zone.to_local(instant).filter(|local| is_infinite || *local != i64::MAX);
    local.ok_or_else(no_timestamp)
}

/// The instant of a local time.
///
/// # Errors
/// 22008.
pub(crate) fn instant_of(local: i64, zone: Zone) -> Result<i64, SqlError> {
    let is_infinite = matches!(local, i64::MIN | i64::MAX);
    let instant = zone.to_instant(local).and_then(|of| if is_infinite { Some(of) } else { timestamp_in_range(of) });
    instant.ok_or_else(no_timestamp)
}

fn no_timestamp() -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, "timestamp out of range")
}

/// `unscaled / 10^from` over `10^to`, rounded half away from zero; `None` if it does not fit.
pub(crate) fn round_decimal(unscaled: i128, from: u8, to: u8) -> Option<i128> {
    if from <= to {
        return unscaled.checked_mul(10_i128.checked_pow(u32::from(to - from))?);
    }
    let Some(divisor) = 10_i128.checked_pow(u32::from(from - to)) else { return Some(0) };
    let (quotient, rest) = (unscaled / divisor, unscaled % divisor);
    let away = rest.unsigned_abs() * 2 >= divisor.unsigned_abs();
    Some(if away { quotient + unscaled.signum() } else { quotient })
}

/// The decimal of a float, from the digits that every float of the type represents: 6 for REAL, 15 for DOUBLE
/// PRECISION.
fn decimal_of_float(datum: &Datum, precision: u8, scale: u8) -> Result<Datum, SqlError> {
    let text = match datum {
        Datum::Real(value) => format!("{value:.5e}"),
        Datum::Double(value) => format!("{value:.14e}"),
        other => format_datum(other, Zone::UTC).unwrap_or_default(),
    };
    let decimal = ColumnType::Decimal { precision, scale };
    let special = match datum {
        Datum::Real(value) if !value.is_finite() => Some(f64::from(*value)),
        Datum::Double(value) if !value.is_finite() => Some(*value),
        _ => None,
    };
    // In PostgreSQL every NUMERIC can be NaN, and one without precision can be infinite, but not here.
    if special.is_some_and(|value| value.is_nan() || (precision, scale) == ANY_DIGITS) {
        let text = format_datum(datum, Zone::UTC).unwrap_or_default();
        return Err(SqlError::unsupported(format!("\"{text}\" of type numeric")));
    }
    let parsed = parse_stored(&text, decimal, Zone::UTC).map_err(|_| field_overflow(precision, scale))?;
    cast(parsed, decimal, Zone::UTC)
}

fn integer(datum: &Datum, to: ColumnType) -> Result<i128, SqlError> {
    Ok(match datum {
        Datum::SmallInt(v) => i128::from(*v),
        Datum::Int(v) => i128::from(*v),
        Datum::BigInt(v) => i128::from(*v),
        Datum::Boolean(v) if to == ColumnType::Int => i128::from(*v),
        Datum::Decimal { unscaled, scale } => round_decimal(*unscaled, *scale, 0).ok_or_else(|| out_of_range(to))?,
        Datum::Real(_) | Datum::Double(_) => {
            let value = double(datum, to)?.round_ties_even();
            if !(-9.3e18..9.3e18).contains(&value) {
                return Err(out_of_range(to));
            }
            #[allow(clippy::cast_possible_truncation)]
            let whole = value as i128;
            whole
        }
        other => return Err(mismatch(other, to)),
    })
}

#[allow(clippy::cast_precision_loss)]
fn double(datum: &Datum, to: ColumnType) -> Result<f64, SqlError> {
    Ok(match datum {
        Datum::SmallInt(v) => f64::from(*v),
        Datum::Int(v) => f64::from(*v),
        Datum::BigInt(v) => *v as f64,
        Datum::Real(v) => f64::from(*v),
        Datum::Double(v) => *v,
        Datum::Decimal { .. } => {
            format_datum(datum, Zone::UTC).unwrap_or_default().parse().map_err(|_| out_of_range(to))?
        }
        other => return Err(mismatch(other, to)),
    })
}

fn out_of_range(data_type: ColumnType) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{} out of range", base_name(data_type)))
}

fn field_overflow(precision: u8, scale: u8) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "numeric field overflow").with_detail(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less than 10^{}.",
        precision - scale
    ))
}

fn mismatch(datum: &Datum, to: ColumnType) -> SqlError {
    no_cast(type_of(datum), to)
}

/// The error of a cast that is not [`castable`].
pub(crate) fn no_cast(from: ColumnType, to: ColumnType) -> SqlError {
    SqlError::new(SqlState::CANNOT_COERCE, format!("cannot cast type {} to {to}", base_name(from)))
}

/// Whether an explicit cast between two types exists.
pub(crate) fn castable(from: ColumnType, to: ColumnType) -> bool {
    use ColumnType as T;
    from.is_text()
        || to.is_text()
        || comparable(from, to)
        || matches!((from, to), (T::Boolean, T::Int) | (T::Int, T::Boolean) | (T::Timestamp, T::Date))
}

/// Whether values of the two types have a common type in which they can be compared.
pub(crate) fn comparable(a: ColumnType, b: ColumnType) -> bool {
    use ColumnType as T;
    let is_number = |t| matches!(t, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. } | T::Real | T::Double);
    let is_moment = |t| matches!(t, T::Date | T::Timestamp | T::Timestamptz);
    a == b || (a.is_text() && b.is_text()) || (is_number(a) && is_number(b)) || (is_moment(a) && is_moment(b))
}
