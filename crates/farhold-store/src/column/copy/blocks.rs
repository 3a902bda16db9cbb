//! Lists that never move what they contain: they grow by blocks. A `Vec` would copy everything each time it doubles.

use std::ops::{Index, IndexMut, Range};

/// Items of a block.
const BLOCK_ITEMS: usize = 1 << 14;
/// Bytes of a block, unless a single row is longer.
const BLOCK_BYTES: usize = 1 << 20;

/// Items with consecutive positions.
#[derive(Debug)]
pub(super) struct Items<T>(Vec<Vec<T>>);

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Items<T> {
    pub fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * BLOCK_ITEMS + last.len())
    }

    /// Bytes that they take, including spare room.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|block| block.capacity() * size_of::<T>()).sum()
    }

    pub fn push(&mut self, item: T) {
        if self.0.last().is_none_or(|last| last.len() == BLOCK_ITEMS) {
            // The first block grows: most lists are short.
            self.0.push(if self.0.is_empty() { Vec::new() } else { Vec::with_capacity(BLOCK_ITEMS) });
        }
        self.0.last_mut().expect("there is one now").push(item);
    }

    /// Those at the positions of a range, which must exist.
    pub fn range(&self, range: Range<usize>) -> impl Iterator<Item = &T> {
        self.0[range.start / BLOCK_ITEMS..].iter().flatten().skip(range.start % BLOCK_ITEMS).take(range.len())
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.iter().flatten()
    }
}

impl<T> Index<usize> for Items<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at / BLOCK_ITEMS][at % BLOCK_ITEMS]
    }
}

impl<T> IndexMut<usize> for Items<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.0[at / BLOCK_ITEMS][at % BLOCK_ITEMS]
    }
}

/// Rows, each within one block.
#[derive(Debug, Default)]
pub(super) struct RowBytes(Vec<Vec<u8>>);

/// Where a row begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowPlace {
    block: u32,
    at: u32,
}

impl RowBytes {
    /// Bytes that they take, including spare room.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(Vec::capacity).sum()
    }

    /// Appends the parts of a row, one behind the other.
    pub fn append(&mut self, parts: [&[u8]; 2]) -> RowPlace {
        let bytes = parts[0].len() + parts[1].len();
        if self.0.last().is_none_or(|last| last.len() + bytes > BLOCK_BYTES) {
            let room = if self.0.is_empty() { bytes } else { bytes.max(BLOCK_BYTES) };
            self.0.push(Vec::with_capacity(room));
        }
        let block = self.0.last_mut().expect("there is one now");
        let at = block.len() as u32;
        for part in parts {
            block.extend_from_slice(part);
        }
        RowPlace { block: (self.0.len() - 1) as u32, at }
    }

    /// The `bytes` bytes of a row.
    pub fn get(&self, place: RowPlace, bytes: usize) -> &[u8] {
        &self.0[place.block as usize][place.at as usize..][..bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_have_consecutive_positions() {
        let mut items = Items::default();
        assert_eq!((items.len(), items.range(0..0).count()), (0, 0));
        let count = 2 * BLOCK_ITEMS;
        for item in 0..count {
            assert_eq!(items.len(), item);
            items.push(item);
        }
        items[BLOCK_ITEMS] = 7;
        let is_same = |range: Range<usize>| {
            let wanted = range.clone().map(|item| if item == BLOCK_ITEMS { 7 } else { item });
            items.range(range).copied().eq(wanted)
        };
        assert!(
            is_same(0..count) && is_same(BLOCK_ITEMS - 1..BLOCK_ITEMS + 1) && is_same(5..9) && is_same(count..count)
        );
        assert_eq!((items.iter().next_back(), items[BLOCK_ITEMS - 1]), (Some(&(count - 1)), BLOCK_ITEMS - 1));
        assert_eq!(items.bytes(), count * size_of::<usize>());
    }

    #[test]
    fn rows_are_whole() {
        let mut rows = RowBytes::default();
        let lengths = [0, 1, 700_000, 400_000, 3 << 20, 5, BLOCK_BYTES - 5, 1];
        let places: Vec<RowPlace> = lengths
            .iter()
            .enumerate()
            .map(|(number, &length)| {
                rows.append([&vec![number as u8; length / 3], &vec![!number as u8; length - length / 3]])
            })
            .collect();
        for (number, (&length, place)) in lengths.iter().zip(places).enumerate() {
            let (first, second) = rows.get(place, length).split_at(length / 3);
            assert!(first.iter().all(|byte| *byte == number as u8) && second.iter().all(|byte| *byte == !number as u8));
        }
    }
}
