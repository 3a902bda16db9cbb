//! A worker's write-combining buffers, and stores that go past the cache.

use std::ops::Range;

use farhold_planted::Defect;

use super::source::Source;
use super::tuples::Tuple;
use super::{BLOCK, power_of_two_mask};
use crate::JoinError;
use crate::pages::{Pages, Shared};
use crate::widest::Vectors;

const LINE_BYTES: usize = 64;

/// A partition's write-combining buffer, where the fan-out leaves room for one this long.
const BUFFER_BYTES_MAX: usize = 512;

/// All buffers of a worker together: the second-level cache of current cores.
const BUFFERS_BYTES_MAX: usize = 1 << 20;

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

/// One worker's write-combining buffers. The tuple for `position` waits in slot `position % slots` of its partition's
/// buffer, so that full buffers are aligned. A worker's first and last buffer may be partial; plain stores copy these.
///
/// A full buffer is streamed when the next tuple of its partition comes: the load of a line whose last tuple has just
/// been stored would wait until that store has left the processor.
pub(super) struct Scatter<T: Tuple> {
    buffers: Pages<T>,
    /// Slots of each buffer; a power of two.
    slots: usize,
    first: Vec<u32>,
    next: Vec<u32>,
}

impl<T: Tuple> Scatter<T> {
    pub(super) fn new(fan_out: usize) -> Result<Self, JoinError> {
        let slots = slots(fan_out, size_of::<T>());
        Ok(Self { buffers: Pages::new(slots * fan_out)?, slots, first: vec![0; fan_out], next: vec![0; fan_out] })
    }

    /// Sets the position to which the next tuple of each partition goes.
    pub(super) fn start(&mut self, positions: &[u32]) {
        self.first.copy_from_slice(positions);
        self.next.copy_from_slice(positions);
    }

    /// Returns the bits of all payloads, combined by OR.
    ///
    /// # Safety
    /// Every tuple's position, counted from the start of its partition in this worker's part, lies in `out`, and no
    /// other thread touches it. The processor must have these `vectors`.
    #[inline(always)]
    pub(super) unsafe fn tuples<S: Source>(
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
    pub(super) unsafe fn finish(&mut self, out: Shared<'_, T>) {
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
