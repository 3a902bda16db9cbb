//! Rings that this process has mapped: a worker stores its records where their readers look, body and mark, and waits for nothing.

use super::{Replication, Writers};
use crate::NodeId;
use crate::protocol::ident::{DATA, LOG};
use crate::worker::Core;
use farhold_fabric::{Endpoint, RegionId, RegionMemory};
use farhold_store::Superblock;
use farhold_store::log::{Place, RecordWriter, record};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

/// What a worker has mapped for commits of rows of its own node, in one configuration.
#[derive(Default)]
pub(crate) struct MappedRings {
    /// The node's count of changes when this was found; no commit of a transaction that was begun in another is let through.
    indexes_version: Option<u64>,
    configuration: u64,
    /// Whose superblock has the epoch that counts.
    keeper: Option<Arc<RegionMemory>>,
    holders: Vec<Holder>,
}

/// How far ahead lines of a ring are asked for; beyond that the processor has seen that they come one after the other.
const AHEAD_BYTES: u64 = 512;

/// A node that gets the records, and its rings.
struct Holder {
    node: NodeId,
    rings: Arc<RegionMemory>,
    /// Where the record goes that is being written, its mark, and that of the end of a lap before it.
    place: Option<Place>,
    mark: u64,
    skip_mark: u64,
}

impl MappedRings {
    /// Is it of this count of changes?
    #[inline]
    pub fn is_of(&self, indexes_version: u64) -> bool {
        self.indexes_version == Some(indexes_version)
    }

    /// Finds everything anew; false if this process has not mapped all of it.
    #[cold]
    pub fn find(&mut self, core: &Core, replication: &Replication, indexes_version: u64) -> bool {
        *self = Self::default();
        let keeper = map(&core.endpoint, replication.view.keeper(), DATA).filter(|it| Superblock::of(it).is_ok());
        let holders = replication.holders(core.me, std::iter::once(core.me));
        let holders = holders.into_iter().map(|node| {
            map(&core.endpoint, node, LOG).map(|rings| Holder { node, rings, place: None, mark: 0, skip_mark: 0 })
        });
        let (Some(keeper), Some(holders)) = (keeper, holders.collect::<Option<Vec<_>>>()) else { return false };
        let configuration = replication.view.configuration().number;
        *self = Self { indexes_version: Some(indexes_version), configuration, keeper: Some(keeper), holders };
        // It is what it was when the count was looked at, or nobody uses it.
        core.node.catalog.indexes_version() == indexes_version
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
    pub fn have_room(&self, core: &Core, replication: &Replication, writers: &mut Writers, size: u64) -> bool {
        let worker = core.slot.number();
        self.holders.iter().all(|holder| {
            let writer = writers.entry(holder.node).or_insert_with(|| replication.new_writer());
            if !writer.is_half_empty()
                && let Ok(applied) = holder.rings.word(replication.layout.applied(core.me, worker))
            {
                writer.heard(applied.load(Acquire));
            }
            writer.has_room(size)
        })
    }

    /// Writes a record to all holders, bodies first and then the marks. There is room for it, and all its rows will have been
    /// written before this worker writes the next.
    pub fn write(&mut self, core: &Core, replication: &Replication, writers: &mut Writers, record: &mut RecordWriter) {
        let worker = core.slot.number();
        let at = |lsn| replication.layout.record(core.me, worker, lsn);
        for holder in &mut self.holders {
            holder.place = writers.get_mut(&holder.node).map(|writer| writer.take_finished(record.len()));
            let Some(place) = &holder.place else { continue };
            if let Some((lsn, size)) = place.skip {
                let (behind, mark) = record::skip(lsn, size, place.finished);
                holder.skip_mark = mark;
                let copied = holder.rings.copy_in(at(lsn) + 8, &behind);
                debug_assert!(copied.is_ok(), "the layout is the same everywhere");
            }
            let (behind, mark) = record.place(place.lsn, place.finished);
            holder.mark = mark;
            let copied = holder.rings.copy_in(at(place.lsn) + 8, behind);
            debug_assert!(copied.is_ok(), "the layout is the same everywhere");
        }
        // Stores in order are seen in order: each body is there before any mark is.
        for holder in &self.holders {
            let Some(place) = &holder.place else { continue };
            let store = |lsn, mark| {
                if let Ok(word) = holder.rings.word(at(lsn)) {
                    word.store(mark, Release);
                }
            };
            if let Some((lsn, _)) = place.skip {
                store(lsn, holder.skip_mark);
            }
            store(place.lsn, holder.mark);
            // The next record's lines are in its reader's cache: the next transaction need not wait for them.
            holder.rings.prefetch_to_write(at(place.lsn + record.len()), record.len().min(AHEAD_BYTES));
        }
    }
}

/// Where a region is mapped.
fn map(endpoint: &Endpoint, node: NodeId, region: RegionId) -> Option<Arc<RegionMemory>> {
    endpoint.mapped(node, region).or_else(|| {
        // Another than this thread had met.
        endpoint.refresh(node, region).ok()?;
        endpoint.mapped(node, region)
    })
}
