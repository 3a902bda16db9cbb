//! Execution: rows come into the read set, inserts are reserved. Other transactions see only the reservations.

pub(crate) mod far;
pub(crate) mod near;

#[cfg(test)]
mod tests;
