//! Loads from memory that is mapped in this process: nothing is copied. The processor waits for each cache line of the segments, unless its prefetching hides
//! the wait. Over `shm` all regions are mapped; over `libfabric` and in the simulation, only a node's own.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    regions(reader, scan).err()
}

/// The regions of a scan. They stay mapped as long as they are held.
type Regions = HashMap<(NodeId, RegionId), Arc<RegionMemory>>;

fn regions(reader: &Reader<'_>, scan: &Scan<'_>) -> Result<Regions, Why> {
    let mut regions = Regions::new();
    // One look-up per region: consecutive segments are mostly in the same one.
    let mut seen = None;
    let chunks = scan.segments.iter().flat_map(|segment| &segment.chunks);
    for (node, region) in chunks.map(|chunk| (chunk.at.node(), chunk.at.region())) {
        if seen.replace((node, region)) == Some((node, region)) {
            continue;
        }
        if let Entry::Vacant(room) = regions.entry((node, region)) {
            room.insert(reader.endpoint.mapped(node, region).ok_or(Why::NotMapped { node, region })?);
        }
    }
    Ok(regions)
}

async fn run(reader: &Reader<'_>, scan: &Scan<'_>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let stage = Stage::new(scan, reader.pinned);
    let mut counters = Counters::default();
    // Once, before the sink has received anything: a region may be unmapped later, when it is too late to take another path.
    let regions = regions(reader, scan).map_err(|why| ScanError::Unusable { path: PATH.name, why })?;
    for segment in 0..scan.segments.len() {
        let rows = stage.rows(segment);
        counters.rows += rows as u64;
        let first = open(&regions, &stage, segment, &stage.first)?;
        let passed = Passed::of(segment, rows, &stage.filter(rows, &first), stage.ended(segment));
        counters.bytes_moved += bytes_of(&first);
        if passed.passing > 0 {
            let wanted = open(&regions, &stage, segment, &stage.wanted)?;
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

/// Chunks of a segment in mapped memory.
fn open<'r>(
    regions: &'r Regions,
    stage: &Stage<'_>,
    segment: usize,
    columns: &[usize],
) -> Result<Vec<Chunk<'r>>, ScanError> {
    let chunks = stage.chunks(segment, columns)?;
    let open = |(column, chunk): (&usize, &FarChunk)| {
        let memory = regions
            .get(&(chunk.at.node(), chunk.at.region()))
            .ok_or(ScanError::Segment { segment, what: "its region was not mapped when the scan began" })?;
        // SAFETY: the stage has asked the reader's pin whether it keeps this chunk, and the reader holds the pin until the scan ends,
        // which is after these chunks: they borrow from the scan's regions. So no thread writes to these bytes, and the region keeps
        // its length.
        let bytes = unsafe { memory.immutable(chunk.at.offset(), chunk.bytes as usize)? };
        stage.open(segment, *column, bytes)
    };
    columns.iter().zip(&chunks).map(open).collect()
}
