//! Waiting for rows that are on their way to their holders.
//!
//! ```text
//!   reads only:  execute ─► validate, odd rows as they are ─► wait until they are even ─► answer
//!   writes too:  wait for odd rows to write ─► lock, validate ─► commit point ─► wait for odd rows read ─► record, ...
//! ```
//!
//! A reader that validates first comes between the row's writer and the next writer. A reader that waits first would
//! lose to the next writer whenever that one is quicker. Why it is safe: `docs/design/0004-replication.md`.

use crate::base::ident::Ident;
use crate::cluster::view::Moment;
use crate::protocol::core::Core;
use crate::protocol::txn::Txn;
use crate::protocol::txn::state::RowState;
use farhold_fabric::object::VERSION;
use farhold_fabric::{Handle, Version};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::task::{Poll, Waker};

impl Txn {
    /// Rows to write that were read odd must have become even: no transaction writes an odd row. So must rows of other
    /// nodes that a writing transaction has read: if their node dies, what it has read may never have been. The
    /// versions to validate are the even ones. Odd rows of this node that are only read are validated as they are: see
    /// [`Self::wait_for_odd_reads`].
    pub(crate) async fn expect_settled(&mut self, core: &Core) {
        if self.state.writes == 0 || planted!(OddCommits) {
            return;
        }
        for position in 0..self.state.rows.len() {
            let row = self.state.rows[position];
            let may_stay = row.ident.node() == core.me && !row.state.is_locked_by_commit();
            if row.version.is_odd() && !may_stay && row.state != RowState::Skipped {
                core.wait_while_odd(row.ident, row.version, false).await;
                self.state.rows[position].version = row.version.without(Version::ODD);
            }
        }
    }

    /// Waits until the transactions whose odd rows this one has read, and validated, are at all their holders: it comes after them,
    /// so it is certain only when they are. False: one of them may never be.
    ///
    /// `is_committed`: it has passed its own commit point, and ends only when they do, or with its node.
    pub(crate) async fn wait_for_odd_reads(&self, core: &Core, is_committed: bool) -> bool {
        if planted!(OddCommits) || planted!(OddReadsForgotten) {
            return true;
        }
        for row in &self.state.rows {
            let is_read = row.version.is_odd() && !row.state.is_locked_by_commit() && row.state != RowState::Skipped;
            if is_read && !core.wait_while_odd(row.ident, row.version, is_committed).await {
                return false;
            }
        }
        true
    }
}

impl Core {
    /// Waits while a row has this odd version. For a row of this node, the wait lasts until its writer has brought its
    /// record to all holders, or cannot. The writer waits for no task that waits here. Before the commit point the wait
    /// has two bounds: this node's lease, since a node that is cut off may never hear that it is gone; and the time of
    /// a request, since a holder may be silent and needed. For a row of another node, the wait is bounded, and
    /// validation then judges what is there. False: it may still be odd.
    async fn wait_while_odd(&self, ident: Ident, odd: Version, is_committed: bool) -> bool {
        if ident.node() != self.me {
            return self.wait_while_far_row_is_odd(ident, odd).await;
        }
        let object = self.node.store.object(ident.reference());
        let until_ns = self.handle.now_ns().saturating_add(self.node.config.request_timeout_ns);
        while object.version() == odd {
            let Some(replication) = &self.node.replication else { return false };
            let (view, now) = (&replication.view, Moment::now(&self.handle));
            let is_late = || !view.is_settled(now) || self.handle.now_ns() >= until_ns;
            if view.is_gone() || (!is_committed && is_late() && !planted!(OddWaitedForEver)) {
                return false;
            }
            self.settled.next(&self.handle).await;
        }
        true
    }

    async fn wait_while_far_row_is_odd(&self, ident: Ident, odd: Version) -> bool {
        for turn in 0..FAR_LOOKS_MAX {
            let mut batch = self.take_batch();
            let word = batch.read(ident.far().add(VERSION), 8);
            let batch = self.endpoint.submit(batch).await;
            let version = batch.bytes(word).ok().and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
            self.give_batch(batch);
            match version {
                None => return false,
                Some(version) if Version(version) != odd => return true,
                Some(_) => self.handle.pause(turn).await,
            }
        }
        false
    }
}

/// The tasks of a worker that wait for odd rows: woken by each commit of the same worker whose rows have become even.
///
/// Polling instead keeps an idle executor from parking its thread. Over a network that thread then competes with the
/// threads that bring the record to its holders.
#[derive(Default)]
pub(crate) struct Settled {
    count: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

impl Settled {
    /// Rows of a commit have become even, or never will.
    pub fn wake(&self) {
        self.count.set(self.count.get() + 1);
        for waker in self.waiting.take() {
            waker.wake();
        }
    }

    /// Waits until the next such commit, for a bounded time: the commit may be another worker's.
    async fn next(&self, handle: &Handle) {
        let seen = self.count.get();
        let mut bound = pin!(handle.sleep_ns(SETTLED_LOOK_NS));
        std::future::poll_fn(|cx| {
            if self.count.get() != seen {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                waiting.push(cx.waker().clone());
            }
            drop(waiting);
            bound.as_mut().poll(cx)
        })
        .await;
    }
}

/// How often a row that another worker of this node may have written is looked at: a record takes about as long over a network.
const SETTLED_LOOK_NS: u64 = 50_000;
/// How often a row of another node that is being replicated there is looked at: each look is a round trip, and a record takes two.
const FAR_LOOKS_MAX: u32 = 16;
