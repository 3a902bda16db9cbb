//! A Bloom filter over key codes: two to four bits of one 64-bit word a key, one access a question.
//!
//! It exists for others only once every build row is in it: one that is asked earlier would lose rows.

use crate::JoinError;
use crate::hash::{hash, top};
use crate::pages::Pages;

/// Bits of a filter's hash are independent of those that choose partitions and slots.
const SEED: u64 = 0x5bd1_e995_97f4_a7c1;

/// A filter being filled.
#[derive(Debug)]
pub struct BloomBuilder {
    words: Pages<u64>,
    bits: u32,
}

/// A filter that knows every build key.
#[derive(Debug)]
pub struct BloomFilter(BloomBuilder);

#[inline(always)]
fn pattern(hash: u64) -> u64 {
    1 << (hash >> 24 & 63) | 1 << (hash >> 30 & 63) | 1 << (hash >> 36 & 63)
}

impl BloomBuilder {
    /// A filter of at most `bytes` bytes (at least 8).
    pub fn new(bytes: u64) -> Result<Self, JoinError> {
        let bits = (bytes / 8).max(1).ilog2();
        Ok(Self { words: Pages::new(1 << bits)?, bits })
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.words.bytes()
    }

    /// Adds a key.
    #[inline(always)]
    pub fn insert(&mut self, code: u64) {
        let hash = hash(code, SEED);
        self.words[top(hash.wrapping_mul(SEED), self.bits)] |= pattern(hash);
    }

    /// The filter, now that every key is in it.
    pub fn publish(self) -> BloomFilter {
        BloomFilter(self)
    }
}

impl BloomFilter {
    /// False only if no build row has this key.
    #[inline(always)]
    pub fn may_contain(&self, code: u64) -> bool {
        let (hash, filter) = (hash(code, SEED), &self.0);
        !filter.words[top(hash.wrapping_mul(SEED), filter.bits)] & pattern(hash) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_lost_and_few_are_invented() {
        for spread in [1, 1 << 20, 1 << 48] {
            let mut builder = BloomBuilder::new(4096).unwrap();
            (0..2000).for_each(|key: u64| builder.insert(key.wrapping_mul(spread)));
            assert!(builder.bytes() <= 4096);
            let filter = builder.publish();
            assert!((0..2000_u64).all(|key| filter.may_contain(key.wrapping_mul(spread))));
            let invented = (2000..12_000_u64).filter(|key| filter.may_contain(key.wrapping_mul(spread))).count();
            assert!(invented < 1500, "{invented} of 10000 at 16 bits a key");
        }
    }
}
