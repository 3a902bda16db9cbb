//! Predicates on rows as bytes, decided before anything is copied.

mod filter;

pub use filter::RowFilter;
