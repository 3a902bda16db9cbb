//! The errors of a join, one kind for each reaction of a caller.

use std::{error, fmt, io};

use arrow::error::ArrowError;

/// Why a join did not finish. For every kind, its memory is back in the pool and its spill files are deleted.
#[derive(Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The two inputs, or the description of the join, do not fit together.
    Invalid(String),
    /// The key columns of one position have different types.
    KeyTypes {
        /// Position in the list of keys, from 0.
        position: usize,
        /// Type on the build side.
        build: String,
        /// Type on the probe side.
        probe: String,
    },
    /// Keys of this type cannot be joined.
    KeyUnsupported(String),
    /// The pool has less free memory than a join needs at least.
    BudgetTooSmall {
        /// Bytes that were free.
        free_bytes: u64,
        /// Bytes that a join needs at least.
        needed_bytes: u64,
    },
    /// An algorithm needs more memory than its caller can give.
    OutOfMemory {
        /// Bytes asked for.
        wanted_bytes: u64,
    },
    /// The spill directory cannot be used: it does not exist, is not writable, or its disk is full.
    Spill(io::Error),
    /// Arrow could not compute a batch.
    Arrow(ArrowError),
    /// The residual condition failed.
    Residual(ArrowError),
    /// The cancel token was raised.
    Cancelled,
    /// A worker thread panicked; its message.
    WorkerPanicked(String),
    /// The algorithm cannot run on this machine, and why. No other algorithm runs in its place.
    Unavailable(String),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "invalid join: {why}"),
            Self::KeyTypes { position, build, probe } => {
                write!(f, "join key {position} has type {build} on the build side and {probe} on the probe side")
            }
            Self::KeyUnsupported(kind) => write!(f, "columns of type {kind} cannot be join keys"),
            Self::BudgetTooSmall { free_bytes, needed_bytes } => {
                write!(f, "a join needs at least {needed_bytes} bytes of memory; {free_bytes} are free")
            }
            Self::OutOfMemory { wanted_bytes } => write!(f, "no memory for {wanted_bytes} bytes"),
            Self::Spill(error) => write!(f, "the join cannot spill: {error}"),
            Self::Arrow(error) => write!(f, "the join cannot compute a batch: {error}"),
            Self::Residual(error) => write!(f, "the join's residual condition failed: {error}"),
            Self::Cancelled => f.write_str("the join was cancelled"),
            Self::WorkerPanicked(message) => write!(f, "a worker of the join panicked: {message}"),
            Self::Unavailable(why) => write!(f, "the join algorithm is not available here: {why}"),
        }
    }
}

impl error::Error for JoinError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Spill(error) => Some(error),
            Self::Arrow(error) | Self::Residual(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ArrowError> for JoinError {
    fn from(error: ArrowError) -> Self {
        Self::Arrow(error)
    }
}
