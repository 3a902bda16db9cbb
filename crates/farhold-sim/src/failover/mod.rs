//! A replicated cluster whose nodes die, pause, are cut off and come back while clients run, and the checks of it.
//!
//! ```text
//!   seed ──► scenarios.rs, plan.rs: nodes, load, faults ─► cluster/: faults while clients run (safety)
//!                                                               │
//!                                                          heal.rs: everything comes back, and there has to be progress (liveness)
//!                                                               │
//!                                                          look.rs: what must be true at the end
//! ```
//! After the faults everything heals: killed nodes come back, every mirror becomes whole, every client commits again. Everything acknowledged must be present.
//! Histories must be serializable (`history`). In a bank (`bank.rs`), each account must be as the committed transactions have left it. In a shop (`shop.rs`:
//! TPC-C), the twelve conditions of its specification must hold. Columns must show the rows (`columns.rs`). Nothing is locked, odd or half written, no ring is
//! overrun, and each mirror equals the rows of its node.

mod bank;
mod blocking;
mod changing;
mod cluster;
mod columns;
mod disk;
mod heal;
mod look;
mod numbers;
mod one_copy;
mod plan;
mod scenarios;
mod shop;

pub use cluster::run;
pub use columns::Compared;
pub use plan::{Blow, Columns, Cut, Delays, Failover, KillAt, Load, Power, Starts, Way};
pub use scenarios::Scenario;

use crate::history::History;
use farhold_txn::Statistics;

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Aftermath {
    /// A hash of the trace: two runs have the same hash only if they were the same.
    pub trace_hash: u64,
    /// The reads and writes of the transactions.
    pub history: History,
    /// Transactions of a bank or a shop that have committed, blocks of numbers that were given out.
    pub audited_commits: u64,
    /// The counts of the nodes that lived at the end, summed.
    pub statistics: Statistics,
    /// Findings: states that must not occur.
    pub broken: Vec<String>,
    /// What happened, in words.
    pub story: Vec<String>,
    /// The last configuration's number.
    pub configuration: u64,
    /// Events of the simulation during the transaction whose steps are counted (see [`KillAt`]).
    pub steps: u64,
    /// The results of the comparisons of columns with rows.
    pub compared: Compared,
}

impl Aftermath {
    /// Checks that everything is in order.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn check(&self) -> Result<(), String> {
        match self.broken.first() {
            Some(broken) => Err(broken.clone()),
            None => self.history.check_with_doubts().map_err(|anomaly| anomaly.to_string()),
        }
    }

    /// Committed transactions.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.history.records.len() as u64 + self.audited_commits
    }
}
