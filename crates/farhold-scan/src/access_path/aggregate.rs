//! Aggregates over the rows of one segment: what a home node computes instead of sending values.
//!
//! A segment's aggregate is computed in the order of its rows by the same code on every node, so that sums of floats are the same by
//! every path. The caller puts the aggregates of segments together.

use farhold_store::column::{BLOCK_ROWS, Chunk, Encoding, double_of, real_of};
use farhold_store::row::{ColumnType, Schema};

use super::stage::{Passed, count, rows_of};
use crate::kernels::Bits;

/// What is computed of the rows that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aggregate {
    /// How many there are.
    Rows,
    /// How many of this column are not NULL.
    Count(usize),
    /// The sum of a column that is a number.
    Sum(usize),
    /// The least value: of floats NaN is the greatest and -0 comes before 0, texts are compared by their bytes.
    Min(usize),
    /// The greatest value.
    Max(usize),
}

/// An aggregate of one segment.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value is not NULL.
    Null,
    /// A count, or of integers, dates, timestamps and booleans, or of decimals in units of their scale.
    Integer(i128),
    /// Of floats.
    Float(f64),
    /// Of texts and byte strings.
    Bytes(Vec<u8>),
    /// The sum has more than 127 bits.
    Overflow,
}

impl Value {
    /// Its bytes, about, for counting.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            _ => 16,
        }
    }
}

impl Aggregate {
    /// The column that it reads.
    #[must_use]
    pub const fn column(self) -> Option<usize> {
        match self {
            Self::Rows => None,
            Self::Count(column) | Self::Sum(column) | Self::Min(column) | Self::Max(column) => Some(column),
        }
    }

    /// Whether a table has it.
    #[must_use]
    pub fn fits(self, schema: &Schema) -> bool {
        let Some(at) = self.column() else { return true };
        let Some(column) = schema.columns().get(at) else { return false };
        let is_number = matches!(
            column.data_type,
            ColumnType::SmallInt
                | ColumnType::Int
                | ColumnType::BigInt
                | ColumnType::Real
                | ColumnType::Double
                | ColumnType::Decimal { .. }
        );
        is_number || !matches!(self, Self::Sum(_))
    }

    /// Whether it may have this value for so many rows, for a column of the schema that it fits.
    pub(super) fn may_be(self, schema: &Schema, value: &Value, passing: usize) -> bool {
        let passing = passing as i128;
        let Some(column) = self.column() else { return *value == Value::Integer(passing) };
        match (self, value) {
            (Self::Count(_), Value::Integer(count)) => (0..=passing).contains(count),
            (Self::Sum(_) | Self::Min(_) | Self::Max(_), Value::Null) => true,
            (Self::Sum(_), Value::Overflow) | (Self::Sum(_) | Self::Min(_) | Self::Max(_), Value::Integer(_)) => {
                kind_of(schema, column) == Kind::Integer
            }
            (Self::Sum(_) | Self::Min(_) | Self::Max(_), Value::Float(_)) => kind_of(schema, column) == Kind::Float,
            (Self::Min(_) | Self::Max(_), Value::Bytes(_)) => kind_of(schema, column) == Kind::Bytes,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Integer,
    Float,
    Bytes,
}

fn kind_of(schema: &Schema, column: usize) -> Kind {
    match schema.columns()[column].data_type {
        ColumnType::Real | ColumnType::Double => Kind::Float,
        ColumnType::Char(_) | ColumnType::Varchar(_) | ColumnType::Text | ColumnType::Bytea => Kind::Bytes,
        _ => Kind::Integer,
    }
}

/// The sum of integers. Only the whole sum can be too long: the sum of some of them may have more than 127 bits meanwhile.
fn sum(values: impl Iterator<Item = i128>) -> Value {
    // The sum so far is `low + carry * 2^128`.
    let (mut low, mut carry, mut is_null) = (0_i128, 0_i32, true);
    for value in values {
        let (next, is_over) = low.overflowing_add(value);
        low = next;
        carry += if is_over { value.signum() as i32 } else { 0 };
        is_null = false;
    }
    match (is_null, carry) {
        (true, _) => Value::Null,
        (false, 0) => Value::Integer(low),
        (false, _) => Value::Overflow,
    }
}

/// Computes one.
pub(super) fn aggregate<'c>(
    aggregate: Aggregate,
    schema: &Schema,
    passed: &Passed,
    chunk_of: &dyn Fn(usize) -> Chunk<'c>,
) -> Value {
    let Some(column) = aggregate.column() else { return Value::Integer(passed.passing as i128) };
    let (chunk, bits) = (chunk_of(column), &passed.bits);
    if let Aggregate::Count(_) = aggregate {
        return Value::Integer(blocks(&chunk, bits).map(|(_, bits)| count(&[bits]) as i128).sum());
    }
    match kind_of(schema, column) {
        Kind::Integer if chunk.encoding() == Encoding::Wide => {
            let values = rows_of(bits).filter_map(|row| chunk.wide(row));
            let found = match aggregate {
                Aggregate::Min(_) => values.min(),
                Aggregate::Max(_) => values.max(),
                _ => return sum(values),
            };
            found.map_or(Value::Null, Value::Integer)
        }
        Kind::Integer => {
            let found = match aggregate {
                Aggregate::Min(_) => fold(&chunk, bits, |least: i64, value| least.min(value), |value| value),
                Aggregate::Max(_) => fold(&chunk, bits, |most: i64, value| most.max(value), |value| value),
                // A segment has too few rows for an overflow.
                _ => {
                    return fold(&chunk, bits, |sum, value| sum + i128::from(value), i128::from)
                        .map_or(Value::Null, Value::Integer);
                }
            };
            found.map_or(Value::Null, |value| Value::Integer(value.into()))
        }
        Kind::Float => {
            let is_real = schema.columns()[column].data_type == ColumnType::Real;
            let float = |ordered: i64| if is_real { f64::from(real_of(ordered)) } else { double_of(ordered) };
            let found = match aggregate {
                // Their integers have their order.
                Aggregate::Min(_) => fold(&chunk, bits, |least: i64, value| least.min(value), |value| value).map(float),
                Aggregate::Max(_) => fold(&chunk, bits, |most: i64, value| most.max(value), |value| value).map(float),
                _ => fold(&chunk, bits, |sum, value| sum + float(value), float),
            };
            found.map_or(Value::Null, Value::Float)
        }
        Kind::Bytes => {
            let values = rows_of(bits).filter_map(|row| chunk.text(row));
            let found = if matches!(aggregate, Aggregate::Min(_)) { values.min() } else { values.max() };
            found.map_or(Value::Null, |bytes| Value::Bytes(bytes.to_vec()))
        }
    }
}

/// The blocks in which a row passes whose value is not NULL, each with these rows.
fn blocks<'a>(chunk: &'a Chunk<'_>, bits: &'a [Bits]) -> impl Iterator<Item = (usize, Bits)> + 'a {
    bits.iter().enumerate().filter_map(|(block, bits)| {
        let mut bits = *bits;
        if let Some(nulls) = chunk.nulls(block) {
            bits.iter_mut().zip(nulls).for_each(|(bits, nulls)| *bits &= !nulls);
        }
        bits.iter().any(|word| *word != 0).then_some((block, bits))
    })
}

/// Puts together the integers of rows that pass, in order; `None`: all are NULL. `first`: of one integer.
fn fold<T>(chunk: &Chunk<'_>, bits: &[Bits], add: impl Fn(T, i64) -> T, first: impl Fn(i64) -> T) -> Option<T> {
    let (mut found, mut integers) = (None, [0; BLOCK_ROWS]);
    for (block, bits) in blocks(chunk, bits) {
        chunk.integers(block, &mut integers);
        for row in rows_of(&[bits]) {
            let value = integers[row];
            found = Some(match found {
                Some(found) => add(found, value),
                None => first(value),
            });
        }
    }
    found
}
