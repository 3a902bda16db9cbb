//! From files to a region: page table, checkpoint, then the records that count, each where its version is newer.

use super::checkpoint::{self, Checkpoint};
use super::files::Directory;
use super::journal::{self, Item};
use super::{Cluster, DurableError, Identity};
use crate::error::{StoreError, TableId};
use crate::log::record::{Change, Entry, Record};
use crate::object::size_class::PAGE_BYTES;
use crate::object::{Object, ObjectRef, Word, Words};
use crate::slab::{PageEvent, Pages, Run as PageRun};
use crate::superblock::{Superblock, page_table_pages};
use farhold_fabric::{Meta, NodeId, RegionMemory, Version};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// Runs a job on several threads at once, each with its number, and returns when all are done.
pub type Run<'r> = dyn Fn(&(dyn Fn(usize) + Sync)) + 'r;

/// How far a restart has come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of files to read.
    pub bytes_total: AtomicU64,
    /// Bytes read so far.
    pub bytes: AtomicU64,
    /// Rows and records applied so far.
    pub rows: AtomicU64,
}

/// The input of a restore: the rows of one node, from its checkpoint and the journals of all.
#[derive(Debug)]
pub struct Plan {
    directory: Arc<dyn Directory>,
    identity: Identity,
    /// The start in which its rows began; 0: it has none.
    since: u32,
    /// All its rows are of later epochs.
    after: u32,
    checkpoint: Option<Checkpoint>,
    /// The node, the segment, and the epoch up to which it counts.
    segments: Vec<(NodeId, (u32, u32), u32)>,
    segments_bytes: u64,
}

/// A state of a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotState<'a> {
    /// Which slot.
    pub reference: ObjectRef,
    /// Its version; ABSENT: there is no row at it.
    pub version: Version,
    /// The table of the row.
    pub table: TableId,
    /// The row's key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Rows of the checkpoint.
    pub checkpoint_rows: u64,
    /// Rows of records that were newer.
    pub journal_rows: u64,
    /// Bytes of the journals.
    pub journal_bytes: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Finds the files that have the rows of a node; it reads hardly any of them whole.
///
/// # Errors
/// [`DurableError`].
pub fn plan(directory: &Arc<dyn Directory>, cluster: &Cluster, node: NodeId) -> Result<Plan, DurableError> {
    let identity = Identity { node, ..cluster.identity };
    let since = cluster.rows_since(node);
    let directory = directory.clone();
    let mut this =
        Plan { directory, identity, since, after: 0, checkpoint: None, segments: Vec::new(), segments_bytes: 0 };
    if since == 0 {
        // It left the cluster, and others have its rows.
        return Ok(this);
    }
    let mut names = this.directory.list().map_err(|error| DurableError::io("list", &error))?;
    // If the rows of a start belong to another node by now, what the start has left does not count.
    let is_older = |(start, _): &(u32, u32)| *start < since;
    let older: Vec<(u32, u32)> = checkpoint::checkpoints(&names, node).into_iter().filter(is_older).collect();
    names.retain(|name| checkpoint::checkpoints(std::slice::from_ref(name), node).iter().all(|it| !older.contains(it)));
    this.checkpoint = Checkpoint::open(&*this.directory, &identity, &names)?;
    this.after = match &this.checkpoint {
        Some(checkpoint) => checkpoint.head.epoch,
        // An earlier start of the node may have used slots before it.
        None if since > 1 => journal::first_closed(&*this.directory, &identity, since, &names)?.unwrap_or(0),
        None => 0,
    };
    for cut in &cluster.cuts {
        let (found, _) = journal::last(&*this.directory, &Identity { node: cut.node, ..identity }, cut.start, &names)?;
        if found.last != 0 && found.closed < cut.epoch {
            let file = format!("the journal of node {}", cut.node.0);
            return Err(DurableError::damaged(&file, 0, "its end is missing, which has counted before"));
        }
    }
    for writer in (0..identity.nodes).map(NodeId) {
        let mut before: Option<(u32, u32)> = None;
        for (start, number) in journal::segments(&names, writer) {
            let gap = before.is_some_and(|(last, at)| last == start && at + 1 != number);
            before = Some((start, number));
            if gap {
                let file = format!("the journal of node {}", writer.0);
                return Err(DurableError::damaged(&file, 0, "a segment is missing in its middle"));
            }
            // What began only now has nothing to say.
            if let Some(counts_to) = cluster.counts_to(writer, start) {
                this.segments.push((writer, (start, number), counts_to));
                this.segments_bytes += journal::segment_bytes(&*this.directory, writer, (start, number))?;
            }
        }
    }
    Ok(this)
}

/// Locks for parts of a region, by page.
struct Stripes([Mutex<()>; STRIPES]);
const STRIPES: usize = 1024;

/// The first error of several threads.
#[derive(Default)]
struct FirstError(Mutex<Option<RestoreError>>);

/// Why nothing was restored.
type RestoreError = Result<DurableError, StoreError>;

impl FirstError {
    fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn note<T>(&self, result: Result<T, RestoreError>) -> Option<T> {
        result.map_err(|error| self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error).clone()).ok()
    }

    fn done(self) -> Result<(), RestoreError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl Plan {
    /// Whether there is nothing at all: this is then the node's first start.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checkpoint.is_none() && self.segments.is_empty()
    }

    /// What the checkpoint contains, 0 without one.
    #[must_use]
    pub fn checkpoint_epoch(&self) -> u32 {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.head.epoch)
    }

    /// Restores everything that counts into a region that has just been formatted. No file is changed.
    ///
    /// # Errors
    /// [`DurableError`]; a [`StoreError`] if the rows do not fit the region.
    pub fn restore(&self, memory: &RegionMemory, run: &Run<'_>, progress: &Progress) -> Result<Restored, RestoreError> {
        Superblock::of(memory).map_err(Err)?;
        let checkpoint_bytes = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.bytes);
        progress.bytes_total.store(checkpoint_bytes + self.segments_bytes, Relaxed);
        let runs = self.page_runs(memory)?;
        let errors = FirstError::default();
        let list: Vec<&PageRun> = runs.values().collect();
        let next = AtomicUsize::new(0);
        run(&|_| {
            while let Some(run) = list.get(next.fetch_add(1, Relaxed)).filter(|_| !errors.is_set()) {
                errors.note(Pages::restore(memory, run).map_err(Err));
            }
        });
        let checkpoint_rows = AtomicU64::new(0);
        if let Some(checkpoint) = self.checkpoint.as_ref().filter(|_| !errors.is_set()) {
            let next = AtomicUsize::new(0);
            run(&|_| {
                let mut bytes = Vec::new();
                loop {
                    let block = next.fetch_add(1, Relaxed);
                    if block >= checkpoint.blocks() || errors.is_set() {
                        return;
                    }
                    let wanted = runs.get(&checkpoint.run(block).page) == Some(&checkpoint.run(block));
                    let mut rows = 0;
                    let read = checkpoint.read(block, &mut bytes, &mut |row| {
                        if wanted {
                            rows += 1;
                            let slot = slot(&runs, row.offset, row.payload.len());
                            let (slot, payload) = (slot.ok_or("a row lies outside of its run")?, row.payload);
                            put(memory, slot, row.meta, row.version, &[payload, &[]]);
                        }
                        Ok(())
                    });
                    let read = errors.note(read.map_err(Ok)).unwrap_or(0);
                    progress.bytes.fetch_add(read, Relaxed);
                    progress.rows.fetch_add(rows, Relaxed);
                    checkpoint_rows.fetch_add(rows, Relaxed);
                }
            });
        }
        let journal_rows = if errors.is_set() { 0 } else { self.redo(memory, &runs, run, progress, &errors) };
        errors.done()?;
        let bytes = progress.bytes.load(Relaxed);
        let journal_bytes = self.segments_bytes;
        Ok(Restored { checkpoint_rows: checkpoint_rows.into_inner(), journal_rows, journal_bytes, bytes })
    }

    /// Visits states of its slots, several of each in any order: the newest of each counts. It is for a node that keeps a replica
    /// of the rows of a node that is gone.
    ///
    /// # Errors
    /// [`DurableError`].
    pub fn visit(&self, visit: &mut dyn FnMut(&SlotState<'_>)) -> Result<(), DurableError> {
        if let Some(checkpoint) = &self.checkpoint {
            let mut bytes = Vec::new();
            for block in 0..checkpoint.blocks() {
                let table = checkpoint.run(block).table;
                checkpoint.read(block, &mut bytes, &mut |row| {
                    let (key, value) = row.payload.split_at_checked(row.meta.key_len()).ok_or("a key is cut off")?;
                    let reference = ObjectRef::new(row.offset, row.meta.incarnation());
                    visit(&SlotState { reference, version: row.version, table, key, value });
                    Ok(())
                })?;
            }
        }
        let mut ends = Vec::new();
        for (writer, segment, counts_to) in &self.segments {
            ends.push(self.read_rows(*writer, *segment, *counts_to, &mut |entry| {
                let Entry { reference, new: version, table, key, value, .. } = *entry;
                visit(&SlotState { reference, version, table, key, value });
            })?);
        }
        self.check_chain(&ends)
    }

    /// Visits the entries of a segment that count for this node.
    fn read_rows(
        &self,
        writer: NodeId,
        segment: (u32, u32),
        counts_to: u32,
        visit: &mut dyn FnMut(&Entry<'_>),
    ) -> Result<journal::Found, DurableError> {
        self.read(writer, segment, &mut |body, _| {
            for item in journal::items(body) {
                let Item::Record(bytes) = item? else { continue };
                let record = Record::check(bytes, 0).map_err(|_| "a record is not whole")?;
                if record.epoch() > counts_to || record.epoch() <= self.after {
                    continue;
                }
                for entry in record.entries() {
                    let entry = entry.map_err(|_| "an entry makes no sense")?;
                    if entry.change == Change::Patch {
                        return Err("an entry is a patch, which no journal has: its files may be read in any order");
                    }
                    if entry.node == self.identity.node {
                        visit(&entry);
                    }
                }
            }
            Ok(())
        })
    }

    /// The runs of slots to restore: those of the checkpoint, changed by the events that count.
    fn page_runs(&self, memory: &RegionMemory) -> Result<BTreeMap<u32, PageRun>, RestoreError> {
        let mut runs = BTreeMap::new();
        let mut from = (0, 0);
        if let Some(checkpoint) = &self.checkpoint {
            from = (checkpoint.head.start, checkpoint.head.event);
            runs.extend((0..checkpoint.blocks()).map(|block| checkpoint.run(block)).map(|run| (run.page, run)));
        }
        let (me, since) = (self.identity.node, self.since);
        let mine = |(node, (start, _), _): &&(NodeId, (u32, u32), u32)| *node == me && *start >= since;
        for (node, segment, counts_to) in self.segments.iter().filter(mine) {
            self.read(*node, *segment, &mut |body, _| {
                for item in journal::items(body) {
                    let Item::Page(event) = item? else { continue };
                    if (segment.0, event.sequence) <= from {
                        continue;
                    }
                    // Each start counts its events from 1.
                    let due = if segment.0 == from.0 { from.1 + 1 } else { 1 };
                    if event.sequence != due {
                        return Err("a change of the pages before one of its own is missing");
                    }
                    from = (segment.0, event.sequence);
                    if event.epoch <= *counts_to {
                        happen(&mut runs, &event);
                    }
                }
                Ok(())
            })
            .map_err(Ok)?;
        }
        let pages = memory.len() / PAGE_BYTES;
        let first = 4 + page_table_pages(pages);
        for run in runs.values() {
            let fits = u64::from(run.page) >= first && u64::from(run.page) + u64::from(run.pages) <= pages;
            if !fits || run.pages == 0 {
                let (wanted_bytes, region_bytes) = (u64::from(run.page + run.pages) * PAGE_BYTES, memory.len());
                return Err(Err(StoreError::OutOfMemory {
                    table: run.table,
                    wanted_bytes,
                    free_bytes: 0,
                    region_bytes,
                    file_system_bytes: None,
                }));
            }
        }
        Ok(runs)
    }

    fn read(
        &self,
        node: NodeId,
        segment: (u32, u32),
        visit: &mut journal::Visit<'_>,
    ) -> Result<journal::Found, DurableError> {
        let identity = Identity { node, ..self.identity };
        journal::read_segment(&*self.directory, &identity, segment, visit)
    }

    /// Applies the records; the number of rows that were newer.
    fn redo(
        &self,
        memory: &RegionMemory,
        runs: &BTreeMap<u32, PageRun>,
        run: &Run<'_>,
        progress: &Progress,
        errors: &FirstError,
    ) -> u64 {
        let stripes = Stripes([const { Mutex::new(()) }; STRIPES]);
        let (next, applied) = (AtomicUsize::new(0), AtomicU64::new(0));
        let ends: Vec<Mutex<journal::Found>> = self.segments.iter().map(|_| Mutex::default()).collect();
        run(&|_| {
            loop {
                let place = next.fetch_add(1, Relaxed);
                let Some((node, segment, counts_to)) = self.segments.get(place).filter(|_| !errors.is_set()) else {
                    return;
                };
                let mut rows = 0;
                let read = self.read_rows(*node, *segment, *counts_to, &mut |entry| {
                    if apply(memory, runs, &stripes, entry) {
                        rows += 1;
                    }
                });
                if let Some(found) = errors.note(read.map_err(Ok)) {
                    progress.bytes.fetch_add(found.file_bytes, Relaxed);
                    *ends[place].lock().unwrap_or_else(PoisonError::into_inner) = found;
                }
                progress.rows.fetch_add(rows, Relaxed);
                applied.fetch_add(rows, Relaxed);
            }
        });
        let ends: Vec<journal::Found> =
            ends.into_iter().map(|end| end.into_inner().unwrap_or_else(PoisonError::into_inner)).collect();
        errors.note(self.check_chain(&ends).map_err(Ok));
        applied.into_inner()
    }

    /// Each segment must end where the next one says.
    fn check_chain(&self, ends: &[journal::Found]) -> Result<(), DurableError> {
        for (place, pair) in self.segments.windows(2).enumerate() {
            let [(node, (start, _), _), (next, (after, number), _)] = pair else { continue };
            let (first, second) = (ends[place], ends[place + 1]);
            // A whole segment without a batch is the one that was about to be used.
            let follows = (node, start) == (next, after) && second.last != 0;
            if follows && second.previous != first.last {
                let file = format!("the journal of node {}, segment {start}-{}", node.0, number - 1);
                return Err(DurableError::damaged(&file, 0, "its last batch, which was durable, is not whole"));
            }
        }
        Ok(())
    }
}

/// An event's change of the page table.
fn happen(runs: &mut BTreeMap<u32, PageRun>, event: &PageEvent) {
    let run = event.run;
    let overlaps = |other: &PageRun| other.page < run.page + run.pages && run.page < other.page + other.pages;
    runs.retain(|_, other| !overlaps(other));
    if event.taken {
        runs.insert(run.page, run);
    }
}

/// The slot at an offset, if there is one that fits such a payload.
fn slot(runs: &BTreeMap<u32, PageRun>, offset: u64, payload_len: usize) -> Option<u64> {
    let page = u32::try_from(offset / PAGE_BYTES).ok()?;
    let (_, run) = runs.range(..=page).next_back()?;
    let (step, at) = (run.class.slot_bytes() as u64, offset - run.offset());
    let fits = at.is_multiple_of(step) && at / step < u64::from(run.slot_count());
    (fits && payload_len <= run.class.payload_bytes_max()).then_some(offset)
}

/// Writes a row into a slot that no thread reads yet.
fn put(memory: &RegionMemory, offset: u64, meta: Meta, version: Version, payload: &[&[u8]; 2]) {
    let object = Object::at(memory, offset);
    object.store(Word::Meta, meta.0, Relaxed);
    object.copy_in(0, payload[0]);
    if !payload[1].is_empty() {
        object.copy_in(payload[0].len(), payload[1]);
    }
    object.store(Word::Version, version.0, Relaxed);
}

/// Brings a row to the state of a record, if that is newer.
fn apply(memory: &RegionMemory, runs: &BTreeMap<u32, PageRun>, stripes: &Stripes, entry: &Entry<'_>) -> bool {
    let offset = entry.reference.offset();
    let Some(offset) = slot(runs, offset, entry.key.len() + entry.value.len()) else { return false };
    // Of a table that had the page before.
    let page = (offset / PAGE_BYTES) as u32;
    let is_its = runs.range(..=page).next_back().is_some_and(|(_, run)| run.table == entry.table);
    if !is_its {
        return false;
    }
    let _stripe = stripes.0[page as usize % STRIPES].lock().unwrap_or_else(PoisonError::into_inner);
    let object = Object::at(memory, offset);
    if object.version().number() >= entry.new.number() {
        return false;
    }
    let incarnation = entry.reference.incarnation();
    if entry.new.is_absent() {
        put(memory, offset, Meta::new(incarnation, Meta::FREE, 0, 0), entry.new, &[&[], &[]]);
    } else {
        let (key, value) = (entry.key, entry.value);
        let meta = Meta::new(incarnation, Meta::ROW, key.len(), key.len() + value.len());
        put(memory, offset, meta, entry.new, &[key, value]);
    }
    true
}
