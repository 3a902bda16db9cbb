//! The unchained hash table: tuples in the order of their hashes, and a directory into them.
//!
//! ```text
//!   hash ──top bits──▶ directory[slot]     = start of the slot's tuples << 16 | filter of 16 bits
//!                      directory[slot + 1] = ... start of the next slot's, so the end of this one's
//!                              │
//!   tuples  ... ┌──────────────▼──────────┐ ...      contiguous, however many share a slot
//! ```
//!
//! A probe whose two bits are not both in the filter ends after one access. Equal keys lie side by side, so building is
//! a partitioning and a counting sort that fits the cache. It is never quadratic, whatever the duplicates.
//! Source: Birler, Schmidt, Fent, Neumann: "Simple, Efficient, and Robust Hash Tables for Join Processing" (DaMoN
//! 2024). The paper sets 4 of 16 bits by a table of patterns. Two bits taken from the hash need no look-up and cost 1.6
//! % instead of 0.4 % of false answers at one tuple a slot.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::super::{Columns, Cursor, Matches, Pairs, Sum, Table};
use super::sum_in_morsels;
use crate::hash::{hash, top};
use crate::pages::{Pages, Shared};
use crate::partition::{self, ByHash, WideTuple};
use crate::{JoinError, Run};
use farhold_planted::Defect;

/// Tuples of a partition that is sorted at once. With its copy and its part of the directory it takes 640 KiB, within
/// the second-level cache.
const SORTED_ROWS_LOG: u32 = 14;
const FILTER_BITS: u32 = 16;
/// Probe tuples whose accesses are in flight together.
const GROUP: usize = 32;

/// What a probe key is compared with.
#[derive(Clone, Copy, Default)]
struct Candidates {
    hash: u64,
    start: usize,
    end: usize,
}

pub struct Unchained {
    /// One slot for each tuple, rounded up to a power of two, and one at the end.
    directory: Pages<u64>,
    directory_bits: u32,
    tuples: Pages<WideTuple>,
    seed: u64,
}

fn directory_bits(rows: usize) -> u32 {
    rows.next_power_of_two().trailing_zeros()
}

fn partition_bits(rows: usize) -> u32 {
    directory_bits(rows).saturating_sub(SORTED_ROWS_LOG)
}

/// Bytes of the partitioned tuples, the copies of those being sorted (all of them, if they share one partition), and
/// the directory.
pub fn memory_bytes(rows: usize, threads: usize) -> u64 {
    let directory = 8 * (rows.next_power_of_two() as u64 + 1) + if rows >= 1 << 17 { 4 << 20 } else { 0 };
    partition::partition_bytes(rows, partition_bits(rows), threads) + 16 * rows as u64 + directory
}

/// The filter bits of a hash, from bits below those that choose the slot.
#[inline(always)]
fn filter_of(hash: u64) -> u64 {
    1 << ((hash >> 24) % 16) | 1 << ((hash >> 28) % 16)
}

impl Unchained {
    pub fn build(build: Columns<'_>, run: &Run) -> Result<Self, JoinError> {
        let (rows, seed) = (build.len(), run.seed);
        let (directory_bits, bits) = (directory_bits(rows), partition_bits(rows));
        let (mut tuples, starts) = partition::partition::<WideTuple>(build, ByHash(seed), bits, run)?
            .expect("wide tuples hold any payload")
            .into_parts();
        let mut directory = Pages::<u64>::stale((1 << directory_bits) + 1, &run.pages)?;
        let slots = 1_usize << (directory_bits - bits);
        let (next, sorted, filled) = (AtomicUsize::new(0), tuples.shared(), directory.shared());
        run.on_all(|_| {
            let mut copy = Vec::new();
            loop {
                let partition = next.fetch_add(1, Relaxed);
                if partition >= 1 << bits {
                    return Ok(());
                }
                run.cancel.check()?;
                // SAFETY: one worker takes a partition, and partitions share neither tuples nor slots.
                unsafe {
                    sort(
                        sorted,
                        starts[partition]..starts[partition + 1],
                        filled,
                        partition * slots..(partition + 1) * slots,
                        &mut copy,
                        |hash| (top(hash, directory_bits) - partition * slots, filter_of(hash)),
                    );
                }
            }
        })?;
        directory[1 << directory_bits] = (rows as u64) << FILTER_BITS;
        Ok(Self { directory, directory_bits, tuples, seed })
    }

    /// The tuples that may have this hash.
    #[inline(always)]
    fn candidates(&self, hash: u64) -> Range<usize> {
        let slot = top(hash, self.directory_bits);
        // SAFETY: a slot is below 2^directory_bits, and the directory has one word more.
        let (word, next) = unsafe { (*self.directory.get_unchecked(slot), *self.directory.get_unchecked(slot + 1)) };
        let start = (word >> FILTER_BITS) as usize;
        if !word & filter_of(hash) == 0 { start..(next >> FILTER_BITS) as usize } else { start..start }
    }

    /// Finds the candidates of a group of keys and prefetches them: a group's accesses to memory are in flight at once.
    #[inline(always)]
    fn find_group(&self, keys: &[u64], candidates: &mut [Candidates; GROUP]) {
        for (found, &key) in candidates.iter_mut().zip(keys) {
            found.hash = hash(key, self.seed);
            prefetch(&self.directory, top(found.hash, self.directory_bits));
        }
        for found in &mut candidates[..keys.len()] {
            let range = self.candidates(found.hash);
            (found.start, found.end) = (range.start, range.end);
            prefetch(&self.tuples, range.start);
        }
    }

    fn sum_of(&self, probe: Columns<'_>, range: Range<usize>) -> Sum {
        let mut sum = Sum::default();
        let mut candidates = [Candidates::default(); GROUP];
        let (keys, payloads) = (&probe.keys()[range.clone()], &probe.payloads()[range]);
        for (keys, payloads) in keys.chunks(GROUP).zip(payloads.chunks(GROUP)) {
            self.find_group(keys, &mut candidates);
            for (&payload, &Candidates { hash, start, end }) in payloads.iter().zip(&candidates) {
                for tuple in &self.tuples[start..end] {
                    if tuple.code == hash {
                        sum.add(tuple.payload, payload);
                    }
                }
            }
        }
        sum
    }
}

/// Sorts `tuples[rows]` by slot and fills the slots `directory[slots]`. `place` returns a key's slot (counted from the
/// first of these) and filter.
///
/// # Safety
/// Both ranges lie in their arrays, no other thread touches them, and `place` returns slots of the range.
unsafe fn sort(
    tuples: Shared<'_, WideTuple>,
    rows: Range<usize>,
    directory: Shared<'_, u64>,
    slots: Range<usize>,
    copy: &mut Vec<WideTuple>,
    place: impl Fn(u64) -> (usize, u64),
) {
    // SAFETY: as the caller promises.
    let (tuples, slots) = unsafe { (tuples.slice(rows.clone()), directory.slice(slots)) };
    slots.fill(0);
    for tuple in &*tuples {
        let (slot, filter) = place(tuple.code);
        slots[slot] = (slots[slot] + (1 << FILTER_BITS)) | filter;
    }
    let mut end = rows.start as u64;
    for word in &mut *slots {
        end += *word >> FILTER_BITS;
        *word = end << FILTER_BITS | *word & ((1 << FILTER_BITS) - 1);
    }
    copy.clear();
    copy.extend_from_slice(tuples);
    // A slot's word is counted down from its end to its start.
    for tuple in &*copy {
        let word = &mut slots[place(tuple.code).0];
        *word -= 1 << FILTER_BITS;
        tuples[(*word >> FILTER_BITS) as usize - rows.start] = *tuple;
    }
}

#[inline(always)]
fn prefetch<T>(array: &[T], index: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch of any address is harmless; SSE is part of x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(array.as_ptr().wrapping_add(index).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (array, index);
}

impl Table for Unchained {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        sum_in_morsels(probe.len(), run, |range| self.sum_of(probe, range))
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        let (keys, payloads) = (probe.keys(), probe.payloads());
        let mut candidates = [Candidates::default(); GROUP];
        while cursor.row < keys.len() {
            run.cancel.check()?;
            let group = cursor.row..(cursor.row + GROUP).min(keys.len());
            self.find_group(&keys[group.clone()], &mut candidates);
            for (row, &Candidates { hash, start, end }) in group.zip(&candidates) {
                for at in start + cursor.position..end {
                    let tuple = self.tuples[at];
                    if tuple.code == hash {
                        if pairs.is_full() {
                            cursor.row = row;
                            cursor.position = at - start + usize::from(farhold_planted::is(Defect::SkippedCandidate));
                            return Ok(());
                        }
                        pairs.push(tuple.payload, payloads[row]);
                        if matches == Matches::First {
                            break;
                        }
                    }
                }
                cursor.row = row + 1;
                cursor.position = 0;
            }
        }
        cursor.is_done = true;
        Ok(())
    }

    fn scheme(&self) -> &'static str {
        "unchained"
    }

    fn memory_bytes(&self) -> u64 {
        self.directory.bytes() + self.tuples.bytes()
    }
}
