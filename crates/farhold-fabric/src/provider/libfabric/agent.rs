//! The home agent: the thread that makes a node's memory and inboxes reachable.
//!
//! It admits workers of other nodes. It executes what a NIC cannot (words, whole objects, small copies) with the CPU next to the
//! memory, so an object is read whole in one round trip. It puts messages into this node's inboxes, and makes the progress that
//! providers want of a target.
//!
//! ```text
//!   HELLO ──> Entering ──PROOF──> Live ──BYE, lost frame, younger start of its node──> gone
//!     │           └──time──> gone
//!     └──refused──> Leaving ──time──> gone
//! ```
//!
//! A session stands for one worker's endpoint that has proved that it knows the secret. The agent drops a frame without a
//! session's token unread, and also a wrong proof. The agent waits for no peer: it keeps what it cannot send at once, up to a
//! limit.
//!
//! What the agent keeps for others is bounded, and no peer takes another's share. A hello without a valid proof gets at most a
//! refusal. Some refusals are kept until they are surely sent; further such hellos are dropped. The sessions of each node are
//! bounded: those that have not entered yet, of which the oldest makes room for a new one, and the live ones.

use super::admission::Standing;
use super::channel::{Bell, Channel, Event, Peer, Size};
use super::frame::{self, Assembly, Header, Kind, Reader, Refusal, Tag, WireOp};
use super::packing::{Filled, Packing, Unsent};
use super::secret::{Introduction, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Side, random};
use super::{Clock, Shared, channel};
use crate::address::{Address, FarPtr, NodeId, RegionId};
use crate::batch::{Op, OpKind, put_header};
use crate::error::FabricError;
use crate::memory::RegionMemory;
use crate::object::HEADER_BYTES;
use crate::provider::MESSAGE_BYTES_MAX;
use crate::provider::shm::{Shm, inbox};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Frames: many workers' requests may come at once.
pub(super) const SIZE: Size = Size { rx: 256, tx: 128, bulk: 0 };
/// Most live sessions of a node: it has at most 255 workers.
const SESSIONS_PER_NODE_MAX: usize = 256;
/// Most sessions of a node that are not live.
const ENTERING_PER_NODE_MAX: usize = 64;
/// Most refusals to peers without a valid proof: within `STRANGER_NS_MAX`, and at one time with the provider. A peer that takes
/// nothing keeps the latter from being sent for ever, and as many frames with them: an eighth of all.
const STRANGERS_MAX: usize = 16;
/// Bit of the tags of their frames.
const STRANGER: u64 = 1 << 31;
/// How long a session that is not live is kept.
const STRANGER_NS_MAX: u64 = 2_000_000_000;
const LANES_PER_SESSION_MAX: usize = 4096;
/// Frames kept for a worker that does not take them, and for all workers: beyond that the worker counts as dead.
const UNSENT_PER_SESSION_MAX: usize = 1024;
const UNSENT_MAX: usize = 8192;
/// Turns without a frame between two offers of the core to others.
const TURNS_PER_YIELD: u32 = 8;
/// How long it goes on looking after the last frame before it sleeps. A sleep and its end cost some 10 µs.
const LOOK_NS: u64 = 50_000;
/// The same where the provider cannot be waited for. The naps after it, there and while a frame waits for the provider.
const LOOK_NS_WITHOUT_WAIT: u64 = 500_000;
const NAP_MIN: Duration = Duration::from_micros(50);
const NAP_MAX: Duration = Duration::from_millis(1);
/// Longest sleep if the provider wakes the agent: a bound on what a lost wake could cost.
const SLEEP_MAX: Duration = Duration::from_millis(5);

struct Session {
    state: State,
    /// Tells this session from earlier sessions in its place, whose frames may still be under way.
    count: u32,
    /// The worker's libfabric address, and the channel's number for it.
    name: Vec<u8>,
    peer: Peer,
    /// Whether it has proved that it knows the secret. Only then the other fields are true.
    is_known: bool,
    node: NodeId,
    /// Its node's count of starts.
    incarnation: u64,
    birth: u64,
    /// Its standing, and the count of changes of admission at that time.
    standing: (u64, Standing),
    token: u64,
    /// The lanes, by numbers that are never used twice: a message under way to a closed lane reaches no other.
    lanes: BTreeMap<u64, Lane>,
    lanes_opened: u64,
    request: Assembly,
}

enum State {
    /// Has to prove that it knows the secret, by then.
    Entering {
        until_ns: u64,
        worker_nonce: Nonce,
        home_nonce: Nonce,
    },
    Live,
    /// Was refused; known until its refusal is surely sent.
    Leaving {
        until_ns: u64,
    },
}

/// A worker's lane into one of this node's inboxes.
struct Lane {
    from: Address,
    to: Address,
    memory: RegionMemory,
    sender: inbox::Sender,
    message: Assembly,
}

/// A region as of the last look: its key, and its memory.
type Seen = Option<(u64, Arc<RegionMemory>)>;

/// See the module.
pub(super) struct Agent {
    shared: Arc<Shared>,
    channel: Channel,
    near: Shm,
    home: Home,
}

/// The sender of a hello.
struct Who<'a> {
    name: &'a [u8],
    node: NodeId,
    /// Its node's count of starts, and birth.
    start: (u64, u64),
}

impl<'a> Who<'a> {
    fn introduction(&self, shared: &'a Shared, worker_nonce: &'a Nonce, home_nonce: &'a Nonce) -> Introduction<'a> {
        Introduction {
            version: frame::VERSION,
            worker_nonce,
            home_nonce,
            worker_node: self.node.0,
            home_node: shared.node().0,
            start: self.start,
            worker_name: self.name,
            home_name: &shared.home_name,
        }
    }
}

/// All of the agent that frames change.
struct Home {
    sessions: Vec<Option<Session>>,
    /// The peers of workers, by name, with the number of sessions that use each.
    peers: HashMap<Vec<u8>, (Peer, usize)>,
    /// What this turn's answers are put into.
    packing: Packing,
    unsent: Unsent,
    seen: Box<[Seen]>,
    answer: Vec<u8>,
    next_check_ns: u64,
    /// Fencing orders that have been carried out.
    fences_seen: u64,
    /// Sessions so far.
    sessions_begun: u32,
}

impl Agent {
    pub fn new(shared: Arc<Shared>, channel: Channel, near: Shm) -> Self {
        let home = Home {
            sessions: Vec::new(),
            peers: HashMap::new(),
            packing: Packing::default(),
            unsent: Unsent::default(),
            seen: vec![None; 256].into(),
            answer: Vec::new(),
            next_check_ns: 0,
            fences_seen: 0,
            sessions_begun: 0,
        };
        Self { shared, channel, near, home }
    }

    /// Serves until told to stop.
    pub fn run(mut self, bell: &Bell) {
        let clock = Clock::start();
        let (has_wait, spins) = (self.channel.traits().has_wait, self.shared.config.agent_spins);
        let look_ns = if has_wait { LOOK_NS } else { LOOK_NS_WITHOUT_WAIT };
        let (mut busy_ns, mut nap, mut empty) = (0, NAP_MIN, 0u32);
        while !self.shared.stop.load(Ordering::Acquire) {
            let now_ns = clock.now_ns();
            if self.turn(now_ns) {
                (busy_ns, nap) = (now_ns, NAP_MIN);
            } else if spins || now_ns - busy_ns < look_ns {
                empty = empty.wrapping_add(1);
                if empty.is_multiple_of(TURNS_PER_YIELD) {
                    std::thread::yield_now();
                }
            } else if has_wait && self.home.unsent.is_empty() {
                self.channel.wait(bell, SLEEP_MAX);
            } else {
                // Nothing may wake it for a frame that the provider would not take: its peer may be unreachable.
                self.channel.wait(bell, nap);
                nap = (nap * 2).min(NAP_MAX);
            }
        }
    }

    fn turn(&mut self, now_ns: u64) -> bool {
        let Self { shared, channel, near, home } = self;
        home.shut_out(shared, channel);
        let worked = channel.poll(|event| match event {
            Event::Received(frame) => home.take(&Place { shared, channel, near, now_ns }, frame),
            Event::Lost(tag) => home.lose(channel, tag),
            Event::Bulk { .. } => {}
        });
        home.send_packed(channel);
        home.send_kept(channel);
        if now_ns >= home.next_check_ns {
            home.next_check_ns = now_ns + STRANGER_NS_MAX / 8;
            home.show_out(channel, now_ns);
            home.let_go_stale(shared);
        }
        worked
    }
}

/// Where a frame is handled.
struct Place<'a> {
    shared: &'a Shared,
    channel: &'a Channel,
    near: &'a Shm,
    now_ns: u64,
}

impl Home {
    fn take(&mut self, place: &Place<'_>, frame: &[u8]) {
        for (header, part) in frame::parcels(frame) {
            self.take_parcel(place, header, part);
        }
    }

    fn take_parcel(&mut self, place: &Place<'_>, header: Header, part: &[u8]) {
        if header.kind == Kind::Hello {
            self.hello(place, &header, part);
        } else if header.version == frame::VERSION {
            let index = header.session as usize;
            let Some(session) = self.sessions.get_mut(index).and_then(Option::as_mut) else { return };
            if header.kind == Kind::Proof {
                self.proof(place, &header, part);
            } else if matches!(session.state, State::Live) && session.token == header.token {
                if session.standing(place.shared) == Standing::Stranger {
                    return self.end(place.channel, index);
                }
                match header.kind {
                    Kind::Request => self.request(place, &header, part),
                    Kind::Message => session.message(place, &header, part),
                    Kind::Leave => session.close_lane(header.number),
                    Kind::Bye => self.end(place.channel, index),
                    _ => {}
                }
            }
        }
    }

    fn hello(&mut self, place: &Place<'_>, header: &Header, body: &[u8]) {
        let mut reader = Reader(body);
        let name = reader.u16().and_then(|len| reader.bytes(usize::from(len)));
        let Some(name) = name.filter(|name| name.len() <= 255) else { return };
        if header.version != frame::VERSION {
            let ours = u32::from(frame::VERSION);
            self.refuse(place, name, header, Refusal::Version, ours);
            return;
        }
        let mut read = || {
            let (node, start) = (NodeId(reader.u8()?), (reader.u64()?, reader.u64()?));
            Some((node, start, reader.bytes(NONCE_BYTES)?, reader.bytes(PROOF_BYTES)?))
        };
        let Some((node, start, nonce, proof)) = read() else { return };
        let worker_nonce: Nonce = nonce.try_into().expect("as many bytes");
        let who = Who { name, node, start };
        let hello = who.introduction(place.shared, &worker_nonce, &[0; NONCE_BYTES]);
        if !place.shared.secret().is_proof(Side::Hello, &hello, proof) {
            self.refuse(place, name, header, Refusal::NotAdmitted, 0);
            return;
        }
        let Shared { fence, admission, .. } = place.shared;
        let (mut home_nonce, until_ns) = ([0; NONCE_BYTES], place.now_ns + STRANGER_NS_MAX);
        if fence.is_out(node, start.1) || admission.standing(node, start.1) == Standing::Stranger {
            self.refuse_known(place, &who, header, Refusal::ShutOut);
            return;
        }
        if self.count(|it| it.is_live_of(node)) >= SESSIONS_PER_NODE_MAX {
            self.refuse_known(place, &who, header, Refusal::TooMany);
            return;
        }
        random(&mut home_nonce);
        let state = State::Entering { until_ns, worker_nonce, home_nonce };
        let Some(index) = self.enter(place, &who, true, state) else { return };
        let introduction = who.introduction(place.shared, &worker_nonce, &home_nonce);
        let proof = place.shared.secret().prove(Side::Home, &introduction);
        let body = [&home_nonce[..], &proof[..]].concat();
        let answer = Header::new(Kind::Challenge, index as u32, 0, header.number, body.len());
        self.say(place.channel, index, answer, &body);
    }

    fn count(&self, is_meant: impl Fn(&Session) -> bool) -> usize {
        self.sessions.iter().flatten().filter(|it| is_meant(it)).count()
    }

    /// Makes a session, in place of an older one if necessary. `None`: the worker cannot be called.
    fn enter(&mut self, place: &Place<'_>, who: &Who<'_>, is_known: bool, state: State) -> Option<usize> {
        let waits = |it: &Session| it.is_known == is_known && !matches!(it.state, State::Live);
        let same = self.sessions.iter().position(|it| it.as_ref().is_some_and(|it| waits(it) && it.name == who.name));
        if let Some(same) = same {
            self.end(place.channel, same);
        } else if is_known {
            let of_node = |it: &&Session| waits(it) && it.node == who.node;
            if self.count(|it| of_node(&it)) >= ENTERING_PER_NODE_MAX {
                let counts = self.sessions.iter().flatten().filter(of_node).map(|it| it.count);
                let oldest = counts.max_by_key(|count| self.sessions_begun.wrapping_sub(*count))?;
                let oldest = self.sessions.iter().position(|it| it.as_ref().is_some_and(|it| it.count == oldest))?;
                self.end(place.channel, oldest);
            }
        }
        let index = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
        let name = who.name.to_vec();
        if !self.peers.contains_key(&name) {
            self.peers.insert(name.clone(), (place.channel.meet(&name).ok()?, 0));
        }
        let (peer, uses) = self.peers.get_mut(&name)?;
        *uses += 1;
        let peer = *peer;
        let (node, (incarnation, birth)) = (who.node, who.start);
        let admission = &place.shared.admission;
        let standing = (admission.changes(), admission.standing(node, birth));
        self.sessions_begun = self.sessions_begun.wrapping_add(1);
        let session = Session {
            state,
            count: self.sessions_begun,
            name,
            peer,
            is_known,
            node,
            incarnation,
            birth,
            standing,
            token: 0,
            lanes: BTreeMap::new(),
            lanes_opened: 0,
            request: Assembly::default(),
        };
        if index == self.sessions.len() {
            self.sessions.push(None);
        }
        self.sessions[index] = Some(session);
        Some(index)
    }

    /// Tells a peer without a valid proof why it is refused, if not too many are being told.
    fn refuse(&mut self, place: &Place<'_>, name: &[u8], header: &Header, why: Refusal, detail: u32) {
        let is_under_way = |tag| self.unsent.count_of(tag) + place.channel.count_sending(|it| it == tag) > 0;
        let mut told = self.sessions.iter().enumerate().filter_map(|(index, it)| Some((index, it.as_ref()?)));
        let is_being_told = told.any(|(index, it)| !it.is_known && it.name == name && is_under_way(it.tag(index)));
        let of_strangers = place.channel.count_sending(|tag| tag & STRANGER != 0);
        if is_being_told || of_strangers.max(self.count(|it| !it.is_known)) >= STRANGERS_MAX {
            return;
        }
        let who = Who { name, node: NodeId(0), start: (0, 0) };
        let state = State::Leaving { until_ns: place.now_ns + STRANGER_NS_MAX };
        if let Some(index) = self.enter(place, &who, false, state) {
            self.say_refused(place.channel, index, header.number, why, detail);
        }
    }

    fn refuse_known(&mut self, place: &Place<'_>, who: &Who<'_>, header: &Header, why: Refusal) {
        let state = State::Leaving { until_ns: place.now_ns + STRANGER_NS_MAX };
        if let Some(index) = self.enter(place, who, true, state) {
            self.say_refused(place.channel, index, header.number, why, 0);
        }
    }

    fn say_refused(&mut self, channel: &Channel, index: usize, number: u64, why: Refusal, detail: u32) {
        let body = [(why as u32).to_le_bytes(), detail.to_le_bytes()].concat();
        self.say(channel, index, Header::new(Kind::Refused, index as u32, 0, number, body.len()), &body);
    }

    fn proof(&mut self, place: &Place<'_>, header: &Header, body: &[u8]) {
        let index = header.session as usize;
        let Some(session) = self.sessions[index].as_mut() else { return };
        let State::Entering { worker_nonce, home_nonce, .. } = session.state else { return };
        let introduction = session.introduction(place.shared, &worker_nonce, &home_nonce);
        let secret = place.shared.secret();
        // The sender of a hello knows the secret, so a wrong proof comes from another sender.
        if body.len() != PROOF_BYTES || !secret.is_proof(Side::Worker, &introduction, body) {
            return;
        }
        session.token = secret.token(&introduction);
        session.state = State::Live;
        let (node, incarnation, name) = (session.node, session.incarnation, session.name.clone());
        // Earlier sessions of the same endpoint, and of earlier starts of its node, have no user any more.
        for other in 0..self.sessions.len() {
            let is_old = self.sessions[other].as_ref().is_some_and(|it| {
                matches!(it.state, State::Live)
                    && it.node == node
                    && (it.incarnation < incarnation || (it.name == name && other != index))
            });
            if is_old {
                self.end(place.channel, other);
            }
        }
        self.say(place.channel, index, Header::new(Kind::Welcome, index as u32, 0, header.number, 0), &[]);
    }

    /// Ends the session of a frame that did not arrive, if that session still exists.
    fn lose(&mut self, channel: &Channel, tag: u64) {
        let index = (tag & !STRANGER) as u32 as usize;
        if self.sessions.get(index).and_then(Option::as_ref).is_some_and(|session| session.tag(index) == tag) {
            self.end(channel, index);
        }
    }

    fn end(&mut self, channel: &Channel, index: usize) {
        let Some(session) = self.sessions.get_mut(index).and_then(Option::take) else { return };
        let tag = session.tag(index);
        for lane in session.lanes.into_values() {
            lane.sender.release(&lane.memory);
        }
        self.packing.forget(tag);
        self.unsent.forget(tag);
        if let Some((peer, uses)) = self.peers.get_mut(&session.name) {
            *uses -= 1;
            if *uses == 0 {
                channel.forget(*peer);
                self.peers.remove(&session.name);
            }
        }
    }

    /// Ends the sessions of nodes that are to be fenced.
    fn shut_out(&mut self, shared: &Shared, channel: &Channel) {
        let mut seen = self.fences_seen;
        shared.fence.work(&mut seen, |node, birth| {
            for index in 0..self.sessions.len() {
                let is_out = |it: &Session| it.is_known && it.node == node && it.birth == birth;
                if self.sessions[index].as_ref().is_some_and(is_out) {
                    self.end(channel, index);
                }
            }
        });
        self.fences_seen = seen;
    }

    /// Ends the sessions that are not live and whose time is over.
    fn show_out(&mut self, channel: &Channel, now_ns: u64) {
        for index in 0..self.sessions.len() {
            let is_over = self.sessions[index].as_ref().is_some_and(|session| match session.state {
                State::Entering { until_ns, .. } | State::Leaving { until_ns } => now_ns > until_ns,
                State::Live => false,
            });
            if is_over {
                self.end(channel, index);
            }
        }
    }

    /// Drops regions that have been removed or registered again: their memory would be kept until the next instruction there.
    fn let_go_stale(&mut self, shared: &Shared) {
        for (seen, region) in self.seen.iter_mut().zip(0..=u8::MAX) {
            seen.take_if(|(key, _)| shared.key(RegionId(region)) != Some(*key));
        }
    }

    /// Puts a body into the frames of this turn. A worker that cannot be reached is gone.
    fn say(&mut self, channel: &Channel, index: usize, header: Header, body: &[u8]) {
        for (head, part) in frame::split(header, body) {
            // Sending may have ended it.
            let Some(session) = self.sessions[index].as_ref() else { return };
            let (peer, tag) = (session.peer, session.tag(index));
            for full in self.packing.add(peer, tag, &head, part).into_iter().flatten() {
                self.send(channel, full);
            }
        }
    }

    fn send_packed(&mut self, channel: &Channel) {
        while let Some(filled) = self.packing.take() {
            self.send(channel, filled);
        }
    }

    /// Sends a frame, or keeps it for later.
    fn send(&mut self, channel: &Channel, filled: Filled) {
        let tag = filled.tag;
        let kept = self.unsent.count_of(tag);
        let sent = if kept > 0 { Err((channel::Refusal::Again, filled)) } else { self.packing.send(channel, filled) };
        match sent {
            Ok(()) => {}
            Err((channel::Refusal::Again, filled))
                if kept < UNSENT_PER_SESSION_MAX && self.unsent.len() < UNSENT_MAX =>
            {
                self.unsent.push(filled, 0);
            }
            Err(_) => self.lose(channel, tag),
        }
    }

    fn send_kept(&mut self, channel: &Channel) {
        if self.unsent.is_empty() {
            return;
        }
        let Self { packing, unsent, .. } = self;
        for tag in unsent.send_all(0, |filled| packing.send(channel, filled)) {
            self.lose(channel, tag);
        }
    }

    fn request(&mut self, place: &Place<'_>, header: &Header, part: &[u8]) {
        let index = header.session as usize;
        let Some(session) = self.sessions[index].as_mut() else { return };
        let mut assembly = std::mem::take(&mut session.request);
        if let Some(body) = assembly.add(header, part) {
            let mut answer = std::mem::take(&mut self.answer);
            answer.clear();
            if self.carry_out(place, index, body, &mut answer).is_some() {
                let token = self.sessions[index].as_ref().map_or(0, |session| session.token);
                let head = Header::new(Kind::Answer, header.session, token, header.number, answer.len());
                self.say(place.channel, index, head, &answer);
            }
            self.answer = answer;
        }
        if let Some(session) = self.sessions[index].as_mut() {
            session.request = assembly;
        }
    }

    /// None: rubbish, which gets no answer.
    fn carry_out(&mut self, place: &Place<'_>, index: usize, body: &[u8], answer: &mut Vec<u8>) -> Option<()> {
        let mut reader = Reader(body);
        let tag = Tag::of(reader.u32()?)?;
        reader.u32()?;
        let standing = self.sessions[index].as_mut()?.standing(place.shared);
        if tag == Tag::Ops {
            return self.operate(place, standing, reader, answer);
        }
        let (a, b) = (reader.u32()?, reader.u32()?);
        let session = self.sessions[index].as_mut()?;
        match tag {
            Tag::Ops => {}
            Tag::Learn => put_result(answer, learn(place, standing, RegionId(a as u8)).as_deref()),
            Tag::Lane => put_result(answer, session.open_lane(place, a as u16, b as u16).as_deref()),
            Tag::Taken => put_result(answer, session.taken(place, u64::from(a)).as_deref()),
            Tag::Closed => {
                place.shared.closings.note(Address { node: session.node, port: a as u16 });
                frame::put_done(answer, &[]);
            }
        }
        Some(())
    }

    fn operate(
        &mut self,
        place: &Place<'_>,
        standing: Standing,
        mut reader: Reader<'_>,
        answer: &mut Vec<u8>,
    ) -> Option<()> {
        let mut room = frame::TOTAL_MAX;
        while !reader.0.is_empty() {
            let op = WireOp::take(&mut reader)?;
            room = room.checked_sub(op.answer_bytes_max())?;
            let bytes = if op.kind == OpKind::Write { reader.padded(op.len as usize)? } else { &[] };
            let node = place.shared.node();
            let start = answer.len();
            let allowed = check_member(place, standing);
            let done = allowed.and_then(|()| self.memory(place, &op)).and_then(|memory| match op.kind {
                OpKind::Flush if op.a == frame::NIC_KEY => open_to_nic(place, &op, memory, answer),
                _ => execute(&op, node, memory, bytes, answer),
            });
            if let Err(error) = done {
                answer.truncate(start);
                frame::put_error(answer, &error);
            }
        }
        Some(())
    }

    /// The memory that an instruction's key opens now.
    fn memory(&mut self, place: &Place<'_>, op: &WireOp) -> Result<&Arc<RegionMemory>, FabricError> {
        let (node, region) = (place.shared.node(), op.region);
        let now = place.shared.key(region);
        if now != Some(op.key) {
            return Err(FabricError::StaleKey { node, region });
        }
        let seen = &mut self.seen[usize::from(region.0)];
        if seen.as_ref().map(|(key, _)| *key) != now {
            *seen = place.shared.registered(region).filter(|(key, _)| Some(*key) == now);
        }
        seen.as_ref().map(|(_, memory)| memory).ok_or(FabricError::StaleKey { node, region })
    }
}

/// Regions are for members.
fn check_member(place: &Place<'_>, standing: Standing) -> Result<(), FabricError> {
    let unavailable = FabricError::NodeUnavailable { node: place.shared.node() };
    if standing == Standing::Member { Ok(()) } else { Err(unavailable) }
}

fn put_result(answer: &mut Vec<u8>, result: Result<&[u8], &FabricError>) {
    match result {
        Ok(bytes) => frame::put_done(answer, bytes),
        Err(error) => frame::put_error(answer, error),
    }
}

/// Key and bounds are good: how the NIC gets there now.
fn open_to_nic(
    place: &Place<'_>,
    op: &WireOp,
    memory: &Arc<RegionMemory>,
    answer: &mut Vec<u8>,
) -> Result<(), FabricError> {
    memory.check(op.offset, u64::from(op.len))?;
    match place.shared.open_to_nics(op.region, op.key, memory) {
        Some((key, base)) => frame::put_done(answer, &[key.to_le_bytes(), base.to_le_bytes()].concat()),
        None => frame::put_done(answer, &[]),
    }
    Ok(())
}

/// Does one instruction with the CPU.
fn execute(
    op: &WireOp,
    node: NodeId,
    memory: &RegionMemory,
    bytes: &[u8],
    answer: &mut Vec<u8>,
) -> Result<(), FabricError> {
    match op.kind {
        OpKind::Read => {
            memory.check(op.offset, u64::from(op.len))?;
            memory.copy_out(op.offset, frame::put_room(answer, op.len as usize))
        }
        OpKind::Write => {
            memory.copy_in(op.offset, bytes)?;
            frame::put_done(answer, &[]);
            Ok(())
        }
        OpKind::ReadObject => {
            // The length is known after the read: at most the length asked for.
            let start = answer.len();
            let room = frame::put_room(answer, HEADER_BYTES + op.len as usize);
            let (head, payload) = room.split_at_mut(HEADER_BYTES);
            let header = memory.read_object(op.offset, payload)?;
            put_header(&header, head);
            let len = HEADER_BYTES + header.meta.payload_len();
            answer[start + 4..start + 8].copy_from_slice(&(len as u32).to_le_bytes());
            answer.truncate(start + 8 + len.next_multiple_of(8));
            Ok(())
        }
        OpKind::Flush => {
            memory.flush(op.offset, u64::from(op.len))?;
            frame::put_done(answer, &[]);
            Ok(())
        }
        _ => {
            let word = memory.word(op.offset)?;
            let at = FarPtr::new(node, op.region, op.offset);
            let old = Op::word(op.kind, at, op.a, op.b).execute_word(word);
            frame::put_done(answer, &old.to_le_bytes());
            Ok(())
        }
    }
}

/// A region's key and length, and whether the NIC reaches it.
fn learn(place: &Place<'_>, standing: Standing, region: RegionId) -> Result<Vec<u8>, FabricError> {
    check_member(place, standing)?;
    let node = place.shared.node();
    let (key, memory) = place.shared.registered(region).ok_or(FabricError::NoSuchRegion { node, region })?;
    let nic = match place.shared.open_to_nics(region, key, &memory) {
        None => 0,
        Some(_) if place.shared.nics_write => frame::NIC_READS | frame::NIC_WRITES,
        Some(_) => frame::NIC_READS,
    };
    let words = [key, memory.len(), nic];
    Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
}

impl Session {
    /// Of its frames.
    fn tag(&self, index: usize) -> u64 {
        u64::from(self.count) << 32 | index as u64 | if self.is_known { 0 } else { STRANGER }
    }

    /// What it may do now.
    fn standing(&mut self, shared: &Shared) -> Standing {
        let changes = shared.admission.changes();
        if self.standing.0 != changes {
            self.standing = (changes, shared.admission.standing(self.node, self.birth));
        }
        self.standing.1
    }

    fn is_live_of(&self, node: NodeId) -> bool {
        matches!(self.state, State::Live) && self.node == node
    }

    fn introduction<'a>(
        &'a self,
        shared: &'a Shared,
        worker_nonce: &'a Nonce,
        home_nonce: &'a Nonce,
    ) -> Introduction<'a> {
        let who = Who { name: &self.name, node: self.node, start: (self.incarnation, self.birth) };
        who.introduction(shared, worker_nonce, home_nonce)
    }

    /// A lane from the worker's port to one of this node's: `lane | bytes put so far | taken so far`.
    fn open_lane(&mut self, place: &Place<'_>, to: u16, from: u16) -> Result<Vec<u8>, FabricError> {
        let to = Address { node: place.shared.node(), port: to };
        // Lanes into inboxes that have ended would keep their memory, and their places among the lanes.
        self.lanes.retain(|_, lane| lane.sender.taken(&lane.memory).is_some());
        if self.lanes.len() >= LANES_PER_SESSION_MAX
            || self.lanes_opened > u64::from(u32::MAX)
            || to.port == super::AGENT_PORT
        {
            return Err(FabricError::NoSuchPort { to });
        }
        let (memory, sender) = place.near.own_lane(to)?;
        // An inbox is closed before its port's senders are listed: either this one is among them, or the end is seen here.
        place.shared.note_sender(to.port, self.node);
        let Some(taken) = sender.taken(&memory) else { return Err(FabricError::NoSuchPort { to }) };
        let (index, put) = (self.lanes_opened, sender.position());
        self.lanes_opened += 1;
        let words = [index, put, taken];
        let from = Address { node: self.node, port: from };
        self.lanes.insert(index, Lane { from, to, memory, sender, message: Assembly::default() });
        Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    /// How much the owner of the inbox has taken out of a lane.
    fn taken(&mut self, place: &Place<'_>, index: u64) -> Result<Vec<u8>, FabricError> {
        let to = Address { node: place.shared.node(), port: 0 };
        let lane = self.lanes.get(&index).ok_or(FabricError::NoSuchPort { to })?;
        let taken = lane.sender.taken(&lane.memory);
        if taken.is_none() {
            self.close_lane(index);
        }
        taken.map(|taken| taken.to_le_bytes().to_vec()).ok_or(FabricError::NoSuchPort { to })
    }

    fn close_lane(&mut self, index: u64) {
        if let Some(lane) = self.lanes.remove(&index) {
            lane.sender.release(&lane.memory);
        }
    }

    fn message(&mut self, place: &Place<'_>, header: &Header, part: &[u8]) {
        let index = header.number;
        let Some(lane) = self.lanes.get_mut(&index) else { return };
        if header.total as usize > MESSAGE_BYTES_MAX {
            return self.close_lane(index);
        }
        let Some(message) = lane.message.add(header, part) else { return };
        match lane.sender.put(&lane.memory, lane.from, lane.to, message) {
            Ok(()) => place.shared.near.ring(),
            // Its inbox is closed, and the sender learns of it. It cannot be full: senders count.
            Err(_) => self.close_lane(index),
        }
    }
}

const _: () = assert!(size_of::<Proof>() == PROOF_BYTES);
