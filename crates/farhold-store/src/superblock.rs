//! The first 64 KiB of a region: its node, its layout, the epoch, the open snapshots, the table directory.
//!
//! ```text
//!  +0    magic │ layout version │ node │ region bytes │ starts │ clean │ page table offset │ pages
//!  +64   epoch │ open snapshots (a bit a slot) │ epoch closed │ epoch of the checkpoint │ shape   (the epoch is used on its keeper only)
//!  +128  64 snapshot slots: 0 free, else holder (node:8 | incarnation:16) | state:40: 1 announced, 2 closing, S + 2 open at epoch S >= 1
//!  +1024 1008 directory entries of 64 bytes (`index/hash/layout.rs`)
//! ```
//!
//! Taking a snapshot: announce it on every node (slot, then bit), then raise the keeper's epoch by one; the value before is the
//! snapshot's epoch S; then write S into the slots. A writer reads the epoch while it holds its locks, and looks at the bits
//! afterwards: if it read more than S, it meets the bit (all of this is sequentially consistent). A thread that is to free what
//! snapshots below epoch E may need looks at the bits and the slots. An announced slot, with an epoch that is not known yet,
//! holds everything back.
//!
//! A slot says which start of which node holds it, so that the slots of a node that dies can be released. Each release first
//! turns the slot to *closing*, by compare-and-swap: of two releases of one slot one does nothing, and the slot's next holder
//! cannot lose its bit.

use crate::error::StoreError;
use crate::object::ObjectRef;
use crate::object::size_class::PAGE_BYTES;
use farhold_fabric::{NodeId, RegionMemory};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

/// `FARHOLD1`, read as bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"FARHOLD1");
/// Counts changes of the layout of regions.
pub const LAYOUT_VERSION: u64 = 4;
/// How many snapshots can be open at a time.
pub const SNAPSHOT_SLOTS: usize = 64;
/// Where the directory of tables starts.
pub(crate) const DIRECTORY: u64 = 1024;

const NODE: u64 = 16;
const REGION_BYTES: u64 = 24;
const CLEAN: u64 = 40;
const PAGE_TABLE: u64 = 48;
const PAGES: u64 = 56;
const SHAPE: u64 = 96;
const SLOTS: u64 = 128;
const ANNOUNCED: u64 = 1;
const CLOSING: u64 = 2;
/// Bits of a slot's word below its holder.
const STATE_BITS: u32 = 40;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// Bytes of the superblock.
pub(crate) const SUPERBLOCK_BYTES: u64 = 64 << 10;

/// The least that a store takes: superblock, a page of page table, three pages.
pub const REGION_BYTES_MIN: u64 = SUPERBLOCK_BYTES + 4 * PAGE_BYTES;

/// A snapshot's place in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u8);

impl SlotId {
    fn bit(self) -> u64 {
        1 << self.0
    }
}

/// The start of a node that holds a snapshot slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// Its start, by its [`Store::incarnation`](crate::Store::incarnation).
    pub incarnation: u16,
}

impl Holder {
    /// A slot's word in this state.
    fn word(self, state: u64) -> u64 {
        (u64::from(self.node.0) << 16 | u64::from(self.incarnation)) << STATE_BITS | state
    }

    fn of_word(word: u64) -> Self {
        let bits = word >> STATE_BITS;
        Self { node: NodeId((bits >> 16) as u8), incarnation: bits as u16 }
    }
}

/// What an attach found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The node said goodbye the last time.
    pub clean: bool,
    /// Which start of the node this is.
    pub incarnation: u16,
}

/// The superblock of a region that has one.
#[derive(Clone, Copy, Debug)]
pub struct Superblock<'m>(&'m RegionMemory);

impl<'m> Superblock<'m> {
    /// Offset of the word that counts the node's starts; its lowest 16 bits are the [`incarnation`](Self::incarnation).
    pub const STARTS: u64 = 32;
    /// Offset of the epoch word. The bits of the open snapshots are the word after it.
    pub const EPOCH: u64 = 64;
    /// Offset of the word that has a bit for each open or announced snapshot.
    pub const ACTIVE: u64 = 72;
    /// Offset of the last epoch that this node's journal has closed and made durable, 0 without a journal; with [`Self::FAILED`].
    pub const CLOSED: u64 = 80;
    /// Offset of the epoch that this node's last checkpoint contains.
    pub const CHECKPOINTED: u64 = 88;
    /// In the word at [`Self::CLOSED`]: the journal is not written any more, and closes no later epoch.
    pub const FAILED: u64 = 1 << 63;

    /// The superblock of a mapped region, checked.
    ///
    /// # Errors
    /// [`StoreError::Foreign`], [`StoreError::LayoutVersion`], [`StoreError::Truncated`], [`StoreError::RegionLength`],
    /// [`StoreError::Corrupt`].
    pub fn of(memory: &'m RegionMemory) -> Result<Self, StoreError> {
        let head = |at| memory.word(at).map_or(0, |word| word.load(Acquire));
        let (region_bytes, expected_bytes) = (memory.len(), head(REGION_BYTES));
        // First of all, because what is left may be too short for any store.
        if (head(0), head(8)) == (MAGIC, LAYOUT_VERSION) && region_bytes < expected_bytes {
            return Err(StoreError::Truncated { region: memory.file_name().into(), region_bytes, expected_bytes });
        }
        check_length(memory)?;
        let this = Self(memory);
        let magic = this.word(0).load(Acquire);
        if magic != MAGIC {
            return Err(StoreError::Foreign { found: magic });
        }
        let found = this.word(8).load(Relaxed);
        if found != LAYOUT_VERSION {
            return Err(StoreError::LayoutVersion { found, expected: LAYOUT_VERSION });
        }
        let (table, pages) = (this.page_table(), this.pages());
        let fits = expected_bytes >= REGION_BYTES_MIN
            && pages == expected_bytes / PAGE_BYTES
            && table == SUPERBLOCK_BYTES
            && table + page_table_pages(pages) * PAGE_BYTES < expected_bytes;
        if fits {
            Ok(this)
        } else {
            Err(StoreError::Corrupt { offset: PAGE_TABLE, reason: "the page table does not fit" })
        }
    }

    /// The superblock of a region in which it has been checked before.
    #[inline(always)]
    pub(crate) fn assume(memory: &'m RegionMemory) -> Self {
        debug_assert!(memory.len() >= REGION_BYTES_MIN);
        Self(memory)
    }

    /// Makes one, over any content, for a node that has started `starts` times before. The magic number comes last.
    ///
    /// # Errors
    /// [`StoreError::RegionLength`]; [`StoreError::Fabric`] if the region does not get its memory.
    pub(crate) fn format(memory: &'m RegionMemory, node: NodeId, starts: u64) -> Result<Self, StoreError> {
        check_length(memory)?;
        let this = Self(memory);
        let pages = memory.len() / PAGE_BYTES;
        let bytes = SUPERBLOCK_BYTES + page_table_pages(pages) * PAGE_BYTES;
        memory.reserve(0, bytes).map_err(StoreError::Fabric)?;
        this.word(0).store(0, SeqCst);
        for at in (8..bytes).step_by(8) {
            this.word(at).store(0, Relaxed);
        }
        for (at, value) in [
            (8, LAYOUT_VERSION),
            (NODE, u64::from(node.0)),
            (REGION_BYTES, memory.len()),
            (Self::STARTS, starts + 1),
            (PAGE_TABLE, SUPERBLOCK_BYTES),
            (PAGES, pages),
            (Self::EPOCH, 1),
        ] {
            this.word(at).store(value, Relaxed);
        }
        this.word(0).store(MAGIC, Release);
        Ok(this)
    }

    /// Takes the region over for a new start of `node`: counts the start, closes all snapshots, clears the clean flag.
    ///
    /// # Errors
    /// [`StoreError::WrongNode`].
    pub(crate) fn take_over(self, node: NodeId) -> Result<Found, StoreError> {
        let found = self.word(NODE).load(Relaxed);
        if found != u64::from(node.0) {
            return Err(StoreError::WrongNode { found, expected: node });
        }
        let incarnation = (self.word(Self::STARTS).fetch_add(1, SeqCst) + 1) as u16;
        let clean = self.word(CLEAN).swap(0, SeqCst) == 1;
        for slot in 0..SNAPSHOT_SLOTS {
            self.slot(SlotId(slot as u8)).store(0, Relaxed);
        }
        self.word(Self::ACTIVE).store(0, SeqCst);
        Ok(Found { clean, incarnation })
    }

    /// Sets the clean flag: everything that was committed is in the objects, and no lock is held.
    pub fn say_goodbye(self) {
        self.word(CLEAN).store(1, SeqCst);
    }

    /// The value last given to [`set_shape`](Self::set_shape); 0 at first.
    #[must_use]
    pub fn shape(self) -> u64 {
        self.word(SHAPE).load(Relaxed)
    }

    /// Sets what the region's user must find again about the cluster that its rows belong to.
    pub fn set_shape(self, shape: u64) {
        self.word(SHAPE).store(shape, Relaxed);
    }

    /// Which start of the node this is: [`Self::starts`] in 16 bits.
    #[must_use]
    pub fn incarnation(self) -> u16 {
        self.starts() as u16
    }

    /// The number of starts of the node, as far as is known.
    #[must_use]
    pub fn starts(self) -> u64 {
        self.word(Self::STARTS).load(Relaxed)
    }

    /// The node of the region.
    #[must_use]
    pub fn node(self) -> NodeId {
        NodeId(self.word(NODE).load(Relaxed) as u8)
    }

    pub(crate) fn page_table(self) -> u64 {
        self.word(PAGE_TABLE).load(Relaxed)
    }

    pub(crate) fn pages(self) -> u64 {
        self.word(PAGES).load(Relaxed)
    }

    /// The present epoch. A writer calls this while it holds all its locks.
    #[must_use]
    #[inline(always)]
    pub fn epoch(self) -> u32 {
        self.fixed(Self::EPOCH).load(SeqCst) as u32
    }

    /// Raises the epoch by one and returns the one before: a snapshot's, if it has been announced on every node.
    ///
    /// The epoch must also rise now and then without a snapshot, because a row has room for 2^29 versions an epoch. The next one
    /// would count as of a later epoch, and a snapshot would not see it. Journals and workers raise it. There are 2^32 epochs.
    #[must_use]
    pub fn advance_epoch(self) -> u32 {
        self.fixed(Self::EPOCH).fetch_add(1, SeqCst) as u32
    }

    /// Makes the epoch at least `to`: after a restart with rows that carry later epochs.
    pub fn raise_epoch(self, to: u32) {
        self.fixed(Self::EPOCH).fetch_max(u64::from(to), SeqCst);
    }

    /// Whether a snapshot is open, or about to be. A writer asks after it has read the epoch, and if so saves what it overwrites.
    #[must_use]
    #[inline(always)]
    pub fn snapshots_open(self) -> bool {
        self.fixed(Self::ACTIVE).load(SeqCst) != 0
    }

    /// Announces a snapshot on this node. It must come, on every node, before the epoch is raised for the snapshot.
    ///
    /// # Errors
    /// [`StoreError::TooManySnapshots`].
    pub fn announce(self, holder: Holder) -> Result<SlotId, StoreError> {
        for slot in (0..SNAPSHOT_SLOTS as u8).map(SlotId) {
            if self.slot(slot).compare_exchange(0, holder.word(ANNOUNCED), SeqCst, Relaxed).is_ok() {
                self.word(Self::ACTIVE).fetch_or(slot.bit(), SeqCst);
                return Ok(slot);
            }
        }
        Err(StoreError::TooManySnapshots { slots: SNAPSHOT_SLOTS })
    }

    /// Sets the epoch of a snapshot that this holder has announced. So every node knows an epoch that is above all snapshots, in
    /// case it becomes the epoch keeper. False: the slot is the holder's no longer, and nothing is kept for the snapshot.
    #[must_use]
    pub fn confirm(self, slot: SlotId, holder: Holder, epoch: u32) -> bool {
        self.raise_epoch(epoch + 1);
        let confirmed = holder.word(u64::from(epoch) + 2);
        self.slot(slot).compare_exchange(holder.word(ANNOUNCED), confirmed, SeqCst, Relaxed).is_ok()
    }

    /// Whether what a snapshot reads is still kept for it. If so, what was read before this call is its state. If not, rows may
    /// have been overwritten without being saved.
    #[must_use]
    pub fn is_open(self, slot: SlotId, holder: Holder, epoch: u32) -> bool {
        fence(Acquire);
        self.slot(slot).load(SeqCst) == holder.word(u64::from(epoch) + 2)
    }

    /// Whether a snapshot of this epoch of this holder has been confirmed here, and is not closed.
    #[must_use]
    pub fn has_open(self, holder: Holder, epoch: u32) -> bool {
        let word = holder.word(u64::from(epoch) + 2);
        (0..SNAPSHOT_SLOTS as u8).any(|slot| self.slot(SlotId(slot)).load(SeqCst) == word)
    }

    /// Ends the start that the region is of, for a node that makes another region: a process that has this one mapped finds no snapshot in
    /// it, and no start that it knows.
    pub fn end_start(self) {
        self.word(Self::STARTS).fetch_add(1, SeqCst);
        for slot in (0..SNAPSHOT_SLOTS as u8).map(SlotId) {
            self.slot(slot).store(0, SeqCst);
        }
        self.word(Self::ACTIVE).store(0, SeqCst);
    }

    /// Closes a snapshot, if the slot is still this holder's.
    pub fn release(self, slot: SlotId, holder: Holder) {
        let found = self.slot(slot).load(SeqCst);
        if found != 0 && Holder::of_word(found) == holder && found & STATE != CLOSING {
            self.close(slot, found);
        }
    }

    /// Closes the snapshots of holders that are gone and never touch a slot again. Returns how many. Two threads must not do this
    /// at the same time.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn release_of(self, is_gone: impl Fn(Holder) -> bool) -> usize {
        let slots = (0..SNAPSHOT_SLOTS as u8).map(SlotId);
        let gone = slots.filter(|slot| {
            let found = self.slot(*slot).load(SeqCst);
            found != 0 && is_gone(Holder::of_word(found)) && self.close(*slot, found)
        });
        gone.count()
    }

    /// The holders of snapshots here; a holder appears once for each of its slots.
    pub fn holders(self) -> impl Iterator<Item = Holder> + 'm {
        let words = (0..SNAPSHOT_SLOTS as u8).map(move |slot| self.slot(SlotId(slot)).load(SeqCst));
        words.filter(|word| *word != 0).map(Holder::of_word)
    }

    /// Frees a slot with this content. If a dead holder was closing it, `found` already is *closing*, and the swap changes
    /// nothing.
    fn close(self, slot: SlotId, found: u64) -> bool {
        let closing = found & !STATE | CLOSING;
        let is_mine = self.slot(slot).compare_exchange(found, closing, SeqCst, Relaxed).is_ok();
        if is_mine {
            self.word(Self::ACTIVE).fetch_and(!slot.bit(), SeqCst);
            self.slot(slot).store(0, SeqCst);
        }
        is_mine
    }

    /// The oldest epoch that an open snapshot may read; `u32::MAX` if none is open. What ended at or before it can be freed.
    #[must_use]
    pub fn oldest_snapshot(self) -> u32 {
        if !self.snapshots_open() {
            return u32::MAX;
        }
        let slots = (0..SNAPSHOT_SLOTS as u8).map(|slot| match self.slot(SlotId(slot)).load(SeqCst) & STATE {
            0 | CLOSING => u32::MAX,
            ANNOUNCED => 0,
            epoch => (epoch - 2) as u32,
        });
        slots.min().unwrap_or(u32::MAX)
    }

    /// The newest epoch that an open snapshot may read: `None` if none is open, `u32::MAX` if one is announced. No open snapshot
    /// needs a state that was made after it.
    ///
    /// A snapshot that is announced after this call gets an epoch from after it, so a commit that has read its epoch before needs
    /// to keep nothing for that snapshot.
    #[must_use]
    pub fn newest_snapshot(self) -> Option<u32> {
        if !self.snapshots_open() {
            return None;
        }
        let epochs = (0..SNAPSHOT_SLOTS as u8).filter_map(|slot| match self.slot(SlotId(slot)).load(SeqCst) & STATE {
            0 | CLOSING => None,
            ANNOUNCED => Some(u32::MAX),
            epoch => Some((epoch - 2) as u32),
        });
        epochs.max()
    }

    fn slot(self, slot: SlotId) -> &'m AtomicU64 {
        assert!((slot.0 as usize) < SNAPSHOT_SLOTS);
        self.fixed(SLOTS + 8 * u64::from(slot.0))
    }

    fn word(self, offset: u64) -> &'m AtomicU64 {
        self.0.word(offset).expect("a word of the superblock or the page table")
    }

    #[inline(always)]
    fn fixed(self, offset: u64) -> &'m AtomicU64 {
        debug_assert!(offset < SUPERBLOCK_BYTES);
        // SAFETY: an aligned word of the superblock, and `check_length` has found it inside the region.
        unsafe { self.0.word_unchecked(offset) }
    }
}

/// Pages that the page table takes.
pub(crate) fn page_table_pages(pages: u64) -> u64 {
    (pages * crate::slab::ENTRY_BYTES).div_ceil(PAGE_BYTES)
}

fn check_length(memory: &RegionMemory) -> Result<(), StoreError> {
    let (region_bytes, bytes_min, bytes_max) = (memory.len(), REGION_BYTES_MIN, ObjectRef::REGION_BYTES_MAX);
    let fits = (bytes_min..=bytes_max).contains(&region_bytes);
    if fits { Ok(()) } else { Err(StoreError::RegionLength { region_bytes, bytes_min, bytes_max }) }
}
