//! Serializable transactions over objects that are near or far.
//!
//! ```text
//!   Worker::begin ──► Txn: get · scan · insert · value_mut · delete ──► commit
//!      │                    │ rows of this node: read in place           │ lock far, latch near, epoch,
//!      │                    │ far rows: one-sided, or by message         │ validate, write back, unlock
//!      ▼                    ▼                                            ▼
//!   home service ◄─────── messages: ordered look-ups, inserts, stamps, definitions
//! ```
#![deny(missing_docs)]

mod error;
pub mod lower;
mod node;
mod snapshot;
mod table;
mod txn;
mod worker;

pub use error::TxnError;
pub use node::{Node, NodeConfig, Statistics};
pub use snapshot::{PageTask, Snapshot};
pub use table::{Index, Placement, Table, TableDef, TableId, TableIndex};
pub use txn::{CommitInfo, Partition, RowHandle, Savepoint, ScanSpec, Txn};
pub use worker::{Retry, Worker};
