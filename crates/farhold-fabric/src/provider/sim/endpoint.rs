//! One endpoint of a simulated node.

use super::member::Member;
use super::model::Hop;
use super::state::{Event, OnTheWay, Region, State, lane_bytes};
use crate::address::{Address, NodeId, RegionId, RegionKey};
use crate::batch::{Batch, Op, OpKind};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::memory::RegionMemory;
use crate::object;
use crate::provider::{Inbox, LANE_BYTES_MAX, LANES, MESSAGE_BYTES_MAX, Posted, Provider, Ticket};
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll};

/// One endpoint of a simulated node.
pub(super) struct SimEndpoint {
    member: Arc<Member>,
    address: Address,
    handle: Handle,
    /// Keys as first learned, with the lengths of the regions. Few: looked through.
    known: RefCell<Vec<Known>>,
}

/// A region, its key and its length.
type Known = ((NodeId, RegionId), (u64, u64));

impl SimEndpoint {
    pub fn new(member: Arc<Member>, address: Address, handle: &Handle) -> Self {
        Self { member, address, handle: handle.clone(), known: RefCell::default() }
    }

    /// The initiator's side of the checks. Returns the key to present.
    fn check(&self, state: &State, op: &Op) -> Result<u64, FabricError> {
        let (node, region) = (op.at.node(), op.at.region());
        let mut known = self.known.borrow_mut();
        let learned = known.iter().find(|(place, _)| *place == (node, region)).map(|(_, found)| *found);
        let (key, len) = if let Some(found) = learned {
            found
        } else {
            let found = directory(state, node, region)?;
            known.push(((node, region), found));
            found
        };
        let (bytes, align) = match op.kind {
            OpKind::Read | OpKind::Write | OpKind::Flush => (u64::from(op.len), 1),
            OpKind::ReadObject => (object::PAYLOAD, object::ALIGN),
            _ => (8, 8),
        };
        if bytes > len || op.at.offset() > len - bytes {
            return Err(FabricError::OutOfBounds { at: op.at, bytes, region_bytes: len });
        }
        if !op.at.offset().is_multiple_of(align) {
            return Err(FabricError::Misaligned { at: op.at, align });
        }
        Ok(key)
    }
}

/// Key and length of a region.
fn directory(state: &State, node: NodeId, region: RegionId) -> Result<(u64, u64), FabricError> {
    let entry = state.node(node).ok_or(FabricError::NodeUnavailable { node })?;
    match entry.region(region) {
        Some(Region { memory: Some(memory), key, is_open: true, .. }) => Ok((*key, memory.len())),
        _ => Err(FabricError::NoSuchRegion { node, region }),
    }
}

impl Provider for SimEndpoint {
    fn address(&self) -> Address {
        self.address
    }

    fn post(&self, batch: &mut Batch) -> Posted {
        let Some(mut content) = batch.content.take() else { return Posted::Done };
        let mut guard = self.member.world.lock();
        let state = &mut *guard;
        state.now_ns = self.handle.true_now_ns();
        let (node, incarnation) = (self.member.node, self.member.incarnation);
        if !state.is_member(node, incarnation) {
            batch.content = Some(Box::new(content.all_failed(&FabricError::NodeUnavailable { node })));
            return Posted::Done;
        }
        let mut keys = state.take_keys(content.ops.len());
        let mut started = 0;
        for (index, presented) in keys.iter_mut().enumerate() {
            match self.check(state, &content.ops[index]) {
                Ok(key) => {
                    *presented = key;
                    started += 1;
                }
                Err(error) => content.fail(index, error),
            }
        }
        if started == 0 {
            batch.content = Some(content);
            return Posted::Done;
        }
        let flight = state.start(self.address, incarnation, content, keys, started);
        state.see_to_engine(&self.handle);
        Posted::UnderWay(Ticket(flight))
    }

    fn poll(&self, ticket: Ticket, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()> {
        let mut guard = self.member.world.lock();
        let state = &mut *guard;
        let node = self.member.node;
        let alive = state.is_member(node, self.member.incarnation);
        let flight = state.flights.get_mut(ticket.0).expect("a flight lasts until it is polled or abandoned");
        let done = flight.done;
        batch.content = match (alive, done) {
            (true, true) => state.end(ticket.0),
            (true, false) => {
                flight.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            // The initiator is dead and learns nothing; what it posted goes on without it.
            (false, _) => {
                let failed = flight.content.all_failed(&FabricError::NodeUnavailable { node });
                flight.abandoned = true;
                if done {
                    state.end(ticket.0);
                }
                Some(Box::new(failed))
            }
        };
        Poll::Ready(())
    }

    fn abandon(&self, ticket: Ticket) {
        let mut state = self.member.world.lock();
        if let Some(flight) = state.flights.get_mut(ticket.0) {
            flight.abandoned = true;
            if flight.done {
                state.end(ticket.0);
            }
        }
    }

    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        let state = self.member.world.lock();
        let own = node == self.member.node && state.is_member(node, self.member.incarnation);
        own.then(|| state.node(node)?.region(region)?.memory.clone())?
    }

    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        let mut known = self.known.borrow_mut();
        let found = directory(&self.member.world.lock(), node, region);
        if let Ok(_) | Err(FabricError::NoSuchRegion { .. }) = found {
            known.retain(|(place, _)| *place != (node, region));
        }
        let found = found?;
        known.push(((node, region), found));
        Ok(RegionKey(found.0))
    }

    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(FabricError::MessageTooLong { bytes: message.len(), bytes_max: MESSAGE_BYTES_MAX });
        }
        let mut guard = self.member.world.lock();
        let state = &mut *guard;
        state.now_ns = self.handle.true_now_ns();
        self.member.entry(state)?;
        let hop = Hop { from: self.address.node, to: to.node };
        let link = state.link(hop);
        let target = state.node_mut(to.node).filter(|entry| entry.live);
        let target = target.ok_or(FabricError::NodeUnavailable { node: to.node })?;
        let incarnation = target.incarnation;
        let inbox = target.inboxes.get_mut(&to.port).ok_or(FabricError::NoSuchPort { to })?;
        if inbox.lanes.len() >= LANES && !inbox.lanes.contains_key(&self.address) {
            return Err(FabricError::TooManySenders { to });
        }
        let outstanding = inbox.lanes.entry(self.address).or_default();
        if *outstanding + lane_bytes(message.len()) > LANE_BYTES_MAX {
            return Err(FabricError::QueueFull { to });
        }
        if link.cut {
            return Ok(());
        }
        *outstanding += lane_bytes(message.len());
        let ns = state.model.message_ns(hop, message.len());
        let mut at_ns = state.now_ns + state.jittered(ns) + link.delay_ns;
        let last_ns = state.last_arrival_ns.entry((self.address, to)).or_default();
        at_ns = at_ns.max(*last_ns + 1);
        *last_ns = at_ns;
        let message = Message { from: self.address, bytes: message.to_vec() };
        let from_incarnation = self.member.incarnation;
        let message = state.messages.insert(OnTheWay { from_incarnation, to, incarnation, message });
        state.schedule(at_ns, Event::Deliver { message });
        state.see_to_engine(&self.handle);
        Ok(())
    }

    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool {
        let port = if inbox == Inbox::Own { self.address.port } else { Address::HOME_PORT };
        let mut state = self.member.world.lock();
        let Ok(entry) = self.member.entry(&mut state) else { return false };
        let Some(inbox) = entry.inboxes.get_mut(&port) else { return false };
        let Some(first) = inbox.queue.pop_front() else { return false };
        inbox.leave_lane(&first);
        *message = first;
        true
    }

    fn has_arrived(&self) -> bool {
        let mut state = self.member.world.lock();
        let Ok(entry) = self.member.entry(&mut state) else { return false };
        [self.address.port, Address::HOME_PORT]
            .iter()
            .any(|port| entry.inboxes.get(port).is_some_and(|inbox| !inbox.queue.is_empty()))
    }

    fn wait(&self, _: u64) -> bool {
        self.has_arrived()
    }

    fn wake_on_arrival(&self, cx: &mut Context<'_>) {
        let mut state = self.member.world.lock();
        let Ok(entry) = self.member.entry(&mut state) else { return };
        for port in [self.address.port, Address::HOME_PORT] {
            if let Some(inbox) = entry.inboxes.get_mut(&port)
                && !inbox.waiters.iter().any(|waiter| waiter.will_wake(cx.waker()))
            {
                inbox.waiters.push(cx.waker().clone());
            }
        }
    }
}

impl Drop for SimEndpoint {
    fn drop(&mut self) {
        let Ok(mut state) = self.member.world.state.lock() else { return };
        if let Ok(entry) = self.member.entry(&mut state) {
            entry.inboxes.remove(&self.address.port);
        }
        // Its lanes are free for others, except where messages of it wait.
        for node in state.nodes_mut() {
            for inbox in node.inboxes.values_mut() {
                inbox.lanes.retain(|from, outstanding| *from != self.address || *outstanding > 0);
            }
        }
    }
}
