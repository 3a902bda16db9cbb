//! Measures of the fabric itself: the cost of its instructions on this machine, and its counters and latches under contention.

pub mod info;
pub mod placement;
pub mod words;
