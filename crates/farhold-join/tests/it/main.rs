//! Joins of Arrow batches against a plain oracle: every algorithm, kind, key type and budget.

mod conformance;
mod failures;
mod oracle;
mod random;
