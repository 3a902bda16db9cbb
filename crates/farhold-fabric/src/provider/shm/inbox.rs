//! An inbox in shared memory: one lane a sender.
//!
//! ```text
//! +0      magic, closed                  lane: +0   head (consumer: bytes taken since the beginning)
//! +64     ready: one bit a lane                +64  tail (producer: bytes put since the beginning)
//! +2048   owner word of each lane
//! +4096   lanes
//! +36864  a ring of RING_BYTES for each lane: records of `length and sender | position | message`
//! ```
//!
//! Memory: the part before the rings has it from the beginning, a ring from when a sender claims its lane. A full file system is
//! noticed there. No thread touches a ring before.
//!
//! Why lanes and not one ring for all: a producer that dies in the middle of a put must not stop the others. In its own lane a
//! half-written record is behind a `tail` that never moved, so no reader sees it, and the next owner of the lane writes over it.
//! Order per sender and freedom from contention between senders come for free. The price is memory (a ring for each sender that
//! there has been) and a limit on senders.
//!
//! A lane's owner word names the sender's node, that node's incarnation and a serial number. A sender that finds no free lane
//! takes the lane of a dead owner (the caller says how to know). Head and tail stay: the receiver still reads what the dead owner
//! put.
//!
//! Invariants: `head <= tail <= head + RING_BYTES`; only the lane's owner moves `tail`, only the holder of the inbox's
//! receiving side moves `head`; a record is complete before `tail` passes it; the ready bit is set after that.
//! A message can be overlooked only if its sender dies between the last two, and then only until `rescan`.

use crate::address::{Address, FarPtr, NodeId};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::provider::{LANE_BYTES_MAX, LANES, MESSAGE_BYTES_MAX};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a lane's ring. Small under Miri, where it must wrap often and 64 MiB must not be interpreted.
const RING_BYTES: u64 = if cfg!(miri) { 512 } else { LANE_BYTES_MAX };

const MAGIC: u64 = u64::from_le_bytes(*b"farhinb2");
const AT_MAGIC: u64 = 0;
const AT_CLOSED: u64 = 8;
const AT_READY: u64 = 64;
const AT_OWNERS: u64 = 2048;
const AT_LANES: u64 = 4096;
const LANE_BYTES: u64 = 128;
/// Where the rings start: what is before them is used from the beginning.
pub(crate) const AT_RINGS: u64 = AT_LANES + LANES as u64 * LANE_BYTES;
const RECORD_HEADER: u64 = 16;
const READY_WORDS: usize = LANES / 64;

/// Bytes of an inbox.
pub(crate) const INBOX_BYTES: u64 = AT_RINGS + LANES as u64 * RING_BYTES;

fn word(memory: &RegionMemory, at: u64) -> &AtomicU64 {
    // SAFETY: all offsets made in this module are multiples of 8 below INBOX_BYTES, and `Inbox` memory is that long
    // (`format` and `check` see to it).
    unsafe { memory.word_unchecked(at) }
}

fn head(memory: &RegionMemory, lane: usize) -> &AtomicU64 {
    word(memory, AT_LANES + lane as u64 * LANE_BYTES)
}

fn tail(memory: &RegionMemory, lane: usize) -> &AtomicU64 {
    word(memory, AT_LANES + lane as u64 * LANE_BYTES + 64)
}

fn owner(memory: &RegionMemory, lane: usize) -> &AtomicU64 {
    word(memory, AT_OWNERS + lane as u64 * 8)
}

fn ready(memory: &RegionMemory, index: usize) -> &AtomicU64 {
    word(memory, AT_READY + index as u64 * 8)
}

/// Calls `part(ring offset, range of the bytes)` for the one or two pieces of `len` bytes at `position`.
fn pieces(lane: usize, position: u64, len: usize, mut part: impl FnMut(u64, std::ops::Range<usize>)) {
    let base = AT_RINGS + lane as u64 * RING_BYTES;
    let start = position % RING_BYTES;
    let first = len.min((RING_BYTES - start) as usize);
    part(base + start, 0..first);
    if first < len {
        part(base, first..len);
    }
}

/// Makes zeroed memory of at least [`INBOX_BYTES`] an inbox.
pub(crate) fn format(memory: &RegionMemory) {
    assert!(memory.len() >= INBOX_BYTES);
    word(memory, AT_MAGIC).store(MAGIC, Ordering::Release);
}

/// Is this memory an inbox?
pub(crate) fn check(memory: &RegionMemory) -> bool {
    memory.len() >= INBOX_BYTES && word(memory, AT_MAGIC).load(Ordering::Acquire) == MAGIC
}

/// Closes the inbox: no thread will receive here any more.
pub(crate) fn close(memory: &RegionMemory) {
    word(memory, AT_CLOSED).store(1, Ordering::Release);
}

/// Whether the inbox is closed.
pub(crate) fn is_closed(memory: &RegionMemory) -> bool {
    word(memory, AT_CLOSED).load(Ordering::Acquire) != 0
}

/// Bytes that a message takes in a lane.
pub(crate) fn record_bytes(message_len: usize) -> u64 {
    RECORD_HEADER + (message_len as u64).next_multiple_of(16)
}

/// A sender's lane in an inbox.
pub(crate) struct Sender {
    lane: usize,
    owner: u64,
    tail: u64,
    /// The head when last looked at: a full look costs a cache miss.
    head_seen: u64,
}

impl Sender {
    /// Takes a free lane, or the lane of a dead owner.
    pub(crate) fn claim(memory: &RegionMemory, me: u64, is_dead: impl Fn(u64) -> bool) -> Option<Self> {
        let take = |lane: usize, from: u64| {
            owner(memory, lane).compare_exchange(from, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let free = (0..LANES).find(|&lane| owner(memory, lane).load(Ordering::Relaxed) == 0 && take(lane, 0));
        let lane = free.or_else(|| {
            (0..LANES).find(|&lane| {
                let other = owner(memory, lane).load(Ordering::Relaxed);
                other != 0 && is_dead(other) && take(lane, other)
            })
        })?;
        let tail = tail(memory, lane).load(Ordering::Relaxed);
        // A half-dead owner's ready bit may be missing for what it completed.
        ready(memory, lane / 64).fetch_or(1 << (lane % 64), Ordering::SeqCst);
        Some(Self { lane, owner: me, tail, head_seen: head(memory, lane).load(Ordering::Acquire) })
    }

    /// Bytes put into the lane since the beginning.
    #[cfg(feature = "libfabric")]
    pub(crate) fn position(&self) -> u64 {
        self.tail
    }

    /// Bytes taken out of the lane since the beginning; `None` if the inbox is closed.
    #[cfg(feature = "libfabric")]
    pub(crate) fn taken(&self, memory: &RegionMemory) -> Option<u64> {
        (!is_closed(memory)).then(|| head(memory, self.lane).load(Ordering::Acquire))
    }

    /// Where the lane's ring is, and how many bytes: they need memory before the first [`put`](Self::put).
    pub(crate) fn ring(&self) -> (u64, u64) {
        (AT_RINGS + self.lane as u64 * RING_BYTES, RING_BYTES)
    }

    /// Gives the lane back; what was put stays.
    pub(crate) fn release(self, memory: &RegionMemory) {
        let _ = owner(memory, self.lane).compare_exchange(self.owner, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Puts a message; the caller rings the doorbell afterwards.
    pub(crate) fn put(
        &mut self,
        memory: &RegionMemory,
        from: Address,
        to: Address,
        message: &[u8],
    ) -> Result<(), FabricError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(FabricError::MessageTooLong { bytes: message.len(), bytes_max: MESSAGE_BYTES_MAX });
        }
        let need = record_bytes(message.len());
        if self.tail + need > self.head_seen + RING_BYTES {
            if is_closed(memory) {
                return Err(FabricError::NoSuchPort { to });
            }
            self.head_seen = head(memory, self.lane).load(Ordering::Acquire);
            if self.tail + need > self.head_seen + RING_BYTES {
                return Err(FabricError::QueueFull { to });
            }
        }
        let about = message.len() as u64 | u64::from(from.port) << 32 | u64::from(from.node.0) << 48;
        // Records and the ring are multiples of 16, so the two words of a header are never apart.
        pieces(self.lane, self.tail, RECORD_HEADER as usize, |at, _| {
            word(memory, at).store(about, Ordering::Relaxed);
            word(memory, at + 8).store(self.tail, Ordering::Relaxed);
        });
        pieces(self.lane, self.tail + RECORD_HEADER, message.len(), |at, range| {
            // SAFETY: `pieces` stays inside the lane's ring, which is inside the inbox.
            unsafe { memory.copy_in_unchecked(at, &message[range]) };
        });
        self.tail += need;
        tail(memory, self.lane).store(self.tail, Ordering::Release);
        ready(memory, self.lane / 64).fetch_or(1 << (self.lane % 64), Ordering::SeqCst);
        if is_closed(memory) {
            return Err(FabricError::NoSuchPort { to });
        }
        Ok(())
    }
}

/// The receiving side: one at a time.
#[derive(Default)]
pub(crate) struct Receiver {
    /// Lanes that may hold messages, beyond the ready bits in the inbox.
    pending: [u64; READY_WORDS],
    /// Where to go on, so that no lane starves.
    next: usize,
}

impl Receiver {
    /// Takes one message. False: there is none.
    pub(crate) fn take(&mut self, memory: &RegionMemory, from: &mut Address, bytes: &mut Vec<u8>) -> bool {
        while let Some(lane) = self.next_lane(memory) {
            if take_from(memory, lane, from, bytes) {
                return true;
            }
            self.pending[lane / 64] &= !(1 << (lane % 64));
        }
        false
    }

    /// Looks at every lane, whatever the ready bits say.
    pub(crate) fn rescan(&mut self) {
        self.pending = [u64::MAX; READY_WORDS];
    }

    /// Whether the last `take` has left lanes that it has not found empty.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.iter().any(|&word| word != 0)
    }

    fn next_lane(&mut self, memory: &RegionMemory) -> Option<usize> {
        for index in 0..READY_WORDS {
            // A plain look first: the exchange takes the line away from senders.
            if ready(memory, index).load(Ordering::Relaxed) != 0 {
                self.pending[index] |= ready(memory, index).swap(0, Ordering::SeqCst);
            }
        }
        let found = self.first_pending(self.next..LANES).or_else(|| self.first_pending(0..self.next))?;
        self.next = (found + 1) % LANES;
        Some(found)
    }

    fn first_pending(&self, lanes: std::ops::Range<usize>) -> Option<usize> {
        let mut lane = lanes.start;
        while lane < lanes.end {
            let rest = self.pending[lane / 64] >> (lane % 64);
            if rest != 0 {
                let found = lane + rest.trailing_zeros() as usize;
                return (found < lanes.end).then_some(found);
            }
            lane = (lane / 64 + 1) * 64;
        }
        None
    }
}

/// Could a message be there?
pub(crate) fn has_ready(memory: &RegionMemory) -> bool {
    (0..READY_WORDS).any(|index| ready(memory, index).load(Ordering::SeqCst) != 0)
}

fn take_from(memory: &RegionMemory, lane: usize, from: &mut Address, bytes: &mut Vec<u8>) -> bool {
    let position = head(memory, lane).load(Ordering::Relaxed);
    let end = tail(memory, lane).load(Ordering::Acquire);
    if position == end {
        return false;
    }
    let (mut about, mut check) = (0, 0);
    pieces(lane, position % RING_BYTES / 16 * 16, RECORD_HEADER as usize, |at, _| {
        about = word(memory, at).load(Ordering::Relaxed);
        check = word(memory, at + 8).load(Ordering::Relaxed);
    });
    let len = (about & 0xffff_ffff) as usize;
    let need = RECORD_HEADER + (len as u64).next_multiple_of(16);
    let sound = check == position && len <= MESSAGE_BYTES_MAX && need <= end.wrapping_sub(position);
    if !sound {
        // Another process wrote rubbish: drop what the lane holds instead of using it.
        head(memory, lane).store(end, Ordering::Release);
        return false;
    }
    bytes.resize(len, 0);
    pieces(lane, position + RECORD_HEADER, len, |at, range| {
        // SAFETY: `pieces` stays inside the lane's ring, which is inside the inbox.
        unsafe { memory.copy_out_unchecked(at, &mut bytes[range]) };
    });
    *from = Address { node: NodeId((about >> 48) as u8), port: (about >> 32) as u16 };
    head(memory, lane).store(position + need, Ordering::Release);
    true
}

/// What the memory of an inbox is called in errors.
pub(crate) fn origin(of: Address) -> FarPtr {
    FarPtr::new(of.node, crate::address::RegionId(255), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Address = Address { node: NodeId(0), port: 1 };

    fn inbox() -> RegionMemory {
        let memory = RegionMemory::anonymous(origin(TO), INBOX_BYTES).unwrap();
        format(&memory);
        assert!(check(&memory));
        memory
    }

    fn from(port: u16) -> Address {
        Address { node: NodeId(7), port }
    }

    /// Content and length of message `number`: it goes round the ring often and ends at every offset.
    fn message(number: u64) -> Vec<u8> {
        let len = 8 + number as usize * 7 % 90;
        number.to_le_bytes().into_iter().cycle().take(len).collect()
    }

    /// Threads put, one takes, in every interleaving that the machine (or Miri, seed by seed) produces.
    #[test]
    fn producers_and_a_consumer() {
        let memory = inbox();
        let (senders, count) = (if cfg!(miri) { 2 } else { 4 }, if cfg!(miri) { 25 } else { 20_000 });
        std::thread::scope(|scope| {
            for port in 1..=senders {
                let memory = &memory;
                scope.spawn(move || {
                    let mut sender = Sender::claim(memory, u64::from(port), |_| false).unwrap();
                    for number in 0..count {
                        while let Err(error) = sender.put(memory, from(port), TO, &message(number)) {
                            assert_eq!(error, FabricError::QueueFull { to: TO });
                            std::thread::yield_now();
                        }
                    }
                    sender.release(memory);
                });
            }
            let mut receiver = Receiver::default();
            let mut next = vec![0; usize::from(senders) + 1];
            let (mut who, mut bytes) = (Address::default(), Vec::new());
            while next.iter().sum::<u64>() < count * u64::from(senders) {
                if receiver.take(&memory, &mut who, &mut bytes) {
                    assert_eq!(who.node, NodeId(7));
                    let expected = &mut next[usize::from(who.port)];
                    assert_eq!(bytes, message(*expected));
                    *expected += 1;
                } else {
                    std::thread::yield_now();
                }
            }
            assert!(!receiver.take(&memory, &mut who, &mut bytes));
        });
    }

    /// The story of a producer that dies at each step of a put: the message is there or not, and the lane goes on.
    #[test]
    fn a_producer_that_dies() {
        let memory = inbox();
        let (mut who, mut bytes) = (Address::default(), Vec::new());
        let mut receiver = Receiver::default();
        let mut first = Sender::claim(&memory, 1, |_| false).unwrap();
        first.put(&memory, from(1), TO, b"complete").unwrap();
        // Half a record, tail not moved.
        let tail_now = first.tail;
        pieces(first.lane, tail_now, 16, |at, _| word(&memory, at).store(u64::MAX, Ordering::Relaxed));
        // All others are taken, so that the heir gets this lane.
        let others: Vec<_> = (2..=LANES as u64).map(|me| Sender::claim(&memory, me, |_| false).unwrap()).collect();
        assert!(Sender::claim(&memory, 999, |_| false).is_none());
        let mut heir = Sender::claim(&memory, 999, |owner| owner == 1).unwrap();
        assert_eq!(heir.lane, first.lane);
        heir.put(&memory, from(9), TO, b"of the heir").unwrap();
        assert!(receiver.take(&memory, &mut who, &mut bytes));
        assert_eq!((who, &bytes[..]), (from(1), &b"complete"[..]));
        assert!(receiver.take(&memory, &mut who, &mut bytes));
        assert_eq!((who, &bytes[..]), (from(9), &b"of the heir"[..]));
        assert!(!receiver.take(&memory, &mut who, &mut bytes));

        // Tail moved, ready bit not set: found by a rescan.
        heir.put(&memory, from(9), TO, b"unannounced").unwrap();
        ready(&memory, heir.lane / 64).store(0, Ordering::SeqCst);
        assert!(!receiver.take(&memory, &mut who, &mut bytes));
        receiver.rescan();
        assert!(receiver.take(&memory, &mut who, &mut bytes));
        assert_eq!(bytes, b"unannounced");
        for sender in others {
            sender.release(&memory);
        }
    }

    /// Rubbish in a record is thrown away, and never read beyond the ring.
    #[test]
    fn rubbish_is_thrown_away() {
        let memory = inbox();
        let (mut who, mut bytes) = (Address::default(), Vec::new());
        let (mut receiver, mut sender) = (Receiver::default(), Sender::claim(&memory, 1, |_| false).unwrap());
        for rubbish in [u64::MAX, 1 << 31, 200] {
            let start = sender.tail;
            sender.put(&memory, from(1), TO, b"will be spoilt").unwrap();
            pieces(sender.lane, start, 16, |at, _| word(&memory, at).store(rubbish, Ordering::Relaxed));
            assert!(!receiver.take(&memory, &mut who, &mut bytes));
            sender.put(&memory, from(1), TO, b"good").unwrap();
            assert!(receiver.take(&memory, &mut who, &mut bytes));
            assert_eq!(bytes, b"good");
        }
    }
}
