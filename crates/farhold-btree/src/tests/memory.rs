//! Leaves are full after ascending runs, and go when they empty.

use std::collections::VecDeque;

use super::{all, key, put, shapes, shuffled, steps};
use crate::frame::WIDE_CELLS;
use crate::index::for_tests::{cells_in_use, leaves_in_use};
use crate::node::LEAF_CELLS;
use crate::{KeyShape, OrderedIndex};

/// Of all cells of all leaves, the share in use, in percent.
fn fill_percent(index: &mut OrderedIndex) -> usize {
    100 * index.len() / cells_in_use(index)
}

#[test]
fn sorted_loading_fills_the_leaves() {
    for shape in shapes() {
        let mut index = OrderedIndex::new(shape);
        (0..steps(100, 4) * LEAF_CELLS as u64).for_each(|number| put(&index, &key(shape, number), number));
        // Groups of a hundred keys: one narrow leaf to its end, and what is left in wide ones.
        let least = match shape {
            KeyShape::Fixed(16) => 80,
            _ => 97,
        };
        let percent = fill_percent(&mut index);
        assert!(percent >= least, "{shape:?}: {percent} %");
    }
}

#[test]
fn interleaved_ascending_runs_fill_the_leaves() {
    // An eight-byte key, an order line's (warehouse, district, order, number), and one whose runs lie far apart.
    let word = |district: u64, order: u64| (district << 32 | order).to_be_bytes().to_vec();
    let line = |district: u64, order: u64| {
        let (order, number) = ((order / 10).to_be_bytes(), (order % 10).to_be_bytes());
        [&[0, 0, 0, 1], &district.to_be_bytes()[6..], &order[4..], &number[6..]].concat()
    };
    let far = |district: u64, order: u64| [district.to_be_bytes(), order.to_be_bytes()].concat();
    let check = |length: usize, key: &dyn Fn(u64, u64) -> Vec<u8>| {
        let mut index = OrderedIndex::new(KeyShape::Fixed(length));
        for order in 0..steps(3000, 300) {
            (0..10).for_each(|district| put(&index, &key(district, order), order));
        }
        let (percent, least) = (fill_percent(&mut index), steps(90, 60));
        assert!(percent as u64 >= least, "{length} bytes: {percent} %");
        let bytes_a_key = index.memory_bytes() / index.len();
        assert!(cfg!(miri) || bytes_a_key <= 20, "{length} bytes: {bytes_a_key} B a key");
    };
    check(8, &word);
    check(12, &line);
    check(16, &far);
}

/// Orders come in at the top of each district and are delivered from the bottom, for ever.
#[test]
fn a_queue_keeps_its_memory() {
    for shape in shapes() {
        let index = OrderedIndex::new(shape);
        let district_key = |district: u64, order: u64| key(shape, district << 24 | order);
        let mut waiting: [VecDeque<u64>; 4] = Default::default();
        let (length, orders) = (steps(200, 40), steps(20_000, 100));
        let mut most = 0;
        for order in 0..orders {
            for (district, waiting) in (0..).zip(&mut waiting) {
                put(&index, &district_key(district, order), order);
                waiting.push_back(order);
                if waiting.len() as u64 > length {
                    let oldest = waiting.pop_front().unwrap();
                    index.remove(&district_key(district, oldest), oldest).unwrap();
                }
            }
            if order == orders / 2 {
                most = index.memory_bytes();
            }
        }
        assert!(index.memory_bytes() <= most, "{shape:?}: {} B after {most} B", index.memory_bytes());
        let cells = if shape == KeyShape::Short { WIDE_CELLS } else { LEAF_CELLS };
        let needed = 4 * (usize::try_from(length).unwrap() / cells + 3);
        assert!(leaves_in_use(&index) <= needed, "{shape:?}: {} leaves, {needed} expected", leaves_in_use(&index));
    }
}

/// Deep enough that inner nodes empty, merge, share and the root comes down again.
#[test]
fn an_emptied_index_is_one_leaf() {
    let count = steps(400_000, 200);
    let ascending: Vec<u64> = (0..count).collect();
    let descending: Vec<u64> = (0..count).rev().collect();
    for order in [ascending, descending, shuffled(count, 1)] {
        let index = OrderedIndex::new(KeyShape::Fixed(8));
        for number in shuffled(count, 2) {
            put(&index, &number.to_be_bytes(), number);
        }
        for number in order {
            index.remove(&number.to_be_bytes(), number).unwrap();
        }
        assert!(all(&index).is_empty());
        assert_eq!(leaves_in_use(&index), 1);
    }
}

#[test]
fn long_keys_are_accounted_for_and_freed() {
    let index = OrderedIndex::new(KeyShape::Bytes);
    let (empty, long) = (index.memory_bytes(), vec![5; 1000]);
    put(&index, &long, 1);
    assert!(index.memory_bytes() >= empty + 1000);
    index.remove(&long, 1).unwrap();
    assert_eq!(index.memory_bytes(), empty);
}

/// Also where inner nodes were split, whose separators move.
#[test]
fn separators_are_accounted_for_once() {
    let index = OrderedIndex::new(KeyShape::Bytes);
    let key = |n: u32| [&[7; 20][..], &n.to_be_bytes()].concat();
    let rows = 20_000;
    for round in 0..2 {
        (0..rows).for_each(|n| put(&index, &key(n), 1));
        assert!(index.key_bytes() > 0, "round {round}");
        (0..rows).for_each(|n| assert!(index.remove(&key(n), 1).is_some()));
        assert_eq!(index.key_bytes(), 0, "round {round}");
    }
}
