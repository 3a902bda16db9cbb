//! Reading a copy at an epoch.

use std::ops::Range;
use std::sync::Arc;

use super::Kept;
use super::delta::SharedDelta;
use super::segment::Segment;
use crate::column::BLOCK_ROWS;

/// Rows of the delta that are read at a time. The thread that applies changes waits during that time.
pub const DELTA_RUN_ROWS: usize = 1024;

/// The rows of a copy at one epoch.
#[derive(Clone, Debug)]
pub struct ColumnView {
    pub(super) epoch: u32,
    kept: Kept,
    pub(super) segments: Arc<[Arc<Segment>]>,
    delta: Arc<SharedDelta>,
    delta_len: usize,
}

/// A part of a view for one thread to read.
#[derive(Clone, Debug)]
pub enum ViewPart {
    /// The rows of a segment that [have not ended](ColumnView::select).
    Segment(Arc<Segment>),
    /// Some rows of the delta, for [`ColumnView::visit_delta`].
    Delta(Range<usize>),
}

impl ColumnView {
    pub(super) fn new(epoch: u32, kept: Kept, segments: Arc<[Arc<Segment>]>, delta: Arc<SharedDelta>) -> Self {
        let delta_len = delta.len();
        Self { epoch, kept, segments, delta, delta_len }
    }

    /// The epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The columns that its segments keep. A reader that needs others reads rows.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Whether some of its rows are in segments.
    #[must_use]
    pub fn has_segments(&self) -> bool {
        !self.segments.is_empty()
    }

    /// All parts.
    #[must_use]
    pub fn parts(&self) -> Vec<ViewPart> {
        let segments = self.segments.iter().map(|segment| ViewPart::Segment(segment.clone()));
        let runs = (0..self.delta_len).step_by(DELTA_RUN_ROWS);
        let runs = runs.map(|from| ViewPart::Delta(from..(from + DELTA_RUN_ROWS).min(self.delta_len)));
        segments.chain(runs).collect()
    }

    /// Clears in `bits` the rows of a segment's block that are not in the view.
    ///
    /// # Panics
    /// If the segment has no such block.
    pub fn select(&self, segment: &Segment, block: usize, bits: &mut [u64; BLOCK_ROWS / 64]) {
        segment.without_ended(block, self.epoch, bits);
    }

    /// Visits the rows of a part of the delta: keys and values.
    pub fn visit_delta(&self, part: Range<usize>, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.delta.read().visit(part, self.epoch, visit);
    }
}

/// The chunks of a view by their places in column memory, for a reader that names them by place. It keeps the segments alive, but not the delta.
#[derive(Debug)]
pub struct PlacedChunks {
    kept: Kept,
    /// In the order of their places.
    segments: Vec<Arc<Segment>>,
}

impl PlacedChunks {
    /// Of this view.
    #[must_use]
    pub fn new(view: &ColumnView) -> Self {
        let mut segments = view.segments.to_vec();
        segments.sort_unstable_by_key(|segment| segment.place());
        Self { kept: view.kept.clone(), segments }
    }

    /// The chunk of a kept column that begins there and has this number of bytes.
    #[must_use]
    pub fn chunk(&self, offset: u64, bytes: u32) -> Option<&[u8]> {
        let behind = self.segments.partition_point(|segment| segment.place() <= offset);
        let segment = self.segments.get(behind.checked_sub(1)?)?;
        let column = segment.column_at(offset).filter(|column| self.kept.has(*column))?;
        let chunk = segment.chunk_bytes(column);
        (chunk.len() == bytes as usize).then_some(chunk)
    }
}
