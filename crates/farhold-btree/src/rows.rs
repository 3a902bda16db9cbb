//! The layout of the rows of a leaf: every kind except `Pair` has two plain arrays, keys and values.
//!
//! The leaf keeps the count of rows and passes it. Readers call `&self` methods while rows are being stored to, with counts and
//! positions that may be torn. The answer is then arbitrary, but nothing outside is touched and nothing panics.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::key::KeyKind;
use crate::node::LEAF_CELLS;

/// The rows of a leaf. Those methods that store are for the holder of the leaf's lock, with the true count.
pub(crate) trait LeafRows<K: KeyKind> {
    /// Makes zeroed memory rows.
    fn begin(&self);
    /// How many rows fit in the present form.
    fn cells(&self) -> usize;
    /// How many would fit if these rows were followed by those of `next`.
    fn cells_joined(&self, count: usize, next: &Self, next_count: usize) -> usize;
    /// Whether one more row, with this key, fits; what is stored may have to change its form for it.
    fn has_room(&self, count: usize, position: usize, key: K::Probe<'_>) -> bool;
    /// Where to split if there is no room for `key` at `position`, if that key is the reason.
    fn cut_for(&self, count: usize, position: usize, key: K::Probe<'_>) -> Option<usize>;

    fn count_less(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize;
    fn count_to(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize;
    /// Where the probe is among the first `count` rows, or where it would be.
    fn find(&self, count: usize, probe: K::Probe<'_>, guard: &K::Guard) -> Result<usize, usize>;
    fn key(&self, position: usize) -> K::Held;
    fn value(&self, position: usize) -> u64;
    /// Copies rows out; returns how many were written to the front of `to`.
    fn copy(&self, range: Range<usize>, to: &mut [MaybeUninit<(K::Held, u64)>]) -> usize;

    fn set_value(&self, position: usize, value: u64);
    /// The caller has asked `has_room`.
    fn insert(&self, count: usize, position: usize, key: K::Held, value: u64);
    fn remove(&self, count: usize, position: usize);
    /// Moves the rows from `from` on behind the `to_count` rows of `to`, which has the room.
    fn move_tail(&self, count: usize, from: usize, to: &Self, to_count: usize);
}

pub(crate) struct PlainRows<K: KeyKind> {
    keys: [K::Cell; LEAF_CELLS],
    values: [AtomicU64; LEAF_CELLS],
}

impl<K: KeyKind> PlainRows<K> {
    fn copy_within(&self, from: usize, to: usize) {
        K::store(&self.keys[to], self.key(from));
        self.set_value(to, self.value(from));
    }
}

impl<K: KeyKind> LeafRows<K> for PlainRows<K> {
    fn begin(&self) {
        self.keys.iter().for_each(K::clear);
    }

    #[inline]
    fn cells(&self) -> usize {
        LEAF_CELLS
    }

    fn cells_joined(&self, _: usize, _: &Self, _: usize) -> usize {
        LEAF_CELLS
    }

    #[inline]
    fn has_room(&self, count: usize, _: usize, _: K::Probe<'_>) -> bool {
        count < LEAF_CELLS
    }

    fn cut_for(&self, _: usize, _: usize, _: K::Probe<'_>) -> Option<usize> {
        None
    }

    #[inline]
    fn count_less(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        K::count_less(&self.keys, probe, guard)
    }

    #[inline]
    fn count_to(&self, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
        K::count_to(&self.keys, probe, guard)
    }

    #[inline]
    fn find(&self, count: usize, probe: K::Probe<'_>, guard: &K::Guard) -> Result<usize, usize> {
        let position = self.count_less(probe, guard).min(count);
        let found = position < count && K::equal(&self.keys[position], probe, guard);
        if found { Ok(position) } else { Err(position) }
    }

    #[inline]
    fn key(&self, position: usize) -> K::Held {
        K::load(&self.keys[position])
    }

    #[inline]
    fn value(&self, position: usize) -> u64 {
        self.values[position].load(Relaxed)
    }

    #[inline]
    fn copy(&self, range: Range<usize>, to: &mut [MaybeUninit<(K::Held, u64)>]) -> usize {
        let rows = self.keys[range.clone()].iter().zip(&self.values[range.clone()]);
        for (to, (key, value)) in to.iter_mut().zip(rows) {
            to.write((K::load(key), value.load(Relaxed)));
        }
        range.len()
    }

    fn set_value(&self, position: usize, value: u64) {
        self.values[position].store(value, Relaxed);
    }

    #[inline]
    fn insert(&self, count: usize, position: usize, key: K::Held, value: u64) {
        for to in (position + 1..=count).rev() {
            self.copy_within(to - 1, to);
        }
        K::store(&self.keys[position], key);
        self.set_value(position, value);
    }

    fn remove(&self, count: usize, position: usize) {
        for to in position..count - 1 {
            self.copy_within(to + 1, to);
        }
        K::clear(&self.keys[count - 1]);
    }

    fn move_tail(&self, count: usize, from: usize, to: &Self, to_count: usize) {
        for (step, position) in (from..count).enumerate() {
            K::store(&to.keys[to_count + step], self.key(position));
            to.set_value(to_count + step, self.value(position));
        }
        self.keys[from..count].iter().for_each(K::clear);
    }
}
