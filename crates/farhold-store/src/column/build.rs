//! From the bytes of rows to chunks.

use super::encode::{Nulls, TextValues, encode_integers, encode_texts, encode_wide};
use super::{CHUNK_ROWS_MAX, CHUNK_TEXT_BYTES_MAX, Chunk, ordered_double, ordered_real};
use crate::row::{ColumnReader, Schema, Stored};

/// The values of one column so far.
enum Values {
    Integers(Vec<i64>),
    Wide(Vec<i128>),
    Texts(TextValues),
}

impl Values {
    /// A value of a column that is not kept: all of them are alike.
    fn push_nothing(&mut self) {
        match self {
            Self::Integers(values) => values.push(0),
            Self::Wide(values) => values.push(0),
            Self::Texts(values) => values.push(&[]),
        }
    }
}

struct Column {
    reader: ColumnReader,
    is_kept: bool,
    values: Values,
    nulls: Nulls,
}

/// Collects rows of a table, and makes a chunk of each column.
pub struct ChunkBuilder {
    columns: Vec<Column>,
    rows: usize,
    scratch: Vec<u8>,
}

impl ChunkBuilder {
    /// For the rows of a table.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self::of(schema, &|_| true)
    }

    /// For the columns of a table for which `keeps` holds, by their positions. The chunks of the others take a few bytes, and their
    /// values have no meaning.
    #[must_use]
    pub fn of(schema: &Schema, keeps: &dyn Fn(usize) -> bool) -> Self {
        let column = |column| {
            let reader = ColumnReader::new(schema, column);
            let values = match reader.stored() {
                Stored::Text | Stored::Bytes => Values::Texts(TextValues::default()),
                Stored::I128 => Values::Wide(Vec::new()),
                _ => Values::Integers(Vec::new()),
            };
            Column { reader, is_kept: keeps(column), values, nulls: Nulls::default() }
        };
        Self { columns: (0..schema.columns().len()).map(column).collect(), rows: 0, scratch: Vec::new() }
    }

    /// Rows so far.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether a chunk takes no more rows: it has [`CHUNK_ROWS_MAX`], or a column has [`CHUNK_TEXT_BYTES_MAX`] of texts. A builder
    /// without rows is not full, so a row of any length is taken.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let is_long = |column: &Column| match &column.values {
            Values::Texts(values) => values.bytes() >= CHUNK_TEXT_BYTES_MAX,
            Values::Integers(_) | Values::Wide(_) => false,
        };
        self.rows == CHUNK_ROWS_MAX || self.columns.iter().any(is_long)
    }

    /// Appends a row.
    ///
    /// # Panics
    /// If it [`is_full`](Self::is_full), or the bytes are no row of the table.
    pub fn append(&mut self, key: &[u8], value: &[u8]) {
        assert!(!self.is_full(), "a chunk has at most {CHUNK_ROWS_MAX} rows and {CHUNK_TEXT_BYTES_MAX} bytes of texts");
        for column in &mut self.columns {
            if !column.is_kept {
                column.values.push_nothing();
                continue;
            }
            if column.reader.is_null(value) {
                column.nulls.set(self.rows);
            }
            let reader = &column.reader;
            // A null keeps its room in the row, so its value may be read all the same.
            match &mut column.values {
                Values::Integers(values) => values.push(match reader.stored() {
                    Stored::Bool => i64::from(reader.bool(key, value)),
                    Stored::F32 => ordered_real(reader.f32(key, value)),
                    Stored::F64 => ordered_double(reader.f64(key, value)),
                    _ => reader.integer(key, value),
                }),
                Values::Wide(values) => values.push(reader.wide(key, value)),
                Values::Texts(values) if reader.is_null(value) => values.push(&[]),
                Values::Texts(values) => values.push(reader.bytes(key, value, &mut self.scratch)),
            }
        }
        self.rows += 1;
    }

    /// Appends a row of the chunks of an earlier builder of the same table.
    ///
    /// # Panics
    /// If the builder [`is_full`](Self::is_full), or the chunks have no such row.
    pub fn append_stored(&mut self, chunks: &[Chunk<'_>], row: usize) {
        assert!(!self.is_full(), "a chunk is full");
        for (column, chunk) in self.columns.iter_mut().zip(chunks) {
            if !column.is_kept {
                column.values.push_nothing();
                continue;
            }
            if chunk.is_null(row) {
                column.nulls.set(self.rows);
            }
            match &mut column.values {
                Values::Integers(values) => values.push(chunk.integer(row).unwrap_or_default()),
                Values::Wide(values) => values.push(chunk.wide(row).unwrap_or_default()),
                Values::Texts(values) => values.push(chunk.text(row).unwrap_or_default()),
            }
        }
        self.rows += 1;
    }

    /// The chunks of the rows so far, one for each column in the order of the schema. The builder is empty afterwards.
    pub fn finish(&mut self) -> Vec<Vec<u8>> {
        self.rows = 0;
        let chunk = |column: &mut Column| {
            let nulls = std::mem::take(&mut column.nulls);
            match &mut column.values {
                Values::Integers(values) => encode_integers(&std::mem::take(values), &nulls),
                Values::Wide(values) => encode_wide(&std::mem::take(values), &nulls),
                Values::Texts(values) => encode_texts(&std::mem::take(values), &nulls),
            }
        };
        self.columns.iter_mut().map(chunk).collect()
    }
}
