//! Writes the text format. It is read by [`parse_datum`](crate::engine::types::parse_datum), as for COPY and literals.

use crate::engine::{ANY_LENGTH, ColumnType, Datum, parse_datum, scientific_f32, scientific_f64};
use crate::error::{SqlError, SqlState};

use super::datetime::{put_date, put_timestamp};
use super::numeric::{self, Decimal};

/// Writes a datum; NULL writes nothing (each message marks NULL in its own way). `CHAR(n)` is padded with blanks.
pub fn put(datum: &Datum, data_type: ColumnType, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => {}
        Datum::Boolean(value) => out.push(if *value { b't' } else { b'f' }),
        Datum::SmallInt(value) => put_integer(i64::from(*value), out),
        Datum::Int(value) => put_integer(i64::from(*value), out),
        Datum::BigInt(value) => put_integer(*value, out),
        Datum::Real(value) => put_float4(*value, out),
        Datum::Double(value) => put_float8(*value, out),
        Datum::Decimal { unscaled, scale } => numeric::put_text(Decimal { unscaled: *unscaled, scale: *scale }, out),
        Datum::Text(value) => put_string(value, data_type, out),
        Datum::Bytea(value) => put_bytea(value, out),
        Datum::Date(days) => put_date(*days, out),
        Datum::Timestamp(micros) => put_timestamp(*micros, "", out),
    }
}

/// Writes a string. A `CHAR(n)` is padded with blanks, unless it has no length limit.
pub fn put_string(value: &str, data_type: ColumnType, out: &mut Vec<u8>) {
    out.extend_from_slice(value.as_bytes());
    if let ColumnType::Char(width) = data_type
        && width != ANY_LENGTH
    {
        let missing = (width as usize).saturating_sub(value.chars().count());
        out.resize(out.len() + missing, b' ');
    }
}

/// Writes bytes as `\x` and hex.
pub fn put_bytea(value: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(b"\\x");
    out.extend(value.iter().flat_map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]));
}

/// Writes an integer; the formatting traits are three times slower.
pub fn put_integer(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Writes a `real` with the fewest digits that parse to the same value.
pub fn put_float4(value: f32, out: &mut Vec<u8>) {
    put_float(f64::from(value), &scientific_f32(value), 6, out);
}

/// Writes a `double precision` with the fewest digits that parse to the same value.
pub fn put_float8(value: f64, out: &mut Vec<u8>) {
    put_float(value, &scientific_f64(value), 15, out);
}

/// Writes a float from its shortest digits in `scientific` notation, `1.25e-7`. PostgreSQL uses plain notation for
/// exponents from -4 to below `digits`.
fn put_float(value: f64, scientific: &str, digits: i32, out: &mut Vec<u8>) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"Infinity" } else { b"-Infinity" });
    }
    let (mantissa, exponent) = scientific.split_once('e').expect("scientific notation");
    let exponent: i32 = exponent.parse().expect("an exponent");
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |mantissa| ("-", mantissa));
    out.extend_from_slice(sign.as_bytes());
    let significant = mantissa.bytes().filter(|&byte| byte != b'.');
    if exponent < -4 || exponent >= digits {
        out.extend_from_slice(mantissa.as_bytes());
        out.push(b'e');
        out.push(if exponent < 0 { b'-' } else { b'+' });
        if exponent.abs() < 10 {
            out.push(b'0');
        }
        put_integer(i64::from(exponent.abs()), out);
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend(significant);
    } else {
        let whole = exponent as usize + 1;
        let count = significant.clone().count();
        out.extend(significant.clone().take(whole));
        out.extend(std::iter::repeat_n(b'0', whole.saturating_sub(count)));
        if count > whole {
            out.push(b'.');
            out.extend(significant.skip(whole));
        }
    }
}

/// Time zones are less than 16 hours from UTC.
const ZONE_MAX_US: i64 = 16 * 3_600_000_000;

/// Parses a timestamp with time zone, as UTC.
///
/// # Errors
/// 22007, 22008, 22009.
pub fn parse_timestamptz(text: &str) -> Result<Datum, SqlError> {
    let datum = parse_datum(text, ColumnType::Timestamp)?;
    let (Datum::Timestamp(micros), Some(offset)) = (&datum, zone_offset_us(text)) else { return Ok(datum) };
    if offset.abs() >= ZONE_MAX_US {
        let message = format!("time zone displacement out of range: \"{text}\"");
        return Err(SqlError::new(SqlState::INVALID_TIME_ZONE, message));
    }
    let utc = micros.checked_sub(offset);
    utc.map(Datum::Timestamp).ok_or_else(|| SqlError::new(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))
}

/// The offset at the end of a timestamp, `+05:30` or `+0530`, if there is one.
fn zone_offset_us(text: &str) -> Option<i64> {
    // The signs within the day do not belong to a zone.
    let (_, time) = text.trim().split_once(|c: char| c.is_whitespace() || matches!(c, 't' | 'T'))?;
    let at = time.find(['+', '-'])?;
    let sign = if time.as_bytes()[at] == b'-' { -1 } else { 1 };
    let zone = &time[at + 1..];
    // An era may follow.
    let zone = &zone[..zone.find(|c: char| !(c.is_ascii_digit() || c == ':')).unwrap_or(zone.len())];
    let split = |at: usize| zone.split_at(zone.len() - at);
    // Without colons, the last two digits are minutes; with five or six digits, they are seconds.
    let parts: Vec<&str> = match zone.len() {
        3 | 4 if !zone.contains(':') => vec![split(2).0, split(2).1],
        5 | 6 if !zone.contains(':') => vec![split(4).0, &split(4).1[..2], split(2).1],
        _ => zone.split(':').collect(),
    };
    let mut seconds = 0;
    for (part, unit) in parts.into_iter().zip([3600, 60, 1]) {
        seconds += part.parse::<i64>().ok()? * unit;
    }
    Some(sign * seconds * 1_000_000)
}
