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
mod base;
mod api;
mod cluster;
mod columns;
mod ddl;
mod durability;
mod home;
mod membership;
mod node;
mod protocol;
mod recovery;
mod replication;
mod rpc;

pub use api::column_threads::ColumnThreads;
pub use api::column_turns::{ApplyTurns, MergeTurns};
pub use api::journal_threads::{JournalThreads, JournalTurns};
pub use api::row_counter::RowCounter;
pub use base::definition::{KeptColumns, Placement, TableDef};
pub use base::error::TxnError;
#[cfg(feature = "planted")]
pub use base::planted::last_unknown;
pub use base::slots::{Hardware, Statistics};
pub use base::table::{Index, Table, TableIndex};
pub use cluster::configuration::{Configuration, Mirror, Serving};
pub use cluster::progress::{Leading, Moving, Progress};
pub use cluster::register::{Register, RegisterError, RegisterFuture, Registered, Renewals};
pub use cluster::settings::ReplicationConfig;
pub use columns::report::{ColumnReport, TableColumns};
pub use columns::{ColumnStatistics, NoColumns};
pub use durability::JournalConfig;
pub use durability::open::Generation;
pub use farhold_fabric::NodeId;
pub use farhold_store::TableId;
pub use farhold_store::column::copy::{CopyConfig, CopySize};
pub use farhold_store::column::memory::MemoryStatistics;
pub use home::agent::HomeAgent;
pub use membership::file::FileRegister;
pub use node::memory::MemoryUse;
pub use node::{Node, NodeConfig, Recovered};
pub use protocol::far_columns::{ColumnPin, ColumnsByNode, FarColumns, NodeColumns};
pub use protocol::far_scans::{FarScan, FarScanError, FarScanned, FarWanted, ScannedSegment};
pub use protocol::snapshot::{PageTask, Snapshot};
pub use protocol::txn::spec::{Partition, ScanSpec};
pub use protocol::txn::{CommitInfo, RowHandle, Savepoint, Txn};
pub use protocol::worker::{Retry, Worker};
