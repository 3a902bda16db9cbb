//! A mirror: the rows of another node, slot by slot, on this node's heap.
//!
//! ```text
//!   slot number ─► blocks: where its state is ─► rooms: version │ table, key_len │ payload_len │ class │ key, value
//! ```
//!
//! Of two states of a slot the one with the greater version is the newer, whatever way they have come by; a delete leaves
//! its version behind, so that an older state that comes late finds it.
//!
//! Rows come in no order, so what a state costs is two cache misses, one after the other. Whoever takes many starts both for all of
//! them before he takes the first ([`MirrorRows::prefetch`], [`MirrorRows::prefetch_row`]). A hash map of boxes, tried before, has
//! three that nobody can start early, and stands still for as long as it takes to grow.

use crate::TableId;
use farhold_fabric::object::ALIGN;
use farhold_fabric::{Version, processor};
use farhold_store::ObjectRef;
use farhold_store::object::size_class::{COUNT, SizeClass};

/// What a slot held at a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotCopy {
    pub version: Version,
    pub table: TableId,
    key_len: usize,
    payload: Vec<u8>,
}

impl SlotCopy {
    pub fn key(&self) -> &[u8] {
        &self.payload[..self.key_len]
    }

    pub fn value(&self) -> &[u8] {
        &self.payload[self.key_len..]
    }
}

/// The rows of another node.
#[derive(Default)]
pub(crate) struct MirrorRows {
    /// For each slot the place of its room, [`NOWHERE`] if nothing is known of it. A block is made with its first slot.
    blocks: Vec<Option<Box<[u32; BLOCK_SLOTS]>>>,
    rooms: Rooms,
    /// Slots of which something is known.
    known: Vec<u32>,
}

/// Slot numbers of a block: those of 64 KiB of the region.
const BLOCK_SLOTS: usize = 4096;
const NOWHERE: u32 = 0;

fn slot_of(reference: ObjectRef) -> u32 {
    (reference.offset() / ALIGN) as u32
}

impl MirrorRows {
    /// Takes a state of a slot, if it is newer.
    pub fn take(&mut self, reference: ObjectRef, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        let slot = slot_of(reference);
        // A row that is gone needs its version alone.
        let (key, value) = if version.is_absent() { (&[][..], &[][..]) } else { (key, value) };
        let payload_len = key.len() + value.len();
        let mut place = self.place(slot);
        if place == NOWHERE {
            place = self.rooms.take(payload_len);
            self.known.push(slot);
            self.set_place(slot, place);
        } else {
            let is_newer = self.rooms.version(place).number() < version.number();
            if !is_newer && !planted!(MirrorAnyOrder) {
                return;
            }
            if self.rooms.class(place).payload_bytes_max() < payload_len {
                self.rooms.give_back(place);
                place = self.rooms.take(payload_len);
                self.set_place(slot, place);
            }
        }
        self.rooms.write(place, version, table, key, value);
    }

    /// Starts loading where the state of a slot is, for [`Self::prefetch_row`] some 100 ns later.
    #[inline]
    pub fn prefetch(&self, reference: ObjectRef) {
        let slot = slot_of(reference) as usize;
        if let Some(Some(block)) = self.blocks.get(slot / BLOCK_SLOTS) {
            processor::prefetch(&block[slot % BLOCK_SLOTS..=slot % BLOCK_SLOTS]);
        }
    }

    /// Starts loading the state itself, as long as the one that is to come, for [`Self::take`] some 100 ns later.
    #[inline]
    pub fn prefetch_row(&self, reference: ObjectRef, payload_len: usize) {
        let place = self.place(slot_of(reference));
        if place != NOWHERE {
            self.rooms.prefetch(place, payload_len);
        }
    }

    /// Slots known, with or without a row.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets the rows of a table that has been dropped.
    pub fn forget_table(&mut self, table: TableId) {
        let mut known = std::mem::take(&mut self.known);
        known.retain(|slot| {
            let place = self.place(*slot);
            let stays = self.rooms.table(place) != table;
            if !stays {
                self.rooms.give_back(place);
                self.set_place(*slot, NOWHERE);
            }
            stays
        });
        self.known = known;
    }

    /// The version at which a slot is known, also if no row is there.
    pub fn version_at(&self, offset: u64) -> Option<Version> {
        let place = self.place((offset / ALIGN) as u32);
        (place != NOWHERE).then(|| self.rooms.version(place))
    }

    /// The slots in which there is a row, ascending.
    pub fn slots(&self) -> Vec<u32> {
        let is_row = |slot: &u32| !self.rooms.version(self.place(*slot)).is_absent();
        let mut slots: Vec<u32> = self.known.iter().copied().filter(is_row).collect();
        slots.sort_unstable();
        slots
    }

    /// The row in a slot.
    pub fn row(&self, slot: u32) -> Option<SlotCopy> {
        let place = self.place(slot);
        let is_row = place != NOWHERE && !self.rooms.version(place).is_absent();
        is_row.then(|| self.rooms.copy(place))
    }

    /// The rows that are there, by slot.
    pub fn rows(&self) -> Vec<(u32, SlotCopy)> {
        self.slots().into_iter().filter_map(|slot| Some((slot, self.row(slot)?))).collect()
    }

    #[inline]
    fn place(&self, slot: u32) -> u32 {
        let (block, at) = (slot as usize / BLOCK_SLOTS, slot as usize % BLOCK_SLOTS);
        self.blocks.get(block).and_then(Option::as_ref).map_or(NOWHERE, |block| block[at])
    }

    fn set_place(&mut self, slot: u32, place: u32) {
        let (block, at) = (slot as usize / BLOCK_SLOTS, slot as usize % BLOCK_SLOTS);
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, || None);
        }
        self.blocks[block].get_or_insert_with(|| Box::new([NOWHERE; BLOCK_SLOTS]))[at] = place;
    }
}

impl std::fmt::Debug for MirrorRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MirrorRows({} slots)", self.known.len())
    }
}

/// Memory for states of slots, in rooms of the classes that slots have. A place is a number of 16-byte units.
#[derive(Default)]
struct Rooms {
    chunks: Vec<Box<[u8; CHUNK_BYTES]>>,
    /// The first unit that nobody has had.
    next: u32,
    /// Rooms that were given back, by class.
    free: Vec<Vec<u32>>,
}

const UNIT_BYTES: usize = 16;
/// Twice the longest room.
const CHUNK_BYTES: usize = 128 << 10;
const CHUNK_UNITS: usize = CHUNK_BYTES / UNIT_BYTES;
const AT_VERSION: usize = 0;
const AT_TABLE: usize = 8;
const AT_KEY_LEN: usize = 12;
const AT_PAYLOAD_LEN: usize = 16;
const AT_CLASS: usize = 24;
/// Bytes of a room before the payload: as many as a slot has, so that the same classes fit.
const HEADER_BYTES: usize = farhold_fabric::object::HEADER_BYTES;

impl Rooms {
    fn take(&mut self, payload_len: usize) -> u32 {
        // A payload that no slot holds is in no record.
        let class = SizeClass::for_payload(payload_len).unwrap_or(SizeClass(COUNT as u8 - 1));
        let units = class.slot_bytes().div_ceil(UNIT_BYTES);
        let place = self.free.get_mut(usize::from(class.0)).and_then(Vec::pop).unwrap_or_else(|| {
            // Place 0 is nobody's.
            let begin = (self.next as usize).max(1);
            let left = CHUNK_UNITS - begin % CHUNK_UNITS;
            let place = if units > left { begin + left } else { begin };
            if place / CHUNK_UNITS >= self.chunks.len() {
                let chunk = vec![0; CHUNK_BYTES].into_boxed_slice();
                self.chunks.push(chunk.try_into().expect("as long as a chunk"));
            }
            self.next = (place + units) as u32;
            place as u32
        });
        self.room_mut(place)[AT_CLASS] = class.0;
        place
    }

    fn give_back(&mut self, place: u32) {
        let class = self.class(place);
        self.free.resize_with(COUNT, Vec::new);
        self.free[usize::from(class.0)].push(place);
    }

    fn write(&mut self, place: u32, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        let room = self.room_mut(place);
        let (header, payload) = room.split_at_mut(HEADER_BYTES);
        header[AT_VERSION..AT_TABLE].copy_from_slice(&version.0.to_le_bytes());
        header[AT_TABLE..AT_KEY_LEN].copy_from_slice(&table.0.to_le_bytes());
        header[AT_KEY_LEN..AT_PAYLOAD_LEN].copy_from_slice(&(key.len() as u32).to_le_bytes());
        header[AT_PAYLOAD_LEN..AT_PAYLOAD_LEN + 4].copy_from_slice(&((key.len() + value.len()) as u32).to_le_bytes());
        let (at_key, rest) = payload.split_at_mut(key.len());
        at_key.copy_from_slice(key);
        rest[..value.len()].copy_from_slice(value);
    }

    fn copy(&self, place: u32) -> SlotCopy {
        let payload_len = self.half(place, AT_PAYLOAD_LEN) as usize;
        let payload = self.room(place)[HEADER_BYTES..HEADER_BYTES + payload_len].to_vec();
        let key_len = self.half(place, AT_KEY_LEN) as usize;
        SlotCopy { version: self.version(place), table: self.table(place), key_len, payload }
    }

    fn prefetch(&self, place: u32, payload_len: usize) {
        let room = self.room(place);
        processor::prefetch(&room[..room.len().min(HEADER_BYTES + payload_len)]);
    }

    #[inline]
    fn version(&self, place: u32) -> Version {
        let word = self.room(place)[AT_VERSION..AT_TABLE].try_into().expect("8 bytes");
        Version(u64::from_le_bytes(word))
    }

    fn table(&self, place: u32) -> TableId {
        TableId(self.half(place, AT_TABLE))
    }

    #[inline]
    fn class(&self, place: u32) -> SizeClass {
        SizeClass(self.room(place)[AT_CLASS])
    }

    fn half(&self, place: u32, at: usize) -> u32 {
        u32::from_le_bytes(self.room(place)[at..at + 4].try_into().expect("4 bytes"))
    }

    /// From a place to the end of its chunk.
    #[inline]
    fn room(&self, place: u32) -> &[u8] {
        &self.chunks[place as usize / CHUNK_UNITS][place as usize % CHUNK_UNITS * UNIT_BYTES..]
    }

    #[inline]
    fn room_mut(&mut self, place: u32) -> &mut [u8] {
        &mut self.chunks[place as usize / CHUNK_UNITS][place as usize % CHUNK_UNITS * UNIT_BYTES..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

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

    /// Rows of all lengths that grow, shrink, go and come back, and whose tables are dropped, against a map of vectors.
    #[test]
    fn a_mirror_is_a_map_from_slots_to_their_latest_states() {
        type State = (Version, TableId, Vec<u8>);
        let (mut mirror, mut oracle) = (MirrorRows::default(), BTreeMap::<u32, State>::new());
        let mut random = 7_u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for count in 1..6_000_u64 {
            let (slot, table) = (draw(300) as u32 * 37, TableId(draw(3) as u32));
            let len = if draw(50) == 0 { draw(65_000) } else { draw(300) } as usize;
            // Some come late.
            let version = Version((count.saturating_sub(draw(2) * 50)).max(1) * Version::ONE);
            let version = if draw(5) == 0 { version.with(Version::ABSENT) } else { version };
            let payload = vec![count as u8; len];
            let (key, value) = payload.split_at(len.min(9));
            let reference = ObjectRef::new(u64::from(slot) * ALIGN, 0);
            mirror.prefetch(reference);
            mirror.prefetch_row(reference, len);
            mirror.take(reference, version, table, key, value);
            if oracle.get(&slot).is_none_or(|(known, ..)| known.number() < version.number()) {
                oracle.insert(slot, (version, table, payload));
            }
            if draw(1_000) == 0 {
                mirror.forget_table(table);
                oracle.retain(|_, (_, its, _)| *its != table);
            }
        }
        let rows: Vec<_> = mirror
            .rows()
            .into_iter()
            .map(|(slot, row)| (slot, (row.version, row.table, [row.key(), row.value()].concat())))
            .collect();
        assert_eq!(mirror.len(), oracle.len());
        oracle.retain(|_, (version, ..)| !version.is_absent());
        assert_eq!(rows, oracle.into_iter().collect::<Vec<_>>());
    }
}
