//! A start of a node with a journal: which generation it is, and the region made anew from what counts.

use super::JournalConfig;
use crate::{NodeId, TxnError};
use farhold_fabric::RegionMemory;
use farhold_store::Store;
use farhold_store::durable::files::Directory;
use farhold_store::durable::journal::{Segment, Shape};
use farhold_store::durable::{Cluster, DurableError, Restored, plan, region_bytes};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

/// The time between two starts of a whole cluster with journals, as one of its nodes takes part in it. While it is held no other process
/// gets this node.
///
/// Nodes of different generations must not meet: give each a fabric of its own ([`Generation::number`] as part of the directory's name).
pub struct Generation {
    pub(super) cluster: Cluster,
    first: Mutex<Option<Segment>>,
    directory: Arc<dyn Directory>,
    _lock: Box<dyn Send + Sync>,
}

impl Generation {
    /// Begins the next generation of a cluster, or enters the one that other nodes have begun.
    ///
    /// # Errors
    /// [`TxnError::Durable`]: files that are damaged, foreign or of another version; a node that a living process holds; others
    /// that must end first.
    pub fn begin(config: &JournalConfig, node: NodeId, nodes: u8) -> Result<Self, TxnError> {
        let directory = config.directory.clone();
        let first = Mutex::new(None);
        let fresh = RandomState::new().build_hasher().finish();
        let begun = Cluster::begin(&*directory, fresh, node, nodes, &|cluster| {
            let segment = shape(&directory, cluster, config).make_segment(0)?;
            *first.lock().unwrap_or_else(PoisonError::into_inner) = Some(segment);
            Ok(())
        });
        let begun = begun.map_err(refused)?;
        Ok(Self { cluster: begun.cluster, first, directory, _lock: begun.lock })
    }

    /// Its number, from 1 on.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.cluster.generation
    }

    pub(super) fn shape(&self, config: &JournalConfig) -> Shape {
        shape(&self.directory, &self.cluster, config)
    }

    pub(super) fn take_first(&self) -> Option<Segment> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn forget_past(&mut self, directory: &dyn Directory) -> Result<(), DurableError> {
        self.cluster.forget(directory)
    }

    /// Bytes that the region has to have; `wanted` at the first start.
    pub(crate) fn region_bytes(&self, wanted: u64) -> Result<u64, TxnError> {
        region_bytes(&*self.directory, &self.cluster.identity, wanted).map_err(refused)
    }

    /// The first epoch that commits may have.
    pub(crate) fn epoch_first(&self) -> u32 {
        self.cluster.epoch_first
    }

    /// Fills a new region with everything that counts.
    pub(crate) fn restore(&self, config: &JournalConfig, memory: &Arc<RegionMemory>) -> Result<Restored, TxnError> {
        let me = self.cluster.identity.node;
        let plan = plan(&self.directory, &self.cluster).map_err(refused)?;
        drop(Store::format(memory.clone(), me).map_err(|error| TxnError::store(error, me))?);
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

/// Runs a job on so many threads, this one included.
pub(crate) fn on_threads(threads: usize, job: &(dyn Fn(usize) + Sync)) {
    std::thread::scope(|scope| {
        for number in 1..threads {
            scope.spawn(move || job(number));
        }
        job(0);
    });
}

fn shape(directory: &Arc<dyn Directory>, cluster: &Cluster, config: &JournalConfig) -> Shape {
    let (directory, segment_bytes) = (directory.clone(), config.segment_bytes);
    Shape { directory, identity: cluster.identity, generation: cluster.generation, segment_bytes }
}

pub(super) fn refused(error: DurableError) -> TxnError {
    TxnError::Durable(Box::new(error))
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
