//! Commits that survive a power cut: their records go into a journal before their callers are told.
//!
//! ```text
//!   a commit ── commit/durable.rs: record ──► buffer of its worker ── journaling.rs: a step of the journal ──► files
//!      └── waits until its epoch is durable on all nodes ◄────────────────────┘
//!   journal_threads.rs (api)   the thread that does the steps, and the one that makes checkpoints
//!   members.rs                 the nodes whose journals count, while the cluster changes
//!   checkpoints.rs             rows as they are at an epoch, so that older journals go
//!   follow.rs                  the other nodes' journals, for the column copies
//!   state.rs                   how far this journal and the others are; why it is given up
//!   open.rs                    a start: what of the files counts, and the region made anew from it
//! ```
//!
//! The order of a commit: room in the journal ─► *open* ─► epoch, validation, commit point ─► record into the buffer ─►
//! rows, near and far ─► *closed* ─► wait. A step raises the epoch, waits until no earlier commit is open, takes the
//! buffers and writes them. So when it says that an epoch is closed, all records up to it are there and all their rows
//! are in memory. Rows are visible before they are durable. A transaction that has read them has the same epoch or a
//! later one, and its caller is not told before that epoch is durable either.
//!
//! Design and proof sketch: `docs/design/0005-durability.md`.

pub(crate) mod checkpoints;
pub(crate) mod follow;
pub(crate) mod journaling;
pub(crate) mod members;
pub(crate) mod open;
mod segments;
mod state;
mod watch;

#[cfg(test)]
mod tests;

use farhold_store::durable::Progress;
use farhold_store::durable::files::Directory;
use std::sync::Arc;

/// Where a node's journal and checkpoints go, and how. A node's region keeps the size of its first start.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// The directory: the same for all nodes of the cluster.
    pub directory: Arc<dyn Directory>,
    /// Bytes of a segment, at least 64 KiB. A transaction writes at most a quarter of it.
    pub segment_bytes: u64,
    /// Bytes of journal after which a checkpoint is made: what a restart reads beside the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Shortest time between two steps of the journal, each of which uses one of the 2^32 epochs. At 2 ms a step without a
    /// pause they last for 99 days.
    pub step_ns: u64,
    /// Threads of a restart.
    pub threads: usize,
    /// How far a restart has come, for another thread to look at.
    pub progress: Arc<Progress>,
}

impl JournalConfig {
    /// In this directory: segments of 32 MiB, a checkpoint each 256 MiB, a step each 2 ms at most.
    #[must_use]
    pub fn new(directory: Arc<dyn Directory>) -> Self {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            directory,
            segment_bytes: 32 << 20,
            checkpoint_bytes: 256 << 20,
            step_ns: 2_000_000,
            threads,
            progress: Arc::default(),
        }
    }
}
