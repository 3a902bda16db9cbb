//! Authentication: the users with their SCRAM verifiers, and the exchange that proves a password without sending it.

mod scram;
mod users;

pub use scram::Verifier;
pub(super) use scram::{Exchange, MECHANISM, Step, is_same_secret, random};
pub use users::{Users, UsersError};
