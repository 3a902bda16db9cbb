//! Messages whose inbox had no room, kept until it has.
//!
//! ```text
//!   answer ──► inbox of the caller            has room: the usual case
//!         └──► queue of that inbox ──► inbox  no room: whichever worker of the node looks next sends it
//!                 │ full
//!                 └──► later requests of the caller are not executed but answered "ask again"
//! ```
//!
//! Invariants: an answer is never dropped while its caller can take it; messages of one queue are sent in their order; a queue holds
//! at most [`QUEUE_BYTES_MAX`] and one longest message, and "ask again" for as many questions as its caller has open. A caller takes
//! its answers while it waits, whatever else its node does, so no circle of full queues can last.
//!
//! A send may take a round trip, so no lock is held over it: a worker takes a queue's messages out, sends, and puts back in front what is
//! left. The emptied queue stays in its place meanwhile, so other workers put their messages behind, and leave its messages to the first.
//!
//! A node has one set of queues, not each worker its own: a worker may stop looking for long, and what it could not
//! send must not wait for it. A caller that has stopped holds up only its own requests: with one bound for all callers,
//! a stopped process would keep the node from answering the recovery that goes on without it.

use farhold_fabric::{Address, FabricError, NodeId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes in a queue from which on its caller's requests are answered "ask again": four times what a lane of an inbox takes.
const QUEUE_BYTES_MAX: usize = 1 << 20;
/// What a message costs beside its bytes.
const MESSAGE_BYTES: usize = 32;
/// How long the queues rest after an attempt: over a network each attempt may be a round trip.
pub(crate) const RETRY_NS: u64 = 20_000;

/// The queues of a node.
#[derive(Default)]
pub(crate) struct Unsent {
    any: AtomicBool,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    by_inbox: BTreeMap<Address, Queue>,
    again_ns: u64,
}

impl Queues {
    /// Takes out the messages of the next inbox whose messages no worker has taken.
    fn take_next(&mut self, from: Bound<Address>) -> Option<(Address, VecDeque<Vec<u8>>)> {
        let (to, queue) = self.by_inbox.range_mut((from, Bound::Unbounded)).find(|(_, queue)| !queue.is_taken)?;
        queue.is_taken = true;
        Some((*to, std::mem::take(&mut queue.messages)))
    }

    /// Puts back what is left of what was taken, before what has come meanwhile.
    fn put_back(&mut self, to: Address, mut left: VecDeque<Vec<u8>>) {
        let Some(queue) = self.by_inbox.get_mut(&to) else { return };
        left.append(&mut queue.messages);
        if left.is_empty() {
            self.by_inbox.remove(&to);
        } else {
            let bytes = left.iter().map(|message| message.len() + MESSAGE_BYTES).sum();
            *queue = Queue { messages: left, bytes, is_taken: false };
        }
    }
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Vec<u8>>,
    /// Of all its messages, also of those that a worker has taken out to send them.
    bytes: usize,
    /// A worker has taken messages out.
    is_taken: bool,
}

/// Is this the error that there is no room, or no lane for another sender?
fn is_full(error: &FabricError) -> bool {
    matches!(error, FabricError::QueueFull { .. } | FabricError::TooManySenders { .. })
}

impl Queue {
    fn push(&mut self, message: Vec<u8>) {
        self.bytes += message.len() + MESSAGE_BYTES;
        self.messages.push_back(message);
    }
}

/// Sends what the inbox takes, and leaves the rest.
fn send_first(messages: &mut VecDeque<Vec<u8>>, mut send: impl FnMut(&[u8]) -> Result<(), FabricError>) {
    while let Some(message) = messages.front() {
        match send(message) {
            Ok(()) => drop(messages.pop_front()),
            // Another worker of the node may have a lane there.
            Err(error) if is_full(&error) => return,
            // That inbox has no reader any more.
            Err(_) => return messages.clear(),
        }
    }
}

impl Unsent {
    /// Sends a message, or keeps it until its inbox has room.
    ///
    /// # Errors
    /// Those of [`Endpoint::send`](farhold_fabric::Endpoint::send) but that the inbox is full, or has no lane for another sender.
    pub fn send_or_keep(
        &self,
        to: Address,
        message: &[u8],
        mut send: impl FnMut(&[u8]) -> Result<(), FabricError>,
    ) -> Result<(), FabricError> {
        // What this worker has put into the queue earlier must not be behind what it sends now.
        if !self.keeps_some(to) {
            match send(message) {
                Err(error) if is_full(&error) => {}
                sent_or_failed => return sent_or_failed,
            }
        }
        let mut queues = self.lock();
        queues.by_inbox.entry(to).or_default().push(message.to_vec());
        self.any.store(true, Release);
        Ok(())
    }

    /// Is no message waiting to be sent?
    pub fn is_empty(&self) -> bool {
        !self.any.load(Acquire)
    }

    /// Does something wait for room in this inbox? True as well while a worker sends what it has taken out.
    #[inline]
    pub fn keeps_some(&self, to: Address) -> bool {
        !self.is_empty() && self.lock().by_inbox.contains_key(&to)
    }

    /// Must the caller that reads this inbox ask again?
    pub fn is_full(&self, to: Address) -> bool {
        !self.is_empty() && self.lock().by_inbox.get(&to).is_some_and(|queue| queue.bytes >= QUEUE_BYTES_MAX)
    }

    /// Sends what the inboxes take by now, and forgets what was for nodes that are not present.
    #[cold]
    pub fn send_some(
        &self,
        now_ns: u64,
        is_present: impl Fn(NodeId) -> bool,
        mut send: impl FnMut(Address, &[u8]) -> Result<(), FabricError>,
    ) {
        // Another worker is sending them.
        let Ok(mut queues) = self.queues.try_lock() else { return };
        if now_ns < queues.again_ns {
            return;
        }
        queues.again_ns = now_ns + RETRY_NS;
        queues.by_inbox.retain(|to, queue| is_present(to.node) || queue.is_taken);
        let mut from = Bound::Unbounded;
        // One at a time: the others are for other workers, should this send take long.
        while let Some((to, mut messages)) = queues.take_next(from) {
            drop(queues);
            send_first(&mut messages, |message| send(to, message));
            queues = self.lock();
            queues.put_back(to, messages);
            from = Bound::Excluded(to);
        }
        self.any.store(!queues.by_inbox.is_empty(), Release);
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    const TO: Address = Address { node: NodeId(1), port: 3 };
    const OTHER: Address = Address { node: NodeId(2), port: 3 };

    /// Messages wait in their order while the inbox is full, and only those of that inbox.
    #[test]
    fn a_full_inbox_gets_its_messages_later_in_order() {
        let (unsent, room, got) = (Unsent::default(), Cell::new(0_u32), RefCell::new(Vec::new()));
        let send = |to: Address, message: &[u8]| {
            if to == TO && room.get() == 0 {
                return Err(FabricError::QueueFull { to });
            }
            room.set(room.get().saturating_sub(1));
            got.borrow_mut().push((to, message.to_vec()));
            Ok(())
        };
        for number in 0..4 {
            unsent.send_or_keep(TO, &[number], |message| send(TO, message)).unwrap();
        }
        room.set(1);
        // Behind those that wait, though there is room for one.
        unsent.send_or_keep(TO, &[4], |message| send(TO, message)).unwrap();
        unsent.send_or_keep(OTHER, &[9], |message| send(OTHER, message)).unwrap();
        assert_eq!(*got.borrow(), [(OTHER, vec![9])]);
        room.set(3);
        unsent.send_some(100, |_| true, send);
        assert_eq!(got.borrow().len(), 4);
        room.set(9);
        unsent.send_some(100 + RETRY_NS - 1, |_| true, send);
        assert!(!unsent.is_empty(), "not so soon");
        unsent.send_some(100 + RETRY_NS, |_| true, send);
        assert!(unsent.is_empty());
        let numbers: Vec<u8> = got.borrow().iter().filter(|(to, _)| *to == TO).map(|(_, message)| message[0]).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }

    /// A send may take long. While one worker sends, others put more into the queue, and send to other inboxes: they wait for nothing,
    /// nothing is sent twice, overtaken or lost.
    #[test]
    fn workers_do_not_wait_for_each_others_sends() {
        let (unsent, got) = (Unsent::default(), RefCell::new(Vec::new()));
        let full = |to: Address| move |_: &[u8]| Err(FabricError::QueueFull { to });
        for number in 0..2 {
            unsent.send_or_keep(TO, &[number], full(TO)).unwrap();
        }
        let take = |to: Address, message: &[u8]| {
            got.borrow_mut().push((to, message[0]));
            Ok(())
        };
        // The first worker's send; the inbox takes one message of two.
        let slow = |to: Address, message: &[u8]| {
            if message[0] == 1 {
                return Err(FabricError::QueueFull { to });
            }
            // The second worker, meanwhile.
            assert!(!unsent.is_full(to));
            unsent.send_or_keep(OTHER, &[9], |message| take(OTHER, message)).unwrap();
            unsent.send_or_keep(to, &[2], |message| take(to, message)).unwrap();
            unsent.send_some(1 + RETRY_NS, |_| true, take);
            take(to, message)
        };
        unsent.send_some(1, |_| true, slow);
        assert_eq!(*got.borrow(), [(OTHER, 9), (TO, 0)]);
        assert!(!unsent.is_empty());
        unsent.send_some(1 + 2 * RETRY_NS, |_| true, take);
        assert_eq!(*got.borrow(), [(OTHER, 9), (TO, 0), (TO, 1), (TO, 2)]);
        assert!(unsent.is_empty());
    }

    /// What is kept for one caller has a bound; for one that is gone nothing is kept.
    #[test]
    fn a_queue_is_full_and_a_dead_callers_is_forgotten() {
        let (unsent, is_gone) = (Unsent::default(), Cell::new(false));
        let send = |to: Address, _: &[u8]| {
            Err(if is_gone.get() { FabricError::NoSuchPort { to } } else { FabricError::TooManySenders { to } })
        };
        let mut count = 0;
        while !unsent.is_full(TO) {
            unsent.send_or_keep(TO, &vec![7; 60_000], |message| send(TO, message)).unwrap();
            unsent.send_or_keep(OTHER, &[7], |message| send(OTHER, message)).unwrap();
            count += 1;
        }
        assert!((15..20).contains(&count), "{count} messages");
        assert!(!unsent.is_full(OTHER));
        unsent.send_some(1, |node| node != OTHER.node, send);
        is_gone.set(true);
        unsent.send_some(1 + RETRY_NS, |_| true, send);
        assert!(unsent.is_empty());
    }
}
