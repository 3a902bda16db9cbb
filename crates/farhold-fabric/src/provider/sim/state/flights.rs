//! A batch under way: its instructions go out, touch memory line by line, and are answered.
//!
//! ```text
//!   start ──> step, step, step ... ──(respond, or fail and respond)──> done ──> end
//! ```

use super::fate::DECIDED;
use super::{Effects, Event, Flight, State};
use crate::address::Address;
use crate::batch::{Content, OpKind, State as OpState};
use crate::error::FabricError;
use crate::provider::sim::model::Hop;
use crate::provider::sim::touch::touch;
use crate::provider::sim::trace::What;

impl State {
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

    /// Does line `step` of an instruction.
    pub(super) fn step(&mut self, number: u64, index: u32, step: u32) {
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
            Ok(false) => {
                if kind == OpKind::Flush {
                    self.make_durable(at, len);
                }
                let mut ns = self.model.response_ns(hop, kind, len);
                if self.link(Hop { from: hop.to, to: hop.from }).cut {
                    self.fail(number, index, FabricError::NodeUnavailable { node: hop.to });
                    ns = self.model.give_up_ns();
                }
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

    fn fail(&mut self, number: u64, index: u32, error: FabricError) {
        if let Some(flight) = self.flights.get_mut(number) {
            flight.content.fail(index as usize, error);
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

    pub(super) fn done(&mut self, number: u64, effects: &mut Effects) {
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
