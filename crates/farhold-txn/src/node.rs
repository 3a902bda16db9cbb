//! A node: one process's (or one simulated machine's) store, tables and workers.

use crate::catalog::Catalog;
use crate::durability::{Generation, JournalConfig, Journaling};
use crate::far_pages::FarPages;
use crate::home::reservations::Reservations;
use crate::home::snapshots::{FarHolds, OpenSnapshots};
use crate::home::unsent::Unsent;
use crate::membership::{Configuration, NodeSet};
use crate::protocol::epoch::KEEPER;
use crate::protocol::ident::DATA;
use crate::protocol::section::rtm::Processor;
use crate::protocol::section::{latch, rtm};
use crate::replication::mirror::REGION_BYTES_MAX;
use crate::replication::{Replication, ReplicationConfig};
use crate::slots::{Slots, Statistics, WORKERS_MAX};
use crate::{NodeId, Placement, Table, TableId, TxnError, Worker};
use farhold_fabric::{Admitted, Fabric, FabricError, Handle, Meta};
use farhold_store::slab::PageTable;
use farhold_store::table::{Damaged, Rebuilt};
use farhold_store::{REGION_BYTES_MIN, Store, StoreError, Superblock};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How many nodes the cluster has: they are 0..`nodes`.
    pub nodes: u8,
    /// Bytes of this node's region, when it is created.
    pub region_bytes: u64,
    /// Bytes of the region, and as many for each mirror of another node's, that get memory from the system at the start. What
    /// lies beyond gets it when it is first used, by whoever uses it.
    pub populate_bytes: u64,
    /// How long a request to another node may take before the node counts as unavailable.
    pub request_timeout_ns: u64,
    /// Copies of rows on other nodes.
    pub replication: ReplicationConfig,
    /// A journal on disk: [`Node::open_durable`] alone looks at it.
    pub journal: Option<JournalConfig>,
    /// Whether the part of a commit on this node may be a hardware transaction, where the processor has them. A worker with
    /// which fewer than half commit takes latches for a while.
    pub hardware_transactions: bool,
    /// Whether a start frees rows of the user that were half written when the node's process ended, without copies and without a journal.
    /// They are lost then; otherwise they stay, and whoever meets them is refused ([`TxnError::HALF_WRITTEN`]).
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
    /// Rows that a dead owner was writing: table and key. They stay locked, so that nobody takes them for whole
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
    /// It was restored from more than a checkpoint, or has none.
    pub(crate) needs_checkpoint: bool,
    /// The configuration that the founders of its cluster begin with.
    pub(crate) founding: Configuration,
    /// What tells this start of the node from its others: from its journal, or as soon as its lease is made.
    pub(crate) birth: OnceLock<u64>,
    /// The nodes of the cluster: all, unless there is replication.
    pub(crate) present: NodeSet,
    /// What inboxes of other nodes had no room for.
    pub(crate) unsent: Unsent,
    /// What its snapshots hold on nodes that are not mapped here, and what theirs hold on it.
    pub(crate) open_snapshots: OpenSnapshots,
    pub(crate) far_holds: FarHolds,
    recovered: Mutex<Recovered>,
    pub(crate) far_pages: FarPages,
    /// Tells this node's table handles from those of other nodes in the same process.
    pub(crate) tag: u64,
}

static TAGS: AtomicU64 = AtomicU64::new(1);

impl Node {
    /// Creates this node's region, or attaches the one that a predecessor left: then reads its system table, rebuilds its
    /// indexes and releases the locks that the predecessor held here.
    ///
    /// # Errors
    /// The region is not ours, is damaged, or cannot be had.
    pub fn open(fabric: Fabric, config: NodeConfig) -> Result<Arc<Self>, TxnError> {
        Self::open_with(fabric, config, None)
    }

    /// As [`Self::open`], of a node with a journal: its region is made anew from the checkpoint and the journals of all nodes, with
    /// everything that was acknowledged before the last end of the cluster, whatever that end was. [`JournalThreads`](crate::JournalThreads) are to be
    /// started for it.
    ///
    /// # Errors
    /// As there; [`TxnError::Durable`] if the files cannot be used. They are as they were then.
    pub fn open_durable(fabric: Fabric, config: NodeConfig, generation: Generation) -> Result<Arc<Self>, TxnError> {
        Self::open_with(fabric, config, Some(generation))
    }

    /// The region from the journals; true if there was anything but a checkpoint, or there is none.
    fn restore(
        fabric: &Fabric,
        config: &NodeConfig,
        generation: Generation,
    ) -> Result<(Arc<Journaling>, bool), TxnError> {
        let id = fabric.node();
        let Some(journal) = config.journal.clone() else {
            return Err(TxnError::NotFound { what: "journal in the settings of this node".into() });
        };
        match fabric.remove_region(DATA) {
            Ok(()) | Err(FabricError::NoSuchRegion { .. }) => {}
            Err(error) => return Err(TxnError::far(error, id)),
        }
        let region_bytes = generation.region_bytes(config.region_bytes)?;
        let memory = fabric.create_closed_region(DATA, region_bytes).map_err(|error| TxnError::far(error, id))?;
        let restored = generation.restore(&journal, &memory)?;
        let needs_checkpoint = restored.journal_rows > 0 || generation.comes_back();
        let journaling = Journaling::new(journal, generation, memory, config.replication.replicas > 1)
            .map_err(|error| TxnError::Durable(Box::new(error)))?;
        Ok((journaling, needs_checkpoint))
    }

    /// Fills the mirrors of nodes that had left before the last end of the cluster, and whose rows are in the journals alone.
    fn restore_mirrors(&self, generation: &Generation) -> Result<(), TxnError> {
        let Some(replication) = self.replication.as_ref().filter(|_| !generation.comes_back()) else { return Ok(()) };
        for gone in self.founding.unserved() {
            if self.founding.successor(gone) != Some(self.id()) {
                continue;
            }
            let mut applier = replication.applier();
            applier.begin_mirrors(&self.founding, self.id());
            let Some(mirror) = applier.mirror(gone) else { continue };
            generation.visit(gone, &mut |state| {
                let is_mirrored =
                    self.catalog.by_id(state.table).is_some_and(|it| it.placement() != Placement::Replicated);
                if is_mirrored {
                    mirror.take(state.reference, state.version, state.table, state.key, state.value);
                }
            })?;
        }
        Ok(())
    }

    fn open_with(fabric: Fabric, config: NodeConfig, generation: Option<Generation>) -> Result<Arc<Self>, TxnError> {
        let id = fabric.node();
        let refused = |error| TxnError::store(error, id);
        let mut starts = 0;
        let replication = if config.replication.replicas > 1 {
            // Nobody has business here before there is a configuration: one who was expelled may think otherwise.
            fabric.admit(0, Admitted::Births(Vec::new()));
            if generation.is_none() {
                starts = remove_old_region(&fabric, &config)?;
            }
            let (region_bytes, bytes_min, bytes_max) = (config.region_bytes, REGION_BYTES_MIN, REGION_BYTES_MAX);
            if region_bytes > bytes_max {
                return Err(refused(StoreError::RegionLength { region_bytes, bytes_min, bytes_max }));
            }
            Some(Replication::open(&fabric, &config)?)
        } else {
            None
        };
        let (founding, start) = match &generation {
            Some(generation) => (generation.founding()?, Some(generation.start())),
            None => (Configuration::first(config.nodes, config.replication.replicas), None),
        };
        if let Some(start) = start {
            fabric.set_birth(start);
        }
        let (journaling, needs_checkpoint) = match generation {
            Some(generation) => {
                let (journaling, needs) = Self::restore(&fabric, &config, generation)?;
                (Some(journaling), needs)
            }
            None => (None, false),
        };
        let keeper = if replication.is_some() { founding.keeper } else { KEEPER };
        // Closed until all is there: an index that is just made anew says of rows that they are absent, and the locks of before are released.
        let store = match fabric.attach_closed_region(DATA) {
            Ok(memory) => {
                let found = Superblock::of(&memory).map_err(refused)?.shape();
                if found != 0 && found != shape_of(&config) {
                    return Err(other_directory(found, &config));
                }
                Store::attach(memory, id).map_err(refused)?.0
            }
            Err(FabricError::NoSuchRegion { .. }) => {
                let memory =
                    fabric.create_closed_region(DATA, config.region_bytes).map_err(|e| TxnError::far(e, id))?;
                Store::format_again(memory, id, starts).map_err(refused)?
            }
            Err(error) => return Err(TxnError::far(error, id)),
        };
        store.superblock().set_shape(shape_of(&config));
        let memory = store.memory();
        memory.populate(config.populate_bytes.min(memory.len())).map_err(|error| TxnError::far(error, id))?;
        if let Some(journaling) = &journaling {
            let source = journaling.clone();
            store.record_pages(move || source.epoch());
        }
        let tag = TAGS.fetch_add(1, Relaxed);
        let hardware = config.hardware_transactions.then(Processor::detect).flatten();
        let slots = Arc::new(Slots::new());
        let node = Self {
            fabric,
            config,
            store,
            catalog: Catalog::default(),
            slots,
            hardware,
            reservations: Reservations::default(),
            replication,
            journaling,
            needs_checkpoint,
            founding,
            birth: start.map_or_else(OnceLock::new, OnceLock::from),
            present: NodeSet::default(),
            unsent: Unsent::default(),
            open_snapshots: OpenSnapshots::default(),
            far_holds: FarHolds::default(),
            recovered: Mutex::default(),
            far_pages: FarPages::default(),
            tag,
        };
        node.present.set((0..node.config.nodes).map(NodeId));
        let recovered = crate::system::open(&node)?;
        node.store.keep_spare_memory();
        if id == keeper {
            node.store.superblock().raise_epoch(recovered.epoch.max(node.founding.epoch_min));
        }
        if let Some(journaling) = &node.journaling {
            node.restore_mirrors(journaling.generation())?;
        }
        node.add_recovered(recovered);
        node.fabric.open_region(DATA).map_err(|error| TxnError::far(error, id))?;
        Ok(Arc::new(node))
    }

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

    /// As [`Self::everybody`], without this one.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeId> + '_ {
        let me = self.id();
        self.everybody().filter(move |node| *node != me)
    }

    /// The configuration that it is in, if rows are replicated.
    #[must_use]
    pub fn configuration(&self) -> Option<Arc<crate::Configuration>> {
        self.replication.as_ref().map(|replication| replication.view.configuration())
    }

    /// Whether it is a full member of its cluster and commits there: false while it joins, while the configuration changes, and for
    /// ever once it has been expelled.
    #[must_use]
    pub fn is_member(&self) -> bool {
        let full = |it: &Replication| it.view.configuration().members.contains(&self.id());
        self.replication.as_ref().is_none_or(|it| !it.view.is_frozen() && !it.view.is_gone() && full(it))
    }

    /// Why its cluster does not take it, if that is for good.
    #[must_use]
    pub fn refusal(&self) -> Option<TxnError> {
        self.replication.as_ref()?.refusal.get().cloned()
    }

    /// What its recovery is doing.
    #[must_use]
    pub fn progress(&self) -> crate::Progress {
        self.replication.as_ref().map(|replication| replication.progress()).unwrap_or_default()
    }

    /// The number of its configuration, if that is not just changing and every partition is served; 0 without replication.
    pub(crate) fn settled_configuration(&self) -> Result<u64, TxnError> {
        let Some(replication) = &self.replication else { return Ok(0) };
        let configuration = replication.view.configuration();
        let is_settled = !replication.view.is_frozen() && configuration.unserved().is_empty();
        if is_settled { Ok(configuration.number) } else { Err(TxnError::Recovering { node: self.id() }) }
    }

    /// An error, as one after which the same may be tried again where others get the rows of a node that does not answer.
    #[cold]
    pub(crate) fn retryable(&self, error: TxnError) -> TxnError {
        match error {
            TxnError::NodeUnavailable { node, committed: false } if self.replication.is_some() => {
                TxnError::Recovering { node }
            }
            error => error,
        }
    }

    /// How often its clock has been seen to jump. Each time its lease was void until it was renewed: commits waited, or were refused as [`TxnError::Recovering`].
    #[must_use]
    pub fn clock_jumps(&self) -> u64 {
        self.replication.as_ref().map_or(0, |it| it.view.clock_jumps())
    }

    /// Whether it has learned that the others go on without it. It stays so until it starts again.
    #[must_use]
    pub fn is_expelled(&self) -> bool {
        self.replication.as_ref().is_some_and(|it| it.view.is_gone())
    }

    /// How the mirror of `of` on this node differs from what that node has, in words; rings are applied before. Exact while no
    /// transaction runs. For tests, and for looking into a cluster that behaves strangely.
    #[must_use]
    pub fn mirror_differs(&self, of: &Self) -> Vec<String> {
        let Some(replication) = &self.replication else { return Vec::new() };
        let mut applier = replication.applier();
        let mut differences = Vec::new();
        if let Err(error) = applier.apply_all() {
            differences.push(format!("{}: {error}", self.id()));
        }
        let rows = applier.mirror(of.id()).map(|mirror| mirror.rows());
        let Some(rows) = rows else { return vec![format!("{} has no mirror of {}", self.id(), of.id())] };
        let mut copies: std::collections::BTreeMap<u64, _> =
            rows.into_iter().map(|(slot, copy)| (u64::from(slot) * farhold_fabric::object::ALIGN, copy)).collect();
        for table in of.tables().iter().filter(|table| table.placement() != Placement::Replicated) {
            of.visit_rows(table, |offset, version, _, payload| {
                let copy = copies.remove(&offset);
                let same = copy.as_ref().is_some_and(|copy| {
                    copy.version == version
                        && [copy.key(), copy.value()].concat() == payload
                        && copy.table == table.id()
                });
                if !same {
                    let (it, its) = (of.id(), applier.mirror(of.id()).and_then(|mirror| mirror.version_at(offset)));
                    differences
                        .push(format!("{}: the row at {offset:#x} of {it} is at {version:?}, here {its:?}", self.id()));
                }
            });
        }
        let known: Vec<TableId> = of.tables().iter().map(Table::id).collect();
        for (offset, copy) in copies.iter().filter(|(_, copy)| known.contains(&copy.table)) {
            differences.push(format!("{}: {} has no row at {offset:#x} ({:?})", self.id(), of.id(), copy.version));
        }
        differences
    }

    /// How this node's copies of replicated tables differ from those of `of`, in words, table by table. Exact while no transaction runs, and
    /// for tests as [`Self::mirror_differs`] is.
    #[must_use]
    pub fn copies_differ(&self, of: &Self) -> Vec<String> {
        let rows_on = |node: &Self, id: TableId| {
            let table = node.table_by_id(id).filter(|table| table.placement() == Placement::Replicated)?;
            let mut rows = std::collections::BTreeMap::new();
            node.visit_rows(&table, |_, _, key_len, payload| {
                rows.insert(payload[..key_len].to_vec(), payload[key_len..].to_vec());
            });
            Some((table, rows))
        };
        let mut differences = Vec::new();
        for id in self.tables().iter().map(Table::id).chain([crate::system::ID]) {
            let (Some((table, here)), Some((_, there))) = (rows_on(self, id), rows_on(of, id)) else { continue };
            let differ = |key: &&Vec<u8>| here.get(*key) != there.get(*key);
            let count = here.keys().chain(there.keys().filter(|key| !here.contains_key(*key))).filter(differ).count();
            if count > 0 {
                let (name, one, other) = (table.name(), self.id(), of.id());
                let (of_one, of_other) = (here.len(), there.len());
                differences
                    .push(format!("{name:?}: {one} has {of_one} rows, {other} {of_other}, of which {count} differ"));
            }
        }
        differences
    }

    /// Of each row of a table here: where it is, its version, the length of its key, and key and value.
    fn visit_rows(&self, table: &Table, mut visit: impl FnMut(u64, farhold_fabric::Version, usize, &[u8])) {
        let mut payload = Vec::new();
        for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
            let object = farhold_store::Object::at(self.store.memory(), offset);
            let (meta, version) = (object.meta(), object.version());
            if meta.state() == farhold_store::Meta::ROW && !version.is_absent() {
                payload.resize(meta.payload_len(), 0);
                let _ = object.read(meta.incarnation(), &mut payload);
                visit(offset, version, meta.key_len(), &payload);
            }
        }
    }

    /// One step of its journal, for a program that does not start [`JournalThreads`](crate::JournalThreads): everything that was committed before is durable
    /// afterwards, unless a commit is just under way (false).
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

    /// Why its journal cannot be written any more, if it cannot: nothing that it commits would be durable, so it leaves a cluster that has copies of its rows, and
    /// has to start again.
    #[must_use]
    pub fn journal_failure(&self) -> Option<Box<str>> {
        self.journaling.as_ref().and_then(|journaling| journaling.failure())
    }

    /// Makes a checkpoint now. Nobody else makes one at the same time.
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

    /// The form of its commits' near part: `rtm` where the CPU has hardware transactions, else `latch`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        if self.hardware.is_some() { rtm::NAME } else { latch::NAME }
    }

    /// A worker for this thread, whose waiting goes by `handle`.
    ///
    /// # Errors
    /// All 255 worker numbers are taken, or the fabric has no endpoint left.
    pub fn worker(self: &Arc<Self>, handle: &Handle) -> Result<Worker, TxnError> {
        Worker::new(self, handle)
    }

    /// How many workers that stay can write rows beside the [`HomeAgent`](crate::HomeAgent)'s and those that come and go: of those that have
    /// numbers, or, where rows have copies, rings to write by.
    #[must_use]
    pub fn writers_max(&self) -> usize {
        let rings = self.replication.as_ref().map(|replication| usize::from(replication.config.rings));
        rings.unwrap_or(WORKERS_MAX).saturating_sub(crate::recovery::HELPERS_MAX + 2).max(1)
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
        tables.retain(|table| table.id() != crate::system::ID);
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

    /// The rows that [count](Recovered::damaged) as damaged, but for the first so many: what a watcher has not seen yet.
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

    /// Locks, reservations and places of snapshots in its region, and rows that some index does not know, in words: none when no transaction
    /// runs and no snapshot is open.
    /// A walk over all pages, for tests and for looking into a node that hangs.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let mut left: Vec<String> =
            self.store.superblock().holders().map(|holder| format!("a snapshot of {holder:?}")).collect();
        for table in self.catalog.all() {
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                if let Some(owner) = farhold_store::Owner::from_word(object.lock_word()) {
                    left.push(format!("{table:?}, offset {offset:#x}: locked by {owner:?}"));
                }
                if object.meta().state() == farhold_store::object::RESERVED {
                    left.push(format!("{table:?}, offset {offset:#x}: reserved"));
                }
                if object.version().is_odd() {
                    left.push(format!("{table:?}, offset {offset:#x}: not replicated"));
                }
                if object.version().is_writing() {
                    left.push(format!("{table:?}, offset {offset:#x}: being written"));
                }
                left.extend(
                    table
                        .0
                        .missing_in(object)
                        .map(|index| format!("{table:?}, offset {offset:#x}: a row that {index} does not lead to")),
                );
            }
        }
        left
    }

    /// Rows that are half written, by table and key: those that commits are at, and those that the dead have left, also where they
    /// [count](Recovered::damaged) as damaged. A walk over all pages, as [`Self::left_behind`].
    #[must_use]
    pub fn half_written(&self) -> Vec<(String, Vec<u8>)> {
        let mut half = Vec::new();
        for table in self.catalog.all() {
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                if object.version().is_writing() {
                    let mut key = vec![0; object.meta().key_len()];
                    farhold_store::object::Words::copy_out(&object, &mut key);
                    half.push((table.name().to_owned(), key));
                }
            }
        }
        half
    }

    /// What is kept although nobody can need it any more, and what does not add up, in words: older copies of rows and deleted ones, pages
    /// and mirrored rows of tables that are gone, entries of indexes that lead nowhere, room that was promised in logs, indexes that nobody finishes. Nothing, when no
    /// transaction runs, no snapshot is open, and all nodes have heard of both and of dropped tables.
    /// A walk over all pages, for tests and for looking into a node that runs full.
    #[must_use]
    pub fn leaks(&self) -> Vec<String> {
        let mut leaks = self.store.inconsistencies();
        let open = self.open_snapshots.count();
        if open > 0 {
            leaks.push(format!("{open} snapshots of its own are open"));
        }
        leaks.extend(crate::system::differences(self));
        for table in self.catalog.all() {
            let mut rows = 0;
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                match (object.meta().state(), object.version().is_absent()) {
                    (Meta::ROW | farhold_store::object::RESERVED, false) => rows += 1,
                    (Meta::ROW, true) => leaks.push(format!("{table:?}, offset {offset:#x}: a deleted row")),
                    (Meta::UNDO, _) => leaks.push(format!("{table:?}, offset {offset:#x}: an older copy of a row")),
                    _ => {}
                }
            }
            let entries = table.0.store.entries().into_iter().filter(|(_, entries)| *entries != rows);
            leaks.extend(entries.map(|(index, entries)| format!("{table:?}: {index} has {entries} of {rows} rows")));
        }
        let runs = PageTable::of(self.store.memory()).and_then(|pages| pages.runs()).unwrap_or_default();
        let mut gone: Vec<TableId> = runs.iter().map(|run| run.table).collect();
        gone.sort_unstable();
        gone.dedup();
        gone.retain(|id| self.catalog.by_id(*id).is_none());
        leaks.extend(gone.into_iter().map(|id| format!("pages of {id}, which is no table any more")));
        let mirrored = self.replication.as_ref().map(|it| it.applier().tables()).unwrap_or_default();
        let nobodys = mirrored.into_iter().filter(|id| self.catalog.even_dropped(*id).is_none());
        leaks.extend(nobodys.map(|id| format!("rows of {id} in a mirror, which is no table any more")));
        leaks.extend(self.unfinished_records());
        leaks
    }

    /// Rings of other nodes in which a record of this one is not finished, or room is promised. With a journal they are finished later.
    fn unfinished_records(&self) -> Vec<String> {
        let Some(replication) = self.replication.as_ref().filter(|_| self.journaling.is_none()) else {
            return Vec::new();
        };
        let mut unfinished = Vec::new();
        for worker in 0..replication.config.rings {
            let Ok(writers) = replication.writers(worker) else { continue };
            let busy = writers.iter().filter(|(holder, it)| self.present.contains(*holder) && !it.is_quiet());
            unfinished
                .extend(busy.map(|(holder, _)| format!("a record of worker {worker} for {holder} is unfinished")));
        }
        unfinished
    }

    /// Says that everything is in order, for the next start to find. No transaction runs any more.
    pub fn close(&self) {
        self.far_pages.close();
        self.store.close();
    }
}

/// The nodes of a cluster and the copies of each row, as a region remembers them.
fn shape_of(config: &NodeConfig) -> u64 {
    u64::from(config.nodes) | u64::from(config.replication.replicas) << 8
}

/// With copies elsewhere, what an earlier start of this node has left here is old by now. Rows that have no copies are not. Returns how
/// often the node has started.
fn remove_old_region(fabric: &Fabric, config: &NodeConfig) -> Result<u64, TxnError> {
    let id = fabric.node();
    let memory = match fabric.attach_closed_region(DATA) {
        Ok(memory) => memory,
        Err(FabricError::NoSuchRegion { .. }) => return Ok(0),
        Err(error) => return Err(TxnError::far(error, id)),
    };
    let starts = match Superblock::of(&memory) {
        Ok(found) if matches!(found.shape() >> 8, 0 | 2..) => found.starts(),
        Ok(found) => return Err(other_directory(found.shape(), config)),
        // The earlier start did not live to say whose it was.
        Err(StoreError::Foreign { found: 0 }) => 0,
        Err(error) => return Err(TxnError::store(error, id)),
    };
    drop(memory);
    fabric.remove_region(DATA).map_err(|error| TxnError::far(error, id)).map(|()| starts)
}

fn other_directory(found: u64, config: &NodeConfig) -> TxnError {
    let (nodes, replicas) = ((found & 0xff) as usize, (found >> 8) as u8);
    other_shape("directory", nodes, replicas, config)
}

/// That something is of a cluster with other numbers.
pub(crate) fn other_shape(what: &str, nodes: usize, replicas: u8, config: &NodeConfig) -> TxnError {
    let (asked_nodes, asked_replicas) = (config.nodes, config.replication.replicas);
    let reason = format!(
        "the {what} is of a cluster of {nodes} nodes with {replicas} copies of each row, and was opened for one of {asked_nodes} with {asked_replicas}; \
         nothing in it was changed: open it as it was, or take another"
    );
    TxnError::OtherCluster { reason: reason.into() }
}
