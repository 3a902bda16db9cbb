//! The binary format of values.

use std::borrow::Cow;

use arrow::datatypes::IntervalMonthDayNano;
use farhold_store::row::{ColumnType, Datum};

use super::datetime::{DAYS_TO_2000, MICROSECONDS_TO_2000, date_in_range, timestamp_in_range};
use super::numeric::{self, Decimal};
use super::oid;
use super::text::put_string;
use crate::{SqlError, SqlState};

/// Writes a datum; NULL writes nothing.
pub(crate) fn put(datum: &Datum, data_type: ColumnType, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => {}
        Datum::Boolean(value) => out.push(u8::from(*value)),
        Datum::SmallInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        Datum::Int(value) => out.extend_from_slice(&value.to_be_bytes()),
        Datum::BigInt(value) => out.extend_from_slice(&value.to_be_bytes()),
        Datum::Real(value) => out.extend_from_slice(&value.to_be_bytes()),
        Datum::Double(value) => out.extend_from_slice(&value.to_be_bytes()),
        Datum::Decimal { unscaled, scale } => numeric::put_binary(Decimal { unscaled: *unscaled, scale: *scale }, out),
        Datum::Text(value) => put_string(value, data_type, out),
        Datum::Bytea(value) => out.extend_from_slice(value),
        Datum::Date(days) => put_date(*days, out),
        Datum::Timestamp(micros) | Datum::Timestamptz(micros) => put_timestamp(*micros, out),
    }
}

/// Writes a date, given in days since 1970; infinities stay the same.
pub(crate) fn put_date(days: i32, out: &mut Vec<u8>) {
    let wire = if matches!(days, i32::MIN | i32::MAX) { days } else { days.saturating_sub(DAYS_TO_2000) };
    out.extend_from_slice(&wire.to_be_bytes());
}

/// Writes a timestamp, given in microseconds since 1970; infinities stay the same.
pub(crate) fn put_timestamp(micros: i64, out: &mut Vec<u8>) {
    let wire = if matches!(micros, i64::MIN | i64::MAX) { micros } else { micros.saturating_sub(MICROSECONDS_TO_2000) };
    out.extend_from_slice(&wire.to_be_bytes());
}

/// Writes an interval: microseconds, days, months.
pub(crate) fn put_interval(interval: IntervalMonthDayNano, out: &mut Vec<u8>) {
    out.extend_from_slice(&(interval.nanoseconds / 1000).to_be_bytes());
    out.extend_from_slice(&interval.days.to_be_bytes());
    out.extend_from_slice(&interval.months.to_be_bytes());
}

/// Reads a parameter that the client declares with the type `oid`. An `oid` has four bytes, although the engine uses a
/// `bigint`. The trailing blanks of a `character` are not part of its value, although the engine uses a `text`.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_parameter(oid: u32, data_type: ColumnType, bytes: &[u8]) -> Result<Datum, SqlError> {
    match oid {
        oid::OID | oid::REGCLASS => Ok(Datum::BigInt(u32::from_be_bytes(fixed(bytes)?).into())),
        oid::BPCHAR => Ok(Datum::Text(utf8(bytes)?.trim_end_matches(' ').to_owned())),
        _ => parse(oid::parameter_type(oid).unwrap_or(data_type), bytes),
    }
}

/// The text of a parameter whose type no column here has.
///
/// # Errors
/// 0A000 for a type whose format is not supported, 22P03 for malformed bytes, 22021 for text that is not UTF-8.
pub(crate) fn text_of(oid: u32, bytes: &[u8]) -> Result<Cow<'_, str>, SqlError> {
    match oid {
        oid::UNKNOWN | oid::JSON | oid::XML => Ok(utf8(bytes)?.into()),
        oid::JSONB => {
            // Its first byte is the format's version.
            let text = bytes.strip_prefix(&[1]).ok_or_else(malformed)?;
            Ok(utf8(text)?.into())
        }
        oid::UUID => {
            let digits = format!("{:032x}", u128::from_be_bytes(fixed(bytes)?));
            let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
            Ok(parts.join("-").into())
        }
        other => {
            let message = format!("binary parameters of the type with OID {other} are not supported");
            Err(SqlError::unsupported(message).with_hint("Send it as text, or cast it to text in the client."))
        }
    }
}

/// Reads a value.
///
/// # Errors
/// 22P03 for a wrong length, 22021 for text that is not UTF-8, 22003 and 22008 for a value that no column can hold.
pub(crate) fn parse(data_type: ColumnType, bytes: &[u8]) -> Result<Datum, SqlError> {
    Ok(match data_type {
        ColumnType::Boolean => Datum::Boolean(fixed::<1>(bytes)? != [0]),
        ColumnType::SmallInt => Datum::SmallInt(i16::from_be_bytes(fixed(bytes)?)),
        ColumnType::Int => Datum::Int(i32::from_be_bytes(fixed(bytes)?)),
        ColumnType::BigInt => Datum::BigInt(i64::from_be_bytes(fixed(bytes)?)),
        ColumnType::Real => Datum::Real(f32::from_be_bytes(fixed(bytes)?)),
        ColumnType::Double => Datum::Double(f64::from_be_bytes(fixed(bytes)?)),
        ColumnType::Decimal { .. } => numeric::parse_binary(bytes)?.into(),
        ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text => Datum::Text(utf8(bytes)?.to_owned()),
        ColumnType::Bytea => Datum::Bytea(bytes.to_vec()),
        ColumnType::Date => {
            let wire = i32::from_be_bytes(fixed(bytes)?);
            let infinite = matches!(wire, i32::MIN | i32::MAX);
            let days = if infinite { Some(wire) } else { wire.checked_add(DAYS_TO_2000).and_then(date_in_range) };
            Datum::Date(days.ok_or_else(|| overflow("date out of range"))?)
        }
        ColumnType::Timestamp => Datum::Timestamp(parse_moment(bytes)?),
        ColumnType::Timestamptz => Datum::Timestamptz(parse_moment(bytes)?),
    })
}

/// The microseconds since 1970 of a timestamp.
fn parse_moment(bytes: &[u8]) -> Result<i64, SqlError> {
    let wire = i64::from_be_bytes(fixed(bytes)?);
    let infinite = matches!(wire, i64::MIN | i64::MAX);
    let micros =
        if infinite { Some(wire) } else { wire.checked_add(MICROSECONDS_TO_2000).and_then(timestamp_in_range) };
    micros.ok_or_else(|| overflow("timestamp out of range"))
}

/// Bytes that must be UTF-8 without a zero byte, as text.
///
/// # Errors
/// 22021.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, SqlError> {
    let not = |at: usize| {
        let byte = bytes.get(at).copied().unwrap_or_default();
        let message = format!("invalid byte sequence for encoding \"UTF8\": 0x{byte:02x}");
        SqlError::new(SqlState::CHARACTER_NOT_IN_REPERTOIRE, message)
    };
    let text = std::str::from_utf8(bytes).map_err(|error| not(error.valid_up_to()))?;
    match bytes.iter().position(|&byte| byte == 0) {
        Some(at) => Err(not(at)),
        None => Ok(text),
    }
}

fn fixed<const N: usize>(bytes: &[u8]) -> Result<[u8; N], SqlError> {
    bytes.try_into().map_err(|_| malformed())
}

pub(super) fn malformed() -> SqlError {
    SqlError::new(SqlState::INVALID_BINARY, "incorrect binary data format in bind parameter")
}

fn overflow(message: &str) -> SqlError {
    SqlError::new(SqlState::DATETIME_OVERFLOW, message)
}
