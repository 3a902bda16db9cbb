//! A node's journal: batches of records, in segments of one length.
//!
//! ```text
//!  segment   +0    magic │ version │ cluster │ node │ nodes │ start │ number │ segment bytes │ checksum
//!            +512  mark: all before this position was durable │ checksum       written after the batches before it are
//!            +4096 batches
//!  batch     +0    size u32, magic u32 │ lsn │ lsn of the batch before │ closed u32, epoch max u32 │ configuration
//!                  │ start u32, number u32 │ body checksum │ checksum of this header
//!            +64   items: records (`log/record.rs`) and page events, each a multiple of 64 bytes
//!            end   size u32, magic u32
//! ```
//!
//! A batch is written and synced before the next one is written. So there are two kinds of bytes that are no batch. The first
//! kind lies behind the last batch: a power cut may have left it half written, and it was never acknowledged. The second kind is
//! damage: it lies before the mark, or has a whole batch behind it, or a later segment says that it was whole. The first kind is
//! the end of the journal; the second is refused.

mod follow;
mod item;
mod read;
mod segment;
#[cfg(test)]
mod tests;
mod write;

pub use follow::Follower;
pub(crate) use item::push_event;
pub use item::{Item, Standing, items};
pub(super) use read::has_standing;
pub use read::{Found, Visit, first_closed, last, read_segment, segment_bytes, settle};
pub(super) use segment::segment_name;
pub use segment::{SEGMENT_BYTES_MIN, Segment, Shape, segments};
pub use write::Journal;

const MAGIC: u64 = u64::from_le_bytes(*b"FARHJRN1");
const VERSION: u64 = 1;
const BATCH: u32 = u32::from_le_bytes(*b"FBAT");
const TAIL: u32 = u32::from_le_bytes(*b"TABF");
const HEADER_BYTES: u64 = 4096;
const MARK_AT: u64 = 512;
const BATCH_HEADER: usize = 64;
const GRANULE: usize = 64;

/// What closes a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// All records of this node up to this epoch are in this batch or before.
    pub closed: u32,
    /// The latest epoch of a record in it.
    pub epoch_max: u32,
    /// The configuration that the node is in.
    pub configuration: u64,
}

impl Closing {
    /// As the words of a batch's header have it.
    const fn of(words: &[u64; 7]) -> Self {
        Self { closed: words[3] as u32, epoch_max: (words[3] >> 32) as u32, configuration: words[4] }
    }
}
