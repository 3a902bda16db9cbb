//! Where each worker leaves the records of its commits, and says which epochs it may still commit in.
//!
//! ```text
//!   a worker                                              the thread that takes records
//!   open (no commit of mine is of an earlier epoch)
//!     ─► epoch ─► rows and record ─► closed               raise the epoch to E ─► is a desk open before E? ─► take all buffers
//! ```
//!
//! Once no desk is open before E, the buffers have had all records of epochs below E: a commit that opens later reads E at least.

use crate::base::slots::WORKERS_MAX;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No commit of this worker is open.
const IDLE: u64 = u64::MAX;

/// One for each worker of a node.
pub(crate) struct Desks(Box<[Desk]>);

/// One worker's, on lines of its own.
#[repr(align(128))]
struct Desk {
    /// No open commit of this worker has an epoch below this.
    open: AtomicU64,
    buffer: Mutex<Buffer>,
}

/// Records, one behind the other.
#[derive(Default)]
pub(crate) struct Buffer {
    pub bytes: Vec<u8>,
    pub epoch_max: u32,
}

impl Desks {
    pub fn new() -> Self {
        let desk = |_| Desk { open: AtomicU64::new(IDLE), buffer: Mutex::default() };
        Self((0..WORKERS_MAX).map(desk).collect())
    }

    /// Notes a bound of the epochs of a worker's open commits; `None`: it has none.
    #[inline]
    pub fn set_open(&self, worker: u8, bound: Option<u32>) {
        self.0[usize::from(worker)].open.store(bound.map_or(IDLE, u64::from), SeqCst);
    }

    /// Whether a commit is open that may be of an epoch below this.
    pub fn are_open_before(&self, epoch: u64) -> bool {
        self.0.iter().any(|desk| desk.open.load(SeqCst) < epoch)
    }

    /// Leaves a record in a worker's buffer, which is returned.
    #[inline]
    pub fn append(&self, worker: u8, behind: &[u8], mark: u64, epoch: u32) -> MutexGuard<'_, Buffer> {
        let mut buffer = held(&self.0[usize::from(worker)].buffer);
        buffer.bytes.extend_from_slice(&mark.to_le_bytes());
        buffer.bytes.extend_from_slice(behind);
        buffer.epoch_max = buffer.epoch_max.max(epoch);
        buffer
    }

    /// All buffers, one after the other.
    pub fn buffers(&self) -> impl Iterator<Item = MutexGuard<'_, Buffer>> {
        self.0.iter().map(|desk| held(&desk.buffer))
    }

    /// Whether there is no record in any buffer.
    pub fn are_empty(&self) -> bool {
        self.buffers().all(|buffer| buffer.bytes.is_empty())
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
