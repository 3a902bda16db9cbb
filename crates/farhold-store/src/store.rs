//! A node's store: its region with superblock and pages, and the tables that are open in it.

use crate::error::{StoreError, TableId};
use crate::object::size_class::{PAGE_BYTES, RUN_PAGES_MAX};
use crate::object::{Object, ObjectRef, Owner};
use crate::slab::{AllocCache, PageKind, PageTable, Pages, Run, TableSlab};
use crate::snapshot::{Copied, Garbage};
use crate::superblock::{Found, Holder, Superblock};
use farhold_fabric::object::ALIGN;
use farhold_fabric::{Meta, NodeId, RegionMemory, Version};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Mutex, PoisonError};

/// How many tables can be open at a time: the region's directory has room for that many.
pub const TABLES_MAX: usize = 1008;

/// The rows of a node. All of its threads share it.
#[derive(Debug)]
pub struct Store {
    memory: Arc<RegionMemory>,
    node: NodeId,
    incarnation: u16,
    pages: Pages,
    tables: Mutex<Tables>,
    /// Held while the directory of hash indexes changes.
    directory: Mutex<()>,
    /// Slots that caches could not free yet, and have left to all caches.
    left: Mutex<Garbage>,
    copied: Copied,
}

#[derive(Debug, Default)]
struct Tables {
    places: Vec<Option<Arc<TableSlab>>>,
    serial: u64,
    /// Runs found at attach that no table has claimed yet.
    found: BTreeMap<TableId, Vec<Run>>,
}

impl Store {
    /// Makes a store in a region, over any content.
    ///
    /// # Errors
    /// [`StoreError::RegionLength`]; [`StoreError::Fabric`] if the region does not get its memory.
    pub fn format(memory: Arc<RegionMemory>, node: NodeId) -> Result<Arc<Self>, StoreError> {
        Self::format_again(memory, node, 0)
    }

    /// As [`Self::format`], for a node that has started `starts` times before. The number of the start tells what earlier starts
    /// have left on other nodes from what this start does.
    ///
    /// # Errors
    /// As there.
    pub fn format_again(memory: Arc<RegionMemory>, node: NodeId, starts: u64) -> Result<Arc<Self>, StoreError> {
        let incarnation = Superblock::format(&memory, node, starts)?.incarnation();
        Self::open(memory, node, incarnation, Vec::new())
    }

    /// Takes over the store in a region after a restart: no other process uses it, and all locks in it are dead. Its tables are
    /// then [attached](crate::TableStore::attach) one by one; [`Self::unclaimed`] lists them.
    ///
    /// # Errors
    /// [`StoreError::Foreign`], [`StoreError::LayoutVersion`], [`StoreError::WrongNode`], [`StoreError::Truncated`],
    /// [`StoreError::RegionLength`], [`StoreError::Corrupt`]; the region is untouched then.
    pub fn attach(memory: Arc<RegionMemory>, node: NodeId) -> Result<(Arc<Self>, Found), StoreError> {
        let runs = PageTable::of(&memory)?.runs()?;
        let found = Superblock::of(&memory)?.take_over(node)?;
        let store = Self::open(memory, node, found.incarnation, runs)?;
        Ok((store, found))
    }

    fn open(
        memory: Arc<RegionMemory>,
        node: NodeId,
        incarnation: u16,
        runs: Vec<Run>,
    ) -> Result<Arc<Self>, StoreError> {
        let pages = Pages::new(memory.clone())?;
        let mut tables = Tables::default();
        for run in runs {
            match run.kind {
                PageKind::Slots => tables.found.entry(run.table).or_default().push(run),
                // Hash indexes are built again from the rows.
                PageKind::Hash | PageKind::Free => pages.give_back(&run),
            }
        }
        crate::index::hash::clear_directory(&memory);
        let (tables, directory, left) = (Mutex::new(tables), Mutex::default(), Mutex::default());
        let copied = Copied::default();
        Ok(Arc::new(Self { memory, node, incarnation, pages, tables, directory, left, copied }))
    }

    /// The region.
    #[must_use]
    #[inline(always)]
    pub fn memory(&self) -> &RegionMemory {
        &self.memory
    }

    /// The region, shared.
    #[must_use]
    pub fn memory_shared(&self) -> &Arc<RegionMemory> {
        &self.memory
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The start of the node: the first part of its [owners](crate::Owner).
    #[must_use]
    pub fn incarnation(&self) -> u16 {
        self.incarnation
    }

    /// The holder in the snapshot slots that this start of the node takes.
    #[must_use]
    pub fn holder(&self) -> Holder {
        Holder { node: self.node, incarnation: self.incarnation }
    }

    /// The superblock: epoch, open snapshots.
    #[must_use]
    #[inline(always)]
    pub fn superblock(&self) -> Superblock<'_> {
        Superblock::assume(&self.memory)
    }

    /// The object a reference means.
    ///
    /// # Panics
    /// If the reference is of another region and leaves this one.
    #[must_use]
    #[inline(always)]
    pub fn object(&self, reference: ObjectRef) -> Object<'_> {
        Object::of(&self.memory, reference)
    }

    /// The most key and value bytes that the slot of a row can hold. A longer row must move.
    #[must_use]
    #[inline]
    pub fn payload_bytes_max(&self, reference: ObjectRef) -> usize {
        self.pages.table().class_at(reference.offset()).payload_bytes_max()
    }

    /// Bytes of pages that are not in use.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.pages.free_bytes()
    }

    /// The table that has the pages of slots at this offset now. It walks over a few entries of the page table.
    #[must_use]
    pub fn table_of(&self, offset: u64) -> Option<TableId> {
        let page = u32::try_from(offset / PAGE_BYTES).ok()?;
        let pages = self.pages.table();
        let first = page.saturating_sub(RUN_PAGES_MAX - 1);
        let run = (first..=page).rev().find_map(|page| pages.run_at(page).ok().flatten())?;
        (run.kind == PageKind::Slots && page < run.page + run.pages).then_some(run.table)
    }

    /// Pages whose slots have all been free since their first use, each with its floor: the state of a slot there at or below
    /// this version does not count any more. The caller must ask after a look at a table's slots: a run that has left its table
    /// by then has its floors.
    #[must_use]
    pub fn floors(&self) -> Vec<(u32, Version)> {
        self.pages.version_floors()
    }

    /// Tables with rows that were found in the region, and that have not been attached.
    #[must_use]
    pub fn unclaimed(&self) -> Vec<TableId> {
        self.tables().found.keys().copied().collect()
    }

    /// Frees the rows of a table that was found in the region and never attached, because the catalog does not know it.
    pub fn discard(&self, table: TableId) {
        let runs = self.tables().found.remove(&table).unwrap_or_default();
        for run in &runs {
            self.pages.give_back(run);
        }
    }

    /// All tables are there: from here on some memory stays free, so that a full node can restart.
    pub fn keep_spare_memory(&self) {
        self.pages.spare_some();
    }

    /// The inconsistencies of the accounts of pages and slots, in words. Each page must be free, at rest, or a table's, once;
    /// each slot in a list of free slots must be free, and there once. Exact while no thread writes. It walks over all pages, for
    /// checks.
    #[must_use]
    pub fn inconsistencies(&self) -> Vec<String> {
        let mut wrong = self.pages.inconsistencies();
        for slab in self.tables().places.iter().flatten() {
            let entered = |run: &Run| self.pages.table().run_at(run.page).is_ok_and(|found| found == Some(*run));
            let missing = slab.runs().into_iter().filter(|run| !entered(run));
            wrong.extend(missing.map(|run| format!("{run:?} is not in the page table")));
            for slots in slab.free().iter() {
                let mut slots = slots.clone();
                slots.sort_unstable();
                let twice = slots.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
                let state = |unit: u32| Object::at(&self.memory, u64::from(unit) * ALIGN).meta().state();
                let taken = slots.iter().copied().filter(|unit| state(*unit) != Meta::FREE);
                let bad = twice.chain(taken).map(|unit| u64::from(unit) * ALIGN);
                wrong.extend(bad.map(|offset| format!("{:?}: the slot at {offset:#x} is no free one", slab.table)));
            }
        }
        wrong
    }

    /// Sets the clean flag. All transactions have ended.
    pub fn close(&self) {
        self.superblock().say_goodbye();
    }

    /// Gives pages back that have only free slots, for rows of the same size in any table. Returns how many bytes. It returns
    /// none while a snapshot is open, because the snapshot may have listed them for its scan.
    pub fn release_empty_pages(&self) -> u64 {
        let slabs: Vec<_> = self.tables().places.iter().flatten().cloned().collect();
        slabs.iter().map(|slab| self.release_empty_pages_of(slab)).sum::<u64>() * PAGE_BYTES
    }

    fn release_empty_pages_of(&self, slab: &TableSlab) -> u64 {
        let mut free = slab.free();
        if slab.dropped.load(Relaxed) || self.superblock().snapshots_open() {
            return 0;
        }
        let empty = slab.take_empty_runs(&mut free);
        // Out of the page table first, then the look at the snapshots: a snapshot that is announced later finds the runs gone,
        // and for one that was announced before, they are put back.
        for run in &empty {
            self.pages.leave_empty(run);
        }
        farhold_planted::may_stop();
        if self.superblock().snapshots_open() {
            for run in empty {
                self.pages.enter(&run);
                free[run.class.0 as usize].extend(run.slots().map(|offset| (offset / ALIGN) as u32));
                slab.add_run(run);
            }
            return 0;
        }
        let pages = empty.iter().map(|run| u64::from(run.pages)).sum();
        for run in empty {
            self.pages.rest(run);
        }
        pages
    }

    /// As [`release_locks`](crate::TableStore::release_locks), for slots in pages that living tables have given back. The caller
    /// must call it before that of all tables, and again after it: a run may have gone to a table just before the first call, and
    /// come from one until the second.
    pub fn release_resting_locks(&self, is_dead: impl Fn(Owner) -> bool) {
        self.pages.release_resting_locks(&is_dead);
    }

    /// From here on changes of the page table are kept for [`Self::take_page_events`]; `epoch` gives the epoch.
    pub fn record_pages(&self, epoch: impl Fn() -> u32 + Send + Sync + 'static) {
        self.pages.record(Box::new(epoch));
    }

    /// The changes of the page table since the last call, as items of a journal.
    pub fn take_page_events(&self, out: &mut Vec<u8>) {
        for event in self.pages.take_events() {
            crate::durable::journal::push_event(&event, out);
        }
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// A slab for a new table, or for a table with runs that were found.
    pub(crate) fn open_slab(&self, table: TableId, attach: bool) -> Result<Arc<TableSlab>, StoreError> {
        let mut tables = self.tables();
        let open = tables.places.iter().flatten().any(|slab| slab.table == table);
        if open || (!attach && tables.found.contains_key(&table)) {
            return Err(StoreError::TableExists(table));
        }
        let place = match tables.places.iter().position(Option::is_none) {
            Some(place) => place,
            None if tables.places.len() < TABLES_MAX => {
                tables.places.push(None);
                tables.places.len() - 1
            }
            None => return Err(StoreError::TooMany { what: "tables", limit: TABLES_MAX }),
        };
        let runs = tables.found.remove(&table).unwrap_or_default();
        tables.serial += 1;
        let slab = Arc::new(TableSlab::new(table, place, tables.serial, runs));
        tables.places[place] = Some(slab.clone());
        Ok(slab)
    }

    /// The table closes: its slots are freed (`forget`), or stay for another attach.
    pub(crate) fn close_slab(&self, slab: &TableSlab, forget: bool) {
        let runs = {
            // Under the lock that caches take before they hand slots back.
            let mut free = slab.free();
            slab.dropped.store(true, Release);
            free.iter_mut().for_each(Vec::clear);
            slab.take_runs()
        };
        farhold_planted::may_stop();
        let mut tables = self.tables();
        tables.places[slab.place] = None;
        if forget {
            drop(tables);
            for run in &runs {
                self.pages.give_back(run);
            }
        } else if !runs.is_empty() {
            tables.found.insert(slab.table, runs);
        }
    }

    pub(crate) fn directory_lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leave_garbage(&self, mut garbage: Garbage) {
        self.left().append(&mut garbage);
    }

    /// Takes out what no open snapshot needs, from what no cache has. The open snapshots are read under the lock: a snapshot that
    /// opens later is newer than all that lies here, and one that was open when something was left here is seen.
    pub(crate) fn take_ended_garbage(&self) -> Garbage {
        let mut left = self.left();
        left.take_ended(self.superblock().oldest_snapshot())
    }

    /// How many slots no cache has that wait for snapshots to close.
    pub(crate) fn left_garbage(&self) -> usize {
        self.left().len()
    }

    pub(crate) fn copied(&self) -> &Copied {
        &self.copied
    }

    pub(crate) fn left(&self) -> std::sync::MutexGuard<'_, Garbage> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker's allocation cache.
    #[must_use]
    pub fn alloc_cache(self: &Arc<Self>) -> AllocCache {
        AllocCache::new(self)
    }
}
