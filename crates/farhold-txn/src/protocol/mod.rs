//! How a transaction reads, and how it commits.
//!
//! ```text
//!   execute    rows into the read set, near and far; reservations of inserts          execute/
//!   prepare    rows that outgrow their slot or change an index key become delete + insert   commit/prepare.rs
//!   lock       far rows by compare_swap, near rows by latches in address order        commit/far.rs, commit/section/latch.rs
//!   epoch      read while everything is locked                                        epoch.rs
//!   validate   every row and every stamp is as it was read                            commit/section/, commit/far.rs
//!   wait       rows that were read on their way to their holders                      commit/odd.rs
//!   write      near rows, then far rows, then unlock; deleted rows leave the indexes  commit/section/, commit/far.rs
//!              far rows of a home that does not answer: later                         commit/silent.rs
//! ```
//!
//! The order is Silo's (Tu et al., SOSP 2013, section 4.4): lock all writes, read the epoch, validate all reads, write. It
//! makes the commit serializable whatever the order of the locks, because of two transactions that overlap, each either
//! has locked what the other validates, or was validated before the other locked. Locks are only ever tried, a bounded
//! number of times, so there is no deadlock. Far rows are locked first, as in DrTM+R, so that the near part is short and,
//! where the CPU has it, can be one hardware transaction.

pub(crate) mod columns;
pub(crate) mod commit;
pub(crate) mod core;
pub(crate) mod epoch;
pub(crate) mod execute;
pub(crate) mod far_columns;
pub(crate) mod far_reads;
pub(crate) mod far_scans;
pub(crate) mod home;
pub(crate) mod pushdown;
pub(crate) mod runs;
pub(crate) mod snapshot;
pub(crate) mod to_its_end;
pub(crate) mod txn;
pub(crate) mod worker;
