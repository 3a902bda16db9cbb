//! The version for x86-64, in inline assembly.
//!
//! The compiler knows nothing of its body, so to Rust it is as if another agent of the machine copied the bytes. The reader
//! gets what x86 guarantees for racing moves: loads in order, so a version word read after the copy is not older than the copy.
//!
//! [`copy_to_shared_narrow`] is the form for the inside of a hardware transaction: no move is wider than 16 bytes. On a Xeon
//! with RTM, accesses by YMM beside those by XMM registers, which the compiler uses, abort the transaction: 0.7 % of TPC-C's
//! commits were hardware transactions with the kernel of 32 bytes, 95 % with that of 16.

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
