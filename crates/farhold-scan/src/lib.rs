//! Scans: which rows of a table pass a predicate, whatever the form in which the rows are stored.
//!
//! ```text
//!   predicate    conditions on columns, with constants of the columns' kinds
//!      ├─ rows       compiled for the bytes of rows
//!      └─ columns    compiled for a column chunk: a condition is a range of codes
//!             └─ kernels   which packed codes of a block are in a range, one for each kind of processor
//!   access_path  ways to read the column chunks of another node, and to decide a predicate on them
//!
//!   model        which access path a scan takes, by predicted time
//! ```
//! The decision about a row is the same in every form: the conformance tests of `columns` compare with `rows`.
#![deny(missing_docs)]

pub mod access_path;
pub mod columns;
pub mod kernels;
pub mod model;
pub mod predicate;
pub mod rows;
