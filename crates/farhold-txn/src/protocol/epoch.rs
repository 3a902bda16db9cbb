//! The global epoch: a word of node 0's superblock.

use crate::TxnError;
use crate::protocol::ident::DATA;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::sync::{Counter, counter};
use farhold_fabric::{Endpoint, FarPtr, NodeId, RegionMemory};
use farhold_store::Superblock;
use std::sync::Arc;

/// Whose superblock counts.
pub(crate) const KEEPER: NodeId = NodeId(0);

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
    pub fn counter() -> Counter {
        Counter::new(FarPtr::new(KEEPER, DATA, Superblock::EPOCH), counter::Form::Single)
    }

    /// The epoch, wherever it is.
    ///
    /// # Errors
    /// The keeper is unavailable.
    pub async fn read(&self, endpoint: &Endpoint) -> Result<u32, TxnError> {
        if let Some(epoch) = self.near() {
            return Ok(epoch);
        }
        let given = Self::counter().given(&Posted::through(endpoint)).await;
        #[allow(clippy::cast_possible_truncation, reason = "an epoch has 32 bits")]
        given.map(|epoch| epoch as u32).map_err(|error| TxnError::far(error, KEEPER))
    }
}
