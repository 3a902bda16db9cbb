//! The table provider for DataFusion: rows or columns decoded to Arrow, filtered before decoding.
//!
//! ```text
//!   Snapshot ─┬► page tasks ─► partitions ─► per row: filter on bytes ─► wanted columns to Arrow ─► batches
//!             ├► column segments ─► partitions ─► per block: filter on codes ─► the same columns of the rows that pass
//!             └► those of other nodes ─► access path (paths) ─► what passes (far) ─► the same
//!                                     └► aggregates without groups: computed there (aggregates) ─► partial states
//!   joins above: the keys of their build sides ──► one more filter, once they are known; bits of them ──► keys
//!   Txn ──────► rows of a key range ──────► the same filter and decoder ──► batches, kept for the plan (Gathered)
//! ```

mod access;
mod aggregates;
mod bounds;
mod decode;
mod exec;
mod far;
mod filter;
mod keys;
mod paths;
mod provider;
mod runtime;
mod sample;

pub(crate) use aggregates::at_homes;
pub(crate) use bounds::Bounds;
pub(crate) use decode::BatchDecoder;
pub(crate) use exec::{SnapshotScan, filtered_scan, is_same_scan, tests_keys};
pub(crate) use filter::ScanFilter;
pub(crate) use paths::Paths;
pub(crate) use provider::{FarTable, Gathered, PathsOf, QueryInput, RowSource, ScanKey, TableAt, scan_key};
pub(crate) use sample::SampleCache;

/// Rows per batch.
pub(crate) const BATCH_ROWS: usize = 8192;
