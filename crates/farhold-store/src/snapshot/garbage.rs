//! Slots that only open snapshots may still look at, and when they go.
//!
//! A copy that ended at epoch E (it was overwritten, or its row deleted, by a commit of E) is seen by snapshots below E
//! alone. New snapshots get the epoch of now, which is E at least; so once no open one is below E, nobody can come to it.

use crate::slab::{AllocCache, TableSlab};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

/// Slots to free, oldest end first (nearly: epochs are read before entries are made).
#[derive(Default)]
pub(crate) struct Garbage(VecDeque<Ended>);

struct Ended {
    epoch: u32,
    slab: Arc<TableSlab>,
    offset: u64,
}

impl Garbage {
    pub fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
    }
}

impl fmt::Debug for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots held back for snapshots", self.0.len())
    }
}

impl AllocCache {
    /// Frees a slot whose content ended at `epoch`, now or when no open snapshot is older.
    pub(crate) fn give_after(&mut self, slab: &Arc<TableSlab>, offset: u64, epoch: u32) {
        if self.store().superblock().snapshots_open() {
            self.garbage.0.push_back(Ended { epoch, slab: slab.clone(), offset });
        } else {
            if !self.garbage.0.is_empty() {
                self.collect();
            }
            self.give(slab, offset);
        }
    }

    /// How many slots wait for snapshots to close.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.garbage.0.len()
    }

    /// Frees the slots that no open snapshot needs any more. A worker calls it now and then (every few hundred
    /// transactions, and when idle); memory that snapshots held back is free only afterwards.
    pub fn collect(&mut self) {
        let mut left = self.store().take_left_garbage();
        self.garbage.append(&mut left);
        if self.garbage.0.is_empty() {
            return;
        }
        let oldest = self.store().superblock().oldest_snapshot();
        while let Some(ended) = self.garbage.0.pop_front_if(|ended| ended.epoch <= oldest) {
            if !ended.slab.dropped.load(Acquire) {
                self.give(&ended.slab, ended.offset);
            }
        }
    }
}
