//! Decodes the projected columns of rows or column segments to Arrow.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanArray, BooleanBufferBuilder, Date32Array, Decimal128Array, Float32Array,
    Float64Array, Int16Array, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StringViewArray,
    TimestampMicrosecondArray, make_view,
};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use farhold_scan::kernels::Bits;
use farhold_store::column::{BLOCK_ROWS, Chunk, Encoding, double_of, real_of};
use farhold_store::row::{ColumnReader, Stored};

use crate::engine::catalog::TableInfo;

/// A batch is full once its texts and byte strings reach this size: long rows must make short batches, since operators
/// hold some batches in addition to the memory that they reserve.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// The initial capacity of a builder of variable-length values, in bytes per row.
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
    Text(Views),
    Bytes(BinaryBuilder),
}

struct Column {
    /// Its index in the table.
    place: usize,
    reader: ColumnReader,
    data_type: DataType,
    values: Values,
    /// A set bit means not NULL; only for nullable columns.
    valid: Option<BooleanBufferBuilder>,
}

/// Collects rows into batches of a projection of a table's columns.
pub(crate) struct BatchDecoder {
    schema: SchemaRef,
    columns: Vec<Column>,
    rows: usize,
    /// The size of the texts and byte strings.
    bytes: usize,
    capacity: usize,
    scratch: Vec<u8>,
}

impl BatchDecoder {
    /// A decoder for the columns `projection` of `table`, whose fields are those of `schema`.
    pub(crate) fn new(table: &TableInfo, projection: &[usize], schema: SchemaRef, capacity: usize) -> Self {
        let columns = projection
            .iter()
            .zip(schema.fields())
            .map(|(&column, field)| {
                let reader = ColumnReader::new(table.schema(), column);
                let data_type = field.data_type().clone();
                let values = Values::new(&reader, &data_type, capacity);
                let valid = reader.nullable().then(|| BooleanBufferBuilder::new(capacity));
                Column { place: column, reader, data_type, values, valid }
            })
            .collect();
        Self { schema, columns, rows: 0, bytes: 0, capacity, scratch: Vec::new() }
    }

    /// The number of bytes that the columns need from the start of each value.
    pub(crate) fn value_bytes(&self) -> usize {
        self.columns.iter().map(|c| c.reader.value_bytes()).max().unwrap_or(0)
    }

    /// The number of rows since the last batch.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Whether the batch has reached its capacity in rows or bytes.
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

    /// Appends the rows of a block whose bits are set. There is a chunk for each column of the table.
    pub(crate) fn append_block(&mut self, chunks: &[Chunk<'_>], block: usize, bits: &Bits) {
        let count = bits.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        self.rows += count;
        for column in &mut self.columns {
            self.bytes += column.append_block(&chunks[column.place], block, bits, count);
        }
    }

    /// Returns the rows appended so far as a batch.
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
            Stored::Text => Self::Text(Views::with_capacity(capacity)),
            Stored::Bytes => Self::Bytes(BinaryBuilder::with_capacity(capacity, capacity * TEXT_BYTES)),
        }
    }
}

impl Column {
    /// Appends the value of a row; returns its size if it is a text or a byte string, else 0.
    #[inline(always)]
    fn append(&mut self, key: &[u8], value: &[u8], scratch: &mut Vec<u8>) -> usize {
        // A NULL occupies its space in the row, so its value can be read like any other.
        if let Some(valid) = &mut self.valid {
            valid.append(!self.reader.is_null(value));
        }
        let reader = &self.reader;
        match &mut self.values {
            Values::I32(values) => values.push(reader.i32(key, value)),
            Values::I64(values) => values.push(reader.i64(key, value)),
            Values::I128(values) => values.push(reader.wide(key, value)),
            Values::Text(views) => {
                let bytes = reader.bytes(key, value, scratch);
                views.push(bytes);
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

    /// Like [`append`](Self::append), for the `count` rows of a block whose bits are set.
    fn append_block(&mut self, chunk: &Chunk<'_>, block: usize, bits: &Bits, count: usize) -> usize {
        if let Some(valid) = &mut self.valid {
            match chunk.nulls(block) {
                None => valid.append_n(count, true),
                Some(nulls) => each_set(bits, |row| valid.append(nulls[row / 64] >> (row % 64) & 1 == 0)),
            }
        }
        let first = block * BLOCK_ROWS;
        let mut bytes = 0;
        match &mut self.values {
            Values::Text(views) if count >= UNPACKED_ROWS_MIN && is_short_dictionary(chunk) => {
                let texts = chunk.texts();
                let short: Vec<(u128, usize)> = (0..texts.len()).map(|code| short_view(texts.get(code))).collect();
                let mut codes = [0; BLOCK_ROWS];
                chunk.text_codes(block, &mut codes);
                each_set(bits, |row| {
                    let (view, len) = short.get(codes[row] as usize).copied().unwrap_or_default();
                    views.each.push(view);
                    bytes += len;
                });
            }
            Values::Text(views) => each_set(bits, |row| {
                let text = chunk.text(first + row).unwrap_or_default();
                views.push(text);
                bytes += text.len();
            }),
            Values::Bytes(builder) => each_set(bits, |row| {
                let text = chunk.text(first + row).unwrap_or_default();
                builder.append_value(text);
                bytes += text.len();
            }),
            Values::I128(values) if chunk.encoding() == Encoding::Wide => {
                each_set(bits, |row| values.push(chunk.wide(first + row).unwrap_or_default()));
            }
            values => {
                let mut integers = [0; BLOCK_ROWS];
                if count < UNPACKED_ROWS_MIN {
                    each_set(bits, |row| integers[row] = chunk.integer(first + row).unwrap_or_default());
                } else {
                    chunk.integers(block, &mut integers);
                }
                macro_rules! push {
                    ($values:expr, $of:expr) => {
                        if count >= DENSE_ROWS_MIN {
                            each_run(bits, |rows| $values.extend(integers[rows].iter().map(|value| $of(*value))));
                        } else {
                            each_set(bits, |row| $values.push($of(integers[row])));
                        }
                    };
                }
                match values {
                    Values::Bool(values) => each_set(bits, |row| values.append(integers[row] != 0)),
                    Values::I16(values) => push!(values, |value: i64| value as i16),
                    Values::I32(values) => push!(values, |value: i64| value as i32),
                    Values::I64(values) => push!(values, |value: i64| value),
                    Values::I128(values) => push!(values, i128::from),
                    Values::F32(values) => push!(values, real_of),
                    Values::F64(values) => push!(values, double_of),
                    Values::Text(_) | Values::Bytes(_) => unreachable!("texts have been appended above"),
                }
            }
        }
        bytes
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
            (Values::I64(v), DataType::Timestamp(_, zone)) => {
                let moments = TimestampMicrosecondArray::new(ScalarBuffer::from(v), nulls);
                Arc::new(moments.with_timezone_opt(zone.clone()))
            }
            (Values::I64(v), _) => Arc::new(Int64Array::new(ScalarBuffer::from(v), nulls)),
            (Values::I128(v), data_type) => {
                Arc::new(Decimal128Array::new(ScalarBuffer::from(v), nulls).with_data_type(data_type.clone()))
            }
            (Values::F32(v), _) => Arc::new(Float32Array::new(ScalarBuffer::from(v), nulls)),
            (Values::F64(v), _) => Arc::new(Float64Array::new(ScalarBuffer::from(v), nulls)),
            (Values::Text(views), _) => Arc::new(views.finish(nulls)?),
            (Values::Bytes(mut builder), _) => {
                let (offsets, values, _) = builder.finish().into_parts();
                Arc::new(arrow::array::BinaryArray::try_new(offsets, values, nulls)?)
            }
        })
    }
}

/// The number of rows of a block from which the codes of the whole block are unpacked at once.
const UNPACKED_ROWS_MIN: usize = BLOCK_ROWS / 16;

/// The number of rows of a block from which runs of rows are copied instead of single rows.
const DENSE_ROWS_MIN: usize = BLOCK_ROWS / 2;
/// Texts up to this length are stored inside their views.
const SHORT_BYTES: usize = 12;
/// The most texts of a dictionary whose views are made for each block.
const SHORT_TEXTS_MAX: usize = 64;

/// Texts, as Arrow's views of them.
struct Views {
    each: Vec<u128>,
    /// The bytes of the texts that are not inside their views.
    bytes: Vec<u8>,
    full: Vec<Buffer>,
}

impl Views {
    fn with_capacity(capacity: usize) -> Self {
        Self { each: Vec::with_capacity(capacity), bytes: Vec::new(), full: Vec::new() }
    }

    #[inline]
    fn push(&mut self, text: &[u8]) {
        if text.len() <= SHORT_BYTES {
            self.each.push(make_view(text, 0, 0));
            return;
        }
        if self.bytes.len() + text.len() > BUFFER_BYTES_MAX && !self.bytes.is_empty() {
            self.full.push(Buffer::from_vec(std::mem::take(&mut self.bytes)));
        }
        self.each.push(make_view(text, self.full.len() as u32, self.bytes.len() as u32));
        self.bytes.extend_from_slice(text);
    }

    /// Checks that all texts are UTF-8: they may have come from another node.
    fn finish(mut self, nulls: Option<NullBuffer>) -> Result<StringViewArray, ArrowError> {
        if !self.bytes.is_empty() {
            self.full.push(Buffer::from_vec(self.bytes));
        }
        StringViewArray::try_new(ScalarBuffer::from(self.each), self.full, nulls)
    }
}

/// The most bytes of a buffer of texts, if it has more than one text.
const BUFFER_BYTES_MAX: usize = 1 << 20;

/// Whether the views of a chunk's texts are few and need no buffer.
fn is_short_dictionary(chunk: &Chunk<'_>) -> bool {
    chunk.encoding() == Encoding::TextDictionary && {
        let texts = chunk.texts();
        texts.len() <= SHORT_TEXTS_MAX && (0..texts.len()).all(|code| texts.get(code).len() <= SHORT_BYTES)
    }
}

fn short_view(text: &[u8]) -> (u128, usize) {
    (make_view(text, 0, 0), text.len())
}

/// Calls `visit` with each range of set bits, in ascending order.
#[inline(always)]
fn each_run(bits: &Bits, mut visit: impl FnMut(Range<usize>)) {
    let mut start = None;
    for (word, bits) in bits.iter().enumerate() {
        let (mut at, first) = (0, word * 64);
        while at < 64 {
            let rest = bits >> at;
            // The end of the current run, or of the current gap.
            let len = if start.is_some() { rest.trailing_ones() } else { rest.trailing_zeros() }.min(64 - at);
            at += len;
            if at == 64 {
                break;
            }
            match start.take() {
                Some(from) => visit(from..first + at as usize),
                None => start = Some(first + at as usize),
            }
        }
    }
    if let Some(from) = start {
        visit(from..bits.len() * 64);
    }
}

/// Calls `visit` with the index of each set bit, in ascending order.
#[inline(always)]
fn each_set(bits: &Bits, mut visit: impl FnMut(usize)) {
    for (word, bits) in bits.iter().enumerate() {
        let mut left = *bits;
        while left != 0 {
            visit(word * 64 + left.trailing_zeros() as usize);
            left &= left - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bits: &Bits) -> Vec<usize> {
        let mut rows = Vec::new();
        each_set(bits, |row| rows.push(row));
        rows
    }

    #[test]
    fn runs_are_the_set_bits() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut all = vec![[0; BLOCK_ROWS / 64], [u64::MAX; BLOCK_ROWS / 64]];
        for density in 0..60 {
            // Long and short runs, across words.
            let mut bits = [0_u64; BLOCK_ROWS / 64];
            let (mut row, mut is_set) = (0, random.bool());
            while row < BLOCK_ROWS {
                let end = (row + random.usize(1..=(1 << (density % 9)))).min(BLOCK_ROWS);
                for row in (row..end).filter(|_| is_set) {
                    bits[row / 64] |= 1 << (row % 64);
                }
                (row, is_set) = (end, !is_set);
            }
            all.push(bits);
        }
        for bits in all {
            let mut found: Vec<Range<usize>> = Vec::new();
            each_run(&bits, |run| found.push(run));
            assert!(found.iter().all(|run| !run.is_empty()) && found.windows(2).all(|two| two[0].end < two[1].start));
            assert_eq!(found.into_iter().flatten().collect::<Vec<_>>(), rows(&bits));
        }
    }

    #[test]
    fn texts_of_every_length_come_back() {
        let texts: Vec<String> = (0..3_000).map(|n| "x".repeat(n % 40) + &n.to_string()).collect();
        let mut views = Views::with_capacity(8);
        for text in &texts {
            views.push(text.as_bytes());
        }
        views.push("y".repeat(BUFFER_BYTES_MAX).as_bytes());
        views.push("after it, and longer than a view".as_bytes());
        let array = views.finish(None).expect("UTF-8");
        assert!(array.iter().take(3_000).eq(texts.iter().map(|text| Some(text.as_str()))));
        assert_eq!(array.value(3_001), "after it, and longer than a view");
        let mut views = Views::with_capacity(1);
        views.push(&[0xff]);
        assert!(views.finish(None).is_err());
    }
}
