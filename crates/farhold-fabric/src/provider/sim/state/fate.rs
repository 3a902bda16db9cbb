//! The fate of instructions that no initiator waits for: those of a dead machine, and those that were given up.

use super::{Event, Flight, State};
use crate::address::{Address, NodeId};
use crate::batch::OpKind;
use crate::provider::sim::model::Hop;
use crate::provider::sim::touch::touch;
use crate::provider::sim::trace::What;

/// The bit of a key that marks an instruction as made late.
pub(super) const DECIDED: u64 = 1 << 63;
/// How long an instruction of a dead machine may linger in the network.
const LINGER_NS_MAX: u64 = 3_000_000;

/// An instruction that has been given up, and may still be executed.
pub(super) struct Late {
    /// Of its own.
    pub(super) flight: u64,
    from: Address,
    to: NodeId,
    posted: u64,
}

impl State {
    /// Decides about a line of an instruction of a dead machine: it goes on, it never comes (any further), or it comes late.
    pub(super) fn is_lost(&mut self, number: u64, index: u32, step: u32) -> bool {
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

    /// A lost instruction is about to be given up; it may still be executed.
    #[cold]
    pub(super) fn may_come_late(&mut self, number: u64, index: u32, step: u32) {
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

    /// Something of an endpoint has arrived at a node: earlier instructions of the endpoint no longer arrive there.
    #[cold]
    pub(super) fn too_late(&mut self, from: Address, to: NodeId, posted: u64) {
        let is_before = |late: &Late| late.from == from && late.to == to && late.posted < posted;
        for late in self.late.extract_if(.., |late| is_before(late)) {
            self.flights.remove(late.flight);
        }
    }

    /// Executes the rest of an instruction that was given up, at once: what follows it on its connection comes later.
    #[cold]
    pub(super) fn land(&mut self, number: u64, index: u32, mut step: u32) {
        let Some(mut flight) = self.flights.remove(number) else { return };
        let (at, key) = (flight.content.ops[index as usize].at, flight.keys[index as usize] & !DECIDED);
        let hop = Hop { from: flight.node, to: at.node() };
        self.trace.event(self.now_ns, What::Step, [at.to_bits(), u64::from(hop.from.0) << 48 | u64::from(step)]);
        let Ok(memory) = self.target(hop, flight.incarnation, at, key) else { return };
        while touch(&mut flight.content, index as usize, &memory, step as usize) == Ok(true) {
            step += 1;
        }
    }
}
