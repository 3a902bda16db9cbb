//! Simulation: a whole cluster in one thread, in virtual time.
//!
//! ```text
//!   post ──(request)──> line, line, line ... ──(response)──> done     each arrow and each line is an event at its own time
//!   send ──(message)──> inbox
//! ```
//!
//! The engine, one task of the executor, does the events in the order of their time. Bulk transfers touch memory one 64-byte
//! line an event, so a read that meets a write is torn just as on hardware. Instructions of one batch are under way
//! independently of each other and may overtake. All randomness (jitter) comes from the executor, so the seed of
//! [`crate::Executor::virtual_time`] decides every time and every order; [`Sim::trace_hash`] tells whether two runs were the same.
//!
//! A killed node's posted instructions still happen, its endpoints say [`FabricError::NodeUnavailable`] about their own
//! node, and its regions stay for the next join.

mod faults;
mod model;
#[cfg(test)]
mod tests;

pub use faults::{Fault, Faults};
pub use model::{Hop, LatencyModel, Numa, Rdma};

use super::{Inbox, LANE_BYTES_MAX, LANES, MESSAGE_BYTES_MAX, Membership, Posted, Provider, Ticket};
use crate::address::{Address, FarPtr, NodeId, RegionId, RegionKey};
use crate::batch::{Batch, Content, Op, OpKind, State as OpState, header_of, put_header};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Fabric;
use crate::memory::RegionMemory;
use crate::object;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

/// A simulated cluster. Clones are the same cluster.
#[derive(Clone)]
pub struct Sim {
    world: Arc<World>,
}

struct World {
    state: Mutex<State>,
}

struct State {
    model: Box<dyn LatencyModel>,
    random: u64,
    now_ns: u64,
    /// (time, sequence number); the number leads to the event.
    events: BinaryHeap<Reverse<(u64, u64)>>,
    event_of: BTreeMap<u64, Event>,
    sequence: u64,
    engine: Option<Waker>,
    nodes: BTreeMap<NodeId, Node>,
    flights: BTreeMap<u64, Flight>,
    links: BTreeMap<Hop, Link>,
    /// When the last message between two inboxes arrives: the next one must not overtake it.
    last_arrival_ns: BTreeMap<(Address, Address), u64>,
    trace: Trace,
}

enum Event {
    /// One line of one instruction.
    Step {
        flight: u64,
        op: usize,
        step: usize,
    },
    /// The result of one instruction is with its initiator.
    Done {
        flight: u64,
    },
    Deliver {
        from_incarnation: u64,
        to: Address,
        incarnation: u64,
        message: Message,
    },
    Fault(Fault),
}

#[derive(Default)]
struct Node {
    incarnation: u64,
    live: bool,
    regions: BTreeMap<RegionId, Region>,
    inboxes: BTreeMap<u16, InboxState>,
    next_port: u16,
    /// Nodes that it has shut out, up to which incarnation.
    fenced: BTreeMap<NodeId, u64>,
    paused_until_ns: u64,
}

struct Region {
    memory: Option<Arc<RegionMemory>>,
    key: u64,
}

#[derive(Default)]
struct InboxState {
    queue: VecDeque<Message>,
    waiters: Vec<Waker>,
    /// Bytes that each sender has on the way or in the queue.
    lanes: BTreeMap<Address, u64>,
}

#[derive(Clone, Copy, Default)]
struct Link {
    delay_ns: u64,
    cut: bool,
}

/// A batch under way.
struct Flight {
    node: NodeId,
    incarnation: u64,
    content: Box<Content>,
    /// The key that each instruction presents.
    keys: Vec<u64>,
    left: usize,
    abandoned: bool,
    waker: Option<Waker>,
}

/// What happened, as a number and, if asked for, in words.
#[derive(Default)]
struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    fn event(&mut self, now_ns: u64, what: &str, numbers: &[u64]) {
        let words = what.bytes().map(u64::from).chain([now_ns]).chain(numbers.iter().copied());
        for word in words {
            self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{now_ns:>10} {what} {numbers:x?}"));
        }
    }
}

/// Bytes that are touched at one instant.
const LINE_BYTES: u64 = 64;

/// What two runs must agree on, and what a lane counts: a message with its header.
fn lane_bytes(len: usize) -> u64 {
    16 + (len as u64).next_multiple_of(16)
}

impl Sim {
    /// A cluster without nodes on a machine of the given model, with a plan of faults.
    ///
    /// # Panics
    /// If the handle is not of an [`crate::Executor::virtual_time`].
    #[must_use]
    pub fn new(handle: &Handle, model: impl LatencyModel + 'static, faults: Faults) -> Self {
        assert!(handle.is_virtual(), "a simulation runs in virtual time only: Executor::virtual_time");
        let mut state = State {
            model: Box::new(model),
            random: handle.random_u64(),
            now_ns: handle.now_ns(),
            events: BinaryHeap::new(),
            event_of: BTreeMap::new(),
            sequence: 0,
            engine: None,
            nodes: BTreeMap::new(),
            flights: BTreeMap::new(),
            links: BTreeMap::new(),
            last_arrival_ns: BTreeMap::new(),
            trace: Trace::default(),
        };
        for (at_ns, fault) in faults.plan {
            state.schedule(at_ns, Event::Fault(fault));
        }
        let world = Arc::new(World { state: Mutex::new(state) });
        let (weak, engine_handle) = (Arc::downgrade(&world), handle.clone());
        drop(handle.spawn(async move {
            poll_fn(|cx| match weak.upgrade() {
                Some(world) => world.run_due(&engine_handle, cx),
                None => Poll::Ready(()),
            })
            .await;
        }));
        Self { world }
    }

    /// Starts a node.
    ///
    /// # Errors
    /// [`FabricError::NodeInUse`] if it runs.
    pub fn join(&self, node: NodeId) -> Result<Fabric, FabricError> {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let entry = state.nodes.entry(node).or_default();
        if entry.live {
            return Err(FabricError::NodeInUse {
                node,
                holder_pid: std::process::id(),
                path: Path::new("(simulated)").into(),
            });
        }
        entry.incarnation += 1;
        entry.live = true;
        entry.inboxes = BTreeMap::from([(Address::HOME_PORT, InboxState::default())]);
        let incarnation = entry.incarnation;
        state.trace.event(now_ns, "join", &[u64::from(node.0), incarnation]);
        Ok(Fabric::new(Arc::new(Member { world: self.world.clone(), node, incarnation })))
    }

    /// Makes a fault happen now.
    pub fn inject(&self, fault: Fault) {
        self.world.with(|state, wakers| state.fault(fault, wakers));
    }

    /// A number that two runs share only if everything happened in both at the same time in the same order.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.world.lock().trace.hash
    }

    /// Keeps the trace in words from now on.
    pub fn record_lines(&self) {
        self.world.lock().trace.lines.get_or_insert_default();
    }

    /// The trace in words, since [`Self::record_lines`].
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.world.lock().trace.lines.clone().unwrap_or_default()
    }
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds the simulation")
    }

    /// Changes the state, then wakes whom that concerns, without the lock.
    fn with<T>(&self, change: impl FnOnce(&mut State, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = Vec::new();
        let result = change(&mut self.lock(), &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// The engine: does what is due, and sets a timer for the next.
    fn run_due(&self, handle: &Handle, cx: &mut Context<'_>) -> Poll<()> {
        let now_ns = handle.now_ns();
        let next_ns = self.with(|state, wakers| {
            state.now_ns = now_ns;
            state.engine = Some(cx.waker().clone());
            while let Some(event) = state.next_due(now_ns) {
                state.handle(event, wakers);
            }
            state.events.peek().map(|Reverse((at_ns, ..))| *at_ns)
        });
        if let Some(next_ns) = next_ns {
            handle.wake_at_ns(next_ns, cx.waker());
        }
        Poll::Pending
    }
}

impl State {
    fn schedule(&mut self, at_ns: u64, event: Event) {
        let earliest = self.events.peek().is_none_or(|Reverse((first_ns, ..))| at_ns < *first_ns);
        self.sequence += 1;
        self.events.push(Reverse((at_ns, self.sequence)));
        self.event_of.insert(self.sequence, event);
        // The engine's timer may be set for later.
        if earliest && let Some(engine) = self.engine.take() {
            engine.wake();
        }
    }

    fn next_due(&mut self, now_ns: u64) -> Option<Event> {
        let Reverse((at_ns, sequence)) = *self.events.peek()?;
        if at_ns > now_ns {
            return None;
        }
        self.events.pop();
        self.event_of.remove(&sequence)
    }

    /// splitmix64, as the executor's.
    fn random_u64(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A model's time, stretched by its jitter.
    fn jittered(&mut self, ns: u64) -> u64 {
        let most = ns * self.model.jitter_percent() / 100;
        ns + self.random_u64() % (most + 1)
    }

    /// From one line to the next. Two transfers at one even speed could never overtake each other, so nothing would tear:
    /// each line takes up to twice its time, and one in 32 waits for twenty (another transfer had the bus).
    fn next_line_ns(&mut self, hop: Hop) -> u64 {
        let line_ns = self.model.line_ns(hop).max(1);
        let random = self.random_u64();
        let stall_ns = if random.is_multiple_of(32) { 20 * line_ns } else { 0 };
        line_ns + (random >> 32) % (line_ns + 1) + stall_ns
    }

    fn link(&self, hop: Hop) -> Link {
        self.links.get(&hop).copied().unwrap_or_default()
    }

    /// Has the target shut the initiator out?
    fn is_fenced(&self, hop: Hop, incarnation: u64) -> bool {
        let fenced = self.nodes.get(&hop.to).and_then(|target| target.fenced.get(&hop.from));
        fenced.is_some_and(|last| incarnation <= *last)
    }

    fn is_live(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|entry| entry.live)
    }

    fn is_member(&self, node: NodeId, incarnation: u64) -> bool {
        self.nodes.get(&node).is_some_and(|entry| entry.live && entry.incarnation == incarnation)
    }

    fn handle(&mut self, event: Event, wakers: &mut Vec<Waker>) {
        match event {
            Event::Step { flight, op, step } => self.step(flight, op, step),
            Event::Done { flight } => {
                let node = self.flights.get(&flight).map(|flight| flight.node);
                match node.and_then(|node| self.paused_until(node)) {
                    Some(at_ns) => self.schedule(at_ns, Event::Done { flight }),
                    None => self.done(flight, wakers),
                }
            }
            Event::Deliver { from_incarnation, to, incarnation, message } => match self.paused_until(to.node) {
                // In the order of their times before, because events of one time go by their sequence.
                Some(at_ns) => self.schedule(at_ns, Event::Deliver { from_incarnation, to, incarnation, message }),
                None => self.deliver(from_incarnation, to, incarnation, message, wakers),
            },
            Event::Fault(fault) => self.fault(fault, wakers),
        }
    }

    fn fault(&mut self, fault: Fault, wakers: &mut Vec<Waker>) {
        let now_ns = self.now_ns;
        match fault {
            Fault::Kill(node) => {
                self.trace.event(now_ns, "kill", &[u64::from(node.0)]);
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.live = false;
                    for (_, inbox) in std::mem::take(&mut entry.inboxes) {
                        wakers.extend(inbox.waiters);
                    }
                }
                wakers.extend(
                    self.flights.values_mut().filter(|flight| flight.node == node).filter_map(|f| f.waker.take()),
                );
            }
            Fault::Pause(node, until_ns) => {
                self.trace.event(now_ns, "pause", &[u64::from(node.0), until_ns]);
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.paused_until_ns = until_ns;
                }
            }
            Fault::Delay(hop, delay_ns) => self.links.entry(hop).or_default().delay_ns = delay_ns,
            Fault::Cut(hop) => self.links.entry(hop).or_default().cut = true,
            Fault::Heal(hop) => drop(self.links.remove(&hop)),
        }
    }

    /// Until when a node stands still, if it does.
    fn paused_until(&self, node: NodeId) -> Option<u64> {
        let until_ns = self.nodes.get(&node)?.paused_until_ns;
        (until_ns > self.now_ns).then_some(until_ns)
    }

    fn deliver(
        &mut self,
        from_incarnation: u64,
        to: Address,
        incarnation: u64,
        message: Message,
        wakers: &mut Vec<Waker>,
    ) {
        let bytes: u64 =
            message.bytes.iter().fold(0, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let numbers = [message.from.node.0.into(), message.from.port.into(), to.node.0.into(), to.port.into(), bytes];
        self.trace.event(self.now_ns, "deliver", &numbers);
        if self.is_fenced(Hop { from: message.from.node, to: to.node }, from_incarnation) {
            return;
        }
        let Some(node) = self.nodes.get_mut(&to.node) else { return };
        if !node.live || node.incarnation != incarnation {
            return;
        }
        if let Some(inbox) = node.inboxes.get_mut(&to.port) {
            inbox.queue.push_back(message);
            wakers.append(&mut inbox.waiters);
        }
    }

    /// Does line `step` of an instruction.
    fn step(&mut self, flight_id: u64, index: usize, step: usize) {
        let Some(mut flight) = self.flights.remove(&flight_id) else { return };
        let (at, kind, len) = {
            let op = &flight.content.ops[index];
            (op.at, op.kind, op.len as usize)
        };
        let hop = Hop { from: flight.node, to: at.node() };
        self.trace.event(self.now_ns, "step", &[kind as u64, hop.from.0.into(), at.to_bits(), step as u64]);
        let memory = self.target(hop, flight.incarnation, at, flight.keys[index]);
        match memory.and_then(|memory| touch(&mut flight.content, index, &memory, step)) {
            Ok(true) => {
                let at_ns = self.now_ns + self.next_line_ns(hop);
                self.schedule(at_ns, Event::Step { flight: flight_id, op: index, step: step + 1 });
            }
            Ok(false) if self.link(Hop { from: hop.to, to: hop.from }).cut => {
                flight.content.fail(index, FabricError::NodeUnavailable { node: hop.to });
                self.respond(flight_id, hop, self.model.give_up_ns());
            }
            Ok(false) => {
                let ns = self.model.response_ns(hop, kind, len);
                self.respond(flight_id, hop, ns);
            }
            Err(error) => {
                let unreachable = matches!(error, FabricError::NodeUnavailable { .. });
                flight.content.fail(index, error);
                let ns = if unreachable { self.model.give_up_ns() } else { self.model.response_ns(hop, kind, 0) };
                self.respond(flight_id, hop, ns);
            }
        }
        self.flights.insert(flight_id, flight);
    }

    fn respond(&mut self, flight: u64, hop: Hop, ns: u64) {
        let at_ns = self.now_ns + self.jittered(ns) + self.link(hop).delay_ns;
        self.schedule(at_ns, Event::Done { flight });
    }

    /// The target's side of the checks: is it alive, can it be reached, does the key still open the region?
    fn target(&self, hop: Hop, incarnation: u64, at: FarPtr, key: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let (node, region) = (at.node(), at.region());
        if self.link(hop).cut || !self.is_live(node) || self.is_fenced(hop, incarnation) {
            return Err(FabricError::NodeUnavailable { node });
        }
        match self.nodes.get(&node).and_then(|entry| entry.regions.get(&region)) {
            Some(Region { memory: Some(memory), key: now }) if *now == key => Ok(memory.clone()),
            _ => Err(FabricError::StaleKey { node, region }),
        }
    }

    fn done(&mut self, flight_id: u64, wakers: &mut Vec<Waker>) {
        let Some(flight) = self.flights.get_mut(&flight_id) else { return };
        flight.left -= 1;
        if flight.left > 0 {
            return;
        }
        self.trace.event(self.now_ns, "done", &[flight_id]);
        wakers.extend(flight.waker.take());
        if flight.abandoned {
            self.flights.remove(&flight_id);
        }
    }
}

/// Touches line `step` of an instruction's bytes. True: there is another line.
fn touch(content: &mut Content, index: usize, memory: &RegionMemory, step: usize) -> Result<bool, FabricError> {
    let (ops, data, _) = content.parts();
    let op = &mut ops[index];
    let len = u64::from(op.len);
    let more = match op.kind {
        OpKind::Read | OpKind::Write => {
            let (from, to) = line(op.at.offset(), len, step as u64);
            let (at, start, part_len) =
                (op.at.offset() + from, op.start as usize + from as usize, (to - from) as usize);
            match op.kind {
                OpKind::Read => memory.copy_out(at, data.bytes_mut(start, part_len))?,
                _ => memory.copy_in(at, data.bytes(start, part_len))?,
            }
            to < len
        }
        OpKind::ReadObject => {
            let (header, payload) = data
                .bytes_mut(op.start as usize, object::HEADER_BYTES + op.len as usize)
                .split_at_mut(object::HEADER_BYTES);
            touch_object(op.at.offset(), header, payload, memory, step)?
        }
        _ => {
            op.execute(data, memory)?;
            false
        }
    };
    if !more {
        op.state = OpState::Done;
    }
    Ok(more)
}

/// The bytes `from..to` of `len` at `offset` that lie in the `step`th line.
fn line(offset: u64, len: u64, step: u64) -> (u64, u64) {
    let first = LINE_BYTES - offset % LINE_BYTES;
    let from = if step == 0 { 0 } else { first + (step - 1) * LINE_BYTES };
    (from.min(len), (first + step * LINE_BYTES).min(len))
}

/// `read_object`, line by line: the header first, then the payload, then the version again.
fn touch_object(
    at: u64,
    header: &mut [u8],
    payload: &mut [u8],
    memory: &RegionMemory,
    step: usize,
) -> Result<bool, FabricError> {
    if step == 0 {
        let found = memory.read_header(at)?;
        memory.payload_fits(at, found.meta.payload_len(), payload.len())?;
        put_header(&found, header);
    }
    let header = header_of(header);
    let (from, to) = line(at + object::PAYLOAD, header.meta.payload_len() as u64, step as u64);
    if from < to {
        memory.copy_out(at + object::PAYLOAD + from, &mut payload[from as usize..to as usize])?;
        return Ok(true);
    }
    memory.recheck_version(at, header.version)?;
    Ok(false)
}

/// A simulated node's membership.
struct Member {
    world: Arc<World>,
    node: NodeId,
    incarnation: u64,
}

impl Member {
    /// This node's entry, if this is still the node.
    fn entry<'a>(&self, state: &'a mut State) -> Result<&'a mut Node, FabricError> {
        let node = self.node;
        state
            .nodes
            .get_mut(&node)
            .filter(|entry| entry.live && entry.incarnation == self.incarnation)
            .ok_or(FabricError::NodeUnavailable { node })
    }
}

impl Membership for Member {
    fn node(&self) -> NodeId {
        self.node
    }

    fn provider(&self) -> &'static str {
        "sim"
    }

    fn create_region(&self, region: RegionId, len: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let mut state = self.world.lock();
        let entry = self.entry(&mut state)?;
        let last_key = match entry.regions.get(&region) {
            Some(Region { memory: Some(_), .. }) => return Err(FabricError::RegionExists { node: self.node, region }),
            Some(Region { key, .. }) => *key,
            None => 0,
        };
        let memory = Arc::new(RegionMemory::anonymous(FarPtr::new(self.node, region, 0), len)?);
        entry.regions.insert(region, Region { memory: Some(memory.clone()), key: last_key + 1 });
        Ok(memory)
    }

    fn attach_region(&self, region: RegionId) -> Result<Arc<RegionMemory>, FabricError> {
        let mut state = self.world.lock();
        match self.entry(&mut state)?.regions.get_mut(&region) {
            Some(Region { memory: Some(memory), key }) => {
                *key += 1;
                Ok(memory.clone())
            }
            _ => Err(FabricError::NoSuchRegion { node: self.node, region }),
        }
    }

    fn remove_region(&self, region: RegionId) -> Result<(), FabricError> {
        let mut state = self.world.lock();
        let entry = self.entry(&mut state)?.regions.get_mut(&region);
        let memory = entry.and_then(|region| region.memory.take());
        memory.map(drop).ok_or(FabricError::NoSuchRegion { node: self.node, region })
    }

    fn endpoint(self: Arc<Self>, handle: &Handle, port: Option<u16>) -> Result<Box<dyn Provider>, FabricError> {
        assert!(handle.is_virtual(), "a simulated node's endpoints live on the simulation's executor");
        let port = {
            let mut state = self.world.lock();
            let entry = self.entry(&mut state)?;
            let used: BTreeSet<u16> = entry.inboxes.keys().copied().collect();
            let next = entry.next_port;
            let free = || (0..u16::MAX).map(|step| next.wrapping_add(step).max(1)).find(|port| !used.contains(port));
            let port = port.or_else(free).ok_or(FabricError::PortInUse { port: u16::MAX })?;
            if used.contains(&port) {
                return Err(FabricError::PortInUse { port });
            }
            entry.next_port = port.wrapping_add(1);
            entry.inboxes.insert(port, InboxState::default());
            port
        };
        let address = Address { node: self.node, port };
        Ok(Box::new(SimEndpoint { member: self, address, handle: handle.clone(), known: RefCell::default() }))
    }

    fn node_is_live(&self, node: NodeId) -> bool {
        self.world.lock().is_live(node)
    }

    fn fence(&self, node: NodeId) -> Result<(), FabricError> {
        let mut state = self.world.lock();
        let now_ns = state.now_ns;
        let last = state.nodes.get(&node).map_or(0, |entry| entry.incarnation);
        state.trace.event(now_ns, "fence", &[u64::from(self.node.0), u64::from(node.0), last]);
        self.entry(&mut state)?.fenced.insert(node, last);
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Ok(mut state) = self.world.state.lock()
            && let Ok(entry) = self.entry(&mut state)
        {
            entry.live = false;
            entry.inboxes.clear();
        }
    }
}

/// One endpoint of a simulated node.
struct SimEndpoint {
    member: Arc<Member>,
    address: Address,
    handle: Handle,
    /// Keys as first learned, with the lengths of the regions.
    known: RefCell<BTreeMap<(NodeId, RegionId), (u64, u64)>>,
}

impl SimEndpoint {
    /// The initiator's side of the checks. Returns the key to present.
    fn check(&self, state: &State, op: &Op) -> Result<u64, FabricError> {
        let (node, region) = (op.at.node(), op.at.region());
        let mut known = self.known.borrow_mut();
        let (key, len) = match known.get(&(node, region)) {
            Some(known) => *known,
            None => *known.entry((node, region)).or_insert(directory(state, node, region)?),
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
    let entry = state.nodes.get(&node).ok_or(FabricError::NodeUnavailable { node })?;
    match entry.regions.get(&region) {
        Some(Region { memory: Some(memory), key }) => Ok((*key, memory.len())),
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
        state.now_ns = self.handle.now_ns();
        let (node, incarnation) = (self.member.node, self.member.incarnation);
        if !state.is_member(node, incarnation) {
            batch.content = Some(Box::new(content.all_failed(&FabricError::NodeUnavailable { node })));
            return Posted::Done;
        }
        let mut keys = vec![0; content.ops.len()];
        let mut started = Vec::new();
        for (index, presented) in keys.iter_mut().enumerate() {
            match self.check(state, &content.ops[index]) {
                Ok(key) => {
                    *presented = key;
                    started.push(index);
                }
                Err(error) => content.fail(index, error),
            }
        }
        if started.is_empty() {
            batch.content = Some(content);
            return Posted::Done;
        }
        state.sequence += 1;
        let flight = state.sequence;
        for (nth, &index) in started.iter().enumerate() {
            let op = &content.ops[index];
            let hop = Hop { from: node, to: op.at.node() };
            let ns = state.model.request_ns(hop, op.kind, op.len as usize);
            let gap_ns = nth as u64 * state.model.post_gap_ns();
            let at_ns = state.now_ns + gap_ns + state.jittered(ns) + state.link(hop).delay_ns;
            state.schedule(at_ns, Event::Step { flight, op: index, step: 0 });
        }
        let left = started.len();
        state.flights.insert(flight, Flight { node, incarnation, content, keys, left, abandoned: false, waker: None });
        Posted::UnderWay(Ticket(flight))
    }

    fn poll(&self, ticket: Ticket, batch: &mut Batch, cx: &mut Context<'_>) -> Poll<()> {
        let mut guard = self.member.world.lock();
        let state = &mut *guard;
        let node = self.member.node;
        let alive = state.is_member(node, self.member.incarnation);
        let flight = state.flights.get_mut(&ticket.0).expect("a flight lasts until it is polled or abandoned");
        let done = flight.left == 0;
        batch.content = match (alive, done) {
            (true, true) => state.flights.remove(&ticket.0).map(|flight| flight.content),
            (true, false) => {
                flight.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            // The initiator is dead and learns nothing; what it posted goes on without it.
            (false, _) => {
                let failed = flight.content.all_failed(&FabricError::NodeUnavailable { node });
                flight.abandoned = true;
                if done {
                    state.flights.remove(&ticket.0);
                }
                Some(Box::new(failed))
            }
        };
        Poll::Ready(())
    }

    fn abandon(&self, ticket: Ticket) {
        let mut state = self.member.world.lock();
        if let Some(flight) = state.flights.get_mut(&ticket.0) {
            flight.abandoned = true;
            if flight.left == 0 {
                state.flights.remove(&ticket.0);
            }
        }
    }

    fn mapped(&self, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
        let state = self.member.world.lock();
        let own = node == self.member.node && state.is_member(node, self.member.incarnation);
        own.then(|| state.nodes.get(&node)?.regions.get(&region)?.memory.clone())?
    }

    fn refresh(&self, node: NodeId, region: RegionId) -> Result<RegionKey, FabricError> {
        let mut known = self.known.borrow_mut();
        known.remove(&(node, region));
        let found = directory(&self.member.world.lock(), node, region)?;
        known.insert((node, region), found);
        Ok(RegionKey(found.0))
    }

    fn send(&self, to: Address, message: &[u8]) -> Result<(), FabricError> {
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(FabricError::MessageTooLong { bytes: message.len(), bytes_max: MESSAGE_BYTES_MAX });
        }
        let mut guard = self.member.world.lock();
        let state = &mut *guard;
        state.now_ns = self.handle.now_ns();
        self.member.entry(state)?;
        let hop = Hop { from: self.address.node, to: to.node };
        let target = state.nodes.get_mut(&to.node).filter(|entry| entry.live);
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
        let link = state.links.get(&hop).copied().unwrap_or_default();
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
        state.schedule(at_ns, Event::Deliver { from_incarnation: self.member.incarnation, to, incarnation, message });
        Ok(())
    }

    fn try_recv(&self, inbox: Inbox, message: &mut Message) -> bool {
        let port = if inbox == Inbox::Own { self.address.port } else { Address::HOME_PORT };
        let mut state = self.member.world.lock();
        let Ok(entry) = self.member.entry(&mut state) else { return false };
        let Some(inbox) = entry.inboxes.get_mut(&port) else { return false };
        let Some(first) = inbox.queue.pop_front() else { return false };
        if let Some(outstanding) = inbox.lanes.get_mut(&first.from) {
            *outstanding = outstanding.saturating_sub(lane_bytes(first.bytes.len()));
        }
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
        for node in state.nodes.values_mut() {
            for inbox in node.inboxes.values_mut() {
                inbox.lanes.retain(|from, outstanding| *from != self.address || *outstanding > 0);
            }
        }
    }
}

/// See [`super::ALL`].
pub(super) const KIND: super::Kind = super::Kind {
    name: "sim",
    about: "a cluster in one thread, in virtual time, from a seed",
    does: |_| super::Doer::Simulation,
    #[cfg(test)]
    bed: super::conformance::Bed::sim,
};
