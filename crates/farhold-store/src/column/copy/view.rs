//! Reading a copy at an epoch.

use std::ops::Range;
use std::sync::Arc;

use super::Kept;
use super::delta::SharedDelta;
use super::segment::Segment;
use crate::column::BLOCK_ROWS;

/// Rows of the delta that are read at a time. The thread that applies changes waits meanwhile.
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

    /// The columns that its segments keep. A reader of others reads rows.
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

    /// Takes the rows of a segment's block that are none of the view out of `bits`.
    ///
    /// # Panics
    /// If the segment has no such block.
    pub fn select(&self, segment: &Segment, block: usize, bits: &mut [u64; BLOCK_ROWS / 64]) {
        segment.without_ended(block, self.epoch, bits);
    }

    /// Shows the rows of a part of the delta: keys and values.
    pub fn visit_delta(&self, part: Range<usize>, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.delta.read().visit(part, self.epoch, visit);
    }
}

/// The chunks of a view by where they are in column memory, for a reader who names them so.
#[derive(Debug)]
pub struct PlacedChunks {
    view: ColumnView,
    /// Offset, number of the segment, column; in order.
    places: Vec<(u64, u32, u32)>,
}

impl PlacedChunks {
    /// Of this view, which it keeps.
    #[must_use]
    pub fn new(view: ColumnView) -> Self {
        let of_segment = |(number, segment): (usize, &Arc<Segment>)| {
            let segment = segment.clone();
            let kept = (0..segment.columns()).filter(|column| view.kept.has(*column));
            let place = |column: usize| (segment.chunk_place(column).at, number as u32, column as u32);
            kept.map(place).collect::<Vec<_>>()
        };
        let mut places: Vec<_> = view.segments.iter().enumerate().flat_map(of_segment).collect();
        places.sort_unstable();
        Self { view, places }
    }

    /// The chunk that begins there and has so many bytes.
    #[must_use]
    pub fn chunk(&self, offset: u64, bytes: u32) -> Option<&[u8]> {
        let found = self.places.binary_search_by_key(&offset, |(at, ..)| *at).ok()?;
        let (_, segment, column) = self.places[found];
        let chunk = self.view.segments[segment as usize].chunk_bytes(column as usize);
        (chunk.len() == bytes as usize).then_some(chunk)
    }
}
