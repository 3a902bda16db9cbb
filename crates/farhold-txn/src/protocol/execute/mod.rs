//! Execution: rows come into the read set, inserts are reserved. Nothing here is seen by others but reservations.

mod far;
mod near;

pub(crate) use far::{FAR_INDEXES_MIN, FarRead, by_node};
pub(crate) use near::NearRead;

#[cfg(test)]
mod tests;
