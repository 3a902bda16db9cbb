//! From the bytes of rows to chunks.

use super::chunk::{Encoding, Texts};
use super::encode::{Nulls, TextValues, encode_integers, encode_texts, encode_wide};
use super::{BLOCK_ROWS, CHUNK_ROWS_MAX, CHUNK_TEXT_BYTES_MAX, Chunk, ordered_double, ordered_real};
use crate::row::{ColumnReader, Schema, Stored};

/// The values of one column so far.
enum Values {
    Integers(Vec<i64>),
    Wide(Vec<i128>),
    Texts(TextValues),
}

impl Values {
    /// A value of a column that is not kept; all such values are equal.
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

    /// Whether a chunk accepts no more rows: it has [`CHUNK_ROWS_MAX`], or a column has [`CHUNK_TEXT_BYTES_MAX`] of texts. A builder without rows is not full,
    /// so it accepts a row of any length.
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
            // A NULL has its place in the row, so its value may be read nevertheless.
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

    /// Appends rows of a block of an earlier builder of the same table, in this order, as far as they fit: at least one. Returns how many.
    ///
    /// # Panics
    /// If the builder [`is_full`](Self::is_full), there are no rows, or the block has no such row.
    pub fn append_stored(&mut self, stored: &StoredBlock<'_>, rows: &[u16]) -> usize {
        assert!(!self.is_full() && !rows.is_empty(), "a chunk is full, or no row comes");
        let fitting = &rows[..rows.len().min(CHUNK_ROWS_MAX - self.rows)];
        let is_long = |(column, stored): (&Column, &StoredColumn<'_>)| match &column.values {
            Values::Texts(values) => values.bytes() + stored.text_bytes(fitting) >= CHUNK_TEXT_BYTES_MAX,
            Values::Integers(_) | Values::Wide(_) => false,
        };
        // Row by row, the last one is that which makes the chunk full.
        let are_long = self.columns.iter().zip(&stored.columns).any(is_long);
        let fitting = if are_long { &fitting[..1] } else { fitting };
        for (column, stored) in self.columns.iter_mut().zip(&stored.columns) {
            stored.append_to(column, self.rows, fitting);
        }
        self.rows += fitting.len();
        fitting.len()
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

/// A block of the chunks of earlier rows, decoded.
pub struct StoredBlock<'c> {
    columns: Vec<StoredColumn<'c>>,
}

/// The values of a block's rows in one column.
struct StoredColumn<'c> {
    chunk: Chunk<'c>,
    block: usize,
    nulls: Option<[u64; BLOCK_ROWS / 64]>,
    values: StoredValues<'c>,
}

enum StoredValues<'c> {
    /// The column is not kept.
    Nothing,
    Integers(Box<[i64; BLOCK_ROWS]>),
    /// They are read one by one.
    Wide,
    /// An entry a row of the chunk.
    Plain(Texts<'c>),
    Coded(Texts<'c>, Box<[u32; BLOCK_ROWS]>),
}

impl<'c> StoredBlock<'c> {
    /// The first block of some chunks, those of a table in the order of its columns.
    pub(super) fn of(chunks: &[Chunk<'c>], builder: &ChunkBuilder) -> Self {
        let column = |(column, chunk): (&Column, &Chunk<'c>)| {
            let values = match (&column.values, chunk.encoding()) {
                _ if !column.is_kept => StoredValues::Nothing,
                (Values::Integers(_), _) => StoredValues::Integers(Box::new([0; BLOCK_ROWS])),
                (Values::Wide(_), _) => StoredValues::Wide,
                (Values::Texts(_), Encoding::TextDictionary) => {
                    StoredValues::Coded(chunk.texts(), Box::new([0; BLOCK_ROWS]))
                }
                (Values::Texts(_), _) => StoredValues::Plain(chunk.texts()),
            };
            StoredColumn { chunk: *chunk, block: 0, nulls: None, values }
        };
        let mut stored = Self { columns: builder.columns.iter().zip(chunks).map(column).collect() };
        stored.go_to(0);
        stored
    }

    /// Another block of the same chunks.
    ///
    /// # Panics
    /// If there is no such block.
    pub(super) fn go_to(&mut self, block: usize) {
        for column in &mut self.columns {
            column.block = block;
            match &mut column.values {
                StoredValues::Nothing => continue,
                StoredValues::Integers(values) => column.chunk.integers(block, values),
                StoredValues::Coded(_, codes) => column.chunk.text_codes(block, codes),
                StoredValues::Wide | StoredValues::Plain(_) => {}
            }
            column.nulls = column.chunk.nulls(block);
        }
    }
}

impl StoredColumn<'_> {
    fn is_null(&self, row: u16) -> bool {
        self.nulls.is_some_and(|nulls| nulls[usize::from(row) / 64] >> (row % 64) & 1 == 1)
    }

    /// The text of a row of the block; empty if it is NULL.
    fn text(&self, row: u16) -> &[u8] {
        match &self.values {
            _ if self.is_null(row) => &[],
            StoredValues::Plain(texts) => texts.get(self.block * BLOCK_ROWS + usize::from(row)),
            StoredValues::Coded(texts, codes) => texts.get(codes[usize::from(row)] as usize),
            StoredValues::Nothing | StoredValues::Integers(_) | StoredValues::Wide => &[],
        }
    }

    fn text_bytes(&self, rows: &[u16]) -> usize {
        rows.iter().map(|row| self.text(*row).len()).sum()
    }

    fn append_to(&self, column: &mut Column, at: usize, rows: &[u16]) {
        for (row, at) in rows.iter().zip(at..).filter(|(row, _)| self.is_null(**row)) {
            debug_assert!(usize::from(*row) < BLOCK_ROWS, "a row of a block");
            column.nulls.set(at);
        }
        match (&mut column.values, &self.values) {
            (values, StoredValues::Nothing) => rows.iter().for_each(|_| values.push_nothing()),
            (Values::Integers(to), StoredValues::Integers(values)) => {
                to.extend(rows.iter().map(|row| values[usize::from(*row)]));
            }
            (Values::Wide(to), _) => {
                let wide = |row: &u16| self.chunk.wide(self.block * BLOCK_ROWS + usize::from(*row));
                to.extend(rows.iter().map(|row| wide(row).unwrap_or_default()));
            }
            (Values::Texts(to), _) => rows.iter().for_each(|row| to.push(self.text(*row))),
            (Values::Integers(_), _) => unreachable!("a column of integers has chunks of integers"),
        }
    }
}
