//! The values of a key column of the build side, as bits, for filters far below the probe side: one bit for every value of their interval or, if that is wide
//! in proportion to the rows, bits for their hashes. Bounds exclude little if keys are scattered. The bits decide for every value; bits of hashes wrongly pass
//! one value in a hundred, or in thirty. They are made only if a filter that tests rows requests them ([`reduce`](super::reduce)): a sieve, or a scan that
//! tests keys ([`TestsKeys`](super::TestsKeys)). They last as long as the join runs, or a scan that tests them: a plan that is kept holds no memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use arrow::array::{Array, ArrayData, ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::{BooleanBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::hash::{hash, top};
use crate::keys::{bounds, each_number, is_number, packed_bytes};
use crate::memory::Reservation;
use crate::pages::Pages;
use crate::{JoinError, MemoryPool};

/// The values of one column.
#[derive(Debug)]
pub struct Members {
    places: Places,
    words: Pages<u64>,
    _memory: Reservation,
}

/// The mapping of values to bits.
#[derive(Debug, Clone, Copy)]
enum Places {
    /// The value's offset from the least.
    Offset { min: i128, last: u64 },
    /// The top bits of the value's hash.
    Hash { bits: u32 },
}

impl Places {
    /// `None` if the value is outside the interval.
    #[inline(always)]
    fn of(self, number: i128) -> Option<usize> {
        match self {
            Self::Offset { min, last } => {
                let offset = number.wrapping_sub(min);
                (0..=i128::from(last)).contains(&offset).then_some(offset as usize)
            }
            Self::Hash { bits } => Some(top(hash(number as u64 ^ (number >> 64) as u64, SEED), bits)),
        }
    }

    /// The bit of a value that is in the interval and fits 64 bits.
    #[inline(always)]
    fn of_narrow(self, number: i64) -> usize {
        match self {
            Self::Offset { min, .. } => number.wrapping_sub(min as i64) as usize,
            Self::Hash { bits } => top(hash((number ^ (number >> 63)) as u64, SEED), bits),
        }
    }
}

/// The seed of these hashes is not secret: a filter that lets too much through costs only time.
const SEED: u64 = 0x5851_f42d_4c95_7f2d;
/// The bits that any build side may have, and the additional bits that each build row justifies: a megabyte stays in the cache.
const BITS_FREE: u64 = 8 << 20;
const BITS_A_ROW: u64 = 512;
/// The most of all values for which bits are kept.
const SHARE_MAX: f64 = 0.5;
/// Bits of hashes for each row: the first of these for which there is room.
const HASHED_BITS_A_ROW: [u64; 2] = [128, 32];

impl Members {
    /// The members of `columns`, which hold `rows` rows. `None` if the values are not numbers, or would take more memory than is justified or free. Also `None`
    /// if the bits would keep too many of all values.
    pub(super) fn of(columns: &[ArrayRef], rows: u64, pool: &Arc<MemoryPool>) -> Result<Option<Self>, JoinError> {
        if !columns.iter().all(|column| is_number(column.data_type())) {
            return Ok(None);
        }
        let Some((min, max)) = columns.iter().filter_map(bounds).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else {
            return Ok(None);
        };
        let bits_max = BITS_FREE.max(BITS_A_ROW.saturating_mul(rows));
        let interval = max.checked_sub(min).and_then(|last| u64::try_from(last).ok()).filter(|&last| last < bits_max);
        let hashed = HASHED_BITS_A_ROW.map(|bits| rows.max(1).saturating_mul(bits).checked_next_power_of_two());
        let hashed = hashed.into_iter().flatten().find(|&bits| bits <= BITS_FREE);
        let (places, count) = match interval {
            // A value is assumed to occur about four times at most.
            Some(last) if (last as f64) * SHARE_MAX < (rows / 4) as f64 => return Ok(None),
            Some(last) => (Places::Offset { min, last }, last / 64 + 1),
            None => match hashed {
                Some(bits) => (Places::Hash { bits: bits.trailing_zeros() }, bits / 64),
                None => return Ok(None),
            },
        };
        let mut memory = Reservation::new(pool, 0)?;
        if !memory.try_grow(8 * count + (2 << 20)) {
            return Ok(None);
        }
        let mut words = Pages::<u64>::new(count as usize)?;
        for column in columns {
            let nulls = column.nulls();
            let set = |number| {
                let place = places.of_narrow(number);
                words[place / 64] |= 1 << (place % 64);
            };
            if nulls.is_none() && each_narrow(column, set).is_some() {
                continue;
            }
            each_number(column, |row, number| {
                if nulls.is_none_or(|nulls| nulls.is_valid(row))
                    && let Some(place) = places.of(number)
                {
                    words[place / 64] |= 1 << (place % 64);
                }
            });
        }
        let members: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        let values = match places {
            Places::Offset { last, .. } => last,
            Places::Hash { bits } => 1 << bits,
        };
        let share = members as f64 / values.max(1) as f64;
        Ok((share <= SHARE_MAX).then_some(Self { places, words, _memory: memory }))
    }

    /// False only for a value that no build row has; a null is such a value.
    fn contains(&self, column: &ArrayRef) -> BooleanArray {
        let found = self.contains_narrow(column).unwrap_or_else(|| {
            let mut found = vec![false; column.len()];
            each_number(column, |row, number| found[row] = self.places.of(number).is_some_and(|place| self.has(place)));
            BooleanBuffer::from(found)
        });
        BooleanArray::new(column.logical_nulls().map_or(found.clone(), |nulls| &found & nulls.inner()), None)
    }

    /// The same in 64 bits, if the values fit, and without a branch that depends on the values: every row of a far scan is tested here.
    fn contains_narrow(&self, column: &ArrayRef) -> Option<BooleanBuffer> {
        match self.places {
            Places::Offset { min, last } => {
                let min = i64::try_from(min).ok()?;
                bits_of(column, |number| {
                    let offset = number.wrapping_sub(min) as u64;
                    (offset <= last) & self.has(offset.min(last) as usize)
                })
            }
            Places::Hash { .. } => bits_of(column, |number| self.has(self.places.of_narrow(number))),
        }
    }

    /// Clears the bits of numbers that no build row has: bit 0 of the first word stands for the first number. A number is
    /// the value of an integer, the days of a date, the units of a timestamp or of a decimal.
    ///
    /// # Panics
    /// If there are more bits than numbers.
    pub fn select(&self, numbers: &[i64], bits: &mut [u64]) {
        match self.places {
            Places::Offset { min, last } => {
                // If the least value has more than 64 bits, numbers of 64 bits are in the interval in any case.
                let Ok(min) = i64::try_from(min) else { return };
                select(numbers, bits, |number| {
                    let offset = number.wrapping_sub(min) as u64;
                    (offset <= last) & self.has(offset.min(last) as usize)
                });
            }
            Places::Hash { .. } => select(numbers, bits, |number| self.has(self.places.of_narrow(number))),
        }
    }

    #[inline(always)]
    fn has(&self, place: usize) -> bool {
        self.words[place / 64] >> (place % 64) & 1 == 1
    }
}

/// If fewer rows of 64 than this remain, they are tested one by one.
const FEW: u32 = 16;

#[inline(always)]
fn select(numbers: &[i64], bits: &mut [u64], is: impl Fn(i64) -> bool) {
    for (word, numbers) in bits.iter_mut().zip(numbers.chunks(64)) {
        if word.count_ones() < FEW {
            let mut left = *word;
            while left != 0 {
                let at = left.trailing_zeros();
                left &= left - 1;
                *word &= !(u64::from(!is(numbers[at as usize])) << at);
            }
        } else {
            let found = numbers.iter().rev().fold(0, |found, number| found << 1 | u64::from(is(*number)));
            *word &= found;
        }
    }
}

/// `key` is one of the members. True for every row once the join has ended.
#[derive(Debug)]
pub struct IsMember {
    key: Arc<dyn PhysicalExpr>,
    members: Weak<Members>,
}

impl IsMember {
    pub(super) fn new(key: Arc<dyn PhysicalExpr>, members: &Arc<Members>) -> Self {
        Self { key, members: Arc::downgrade(members) }
    }

    /// The key, an expression over the rows.
    pub fn key(&self) -> &Arc<dyn PhysicalExpr> {
        &self.key
    }

    /// The values; `None` once the join has ended.
    pub fn members(&self) -> Option<Arc<Members>> {
        self.members.upgrade()
    }
}

impl fmt::Display for IsMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is a build key", self.key)
    }
}

impl Hash for IsMember {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
        self.members.as_ptr().hash(state);
    }
}

impl PartialEq for IsMember {
    fn eq(&self, other: &Self) -> bool {
        self.key.eq(&other.key) && self.members.ptr_eq(&other.members)
    }
}

impl Eq for IsMember {}

impl PhysicalExpr for IsMember {
    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.key]
    }

    fn with_new_children(self: Arc<Self>, mut children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let key = children.pop().unwrap_or_else(|| Arc::clone(&self.key));
        Ok(Arc::new(Self { key, members: Weak::clone(&self.members) }))
    }

    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, _: &Schema) -> Result<bool> {
        Ok(false)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let key = self.key.evaluate(batch)?.into_array(batch.num_rows())?;
        let found = match self.members.upgrade() {
            Some(members) if is_number(key.data_type()) => members.contains(&key),
            _ => BooleanArray::new(BooleanBuffer::new_set(batch.num_rows()), None),
        };
        Ok(ColumnarValue::Array(Arc::new(found)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A bit for every row of a column of numbers that fit 64 bits: the result of `is` for the number. `None` for types
/// that may not fit.
#[inline(always)]
fn bits_of(column: &ArrayRef, is: impl Fn(i64) -> bool) -> Option<BooleanBuffer> {
    fn all<T: ArrowNativeType + Into<i64>>(data: &ArrayData, is: impl Fn(i64) -> bool) -> BooleanBuffer {
        let values = ScalarBuffer::<T>::new(data.buffers()[0].clone(), data.offset(), data.len());
        BooleanBuffer::collect_bool(values.len(), |row| is(values[row].into()))
    }
    let data = column.to_data();
    Some(match packed_bytes(column.data_type())? {
        1 => all::<i8>(&data, is),
        2 => all::<i16>(&data, is),
        4 => all::<i32>(&data, is),
        _ => all::<i64>(&data, is),
    })
}

/// Calls `each` with every number of a column of numbers that fit 64 bits. `None` for types that may not fit.
#[inline(always)]
fn each_narrow(column: &ArrayRef, each: impl FnMut(i64)) -> Option<()> {
    fn all<T: ArrowNativeType + Into<i64>>(data: &ArrayData, mut each: impl FnMut(i64)) {
        let values = ScalarBuffer::<T>::new(data.buffers()[0].clone(), data.offset(), data.len());
        values.iter().for_each(|&value| each(value.into()));
    }
    let data = column.to_data();
    match packed_bytes(column.data_type())? {
        1 => all::<i8>(&data, each),
        2 => all::<i16>(&data, each),
        4 => all::<i32>(&data, each),
        _ => all::<i64>(&data, each),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray, Decimal128Array, Int64Array, StringArray};
    use arrow::datatypes::Int64Type;

    fn members(values: Vec<Option<i64>>, pool: u64) -> Option<Members> {
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values))];
        Members::of(&columns, columns[0].len() as u64, &MemoryPool::new(pool)).unwrap()
    }

    #[test]
    fn members_are_found_and_nothing_else() {
        let some = members(vec![Some(-7), None, Some(900), Some(3)], 8 << 20).unwrap();
        let asked: ArrayRef = Arc::new(Int64Array::from(vec![
            Some(-7),
            Some(-8),
            Some(900),
            None,
            Some(0),
            Some(3),
            Some(901),
            Some(i64::MIN),
            Some(i64::MAX),
        ]));
        let answers: Vec<bool> = some.contains(&asked.slice(0, 9)).values().iter().collect();
        assert_eq!(answers, [true, false, true, false, false, true, false, false, false]);
        let sliced: Vec<bool> = some.contains(&asked.slice(2, 2)).values().iter().collect();
        assert_eq!(sliced, [true, false]);
        let wide: ArrayRef =
            Arc::new(asked.as_primitive::<Int64Type>().iter().map(|n| n.map(i128::from)).collect::<Decimal128Array>());
        assert_eq!(some.contains(&wide).values(), some.contains(&asked).values(), "in 128 bits");
    }

    #[test]
    fn bits_are_cleared_where_no_build_row_has_the_number() {
        let numbers: Vec<i64> = (0..1024).map(|n| n * 7 % 1000 - 20).chain([i64::MIN, i64::MAX]).collect();
        let near = members((-7..900).step_by(9).map(Some).collect(), 8 << 20).unwrap();
        let far = members((-7..900).step_by(9).map(|n| Some(n * 1_000_003_000_001)).collect(), 8 << 20).unwrap();
        for some in [near, far] {
            let column: ArrayRef = Arc::new(Int64Array::from(numbers.clone()));
            let found = some.contains(&column);
            for pattern in [u64::MAX, 0x1111_0000_0000_0001, 0, 0xf0f0_ffff_0f0f_00ff] {
                let mut bits = [pattern; 17];
                bits[16] &= 3;
                let before = bits;
                some.select(&numbers, &mut bits);
                for (row, is_found) in found.values().iter().enumerate() {
                    let bit = |bits: &[u64; 17]| bits[row / 64] >> (row % 64) & 1 == 1;
                    assert_eq!(bit(&bits), bit(&before) && is_found, "row {row}");
                }
            }
        }
        // The least build key has more than 64 bits: then none with fewer is left out.
        let wide: Vec<ArrayRef> = vec![Arc::new(Decimal128Array::from_iter_values([1 << 70, (1 << 70) + 9]))];
        let wide = Members::of(&wide, 2, &MemoryPool::new(8 << 20)).unwrap().unwrap();
        let mut bits = [3];
        wide.select(&[1, 2], &mut bits);
        assert_eq!(bits, [3]);
    }

    #[test]
    fn values_far_apart_are_found_and_few_others() {
        let values: Vec<i64> = (-500..500).map(|n| n * 1_000_003_000_001).collect();
        let some = members(values.iter().copied().map(Some).collect(), 8 << 20).unwrap();
        let all: ArrayRef = Arc::new(Int64Array::from(values.clone()));
        assert_eq!(some.contains(&all).true_count(), 1000);
        let wide: ArrayRef = Arc::new(Decimal128Array::from_iter_values(values.into_iter().map(i128::from)));
        assert_eq!(some.contains(&wide).true_count(), 1000, "in 128 bits");
        let others: ArrayRef = Arc::new(Int64Array::from((1..100_001).map(|n| n * 7_000_003).collect::<Vec<_>>()));
        assert!(some.contains(&others).true_count() < 5000, "a thirtieth or so");
    }

    #[test]
    fn what_is_not_worth_it_is_not_made() {
        assert!(members((0..100).map(Some).collect(), 8 << 20).is_none(), "every value is there");
        let many = (0..1 << 19).map(|row| Some(row << 40)).collect();
        assert!(members(many, 1 << 30).is_none(), "too wide and too many");
        assert!(members(vec![Some(0), Some(1000)], 1 << 20).is_none(), "no memory");
        let text: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec!["a"]))];
        assert!(Members::of(&text, 1, &MemoryPool::new(8 << 20)).unwrap().is_none());
    }
}
