//! Execution: rows come into the read set, inserts are reserved. Nothing here is seen by others but reservations.

pub(crate) mod far;
pub(crate) mod near;

#[cfg(test)]
mod tests;
