//! The global epoch: a word of its keeper's superblock, which is node 0's where rows have no copies.

use crate::TxnError;
use crate::protocol::ident::DATA;
use crate::worker::Core;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::sync::{Counter, counter};
use farhold_fabric::{Endpoint, FabricError, FarPtr, NodeId, RegionMemory};
use farhold_store::Superblock;
use std::sync::Arc;

/// Whose superblock counts.
pub(crate) const KEEPER: NodeId = NodeId(0);

/// The last epoch that a snapshot takes. The rest, 2^24, is for writes and for the time until somebody has seen to it: behind 2^32 epochs would begin
/// anew, and what is new would be old.
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

    /// The word, for those who have no load for it.
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

async fn read_far(endpoint: &Endpoint, keeper: NodeId) -> Result<u32, FabricError> {
    let given = Epoch::counter(keeper).given(&Posted::through(endpoint)).await;
    #[allow(clippy::cast_possible_truncation, reason = "an epoch has 32 bits")]
    given.map(|epoch| epoch as u32)
}

impl Core {
    /// Whose epoch word counts now.
    pub fn keeper(&self) -> NodeId {
        self.node.replication.as_ref().map_or(KEEPER, |replication| replication.view.keeper())
    }

    /// The epoch now, for a commit that holds all its locks.
    ///
    /// # Errors
    /// The keeper is unavailable, or is still getting its rows back.
    pub async fn read_epoch(&self) -> Result<u32, TxnError> {
        let Some(replication) = &self.node.replication else {
            let epoch = match self.epoch.near() {
                Some(epoch) => epoch,
                None => read_far(&self.endpoint, KEEPER).await.map_err(|error| self.far_error(error, KEEPER))?,
            };
            return self.check_epoch(epoch).map(|()| epoch);
        };
        let keeper = replication.view.keeper();
        let epoch = if keeper == self.me {
            self.node.store.superblock().epoch()
        } else {
            read_far(&self.endpoint, keeper).await.map_err(|error| self.far_error(error, keeper))?
        };
        replication.view.saw_epoch(epoch);
        Ok(epoch)
    }

    /// Is it an epoch of this generation? The region of a keeper that starts again begins with the first of all: a commit in that would
    /// count as durable at once, and a snapshot would be empty.
    pub fn check_epoch(&self, epoch: u32) -> Result<(), TxnError> {
        let first = self.node.journaling.as_ref().map_or(0, |journaling| journaling.generation().epoch_first());
        if epoch >= first { Ok(()) } else { Err(TxnError::NodeUnavailable { node: self.keeper(), committed: false }) }
    }

    /// Remembers an epoch, for the keeper after this one.
    pub fn saw_epoch(&self, epoch: u32) {
        if let Some(replication) = &self.node.replication {
            replication.view.saw_epoch(epoch);
        }
    }
}
