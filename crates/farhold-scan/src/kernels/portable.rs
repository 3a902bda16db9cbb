//! For every processor: unpacks a block, and compares each code. The oracle of the others.

use farhold_store::column::BLOCK_ROWS;
use farhold_store::column::pack::{Lane, lane_bits};

use super::{Bits, Kernel, Range};

pub(super) const KERNEL: Kernel = Kernel { name: "portable", is_available: || true, select };

fn select(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    match lane_bits(width) {
        8 => in_lanes::<u8>(packed, width, range, bits),
        16 => in_lanes::<u16>(packed, width, range, bits),
        32 => in_lanes::<u32>(packed, width, range, bits),
        _ => in_lanes::<u64>(packed, width, range, bits),
    }
}

fn in_lanes<T: Lane>(packed: &[u8], width: u32, range: Range, bits: &mut Bits) {
    let mut codes = [T::default(); BLOCK_ROWS];
    T::unpack(packed, width, &mut codes);
    for (word, codes) in bits.iter_mut().zip(codes.chunks_exact(64)) {
        *word = 0;
        for (bit, code) in codes.iter().enumerate() {
            let code: u64 = (*code).into();
            *word |= u64::from(code.wrapping_sub(range.first) <= range.span) << bit;
        }
    }
}
