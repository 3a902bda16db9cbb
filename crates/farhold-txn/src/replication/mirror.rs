//! A mirror: the rows of another node, slot by slot, on this node's heap.
//!
//! ```text
//!   slot number ─► block: where its state is ─► room: version │ table │ key_len │ payload_len │ class │ key, value
//! ```
//!
//! Of two states of a slot the one with the greater version is the newer, whichever way they came. A delete leaves its
//! version behind, so that an older state that comes late finds it. A patch changes one version into the next. A patch
//! whose base version is not here yet, because that comes by another ring or with the copy of a row, waits for it. For
//! slots that are forgotten because their page has had another use, the floor of the page says which states come too
//! late.
//!
//! Rows come in no order, so a state costs two cache misses, one after the other. A caller with many states starts both
//! for all of them before it takes the first ([`MirrorRows::prefetch`], [`MirrorRows::prefetch_row`]). A hash map of
//! boxes, tried before, has three that cannot be started early, and stands still for as long as it takes to grow.

use farhold_fabric::bytes::{Bytes, LARGE_PAGE};
use farhold_fabric::object::ALIGN;
use farhold_fabric::{Version, processor};
use farhold_store::log::{Change, Entry, patch};
use farhold_store::object::size_class::{COUNT, PAGE_BYTES, SizeClass};
use farhold_store::{ObjectRef, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

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

/// The row in a slot, where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MirrorRow<'m> {
    pub table: TableId,
    pub key: &'m [u8],
    pub value: &'m [u8],
}

/// The rows of another node.
#[derive(Default)]
pub(crate) struct MirrorRows {
    /// The number of the configuration that first wanted it.
    since: u64,
    /// The place of each block, [`NOWHERE`] before its first slot. A block has for each of its slots the place of its room, or
    /// [`NOWHERE`] if nothing is known of it.
    blocks: Vec<u32>,
    rooms: Rooms,
    /// Slots of which something is known.
    known: Vec<u32>,
    /// Patches whose version is not here yet, by slot and number of that version.
    waiting: BTreeMap<(u32, u64), Waiting>,
    /// By page: the number of the version at or below which a state is of an earlier use of the page.
    floors: Vec<u64>,
}

/// A patch that waits.
struct Waiting {
    table: TableId,
    new: Version,
    patch: Vec<u8>,
}

/// The longest region whose rows a mirror takes: its places count 64 GiB, of which the numbers of slots take a fifth.
pub(crate) const REGION_BYTES_MAX: u64 = 48 << 30;
/// Slot numbers of a block: those of 64 KiB of the region.
const BLOCK_SLOTS: usize = 4096;
/// Slot numbers of a page.
const PAGE_SLOTS: u32 = (PAGE_BYTES / ALIGN) as u32;
/// What a block has for each slot.
const ENTRY_BYTES: usize = 4;
const NOWHERE: u32 = 0;
/// The part that is prefetched of a row that is about to be read as a whole: the rest comes by itself.
const ROW_BYTES_AHEAD: usize = 256;

fn slot_of(reference: ObjectRef) -> u32 {
    (reference.offset() / ALIGN) as u32
}

impl MirrorRows {
    /// An empty one, which takes what is spare before it asks the system.
    pub fn new(since: u64, spare: Spare) -> Self {
        Self { since, rooms: Rooms { spare, ..Rooms::default() }, ..Self::default() }
    }

    /// Since which configuration it has been wanted.
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Takes a state of a slot, if it is newer.
    pub fn take(&mut self, reference: ObjectRef, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        let slot = slot_of(reference);
        // A row that is gone needs its version alone.
        let (key, value) = if version.is_absent() { (&[][..], &[][..]) } else { (key, value) };
        let payload_len = key.len() + value.len();
        let mut place = self.place(slot);
        if place == NOWHERE {
            if version.number() <= self.floor(slot) {
                return;
            }
            place = self.rooms.take(payload_len);
            self.known.push(slot);
            self.set_place(slot, place);
        } else {
            let is_newer = self.rooms.version(place).number() < version.number();
            if !is_newer && !planted!(MirrorAnyOrder) {
                return;
            }
            if room_bytes(self.rooms.class(place)) < payload_len {
                self.rooms.give_back(place);
                place = self.rooms.take(payload_len);
                self.set_place(slot, place);
            }
        }
        self.rooms.write(place, version, table, key, value);
        if !self.waiting.is_empty() {
            self.patch_on(slot);
        }
    }

    /// Takes a patch of a slot, if it is newer: now, or when its version comes.
    pub fn patch(&mut self, entry: &Entry<'_>) {
        let slot = slot_of(entry.reference);
        let place = self.place(slot);
        let known = if place == NOWHERE { None } else { Some(self.rooms.version(place).number()) };
        if known.unwrap_or_else(|| self.floor(slot)) >= entry.new.number() {
            return;
        }
        let is_next = known == Some(entry.old.number()) || (known.is_some() && planted!(PatchAnyVersion));
        if is_next && self.rooms.patch(place, entry.new, entry.value) {
            if !self.waiting.is_empty() {
                self.patch_on(slot);
            }
        } else if !planted!(PatchForgotten) {
            let waiting = Waiting { table: entry.table, new: entry.new, patch: entry.value.to_vec() };
            self.waiting.insert((slot, entry.old.number()), waiting);
        }
    }

    /// Patches a slot that has got another version as far as that goes; patches of earlier versions are of no use.
    fn patch_on(&mut self, slot: u32) {
        loop {
            let place = self.place(slot);
            let known = self.rooms.version(place).number();
            let next = self.waiting.range((slot, 0)..=(slot, known)).next().map(|(at, _)| *at);
            let Some(waiting) = next.and_then(|at| self.waiting.remove(&at).map(|it| (at.1, it))) else { return };
            let (old, Waiting { new, patch, .. }) = waiting;
            if old == known {
                self.rooms.patch(place, new, &patch);
            }
        }
    }

    /// Is there a patch whose version has not come? Those of tables that are gone wait for nothing.
    pub fn is_behind(&self, is_there: impl Fn(TableId) -> bool) -> bool {
        self.waiting.values().any(|waiting| is_there(waiting.table))
    }

    /// Starts loading where the state of a slot is, for [`Self::prefetch_row`] some 100 ns later.
    #[inline]
    pub fn prefetch(&self, reference: ObjectRef) {
        if let Some(entry) = self.entry(slot_of(reference)) {
            processor::prefetch(self.rooms.bytes(entry, ENTRY_BYTES));
        }
    }

    /// Starts loading what an entry is going to change of the state, for [`Self::take`] or [`Self::patch`] some 100 ns later.
    #[inline]
    pub fn prefetch_row(&self, entry: &Entry<'_>) {
        let place = self.place(slot_of(entry.reference));
        if place == NOWHERE {
        } else if entry.change == Change::Patch {
            self.rooms.prefetch(place, 0..HEADER_BYTES);
            for (at, bytes) in patch::runs(entry.value, usize::MAX).filter_map(Result::ok) {
                self.rooms.prefetch(place, HEADER_BYTES + at..HEADER_BYTES + at + bytes.len());
            }
        } else {
            self.rooms.prefetch(place, 0..HEADER_BYTES + entry.key.len() + entry.value.len());
        }
    }

    /// Slots known, with or without a row.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// The tables of the slots of which something is known.
    pub fn tables(&self) -> BTreeSet<TableId> {
        self.known.iter().map(|slot| self.rooms.table(self.place(*slot))).collect()
    }

    /// States of this page's slots at or below a version are void from now on.
    pub fn raise_floor(&mut self, page: u32, floor: Version) {
        let Some(first) = page.checked_mul(PAGE_SLOTS) else { return };
        let last = first + (PAGE_SLOTS - 1);
        self.set_floor(page, floor);
        for slot in first..=last {
            let place = self.place(slot);
            if place != NOWHERE && self.rooms.version(place).number() < floor.number() {
                let table = self.rooms.table(place);
                self.rooms.write(place, floor.with(Version::ABSENT), table, &[], &[]);
            }
        }
        let waiting = self.waiting.range((first, 0)..=(last, u64::MAX));
        let late = waiting.filter(|(_, waiting)| waiting.new.number() <= floor.number()).map(|(at, _)| *at);
        for at in late.collect::<Vec<_>>() {
            self.waiting.remove(&at);
        }
    }

    #[inline]
    fn floor(&self, slot: u32) -> u64 {
        self.floors.get((slot / PAGE_SLOTS) as usize).copied().unwrap_or(0)
    }

    fn set_floor(&mut self, page: u32, floor: Version) {
        let page = page as usize;
        if self.floors.len() <= page {
            self.floors.resize(page + 1, 0);
        }
        self.floors[page] = self.floors[page].max(floor.number());
    }

    /// Forgets the rows of a table that has been dropped. Its pages may have been another table's before, and late
    /// records may be of that table. A state at or below the version of a forgotten row stays forgotten.
    pub fn forget_table(&mut self, table: TableId) {
        let mut known = std::mem::take(&mut self.known);
        known.retain(|slot| {
            let place = self.place(*slot);
            let stays = self.rooms.table(place) != table;
            if !stays {
                self.set_floor(*slot / PAGE_SLOTS, self.rooms.version(place));
                self.rooms.give_back(place);
                self.set_place(*slot, NOWHERE);
            }
            stays
        });
        self.known = known;
        let floors = &self.floors;
        self.waiting.retain(|(slot, _), waiting| {
            let floor = floors.get((*slot / PAGE_SLOTS) as usize).copied().unwrap_or(0);
            waiting.table != table && waiting.new.number() > floor
        });
    }

    /// The version at which a slot is known, also if no row is there.
    pub fn version_at(&self, offset: u64) -> Option<Version> {
        let place = self.place((offset / ALIGN) as u32);
        (place != NOWHERE).then(|| self.rooms.version(place))
    }

    /// The slots in which there is a row, ascending.
    pub fn slots(&self) -> Vec<u32> {
        let mut slots = self.known.clone();
        // Before they are looked at: neighbours share lines.
        slots.sort_unstable();
        slots.retain(|slot| !self.rooms.version(self.place(*slot)).is_absent());
        slots
    }

    /// The row in a slot.
    pub fn row(&self, slot: u32) -> Option<MirrorRow<'_>> {
        let place = self.place_of_row(slot)?;
        let (key, value) = self.rooms.payload(place);
        Some(MirrorRow { table: self.rooms.table(place), key, value })
    }

    /// Starts loading the rows in some slots, for [`Self::row`] some 100 ns later.
    pub fn prefetch_rows(&self, slots: &[u32]) {
        for place in slots.iter().filter_map(|slot| self.place_of_row(*slot)) {
            self.rooms.prefetch(place, 0..ROW_BYTES_AHEAD);
        }
    }

    /// The rows that are there, by slot.
    pub fn rows(&self) -> Vec<(u32, SlotCopy)> {
        let copy = |slot| Some((slot, self.rooms.copy(self.place_of_row(slot)?)));
        self.slots().into_iter().filter_map(copy).collect()
    }

    #[inline]
    fn place_of_row(&self, slot: u32) -> Option<u32> {
        let place = self.place(slot);
        (place != NOWHERE && !self.rooms.version(place).is_absent()).then_some(place)
    }

    /// Where the place of a slot's room stands.
    #[inline]
    fn entry(&self, slot: u32) -> Option<At> {
        let (block, number) = (slot as usize / BLOCK_SLOTS, slot as usize % BLOCK_SLOTS);
        let place = self.blocks.get(block).copied().filter(|place| *place != NOWHERE)?;
        Some(At::of(place).behind(number * ENTRY_BYTES))
    }

    #[inline]
    fn place(&self, slot: u32) -> u32 {
        self.entry(slot).map_or(NOWHERE, |entry| half(self.rooms.bytes(entry, ENTRY_BYTES)))
    }

    fn set_place(&mut self, slot: u32, place: u32) {
        let block = slot as usize / BLOCK_SLOTS;
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, NOWHERE);
        }
        if self.blocks[block] == NOWHERE {
            // What was never used is zero, so each of its slots is nowhere.
            self.blocks[block] = self.rooms.extend(BLOCK_SLOTS * ENTRY_BYTES);
        }
        if let Some(entry) = self.entry(slot) {
            self.rooms.bytes_mut(entry, ENTRY_BYTES).copy_from_slice(&place.to_le_bytes());
        }
    }
}

impl std::fmt::Debug for MirrorRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MirrorRows({} slots)", self.known.len())
    }
}

/// Memory for blocks, and for states of slots in rooms of the slots' size classes. A place is a number of 16-byte
/// units.
#[derive(Default)]
struct Rooms {
    /// Each of [`LARGE_PAGE`] bytes, but for the first, which grows until it is so long.
    chunks: Vec<Bytes>,
    /// The first unit that was never used.
    next: usize,
    /// Rooms that were given back, by class.
    free: Vec<Vec<u32>>,
    spare: Spare,
}

/// Chunks that wait for a mirror.
#[derive(Clone, Default)]
pub(crate) struct Spare(Arc<Mutex<Vec<Bytes>>>);

impl Spare {
    /// So many bytes, which have memory already.
    pub fn new(bytes: u64) -> Self {
        let chunks = (0..bytes.div_ceil(LARGE_PAGE as u64)).map(|_| Bytes::zeroed(LARGE_PAGE)).collect();
        Self(Arc::new(Mutex::new(chunks)))
    }

    fn take(&self) -> Bytes {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Bytes::zeroed(LARGE_PAGE))
    }
}

/// A byte of them.
#[derive(Clone, Copy)]
struct At {
    chunk: usize,
    byte: usize,
}

impl At {
    #[inline]
    fn of(place: u32) -> Self {
        let place = place as usize;
        Self { chunk: place / CHUNK_UNITS, byte: place % CHUNK_UNITS * UNIT_BYTES }
    }

    #[inline]
    fn behind(self, bytes: usize) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }
}

const UNIT_BYTES: usize = 16;
const CHUNK_UNITS: usize = LARGE_PAGE / UNIT_BYTES;
/// What a mirror begins with.
const FIRST_BYTES: usize = 64 << 10;
const AT_VERSION: usize = 0;
const AT_TABLE: usize = 8;
const AT_KEY_LEN: usize = 12;
const AT_PAYLOAD_LEN: usize = 16;
const AT_CLASS: usize = 20;
/// Bytes of a room before the payload.
const HEADER_BYTES: usize = 24;
/// A slot has a longer header, so a room of its class holds so much more.
const LESS_BYTES: usize = farhold_fabric::object::HEADER_BYTES - HEADER_BYTES;

/// Bytes of payload in a room of a class.
fn room_bytes(class: SizeClass) -> usize {
    class.payload_bytes_max() + LESS_BYTES
}

fn half(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"))
}

impl Rooms {
    fn take(&mut self, payload_len: usize) -> u32 {
        // A payload that no slot holds is in no record.
        let class = SizeClass::for_payload(payload_len.saturating_sub(LESS_BYTES));
        let class = class.unwrap_or(SizeClass(COUNT as u8 - 1));
        let free = self.free.get_mut(usize::from(class.0)).and_then(Vec::pop);
        let place = free.unwrap_or_else(|| self.extend(class.slot_bytes()));
        self.bytes_mut(At::of(place).behind(AT_CLASS), 1)[0] = class.0;
        place
    }

    fn give_back(&mut self, place: u32) {
        let class = self.class(place);
        self.free.resize_with(COUNT, Vec::new);
        self.free[usize::from(class.0)].push(place);
    }

    /// So many zeros, at most a large page of them.
    fn extend(&mut self, bytes: usize) -> u32 {
        let units = bytes.div_ceil(UNIT_BYTES);
        // Place 0 belongs to no row.
        let begin = self.next.max(1);
        let left = CHUNK_UNITS - begin % CHUNK_UNITS;
        let place = if units > left { begin + left } else { begin };
        self.next = place + units;
        let chunk = place / CHUNK_UNITS;
        if chunk >= self.chunks.len() {
            self.chunks.push(if chunk == 0 { Bytes::zeroed(FIRST_BYTES) } else { self.spare.take() });
        }
        let end = (place % CHUNK_UNITS + units) * UNIT_BYTES;
        if self.chunks[chunk].len() < end {
            let mut longer = Bytes::zeroed(end.next_power_of_two());
            longer[..self.chunks[chunk].len()].copy_from_slice(&self.chunks[chunk]);
            self.chunks[chunk] = longer;
        }
        u32::try_from(place).expect("a mirror of 64 GiB has no place left")
    }

    fn write(&mut self, place: u32, version: Version, table: TableId, key: &[u8], value: &[u8]) {
        let payload_len = key.len() + value.len();
        let room = self.bytes_mut(At::of(place), HEADER_BYTES + payload_len);
        let (header, payload) = room.split_at_mut(HEADER_BYTES);
        header[AT_VERSION..AT_TABLE].copy_from_slice(&version.0.to_le_bytes());
        header[AT_TABLE..AT_KEY_LEN].copy_from_slice(&table.0.to_le_bytes());
        header[AT_KEY_LEN..AT_PAYLOAD_LEN].copy_from_slice(&(key.len() as u32).to_le_bytes());
        header[AT_PAYLOAD_LEN..AT_CLASS].copy_from_slice(&(payload_len as u32).to_le_bytes());
        let (at_key, at_value) = payload.split_at_mut(key.len());
        at_key.copy_from_slice(key);
        at_value.copy_from_slice(value);
    }

    /// Changes parts of a payload; false, and nothing is changed, if the patch is for none of this length.
    fn patch(&mut self, place: u32, version: Version, patch: &[u8]) -> bool {
        let payload_len = half(&self.bytes(At::of(place), HEADER_BYTES)[AT_PAYLOAD_LEN..]) as usize;
        let room = self.bytes_mut(At::of(place), HEADER_BYTES + payload_len);
        let (header, payload) = room.split_at_mut(HEADER_BYTES);
        if !patch::runs(patch, payload_len).all(|run| run.is_ok()) {
            return false;
        }
        for (at, bytes) in patch::runs(patch, payload_len).filter_map(Result::ok) {
            payload[at..at + bytes.len()].copy_from_slice(bytes);
        }
        header[AT_VERSION..AT_TABLE].copy_from_slice(&version.0.to_le_bytes());
        true
    }

    /// Key and value.
    fn payload(&self, place: u32) -> (&[u8], &[u8]) {
        let header = self.bytes(At::of(place), HEADER_BYTES);
        let (key_len, payload_len) = (half(&header[AT_KEY_LEN..]) as usize, half(&header[AT_PAYLOAD_LEN..]) as usize);
        self.bytes(At::of(place).behind(HEADER_BYTES), payload_len).split_at(key_len)
    }

    fn copy(&self, place: u32) -> SlotCopy {
        let (key, value) = self.payload(place);
        let (key_len, payload) = (key.len(), [key, value].concat());
        SlotCopy { version: self.version(place), table: self.table(place), key_len, payload }
    }

    #[inline]
    fn prefetch(&self, place: u32, part: Range<usize>) {
        let bytes = self.chunk_from(At::of(place));
        let end = bytes.len().min(part.end);
        processor::prefetch(&bytes[part.start.min(end)..end]);
    }

    #[inline]
    fn version(&self, place: u32) -> Version {
        let bytes = self.bytes(At::of(place).behind(AT_VERSION), 8);
        Version(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    fn table(&self, place: u32) -> TableId {
        TableId(half(self.bytes(At::of(place).behind(AT_TABLE), 4)))
    }

    #[inline]
    fn class(&self, place: u32) -> SizeClass {
        SizeClass(self.bytes(At::of(place).behind(AT_CLASS), 1)[0])
    }

    #[inline]
    fn chunk_from(&self, at: At) -> &[u8] {
        &self.chunks[at.chunk][at.byte..]
    }

    #[inline]
    fn bytes(&self, at: At, len: usize) -> &[u8] {
        &self.chunks[at.chunk][at.byte..at.byte + len]
    }

    #[inline]
    fn bytes_mut(&mut self, at: At, len: usize) -> &mut [u8] {
        &mut self.chunks[at.chunk][at.byte..at.byte + len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farhold_store::log::{Record, RecordWriter};

    /// An entry as it comes out of a record, as a patch of what was there before if that is shorter.
    fn recorded(entry: &Entry<'_>, before: Option<&[u8]>) -> Vec<u8> {
        let mut writer = RecordWriter::default();
        writer.begin(1, 1, 1);
        match before {
            Some(before) => writer.add_change(entry, before),
            None => writer.add(entry),
        }
        writer.end();
        [&[0; 8], writer.place(0, 0).0].concat()
    }

    fn entry_of(record: &[u8]) -> Entry<'_> {
        let record = Record::check(record, 0).expect("whole");
        record.entries().next().expect("an entry").expect("whole")
    }

    /// Numbers below a bound, from a seed.
    fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut random = seed;
        move |below| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        }
    }

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

    /// Histories of rows, of whole values and patches, in any order.
    #[test]
    fn patches_wait_for_the_version_that_they_change() {
        let mut draw = numbers(11);
        let mut draw = |below: usize| draw(below as u64) as usize;
        let table = TableId(20);
        let mut waited = 0;
        for _ in 0..300 {
            let (mut records, mut latest) = (Vec::new(), BTreeMap::new());
            for slot in 1..4_u64 {
                let mut value: Vec<u8> = (0..40 + draw(300)).map(|_| draw(256) as u8).collect();
                for count in 1..2 + draw(9) as u64 {
                    let before = value.clone();
                    let at = draw(value.len());
                    value[at] ^= 1 + draw(255) as u8;
                    let entry = Entry {
                        node: farhold_fabric::NodeId(1),
                        change: Change::Write,
                        mirrored: true,
                        table,
                        reference: ObjectRef::new(slot * ALIGN, 1),
                        old: Version((count - 1) * Version::ONE),
                        new: Version(count * Version::ONE),
                        key: b"the key",
                        value: &value,
                    };
                    let is_whole = count == 1 || draw(4) == 0;
                    let record = recorded(&entry, (!is_whole).then_some(&before));
                    assert_eq!(entry_of(&record).change == Change::Patch, !is_whole);
                    records.push(record);
                }
                latest.insert(slot as u32, value);
            }
            for place in (1..records.len()).rev() {
                records.swap(place, draw(place + 1));
            }
            let mut mirror = MirrorRows::default();
            for record in &records {
                let entry = entry_of(record);
                mirror.prefetch(entry.reference);
                mirror.prefetch_row(&entry);
                match entry.change {
                    Change::Patch => mirror.patch(&entry),
                    _ => mirror.take(entry.reference, entry.new, entry.table, entry.key, entry.value),
                }
                waited += usize::from(mirror.is_behind(|_| true));
            }
            assert!(!mirror.is_behind(|_| true));
            for (slot, row) in mirror.rows() {
                assert_eq!((row.key(), row.value()), (&b"the key"[..], &latest[&slot][..]));
            }
            assert_eq!(mirror.len(), 3);
        }
        assert!(waited > 300, "the order made patches wait");
        // The last records of a table may come after the message that it is gone.
        let before = [0; 64];
        let mut value = before;
        value[9] = 1;
        let late = Entry {
            node: farhold_fabric::NodeId(1),
            change: Change::Write,
            mirrored: true,
            table,
            reference: ObjectRef::new(ALIGN, 1),
            old: Version(Version::ONE),
            new: Version(2 * Version::ONE),
            key: b"the key",
            value: &value,
        };
        let mut mirror = MirrorRows::default();
        mirror.forget_table(table);
        mirror.patch(&entry_of(&recorded(&late, Some(&before))));
        assert!(mirror.is_behind(|_| true) && !mirror.is_behind(|it| it != table));
    }

    /// A table's page had a row, became another table's that was dropped, and the first row's record comes late, whole or as a patch. It brings
    /// nothing back, and nothing waits for it; what the page is used for next is taken.
    #[test]
    fn a_row_of_an_earlier_use_of_its_page_stays_gone() {
        let (first, second) = (TableId(20), TableId(21));
        let slot = |incarnation| ObjectRef::new(64, incarnation);
        let version = |count: u64| Version(count * Version::ONE);
        let before = [0; 64];
        let mut value = before;
        value[9] = 1;
        let late = Entry {
            node: farhold_fabric::NodeId(1),
            change: Change::Write,
            mirrored: true,
            table: first,
            reference: slot(1),
            old: version(4),
            new: version(5),
            key: b"the key",
            value: &value,
        };
        let late = recorded(&late, Some(&before));
        assert_eq!(entry_of(&late).change, Change::Patch);
        let comes_late = |mirror: &mut MirrorRows| {
            mirror.take(slot(1), version(5), first, b"the key", b"late");
            mirror.patch(&entry_of(&late));
            assert!(mirror.rows().is_empty(), "a row that was deleted is back");
            assert!(!mirror.is_behind(|table| table == first), "a patch waits for a version that never comes");
        };
        // The mirror has had all of it.
        let mut mirror = MirrorRows::default();
        mirror.take(slot(1), version(5), first, b"the key", b"row");
        mirror.take(slot(1), version(7).with(Version::ABSENT), first, b"", b"");
        mirror.take(slot(2), version(9), second, b"another", b"row");
        mirror.forget_table(second);
        comes_late(&mut mirror);
        // It is a new one, and its node tells it of the page, before the record or after it.
        let mut mirror = MirrorRows::default();
        mirror.raise_floor(0, version(9));
        comes_late(&mut mirror);
        let mut mirror = MirrorRows::default();
        mirror.patch(&entry_of(&late));
        mirror.take(ObjectRef::new(128, 1), version(5), first, b"a key", b"late");
        mirror.raise_floor(0, version(9));
        comes_late(&mut mirror);
        mirror.take(slot(3), version(10), first, b"a key", b"new");
        mirror.take(ObjectRef::new(PAGE_BYTES, 1), version(5), first, b"key", b"of the next page");
        assert_eq!(mirror.rows().len(), 2);
    }

    /// Rows of all lengths that grow, shrink, go and come back, and whose tables are dropped, against a map of vectors.
    #[test]
    fn a_mirror_is_a_map_from_slots_to_their_latest_states() {
        type State = (Version, TableId, Vec<u8>);
        let (mut mirror, mut oracle) = (MirrorRows::default(), BTreeMap::<u32, State>::new());
        let mut floors = BTreeMap::<u32, u64>::new();
        let mut draw = numbers(7);
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
            mirror.take(reference, version, table, key, value);
            let page = slot / PAGE_SLOTS;
            let known = oracle.get(&slot).map(|(known, ..)| known.number()).or(floors.get(&page).copied());
            if known.is_none_or(|known| known < version.number()) {
                oracle.insert(slot, (version, table, payload));
            }
            if draw(1_000) == 0 {
                mirror.forget_table(table);
                for (slot, (version, ..)) in oracle.iter().filter(|(_, (_, its, _))| *its == table) {
                    let floor = floors.entry(slot / PAGE_SLOTS).or_default();
                    *floor = version.number().max(*floor);
                }
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
