//! Copies of every row on other nodes: records of commits go to their logs, and from there into mirrors.
//!
//! ```text
//!   a commit ── send.rs: record ──► rings of the holders ── apply.rs ──► mirror.rs: slots of other nodes
//!          └── mapped.rs ─────────────────┘ without waiting, where it can
//! ```
//!
//! The order within a commit is `protocol/commit_far.rs`'s; why all of it is right: `docs/design/0004-replication.md`.

pub(crate) mod apply;
pub(crate) mod mapped;
pub(crate) mod mirror;
pub(crate) mod promise;

use crate::replication::apply::Applier;
use crate::replication::promise::Unclosed;
use mirror::Spare;

use crate::base::error::TxnError;
use crate::base::ident::LOG;
use crate::cluster::progress::Progress;
use crate::cluster::reach::Reach;
use crate::cluster::view::View;
use crate::node::NodeConfig;
use farhold_fabric::NodeId;
use farhold_fabric::{Fabric, FabricError};
use farhold_store::log::{LogRegion, RingLayout, RingWriter};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Settings of replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// Copies of each row, the first included: 1 is none, and costs nothing. Acknowledged transactions survive the loss
    /// of all nodes but one of so many.
    pub replicas: u8,
    /// Whether near rows are visible while they are being replicated (DrTM+R's order); else only afterwards.
    pub optimistic: bool,
    /// Workers of a node that can write: each has a ring on every node.
    pub rings: u8,
    /// Bytes of a ring, a multiple of 4096. A transaction's record is at most half of it.
    pub ring_bytes: u64,
    /// How long a member may go unheard before the others go on without it.
    pub lease_ns: u64,
    /// How far the clocks of two members may drift apart during one lease.
    pub clock_skew_ns_max: u64,
}

impl Default for ReplicationConfig {
    fn default() -> Self {
        Self {
            replicas: 1,
            optimistic: true,
            rings: 8,
            ring_bytes: 2 << 20,
            lease_ns: 100_000_000,
            clock_skew_ns_max: 10_000_000,
        }
    }
}

/// What a worker knows of its rings, by the numbers of their nodes: each commit looks there.
#[derive(Default)]
pub(crate) struct Writers(Vec<Option<RingWriter>>);

impl Writers {
    /// Of the ring on a node; it is empty if nothing is known of it yet.
    #[inline]
    pub fn of(&mut self, node: NodeId, replication: &Replication) -> &mut RingWriter {
        let place = usize::from(node.0);
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place].get_or_insert_with(|| RingWriter::new(&replication.layout))
    }

    #[inline]
    pub fn get_mut(&mut self, node: NodeId) -> Option<&mut RingWriter> {
        self.0.get_mut(usize::from(node.0))?.as_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &RingWriter)> {
        (0..=u8::MAX).map(NodeId).zip(&self.0).filter_map(|(node, writer)| Some((node, writer.as_ref()?)))
    }
}

/// A node's part in replication.
pub(crate) struct Replication {
    pub config: ReplicationConfig,
    pub layout: RingLayout,
    pub view: View,
    pub log: LogRegion,
    /// Who does not answer this node.
    pub reach: Reach,
    progress: Mutex<Progress>,
    /// Why its cluster does not take it.
    pub refusal: OnceLock<TxnError>,
    applier: Mutex<Applier>,
    /// Whoever does a step of a change of the configuration has it.
    turn: Mutex<()>,
    /// What each worker knows of its rings.
    writers: Box<[Mutex<Writers>]>,
    /// Of each worker, records that are finished but for the journal.
    unclosed: Box<[Mutex<VecDeque<Unclosed>>]>,
}

impl Replication {
    /// Makes this node's rings; what an earlier start has left in them is of no use to anybody.
    pub fn open(fabric: &Fabric, config: &NodeConfig) -> Result<Arc<Self>, TxnError> {
        let (node, nodes, populate_bytes) = (fabric.node(), config.nodes, config.populate_bytes);
        let config = &config.replication;
        let replicas = config.replicas;
        let layout = RingLayout { nodes, rings: config.rings, ring_bytes: config.ring_bytes };
        let refused = |error| TxnError::far(error, node);
        match fabric.attach_region(LOG) {
            Ok(_) => fabric.remove_region(LOG).map_err(refused)?,
            Err(FabricError::NoSuchRegion { .. }) => {}
            Err(error) => return Err(refused(error)),
        }
        let memory = fabric.create_region(LOG, layout.region_bytes()).map_err(refused)?;
        let log = LogRegion::format(memory, node, layout, 0).map_err(refused)?;
        Ok(Arc::new(Self {
            config: config.clone(),
            layout,
            view: View::new(nodes, replicas),
            reach: Reach::default(),
            progress: Mutex::default(),
            refusal: OnceLock::new(),
            applier: Mutex::new(Applier::new(&log, Spare::new(u64::from(replicas - 1) * populate_bytes))),
            turn: Mutex::default(),
            log,
            writers: (0..config.rings).map(|_| Mutex::default()).collect(),
            unclosed: (0..config.rings).map(|_| Mutex::default()).collect(),
        }))
    }

    /// What the recovery is doing.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what the recovery is doing.
    pub fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Mirrors and readers, for whoever gets them first.
    pub fn applier(&self) -> MutexGuard<'_, Applier> {
        self.applier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a step of a change of the configuration, from its look at which one is due to its end: a thread that is put aside in between
    /// would do it in a later one.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::applier`], unless somebody else has them.
    pub fn try_applier(&self) -> Option<MutexGuard<'_, Applier>> {
        self.applier.try_lock().ok()
    }

    /// What a worker knows of its rings. Only that worker asks, and whoever begins a configuration.
    pub fn writers(&self, worker: u8) -> Result<MutexGuard<'_, Writers>, TxnError> {
        let limit = self.writers.len();
        let writers = self.writers.get(usize::from(worker));
        let writers = writers.ok_or(TxnError::TooMany { what: "workers that write replicated rows", limit })?;
        Ok(writers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets the rings on nodes that are not present any more: their next start has empty ones.
    pub fn forget_rings_of_the_gone(&self) {
        for writers in &self.writers {
            let mut writers = writers.lock().unwrap_or_else(PoisonError::into_inner);
            let gone =
                (0..=u8::MAX).map(NodeId).zip(&mut writers.0).filter(|(node, _)| !self.view.present.contains(*node));
            gone.for_each(|(_, writer)| *writer = None);
        }
    }

    /// The nodes that get the record of a transaction of `me` with rows on `written`.
    pub fn holders(&self, me: NodeId, written: impl Iterator<Item = NodeId>) -> Vec<NodeId> {
        let configuration = self.view.configuration();
        let mut holders = Vec::new();
        for node in written {
            let before = holders.len();
            holders.extend(configuration.backups(node));
            // One backup is the coordinator, whose own copy dies with it; or there is no other one, which may die with the coordinator: then the
            // node itself has what was being written there, and half of it would stay.
            if node != me && (holders[before..].contains(&me) || self.config.replicas == 2) {
                holders.push(node);
            }
        }
        holders.sort_unstable();
        holders.dedup();
        if planted!(OneHolder) {
            holders.truncate(1);
        }
        holders
    }
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replication").field("config", &self.config).finish_non_exhaustive()
    }
}
