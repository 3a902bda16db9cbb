//! Types: their SQL names, conversion to and from Arrow, and casts. [`value`](crate::value) has the forms of their values.

mod array;
mod cast;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::sql::sqlparser::ast::{self, ArrayElemTypeDef, CharacterLength, ExactNumberInfo, TimezoneInfo};

pub(crate) use array::{datum_at, to_scalar};
pub(crate) use cast::{cast, castable, comparable, instant_of, local_of, no_cast, round_decimal};

use super::{ColumnType, Datum};
use crate::value::{ANY_DIGITS, ANY_LENGTH};
use crate::{SqlError, SqlState};

/// The key in a field's metadata that holds the column type, where the Arrow type does not determine it.
pub(crate) const TYPE_KEY: &str = "farhold.type";

/// The Arrow type of timestamps.
pub(crate) const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
/// The zone in the Arrow type of timestamps with time zone, whose values are in UTC in every session.
static UTC: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from("UTC"));
/// The Arrow type of intervals.
pub(crate) const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// The column type of a SQL type name.
pub(crate) fn from_sql(data_type: &ast::DataType) -> Result<ColumnType, SqlError> {
    use ast::DataType as T;
    Ok(match data_type {
        T::Boolean | T::Bool => ColumnType::Boolean,
        T::SmallInt(None) | T::Int2(None) => ColumnType::SmallInt,
        T::Int(None) | T::Integer(None) | T::Int4(None) => ColumnType::Int,
        T::BigInt(None) | T::Int8(None) => ColumnType::BigInt,
        T::Real | T::Float4 => ColumnType::Real,
        T::Double(_) | T::DoublePrecision | T::Float8 => ColumnType::Double,
        T::Float(info) => match info {
            ExactNumberInfo::Precision(1..=24) => ColumnType::Real,
            ExactNumberInfo::None | ExactNumberInfo::Precision(25..=53) => ColumnType::Double,
            _ => {
                return Err(SqlError::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    "precision for type float must be 1 to 53",
                ));
            }
        },
        T::Numeric(info) | T::Decimal(info) | T::Dec(info) => decimal(info)?,
        T::Char(length) | T::Character(length) => ColumnType::Char(characters(length.as_ref(), 1)?),
        T::Varchar(length) | T::CharacterVarying(length) | T::CharVarying(length) | T::Nvarchar(length) => match length
        {
            None => ColumnType::Text,
            length => ColumnType::Varchar(characters(length.as_ref(), 1)?),
        },
        T::Text | T::String(None) => ColumnType::Text,
        T::Bytea => ColumnType::Bytea,
        T::Date => ColumnType::Date,
        T::Timestamp(Some(7..), _) => {
            let message = "precision for type timestamp must be 0 to 6";
            return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
        }
        T::Timestamp(_, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => ColumnType::Timestamp,
        T::Timestamp(_, TimezoneInfo::WithTimeZone | TimezoneInfo::Tz) => ColumnType::Timestamptz,
        T::Array(ArrayElemTypeDef::SquareBracket(..) | ArrayElemTypeDef::AngleBracket(..)) => {
            return Err(SqlError::unsupported(format!("array type {data_type}")));
        }
        T::Custom(name, modifiers) => {
            let name = name.to_string().to_lowercase();
            match (name.strip_prefix("pg_catalog.").unwrap_or(&name), modifiers.as_slice()) {
                ("bpchar", [n]) => ColumnType::Char(parse_length(n)?),
                ("bpchar", []) => ColumnType::Char(ANY_LENGTH),
                ("name", []) => ColumnType::Text,
                ("timestamptz", []) => ColumnType::Timestamptz,
                ("timestamp", []) => ColumnType::Timestamp,
                ("serial" | "bigserial" | "smallserial" | "serial4" | "serial8", []) => {
                    return Err(SqlError::unsupported(format!("type {name} in this place"))
                        .with_hint("It is allowed only in CREATE TABLE; use integer."));
                }
                _ => return Err(SqlError::new(SqlState::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))),
            }
        }
        other => return Err(SqlError::unsupported(format!("type {}", other.to_string().to_lowercase()))),
    })
}

/// The fractional digits of `TIMESTAMP(p)`, with or without time zone, if p limits them.
pub(crate) fn timestamp_digits(data_type: &ast::DataType) -> Option<u8> {
    match data_type {
        ast::DataType::Timestamp(Some(digits @ 0..=5), _) => u8::try_from(*digits).ok(),
        _ => None,
    }
}

/// The Arrow type of timestamps with time zone.
pub(crate) fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::clone(&UTC)))
}

/// Whether it is an Arrow type of timestamps with time zone.
pub(crate) fn is_timestamptz(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(_, Some(_)))
}

/// A timestamp with time zone as a DataFusion scalar.
pub(crate) fn instant_scalar(microseconds: Option<i64>) -> ScalarValue {
    ScalarValue::TimestampMicrosecond(microseconds, Some(Arc::clone(&UTC)))
}

fn decimal(info: &ExactNumberInfo) -> Result<ColumnType, SqlError> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => (ANY_DIGITS.0.into(), ANY_DIGITS.1.into()),
        ExactNumberInfo::Precision(p) => (p, 0),
        ExactNumberInfo::PrecisionAndScale(p, s) => (p, s),
    };
    let bad = |message: String| SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message);
    let precision_max = u64::from(ColumnType::PRECISION_MAX);
    if precision == 0 || precision > precision_max {
        return Err(bad(format!("NUMERIC precision {precision} must be between 1 and {precision_max}")));
    }
    let Some(scale) = u64::try_from(scale).ok().filter(|s| *s <= precision) else {
        return Err(bad(format!("NUMERIC scale {scale} must be between 0 and precision {precision}")));
    };
    Ok(ColumnType::Decimal {
        precision: u8::try_from(precision).unwrap_or(38),
        scale: u8::try_from(scale).unwrap_or(0),
    })
}

fn characters(length: Option<&CharacterLength>, default: u32) -> Result<u32, SqlError> {
    let length = match length {
        None => return Ok(default),
        Some(CharacterLength::IntegerLength { length, .. }) => *length,
        Some(CharacterLength::Max) => return Err(SqlError::unsupported("length MAX")),
    };
    u32::try_from(length).ok().filter(|n| (1..=ColumnType::CHARACTERS_MAX).contains(n)).ok_or_else(|| {
        SqlError::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("length for type character must be 1 to {}", ColumnType::CHARACTERS_MAX),
        )
    })
}

/// The type of a parameter in place of a value of this type. It has no length. For a VARCHAR(n) it is TEXT, whose
/// operators VARCHAR uses.
pub(crate) fn type_of_parameter(stands_for: ColumnType) -> ColumnType {
    match stands_for {
        ColumnType::Char(_) => ColumnType::Char(ANY_LENGTH),
        ColumnType::Varchar(_) => ColumnType::Text,
        other => other,
    }
}

fn parse_length(text: &str) -> Result<u32, SqlError> {
    text.parse().map_err(|_| SqlError::syntax(format!("invalid length: {text}")))
}

/// The Arrow type of a column type.
pub(crate) fn to_arrow(data_type: ColumnType) -> DataType {
    match data_type {
        ColumnType::Boolean => DataType::Boolean,
        ColumnType::SmallInt => DataType::Int16,
        ColumnType::Int => DataType::Int32,
        ColumnType::BigInt => DataType::Int64,
        ColumnType::Real => DataType::Float32,
        ColumnType::Double => DataType::Float64,
        ColumnType::Decimal { precision, scale } => DataType::Decimal128(precision, scale.cast_signed()),
        ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text => DataType::Utf8View,
        ColumnType::Bytea => DataType::Binary,
        ColumnType::Date => DataType::Date32,
        ColumnType::Timestamp => TIMESTAMP,
        ColumnType::Timestamptz => timestamptz(),
    }
}

/// An Arrow field for a column. `CHAR(n)` and `VARCHAR(n)` go into the metadata, which survives a plain projection.
pub(crate) fn to_field(name: &str, data_type: ColumnType, nullable: bool) -> Field {
    let field = Field::new(name, to_arrow(data_type), nullable);
    let text = match data_type {
        ColumnType::Char(n) => format!("char({n})"),
        ColumnType::Varchar(n) => format!("varchar({n})"),
        _ => return field,
    };
    field.with_metadata(HashMap::from([(TYPE_KEY.to_owned(), text)]))
}

/// The column type of a result's field on the wire; `None` if no column type fits.
pub(crate) fn from_field(field: &Field) -> Option<ColumnType> {
    if let Some(text) = field.metadata().get(TYPE_KEY)
        && matches!(field.data_type(), DataType::Utf8View | DataType::Utf8 | DataType::LargeUtf8)
    {
        let (name, length) = text.trim_end_matches(')').split_once('(')?;
        let length = length.parse().ok()?;
        return Some(if name == "char" { ColumnType::Char(length) } else { ColumnType::Varchar(length) });
    }
    from_arrow(field.data_type())
}

/// The column type of an Arrow type.
pub(crate) fn from_arrow(data_type: &DataType) -> Option<ColumnType> {
    Some(match data_type {
        DataType::Boolean => ColumnType::Boolean,
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => ColumnType::SmallInt,
        DataType::UInt16 | DataType::Int32 => ColumnType::Int,
        DataType::UInt32 | DataType::Int64 => ColumnType::BigInt,
        DataType::UInt64 => ColumnType::Decimal { precision: 20, scale: 0 },
        DataType::Float16 | DataType::Float32 => ColumnType::Real,
        DataType::Float64 => ColumnType::Double,
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) => {
            ColumnType::Decimal { precision: *p, scale: u8::try_from(*s).ok()? }
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => ColumnType::Text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            ColumnType::Bytea
        }
        DataType::Date32 | DataType::Date64 => ColumnType::Date,
        DataType::Timestamp(_, None) => ColumnType::Timestamp,
        DataType::Timestamp(_, Some(_)) => ColumnType::Timestamptz,
        DataType::Dictionary(_, value) => return from_arrow(value),
        _ => return None,
    })
}

/// The column type of a datum.
pub(crate) fn type_of(datum: &Datum) -> ColumnType {
    match datum {
        Datum::Null | Datum::Text(_) => ColumnType::Text,
        Datum::Boolean(_) => ColumnType::Boolean,
        Datum::SmallInt(_) => ColumnType::SmallInt,
        Datum::Int(_) => ColumnType::Int,
        Datum::BigInt(_) => ColumnType::BigInt,
        Datum::Real(_) => ColumnType::Real,
        Datum::Double(_) => ColumnType::Double,
        Datum::Decimal { scale, .. } => ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale: *scale },
        Datum::Bytea(_) => ColumnType::Bytea,
        Datum::Date(_) => ColumnType::Date,
        Datum::Timestamp(_) => ColumnType::Timestamp,
        Datum::Timestamptz(_) => ColumnType::Timestamptz,
    }
}
