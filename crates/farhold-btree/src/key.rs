//! The three kinds of keys, each with its own cell in a node.
//!
//! ```text
//!  kind    keys                     cell in a node               compared as
//!  Word    exactly n <= 8 bytes     u64                          u64
//!  Pair    exactly n <= 16 bytes,   two u64                      u128
//!          or up to 15 bytes
//!  Text    any bytes                two u64 + pointer (24 B)     u128, then the bytes behind the pointer
//! ```
//!
//! Fixed keys of one word sit left-aligned in it and are padded with zeros, those of two sit right-aligned, so that
//! neighbours differ in the second word alone (`frame` makes use of that): all have the same length, so the order of the
//! words is the order of the bytes. Keys of varying length up to 15 bytes carry their length in the last byte: among
//! keys that agree in the padded bytes the shorter is a prefix of the longer and sorts first, as bytes do.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::frame::FramedRows;
use crate::rows::{LeafRows, PlainRows};
use crate::search::partition_point;

/// A kind of key: how keys are compared, how they lie in a node, and which owner frees the memory behind them.
pub(crate) trait KeyKind: Sized + 'static {
    /// A key to look for; its order is the order of the keys' bytes.
    type Probe<'k>: Copy + Ord;
    /// A key's place in a node, read by some threads while another stores to it; all-zero bytes are valid.
    type Cell;
    /// The rows of a leaf, made of atomics; all-zero bytes are valid.
    type Rows: LeafRows<Self>;
    /// What a cell holds, read out of it. Means nothing until the node's version has been checked.
    type Held: Copy;
    /// Keeps what held keys point at alive while it lives.
    type Guard;

    fn enter() -> Self::Guard;

    /// How many of the node's cells hold a key less than the probe, those past its count excepted. Safe on cells being
    /// stored to; the answer is then arbitrary, but at most `N`.
    fn count_less<const N: usize>(cells: &[Self::Cell; N], probe: Self::Probe<'_>, guard: &Self::Guard) -> usize;
    /// How many hold a key less than or equal to the probe; cells past the node's count may be counted as well.
    fn count_to<const N: usize>(cells: &[Self::Cell; N], probe: Self::Probe<'_>, guard: &Self::Guard) -> usize;
    /// Whether the cell's key is equal to the probe, with the same reservation as [`KeyKind::count_less`].
    fn equal(cell: &Self::Cell, probe: Self::Probe<'_>, guard: &Self::Guard) -> bool;

    fn load(cell: &Self::Cell) -> Self::Held;
    fn store(cell: &Self::Cell, held: Self::Held);
    /// Makes a vacated cell compare as greater than every key, and forget what it pointed at.
    fn clear(cell: &Self::Cell);

    /// The key in the form a node holds, owned by whichever node it is stored to.
    fn own(probe: Self::Probe<'_>) -> Self::Held;
    /// A new key `s` with `left < s <= right`, as short as may be.
    fn separator(left: Self::Held, right: Self::Held, guard: &Self::Guard) -> Self::Held;
    /// The key as a probe. Only for keys read from a node whose version was checked since, under this guard.
    fn probe(held: Self::Held, guard: &Self::Guard) -> Self::Probe<'_>;

    /// Frees what the key owns once no reader can hold it. It must have left every cell before.
    fn retire(held: Self::Held, guard: &Self::Guard);
    /// Frees what the key owns at once: the tree is being dropped.
    fn free(held: Self::Held);
    /// Bytes the key owns outside its cell.
    fn bytes(held: Self::Held) -> usize;
}

/// Keys of up to eight bytes.
pub(crate) enum Word {}

impl KeyKind for Word {
    type Probe<'k> = u64;
    type Cell = AtomicU64;
    type Rows = PlainRows<Self>;
    type Held = u64;
    type Guard = ();

    #[inline]
    fn enter() {}

    #[inline]
    fn count_less<const N: usize>(cells: &[AtomicU64; N], probe: u64, (): &()) -> usize {
        partition_point(cells, |cell| cell.load(Relaxed) < probe)
    }

    #[inline]
    fn count_to<const N: usize>(cells: &[AtomicU64; N], probe: u64, (): &()) -> usize {
        partition_point(cells, |cell| cell.load(Relaxed) <= probe)
    }

    #[inline]
    fn equal(cell: &AtomicU64, probe: u64, (): &()) -> bool {
        cell.load(Relaxed) == probe
    }

    #[inline]
    fn load(cell: &AtomicU64) -> u64 {
        cell.load(Relaxed)
    }

    #[inline]
    fn store(cell: &AtomicU64, held: u64) {
        cell.store(held, Relaxed);
    }

    #[inline]
    fn clear(cell: &AtomicU64) {
        cell.store(u64::MAX, Relaxed);
    }

    #[inline]
    fn own(probe: u64) -> u64 {
        probe
    }

    #[inline]
    fn separator(_: u64, right: u64, (): &()) -> u64 {
        right
    }

    #[inline]
    fn probe(held: u64, (): &()) -> u64 {
        held
    }

    #[inline]
    fn retire(_: u64, (): &()) {}

    #[inline]
    fn free(_: u64) {}

    #[inline]
    fn bytes(_: u64) -> usize {
        0
    }
}

/// Keys of up to sixteen bytes.
pub(crate) enum Pair {}

/// Sixteen bytes read and stored as two words; they may be torn apart, which the node's version tells.
pub(crate) struct PairCell {
    high: AtomicU64,
    low: AtomicU64,
}

impl PairCell {
    #[inline]
    pub fn load(&self) -> u128 {
        u128::from(self.high.load(Relaxed)) << 64 | u128::from(self.low.load(Relaxed))
    }

    #[inline]
    pub fn store(&self, key: u128) {
        self.high.store((key >> 64) as u64, Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
        self.low.store(key as u64, Relaxed);
    }
}

impl KeyKind for Pair {
    type Probe<'k> = u128;
    type Cell = PairCell;
    type Rows = FramedRows;
    type Held = u128;
    type Guard = ();

    #[inline]
    fn enter() {}

    #[inline]
    fn count_less<const N: usize>(cells: &[PairCell; N], probe: u128, (): &()) -> usize {
        partition_point(cells, |cell| cell.load() < probe)
    }

    #[inline]
    fn count_to<const N: usize>(cells: &[PairCell; N], probe: u128, (): &()) -> usize {
        partition_point(cells, |cell| cell.load() <= probe)
    }

    #[inline]
    fn equal(cell: &PairCell, probe: u128, (): &()) -> bool {
        cell.load() == probe
    }

    #[inline]
    fn load(cell: &PairCell) -> u128 {
        cell.load()
    }

    #[inline]
    fn store(cell: &PairCell, held: u128) {
        cell.store(held);
    }

    #[inline]
    fn clear(cell: &PairCell) {
        cell.store(u128::MAX);
    }

    #[inline]
    fn own(probe: u128) -> u128 {
        probe
    }

    #[inline]
    fn separator(_: u128, right: u128, (): &()) -> u128 {
        right
    }

    #[inline]
    fn probe(held: u128, (): &()) -> u128 {
        held
    }

    #[inline]
    fn retire(_: u128, (): &()) {}

    #[inline]
    fn free(_: u128) {}

    #[inline]
    fn bytes(_: u128) -> usize {
        0
    }
}
