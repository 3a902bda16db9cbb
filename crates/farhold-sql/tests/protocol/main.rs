//! The wire protocol byte by byte: cases that well-behaved client libraries never produce, at least not on purpose.

mod batches;
mod blanks;
mod client;
mod garbage;
mod limits;
mod node;
mod nulls;
mod sessions;
mod zones;
