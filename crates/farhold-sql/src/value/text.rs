//! Values as text, in PostgreSQL's format.

use farhold_store::row::{ColumnType, Datum};

use super::ANY_LENGTH;
use super::bytea::{parse_bytea, put_bytea};
use super::datetime::{parse_date, parse_timestamp, parse_timestamptz, put_date, put_timestamp, put_timestamptz};
use super::float::{is_beyond, parse_float, put_float4, put_float8};
use super::integer::put_integer;
use super::numeric::{Decimal, MinDigits, SCALE_MAX, parse_decimal, put_decimal};
use super::zone::Zone;
use crate::{SqlError, SqlState};

/// Writes a datum; NULL writes nothing (each message marks NULL in its own way). `CHAR(n)` is padded with blanks. A timestamp
/// with time zone is written in `zone`, the session's.
pub(crate) fn put(datum: &Datum, data_type: ColumnType, zone: Zone, out: &mut Vec<u8>) {
    match datum {
        Datum::Null => {}
        Datum::Boolean(value) => out.push(if *value { b't' } else { b'f' }),
        Datum::SmallInt(value) => put_integer(i64::from(*value), out),
        Datum::Int(value) => put_integer(i64::from(*value), out),
        Datum::BigInt(value) => put_integer(*value, out),
        Datum::Real(value) => put_float4(*value, out),
        Datum::Double(value) => put_float8(*value, out),
        Datum::Decimal { unscaled, scale } => put_decimal(Decimal { unscaled: *unscaled, scale: *scale }, out),
        Datum::Text(value) => put_string(value, data_type, out),
        Datum::Bytea(value) => put_bytea(value, out),
        Datum::Date(days) => put_date(*days, out),
        Datum::Timestamp(micros) => put_timestamp(*micros, out),
        Datum::Timestamptz(micros) => put_timestamptz(*micros, zone, out),
    }
}

/// Writes a string. A `CHAR(n)` is padded with blanks, unless it has no length limit.
pub(crate) fn put_string(value: &str, data_type: ColumnType, out: &mut Vec<u8>) {
    out.extend_from_slice(value.as_bytes());
    if let ColumnType::Char(width) = data_type
        && width != ANY_LENGTH
    {
        let missing = (width as usize).saturating_sub(value.chars().count());
        out.resize(out.len() + missing, b' ');
    }
}

/// A value without padding; `None` for NULL. A timestamp with time zone is written in `zone`.
#[must_use]
pub fn format_datum(datum: &Datum, zone: Zone) -> Option<String> {
    (!datum.is_null()).then(|| written(|out| put(datum, ColumnType::Text, zone, out)))
}

/// What `put` writes, which must be text.
pub(crate) fn written(put: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    put(&mut out);
    String::from_utf8(out).expect("the text form is UTF-8")
}

/// Parses a value of `data_type`. A timestamp with time zone whose text has none is one of `zone`.
///
/// # Errors
/// 22P02, 22003, 22007, 22008, 22009, 22023 if the text is not such a value. Lengths of strings are not checked here.
pub fn parse_datum(text: &str, data_type: ColumnType, zone: Zone) -> Result<Datum, SqlError> {
    let trimmed = text.trim_matches(is_blank);
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
            parse_decimal(trimmed, MinDigits::Kept).ok_or_else(|| invalid(text, data_type))??.0.into()
        }
        ColumnType::Char(_) => Datum::Text(text.trim_end_matches(' ').to_owned()),
        ColumnType::Varchar(_) | ColumnType::Text => Datum::Text(text.to_owned()),
        ColumnType::Bytea => Datum::Bytea(parse_bytea(text)?),
        ColumnType::Date => Datum::Date(parse_date(text)?),
        ColumnType::Timestamp => Datum::Timestamp(parse_timestamp(text)?),
        ColumnType::Timestamptz => Datum::Timestamptz(parse_timestamptz(text, zone)?),
    })
}

/// Parses a value by the rules of a cast or an assignment to a column, where a small number may be rounded to zero.
pub(crate) fn parse_stored(text: &str, data_type: ColumnType, zone: Zone) -> Result<Datum, SqlError> {
    match data_type {
        ColumnType::Decimal { scale, .. } if scale == SCALE_MAX => {
            let trimmed = text.trim_matches(is_blank);
            Ok(parse_decimal(trimmed, MinDigits::Rounded).ok_or_else(|| invalid(text, data_type))??.0.into())
        }
        // Rounding to fewer decimals happens later.
        _ => parse_datum(text, data_type, zone),
    }
}

/// The name of a type in messages, without a decimal's precision and scale.
pub(crate) fn base_name(data_type: ColumnType) -> String {
    match data_type {
        ColumnType::Decimal { .. } => "numeric".to_owned(),
        other => other.to_string(),
    }
}

fn invalid(text: &str, data_type: ColumnType) -> SqlError {
    let name = base_name(data_type);
    SqlError::new(SqlState::INVALID_TEXT, format!("invalid input syntax for type {name}: \"{text}\""))
}

fn range(text: &str, data_type: ColumnType) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value \"{text}\" is out of range for type {data_type}"))
}

/// PostgreSQL's blanks, which may surround values.
pub(super) fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::exact_decimal;

    fn there_and_back(text: &str, data_type: ColumnType) -> String {
        format_datum(&parse_datum(text, data_type, Zone::UTC).unwrap(), Zone::UTC).unwrap()
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
            ("\u{b}1e-7\u{c}", ColumnType::Double, "1e-07"),
            ("123456789.25", ColumnType::Double, "123456789.25"),
            ("1e20", ColumnType::Double, "1e+20"),
            ("nan", ColumnType::Double, "NaN"),
            ("2024-02-29", ColumnType::Date, "2024-02-29"),
            ("2024-02-29 23:59:59.5", ColumnType::Timestamp, "2024-02-29 23:59:59.5"),
            ("2024-02-29T01:02", ColumnType::Timestamp, "2024-02-29 01:02:00"),
            ("1960-01-01 00:00:00.000001", ColumnType::Timestamp, "1960-01-01 00:00:00.000001"),
            ("2024-02-29 23:59:59.5 +01", ColumnType::Timestamptz, "2024-02-29 22:59:59.5+00"),
            ("\\xDE ad\n", ColumnType::Bytea, "\\xdead"),
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
            assert_eq!(parse_datum(text, decimal, Zone::UTC).unwrap_err().state.code(), "22003", "{text}");
        }
        assert!(exact_decimal("1e-38").is_some());
        assert!(exact_decimal("10e-39").is_some());
        assert!(exact_decimal("6.62607015e-34").is_none());
        // Zero is zero, whatever its exponent.
        assert_eq!(there_and_back("0e-400", ColumnType::Double), "0");
    }

    #[test]
    fn what_is_no_value_has_its_state() {
        let state = |text: &str, data_type| parse_datum(text, data_type, Zone::UTC).unwrap_err().state.code();
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
        assert_eq!(state("a\\9", ColumnType::Bytea), "22P02");
        assert_eq!(state("\\xabc", ColumnType::Bytea), "22023");
        assert_eq!(state("\\xa b0", ColumnType::Bytea), "22023");
    }
}
