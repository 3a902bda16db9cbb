//! Counters, latches and queues in regions, by which threads of many nodes coordinate.
//!
//! ```text
//!   Counter   Latch            Queue
//!       └───┬───┘                │
//!        Words: one word instruction at a time      Endpoint: batches
//!    ┌──────┼───────────┐
//!   Cpu   Agent       Posted
//!   loads, a thread   whatever the provider has:
//!   LOCK   at home    a NIC, a simulation, or loads again
//! ```
//!
//! An [`actor`] executes the instructions. The protocols are written over [`Words`] and run on each actor, and under loom
//! (`tests/sync_model.rs`). They are those of the SGI UV's GRU (Dreseler et al., "Hardware-Accelerated Memory Operations on
//! Large-Scale NUMA Systems", ADMS 2017, section 4): a counter is fetch-and-add, a latch is a compare-and-swap and a clear. Both
//! may be executed at the word's home node instead of on the calling thread.
//!
//! **One word, one kind of actor** as long as a NIC executes: atomics of a NIC and of a processor on one word are not atomic to
//! each other. [`actor::Cpu`] and [`actor::Agent`] may be mixed (the agent uses its processor), and so may all actors on `shm`
//! and `sim`.

pub mod actor;
#[cfg(test)]
mod conformance;
pub mod counter;
pub mod latch;
pub mod queue;

pub use counter::{Counter, Numbers};
pub use latch::{Held, Holder, Latch, LatchError};
pub use queue::{Queue, QueueError, Receiver, Sender};

use crate::{FabricError, FarPtr};
use std::future::Future;

/// One instruction on an 8-byte word. All return the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordOp {
    /// Changes nothing.
    Load,
    /// Adds, wrapping.
    Add(u64),
    /// Stores `new` if the word is `expected`.
    CompareSwap {
        /// What the word must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Stores.
    Swap(u64),
    /// Stores 0.
    Clear,
}

/// An actor that executes word instructions. The implementer makes each atomic to all others, in one order that all threads see
/// (sequential consistency), and completes it before the future ends.
pub trait Words {
    /// Executes one instruction; the result is the old value.
    ///
    /// # Errors
    /// What prevented it. After [`FabricError::Timeout`] and [`FabricError::NodeUnavailable`] it may have been executed.
    fn execute(&self, at: FarPtr, op: WordOp) -> impl Future<Output = Result<u64, FabricError>>;

    /// Pauses between two looks at a word that another thread will change.
    fn pause(&self) -> impl Future<Output = ()>;
}

/// Stores `new` if the word is `expected`. True: it was.
async fn swapped(words: &impl Words, at: FarPtr, expected: u64, new: u64) -> Result<bool, FabricError> {
    Ok(words.execute(at, WordOp::CompareSwap { expected, new }).await? == expected)
}

/// Bytes of a cache line: words of different threads lie that far apart.
const LINE: u64 = 64;
