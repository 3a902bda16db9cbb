//! A segment: the columns of up to 65,536 rows, their slots, and the epochs that ended them.

use std::cmp::Ordering;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use crate::column::build::StoredBlock;
use crate::column::encode::encode_integers;
use crate::column::memory::{ColumnMemory, EXTENT_ALIGN, Extent, NoMemory};
use crate::column::{BLOCK_ROWS, Chunk, ChunkBuilder, Nulls, Zone};

/// The end of a row that has not ended.
pub(super) const NEVER: u32 = u32::MAX;
/// Bytes of the epochs that end the rows of a block.
const END_BYTES: u64 = (BLOCK_ROWS * size_of::<u32>()) as u64;

/// The columns of some rows.
#[derive(Debug)]
pub struct Segment {
    /// The chunks of the columns, in the memory of columns: other nodes read them too.
    chunks: Extent,
    /// Their places in it, in the order of the schema.
    columns: Box<[ChunkPlace]>,
    /// Their zone maps, in the same order.
    zones: Box<[Zone]>,
    /// A chunk of the rows' slots, in order. On the heap, because only this node asks for them.
    slots: Vec<u8>,
    first_slot: u32,
    last_slot: u32,
    rows: usize,
    ends: Ends,
}

/// Where a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkPlace {
    pub at: u64,
    pub bytes: u32,
}

/// For each row, the epoch that ended it. A block of rows gets room for these epochs when its first row ends.
#[derive(Debug)]
struct Ends {
    blocks: Box<[OnceLock<Box<[AtomicU32; BLOCK_ROWS]>>]>,
    /// Rows that have ended.
    count: AtomicU32,
}

impl Segment {
    /// The chunks, one per column in the order of the schema. Those of columns that are not [kept](super::Kept) have no meaning.
    #[must_use]
    pub fn chunks(&self) -> Vec<Chunk<'_>> {
        self.columns.iter().map(|place| open(self.chunks.part(place.at, place.bytes as usize))).collect()
    }

    /// Rows, including those that have ended.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ends.count.load(Relaxed) as usize
    }

    /// Bytes of its chunks, its slots, and the epochs that end rows.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let blocks = self.ends.blocks.iter().filter(|block| block.get().is_some()).count();
        self.chunks.len() + self.slots.len() as u64 + blocks as u64 * END_BYTES
    }

    /// Clears in `bits` the rows of a block that have ended at `epoch`. There is one bit per row, from the lowest bit of the first word on.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn without_ended(&self, block: usize, epoch: u32, bits: &mut [u64; BLOCK_ROWS / 64]) {
        let Some(ends) = self.ends.blocks[block].get() else { return };
        for (word, ends) in bits.iter_mut().zip(ends.as_chunks::<64>().0) {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if ends[bit as usize].load(Acquire) <= epoch {
                    *word &= !(1 << bit);
                }
            }
        }
    }

    /// Where a column's chunk is in the region of column memory.
    pub(super) fn chunk_place(&self, column: usize) -> ChunkPlace {
        let ChunkPlace { at, bytes } = self.columns[column];
        ChunkPlace { at: self.chunks.offset() + at, bytes }
    }

    /// The zone map of a column's chunk. That of a column that is not [kept](super::Kept) has no meaning.
    ///
    /// # Panics
    /// If the table has no such column.
    #[must_use]
    pub fn zone(&self, column: usize) -> &Zone {
        &self.zones[column]
    }

    /// The chunk of a column.
    pub(super) fn chunk_bytes(&self, column: usize) -> &[u8] {
        let ChunkPlace { at, bytes } = self.columns[column];
        self.chunks.part(at, bytes as usize)
    }

    /// Where its first chunk is in the region of column memory.
    pub(super) fn place(&self) -> u64 {
        self.chunks.offset()
    }

    /// The column whose chunk begins there.
    pub(super) fn column_at(&self, offset: u64) -> Option<usize> {
        let at = offset.checked_sub(self.chunks.offset())?;
        self.columns.binary_search_by_key(&at, |place| place.at).ok()
    }

    pub(super) fn first_slot(&self) -> u32 {
        self.first_slot
    }

    /// The rows' slots, for [`slot_at`].
    pub(super) fn slots(&self) -> Chunk<'_> {
        open(&self.slots)
    }

    /// Ends the row in this slot, if there is one, at `epoch`, unless it has ended before. Returns the bytes by which the segment has grown.
    pub(super) fn end(&self, slot: u32, epoch: u32) -> u64 {
        if !(self.first_slot..=self.last_slot).contains(&slot) {
            return 0;
        }
        let Some(row) = self.row_of(slot) else { return 0 };
        let mut bytes = 0;
        let fresh = || {
            bytes = END_BYTES;
            Box::new([const { AtomicU32::new(NEVER) }; BLOCK_ROWS])
        };
        let ends = self.ends.blocks[row / BLOCK_ROWS].get_or_init(fresh);
        if ends[row % BLOCK_ROWS].fetch_min(epoch, Release) == NEVER {
            self.ends.count.fetch_add(1, Relaxed);
        }
        bytes
    }

    /// The row in a slot of its range.
    fn row_of(&self, slot: u32) -> Option<usize> {
        let slots = self.slots();
        // Slots are dense except where rows were deleted, so a straight line from the first to the last comes close.
        let span = u64::from(self.last_slot - self.first_slot).max(1);
        let guess = (u64::from(slot - self.first_slot) * (self.rows as u64 - 1) / span) as usize;
        let (mut low, mut high) = (0, self.rows);
        let (mut probe, mut step) = (guess, 1);
        // The steps from the guess double until the slot is between two probes.
        while low < high {
            match slot_at(&slots, probe).cmp(&slot) {
                Ordering::Equal => return Some(probe),
                Ordering::Less => low = probe + 1,
                Ordering::Greater => high = probe,
            }
            probe = if low > guess && high == self.rows {
                (low + step).min(self.rows - 1)
            } else if high <= guess && low == 0 {
                high.saturating_sub(step)
            } else {
                usize::midpoint(low, high)
            };
            step *= 2;
        }
        None
    }
}

/// The slot of a row, by the [slots](Segment::slots) of its segment.
pub(super) fn slot_at(slots: &Chunk<'_>, row: usize) -> u32 {
    slots.integer(row).unwrap_or_default() as u32
}

fn open(bytes: &[u8]) -> Chunk<'_> {
    Chunk::open(bytes).expect("made by `SegmentBuilder`, and never changed")
}

/// Collects the rows of one segment after the other.
pub(super) struct SegmentBuilder {
    memory: Arc<ColumnMemory>,
    columns: ChunkBuilder,
    slots: Vec<i64>,
    rows_max: usize,
}

impl std::fmt::Debug for SegmentBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentBuilder").field("rows", &self.slots.len()).finish_non_exhaustive()
    }
}

impl SegmentBuilder {
    pub fn new(memory: Arc<ColumnMemory>, columns: ChunkBuilder, rows_max: usize) -> Self {
        Self { memory, columns, slots: Vec::new(), rows_max }
    }

    /// Appends a row; its slot must be behind the previous one.
    pub fn append(&mut self, slot: u32, key: &[u8], value: &[u8]) {
        self.append_slot(slot);
        self.columns.append(key, value);
    }

    /// The first block of a segment of the same table, for [`append_stored`](Self::append_stored).
    pub fn stored<'c>(&self, chunks: &[Chunk<'c>]) -> StoredBlock<'c> {
        StoredBlock::of(chunks, &self.columns)
    }

    /// Appends rows of a block, and their slots, as far as they fit. Returns how many, at least one. It must not be full.
    pub fn append_stored(&mut self, stored: &StoredBlock<'_>, rows: &[u16], slots: &[u32]) -> usize {
        let room = self.rows_max - self.slots.len();
        let count = self.columns.append_stored(stored, &rows[..rows.len().min(room)]);
        slots[..count].iter().for_each(|slot| self.append_slot(*slot));
        count
    }

    fn append_slot(&mut self, slot: u32) {
        let slot = i64::from(slot);
        assert!(self.slots.last().is_none_or(|last| *last < slot), "rows come in the order of their slots");
        self.slots.push(slot);
    }

    /// The segment of the rows so far, if it is full.
    pub fn finish_if_full(&mut self) -> Result<Option<Arc<Segment>>, NoMemory> {
        let is_full = self.columns.is_full() || self.slots.len() >= self.rows_max;
        if is_full { self.finish() } else { Ok(None) }
    }

    /// The segment of the rows so far, if there are any. The builder is empty afterwards.
    pub fn finish(&mut self) -> Result<Option<Arc<Segment>>, NoMemory> {
        let slots = std::mem::take(&mut self.slots);
        let (Some(&first), Some(&last)) = (slots.first(), slots.last()) else { return Ok(None) };
        let columns = self.columns.finish();
        let chunks = self.memory.store(columns.iter().map(Vec::as_slice))?;
        let places = columns.iter().scan(0, |next, chunk| {
            let place = ChunkPlace { at: *next, bytes: chunk.len() as u32 };
            *next += u64::from(place.bytes).next_multiple_of(EXTENT_ALIGN);
            Some(place)
        });
        let blocks = (0..slots.len().div_ceil(BLOCK_ROWS)).map(|_| OnceLock::new()).collect();
        Ok(Some(Arc::new(Segment {
            chunks,
            columns: places.collect(),
            zones: columns.iter().map(|chunk| Zone::of(&open(chunk))).collect(),
            slots: encode_integers(&slots, &Nulls::default()),
            first_slot: first as u32,
            last_slot: last as u32,
            rows: slots.len(),
            ends: Ends { blocks, count: AtomicU32::new(0) },
        })))
    }
}
