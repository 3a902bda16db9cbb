//! Keys that fill an interval. They index an array, which is a perfect hash.

use std::ops::RangeInclusive;

use crate::partition::Partitioner;
use crate::widest::widest;
use crate::{JoinError, Run};

/// An interval that holds every build key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    pub min: u64,
    /// Keys from `min` to the greatest, less 1: an inclusive length, so that all 64-bit words fit.
    pub last: u64,
}

impl Interval {
    /// The limit for an array with a slot for every key of the interval: a slot has 8 bytes and a bit, where a chained
    /// tuple costs 24 to 28 bytes.
    pub const ARRAY_SPARSITY_MAX: u64 = 2;
    /// The limit for two bits for every key of the interval: 32 bytes a tuple, where an unchained table costs 24 to 32.
    pub const BITS_SPARSITY_MAX: u64 = 128;

    /// The interval of `keys`, if it is at most `sparsity_max` times as wide as there are keys.
    pub fn of(keys: &[u64], sparsity_max: u64, run: &Run) -> Result<Option<Self>, JoinError> {
        // Keys that lie far apart mostly show it at once, before a thread is started and before all of them are read.
        let some = keys.iter().take(HEAD).chain(keys.last());
        let (min, max) = some.fold((u64::MAX, 0), |(min, max), &key| (min.min(key), max.max(key)));
        if !keys.is_empty() && !(Self { min, last: max - min }).is_filled(keys.len(), sparsity_max) {
            return Ok(None);
        }
        let bounds = run.on_all(|worker| {
            run.cancel.check()?;
            Ok(widest!(|_| bounds(&keys[run.part(keys.len(), worker)])))
        })?;
        let bounds = bounds.into_iter().flatten().reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()));
        Ok(bounds.and_then(|bounds| {
            let last = bounds.end() - bounds.start();
            let interval = Self { min: *bounds.start(), last };
            interval.is_filled(keys.len(), sparsity_max).then_some(interval)
        }))
    }

    /// Whether the interval is at most `sparsity_max` times as wide as there are keys.
    pub fn is_filled(&self, keys: usize, sparsity_max: u64) -> bool {
        self.last / sparsity_max < keys as u64
    }

    /// The number of keys in the interval.
    pub fn slots(&self) -> usize {
        self.last as usize + 1
    }

    /// The key's offset in the interval; greater than `last` for a key outside of it.
    #[inline(always)]
    pub fn offset(&self, key: u64) -> u64 {
        key.wrapping_sub(self.min)
    }
}

/// The number of keys that are looked at first.
const HEAD: usize = 4096;

#[inline(always)]
fn bounds(keys: &[u64]) -> Option<RangeInclusive<u64>> {
    let first = *keys.first()?;
    let (mut min, mut max) = (first, first);
    for &key in keys {
        min = min.min(key);
        max = max.max(key);
    }
    Some(min..=max)
}

/// Partitions by the offset's high bits: partitions of an interval are intervals, and sorted input is written in order.
#[derive(Debug, Clone, Copy)]
pub struct ByOffset {
    interval: Interval,
    /// Bits above the widest offset.
    unused_bits: u32,
}

impl ByOffset {
    pub fn new(interval: Interval) -> Self {
        Self { interval, unused_bits: (interval.last | 1).leading_zeros() }
    }

    /// The most bits of a fan-out: one key a partition.
    pub fn bits_max(&self) -> u32 {
        64 - self.unused_bits
    }

    /// The greatest code, which all keys outside the interval have.
    pub fn code_max(&self) -> u64 {
        self.interval.last.saturating_add(1)
    }

    /// The place of the key with this code in partition `partition` of `1 << bits`; beyond [`ByOffset::slots`] for a
    /// key outside the interval.
    #[inline(always)]
    pub fn slot(&self, code: u64, partition: usize, bits: u32) -> u64 {
        code.wrapping_sub((partition as u64) << self.slot_bits(bits))
    }

    /// The keys of the interval in each partition of `1 << bits`; the last partitions end with the interval.
    pub fn slots(&self, partition: usize, bits: u32) -> u64 {
        let start = (partition as u64) << self.slot_bits(bits);
        let whole = 1 << self.slot_bits(bits);
        if start > self.interval.last { 0 } else { whole.min(self.interval.last - start + 1) }
    }

    fn slot_bits(&self, bits: u32) -> u32 {
        self.bits_max() - bits
    }
}

impl Partitioner for ByOffset {
    #[inline(always)]
    fn code(&self, key: u64) -> u64 {
        self.interval.offset(key).min(self.code_max())
    }

    #[inline(always)]
    fn partition(&self, code: u64, bits: u32) -> usize {
        // The greatest code may belong one partition past the last. It then goes to the first, where no key has its
        // code.
        (code >> self.slot_bits(bits)) as usize & ((1 << bits) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_found_where_there_is_one() {
        let run = Run::with_threads(2);
        let of = |keys: &[u64], sparsity_max| Interval::of(keys, sparsity_max, &run).unwrap();
        assert_eq!(of(&[], 2), None);
        assert_eq!(of(&[5], 2), Some(Interval { min: 5, last: 0 }));
        assert_eq!(of(&[u64::MAX, u64::MAX - 1, u64::MAX - 3], 2).unwrap().last, 3);
        assert_eq!(of(&[0, u64::MAX], 8), None);
        assert_eq!(of(&[10, 13], 2).unwrap().last, 3);
        assert_eq!(of(&[10, 14], 2), None);
        assert_eq!(of(&[10, 265], 128).unwrap().slots(), 256);
        assert_eq!(of(&[10, 266], 128), None);
    }

    #[test]
    fn every_key_of_an_interval_has_a_slot_of_its_own_and_others_have_none() {
        for (min, last) in [(0, 0), (7, 1), (u64::MAX - 40, 40), (1 << 60, 1000), (3, 1023), (3, 1024)] {
            let by = ByOffset::new(Interval { min, last });
            for bits in 0..by.bits_max() {
                let mut slots: Vec<Vec<bool>> =
                    (0..1 << bits).map(|p| vec![false; by.slots(p, bits) as usize]).collect();
                for code in (0..=last).map(|offset| by.code(min + offset)) {
                    let partition = by.partition(code, bits);
                    let slot = &mut slots[partition][by.slot(code, partition, bits) as usize];
                    assert!(!std::mem::replace(slot, true), "two keys in a slot");
                }
                assert!(slots.iter().flatten().all(|&taken| taken), "a slot without key");
                for key in [
                    min.wrapping_sub(1),
                    min.wrapping_add(last).wrapping_add(1),
                    min ^ (1 << 63),
                    min.wrapping_add(last * 2 + 5),
                ] {
                    let code = by.code(key);
                    let partition = by.partition(code, bits);
                    assert!(
                        by.slot(code, partition, bits) >= by.slots(partition, bits),
                        "{key} is outside {min} + {last}"
                    );
                }
            }
        }
    }
}
