//! The index's promises, checked: against a sorted map, under threads, for phantoms, for memory.
//!
//! Sizes shrink under Miri, where a step costs a thousand times as much. It wants tree borrows (crossbeam-epoch finds its
//! list's elements by address arithmetic) and to ignore what an epoch has yet to free at exit:
//!
//! ```text
//! MIRIFLAGS="-Zmiri-tree-borrows -Zmiri-permissive-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks" \
//!     cargo +nightly miri test -p farhold-btree --lib
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu -p farhold-btree --lib
//! ```

mod forms;
mod memory;
mod model;
mod phantom;
mod stamps;
mod threads;

use std::ops::{Bound, ControlFlow};

use crate::{Insert, KeyShape, LeafStamp, OrderedIndex};

const SHAPES: [KeyShape; 6] = [
    KeyShape::Fixed(8),
    KeyShape::Fixed(5),
    KeyShape::Fixed(16),
    KeyShape::Fixed(11),
    KeyShape::Short,
    KeyShape::Bytes,
];

/// Every shape; under Miri one of each kind.
fn shapes() -> impl Iterator<Item = KeyShape> {
    SHAPES.into_iter().step_by(if cfg!(miri) { 5 } else { 1 }).chain(cfg!(miri).then_some(KeyShape::Fixed(11)))
}

/// `full` steps, or under Miri `small`.
const fn steps(full: u64, small: u64) -> u64 {
    if cfg!(miri) { small } else { full }
}

/// A key of the shape for a number below 2^32; numbers and keys have the same order. Keys of `Bytes` take both forms,
/// short and long; those of `Fixed(16)` come in groups within which they lie close together (see `frame`), those of
/// `Short` never do.
fn key(shape: KeyShape, number: u64) -> Vec<u8> {
    let word = number.to_be_bytes();
    match shape {
        KeyShape::Fixed(length) if length <= 8 => word[8 - length..].to_vec(),
        KeyShape::Fixed(16) => [(number / 100).to_be_bytes(), word].concat(),
        KeyShape::Fixed(length) => [&[7; 8][..length - 8], &word].concat(),
        KeyShape::Short => [&word[3..], &[1; 7][..(number % 8) as usize]].concat(),
        KeyShape::Bytes => [&word[..], &b"a name of some length"[..(number % 20) as usize]].concat(),
    }
}

fn insert_new(index: &OrderedIndex, key: &[u8], value: u64) -> crate::Changes {
    match index.insert(key, value) {
        Insert::Inserted { changes } => changes,
        Insert::Exists { value, .. } => panic!("{key:?} is there already, with {value}"),
    }
}

fn put(index: &OrderedIndex, key: &[u8], value: u64) {
    let _ = insert_new(index, key, value);
}

type Rows = Vec<(Vec<u8>, u64)>;

fn rows(index: &OrderedIndex, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> (Rows, Vec<LeafStamp>) {
    collect(|visit, leaves| index.scan(lo, hi, visit, leaves))
}

fn rows_rev(index: &OrderedIndex, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> (Rows, Vec<LeafStamp>) {
    collect(|visit, leaves| index.scan_rev(lo, hi, visit, leaves))
}

type Visit<'v> = &'v mut dyn FnMut(&[u8], u64) -> ControlFlow<()>;

fn collect(scan: impl FnOnce(Visit<'_>, &mut Vec<LeafStamp>)) -> (Rows, Vec<LeafStamp>) {
    let (mut rows, mut leaves) = (Vec::new(), Vec::new());
    let mut visit = |key: &[u8], value| {
        rows.push((key.to_vec(), value));
        ControlFlow::Continue(())
    };
    scan(&mut visit, &mut leaves);
    (rows, leaves)
}

fn all(index: &OrderedIndex) -> Rows {
    rows(index, Bound::Unbounded, Bound::Unbounded).0
}

/// A repeatable order of the numbers below `count`: a random function of the number, sorted.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    numbers.sort_by_key(|&number| mix(number ^ (seed << 40)));
    numbers
}

/// The finalizer of `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
