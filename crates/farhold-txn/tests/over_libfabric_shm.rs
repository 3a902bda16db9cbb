//! The transactions of several nodes, over libfabric's shared memory.
#![cfg(feature = "libfabric")]
#![allow(clippy::duplicate_mod, reason = "each file of tests brings what it shares with the others")]

#[path = "far.rs"]
mod far;
#[path = "index.rs"]
mod index;
