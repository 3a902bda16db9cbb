//! The steps that all paths share once they can read the chunks of a segment: find the rows that pass, and call the sink.

use std::ops::ControlFlow;

use farhold_store::column::{BLOCK_ROWS, CHUNK_ROWS_MAX, Chunk};

use super::aggregate::aggregate;
use super::{Counters, FarChunk, Found, Pinned, Scan, ScanError, Sink, Values, Wanted};
use crate::columns::ColumnFilter;
use crate::kernels::Bits;
use crate::predicate::Predicate;

/// A scan, with the columns that it reads.
pub(super) struct Stage<'a> {
    pub(super) scan: &'a Scan<'a>,
    pinned: &'a dyn Pinned,
    /// Columns that the sink needs: each once, in order.
    pub(super) wanted: Vec<usize>,
    /// Columns that are read of every segment: those of the predicate or, if every row passes, the wanted ones.
    pub(super) first: Vec<usize>,
    /// The wanted ones that are not among the first.
    pub(super) late: Vec<usize>,
    /// Whether the predicate has conditions.
    pub(super) is_filtered: bool,
}

fn is_filtered(predicate: &Predicate) -> bool {
    !predicate.conditions().is_empty()
}

/// The columns that every path reads of each segment, and those that it reads only if a row passes.
#[must_use]
pub fn first_and_late(predicate: &Predicate, wanted: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let first = if is_filtered(predicate) { predicate.columns() } else { wanted.to_vec() };
    let late = wanted.iter().copied().filter(|column| !first.contains(column)).collect();
    (first, late)
}

/// The probability that any of so many rows passes.
#[must_use]
pub fn passes(selectivity: f64, rows: usize) -> f64 {
    1.0 - (1.0 - selectivity).powi(i32::try_from(rows).unwrap_or(i32::MAX))
}

/// The bytes that a scan is expected to read, and those of the rows that pass, for the features of a path. A segment is its number of rows, the
/// bytes of its first columns and those of its late ones, which are read whole if any row passes.
#[must_use]
pub fn expected_bytes(selectivity: f64, segments: impl IntoIterator<Item = (usize, f64, f64)>) -> (f64, f64) {
    let (mut bytes, mut result_bytes) = (0.0, 0.0);
    for (rows, first, late) in segments {
        bytes += first + late * passes(selectivity, rows);
        result_bytes += (first + late) * selectivity;
    }
    (bytes, result_bytes)
}

impl<'a> Stage<'a> {
    pub(super) fn new(scan: &'a Scan<'a>, pinned: &'a dyn Pinned) -> Self {
        let mut wanted: Vec<usize> = match scan.wanted {
            Wanted::Columns(columns) => columns.to_vec(),
            Wanted::Aggregates(aggregates) => aggregates.iter().filter_map(|aggregate| aggregate.column()).collect(),
        };
        wanted.sort_unstable();
        wanted.dedup();
        let is_filtered = is_filtered(scan.predicate);
        let (first, late) = first_and_late(scan.predicate, &wanted);
        Self { scan, pinned, wanted, first, late, is_filtered }
    }

    /// The chunks of some columns of a segment.
    pub(super) fn chunks(&self, segment: usize, columns: &[usize]) -> Result<Vec<FarChunk>, ScanError> {
        let of = &self.scan.segments[segment];
        if of.rows > CHUNK_ROWS_MAX {
            return Err(ScanError::Segment { segment, what: "it has more rows than a chunk" });
        }
        if of.chunks.len() != self.scan.schema.columns().len() {
            return Err(ScanError::Segment { segment, what: "it has not a chunk for each column" });
        }
        if !are_within(&of.ended, of.rows) {
            return Err(ScanError::Segment { segment, what: "rows of it have ended that it does not have" });
        }
        let chunks: Vec<FarChunk> = columns.iter().map(|column| of.chunks[*column]).collect();
        if chunks.iter().all(|chunk| self.pinned.covers(*chunk)) {
            Ok(chunks)
        } else {
            Err(ScanError::Segment { segment, what: "the reader's pin does not keep its chunks" })
        }
    }

    pub(super) fn rows(&self, segment: usize) -> usize {
        self.scan.segments[segment].rows
    }

    /// The rows of a segment that no scan returns.
    pub(super) fn ended(&self, segment: usize) -> &'a [Bits] {
        &self.scan.segments[segment].ended
    }

    /// A whole chunk.
    pub(super) fn open<'c>(&self, segment: usize, column: usize, bytes: &'c [u8]) -> Result<Chunk<'c>, ScanError> {
        let data_type = self.scan.schema.columns()[column].data_type;
        Chunk::open_for(data_type, self.rows(segment), bytes).map_err(|source| ScanError::Chunk {
            segment,
            column,
            source,
        })
    }

    /// The predicate, compiled for `rows` rows with these chunks of the [`first`](Self::first) columns.
    pub(super) fn filter<'c>(&self, rows: usize, first: &[Chunk<'c>]) -> ColumnFilter<'c> {
        let mut chunks = vec![None; self.scan.schema.columns().len()];
        for (column, chunk) in self.first.iter().zip(first) {
            chunks[*column] = Some(*chunk);
        }
        ColumnFilter::of_some(self.scan.schema, self.scan.predicate, rows, chunks)
    }

    /// Passes a segment to the sink. `chunk_of`: the chunk of a wanted column.
    pub(super) fn deliver<'c>(
        &self,
        passed: &Passed,
        chunk_of: &dyn Fn(usize) -> Chunk<'c>,
        sink: &mut Sink<'_>,
        counters: &mut Counters,
    ) -> ControlFlow<()> {
        let Passed { segment, rows, passing, ref bits } = *passed;
        let mut found = Found { segment, rows, passing, bits, values: Values::OfAll(&[]) };
        counters.rows_passing += passing as u64;
        match self.scan.wanted {
            Wanted::Columns(columns) => {
                counters.result_bytes += size_of_val(bits.as_slice()) as u64;
                let chunks: Vec<Chunk<'c>> = columns.iter().map(|column| chunk_of(*column)).collect();
                counters.result_bytes += chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
                found.values = Values::OfAll(&chunks);
                sink(&found)
            }
            Wanted::Aggregates(aggregates) => {
                let values: Vec<_> =
                    aggregates.iter().map(|of| aggregate(*of, self.scan.schema, passed, chunk_of)).collect();
                counters.result_bytes += values.iter().map(super::Value::bytes).sum::<u64>();
                (found.bits, found.values) = (&[], Values::Aggregates(&values));
                sink(&found)
            }
        }
    }
}

/// The rows of a segment that pass.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    pub(super) segment: usize,
    pub(super) rows: usize,
    pub(super) passing: usize,
    pub(super) bits: Vec<Bits>,
}

impl Passed {
    /// None yet.
    pub(super) fn none(segment: usize, rows: usize) -> Self {
        Self { segment, rows, passing: 0, bits: Vec::with_capacity(rows.div_ceil(BLOCK_ROWS)) }
    }

    /// Adds the next `blocks` blocks of rows of a filter, from block `from` of it on. `ended`: rows of the segment that no scan returns.
    pub(super) fn select(&mut self, filter: &ColumnFilter<'_>, from: usize, blocks: usize, ended: &[Bits]) {
        let is_nothing = filter.is_nothing();
        for block in from..from + blocks {
            let mut bits = [0; BLOCK_ROWS / 64];
            if !is_nothing {
                filter.select(block, &mut bits);
                // The filter of a part of a segment counts blocks from the part's start.
                if let Some(ended) = ended.get(self.bits.len()) {
                    bits.iter_mut().zip(ended).for_each(|(bits, ended)| *bits &= !ended);
                }
            }
            self.passing += count(&[bits]);
            self.bits.push(bits);
        }
    }

    /// Of a whole segment.
    pub(super) fn of(segment: usize, rows: usize, filter: &ColumnFilter<'_>, ended: &[Bits]) -> Self {
        let mut passed = Self::none(segment, rows);
        passed.select(filter, 0, rows.div_ceil(BLOCK_ROWS), ended);
        passed
    }
}

/// Whether no bit is set for a row beyond these.
fn are_within(bits: &[Bits], rows: usize) -> bool {
    let last = bits.get(rows / BLOCK_ROWS).into_iter().flatten().enumerate();
    let beyond = |(word, bits): (usize, &u64)| {
        let rows = (rows % BLOCK_ROWS).saturating_sub(word * 64).min(64);
        bits.checked_shr(rows as u32).unwrap_or(0)
    };
    bits.len() <= rows.div_ceil(BLOCK_ROWS) && last.map(beyond).all(|beyond| beyond == 0)
}

/// The number of bits that are set.
pub(super) fn count(bits: &[Bits]) -> usize {
    bits.iter().flatten().map(|word| word.count_ones() as usize).sum()
}

/// The rows whose bits are set, in order.
pub(super) fn rows_of(bits: &[Bits]) -> impl Iterator<Item = usize> {
    bits.iter().flatten().enumerate().flat_map(|(word, bits)| {
        let mut left = *bits;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(word * 64 + bit)
        })
    })
}
