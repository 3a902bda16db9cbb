//! Atomic reads of objects: four mechanisms beside each other, to measure what the others cost.
//!
//! | mechanism | what the reader checks, and where | layout |
//! |---|---|---|
//! | [`Checksum`] (Pilaf) | a CRC64 over the whole object, at the reader | clean, behind a checksum |
//! | [`Destination`] (`SABRe`) | the header's version before and after, where the data lives | clean |
//! | [`LineVersions`] (FaRM) | a version in each cache line, at the reader, which must strip them | a version a line |
//! | [`Lock`] (DrTM) | nothing: it holds a lease while it reads | clean, behind a lease |
//!
//! The database's rows are `destination` objects. The others exist for the comparison that Daglis et al. make ("`SABRes`: Atomic
//! Object Reads for In-Memory Rack-Scale Computing", MICRO 2016, sections 2.1 and 7). One conformance suite tests all four.
//! Objects lie at multiples of [`LINE`].
//!
//! Far reads do no input or output themselves: [`Mechanism::post`] adds the next round's instructions to a batch, and
//! [`Mechanism::judge`] evaluates their results. In this way, many reads can share a batch.
//!
//! Assumptions about the fabric: `read_object` is executed where the data lives. Other reads move each 64-byte line whole. If
//! memory is [mapped](FarRead::mapped), they are loads of this processor, which move only words whole. A provider with neither (a
//! stream of bytes) can carry `destination`, `checksum` and `lock`, but not `line_versions`.

mod checksum;
#[cfg(test)]
mod conformance;
mod destination;
mod line_versions;
mod lock;

pub use checksum::Checksum;
pub use destination::Destination;
pub use line_versions::LineVersions;
pub use lock::{LEASE_NS, Lock};

use crate::object::Owner;
use farhold_fabric::sum_words;
use farhold_fabric::{Batch, Endpoint, FabricError, FarPtr, Handle, RegionMemory, Slot};
use farhold_planted::Defect;
use std::fmt;
use std::ops::Range;

/// All mechanisms, by name.
pub const ALL: &[&dyn Mechanism] = &[&Checksum, &Destination, &LineVersions, &Lock];

/// The alignment of objects, and the unit that a fabric moves whole.
pub const LINE: u64 = 64;

/// One way to read objects that others write.
///
/// The caller guarantees: `at` is a multiple of [`LINE`], the object was made by [`create`](Self::create) of the same
/// mechanism, and [`bytes`](Self::bytes) of its longest payload lie inside the region. Owners are different for each writer.
/// The implementer gives each reader one state that a writer has finished, with that state's version, or no payload at all;
/// versions grow.
pub trait Mechanism: Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// What it is, in one line.
    fn about(&self) -> &'static str;

    /// Bytes that an object with such a payload takes, a multiple of [`LINE`].
    fn bytes(&self, payload_len: usize) -> usize;

    /// Makes an object in zeroed memory. No other thread knows the place yet.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    fn create(&self, memory: &RegionMemory, at: u64, payload: &[u8]) -> Result<(), FabricError> {
        memory.check(at, self.bytes(payload.len()) as u64)?;
        self.fill(memory, at, &Writing { version: 0 }, payload, 0..self.pieces(payload.len()));
        self.end_write(memory, at, Writing { version: 0 }, payload);
        Ok(())
    }

    /// Reads an object of mapped memory into `into[..len]`.
    ///
    /// # Errors
    /// See [`Unread`].
    fn read(&self, memory: &RegionMemory, at: u64, into: &mut [u8], clock: &Handle) -> Result<Seen, Unread>;

    /// Reads an object of mapped memory and uses every word of its payload once: returns their sum. It stands for an
    /// application's use, so that a mechanism pays for the copy if its payloads cannot be used in place. `into` is room for such
    /// a copy.
    ///
    /// # Errors
    /// See [`Unread`].
    #[inline]
    fn total(&self, memory: &RegionMemory, at: u64, into: &mut [u8], clock: &Handle) -> Result<(Seen, u64), Unread> {
        let seen = self.read(memory, at, into, clock)?;
        Ok((seen, sum_words(&into[..seen.len])))
    }

    /// Adds the instructions of the next round of a far read.
    fn post(&self, read: &mut FarRead<'_>, batch: &mut Batch, clock: &Handle);

    /// Judges the round in `batch`. `None`: the read takes another round. `into` is room for a payload that cannot be used in
    /// place.
    ///
    /// # Errors
    /// See [`Unread`]; the read may begin anew, by [`FarRead::again`].
    ///
    /// # Panics
    /// If nothing was posted.
    fn judge<'b>(
        &self,
        read: &mut FarRead<'_>,
        batch: &'b Batch,
        into: &'b mut [u8],
        clock: &Handle,
    ) -> Result<Option<View<'b>>, Unread>;

    /// Takes the object for a writer at its home node.
    ///
    /// # Errors
    /// [`Busy`]: another writer, or a reader's lease, has it.
    fn begin_write(&self, memory: &RegionMemory, at: u64, owner: Owner, clock: &Handle) -> Result<Writing, Busy>;

    /// The number of pieces, of about a line each, of a payload.
    fn pieces(&self, payload_len: usize) -> usize {
        payload_len.div_ceil(PIECE)
    }

    /// Writes some of these pieces of the new payload. Every piece is written once, in any order.
    fn fill(&self, memory: &RegionMemory, at: u64, writing: &Writing, payload: &[u8], pieces: Range<usize>);

    /// Makes the new payload what readers get, and gives the object back. Returns its version.
    fn end_write(&self, memory: &RegionMemory, at: u64, writing: Writing, payload: &[u8]) -> u64;

    /// A whole write.
    ///
    /// # Errors
    /// As [`begin_write`](Self::begin_write).
    fn write(&self, memory: &RegionMemory, at: u64, payload: &[u8], owner: Owner, clock: &Handle) -> Result<u64, Busy> {
        let writing = self.begin_write(memory, at, owner, clock)?;
        self.fill(memory, at, &writing, payload, 0..self.pieces(payload.len()));
        Ok(self.end_write(memory, at, writing, payload))
    }
}

impl fmt::Debug for dyn Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which state a read in place has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The state's version.
    pub version: u64,
    /// Bytes of its payload.
    pub len: usize,
}

/// The state that a far read has met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'b> {
    /// The state's version.
    pub version: u64,
    /// Its payload: in the batch if it can be used in place, otherwise in the given room.
    pub payload: &'b [u8],
}

/// Why a read gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// A writer was at work, or a lease ended: read again.
    Torn,
    /// The payload is longer than the room. (Seen while a writer may have been at work: a hint.)
    TooShort {
        /// What it needs.
        payload_len: usize,
    },
    /// The fabric could not.
    Fabric(FabricError),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn => f.write_str("the object was being written while it was read; read it again"),
            Self::TooShort { payload_len } => write!(f, "the object's payload needs room for {payload_len} bytes"),
            Self::Fabric(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unread {}

impl From<FabricError> for Unread {
    fn from(error: FabricError) -> Self {
        match error {
            FabricError::Torn { .. } => Self::Torn,
            FabricError::ObjectTooLong { payload_len, .. } => Self::TooShort { payload_len },
            error => Self::Fabric(error),
        }
    }
}

/// Another thread has the object: try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another writer, or a reader's lease, has the object; try again")
    }
}

impl std::error::Error for Busy {}

/// A write under way.
#[derive(Debug)]
#[must_use = "the object stays taken until `end_write`"]
pub struct Writing {
    /// The version before.
    version: u64,
}

/// A far read on its way.
#[derive(Debug)]
pub struct FarRead<'m> {
    at: FarPtr,
    payload_len_max: usize,
    mapped: Option<&'m RegionMemory>,
    slot: Option<Slot>,
    /// What the mechanism has learned of the object's first word.
    word: u64,
    lease: Lease,
}

/// How far a read of [`Lock`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Wanted,
    /// Its word is posted.
    Asked(u64),
    Held(u64),
}

impl<'m> FarRead<'m> {
    /// A read of the object at `at`, with a payload of at most `payload_len_max` bytes.
    #[must_use]
    pub fn new(at: FarPtr, payload_len_max: usize) -> Self {
        Self { at, payload_len_max, mapped: None, slot: None, word: 0, lease: Lease::Wanted }
    }

    /// The caller must set it if [`Endpoint::mapped`] gives the region's memory: the reads are then loads.
    #[must_use]
    pub fn mapped(self, memory: Option<&'m RegionMemory>) -> Self {
        Self { mapped: memory, ..self }
    }

    /// From the beginning: after [`Unread::Torn`], or for another read of the same object.
    pub fn again(&mut self) {
        (self.slot, self.word, self.lease) = (None, 0, Lease::Wanted);
    }
}

/// One far read by itself, once. `batch` may be reused from call to call.
///
/// # Errors
/// See [`Unread`].
pub async fn read_far<T>(
    mechanism: &dyn Mechanism,
    endpoint: &Endpoint,
    read: &mut FarRead<'_>,
    batch: &mut Batch,
    into: &mut [u8],
    take: impl FnOnce(View<'_>) -> T,
) -> Result<T, Unread> {
    read.again();
    loop {
        batch.clear();
        mechanism.post(read, batch, endpoint.handle());
        *batch = endpoint.submit(std::mem::take(batch)).await;
        if let Some(view) = mechanism.judge(read, batch, into, endpoint.handle())? {
            return Ok(take(view));
        }
    }
}

/// The word at `offset`.
#[inline]
fn word(memory: &RegionMemory, offset: u64) -> &std::sync::atomic::AtomicU64 {
    memory.word(offset).expect("an object lies inside its region")
}

/// The word at `offset` of bytes that came from a region.
#[inline]
fn word_of(bytes: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("8 bytes"))
}

/// Bytes of a clean payload in one piece.
const PIECE: usize = LINE as usize;

/// The bytes of a clean payload in these pieces.
fn clean_bytes(pieces: &Range<usize>, payload_len: usize) -> Range<usize> {
    (pieces.start * PIECE).min(payload_len)..(pieces.end * PIECE).min(payload_len)
}

/// Whether the mechanism's check is left out, for the conformance suite.
fn is_unchecked() -> bool {
    farhold_planted::is(Defect::Unchecked)
}
