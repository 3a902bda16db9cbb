//! What a fault does to the cluster, and which faults are due.

use super::{Effects, Event, State};
use crate::address::NodeId;
use crate::provider::sim::faults::Fault;
use crate::provider::sim::trace::What;

impl State {
    pub fn schedule_fault(&mut self, at_ns: u64, fault: Fault) {
        self.plan.push(fault);
        self.schedule(at_ns, Event::Fault(self.plan.len() as u32 - 1));
    }

    #[cold]
    pub(super) fn do_what_comes_after(&mut self, effects: &mut Effects) {
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
                    // Of two pauses the longer one counts, as for the node's machine.
                    entry.paused_until_ns = entry.paused_until_ns.max(until_ns);
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
}
