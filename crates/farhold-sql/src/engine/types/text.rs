//! Values as text, in PostgreSQL's format (ISO dates, hexadecimal bytea).

use std::fmt::Write as _;

use super::datetime::{format_date, format_timestamp, parse_date, parse_timestamp};
use super::shortest::{scientific_f32, scientific_f64};
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// Parses a value of `data_type`.
///
/// # Errors
/// 22P02, 22003, 22007, 22008 if the text is not such a value. Lengths of strings are not checked here.
pub fn parse_datum(text: &str, data_type: ColumnType) -> Result<Datum, SqlError> {
    let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
    Ok(match data_type {
        ColumnType::Boolean => Datum::Boolean(parse_boolean(trimmed).ok_or_else(|| invalid(text, data_type))?),
        ColumnType::SmallInt => Datum::SmallInt(
            i16::try_from(parse_integer(trimmed, text, data_type)?).map_err(|_| range(text, data_type))?,
        ),
        ColumnType::Int => {
            Datum::Int(i32::try_from(parse_integer(trimmed, text, data_type)?).map_err(|_| range(text, data_type))?)
        }
        ColumnType::BigInt => Datum::BigInt(parse_integer(trimmed, text, data_type)?),
        ColumnType::Real => {
            let value: f32 = parse_float(trimmed).ok_or_else(|| invalid(text, data_type))?;
            if is_beyond(value.into(), trimmed) {
                return Err(range(text, data_type));
            }
            Datum::Real(value)
        }
        ColumnType::Double => {
            let value: f64 = parse_float(trimmed).ok_or_else(|| invalid(text, data_type))?;
            if is_beyond(value, trimmed) {
                return Err(range(text, data_type));
            }
            Datum::Double(value)
        }
        ColumnType::Decimal { .. } => {
            parse_decimal(trimmed, MinDigits::Kept).ok_or_else(|| invalid(text, data_type))??.0
        }
        ColumnType::Char(_) => Datum::Text(text.trim_end_matches(' ').to_owned()),
        ColumnType::Varchar(_) | ColumnType::Text => Datum::Text(text.to_owned()),
        ColumnType::Bytea => Datum::Bytea(parse_bytea(text).ok_or_else(|| invalid(text, data_type))?),
        ColumnType::Date => Datum::Date(parse_date(trimmed)?),
        ColumnType::Timestamp => Datum::Timestamp(parse_timestamp(trimmed)?),
    })
}

/// Parses a value by the rules of a cast or an assignment to a column, where a small number may be rounded to zero.
pub(crate) fn parse_stored(text: &str, data_type: ColumnType) -> Result<Datum, SqlError> {
    match data_type {
        ColumnType::Decimal { scale, .. } if i32::from(scale) == SCALE_MAX => {
            let trimmed = text.trim_matches(|c: char| c.is_ascii_whitespace());
            Ok(parse_decimal(trimmed, MinDigits::Rounded).ok_or_else(|| invalid(text, data_type))??.0)
        }
        // Rounding to fewer decimals happens later.
        _ => parse_datum(text, data_type),
    }
}

/// A value in PostgreSQL's format; `None` for NULL.
#[must_use]
pub fn format_datum(datum: &Datum) -> Option<String> {
    Some(match datum {
        Datum::Null => return None,
        Datum::Boolean(v) => (if *v { "t" } else { "f" }).to_owned(),
        Datum::SmallInt(v) => v.to_string(),
        Datum::Int(v) => v.to_string(),
        Datum::BigInt(v) => v.to_string(),
        Datum::Real(v) => format_float(f64::from(*v), &scientific_f32(*v), 6),
        Datum::Double(v) => format_float(*v, &scientific_f64(*v), 15),
        Datum::Decimal { unscaled, scale } => format_decimal(*unscaled, *scale),
        Datum::Text(v) => v.clone(),
        Datum::Bytea(v) => {
            let mut text = String::with_capacity(2 + 2 * v.len());
            text.push_str("\\x");
            for byte in v {
                let _ = write!(text, "{byte:02x}");
            }
            text
        }
        Datum::Date(days) => format_date(*days),
        Datum::Timestamp(microseconds) => format_timestamp(*microseconds),
    })
}

fn invalid(text: &str, data_type: ColumnType) -> SqlError {
    let name = match data_type {
        ColumnType::Decimal { .. } => "numeric".to_owned(),
        other => other.to_string(),
    };
    SqlError::new(SqlState::INVALID_TEXT, format!("invalid input syntax for type {name}: \"{text}\""))
}

fn range(text: &str, data_type: ColumnType) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value \"{text}\" is out of range for type {data_type}"))
}

fn parse_boolean(text: &str) -> Option<bool> {
    const WORDS: [(&str, bool, usize); 8] = [
        ("true", true, 1),
        ("false", false, 1),
        ("yes", true, 1),
        ("no", false, 1),
        ("on", true, 2),
        ("off", false, 2),
        ("1", true, 1),
        ("0", false, 1),
    ];
    let text = text.to_ascii_lowercase();
    WORDS.iter().find(|(word, _, least)| text.len() >= *least && word.starts_with(text.as_str())).map(|word| word.1)
}

fn parse_integer(trimmed: &str, text: &str, data_type: ColumnType) -> Result<i64, SqlError> {
    trimmed.parse::<i64>().map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => range(text, data_type),
        _ => invalid(text, data_type),
    })
}

fn parse_float<F: std::str::FromStr>(text: &str) -> Option<F> {
    // Rust accepts the same forms as PostgreSQL (NaN, Infinity, exponents), in any case.
    text.parse().ok()
}

/// Whether a float is infinite or zero only because the number in `text` is too large or too small.
fn is_beyond(value: f64, text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    (value.is_infinite() && !text.to_ascii_lowercase().contains("inf"))
        || (value == 0.0 && mantissa.bytes().any(|b| matches!(b, b'1'..=b'9')))
}

/// The limit on decimals in PostgreSQL's numeric.
const DECIMALS_MAX: i32 = 16_383;
/// The limit on decimals here, equal to that on digits.
const SCALE_MAX: i32 = 38;

/// The decimal in `text`, unless a decimal cannot hold all of its digits.
pub(crate) fn exact_decimal(text: &str) -> Option<Datum> {
    match parse_decimal(text, MinDigits::Kept)? {
        Ok((datum, true)) => Some(datum),
        _ => None,
    }
}

/// The treatment of a number that rounds to zero.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MinDigits {
    /// It becomes the least number other than zero, so that conditions on it stay correct.
    Kept,
    Rounded,
}

/// A number, and whether it is exact: digits beyond the last decimal are rounded away. `None` if the text is not a
/// number, `Some(Err)` if the number does not fit in 38 digits.
fn parse_decimal(text: &str, min_digits: MinDigits) -> Option<Result<(Datum, bool), SqlError>> {
    if ["nan", "inf", "infinity"].contains(&text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str()) {
        return Some(Err(SqlError::unsupported(format!("\"{text}\" of type numeric"))));
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.as_bytes().first()? {
        b'-' => (true, &mantissa[1..]),
        b'+' => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let overflow =
        || SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value \"{text}\" overflows numeric format"));
    let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    if scale > DECIMALS_MAX {
        return Some(Err(overflow()));
    }
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let dropped = usize::try_from(scale.saturating_sub(SCALE_MAX)).unwrap_or(0);
    let (kept, rest) = digits.split_at(digits.len().saturating_sub(dropped));
    // If more digits are dropped than the number has, the first of them are zeros.
    let rounds_up = rest.len() == dropped && rest.first().is_some_and(|digit| *digit >= 5);
    let exact = rest.iter().all(|digit| *digit == 0);
    let shifted = |unscaled: i128, digit: u8| unscaled.checked_mul(10)?.checked_add(i128::from(digit));
    let mut unscaled = kept.iter().try_fold(0, |unscaled, digit| shifted(unscaled, *digit));
    if let Some(digits) = unscaled.filter(|digits| *digits != 0) {
        // A power of ten above the number of digits is always too large.
        let zeros = (-scale).clamp(0, SCALE_MAX + 1);
        unscaled = (0..zeros).try_fold(digits, |unscaled, _| shifted(unscaled, 0));
    }
    let is_lost = unscaled == Some(0) && !exact && min_digits == MinDigits::Kept;
    let Some(unscaled) = unscaled.and_then(|v| v.checked_add(i128::from(rounds_up || is_lost))) else {
        return Some(Err(overflow()));
    };
    let scale = u8::try_from(scale.clamp(0, SCALE_MAX)).ok()?;
    Some(Ok((Datum::Decimal { unscaled: if negative { -unscaled } else { unscaled }, scale }, exact)))
}

fn format_decimal(unscaled: i128, scale: u8) -> String {
    let digits = unscaled.unsigned_abs().to_string();
    let scale = usize::from(scale);
    let sign = if unscaled < 0 { "-" } else { "" };
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let padded = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

/// PostgreSQL's shortest format: plain from 1e-5 up to 1e`digits`, otherwise with an exponent of at least two digits.
fn format_float(value: f64, exponential: &str, digits: i32) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return (if value > 0.0 { "Infinity" } else { "-Infinity" }).to_owned();
    }
    let Some((mantissa, exponent)) = exponential.split_once('e') else { return exponential.to_owned() };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..digits).contains(&exponent) {
        return plain(mantissa, exponent);
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// `1.25` with exponent -2 becomes `0.0125`.
fn plain(mantissa: &str, exponent: i32) -> String {
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |mantissa| ("-", mantissa));
    let digits = mantissa.replace('.', "");
    let Ok(point) = usize::try_from(exponent) else {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    };
    let whole = point + 1;
    match digits.split_at_checked(whole) {
        Some((whole, fraction)) if !fraction.is_empty() => format!("{sign}{whole}.{fraction}"),
        _ => format!("{sign}{digits:0<whole$}"),
    }
}

fn parse_bytea(text: &str) -> Option<Vec<u8>> {
    if let Some(hex) = text.strip_prefix("\\x") {
        let mut digits = hex.bytes().filter(|b| !b.is_ascii_whitespace()).map(|b| (b as char).to_digit(16));
        let mut bytes = Vec::with_capacity(hex.len() / 2);
        while let Some(high) = digits.next() {
            bytes.push(u8::try_from(high? * 16 + digits.next()??).ok()?);
        }
        return Some(bytes);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = match (first, tail) {
            (b'\\', [b'\\', tail @ ..]) => {
                bytes.push(b'\\');
                tail
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                bytes.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                tail
            }
            (b'\\', _) => return None,
            (byte, tail) => {
                bytes.push(byte);
                tail
            }
        };
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(text: &str, data_type: ColumnType) -> String {
        format_datum(&parse_datum(text, data_type).unwrap()).unwrap()
    }

    #[test]
    fn values_there_and_back() {
        let decimal = ColumnType::Decimal { precision: 12, scale: 4 };
        for (text, data_type, expected) in [
            ("  yes ", ColumnType::Boolean, "t"),
            (" -32768", ColumnType::SmallInt, "-32768"),
            ("1e3", decimal, "1000"),
            ("-0.05", decimal, "-0.05"),
            (".5", decimal, "0.5"),
            ("1e-7", ColumnType::Double, "1e-07"),
            ("123456789.25", ColumnType::Double, "123456789.25"),
            ("1e20", ColumnType::Double, "1e+20"),
            ("nan", ColumnType::Double, "NaN"),
            ("2024-02-29", ColumnType::Date, "2024-02-29"),
            ("2024-02-29 23:59:59.5", ColumnType::Timestamp, "2024-02-29 23:59:59.5"),
            ("2024-02-29T01:02", ColumnType::Timestamp, "2024-02-29 01:02:00"),
            ("1960-01-01 00:00:00.000001", ColumnType::Timestamp, "1960-01-01 00:00:00.000001"),
            ("\\xDEad", ColumnType::Bytea, "\\xdead"),
            ("a\\\\b\\001", ColumnType::Bytea, "\\x615c6201"),
        ] {
            assert_eq!(there_and_back(text, data_type), expected, "{text}");
        }
    }

    #[test]
    fn decimals_are_rounded_and_limited() {
        let decimal = ColumnType::Decimal { precision: 38, scale: 0 };
        let zeros = "0".repeat(37);
        for (text, expected) in [
            (format!("0.{zeros}16"), format!("0.{zeros}2")),
            (format!("-0.{zeros}14"), format!("-0.{zeros}1")),
            ("5e-39".to_owned(), format!("0.{zeros}1")),
            ("5e-40".to_owned(), format!("0.{zeros}1")),
            ("-1e-400".to_owned(), format!("-0.{zeros}1")),
            ("0e-400".to_owned(), format!("0.{zeros}0")),
            ("0e2000000000".to_owned(), "0".to_owned()),
            ("1e38".to_owned(), format!("1{zeros}0")),
        ] {
            assert_eq!(there_and_back(&text, decimal), expected, "{text}");
        }
        for text in ["1e-2000000000", "1e2000000000", "1e39", "1e-20000"] {
            assert_eq!(parse_datum(text, decimal).unwrap_err().state.code(), "22003", "{text}");
        }
        assert!(exact_decimal("1e-38").is_some());
        assert!(exact_decimal("10e-39").is_some());
        assert!(exact_decimal("6.62607015e-34").is_none());
        // Zero is zero, whatever its exponent.
        assert_eq!(there_and_back("0e-400", ColumnType::Double), "0");
    }

    #[test]
    fn what_is_no_value_has_its_state() {
        let state = |text: &str, data_type| parse_datum(text, data_type).unwrap_err().state.code();
        assert_eq!(state("x", ColumnType::Int), "22P02");
        assert_eq!(state("", ColumnType::Int), "22P02");
        assert_eq!(state("3000000000", ColumnType::Int), "22003");
        assert_eq!(state("1e999", ColumnType::Double), "22003");
        assert_eq!(state("-1e-400", ColumnType::Double), "22003");
        assert_eq!(state("1e-50", ColumnType::Real), "22003");
        assert_eq!(state("1.2.3", ColumnType::Decimal { precision: 5, scale: 2 }), "22P02");
        assert_eq!(state("-Infinity", ColumnType::Decimal { precision: 5, scale: 2 }), "0A000");
        assert_eq!(state("yesterday", ColumnType::Date), "22007");
        assert_eq!(state("2023-02-29", ColumnType::Date), "22008");
        assert_eq!(state("2023-02-28 25:00", ColumnType::Timestamp), "22008");
        assert_eq!(state("o", ColumnType::Boolean), "22P02");
        assert_eq!(state("\\xabc", ColumnType::Bytea), "22P02");
    }
}
