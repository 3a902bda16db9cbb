//! Both versions move exactly the bytes, and the kernel leaves its caller's registers whole.

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
