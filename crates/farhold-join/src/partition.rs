//! Radix partitioning: histogram, software write-combining, streaming stores.
//!
//! ```text
//!   input ──▶ histogram of each part of it ──▶ prefix sums: where part w writes partition p
//!   input ──▶ one cache line a partition, in the second-level cache ── full ──▶ streamed to its place in memory
//! ```
//!
//! A tuple is written once, whole lines go past the cache, and a worker touches one page a flush instead of one a tuple.
//! Sources: the Triton join (SIGMOD 2022), section 2.2 and its CPU baseline; Schuh, Chen, Dittrich: "An Experimental
//! Comparison of Thirteen Relational Equi-Joins in Main Memory" (SIGMOD 2016).

use std::ops::Range;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use std::ptr;

use crate::algorithm::Columns;
use crate::pages::{Pages, Plain, Shared};
use crate::planted::{self, Defect};
use crate::widest::widest;
use crate::{JoinError, Run};

/// A key and its payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Tuple {
    pub key: u64,
    pub payload: u64,
}

// SAFETY: two integers without padding.
unsafe impl Plain for Tuple {}

impl Tuple {
    /// Writes both words by one store. The line is streamed by loads of 16 bytes, and a load that has to be put together
    /// from two younger stores waits until they have left the processor.
    #[inline(always)]
    fn write_whole(self, to: &mut Tuple) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a tuple is 16 bytes, 16-byte aligned. SSE2 is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_set_epi64x, _mm_store_si128};
            _mm_store_si128(ptr::from_mut(to).cast(), _mm_set_epi64x(self.payload as i64, self.key as i64));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        {
            *to = self;
        }
    }
}

/// Tuples of a cache line.
const LINE: usize = 4;
/// Tuples between two looks at the cancel token.
const MORSEL: usize = 1 << 18;
/// The widest fan-out of one pass: 4096 lines are 256 KiB, a quarter of the second-level cache of current cores; the
/// Triton paper's CPU baseline (section 6.1) uses 12 to 14 bits.
pub const PASS_BITS_MAX: u32 = 12;

/// Where tuples come from.
pub trait Source: Copy + Send + Sync {
    fn len(&self) -> usize;
    fn key(&self, index: usize) -> u64;
    fn tuple(&self, index: usize) -> Tuple;
}

impl Source for Columns<'_> {
    fn len(&self) -> usize {
        Columns::len(self)
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self.keys()[index]
    }

    #[inline(always)]
    fn tuple(&self, index: usize) -> Tuple {
        Tuple { key: self.keys()[index], payload: self.payloads()[index] }
    }
}

impl Source for &[Tuple] {
    fn len(&self) -> usize {
        <[Tuple]>::len(self)
    }

    #[inline(always)]
    fn key(&self, index: usize) -> u64 {
        self[index].key
    }

    #[inline(always)]
    fn tuple(&self, index: usize) -> Tuple {
        self[index]
    }
}

/// Which partition a key belongs to. The partitions of `bits` bits refine those of fewer.
pub trait Partitioner: Copy + Send + Sync {
    /// The number of `key`'s partition among `1 << bits`.
    fn partition(&self, key: u64, bits: u32) -> usize;
}

/// Tuples ordered by partition.
#[derive(Debug)]
pub struct Partitioned {
    tuples: Pages<Tuple>,
    /// Partition `p` is `starts[p]..starts[p + 1]`.
    starts: Vec<usize>,
}

impl Partitioned {
    /// Partitions.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Where partition `p` lies.
    pub fn range(&self, partition: usize) -> Range<usize> {
        self.starts[partition]..self.starts[partition + 1]
    }

    /// The tuples of a partition.
    pub fn tuples(&self, partition: usize) -> &[Tuple] {
        &self.tuples[self.range(partition)]
    }

    /// All tuples, and where the partitions start and the last ends.
    pub fn into_parts(self) -> (Pages<Tuple>, Vec<usize>) {
        (self.tuples, self.starts)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.tuples.bytes() + 8 * self.starts.len() as u64
    }
}

/// An upper bound of what [`partition`] allocates, the input excluded; with more than one pass there are two copies.
pub fn partition_bytes(rows: usize, bits: u32, threads: usize) -> u64 {
    let copies = if bits > PASS_BITS_MAX { 2 } else { 1 };
    let copy = 16 * rows as u64 + if rows * 16 >= 2 << 20 { 2 << 20 } else { 0 };
    let parts = 1_u64 << bits.min(PASS_BITS_MAX);
    let lists = self::parts(rows, threads) as u64 * parts * (4 + 8);
    copies * copy + threads as u64 * parts * (64 + 16) + lists + (8 << bits) * 2
}

/// Orders `source` by the `1 << bits` partitions of `by`, in as many passes as the fan-out asks for.
pub fn partition(source: impl Source, by: impl Partitioner, bits: u32, run: &Run) -> Result<Partitioned, JoinError> {
    let passes = bits.div_ceil(PASS_BITS_MAX).max(1);
    let mut done_bits = bits.div_ceil(passes);
    let mut partitioned = first_pass(source, |key| by.partition(key, done_bits), 1 << done_bits, run)?;
    while done_bits < bits {
        let next_bits = (bits - done_bits).min(PASS_BITS_MAX);
        partitioned = refine(&partitioned, by, done_bits, next_bits, run)?;
        done_bits += next_bits;
    }
    Ok(partitioned)
}

fn first_pass<S: Source>(
    source: S,
    of: impl Fn(u64) -> usize + Sync + Copy,
    count: usize,
    run: &Run,
) -> Result<Partitioned, JoinError> {
    let mut tuples = Pages::<Tuple>::stale(source.len(), &run.pages)?;
    if count == 1 {
        let out = tuples.shared();
        run.on_all(|worker| {
            for morsel in morsels(run.part(source.len(), worker)) {
                run.cancel.check()?;
                // SAFETY: the workers' parts are disjoint.
                let to = unsafe { out.slice(morsel.clone()) };
                to.iter_mut().zip(morsel).for_each(|(to, from)| *to = source.tuple(from));
            }
            Ok(())
        })?;
        return Ok(Partitioned { tuples, starts: vec![0, source.len()] });
    }
    // More parts than workers; the same parts in both steps, because the histogram says where a part's tuples go.
    let parts = parts(source.len(), run.threads);
    let part = |part: usize| source.len() * part / parts..source.len() * (part + 1) / parts;
    let histograms = run.on_tasks(parts, |task| {
        let mut histogram = vec![0_u32; count];
        for morsel in morsels(part(task)) {
            run.cancel.check()?;
            widest(|_| count_keys(source, morsel, of, &mut histogram));
        }
        Ok(histogram)
    })?;
    let (starts, positions) = prefix_sums(&histograms, 0);
    let out = tuples.shared();
    run.on_tasks(parts, |task| {
        let mut scatter = Scatter::new(positions[task].clone());
        for morsel in morsels(part(task)) {
            run.cancel.check()?;
            // SAFETY: the histograms counted these very tuples, so each part's positions lie in the array and apart from
            // every other's.
            widest(|wide| unsafe { scatter.tuples(source, morsel, of, out, wide) });
        }
        // SAFETY: as above.
        unsafe { scatter.finish(out) };
        Ok(())
    })?;
    Ok(Partitioned { tuples, starts })
}

/// Four parts a worker, unless they would be short.
fn parts(rows: usize, threads: usize) -> usize {
    if threads == 1 { 1 } else { (4 * threads).min(rows / MORSEL).max(threads) }
}

/// Splits every partition further. Workers take whole partitions; one that holds more than its share is split by all.
fn refine(
    coarse: &Partitioned,
    by: impl Partitioner,
    done_bits: u32,
    next_bits: u32,
    run: &Run,
) -> Result<Partitioned, JoinError> {
    let (fan_out, bits) = (1 << next_bits, done_bits + next_bits);
    let of = |key| by.partition(key, bits) & (fan_out - 1);
    let total = coarse.tuples.len();
    let mut tuples = Pages::<Tuple>::stale(total, &run.pages)?;
    let out = tuples.shared();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let is_big = |partition: usize| coarse.range(partition).len() > (total / run.threads).max(MORSEL);
    let finished = run.on_all(|_| {
        let mut finished = Vec::new();
        loop {
            let partition = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            if partition >= coarse.count() {
                return Ok(finished);
            }
            if is_big(partition) {
                continue;
            }
            run.cancel.check()?;
            let (source, range) = (coarse.tuples(partition), coarse.range(partition));
            let mut histogram = vec![0; fan_out];
            widest(|_| count_keys(source, 0..source.len(), of, &mut histogram));
            let (starts, mut positions) = prefix_sums(&[histogram], range.start);
            let mut scatter = Scatter::new(positions.swap_remove(0));
            // SAFETY: the positions lie in this partition's range, which one worker takes.
            unsafe {
                widest(|wide| scatter.tuples(source, 0..source.len(), of, out, wide));
                scatter.finish(out);
            }
            finished.push((partition, starts));
        }
    })?;
    let mut starts = vec![0; coarse.count() * fan_out + 1];
    for (partition, fine) in finished.into_iter().flatten() {
        starts[partition * fan_out..=(partition + 1) * fan_out].copy_from_slice(&fine);
    }
    for partition in (0..coarse.count()).filter(|&partition| is_big(partition)) {
        let (part, fine) = first_pass(coarse.tuples(partition), of, fan_out, run)?.into_parts();
        let range = coarse.range(partition);
        for (to, from) in starts[partition * fan_out..=(partition + 1) * fan_out].iter_mut().zip(&fine) {
            *to = range.start + from;
        }
        tuples[range].copy_from_slice(&part);
    }
    Ok(Partitioned { tuples, starts })
}

fn morsels(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(MORSEL).map(move |start| start..(start + MORSEL).min(range.end))
}

#[inline(always)]
fn count_keys<S: Source>(source: S, range: Range<usize>, of: impl Fn(u64) -> usize, histogram: &mut [u32]) {
    let mask = power_of_two_mask(histogram.len());
    for index in range {
        // SAFETY: the mask keeps it below the length.
        *unsafe { histogram.get_unchecked_mut(of(source.key(index)) & mask) } += 1;
    }
}

/// What keeps an index below `len`, which is a power of two. Partitions are numbered so anyway; this proves it for nothing.
fn power_of_two_mask(len: usize) -> usize {
    assert!(len.is_power_of_two());
    len - 1
}

/// Where each partition starts (and the last ends), and where each worker's tuples of it start.
fn prefix_sums(histograms: &[Vec<u32>], origin: usize) -> (Vec<usize>, Vec<Vec<usize>>) {
    let count = histograms[0].len();
    let mut starts = Vec::with_capacity(count + 1);
    let mut positions = vec![vec![0; count]; histograms.len()];
    let mut at = origin;
    for partition in 0..count {
        starts.push(at);
        for (worker, histogram) in histograms.iter().enumerate() {
            positions[worker][partition] = at;
            at += histogram[partition] as usize;
        }
    }
    starts.push(at);
    (starts, positions)
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([Tuple; LINE]);

// SAFETY: four pairs of integers without padding.
unsafe impl Plain for Line {}

/// One worker's write-combining buffers. Slot `position % LINE` of a partition's line holds the tuple for `position`, so
/// that full lines are aligned; the first and the last line of a worker may be partial and are copied by plain stores.
struct Scatter {
    lines: Vec<Line>,
    first: Vec<usize>,
    next: Vec<usize>,
}

impl Scatter {
    fn new(positions: Vec<usize>) -> Self {
        let lines = vec![Line([Tuple::default(); LINE]); positions.len()];
        Self { lines, first: positions.clone(), next: positions }
    }

    /// # Safety
    /// Every tuple's position, counted from the start of its partition in this worker's part, lies in `out`, and no other
    /// thread touches it. With `has_avx512` the processor has AVX-512.
    #[inline(always)]
    unsafe fn tuples<S: Source>(
        &mut self,
        source: S,
        range: Range<usize>,
        of: impl Fn(u64) -> usize,
        out: Shared<'_, Tuple>,
        has_avx512: bool,
    ) {
        let (lines, next, first) = (&mut self.lines[..], &mut self.next[..], &self.first[..]);
        let mask = power_of_two_mask(lines.len());
        assert!(next.len() == lines.len() && first.len() == lines.len());
        for index in range {
            let tuple = source.tuple(index);
            let partition = of(tuple.key) & mask;
            // SAFETY: the mask keeps it below the three lengths; positions `first..=position` are this worker's.
            unsafe {
                let (line, next) = (lines.get_unchecked_mut(partition), next.get_unchecked_mut(partition));
                let position = *next;
                *next = position + 1;
                tuple.write_whole(&mut line.0[position % LINE]);
                if position % LINE == LINE - 1 {
                    let (start, first) = (position + 1 - LINE, *first.get_unchecked(partition));
                    if start >= first {
                        stream_line(line, tuple, out.at(start).cast(), has_avx512);
                    } else {
                        copy_part(line, first..position + 1, out);
                    }
                }
            }
        }
    }

    /// Writes the lines that are not full.
    ///
    /// # Safety
    /// As for [`Scatter::tuples`].
    unsafe fn finish(&mut self, out: Shared<'_, Tuple>) {
        for partition in 0..self.lines.len() {
            if planted::is(Defect::LostLines) {
                break;
            }
            let next = self.next[partition];
            let start = (next - next % LINE).max(self.first[partition]);
            // SAFETY: these positions are this worker's and have not been written yet.
            unsafe { copy_part(&self.lines[partition], start..next, out) };
        }
        fence_streams();
    }
}

/// # Safety
/// `range` lies in one line of `out`, and nobody else touches it.
#[cold]
unsafe fn copy_part(line: &Line, range: Range<usize>, out: Shared<'_, Tuple>) {
    for position in range {
        // SAFETY: as the caller promises.
        unsafe { out.at(position).write(line.0[position % LINE]) };
    }
}

/// Writes a line past the cache, its last tuple from the register. One store of a whole line
/// instead of four of its quarters gains a few per cent (Zen 5, 16 to 4096 partitions).
///
/// # Safety
/// `to` is 64-byte aligned and writable, and nobody else touches the line. With `has_avx512` the processor has it.
#[inline(always)]
unsafe fn stream_line(line: &Line, last: Tuple, to: *mut Line, has_avx512: bool) {
    debug_assert!(to.is_aligned() && line.0[LINE - 1] == last);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: both are aligned lines of 64 bytes, read in parts of 16. SSE2 is part of x86-64, the rest is asked for.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_set_epi64x, _mm_stream_si128};
        let from = std::ptr::from_ref(line).cast::<__m128i>();
        let last = _mm_set_epi64x(last.payload as i64, last.key as i64);
        let parts = [_mm_load_si128(from), _mm_load_si128(from.add(1)), _mm_load_si128(from.add(2)), last];
        if has_avx512 {
            stream_whole(parts, to);
        } else {
            parts
                .into_iter()
                .enumerate()
                .for_each(|(part, value)| _mm_stream_si128(to.cast::<__m128i>().add(part), value));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as the caller promises.
    unsafe {
        let _ = has_avx512;
        to.write(*line);
    }
}

/// # Safety
/// `to` is 64-byte aligned and writable, and nobody else touches the line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn stream_whole(parts: [std::arch::x86_64::__m128i; LINE], to: *mut Line) {
    use std::arch::x86_64::{_mm512_castsi128_si512, _mm512_inserti32x4, _mm512_stream_si512};
    let line = _mm512_castsi128_si512(parts[0]);
    let line = _mm512_inserti32x4::<1>(line, parts[1]);
    let line = _mm512_inserti32x4::<2>(line, parts[2]);
    let line = _mm512_inserti32x4::<3>(line, parts[3]);
    // SAFETY: as the caller promises.
    unsafe { _mm512_stream_si512(to.cast(), line) };
}

/// Streamed lines become visible before whatever this thread publishes next.
fn fence_streams() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    struct Top;

    impl Partitioner for Top {
        fn partition(&self, key: u64, bits: u32) -> usize {
            crate::hash::top(key, bits)
        }
    }

    fn check(keys: &[u64], bits: u32, threads: usize) {
        let payloads: Vec<u64> = (0..keys.len() as u64).collect();
        let source = Columns::new(keys, &payloads).unwrap();
        let partitioned = partition(source, Top, bits, &Run::with_threads(threads)).unwrap();
        assert!(partitioned.bytes() <= partition_bytes(keys.len(), bits, threads));
        assert_eq!(partitioned.count(), 1 << bits);
        let mut seen = vec![false; keys.len()];
        for part in 0..partitioned.count() {
            for tuple in partitioned.tuples(part) {
                assert_eq!(Top.partition(tuple.key, bits), part);
                assert_eq!(keys[tuple.payload as usize], tuple.key);
                assert!(!std::mem::replace(&mut seen[tuple.payload as usize], true), "a tuple twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen), "a tuple is missing");
    }

    #[test]
    fn every_tuple_reaches_its_partition_once() {
        for rows in [0, 1, 3, 64, 5000] {
            let random: Vec<u64> = (0..rows).map(|row| crate::hash::hash(row, 5)).collect();
            let skewed: Vec<u64> = random.iter().map(|key| if key % 4 > 0 { 9 << 60 } else { *key }).collect();
            for (bits, threads) in [(0, 1), (0, 3), (1, 2), (5, 1), (5, 3), (12, 2), (13, 2), (15, 3)] {
                check(&random, bits, threads);
                check(&skewed, bits, threads);
            }
        }
    }

    #[test]
    fn a_partition_above_its_share_is_split_by_all_workers() {
        let mostly_one: Vec<u64> =
            (0..MORSEL as u64 + 9000).map(|row| if row % 50 == 0 { crate::hash::hash(row, 5) } else { row }).collect();
        check(&mostly_one, 14, 4);
    }
}
