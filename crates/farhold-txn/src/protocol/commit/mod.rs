//! How a transaction commits.

pub(crate) mod distributed;
pub(crate) mod durable;
mod mapped;
pub(crate) mod near;
pub(crate) mod odd;
mod prepare;
pub(crate) mod replicated;
pub(crate) mod section;
mod silent;
