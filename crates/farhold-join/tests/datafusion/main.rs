//! DataFusion's joins under the rule: the same rows as without it, for every kind, key, budget and number of
//! partitions.

mod above;
mod bed;
mod common;
mod failures;
#[cfg(feature = "parquet")]
mod late;
#[cfg(feature = "parquet")]
mod names;
mod plans;
mod queries;
mod random;
mod runs;
#[cfg(feature = "parquet")]
mod sieve;
mod turns;
