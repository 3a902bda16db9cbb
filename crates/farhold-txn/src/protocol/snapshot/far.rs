//! Scans of pages that are not mapped here: their rows are read one by one, in batches.

use super::mapped::MappedScan;
use super::{PageTask, Snapshot, TURNS_MIN, TURNS_PER_CHECK};
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::node::parts::{AsOf, Part, Start};
use crate::protocol::core::Core;
use crate::protocol::worker::Worker;
use farhold_fabric::{Batch, FabricError, FarPtr, Meta, ObjectView, Slot, Version};
use farhold_store::Superblock;
use farhold_store::object::{Link, RESERVED};

impl Worker {
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
    pub(super) fn check(self, incarnation: u16) -> Result<(), TxnError> {
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
