//! From bytes to words and back, by the shape of the index. Bounds of any length are adapted to it.

use std::ops::Bound;

/// What the keys of an index look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyShape {
    /// Every key has exactly this many bytes, 1 to 16. Up to 8 a key is one word in the index, beyond that two.
    Fixed(usize),
    /// Keys of 0 to 15 bytes, each with its own length; two words in the index.
    Short,
    /// Keys of any length; the first 15 bytes lie in the index, longer keys whole in a block of their own as well.
    Bytes,
}

pub(crate) const WORD_BYTES: usize = 8;
pub(crate) const PAIR_BYTES: usize = 16;
pub(crate) const SHORT_BYTES_MAX: usize = PAIR_BYTES - 1;
/// In the length byte: the key goes on behind the pointer.
pub(crate) const LONGER: u8 = 16;

/// A key of exactly `key.len() <= 8` bytes as a word.
#[inline]
pub(crate) fn fixed_word(key: &[u8]) -> u64 {
    match key.len() {
        8 => first_word(key),
        4..8 => {
            let (head, tail) = (first_half(key), first_half(&key[key.len() - 4..]));
            u64::from(head) << 32 | u64::from(tail) << (8 * (8 - key.len())) & 0xffff_ffff
        }
        _ => padded(key),
    }
}

/// A key of exactly `key.len()` bytes, 9 to 16, right-aligned in a pair of words.
#[inline]
pub(crate) fn fixed_pair(key: &[u8]) -> u128 {
    // The last eight bytes begin inside the first eight unless there are sixteen: shift the overlap out.
    let head = first_word(key) >> (8 * (16 - key.len()));
    u128::from(head) << 64 | u128::from(first_word(&key[key.len() - 8..]))
}

/// A key of up to 15 bytes, padded, with its length in the last byte.
#[inline]
pub(crate) fn short_key(key: &[u8]) -> u128 {
    let padded =
        if key.len() <= 8 { u128::from(fixed_word(key)) << 64 } else { fixed_pair(key) << (8 * (16 - key.len())) };
    padded | key.len() as u128
}

fn padded(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

#[inline]
fn first_word(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("eight bytes or more"))
}

#[inline]
fn first_half(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("four bytes or more"))
}

/// The same lower bound on keys of exactly `length` bytes, as one of `length` bytes.
///
/// A bound that is a proper prefix of keys lies before all of them, wherever it points; one that goes on after a key's
/// end lies behind that key.
pub(crate) fn lower_fitted<'b>(bound: Bound<&[u8]>, length: usize, room: &'b mut [u8; 16]) -> Bound<&'b [u8]> {
    let (Bound::Included(bytes) | Bound::Excluded(bytes)) = bound else { return Bound::Unbounded };
    let fitted = fit(bytes, length, room);
    match bytes.len().cmp(&length) {
        std::cmp::Ordering::Less => Bound::Included(fitted),
        std::cmp::Ordering::Equal => bound.map(|_| fitted),
        std::cmp::Ordering::Greater => Bound::Excluded(fitted),
    }
}

/// The same upper bound on keys of exactly `length` bytes, as one of `length` bytes.
pub(crate) fn upper_fitted<'b>(bound: Bound<&[u8]>, length: usize, room: &'b mut [u8; 16]) -> Bound<&'b [u8]> {
    let (Bound::Included(bytes) | Bound::Excluded(bytes)) = bound else { return Bound::Unbounded };
    let fitted = fit(bytes, length, room);
    match bytes.len().cmp(&length) {
        std::cmp::Ordering::Less => Bound::Excluded(fitted),
        std::cmp::Ordering::Equal => bound.map(|_| fitted),
        std::cmp::Ordering::Greater => Bound::Included(fitted),
    }
}

fn fit<'b>(bytes: &[u8], length: usize, room: &'b mut [u8; 16]) -> &'b [u8] {
    *room = [0; 16];
    let shared = bytes.len().min(length);
    room[..shared].copy_from_slice(&bytes[..shared]);
    &room[..length]
}

/// Bounds on keys of up to 15 bytes, cut to that: only a bound that is longer moves, to behind its first 15 bytes.
pub(crate) fn lower_cut(bound: Bound<&[u8]>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(bytes) | Bound::Excluded(bytes) if bytes.len() > SHORT_BYTES_MAX => {
            Bound::Excluded(&bytes[..SHORT_BYTES_MAX])
        }
        other => other,
    }
}

/// As [`lower_cut`], for the upper end.
pub(crate) fn upper_cut(bound: Bound<&[u8]>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(bytes) | Bound::Excluded(bytes) if bytes.len() > SHORT_BYTES_MAX => {
            Bound::Included(&bytes[..SHORT_BYTES_MAX])
        }
        other => other,
    }
}
