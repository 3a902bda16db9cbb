//! Rings that this process has mapped: a worker stores its records, body and mark, where their readers look, and waits
//! for nothing.

use crate::base::catalog::Catalog;
use crate::base::ident::{DATA, LOG};
use crate::replication::{Replication, Writers};
use farhold_fabric::{Endpoint, NodeId, RegionId, RegionMemory};
use farhold_store::Superblock;
use farhold_store::log::{Place, RecordWriter, record};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

/// What a worker has mapped for commits of rows of its own node, in one configuration.
#[derive(Default)]
pub(crate) struct MappedRings {
    /// The node's count of changes when this was found; commits of transactions that began under another count are refused.
    indexes_version: Option<u64>,
    configuration: u64,
    /// The region of the epoch keeper, whose superblock has the authoritative epoch.
    keeper: Option<Arc<RegionMemory>>,
    /// Where this worker's ring begins, and where the word is that says how far its reader has come: the same at all holders.
    ring: u64,
    applied: u64,
    ring_bytes: u64,
    holders: Vec<Holder>,
}

/// How far ahead lines of a ring are prefetched, and how many at most: some ten records of `SmallBank`. Prefetching only the next record
/// came too late for some lines, and covered too few when that record was longer than the one before. Less than any ring has.
const AHEAD_BYTES: u64 = 2048;

/// A node that gets the records, and its rings.
struct Holder {
    node: NodeId,
    rings: Arc<RegionMemory>,
    /// Where the record goes that is being written, its mark, and that of the end of a lap before it.
    place: Option<Place>,
    mark: u64,
    skip_mark: u64,
}

impl Holder {
    fn new(node: NodeId, rings: Arc<RegionMemory>) -> Self {
        Self { node, rings, place: None, mark: 0, skip_mark: 0 }
    }

    #[inline]
    fn copy_in(&self, at: u64, bytes: &[u8]) {
        let copied = self.rings.copy_in(at, bytes);
        debug_assert!(copied.is_ok(), "the layout is the same everywhere");
    }

    #[inline]
    fn mark(&self, at: u64, mark: u64) {
        if let Ok(word) = self.rings.word(at) {
            word.store(mark, Release);
        }
    }
}

impl MappedRings {
    /// Was it found under this count of changes?
    #[inline]
    pub fn is_of(&self, indexes_version: u64) -> bool {
        self.indexes_version == Some(indexes_version)
    }

    /// Finds everything anew; false if this process has not mapped all of it. `look_again` has the endpoint
    /// look for a region again; true if it has found one.
    #[cold]
    pub fn find(
        &mut self,
        endpoint: &Endpoint,
        (me, worker): (NodeId, u8),
        replication: &Replication,
        catalog: &Catalog,
        indexes_version: u64,
        look_again: &dyn Fn(NodeId, RegionId) -> bool,
    ) -> bool {
        *self = Self::default();
        let map = |node, region| {
            endpoint.mapped(node, region).or_else(|| {
                // The region may be another one than this thread had met.
                look_again(node, region).then(|| endpoint.mapped(node, region))?
            })
        };
        let keeper = map(replication.view.keeper(), DATA).filter(|it| Superblock::of(it).is_ok());
        let holders = replication.holders(me, std::iter::once(me));
        let holders = holders.into_iter().map(|node| Some(Holder::new(node, map(node, LOG)?)));
        let (Some(keeper), Some(holders)) = (keeper, holders.collect::<Option<Vec<_>>>()) else { return false };
        let configuration = replication.view.configuration().number;
        let layout = replication.layout;
        let (ring, applied) = (layout.record(me, worker, 0), layout.applied(me, worker));
        let (indexes_version, keeper) = (Some(indexes_version), Some(keeper));
        *self = Self { indexes_version, configuration, keeper, ring, applied, ring_bytes: layout.ring_bytes, holders };
        // Everything was found under this count, or it is not used.
        Some(catalog.indexes_version()) == self.indexes_version
    }

    /// The configuration's number.
    pub fn configuration(&self) -> u64 {
        self.configuration
    }

    /// The epoch now.
    #[inline]
    pub fn epoch(&self) -> u32 {
        let word = self.keeper.as_ref().and_then(|memory| memory.word(Superblock::EPOCH).ok());
        word.map_or(0, |word| word.load(SeqCst) as u32)
    }

    /// Is there room for a record at all holders? It stays until this worker writes one.
    #[inline]
    pub fn have_room(&self, replication: &Replication, writers: &mut Writers, size: u64) -> bool {
        self.holders.iter().all(|holder| {
            let writer = writers.of(holder.node, replication);
            if !writer.is_half_empty()
                && let Ok(applied) = holder.rings.word(self.applied)
            {
                writer.heard(applied.load(Acquire));
            }
            writer.has_room(size)
        })
    }

    /// Writes a record to all holders, bodies first and then the marks. There is room for it, and all its rows will have been
    /// written before this worker writes the next.
    #[inline]
    pub fn write(&mut self, writers: &mut Writers, record: &mut RecordWriter) {
        let Self { ring, ring_bytes, holders, .. } = self;
        let (ring, ring_bytes) = (*ring, *ring_bytes);
        for holder in &mut *holders {
            holder.place = writers.get_mut(holder.node).map(|writer| writer.take_finished(record.len()));
            let Some(place) = &holder.place else { continue };
            if let Some((lsn, size)) = place.skip {
                let (behind, mark) = record::skip(lsn, size, place.finished);
                holder.skip_mark = mark;
                holder.copy_in(ring + ring_bytes - size + 8, &behind);
            }
            let (behind, mark) = record.place(place.lsn, place.finished);
            if planted!(MarkBeforeBody) {
                holder.copy_in(ring + place.at + 8, &behind[..record::HEADER_BYTES - 8]);
                holder.mark(ring + place.at, mark);
                crate::base::planted::may_stop();
            }
            holder.copy_in(ring + place.at + 8, behind);
            holder.mark = mark;
        }
        crate::base::planted::may_stop();
        // Stores in order are seen in order: each body is there before any mark is.
        for holder in &*holders {
            let Some(place) = &holder.place else { continue };
            if let Some((_, size)) = place.skip {
                holder.mark(ring + ring_bytes - size, holder.skip_mark);
            }
            holder.mark(ring + place.at, holder.mark);
            // The lines of coming records are in their reader's cache. They are prefetched now, so that the next records
            // need not wait for them.
            let ahead = place.at + AHEAD_BYTES;
            let ahead = if ahead < ring_bytes { ahead } else { ahead - ring_bytes };
            let lines = record.len().min(AHEAD_BYTES).min(ring_bytes - ahead);
            holder.rings.prefetch_to_write(ring + ahead, lines);
        }
    }
}
