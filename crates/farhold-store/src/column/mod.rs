//! Columns: the values of one column of up to 65,536 rows, as bytes that never change.
//!
//! ```text
//!   chunk:  header │ nulls: a bit a row │ dictionary: offsets, entries │ codes, packed in blocks of 1,024 │
//! frame value = first + code integers, and types with the order of integers
//!   dictionary  value = entries[code], entries in order      few different values
//!   plain       one entry a row, in the order of the rows    texts with many different values; wide decimals
//! ```
//!
//! Invariants:
//! - Codes have the order of their values (not in `plain`). A comparison with a constant is therefore a range of codes, and a scan compares packed codes
//!   without decoding them ([`Chunk::integer_range`], [`Chunk::text_range`]).
//! - A NULL has code 0. Its bit says that it is NULL.
//! - A chunk is one run of bytes without pointers: it can be copied to another node's memory and read there.
//! - Nothing is read from a chunk whose header does not match its length ([`Chunk::open`]), its column's type and the number of rows ([`Chunk::open_for`]).
//!   [`Chunk::verify`] compares its checksum. Booleans, integers, dates, timestamps and decimals of up to 18 digits are stored as integers; floats become
//!   integers by [`ordered_double`].

mod build;
mod chunk;
pub mod copy;
mod encode;
pub mod memory;
mod ordered;
pub mod pack;
mod part;
#[cfg(test)]
mod tests;
mod zone;

pub use build::ChunkBuilder;
pub use chunk::{Chunk, ChunkError, Encoding, Texts};
pub use encode::{Nulls, TextValues, encode_integers, encode_texts, encode_wide};
pub use ordered::{double_of, ordered_double, ordered_real, real_of};
pub use part::Outline;
pub use zone::{Zone, ZoneValues, after_prefix};

/// Rows of a block. A block is packed, compared and decoded as a unit.
pub const BLOCK_ROWS: usize = 1024;
/// The most rows of a chunk.
pub const CHUNK_ROWS_MAX: usize = 1 << 16;
/// [`ChunkBuilder`] accepts no more rows once the texts of a column have this many bytes. Offsets in a chunk have 32 bits, so a chunk must stay below 4 GiB. 16
/// MiB is 256 bytes per row; the value is not measured.
pub const CHUNK_TEXT_BYTES_MAX: usize = 16 << 20;
