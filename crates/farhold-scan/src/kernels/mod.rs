//! Which codes of a packed block are in a range: one function for each kind of processor.
//!
//! A kernel takes a row of lanes into registers, subtracts the range's first code, compares with its span, and leaves the bits of consecutive codes in
//! consecutive places. A range of one code is compared at once. The kernel stores nothing else, so its speed is that of reading the codes: see
//! `benches/kernels.rs`. A code that lies in one word is compared in place, without a shift. With AVX2, in the second-level cache of a third-generation EPYC,
//! this and the single comparison gain 60 % for equality on 2, 4 and 8 bits and 27 % on 10 bits; ranges gain 35 % on 2 bits and 5 to 25 % on others. From
//! memory, the gain is some 10 %, measured on a busy machine. The gain with AVX-512 is unmeasured.
//!
//! All kernels give the same bits. The codes of a block are those of [`farhold_store::column::pack`].

use farhold_store::column::BLOCK_ROWS;
use farhold_store::column::pack::block_bytes;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod conformance;
mod portable;

use std::sync::LazyLock;

/// A bit for each row of a block, from the lowest bit of the first word on.
pub type Bits = [u64; BLOCK_ROWS / 64];

/// Codes from a first to a last one, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    first: u64,
    span: u64,
}

impl Range {
    /// The codes from `first` to `last`; `None` if that is no range.
    #[must_use]
    pub const fn new(first: u64, last: u64) -> Option<Self> {
        if first <= last { Some(Self { first, span: last - first }) } else { None }
    }

    /// Whether a code is in one of some [merged](Self::merged) ranges.
    #[must_use]
    pub fn one_has(ranges: &[Self], code: u64) -> bool {
        let behind = ranges.partition_point(|range| range.first <= code);
        behind.checked_sub(1).is_some_and(|at| code - ranges[at].first <= ranges[at].span)
    }

    /// Ranges with the same codes that neither overlap nor adjoin, in order: a kernel runs once for each.
    #[must_use]
    pub fn merged(mut ranges: Vec<Self>) -> Vec<Self> {
        ranges.sort_unstable_by_key(|range| range.first);
        ranges.dedup_by(|next, range| {
            let joins = next.first - range.first <= range.span.saturating_add(1);
            if joins {
                range.span = range.span.max(next.first - range.first + next.span);
            }
            joins
        });
        ranges
    }

    /// The part of the range that codes of `width` bits can be in.
    fn of_width(self, width: u32) -> Option<Self> {
        let greatest = if width == 0 { 0 } else { u64::MAX >> (u64::BITS - width) };
        if self.first > greatest {
            None
        } else {
            Some(Self { first: self.first, span: self.span.min(greatest - self.first) })
        }
    }
}

/// A way to compare.
#[derive(Debug)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Whether this processor supports it.
    is_available: fn() -> bool,
    /// The codes are at least a block of that width, the range is within the width, and the width is 1 to 64.
    ///
    /// # Safety
    /// `is_available()` has returned true.
    select: unsafe fn(packed: &[u8], width: u32, range: Range, bits: &mut Bits),
}

/// All of them, the fastest first.
pub static ALL: &[Kernel] = &[
    #[cfg(target_arch = "x86_64")]
    avx512::KERNEL,
    #[cfg(target_arch = "x86_64")]
    avx2::KERNEL,
    portable::KERNEL,
];

impl Kernel {
    /// The fastest that this processor has.
    #[must_use]
    pub fn best() -> &'static Self {
        static BEST: LazyLock<&Kernel> = LazyLock::new(|| {
            ALL.iter().find(|kernel| kernel.is_available()).expect("the portable kernel is always there")
        });
        *BEST
    }

    /// Whether this processor can run it.
    #[must_use]
    pub fn is_available(&self) -> bool {
        (self.is_available)()
    }

    /// Sets in `bits` the bits of the codes of the block that are in the range.
    ///
    /// # Panics
    /// If `packed` is shorter than a block of codes of `width` bits, the width is above 64, or the processor cannot run this kernel.
    pub fn select(&self, packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
        assert!(width <= u64::BITS, "codes of {width} bits");
        assert!(packed.len() >= block_bytes(width), "a block of codes");
        let Some(range) = range.of_width(width) else {
            *bits = [0; BLOCK_ROWS / 64];
            return;
        };
        if width == 0 {
            *bits = [u64::MAX; BLOCK_ROWS / 64];
            return;
        }
        assert!(self.is_available(), "this processor has no {}", self.name);
        // SAFETY: the kernel has just been found to be available, and the three conditions of the contract have been checked.
        unsafe { (self.select)(packed, width, range, bits) }
    }
}

/// The row of lanes at `word` of a block, and the bytes that a processor's register needs of it: `word` counts rows of 128 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
fn row_of(packed: &[u8], word: u32) -> *const u8 {
    use farhold_store::column::pack::ROW_BYTES;
    packed[word as usize * ROW_BYTES..][..ROW_BYTES].as_ptr()
}
