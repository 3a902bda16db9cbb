//! How a worker enters: its hello is answered by a challenge, its proof by a welcome, or it is refused.
//!
//! The agent drops a wrong proof. A hello without a valid proof gets at most a refusal. Some refusals are kept until they are
//! surely sent; further such hellos are dropped. The sessions of each node are bounded: those that have not entered yet, of
//! which the oldest makes room for a new one, and the live ones.

use super::session::{STRANGER, STRANGER_NS_MAX, Session, State};
use super::{Home, Place};
use crate::address::NodeId;
use crate::provider::libfabric::Shared;
use crate::provider::libfabric::admission::Standing;
use crate::provider::libfabric::channel::Channel;
use crate::provider::libfabric::frame::{self, Assembly, Header, Kind, Reader, Refusal};
use crate::provider::libfabric::secret::{Introduction, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, Side, random};
use std::collections::BTreeMap;

/// Most live sessions of a node: it has at most 255 workers.
pub(in crate::provider::libfabric) const SESSIONS_PER_NODE_MAX: usize = 256;
/// Most sessions of a node that are not live.
const ENTERING_PER_NODE_MAX: usize = 64;
/// Most refusals to peers without a valid proof: within `STRANGER_NS_MAX`, and at one time with the provider. A peer that takes
/// nothing keeps the latter from being sent for ever, and as many frames with them: an eighth of all.
const STRANGERS_MAX: usize = 16;

const _: () = assert!(size_of::<Proof>() == PROOF_BYTES);

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

impl Session {
    fn introduction<'a>(
        &'a self,
        shared: &'a Shared,
        worker_nonce: &'a Nonce,
        home_nonce: &'a Nonce,
    ) -> Introduction<'a> {
        let who = Who { name: &self.name, node: self.node, start: (self.incarnation, self.birth) };
        who.introduction(shared, worker_nonce, home_nonce)
    }
}

impl Home {
    pub(super) fn hello(&mut self, place: &Place<'_>, header: &Header, body: &[u8]) {
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
        if self.count(|it| it.is_live_of(node) && it.name != who.name) >= SESSIONS_PER_NODE_MAX {
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

    pub(super) fn proof(&mut self, place: &Place<'_>, header: &Header, body: &[u8]) {
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
        place.shared.show_live(node);
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
}
