//! SQL for Farhold: PostgreSQL's dialect, types, errors and wire protocol over the rows of `farhold-txn`.
//!
//! [`Session`] connects the two halves: [`engine`] (catalog, planning, execution) and [`server`] (the wire protocol). Both
//! write and read values by `value`. A
//! statement that a primary key or an index answers is compiled once and runs on the connection's own thread. Every
//! other query runs over one snapshot of the database on shared query threads.
#![deny(missing_docs)]

// The server's unit tests share the client of `tests/protocol`, which refers to the crate by its name.
#[cfg(test)]
extern crate self as farhold_sql;

pub mod arrow_copy;
pub mod engine;
mod error;
pub mod import;
mod pg_catalog;
pub mod server;
mod value;

pub use engine::{
    CancelHandle, ColumnType, CommandTag, CopyIn, CopyOut, Datum, Engine, EngineConfig, Output, OutputColumn, Prepared,
    QueryRows, Rows, STACK_BYTES, Session, TransactionState,
};
pub use error::{SqlError, SqlState};
pub use value::{Zone, format_datum, parse_datum};
