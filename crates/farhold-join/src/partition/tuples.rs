//! What a partition holds of a row, in three widths.

use std::fmt::Debug;

use crate::pages::Plain;

/// The part of a row that a partition holds: the code of its key ([`Partitioner::code`](super::Partitioner::code)), and its payload.
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
