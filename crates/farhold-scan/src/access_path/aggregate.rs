//! Aggregates over the rows of one segment: what a home node computes instead of sending values.
//!
//! A segment's aggregate is computed in the order of its rows by the same code on every node, so that sums of floats are the same by every path. A home node,
//! which also has other work, computes it some blocks of rows at a time ([`Partial`]). The caller combines the aggregates of segments.

use std::ops::Range;

use farhold_store::column::{BLOCK_ROWS, Chunk, Encoding, double_of, real_of};
use farhold_store::row::{ColumnType, Schema};

use super::stage::{Passed, count, rows_of};
use crate::kernels::Bits;

/// An aggregate of the rows that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Aggregate {
    /// The number of rows.
    Rows,
    /// The number of values of this column that are not NULL.
    Count(usize),
    /// The sum of a column that is a number.
    Sum(usize),
    /// The least value. Among floats NaN is the greatest and -0 comes before 0; texts are compared by their bytes.
    Min(usize),
    /// The greatest value.
    Max(usize),
}

/// The value of an aggregate for one segment.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// All values are NULL.
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
    /// Its approximate number of bytes, for counting.
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

    /// Whether it can have this value for this number of rows. It must fit the schema.
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

/// Computes one of a whole segment.
pub(super) fn aggregate<'c>(
    of: Aggregate,
    schema: &Schema,
    passed: &Passed,
    chunk_of: &dyn Fn(usize) -> Chunk<'c>,
) -> Value {
    Partial::new(of).go_on(passed.bits.len(), schema, passed, chunk_of).expect("all blocks at a time")
}

/// An aggregate of a segment while it is computed, some blocks of rows at a time. It does not depend on how many at a time.
#[derive(Clone, Debug)]
pub(super) struct Partial {
    of: Aggregate,
    /// The next block of rows.
    block: usize,
    so_far: SoFar,
}

/// What the first blocks have.
#[derive(Clone, Debug)]
enum SoFar {
    Nothing,
    /// `low + carry * 2^128`: only the whole sum can be too long, that of some of the rows may have more than 127 bits meanwhile. Of the
    /// least and the greatest float, the integer that has its place in their order.
    Integer {
        low: i128,
        carry: i32,
    },
    /// The sum of floats.
    Float(f64),
    Bytes(Vec<u8>),
}

impl Partial {
    pub(super) const fn new(of: Aggregate) -> Self {
        Self { of, block: 0, so_far: SoFar::Nothing }
    }

    /// Goes on with the next blocks, with so many at most; the value, if these were the last ones. `chunk_of`: the chunk of its column.
    pub(super) fn go_on<'c>(
        &mut self,
        blocks_max: usize,
        schema: &Schema,
        passed: &Passed,
        chunk_of: &dyn Fn(usize) -> Chunk<'c>,
    ) -> Option<Value> {
        let Some(column) = self.of.column() else { return Some(Value::Integer(passed.passing as i128)) };
        let (from, to) = (self.block, passed.bits.len().min(self.block + blocks_max));
        self.block = to;
        let blocks = from..to;
        let chunk = &chunk_of(column);
        let kind = kind_of(schema, column);
        let rows = || rows_of(&passed.bits[from..to]).map(move |row| from * BLOCK_ROWS + row);
        let is_min = matches!(self.of, Aggregate::Min(_));
        let better = |one: i64, other: i64| if is_min { one.min(other) } else { one.max(other) };
        match (self.of, kind) {
            (Aggregate::Rows, _) => {}
            (Aggregate::Count(_), _) => {
                let counted = valued(chunk, passed, blocks).map(|(_, bits)| count(&[bits])).sum::<usize>();
                self.so_far.add(counted as i128);
            }
            (Aggregate::Sum(_), Kind::Float) => {
                let float = float_of(schema, column);
                let before = if let SoFar::Float(sum) = self.so_far { Some(sum) } else { None };
                let sum = fold(chunk, passed, blocks, before, |sum, value| sum + float(value), &float);
                self.so_far = sum.map_or(SoFar::Nothing, SoFar::Float);
            }
            (Aggregate::Sum(_), _) if chunk.encoding() == Encoding::Wide => {
                rows().filter_map(|row| chunk.wide(row)).for_each(|value| self.so_far.add(value));
            }
            (Aggregate::Sum(_), _) => {
                // A segment has too few rows for an overflow.
                let sum = fold(chunk, passed, blocks, None, |sum, value| sum + i128::from(value), i128::from);
                if let Some(sum) = sum {
                    self.so_far.add(sum);
                }
            }
            (Aggregate::Min(_) | Aggregate::Max(_), Kind::Bytes) => {
                let values = rows().filter_map(|row| chunk.text(row));
                let best = if is_min { values.min() } else { values.max() };
                self.so_far.keep_bytes(best, is_min);
            }
            (Aggregate::Min(_) | Aggregate::Max(_), Kind::Integer) if chunk.encoding() == Encoding::Wide => {
                let values = rows().filter_map(|row| chunk.wide(row));
                let best = if is_min { values.min() } else { values.max() };
                self.so_far.keep(best, is_min);
            }
            (Aggregate::Min(_) | Aggregate::Max(_), _) => {
                let best = fold(chunk, passed, blocks, None, better, |value| value);
                self.so_far.keep(best.map(i128::from), is_min);
            }
        }
        (self.block == passed.bits.len()).then(|| self.value(schema, column, kind))
    }

    /// Of all blocks.
    fn value(&mut self, schema: &Schema, column: usize, kind: Kind) -> Value {
        let is_end = matches!(self.of, Aggregate::Min(_) | Aggregate::Max(_));
        match std::mem::replace(&mut self.so_far, SoFar::Nothing) {
            SoFar::Nothing => Value::Null,
            SoFar::Integer { low, .. } if is_end && kind == Kind::Float => {
                Value::Float(float_of(schema, column)(low as i64))
            }
            SoFar::Integer { low, carry: 0 } => Value::Integer(low),
            SoFar::Integer { .. } => Value::Overflow,
            SoFar::Float(sum) => Value::Float(sum),
            SoFar::Bytes(bytes) => Value::Bytes(bytes),
        }
    }
}

impl SoFar {
    /// Adds to a sum.
    fn add(&mut self, value: i128) {
        let (low, carry) = if let Self::Integer { low, carry } = *self { (low, carry) } else { (0, 0) };
        let (low, is_over) = low.overflowing_add(value);
        *self = Self::Integer { low, carry: carry + if is_over { value.signum() as i32 } else { 0 } };
    }

    /// Keeps the least value or the greatest one.
    fn keep(&mut self, value: Option<i128>, is_min: bool) {
        let Some(value) = value else { return };
        let low = match *self {
            Self::Integer { low, .. } if is_min => low.min(value),
            Self::Integer { low, .. } => low.max(value),
            _ => value,
        };
        *self = Self::Integer { low, carry: 0 };
    }

    fn keep_bytes(&mut self, value: Option<&[u8]>, is_min: bool) {
        let Some(value) = value else { return };
        let is_better = match self {
            Self::Bytes(bytes) if is_min => value < bytes.as_slice(),
            Self::Bytes(bytes) => value > bytes.as_slice(),
            _ => true,
        };
        if is_better {
            *self = Self::Bytes(value.to_vec());
        }
    }
}

/// From the integers of a column of floats, which have the order of the floats.
fn float_of(schema: &Schema, column: usize) -> impl Fn(i64) -> f64 + use<> {
    let is_real = schema.columns()[column].data_type == ColumnType::Real;
    move |ordered| if is_real { f64::from(real_of(ordered)) } else { double_of(ordered) }
}

/// Those of some blocks in which a row passes whose value is not NULL, each with these rows.
fn valued(chunk: &Chunk<'_>, passed: &Passed, blocks: Range<usize>) -> impl Iterator<Item = (usize, Bits)> {
    blocks.filter_map(move |block| {
        let mut bits = passed.bits[block];
        if let Some(nulls) = chunk.nulls(block) {
            bits.iter_mut().zip(nulls).for_each(|(bits, nulls)| *bits &= !nulls);
        }
        bits.iter().any(|word| *word != 0).then_some((block, bits))
    })
}

/// Puts together the integers of rows of some blocks that pass, in order, behind what was `found` before; `None`: all are NULL. `first`:
/// of one integer.
fn fold<T>(
    chunk: &Chunk<'_>,
    passed: &Passed,
    blocks: Range<usize>,
    mut found: Option<T>,
    add: impl Fn(T, i64) -> T,
    first: impl Fn(i64) -> T,
) -> Option<T> {
    let mut integers = [0; BLOCK_ROWS];
    for (block, bits) in valued(chunk, passed, blocks) {
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
