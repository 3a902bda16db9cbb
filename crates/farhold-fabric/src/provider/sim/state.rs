//! The simulated cluster's state, and its events.

use super::faults::Fault;
use super::model::{Hop, LatencyModel};
use super::slab::Slab;
use super::touch::{LINE_BYTES, touch};
use super::trace::{Trace, What};
use crate::address::{Address, FarPtr, NodeId, RegionId};
use crate::batch::{Content, OpKind, State as OpState};
use crate::endpoint::Message;
use crate::error::FabricError;
use crate::executor::Handle;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

pub(super) struct State {
    pub model: Box<dyn LatencyModel>,
    random: u64,
    pub now_ns: u64,
    events: BinaryHeap<Reverse<Scheduled>>,
    sequence: u64,
    engine: Option<Waker>,
    /// The earliest timer that will wake the engine.
    armed_ns: u64,
    nodes: Vec<Node>,
    pub flights: Slab<Flight>,
    pub messages: Slab<OnTheWay>,
    /// Of flights that are over, for the next.
    spare_keys: Vec<Vec<u64>>,
    links: BTreeMap<Hop, Link>,
    /// What faults add to the model's.
    jitter_percent: u64,
    /// See [`Fault::Hiccups`].
    hiccups: Option<(u64, u64)>,
    pub fence_ns: u64,
    /// See [`Fault::Late`].
    late_percent: u64,
    late: Vec<Late>,
    /// When the last message between two inboxes arrives: the next one must not overtake it.
    pub last_arrival_ns: BTreeMap<(Address, Address), u64>,
    plan: Vec<Fault>,
    /// What happens after how many events.
    pub after: Vec<(u64, Fault)>,
    pub keeps_durable: bool,
    pub trace: Trace,
}

/// An event and its time; those of one time go by the order of their scheduling.
struct Scheduled {
    at_ns: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// What is to happen.
#[derive(Clone, Copy)]
pub(super) enum Event {
    /// One line of one instruction.
    Step {
        flight: u64,
        op: u32,
        step: u32,
    },
    /// All results of a batch are with its initiator.
    Done {
        flight: u64,
    },
    Deliver {
        message: u64,
    },
    /// A fault of the plan, by its place there.
    Fault(u32),
}

#[derive(Default)]
pub(super) struct Node {
    pub incarnation: u64,
    pub live: bool,
    /// Few: looked through.
    pub regions: Vec<(RegionId, Region)>,
    pub inboxes: BTreeMap<u16, InboxState>,
    pub next_port: u16,
    /// Nodes that it has fenced, up to which incarnation.
    pub fenced: BTreeMap<NodeId, u64>,
    /// Nodes whose fencing is under way: their incarnations, and when it takes effect.
    pub fencing: BTreeMap<NodeId, (u64, u64)>,
    /// What tells each incarnation of the node from all others, by incarnation from 1 on.
    pub births: Vec<Option<u64>>,
    /// The starts that may use its regions, and the number of the configuration that says so.
    pub admitted: (u64, Option<Admitted>),
    paused_until_ns: u64,
}

impl Node {
    pub fn region(&self, region: RegionId) -> Option<&Region> {
        self.regions.iter().find(|(number, _)| *number == region).map(|(_, found)| found)
    }

    pub fn region_mut(&mut self, region: RegionId) -> Option<&mut Region> {
        self.regions.iter_mut().find(|(number, _)| *number == region).map(|(_, found)| found)
    }
}

pub(super) struct Region {
    pub memory: Option<Arc<RegionMemory>>,
    pub key: u64,
    /// Not while its node makes it ready.
    pub is_open: bool,
    /// What has reached the memory behind the caches, if that is kept.
    pub durable: Option<Vec<u8>>,
}

#[derive(Default)]
pub(super) struct InboxState {
    pub queue: VecDeque<Message>,
    pub waiters: Vec<Waker>,
    /// Bytes that each sender has on the way or in the queue.
    pub lanes: BTreeMap<Address, u64>,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    pub delay_ns: u64,
    pub cut: bool,
}

/// An instruction that has been given up, and may be done yet.
struct Late {
    /// Of its own.
    flight: u64,
    from: Address,
    to: NodeId,
    posted: u64,
}

/// A batch under way.
pub(super) struct Flight {
    pub node: NodeId,
    /// Of the endpoint that has posted it.
    port: u16,
    /// Counts with the events.
    posted: u64,
    pub incarnation: u64,
    pub content: Box<Content>,
    /// The key that each instruction presents.
    pub keys: Vec<u64>,
    /// Instructions that are not at their end.
    left: u32,
    /// When the last of the results that there are is with the initiator.
    done_ns: u64,
    /// It is.
    pub done: bool,
    pub abandoned: bool,
    /// Its initiator's machine has died: what becomes of each instruction is open.
    orphan: bool,
    pub waker: Option<Waker>,
}

/// A message under way.
pub(super) struct OnTheWay {
    pub from_incarnation: u64,
    pub to: Address,
    pub incarnation: u64,
    pub message: Message,
}

/// The effects outside of the simulation's state.
#[derive(Default)]
pub(super) struct Effects {
    pub wakers: Vec<Waker>,
    pauses: Vec<(u8, u64)>,
}

impl Effects {
    pub fn happen(&mut self, handle: &Handle) {
        for (machine, until_ns) in self.pauses.drain(..) {
            handle.pause_machine(machine, until_ns);
        }
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// The bit of a key that says of an instruction that it has been made late.
const DECIDED: u64 = 1 << 63;
/// How long an instruction of a dead machine may linger in the network.
const LINGER_NS_MAX: u64 = 3_000_000;

impl State {
    pub fn new(model: Box<dyn LatencyModel>, random: u64, now_ns: u64) -> Self {
        Self {
            model,
            random,
            now_ns,
            events: BinaryHeap::new(),
            sequence: 0,
            engine: None,
            armed_ns: u64::MAX,
            nodes: Vec::new(),
            flights: Slab::default(),
            messages: Slab::default(),
            spare_keys: Vec::new(),
            links: BTreeMap::new(),
            jitter_percent: 0,
            hiccups: None,
            fence_ns: 0,
            late_percent: 0,
            late: Vec::new(),
            last_arrival_ns: BTreeMap::new(),
            plan: Vec::new(),
            after: Vec::new(),
            keeps_durable: false,
            trace: Trace::default(),
        }
    }

    pub fn schedule_fault(&mut self, at_ns: u64, fault: Fault) {
        self.plan.push(fault);
        self.schedule(at_ns, Event::Fault(self.plan.len() as u32 - 1));
    }

    #[inline]
    pub fn schedule(&mut self, at_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse(Scheduled { at_ns, sequence: self.sequence, event }));
    }

    /// When the next event is.
    #[inline]
    pub fn next_ns(&self) -> Option<u64> {
        self.events.peek().map(|Reverse(next)| next.at_ns)
    }

    /// The engine runs.
    #[inline]
    pub fn begin_turn(&mut self, now_ns: u64, engine: &Waker) {
        self.now_ns = now_ns;
        if now_ns >= self.armed_ns {
            self.armed_ns = u64::MAX;
        }
        if !self.engine.as_ref().is_some_and(|known| known.will_wake(engine)) {
            self.engine = Some(engine.clone());
        }
    }

    /// Whether a timer is needed for this time: none that is set already comes before it.
    #[inline]
    pub fn arm(&mut self, at_ns: u64) -> bool {
        let earlier = at_ns < self.armed_ns;
        self.armed_ns = at_ns.min(self.armed_ns);
        earlier
    }

    /// After an event has been scheduled while the engine sleeps: sees to it that the engine wakes in time.
    pub fn see_to_engine(&mut self, handle: &Handle) {
        if let Some(next_ns) = self.next_ns()
            && self.engine.is_some()
            && self.arm(next_ns)
            && let Some(engine) = &self.engine
        {
            handle.wake_at_ns(next_ns, engine);
        }
    }

    #[inline]
    pub fn next_due(&mut self, now_ns: u64) -> Option<Event> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.events.pop().map(|Reverse(due)| due.event)
    }

    /// splitmix64, as the executor's.
    #[inline]
    fn random_u64(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A model's time, stretched by its jitter, and now and then by much more.
    #[inline]
    pub fn jittered(&mut self, ns: u64) -> u64 {
        let most = ns * (self.model.jitter_percent() + self.jitter_percent) / 100;
        let hiccups = self.hiccups;
        let late_ns = match hiccups {
            Some((one_in, ns_max)) if self.random_u64().is_multiple_of(one_in) => self.random_u64() % (ns_max + 1),
            _ => 0,
        };
        ns + self.random_u64() % (most + 1) + late_ns
    }

    /// From one line to the next. Two transfers at one even speed could never overtake each other, so nothing would tear:
    /// each line takes up to twice its time, and one in 32 waits for twenty (another transfer had the bus).
    fn next_line_ns(&mut self, hop: Hop) -> u64 {
        let line_ns = self.model.line_ns(hop).max(1);
        let random = self.random_u64();
        let stall_ns = if random.is_multiple_of(32) { 20 * line_ns } else { 0 };
        line_ns + (random >> 32) % (line_ns + 1) + stall_ns
    }

    #[inline]
    pub fn link(&self, hop: Hop) -> Link {
        if self.links.is_empty() { Link::default() } else { self.links.get(&hop).copied().unwrap_or_default() }
    }

    #[inline]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(usize::from(node.0))
    }

    #[inline]
    pub fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::from(node.0))
    }

    pub fn node_or_new(&mut self, node: NodeId) -> &mut Node {
        let needed = usize::from(node.0) + 1;
        if self.nodes.len() < needed {
            self.nodes.resize_with(needed, Node::default);
        }
        &mut self.nodes[usize::from(node.0)]
    }

    /// A new start of a node forgets the fences of running starts, whatever its predecessor has fenced: the predecessor may have
    /// paused, and have fenced a start that it had never met.
    pub fn forget_fences_of_the_living(&mut self, node: NodeId) {
        let last: Vec<u64> =
            self.nodes.iter().map(|entry| entry.incarnation.saturating_sub(u64::from(entry.live))).collect();
        if let Some(entry) = self.node_mut(node) {
            for (other, fenced) in &mut entry.fenced {
                *fenced = (*fenced).min(last[usize::from(other.0)]);
            }
        }
    }

    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut()
    }

    /// Whether the target has fenced the initiator.
    #[inline]
    fn is_fenced(&self, hop: Hop, incarnation: u64) -> bool {
        let fenced = self.node(hop.to).and_then(|target| target.fenced.get(&hop.from));
        fenced.is_some_and(|last| incarnation <= *last)
    }

    /// Whether the target executes instructions of this incarnation of the initiator. A target that has started after that
    /// incarnation was expelled has never fenced it.
    #[inline]
    fn is_admitted(&self, hop: Hop, incarnation: u64) -> bool {
        let Some((_, Some(Admitted::Births(births)))) = self.node(hop.to).map(|target| &target.admitted) else {
            return true;
        };
        let birth = self.node(hop.from).and_then(|from| *from.births.get(incarnation as usize - 1)?);
        hop.from == hop.to || births.iter().any(|(node, named)| *node == hop.from && Some(*named) == birth)
    }

    #[inline]
    pub fn is_live(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|entry| entry.live)
    }

    #[inline]
    pub fn is_member(&self, node: NodeId, incarnation: u64) -> bool {
        self.node(node).is_some_and(|entry| entry.live && entry.incarnation == incarnation)
    }

    /// Starts a batch: its instructions go out one after the other.
    pub fn start(&mut self, from: Address, incarnation: u64, content: Box<Content>, keys: Vec<u64>, left: u32) -> u64 {
        let node = from.node;
        let flight = Flight {
            node,
            port: from.port,
            posted: self.sequence,
            incarnation,
            content,
            keys,
            left,
            done_ns: 0,
            done: false,
            abandoned: false,
            orphan: false,
            waker: None,
        };
        let count = flight.content.ops.len();
        let number = self.flights.insert(flight);
        let mut gap_ns = 0;
        for index in 0..count {
            let Some(flight) = self.flights.get_mut(number) else { break };
            let op = &flight.content.ops[index];
            if op.state == OpState::Failed {
                continue;
            }
            let hop = Hop { from: node, to: op.at.node() };
            let ns = self.model.request_ns(hop, op.kind, op.len as usize);
            let at_ns = self.now_ns + gap_ns + self.jittered(ns) + self.link(hop).delay_ns;
            self.schedule(at_ns, Event::Step { flight: number, op: index as u32, step: 0 });
            gap_ns += self.model.post_gap_ns();
        }
        number
    }

    /// Memory for the keys of a batch.
    pub fn take_keys(&mut self, count: usize) -> Vec<u64> {
        let mut keys = self.spare_keys.pop().unwrap_or_default();
        keys.clear();
        keys.resize(count, 0);
        keys
    }

    /// Ends a flight that is done.
    pub fn end(&mut self, number: u64) -> Option<Box<Content>> {
        let flight = self.flights.remove(number)?;
        self.spare_keys.push(flight.keys);
        Some(flight.content)
    }

    #[inline]
    pub fn handle(&mut self, event: Event, effects: &mut Effects) {
        match event {
            Event::Step { flight, op, step } => self.step(flight, op, step),
            Event::Done { flight } => {
                let node = self.flights.get_mut(flight).map(|flight| flight.node);
                match node.and_then(|node| self.paused_until(node)) {
                    Some(at_ns) => self.schedule(at_ns, event),
                    None => self.done(flight, effects),
                }
            }
            Event::Deliver { message } => {
                let to = self.messages.get_mut(message).map(|message| message.to.node);
                match to.and_then(|to| self.paused_until(to)) {
                    // In the order of their times before, because events of one time go by their sequence.
                    Some(at_ns) => self.schedule(at_ns, event),
                    None => self.deliver(message, effects),
                }
            }
            Event::Fault(place) => self.fault(self.plan[place as usize], effects),
        }
        if !self.after.is_empty() {
            self.do_what_comes_after(effects);
        }
    }

    #[cold]
    fn do_what_comes_after(&mut self, effects: &mut Effects) {
        let count = self.trace.count;
        let (due, later) = std::mem::take(&mut self.after).into_iter().partition(|(at, _)| *at <= count);
        self.after = later;
        for (_, fault) in due {
            self.fault(fault, effects);
        }
    }

    pub fn fault(&mut self, fault: Fault, effects: &mut Effects) {
        let now_ns = self.now_ns;
        match fault {
            Fault::Kill(node) => {
                self.trace.event(now_ns, What::Kill, [u64::from(node.0)]);
                self.kill(node, effects);
            }
            Fault::Crash(node) => {
                self.trace.event(now_ns, What::Crash, [u64::from(node.0)]);
                self.kill(node, effects);
                self.flights.iter_mut().filter(|flight| flight.node == node).for_each(|flight| flight.orphan = true);
            }
            Fault::PowerCut(node) => {
                self.trace.event(now_ns, What::PowerCut, [u64::from(node.0)]);
                self.fault(Fault::Crash(node), effects);
                self.lose_lines(node);
            }
            Fault::Pause(node, until_ns) => {
                self.trace.event(now_ns, What::Pause, [u64::from(node.0), until_ns]);
                if let Some(entry) = self.node_mut(node) {
                    entry.paused_until_ns = until_ns;
                }
                effects.pauses.push((node.0, until_ns));
            }
            Fault::Delay(hop, delay_ns) => self.links.entry(hop).or_default().delay_ns = delay_ns,
            Fault::Jitter(percent) => self.jitter_percent = percent,
            Fault::Hiccups(one_in, ns_max) => self.hiccups = Some((one_in.max(1), ns_max)),
            Fault::SlowFence(fence_ns) => self.fence_ns = fence_ns,
            Fault::Late(percent) => self.late_percent = percent,
            Fault::Cut(hop) => self.links.entry(hop).or_default().cut = true,
            Fault::Heal(hop) => drop(self.links.remove(&hop)),
        }
    }

    fn kill(&mut self, node: NodeId, effects: &mut Effects) {
        if let Some(entry) = self.node_mut(node) {
            entry.live = false;
            for (_, inbox) in std::mem::take(&mut entry.inboxes) {
                effects.wakers.extend(inbox.waiters);
            }
        }
        let flights = self.flights.iter_mut().filter(|flight| flight.node == node);
        effects.wakers.extend(flights.filter_map(|flight| flight.waker.take()));
    }

    /// Of each line that is not as it was flushed last, decides whether it had left the caches.
    fn lose_lines(&mut self, node: NodeId) {
        let mut random = self.random_u64();
        let Some(entry) = self.node_mut(node) else { return };
        let mut line = [0; LINE_BYTES as usize];
        for (_, region) in &mut entry.regions {
            let (Some(memory), Some(durable)) = (&region.memory, &mut region.durable) else { continue };
            for (number, kept) in durable.chunks_exact_mut(line.len()).enumerate() {
                let at = number as u64 * LINE_BYTES;
                if memory.copy_out(at, &mut line).is_err() || line == kept {
                    continue;
                }
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ at;
                if random.is_multiple_of(2) {
                    kept.copy_from_slice(&line);
                } else {
                    memory.copy_in(at, kept).expect("a line of the region");
                }
            }
        }
    }

    /// Until when a node is paused, if it is.
    #[inline]
    fn paused_until(&self, node: NodeId) -> Option<u64> {
        let until_ns = self.node(node)?.paused_until_ns;
        (until_ns > self.now_ns).then_some(until_ns)
    }

    fn deliver(&mut self, number: u64, effects: &mut Effects) {
        let Some(OnTheWay { from_incarnation, to, incarnation, message }) = self.messages.remove(number) else {
            return;
        };
        let bytes: u64 = message.bytes.chunks(8).fold(0, |sum, chunk| {
            let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        });
        let ends = [message.from, to].map(|end| u64::from(end.node.0) << 16 | u64::from(end.port));
        self.trace.event(self.now_ns, What::Deliver, [ends[0], ends[1], bytes]);
        if self.is_fenced(Hop { from: message.from.node, to: to.node }, from_incarnation) {
            return;
        }
        if !self.late.is_empty() {
            self.too_late(message.from, to.node, u64::MAX);
        }
        let Some(node) = self.node_mut(to.node) else { return };
        if !node.live || node.incarnation != incarnation {
            return;
        }
        if let Some(inbox) = node.inboxes.get_mut(&to.port) {
            inbox.queue.push_back(message);
            effects.wakers.append(&mut inbox.waiters);
        }
    }

    /// Does line `step` of an instruction.
    fn step(&mut self, number: u64, index: u32, step: u32) {
        if let Some(place) = self.late.iter().position(|late| late.flight == number) {
            self.late.swap_remove(place);
            return self.land(number, index, step);
        }
        let Some(flight) = self.flights.get_mut(number) else { return };
        let op = &flight.content.ops[index as usize];
        let (at, kind, len, key) = (op.at, op.kind, op.len as usize, flight.keys[index as usize] & !DECIDED);
        let (hop, incarnation, orphan) = (Hop { from: flight.node, to: at.node() }, flight.incarnation, flight.orphan);
        let what = [at.to_bits(), u64::from(hop.from.0) << 48 | (kind as u64) << 32 | u64::from(step)];
        self.trace.event(self.now_ns, What::Step, what);
        if orphan && self.is_lost(number, index, step) {
            return;
        }
        let touched = match self.target(hop, incarnation, at, key) {
            Ok(memory) => {
                let flight = self.flights.get_mut(number).expect("found above");
                let (from, posted) = (Address { node: flight.node, port: flight.port }, flight.posted);
                let touched = touch(&mut flight.content, index as usize, &memory, step as usize);
                if !self.late.is_empty() {
                    self.too_late(from, at.node(), posted);
                }
                touched
            }
            Err(error) => {
                if self.late_percent > 0 && self.link(hop).cut {
                    self.may_come_late(number, index, step);
                }
                Err(error)
            }
        };
        match touched {
            Ok(true) => {
                let at_ns = self.now_ns + self.next_line_ns(hop);
                self.schedule(at_ns, Event::Step { flight: number, op: index, step: step + 1 });
            }
            Ok(false) if self.link(Hop { from: hop.to, to: hop.from }).cut => {
                self.fail(number, index, FabricError::NodeUnavailable { node: hop.to });
                self.respond(number, hop, self.model.give_up_ns());
            }
            Ok(false) => {
                if kind == OpKind::Flush {
                    self.make_durable(at, len);
                }
                let ns = self.model.response_ns(hop, kind, len);
                self.respond(number, hop, ns);
            }
            Err(error) => {
                let unreachable = matches!(error, FabricError::NodeUnavailable { .. });
                self.fail(number, index, error);
                let ns = if unreachable { self.model.give_up_ns() } else { self.model.response_ns(hop, kind, 0) };
                self.respond(number, hop, ns);
            }
        }
    }

    /// Decides about a line of an instruction of a dead machine: it goes on, it never comes (any further), or it comes late.
    fn is_lost(&mut self, number: u64, index: u32, step: u32) -> bool {
        let random = self.random_u64();
        let Some(flight) = self.flights.get_mut(number) else { return true };
        let key = &mut flight.keys[index as usize];
        if *key & DECIDED != 0 {
            // It had been late.
            *key &= !DECIDED;
            return false;
        }
        match random % 4 {
            0 => true,
            1 => {
                *key |= DECIDED;
                let at_ns = self.now_ns + random % LINGER_NS_MAX;
                self.schedule(at_ns, Event::Step { flight: number, op: index, step });
                true
            }
            _ => false,
        }
    }

    /// An instruction is about to be given up that the way has lost: it may be done yet.
    #[cold]
    fn may_come_late(&mut self, number: u64, index: u32, step: u32) {
        let random = self.random_u64();
        let Some(flight) = self.flights.get_mut(number) else { return };
        let op = &flight.content.ops[index as usize];
        let changes_nothing = matches!(op.kind, OpKind::Read | OpKind::ReadObject | OpKind::Flush);
        if random % 100 >= self.late_percent || changes_nothing {
            return;
        }
        let (from, to, posted) = (Address { node: flight.node, port: flight.port }, op.at.node(), flight.posted);
        let copy = Flight {
            node: flight.node,
            port: flight.port,
            posted,
            incarnation: flight.incarnation,
            content: Box::new(flight.content.copy()),
            keys: flight.keys.clone(),
            left: 1,
            done_ns: 0,
            done: false,
            abandoned: true,
            orphan: false,
            waker: None,
        };
        let flight = self.flights.insert(copy);
        self.late.push(Late { flight, from, to, posted });
        let at_ns = self.now_ns + 2 * self.model.give_up_ns() + (random >> 32) % LINGER_NS_MAX;
        self.schedule(at_ns, Event::Step { flight, op: index, step });
    }

    /// Something of an endpoint has come to a node: what the endpoint had posted there before does not come any more.
    #[cold]
    fn too_late(&mut self, from: Address, to: NodeId, posted: u64) {
        let is_before = |late: &Late| late.from == from && late.to == to && late.posted < posted;
        for late in self.late.extract_if(.., |late| is_before(late)) {
            self.flights.remove(late.flight);
        }
    }

    /// Executes the rest of an instruction that was given up, at once: what follows it on its connection comes later.
    #[cold]
    fn land(&mut self, number: u64, index: u32, mut step: u32) {
        let Some(mut flight) = self.flights.remove(number) else { return };
        let (at, key) = (flight.content.ops[index as usize].at, flight.keys[index as usize] & !DECIDED);
        let hop = Hop { from: flight.node, to: at.node() };
        self.trace.event(self.now_ns, What::Step, [at.to_bits(), u64::from(hop.from.0) << 48 | u64::from(step)]);
        let Ok(memory) = self.target(hop, flight.incarnation, at, key) else { return };
        while touch(&mut flight.content, index as usize, &memory, step as usize) == Ok(true) {
            step += 1;
        }
    }

    fn fail(&mut self, number: u64, index: u32, error: FabricError) {
        if let Some(flight) = self.flights.get_mut(number) {
            flight.content.fail(index as usize, error);
        }
    }

    fn make_durable(&mut self, at: FarPtr, len: usize) {
        let Some(region) = self.node_mut(at.node()).and_then(|node| node.region_mut(at.region())) else { return };
        let (Some(memory), Some(durable)) = (&region.memory, &mut region.durable) else { return };
        let from = at.offset() / LINE_BYTES * LINE_BYTES;
        let to = (at.offset() + len as u64).next_multiple_of(LINE_BYTES).min(memory.len());
        if from < to {
            let _ = memory.copy_out(from, &mut durable[from as usize..to as usize]);
        }
    }

    #[inline]
    fn respond(&mut self, flight: u64, hop: Hop, ns: u64) {
        let at_ns = self.now_ns + self.jittered(ns) + self.link(hop).delay_ns;
        let Some(found) = self.flights.get_mut(flight) else { return };
        found.done_ns = found.done_ns.max(at_ns);
        found.left -= 1;
        if found.left == 0 {
            let at_ns = found.done_ns;
            self.schedule(at_ns, Event::Done { flight });
        }
    }

    /// The target's side of the checks: is it alive, can it be reached, does the key still open the region?
    #[inline]
    fn target(&self, hop: Hop, incarnation: u64, at: FarPtr, key: u64) -> Result<Arc<RegionMemory>, FabricError> {
        let (node, region) = (at.node(), at.region());
        let is_out = self.is_fenced(hop, incarnation) || !self.is_admitted(hop, incarnation);
        if self.link(hop).cut || !self.is_live(node) || is_out {
            return Err(FabricError::NodeUnavailable { node });
        }
        match self.node(node).and_then(|entry| entry.region(region)) {
            Some(Region { memory: Some(memory), key: now, is_open: true, .. }) if *now == key => Ok(memory.clone()),
            _ => Err(FabricError::StaleKey { node, region }),
        }
    }

    fn done(&mut self, number: u64, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(number) else { return };
        flight.done = true;
        let (node, abandoned) = (flight.node, flight.abandoned);
        effects.wakers.extend(flight.waker.take());
        self.trace.event(self.now_ns, What::Done, [number, u64::from(node.0)]);
        if abandoned {
            self.end(number);
        }
    }
}
