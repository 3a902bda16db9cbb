//! A commit's record on its way to its holders.

use crate::base::back_off::BackOff;
use crate::base::definition::Placement;
use crate::base::error::TxnError;
use crate::base::ident::LOG;
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use crate::protocol::txn::state::{Row, RowState};
use crate::replication::Replication;
use crate::replication::promise::Promise;
use crate::replication::promise::Sent;
use crate::replication::promise::promise_all;
use crate::rpc::message::Request;
use crate::rpc::recovery::Message;
use farhold_fabric::NodeId;
use farhold_fabric::{FabricError, FarPtr, RegionMemory};
use farhold_store::log::{Change, Entry, Place, RecordWriter, record};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// Marks of a record that is written in place: of at most so many holders, each with the end of a lap.
const IN_PLACE_MAX: usize = 8;
/// How long a coordinator waits before it looks again at a ring without room, or at a holder that does not answer.
const AGAIN_NS: u64 = 2_000;
/// The longest such wait for a node that does not answer calls: it may be silent for a lease.
const AGAIN_NS_MAX: u64 = 64_000;
/// Such waits between two messages to the reader of a ring without room.
const TURNS_PER_MESSAGE: u32 = 32;

impl Row {
    fn change(&self) -> Option<Change> {
        match self.state {
            RowState::Written => Some(Change::Write),
            RowState::Inserted => Some(Change::Insert),
            RowState::Deleted => Some(Change::Delete),
            _ => None,
        }
    }
}

impl Txn {
    /// The rows of its record: of those that it locks, not the reservations that it has given up.
    fn written(&self) -> impl Iterator<Item = &Row> {
        let locked = self.state.order.iter().map(|position| &self.state.rows[*position as usize]);
        locked.filter(|row| row.state.is_write())
    }

    /// At most so many bytes will it have.
    pub(crate) fn record_bytes(&self) -> u64 {
        let bytes = |row: &Row| {
            let value = if row.state == RowState::Deleted { 0 } else { self.state.value(row).len() };
            Entry::bytes(row.key_len as usize + value)
        };
        RecordWriter::size(self.written().map(bytes).sum())
    }

    /// Gets room for the record of this transaction at all its holders; waits while a ring is full.
    pub(crate) async fn promise_room(
        &self,
        core: &Rc<Core>,
        replication: &Arc<Replication>,
    ) -> Result<Promise, TxnError> {
        let mut nodes: Vec<NodeId> = self.written().map(|row| row.ident.node()).collect();
        nodes.dedup();
        let size = self.record_bytes();
        let bytes_max = replication.layout.record_bytes_max();
        if size > bytes_max {
            let (bytes, bytes_max) = (size as usize, bytes_max as usize);
            return Err(TxnError::TooLarge { what: "a replicated transaction", bytes, bytes_max });
        }
        let number = replication.view.configuration().number;
        let holders = replication.holders(core.me, nodes.into_iter());
        let mut promise = Promise {
            replication: replication.clone(),
            worker: core.slot.number(),
            size: 0,
            number,
            holders: holders.clone(),
        };
        let until_ns = core.handle.now_ns().saturating_add(core.node.config.request_timeout_ns);
        for turn in 0_u32.. {
            if let Some(journaling) = &core.node.journaling {
                replication.finish_closed(core.slot.number(), journaling);
            }
            let full = promise_all(replication, core.slot.number(), &holders, size)?;
            let Some(full) = full else {
                promise.size = size;
                return Ok(promise);
            };
            if core.handle.now_ns() >= until_ns || replication.view.is_frozen() {
                return Err(TxnError::Recovering { node: full });
            }
            core.look_at_ring(replication, full, turn).await?;
            if replication.view.configuration().number != number {
                return Err(TxnError::Recovering { node: full });
            }
        }
        Err(TxnError::Recovering { node: core.me })
    }

    /// Brings the record to all its holders, body first, then the mark. `None`: this node has been expelled meanwhile, or is
    /// dead, and the outcome is for others to decide.
    pub(crate) async fn replicate(&self, core: &Core, mut promise: Promise, epoch: u32) -> Option<Sent> {
        let replication = promise.replication.clone();
        // It does not change before this commit has its marks.
        let number = replication.view.configuration().number;
        let mut writer = core.record.take();
        self.make_record(&mut writer, replication.view.configuration().number, epoch);
        let worker = core.slot.number();
        let places: Vec<(NodeId, Place)> = {
            let mut writers = replication.writers(worker).ok()?;
            let holders = std::mem::take(&mut promise.holders);
            holders
                .iter()
                .filter_map(|node| Some((*node, writers.get_mut(*node)?.take(promise.size, writer.len()))))
                .collect()
        };
        promise.size = 0;
        if core.write_in_place(&replication, &mut writer, &places) {
            core.record.replace(writer);
            return (!replication.view.is_gone()).then_some(Sent { replication, worker, places, number });
        }
        let at = |node: NodeId, lsn| FarPtr::new(node, LOG, replication.layout.record(core.me, worker, lsn));
        let (mut bodies, mut marks) = (Vec::new(), Vec::new());
        for (node, place) in &places {
            if let Some((lsn, size)) = place.skip {
                let (behind, mark) = record::skip(lsn, size, place.finished);
                bodies.push(Step::write(at(*node, lsn).add(8), behind.to_vec()));
                marks.push(Step::swap(at(*node, lsn), mark));
            }
            let (behind, mark) = writer.place(place.lsn, place.finished);
            bodies.push(Step::write(at(*node, place.lsn).add(8), behind.to_vec()));
            marks.push(Step::swap(at(*node, place.lsn), mark));
        }
        core.record.replace(writer);
        if planted!(MarkFirst) {
            std::mem::swap(&mut bodies, &mut marks);
        }
        if planted!(NoReplication) {
            bodies.clear();
            marks.clear();
        }
        if !planted!(OneRound) {
            core.insist(replication.as_ref(), std::mem::take(&mut bodies), number).await?;
        }
        bodies.append(&mut marks);
        if planted!(AckBeforeMarks) {
            // Nobody waits for it.
            let mut batch = core.take_batch();
            for step in &bodies {
                step.add_to(&mut batch);
            }
            // Posted by its first poll, and then left alone.
            let mut posted = std::pin::pin!(core.endpoint.submit(batch));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let _ = std::future::Future::poll(posted.as_mut(), &mut context);
        } else {
            core.insist(replication.as_ref(), bodies, number).await?;
        }
        Some(Sent { replication, worker, places, number })
    }

    /// The record of everything that it writes.
    pub(crate) fn make_record(&self, writer: &mut RecordWriter, configuration: u64, epoch: u32) {
        writer.begin(self.owner.word(), configuration, epoch);
        // Mirrors have each version of a row before the next one. Journals are read in any order, so they get whole rows.
        let is_patched = self.core.node.journaling.is_none();
        // Inserts first: whoever redoes the record gives them the index entries of the rows that they replace, while those are there.
        let is_insert = |row: &&Row| (row.state == RowState::Inserted) != planted!(DeletesFirst);
        for row in self.written().filter(is_insert).chain(self.written().filter(|row| !is_insert(row))) {
            let Some(change) = row.change() else { continue };
            let value = if change == Change::Delete { &[][..] } else { self.state.value(row) };
            let mirrored = row.table().placement != Placement::Replicated;
            let entry = Entry {
                node: row.ident.node(),
                change,
                mirrored,
                table: row.table().store.id(),
                reference: row.ident.reference(),
                old: row.version,
                new: crate::protocol::commit::section::new_version(row.state, row.version, epoch),
                key: self.state.key(row),
                value,
            };
            if change == Change::Write && mirrored && is_patched {
                writer.add_change(&entry, self.state.old_value(row));
            } else {
                writer.add(&entry);
            }
        }
        writer.end();
    }
}

/// One instruction that may be done twice.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    at: FarPtr,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Write(Vec<u8>),
    Swap(u64),
    /// The word becomes 0, if it is this.
    Release(u64),
}

impl Step {
    pub fn write(at: FarPtr, bytes: Vec<u8>) -> Self {
        Self { at, what: What::Write(bytes) }
    }

    pub fn swap(at: FarPtr, word: u64) -> Self {
        Self { at, what: What::Swap(word) }
    }

    pub fn release(at: FarPtr, word: u64) -> Self {
        Self { at, what: What::Release(word) }
    }

    fn add_to(&self, batch: &mut farhold_fabric::Batch) -> farhold_fabric::Slot {
        match &self.what {
            What::Write(bytes) => batch.write(self.at, bytes),
            What::Swap(word) => batch.swap(self.at, *word),
            What::Release(word) => batch.compare_swap(self.at, *word, 0),
        }
    }
}

impl Core {
    /// Writes a record into rings that this process has mapped, bodies first and then the marks; false if it has not mapped
    /// them all, or one of them is not what it was. A ring that is written twice holds the same.
    fn write_in_place(&self, replication: &Replication, record: &mut RecordWriter, places: &[(NodeId, Place)]) -> bool {
        let at = |lsn| replication.layout.record(self.me, self.slot.number(), lsn);
        let mut marks: [Option<(Arc<RegionMemory>, u64, u64)>; IN_PLACE_MAX] = [const { None }; IN_PLACE_MAX];
        if places.len() * 2 > IN_PLACE_MAX {
            return false;
        }
        let mut slots = marks.iter_mut();
        for (node, place) in places {
            let Some(memory) = self.endpoint.mapped(*node, LOG) else { return false };
            if let Some((lsn, size)) = place.skip {
                let (behind, mark) = record::skip(lsn, size, place.finished);
                if memory.copy_in(at(lsn) + 8, &behind).is_err() {
                    return false;
                }
                if let Some(slot) = slots.next() {
                    *slot = Some((memory.clone(), at(lsn), mark));
                }
            }
            let (behind, mark) = record.place(place.lsn, place.finished);
            if planted!(MarkBeforeBody)
                && memory.copy_in(at(place.lsn) + 8, &behind[..record::HEADER_BYTES - 8]).is_ok()
                && let Ok(word) = memory.word(at(place.lsn))
            {
                word.store(mark, Release);
                crate::base::planted::may_stop();
            }
            if memory.copy_in(at(place.lsn) + 8, behind).is_err() {
                return false;
            }
            if let Some(slot) = slots.next() {
                *slot = Some((memory, at(place.lsn), mark));
            }
        }
        crate::base::planted::may_stop();
        // Stores in order are seen in order: each body is there before any mark is.
        marks.iter().flatten().all(|(memory, at, mark)| {
            let word = memory.word(*at);
            word.map(|word| word.store(*mark, Release)).is_ok()
        })
    }

    /// Does instructions on other nodes until each is done or its node has left the cluster as it was in the configuration
    /// with the number `since`. `None`: this node has, or is dead.
    pub async fn insist(&self, replication: &Replication, mut steps: Vec<Step>, since: u64) -> Option<()> {
        let is_there = |node| replication.view.present.contains(node) && replication.view.is_same_start(node, since);
        let mut again = BackOff::new(AGAIN_NS, AGAIN_NS_MAX);
        loop {
            steps.retain(|step| is_there(step.at.node()));
            if steps.is_empty() {
                return (!replication.view.is_gone()).then_some(());
            }
            let mut batch = self.take_batch();
            let slots: Vec<_> = steps.iter().map(|step| step.add_to(&mut batch)).collect();
            let batch = self.endpoint.submit(batch).await;
            let mut slots = slots.into_iter();
            let (mut is_dead, mut strange) = (false, Vec::new());
            steps.retain(|step| {
                let done = batch.done(slots.next().expect("one for each"));
                is_dead |= done == Err(FabricError::NodeUnavailable { node: self.me });
                // A region registered anew, or one that this endpoint had never met. Who does not answer is not asked: that would hold up
                // this thread, and with it commits that have somebody to wait for.
                if !matches!(done, Ok(()) | Err(FabricError::NodeUnavailable { .. } | FabricError::Timeout { .. })) {
                    strange.push((step.at.node(), step.at.region()));
                }
                done.is_err()
            });
            self.give_batch(batch);
            if steps.is_empty() {
                continue;
            }
            if is_dead || replication.view.is_gone() {
                return None;
            }
            for (node, region) in strange {
                let _ = self.endpoint.refresh(node, region);
            }
            again.rest(&self.handle).await;
        }
    }

    /// Asks a node until it has answered, or has left the cluster as it was in the configuration with the number `since`.
    ///
    /// # Errors
    /// What it has answered; [`TxnError::NodeUnavailable`] of this node if it has been expelled, or has ended.
    pub async fn insist_call(&self, node: NodeId, request: &Request<'_>, since: u64) -> Result<(), TxnError> {
        let Some(replication) = &self.node.replication else { return Ok(()) };
        let view = &replication.view;
        let unavailable = TxnError::NodeUnavailable { node: self.me, committed: false };
        let mut again = BackOff::new(AGAIN_NS, AGAIN_NS_MAX);
        loop {
            if view.is_gone() {
                return Err(unavailable);
            }
            if !view.present.contains(node) || !view.is_same_start(node, since) {
                return Ok(());
            }
            match self.call(node, request).await {
                Err(error @ TxnError::NodeUnavailable { .. }) if error != unavailable => {}
                // It could not be sent.
                Err(TxnError::Fabric(_)) => {}
                answered => return answered.map(drop),
            }
            if !self.node.fabric.node_is_live(self.me) {
                return Err(unavailable);
            }
            again.rest(&self.handle).await;
        }
    }

    /// How many bytes of this node's records each holder has not applied yet.
    pub async fn lags(&self) -> BTreeMap<NodeId, u64> {
        let mut lags = BTreeMap::new();
        let Some(replication) = &self.node.replication else { return lags };
        for worker in 0..replication.config.rings {
            let tails: Vec<(NodeId, u64)> = match replication.writers(worker) {
                Ok(writers) => writers.iter().map(|(holder, writer)| (holder, writer.tail())).collect(),
                Err(_) => continue,
            };
            let mut batch = self.take_batch();
            let at = |holder| FarPtr::new(holder, LOG, replication.layout.applied(self.me, worker));
            let slots: Vec<_> = tails.iter().map(|(holder, _)| batch.fetch_add(at(*holder), 0)).collect();
            let batch = if batch.is_empty() { batch } else { self.endpoint.submit(batch).await };
            for ((holder, tail), slot) in tails.into_iter().zip(slots) {
                if let Ok(applied) = batch.word(slot) {
                    *lags.entry(holder).or_default() += tail.saturating_sub(applied);
                }
            }
            self.give_batch(batch);
        }
        lags
    }

    /// Asks a ring without room how far its reader has come, and lets time pass.
    async fn look_at_ring(&self, replication: &Replication, holder: NodeId, turn: u32) -> Result<(), TxnError> {
        self.apply_log();
        let worker = self.slot.number();
        let at = FarPtr::new(holder, LOG, replication.layout.applied(self.me, worker));
        let mut batch = self.take_batch();
        // An atomic: a bulk read need not be one word at once on every fabric.
        let slot = batch.fetch_add(at, 0);
        let batch = self.endpoint.submit(batch).await;
        let applied = batch.word(slot);
        self.give_batch(batch);
        if let Err(FabricError::StaleKey { .. }) = applied {
            let _ = self.endpoint.refresh(holder, LOG);
        }
        if let (Ok(applied), Some(writer)) = (applied, replication.writers(worker)?.get_mut(holder)) {
            writer.heard(applied);
        }
        // Messages may be lost.
        if holder != self.me && turn.is_multiple_of(TURNS_PER_MESSAGE) {
            self.tell_recovery(holder, &Message::Apply);
        }
        if !self.serve_one() {
            self.handle.sleep_ns(AGAIN_NS).await;
        }
        Ok(())
    }
}
