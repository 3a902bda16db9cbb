//! The TCP connections whose client has not authenticated yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The opening connections of all front-end threads, the oldest first. At the limit a new one waits, and later ones
/// queue behind it in the listener. It gets a place when another one finishes, or it displaces the oldest once that has
/// had `patience`. So clients that connect at the same time wait for each other, and idle unauthenticated clients block
/// others no longer than that.
pub struct Openings {
    count_max: usize,
    patience: Duration,
    waiting: Mutex<Waiting>,
    /// Notified when one has finished.
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
    /// Dropping it notifies the displaced connection.
    _displaced: oneshot::Sender<()>,
}

/// A place among the opening connections, returned when dropped.
pub struct Opening {
    openings: Arc<Openings>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl Openings {
    /// Allows `count_max` opening connections at a time.
    pub fn new(count_max: usize, patience: Duration) -> Self {
        Self { count_max: count_max.max(1), patience, waiting: Mutex::default(), done: Notify::new() }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes a place as soon as one is free, at the latest soon after `patience`. Only one caller may wait at a time.
    pub async fn begin(self: &Arc<Self>) -> Opening {
        loop {
            let done = self.done.notified();
            let displaced_from = match self.place(Instant::now()) {
                Ok(opening) => return opening,
                Err(displaced_from) => displaced_from,
            };
            tokio::select! {
                () = done => {}
                () = tokio::time::sleep_until(displaced_from) => {}
            }
        }
    }

    /// A place, or the time from which the oldest one can be displaced.
    fn place(self: &Arc<Self>, now: Instant) -> Result<Opening, Instant> {
        let mut waiting = self.waiting();
        if waiting.oldest_first.len() >= self.count_max {
            let displaced_from = waiting.oldest_first[0].since + self.patience;
            if displaced_from > now {
                return Err(displaced_from);
            }
            waiting.oldest_first.pop_front();
        }
        let (sender, displaced) = oneshot::channel();
        let number = waiting.next;
        waiting.next += 1;
        waiting.oldest_first.push_back(Entry { number, since: now, _displaced: sender });
        Ok(Opening { openings: Arc::clone(self), number, displaced })
    }
}

impl Opening {
    /// Completes when a newer connection has taken the place.
    pub async fn displaced(&mut self) {
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.openings.waiting().oldest_first.retain(|entry| entry.number != self.number);
        // There is only one waiter, and it checks before it waits.
        self.openings.done.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(1);

    fn is_displaced(opening: &mut Opening) -> bool {
        opening.displaced().now_or_never().is_some()
    }

    /// The oldest loses its place only to a waiting connection, and only after `patience`.
    #[test]
    fn the_oldest_makes_room_for_who_waits() {
        let openings = Arc::new(Openings::new(2, PATIENCE));
        let start = Instant::now();
        let mut first = openings.place(start).ok().unwrap();
        let mut second = openings.place(start + PATIENCE / 4).ok().unwrap();
        assert_eq!(openings.place(start + PATIENCE / 2).err(), Some(start + PATIENCE));
        assert!(!is_displaced(&mut first));
        let mut third = openings.place(start + PATIENCE).ok().unwrap();
        assert!(is_displaced(&mut first) && !is_displaced(&mut second));
        // No connection has waited since then.
        let fourth = openings.place(start + 100 * PATIENCE).ok().unwrap();
        assert!(is_displaced(&mut second) && !is_displaced(&mut third));
        drop(fourth);
        let _fifth = openings.place(start + 100 * PATIENCE).ok().unwrap();
        assert!(!is_displaced(&mut third), "who is done has made room");
    }
}
