//! How a transaction commits.
//!
//! ```text
//!   near         all rows are of this node, without copies: synchronous                               near.rs
//!   mapped       all rows are of this node, their holders' rings are mapped: synchronous              mapped.rs
//!   distributed  all else: far rows, rings that are not mapped or have no room, odd rows, a journal   distributed.rs
//!                  behind the commit point with copies                                                replicated.rs
//!   durable      around them, where there is a journal                                                durable.rs
//! ```
//!
//! They share the order of `protocol/mod.rs` and its parts: rows that move (`prepare.rs`), the section that validates and writes near
//! rows (`section/`), far rows (`far.rs`), instructions that are repeated until they are done (`steps.rs`), and the work after the commit
//! (`tidy.rs`).

pub(crate) mod distributed;
pub(crate) mod durable;
pub(crate) mod far;
pub(crate) mod mapped;
pub(crate) mod near;
pub(crate) mod odd;
pub(crate) mod prepare;
pub(crate) mod replicated;
pub(crate) mod section;
pub(crate) mod silent;
pub(crate) mod steps;
pub(crate) mod tidy;

use crate::base::error::TxnError;
use crate::base::ident::Ident;
use crate::base::slots::Counter;
use crate::protocol::commit::durable::Durably;
use crate::protocol::commit::far::unlock_far;
use crate::protocol::commit::section::{Near, Refused, latch};
use crate::protocol::core::Core;
use crate::protocol::txn::{CommitInfo, Stage, Txn};
use crate::replication::Admitted;
use std::future::Future;

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

impl Txn {
    /// Makes all its writes visible at one moment, or none.
    ///
    /// # Errors
    /// [`TxnError::Conflict`]; [`TxnError::DuplicateKey`] if a changed row would have a key in a unique index that another row
    /// has; an unavailable node (with `committed` if its part alone may be missing).
    #[inline]
    pub async fn commit(mut self) -> Result<CommitInfo, TxnError> {
        if self.stage == Stage::Failed {
            return Err(TxnError::Conflict);
        }
        self.stage = Stage::Failed;
        if self.core.node.journaling.is_some() {
            return Box::pin(self.commit_durably()).await;
        }
        self.commit_by_its_way().await
    }

    /// As [`Self::commit`], but without waiting for durability: by the first of the three ways that can commit it.
    #[inline]
    async fn commit_by_its_way(mut self) -> Result<CommitInfo, TxnError> {
        let (state, node) = (&self.state, &self.core.node);
        let has_journal = state.writes > 0 && node.journaling.is_some();
        let has_far_epoch = state.writes > 0 && self.core.epoch.near().is_none();
        if !state.far && !state.replicated && !has_journal && !has_far_epoch {
            let committed = self.commit_near();
            self.ended(&committed);
            return committed;
        }
        if !state.far
            && !has_journal
            && let Some(committed) = self.commit_mapped()
        {
            self.ended(&committed);
            return committed;
        }
        Box::pin(self.commit_distributed()).await
    }

    /// Counts how a commit has ended.
    #[inline]
    pub(crate) fn ended(&mut self, committed: &Result<CommitInfo, TxnError>) {
        if committed.is_ok() {
            self.stage = Stage::Over;
            self.core.slot.count(Counter::Commits);
        } else if !matches!(committed, Err(TxnError::Conflict)) {
            self.core.slot.count(Counter::AbortsOther);
        }
    }

    /// Counts a refusal and returns its error.
    #[cold]
    pub(crate) fn refused(&self, refused: Refused) -> TxnError {
        self.core.slot.count(match refused {
            Refused::Locked => Counter::AbortsLock,
            Refused::Changed => Counter::AbortsValidation,
            Refused::Memory => return TxnError::OutOfMemory { node: self.core.me },
            Refused::Damaged => return TxnError::HALF_WRITTEN,
        });
        TxnError::Conflict
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

    /// The commit was dropped while it waited, with locks held.
    #[cold]
    pub(crate) fn let_go(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        drop(held.admitted.take());
        self.release_near(&held);
        let (core, owner) = (self.core.clone(), self.owner.word());
        let mut release = Box::pin(async move { unlock_far(&core, &held.far, owner).await });
        // Where memory is mapped, one poll does it.
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        if release.as_mut().poll(&mut context).is_pending() {
            // Without copies the locks are freed when either node starts again, as are those of a silent node.
            if self.core.node.replication.is_some() {
                self.core.leave_owed(release);
            } else {
                self.core.leave(release);
            }
        }
    }

    /// From here on nothing can be taken back.
    pub(crate) fn past_commit_point(&mut self) {
        self.stage = Stage::Over;
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
}
