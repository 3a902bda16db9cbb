//! The memory of a mirror: rooms of the slots' size classes, in chunks of large pages.

use farhold_fabric::Version;
use farhold_fabric::bytes::Bytes;
use farhold_fabric::bytes::LARGE_PAGE;
use farhold_fabric::processor;
use farhold_store::TableId;
use farhold_store::log::patch;
use farhold_store::object::size_class::COUNT;
use farhold_store::object::size_class::SizeClass;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
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

/// Memory for blocks, and for states of slots in rooms of the slots' size classes. A place is a number of 16-byte
/// units.
#[derive(Default)]
pub(super) struct Rooms {
    /// Each of [`LARGE_PAGE`] bytes, but for the first, which grows up to that length.
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
    /// This many spare bytes, which have memory already.
    pub fn new(bytes: u64) -> Self {
        let chunks = (0..bytes.div_ceil(LARGE_PAGE as u64)).map(|_| Bytes::zeroed(LARGE_PAGE)).collect();
        Self(Arc::new(Mutex::new(chunks)))
    }

    pub(super) fn take(&self) -> Bytes {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| Bytes::zeroed(LARGE_PAGE))
    }
}

/// A byte of them.
#[derive(Clone, Copy)]
pub(super) struct At {
    chunk: usize,
    byte: usize,
}

impl At {
    #[inline]
    pub(super) fn of(place: u32) -> Self {
        let place = place as usize;
        Self { chunk: place / CHUNK_UNITS, byte: place % CHUNK_UNITS * UNIT_BYTES }
    }

    #[inline]
    pub(super) fn behind(self, bytes: usize) -> Self {
        Self { byte: self.byte + bytes, ..self }
    }
}

pub(super) const UNIT_BYTES: usize = 16;
pub(super) const CHUNK_UNITS: usize = LARGE_PAGE / UNIT_BYTES;
/// What a mirror begins with.
pub(super) const FIRST_BYTES: usize = 64 << 10;
pub(super) const AT_VERSION: usize = 0;
pub(super) const AT_TABLE: usize = 8;
pub(super) const AT_KEY_LEN: usize = 12;
pub(super) const AT_PAYLOAD_LEN: usize = 16;
pub(super) const AT_CLASS: usize = 20;
/// Bytes of a room before the payload.
pub(super) const HEADER_BYTES: usize = 24;
/// A slot has a longer header, so a room of its class holds this much more.
pub(super) const LESS_BYTES: usize = farhold_fabric::object::HEADER_BYTES - HEADER_BYTES;

/// Bytes of payload in a room of a class.
pub(super) fn room_bytes(class: SizeClass) -> usize {
    class.payload_bytes_max() + LESS_BYTES
}

pub(super) fn half(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"))
}

impl Rooms {
    pub(super) fn new(spare: Spare) -> Self {
        Self { spare, ..Self::default() }
    }

    pub(super) fn take(&mut self, payload_len: usize) -> u32 {
        // A payload that no slot holds is in no record.
        let class = SizeClass::for_payload(payload_len.saturating_sub(LESS_BYTES));
        let class = class.unwrap_or(SizeClass(COUNT as u8 - 1));
        let free = self.free.get_mut(usize::from(class.0)).and_then(Vec::pop);
        let place = free.unwrap_or_else(|| self.extend(class.slot_bytes()));
        self.bytes_mut(At::of(place).behind(AT_CLASS), 1)[0] = class.0;
        place
    }

    pub(super) fn give_back(&mut self, place: u32) {
        let class = self.class(place);
        self.free.resize_with(COUNT, Vec::new);
        self.free[usize::from(class.0)].push(place);
    }

    /// A place with `bytes` zero bytes, at most a large page.
    pub(super) fn extend(&mut self, bytes: usize) -> u32 {
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

    pub(super) fn write(&mut self, place: u32, version: Version, table: TableId, key: &[u8], value: &[u8]) {
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
    pub(super) fn patch(&mut self, place: u32, version: Version, patch: &[u8]) -> bool {
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
    pub(super) fn payload(&self, place: u32) -> (&[u8], &[u8]) {
        let header = self.bytes(At::of(place), HEADER_BYTES);
        let (key_len, payload_len) = (half(&header[AT_KEY_LEN..]) as usize, half(&header[AT_PAYLOAD_LEN..]) as usize);
        self.bytes(At::of(place).behind(HEADER_BYTES), payload_len).split_at(key_len)
    }

    pub(super) fn copy(&self, place: u32) -> SlotCopy {
        let (key, value) = self.payload(place);
        let (key_len, payload) = (key.len(), [key, value].concat());
        SlotCopy { version: self.version(place), table: self.table(place), key_len, payload }
    }

    #[inline]
    pub(super) fn prefetch(&self, place: u32, part: Range<usize>) {
        let bytes = self.chunk_from(At::of(place));
        let end = bytes.len().min(part.end);
        processor::prefetch(&bytes[part.start.min(end)..end]);
    }

    #[inline]
    pub(super) fn version(&self, place: u32) -> Version {
        let bytes = self.bytes(At::of(place).behind(AT_VERSION), 8);
        Version(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    pub(super) fn table(&self, place: u32) -> TableId {
        TableId(half(self.bytes(At::of(place).behind(AT_TABLE), 4)))
    }

    #[inline]
    pub(super) fn class(&self, place: u32) -> SizeClass {
        SizeClass(self.bytes(At::of(place).behind(AT_CLASS), 1)[0])
    }

    #[inline]
    pub(super) fn chunk_from(&self, at: At) -> &[u8] {
        &self.chunks[at.chunk][at.byte..]
    }

    #[inline]
    pub(super) fn bytes(&self, at: At, len: usize) -> &[u8] {
        &self.chunks[at.chunk][at.byte..at.byte + len]
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self, at: At, len: usize) -> &mut [u8] {
        &mut self.chunks[at.chunk][at.byte..at.byte + len]
    }
}
