//! A bit for each row.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits `0..len`, all false at first.
#[derive(Debug, Clone, Default)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    pub fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len }
    }

    #[inline(always)]
    pub fn get(&self, at: usize) -> bool {
        self.words[at / 64] >> (at % 64) & 1 == 1
    }

    #[inline(always)]
    pub fn set(&mut self, at: usize) {
        self.words[at / 64] |= 1 << (at % 64);
    }

    /// The bits as bytes, eight each, lowest first.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).take(self.len.div_ceil(8)).collect()
    }

    /// `len` bits from bytes that `to_bytes` has made.
    pub fn from_bytes(bytes: &[u8], len: usize) -> Self {
        let mut bits = Self::new(len);
        for (at, &byte) in bytes.iter().enumerate() {
            bits.words[at / 8] |= u64::from(byte) << (8 * (at % 8));
        }
        bits
    }

    /// The bytes of bits for `len` rows.
    pub fn bytes(len: usize) -> u64 {
        8 * len.div_ceil(64) as u64
    }
}

/// Bits that several threads set. A reader must know by other means that the writers are done.
#[derive(Debug)]
pub struct SharedBits(Vec<AtomicU64>);

impl SharedBits {
    pub fn new(len: usize) -> Self {
        Self((0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline(always)]
    pub fn get(&self, at: usize) -> bool {
        self.0[at / 64].load(Relaxed) >> (at % 64) & 1 == 1
    }

    /// Reads first: most bits are set many times, and a cache line that is only read stays in every cache.
    #[inline(always)]
    pub fn set(&self, at: usize) {
        if !self.get(at) {
            self.0[at / 64].fetch_or(1 << (at % 64), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_survive_bytes() {
        for len in [0, 1, 7, 8, 64, 65, 200] {
            let mut bits = Bits::new(len);
            (0..len).step_by(3).for_each(|at| bits.set(at));
            let back = Bits::from_bytes(&bits.to_bytes(), len);
            assert!((0..len).all(|at| back.get(at) == (at % 3 == 0)), "{len}");
            assert_eq!(bits.to_bytes().len(), len.div_ceil(8));
        }
    }
}
