//! Replicas of every row on other nodes: records of commits go to their rings, and from there into mirrors.
//!
//! ```text
//!   a commit ── record ──► rings of the holders ── apply.rs ──► mirror/: slots of other nodes
//!          └── mapped.rs ─────────────────┘ without waiting, where it can
//! ```
//!
//! The order within a commit is `protocol/commit/distributed.rs`'s; why it is correct: `docs/design/0004-replication.md`.

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
use crate::cluster::settings::ReplicationConfig;
use crate::cluster::view::{Moment, View};
use farhold_fabric::{Fabric, FabricError, NodeId};
use farhold_store::log::{LogRegion, RingLayout, RingWriter};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a worker knows of its rings, by the numbers of their nodes: each commit looks there.
#[derive(Default)]
pub(crate) struct Writers(Vec<Option<RingWriter>>);

impl Writers {
    /// The state of the ring on a node; empty if nothing is known of the ring yet.
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
    /// The nodes that do not answer this node.
    pub reach: Reach,
    progress: Mutex<Progress>,
    applier: Mutex<Applier>,
    /// Held by the task that does a step of a change of the configuration.
    turn: Mutex<()>,
    /// What each worker knows of its rings.
    writers: Box<[Mutex<Writers>]>,
    /// For each worker, records that are finished but for the journal.
    unclosed: Box<[Mutex<VecDeque<Unclosed>>]>,
}

impl Replication {
    /// Makes this node's rings, empty; the content that an earlier start has left is void.
    pub fn open(
        fabric: &Fabric,
        nodes: u8,
        config: &ReplicationConfig,
        populate_bytes: u64,
    ) -> Result<Arc<Self>, TxnError> {
        let node = fabric.node();
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
            applier: Mutex::new(Applier::new(&log, Spare::new(u64::from(replicas - 1) * populate_bytes))),
            turn: Mutex::default(),
            log,
            writers: (0..config.rings).map(|_| Mutex::default()).collect(),
            unclosed: (0..config.rings).map(|_| Mutex::default()).collect(),
        }))
    }

    /// Lets a commit of a worker past its commit point, unless the configuration is changing or the node's lease is over.
    pub fn admit(self: &Arc<Self>, worker: u8, now: Moment, is_current: impl FnOnce() -> bool) -> Option<Admitted> {
        let view = &self.view;
        let passed = view.pass(worker, || view.is_settled(now) && is_current())?;
        // Counted out by what is returned.
        std::mem::forget(passed);
        Some(Admitted(self.clone(), worker))
    }

    /// What the recovery is doing.
    pub fn progress(&self) -> Progress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what the recovery is doing.
    pub fn note(&self, change: impl FnOnce(&mut Progress)) {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Mirrors and ring readers; blocks while another thread has them.
    pub fn applier(&self) -> MutexGuard<'_, Applier> {
        self.applier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held for one step of a configuration change, from the check which step is due until the step's end. Otherwise a
    /// thread that is descheduled in between would do the step in a later configuration.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Self::applier`], unless another thread has them.
    pub fn try_applier(&self) -> Option<MutexGuard<'_, Applier>> {
        self.applier.try_lock().ok()
    }

    /// What a worker knows of its rings. Only that worker asks, and the thread that begins a configuration.
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
            // One backup is the coordinator, whose own copy dies with it. Or there is a single backup, which may die
            // with the coordinator: then the node itself has what was being written there, and half of it would stay.
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

/// A commit that has been let past its commit point; the node is not quiet until it is dropped, on its worker's thread.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<Replication>, u8);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.view.leave(self.1);
    }
}

impl fmt::Debug for Replication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replication").field("config", &self.config).finish_non_exhaustive()
    }
}
