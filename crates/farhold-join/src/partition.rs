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

use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::columns::Columns;
use crate::hash::{hash, top};
use crate::pages::{Pages, Plain, Shared};
use crate::widest::{Vectors, widest};
use crate::{JoinError, Run};
use farhold_planted::Defect;

/// The part of a row that a partition holds: the code of its key ([`Partitioner::code`]), and its payload.
pub trait Tuple: Plain + Debug + PartialEq {
    /// A payload, as wide as the tuple has room for.
    type Payload: Plain + PartialEq + Into<u64>;
    /// The greatest payload, which stands for no payload in a table.
    const NOTHING: Self::Payload;
    /// The greatest code that fits.
    const CODE_MAX: u64;

    /// The tuple of a code and a payload, both of which must fit.
    fn new(code: u64, payload: u64) -> Self;
    fn code(self) -> u64;
    fn payload(self) -> Self::Payload;
    /// Whether every payload fits that has no other bits than these.
    fn holds(payload_bits: u64) -> bool;

    /// Writes the tuple by a single store, so that a load of all of it can be answered while the store is in flight.
    ///
    /// # Safety
    /// `to` is aligned and writable, and no other thread touches it.
    #[inline(always)]
    unsafe fn write_whole(self, to: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { to.write(self) };
    }
}

/// Any key and any payload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct WideTuple {
    pub code: u64,
    pub payload: u64,
}

// SAFETY: two integers without padding.
unsafe impl Plain for WideTuple {}

impl Tuple for WideTuple {
    type Payload = u64;
    const NOTHING: u64 = u64::MAX;
    const CODE_MAX: u64 = u64::MAX;

    #[inline(always)]
    fn new(code: u64, payload: u64) -> Self {
        Self { code, payload }
    }

    #[inline(always)]
    fn code(self) -> u64 {
        self.code
    }

    #[inline(always)]
    fn payload(self) -> u64 {
        self.payload
    }

    #[inline(always)]
    fn holds(_: u64) -> bool {
        true
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    unsafe fn write_whole(self, to: *mut Self) {
        // SAFETY: a tuple is 16 bytes, 16-byte aligned, and the caller promises the rest. SSE2 is part of x86-64.
        unsafe {
            use std::arch::x86_64::{_mm_set_epi64x, _mm_store_si128};
            _mm_store_si128(to.cast(), _mm_set_epi64x(self.payload as i64, self.code as i64));
        }
    }
}

/// A code and a payload of 32 bits each, such as an offset in an interval and a row number: half as many bytes to write
/// and read again as with a [`WideTuple`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct NarrowTuple(u64);

// SAFETY: an integer.
unsafe impl Plain for NarrowTuple {}

impl Tuple for NarrowTuple {
    type Payload = u32;
    const NOTHING: u32 = u32::MAX;
    const CODE_MAX: u64 = u32::MAX as u64;

    #[inline(always)]
    fn new(code: u64, payload: u64) -> Self {
        Self(code << 32 | payload)
    }

    #[inline(always)]
    fn code(self) -> u64 {
        self.0 >> 32
    }

    #[inline(always)]
    fn payload(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    fn holds(payload_bits: u64) -> bool {
        u32::try_from(payload_bits).is_ok()
    }
}

/// Any code and a payload of 32 bits, such as a row number: three quarters of the bytes of a [`WideTuple`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct MediumTuple {
    code: u64,
    payload: u32,
}

// SAFETY: two integers without padding.
unsafe impl Plain for MediumTuple {}

impl Tuple for MediumTuple {
    type Payload = u32;
    const NOTHING: u32 = u32::MAX;
    const CODE_MAX: u64 = u64::MAX;

    #[inline(always)]
    fn new(code: u64, payload: u64) -> Self {
        Self { code, payload: payload as u32 }
    }

    #[inline(always)]
    fn code(self) -> u64 {
        self.code
    }

    #[inline(always)]
    fn payload(self) -> u32 {
        self.payload
    }

    #[inline(always)]
    fn holds(payload_bits: u64) -> bool {
        u32::try_from(payload_bits).is_ok()
    }
}

/// Tuples between two checks of the cancel token.
const MORSEL: usize = 1 << 18;
/// The widest fan-out of one pass; the Triton paper's CPU baseline (section 6.1) uses 12 to 14 bits.
pub const PASS_BITS_MAX: u32 = 12;
const LINE_BYTES: usize = 64;
/// A partition's write-combining buffer, where the fan-out leaves room for one this long.
const BUFFER_BYTES_MAX: usize = 512;
/// All buffers of a worker together: the second-level cache of current cores.
const BUFFERS_BYTES_MAX: usize = 1 << 20;

/// Rows that are processed together, for operations that handle several at once.
pub const BLOCK: usize = 64;

/// A source of tuples.
trait Source: Copy + Send + Sync {
    fn len(&self) -> usize;

    /// The codes of the rows `rows`, into a slice of the same length.
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]);

    /// The rows `rows` as tuples, into a slice of the same length. Returns the bits of all payloads, combined by OR.
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64;
}

/// Columns whose keys are turned into codes as they are read.
#[derive(Clone, Copy)]
struct Coded<'a, B> {
    columns: Columns<'a>,
    by: B,
}

impl<B: Partitioner> Source for Coded<'_, B> {
    fn len(&self) -> usize {
        self.columns.len()
    }

    #[inline(always)]
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]) {
        codes.iter_mut().zip(&self.columns.keys()[rows]).for_each(|(code, &key)| *code = self.by.code(key));
    }

    #[inline(always)]
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64 {
        let (keys, payloads) = (&self.columns.keys()[rows.clone()], &self.columns.payloads()[rows]);
        let mut payload_bits = 0;
        for ((tuple, &key), &payload) in tuples.iter_mut().zip(keys).zip(payloads) {
            payload_bits |= payload;
            *tuple = T::new(self.by.code(key), payload);
        }
        payload_bits
    }
}

impl<U: Tuple> Source for &[U] {
    fn len(&self) -> usize {
        <[U]>::len(self)
    }

    #[inline(always)]
    fn codes(&self, rows: Range<usize>, codes: &mut [u64]) {
        codes.iter_mut().zip(&self[rows]).for_each(|(code, tuple)| *code = tuple.code());
    }

    #[inline(always)]
    fn tuples<T: Tuple>(&self, rows: Range<usize>, tuples: &mut [T]) -> u64 {
        let mut payload_bits = 0;
        for (to, from) in tuples.iter_mut().zip(&self[rows]) {
            payload_bits |= from.payload().into();
            *to = T::new(from.code(), from.payload().into());
        }
        payload_bits
    }
}

/// The mapping of keys to partitions. The partitions of `bits` bits refine those of fewer bits.
pub trait Partitioner: Copy + Send + Sync {
    /// The code that stands for the key in a tuple. Different keys of a build side have different codes, and no other
    /// key has one of these.
    fn code(&self, key: u64) -> u64;
    /// The number of the partition, among `1 << bits`, of the key with this code.
    fn partition(&self, code: u64, bits: u32) -> usize;
}

/// Partitions by the top bits of the key's hash, which is its code.
#[derive(Debug, Clone, Copy)]
pub struct ByHash(pub u64);

impl Partitioner for ByHash {
    #[inline(always)]
    fn code(&self, key: u64) -> u64 {
        hash(key, self.0)
    }

    #[inline(always)]
    fn partition(&self, code: u64, bits: u32) -> usize {
        top(code, bits)
    }
}

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

/// Bytes of each write-combining buffer: a power of two, at least a line.
pub fn buffer_bytes(fan_out: usize) -> usize {
    (BUFFERS_BYTES_MAX / fan_out).clamp(LINE_BYTES, BUFFER_BYTES_MAX)
}

/// Tuples of a write-combining buffer: a power of two, and whole lines together.
pub fn slots(fan_out: usize, tuple_bytes: usize) -> usize {
    let slots = 1 << (buffer_bytes(fan_out) / tuple_bytes).ilog2();
    assert!((slots * tuple_bytes).is_multiple_of(LINE_BYTES));
    slots
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

/// One worker's write-combining buffers. The tuple for `position` waits in slot `position % slots` of its partition's
/// buffer, so that full buffers are aligned. A worker's first and last buffer may be partial; plain stores copy these.
///
/// A full buffer is streamed when the next tuple of its partition comes: the load of a line whose last tuple has just
/// been stored would wait until that store has left the processor.
struct Scatter<T: Tuple> {
    buffers: Pages<T>,
    /// Slots of each buffer; a power of two.
    slots: usize,
    first: Vec<u32>,
    next: Vec<u32>,
}

impl<T: Tuple> Scatter<T> {
    fn new(fan_out: usize) -> Result<Self, JoinError> {
        let slots = slots(fan_out, size_of::<T>());
        Ok(Self { buffers: Pages::new(slots * fan_out)?, slots, first: vec![0; fan_out], next: vec![0; fan_out] })
    }

    /// Sets the position to which the next tuple of each partition goes.
    fn start(&mut self, positions: &[u32]) {
        self.first.copy_from_slice(positions);
        self.next.copy_from_slice(positions);
    }

    /// Returns the bits of all payloads, combined by OR.
    ///
    /// # Safety
    /// Every tuple's position, counted from the start of its partition in this worker's part, lies in `out`, and no
    /// other thread touches it. The processor must have these `vectors`.
    #[inline(always)]
    unsafe fn tuples<S: Source>(
        &mut self,
        source: S,
        range: Range<usize>,
        of: impl Fn(u64) -> usize,
        out: Shared<'_, T>,
        vectors: Vectors,
    ) -> u64 {
        let buffers = self.buffers.as_mut_ptr();
        let (next, first) = (&mut self.next[..], &self.first[..]);
        let (mask, slot_mask, slots_log) = (power_of_two_mask(next.len()), self.slots - 1, self.slots.ilog2());
        assert!(first.len() == next.len() && self.buffers.len() == next.len() << slots_log);
        let mut payload_bits = 0;
        let (mut tuples, mut partitions) = ([T::new(0, 0); BLOCK], [0; BLOCK]);
        for start in range.clone().step_by(BLOCK) {
            let rows = BLOCK.min(range.end - start);
            payload_bits |= source.tuples(start..start + rows, &mut tuples[..rows]);
            partitions.iter_mut().zip(&tuples).for_each(|(to, tuple)| *to = of(tuple.code()) & mask);
            for (&tuple, &partition) in tuples[..rows].iter().zip(&partitions) {
                // SAFETY: the mask keeps `partition` below both lengths, and each buffer has `slots` slots. Positions
                // from `first` on are this worker's.
                unsafe {
                    let next = next.get_unchecked_mut(partition);
                    let position = *next as usize;
                    *next += 1;
                    let buffer = buffers.add(partition << slots_log);
                    if position & slot_mask == 0 {
                        let first = *first.get_unchecked(partition) as usize;
                        flush(buffer, slot_mask + 1, first..position, out, vectors);
                    }
                    tuple.write_whole(buffer.add(position & slot_mask));
                }
            }
        }
        payload_bits
    }

    /// Writes the tuples that wait in the buffers.
    ///
    /// # Safety
    /// As for [`Scatter::tuples`].
    unsafe fn finish(&mut self, out: Shared<'_, T>) {
        for (partition, buffer) in self.buffers.chunks_exact(self.slots).enumerate() {
            if farhold_planted::is(Defect::LostLines) {
                break;
            }
            let (first, next) = (self.first[partition] as usize, self.next[partition] as usize);
            if next > first {
                let start = (next - 1) & !(self.slots - 1);
                // SAFETY: these positions are this worker's and have not been written yet.
                unsafe { copy_part(buffer.as_ptr(), self.slots, start.max(first)..next, out) };
            }
        }
        fence_streams();
    }
}

/// Writes the tuples that a buffer holds before position `written.end`, where the next buffer begins. `written.start`
/// is the first position of all.
///
/// # Safety
/// `buffer` has `slots` slots, a power of two. The positions belong to this thread. The processor has these `vectors`.
#[inline(always)]
unsafe fn flush<T: Tuple>(buffer: *const T, slots: usize, written: Range<usize>, out: Shared<'_, T>, vectors: Vectors) {
    if written.end >= written.start + slots {
        // SAFETY: `written.end` is a multiple of `slots`, so the place is aligned like the array, to a line; buffers
        // are too.
        unsafe { stream(buffer, out.at(written.end - slots), slots, vectors) };
    } else if !written.is_empty() {
        // SAFETY: as the caller promises.
        unsafe { copy_part(buffer, slots, written, out) };
    }
}

/// # Safety
/// `range` lies between two multiples of `slots`, and no other thread touches it in `out`.
#[cold]
unsafe fn copy_part<T: Tuple>(buffer: *const T, slots: usize, range: Range<usize>, out: Shared<'_, T>) {
    for position in range {
        // SAFETY: as the caller promises.
        unsafe { out.at(position).write(buffer.add(position & (slots - 1)).read()) };
    }
}

/// Writes whole lines past the cache, with the widest stores available. Four quarters cost a few per cent more than a
/// line (Zen 5), and one per cent more than two halves (Zen 3).
///
/// # Safety
/// Both are 64-byte aligned, `count` tuples are a multiple of 64 bytes, `to` is writable and no other thread touches
/// it. The processor has these `vectors`.
#[inline(always)]
pub unsafe fn stream<T: Tuple>(from: *const T, to: *mut T, count: usize, vectors: Vectors) {
    debug_assert!([from as usize, to as usize].iter().all(|place| place.is_multiple_of(LINE_BYTES)));
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in 0..count * size_of::<T>() / LINE_BYTES {
        // SAFETY: as the caller promises. SSE2 is part of x86-64.
        unsafe {
            let (from, to) = (from.byte_add(line * LINE_BYTES), to.byte_add(line * LINE_BYTES));
            if vectors == Vectors::Avx512 {
                stream_line(from.cast(), to.cast());
            } else if vectors == Vectors::Avx2 {
                stream_halves(from.cast(), to.cast());
            } else {
                use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};
                let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
                (0..4).for_each(|quarter| _mm_stream_si128(to.add(quarter), _mm_load_si128(from.add(quarter))));
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: as the caller promises.
    unsafe {
        let _ = vectors;
        std::ptr::copy_nonoverlapping(from, to, count);
    }
}

/// # Safety
/// Both are 64-byte aligned lines, `to` is writable and no other thread touches it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn stream_line(from: *const std::arch::x86_64::__m512i, to: *mut std::arch::x86_64::__m512i) {
    // SAFETY: as the caller promises.
    unsafe { std::arch::x86_64::_mm512_stream_si512(to, std::arch::x86_64::_mm512_load_si512(from)) };
}

/// # Safety
/// As for [`stream_line`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn stream_halves(from: *const std::arch::x86_64::__m256i, to: *mut std::arch::x86_64::__m256i) {
    use std::arch::x86_64::{_mm256_load_si256, _mm256_stream_si256};
    // SAFETY: as the caller promises.
    unsafe { (0..2).for_each(|half| _mm256_stream_si256(to.add(half), _mm256_load_si256(from.add(half)))) };
}

/// Makes streamed lines visible before anything that this thread publishes next.
pub fn fence_streams() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

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
