//! For processors with AVX2: 32 bytes of lanes at a time.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_castsi256_pd, _mm256_castsi256_ps, _mm256_cmpeq_epi8,
    _mm256_cmpeq_epi16, _mm256_cmpeq_epi32, _mm256_cmpeq_epi64, _mm256_cmpgt_epi64, _mm256_loadu_si256,
    _mm256_min_epu8, _mm256_min_epu16, _mm256_min_epu32, _mm256_movemask_epi8, _mm256_movemask_pd, _mm256_movemask_ps,
    _mm256_or_si256, _mm256_packs_epi16, _mm256_permute4x64_epi64, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_sll_epi16, _mm256_sll_epi32, _mm256_sll_epi64, _mm256_srl_epi16,
    _mm256_srl_epi32, _mm256_srl_epi64, _mm256_sub_epi8, _mm256_sub_epi16, _mm256_sub_epi32, _mm256_sub_epi64,
    _mm256_xor_si256,
};

use farhold_store::column::pack::{ROW_BYTES, lane_bits};

use super::{Bits, Kernel, Range, row_of};

pub(super) const KERNEL: Kernel =
    Kernel { name: "avx2", is_available: || std::arch::is_x86_feature_detected!("avx2"), select };

/// The registers of a row of lanes.
const REGISTERS: [usize; ROW_BYTES / 32] = [0, 1, 2, 3];

/// A row of lanes, or what is known of each lane: all bits of it, or none.
type Row = [__m256i; REGISTERS.len()];

/// # Safety
/// The processor has AVX2.
#[target_feature(enable = "avx2")]
fn select(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    match (lane_bits(width), range.span) {
        (8, 0) => bytes::<true>(packed, width, range, bits),
        (8, _) => bytes::<false>(packed, width, range, bits),
        (16, 0) => shorts::<true>(packed, width, range, bits),
        (16, _) => shorts::<false>(packed, width, range, bits),
        (32, 0) => words::<true>(packed, width, range, bits),
        (32, _) => words::<false>(packed, width, range, bits),
        (_, 0) => longs::<true>(packed, width, range, bits),
        (..) => longs::<false>(packed, width, range, bits),
    }
}

/// A register of a row, `index` registers behind its beginning.
#[inline]
#[target_feature(enable = "avx2")]
fn load(row: *const u8, index: usize) -> __m256i {
    debug_assert!(index < REGISTERS.len());
    // SAFETY: `row` comes from `row_of`, which has checked that 128 bytes lie there, and `index` is below 4.
    unsafe { _mm256_loadu_si256(row.add(index * 32).cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn count(shift: u32) -> __m128i {
    _mm_cvtsi32_si128(shift as i32)
}

/// A code that lies in one word stays where it is, and what it is compared with is moved there, once a row.
macro_rules! in_lanes {
    ($name:ident, $lane:ty, $signed:ty, $set:ident, $left:ident, $right:ident, $sub:ident, $equal:ident, $at_most:ident, $store:ident) => {
        #[target_feature(enable = "avx2")]
        fn $name<const EQUAL: bool>(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
            const BITS: u32 = <$lane>::BITS;
            let mask = $set((<$lane>::MAX >> (BITS - width)) as $signed);
            let (first, span) = ($set(range.first as $signed), $set(range.span as $signed));
            for row in 0..BITS {
                let (word, shift) = (row * width / BITS, row * width % BITS);
                let low = row_of(packed, word);
                let (codes, first, span): (Row, _, _) = if shift + width <= BITS {
                    let shift = count(shift);
                    let mask = $left(mask, shift);
                    let codes = REGISTERS.map(|index| _mm256_and_si256(load(low, index), mask));
                    (codes, $left(first, shift), $left(span, shift))
                } else {
                    let high = row_of(packed, word + 1);
                    let (down, up) = (count(shift), count(BITS - shift));
                    let below = $set((<$lane>::MAX >> shift) as $signed);
                    let codes = REGISTERS.map(|index| {
                        let (low, high) = ($right(load(low, index), down), $left(load(high, index), up));
                        if BITS == 8 {
                            let above = _mm256_xor_si256(mask, below);
                            _mm256_or_si256(_mm256_and_si256(low, below), _mm256_and_si256(high, above))
                        } else {
                            _mm256_and_si256(_mm256_or_si256(low, high), mask)
                        }
                    });
                    (codes, first, span)
                };
                let in_range = |code| if EQUAL { $equal(code, first) } else { $at_most($sub(code, first), span) };
                $store(codes.map(in_range), row as usize, bits);
            }
        }
    };
}

macro_rules! at_most {
    ($name:ident, $min:ident, $equal:ident) => {
        #[inline]
        #[target_feature(enable = "avx2")]
        fn $name(above: __m256i, span: __m256i) -> __m256i {
            $equal($min(above, span), above)
        }
    };
}

at_most!(at_most8, _mm256_min_epu8, _mm256_cmpeq_epi8);
at_most!(at_most16, _mm256_min_epu16, _mm256_cmpeq_epi16);
at_most!(at_most32, _mm256_min_epu32, _mm256_cmpeq_epi32);

/// AVX2 has no minimum of 64 bits, and compares signed integers: the highest bit is turned.
#[inline]
#[target_feature(enable = "avx2")]
fn at_most64(above: __m256i, span: __m256i) -> __m256i {
    let turned = _mm256_set1_epi64x(i64::MIN);
    let beyond = _mm256_cmpgt_epi64(_mm256_xor_si256(above, turned), _mm256_xor_si256(span, turned));
    _mm256_xor_si256(beyond, _mm256_set1_epi64x(-1))
}

// A byte has no shift of its own. That of 16 bits moves its neighbour's bits in, which are masked; a constant has none to move.
in_lanes!(
    bytes,
    u8,
    i8,
    _mm256_set1_epi8,
    _mm256_sll_epi16,
    _mm256_srl_epi16,
    _mm256_sub_epi8,
    _mm256_cmpeq_epi8,
    at_most8,
    store8
);
in_lanes!(
    shorts,
    u16,
    i16,
    _mm256_set1_epi16,
    _mm256_sll_epi16,
    _mm256_srl_epi16,
    _mm256_sub_epi16,
    _mm256_cmpeq_epi16,
    at_most16,
    store16
);
in_lanes!(
    words,
    u32,
    i32,
    _mm256_set1_epi32,
    _mm256_sll_epi32,
    _mm256_srl_epi32,
    _mm256_sub_epi32,
    _mm256_cmpeq_epi32,
    at_most32,
    store32
);
in_lanes!(
    longs,
    u64,
    i64,
    _mm256_set1_epi64x,
    _mm256_sll_epi64,
    _mm256_srl_epi64,
    _mm256_sub_epi64,
    _mm256_cmpeq_epi64,
    at_most64,
    store64
);

#[inline]
#[target_feature(enable = "avx2")]
fn store8(found: Row, row: usize, bits: &mut Bits) {
    let found = found.map(|found| u64::from(_mm256_movemask_epi8(found) as u32));
    bits[row * 2] = found[0] | found[1] << 32;
    bits[row * 2 + 1] = found[2] | found[3] << 32;
}

#[inline]
#[target_feature(enable = "avx2")]
fn store16(found: Row, row: usize, bits: &mut Bits) {
    // Packing goes by halves of a register: the quarters are put in order again.
    let low = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(found[0], found[1]));
    let high = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi16(found[2], found[3]));
    bits[row] = u64::from(_mm256_movemask_epi8(low) as u32) | u64::from(_mm256_movemask_epi8(high) as u32) << 32;
}

#[inline]
#[target_feature(enable = "avx2")]
fn store32(found: Row, row: usize, bits: &mut Bits) {
    let found = found.map(|found| _mm256_movemask_ps(_mm256_castsi256_ps(found)) as u64);
    let found = found[0] | found[1] << 8 | found[2] << 16 | found[3] << 24;
    bits[row / 2] = if row.is_multiple_of(2) { found } else { bits[row / 2] | found << 32 };
}

#[inline]
#[target_feature(enable = "avx2")]
fn store64(found: Row, row: usize, bits: &mut Bits) {
    let found = found.map(|found| _mm256_movemask_pd(_mm256_castsi256_pd(found)) as u64);
    let found = found[0] | found[1] << 4 | found[2] << 8 | found[3] << 12;
    bits[row / 4] = if row.is_multiple_of(4) { found } else { bits[row / 4] | found << (row % 4 * 16) };
}
