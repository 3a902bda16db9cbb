//! The order of loads and stores that keeps a row whole while other threads read it: a lock, and a version around the payload.
//!
//! ```text
//!  writer (holds `lock`)                     reader
//!  ─────────────────────                     ──────
//!  version := old | WRITING   (relaxed)      v := version                 (acquire)   WRITING: torn
//!  fence(release)                            meta, payload                (racing copies)
//!  payload, meta              (racing)       fence(acquire)
//!  version := new             (release)      version = v?                 (relaxed)   no: torn
//!  lock := 0                  (release)
//! ```
//!
//! Why it is enough (Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012): if a reader has met
//! one byte of a writer, then through the two fences it also meets that writer's `WRITING` mark or something later, so its second
//! load of the version differs from the first. Versions never repeat, so "the same" means "nothing happened".
//!
//! The functions are written over [`Words`], so that the same text runs on mapped memory and under loom
//! (`tests/header_model.rs`, which also shows that leaving out the second look or a fence is caught).

use farhold_fabric::{Meta, Version};
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A word of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Word {
    /// The owner, or 0.
    Lock = farhold_fabric::object::LOCK,
    /// The version.
    Version = farhold_fabric::object::VERSION,
    /// Incarnation, state and lengths.
    Meta = farhold_fabric::object::META,
    /// An older copy.
    Prev = farhold_fabric::object::PREV,
}

/// One object's words and payload, on whatever memory.
///
/// The copies race with others by design: an implementer makes them of relaxed atomics, or of instructions that the compiler
/// cannot see into.
pub trait Words {
    /// Loads a header word.
    fn load(&self, word: Word, order: Ordering) -> u64;
    /// Stores a header word.
    fn store(&self, word: Word, value: u64, order: Ordering);
    /// Swaps a header word if it is `expected`; otherwise returns what it is.
    ///
    /// # Errors
    /// The word as found.
    fn compare_exchange(&self, word: Word, expected: u64, new: u64, order: Ordering) -> Result<u64, u64>;
    /// A fence.
    fn fence(&self, order: Ordering);
    /// Payload bytes from the start into `into`.
    fn copy_out(&self, into: &mut [u8]);
    /// Payload bytes from `at` on.
    fn copy_in(&self, at: usize, from: &[u8]);
    /// The longest payload that the memory around it permits.
    fn room(&self) -> usize;
}

/// What a read found; the payload is in the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The version read; not live if it [is absent](Version::is_absent).
    pub version: Version,
    /// Lengths and state.
    pub meta: Meta,
    /// The lock word at the time: 0, or the owner that is about to change the row.
    pub lock: u64,
}

impl Read {
    /// Whether it is reserved or deleted: for other transactions it is no row.
    #[must_use]
    #[inline(always)]
    pub fn is_absent(&self) -> bool {
        self.version.is_absent()
    }

    /// Bytes of the key, at the start of the payload.
    #[must_use]
    #[inline(always)]
    pub fn key_len(&self) -> usize {
        self.meta.key_len()
    }

    /// Bytes of key and value.
    #[must_use]
    #[inline(always)]
    pub fn payload_len(&self) -> usize {
        self.meta.payload_len()
    }
}

/// Why a read gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// A writer was at work: read again.
    Torn,
    /// The slot has another use by now: look the key up again.
    Stale,
    /// The buffer is shorter than the payload.
    TooShort {
        /// What the payload needs.
        payload_len: usize,
    },
}

/// Why a lock was not had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// Another owner has it; the lock word.
    Held(u64),
    /// The slot is used for something else by now.
    Stale,
}

/// One whole state of the object, or why there is none now.
///
/// # Errors
/// See [`ReadError`].
#[inline(always)]
pub fn read<W: Words>(words: &W, incarnation: u32, into: &mut [u8]) -> Result<Read, ReadError> {
    read_part(words, incarnation, usize::MAX, into)
}

/// As [`read`], of the key and at most the first `value_bytes_max` bytes of the value.
///
/// # Errors
/// See [`ReadError`].
#[inline(always)]
pub fn read_part<W: Words>(
    words: &W,
    incarnation: u32,
    value_bytes_max: usize,
    into: &mut [u8],
) -> Result<Read, ReadError> {
    let before = words.load(Word::Version, Acquire);
    let meta = Meta(words.load(Word::Meta, Relaxed));
    let lock = words.load(Word::Lock, Relaxed);
    let len = meta.payload_len();
    if meta.incarnation() != incarnation {
        return Err(ReadError::Stale);
    }
    if before & Version::WRITING != 0 {
        return Err(ReadError::Torn);
    }
    if len > into.len() || len > words.room() {
        return Err(too_short(words, before, len));
    }
    words.copy_out(&mut into[..len.min(meta.key_len().saturating_add(value_bytes_max))]);
    words.fence(Acquire);
    if words.load(Word::Version, Relaxed) != before {
        return Err(ReadError::Torn);
    }
    Ok(Read { version: Version(before), meta, lock })
}

/// A length that does not fit counts only if no writer was at work.
#[cold]
fn too_short<W: Words>(words: &W, before: u64, payload_len: usize) -> ReadError {
    words.fence(Acquire);
    if words.load(Word::Version, Relaxed) == before { ReadError::TooShort { payload_len } } else { ReadError::Torn }
}

/// Takes the lock and returns the version under it, if the slot still is what the reference meant.
///
/// # Errors
/// See [`LockError`]; nothing is held then.
#[inline(always)]
pub fn lock<W: Words>(words: &W, incarnation: u32, owner: u64) -> Result<Version, LockError> {
    // Sequentially consistent: snapshots depend on "locked, then read the epoch" against "raised the epoch, then found
    // it unlocked". On x86-64 this costs nothing over acquire.
    if let Err(holder) = words.compare_exchange(Word::Lock, 0, owner, SeqCst) {
        return Err(LockError::Held(holder));
    }
    let version = words.load(Word::Version, SeqCst);
    if Meta(words.load(Word::Meta, Acquire)).incarnation() != incarnation {
        words.store(Word::Lock, 0, Release);
        return Err(LockError::Stale);
    }
    Ok(Version(version))
}

/// Gives the lock back. The caller holds it.
#[inline(always)]
pub fn unlock<W: Words>(words: &W) {
    words.store(Word::Lock, 0, Release);
}

/// Changes the payload by `fill` and publishes it as `version`. The caller holds the lock, or is the only thread that knows the
/// object.
#[inline(always)]
pub fn write<W: Words>(words: &W, meta: Meta, version: Version, fill: impl FnOnce(&W)) {
    begin_write(words);
    fill(words);
    end_write(words, meta, version);
}

/// The first part of [`write()`]: readers meet the mark from here on. The caller holds the lock.
#[inline(always)]
pub fn begin_write<W: Words>(words: &W) {
    let old = words.load(Word::Version, Relaxed);
    words.store(Word::Version, old | Version::WRITING, Relaxed);
    words.fence(Release);
}

/// The last part of [`write()`]: the payload, with the lengths in `meta`, becomes readable as `version`.
#[inline(always)]
pub fn end_write<W: Words>(words: &W, meta: Meta, version: Version) {
    let old = words.load(Word::Version, Relaxed);
    debug_assert!(version.number() > old & !Version::FLAGS, "versions grow: {:?} to {version:?}", Version(old));
    debug_assert!(meta.payload_len() <= words.room());
    words.store(Word::Meta, meta.0, Relaxed);
    words.store(Word::Version, version.0, Release);
}

/// Publishes a new version of the same payload: a delete (`ABSENT` set), or the end of a reservation. The caller holds
/// the lock.
#[inline(always)]
pub fn restamp<W: Words>(words: &W, version: Version) {
    debug_assert!(version.number() > words.load(Word::Version, Relaxed) & !Version::FLAGS);
    words.store(Word::Version, version.0, Release);
}

/// Takes a lock word over from a dead owner.
///
/// # Errors
/// The lock word as found, if it is not `dead`.
#[inline(always)]
pub fn release_dead<W: Words>(words: &W, dead: u64) -> Result<(), u64> {
    words.compare_exchange(Word::Lock, dead, 0, AcqRel).map(|_| ())
}
