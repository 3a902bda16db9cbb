//! For processors with AVX-512 (F and BW): a row of lanes is two registers, and a comparison gives bits at once.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi32_si128, _mm512_and_si512, _mm512_cmpeq_epi8_mask, _mm512_cmpeq_epi16_mask,
    _mm512_cmpeq_epi32_mask, _mm512_cmpeq_epi64_mask, _mm512_cmple_epu8_mask, _mm512_cmple_epu16_mask,
    _mm512_cmple_epu32_mask, _mm512_cmple_epu64_mask, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_sll_epi16, _mm512_sll_epi32, _mm512_sll_epi64,
    _mm512_srl_epi16, _mm512_srl_epi32, _mm512_srl_epi64, _mm512_sub_epi8, _mm512_sub_epi16, _mm512_sub_epi32,
    _mm512_sub_epi64, _mm512_xor_si512,
};

use farhold_store::column::pack::{ROW_BYTES, lane_bits};

use super::{Bits, Kernel, Range, row_of};

pub(super) const KERNEL: Kernel = Kernel {
    name: "avx512",
    is_available: || std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw"),
    select,
};

/// The registers of a row of lanes.
const REGISTERS: [usize; ROW_BYTES / 64] = [0, 1];

/// # Safety
/// The processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
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

#[inline]
#[target_feature(enable = "avx512f")]
fn load(row: *const u8, index: usize) -> __m512i {
    debug_assert!(index < REGISTERS.len());
    // SAFETY: `row` comes from `row_of`, which has checked that 128 bytes lie there, and `index` is below 2.
    unsafe { _mm512_loadu_si512(row.add(index * 64).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn count(shift: u32) -> __m128i {
    _mm_cvtsi32_si128(shift as i32)
}

/// As with AVX2: a code that lies in one word stays where it is, and what it is compared with is moved there, once a row.
macro_rules! in_lanes {
    ($name:ident, $lane:ty, $signed:ty, $set:ident, $left:ident, $right:ident, $sub:ident, $equal:ident, $at_most:ident) => {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $name<const EQUAL: bool>(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
            const BITS: u32 = <$lane>::BITS;
            /// Codes of a register.
            const CODES: usize = 512 / BITS as usize;
            let mask = $set((<$lane>::MAX >> (BITS - width)) as $signed);
            let (first, span) = ($set(range.first as $signed), $set(range.span as $signed));
            bits.fill(0);
            for row in 0..BITS {
                let (word, shift) = (row * width / BITS, row * width % BITS);
                let low = row_of(packed, word);
                let (codes, first, span) = if shift + width <= BITS {
                    let shift = count(shift);
                    let mask = $left(mask, shift);
                    let codes = REGISTERS.map(|index| _mm512_and_si512(load(low, index), mask));
                    (codes, $left(first, shift), $left(span, shift))
                } else {
                    let high = row_of(packed, word + 1);
                    let (down, up) = (count(shift), count(BITS - shift));
                    let below = $set((<$lane>::MAX >> shift) as $signed);
                    let codes = REGISTERS.map(|index| {
                        let (low, high) = ($right(load(low, index), down), $left(load(high, index), up));
                        if BITS == 8 {
                            let above = _mm512_xor_si512(mask, below);
                            _mm512_or_si512(_mm512_and_si512(low, below), _mm512_and_si512(high, above))
                        } else {
                            _mm512_and_si512(_mm512_or_si512(low, high), mask)
                        }
                    });
                    (codes, first, span)
                };
                for (index, code) in codes.into_iter().enumerate() {
                    let found = if EQUAL { $equal(code, first) } else { $at_most($sub(code, first), span) };
                    let at = (row as usize * REGISTERS.len() + index) * CODES;
                    bits[at / 64] |= u64::from(found) << (at % 64);
                }
            }
        }
    };
}

// A byte has no shift of its own. That of 16 bits moves its neighbour's bits in, which are masked; a constant has none to move.
in_lanes!(
    bytes,
    u8,
    i8,
    _mm512_set1_epi8,
    _mm512_sll_epi16,
    _mm512_srl_epi16,
    _mm512_sub_epi8,
    _mm512_cmpeq_epi8_mask,
    _mm512_cmple_epu8_mask
);
in_lanes!(
    shorts,
    u16,
    i16,
    _mm512_set1_epi16,
    _mm512_sll_epi16,
    _mm512_srl_epi16,
    _mm512_sub_epi16,
    _mm512_cmpeq_epi16_mask,
    _mm512_cmple_epu16_mask
);
in_lanes!(
    words,
    u32,
    i32,
    _mm512_set1_epi32,
    _mm512_sll_epi32,
    _mm512_srl_epi32,
    _mm512_sub_epi32,
    _mm512_cmpeq_epi32_mask,
    _mm512_cmple_epu32_mask
);
in_lanes!(
    longs,
    u64,
    i64,
    _mm512_set1_epi64,
    _mm512_sll_epi64,
    _mm512_srl_epi64,
    _mm512_sub_epi64,
    _mm512_cmpeq_epi64_mask,
    _mm512_cmple_epu64_mask
);
