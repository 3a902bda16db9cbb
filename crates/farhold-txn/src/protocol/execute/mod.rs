//! Execution: rows come into the read set, inserts are reserved. Other transactions see only the reservations.

pub(crate) mod far;
mod far_insert;
pub(crate) mod near;
pub(crate) mod peer;

#[cfg(test)]
mod tests;
