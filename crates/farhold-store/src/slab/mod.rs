//! Slots for objects: pages of one class of one table, and the caches that let each worker take and give them without others.
//!
//! ```text
//!  AllocCache (a worker's)          TableSlab (a table's)             Pages (the region's)
//!   table -> class -> free slots  <── batches, under its lock ──>  free slots  <── runs of pages ──>  free runs
//!                  -> bump range                                    runs                              page table
//! ```
//!
//! A slot that is given back keeps its version and gets the next incarnation at once, so old references to it are stale
//! from then on; it may be handed out again immediately.

mod cache;
mod pages;

pub use cache::AllocCache;
pub(crate) use cache::retire;
pub(crate) use pages::{ENTRY_BYTES, Pages};
pub use pages::{PageEvent, PageKind, PageTable, Run};

use crate::error::TableId;
use crate::object::size_class::{COUNT, PAGE_BYTES, SizeClass};
use farhold_fabric::object::ALIGN;
use farhold_planted::Defect;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// A table's slots, except those in workers' caches.
#[derive(Debug)]
pub(crate) struct TableSlab {
    pub table: TableId,
    /// The place of this table in caches; it is reused after a drop, so `serial` must agree.
    pub place: usize,
    pub serial: u64,
    /// The table was dropped and its pages given back: caches forget their slots of it.
    pub dropped: AtomicBool,
    runs: RwLock<Runs>,
    /// Free slots by class, as offset / 16.
    free: Mutex<Box<[Vec<u32>; COUNT]>>,
}

/// Runs, and how many there are of each class.
#[derive(Debug)]
struct Runs {
    list: Vec<Run>,
    counts: Box<[u32; COUNT]>,
}

impl Runs {
    fn new(list: Vec<Run>) -> Self {
        let mut counts = Box::new([0; COUNT]);
        for run in &list {
            counts[run.class.0 as usize] += 1;
        }
        Self { list, counts }
    }
}

/// Short runs of a class before the first long one: then a long one that stays empty is a thirtieth of the class at most.
/// (At 32, TPC-C's customers, rows of sixteen lengths, took 2 % more.)
const SHORT_RUNS: u32 = 128;

impl TableSlab {
    pub fn new(table: TableId, place: usize, serial: u64, runs: Vec<Run>) -> Self {
        let free = Mutex::new(Box::new([const { Vec::new() }; COUNT]));
        Self { table, place, serial, dropped: AtomicBool::new(false), runs: RwLock::new(Runs::new(runs)), free }
    }

    pub fn runs(&self) -> Vec<Run> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).list.clone()
    }

    /// How long the next run of a class is to be.
    pub fn next_run_pages(&self, class: SizeClass) -> u32 {
        let few = self.runs.read().unwrap_or_else(PoisonError::into_inner).counts[class.0 as usize] < SHORT_RUNS;
        if few { class.run_pages_min() } else { class.run_pages() }
    }

    pub fn add_run(&self, run: Run) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        runs.counts[run.class.0 as usize] += 1;
        runs.list.push(run);
    }

    pub fn take_runs(&self) -> Vec<Run> {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *runs, Runs::new(Vec::new())).list
    }

    pub fn run_count_pages(&self) -> u64 {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).list.iter().map(|run| u64::from(run.pages)).sum()
    }

    /// The free slots that no cache has.
    pub fn free(&self) -> MutexGuard<'_, Box<[Vec<u32>; COUNT]>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out runs with all their slots in the shared free list.
    pub fn take_empty_runs(&self, free: &mut [Vec<u32>; COUNT]) -> Vec<Run> {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let mut empty = Vec::new();
        let used_max = usize::from(farhold_planted::is(Defect::PagesInUse));
        for class in (0..COUNT as u8).map(SizeClass) {
            let slots = &mut free[class.0 as usize];
            if slots.len() < class.slots(class.run_pages_min()) as usize {
                continue;
            }
            slots.sort_unstable();
            let Runs { list, counts } = &mut *runs;
            list.retain(|run| {
                let offset = |unit: &u32| u64::from(*unit) * ALIGN;
                let end = run.offset() + u64::from(run.pages) * PAGE_BYTES;
                if run.class != class {
                    return true;
                }
                let first = slots.partition_point(|unit| offset(unit) < run.offset());
                let last = slots.partition_point(|unit| offset(unit) < end);
                let whole = last - first + used_max >= run.slot_count() as usize;
                if whole {
                    slots.drain(first..last);
                    empty.push(*run);
                    counts[class.0 as usize] -= 1;
                }
                !whole
            });
        }
        empty
    }
}
