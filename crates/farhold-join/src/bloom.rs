//! A Bloom filter over key codes: each key sets up to three bits of one 64-bit word, and each look-up is one access.
//!
//! The filter can be read only when every build row is in it: an incomplete filter would lose rows. Each partition of
//! the keys has words of its own, so that several threads can fill it, each for its own partitions.

use crate::JoinError;
use crate::hash::{hash, top};
use crate::pages::Pages;

/// Seed of a filter's hash, so that its bits are independent of those that choose partitions and slots.
const SEED: u64 = 0x5bd1_e995_97f4_a7c1;

/// A filter being filled.
#[derive(Debug)]
pub struct BloomBuilder {
    words: Pages<u64>,
    /// Log2 of the words of a partition.
    bits: u32,
}

/// The words of one partition.
pub struct BloomPart<'a> {
    words: &'a mut [u64],
    bits: u32,
}

/// A filter that contains every build key.
#[derive(Debug)]
pub struct BloomFilter(BloomBuilder);

#[inline(always)]
fn pattern(hash: u64) -> u64 {
    1 << (hash >> 24 & 63) | 1 << (hash >> 30 & 63) | 1 << (hash >> 36 & 63)
}

#[inline(always)]
fn place(hash: u64, bits: u32) -> usize {
    top(hash.wrapping_mul(SEED), bits)
}

impl BloomBuilder {
    /// A filter of at most `bytes` bytes (at least 8 a partition) for the keys of `1 << part_bits` partitions.
    pub fn new(bytes: u64, part_bits: u32) -> Result<Self, JoinError> {
        let bits = ((bytes / 8) >> part_bits).max(1).ilog2();
        Ok(Self { words: Pages::new(1 << (bits + part_bits))?, bits })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Every partition's words, in order.
    pub fn parts(&mut self) -> impl Iterator<Item = BloomPart<'_>> {
        let bits = self.bits;
        self.words.chunks_exact_mut(1 << bits).map(move |words| BloomPart { words, bits })
    }

    /// Publishes the filter. Every key must have been inserted.
    pub fn publish(self) -> BloomFilter {
        BloomFilter(self)
    }
}

impl BloomPart<'_> {
    /// Adds a key of the partition.
    #[inline(always)]
    pub fn insert(&mut self, code: u64) {
        let hash = hash(code, SEED);
        self.words[place(hash, self.bits)] |= pattern(hash);
    }
}

impl BloomFilter {
    /// False only if no build row of this partition has this key.
    #[inline(always)]
    pub fn may_contain(&self, part: usize, code: u64) -> bool {
        let (hash, filter) = (hash(code, SEED), &self.0);
        !filter.words[part << filter.bits | place(hash, filter.bits)] & pattern(hash) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_lost_and_few_are_invented() {
        for (spread, part_bits) in [(1, 0), (1 << 20, 2), (1 << 48, 3)] {
            let key = |number: u64| number.wrapping_mul(spread);
            let part = |number: u64| (number % (1 << part_bits)) as usize;
            let mut builder = BloomBuilder::new(4096, part_bits).unwrap();
            for (number, mut words) in builder.parts().enumerate() {
                (0..2000).filter(|&n| part(n) == number).for_each(|n| words.insert(key(n)));
            }
            assert!(builder.bytes() <= 4096);
            let filter = builder.publish();
            assert!((0..2000_u64).all(|n| filter.may_contain(part(n), key(n))));
            let invented = (2000..12_000_u64).filter(|&n| filter.may_contain(part(n), key(n))).count();
            assert!(invented < 1500, "{invented} of 10000 at 16 bits a key");
        }
    }
}
