//! What events change: answers, ends of bulk transfers, time that has passed.

use super::instructions::{Plan, add, piece};
use super::{
    Asked, BULK_PER_NODE_MAX, BulkPiece, Held, LOOK_AFTER_NS, Ops, Piece, State, Then, UNHEARD_NS_MAX, What, of_tag,
    tag_of,
};
use crate::address::{Address, NodeId};
use crate::batch::{Content, OpKind, State as OpState, header_of};
use crate::error::FabricError;
use crate::object::HEADER_BYTES;
use crate::provider::libfabric::channel::{self, BulkTarget, Channel, Event};
use crate::provider::libfabric::frame::{self, Assembly, Header, Kind, Reader, WireOp};
use crate::provider::libfabric::packing::Filled;
use crate::provider::libfabric::{Rendezvous, Shared};
use std::collections::VecDeque;

impl State {
    pub(super) fn take(&mut self, event: &Event<'_>) {
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

    pub(super) fn answer(&mut self, header: &Header, part: &[u8]) {
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
            What::Ops(_) if header.offset == 0 && part.len() == header.total as usize => {
                let Some(Asked { node, what: What::Ops(ops), .. }) = self.asked.remove(&header.number) else {
                    return;
                };
                self.end_ops(node, ops, Some(part));
            }
            What::Ops(_) => {
                if asked.answer.add(header, part).is_none() {
                    return;
                }
                let Some(Asked { node, what: What::Ops(ops), mut answer, .. }) = self.asked.remove(&header.number)
                else {
                    return;
                };
                let whole = answer.take();
                self.end_ops(node, ops, Some(&whole));
            }
        }
    }

    /// Is this session of a node neither broken nor replaced?
    pub(super) fn is_live(&self, node: NodeId, epoch: u32) -> bool {
        let session = self.nodes.get(&node).and_then(|known| known.session.as_ref());
        session.is_some_and(|session| session.epoch == epoch && !session.is_broken)
    }

    /// A request has its answer, or will have none.
    fn end_ops(&mut self, node: NodeId, ops: Ops, answer: Option<&[u8]>) {
        if let Some(known) = self.nodes.get_mut(&node) {
            known.answering -= ops.answer_bytes;
        }
        self.settle(node, ops.flight, ops.pieces, answer);
    }

    /// Gives a flight the answers to some of its pieces, or the news that there will be none.
    pub(super) fn settle(&mut self, node: NodeId, flight: u64, pieces: Vec<Piece>, answer: Option<&[u8]>) {
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
                    Some((key, base)) => self.bulk_waiting.entry(node).or_default().extend(transfers.map(|mut it| {
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
    pub(super) fn land(&mut self, flight: u64, parts: usize) {
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
    pub(super) fn break_session(&mut self, node: NodeId, epoch: u32) {
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
        if self.nodes.get(&node).is_some_and(|known| known.epoch == epoch) {
            for Held { ops, .. } in self.held.remove(&node).into_iter().flatten() {
                self.settle(node, ops.flight, ops.pieces, None);
            }
        }
        self.drop_waiting(|piece| piece.node == node && piece.epoch == epoch);
    }

    /// Transfers that have not begun will not.
    fn drop_waiting(&mut self, is_meant: impl Fn(&BulkPiece) -> bool) {
        let mut dropped = Vec::new();
        for waiting in self.bulk_waiting.values_mut() {
            let (over, kept): (VecDeque<_>, _) = std::mem::take(waiting).into_iter().partition(&is_meant);
            *waiting = kept;
            dropped.extend(over);
        }
        self.bulk_waiting.retain(|_, waiting| !waiting.is_empty());
        for piece in dropped {
            if let Some(found) = self.flights.get_mut(&piece.flight) {
                fail(&mut found.content, piece.op, FabricError::NodeUnavailable { node: piece.node });
            }
            self.land(piece.flight, 1);
        }
    }

    /// A request will get no answer.
    pub(super) fn give_up(&mut self, number: u64) {
        let Some(asked) = self.asked.get_mut(&number) else { return };
        let node = asked.node;
        if let What::Call(answer) = &mut asked.what {
            answer.get_or_insert(Err(FabricError::NodeUnavailable { node }));
        } else if let Some(Asked { what: What::Ops(ops), .. }) = self.asked.remove(&number) {
            self.end_ops(node, ops, None);
        }
    }

    /// Sends a frame, or keeps it for later.
    pub(super) fn send(&mut self, channel: &Channel, shared: &Shared, filled: Filled) {
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
    pub(super) fn lose(&mut self, tag: u64) {
        let (node, epoch) = of_tag(tag);
        self.break_session(node, epoch);
    }

    pub(super) fn send_unsent(&mut self, channel: &Channel, now_ns: u64) {
        let Self { packing, unsent, .. } = self;
        for tag in unsent.send_all(now_ns, |filled| packing.send(channel, filled)) {
            self.lose(tag);
        }
    }

    pub(super) fn start_bulk(&mut self, channel: &Channel, now_ns: u64) {
        for node in self.bulk_waiting.keys().copied().collect::<Vec<_>>() {
            self.start_bulk_with(channel, node, now_ns);
        }
        self.bulk_waiting.retain(|_, waiting| !waiting.is_empty());
    }

    fn start_bulk_with(&mut self, channel: &Channel, node: NodeId, now_ns: u64) {
        let new = self.bulk_waiting.get_mut(&node).into_iter().flat_map(|it| it.iter_mut().rev());
        new.take_while(|it| it.since_ns == 0).for_each(|it| it.since_ns = now_ns);
        let mut active = self.bulk_active.values().filter(|it| it.node == node).count();
        while active < BULK_PER_NODE_MAX
            && let Some(mut piece) = self.bulk_waiting.get_mut(&node).and_then(VecDeque::pop_front)
        {
            let session = self.nodes.get(&node).and_then(|known| known.session.as_ref());
            let Some(peer) = session.filter(|it| it.epoch == piece.epoch && !it.is_broken).map(|it| it.peer) else {
                let epoch = piece.epoch;
                self.bulk_waiting.entry(node).or_default().push_front(piece);
                self.break_session(node, epoch);
                continue;
            };
            let waited_since_ns = std::mem::replace(&mut piece.since_ns, now_ns);
            let registration = piece.registration.as_deref();
            // SAFETY: the flight keeps the buffer until its transfers are over, and no other code touches these bytes: other
            // answers go to other bytes, by raw copies (`Buffer::put`), and the batch's owner has none of it before.
            let posted = unsafe {
                channel.bulk(piece.is_write, piece.local, piece.len as u64, registration, peer, piece.target)
            };
            match posted {
                Ok(slot) => {
                    self.bulk_active.insert(slot, piece);
                    active += 1;
                }
                Err(channel::Refusal::Again) => {
                    piece.since_ns = waited_since_ns;
                    return self.bulk_waiting.entry(node).or_default().push_front(piece);
                }
                Err(channel::Refusal::Broken) => self.classify(&piece),
            }
        }
    }

    pub(super) fn end_bulk(&mut self, slot: u32, is_done: bool) {
        let Some(piece) = self.bulk_active.remove(&slot) else { return };
        // The deadline of all waiting transfers counts from here.
        self.bulk_ended_ns = self.last_look_ns;
        if is_done { self.land(piece.flight, 1) } else { self.classify(&piece) }
    }

    /// The NIC failed: the home agent knows whether the key is stale.
    pub(super) fn classify(&mut self, bulk: &BulkPiece) {
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
        let what = What::Ops(Ops { flight: bulk.flight, pieces, answer_bytes: 0 });
        let (node, epoch, answer) = (bulk.node, bulk.epoch, Assembly::default());
        self.asked.insert(number, Asked { node, epoch, since_ns, until_ns, what, answer });
    }

    /// Gives up what has waited too long.
    pub(super) fn expire(&mut self, shared: &Shared) {
        let has_bulk = !self.bulk_active.is_empty() || !self.bulk_waiting.is_empty();
        if self.asked.is_empty() && !has_bulk && self.unsent.is_empty() {
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
        for piece in self.bulk_active.values_mut().chain(self.bulk_waiting.values_mut().flatten()) {
            piece.since_ns += unheard_ns(piece.since_ns);
        }
        self.bulk_ended_ns += unheard_ns(self.bulk_ended_ns);
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
        // Gives up transfers that wait behind transfers which do not end: the provider may keep all slots for ever.
        let begun_ns = self.bulk_ended_ns;
        self.drop_waiting(|it| it.since_ns != 0 && now_ns > it.since_ns.max(begun_ns) + timeout_ns);
    }

    /// Transfers that may never end: their owners get a copy of the batch, and the provider keeps the memory.
    pub(super) fn strand(&mut self, node: NodeId, epoch: u32) {
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

/// The NIC's key and base, if they are in the answer.
pub(super) fn nic_of(answer: &[u8]) -> Option<(u64, u64)> {
    let mut reader = Reader(answer);
    Some((reader.u64()?, reader.u64()?))
}

/// Takes a piece's answer into the batch.
pub(super) fn accept(content: &mut Content, piece: &Piece, bytes: &[u8]) -> Result<(), FabricError> {
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
pub(super) fn fail(content: &mut Content, index: usize, error: FabricError) {
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
