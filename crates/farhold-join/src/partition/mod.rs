//! Radix partitioning: histogram, software write-combining, streaming stores.
//!
//! ```text
//!   input ──▶ histogram of each part of it ──▶ prefix sums: where part w writes partition p
//!   input ──▶ some cache lines a partition, in the second-level cache ── full ──▶ streamed to their place in memory
//! ```
//!
//! A tuple is written once, whole lines go past the cache, and a worker touches one page a flush instead of one a
//! tuple. A tuple that fills its buffer is a branch that no predictor foresees; it costs what six tuples cost. So
//! buffers are longer than the line that streaming needs. From one line to eight (64 to 512 bytes), one thread went
//! from 3.6 to 2.1 ns a tuple of 16 bytes and from 2.4 to 1.8 of 8 (Zen 5, fan-out 512; 4096: 3.9 to 2.3, 2.5 to 1.8).
//!
//! Sources: the Triton join (SIGMOD 2022), section 2.2 and its CPU baseline; Schuh, Chen, Dittrich: "An Experimental
//! Comparison of Thirteen Relational Equi-Joins in Main Memory" (SIGMOD 2016).

mod scatter;
mod source;
mod tuples;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::columns::Columns;
use crate::pages::Pages;
use crate::widest::widest;
use crate::{JoinError, Run};
use scatter::Scatter;
use source::{Coded, Source};

pub use scatter::{buffer_bytes, fence_streams, slots, stream};
pub use source::{ByHash, Partitioner};
pub use tuples::{MediumTuple, NarrowTuple, Tuple, WideTuple};

/// Tuples between two checks of the cancel token.
const MORSEL: usize = 1 << 18;

/// The widest fan-out of one pass; the Triton paper's CPU baseline (section 6.1) uses 12 to 14 bits.
pub const PASS_BITS_MAX: u32 = 12;

/// Rows that are processed together, for operations that handle several at once.
pub const BLOCK: usize = 64;

/// Tuples ordered by partition.
#[derive(Debug)]
pub struct Partitioned<T: Tuple> {
    tuples: Pages<T>,
    /// Partition `p` is `starts[p]..starts[p + 1]`.
    starts: Vec<usize>,
}

impl<T: Tuple> Partitioned<T> {
    /// The number of partitions.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The range of partition `p`.
    pub fn range(&self, partition: usize) -> Range<usize> {
        self.starts[partition]..self.starts[partition + 1]
    }

    /// The tuples of a partition.
    pub fn tuples(&self, partition: usize) -> &[T] {
        &self.tuples[self.range(partition)]
    }

    /// All tuples; and where the partitions start and the last ends.
    pub fn into_parts(self) -> (Pages<T>, Vec<usize>) {
        (self.tuples, self.starts)
    }
}

/// An upper bound of the bytes that [`partition`] allocates without the input. With more than one pass there are two
/// copies.
pub fn partition_bytes(rows: usize, bits: u32, threads: usize) -> u64 {
    let copies = if bits > PASS_BITS_MAX { 2 } else { 1 };
    let copy = 16 * rows as u64 + if rows * 16 >= 2 << 20 { 2 << 20 } else { 0 };
    let parts = 1_usize << bits.min(PASS_BITS_MAX);
    let lists = (self::parts(rows, threads) * parts * (4 + 4)) as u64;
    copies * copy + (threads * parts * (buffer_bytes(parts) + 4 + 4)) as u64 + lists + (8 << bits) * 2
}

/// Orders the rows by the `1 << bits` partitions of `by`, in as many passes as the fan-out needs. `None`: some payload
/// does not fit in a tuple. Every code must fit.
pub fn partition<T: Tuple>(
    columns: Columns<'_>,
    by: impl Partitioner,
    bits: u32,
    run: &Run,
) -> Result<Option<Partitioned<T>>, JoinError> {
    let passes = bits.div_ceil(PASS_BITS_MAX).max(1);
    let mut done_bits = bits.div_ceil(passes);
    let source = Coded { columns, by };
    let Some(mut partitioned) = first_pass(source, |code| by.partition(code, done_bits), 1 << done_bits, run)? else {
        return Ok(None);
    };
    while done_bits < bits {
        let next_bits = (bits - done_bits).min(PASS_BITS_MAX);
        partitioned = refine(&partitioned, by, done_bits, next_bits, run)?;
        done_bits += next_bits;
    }
    Ok(Some(partitioned))
}

fn first_pass<S: Source, T: Tuple>(
    source: S,
    of: impl Fn(u64) -> usize + Sync + Copy,
    count: usize,
    run: &Run,
) -> Result<Option<Partitioned<T>>, JoinError> {
    let mut tuples = Pages::<T>::stale(source.len(), &run.pages)?;
    let out = tuples.shared();
    if count == 1 {
        let fits = run.on_all(|worker| {
            let mut payload_bits = 0;
            for morsel in morsels(run.part(source.len(), worker)) {
                run.cancel.check()?;
                // SAFETY: the workers' parts are disjoint.
                let to = unsafe { out.slice(morsel.clone()) };
                payload_bits |= widest!(|_| source.tuples(morsel, to));
            }
            Ok(T::holds(payload_bits))
        })?;
        let starts = vec![0, source.len()];
        return Ok(fits.into_iter().all(|fits| fits).then_some(Partitioned { tuples, starts }));
    }
    // More parts than workers. Both steps use the same parts, because the histogram says where a part's tuples go.
    let parts = parts(source.len(), run.threads);
    let part = |part: usize| source.len() * part / parts..source.len() * (part + 1) / parts;
    let histograms = run.on_tasks(parts, |task| {
        let mut histogram = vec![0_u32; count];
        for morsel in morsels(part(task)) {
            run.cancel.check()?;
            widest!(|_| count_codes(source, morsel, of, &mut histogram));
        }
        Ok(histogram)
    })?;
    let (starts, positions) = prefix_sums(histograms, 0);
    let fits = run.on_tasks_with(
        parts,
        || Scatter::<T>::new(count),
        |scatter, task| {
            scatter.start(&positions[task]);
            for morsel in morsels(part(task)) {
                run.cancel.check()?;
                // SAFETY: the histograms counted these very tuples, so each part's positions lie in the array, apart
                // from those of every other part.
                if !T::holds(widest!(|vectors| unsafe { scatter.tuples(source, morsel, of, out, vectors) })) {
                    return Ok(false);
                }
            }
            // SAFETY: as above.
            unsafe { scatter.finish(out) };
            Ok(true)
        },
    )?;
    Ok(fits.into_iter().all(|fits| fits).then_some(Partitioned { tuples, starts }))
}

/// Four parts a worker, unless they would be short.
fn parts(rows: usize, threads: usize) -> usize {
    if threads == 1 { 1 } else { (4 * threads).min(rows / MORSEL).max(threads) }
}

/// Splits every partition further. Workers take whole partitions; all workers together split a partition that holds
/// more than its share.
fn refine<T: Tuple>(
    coarse: &Partitioned<T>,
    by: impl Partitioner,
    done_bits: u32,
    next_bits: u32,
    run: &Run,
) -> Result<Partitioned<T>, JoinError> {
    let (fan_out, bits) = (1 << next_bits, done_bits + next_bits);
    let of = |code| by.partition(code, bits) & (fan_out - 1);
    let total = coarse.tuples.len();
    let mut tuples = Pages::<T>::stale(total, &run.pages)?;
    let out = tuples.shared();
    let next = AtomicUsize::new(0);
    let is_big = |partition: usize| coarse.range(partition).len() > (total / run.threads).max(MORSEL);
    let finished = run.on_all(|_| {
        let (mut finished, mut scatter) = (Vec::new(), Scatter::new(fan_out)?);
        loop {
            let partition = next.fetch_add(1, Relaxed);
            if partition >= coarse.count() {
                return Ok(finished);
            }
            if is_big(partition) {
                continue;
            }
            run.cancel.check()?;
            let (source, range) = (coarse.tuples(partition), coarse.range(partition));
            let mut histogram = vec![0; fan_out];
            widest!(|_| count_codes(source, 0..source.len(), of, &mut histogram));
            let (starts, positions) = prefix_sums(vec![histogram], range.start);
            scatter.start(&positions[0]);
            // SAFETY: the positions lie in this partition's range, which one worker takes.
            unsafe {
                widest!(|vectors| scatter.tuples(source, 0..source.len(), of, out, vectors));
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
        let part: Option<Partitioned<T>> = first_pass(coarse.tuples(partition), of, fan_out, run)?;
        let (part, fine) = part.expect("payloads that came out of such tuples").into_parts();
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
fn count_codes<S: Source>(source: S, range: Range<usize>, of: impl Fn(u64) -> usize, histogram: &mut [u32]) {
    let mask = power_of_two_mask(histogram.len());
    let (mut codes, mut partitions) = ([0; BLOCK], [0; BLOCK]);
    for start in range.clone().step_by(BLOCK) {
        let rows = BLOCK.min(range.end - start);
        source.codes(start..start + rows, &mut codes[..rows]);
        partitions.iter_mut().zip(&codes).for_each(|(partition, &code)| *partition = of(code) & mask);
        for &partition in &partitions[..rows] {
            // SAFETY: the mask keeps `partition` below the length.
            *unsafe { histogram.get_unchecked_mut(partition) } += 1;
        }
    }
}

/// A mask that keeps an index below `len`, which must be a power of two. Partitions are numbered below it anyway; this
/// proves it at no cost.
fn power_of_two_mask(len: usize) -> usize {
    assert!(len.is_power_of_two());
    len - 1
}

/// Where each partition starts and the last ends; and, in place of the histograms, where each part's tuples of each
/// partition start.
fn prefix_sums(mut histograms: Vec<Vec<u32>>, origin: usize) -> (Vec<usize>, Vec<Vec<u32>>) {
    let count = histograms[0].len();
    let mut starts = Vec::with_capacity(count + 1);
    let mut at = origin;
    for partition in 0..count {
        starts.push(at);
        for histogram in &mut histograms {
            // Columns have fewer than 2^32 rows.
            let rows = std::mem::replace(&mut histogram[partition], at as u32);
            at += rows as usize;
        }
    }
    starts.push(at);
    (starts, histograms)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::hash::{hash, top};

    /// Partitions by the top bits of keys that are their own codes.
    #[derive(Clone, Copy)]
    pub struct Top(pub u32);

    impl Partitioner for Top {
        fn code(&self, key: u64) -> u64 {
            key
        }

        fn partition(&self, code: u64, bits: u32) -> usize {
            top(code << (64 - self.0), bits)
        }
    }

    fn check<T: Tuple>(keys: &[u64], by: Top, bits: u32, threads: usize) {
        let payloads: Vec<u64> = (0..keys.len() as u64).collect();
        let source = Columns::new(keys, &payloads).unwrap();
        let partitioned = partition::<T>(source, by, bits, &Run::with_threads(threads)).unwrap().expect("room");
        let bytes = partitioned.tuples.bytes() + 8 * partitioned.starts.len() as u64;
        assert!(bytes <= partition_bytes(keys.len(), bits, threads));
        assert_eq!(partitioned.count(), 1 << bits);
        let mut seen = vec![false; keys.len()];
        for part in 0..partitioned.count() {
            for tuple in partitioned.tuples(part) {
                assert_eq!(by.partition(tuple.code(), bits), part);
                let row = tuple.payload().into() as usize;
                assert_eq!(keys[row], tuple.code());
                assert!(!std::mem::replace(&mut seen[row], true), "a tuple twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen), "a tuple is missing");
    }

    #[test]
    fn every_tuple_reaches_its_partition_once() {
        for rows in [0, 1, 3, 64, 5000] {
            let random: Vec<u64> = (0..rows).map(|row| hash(row, 5)).collect();
            let skewed: Vec<u64> = random.iter().map(|key| if key % 4 > 0 { 9 << 60 } else { *key }).collect();
            let short = |keys: &[u64]| keys.iter().map(|key| key >> 32).collect::<Vec<_>>();
            for (bits, threads) in [(0, 1), (0, 3), (1, 2), (5, 1), (5, 3), (12, 2), (13, 2), (15, 3)] {
                for keys in [&random, &skewed] {
                    check::<WideTuple>(keys, Top(64), bits, threads);
                    check::<MediumTuple>(keys, Top(64), bits, threads);
                    check::<NarrowTuple>(&short(keys), Top(32), bits, threads);
                }
            }
        }
    }

    #[test]
    fn a_partition_above_its_share_is_split_by_all_workers() {
        let mostly_one: Vec<u64> =
            (0..MORSEL as u64 + 9000).map(|row| if row % 50 == 0 { hash(row, 5) } else { row }).collect();
        check::<WideTuple>(&mostly_one, Top(64), 14, 4);
    }

    #[test]
    fn a_payload_without_room_is_noticed_wherever_it_is() {
        let keys: Vec<u64> = (0..1000).collect();
        for bits in [0, 3, 13] {
            for wide_row in [0, 500, 999] {
                let mut payloads = vec![u64::from(u32::MAX); 1000];
                let is_partitioned = |payloads: &[u64]| {
                    let columns = Columns::new(&keys, payloads).unwrap();
                    partition::<NarrowTuple>(columns, Top(32), bits, &Run::with_threads(3)).unwrap().is_some()
                };
                assert!(is_partitioned(&payloads));
                payloads[wide_row] += 1;
                assert!(!is_partitioned(&payloads));
            }
        }
    }
}
