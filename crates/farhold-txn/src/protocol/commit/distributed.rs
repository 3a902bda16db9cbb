//! The commit of a transaction that has rows on other nodes.
//!
//! ```text
//!   prepare ─► lock far ─► latch near ─► epoch ─► validate near, far ─► before_write ─► write near, unlock ─► write far, unlock
//!      │          │            │           │             │                   │               ▲
//!      └──────────┴────────────┴───────────┴─────────────┴───────────────────┘               the commit point
//!                     any refusal: unlock what is locked, nothing has happened
//! ```
//!
//! A transaction without replicas and without a journal that only writes its far rows does the near part as one hardware
//! transaction, where the processor has them (`section/rtm.rs`): lock far, epoch, validate far, then near rows at once, or from "latch
//! near" on as drawn. Far rows that are only read are not locked, so their validation must come after the near rows are; with
//! these it never does.
//!
//! Before "write far", a home makes its indexes lead to the rows that take the places of others ("publish"). One that does not answer in
//! time gets its rows later, and so does one that is cut off while they are written. The caller is told so: `silent.rs`.
//!
//! Far rows are written in three steps, each awaited, because instructions of one batch may overtake each other:
//! 1. `version | WRITING`: readers see that the row is torn (a reservation that was given up: its last version);
//! 2. the payload, and the meta word of an insert;
//! 3. the new version, and 0 into the lock word. Whoever gets the lock before the version has landed reads `WRITING` in it,
//!    which is not the version that he read before, and gives up.

use crate::base::error::TxnError;
use crate::base::ident::{DATA, Ident};
use crate::base::planted::{last_epoch, next_serial, set_unknown};
use crate::base::slots::Counter;
use crate::base::table::Index;
use crate::base::wire::read_flag;
use crate::cluster::view::Moment;
use crate::protocol::commit::durable::Durably;
use crate::protocol::commit::near::{before_write, is_plain};
use crate::protocol::commit::prepare::{Moving, moved_meanwhile};
use crate::protocol::commit::replicated::Step;
use crate::protocol::commit::section::{Near, Refused, latch, new_version, settle, validate, write};
use crate::protocol::commit::silent::unlock_when_reached;
use crate::protocol::core::Core;
use crate::protocol::execute::far::by_node;
use crate::protocol::txn::state::{Row, RowState};
use crate::protocol::txn::{CommitInfo, RowHandle, SharedTable, Txn};
use crate::replication::promise::{Promise, Sent};
use crate::replication::{Admitted, Replication};
use crate::rpc::message::Request;
use farhold_fabric::NodeId;
use farhold_fabric::object::{META, PAYLOAD, VERSION};
use farhold_fabric::{Batch, FarPtr, Meta, Slot, Version};
use farhold_store::TableId;
use farhold_store::object::size_class;
use farhold_store::{ObjectRef, Owner, Superblock};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// What is locked, to be unlocked if the commit ends early, also by being dropped.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub near: bool,
    /// The near rows have been written already, in one hardware transaction: this is past the commit point.
    pub near_is_written: bool,
    pub far: Vec<Ident>,
    /// Counted among the commits on their way.
    pub admitted: Option<Admitted>,
    /// Room in the journal, and what keeps its epoch open.
    pub durably: Durably,
}

/// What is left of a commit.
type Rest = Pin<Box<dyn Future<Output = Result<CommitInfo, TxnError>>>>;

/// The part of a commit that must come to its end: whoever waits for it may stop waiting, then the executor goes on.
struct Finishing {
    rest: Option<Rest>,
    core: Rc<Core>,
    /// When whoever waits is told that the outcome is unknown: the node may be cut off, and never hear what has become of its record.
    until_ns: u64,
    serial: u64,
    epoch: u32,
}

impl Future for Finishing {
    type Output = Result<CommitInfo, TxnError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let rest = self.rest.as_mut().expect("not polled again after its end");
        let done = rest.as_mut().poll(cx);
        if done.is_ready() {
            self.rest = None;
        } else if self.core.handle.now_ns() >= self.until_ns && !planted!(OutcomeWaitedFor) {
            // What waits here looks again by itself every few microseconds, so this comes in time. The drop has the rest go on.
            set_unknown(self.serial, self.epoch);
            return Poll::Ready(Err(TxnError::OutcomeUnknown));
        }
        done
    }
}

impl Drop for Finishing {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.core.leave(async move { drop(rest.await) });
        }
    }
}

impl Txn {
    /// Commits it, or leaves everything as it was.
    pub(crate) async fn commit_far(mut self) -> Result<CommitInfo, TxnError> {
        let core = self.core.clone();
        let (epoch, promise) = match self.lock_and_validate(&core).await {
            Ok(reached) => reached,
            Err(error) => {
                let refused = Err(core.retryable(error));
                self.ended(&refused);
                return refused;
            }
        };
        // The commit point: from here on everything is done, whatever happens to others, or to whoever waits for it.
        let Held { admitted, durably, near_is_written, .. } = std::mem::take(&mut self.held);
        self.past_commit_point();
        let serial = self.serial;
        let until_ns = if self.is_patient { u64::MAX } else { core.outcome_until_ns() };
        let rest: Rest = match promise {
            Some(promise) => Box::pin(self.finish_replicated(epoch, promise, admitted, durably)),
            None => Box::pin(self.finish_far(epoch, durably, near_is_written)),
        };
        Finishing { rest: Some(rest), core, until_ns, serial, epoch }.await
    }

    /// Everything up to the commit point; nothing is locked after an error.
    async fn lock_and_validate(&mut self, core: &Rc<Core>) -> Result<(u32, Option<Promise>), TxnError> {
        self.prepare()?;
        self.prepare_far().await?;
        self.check_replaced()?;
        self.order_writes();
        let promise = match &core.node.replication {
            Some(replication) => {
                self.expect_settled(core).await;
                if self.state.writes > 0 { Some(self.promise_room(core, replication).await?) } else { None }
            }
            None => None,
        };
        self.held.durably.room = self.promise_journal(core).await?;
        let outcome = self.reach_commit_point(core).await;
        if outcome.is_err() {
            self.held.durably = Durably::default();
            // What is dropped while it waits is still in `held`.
            drop(self.held.admitted.take());
            let near = std::mem::take(&mut self.held.near);
            let held = Held { near, far: self.held.far.clone(), ..Held::default() };
            self.release(held).await;
            self.held.far.clear();
        }
        outcome.map(|epoch| (epoch, promise))
    }

    /// Everything behind the commit point, where rows are replicated.
    async fn finish_replicated(
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
            // Near rows stay as they are: nobody but this node's own transactions can see them, and none of them commits.
            let unknown = Err(TxnError::OutcomeUnknown);
            set_unknown(self.serial, epoch);
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
        let written = self.write_far_replicated(&core, &replication, epoch, number).await;
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
        if written.is_none() {
            set_unknown(self.serial, epoch);
        }
        self.ended(&committed);
        committed
    }

    /// As [`Self::write_far`], insisting: an instruction whose answer is lost is done again, so the row stays locked until its
    /// version is known to be there. It was let past its commit point in the configuration with this number.
    async fn write_far_replicated(
        &self,
        core: &Core,
        replication: &Replication,
        epoch: u32,
        number: u64,
    ) -> Option<()> {
        let rows: Vec<&Row> = self.far_writes().collect();
        let new = |row: &Row| new_version(row.state, row.version, epoch);
        let with_value =
            |row: &&&Row| !row.state.leaves_nothing() && (row.has_new_value() || row.state == RowState::Inserted);
        let marks = rows.iter().map(|row| Step::swap(row.ident.far().add(VERSION), first_version(row, epoch).0));
        core.insist(replication, marks.collect(), number).await?;
        let payloads = rows.iter().filter(with_value).flat_map(|row| {
            let (key, value) = (self.state.key(row), self.state.value(row));
            let meta = Meta::new(at_incarnation(row), Meta::ROW, key.len(), key.len() + value.len());
            let at = row.ident.far();
            [Step::swap(at.add(META), meta.0), Step::write(at.add(PAYLOAD + key.len() as u64), value.to_vec())]
        });
        core.insist(replication, payloads.collect(), number).await?;
        let versions = rows.iter().map(|row| Step::swap(row.ident.far().add(VERSION), new(row).0));
        core.insist(replication, versions.collect(), number).await?;
        let locks = rows.iter().map(|row| Step::release(Core::lock_place(row.ident), self.owner.word()));
        core.insist(replication, locks.collect(), number).await
    }

    /// Everything behind the commit point.
    async fn finish_far(
        mut self,
        epoch: u32,
        mut durably: Durably,
        near_is_written: bool,
    ) -> Result<CommitInfo, TxnError> {
        let core = self.core.clone();
        if planted!(LateRecord) {
            drop(durably.open.take());
        }
        if planted!(LateRecord) || planted!(OpenIgnored) {
            core.handle.yield_now().await;
        }
        self.write_journal(&core, &mut durably, epoch);
        let silent = self.publish_far(&core, 0, |_| true).await;
        if !near_is_written {
            let near = self.near(&core);
            write(&near, epoch);
            latch::unlock(&near);
        }
        let has_heard = |node| !silent.contains(&node);
        // It has waited. What the next start of a home has freed may be another transaction's by now.
        let may_have_waited = !self.replacing_far().is_empty() || core.starts_met.get() > self.locked_met;
        let freed = if may_have_waited { self.look_at_locks(&core, has_heard).await.freed } else { Vec::new() };
        let is_there = |node| has_heard(node) && !core.has_met_start(node, self.locked_met);
        let is_ours = |ident: Ident| is_there(ident.node()) && !freed.contains(&ident);
        let lost = self.write_far(&core, epoch, is_ours).await;
        let missed = self.far_writes().map(|row| row.ident).find(|ident| !is_ours(*ident));
        let unavailable = lost.first().copied().or(missed.map(Ident::node));
        let durably = (!silent.is_empty() || !lost.is_empty()).then_some(durably);
        self.tidy_up(epoch);
        if let Some(replication) = &core.node.replication {
            // It writes nothing. What it has given up goes certainly, because no restart of this node would see to it.
            self.cancel_later(replication);
        } else {
            self.tidy_up_far(epoch, |node| has_heard(node) && !lost.contains(&node)).await;
        }
        core.slot.count(Counter::FarCommits);
        let committed = match unavailable {
            Some(node) => {
                set_unknown(self.serial, epoch);
                Err(TxnError::NodeUnavailable { node, committed: true })
            }
            None => Ok(CommitInfo { epoch, rows_written: self.state.writes, serial: self.serial }),
        };
        self.ended(&committed);
        if let Some(durably) = durably {
            core.leave(self.finish_at_silent(epoch, durably, silent, lost));
        }
        committed
    }

    /// Locks, validates and prepares the rest; everything up to the first write.
    async fn reach_commit_point(&mut self, core: &Rc<Core>) -> Result<u32, TxnError> {
        self.lock_far(core).await?;
        if self.may_use_hardware(core)
            && let Some(epoch) = self.commit_near_in_hardware(core).await?
        {
            return Ok(epoch);
        }
        let locked = latch::lock(&self.near(core));
        locked.map_err(|refused| self.refused(refused))?;
        self.held.near = true;
        if self.state.writes > 0 {
            self.held.durably.open = core.open_commit();
        }
        // A read-only transaction is at no epoch, and validates without any lock.
        let epoch = if self.state.writes > 0 { core.read_epoch().await? } else { 0 };
        let epoch = last_epoch(core.me, epoch);
        self.serial = next_serial();
        let valid = validate(&self.near(core));
        valid.map_err(|refused| self.refused(refused))?;
        let snapshots_at = self.validate_far(core).await?;
        if let Some(replication) = &core.node.replication {
            let is_current = || core.node.catalog.indexes_version() == self.indexes_version;
            if self.state.writes > 0 {
                let admitted = replication.admit(core.slot.number(), Moment::now(&core.handle), is_current);
                self.held.admitted = Some(admitted.ok_or(TxnError::Recovering { node: core.me })?);
            } else {
                let is_certain = self.wait_for_odd_reads(core, false).await;
                if !replication.view.is_settled(Moment::now(&core.handle)) || !is_current() {
                    return Err(TxnError::Recovering { node: core.me });
                }
                if !is_certain {
                    return Err(self.refused(Refused::Changed));
                }
            }
        }
        if self.state.writes > 0 {
            self.prepare_snapshots(core, epoch, &snapshots_at).await?;
            let prepared = before_write(core, &self.near(core), self.indexes_version, epoch);
            prepared.map_err(|refused| self.refused(refused))?;
        }
        Ok(epoch)
    }

    /// Can the near part be one hardware transaction, while all far rows are locked?
    fn may_use_hardware(&self, core: &Core) -> bool {
        let (me, state, node) = (core.me, &self.state, &core.node);
        let is_lone = node.replication.is_none() && node.journaling.is_none();
        let is_locked = |row: &Row| row.ident.node() == me || row.state.is_locked_by_commit();
        is_lone
            && state.replacing.is_empty()
            && core.epoch.near().is_some()
            && !self.near(core).order.is_empty()
            && state.rows.iter().all(is_locked)
            && state.groups().iter().all(|group| group.node == me)
            && state.buckets.as_slice().iter().all(|(node, _)| *node == me)
            && core.tries_hardware()
    }

    /// Validates and writes the near rows; the commit point is behind it. `None`: nothing has happened near.
    async fn commit_near_in_hardware(&mut self, core: &Core) -> Result<Option<u32>, TxnError> {
        let Some(epoch) = core.epoch.near() else { return Ok(None) };
        let snapshots_at = self.validate_far(core).await?;
        self.prepare_snapshots(core, epoch, &snapshots_at).await?;
        let serial = std::cell::Cell::new(0);
        let draw = || {
            serial.set(next_serial());
            last_epoch(core.me, epoch)
        };
        // The epoch that far snapshots were asked for must be that of the near rows.
        let is_plain = || is_plain(core, self.indexes_version) && core.epoch.near() == Some(epoch);
        match core.commit_in_hardware(&self.near(core), draw, is_plain) {
            None => Ok(None),
            Some(Err(refused)) => Err(self.refused(refused)),
            Some(Ok(epoch)) => {
                self.serial = serial.get();
                self.held.near_is_written = true;
                core.slot.count(Counter::HardwareFarCommits);
                Ok(Some(epoch))
            }
        }
    }

    fn near<'t>(&'t self, core: &'t Core) -> Near<'t> {
        // Idents sort by node: the near rows are one stretch of the order.
        let order = &self.state.order;
        let node_of = |position: &u32| self.state.rows[*position as usize].ident.node();
        let from = order.partition_point(|position| node_of(position) < core.me);
        let to = order.partition_point(|position| node_of(position) <= core.me);
        let (store, state) = (&*core.node.store, &*self.state);
        Near { store, node: core.me, state, order: &order[from..to], owner: self.owner, odd: 0 }
    }

    pub(super) fn far_writes(&self) -> impl Iterator<Item = &Row> {
        let me = self.core.me;
        self.state
            .order
            .iter()
            .map(|position| &self.state.rows[*position as usize])
            .filter(move |row| row.ident.node() != me)
    }

    /// Locks every far row to write, or fails; what it got is in `held`.
    async fn lock_far(&mut self, core: &Core) -> Result<(), TxnError> {
        let idents: Vec<Ident> = self.far_writes().map(|row| row.ident).collect();
        if idents.is_empty() || planted!(NoFarLock) {
            return Ok(());
        }
        if idents.iter().any(|ident| core.has_met_start(ident.node(), self.starts_met)) {
            // Another task of the worker has: the slots may be in the middle of others' rows by now.
            return Err(self.refused(Refused::Changed));
        }
        let mut batch = core.take_batch();
        let slots: Vec<_> =
            idents.iter().map(|ident| batch.compare_swap(Core::lock_place(*ident), 0, self.owner.word())).collect();
        // Counted as held before it is known: an instruction under way cannot be called back.
        self.held.far.clone_from(&idents);
        self.locked_met = core.starts_met.get();
        let batch = core.endpoint.submit(batch).await;
        self.held.far.clear();
        let mut refused = None;
        for (ident, slot) in idents.iter().zip(slots) {
            match batch.word(slot) {
                Ok(0) => self.held.far.push(*ident),
                Ok(word) if word == Owner::DAMAGED.word() => refused = Some(Some(TxnError::HALF_WRITTEN)),
                Ok(_) => refused = Some(None),
                Err(error) => {
                    // It may have been done, and its answer lost.
                    self.held.far.push(*ident);
                    refused = Some(Some(core.far_error(error, ident.node())));
                }
            }
        }
        core.give_batch(batch);
        match refused {
            None => Ok(()),
            Some(None) => Err(self.refused(Refused::Locked)),
            Some(Some(error)) => Err(error),
        }
    }

    /// Is every far row and stamp as it was? Returns the nodes of far writes where snapshots are open.
    async fn validate_far(&mut self, core: &Core) -> Result<Vec<NodeId>, TxnError> {
        // Without copies first, because these are messages: a home that ends meanwhile and starts again has freed its locks, which shows in the
        // headers. With copies a new configuration shows it, and homes that stand still are noticed last.
        let has_copies = core.node.replication.is_some();
        if !has_copies {
            self.validate_far_stamps(core).await?;
        }
        let mut batch = core.take_batch();
        let me = core.me;
        let locks_all = self.state.writes > 0 && !has_copies;
        let read = |row: &&Row| row.ident.node() != me && (locks_all || row.state != RowState::Gone);
        let rows: Vec<Row> = self.state.rows.iter().filter(read).copied().collect();
        // Lock and version are neighbours: 16 aligned bytes, never torn apart by any fabric.
        let headers: Vec<_> = rows.iter().map(|row| batch.read(row.ident.far(), 16)).collect();
        let buckets: Vec<_> = self.state.buckets.as_slice().iter().filter(|(node, _)| *node != me).copied().collect();
        let words: Vec<_> =
            buckets.iter().map(|(node, it)| batch.read(FarPtr::new(*node, DATA, it.offset), 8)).collect();
        let mut nodes: Vec<NodeId> = self.far_writes().map(|row| row.ident.node()).collect();
        nodes.dedup();
        let open: Vec<_> =
            nodes.iter().map(|node| batch.read(FarPtr::new(*node, DATA, Superblock::ACTIVE), 8)).collect();
        let homes = if has_copies { Vec::new() } else { self.homes_of_ranges_alone(&rows) };
        let starts: Vec<_> =
            homes.iter().map(|node| batch.read(FarPtr::new(*node, DATA, Superblock::STARTS), 8)).collect();
        let batch = if batch.is_empty() { batch } else { core.endpoint.submit(batch).await };
        let mut outcome = Ok(());
        for (node, slot) in homes.into_iter().zip(starts) {
            outcome = outcome.and(batch.done(slot).map_err(|error| Ok(core.far_error(error, node))));
        }
        for (row, slot) in rows.iter().zip(headers) {
            outcome = outcome.and(match batch.bytes(slot) {
                Ok(header) => check_header(row, header, self.owner.word(), locks_all).map_err(Err),
                Err(error) => Err(Ok(core.far_error(error, row.ident.node()))),
            });
        }
        for ((node, bucket), slot) in buckets.iter().zip(words) {
            outcome = outcome.and(match batch.bytes(slot) {
                Ok(word) if word == bucket.word.to_le_bytes() => Ok(()),
                Ok(_) => Err(Err(Refused::Changed)),
                Err(error) => Err(Ok(core.far_error(error, *node))),
            });
        }
        let mut snapshots_at = Vec::new();
        for (node, slot) in nodes.into_iter().zip(open) {
            match batch.bytes(slot) {
                Ok(count) if count.iter().any(|byte| *byte != 0) => snapshots_at.push(node),
                Ok(_) => {}
                Err(error) => outcome = outcome.and(Err(Ok(core.far_error(error, node)))),
            }
        }
        core.give_batch(batch);
        outcome.map_err(|error| error.unwrap_or_else(|refused| self.refused(refused)))?;
        if has_copies {
            self.validate_far_stamps(core).await?;
        }
        if core.starts_met.get() > self.starts_met {
            let read_at = self.state.groups().iter().map(|group| group.node);
            let mut nodes = read_at.chain(self.state.buckets.as_slice().iter().map(|(node, _)| *node));
            if nodes.any(|node| core.has_met_start(node, self.starts_met)) {
                // Another task of the worker has: the stamps of an earlier start may be those of other leaves and buckets.
                return Err(self.refused(Refused::Changed));
            }
        }
        Ok(snapshots_at)
    }

    /// Other nodes where it has met ranges, and no rows. Of these nothing else is read that the fabric would refuse if they had started again: the stamps of
    /// leaves, which only they know themselves, may come again in the indexes of their next start.
    fn homes_of_ranges_alone(&self, rows: &[Row]) -> Vec<NodeId> {
        let mut homes: Vec<NodeId> = self.state.groups().iter().map(|group| group.node).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.retain(|home| *home != self.core.me && rows.iter().all(|row| row.ident.node() != *home));
        homes
    }

    pub(crate) async fn validate_far_stamps(&mut self, core: &Core) -> Result<(), TxnError> {
        if planted!(NoPhantomCheck) {
            return Ok(());
        }
        for position in 0..self.state.groups().len() {
            let group = &self.state.groups()[position];
            if group.node == core.me {
                continue;
            }
            let mut leaves = group.leaves.as_slice().to_vec();
            leaves.sort_unstable();
            leaves.dedup();
            let (node, table, index) = (group.node, group.table().store.id(), group.index.number() as u16);
            for leaves in leaves.chunks(STAMPS_MAX) {
                let request = Request::Validate { table, index, leaves: leaves.to_vec() };
                let valid = core.ask(node, &request, read_flag).await?;
                if !valid {
                    return Err(self.refused(Refused::Changed));
                }
            }
        }
        Ok(())
    }

    /// As [`Self::save_undo_far`]; a home that has started again meanwhile has freed its locks.
    async fn prepare_snapshots(&self, core: &Core, epoch: u32, snapshots_at: &[NodeId]) -> Result<(), TxnError> {
        if snapshots_at.is_empty() {
            return Ok(());
        }
        self.save_undo_far(core, epoch, snapshots_at).await?;
        if core.node.replication.is_some() {
            return Ok(());
        }
        let locks = self.look_at_locks(core, |_| true).await;
        if locks.are_held() || planted!(NoFarLock) { Ok(()) } else { Err(self.refused(Refused::Changed)) }
    }

    /// Has the homes of far writes save what snapshots need. Harmless if the commit fails after all.
    async fn save_undo_far(&self, core: &Core, epoch: u32, snapshots_at: &[NodeId]) -> Result<(), TxnError> {
        for &node in snapshots_at {
            if planted!(NoUndo) {
                continue;
            }
            let wanted = |row: &&Row| {
                let is_new = matches!(row.state, RowState::Inserted | RowState::Gone);
                row.ident.node() == node && !is_new && row.version.epoch() < epoch
            };
            let rows = self.far_writes().filter(wanted).map(|row| (row.table().store.id(), row.ident.reference()));
            let rows: Vec<(TableId, ObjectRef)> = rows.collect();
            for rows in rows.chunks(STAMPS_MAX) {
                let request = Request::SaveUndo { owner: self.owner.word(), epoch, rows: rows.to_vec() };
                core.call(node, &request).await?;
            }
        }
        Ok(())
    }

    /// Has the homes of rows that moved swing the index entries, while the old rows are locked. Past the commit point: an
    /// entry that had been swung for a transaction that then fails would leave a row that no index leads to. Returns the nodes, of those
    /// that are `asked`, that have not answered: no row there may be written yet (`silent.rs`).
    pub(super) async fn publish_far(&self, core: &Core, number: u64, asked: impl Fn(NodeId) -> bool) -> Vec<NodeId> {
        let mut silent = Vec::new();
        let replacing = self.replacing_far().into_iter().filter(|(node, _, _)| asked(*node));
        for (node, table, references) in replacing {
            let replaced: Vec<ObjectRef> = self.replaced_at(node, table).collect();
            for references in references.chunks(STAMPS_MAX.min(NAMED_MAX - replaced.len())) {
                if silent.contains(&node) {
                    break;
                }
                let request = Request::Publish { table, references: references.to_vec(), replaced: replaced.clone() };
                if core.node.replication.is_some() {
                    let _ = core.insist_call(node, &request, number).await;
                } else if !matches!(core.call(node, &request).await, Ok(_) | Err(TxnError::SchemaChanged)) {
                    // Not heard, or not for certain. (A table that is gone needs nothing.)
                    silent.push(node);
                }
            }
        }
        silent
    }

    /// The far rows that take the places of others.
    fn replacing_far(&self) -> Vec<(NodeId, TableId, Vec<ObjectRef>)> {
        let me = self.core.me;
        let replacing = self.state.replacing.iter().map(|position| &self.state.rows[*position as usize]);
        let inserted = replacing.filter(|row| row.state == RowState::Inserted && row.ident.node() != me);
        by_node(inserted.map(|row| (row.ident.node(), row.table().store.id(), row.ident.reference())))
    }

    /// What their index entries may lead to until then.
    fn replaced_at(&self, node: NodeId, table: TableId) -> impl Iterator<Item = ObjectRef> {
        let is_of = move |row: &&Row| row.ident.node() == node && row.table().store.id() == table;
        let replaced = self.state.rows.iter().filter(|row| row.state.leaves_nothing()).filter(is_of);
        replaced.map(|row| row.ident.reference())
    }

    /// Can each home be told by messages which rows are replaced there? Asked before the commit point: behind it nobody could refuse.
    fn check_replaced(&self) -> Result<(), TxnError> {
        const REFERENCE_BYTES: usize = size_of::<ObjectRef>();
        let counts = self.replacing_far().into_iter().map(|(node, table, _)| self.replaced_at(node, table).count());
        match counts.max().filter(|count| *count > REPLACED_MAX) {
            Some(count) => Err(TxnError::TooLarge {
                what: "the list of rows of one table that a transaction deletes on another node, beside some that move there,",
                bytes: count * REFERENCE_BYTES,
                bytes_max: REPLACED_MAX * REFERENCE_BYTES,
            }),
            None => Ok(()),
        }
    }

    /// Writes and unlocks some of the far rows; names the nodes whose rows could not be written. What comes after a step that is lost is not done there: a row
    /// whose value is not there must not get its version.
    pub(super) async fn write_far(&self, core: &Core, epoch: u32, is_one: impl Fn(Ident) -> bool) -> Vec<NodeId> {
        let mut rows: Vec<&Row> = self.far_writes().filter(|row| is_one(row.ident)).collect();
        let (mut lost, mut slots) = (Vec::new(), Vec::new());
        if rows.is_empty() {
            return lost;
        }
        let mut batch = core.take_batch();
        for row in &rows {
            let slot = batch.swap(row.ident.far().add(VERSION), first_version(row, epoch).0);
            slots.push((row.ident.node(), slot));
            if planted!(EarlyUnlock) {
                slots.push((row.ident.node(), batch.clear_word(Core::lock_place(row.ident))));
                slots.push((row.ident.node(), batch.swap(row.ident.far().add(VERSION), row.version.0)));
            }
        }
        batch = submit_all(core, batch, &mut slots, &mut lost).await;
        self.keep_reached(core, &mut rows, &mut lost);
        for row in &rows {
            let (key, value) = (self.state.key(row), self.state.value(row));
            if !row.state.leaves_nothing() && (row.has_new_value() || row.state == RowState::Inserted) {
                let at = row.ident.far();
                let meta = Meta::new(at_incarnation(row), Meta::ROW, key.len(), key.len() + value.len());
                slots.push((row.ident.node(), batch.write(at.add(META), &meta.0.to_le_bytes())));
                slots.push((row.ident.node(), batch.write(at.add(PAYLOAD + key.len() as u64), value)));
            }
        }
        if !batch.is_empty() {
            batch = submit_all(core, batch, &mut slots, &mut lost).await;
        }
        self.keep_reached(core, &mut rows, &mut lost);
        for row in &rows {
            let version = new_version(row.state, row.version, epoch);
            slots.push((row.ident.node(), batch.swap(row.ident.far().add(VERSION), version.0)));
            slots.push((row.ident.node(), batch.clear_word(Core::lock_place(row.ident))));
        }
        if !batch.is_empty() {
            batch = submit_all(core, batch, &mut slots, &mut lost).await;
        }
        core.give_batch(batch);
        lost
    }

    /// Leaves out rows of homes where a step is lost, or that have started again meanwhile, which another task of the worker may have met: what is in the
    /// slots there by now is others'.
    fn keep_reached(&self, core: &Core, rows: &mut Vec<&Row>, lost: &mut Vec<NodeId>) {
        for node in rows.iter().map(|row| row.ident.node()) {
            if core.has_met_start(node, self.locked_met) && !lost.contains(&node) {
                lost.push(node);
            }
        }
        rows.retain(|row| !lost.contains(&row.ident.node()));
    }

    /// Tells some homes of far deletes that the rows can leave the indexes, and of what was inserted and deleted.
    pub(super) async fn tidy_up_far(&self, epoch: u32, is_of: impl Fn(NodeId) -> bool) {
        let of = |state| self.far_rows(state).into_iter().filter(|(node, ..)| is_of(*node));
        let (deleted, gone) = (of(RowState::Deleted), of(RowState::Gone));
        // A node that has ended finds both out for itself when it starts again.
        for (node, table, references) in deleted {
            for references in references.chunks(STAMPS_MAX) {
                self.tell_of_rows(node, Request::Remove { table, epoch, references: references.to_vec() }).await;
            }
        }
        for (node, table, references) in gone {
            for references in references.chunks(STAMPS_MAX) {
                self.tell_of_rows(node, Request::Cancel { table, references: references.to_vec() }).await;
            }
        }
    }

    /// Tells a home what has become of rows, also one that stands still or is cut off for longer than a request may take.
    async fn tell_of_rows(&self, node: NodeId, request: Request<'static>) {
        if self.core.endpoint.maps_others() {
            self.core.tell_certainly(node, &request).await;
        } else {
            self.core.tell_for_certain(node, request);
        }
    }

    /// As [`Self::tidy_up_far`], certainly, and without making the commit wait. The record is finished only then: it alone says what is
    /// to leave the indexes, if this node dies before the homes have heard of it.
    fn tidy_up_far_later(&self, epoch: u32, number: u64, sent: Sent) {
        let (deleted, gone) = (self.far_rows(RowState::Deleted), self.far_rows(RowState::Gone));
        if deleted.is_empty() && gone.is_empty() {
            sent.finish(self.core.node.journaling.as_deref(), epoch);
            return;
        }
        let core = self.core.clone();
        self.core.leave(async move {
            for (node, table, references) in deleted {
                for references in references.chunks(STAMPS_MAX) {
                    let request = Request::Remove { table, epoch, references: references.to_vec() };
                    if let Err(TxnError::NodeUnavailable { .. }) = core.insist_call(node, &request, number).await {
                        // This node is: it is for others to redo the record.
                        return;
                    }
                }
            }
            sent.finish(core.node.journaling.as_deref(), epoch);
            core.cancel_certainly(gone, number).await;
        });
    }

    /// As [`Self::tidy_up_far_later`], of a transaction that has written nothing.
    fn cancel_later(&self, replication: &Replication) {
        let gone = self.far_rows(RowState::Gone);
        if !gone.is_empty() {
            let (core, number) = (self.core.clone(), replication.view.configuration().number);
            self.core.leave(async move { core.cancel_certainly(gone, number).await });
        }
    }

    /// The far rows in a state, by their homes and tables.
    fn far_rows(&self, state: RowState) -> Vec<(NodeId, TableId, Vec<ObjectRef>)> {
        let me = self.core.me;
        let rows = self.state.rows.iter().filter(|row| row.state == state && row.ident.node() != me);
        by_node(rows.map(|row| (row.ident.node(), row.table().store.id(), row.ident.reference())))
    }

    /// Unlocks.
    async fn release(&self, held: Held) {
        self.release_near(&held);
        unlock_far(&self.core, &held.far, self.owner.word()).await;
    }

    pub(crate) fn release_near(&self, held: &Held) {
        if held.near {
            latch::unlock(&self.near(&self.core));
        }
    }

    /// Moves the far rows that have to, and brings the copies of changed replicated rows into the write set.
    async fn prepare_far(&mut self) -> Result<(), TxnError> {
        let mut moving = Vec::new();
        for handle in (0..self.state.rows.len() as u32).map(RowHandle) {
            let row = self.state.row(handle);
            if row.ident.node() != self.core.me && row.has_new_value() && self.must_move_far(handle)? {
                moving.push(handle);
            }
        }
        let moving: Vec<Moving> = moving.into_iter().map(|handle| self.take_out(handle)).collect();
        for moving in moving {
            self.put_far(moving).await?;
        }
        for position in 0..self.state.rows.len() {
            let row = *self.state.row(RowHandle(position as u32));
            let is_copied = row.table().route.writes_everywhere() && row.ident.node() == self.core.me && !self.copying;
            if row.state.is_write() && is_copied {
                let core = self.core.clone();
                for node in core.node.others() {
                    self.copy_to(node, RowHandle(position as u32)).await?;
                }
            }
        }
        Ok(())
    }

    /// As `must_move`, by the size class that the row needs now: that of its slot is known at home alone.
    fn must_move_far(&self, handle: RowHandle) -> Result<bool, TxnError> {
        let row = self.state.row(handle);
        if !matches!(row.state, RowState::Written | RowState::Inserted) {
            return Ok(false);
        }
        let (key, old, new) = (self.state.key(row), self.state.old_value(row), self.state.value(row));
        if new.len() > old.len() && !size_class::fits(key.len() + old.len(), key.len() + new.len()) {
            return Ok(true);
        }
        if row.table().has_secondary() { row.table().changes_keys(key, old, new) } else { Ok(false) }
    }

    async fn put_far(&mut self, moving: Moving) -> Result<(), TxnError> {
        let Moving { table, node, key, value } = moving;
        self.insert_far(table, node, &key, &value).await.map(|_| ()).map_err(moved_meanwhile)
    }

    /// Does to a node's copy of a replicated row what is to be done to ours.
    async fn copy_to(&mut self, node: NodeId, handle: RowHandle) -> Result<(), TxnError> {
        let row = *self.state.row(handle);
        let table = SharedTable(row.table);
        let (key, value) = (self.state.key(&row).to_vec(), self.state.value(&row).to_vec());
        // Where ours is not like its copy somebody is in the middle of changing all, who holds the locks of one of them; or it stays so, where a death
        // has left copies different: then this write makes them alike.
        let may_differ = self.core.node.records_may_differ();
        if row.state == RowState::Inserted {
            match self.insert_far(table, node, &key, &value).await {
                Ok(_) => return Ok(()),
                Err(TxnError::DuplicateKey { index: Index::Primary, .. }) if may_differ => {}
                Err(error) => return Err(taken_meanwhile(error)),
            }
        }
        let Some(copy) = self.get_far(table, node, Index::Primary, &key).await? else {
            return match row.state {
                // A node that is joining may not have been given it yet. If it is just being given, one of the two is refused.
                _ if self.core.is_joining(node) => Ok(()),
                RowState::Deleted if may_differ => Ok(()),
                RowState::Inserted => Err(TxnError::Conflict),
                _ if may_differ => self.insert_far(table, node, &key, &value).await.map(drop).map_err(taken_meanwhile),
                _ => Err(TxnError::Conflict),
            };
        };
        if row.state == RowState::Deleted {
            self.state.delete(copy);
            return Ok(());
        }
        self.check_room(value.len())?;
        self.state.set_value(copy, &value);
        if self.must_move_far(copy)? {
            let moving = self.take_out(copy);
            self.put_far(moving).await
        } else {
            Ok(())
        }
    }
}

/// A key that is taken at a node where ours is not there, as a conflict: of another index it is an answer.
fn taken_meanwhile(error: TxnError) -> TxnError {
    match error {
        TxnError::DuplicateKey { index: Index::Primary, .. } => TxnError::Conflict,
        error => error,
    }
}

/// A lease, its detection, the wait for renewals under way, a leader that dies meanwhile, and as much again.
const LEASES_FOR_OUTCOME: u64 = 8;

/// Stamps or references in one message.
const STAMPS_MAX: usize = 2_000;
/// References in one message at most, of two lists: 62.5 KiB of 65.
const NAMED_MAX: usize = 8_000;
/// Replaced rows that one message names, so that there is room for the rows that replace them.
const REPLACED_MAX: usize = NAMED_MAX - 100;

/// The version that a far row gets first. A reservation that was given up has nothing that could be half written: without
/// the mark, it can be taken back if its coordinator dies.
fn first_version(row: &Row, epoch: u32) -> Version {
    if row.state == RowState::Gone {
        new_version(row.state, row.version, epoch)
    } else {
        row.version.with(Version::WRITING)
    }
}

fn at_incarnation(row: &Row) -> u32 {
    row.ident.reference().incarnation()
}

/// Is the row at its version, and locked by nobody, or by the transaction if it writes it, or anything?
fn check_header(row: &Row, header: &[u8], owner: u64, locks_all: bool) -> Result<(), Refused> {
    let word = |at: usize| header[at..at + 8].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    let (lock, version) = (word(0), word(8));
    if version != row.version.0 && !planted!(NoValidation) {
        return Err(Refused::Changed);
    }
    let is_locked = row.state.is_write() || (locks_all && row.state.is_locked_by_commit());
    let free = if is_locked && !planted!(NoFarLock) { lock == owner } else { lock == 0 || lock == owner };
    let free = free || planted!(NoValidation) || planted!(NoFarLock) || planted!(LockIgnored) || planted!(EarlyUnlock);
    if free { Ok(()) } else { Err(Refused::Locked) }
}

/// Submits a batch; remembers the nodes that did not take their parts.
async fn submit_all(core: &Core, batch: Batch, slots: &mut Vec<(NodeId, Slot)>, lost: &mut Vec<NodeId>) -> Batch {
    let mut batch = core.endpoint.submit(batch).await;
    for (node, slot) in slots.drain(..) {
        if batch.done(slot).is_err() && !lost.contains(&node) {
            lost.push(node);
        }
    }
    batch.clear();
    crate::base::planted::may_stop();
    batch
}

impl Core {
    /// Gives reservations on other nodes back, however often it has to be said.
    async fn cancel_certainly(&self, gone: Vec<(NodeId, TableId, Vec<ObjectRef>)>, number: u64) {
        for (node, table, references) in gone {
            for references in references.chunks(STAMPS_MAX) {
                let request = Request::Cancel { table, references: references.to_vec() };
                let _ = self.insist_call(node, &request, number).await;
            }
        }
    }

    /// Until when whoever has passed a commit point waits, at most: longer than the others take to go on without a node that does not
    /// answer, which a commit is then done without. Without copies each step of a commit has an end of its own.
    pub fn outcome_until_ns(&self) -> u64 {
        let Some(replication) = &self.node.replication else { return u64::MAX };
        let leases_ns = replication.config.lease_ns.saturating_mul(LEASES_FOR_OUTCOME);
        self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns).saturating_add(leases_ns)
    }

    /// Is a node being given its copies of replicated tables?
    fn is_joining(&self, node: NodeId) -> bool {
        self.node.replication.as_ref().is_some_and(|it| it.view.configuration().joining.contains(&node))
    }
}

/// Frees far locks, if they are this owner's: at homes that are cut off as soon as they are not any more.
pub(crate) async fn unlock_far(core: &Rc<Core>, idents: &[Ident], owner: u64) {
    if idents.is_empty() {
        return;
    }
    let mut batch = core.take_batch();
    let slots: Vec<Slot> = idents.iter().map(|ident| batch.compare_swap(Core::lock_place(*ident), owner, 0)).collect();
    let batch = core.endpoint.submit(batch).await;
    let failed: Vec<Ident> =
        idents.iter().zip(slots).filter(|(_, slot)| batch.done(*slot).is_err()).map(|(ident, _)| *ident).collect();
    core.give_batch(batch);
    if failed.is_empty() {
        return;
    }
    // The lock of a living node is nobody else's to free. The transaction need not wait for it.
    if let Some(replication) = core.node.replication.clone() {
        let insisting = core.clone();
        let steps = failed.iter().map(|ident| Step::release(Core::lock_place(*ident), owner)).collect();
        let number = replication.view.configuration().number;
        core.leave(async move {
            let _ = insisting.insist(&replication, steps, number).await;
        });
    } else {
        core.leave(unlock_when_reached(core.clone(), failed, owner));
    }
}
