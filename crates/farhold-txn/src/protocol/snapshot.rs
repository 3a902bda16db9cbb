//! One consistent state of all tables, for analytical scans.
//!
//! To take it, a worker announces it on every node, raises the global epoch, and tells every node which epoch it has
//! become. A writer reads the epoch while it holds all its locks, so a row that is found unlocked afterwards is final
//! for this state, and a transaction that overwrites it later keeps a copy. A scan reads it page by page, in place
//! where the memory is mapped. A newer row, locked or not, leads to its older copy. For any other locked row the scan
//! waits.

use crate::base::epoch::{Epoch, SNAPSHOT_EPOCH_LAST, check_snapshot_epoch};
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::base::table::Table;
use crate::cluster::view::Moment;
use crate::node::Node;
use crate::node::parts::{AsOf, Part, Start};
use crate::protocol::core::Core;
use crate::protocol::runs::RUNS_MAX;
use crate::protocol::runs::read_incarnation;
use crate::protocol::runs::read_runs;
use crate::protocol::runs::used_slots;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::{Batch, FabricError, FarPtr, Meta, NodeId, ObjectView, RegionMemory, Slot, Version};
use farhold_store::object::{Link, RESERVED};
use farhold_store::slab::PageTable;
use farhold_store::snapshot::{Blocked, RunScan, Visit};
use farhold_store::{Holder, SlotId, StoreError, Superblock, TableId};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of all tables at one epoch. May be shared by threads; scans never block a writer, never fail because of
/// one, and wait only for rows that are in the middle of a commit. Older copies of rows are kept until it is dropped.
pub struct Snapshot {
    node: Arc<Node>,
    as_of: AsOf,
    places: Vec<Place>,
    /// Its number on nodes that are not mapped here, once it has announced itself to one.
    number: Option<u64>,
    /// When it was complete, by the machine's clock.
    taken_ns: u64,
}

impl AsOf {
    /// Are all rows still where they were?
    fn check(self, node: &Node) -> Result<(), TxnError> {
        let now = node.settled_configuration();
        if now == Ok(self.configuration) { Ok(()) } else { Err(TxnError::Recovering { node: node.id() }) }
    }
}

/// A snapshot's place on one node.
struct Place {
    start: Start,
    /// Where it is, if the node's region is mapped. If not, the node knows it by the snapshot's number.
    mapped: Option<MappedPlace>,
}

impl Place {
    /// Announces a snapshot of this holder to a node whose region is mapped.
    fn take(node: NodeId, memory: Arc<RegionMemory>, holder: Holder) -> Result<Self, StoreError> {
        let superblock = Superblock::of(&memory)?;
        let (slot, incarnation) = (superblock.announce(holder)?, superblock.incarnation());
        Ok(Self { start: Start { node, incarnation }, mapped: Some(MappedPlace { memory, slot }) })
    }

    /// The place in mapped memory, if it is still that start's.
    fn standing(&self) -> Option<&MappedPlace> {
        self.mapped.as_ref().filter(|mapped| mapped.superblock().incarnation() == self.start.incarnation)
    }

    /// Is what the snapshot of this epoch reads there still kept for it? False if that node has gone on without this
    /// node, which may be the last to learn so. For memory that is not mapped here, each read reports it.
    fn is_open(&self, holder: Holder, epoch: u32) -> bool {
        let is_open = |mapped: &MappedPlace| mapped.superblock().is_open(mapped.slot, holder, epoch);
        self.mapped.is_none() || self.standing().is_some_and(is_open)
    }
}

struct MappedPlace {
    memory: Arc<RegionMemory>,
    slot: SlotId,
}

impl MappedPlace {
    fn superblock(&self) -> Superblock<'_> {
        Superblock::of(&self.memory).expect("checked when the snapshot was taken")
    }
}

/// A part of a table for one thread to scan.
#[derive(Clone, Debug)]
pub struct PageTask {
    node: NodeId,
    place: usize,
    part: Part,
    /// Its pages are its own while a handle exists.
    table: Table,
}

impl PageTask {
    /// The table.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The node whose pages they are.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The first of its pages.
    pub(crate) fn first_page(&self) -> u32 {
        self.part.run.page
    }

    /// Bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.part.run.pages) * farhold_store::object::size_class::PAGE_BYTES
    }
}

/// How often a locked row is looked at before the thread gives up its turn; a local commit takes some µs.
const LOOKS_PER_TURN: u32 = 1_000;
/// The least number of turns before a locked row's owner counts as dead, however long they took: a machine may be
/// paused.
const TURNS_MIN: u32 = 1_000;
/// Turns between two looks whether the snapshot still stands.
const TURNS_PER_CHECK: u32 = 64;

impl Worker {
    /// The state of all tables at this moment.
    ///
    /// # Errors
    /// An unavailable node; too many snapshots open.
    pub async fn snapshot(&self) -> Result<Snapshot, TxnError> {
        self.take_snapshot().await.map_err(|error| self.core.retryable(error))
    }

    async fn take_snapshot(&self) -> Result<Snapshot, TxnError> {
        let node = self.node();
        let core = &*self.core;
        let configuration = node.settled_configuration()?;
        let as_of = AsOf { epoch: 0, configuration };
        let mut snapshot = Snapshot { node: node.clone(), as_of, places: Vec::new(), number: None, taken_ns: 0 };
        let holder = node.store.holder();
        let early = if planted!(AnnouncedLate) { Some(self.advance_epoch(&snapshot).await?) } else { None };
        for id in node.everybody() {
            crate::base::planted::may_stop();
            let memory =
                if id == core.me { Some(node.store.memory_shared().clone()) } else { core.endpoint.mapped(id, DATA) };
            let place = if let Some(memory) = memory {
                Place::take(id, memory, holder).map_err(|error| TxnError::store(error, id))?
            } else {
                let number =
                    *snapshot.number.get_or_insert_with(|| node.open_snapshots.open(|| core.handle.unrepeated_u64()));
                let request = Request::Announce { incarnation: holder.incarnation, configuration, number };
                let incarnation = core.ask(id, &request, read_incarnation).await?;
                Place { start: Start { node: id, incarnation }, mapped: None }
            };
            snapshot.places.push(place);
        }
        crate::base::planted::may_stop();
        let raised = if let Some(early) = early { Ok(early) } else { self.advance_epoch(&snapshot).await };
        let epoch = raised?;
        snapshot.as_of.epoch = epoch;
        for place in &snapshot.places {
            crate::base::planted::may_stop();
            if let Some(mapped) = &place.mapped {
                if !mapped.superblock().confirm(mapped.slot, holder, epoch) {
                    return Err(TxnError::Recovering { node: place.start.node });
                }
            } else if let Some(number) = snapshot.number {
                let request = Request::Confirm { incarnation: holder.incarnation, number, epoch };
                core.call(place.start.node, &request).await?;
            }
        }
        self.check(snapshot.as_of)?;
        // What it shows must not be lost by a power cut.
        if core.node.journaling.as_ref().is_some_and(|journaling| !journaling.is_quiet()) {
            core.durable(snapshot.as_of.epoch).await.map_err(TxnError::of_a_read)?;
        }
        snapshot.taken_ns = core.handle.shared_now_ns();
        Ok(snapshot)
    }

    /// Raises the global epoch; the one before is the snapshot's.
    async fn advance_epoch(&self, snapshot: &Snapshot) -> Result<u32, TxnError> {
        let keeper = self.core.keeper();
        let near =
            snapshot.places.iter().find(|place| place.start.node == keeper).and_then(|place| place.mapped.as_ref());
        let epoch = if let Some(mapped) = near {
            check_snapshot_epoch(mapped.superblock().epoch())?;
            mapped.superblock().advance_epoch()
        } else {
            let epochs_end = self.core.epochs_end.get();
            check_snapshot_epoch(if epochs_end { u32::MAX } else { 0 })?;
            let taken = Epoch::counter(keeper).take(&Posted::through(&self.core.endpoint), 1, 1).await;
            let epoch = taken.map_err(|error| self.core.far_error(error, keeper))? as u32;
            // The word is not read before each snapshot, because that would cost one more round trip.
            self.core.epochs_end.set(epoch > SNAPSHOT_EPOCH_LAST);
            check_snapshot_epoch(epoch)?;
            epoch
        };
        self.core.check_epoch(epoch + 1)?;
        self.core.saw_epoch(epoch + 1);
        Ok(epoch)
    }

    /// The tasks of a table, also for nodes whose memory is not mapped here.
    ///
    /// # Errors
    /// An unavailable node, a dropped table, a damaged region.
    pub async fn snapshot_pages(&self, snapshot: &Snapshot, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = snapshot.mapped_pages(table)?;
        for (position, place) in snapshot.places.iter().enumerate() {
            if place.mapped.is_none() && !table.0.route.is_local_only() {
                let runs = self.ask_runs(place.start, table.id()).await;
                let runs = runs.map_err(|error| self.core.retryable(error))?;
                let task = |part| PageTask { node: place.start.node, place: position, part, table: table.clone() };
                tasks.extend(runs.into_iter().map(task));
            }
        }
        Ok(tasks)
    }

    /// The runs of pages of a table on another node, in the order of their pages. As many questions as it takes: a message carries
    /// those of some hundred megabytes.
    pub(crate) async fn ask_runs(&self, start: Start, table: TableId) -> Result<Vec<Part>, TxnError> {
        let mut runs: Vec<Part> = Vec::new();
        loop {
            let from_page = runs.last().map_or(0, |last| last.run.page.saturating_add(last.run.pages));
            let request = Request::Pages { table, from_page };
            let answer = self.core.ask(start.node, &request, |r| Ok((r.u16()?, read_runs(r)?)));
            let (incarnation, more) = answer.await?;
            start.check(incarnation)?;
            let are_all = more.len() < RUNS_MAX;
            runs.extend(more);
            if are_all {
                return Ok(runs);
            }
        }
    }

    /// As [`Snapshot::scan_page`], also for nodes whose memory is not mapped here: their rows are read one by one, in
    /// batches.
    ///
    /// # Errors
    /// As there.
    pub async fn scan_page(
        &self,
        snapshot: &Snapshot,
        task: &PageTask,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        let place = &snapshot.places[task.place];
        if let Some(mapped) = &place.mapped
            && !self.core.handle.is_virtual()
        {
            let (mut scan, mut turns) = (MappedScan::new(snapshot, mapped, task, usize::MAX), 0);
            // The owner of a row's lock may be a task of this thread, or wait for one.
            while !scan.go_on(&mut Vec::new(), &mut |_, key, value| visit(key, value))? {
                turns += 1;
                self.core.handle.pause(turns).await;
            }
            return Ok(());
        }
        let scanned = self.scan_run(place.start, task.part, snapshot.as_of, visit).await;
        scanned.map_err(|error| self.core.retryable(error))
    }

    /// Reads a run of pages by batches of object reads. A row that stays locked has a dead owner.
    pub(crate) async fn scan_run(
        &self,
        start: Start,
        part: Part,
        as_of: AsOf,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        let core = &*self.core;
        let (node, epoch) = (start.node, as_of.epoch);
        self.check(as_of)?;
        let room = part.run.class.payload_bytes_max();
        let until_ns = core.handle.now_ns() + core.node.config().request_timeout_ns;
        let mut turns = 0;
        let mut offsets: Vec<u64> = part.run.slots().take(part.slots as usize).collect();
        while !offsets.is_empty() {
            let mut later = Vec::new();
            for chunk in offsets.chunks(READS_PER_BATCH) {
                let mut batch = core.take_batch();
                let at = |offset: u64| FarPtr::new(node, DATA, offset);
                let slots: Vec<_> =
                    chunk.iter().map(|offset| (*offset, batch.read_object(at(*offset), room))).collect();
                let starts = batch.read(start.word(), 8);
                let batch = core.endpoint.submit(batch).await;
                start.check_read(core, &batch, starts)?;
                for (offset, slot) in slots {
                    match batch.object(slot) {
                        Ok(view) if is_locked_at(&view, epoch) => later.push(offset),
                        Ok(view) if is_unsettled(&view, epoch) => later.push(offset),
                        Ok(view) => match state_at(&view, epoch) {
                            StateAt::Row { key_len } => visit(&view.payload[..key_len], &view.payload[key_len..]),
                            StateAt::Older(link) => {
                                self.visit_older(start, link, epoch, room, visit).await?;
                            }
                            StateAt::Nothing => {}
                        },
                        Err(FabricError::Torn { .. }) => later.push(offset),
                        Err(error) => return Err(core.far_error(error, node)),
                    }
                }
                core.give_batch(batch);
            }
            offsets = later;
            turns += 1;
            if !offsets.is_empty() && turns > TURNS_MIN && core.handle.now_ns() > until_ns {
                return Err(TxnError::NodeUnavailable { node, committed: false });
            }
            if let Some(first) = offsets.first() {
                if turns % TURNS_PER_CHECK == 0 {
                    core.check_damage(FarPtr::new(node, DATA, *first)).await?;
                    // Their owner may have died with its node.
                    self.check(as_of)?;
                }
                core.handle.pause(turns).await;
            }
        }
        self.check(as_of)
    }

    /// Are all rows still where they were, and is this node still a member with a valid lease?
    fn check(&self, as_of: AsOf) -> Result<(), TxnError> {
        let core = &*self.core;
        let leased = core.node.replication.as_ref().is_none_or(|it| it.view.is_settled(Moment::now(&core.handle)));
        if leased { as_of.check(&core.node) } else { Err(TxnError::Recovering { node: core.me }) }
    }

    /// Follows the links to the copy of the snapshot's epoch, which is held for it.
    async fn visit_older(
        &self,
        start: Start,
        mut link: Link,
        epoch: u32,
        room: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        while !link.is_none() {
            let mut batch = self.core.take_batch();
            let slot = batch.read_object(FarPtr::new(start.node, DATA, link.offset()), room);
            let starts = batch.read(start.word(), 8);
            let batch = self.core.endpoint.submit(batch).await;
            start.check_read(&self.core, &batch, starts)?;
            let view = batch.object(slot).map_err(|error| self.core.far_error(error, start.node))?;
            let meta = Meta(view.meta);
            if meta.state() != Meta::UNDO {
                return Err(TxnError::Corrupt { what: "the older copy of a row is missing" });
            }
            if link.epoch() <= epoch {
                visit(&view.payload[..meta.key_len()], &view.payload[meta.key_len()..]);
                return Ok(());
            }
            link = Link(view.prev);
        }
        Ok(())
    }
}

impl Start {
    /// The word that holds the node's start count. What a batch reads together with it belongs to that start: a batch
    /// goes to the memory of one start, and the memory of another start refuses it.
    fn word(self) -> FarPtr {
        FarPtr::new(self.node, DATA, Superblock::STARTS)
    }

    fn check_read(self, core: &Core, batch: &Batch, starts: Slot) -> Result<(), TxnError> {
        let read = batch.bytes(starts).map_err(|error| core.far_error(error, self.node))?;
        self.check(u16::from_le_bytes([read[0], read[1]]))
    }

    /// Is the node still at this start?
    fn check(self, incarnation: u16) -> Result<(), TxnError> {
        if incarnation == self.incarnation { Ok(()) } else { Err(TxnError::Recovering { node: self.node }) }
    }
}

/// May its owner still give it another state within the snapshot's epochs? Not if its state is already later.
fn is_locked_at(view: &ObjectView<'_>, epoch: u32) -> bool {
    view.lock != 0 && !(Version(view.version).epoch() > epoch && Meta(view.meta).state() == Meta::ROW)
}

/// Is its state within the snapshot's epochs, and not replicated yet?
fn is_unsettled(view: &ObjectView<'_>, epoch: u32) -> bool {
    let (meta, version) = (Meta(view.meta), Version(view.version));
    version.is_odd() && version.epoch() <= epoch && matches!(meta.state(), Meta::ROW | RESERVED)
}

/// Far objects read at a time.
const READS_PER_BATCH: usize = 64;

/// What an object was at an epoch.
enum StateAt {
    Row { key_len: usize },
    Older(Link),
    Nothing,
}

/// A transaction that has its lock or takes it later commits at a later epoch.
fn state_at(view: &ObjectView<'_>, epoch: u32) -> StateAt {
    let (meta, version) = (Meta(view.meta), Version(view.version));
    if !matches!(meta.state(), Meta::ROW | RESERVED) {
        StateAt::Nothing
    } else if version.epoch() > epoch {
        StateAt::Older(Link(view.prev))
    } else if version.is_absent() || meta.key_len() > view.payload.len() {
        StateAt::Nothing
    } else {
        StateAt::Row { key_len: meta.key_len() }
    }
}

impl Snapshot {
    /// The nodes on which it is open.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.places.iter().map(|place| place.start.node)
    }

    /// The start of a node on which it is open.
    pub(crate) fn start_on(&self, node: NodeId) -> Option<Start> {
        self.places.iter().map(|place| place.start).find(|start| start.node == node)
    }

    /// Is what it reads still kept for it by this start of a node? As far as this node knows: of memory that is not mapped here, each
    /// read reports it.
    pub(crate) fn stands_on(&self, start: Start) -> bool {
        let place = self.places.iter().find(|place| place.start == start);
        place.is_some_and(|place| place.is_open(self.node.store.holder(), self.as_of.epoch))
    }

    /// Asked after each look at mapped memory: does what was seen count?
    pub(crate) fn check(&self) -> Result<(), TxnError> {
        self.as_of.check(&self.node)?;
        let (holder, epoch) = (self.node.store.holder(), self.as_of.epoch);
        match self.places.iter().find(|place| !place.is_open(holder, epoch)) {
            Some(place) => Err(TxnError::Recovering { node: place.start.node }),
            None => Ok(()),
        }
    }

    /// Which state: the transactions of all epochs up to this one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.as_of.epoch
    }

    /// The number of the configuration in which it was taken; 0 without replicas.
    pub(crate) fn configuration(&self) -> u64 {
        self.as_of.configuration
    }

    /// When it was complete: by the clock that all threads of the machine share.
    pub(crate) fn taken_ns(&self) -> u64 {
        self.taken_ns
    }

    /// Splits a table into tasks of one run of pages each. Blocks the thread where a node's memory is not mapped here:
    /// [`Worker::snapshot_pages`] does not.
    ///
    /// # Errors
    /// A dropped table; a damaged region; an unavailable node.
    pub fn pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = self.mapped_pages(table)?;
        for (position, place) in self.places.iter().enumerate() {
            if place.mapped.is_none() && !table.0.route.is_local_only() {
                let runs = self.node.far_pages.runs(&self.node, place.start, table.id());
                let runs = runs.map_err(|error| self.node.retryable(error))?;
                let task = |part| PageTask { node: place.start.node, place: position, part, table: table.clone() };
                tasks.extend(runs.into_iter().map(task));
            }
        }
        Ok(tasks)
    }

    /// The tasks of a table's pages on this node.
    pub(crate) fn own_pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = self.mapped_pages(table)?;
        tasks.retain(|task| task.node == self.node.id());
        Ok(tasks)
    }

    fn mapped_pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        if table.is_dropped() {
            return Err(TxnError::SchemaChanged);
        }
        let mut tasks = Vec::new();
        for (position, place) in self.places.iter().enumerate() {
            let (node, here) = (place.start.node, place.start.node == self.node.id());
            let Some(MappedPlace { memory, .. }) = &place.mapped else { continue };
            if table.0.route.is_local_only() && !here {
                continue;
            }
            let refused = |error: StoreError| TxnError::store(error, node);
            let runs = if here {
                table.0.store.pages()
            } else {
                PageTable::of(memory).and_then(|pages| pages.runs_of(table.id())).map_err(refused)?
            };
            tasks.extend(runs.into_iter().map(|run| PageTask {
                node,
                place: position,
                part: Part { slots: used_slots(memory, &run), run },
                table: table.clone(),
            }));
        }
        self.check()?;
        Ok(tasks)
    }

    /// Visits (key bytes, value bytes) of every row of this state in these pages, in no order. Pages that are not mapped here are
    /// read by another thread of the node, which this one waits for.
    ///
    /// # Errors
    /// [`TxnError::NodeUnavailable`] if a row stays locked for seconds: its owner is dead; or if the node of the pages is.
    pub fn scan_page(&self, task: &PageTask, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), TxnError> {
        self.scan_page_part(task, usize::MAX, &mut Vec::new(), visit)
    }

    /// As [`scan_page`](Self::scan_page) of pages that are mapped here, with each row's object.
    pub(crate) fn scan_objects(&self, task: &PageTask, visit: &mut Visit<'_>) -> Result<(), TxnError> {
        let Some(mapped) = &self.places[task.place].mapped else {
            return Err(TxnError::NodeUnavailable { node: task.node, committed: false });
        };
        let (mut scan, mut room) = (MappedScan::new(self, mapped, task, usize::MAX), Vec::new());
        while !scan.go_on(&mut room, visit)? {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// As [`scan_page`](Self::scan_page), with at least the first `value_bytes` bytes of each value that is as long:
    /// for scans that want the first columns of wide rows. `room` is kept between calls.
    ///
    /// # Errors
    /// As [`scan_page`](Self::scan_page).
    pub fn scan_page_part(
        &self,
        task: &PageTask,
        value_bytes: usize,
        room: &mut Vec<u8>,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        let place = &self.places[task.place];
        let Some(mapped) = &place.mapped else {
            let rows = self.node.far_pages.rows(&self.node, place.start, task.part, self.as_of);
            rows.map_err(|error| self.node.retryable(error))?.visit(visit);
            return Ok(());
        };
        let mut scan = MappedScan::new(self, mapped, task, value_bytes);
        while !scan.go_on(room, &mut |_, key, value| visit(key, value))? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A scan of pages that are mapped here.
struct MappedScan<'s> {
    snapshot: &'s Snapshot,
    node: NodeId,
    rows: RunScan<'s>,
    patience: Patience,
}

impl<'s> MappedScan<'s> {
    fn new(snapshot: &'s Snapshot, place: &'s MappedPlace, task: &PageTask, value_bytes: usize) -> Self {
        crate::base::planted::may_stop();
        let rows = RunScan::new(&place.memory, task.part.run, snapshot.as_of.epoch).values_up_to(value_bytes);
        let patience = Patience::new(snapshot.node.config().request_timeout_ns);
        Self { snapshot, node: task.node, rows, patience }
    }

    /// Visits rows up to the end, or until the thread should let others go on because of a locked row: false.
    fn go_on(&mut self, room: &mut Vec<u8>, visit: &mut Visit<'_>) -> Result<bool, TxnError> {
        loop {
            let went = self.rows.go_on(room, visit);
            let went = went.map_err(|error| TxnError::store(error, self.node))?;
            let Err(blocked) = went else { return self.snapshot.check().map(|()| true) };
            if self.patience.looks_again(blocked) {
                std::hint::spin_loop();
                continue;
            }
            if self.patience.is_over() {
                let unavailable = TxnError::NodeUnavailable { node: self.node, committed: false };
                return Err(self.snapshot.node.retryable(unavailable));
            }
            if self.patience.looks.is_multiple_of(LOOKS_PER_TURN * TURNS_PER_CHECK) {
                self.snapshot.check()?;
            }
            return Ok(false);
        }
    }
}

/// How long a scan waits for the owner of one row's lock.
struct Patience {
    limit: Duration,
    blocked: Option<Blocked>,
    looks: u32,
    since: Option<Instant>,
}

impl Patience {
    fn new(limit_ns: u64) -> Self {
        Self { limit: Duration::from_nanos(limit_ns), blocked: None, looks: 0, since: None }
    }

    /// Another look; false when the owner should be given some time.
    fn looks_again(&mut self, blocked: Blocked) -> bool {
        if self.blocked != Some(blocked) {
            (self.blocked, self.looks, self.since) = (Some(blocked), 0, None);
        }
        self.looks += 1;
        !self.looks.is_multiple_of(LOOKS_PER_TURN)
    }

    /// The owner has had time enough: it is dead.
    fn is_over(&mut self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "mapped memory is only scanned in real time")]
        let since = *self.since.get_or_insert_with(Instant::now);
        self.looks / LOOKS_PER_TURN >= TURNS_MIN && since.elapsed() >= self.limit
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        for mapped in self.places.iter().filter_map(Place::standing) {
            mapped.superblock().release(mapped.slot, self.node.store.holder());
        }
        if let Some(number) = self.number {
            self.node.open_snapshots.close(number);
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot(epoch {})", self.as_of.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::TableDef;
    use crate::node::NodeConfig;
    use crate::protocol::worker::Retry;
    use farhold_fabric::{Executor, Fabric};
    use farhold_store::row::{Column, ColumnType, Schema};

    /// At the end of all epochs snapshots are refused, and rows are read and written as before: none of them begins anew.
    #[test]
    fn epochs_do_not_begin_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let executor = Executor::real(1);
        let workers = [0, 1].map(|number| {
            let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
            let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
            Node::open(fabric, config).expect("a node").worker(&executor.handle()).expect("a worker")
        });
        let [worker, other] = &workers;
        executor.run(async {
            let serving = other.clone();
            drop(executor.handle().spawn(async move {
                loop {
                    serving.poll();
                    serving.handle().yield_now().await;
                }
            }));
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let table = worker.create_table(TableDef::new("t", schema)).await.expect("a table");
            worker.node().store.superblock().raise_epoch(SNAPSHOT_EPOCH_LAST);
            drop(worker.snapshot().await.expect("the last one"));
            let is_refused = |taken: Result<Snapshot, TxnError>| matches!(taken, Err(TxnError::TooMany { .. }));
            for _ in 0..3 {
                assert!(is_refused(worker.snapshot().await) && is_refused(other.snapshot().await));
            }
            assert!(worker.node().store.superblock().epoch() <= SNAPSHOT_EPOCH_LAST + 2, "refused, they take none");
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let row = [farhold_store::row::Datum::Int(1)];
            table.schema().encode_key(&row, &mut key).expect("a key");
            table.schema().encode_value(&row, &mut value).expect("a value");
            let written = worker.run(Retry::never(), async |txn| txn.insert(&table, &key, &value).await.map(drop));
            written.await.expect("written");
            let found = worker.run(Retry::never(), async |txn| Ok(txn.get(&table, &key).await?.is_some()));
            assert_eq!(found.await, Ok(true));
        });
        drop(executor);
        drop(workers);
    }
}
