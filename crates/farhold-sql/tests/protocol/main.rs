//! The wire protocol byte by byte: what no well-behaved client library does, or does not do on purpose.

mod batches;
mod blanks;
mod client;
mod garbage;
mod limits;
mod node;
mod sessions;
