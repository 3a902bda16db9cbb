//! A table found in the region after a restart: the states of its slots, and the indexes made anew from them.
//!
//! The table in `docs/design/0017-restart-from-memory.md` lists all cases, with the reasons. The idea:
//!
//! - What no writer was changing counts as it is: rows are indexed, all else is free.
//! - A row with `WRITING` may have a torn value. Its key finds it, so that no transaction takes it for absent or its key for
//!   free, and it is reported; secondary indexes cannot have it. [`Owner::DAMAGED`] gets its lock.
//! - Locked rows belong to commits that were under way, and come last. A commit of this node that moves rows writes the new ones
//!   first, which stay [`RESERVED`] until the old ones are done. So while one of its reservations is no row yet, no old row has
//!   changed, and the new rows are removed. From then on all new rows are there, and the old rows that they replace are removed.
//! - An absent row with `WRITING` is an insert from another node without its version. Its coordinator unlocks it together with
//!   its version, after its value is there. So an unlocked one lacks nothing but the version. (Slots become free before they are
//!   marked.)
//!
//! A start may end here, too, and the next one must decide as this one has. So what tells the rows of a commit from others is
//! removed in this order: rows that are decided against, reservations, then, when all are in the indexes, the locks.

use super::{TableDef, TableStore};
use crate::durable::Parallel;
use crate::error::StoreError;
use crate::index::hash::hash_key;
use crate::object::size_class::COUNT;
use crate::object::{Object, ObjectRef, Owner, RESERVED, Word, Words, begin_write};
use crate::slab::{Run, retire};
use crate::store::Store;
use farhold_btree::{Insert, OrderedIndex};
use farhold_fabric::Meta;
use farhold_fabric::object::ALIGN;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// A row with a writer that died in the middle: its bytes are partly old and partly new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The object.
    pub reference: ObjectRef,
    /// The writer, if it is known.
    pub owner: Option<Owner>,
    /// The key, which writers do not change.
    pub key: Vec<u8>,
}

/// What an attach found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Rows in the indexes.
    pub rows: u64,
    /// Slots of reservations, deleted rows and older copies, freed.
    pub freed: u64,
    /// Locks of dead owners, released. After a crash these rows may be of transactions that were half committed.
    pub locks_released: u64,
    /// Rows that are lost without another copy.
    pub damaged: Vec<Damaged>,
    /// Such rows whose slots have been freed, because the caller asked for it.
    pub forgotten: Vec<Damaged>,
    /// The latest epoch of a version; the epoch must not be below it ([`raise_epoch`](crate::Superblock::raise_epoch)).
    pub epoch_max: u32,
}

impl Rebuilt {
    fn add(&mut self, some: Self) {
        self.rows += some.rows;
        self.freed += some.freed;
        self.locks_released += some.locks_released;
        self.damaged.extend(some.damaged);
        self.forgotten.extend(some.forgotten);
        self.epoch_max = self.epoch_max.max(some.epoch_max);
    }
}

/// What some runs have.
#[derive(Debug, Default)]
struct Found {
    rebuilt: Rebuilt,
    /// Live rows that were locked, and inserts that lack their version.
    held: Vec<ObjectRef>,
    /// Reservations that were locked: their commits had not turned them into rows yet.
    pending: Vec<ObjectRef>,
}

impl Found {
    fn add(&mut self, mut some: Self) {
        self.rebuilt.add(some.rebuilt);
        self.held.append(&mut some.held);
        self.pending.append(&mut some.pending);
    }
}

/// Runs that a thread takes at a time: some MiB, so that neighbours in key order come mostly from one thread.
const RUNS_PER_TURN: usize = 64;

impl TableStore {
    /// Opens a table with rows in the region, after [`Store::attach`].
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if two rows claim one key of a unique index, [`StoreError::Row`] if a row's bytes are no row of
    /// this table; the rows stay unchanged then. Those of [`Self::create`].
    pub fn attach(store: &Arc<Store>, def: TableDef) -> Result<(Self, Rebuilt), StoreError> {
        Self::attach_parallel(store, def, false, &|job| job(0))
    }

    /// As [`Self::attach`], on as many threads as `run` has. Half-written rows stay, and are reported. If the caller forgets
    /// them, their slots and their keys are free instead.
    ///
    /// # Errors
    /// As there.
    pub fn attach_parallel(
        store: &Arc<Store>,
        def: TableDef,
        forgets_damaged: bool,
        run: &Parallel<'_>,
    ) -> Result<(Self, Rebuilt), StoreError> {
        let slab = store.open_slab(def.id, true)?;
        let this = Self::open(store, def, slab)?;
        let runs = this.pages();
        let next = AtomicUsize::new(0);
        let found: Mutex<Result<Found, StoreError>> = Mutex::new(Ok(Found::default()));
        run(&|_| {
            loop {
                let from = next.fetch_add(RUNS_PER_TURN, Relaxed);
                let is_over = from >= runs.len() || found.lock().unwrap_or_else(PoisonError::into_inner).is_err();
                if is_over {
                    return;
                }
                let some = this.rebuild(&runs[from..(from + RUNS_PER_TURN).min(runs.len())]);
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                match (&mut *found, some) {
                    (Ok(all), Ok(some)) => all.add(some),
                    (Ok(_), Err(error)) => *found = Err(error),
                    (Err(_), _) => {}
                }
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        this.enter_held(&mut found)?;
        let mut rebuilt = found.rebuilt;
        if forgets_damaged {
            rebuilt.forgotten = std::mem::take(&mut rebuilt.damaged);
            rebuilt.forgotten.retain(|row| this.forget_damaged(row));
            rebuilt.forgotten.sort_unstable_by(|one, other| one.key.cmp(&other.key));
            rebuilt.forgotten.dedup_by(|one, other| one.key == other.key);
        }
        rebuilt.damaged = this.enter_damaged(rebuilt.damaged)?;
        Ok((this, rebuilt))
    }

    /// Releases the locks of dead owners while this node lives on: those of a far node that was fenced. Rows that such an owner
    /// was writing are reported, and [`Owner::DAMAGED`] gets their locks, so that no transaction treats them as whole.
    ///
    /// The caller guarantees that the dead owners change nothing any more. Other owners may go on meanwhile.
    pub fn release_locks(&self, is_dead: impl Fn(Owner) -> bool) -> Rebuilt {
        let mut found = Rebuilt::default();
        for offset in self.pages().iter().flat_map(Run::slots) {
            let object = Object::at(self.store.memory(), offset);
            let is_to_go = |owner: &Owner| *owner != Owner::DAMAGED && is_dead(*owner);
            let Some(owner) = Owner::from_word(object.lock_word()).filter(is_to_go) else { continue };
            let (version, meta) = (object.version(), object.meta());
            // If a slot is just being freed or taken, a living thread is the writer: the dead owner had a stale reference.
            // The version before and after the meta word: both are of one use of the slot.
            let is_writing = version.is_writing() && object.version() == version;
            if is_writing && matches!(meta.state(), Meta::ROW | RESERVED) {
                object.mark_damaged();
                let mut key = vec![0; meta.key_len()];
                object.copy_out(&mut key);
                let reference = ObjectRef::new(offset, meta.incarnation());
                found.damaged.push(Damaged { reference, owner: Some(owner), key });
            } else if object.release_dead(owner).is_ok() {
                found.locks_released += 1;
            }
        }
        found
    }

    fn rebuild(&self, runs: &[Run]) -> Result<Found, StoreError> {
        let Found { rebuilt: mut found, mut held, mut pending } = Found::default();
        let (mut payload, mut index_key) = (Vec::new(), Vec::new());
        let mut free: [Vec<u32>; COUNT] = [const { Vec::new() }; COUNT];
        for run in runs {
            let free = &mut free[run.class.0 as usize];
            for offset in run.slots().collect::<Vec<_>>().into_iter().rev() {
                let object = Object::at(self.store.memory(), offset);
                let (version, meta) = (object.version(), object.meta());
                found.epoch_max = found.epoch_max.max(version.epoch());
                let reference = ObjectRef::new(offset, meta.incarnation());
                let too_long =
                    meta.payload_len() > run.class.payload_bytes_max() || meta.key_len() > meta.payload_len();
                if meta.state() != Meta::FREE && too_long {
                    return Err(StoreError::Corrupt { offset, reason: "a row is longer than its slot" });
                }
                let is_insert = meta.state() == Meta::ROW && version.is_absent() && version.is_writing();
                if is_insert && object.lock_word() == 0 {
                    held.push(reference);
                    continue;
                }
                let live = matches!(meta.state(), Meta::ROW | RESERVED) && !version.is_absent();
                if version.is_writing() && (live || is_insert) {
                    let mut key = vec![0; meta.key_len()];
                    object.copy_out(&mut key);
                    let owner = Owner::from_word(object.lock_word()).filter(|owner| *owner != Owner::DAMAGED);
                    found.damaged.push(Damaged { reference, owner, key });
                    continue;
                }
                if live && object.lock_word() != 0 {
                    held.push(reference);
                    continue;
                }
                if meta.state() == RESERVED && object.lock_word() != 0 {
                    pending.push(reference);
                    continue;
                }
                if object.lock_word() != 0 {
                    object.unlock();
                    found.locks_released += 1;
                }
                if live {
                    object.store(Word::Prev, 0, Relaxed);
                    object.end_reservation();
                    payload.resize(meta.payload_len(), 0);
                    object.copy_out(&mut payload);
                    let (key, value) = payload.split_at(meta.key_len());
                    self.enter_found(key, value, reference, &mut index_key)?;
                    found.rows += 1;
                    continue;
                }
                if meta.state() != Meta::FREE || version.is_writing() {
                    found.freed += u64::from(meta.state() != Meta::FREE);
                    retire(object);
                }
                free.push((offset / ALIGN) as u32);
            }
        }
        for (shared, mut found) in self.slab.free().iter_mut().zip(free) {
            shared.append(&mut found);
        }
        Ok(Found { rebuilt: found, held, pending })
    }

    /// Enters rows that were locked, when all that were not are in the indexes: of each commit either the old rows or the new
    /// ones.
    fn enter_held(&self, found: &mut Found) -> Result<(), StoreError> {
        let mut held = self.go_back(found);
        let is_new = |row: &ObjectRef| self.store.object(*row).meta().state() == RESERVED;
        // New rows first: if there are any, all of their commit are there, and take the places of old ones. The rest of the order
        // matters in no region that this version has left; in that of an earlier version the older row was whole before its
        // commit.
        held.sort_unstable_by_key(|row| (!is_new(row), self.store.object(*row).version().epoch(), row.offset()));
        let were_held: BTreeSet<ObjectRef> = held.iter().copied().collect();
        let mut entered = Vec::new();
        let (mut payload, mut index_key) = (Vec::new(), Vec::new());
        for reference in held {
            let object = self.store.object(reference);
            let meta = object.meta();
            payload.resize(meta.payload_len(), 0);
            object.copy_out(&mut payload);
            let (key, value) = payload.split_at(meta.key_len());
            let taken_by = |index: &OrderedIndex, key: &[u8]| {
                index.get(key).value.map(ObjectRef::from_bits).filter(|other| were_held.contains(other))
            };
            let mut is_replaced = taken_by(&self.primary, key).is_some();
            let mut is_value_taken = false;
            for (_, secondary) in self.secondaries() {
                secondary.def.keys.make(key, value, &mut index_key).map_err(StoreError::Row)?;
                let Some(other) = taken_by(&secondary.index, &index_key) else { continue };
                is_value_taken = true;
                // By its own commit, which deletes it.
                is_replaced |= is_new(&other) && self.store.object(other).lock_word() == object.lock_word();
            }
            if is_replaced {
                self.free(reference.offset());
                found.rebuilt.freed += 1;
                continue;
            }
            if is_value_taken {
                begin_write(&object);
                let owner = Owner::from_word(object.lock_word());
                found.rebuilt.damaged.push(Damaged { reference, owner, key: key.to_vec() });
                continue;
            }
            object.store(Word::Prev, 0, Relaxed);
            self.enter_found(key, value, reference, &mut index_key)?;
            found.rebuilt.rows += 1;
            entered.push(reference);
        }
        for reference in entered {
            farhold_planted::may_stop();
            let object = self.store.object(reference);
            let version = object.version();
            if version.is_writing() {
                object.restamp(version.next(version.epoch()));
            }
            object.end_reservation();
            found.rebuilt.locks_released += u64::from(object.lock_word() != 0);
            object.unlock();
        }
        Ok(())
    }

    /// Frees the new rows of commits that had not turned all their reservations into rows, then these reservations; returns the
    /// other rows that were held.
    fn go_back(&self, found: &mut Found) -> Vec<ObjectRef> {
        let pending = std::mem::take(&mut found.pending);
        let owner_of = |row: &ObjectRef| self.store.object(*row).lock_word();
        let unfinished: BTreeSet<u64> = pending.iter().map(owner_of).collect();
        let is_of_unfinished =
            |row: &ObjectRef| self.store.object(*row).meta().state() == RESERVED && unfinished.contains(&owner_of(row));
        let (new, others): (Vec<_>, Vec<_>) = std::mem::take(&mut found.held).into_iter().partition(is_of_unfinished);
        // Reservations last: they decide about the others.
        for row in new.into_iter().chain(pending) {
            farhold_planted::may_stop();
            self.free(row.offset());
            found.rebuilt.freed += 1;
            found.rebuilt.locks_released += 1;
        }
        others
    }

    /// Makes half-written rows known by their keys, when all others are in the indexes; returns them, one of each key.
    fn enter_damaged(&self, damaged: Vec<Damaged>) -> Result<Vec<Damaged>, StoreError> {
        let mut kept = Vec::new();
        for row in damaged {
            let object = self.store.object(row.reference);
            match self.primary.insert(&row.key, row.reference.to_bits()) {
                Insert::Exists { value, .. }
                    if self.store.object(ObjectRef::from_bits(value)).version().is_writing() =>
                {
                    object.mark_damaged();
                }
                Insert::Exists { .. } => self.free(row.reference.offset()),
                Insert::Inserted { .. } => {
                    if let Some(hash) = &self.hash {
                        hash.insert(hash_key(&row.key), row.reference, &mut |_| ())?;
                    }
                    object.mark_damaged();
                    kept.push(row);
                }
            }
        }
        Ok(kept)
    }

    /// Frees the slot of a half-written row; false if another row has its key, so that nothing is lost.
    fn forget_damaged(&self, row: &Damaged) -> bool {
        farhold_planted::may_stop();
        self.free(row.reference.offset());
        self.primary.get(&row.key).value.is_none()
    }

    /// Frees the slot of a row if another slot has its key.
    fn free(&self, offset: u64) {
        let object = Object::at(self.store.memory(), offset);
        retire(object);
        farhold_planted::may_stop();
        object.unlock();
        let class = self.store.pages().table().class_at(offset);
        self.slab.free()[class.0 as usize].push((offset / ALIGN) as u32);
    }

    fn enter_found(
        &self,
        key: &[u8],
        value: &[u8],
        reference: ObjectRef,
        index_key: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let enter = |number: u16, index: &OrderedIndex, key: &[u8]| match index.insert(key, reference.to_bits()) {
            Insert::Inserted { .. } => Ok(()),
            Insert::Exists { value, .. } => {
                let first = ObjectRef::from_bits(value);
                Err(StoreError::Duplicate { index: number.into(), first, second: reference })
            }
        };
        enter(0, &self.primary, key)?;
        if let Some(hash) = &self.hash {
            hash.insert(hash_key(key), reference, &mut |_| ())?;
        }
        for (number, secondary) in self.secondaries() {
            secondary.def.keys.make(key, value, index_key).map_err(StoreError::Row)?;
            enter(number, &secondary.index, index_key)?;
        }
        Ok(())
    }
}
