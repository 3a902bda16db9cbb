//! Rows to Arrow: only the wanted columns, each by one read at a place that the schema fixes.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BinaryViewBuilder, BooleanArray, BooleanBufferBuilder, Date32Array, Decimal128Array,
    Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions,
    TimestampMicrosecondArray,
};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use farhold_store::row::{ColumnReader, Stored};

use crate::engine::catalog::TableInfo;

/// A batch ends with the row that brings its texts and byte strings to this: long rows make short batches, since operators hold some batches
/// beside what they reserve.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Room that a builder of variable bytes starts with, per row.
const TEXT_BYTES: usize = 16;

enum Values {
    Bool(BooleanBufferBuilder),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    /// Decimals of every width.
    I128(Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Text(BinaryViewBuilder),
    Bytes(BinaryBuilder),
}

struct Column {
    reader: ColumnReader,
    data_type: DataType,
    values: Values,
    /// Set = valid; only for columns that can be null.
    valid: Option<BooleanBufferBuilder>,
}

/// Collects rows into batches of a projection of a table's columns.
pub(crate) struct BatchDecoder {
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
    /// Of texts and byte strings.
    bytes: usize,
    capacity: usize,
    scratch: Vec<u8>,
}

impl BatchDecoder {
    /// For the columns `projection` of `table`, whose fields are `schema`'s.
    pub(crate) fn new(table: &TableInfo, projection: &[usize], schema: SchemaRef, capacity: usize) -> Self {
        let columns = projection
            .iter()
            .zip(schema.fields())
            .map(|(&column, field)| {
                let reader = ColumnReader::new(table.schema(), column);
                let data_type = field.data_type().clone();
                let values = Values::new(&reader, &data_type, capacity);
                let valid = reader.nullable().then(|| BooleanBufferBuilder::new(capacity));
                Column { reader, data_type, values, valid }
            })
            .collect();
        Self { schema, columns, rows: 0, bytes: 0, capacity, scratch: Vec::new() }
    }

    /// How many bytes of each value, from its start, the columns take.
    pub(crate) fn value_bytes(&self) -> usize {
        self.columns.iter().map(|c| c.reader.value_bytes()).max().unwrap_or(0)
    }

    /// Rows since the last batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the rows are a batch: there are as many as it was made for, or they are long.
    pub(crate) fn is_full(&self) -> bool {
        self.rows >= self.capacity || self.bytes >= BATCH_BYTES_MAX
    }

    /// Appends a row.
    #[inline]
    pub(crate) fn append(&mut self, key: &[u8], value: &[u8]) {
        self.rows += 1;
        for column in &mut self.columns {
            self.bytes += column.append(key, value, &mut self.scratch);
        }
    }

    /// The rows so far as a batch.
    pub(crate) fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let capacity = self.capacity;
        let arrays = self.columns.iter_mut().map(|c| c.finish(capacity)).collect::<Result<Vec<_>, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options)
    }
}

impl Values {
    fn new(reader: &ColumnReader, data_type: &DataType, capacity: usize) -> Self {
        if matches!(data_type, DataType::Decimal128(..)) {
            return Self::I128(Vec::with_capacity(capacity));
        }
        match reader.stored() {
            Stored::Bool => Self::Bool(BooleanBufferBuilder::new(capacity)),
            Stored::I16 => Self::I16(Vec::with_capacity(capacity)),
            Stored::I32 => Self::I32(Vec::with_capacity(capacity)),
            Stored::I64 => Self::I64(Vec::with_capacity(capacity)),
            Stored::I128 => Self::I128(Vec::with_capacity(capacity)),
            Stored::F32 => Self::F32(Vec::with_capacity(capacity)),
            Stored::F64 => Self::F64(Vec::with_capacity(capacity)),
            Stored::Text => Self::Text(BinaryViewBuilder::with_capacity(capacity)),
            Stored::Bytes => Self::Bytes(BinaryBuilder::with_capacity(capacity, capacity * TEXT_BYTES)),
        }
    }
}

impl Column {
    /// Appends a row's value; its bytes if it is a text or a byte string.
    #[inline(always)]
    fn append(&mut self, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> usize {
        // A null keeps its room in the row, so its value may be read all the same.
        if let Some(valid) = &mut self.valid {
            valid.append(!self.reader.is_null(value));
        }
        let reader = &self.reader;
        match &mut self.values {
            Values::I32(values) => values.push(reader.i32(key, value)),
            Values::I64(values) => values.push(reader.i64(key, value)),
            Values::I128(values) => values.push(reader.wide(key, value)),
            Values::Text(builder) => {
                let bytes = reader.bytes(key, value, scratch);
                builder.append_value(bytes);
                return bytes.len();
            }
            Values::I16(values) => values.push(reader.i16(key, value)),
            Values::Bool(values) => values.append(reader.bool(key, value)),
            Values::F32(values) => values.push(reader.f32(key, value)),
            Values::F64(values) => values.push(reader.f64(key, value)),
            Values::Bytes(builder) => {
                let bytes = reader.bytes(key, value, scratch);
                builder.append_value(bytes);
                return bytes.len();
            }
        }
        0
    }

    fn finish(&mut self, capacity: usize) -> Result<ArrayRef, ArrowError> {
        let nulls = self.valid.as_mut().map(|valid| {
            let full = std::mem::replace(valid, BooleanBufferBuilder::new(capacity));
            NullBuffer::new(full.build())
        });
        let full = std::mem::replace(&mut self.values, Values::new(&self.reader, &self.data_type, capacity));
        Ok(match (full, &self.data_type) {
            (Values::Bool(mut v), _) => Arc::new(BooleanArray::new(v.finish(), nulls)),
            (Values::I16(v), _) => Arc::new(Int16Array::new(ScalarBuffer::from(v), nulls)),
            (Values::I32(v), DataType::Date32) => Arc::new(Date32Array::new(ScalarBuffer::from(v), nulls)),
            (Values::I32(v), _) => Arc::new(Int32Array::new(ScalarBuffer::from(v), nulls)),
            (Values::I64(v), DataType::Timestamp(..)) => {
                Arc::new(TimestampMicrosecondArray::new(ScalarBuffer::from(v), nulls))
            }
            (Values::I64(v), _) => Arc::new(Int64Array::new(ScalarBuffer::from(v), nulls)),
            (Values::I128(v), data_type) => {
                Arc::new(Decimal128Array::new(ScalarBuffer::from(v), nulls).with_data_type(data_type.clone()))
            }
            (Values::F32(v), _) => Arc::new(Float32Array::new(ScalarBuffer::from(v), nulls)),
            (Values::F64(v), _) => Arc::new(Float64Array::new(ScalarBuffer::from(v), nulls)),
            (Values::Text(mut builder), _) => {
                let array = builder.finish().to_string_view()?;
                let (views, buffers, _) = array.into_parts();
                Arc::new(arrow::array::StringViewArray::try_new(views, buffers, nulls)?)
            }
            (Values::Bytes(mut builder), _) => {
                let (offsets, values, _) = builder.finish().into_parts();
                Arc::new(arrow::array::BinaryArray::try_new(offsets, values, nulls)?)
            }
        })
    }
}
