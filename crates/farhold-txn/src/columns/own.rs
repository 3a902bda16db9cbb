//! The records of a node that is alone and has no journal, on their way from its commits to its columns.
//!
//! ```text
//!   a commit                                                           the thread that applies: a pass
//!   is there a copy? ─ no ──────► as without columns                   raise the epoch, if there is a record of it
//!     │ yes                          (one began meanwhile: refused)    wait until no earlier commit is open
//!     └─► open ─► epoch ─► rows ─► record into the buffer ─► closed    take the buffers ─► apply ─► complete up to the epoch before
//! ```
//! A record is dropped once it is applied, and no record outlives the process, which has the only copies. `docs/design/0027-columns.md` says why no record is
//! missed.

use crate::base::desks::Desks;
use crate::base::epoch::SNAPSHOT_EPOCH_LAST;
use crate::columns::{ColumnFeed, held};
use farhold_fabric::NodeId;
use farhold_store::Superblock;
use std::sync::{Arc, Mutex};

/// A worker hands over its buffer when it has this many bytes, so that waiting bytes are counted in one place.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// The longest record. A transaction that writes more would need as much memory twice; the columns are built again instead.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;
/// How often a pass looks whether commits are still open. A commit takes microseconds unless its thread is not running.
const OPEN_LOOKS_MAX: u32 = 1_000;

/// The records that workers have left for the columns.
pub(crate) struct OwnRecords {
    pub feed: Arc<ColumnFeed>,
    desks: Desks,
    /// Held during a pass.
    taken: Mutex<TakenSoFar>,
}

#[derive(Default)]
struct TakenSoFar {
    /// The last epoch of the records that were taken.
    epoch: u32,
    /// The buffers have been emptied since the last copy was dropped. A commit that was open at that time may still leave its record, which takes some memory
    /// until there is a copy again. A new copy ignores the record, because its first snapshot contains that commit.
    is_swept: bool,
}

/// A commit that leaves a record: from before it reads its epoch until the record is there, or the commit is refused.
pub(crate) struct Recording<'r> {
    records: &'r OwnRecords,
    worker: u8,
}

impl OwnRecords {
    pub fn new() -> Self {
        Self { feed: Arc::new(ColumnFeed::new(false)), desks: Desks::new(), taken: Mutex::default() }
    }

    /// Begins a commit of a worker, which must read its `epoch` afterwards. `None`: there is no copy. The commit must then call [`Self::is_wanted`] after it
    /// has read its epoch.
    #[inline]
    pub fn begin(&self, worker: u8, epoch: impl Fn() -> u32) -> Option<Recording<'_>> {
        if !self.is_wanted() {
            return None;
        }
        self.desks.set_open(worker, Some(epoch()));
        Some(Recording { records: self, worker })
    }

    /// Whether there is a copy: commits that read their epoch from now on must leave records.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.feed.is_wanted()
    }

    /// A pass: takes the records that have been left and applies them. One thread does so. False: a commit of an earlier epoch is still open, so the caller
    /// should try again soon.
    pub fn apply(&self, me: NodeId, superblock: Superblock<'_>) -> bool {
        let mut taken = held(&self.taken);
        let is_wanted = self.is_wanted();
        let is_over = (!is_wanted && taken.is_swept) || self.take_buffers(&mut taken.epoch, superblock);
        taken.is_swept = !is_wanted;
        let mut records = self.feed.take();
        records.apply_own(me);
        self.feed.complete(&records, records.closed);
        is_over
    }

    /// Hands over the contents of the buffers, and closes the epochs that are over. False: a commit of an earlier epoch is still open.
    fn take_buffers(&self, taken: &mut u32, superblock: Superblock<'_>) -> bool {
        let left = self.desks.buffers().map(|buffer| buffer.epoch_max).max().unwrap_or(0);
        let mut epoch = superblock.epoch();
        if left.max(*taken) >= epoch && epoch < SNAPSHOT_EPOCH_LAST {
            // Snapshots may never do so, and a segment has no rows of an epoch that is not over.
            epoch = superblock.advance_epoch() + 1;
        }
        let is_over = self.are_over_before(epoch);
        for mut buffer in self.desks.buffers() {
            self.feed.hand_over(std::mem::take(&mut buffer.bytes));
            *taken = (*taken).max(std::mem::take(&mut buffer.epoch_max));
        }
        if is_over {
            self.feed.set_closed(epoch.saturating_sub(1));
        }
        is_over
    }

    fn are_over_before(&self, epoch: u32) -> bool {
        for _ in 0..OPEN_LOOKS_MAX {
            if !self.desks.are_open_before(u64::from(epoch)) || planted!(OpenIgnored) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Whether all records of commits that have been acknowledged are applied, and their epochs are over. False during a pass.
    pub fn are_applied(&self) -> bool {
        let taken = self.taken.try_lock();
        // A worker may have handed over its bytes itself. Its buffer then keeps the epoch until the next pass.
        let are_taken = || self.desks.buffers().all(|buffer| buffer.bytes.is_empty() && buffer.epoch_max == 0);
        !self.is_wanted() || taken.is_ok_and(|taken| are_taken() && taken.epoch <= self.feed.closed())
    }
}

impl Recording<'_> {
    /// Leaves the record, once all rows are written and unlocked. If the backlog is long, it waits for a short time.
    #[inline]
    pub fn leave(self, behind: &[u8], mark: u64, epoch: u32) {
        if planted!(LateRecord) {
            self.records.desks.set_open(self.worker, None);
            crate::base::planted::may_stop();
        }
        let mut buffer = self.records.desks.append(self.worker, behind, mark, epoch);
        if buffer.bytes.len() >= BUFFER_BYTES_MAX {
            let feed = &self.records.feed;
            feed.hand_over(std::mem::take(&mut buffer.bytes));
            drop(buffer);
            feed.bell.ring();
            // Closed first: a pass waits for open commits.
            drop(self);
            feed.wait_for_backlog();
        }
    }

    /// Leaves no record, because it would be too long. All copies then lack its changes, and are rebuilt.
    #[cold]
    pub fn miss(self) {
        self.records.feed.miss();
        self.records.feed.bell.ring();
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.records.desks.set_open(self.worker, None);
    }
}
