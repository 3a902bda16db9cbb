//! DataFusion's joins under the rule: the same rows as without it, for every kind, key, budget and number of
//! partitions.

mod above;
mod bed;
mod common;
mod failures;
#[cfg(feature = "parquet")]
mod names;
#[cfg(feature = "parquet")]
mod parquet;
mod plans;
mod queries;
mod random;
#[cfg(feature = "parquet")]
mod sieve;
mod turns;
