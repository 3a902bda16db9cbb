//! What other nodes' transactions have reserved here, so that it can be taken back when they cannot say so any more.

use crate::NodeId;
use farhold_store::{ObjectRef, Owner, TableId};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One object that waits for its insert to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub owner: u64,
    pub table: TableId,
    pub reference: ObjectRef,
    /// The rows that its transaction deletes, once index entries of theirs may have been given to it.
    pub replaced: Vec<ObjectRef>,
}

/// The list. Inserts that have committed are not told; they are found out when the list has doubled.
#[derive(Default)]
pub(crate) struct Reservations(Mutex<List>);

#[derive(Default)]
struct List {
    entries: Vec<Reservation>,
    sweep_at: usize,
    /// Deleted rows that have been taken out, and whose slots snapshots may still hold.
    removed: BTreeSet<u64>,
    prune_at: usize,
}

/// The list is not swept below this.
const SWEEP_MIN: usize = 1024;

impl Reservations {
    /// Adds one; `waits` says of an entry whether it is still a reservation.
    pub fn add(&self, reservation: Reservation, waits: impl Fn(&Reservation) -> bool) {
        let mut list = self.lock();
        if list.entries.len() >= list.sweep_at.max(SWEEP_MIN) {
            list.entries.retain(waits);
            list.sweep_at = list.entries.len() * 2;
        }
        list.entries.push(reservation);
    }

    /// A deleted row is to be taken out: false if it has been, because the request came twice. `is_held` says of a row whether its
    /// slot still is what it was.
    pub fn remove_once(&self, reference: ObjectRef, is_held: impl Fn(ObjectRef) -> bool) -> bool {
        let mut list = self.lock();
        if list.removed.len() >= list.prune_at.max(SWEEP_MIN) {
            list.removed.retain(|bits| is_held(ObjectRef::from_bits(*bits)));
            list.prune_at = list.removed.len() * 2;
        }
        list.removed.insert(reference.to_bits())
    }

    /// Remembers whose index entries go to a reservation.
    pub fn publish(&self, reference: ObjectRef, replaced: &[ObjectRef]) {
        let mut list = self.lock();
        if let Some(found) = list.entries.iter_mut().rfind(|it| it.reference == reference) {
            found.replaced = replaced.to_vec();
        }
    }

    /// Takes out what an owner has.
    pub fn take_of(&self, owner: u64) -> Vec<Reservation> {
        self.take(|reservation| reservation.owner == owner)
    }

    /// Takes out what starts of a node before this one had.
    pub fn take_before(&self, node: NodeId, incarnation: u16) -> Vec<Reservation> {
        self.take(|reservation| {
            Owner::from_word(reservation.owner)
                .is_some_and(|owner| owner.node() == node && owner.incarnation() != incarnation)
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
