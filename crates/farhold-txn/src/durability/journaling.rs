//! A node's journal, as its commits and the thread that writes it share it.

use crate::base::epoch::EPOCH_LAST;
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::base::slots::WORKERS_MAX;
use crate::cluster::configuration::Configuration;
use crate::durability::JournalConfig;
use crate::durability::members::Members;
use crate::durability::open::Generation;
use farhold_fabric::{Batch, Endpoint, FarPtr, NodeId, RegionMemory};
use farhold_store::durable::journal::{Closing, Journal, Segment, Shape};
use farhold_store::durable::{Cluster, DurableError, checkpoint};
use farhold_store::{Store, Superblock};
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// How long anybody waits for a disk: no sound one takes as long, and what hangs may hang for ever.
pub(crate) const DURABLE_NS_MAX: u64 = 30_000_000_000;
/// After how long it is given up, where others can go on without it. Longer: all nodes may share a disk that comes back.
const HANG_NS_MAX: u64 = 300_000_000_000;
/// Most time that counts between two looks.
const HANG_LOOK_NS_MAX: u64 = 1_000_000_000;

/// Bytes of page events that a step usually finds at most.
const EVENTS_BYTES: u64 = 4 << 10;
/// No commit of this worker is open.
const IDLE: u64 = u64::MAX;

/// What one worker shares with the journal; on lines of its own.
#[repr(align(128))]
struct Desk {
    /// No open commit of this worker has an epoch below this.
    open: AtomicU64,
    buffer: Mutex<Buffer>,
}

#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    epoch_max: u32,
}

/// What has been heard of the journal of a node's start. Neither ever falls, so what was heard late is less than what is.
#[derive(Default)]
struct Heard {
    is_met: AtomicBool,
    closed: AtomicU32,
    checkpointed: AtomicU32,
}

/// How long a step has been looked at.
#[derive(Default)]
struct Hang {
    since_ns: u64,
    looked_ns: u64,
    ns: u64,
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// An epoch is closed and durable.
    Closed,
    /// A commit of before is still open: again, soon.
    Open,
    /// There is nothing to close.
    Nothing,
    /// It waits for a segment, or the journal has failed.
    Stuck,
}

/// A checkpoint that has been written, and has no name yet.
#[derive(Debug)]
pub(crate) struct Checkpointed {
    written: checkpoint::Written,
    /// What it contains.
    epoch: u32,
    /// It is good when this is durable.
    until: u32,
}

/// What a step has taken and found no segment for: the next one begins with it.
#[derive(Default)]
struct Unwritten {
    items: Vec<u8>,
    /// Bytes of records that are given back to what may be pending when all of it is written.
    records_bytes: u64,
    epoch_max: u32,
}

/// The node's journal.
pub(crate) struct Journaling {
    pub config: JournalConfig,
    pub shape: Shape,
    me: NodeId,
    nodes: u8,
    desks: Box<[Desk]>,
    /// The epoch that the last step began to close everything below of: commits that open now have at least this one.
    target: AtomicU32,
    /// Bytes promised to commits or in buffers.
    pending: AtomicU64,
    journal: Mutex<Journal>,
    unwritten: Mutex<Unwritten>,
    spare: Mutex<Option<Segment>>,
    has_spare: AtomicBool,
    /// What this node has closed; what all have.
    closed: AtomicU32,
    durable: AtomicU32,
    waiters: Mutex<Vec<(u32, Waker)>>,
    /// Since when its thread is in a step; 0: it is in none.
    step_since_ns: AtomicU64,
    hang: Mutex<Hang>,
    /// The epoch that a checkpoint waits for.
    wanted: AtomicU32,
    next_number: AtomicU32,
    /// All other nodes have been met.
    has_all: AtomicBool,
    /// A node that comes back has a journal when it is let in.
    has_begun: AtomicBool,
    /// Rows have copies on other nodes, which go on without a node whose journal has failed.
    has_copies: bool,
    /// All records of this start are of later epochs.
    before: AtomicU32,
    /// Whoever makes segments is busy with a checkpoint.
    is_checkpointing: AtomicBool,
    /// Somebody else does the steps.
    pub has_thread: AtomicBool,
    /// Why the journal can never be written again.
    failed: Mutex<Option<Box<str>>>,
    is_failed: AtomicBool,
    /// Why there is no room at the moment.
    refused: Mutex<Option<TxnError>>,
    /// This node's region.
    memory: Arc<RegionMemory>,
    /// Of each node.
    heard: Box<[Heard]>,
    /// The keeper's epoch, as it was last heard.
    epoch_heard: AtomicU32,
    /// The latest epoch of a commit that has changed a row here.
    epoch_done: AtomicU32,
    members: Mutex<Members>,
    /// Wakes the thread.
    calls: Mutex<u64>,
    called: Condvar,
    /// The least epoch that a checkpoint of each node contains.
    pub checkpointed: AtomicU32,
    pub checkpoints: AtomicU64,
    /// Held for as long as the node runs.
    generation: Generation,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        let desk = |_| Desk { open: AtomicU64::new(IDLE), buffer: Mutex::default() };
        Ok(Arc::new(Self {
            me: identity.node,
            nodes: identity.nodes,
            desks: (0..WORKERS_MAX).map(desk).collect(),
            target: AtomicU32::new(closed + 1),
            pending: AtomicU64::new(0),
            journal: Mutex::new(Journal::new(shape.clone(), first)),
            unwritten: Mutex::default(),
            spare: Mutex::default(),
            has_spare: AtomicBool::new(false),
            closed: AtomicU32::new(closed),
            durable: AtomicU32::new(closed),
            waiters: Mutex::default(),
            step_since_ns: AtomicU64::new(0),
            hang: Mutex::default(),
            wanted: AtomicU32::new(0),
            next_number: AtomicU32::new(1),
            has_all: AtomicBool::new(is_replicated || identity.nodes == 1),
            has_begun: AtomicBool::new(!generation.comes_back()),
            has_copies: is_replicated,
            before: AtomicU32::new(closed),
            is_checkpointing: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            failed: Mutex::default(),
            is_failed: AtomicBool::new(false),
            refused: Mutex::default(),
            memory,
            heard: (0..identity.nodes).map(|_| Heard::default()).collect(),
            epoch_heard: AtomicU32::new(0),
            epoch_done: AtomicU32::new(0),
            members: Mutex::new(Members::new(identity.nodes, is_replicated)),
            calls: Mutex::default(),
            called: Condvar::new(),
            checkpointed: AtomicU32::new(0),
            checkpoints: AtomicU64::new(0),
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
        self.durable.load(SeqCst)
    }

    /// The last epoch that this node has closed.
    pub fn closed(&self) -> u32 {
        self.closed.load(SeqCst)
    }

    // ---- commits -------------------------------------------------------------------------------------------------------

    /// The longest record.
    pub fn item_bytes_max(&self) -> u64 {
        self.shape.item_bytes_max()
    }

    /// Room for a record, if there is some now. What is refused for good, is with an error.
    pub fn promise(&self, size: u64) -> Result<bool, TxnError> {
        if self.is_failed.load(SeqCst) {
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
        let promised = self.has_spare.load(SeqCst) && self.pending.fetch_update(SeqCst, SeqCst, fits).is_ok();
        if !promised {
            self.make_spare_or_wait();
        }
        Ok(promised)
    }

    /// Gives promised room back.
    pub fn forget(&self, size: u64) {
        self.pending.fetch_sub(size, SeqCst);
    }

    /// Is there no room because no segment can be made?
    pub fn refused(&self) -> Option<TxnError> {
        held(&self.refused).clone()
    }

    /// A commit of a worker opens: the bound that its epoch is not below.
    pub fn bound(&self) -> u32 {
        self.target.load(SeqCst)
    }

    /// Says what a worker's oldest open commit is; `None`: it has none.
    pub fn set_open(&self, worker: u8, bound: Option<u32>) {
        self.desks[usize::from(worker)].open.store(bound.map_or(IDLE, u64::from), SeqCst);
    }

    /// A record, for which room was promised.
    pub fn append(&self, worker: u8, behind: &[u8], mark: u64, epoch: u32) {
        let mut buffer = held(&self.desks[usize::from(worker)].buffer);
        buffer.bytes.extend_from_slice(&mark.to_le_bytes());
        buffer.bytes.extend_from_slice(behind);
        buffer.epoch_max = buffer.epoch_max.max(epoch);
        self.epoch_done.fetch_max(epoch, SeqCst);
    }

    /// As [`Self::append`], of a record that a dead coordinator has left: it needs no room that was promised.
    pub fn append_left(&self, worker: u8, behind: &[u8], mark: u64, epoch: u32) {
        self.pending.fetch_add(8 + behind.len() as u64, SeqCst);
        self.append(worker, behind, mark, epoch);
    }

    /// Wakes `waker` when the epoch is durable, or never will be.
    pub fn wait_for(&self, epoch: u32, waker: &Waker) {
        held(&self.waiters).push((epoch, waker.clone()));
        self.call();
    }

    /// Has those who wait look at the clock: for a thread that waits for no disk.
    pub fn wake_the_late(&self) {
        for (_, waker) in &*held(&self.waiters) {
            waker.wake_by_ref();
        }
    }

    /// The thread that writes begins a step, or has done it.
    pub fn note_step(&self, since_ns: Option<u64>) {
        self.step_since_ns.store(since_ns.map_or(0, |since_ns| since_ns.max(1)), SeqCst);
    }

    /// Gives the journal up if a step takes as long as none does on a sound disk: the others go on without this node then, and with it
    /// they would wait as long. To be called where rows have copies.
    pub fn fail_if_hung(&self, now_ns: u64) {
        let since_ns = self.step_since_ns.load(SeqCst);
        let mut hang = held(&self.hang);
        if since_ns == 0 || hang.since_ns != since_ns {
            *hang = Hang { since_ns, looked_ns: now_ns, ns: 0 };
            return;
        }
        // A machine or a process that has stood between two looks says nothing of its disk.
        hang.ns += now_ns.saturating_sub(hang.looked_ns).min(HANG_LOOK_NS_MAX);
        hang.looked_ns = now_ns;
        if hang.ns > HANG_NS_MAX {
            drop(hang);
            self.fail("the disk has not answered for five minutes");
        }
    }

    /// Is it durable? An error if it never will be.
    pub fn is_durable(&self, epoch: u32) -> Result<bool, TxnError> {
        if self.durable() >= epoch {
            return Ok(true);
        }
        if self.is_failed.load(SeqCst) { Err(self.refusal(true)) } else { Ok(false) }
    }

    fn refusal(&self, committed: bool) -> TxnError {
        let reason = held(&self.failed).clone().unwrap_or_default();
        TxnError::NotDurable { reason, committed }
    }

    /// The journal is not written any more, which the other nodes read beside what it has closed.
    pub fn fail(&self, reason: &str) {
        held(&self.failed).get_or_insert_with(|| reason.into());
        self.is_failed.store(true, SeqCst);
        self.word(Superblock::CLOSED, |word| word.fetch_or(Superblock::FAILED, SeqCst));
        for (_, waker) in std::mem::take(&mut *held(&self.waiters)) {
            waker.wake();
        }
    }

    /// Why it is not written any more, if it is not.
    pub fn failure(&self) -> Option<Box<str>> {
        held(&self.failed).clone()
    }

    // ---- the journal's thread ------------------------------------------------------------------------------------------

    /// There is something to do.
    pub fn call(&self) {
        *held(&self.calls) += 1;
        self.called.notify_all();
    }

    /// Waits for a call since the one with the number `seen`.
    pub fn wait_for_call(&self, seen: &mut u64, timeout: Duration) {
        let calls = held(&self.calls);
        let waited = self.called.wait_timeout_while(calls, timeout, |calls| *calls == *seen);
        *seen = *waited.unwrap_or_else(PoisonError::into_inner).0;
    }

    /// The nodes that have never been heard.
    pub fn unknown(&self) -> Vec<NodeId> {
        let is_unknown = |node: &NodeId| *node != self.me && !self.heard[usize::from(node.0)].is_met.load(SeqCst);
        (0..self.nodes).map(NodeId).filter(is_unknown).collect()
    }

    fn word<T>(&self, offset: u64, look: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        self.memory.word(offset).ok().map(look)
    }

    /// Asks the other nodes' regions how far their journals are, and the keeper's for the epoch, which it raises if somebody waits.
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
            && seen <= u64::from(self.target.load(SeqCst))
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
                heard.checkpointed.fetch_max(checkpointed as u32, SeqCst);
            } else {
                // A region registered anew, or one that this endpoint had never met.
                let _ = endpoint.refresh(*node, DATA);
            }
        }
        if let Some(epoch) = epoch {
            self.epoch_heard.fetch_max(epoch as u32, SeqCst);
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

    /// The epoch as far as this node knows it: not less than that of any commit of which it has heard, and not more than the keeper's.
    pub fn epoch(&self) -> u32 {
        let known = self.target.load(SeqCst).max(self.epoch_heard.load(SeqCst)).max(self.epoch_done.load(SeqCst));
        let members = held(&self.members);
        match self.word(Superblock::EPOCH, |word| word.load(SeqCst) as u32) {
            Some(mine) if members.keeper() == Some(self.me) => known.max(mine),
            _ => known,
        }
    }

    /// A commit of this epoch has changed a row here.
    pub fn has_done(&self, epoch: u32) {
        self.epoch_done.fetch_max(epoch, SeqCst);
    }

    // ---- changes of the configuration ----------------------------------------------------------------------------------

    /// No commit gets past its commit point until another configuration is installed; the epoch that is not to be used any more.
    pub fn freeze(&self, next: &Configuration) -> u32 {
        let mut members = held(&self.members);
        let again = members.freeze(next);
        self.forget_heard(&again);
        drop(members);
        self.epoch()
    }

    /// Of nodes that have started again: the start before may have closed epochs that this one has not. Under the lock of the members.
    fn forget_heard(&self, again: &[NodeId]) {
        for heard in again.iter().filter_map(|node| self.heard.get(usize::from(node.0))) {
            heard.closed.store(0, SeqCst);
            heard.checkpointed.store(0, SeqCst);
        }
    }

    /// Everything before this epoch is to be closed; true when it is. What is later belongs to the configuration to come.
    pub fn settle(&self, epoch_min: u32) -> bool {
        let members = held(&self.members);
        if !self.has_begun.load(SeqCst) {
            self.before.store(epoch_min - 1, SeqCst);
            self.has_begun.store(true, SeqCst);
        }
        self.target.fetch_max(epoch_min, SeqCst);
        drop(members);
        self.call();
        self.closed() + 1 >= epoch_min
    }

    /// Goes on in this configuration.
    pub fn install(&self, next: &Configuration) {
        let mut members = held(&self.members);
        let again = members.install(next);
        self.forget_heard(&again);
        drop(members);
        self.call();
    }

    /// Is somebody waiting, or something to be written?
    pub fn is_wanted(&self) -> bool {
        self.pending.load(SeqCst) > 0
            || !held(&self.waiters).is_empty()
            || self.wanted.load(SeqCst) > self.durable()
            || held(&self.members).has_news()
    }

    /// Is everything that has ever been visible on this node's cluster of one durable? What is written need not count yet: a step writes records
    /// of the epoch after the one that it closes, too.
    pub fn is_quiet(&self) -> bool {
        self.nodes == 1 && self.pending.load(SeqCst) == 0 && self.epoch_done.load(SeqCst) <= self.durable()
    }

    /// Does one step: closes the epochs that are over, and raises the epoch for it if somebody waits.
    pub fn step(&self, store: &Store) -> Step {
        if self.is_failed.load(SeqCst) {
            return Step::Stuck;
        }
        if !self.has_begun.load(SeqCst) {
            return Step::Nothing;
        }
        if self.epoch_heard.load(SeqCst) >= EPOCH_LAST {
            self.fail("all epochs of this database are used up: copy its rows into a new one");
            return Step::Stuck;
        }
        let is_wanted = self.is_wanted();
        let target = {
            let members = held(&self.members);
            if members.keeper() == Some(self.me) {
                self.word(Superblock::EPOCH, |word| {
                    let seen = word.load(SeqCst);
                    if is_wanted && seen <= u64::from(self.target.load(SeqCst)) {
                        // Lost to another node, it is raised as well.
                        let _ = word.compare_exchange(seen, seen + 1, SeqCst, SeqCst);
                    }
                    self.epoch_heard.fetch_max(word.load(SeqCst) as u32, SeqCst);
                });
            }
            // While the configuration changes it is set by those who change it.
            if members.keeper().is_some() {
                self.target.fetch_max(self.epoch_heard.load(SeqCst), SeqCst);
            }
            self.target.load(SeqCst)
        };
        if target <= self.closed() + 1 {
            self.publish();
            return Step::Nothing;
        }
        let is_open = |desk: &Desk| desk.open.load(SeqCst) < u64::from(target);
        if self.desks.iter().any(is_open) && !planted!(OpenIgnored) {
            return Step::Open;
        }
        // Whoever has given up a commit without knowing what became of it has said so before it was not open any more.
        if self.is_failed.load(SeqCst) {
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
        self.closed.store(closed, SeqCst);
        // Another thread may have given the journal up meanwhile: that is above all epochs, and stays.
        self.word(Superblock::CLOSED, |word| word.fetch_max(u64::from(closed), SeqCst));
        crate::base::planted::may_stop();
        self.publish();
        self.pending.fetch_sub(written, SeqCst);
        Step::Closed
    }

    /// Takes what is in the buffers and writes it; bytes of records. `None`: there is no segment for it yet; it stays where it is.
    fn write(&self, store: &Store, closed: u32) -> Result<Option<u64>, DurableError> {
        let mut journal = held(&self.journal);
        // What is taken now must fit: the spare segment takes all that may be pending.
        if !self.has_spare.load(SeqCst) && !journal.fits(self.shape.pending_bytes_max() + EVENTS_BYTES) {
            drop(journal);
            self.make_spare_or_wait();
            return Ok(None);
        }
        let mut unwritten = held(&self.unwritten);
        let Unwritten { mut items, mut records_bytes, mut epoch_max } = std::mem::take(&mut *unwritten);
        let events_from = items.len();
        store.take_page_events(&mut items);
        if items.len() > events_from {
            // A checkpoint that does not have these events was begun after an epoch before this one, so their segment stays until another one.
            epoch_max = epoch_max.max(closed + 1);
        }
        for desk in &self.desks {
            let mut buffer = held(&desk.buffer);
            items.extend_from_slice(&buffer.bytes);
            records_bytes += buffer.bytes.len() as u64;
            buffer.bytes.clear();
            epoch_max = epoch_max.max(std::mem::take(&mut buffer.epoch_max));
        }
        let mut rest = &items[..];
        let mut head = Vec::new();
        loop {
            // The standing has to fit with what comes behind it.
            let standing = self.standing_to_write(&journal, &mut head);
            if !journal.fits((head.len() + rest.len()) as u64) && !journal.is_at_beginning() {
                if self.switch(&mut journal) || (self.make_spare().is_ok() && self.switch(&mut journal)) {
                    continue;
                }
                // The disk is full (`refused` says so), or the journal has been given up.
                *unwritten = Unwritten { items: rest.to_vec(), records_bytes, epoch_max };
                return Ok(None);
            }
            // Page events, and what the dead have left, were promised no room: there may be more than a segment of them.
            let now = first_items(rest, head.len(), &journal);
            let (now, later) = rest.split_at(now);
            let closed = if later.is_empty() { closed } else { self.closed() };
            let configuration = standing.unwrap_or(0);
            journal.write(&[&head, now], Closing { closed, epoch_max, configuration })?;
            if let Some(number) = standing {
                held(&self.members).has_written(number);
            }
            rest = later;
            if rest.is_empty() {
                return Ok(Some(records_bytes));
            }
        }
    }

    /// What the next batch has to say of the cluster, as an item; the number of that configuration.
    fn standing_to_write(&self, journal: &Journal, item: &mut Vec<u8>) -> Option<u64> {
        item.clear();
        let members = held(&self.members);
        let standing = members.to_write(journal.is_at_beginning())?;
        standing.push(item);
        Some(standing.number)
    }

    fn make_spare_or_wait(&self) {
        if self.has_thread.load(SeqCst) {
            self.call();
        } else {
            // Why it could not be made is in `refused`.
            let _ = self.make_spare();
        }
    }

    fn switch(&self, journal: &mut Journal) -> bool {
        let Some(spare) = held(&self.spare).take() else { return false };
        self.has_spare.store(false, SeqCst);
        journal.switch(spare);
        self.call();
        true
    }

    /// Makes the next segment if there is none.
    pub fn make_spare(&self) -> Result<(), DurableError> {
        let mut spare = held(&self.spare);
        if spare.is_some() || self.is_failed.load(SeqCst) {
            return Ok(());
        }
        // The journal may be held by whoever calls; its next number only changes with the spare.
        let number = self.next_number.load(SeqCst);
        match self.shape.make_segment(number) {
            Ok(segment) => {
                self.next_number.store(number + 1, SeqCst);
                *spare = Some(segment);
                self.has_spare.store(true, SeqCst);
                *held(&self.refused) = None;
                drop(spare);
                self.call();
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string().into();
                let is_full = matches!(error, DurableError::Io { is_full: true, .. });
                let refused = if is_full {
                    TxnError::DiskFull { reason }
                } else {
                    TxnError::NotDurable { reason, committed: false }
                };
                *held(&self.refused) = Some(refused);
                Err(error)
            }
        }
    }

    /// Tells everybody what is durable, and forgets what no restart needs.
    fn publish(&self) {
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
        if let Some(checkpointed) = checkpointed {
            // What cannot be removed now is with the next checkpoint.
            let _ = held(&self.journal).forget(checkpointed);
            if checkpointed >= self.before.load(SeqCst) {
                let _ = self.shape.remove_before();
            }
        }
    }

    /// Raises what is durable, and what all checkpoints contain, to the least that any node has that counts; what has been raised. Under the
    /// lock of the members to its end: once a node that comes in counts, the others close epochs that it has not, and a list from before
    /// would take theirs for everybody's.
    fn count(&self, members: &Members) -> (Option<u32>, Option<u32>) {
        let all = |mine: u32, of: &dyn Fn(&Heard) -> u32| {
            let of = |node: &NodeId| if *node == self.me { mine } else { of(&self.heard[usize::from(node.0)]) };
            members.counted().iter().map(of).min().unwrap_or(0)
        };
        let durable = all(self.closed(), &|heard| heard.closed.load(SeqCst));
        let mine = self.word(Superblock::CHECKPOINTED, |word| word.load(SeqCst) as u32).unwrap_or(0);
        let checkpointed = all(mine, &|heard| heard.checkpointed.load(SeqCst));
        let is_raised = |word: &AtomicU32, value: u32| value > word.fetch_max(value, SeqCst);
        (
            is_raised(&self.durable, durable).then_some(durable),
            (members.may_forget() && is_raised(&self.checkpointed, checkpointed)).then_some(checkpointed),
        )
    }

    /// Bytes of the journal of this start.
    pub fn bytes(&self) -> u64 {
        held(&self.journal).bytes()
    }

    /// Makes a checkpoint of the node's rows; false if `go_on` has ended it. May run beside everything else, once at a time.
    pub fn checkpoint(&self, store: &Store, go_on: &mut dyn FnMut() -> bool) -> Result<bool, DurableError> {
        self.is_checkpointing.store(true, SeqCst);
        let made = self.make_checkpoint(store, go_on);
        self.is_checkpointing.store(false, SeqCst);
        made
    }

    /// Makes the next segment, if whoever does so otherwise is waiting for a disk that writes a checkpoint, which may wait for this segment.
    pub fn make_spare_if_nobody_does(&self) {
        if self.is_checkpointing.load(SeqCst) && !self.has_spare.load(SeqCst) {
            // Why it could not be made is in `refused`.
            let _ = self.make_spare();
        }
    }

    fn make_checkpoint(&self, store: &Store, go_on: &mut dyn FnMut() -> bool) -> Result<bool, DurableError> {
        let Some(written) = self.write_checkpoint(store, go_on)? else { return Ok(false) };
        while !self.is_good(&written) {
            if !go_on() || self.is_failed.load(SeqCst) {
                return Ok(false);
            }
            self.step_or_wait(store);
        }
        self.publish_checkpoint(&written).map(|()| true)
    }

    /// Writes one that [is good](Self::is_good) later; `None`: `go_on` has ended it, or there is nothing to write yet.
    pub fn write_checkpoint(
        &self,
        store: &Store,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Checkpointed>, DurableError> {
        let is_known = !self.generation.comes_back() || held(&self.members).rows_since(self.me).is_some();
        if !self.has_begun.load(SeqCst) || !is_known {
            return Ok(None);
        }
        self.check_rows()?;
        // Closed on all nodes: so every change up to it has been made here, also by commits of others.
        let epoch = self.durable().max(self.before.load(SeqCst));
        let what = (self.shape.identity, self.shape.start, epoch);
        let Some(written) = checkpoint::write(store, &*self.config.directory, what, go_on)? else { return Ok(None) };
        let until = self.epoch().max(written.epoch_max);
        self.wanted.store(until, SeqCst);
        Ok(Some(Checkpointed { written, epoch, until }))
    }

    /// A checkpoint ends what earlier starts have left. That of a region that began empty may do so only if the configuration says that the node's rows
    /// began with this start: others have those of before. If not, the journal is given up, and the files stay.
    fn check_rows(&self) -> Result<(), DurableError> {
        let since = held(&self.members).rows_since(self.me).unwrap_or(0);
        if !self.generation.comes_back() || since == 0 || since == self.shape.start {
            return Ok(());
        }
        let file = format!("the empty region of node {}", self.me.0).into();
        let (found, expected) = (u64::from(self.shape.start), u64::from(since));
        let error = DurableError::Foreign { file, what: "start in which its rows began", found, expected };
        self.fail(&error.to_string());
        Err(error)
    }

    /// Is everything durable that is in it?
    pub fn is_good(&self, checkpoint: &Checkpointed) -> bool {
        self.durable() >= checkpoint.until
    }

    /// Gives it its name.
    pub fn publish_checkpoint(&self, Checkpointed { written, epoch, .. }: &Checkpointed) -> Result<(), DurableError> {
        self.check_rows()?;
        let directory = &*self.config.directory;
        checkpoint::publish(directory, &self.shape.inventory, written)?;
        self.word(Superblock::CHECKPOINTED, |word| word.store(u64::from(*epoch), SeqCst));
        self.publish();
        self.checkpoints.fetch_add(1, SeqCst);
        if self.checkpointed.load(SeqCst) >= self.before.load(SeqCst) { Cluster::forget(directory) } else { Ok(()) }
    }

    fn step_or_wait(&self, store: &Store) {
        if self.has_thread.load(SeqCst) {
            self.call();
            std::thread::park_timeout(Duration::from_millis(1));
        } else {
            self.step(store);
        }
    }

    /// The last step of an orderly end.
    pub fn close(&self) {
        let _ = held(&self.journal).close();
    }
}

/// Bytes of the first items that fit what is left of a segment, behind so many others.
fn first_items(items: &[u8], before: usize, journal: &Journal) -> usize {
    if journal.fits((before + items.len()) as u64) {
        return items.len();
    }
    let mut end = 0;
    while end < items.len() {
        let size = u32::from_le_bytes(items[end + 8..end + 12].try_into().expect("4 bytes")) as usize;
        if !journal.fits((before + end + size) as u64) {
            break;
        }
        end += size;
    }
    end
}

impl fmt::Debug for Journaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journaling").field("durable", &self.durable()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::{Placement, TableDef};
    use crate::cluster::settings::ReplicationConfig;
    use crate::node::{Node, NodeConfig};
    use crate::protocol::worker::{Retry, Worker};
    use farhold_fabric::{Executor, Fabric, Version};
    use farhold_store::durable::files::Directory;
    use farhold_store::durable::journal;
    use farhold_store::durable::power::Volatile;
    use farhold_store::log::{Change, Entry, RecordWriter};
    use farhold_store::row::{Column, ColumnType, Datum, Schema};
    use futures::poll;
    use std::pin::pin;
    use std::task::Poll;

    /// A start of one of two nodes with copies, as far as its journal goes.
    fn start(directory: &Volatile, node: NodeId) -> (Arc<Journaling>, Arc<Store>) {
        let config = JournalConfig {
            segment_bytes: journal::SEGMENT_BYTES_MIN,
            threads: 1,
            ..JournalConfig::new(Arc::new(directory.clone()))
        };
        let replication = ReplicationConfig { replicas: 2, ..ReplicationConfig::default() };
        let generation = Generation::begin(&config, node, 2, &replication).expect("a start");
        let memory = Arc::new(RegionMemory::anonymous(FarPtr::new(node, DATA, 0), 4 << 20).expect("memory"));
        generation.restore(&config, &memory).expect("a region");
        let (store, _) = Store::attach(memory.clone(), node).expect("a store");
        let journaling = Journaling::new(config, generation, memory, true).expect("a journal");
        (journaling, store)
    }

    /// A node that comes back has an empty region. If it is taken for a founder's all the same, its checkpoint must not end the files with the rows.
    #[test]
    fn an_empty_region_is_no_checkpoint_of_the_rows_before() {
        let directory = Volatile::default();
        let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
        let (first, store) = start(&directory, NodeId(0));
        let (_other, _) = start(&directory, NodeId(1));
        first.install(&founded);
        // The others' ends are not heard here: the epoch is.
        while first.step(&store) != Step::Closed {}
        drop((first, store));
        let again = |next: &Configuration| {
            let (back, store) = start(&directory, NodeId(0));
            assert!(back.generation().comes_back());
            assert!(!back.settle(3));
            assert_eq!(
                back.write_checkpoint(&store, &mut || true).map(|it| it.is_some()),
                Ok(false),
                "nothing is known"
            );
            back.install(next);
            let written = back.write_checkpoint(&store, &mut || true).map(|it| it.is_some());
            (written, back.failure().is_some())
        };
        let (written, has_failed) = again(&Configuration { births: vec![2, 1], ..founded.clone() });
        assert!(matches!(written, Err(DurableError::Foreign { found: 2, expected: 1, .. })) && has_failed);
        let joining =
            founded.without(&[NodeId(0)], NodeId(1)).promoted(NodeId(0), NodeId(1)).with_joining(NodeId(0), 3);
        assert_eq!(again(&joining), (Ok(true), false));
        let joined = Configuration { births: vec![4, 1], rows_since: vec![4, 1], ..joining.joined(NodeId(0)) };
        assert_eq!(again(&joined), (Ok(true), false));
    }

    /// More than the segments hold that are there, on a disk that takes no more of them: it is written when there is room again.
    #[test]
    fn what_the_dead_have_left_waits_for_room_on_the_disk() {
        let directory = Volatile::default();
        let founded = Configuration { births: vec![1, 1], ..Configuration::first(2, 2) };
        let (first, store) = start(&directory, NodeId(0));
        first.install(&founded);
        while first.step(&store) != Step::Closed {}
        first.make_spare().expect("there is room");
        let words = |number: usize| format!("left by the dead: {number:06}").repeat(40).into_bytes();
        let (mut count, mut bytes) = (0, 0);
        while bytes < 5 * journal::SEGMENT_BYTES_MIN / 2 {
            let value = words(count);
            let mut record = RecordWriter::default();
            record.begin(9, founded.number, 1);
            record.add(&Entry {
                node: NodeId(0),
                change: Change::Write,
                mirrored: true,
                table: farhold_store::TableId(20),
                reference: farhold_store::ObjectRef::new(4096, 1),
                old: Version(0),
                new: Version(Version::ONE),
                key: b"the key",
                value: &value,
            });
            record.end();
            let (behind, mark) = record.place(0, 0);
            first.append_left(0, behind, mark, 1);
            (count, bytes) = (count + 1, bytes + value.len() as u64);
        }
        let _ = store.superblock().advance_epoch();
        directory.limit(1);
        for _ in 0..3 {
            assert_eq!(first.step(&store), Step::Stuck);
        }
        assert!(
            first.failure().is_none() && matches!(first.refused(), Some(TxnError::DiskFull { .. })),
            "{:?}",
            first.failure()
        );
        directory.limit(0);
        while first.step(&store) != Step::Closed {
            assert!(first.failure().is_none(), "{:?}", first.failure());
        }
        assert_eq!(first.pending.load(SeqCst), 0);
        let names = directory.list().expect("names");
        let files: Vec<Vec<u8>> = names.iter().map(|name| directory.bytes(name)).collect();
        for number in 0..count {
            let words = words(number);
            let has = |file: &Vec<u8>| file.windows(words.len()).any(|part| part == words);
            assert_eq!(files.iter().filter(|file| has(file)).count(), 1, "record {number}");
        }
    }

    /// Behind the last epoch there is none: the journal says so, and begins nothing anew.
    #[test]
    fn the_last_epoch_is_the_last() {
        let directory = Volatile::default();
        let (journaling, store) = start(&directory, NodeId(0));
        journaling.install(&Configuration { births: vec![1, 1], ..Configuration::first(2, 2) });
        while journaling.step(&store) != Step::Closed {}
        store.superblock().raise_epoch(EPOCH_LAST);
        for _ in 0..5 {
            journaling.step(&store);
        }
        assert!(journaling.failure().is_some_and(|reason| reason.contains("used up")));
    }

    /// The system call that writes a disk does not end. Where rows have copies the node goes, and the others go on.
    #[test]
    fn a_disk_that_hangs_is_given_up() {
        let directory = Volatile::default();
        let (journaling, _store) = start(&directory, NodeId(0));
        let (looks, mut now_ns) = (HANG_NS_MAX / HANG_LOOK_NS_MAX, 5);
        let mut look = |by_ns| {
            now_ns += by_ns;
            journaling.fail_if_hung(now_ns);
            journaling.failure().is_some()
        };
        journaling.note_step(Some(5));
        assert!(!look(0));
        assert!(!look(10 * HANG_NS_MAX), "the machine has slept");
        assert!(!(1..looks).any(|_| look(HANG_LOOK_NS_MAX)));
        journaling.note_step(None);
        assert!(!look(HANG_LOOK_NS_MAX), "it has ended");
        journaling.note_step(Some(9));
        assert!(!(0..=looks).any(|_| look(HANG_LOOK_NS_MAX)), "another one");
        assert!(look(1));
    }

    /// Nobody waits for ever for an epoch that no disk takes.
    #[test]
    fn who_waits_for_a_disk_that_hangs_hears_of_it() {
        let regions = std::env::temp_dir().join(format!("farhold-hangs-{}", std::process::id()));
        let journal = JournalConfig::new(Arc::new(Volatile::default()));
        let generation = Generation::begin(&journal, NodeId(0), 1, &ReplicationConfig::default()).expect("a start");
        let config = NodeConfig { region_bytes: 8 << 20, journal: Some(journal), ..NodeConfig::default() };
        let fabric = Fabric::join_shm(&regions, NodeId(0)).expect("the fabric");
        let node = Node::open_durable(fabric, config, generation).expect("a node");
        let executor = Executor::real(1);
        let worker = node.worker(&executor.handle()).expect("a worker");
        executor.run(async {
            let epoch = worker.core.read_epoch().await.expect("an epoch") + 1;
            let mut waiting = pin!(worker.core.durable_within(epoch, 1_000_000));
            let told = loop {
                if let Poll::Ready(told) = poll!(&mut waiting) {
                    break told;
                }
                worker.handle().yield_now().await;
            };
            assert!(matches!(told, Err(TxnError::NotDurable { committed: true, .. })), "{told:?}");
            // One that nobody polls is woken.
            let waiter = worker.clone();
            let late = worker.handle().spawn(async move { waiter.core.durable_within(epoch, 1_000_000).await });
            worker.handle().sleep_ns(20_000_000).await;
            assert!(late.try_take().is_none());
            journaling_of(&worker).wake_the_late();
            while late.try_take().is_none() {
                worker.handle().yield_now().await;
            }
        });
        drop((worker, node));
        std::fs::remove_dir_all(&regions).expect("removed");
    }

    fn journaling_of(worker: &Worker) -> &Journaling {
        worker.node().journaling.as_ref().expect("a journal")
    }

    /// A look of each node at the other's journal, and a step of its own.
    async fn step_all(workers: &[Worker]) {
        for worker in workers {
            let journaling = journaling_of(worker);
            journaling.look(&worker.core.endpoint).await;
            let _ = journaling.make_spare();
            journaling.step(&worker.node().store);
            worker.handle().yield_now().await;
        }
    }

    /// Runs something while the journals are stepped.
    async fn with_steps<T>(workers: &[Worker], work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            if let Poll::Ready(done) = poll!(&mut work) {
                return done;
            }
            step_all(workers).await;
        }
    }

    /// A worker of node 0 deletes a row of node 1, whose slot is free at once, and node 1 has heard of no epoch so late. A checkpoint of node 1
    /// does not have the row, so it must wait for that epoch all the same.
    #[test]
    fn a_checkpoint_waits_for_deletes_by_other_nodes() {
        let directory = Volatile::default();
        let regions = std::env::temp_dir().join(format!("farhold-deletes-{}", std::process::id()));
        let nodes = [NodeId(0), NodeId(1)].map(|id| {
            let journal =
                JournalConfig { segment_bytes: 1 << 20, threads: 1, ..JournalConfig::new(Arc::new(directory.clone())) };
            let generation = Generation::begin(&journal, id, 2, &ReplicationConfig::default()).expect("a start");
            let config = NodeConfig {
                nodes: 2,
                region_bytes: 8 << 20,
                request_timeout_ns: 60_000_000_000,
                journal: Some(journal),
                ..NodeConfig::default()
            };
            Node::open_durable(Fabric::join_shm(&regions, id).expect("the fabric"), config, generation).expect("a node")
        });
        let executor = Executor::real(1);
        let workers = nodes.each_ref().map(|node| node.worker(&executor.handle()).expect("a worker"));
        for worker in workers.clone() {
            drop(executor.handle().spawn(async move {
                loop {
                    worker.poll();
                    worker.handle().yield_now().await;
                }
            }));
        }
        executor.run(async {
            let [one, other] = &workers;
            while workers.iter().any(|worker| !journaling_of(worker).unknown().is_empty()) {
                step_all(&workers).await;
            }
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let definition = TableDef { placement: Placement::ByInteger, ..TableDef::new("t", schema) };
            let table = with_steps(&workers, one.create_table(definition)).await.expect("a table");
            let key = |id: u32| (id ^ 0x8000_0000).to_be_bytes();
            let mut value = Vec::new();
            table.schema().encode_value(&[Datum::Int(0)], &mut value).expect("a value");
            let filled = one.run(Retry::never(), async |txn| {
                for id in 1..=4 {
                    txn.insert(&table, &key(id), &value).await?;
                }
                Ok(())
            });
            with_steps(&workers, filled).await.expect("rows");
            let _ = one.node().store.superblock().advance_epoch();
            let mut deleted = pin!(one.run(Retry::never(), async |txn| {
                let row = txn.get(&table, &key(2)).await?.expect("a row");
                txn.delete(row)
            }));
            let its_rows = || other.node().table("t").expect("the table").row_count();
            assert_eq!(its_rows(), 2);
            while its_rows() == 2 {
                assert!(poll!(&mut deleted).is_pending(), "no journal has it");
                one.handle().yield_now().await;
            }
            let (epoch, journaling) = (one.node().store.superblock().epoch(), journaling_of(other));
            assert!(journaling.epoch() >= epoch, "{} at a delete of epoch {epoch}", journaling.epoch());
            let written = journaling.write_checkpoint(&other.node().store, &mut || true).expect("written");
            let written = written.expect("begun");
            assert!(written.until >= epoch && !journaling.is_good(&written));
            with_steps(&workers, deleted).await.expect("deleted");
            while !journaling.is_good(&written) {
                step_all(&workers).await;
            }
        });
        drop((workers, executor, nodes));
        std::fs::remove_dir_all(&regions).expect("removed");
    }
}
