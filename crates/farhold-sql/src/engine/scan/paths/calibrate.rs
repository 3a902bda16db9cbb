//! The first model: a grid of small scans of columns that a query is about to read.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

use farhold_scan::model::{Features, PathKind};
use farhold_scan::predicate::Predicate;
use farhold_txn::{FarColumns, PageTask};

use super::{FarPart, Paths, now, usable};
use crate::engine::catalog::TableInfo;
use crate::engine::scan::access::Access;
use crate::engine::scan::exec::read_all;

/// How long the grid may take: queries run meanwhile.
const GRID_TIME: Duration = Duration::from_secs(2);
/// How often the grid is scanned, if the time is long enough.
const ROUNDS: usize = 3;
/// Segments of a scan of the grid.
const SEGMENTS: [usize; 4] = [1, 4, 16, 64];
/// Fewer say nothing of the time of a byte.
const SEGMENTS_MIN: usize = 4;
/// How long nothing is measured after a scan of the grid has failed.
const PAUSE: Duration = Duration::from_mins(1);

/// What the grid reads: columns of another node, and the pages of the same rows.
pub(in crate::engine::scan) struct Grid {
    pub(in crate::engine::scan) table: Arc<TableInfo>,
    pub(in crate::engine::scan) far: Arc<FarColumns>,
    pub(in crate::engine::scan) pages: Vec<PageTask>,
}

impl Paths {
    /// Begins to measure the paths to these columns, unless they have been or are being measured.
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

    /// Scans the grid, in an order in which all paths have some observations when the time is over.
    fn measure(self: &Arc<Self>, grid: &Grid) {
        let until = now() + GRID_TIME;
        let paths = usable(&grid.far);
        let mut observed: Vec<Vec<_>> = vec![Vec::new(); paths.len()];
        let all = grid.far.segments().len();
        let mut has_failed = false;
        let mut sizes: Vec<usize> = SEGMENTS.into_iter().filter(|size| *size < all).collect();
        sizes.push(all.min(SEGMENTS[SEGMENTS.len() - 1]));
        'grid: for _ in 0..ROUNDS {
            for &segments in &sizes {
                for columns in column_sets(grid) {
                    for (path, observed) in paths.iter().zip(&mut observed) {
                        if now() >= until || self.is_closed.load(Relaxed) {
                            break 'grid;
                        }
                        match self.observe(grid, *path, segments, &columns) {
                            Some(observation) => observed.push(observation),
                            None => has_failed = true,
                        }
                    }
                }
            }
        }
        let mut learned = self.learned();
        for (path, observed) in paths.iter().zip(&observed) {
            // Scans may have taught the model meanwhile.
            if learned.model.path(*path).observations() == 0 && !observed.is_empty() {
                // Times and features that are out of their limits give no model; the path stays unknown.
                let _ = learned.model.calibrate(*path, observed);
            }
        }
        if has_failed {
            learned.calibrate_after = now() + PAUSE;
        }
        drop(learned);
        self.save();
    }

    /// Scans some segments by a path; `None`: that failed.
    fn observe(
        self: &Arc<Self>,
        grid: &Grid,
        path: PathKind,
        segments: usize,
        columns: &[usize],
    ) -> Option<(Features, f64)> {
        let all = grid.far.segments().len().max(1);
        let pages = &grid.pages[..(grid.pages.len() * segments).div_ceil(all).min(grid.pages.len())];
        let predicate = Predicate::default();
        let page_bytes = pages.iter().map(PageTask::bytes).sum();
        let numbers: Vec<usize> = (0..segments).collect();
        let far = &*grid.far;
        let part = FarPart { far, segments: &numbers, page_bytes, columns, predicate: &predicate, threads: 1 };
        let features = self.candidates(part)[path as usize]?;
        let access = Access::of_grid(self, &grid.far, path, segments, pages);
        let since = now();
        read_all(&grid.table, far.pin().snapshot(), access, columns).ok()?;
        Some((features, since.elapsed().as_nanos() as f64))
    }
}

/// The turn of the one calibration.
struct Turn(Arc<Paths>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_calibrating.store(false, Release);
    }
}

/// The columns that scans of the grid want: one, half of them, all.
fn column_sets(grid: &Grid) -> Vec<Vec<usize>> {
    let all: Vec<usize> =
        (0..grid.table.columns().len()).filter(|column| grid.far.place_of(*column).is_some()).collect();
    let mut sets: Vec<Vec<usize>> =
        [1, all.len().div_ceil(2), all.len()].into_iter().map(|count| all[..count.min(all.len())].to_vec()).collect();
    sets.dedup();
    sets
}
