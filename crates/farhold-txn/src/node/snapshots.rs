//! Places of snapshots on nodes whose memory is not mapped, taken and given back by messages that may be lost, late or repeated.
//!
//! ```text
//!   the snapshot's node                              another node
//!   [OpenSnapshots]: numbers of what is open         [FarHolds]: holder and number ─► slot
//!        ── Announce(number) ──────────────────────►  takes a slot
//!        ── Confirm(number, epoch) ────────────────►  the slot is that epoch's
//!        ── StillOpen(first, next, numbers) ───────►  every slot whose number is from `first` to `next` and not named goes
//! ```
//!
//! Numbers grow, and each is given once. A number is in the list before its first message and until its snapshot is
//! closed. So a number below `next` that is not named is closed for good, whenever the list arrives. `StillOpen` may be
//! lost, repeated and overtaken; the next one undoes an `Announce` whose answer was lost or that is late. It is sent
//! when a snapshot closes, and again and again.
//!
//! The first number of a start is random, so no list of one start names, or releases, a slot of another. What an ended
//! start holds goes by [`FarHolds::release_of`], when the node is expelled, or by [`FarHolds::release_before`], when
//! its next start says so. An announcement that a worker holds meanwhile must not take a slot afterwards: the slot
//! would never be released. So [`FarHolds::announce`] asks under the lock whether the start still counts.

use crate::node::reservations::is_earlier;
use farhold_fabric::NodeId;
use farhold_store::{Holder, SlotId, StoreError, Superblock};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What this node's snapshots hold on others.
#[derive(Default)]
pub(crate) struct OpenSnapshots {
    list: Mutex<OpenList>,
    /// Whether there has ever been one. It is never certain that the others know that it is closed.
    any: AtomicBool,
    /// One has been closed since the others were told.
    is_due: AtomicBool,
    told_ns: AtomicU64,
}

/// The first number is below 2^62, so at least 2^63 numbers follow it; no start takes that many snapshots.
const FIRST_BITS: u64 = (1 << 62) - 1;

#[derive(Clone, Debug, Default)]
pub(crate) struct OpenList {
    /// The number of the first snapshot, and the next one's: both 0 before the first.
    pub first: u64,
    pub next: u64,
    pub open: BTreeSet<u64>,
}

impl OpenSnapshots {
    /// A new snapshot's number; `random` gives the first one.
    pub fn open(&self, random: impl FnOnce() -> u64) -> u64 {
        let mut list = lock(&self.list);
        if list.next == 0 {
            list.first = random() & FIRST_BITS | 1;
            list.next = list.first;
        }
        let number = list.next;
        list.next += 1;
        list.open.insert(number);
        self.any.store(true, Release);
        number
    }

    /// How many are open.
    pub fn count(&self) -> usize {
        lock(&self.list).open.len()
    }

    /// It is closed.
    pub fn close(&self, number: u64) {
        lock(&self.list).open.remove(&number);
        self.is_due.store(true, Release);
    }

    /// What to tell the others, if it is time.
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
pub(crate) struct FarHolds(Mutex<Held>);

#[derive(Default)]
struct Held {
    slots: BTreeMap<(Holder, u64), SlotId>,
    /// For each node, its last start that has announced itself.
    starts: BTreeMap<NodeId, Start>,
}

/// A start of a node, as it announced itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// How many starts its memory knows of.
    pub incarnation: u16,
    /// No other start has it.
    pub birth: u64,
}

impl Held {
    /// Has the holder ended, by what its node's next start has said?
    fn is_over(&self, holder: Holder) -> bool {
        let last = self.starts.get(&holder.node);
        last.is_some_and(|last| is_earlier(holder.incarnation, last.incarnation))
    }
}

impl FarHolds {
    /// Takes a slot if the holder has not ended and `is_there`, which is asked under the lock, says so too; otherwise
    /// false. A repeated call has no further effect.
    pub fn announce(
        &self,
        superblock: Superblock<'_>,
        holder: Holder,
        number: u64,
        is_there: impl FnOnce() -> bool,
    ) -> Result<bool, StoreError> {
        let mut held = lock(&self.0);
        let may = !held.is_over(holder) && is_there();
        if may && let Entry::Vacant(place) = held.slots.entry((holder, number)) {
            place.insert(superblock.announce(holder)?);
        }
        Ok(may)
    }

    /// The snapshot has become this epoch's; false if it has no slot here any more.
    pub fn confirm(&self, superblock: Superblock<'_>, holder: Holder, number: u64, epoch: u32) -> bool {
        let held = lock(&self.0);
        held.slots.get(&(holder, number)).is_some_and(|slot| superblock.confirm(*slot, holder, epoch))
    }

    /// Gives back what a holder has closed, of the numbers that its present start has given.
    pub fn keep_open(&self, superblock: Superblock<'_>, holder: Holder, numbers: Range<u64>, open: &[u64]) {
        lock(&self.0).slots.retain(|(of, number), slot| {
            let is_closed = *of == holder && numbers.contains(number) && !open.contains(number);
            if is_closed {
                superblock.release(*slot, holder);
            }
            !is_closed
        });
    }

    /// Has this start of a node ended, by what its next one has said?
    pub fn is_over(&self, holder: Holder) -> bool {
        lock(&self.0).is_over(holder)
    }

    /// Releases what holders that are gone have, including what they took in mapped memory. `is_gone` must already
    /// answer so, also for a thread that announces a snapshot of such a holder.
    pub fn release_of(&self, superblock: Superblock<'_>, is_gone: impl Fn(Holder) -> bool) {
        let mut held = lock(&self.0);
        held.slots.retain(|(holder, _), _| !is_gone(*holder));
        superblock.release_of(is_gone);
    }

    /// Releases what earlier starts of a node have, and takes nothing for them any more. A repeated call has no further
    /// effect. False: this start does not come after another one that was here, so the two cannot be told apart.
    pub fn begin(&self, superblock: Superblock<'_>, node: NodeId, now: Start) -> bool {
        let is_gone = |holder: Holder| holder.node == node && is_earlier(holder.incarnation, now.incarnation);
        let mut held = lock(&self.0);
        let last = held.starts.entry(node).or_insert(now);
        if is_earlier(last.incarnation, now.incarnation) {
            *last = now;
        }
        if *last != now {
            return false;
        }
        held.slots.retain(|(holder, _), _| !is_gone(*holder));
        superblock.release_of(is_gone);
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Node, NodeConfig};
    use farhold_fabric::{Executor, Fabric};
    use std::sync::Arc;

    fn with_node(test: impl FnOnce(&Arc<Node>)) {
        let directory = tempfile::tempdir().expect("a directory");
        let fabric = Fabric::join_shm(directory.path(), NodeId(0)).unwrap();
        let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
        let node = Node::open(fabric, config).unwrap();
        test(&node);
        drop(node);
    }

    /// One copy of each row, so no node is ever expelled: the memory that snapshots of a process held must not be held
    /// for ever by its end.
    #[test]
    fn what_a_dead_process_holds_is_released_where_nobody_is_expelled() {
        with_node(|node| {
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
        with_node(|node| {
            let (superblock, holds, opened) = (node.store.superblock(), FarHolds::default(), OpenSnapshots::default());
            let [one, two] = [1, 2].map(|incarnation| Holder { node: NodeId(1), incarnation });
            let count = || superblock.holders().count();
            let announce = |holder, number| assert!(holds.announce(superblock, holder, number, || true).unwrap());
            let open = || opened.open(|| 70);
            let numbers = [open(), open(), open()];
            assert_eq!(numbers, [71, 72, 73]);
            for number in [71, 72, 72] {
                announce(one, number);
            }
            assert_eq!(count(), 2, "the third message was the second again");
            assert!(holds.confirm(superblock, one, 72, 7) && !holds.confirm(superblock, one, 73, 7));
            // The first is closed; its list comes before the announcement of the third.
            opened.close(71);
            let list = opened.to_tell(|| 1, 1_000).unwrap();
            let early: Vec<u64> = list.open.iter().copied().collect();
            holds.keep_open(superblock, one, list.first..list.next, &early);
            announce(one, 73);
            assert_eq!(count(), 2);
            assert!(opened.to_tell(|| 2, 1_000).is_none(), "it was told just now");
            // Both are closed, and the list is lost; a late announcement comes again; the next list is sent without any other cause.
            opened.close(72);
            opened.close(73);
            assert!(opened.to_tell(|| 3, 1_000).is_some());
            announce(one, 71);
            assert_eq!(count(), 3);
            let last = opened.to_tell(|| 1_003, 1_000).unwrap();
            assert!(last.open.is_empty());
            announce(two, 71);
            holds.keep_open(superblock, one, last.first..last.next, &[]);
            assert_eq!(superblock.holders().collect::<Vec<_>>(), [two]);
            // An earlier list that was overtaken reopens nothing that was closed.
            holds.keep_open(superblock, one, list.first..list.next, &early);
            holds.release_of(superblock, |holder| holder == two);
            assert!(!superblock.snapshots_open());
        });
    }

    /// A node that has come back counts its starts from where they were, or from 1 if its region was lost. A list of one start says
    /// nothing about what another start has open.
    #[test]
    fn a_list_is_of_one_start() {
        with_node(|node| {
            let (superblock, holds) = (node.store.superblock(), FarHolds::default());
            let (before, now) = (OpenSnapshots::default(), OpenSnapshots::default());
            let holder = Holder { node: NodeId(1), incarnation: 1 };
            let [old, new] = [before.open(|| 9_000), now.open(|| 5_000)];
            assert!([old, new].iter().all(|number| holds.announce(superblock, holder, *number, || true).unwrap()));
            // A late list of the earlier start, which had closed everything, and one of the new start.
            before.close(old);
            let late = before.to_tell(|| 1, 1_000).unwrap();
            holds.keep_open(superblock, holder, late.first..late.next, &[]);
            assert!(holds.confirm(superblock, holder, new, 7), "open");
            let list = now.to_tell(|| 1_000, 1_000).unwrap();
            holds.keep_open(superblock, holder, list.first..list.next, &[new]);
            assert_eq!(superblock.holders().count(), 1);
        });
    }

    /// A worker takes an announcement out of the inbox; before it has done what it says, its node is expelled, or says that it
    /// has begun anew.
    #[test]
    fn what_has_ended_takes_no_slot_afterwards() {
        with_node(|node| {
            let (superblock, holds) = (node.store.superblock(), FarHolds::default());
            let [one, two] = [1, 2].map(|incarnation| Holder { node: NodeId(1), incarnation });
            holds.release_of(superblock, |holder| holder == one);
            assert_eq!(holds.announce(superblock, one, 5, || false), Ok(false));
            let start = |incarnation, birth| Start { incarnation, birth };
            assert!(holds.begin(superblock, NodeId(1), start(2, 20)));
            assert_eq!(holds.announce(superblock, one, 5, || true), Ok(false));
            assert!(holds.begin(superblock, NodeId(1), start(2, 20)), "it says so again");
            for of_lost_memory in [start(1, 30), start(2, 30)] {
                assert!(!holds.begin(superblock, NodeId(1), of_lost_memory), "{of_lost_memory:?}");
            }
            assert!(!superblock.snapshots_open());
            assert_eq!(holds.announce(superblock, two, 5, || true), Ok(true));
            let next = Holder { incarnation: 3, ..one };
            assert_eq!(holds.announce(superblock, next, 5, || true), Ok(true), "it has not been heard yet");
        });
    }
}
