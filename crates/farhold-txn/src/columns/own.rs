//! The records of a node that is alone and has no journal, on their way from its commits to its columns.
//!
//! ```text
//!   a commit                                                           the thread that applies: a pass
//!   is there a copy? ─ no ──────► as without columns                   raise the epoch, if there is a record of it
//!     │ yes                          (one began meanwhile: refused)    wait until no earlier commit is open
//!     └─► open ─► epoch ─► rows ─► record into the buffer ─► closed    take the buffers ─► apply ─► complete up to the epoch before
//! ```
//!
//! Nothing is kept of a record once it is applied, and nothing of it outlives the process, which has the only copies. Why nothing is
//! missed: `docs/design/0027-columns.md`.

use crate::base::desks::Desks;
use crate::base::epoch::SNAPSHOT_EPOCH_LAST;
use crate::columns::{ColumnFeed, held};
use farhold_fabric::NodeId;
use farhold_store::Superblock;
use std::sync::{Arc, Mutex};

/// A worker hands its buffer over when it has as many bytes, so that what waits is counted in one place.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// The longest record. A transaction that writes more would need as much memory twice; the columns are built again instead.
pub(crate) const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Looks of a pass at open commits, each of which takes microseconds unless its thread is not running.
const OPEN_LOOKS_MAX: u32 = 1_000;

/// What the workers have left for the columns.
pub(crate) struct OwnRecords {
    pub feed: Arc<ColumnFeed>,
    desks: Desks,
    /// Held during a pass.
    taken: Mutex<TakenSoFar>,
}

#[derive(Default)]
struct TakenSoFar {
    /// The last epoch of what was taken.
    epoch: u32,
    /// The buffers have been emptied since there is no copy. A commit that was open then may still leave its record, which keeps some memory
    /// until there is a copy again; a new copy ignores it, as its first snapshot has that commit.
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

    /// A commit of a worker begins, which reads its `epoch` afterwards. `None`: there is no copy. Then the commit must ask
    /// [`Self::is_wanted`] after it has read its epoch.
    #[inline]
    pub fn begin(&self, worker: u8, epoch: impl Fn() -> u32) -> Option<Recording<'_>> {
        if !self.is_wanted() {
            return None;
        }
        self.desks.set_open(worker, Some(epoch()));
        Some(Recording { records: self, worker })
    }

    /// Whether there is a copy: commits whose epoch is raised from here on must leave records.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.feed.is_wanted()
    }

    /// A pass: takes what has been left and applies it. One thread does so. False: a commit of an earlier epoch is still open, so the
    /// caller tries again soon.
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

    /// Hands over what is in the buffers, and closes the epochs that are over. False: a commit of an earlier one is still open.
    fn take_buffers(&self, taken: &mut u32, superblock: Superblock<'_>) -> bool {
        let left = self.desks.buffers().map(|buffer| buffer.epoch_max).max().unwrap_or(0);
        let mut epoch = superblock.epoch();
        if left.max(*taken) >= epoch && epoch < SNAPSHOT_EPOCH_LAST {
            // No snapshot need ever do so, and what is of an epoch that is not over is in no segment.
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
        // A worker may have handed its bytes over itself. Then its buffer has the epoch until the next pass.
        let are_taken = || self.desks.buffers().all(|buffer| buffer.bytes.is_empty() && buffer.epoch_max == 0);
        !self.is_wanted() || taken.is_ok_and(|taken| are_taken() && taken.epoch <= self.feed.closed())
    }
}

impl Recording<'_> {
    /// Leaves the record, once all rows are written and unlocked. Behind a long backlog it waits a little.
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

    /// Leaves none, because it would be too long: all copies lack what it has, and are built again.
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
