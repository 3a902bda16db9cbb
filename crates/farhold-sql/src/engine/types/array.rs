//! Conversion of values from and to Arrow arrays.

use arrow::array::{Array, ArrayRef, AsArray, StructArray};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;

use super::{cast, from_arrow, instant_scalar, to_arrow};
use crate::SqlError;
use crate::engine::{ColumnType, Datum};
use crate::value::{self, Zone, put_interval, put_list, put_record, put_time, written};

/// The value at `row` of an array. A type without a column type is converted to text, with timestamps in `zone`, the
/// session's.
pub(crate) fn datum_at(array: &ArrayRef, row: usize, zone: Zone) -> Result<Datum, SqlError> {
    if array.is_null(row) {
        return Ok(Datum::Null);
    }
    Ok(match array.data_type() {
        DataType::Boolean => Datum::Boolean(array.as_boolean().value(row)),
        DataType::Int16 => Datum::SmallInt(array.as_primitive::<Int16Type>().value(row)),
        DataType::Int32 => Datum::Int(array.as_primitive::<Int32Type>().value(row)),
        DataType::Int64 => Datum::BigInt(array.as_primitive::<Int64Type>().value(row)),
        DataType::Float32 => Datum::Real(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => Datum::Double(array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale) => Datum::Decimal {
            unscaled: array.as_primitive::<Decimal128Type>().value(row),
            scale: u8::try_from(*scale).map_err(|_| SqlError::unsupported("a negative scale"))?,
        },
        DataType::Utf8 => Datum::Text(array.as_string::<i32>().value(row).to_owned()),
        DataType::LargeUtf8 => Datum::Text(array.as_string::<i64>().value(row).to_owned()),
        DataType::Utf8View => Datum::Text(array.as_string_view().value(row).to_owned()),
        DataType::Binary => Datum::Bytea(array.as_binary::<i32>().value(row).to_owned()),
        DataType::LargeBinary => Datum::Bytea(array.as_binary::<i64>().value(row).to_owned()),
        DataType::BinaryView => Datum::Bytea(array.as_binary_view().value(row).to_owned()),
        DataType::Date32 => Datum::Date(array.as_primitive::<Date32Type>().value(row)),
        DataType::Timestamp(TimeUnit::Microsecond, None) => {
            Datum::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
            Datum::Timestamptz(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        DataType::List(_) => list(&array.as_list::<i32>().value(row), zone)?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row), zone)?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row), zone)?,
        DataType::Struct(_) => record(array.as_struct(), row, zone)?,
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            Datum::Text(written(|out| put_interval(value, out)))
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            let value = array.as_primitive::<Time64MicrosecondType>().value(row);
            Datum::Text(written(|out| put_time(value, out)))
        }
        other => {
            let to = other_form(other);
            let one = arrow_cast(&array.slice(row, 1), &to).map_err(|e| SqlError::internal(e.to_string()))?;
            return datum_at(&one, 0, zone);
        }
    })
}

/// The type to which an array is cast before its values are read.
fn other_form(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Interval(_) | DataType::Duration(TimeUnit::Nanosecond) => {
            DataType::Interval(IntervalUnit::MonthDayNano)
        }
        // Arrow casts only durations of nanoseconds to intervals.
        DataType::Duration(_) => DataType::Duration(TimeUnit::Nanosecond),
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        other => from_arrow(other).map_or(DataType::Utf8, to_arrow),
    }
}

fn list(elements: &ArrayRef, zone: Zone) -> Result<Datum, SqlError> {
    let mut wrong = None;
    let list = written(|out| {
        put_list(elements, out, &mut |elements, index, out| match datum_at(elements, index, zone) {
            Ok(datum) => value::put(&datum, ColumnType::Text, zone, out),
            Err(error) => wrong = Some(error),
        });
    });
    wrong.map_or(Ok(Datum::Text(list)), Err)
}

fn record(fields: &StructArray, row: usize, zone: Zone) -> Result<Datum, SqlError> {
    let texts = fields.columns().iter().map(|field| Ok(value::format_datum(&datum_at(field, row, zone)?, zone)));
    let texts = texts.collect::<Result<Vec<_>, SqlError>>()?;
    Ok(Datum::Text(written(|out| put_record(texts.iter().map(Option::as_deref), out))))
}

/// A datum as a DataFusion scalar, with the Arrow type of `data_type`. Timestamps with time zone are converted in `zone`.
pub(crate) fn to_scalar(datum: &Datum, data_type: ColumnType, zone: Zone) -> Result<ScalarValue, SqlError> {
    let datum = cast(datum.clone(), data_type, zone)?;
    Ok(match (data_type, datum) {
        (_, Datum::Null) => {
            ScalarValue::try_from(&to_arrow(data_type)).map_err(|e| SqlError::internal(e.to_string()))?
        }
        (_, Datum::Boolean(v)) => ScalarValue::Boolean(Some(v)),
        (_, Datum::SmallInt(v)) => ScalarValue::Int16(Some(v)),
        (_, Datum::Int(v)) => ScalarValue::Int32(Some(v)),
        (_, Datum::BigInt(v)) => ScalarValue::Int64(Some(v)),
        (_, Datum::Real(v)) => ScalarValue::Float32(Some(v)),
        (_, Datum::Double(v)) => ScalarValue::Float64(Some(v)),
        (ColumnType::Decimal { precision, .. }, Datum::Decimal { unscaled, scale }) => {
            ScalarValue::Decimal128(Some(unscaled), precision, scale.cast_signed())
        }
        (_, Datum::Decimal { unscaled, scale }) => ScalarValue::Decimal128(Some(unscaled), 38, scale.cast_signed()),
        (_, Datum::Text(v)) => ScalarValue::Utf8View(Some(v)),
        (_, Datum::Bytea(v)) => ScalarValue::Binary(Some(v)),
        (_, Datum::Date(v)) => ScalarValue::Date32(Some(v)),
        (_, Datum::Timestamp(v)) => ScalarValue::TimestampMicrosecond(Some(v), None),
        (_, Datum::Timestamptz(v)) => instant_scalar(Some(v)),
    })
}
