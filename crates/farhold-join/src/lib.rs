//! Any join inside a stated memory budget.
//!
//! [`algorithm`] joins raw columns of 64-bit keys: a nested loop (the oracle), a table without partitioning, a radix join.

pub mod algorithm;
mod error;
mod hash;
mod pages;
mod partition;
mod run;

pub use algorithm::{ALL, Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table};
pub use error::JoinError;
pub use run::{CancelToken, Run};
