//! A patch: the bytes that change in a row of unchanged length.
//!
//! ```text
//!   run by run: at u16 │ len u16 │ bytes        `at` counts from the first byte of the key, so a reader can start loading the
//!                                               lines that change before it knows where the value begins
//! ```
//!
//! A patch belongs to one version: applied to another it makes bytes that never were a row. Applied twice to its own version, or
//! to a row that is half patched, it makes the same row, because every byte that differs is in it.

use super::LogError;
use std::ops::Range;

const RUN_HEAD_BYTES: usize = 4;
const WORD: usize = 8;
/// The unit of comparison while nothing differs.
const BLOCK: usize = 4 * WORD;

/// Writes what makes `old` `new`, the values of a row with a key of `key_len` bytes, to the beginning of `room`, which has room
/// for all of key and value. Returns its length, or `None` if that would not be shorter than key and value.
#[inline]
pub(super) fn write(room: &mut [u8], key_len: usize, old: &[u8], new: &[u8]) -> Option<usize> {
    let whole = key_len + new.len();
    if old.len() != new.len() || whole > usize::from(u16::MAX) {
        return None;
    }
    let (mut len, mut at) = (0, 0);
    while let Some(run) = next_run(old, new, at) {
        let end = len + RUN_HEAD_BYTES + run.len();
        if end >= whole {
            return None;
        }
        let (head, bytes) = room[len..end].split_at_mut(RUN_HEAD_BYTES);
        head[..2].copy_from_slice(&((key_len + run.start) as u16).to_le_bytes());
        head[2..].copy_from_slice(&(run.len() as u16).to_le_bytes());
        at = run.end;
        copy(bytes, &new[run]);
        len = end;
    }
    Some(len)
}

/// Copies `len` bytes: one word, which most runs are, without a call.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    match (<&mut [u8; WORD]>::try_from(&mut *to), <&[u8; WORD]>::try_from(from)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => to.copy_from_slice(from),
    }
}

/// The next words that differ, from `at` on.
#[inline]
fn next_run(old: &[u8], new: &[u8], mut at: usize) -> Option<Range<usize>> {
    let len = new.len();
    while at + BLOCK <= len && old[at..at + BLOCK] == new[at..at + BLOCK] {
        at += BLOCK;
    }
    while at < len && word(old, at) == word(new, at) {
        at += WORD;
    }
    let start = at;
    while at < len && word(old, at) != word(new, at) {
        at += WORD;
    }
    (start < len).then(|| start..at.min(len))
}

/// The word from `at` on; the last one may be short. (Slices of a length that the compiler does not know are compared by a call.)
#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let rest = &bytes[at..];
    match rest.first_chunk() {
        Some(whole) => u64::from_le_bytes(*whole),
        None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

/// The runs of a patch: where in the payload, and the bytes that get there.
///
/// # Errors
/// [`LogError::Malformed`], once, where bytes are no run of a payload of `payload_len` bytes.
pub fn runs(patch: &[u8], payload_len: usize) -> impl Iterator<Item = Result<(usize, &[u8]), LogError>> {
    let mut rest = patch;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let run = take_run(&mut rest).filter(|(at, bytes)| at + bytes.len() <= payload_len);
        if run.is_none() {
            rest = &[];
        }
        Some(run.ok_or(LogError::Malformed { what: "a patch is cut off, or longer than its row" }))
    })
}

fn take_run<'a>(rest: &mut &'a [u8]) -> Option<(usize, &'a [u8])> {
    let (head, tail) = rest.split_at_checked(RUN_HEAD_BYTES)?;
    let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (bytes, next) = tail.split_at_checked(half(2))?;
    *rest = next;
    Some((half(0), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(key_len: usize, old: &[u8], patch: &[u8]) -> Vec<u8> {
        let mut payload = [&vec![9; key_len], old].concat();
        let len = payload.len();
        for run in runs(patch, len) {
            let (at, bytes) = run.expect("a run");
            payload[at..at + bytes.len()].copy_from_slice(bytes);
        }
        payload.split_off(key_len)
    }

    #[test]
    fn a_patch_makes_the_new_value_also_of_one_that_is_half_new() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut draw = |below: usize| random.usize(..below);
        let mut patched = 0;
        for _ in 0..4_000 {
            let (len, key_len) = (draw(400), draw(20));
            let old: Vec<u8> = (0..len).map(|_| draw(4) as u8).collect();
            let mut new = old.clone();
            for _ in 0..draw(6) {
                let at = draw(len + 1);
                let end = (at + draw(40)).min(len);
                new[at..end].iter_mut().for_each(|byte| *byte ^= draw(3) as u8);
            }
            // No byte of the room is more than a patch may have.
            let mut room = vec![7; key_len + len];
            if let Some(patch_len) = write(&mut room, key_len, &old, &new) {
                assert!(patch_len < (key_len + len).max(1), "shorter than the row");
                let patch = &room[..patch_len];
                assert_eq!(applied(key_len, &old, patch), new);
                let half = draw(len + 1);
                let mixed = [&new[..half], &old[half..]].concat();
                assert_eq!(applied(key_len, &mixed, patch), new);
                patched += 1;
            }
        }
        assert!(patched > 2_000);
        assert_eq!(write(&mut [0; 14], 8, b"short", b"longer"), None, "another length");
    }

    #[test]
    fn bytes_that_are_no_patch_are_refused() {
        let mut patch = vec![0; 68];
        let patch_len = write(&mut patch, 4, &[0; 64], &[[0; 32], [1; 32]].concat()).expect("shorter than the row");
        patch.truncate(patch_len);
        assert!(runs(&patch, 67).any(|run| run.is_err()), "a shorter row");
        for cut in 1..patch.len() {
            assert!(runs(&patch[..cut], 68).any(|run| run.is_err()), "cut off");
        }
    }
}
