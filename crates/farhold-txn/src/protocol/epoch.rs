//! The global epoch: a word of its keeper's superblock, which is node 0's where rows have no copies.

use crate::base::epoch::{Epoch, KEEPER};
use crate::base::error::TxnError;
use crate::protocol::core::Core;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::{Endpoint, FabricError, NodeId};

async fn read_far(endpoint: &Endpoint, keeper: NodeId) -> Result<u32, FabricError> {
    let given = Epoch::counter(keeper).given(&Posted::through(endpoint)).await;
    #[allow(clippy::cast_possible_truncation, reason = "an epoch has 32 bits")]
    given.map(|epoch| epoch as u32)
}

impl Core {
    /// The epoch keeper at this moment.
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
