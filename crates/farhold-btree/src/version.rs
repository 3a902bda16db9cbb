//! The word at the head of every node: a lock, and a count of the node's changes.
//!
//! ```text
//!   63                                  1   0
//!  +-------------------------------------+---+
//!  | changes so far                      | L |   L = 1: a writer is inside, or the node is in no tree
//!  +-------------------------------------+---+
//! ```
//!
//! A reader takes no lock. It notes an even word, reads the node's fields as relaxed atomics, and asks whether the word is still
//! the same ([`VersionLock::unchanged_since`]). If not, it discards what it read and starts again. This is the sequence lock of
//! Boehm, "Can seqlocks get along with programming language memory models?" (MSPC 2012), with the same fences. Coupling such
//! words from parent to child is the optimistic lock coupling of Leis, Haubenschild and Neumann (IEEE Data Engineering Bulletin
//! 42(1), 2019).
//!
//! Invariants:
//! - The count never falls, not even when the node's memory serves another node later. So a version that has been left never
//!   comes back: 2^63 changes outlive the machine.
//! - Only the holder of the lock stores to the node's fields.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

const LOCKED: u64 = 1;
const STEP: u64 = 2;

/// How often [`VersionLock::is`] looks again at a word whose holder may yet leave it unchanged. A holder is inside for
/// some tens of nanoseconds; a false "changed" costs the caller a transaction.
const LOOKS_MAX: u32 = 64;

pub(crate) struct VersionLock(AtomicU64);

impl VersionLock {
    /// The version, unless a writer is inside.
    #[inline]
    pub fn read(&self) -> Option<u64> {
        let word = self.0.load(Acquire);
        (word & LOCKED == 0).then_some(word)
    }

    /// Whether every field read since `version` was read belongs to that version.
    #[inline]
    pub fn unchanged_since(&self, version: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == version
    }

    /// Locks if the node is still at `version`; then everything read since belongs to it too.
    ///
    /// Sequentially consistent, as is the load in [`VersionLock::is`]. Of two transactions that each insert into the leaf that
    /// the other has scanned and then validate, at least one sees the other. On x86 this costs nothing extra.
    #[inline]
    pub fn try_lock(&self, version: u64) -> bool {
        debug_assert_eq!(version & LOCKED, 0);
        let locked = self.0.compare_exchange(version, version | LOCKED, SeqCst, Relaxed).is_ok();
        // A reader of a field that this writer stores from now on must also see that the word has moved.
        fence(Release);
        locked
    }

    /// Ends a change begun at `version`; returns the version it leaves behind.
    #[inline]
    pub fn unlock_changed(&self, version: u64) -> u64 {
        self.0.store(version + STEP, Release);
        version + STEP
    }

    /// Unlocks a node to which nothing was stored.
    #[inline]
    pub fn unlock_unchanged(&self, version: u64) {
        self.0.store(version, Release);
    }

    /// Removes the node from use: it stays locked, at a version that no reader holds.
    pub fn retire(&self, version: u64) {
        self.0.store((version + STEP) | LOCKED, Release);
    }

    /// Takes a node from the arena, fresh or retired, for its next use; returns the version to unlock it from.
    pub fn adopt(&self) -> u64 {
        let version = self.0.load(Relaxed) & !LOCKED;
        self.0.store(version | LOCKED, Relaxed);
        fence(Release);
        version
    }

    /// Whether the node is at `version` now, as one step in the order of all locks taken.
    pub fn is(&self, version: u64) -> bool {
        for _ in 0..LOOKS_MAX {
            let word = self.0.load(SeqCst);
            if word != version | LOCKED {
                return word == version;
            }
            std::hint::spin_loop();
        }
        false
    }
}

/// Waits a little longer each time an optimistic attempt has failed.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Beyond 2^5 pauses the holder of the lock has probably lost its core: yield this one.
    const SPINS_LOG2_MAX: u32 = 5;

    #[cold]
    pub fn wait(&mut self) {
        if self.0 <= Self::SPINS_LOG2_MAX && !cfg!(miri) {
            for _ in 0..1_u32 << self.0 {
                std::hint::spin_loop();
            }
            self.0 += 1;
        } else {
            std::thread::yield_now();
        }
    }
}
