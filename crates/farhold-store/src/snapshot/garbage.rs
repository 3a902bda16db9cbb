//! Slots that only open snapshots may still read, and when they are freed.
//!
//! A copy that ended at epoch E (it was overwritten, or its row deleted, by a commit of E) is seen only by snapshots below E. New
//! snapshots get the present epoch, which is E at least. So once no open snapshot is below E, no reader can reach the copy.

use crate::slab::{AllocCache, TableSlab};
use farhold_planted::Defect;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Slots that a cache holds back by itself. More go to the store, where every worker frees them, because the worker that made
/// them may be idle.
const OWN_MAX: usize = 64;
/// Slots of the store's that one collection frees at most, so that no worker waits for long.
const COLLECTED_MAX: usize = 4_096;

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

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes out what no snapshot from `oldest` on needs, in order, and at most what a collection frees.
    pub fn take_ended(&mut self, oldest: u32) -> Self {
        let count = self.0.iter().take(COLLECTED_MAX).take_while(|ended| ended.epoch <= oldest).count();
        Self(self.0.drain(..count).collect())
    }
}

impl fmt::Debug for Garbage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots held back for snapshots", self.0.len())
    }
}

impl AllocCache {
    /// Frees a slot with content that ended at `epoch`: now, or when no open snapshot is older and no thread copies it.
    pub(crate) fn give_after(&mut self, slab: &Arc<TableSlab>, offset: u64, epoch: u32) {
        let is_seen = self.store().superblock().snapshots_open() && !farhold_planted::is(Defect::CopiesNotHeld);
        if is_seen || self.store().copied().has(offset) {
            self.garbage.0.push_back(Ended { epoch, slab: slab.clone(), offset });
            if self.garbage.len() >= OWN_MAX {
                let garbage = std::mem::take(&mut self.garbage);
                self.store().leave_garbage(garbage);
            }
        } else {
            if !self.garbage.0.is_empty() {
                self.collect();
            }
            self.give(slab, offset);
        }
    }

    /// How many slots wait for snapshots to close: those of this cache, and those that no cache has.
    #[must_use]
    pub fn held_back(&self) -> usize {
        self.garbage.len() + self.store().left_garbage()
    }

    /// Frees slots that no open snapshot needs any more, of this cache and of those that no cache has; returns how many. A worker
    /// must call it now and then (every few hundred transactions, when idle, and when there is no memory). What snapshots held
    /// back is free only afterwards.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn collect(&mut self) -> usize {
        let mut ended = self.garbage.take_ended(self.store().superblock().oldest_snapshot());
        ended.append(&mut self.store().take_ended_garbage());
        let mut count = 0;
        for one in ended.0 {
            if self.store().copied().has(one.offset) {
                self.garbage.0.push_back(one);
            } else {
                count += usize::from(self.give_if_there(&one.slab, one.offset));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Object, Reserve, Snapshot, Store, TableDef, TableId, TableStore};
    use farhold_btree::KeyShape;
    use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};
    use std::sync::atomic::Ordering::Release;

    /// A table is dropped while a worker frees what a snapshot has held back of it. The table stays from the worker's check
    /// whether it is there until the worker's store.
    #[test]
    fn nothing_is_freed_while_a_table_goes() {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
        let table = TableStore::create(&store, def).expect("a table");
        let mut alloc = store.alloc_cache();
        let snapshot = Snapshot::open(&store).expect("a slot");
        let epoch = store.superblock().epoch();
        let reserved = table.reserve(&[0; 8], &[], &mut alloc, &|_| false, &mut |_| ());
        let Ok(Reserve::Reserved { reference, .. }) = reserved else { panic!("{reserved:?}") };
        alloc.give_after(table.slab(), reference.offset(), epoch);
        drop(snapshot);
        let meta = || Object::at(store.memory(), reference.offset()).meta();
        let before = meta();
        let freed = std::thread::scope(|scope| {
            let free = table.slab().free();
            let worker = scope.spawn(|| alloc.collect());
            for _ in 0..10_000 {
                if worker.is_finished() || meta() != before {
                    break;
                }
                std::thread::yield_now();
            }
            table.slab().dropped.store(true, Release);
            drop(free);
            worker.join().expect("a worker")
        });
        assert_eq!((freed, meta()), (0, before));
    }
    /// A worker is about to collect the garbage that no cache has, when a snapshot opens and a row that it reads ends: the row's
    /// slot stays.
    #[test]
    fn nothing_is_freed_that_a_snapshot_opened_meanwhile_needs() {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
        let table = TableStore::create(&store, def).expect("a table");
        let mut alloc = store.alloc_cache();
        let reserved = table.reserve(&[0; 8], &[], &mut alloc, &|_| false, &mut |_| ());
        let Ok(Reserve::Reserved { reference, .. }) = reserved else { panic!("{reserved:?}") };
        std::thread::scope(|scope| {
            let mut left = store.left();
            let worker = scope.spawn(|| alloc.collect());
            // The worker can only wait: what it has read before that matters.
            for _ in 0..10_000 {
                std::thread::yield_now();
            }
            let snapshot = Snapshot::open(&store).expect("a slot");
            let slab = table.slab().clone();
            left.0.push_back(Ended { epoch: store.superblock().epoch(), slab, offset: reference.offset() });
            drop(left);
            assert_eq!(worker.join().expect("a worker"), 0);
            drop(snapshot);
        });
        assert_eq!(store.left_garbage(), 1);
    }
}
