//! Where one column's bytes are in a row, for readers that take them from there many times.

use super::{ColumnType, KeyScalar, NullBit, Place, Schema, VarField};

/// How a column's bytes encode its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A byte
    Bool,
    /// 16 bits
    I16,
    /// 32 bits: integers, dates, decimals of up to 9 digits in the value part
    I32,
    /// 64 bits: integers, timestamps, decimals of up to 18 digits
    I64,
    /// 128 bits: longer decimals
    I128,
    /// 32-bit float
    F32,
    /// 64-bit float
    F64,
    /// Text
    Text,
    /// Bytes
    Bytes,
}

#[derive(Clone, Debug)]
enum Source {
    /// In the key, at a fixed offset.
    KeyAt(usize),
    /// In the key, behind columns of varying length: their types, to walk over.
    KeyBehind(Vec<Stored>),
    ValueAt(usize),
    Variable(VarField),
}

/// Reads one column of rows.
#[derive(Clone, Debug)]
pub struct ColumnReader {
    stored: Stored,
    source: Source,
    null: Option<NullBit>,
    /// It lies within so many bytes of the value.
    value_bytes: usize,
}

/// How the value part holds a type; the key part widens small decimals.
fn stored(data_type: ColumnType, in_key: bool) -> Stored {
    match data_type {
        ColumnType::Boolean => Stored::Bool,
        ColumnType::SmallInt => Stored::I16,
        ColumnType::Decimal { precision: 0..=9, .. } if !in_key => Stored::I32,
        ColumnType::Int | ColumnType::Date => Stored::I32,
        ColumnType::Decimal { precision: 0..=18, .. }
        | ColumnType::BigInt
        | ColumnType::Timestamp
        | ColumnType::Timestamptz => Stored::I64,
        ColumnType::Decimal { .. } => Stored::I128,
        ColumnType::Real => Stored::F32,
        ColumnType::Double => Stored::F64,
        ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text => Stored::Text,
        ColumnType::Bytea => Stored::Bytes,
    }
}

impl Stored {
    /// Bytes of a value, 0 where they vary.
    const fn bytes(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::I16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
            Self::I128 => 16,
            Self::Text | Self::Bytes => 0,
        }
    }
}

/// The longest that a value can be up to the end of a column among its variable ones.
fn variable_bytes(schema: &Schema, column: usize) -> usize {
    const CHARACTER_BYTES_MAX: usize = 4;
    let layout = schema.layout();
    let mut bytes = layout.fixed_bytes();
    // The variable columns lie in the order of the table.
    for (position, other) in schema.columns().iter().enumerate().take(column + 1) {
        if !matches!(layout.place(position), Place::Variable { .. }) {
            continue;
        }
        bytes = match other.data_type {
            ColumnType::Char(n) | ColumnType::Varchar(n) => bytes + CHARACTER_BYTES_MAX * n as usize,
            _ => return usize::MAX,
        };
    }
    bytes
}

/// The bytes of the first column of a key, and the rest.
fn split(key: &[u8], stored: Stored) -> (&[u8], &[u8]) {
    match stored {
        Stored::Text => {
            let end = key.iter().position(|b| *b == 0).unwrap_or(key.len());
            (&key[..end], key.get(end + 1..).unwrap_or_default())
        }
        Stored::Bytes => {
            let mut at = 0;
            while at + 1 < key.len() && !(key[at] == 0 && key[at + 1] == 0) {
                at += if key[at] == 0 { 2 } else { 1 };
            }
            (&key[..at], key.get(at + 2..).unwrap_or_default())
        }
        fixed => key.split_at(fixed.bytes().min(key.len())),
    }
}

macro_rules! number {
    ($name:ident, $scalar:ty) => {
        /// The number at this column.
        #[inline(always)]
        #[must_use]
        pub fn $name(&self, key: &[u8], value: &[u8]) -> $scalar {
            match &self.source {
                Source::ValueAt(at) => {
                    let mut bytes = [0; size_of::<$scalar>()];
                    bytes.copy_from_slice(&value[*at..*at + size_of::<$scalar>()]);
                    <$scalar>::from_le_bytes(bytes)
                }
                Source::KeyAt(at) => <$scalar as KeyScalar>::take(&key[*at..]),
                Source::KeyBehind(_) => <$scalar as KeyScalar>::take(self.key_bytes(key)),
                Source::Variable(_) => Default::default(),
            }
        }
    };
}

impl ColumnReader {
    /// For a column of a table's rows.
    #[must_use]
    pub fn new(schema: &Schema, column: usize) -> Self {
        let data_type = schema.columns()[column].data_type;
        let (source, null, in_key) = match schema.layout().place(column) {
            Place::Key { offset: Some(offset), .. } => (Source::KeyAt(offset as usize), None, true),
            Place::Key { part, offset: None } => {
                let before = schema.key()[..part as usize].iter();
                let before = before.map(|&c| stored(schema.columns()[c].data_type, true)).collect();
                (Source::KeyBehind(before), None, true)
            }
            Place::Fixed { offset, null } => (Source::ValueAt(offset as usize), null, false),
            Place::Variable { slot, null } => {
                (Source::Variable(schema.layout().variable_slot(slot, null)), null, false)
            }
        };
        let stored = stored(data_type, in_key);
        let value_bytes = match &source {
            Source::KeyAt(_) | Source::KeyBehind(_) => 0,
            Source::ValueAt(at) => at + stored.bytes(),
            Source::Variable(_) => variable_bytes(schema, column),
        };
        let null_bytes = null.map_or(0, |bit| bit.byte as usize + 1);
        Self { stored, source, null, value_bytes: value_bytes.max(null_bytes) }
    }

    /// How its bytes encode the values.
    #[inline]
    #[must_use]
    pub const fn stored(&self) -> Stored {
        self.stored
    }

    /// How many bytes of the value, from its start, hold the column in every row.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.value_bytes
    }

    /// Whether it can be null at all.
    #[must_use]
    pub fn nullable(&self) -> bool {
        self.null.is_some()
    }

    /// Whether it is null.
    #[inline(always)]
    #[must_use]
    pub fn is_null(&self, value: &[u8]) -> bool {
        self.null.is_some_and(|bit| bit.is_set(value))
    }

    number!(i16, i16);
    number!(i32, i32);
    number!(i64, i64);
    number!(i128, i128);
    number!(f32, f32);
    number!(f64, f64);

    /// The boolean at this column.
    #[inline(always)]
    #[must_use]
    pub fn bool(&self, key: &[u8], value: &[u8]) -> bool {
        match &self.source {
            Source::ValueAt(at) => value[*at] != 0,
            Source::KeyAt(at) => key[*at] != 0,
            _ => self.key_bytes(key).first().is_some_and(|b| *b != 0),
        }
    }

    /// Any integer as 64 bits (not `I128`).
    #[inline(always)]
    #[must_use]
    pub fn integer(&self, key: &[u8], value: &[u8]) -> i64 {
        match self.stored {
            Stored::I16 => i64::from(self.i16(key, value)),
            Stored::I32 => i64::from(self.i32(key, value)),
            _ => self.i64(key, value),
        }
    }

    /// Any integer as 128 bits.
    #[inline(always)]
    #[must_use]
    pub fn wide(&self, key: &[u8], value: &[u8]) -> i128 {
        match self.stored {
            Stored::I128 => self.i128(key, value),
            _ => i128::from(self.integer(key, value)),
        }
    }

    /// The bytes of a text or byte column; `scratch` holds them where a key escapes them.
    #[inline(always)]
    #[must_use]
    pub fn bytes<'a>(&self, key: &'a [u8], value: &'a [u8], scratch: &'a mut Vec<u8>) -> &'a [u8] {
        if let Source::Variable(field) = &self.source {
            return field.get(value);
        }
        let bytes = self.key_bytes(key);
        if self.stored != Stored::Bytes {
            return bytes;
        }
        scratch.clear();
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            scratch.push(byte);
            at += if byte == 0 { 2 } else { 1 };
        }
        scratch
    }

    /// The bytes in the key, without what ends them.
    fn key_bytes<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        let rest = match &self.source {
            Source::KeyAt(at) => &key[*at..],
            Source::KeyBehind(before) => before.iter().fold(key, |rest, stored| split(rest, *stored).1),
            _ => return &[],
        };
        split(rest, self.stored).0
    }
}
