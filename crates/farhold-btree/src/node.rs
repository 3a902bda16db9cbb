//! The layout of a node in memory, and the moves within one node.
//!
//! ```text
//!  Leaf   | lock | count, newest, id | key 0 .. 62 | value 0 .. 62 |        1 KiB for word keys, all used; the rows
//!                                                                          of pairs see `frame`
//!  Inner  | lock | count, newest     | key 0 .. 61 | child 0 .. 62 |        1 KiB for word keys
//! ```
//!
//! Child `i` of an inner node holds the keys `k` with `key[i-1] <= k < key[i]`. Inner nodes may have no key and one
//! child; leaves may be empty; neither stays so for long (see `merge`).
//!
//! Invariants:
//! - All fields are atomics, stored to under the node's lock only, and `count` never exceeds the number of cells.
//! - Cells from `count` on are cleared: they compare as greater than any key, and point at nothing.
//! - A child pointer, once not null, always points at a node, if perhaps no longer at the right one.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32};

use crate::arena::ArenaNode;
use crate::key::KeyKind;
use crate::rows::LeafRows;
use crate::stamp::LeafStamp;
use crate::version::VersionLock;

/// The most rows a leaf can have. With word keys exactly 1 KiB; six steps of a search. Other sizes have not been measured.
pub(crate) const LEAF_CELLS: usize = 63;
pub(crate) const INNER_CELLS: usize = 62;

#[repr(C, align(64))]
pub(crate) struct Leaf<K: KeyKind> {
    pub lock: VersionLock,
    count: AtomicU16,
    /// Where the last insert went: the next one right behind it makes an ascending run.
    newest: AtomicU16,
    id: AtomicU32,
    rows: K::Rows,
}

#[repr(C, align(64))]
pub(crate) struct Inner<K: KeyKind> {
    pub lock: VersionLock,
    count: AtomicU16,
    newest: AtomicU16,
    keys: [K::Cell; INNER_CELLS],
    children: [AtomicPtr<VersionLock>; INNER_CELLS + 1],
}

const _: () = assert!(size_of::<Leaf<crate::key::Word>>() == 1024 && size_of::<Inner<crate::key::Word>>() == 1024);
const _: () = assert!(size_of::<Leaf<crate::key::Pair>>() == 1024);

// SAFETY: atomics, `K::Cell` and `K::Rows`, which the kinds make of atomics alone: zero is valid, sharing is sound, no
// drop.
unsafe impl<K: KeyKind> ArenaNode for Leaf<K> {}
// SAFETY: as for `Leaf`.
unsafe impl<K: KeyKind> ArenaNode for Inner<K> {}

/// Any node, by its first field, which leaves and inner nodes share.
pub(crate) type NodePtr = *mut VersionLock;

impl<K: KeyKind> Leaf<K> {
    #[inline]
    pub fn count(&self) -> usize {
        usize::from(self.count.load(Relaxed))
    }

    pub fn as_node(&self) -> NodePtr {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    pub fn stamp(&self, version: u64) -> LeafStamp {
        LeafStamp { leaf: u64::from(self.id.load(Relaxed)), version }
    }

    /// Makes zeroed memory a leaf.
    pub fn begin(&self, id: u32) {
        self.id.store(id, Relaxed);
        self.rows.begin();
    }

    /// How many rows fit in the present form.
    pub fn cells(&self) -> usize {
        self.rows.cells()
    }

    /// How many rows would fit in one leaf with these rows and then those of `next`.
    pub fn cells_joined(&self, next: &Self) -> usize {
        self.rows.cells_joined(self.count(), &next.rows, next.count())
    }

    /// Whether `key` can be inserted at `position` without a split.
    #[inline]
    pub fn has_room(&self, position: usize, key: K::Probe<'_>) -> bool {
        self.rows.has_room(self.count(), position, key)
    }

    /// Where to split a leaf that has no room for `key` at `position`.
    pub fn cut_for(&self, position: usize, key: K::Probe<'_>) -> usize {
        let count = self.count();
        let for_key = self.rows.cut_for(count, position, key);
        for_key.unwrap_or(if self.ascends(position) { position } else { count / 2 })
    }

    #[inline]
    pub fn count_less(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        self.rows.count_less(probe, guard).min(self.count())
    }

    #[inline]
    pub fn count_to(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        self.rows.count_to(probe, guard).min(self.count())
    }

    /// Where the probe is, or where it would be.
    #[inline]
    pub fn find(&self, probe: K::Probe<'_>, guard: &K::Guard) -> Result<usize, usize> {
        self.rows.find(self.count(), probe, guard)
    }

    #[inline]
    pub fn key(&self, position: usize) -> K::Held {
        self.rows.key(position)
    }

    #[inline]
    pub fn value(&self, position: usize) -> u64 {
        self.rows.value(position)
    }

    pub fn set_value(&self, position: usize, value: u64) {
        self.rows.set_value(position, value);
    }

    /// Copies out the rows `range`, which must lie within the cells; returns how many were written.
    #[inline]
    pub fn copy(&self, range: Range<usize>, to: &mut [MaybeUninit<(K::Held, u64)>]) -> usize {
        self.rows.copy(range, to)
    }

    /// Whether an insert at `position` goes on an ascending run.
    pub fn ascends(&self, position: usize) -> bool {
        position == usize::from(self.newest.load(Relaxed)) + 1
    }

    #[inline]
    pub fn insert(&self, position: usize, key: K::Held, value: u64) {
        let count = self.count();
        self.rows.insert(count, position, key, value);
        self.set_count(count + 1);
        self.set_newest(position);
    }

    /// Takes the row out; the caller now owns the key.
    pub fn remove(&self, position: usize) -> K::Held {
        let (count, key) = (self.count(), self.key(position));
        self.rows.remove(count, position);
        self.set_count(count - 1);
        let newest = usize::from(self.newest.load(Relaxed));
        if position < newest {
            self.set_newest(newest - 1);
        }
        key
    }

    /// Moves the rows from `from` on to the end of `to`.
    pub fn move_tail(&self, from: usize, to: &Self) {
        let (count, to_count) = (self.count(), to.count());
        self.rows.move_tail(count, from, &to.rows, to_count);
        to.set_count(to_count + count - from);
        self.set_count(from);
    }

    /// Forgets the run; the next insert starts a new one.
    pub fn forget_newest(&self) {
        self.newest.store(u16::MAX - 1, Relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most LEAF_CELLS")]
    fn set_count(&self, count: usize) {
        self.count.store(count as u16, Relaxed);
    }

    #[expect(clippy::cast_possible_truncation, reason = "less than LEAF_CELLS")]
    fn set_newest(&self, position: usize) {
        self.newest.store(position as u16, Relaxed);
    }
}

impl<K: KeyKind> Inner<K> {
    /// The header and the keys.
    pub const SEARCHED_BYTES: usize = std::mem::offset_of!(Self, children);

    /// The number of keys; of children there is one more.
    #[inline]
    pub fn count(&self) -> usize {
        usize::from(self.count.load(Relaxed))
    }

    pub fn as_node(&self) -> NodePtr {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    #[inline]
    pub fn count_less(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        K::count_less(&self.keys, probe, guard).min(self.count())
    }

    #[inline]
    pub fn count_to(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        K::count_to(&self.keys, probe, guard).min(self.count())
    }

    #[inline]
    pub fn key(&self, slot: usize) -> K::Held {
        K::load(&self.keys[slot])
    }

    #[inline]
    pub fn child(&self, slot: usize) -> NodePtr {
        self.children[slot].load(Acquire)
    }

    /// Makes zeroed memory an inner node.
    pub fn begin(&self) {
        self.keys.iter().for_each(K::clear);
    }

    pub fn set_first_child(&self, child: NodePtr) {
        self.children[0].store(child, Release);
    }

    /// Puts `right` behind child `slot`, with `key` between the two.
    pub fn insert(&self, slot: usize, key: K::Held, right: NodePtr) {
        let count = self.count();
        for to in (slot + 1..=count).rev() {
            K::store(&self.keys[to], self.key(to - 1));
            self.children[to + 1].store(self.child(to), Release);
        }
        K::store(&self.keys[slot], key);
        self.children[slot + 1].store(right, Release);
        self.set_count(count + 1);
        self.set_newest(slot);
    }

    /// Takes out key `slot` and the child behind it; the caller now owns the key.
    pub fn remove(&self, slot: usize) -> K::Held {
        let (count, key) = (self.count(), self.key(slot));
        for to in slot..count - 1 {
            K::store(&self.keys[to], self.key(to + 1));
            self.children[to + 1].store(self.child(to + 2), Release);
        }
        K::clear(&self.keys[count - 1]);
        self.set_count(count - 1);
        key
    }

    /// Takes out key 0 and the child before it; the caller now owns the key.
    pub fn remove_first(&self) -> K::Held {
        self.children[0].store(self.child(1), Release);
        self.remove(0)
    }

    /// Moves the keys behind key `middle`, and their children, to the empty node `to`; returns that key, now the
    /// caller's, which is left in neither.
    pub fn split(&self, middle: usize, to: &Self) -> K::Held {
        let (count, key) = (self.count(), self.key(middle));
        to.set_first_child(self.child(middle + 1));
        for (slot, from) in (middle + 1..count).enumerate() {
            K::store(&to.keys[slot], self.key(from));
            to.children[slot + 1].store(self.child(from + 1), Release);
        }
        to.set_count(count - middle - 1);
        self.keys[middle..count].iter().for_each(K::clear);
        self.set_count(middle);
        key
    }

    /// Where to split so that an ascending run of splits leaves full nodes behind: the child in `slot`, about to be
    /// split, becomes the last of the left node and so has the room.
    pub fn middle_for(&self, slot: usize) -> usize {
        let count = self.count();
        let ascends = slot == usize::from(self.newest.load(Relaxed)) + 1;
        if ascends { slot.min(count - 1) } else { count / 2 }
    }

    pub fn set_newest(&self, slot: usize) {
        self.newest.store(u16::try_from(slot).unwrap_or(u16::MAX - 1), Relaxed);
    }

    /// Gives the node these keys and children instead of those it has.
    pub fn fill(&self, keys: &[K::Held], children: &[NodePtr]) {
        for (cell, &child) in self.children.iter().zip(children) {
            cell.store(child, Release);
        }
        for (cell, &key) in self.keys.iter().zip(keys) {
            K::store(cell, key);
        }
        self.keys[keys.len()..].iter().for_each(K::clear);
        self.set_count(keys.len());
    }

    pub fn set_key(&self, slot: usize, key: K::Held) {
        K::store(&self.keys[slot], key);
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most INNER_CELLS")]
    fn set_count(&self, count: usize) {
        self.count.store(count as u16, Relaxed);
    }
}
