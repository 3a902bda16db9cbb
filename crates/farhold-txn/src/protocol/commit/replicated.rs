//! A commit's record on its way to its holders.

use crate::base::definition::Placement;
use crate::base::error::TxnError;
use crate::base::ident::LOG;
use crate::base::slots::Counter;
use crate::protocol::commit::durable::Durably;
use crate::protocol::commit::section::{Near, latch, settle, write};
use crate::protocol::commit::steps::{AGAIN_NS, Step};
use crate::protocol::core::Core;
use crate::protocol::txn::state::{Row, RowState};
use crate::protocol::txn::{CommitInfo, Txn};
use crate::replication::promise::{Promise, Sent, promise_all};
use crate::replication::{Admitted, Replication};
use crate::rpc::recovery::Message;
use farhold_fabric::{FabricError, FarPtr, NodeId, RegionMemory, Version};
use farhold_store::log::{Change, Entry, Place, RecordWriter, record};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// The most marks of a record that is written in place: up to two a holder, the record's and that of the end of a lap.
const IN_PLACE_MAX: usize = 8;

/// Waits between two messages to the reader of a ring without room.
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
    /// Everything past the commit point.
    pub(super) async fn finish_replicated(
        mut self,
        epoch: u32,
        promise: Promise,
        admitted: Option<Admitted>,
        mut durably: Durably,
    ) -> Result<CommitInfo, TxnError> {
        let core = self.core.clone();
        self.write_journal(&core, &mut durably, epoch);
        let Some(replication) = core.node.replication.clone() else { return Err(TxnError::OutcomeUnknown) };
        let optimistic = replication.config.optimistic;
        // It does not change while this commit is admitted.
        let number = replication.view.configuration().number;
        if optimistic {
            let near = Near { odd: Version::ODD, ..self.near(&core) };
            write(&near, epoch);
            latch::unlock(&near);
        }
        let is_next = self.wait_for_odd_reads(&core, true).await;
        let sent = if is_next { self.replicate(&core, promise, epoch).await } else { None };
        drop(admitted);
        let Some(sent) = sent else {
            core.settled.wake();
            core.give_up_journal();
            // Near rows stay as they are: only this node's own transactions can see them, and none of them commits.
            let unknown = Err(TxnError::OutcomeUnknown);
            self.ended(&unknown);
            return unknown;
        };
        {
            let near = self.near(&core);
            if optimistic {
                settle(&near, epoch);
                core.settled.wake();
            } else {
                write(&near, epoch);
                latch::unlock(&near);
            }
        }
        // Rows on nodes that are gone meanwhile are in their mirrors.
        let _ = self.publish_far(&core, number, |_| true).await;
        let written = self.write_far_insisting(&core, &replication, epoch, number).await;
        if written.is_none() {
            core.give_up_journal();
        }
        drop(durably);
        self.tidy_up(epoch);
        if written.is_some() {
            self.tidy_up_far_later(epoch, number, sent);
        }
        core.slot.count(Counter::FarCommits);
        let committed = match written {
            Some(()) => Ok(CommitInfo { epoch, rows_written: self.state.writes, serial: self.serial }),
            // The record is at its holders: the others will write what this node could not.
            None => Err(TxnError::OutcomeUnknown),
        };
        self.ended(&committed);
        committed
    }

    /// The rows of its record: those that it locks, without the reservations that it has given up. Where records are for columns only, the
    /// rows of tables that have a copy.
    pub(super) fn written(&self) -> impl Iterator<Item = &Row> {
        let is_for_columns = self.core.node.own_records.is_some();
        let locked = self.state.order.iter().map(|position| &self.state.rows[*position as usize]);
        locked.filter(move |row| row.state.is_write() && (!is_for_columns || row.table().is_copied()))
    }

    /// An upper bound for the bytes of its record.
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
            let full = promise_all(replication, core.slot.number(), number, &holders, size)?;
            let Some(full) = full else {
                promise.size = size;
                return Ok(promise);
            };
            if core.handle.now_ns() >= until_ns || replication.view.is_frozen() {
                return Err(TxnError::Recovering { node: full });
            }
            core.look_at_ring(replication, full, number, turn).await?;
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
            // No caller waits for it.
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
        // Mirrors have each version of a row before the next one. Journals and columns take records in any order, so they get whole rows.
        let is_patched = self.core.node.column_feed().is_none();
        // Inserts first: the node that redoes the record gives them the index entries of the rows that they replace,
        // while those are there.
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

impl Core {
    /// Writes a record into rings that this process has mapped, bodies first and then the marks; false if it has not mapped
    /// them all, or one of them has changed. Writing a ring a second time does no harm.
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
    async fn look_at_ring(
        &self,
        replication: &Replication,
        holder: NodeId,
        number: u64,
        turn: u32,
    ) -> Result<(), TxnError> {
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
            let _ = self.look_again(holder, LOG);
        }
        // The answer must be about this ring, not about one that the node's next start has made since.
        if let Ok(applied) = applied
            && replication.view.is_there(holder, number)
            && let Some(writer) = replication.writers(worker)?.get_mut(holder)
        {
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
