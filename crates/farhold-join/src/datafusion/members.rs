//! Which values a key column of the build side has: bits over their interval, for filters far below the probe side.
//!
//! Bounds say little where keys are spread; the bits say it of every value. They are made only where a filter that rows go
//! through asks for them ([`reduce`](super::reduce)), and last as long as the join runs: a plan that is kept holds no memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{DataType, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

use crate::keys::{bounds, each_number, is_number};
use crate::memory::Reservation;
use crate::pages::Pages;
use crate::{JoinError, MemoryPool};

/// The values of one column.
#[derive(Debug)]
pub struct Members {
    min: i128,
    last: u64,
    words: Pages<u64>,
    _memory: Reservation,
}

/// Bits that any build side may have, and how many more a build row is worth.
const BITS_FREE: u64 = 8 << 20;
const BITS_A_ROW: u64 = 512;

impl Members {
    /// Of `columns`, which hold `rows` rows; `None` where that would not be numbers, take more memory than it is worth or
    /// there is, or keep half of all values.
    pub fn of(columns: &[ArrayRef], rows: u64, pool: &Arc<MemoryPool>) -> Result<Option<Self>, JoinError> {
        if !columns.iter().all(|column| is_number(column.data_type())) {
            return Ok(None);
        }
        let Some((min, max)) = columns.iter().filter_map(bounds).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))) else {
            return Ok(None);
        };
        let bits_max = BITS_FREE.max(BITS_A_ROW.saturating_mul(rows));
        let Some(last) = max.checked_sub(min).and_then(|last| u64::try_from(last).ok()).filter(|&last| last < bits_max)
        else {
            return Ok(None);
        };
        let count = (last / 64 + 1) as usize;
        let mut memory = Reservation::new(pool, 0)?;
        if last / 2 < rows / 4 || !memory.try_grow(8 * count as u64 + (2 << 20)) {
            return Ok(None);
        }
        let mut words = Pages::<u64>::new(count)?;
        for column in columns {
            let nulls = column.nulls();
            each_number(column, |row, number| {
                if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
                    let offset = (number - min) as usize;
                    words[offset / 64] |= 1 << (offset % 64);
                }
            });
        }
        let members: u64 = words.iter().map(|word| u64::from(word.count_ones())).sum();
        Ok((members <= last / 2).then_some(Self { min, last, words, _memory: memory }))
    }

    /// False only of a value that no build row has; a null is one of those.
    fn contains(&self, column: &ArrayRef) -> BooleanArray {
        let mut found = vec![false; column.len()];
        each_number(column, |row, number| {
            let offset = number.wrapping_sub(self.min);
            found[row] = (0..=i128::from(self.last)).contains(&offset)
                && self.words[offset as usize / 64] >> (offset as u64 % 64) & 1 == 1;
        });
        let found = BooleanBuffer::from(found);
        BooleanArray::new(column.logical_nulls().map_or(found.clone(), |nulls| &found & nulls.inner()), None)
    }
}

/// `key` is one of the members; true of every row once the join has ended.
#[derive(Debug)]
pub struct IsMember {
    key: Arc<dyn PhysicalExpr>,
    members: Weak<Members>,
}

impl IsMember {
    pub fn new(key: Arc<dyn PhysicalExpr>, members: &Arc<Members>) -> Self {
        Self { key, members: Arc::downgrade(members) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, Int64Array, StringArray};

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
    }

    #[test]
    fn what_is_not_worth_it_is_not_made() {
        assert!(members((0..100).map(Some).collect(), 8 << 20).is_none(), "every value is there");
        assert!(members(vec![Some(0), Some(i64::MAX)], 8 << 20).is_none(), "too wide");
        assert!(members(vec![Some(0), Some(1000)], 1 << 20).is_none(), "no memory");
        let text: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec!["a"]))];
        assert!(Members::of(&text, 1, &MemoryPool::new(8 << 20)).unwrap().is_none());
    }
}
