//! The errors of a join, one kind for each reaction of a caller.

use std::io;

use arrow::error::ArrowError;

/// Why a join did not finish. For every kind, its memory is back in the pool and its spill files are deleted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The two inputs, or the description of the join, do not fit together.
    #[error("invalid join: {0}")]
    Invalid(String),
    /// The key columns of one position have different types.
    #[error("join key {position} has type {build} on the build side and {probe} on the probe side")]
    KeyTypes {
        /// Position in the list of keys, from 0.
        position: usize,
        /// Type on the build side.
        build: String,
        /// Type on the probe side.
        probe: String,
    },
    /// Keys of this type cannot be joined.
    #[error("columns of type {0} cannot be join keys")]
    KeyUnsupported(String),
    /// The pool has less free memory than a join needs at least.
    #[error("a join needs at least {needed_bytes} bytes of memory; {free_bytes} are free")]
    BudgetTooSmall {
        /// Bytes that were free.
        free_bytes: u64,
        /// Bytes that a join needs at least.
        needed_bytes: u64,
    },
    /// An algorithm needs more memory than its caller can give.
    #[error("no memory for {wanted_bytes} bytes")]
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: u64,
    },
    /// The spill directory cannot be used: it does not exist, is not writable, or its disk is full.
    #[error("the join cannot spill: {0}")]
    Spill(#[source] io::Error),
    /// Arrow could not compute a batch.
    #[error("the join cannot compute a batch: {0}")]
    Arrow(#[from] ArrowError),
    /// The residual condition failed.
    #[error("the join's residual condition failed: {0}")]
    Residual(#[source] ArrowError),
    /// The cancel token was raised.
    #[error("the join was cancelled")]
    Cancelled,
    /// A worker thread panicked; its message.
    #[error("a worker of the join panicked: {0}")]
    WorkerPanicked(String),
    /// The algorithm cannot run on this machine, and why. No other algorithm runs in its place.
    #[error("the join algorithm is not available here: {0}")]
    Unavailable(String),
}
