//! How a scan reads column chunks in the memory of another node.
//!
//! ```text
//!   Scan: segments, predicate, wanted ──> path ──> sink: what passes of a segment, segment by segment
//!                                          │
//!     direct     loads, where the memory is mapped        offload   copies of the next blocks while one is scanned
//!     pushdown   the home node's agent scans              relaxed   bulk reads of whole segments
//! ```
//! Invariants of every path:
//! - It gives the same rows as every other path, in the order of the segments: `conformance` compares it with a scan row by row.
//! - It holds a [`Pinned`] while it reads. Chunks never change, so they need no versions; they must only not be freed.
//! - Columns of the predicate are read first. Others are read only for segments of which a row passes (late materialisation).
//! - Bytes that are not a chunk of their column are an error, never a panic.
//! - A dropped scan leaves nothing behind: its copies are cancelled, and its buffers are no longer written.
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
pub use stage::{expected_bytes, first_and_late, passes};

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
    /// Its description, in one line.
    pub about: &'static str,
    /// The reason why it cannot be used here, as far as this is known without reading.
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

/// A running scan. It does nothing until it is polled, and is cancelled when it is dropped.
pub type Scanning<'a> = Pin<Box<dyn Future<Output = Result<Counters, ScanError>> + 'a>>;

/// Receives the passing rows of a segment. It is called once for each segment in which a row passes, in order. `Break` ends the scan.
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

    /// The reason why the path cannot be used for this scan, as far as this is known without reading: for a caller that chooses a path.
    #[must_use]
    pub fn unusable(&self, reader: &Reader<'_>, scan: &Scan<'_>) -> Option<Why> {
        (self.unusable)(reader, scan)
    }

    /// Scans. Each path passes the same to the sink, except for the form of the values ([`Values`]).
    ///
    /// # Errors
    /// [`ScanError::Unusable`]: take another path; the sink has received nothing. Other errors are of the data or the fabric, and occur on any path. The sink
    /// has then received some of the first segments, perhaps none: a path may notice the error of a segment before the sink has received the segments in front
    /// of it.
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
    /// One chunk per column, in the order of the schema.
    pub chunks: Vec<FarChunk>,
    /// Rows that no scan returns, because they have ended: one bit per row, one array of words per block. Missing blocks have none.
    pub ended: Vec<Bits>,
}

/// Keeps chunks as they are while a scan reads them: the pin of an epoch, or the owner of the memory itself.
///
/// # Safety
/// While the value exists, for each chunk that it [covers](Self::covers): no thread of any process writes to its bytes, and its
/// region is neither removed nor made smaller.
/// - A chunk that it covered once stays covered as long as the value exists. A scan asks when it starts to read a chunk, and may read it until the scan ends.
/// - A pin on another node's memory is bound to that node's incarnation. A node that restarts attaches the same files, so the same
///   pointers lead to memory that its new incarnation may write to: the pin must cover nothing of that, and what it covered must
///   stay as it was until the value is dropped.
pub unsafe trait Pinned {
    /// Whether it keeps this chunk. It goes on to keep a chunk for which it has returned true, even if it returns false later: a scan that asks later ends with
    /// an error.
    fn covers(&self, chunk: FarChunk) -> bool;
}

/// The resources with which a scan reads.
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

/// Tunable values of the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// For `offload`: the approximate bytes of one copy. The default is the best value of the GRU paper (Dreseler et al., ADMS 2017, figure 6: some 262,000 on
    /// its machine); it is not measured on others.
    pub block_bytes: usize,
    /// For `offload`: the number of local buffers, of which one is scanned while the others are filled. The paper uses 2; with 1 nothing overlaps. At most the
    /// same number of segments wait for columns that are read late, each with a buffer of its own.
    pub buffers: usize,
    /// For `pushdown`: the most segments of one request, up to 256. An abandoned scan costs the agent at most this number of segments.
    pub segments_per_request: usize,
    /// For `pushdown`: the number of requests in flight.
    pub requests: usize,
    /// For `pushdown`: the total time for which the scan waits for the reply to one request. It bounds the delay by an agent that sends very slowly; the line
    /// notices the death of a node earlier. A minute is long for 16 segments on a busy node; it is not measured.
    pub reply_ns_max: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { block_bytes: 256 << 10, buffers: 2, segments_per_request: 16, requests: 2, reply_ns_max: 60_000_000_000 }
    }
}

/// The definition of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The table's.
    pub schema: &'a Schema,
    /// The rows.
    pub segments: &'a [FarSegment],
    /// Which rows pass.
    pub predicate: &'a Predicate,
    /// What the sink receives of them.
    pub wanted: Wanted<'a>,
}

/// What a sink receives of the rows that pass.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// The values of these columns.
    Columns(&'a [usize]),
    /// For each segment, aggregates over its rows that pass.
    Aggregates(&'a [Aggregate]),
}

impl Scan<'_> {
    /// Asserts that its predicate, columns and aggregates belong to the table.
    ///
    /// # Panics
    /// If they do not.
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

/// The rows of a segment that pass.
#[derive(Clone, Copy, Debug)]
pub struct Found<'a> {
    /// The index of the segment in the scan.
    pub segment: usize,
    /// Its rows.
    pub rows: usize,
    /// The number of rows that pass: at least one.
    pub passing: usize,
    /// The rows that pass: one bit per row, one array of words per block. Empty for aggregates, which contain all that is wanted.
    pub bits: &'a [Bits],
    /// The wanted values or aggregates of these rows.
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
    /// The rows that pass, in order: each with its place in the segment, and its place in the chunks of [`Values`]. Empty for aggregates.
    pub fn places(&self) -> impl Iterator<Item = (usize, usize)> {
        let is_of_all = matches!(self.values, Values::OfAll(_));
        stage::rows_of(self.bits).enumerate().map(move |(n, row)| (row, if is_of_all { row } else { n }))
    }
}

/// The work of a scan, for a model of its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes read from the segments' memory: copied, loaded in place, or received in replies.
    pub bytes_moved: u64,
    /// Instructions or requests for them; neighbours that one instruction reads count once.
    pub reads: u64,
    /// Bytes passed to the sink: bits, chunks and aggregates.
    pub result_bytes: u64,
    /// Time in which the scan could only wait for bytes.
    pub waited_ns: u64,
    /// Rows of the segments that were scanned.
    pub rows: u64,
    /// Rows that passed.
    pub rows_passing: u64,
}
