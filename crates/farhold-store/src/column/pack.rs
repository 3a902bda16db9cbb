//! Integers of `width` bits, packed in blocks of 1,024.
//!
//! ```text
//!   a block of width w is w rows of 128 bytes; a row is 1024 / B lanes of B bits:
//!
//!   w      1..=8   9..=16   17..=32   33..=64
//!   B        8       16        32        64
//!   lanes  128       64        32        16
//!
//!   lane l holds the values l, l + lanes, l + 2·lanes, …, B of them, each w bits, from the lowest bit on:
//!   its w words are the words at place l of the w rows.
//! ```
//! The values of neighbouring lanes are therefore neighbours, whatever the width: one vector register unpacks as many consecutive values as it has lanes, and a
//! comparison produces their bits in order. The idea of lanes is from `FastLanes` (Afroozeh and Boncz, VLDB 2023); its order of rows, which serves delta
//! coding, is not used.

use super::BLOCK_ROWS;

/// Bytes of one row of lanes.
pub const ROW_BYTES: usize = BLOCK_ROWS / 8;

/// Bytes of a packed block.
#[must_use]
pub const fn block_bytes(width: u32) -> usize {
    width as usize * ROW_BYTES
}

/// The number of bits that can hold every code up to `greatest`.
#[must_use]
pub const fn width_of(greatest: u64) -> u32 {
    u64::BITS - greatest.leading_zeros()
}

/// Bits of a lane of codes of this width.
#[must_use]
pub const fn lane_bits(width: u32) -> u32 {
    match width {
        0..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        _ => 64,
    }
}

/// An unsigned integer that a lane consists of.
pub trait Lane: Copy + Default + Into<u64> {
    /// Its bits.
    const BITS: u32;

    /// Unpacks a block of codes whose lanes are of this type.
    ///
    /// # Panics
    /// If `packed` is shorter than a block of this width, or the width is above [`BITS`](Self::BITS).
    fn unpack(packed: &[u8], width: u32, out: &mut [Self; BLOCK_ROWS]);

    /// Packs a block of codes below `2^width` into `packed`, which is a block of zeros.
    ///
    /// # Panics
    /// If `packed` is shorter than a block of this width, or the width is above [`BITS`](Self::BITS).
    fn pack(codes: &[u64; BLOCK_ROWS], width: u32, packed: &mut [u8]);
}

macro_rules! lane {
    ($lane:ty) => {
        impl Lane for $lane {
            const BITS: u32 = <$lane>::BITS;

            #[inline]
            fn unpack(packed: &[u8], width: u32, out: &mut [Self; BLOCK_ROWS]) {
                const BITS: u32 = <$lane>::BITS;
                const LANES: usize = BLOCK_ROWS / BITS as usize;
                assert!(width <= BITS, "codes of {width} bits in lanes of {BITS}");
                if width == 0 {
                    out.fill(0);
                    return;
                }
                let mask = <$lane>::MAX >> (BITS - width);
                let (words, _) = packed.as_chunks::<{ size_of::<$lane>() }>();
                for (row, out) in (0..BITS).zip(out.as_chunks_mut::<LANES>().0) {
                    let (word, shift) = ((row * width / BITS) as usize, row * width % BITS);
                    let low = &words[word * LANES..][..LANES];
                    if shift + width <= BITS {
                        for (out, low) in out.iter_mut().zip(low) {
                            *out = (<$lane>::from_le_bytes(*low) >> shift) & mask;
                        }
                    } else {
                        let high = &words[(word + 1) * LANES..][..LANES];
                        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
                            let (low, high) = (<$lane>::from_le_bytes(*low), <$lane>::from_le_bytes(*high));
                            *out = ((low >> shift) | (high << (BITS - shift))) & mask;
                        }
                    }
                }
            }

            fn pack(codes: &[u64; BLOCK_ROWS], width: u32, packed: &mut [u8]) {
                const BITS: u32 = <$lane>::BITS;
                const LANES: usize = BLOCK_ROWS / BITS as usize;
                assert!(width <= BITS, "codes of {width} bits in lanes of {BITS}");
                if width == 0 {
                    return;
                }
                let (words, _) = packed.as_chunks_mut::<{ size_of::<$lane>() }>();
                let mut add = |word: usize, lane: usize, bits: $lane| {
                    let word = &mut words[word * LANES + lane];
                    *word = (<$lane>::from_le_bytes(*word) | bits).to_le_bytes();
                };
                for (row, codes) in (0..BITS).zip(codes.as_chunks::<LANES>().0) {
                    let (word, shift) = ((row * width / BITS) as usize, row * width % BITS);
                    for (lane, &code) in codes.iter().enumerate() {
                        let code = code as $lane;
                        add(word, lane, code << shift);
                        if shift + width > BITS {
                            add(word + 1, lane, code >> (BITS - shift));
                        }
                    }
                }
            }
        }
    };
}

lane!(u8);
lane!(u16);
lane!(u32);
lane!(u64);

/// Packs a block of codes below `2^width` into `packed`, which is a block of zeros.
///
/// # Panics
/// If `packed` is shorter than a block of this width, or the width is above 64.
pub fn pack(codes: &[u64; BLOCK_ROWS], width: u32, packed: &mut [u8]) {
    match lane_bits(width) {
        8 => u8::pack(codes, width, packed),
        16 => u16::pack(codes, width, packed),
        32 => u32::pack(codes, width, packed),
        _ => u64::pack(codes, width, packed),
    }
}

/// One code of a block.
///
/// # Panics
/// If `packed` is shorter than a block of this width, the width is above 64, or `position` is not in a block.
#[must_use]
pub fn get(packed: &[u8], width: u32, position: usize) -> u64 {
    assert!(position < BLOCK_ROWS, "a block has {BLOCK_ROWS} codes");
    assert!(width <= u64::BITS, "codes of {width} bits");
    if width == 0 {
        return 0;
    }
    let bits = lane_bits(width);
    let lanes = BLOCK_ROWS / bits as usize;
    let (row, lane) = ((position / lanes) as u32, position % lanes);
    let bytes = bits as usize / 8;
    let word = |word: usize| {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(&packed[word * ROW_BYTES + lane * bytes..][..bytes]);
        u64::from_le_bytes(wide)
    };
    let (first, shift) = ((row * width / bits) as usize, row * width % bits);
    let mut code = word(first) >> shift;
    if shift + width > bits {
        code |= word(first + 1) << (bits - shift);
    }
    code & (u64::MAX >> (u64::BITS - width))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every width, with codes that use all bits.
    #[test]
    fn codes_come_back_at_every_width() {
        for width in 0..=64 {
            let greatest = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            assert_eq!(width_of(greatest), width);
            let codes: [u64; BLOCK_ROWS] = std::array::from_fn(|n| {
                let mixed = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                if n % 7 == 0 { greatest } else { (mixed ^ (mixed >> 29)) & greatest }
            });
            let mut packed = vec![0; block_bytes(width)];
            pack(&codes, width, &mut packed);
            for (position, &code) in codes.iter().enumerate() {
                assert_eq!(get(&packed, width, position), code, "width {width}, position {position}");
            }
            let unpacked = match lane_bits(width) {
                8 => unpacked::<u8>(&packed, width),
                16 => unpacked::<u16>(&packed, width),
                32 => unpacked::<u32>(&packed, width),
                _ => unpacked::<u64>(&packed, width),
            };
            assert_eq!(unpacked, codes, "width {width}");
        }
    }

    fn unpacked<T: Lane>(packed: &[u8], width: u32) -> Vec<u64> {
        let mut out = [T::default(); BLOCK_ROWS];
        T::unpack(packed, width, &mut out);
        out.map(Into::into).to_vec()
    }

    #[test]
    fn widths_beyond_a_lane_are_refused() {
        let refuses = |call: fn()| {
            let panic = std::panic::catch_unwind(call).expect_err("it does not refuse");
            let message = panic.downcast::<String>().unwrap_or_default();
            assert!(message.starts_with("codes of "), "{message}");
        };
        refuses(|| {
            let _ = get(&[0; block_bytes(65)], 65, 0);
        });
        refuses(|| pack(&[0; BLOCK_ROWS], 65, &mut [0; block_bytes(65)]));
        refuses(|| u8::unpack(&[0; block_bytes(9)], 9, &mut [0; BLOCK_ROWS]));
        refuses(|| u32::pack(&[0; BLOCK_ROWS], 33, &mut [0; block_bytes(33)]));
    }
}
