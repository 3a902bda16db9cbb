//! For processors with AVX-512 (F and BW): a row of lanes is two registers, and a comparison gives bits at once.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_cvtsi32_si128, _mm512_and_si512, _mm512_cmple_epu8_mask, _mm512_cmple_epu16_mask,
    _mm512_cmple_epu32_mask, _mm512_cmple_epu64_mask, _mm512_loadu_si512, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi16, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_sll_epi16, _mm512_sll_epi32, _mm512_sll_epi64,
    _mm512_srl_epi16, _mm512_srl_epi32, _mm512_srl_epi64, _mm512_sub_epi8, _mm512_sub_epi16, _mm512_sub_epi32,
    _mm512_sub_epi64,
};

use farhold_store::column::pack::{ROW_BYTES, lane_bits};

use super::{Bits, Kernel, Range, row_of};

pub(super) const KERNEL: Kernel = Kernel {
    name: "avx512",
    is_available: || std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512bw"),
    select,
};

/// Registers that a row of lanes fills.
const REGISTERS: usize = ROW_BYTES / 64;

/// # Safety
/// The processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
fn select(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    match lane_bits(width) {
        8 => bytes(packed, width, range, bits),
        16 => shorts(packed, width, range, bits),
        32 => words(packed, width, range, bits),
        _ => longs(packed, width, range, bits),
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(row: *const u8, index: usize) -> __m512i {
    debug_assert!(index < REGISTERS);
    // SAFETY: `row` comes from `row_of`, which has checked that 128 bytes lie there, and `index` is below 2.
    unsafe { _mm512_loadu_si512(row.add(index * 64).cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn count(shift: u32) -> __m128i {
    _mm_cvtsi32_si128(shift as i32)
}

macro_rules! in_lanes {
    ($name:ident, $lane:ty, $signed:ty, $set:ident, $left:ident, $right:ident, $sub:ident, $compare:ident) => {
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $name(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
            const BITS: u32 = <$lane>::BITS;
            /// Codes of a register.
            const CODES: usize = 512 / BITS as usize;
            let mask = $set((<$lane>::MAX >> (BITS - width)) as $signed);
            let (first, span) = ($set(range.first as $signed), $set(range.span as $signed));
            bits.fill(0);
            for row in 0..BITS {
                let (word, shift) = (row * width / BITS, row * width % BITS);
                let low = row_of(packed, word);
                let high = (shift + width > BITS).then(|| row_of(packed, word + 1));
                for index in 0..REGISTERS {
                    let mut codes = $right(load(low, index), shift);
                    if let Some(high) = high {
                        codes = _mm512_or_si512(codes, $left(load(high, index), BITS - shift));
                    }
                    let found = $compare($sub(_mm512_and_si512(codes, mask), first), span);
                    let at = (row as usize * REGISTERS + index) * CODES;
                    bits[at / 64] |= u64::from(found) << (at % 64);
                }
            }
        }
    };
}

macro_rules! shifts {
    ($left:ident, $right:ident, $shift_left:ident, $shift_right:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $left(lanes: __m512i, shift: u32) -> __m512i {
            $shift_left(lanes, count(shift))
        }

        #[inline]
        #[target_feature(enable = "avx512f,avx512bw")]
        fn $right(lanes: __m512i, shift: u32) -> __m512i {
            $shift_right(lanes, count(shift))
        }
    };
}

shifts!(left16, right16, _mm512_sll_epi16, _mm512_srl_epi16);
shifts!(left32, right32, _mm512_sll_epi32, _mm512_srl_epi32);
shifts!(left64, right64, _mm512_sll_epi64, _mm512_srl_epi64);

/// A byte has no shift of its own: those of its neighbour that come in are masked.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn left8(lanes: __m512i, shift: u32) -> __m512i {
    _mm512_and_si512(left16(lanes, shift), _mm512_set1_epi8((u8::MAX << shift) as i8))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn right8(lanes: __m512i, shift: u32) -> __m512i {
    _mm512_and_si512(right16(lanes, shift), _mm512_set1_epi8((u8::MAX >> shift) as i8))
}

in_lanes!(bytes, u8, i8, _mm512_set1_epi8, left8, right8, _mm512_sub_epi8, _mm512_cmple_epu8_mask);
in_lanes!(shorts, u16, i16, _mm512_set1_epi16, left16, right16, _mm512_sub_epi16, _mm512_cmple_epu16_mask);
in_lanes!(words, u32, i32, _mm512_set1_epi32, left32, right32, _mm512_sub_epi32, _mm512_cmple_epu32_mask);
in_lanes!(longs, u64, i64, _mm512_set1_epi64, left64, right64, _mm512_sub_epi64, _mm512_cmple_epu64_mask);
