//! The layout of an object, as far as a reader at the data's place must know it.
//!
//! ```text
//! +0   lock     0 = free; else the owner (its coding belongs to the protocol above)
//! +8   version  epoch:32 | count:29 | ABSENT:1 | WRITING:1 | ODD:1
//! +16  meta     incarnation:24 | state:4 | key_len:16 | payload_len:20
//! +24  prev     0, or where an older copy of this object lies
//! +32  payload  key bytes, then value bytes: `payload_len` of them, `key_len` of these the key
//! ```
//!
//! A writer takes `lock`, sets `version | WRITING`, fences, changes meta, prev and payload, stores the new version, and unlocks.
//! A reader loads the version before and after its copy. The same version without `WRITING` both times means that the copy is one
//! state of the object. `version` never returns to an earlier value, also when the slot is used again.

use std::fmt;

/// Offset of the lock word.
pub const LOCK: u64 = 0;
/// Offset of the version word.
pub const VERSION: u64 = 8;
/// Offset of the meta word.
pub const META: u64 = 16;
/// Offset of the word that leads to an older copy.
pub const PREV: u64 = 24;
/// Offset of the payload; also the bytes of a header.
pub const PAYLOAD: u64 = 32;
/// Bytes of a header.
pub const HEADER_BYTES: usize = PAYLOAD as usize;
/// What an object's offset is a multiple of.
pub const ALIGN: u64 = 16;
/// Longest payload that the meta word can say.
pub const PAYLOAD_LEN_MAX: usize = (1 << 20) - 1;

/// The version word: `epoch:32 | count:29 | ABSENT:1 | WRITING:1 | ODD:1`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Version(pub u64);

impl Version {
    /// Written, not yet replicated.
    pub const ODD: u64 = 1;
    /// The payload is being changed.
    pub const WRITING: u64 = 2;
    /// Not a live row.
    pub const ABSENT: u64 = 4;
    /// One step of the count.
    pub const ONE: u64 = 8;
    /// All flag bits.
    pub const FLAGS: u64 = 7;

    /// The smallest version of an epoch.
    #[must_use]
    #[inline]
    pub const fn of_epoch(epoch: u32) -> Self {
        Self((epoch as u64) << 32)
    }

    /// The commit epoch.
    #[must_use]
    #[inline]
    pub const fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Written, not yet replicated?
    #[must_use]
    #[inline]
    pub const fn is_odd(self) -> bool {
        self.0 & Self::ODD != 0
    }

    /// Is a writer at work?
    #[must_use]
    #[inline]
    pub const fn is_writing(self) -> bool {
        self.0 & Self::WRITING != 0
    }

    /// Reserved or deleted?
    #[must_use]
    #[inline]
    pub const fn is_absent(self) -> bool {
        self.0 & Self::ABSENT != 0
    }

    /// Without its flags: what is ordered.
    #[must_use]
    #[inline]
    pub const fn number(self) -> u64 {
        self.0 & !Self::FLAGS
    }

    /// The next version, without flags, for a commit in `epoch`: `max(old + one count, epoch << 32)`.
    #[must_use]
    #[inline]
    pub const fn next(self, epoch: u32) -> Self {
        let counted = self.number() + Self::ONE;
        let start = (epoch as u64) << 32;
        Self(if counted > start { counted } else { start })
    }

    /// The same with flag bits set.
    #[must_use]
    #[inline]
    pub const fn with(self, flags: u64) -> Self {
        Self(self.0 | flags)
    }

    /// The same with flag bits cleared.
    #[must_use]
    #[inline]
    pub const fn without(self, flags: u64) -> Self {
        Self(self.0 & !flags)
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({}.{}", self.epoch(), (self.0 & 0xffff_ffff) >> 3)?;
        for (bit, name) in [(Self::ABSENT, " absent"), (Self::WRITING, " writing"), (Self::ODD, " odd")] {
            if self.0 & bit != 0 {
                f.write_str(name)?;
            }
        }
        f.write_str(")")
    }
}

/// The meta word: `incarnation:24 (40..64) | state:4 (36..40) | key_len:16 (20..36) | payload_len:20 (0..20)`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Meta(pub u64);

impl Meta {
    /// State of a slot that holds nothing.
    pub const FREE: u8 = 0;
    /// State of a slot that holds a row.
    pub const ROW: u8 = 1;
    /// State of a slot that holds an older copy of a row.
    pub const UNDO: u8 = 2;

    /// Makes a meta word.
    ///
    /// # Panics
    /// If a part is too large for its bits, or the key longer than the payload.
    #[must_use]
    #[inline]
    pub const fn new(incarnation: u32, state: u8, key_len: usize, payload_len: usize) -> Self {
        assert!(
            incarnation < 1 << 24
                && state < 16
                && key_len < 1 << 16
                && payload_len <= PAYLOAD_LEN_MAX
                && key_len <= payload_len
        );
        Self((incarnation as u64) << 40 | (state as u64) << 36 | (key_len as u64) << 20 | payload_len as u64)
    }

    /// How often the slot has been used, modulo 2^24.
    #[must_use]
    #[inline]
    pub const fn incarnation(self) -> u32 {
        (self.0 >> 40) as u32
    }

    /// [`Self::FREE`], [`Self::ROW`] or [`Self::UNDO`].
    #[must_use]
    #[inline]
    pub const fn state(self) -> u8 {
        (self.0 >> 36) as u8 & 15
    }

    /// Bytes of the key at the start of the payload.
    #[must_use]
    #[inline]
    pub const fn key_len(self) -> usize {
        (self.0 >> 20) as usize & 0xffff
    }

    /// Bytes of the payload, key included.
    #[must_use]
    #[inline]
    pub const fn payload_len(self) -> usize {
        self.0 as usize & PAYLOAD_LEN_MAX
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state() {
            Self::FREE => "free",
            Self::ROW => "row",
            Self::UNDO => "undo",
            _ => "?",
        };
        write!(
            f,
            "Meta({state}, incarnation {}, key {} of {} bytes)",
            self.incarnation(),
            self.key_len(),
            self.payload_len()
        )
    }
}

/// The four words in front of a payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectHeader {
    /// 0 = free; else the owner.
    pub lock: u64,
    /// The version of the copy.
    pub version: Version,
    /// What the slot holds.
    pub meta: Meta,
    /// 0, or where an older copy lies.
    pub prev: u64,
}
