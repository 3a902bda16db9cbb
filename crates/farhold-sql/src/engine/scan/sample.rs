//! What a plan should expect of a table: a few rows of it, looked at when it is first scanned and kept.
//!
//! A filter's selectivity is the part of the sampled rows that pass it; the number of distinct values of a column comes
//! from how many of the sampled ones are alone (the guaranteed-error estimator of Charikar et al., PODS 2000). Both are
//! rough, and enough to keep a plan from building a hash table over the larger side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use farhold_store::row::{ColumnReader, Stored};
use farhold_txn::{PageTask, Snapshot};

use super::filter::ScanFilter;
use crate::engine::catalog::TableInfo;

/// Rows of a sample.
const ROWS: usize = 512;
/// Page tasks that they are spread over.
const TASKS: usize = 32;

type Row = (Box<[u8]>, Box<[u8]>);

/// Some rows of a table.
#[derive(Debug)]
pub(crate) struct Sample {
    rows: Vec<Row>,
    /// How many rows the table had, about.
    of: u64,
}

/// A table's sample, once there is one.
#[derive(Debug, Default)]
pub(crate) struct SampleCache {
    sample: Mutex<Option<Arc<Sample>>>,
}

impl SampleCache {
    /// The sample, taken anew if the table has grown or shrunk by a quarter since.
    pub(super) fn get(&self, row_count: u64, snapshot: &Snapshot, tasks: &[PageTask]) -> Arc<Sample> {
        let mut cached = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = cached.as_ref().filter(|s| s.of.abs_diff(row_count) <= s.of / 4) {
            return Arc::clone(sample);
        }
        let sample = Arc::new(Sample::take(row_count, snapshot, tasks));
        *cached = Some(Arc::clone(&sample));
        sample
    }
}

impl Sample {
    /// Rows of page tasks all over the table. A page that cannot be read now is left out: it is only an estimate.
    fn take(of: u64, snapshot: &Snapshot, tasks: &[PageTask]) -> Self {
        let count = tasks.len().min(TASKS);
        let rows_each = ROWS.div_ceil(count.max(1));
        let mut rows: Vec<Row> = Vec::new();
        for n in 0..count {
            let mut left = rows_each;
            let _ = snapshot.scan_page(&tasks[n * tasks.len() / count], &mut |key, value| {
                if left > 0 {
                    left -= 1;
                    rows.push((key.into(), value.into()));
                }
            });
        }
        Self { rows, of }
    }

    /// What a scan of `columns` gives of `row_count` rows that `filter` lets pass in part.
    pub(super) fn statistics(
        &self,
        table: &TableInfo,
        (columns, schema): (&[usize], &SchemaRef),
        filter: &ScanFilter,
        row_count: u64,
    ) -> Statistics {
        let (rows, mut scratch) = (filter.on_rows(table), Vec::new());
        let passing: Vec<&Row> = self.rows.iter().filter(|(k, v)| rows.matches(k, v, &mut scratch)).collect();
        let selectivity = if self.rows.is_empty() {
            filter.predicate().selectivity()
        } else {
            // None of the sampled: fewer than one in so many.
            (passing.len() as f64).max(0.5) / self.rows.len() as f64
        };
        let rows = ((row_count as f64 * selectivity) as usize).max(1);
        let width: usize = schema.fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(24)).sum();
        let column_statistics = columns
            .iter()
            .map(|&column| column_of(&ColumnReader::new(table.schema(), column), &passing, rows))
            .collect();
        Statistics {
            num_rows: Precision::Inexact(rows),
            total_byte_size: Precision::Inexact(rows * width.max(1)),
            column_statistics,
        }
    }
}

/// Least and greatest values are not told, though they are called inexact: DataFusion's `FilterExec` takes a column whose bounds meet for a constant
/// (DataFusion 55), and the planner leaves it out of what is sorted by.
fn column_of(reader: &ColumnReader, rows: &[&Row], of: usize) -> ColumnStatistics {
    let mut statistics = ColumnStatistics::new_unknown();
    let distinct = match reader.stored() {
        Stored::Text | Stored::Bytes => {
            let mut scratch = Vec::new();
            let mut seen: HashMap<Vec<u8>, u32> = HashMap::with_capacity(rows.len());
            for (key, value) in rows.iter().filter(|(_, value)| !reader.is_null(value)) {
                *seen.entry(reader.bytes(key, value, &mut scratch).to_vec()).or_default() += 1;
            }
            estimate(seen.values(), rows.len(), of)
        }
        Stored::Bool | Stored::F32 | Stored::F64 => return statistics,
        _ => {
            let mut seen: HashMap<i128, u32> = HashMap::with_capacity(rows.len());
            for (key, value) in rows.iter().filter(|(_, value)| !reader.is_null(value)) {
                *seen.entry(reader.wide(key, value)).or_default() += 1;
            }
            estimate(seen.values(), rows.len(), of)
        }
    };
    statistics.distinct_count = distinct.map_or(Precision::Absent, Precision::Inexact);
    statistics
}

/// How many distinct values `of` rows have, of which `sampled` had values with these counts.
fn estimate<'a>(counts: impl Iterator<Item = &'a u32>, sampled: usize, of: usize) -> Option<usize> {
    let (mut alone, mut repeated) = (0_usize, 0_usize);
    for count in counts {
        if *count == 1 { alone += 1 } else { repeated += 1 }
    }
    if alone + repeated == 0 {
        return None;
    }
    let factor = (of as f64 / sampled.max(1) as f64).max(1.0);
    // Nearly all alone: a key, or as good as one.
    let scale = if alone * 20 > sampled * 19 { factor } else { factor.sqrt() };
    Some(((alone as f64 * scale) as usize + repeated).clamp(1, of.max(1)))
}

#[cfg(test)]
mod tests {
    use super::estimate;

    #[test]
    fn distinct_values() {
        assert_eq!(estimate([1; 500].iter(), 500, 1_000_000), Some(1_000_000));
        assert_eq!(estimate([50; 10].iter(), 500, 1_000_000), Some(10));
        assert_eq!(estimate([].iter(), 0, 10), None);
        let mixed = estimate([1, 1, 2, 2, 2].iter(), 8, 800).unwrap();
        assert!((5..=800).contains(&mixed), "{mixed}");
    }
}
