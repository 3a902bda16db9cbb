//! Statistics of a table for the planner, from a sample of its rows that is taken at the first scan and cached.
//!
//! The selectivity of a filter is the fraction of sampled rows that pass it. The number of distinct values of a column
//! is estimated from the number of values that occur once in the sample (the guaranteed-error estimator of Charikar et
//! al., PODS 2000). Both are rough, but good enough to avoid building a hash table over the larger side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use farhold_store::row::{ColumnReader, Stored};
use farhold_txn::{PageTask, Snapshot};

use super::filter::ScanFilter;
use crate::engine::catalog::TableInfo;

/// The number of rows in a sample.
const ROWS: usize = 512;
/// The number of page tasks from which they are taken.
const TASKS: usize = 32;

type Row = (Box<[u8]>, Box<[u8]>);

/// Some rows of a table.
#[derive(Debug)]
pub(crate) struct Sample {
    rows: Vec<Row>,
    /// The approximate number of rows of the table.
    of: u64,
}

/// The cached sample of a table.
#[derive(Debug, Default)]
pub(crate) struct SampleCache {
    sample: Mutex<Option<Arc<Sample>>>,
}

impl SampleCache {
    /// The sample. It is replaced if the table has grown or shrunk by more than a quarter since.
    pub(super) fn get(&self, row_count: u64, snapshot: &Snapshot, tasks: &[PageTask]) -> Arc<Sample> {
        let mut cached = self.sample.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sample) = cached.as_ref().filter(|s| s.of.abs_diff(row_count) <= s.of / 4) {
            return Arc::clone(sample);
        }
        let sample = Arc::new(Sample::take(row_count, snapshot, tasks));
        *cached = Some(Arc::clone(&sample));
        sample
    }

    /// The last sample, if the table has been scanned.
    pub(super) fn last(&self) -> Option<Arc<Sample>> {
        self.sample.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Sample {
    /// Takes rows from page tasks spread over the table. A page that cannot be read is skipped, since this is only an
    /// estimate.
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

    fn passing(&self, table: &TableInfo, filter: &ScanFilter) -> Vec<&Row> {
        let (rows, mut scratch) = (filter.on_rows(table), Vec::new());
        self.rows.iter().filter(|(k, v)| rows.matches(k, v, &mut scratch)).collect()
    }

    /// The fraction of the table's rows that pass a filter, of which so many rows of the sample are.
    fn fraction(&self, passing: usize, filter: &ScanFilter) -> f64 {
        if self.rows.is_empty() {
            filter.predicate().selectivity()
        } else {
            // If no sampled row passes, assume half a row of the sample.
            (passing as f64).max(0.5) / self.rows.len() as f64
        }
    }

    /// The fraction of the table's rows that pass a filter.
    pub(super) fn selectivity(&self, table: &TableInfo, filter: &ScanFilter) -> f64 {
        self.fraction(self.passing(table, filter).len(), filter)
    }

    /// The statistics of a scan of `columns` over `row_count` rows with `filter`.
    pub(super) fn statistics(
        &self,
        table: &TableInfo,
        (columns, schema): (&[usize], &SchemaRef),
        filter: &ScanFilter,
        row_count: u64,
    ) -> Statistics {
        let passing = self.passing(table, filter);
        let rows = ((row_count as f64 * self.fraction(passing.len(), filter)) as usize).max(1);
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

/// Minimum and maximum values are omitted: even if they are marked as inexact, DataFusion 55's `FilterExec` treats a
/// column whose bounds are equal as constant, and the planner removes it from sort keys.
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

/// Estimates the number of distinct values in `of` rows from `sampled` rows, whose distinct values have these counts.
fn estimate<'a>(counts: impl Iterator<Item = &'a u32>, sampled: usize, of: usize) -> Option<usize> {
    let (mut alone, mut repeated) = (0_usize, 0_usize);
    for count in counts {
        if *count == 1 { alone += 1 } else { repeated += 1 }
    }
    if alone + repeated == 0 {
        return None;
    }
    let factor = (of as f64 / sampled.max(1) as f64).max(1.0);
    // Nearly all values occur once: the column is a key, or nearly so.
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
