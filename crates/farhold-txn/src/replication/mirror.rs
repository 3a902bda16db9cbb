//! A mirror: the rows of another node, slot by slot, on this node's heap.
//!
//! Of two states of a slot the one with the greater version is the newer, whatever way they have come by; a delete leaves
//! its version behind, so that an older state that comes late finds it.

use crate::TableId;
use farhold_fabric::Version;
use farhold_fabric::object::ALIGN;
use farhold_store::ObjectRef;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// What a slot held at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotCopy {
    pub version: Version,
    pub table: TableId,
    key_len: u32,
    payload: Box<[u8]>,
}

impl SlotCopy {
    pub fn new(version: Version, table: TableId, key: &[u8], value: &[u8]) -> Self {
        // A row that is gone needs its version alone.
        let payload = if version.is_absent() { Box::default() } else { [key, value].concat().into() };
        Self { version, table, key_len: if version.is_absent() { 0 } else { key.len() as u32 }, payload }
    }

    /// The next state of the slot; in the memory of the one before, where it has the same length, as an update usually has.
    fn become_state(&mut self, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        if version.is_absent() || self.payload.len() != key.len() + value.len() {
            *self = Self::new(version, table, key, value);
            return;
        }
        let (at_key, at_value) = self.payload.split_at_mut(key.len());
        at_key.copy_from_slice(key);
        at_value.copy_from_slice(value);
        (self.version, self.table, self.key_len) = (version, table, key.len() as u32);
    }

    pub fn key(&self) -> &[u8] {
        &self.payload[..self.key_len as usize]
    }

    pub fn value(&self) -> &[u8] {
        &self.payload[self.key_len as usize..]
    }
}

/// Spreads slot numbers (Fibonacci hashing). The same in every run, as a seed demands.
#[derive(Default)]
pub(crate) struct SlotHasher(u64);

impl Hasher for SlotHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, slot: u32) {
        self.0 = (self.0 ^ u64::from(slot)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

/// The rows of another node.
#[derive(Debug, Default)]
pub(crate) struct MirrorRows {
    slots: HashMap<u32, SlotCopy, BuildHasherDefault<SlotHasher>>,
}

fn slot_of(reference: ObjectRef) -> u32 {
    (reference.offset() / ALIGN) as u32
}

impl MirrorRows {
    /// Takes a state of a slot, if it is newer.
    pub fn take(&mut self, reference: ObjectRef, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        match self.slots.entry(slot_of(reference)) {
            Entry::Vacant(place) => drop(place.insert(SlotCopy::new(version, table, key, value))),
            Entry::Occupied(mut known) => {
                if known.get().version.number() < version.number() || planted!(MirrorAnyOrder) {
                    known.get_mut().become_state(version, table, key, value);
                }
            }
        }
    }

    /// Slots known, with or without a row.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Forgets the rows of a table that has been dropped.
    pub fn forget_table(&mut self, table: TableId) {
        self.slots.retain(|_, copy| copy.table != table);
    }

    /// The version at which a slot is known, also if no row is there.
    pub fn version_at(&self, offset: u64) -> Option<Version> {
        self.slots.get(&((offset / ALIGN) as u32)).map(|copy| copy.version)
    }

    /// The slots in which there is a row, ascending.
    pub fn slots(&self) -> Vec<u32> {
        let rows = self.slots.iter().filter(|(_, copy)| !copy.version.is_absent());
        let mut slots: Vec<u32> = rows.map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        slots
    }

    /// The row in a slot.
    pub fn row(&self, slot: u32) -> Option<&SlotCopy> {
        self.slots.get(&slot).filter(|copy| !copy.version.is_absent())
    }

    /// The rows that are there, by slot.
    pub fn rows(&self) -> Vec<(u32, SlotCopy)> {
        self.slots().into_iter().filter_map(|slot| Some((slot, self.row(slot)?.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_state_of_a_slot_stays_whatever_the_order() {
        let slot = |incarnation| ObjectRef::new(64, incarnation);
        let table = TableId(20);
        let states = [
            (slot(1), Version(8), &b"old"[..]),
            (slot(1), Version(16), b"new"),
            (slot(1), Version(24).with(Version::ABSENT), b""),
            (slot(2), Version(40), b"another row"),
        ];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
            let mut mirror = MirrorRows::default();
            for at in order {
                let (reference, version, value) = states[at];
                mirror.take(reference, version, table, b"key", value);
            }
            let rows = mirror.rows();
            assert_eq!((rows.len(), rows[0].0, rows[0].1.value()), (1, 4, &b"another row"[..]));
        }
        let mut mirror = MirrorRows::default();
        mirror.take(slot(1), Version(24).with(Version::ABSENT), table, b"", b"");
        mirror.take(slot(1), Version(16), table, b"key", b"late");
        assert!(mirror.rows().is_empty(), "a delete is not undone by a late record");
    }
}
