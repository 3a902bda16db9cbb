//! The index against a sorted map, step by step, for every shape of key.

use std::collections::BTreeMap;
use std::ops::Bound;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{SHAPES, all, key, rows, rows_rev, shapes, shuffled, steps};
use crate::{Insert, KeyShape, OrderedIndex};

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, u64),
    Remove(u64),
    Replace(u64, u64),
    Get(u64),
    Scan(Bound<Vec<u8>>, Bound<Vec<u8>>),
    /// Many at once, so that leaves and inner nodes split and merge.
    InsertRun(u64, u64),
    RemoveRun(u64, u64),
}

/// Few enough numbers that steps meet.
const NUMBERS: u64 = 4000;

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    // Bounds of any length, most of them near keys.
    let near = (0..NUMBERS, 0..6_usize, 0..20_usize).prop_map(|(number, shape, length)| {
        let mut bytes = key(SHAPES[shape], number);
        bytes.truncate(length);
        bytes
    });
    let bytes = prop_oneof![near, prop::collection::vec(any::<u8>(), 0..20)];
    prop_oneof![
        1 => Just(Bound::Unbounded),
        4 => bytes.clone().prop_map(Bound::Included),
        4 => bytes.prop_map(Bound::Excluded),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..NUMBERS, any::<u64>()).prop_map(|(number, value)| Step::Insert(number, value)),
        3 => (0..NUMBERS).prop_map(Step::Remove),
        1 => (0..NUMBERS, any::<u64>()).prop_map(|(number, value)| Step::Replace(number, value)),
        1 => (0..NUMBERS).prop_map(Step::Get),
        2 => (bound(), bound()).prop_map(|(lo, hi)| Step::Scan(lo, hi)),
        2 => (0..NUMBERS, 1..steps(600, 60)).prop_map(|(from, count)| Step::InsertRun(from, count)),
        2 => (0..NUMBERS, 1..steps(600, 60)).prop_map(|(from, count)| Step::RemoveRun(from, count)),
    ]
}

#[test]
fn does_what_a_sorted_map_does() {
    for shape in shapes() {
        let config =
            Config { cases: u32::try_from(steps(60, 1)).unwrap(), failure_persistence: None, ..Config::default() };
        let script = prop::collection::vec(step(), 1..=usize::try_from(steps(120, 8)).unwrap());
        let mut runner = TestRunner::new_with_rng(
            config,
            prop::test_runner::TestRng::deterministic_rng(prop::test_runner::RngAlgorithm::ChaCha),
        );
        runner.run(&script, |script| check(shape, &script)).unwrap_or_else(|failure| panic!("{shape:?}: {failure}"));
    }
}

fn check(shape: KeyShape, script: &[Step]) -> Result<(), TestCaseError> {
    let index = OrderedIndex::new(shape);
    let mut model = BTreeMap::new();
    for step in script {
        match *step {
            Step::Insert(number, value) => insert(&index, &mut model, key(shape, number), value)?,
            Step::Remove(number) => remove(&index, &mut model, &key(shape, number))?,
            Step::InsertRun(from, count) => {
                for number in from..from + count {
                    insert(&index, &mut model, key(shape, number), number)?;
                }
            }
            Step::RemoveRun(from, count) => {
                for number in from..from + count {
                    remove(&index, &mut model, &key(shape, number))?;
                }
            }
            Step::Replace(number, value) => {
                let key = key(shape, number);
                let old = model.get(&key).copied();
                prop_assert!(index.replace(&key, old.unwrap_or(0).wrapping_add(1), value).is_none());
                if let Some(old) = old {
                    prop_assert!(index.replace(&key, old, value).is_some());
                    model.insert(key, value);
                }
            }
            Step::Get(number) => {
                let key = key(shape, number);
                let found = index.get(&key);
                prop_assert_eq!(found.value, model.get(&key).copied());
                prop_assert!(index.validate(found.leaf));
            }
            Step::Scan(ref lo, ref hi) => {
                let (lo, hi) = (lo.as_ref().map(Vec::as_slice), hi.as_ref().map(Vec::as_slice));
                let within = |key: &[u8]| (lo, hi).contains_bytes(key);
                let expected: Vec<_> = model.clone().into_iter().filter(|(key, _)| within(key)).collect();
                let (found, leaves) = rows(&index, lo, hi);
                prop_assert_eq!(&found, &expected);
                prop_assert!(!leaves.is_empty() && leaves.iter().all(|&leaf| index.validate(leaf)));
                let (mut found, leaves) = rows_rev(&index, lo, hi);
                found.reverse();
                prop_assert_eq!(&found, &expected);
                prop_assert!(!leaves.is_empty() && leaves.iter().all(|&leaf| index.validate(leaf)));
            }
        }
        prop_assert_eq!(index.len(), model.len());
    }
    prop_assert_eq!(all(&index), model.clone().into_iter().collect::<Vec<_>>());
    for key in model.clone().into_keys() {
        remove(&index, &mut model, &key)?;
    }
    prop_assert_eq!(all(&index), Vec::new());
    Ok(())
}

trait ContainsBytes {
    fn contains_bytes(&self, key: &[u8]) -> bool;
}

impl ContainsBytes for (Bound<&[u8]>, Bound<&[u8]>) {
    fn contains_bytes(&self, key: &[u8]) -> bool {
        let above = match self.0 {
            Bound::Unbounded => true,
            Bound::Included(lo) => key >= lo,
            Bound::Excluded(lo) => key > lo,
        };
        above
            && match self.1 {
                Bound::Unbounded => true,
                Bound::Included(hi) => key <= hi,
                Bound::Excluded(hi) => key < hi,
            }
    }
}

type Model = BTreeMap<Vec<u8>, u64>;

fn insert(index: &OrderedIndex, model: &mut Model, key: Vec<u8>, value: u64) -> Result<(), TestCaseError> {
    match (index.insert(&key, value), model.get(&key)) {
        (Insert::Inserted { .. }, None) => drop(model.insert(key, value)),
        (Insert::Exists { value: found, leaf }, Some(&there)) => {
            prop_assert_eq!(found, there);
            prop_assert!(index.validate(leaf));
        }
        (outcome, there) => prop_assert!(false, "{outcome:?}, but the map has {there:?}"),
    }
    Ok(())
}

fn remove(index: &OrderedIndex, model: &mut Model, key: &[u8]) -> Result<(), TestCaseError> {
    let there = model.remove(key);
    prop_assert!(index.remove(key, there.unwrap_or(0).wrapping_add(1)).is_none());
    prop_assert_eq!(index.remove(key, there.unwrap_or(0)).is_some(), there.is_some());
    Ok(())
}

#[test]
fn random_orders_of_many_keys_come_out_sorted_and_leave_nothing() {
    for shape in shapes() {
        let (index, count) = (OrderedIndex::new(shape), steps(30_000, 300));
        for number in shuffled(count, 1) {
            super::put(&index, &key(shape, number), number);
        }
        let expected: Vec<_> = (0..count).map(|number| (key(shape, number), number)).collect();
        assert!(all(&index) == expected, "{shape:?}");
        for number in shuffled(count, 2) {
            assert!(index.remove(&key(shape, number), number).is_some(), "{shape:?} {number}");
        }
        assert!(index.is_empty() && all(&index).is_empty(), "{shape:?}");
    }
}

#[test]
fn a_visitor_stops_a_scan_and_may_use_the_index() {
    let index = OrderedIndex::new(KeyShape::Fixed(8));
    (0..200_u64).for_each(|number| super::put(&index, &(2 * number).to_be_bytes(), number));
    let (mut shown, mut leaves) = (0, Vec::new());
    let mut visit = |key: &[u8], value| {
        let next = u64::from_be_bytes(key.try_into().unwrap()) + 1;
        super::put(&index, &next.to_be_bytes(), value);
        shown += 1;
        if shown == 70 { std::ops::ControlFlow::Break(()) } else { std::ops::ControlFlow::Continue(()) }
    };
    index.scan_rev(Bound::Unbounded, Bound::Unbounded, &mut visit, &mut leaves);
    assert_eq!((shown, index.len()), (70, 270));
}

#[test]
#[should_panic(expected = "another length")]
fn a_key_of_another_length_is_a_bug() {
    let _ = OrderedIndex::new(KeyShape::Fixed(8)).get(&[0; 7]);
}
