//! Batches of instructions: from their posting to the look for their end.

use super::{
    ANSWERING_MAX, ANSWERS_MAX, BULK_PIECE, BulkPiece, Caller, FLUSH_NS_MAX, Flight, Held, LEFT_TO_OTHERS_MAX, Look,
    Ops, Piece, READ_PIECE, Region, TURNS_PER_YIELD, Then, WRITE_PIECE, What, tag_of,
};
use crate::address::NodeId;
use crate::batch::{Content, OpKind};
use crate::error::FabricError;
use crate::object::PAYLOAD_LEN_MAX;
use crate::provider::libfabric::channel::BulkTarget;
use crate::provider::libfabric::frame::{self, BODY_MAX, Kind, Tag, WireOp};
use crate::provider::shm::Shm;
use std::collections::VecDeque;
use std::sync::Arc;

/// A request in the making.
pub(super) struct Plan {
    node: NodeId,
    pub(super) body: Vec<u8>,
    pub(super) pieces: Vec<Piece>,
    answers: usize,
}

impl Caller {
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
        for Plan { node, body, pieces, answers: answer_bytes } in plans {
            let held = Held { body, ops: Ops { flight, pieces, answer_bytes } };
            if !self.state.held.contains_key(&node) && self.has_room(node, answer_bytes) {
                self.ask_ops(node, held);
            } else {
                self.state.held.entry(node).or_default().push_back(held);
            }
        }
        self.fresh = Some(flight);
        Some(flight)
    }

    /// May a node owe this many more bytes? One request is always let through.
    fn has_room(&mut self, node: NodeId, answer_bytes: usize) -> bool {
        let answering = self.known(node).answering;
        answering == 0 || answering + answer_bytes <= ANSWERING_MAX
    }

    fn ask_ops(&mut self, node: NodeId, held: Held) {
        let until_ns = self.shared.clock.now_ns() + self.shared.config.request_timeout_ns;
        self.known(node).answering += held.ops.answer_bytes;
        self.ask(node, Kind::Request, &held.body, What::Ops(held.ops), until_ns);
    }

    /// Sends the requests that wait, as far as their nodes owe little enough.
    pub(super) fn ask_held(&mut self) {
        if self.state.held.is_empty() {
            return;
        }
        for node in self.state.held.keys().copied().collect::<Vec<_>>() {
            // A session that breaks takes its list along.
            while let Some(next) = self.state.held.get(&node).and_then(VecDeque::front) {
                let answer_bytes = next.ops.answer_bytes;
                if !self.has_room(node, answer_bytes) {
                    break;
                }
                match self.state.held.get_mut(&node).and_then(VecDeque::pop_front) {
                    Some(held) => self.ask_ops(node, held),
                    None => break,
                }
            }
            self.state.held.retain(|_, list| !list.is_empty());
        }
        self.hand_over();
    }

    /// Decides how an instruction travels.
    pub(super) fn plan(
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
        let is_long = len >= self.shared.config.bulk_bytes_min || (op.is_of_immutable() && len > 0);
        let is_bulk = is_long && by_nic;
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
    pub(super) fn take_back(&mut self, flight: u64) -> Option<Box<Content>> {
        let found = self.state.flights.get_mut(&flight)?;
        if found.left > 0 {
            let instead = found.instead.take()?;
            found.is_abandoned = true;
            self.poller.take_if(|poller| *poller == flight);
            return Some(instead);
        }
        self.poller.take_if(|poller| *poller == flight);
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
    pub(super) fn flush_to(&mut self, is_meant: impl Fn(NodeId) -> bool, max_ns: u64) {
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
    pub(super) fn is_leaving(&self, is_meant: impl Fn(NodeId) -> bool) -> bool {
        let (unsent, channel) = (&self.state.unsent, self.channel());
        let is_under_way = |tag| unsent.count_of(tag) > 0 || channel.count_sending(|it| it == tag) > 0;
        let live = self.state.nodes.iter().filter_map(|(node, known)| Some((*node, known.session.as_ref()?)));
        (!unsent.is_empty() || channel.is_sending())
            && live
                .filter(|(node, session)| is_meant(*node) && !session.is_broken)
                .any(|(node, session)| is_under_way(tag_of(node, session.epoch)))
    }
}

pub(super) fn piece(op: usize, start: usize, len: usize, then: Then) -> Piece {
    Piece { op, start, len, then }
}

/// Puts an instruction into the node's last request that has room.
pub(super) fn add(plans: &mut Vec<Plan>, node: NodeId, wire: &WireOp, bytes: &[u8], piece: Piece) {
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
