//! Places of snapshots on nodes whose memory is not mapped, taken and given back by messages that may be lost, late or repeated.
//!
//! ```text
//!   the snapshot's node                              another node
//!   [OpenSnapshots]: numbers of what is open         [FarHolds]: holder and number ─► slot
//!        ── Announce(number) ──────────────────────►  takes a slot
//!        ── Confirm(number, epoch) ────────────────►  the slot is that epoch's
//!        ── StillOpen(next, numbers) ──────────────►  every slot of the holder whose number is below `next` and not named goes
//! ```
//!
//! A number is given once, grows, and is in the list before its first message and until its snapshot is closed. So a number below `next`
//! that is not named is closed for good, whenever the list arrives: `StillOpen` may be lost, repeated and overtaken, and an `Announce`
//! whose answer was lost, or that is late, is undone by the next one. It is told when a snapshot closes, and again and again.

use farhold_store::{Holder, SlotId, StoreError, Superblock};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What this node's snapshots hold on others.
#[derive(Default)]
pub(crate) struct OpenSnapshots {
    list: Mutex<OpenList>,
    /// There has been one: whether the others have heard that it is closed is never certain.
    any: AtomicBool,
    /// One has been closed since the others were told.
    is_due: AtomicBool,
    told_ns: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct OpenList {
    /// The next snapshot's number.
    pub next: u64,
    pub open: BTreeSet<u64>,
}

impl OpenSnapshots {
    /// A new snapshot's number.
    pub fn open(&self) -> u64 {
        let mut list = lock(&self.list);
        let number = list.next;
        list.next += 1;
        list.open.insert(number);
        self.any.store(true, Release);
        number
    }

    /// It is closed.
    pub fn close(&self, number: u64) {
        lock(&self.list).open.remove(&number);
        self.is_due.store(true, Release);
    }

    /// What is to be told to the others, if it is time to.
    #[inline]
    pub fn to_tell(&self, now_ns: impl Fn() -> u64, every_ns: u64) -> Option<OpenList> {
        if self.any.load(Relaxed) { self.to_tell_at(now_ns(), every_ns) } else { None }
    }

    #[cold]
    fn to_tell_at(&self, now_ns: u64, every_ns: u64) -> Option<OpenList> {
        let told_ns = self.told_ns.load(Relaxed);
        let is_time = now_ns >= told_ns.saturating_add(every_ns);
        if !is_time && !self.is_due.load(Relaxed) {
            return None;
        }
        // One of the workers tells it.
        self.told_ns.compare_exchange(told_ns, now_ns, Relaxed, Relaxed).ok()?;
        self.is_due.swap(false, Acquire);
        Some(lock(&self.list).clone())
    }
}

/// What snapshots of other nodes hold here.
#[derive(Default)]
pub(crate) struct FarHolds(Mutex<BTreeMap<(Holder, u64), SlotId>>);

impl FarHolds {
    /// Takes a slot. Twice is once.
    pub fn announce(&self, superblock: Superblock<'_>, holder: Holder, number: u64) -> Result<(), StoreError> {
        let mut held = lock(&self.0);
        if let Entry::Vacant(place) = held.entry((holder, number)) {
            place.insert(superblock.announce(holder)?);
        }
        Ok(())
    }

    /// The snapshot has become this epoch's; false if it has no slot here any more.
    pub fn confirm(&self, superblock: Superblock<'_>, holder: Holder, number: u64, epoch: u32) -> bool {
        let held = lock(&self.0);
        held.get(&(holder, number)).is_some_and(|slot| superblock.confirm(*slot, holder, epoch))
    }

    /// Gives back what a holder has closed.
    pub fn keep_open(&self, superblock: Superblock<'_>, holder: Holder, next: u64, open: &[u64]) {
        lock(&self.0).retain(|(of, number), slot| {
            let is_closed = *of == holder && *number < next && !open.contains(number);
            if is_closed {
                superblock.release(*slot, holder);
            }
            !is_closed
        });
    }

    /// Gives back what holders that are gone have, also what they have taken in mapped memory.
    pub fn release_of(&self, superblock: Superblock<'_>, is_gone: impl Fn(Holder) -> bool) {
        let mut held = lock(&self.0);
        held.retain(|(holder, _), _| !is_gone(*holder));
        superblock.release_of(is_gone);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Node, NodeConfig, NodeId};
    use farhold_fabric::{Executor, Fabric};
    use std::sync::Arc;

    fn with_node(name: &str, test: impl FnOnce(&Arc<Node>)) {
        let directory = std::env::temp_dir().join(format!("farhold-holds-{name}-{}", std::process::id()));
        let fabric = Fabric::join_shm(&directory, NodeId(0)).unwrap();
        let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
        let node = Node::open(fabric, config).unwrap();
        test(&node);
        drop(node);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// One copy of each row, so nobody is ever expelled: the memory that snapshots of a process held must not be held for ever by its end.
    #[test]
    fn what_a_dead_process_holds_is_released_where_nobody_is_expelled() {
        with_node("dead", |node| {
            let executor = Executor::real(1);
            let worker = node.worker(&executor.handle()).unwrap();
            let superblock = node.store.superblock();
            superblock.announce(Holder { node: NodeId(1), incarnation: 1 }).unwrap();
            let own = superblock.announce(node.store.holder()).unwrap();
            worker.core.release_dead_snapshots();
            assert_eq!(superblock.holders().collect::<Vec<_>>(), [node.store.holder()]);
            superblock.release(own, node.store.holder());
            assert!(!superblock.snapshots_open());
        });
    }

    /// Messages are lost, late, repeated and overtaken; the list that comes last decides.
    #[test]
    fn a_list_undoes_what_was_lost() {
        with_node("lost", |node| {
            let (superblock, holds, opened) = (node.store.superblock(), FarHolds::default(), OpenSnapshots::default());
            let [one, two] = [1, 2].map(|incarnation| Holder { node: NodeId(1), incarnation });
            let count = || superblock.holders().count();
            let numbers = [opened.open(), opened.open(), opened.open()];
            assert_eq!(numbers, [0, 1, 2]);
            for number in [0, 1, 1] {
                holds.announce(superblock, one, number).unwrap();
            }
            assert_eq!(count(), 2, "the third message was the second again");
            assert!(holds.confirm(superblock, one, 1, 7) && !holds.confirm(superblock, one, 2, 7));
            // Number 0 is closed; its list comes before the announcement of number 2.
            opened.close(0);
            let list = opened.to_tell(|| 1, 1_000).unwrap();
            let early: Vec<u64> = list.open.iter().copied().collect();
            holds.keep_open(superblock, one, list.next, &early);
            holds.announce(superblock, one, 2).unwrap();
            assert_eq!(count(), 2);
            assert!(opened.to_tell(|| 2, 1_000).is_none(), "it was told just now");
            // Both are closed, and the list is lost; a late announcement comes again; the next list is told without any other cause.
            opened.close(1);
            opened.close(2);
            assert!(opened.to_tell(|| 3, 1_000).is_some());
            holds.announce(superblock, one, 0).unwrap();
            assert_eq!(count(), 3);
            let last = opened.to_tell(|| 1_003, 1_000).unwrap();
            assert!(last.open.is_empty());
            // Another start of the node has numbers of its own.
            holds.announce(superblock, two, 0).unwrap();
            holds.keep_open(superblock, one, last.next, &[]);
            assert_eq!(superblock.holders().collect::<Vec<_>>(), [two]);
            // A list of before that was overtaken takes nothing of what was closed for open.
            holds.keep_open(superblock, one, list.next, &early);
            holds.release_of(superblock, |holder| holder == two);
            assert!(!superblock.snapshots_open());
        });
    }
}
