//! Keys in an interval with holes, or that occur more than once: a bit for each key of the interval, and payloads in
//! the order of keys.
//!
//! ```text
//!   key ──offset──▶ directory[offset / 64] = 64 bits: is it a key?  │  keys before these 64
//!                                                                   └─ + bits below its own = rank
//!   unique keys:   payloads[rank]
//!   others:        payloads[starts[rank]..starts[rank + 1]]
//! ```
//!
//! The directory takes a quarter of a byte for each key of the interval. So it stays in a cache where an array of
//! payloads or a hash table does not, and a probe without a match ends there. Tables and foreign keys often come in the
//! order of a key; then neighbouring probes find the same line.
//!
//! It is built by counting, each step by all workers at once. Neighbouring rows of one key are counted together:
//! otherwise all workers would contend, at every row, for the line of a key that many rows have.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::super::dense::Interval;
use super::super::{Columns, Cursor, Matches, Pairs, Sum, Table};
use super::narrow::atomic as atomic_u32;
use super::perfect::atomic as atomic_u64;
use super::{MORSEL, sum_in_morsels, unique_pairs};
use crate::pages::{Pages, Plain, Shared};
use crate::widest::widest;
use crate::{JoinError, Run};
use farhold_planted::Defect;

/// A payload in the width in which it is stored.
pub trait Word: Plain {
    fn of(payload: u64) -> Self;
    fn payload(self) -> u64;
}

impl Word for u32 {
    #[inline(always)]
    fn of(payload: u64) -> Self {
        payload as Self
    }

    #[inline(always)]
    fn payload(self) -> u64 {
        self.into()
    }
}

impl Word for u64 {
    #[inline(always)]
    fn of(payload: u64) -> Self {
        payload
    }

    #[inline(always)]
    fn payload(self) -> u64 {
        self
    }
}

pub struct Ranked<P: Word> {
    directory: Directory,
    /// Starts, one for each key and one at the end; none if keys are unique.
    starts: Option<Pages<u32>>,
    payloads: Pages<P>,
}

/// Which keys are present, and how many precede each.
struct Directory {
    interval: Interval,
    /// Bits at even places, ranks at odd ones.
    words: Pages<u64>,
}

/// An upper bound of the bytes of a table of this many tuples, with payloads of 8 bytes.
pub fn memory_bytes(rows: usize) -> u64 {
    let rows = rows as u64;
    let directory = 16 * (Interval::BITS_SPARSITY_MAX * rows).div_ceil(64);
    directory + (8 + 4) * rows + 4 + if directory >= 2 << 20 { 6 << 20 } else { 0 }
}

impl<P: Word> Ranked<P> {
    /// The table.
    pub fn build(build: Columns<'_>, interval: Interval, run: &Run) -> Result<Self, JoinError> {
        let (directory, keys) = Directory::of(build.keys(), interval, run)?;
        let mut payloads = Pages::<P>::stale(build.len(), &run.pages)?;
        let out = payloads.shared();
        let starts = if keys == build.len() {
            run.on_all(|worker| {
                each_run(build.keys(), run.part(build.len(), worker), run, |key, rows| {
                    // SAFETY: a rank is below the number of keys, and no other row has this key.
                    unsafe { out.at(directory.rank(key)).write(P::of(build.payloads()[rows.start])) };
                })
            })?;
            None
        } else {
            Some(group(build, &directory, keys, out, run)?)
        };
        Ok(Self { directory, starts, payloads })
    }

    /// The payload of a key, where keys are unique.
    #[inline(always)]
    fn find(&self, key: u64) -> (bool, u64) {
        let (is_found, rank) = self.directory.find(key);
        // For a key that is absent the rank may be one too many.
        let place = rank.min(self.payloads.len() - 1);
        (is_found, self.payloads[place].payload())
    }

    #[inline(always)]
    fn places(&self, key: u64, starts: &[u32]) -> Range<usize> {
        let (is_found, rank) = self.directory.find(key);
        if is_found { starts[rank] as usize..starts[rank + 1] as usize } else { 0..0 }
    }

    #[inline(always)]
    fn sum_of(&self, probe: Columns<'_>, range: Range<usize>) -> Sum {
        let mut sum = Sum::default();
        for (&key, &payload) in probe.keys()[range.clone()].iter().zip(&probe.payloads()[range]) {
            match &self.starts {
                None => {
                    let (is_found, build) = self.find(key);
                    if is_found {
                        sum.add(build, payload);
                    }
                }
                Some(starts) => {
                    for build in &self.payloads[self.places(key, starts)] {
                        sum.add(build.payload(), payload);
                    }
                }
            }
        }
        sum
    }

    #[inline(always)]
    fn pairs_of_groups(
        &self,
        starts: &[u32],
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        run.cancel.check()?;
        let (keys, payloads) = (probe.keys(), probe.payloads());
        while cursor.row < keys.len() {
            if cursor.row.is_multiple_of(MORSEL) {
                run.cancel.check()?;
            }
            let mut places = self.places(keys[cursor.row], starts);
            if matches == Matches::First {
                places.end = places.end.min(places.start + 1);
            }
            places.start += cursor.position;
            let count = places.len().min(pairs.room());
            for build in &self.payloads[places.start..places.start + count] {
                pairs.push(build.payload(), payloads[cursor.row]);
            }
            if count < places.len() {
                cursor.position += count + usize::from(farhold_planted::is(Defect::SkippedCandidate));
                return Ok(());
            }
            cursor.row += 1;
            cursor.position = 0;
        }
        cursor.is_done = true;
        Ok(())
    }
}

impl Directory {
    /// The directory, and the number of different keys.
    fn of(keys: &[u64], interval: Interval, run: &Run) -> Result<(Self, usize), JoinError> {
        let mut words = Pages::<u64>::zeroed(2 * interval.slots().div_ceil(64), run)?;
        let all = atomic_u64(&mut words);
        run.on_all(|worker| {
            each_run(keys, run.part(keys.len(), worker), run, |key, _| {
                let offset = interval.offset(key) as usize;
                all[2 * (offset / 64)].fetch_or(1 << (offset % 64), Relaxed);
            })
        })?;
        let part = |worker| &all[2 * run.part(all.len() / 2, worker).start..2 * run.part(all.len() / 2, worker).end];
        let counts = run.on_all(|worker| Ok(widest!(|_| count(part(worker)))))?;
        run.on_all(|worker| {
            widest!(|_| rank(part(worker), counts[..worker].iter().sum()));
            Ok(())
        })?;
        Ok((Self { interval, words }, counts.into_iter().sum::<u64>() as usize))
    }

    /// Whether the key is present, and how many precede it.
    #[inline(always)]
    fn find(&self, key: u64) -> (bool, usize) {
        let offset = self.interval.offset(key);
        let place = offset.min(self.interval.last) as usize;
        // SAFETY: there are two words for every 64 offsets up to the last.
        let (bits, before) = unsafe {
            let at = 2 * (place / 64);
            (*self.words.get_unchecked(at), *self.words.get_unchecked(at + 1))
        };
        let below = bits & !(u64::MAX << (place % 64));
        let is_found = offset <= self.interval.last && bits >> (place % 64) & 1 == 1;
        (is_found, before as usize + below.count_ones() as usize)
    }

    /// The rank of a key that is present.
    #[inline(always)]
    fn rank(&self, key: u64) -> usize {
        self.find(key).1
    }
}

#[inline(always)]
fn count(words: &[AtomicU64]) -> u64 {
    words.chunks_exact(2).map(|pair| u64::from(pair[0].load(Relaxed).count_ones())).sum()
}

#[inline(always)]
fn rank(words: &[AtomicU64], mut before: u64) {
    for pair in words.chunks_exact(2) {
        pair[1].store(before, Relaxed);
        before += u64::from(pair[0].load(Relaxed).count_ones());
    }
}

/// Writes payloads in the order of keys, and returns where those of each key start.
fn group<P: Word>(
    build: Columns<'_>,
    directory: &Directory,
    keys: usize,
    out: Shared<'_, P>,
    run: &Run,
) -> Result<Pages<u32>, JoinError> {
    let mut starts = Pages::<u32>::zeroed(keys + 1, run)?;
    let places = atomic_u32(&mut starts);
    run.on_all(|worker| {
        each_run(build.keys(), run.part(build.len(), worker), run, |key, rows| {
            places[directory.rank(key)].fetch_add(rows.len() as u32, Relaxed);
        })
    })?;
    ends_of(&places[..keys], run)?;
    places[keys].store(build.len() as u32, Relaxed);
    // A key's place is counted down from its end to its start.
    run.on_all(|worker| {
        each_run(build.keys(), run.part(build.len(), worker), run, |key, rows| {
            let end = places[directory.rank(key)].fetch_sub(rows.len() as u32, Relaxed) as usize;
            // SAFETY: the counting has reserved this many places for rows of this key, and each run takes its own.
            let to = unsafe { out.slice(end - rows.len()..end) };
            to.iter_mut().zip(&build.payloads()[rows]).for_each(|(to, &payload)| *to = P::of(payload));
        })
    })?;
    Ok(starts)
}

/// Calls `each` with every run of equal keys among `rows`, and checks the cancel token from time to time.
#[inline(always)]
fn each_run(
    keys: &[u64],
    rows: Range<usize>,
    run: &Run,
    mut each: impl FnMut(u64, Range<usize>),
) -> Result<(), JoinError> {
    for start in rows.clone().step_by(MORSEL) {
        run.cancel.check()?;
        widest!(|_| runs(keys, start..(start + MORSEL).min(rows.end), &mut each));
    }
    Ok(())
}

#[inline(always)]
fn runs(keys: &[u64], rows: Range<usize>, each: &mut impl FnMut(u64, Range<usize>)) {
    let mut first = rows.start;
    while first < rows.end {
        let key = keys[first];
        let mut next = first + 1;
        while next < rows.end && keys[next] == key {
            next += 1;
        }
        each(key, first..next);
        first = next;
    }
}

/// Turns counts into running sums, each including its own count.
fn ends_of(counts: &[AtomicU32], run: &Run) -> Result<(), JoinError> {
    let part = |worker| &counts[run.part(counts.len(), worker)];
    let sums = run.on_all(|worker| Ok(part(worker).iter().map(|count| count.load(Relaxed)).sum::<u32>()))?;
    run.on_all(|worker| {
        let mut end: u32 = sums[..worker].iter().sum();
        for count in part(worker) {
            end += count.load(Relaxed);
            count.store(end, Relaxed);
        }
        Ok(())
    })?;
    Ok(())
}

impl<P: Word> Table for Ranked<P> {
    fn sum(&self, probe: Columns<'_>, run: &Run) -> Result<Sum, JoinError> {
        sum_in_morsels(probe.len(), run, |range| widest!(|_| self.sum_of(probe, range)))
    }

    fn pairs(
        &self,
        probe: Columns<'_>,
        matches: Matches,
        cursor: &mut Cursor,
        pairs: &mut Pairs,
        run: &Run,
    ) -> Result<(), JoinError> {
        widest!(|_| match &self.starts {
            None => unique_pairs(|key| self.find(key), probe, cursor, pairs, run),
            Some(starts) => self.pairs_of_groups(starts, probe, matches, cursor, pairs, run),
        })
    }

    fn scheme(&self) -> &'static str {
        "ranked"
    }

    fn memory_bytes(&self) -> u64 {
        self.directory.words.bytes() + self.starts.as_ref().map_or(0, Pages::bytes) + self.payloads.bytes()
    }
}
