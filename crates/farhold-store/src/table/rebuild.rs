//! A table found in the region after a restart: what its slots say, and the indexes made anew from them.
//!
//! | found                                | becomes                                                            |
//! |--------------------------------------|--------------------------------------------------------------------|
//! | live row                             | indexed                                                            |
//! | live row that is locked              | the same, after all others; the lock is released                   |
//! | the same, beside one of its key      | free: the two are the states before and after a commit             |
//! | the same, beside one with a unique value of its | as a row with `WRITING`                                 |
//! | reserved, deleted, older copy        | free                                                               |
//! | row with `WRITING`                   | reported, left as it is, in the indexes of its primary key alone   |
//! | the same, beside a live row of its key | free: that one has taken its place                               |
//! | the same, absent and not locked      | live; otherwise as one that is locked                              |
//! | reserved or free slot with `WRITING` | free                                                               |
//!
//! A row with `WRITING` is found by its key, so that nobody takes it for absent or its key for free. Its value may be torn, so secondary indexes cannot
//! have it. An absent one is an insert whose version has not come; it may have taken the place of a row that is deleted already. Its coordinator unlocks
//! it together with its version, when its value is there: one that is not locked lacks nothing but the version. (Slots become free before
//! they are marked.)
//!
//! A start may end here, too, and the next one must decide as this one has: what tells rows of commits under way from others, their locks, goes when all
//! are in the indexes, and from a slot that becomes free when it is free.

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

/// A row whose writer died in the middle: its bytes are partly old and partly new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The object.
    pub reference: ObjectRef,
    /// Who was writing.
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
    /// The latest epoch of a version; the epoch must not be below it ([`raise_epoch`](crate::Superblock::raise_epoch)).
    pub epoch_max: u32,
}

impl Rebuilt {
    fn add(&mut self, some: Self) {
        self.rows += some.rows;
        self.freed += some.freed;
        self.locks_released += some.locks_released;
        self.damaged.extend(some.damaged);
        self.epoch_max = self.epoch_max.max(some.epoch_max);
    }
}

/// What some runs have.
#[derive(Debug, Default)]
struct Found {
    rebuilt: Rebuilt,
    /// Live rows that were locked, and inserts that lack their version.
    held: Vec<ObjectRef>,
}

impl Found {
    fn add(&mut self, mut some: Self) {
        self.rebuilt.add(some.rebuilt);
        self.held.append(&mut some.held);
    }
}

/// Runs that a thread takes at a time: some MiB, so that neighbours in key order come mostly from one thread.
const RUNS_PER_TURN: usize = 64;

impl TableStore {
    /// Opens a table whose rows are in the region, after [`Store::attach`].
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if two rows claim one key of a unique index, [`StoreError::Row`] if a row's bytes are no
    /// row of this table; the rows stay as they are then. Those of [`Self::create`].
    pub fn attach(store: &Arc<Store>, def: TableDef) -> Result<(Self, Rebuilt), StoreError> {
        Self::attach_parallel(store, def, &|job| job(0))
    }

    /// As [`Self::attach`], on as many threads as `run` has.
    ///
    /// # Errors
    /// As there.
    pub fn attach_parallel(
        store: &Arc<Store>,
        def: TableDef,
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
        rebuilt.damaged = this.enter_damaged(rebuilt.damaged)?;
        Ok((this, rebuilt))
    }

    /// Releases the locks of owners who are dead, while this node lives on: those of a far node that was fenced. Rows that
    /// such an owner was writing are reported and stay locked, so that nobody reads them for whole.
    ///
    /// The caller has made sure that the dead change nothing any more. Other owners may go on meanwhile.
    pub fn release_locks(&self, is_dead: impl Fn(Owner) -> bool) -> Rebuilt {
        let mut found = Rebuilt::default();
        for offset in self.pages().iter().flat_map(Run::slots) {
            let object = Object::at(self.store.memory(), offset);
            let Some(owner) = Owner::from_word(object.lock_word()).filter(|owner| is_dead(*owner)) else { continue };
            let meta = object.meta();
            if object.version().is_writing() {
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
        let Found { rebuilt: mut found, mut held } = Found::default();
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
                    let owner = Owner::from_word(object.lock_word());
                    found.damaged.push(Damaged { reference, owner, key });
                    continue;
                }
                if live && object.lock_word() != 0 {
                    held.push(reference);
                    continue;
                }
                if object.lock_word() != 0 {
                    object.unlock();
                    found.locks_released += 1;
                }
                if live {
                    object.store(Word::Prev, 0, Relaxed);
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
        Ok(Found { rebuilt: found, held })
    }

    /// Enters rows that were locked, when all that were not are in the indexes. Their owners had begun to write, perhaps: a row that moves is found in both
    /// its places, or a unique value in two rows, which is no other row's while they are locked.
    fn enter_held(&self, found: &mut Found) -> Result<(), StoreError> {
        let mut held = std::mem::take(&mut found.held);
        // What is older was whole before those commits.
        held.sort_unstable_by_key(|row| (self.store.object(*row).version().epoch(), row.offset()));
        let were_held: BTreeSet<ObjectRef> = held.iter().copied().collect();
        let mut entered = Vec::new();
        let (mut payload, mut index_key) = (Vec::new(), Vec::new());
        for reference in held {
            let object = self.store.object(reference);
            let meta = object.meta();
            payload.resize(meta.payload_len(), 0);
            object.copy_out(&mut payload);
            let (key, value) = payload.split_at(meta.key_len());
            let is_taken = |index: &OrderedIndex, key: &[u8]| {
                index.get(key).value.is_some_and(|other| were_held.contains(&ObjectRef::from_bits(other)))
            };
            if is_taken(&self.primary, key) {
                self.free(reference.offset());
                found.rebuilt.freed += 1;
                continue;
            }
            let mut is_value_taken = false;
            for (_, secondary) in self.secondaries() {
                secondary.def.keys.make(key, value, &mut index_key).map_err(StoreError::Row)?;
                is_value_taken |= is_taken(&secondary.index, &index_key);
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
            crate::planted::may_stop();
            let object = self.store.object(reference);
            let version = object.version();
            if version.is_writing() {
                object.restamp(version.next(version.epoch()));
            }
            found.rebuilt.locks_released += u64::from(object.lock_word() != 0);
            object.unlock();
        }
        Ok(())
    }

    /// Has rows that are half written found by their keys, when all others are in the indexes; returns them.
    fn enter_damaged(&self, damaged: Vec<Damaged>) -> Result<Vec<Damaged>, StoreError> {
        let mut kept = Vec::new();
        for row in damaged {
            match self.primary.insert(&row.key, row.reference.to_bits()) {
                Insert::Exists { value, .. } => {
                    if !self.store.object(ObjectRef::from_bits(value)).version().is_writing() {
                        self.free(row.reference.offset());
                        continue;
                    }
                }
                Insert::Inserted { .. } => {
                    if let Some(hash) = &self.hash {
                        hash.insert(hash_key(&row.key), row.reference, &mut |_| ())?;
                    }
                }
            }
            kept.push(row);
        }
        Ok(kept)
    }

    /// Frees the slot of a row whose key has another one.
    fn free(&self, offset: u64) {
        let object = Object::at(self.store.memory(), offset);
        retire(object);
        crate::planted::may_stop();
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
