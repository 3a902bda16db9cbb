//! The writer's side: what is about to be overwritten is copied first, if a snapshot may want it.

use crate::error::StoreError;
use crate::object::{Link, Object, ObjectRef, Words, write};
use crate::slab::AllocCache;
use crate::table::TableStore;
use farhold_fabric::{Meta, Version};
use std::sync::atomic::{Ordering, fence};

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
        if !self.is_read(version, epoch) {
            return Ok(());
        }
        self.copy_to_undo(object, version, epoch, None, alloc)
    }

    /// As [`Self::save_undo`], for a commit of another node. Its message may be late, and its owner may have given up and unlocked the row, or
    /// do so meanwhile. Then another writer has the row, and a copy made beside it is no state of the row: none stays.
    ///
    /// # Errors
    /// As there.
    pub fn save_undo_for(
        &self,
        owner: u64,
        reference: ObjectRef,
        epoch: u32,
        alloc: &mut AllocCache,
    ) -> Result<(), StoreError> {
        let object = self.store().object(reference);
        let version = object.version();
        if object.lock_word() != owner || version.is_writing() || !self.is_read(version, epoch) {
            return Ok(());
        }
        self.copy_to_undo(object, version, epoch, Some(owner), alloc)
    }

    /// May a snapshot read this state, when a commit at `epoch` has overwritten it?
    #[inline]
    fn is_read(&self, version: Version, epoch: u32) -> bool {
        version.epoch() < epoch
            && !version.is_absent()
            && self.store().superblock().newest_snapshot().is_some_and(|newest| newest >= version.epoch())
    }

    #[cold]
    fn copy_to_undo(
        &self,
        object: Object<'_>,
        version: Version,
        epoch: u32,
        owner: Option<u64>,
        alloc: &mut AllocCache,
    ) -> Result<(), StoreError> {
        let is_held = || {
            fence(Ordering::Acquire);
            owner.is_none_or(|owner| object.version() == version && object.lock_word() == owner)
        };
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
            });
            fresh.object.offset()
        });
        alloc.payload = payload;
        let offset = saved?;
        let (undo, link) = (Object::at(self.store().memory(), offset), Link::new(version.epoch(), offset));
        while is_held() {
            let prev = object.prev();
            undo.set_prev(prev);
            crate::planted::may_stop();
            // Changed meanwhile: by one who is late for an owner that held the lock before.
            if object.swap_prev(prev, link) {
                if !is_held() {
                    // Late itself. Whoever holds the row by now may have linked a copy of its own before this one, which then stays.
                    object.swap_prev(link, prev);
                }
                break;
            }
        }
        alloc.give_after(self.slab(), offset, epoch);
        Ok(())
    }
}
