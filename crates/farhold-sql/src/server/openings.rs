//! The TCP connections whose client has not shown who it is.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Those of all front-end threads, the oldest first. Above the limit a new one waits, and the next ones behind it in the listener's queue, until
/// one is done, or it takes the place of the oldest once that had `patience`: clients that come together wait for each other, and strangers
/// that stay silent keep nobody out for longer.
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

    /// Takes a place as soon as there is one: some time after `patience` at the latest. One caller at a time.
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

    /// A place, or from when on the oldest one's can be taken.
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
    /// Completes when a newer one has taken its place.
    pub async fn displaced(&mut self) {
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.openings.waiting().oldest_first.retain(|entry| entry.number != self.number);
        // Only one waits, and it looks before it does.
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

    /// The oldest loses its place to who waits, when it has had its time, and to nobody else.
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
        // Nobody has waited since then.
        let fourth = openings.place(start + 100 * PATIENCE).ok().unwrap();
        assert!(is_displaced(&mut second) && !is_displaced(&mut third));
        drop(fourth);
        let _fifth = openings.place(start + 100 * PATIENCE).ok().unwrap();
        assert!(!is_displaced(&mut third), "who is done has made room");
    }
}
