//! The writer's side: what is about to be overwritten is copied first, if a snapshot may want it.

use crate::error::StoreError;
use crate::object::{Link, Object, ObjectRef, Words, write};
use crate::slab::AllocCache;
use crate::table::TableStore;
use farhold_fabric::{Meta, Version};

impl TableStore {
    /// Saves the state of a row for the open snapshots, before a commit at `epoch` overwrites or deletes it. Does nothing
    /// if no snapshot is open that may read this state, or the row is not live.
    ///
    /// The caller holds the row's lock and has read `epoch` while it held all its locks. It calls this for all its rows
    /// before it writes the first, because it can fail; what was saved then is freed in time.
    ///
    /// # Errors
    /// [`StoreError::OutOfMemory`].
    #[inline]
    pub fn save_undo(&self, reference: ObjectRef, epoch: u32, alloc: &mut AllocCache) -> Result<(), StoreError> {
        let object = self.store().object(reference);
        let version = object.version();
        if version.epoch() >= epoch || version.is_absent() {
            return Ok(());
        }
        let newest = self.store().superblock().newest_snapshot();
        if newest.is_none_or(|newest| newest < version.epoch()) {
            return Ok(());
        }
        self.copy_to_undo(object, version, epoch, alloc)
    }

    #[cold]
    fn copy_to_undo(
        &self,
        object: Object<'_>,
        version: Version,
        epoch: u32,
        alloc: &mut AllocCache,
    ) -> Result<(), StoreError> {
        let meta = object.meta();
        let mut payload = std::mem::take(&mut alloc.payload);
        payload.resize(payload.len().max(meta.payload_len()), 0);
        object.copy_out(&mut payload[..meta.payload_len()]);
        let fresh = alloc.take(self.store(), self.slab(), meta.payload_len());
        let saved = fresh.map(|fresh| {
            let undo_meta = Meta::new(fresh.incarnation, Meta::UNDO, meta.key_len(), meta.payload_len());
            let undo_version = Version(fresh.version.number() + Version::ONE).with(Version::ABSENT);
            write(&fresh.object, undo_meta, undo_version, |undo| {
                undo.copy_in(0, &payload[..meta.payload_len()]);
                undo.set_prev(object.prev());
            });
            fresh.object.offset()
        });
        alloc.payload = payload;
        let offset = saved?;
        object.set_prev(Link::new(version.epoch(), offset));
        alloc.give_after(self.slab(), offset, epoch);
        Ok(())
    }
}
