//! One consistent state of all tables, for analytical scans.
//!
//! To take it, a worker announces it on every node, raises the global epoch, and tells every node which epoch it has
//! become. A writer reads the epoch while it holds all its locks, so a row that is found unlocked afterwards is final
//! for this state, and a transaction that overwrites it later keeps a copy. A scan reads it page by page (`pages.rs`),
//! in place where the memory is mapped (`mapped.rs`), else by batches of object reads (`far.rs`). A newer row, locked or
//! not, leads to its older copy. For any other locked row the scan waits.

mod far;
mod mapped;
mod pages;

pub use pages::PageTask;

use crate::base::epoch::{Epoch, SNAPSHOT_EPOCH_LAST, check_snapshot_epoch};
use crate::base::error::TxnError;
use crate::base::ident::DATA;
use crate::cluster::view::Moment;
use crate::node::Node;
use crate::node::parts::{AsOf, Start};
use crate::protocol::runs::read_incarnation;
use crate::protocol::worker::Worker;
use crate::rpc::message::Request;
use farhold_fabric::executor::Handle;
use farhold_fabric::sync::actor::Posted;
use farhold_fabric::{NodeId, RegionMemory};
use farhold_store::{Holder, SlotId, StoreError, Superblock};
use std::fmt;
use std::sync::Arc;

/// The state of all tables at one epoch. May be shared by threads; scans never block a writer, never fail because of
/// one, and wait only for rows that are in the middle of a commit. Older copies of rows are kept until it is dropped.
pub struct Snapshot {
    node: Arc<Node>,
    as_of: AsOf,
    places: Vec<Place>,
    /// Its number on nodes that are not mapped here, once it has announced itself to one.
    number: Option<u64>,
    /// When it was complete, by the machine's clock.
    taken_ns: u64,
}

impl AsOf {
    /// Are all rows still where they were?
    fn check(self, node: &Node) -> Result<(), TxnError> {
        let now = node.settled_configuration();
        if now == Ok(self.configuration) { Ok(()) } else { Err(TxnError::Recovering { node: node.id() }) }
    }

    /// The same, and is this node still a member with a valid lease?
    fn check_leased(self, node: &Node, handle: &Handle) -> Result<(), TxnError> {
        let is_leased = node.replication.as_ref().is_none_or(|it| it.view.is_settled(Moment::now(handle)));
        if is_leased { self.check(node) } else { Err(TxnError::Recovering { node: node.id() }) }
    }
}

/// A snapshot's place on one node.
struct Place {
    start: Start,
    /// Where it is, if the node's region is mapped. If not, the node knows it by the snapshot's number.
    mapped: Option<MappedPlace>,
}

impl Place {
    /// Announces a snapshot of this holder to a node whose region is mapped.
    fn take(node: NodeId, memory: Arc<RegionMemory>, holder: Holder) -> Result<Self, StoreError> {
        let superblock = Superblock::of(&memory)?;
        let (slot, incarnation) = (superblock.announce(holder)?, superblock.incarnation());
        Ok(Self { start: Start { node, incarnation }, mapped: Some(MappedPlace { memory, slot }) })
    }

    /// The place in mapped memory, if it is still that start's.
    fn standing(&self) -> Option<&MappedPlace> {
        self.mapped.as_ref().filter(|mapped| mapped.superblock().incarnation() == self.start.incarnation)
    }

    /// Is what the snapshot of this epoch reads there still kept for it? False if that node has gone on without this
    /// node, which may be the last to learn so. For memory that is not mapped here, each read reports it.
    fn is_open(&self, holder: Holder, epoch: u32) -> bool {
        let is_open = |mapped: &MappedPlace| mapped.superblock().is_open(mapped.slot, holder, epoch);
        self.mapped.is_none() || self.standing().is_some_and(is_open)
    }
}

struct MappedPlace {
    memory: Arc<RegionMemory>,
    slot: SlotId,
}

impl MappedPlace {
    fn superblock(&self) -> Superblock<'_> {
        Superblock::of(&self.memory).expect("checked when the snapshot was taken")
    }
}

/// The least number of turns before a locked row's owner counts as dead, however long they took: a machine may be
/// paused.
const TURNS_MIN: u32 = 1_000;
/// Turns between two looks whether the snapshot still stands.
const TURNS_PER_CHECK: u32 = 64;

impl Worker {
    /// The state of all tables at this moment.
    ///
    /// # Errors
    /// An unavailable node; too many snapshots open.
    pub async fn snapshot(&self) -> Result<Snapshot, TxnError> {
        self.take_snapshot().await.map_err(|error| self.core.retryable(error))
    }

    async fn take_snapshot(&self) -> Result<Snapshot, TxnError> {
        let node = self.node();
        let core = &*self.core;
        let configuration = node.settled_configuration()?;
        let as_of = AsOf { epoch: 0, configuration };
        let mut snapshot = Snapshot { node: node.clone(), as_of, places: Vec::new(), number: None, taken_ns: 0 };
        let holder = node.store.holder();
        let early = if planted!(AnnouncedLate) { Some(self.advance_epoch(&snapshot).await?) } else { None };
        for id in node.everybody() {
            crate::base::planted::may_stop();
            let memory =
                if id == core.me { Some(node.store.memory_shared().clone()) } else { core.endpoint.mapped(id, DATA) };
            let place = if let Some(memory) = memory {
                Place::take(id, memory, holder).map_err(|error| TxnError::store(error, id))?
            } else {
                let number =
                    *snapshot.number.get_or_insert_with(|| node.open_snapshots.open(|| core.handle.unrepeated_u64()));
                let request = Request::Announce { incarnation: holder.incarnation, configuration, number };
                let incarnation = core.ask(id, &request, read_incarnation).await?;
                Place { start: Start { node: id, incarnation }, mapped: None }
            };
            snapshot.places.push(place);
        }
        crate::base::planted::may_stop();
        let raised = if let Some(early) = early { Ok(early) } else { self.advance_epoch(&snapshot).await };
        let epoch = raised?;
        snapshot.as_of.epoch = epoch;
        for place in &snapshot.places {
            crate::base::planted::may_stop();
            if let Some(mapped) = &place.mapped {
                if !mapped.superblock().confirm(mapped.slot, holder, epoch) {
                    return Err(TxnError::Recovering { node: place.start.node });
                }
            } else if let Some(number) = snapshot.number {
                let request = Request::Confirm { incarnation: holder.incarnation, number, epoch };
                core.call(place.start.node, &request).await?;
            }
        }
        self.check(snapshot.as_of)?;
        // What it shows must not be lost by a power cut.
        if core.node.journaling.as_ref().is_some_and(|journaling| !journaling.is_quiet()) {
            core.durable(snapshot.as_of.epoch).await.map_err(TxnError::of_a_read)?;
        }
        snapshot.taken_ns = core.handle.shared_now_ns();
        Ok(snapshot)
    }

    /// Raises the global epoch; the one before is the snapshot's.
    async fn advance_epoch(&self, snapshot: &Snapshot) -> Result<u32, TxnError> {
        let keeper = self.core.keeper();
        let near =
            snapshot.places.iter().find(|place| place.start.node == keeper).and_then(|place| place.mapped.as_ref());
        let epoch = if let Some(mapped) = near {
            check_snapshot_epoch(mapped.superblock().epoch())?;
            mapped.superblock().advance_epoch()
        } else {
            let epochs_end = self.core.epochs_end.get();
            check_snapshot_epoch(if epochs_end { u32::MAX } else { 0 })?;
            let taken = Epoch::counter(keeper).take(&Posted::through(&self.core.endpoint), 1, 1).await;
            let epoch = taken.map_err(|error| self.core.far_error(error, keeper))? as u32;
            // The word is not read before each snapshot, because that would cost one more round trip.
            self.core.epochs_end.set(epoch > SNAPSHOT_EPOCH_LAST);
            check_snapshot_epoch(epoch)?;
            epoch
        };
        self.core.check_epoch(epoch + 1)?;
        self.core.saw_epoch(epoch + 1);
        Ok(epoch)
    }

    /// Are all rows still where they were, and is this node still a member with a valid lease?
    fn check(&self, as_of: AsOf) -> Result<(), TxnError> {
        as_of.check_leased(&self.core.node, &self.core.handle)
    }
}

impl Snapshot {
    /// The nodes on which it is open.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.places.iter().map(|place| place.start.node)
    }

    /// The start of a node on which it is open.
    pub(crate) fn start_on(&self, node: NodeId) -> Option<Start> {
        self.places.iter().map(|place| place.start).find(|start| start.node == node)
    }

    /// Is what it reads still kept for it by this start of a node? As far as this node knows: of memory that is not mapped here, each
    /// read reports it.
    pub(crate) fn stands_on(&self, start: Start) -> bool {
        let place = self.places.iter().find(|place| place.start == start);
        place.is_some_and(|place| place.is_open(self.node.store.holder(), self.as_of.epoch))
    }

    /// Asked after each look at mapped memory: does what was seen count?
    pub(crate) fn check(&self) -> Result<(), TxnError> {
        self.as_of.check(&self.node)?;
        let (holder, epoch) = (self.node.store.holder(), self.as_of.epoch);
        match self.places.iter().find(|place| !place.is_open(holder, epoch)) {
            Some(place) => Err(TxnError::Recovering { node: place.start.node }),
            None => Ok(()),
        }
    }

    /// As [`Self::check`], and whether this node's lease stands: after reads of memory that is not mapped here.
    pub(crate) fn check_leased(&self, handle: &Handle) -> Result<(), TxnError> {
        self.as_of.check_leased(&self.node, handle)?;
        self.check()
    }

    /// The node that has taken it.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Which state: the transactions of all epochs up to this one.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.as_of.epoch
    }

    /// The number of the configuration in which it was taken; 0 without replicas.
    pub(crate) fn configuration(&self) -> u64 {
        self.as_of.configuration
    }

    /// When it was complete: by the clock that all threads of the machine share.
    pub(crate) fn taken_ns(&self) -> u64 {
        self.taken_ns
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        for mapped in self.places.iter().filter_map(Place::standing) {
            mapped.superblock().release(mapped.slot, self.node.store.holder());
        }
        if let Some(number) = self.number {
            self.node.open_snapshots.close(number);
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot(epoch {})", self.as_of.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::definition::TableDef;
    use crate::node::NodeConfig;
    use crate::protocol::worker::Retry;
    use farhold_fabric::{Executor, Fabric};
    use farhold_store::row::{Column, ColumnType, Schema};

    /// At the end of all epochs snapshots are refused, and rows are read and written as before: none of them begins anew.
    #[test]
    fn epochs_do_not_begin_anew() {
        let directory = tempfile::tempdir().expect("a directory");
        let executor = Executor::real(1);
        let workers = [0, 1].map(|number| {
            let fabric = Fabric::join_shm(directory.path(), NodeId(number)).expect("the fabric");
            let config = NodeConfig { nodes: 2, region_bytes: 8 << 20, ..NodeConfig::default() };
            Node::open(fabric, config).expect("a node").worker(&executor.handle()).expect("a worker")
        });
        let [worker, other] = &workers;
        executor.run(async {
            let serving = other.clone();
            drop(executor.handle().spawn(async move {
                loop {
                    serving.poll();
                    serving.handle().yield_now().await;
                }
            }));
            let schema = Schema::new(vec![Column::new("id", ColumnType::Int)], vec![0]).expect("a schema");
            let table = worker.create_table(TableDef::new("t", schema)).await.expect("a table");
            worker.node().store.superblock().raise_epoch(SNAPSHOT_EPOCH_LAST);
            drop(worker.snapshot().await.expect("the last one"));
            let is_refused = |taken: Result<Snapshot, TxnError>| matches!(taken, Err(TxnError::TooMany { .. }));
            for _ in 0..3 {
                assert!(is_refused(worker.snapshot().await) && is_refused(other.snapshot().await));
            }
            assert!(worker.node().store.superblock().epoch() <= SNAPSHOT_EPOCH_LAST + 2, "refused, they take none");
            let (mut key, mut value) = (Vec::new(), Vec::new());
            let row = [farhold_store::row::Datum::Int(1)];
            table.schema().encode_key(&row, &mut key).expect("a key");
            table.schema().encode_value(&row, &mut value).expect("a value");
            let written = worker.run(Retry::never(), async |txn| txn.insert(&table, &key, &value).await.map(drop));
            written.await.expect("written");
            let found = worker.run(Retry::never(), async |txn| Ok(txn.get(&table, &key).await?.is_some()));
            assert_eq!(found.await, Ok(true));
        });
        drop(executor);
        drop(workers);
    }
}
