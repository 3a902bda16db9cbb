//! Copies between private memory and memory that other threads write at the same time.
//!
//! A plain `memcpy` that races with a store is undefined behaviour in Rust, whatever the reader does with the result. Two
//! versions are sound:
//! - `portable`: word by word with relaxed atomic loads and stores. Used under Miri and on other processors.
//! - `kernel` (x86-64): inline assembly. The compiler knows nothing of its body, so to Rust it is as if another agent of the
//!   machine copied the bytes. The reader gets what x86 guarantees for racing moves: loads in order, so a version word read after
//!   the copy is not older than the copy. That version must tell whether the copy is one state; nothing here relies on more than
//!   bytes being whole.
//!
//! [`copy_to_shared_narrow`] is the form for the inside of a hardware transaction: no move is wider than 16 bytes. On a Xeon
//! with RTM, accesses by YMM beside those by XMM registers, which the compiler uses, abort the transaction: 0.7 % of TPC-C's
//! commits were hardware transactions with the kernel of 32 bytes, 95 % with that of 16.

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use kernel::{copy_from_shared, copy_lines_from_shared, copy_to_shared, copy_to_shared_narrow, sum_shared};
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) use portable::{
    copy_from_shared, copy_lines_from_shared, copy_to_shared, copy_to_shared as copy_to_shared_narrow, sum_shared,
};

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod kernel {
    use std::arch::asm;
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    const PAGE: usize = 4096;
    const LINE: usize = 64;

    /// Starts loading the first two lines of each page behind the first, because the processor's own prefetching ends with a
    /// page. For 8 KiB in memory this saves a quarter of the time (690 to 520 ns on a Zen 5); for 8 KiB in a cache it adds 4 ns
    /// to the 50. Loading all lines ahead gains no more there and costs half as much again here.
    #[inline]
    fn begin_pages(shared: *const u8, len: usize) {
        let inside = shared.addr() % PAGE;
        for page in 1..(inside + len).div_ceil(PAGE) {
            let start = shared.wrapping_add(page * PAGE - inside);
            // SAFETY: a hint, which no address makes fault.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(start.cast());
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(LINE).cast());
            }
        }
    }

    /// Copies `len` bytes out of shared memory.
    ///
    /// # Safety
    /// `shared..shared + len` is mapped memory, `to..to + len` is private writable memory, and they do not overlap.
    #[inline]
    pub(crate) unsafe fn copy_from_shared(shared: *const u8, to: *mut u8, len: usize) {
        if len >= PAGE {
            begin_pages(shared, len);
        }
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

    /// As [`copy_to_shared`], by moves of at most 16 bytes: for the inside of a hardware transaction.
    ///
    /// # Safety
    /// As [`copy_to_shared`].
    #[inline]
    pub(crate) unsafe fn copy_to_shared_narrow(from: *const u8, shared: *mut u8, len: usize) {
        // SAFETY: the caller's promise is the one that both ask for, and `sse` has its 16 bytes.
        unsafe { if len < 32 { small(from, shared, len) } else { sse(from, shared, len) } }
    }

    /// Copies `count` times 56 bytes out of lines of 64 that begin with a word; returns how these words differ from
    /// `expected`, all differences together. Two moves a line, the second of which overlaps the first.
    ///
    /// # Safety
    /// `lines..lines + 64 * count` is mapped memory, `lines` is a multiple of 8, `to..to + 56 * count` is private writable
    /// memory, and they do not overlap.
    #[inline]
    pub(crate) unsafe fn copy_lines_from_shared(lines: *const u8, expected: u64, to: *mut u8, count: usize) -> u64 {
        if !is_x86_feature_detected!("avx") {
            // SAFETY: the caller's promise; on this processor a plain move of a word is an atomic one.
            return unsafe { super::portable::copy_lines_from_shared(lines, expected, to, count) };
        }
        let mut differences = 0;
        if count * LINE >= PAGE {
            begin_pages(lines, count * LINE);
        }
        if count > 0 {
            // SAFETY: line i is read at 64 i + (0..8, 8..40, 32..64) and written to 56 i + (0..32, 24..56), for i < count: all
            // inside what the caller promises. Registers that change are named, and the upper halves are cleared.
            unsafe {
                asm!(
                    ".p2align 4",
                    "2:",
                    "mov {word}, [{from}]",
                    "vmovdqu ymm0, [{from} + 8]",
                    "vmovdqu ymm1, [{from} + 32]",
                    "vmovdqu [{to}], ymm0",
                    "vmovdqu [{to} + 24], ymm1",
                    "xor {word}, {expected}",
                    "or {differences}, {word}",
                    "add {from}, 64",
                    "add {to}, 56",
                    "dec {count}",
                    "jnz 2b",
                    "vzeroupper",
                    from = inout(reg) lines => _, to = inout(reg) to => _, count = inout(reg) count => _,
                    word = out(reg) _, expected = in(reg) expected, differences = inout(reg) differences,
                    out("ymm0") _, out("ymm1") _,
                    // `vzeroupper` changes these as well: a caller that was compiled for AVX may have something in their upper halves.
                    out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                    out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _,
                    out("ymm14") _, out("ymm15") _,
                    options(nostack),
                );
            }
        }
        differences
    }

    /// The sum of `words` words, wrapping. For memory that other threads write: as in a copy, each word is old or new.
    ///
    /// # Safety
    /// `shared..shared + 8 * words` is mapped memory.
    #[inline]
    pub(crate) unsafe fn sum_shared(shared: *const u8, words: usize) -> u64 {
        if !is_x86_feature_detected!("avx2") {
            // SAFETY: the caller's promise; on this processor a plain move of a word is an atomic one.
            return unsafe { super::portable::sum_shared(shared, words) };
        }
        if words * 8 >= PAGE {
            begin_pages(shared, words * 8);
        }
        let mut sum = 0_u64;
        // SAFETY: `groups` groups of 128 bytes are read, then `rest` words behind them: all inside what the caller promises.
        // Registers that change are named, and the upper halves are cleared.
        unsafe {
            asm!(
                "test {groups}, {groups}",
                "jz 3f",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "jmp 7f",
                ".p2align 4",
                "2:",
                "vpaddq ymm0, ymm0, [{from}]",
                "vpaddq ymm1, ymm1, [{from} + 32]",
                "vpaddq ymm2, ymm2, [{from} + 64]",
                "vpaddq ymm3, ymm3, [{from} + 96]",
                "7:",
                "add {from}, 128",
                "dec {groups}",
                "jnz 2b",
                "vpaddq ymm0, ymm0, ymm1",
                "vpaddq ymm2, ymm2, ymm3",
                "vpaddq ymm0, ymm0, ymm2",
                "vextracti128 xmm1, ymm0, 1",
                "vpaddq xmm0, xmm0, xmm1",
                "vpunpckhqdq xmm1, xmm0, xmm0",
                "vpaddq xmm0, xmm0, xmm1",
                "vmovq {sum}, xmm0",
                "vzeroupper",
                "3:",
                "test {rest}, {rest}",
                "jz 5f",
                "4:",
                "add {sum}, [{from}]",
                "add {from}, 8",
                "dec {rest}",
                "jnz 4b",
                "5:",
                from = inout(reg) shared => _, groups = inout(reg) words / 16 => _, rest = inout(reg) words % 16 => _,
                sum = inout(reg) sum,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                // As above: `vzeroupper` changes these.
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _,
                out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
        sum
    }

    /// # Safety
    /// `from..from + len` is readable, `to..to + len` is writable, and they do not overlap.
    #[inline]
    unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: all three do what this function promises; `avx` needs the processor feature, which is asked for.
        unsafe {
            if len < 32 {
                small(from, to, len);
            } else if is_x86_feature_detected!("avx") {
                avx(from, to, len);
            } else {
                sse(from, to, len);
            }
        }
    }

    /// 32-byte moves, four at a time; the rest by one move that ends at the end and may overlap the one before.
    /// Why not `rep movsb`: the manuals promise little about the order of its loads, it wins nothing below 8 KiB (figures
    /// in `benches/dispatch.rs`), and it costs tens of cycles to start.
    ///
    /// # Safety
    /// As [`copy`], `len >= 32`, and the processor has AVX.
    #[inline]
    pub(super) unsafe fn avx(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: while `len` bytes are left, each move lies inside them; the last one lies inside the whole, as `len >= 32`.
        // Registers and flags that change are named, and the upper halves are cleared as the ABI asks.
        unsafe {
            asm!(
                "cmp {len}, 256",
                "jb 7f",
                // Long: one move, then on from where `to` is a multiple of 32, so that no store crosses a line.
                "vmovdqu ymm0, [{from}]",
                "vmovdqu [{to}], ymm0",
                "mov {skip}, {to}",
                "neg {skip}",
                "and {skip}, 31",
                "add {from}, {skip}",
                "add {to}, {skip}",
                "sub {len}, {skip}",
                "7:",
                "sub {len}, 128",
                "jb 3f",
                ".p2align 4",
                "2:",
                "vmovdqu ymm0, [{from}]",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + 64]",
                "vmovdqu ymm3, [{from} + 96]",
                "vmovdqu [{to}], ymm0",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + 64], ymm2",
                "vmovdqu [{to} + 96], ymm3",
                "add {from}, 128",
                "add {to}, 128",
                "sub {len}, 128",
                "jae 2b",
                "3:", // len + 128 bytes are left, less than 128
                "add {len}, 128",
                "jz 5f",
                "vmovdqu ymm3, [{from} + {len} - 32]",
                "cmp {len}, 32",
                "jbe 4f",
                "vmovdqu ymm0, [{from}]",
                "cmp {len}, 64",
                "jbe 6f",
                "vmovdqu ymm1, [{from} + 32]",
                "vmovdqu ymm2, [{from} + {len} - 64]",
                "vmovdqu [{to} + 32], ymm1",
                "vmovdqu [{to} + {len} - 64], ymm2",
                "6:",
                "vmovdqu [{to}], ymm0",
                "4:",
                "vmovdqu [{to} + {len} - 32], ymm3",
                "5:",
                "vzeroupper",
                len = inout(reg) len => _, from = inout(reg) from => _, to = inout(reg) to => _, skip = out(reg) _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                // As above: `vzeroupper` changes these.
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _,
                out("ymm10") _, out("ymm11") _, out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }

    /// 16-byte moves, for hardware transactions and for processors without AVX.
    ///
    /// # Safety
    /// As [`copy`], and `len >= 16`.
    pub(super) unsafe fn sse(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: `end` is `len - 16`, so every move, also the last one at `end`, lies inside the whole.
        unsafe {
            asm!(
                "xor {at:e}, {at:e}",
                "2:",
                "cmp {at}, {end}",
                "jae 3f",
                "movdqu xmm0, [{from} + {at}]",
                "movdqu [{to} + {at}], xmm0",
                "add {at}, 16",
                "jmp 2b",
                "3:",
                "movdqu xmm0, [{from} + {end}]",
                "movdqu [{to} + {end}], xmm0",
                at = out(reg) _, end = in(reg) len - 16, from = in(reg) from, to = in(reg) to,
                out("xmm0") _,
                options(nostack),
            );
        }
    }

    /// Fewer than 32 bytes: two moves that may overlap.
    ///
    /// # Safety
    /// As [`copy`], and `len < 32`.
    #[inline]
    unsafe fn small(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: each pair of moves of n bytes starts at 0 and at `len - n`, with `n <= len`; the bytes are moved one by one.
        unsafe {
            if len >= 16 {
                asm!(
                    "movdqu xmm0, [{from}]",
                    "movdqu xmm1, [{from} + {len} - 16]",
                    "movdqu [{to}], xmm0",
                    "movdqu [{to} + {len} - 16], xmm1",
                    len = in(reg) len, from = in(reg) from, to = in(reg) to, out("xmm0") _, out("xmm1") _,
                    options(nostack, preserves_flags),
                );
            } else if len >= 8 {
                asm!(
                    "mov {a}, [{from}]",
                    "mov {b}, [{from} + {len} - 8]",
                    "mov [{to}], {a}",
                    "mov [{to} + {len} - 8], {b}",
                    len = in(reg) len, from = in(reg) from, to = in(reg) to, a = out(reg) _, b = out(reg) _,
                    options(nostack, preserves_flags),
                );
            } else {
                for at in 0..len {
                    asm!(
                        "mov {byte}, [{from} + {at}]",
                        "mov [{to} + {at}], {byte}",
                        at = in(reg) at, from = in(reg) from, to = in(reg) to, byte = out(reg_byte) _,
                        options(nostack, preserves_flags),
                    );
                }
            }
        }
    }
}

/// The version for Miri and for other processors; on x86-64 it only runs in tests.
#[cfg_attr(all(target_arch = "x86_64", not(miri)), allow(dead_code, reason = "tested against the kernel"))]
pub(crate) mod portable {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    /// Every length and alignment: exactly the requested bytes move.
    fn check(copy: Copy, len_min: usize) {
        let (words, len_max) = if cfg!(miri) { (24, 20) } else { (200, 500) };
        for len in len_min..len_max {
            for (from_at, to_at) in [(0, 0), (1, 0), (0, 5), (16, 8), (7, 31)] {
                let from: Vec<u64> = (0..words).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
                let mut to = vec![0x5555_5555_5555_5555u64; words as usize];
                let from = from.as_ptr().cast::<u8>();
                let bytes = to.as_mut_ptr().cast::<u8>();
                // SAFETY: both vectors are `words` words long, more than 64 + 31 + `len_max` bytes, and no other thread has them.
                unsafe { copy(from.add(64 + from_at), bytes.add(64 + to_at), len) };
                for at in 0..words as usize * 8 {
                    let inside = at >= 64 + to_at && at < 64 + to_at + len;
                    // SAFETY: as above; the difference of the two starts keeps `at` inside for bytes that were copied.
                    let (is, want) =
                        unsafe { (*bytes.add(at), if inside { *from.add(at + from_at - to_at) } else { 0x55 }) };
                    assert_eq!(is, want, "length {len}, byte {at}");
                }
            }
        }
    }

    type CopyLines = unsafe fn(*const u8, u64, *mut u8, usize) -> u64;

    /// All payloads move, nothing else; one line with another word is noticed.
    fn check_lines(copy: CopyLines) {
        for count in 0..6 {
            let line = |i: usize| i / 8;
            let mut from: Vec<u64> =
                (0..8 * 6).map(|i| if i % 8 == 0 { 9 } else { (line(i) * 100 + i % 8) as u64 }).collect();
            for odd in 0..=count {
                let mut to = vec![0x55_u8; 56 * 6];
                // SAFETY: six lines and room for six payloads, of which `count` are used; no other thread has them.
                let differences = unsafe { copy(from.as_ptr().cast(), 9, to.as_mut_ptr(), count) };
                assert_eq!(differences != 0, odd > 0, "{count} lines, line {odd} before differs");
                let words: Vec<u64> = to.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
                for (i, word) in words.iter().enumerate() {
                    let want = if i < 7 * count { (i / 7 * 100 + i % 7 + 1) as u64 } else { 0x5555_5555_5555_5555 };
                    assert_eq!(*word, want);
                }
                from.iter_mut().step_by(8).for_each(|word| *word = 9);
                from[8 * odd.min(5)] = 8;
            }
        }
    }

    #[test]
    fn copies_payloads_out_of_lines() {
        check_lines(copy_lines_from_shared);
        check_lines(portable::copy_lines_from_shared);
    }

    #[test]
    fn copies_exactly_the_bytes() {
        check(copy_from_shared, 0);
        check(copy_to_shared, 0);
        check(copy_to_shared_narrow, 0);
        check(portable::copy_from_shared, 0);
        check(portable::copy_to_shared, 0);
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        check(kernel::sse, 16);
    }

    /// An instruction of 16 bytes that is not VEX encoded leaves the upper half of its YMM register as it is; every other clears
    /// it, and so does the `vzeroupper` behind them. So patterns there tell what ran.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn narrow_copies_keep_the_wide_halves_of_registers() {
        fn halves_after(copy: unsafe extern "C" fn(*const u8, *mut u8, usize), len: usize) -> [u64; 8] {
            let (pattern, from) = ([0x5a5a_5a5a_a5a5_a5a5_u64; 4], [7_u8; 512]);
            let (mut to, mut halves) = ([0_u8; 512], [[0_u64; 2]; 4]);
            // SAFETY: both buffers hold `len` bytes, `pattern` 32 and `halves` 64. The call follows the C ABI; the registers that
            // it changes are named, and the stack is aligned as it requires.
            unsafe {
                std::arch::asm!(
                    "vmovdqu ymm0, [{pattern}]",
                    "vmovdqu ymm1, [{pattern}]",
                    "vmovdqu ymm2, [{pattern}]",
                    "vmovdqu ymm3, [{pattern}]",
                    "call {copy}",
                    "vextracti128 [r12], ymm0, 1",
                    "vextracti128 [r12 + 16], ymm1, 1",
                    "vextracti128 [r12 + 32], ymm2, 1",
                    "vextracti128 [r12 + 48], ymm3, 1",
                    "vzeroupper",
                    pattern = in(reg) pattern.as_ptr(),
                    copy = in(reg) copy,
                    // Kept by the callee.
                    in("r12") halves.as_mut_ptr(),
                    in("rdi") from.as_ptr(), in("rsi") to.as_mut_ptr(), in("rdx") len,
                    clobber_abi("C"),
                );
            }
            assert!(to[..len].iter().all(|byte| *byte == 7) && to[len..].iter().all(|byte| *byte == 0), "{len} bytes");
            halves.as_flattened().try_into().expect("eight words")
        }
        unsafe extern "C" fn narrow(from: *const u8, to: *mut u8, len: usize) {
            // SAFETY: the caller's promise.
            unsafe { copy_to_shared_narrow(from, to, len) }
        }
        unsafe extern "C" fn wide(from: *const u8, to: *mut u8, len: usize) {
            // SAFETY: the caller's promise.
            unsafe { copy_to_shared(from, to, len) }
        }
        if !is_x86_feature_detected!("avx2") {
            farhold_testkit::skipped("this processor has no AVX2");
            return;
        }
        for len in 0..500 {
            assert_eq!(halves_after(narrow, len), [0x5a5a_5a5a_a5a5_a5a5; 8], "{len} bytes");
        }
        assert_ne!(halves_after(wide, 200), [0x5a5a_5a5a_a5a5_a5a5; 8], "the test sees wide moves");
    }

    /// `vzeroupper` clears the upper half of every register, so a caller that was compiled for AVX keeps none across a copy.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    #[allow(clippy::cast_ptr_alignment, reason = "these instructions take any alignment")]
    fn a_caller_compiled_for_avx_loses_nothing() {
        use std::arch::x86_64::{__m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_storeu_si256};

        /// Has twelve registers' worth of numbers before and after each of the kernels that use whole registers.
        #[target_feature(enable = "avx2")]
        fn numbers_after(numbers: &[[u64; 4]; 12], kernel: usize) -> [[u64; 4]; 12] {
            let (from, mut to, mut after) = ([7_u64; 64], [0_u64; 64], [[0_u64; 4]; 12]);
            // SAFETY: 32 bytes each; the kernels' buffers hold 512, of which no more are asked for.
            unsafe {
                let load = |at: usize| _mm256_loadu_si256(numbers[at].as_ptr().cast::<__m256i>());
                let kept: [__m256i; 12] = std::array::from_fn(|at| _mm256_add_epi64(load(at), load(11 - at)));
                let (from, to) = (from.as_ptr().cast::<u8>(), to.as_mut_ptr().cast::<u8>());
                match kernel {
                    0 => kernel::avx(from, to, 500),
                    1 => _ = std::hint::black_box(copy_lines_from_shared(from, 7, to, 8)),
                    _ => _ = std::hint::black_box(sum_shared(from, 64)),
                }
                for (after, kept) in after.iter_mut().zip(kept) {
                    _mm256_storeu_si256(after.as_mut_ptr().cast::<__m256i>(), kept);
                }
            }
            after
        }
        if !is_x86_feature_detected!("avx2") {
            farhold_testkit::skipped("this processor has no AVX2");
            return;
        }
        let numbers: [[u64; 4]; 12] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 100 + j) as u64));
        let wanted = [[1100, 1102, 1104, 1106]; 12];
        for kernel in 0..3 {
            // SAFETY: the processor has AVX2.
            let after = unsafe { numbers_after(std::hint::black_box(&numbers), kernel) };
            assert_eq!(after, wanted, "kernel {kernel}");
        }
    }

    /// Both sums are that of the numbers, at every length.
    #[test]
    fn sums_are_exact() {
        let numbers: Vec<u64> = (0..700_u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for (start, words) in (0..70).map(|words| (words % 5, words)).chain([(0, 512), (3, 640)]) {
            let expected = numbers[start..start + words].iter().fold(0, |sum: u64, n| sum.wrapping_add(*n));
            let from = numbers[start..].as_ptr().cast::<u8>();
            // SAFETY: the vector holds `start + words` words, and no thread writes them.
            unsafe {
                assert_eq!(sum_shared(from, words), expected, "{start}, {words} words");
                assert_eq!(portable::sum_shared(from, words), expected, "{start}, {words} words");
            }
        }
    }
}
