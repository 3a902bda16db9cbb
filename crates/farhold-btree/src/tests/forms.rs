//! The two forms of a leaf of long fixed keys, and every way from one to the other: what they hold, and what they cost.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::{all, insert_new, mix, put, rows, rows_rev, steps};
use crate::frame::{NARROW_CELLS, WIDE_CELLS};
use crate::index::for_tests::{cells_in_use, leaves_in_use};
use crate::{Insert, KeyShape, LeafStamp, OrderedIndex};

/// Keys with the same first half lie close together, others mostly do not.
fn key(first: u64, second: u64) -> [u8; 16] {
    (u128::from(first) << 64 | u128::from(second)).to_be_bytes()
}

/// An index with `count` keys in each of the groups, a group after the other, in order.
fn groups(firsts: std::ops::Range<u64>, count: usize) -> OrderedIndex {
    let index = OrderedIndex::new(KeyShape::Fixed(16));
    for first in firsts {
        (1..=count as u64).for_each(|second| put(&index, &key(first, second), second));
    }
    index
}

/// The rows that fit in every leaf, those in use alone.
fn cells(index: &mut OrderedIndex) -> (usize, usize) {
    (leaves_in_use(index), cells_in_use(index))
}

#[test]
fn close_keys_make_a_narrow_leaf_and_far_ones_a_wide() {
    assert_eq!(cells(&mut groups(0..1, NARROW_CELLS)), (1, NARROW_CELLS));
    assert_eq!(cells(&mut groups(0..1, NARROW_CELLS + 1)), (2, 2 * NARROW_CELLS));
    assert_eq!(cells(&mut groups(0..WIDE_CELLS as u64, 1)), (1, WIDE_CELLS));
    assert_eq!(cells(&mut groups(0..WIDE_CELLS as u64 + 1, 1)), (2, WIDE_CELLS + NARROW_CELLS));
}

#[test]
fn close_keys_on_both_sides_of_a_first_word_are_close() {
    let mut index = OrderedIndex::new(KeyShape::Fixed(16));
    (1..20).for_each(|number| put(&index, &key(2, number), number));
    (1..20).for_each(|number| put(&index, &key(1, 0_u64.wrapping_sub(number)), number));
    assert_eq!(cells(&mut index), (1, NARROW_CELLS));
    assert_eq!(all(&index).len(), 38);
}

#[test]
fn a_far_key_makes_a_leaf_with_few_rows_wide() {
    for far in [key(0, 9), key(9, 9)] {
        let mut index = groups(5..6, WIDE_CELLS - 1);
        put(&index, &far, 9);
        assert_eq!(cells(&mut index), (1, WIDE_CELLS));
        assert_eq!(all(&index).len(), WIDE_CELLS);
        assert_eq!(index.get(&far).value, Some(9));
    }
}

#[test]
fn a_far_key_leaves_a_leaf_with_many_rows_narrow() {
    for count in [WIDE_CELLS, NARROW_CELLS - 1, NARROW_CELLS] {
        for far in [key(0, 9), key(9, 9)] {
            let mut index = groups(5..6, count);
            let (_, mut stamps) = rows(&index, Unbounded, Unbounded);
            insert_new(&index, &far, 9).apply(&mut stamps);
            assert!(stamps.iter().all(|&stamp| index.validate(stamp)));
            assert_eq!(cells(&mut index), (2, 2 * NARROW_CELLS));
            assert_eq!(all(&index).len(), count + 1);
        }
    }
}

#[test]
fn a_split_makes_the_halves_of_a_wide_leaf_narrow() {
    let mut index = groups(5..7, WIDE_CELLS / 2);
    // The leaf has room for one more; then it splits, in the middle, which is the boundary.
    (1..3).for_each(|number| put(&index, &key(5, 1000 * number), 0));
    assert_eq!(cells(&mut index), (2, 2 * NARROW_CELLS));
    assert_eq!(all(&index).len(), WIDE_CELLS / 2 * 2 + 2);
}

#[test]
fn a_full_wide_leaf_of_close_keys_turns_narrow() {
    let mut index = groups(5..6, WIDE_CELLS - 1);
    put(&index, &key(0, 0), 0);
    index.remove(&key(0, 0), 0).unwrap();
    (100..110).for_each(|number| put(&index, &key(5, number), 0));
    assert_eq!(cells(&mut index), (1, NARROW_CELLS));
    assert_eq!(all(&index).len(), WIDE_CELLS + 9);
}

/// Of two narrow leaves of different groups all but a few rows go: one wide leaf is left, with room.
#[test]
fn narrow_leaves_merge_to_a_wide_one_and_wide_ones_to_a_narrow() {
    let mut index = groups(5..7, NARROW_CELLS);
    assert_eq!(cells(&mut index), (2, 2 * NARROW_CELLS));
    for group in [5, 6] {
        (9..=NARROW_CELLS as u64).for_each(|second| _ = index.remove(&key(group, second), second).unwrap());
    }
    assert_eq!(cells(&mut index), (1, WIDE_CELLS));
    assert_eq!(all(&index).len(), 16);

    // Two leaves, one of them wide by keys that go: what they merge to is narrow.
    let mut index = groups(5..6, 2 * NARROW_CELLS);
    (40..=NARROW_CELLS as u64).for_each(|second| _ = index.remove(&key(5, second), second).unwrap());
    put(&index, &key(0, 0), 0);
    assert_eq!(cells(&mut index), (2, WIDE_CELLS + NARROW_CELLS));
    index.remove(&key(0, 0), 0).unwrap();
    (1 + NARROW_CELLS as u64..=2 * NARROW_CELLS as u64 - 4)
        .for_each(|second| _ = index.remove(&key(5, second), second).unwrap());
    assert_eq!(cells(&mut index), (1, NARROW_CELLS));
    assert_eq!(all(&index).len(), 39 + 4);
}

#[derive(Clone, Debug)]
struct Step {
    insert: bool,
    first: u64,
    second: u64,
    run: u64,
}

/// Both ends of both words, where distances wrap, and runs long enough to fill leaves.
fn step() -> impl Strategy<Value = Step> {
    let end = |near: u64| prop_oneof![0..near, (0..near).prop_map(|number| u64::MAX - number)];
    (any::<bool>(), end(3), prop_oneof![4 => end(100), 1 => any::<u64>()], prop_oneof![1..3_u64, 1..steps(90, 50)])
        .prop_map(|(insert, first, second, run)| Step { insert, first, second, run })
}

#[test]
fn keys_at_the_ends_of_words_are_as_good_as_any() {
    let config =
        Config { cases: u32::try_from(steps(150, 2)).unwrap(), failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let script = prop::collection::vec(step(), 1..=usize::try_from(steps(100, 8)).unwrap());
    TestRunner::new_with_rng(config, rng).run(&script, |script| check(&script)).unwrap_or_else(|e| panic!("{e}"));
}

fn check(script: &[Step]) -> Result<(), TestCaseError> {
    let (index, mut model) = (OrderedIndex::new(KeyShape::Fixed(16)), BTreeMap::new());
    let mut stamps: Vec<LeafStamp> = rows(&index, Unbounded, Unbounded).1;
    for step in script {
        for number in 0..step.run {
            // Wraps into the next group, and past the last key to the first.
            let key =
                (u128::from(step.first) << 64 | u128::from(step.second)).wrapping_add(number.into()).to_be_bytes();
            if step.insert {
                match index.insert(&key, number) {
                    Insert::Inserted { changes } => {
                        prop_assert_eq!(model.insert(key, number), None);
                        changes.apply(&mut stamps);
                    }
                    Insert::Exists { value, .. } => prop_assert_eq!(model.get(&key), Some(&value)),
                }
            } else if let Some(value) = model.remove(&key) {
                prop_assert_eq!(index.get(&key).value, Some(value));
                index.remove(&key, value).expect("the key is there").apply(&mut stamps);
            }
            prop_assert_eq!(index.get(&key).value, model.get(&key).copied());
        }
        prop_assert!(stamps.iter().all(|&stamp| index.validate(stamp)));
        let bound = key(step.first, step.second);
        let expected = |range| model.range(range).map(|(key, &value)| (key.to_vec(), value)).collect::<Vec<_>>();
        prop_assert_eq!(rows(&index, Excluded(&bound), Unbounded).0, expected((Excluded(bound), Unbounded)));
        let mut found = rows_rev(&index, Unbounded, Included(&bound)).0;
        found.reverse();
        prop_assert_eq!(found, expected((Unbounded, Included(bound))));
    }
    let expected: Vec<_> = model.iter().map(|(key, &value)| (key.to_vec(), value)).collect();
    prop_assert_eq!(all(&index), expected);
    Ok(())
}

/// Readers on a few leaves that writers turn from narrow to wide and back all the time.
#[test]
fn readers_stand_leaves_that_change_form() {
    let index = groups(5..6, WIDE_CELLS / 2);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..steps(3000, 4) {
                // In the leaf, and far from it on either side: it goes wide, splits, merges.
                let far = key(if round.is_multiple_of(2) { 1 } else { 9 }, round);
                put(&index, &far, round);
                let more = mix(round) % NARROW_CELLS as u64;
                (0..more).for_each(|number| put(&index, &key(5, 1000 + number), number));
                index.remove(&far, round).unwrap();
                (0..more).for_each(|number| _ = index.remove(&key(5, 1000 + number), number).unwrap());
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    for second in 1..=WIDE_CELLS as u64 / 2 {
                        assert_eq!(index.get(&key(5, second)).value, Some(second));
                    }
                    let (found, _) = rows(&index, Included(&key(5, 1)), Excluded(&key(5, 1000)));
                    let expected = (1..=WIDE_CELLS as u64 / 2).map(|second| (key(5, second).to_vec(), second));
                    assert!(found.into_iter().eq(expected));
                }
            });
        }
    });
}
