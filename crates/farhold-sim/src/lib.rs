//! How the transactions are tested: simulated clusters, random workloads, and a checker of what they saw.
#![deny(missing_docs)]

pub mod history;
