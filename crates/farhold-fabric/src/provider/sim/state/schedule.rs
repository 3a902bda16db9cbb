//! What happens next, and when: events in the order of their times, and the timer that wakes the engine for the first.

use super::{Event, State};
use crate::executor::Handle;
use std::cmp::{Ordering, Reverse};
use std::task::Waker;

/// An event and its time; those of one time go by the order of their scheduling.
pub(super) struct Scheduled {
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

impl State {
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

    /// Notes that the engine runs.
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

    /// After an event has been scheduled while the engine sleeps: makes the engine wake in time.
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
}
