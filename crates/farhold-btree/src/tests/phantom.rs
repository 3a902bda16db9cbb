//! No key comes into a scanned range, or leaves it, without some stamp of the scan becoming invalid.

use std::ops::Bound::{Excluded, Included, Unbounded};

use super::{key, put, rows, rows_rev, shapes, shuffled, steps};
use crate::index::for_tests::forget_versions;
use crate::{KeyShape, LeafStamp, OrderedIndex};

fn valid(index: &OrderedIndex, leaves: &[LeafStamp]) -> bool {
    leaves.iter().all(|&leaf| index.validate(leaf))
}

/// Even numbers below `2 * count`, in random order.
fn evens(shape: KeyShape, count: u64, seed: u64) -> OrderedIndex {
    let index = OrderedIndex::new(shape);
    for number in shuffled(count, seed) {
        put(&index, &key(shape, 2 * number), number);
    }
    index
}

/// Whether, for a scan of numbers `lo..=hi` by each of the two directions, `write` is noticed.
fn noticed(index: &OrderedIndex, shape: KeyShape, lo: u64, hi: u64, write: impl FnOnce() + Send) -> bool {
    let (lo, hi) = (key(shape, lo), key(shape, hi));
    let (_, forward) = rows(index, Included(&lo), Included(&hi));
    let (_, backward) = rows_rev(index, Included(&lo), Included(&hi));
    assert!(valid(index, &forward) && valid(index, &backward));
    std::thread::scope(|scope| drop(scope.spawn(write)));
    !valid(index, &forward) && !valid(index, &backward)
}

/// Inserts an odd number into a range, for indexes of every size up to several splits; returns how many went unnoticed.
fn phantoms(shape: KeyShape, forget: bool) -> u64 {
    let mut unnoticed = 0;
    for count in (0..steps(400, 70)).step_by(usize::try_from(steps(3, 23)).unwrap()) {
        let index = evens(shape, count, count);
        forget_versions(&index, forget);
        let middle = count | 1;
        let (lo, hi) = (middle.saturating_sub(40), middle + 40);
        unnoticed += u64::from(!noticed(&index, shape, lo, hi, || put(&index, &key(shape, middle), 1)));
    }
    unnoticed
}

#[test]
fn an_insert_into_a_scanned_range_is_noticed() {
    for shape in shapes() {
        assert_eq!(phantoms(shape, false), 0, "{shape:?}");
    }
}

#[test]
fn the_check_above_would_catch_an_insert_that_forgets_the_version() {
    assert!(phantoms(KeyShape::Fixed(8), true) > steps(100, 1));
}

#[test]
fn an_insert_after_the_range_has_moved_to_a_new_leaf_is_noticed() {
    for shape in shapes() {
        // Inserts outside the range split its leaf; only then comes the phantom.
        let index = evens(shape, 50, 3);
        let (lo, hi) = (key(shape, 80), key(shape, 99));
        let (_, stamps) = rows(&index, Included(&lo), Included(&hi));
        (0..40).for_each(|number| put(&index, &key(shape, 2 * number + 1), 0));
        assert!(!valid(&index, &stamps), "{shape:?}");
    }
}

#[test]
fn an_insert_into_an_empty_range_is_noticed() {
    for shape in shapes() {
        let empty = OrderedIndex::new(shape);
        assert!(noticed(&empty, shape, 0, 9, || put(&empty, &key(shape, 5), 1)), "{shape:?}");
        let index = evens(shape, steps(500, 450), 4);
        for number in (1..900).step_by(usize::try_from(steps(50, 400)).unwrap()) {
            let write = || put(&index, &key(shape, number), 1);
            assert!(noticed(&index, shape, number, number, write), "{shape:?} {number}");
        }
    }
}

#[test]
fn a_key_looked_up_in_vain_is_noticed_when_it_comes() {
    for shape in shapes() {
        let index = evens(shape, 200, 5);
        for number in (1..400).step_by(usize::try_from(steps(2, 160)).unwrap()) {
            let lookup = index.get(&key(shape, number));
            assert_eq!(lookup.value, None);
            put(&index, &key(shape, number), 1);
            assert!(!index.validate(lookup.leaf), "{shape:?} {number}");
        }
    }
}

#[test]
fn removals_replacements_and_merges_are_noticed() {
    for shape in shapes() {
        let index = evens(shape, steps(500, 80), 6);
        for number in 0..steps(499, 60) {
            let (this, next) = (key(shape, 2 * number), key(shape, 2 * number + 2));
            let (_, stamps) = rows(&index, Included(&this), Included(&this));
            index.replace(&this, number, number).unwrap();
            assert!(!valid(&index, &stamps), "{shape:?} {number}");
            let (_, stamps) = rows(&index, Unbounded, Excluded(&next));
            index.remove(&this, number).unwrap();
            assert!(!valid(&index, &stamps), "{shape:?} {number}");
            // The range is empty now; its leaf may be merged away by the next removals.
            let (rows, stamps) = rows(&index, Unbounded, Excluded(&next));
            assert!(rows.is_empty());
            put(&index, &this, number);
            assert!(!valid(&index, &stamps), "{shape:?} {number}");
            index.remove(&this, number).unwrap();
        }
    }
}
