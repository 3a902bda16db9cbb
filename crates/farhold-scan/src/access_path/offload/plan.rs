//! The plan of `offload`: which bytes are copied together.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use farhold_store::column::{BLOCK_ROWS, Outline};

use super::super::copies::Copies;
use super::super::stage::Stage;
use super::super::{Counters, FarChunk, ScanError};

/// The number of segments whose headers are read at a time, and the most whole segments of one copy.
const SEGMENTS_MAX: usize = 64;

/// The contents of one copy.
#[derive(Debug)]
pub(super) enum Block {
    /// The first columns of these segments, whole.
    Segments(Range<usize>),
    /// Some blocks of rows of one segment's first columns: NULL bits, codes and, in the first part, the bytes that all parts share.
    Part { segment: usize, blocks: Range<usize>, outlines: Rc<[Outline]> },
}

impl Block {
    /// The bytes to copy. For a segment, one piece per first column; for a part, the NULL bits, then the codes, then the shared bytes.
    pub(super) fn pieces(&self, stage: &Stage<'_>) -> Result<Vec<FarChunk>, ScanError> {
        match self {
            Self::Segments(segments) => {
                let mut pieces = Vec::new();
                for segment in segments.clone() {
                    pieces.extend(stage.chunks(segment, &stage.first)?);
                }
                Ok(pieces)
            }
            Self::Part { segment, blocks, outlines } => {
                let chunks = stage.chunks(*segment, &stage.first)?;
                let columns = || chunks.iter().zip(&**outlines);
                let nulls = columns().map(|(chunk, outline)| part_of(*chunk, &outline.nulls(blocks.clone())));
                let codes = columns().map(|(chunk, outline)| part_of(*chunk, &outline.codes(blocks.clone())));
                let shared = columns().filter(|_| blocks.start == 0);
                let shared = shared.map(|(chunk, outline)| part_of(*chunk, &outline.shared()));
                Ok(nulls.chain(codes).chain(shared).collect())
            }
        }
    }
}

fn part_of(chunk: FarChunk, bytes: &Range<usize>) -> FarChunk {
    // The outline has been checked to lie in the chunk.
    FarChunk { at: chunk.at.add(bytes.start as u64), bytes: bytes.len() as u32 }
}

/// A segment that is being cut.
struct Parts {
    segment: usize,
    outlines: Rc<[Outline]>,
    /// Blocks of rows that are not in a part yet.
    left: Range<usize>,
    blocks_per_part: usize,
}

/// Cuts the segments of a scan into blocks.
pub(super) struct Planner {
    block_bytes: usize,
    segments: usize,
    /// The first segment that is not in a block yet.
    next: usize,
    /// The rest of the segment that is being cut.
    parts: Option<Parts>,
    /// Headers of segments that will be cut.
    outlines: VecDeque<(usize, Rc<[Outline]>)>,
}

impl Planner {
    pub(super) fn new(segments: usize, block_bytes: usize) -> Self {
        Self { block_bytes, segments, next: 0, parts: None, outlines: VecDeque::new() }
    }

    /// The next block; `None` after the last.
    pub(super) async fn next(
        &mut self,
        stage: &Stage<'_>,
        copies: &mut Copies<'_>,
        counters: &mut Counters,
    ) -> Result<Option<Block>, ScanError> {
        if let Some(block) = self.next_part() {
            return Ok(Some(block));
        }
        if self.next == self.segments {
            return Ok(None);
        }
        if self.is_cut(stage, self.next)? {
            if self.outlines.is_empty() {
                self.read_outlines(stage, copies, counters).await?;
            }
            let (segment, outlines) = self.outlines.pop_front().expect("the headers of the next segment that is cut");
            debug_assert_eq!(segment, self.next);
            let left = 0..stage.rows(segment).div_ceil(BLOCK_ROWS);
            let of_one = |outline: &Outline| outline.nulls(0..1).len() + outline.codes(0..1).len();
            let bytes: usize = outlines.iter().map(of_one).sum();
            let blocks_per_part = (self.block_bytes / bytes.max(1)).max(1);
            self.parts = Some(Parts { segment, outlines, left, blocks_per_part });
            self.next += 1;
            return Ok(self.next_part());
        }
        let (start, mut bytes) = (self.next, 0);
        while self.next < self.segments && self.next - start < SEGMENTS_MAX && !self.is_cut(stage, self.next)? {
            bytes += bytes_of(stage, self.next)?;
            if self.next > start && bytes > self.block_bytes {
                break;
            }
            self.next += 1;
        }
        Ok(Some(Block::Segments(start..self.next)))
    }

    fn next_part(&mut self) -> Option<Block> {
        let Parts { segment, outlines, left, blocks_per_part } = self.parts.as_mut()?;
        let blocks = left.start..(left.start + *blocks_per_part).min(left.end);
        left.start = blocks.end;
        let block = Block::Part { segment: *segment, blocks, outlines: outlines.clone() };
        if left.start == left.end {
            self.parts = None;
        }
        Some(block)
    }

    /// Whether a segment is copied in parts. If every row passes, the sink receives whole chunks, so nothing is cut.
    fn is_cut(&self, stage: &Stage<'_>, segment: usize) -> Result<bool, ScanError> {
        let has_blocks = stage.rows(segment) > BLOCK_ROWS && !stage.first.is_empty();
        Ok(stage.is_filtered && has_blocks && bytes_of(stage, segment)? > self.block_bytes)
    }

    /// Reads the headers of the next segments that will be cut.
    async fn read_outlines(
        &mut self,
        stage: &Stage<'_>,
        copies: &mut Copies<'_>,
        counters: &mut Counters,
    ) -> Result<(), ScanError> {
        let (mut segments, mut pieces) = (Vec::new(), Vec::new());
        for segment in self.next..self.segments {
            if segments.len() == SEGMENTS_MAX {
                break;
            }
            if self.is_cut(stage, segment)? {
                let chunks = stage.chunks(segment, &stage.first)?;
                pieces.extend(
                    chunks.iter().map(|chunk| FarChunk { bytes: chunk.bytes.min(Outline::BYTES as u32), ..*chunk }),
                );
                segments.push((segment, chunks));
            }
        }
        let heads = copies.read(&pieces, counters).await?;
        let mut piece = 0;
        for (segment, chunks) in segments {
            let open = |(column, chunk): (&usize, &FarChunk)| {
                let data_type = stage.scan.schema.columns()[*column].data_type;
                let head = heads.piece(piece);
                piece += 1;
                Outline::open_for(data_type, stage.rows(segment), chunk.bytes as usize, head)
                    .map_err(|source| ScanError::Chunk { segment, column: *column, source })
            };
            let outlines = stage.first.iter().zip(&chunks).map(open).collect::<Result<Vec<_>, _>>()?;
            self.outlines.push_back((segment, outlines.into()));
        }
        copies.recycle(heads);
        Ok(())
    }
}

fn bytes_of(stage: &Stage<'_>, segment: usize) -> Result<usize, ScanError> {
    Ok(stage.chunks(segment, &stage.first)?.iter().map(|chunk| chunk.bytes as usize).sum())
}
