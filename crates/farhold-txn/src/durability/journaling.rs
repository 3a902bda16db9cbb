//! A node's journal, as its commits and the thread that writes it share it.

use crate::base::bell::Bell;
use crate::base::desks::Desks;
use crate::base::epoch::EPOCH_LAST;
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::cluster::configuration::Configuration;
use crate::columns::ColumnFeed;
use crate::durability::JournalConfig;
use crate::durability::checkpoints::Checkpointing;
use crate::durability::follow::Followers;
use crate::durability::members::Members;
use crate::durability::open::Generation;
use crate::durability::segments::{Spare, Unwritten};
use crate::durability::state::{Epochs, GivenUp};
use crate::durability::watch::StepWatch;
use farhold_fabric::{Batch, Endpoint, FarPtr, NodeId, RegionMemory};
use farhold_store::durable::journal::{Journal, Shape};
use farhold_store::durable::{Cluster, DurableError};
use farhold_store::{Store, Superblock};
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The longest wait for a disk. No sound disk takes as long, and one that hangs may hang for ever.
pub(crate) const DURABLE_NS_MAX: u64 = 30_000_000_000;

/// Bytes of page events that a step usually finds at most.
pub(super) const EVENTS_BYTES: u64 = 4 << 10;

/// What is known of the journal of a node's start. Neither ever falls, so an old report is at most too low.
#[derive(Default)]
pub(super) struct Heard {
    is_met: AtomicBool,
    pub(super) closed: AtomicU32,
    checkpointed: AtomicU32,
    /// Checkpoints of it that this node has heard of since its own last one.
    pub(super) checkpoints: AtomicU32,
}

impl Heard {
    /// Has it ever answered?
    pub(super) fn is_met(&self) -> bool {
        self.is_met.load(SeqCst)
    }
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An epoch is closed and durable.
    Closed,
    /// An earlier commit is still open: the caller must try again soon.
    Open,
    /// There is nothing to close.
    Nothing,
    /// It waits for a segment, or the journal has failed.
    Stuck,
}

/// The node's journal.
pub(crate) struct Journaling {
    pub config: JournalConfig,
    pub shape: Shape,
    pub(super) me: NodeId,
    pub(super) nodes: u8,
    pub desks: Desks,
    pub(super) epochs: Epochs,
    /// Bytes promised to commits or in buffers.
    pub(super) pending: AtomicU64,
    pub(super) journal: Mutex<Journal>,
    pub(super) unwritten: Mutex<Unwritten>,
    pub spare: Spare,
    pub(super) waiters: Mutex<Vec<(u32, Waker)>>,
    /// Of its thread.
    pub steps: StepWatch,
    pub(super) checkpointing: Checkpointing,
    /// All other nodes have been met.
    has_all: AtomicBool,
    /// A node that comes back has a journal when it is let in.
    pub(super) has_begun: AtomicBool,
    /// Rows have copies on other nodes, which go on without a node whose journal has failed.
    pub(super) has_copies: bool,
    /// Another thread does the steps.
    pub has_thread: AtomicBool,
    pub(super) given_up: GivenUp,
    /// This node's region.
    pub(super) memory: Arc<RegionMemory>,
    /// Of each node.
    pub(super) heard: Box<[Heard]>,
    pub(super) members: Mutex<Members>,
    /// Wakes the thread.
    pub bell: Bell,
    /// What else takes the records.
    pub feed: Arc<ColumnFeed>,
    /// What reads the other nodes' records for it.
    pub(super) others: Mutex<Option<Followers>>,
    /// Held for as long as the node runs.
    pub(super) generation: Generation,
}

pub(super) fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journaling {
    pub fn new(
        config: JournalConfig,
        generation: Generation,
        memory: Arc<RegionMemory>,
        is_replicated: bool,
    ) -> Result<Arc<Self>, DurableError> {
        let Cluster { identity, epoch_first, .. } = generation.cluster;
        let first = generation.take_first();
        let shape = generation.shape();
        let closed = epoch_first - 1;
        let first = match first {
            Some(first) => first,
            None => shape.make_segment(0)?,
        };
        Ok(Arc::new(Self {
            me: identity.node,
            nodes: identity.nodes,
            desks: Desks::new(),
            epochs: Epochs::after(closed),
            pending: AtomicU64::new(0),
            journal: Mutex::new(Journal::new(shape.clone(), first)),
            unwritten: Mutex::default(),
            spare: Spare::new(1),
            waiters: Mutex::default(),
            steps: StepWatch::default(),
            checkpointing: Checkpointing::after(closed),
            has_all: AtomicBool::new(is_replicated || identity.nodes == 1),
            has_begun: AtomicBool::new(!generation.comes_back()),
            has_copies: is_replicated,
            has_thread: AtomicBool::new(false),
            given_up: GivenUp::default(),
            memory,
            heard: (0..identity.nodes).map(|_| Heard::default()).collect(),
            members: Mutex::new(Members::new(identity.nodes, is_replicated)),
            bell: Bell::default(),
            feed: Arc::new(ColumnFeed::new(is_replicated)),
            others: Mutex::default(),
            generation,
            config,
            shape,
        }))
    }

    /// The generation that the node takes part in.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// The last epoch that is durable everywhere.
    #[inline]
    pub fn durable(&self) -> u32 {
        self.epochs.durable.load(SeqCst)
    }

    /// The last epoch that this node has closed.
    pub fn closed(&self) -> u32 {
        self.epochs.closed.load(SeqCst)
    }

    // ---- commits -------------------------------------------------------------------------------------------------------

    /// The longest record.
    pub fn item_bytes_max(&self) -> u64 {
        self.shape.item_bytes_max()
    }

    /// Room for a record, if there is some now. A refusal for good is an error.
    pub fn promise(&self, size: u64) -> Result<bool, TxnError> {
        if self.given_up.is_so() {
            return Err(self.refusal(false));
        }
        if !self.has_all.load(Relaxed) {
            let unknown: Vec<String> = self.unknown().iter().map(ToString::to_string).collect();
            self.has_all.store(unknown.is_empty(), Relaxed);
            if !unknown.is_empty() {
                let who = unknown.join(", ");
                let reason = format!("{who} has not started yet, and nothing is durable without its journal").into();
                return Err(TxnError::NotDurable { reason, committed: false });
            }
        }
        let bytes_max = self.shape.item_bytes_max();
        if size > bytes_max {
            let (bytes, bytes_max) = (size as usize, bytes_max as usize);
            return Err(TxnError::TooLarge { what: "a transaction for the journal", bytes, bytes_max });
        }
        let pending_max = self.shape.pending_bytes_max();
        let fits = |pending: u64| (pending + size <= pending_max).then_some(pending + size);
        // All that is pending fits the spare segment, whatever is left of this one.
        let promised = self.spare.is_made() && self.pending.fetch_update(SeqCst, SeqCst, fits).is_ok();
        if !promised {
            self.make_spare_or_wait();
        }
        Ok(promised)
    }

    /// Gives promised room back.
    pub fn forget(&self, size: u64) {
        self.pending.fetch_sub(size, SeqCst);
    }

    /// A commit of a worker opens: the bound that its epoch is not below.
    pub fn bound(&self) -> u32 {
        self.epochs.target.load(SeqCst)
    }

    /// A record, for which room was promised.
    pub fn append(&self, worker: u8, behind: &[u8], mark: u64, epoch: u32) {
        drop(self.desks.append(worker, behind, mark, epoch));
        self.epochs.done.fetch_max(epoch, SeqCst);
    }

    /// As [`Self::append`], of a record that a dead coordinator has left: it needs no room that was promised.
    pub fn append_left(&self, worker: u8, behind: &[u8], mark: u64, epoch: u32) {
        self.pending.fetch_add(8 + behind.len() as u64, SeqCst);
        self.append(worker, behind, mark, epoch);
    }

    /// Wakes `waker` when the epoch is durable, or never will be.
    pub fn wait_for(&self, epoch: u32, waker: &Waker) {
        held(&self.waiters).push((epoch, waker.clone()));
        self.bell.ring();
    }

    /// Makes the waiting tasks look at the clock: for a thread that never waits for a disk.
    pub fn wake_the_late(&self) {
        for (_, waker) in &*held(&self.waiters) {
            waker.wake_by_ref();
        }
    }

    /// Is it durable? An error if it never will be.
    pub fn is_durable(&self, epoch: u32) -> Result<bool, TxnError> {
        if self.durable() >= epoch {
            return Ok(true);
        }
        if self.given_up.is_so() { Err(self.refusal(true)) } else { Ok(false) }
    }

    pub(super) fn refusal(&self, committed: bool) -> TxnError {
        let reason = self.given_up.reason().unwrap_or_default();
        TxnError::NotDurable { reason, committed }
    }

    /// The journal is no longer written. The other nodes read this beside what it has closed.
    pub fn fail(&self, reason: &str) {
        self.given_up.note(reason);
        self.word(Superblock::CLOSED, |word| word.fetch_or(Superblock::FAILED, SeqCst));
        for (_, waker) in std::mem::take(&mut *held(&self.waiters)) {
            waker.wake();
        }
    }

    /// Why it is not written any more, if it is not.
    pub fn failure(&self) -> Option<Box<str>> {
        self.given_up.reason()
    }

    /// Gives the journal up if a step takes longer than on any sound disk. The others then go on without this node;
    /// with it they would wait as long. To be called where rows have copies.
    pub fn fail_if_hung(&self, now_ns: u64) {
        if self.steps.is_stuck(now_ns) {
            self.fail("the disk has not answered for five minutes");
        }
    }

    // ---- the journal's thread ------------------------------------------------------------------------------------------

    /// The nodes that have never been heard.
    pub fn unknown(&self) -> Vec<NodeId> {
        let is_unknown = |node: &NodeId| *node != self.me && !self.heard[usize::from(node.0)].is_met();
        (0..self.nodes).map(NodeId).filter(is_unknown).collect()
    }

    pub(super) fn word<T>(&self, offset: u64, look: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        self.memory.word(offset).ok().map(look)
    }

    /// Asks the other nodes' regions how far their journals are, and the keeper's region for the epoch, which it raises
    /// if a commit waits.
    pub async fn look(&self, endpoint: &Endpoint) {
        let (keeper, others, changes) = {
            let members = held(&self.members);
            let others = members.counted().iter().copied().filter(|node| *node != self.me);
            (members.keeper().filter(|keeper| *keeper != self.me), others.collect::<Vec<_>>(), members.changes)
        };
        if others.is_empty() {
            return;
        }
        let at = |node, offset| FarPtr::new(node, DATA, offset);
        let mut batch = Batch::new();
        let closed = others.iter().map(|node| batch.fetch_add(at(*node, Superblock::CLOSED), 0)).collect::<Vec<_>>();
        let kept = others.iter().map(|node| batch.fetch_add(at(*node, Superblock::CHECKPOINTED), 0));
        let kept = kept.collect::<Vec<_>>();
        let epoch = keeper.map(|keeper| batch.fetch_add(at(keeper, Superblock::EPOCH), 0));
        let batch = endpoint.submit(batch).await;
        let mut epoch = epoch.and_then(|slot| batch.word(slot).ok());
        let words: Vec<_> =
            closed.into_iter().zip(kept).map(|(one, other)| (batch.word(one), batch.word(other))).collect();
        if let (Some(keeper), Some(seen)) = (keeper, epoch)
            && self.is_wanted()
            && seen <= u64::from(self.epochs.target.load(SeqCst))
        {
            let mut batch = Batch::new();
            let raised = batch.compare_swap(at(keeper, Superblock::EPOCH), seen, seen + 1);
            // Lost to another node, it is raised as well.
            epoch =
                endpoint.submit(batch).await.word(raised).ok().map(|found| found.max(seen + u64::from(found == seen)));
        }
        let members = held(&self.members);
        if members.changes != changes {
            // A node of another start may have answered.
            return;
        }
        let mut failed = None;
        for (node, words) in others.iter().zip(words) {
            let heard = &self.heard[usize::from(node.0)];
            if let (Ok(closed), Ok(checkpointed)) = words {
                heard.is_met.store(true, SeqCst);
                failed = failed.or((closed & Superblock::FAILED != 0).then_some(*node));
                heard.closed.fetch_max(closed as u32, SeqCst);
                let before = heard.checkpointed.fetch_max(checkpointed as u32, SeqCst);
                if before < checkpointed as u32 {
                    heard.checkpoints.fetch_add(1, SeqCst);
                }
            } else {
                // A region registered anew, or one that this endpoint had never met.
                let _ = endpoint.refresh(*node, DATA);
            }
        }
        if let Some(epoch) = epoch {
            self.epochs.heard.fetch_max(epoch as u32, SeqCst);
        }
        drop(members);
        if let Some(node) = failed.filter(|_| !self.has_copies) {
            // What all had closed by then counts.
            self.publish();
            self.fail(&format!(
                "the journal of {node} cannot be written any more: without replicas nothing is durable without it, so every node of \
                 the cluster has to end, and to start again from the journals"
            ));
        }
    }

    /// The epoch as far as this node knows it: not below that of any commit known here, and not above the keeper's.
    pub fn epoch(&self) -> u32 {
        let known =
            self.epochs.target.load(SeqCst).max(self.epochs.heard.load(SeqCst)).max(self.epochs.done.load(SeqCst));
        let members = held(&self.members);
        match self.word(Superblock::EPOCH, |word| word.load(SeqCst) as u32) {
            Some(mine) if members.keeper() == Some(self.me) => known.max(mine),
            _ => known,
        }
    }

    /// A commit of this epoch has changed a row here.
    pub fn has_done(&self, epoch: u32) {
        self.epochs.done.fetch_max(epoch, SeqCst);
    }

    // ---- changes of the configuration ----------------------------------------------------------------------------------

    /// No commit gets past its commit point until another configuration is installed. Returns the epoch that must not
    /// be used any more.
    pub fn freeze(&self, next: &Configuration) -> u32 {
        let mut members = held(&self.members);
        let again = members.freeze(next);
        self.forget_heard(&again);
        drop(members);
        // Before any row is redone or gets another home: that happens once all members are frozen.
        self.feed.leave_configuration();
        self.epoch()
    }

    /// For nodes that have started again: the earlier start may have closed epochs that this one has not. Under the
    /// lock of the members.
    fn forget_heard(&self, again: &[NodeId]) {
        for heard in again.iter().filter_map(|node| self.heard.get(usize::from(node.0))) {
            heard.closed.store(0, SeqCst);
            heard.checkpointed.store(0, SeqCst);
        }
    }

    /// Everything before this epoch must be closed; true when it is. What is later belongs to the next configuration.
    pub fn settle(&self, epoch_min: u32) -> bool {
        let members = held(&self.members);
        if !self.has_begun.load(SeqCst) {
            self.checkpointing.before.store(epoch_min - 1, SeqCst);
            self.has_begun.store(true, SeqCst);
        }
        self.epochs.target.fetch_max(epoch_min, SeqCst);
        drop(members);
        self.bell.ring();
        self.closed() + 1 >= epoch_min
    }

    /// Goes on in this configuration.
    pub fn install(&self, next: &Configuration) {
        let mut members = held(&self.members);
        let again = members.install(next);
        self.forget_heard(&again);
        drop(members);
        // All that was committed before has an epoch below the configuration's first, so each snapshot of it shows that.
        self.feed.enter_configuration(next.number);
        self.bell.ring();
    }

    /// Is a commit waiting, or is there something to write?
    pub fn is_wanted(&self) -> bool {
        self.pending.load(SeqCst) > 0
            || !held(&self.waiters).is_empty()
            || self.checkpointing.wanted.load(SeqCst) > self.durable()
            || held(&self.members).has_news()
    }

    /// Is everything durable that has ever been visible on this node's cluster of one? A written record need not count
    /// yet: a step also writes records of the epoch after the one that it closes.
    pub fn is_quiet(&self) -> bool {
        self.nodes == 1 && self.pending.load(SeqCst) == 0 && self.epochs.done.load(SeqCst) <= self.durable()
    }

    /// Has every commit of this node up to this epoch, which has been raised since, handed its record to the feed? A commit that opens
    /// from here on has a later epoch.
    pub fn is_offered(&self, epoch: u32) -> bool {
        !self.desks.are_open_before(u64::from(epoch) + 1) && self.desks.are_empty()
    }

    /// Does one step: closes the epochs that are over, and raises the epoch for it if a commit waits.
    pub fn step(&self, store: &Store) -> Step {
        if self.given_up.is_so() {
            return Step::Stuck;
        }
        if !self.has_begun.load(SeqCst) {
            return Step::Nothing;
        }
        if self.epochs.heard.load(SeqCst) >= EPOCH_LAST {
            self.fail("all epochs of this database are used up: copy its rows into a new one");
            return Step::Stuck;
        }
        let is_wanted = self.is_wanted();
        let target = {
            let members = held(&self.members);
            if members.keeper() == Some(self.me) {
                self.word(Superblock::EPOCH, |word| {
                    let seen = word.load(SeqCst);
                    if is_wanted && seen <= u64::from(self.epochs.target.load(SeqCst)) {
                        // Lost to another node, it is raised as well.
                        let _ = word.compare_exchange(seen, seen + 1, SeqCst, SeqCst);
                    }
                    self.epochs.heard.fetch_max(word.load(SeqCst) as u32, SeqCst);
                });
            }
            // While the configuration changes, the threads that change it set it.
            if members.keeper().is_some() {
                self.epochs.target.fetch_max(self.epochs.heard.load(SeqCst), SeqCst);
            }
            self.epochs.target.load(SeqCst)
        };
        if target <= self.closed() + 1 {
            self.publish();
            return Step::Nothing;
        }
        if self.desks.are_open_before(u64::from(target)) && !planted!(OpenIgnored) {
            return Step::Open;
        }
        // A caller that gave up a commit with unknown outcome has said so before the commit was no longer open.
        if self.given_up.is_so() {
            return Step::Stuck;
        }
        crate::base::planted::may_stop();
        let closed = target - 1;
        let written = match self.write(store, closed) {
            Ok(Some(written)) => written,
            Ok(None) => return Step::Stuck,
            Err(error) => {
                self.fail(&format!("the journal cannot be written: {error}"));
                return Step::Stuck;
            }
        };
        crate::base::planted::may_stop();
        self.epochs.closed.store(closed, SeqCst);
        self.feed.close(closed);
        // Another thread may have given the journal up meanwhile: that value is above all epochs, and stays.
        self.word(Superblock::CLOSED, |word| word.fetch_max(u64::from(closed), SeqCst));
        crate::base::planted::may_stop();
        self.publish();
        self.pending.fetch_sub(written, SeqCst);
        Step::Closed
    }

    /// Tells all waiting commits what is durable, and forgets what no restart needs.
    pub(super) fn publish(&self) {
        let (durable, checkpointed) = self.count(&held(&self.members));
        if let Some(durable) = durable {
            let mut waiters = held(&self.waiters);
            let (ready, waiting) = std::mem::take(&mut *waiters).into_iter().partition(|(epoch, _)| *epoch <= durable);
            *waiters = waiting;
            drop(waiters);
            let ready: Vec<(u32, Waker)> = ready;
            for (_, waker) in ready {
                waker.wake();
            }
        }
        if let Some(checkpointed) = checkpointed.filter(|_| !self.given_up.is_so()) {
            // What cannot be removed now is with the next checkpoint.
            let _ = held(&self.journal).forget(checkpointed);
            if checkpointed >= self.checkpointing.before.load(SeqCst) {
                let _ = self.shape.remove_before();
            }
        }
    }

    /// Raises the durable epoch, and the epoch that all checkpoints contain, to the lowest of all nodes that count.
    /// Returns what it has raised. It holds the lock of the members to its end: once a joining node counts, the others
    /// close epochs that it has not closed, and an earlier list would take theirs for those of all nodes.
    pub(super) fn count(&self, members: &Members) -> (Option<u32>, Option<u32>) {
        let all = |mine: u32, of: &dyn Fn(&Heard) -> u32| {
            let of = |node: &NodeId| if *node == self.me { mine } else { of(&self.heard[usize::from(node.0)]) };
            members.counted().iter().map(of).min().unwrap_or(0)
        };
        let durable = all(self.closed(), &|heard| heard.closed.load(SeqCst));
        let mine = self.word(Superblock::CHECKPOINTED, |word| word.load(SeqCst) as u32).unwrap_or(0);
        let checkpointed = all(mine, &|heard| heard.checkpointed.load(SeqCst));
        let is_raised = |word: &AtomicU32, value: u32| value > word.fetch_max(value, SeqCst);
        (
            is_raised(&self.epochs.durable, durable).then_some(durable),
            (members.may_forget() && is_raised(&self.checkpointing.of_all, checkpointed)).then_some(checkpointed),
        )
    }

    /// Bytes of the journal of this start.
    pub fn bytes(&self) -> u64 {
        held(&self.journal).bytes()
    }

    /// The last step of an orderly end.
    pub fn close(&self) {
        let _ = held(&self.journal).close();
    }
}

impl fmt::Debug for Journaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journaling").field("durable", &self.durable()).finish_non_exhaustive()
    }
}
