//! A segment: the columns of up to 65,536 rows, their slots, and the epochs that ended them.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use crate::column::encode::encode_integers;
use crate::column::memory::{ColumnMemory, EXTENT_ALIGN, Extent, NoMemory};
use crate::column::{BLOCK_ROWS, Chunk, ChunkBuilder, Nulls, Zone};

/// The end of a row that no change has ended.
pub(super) const NEVER: u32 = u32::MAX;

/// The columns of some rows.
#[derive(Debug)]
pub struct Segment {
    /// The chunks of the columns, in the memory of columns: other nodes read them too.
    chunks: Extent,
    /// Where they are in it, in the order of the schema.
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

/// For each row the epoch that ended it. A block of rows has room for them once one of its rows ends.
#[derive(Debug)]
struct Ends {
    blocks: Box<[OnceLock<Box<[AtomicU32; BLOCK_ROWS]>>]>,
    /// Rows that have ended.
    count: AtomicU32,
}

impl Segment {
    /// The chunks, one a column in the order of the schema. Those of columns that are not [kept](super::Kept) have no meaning.
    #[must_use]
    pub fn chunks(&self) -> Vec<Chunk<'_>> {
        self.columns.iter().map(|place| open(self.chunks.part(place.at, place.bytes as usize))).collect()
    }

    /// Rows, those included that have ended.
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
        self.chunks.len() + (self.slots.len() + blocks * BLOCK_ROWS * size_of::<u32>()) as u64
    }

    /// Takes the rows of a block that have ended at `epoch` out of `bits`, a bit a row from the lowest bit of the first word on.
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

    /// The epoch that ended a row, or [`NEVER`].
    pub(super) fn end_of(&self, row: usize) -> u32 {
        let block = self.ends.blocks[row / BLOCK_ROWS].get();
        block.map_or(NEVER, |ends| ends[row % BLOCK_ROWS].load(Acquire))
    }

    /// The row in this slot, if there is one, ends at `epoch`, unless it has ended before.
    pub(super) fn end(&self, slot: u32, epoch: u32) {
        if !(self.first_slot..=self.last_slot).contains(&slot) {
            return;
        }
        let slots = self.slots();
        let (mut low, mut high) = (0, self.rows);
        while low < high {
            let middle = usize::midpoint(low, high);
            if slot_at(&slots, middle) < slot { low = middle + 1 } else { high = middle }
        }
        if low == self.rows || slot_at(&slots, low) != slot {
            return;
        }
        let fresh = || Box::new([const { AtomicU32::new(NEVER) }; BLOCK_ROWS]);
        let ends = self.ends.blocks[low / BLOCK_ROWS].get_or_init(fresh);
        if ends[low % BLOCK_ROWS].fetch_min(epoch, Release) == NEVER {
            self.ends.count.fetch_add(1, Relaxed);
        }
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

    /// Appends a row; its slot must be behind the one before.
    pub fn append(&mut self, slot: u32, key: &[u8], value: &[u8]) {
        self.append_slot(slot);
        self.columns.append(key, value);
    }

    /// Appends a row of a segment of the same table.
    pub fn append_stored(&mut self, slot: u32, chunks: &[Chunk<'_>], row: usize) {
        self.append_slot(slot);
        self.columns.append_stored(chunks, row);
    }

    fn append_slot(&mut self, slot: u32) {
        let slot = i64::from(slot);
        assert!(self.slots.last().is_none_or(|last| *last < slot), "rows come in the order of their slots");
        self.slots.push(slot);
    }

    /// The segment of the rows so far, if it takes no more.
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
