//! The transactions of several nodes, over libfabric's TCP.
#![cfg(feature = "libfabric")]

#[path = "far.rs"]
mod far;
#[path = "index.rs"]
mod index;
