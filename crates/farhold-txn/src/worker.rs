//! What one thread needs to run transactions.

use crate::back_off::BackOff;
use crate::home::call::Pending;
use crate::home::message::Request;
use crate::home::unsent::RETRY_NS;
use crate::protocol::epoch::Epoch;
use crate::protocol::execute::FAR_INDEXES_MIN;
use crate::protocol::odd::Settled;
use crate::protocol::section::rtm::Trust;
use crate::replication::MappedRings;
use crate::slots::{Counter, OwnSlot, WORKERS_MAX};
use crate::txn::state::State;
use crate::{Node, NodeId, TableId, Txn, TxnError};
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::{Batch, Endpoint, Handle, Message};
use farhold_store::index::hash::{FarIndex, LocationCache};
use farhold_store::log::RecordWriter;
use farhold_store::{AllocCache, Owner};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// One thread's way into the database. Not `Send`; clones are the same worker, so each of a thread's tasks may have one.
///
/// Many transactions may be open on one worker at the same time; whichever waits lets the others run.
#[derive(Clone)]
pub struct Worker {
    pub(crate) core: Rc<Core>,
}

/// What the transactions of a thread share.
pub(crate) struct Core {
    /// Itself, for what goes on beside whoever has begun it.
    pub this: Weak<Core>,
    pub node: Arc<Node>,
    pub me: NodeId,
    pub endpoint: Endpoint,
    pub handle: Handle,
    pub slot: OwnSlot,
    pub alloc: RefCell<AllocCache>,
    pub epoch: Epoch,
    /// In hardware transactions.
    pub trust: Trust,
    /// States of past transactions, for the next ones.
    #[allow(clippy::vec_box, reason = "a state moves by its pointer, in and out of transactions")]
    states: RefCell<Vec<Box<State>>>,
    transactions: Cell<u32>,
    operations: Cell<u32>,
    /// The epoch at the last look whether it rises.
    seen_epoch: Cell<u32>,
    /// It has seen the last epoch that a snapshot may take.
    pub epochs_end: Cell<bool>,
    /// Into the inbox.
    pub looks: Cell<u32>,
    /// When to look after dropped tables again.
    pub tidy_ns: Cell<u64>,
    /// Questions to other nodes that wait for an answer.
    pub pending: RefCell<Pending>,
    /// A message's memory.
    pub inbox: Cell<Message>,
    /// Where far rows were seen last.
    pub locations: RefCell<LocationCache>,
    /// How often it has met a later start of a node, and of each such node at which of these meetings last: from then on its instructions there
    /// are done to what that start has.
    pub starts_met: Cell<u64>,
    pub met_at: RefCell<HashMap<NodeId, u64>>,
    /// Nodes whose memory it has touched: from then on it hears of their later starts.
    pub touched: RefCell<HashSet<NodeId>>,
    /// What is known of other nodes' hash indexes.
    pub far_indexes: RefCell<HashMap<(NodeId, TableId), FarIndex>>,
    /// How many of them there may be before those of tables that are gone are forgotten.
    pub far_indexes_max: Cell<usize>,
    /// Batches for later.
    pub batches: RefCell<Vec<Batch>>,
    /// A record's memory.
    pub record: RefCell<RecordWriter>,
    /// Where records of this node's rows go.
    pub rings: RefCell<MappedRings>,
    /// Tasks that wait for rows to be at their holders.
    pub settled: Settled,
    /// Commits that the journal waits for: how many of each bound.
    pub open_commits: RefCell<BTreeMap<u32, u32>>,
    /// Tasks of transactions that are over.
    left: Cell<u32>,
}

/// States kept for later: as many as transactions are usually open at a time on a thread.
const STATES_KEPT_MAX: usize = 64;
/// Rows in a worker's location cache, 16 bytes each.
const LOCATIONS: usize = 64 << 10;
/// Transactions between two looks for slots that snapshots held back.
const COLLECT_EVERY: u32 = 256;
/// How many versions a row may get while the epoch stands, of the 2^29 that it has room for: a transaction makes one, or some few
/// where it takes a slot and gives it back, and a worker may need two looks to see that the epoch stands.
const VERSIONS_PER_EPOCH: u32 = 1 << 26;
/// How long a node that has not answered has rest before it is told again.
const TELL_AGAIN_NS: u64 = 2_000_000;
/// The longest such rest.
const TELL_AGAIN_NS_MAX: u64 = 512_000_000;
/// How often [`Worker::drain`] looks.
const DRAIN_LOOK_NS: u64 = 20_000;
/// Operations of transactions between two looks into the inbox: some 2 µs, so that others do not wait for long ones.
const SERVE_EVERY: u32 = 16;

/// How often [`Worker::run`] starts again, and how long it waits in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Most times that the body runs, the first included.
    pub attempts_max: u32,
    /// Longest wait before the second attempt; doubles with each one. The wait is random between zero and this.
    pub backoff_ns: u64,
    /// The doubling's end.
    pub backoff_ns_max: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts_max: 1000, backoff_ns: 1_000, backoff_ns_max: 1_000_000 }
    }
}

/// How long attempts are repeated that fail by anything but a conflict.
const SILENT_NS_MAX: u64 = 30_000_000_000;

impl Retry {
    /// Once, and no second time.
    #[must_use]
    pub const fn never() -> Self {
        Self { attempts_max: 1, backoff_ns: 0, backoff_ns_max: 0 }
    }

    /// The longest wait after so many attempts.
    fn wait_ns_max(self, attempts: u32) -> u64 {
        let doubled = self.backoff_ns.saturating_mul(1 << (attempts - 1).min(32));
        doubled.min(self.backoff_ns_max)
    }
}

impl Worker {
    pub(crate) fn new(node: &Arc<Node>, handle: &Handle) -> Result<Self, TxnError> {
        Self::with_slot(node, handle, node.slots.take()?)
    }

    pub(crate) fn with_slot(node: &Arc<Node>, handle: &Handle, slot: OwnSlot) -> Result<Self, TxnError> {
        let me = node.id();
        let endpoint = node.fabric.endpoint(handle).map_err(|error| TxnError::far(error, me))?;
        let core = Rc::new_cyclic(|this| Core {
            this: this.clone(),
            node: node.clone(),
            me,
            epoch: Epoch::new(&endpoint),
            trust: Trust::default(),
            endpoint,
            handle: handle.clone(),
            slot,
            alloc: RefCell::new(node.store.alloc_cache()),
            states: RefCell::default(),
            transactions: Cell::new(0),
            operations: Cell::new(0),
            seen_epoch: Cell::new(0),
            epochs_end: Cell::new(false),
            looks: Cell::new(0),
            tidy_ns: Cell::new(0),
            pending: RefCell::new(Pending::new(handle.unrepeated_u64())),
            inbox: Cell::default(),
            locations: RefCell::new(LocationCache::new(if node.config.nodes > 1 { LOCATIONS } else { 2 })),
            starts_met: Cell::new(0),
            met_at: RefCell::default(),
            touched: RefCell::default(),
            far_indexes: RefCell::default(),
            far_indexes_max: Cell::new(FAR_INDEXES_MIN),
            batches: RefCell::default(),
            record: RefCell::default(),
            rings: RefCell::default(),
            settled: Settled::default(),
            open_commits: RefCell::default(),
            left: Cell::new(0),
        });
        Ok(Self { core })
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &Arc<Node> {
        &self.core.node
    }

    /// The executor that its waiting goes by.
    #[must_use]
    pub fn handle(&self) -> &Handle {
        &self.core.handle
    }

    /// Starts a transaction.
    #[must_use]
    #[inline]
    pub fn begin(&self) -> Txn {
        Txn::begin(&self.core, false)
    }

    /// Starts a transaction that will not write: its commit takes no locks.
    #[must_use]
    #[inline]
    pub fn begin_read_only(&self) -> Txn {
        Txn::begin(&self.core, true)
    }

    /// Serves this node's home inbox, one step; true if there was something to do.
    #[allow(clippy::must_use_candidate, reason = "done for what it does")]
    pub fn poll(&self) -> bool {
        self.finish_drops_if_any();
        self.core.serve_one()
    }

    /// Tells all living nodes that this one has started: they release what its earlier starts had locked and reserved there.
    /// The [`HomeAgent`](crate::HomeAgent) does it; without one it is to be called once after a restart. Nodes that are down do the same for
    /// themselves when they start; those that do not answer are told again, beside everything else. Returns those that have answered.
    ///
    /// # Errors
    /// What a node has answered that could not do it.
    pub async fn join_cluster(&self) -> Result<Vec<NodeId>, TxnError> {
        let node = self.node();
        let epoch = node.recovered().epoch;
        let hello = Request::Hello { node: node.id(), incarnation: node.store.incarnation(), epoch };
        let (mut heard, mut silent) = (Vec::new(), Vec::new());
        if node.replication.is_some() {
            // The others have released everything before they went on without this node.
            return Ok(heard);
        }
        for other in node.others() {
            if !node.fabric.node_is_live(other) {
                continue;
            }
            match self.core.call(other, &hello).await {
                Ok(_) => heard.push(other),
                Err(TxnError::NodeUnavailable { .. } | TxnError::Fabric(_)) => silent.push(other),
                Err(error) => return Err(error),
            }
        }
        if !silent.is_empty() {
            // The message may be lost, where a node is cut off.
            let core = self.core.clone();
            self.core.leave(async move { core.tell_until_heard(silent, &hello).await });
        }
        Ok(heard)
    }

    /// Serves this node's home inbox for a while: returns after `timeout_ns` without a request, or when `served_max` have
    /// been answered. For tasks that do nothing else, on an executor where other tasks run meanwhile. What snapshots held back that are
    /// closed is free afterwards.
    pub async fn serve(&self, timeout_ns: u64, served_max: usize) -> usize {
        let (mut served, mut idle_ns) = (0, 0);
        while served < served_max && idle_ns < timeout_ns {
            // Nothing rings when an inbox of another node has room again.
            let rest_ns = timeout_ns - idle_ns;
            let wait_ns = if self.core.node.unsent.is_empty() { rest_ns } else { rest_ns.min(RETRY_NS) };
            let mut has_served = self.poll();
            if !has_served {
                // The home of others' messages may never be without one for so long.
                self.core.alloc.borrow_mut().collect();
                if !self.core.endpoint.arrival(wait_ns).await {
                    idle_ns += wait_ns;
                    continue;
                }
                has_served = self.poll();
            }
            idle_ns = 0;
            if has_served {
                served += 1;
            } else {
                // It was another worker's to take, or an answer.
                self.core.receive();
                self.core.handle.yield_now().await;
            }
        }
        self.core.alloc.borrow_mut().collect();
        served
    }

    /// Runs `body` in a transaction and commits it; again after a conflict, as `retry` says.
    ///
    /// # Errors
    /// Whatever `body` or the commit fails with; [`TxnError::Conflict`] when the attempts are used up.
    pub async fn run<T>(
        &self,
        retry: Retry,
        mut body: impl AsyncFnMut(&mut Txn) -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        let attempt = async || {
            let mut txn = self.begin();
            let value = body(&mut txn).await?;
            txn.commit().await.map(|_| value)
        };
        self.run_attempts(retry, attempt).await
    }

    /// As [`Self::run`], of what begins and commits its transaction itself.
    pub(crate) async fn run_attempts<T>(
        &self,
        retry: Retry,
        mut attempt: impl AsyncFnMut() -> Result<T, TxnError>,
    ) -> Result<T, TxnError> {
        let mut attempts = 0;
        let silent_until_ns = self.core.handle.now_ns().saturating_add(SILENT_NS_MAX);
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            attempts += 1;
            // Each attempt at a node that is silent, and cannot be expelled, takes as long as a request may.
            let is_late = || !matches!(error, TxnError::Conflict) && self.core.handle.now_ns() >= silent_until_ns;
            if !error.is_retryable() || !self.may_come_right(retry, attempts) || is_late() {
                return Err(error);
            }
            self.core.slot.count(Counter::Retries);
            self.back_off(retry, attempts).await;
        }
    }

    /// Waits until what this worker's transactions have left to be done is done: the rest of a commit that nobody waited for, keys to be given
    /// back and deleted rows to be taken out on other nodes. It goes on beside everything else, so this is for whoever is about to end the
    /// executor. False: not within `timeout_ns`; where rows have copies, the others do it when this node leaves.
    pub async fn drain(&self, timeout_ns: u64) -> bool {
        let handle = &self.core.handle;
        let until_ns = handle.now_ns().saturating_add(timeout_ns);
        while self.core.left.get() > 0 {
            if handle.now_ns() >= until_ns {
                return false;
            }
            handle.sleep_ns(DRAIN_LOOK_NS).await;
        }
        true
    }

    /// Whether there is to be another attempt after so many. None comes right once the others go on without this node.
    pub(crate) fn may_come_right(&self, retry: Retry, attempts: u32) -> bool {
        attempts < retry.attempts_max && !self.core.node.is_expelled()
    }

    /// The wait before the attempt after `attempts` failed ones: random, longer each time.
    pub async fn back_off(&self, retry: Retry, attempts: u32) {
        let most_ns = retry.wait_ns_max(attempts);
        let wait_ns = self.core.handle.random_u64() % (most_ns + 1);
        if wait_ns == 0 { self.core.handle.yield_now().await } else { self.core.handle.sleep_ns(wait_ns).await }
    }
}

impl Core {
    /// Asks nodes the same until each has answered, or its process has ended.
    async fn tell_until_heard(&self, mut silent: Vec<NodeId>, request: &Request<'_>) {
        let mut again = BackOff::new(TELL_AGAIN_NS, TELL_AGAIN_NS_MAX);
        while self.node.fabric.node_is_live(self.me) {
            let mut left = Vec::new();
            for node in silent {
                // Without an answer, or not sent at all.
                let told = self.call(node, request).await;
                let is_unheard = matches!(told, Err(TxnError::NodeUnavailable { .. } | TxnError::Fabric(_)));
                if is_unheard && self.node.fabric.node_is_live(node) {
                    left.push(node);
                }
            }
            silent = left;
            if silent.is_empty() {
                return;
            }
            again.rest(&self.handle).await;
        }
    }

    /// Tells a node something, again until it has been heard where messages may be lost; of what is told twice the second time must change nothing. The
    /// first time is before this returns, so that it is heard before what is asked later.
    pub fn tell_for_certain(self: &Rc<Self>, node: NodeId, request: Request<'static>) {
        self.tell_now(node, &request);
        if !self.endpoint.maps_others() {
            self.tell_later(node, request);
        }
    }

    /// Tells a node something beside whatever comes next, again until it has been heard.
    pub fn tell_later(&self, node: NodeId, request: Request<'static>) {
        let Some(core) = self.this.upgrade() else { return };
        self.leave(async move { core.tell_until_heard(vec![node], &request).await });
    }

    /// As [`Self::tell_for_certain`], with copies too, until the node leaves the cluster: no restart of this node will make up for it.
    pub fn tell_all_the_same(self: &Rc<Self>, node: NodeId, request: Request<'static>) {
        if let Some(replication) = &self.node.replication {
            let (core, number) = (self.clone(), replication.view.configuration().number);
            self.leave(async move { drop(core.insist_call(node, &request, number).await) });
        } else {
            self.tell_for_certain(node, request);
        }
    }

    /// Does what a transaction leaves to be done, beside whatever comes next.
    pub fn leave(&self, rest: impl Future<Output = ()> + 'static) {
        // Gone is it when it is dropped, and then nobody calls this.
        let Some(core) = self.this.upgrade() else { return };
        core.left.set(core.left.get() + 1);
        drop(self.handle.spawn(async move {
            rest.await;
            core.left.set(core.left.get() - 1);
        }));
    }

    /// The owner word of a new transaction.
    #[inline]
    pub fn next_owner(self: &Rc<Self>) -> Owner {
        let transaction = self.transactions.get().wrapping_add(1);
        self.transactions.set(transaction);
        // Before it needs the room of a table that was dropped.
        self.tidy_catalog();
        if transaction.is_multiple_of(COLLECT_EVERY) {
            self.alloc.borrow_mut().collect();
            if transaction.is_multiple_of(transactions_per_epoch(self.node.config.nodes)) {
                self.keep_epoch_rising();
            }
        }
        Owner::new(self.node.store.incarnation(), self.me, self.slot.number(), transaction)
    }

    /// Raises the epoch if it stands since the worker's last look. A journal raises it for commits alone: transactions that come to nothing take versions,
    /// too.
    #[cold]
    fn keep_epoch_rising(self: &Rc<Self>) {
        if self.keeper() == self.me {
            let superblock = self.node.store.superblock();
            if superblock.epoch() == self.seen_epoch.get() {
                self.saw_epoch(superblock.advance_epoch() + 1);
            }
            self.seen_epoch.set(superblock.epoch());
            return;
        }
        let core = self.clone();
        // A keeper that does not answer: the next look is soon enough.
        self.leave(async move {
            let Ok(epoch) = core.read_epoch().await else { return };
            if epoch == core.seen_epoch.get() {
                let raised = Epoch::counter(core.keeper()).take(&Posted::through(&core.endpoint), 1, 1).await;
                if raised.is_ok() {
                    core.saw_epoch(epoch + 1);
                }
            }
            core.seen_epoch.set(epoch);
        });
    }

    /// Called at each operation of a transaction: other nodes do not wait until a long one ends.
    #[inline]
    pub fn serve_now_and_then(&self) {
        let operations = self.operations.get().wrapping_add(1);
        self.operations.set(operations);
        if operations.is_multiple_of(SERVE_EVERY) && self.node.config.nodes > 1 {
            self.serve_one();
        }
    }

    #[inline]
    pub fn take_state(&self) -> Box<State> {
        self.states.borrow_mut().pop().unwrap_or_else(|| {
            // In virtual time everybody shares one thread: nothing changes while it looks.
            Box::new(State::new(self.node.replication.is_some(), self.handle.is_virtual()))
        })
    }

    #[inline]
    pub fn give_state(&self, mut state: Box<State>) {
        state.clear();
        let mut states = self.states.borrow_mut();
        if states.len() < STATES_KEPT_MAX {
            states.push(state);
        }
    }
}

/// After how many transactions a worker looks whether the epoch rises: while it stands, all workers of all nodes together
/// make at most [`VERSIONS_PER_EPOCH`] between two looks. A multiple of [`COLLECT_EVERY`].
fn transactions_per_epoch(nodes: u8) -> u32 {
    (VERSIONS_PER_EPOCH / WORKERS_MAX as u32 / u32::from(nodes) / COLLECT_EVERY).max(1) * COLLECT_EVERY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeConfig;
    use farhold_fabric::Executor;
    use farhold_fabric::provider::sim::{Faults, Rdma, Sim};

    /// A row has room for 2^29 versions an epoch. Nothing but transactions raises it here.
    #[test]
    fn the_epoch_rises_without_a_journal_and_without_snapshots() {
        for nodes in 1..=u8::MAX {
            let between_looks = u64::from(transactions_per_epoch(nodes)) * WORKERS_MAX as u64 * u64::from(nodes);
            assert!(between_looks <= u64::from(VERSIONS_PER_EPOCH), "{nodes} nodes");
        }
        let executor = Executor::virtual_time(1);
        let fabric = Sim::new(&executor.handle(), Rdma, Faults::default()).join(NodeId(0)).expect("a fabric");
        let node = Node::open(fabric, NodeConfig { region_bytes: 4 << 20, ..NodeConfig::default() }).expect("a node");
        let worker = node.worker(&executor.handle()).expect("a worker");
        let before = node.store.superblock().epoch();
        for _ in 0..2 * transactions_per_epoch(1) {
            drop(worker.begin());
        }
        assert!(node.store.superblock().epoch() > before);
    }
}
