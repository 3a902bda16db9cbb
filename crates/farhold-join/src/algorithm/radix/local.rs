//! The table of one build partition, in a worker's cache: an array of payloads, or chains through the tuples.

use super::super::{Matches, Pairs, Sum};
use super::{ByOffset, MORSEL, Scheme, hash, top};
use crate::partition::Tuple;
use crate::planted::{self, Defect};
use crate::{JoinError, Run};

/// A worker's table; its room is used again for the next partition.
#[derive(Default)]
pub struct Local {
    kind: Kind,
    payloads: Vec<u64>,
    filled: Vec<u64>,
    heads: Vec<u32>,
    /// `links[i]` is 1 + the next tuple of tuple `i`'s chain, or 0.
    links: Vec<u32>,
}

/// How the partition's keys are found.
#[derive(Clone, Copy, Default)]
enum Kind {
    #[default]
    Empty,
    Perfect {
        by: ByOffset,
        partition: usize,
        bits: u32,
        slots: u64,
        is_full: bool,
    },
    Chained {
        seed: u64,
        /// Bits of the hash that all keys of the partition may have in common.
        skip_bits: u32,
        bucket_bits: u32,
    },
}

/// Two to four buckets a tuple: shorter chains mispredict less, and 16 K tuples still fit the cache.
fn bucket_bits(rows: usize) -> u32 {
    rows.next_power_of_two().trailing_zeros() + 1
}

/// What a table of so many tuples allocates.
pub fn memory_bytes(rows: usize) -> u64 {
    // Chains, and the array that was tried before; vectors that grew.
    2 * (4 * rows as u64 + 8 * rows.next_power_of_two() as u64 + 17 * rows as u64) + (9 << super::PERFECT_SLOTS_LOG)
}

impl Local {
    /// Makes this the table of `tuples`, which are partition `partition` of `1 << bits`.
    #[inline(always)]
    pub fn build(&mut self, tuples: &[Tuple], scheme: Scheme, partition: usize, bits: u32) {
        match scheme {
            Scheme::Perfect { by, seed } => {
                if !self.build_perfect(tuples, by, partition, bits) {
                    self.build_chained(tuples, seed, 0);
                }
            }
            Scheme::Chained { seed } => self.build_chained(tuples, seed, bits),
        }
    }

    /// False if a key occurs twice.
    #[inline(always)]
    fn build_perfect(&mut self, tuples: &[Tuple], by: ByOffset, partition: usize, bits: u32) -> bool {
        let slots = by.slots(partition, bits);
        if (tuples.len() as u64) > slots {
            return false;
        }
        self.filled.clear();
        self.filled.resize(slots.div_ceil(64) as usize, 0);
        // Slots that are not filled are never read as matches: no need to clear them.
        if self.payloads.len() < slots as usize {
            self.payloads.resize(slots as usize, 0);
        }
        let (payloads, filled) = (&mut self.payloads[..slots as usize], &mut self.filled[..]);
        for tuple in tuples {
            let slot = by.slot(tuple.key, partition, bits) as usize;
            let (word, bit) = (&mut filled[slot / 64], 1 << (slot % 64));
            if *word & bit != 0 && !planted::is(Defect::DuplicateOverwritten) {
                return false;
            }
            *word |= bit;
            payloads[slot] = tuple.payload;
        }
        self.kind = Kind::Perfect { by, partition, bits, slots, is_full: tuples.len() as u64 == slots };
        true
    }

    #[inline(always)]
    fn build_chained(&mut self, tuples: &[Tuple], seed: u64, skip_bits: u32) {
        let bucket_bits = bucket_bits(tuples.len());
        self.heads.clear();
        self.heads.resize(1 << bucket_bits, 0);
        self.links.clear();
        self.links.reserve(tuples.len());
        for (index, tuple) in tuples.iter().enumerate() {
            let head = &mut self.heads[top(hash(tuple.key, seed) << skip_bits, bucket_bits)];
            self.links.push(*head);
            *head = index as u32 + 1;
        }
        self.kind = Kind::Chained { seed, skip_bits, bucket_bits };
    }

    /// The aggregate over the pairs of the partition's `build` tuples with `probe`.
    #[inline(always)]
    pub fn sum(&self, build: &[Tuple], probe: &[Tuple]) -> Sum {
        let mut sum = Sum::default();
        match self.kind {
            Kind::Empty => {}
            Kind::Perfect { by, partition, bits, slots, is_full } => {
                let (payloads, filled) = (&self.payloads[..slots as usize], &self.filled[..]);
                for tuple in probe {
                    let slot = by.slot(tuple.key, partition, bits) as usize;
                    if slot < payloads.len() && (is_full || filled[slot / 64] >> (slot % 64) & 1 == 1) {
                        sum.add(payloads[slot], tuple.payload);
                    }
                }
            }
            Kind::Chained { seed, skip_bits, bucket_bits } => {
                for tuple in probe {
                    let mut link = self.heads[top(hash(tuple.key, seed) << skip_bits, bucket_bits)];
                    while link > 0 {
                        let candidate = build[link as usize - 1];
                        if candidate.key == tuple.key {
                            sum.add(candidate.payload, tuple.payload);
                        }
                        link = self.links[link as usize - 1];
                    }
                }
            }
        }
        sum
    }

    /// Enumerates pairs from `place` on (probe tuple, link); true when all have been.
    pub fn pairs(
        &self,
        build: &[Tuple],
        probe: &[Tuple],
        matches: Matches,
        (row, position): (&mut usize, &mut usize),
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<bool, JoinError> {
        while *row < probe.len() {
            if row.is_multiple_of(MORSEL) {
                run.cancel.check()?;
            }
            if pairs.is_full() {
                return Ok(false);
            }
            let tuple = probe[*row];
            match self.kind {
                Kind::Empty => {}
                Kind::Perfect { by, partition, bits, slots, .. } => {
                    let slot = by.slot(tuple.key, partition, bits) as usize;
                    if slot < slots as usize && self.filled[slot / 64] >> (slot % 64) & 1 == 1 {
                        pairs.push(self.payloads[slot], tuple.payload);
                    }
                }
                Kind::Chained { seed, skip_bits, bucket_bits } => {
                    let mut link = match *position {
                        0 => self.heads[top(hash(tuple.key, seed) << skip_bits, bucket_bits)],
                        link => link as u32,
                    };
                    while link > 0 {
                        let candidate = build[link as usize - 1];
                        if candidate.key == tuple.key {
                            if pairs.is_full() {
                                *position = link as usize;
                                return Ok(false);
                            }
                            pairs.push(candidate.payload, tuple.payload);
                            if matches == Matches::First {
                                break;
                            }
                        }
                        link = self.links[link as usize - 1];
                    }
                }
            }
            *row += 1;
            *position = 0;
        }
        Ok(true)
    }
}
