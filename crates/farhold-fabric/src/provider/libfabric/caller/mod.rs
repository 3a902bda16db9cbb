//! The remote side of a worker: its channel, its sessions with home agents, and its requests under way.
//!
//! ```text
//!   batches ──> requests ──> frames, one a node and turn ──> home agent ──> answers ──> the batches' buffers
//!           └─> bulk transfers by the NIC, for reads and writes from `bulk_bytes_min` on
//! ```
//!
//! - A session is made at the first contact with a node. It is made anew after it broke, or after the node has restarted. The
//!   caller's knowledge of the node's regions outlives it, so that a stale key is noticed.
//! - Every request has a deadline. A request that passes it breaks the session: the node counts as unavailable until a new hello
//!   is answered. Late answers are dropped. The memory of a bulk transfer that does not end stays with the provider, and its
//!   batch comes back as a copy.
//! - **What is ready together travels together.** A batch's requests wait in a frame until its owner looks for their end. By then
//!   every other task of the thread that was ready has posted its requests, and all of them are one frame to each node, answered
//!   by about one. A task alone loses nothing, because it looks at once.
//! - Of the waiting tasks one polls for all, once a turn.
//! - Making a session, learning a region and opening a lane block the thread, each within its time-out; instructions and
//!   messages do not.
//!
//! A worker receives only what it has asked for, so a worker that does not poll harms only itself.

mod answers;
mod instructions;
mod lanes;
mod numbered;
mod sessions;

use numbered::Numbered;

use super::Shared;
use super::channel::{BulkTarget, Channel, Peer, Registration, Size};
use super::frame::{self, Assembly, BODY_MAX, Kind};
use super::packing::{Packing, Unsent};
use crate::address::{FarPtr, NodeId, RegionId};
use crate::batch::Content;
use crate::error::FabricError;
use crate::provider::shm::Starts;
use std::collections::VecDeque;
use std::sync::Arc;

const SIZE: Size = Size { rx: 32, tx: 32, bulk: 16 };
/// Bytes of one bulk transfer: large enough to make the cost of its start negligible, small enough to notice a dead peer between
/// two.
const BULK_PIECE: usize = 1 << 20;
/// Most bytes of a part of a write, and of a read, that goes in one frame.
const WRITE_PIECE: usize = (BODY_MAX - frame::TAG_BYTES - frame::OP_BYTES) / 8 * 8;
const READ_PIECE: usize = (BODY_MAX - 8) / 8 * 8;
/// Most bytes of the answers to one request, where it has more than one instruction: they fit into one parcel, so the first of a
/// long batch's answers are on their way, and taken, while the home agent does the rest.
const ANSWERS_MAX: usize = BODY_MAX;
/// Most bytes of the answers that a node owes this worker; further requests wait here. The home agent keeps what the provider
/// does not take at once, and ends the session of a worker for which it would have to keep too much.
pub(super) const ANSWERING_MAX: usize = 4 << 20;
/// Transfers by the NIC with one node at a time: those that never end leave room for other nodes'.
const BULK_PER_NODE_MAX: usize = SIZE.bulk as usize * 3 / 4;
/// Turns between two looks at the clock.
const TURNS_PER_CLOCK: u32 = 32;
/// A period without polls counts for at most this long. Silence is the other side's only while this side listens, and a process
/// that was stopped, or got no processor, did not listen.
const UNHEARD_NS_MAX: u64 = 100_000_000;
/// How old a request must be before the kernel is asked whether its node still runs, and how often it is asked.
const LOOK_AFTER_NS: u64 = 20_000_000;
/// How long a node that did not answer a hello is left alone, so that a caller waits for it only once.
const RETRY_AFTER_NS: u64 = 50_000_000;
/// The same for a node that had answered before and then did not, and how long it may then take. A hello blocks the thread, so a
/// node that is cut off costs at most a tenth of the thread's time.
const LOST_RETRY_AFTER_NS: u64 = 1_000_000_000;
const LOST_CONNECT_NS_MAX: u64 = 100_000_000;
/// How long a node may take that had answered until now: a busy machine may have delayed it.
const AGAIN_CONNECT_NS_MAX: u64 = 500_000_000;
/// How long a message may take to leave the thread.
const FLUSH_NS_MAX: u64 = 10_000_000;
/// How long a thread that ends waits until what it has sent has left. Its peers may have to wait for a core for long.
const LAST_FLUSH_NS_MAX: u64 = 5_000_000_000;
/// Turns without an end between two offers of the core to others, while the thread waits.
const TURNS_PER_YIELD: u32 = 16;
/// How long a farewell may take.
const FAREWELL_NS_MAX: u64 = 200_000_000;
/// Turns that a request waits for its owner to look for its end: the owner may look for something else first.
const PACKED_TURNS_MAX: u32 = 8;
/// Polls that other owners leave to the poller before one of them takes polling over: the poller may be prevented from
/// polling.
const LEFT_TO_OTHERS_MAX: u32 = 1024;
/// Frames that wait for the provider before a sender is told to wait.
const UNSENT_MAX: usize = 1024;

/// See the module.
pub(super) struct Caller {
    shared: Arc<Shared>,
    name: Vec<u8>,
    state: State,
    turns: u32,
    last_number: u64,
    /// The flight that has just been posted: its owner's first look does nothing, see the module.
    fresh: Option<u64>,
    /// Everything up to this number has been handed to the provider, or waits for it.
    handed_over: u64,
    /// Turns since something is there to be handed over.
    packed_turns: u32,
    /// The flight whose owner polls for all, and how many polls others have left to it since its last one.
    poller: Option<u64>,
    left_to_him: u32,
    /// Last, so that its use of this caller's buffers is over before they are freed.
    channel: Option<Channel>,
}

/// Everything that events change.
#[derive(Default)]
struct State {
    nodes: Numbered<NodeId, Known>,
    asked: Numbered<u64, Asked>,
    /// Requests that wait until their node owes less; no list is empty.
    held: Numbered<NodeId, VecDeque<Held>>,
    flights: Numbered<u64, Flight>,
    packing: Packing,
    unsent: Unsent,
    /// Of each node; none is empty.
    bulk_waiting: Numbered<NodeId, VecDeque<BulkPiece>>,
    bulk_active: Numbered<u32, BulkPiece>,
    /// When a transfer has ended last.
    bulk_ended_ns: u64,
    last_classified: u64,
    /// The last look at the clock for time-outs.
    last_look_ns: u64,
}

/// A node as this worker knows it.
#[derive(Default)]
struct Known {
    session: Option<Session>,
    epoch: u32,
    /// Bytes of the answers that it owes at most.
    answering: usize,
    regions: Numbered<RegionId, Region>,
    /// The lanes into its inboxes, by the local port and its port.
    lanes: Numbered<(u16, u16), Lane>,
    /// Its count of starts, if both nodes share a directory.
    starts: Option<Starts>,
    /// Why no session could be made, and until when it is not tried again.
    refusal: Option<(u64, FabricError)>,
    /// There has been a session with it.
    was_there: bool,
    /// Since then it has not answered a hello.
    is_lost: bool,
}

struct Session {
    epoch: u32,
    peer: Peer,
    incarnation: u64,
    index: u32,
    /// Zero until the session is live.
    token: u64,
    is_broken: bool,
}

/// A region as its node's agent described it.
#[derive(Clone, Copy)]
struct Region {
    key: u64,
    bytes: u64,
    /// The NIC reads it by itself, and writes it.
    nic_reads: bool,
    nic_writes: bool,
}

/// A lane into an inbox of another node.
struct Lane {
    index: u64,
    /// Bytes put, and taken as far as known.
    put: u64,
    taken: u64,
    /// Closings that had been noted when it was opened.
    closings: u64,
}

/// A request that waits for its answer.
struct Asked {
    node: NodeId,
    epoch: u32,
    since_ns: u64,
    until_ns: u64,
    what: What,
    answer: Assembly,
}

enum What {
    /// A call: its answer, when it is there.
    Call(Option<Result<(Kind, Vec<u8>), FabricError>>),
    Ops(Ops),
}

/// Instructions of one request.
struct Ops {
    flight: u64,
    pieces: Vec<Piece>,
    /// Bytes of the answer at most.
    answer_bytes: usize,
}

/// A request that waits until its node owes less.
struct Held {
    body: Vec<u8>,
    ops: Ops,
}

/// An instruction, or a part of a long one, in a request.
struct Piece {
    op: usize,
    /// Where in the instruction's bytes it starts.
    start: usize,
    len: usize,
    then: Then,
}

/// What an answer without error means.
#[derive(Clone, Copy)]
enum Then {
    /// The piece is done.
    Done,
    /// Its bytes are outside the region of this length: the agent is asked only whether there is another error, too.
    Outside(u64),
    /// Key and bounds are good: the instruction's bulk transfers may start.
    Go,
    /// The NIC failed, and the agent sees no reason: the node cannot be reached.
    Unreached,
}

struct Flight {
    content: Box<Content>,
    /// Requests and bulk transfers that have not ended.
    left: usize,
    /// Bulk transfers whose instruction has no [`Then::Go`] yet.
    bulk: Vec<BulkPiece>,
    is_abandoned: bool,
    /// The content for the batch's owner while the NIC still has the original.
    instead: Option<Box<Content>>,
}

struct BulkPiece {
    flight: u64,
    op: usize,
    node: NodeId,
    epoch: u32,
    region_key: u64,
    is_write: bool,
    local: *mut u8,
    len: usize,
    at: FarPtr,
    target: BulkTarget,
    registration: Option<Arc<Registration>>,
    since_ns: u64,
}

/// What a look for a flight's end found.
pub(super) enum Look {
    /// It is over.
    Over(Box<Content>),
    /// It is not, as far as the provider knows.
    Polled,
    /// The provider was not polled.
    Waits,
}

impl Caller {
    pub fn open(shared: Arc<Shared>) -> Result<Self, FabricError> {
        let channel = Channel::open(&shared.config.provider, shared.local_address(), SIZE, false)?;
        let name = channel.name()?;
        Ok(Self {
            shared,
            name,
            state: State::default(),
            turns: 0,
            last_number: 0,
            fresh: None,
            handed_over: 0,
            packed_turns: 0,
            poller: None,
            left_to_him: 0,
            channel: Some(channel),
        })
    }

    /// Is it of this membership?
    pub fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    fn channel(&self) -> &Channel {
        self.channel.as_ref().expect("there until dropped")
    }

    fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Whether anything makes progress only when this thread polls.
    pub fn is_busy(&self) -> bool {
        !self.state.asked.is_empty()
            || !self.state.held.is_empty()
            || !self.state.packing.is_empty()
            || !self.state.unsent.is_empty()
            || !self.state.bulk_active.is_empty()
            || !self.state.bulk_waiting.is_empty()
            || self.channel().is_sending()
    }

    /// Makes progress.
    pub fn turn(&mut self) {
        if !self.state.packing.is_empty() {
            self.packed_turns += 1;
            if self.packed_turns > PACKED_TURNS_MAX {
                self.hand_over();
            }
        }
        let Self { channel, state, shared, .. } = self;
        let channel = channel.as_ref().expect("there until dropped");
        channel.poll(|event| state.take(&event));
        if !state.unsent.is_empty() {
            state.send_unsent(channel, shared.clock.now_ns());
        }
        if !state.bulk_waiting.is_empty() {
            state.start_bulk(channel, shared.clock.now_ns());
        }
        self.ask_held();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CLOCK) {
            self.state.expire(&self.shared);
        }
    }

    fn hand_over(&mut self) {
        let Self { channel, state, shared, .. } = self;
        let channel = channel.as_ref().expect("there until dropped");
        while let Some(filled) = state.packing.take() {
            state.send(channel, shared, filled);
        }
        (self.handed_over, self.packed_turns) = (self.last_number, 0);
    }

    /// Gives up what has waited too long. It is called each time that another thread has had the processor, so that on a busy
    /// machine many looks at the clock do not become one.
    pub fn look_at_clock(&mut self) {
        self.state.expire(&self.shared);
    }
}

#[cfg(test)]
impl Caller {
    /// Makes a session with a node, and treats it as broken.
    pub fn break_a_new_session(&mut self, node: NodeId) -> Result<(), FabricError> {
        self.session(node)?;
        let epoch = self.known(node).epoch;
        self.state.break_session(node, epoch);
        Ok(())
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let live: Vec<NodeId> = self.state.nodes.keys().copied().collect();
        for node in live {
            // Also of a broken session, which its home may take for a live one.
            if self.known(node).session.as_ref().is_some_and(|session| session.token != 0) {
                self.transmit(node, Kind::Bye, 0, &[]);
            }
        }
        // Anything unsent is lost, such as an answer for which its receiver would wait in vain, for as long as a
        // request may take.
        self.flush(self.shared.config.request_timeout_ns.min(LAST_FLUSH_NS_MAX));
        // This caller's registrations hold the domain open, and the provider may write into the buffers until it is closed.
        self.state.bulk_waiting.clear();
        let active = std::mem::take(&mut self.state.bulk_active);
        if self.channel().is_never_closed() {
            // There it may do so for ever.
            for piece in active.into_values() {
                std::mem::forget(self.state.flights.remove(&piece.flight));
                std::mem::forget(piece.registration);
            }
        }
        self.channel = None;
    }
}

fn tag_of(node: NodeId, epoch: u32) -> u64 {
    u64::from(node.0) << 32 | u64::from(epoch)
}

/// Back from [`tag_of`].
fn of_tag(tag: u64) -> (NodeId, u32) {
    (NodeId((tag >> 32) as u8), tag as u32)
}
