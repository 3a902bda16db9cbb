//! Keys of any length: sixteen bytes in the node, longer ones whole in a block of their own.
//!
//! ```text
//!  cell   | first 15 bytes, zero-padded | length, 16 = longer | pointer, null unless longer |
//!                                                                  |
//!  block                                                           +-> | length: usize | bytes ... |
//! ```
//!
//! Most comparisons end in the cell: a composite key's first 15 bytes (two 4-byte ids and the start of a name) usually
//! decide. A block is immutable, owned by the one cell that points at it, and freed through crossbeam-epoch.
//!
//! Invariants:
//! - A block is retired only after every cell that pointed at it has been stored to again. So a reader that enters an epoch after
//!   the block's memory is free finds it in no cell: that store happened before.
//! - A pointer is stored with release and loaded with acquire: a reader that finds it finds the bytes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

use crossbeam_epoch::Guard;

use crate::key::{KeyKind, PairCell};
use crate::rows::PlainRows;
use crate::search::partition_point;
use crate::shape::{LONGER, SHORT_BYTES_MAX, short_key};

pub(crate) enum Text {}

pub(crate) struct TextCell {
    head: PairCell,
    block: AtomicPtr<usize>,
}

/// The derived order is the order of the bytes: heads differ, or both keys are longer than a head and `tail` decides.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TextProbe<'k> {
    head: u128,
    /// The whole key if it is longer than fits the head, else nothing.
    longer: &'k [u8],
}

#[derive(Clone, Copy)]
pub(crate) struct TextHeld {
    head: u128,
    block: *mut usize,
}

impl<'k> TextProbe<'k> {
    #[inline]
    pub fn new(key: &'k [u8]) -> Self {
        if key.len() <= SHORT_BYTES_MAX {
            return Self { head: short_key(key), longer: &[] };
        }
        let mut head = [0; 16];
        head[..SHORT_BYTES_MAX].copy_from_slice(&key[..SHORT_BYTES_MAX]);
        head[SHORT_BYTES_MAX] = LONGER;
        Self { head: u128::from_be_bytes(head), longer: key }
    }

    /// Calls `use_bytes` with the key's bytes.
    #[inline]
    pub fn with_bytes<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        let head = self.head.to_be_bytes();
        match head[SHORT_BYTES_MAX] {
            LONGER => use_bytes(self.longer),
            length => use_bytes(&head[..usize::from(length)]),
        }
    }
}

impl KeyKind for Text {
    type Probe<'k> = TextProbe<'k>;
    type Cell = TextCell;
    type Rows = PlainRows<Self>;
    type Held = TextHeld;
    type Guard = Guard;

    #[inline]
    fn enter() -> Guard {
        crossbeam_epoch::pin()
    }

    #[inline]
    fn count_less<const N: usize>(cells: &[TextCell; N], probe: TextProbe<'_>, _: &Guard) -> usize {
        let less = partition_point(cells, |cell| cell.head.load() < probe.head);
        if probe.longer.is_empty() {
            return less;
        }
        // SAFETY: read under the guard from a cell (see `bytes_of`).
        less + count_equal_heads(cells, less, probe.head, |cell| unsafe {
            bytes_of(cell.block.load(Acquire)) < probe.longer
        })
    }

    #[inline]
    fn count_to<const N: usize>(cells: &[TextCell; N], probe: TextProbe<'_>, _: &Guard) -> usize {
        if probe.longer.is_empty() {
            return partition_point(cells, |cell| cell.head.load() <= probe.head);
        }
        let less = partition_point(cells, |cell| cell.head.load() < probe.head);
        // SAFETY: read under the guard from a cell (see `bytes_of`).
        less + count_equal_heads(cells, less, probe.head, |cell| unsafe {
            bytes_of(cell.block.load(Acquire)) <= probe.longer
        })
    }

    #[inline]
    fn equal(cell: &TextCell, probe: TextProbe<'_>, _: &Guard) -> bool {
        // SAFETY: read under the guard from a cell (see `bytes_of`).
        cell.head.load() == probe.head
            && (probe.longer.is_empty() || unsafe { bytes_of(cell.block.load(Acquire)) == probe.longer })
    }

    #[inline]
    fn load(cell: &TextCell) -> TextHeld {
        TextHeld { head: cell.head.load(), block: cell.block.load(Acquire) }
    }

    #[inline]
    fn store(cell: &TextCell, held: TextHeld) {
        cell.head.store(held.head);
        cell.block.store(held.block, Release);
    }

    #[inline]
    fn clear(cell: &TextCell) {
        // No key's: the last byte of a head is a length of at most 16.
        cell.head.store(u128::MAX);
        cell.block.store(ptr::null_mut(), Release);
    }

    fn own(probe: TextProbe<'_>) -> TextHeld {
        let block = if probe.longer.is_empty() { ptr::null_mut() } else { new_block(probe.longer) };
        TextHeld { head: probe.head, block }
    }

    fn separator(left: TextHeld, right: TextHeld, guard: &Guard) -> TextHeld {
        Self::probe(left, guard).with_bytes(|left| {
            Self::probe(right, guard).with_bytes(|right| {
                let shared = left.iter().zip(right).take_while(|(left, right)| left == right).count();
                Self::own(TextProbe::new(&right[..=shared]))
            })
        })
    }

    #[inline]
    fn probe(held: TextHeld, _: &Guard) -> TextProbe<'_> {
        // SAFETY: read from a cell under the guard, whose life bounds the slice's (see `bytes_of`).
        TextProbe { head: held.head, longer: unsafe { bytes_of(held.block) } }
    }

    fn retire(held: TextHeld, guard: &Guard) {
        if !held.block.is_null() {
            // SAFETY: the block has left every cell (the trait's demand), so only guards entered before now can still
            // hold it, and the closure runs after they are gone; it owns the block and needs no borrowed data.
            unsafe { guard.defer_unchecked(move || free_block(held.block)) };
        }
    }

    fn free(held: TextHeld) {
        if !held.block.is_null() {
            // SAFETY: the tree is being dropped: no cell is read any more, and each block is in one cell.
            unsafe { free_block(held.block) };
        }
    }

    fn bytes(held: TextHeld) -> usize {
        if held.block.is_null() {
            return 0;
        }
        // SAFETY: a caller accounts for a key it still owns, before retiring it.
        block_layout(unsafe { *held.block }).size()
    }
}

/// How many cells from `from` on share the head and satisfy `before`. Mostly there is no such cell, or the one looked
/// for.
#[inline]
fn count_equal_heads(cells: &[TextCell], from: usize, head: u128, before: impl Fn(&TextCell) -> bool) -> usize {
    let equal = cells[from..].iter().take_while(|cell| cell.head.load() == head).count();
    partition_point(&cells[from..from + equal], before)
}

/// The bytes of a block; none for null, which a cell holds for a short key or while it is being stored to.
///
/// # Safety
/// `block` is null, or was loaded with acquire from a cell under a guard that lives as long as `'g`. By the file's
/// invariants the block was then not retired before the guard was entered.
#[inline]
unsafe fn bytes_of<'g>(block: *mut usize) -> &'g [u8] {
    if block.is_null() {
        return &[];
    }
    // SAFETY: a block is its length and that many initialised bytes, immutable, alive by the caller's promise.
    unsafe { std::slice::from_raw_parts(block.add(1).cast::<u8>(), *block) }
}

fn block_layout(key_bytes: usize) -> Layout {
    let bytes = key_bytes.checked_add(size_of::<usize>()).expect("a key's length fits the address space");
    Layout::from_size_align(bytes, align_of::<usize>()).expect("a key's length fits the address space")
}

fn new_block(key: &[u8]) -> *mut usize {
    let layout = block_layout(key.len());
    #[expect(clippy::cast_ptr_alignment, reason = "the layout asks for it")]
    // SAFETY: the layout holds at least the length.
    let block = unsafe { alloc(layout) }.cast::<usize>();
    if block.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the block is fresh, aligned for usize, and long enough for the length and the key's bytes.
    unsafe {
        block.write(key.len());
        ptr::copy_nonoverlapping(key.as_ptr(), block.add(1).cast(), key.len());
    }
    block
}

/// # Safety
/// `block` came from [`new_block`], and no thread uses it any more.
unsafe fn free_block(block: *mut usize) {
    // SAFETY: `new_block` wrote the length and allocated with the layout it gives.
    unsafe { dealloc(block.cast(), block_layout(*block)) };
}
