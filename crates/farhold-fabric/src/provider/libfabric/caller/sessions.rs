//! Sessions with home agents: made, made anew, and asked.

use super::{
    AGAIN_CONNECT_NS_MAX, Asked, BulkPiece, Caller, Known, LOST_CONNECT_NS_MAX, LOST_RETRY_AFTER_NS, RETRY_AFTER_NS,
    Region, Session, What, tag_of,
};
use crate::address::{Address, FarPtr, NodeId, RegionId, RegionKey};
use crate::error::FabricError;
use crate::provider::libfabric::frame::{self, Assembly, Header, Kind, Reader, Tag};
use crate::provider::libfabric::secret::{Introduction, NONCE_BYTES, Nonce, Side, random};
use crate::provider::libfabric::{Rendezvous, rendezvous};
use crate::provider::shm::Starts;
use std::sync::atomic::Ordering;

impl Caller {
    /// Makes a live session with the node, unless there is one.
    pub(super) fn session(&mut self, node: NodeId) -> Result<(), FabricError> {
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
            Ok(()) => {
                (known.was_there, known.is_lost) = (true, false);
                self.shared.show_live(node);
            }
            Err(error) if after_ns - before_ns > RETRY_AFTER_NS / 10 => {
                known.is_lost = known.was_there;
                let pause_ns = if known.is_lost { LOST_RETRY_AFTER_NS } else { RETRY_AFTER_NS };
                known.refusal = Some((after_ns + pause_ns, error.clone()));
            }
            Err(_) => {}
        }
        met
    }

    pub(super) fn known(&mut self, node: NodeId) -> &mut Known {
        self.state.nodes.entry(node).or_default()
    }

    #[cold]
    pub(super) fn meet(&mut self, node: NodeId, max_ns: u64) -> Result<(), FabricError> {
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
    pub(super) fn leave(&mut self, node: NodeId) {
        let Some(session) = self.known(node).session.take() else { return };
        self.state.break_session(node, session.epoch);
        self.known(node).lanes.clear();
        let is_used = |piece: &BulkPiece| piece.node == node;
        // The provider may still have transfers to that address.
        if !self.state.bulk_active.values().any(is_used) {
            self.channel().forget(session.peer);
        }
    }

    /// Proves to each side that the other knows the secret: see [`secret`](crate::provider::libfabric::secret).
    pub(super) fn introduce(&mut self, node: NodeId, home_name: &[u8], timeout_ns: u64) -> Result<(), FabricError> {
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
    pub(super) fn exchange(
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

    /// Sends a request or a step of an introduction; returns its number.
    pub(super) fn ask(&mut self, node: NodeId, kind: Kind, body: &[u8], what: What, until_ns: u64) -> u64 {
        let number = self.next_number();
        let since_ns = self.shared.clock.now_ns();
        let epoch = self.known(node).epoch;
        self.state.asked.insert(number, Asked { node, epoch, since_ns, until_ns, what, answer: Assembly::default() });
        self.transmit(node, kind, number, body);
        number
    }

    /// Puts a body into the frame that is being filled for its node. [`Self::hand_over`] sends it.
    pub(super) fn transmit(&mut self, node: NodeId, kind: Kind, number: u64, body: &[u8]) {
        let Some(session) = self.state.nodes.get(&node).and_then(|known| known.session.as_ref()) else { return };
        let (peer, epoch) = (session.peer, session.epoch);
        let header = Header::new(kind, session.index, session.token, number, body.len());
        let Self { channel, state, shared, .. } = self;
        let channel = channel.as_ref().expect("there until dropped");
        let was_broken = !state.is_live(node, epoch);
        for (head, part) in frame::split(header, body) {
            if !was_broken && !state.is_live(node, epoch) {
                return;
            }
            for full in state.packing.add(peer, tag_of(node, epoch), &head, part).into_iter().flatten() {
                state.send(channel, shared, full);
            }
        }
    }

    /// Blocks until a call's answer is there, or its time is over.
    pub(super) fn wait_for(&mut self, number: u64, node: NodeId) -> Result<(Kind, Vec<u8>), FabricError> {
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
    pub(super) fn call(
        &mut self,
        to: Address,
        tag: Tag,
        a: u32,
        b: u32,
        timeout_ns: u64,
    ) -> Result<Vec<u8>, FabricError> {
        let until_ns = self.shared.clock.now_ns() + timeout_ns;
        let number = self.ask(to.node, Kind::Request, &frame::request(tag, a, b), What::Call(None), until_ns);
        let (_, body) = self.wait_for(number, to.node)?;
        let at = FarPtr::new(to.node, RegionId(a as u8), 0);
        let answer = frame::take_answer(&mut Reader(&body), at, to);
        answer.unwrap_or(Err(FabricError::NodeUnavailable { node: to.node })).map(<[u8]>::to_vec)
    }

    /// What is known of a region; fetched at first use.
    pub(super) fn region(&mut self, node: NodeId, region: RegionId) -> Result<Region, FabricError> {
        self.session(node)?;
        match self.known(node).regions.get(&region) {
            Some(known) => Ok(*known),
            None => self.learn(node, region),
        }
    }

    #[cold]
    pub(super) fn learn(&mut self, node: NodeId, region: RegionId) -> Result<Region, FabricError> {
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

    /// Fetches what is known of a region again.
    pub fn refresh(&mut self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        self.session(node)?;
        let learned = self.learn(node, region);
        if let Err(FabricError::NoSuchRegion { .. }) = learned {
            self.known(node).regions.remove(&region);
        }
        learned.map(|region| RegionKey(region.key))
    }
}

/// The error that a REFUSED reports.
pub(super) fn refusal(node: NodeId, body: &[u8]) -> FabricError {
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
