//! A worker's stock of slots. Taking and giving back touches nothing shared, except every [`BATCH`] times.

use super::{Run, TableSlab};
use crate::error::StoreError;
use crate::object::size_class::{COUNT, RUN_BYTES, SizeClass};
use crate::object::{Link, Object, ObjectRef, Word, Words, write};
use crate::snapshot::Garbage;
use crate::store::Store;
use farhold_fabric::object::ALIGN;
use farhold_fabric::{Meta, Version};
use farhold_planted::Defect;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How many slots go to or from the shared list at a time. 64 makes the lock one in a few dozen; more would keep memory
/// from others for little.
const BATCH: usize = 64;

/// One worker's free slots, by table and class. It is not shared; when it is dropped, its slots go back.
pub struct AllocCache {
    store: Arc<Store>,
    tables: Vec<Option<Box<TableCache>>>,
    pub(crate) garbage: Garbage,
    /// Room for an index key, and for a row, for the caller that has the cache.
    pub(crate) key: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

struct TableCache {
    slab: Arc<TableSlab>,
    classes: [ClassCache; COUNT],
}

/// Slots of one class: given back ones, and a range never used yet, the end of which may be that of the largest region.
struct ClassCache {
    free: Vec<u32>,
    next: u64,
    end: u64,
}

/// A slot that no other thread knows yet.
pub(crate) struct Fresh<'m> {
    pub object: Object<'m>,
    pub incarnation: u32,
    pub version: Version,
}

impl AllocCache {
    /// An empty cache.
    #[must_use]
    pub fn new(store: &Arc<Store>) -> Self {
        Self {
            store: store.clone(),
            tables: Vec::new(),
            garbage: Garbage::default(),
            key: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// The store it takes from.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// A slot for a payload.
    #[inline]
    pub(crate) fn take<'m>(
        &mut self,
        store: &'m Store,
        slab: &Arc<TableSlab>,
        payload_len: usize,
    ) -> Result<Fresh<'m>, StoreError> {
        debug_assert!(std::ptr::eq(store, Arc::as_ptr(&self.store)), "a cache serves its own store");
        let Some(class) = SizeClass::for_payload(payload_len) else {
            return Err(StoreError::too_large(payload_len));
        };
        let cache = &mut self.table(slab).classes[class.0 as usize];
        let unit = if let Some(unit) = cache.free.pop() {
            unit
        } else {
            if cache.next == cache.end
                && let Err(error) = refill(store, slab, class, cache)
            {
                return self.take_what_was_held_back(store, slab, payload_len, error);
            }
            if let Some(unit) = cache.free.pop() {
                unit
            } else {
                let unit = cache.next as u32;
                cache.next += class.slot_bytes() as u64 / ALIGN;
                unit
            }
        };
        let object = Object::at(store.memory(), u64::from(unit) * ALIGN);
        let meta = object.meta();
        debug_assert_eq!(meta.state(), Meta::FREE, "{meta:?} at {:#x}", object.offset());
        Ok(Fresh { object, incarnation: meta.incarnation(), version: object.version() })
    }

    /// There is no memory. Snapshots may have held some back until just now.
    #[cold]
    fn take_what_was_held_back<'m>(
        &mut self,
        store: &'m Store,
        slab: &Arc<TableSlab>,
        payload_len: usize,
        error: StoreError,
    ) -> Result<Fresh<'m>, StoreError> {
        if !matches!(error, StoreError::OutOfMemory { .. }) || self.collect() == 0 {
            return Err(error);
        }
        // Each time there is less of it.
        self.take(store, slab, payload_len)
    }

    /// Gives a slot back: bumps its incarnation, so that references to it are stale from now on.
    pub(crate) fn give(&mut self, slab: &Arc<TableSlab>, offset: u64) {
        let class = self.retire(offset);
        self.keep(slab, offset, class);
    }

    /// As [`Self::give`], for a caller that does not keep the table alive: false, and nothing is touched, if it is gone.
    pub(crate) fn give_if_there(&mut self, slab: &Arc<TableSlab>, offset: u64) -> bool {
        let class = {
            // Under the lock under which a table is dropped: a moment later the slot may be in the middle of another table's row.
            let _free = slab.free();
            if slab.dropped.load(Acquire) {
                return false;
            }
            farhold_planted::may_stop();
            self.retire(offset)
        };
        self.keep(slab, offset, class);
        true
    }

    fn retire(&self, offset: u64) -> SizeClass {
        let object = Object::at(self.store.memory(), offset);
        debug_assert_ne!(object.meta().state(), Meta::FREE, "freed twice: {:?} at {offset:#x}", object.meta());
        retire(object);
        self.store.pages().table().class_at(offset)
    }

    fn keep(&mut self, slab: &Arc<TableSlab>, offset: u64, class: SizeClass) {
        let cache = &mut self.table(slab).classes[class.0 as usize];
        cache.free.push((offset / ALIGN) as u32);
        // Small classes keep up to two batches here; a slot of a large one is worth the lock.
        let keep = (2 * BATCH).min(RUN_BYTES as usize / class.slot_bytes()).max(2);
        if cache.free.len() > keep {
            let back = cache.free.len() - keep / 2;
            // The oldest are given back: the youngest are still in the CPU's cache.
            slab.free()[class.0 as usize].extend(cache.free.drain(..back));
        }
    }

    #[inline]
    fn table(&mut self, slab: &Arc<TableSlab>) -> &mut TableCache {
        let is_its = |cache: &TableCache| cache.slab.serial == slab.serial || farhold_planted::is(Defect::StaleCache);
        let known = self.tables.get(slab.place).is_some_and(|cache| cache.as_deref().is_some_and(is_its));
        if !known {
            self.open(slab);
        }
        self.tables[slab.place].as_mut().expect("opened above")
    }

    #[cold]
    fn open(&mut self, slab: &Arc<TableSlab>) {
        if self.tables.len() <= slab.place {
            self.tables.resize_with(slab.place + 1, || None);
        }
        let classes = [const { ClassCache { free: Vec::new(), next: 0, end: 0 } }; COUNT];
        let fresh = Box::new(TableCache { slab: slab.clone(), classes });
        if let Some(old) = self.tables[slab.place].replace(fresh) {
            old.hand_back();
        }
    }

    /// Gives all slots it holds to the shared lists. Garbage that a snapshot holds back stays.
    pub fn flush(&mut self) {
        for cache in self.tables.drain(..).flatten() {
            cache.hand_back();
        }
    }
}

impl TableCache {
    fn hand_back(self: Box<Self>) {
        let mut free = self.slab.free();
        if self.slab.dropped.load(Acquire) {
            return;
        }
        for (class, cache) in self.classes.into_iter().enumerate() {
            let step = SizeClass(class as u8).slot_bytes() / ALIGN as usize;
            let unused = (cache.next as usize..cache.end as usize).step_by(step);
            free[class].extend(unused.rev().map(|unit| unit as u32));
            free[class].extend(cache.free);
        }
    }
}

impl Drop for AllocCache {
    fn drop(&mut self) {
        let store = self.store.clone();
        self.collect();
        store.leave_garbage(std::mem::take(&mut self.garbage));
        self.flush();
    }
}

impl fmt::Debug for AllocCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AllocCache({} tables, {:?})", self.tables.iter().flatten().count(), self.garbage)
    }
}

/// Gets a batch of free slots, or a new run of pages.
#[cold]
fn refill(store: &Store, slab: &TableSlab, class: SizeClass, cache: &mut ClassCache) -> Result<(), StoreError> {
    let mut free = slab.free();
    let shared = &mut free[class.0 as usize];
    if shared.is_empty() {
        drop(free);
        farhold_planted::may_stop();
        let pages = slab.next_run_pages(class);
        let take = |pages| store.pages().take_slots(slab, class, pages);
        let full = |result: &Result<Run, StoreError>| matches!(result, Err(StoreError::OutOfMemory { .. }));
        let mut run = take(pages);
        if full(&run) {
            run = take(class.run_pages_min());
        }
        if full(&run) && store.release_empty_pages() > 0 {
            run = take(class.run_pages_min());
        }
        let run = run?;
        cache.next = run.offset() / ALIGN;
        cache.end = cache.next + u64::from(run.slot_count()) * (class.slot_bytes() as u64 / ALIGN);
    } else {
        let rest = shared.len().saturating_sub(BATCH.min(RUN_BYTES as usize / class.slot_bytes()));
        cache.free.extend(shared.drain(rest..));
    }
    Ok(())
}

/// Makes a slot free: the next incarnation, a new version, no older copy. The lock is left alone: a thread with a stale reference
/// may hold it for a moment. The slot is free before it is marked as being written, because an absent row with that mark is an
/// insert that has not ended, and a process may end here.
pub(crate) fn retire(object: Object<'_>) {
    let incarnation = (object.meta().incarnation() + 1) & ObjectRef::INCARNATION_BITS;
    let free = Meta::new(incarnation, Meta::FREE, 0, 0);
    let version = Version(object.version().number() + Version::ONE).with(Version::ABSENT);
    object.store(Word::Meta, free.0, Relaxed);
    object.fence(Release);
    write(&object, free, version, |object| object.set_prev(Link::NONE));
}
