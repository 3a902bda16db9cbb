//! Threads of several nodes, over libfabric's shared memory.
#![cfg(feature = "libfabric")]

#[path = "threads.rs"]
mod threads;
