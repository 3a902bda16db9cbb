//! The rows of a leaf whose keys have sixteen bytes, eight of them stored where the leaf's keys lie close together.
//!
//! ```text
//!           0                     62                    124
//!  narrow   | key - frame, 62 x 8 B | values, from the end |     all keys within 2^64 of each other
//!  wide     | key, 41 x 16 B            | values likewise  |     frame = all ones
//!           0                           82               124     1008 bytes with the frame
//! ```
//!
//! Keys of one leaf are neighbours, so most share all but their last bytes (an order line's warehouse, district and order). The
//! leaf then stores a frame, which is not above any of its keys, and each key's distance from it (frame of reference, Goldstein,
//! Ramakrishnan and Shaft, ICDE 1998). A search subtracts the frame once and goes on as for eight-byte keys. Considered and
//! rejected: a common first word in place of the difference. It costs the same to search, but a leaf on the boundary of two first
//! words is then wide although its keys may be next to each other.
//!
//! Ten runs of order lines, 1 M keys, one core of a busy machine, least of three turns: 16.9 bytes a key instead of 24.8,
//! a get 148 ns against 207, an insert 70 against 124. Random keys that lie far apart, all in wide leaves: a get 200 ns
//! against 202, an insert 267 against 239; the turns differ by more than that, so it is undecided whether random keys
//! lose.
//!
//! A leaf changes its form when an insert, a split or a merge needs it, under its lock. It becomes wide when a key comes that is
//! too far off and there are few enough rows. It becomes narrow when it is split, merged or full and its keys lie close enough
//! again. Values lie backwards from the end, where both forms have them.
//!
//! Invariants:
//! - No key is below the frame of a narrow leaf or 2^64 or more above it; the frame of a narrow leaf is never all ones.
//! - Key cells from the count on hold all ones, as in any node; one of the two forms' cells, the present one's.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::key::{Pair, PairCell};
use crate::rows::LeafRows;
use crate::search::partition_point;

const WORDS: usize = 124;
pub(crate) const NARROW_CELLS: usize = WORDS / 2;
pub(crate) const WIDE_CELLS: usize = WORDS / 3;
/// The frame of a wide leaf.
const WIDE: u128 = u128::MAX;

pub(crate) struct FramedRows {
    frame: PairCell,
    words: [AtomicU64; WORDS],
}

const _: () = assert!(size_of::<FramedRows>() == 1008);

/// The frame for keys from `first` to `last`.
///
/// Rounded down to whole first words where that will do: keys that come later below `first` then fit as well.
fn frame_of(first: u128, last: u128) -> u128 {
    let round = first & !u128::from(u64::MAX);
    if fits(round, last) {
        round
    } else if fits(first, last) {
        first
    } else {
        WIDE
    }
}

/// Whether a narrow leaf with this frame could hold the key.
#[inline]
fn fits(frame: u128, key: u128) -> bool {
    frame != WIDE && frame <= key && key - frame <= u128::from(u64::MAX)
}

/// A key's place beside the keys of a leaf.
enum Place {
    At(u64),
    Below,
    Above,
    Wide,
}

#[inline]
fn place_of(frame: u128, key: u128) -> Place {
    if frame == WIDE {
        return Place::Wide;
    }
    let (distance, below) = key.overflowing_sub(frame);
    match u64::try_from(distance) {
        Ok(distance) if !below => Place::At(distance),
        _ if below => Place::Below,
        _ => Place::Above,
    }
}

impl FramedRows {
    #[inline]
    fn narrow(&self) -> &[AtomicU64; NARROW_CELLS] {
        self.words.first_chunk().expect("fewer than all words")
    }

    #[inline]
    fn wide(&self) -> &[[AtomicU64; 2]; WIDE_CELLS] {
        self.words.as_chunks().0.first_chunk().expect("fewer than all words")
    }

    #[inline]
    fn value_cell(&self, position: usize) -> &AtomicU64 {
        &self.words[WORDS - 1 - position]
    }

    /// The frame in which these rows and `key` at `position` would lie.
    fn frame_with(&self, count: usize, position: usize, key: u128) -> u128 {
        let first = if position == 0 { key } else { self.key(0) };
        let last = if position >= count { key } else { self.key(count - 1) };
        frame_of(first, last)
    }

    fn cells_in(frame: u128) -> usize {
        if frame == WIDE { WIDE_CELLS } else { NARROW_CELLS }
    }

    /// Stores the keys anew, in another frame.
    #[cold]
    fn reframe(&self, count: usize, frame: u128) {
        let mut keys = [0; NARROW_CELLS];
        for (position, key) in keys[..count].iter_mut().enumerate() {
            *key = self.key(position);
        }
        self.frame.store(frame);
        self.begin_cells(frame);
        for (position, &key) in keys[..count].iter().enumerate() {
            self.store_key(frame, position, key);
        }
    }

    fn begin_cells(&self, frame: u128) {
        let words = if frame == WIDE { 2 * WIDE_CELLS } else { NARROW_CELLS };
        self.words[..words].iter().for_each(|word| word.store(u64::MAX, Relaxed));
    }

    #[inline]
    fn store_key(&self, frame: u128, position: usize, key: u128) {
        if frame == WIDE {
            store_wide(&self.wide()[position], key);
        } else {
            store_low(&self.narrow()[position], key - frame);
        }
    }
}

#[inline]
fn load_wide(cell: &[AtomicU64; 2]) -> u128 {
    u128::from(cell[0].load(Relaxed)) << 64 | u128::from(cell[1].load(Relaxed))
}

#[inline]
fn store_wide(cell: &[AtomicU64; 2], key: u128) {
    store_low(&cell[0], key >> 64);
    store_low(&cell[1], key);
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is meant")]
#[inline]
fn store_low(cell: &AtomicU64, number: u128) {
    cell.store(number as u64, Relaxed);
}

/// Moves every word but the last one place up.
#[inline]
fn shift_up(words: &[AtomicU64]) {
    for pair in words.windows(2).rev() {
        pair[1].store(pair[0].load(Relaxed), Relaxed);
    }
}

/// Moves every word but the first one place down.
#[inline]
fn shift_down(words: &[AtomicU64]) {
    for pair in words.windows(2) {
        pair[0].store(pair[1].load(Relaxed), Relaxed);
    }
}

impl LeafRows<Pair> for FramedRows {
    fn begin(&self) {
        self.frame.store(0);
        self.begin_cells(0);
    }

    #[inline]
    fn cells(&self) -> usize {
        Self::cells_in(self.frame.load())
    }

    fn cells_joined(&self, count: usize, next: &Self, next_count: usize) -> usize {
        match (count, next_count) {
            (0, _) => next.cells(),
            (_, 0) => self.cells(),
            _ => Self::cells_in(frame_of(self.key(0), next.key(next_count - 1))),
        }
    }

    #[inline]
    fn has_room(&self, count: usize, position: usize, key: u128) -> bool {
        count < WIDE_CELLS
            || count < NARROW_CELLS && (fits(self.frame.load(), key) || self.frame_with(count, position, key) != WIDE)
    }

    /// A key that is too far off, at an end, goes to a leaf of its own: the others stay narrow.
    fn cut_for(&self, count: usize, position: usize, key: u128) -> Option<usize> {
        let breaks = self.frame.load() != WIDE && self.frame_with(count, position, key) == WIDE;
        breaks.then_some(position)
    }

    #[inline]
    fn count_less(&self, probe: u128, (): &()) -> usize {
        match place_of(self.frame.load(), probe) {
            Place::At(distance) => partition_point(self.narrow(), |cell| cell.load(Relaxed) < distance),
            Place::Below => 0,
            Place::Above => NARROW_CELLS,
            Place::Wide => partition_point(self.wide(), |cell| load_wide(cell) < probe),
        }
    }

    #[inline]
    fn count_to(&self, probe: u128, (): &()) -> usize {
        match place_of(self.frame.load(), probe) {
            Place::At(distance) => partition_point(self.narrow(), |cell| cell.load(Relaxed) <= distance),
            Place::Below => 0,
            Place::Above => NARROW_CELLS,
            Place::Wide => partition_point(self.wide(), |cell| load_wide(cell) <= probe),
        }
    }

    #[inline]
    fn find(&self, count: usize, probe: u128, (): &()) -> Result<usize, usize> {
        let (position, found) = match place_of(self.frame.load(), probe) {
            Place::At(distance) => {
                let cells = self.narrow();
                let position = partition_point(cells, |cell| cell.load(Relaxed) < distance).min(count);
                (position, cells.get(position).is_some_and(|cell| cell.load(Relaxed) == distance))
            }
            Place::Below => (0, false),
            Place::Above => (count, false),
            Place::Wide => {
                let cells = self.wide();
                let position = partition_point(cells, |cell| load_wide(cell) < probe).min(count);
                (position, cells.get(position).is_some_and(|cell| load_wide(cell) == probe))
            }
        };
        if found && position < count { Ok(position) } else { Err(position) }
    }

    #[inline]
    fn key(&self, position: usize) -> u128 {
        let frame = self.frame.load();
        if frame == WIDE {
            self.wide().get(position).map_or(0, load_wide)
        } else {
            self.narrow().get(position).map_or(0, |cell| frame.wrapping_add(u128::from(cell.load(Relaxed))))
        }
    }

    #[inline]
    fn value(&self, position: usize) -> u64 {
        self.value_cell(position).load(Relaxed)
    }

    #[inline]
    fn copy(&self, range: Range<usize>, to: &mut [MaybeUninit<(u128, u64)>]) -> usize {
        let frame = self.frame.load();
        let values = self.words[WORDS - range.end..WORDS - range.start].iter().rev();
        let values = values.map(|value| value.load(Relaxed));
        if frame == WIDE {
            // Torn, there may be fewer cells than rows asked for.
            let keys = self.wide().get(range).unwrap_or_default();
            let rows = keys.iter().map(load_wide).zip(values);
            to.iter_mut().zip(rows).map(|(to, row)| _ = to.write(row)).count()
        } else {
            let keys = self.narrow().get(range).unwrap_or_default();
            let keys = keys.iter().map(|cell| frame.wrapping_add(u128::from(cell.load(Relaxed))));
            to.iter_mut().zip(keys.zip(values)).map(|(to, row)| _ = to.write(row)).count()
        }
    }

    fn set_value(&self, position: usize, value: u64) {
        self.value_cell(position).store(value, Relaxed);
    }

    #[inline]
    fn insert(&self, count: usize, position: usize, key: u128, value: u64) {
        let mut frame = self.frame.load();
        let as_it_is = if frame == WIDE { 0 < count && count < WIDE_CELLS } else { fits(frame, key) };
        if !as_it_is {
            frame = self.frame_with(count, position, key);
            self.reframe(count, frame);
        }
        if frame == WIDE {
            for to in (position + 1..=count).rev() {
                store_wide(&self.wide()[to], load_wide(&self.wide()[to - 1]));
            }
        } else {
            shift_up(&self.narrow()[position..=count]);
        }
        self.store_key(frame, position, key);
        shift_down(&self.words[WORDS - 1 - count..WORDS - position]);
        self.set_value(position, value);
    }

    fn remove(&self, count: usize, position: usize) {
        if self.frame.load() == WIDE {
            for to in position..count - 1 {
                store_wide(&self.wide()[to], load_wide(&self.wide()[to + 1]));
            }
            store_wide(&self.wide()[count - 1], u128::MAX);
        } else {
            shift_down(&self.narrow()[position..count]);
            self.narrow()[count - 1].store(u64::MAX, Relaxed);
        }
        shift_up(&self.words[WORDS - count..WORDS - position]);
    }

    fn move_tail(&self, count: usize, from: usize, to: &Self, to_count: usize) {
        if from < count {
            let last = self.key(count - 1);
            let first = if to_count == 0 { self.key(from) } else { to.key(0) };
            let frame = frame_of(first, last);
            if to.frame.load() != frame {
                to.reframe(to_count, frame);
            }
            for (step, position) in (from..count).enumerate() {
                to.store_key(frame, to_count + step, self.key(position));
                to.set_value(to_count + step, self.value(position));
            }
        }
        // What is left may lie closer together now. The cells behind it are cleared in passing.
        let frame = if from == 0 { 0 } else { frame_of(self.key(0), self.key(from - 1)) };
        self.reframe(from, frame);
    }
}
