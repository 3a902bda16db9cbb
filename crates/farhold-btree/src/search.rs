//! Searching a node's sorted cells.

use std::hint::select_unpredictable;

use crate::key::KeyKind;

/// How many of the first `count` cells come before the place `before` marks: it is true up to there, false beyond.
///
/// Halving without a branch on the comparison: a random key makes each of the six a coin toss, and a wrong guess costs
/// more than the comparison. The number of steps depends on `count` alone.
#[inline]
pub(crate) fn partition_point<C>(cells: &[C], count: usize, before: impl Fn(&C) -> bool) -> usize {
    // Bounded anew because `count` may be read from a node that is changing; no node claims more than it has.
    let mut length = count.min(cells.len());
    let mut base = 0;
    while length > 1 {
        let half = length / 2;
        // SAFETY: `base + length <= cells.len()` holds at the start and through both arms: `base + half` leaves
        // `length - half` cells, and `base` leaves more than that. `half >= 1`, so `base + half - 1` is in range.
        let middle = unsafe { cells.get_unchecked(base + half - 1) };
        base = select_unpredictable(before(middle), base + half, base);
        length -= half;
    }
    // SAFETY: as above, with `length == 1`.
    base + usize::from(length == 1 && before(unsafe { cells.get_unchecked(base) }))
}

/// How many keys are less than the probe.
#[inline]
pub(crate) fn count_less<K: KeyKind>(cells: &[K::Cell], count: usize, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
    partition_point(cells, count, |cell| K::less(cell, probe, guard))
}

/// How many keys are less than or equal to the probe.
#[inline]
pub(crate) fn count_to<K: KeyKind>(cells: &[K::Cell], count: usize, probe: K::Probe<'_>, guard: &K::Guard) -> usize {
    partition_point(cells, count, |cell| !K::greater(cell, probe, guard))
}

/// Asks the cache for the lines of a node that a search will touch, all at once rather than one after the other.
#[inline]
pub(crate) fn prefetch<T>(node: *const T, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for offset in (0..bytes).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and faults on nothing, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(node.cast::<i8>().wrapping_add(offset)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (node, bytes);
}
