//! A start of a node with a journal: which generation it is, and the region made anew from what counts.

use crate::base::error::TxnError;
use crate::base::threads::on_threads;
use crate::cluster::configuration::Configuration;
use crate::cluster::settings::ReplicationConfig;
use crate::durability::JournalConfig;
use crate::durability::members::restarted;
use farhold_fabric::{NodeId, RegionMemory};
use farhold_store::Store;
use farhold_store::durable::journal::{SEGMENT_BYTES_MIN, Segment, Shape};
use farhold_store::durable::{Begun, Cluster, DurableError, Inventory, Restored, SlotState, plan, region_bytes};
use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

/// The time between two starts of a whole cluster with journals, as one of its nodes takes part in it. While it is held
/// no other process can open this node.
///
/// Nodes of different generations must not meet: give each a fabric of its own ([`Generation::number`] as part of the directory's name).
pub struct Generation {
    pub(super) cluster: Cluster,
    is_late: bool,
    replication: ReplicationConfig,
    shape: Shape,
    first: Mutex<Option<Segment>>,
    _lock: Box<dyn Send + Sync>,
}

impl Generation {
    /// Begins the next generation of a cluster, or enters the one that other nodes have begun. A node with copies of its rows
    /// elsewhere may also come back to one in which it has been before.
    ///
    /// # Errors
    /// [`TxnError::Durable`]: files that are damaged, foreign or of another version; a node that a living process
    /// holds; other nodes that must end first; rows that only a start with copies can find.
    pub fn begin(
        config: &JournalConfig,
        node: NodeId,
        nodes: u8,
        replication: &ReplicationConfig,
    ) -> Result<Self, TxnError> {
        let directory = &config.directory;
        let made = Cell::new(None);
        let fresh = RandomState::new().build_hasher().finish();
        let comes_back = replication.replicas > 1;
        let begun = Cluster::begin(&**directory, fresh, (node, nodes), comes_back, &|cluster, start| {
            if !comes_back && cluster.standing.is_some() {
                check_in_place(cluster)?;
            }
            let (directory, identity, segment_bytes) = (directory.clone(), cluster.identity, config.segment_bytes);
            let inventory = Arc::new(Inventory::open(&*directory, &identity)?);
            let shape = Shape { directory, identity, start, segment_bytes, inventory };
            let first = shape.make_segment(0)?;
            made.set(Some((shape, first)));
            Ok(())
        });
        let begun = begun.map_err(refused)?;
        let replication = replication.clone();
        let Begun { cluster, is_late, lock, .. } = begun;
        let (shape, first) = made.take().expect("a start has a segment");
        let first = Mutex::new(Some(first));
        Ok(Self { cluster, is_late, replication, shape, first, _lock: lock })
    }

    /// Its number, from 1 on.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.cluster.generation
    }

    /// The first epoch of it.
    pub(crate) fn epoch_first(&self) -> u32 {
        self.cluster.epoch_first
    }

    /// Have the others gone on since the node last took part? If so, they have its rows, and its region is empty: it joins and never
    /// founds. Every other start has its rows again: it founds and never joins.
    pub(crate) fn comes_back(&self) -> bool {
        let me = self.cluster.identity.node;
        self.is_late || self.founding().is_ok_and(|founding| !founding.members.contains(&me))
    }

    /// The number of this start of the node: no other has it.
    pub(crate) fn start(&self) -> u64 {
        u64::from(self.shape.start)
    }

    /// The configuration with which the generation begins.
    pub(crate) fn founding(&self) -> Result<Configuration, TxnError> {
        let (nodes, replicas) = (self.cluster.identity.nodes, self.replication.replicas);
        if self.cluster.generation == 1 {
            // There are no rows yet.
            return Ok(Configuration::first(nodes, replicas));
        }
        let configuration = restarted(self.cluster.standing.as_ref(), nodes, replicas)?;
        Ok(Configuration { epoch_min: self.cluster.epoch_first, ..configuration })
    }

    /// Visits the rows of a node that left before the generation, and whose rows no node had taken over yet.
    pub(crate) fn visit(&self, node: NodeId, visit: &mut dyn FnMut(&SlotState<'_>)) -> Result<(), TxnError> {
        let plan = plan(&self.shape.directory, &self.cluster, node).map_err(refused)?;
        plan.visit(visit).map_err(refused)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape.clone()
    }

    pub(super) fn take_first(&self) -> Option<Segment> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The size that the region must have, in bytes; `wanted` at the first start.
    pub(crate) fn region_bytes(&self, wanted: u64) -> Result<u64, TxnError> {
        region_bytes(&*self.shape.directory, &self.cluster.identity, wanted).map_err(refused)
    }

    /// Fills a new region with everything that counts.
    pub(crate) fn restore(&self, config: &JournalConfig, memory: &Arc<RegionMemory>) -> Result<Restored, TxnError> {
        let me = self.cluster.identity.node;
        drop(Store::format_again(memory.clone(), me, self.start()).map_err(|error| TxnError::store(error, me))?);
        if self.comes_back() {
            return Ok(Restored::default());
        }
        let plan = plan(&self.shape.directory, &self.cluster, me).map_err(refused)?;
        let run = |job: &(dyn Fn(usize) + Sync)| on_threads(config.threads, job);
        let restored = plan.restore(memory, &run, &config.progress).map_err(|error| match error {
            Ok(durable) => refused(durable),
            Err(store) => TxnError::store(store, me),
        })?;
        let checkpoint = plan.checkpoint_epoch();
        if let Ok(word) = memory.word(farhold_store::Superblock::CHECKPOINTED) {
            word.store(u64::from(checkpoint), SeqCst);
        }
        Ok(restored)
    }
}

impl Drop for Generation {
    /// A refused start keeps its number, which its first segment records, but not the room: the shortest segment
    /// records it too.
    fn drop(&mut self) {
        if self.take_first().is_some() {
            // Without room it stays as it is, until a start succeeds.
            let _ = Shape { segment_bytes: SEGMENT_BYTES_MIN, ..self.shape() }.make_segment(0);
        }
    }
}

/// Without copies every node has the rows that placement gives it: in a cluster where some rows have moved, those are not
/// found.
fn check_in_place(cluster: &Cluster) -> Result<(), DurableError> {
    let last = restarted(cluster.standing.as_ref(), cluster.identity.nodes, 1);
    if last.is_ok_and(|last| last.is_in_place()) {
        return Ok(());
    }
    let who = "a node of this cluster had taken over the rows of another: start it with the copies of each row that it had (--replicas)";
    Err(DurableError::Busy { who: who.into() })
}

pub(super) fn refused(error: DurableError) -> TxnError {
    TxnError::Durable(Box::new(error))
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
