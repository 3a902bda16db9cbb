//! The connections whose client has not shown who it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Those of all front-end threads, the oldest first. Above the limit a new one waits in the listener's queue until one is done, or takes
/// the place of the oldest once that had `patience`: clients that come together wait for each other, and strangers that stay silent keep
/// nobody out for longer.
pub struct Openings {
    count_max: usize,
    patience: Duration,
    waiting: Mutex<Waiting>,
    /// One is done.
    done: Notify,
}

#[derive(Default)]
struct Waiting {
    oldest_first: VecDeque<Entry>,
    next: u64,
}

struct Entry {
    number: u64,
    since: Instant,
    /// Its end tells the one that it is displaced.
    _displaced: oneshot::Sender<()>,
}

/// A place among them, given back when dropped.
pub struct Opening {
    openings: Arc<Openings>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl Openings {
    /// At most `count_max` at one time.
    pub fn new(count_max: usize, patience: Duration) -> Self {
        Self { count_max: count_max.max(1), patience, waiting: Mutex::default(), done: Notify::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Completes when there is room for another one: some time after `patience` at the latest.
    pub async fn room(&self) {
        loop {
            let done = self.done.notified();
            let Some(next_look) = self.make_room() else { return };
            tokio::select! {
                () = done => {}
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
    }

    /// When to look again, if there is no room.
    fn make_room(&self) -> Option<Instant> {
        let mut waiting = self.waiting();
        while waiting.oldest_first.len() >= self.count_max {
            let displaced_from = waiting.oldest_first[0].since + self.patience;
            if displaced_from > Instant::now() {
                return Some(displaced_from);
            }
            waiting.oldest_first.pop_front();
        }
        None
    }

    /// Takes a place.
    pub fn begin(self: &Arc<Self>) -> Opening {
        let mut waiting = self.waiting();
        let (sender, displaced) = oneshot::channel();
        let number = waiting.next;
        waiting.next += 1;
        waiting.oldest_first.push_back(Entry { number, since: Instant::now(), _displaced: sender });
        Opening { openings: Arc::clone(self), number, displaced }
    }
}

impl Opening {
    /// Completes when a newer one has taken its place.
    pub async fn displaced(&mut self) {
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.openings.waiting().oldest_first.retain(|entry| entry.number != self.number);
        // The acceptor is the only one that waits, and looks before it does.
        self.openings.done.notify_one();
    }
}
