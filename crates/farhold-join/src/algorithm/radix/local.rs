//! The table of one build partition, in a worker's cache: an array of payloads, or tuples in the order of their buckets.
//!
//! ```text
//!   code ──▶ bucket b:  starts[b] .. starts[b + 1]
//!                           │
//!   tuples  ... ┌───────────▼──────────┐ ...      contiguous, however many share a bucket
//! ```
//!
//! Buckets have a tuple on average, and no branch predictor foresees their lengths. So four tuples from the bucket's
//! start on are compared at once, whatever the length, and only longer buckets have a loop. (Codes of other buckets are
//! different.) One thread probes partitions of 16 K tuples in 2.8 ns a tuple, where chains took 6.3 (Zen 5). Sorting
//! takes as long as chaining did.

use std::ops::{AddAssign, Range, SubAssign};

use super::super::{Matches, Pairs, Sum};
use super::{ByOffset, Scheme, hash, top};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::partition::NarrowTuple;
use crate::partition::{Tuple, WideTuple};
use crate::widest::Vectors;
use farhold_planted::Defect;

/// A worker's table; its memory is used again for the next partition.
pub struct Local<B: Tuple> {
    kind: Kind,
    /// The payload of each slot; [`Tuple::NOTHING`] for a slot without a key.
    payloads: Vec<B::Payload>,
    /// The start of each bucket and the end of the last, if the partition has at most [`SHORT_MAX`] rows.
    short_starts: Vec<u16>,
    /// The same, if it has more rows.
    long_starts: Vec<u32>,
    /// `rows` tuples by bucket, then the first of them [`AT_ONCE`] times again. A look-up of its code begins at the
    /// first tuple, and so reads none of the copies if there are at least `AT_ONCE` tuples. Behind them is what a
    /// longer partition has left. In the cache tuples are wide: tables of tuples of 12 bytes, or of codes beside
    /// payloads, took longer to build and to probe (Zen 3).
    tuples: Vec<WideTuple>,
    rows: usize,
}

/// How the partition's keys are found.
#[derive(Clone, Copy)]
enum Kind {
    Empty,
    Perfect { by: ByOffset, partition: usize, bits: u32 },
    Sorted(Buckets),
}

#[derive(Clone, Copy)]
enum Buckets {
    /// Buckets of hashes that have this many bits in common.
    OfHashes { common_bits: u32, bits: u32 },
    /// Buckets of offsets, which are hashed for them.
    OfOffsets { seed: u64, bits: u32 },
}

/// The most rows of a partition whose places have 16 bits. Starts of 16 K buckets then have the size of a first-level
/// cache, 32 KiB, not twice that: one thread probes in 2.7 ns a tuple instead of 3.1 (Zen 3).
const SHORT_MAX: usize = u16::MAX as usize;

/// A place in a partition.
trait Place: Copy + Default + AddAssign + SubAssign + From<u8> + Into<u64> {
    #[inline(always)]
    fn index(self) -> usize {
        self.into() as usize
    }
}

impl Place for u16 {}
impl Place for u32 {}

/// The tuples of a bucket.
#[inline(always)]
fn range(starts: &[impl Place], bucket: usize) -> Range<usize> {
    starts[bucket].index()..starts[bucket + 1].index()
}

/// Tuples that are compared at once.
const AT_ONCE: usize = 4;

fn bucket_bits(rows: usize) -> u32 {
    rows.next_power_of_two().trailing_zeros()
}

/// The bytes that a table of this many tuples allocates.
pub fn memory_bytes(rows: usize) -> u64 {
    let starts = |rows: usize| rows.next_power_of_two() + 1;
    // Buckets, those of a shorter partition before, and the array that was tried before; vectors may have grown to
    // twice their length.
    2 * (4 * starts(rows) + 2 * starts(rows.min(SHORT_MAX)) + 16 * (rows + AT_ONCE)) as u64
        + (8 << super::PERFECT_SLOTS_LOG)
}

impl<B: Tuple> Default for Local<B> {
    fn default() -> Self {
        Self {
            kind: Kind::Empty,
            payloads: Vec::new(),
            short_starts: Vec::new(),
            long_starts: Vec::new(),
            tuples: Vec::new(),
            rows: 0,
        }
    }
}

/// Runs `$work`, compiled once for each kind of buckets. In it, `$bucket` returns the bucket of a code.
macro_rules! with_buckets {
    ($buckets:expr, |$bucket:ident| $work:expr) => {
        match $buckets {
            Buckets::OfHashes { common_bits, bits } => {
                // With a single bucket the mask is zero, whatever the shift.
                let (shift, mask) = ((64 - common_bits - bits).min(63), (1 << bits) - 1);
                let $bucket = move |code: u64| (code >> shift) as usize & mask;
                $work
            }
            Buckets::OfOffsets { seed, bits } => {
                let $bucket = move |code: u64| top(hash(code, seed), bits);
                $work
            }
        }
    };
}

impl<B: Tuple> Local<B> {
    /// Makes this the table of the tuples of these slices, `rows` in all. They are partition `partition` of `1 <<
    /// bits`.
    #[inline(always)]
    pub fn build<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a [B]> + Clone,
        rows: usize,
        scheme: Scheme,
        partition: usize,
        bits: u32,
    ) {
        let bucket_bits = bucket_bits(rows);
        let buckets = match scheme {
            Scheme::Perfect { by, seed } => {
                if self.build_perfect(slices.clone(), rows, by, partition, bits) {
                    return;
                }
                Buckets::OfOffsets { seed, bits: bucket_bits }
            }
            Scheme::Sorted { .. } => Buckets::OfHashes { common_bits: bits, bits: bucket_bits },
        };
        // Existing tuples are not overwritten first: that was a write of the whole table for each partition.
        if self.tuples.len() < rows + AT_ONCE {
            self.tuples.resize(rows + AT_ONCE, WideTuple::new(0, 0));
        }
        self.rows = rows;
        let (sorted, count) = (&mut self.tuples[..rows + AT_ONCE], 1 << bucket_bits);
        with_buckets!(buckets, |bucket| if rows <= SHORT_MAX {
            sort(&mut self.short_starts, sorted, slices, count, bucket);
        } else {
            sort(&mut self.long_starts, sorted, slices, count, bucket);
        });
        self.kind = Kind::Sorted(buckets);
    }

    /// False if a key occurs twice, or a payload equals [`Tuple::NOTHING`].
    #[inline(always)]
    fn build_perfect<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a [B]>,
        rows: usize,
        by: ByOffset,
        partition: usize,
        bits: u32,
    ) -> bool {
        let slots = by.slots(partition, bits);
        if (rows as u64) > slots {
            return false;
        }
        self.payloads.clear();
        self.payloads.resize(slots as usize, B::NOTHING);
        let payloads = &mut self.payloads[..];
        let mut is_refused = false;
        for slice in slices {
            for tuple in slice {
                let slot = &mut payloads[by.slot(tuple.code(), partition, bits) as usize];
                is_refused |= *slot != B::NOTHING && !farhold_planted::is(Defect::DuplicateOverwritten);
                is_refused |= tuple.payload() == B::NOTHING;
                *slot = tuple.payload();
            }
        }
        self.kind = Kind::Perfect { by, partition, bits };
        !is_refused
    }

    /// The sums over the pairs of the partition's tuples with `probe`. The processor must have these `vectors`.
    #[inline(always)]
    pub fn sum<P: Tuple>(&self, probe: &[P], vectors: Vectors) -> Sum {
        match self.kind {
            Kind::Empty => Sum::default(),
            Kind::Perfect { by, partition, bits } => {
                let payloads = &self.payloads[..];
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                if vectors == Vectors::Avx512
                    && size_of::<B>() == size_of::<NarrowTuple>()
                    && size_of::<P>() == size_of::<NarrowTuple>()
                {
                    let first = by.slot(0, partition, bits);
                    // SAFETY: the processor has AVX-512, and the only type of tuples of that size is `NarrowTuple`,
                    // whose payloads are 32-bit numbers.
                    return unsafe {
                        let probe = std::slice::from_raw_parts(probe.as_ptr().cast(), probe.len());
                        let payloads = std::slice::from_raw_parts(payloads.as_ptr().cast(), payloads.len());
                        sum_of_eights(payloads, first, probe)
                    };
                }
                sum_where(probe, |tuple| {
                    let slot = by.slot(tuple.code(), partition, bits) as usize;
                    let payload = payloads[slot.min(payloads.len() - 1)];
                    (slot < payloads.len() && payload != B::NOTHING, payload)
                })
            }
            Kind::Sorted(buckets) => with_buckets!(buckets, |bucket| if self.rows <= SHORT_MAX {
                self.sum_of_buckets(&self.short_starts, probe, bucket, vectors)
            } else {
                self.sum_of_buckets(&self.long_starts, probe, bucket, vectors)
            }),
        }
    }

    #[inline(always)]
    fn sum_of_buckets<P: Tuple>(
        &self,
        starts: &[impl Place],
        probe: &[P],
        bucket: impl Fn(u64) -> usize,
        vectors: Vectors,
    ) -> Sum {
        let mut sum = Sum::default();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.rows >= AT_ONCE {
            let tuples = self.tuples.as_ptr();
            if vectors == Vectors::Avx512 {
                // SAFETY: the processor has AVX-512. `build` has left `AT_ONCE` tuples behind the last bucket's end.
                return unsafe { sum_of_fours(starts, tuples, probe, bucket) };
            } else if vectors == Vectors::Avx2 {
                // SAFETY: the processor has AVX2, and as above.
                return unsafe { sum_of_two_pairs(starts, tuples, probe, bucket) };
            }
        }
        let _ = vectors;
        for tuple in probe {
            for candidate in &self.tuples[range(starts, bucket(tuple.code()))] {
                if candidate.code() == tuple.code() {
                    sum.add(candidate.payload(), tuple.payload().into());
                }
            }
        }
        sum
    }

    #[inline(always)]
    fn bucket(&self, bucket: usize) -> Range<usize> {
        if self.rows <= SHORT_MAX { range(&self.short_starts, bucket) } else { range(&self.long_starts, bucket) }
    }

    /// Enumerates pairs, beginning at `place` (probe tuple, place in its bucket). True when all have been enumerated.
    pub fn pairs<P: Tuple>(
        &self,
        probe: &[P],
        matches: Matches,
        (row, position): (&mut usize, &mut usize),
        pairs: &mut Pairs,
    ) -> bool {
        while *row < probe.len() {
            if pairs.is_full() {
                return false;
            }
            let tuple = probe[*row];
            match self.kind {
                Kind::Empty => {}
                Kind::Perfect { by, partition, bits } => {
                    let slot = by.slot(tuple.code(), partition, bits) as usize;
                    if let Some(&payload) = self.payloads.get(slot).filter(|&&payload| payload != B::NOTHING) {
                        pairs.push(payload.into(), tuple.payload().into());
                    }
                }
                Kind::Sorted(buckets) => {
                    let range = self.bucket(with_buckets!(buckets, |bucket| bucket(tuple.code())));
                    for (at, candidate) in self.tuples[range].iter().enumerate().skip(*position) {
                        if candidate.code() == tuple.code() {
                            if pairs.is_full() {
                                *position = at;
                                return false;
                            }
                            pairs.push(candidate.payload(), tuple.payload().into());
                            if matches == Matches::First {
                                break;
                            }
                        }
                    }
                }
            }
            *row += 1;
            *position = 0;
        }
        true
    }
}

/// Counting sort of the tuples of `slices` by bucket, of which there are `buckets`, into `sorted`. Copies of the first
/// tuple fill the rest of `sorted`.
#[inline(always)]
fn sort<'a, S: Place, B: Tuple>(
    starts: &mut Vec<S>,
    sorted: &mut [WideTuple],
    slices: impl Iterator<Item = &'a [B]> + Clone,
    buckets: usize,
    bucket: impl Fn(u64) -> usize,
) {
    starts.clear();
    starts.resize(buckets + 1, S::default());
    let starts = &mut starts[..=buckets];
    for slice in slices.clone() {
        for tuple in slice {
            starts[bucket(tuple.code())] += S::from(1);
        }
    }
    let mut end = S::default();
    for start in &mut *starts {
        end += *start;
        *start = end;
    }
    // A bucket's start is counted down from its end.
    for slice in slices {
        for tuple in slice {
            let start = &mut starts[bucket(tuple.code())];
            *start -= S::from(1);
            sorted[start.index()] = WideTuple::new(tuple.code(), tuple.payload().into());
        }
    }
    let (first, rows) = (sorted[0], end.index());
    sorted[rows..].fill(first);
}

/// The sums over the pairs that `find` returns: whether there is one, and its build payload. No branch depends on the
/// result.
#[inline(always)]
fn sum_where<P: Tuple, W: Into<u64>>(probe: &[P], find: impl Fn(P) -> (bool, W)) -> Sum {
    let mut sum = Sum::default();
    for &tuple in probe {
        let (is_found, build) = find(tuple);
        let mask = u64::from(is_found).wrapping_neg();
        sum.pairs += u64::from(is_found);
        sum.build = sum.build.wrapping_add(build.into() & mask);
        sum.probe = sum.probe.wrapping_add(tuple.payload().into() & mask);
    }
    sum
}

/// A tuple's slot is its code plus `first`, wrapping.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,bmi2,lzcnt,popcnt")]
fn sum_of_eights(payloads: &[u32], first: u64, probe: &[NarrowTuple]) -> Sum {
    use std::arch::x86_64::{
        _mm256_mask_cmpneq_epu32_mask, _mm256_set1_epi32, _mm512_add_epi64, _mm512_and_si512, _mm512_cmplt_epu64_mask,
        _mm512_cvtepu32_epi64, _mm512_loadu_si512, _mm512_mask_add_epi64, _mm512_mask_i64gather_epi32,
        _mm512_reduce_add_epi64, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_srli_epi64,
    };
    let (eights, rest) = probe.as_chunks::<8>();
    let (mut pairs, mut builds, mut probes) = (0, _mm512_setzero_si512(), _mm512_setzero_si512());
    let (slots, nothing) = (_mm512_set1_epi64(payloads.len() as i64), _mm256_set1_epi32(NarrowTuple::NOTHING as i32));
    for eight in eights {
        // SAFETY: eight tuples are 64 bytes. A lane loads a payload only if its slot exists.
        let (tuples, found, build) = unsafe {
            let tuples = _mm512_loadu_si512(eight.as_ptr().cast());
            let slot = _mm512_add_epi64(_mm512_srli_epi64::<32>(tuples), _mm512_set1_epi64(first as i64));
            let is_slot = _mm512_cmplt_epu64_mask(slot, slots);
            let build = _mm512_mask_i64gather_epi32::<4>(nothing, is_slot, slot, payloads.as_ptr().cast());
            (tuples, _mm256_mask_cmpneq_epu32_mask(is_slot, build, nothing), build)
        };
        builds = _mm512_mask_add_epi64(builds, found, builds, _mm512_cvtepu32_epi64(build));
        let payload = _mm512_and_si512(tuples, _mm512_set1_epi64(i64::from(u32::MAX)));
        probes = _mm512_mask_add_epi64(probes, found, probes, payload);
        pairs += u64::from(found.count_ones());
    }
    let mut sum =
        Sum { pairs, build: _mm512_reduce_add_epi64(builds) as u64, probe: _mm512_reduce_add_epi64(probes) as u64 };
    for tuple in rest {
        let slot = tuple.code().wrapping_add(first) as usize;
        if let Some(&payload) = payloads.get(slot).filter(|&&payload| payload != NarrowTuple::NOTHING) {
            sum.add(payload.into(), tuple.payload().into());
        }
    }
    sum
}

/// # Safety
/// `starts` has the start of every bucket that `bucket` returns, and one more. From each of these starts, [`AT_ONCE`]
/// tuples are readable.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl,bmi2,lzcnt,popcnt")]
unsafe fn sum_of_fours<P: Tuple>(
    starts: &[impl Place],
    tuples: *const WideTuple,
    probe: &[P],
    bucket: impl Fn(u64) -> usize,
) -> Sum {
    use std::arch::x86_64::{
        _mm512_loadu_si512, _mm512_mask_add_epi64, _mm512_mask_cmpeq_epi64_mask, _mm512_reduce_add_epi64,
        _mm512_set1_epi64, _mm512_setzero_si512,
    };
    /// Codes are the even words of four tuples.
    const CODES: u8 = 0b0101_0101;
    let (mut sum, mut builds) = (Sum::default(), _mm512_setzero_si512());
    for tuple in probe {
        let (code, payload, bucket) = (tuple.code(), tuple.payload().into(), bucket(tuple.code()));
        let Range { start, end } = range(starts, bucket);
        // SAFETY: as the caller promises.
        let four = unsafe { _mm512_loadu_si512(tuples.add(start).cast()) };
        let found = _mm512_mask_cmpeq_epi64_mask(CODES, four, _mm512_set1_epi64(code as i64));
        builds = _mm512_mask_add_epi64(builds, found << 1, builds, four);
        let count = u64::from(found.count_ones());
        sum.pairs += count;
        sum.probe = sum.probe.wrapping_add(count.wrapping_mul(payload));
        for at in start + AT_ONCE..end {
            // SAFETY: `at` is in the bucket.
            let candidate = unsafe { *tuples.add(at) };
            if candidate.code == code {
                sum.add(candidate.payload, payload);
            }
        }
    }
    sum.build = sum.build.wrapping_add(_mm512_reduce_add_epi64(builds) as u64);
    sum
}

/// As [`sum_of_fours`].
///
/// # Safety
/// As for [`sum_of_fours`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
unsafe fn sum_of_two_pairs<P: Tuple>(
    starts: &[impl Place],
    tuples: *const WideTuple,
    probe: &[P],
    bucket: impl Fn(u64) -> usize,
) -> Sum {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_and_si256, _mm256_cmpeq_epi64, _mm256_loadu_si256, _mm256_set1_epi64x,
        _mm256_setzero_si256, _mm256_storeu_si256, _mm256_sub_epi64, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64,
    };
    let mut sum = Sum::default();
    let (mut pairs, mut builds, mut probes) = (_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256());
    for tuple in probe {
        let (code, payload, bucket) = (tuple.code(), tuple.payload().into(), bucket(tuple.code()));
        let Range { start, end } = range(starts, bucket);
        // SAFETY: as the caller promises.
        let (one, other) = unsafe {
            let two: *const __m256i = tuples.add(start).cast();
            (_mm256_loadu_si256(two), _mm256_loadu_si256(two.add(1)))
        };
        let (codes, payloads) = (_mm256_unpacklo_epi64(one, other), _mm256_unpackhi_epi64(one, other));
        let found = _mm256_cmpeq_epi64(codes, _mm256_set1_epi64x(code as i64));
        pairs = _mm256_sub_epi64(pairs, found);
        builds = _mm256_add_epi64(builds, _mm256_and_si256(found, payloads));
        probes = _mm256_add_epi64(probes, _mm256_and_si256(found, _mm256_set1_epi64x(payload as i64)));
        for at in start + AT_ONCE..end {
            // SAFETY: `at` is in the bucket.
            let candidate = unsafe { *tuples.add(at) };
            if candidate.code == code {
                sum.add(candidate.payload, payload);
            }
        }
    }
    let all = |lanes: __m256i| {
        let mut words = [0_u64; 4];
        // SAFETY: the array is as long as the vector.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), lanes) };
        words.into_iter().fold(0_u64, u64::wrapping_add)
    };
    let of_lanes = Sum { pairs: all(pairs), build: all(builds), probe: all(probes) };
    [sum, of_lanes].into_iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::MediumTuple;
    use crate::widest::widest;

    /// Tuples of one partition: of `1 << bits` partitions, the one whose hashes begin with ones.
    fn tuples<T: Tuple>(codes: impl Iterator<Item = u64>, bits: u32) -> Vec<T> {
        let payload = |row: u64| (row << 40 | row) & T::NOTHING.into();
        (0..).zip(codes).map(|(row, code)| T::new(code >> bits | !(u64::MAX >> bits), payload(row))).collect()
    }

    #[test]
    fn tables_answer_alike_with_any_vectors_and_after_any_other_table() {
        tables_answer_alike::<WideTuple>();
        tables_answer_alike::<MediumTuple>();
    }

    fn tables_answer_alike<T: Tuple>() {
        let random = |row: u64| hash(row, 3);
        let (mut local, mut plain) = (Local::default(), Local::default());
        let kinds: [&dyn Fn(u64) -> u64; 5] = [
            &random,
            &|row| random(row % 500),
            &|row| (row % 3) << 9,
            &|row| (random(row) & 0xff) << 9,
            // In order: a tuple that an earlier table has left behind the last one is found if it is looked for.
            &|row| row * (u64::MAX / 30_000),
        ];
        for bits in [0, 1, 9] {
            for code in kinds {
                // The longest first, so that what it leaves lies behind the tables after it.
                for rows in [9000, 3000, 2999, 17, 16, 5, 4, 3, 2, 1] {
                    let build = tuples::<T>((0..rows).map(code), bits);
                    let probe = tuples((0..2 * rows).map(|row| code(row + rows / 2)), bits);
                    check([&mut local, &mut plain], &build, &probe, bits);
                }
            }
        }
    }

    #[test]
    fn partitions_with_one_row_more_than_16_bits_count_are_tables_too() {
        let random = |row: u64| hash(row % 50_000, 3);
        let (mut local, mut plain) = (Local::default(), Local::default());
        for rows in [SHORT_MAX as u64, SHORT_MAX as u64 + 1, 100] {
            let build = tuples::<WideTuple>((0..rows).map(random), 1);
            let probe = tuples((0..90_000).map(|row| hash(row, 3)), 1);
            check([&mut local, &mut plain], &build, &probe, 1);
        }
    }

    /// Tables of `build`, whatever they held before, give the answers of a map.
    fn check<T: Tuple>([local, plain]: [&mut Local<T>; 2], build: &[T], probe: &[T], bits: u32) {
        let (scheme, rows) = (Scheme::Sorted { seed: 1 }, build.len());
        let (one, other) = build.split_at(rows / 3);
        let slices = [one, other].into_iter();
        local.build(slices.clone(), rows, scheme, (1 << bits) - 1, bits);
        plain.build(slices, rows, scheme, (1 << bits) - 1, bits);
        let mut of_code = std::collections::HashMap::<u64, (u64, u64)>::new();
        for tuple in build {
            let (pairs, sum) = of_code.entry(tuple.code()).or_default();
            (*pairs, *sum) = (*pairs + 1, sum.wrapping_add(tuple.payload().into()));
        }
        let mut expected = Sum::default();
        for tuple in probe {
            let (pairs, sum) = of_code.get(&tuple.code()).copied().unwrap_or_default();
            expected.pairs += pairs;
            expected.build = expected.build.wrapping_add(sum);
            expected.probe = expected.probe.wrapping_add(tuple.payload().into().wrapping_mul(pairs));
        }
        assert_eq!(plain.sum(probe, Vectors::Plain), expected, "{rows} rows, {bits} bits");
        assert_eq!(widest!(|vectors| local.sum(probe, vectors)), expected, "{rows} rows, {bits} bits");
        if expected.pairs < 1 << 18 {
            let (mut pairs, mut count, mut place, mut is_done) = (Pairs::with_limit(1000), 0, (0, 0), false);
            while !is_done {
                pairs.clear();
                is_done = local.pairs(probe, Matches::All, (&mut place.0, &mut place.1), &mut pairs);
                count += pairs.len() as u64;
            }
            assert_eq!(count, expected.pairs, "{rows} rows, {bits} bits");
        }
    }
}
