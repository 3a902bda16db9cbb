//! The secondary indexes of a table on this node: how one comes, becomes readable and goes, and how its keys are made.
//!
//! ```text
//!   add_index ── Filling ── end_filling ──▶ Filled ── open_index ──▶ Ready ── close_index ──▶ Closed ── drop_index ──▶ Dropped
//!                                      └──▶ Refused                       (drop_index leads to Dropped from any state)
//! ```

use super::{Index, TableShared};
use crate::base::definition::{Recorded, TableDef};
use crate::base::error::TxnError;
use farhold_btree::KeyShape;
use farhold_fabric::NodeId;
use farhold_store::row::{self, RowError, Schema, SecondaryIndex, SecondaryKeys};
use farhold_store::{IndexDef, KeyMaker};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, MutexGuard, PoisonError};

pub(super) struct IndexSlot {
    pub definition: SecondaryIndex,
    pub keys: Arc<SecondaryKeys>,
    pub state: IndexState,
    pub coordinator: Option<Coordinator>,
}

/// The creator of an index: a node, and which start of it ([`system::start`](crate::system::start)).
pub(crate) type Coordinator = (NodeId, u64);

#[derive(Clone, PartialEq, Eq)]
pub(super) enum IndexState {
    /// When a row's key in this index changes, writers give the row another object. They maintain the index once
    /// [`TableShared::begin_filling`] has made it. It is not complete.
    Filling,
    /// Complete here, maybe not elsewhere.
    Filled,
    /// It cannot be complete.
    Refused(TxnError),
    Ready,
    /// Writers maintain it, because there may be readers on other nodes. No transaction of this node reads it.
    Closed,
    Dropped,
}

/// The rows' own [`SecondaryKeys`], as the store wants them.
struct Keys {
    schema: Schema,
    keys: Arc<SecondaryKeys>,
}

impl KeyMaker for Keys {
    fn make(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), RowError> {
        self.keys.make(&self.schema, key, value, out)
    }
}

/// The longest keys that lie in the ordered index itself.
const FIXED_KEY_BYTES_MAX: usize = 16;

pub(super) fn primary_shape(schema: &Schema) -> KeyShape {
    match schema.key_shape() {
        row::KeyShape::Fixed(bytes @ 1..=FIXED_KEY_BYTES_MAX) => KeyShape::Fixed(bytes),
        _ => KeyShape::Bytes,
    }
}

/// All keys of one length? NULL is a marker alone, so no column may be nullable.
pub(super) fn secondary_shape(schema: &Schema, index: &SecondaryIndex) -> KeyShape {
    let column = |i: &usize| {
        let column = &schema.columns()[*i];
        if column.nullable { None } else { column.data_type.key_bytes() }
    };
    let own: Option<usize> = index.columns.iter().map(column).sum();
    let appended = match schema.key_shape() {
        _ if index.unique => Some(0),
        row::KeyShape::Fixed(bytes) => Some(bytes),
        row::KeyShape::Variable { .. } => None,
    };
    match own.zip(appended).map(|(own, appended)| own + appended) {
        Some(bytes @ 1..=FIXED_KEY_BYTES_MAX) => KeyShape::Fixed(bytes),
        _ => KeyShape::Bytes,
    }
}

pub(super) fn index_def(schema: &Schema, index: &SecondaryIndex) -> Result<(IndexDef, Arc<SecondaryKeys>), RowError> {
    let keys = Arc::new(SecondaryKeys::new(schema, index)?);
    let maker = Arc::new(Keys { schema: schema.clone(), keys: keys.clone() });
    Ok((IndexDef { shape: secondary_shape(schema, index), unique: index.unique, keys: maker }, keys))
}

impl TableShared {
    /// Announces a coming index to writers: from now on they change no key of it in place. The index itself is not made yet:
    /// writers of other nodes may not know of it, and would change rows without changing their entries.
    pub fn add_index(&self, slot: u16, definition: &TableDef, coordinator: Coordinator) -> Result<(), TxnError> {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let position = usize::from(slot);
        if position >= definition.indexes.len() {
            return Err(TxnError::Corrupt { what: "an index that its table's definition does not have" });
        }
        if self.gone().contains(&slot) {
            return Err(no_index(&self.name, Index::Secondary(slot)));
        }
        // Slots of other indexes that are being created at the same moment.
        for index in definition.indexes.iter().take(position + 1).skip(slots.len()) {
            let keys = Arc::new(SecondaryKeys::new(&self.schema, index)?);
            slots.push(IndexSlot { definition: index.clone(), keys, state: IndexState::Dropped, coordinator: None });
        }
        let definition = definition.indexes[position].clone();
        let keys = Arc::new(SecondaryKeys::new(&self.schema, &definition)?);
        let coordinator = Some(coordinator);
        slots[position] = IndexSlot { definition, keys, state: IndexState::Filling, coordinator };
        self.has_secondary.store(true, SeqCst);
        Ok(())
    }

    /// Makes the index, empty: inserts enter it from now on. The caller guarantees that every node's writers know of
    /// it.
    ///
    /// # Errors
    /// [`TxnError::NotFound`] if it has been taken away meanwhile, or is there.
    pub fn begin_filling(&self, slot: u16) -> Result<(), TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get(usize::from(slot)).filter(|slot| slot.state == IndexState::Filling);
        let found = found.ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?;
        let (def, _) = index_def(&self.schema, &found.definition)?;
        let begun = self.store.begin_index(Index::Secondary(slot).number(), def);
        begun.map_err(|error| TxnError::store(error, self.store.store().node()))
    }

    /// Notes how filling an index has ended.
    pub fn end_filling(&self, slot: u16, outcome: Result<(), TxnError>) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = slots.get_mut(usize::from(slot)).filter(|slot| slot.state == IndexState::Filling) {
            found.state = outcome.map_or_else(IndexState::Refused, |()| IndexState::Filled);
        }
    }

    /// Has the index been filled?
    pub fn is_filled(&self, slot: u16) -> Result<bool, TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get(usize::from(slot)).ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?;
        match &found.state {
            IndexState::Filling => Ok(false),
            IndexState::Filled | IndexState::Ready => Ok(true),
            IndexState::Refused(error) => Err(error.clone()),
            IndexState::Closed | IndexState::Dropped => Err(no_index(&self.name, Index::Secondary(slot))),
        }
    }

    /// Makes a filled index readable.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]: there is none, because the node has started again or the index was dropped.
    pub fn open_index(&self, slot: u16) -> Result<(), TxnError> {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get_mut(usize::from(slot));
        let found = found.filter(|slot| matches!(slot.state, IndexState::Filled | IndexState::Ready));
        found.ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?.state = IndexState::Ready;
        Ok(())
    }

    /// No transaction of this node reads an index from now on; writers still keep it. An index that must not be read
    /// yet is never read.
    pub fn close_index(&self, slot: u16) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get_mut(usize::from(slot));
        if let Some(found) = found.filter(|slot| matches!(slot.state, IndexState::Filled | IndexState::Ready)) {
            found.state = IndexState::Closed;
            self.store.close_index(usize::from(slot) + 1);
        }
    }

    /// Writers stop maintaining an index from now on. No node reads it.
    pub fn drop_index(&self, slot: u16) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        self.gone().insert(slot);
        if let Some(found) = slots.get_mut(usize::from(slot)) {
            found.state = IndexState::Dropped;
            self.store.drop_index(usize::from(slot) + 1);
        }
        self.has_secondary.store(slots.iter().any(|slot| slot.state != IndexState::Dropped), Relaxed);
    }

    fn gone(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Indexes that are being created here and whose coordinators are gone.
    pub fn orphans(&self, is_there: &dyn Fn(Coordinator) -> bool) -> Vec<u16> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let is_orphan = |slot: &IndexSlot| {
            matches!(slot.state, IndexState::Filling | IndexState::Filled | IndexState::Refused(_))
                && slot.coordinator.is_some_and(|coordinator| !is_there(coordinator))
        };
        (0_u16..).zip(slots.iter()).filter(|(_, slot)| is_orphan(slot)).map(|(slot, _)| slot).collect()
    }

    /// Does what is recorded and the coordinators of indexes may not have told this node. Those of the `orphans` that are not recorded as
    /// complete are dropped. An index that is recorded as dropped is only closed, because there may still be readers on other nodes.
    pub fn follow(&self, recorded: &[Recorded], orphans: &[u16]) {
        for (slot, recorded) in (0_u16..).zip(recorded) {
            match recorded {
                // If this fails, the index is not complete here, and its coordinator will find that out.
                Recorded::Live => drop(self.open_index(slot)),
                Recorded::Dropped => self.close_index(slot),
                Recorded::Begun if orphans.contains(&slot) => self.drop_index(slot),
                Recorded::Begun => {}
            }
        }
    }

    /// Indexes that are recorded as dropped, and not gone here.
    pub fn closed_of(&self, recorded: &[Recorded]) -> Vec<u16> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let is_left = |(slot, recorded): (&IndexSlot, &Recorded)| {
            *recorded == Recorded::Dropped && slot.state != IndexState::Dropped
        };
        let left = (0_u16..).zip(slots.iter().zip(recorded)).filter(|(_, it)| is_left(*it));
        left.map(|(slot, _)| slot).collect()
    }

    /// Does every key of the index begin with the column that places its row?
    pub fn begins_with_placement(&self, index: Index) -> bool {
        let Index::Secondary(slot) = index else { return true };
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(usize::from(slot)).is_some_and(|slot| slot.definition.columns.first() == self.schema.key().first())
    }

    /// May transactions read this index?
    ///
    /// # Errors
    /// As [`Self::keys_of`].
    pub fn check_readable(&self, index: Index) -> Result<(), TxnError> {
        let Index::Secondary(number) = index else { return Ok(()) };
        self.ready(&self.indexes.read().unwrap_or_else(PoisonError::into_inner), number).map(|_| ())
    }

    /// The maker of a ready index's keys.
    ///
    /// # Errors
    /// [`TxnError::SchemaChanged`] if it is not ready: a caller that knows its number has used it before it was
    /// dropped, here or on another node, and the number may belong to a new index by now. [`TxnError::NotFound`] if
    /// there never was one.
    pub fn keys_of(&self, index: Index) -> Result<Arc<SecondaryKeys>, TxnError> {
        let Index::Secondary(number) = index else { return Err(no_index(&self.name, index)) };
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        self.ready(&slots, number).map(|slot| slot.keys.clone())
    }

    fn ready<'a>(&self, slots: &'a [IndexSlot], number: u16) -> Result<&'a IndexSlot, TxnError> {
        let slot = slots.get(usize::from(number)).ok_or_else(|| no_index(&self.name, Index::Secondary(number)))?;
        if slot.state == IndexState::Ready { Ok(slot) } else { Err(TxnError::SchemaChanged) }
    }

    /// As [`Self::keys_of`], of an index that is being filled as well: for writers.
    pub fn any_keys_of(&self, index: Index) -> Result<Arc<SecondaryKeys>, TxnError> {
        let found = self.all_keys().into_iter().find(|(other, _)| *other == index);
        found.map(|(_, keys)| keys).ok_or(TxnError::SchemaChanged)
    }

    /// Makers of all keys that a writer must maintain, with their indexes.
    pub fn all_keys(&self) -> Vec<(Index, Arc<SecondaryKeys>)> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let live = (0_u16..).zip(slots.iter()).filter(|(_, slot)| slot.state != IndexState::Dropped);
        live.map(|(slot, it)| (Index::Secondary(slot), it.keys.clone())).collect()
    }

    /// Does the row get other keys in some index by this change of value?
    ///
    /// # Errors
    /// [`TxnError::Row`] if a value is no value of this table.
    pub fn changes_keys(&self, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool, TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter(|slot| slot.state != IndexState::Dropped) {
            if !slot.keys.same(&self.schema, key, old, new)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cold]
pub(super) fn no_index(table: &str, index: Index) -> TxnError {
    TxnError::NotFound { what: format!("{index} of table \"{table}\"").into() }
}
