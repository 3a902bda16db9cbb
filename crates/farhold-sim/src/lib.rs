//! Tests of the transactions: simulated clusters, random workloads, and a checker of the resulting histories.
//!
//! ```text
//!   seed ──► Executor::virtual_time ──► Sim (fabric) ──► nodes, workers                       cluster.rs
//!     │                                                    │ clients run random transactions  workload/
//!     │                                                    ▼
//!     └──────────────────────────────────────────► history ──► serial order, or a cycle       history/
//! ```
//! One seed determines everything: the run, its trace and its history. A failing seed is therefore a complete bug report.
#![deny(missing_docs)]

pub mod cluster;
pub mod failover;
pub mod hiccups;
pub mod history;
pub mod register;
pub mod seeds;
pub mod teeth;
pub mod threads;
pub mod workload;
