//! As `perfect.rs`, for payloads that are row numbers. Slots have 4 bytes, and 0 is a free slot, so that a probe is one
//! access to an array half as big.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use super::super::dense::Interval;
use super::super::{Columns, Cursor, Matches, Pairs, Sum, Table};
use super::{MORSEL, sum_in_morsels, unique_pairs};
use crate::pages::Pages;
use crate::widest::widest;
use crate::{JoinError, Run};
use farhold_planted::Defect;

pub struct Narrow {
    interval: Interval,
    /// The payload plus 1; 0 is a free slot.
    slots: Pages<u32>,
}

/// Whether all payloads are below the greatest 32-bit number.
pub fn holds(payloads: &[u64], run: &Run) -> Result<bool, JoinError> {
    let fit = run.on_all(|worker| {
        let mut chunks = payloads[run.part(payloads.len(), worker)].chunks(MORSEL);
        Ok(chunks.all(|chunk| widest!(|_| all_bits(chunk)) < u64::from(u32::MAX)))
    })?;
    Ok(fit.into_iter().all(|fits| fits))
}

/// A number with as many bits as the greatest payload, and at least as great.
#[inline(always)]
fn all_bits(payloads: &[u64]) -> u64 {
    payloads.iter().fold(0, |bits, payload| bits | payload)
}

impl Narrow {
    /// The table; `None` if a key occurs twice. All payloads are below `u32::MAX`.
    pub fn build(build: Columns<'_>, interval: Interval, run: &Run) -> Result<Option<Self>, JoinError> {
        let mut slots = Pages::<u32>::zeroed(interval.slots(), run)?;
        let has_duplicate = AtomicBool::new(false);
        let words = atomic(&mut slots);
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
                let slot = &words[interval.offset(key) as usize];
                if slot.swap(payload as u32 + 1, Relaxed) != 0 && !farhold_planted::is(Defect::DuplicateOverwritten) {
                    has_duplicate.store(true, Relaxed);
                    return Ok(());
                }
            }
            Ok(())
        })?;
        Ok((!has_duplicate.into_inner()).then_some(Self { interval, slots }))
    }

    #[inline(always)]
    fn find(&self, key: u64) -> (bool, u64) {
        let offset = self.interval.offset(key);
        // SAFETY: there is a slot for every offset up to the last.
        let slot = unsafe { *self.slots.get_unchecked(offset.min(self.interval.last) as usize) };
        (offset <= self.interval.last && slot != 0, u64::from(slot).wrapping_sub(1))
    }

    fn sum_of(&self, probe: Columns<'_>, range: Range<usize>) -> Sum {
        let mut sum = Sum::default();
        for (&key, &payload) in probe.keys()[range.clone()].iter().zip(&probe.payloads()[range]) {
            let (is_found, build) = self.find(key);
            if is_found {
                sum.add(build, payload);
            }
        }
        sum
    }
}

pub fn atomic(words: &mut [u32]) -> &[AtomicU32] {
    // SAFETY: the same size and alignment; the slice is borrowed exclusively.
    unsafe { std::slice::from_raw_parts(words.as_mut_ptr().cast(), words.len()) }
}

impl Table for Narrow {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        sum_in_morsels(probe.len(), run, |range| self.sum_of(probe, range))
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        _: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        unique_pairs(|key| self.find(key), probe, cursor, pairs, run)
    }

    fn scheme(&self) -> &'static str {
        "perfect"
    }

    fn memory_bytes(&self) -> u64 {
        self.slots.bytes()
    }
}
