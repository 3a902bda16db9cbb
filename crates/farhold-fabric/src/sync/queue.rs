//! A bounded queue of messages in a region: many senders anywhere, one receiver where the region is mapped.
//!
//! ```text
//!  +0 head: next to receive │ +64 tail: next to send │ +128 places:  state │ length │ bytes
//!
//!  place of ticket t = t modulo the places, in turn t divided by the places
//!     free ──(sender: compare_swap)──▶ being filled, with its sender ──(sender: compare_swap)──▶ full ──(receiver)──▶ free, next turn
//! ```
//!
//! The GRU's message queue, made of this crate's instructions. A sender takes a place by a compare-and-swap of its state, moves
//! `tail` and writes the message in one batch, and marks the place full when that batch has completed. So a message is never seen
//! in parts, and the place names its sender while it is being filled. A sender that dies in between leaves one place, which
//! [`Receiver::skip_dead`] frees. Until then the messages behind it wait, because order is kept. It takes three round trips, two
//! of them needed by any fabric that may reorder. An [inbox](Endpoint::send) is cheaper where its limits suit; this queue needs
//! no agent, any number of senders share its memory, and it outlives its processes.

use super::LINE;
use super::latch::Holder;
use crate::{Batch, Endpoint, FabricError, FarPtr, RegionMemory};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Where a queue is and how large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its first byte, a multiple of 64, of zeroed memory.
    pub at: FarPtr,
    /// Messages that it holds at most.
    pub places: u32,
    /// Bytes of the longest message.
    pub message_bytes_max: u32,
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The receiver does not keep up: wait, send again.
    #[error("the queue is full; wait and send again")]
    Full,
    /// It is longer than the queue's messages.
    #[error("the queue's messages have at most {bytes_max} bytes; send the address of a longer one")]
    TooLong {
        /// How long it may be.
        bytes_max: u32,
    },
    /// The receiver declared this sender dead meanwhile; the message was not sent.
    #[error("the message was not sent: its sender was declared dead")]
    Lost,
    /// The fabric failed. The message may have been sent, or its place may be taken until the receiver skips it.
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

const FREE: u64 = 0;
const FILLING: u64 = 1;
const FULL: u64 = 2;
const TURN_BITS: u32 = 22;
const TURN_MASK: u64 = (1 << TURN_BITS) - 1;
const PLACES_AT: u64 = 2 * LINE;
const LEN_AT: u64 = 8;
const BYTES_AT: u64 = 16;

/// A place's state: `turn:22 | holder:40 | what:2`. As for latches, turns come back after four million.
fn state(turn: u64, by: u64, what: u64) -> u64 {
    (turn & TURN_MASK) << (64 - TURN_BITS) | by << 2 | what
}

impl Queue {
    /// Bytes of a place: whole lines, so that senders do not disturb each other.
    const fn stride(self) -> u64 {
        (BYTES_AT + self.message_bytes_max as u64).next_multiple_of(LINE)
    }

    /// Bytes of the queue.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        PLACES_AT + self.places as u64 * self.stride()
    }

    fn turn(self, ticket: u64) -> u64 {
        ticket / u64::from(self.places)
    }

    /// Where a ticket's place is, from the start of the queue.
    fn place(self, ticket: u64) -> u64 {
        PLACES_AT + ticket % u64::from(self.places) * self.stride()
    }

    /// A thread's sending side.
    #[must_use]
    pub fn sender(self, endpoint: &Rc<Endpoint>, me: Holder) -> Sender {
        Sender { queue: self, endpoint: endpoint.clone(), me, tail: Cell::new(0), batch: Cell::default() }
    }

    /// The receiving side, of which there must be one. `None`: the region is not mapped, or too short.
    #[must_use]
    pub fn receiver(self, endpoint: &Endpoint) -> Option<Receiver> {
        let memory = endpoint.mapped(self.at.node(), self.at.region())?;
        memory.check(self.at.offset(), self.bytes()).ok()?;
        Some(Receiver { queue: self, memory })
    }
}

/// A thread's sending side.
pub struct Sender {
    queue: Queue,
    endpoint: Rc<Endpoint>,
    me: Holder,
    /// Where the tail probably is.
    tail: Cell<u64>,
    batch: Cell<Batch>,
}

impl Sender {
    /// Sends a message. Tasks of one thread may send at the same time. A future that is dropped before it is done may leave a
    /// place taken, as a sender that dies does.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub async fn send(&self, message: &[u8]) -> Result<(), QueueError> {
        let queue = self.queue;
        if message.len() > queue.message_bytes_max as usize {
            return Err(QueueError::TooLong { bytes_max: queue.message_bytes_max });
        }
        let ticket = self.take_place().await?;
        let place = queue.at.add(queue.place(ticket));
        let filling = state(queue.turn(ticket), self.me.bits(), FILLING);
        let mut batch = self.batch.take();
        batch.clear();
        let moved = batch.compare_swap(queue.at.add(LINE), ticket, ticket.wrapping_add(1));
        let length = batch.write(place.add(LEN_AT), &(message.len() as u64).to_le_bytes());
        let bytes = batch.write(place.add(BYTES_AT), message);
        batch = self.endpoint.submit(batch).await;
        let written = [moved, length, bytes].into_iter().try_for_each(|slot| batch.done(slot));
        self.batch.set(batch);
        written?;
        self.tail.set(ticket.wrapping_add(1));
        let found = self.swap(place, filling, state(queue.turn(ticket), 0, FULL)).await?;
        if found == filling { Ok(()) } else { Err(QueueError::Lost) }
    }

    /// Takes the next free place and returns its ticket.
    async fn take_place(&self) -> Result<u64, QueueError> {
        let queue = self.queue;
        let mut ticket = self.tail.get();
        loop {
            let turn = queue.turn(ticket);
            let place = queue.at.add(queue.place(ticket));
            let free = state(turn, 0, FREE);
            let found = self.swap(place, free, state(turn, self.me.bits(), FILLING)).await?;
            if found == free {
                return Ok(ticket);
            }
            let behind = (turn.wrapping_sub(found >> (64 - TURN_BITS))) & TURN_MASK;
            if behind == 1 {
                // The last turn's message is still there. If the tail is elsewhere, the guess was too far.
                if self.tail_now().await? == ticket {
                    return Err(QueueError::Full);
                }
            } else {
                // Another sender is filling it and may not have moved the tail yet, or the ticket is long past.
                self.swap(queue.at.add(LINE), ticket, ticket.wrapping_add(1)).await?;
            }
            ticket = self.tail_now().await?;
        }
    }

    async fn tail_now(&self) -> Result<u64, QueueError> {
        let mut batch = self.batch.take();
        batch.clear();
        let slot = batch.fetch_add(self.queue.at.add(LINE), 0);
        let batch = self.endpoint.submit(batch).await;
        let tail = batch.word(slot);
        self.batch.set(batch);
        Ok(tail?)
    }

    async fn swap(&self, at: FarPtr, expected: u64, new: u64) -> Result<u64, QueueError> {
        let mut batch = self.batch.take();
        batch.clear();
        let slot = batch.compare_swap(at, expected, new);
        let batch = self.endpoint.submit(batch).await;
        let found = batch.word(slot);
        self.batch.set(batch);
        Ok(found?)
    }
}

/// The receiving side.
pub struct Receiver {
    queue: Queue,
    memory: Arc<RegionMemory>,
}

impl Receiver {
    fn word(&self, at: u64) -> &AtomicU64 {
        self.memory.word(self.queue.at.offset() + at).expect("`receiver` has checked the queue's bytes")
    }

    /// The next ticket, and the state of its place. If a place is a turn ahead, a receiver gave it back and died before it moved
    /// the head on; that is done here.
    fn next(&self) -> (u64, u64) {
        loop {
            let ticket = self.word(0).load(Relaxed);
            let found = self.word(self.queue.place(ticket)).load(Acquire);
            let ahead = (found >> (64 - TURN_BITS)).wrapping_sub(self.queue.turn(ticket)) & TURN_MASK;
            if ahead != 1 {
                return (ticket, found);
            }
            self.word(0).store(ticket.wrapping_add(1), Relaxed);
        }
    }

    /// The next message into `into`, reusing its memory. False: there is none that is complete.
    pub fn try_recv_into(&self, into: &mut Vec<u8>) -> bool {
        let (ticket, found) = self.next();
        let (turn, place) = (self.queue.turn(ticket), self.queue.place(ticket));
        if found != state(turn, 0, FULL) {
            return false;
        }
        let len = self.word(place + LEN_AT).load(Relaxed).min(self.queue.message_bytes_max.into());
        into.resize(len as usize, 0);
        let bytes_at = self.queue.at.offset() + place + BYTES_AT;
        self.memory.copy_out(bytes_at, into).expect("`receiver` has checked the queue's bytes");
        self.word(place).store(state(turn + 1, 0, FREE), SeqCst);
        self.word(0).store(ticket.wrapping_add(1), Relaxed);
        true
    }

    /// The next message, if one is complete.
    #[must_use]
    pub fn try_recv(&self) -> Option<Vec<u8>> {
        let mut message = Vec::new();
        self.try_recv_into(&mut message).then_some(message)
    }

    /// If a dead sender has taken the next place, gives the place up, so that the messages behind it are received. True if so.
    /// The caller guarantees that a sender that `is_dead` accepts never acts again.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn skip_dead(&self, is_dead: impl Fn(Holder) -> bool) -> bool {
        let (ticket, found) = self.next();
        let (turn, place) = (self.queue.turn(ticket), self.queue.place(ticket));
        let is_filling = found & 3 == FILLING && found >> (64 - TURN_BITS) == turn & TURN_MASK;
        let holder = Holder::of_bits(found >> 2 & ((1 << 40) - 1));
        let skip = is_filling
            && is_dead(holder)
            && self.word(place).compare_exchange(found, state(turn + 1, 0, FREE), SeqCst, Relaxed).is_ok();
        if skip {
            // The dead one may not have moved the tail.
            let _ = self.word(LINE).compare_exchange(ticket, ticket.wrapping_add(1), SeqCst, Relaxed);
            self.word(0).store(ticket.wrapping_add(1), Relaxed);
        }
        skip
    }
}
