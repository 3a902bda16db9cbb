//! Sets of rows of a segment, in messages.
//!
//! ```text
//!   form u8    0: all rows    1: their places u16, in order    2: a bit a row
//! ```
//! Of the last two forms, the shorter one is used. The number of rows is in another field of the message.

use farhold_store::column::BLOCK_ROWS;

use super::super::stage::rows_of;
use super::wire::{Cursor, WireError};
use crate::kernels::Bits;

/// Appends the set of rows of a segment, which has `count` rows.
pub(super) fn put_bits(to: &mut Vec<u8>, bits: &[Bits], rows: usize, count: usize) {
    if count == rows {
        to.push(0);
    } else if count * 2 < rows.div_ceil(8) {
        to.push(1);
        rows_of(bits).for_each(|row| to.extend((row as u16).to_le_bytes()));
    } else {
        to.push(2);
        let start = to.len();
        bits.iter().flatten().for_each(|word| to.extend(word.to_le_bytes()));
        // Missing blocks have none.
        to.resize(start + rows.div_ceil(8), 0);
    }
}

/// The number of bytes that [`put_bits`] appends.
pub(super) fn bits_bytes(rows: usize, count: usize) -> usize {
    1 + if count == rows { 0 } else { (count * 2).min(rows.div_ceil(8)) }
}

/// The reverse of [`put_bits`].
pub(super) fn read_bits(from: &mut Cursor<'_>, rows: usize, count: usize) -> Result<Vec<Bits>, WireError> {
    let mut bits: Vec<Bits> = vec![[0; BLOCK_ROWS / 64]; rows.div_ceil(BLOCK_ROWS)];
    let mut set = |row: usize| bits[row / BLOCK_ROWS][row % BLOCK_ROWS / 64] |= 1 << (row % 64);
    match from.u8("the form of bits")? {
        0 if count == rows => (0..rows).for_each(set),
        1 => {
            let mut next = 0;
            for place in from.bytes(count * 2, "the places of rows")?.as_chunks().0 {
                let row = usize::from(u16::from_le_bytes(*place));
                if row < next || row >= rows {
                    return Err(WireError::Wrong("the places of rows are not in order"));
                }
                set(row);
                next = row + 1;
            }
        }
        2 => {
            let mut found = 0;
            for (byte, of) in from.bytes(rows.div_ceil(8), "the bits of rows")?.iter().enumerate() {
                for row in (0..8).filter(|bit| of >> bit & 1 == 1).map(|bit| byte * 8 + bit) {
                    if row >= rows {
                        return Err(WireError::Wrong("a bit stands beyond the last row"));
                    }
                    set(row);
                    found += 1;
                }
            }
            if found != count {
                return Err(WireError::Wrong("its bits are not as many as it says"));
            }
        }
        form => return Err(WireError::Unknown { what: "the form of bits", number: form.into() }),
    }
    Ok(bits)
}
