//! Measures of the fabric itself: what its instructions cost on this machine, and what counters and latches do under
//! contention.

pub mod info;
pub mod placement;
pub mod words;
