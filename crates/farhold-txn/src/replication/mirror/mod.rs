//! A mirror: the rows of another node, slot by slot, on this node's heap.
//!
//! ```text
//!   slot number ─► block: where its state is ─► room: version │ table │ key_len │ payload_len │ class │ key, value
//! ```
//!
//! Of two states of a slot the one with the greater version is the newer, whichever arrived first. A delete leaves its
//! version behind, so that an older state that comes late finds it. A patch changes one version into the next. A patch
//! whose base version is not here yet, because that comes by another ring or with the copy of a row, waits for it. For
//! slots that are forgotten because their page has had another use, the floor of the page says which states come too
//! late.
//!
//! Rows come in no order, so a state costs two cache misses, one after the other. A caller with many states starts both
//! for all of them before it takes the first ([`MirrorRows::prefetch`], [`MirrorRows::prefetch_row`]). A hash map of
//! boxes, tried before, has three that cannot be started early, and stands still for as long as it takes to grow.

mod rooms;
#[cfg(test)]
mod tests;

pub(crate) use rooms::Spare;
use rooms::{At, HEADER_BYTES, Rooms, SlotCopy, half, room_bytes};

use farhold_fabric::object::ALIGN;
use farhold_fabric::{Version, processor};
use farhold_store::log::{Change, Entry, patch};
use farhold_store::object::size_class::PAGE_BYTES;
use farhold_store::{ObjectRef, TableId};
use std::collections::{BTreeMap, BTreeSet};

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
/// The part that is prefetched of a row that is about to be read as a whole; the hardware prefetches the rest.
const ROW_BYTES_AHEAD: usize = 256;

fn slot_of(reference: ObjectRef) -> u32 {
    (reference.offset() / ALIGN) as u32
}

impl MirrorRows {
    /// An empty one, which takes what is spare before it asks the system.
    pub fn new(since: u64, spare: Spare) -> Self {
        Self { since, rooms: Rooms::new(spare), ..Self::default() }
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

    /// Applies the waiting patches of a slot that has got another version; patches of earlier versions are dropped.
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
