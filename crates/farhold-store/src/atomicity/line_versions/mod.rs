//! A version in every cache line, as FaRM has it (Dragojević et al., NSDI 2014, section 4).
//!
//! ```text
//!  line 0   +0 version │ +8 lock │ +16 length │ +24 payload, 40 bytes
//!  line n   +0 version │ +8 payload, 56 bytes
//! ```
//!
//! A read of many lines is one state if all their versions equal the header's, and that is even. Before the payload can be used,
//! the versions in it must be removed: a copy that the other mechanisms do not make.
//!
//! ```text
//!  writer (holds `lock`), versions v, v + 1, v + 2, v even          reader
//!  header := v + 1; fence                                           lines, each whole, in any order
//!  for each line: line := v + 1; fence; payload; line := v + 2      all versions equal and even?
//!  header := v + 2; lock := 0                                       payload without them
//! ```
//!
//! A line is odd while its payload changes, so a line with an even version is whole, whenever it was read. Loads of a processor
//! do not read a line as a whole. In mapped memory the reader therefore also loads the header's version before and after, which
//! makes the mechanism a sequence lock with a layout that must still be stripped.
//!
//! FaRM keeps 16 bits of the version in a line, and limits the time of a read because 16 bits wrap. Here a line has all 64 bits.
//! They need no clock, are written and read as words, and cost 12.5 % of memory instead of 3 %.

use super::{Busy, FarRead, LINE, Mechanism, Seen, Unread, View, Writing, is_unchecked, word, word_of};
use crate::object::Owner;
use farhold_fabric::{Batch, Handle, RegionMemory};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::fence;

/// A version in each cache line, compared and stripped by the reader.
pub struct LineVersions;

const LOCK: u64 = 8;
const LEN: u64 = 16;
/// Where the payload starts in line 0, and in the others.
const FIRST: usize = 24;
const NEXT: usize = 8;
const FIRST_BYTES: usize = LINE as usize - FIRST;
const NEXT_BYTES: usize = LINE as usize - NEXT;

fn lines(payload_len: usize) -> usize {
    1 + payload_len.saturating_sub(FIRST_BYTES).div_ceil(NEXT_BYTES)
}

/// Which bytes of the payload a line holds.
fn bytes_of(line: usize, payload_len: usize) -> Range<usize> {
    let start = if line == 0 { 0 } else { FIRST_BYTES + (line - 1) * NEXT_BYTES };
    let end = FIRST_BYTES + line * NEXT_BYTES;
    start.min(payload_len)..end.min(payload_len)
}

/// Extracts the payload from an object's raw lines. `None`: their versions are not all the same.
fn strip(raw: &[u8], version: u64, into: &mut [u8]) -> Option<()> {
    let (first, rest) = into.split_at_mut(into.len().min(FIRST_BYTES));
    first.copy_from_slice(&raw[FIRST..FIRST + first.len()]);
    let mut differences = 0;
    let mut lines = raw[LINE as usize..].chunks_exact(LINE as usize);
    let mut whole = rest.chunks_exact_mut(NEXT_BYTES);
    for (to, line) in whole.by_ref().zip(lines.by_ref()) {
        differences |= word_of(line, 0) ^ version;
        to.copy_from_slice(&line[NEXT..]);
    }
    let last = whole.into_remainder();
    if !last.is_empty() {
        let line = lines.next()?;
        differences |= word_of(line, 0) ^ version;
        last.copy_from_slice(&line[NEXT..NEXT + last.len()]);
    }
    (differences == 0 || is_unchecked()).then_some(())
}

impl Mechanism for LineVersions {
    fn name(&self) -> &'static str {
        "line_versions"
    }

    fn about(&self) -> &'static str {
        "a version in each cache line, compared and stripped by the reader (FaRM)"
    }

    fn bytes(&self, payload_len: usize) -> usize {
        lines(payload_len) * LINE as usize
    }

    #[inline]
    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], _: &Handle) -> Result<Seen, Unread> {
        let header = word(memory, at);
        let version = header.load(Acquire);
        if !version.is_multiple_of(2) && !is_unchecked() {
            return Err(Unread::Torn);
        }
        let len = word(memory, at + LEN).load(Relaxed) as usize;
        let lines = lines(len);
        if len > into.len() || memory.check(at, (lines * LINE as usize) as u64).is_err() {
            return Err(Unread::TooShort { payload_len: len });
        }
        let (first, rest) = into[..len].split_at_mut(len.min(FIRST_BYTES));
        memory.copy_out(at + FIRST as u64, first)?;
        // All versions are checked, as FaRM's readers do, although in place the header's two loads decide.
        let differences = memory.copy_out_lines(at + LINE, version, rest)?;
        fence(Acquire);
        let whole = differences == 0 && header.load(Relaxed) == version;
        if whole || is_unchecked() { Ok(Seen { version, len }) } else { Err(Unread::Torn) }
    }

    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, _: &Handle) {
        if let Some(memory) = read.mapped {
            read.word = word(memory, read.at.offset()).load(Acquire);
        }
        read.slot = Some(batch.read(read.at, self.bytes(read.payload_len_max)));
    }

    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        into: &'b mut [u8],
        _: &Handle,
    ) -> Result<Option<View<'b>>, Unread> {
        let raw = batch.bytes(read.slot.expect("posted"))?;
        let (version, len) = (word_of(raw, 0), word_of(raw, LEN as usize) as usize);
        if !version.is_multiple_of(2) && !is_unchecked() {
            return Err(Unread::Torn);
        }
        if let Some(memory) = read.mapped {
            fence(Acquire);
            let same = version == read.word && word(memory, read.at.offset()).load(Relaxed) == version;
            if !same && !is_unchecked() {
                return Err(Unread::Torn);
            }
        }
        if len > read.payload_len_max.min(into.len()) {
            return Err(Unread::TooShort { payload_len: len });
        }
        let payload = &mut into[..len];
        strip(raw, version, payload).ok_or(Unread::Torn)?;
        Ok(Some(View { version, payload }))
    }

    fn begin_write(&self, memory: &RegionMemory, at: u64, owner: Owner, _: &Handle) -> Result<Writing, Busy> {
        word(memory, at + LOCK).compare_exchange(0, owner.word(), AcqRel, Relaxed).map_err(|_| Busy)?;
        let version = word(memory, at).load(Relaxed);
        word(memory, at).store(version + 1, Relaxed);
        fence(Release);
        Ok(Writing { version })
    }

    fn pieces(&self, payload_len: usize) -> usize {
        lines(payload_len)
    }

    fn fill(&self, memory: &RegionMemory, at: u64, writing: &Writing, payload: &[u8], pieces: Range<usize>) {
        for line in pieces {
            let (start, bytes) = (at + line as u64 * LINE, &payload[bytes_of(line, payload.len())]);
            let version = word(memory, start);
            if line > 0 {
                version.store(writing.version + 1, Relaxed);
                fence(Release);
            }
            memory.copy_in(start + if line > 0 { NEXT } else { FIRST } as u64, bytes).expect("inside its region");
            if line > 0 {
                version.store(writing.version + 2, Release);
            }
        }
    }

    fn end_write(&self, memory: &RegionMemory, at: u64, writing: Writing, payload: &[u8]) -> u64 {
        let version = writing.version + 2;
        word(memory, at + LEN).store(payload.len() as u64, Relaxed);
        word(memory, at).store(version, Release);
        word(memory, at + LOCK).store(0, Release);
        version
    }
}
