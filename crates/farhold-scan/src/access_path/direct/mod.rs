//! Loads from memory that is mapped here: nothing is copied.
//!
//! The processor waits for each cache line of the segments, as far as its prefetching does not hide that. Over `shm` all regions are
//! mapped; over `libfabric` and in the simulation, a node's own.

use std::collections::HashMap;
use std::sync::Arc;

use farhold_fabric::{NodeId, RegionId, RegionMemory};
use farhold_store::column::Chunk;

use super::stage::{Passed, Stage};
use super::{AccessPath, Counters, FarChunk, Reader, Scan, ScanError, Scanning, Sink, Why};

pub(super) const PATH: AccessPath = AccessPath {
    name: "direct",
    about: "loads from memory that is mapped here",
    unusable,
    scan: |reader, scan, sink| -> Scanning<'_> { Box::pin(run(reader, scan, sink)) },
};

fn unusable(reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
    // One look a region: segments in order mostly lie in the same one.
    let mut seen = None;
    let places =
        scan.segments.iter().flat_map(|segment| &segment.chunks).map(|chunk| (chunk.at.node(), chunk.at.region()));
    for (node, region) in places {
        if seen.replace((node, region)) != Some((node, region)) && reader.endpoint.mapped(node, region).is_none() {
            return Some(Why::NotMapped { node, region });
        }
    }
    None
}

async fn run(reader: &Reader<'_>, scan: &Scan<'_>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let stage = Stage::new(scan, reader.pinned);
    let mut counters = Counters::default();
    for segment in 0..scan.segments.len() {
        let rows = stage.rows(segment);
        counters.rows += rows as u64;
        let first = Mapped::of(reader, &stage, segment, &stage.first)?;
        let first = first.open(&stage, segment, &stage.first)?;
        let passed = Passed::of(segment, rows, &stage.filter(rows, &first));
        counters.bytes_moved += bytes_of(&first);
        if passed.passing > 0 {
            let wanted = Mapped::of(reader, &stage, segment, &stage.wanted)?;
            let wanted = wanted.open(&stage, segment, &stage.wanted)?;
            let late = stage.wanted.iter().zip(&wanted).filter(|(column, _)| stage.late.contains(column));
            counters.bytes_moved += late.map(|(_, chunk)| chunk.len() as u64).sum::<u64>();
            let chunk_of = |column: usize| wanted[stage.wanted.binary_search(&column).expect("a wanted column")];
            if stage.deliver(&passed, &chunk_of, sink, &mut counters).is_break() {
                break;
            }
        }
        reader.endpoint.handle().yield_now().await;
    }
    Ok(counters)
}

fn bytes_of(chunks: &[Chunk<'_>]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}

/// Chunks of a segment in the memory where they are mapped.
struct Mapped {
    regions: HashMap<(NodeId, RegionId), Arc<RegionMemory>>,
    chunks: Vec<FarChunk>,
}

impl Mapped {
    fn of(reader: &Reader<'_>, stage: &Stage<'_>, segment: usize, columns: &[usize]) -> Result<Self, ScanError> {
        let chunks = stage.chunks(segment, columns)?;
        let mut regions = HashMap::new();
        for FarChunk { at, .. } in &chunks {
            let (node, region) = (at.node(), at.region());
            if let std::collections::hash_map::Entry::Vacant(room) = regions.entry((node, region)) {
                let unusable = || ScanError::Unusable { path: PATH.name, why: Why::NotMapped { node, region } };
                room.insert(reader.endpoint.mapped(node, region).ok_or_else(unusable)?);
            }
        }
        Ok(Self { regions, chunks })
    }

    fn open(&self, stage: &Stage<'_>, segment: usize, columns: &[usize]) -> Result<Vec<Chunk<'_>>, ScanError> {
        let open = |(column, chunk): (&usize, &FarChunk)| {
            let memory = &self.regions[&(chunk.at.node(), chunk.at.region())];
            // SAFETY: the stage has asked the reader's pin whether it keeps this chunk, and the reader holds the pin until the scan ends,
            // which is after these chunks: they borrow from `self`, which lives in the scan. So no thread writes to these bytes, and
            // the region keeps its length.
            let bytes = unsafe { memory.immutable(chunk.at.offset(), chunk.bytes as usize)? };
            stage.open(segment, *column, bytes)
        };
        columns.iter().zip(&self.chunks).map(open).collect()
    }
}
