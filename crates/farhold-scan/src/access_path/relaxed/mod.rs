//! Bulk reads of whole segments, one-sided: without versions, and without the home node's agent where the NIC can read.
//!
//! The reads rely on two things, and on nothing else:
//! - *The bytes do not change.* A segment is written once, before its address is published. No read is therefore torn, whatever the order in which a NIC reads,
//!   and no read needs validation.
//! - *The bytes are not freed.* The owner of the memory must prove this: the reader took a pin before it learned the address; the owner frees a segment only
//!   when there is no pin of an epoch in which the segment was visible; and the pins of an expelled node are dropped only after the node has been fenced. The
//!   reader holds its pin as [`Pinned`](super::Pinned), which covers each chunk that it reads.
//!
//! Dreseler et al. ("Adaptive Access Path Selection for Hardware-Accelerated DRAM Loads", section 6) read without coherence in this way, and observed wrong
//! results. They suspect stale buffers of their copy engine. Here a read by a NIC or a processor is coherent with the write that made the segment, because that
//! write ended before the address was published. Over libfabric each read first asks the agent for the region's key, which the NIC needs: some bytes.

use super::copies::{Copies, Filled, Reads};
use super::stage::{Passed, Stage};
use super::{AccessPath, Counters, Reader, Scan, ScanError, Scanning, Sink};

pub(super) const PATH: AccessPath = AccessPath {
    name: "relaxed",
    about: "one-sided bulk reads of whole segments, which never change",
    unusable: |_, _| None,
    scan: |reader, scan, sink| -> Scanning<'_> { Box::pin(run(reader, scan, sink)) },
};

async fn run(reader: &Reader<'_>, scan: &Scan<'_>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let stage = Stage::new(scan, reader.pinned);
    let mut counters = Counters::default();
    let mut copies = Copies::new(reader, Reads::Immutable);
    for segment in 0..scan.segments.len() {
        let rows = stage.rows(segment);
        counters.rows += rows as u64;
        let first = copies.read(&stage.chunks(segment, &stage.first)?, &mut counters).await?;
        let chunks = open(&stage, segment, &stage.first, &first)?;
        let passed = Passed::of(segment, rows, &stage.filter(rows, &chunks), stage.ended(segment));
        if passed.passing > 0 {
            let late = copies.read(&stage.chunks(segment, &stage.late)?, &mut counters).await?;
            let late_chunks = open(&stage, segment, &stage.late, &late)?;
            let chunk_of = |column: usize| match stage.late.binary_search(&column) {
                Ok(at) => late_chunks[at],
                Err(_) => chunks[stage.first.binary_search(&column).expect("a column that was read")],
            };
            let flow = stage.deliver(&passed, &chunk_of, sink, &mut counters);
            copies.recycle(late);
            if flow.is_break() {
                break;
            }
        }
        copies.recycle(first);
        reader.endpoint.handle().yield_now().await;
    }
    Ok(counters)
}

/// The whole chunks of some columns.
fn open<'c>(
    stage: &Stage<'_>,
    segment: usize,
    columns: &[usize],
    filled: &'c Filled,
) -> Result<Vec<farhold_store::column::Chunk<'c>>, ScanError> {
    columns.iter().enumerate().map(|(n, column)| stage.open(segment, *column, filled.piece(n))).collect()
}
