//! Who belongs to the cluster, and who does what: numbered configurations, and what a node makes of the one it is in.
//!
//! ```text
//!   register (shared, compare-and-set) ── configuration n ──► every member installs it ──► View: what commits look at
//!   lease: a member's count in the register goes on ─── it does not for too long ──► configuration n + 1 without it
//! ```

mod configuration;
mod file;
mod lease;
mod reach;
mod register;
mod view;
mod watch;

pub use configuration::{Configuration, Mirror, Serving};
pub use file::FileRegister;
pub(crate) use lease::{Lease, LeaseThread};
pub(crate) use reach::Reach;
pub use register::{Register, RegisterError, RegisterFuture, Registered, Renewals};
pub(crate) use view::{Admitted, Moment, NOBODY, NodeSet, Passed, ServingMap, View};
