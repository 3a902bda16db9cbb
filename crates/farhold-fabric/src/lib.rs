//! Remote memory, and the instructions on it.
//!
//! A node registers *regions* of memory; a [`FarPtr`] names a byte of one (node, region, offset). An [`Endpoint`] belongs to one
//! thread. It executes *memory instructions* (read, write, word atomics, `read_object`) gathered in a [`Batch`], and sends
//! messages to inboxes. [`Executor`] runs the async code that waits for them, and is the only source of time, randomness and
//! tasks.
//!
//! ```text
//!   Executor ── Handle ──┐
//!   Fabric (a node) ── Endpoint (a thread) ── submit(Batch) / send / try_recv
//!      └── RegionMemory        └── provider: shm | sim
//! ```
#![deny(missing_docs)]

pub mod batch;
pub mod bytes;
pub mod ephemeral;
pub mod executor;
pub mod latencies;
pub mod mover;
pub mod object;
pub mod persist;
pub mod private;
pub mod processor;
pub mod provider;
pub mod sync;

mod address;
mod copy;
mod endpoint;
mod error;
mod fabric;
mod memory;
mod room;
mod traffic;

pub use address::{Address, FarPtr, NodeId, RegionId, RegionKey};
pub use batch::{Batch, ObjectView, Slot};
pub use endpoint::{Endpoint, Message, Submit};
pub use error::FabricError;
pub use executor::{Drive, Executor, Handle, JoinHandle};
pub use fabric::{Admitted, Fabric};
pub use memory::{RegionMemory, sum_words};
pub use object::{Meta, ObjectHeader, Version};
