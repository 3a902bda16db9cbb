//! Snapshots: old copies of rows for those who read at an epoch, and what becomes of them.

mod garbage;

pub(crate) use garbage::Garbage;
