//! Values out of Arrow arrays and into them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float32Builder,
    Float64Builder, Int16Builder, Int32Builder, Int64Builder, StringViewBuilder, TimestampMicrosecondBuilder,
};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimeUnit,
    TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;

use super::{cast, from_arrow, to_arrow};
use crate::SqlError;
use crate::engine::{ColumnType, Datum};

/// The value at `row` of an array of any type that has one of ours; others as their text.
pub(crate) fn datum_at(array: &ArrayRef, row: usize) -> Result<Datum, SqlError> {
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
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Datum::Timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row))
        }
        other => {
            let to = from_arrow(other).map_or(DataType::Utf8, to_arrow);
            let one = arrow_cast(&array.slice(row, 1), &to).map_err(|e| SqlError::internal(e.to_string()))?;
            return datum_at(&one, 0);
        }
    })
}

/// A datum as DataFusion's scalar, of the Arrow type of `data_type`.
pub(crate) fn to_scalar(datum: &Datum, data_type: ColumnType) -> Result<ScalarValue, SqlError> {
    let datum = cast(datum.clone(), data_type)?;
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
    })
}

/// Builds an array of a column's type from datums.
pub(crate) enum ArrayWriter {
    Boolean(BooleanBuilder),
    SmallInt(Int16Builder),
    Int(Int32Builder),
    BigInt(Int64Builder),
    Real(Float32Builder),
    Double(Float64Builder),
    Decimal(Decimal128Builder, u8),
    Text(StringViewBuilder),
    Bytea(BinaryBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
}

impl ArrayWriter {
    /// For a column of `data_type`.
    pub(crate) fn new(data_type: ColumnType) -> Self {
        match data_type {
            ColumnType::Boolean => Self::Boolean(BooleanBuilder::new()),
            ColumnType::SmallInt => Self::SmallInt(Int16Builder::new()),
            ColumnType::Int => Self::Int(Int32Builder::new()),
            ColumnType::BigInt => Self::BigInt(Int64Builder::new()),
            ColumnType::Real => Self::Real(Float32Builder::new()),
            ColumnType::Double => Self::Double(Float64Builder::new()),
            ColumnType::Decimal { scale, .. } => {
                Self::Decimal(Decimal128Builder::new().with_data_type(to_arrow(data_type)), scale)
            }
            ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text => Self::Text(StringViewBuilder::new()),
            ColumnType::Bytea => Self::Bytea(BinaryBuilder::new()),
            ColumnType::Date => Self::Date(Date32Builder::new()),
            ColumnType::Timestamp => Self::Timestamp(TimestampMicrosecondBuilder::new()),
        }
    }

    /// Appends a datum that has the column's type, or NULL.
    pub(crate) fn push(&mut self, datum: &Datum) -> Result<(), SqlError> {
        match (self, datum) {
            (Self::Boolean(b), Datum::Boolean(v)) => b.append_value(*v),
            (Self::Boolean(b), Datum::Null) => b.append_null(),
            (Self::SmallInt(b), Datum::SmallInt(v)) => b.append_value(*v),
            (Self::SmallInt(b), Datum::Null) => b.append_null(),
            (Self::Int(b), Datum::Int(v)) => b.append_value(*v),
            (Self::Int(b), Datum::Null) => b.append_null(),
            (Self::BigInt(b), Datum::BigInt(v)) => b.append_value(*v),
            (Self::BigInt(b), Datum::Null) => b.append_null(),
            (Self::Real(b), Datum::Real(v)) => b.append_value(*v),
            (Self::Real(b), Datum::Null) => b.append_null(),
            (Self::Double(b), Datum::Double(v)) => b.append_value(*v),
            (Self::Double(b), Datum::Null) => b.append_null(),
            (Self::Decimal(b, scale), Datum::Decimal { unscaled, scale: from }) => {
                let value = super::round_decimal(*unscaled, *from, *scale);
                b.append_value(value.ok_or_else(|| SqlError::internal("a decimal that does not fit its column"))?);
            }
            (Self::Decimal(b, _), Datum::Null) => b.append_null(),
            (Self::Text(b), Datum::Text(v)) => b.append_value(v),
            (Self::Text(b), Datum::Null) => b.append_null(),
            (Self::Bytea(b), Datum::Bytea(v)) => b.append_value(v),
            (Self::Bytea(b), Datum::Null) => b.append_null(),
            (Self::Date(b), Datum::Date(v)) => b.append_value(*v),
            (Self::Date(b), Datum::Null) => b.append_null(),
            (Self::Timestamp(b), Datum::Timestamp(v)) => b.append_value(*v),
            (Self::Timestamp(b), Datum::Null) => b.append_null(),
            (_, other) => return Err(SqlError::internal(format!("a {} in a column of another type", other.kind()))),
        }
        Ok(())
    }

    /// The array.
    pub(crate) fn finish(self) -> ArrayRef {
        match self {
            Self::Boolean(mut b) => Arc::new(b.finish()),
            Self::SmallInt(mut b) => Arc::new(b.finish()),
            Self::Int(mut b) => Arc::new(b.finish()),
            Self::BigInt(mut b) => Arc::new(b.finish()),
            Self::Real(mut b) => Arc::new(b.finish()),
            Self::Double(mut b) => Arc::new(b.finish()),
            Self::Decimal(mut b, _) => Arc::new(b.finish()),
            Self::Text(mut b) => Arc::new(b.finish()),
            Self::Bytea(mut b) => Arc::new(b.finish()),
            Self::Date(mut b) => Arc::new(b.finish()),
            Self::Timestamp(mut b) => Arc::new(b.finish()),
        }
    }
}
