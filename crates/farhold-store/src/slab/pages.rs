//! Pages: the free ones, and the page table in the region that describes the others.
//!
//! ```text
//!  page table entry, 32 bytes:  kind word     table:32 | run:16 (pages of the run) | class:8 | kind:8
//!                               versions      no object may start below this version here
//!                               incarnations  nor below this incarnation
//!                               (spare)
//! ```
//! Every page of a run carries the run's kind word, with `HEAD` set on its first. The page table survives a restart; the free
//! list is then what it calls free. Versions and incarnations outlive a page's use, so "same version means same content" holds
//! over all uses of an address.
//!
//! A page changes the size class of its slots only when no transaction of any node can have a reference to one of them: after its
//! table was dropped, and all transactions from before have ended. A reference to a free slot may be in use at any time, also in
//! a `compare_swap` of another node under way, so the word that it takes for a lock must stay a lock. Therefore runs that a
//! living table gives back, to make room, *rest*: another table may take them, for slots of the same class, at the same places.
//!
//! A run that leaves its table first raises the floors of its pages, and each of its slots to them. So a state of one of its
//! slots at or below the floor of its page is from before, wherever it is kept, and a run that is in no table has its floors.

use crate::error::{StoreError, TableId};
use crate::object::size_class::{COUNT, PAGE_BYTES, SizeClass};
use crate::object::{Object, ObjectRef, Owner, Word, Words};
use crate::slab::TableSlab;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock, page_table_pages};
use farhold_fabric::{FabricError, Meta, RegionMemory, Version};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of an entry of the page table.
pub(crate) const ENTRY_BYTES: u64 = 32;

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageKind {
    /// Nothing.
    Free = 0,
    /// Slots of one class of a table.
    Slots = 1,
    /// Part of a hash index.
    Hash = 2,
}

/// The first page that can hold data, in a region of `pages` pages.
fn first_page(pages: u64) -> u32 {
    (SUPERBLOCK_BYTES / PAGE_BYTES + page_table_pages(pages)) as u32
}

/// Pages of the longest run of a hash index.
pub(crate) const HASH_RUN_PAGES_MAX: u32 = 1024;

/// Bit of the kind byte: the first page of its run.
const HEAD: u64 = 0x80;
/// One in this many pages is kept for the next start, ...
const PAGES_PER_SPARE: u32 = 256;
/// ... and at least this many.
const SPARE_MIN: u32 = 8;

/// A run of pages, as the page table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the first page.
    pub page: u32,
    /// How many.
    pub pages: u32,
    /// The table that it belongs to.
    pub table: TableId,
    /// Class of the slots, for [`PageKind::Slots`].
    pub class: SizeClass,
    /// What for.
    pub kind: PageKind,
}

impl Run {
    /// Bytes from the start of the region.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> u64 {
        u64::from(self.page) * PAGE_BYTES
    }

    /// How many slots it has.
    #[must_use]
    #[inline]
    pub fn slot_count(&self) -> u32 {
        self.class.slots(self.pages)
    }

    /// Offsets of the slots.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = u64> + use<> {
        let (start, step) = (self.offset(), self.class.slot_bytes() as u64);
        (0..u64::from(self.slot_count())).map(move |slot| start + slot * step)
    }

    fn word(&self, head: bool) -> u64 {
        u64::from(self.table.0) << 32
            | u64::from(self.pages) << 16
            | u64::from(self.class.0) << 8
            | self.kind as u64
            | if head { HEAD } else { 0 }
    }
}

/// Reads the page table of a mapped region, own or far.
#[derive(Clone, Copy, Debug)]
pub struct PageTable<'m> {
    memory: &'m RegionMemory,
    at: u64,
    count: u32,
    first: u32,
}

impl<'m> PageTable<'m> {
    /// The page table of a region with a valid superblock.
    ///
    /// # Errors
    /// Those of [`Superblock::of`].
    pub fn of(memory: &'m RegionMemory) -> Result<Self, StoreError> {
        let superblock = Superblock::of(memory)?;
        let (at, pages) = (superblock.page_table(), superblock.pages());
        let first = first_page(pages);
        Ok(Self { memory, at, count: pages as u32, first })
    }

    /// All pages, those of the superblock and the page table included.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The first page that can hold data.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.first
    }

    fn word(&self, page: u32, word: u64) -> &'m AtomicU64 {
        assert!(page < self.count);
        // SAFETY: `Superblock::of` has checked that the whole page table lies inside the region; entries are aligned.
        unsafe { self.memory.word_unchecked(self.at + u64::from(page) * ENTRY_BYTES + word * 8) }
    }

    /// The run that starts at `page`, `None` if the page is free or inside a run.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the entry is impossible.
    pub fn run_at(&self, page: u32) -> Result<Option<Run>, StoreError> {
        let word = self.word(page, 0).load(SeqCst);
        if word as u8 == 0 || word & HEAD == 0 {
            return Ok(None);
        }
        let corrupt = |reason| StoreError::Corrupt { offset: self.at + u64::from(page) * ENTRY_BYTES, reason };
        let kind = match word & 0x7f {
            1 => PageKind::Slots,
            2 => PageKind::Hash,
            _ => return Err(corrupt("the page table names a kind of page that does not exist")),
        };
        let (class, pages) = (SizeClass((word >> 8) as u8), (word >> 16) as u16);
        let run = Run { page, pages: u32::from(pages), table: TableId((word >> 32) as u32), class, kind };
        if class.0 as usize >= COUNT
            || (kind == PageKind::Slots && ![class.run_pages_min(), class.run_pages()].contains(&run.pages))
        {
            return Err(corrupt("the page table names a size class that does not exist"));
        }
        if run.pages == 0 || run.pages > HASH_RUN_PAGES_MAX || page < self.first || run.pages > self.count - page {
            return Err(corrupt("the page table names a run that leaves the region"));
        }
        Ok(Some(run))
    }

    /// All runs in use, in order.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub fn runs(&self) -> Result<Vec<Run>, StoreError> {
        let (mut runs, mut page) = (Vec::new(), self.first);
        while page < self.count {
            let run = self.run_at(page)?;
            page += run.map_or(1, |run| run.pages);
            runs.extend(run);
        }
        Ok(runs)
    }

    /// The runs of a table's rows, for a scan of a region of any node.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`].
    pub fn runs_of(&self, table: TableId) -> Result<Vec<Run>, StoreError> {
        let mut runs = self.runs()?;
        runs.retain(|run| run.table == table && run.kind == PageKind::Slots);
        Ok(runs)
    }

    /// The class of the slot at an offset.
    #[must_use]
    #[inline(always)]
    pub fn class_at(&self, offset: u64) -> SizeClass {
        SizeClass((self.word((offset / PAGE_BYTES) as u32, 0).load(Relaxed) >> 8) as u8)
    }
}

/// A run of slots that was entered in the page table or removed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEvent {
    /// Counts the events of a start of the node.
    pub sequence: u64,
    /// The epoch at that moment.
    pub epoch: u32,
    /// Taken for the table; else it was given back.
    pub taken: bool,
    /// The run.
    pub run: Run,
}

/// Where the epoch is to be read.
type EpochSource = Box<dyn Fn() -> u32 + Send + Sync>;

/// Changes of the page table that a journal has not taken yet.
#[derive(Default)]
struct PageEvents {
    epoch: Option<EpochSource>,
    sequence: u64,
    events: Vec<PageEvent>,
}

impl std::fmt::Debug for PageEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageEvents").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl PageEvents {
    fn add(&mut self, run: &Run, taken: bool) {
        let Some(epoch) = self.epoch.as_ref().filter(|_| run.kind == PageKind::Slots) else { return };
        self.sequence += 1;
        self.events.push(PageEvent { sequence: self.sequence, epoch: epoch(), taken, run: *run });
    }
}

/// Gives pages out and takes them back. All threads share one lock: a run is 64 KiB if a table has many, so runs are taken
/// rarely.
#[derive(Debug)]
pub(crate) struct Pages {
    memory: Arc<RegionMemory>,
    free: Mutex<FreeRuns>,
    /// Runs of free slots that no table has.
    resting: Mutex<Vec<Run>>,
    /// Held while the page table changes.
    events: Mutex<PageEvents>,
}

impl Pages {
    /// For a region with a valid superblock; what the page table calls free is free.
    pub fn new(memory: Arc<RegionMemory>) -> Result<Self, StoreError> {
        let table = PageTable::of(&memory)?;
        let (mut free, mut next) = (FreeRuns::default(), table.first());
        for run in table.runs()? {
            free.put(next, run.page - next);
            next = run.page + run.pages;
        }
        free.put(next, table.count() - next);
        Ok(Self { memory, free: Mutex::new(free), resting: Mutex::default(), events: Mutex::default() })
    }

    #[inline(always)]
    pub fn table(&self) -> PageTable<'_> {
        let pages = self.memory.len() / PAGE_BYTES;
        PageTable { memory: &self.memory, at: SUPERBLOCK_BYTES, count: pages as u32, first: first_page(pages) }
    }

    /// Gives a table a run of slots of `class`, every slot of it free and ready, and enters it in the page table. It takes a
    /// resting run, of any length, or one of `pages`.
    pub fn take_slots(&self, slab: &TableSlab, class: SizeClass, pages: u32) -> Result<Run, StoreError> {
        if let Some(run) = self.take_resting(slab, class) {
            return Ok(run);
        }
        let page = self.take(slab.table, pages)?;
        let run = Run { page, pages, table: slab.table, class, kind: PageKind::Slots };
        let (versions, incarnations) = self.floors(&run);
        for offset in run.slots() {
            let slot = Object::at(&self.memory, offset);
            slot.store(Word::Version, versions | Version::ABSENT, Relaxed);
            slot.store(Word::Meta, Meta::new(incarnations, Meta::FREE, 0, 0).0, Relaxed);
            slot.store(Word::Prev, 0, Relaxed);
            slot.store(Word::Lock, 0, Relaxed);
        }
        self.enter(&run);
        farhold_planted::may_stop();
        slab.add_run(run);
        Ok(run)
    }

    /// A run of zeroed pages of a hash index, entered in the page table.
    pub fn take_hash(&self, table: TableId, pages: u32) -> Result<Run, StoreError> {
        let page = self.take(table, pages)?;
        let run = Run { page, pages, table, class: SizeClass(0), kind: PageKind::Hash };
        for at in (0..u64::from(pages) * PAGE_BYTES).step_by(8) {
            self.memory.word(run.offset() + at).expect("a page").store(0, Relaxed);
        }
        self.enter(&run);
        Ok(run)
    }

    /// Takes a run back. No thread uses it any more.
    pub fn give_back(&self, run: &Run) {
        if run.kind == PageKind::Slots {
            self.raise_floors(run);
        }
        self.leave(run);
        self.lock().put(run.page, run.pages);
    }

    /// Takes a run with only free slots out of the page table.
    pub fn leave_empty(&self, run: &Run) {
        let floor = self.raise_floors(run);
        for offset in run.slots() {
            Object::at(&self.memory, offset).store(Word::Version, floor | Version::ABSENT, Release);
        }
        self.leave(run);
    }

    /// Takes a run back that [has left](Self::leave_empty). Transactions may still have references to its slots.
    pub fn rest(&self, run: Run) {
        self.resting().push(run);
    }

    /// Not a run with a lock. The lock's owner has a stale reference and gives it back, or is dead; then the search for its locks
    /// looks where runs rest, and not on the way to a table. So the table has the run before the lock of the resting runs is
    /// released.
    fn take_resting(&self, slab: &TableSlab, class: SizeClass) -> Option<Run> {
        let mut resting = self.resting();
        let is_locked = |offset| Object::at(&self.memory, offset).lock_word() != 0;
        let found = resting.iter().position(|run| run.class == class && !run.slots().any(is_locked))?;
        let run = Run { table: slab.table, ..resting.swap_remove(found) };
        self.enter(&run);
        farhold_planted::may_stop();
        slab.add_run(run);
        Some(run)
    }

    /// Releases the locks of dead owners in resting runs.
    pub fn release_resting_locks(&self, is_dead: &dyn Fn(Owner) -> bool) {
        for offset in self.resting().iter().flat_map(Run::slots) {
            let object = Object::at(&self.memory, offset);
            if let Some(owner) = Owner::from_word(object.lock_word()).filter(|owner| is_dead(*owner)) {
                // Refused: the owner has given it back before it died.
                let _ = object.release_dead(owner);
            }
        }
    }

    fn resting(&self) -> std::sync::MutexGuard<'_, Vec<Run>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on some pages stay free for the next start. It makes hash indexes anew, and they take a page more or less,
    /// depending on the order of the rows.
    pub fn spare_some(&self) {
        let spare = (self.table().count() / PAGES_PER_SPARE).max(SPARE_MIN);
        self.lock().spare = u64::from(spare);
    }

    pub fn free_bytes(&self) -> u64 {
        self.lock().left() * PAGE_BYTES
    }

    /// The inconsistencies: all pages together must be free, resting and those of the page table, each once.
    pub fn inconsistencies(&self) -> Vec<String> {
        let (free, resting) = (self.lock(), self.resting());
        let runs = match self.table().runs() {
            Ok(runs) => runs,
            Err(error) => return vec![error.to_string()],
        };
        let mut spans: Vec<(u32, u32)> = free.by_start.iter().map(|(start, pages)| (*start, *pages)).collect();
        spans.extend(resting.iter().chain(&runs).map(|run| (run.page, run.pages)));
        spans.sort_unstable();
        spans.push((self.table().count(), 0));
        let (mut wrong, mut next) = (Vec::new(), self.table().first());
        for (start, pages) in spans {
            if start != next {
                let what = if start > next { "no owner" } else { "two owners" };
                wrong.push(format!("pages {} to {} have {what}", start.min(next), start.max(next) - 1));
            }
            next = start + pages;
        }
        wrong
    }

    fn take(&self, table: TableId, pages: u32) -> Result<u32, StoreError> {
        let wanted_bytes = u64::from(pages) * PAGE_BYTES;
        let full = |free_bytes, file_system_bytes| {
            let region_bytes = self.memory.len();
            StoreError::OutOfMemory { table, wanted_bytes, free_bytes, region_bytes, file_system_bytes }
        };
        let page = {
            let mut free = self.lock();
            free.take(pages).ok_or_else(|| full(free.left() * PAGE_BYTES, None))?
        };
        // First fit: pages that were used before, and so have memory, come first.
        self.memory.reserve(u64::from(page) * PAGE_BYTES, wanted_bytes).map_err(|error| {
            self.lock().put(page, pages);
            match error {
                FabricError::FileSystemFull(found) => full(self.free_bytes(), Some(found.free_bytes)),
                other => StoreError::Fabric(other),
            }
        })?;
        Ok(page)
    }

    /// Enters a run in the page table.
    pub fn enter(&self, run: &Run) {
        let mut events = self.events();
        events.add(run, true);
        for page in (run.page..run.page + run.pages).rev() {
            self.table().word(page, 0).store(run.word(page == run.page), SeqCst);
        }
    }

    /// Takes a run out of the page table.
    fn leave(&self, run: &Run) {
        let mut events = self.events();
        events.add(run, false);
        for page in run.page..run.page + run.pages {
            self.table().word(page, 0).store(0, SeqCst);
        }
    }

    /// From here on changes of the page table are kept for [`Self::take_events`].
    pub fn record(&self, epoch: EpochSource) {
        self.events().epoch = Some(epoch);
    }

    /// The changes since the last call, in order.
    pub fn take_events(&self) -> Vec<PageEvent> {
        std::mem::take(&mut self.events().events)
    }

    /// All runs of slots, and the number of the last event that they include.
    pub fn runs_of_slots(&self) -> Result<(Vec<Run>, u64), StoreError> {
        let events = self.events();
        let mut runs = self.table().runs()?;
        runs.retain(|run| run.kind == PageKind::Slots);
        Ok((runs, events.sequence))
    }

    /// Restores a run as it was before a restart, with free slots.
    pub fn restore(memory: &RegionMemory, run: &Run) -> Result<(), StoreError> {
        let bytes = u64::from(run.pages) * PAGE_BYTES;
        memory.reserve(run.offset(), bytes).map_err(StoreError::Fabric)?;
        for offset in run.slots() {
            let slot = Object::at(memory, offset);
            slot.store(Word::Version, Version::ABSENT, Relaxed);
            slot.store(Word::Meta, Meta::new(0, Meta::FREE, 0, 0).0, Relaxed);
        }
        let table = PageTable::of(memory)?;
        for page in (run.page..run.page + run.pages).rev() {
            table.word(page, 0).store(run.word(page == run.page), SeqCst);
        }
        // The page table must be able to express what is entered.
        table.run_at(run.page).map(drop)
    }

    fn events(&self) -> std::sync::MutexGuard<'_, PageEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The floor of each page that has one.
    pub fn version_floors(&self) -> Vec<(u32, Version)> {
        let table = self.table();
        let floor = |page| (page, Version(table.word(page, 1).load(Relaxed)));
        (table.first()..table.count()).map(floor).filter(|(_, floor)| floor.0 != 0).collect()
    }

    fn floors(&self, run: &Run) -> (u64, u32) {
        let table = self.table();
        let pages = run.page..run.page + run.pages;
        let versions = pages.clone().map(|page| table.word(page, 1).load(Relaxed)).max();
        let incarnations = pages.map(|page| table.word(page, 2).load(Relaxed)).max();
        (versions.unwrap_or(0), incarnations.unwrap_or(0) as u32 & ObjectRef::INCARNATION_BITS)
    }

    /// Returns the floor of versions. Incarnations wrap, so the "highest" is one past the last of the slot used most; after a
    /// wrap it may be any.
    fn raise_floors(&self, run: &Run) -> u64 {
        let (mut versions, mut incarnations) = self.floors(run);
        for offset in run.slots() {
            let slot = Object::at(&self.memory, offset);
            versions = versions.max(Version(slot.load(Word::Version, Relaxed)).number() + Version::ONE);
            incarnations = incarnations.max(slot.meta().incarnation());
        }
        let incarnations = (incarnations + 1) & ObjectRef::INCARNATION_BITS;
        for page in run.page..run.page + run.pages {
            self.table().word(page, 1).store(versions, Relaxed);
            self.table().word(page, 2).store(u64::from(incarnations), Relaxed);
        }
        versions
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FreeRuns> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Free runs by their first page; neighbours are merged. First fit, so the end of the region stays whole.
#[derive(Debug, Default)]
struct FreeRuns {
    by_start: BTreeMap<u32, u32>,
    total: u64,
    /// This many pages are not given out any more.
    spare: u64,
}

impl FreeRuns {
    fn take(&mut self, pages: u32) -> Option<u32> {
        if u64::from(pages) > self.left() {
            return None;
        }
        let (&start, &len) = self.by_start.iter().find(|(_, len)| **len >= pages)?;
        self.by_start.remove(&start);
        if len > pages {
            self.by_start.insert(start + pages, len - pages);
        }
        self.total -= u64::from(pages);
        Some(start)
    }

    fn put(&mut self, mut start: u32, mut len: u32) {
        if len == 0 {
            return;
        }
        self.total += u64::from(len);
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "pages are given back once");
            if before + before_len == start {
                self.by_start.remove(&before);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(after_len) = self.by_start.remove(&(start + len)) {
            len += after_len;
        }
        self.by_start.insert(start, len);
    }

    /// How many may be given out.
    fn left(&self) -> u64 {
        self.total.saturating_sub(self.spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use farhold_fabric::{FarPtr, NodeId, RegionId};

    #[test]
    fn a_start_has_pages_that_nobody_had_before() {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(1), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let take_all =
            |store: &Store| std::iter::from_fn(|| store.pages().take_hash(TableId(7), 1).ok()).count() as u32;
        store.keep_spare_memory();
        assert!(take_all(&store) > SPARE_MIN && store.free_bytes() == 0);
        let (store, _) = Store::attach(store.memory_shared().clone(), NodeId(0)).expect("the store");
        let all = take_all(&store);
        assert_eq!(all, store.pages().table().count() - store.pages().table().first());
    }

    #[test]
    fn pages_of_nobody_and_of_two_are_found() {
        let memory = RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(1), 0), 1 << 20).expect("memory");
        let store = Store::format(Arc::new(memory), NodeId(0)).expect("a store");
        let (pages, table) = (store.pages(), TableId(7));
        assert_eq!(pages.inconsistencies(), Vec::<String>::new());
        let page = pages.take(table, 2).expect("room");
        assert_eq!(pages.inconsistencies(), [format!("pages {page} to {} have no owner", page + 1)]);
        pages.enter(&Run { page, pages: 2, table, class: SizeClass(0), kind: PageKind::Hash });
        assert_eq!(pages.inconsistencies(), Vec::<String>::new());
        pages.lock().put(page + 1, 1);
        assert!(pages.inconsistencies().iter().any(|what| what.ends_with("have two owners")));
    }
}
