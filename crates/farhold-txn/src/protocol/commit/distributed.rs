//! The commit that may wait: of a transaction that has rows on other nodes, or whose record goes to a journal or to
//! rings that are not mapped here.
//!
//! ```text
//!   prepare ─► lock far ─► latch near ─► epoch ─► validate near, far ─► before_write ─► write near, unlock ─► write far, unlock
//!      │          │            │           │             │                   │               ▲
//!      └──────────┴────────────┴───────────┴─────────────┴───────────────────┘               the commit point
//!                     any refusal: unlock what is locked, nothing has happened
//! ```
//!
//! Without replicas and without a journal, a transaction that writes all its far rows does the near part as one
//! hardware transaction, where the processor has them (`section/rtm.rs`). Its order is: lock far, epoch, validate far,
//! then near rows at once, or from "latch near" on as drawn. Far rows that are only read are not locked, so they must
//! be validated after the near rows are locked. A transaction with such rows never takes this way.
//!
//! Before "write far", a home makes its indexes lead to the rows that take the places of others ("publish"). A home
//! that does not answer in time gets its rows later, and so does one that is cut off while they are written. The caller
//! is told so: `silent.rs`.

use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::planted::{last_epoch, next_serial, set_unknown};
use crate::base::slots::Counter;
use crate::cluster::view::Moment;
use crate::protocol::commit::Held;
use crate::protocol::commit::durable::Durably;
use crate::protocol::commit::near::{before_write, is_plain};
use crate::protocol::commit::section::{Refused, latch, validate, write};
use crate::protocol::core::Core;
use crate::protocol::to_its_end::{ToItsEnd, Work};
use crate::protocol::txn::state::Row;
use crate::protocol::txn::{CommitInfo, Txn};
use crate::replication::promise::Promise;
use std::rc::Rc;

impl Txn {
    /// Commits it, or leaves everything as it was.
    pub(crate) async fn commit_distributed(mut self) -> Result<CommitInfo, TxnError> {
        let core = self.core.clone();
        debug_assert!(core.node.own_records.is_none(), "a node that is alone commits near");
        let (epoch, promise) = match self.lock_and_validate(&core).await {
            Ok(reached) => reached,
            Err(error) => {
                let refused = Err(core.retryable(error));
                self.ended(&refused);
                return refused;
            }
        };
        // The commit point. Everything below is completed, whatever happens to other nodes or to the waiting caller.
        let Held { admitted, durably, near_is_written, .. } = std::mem::take(&mut self.held);
        self.past_commit_point();
        // No commit of a node that is alone comes here. If one did, its columns would lack what it writes: they are built again.
        if let Some(records) = &core.node.own_records {
            records.feed.miss();
        }
        let serial = self.serial;
        let until_ns = if self.is_patient { u64::MAX } else { core.outcome_until_ns() };
        // Boxed separately, so that neither has the size of the larger one.
        let rest: Work<CommitInfo> = match promise {
            Some(promise) => Box::pin(self.finish_replicated(epoch, promise, admitted, durably)),
            None => Box::pin(self.finish_alone(epoch, durably, near_is_written)),
        };
        let outcome = ToItsEnd::of(&core, rest, until_ns).await;
        outcome.inspect_err(|error| {
            if *error == TxnError::OutcomeUnknown {
                set_unknown(serial, epoch);
            }
        })
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
            // If this future is dropped while it waits, its locks are still in `held`.
            drop(self.held.admitted.take());
            let near = std::mem::take(&mut self.held.near);
            let held = Held { near, far: self.held.far.clone(), ..Held::default() };
            self.release(held).await;
            self.held.far.clear();
        }
        outcome.map(|epoch| (epoch, promise))
    }

    /// Everything past the commit point, without copies.
    async fn finish_alone(
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
            // It writes nothing. The rows that it has given up must be removed here, because no restart of this node
            // would remove them.
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
            core.leave_owed(self.finish_at_silent(epoch, durably, silent, lost));
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
            && core.tries_hardware(self.near(core).order.len())
    }

    /// Validates and writes the near rows; afterwards the commit point is passed. `None`: no near row was changed.
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
}

/// A lease, its detection, the wait for renewals under way, a leader that dies meanwhile, and as much again.
const LEASES_FOR_OUTCOME: u64 = 8;

impl Core {
    /// The latest time until which a commit past its commit point waits: longer than the others take to go on without a
    /// node that does not answer. The commit then completes without that node. Without copies each step of a commit has
    /// an end of its own.
    pub fn outcome_until_ns(&self) -> u64 {
        let Some(replication) = &self.node.replication else { return u64::MAX };
        let leases_ns = replication.config.lease_ns.saturating_mul(LEASES_FOR_OUTCOME);
        self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns).saturating_add(leases_ns)
    }
}
