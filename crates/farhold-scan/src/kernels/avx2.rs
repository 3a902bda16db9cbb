//! For processors with AVX2: 32 bytes of lanes at a time.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_cmpeq_epi8,
    _mm256_cmpeq_epi16, _mm256_cmpeq_epi32, _mm256_cmpgt_epi64, _mm256_loadu_si256, _mm256_min_epu8, _mm256_min_epu16,
    _mm256_min_epu32, _mm256_movemask_epi8, _mm256_movemask_pd, _mm256_movemask_ps, _mm256_or_si256,
    _mm256_packs_epi16, _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_sll_epi16, _mm256_sll_epi32, _mm256_sll_epi64, _mm256_srl_epi16, _mm256_srl_epi32,
    _mm256_srl_epi64, _mm256_sub_epi8, _mm256_sub_epi16, _mm256_sub_epi32, _mm256_sub_epi64, _mm256_xor_si256,
};

use farhold_store::column::pack::{ROW_BYTES, lane_bits};

use super::{Bits, Kernel, Range, row_of};

pub(super) const KERNEL: Kernel =
    Kernel { name: "avx2", is_available: || std::arch::is_x86_feature_detected!("avx2"), select };

/// Registers that a row of lanes fills.
const REGISTERS: usize = ROW_BYTES / 32;

/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
fn select(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    match lane_bits(width) {
        8 => bytes(packed, width, range, bits),
        16 => shorts(packed, width, range, bits),
        32 => words(packed, width, range, bits),
        _ => longs(packed, width, range, bits),
    }
}

/// Where a row's codes are: the first row of words, the shift in it, and the row of words that has their high bits.
#[derive(Clone, Copy)]
struct Place {
    low: *const u8,
    shift: i32,
    /// And by how many bits they are shifted up.
    high: Option<(*const u8, i32)>,
}

fn place(packed: &[u8], row: u32, width: u32, bits: u32) -> Place {
    let (word, shift) = (row * width / bits, row * width % bits);
    let high = (shift + width > bits).then(|| (row_of(packed, word + 1), (bits - shift) as i32));
    Place { low: row_of(packed, word), shift: shift as i32, high }
}

/// A register of a row, `index` registers behind its beginning.
#[inline]
#[target_feature(enable = "avx2")]
fn load(row: *const u8, index: usize) -> __m256i {
    debug_assert!(index < REGISTERS);
    // SAFETY: `row` comes from `row_of`, which has checked that 128 bytes lie there, and `index` is below 4.
    unsafe { _mm256_loadu_si256(row.add(index * 32).cast()) }
}

macro_rules! unpack {
    ($place:expr, $index:expr, $right:ident, $left:ident) => {{
        let low = $right(load($place.low, $index), count($place.shift));
        match $place.high {
            None => low,
            Some((high, shift)) => _mm256_or_si256(low, $left(load(high, $index), count(shift))),
        }
    }};
}

#[inline]
#[target_feature(enable = "avx2")]
fn count(shift: i32) -> __m128i {
    _mm_cvtsi32_si128(shift)
}

/// A byte has no shift of its own: those of its neighbour that come in are masked.
#[target_feature(enable = "avx2")]
fn bytes(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    let mask = _mm256_set1_epi8((u8::MAX >> (8 - width)) as i8);
    let (first, span) = (_mm256_set1_epi8(range.first as i8), _mm256_set1_epi8(range.span as i8));
    let (words, _) = bits.as_chunks_mut::<2>();
    for (row, out) in (0..8).zip(words) {
        let place = place(packed, row, width, 8);
        let kept = _mm256_set1_epi8((u8::MAX >> place.shift) as i8);
        let mut found = [0; REGISTERS];
        for (index, found) in found.iter_mut().enumerate() {
            let low = _mm256_and_si256(_mm256_srl_epi16(load(place.low, index), count(place.shift)), kept);
            let codes = match place.high {
                None => low,
                Some((high, shift)) => {
                    let kept = _mm256_set1_epi8((u8::MAX << shift) as i8);
                    let high = _mm256_and_si256(_mm256_sll_epi16(load(high, index), count(shift)), kept);
                    _mm256_or_si256(low, high)
                }
            };
            let above = _mm256_sub_epi8(_mm256_and_si256(codes, mask), first);
            *found = _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(above, span), above)) as u32;
        }
        *out = [u64::from(found[0]) | u64::from(found[1]) << 32, u64::from(found[2]) | u64::from(found[3]) << 32];
    }
}

#[target_feature(enable = "avx2")]
fn shorts(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    let mask = _mm256_set1_epi16((u16::MAX >> (16 - width)) as i16);
    let (first, span) = (_mm256_set1_epi16(range.first as i16), _mm256_set1_epi16(range.span as i16));
    for (row, out) in (0..16).zip(bits) {
        let place = place(packed, row, width, 16);
        let mut found = [_mm256_set1_epi8(0); REGISTERS];
        for (index, found) in found.iter_mut().enumerate() {
            let codes = unpack!(place, index, _mm256_srl_epi16, _mm256_sll_epi16);
            let above = _mm256_sub_epi16(_mm256_and_si256(codes, mask), first);
            *found = _mm256_cmpeq_epi16(_mm256_min_epu16(above, span), above);
        }
        // Packing goes by halves of a register: the quarters are put in order again.
        let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(found[0], found[1]));
        let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(found[2], found[3]));
        *out = u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32;
    }
}

#[target_feature(enable = "avx2")]
fn words(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    let mask = _mm256_set1_epi32((u32::MAX >> (32 - width)) as i32);
    let (first, span) = (_mm256_set1_epi32(range.first as i32), _mm256_set1_epi32(range.span as i32));
    bits.fill(0);
    for row in 0..32 {
        let place = place(packed, row, width, 32);
        for index in 0..REGISTERS {
            let codes = unpack!(place, index, _mm256_srl_epi32, _mm256_sll_epi32);
            let above = _mm256_sub_epi32(_mm256_and_si256(codes, mask), first);
            let found = _mm256_cmpeq_epi32(_mm256_min_epu32(above, span), above);
            let found = _mm256_movemask_ps(_mm256_castsi256_ps(found)) as u64;
            bits[row as usize / 2] |= found << (row as usize % 2 * 32 + index * 8);
        }
    }
}

/// AVX2 compares signed integers: the highest bit is turned.
#[target_feature(enable = "avx2")]
fn longs(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    let mask = _mm256_set1_epi64x((u64::MAX >> (64 - width)) as i64);
    let turned = _mm256_set1_epi64x(i64::MIN);
    let first = _mm256_set1_epi64x(range.first as i64);
    let span = _mm256_xor_si256(_mm256_set1_epi64x(range.span as i64), turned);
    bits.fill(0);
    for row in 0..64 {
        let place = place(packed, row, width, 64);
        for index in 0..REGISTERS {
            let codes = unpack!(place, index, _mm256_srl_epi64, _mm256_sll_epi64);
            let above = _mm256_xor_si256(_mm256_sub_epi64(_mm256_and_si256(codes, mask), first), turned);
            let beyond = _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(above, span))) as u64;
            bits[row as usize / 4] |= (!beyond & 0xF) << (row as usize % 4 * 16 + index * 4);
        }
    }
}
