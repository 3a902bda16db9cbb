//! Phases: how a thread learns that every transaction that was running when it asked has ended.
//!
//! ```text
//!   a transaction:  count in under the phase ─► is that still the phase? ─► run ─► count out
//!   a waiter:       take away what new ones must not find ─► turn the phase ─► wait until the old one's counts are 0
//! ```
//!
//! Each worker has a count for either parity of the phase, so there is one wait at a time. A transaction that looked at
//! the phase long ago would be counted under a parity whose wait is over, and the next wait would miss it. So it looks
//! again once it is counted.
//!
//! Every interleaving of a transaction and two waits is checked, on loom's words.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{self, Relaxed, Release, SeqCst};

/// A word that threads share: the processor's, or a model's.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        Self::swap(self, value, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        Self::fetch_add(self, value, order)
    }
}

/// A transaction that has been counted in; to be counted out by [`end`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running(u8);

/// Counts a transaction in, in its worker's own counts. What it reads from here on, it reads after the count is visible.
#[inline]
pub(crate) fn begin<W: Word>(phase: &W, running: &[W; 2]) -> Running {
    loop {
        if let Some(begun) = begin_in(phase, running, phase.load(Relaxed)) {
            return begun;
        }
    }
}

/// As [`begin`], in the phase that was seen, unless it has been turned meanwhile.
#[inline]
pub(crate) fn begin_in<W: Word>(phase: &W, running: &[W; 2], seen: u64) -> Option<Running> {
    let begun = count_in(running, seen);
    if phase.load(SeqCst) == seen {
        return Some(begun);
    }
    end(running, begun);
    None
}

#[inline]
fn count_in<W: Word>(running: &[W; 2], seen: u64) -> Running {
    crate::base::planted::may_stop();
    let parity = (seen & 1) as u8;
    let count = &running[usize::from(parity)];
    // The swap's full barrier is what orders the count before the transaction's reads, and before the second look at
    // the phase. No other thread writes the word.
    count.swap(count.load(Relaxed) + 1, SeqCst);
    Running(parity)
}

/// Counts a transaction out.
#[inline]
pub(crate) fn end<W: Word>(running: &[W; 2], begun: Running) {
    let count = &running[usize::from(begun.0)];
    count.store(count.load(Relaxed) - 1, Release);
}

/// Begins to wait: [`is_over`] will report the end of every transaction that runs now. The earlier wait must be over.
pub(crate) fn turn<W: Word>(phase: &W) -> u64 {
    phase.fetch_add(1, SeqCst)
}

/// Has every transaction ended that ran when [`turn`] returned `phase`?
pub(crate) fn is_over<'w, W: Word + 'w>(phase: u64, all: impl IntoIterator<Item = &'w [W; 2]>) -> bool {
    let old = (phase & 1) as usize;
    all.into_iter().all(|running| running[old].load(SeqCst) == 0)
}

/// Transactions and two drops of tables under loom. That the model can see is shown by planted defects.
#[cfg(all(test, not(miri)))]
mod model {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as LoomWord;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Planted {
        Nothing,
        /// A transaction does not look at the phase again.
        FirstLook,
        /// What a transaction has read is not over when it is counted out.
        RelaxedEnd,
        /// A table can be found until its drop has turned the phase.
        DroppedLate,
    }

    struct Modelled {
        word: LoomWord,
        is_relaxed: bool,
    }

    impl Modelled {
        fn new(planted: Planted) -> Self {
            Self { word: LoomWord::new(0), is_relaxed: planted == Planted::RelaxedEnd }
        }
    }

    impl Word for Modelled {
        /// loom treats a sequentially consistent load as an acquire load, which may return a value of any age. In a single order of all
        /// such accesses a load returns the latest value; a read-modify-write that writes the value back does so in loom.
        fn load(&self, order: Ordering) -> u64 {
            if order == SeqCst { self.word.fetch_add(0, SeqCst) } else { self.word.load(order) }
        }

        /// An exchange, because loom lets such loads go on for ever without seeing a concurrent store.
        fn store(&self, value: u64, order: Ordering) {
            self.word.swap(value, if self.is_relaxed { Relaxed } else { order });
        }

        fn swap(&self, value: u64, order: Ordering) -> u64 {
            self.word.swap(value, order)
        }

        fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
            self.word.fetch_add(value, order)
        }
    }

    /// A node with one worker and two tables, whose memory loom watches.
    struct Node {
        phase: Modelled,
        running: [Modelled; 2],
        dropped: [LoomWord; 2],
        tables: [UnsafeCell<()>; 2],
        planted: Planted,
    }

    // SAFETY: the cells hold no data. The test checks which thread accesses them when: loom reports concurrent accesses.
    unsafe impl Sync for Node {}
    // SAFETY: as above.
    unsafe impl Send for Node {}

    impl Node {
        fn new(planted: Planted) -> Self {
            Self {
                phase: Modelled::new(planted),
                running: [planted; 2].map(Modelled::new),
                dropped: [0; 2].map(LoomWord::new),
                tables: [(); 2].map(UnsafeCell::new),
                planted,
            }
        }

        /// Uses each table that it finds.
        fn transaction(&self) {
            let begun = if self.planted == Planted::FirstLook {
                count_in(&self.running, self.phase.load(Relaxed))
            } else {
                begin(&self.phase, &self.running)
            };
            for (dropped, table) in self.dropped.iter().zip(&self.tables) {
                if dropped.load(Relaxed) == 0 {
                    table.with(|_| ());
                }
            }
            end(&self.running, begun);
        }

        /// Drops one table after the other, each as soon as it is no longer in use.
        fn drop_tables(&self) {
            for (dropped, table) in self.dropped.iter().zip(&self.tables) {
                let is_late = self.planted == Planted::DroppedLate;
                if !is_late {
                    dropped.store(1, SeqCst);
                }
                let phase = turn(&self.phase);
                if is_late {
                    dropped.store(1, SeqCst);
                }
                while !is_over(phase, [&self.running]) {
                    loom::thread::yield_now();
                }
                table.with_mut(|_| ());
            }
        }
    }

    fn check(planted: Planted) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let node = Arc::new(Node::new(planted));
            let worker = {
                let node = node.clone();
                loom::thread::spawn(move || (0..2).for_each(|_| node.transaction()))
            };
            node.drop_tables();
            worker.join().expect("no panic");
        });
    }

    #[test]
    fn no_transaction_uses_a_table_that_is_gone() {
        check(Planted::Nothing);
    }

    #[test]
    fn planted_defects_are_found() {
        for planted in [Planted::FirstLook, Planted::RelaxedEnd, Planted::DroppedLate] {
            let found = std::panic::catch_unwind(|| check(planted));
            assert!(found.is_err(), "{planted:?}, and the model saw nothing");
        }
    }
}
