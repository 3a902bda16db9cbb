//! Copies of the next blocks of far columns, while a local block is scanned.
//!
//! ```text
//!   far      │ block 0 │ block 1 │ block 2 │ ...          a block: some whole segments, or some rows of one
//!                 │copy     │copy     │copy
//!   buffers      [0] scan  [1]       [0] ...              with `buffers` = 2, as in the GRU paper's listing 1
//! ```
//!
//! The order is that of Dreseler et al. (ADMS 2017): start the copy of the next block, wait for the current one, scan it. `buffers` generalises it: one block
//! is scanned, and all others are being copied.
//! - A block ends between two segments, or between two blocks of 1,024 rows of one segment. No value is therefore split. The last block may be shorter.
//! - A segment whose first columns are longer than `block_bytes` is copied in parts. Its headers are read first, those of many segments at a time. The
//!   dictionary is part of the first part, which is longer by it.
//! - Late columns, and columns of a segment in parts that the sink wants, are read whole once a row passes. This read runs while the next blocks are scanned.
//!   Up to `buffers` segments wait for such reads, and keep the bytes of their blocks meanwhile. The scan therefore holds at most three times `buffers` copies:
//!   blocks, late columns, and blocks of waiting segments.
//! - Between blocks of rows the scan polls the copies, because some providers copy only while they are polled.

mod plan;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;

use farhold_store::column::{BLOCK_ROWS, Chunk, Outline};

use self::plan::{Block, Planner};
use super::copies::{Copies, Filled, Reads, Running};
use super::stage::{Passed, Stage};
use super::{AccessPath, Counters, Reader, Scan, ScanError, Scanning, Sink, Why};

pub(super) const PATH: AccessPath = AccessPath {
    name: "offload",
    about: "asynchronous copies of the next blocks, while one is scanned",
    unusable,
    scan: |reader, scan, sink| -> Scanning<'_> { Box::pin(run(reader, scan, sink)) },
};

/// Blocks of rows that are scanned between two polls of the copies: some 20 µs.
const BLOCKS_PER_PROGRESS: usize = 64;

fn unusable(reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
    if reader.mover.is_some() || reader.endpoint.handle().is_virtual() {
        return None;
    }
    let chunk = scan.segments.iter().flat_map(|segment| &segment.chunks).next()?;
    let (node, region) = (chunk.at.node(), chunk.at.region());
    reader.endpoint.mapped(node, region).map(|_| Why::NoMover { node, region })
}

/// A segment with passing rows that waits for its other columns.
struct Late<'a> {
    passed: Passed,
    /// The first columns, if they were copied whole, and their first piece.
    first: Option<(Rc<Filled>, usize)>,
    /// The columns that are being read.
    columns: Vec<usize>,
    running: Running<'a>,
}

struct Offload<'a> {
    stage: Stage<'a>,
    copies: Copies<'a>,
    counters: Counters,
    ahead: VecDeque<(Block, Running<'a>)>,
    late: VecDeque<Late<'a>>,
    /// For the segment that is scanned in parts: the rows that have passed so far, and the bytes that its parts share, of each first column.
    parts: Option<(Passed, Vec<Vec<u8>>)>,
}

async fn run<'a>(reader: &'a Reader<'a>, scan: &'a Scan<'a>, sink: &mut Sink<'_>) -> Result<Counters, ScanError> {
    let mut offload = Offload {
        stage: Stage::new(scan, reader.pinned),
        copies: Copies::new(reader, Reads::Moved),
        counters: Counters::default(),
        ahead: VecDeque::new(),
        late: VecDeque::new(),
        parts: None,
    };
    let mut planner = Planner::new(scan.segments.len(), reader.settings.block_bytes);
    let buffers = reader.settings.buffers.max(1);
    loop {
        while offload.ahead.len() < buffers {
            let Some(block) = planner.next(&offload.stage, &mut offload.copies, &mut offload.counters).await? else {
                break;
            };
            let pieces = block.pieces(&offload.stage)?;
            let running = offload.copies.start(&pieces, &mut offload.counters).await?;
            offload.ahead.push_back((block, running));
        }
        let Some((block, running)) = offload.ahead.pop_front() else { break };
        let filled = offload.copies.finish(running, &mut offload.counters).await?;
        if offload.scan_block(&block, filled, buffers, sink).await?.is_break() {
            return Ok(offload.counters);
        }
        while offload.late.front().is_some_and(|late| late.running.is_over()) {
            if offload.deliver(sink).await?.is_break() {
                return Ok(offload.counters);
            }
        }
        reader.endpoint.handle().yield_now().await;
    }
    while !offload.late.is_empty() {
        if offload.deliver(sink).await?.is_break() {
            break;
        }
    }
    Ok(offload.counters)
}

impl Offload<'_> {
    /// Scans a block. If there is no room for waiting segments, the oldest ones are passed to the sink.
    async fn scan_block(
        &mut self,
        block: &Block,
        filled: Filled,
        late_max: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ControlFlow<()>, ScanError> {
        match block {
            Block::Segments(segments) => {
                let filled = Rc::new(filled);
                let mut piece = 0;
                for segment in segments.clone() {
                    let passed = self.scan_whole(segment, &filled, piece).await?;
                    if passed.passing > 0 {
                        if self.make_room(late_max, sink).await?.is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                        let columns = self.stage.late.clone();
                        self.read_late(passed, Some((filled.clone(), piece)), columns).await?;
                    }
                    piece += self.stage.first.len();
                }
                self.recycle(filled);
            }
            Block::Part { segment, blocks, outlines } => {
                self.scan_part(*segment, blocks.clone(), outlines, &filled).await?;
                self.copies.recycle(filled);
                let is_last = blocks.end == self.stage.rows(*segment).div_ceil(BLOCK_ROWS);
                if is_last
                    && let Some((passed, _)) = self.parts.take()
                    && passed.passing > 0
                {
                    if self.make_room(late_max, sink).await?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                    let columns = self.stage.wanted.clone();
                    self.read_late(passed, None, columns).await?;
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Passes segments to the sink until fewer than `late_max` wait for their columns.
    async fn make_room(&mut self, late_max: usize, sink: &mut Sink<'_>) -> Result<ControlFlow<()>, ScanError> {
        while self.late.len() >= late_max {
            if self.deliver(sink).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    async fn scan_whole(&mut self, segment: usize, filled: &Filled, piece: usize) -> Result<Passed, ScanError> {
        let rows = self.stage.rows(segment);
        self.counters.rows += rows as u64;
        let open = |(n, column): (usize, &usize)| self.stage.open(segment, *column, filled.piece(piece + n));
        let chunks: Vec<Chunk<'_>> = self.stage.first.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let filter = self.stage.filter(rows, &chunks);
        let mut passed = Passed::none(segment, rows);
        for from in (0..rows.div_ceil(BLOCK_ROWS)).step_by(BLOCKS_PER_PROGRESS) {
            let blocks = BLOCKS_PER_PROGRESS.min(rows.div_ceil(BLOCK_ROWS) - from);
            passed.select(&filter, from, blocks, self.stage.ended(segment));
            progress(&mut self.ahead, &mut self.late).await?;
        }
        Ok(passed)
    }

    async fn scan_part(
        &mut self,
        segment: usize,
        blocks: std::ops::Range<usize>,
        outlines: &[Outline],
        filled: &Filled,
    ) -> Result<(), ScanError> {
        let columns = outlines.len();
        let (mut passed, shared) = self.parts.take().unwrap_or_else(|| {
            let shared = (0..columns).map(|n| filled.piece(2 * columns + n).to_vec()).collect();
            (Passed::none(segment, self.stage.rows(segment)), shared)
        });
        let open = |(n, outline): (usize, &Outline)| {
            outline
                .part(blocks.clone(), filled.piece(n), filled.piece(columns + n), &shared[n])
                .map_err(|source| ScanError::Chunk { segment, column: self.stage.first[n], source })
        };
        let chunks: Vec<Chunk<'_>> = outlines.iter().enumerate().map(open).collect::<Result<_, _>>()?;
        let rows = chunks.first().map_or(0, Chunk::rows);
        self.counters.rows += rows as u64;
        let filter = self.stage.filter(rows, &chunks);
        for from in (0..blocks.len()).step_by(BLOCKS_PER_PROGRESS) {
            let count = BLOCKS_PER_PROGRESS.min(blocks.len() - from);
            passed.select(&filter, from, count, self.stage.ended(segment));
            progress(&mut self.ahead, &mut self.late).await?;
        }
        self.parts = Some((passed, shared));
        Ok(())
    }

    /// Starts to read the columns that a segment still lacks.
    async fn read_late(
        &mut self,
        passed: Passed,
        first: Option<(Rc<Filled>, usize)>,
        columns: Vec<usize>,
    ) -> Result<(), ScanError> {
        let pieces = self.stage.chunks(passed.segment, &columns)?;
        let running = self.copies.start(&pieces, &mut self.counters).await?;
        self.late.push_back(Late { passed, first, columns, running });
        Ok(())
    }

    /// Passes the segment that has waited longest to the sink.
    async fn deliver(&mut self, sink: &mut Sink<'_>) -> Result<ControlFlow<()>, ScanError> {
        let Some(late) = self.late.pop_front() else { return Ok(ControlFlow::Continue(())) };
        let segment = late.passed.segment;
        let filled = self.copies.finish(late.running, &mut self.counters).await?;
        let wanted = self.stage.wanted.iter().map(|column| {
            let bytes = match (late.columns.binary_search(column), &late.first) {
                (Ok(at), _) => filled.piece(at),
                (Err(_), Some((first, piece))) => {
                    first.piece(piece + self.stage.first.binary_search(column).expect("a column that was read"))
                }
                (Err(_), None) => unreachable!("a segment in parts reads every wanted column"),
            };
            self.stage.open(segment, *column, bytes)
        });
        let chunks: Vec<Chunk<'_>> = wanted.collect::<Result<_, _>>()?;
        let chunk_of = |column: usize| chunks[self.stage.wanted.binary_search(&column).expect("a wanted column")];
        let flow = self.stage.deliver(&late.passed, &chunk_of, sink, &mut self.counters);
        self.copies.recycle(filled);
        if let Some((first, _)) = late.first {
            self.recycle(first);
        }
        Ok(flow)
    }

    /// Takes a buffer back from its last user.
    fn recycle(&mut self, filled: Rc<Filled>) {
        if let Ok(filled) = Rc::try_unwrap(filled) {
            self.copies.recycle(filled);
        }
    }
}

/// Lets all running copies make progress.
async fn progress(ahead: &mut VecDeque<(Block, Running<'_>)>, late: &mut VecDeque<Late<'_>>) -> Result<(), ScanError> {
    for (_, running) in ahead {
        running.progress().await?;
    }
    for late in late {
        late.running.progress().await?;
    }
    Ok(())
}
