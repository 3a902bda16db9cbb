//! Workloads that measure Farhold and check its results.
//!
//! ```text
//!   workload/tpcc   nine tables, their population, the five transactions, the driver, the consistency conditions
//!   workload/ch     three more tables and 22 analytical queries over the same rows (CH-benCHmark)
//!   workload/smallbank  two tables of accounts, six short transactions, the audit of the money
//!   fabric          what the fabric's instructions, counters and latches cost on this machine
//!   workload/kv     gets of far rows by one-sided reads, puts by message or transaction; the same gets against a Redis
//!   measure         counters of workers, readable while they run
//! ```
//!
//! This is only a library: the `farhold` binary and the tests of the crates above call it. Clock and executor come in through
//! [`farhold_fabric::Handle`], and randomness from seeds, so a run can be repeated.
#![deny(missing_docs)]

#[cfg(feature = "allocator")]
pub mod allocator;
pub mod fabric;
pub mod measure;
pub mod random;
pub mod workload;
