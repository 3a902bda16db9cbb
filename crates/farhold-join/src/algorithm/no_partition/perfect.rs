//! An array of payloads indexed by the key's offset in the interval of all keys: one access a probe.

use std::ops::Range;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::super::dense::Interval;
use super::super::{Columns, Cursor, Matches, Pairs, Sum, Table};
use super::{MORSEL, sum_in_morsels, unique_pairs};
use crate::pages::Pages;
use crate::{JoinError, Run};

pub struct Perfect {
    interval: Interval,
    payloads: Pages<u64>,
    /// One bit a slot.
    filled: Pages<u64>,
    /// No slot is free, so that the bits need not be read.
    is_full: bool,
}

impl Perfect {
    /// The table; `None` if a key occurs twice.
    pub fn build(build: Columns<'_>, interval: Interval, run: &Run) -> Result<Option<Self>, JoinError> {
        let slots = interval.last as usize + 1;
        let mut payloads = Pages::<u64>::stale(slots, &run.pages)?;
        let mut filled = Pages::<u64>::new(slots.div_ceil(64))?;
        let has_duplicate = AtomicBool::new(false);
        let (slot_words, filled_words) = (atomic(&mut payloads), atomic(&mut filled));
        run.on_all(|worker| {
            let part = run.part(build.len(), worker);
            for (index, (&key, &payload)) in build.keys()[part.clone()].iter().zip(&build.payloads()[part]).enumerate()
            {
                if index.is_multiple_of(MORSEL) {
                    run.cancel.check()?;
                    if has_duplicate.load(Relaxed) {
                        return Ok(());
                    }
                }
                let offset = interval.offset(key) as usize;
                let bit = 1 << (offset % 64);
                if filled_words[offset / 64].fetch_or(bit, Relaxed) & bit != 0 {
                    has_duplicate.store(true, Relaxed);
                    return Ok(());
                }
                slot_words[offset].store(payload, Relaxed);
            }
            Ok(())
        })?;
        let is_full = build.len() == slots;
        Ok((!has_duplicate.into_inner()).then_some(Self { interval, payloads, filled, is_full }))
    }

    #[inline(always)]
    fn find<const FULL: bool>(&self, key: u64) -> Option<u64> {
        let offset = self.interval.offset(key);
        if offset > self.interval.last {
            return None;
        }
        let offset = offset as usize;
        (FULL || self.filled[offset / 64] >> (offset % 64) & 1 == 1).then(|| self.payloads[offset])
    }

    /// The loads of one tuple do not depend on those of another, so that the processor has dozens in flight without
    /// prefetches.
    fn sum_of<const FULL: bool>(&self, probe: Columns<'_>, range: Range<usize>) -> Sum {
        let mut sum = Sum::default();
        for (&key, &payload) in probe.keys()[range.clone()].iter().zip(&probe.payloads()[range]) {
            if let Some(build) = self.find::<FULL>(key) {
                sum.add(build, payload);
            }
        }
        sum
    }
}

pub fn atomic(words: &mut [u64]) -> &[AtomicU64] {
    // SAFETY: the size is the same, and so is the alignment, because these are 64-byte aligned arrays of words;
    // borrowed exclusively.
    unsafe { slice::from_raw_parts(words.as_mut_ptr().cast(), words.len()) }
}

impl Table for Perfect {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        sum_in_morsels(probe.len(), run, |range| {
            if self.is_full { self.sum_of::<true>(probe, range) } else { self.sum_of::<false>(probe, range) }
        })
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        _: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        unique_pairs(|key| self.find::<false>(key).map_or((false, 0), |build| (true, build)), probe, cursor, pairs, run)
    }

    fn scheme(&self) -> &'static str {
        "perfect"
    }

    fn memory_bytes(&self) -> u64 {
        self.payloads.bytes() + self.filled.bytes()
    }
}
