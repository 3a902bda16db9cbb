//! Threads of several nodes, over libfabric's TCP.
#![cfg(feature = "libfabric")]

#[path = "threads.rs"]
mod threads;
