//! Serializable transactions over objects that are near or far.
//!
//! ```text
//!   Worker::begin ──► Txn: get · scan · insert · value_mut · delete ──► commit
//!      │                    │ rows of this node: read in place           │ lock far, latch near, epoch,
//!      │                    │ far rows: one-sided, or by message         │ validate, write back, unlock
//!      ▼                    ▼                                            ▼
//!   home service ◄─────── messages: ordered look-ups, inserts, stamps, definitions
//! ```
//!
//! A [`Node`] is one process's part of the database; each of its threads has a [`Worker`]; a [`Txn`] belongs to a worker.
//! The protocol, and why it is serializable: `protocol/mod.rs`.
#![deny(missing_docs)]

#[macro_use]
#[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "without the feature nobody plants anything"))]
mod planted;

mod back_off;
mod catalog;
mod ddl;
mod definition;
mod durability;
mod error;
mod far_pages;
mod home;
mod membership;
mod memory;
mod node;
mod phases;
mod protocol;
mod records;
mod recovery;
mod replication;
mod row_counter;
mod slots;
mod snapshot;
mod system;
mod table;
mod txn;
mod worker;

pub use definition::{Placement, TableDef};
pub use durability::{Generation, JournalConfig, JournalThreads, JournalTurns};
pub use error::TxnError;
pub use farhold_fabric::NodeId;
pub use home::HomeAgent;
pub use membership::{
    Configuration, FileRegister, Mirror, Register, RegisterError, RegisterFuture, Registered, Renewals, Serving,
};
pub use memory::MemoryUse;
pub use node::{Node, NodeConfig, Recovered};
#[cfg(feature = "planted")]
pub use planted::{Defect, last_unknown, plant, planted, shake, watch};
pub use recovery::{Leading, Moving, Progress};
pub use replication::ReplicationConfig;
pub use row_counter::RowCounter;
pub use slots::{Hardware, Statistics};
pub use snapshot::{PageTask, Snapshot};
pub use table::{Index, Table, TableId, TableIndex};
pub use txn::{CommitInfo, Partition, RowHandle, Savepoint, ScanSpec, Txn};
pub use worker::{Retry, Worker};
