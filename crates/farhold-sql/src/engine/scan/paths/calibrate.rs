//! The first model: a grid of small scans of columns that a query is about to read.
//!
//! Half of the scans want all rows, and half of them few, as far as a column has many values: with all rows a scan's result is as long as what
//! it reads, and the grid could not tell the price of one from that of the other.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

use farhold_scan::model::{Features, PathKind};
use farhold_scan::predicate::{Comparison, Condition, Constant, Predicate};
use farhold_store::column::ZoneValues;
use farhold_txn::{FarColumns, PageTask};

use super::{FarPart, Paths, now, usable};
use crate::engine::catalog::TableInfo;
use crate::engine::scan::access::Access;
use crate::engine::scan::exec::read_all;
use crate::engine::scan::filter::ScanFilter;

/// How long the grid may take: queries run meanwhile.
const GRID_TIME: Duration = Duration::from_secs(2);
/// The number of times that the grid is scanned, if there is enough time.
const ROUNDS: usize = 3;
/// Segments of a scan of the grid.
const SEGMENTS: [usize; 4] = [1, 4, 16, 64];
/// Fewer segments say nothing about the time of a byte.
const SEGMENTS_MIN: usize = 4;
/// The part of a column's values that a scan of few rows takes.
const FEW: i64 = 64;
/// The time without measurements after a scan of the grid has failed.
const PAUSE: Duration = Duration::from_mins(1);

/// What the grid reads: columns of another node, and the pages of the same rows.
pub(in crate::engine::scan) struct Grid {
    pub(in crate::engine::scan) table: Arc<TableInfo>,
    pub(in crate::engine::scan) far: Arc<FarColumns>,
    pub(in crate::engine::scan) pages: Vec<PageTask>,
}

impl Paths {
    /// Begins to measure the paths to these columns, unless this has been done or is in progress.
    pub(in crate::engine::scan) fn calibrate(self: &Arc<Self>, far: &FarColumns, grid: impl FnOnce() -> Grid) {
        let is_wanted = {
            let learned = self.learned();
            let is_unknown = |path: &PathKind| learned.model.path(*path).observations() == 0;
            usable(far).iter().any(is_unknown) && now() >= learned.calibrate_after
        };
        if far.segments().len() < SEGMENTS_MIN || !is_wanted {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.is_calibrating.swap(true, AcqRel) {
            return;
        }
        let (turn, grid) = (Turn(Arc::clone(self)), grid());
        runtime.spawn_blocking(move || turn.0.measure(&grid));
    }

    /// Scans the grid, in an order that gives all paths some observations within the time.
    fn measure(self: &Arc<Self>, grid: &Grid) {
        let until = now() + GRID_TIME;
        let paths = usable(&grid.far);
        let mut observed: Vec<Vec<_>> = vec![Vec::new(); paths.len()];
        let all = grid.far.segments().len();
        let mut has_failed = false;
        let mut sizes: Vec<usize> = SEGMENTS.into_iter().filter(|size| *size < all).collect();
        sizes.push(all.min(SEGMENTS[SEGMENTS.len() - 1]));
        let zones = grid.far.segments().first().map_or(&[][..], |segment| segment.zones());
        // The zone maps of floats have integers too, in another order.
        let has_integers = |column: &usize| Constant::Integer(0).is_of(grid.table.columns()[*column].data_type);
        let values = (0..grid.table.columns().len())
            .filter(has_integers)
            .filter_map(|column| Some((column, &zones.get(grid.far.place_of(column)?)?.values)));
        let conditions = [None, condition_for_few(values)];
        let conditions = if conditions[1].is_some() { &conditions[..] } else { &conditions[..1] };
        // Latencies are measured by scans; before the first one a guess would count.
        let sets = column_sets(grid);
        if let (Some(columns), Some(path)) = (sets.first(), paths.last()) {
            has_failed |= self.observe(grid, *path, sizes[0], columns, None).is_none();
        }
        'grid: for _ in 0..ROUNDS {
            for &segments in &sizes {
                for (columns, condition) in sets.iter().flat_map(|set| conditions.iter().map(move |of| (set, of))) {
                    for (path, observed) in paths.iter().zip(&mut observed) {
                        if now() >= until || self.is_closed.load(Relaxed) {
                            break 'grid;
                        }
                        match self.observe(grid, *path, segments, columns, condition.as_ref()) {
                            Some(observation) => observed.push(observation),
                            None => has_failed = true,
                        }
                    }
                }
            }
        }
        let mut learned = self.learned();
        for (path, observed) in paths.iter().zip(&observed) {
            // The model may have learned from scans meanwhile.
            if learned.model.path(*path).observations() == 0 && !observed.is_empty() {
                // Times or features that are out of range give no model; the path stays unknown.
                let _ = learned.model.calibrate(*path, observed);
            }
        }
        if has_failed {
            learned.calibrate_after = now() + PAUSE;
        }
        drop(learned);
        self.save();
    }

    /// Scans some segments by a path; `None`: that failed. What passes is counted, so that the features are those of a good estimate.
    fn observe(
        self: &Arc<Self>,
        grid: &Grid,
        path: PathKind,
        segments: usize,
        columns: &[usize],
        condition: Option<&Condition>,
    ) -> Option<(Features, f64)> {
        let far = &*grid.far;
        let all = far.segments().len().max(1);
        let pages = &grid.pages[..(grid.pages.len() * segments).div_ceil(all).min(grid.pages.len())];
        let page_bytes = pages.iter().map(PageTask::bytes).sum();
        let predicate = |part: f64| {
            let mut predicate = Predicate::everything();
            if let Some(condition) = condition {
                predicate.push(condition.clone(), part);
            }
            predicate
        };
        let (filter, schema) = (predicate(1.0), grid.table.schema());
        // As in a query, the zone maps leave segments out before a path is chosen.
        let numbers: Vec<usize> = (0..segments).filter(|number| far.may_pass(*number, schema, &filter)).collect();
        let access = Access::of_grid(self, &grid.far, path, &numbers, pages);
        let since = now();
        let passed = read_all(&grid.table, far.pin().snapshot(), access, columns, &ScanFilter::of(filter)).ok()?;
        let ns = since.elapsed().as_nanos() as f64;
        let rows: usize = numbers.iter().map(|number| far.segments()[*number].rows()).sum();
        let predicate = predicate((passed as f64 / rows.max(1) as f64).min(1.0));
        let part = FarPart { far, segments: &numbers, page_bytes, columns, predicate: &predicate, threads: 1 };
        Some((self.candidates(part)[path as usize]?, ns))
    }
}

/// The right to calibrate, which one thread has at a time.
struct Turn(Arc<Paths>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_calibrating.store(false, Release);
    }
}

/// The columns that scans of the grid read: one, half of them, all.
fn column_sets(grid: &Grid) -> Vec<Vec<usize>> {
    let all: Vec<usize> =
        (0..grid.table.columns().len()).filter(|column| grid.far.place_of(*column).is_some()).collect();
    let mut sets: Vec<Vec<usize>> =
        [1, all.len().div_ceil(2), all.len()].into_iter().map(|count| all[..count.min(all.len())].to_vec()).collect();
    sets.dedup();
    sets
}

/// A condition that few rows fulfil, by the values of some columns in a segment: the first part of the column with the most values; `None` if
/// none has many.
fn condition_for_few<'a>(columns: impl Iterator<Item = (usize, &'a ZoneValues)>) -> Option<Condition> {
    let ranges = columns.filter_map(|(column, values)| {
        let ZoneValues::Integers(least, greatest) = values else { return None };
        let range = greatest.checked_sub(*least)?;
        (range >= FEW).then_some((range, column, *least))
    });
    let (range, column, least) = ranges.max()?;
    Some(Condition::Compare(column, Comparison::Less, Constant::Integer(least + range / FEW)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_are_those_of_the_column_with_the_most_values() {
        let (narrow, wide) = (ZoneValues::Integers(0, FEW - 1), ZoneValues::Integers(-64, 6_336));
        let found = condition_for_few([(0, &narrow), (3, &wide), (4, &ZoneValues::None)].into_iter());
        assert_eq!(found, Some(Condition::Compare(3, Comparison::Less, Constant::Integer(36))));
        assert_eq!(condition_for_few([(0, &narrow), (1, &ZoneValues::None)].into_iter()), None);
        // As many values as 64 bits have are no number.
        assert_eq!(condition_for_few([(0, &ZoneValues::Integers(i64::MIN, i64::MAX))].into_iter()), None);
    }
}
