//! The simulated cluster's state, and what each event does to it.
//!
//! ```text
//!   schedule.rs: the next event ──► handle ─┬─ Step, Done ─► flights.rs: a batch, line by line ─► durable.rs: flushes
//!        ▲                                  │                  ├─► access.rs: may its initiator still do that?
//!        │                                  │                  └─► fate.rs: what no initiator waits for may come late
//!        │                                  ├─ Deliver ────► delivery.rs: a message is in its inbox
//!        │                                  └─ Fault ──────► fault.rs ─► durable.rs: lines that the power loses
//!        └── delays.rs: when what follows ◄─┘
//! ```

mod access;
mod delays;
mod delivery;
mod durable;
mod fate;
mod fault;
mod flights;
mod nodes;
mod schedule;

use super::faults::Fault;
use super::model::{Hop, LatencyModel};
use super::slab::Slab;
use super::trace::Trace;
use crate::address::{Address, NodeId, RegionId};
use crate::batch::Content;
use crate::endpoint::Message;
use crate::executor::Handle;
use crate::fabric::Admitted;
use crate::memory::RegionMemory;
use fate::Late;
use schedule::Scheduled;
use std::cmp::Reverse;
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

/// The bytes that a lane counts: a message with its header.
pub(super) fn lane_bytes(len: usize) -> u64 {
    16 + (len as u64).next_multiple_of(16)
}

impl InboxState {
    /// The message is in its sender's lane no more.
    pub fn leave_lane(&mut self, message: &Message) {
        if let Some(outstanding) = self.lanes.get_mut(&message.from) {
            *outstanding = outstanding.saturating_sub(lane_bytes(message.bytes.len()));
        }
    }
}

#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    pub delay_ns: u64,
    pub cut: bool,
}

/// A batch under way.
pub(super) struct Flight {
    pub node: NodeId,
    /// The port of the endpoint that has posted it.
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
    /// Its initiator's machine has died: the fate of each instruction is undecided.
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
}
