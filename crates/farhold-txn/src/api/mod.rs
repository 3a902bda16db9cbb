//! What a program starts and calls beside transactions: a journal's threads, counters.

pub(crate) mod column_threads;
pub(crate) mod column_turns;
pub(crate) mod journal_threads;
pub(crate) mod row_counter;
