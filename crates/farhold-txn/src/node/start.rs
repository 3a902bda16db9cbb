//! Opening a node: its region is new, is left from an earlier start, or is restored from journals.

use crate::base::catalog::Catalog;
use crate::base::definition::Placement;
use crate::base::epoch::KEEPER;
use crate::base::error::TxnError;
use crate::base::ident::{COLUMNS, DATA};
use crate::base::nodes::NodeSet;
use crate::base::processor::Processor;
use crate::base::slots::Slots;
use crate::cluster::configuration::Configuration;
use crate::columns::own::OwnRecords;
use crate::durability::journaling::Journaling;
use crate::durability::open::Generation;
use crate::node::column_scans::ColumnScans;
use crate::node::far_reads::FarReads;
use crate::node::reservations::Reservations;
use crate::node::snapshots::{FarHolds, OpenSnapshots};
use crate::node::unsent::Unsent;
use crate::node::{Node, NodeConfig};
use crate::replication::Replication;
use crate::replication::mirror::REGION_BYTES_MAX;
use farhold_fabric::{Admitted, Fabric, FabricError, NodeId};
use farhold_store::column::memory::ColumnMemory;
use farhold_store::{REGION_BYTES_MIN, Store, StoreError, Superblock};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

static TAGS: AtomicU64 = AtomicU64::new(1);

impl Node {
    /// Creates this node's region, or attaches the one that an earlier start left. Then it reads its system table,
    /// rebuilds its indexes and releases the locks that the earlier start held here.
    ///
    /// # Errors
    /// The region is not ours, is damaged, or cannot be had.
    pub fn open(fabric: Fabric, config: NodeConfig) -> Result<Arc<Self>, TxnError> {
        Self::open_with(fabric, config, None)
    }

    /// As [`Self::open`], of a node with a journal: its region is made anew from the checkpoint and the journals of all
    /// nodes, with everything that was acknowledged before the last end of the cluster, whatever that end was. The
    /// program must start [`JournalThreads`](crate::JournalThreads) for it.
    ///
    /// # Errors
    /// As there; [`TxnError::Durable`] if the files cannot be used. The files are unchanged then.
    pub fn open_durable(fabric: Fabric, config: NodeConfig, generation: Generation) -> Result<Arc<Self>, TxnError> {
        Self::open_with(fabric, config, Some(generation))
    }

    /// The region from the journals; true if there was more than a checkpoint, or no checkpoint.
    fn restore(
        fabric: &Fabric,
        config: &NodeConfig,
        generation: Generation,
    ) -> Result<(Arc<Journaling>, bool), TxnError> {
        let id = fabric.node();
        let Some(journal) = config.journal.clone() else {
            return Err(TxnError::NotFound { what: "journal in the settings of this node".into() });
        };
        end_earlier_start(fabric);
        match fabric.remove_region(DATA) {
            Ok(()) | Err(FabricError::NoSuchRegion { .. }) => {}
            Err(error) => return Err(TxnError::far(error, id)),
        }
        let region_bytes = generation.region_bytes(config.region_bytes)?;
        let memory = fabric.create_closed_region(DATA, region_bytes).map_err(|error| TxnError::far(error, id))?;
        let restored = generation.restore(&journal, &memory)?;
        // Journals without rows of this node are removed after a checkpoint of it, too.
        let many_bytes = journal.checkpoint_bytes.saturating_mul(u64::from(config.nodes));
        let needs_checkpoint =
            restored.journal_rows > 0 || restored.journal_bytes > many_bytes || generation.comes_back();
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
            // No other node may access this region before there is a configuration; an expelled node may try to.
            fabric.admit(0, Admitted::Births(Vec::new()));
            if generation.is_none() {
                starts = remove_old_region(&fabric, &config)?;
            }
            let (region_bytes, bytes_min, bytes_max) = (config.region_bytes, REGION_BYTES_MIN, REGION_BYTES_MAX);
            if region_bytes > bytes_max {
                return Err(refused(StoreError::RegionLength { region_bytes, bytes_min, bytes_max }));
            }
            Some(Replication::open(&fabric, config.nodes, &config.replication, config.populate_bytes)?)
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
        // Closed until everything is there: an index that is being rebuilt reports rows as absent, and the locks of the
        // earlier start are being released.
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
        // Other nodes' commits would leave nothing here.
        let own_records = (journaling.is_none() && config.nodes == 1).then(OwnRecords::new);
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
            own_records,
            needs_checkpoint,
            founding,
            birth: start.map_or_else(OnceLock::new, OnceLock::from),
            refusal: OnceLock::new(),
            present: NodeSet::default(),
            unsent: Unsent::default(),
            open_snapshots: OpenSnapshots::default(),
            far_holds: FarHolds::default(),
            recovered: Mutex::default(),
            far_reads: FarReads::default(),
            column_scans: ColumnScans::default(),
            tag,
        };
        node.present.set((0..node.config.nodes).map(NodeId));
        let recovered = crate::node::system::open(&node)?;
        node.store.keep_spare_memory();
        if id == keeper {
            node.store.superblock().raise_epoch(recovered.epoch.max(node.founding.epoch_min));
        }
        if let Some(journaling) = &node.journaling {
            node.restore_mirrors(journaling.generation())?;
        }
        node.add_recovered(recovered);
        if let Some(feed) = node.column_feed()
            && let Ok(memory) = make_column_region(&node.fabric, node.config.columns_bytes_max)
        {
            feed.set_memory(memory);
        }
        node.fabric.open_region(DATA).map_err(|error| TxnError::far(error, id))?;
        Ok(Arc::new(node))
    }
}

/// Snapshots that others have in the memory of an earlier start stand no longer, before there is new memory at the same addresses.
fn end_earlier_start(fabric: &Fabric) {
    if let Ok(memory) = fabric.attach_closed_region(DATA)
        && let Ok(earlier) = Superblock::of(&memory)
    {
        earlier.end_start();
    }
}

/// The longest region of column chunks, if a configuration says that columns may take as much as they like. What is not used takes no
/// memory; the system has addresses for 128 of these.
const COLUMNS_BYTES_MAX: u64 = 1 << 40;

/// Room for descriptions of views, and where the columns have next to none.
const COLUMNS_BYTES_MORE: u64 = 1 << 20;

/// A new region for column chunks. While all of a table's segments are made anew, the old ones are there too.
fn make_column_region(fabric: &Fabric, columns_bytes_max: u64) -> Result<Arc<ColumnMemory>, FabricError> {
    match fabric.remove_region(COLUMNS) {
        Ok(()) | Err(FabricError::NoSuchRegion { .. }) => {}
        Err(error) => return Err(error),
    }
    let bytes = 2 * columns_bytes_max.min(COLUMNS_BYTES_MAX / 2) + COLUMNS_BYTES_MORE;
    Ok(ColumnMemory::new(fabric.create_region(COLUMNS, bytes)?))
}

/// The nodes of a cluster and the copies of each row, as a region remembers them.
fn shape_of(config: &NodeConfig) -> u64 {
    u64::from(config.nodes) | u64::from(config.replication.replicas) << 8
}

/// With copies elsewhere, what an earlier start of this node left here is outdated. Without copies, the rows here are the only ones and
/// stay. Returns how often the node has started.
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
        // The earlier start ended before it had written its superblock.
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
