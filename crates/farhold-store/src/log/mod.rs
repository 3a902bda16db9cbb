//! The commit log: rings of records in a region, one ring for each worker of each node that writes here.
//!
//! ```text
//!  +0     magic │ version │ node │ nodes │ rings a node │ bytes a ring │ cluster
//!  +4096  ring (node 0, worker 0), ring (node 0, worker 1), ... ring (node 1, worker 0), ...
//!
//!  a ring:   +0 applied    how far its reader has come (written by the reader, read by the writer)
//!            +64 records, each a whole number of 64-byte granules, never across the end
//! ```
//!
//! A ring has one writer, somewhere in the cluster, and one reader, on the node of the ring. The writer writes a [record] in two
//! steps, the body and then the [mark](record::mark_of). The reader takes records in order, each when it is marked. Positions
//! (`lsn`) count bytes since the ring was made and never come back, so a record of the last lap is not mistaken for one of this
//! lap.
//!
//! Invariants: the writer is never more than a ring ahead of both what is applied and what is finished ([`RingWriter`]), so no
//! record that may still be needed is overwritten. [`RingReader::left_behind`] finds what a dead writer has left, also behind a
//! hole.

pub mod patch;
pub mod record;
mod ring;

pub use record::{Change, Entry, LogError, Record, RecordWriter, Records};
pub use ring::{LogRegion, Place, RingLayout, RingReader, RingWriter};

/// What a record is a whole number of.
pub const GRANULE: u64 = 64;
