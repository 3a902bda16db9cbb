//! Radix partitioning without a histogram, for partitions that are read once: a partition is a list of slices.
//!
//! ```text
//!   input ── morsel by morsel ──▶ cache lines a partition ── full ──▶ the worker's chunk of that partition ── full ──▶ another chunk
//! ```
//!
//! A histogram says where tuples go, but every key must be read and hashed once more for it. Here each worker writes a
//! partition's tuples to chunks of its own, which it takes from the array as it needs them. Workers take the next
//! morsel in turn, since the place of its tuples is not decided beforehand: a worker that is held up does not hold up
//! the others. The price is one partly filled chunk for each worker and partition.
//!
//! Positions are computed for a block of tuples before the first of them is written. When each tuple was written as
//! soon as its position was known, the load of the next position waited for the address of that store: 5.1 ns a tuple
//! of 16 bytes, against 4.6 now (Zen 3, four threads, fan-out 1024).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::columns::Columns;
use crate::pages::{Pages, Shared};
use crate::partition::{self, BLOCK, PASS_BITS_MAX, Partitioned, Partitioner, Tuple};
use crate::widest::{Vectors, widest};
use crate::{JoinError, Run};
use farhold_planted::Defect;

/// Rows that a worker takes at a time.
const MORSEL: usize = 1 << 16;
/// Tuples of the longest chunk, and of the longest slice.
const CHUNK_MAX: usize = 1 << 10;
/// The chunks of all workers that are not full may take at most one part in this many of a partition's rows.
const WASTE_PART: usize = 4;
/// At a time, a worker takes one part in this many of its share of the rows from the array, at most a huge page. When
/// several workers touch a fresh huge page at once, it is zeroed once for each of them.
const TAKEN_PART: usize = 16;
const TAKEN_BYTES_MAX: usize = 2 << 20;
/// Stands for no position. It is a multiple of every chunk's length, so that a chunk is taken for the next tuple.
const NONE: u32 = !(CHUNK_MAX as u32 - 1);

/// Tuples by partition, each a list of slices.
#[derive(Debug)]
pub struct Sliced<T: Tuple> {
    tuples: Pages<T>,
    slices: Vec<Slice>,
    /// The slices of partition `p` are `starts[p]..starts[p + 1]`.
    starts: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    start: u32,
    len: u32,
}

impl<T: Tuple> Sliced<T> {
    /// The number of partitions.
    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// The numbers of a partition's slices.
    pub fn slices(&self, partition: usize) -> Range<usize> {
        self.starts[partition] as usize..self.starts[partition + 1] as usize
    }

    /// The number of tuples of a slice, at least one.
    pub fn len_of(&self, slice: usize) -> usize {
        self.slices[slice].len as usize
    }

    /// The number of tuples of some slices.
    pub fn rows(&self, slices: Range<usize>) -> usize {
        self.slices[slices].iter().map(|slice| slice.len as usize).sum()
    }

    /// The slice with this number.
    #[inline(always)]
    pub fn slice(&self, slice: usize) -> &[T] {
        let Slice { start, len } = self.slices[slice];
        &self.tuples[start as usize..][..len as usize]
    }

    /// The slices with these numbers. Each prefetches the first lines of the next, which no processor does by itself.
    #[inline(always)]
    pub fn each(&self, slices: Range<usize>) -> impl Iterator<Item = &[T]> + Clone {
        let end = slices.end;
        slices.map(
            #[inline(always)]
            move |slice| {
                if slice + 1 < end {
                    prefetch_start(self.slice(slice + 1));
                }
                self.slice(slice)
            },
        )
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.tuples.bytes() + (size_of::<Slice>() * self.slices.len() + 4 * self.starts.len()) as u64
    }

    fn of(partitioned: Partitioned<T>) -> Self {
        let (tuples, bounds) = partitioned.into_parts();
        let (mut slices, mut starts) = (Vec::new(), vec![0]);
        for bounds in bounds.windows(2) {
            for start in (bounds[0]..bounds[1]).step_by(CHUNK_MAX) {
                // Columns have fewer than 2^32 rows.
                slices.push(Slice { start: start as u32, len: CHUNK_MAX.min(bounds[1] - start) as u32 });
            }
            starts.push(slices.len() as u32);
        }
        Self { tuples, slices, starts }
    }
}

/// Lines that a processor has not yet begun to fetch by itself when the first of them is read.
const LINES_AHEAD: usize = 8;

#[inline(always)]
fn prefetch_start<T>(slice: &[T]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..LINES_AHEAD {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may name any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().cast::<i8>().wrapping_add(64 * line)) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = slice;
}

/// How an input is cut into chunks.
#[derive(Debug, Clone, Copy)]
struct Chunks {
    /// Tuples of each: a power of two, and a multiple of a write-combining buffer's.
    len: usize,
    count: usize,
    /// Chunks that a worker takes from the array at a time.
    at_once: usize,
}

impl Chunks {
    /// `None` where a partition is not a list of chunks.
    fn of(rows: usize, bits: u32, threads: usize, tuple_bytes: usize) -> Option<Self> {
        if bits == 0 || bits > PASS_BITS_MAX {
            return None;
        }
        let open = threads << bits;
        let wanted = (rows / open / WASTE_PART).max(1);
        let len = (1 << wanted.ilog2()).clamp(partition::slots(1 << bits, tuple_bytes), CHUNK_MAX);
        // All full chunks; for each worker one partly filled chunk per partition, and those that it has taken and does
        // not use.
        let at_once = (rows / threads / TAKEN_PART / len).clamp(1, TAKEN_BYTES_MAX / (len * tuple_bytes));
        let count = rows / len + open.min(rows) + threads * (at_once - 1);
        // Workers take `at_once` chunks at a time.
        let count = count.next_multiple_of(at_once);
        (len * count < NONE as usize).then_some(Self { len, count, at_once })
    }
}

/// An upper bound of the bytes that [`partition`] allocates without the input, for any tuples and any number of bits up
/// to `bits_max`.
pub fn partition_bytes(rows: usize, bits_max: u32, threads: usize) -> u64 {
    let bytes = |bits: u32, tuple_bytes| match Chunks::of(rows, bits, threads, tuple_bytes) {
        Some(Chunks { len, count, .. }) => {
            let array = tuple_bytes * len * count;
            let last_page = if array >= 2 << 20 { 2 << 20 } else { 0 };
            let buffers = threads * ((partition::buffer_bytes(1 << bits) + 4 + 4) << bits);
            // The lists of chunks grow, and then become one.
            (array + last_page + buffers + 48 * count + (16 << bits)) as u64
        }
        None => partition::partition_bytes(rows, bits, threads) + 16 * (rows / CHUNK_MAX + (2 << bits)) as u64,
    };
    (0..=bits_max).flat_map(|bits| [8, 12, 16].map(|tuple_bytes| bytes(bits, tuple_bytes))).max().unwrap_or(0)
}

/// As [`partition::partition`], but as slices.
pub fn partition<T: Tuple>(
    columns: Columns<'_>,
    by: impl Partitioner,
    bits: u32,
    run: &Run,
) -> Result<Option<Sliced<T>>, JoinError> {
    let Some(chunks) = Chunks::of(columns.len(), bits, run.threads, size_of::<T>()) else {
        return Ok(partition::partition(columns, by, bits, run)?.map(Sliced::of));
    };
    let mut tuples = Pages::<T>::stale(chunks.len * chunks.count, &run.pages)?;
    let out = tuples.shared();
    let (next, taken, is_refused) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let workers = run.on_all(|_| {
        let mut scatter = Scatter::<T>::new(1 << bits, chunks, out, &taken)?;
        loop {
            let start = next.fetch_add(MORSEL, Relaxed);
            if start >= columns.len() || is_refused.load(Relaxed) {
                return Ok(scatter.finish());
            }
            run.cancel.check()?;
            let rows = start..(start + MORSEL).min(columns.len());
            let payload_bits = widest!(|vectors| scatter.tuples(columns, rows, by, bits, vectors));
            if !T::holds(payload_bits) {
                is_refused.store(true, Relaxed);
            }
        }
    })?;
    if is_refused.into_inner() {
        return Ok(None);
    }
    let (slices, starts) = by_partition(&workers, 1 << bits);
    Ok(Some(Sliced { tuples, slices, starts }))
}

/// The contents of the workers' chunks in the order of the partitions; and where in this list each partition starts and
/// the last ends.
fn by_partition(workers: &[Vec<(u32, Slice)>], count: usize) -> (Vec<Slice>, Vec<u32>) {
    let mut ends = vec![0_u32; count + 1];
    workers.iter().flatten().for_each(|&(partition, _)| ends[partition as usize] += 1);
    let mut end = 0;
    for at in &mut ends {
        end += *at;
        *at = end;
    }
    let mut slices = vec![Slice::default(); end as usize];
    for &(partition, slice) in workers.iter().flatten().rev() {
        let at = &mut ends[partition as usize];
        *at -= 1;
        slices[*at as usize] = slice;
    }
    (slices, ends)
}

/// One worker's write-combining buffers and chunks. The tuple for `position` waits in slot `position % slots` of its
/// partition's buffer.
///
/// A full buffer is streamed when the next tuple of its partition comes: the load of a line whose last tuple has just
/// been stored would wait until that store has left the processor.
struct Scatter<'a, T: Tuple> {
    buffers: Pages<T>,
    /// Slots of each buffer; a power of two.
    slots: usize,
    /// For each partition, the position of the next tuple; [`NONE`] before the first, and the chunk's end where the
    /// chunk is full.
    next: Vec<u32>,
    /// For each partition, where the tuples in the buffer go; [`NONE`] before the first.
    waiting: Vec<u32>,
    /// Partition and start of every chunk.
    chunks: Vec<(u32, u32)>,
    cut: Chunks,
    /// Chunks that have been taken from the array and are not in use.
    spare: Range<usize>,
    /// Tuples for which all workers have taken room from the array.
    taken: &'a AtomicUsize,
    out: Shared<'a, T>,
}

impl<'a, T: Tuple> Scatter<'a, T> {
    fn new(fan_out: usize, cut: Chunks, out: Shared<'a, T>, taken: &'a AtomicUsize) -> Result<Self, JoinError> {
        let slots = partition::slots(fan_out, size_of::<T>());
        assert!(cut.len.is_multiple_of(slots) && cut.len <= CHUNK_MAX && fan_out.is_power_of_two());
        Ok(Self {
            buffers: Pages::new(slots * fan_out)?,
            slots,
            next: vec![NONE; fan_out],
            waiting: vec![NONE; fan_out],
            chunks: Vec::new(),
            cut,
            spare: 0..0,
            taken,
            out,
        })
    }

    /// Where the partition's next chunk starts.
    #[cold]
    #[inline(never)]
    fn new_chunk(&mut self, partition: usize) -> u32 {
        if self.spare.is_empty() {
            let room = self.cut.at_once * self.cut.len;
            let start = self.taken.fetch_add(room, Relaxed);
            assert!(start + room <= self.out.len(), "an array for fewer tuples");
            self.spare = start..start + room;
        }
        let start = self.spare.start;
        self.spare.start += self.cut.len;
        self.chunks.push((partition as u32, start as u32));
        start as u32
    }

    /// Returns the bits of all payloads, combined by OR. The processor must have these `vectors`.
    #[inline(always)]
    fn tuples(
        &mut self,
        columns: Columns<'_>,
        range: Range<usize>,
        by: impl Partitioner,
        bits: u32,
        vectors: Vectors,
    ) -> u64 {
        let (fan_out, chunk_mask) = (self.next.len(), self.cut.len as u32 - 1);
        let (slot_mask, slots_log) = (self.slots as u32 - 1, self.slots.ilog2());
        assert!(fan_out == 1 << bits && self.waiting.len() == fan_out && self.buffers.len() == fan_out << slots_log);
        let (buffers, next, waiting) = (self.buffers.as_mut_ptr(), self.next.as_mut_ptr(), self.waiting.as_mut_ptr());
        let mut payload_bits = 0;
        let (mut codes, mut partitions, mut positions) = ([0; BLOCK], [0_u32; BLOCK], [0_u32; BLOCK]);
        let (keys, payloads) = (&columns.keys()[range.clone()], &columns.payloads()[range]);
        for (keys, payloads) in keys.chunks(BLOCK).zip(payloads.chunks(BLOCK)) {
            for ((code, partition), &key) in codes.iter_mut().zip(&mut partitions).zip(keys) {
                *code = by.code(key);
                *partition = (by.partition(*code, bits) & (fan_out - 1)) as u32;
            }
            for (position, &partition) in positions.iter_mut().zip(&partitions[..keys.len()]) {
                // SAFETY: the mask keeps the partition below the length.
                let next = unsafe { &mut *next.add(partition as usize) };
                *position = if *next & chunk_mask == 0 { self.new_chunk(partition as usize) } else { *next };
                *next = *position + 1;
            }
            let rows = codes.iter().zip(&partitions).zip(&positions).zip(payloads);
            for (((&code, &partition), &position), &payload) in rows {
                payload_bits |= payload;
                // SAFETY: the mask keeps the partition below the number of buffers and of entries in `waiting`, and the
                // slot is one of its buffer's. The tuples in the buffer go to a place of this worker's chunk of the
                // partition, which has room for a buffer from there on: buffers and chunks begin at multiples of
                // `slots`, to which the array and the buffers are aligned, and which are whole lines.
                unsafe {
                    let buffer = buffers.add((partition as usize) << slots_log);
                    if position & slot_mask == 0 {
                        let waiting = &mut *waiting.add(partition as usize);
                        if *waiting != NONE {
                            partition::stream(buffer, self.out.at(*waiting as usize), 1 << slots_log, vectors);
                        }
                        *waiting = position;
                    }
                    buffer.add((position & slot_mask) as usize).write(T::new(code, payload));
                }
            }
        }
        payload_bits
    }

    /// Writes the tuples that wait in the buffers. Returns the contents of the chunks, and the partition of each.
    fn finish(self) -> Vec<(u32, Slice)> {
        for ((buffer, &waiting), &next) in self.buffers.chunks_exact(self.slots).zip(&self.waiting).zip(&self.next) {
            if waiting != NONE && !farhold_planted::is(Defect::LostLines) {
                let rows = (next - waiting) as usize;
                // SAFETY: from `waiting` on, which is a multiple of `slots`, this worker's chunk has room for a buffer.
                unsafe { self.out.slice(waiting as usize..waiting as usize + rows) }.copy_from_slice(&buffer[..rows]);
            }
        }
        partition::fence_streams();
        let slice = |&(partition, start): &(u32, u32)| {
            // A worker fills the chunks of a partition one after the other, and only the last may have room left.
            let len = (self.next[partition as usize] - start).min(self.cut.len as u32);
            (partition, Slice { start, len })
        };
        self.chunks.iter().map(slice).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;
    use crate::partition::tests::Top;
    use crate::partition::{MediumTuple, NarrowTuple, WideTuple};

    fn check<T: Tuple>(keys: &[u64], by: Top, bits: u32, threads: usize) {
        let payloads: Vec<u64> = (0..keys.len() as u64).collect();
        let columns = Columns::new(keys, &payloads).unwrap();
        let sliced = partition::<T>(columns, by, bits, &Run::with_threads(threads)).unwrap().expect("room");
        let context = format!("{} keys, {bits} bits, {threads} threads", keys.len());
        assert!(sliced.bytes() <= partition_bytes(keys.len(), bits, threads), "{context}");
        assert_eq!(sliced.count(), 1 << bits);
        let mut seen = vec![false; keys.len()];
        for part in 0..sliced.count() {
            let slices = sliced.slices(part);
            assert_eq!(sliced.rows(slices.clone()), sliced.each(slices.clone()).map(<[T]>::len).sum::<usize>());
            for slice in sliced.each(slices) {
                assert!((1..=CHUNK_MAX).contains(&slice.len()), "{context}");
                for tuple in slice {
                    assert_eq!(by.partition(tuple.code(), bits), part);
                    let row = tuple.payload().into() as usize;
                    assert_eq!(keys[row], tuple.code());
                    assert!(!std::mem::replace(&mut seen[row], true), "a tuple twice: {context}");
                }
            }
        }
        assert!(seen.iter().all(|&seen| seen), "a tuple is missing: {context}");
    }

    #[test]
    fn every_tuple_reaches_its_partition_once() {
        // From fewer rows than partitions to several chunks for each worker. The chunks of 10 and 11 bits with the last
        // number of rows are the shortest.
        for rows in [0, 1, 3, 64, 5000, 3 * MORSEL as u64 + 77] {
            let random: Vec<u64> = (0..rows).map(|row| hash(row, 5)).collect();
            let skewed: Vec<u64> = random.iter().map(|key| if key % 4 > 0 { 9 << 60 } else { *key }).collect();
            let in_order: Vec<u64> = (0..rows).map(|row| row << 45).collect();
            let short = |keys: &[u64]| keys.iter().map(|key| key >> 32).collect::<Vec<_>>();
            for (bits, threads) in [(0, 3), (1, 2), (2, 1), (5, 1), (5, 3), (10, 2), (11, 4), (12, 2), (13, 2)] {
                for keys in [&random, &skewed, &in_order] {
                    check::<WideTuple>(keys, Top(64), bits, threads);
                    check::<MediumTuple>(keys, Top(64), bits, threads);
                    check::<NarrowTuple>(&short(keys), Top(32), bits, threads);
                }
            }
        }
    }

    #[test]
    fn chunks_have_room_for_all_rows_and_little_more() {
        for rows in [0, 1, 1000, 20_000, 1_000_000, 16_000_000, 400_000_000] {
            for (bits, threads) in [(1, 1), (3, 4), (8, 1), (10, 4), (12, 4), (12, 64)] {
                let Chunks { len, count, at_once } = Chunks::of(rows, bits, threads, 16).unwrap();
                assert!(len.is_power_of_two() && count.is_multiple_of(at_once));
                // The worst case: as many chunks with one row as possible, all others full, and of each take only one
                // chunk in use.
                let open = (threads << bits).min(rows);
                assert!((rows - open) / len + open + threads * (at_once - 1) <= count, "{rows} {bits} {threads}");
                if rows >= threads << (bits + 9) {
                    assert!(len * count <= rows + rows / 2, "{rows} {bits} {threads}: {len} x {count}");
                }
            }
        }
        assert!(Chunks::of(usize::try_from(u32::MAX).unwrap() - 2, 12, 4, 16).is_none(), "positions have 32 bits");
    }

    #[test]
    fn a_payload_without_room_is_noticed_wherever_it_is() {
        let rows = 2 * MORSEL + 1000;
        let keys: Vec<u64> = (0..rows as u64).collect();
        for wide_row in [0, MORSEL, rows - 1] {
            let mut payloads = vec![u64::from(u32::MAX); rows];
            let is_partitioned = |payloads: &[u64]| {
                let columns = Columns::new(&keys, payloads).unwrap();
                partition::<NarrowTuple>(columns, Top(32), 3, &Run::with_threads(3)).unwrap().is_some()
            };
            assert!(is_partitioned(&payloads));
            payloads[wide_row] += 1;
            assert!(!is_partitioned(&payloads));
        }
    }
}
