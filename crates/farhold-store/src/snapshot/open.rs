//! Taking and closing a snapshot of one node.

use crate::error::StoreError;
use crate::store::Store;
use crate::superblock::SlotId;
use std::sync::Arc;

/// An open snapshot of one node that keeps its own epoch (the epoch keeper, or a database of one node). Closed on drop.
///
/// Over several nodes the same steps are taken on each: [announce](crate::Superblock::announce) everywhere, then [raise the
/// epoch](crate::Superblock::advance_epoch) of the epoch keeper, then [confirm](crate::Superblock::confirm) everywhere.
#[derive(Debug)]
pub struct Snapshot {
    store: Arc<Store>,
    slot: SlotId,
    epoch: u32,
}

impl Snapshot {
    /// Takes a snapshot.
    ///
    /// # Errors
    /// [`StoreError::TooManySnapshots`].
    pub fn open(store: &Arc<Store>) -> Result<Self, StoreError> {
        let superblock = store.superblock();
        let slot = superblock.announce(store.holder())?;
        let epoch = superblock.advance_epoch();
        let is_kept = superblock.confirm(slot, store.holder(), epoch);
        debug_assert!(is_kept, "only the end of this process releases its slots");
        Ok(Self { store: store.clone(), slot, epoch })
    }

    /// Its epoch: it sees all commits of this epoch and before.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.store.superblock().release(self.slot, self.store.holder());
    }
}
