//! One consistent state of all tables, for analytical scans.
//!
//! Taking it: announce it on every node, then raise the global epoch, then tell every node which epoch it has become. A
//! writer reads the epoch while it holds all its locks, so a row that is found unlocked afterwards is final for this state,
//! and whoever overwrites it later keeps a copy. Reading it: page by page, in place where the memory is mapped; a row that
//! is newer leads to its older copy; a locked row is waited for.

use crate::home::message::Request;
use crate::home::wire::{GARBAGE, Reader, Writer};
use crate::protocol::epoch::Epoch;
use crate::protocol::ident::DATA;
use crate::{Node, NodeId, Table, TableId, TxnError, Worker};
use farhold_fabric::{FabricError, FarPtr, Meta, ObjectView, RegionMemory, Version};
use farhold_store::object::size_class::{self, SizeClass};
use farhold_store::object::{Link, RESERVED};
use farhold_store::slab::{PageKind, PageTable, Run};
use farhold_store::snapshot::{Blocked, RunScan};
use farhold_store::{Object, SlotId, StoreError, Superblock};
use std::fmt;
use std::sync::Arc;

/// The state of all tables at one epoch. May be shared by threads; scans never block a writer, never fail because of
/// one, and wait only for rows that are in the middle of a commit. Older copies of rows are kept until it is dropped.
pub struct Snapshot {
    node: Arc<Node>,
    epoch: u32,
    places: Vec<Place>,
    /// The configuration that it is of: rows of a node that has died since are elsewhere, under later epochs.
    configuration: u64,
}

/// A snapshot's place on one node.
struct Place {
    node: NodeId,
    /// Its region, where it is mapped.
    memory: Option<Arc<RegionMemory>>,
    slot: SlotId,
    /// Which start of the node it was announced to: the next one has closed it.
    incarnation: u16,
}

/// A snapshot's place on a node whose memory is not mapped here, to be given back by a message of any worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarPlace {
    pub node: NodeId,
    pub slot: SlotId,
    pub incarnation: u16,
}

/// A part of a table for one thread to scan.
#[derive(Clone, Debug)]
pub struct PageTask {
    node: NodeId,
    place: usize,
    run: Run,
    /// Slots to look at: behind them are none that have held a row of the snapshot's time.
    slots: u32,
    /// Its pages are its own while somebody has a handle.
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

    /// Bytes of its pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.run.pages) * farhold_store::object::size_class::PAGE_BYTES
    }
}

/// How often a locked row is looked at before the thread gives up its turn; a commit near by takes some µs.
const LOOKS_PER_TURN: u32 = 1_000;
/// Turns before the row's owner counts as dead: some seconds for a thread that does nothing else.
const TURNS_MAX: u32 = 1_000_000;
/// Turns between two looks whether the snapshot still stands.
const TURNS_PER_CHECK: u32 = 64;
/// The same for a task, which waits between its turns.
const PATIENCE_MAX: u32 = 100_000;

impl Worker {
    /// The state of all tables at this moment.
    ///
    /// # Errors
    /// An unavailable node; too many snapshots open.
    pub async fn snapshot(&self) -> Result<Snapshot, TxnError> {
        let node = self.node();
        let core = &*self.core;
        let configuration = node.settled_configuration()?;
        let mut snapshot = Snapshot { node: node.clone(), epoch: 0, places: Vec::new(), configuration };
        for id in node.everybody() {
            let memory =
                if id == core.me { Some(node.store.memory_shared().clone()) } else { core.endpoint.mapped(id, DATA) };
            let (slot, incarnation) = if let Some(memory) = &memory {
                let superblock = Superblock::of(memory).map_err(|error| TxnError::store(error, id))?;
                (superblock.announce().map_err(|error| TxnError::store(error, id))?, superblock.incarnation())
            } else {
                let announced = |r: &mut Reader<'_>| Ok((SlotId(r.u8()?), r.u16()?));
                core.ask(id, &Request::Announce, announced).await?
            };
            snapshot.places.push(Place { node: id, memory, slot, incarnation });
        }
        snapshot.epoch = self.advance_epoch(&snapshot).await?;
        for place in &snapshot.places {
            if let Some(superblock) = place.superblock() {
                superblock.confirm(place.slot, snapshot.epoch);
            } else {
                let request = Request::Confirm { slot: place.slot, epoch: snapshot.epoch };
                core.call(place.node, &request).await?;
            }
        }
        self.check(&snapshot)?;
        Ok(snapshot)
    }

    /// Raises the global epoch; the one before is the snapshot's.
    async fn advance_epoch(&self, snapshot: &Snapshot) -> Result<u32, TxnError> {
        let keeper = self.core.keeper();
        let near = snapshot.places.iter().find(|place| place.node == keeper).and_then(Place::superblock);
        let epoch = if let Some(superblock) = near {
            superblock.advance_epoch()
        } else {
            let mut batch = self.core.take_batch();
            let slot = batch.fetch_add(Epoch::place(keeper), 1);
            let batch = self.core.endpoint.submit(batch).await;
            let epoch = batch.word(slot).map_err(|error| self.core.far_error(error, keeper))?;
            self.core.give_batch(batch);
            epoch as u32
        };
        self.core.saw_epoch(epoch + 1);
        Ok(epoch)
    }

    /// The tasks of a table, also for nodes whose memory is not mapped here.
    ///
    /// # Errors
    /// An unavailable node, a dropped table, a damaged region.
    pub async fn snapshot_pages(&self, snapshot: &Snapshot, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        let mut tasks = snapshot.pages(table)?;
        for (position, place) in snapshot.places.iter().enumerate() {
            if place.memory.is_none() && !table.0.route.is_local_only() {
                let request = Request::Pages { table: table.id() };
                let runs = self.core.ask(place.node, &request, read_runs).await?;
                let task =
                    |(run, slots)| PageTask { node: place.node, place: position, run, slots, table: table.clone() };
                tasks.extend(runs.into_iter().map(task));
            }
        }
        Ok(tasks)
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
        let core = &*self.core;
        let place = &snapshot.places[task.place];
        if place.memory.is_some() && !core.handle.is_virtual() {
            return snapshot.scan_page(task, visit);
        }
        self.check(snapshot)?;
        let room = task.run.class.payload_bytes_max();
        let mut offsets: Vec<u64> = task.run.slots().take(task.slots as usize).collect();
        let mut turns = 0;
        while !offsets.is_empty() {
            let mut later = Vec::new();
            for chunk in offsets.chunks(READS_PER_BATCH) {
                let mut batch = core.take_batch();
                let at = |offset: u64| FarPtr::new(place.node, DATA, offset);
                let slots: Vec<_> =
                    chunk.iter().map(|offset| (*offset, batch.read_object(at(*offset), room))).collect();
                let batch = core.endpoint.submit(batch).await;
                for (offset, slot) in slots {
                    match batch.object(slot) {
                        Ok(view) if view.lock != 0 => later.push(offset),
                        Ok(view) if is_unsettled(&view, snapshot.epoch) => later.push(offset),
                        Ok(view) => match state_at(&view, snapshot.epoch) {
                            StateAt::Row { key_len } => visit(&view.payload[..key_len], &view.payload[key_len..]),
                            StateAt::Older(link) => {
                                self.visit_older(place.node, link, snapshot.epoch, room, visit).await?;
                            }
                            StateAt::Nothing => {}
                        },
                        Err(FabricError::Torn { .. }) => later.push(offset),
                        Err(error) => return Err(core.far_error(error, place.node)),
                    }
                }
                core.give_batch(batch);
            }
            offsets = later;
            turns += 1;
            if turns > PATIENCE_MAX {
                return Err(TxnError::NodeUnavailable { node: place.node, committed: false });
            }
            if !offsets.is_empty() {
                if turns % TURNS_PER_CHECK == 0 {
                    // Who holds them may have died with his node.
                    self.check(snapshot)?;
                }
                core.handle.pause(turns).await;
            }
        }
        self.check(snapshot)
    }

    /// Is everything still where it was, and does this node still belong to those who know?
    fn check(&self, snapshot: &Snapshot) -> Result<(), TxnError> {
        let core = &*self.core;
        let leased = core.node.replication.as_ref().is_none_or(|it| it.view.is_settled(core.handle.now_ns()));
        if leased { snapshot.check() } else { Err(TxnError::Recovering { node: core.me }) }
    }

    /// Follows the links to the copy of the snapshot's epoch, which is held for it.
    async fn visit_older(
        &self,
        node: NodeId,
        mut link: Link,
        epoch: u32,
        room: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), TxnError> {
        while !link.is_none() {
            let mut batch = self.core.take_batch();
            let slot = batch.read_object(FarPtr::new(node, DATA, link.offset()), room);
            let batch = self.core.endpoint.submit(batch).await;
            let view = batch.object(slot).map_err(|error| self.core.far_error(error, node))?;
            let meta = Meta(view.meta);
            if meta.state() != Meta::UNDO {
                return Err(TxnError::Corrupt { what: "a row's older copy is not there" });
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

/// Is it of the snapshot's time, and not replicated yet?
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

/// The object is unlocked, so whoever takes its lock later commits at a later epoch.
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

/// How many slots of a run come before those at its end that are free. Whoever takes one of these for a row from now on reads the
/// epoch of his commit afterwards, so a snapshot that is open already does not have the row.
fn used_slots(memory: &RegionMemory, run: &Run) -> u32 {
    let free = run.slots().rev().take_while(|offset| Object::at(memory, *offset).meta().state() == Meta::FREE);
    run.slot_count() - free.count() as u32
}

/// Runs of pages, come from afar, each with the slots to look at.
fn read_runs(r: &mut Reader<'_>) -> Result<Vec<(Run, u32)>, TxnError> {
    r.list(|r| {
        let (page, pages, table, class, slots) = (r.u32()?, r.u32()?, TableId(r.u32()?), r.u8()?, r.u32()?);
        if usize::from(class) >= size_class::COUNT {
            return Err(GARBAGE);
        }
        Ok((Run { page, pages, table, class: SizeClass(class), kind: PageKind::Slots }, slots))
    })
}

/// The answer to [`Request::Pages`], by who has them in `memory`.
pub(crate) fn write_runs(memory: &RegionMemory, runs: &[Run], w: &mut Writer) {
    w.list(runs, |w, run| {
        w.u32(run.page).u32(run.pages).u32(run.table.0).u8(run.class.0).u32(used_slots(memory, run));
    });
}

impl Place {
    fn superblock(&self) -> Option<Superblock<'_>> {
        self.memory.as_deref().map(|memory| Superblock::of(memory).expect("checked when the snapshot was taken"))
    }
}

impl Snapshot {
    /// Is everything still where it was?
    fn check(&self) -> Result<(), TxnError> {
        let now = self.node.settled_configuration();
        if now == Ok(self.configuration) { Ok(()) } else { Err(TxnError::Recovering { node: self.node.id() }) }
    }

    /// Which state: the transactions of all epochs up to this one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Splits a table into tasks of one run of pages each, on all nodes whose memory is mapped here (with shared memory:
    /// all; for others there is [`Worker::snapshot_pages`]).
    ///
    /// # Errors
    /// A dropped table; a damaged region.
    pub fn pages(&self, table: &Table) -> Result<Vec<PageTask>, TxnError> {
        if table.is_dropped() {
            return Err(TxnError::SchemaChanged);
        }
        let mut tasks = Vec::new();
        for (position, place) in self.places.iter().enumerate() {
            let here = place.node == self.node.id();
            let Some(memory) = &place.memory else { continue };
            if table.0.route.is_local_only() && !here {
                continue;
            }
            let refused = |error: StoreError| TxnError::store(error, place.node);
            let runs = if here {
                table.0.store.pages()
            } else {
                PageTable::of(memory).and_then(|pages| pages.runs_of(table.id())).map_err(refused)?
            };
            tasks.extend(runs.into_iter().map(|run| PageTask {
                node: place.node,
                place: position,
                slots: used_slots(memory, &run),
                run,
                table: table.clone(),
            }));
        }
        Ok(tasks)
    }

    /// Visits (key bytes, value bytes) of every row of this state in these pages, in no order.
    ///
    /// # Errors
    /// [`TxnError::NodeUnavailable`] if a row stays locked for seconds: its owner is dead; or if the pages are not mapped
    /// here.
    pub fn scan_page(&self, task: &PageTask, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), TxnError> {
        self.scan_page_part(task, usize::MAX, &mut Vec::new(), visit)
    }

    /// As [`scan_page`](Self::scan_page), with at least the first `value_bytes` bytes of each value that has so many: for
    /// scans that want the first columns of wide rows. `room` is kept between calls.
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
        let unavailable = TxnError::NodeUnavailable { node: place.node, committed: false };
        let Some(memory) = &place.memory else { return Err(unavailable) };
        let mut scan = RunScan::new(memory, task.run, self.epoch).values_up_to(value_bytes);
        let mut looks = 0_u32;
        let mut last = None;
        loop {
            let went = scan.go_on(room, &mut |_, key, value| visit(key, value));
            let went = went.map_err(|error| TxnError::store(error, place.node))?;
            let Err(blocked) = went else { return self.check() };
            if !wait_for(blocked, &mut last, &mut looks) {
                return Err(unavailable);
            }
            if looks.is_multiple_of(LOOKS_PER_TURN * TURNS_PER_CHECK) {
                self.check()?;
            }
        }
    }
}

/// Lets a row's owner go on; false if that has been long enough.
fn wait_for(blocked: Blocked, last: &mut Option<Blocked>, looks: &mut u32) -> bool {
    if *last != Some(blocked) {
        (*last, *looks) = (Some(blocked), 0);
    }
    *looks += 1;
    if looks.is_multiple_of(LOOKS_PER_TURN) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
    *looks / LOOKS_PER_TURN <= TURNS_MAX
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        for place in &self.places {
            match place.superblock() {
                Some(superblock) if superblock.incarnation() == place.incarnation => superblock.release(place.slot),
                Some(_) => {}
                None => {
                    let Place { node, slot, incarnation, .. } = *place;
                    self.node.release_later(FarPlace { node, slot, incarnation });
                }
            }
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot(epoch {})", self.epoch)
    }
}
