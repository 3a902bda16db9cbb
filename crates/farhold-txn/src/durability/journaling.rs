//! A node's journal, as its commits and the thread that writes it share it.

use super::JournalConfig;
use super::open::Generation;
use crate::slots::WORKERS_MAX;
use crate::{NodeId, TxnError};
use farhold_fabric::RegionMemory;
use farhold_store::durable::journal::{self, Closing, Journal, Segment, Shape};
use farhold_store::durable::{DurableError, checkpoint};
use farhold_store::{Store, Superblock};
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

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
    spare: Mutex<Option<Segment>>,
    has_spare: AtomicBool,
    /// What this node has closed; what all have.
    closed: AtomicU32,
    durable: AtomicU32,
    waiters: Mutex<Vec<(u32, Waker)>>,
    /// The epoch that a checkpoint waits for.
    wanted: AtomicU32,
    next_number: AtomicU32,
    /// All other nodes have been met.
    has_all: AtomicBool,
    /// Somebody else does the steps.
    pub has_thread: AtomicBool,
    /// Why the journal can never be written again.
    failed: Mutex<Option<Box<str>>>,
    is_failed: AtomicBool,
    /// Why there is no room at the moment.
    full: Mutex<Option<Box<str>>>,
    /// The other nodes' regions, and the keeper's, when they are there.
    peers: Mutex<Vec<Option<Arc<RegionMemory>>>>,
    /// Wakes the thread.
    calls: Mutex<u64>,
    called: Condvar,
    /// The least epoch that a checkpoint of each node contains.
    pub checkpointed: AtomicU32,
    pub checkpoints: AtomicU64,
    pub generation: Mutex<Generation>,
    /// Of the configuration that the node is in.
    pub configuration: AtomicU64,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journaling {
    pub fn new(config: JournalConfig, generation: Generation) -> Result<Arc<Self>, DurableError> {
        let identity = generation.cluster.identity;
        let first = generation.take_first();
        let shape = generation.shape(&config);
        let closed = generation.cluster.epoch_first - 1;
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
            spare: Mutex::default(),
            has_spare: AtomicBool::new(false),
            closed: AtomicU32::new(closed),
            durable: AtomicU32::new(closed),
            waiters: Mutex::default(),
            wanted: AtomicU32::new(0),
            next_number: AtomicU32::new(1),
            has_all: AtomicBool::new(false),
            has_thread: AtomicBool::new(false),
            failed: Mutex::default(),
            is_failed: AtomicBool::new(false),
            full: Mutex::default(),
            peers: Mutex::new((0..identity.nodes).map(|_| None).collect()),
            calls: Mutex::default(),
            called: Condvar::new(),
            checkpointed: AtomicU32::new(0),
            checkpoints: AtomicU64::new(0),
            generation: Mutex::new(generation),
            configuration: AtomicU64::new(0),
            config,
            shape,
        }))
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

    /// Room for a record, if there is some now. What is refused for good, is with an error.
    pub fn promise(&self, size: u64) -> Result<bool, TxnError> {
        if self.is_failed.load(SeqCst) {
            return Err(self.refusal(false));
        }
        if self.nodes > 1 && !self.has_all.load(Relaxed) {
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

    /// Is there no room because the disk is full? In words.
    pub fn full(&self) -> Option<Box<str>> {
        held(&self.full).clone()
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
    }

    /// Wakes `waker` when the epoch is durable, or never will be.
    pub fn wait_for(&self, epoch: u32, waker: &Waker) {
        held(&self.waiters).push((epoch, waker.clone()));
        self.call();
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

    /// The journal is not written any more.
    pub fn fail(&self, reason: &str) {
        held(&self.failed).get_or_insert_with(|| reason.into());
        self.is_failed.store(true, SeqCst);
        for (_, waker) in std::mem::take(&mut *held(&self.waiters)) {
            waker.wake();
        }
    }

    /// The configuration that records are of.
    pub fn configuration(&self) -> u64 {
        self.configuration.load(Relaxed)
    }

    /// Why it is not, if it is not.
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

    /// Knows another node's region, or this one's.
    pub fn know(&self, node: NodeId, memory: Arc<RegionMemory>) {
        held(&self.peers)[usize::from(node.0)] = Some(memory);
    }

    /// The nodes whose regions it does not know yet.
    pub fn unknown(&self) -> Vec<NodeId> {
        let peers = held(&self.peers);
        (0..self.nodes).map(NodeId).filter(|node| peers[usize::from(node.0)].is_none()).collect()
    }

    fn word<T>(&self, node: NodeId, offset: u64, look: impl FnOnce(&AtomicU64) -> T) -> Option<T> {
        let memory = held(&self.peers)[usize::from(node.0)].clone()?;
        memory.word(offset).ok().map(look)
    }

    /// The epoch now, at least the last one that a step knew.
    pub fn epoch(&self) -> u32 {
        let epoch = self.word(crate::protocol::epoch::KEEPER, Superblock::EPOCH, |word| word.load(SeqCst) as u32);
        epoch.unwrap_or(0).max(self.target.load(SeqCst))
    }

    /// Is somebody waiting, or something to be written?
    pub fn is_wanted(&self) -> bool {
        self.pending.load(SeqCst) > 0 || !held(&self.waiters).is_empty() || self.wanted.load(SeqCst) > self.durable()
    }

    /// Is everything that has ever been visible on this node's cluster of one durable?
    pub fn is_quiet(&self) -> bool {
        self.nodes == 1 && self.pending.load(SeqCst) == 0
    }

    /// Does one step: closes the epochs that are over, and raises the epoch for it if somebody waits.
    pub fn step(&self, store: &Store) -> Step {
        if self.is_failed.load(SeqCst) {
            return Step::Stuck;
        }
        let seen = self.word(crate::protocol::epoch::KEEPER, Superblock::EPOCH, |word| {
            let seen = word.load(SeqCst);
            if self.is_wanted() && seen <= u64::from(self.target.load(SeqCst)) {
                // Lost to another node, it is raised as well.
                let _ = word.compare_exchange(seen, seen + 1, SeqCst, SeqCst);
            }
            word.load(SeqCst) as u32
        });
        let Some(target) = seen.map(|seen| seen.max(self.target.load(SeqCst))) else { return Step::Nothing };
        if target <= self.closed() + 1 {
            self.publish();
            return Step::Nothing;
        }
        self.target.store(target, SeqCst);
        let is_open = |desk: &Desk| desk.open.load(SeqCst) < u64::from(target);
        if self.desks.iter().any(is_open) && !planted!(OpenIgnored) {
            return Step::Open;
        }
        let closed = target - 1;
        let written = match self.write(store, closed) {
            Ok(Some(written)) => written,
            Ok(None) => return Step::Stuck,
            Err(error) => {
                self.fail(&format!("the journal cannot be written: {error}"));
                return Step::Stuck;
            }
        };
        self.closed.store(closed, SeqCst);
        if let Ok(word) = store.memory().word(Superblock::CLOSED) {
            word.store(u64::from(closed), SeqCst);
        }
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
        let mut items = Vec::new();
        store.take_page_events(&mut items);
        let events_bytes = items.len() as u64;
        let mut epoch_max = 0;
        for desk in &self.desks {
            let mut buffer = held(&desk.buffer);
            items.extend_from_slice(&buffer.bytes);
            buffer.bytes.clear();
            epoch_max = epoch_max.max(std::mem::take(&mut buffer.epoch_max));
        }
        let configuration = self.configuration.load(Relaxed);
        let mut rest = &items[..];
        loop {
            if !journal.fits(rest.len() as u64) {
                while !self.switch(&mut journal) {
                    self.make_spare()?;
                }
            }
            // Page events were promised no room: many of them may need more than a segment.
            let take = if journal.fits(rest.len() as u64) { rest.len() } else { first_items(rest, &journal) };
            let (now, later) = rest.split_at(take);
            let closed = if later.is_empty() { closed } else { self.closed() };
            journal.write(now, Closing { closed, epoch_max, configuration })?;
            rest = later;
            if rest.is_empty() {
                return Ok(Some(items.len() as u64 - events_bytes));
            }
        }
    }

    fn make_spare_or_wait(&self) {
        if self.has_thread.load(SeqCst) {
            self.call();
        } else {
            // Why it could not be made is in `full`.
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
                *held(&self.full) = None;
                drop(spare);
                self.call();
                Ok(())
            }
            Err(error) => {
                *held(&self.full) = Some(error.to_string().into());
                Err(error)
            }
        }
    }

    /// Tells everybody what is durable, and forgets what no restart needs.
    fn publish(&self) {
        let all = |offset: u64, mine: u32| {
            let of = |node: NodeId| {
                if node == self.me { Some(mine) } else { self.word(node, offset, |word| word.load(SeqCst) as u32) }
            };
            (0..self.nodes).map(NodeId).map(|node| of(node).unwrap_or(0)).min().unwrap_or(0)
        };
        let durable = all(Superblock::CLOSED, self.closed());
        if durable > self.durable.fetch_max(durable, SeqCst) {
            let mut waiters = held(&self.waiters);
            let (ready, waiting) = std::mem::take(&mut *waiters).into_iter().partition(|(epoch, _)| *epoch <= durable);
            *waiters = waiting;
            drop(waiters);
            let ready: Vec<(u32, Waker)> = ready;
            for (_, waker) in ready {
                waker.wake();
            }
        }
        let mine = self.word(self.me, Superblock::CHECKPOINTED, |word| word.load(SeqCst) as u32).unwrap_or(0);
        let checkpointed = all(Superblock::CHECKPOINTED, mine);
        if checkpointed > self.checkpointed.fetch_max(checkpointed, SeqCst) {
            // What cannot be removed now is with the next checkpoint.
            let _ = held(&self.journal).forget(checkpointed);
            let generation = held(&self.generation);
            if checkpointed + 1 >= generation.cluster.epoch_first {
                let _ = journal::remove_before(&*self.config.directory, self.me, self.shape.generation);
            }
        }
    }

    /// Bytes of the journal of this generation.
    pub fn bytes(&self) -> u64 {
        held(&self.journal).bytes()
    }

    /// Makes a checkpoint of the node's rows; false if `go_on` has ended it. May run beside everything else, once at a time.
    pub fn checkpoint(&self, store: &Store, go_on: &mut dyn FnMut() -> bool) -> Result<bool, DurableError> {
        // Closed on all nodes: so every change up to it has been made here, also by commits of others.
        let epoch = self.durable();
        let directory = &*self.config.directory;
        let what = (self.shape.identity, self.shape.generation, epoch);
        let Some(written) = checkpoint::write(store, directory, what, go_on)? else { return Ok(false) };
        let until = self.epoch().max(written.epoch_max);
        self.wanted.store(until, SeqCst);
        while self.durable() < until {
            if !go_on() || self.is_failed.load(SeqCst) {
                return Ok(false);
            }
            self.step_or_wait(store);
        }
        checkpoint::publish(directory, &written)?;
        if let Ok(word) = store.memory().word(Superblock::CHECKPOINTED) {
            word.store(u64::from(epoch), SeqCst);
        }
        self.publish();
        self.checkpoints.fetch_add(1, SeqCst);
        let mut generation = held(&self.generation);
        if self.checkpointed.load(SeqCst) + 1 >= generation.cluster.epoch_first {
            // Under the cluster's lock only at a start: nobody writes the file meanwhile.
            generation.forget_past(directory)?;
        }
        Ok(true)
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

/// Bytes of the first items that fit what is left of a segment.
fn first_items(items: &[u8], journal: &Journal) -> usize {
    let mut end = 0;
    while end < items.len() {
        let size = u32::from_le_bytes(items[end + 8..end + 12].try_into().expect("4 bytes")) as usize;
        if !journal.fits((end + size) as u64) {
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
