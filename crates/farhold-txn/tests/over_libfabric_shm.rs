//! The transactions of several nodes, over libfabric's shared memory.
#![cfg(feature = "libfabric")]

#[path = "far.rs"]
mod far;
#[path = "index.rs"]
mod index;
