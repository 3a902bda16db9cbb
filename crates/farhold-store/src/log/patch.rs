//! A patch: what changes in a row whose length stays.
//!
//! ```text
//!   run by run: at u16 │ len u16 │ bytes        `at` counts from the first byte of the key, so a reader can start loading the
//!                                               lines that change before it knows where the value begins
//! ```
//!
//! A patch belongs to one version: on another it makes bytes that never were a row. Done twice on its own, or on a row that is
//! half patched, it makes the same row, because every byte that differs is in it.

use super::LogError;
use std::ops::Range;

const RUN_HEAD_BYTES: usize = 4;
const WORD: usize = 8;
/// What is compared at a time while nothing differs.
const BLOCK: usize = 4 * WORD;

/// Appends what makes `old` `new`, the values of a row with a key of `key_len` bytes. False, and nothing is appended, if that would not
/// be shorter than key and value.
#[inline]
pub(super) fn append(out: &mut Vec<u8>, key_len: usize, old: &[u8], new: &[u8]) -> bool {
    let whole = key_len + new.len();
    if old.len() != new.len() || whole > usize::from(u16::MAX) {
        return false;
    }
    let begin = out.len();
    let mut at = 0;
    while let Some(run) = next_run(old, new, at) {
        if out.len() - begin + RUN_HEAD_BYTES + run.len() >= whole {
            out.truncate(begin);
            return false;
        }
        out.extend_from_slice(&((key_len + run.start) as u16).to_le_bytes());
        out.extend_from_slice(&(run.len() as u16).to_le_bytes());
        out.extend_from_slice(&new[run.clone()]);
        at = run.end;
    }
    true
}

/// The next words that differ, from `at` on.
#[inline]
fn next_run(old: &[u8], new: &[u8], mut at: usize) -> Option<Range<usize>> {
    let len = new.len();
    while at + BLOCK <= len && old[at..at + BLOCK] == new[at..at + BLOCK] {
        at += BLOCK;
    }
    let word = |at: usize| at..(at + WORD).min(len);
    while at < len && old[word(at)] == new[word(at)] {
        at += WORD;
    }
    let start = at;
    while at < len && old[word(at)] != new[word(at)] {
        at += WORD;
    }
    (start < len).then(|| start..at.min(len))
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
        let mut random = 3_u64;
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
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
            let mut patch = b"before".to_vec();
            if append(&mut patch, key_len, &old, &new) {
                assert!(patch.len() - 6 < (key_len + len).max(1), "shorter than the row");
                assert_eq!(applied(key_len, &old, &patch[6..]), new);
                let half = draw(len + 1);
                let mixed = [&new[..half], &old[half..]].concat();
                assert_eq!(applied(key_len, &mixed, &patch[6..]), new);
                patched += 1;
            } else {
                assert_eq!(patch, b"before");
            }
        }
        assert!(patched > 2_000);
        assert!(!append(&mut Vec::new(), 8, b"short", b"longer"), "another length");
    }

    #[test]
    fn bytes_that_are_no_patch_are_refused() {
        let mut patch = Vec::new();
        assert!(append(&mut patch, 4, &[0; 64], &[[0; 32], [1; 32]].concat()));
        assert!(runs(&patch, 67).any(|run| run.is_err()), "a shorter row");
        for cut in 1..patch.len() {
            assert!(runs(&patch[..cut], 68).any(|run| run.is_err()), "cut off");
        }
    }
}
