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

use super::channel::{self, BulkTarget, Channel, Event, Peer, Registration, Size};
use super::frame::{self, Assembly, BODY_MAX, Header, Kind, Reader, Tag, WireOp};
use super::packing::{Filled, Packing, Unsent};
use super::secret::{Introduction, NONCE_BYTES, Nonce, Side, random};
use super::{Rendezvous, Shared, rendezvous};
use crate::address::{Address, FarPtr, NodeId, RegionId, RegionKey};
use crate::batch::{Content, OpKind, State as OpState, header_of};
use crate::error::FabricError;
use crate::object::{HEADER_BYTES, PAYLOAD_LEN_MAX};
use crate::provider::shm::{Shm, Starts, inbox::record_bytes};
use crate::provider::{LANE_BYTES_MAX, MESSAGE_BYTES_MAX};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
/// Turns between two looks at the clock.
const TURNS_PER_CLOCK: u32 = 32;
/// A period without polls counts for at most this long. Silence is the other side's only while this side listens, and a process
/// that was stopped, or got no processor, did not listen.
const UNHEARD_NS_MAX: u64 = 100_000_000;
/// How old a request must be before the kernel is asked whether its node still runs, and how often it is asked.
const LOOK_AFTER_NS: u64 = 20_000_000;
/// How long a node that did not answer a hello is not asked again, so that a caller waits for it only once.
const RETRY_AFTER_NS: u64 = 50_000_000;
/// The same for a node that had answered before and then did not, and how long it may then take. A hello blocks the thread, so a
/// node that is cut off costs at most a tenth of the thread's time.
const LOST_RETRY_AFTER_NS: u64 = 1_000_000_000;
const LOST_CONNECT_NS_MAX: u64 = 100_000_000;
/// How long a node may take that had answered until now: its silence may be a busy machine's.
const AGAIN_CONNECT_NS_MAX: u64 = 500_000_000;
/// How long a message may take to leave the thread.
const FLUSH_NS_MAX: u64 = 10_000_000;
/// Turns without an end between two offers of the core to others, while the thread waits.
const TURNS_PER_YIELD: u32 = 16;
/// How long a farewell may take.
const FAREWELL_NS_MAX: u64 = 200_000_000;
/// Turns that a request waits for its owner to look for its end: the owner may look for something else first.
const PACKED_TURNS_MAX: u32 = 8;
/// Polls that other owners leave to the poller before one of them takes polling over: the poller may be kept from it.
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

/// A map with keys that this program numbers itself, and with the few nodes, regions and ports. One multiplication spreads the
/// keys, because no adversary chooses them.
type Numbered<K, T> = HashMap<K, T, BuildHasherDefault<NumberHasher>>;

/// See [`Numbered`].
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("for numbers only");
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u16(&mut self, number: u16) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(32) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Everything that events change.
#[derive(Default)]
struct State {
    nodes: Numbered<NodeId, Known>,
    asked: Numbered<u64, Asked>,
    flights: Numbered<u64, Flight>,
    packing: Packing,
    unsent: Unsent,
    bulk_waiting: VecDeque<BulkPiece>,
    bulk_active: Numbered<u32, BulkPiece>,
    last_classified: u64,
    /// The last look at the clock for time-outs.
    last_look_ns: u64,
}

/// A node as this worker knows it.
#[derive(Default)]
struct Known {
    session: Option<Session>,
    epoch: u32,
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
    Ops {
        flight: u64,
        pieces: Vec<Piece>,
    },
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

/// A request in the making.
struct Plan {
    node: NodeId,
    body: Vec<u8>,
    pieces: Vec<Piece>,
    answers: usize,
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
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_CLOCK) {
            state.expire(shared);
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

    // -----------------------------------------------------------------------------------------------------------------
    // Sessions

    /// Makes a live session with the node, unless there is one.
    fn session(&mut self, node: NodeId) -> Result<(), FabricError> {
        let known = self.state.nodes.entry(node).or_default();
        if let Some(session) = &known.session {
            let same_start = known.starts.as_ref().is_none_or(|starts| starts.count() == session.incarnation);
            if !session.is_broken && session.token != 0 && same_start {
                return Ok(());
            }
        }
        let before_ns = self.shared.clock.now_ns();
        match &known.refusal {
            Some((until_ns, refusal)) if before_ns < *until_ns => return Err(refusal.clone()),
            _ => known.refusal = None,
        }
        let max_ns = match (known.was_there, known.is_lost) {
            (false, _) => u64::MAX,
            (true, false) => AGAIN_CONNECT_NS_MAX,
            (true, true) => LOST_CONNECT_NS_MAX,
        };
        let met = self.meet(node, max_ns);
        let after_ns = self.shared.clock.now_ns();
        let known = self.known(node);
        match &met {
            Ok(()) => (known.was_there, known.is_lost) = (true, false),
            Err(error) if after_ns - before_ns > RETRY_AFTER_NS / 10 => {
                known.is_lost = known.was_there;
                let pause_ns = if known.is_lost { LOST_RETRY_AFTER_NS } else { RETRY_AFTER_NS };
                known.refusal = Some((after_ns + pause_ns, error.clone()));
            }
            Err(_) => {}
        }
        met
    }

    fn known(&mut self, node: NodeId) -> &mut Known {
        self.state.nodes.entry(node).or_default()
    }

    #[cold]
    fn meet(&mut self, node: NodeId, max_ns: u64) -> Result<(), FabricError> {
        self.leave(node);
        let shared = self.shared.clone();
        let timeout_ns = shared.config.connect_timeout_ns.min(max_ns);
        let record = rendezvous::find(&shared.cluster, &shared.config.rendezvous, node, timeout_ns)?;
        if shared.config.rendezvous == Rendezvous::Directory {
            let starts = Starts::of(&shared.cluster, node).filter(|starts| starts.count() == record.incarnation);
            if starts.is_none() || !shared.is_live(node) {
                return Err(FabricError::NodeUnavailable { node });
            }
            self.known(node).starts = starts;
        }
        if record.provider != shared.provider {
            let reason = format!("{node} uses {}", record.provider);
            return Err(FabricError::unfit_provider(&shared.provider, reason));
        }
        let peer = self.channel().meet(&record.name)?;
        let known = self.known(node);
        known.epoch += 1;
        let epoch = known.epoch;
        let incarnation = record.incarnation;
        known.session = Some(Session { epoch, peer, incarnation, index: 0, token: 0, is_broken: false });
        let introduced = self.introduce(node, &record.name, timeout_ns);
        if introduced.is_err() {
            self.state.break_session(node, epoch);
        }
        introduced
    }

    /// Removes a session that is of no use any more.
    fn leave(&mut self, node: NodeId) {
        let Some(session) = self.known(node).session.take() else { return };
        self.state.break_session(node, session.epoch);
        self.known(node).lanes.clear();
        let is_used = |piece: &BulkPiece| piece.node == node;
        // The provider may still have transfers to that address.
        if !self.state.bulk_active.values().any(is_used) {
            self.channel().forget(session.peer);
        }
    }

    /// Proves to each side that the other knows the secret: see [`super::secret`].
    fn introduce(&mut self, node: NodeId, home_name: &[u8], timeout_ns: u64) -> Result<(), FabricError> {
        let shared = self.shared.clone();
        let name = self.name.clone();
        let mut worker_nonce: Nonce = [0; NONCE_BYTES];
        random(&mut worker_nonce);
        let start = (shared.start, shared.birth.load(Ordering::Relaxed));
        let hello = Introduction {
            version: frame::VERSION,
            worker_nonce: &worker_nonce,
            home_nonce: &[0; NONCE_BYTES],
            worker_node: shared.node().0,
            home_node: node.0,
            start,
            worker_name: &name,
            home_name,
        };
        let hello = frame::hello(&hello, &shared.secret().prove(Side::Hello, &hello));
        let until_ns = shared.clock.now_ns() + timeout_ns;
        let (kind, index, body) = self.exchange(node, Kind::Hello, 0, &hello, until_ns)?;
        if kind != Kind::Challenge {
            return Err(refusal(node, &body));
        }
        let (home_nonce, proof) =
            body.split_first_chunk::<NONCE_BYTES>().ok_or(FabricError::NodeUnavailable { node })?;
        let introduction = Introduction {
            version: frame::VERSION,
            worker_nonce: &worker_nonce,
            home_nonce,
            worker_node: shared.node().0,
            home_node: node.0,
            start,
            worker_name: &name,
            home_name,
        };
        if !shared.secret().is_proof(Side::Home, &introduction, proof) {
            return Err(FabricError::NotAdmitted { node });
        }
        let proof = shared.secret().prove(Side::Worker, &introduction);
        let (kind, index, body) = self.exchange(node, Kind::Proof, index, &proof, until_ns)?;
        if kind != Kind::Welcome {
            return Err(refusal(node, &body));
        }
        let token = shared.secret().token(&introduction);
        let session = self.known(node).session.as_mut().ok_or(FabricError::NodeUnavailable { node })?;
        (session.index, session.token) = (index, token);
        Ok(())
    }

    /// A step of the introduction: the answer, and the session's number at the agent.
    fn exchange(
        &mut self,
        node: NodeId,
        kind: Kind,
        index: u32,
        body: &[u8],
        until_ns: u64,
    ) -> Result<(Kind, u32, Vec<u8>), FabricError> {
        if let Some(session) = &mut self.known(node).session {
            session.index = index;
        }
        let number = self.ask(node, kind, body, What::Call(None), until_ns);
        let (kind, mut body) = self.wait_for(number, node)?;
        // The answer's header has the number: see `State::answer`.
        let index = body.split_off(body.len() - 4);
        Ok((kind, u32::from_le_bytes(index.try_into().expect("4 bytes")), body))
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Requests

    /// Sends a request or a step of an introduction; returns its number.
    fn ask(&mut self, node: NodeId, kind: Kind, body: &[u8], what: What, until_ns: u64) -> u64 {
        let number = self.next_number();
        let since_ns = self.shared.clock.now_ns();
        let epoch = self.known(node).epoch;
        self.state.asked.insert(number, Asked { node, epoch, since_ns, until_ns, what, answer: Assembly::default() });
        self.transmit(node, kind, number, body);
        number
    }

    /// Puts a body into the frame that is being filled for its node. [`Self::hand_over`] sends it.
    fn transmit(&mut self, node: NodeId, kind: Kind, number: u64, body: &[u8]) {
        let Some(session) = self.state.nodes.get(&node).and_then(|known| known.session.as_ref()) else { return };
        let (peer, epoch) = (session.peer, session.epoch);
        let header = Header::new(kind, session.index, session.token, number, body.len());
        let Self { channel, state, shared, .. } = self;
        let channel = channel.as_ref().expect("there until dropped");
        for (head, part) in frame::split(header, body) {
            for full in state.packing.add(peer, tag_of(node, epoch), &head, part).into_iter().flatten() {
                state.send(channel, shared, full);
            }
        }
    }

    /// Blocks until a call's answer is there, or its time is over.
    fn wait_for(&mut self, number: u64, node: NodeId) -> Result<(Kind, Vec<u8>), FabricError> {
        self.hand_over();
        loop {
            self.turn();
            match self.state.asked.get_mut(&number).map(|asked| &mut asked.what) {
                Some(What::Call(Some(_))) => {}
                Some(_) => {
                    // The agent may be a thread of this very core. If many threads want the core, much time passes meanwhile.
                    std::thread::yield_now();
                    self.look_at_clock();
                    continue;
                }
                None => return Err(FabricError::NodeUnavailable { node }),
            }
            return match self.state.asked.remove(&number).map(|asked| asked.what) {
                Some(What::Call(Some(answer))) => answer,
                _ => Err(FabricError::NodeUnavailable { node }),
            };
        }
    }

    /// Sends a call to a node with a session, and blocks until its answer.
    fn call(&mut self, to: Address, tag: Tag, a: u32, b: u32, timeout_ns: u64) -> Result<Vec<u8>, FabricError> {
        let until_ns = self.shared.clock.now_ns() + timeout_ns;
        let number = self.ask(to.node, Kind::Request, &frame::request(tag, a, b), What::Call(None), until_ns);
        let (_, body) = self.wait_for(number, to.node)?;
        let at = FarPtr::new(to.node, RegionId(a as u8), 0);
        let answer = frame::take_answer(&mut Reader(&body), at, to);
        answer.unwrap_or(Err(FabricError::NodeUnavailable { node: to.node })).map(<[u8]>::to_vec)
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Regions

    /// What is known of a region; fetched at first use.
    fn region(&mut self, node: NodeId, region: RegionId) -> Result<Region, FabricError> {
        self.session(node)?;
        match self.known(node).regions.get(&region) {
            Some(known) => Ok(*known),
            None => self.learn(node, region),
        }
    }

    #[cold]
    fn learn(&mut self, node: NodeId, region: RegionId) -> Result<Region, FabricError> {
        let timeout_ns = self.shared.config.request_timeout_ns;
        let body = self.call(Address::home(node), Tag::Learn, u32::from(region.0), 0, timeout_ns)?;
        let mut reader = Reader(&body);
        let mut word = || reader.u64().ok_or(FabricError::NodeUnavailable { node });
        let (key, bytes, nic) = (word()?, word()?, word()?);
        let (nic_reads, nic_writes) = (nic & frame::NIC_READS != 0, nic & frame::NIC_WRITES != 0);
        let learned = Region { key, bytes, nic_reads, nic_writes };
        self.known(node).regions.insert(region, learned);
        Ok(learned)
    }

    /// Forgets what is known of a region, and fetches it again.
    pub fn refresh(&mut self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        self.session(node)?;
        self.known(node).regions.remove(&region);
        self.learn(node, region).map(|region| RegionKey(region.key))
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Instructions

    /// Starts the instructions; near ones are executed at once. `None`: all have ended, and the content is still there.
    pub fn post(&mut self, near: &Shm, kept: &mut Option<Box<Content>>) -> Option<u64> {
        let mut content = kept.take()?;
        let flight = self.next_number();
        let (mut plans, mut bulk) = (Vec::new(), Vec::new());
        // Most batches are about one region: it is looked up once.
        let mut last = None;
        for index in 0..content.ops.len() {
            let at = content.ops[index].at;
            let done = if at.node() == self.shared.node() {
                let (ops, data, _) = content.parts();
                near.execute(&mut ops[index], data)
            } else {
                let known = last.filter(|(place, _)| *place == (at.node(), at.region())).map(|(_, region)| region);
                known.map_or_else(|| self.region(at.node(), at.region()), Ok).and_then(|region| {
                    last = Some(((at.node(), at.region()), region));
                    self.plan(flight, index, region, &mut content, &mut plans, &mut bulk)
                })
            };
            if let Err(error) = done {
                content.fail(index, error);
            }
        }
        let left = plans.len() + bulk.len();
        if left == 0 {
            *kept = Some(content);
            return None;
        }
        self.state.flights.insert(flight, Flight { content, left, bulk, is_abandoned: false, instead: None });
        let until_ns = self.shared.clock.now_ns() + self.shared.config.request_timeout_ns;
        for Plan { node, body, pieces, .. } in plans {
            self.ask(node, Kind::Request, &body, What::Ops { flight, pieces }, until_ns);
        }
        self.fresh = Some(flight);
        Some(flight)
    }

    /// Decides how an instruction travels.
    fn plan(
        &mut self,
        flight: u64,
        index: usize,
        region: Region,
        content: &mut Content,
        plans: &mut Vec<Plan>,
        bulk: &mut Vec<BulkPiece>,
    ) -> Result<(), FabricError> {
        let op = &content.ops[index];
        let (at, len, data_start) = (op.at, op.len as usize, op.start as usize);
        let mut wire = WireOp::of(op, region.key);
        let piece_max = match op.kind {
            OpKind::Write => WRITE_PIECE,
            OpKind::Read => READ_PIECE,
            OpKind::ReadObject => {
                wire.len = wire.len.min(PAYLOAD_LEN_MAX as u32);
                add(plans, at.node(), &wire, &[], piece(index, 0, len, Then::Done));
                return Ok(());
            }
            _ => {
                add(plans, at.node(), &wire, &[], piece(index, 0, len, Then::Done));
                return Ok(());
            }
        };
        let is_write = op.kind == OpKind::Write;
        let by_nic = if is_write { region.nic_writes } else { region.nic_reads };
        let is_bulk = len >= self.shared.config.bulk_bytes_min && by_nic;
        let is_outside = at.offset() > region.bytes || len as u64 > region.bytes - at.offset();
        if is_outside && !is_bulk && len > piece_max {
            // None of it may be executed: the agent says what is wrong.
            wire.kind = OpKind::Flush;
            add(plans, at.node(), &wire, &[], piece(index, 0, len, Then::Outside(region.bytes)));
            return Ok(());
        }
        if is_bulk {
            // The agent is asked first: a NIC refuses an old key by breaking the connection (`tcp`), or not at all. The agent
            // gives the NIC's key, which changes when a node is fenced.
            (wire.kind, wire.a) = (OpKind::Flush, frame::NIC_KEY);
            add(plans, at.node(), &wire, &[], piece(index, 0, len, Then::Go));
            let local = content.data.start_of(data_start, len);
            // SAFETY: the buffer belongs to the flight, which keeps it until the transfer's end, and so longer than the
            // registration, which ends with its pieces.
            let registration = unsafe { self.channel().register_local(local, len as u64)? }.map(Arc::new);
            let epoch = self.known(at.node()).epoch;
            let piece_max = BULK_PIECE.min(self.channel().traits().transfer_bytes_max as usize);
            for start in (0..len).step_by(piece_max) {
                bulk.push(BulkPiece {
                    flight,
                    op: index,
                    node: at.node(),
                    epoch,
                    region_key: region.key,
                    is_write,
                    // SAFETY: `start` is inside the `len` bytes.
                    local: unsafe { local.add(start) },
                    len: piece_max.min(len - start),
                    at: at.add(start as u64),
                    target: BulkTarget::default(),
                    registration: registration.clone(),
                    since_ns: 0,
                });
            }
            return Ok(());
        }
        for start in (0..len.max(1)).step_by(piece_max) {
            let part = piece_max.min(len - start);
            (wire.offset, wire.len) = (at.offset() + start as u64, part as u32);
            let bytes = if is_write { content.data.bytes(data_start + start, part) } else { &[] };
            add(plans, at.node(), &wire, bytes, piece(index, start, part, Then::Done));
        }
        Ok(())
    }

    /// Looks for the end of a flight. Its owner looks again next turn if it is not over.
    pub fn look(&mut self, flight: u64) -> Look {
        if self.fresh.take_if(|fresh| *fresh == flight).is_some() {
            return Look::Waits;
        }
        if let Some(content) = self.take_back(flight) {
            return Look::Over(content);
        }
        if flight > self.handed_over {
            self.hand_over();
        }
        if self.poller.is_some_and(|poller| poller != flight) && self.left_to_him < LEFT_TO_OTHERS_MAX {
            self.left_to_him += 1;
            return Look::Waits;
        }
        (self.poller, self.left_to_him) = (Some(flight), 0);
        self.turn();
        self.take_back(flight).map_or(Look::Polled, Look::Over)
    }

    /// Takes a flight's content back once all of it has ended.
    fn take_back(&mut self, flight: u64) -> Option<Box<Content>> {
        let found = self.state.flights.get_mut(&flight)?;
        if found.left > 0 && found.instead.is_none() {
            return None;
        }
        self.poller.take_if(|poller| *poller == flight);
        if let Some(instead) = found.instead.take() {
            found.is_abandoned = true;
            return Some(instead);
        }
        Some(self.state.flights.remove(&flight).expect("just seen").content)
    }

    /// No owner will ask for the flight any more. Its requests still leave this thread.
    pub fn abandon(&mut self, flight: u64) {
        self.poller.take_if(|poller| *poller == flight);
        match self.state.flights.get_mut(&flight) {
            Some(found) if found.left > 0 => found.is_abandoned = true,
            _ => drop(self.state.flights.remove(&flight)),
        }
        self.flush(FLUSH_NS_MAX);
    }

    /// Polls until everything has left this thread, for at most `max_ns`.
    pub fn flush(&mut self, max_ns: u64) {
        self.flush_to(|_| true, max_ns);
    }

    /// Polls until everything for the nodes that `is_meant` accepts has left this thread, for at most `max_ns`. It does not wait
    /// for a broken session's frames: they may stay with the provider as long as their peer is stopped.
    fn flush_to(&mut self, is_meant: impl Fn(NodeId) -> bool, max_ns: u64) {
        self.hand_over();
        let until_ns = self.shared.clock.now_ns() + max_ns;
        let mut turns = 0_u32;
        while self.is_leaving(&is_meant) && self.shared.clock.now_ns() < until_ns {
            self.turn();
            turns += 1;
            if turns.is_multiple_of(TURNS_PER_YIELD) {
                // The receiver may be a thread of this very core.
                std::thread::yield_now();
            }
        }
    }

    /// Whether anything for such a node has not left this thread yet.
    fn is_leaving(&self, is_meant: impl Fn(NodeId) -> bool) -> bool {
        let (unsent, channel) = (&self.state.unsent, self.channel());
        let is_under_way = |tag| unsent.count_of(tag) > 0 || channel.count_sending(|it| it == tag) > 0;
        let live = self.state.nodes.iter().filter_map(|(node, known)| Some((*node, known.session.as_ref()?)));
        (!unsent.is_empty() || channel.is_sending())
            && live
                .filter(|(node, session)| is_meant(*node) && !session.is_broken)
                .any(|(node, session)| is_under_way(tag_of(node, session.epoch)))
    }

    // -----------------------------------------------------------------------------------------------------------------
    // Messages

    pub fn send(&mut self, from: u16, to: Address, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(FabricError::MessageTooLong { bytes: message.len(), bytes_max: MESSAGE_BYTES_MAX });
        }
        self.session(to.node)?;
        if self.state.unsent.len() >= UNSENT_MAX {
            self.turn();
            return Err(FabricError::QueueFull { to });
        }
        let closings = &self.shared.closings;
        let lane = self.state.nodes.get_mut(&to.node).and_then(|known| known.lanes.get_mut(&(from, to.port)));
        if lane.is_none_or(|lane| closings.has_closed(to, &mut lane.closings)) {
            self.open_lane(from, to)?;
        }
        let need = record_bytes(message.len());
        if self.lane(from, to)?.is_full(need) {
            self.ask_taken(from, to)?;
            if self.lane(from, to)?.is_full(need) {
                return Err(FabricError::QueueFull { to });
            }
        }
        let lane = self.lane(from, to)?;
        lane.put += need;
        let index = lane.index;
        self.transmit(to.node, Kind::Message, index, message);
        self.hand_over();
        // A caller that is told that the message is not sent may rely on it. A session that breaks from here on, for what was
        // sent earlier, may have taken it along.
        let is_sent = self.known(to.node).session.as_ref().is_some_and(|session| !session.is_broken);
        // A thread may sleep after it has sent, so it must leave nothing behind that only polling would send.
        self.flush_to(|node| node == to.node, FLUSH_NS_MAX);
        if is_sent { Ok(()) } else { Err(FabricError::NodeUnavailable { node: to.node }) }
    }

    fn lane(&mut self, from: u16, to: Address) -> Result<&mut Lane, FabricError> {
        self.known(to.node).lanes.get_mut(&(from, to.port)).ok_or(FabricError::NodeUnavailable { node: to.node })
    }

    fn open_lane(&mut self, from: u16, to: Address) -> Result<(), FabricError> {
        let shared = self.shared.clone();
        // The lanes into ports that have ended; the home drops them as well.
        self.known(to.node).lanes.retain(|(_, port), lane| {
            !shared.closings.has_closed(Address { node: to.node, port: *port }, &mut lane.closings)
        });
        let closings = shared.closings.count();
        let timeout_ns = self.shared.config.request_timeout_ns;
        let body = self.call(to, Tag::Lane, u32::from(to.port), u32::from(from), timeout_ns)?;
        let mut reader = Reader(&body);
        let mut word = || reader.u64().ok_or(FabricError::NodeUnavailable { node: to.node });
        let (index, put, taken) = (word()?, word()?, word()?);
        self.known(to.node).lanes.insert((from, to.port), Lane { index, put, taken, closings });
        Ok(())
    }

    fn ask_taken(&mut self, from: u16, to: Address) -> Result<(), FabricError> {
        let (index, timeout_ns) = (self.lane(from, to)?.index, self.shared.config.request_timeout_ns);
        match self.call(to, Tag::Taken, index as u32, 0, timeout_ns) {
            Ok(body) => {
                self.lane(from, to)?.taken = Reader(&body).u64().unwrap_or(0);
                Ok(())
            }
            Err(error) => {
                self.known(to.node).lanes.remove(&(from, to.port));
                Err(error)
            }
        }
    }

    /// Gives back the lanes of a local port.
    pub fn leave_lanes(&mut self, port: u16) {
        let mut left = Vec::new();
        for (node, known) in &mut self.state.nodes {
            left.extend(known.lanes.extract_if(|(from, _), _| *from == port).map(|(_, lane)| (*node, lane.index)));
        }
        for (node, lane) in left {
            self.transmit(node, Kind::Leave, lane, &[]);
        }
        self.flush(FLUSH_NS_MAX);
    }

    /// Tells nodes that a local port is closed, and waits until they know it, for a short time.
    pub fn tell_closed(&mut self, port: u16, nodes: impl Iterator<Item = NodeId>) {
        let until_ns = self.shared.clock.now_ns() + FAREWELL_NS_MAX;
        let mut numbers = Vec::new();
        for node in nodes {
            if self.shared.clock.now_ns() < until_ns && self.session(node).is_ok() {
                let body = frame::request(Tag::Closed, u32::from(port), 0);
                numbers.push((node, self.ask(node, Kind::Request, &body, What::Call(None), until_ns)));
            }
        }
        for (node, number) in numbers {
            let _ = self.wait_for(number, node);
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let live: Vec<NodeId> = self.state.nodes.keys().copied().collect();
        for node in live {
            if self.known(node).session.as_ref().is_some_and(|session| !session.is_broken && session.token != 0) {
                self.transmit(node, Kind::Bye, 0, &[]);
            }
        }
        self.flush(FLUSH_NS_MAX);
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

fn piece(op: usize, start: usize, len: usize, then: Then) -> Piece {
    Piece { op, start, len, then }
}

/// Puts an instruction into the node's last request that has room.
fn add(plans: &mut Vec<Plan>, node: NodeId, wire: &WireOp, bytes: &[u8], piece: Piece) {
    let need = frame::OP_BYTES + bytes.len().next_multiple_of(8);
    let answer = wire.answer_bytes_max();
    let fits =
        |plan: &Plan| plan.node == node && plan.body.len() + need <= BODY_MAX && plan.answers + answer <= ANSWERS_MAX;
    let at = plans.iter().rposition(fits).unwrap_or_else(|| {
        let mut body = Vec::with_capacity(frame::TAG_BYTES + need);
        body.extend_from_slice(&u64::from(Tag::Ops as u32).to_le_bytes());
        plans.push(Plan { node, body, pieces: Vec::new(), answers: 0 });
        plans.len() - 1
    });
    let plan = &mut plans[at];
    wire.put(&mut plan.body);
    frame::put_padded(&mut plan.body, bytes);
    plan.pieces.push(piece);
    plan.answers += answer;
}

/// What a REFUSED says.
fn refusal(node: NodeId, body: &[u8]) -> FabricError {
    let mut reader = Reader(body);
    let why = reader.u32();
    let is = |refusal: frame::Refusal| why == Some(refusal as u32);
    if is(frame::Refusal::Version) {
        let theirs = reader.u32().unwrap_or(0) as u16;
        FabricError::VersionMismatch { node, ours: frame::VERSION, theirs }
    } else if is(frame::Refusal::NotAdmitted) {
        FabricError::NotAdmitted { node }
    } else if is(frame::Refusal::TooMany) {
        FabricError::TooManySenders { to: Address::home(node) }
    } else {
        FabricError::NodeUnavailable { node }
    }
}

impl Lane {
    fn is_full(&self, need: u64) -> bool {
        self.put + need > self.taken + LANE_BYTES_MAX
    }
}

impl State {
    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::Received(frame) => {
                for (header, part) in frame::parcels(frame).filter(|(it, _)| it.version == frame::VERSION) {
                    self.answer(&header, part);
                }
            }
            Event::Lost(tag) => self.lose(*tag),
            Event::Bulk { slot, is_done } => self.end_bulk(*slot, *is_done),
        }
    }

    fn answer(&mut self, header: &Header, part: &[u8]) {
        let Some(asked) = self.asked.get_mut(&header.number) else { return };
        let session = self.nodes.get(&asked.node).and_then(|known| known.session.as_ref());
        let Some(session) = session.filter(|session| session.epoch == asked.epoch) else { return };
        // Before the session is live the token is zero on both sides, and the body proves the sender.
        let is_step = matches!(header.kind, Kind::Challenge | Kind::Welcome | Kind::Refused);
        if header.token != session.token || is_step != (session.token == 0) {
            return;
        }
        match &mut asked.what {
            What::Call(answer) => {
                if let Some(body) = asked.answer.add(header, part) {
                    let mut body = body.to_vec();
                    if is_step {
                        body.extend_from_slice(&header.session.to_le_bytes());
                    }
                    *answer = Some(Ok((header.kind, body)));
                }
            }
            What::Ops { .. } if header.offset == 0 && part.len() == header.total as usize => {
                let Some(Asked { node, what: What::Ops { flight, pieces }, .. }) = self.asked.remove(&header.number)
                else {
                    return;
                };
                self.settle(node, flight, pieces, Some(part));
            }
            What::Ops { .. } => {
                if asked.answer.add(header, part).is_none() {
                    return;
                }
                let Some(Asked { node, what: What::Ops { flight, pieces }, mut answer, .. }) =
                    self.asked.remove(&header.number)
                else {
                    return;
                };
                let whole = answer.take();
                self.settle(node, flight, pieces, Some(&whole));
            }
        }
    }

    /// Gives a flight the answers to some of its pieces, or the news that there will be none.
    fn settle(&mut self, node: NodeId, flight: u64, pieces: Vec<Piece>, answer: Option<&[u8]>) {
        let Some(found) = self.flights.get_mut(&flight) else { return };
        let mut reader = Reader(answer.unwrap_or(&[]));
        let mut over = 1;
        for piece in pieces {
            let at = found.content.ops[piece.op].at;
            let answer = frame::take_answer(&mut reader, at, Address::home(node));
            let answer = answer.unwrap_or(Err(FabricError::NodeUnavailable { node }));
            let nic = answer.as_ref().ok().and_then(|bytes| nic_of(bytes));
            let accepted = answer.and_then(|bytes| accept(&mut found.content, &piece, bytes));
            if let Then::Go = piece.then {
                let transfers = found.bulk.extract_if(.., |it| it.op == piece.op);
                match nic.filter(|_| accepted.is_ok()) {
                    Some((key, base)) => self.bulk_waiting.extend(transfers.map(|mut it| {
                        it.target = BulkTarget { remote: base + it.at.offset(), key };
                        it
                    })),
                    None => over += transfers.count(),
                }
            }
            if let Err(error) = accepted {
                fail(&mut found.content, piece.op, error);
            }
        }
        self.land(flight, over);
    }

    /// Some more parts of a flight are over.
    fn land(&mut self, flight: u64, parts: usize) {
        let Some(found) = self.flights.get_mut(&flight) else { return };
        found.left -= parts;
        if found.left > 0 {
            return;
        }
        if found.is_abandoned {
            self.flights.remove(&flight);
            return;
        }
        for op in &mut found.content.ops {
            if op.state == OpState::Pending {
                op.state = OpState::Done;
            }
        }
    }

    /// Nothing more will come in this session.
    fn break_session(&mut self, node: NodeId, epoch: u32) {
        let session = self.nodes.get_mut(&node).and_then(|known| known.session.as_mut());
        if let Some(session) = session.filter(|session| session.epoch == epoch) {
            session.is_broken = true;
        }
        self.packing.forget(tag_of(node, epoch));
        self.unsent.forget(tag_of(node, epoch));
        let lost = |asked: &Asked| asked.node == node && asked.epoch == epoch;
        let numbers: Vec<u64> = self.asked.iter().filter(|(_, it)| lost(it)).map(|(number, _)| *number).collect();
        for number in numbers {
            self.give_up(number);
        }
        while let Some(position) = self.bulk_waiting.iter().position(|it| it.node == node && it.epoch == epoch) {
            let piece = self.bulk_waiting.remove(position).expect("just found");
            if let Some(found) = self.flights.get_mut(&piece.flight) {
                fail(&mut found.content, piece.op, FabricError::NodeUnavailable { node });
            }
            self.land(piece.flight, 1);
        }
    }

    /// A request will get no answer.
    fn give_up(&mut self, number: u64) {
        let Some(asked) = self.asked.get_mut(&number) else { return };
        let node = asked.node;
        if let What::Call(answer) = &mut asked.what {
            answer.get_or_insert(Err(FabricError::NodeUnavailable { node }));
        } else if let Some(Asked { what: What::Ops { flight, pieces }, .. }) = self.asked.remove(&number) {
            self.settle(node, flight, pieces, None);
        }
    }

    /// Sends a frame, or keeps it for later.
    fn send(&mut self, channel: &Channel, shared: &Shared, filled: Filled) {
        if self.unsent.count_of(filled.tag) > 0 {
            return self.unsent.push(filled, shared.clock.now_ns());
        }
        match self.packing.send(channel, filled) {
            Ok(()) => {}
            Err((channel::Refusal::Again, filled)) => self.unsent.push(filled, shared.clock.now_ns()),
            Err((channel::Refusal::Broken, filled)) => self.lose(filled.tag),
        }
    }

    /// A frame of a session cannot be delivered.
    fn lose(&mut self, tag: u64) {
        let (node, epoch) = of_tag(tag);
        self.break_session(node, epoch);
    }

    fn send_unsent(&mut self, channel: &Channel, now_ns: u64) {
        let Self { packing, unsent, .. } = self;
        for tag in unsent.send_all(now_ns, |filled| packing.send(channel, filled)) {
            self.lose(tag);
        }
    }

    fn start_bulk(&mut self, channel: &Channel, now_ns: u64) {
        while let Some(mut piece) = self.bulk_waiting.pop_front() {
            let session = self.nodes.get(&piece.node).and_then(|known| known.session.as_ref());
            let Some(peer) = session.filter(|it| it.epoch == piece.epoch && !it.is_broken).map(|it| it.peer) else {
                let (node, epoch) = (piece.node, piece.epoch);
                self.bulk_waiting.push_front(piece);
                self.break_session(node, epoch);
                continue;
            };
            piece.since_ns = now_ns;
            let registration = piece.registration.as_deref();
            // SAFETY: the flight keeps the buffer until its transfers are over, and no other code touches these bytes: other
            // answers go to other bytes, by raw copies (`Buffer::put`), and the batch's owner has none of it before.
            let posted = unsafe {
                channel.bulk(piece.is_write, piece.local, piece.len as u64, registration, peer, piece.target)
            };
            match posted {
                Ok(slot) => drop(self.bulk_active.insert(slot, piece)),
                Err(channel::Refusal::Again) => return self.bulk_waiting.push_front(piece),
                Err(channel::Refusal::Broken) => self.classify(&piece),
            }
        }
    }

    fn end_bulk(&mut self, slot: u32, is_done: bool) {
        let Some(piece) = self.bulk_active.remove(&slot) else { return };
        if is_done { self.land(piece.flight, 1) } else { self.classify(&piece) }
    }

    /// The NIC failed: the home agent knows whether the key is stale.
    fn classify(&mut self, bulk: &BulkPiece) {
        let session = self.nodes.get(&bulk.node).and_then(|known| known.session.as_ref());
        let question = piece(bulk.op, 0, 0, Then::Unreached);
        let Some(session) = session.filter(|it| it.epoch == bulk.epoch && !it.is_broken) else {
            return self.settle(bulk.node, bulk.flight, vec![question], None);
        };
        let wire = WireOp {
            kind: OpKind::Flush,
            region: bulk.at.region(),
            len: bulk.len as u32,
            offset: bulk.at.offset(),
            key: bulk.region_key,
            a: 0,
            b: 0,
        };
        let mut plans = Vec::new();
        add(&mut plans, bulk.node, &wire, &[], question);
        let Plan { body, pieces, .. } = plans.remove(0);
        // Numbers of their own, from the other end.
        self.last_classified += 1;
        let number = u64::MAX - self.last_classified;
        let header = Header::new(Kind::Request, session.index, session.token, number, body.len());
        let frame = [&header.to_bytes()[..], &body].concat();
        let (since_ns, until_ns) = (bulk.since_ns, u64::MAX);
        let filled = Filled { peer: session.peer, tag: tag_of(bulk.node, bulk.epoch), frame };
        self.unsent.push(filled, since_ns);
        let what = What::Ops { flight: bulk.flight, pieces };
        let (node, epoch, answer) = (bulk.node, bulk.epoch, Assembly::default());
        self.asked.insert(number, Asked { node, epoch, since_ns, until_ns, what, answer });
    }

    /// Gives up what has waited too long.
    fn expire(&mut self, shared: &Shared) {
        if self.asked.is_empty() && self.bulk_active.is_empty() && self.unsent.is_empty() {
            return;
        }
        let now_ns = shared.clock.now_ns();
        let last_look_ns = std::mem::replace(&mut self.last_look_ns, now_ns);
        let unheard_ns = |since_ns: u64| now_ns.saturating_sub(last_look_ns.max(since_ns) + UNHEARD_NS_MAX);
        for asked in self.asked.values_mut() {
            let unheard_ns = unheard_ns(asked.since_ns);
            asked.since_ns += unheard_ns;
            asked.until_ns = asked.until_ns.saturating_add(unheard_ns);
        }
        for piece in self.bulk_active.values_mut() {
            piece.since_ns += unheard_ns(piece.since_ns);
        }
        for (_, since_ns) in self.unsent.waiting() {
            *since_ns += unheard_ns(*since_ns);
        }
        let timeout_ns = shared.config.request_timeout_ns;
        let is_late = |asked: &Asked| now_ns > asked.until_ns.min(asked.since_ns.saturating_add(2 * timeout_ns));
        let mut lost: Vec<(NodeId, u32)> =
            self.asked.values().filter(|it| is_late(it)).map(|it| (it.node, it.epoch)).collect();
        let late = |it: &&BulkPiece| now_ns > it.since_ns + timeout_ns;
        lost.extend(self.bulk_active.values().filter(late).map(|it| (it.node, it.epoch)));
        // Messages have no deadline of their own.
        let kept = self.unsent.waiting().filter(|(_, since_ns)| now_ns > **since_ns + timeout_ns);
        lost.extend(kept.map(|(tag, _)| of_tag(tag)));
        if shared.config.rendezvous == Rendezvous::Directory {
            let old = |since_ns: u64| now_ns > since_ns + LOOK_AFTER_NS;
            let asked = self.asked.values().filter(|it| old(it.since_ns)).map(|it| (it.node, it.epoch));
            let bulk = self.bulk_active.values().filter(|it| old(it.since_ns)).map(|it| (it.node, it.epoch));
            let mut doubtful: Vec<(NodeId, u32)> = asked.chain(bulk).collect();
            doubtful.sort_unstable();
            doubtful.dedup();
            lost.extend(doubtful.into_iter().filter(|(node, _)| !shared.was_live(*node, now_ns)));
        }
        lost.sort_unstable();
        lost.dedup();
        for (node, epoch) in lost {
            self.break_session(node, epoch);
            self.strand(node, epoch);
        }
    }

    /// Transfers that may never end: their owners get a copy of the batch, and the provider keeps the memory.
    fn strand(&mut self, node: NodeId, epoch: u32) {
        let stranded = self.bulk_active.values().filter(|it| (it.node, it.epoch) == (node, epoch));
        for flight in stranded.map(|it| it.flight).collect::<Vec<_>>() {
            if let Some(found) = self.flights.get_mut(&flight)
                && found.instead.is_none()
                && !found.is_abandoned
            {
                let failed = found.content.all_failed(&FabricError::NodeUnavailable { node });
                found.instead = Some(Box::new(failed));
            }
        }
    }
}

/// The NIC's key and base, if the answer has them.
fn nic_of(answer: &[u8]) -> Option<(u64, u64)> {
    let mut reader = Reader(answer);
    Some((reader.u64()?, reader.u64()?))
}

/// Takes a piece's answer into the batch.
fn accept(content: &mut Content, piece: &Piece, bytes: &[u8]) -> Result<(), FabricError> {
    let (ops, data, _) = content.parts();
    let op = &mut ops[piece.op];
    let unusable = FabricError::NodeUnavailable { node: op.at.node() };
    match piece.then {
        Then::Done => {}
        Then::Go if nic_of(bytes).is_some() => return Ok(()),
        Then::Outside(region_bytes) => {
            return Err(FabricError::OutOfBounds { at: op.at, bytes: u64::from(op.len), region_bytes });
        }
        Then::Go | Then::Unreached => return Err(unusable),
    }
    match op.kind {
        OpKind::Read if bytes.len() == piece.len => data.put(op.start as usize + piece.start, bytes),
        OpKind::Write | OpKind::Flush if bytes.is_empty() => {}
        OpKind::ReadObject => {
            let len = (bytes.len() >= HEADER_BYTES).then(|| header_of(bytes).meta.payload_len());
            if len.is_none_or(|len| len > op.len as usize || HEADER_BYTES + len != bytes.len()) {
                return Err(unusable);
            }
            data.put(op.start as usize, bytes);
        }
        kind if kind.is_word() => op.a = Reader(bytes).u64().ok_or(unusable)?,
        _ => return Err(unusable),
    }
    Ok(())
}

/// Marks an instruction as failed, unless a part of it has done so already. A part's bounds are the instruction's.
fn fail(content: &mut Content, index: usize, error: FabricError) {
    let op = &content.ops[index];
    if op.state != OpState::Pending {
        return;
    }
    let is_bulk = matches!(op.kind, OpKind::Read | OpKind::Write);
    let error = match error {
        FabricError::OutOfBounds { region_bytes, .. } if is_bulk => {
            FabricError::OutOfBounds { at: op.at, bytes: u64::from(op.len), region_bytes }
        }
        other => other,
    };
    content.fail(index, error);
}
