//! The version for Miri and for other processors: word by word, with relaxed atomic loads and stores.
//!
//! On x86-64 it runs in tests, and for lines and sums on a processor without AVX or AVX2.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed};

/// Splits `len` bytes at `shared` into (bytes into the first word, word pointer).
#[allow(clippy::cast_ptr_alignment, reason = "rounded down to a word in the same expression")]
fn word_of(shared: *const u8) -> (*mut AtomicU64, usize) {
    let inside = shared.addr() & 7;
    (shared.wrapping_sub(inside).cast_mut().cast::<AtomicU64>(), inside)
}

/// A lock and its version. If the lock is free and the version is not marked as being written, the row was in this state at one
/// moment: an owner that takes the lock changes the version before it releases the lock, and versions never repeat.
fn pair(first: &AtomicU64, second: &AtomicU64) -> [u64; 2] {
    let mut before = first.load(Acquire);
    loop {
        let between = second.load(Acquire);
        let after = first.load(Acquire);
        if before == after {
            return [before, between];
        }
        before = after;
    }
}

/// Copies `len` bytes out of shared memory; 16 that are aligned at once.
///
/// # Safety
/// Every aligned word that holds one of the bytes `shared..shared + len` is live memory that is only accessed
/// atomically, in whole words; `to..to + len` is private writable memory.
pub(crate) unsafe fn copy_from_shared(shared: *const u8, to: *mut u8, len: usize) {
    let (mut word, mut inside) = word_of(shared);
    let mut done = 0;
    if len == 16 && shared.addr().is_multiple_of(16) {
        // SAFETY: the range is both words.
        let both = unsafe { pair(&*word, &*word.add(1)) };
        // SAFETY: the caller's private memory has 16 bytes.
        unsafe { to.cast::<[u64; 2]>().write_unaligned(both) };
        return;
    }
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

/// Copies `count` times 56 bytes out of lines of 64 that begin with a word; returns how these words differ from
/// `expected`, all differences together.
///
/// # Safety
/// `lines..lines + 64 * count` is live memory that is only accessed atomically, in whole words, `lines` is a multiple of
/// 8; `to..to + 56 * count` is private writable memory.
pub(crate) unsafe fn copy_lines_from_shared(lines: *const u8, expected: u64, to: *mut u8, count: usize) -> u64 {
    let mut differences = 0;
    for line in 0..count {
        // SAFETY: line `line` and its place in `to` are inside what the caller promises; the first word is aligned.
        unsafe {
            let start = lines.add(line * 64);
            differences |= (*word_of(start).0).load(Relaxed) ^ expected;
            copy_from_shared(start.add(8), to.add(line * 56), 56);
        }
    }
    differences
}

/// The sum of `words` words, wrapping.
///
/// # Safety
/// `shared..shared + 8 * words` is live memory that is only accessed atomically, in whole words; `shared` is a multiple of 8.
pub(crate) unsafe fn sum_shared(shared: *const u8, words: usize) -> u64 {
    let (first, _) = word_of(shared);
    // SAFETY: word `at` of the range is a live atomic word by the caller's promise.
    (0..words).fold(0, |sum: u64, at| sum.wrapping_add(unsafe { &*first.wrapping_add(at) }.load(Relaxed)))
}

/// Copies `len` bytes into shared memory. The other bytes of the first and the last word are kept, also if another thread
/// changes them meanwhile.
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
