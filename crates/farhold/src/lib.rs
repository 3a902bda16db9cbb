//! Farhold: an in-memory database for far memory, with serializable transactions and SQL over the same live rows.
//!
//! This crate is the façade for Rust programs: [`Database`] opens a node, and [`Worker`] runs transactions on its own thread.
//! With the feature `cli` (the default) the crate is also the `farhold` binary.
//!
//! ```
#![doc = include_str!("../examples/embed.rs")]
//! ```

mod database;
mod rows;

#[cfg(feature = "cli")]
pub mod cli;

pub use database::{Config, Database, Durability, OpenError};
pub use farhold_fabric::Handle;
pub use farhold_store::row::{Column, ColumnType, Datum, RowError, Schema, SecondaryIndex};
pub use farhold_txn::{
    CommitInfo, Index, Node, Placement, Retry, RowHandle, ScanSpec, Snapshot, Table, TableDef, Txn, TxnError, Worker,
};
pub use rows::{Date, Decimal, Field, Key, Row, Rows, Timestamp, Timestamptz};
