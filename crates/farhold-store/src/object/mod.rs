//! Objects: the header words, the read and the write protocol, references to objects and their owners.
//!
//! ```text
//!  +0 lock │ +8 version │ +16 meta │ +24 prev │ +32 payload = key bytes, value bytes
//! ```
//!
//! [`Object`] is one object in mapped memory. All of it is inlined into the caller: a transaction does some sixty of
//! these in ten microseconds. Bounds are checked once, when the [`Object`] is made.

mod protocol;
mod reference;

pub mod size_class;

pub use protocol::{
    LockError, Read, ReadError, Word, Words, begin_write, end_write, lock, read, read_part, release_dead, restamp,
    unlock, write,
};
pub use reference::{ObjectRef, Owner};

use farhold_fabric::object::{HEADER_BYTES, PAYLOAD};
use farhold_fabric::{Meta, RegionMemory, Version};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

/// State of a slot ([`Meta::state`]) with an insert that has not committed; [`Meta::ROW`] afterwards.
///
/// Both a reserved and a deleted row are `ABSENT`; this tells a second inserter which of the two it met.
pub const RESERVED: u8 = 3;

/// The `prev` word: `epoch:32 | unit:32`, the epoch of an older copy of a row and where it lies; 0 if there is none.
///
/// The epoch is that of the copied version. (The copy's own version word counts the uses of its slot.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Link(pub u64);

impl Link {
    /// No older copy.
    pub const NONE: Self = Self(0);

    /// To a copy of the state that `epoch` made, at `offset`.
    #[must_use]
    pub const fn new(epoch: u32, offset: u64) -> Self {
        Self(((epoch as u64) << 32) | (offset / farhold_fabric::object::ALIGN))
    }

    /// No older copy?
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 as u32 == 0
    }

    /// The epoch of the copied state.
    #[must_use]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Where the copy lies.
    #[must_use]
    pub const fn offset(self) -> u64 {
        (self.0 as u32) as u64 * farhold_fabric::object::ALIGN
    }
}

/// One object in mapped memory: a header inside the region's bounds.
///
/// A stale reference is safe: its incarnation is checked where it matters, and lengths are checked against the region.
#[derive(Clone, Copy, Debug)]
pub struct Object<'m> {
    memory: &'m RegionMemory,
    offset: u64,
}

impl<'m> Object<'m> {
    /// The object at an offset.
    ///
    /// # Panics
    /// If the header would lie outside the region or is misaligned (a bug, or a reference from another region).
    #[must_use]
    #[inline(always)]
    pub fn at(memory: &'m RegionMemory, offset: u64) -> Self {
        Self::try_at(memory, offset).expect("an object's header lies inside its region")
    }

    /// The object at an offset, `None` outside the region: for offsets that come from bytes (`prev`, far indexes).
    #[must_use]
    #[inline(always)]
    pub fn try_at(memory: &'m RegionMemory, offset: u64) -> Option<Self> {
        let inside = offset.is_multiple_of(8) && offset + HEADER_BYTES as u64 <= memory.len();
        inside.then_some(Self { memory, offset })
    }

    /// The object a reference means.
    ///
    /// # Panics
    /// As [`Self::at`].
    #[must_use]
    #[inline(always)]
    pub fn of(memory: &'m RegionMemory, reference: ObjectRef) -> Self {
        Self::at(memory, reference.offset())
    }

    /// Bytes from the start of the region.
    #[must_use]
    #[inline(always)]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The region it lies in.
    #[must_use]
    #[inline(always)]
    pub fn memory(&self) -> &'m RegionMemory {
        self.memory
    }

    /// The lock word: 0, or the owner.
    #[must_use]
    #[inline(always)]
    pub fn lock_word(&self) -> u64 {
        self.load(Word::Lock, SeqCst)
    }

    /// The version now. Sequentially consistent, so that it serves for validation after locking.
    #[must_use]
    #[inline(always)]
    pub fn version(&self) -> Version {
        Version(self.load(Word::Version, SeqCst))
    }

    /// Incarnation, state and lengths now.
    #[must_use]
    #[inline(always)]
    pub fn meta(&self) -> Meta {
        Meta(self.load(Word::Meta, Acquire))
    }

    /// Where an older copy lies.
    #[must_use]
    #[inline(always)]
    pub fn prev(&self) -> Link {
        Link(self.load(Word::Prev, Acquire))
    }

    /// Sets the older copy. The caller holds the lock, or is the only thread that knows the object.
    #[inline(always)]
    pub fn set_prev(&self, link: Link) {
        self.store(Word::Prev, link.0, Release);
    }

    /// Sets the older copy if it is still `old`; false if it is not.
    pub(crate) fn swap_prev(&self, old: Link, new: Link) -> bool {
        self.compare_exchange(Word::Prev, old.0, new.0, SeqCst).is_ok()
    }

    /// Reads one whole state of the row into `into[..payload_len]`. It does not wait: a locked row is read as it is (the result
    /// has the lock word), and validation decides.
    ///
    /// # Errors
    /// See [`ReadError`]: torn (try again), stale (look up again), buffer too short (with the length).
    #[inline(always)]
    pub fn read(&self, incarnation: u32, into: &mut [u8]) -> Result<Read, ReadError> {
        read(self, incarnation, into)
    }

    /// As [`Self::read`], of the key and at most the first `value_bytes_max` bytes of the value.
    ///
    /// # Errors
    /// See [`ReadError`].
    #[inline(always)]
    pub fn read_part(&self, incarnation: u32, value_bytes_max: usize, into: &mut [u8]) -> Result<Read, ReadError> {
        read_part(self, incarnation, value_bytes_max, into)
    }

    /// Takes the lock and returns the version under it.
    ///
    /// # Errors
    /// See [`LockError`]: another owner holds it (its word), or the slot is another row now.
    #[inline(always)]
    pub fn lock(&self, incarnation: u32, owner: Owner) -> Result<Version, LockError> {
        lock(self, incarnation, owner.word())
    }

    /// Gives the lock back. The caller holds it.
    #[inline(always)]
    pub fn unlock(&self) {
        unlock(self);
    }

    /// Whether the row is still at `version`, and unlocked or locked by `me`. For the validation of a read.
    #[must_use]
    #[inline(always)]
    pub fn is_still(&self, version: Version, me: Owner) -> bool {
        let holder = self.lock_word();
        self.version() == version && (holder == 0 || holder == me.word())
    }

    /// Replaces the value, keeps the key, and publishes it as `version`; a reserved row becomes a row. The caller holds
    /// the lock, and `key_len + value.len()` fits the slot ([`size_class::fits`]).
    #[inline(always)]
    pub fn write(&self, value: &[u8], version: Version) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        let key_len = meta.key_len();
        let meta = Meta::new(meta.incarnation(), Meta::ROW, key_len, key_len + value.len());
        write(self, meta, version, |object| object.copy_in(key_len, value));
    }

    /// As [`Self::write`], for a reserved row that stays reserved until [`Self::end_reservation`]: that of a commit which moves
    /// rows.
    pub fn write_reserved(&self, value: &[u8], version: Version) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        let key_len = meta.key_len();
        let meta = Meta::new(meta.incarnation(), RESERVED, key_len, key_len + value.len());
        write(self, meta, version, |object| object.copy_in(key_len, value));
    }

    /// As [`Self::write`], inside of a hardware transaction, which would abort on moves of more than 16 bytes.
    #[inline(always)]
    pub fn write_narrow(&self, value: &[u8], version: Version) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        let key_len = meta.key_len();
        let meta = Meta::new(meta.incarnation(), Meta::ROW, key_len, key_len + value.len());
        write(self, meta, version, |object| {
            assert!(key_len + value.len() <= object.room());
            // SAFETY: the line above.
            unsafe { object.memory.copy_in_narrow_unchecked(object.offset + PAYLOAD + key_len as u64, value) }
        });
    }

    /// Makes the pages that a payload of `payload_len` bytes lies on present and marked as written, so that a hardware
    /// transaction can write there. It changes nothing, and any other thread may use the object meanwhile.
    ///
    /// # Panics
    /// If such a payload would lie outside the region.
    pub fn touch(&self, payload_len: usize) {
        // SAFETY: `at` has checked that the header lies inside the region, aligned.
        unsafe { self.memory.touch_unchecked(self.offset + Word::Lock as u64) };
        self.touch_behind(payload_len);
    }

    /// As [`Self::touch`], except for the page on which the header begins.
    ///
    /// # Panics
    /// If such a payload would lie outside the region.
    #[inline]
    pub fn touch_behind(&self, payload_len: usize) {
        const PAGE: u64 = 4096;
        assert!(payload_len <= self.room());
        let end = self.offset + PAYLOAD + payload_len as u64;
        let mut page = (self.offset | (PAGE - 1)) + 1;
        while page < end {
            // SAFETY: aligned, and below `end`, which the assertion has found inside the region.
            unsafe { self.memory.touch_unchecked(page) };
            page += PAGE;
        }
    }

    /// As [`Self::write`], for a part of the value (`at` counts from its start); the length stays.
    #[inline(always)]
    pub fn write_part(&self, at: usize, part: &[u8], version: Version) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        let meta = Meta::new(meta.incarnation(), Meta::ROW, meta.key_len(), meta.payload_len());
        write(self, meta, version, |object| object.copy_in(meta.key_len() + at, part));
    }

    /// As [`Self::write`], for some parts of the payload, each with its position; the lengths stay.
    pub fn patch(&self, parts: &[(usize, &[u8])], version: Version) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        let meta = Meta::new(meta.incarnation(), Meta::ROW, meta.key_len(), meta.payload_len());
        write(self, meta, version, |object| parts.iter().for_each(|(at, part)| object.copy_in(*at, part)));
    }

    /// Publishes the payload as it is under a new version: the commit of a reserved insert, or of a delete (`version`
    /// with [`Version::ABSENT`]). The caller holds the lock.
    #[inline(always)]
    pub fn restamp(&self, version: Version) {
        restamp(self, version);
        if !version.is_absent() {
            // After the version: a row that is there but still called reserved does no harm, while the other way round it would
            // pass for a deleted one. So there is no moment at which a crash could damage it.
            farhold_planted::may_stop();
            self.end_reservation();
        }
    }

    /// As [`Self::restamp`], for a reserved row that stays reserved until [`Self::end_reservation`].
    pub fn restamp_reserved(&self, version: Version) {
        restamp(self, version);
    }

    /// Turns a reserved row that is present into a row. The caller holds the lock, or is the only thread that knows the object.
    #[inline(always)]
    pub fn end_reservation(&self) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        if meta.state() == RESERVED {
            let row = Meta::new(meta.incarnation(), Meta::ROW, meta.key_len(), meta.payload_len());
            self.store(Word::Meta, row.0, Release);
        }
    }

    /// Takes [`Version::ODD`] from a row that this caller has written: it is replicated. No lock is needed, because no other
    /// thread changes an odd row.
    #[inline(always)]
    pub fn settle(&self, version: Version) {
        debug_assert_eq!(self.load(Word::Version, Relaxed), version.with(Version::ODD).0);
        self.store(Word::Version, version.without(Version::ODD).0, Release);
    }

    /// Turns a reserved object into one that counts as deleted. Only the caller may commit or cancel it, and may have done so
    /// before.
    pub fn give_up(&self) {
        let meta = Meta(self.load(Word::Meta, Relaxed));
        debug_assert!(matches!(meta.state(), RESERVED | Meta::ROW) && self.version().is_absent(), "{meta:?}");
        let gone = Meta::new(meta.incarnation(), Meta::ROW, meta.key_len(), meta.payload_len());
        self.store(Word::Meta, gone.0, SeqCst);
    }

    /// Frees the lock of a dead owner.
    ///
    /// # Errors
    /// The lock word as found, if it is another.
    #[inline(always)]
    pub fn release_dead(&self, dead: Owner) -> Result<(), u64> {
        release_dead(self, dead.word())
    }

    /// Whether the row is damaged, that is half written for ever. Then no owner of its lock can go on.
    #[must_use]
    #[inline(always)]
    pub fn is_damaged(&self) -> bool {
        self.lock_word() == Owner::DAMAGED.word()
    }

    /// Marks a row as damaged; its writer is dead.
    pub(crate) fn mark_damaged(&self) {
        debug_assert!(self.version().is_writing(), "{:?}", self.version());
        self.store(Word::Lock, Owner::DAMAGED.word(), SeqCst);
    }

    /// Whether the key of this object equals `key`. Only the caller's later check of version and incarnation makes the answer
    /// final. A reader that checks the incarnation after a `true` has met the right row, because keys never change.
    #[must_use]
    #[inline(always)]
    pub fn has_key(&self, incarnation: u32, key: &[u8]) -> bool {
        let meta = Meta(self.load(Word::Meta, Acquire));
        if meta.incarnation() != incarnation || meta.key_len() != key.len() || key.len() > self.room() {
            return false;
        }
        let mut at = 0;
        let words = key.chunks_exact(8);
        let rest = words.remainder();
        for word in words {
            let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            if self.payload_word(at) != word {
                return false;
            }
            at += 8;
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            let mask = !0_u64 >> (64 - 8 * rest.len());
            if u64::from_le(self.payload_word(at)) & mask != u64::from_le_bytes(last) {
                return false;
            }
        }
        // The words above belong to this incarnation if it still stands after them.
        fence(Acquire);
        Meta(self.load(Word::Meta, Relaxed)).incarnation() == incarnation
    }

    /// A word of the payload; `at` is a multiple of 8 below `room`, whose end is a multiple of 8 too.
    #[inline(always)]
    fn payload_word(&self, at: usize) -> u64 {
        debug_assert!(at.is_multiple_of(8) && at < self.room());
        // SAFETY: the header lies inside the region, the region's length is a multiple of 8, and `at < room`.
        unsafe { self.memory.word_unchecked(self.offset + PAYLOAD + at as u64) }.load(Relaxed)
    }
}

impl Words for Object<'_> {
    #[inline(always)]
    fn load(&self, word: Word, order: Ordering) -> u64 {
        // SAFETY: `at` has checked that the whole header lies inside the region, aligned.
        unsafe { self.memory.word_unchecked(self.offset + word as u64) }.load(order)
    }

    #[inline(always)]
    fn store(&self, word: Word, value: u64, order: Ordering) {
        // SAFETY: as for `load`.
        unsafe { self.memory.word_unchecked(self.offset + word as u64) }.store(value, order);
    }

    #[inline(always)]
    fn compare_exchange(&self, word: Word, expected: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        // SAFETY: as for `load`.
        unsafe { self.memory.word_unchecked(self.offset + word as u64) }.compare_exchange(expected, new, order, Relaxed)
    }

    #[inline(always)]
    fn fence(&self, order: Ordering) {
        fence(order);
    }

    #[inline(always)]
    fn copy_out(&self, into: &mut [u8]) {
        assert!(into.len() <= self.room());
        // SAFETY: the line above.
        unsafe { self.memory.copy_out_unchecked(self.offset + PAYLOAD, into) }
    }

    #[inline(always)]
    fn copy_in(&self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.room());
        // SAFETY: the line above.
        unsafe { self.memory.copy_in_unchecked(self.offset + PAYLOAD + at as u64, from) }
    }

    #[inline(always)]
    fn room(&self) -> usize {
        (self.memory.len() - self.offset - PAYLOAD) as usize
    }
}
