//! The writer's side: before a state is overwritten, it is copied if a snapshot may need it.

use crate::error::StoreError;
use crate::object::{Link, Object, ObjectRef, Words, write};
use crate::slab::AllocCache;
use crate::table::TableStore;
use farhold_fabric::{Meta, Version};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

impl TableStore {
    /// Saves the state of a row for the open snapshots, before a commit at `epoch` overwrites or deletes it. Does nothing if no
    /// open snapshot may read this state, or the row is not live.
    ///
    /// The caller holds the row's lock and has read `epoch` while it held all its locks. It calls this for all its rows before it
    /// writes the first, because the call can fail; copies that were saved then are freed in time.
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

    /// As [`Self::save_undo`], for a commit of another node. Its message may be late, and its owner may have given up and
    /// unlocked the row, or may do so meanwhile. Then another writer has the row, and a copy made meanwhile is no state of the
    /// row: none stays.
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

    /// Whether a snapshot may read this state after a commit at `epoch` has overwritten it.
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
        let undo = Object::at(self.store().memory(), offset);
        self.link_undo(object, undo, version, owner, &mut farhold_planted::may_stop);
        alloc.give_after(self.slab(), offset, epoch);
        Ok(())
    }

    /// Links a copy of the state `version`, if the row still has that state for its owner. `between` is called where other
    /// threads may interfere.
    ///
    /// The link goes to the object's place, whatever is there by then. While a remote owner may have given up, that must be the
    /// row: a reader would take the copy for an older state of the slot's new content. So the slot stays the row's until the
    /// copier has released it.
    fn link_undo(
        &self,
        object: Object<'_>,
        undo: Object<'_>,
        version: Version,
        owner: Option<u64>,
        between: &mut dyn FnMut(),
    ) {
        let _kept = owner.map(|_| self.store().copied().keep(object.offset()));
        let is_held = || {
            fence(Ordering::Acquire);
            owner.is_none_or(|owner| object.version() == version && object.lock_word() == owner)
        };
        let link = Link::new(version.epoch(), undo.offset());
        while is_held() {
            let prev = object.prev();
            undo.set_prev(prev);
            between();
            // Changed meanwhile, by a late copier for an owner that held the lock before.
            if object.swap_prev(prev, link) {
                between();
                if !is_held() {
                    // This copier is late itself. The row has the link from before: a copier that has saved a state of the row
                    // since would have changed that link, and readers that need this state would have had it saved. Another
                    // copier may have linked a copy of its own before this one; that copy then stays.
                    object.swap_prev(link, prev);
                }
                break;
            }
        }
    }
}

/// Slots with rows that are just being copied for owners on other nodes, which may have given the rows up meanwhile. These slots
/// are not freed, although their rows may be deleted.
///
/// A copier keeps the slot first, and looks at the row then. A worker that frees the slot has deleted the row first, and looks
/// here then. So either finds what the other has done.
#[derive(Debug, Default)]
pub(crate) struct Copied {
    count: AtomicUsize,
    offsets: Mutex<Vec<u64>>,
}

impl Copied {
    fn keep(&self, offset: u64) -> Kept<'_> {
        self.offsets().push(offset);
        self.count.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Kept { of: self, offset }
    }

    /// Whether it is being copied. The caller has marked its row as deleted before.
    pub fn has(&self, offset: u64) -> bool {
        fence(Ordering::SeqCst);
        self.count.load(Ordering::SeqCst) > 0 && self.offsets().contains(&offset)
    }

    fn offsets(&self) -> MutexGuard<'_, Vec<u64>> {
        self.offsets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Kept<'c> {
    of: &'c Copied,
    offset: u64,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        let mut offsets = self.of.offsets();
        if let Some(at) = offsets.iter().position(|offset| *offset == self.offset) {
            offsets.swap_remove(at);
        }
        self.of.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::read_at;
    use crate::{Owner, Reserve, Snapshot, Store, TableDef, TableId};
    use farhold_btree::KeyShape;
    use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};
    use std::sync::Arc;

    const ME: Owner = Owner::new(1, NodeId(0), 0, 1);

    fn empty_table() -> TableStore {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
        TableStore::create(&store, def).expect("a table")
    }

    /// Reserves and commits a row.
    fn insert(table: &TableStore, alloc: &mut AllocCache, key: u8) -> ObjectRef {
        let reserved = table.reserve(&[key; 8], &[key; 8], alloc, &|_| false, &mut |_| ());
        let Ok(Reserve::Reserved { reference, .. }) = reserved else { panic!("{reserved:?}") };
        let object = table.store().object(reference);
        let version = object.lock(reference.incarnation(), ME).expect("free");
        object.restamp(version.next(table.store().superblock().epoch()));
        object.unlock();
        reference
    }

    /// Deletes a row as a transaction of this node does.
    fn delete(table: &TableStore, alloc: &mut AllocCache, reference: ObjectRef) {
        let object = table.store().object(reference);
        let version = object.lock(reference.incarnation(), ME).expect("free");
        let epoch = table.store().superblock().epoch();
        table.save_undo(reference, epoch, alloc).expect("room");
        object.restamp(version.next(epoch).with(Version::ABSENT));
        object.unlock();
        table.remove(reference, epoch, alloc);
    }

    /// The snapshot's state of a row that has changed since is read, whichever owner has the row now. The row's present state,
    /// if it is the snapshot's, is not read while the row is locked: its owner may be about to commit in the snapshot's epoch.
    #[test]
    fn an_older_state_is_read_of_a_locked_row() {
        let table = empty_table();
        let store = table.store();
        let mut alloc = store.alloc_cache();
        let row = insert(&table, &mut alloc, 1);
        let snapshot = Snapshot::open(store).expect("a slot");
        let (object, mut room) = (store.object(row), Vec::new());
        let version = object.lock(row.incarnation(), ME).expect("free");
        let mut look = || read_at(object, snapshot.epoch(), usize::MAX, &mut room).map(|seen| seen.map_err(|_| ()));
        assert_eq!(look(), Ok(Err(())), "it may change in the snapshot's epoch");
        let epoch = store.superblock().epoch();
        table.save_undo(row, epoch, &mut alloc).expect("room");
        assert_eq!(look(), Ok(Err(())));
        object.restamp(version.next(epoch));
        let seen = look();
        assert!(matches!(seen, Ok(Ok(Some(_)))), "{seen:?}");
        object.unlock();
        assert_eq!(look(), seen);
    }

    /// A thread that copies a row for a commit of another node is delayed just before it links the copy. Meanwhile that commit
    /// gives up, the row is deleted, a snapshot is taken, and another row is inserted. The snapshot has neither row, also when
    /// the copy is linked, or the link is taken back.
    #[test]
    fn a_late_copy_is_not_linked_to_another_row() {
        let table = empty_table();
        let store = table.store();
        let mut alloc = store.alloc_cache();
        let old = insert(&table, &mut alloc, 1);
        let object = store.object(old);
        let elsewhere = Owner::new(1, NodeId(1), 0, 1);
        let version = object.lock(old.incarnation(), elsewhere).expect("free");
        let fresh = alloc.take(store, table.slab(), 16).expect("room");
        let meta = Meta::new(fresh.incarnation, Meta::UNDO, 8, 16);
        write(&fresh.object, meta, Version(fresh.version.number() + Version::ONE).with(Version::ABSENT), |undo| {
            undo.copy_in(0, &[1; 16]);
        });
        let (undo, mut looks, mut snapshot) = (fresh.object, 0, None);
        table.link_undo(object, undo, version, Some(elsewhere.word()), &mut || {
            looks += 1;
            if looks == 1 {
                object.unlock();
                delete(&table, &mut alloc, old);
                snapshot = Some(Snapshot::open(store).expect("a slot"));
                alloc.collect();
                insert(&table, &mut alloc, 2);
            }
            let epoch = snapshot.as_ref().expect("open").epoch();
            for offset in table.pages().iter().flat_map(crate::slab::Run::slots) {
                let seen = read_at(Object::at(store.memory(), offset), epoch, usize::MAX, &mut Vec::new());
                assert_eq!(seen, Ok(Ok(None)), "look {looks}");
            }
        });
        assert!(looks > 1 && undo.meta().state() == Meta::UNDO);
        alloc.give_after(table.slab(), undo.offset(), 1);
        drop(snapshot);
        alloc.collect();
        assert_eq!(
            (alloc.held_back(), table.statistics().held_slots),
            (0, 0),
            "the slot is free when the copier has let it go"
        );
    }
}
