//! A lease on the object while it is read, as DrTM has it (Wei et al., SOSP 2015, section 4.2).
//!
//! ```text
//!  +0 word: 0, or a writer's owner word (odd), or the end of the readers' lease, shifted (even) │ +8 version │ +16 length │ +24 payload
//!
//!  free ──(reader: swap)──▶ leased until t ──(time)──▶ as good as free
//!   └─────(writer: swap)──▶ owned ──(writer: store 0)──▶ free
//! ```
//!
//! A far reader needs two rounds: a `compare_swap` that takes or learns of a lease, then the read. The read counts if the lease
//! has not ended when it is back. Readers share a lease and do not give it back, and a writer waits for its end: a reader that
//! dies blocks no writer for longer. So a busy object is rarely written, and clocks must agree: all use
//! [`Handle::shared_now_ns`], and may differ by [`SKEW_NS`].

use super::{
    Busy, FarRead, LINE, Lease, Mechanism, Seen, Unread, View, Writing, clean_bytes, is_unchecked, word, word_of,
};
use crate::object::Owner;
use farhold_fabric::{Batch, Handle, RegionMemory};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A lease on the object while it is read.
pub struct Lock;

/// How long a lease lasts. DrTM's 0.4 ms are for transactions; a read of 8 KiB over RDMA takes 3 µs, so this covers ten.
pub const LEASE_NS: u64 = 50_000;
/// The most that two clocks may differ by. Clocks of one machine do not differ; this covers the time between a look and its use.
pub const SKEW_NS: u64 = 1_000;

const VERSION: u64 = 8;
const LEN: u64 = 16;
const PAYLOAD: u64 = 24;

/// A lease's word until `end_ns`. (Time in nanoseconds has 63 bits for 292 years.)
fn lease(end_ns: u64) -> u64 {
    end_ns << 1
}

/// Does a writer own the object?
fn is_owned(word: u64) -> bool {
    word & 1 != 0
}

/// Whether a reader that holds this lease may still use what it read.
fn protects(word: u64, now_ns: u64) -> bool {
    (now_ns + SKEW_NS < word >> 1) || is_unchecked()
}

/// Must a writer still wait for this lease?
fn is_leased(word: u64, now_ns: u64) -> bool {
    word != 0 && (word >> 1) + SKEW_NS > now_ns
}

/// Uses a payload, from its place and with its length, while a lease protects it.
fn under_lease<T>(
    memory: &RegionMemory,
    at: u64,
    room: usize,
    clock: &Handle,
    use_it: impl FnOnce(u64, usize) -> Result<T, Unread>,
) -> Result<(Seen, T), Unread> {
    let now_ns = clock.shared_now_ns();
    let found = word(memory, at).load(Acquire);
    if is_owned(found) && !is_unchecked() {
        return Err(Unread::Torn);
    }
    let held = if found != 0 && protects(found, now_ns) {
        found
    } else {
        let mine = lease(now_ns + LEASE_NS);
        word(memory, at).compare_exchange(found, mine, AcqRel, Relaxed).map_err(|_| Unread::Torn)?;
        mine
    };
    let [version, len] = [VERSION, LEN].map(|offset| word(memory, at + offset).load(Relaxed));
    let len = len as usize;
    if len > room {
        return Err(Unread::TooShort { payload_len: len });
    }
    let used = use_it(at + PAYLOAD, len)?;
    // The kernel's clock is read behind a load fence: all earlier loads were complete at this moment.
    if protects(held, clock.shared_now_ns()) { Ok((Seen { version, len }, used)) } else { Err(Unread::Torn) }
}

impl Mechanism for Lock {
    fn name(&self) -> &'static str {
        "lock"
    }

    fn about(&self) -> &'static str {
        "a lease while reading; writers wait for its end (DrTM)"
    }

    fn bytes(&self, payload_len: usize) -> usize {
        (PAYLOAD as usize + payload_len).next_multiple_of(LINE as usize)
    }

    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], clock: &Handle) -> Result<Seen, Unread> {
        let room = into.len();
        let copy = |from: u64, len: usize| Ok(memory.copy_out(from, &mut into[..len])?);
        Ok(under_lease(memory, at, room, clock, copy)?.0)
    }

    fn total(&self, memory: &RegionMemory, at: u64, into: &mut [u8], clock: &Handle) -> Result<(Seen, u64), Unread> {
        under_lease(memory, at, into.len(), clock, |from, len| Ok(memory.sum_words(from, len / 8)?))
    }

    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, clock: &Handle) {
        read.slot = Some(if let Lease::Held(_) = read.lease {
            batch.read(read.at.add(VERSION), (PAYLOAD - VERSION) as usize + read.payload_len_max)
        } else {
            let wanted = lease(clock.shared_now_ns() + LEASE_NS);
            read.lease = Lease::Asked(wanted);
            batch.compare_swap(read.at, read.word, wanted)
        });
    }

    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        _: &'b mut [u8],
        clock: &Handle,
    ) -> Result<Option<View<'b>>, Unread> {
        let slot = read.slot.expect("posted");
        let now_ns = clock.shared_now_ns();
        match read.lease {
            Lease::Wanted => panic!("nothing was posted"),
            Lease::Asked(wanted) => {
                let found = batch.word(slot)?;
                if is_owned(found) && !is_unchecked() {
                    return Err(Unread::Torn);
                }
                // This reader's lease, another one that lasts, or one that has ended; the next round takes over the latter.
                read.lease = match found {
                    _ if found == read.word => Lease::Held(wanted),
                    _ if protects(found, now_ns) => Lease::Held(found),
                    _ => Lease::Wanted,
                };
                read.word = found;
                Ok(None)
            }
            Lease::Held(held) => {
                let raw = batch.bytes(slot)?;
                let (version, len) = (word_of(raw, 0), word_of(raw, (LEN - VERSION) as usize) as usize);
                if !protects(held, now_ns) {
                    return Err(Unread::Torn);
                }
                if len > read.payload_len_max {
                    return Err(Unread::TooShort { payload_len: len });
                }
                Ok(Some(View { version, payload: &raw[(PAYLOAD - VERSION) as usize..][..len] }))
            }
        }
    }

    fn begin_write(&self, memory: &RegionMemory, at: u64, owner: Owner, clock: &Handle) -> Result<Writing, Busy> {
        let found = word(memory, at).load(Acquire);
        if is_owned(found) || is_leased(found, clock.shared_now_ns()) {
            return Err(Busy);
        }
        word(memory, at).compare_exchange(found, owner.word(), AcqRel, Relaxed).map_err(|_| Busy)?;
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
        word(memory, at).store(0, Release);
        version
    }
}
