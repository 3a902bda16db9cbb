//! The transactions of one node and of several, over libfabric's shared memory.
#![cfg(feature = "libfabric")]
#![allow(clippy::duplicate_mod, reason = "each file of tests brings what it shares with the others")]

#[path = "dropped.rs"]
mod dropped;
#[path = "far.rs"]
mod far;
#[path = "index.rs"]
mod index;
#[path = "local.rs"]
mod local;
#[path = "numbers.rs"]
mod numbers;
