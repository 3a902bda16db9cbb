//! Encodes Arrow batches as `DataRow` messages.
//!
//! First a batch's columns are cast to the few Arrow types that have an encoder here (a no-op for the engine's own
//! columns), then the rows are written one after the other. Types that only PostgreSQL's catalog or expressions use
//! (intervals, times, lists, unsigned numbers) get their wire type from their Arrow type; types without one are sent as
//! text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Field, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, IntervalUnit, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};

use super::{Column, Shape, put_value, put_with_length};
use crate::engine::{ColumnType, OutputColumn, datum_at};
use crate::error::SqlError;
use crate::server::wire::backend::Output;
use crate::server::wire::frontend::{Format, Formats};
use crate::value::numeric::{self, Decimal};
use crate::value::{
    Zone, binary, format_datum, oid, put_bytea, put_date, put_decimal, put_float4, put_float8, put_integer,
    put_interval, put_list, put_string, put_time, put_timestamp, put_timestamptz,
};

/// The wire type of a result's column.
pub fn wire_type(column: &OutputColumn) -> u32 {
    match (&column.arrow_type, column.data_type) {
        // The engine gives the type `Text` to all columns without a column type.
        (DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null, _) => oid::of(column.data_type),
        (arrow_type, ColumnType::Text) => arrow_wire_type(arrow_type),
        (_, data_type) => oid::of(data_type),
    }
}

fn arrow_wire_type(arrow_type: &DataType) -> u32 {
    match normal_type(arrow_type) {
        DataType::Boolean => oid::BOOL,
        DataType::Int16 => oid::INT2,
        DataType::Int32 => oid::INT4,
        DataType::Int64 => oid::INT8,
        DataType::Float32 => oid::FLOAT4,
        DataType::Float64 => oid::FLOAT8,
        DataType::Decimal128(..) => oid::NUMERIC,
        DataType::Binary => oid::BYTEA,
        DataType::Date32 => oid::DATE,
        DataType::Time64(_) => oid::TIME,
        DataType::Timestamp(_, None) => oid::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => oid::TIMESTAMPTZ,
        DataType::Interval(_) => oid::INTERVAL,
        DataType::List(element) => oid::array_of(arrow_wire_type(element.data_type())).unwrap_or(oid::TEXT),
        _ => oid::TEXT,
    }
}

/// The type with an encoder that can hold the same values.
fn normal_type(arrow_type: &DataType) -> DataType {
    match arrow_type {
        DataType::Int8 | DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::Decimal256(_, scale) => DataType::Decimal128(38, *scale),
        DataType::Float16 => DataType::Float32,
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Time32(_) | DataType::Time64(_) => DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Interval(_) | DataType::Duration(_) => DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Dictionary(_, values) => normal_type(values),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            DataType::List(Arc::new(Field::new(field.name(), normal_type(field.data_type()), true)))
        }
        DataType::Boolean
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Decimal128(..)
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::Binary
        | DataType::Date32
        | DataType::Null => arrow_type.clone(),
        // Strings in other layouts, and all else that can be cast to text.
        _ => DataType::Utf8,
    }
}

/// Encodes the rows of one batch.
pub struct BatchEncoder {
    columns: Vec<ArrayRef>,
    rows: usize,
    next: usize,
}

impl BatchEncoder {
    /// Prepares a batch for encoding. Records become texts, with timestamps in the session's `zone`.
    ///
    /// # Errors
    /// A value that its wire type cannot hold.
    pub fn new(batch: &RecordBatch, zone: Zone) -> Result<Self, SqlError> {
        let columns = batch.columns().iter().map(|column| normalize(column, zone)).collect::<Result<_, _>>()?;
        Ok(Self { columns, rows: batch.num_rows(), next: 0 })
    }

    /// The number of rows not written yet.
    pub fn left(&self) -> usize {
        self.rows - self.next
    }

    /// Skips the next row, which must exist.
    pub fn skip_row(&mut self) {
        self.next += 1;
    }

    /// Writes the next row, which must exist, with timestamps in the session's `zone`.
    ///
    /// # Errors
    /// As [`Shape::put_row`].
    pub fn put_row(
        &mut self,
        shape: &Shape,
        formats: Formats<'_>,
        zone: Zone,
        output: &mut Output,
    ) -> Result<(), SqlError> {
        let row = self.next;
        self.next += 1;
        let message = output.open(b'D');
        output.count(self.columns.len());
        for (index, (array, column)) in self.columns.iter().zip(&shape.columns).enumerate() {
            if array.is_null(row) || array.data_type() == &DataType::Null {
                output.i32(-1);
            } else {
                put_value(&message, output, |out| match formats.of(index) {
                    Format::Text => {
                        put_text(array, row, column, zone, out);
                        Ok(())
                    }
                    Format::Binary => put_binary(array, row, column, zone, out),
                })?;
            }
        }
        output.close(&message);
        Ok(())
    }
}

fn normalize(array: &ArrayRef, zone: Zone) -> Result<ArrayRef, SqlError> {
    // Strings and bytes have an encoder for each layout.
    let has_encoder = matches!(
        array.data_type(),
        DataType::Utf8View | DataType::LargeUtf8 | DataType::BinaryView | DataType::LargeBinary
    );
    if matches!(array.data_type(), DataType::Struct(_)) {
        let text = |row| datum_at(array, row, zone).map(|record| format_datum(&record, zone));
        let texts = (0..array.len()).map(text);
        return Ok(Arc::new(texts.collect::<Result<StringArray, SqlError>>()?));
    }
    let to = normal_type(array.data_type());
    if has_encoder || array.data_type() == &to {
        return Ok(Arc::clone(array));
    }
    let array = match array.data_type() {
        // Arrow casts only durations of nanoseconds to intervals.
        DataType::Duration(_) => &cast(array, &DataType::Duration(TimeUnit::Nanosecond)).map_err(unsendable)?,
        _ => array,
    };
    cast(array, &to).map_err(unsendable)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn unsendable(error: arrow::error::ArrowError) -> SqlError {
    SqlError::internal(format!("a result cannot be sent: {error}"))
}

fn put_text(array: &ArrayRef, row: usize, column: &Column, zone: Zone, out: &mut Vec<u8>) {
    match array.data_type() {
        DataType::Utf8 => put_string(array.as_string::<i32>().value(row), column.data_type, out),
        DataType::LargeUtf8 => put_string(array.as_string::<i64>().value(row), column.data_type, out),
        DataType::Utf8View => put_string(array.as_string_view().value(row), column.data_type, out),
        _ => put_plain_text(array, row, zone, out),
    }
}

fn put_plain_text(array: &ArrayRef, row: usize, zone: Zone, out: &mut Vec<u8>) {
    match array.data_type() {
        DataType::Boolean => out.push(if array.as_boolean().value(row) { b't' } else { b'f' }),
        DataType::Int16 => put_integer(array.as_primitive::<Int16Type>().value(row).into(), out),
        DataType::Int32 => put_integer(array.as_primitive::<Int32Type>().value(row).into(), out),
        DataType::Int64 => put_integer(array.as_primitive::<Int64Type>().value(row), out),
        DataType::Float32 => put_float4(array.as_primitive::<Float32Type>().value(row), out),
        DataType::Float64 => put_float8(array.as_primitive::<Float64Type>().value(row), out),
        DataType::Decimal128(_, scale) => put_decimal(decimal(array, row, *scale), out),
        DataType::Utf8 => out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => put_bytea(array.as_binary::<i32>().value(row), out),
        DataType::LargeBinary => put_bytea(array.as_binary::<i64>().value(row), out),
        DataType::BinaryView => put_bytea(array.as_binary_view().value(row), out),
        DataType::Date32 => put_date(array.as_primitive::<Date32Type>().value(row), out),
        DataType::Time64(_) => put_time(array.as_primitive::<Time64MicrosecondType>().value(row), out),
        DataType::Timestamp(_, None) => {
            put_timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row), out);
        }
        DataType::Timestamp(_, Some(_)) => {
            put_timestamptz(array.as_primitive::<TimestampMicrosecondType>().value(row), zone, out);
        }
        DataType::Interval(_) => {
            put_interval(array.as_primitive::<IntervalMonthDayNanoType>().value(row), out);
        }
        DataType::List(_) => {
            let put = &mut |array: &ArrayRef, row, out: &mut Vec<u8>| put_plain_text(array, row, zone, out);
            put_list(&array.as_list::<i32>().value(row), out, put);
        }
        other => unreachable!("{other} is no normal type"),
    }
}

fn put_binary(array: &ArrayRef, row: usize, column: &Column, zone: Zone, out: &mut Vec<u8>) -> Result<(), SqlError> {
    match array.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => put_text(array, row, column, zone, out),
        // A list without a wire type is sent as text.
        DataType::List(_) if column.oid == oid::TEXT => put_plain_text(array, row, zone, out),
        _ => return put_plain_binary(array, row, out),
    }
    Ok(())
}

fn put_plain_binary(array: &ArrayRef, row: usize, out: &mut Vec<u8>) -> Result<(), SqlError> {
    match array.data_type() {
        DataType::Boolean => out.push(u8::from(array.as_boolean().value(row))),
        DataType::Int16 => out.extend_from_slice(&array.as_primitive::<Int16Type>().value(row).to_be_bytes()),
        DataType::Int32 => out.extend_from_slice(&array.as_primitive::<Int32Type>().value(row).to_be_bytes()),
        DataType::Int64 => out.extend_from_slice(&array.as_primitive::<Int64Type>().value(row).to_be_bytes()),
        DataType::Float32 => out.extend_from_slice(&array.as_primitive::<Float32Type>().value(row).to_be_bytes()),
        DataType::Float64 => out.extend_from_slice(&array.as_primitive::<Float64Type>().value(row).to_be_bytes()),
        DataType::Decimal128(_, scale) => numeric::put_binary(decimal(array, row, *scale), out),
        DataType::Binary => out.extend_from_slice(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => out.extend_from_slice(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => out.extend_from_slice(array.as_binary_view().value(row)),
        DataType::Date32 => binary::put_date(array.as_primitive::<Date32Type>().value(row), out),
        DataType::Time64(_) => {
            out.extend_from_slice(&array.as_primitive::<Time64MicrosecondType>().value(row).to_be_bytes());
        }
        DataType::Timestamp(..) => {
            binary::put_timestamp(array.as_primitive::<TimestampMicrosecondType>().value(row), out);
        }
        DataType::Interval(_) => {
            binary::put_interval(array.as_primitive::<IntervalMonthDayNanoType>().value(row), out);
        }
        DataType::List(_) => return put_list_binary(&array.as_list::<i32>().value(row), out),
        // Of these types none has a zone.
        _ => put_plain_text(array, row, Zone::UTC, out),
    }
    Ok(())
}

/// `dimensions | has nulls | element type | length | lower bound | elements`; an empty array has no dimension.
fn put_list_binary(elements: &ArrayRef, out: &mut Vec<u8>) -> Result<(), SqlError> {
    let nulls = elements.null_count() > 0 || elements.data_type() == &DataType::Null;
    out.extend_from_slice(&i32::from(!elements.is_empty()).to_be_bytes());
    out.extend_from_slice(&i32::from(nulls).to_be_bytes());
    out.extend_from_slice(&arrow_wire_type(elements.data_type()).to_be_bytes());
    if elements.is_empty() {
        return Ok(());
    }
    out.extend_from_slice(&i32::try_from(elements.len()).expect("a list below 2 G").to_be_bytes());
    out.extend_from_slice(&1_i32.to_be_bytes());
    for index in 0..elements.len() {
        if elements.is_null(index) || elements.data_type() == &DataType::Null {
            out.extend_from_slice(&(-1_i32).to_be_bytes());
        } else {
            put_with_length(out, |out| put_plain_binary(elements, index, out))?;
        }
    }
    Ok(())
}

fn decimal(array: &ArrayRef, row: usize, scale: i8) -> Decimal {
    let unscaled = array.as_primitive::<Decimal128Type>().value(row);
    match u8::try_from(scale) {
        Ok(scale) => Decimal { unscaled, scale },
        // A negative scale counts powers of ten.
        Err(_) => Decimal {
            unscaled: unscaled.saturating_mul(10_i128.saturating_pow(u32::from(scale.unsigned_abs()))),
            scale: 0,
        },
    }
}
