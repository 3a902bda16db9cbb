//! What a node's workers publish to the rest of the node: whether transactions run, and how they ended.
//!
//! A transaction counts itself into its worker's slot under the phase that it finds: see [`phases`].

use crate::base::error::TxnError;
use crate::base::phases::{self, Running};
use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

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
    /// Transactions of all its workers so far, while none has it.
    transactions: AtomicU32,
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
    HardwareCommits,
    HardwareFarCommits,
    HardwareChanged,
    HardwareLocked,
    HardwareNotPlain,
    HardwareConflicts,
    HardwareCapacity,
    HardwareUnexplained,
}
const COUNTERS: usize = 16;

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
    /// Commit sections as hardware transactions.
    pub hardware: Hardware,
}

/// Commit sections that were tried as hardware transactions, since the node was opened. Each number counts attempts; a section
/// has several, and takes the latches when they do not succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// Committed.
    pub commits: u64,
    /// Of these: the part on this node of transactions that wrote rows of other nodes.
    pub commits_far: u64,
    /// Aborted because a row or range read had changed: the transaction was refused.
    pub aborts_changed: u64,
    /// Aborted because a row to write was locked.
    pub aborts_locked: u64,
    /// Aborted because a snapshot was open or an index being made.
    pub aborts_not_plain: u64,
    /// Aborted by the processor: another thread used the same cache line.
    pub aborts_conflict: u64,
    /// Aborted by the processor: the cache did not hold all lines.
    pub aborts_capacity: u64,
    /// Aborted by the processor without a cause: a page that was not present, an interrupt, an instruction that it refuses.
    pub aborts_unexplained: u64,
}

impl Hardware {
    /// All attempts.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        self.commits
            + self.aborts_changed
            + self.aborts_locked
            + self.aborts_not_plain
            + self.aborts_conflict
            + self.aborts_capacity
            + self.aborts_unexplained
    }
}

impl std::ops::Add for Hardware {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            commits: self.commits + other.commits,
            commits_far: self.commits_far + other.commits_far,
            aborts_changed: self.aborts_changed + other.aborts_changed,
            aborts_locked: self.aborts_locked + other.aborts_locked,
            aborts_not_plain: self.aborts_not_plain + other.aborts_not_plain,
            aborts_conflict: self.aborts_conflict + other.aborts_conflict,
            aborts_capacity: self.aborts_capacity + other.aborts_capacity,
            aborts_unexplained: self.aborts_unexplained + other.aborts_unexplained,
        }
    }
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
            hardware: self.hardware + other.hardware,
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

impl Slot {
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, SeqCst, Relaxed).is_ok()
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
        self.own(self.all.iter().position(Slot::take), WORKERS_MAX)
    }

    /// Takes the last free slot of the first `below`, for a thread that lives for a short time. The first slots have rings; they stay
    /// free for threads that live longer.
    ///
    /// # Errors
    /// All of these are taken.
    pub fn take_last(self: &Arc<Self>, below: usize) -> Result<OwnSlot, TxnError> {
        let below = below.min(WORKERS_MAX);
        self.own(self.all[..below].iter().rposition(Slot::take), below)
    }

    fn own(self: &Arc<Self>, number: Option<usize>, limit: usize) -> Result<OwnSlot, TxnError> {
        let number = number.ok_or(TxnError::TooMany { what: "workers of a node", limit })?;
        let transactions = Cell::new(self.all[number].transactions.load(Relaxed));
        Ok(OwnSlot { slots: self.clone(), number, transactions, _not_send: PhantomData })
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
            hardware: Hardware {
                commits: get(Counter::HardwareCommits),
                commits_far: get(Counter::HardwareFarCommits),
                aborts_changed: get(Counter::HardwareChanged),
                aborts_locked: get(Counter::HardwareLocked),
                aborts_not_plain: get(Counter::HardwareNotPlain),
                aborts_conflict: get(Counter::HardwareConflicts),
                aborts_capacity: get(Counter::HardwareCapacity),
                aborts_unexplained: get(Counter::HardwareUnexplained),
            },
        }
    }

    /// How often the present workers have looked into the node's inbox.
    pub fn inbox_looks(&self) -> u64 {
        self.all.iter().map(|slot| slot.counts.get(Counter::InboxLooks)).sum()
    }

    /// Begins to wait: [`Self::is_over`] will report the end of every transaction that runs now. The earlier wait must be over, because
    /// there are counts for two phases.
    pub fn turn_phase(&self) -> u64 {
        phases::turn(&self.phase)
    }

    /// Has every transaction ended that ran when `turn_phase` returned `phase`?
    pub fn is_over(&self, phase: u64) -> bool {
        phases::is_over(phase, self.all.iter().map(|slot| &slot.running))
    }
}

/// The slot of this thread's worker.
pub(crate) struct OwnSlot {
    slots: Arc<Slots>,
    number: usize,
    transactions: Cell<u32>,
    _not_send: PhantomData<Cell<()>>,
}

impl OwnSlot {
    #[inline]
    fn slot(&self) -> &Slot {
        &self.slots.all[self.number]
    }

    /// The worker's number.
    pub fn number(&self) -> u8 {
        self.number as u8
    }

    /// The number of a new transaction. The count continues from one worker of this slot to the next, so that a late message
    /// of an earlier worker's transaction refers to no other transaction.
    #[inline]
    pub fn next_transaction(&self) -> u32 {
        let transaction = self.transactions.get().wrapping_add(1);
        self.transactions.set(transaction);
        transaction
    }

    /// Counts a transaction in. What it reads from here on, it reads after the count is visible.
    #[inline]
    pub fn begin(&self) -> Running {
        phases::begin(&self.slots.phase, &self.slot().running)
    }

    /// Counts a transaction out.
    #[inline]
    pub fn end(&self, running: Running) {
        phases::end(&self.slot().running, running);
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
        self.slot().transactions.store(self.transactions.get(), Relaxed);
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

    /// A transaction looks at the phase and is held up before it has counted itself in; the drop of one table comes to its end
    /// meanwhile. It then uses another table, which is dropped as well: the second drop must wait for it.
    #[test]
    fn the_second_of_two_waits_misses_no_transaction() {
        let slots = Arc::new(Slots::new());
        let one = slots.take().expect("a slot");
        let looked_at = slots.phase.load(Relaxed);
        let first = slots.turn_phase();
        assert!(slots.is_over(first), "it has not begun");
        assert!(phases::begin_in(&slots.phase, &one.slot().running, looked_at).is_none(), "it has to look again");
        let begun = one.begin();
        let second = slots.turn_phase();
        assert!(!slots.is_over(second), "it may use what is dropped second");
        one.end(begun);
        assert!(slots.is_over(first) && slots.is_over(second));
    }

    #[test]
    fn a_later_worker_of_a_number_repeats_no_transaction() {
        let slots = Arc::new(Slots::new());
        let one = slots.take().expect("a slot");
        let numbers = [one.next_transaction(), one.next_transaction()];
        let number = one.number();
        drop(one);
        let next = slots.take().expect("a slot");
        assert_eq!((next.number(), next.next_transaction()), (number, numbers[1] + 1));
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
