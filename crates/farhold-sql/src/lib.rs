//! SQL for Farhold: PostgreSQL's dialect, types, errors and wire protocol over the rows of `farhold-txn`.
//!
//! Two halves meet in [`Session`]: [`engine`] (catalog, planning, execution) and [`server`] (the wire protocol).
//! A statement that a primary key or an index answers is compiled once and then runs on the connection's own thread;
//! every other query runs over one consistent state of the database on shared query threads.
#![deny(missing_docs)]

// The unit tests of the server share the client of `tests/protocol`, which knows the crate by its name.
#[cfg(test)]
extern crate self as farhold_sql;

pub mod arrow_copy;
pub mod engine;
mod error;
pub mod import;
mod pg_catalog;
pub mod server;

pub use engine::{
    CancelHandle, ColumnType, CommandTag, CopyIn, CopyOut, Datum, Engine, EngineConfig, Output, OutputColumn, Prepared,
    QueryRows, Rows, STACK_BYTES, Session, TransactionState, format_datum, parse_datum,
};
pub use error::{SqlError, SqlState};
