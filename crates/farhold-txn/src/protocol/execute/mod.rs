//! Execution: rows come into the read set, inserts are reserved. Nothing here is seen by others but reservations.

mod far;
mod near;

pub(crate) use near::NearRead;
