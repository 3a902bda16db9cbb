//! What the transactions of a thread share.

use crate::base::back_off::BackOff;
use crate::base::epoch::Epoch;
use crate::base::error::TxnError;
use crate::base::slots::{OwnSlot, WORKERS_MAX};
use crate::node::Node;
use crate::protocol::commit::odd::Settled;
use crate::protocol::commit::section::rtm::Trust;
use crate::protocol::execute::peer::{FAR_INDEXES_MIN, Met};
use crate::protocol::to_its_end::Owed;
use crate::protocol::txn::state::State;
use crate::replication::mapped::MappedRings;
use crate::rpc::line::Line;
use crate::rpc::message::Request;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::{Batch, Endpoint, Handle, NodeId};
use farhold_store::index::hash::{FarIndex, LocationCache};
use farhold_store::log::RecordWriter;
use farhold_store::{AllocCache, Owner, TableId};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::future::Future;
use std::ops::Deref;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// What the transactions of a thread share.
pub(crate) struct Core {
    /// Itself, for work that goes on beside the task that began it.
    pub this: Weak<Core>,
    /// Its way to other nodes.
    line: Line,
    pub slot: OwnSlot,
    pub alloc: RefCell<AllocCache>,
    pub epoch: Epoch,
    /// Whether hardware transactions are worth trying.
    pub trust: Trust,
    /// States of past transactions, for the next ones.
    #[allow(clippy::vec_box, reason = "a state moves by its pointer, in and out of transactions")]
    states: RefCell<Vec<Box<State>>>,
    operations: Cell<u32>,
    /// The epoch at the last look whether it rises.
    seen_epoch: Cell<u32>,
    /// It has seen the last epoch that a snapshot may take.
    pub epochs_end: Cell<bool>,
    /// Looks into the inbox.
    pub looks: Cell<u32>,
    /// When to look after dropped tables again.
    pub tidy_ns: Cell<u64>,
    /// Where far rows were seen last.
    pub locations: RefCell<LocationCache>,
    /// `starts_met` counts how often it has met a later start of a node; `met_at` has the last such count of each node. From then on its
    /// instructions there go to the memory of that start.
    pub starts_met: Cell<u64>,
    pub met_at: RefCell<HashMap<NodeId, Met>>,
    /// Nodes whose memory it has touched: from then on the fabric reports their later starts.
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
    /// Tasks of transactions that are over, and commits past their commit point.
    pub left: Cell<u32>,
}

/// What a worker does itself to nodes it does by its line.
impl Deref for Core {
    type Target = Line;

    #[inline]
    fn deref(&self) -> &Line {
        &self.line
    }
}

/// States kept for later: as many as transactions are usually open at a time on a thread.
const STATES_KEPT_MAX: usize = 64;
/// Rows in a worker's location cache, 16 bytes each.
const LOCATIONS: usize = 64 << 10;
/// Transactions between two looks for slots that snapshots held back.
const COLLECT_EVERY: u32 = 256;
/// How many versions a row may get while the epoch does not change, of the 2^29 that it has room for. A transaction
/// makes one, or a few where it takes a slot and gives it back. A worker may need two looks to see that the epoch has
/// not changed.
const VERSIONS_PER_EPOCH: u32 = 1 << 26;
/// How long to wait before a node that has not answered is told again.
const TELL_AGAIN_NS: u64 = 2_000_000;
/// The longest such rest.
const TELL_AGAIN_NS_MAX: u64 = 512_000_000;
/// Operations of transactions between two looks into the inbox: some 2 µs, so that others do not wait for long ones.
const SERVE_EVERY: u32 = 16;

impl Core {
    pub fn new(node: &Arc<Node>, endpoint: Endpoint, handle: &Handle, slot: OwnSlot) -> Rc<Self> {
        Rc::new_cyclic(|this: &Weak<Self>| Self {
            this: this.clone(),
            epoch: Epoch::new(&endpoint),
            trust: Trust::default(),
            line: Line::new(node, endpoint, handle, this.clone()),
            slot,
            alloc: RefCell::new(node.store.alloc_cache()),
            states: RefCell::default(),
            operations: Cell::new(0),
            seen_epoch: Cell::new(0),
            epochs_end: Cell::new(false),
            looks: Cell::new(0),
            tidy_ns: Cell::new(0),
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
        })
    }

    /// Sends nodes a request until each has answered, or its process has ended.
    ///
    /// # Errors
    /// The first error that a node has answered.
    pub async fn tell_until_heard(&self, mut silent: Vec<NodeId>, request: &Request<'_>) -> Result<(), TxnError> {
        let mut answered = Ok(());
        let mut again = BackOff::new(TELL_AGAIN_NS, TELL_AGAIN_NS_MAX);
        while self.node.fabric.node_is_live(self.me) {
            let mut left = Vec::new();
            for node in silent {
                // Without an answer, or not sent at all.
                let told = self.call(node, request).await;
                match told {
                    Err(TxnError::NodeUnavailable { .. } | TxnError::Fabric(_)) => {
                        if self.node.fabric.node_is_live(node) {
                            left.push(node);
                        }
                    }
                    told => answered = answered.and(told.map(drop)),
                }
            }
            silent = left;
            if silent.is_empty() {
                break;
            }
            again.rest(&self.handle).await;
        }
        answered
    }

    /// Sends a node a message and, where messages may be lost, repeats it until the node has answered. A second
    /// delivery must change nothing. The first sending is before this returns, so that it arrives before later
    /// requests.
    pub fn tell_for_certain(self: &Rc<Self>, node: NodeId, request: Request<'static>) {
        self.tell_now(node, &request);
        if !self.endpoint.maps_others() {
            self.tell_later(node, request);
        }
    }

    /// Sends a node a message in the background, again until the node has answered.
    pub fn tell_later(&self, node: NodeId, request: Request<'static>) {
        let Some(core) = self.this.upgrade() else { return };
        self.leave(async move { drop(core.tell_until_heard(vec![node], &request).await) });
    }

    /// As [`Self::tell_for_certain`], also with copies, until the node leaves the cluster: no restart of this node makes up for a lost
    /// message.
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
        // It is gone only when it is dropped, and then no caller is left.
        let Some(core) = self.this.upgrade() else { return };
        let left = Left::of(core);
        drop(self.handle.spawn(async move {
            rest.await;
            drop(left);
        }));
    }

    /// As [`Self::leave`], for work that no other node does while this node lives: the rest of a commit, locks to be
    /// freed.
    pub fn leave_owed(&self, rest: impl Future<Output = ()> + 'static) {
        if let Some(core) = self.this.upgrade() {
            self.leave(Owed::of(&core, rest));
        }
    }

    /// The rest of a commit of this node will never be done, because the executor that would have done it has ended. The
    /// node then counts as ended: with copies, the other nodes finish the commit; with a journal, the next start of this
    /// node does. Until then nothing may rely on the commit, nor may a later worker write behind it in its rings.
    #[cold]
    pub fn abandon(&self) {
        self.give_up_journal();
        if let Some(replication) = &self.node.replication {
            replication.view.set_gone();
        }
    }

    /// The owner word of a new transaction.
    #[inline]
    pub fn next_owner(self: &Rc<Self>) -> Owner {
        let transaction = self.slot.next_transaction();
        // First, because the transaction may need the room of a dropped table.
        self.tidy_catalog();
        if transaction.is_multiple_of(COLLECT_EVERY) {
            self.alloc.borrow_mut().collect();
            if transaction.is_multiple_of(transactions_per_epoch(self.node.config.nodes)) {
                self.keep_epoch_rising();
            }
        }
        Owner::new(self.node.store.incarnation(), self.me, self.slot.number(), transaction)
    }

    /// Raises the epoch if it has not changed since the worker's last look. A journal raises it only for commits, but
    /// transactions that do not commit use versions, too.
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
            // In virtual time all tasks share one thread: nothing changes while it looks.
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

/// After how many transactions a worker looks whether the epoch rises: while it does not, all workers of all nodes
/// together make at most [`VERSIONS_PER_EPOCH`] between two looks. A multiple of [`COLLECT_EVERY`].
fn transactions_per_epoch(nodes: u8) -> u32 {
    (VERSIONS_PER_EPOCH / WORKERS_MAX as u32 / u32::from(nodes) / COLLECT_EVERY).max(1) * COLLECT_EVERY
}

/// In virtual time, looks of a worker into the inbox between two into the rings.
const LOOKS_PER_APPLY: u32 = 64;

impl Core {
    /// Called with each look into the inbox. Rings are the mirror keeper's, but in virtual time there are no threads.
    #[inline]
    pub fn apply_now_and_then(&self) {
        if self.node.replication.is_some() && self.handle.is_virtual() {
            let looks = self.looks.get().wrapping_add(1);
            self.looks.set(looks);
            if looks.is_multiple_of(LOOKS_PER_APPLY) {
                self.apply_log();
            }
        }
    }

    /// Brings what is in this node's rings into its mirrors, unless another thread is doing so; true if there was
    /// something.
    #[inline]
    pub fn apply_log(&self) -> bool {
        self.node.replication.as_ref().is_some_and(|it| it.try_applier().is_some_and(|mut applier| applier.apply()))
    }
}

/// Work that a transaction has left to be done, until it is done, or has panicked.
pub struct Left(Rc<Core>);

impl Left {
    pub fn of(core: Rc<Core>) -> Self {
        core.left.set(core.left.get() + 1);
        Self(core)
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::NodeConfig;
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
