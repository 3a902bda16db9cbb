//! The members of the cluster and their tasks: numbered configurations, and what a node derives from the one it is in.
//!
//! ```text
//!   register (shared, compare-and-set) ── configuration n ──► every member installs it ──► View: what commits look at
//!   lease: a member's count in the register goes on ─── it does not for too long ──► configuration n + 1 without it
//! ```

pub(crate) mod file;
pub(crate) mod lease;
pub(crate) mod watch;
