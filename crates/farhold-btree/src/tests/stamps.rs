//! A transaction that carries its stamps over its own writes stays valid, and only over its own. No stamp, however it was made,
//! does harm.

use std::ops::Bound::{Included, Unbounded};

use super::{all, insert_new, key, mix, put, rows, shapes, shuffled, steps};
use crate::{Insert, KeyShape, LeafStamp, OrderedIndex};

fn valid(index: &OrderedIndex, leaves: &[LeafStamp]) -> bool {
    leaves.iter().all(|&leaf| index.validate(leaf))
}

#[test]
fn own_writes_keep_own_stamps_valid_through_splits_and_merges() {
    for shape in shapes() {
        let (index, count) = (OrderedIndex::new(shape), steps(3000, 150));
        let (_, mut stamps) = rows(&index, Unbounded, Unbounded);
        for number in shuffled(count, 1) {
            insert_new(&index, &key(shape, number), number).apply(&mut stamps);
            assert!(valid(&index, &stamps), "{shape:?} insert {number}");
        }
        for number in shuffled(count, 2) {
            let key = key(shape, number);
            index.replace(&key, number, number + 1).unwrap().apply(&mut stamps);
            index.remove(&key, number + 1).unwrap().apply(&mut stamps);
            assert!(valid(&index, &stamps), "{shape:?} remove {number}");
        }
        // They still cover the whole range: any insert is noticed.
        assert!(all(&index).is_empty());
        put(&index, &key(shape, 7), 7);
        assert!(!valid(&index, &stamps), "{shape:?}");
    }
}

#[test]
fn stamps_carried_through_splits_and_merges_notice_everything_in_the_range() {
    for shape in shapes() {
        for round in 0..steps(200, 4) {
            let index = OrderedIndex::new(shape);
            (0..60).for_each(|number| put(&index, &key(shape, 10 * number), number));
            let (lo, hi) = (key(shape, 200), key(shape, 400));
            let (_, mut stamps) = rows(&index, Included(&lo), Included(&hi));
            let own = mix(round) % 1000;
            // Own inserts and removals all over the place.
            (0..own % 90).for_each(|number| insert_new(&index, &key(shape, 1000 + number), 0).apply(&mut stamps));
            (0..own % 40).for_each(|number| insert_new(&index, &key(shape, 10 * number + 1), 0).apply(&mut stamps));
            for number in (0..60_u64).filter(|number| own.is_multiple_of(3) || !number.is_multiple_of(4)) {
                index.remove(&key(shape, 10 * number), number).unwrap().apply(&mut stamps);
            }
            assert!(valid(&index, &stamps), "{shape:?} round {round}");
            put(&index, &key(shape, 202 + mix(round + 1) % 190 / 10 * 10), 0);
            assert!(!valid(&index, &stamps), "{shape:?} round {round}");
        }
    }
}

#[test]
fn a_write_of_somebody_else_is_not_carried_over() {
    let index = OrderedIndex::new(KeyShape::Fixed(8));
    let (_, mut stamps) = rows(&index, Unbounded, Unbounded);
    put(&index, &1_u64.to_be_bytes(), 0);
    insert_new(&index, &2_u64.to_be_bytes(), 0).apply(&mut stamps);
    assert!(!valid(&index, &stamps));
}

#[test]
fn a_key_that_exists_changes_nothing() {
    let index = OrderedIndex::new(KeyShape::Short);
    put(&index, b"key", 3);
    let (_, stamps) = rows(&index, Unbounded, Unbounded);
    let Insert::Exists { value: 3, leaf } = index.insert(b"key", 4) else { panic!("inserted twice") };
    assert!(index.validate(leaf) && valid(&index, &stamps));
    assert_eq!(index.get(b"key").value, Some(3));
}

#[test]
fn any_stamp_may_be_asked_about() {
    let index = OrderedIndex::new(KeyShape::Bytes);
    (0..200).for_each(|number| put(&index, &key(KeyShape::Bytes, number), number));
    let mut old = rows(&index, Unbounded, Unbounded).1;
    (0..200).for_each(|number| {
        index.remove(&key(KeyShape::Bytes, number), number).unwrap();
    });
    assert!(old.iter().all(|&stamp| !index.validate(stamp)), "stamps of leaves that are gone");
    (0..200).for_each(|number| put(&index, &key(KeyShape::Bytes, number), number));
    assert!(old.drain(..).all(|stamp| !index.validate(stamp)), "their memory serves again");
    for number in 0..1000 {
        let _ = index.validate(LeafStamp { leaf: mix(number), version: mix(number + 1) });
        let _ = index.validate(LeafStamp { leaf: mix(number) >> (number % 64), version: number % 5 });
    }
    for leaf in [0, 1, 100, u64::from(u32::MAX), u64::from(u32::MAX) - 3, u64::MAX] {
        assert!(!index.validate(LeafStamp { leaf, version: 0 }));
        assert!(!index.validate(LeafStamp { leaf, version: u64::MAX }));
    }
}
