//! How a scan reads column chunks that lie in the memory of another node.
//!
//! ```text
//!   Scan: segments, predicate, wanted ──> path ──> sink: what passes of a segment, segment by segment
//!                                          │
//!     direct     loads, where the memory is mapped        offload   copies of the next blocks while one is scanned
//!     pushdown   the home node's agent scans              relaxed   bulk reads of whole segments
//! ```
//!
//! What holds for every path:
//! - It gives the same rows as every other one, in the order of the segments: `conformance` compares them with a scan row by row.
//! - It holds a [`Pinned`] while it reads. Chunks never change, so they need no versions; they must only not go away.
//! - Columns of the predicate are read first. Others are read only for segments of which a row passes (late materialisation).
//! - Bytes that are no chunk of their column are an error, never a panic.
//! - A scan that is dropped leaves nothing behind: copies under way are given up, and no buffer of it is written any more.
//!
//! A variant is a folder here and a line in [`ALL`].

mod aggregate;
mod copies;
mod error;
mod stage;

#[cfg(test)]
mod conformance;
mod direct;
mod offload;
pub mod pushdown;
mod relaxed;

pub use aggregate::{Aggregate, Value};
pub use error::{ScanError, Why};
pub use farhold_store::column::copy::FarChunk;
pub use stage::first_and_late;

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;

use farhold_fabric::Endpoint;
use farhold_fabric::mover::Mover;
use farhold_store::column::Chunk;
use farhold_store::row::Schema;

use crate::kernels::Bits;
use crate::model::PathKind;
use crate::predicate::Predicate;

/// An access path, as configuration and documents name it.
#[derive(Debug)]
pub struct AccessPath {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
    /// Why it cannot be used here, as far as can be seen without reading.
    unusable: fn(&Reader<'_>, &Scan<'_>) -> Option<Why>,
    scan: for<'a> fn(&'a Reader<'a>, &'a Scan<'a>, &'a mut Sink<'a>) -> Scanning<'a>,
}

/// All access paths, by name.
pub const ALL: &[AccessPath] = &[direct::PATH, offload::PATH, pushdown::PATH, relaxed::PATH];

/// The path of a name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static AccessPath> {
    ALL.iter().find(|path| path.name == name)
}

/// A scan under way. It does nothing until it is polled, and gives up when it is dropped.
pub type Scanning<'a> = Pin<Box<dyn Future<Output = Result<Counters, ScanError>> + 'a>>;

/// Takes what passes of a segment. It is called once for each segment of which a row passes, in order. `Break` ends the scan.
pub type Sink<'a> = dyn FnMut(&Found<'_>) -> ControlFlow<()> + 'a;

impl AccessPath {
    /// Its place in the model that chooses a path.
    ///
    /// # Panics
    /// Never: the model has all of [`ALL`].
    #[must_use]
    pub fn kind(&self) -> PathKind {
        PathKind::named(self.name).expect("the model has every access path")
    }

    /// Why the path cannot be used for this scan, as far as can be seen without reading: for a caller that chooses a path.
    #[must_use]
    pub fn unusable(&self, reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
        (self.unusable)(reader, scan)
    }

    /// Scans. What it calls the sink with is the same for each path, except for the form of the values ([`Values`]).
    ///
    /// # Errors
    /// [`ScanError::Unusable`]: take another path; the sink has had nothing. Others are of the data or the fabric, and come with any
    /// path. The sink has then had some of the first segments, perhaps none: a path may notice the error of a segment before the
    /// sink has had the segments in front of it.
    ///
    /// # Panics
    /// If the scan does not fit its schema ([`Scan::check`]).
    pub fn scan<'a>(&self, reader: &'a Reader<'a>, scan: &'a Scan<'a>, sink: &'a mut Sink<'a>) -> Scanning<'a> {
        scan.check();
        match self.unusable(reader, scan) {
            Some(why) => {
                let path = self.name;
                Box::pin(std::future::ready(Err(ScanError::Unusable { path, why })))
            }
            None => (self.scan)(reader, scan, sink),
        }
    }
}

/// Some rows as far chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarSegment {
    /// How many rows; at most [`CHUNK_ROWS_MAX`](farhold_store::column::CHUNK_ROWS_MAX).
    pub rows: usize,
    /// A chunk a column, in the order of the schema.
    pub chunks: Vec<FarChunk>,
    /// Rows that pass no scan, because they have ended: a bit a row, a word array a block. Blocks that it lacks have none.
    pub ended: Vec<Bits>,
}

/// Keeps chunks as they are while a scan reads them: the pin of an epoch, or the owner of the memory itself.
///
/// # Safety
/// While the value exists, for each chunk that it [covers](Self::covers): no thread of any process writes to its bytes, and its
/// region is neither removed nor made smaller.
///
/// - What it covered once, it covers as long as it exists. A scan asks when it starts to read a chunk, and reads it until it ends.
/// - A pin on another node's memory is bound to that node's incarnation. A node that restarts attaches the same files, so the same
///   pointers lead to memory that its new incarnation may write to: the pin must cover nothing of that, and what it covered must
///   stay as it was until the value is dropped.
pub unsafe trait Pinned {
    /// Whether it keeps this chunk. What it has said yes to, it keeps also if it says no later: a scan that asks then ends with an error.
    fn covers(&self, chunk: FarChunk) -> bool;
}

/// What a scan reads with.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// Of the reading thread.
    pub endpoint: &'a Endpoint,
    /// Keeps the segments.
    pub pinned: &'a dyn Pinned,
    /// Copies mapped memory; [`offload`](ALL) needs it where memory is mapped.
    pub mover: Option<&'a Mover>,
    /// Leads to the agents of home nodes; [`pushdown`] needs it.
    pub line: Option<&'a dyn pushdown::Line>,
    /// What may be tuned.
    pub settings: Settings,
}

/// What may be tuned of the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Of `offload`: bytes of one copy, about. The default is the best of the GRU paper (Dreseler et al., ADMS 2017, figure 6: some
    /// 262,000 on its machine); it is not measured on others.
    pub block_bytes: usize,
    /// Of `offload`: local buffers, of which one is scanned while the others are filled. 2 is the paper's; with 1 nothing overlaps.
    /// As many segments at most wait for columns that are read late, each with a buffer of its own.
    pub buffers: usize,
    /// Of `pushdown`: segments that one request is about at most, up to 256. A scan that is given up costs the agent as many at most.
    pub segments_per_request: usize,
    /// Of `pushdown`: requests under way.
    pub requests: usize,
    /// Of `pushdown`: how long the scan waits for the reply to one request, in all. It bounds what an agent that sends little by
    /// little can cost; the line notices the death of a node earlier. A minute is long for 16 segments on a busy node; it is not
    /// measured.
    pub reply_ns_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { block_bytes: 256 << 10, buffers: 2, segments_per_request: 16, requests: 2, reply_ns_max: 60_000_000_000 }
    }
}

/// What a scan is about.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table's.
    pub schema: &'a Schema,
    /// The rows.
    pub segments: &'a [FarSegment],
    /// Which rows pass.
    pub predicate: &'a Predicate,
    /// What the sink gets of them.
    pub wanted: Wanted<'a>,
}

/// What a sink gets of the rows that pass.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The values of these columns.
    Columns(&'a [usize]),
    /// For each segment, aggregates over its rows that pass.
    Aggregates(&'a [Aggregate]),
}

impl Scan<'_> {
    /// Asserts that its predicate, columns and aggregates are of the table.
    ///
    /// # Panics
    /// If they are not.
    pub fn check(&self) {
        self.predicate.check(self.schema);
        let columns = self.schema.columns();
        match self.wanted {
            Wanted::Columns(wanted) => {
                assert!(wanted.iter().all(|column| *column < columns.len()), "{wanted:?} of {} columns", columns.len());
            }
            Wanted::Aggregates(wanted) => {
                let fits = |aggregate: &Aggregate| aggregate.fits(self.schema);
                assert!(wanted.iter().all(fits), "{wanted:?} of {columns:?}");
            }
        }
    }
}

/// What passes of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// Which one of the scan's segments.
    pub segment: usize,
    /// Its rows.
    pub rows: usize,
    /// How many of them pass: one at least.
    pub passing: usize,
    /// Which ones: a bit a row, a word array a block. Of aggregates nothing: they say all that is wanted.
    pub bits: &'a [Bits],
    /// What is wanted of them.
    pub values: Values<'a>,
}

/// The values of the rows that pass, in the order of [`Wanted`].
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Chunks of all rows of the segment: the value of row `n` is the `n`th.
    OfAll(&'a [Chunk<'a>]),
    /// Chunks of the rows that pass, in order.
    OfPassing(&'a [Chunk<'a>]),
    /// Aggregates of the segment.
    Aggregates(&'a [Value]),
}

impl Found<'_> {
    /// The rows that pass, in order: each with its place in the segment, and its place in the chunks of [`Values`]. None of aggregates.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let is_of_all = matches!(self.values, Values::OfAll(_));
        stage::rows_of(self.bits).enumerate().map(move |(n, row)| (row, if is_of_all { row } else { n }))
    }
}

/// What a scan did, for a model of its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that came from the segments' memory: copied, loaded in place, or as replies.
    pub bytes_moved: u64,
    /// Instructions or requests for them; neighbours that one instruction reads count once.
    pub reads: u64,
    /// Bytes that the sink was given: bits, chunks and aggregates.
    pub result_bytes: u64,
    /// Time in which the scan could only wait for bytes.
    pub waited_ns: u64,
    /// Rows of the segments that were scanned.
    pub rows: u64,
    /// Rows that passed.
    pub rows_passing: u64,
}
