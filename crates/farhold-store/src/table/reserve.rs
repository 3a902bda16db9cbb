//! Insertion and removal of rows: reserve, cancel, publish, remove.

use super::{Moved, Occupant, TableStore};
use crate::error::StoreError;
use crate::index::hash::hash_key;
use crate::object::{Object, ObjectRef, RESERVED, Words, write};
use crate::slab::AllocCache;
use farhold_btree::{Insert, OrderedIndex};
use farhold_fabric::{Meta, Version};
use std::sync::atomic::{Ordering, fence};

/// The outcome of an insert's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// The object is there, absent and unlocked, in all indexes: other transactions see that the row is about to be inserted.
    Reserved {
        /// The new object.
        reference: ObjectRef,
        /// Some index still names a row that the transaction itself deletes; its commit must call
        /// [`TableStore::publish`].
        replaces: bool,
    },
    /// The key is taken; nothing is left behind.
    Exists {
        /// In which index: 0 the primary, then the secondaries.
        index: u16,
        /// By which object.
        reference: ObjectRef,
        /// A row ([`Occupant::Live`]), or another insert that may or may not commit ([`Occupant::Reserved`]).
        occupant: Occupant,
    },
}

impl TableStore {
    /// Makes the object of a row to be inserted and enters it in all indexes.
    ///
    /// `mine` says of an object whether the transaction deletes it: such an entry does not stand in the way, and is replaced when
    /// the commit calls [`Self::publish`]. An entry of a row whose delete has committed is taken over. `moved` receives, in
    /// order, what this did to the stamps of leaves and buckets, also when the key turns out taken.
    ///
    /// The caller must reserve before it reads the epoch of the commit. The slot may have been freed by a commit of this very
    /// moment, and the row's version, which must be above the slot's last, would be of a later epoch than its commit.
    ///
    /// # Errors
    /// [`StoreError::OutOfMemory`], [`StoreError::TooLarge`], [`StoreError::KeyTooLong`], [`StoreError::Row`].
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    pub fn reserve(
        &self,
        key: &[u8],
        value: &[u8],
        alloc: &mut AllocCache,
        mine: &dyn Fn(ObjectRef) -> bool,
        moved: &mut dyn FnMut(Moved),
    ) -> Result<Reserve, StoreError> {
        if key.len() > usize::from(u16::MAX) {
            return Err(StoreError::KeyTooLong { key_bytes: key.len() });
        }
        let payload_len = key.len() + value.len();
        let fresh = alloc.take(self.store(), self.slab(), payload_len)?;
        let reference = ObjectRef::new(fresh.object.offset(), fresh.incarnation);
        let meta = Meta::new(fresh.incarnation, RESERVED, key.len(), payload_len);
        let version = Version(fresh.version.number() + Version::ONE).with(Version::ABSENT);
        write(&fresh.object, meta, version, |object| {
            object.copy_in(0, key);
            object.copy_in(key.len(), value);
        });
        let mut replaces = false;
        let mut entered = self.enter(&self.primary, 0, key, reference, mine, moved);
        if !matches!(entered, Entered::No { .. }) {
            replaces |= entered == Entered::Mine;
            if let Err(error) = self.enter_hash(entered, key, reference, moved) {
                self.give_up(key, value, reference, alloc, moved);
                return Err(error);
            }
            entered = self.enter_secondaries(key, value, reference, alloc, mine, moved, &mut replaces)?;
        }
        match entered {
            Entered::Yes | Entered::Mine | Entered::Over(_) => Ok(Reserve::Reserved { reference, replaces }),
            Entered::No { index, reference: other, occupant } => {
                // Also from indexes that it has not reached: a thread that fills an index may have met the object in its slot.
                if index > 0 || self.secondaries().next().is_some() {
                    self.give_up(key, value, reference, alloc, moved);
                } else {
                    alloc.give(self.slab(), reference.offset());
                }
                Ok(Reserve::Exists { index, reference: other, occupant })
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the one loop of `reserve`")]
    fn enter_secondaries(
        &self,
        key: &[u8],
        value: &[u8],
        reference: ObjectRef,
        alloc: &mut AllocCache,
        mine: &dyn Fn(ObjectRef) -> bool,
        moved: &mut dyn FnMut(Moved),
        replaces: &mut bool,
    ) -> Result<Entered, StoreError> {
        let mut index_key = std::mem::take(&mut alloc.key);
        let mut result = Ok(Entered::Yes);
        for (number, secondary) in self.secondaries() {
            if let Err(error) = secondary.def.keys.make(key, value, &mut index_key) {
                result = Err(StoreError::Row(error));
                break;
            }
            let entered = self.enter(&secondary.index, number, &index_key, reference, mine, moved);
            *replaces |= entered == Entered::Mine;
            if matches!(entered, Entered::No { .. }) {
                result = Ok(entered);
                break;
            }
        }
        alloc.key = index_key;
        if result.is_err() {
            self.give_up(key, value, reference, alloc, moved);
        }
        result
    }

    /// Takes back what a failed reservation has done so far.
    fn give_up(
        &self,
        key: &[u8],
        value: &[u8],
        reference: ObjectRef,
        alloc: &mut AllocCache,
        moved: &mut dyn FnMut(Moved),
    ) {
        self.store.object(reference).give_up();
        self.leave_all(key, value, reference, alloc, moved);
        alloc.give(self.slab(), reference.offset());
    }

    /// The primary index has decided; the hash index follows.
    fn enter_hash(
        &self,
        entered: Entered,
        key: &[u8],
        reference: ObjectRef,
        moved: &mut dyn FnMut(Moved),
    ) -> Result<(), StoreError> {
        let Some(index) = &self.hash else { return Ok(()) };
        let hash = hash_key(key);
        let replaced = match entered {
            Entered::Mine | Entered::No { .. } => return Ok(()),
            Entered::Yes => None,
            // In one step, so that no lookup finds the deleted row after this one is there.
            Entered::Over(other) => index.replace(hash, other, reference),
        };
        match replaced {
            Some(step) => moved(step.into()),
            None => index.insert(hash, reference, &mut |step| moved(step.into()))?,
        }
        Ok(())
    }

    fn enter(
        &self,
        index: &OrderedIndex,
        number: u16,
        key: &[u8],
        reference: ObjectRef,
        mine: &dyn Fn(ObjectRef) -> bool,
        moved: &mut dyn FnMut(Moved),
    ) -> Entered {
        // Each turn means that another transaction's delete has been unlinked meanwhile.
        loop {
            let other = match index.insert(key, reference.to_bits()) {
                Insert::Inserted { changes } => {
                    moved(Moved::Leaves { index: number, changes });
                    return Entered::Yes;
                }
                Insert::Exists { value, .. } => ObjectRef::from_bits(value),
            };
            if other == reference {
                return Entered::Yes;
            }
            if mine(other) {
                return Entered::Mine;
            }
            let occupant = self.occupant(other);
            if occupant != Occupant::Gone {
                return Entered::No { index: number, reference: other, occupant };
            }
            if let Some(changes) = index.replace(key, other.to_bits(), reference.to_bits()) {
                moved(Moved::Leaves { index: number, changes });
                return Entered::Over(other);
            }
        }
    }

    /// Takes a reservation back: removes it from the indexes, and frees the slot.
    pub fn cancel(&self, reference: ObjectRef, alloc: &mut AllocCache) {
        self.store.object(reference).give_up();
        self.unlink(reference, alloc);
        alloc.give(self.slab(), reference.offset());
    }

    /// Makes all indexes name a reserved object whose reservation [replaces](Reserve::Reserved) rows that the same
    /// transaction deletes: those for which `replaces` is true.
    ///
    /// An index that is being filled may name another transaction's row, which nothing has refused: the reservation is older than the
    /// index. That row stays named, and the thread that fills the index finds both.
    ///
    /// The caller must call it when nothing can abort the commit any more, while the locks of the old rows are held, and *before*
    /// they are marked absent. Then a lookup of the key meets the old row, locked or about to change, or the new one.
    pub fn publish(&self, reference: ObjectRef, replaces: &dyn Fn(ObjectRef) -> bool, alloc: &mut AllocCache) {
        self.with_row(reference, alloc, |key, value, index_key| {
            let other = self.name(&self.primary, key, reference, replaces);
            if let Some(index) = &self.hash {
                // The old row is in it, as in the primary index: the transaction holds its lock. Another thread may have been stopped
                // between its changes of the two indexes.
                let named = other.or_else(|| index.lookup(hash_key(key), key).0);
                if let Some(other) = named.filter(|other| *other != reference) {
                    let _ = index.replace(hash_key(key), other, reference);
                }
            }
            for (_, secondary) in self.secondaries() {
                if secondary.def.keys.make(key, value, index_key).is_ok() {
                    self.name(&secondary.index, index_key, reference, replaces);
                }
            }
        });
    }

    /// Makes an index name `reference` under `key`, unless it names a row that stays there; returns what it named before.
    fn name(
        &self,
        index: &OrderedIndex,
        key: &[u8],
        reference: ObjectRef,
        replaces: &dyn Fn(ObjectRef) -> bool,
    ) -> Option<ObjectRef> {
        loop {
            let Insert::Exists { value, .. } = index.insert(key, reference.to_bits()) else { return None };
            let other = ObjectRef::from_bits(value);
            let is_over = || replaces(other) || self.occupant(other) == Occupant::Gone;
            if other == reference || !is_over() {
                return None;
            }
            if index.replace(key, value, reference.to_bits()).is_some() {
                return Some(other);
            }
        }
    }

    /// As [`Self::publish`], for a message that may be served twice, by two threads, or late. An index names the object only if
    /// it has named one of those that it `replaces`. A second call changes nothing, whatever has happened to the row since: no
    /// index names a replaced row any more.
    pub fn publish_over(&self, reference: ObjectRef, replaces: &dyn Fn(ObjectRef) -> bool, alloc: &mut AllocCache) {
        // One that is being written has been published before. Its writer may have ended in the middle, and is not waited for.
        let once = |object: Object<'_>, into: &mut Vec<u8>| read_some(object, reference, into).ok().flatten();
        self.with_row_as_read(once, reference, alloc, |key, value, index_key| {
            name_over(&self.primary, key, reference, replaces);
            if let Some(index) = &self.hash
                && let Some(other) = index.lookup(hash_key(key), key).0
                && replaces(other)
            {
                let _ = index.replace(hash_key(key), other, reference);
            }
            for (_, secondary) in self.secondaries() {
                if secondary.def.keys.make(key, value, index_key).is_ok() {
                    name_over(&secondary.index, index_key, reference, replaces);
                }
            }
        });
    }

    /// After a delete has committed at `epoch`: takes the row out of the indexes (where they have not been given to
    /// another row since) and frees its slot, at once or when no snapshot needs it.
    pub fn remove(&self, reference: ObjectRef, epoch: u32, alloc: &mut AllocCache) {
        self.unlink(reference, alloc);
        if self.store.object(reference).prev().is_none() && !self.store.copied().has(reference.offset()) {
            // No older state was saved: the row was made in the epoch of its delete, or there was no snapshot then, and later
            // ones are not older than the delete. So rows that come and go under one long snapshot cost nothing.
            alloc.give(self.slab(), reference.offset());
        } else {
            alloc.give_after(self.slab(), reference.offset(), epoch);
        }
    }

    fn unlink(&self, reference: ObjectRef, alloc: &mut AllocCache) {
        let mut payload = std::mem::take(&mut alloc.payload);
        if let Some((key_len, payload_len)) = read_whole(self.store.object(reference), reference, &mut payload) {
            let (key, value) = payload[..payload_len].split_at(key_len);
            self.leave_all(key, value, reference, alloc, &mut |_| ());
        }
        alloc.payload = payload;
    }

    fn leave_all(
        &self,
        key: &[u8],
        value: &[u8],
        reference: ObjectRef,
        alloc: &mut AllocCache,
        moved: &mut dyn FnMut(Moved),
    ) {
        if self.secondaries().next().is_some() {
            // The object says by now that it is gone. A thread that fills an index enters it first and then asks. So either the
            // entry is found here, or that thread learns that it is gone.
            fence(Ordering::SeqCst);
        }
        for (number, secondary) in self.secondaries() {
            if secondary.def.keys.make(key, value, &mut alloc.key).is_ok()
                && let Some(changes) = secondary.index.remove(&alloc.key, reference.to_bits())
            {
                moved(Moved::Leaves { index: number, changes });
            }
        }
        if let Some(step) = self.hash.as_ref().and_then(|index| index.remove(hash_key(key), reference)) {
            moved(step.into());
        }
        if let Some(changes) = self.primary.remove(key, reference.to_bits()) {
            moved(Moved::Leaves { index: 0, changes });
        }
    }

    fn with_row(&self, reference: ObjectRef, alloc: &mut AllocCache, act: impl FnOnce(&[u8], &[u8], &mut Vec<u8>)) {
        let whole = |object: Object<'_>, into: &mut Vec<u8>| read_whole(object, reference, into);
        self.with_row_as_read(whole, reference, alloc, act);
    }

    fn with_row_as_read(
        &self,
        read: impl FnOnce(Object<'_>, &mut Vec<u8>) -> Option<(usize, usize)>,
        reference: ObjectRef,
        alloc: &mut AllocCache,
        act: impl FnOnce(&[u8], &[u8], &mut Vec<u8>),
    ) {
        let (mut payload, mut index_key) = (std::mem::take(&mut alloc.payload), std::mem::take(&mut alloc.key));
        if let Some((key_len, payload_len)) = read(self.store.object(reference), &mut payload) {
            let (key, value) = payload[..payload_len].split_at(key_len);
            act(key, value, &mut index_key);
        }
        (alloc.payload, alloc.key) = (payload, index_key);
    }

    /// Puts all rows into a new index.
    pub(super) fn fill(&self, index: usize) -> Result<(), StoreError> {
        let mut room = FillRoom::default();
        self.pages()
            .iter()
            .flat_map(crate::slab::Run::slots)
            .try_for_each(|offset| self.enter_slot(index, offset, &mut room).map(drop))
    }

    /// Enters the row of a slot, if there is one, into an index made by [`begin_index`](Self::begin_index). The caller must call
    /// it for every slot of [`pages`](Self::pages). If a slot has become another table's since then, nothing is entered. False: a
    /// writer holds the row, or the key belongs to an insert that may or may not commit; ask again later.
    ///
    /// The caller guarantees that an owner that locks a row from now on, and changes it in place, knows of the index.
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if the index is unique and the rows are not; [`StoreError::Row`]; [`StoreError::HalfWritten`].
    pub fn fill_slot(&self, index: usize, offset: u64, room: &mut FillRoom) -> Result<bool, StoreError> {
        // If it is free now, the next writer takes the lock, and looks up the indexes, after this.
        let object = Object::at(self.store.memory(), offset);
        if object.lock_word() != 0 {
            let is_here = self.has_slot(offset);
            return if is_here && object.is_damaged() { Err(StoreError::HalfWritten { offset }) } else { Ok(!is_here) };
        }
        match self.enter_slot(index, offset, room) {
            Err(StoreError::Duplicate { first, second, .. })
                if !are_rows_together(first, second, |row| self.is_settled(row)) =>
            {
                Ok(false)
            }
            entered => entered,
        }
    }

    /// Whether it is a row that no writer is about to change.
    fn is_settled(&self, reference: ObjectRef) -> bool {
        self.store.object(reference).lock_word() == 0 && self.occupant(reference) == Occupant::Live
    }

    fn has_slot(&self, offset: u64) -> bool {
        self.store.table_of(offset) == Some(self.id)
    }

    fn enter_slot(&self, index: usize, offset: u64, room: &mut FillRoom) -> Result<bool, StoreError> {
        let Some(secondary) = self.secondary(index) else { return Ok(true) };
        let object = Object::at(self.store.memory(), offset);
        let reference = ObjectRef::new(offset, object.meta().incarnation());
        if self.occupant(reference) == Occupant::Gone {
            return Ok(true);
        }
        let (key, value) = match read_some(object, reference, &mut room.payload) {
            Ok(Some((key_len, payload_len))) => room.payload[..payload_len].split_at(key_len),
            Ok(None) => return Ok(true),
            Err(Writing) => return Ok(false),
        };
        // After the read: the run may have gone to another table since the caller asked for it.
        if !self.has_slot(offset) {
            return Ok(true);
        }
        secondary.def.keys.make(key, value, &mut room.key).map_err(StoreError::Row)?;
        let entered = self.enter(&secondary.index, index as u16, &room.key, reference, &|_| false, &mut |_| ());
        // A transaction that removed the row since it was read may have come before this entry.
        fence(Ordering::SeqCst);
        let gone = self.occupant(reference) == Occupant::Gone;
        if gone {
            secondary.index.remove(&room.key, reference.to_bits());
        }
        if let (Entered::No { reference: other, .. }, false) = (entered, gone) {
            return Err(StoreError::Duplicate { index, first: other, second: reference });
        }
        Ok(true)
    }
}

/// Whether two rows were there at one moment. A transaction that deletes the first and inserts the second is no violation. It
/// holds both locks until both are written, so a thread that has seen the new row sees the old one locked or gone. But the
/// transaction may do all of this between the read of the old row and the read of the new one, so the first row is read again.
fn are_rows_together(first: ObjectRef, second: ObjectRef, mut is_settled: impl FnMut(ObjectRef) -> bool) -> bool {
    is_settled(first) && is_settled(second) && is_settled(first)
}

/// Memory for [`TableStore::fill_slot`], kept from one slot to the next.
#[derive(Debug, Default)]
pub struct FillRoom {
    payload: Vec<u8>,
    key: Vec<u8>,
}

/// The outcome of entering a key in one index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entered {
    Yes,
    /// In place of a row whose delete has committed.
    Over(ObjectRef),
    /// The key leads to a row that the transaction itself deletes.
    Mine,
    No {
        index: u16,
        reference: ObjectRef,
        occupant: Occupant,
    },
}

/// Makes an index name `reference` under `key` in place of an object that it replaces.
fn name_over(index: &OrderedIndex, key: &[u8], reference: ObjectRef, replaces: &dyn Fn(ObjectRef) -> bool) {
    if let Some(other) = index.get(key).value
        && replaces(ObjectRef::from_bits(other))
    {
        // Another thread may have done it since, for the same message.
        let _ = index.replace(key, other, reference.to_bits());
    }
}

/// Reads a row of this incarnation, for as long as it is written; `None` if its slot has another use now. Returns the bytes of its key and
/// of all of it.
fn read_whole(object: Object<'_>, reference: ObjectRef, into: &mut Vec<u8>) -> Option<(usize, usize)> {
    loop {
        match read_some(object, reference, into) {
            Ok(found) => return found,
            Err(Writing) => std::hint::spin_loop(),
        }
    }
}

/// A writer is writing the row, perhaps for longer: a writer of another node may end in the middle.
struct Writing;

/// Reads a row, for as long as a local writer takes to write it. Returns the bytes of its key and of all of it.
fn read_some(object: Object<'_>, reference: ObjectRef, into: &mut Vec<u8>) -> Result<Option<(usize, usize)>, Writing> {
    use crate::object::ReadError;
    for _ in 0..TORN_MAX {
        match object.read(reference.incarnation(), into) {
            Ok(read) => return Ok(Some((read.key_len(), read.payload_len()))),
            Err(ReadError::Stale) => return Ok(None),
            Err(ReadError::Torn) => std::hint::spin_loop(),
            Err(ReadError::TooShort { payload_len }) => into.resize(payload_len, 0),
        }
    }
    Err(Writing)
}

/// Looks at a row that is being written.
const TORN_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_takes_anothers_key_is_never_seen_together_with_it() {
        let (one, other) = (ObjectRef::new(64, 1), ObjectRef::new(128, 1));
        for (old, new) in [(one, other), (other, one)] {
            for commit_before_look in 0..=3 {
                let mut look = 0;
                let together = are_rows_together(one, other, |row| {
                    let is_over = look >= commit_before_look;
                    look += 1;
                    row == if is_over { new } else { old }
                });
                assert!(!together, "{old:?} to {new:?} before look {commit_before_look}");
            }
        }
        assert!(are_rows_together(one, other, |_| true), "two rows are two rows");
    }
}
