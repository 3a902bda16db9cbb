//! A count that many threads change and few read: one cell for each thread, while there are cells.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicIsize, AtomicUsize};

/// More threads than this share cells; the count stays right.
const CELLS: usize = 16;

/// Two cache lines each, since x86 prefetches them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Padded(AtomicIsize);

#[derive(Default)]
pub(crate) struct Counter([Padded; CELLS]);

impl Counter {
    #[inline]
    pub fn add(&self, difference: isize) {
        self.0[own_cell()].0.fetch_add(difference, Relaxed);
    }

    /// Exact when no write is under way.
    pub fn sum(&self) -> usize {
        let sum: isize = self.0.iter().map(|cell| cell.0.load(Relaxed)).sum();
        usize::try_from(sum).unwrap_or(0)
    }
}

fn own_cell() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    const NONE: usize = usize::MAX;
    thread_local!(static OWN: Cell<usize> = const { Cell::new(NONE) });
    OWN.with(|own| {
        if own.get() == NONE {
            own.set(NEXT.fetch_add(1, Relaxed) % CELLS);
        }
        own.get()
    })
}
