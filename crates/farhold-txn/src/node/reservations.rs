//! What other nodes' transactions have reserved here, so that it can be taken back when those nodes no longer can.

use farhold_fabric::NodeId;
use farhold_store::{ObjectRef, Owner, TableId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One object that waits for its insert to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub owner: u64,
    pub table: TableId,
    pub reference: ObjectRef,
    /// The rows that its transaction deletes and whose index entries may already lead to this object. All reservations that one
    /// message names share one list.
    pub replaced: Arc<[ObjectRef]>,
}

/// The list. A commit does not remove its entries. The list drops them when it has doubled.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<List>);

#[derive(Default)]
struct List {
    entries: Vec<Reservation>,
    sweep_at: usize,
    /// Owners that have taken back all they have, while a request of theirs to reserve may still be on its way to this
    /// list: another worker of the node may hold it. Each with the time at which it is forgotten.
    forgotten: VecDeque<(u64, u64)>,
    /// Deleted rows that have been taken out, and whose slots snapshots may still hold.
    removed: BTreeSet<u64>,
    prune_at: usize,
}

/// Owners that are remembered, of all nodes: one each for a transaction that gave up before it was answered, for some
/// seconds. Beyond it the oldest are forgotten. Their late requests would then keep a key reserved until their node
/// starts again. A node that makes this one hold more is faulty.
const FORGOTTEN_MAX: usize = 16 << 10;
/// The list is not swept below this. Reservations take slots of the region, so their number is at most twice what the region
/// has room for.
const SWEEP_MIN: usize = 1024;

/// Is a start of a node before another one? The arguments are start counts of 16 bits.
pub(crate) fn is_earlier(incarnation: u16, than: u16) -> bool {
    (than.wrapping_sub(incarnation) as i16) > 0
}

impl Reservations {
    /// Adds one; `waits` says whether an entry is still a reservation. False: its owner has taken back all it has, or
    /// its node has left or started again, so the caller must cancel it. `is_present` is asked under the lock: a worker
    /// may hold a request while [`Self::take_absent`] or [`Self::take_before`] runs.
    #[must_use]
    pub fn add(
        &self,
        reservation: Reservation,
        is_present: impl Fn(Owner) -> bool,
        waits: impl Fn(&Reservation) -> bool,
    ) -> bool {
        let mut list = self.lock();
        let has_left = Owner::from_word(reservation.owner).is_some_and(|owner| !is_present(owner));
        if has_left || list.forgotten.iter().any(|(owner, _)| *owner == reservation.owner) {
            return false;
        }
        if list.entries.len() >= list.sweep_at.max(SWEEP_MIN) {
            list.entries.retain(waits);
            list.sweep_at = list.entries.len() * 2;
        }
        list.entries.push(reservation);
        true
    }

    /// Takes one out: false if it has been, because the request came twice, and two workers of the node have found it.
    pub fn take_once(&self, reference: ObjectRef) -> bool {
        let mut list = self.lock();
        let found = list.entries.iter().rposition(|it| it.reference == reference);
        found.map(|position| list.entries.swap_remove(position)).is_some()
    }

    /// A deleted row must be removed: false if it has been, because the request came twice. `is_held` says whether a
    /// row's slot still holds it.
    pub fn remove_once(&self, reference: ObjectRef, is_held: impl Fn(ObjectRef) -> bool) -> bool {
        let mut list = self.lock();
        if list.removed.len() >= list.prune_at.max(SWEEP_MIN) {
            list.removed.retain(|bits| is_held(ObjectRef::from_bits(*bits)));
            list.prune_at = list.removed.len() * 2;
        }
        // Another worker may have done it for the same request, and its note may be gone again.
        is_held(reference) && list.removed.insert(reference.to_bits())
    }

    /// Remembers the rows whose index entries go to a reservation.
    pub fn publish(&self, reference: ObjectRef, replaced: &Arc<[ObjectRef]>) {
        let mut list = self.lock();
        if let Some(found) = list.entries.iter_mut().rfind(|it| it.reference == reference) {
            found.replaced = replaced.clone();
        }
    }

    /// Takes out what an owner has. If one of its requests has not been `answered`, none is taken for it until `until_ns`.
    pub fn take_of(&self, owner: u64, answered: bool, now_ns: u64, until_ns: u64) -> Vec<Reservation> {
        if !answered {
            let mut list = self.lock();
            while list.forgotten.pop_front_if(|(_, until_ns)| *until_ns <= now_ns).is_some() {}
            list.forgotten.retain(|(other, _)| *other != owner);
            if list.forgotten.len() >= FORGOTTEN_MAX {
                list.forgotten.pop_front();
            }
            list.forgotten.push_back((owner, until_ns));
        }
        self.take(|reservation| reservation.owner == owner)
    }

    /// Takes out what starts of a node before this one had.
    pub fn take_before(&self, node: NodeId, incarnation: u16) -> Vec<Reservation> {
        self.take(|reservation| {
            Owner::from_word(reservation.owner)
                .is_some_and(|owner| owner.node() == node && is_earlier(owner.incarnation(), incarnation))
        })
    }

    /// Takes out what nodes that are not present had.
    pub fn take_absent(&self, is_present: &impl Fn(NodeId) -> bool) -> Vec<Reservation> {
        self.take(|reservation| Owner::from_word(reservation.owner).is_some_and(|owner| !is_present(owner.node())))
    }

    fn take(&self, which: impl Fn(&Reservation) -> bool) -> Vec<Reservation> {
        let mut list = self.lock();
        let (taken, kept) = list.entries.drain(..).partition(|reservation| which(reservation));
        list.entries = kept;
        taken
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(owner: u64, number: u64) -> Reservation {
        let reference = ObjectRef::new(4096 * number, 1);
        Reservation { owner, table: TableId(7), reference, replaced: Arc::default() }
    }

    /// What other nodes can make this node hold is bounded: a list of deleted rows is held once for all reservations
    /// that it is about, and owners that gave up are remembered in a limited number.
    #[test]
    fn what_other_nodes_make_us_hold_has_a_bound() {
        let list = Reservations::default();
        let replaced: Arc<[ObjectRef]> = (0..100).map(|number| reservation(1, number).reference).collect();
        for number in 0..100 {
            assert!(list.add(reservation(1, number), |_| true, |_| true));
            list.publish(reservation(1, number).reference, &replaced);
        }
        assert!(list.lock().entries.iter().all(|it| Arc::ptr_eq(&it.replaced, &replaced)));
        for owner in 0..2 * FORGOTTEN_MAX as u64 {
            let _ = list.take_of(owner, false, 1, 100);
        }
        let _ = list.take_of(2 * FORGOTTEN_MAX as u64 - 1, false, 1, 200);
        assert_eq!(list.lock().forgotten.len(), FORGOTTEN_MAX);
        assert!(!list.add(reservation(2 * FORGOTTEN_MAX as u64 - 1, 1), |_| true, |_| true), "the last is known");
    }

    /// Two workers take messages out of a node's inbox: one holds a request to reserve, the other finds that the
    /// transaction is over first. The reservation would stay for ever.
    #[test]
    fn what_is_reserved_after_its_owner_has_gone_is_refused() {
        let list = Reservations::default();
        let add = |reservation| list.add(reservation, |_| true, |_| true);
        assert!(add(reservation(1, 1)));
        assert_eq!(list.take_of(1, false, 100, 200), [reservation(1, 1)]);
        assert!(!add(reservation(1, 2)), "late");
        assert!(add(reservation(2, 3)), "of another");
        assert_eq!(list.take_of(2, true, 150, 250), [reservation(2, 3)]);
        assert_eq!(list.take_of(3, false, 200, 300), []);
        assert_eq!(list.lock().forgotten, [(3, 300)], "no longer than it has to be");
    }

    /// A node leaves, and what it had reserved is taken back, while a worker holds another request of it.
    #[test]
    fn what_is_reserved_after_its_node_has_left_is_refused() {
        let (list, is_present) = (Reservations::default(), |node: NodeId| node == NodeId(2));
        let of = |node| reservation(Owner::new(1, NodeId(node), 0, 1).word(), u64::from(node));
        assert!(list.add(of(1), |_| true, |_| true) && list.add(of(2), |_| true, |_| true));
        assert_eq!(list.take_absent(&is_present), [of(1)]);
        let is_owner_present = |owner: Owner| is_present(owner.node());
        assert!(!list.add(of(1), is_owner_present, |_| true) && list.add(of(2), is_owner_present, |_| true));
    }

    #[test]
    fn one_reservation_is_cancelled_once() {
        let list = Reservations::default();
        assert!([1, 2].iter().all(|number| list.add(reservation(1, *number), |_| true, |_| true)));
        let taken: Vec<bool> = [1, 1, 2, 2, 3].map(|number| list.take_once(reservation(1, number).reference)).into();
        assert_eq!(taken, [true, false, true, false, false]);
    }
}
