//! What a node's workers say of themselves to the rest of the node: whether transactions run, and what became of them.
//!
//! A transaction counts itself into its worker's slot under the phase that it finds. Who wants to know that every
//! transaction begun so far is over turns the phase and waits for the old one's counts to be zero.

use crate::TxnError;
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// How many workers a node can have: the number is a byte of the lock word.
pub(crate) const WORKERS_MAX: usize = 255;

/// All slots of a node.
pub(crate) struct Slots {
    all: Box<[Slot]>,
    phase: AtomicU64,
    /// Counts of workers that are gone.
    past: Counts,
}

/// One worker's. Written by that worker alone, on lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    taken: AtomicBool,
    running: [AtomicU64; 2],
    counts: Counts,
}

/// What a worker has counted.
#[derive(Default)]
pub(crate) struct Counts([AtomicU64; COUNTERS]);

/// Which count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    Commits,
    AbortsValidation,
    AbortsLock,
    AbortsOther,
    Retries,
    RequestsServed,
    FarCommits,
    InboxLooks,
}
const COUNTERS: usize = 8;

/// Counts since the node was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Transactions committed, read-only ones included.
    pub commits: u64,
    /// Of these: with rows of other nodes.
    pub commits_far: u64,
    /// Commits refused because a row or a range read had changed.
    pub aborts_validation: u64,
    /// Commits refused because a row to write was locked by another.
    pub aborts_lock: u64,
    /// Transactions stopped for another reason: the caller, an error, a conflict met before the commit.
    pub aborts_other: u64,
    /// Times that [`Worker::run`](crate::Worker::run) started a transaction again.
    pub retries: u64,
    /// Requests answered for other nodes.
    pub requests_served: u64,
}

impl std::ops::Add for Statistics {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            commits: self.commits + other.commits,
            commits_far: self.commits_far + other.commits_far,
            aborts_validation: self.aborts_validation + other.aborts_validation,
            aborts_lock: self.aborts_lock + other.aborts_lock,
            aborts_other: self.aborts_other + other.aborts_other,
            retries: self.retries + other.retries,
            requests_served: self.requests_served + other.requests_served,
        }
    }
}

impl Counts {
    #[inline]
    fn add(&self, counter: Counter, by: u64) {
        // One writer: a load and a store do, without the lock prefix of an atomic add.
        let count = &self.0[counter as usize];
        count.store(count.load(Relaxed) + by, Relaxed);
    }

    fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Relaxed)
    }
}

impl Slots {
    pub fn new() -> Self {
        Self {
            all: (0..WORKERS_MAX).map(|_| Slot::default()).collect(),
            phase: AtomicU64::new(0),
            past: Counts(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    /// Takes a slot for this thread.
    ///
    /// # Errors
    /// All are taken.
    pub fn take(self: &Arc<Self>) -> Result<OwnSlot, TxnError> {
        let free = |slot: &Slot| slot.taken.compare_exchange(false, true, SeqCst, Relaxed).is_ok();
        let number = self
            .all
            .iter()
            .position(free)
            .ok_or(TxnError::TooMany { what: "workers of a node", limit: WORKERS_MAX })?;
        Ok(OwnSlot { slots: self.clone(), number, _not_send: PhantomData })
    }

    pub fn statistics(&self) -> Statistics {
        let get = |counter| {
            let of_slots: u64 = self.all.iter().map(|slot| slot.counts.get(counter)).sum();
            of_slots + self.past.get(counter)
        };
        Statistics {
            commits: get(Counter::Commits),
            commits_far: get(Counter::FarCommits),
            aborts_validation: get(Counter::AbortsValidation),
            aborts_lock: get(Counter::AbortsLock),
            aborts_other: get(Counter::AbortsOther),
            retries: get(Counter::Retries),
            requests_served: get(Counter::RequestsServed),
        }
    }

    /// How often the present workers have looked into the node's inbox.
    pub fn inbox_looks(&self) -> u64 {
        self.all.iter().map(|slot| slot.counts.get(Counter::InboxLooks)).sum()
    }

    /// Begins to wait: [`Self::is_over`] will tell of every transaction that runs now.
    ///
    /// Two waits may overlap; each then also waits for some of the transactions begun since, which is harmless.
    pub fn turn_phase(&self) -> u64 {
        self.phase.fetch_add(1, SeqCst)
    }

    /// Has every transaction ended that ran when `turn_phase` returned `phase`?
    pub fn is_over(&self, phase: u64) -> bool {
        let old = (phase & 1) as usize;
        self.all.iter().all(|slot| slot.running[old].load(SeqCst) == 0)
    }
}

/// The slot of this thread's worker.
pub(crate) struct OwnSlot {
    slots: Arc<Slots>,
    number: usize,
    _not_send: PhantomData<Cell<()>>,
}

/// A transaction that has counted itself in; to be counted out with [`OwnSlot::end`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running(u8);

impl OwnSlot {
    #[inline]
    fn slot(&self) -> &Slot {
        &self.slots.all[self.number]
    }

    /// The worker's number.
    pub fn number(&self) -> u8 {
        self.number as u8
    }

    /// Counts a transaction in. What it reads from here on, it reads after the count is visible.
    #[inline]
    pub fn begin(&self) -> Running {
        let phase = (self.slots.phase.load(Relaxed) & 1) as u8;
        let running = &self.slot().running[usize::from(phase)];
        // The swap's full barrier is what orders the count before the transaction's reads; nobody else writes the word.
        running.swap(running.load(Relaxed) + 1, SeqCst);
        Running(phase)
    }

    /// Counts a transaction out.
    #[inline]
    pub fn end(&self, running: Running) {
        let running = &self.slot().running[usize::from(running.0)];
        running.store(running.load(Relaxed) - 1, Release);
    }

    #[inline]
    pub fn count(&self, counter: Counter) {
        self.slot().counts.add(counter, 1);
    }
}

impl Drop for OwnSlot {
    fn drop(&mut self) {
        for (past, count) in self.slots.past.0.iter().zip(&self.slot().counts.0) {
            past.fetch_add(count.swap(0, Relaxed), Acquire);
        }
        self.slot().taken.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_over_when_the_transactions_of_before_are() {
        let slots = Arc::new(Slots::new());
        let (one, two) = (slots.take().expect("a slot"), slots.take().expect("a slot"));
        assert_ne!(one.number(), two.number());
        let before = one.begin();
        let phase = slots.turn_phase();
        let after = two.begin();
        assert!(!slots.is_over(phase));
        one.end(before);
        assert!(slots.is_over(phase), "the later transaction does not matter");
        two.end(after);
    }

    #[test]
    fn counts_outlive_their_worker() {
        let slots = Arc::new(Slots::new());
        let slot = slots.take().expect("a slot");
        slot.count(Counter::Commits);
        drop(slot);
        assert_eq!(slots.statistics().commits, 1);
        let all: Vec<_> = (0..WORKERS_MAX).map(|_| slots.take().expect("a slot")).collect();
        assert!(slots.take().is_err());
        drop(all);
    }
}
