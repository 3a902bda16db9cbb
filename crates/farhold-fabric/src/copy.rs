//! Copies between private memory and memory that others write at the same time.
//!
//! A plain `memcpy` that races with a store is undefined behaviour in Rust, whatever the reader does with the result.
//! Two versions are sound:
//! - `portable`: word by word with relaxed atomic loads and stores. Used under Miri and on other processors.
//! - `kernel` (x86-64): inline assembly. The compiler knows nothing of its body, so to Rust it is as if another agent of the
//!   machine copied the bytes; what x86 gives for racing loads (each aligned 8 bytes whole, loads in order) is what the
//!   reader gets, and the version check above it decides whether the copy is one state.
//!
//! Both keep each aligned 8-byte word of the shared side whole.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use kernel::{copy_from_shared, copy_to_shared};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use portable::{copy_from_shared, copy_to_shared};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod kernel {
    use std::arch::asm;

    /// Copies `len` bytes out of shared memory.
    ///
    /// # Safety
    /// `shared..shared + len` is mapped memory, `to..to + len` is private writable memory, and they do not overlap.
    #[inline]
    pub(crate) unsafe fn copy_from_shared(shared: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise is the one that `copy` asks for.
        unsafe { copy(shared, to, len) }
    }

    /// Copies `len` bytes into shared memory.
    ///
    /// # Safety
    /// As [`copy_from_shared`], with the sides changed.
    #[inline]
    pub(crate) unsafe fn copy_to_shared(from: *const u8, shared: *mut u8, len: usize) {
        // SAFETY: the caller's promise is the one that `copy` asks for.
        unsafe { copy(from, shared, len) }
    }

    /// # Safety
    /// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap.
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: `rep movsb` reads and writes exactly the promised bytes; the direction flag is clear by the ABI.
        unsafe {
            asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _, options(nostack, preserves_flags));
        }
    }
}

/// The version for Miri and for other processors; on x86-64 it only runs in tests.
#[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(dead_code, reason = "tested against the kernel"))]
pub(crate) mod portable {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// Splits `len` bytes at `shared` into (bytes into the first word, word pointer).
    fn word_of(shared: *const u8) -> (*mut AtomicU64, usize) {
        let inside = shared.addr() & 7;
        (shared.wrapping_sub(inside).cast_mut().cast::<AtomicU64>(), inside)
    }

    /// Copies `len` bytes out of shared memory.
    ///
    /// # Safety
    /// Every aligned word that holds one of the bytes `shared..shared + len` is live memory that is only accessed
    /// atomically, in whole words; `to..to + len` is private writable memory.
    pub(crate) unsafe fn copy_from_shared(shared: *const u8, to: *mut u8, len: usize) {
        let (mut word, mut inside) = word_of(shared);
        let mut done = 0;
        while done < len {
            // SAFETY: `word` holds byte `done` of the range, so by the caller's promise it is a live atomic word.
            let value = unsafe { &*word }.load(Relaxed).to_ne_bytes();
            let count = (8 - inside).min(len - done);
            // SAFETY: `done + count <= len`, so the bytes are inside the caller's private memory.
            unsafe { value.as_ptr().add(inside).copy_to_nonoverlapping(to.add(done), count) };
            done += count;
            inside = 0;
            word = word.wrapping_add(1);
        }
    }

    /// Copies `len` bytes into shared memory. The other bytes of the first and the last word are kept, also against
    /// somebody who changes them meanwhile.
    ///
    /// # Safety
    /// As [`copy_from_shared`], with the sides changed.
    pub(crate) unsafe fn copy_to_shared(from: *const u8, shared: *mut u8, len: usize) {
        let (mut word, mut inside) = word_of(shared);
        let mut done = 0;
        while done < len {
            let count = (8 - inside).min(len - done);
            let (mut bytes, mut mask) = ([0u8; 8], [0u8; 8]);
            // SAFETY: `done + count <= len`, so the source is inside the caller's memory; `inside + count <= 8`.
            unsafe { from.add(done).copy_to_nonoverlapping(bytes.as_mut_ptr().add(inside), count) };
            mask[inside..inside + count].fill(0xff);
            let (value, mask) = (u64::from_ne_bytes(bytes), u64::from_ne_bytes(mask));
            // SAFETY: `word` holds byte `done` of the range, so by the caller's promise it is a live atomic word.
            let word_ref = unsafe { &*word };
            if mask == u64::MAX {
                word_ref.store(value, Relaxed);
            } else {
                let _ = word_ref.fetch_update(Relaxed, Relaxed, |old| Some(old & !mask | value));
            }
            done += count;
            inside = 0;
            word = word.wrapping_add(1);
        }
    }
}
