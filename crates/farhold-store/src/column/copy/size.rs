//! How large a copy is and how far it has come, for callers that must not wait: while many changes are applied, the locks of the copy are
//! held for long.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use super::segment::Segment;

/// What a copy consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopySize {
    /// Segments.
    pub segments: usize,
    /// Rows in segments, those included that have ended. While the first segments are being made, the rows that they have so far.
    pub segment_rows: u64,
    /// Bytes of all chunks, slots, and epochs that end rows.
    pub segment_bytes: u64,
    /// Rows of the delta, those included that have ended.
    pub delta_rows: u64,
    /// Bytes of the delta.
    pub delta_bytes: u64,
}

impl CopySize {
    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segment_bytes + self.delta_bytes
    }
}

impl std::ops::AddAssign for CopySize {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.segment_rows += other.segment_rows;
        self.segment_bytes += other.segment_bytes;
        self.delta_rows += other.delta_rows;
        self.delta_bytes += other.delta_bytes;
    }
}

/// How many rows a delta has, and bytes.
pub(super) type DeltaSize = (usize, u64);

/// What is known of a copy without its locks. The threads that change the copy set it while they hold its state, so all but the rows of a
/// first build are as the state was when its last change was complete. A caller that reads while it changes may see old numbers and new ones.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Rows of the first segments, as far as they have been made.
    built_rows: AtomicU64,
    segments: AtomicUsize,
    segment_rows: AtomicU64,
    segment_bytes: AtomicU64,
    delta_rows: AtomicUsize,
    delta_bytes: AtomicU64,
    complete: AtomicU32,
    is_built: AtomicBool,
}

impl Known {
    /// The first segments are going to be made.
    pub fn begin_build(&self) {
        self.built_rows.store(0, Relaxed);
    }

    /// One of them has been made.
    pub fn add_built(&self, rows: usize) {
        self.built_rows.fetch_add(rows as u64, Relaxed);
    }

    /// The copy has other segments now, and another delta.
    pub fn set(&self, segments: &[Arc<Segment>], delta: DeltaSize) {
        self.segments.store(segments.len(), Relaxed);
        self.segment_rows.store(segments.iter().map(|segment| segment.rows() as u64).sum(), Relaxed);
        self.segment_bytes.store(segments.iter().map(|segment| segment.bytes()).sum(), Relaxed);
        self.set_delta(delta);
        self.is_built.store(true, Release);
    }

    /// Changes have been applied: the delta has become longer, and so have segments, by epochs that end their rows.
    pub fn add_changes(&self, delta: DeltaSize, end_bytes: u64) {
        self.set_delta(delta);
        self.segment_bytes.fetch_add(end_bytes, Relaxed);
    }

    fn set_delta(&self, (rows, bytes): DeltaSize) {
        self.delta_rows.store(rows, Relaxed);
        self.delta_bytes.store(bytes, Relaxed);
    }

    /// All changes up to this epoch have been applied.
    pub fn set_complete(&self, epoch: u32) {
        self.complete.store(epoch, Release);
    }

    /// The last epoch that is complete. The size that is read afterwards has its changes.
    pub fn complete_to(&self) -> u32 {
        self.complete.load(Acquire)
    }

    /// Whether the first segments have been made.
    pub fn is_built(&self) -> bool {
        self.is_built.load(Acquire)
    }

    pub fn size(&self) -> CopySize {
        let rows = if self.is_built() { &self.segment_rows } else { &self.built_rows };
        CopySize {
            segments: self.segments.load(Relaxed),
            segment_rows: rows.load(Relaxed),
            segment_bytes: self.segment_bytes.load(Relaxed),
            delta_rows: self.delta_rows.load(Relaxed) as u64,
            delta_bytes: self.delta_bytes.load(Relaxed),
        }
    }
}
