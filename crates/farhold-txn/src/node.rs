//! A node: one process's (or one simulated machine's) store, tables and workers.

use crate::catalog::Catalog;
use crate::far_pages::FarPages;
use crate::home::reservations::Reservations;
use crate::protocol::epoch::KEEPER;
use crate::protocol::ident::DATA;
use crate::protocol::section::Section;
use crate::protocol::section::latch::Latch;
use crate::protocol::section::rtm::Rtm;
use crate::slots::{Slots, Statistics};
use crate::snapshot::FarPlace;
use crate::{NodeId, Table, TableId, TxnError, Worker};
use farhold_fabric::{Fabric, FabricError, Handle};
use farhold_store::Store;
use farhold_store::table::Rebuilt;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

/// A node's settings.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How many nodes the cluster has: they are 0..`nodes`.
    pub nodes: u8,
    /// Bytes of this node's region, when it is created.
    pub region_bytes: u64,
    /// How long a request to another node may take before the node counts as unavailable.
    pub request_timeout_ns: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self { nodes: 1, region_bytes: 1 << 30, request_timeout_ns: 2_000_000_000 }
    }
}

/// What was found in regions after nodes had died, since this one was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Rows put into indexes again.
    pub rows: u64,
    /// Locks of dead owners that were released. Their transactions may have been half committed: far rows are written one
    /// node after the other, and there is no second copy yet.
    pub locks_released: u64,
    /// Rows that a dead owner was writing: table and key. They stay locked, so that nobody takes them for whole.
    pub damaged: Vec<(String, Vec<u8>)>,
    /// The latest epoch of a row.
    pub epoch: u32,
}

impl Recovered {
    pub(crate) fn add(&mut self, table: &str, found: &Rebuilt) {
        self.rows += found.rows;
        self.locks_released += found.locks_released;
        self.damaged.extend(found.damaged.iter().map(|damaged| (table.to_owned(), damaged.key.clone())));
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
    pub(crate) hardware_transactions: bool,
    /// What other nodes' transactions have reserved here.
    pub(crate) reservations: Reservations,
    /// Snapshots' places on other nodes that nobody needs any more.
    recovered: Mutex<Recovered>,
    released: Mutex<Vec<FarPlace>>,
    any_released: AtomicBool,
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
        let id = fabric.node();
        let refused = |error| TxnError::store(error, id);
        let store = match fabric.attach_region(DATA) {
            Ok(memory) => Store::attach(memory, id).map_err(refused)?.0,
            Err(FabricError::NoSuchRegion { .. }) => {
                let memory = fabric.create_region(DATA, config.region_bytes).map_err(|e| TxnError::far(e, id))?;
                Store::format(memory, id).map_err(refused)?
            }
            Err(error) => return Err(TxnError::far(error, id)),
        };
        let tag = TAGS.fetch_add(1, Relaxed);
        let hardware_transactions = crate::protocol::section::rtm::available();
        let slots = Arc::new(Slots::new());
        let node = Self {
            fabric,
            config,
            store,
            catalog: Catalog::default(),
            slots,
            hardware_transactions,
            reservations: Reservations::default(),
            recovered: Mutex::default(),
            released: Mutex::default(),
            any_released: AtomicBool::new(false),
            far_pages: FarPages::default(),
            tag,
        };
        let recovered = crate::system::open(&node)?;
        if id == KEEPER {
            node.store.superblock().raise_epoch(recovered.epoch);
        }
        node.add_recovered(recovered);
        Ok(Arc::new(node))
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.store.node()
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The form of its commits' near part: `rtm` where the CPU has hardware transactions, else `latch`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        if self.hardware_transactions { Rtm::NAME } else { Latch::NAME }
    }

    /// A worker for this thread, whose waiting goes by `handle`.
    ///
    /// # Errors
    /// All 255 worker numbers are taken, or the fabric has no endpoint left.
    pub fn worker(self: &Arc<Self>, handle: &Handle) -> Result<Worker, TxnError> {
        Worker::new(self, handle)
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

    pub(crate) fn add_recovered(&self, found: Recovered) {
        let mut recovered = self.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        recovered.rows += found.rows;
        recovered.locks_released += found.locks_released;
        recovered.damaged.extend(found.damaged);
        recovered.epoch = recovered.epoch.max(found.epoch);
    }

    /// Leaves a snapshot's place to be given back by the next worker that looks.
    pub(crate) fn release_later(&self, place: FarPlace) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(place);
        self.any_released.store(true, Release);
    }

    /// Gives back what was left.
    #[inline]
    pub(crate) fn release_now(&self, release: impl FnMut(FarPlace)) {
        if self.any_released.load(Relaxed) && self.any_released.swap(false, Acquire) {
            let places = std::mem::take(&mut *self.released.lock().unwrap_or_else(PoisonError::into_inner));
            places.into_iter().for_each(release);
        }
    }

    /// Locks and reservations in its region, and rows that some index does not know, in words: none when no transaction runs.
    /// A walk over all pages, for tests and for looking into a node that hangs.
    #[must_use]
    pub fn left_behind(&self) -> Vec<String> {
        let mut left = Vec::new();
        for table in self.catalog.all() {
            for offset in table.0.store.pages().iter().flat_map(farhold_store::slab::Run::slots) {
                let object = farhold_store::Object::at(self.store.memory(), offset);
                if let Some(owner) = farhold_store::Owner::from_word(object.lock_word()) {
                    left.push(format!("{table:?}, offset {offset:#x}: locked by {owner:?}"));
                }
                if object.meta().state() == farhold_store::object::RESERVED {
                    left.push(format!("{table:?}, offset {offset:#x}: reserved"));
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

    /// Says that everything is in order, for the next start to find. No transaction runs any more.
    pub fn close(&self) {
        self.far_pages.close();
        self.store.close();
    }
}
