//! The bytes of a region, where this process can load and store them.
//!
//! All access goes through atomic words or through the racing copies of [`crate::copy`], because another thread or process may
//! write the same bytes at any time. Nothing borrows them as `&[u8]`, but where a caller promises that they never change
//! ([`RegionMemory::immutable`]). Where the bytes come from: [`mapping`]; objects in them:
//! [`objects`].

mod mapping;
mod objects;

use crate::address::FarPtr;
use crate::copy;
use crate::error::FabricError;

use crate::room::Room;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Memory of a region, mapped or allocated, shared with any number of threads. `len` is a multiple of 8, and the start is page
/// aligned.
pub struct RegionMemory {
    base: NonNull<u8>,
    len: u64,
    /// The address of the region's first byte, for errors.
    origin: FarPtr,
    backing: Backing,
    /// How its bytes get memory, if it must be requested.
    room: Option<Room>,
    /// See [`Self::keep_addresses`].
    keeps_addresses: AtomicBool,
}

enum Backing {
    /// An allocation of this process.
    #[cfg_attr(not(miri), allow(dead_code, reason = "Miri has no file mappings"))]
    Heap(std::alloc::Layout),
    /// A mapping of this many bytes; `durable`: of something that may outlast the machine's power.
    Mapped {
        bytes: usize,
        #[cfg_attr(miri, allow(dead_code, reason = "Miri has no file mappings"))]
        durable: bool,
    },
}

// SAFETY: the memory is owned by this value (unmapped on drop only) and every access to it is atomic or an opaque copy, so
// the thread does not matter.
unsafe impl Send for RegionMemory {}
// SAFETY: as for `Send`; shared references give only atomic words and racing copies.
unsafe impl Sync for RegionMemory {}

/// The sum of the whole words of private bytes, wrapping: [`RegionMemory::sum_words`] of a copy.
#[must_use]
#[inline]
pub fn sum_words(bytes: &[u8]) -> u64 {
    let words = bytes.len() / 8;
    if bytes.as_ptr().addr().is_multiple_of(8) {
        // SAFETY: `words` words of the slice, which is aligned and which no thread writes while it is borrowed.
        return unsafe { copy::sum_shared(bytes.as_ptr(), words) };
    }
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    bytes.as_chunks().0.iter().fold(0, |sum: u64, bytes| sum.wrapping_add(word(bytes)))
}

impl RegionMemory {
    /// Bytes of the region.
    #[must_use]
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The address of the region's first byte.
    #[must_use]
    #[inline]
    pub fn origin(&self) -> FarPtr {
        self.origin
    }

    /// The far pointer of an offset of this region.
    ///
    /// # Panics
    /// If the offset leaves its 48 bits.
    #[must_use]
    #[inline]
    pub fn far_ptr(&self, offset: u64) -> FarPtr {
        self.origin.add(offset)
    }

    /// Are `offset..offset + bytes` inside?
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`] if not.
    #[inline]
    pub fn check(&self, offset: u64, bytes: u64) -> Result<(), FabricError> {
        if bytes <= self.len && offset <= self.len - bytes { Ok(()) } else { Err(self.out_of_bounds(offset, bytes)) }
    }

    #[cold]
    fn out_of_bounds(&self, offset: u64, bytes: u64) -> FabricError {
        FabricError::OutOfBounds { at: self.name(offset), bytes, region_bytes: self.len }
    }

    #[cold]
    fn misaligned(&self, offset: u64, align: u64) -> FabricError {
        FabricError::Misaligned { at: self.name(offset), align }
    }

    /// For errors: also for offsets that no far pointer can express.
    fn name(&self, offset: u64) -> FarPtr {
        FarPtr::new(self.origin.node(), self.origin.region(), offset.min(FarPtr::OFFSET_MAX))
    }

    /// The 8-byte word at `offset`.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, FabricError> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: checked in the two lines above.
        Ok(unsafe { self.word_unchecked(offset) })
    }

    /// The 8-byte word at `offset`.
    ///
    /// # Safety
    /// `offset` is a multiple of 8 and `offset + 8 <= len`.
    #[inline]
    #[must_use]
    pub unsafe fn word_unchecked(&self, offset: u64) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        #[expect(clippy::cast_ptr_alignment, reason = "the start is page aligned and the offset a multiple of 8")]
        // SAFETY: inside the memory that lives as long as `self` and aligned, by the caller's promise; every other access to it
        // is atomic or an opaque copy.
        unsafe {
            &*self.base.as_ptr().add(offset as usize).cast::<AtomicU64>()
        }
    }

    /// Starts loading the cache lines of `offset..offset + len`, for a caller that will read them some 100 ns later. A hint: it
    /// reads nothing, and does nothing outside the region.
    #[inline(always)]
    pub fn prefetch(&self, offset: u64, len: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        self.hint::<{ std::arch::x86_64::_MM_HINT_T0 }>(offset, len);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (offset, len);
    }

    /// As [`Self::prefetch`], for a caller that will write them: lines that another processor has are requested at once.
    #[inline(always)]
    pub fn prefetch_to_write(&self, offset: u64, len: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        self.hint::<{ std::arch::x86_64::_MM_HINT_ET0 }>(offset, len);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (offset, len);
    }

    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn hint<const HINT: i32>(&self, offset: u64, len: u64) {
        const LINE_BYTES: u64 = 64;
        let end = offset.saturating_add(len).min(self.len);
        let mut at = offset & !(LINE_BYTES - 1);
        while at < end {
            // SAFETY: a prefetch changes nothing and faults on nothing; the address is inside the region all the same.
            unsafe { std::arch::x86_64::_mm_prefetch::<HINT>(self.base.as_ptr().add(at as usize).cast()) };
            at += LINE_BYTES;
        }
    }

    /// Copies bytes out. A word that another thread changes meanwhile is either old or new, if the whole word is copied and `to` has a
    /// whole number of words. Otherwise the last words may be copied twice, and mix old and new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    #[inline]
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), FabricError> {
        self.check(offset, to.len() as u64)?;
        // SAFETY: checked in the line above.
        unsafe { self.copy_out_unchecked(offset, to) };
        Ok(())
    }

    /// Copies bytes out.
    ///
    /// # Safety
    /// `offset + to.len() <= len`.
    #[inline]
    pub unsafe fn copy_out_unchecked(&self, offset: u64, to: &mut [u8]) {
        debug_assert!(offset + to.len() as u64 <= self.len);
        // SAFETY: the source is inside the region by the caller's promise, which is a whole number of words; `to` is
        // exclusive, so it is private and does not overlap.
        unsafe { copy::copy_from_shared(self.base.as_ptr().add(offset as usize), to.as_mut_ptr(), to.len()) }
    }

    /// Copies bytes out of lines of 64 bytes, each of which begins with a word that does not belong to them: 56 bytes a line,
    /// fewer of the last. Returns how these words differ from `expected`, all differences together. It is for layouts that keep a
    /// version in every line; these versions must tell what other threads changed meanwhile.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn copy_out_lines(&self, offset: u64, expected: u64, to: &mut [u8]) -> Result<u64, FabricError> {
        let (whole, last) = to.as_chunks_mut::<56>();
        let bytes = whole.len() as u64 * 64;
        self.check(offset, bytes)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: the lines are inside, which is checked above, and aligned; `whole` is exclusive, so it does not overlap.
        let mut differences = unsafe {
            let lines = self.base.as_ptr().add(offset as usize);
            copy::copy_lines_from_shared(lines, expected, whole.as_mut_ptr().cast(), whole.len())
        };
        if !last.is_empty() {
            differences |= self.word(offset + bytes)?.load(Ordering::Relaxed) ^ expected;
            self.copy_out(offset + bytes + 8, last)?;
        }
        Ok(differences)
    }

    /// The wrapping sum of the words from `offset`, computed in place: nothing is copied. A word that another thread changes
    /// meanwhile is either old or new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`], [`FabricError::Misaligned`].
    #[inline]
    pub fn sum_words(&self, offset: u64, words: usize) -> Result<u64, FabricError> {
        self.check(offset, words as u64 * 8)?;
        if !offset.is_multiple_of(8) {
            return Err(self.misaligned(offset, 8));
        }
        // SAFETY: the words are inside, which is checked above, and aligned.
        Ok(unsafe { copy::sum_shared(self.base.as_ptr().add(offset as usize), words) })
    }

    /// Bytes that never change, in place.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    ///
    /// # Safety
    /// While the slice is in use, no thread of any process writes to these bytes, and the region's file keeps its length.
    pub unsafe fn immutable(&self, offset: u64, bytes: usize) -> Result<&[u8], FabricError> {
        self.check(offset, bytes as u64)?;
        // SAFETY: inside the memory that lives as long as `self`, which is initialised; that it does not change is the caller's promise.
        Ok(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset as usize), bytes) })
    }

    /// Where bytes begin, for a device that reads them while this value lives.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    #[cfg_attr(
        not(all(target_arch = "x86_64", target_os = "linux", not(miri))),
        expect(dead_code, reason = "no device reads memory there")
    )]
    pub(crate) fn checked_ptr(&self, offset: u64, bytes: u64) -> Result<*const u8, FabricError> {
        self.check(offset, bytes)?;
        // SAFETY: inside of the memory, as just checked.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Copies bytes in; concurrent readers see each word old or new.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    #[inline]
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), FabricError> {
        self.check(offset, from.len() as u64)?;
        // SAFETY: checked in the line above.
        unsafe { self.copy_in_unchecked(offset, from) };
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// `offset + from.len() <= len`.
    #[inline]
    pub unsafe fn copy_in_unchecked(&self, offset: u64, from: &[u8]) {
        debug_assert!(offset + from.len() as u64 <= self.len);
        // SAFETY: the target is inside the region by the caller's promise. `from` is Rust memory that no thread changes, so it is
        // not part of the region.
        unsafe { copy::copy_to_shared(from.as_ptr(), self.base.as_ptr().add(offset as usize), from.len()) }
    }

    /// As [`Self::copy_in_unchecked`], by moves that a hardware transaction may make.
    ///
    /// # Safety
    /// `offset + from.len() <= len`.
    #[inline]
    pub unsafe fn copy_in_narrow_unchecked(&self, offset: u64, from: &[u8]) {
        debug_assert!(offset + from.len() as u64 <= self.len);
        // SAFETY: as in `copy_in_unchecked`.
        unsafe { copy::copy_to_shared_narrow(from.as_ptr(), self.base.as_ptr().add(offset as usize), from.len()) }
    }

    /// Makes the page of a word present and marked as written, without a change to its content. Any other thread may use the
    /// word meanwhile.
    ///
    /// # Safety
    /// As [`Self::word_unchecked`].
    #[inline]
    pub unsafe fn touch_unchecked(&self, offset: u64) {
        // SAFETY: the caller's promise.
        let word = unsafe { self.word_unchecked(offset) };
        // An atomic `or` of 0 that is written in Rust becomes a load, which LLVM may do, and does on x86: nothing would be marked.
        // SAFETY: an atomic instruction on a word that is mapped and aligned by the caller's promise; it stores what is there.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        unsafe {
            std::arch::asm!("lock or qword ptr [{word}], 0", word = in(reg) word.as_ptr(), options(nostack));
        }
        // Hardware transactions, which need this, are x86's alone.
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        word.fetch_or(0, std::sync::atomic::Ordering::Relaxed);
    }
}

impl fmt::Debug for RegionMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMemory").field("origin", &self.origin).field("len", &self.len).finish_non_exhaustive()
    }
}

pub(crate) fn round_up(value: u64, to: u64) -> u64 {
    value.div_ceil(to) * to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_touched() {
        let memory = RegionMemory::anonymous(FarPtr::default(), 4096).unwrap();
        for (offset, bytes) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX - 3, 8), (0, 4097)] {
            let error = memory.check(offset, bytes).unwrap_err();
            assert!(matches!(error, FabricError::OutOfBounds { region_bytes: 4096, .. }), "{error}");
            assert!(memory.copy_out(offset, &mut vec![0; bytes as usize]).is_err());
            assert!(memory.copy_in(offset, &vec![0; bytes as usize]).is_err());
        }
        assert!(memory.word(4092).is_err() && memory.word(u64::MAX - 7).is_err() && memory.word(4088).is_ok());
        assert!(matches!(memory.word(4), Err(FabricError::Misaligned { align: 8, .. })));
    }
}
