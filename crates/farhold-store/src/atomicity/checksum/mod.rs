//! A checksum of the whole object in its header, as Pilaf has it (Mitchell, Geng and Li, USENIX ATC 2013, section 3.2).
//!
//! ```text
//!  +0 lock │ +8 CRC64 of all that follows │ +16 version │ +24 length │ +32 payload
//! ```
//!
//! A reader takes the bytes as they come and computes their checksum; a mix of two states has another one, except in one case of
//! 2^64. Nothing is assumed of the fabric: bytes may come in any order and in any pieces. The writer pays the same again. (If the
//! processor has carry-less multiplication, the CRC uses it, some twenty times faster than the dozen cycles a byte that Pilaf's
//! authors and their critics count with.)

use super::{Busy, FarRead, LINE, Mechanism, Seen, Unread, View, Writing, clean_bytes, is_unchecked, word, word_of};
use crate::object::Owner;
use farhold_fabric::{Batch, Handle, RegionMemory};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A CRC64 in each object's header; the reader computes it again.
pub struct Checksum;

const SUM: u64 = 8;
const VERSION: u64 = 16;
const LEN: u64 = 24;
const PAYLOAD: u64 = 32;

fn sum(version: u64, len: usize, payload: &[u8]) -> u64 {
    let mut digest = crc64fast::Digest::new();
    let mut header = [0; 16];
    header[..8].copy_from_slice(&version.to_ne_bytes());
    header[8..].copy_from_slice(&(len as u64).to_ne_bytes());
    digest.write(&header);
    digest.write(payload);
    digest.sum64()
}

impl Mechanism for Checksum {
    fn name(&self) -> &'static str {
        "checksum"
    }

    fn about(&self) -> &'static str {
        "a CRC64 of the object, computed by the reader (Pilaf)"
    }

    fn bytes(&self, payload_len: usize) -> usize {
        (PAYLOAD as usize + payload_len).next_multiple_of(LINE as usize)
    }

    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], _: &Handle) -> Result<Seen, Unread> {
        let [wanted, version, len] = [SUM, VERSION, LEN].map(|offset| word(memory, at + offset).load(Acquire));
        let len = len as usize;
        if len > into.len() {
            return Err(Unread::TooShort { payload_len: len });
        }
        memory.copy_out(at + PAYLOAD, &mut into[..len])?;
        let whole = sum(version, len, &into[..len]) == wanted || is_unchecked();
        if whole { Ok(Seen { version, len }) } else { Err(Unread::Torn) }
    }

    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, _: &Handle) {
        read.slot = Some(batch.read(read.at, PAYLOAD as usize + read.payload_len_max));
    }

    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        _: &'b mut [u8],
        _: &Handle,
    ) -> Result<Option<View<'b>>, Unread> {
        let raw = batch.bytes(read.slot.expect("posted"))?;
        let [wanted, version, len] = [SUM, VERSION, LEN].map(|offset| word_of(raw, offset as usize));
        let len = len as usize;
        if len > read.payload_len_max {
            return Err(Unread::TooShort { payload_len: len });
        }
        let payload = &raw[PAYLOAD as usize..][..len];
        let whole = sum(version, len, payload) == wanted || is_unchecked();
        if whole { Ok(Some(View { version, payload })) } else { Err(Unread::Torn) }
    }

    fn begin_write(&self, memory: &RegionMemory, at: u64, owner: Owner, _: &Handle) -> Result<Writing, Busy> {
        word(memory, at).compare_exchange(0, owner.word(), AcqRel, Relaxed).map_err(|_| Busy)?;
        Ok(Writing { version: word(memory, at + VERSION).load(Relaxed) })
    }

    fn fill(&self, memory: &RegionMemory, at: u64, _: &Writing, payload: &[u8], pieces: Range<usize>) {
        let bytes = clean_bytes(&pieces, payload.len());
        memory.copy_in(at + PAYLOAD + bytes.start as u64, &payload[bytes]).expect("inside its region");
    }

    fn end_write(&self, memory: &RegionMemory, at: u64, writing: Writing, payload: &[u8]) -> u64 {
        let version = writing.version + 1;
        word(memory, at + VERSION).store(version, Relaxed);
        word(memory, at + LEN).store(payload.len() as u64, Relaxed);
        word(memory, at + SUM).store(sum(version, payload.len(), payload), Relaxed);
        word(memory, at).store(0, Release);
        version
    }
}
