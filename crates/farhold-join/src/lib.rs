//! Any join inside a stated memory budget.
//!
//! Two interfaces:
//!
//! - [`Join`] joins Arrow batches: one or several key columns, every kind of join, nulls as SQL has them, a condition
//!   over candidate pairs. Its memory comes from a [`MemoryPool`] that several joins may share. What does not fit is
//!   spilled, as little as possible, and the rows are the same at every budget.
//! - [`algorithm`] joins raw columns of 64-bit keys: a nested loop (the oracle), a table without partitioning, a radix
//!   join, and the joins of a GPU ([`gpu`]), which continue on the CPU when the GPU fails.
//!
//! ```
//! use std::sync::Arc;
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
//! use farhold_join::{Join, JoinKind, JoinOptions, JoinSpec, MemoryPool};
//!
//! let batch = |name: &str, keys: Vec<i64>, texts: Vec<&str>| {
//!     let keys: ArrayRef = Arc::new(Int64Array::from(keys));
//!     let texts: ArrayRef = Arc::new(StringArray::from(texts));
//!     RecordBatch::try_from_iter([("key", keys), (name, texts)]).unwrap()
//! };
//! let customers = batch("customer", vec![1, 2, 3], vec!["Ada", "Bo", "Cy"]);
//! let orders = batch("item", vec![2, 3, 3, 9], vec!["ink", "pen", "cup", "hat"]);
//!
//! let spec = JoinSpec::new(customers.schema(), orders.schema(), vec![(0, 0)], JoinKind::Inner);
//! let mut join = Join::new(spec, JoinOptions::new(MemoryPool::new(16 << 20)))?;
//! join.push_build(&customers)?;
//! join.finish_build()?;
//! join.push_probe(&orders)?;
//! let mut rows = 0;
//! while let Some(batch) = join.next_output()? {
//!     rows += batch.num_rows();
//! }
//! join.finish_probe()?;
//! while let Some(batch) = join.next_output()? {
//!     rows += batch.num_rows();
//! }
//! assert!(rows == 3 && join.is_done());
//! # Ok::<(), farhold_join::JoinError>(())
//! ```

pub mod algorithm;
mod bits;
mod blocks;
mod bloom;
mod chunks;
mod columns;
pub mod cost;
#[cfg(feature = "datafusion")]
pub mod datafusion;
mod error;
pub mod gpu;
mod hash;
mod join;
mod keys;
mod memory;
pub mod model;
mod options;
mod pages;
mod partition;
mod run;
mod spec;
mod spill;
mod stopwatch;
mod widest;

pub use algorithm::{ALL, Algorithm, Cursor, Matches, Pairs, Shape, Table, by_name};
pub use columns::{Columns, Sum};
pub use error::JoinError;
pub use join::{Join, JoinReport, Step};
pub use memory::{Above, BUDGET_BYTES_MIN, MemoryPool, SHARE_BYTES_MIN};
pub use options::{Devices, JoinOptions, OnProgress, Progress};
pub use pages::PageStore;
pub use run::{CancelToken, Run, STACK_BYTES};
pub use spec::{Evaluate, JoinKind, JoinSpec, Residual};
