//! Slots for objects: pages of one class of one table, and the caches that let each worker take and give them alone.
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
pub(crate) use pages::{ENTRY_BYTES, Pages};
pub use pages::{PageKind, PageTable, Run};

use crate::error::TableId;
use crate::object::size_class::{COUNT, PAGE_BYTES, SizeClass};
use farhold_fabric::object::ALIGN;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// A table's slots, as far as no worker's cache has them.
#[derive(Debug)]
pub(crate) struct TableSlab {
    pub table: TableId,
    /// Where caches keep this table; used again after a drop, so `serial` must agree.
    pub place: usize,
    pub serial: u64,
    /// The table is gone and its pages given back: caches forget what they hold of it.
    pub dropped: AtomicBool,
    runs: RwLock<Vec<Run>>,
    /// Free slots by class, as offset / 16.
    free: Mutex<Box<[Vec<u32>; COUNT]>>,
}

impl TableSlab {
    pub fn new(table: TableId, place: usize, serial: u64, runs: Vec<Run>) -> Self {
        let free = Mutex::new(Box::new([const { Vec::new() }; COUNT]));
        Self { table, place, serial, dropped: AtomicBool::new(false), runs: RwLock::new(runs), free }
    }

    pub fn runs(&self) -> Vec<Run> {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn add_run(&self, run: Run) {
        self.runs.write().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    pub fn take_runs(&self) -> Vec<Run> {
        std::mem::take(&mut *self.runs.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn run_count_pages(&self) -> u64 {
        self.runs.read().unwrap_or_else(PoisonError::into_inner).iter().map(|run| u64::from(run.pages)).sum()
    }

    /// The free slots that no cache has.
    pub fn free(&self) -> MutexGuard<'_, Box<[Vec<u32>; COUNT]>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes runs out whose slots all lie in the shared free list.
    pub fn take_empty_runs(&self, free: &mut [Vec<u32>; COUNT]) -> Vec<Run> {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        let mut empty = Vec::new();
        for class in (0..COUNT as u8).map(SizeClass) {
            let slots = &mut free[class.0 as usize];
            if slots.len() < class.slots() as usize {
                continue;
            }
            slots.sort_unstable();
            runs.retain(|run| {
                let offset = |unit: &u32| u64::from(*unit) * ALIGN;
                let end = run.offset() + u64::from(run.pages) * PAGE_BYTES;
                if run.class != class {
                    return true;
                }
                let first = slots.partition_point(|unit| offset(unit) < run.offset());
                let last = slots.partition_point(|unit| offset(unit) < end);
                let whole = last - first == class.slots() as usize;
                if whole {
                    slots.drain(first..last);
                    empty.push(*run);
                }
                !whole
            });
        }
        empty
    }
}
