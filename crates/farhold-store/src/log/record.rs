//! A record: all that one transaction writes.
//!
//! ```text
//!  +0  mark         lsn and checksum in one word; written last, when the rest is complete everywhere
//!  +8  size u32 │ magic u32
//!  +16 lsn          where in the ring's whole life this record begins
//!  +24 owner        the transaction
//!  +32 configuration
//!  +40 epoch u32 │ entries u32
//!  +48 finished     every record of this ring that ends at or before this is finished: its transaction wrote all its rows
//!  +56 checksum     of everything but this word and the mark
//!  +64 entries: node u8 │ change u8 │ flags u8 │ 0 │ table u32 │ reference │ old version │ new version │ key_len u32 │ value_len u32 │
//!               key bytes, value bytes, to a multiple of 8
//!  ...
//!  end tail: size u32 │ magic u32, the last 8 bytes
//! ```
//! Valid only if mark, both sizes, both magics, the lsn and the checksum agree. All integers little-endian.

use super::{GRANULE, patch};
use crate::error::TableId;
use crate::object::ObjectRef;
use farhold_fabric::{NodeId, Version};

const MAGIC: u32 = u32::from_le_bytes(*b"FLOG");
const TAIL_MAGIC: u32 = u32::from_le_bytes(*b"GOLF");
/// Bytes before the entries.
pub const HEADER_BYTES: usize = 64;
const TAIL_BYTES: usize = 8;
const ENTRY_BYTES: usize = 40;
const AT_SIZE: usize = 8;
const AT_LSN: usize = 16;
const AT_OWNER: usize = 24;
const AT_CONFIGURATION: usize = 32;
const AT_EPOCH: usize = 40;
const AT_FINISHED: usize = 48;
const AT_CHECKSUM: usize = 56;
/// Flag of an entry: no mirror needs it, because the row is on every node.
const UNMIRRORED: u8 = 1;

/// What is done to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// It gets a value.
    Write = 1,
    /// A reserved object becomes a row.
    Insert = 2,
    /// It goes.
    Delete = 3,
    /// Some of its bytes change: the entry has no key, and its value is a [patch] of the old version.
    Patch = 4,
}

/// One row of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The home node of the row.
    pub node: NodeId,
    /// What is done to it.
    pub change: Change,
    /// Do mirrors of the node keep it?
    pub mirrored: bool,
    /// Its table.
    pub table: TableId,
    /// Its object on that node.
    pub reference: ObjectRef,
    /// The version that the transaction has locked.
    pub old: Version,
    /// The version that it gets.
    pub new: Version,
    /// The primary key; empty for a patch.
    pub key: &'a [u8],
    /// The value; empty for a delete.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Bytes of an entry with such a payload.
    #[must_use]
    pub const fn bytes(payload_len: usize) -> usize {
        ENTRY_BYTES + payload_len.next_multiple_of(8)
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        out.resize(begin + Self::bytes(self.key.len() + self.value.len()), 0);
        self.write(&mut out[begin..]);
    }

    /// Writes it to the beginning of `room`, which has [`Self::bytes`] for key and value. Returns how many bytes it takes.
    #[inline]
    fn write(&self, room: &mut [u8]) -> usize {
        let len = Self::bytes(self.key.len() + self.value.len());
        let room = &mut room[..len];
        // What pads it; the payload is written over the rest of the word.
        room[len - 8..].fill(0);
        let (head, payload) = room.split_at_mut(ENTRY_BYTES);
        head.copy_from_slice(&self.head(self.change, self.key.len(), self.value.len()));
        payload[..self.key.len()].copy_from_slice(self.key);
        payload[self.key.len()..][..self.value.len()].copy_from_slice(self.value);
        len
    }

    /// As [`Self::write`], as a patch of `old_value` if that is shorter; otherwise `None`. The room has one word more.
    #[inline]
    fn write_patch(&self, old_value: &[u8], room: &mut [u8]) -> Option<usize> {
        let (head, payload) = room.split_at_mut(ENTRY_BYTES);
        let patch_len = patch::write(payload, self.key.len(), old_value, self.value)?;
        // The padding, and perhaps more: the bytes behind it are not in use yet.
        payload[patch_len..patch_len + 8].fill(0);
        head.copy_from_slice(&self.head(Change::Patch, 0, patch_len));
        Some(Self::bytes(patch_len))
    }

    #[inline]
    fn head(&self, change: Change, key_len: usize, value_len: usize) -> [u8; ENTRY_BYTES] {
        let mut head = [0; ENTRY_BYTES];
        let flags = if self.mirrored { 0 } else { UNMIRRORED };
        head[..4].copy_from_slice(&[self.node.0, change as u8, flags, 0]);
        head[4..8].copy_from_slice(&self.table.0.to_le_bytes());
        head[8..16].copy_from_slice(&self.reference.to_bits().to_le_bytes());
        head[16..24].copy_from_slice(&self.old.0.to_le_bytes());
        head[24..32].copy_from_slice(&self.new.0.to_le_bytes());
        head[32..36].copy_from_slice(&(key_len as u32).to_le_bytes());
        head[36..].copy_from_slice(&(value_len as u32).to_le_bytes());
        head
    }

    /// The first entry of `rest`, which it removes.
    ///
    /// # Errors
    /// [`LogError::Malformed`].
    pub fn decode(rest: &mut &'a [u8]) -> Result<Self, LogError> {
        let malformed = LogError::Malformed { what: "an entry is cut off or makes no sense" };
        let Some((head, tail)) = rest.split_at_checked(ENTRY_BYTES) else { return Err(malformed) };
        let change = match head[1] {
            1 => Change::Write,
            2 => Change::Insert,
            3 => Change::Delete,
            4 => Change::Patch,
            _ => return Err(malformed),
        };
        let (key_len, value_len) = (half(head, 32) as usize, half(head, 36) as usize);
        let padded = (key_len + value_len).next_multiple_of(8);
        let reference = word(head, 8);
        if padded > tail.len() || reference & !ObjectRef::BITS != 0 {
            return Err(malformed);
        }
        let (payload, next) = tail.split_at(padded);
        *rest = next;
        Ok(Self {
            node: NodeId(head[0]),
            change,
            mirrored: head[2] & UNMIRRORED == 0,
            table: TableId(half(head, 4)),
            reference: ObjectRef::from_bits(reference),
            old: Version(word(head, 16)),
            new: Version(word(head, 24)),
            key: &payload[..key_len],
            value: &payload[key_len..key_len + value_len],
        })
    }
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// There is no mark (yet): nothing was acknowledged.
    #[error("the record has no commit mark")]
    Unmarked,
    /// The mark is there, but the bytes are not those that it stands for.
    #[error("the log record at {lsn} is damaged: {what}")]
    Damaged {
        /// Where the record begins in the ring's life.
        lsn: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Bytes that no writer of this version makes.
    #[error("not a log record: {what}")]
    Malformed {
        /// What is wrong.
        what: &'static str,
    },
    /// The region holds another node's log, or one of another shape or version.
    #[error("not this node's log: its {what} is {found:#x} instead of {expected:#x}")]
    Foreign {
        /// What differs.
        what: &'static str,
        /// As found.
        found: u64,
        /// As expected.
        expected: u64,
    },
}

/// Makes records; its memory is used again.
#[derive(Debug, Default)]
pub struct RecordWriter {
    /// The record as it goes into a ring, without the mark (zero), and behind it what longer records have left. It is as long as
    /// it ever had to be, so that a row costs no more than its stores.
    bytes: Vec<u8>,
    len: usize,
    count: u32,
    body_hash: u64,
    /// Position and finished of the place that the header is for, and its mark. Holders that have been the same for long have the
    /// record at the same place.
    placed: Option<(u64, u64)>,
    mark: u64,
}

impl RecordWriter {
    /// Bytes of a record with `entries_bytes` of entries. It is an upper bound if some of them become patches.
    #[must_use]
    pub const fn size(entries_bytes: usize) -> u64 {
        ((HEADER_BYTES + entries_bytes + TAIL_BYTES) as u64).next_multiple_of(GRANULE)
    }

    /// Begins a record.
    #[inline]
    pub fn begin(&mut self, owner: u64, configuration: u64, epoch: u32) {
        (self.len, self.count, self.placed) = (0, 0, None);
        self.room(HEADER_BYTES);
        self.len = HEADER_BYTES;
        self.put(AT_OWNER, owner);
        self.put(AT_CONFIGURATION, configuration);
        self.put(AT_EPOCH, u64::from(epoch));
    }

    /// Adds a row.
    #[inline]
    pub fn add(&mut self, entry: &Entry<'_>) {
        let room = self.room(Entry::bytes(entry.key.len() + entry.value.len()));
        self.len += entry.write(room);
        self.count += 1;
    }

    /// Adds a row that gets a value in place of another: the difference, if that is shorter than the whole.
    #[inline]
    pub fn add_change(&mut self, entry: &Entry<'_>, old_value: &[u8]) {
        let room = self.room(Entry::bytes(entry.key.len() + entry.value.len()) + 8);
        let patch = entry.write_patch(old_value, room);
        let Some(len) = patch else { return self.add(entry) };
        self.len += len;
        self.count += 1;
    }

    /// Ends it; [`Self::place`] may then be called for each holder.
    #[inline]
    pub fn end(&mut self) {
        /// There are fewer bytes than this between the last entry and the tail.
        const GAP: usize = GRANULE as usize + TAIL_BYTES;
        self.room(GAP)[..GAP].fill(0);
        self.len = Self::size(self.len - HEADER_BYTES) as usize;
        let size = self.len as u64;
        self.put(self.len - TAIL_BYTES, size | u64::from(TAIL_MAGIC) << 32);
        self.put(AT_SIZE, size | u64::from(MAGIC) << 32);
        let epoch = word_at(&self.bytes, AT_EPOCH) & 0xffff_ffff;
        self.put(AT_EPOCH, epoch | u64::from(self.count) << 32);
        self.body_hash = hash(0, &self.bytes[HEADER_BYTES..self.len]);
    }

    /// Bytes of the whole record.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Nothing in it?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The record for one place: everything behind the mark, and the mark.
    #[inline]
    pub fn place(&mut self, lsn: u64, finished: u64) -> (&[u8], u64) {
        if self.placed != Some((lsn, finished)) {
            self.put(AT_LSN, lsn);
            self.put(AT_FINISHED, finished);
            let checksum = header_hash(&self.bytes, self.body_hash);
            self.put(AT_CHECKSUM, checksum);
            (self.placed, self.mark) = (Some((lsn, finished)), mark_of(lsn, checksum));
        }
        (&self.bytes[8..self.len], self.mark)
    }

    #[inline]
    fn put(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The bytes behind the last entry, at least `bytes` of them.
    #[inline]
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < self.len + bytes {
            self.grow(self.len + bytes);
        }
        &mut self.bytes[self.len..]
    }

    #[cold]
    fn grow(&mut self, bytes: usize) {
        self.bytes.resize(bytes.next_power_of_two(), 0);
    }
}

/// The header of a record without entries, which covers the rest of a lap: what is behind the mark, and the mark.
#[must_use]
pub fn skip(lsn: u64, size: u64, finished: u64) -> ([u8; HEADER_BYTES - 8], u64) {
    let mut bytes = [0; HEADER_BYTES];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    put(AT_SIZE, size | u64::from(MAGIC) << 32);
    put(AT_LSN, lsn);
    put(AT_FINISHED, finished);
    let checksum = header_hash(&bytes, 0);
    bytes[AT_CHECKSUM..].copy_from_slice(&checksum.to_le_bytes());
    let mut behind = [0; HEADER_BYTES - 8];
    behind.copy_from_slice(&bytes[8..]);
    (behind, mark_of(lsn, checksum))
}

/// The mark of the record at `lsn` with this checksum. Never 0.
#[must_use]
pub fn mark_of(lsn: u64, checksum: u64) -> u64 {
    mix(lsn ^ 0x6d61_726b, checksum) | 1
}

/// A record that was found whole.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    bytes: &'a [u8],
}

/// Records that have been read, one behind the other; the memory is reused.
#[derive(Debug, Default)]
pub struct Records {
    /// As long as it ever had to be.
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Records {
    /// Forgets them.
    pub fn clear(&mut self) {
        self.ends.clear();
    }

    /// Bytes of all of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// None?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// In the order in which they were read.
    pub fn iter(&self) -> impl Iterator<Item = Record<'_>> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| Record { bytes: &self.bytes[begin..*end] })
    }

    /// Adds one record: `fill` reads its bytes, and they are checked.
    pub(super) fn add(
        &mut self,
        size: usize,
        lsn: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let begin = self.len();
        let end = begin + size;
        if self.bytes.len() < end {
            self.bytes.resize(end.next_power_of_two(), 0);
        }
        fill(&mut self.bytes[begin..end])?;
        Record::check(&self.bytes[begin..end], lsn)?;
        self.ends.push(end);
        Ok(())
    }
}

/// What a record's header says about its place, before its body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the record.
    pub size: u64,
    /// Everything that ends at or before this is finished.
    pub finished: u64,
    is_skip: bool,
}

impl Header {
    /// Does it only fill the end of a lap?
    #[must_use]
    pub const fn is_skip(self) -> bool {
        self.is_skip
    }
}

/// Checks the first 64 bytes at a position of a ring.
///
/// # Errors
/// [`LogError::Unmarked`] also for bytes that are no header of this position.
pub fn header(bytes: &[u8], lsn: u64, ring_bytes: u64) -> Result<Header, LogError> {
    let size_word = word_at(bytes, AT_SIZE);
    let size = size_word & 0xffff_ffff;
    let here = size_word >> 32 == u64::from(MAGIC) && word_at(bytes, AT_LSN) == lsn;
    let fits = size >= HEADER_BYTES as u64 && size.is_multiple_of(GRANULE) && lsn % ring_bytes + size <= ring_bytes;
    if !here || !fits || word_at(bytes, 0) != mark_of(lsn, word_at(bytes, AT_CHECKSUM)) {
        return Err(LogError::Unmarked);
    }
    let is_skip = word_at(bytes, AT_EPOCH) >> 32 == 0;
    Ok(Header { size, finished: word_at(bytes, AT_FINISHED), is_skip })
}

impl<'a> Record<'a> {
    /// The record in these bytes, which begin with a valid [`header`].
    ///
    /// # Errors
    /// [`LogError::Damaged`].
    pub fn check(bytes: &'a [u8], lsn: u64) -> Result<Self, LogError> {
        let damaged = |what| Err(LogError::Damaged { lsn, what });
        let tail = word_at(bytes, bytes.len() - TAIL_BYTES);
        if tail != bytes.len() as u64 | u64::from(TAIL_MAGIC) << 32 {
            return damaged("its tail is not there");
        }
        if header_hash(bytes, hash(0, &bytes[HEADER_BYTES..])) != word_at(bytes, AT_CHECKSUM) {
            return damaged("its checksum is another");
        }
        Ok(Self { bytes })
    }

    /// The record in these bytes, which a [`RecordWriter`] of this process has made.
    #[must_use]
    pub fn of_this_process(bytes: &'a [u8]) -> Self {
        debug_assert!(Self::check(bytes, 0).is_ok(), "a whole record");
        Self { bytes }
    }

    /// Checks the header of a skip, which has no body.
    ///
    /// # Errors
    /// [`LogError::Damaged`].
    pub fn check_skip(bytes: &[u8], lsn: u64) -> Result<(), LogError> {
        let right = header_hash(bytes, 0) == word_at(bytes, AT_CHECKSUM);
        if right { Ok(()) } else { Err(LogError::Damaged { lsn, what: "its checksum is another" }) }
    }

    /// The transaction.
    #[must_use]
    pub fn owner(&self) -> u64 {
        word_at(self.bytes, AT_OWNER)
    }

    /// The configuration that it committed in.
    #[must_use]
    pub fn configuration(&self) -> u64 {
        word_at(self.bytes, AT_CONFIGURATION)
    }

    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        word_at(self.bytes, AT_EPOCH) as u32
    }

    /// Its rows.
    pub fn entries(&self) -> impl Iterator<Item = Result<Entry<'a>, LogError>> + use<'a> {
        let mut rest = &self.bytes[HEADER_BYTES..];
        (0..word_at(self.bytes, AT_EPOCH) >> 32).map(move |_| Entry::decode(&mut rest))
    }
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    word(bytes, at)
}

fn header_hash(bytes: &[u8], body_hash: u64) -> u64 {
    hash(body_hash, &bytes[AT_SIZE..AT_CHECKSUM])
}

/// One word into a running hash: folded multiplication (wyhash's mixer), so that every bit of both reaches every bit.
fn mix(state: u64, word: u64) -> u64 {
    let product = u128::from(state ^ 0x2d35_8dcc_aa6c_78a5) * u128::from(word ^ 0x8bb8_4b93_962e_acc9);
    (product as u64 ^ (product >> 64) as u64).wrapping_add(word.rotate_left(17))
}

/// A checksum against torn, lost and stale bytes; it is no defence against an adversary. Blocks of 64 bytes, two words to a
/// multiplication and four chains of them: one chain of single words waits 4 cycles or so for each, which was a third of what it
/// took to make a record.
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let start = mix(seed, bytes.len() as u64);
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut state = start;
    if !blocks.is_empty() {
        let mut lanes = [start, start.rotate_left(16), start.rotate_left(32), start.rotate_left(48)];
        for block in blocks {
            for (lane, number) in lanes.iter_mut().zip(0..) {
                *lane = mix(*lane ^ word(block, number * 16).rotate_left(29), word(block, number * 16 + 8));
            }
        }
        state = lanes.into_iter().fold(start, mix);
    }
    rest.chunks_exact(8).fold(state, |state, chunk| mix(state, word(chunk, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(lsn: u64) -> Vec<u8> {
        let mut writer = RecordWriter::default();
        writer.begin(77, 3, 5);
        for (change, value) in [(Change::Write, &b"value"[..]), (Change::Insert, b""), (Change::Delete, b"")] {
            writer.add(&Entry {
                node: NodeId(2),
                change,
                mirrored: change != Change::Insert,
                table: TableId(9),
                reference: ObjectRef::new(160, 4),
                old: Version(8),
                new: Version(16),
                key: b"the key",
                value,
            });
        }
        writer.end();
        let (behind, mark) = writer.place(lsn, 64);
        [&mark.to_le_bytes(), behind].concat()
    }

    fn read(bytes: &[u8], lsn: u64) -> Result<Record<'_>, LogError> {
        let header = header(bytes, lsn, 4096)?;
        let cut_off = LogError::Damaged { lsn, what: "longer than the test's bytes" };
        Record::check(bytes.get(..header.size as usize).ok_or(cut_off)?, lsn)
    }

    #[test]
    fn a_record_comes_back() {
        let bytes = written(4096 + 128);
        assert_eq!(bytes.len() as u64, RecordWriter::size(Entry::bytes(12) + 2 * Entry::bytes(7)));
        let record = read(&bytes, 4096 + 128).expect("whole");
        assert_eq!((record.owner(), record.configuration(), record.epoch()), (77, 3, 5));
        let entries: Vec<_> = record.entries().map(|entry| entry.expect("an entry")).collect();
        assert_eq!(entries.len(), 3);
        assert_eq!((entries[0].key, entries[0].value), (&b"the key"[..], &b"value"[..]));
        assert_eq!((entries[1].mirrored, entries[2].mirrored), (false, true));
        assert_eq!(header(&bytes, 4096 + 128, 4096).expect("a header").finished, 64);
    }

    #[test]
    fn no_other_bytes_are_a_record() {
        let bytes = written(128);
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut other = bytes.clone();
                other[at] ^= flip;
                read(&other, 128).expect_err("a flipped bit");
            }
        }
        for line in 0..bytes.len() / 64 {
            let mut other = bytes.clone();
            other[line * 64..][..64].fill(0);
            read(&other, 128).expect_err("a lost line");
        }
        assert_eq!(read(&bytes, 192).err(), Some(LogError::Unmarked), "another place");
        assert_eq!(read(&bytes, 128 + 4096).err(), Some(LogError::Unmarked), "another lap");
    }
}
