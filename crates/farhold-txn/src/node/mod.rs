//! What the workers of a node share: one process's (or one simulated machine's) part of the database.

pub(crate) mod column_scans;
pub(crate) mod far_reads;
mod inspect;
pub(crate) mod memory;
pub(crate) mod parts;
pub(crate) mod reservations;
pub(crate) mod snapshots;
pub(crate) mod start;
pub(crate) mod system;
pub(crate) mod unsent;

use crate::base::catalog::Catalog;
use crate::base::definition::KeptColumns;
use crate::base::error::TxnError;
use crate::base::nodes::NodeSet;
use crate::base::processor::Processor;
use crate::base::slots::{Slots, Statistics};
use crate::base::table::Table;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::columns::own::OwnRecords;
use crate::columns::report::{ColumnReport, TableColumns};
use crate::columns::{ColumnFeed, ColumnStatistics, NoColumns};
use crate::durability::JournalConfig;
use crate::durability::journaling::Journaling;
use crate::node::column_scans::ColumnScans;
use crate::node::far_reads::FarReads;
use crate::node::reservations::Reservations;
use crate::node::snapshots::{FarHolds, OpenSnapshots};
use crate::node::unsent::Unsent;
use crate::replication::Replication;
use farhold_fabric::{Fabric, Handle, NodeId};
use farhold_store::column::copy::{ColumnCopy, CopyConfig, CopySize};
use farhold_store::column::memory::{ColumnMemory, MemoryStatistics};
use farhold_store::table::{Damaged, Rebuilt};
use farhold_store::{Store, TableId};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How many nodes the cluster has: they are 0..`nodes`.
    pub nodes: u8,
    /// Bytes of this node's region, when it is created.
    pub region_bytes: u64,
    /// Bytes of the region, and as many for each mirror of another node's, that get memory from the system at the
    /// start. What lies beyond gets it at its first use, from the thread that uses it.
    pub populate_bytes: u64,
    /// How long a request to another node may take before the node counts as unavailable.
    pub request_timeout_ns: u64,
    /// Copies of rows on other nodes.
    pub replication: ReplicationConfig,
    /// A journal on disk: [`Node::open_durable`] alone looks at it.
    pub journal: Option<JournalConfig>,
    /// When the columns of tables are merged.
    pub columns: CopyConfig,
    /// Bytes that the columns of all tables take at most. Beyond them the largest are forgotten, and queries read rows. Their region is
    /// longer, and gets memory as far as it is used.
    pub columns_bytes_max: u64,
    /// Whether the part of a commit on this node may be a hardware transaction, where the processor has them. A worker with
    /// which fewer than half commit takes latches for a while.
    pub hardware_transactions: bool,
    /// Whether a start frees rows of the user that were half written when the node's process ended, without copies and
    /// without a journal. They are lost then; otherwise they stay, and a transaction that meets one is refused
    /// ([`TxnError::HALF_WRITTEN`]).
    pub forgets_half_written: bool,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            nodes: 1,
            region_bytes: 1 << 30,
            populate_bytes: 0,
            request_timeout_ns: 2_000_000_000,
            replication: ReplicationConfig::default(),
            journal: None,
            columns: CopyConfig::default(),
            columns_bytes_max: 1 << 30,
            hardware_transactions: true,
            forgets_half_written: false,
        }
    }
}

/// What was found in regions after nodes had died, since this one was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Rows put into indexes again.
    pub rows: u64,
    /// Locks of dead owners that were released. Their transactions may have been half committed: far rows are written one
    /// node after the other, and here no row has a second copy.
    pub locks_released: u64,
    /// Rows that a dead owner was writing: table and key. They stay locked, so that no transaction treats them as whole
    /// ([`TxnError::HALF_WRITTEN`]).
    pub damaged: Vec<(String, Vec<u8>)>,
    /// Tables that could not be opened: name, number and why. What the region has of them stays there.
    pub unopened: Vec<(String, TableId, String)>,
    /// Such rows that this start has freed ([`NodeConfig::forgets_half_written`]).
    pub forgotten: Vec<(String, Vec<u8>)>,
    /// The latest epoch of a row.
    pub epoch: u32,
}

impl Recovered {
    pub(crate) fn add(&mut self, table: &str, found: &Rebuilt) {
        self.rows += found.rows;
        self.locks_released += found.locks_released;
        let named = |row: &Damaged| (table.to_owned(), row.key.clone());
        self.damaged.extend(found.damaged.iter().map(named));
        self.forgotten.extend(found.forgotten.iter().map(named));
        self.epoch = self.epoch.max(found.epoch_max);
    }
}

/// This node's part of the database: its region, its tables, what its workers share.
pub struct Node {
    pub(crate) fabric: Fabric,
    pub(crate) config: NodeConfig,
    pub(crate) store: Arc<Store>,
    pub(crate) catalog: Catalog,
    pub(crate) slots: Arc<Slots>,
    /// None where near commits take latches.
    pub(crate) hardware: Option<Processor>,
    /// What other nodes' transactions have reserved here.
    pub(crate) reservations: Reservations,
    /// None with one copy of each row.
    pub(crate) replication: Option<Arc<Replication>>,
    /// None without a journal.
    pub(crate) journaling: Option<Arc<Journaling>>,
    /// What commits leave for the columns of a node that is alone and has no journal.
    pub(crate) own_records: Option<OwnRecords>,
    /// It was restored from more than a checkpoint, or has none.
    pub(crate) needs_checkpoint: bool,
    /// The configuration that the founders of its cluster begin with.
    pub(crate) founding: Configuration,
    /// What tells this start of the node from its others: from its journal, or as soon as its lease is made.
    pub(crate) birth: OnceLock<u64>,
    /// Why its cluster refuses it.
    pub(crate) refusal: OnceLock<TxnError>,
    /// The nodes of the cluster: all, unless there is replication.
    pub(crate) present: NodeSet,
    /// What inboxes of other nodes had no room for.
    pub(crate) unsent: Unsent,
    /// What its snapshots hold on nodes that are not mapped here, and what theirs hold on it.
    pub(crate) open_snapshots: OpenSnapshots,
    pub(crate) far_holds: FarHolds,
    recovered: Mutex<Recovered>,
    pub(crate) far_reads: FarReads,
    /// Scans of this node's columns for other nodes.
    pub(crate) column_scans: ColumnScans,
    /// Tells this node's table handles from those of other nodes in the same process.
    pub(crate) tag: u64,
}

impl Node {
    /// Its way to the other nodes.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.store.node()
    }

    /// The nodes that belong to the cluster now, this one included.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.config.nodes).map(NodeId).filter(|node| self.present.contains(*node))
    }

    /// As [`Self::everybody`], but without this node.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        let me = self.id();
        self.everybody().filter(move |node| *node != me)
    }

    /// May the nodes' copies of the system table differ after a death?
    pub(crate) fn records_may_differ(&self) -> bool {
        self.replication.is_none() && self.config.nodes > 1
    }

    /// The configuration that it is in, if rows are replicated.
    #[must_use]
    pub fn configuration(&self) -> Option<Arc<crate::cluster::configuration::Configuration>> {
        self.replication.as_ref().map(|replication| replication.view.configuration())
    }

    /// Whether it is a full member of its cluster and commits there: false while it joins, while the configuration changes, and for
    /// ever once it has been expelled.
    #[must_use]
    pub fn is_member(&self) -> bool {
        let full = |it: &Replication| it.view.configuration().members.contains(&self.id());
        self.replication.as_ref().is_none_or(|it| !it.view.is_frozen() && !it.view.is_gone() && full(it))
    }

    /// The reason why its cluster refuses it for good, if it does. This happens without replicas too, when its memory was
    /// lost but what it left on other nodes was not.
    #[must_use]
    pub fn refusal(&self) -> Option<TxnError> {
        self.refusal.get().cloned()
    }

    /// What tells this start of the node from its others.
    pub(crate) fn birth(&self, handle: &Handle) -> u64 {
        *self.birth.get_or_init(|| self.fabric.birth().unwrap_or_else(|| handle.random_u64() | 1))
    }

    /// What its recovery is doing.
    #[must_use]
    pub fn progress(&self) -> crate::cluster::progress::Progress {
        self.replication.as_ref().map(|replication| replication.progress()).unwrap_or_default()
    }

    /// The number of its configuration, if it is not being changed and every partition is served; 0 without
    /// replication.
    pub(crate) fn settled_configuration(&self) -> Result<u64, TxnError> {
        let Some(replication) = &self.replication else { return Ok(0) };
        let configuration = replication.view.configuration();
        let is_settled = !replication.view.is_frozen() && configuration.unserved().is_empty();
        if is_settled { Ok(configuration.number) } else { Err(TxnError::Recovering { node: self.id() }) }
    }

    /// Turns an error into a retryable one where other nodes get the rows of a node that does not answer.
    #[cold]
    pub(crate) fn retryable(&self, error: TxnError) -> TxnError {
        match error {
            TxnError::NodeUnavailable { node, committed: false } if self.replication.is_some() => {
                TxnError::Recovering { node }
            }
            error => error,
        }
    }

    /// How often its clock has been seen to jump. Each time its lease was void until it was renewed: commits waited, or
    /// were refused as [`TxnError::Recovering`].
    #[must_use]
    pub fn clock_jumps(&self) -> u64 {
        self.replication.as_ref().map_or(0, |it| it.view.clock_jumps())
    }

    /// Whether it has learned that the others go on without it. Once true, it stays true until the node starts again.
    #[must_use]
    pub fn is_expelled(&self) -> bool {
        self.replication.as_ref().is_some_and(|it| it.view.is_gone())
    }

    /// One step of its journal, for a program that does not start [`JournalThreads`](crate::JournalThreads). Afterwards
    /// everything that was committed before is durable, unless a commit is under way (false).
    ///
    /// # Errors
    /// [`TxnError::NotDurable`].
    pub fn step_journal(&self) -> Result<bool, TxnError> {
        let Some(journaling) = &self.journaling else { return Ok(true) };
        let _ = journaling.make_spare();
        journaling.step(&self.store);
        match journaling.failure() {
            Some(reason) => Err(TxnError::NotDurable { reason, committed: true }),
            None => Ok(!journaling.is_wanted()),
        }
    }

    /// The reason why its journal can no longer be written, if it cannot. Nothing that it commits would be durable, so
    /// it leaves a cluster that has copies of its rows, and must start again.
    #[must_use]
    pub fn journal_failure(&self) -> Option<Box<str>> {
        self.journaling.as_ref().and_then(|journaling| journaling.failure())
    }

    /// Makes a checkpoint now. No other checkpoint may be under way at the same time.
    ///
    /// # Errors
    /// [`TxnError::Durable`]: there is none, the last one stands.
    pub fn checkpoint(&self, go_on: &mut dyn FnMut() -> bool) -> Result<bool, TxnError> {
        let Some(journaling) = &self.journaling else { return Ok(false) };
        journaling.checkpoint(&self.store, go_on).map_err(|error| TxnError::Durable(Box::new(error)))
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The table of this name.
    #[must_use]
    pub fn table(&self, name: &str) -> Option<Table> {
        self.catalog.by_name(name)
    }

    /// The table with this number.
    #[must_use]
    pub fn table_by_id(&self, id: TableId) -> Option<Table> {
        self.catalog.by_id(id)
    }

    /// All tables of the user, by number.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = self.catalog.all();
        tables.retain(|table| table.id() != crate::node::system::ID);
        tables
    }

    /// Grows with every change of a table or index on this node: what a cache of definitions compares.
    #[must_use]
    pub fn catalog_version(&self) -> u64 {
        self.catalog.version()
    }

    /// What its workers have done so far, summed.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.slots.statistics()
    }

    /// What its memory of column chunks consists of, if it has one.
    #[must_use]
    pub fn column_memory(&self) -> Option<MemoryStatistics> {
        self.column_feed().and_then(|feed| feed.memory()).map(|memory| memory.statistics())
    }

    /// Its column copies. None of them where none are [made](crate::NoColumns).
    #[must_use]
    pub fn columns(&self) -> ColumnStatistics {
        let Some(feed) = self.column_feed() else { return ColumnStatistics::default() };
        // First: what is applied afterwards is in a delta that the sizes below have, or in a segment.
        let is_applied = self.own_records.as_ref().is_none_or(OwnRecords::are_applied);
        let is_built = |table: &Table| feed.copy(table.id()).is_some_and(|copy| copy.is_built());
        let is_building =
            |table: &&Table| !is_built(table) && !feed.is_without_room(table.id()) && feed.wanted(table).is_some();
        let building = self.tables().iter().filter(is_building).count();
        let mut statistics = feed.statistics(building, self.store.superblock().snapshots_open());
        statistics.is_merged &= is_applied;
        statistics
    }

    /// How long queries have waited for columns, from a snapshot to each view of a table's columns at its epoch: (upper
    /// bound of a bucket in nanoseconds, views in it), ascending, without empty buckets.
    #[must_use]
    pub fn column_waits(&self) -> Vec<(u64, u64)> {
        let latencies = self.column_feed().map(|feed| feed.waits.latencies());
        latencies.unwrap_or_default().buckets().collect()
    }

    /// What the columns of this node's rows of a table consist of, and why they cannot be read, if they cannot. While they are being
    /// built, their rows grow.
    #[must_use]
    pub fn columns_of(&self, table: &Table) -> (CopySize, Option<NoColumns>) {
        match self.column_copy(table) {
            Ok((_, copy)) => (copy.size(), (!copy.is_built()).then_some(NoColumns::Building)),
            Err(reason) => (CopySize::default(), Some(reason)),
        }
    }

    /// What it keeps as columns, and how far their first build is, for operators. Tables that it is not to keep so are not in it. It waits
    /// for no changes that are being applied or merged: the thread that serves other nodes makes it too.
    #[must_use]
    pub fn column_report(&self) -> ColumnReport {
        let feed = self.column_feed();
        let report = |table: Table| {
            let (copy, reason) = match self.column_copy(&table) {
                Ok((_, copy)) => (Some(copy), None),
                Err(reason) => (None, Some(reason)),
            };
            if reason == Some(NoColumns::NotKept) {
                return None;
            }
            let is_built = copy.as_ref().is_some_and(|copy| copy.is_built());
            // What has been built at a snapshot may be ahead of the journal.
            let behind = |copy: &Arc<ColumnCopy>| feed.map_or(0, |it| it.closed()).saturating_sub(copy.complete_to());
            Some(TableColumns {
                table: table.name().to_owned(),
                reason: reason.or((!is_built).then_some(NoColumns::Building)),
                table_rows: table.row_count(),
                size: copy.as_ref().map(|copy| copy.size()).unwrap_or_default(),
                epochs_behind: copy.as_ref().filter(|_| is_built).map_or(0, behind),
            })
        };
        let tables = self.tables().into_iter().filter_map(report).collect();
        ColumnReport::new(tables, feed.map_or(0, |it| it.waiting_bytes()), feed.map_or(0, |it| it.losses()))
    }

    /// What brings its columns the records; `None`: it keeps none, because it has others beside it and no journal.
    pub(crate) fn column_feed(&self) -> Option<&Arc<ColumnFeed>> {
        let of_journal = self.journaling.as_ref().map(|journaling| &journaling.feed);
        of_journal.or_else(|| self.own_records.as_ref().map(|records| &records.feed))
    }

    /// The copy of a table's columns, which may still be being built.
    pub(crate) fn column_copy(&self, table: &Table) -> Result<(&Arc<ColumnFeed>, Arc<ColumnCopy>), NoColumns> {
        let configuration = self.settled_configuration().unwrap_or(u64::MAX);
        self.column_copy_of(table, configuration)
    }

    /// As [`Self::column_copy`], for snapshots that are taken in this configuration: in another one the node may be the home of other rows.
    pub(crate) fn column_copy_of(
        &self,
        table: &Table,
        configuration: u64,
    ) -> Result<(&Arc<ColumnFeed>, Arc<ColumnCopy>), NoColumns> {
        let is_small = || table.row_count() < KeptColumns::AUTO_ROWS;
        let Some(feed) = self.column_feed() else {
            return Err(match table.kept_columns() {
                KeptColumns::None => NoColumns::NotKept,
                KeptColumns::Auto if is_small() => NoColumns::NotKept,
                _ => NoColumns::NoJournal,
            });
        };
        match feed.copy_of(table.id(), configuration) {
            Some(copy) => Ok((feed, copy)),
            None if feed.wanted(table).is_none() => Err(NoColumns::NotKept),
            None if feed.memory().is_none() || feed.is_without_room(table.id()) => Err(NoColumns::NoRoom),
            None if feed.configuration() != Some(configuration) => Err(NoColumns::Changing),
            None => Err(NoColumns::Building),
        }
    }

    /// Frees the memory of column chunks that are gone, as far as no snapshot of any node may read it.
    pub(crate) fn reclaim_columns(&self, memory: &ColumnMemory) {
        let superblock = self.store.superblock();
        let oldest = || {
            let oldest = superblock.oldest_snapshot();
            // A change of the configuration closes the snapshots of nodes that leave, and their processes may read for a moment longer: until
            // the node is in the next configuration. Looked at second: the node is frozen before it closes them.
            let may_read_on = self.replication.as_ref().is_some_and(|it| it.view.is_frozen());
            if may_read_on { 0 } else { oldest }
        };
        memory.reclaim(|| superblock.epoch(), oldest);
    }

    /// Bytes of its region that no table uses.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.store.free_bytes()
    }

    /// What was found after nodes had died.
    #[must_use]
    pub fn recovered(&self) -> Recovered {
        self.recovered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The rows that [count](Recovered::damaged) as damaged, without the first `seen`: those that a watcher has not seen
    /// yet.
    #[must_use]
    pub fn damaged_after(&self, seen: usize) -> Vec<(String, Vec<u8>)> {
        let recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        recovered.damaged.get(seen..).unwrap_or_default().to_vec()
    }

    pub(crate) fn add_recovered(&self, found: Recovered) {
        let mut recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        recovered.rows += found.rows;
        recovered.locks_released += found.locks_released;
        recovered.damaged.extend(found.damaged);
        recovered.unopened.extend(found.unopened);
        recovered.forgotten.extend(found.forgotten);
        recovered.epoch = recovered.epoch.max(found.epoch);
    }

    /// Records an orderly end for the next start to find. No transaction may run any more.
    pub fn close(&self) {
        self.far_reads.close();
        self.store.close();
    }
}
