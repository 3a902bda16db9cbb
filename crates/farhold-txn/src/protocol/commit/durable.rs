//! A commit's part in the journal.

use crate::base::error::TxnError;
use crate::base::planted::set_unknown;
use crate::durability::journaling::{DURABLE_NS_MAX, Journaling};
use crate::protocol::core::Core;
use crate::protocol::txn::state::RowState;
use crate::protocol::txn::{CommitInfo, Txn};
use crate::protocol::worker::Worker;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// The reason why the journal of an expelled node is given up.
pub(crate) const GONE: &str = "the cluster goes on without this node, which has to start again";
/// How long a commit waits before it looks again for room.
const AGAIN_NS: u64 = 50_000;

/// What a commit holds of the journal, from before its commit point until all its rows are written.
#[derive(Debug, Default)]
pub(crate) struct Durably {
    pub room: Option<Room>,
    pub open: Option<OpenCommit>,
}

/// Promised room. Dropped unused, it is given back.
#[derive(Debug)]
pub(crate) struct Room {
    journaling: Arc<Journaling>,
    size: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.size > 0 {
            self.journaling.forget(self.size);
        }
    }
}

/// A commit between its look at the epoch and its last row: the journal does not close its epoch meanwhile.
pub(crate) struct OpenCommit {
    core: Rc<Core>,
    bound: u32,
}

impl fmt::Debug for OpenCommit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCommit").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Drop for OpenCommit {
    fn drop(&mut self) {
        let Some(journaling) = &self.core.node.journaling else { return };
        let mut open = self.core.open_commits.borrow_mut();
        if let Some(count) = open.get_mut(&self.bound) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.bound);
            }
        }
        journaling.desks.set_open(self.core.slot.number(), open.keys().next().copied());
    }
}

impl Txn {
    /// Gets room in the journal for the record of this transaction; waits while there is none.
    pub(crate) async fn promise_journal(&self, core: &Core) -> Result<Option<Room>, TxnError> {
        let Some(journaling) = core.node.journaling.as_ref().filter(|_| self.state.writes > 0) else {
            return Ok(None);
        };
        let size = self.record_bytes();
        let until_ns = core.handle.now_ns().saturating_add(core.node.config.request_timeout_ns);
        while !journaling.promise(size)? {
            if let Some(refused) = journaling.spare.refused() {
                return Err(refused);
            }
            if core.handle.now_ns() >= until_ns {
                let reason = "the journal's disk does not keep up".into();
                return Err(TxnError::NotDurable { reason, committed: false });
            }
            core.serve_one();
            core.handle.sleep_ns(AGAIN_NS).await;
        }
        Ok(Some(Room { journaling: journaling.clone(), size }))
    }

    /// The record goes into the worker's buffer, and from there to the disk. After the commit point, before any row.
    pub(crate) fn write_journal(&self, core: &Core, durably: &mut Durably, epoch: u32) {
        let Some(mut room) = durably.room.take() else { return };
        let journaling = room.journaling.clone();
        let mut writer = core.record.take();
        let configuration = core.node.replication.as_ref().map_or(0, |it| it.view.configuration().number);
        self.make_record(&mut writer, configuration, epoch);
        debug_assert_eq!(writer.len(), room.size, "as many bytes as were promised");
        let (behind, mark) = writer.place(0, 0);
        journaling.append(core.slot.number(), behind, mark, epoch);
        core.record.replace(writer);
        // The journal gives it back when it is written.
        room.size = 0;
    }

    /// A commit of a node with a journal: acknowledged when it is durable, and so is what it has read.
    pub(crate) async fn commit_durably(self) -> Result<CommitInfo, TxnError> {
        let core = self.core.clone();
        if self.state.writes > 0 {
            let info = match self.commit_by_its_way().await {
                // Nothing of it is durable without that node's journal.
                Err(TxnError::NodeUnavailable { node, committed: true }) => {
                    let reason = format!("{node} has not answered").into();
                    return Err(TxnError::NotDurable { reason, committed: true });
                }
                info => info?,
            };
            core.durable(info.epoch).await.inspect_err(|_| set_unknown(info.serial, info.epoch))?;
            return Ok(info);
        }
        let read = self.latest_read();
        let info = self.commit_by_its_way().await?;
        let is_quiet = core.node.journaling.as_ref().is_some_and(|journaling| journaling.is_quiet());
        if !is_quiet {
            // Rows that were not there may have been deleted in this epoch.
            let read = if let Some(read) = read { read } else { core.retried_epoch().await? };
            core.durable(read).await.map_err(TxnError::of_a_read)?;
        }
        Ok(info)
    }

    /// The latest epoch of anything that it has read. `None`: it has relied on the absence of rows, as an insert does that was taken
    /// back.
    fn latest_read(&self) -> Option<u32> {
        let saw_nothing = self.state.rows.iter().any(|row| matches!(row.state, RowState::Absent | RowState::Gone));
        if saw_nothing || !self.state.groups().is_empty() || !self.state.buckets.is_empty() {
            return None;
        }
        self.state.rows.iter().map(|row| row.version.epoch()).max().or(Some(0))
    }
}

impl Worker {
    /// Returns when everything is durable that could be seen until now: for an answer that reveals some of it without a
    /// commit, such as that a key is taken.
    ///
    /// # Errors
    /// [`TxnError::NotDurable`]; the keeper of the epoch is unavailable.
    pub async fn durable_so_far(&self) -> Result<(), TxnError> {
        let core = &*self.core;
        if core.node.journaling.as_ref().is_none_or(|journaling| journaling.is_quiet()) {
            return Ok(());
        }
        core.durable(core.retried_epoch().await?).await.map_err(TxnError::of_a_read)
    }
}

impl Core {
    /// As [`Self::read_epoch`]; while another node takes over from the keeper, the caller must try again.
    async fn retried_epoch(&self) -> Result<u32, TxnError> {
        self.read_epoch().await.map_err(|error| self.retryable(error))
    }

    /// This node does not know the outcome of a commit, and never will: the others go on without it, and decide. Its
    /// journal must not say that the commit's epoch is closed, because then its record would count. Said while the
    /// commit is open.
    pub fn give_up_journal(&self) {
        if let Some(journaling) = self.node.journaling.as_ref().filter(|_| !planted!(TailCounts)) {
            journaling.fail(GONE);
        }
    }

    /// A commit opens: from here on until what is returned is dropped no step of the journal passes it. The epoch is read after this.
    pub fn open_commit(self: &Rc<Self>) -> Option<OpenCommit> {
        let journaling = self.node.journaling.as_ref()?;
        let mut open = self.open_commits.borrow_mut();
        let bound = journaling.bound();
        *open.entry(bound).or_insert(0_u32) += 1;
        crate::base::planted::may_stop();
        journaling.desks.set_open(self.slot.number(), open.keys().next().copied());
        Some(OpenCommit { core: self.clone(), bound })
    }

    /// Waits until everything up to an epoch is durable.
    ///
    /// # Errors
    /// [`TxnError::NotDurable`]: it never will be, as far as this node can tell.
    pub async fn durable(&self, epoch: u32) -> Result<(), TxnError> {
        self.durable_within(epoch, DURABLE_NS_MAX).await
    }

    /// As [`Self::durable`], for at most `ns_max`; [`Journaling::wake_the_late`] wakes it then.
    pub async fn durable_within(&self, epoch: u32, ns_max: u64) -> Result<(), TxnError> {
        let Some(journaling) = self.node.journaling.as_ref().filter(|_| !planted!(AckBeforeDurable)) else {
            return Ok(());
        };
        let mut known: Option<Waker> = None;
        let until_ns = self.handle.now_ns().saturating_add(ns_max);
        poll_fn(|cx| {
            if self.handle.now_ns() >= until_ns && !matches!(journaling.is_durable(epoch), Ok(true)) {
                let reason = "the disk of some node has not taken it for half a minute".into();
                return Poll::Ready(Err(TxnError::NotDurable { reason, committed: true }));
            }
            for _ in 0..2 {
                match journaling.is_durable(epoch) {
                    Ok(true) => return Poll::Ready(Ok(())),
                    Ok(false) => {}
                    Err(error) => return Poll::Ready(Err(error)),
                }
                // The epoch is checked once more afterwards, because the step may have come in between.
                if known.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
                    journaling.wait_for(epoch, cx.waker());
                    known = Some(cx.waker().clone());
                }
            }
            Poll::Pending
        })
        .await
    }
}
