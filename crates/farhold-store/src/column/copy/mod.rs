//! The column copy of a table: the rows whose home is this node, as columns, kept up to date from the commit log.
//!
//! ```text
//!   changes of committed transactions ──► delta: rows as bytes, each with the epochs between which it holds
//!                                            │ merge, in the background
//!                                            ▼
//!   segments, in the order of their slots: chunks of columns │ the slot of each row │ the epoch that ended each row
//!
//!   a view at epoch S:   rows of segments that end after S  +  rows of the delta that begin at or before S and end after it
//! ```
//!
//! Invariants:
//! - Changes arrive in any order. The versions of a slot only grow, and their epochs never decrease, so the version orders them.
//! - When the copy is [complete](ColumnCopy::complete) up to an epoch, every change of that epoch and of earlier epochs has been applied. A view of that epoch
//!   is final: later changes neither add rows to it nor take rows from it.
//! - Each slot is in the range of one segment. A segment is made from the rows of one epoch, and has no row that begins later. Views of earlier epochs can then
//!   no longer be made, but an existing view keeps the segments and the delta that it was made from.
//! - Chunks are in the [memory of columns](super::memory), which other nodes read. A chunk never changes. In a segment, only the epochs that end rows change,
//!   each at most once, from "none" to an epoch.

mod blocks;
mod delta;
mod far;
mod merge;
mod segment;
mod size;
#[cfg(test)]
mod tests;
mod view;

pub use far::{Asked, BlockBits, Damaged, FarChunk, FarView, FarViewSegment};
pub use merge::Merged;
pub use segment::Segment;
pub use size::CopySize;
pub use view::{ColumnView, DELTA_RUN_ROWS, PlacedChunks, ViewPart};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use delta::SharedDelta;
use segment::SegmentBuilder;
use size::Known;

use super::memory::{ColumnMemory, NoMemory};
use super::{CHUNK_ROWS_MAX, ChunkBuilder};
use crate::object::ObjectRef;
use crate::row::Schema;
use farhold_fabric::Version;

/// What a committed transaction did to a row.
#[derive(Clone, Copy, Debug)]
pub struct RowChange<'a> {
    /// The row's slot.
    pub reference: ObjectRef,
    /// The version that the row got.
    pub version: Version,
    /// The epoch of the commit.
    pub epoch: u32,
    /// Key and value; `None`: the row was deleted.
    pub row: Option<(&'a [u8], &'a [u8])>,
}

/// When segments are made, and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyConfig {
    /// The most rows of a segment; at most [`CHUNK_ROWS_MAX`].
    pub segment_rows: usize,
    /// A segment is rebuilt when this many of its rows have changed or been added, ...
    pub changes_min: usize,
    /// ... and they are at least this fraction of its rows: an eighth by default, so that about eight rows are copied for each changed row.
    pub changed_part: usize,
}

impl Default for CopyConfig {
    fn default() -> Self {
        Self { segment_rows: CHUNK_ROWS_MAX, changes_min: 1024, changed_part: 8 }
    }
}

/// The columns of a table that a copy keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// All.
    #[default]
    All,
    /// Those at these positions, in order.
    These(Arc<[usize]>),
}

impl Kept {
    /// Whether the column at a position is kept.
    #[must_use]
    pub fn has(&self, column: usize) -> bool {
        match self {
            Self::All => true,
            Self::These(columns) => columns.binary_search(&column).is_ok(),
        }
    }
}

/// Why a copy has no view of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoView {
    /// Its segments are being made for the first time.
    #[error("the columns are being built")]
    Building,
    /// Not all changes of that epoch have been applied.
    #[error("the columns are at epoch {complete}, before the snapshot")]
    Behind {
        /// The last epoch that is complete.
        complete: u32,
    },
    /// Its segments were made for a later epoch.
    #[error("the columns have been merged past the snapshot, at epoch {since}")]
    Past {
        /// The latest epoch that a segment was made for.
        since: u32,
    },
}

/// The column copy of a table on one node. One thread applies changes and merges; any number of threads read views.
#[derive(Debug)]
pub struct ColumnCopy {
    schema: Schema,
    kept: Kept,
    config: CopyConfig,
    /// Where its chunks are.
    memory: Arc<ColumnMemory>,
    known: Known,
    /// Held while segments are made from the state.
    merging: Mutex<merge::Tried>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    /// In the order of their slots. The range of the first segment begins at 0, that of each other segment at its first slot.
    segments: Arc<[Arc<Segment>]>,
    delta: Arc<SharedDelta>,
    /// All changes up to this epoch have been applied.
    complete: u32,
    /// A view must not be of an earlier epoch.
    since: u32,
    is_built: bool,
}

impl ColumnCopy {
    /// A copy without rows. Until [`install`](Self::install) it takes changes and has no view.
    #[must_use]
    pub fn new(schema: &Schema, kept: Kept, config: CopyConfig, memory: &Arc<ColumnMemory>) -> Self {
        let state = State { segments: Arc::from([]), delta: Arc::default(), complete: 0, since: 0, is_built: false };
        Self {
            schema: schema.clone(),
            kept,
            config,
            memory: memory.clone(),
            known: Known::default(),
            merging: Mutex::default(),
            state: RwLock::new(state),
        }
    }

    /// The columns that it keeps.
    #[must_use]
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    fn builder(&self, rows_max: usize) -> SegmentBuilder {
        let columns = ChunkBuilder::of(&self.schema, &|column| self.kept.has(column));
        SegmentBuilder::new(self.memory.clone(), columns, rows_max)
    }

    /// Makes the first segments of the rows of a snapshot.
    #[must_use]
    pub fn build(&self) -> CopyBuilder<'_> {
        self.known.begin_build();
        CopyBuilder { copy: self, builder: self.builder(self.config.segment_rows), segments: Vec::new(), bytes: 0 }
    }

    /// Installs `built` as the rows of the snapshot at `epoch`. Changes of that epoch and of earlier ones, which the snapshot contains, are dropped from the
    /// delta. The copy must have received changes since before the snapshot was taken, so it has every later change.
    ///
    /// # Errors
    /// [`NoMemory`]: the copy stays without a view.
    pub fn install(&self, built: CopyBuilder<'_>, epoch: u32) -> Result<(), NoMemory> {
        let _merging = self.merging();
        let segments = built.finish()?;
        let mut state = self.write();
        state.since = epoch;
        state.complete = state.complete.max(epoch);
        let delta = state.delta.read().after(epoch, |_| true);
        for (slot, begin) in delta.firsts(0) {
            end_in(&segments, slot, begin);
        }
        state.segments = segments.into();
        state.delta = Arc::new(SharedDelta::new(delta));
        state.is_built = true;
        self.known.set(&state.segments, state.delta.read().size());
        self.known.set_complete(state.complete);
        Ok(())
    }

    /// Applies changes. Changes of complete epochs are known already, and are ignored.
    pub fn apply<'a>(&self, changes: impl IntoIterator<Item = RowChange<'a>>) {
        let state = self.read();
        let (mut delta, mut end_bytes) = (state.delta.write(), 0);
        for change in changes {
            if change.epoch <= state.complete && state.is_built {
                continue;
            }
            let slot = slot_of(change.reference);
            if delta.insert(slot, &change) {
                end_bytes += end_in(&state.segments, slot, change.epoch);
            }
        }
        self.known.add_changes(delta.size(), end_bytes);
    }

    /// Every change up to this epoch has been applied.
    pub fn complete(&self, epoch: u32) {
        let mut state = self.write();
        state.complete = state.complete.max(epoch);
        self.known.set_complete(state.complete);
    }

    /// The last epoch that is complete. The [size](Self::size) that is asked for afterwards has its changes. Neither waits for changes that
    /// are being applied.
    #[must_use]
    pub fn complete_to(&self) -> u32 {
        self.known.complete_to()
    }

    /// Whether its first segments have been made. It takes no lock.
    #[must_use]
    pub fn is_built(&self) -> bool {
        self.known.is_built()
    }

    /// The rows at an epoch.
    ///
    /// # Errors
    /// [`NoView`]: the caller reads rows, or tries again.
    pub fn view(&self, epoch: u32) -> Result<ColumnView, NoView> {
        let state = self.read();
        let (complete, since) = (state.complete, state.since);
        if !state.is_built {
            return Err(NoView::Building);
        }
        if epoch > complete {
            return Err(NoView::Behind { complete });
        }
        if epoch < since {
            return Err(NoView::Past { since });
        }
        Ok(ColumnView::new(epoch, self.kept.clone(), state.segments.clone(), state.delta.clone()))
    }

    /// Its size now, without changes that are being applied. It takes no lock.
    #[must_use]
    pub fn size(&self) -> CopySize {
        self.known.size()
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn merging(&self) -> MutexGuard<'_, merge::Tried> {
        self.merging.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the first segments of a copy.
#[derive(Debug)]
pub struct CopyBuilder<'c> {
    copy: &'c ColumnCopy,
    builder: SegmentBuilder,
    segments: Vec<Arc<Segment>>,
    bytes: u64,
}

impl CopyBuilder<'_> {
    /// Appends a row. Rows must come in the order of their slots.
    ///
    /// # Errors
    /// [`NoMemory`]: the copy cannot be built.
    ///
    /// # Panics
    /// If the slot is not behind the previous one.
    pub fn append(&mut self, reference: ObjectRef, key: &[u8], value: &[u8]) -> Result<(), NoMemory> {
        if let Some(segment) = self.builder.finish_if_full()? {
            self.bytes += segment.bytes();
            self.copy.known.add_built(segment.rows());
            self.segments.push(segment);
        }
        self.builder.append(slot_of(reference), key, value);
        Ok(())
    }

    /// Bytes of the segments that have been made.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn finish(mut self) -> Result<Vec<Arc<Segment>>, NoMemory> {
        self.segments.extend(self.builder.finish()?);
        Ok(self.segments)
    }
}

/// A slot's number: its place in units of 16 bytes.
fn slot_of(reference: ObjectRef) -> u32 {
    (reference.offset() / farhold_fabric::object::ALIGN) as u32
}

/// The segment whose range contains a slot.
fn segment_of(segments: &[Arc<Segment>], slot: u32) -> Option<usize> {
    segments.len().checked_sub(1)?;
    Some(segments.partition_point(|segment| segment.first_slot() <= slot).saturating_sub(1))
}

/// A slot has its first change that its segment does not contain: its row there ends. Returns the bytes by which the segment has grown.
fn end_in(segments: &[Arc<Segment>], slot: u32, epoch: u32) -> u64 {
    segment_of(segments, slot).map_or(0, |place| segments[place].end(slot, epoch))
}
