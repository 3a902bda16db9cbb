//! The word of the global epoch, and its limits.

use crate::base::error::TxnError;
use crate::base::ident::DATA;
use farhold_fabric::sync::{Counter, counter};
use farhold_fabric::{Endpoint, FarPtr, NodeId, RegionMemory};
use farhold_store::Superblock;
use std::sync::Arc;

/// Whose superblock counts.
pub(crate) const KEEPER: NodeId = NodeId(0);

/// The last epoch that a snapshot takes. The rest, 2^24, is for writes and for the time until an operator has acted:
/// beyond 2^32 epochs would begin anew, and new versions would count as old.
pub(crate) const SNAPSHOT_EPOCH_LAST: u32 = u32::MAX - (1 << 24);
/// The last epoch that a journal begins.
pub(crate) const EPOCH_LAST: u32 = u32::MAX - (1 << 10);

/// How this thread reads the epoch.
pub(crate) enum Epoch {
    /// By a load.
    Mapped(Arc<RegionMemory>),
    /// By an instruction.
    Far,
}

impl Epoch {
    /// Finds out. The keeper's region may not be there yet: then the instruction will say so each time.
    pub fn new(endpoint: &Endpoint) -> Self {
        match endpoint.mapped(KEEPER, DATA) {
            Some(memory) if Superblock::of(&memory).is_ok() => Self::Mapped(memory),
            _ => Self::Far,
        }
    }

    /// The epoch, if a load can tell.
    #[inline]
    pub fn near(&self) -> Option<u32> {
        match self {
            #[allow(clippy::cast_possible_truncation, reason = "an epoch has 32 bits")]
            Self::Mapped(memory) => {
                memory.word(Superblock::EPOCH).ok().map(|word| word.load(std::sync::atomic::Ordering::SeqCst) as u32)
            }
            Self::Far => None,
        }
    }

    /// The word, for an endpoint that has no instruction to load it.
    pub fn counter(keeper: NodeId) -> Counter {
        Counter::new(FarPtr::new(keeper, DATA, Superblock::EPOCH), counter::Form::Single)
    }
}

/// That there is an epoch for one more snapshot.
///
/// # Errors
/// [`TxnError::TooMany`].
pub(crate) fn check_snapshot_epoch(epoch: u32) -> Result<(), TxnError> {
    if epoch <= SNAPSHOT_EPOCH_LAST {
        return Ok(());
    }
    Err(TxnError::TooMany { what: "snapshots in the life of this database", limit: SNAPSHOT_EPOCH_LAST as usize })
}
