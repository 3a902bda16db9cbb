//! Tables as DataFusion sees them: rows decoded to Arrow, filters decided on the row's bytes.
//!
//! ```text
//!   Snapshot ─► page tasks ─► partitions ─► per row: filter on bytes ─► wanted columns to Arrow ─► batches
//!   Txn ──────► rows of a key range ──────► the same filter and decoder ──► batches, kept for the plan (Gathered)
//! ```

mod decode;
mod exec;
mod filter;
mod provider;
mod sample;

pub(crate) use decode::BatchDecoder;
pub(crate) use exec::is_same_scan;
pub(crate) use filter::ScanFilter;
pub(crate) use provider::{FarTable, Gathered, QueryInput, RowSource, ScanKey, scan_key};
pub(crate) use sample::SampleCache;
