//! DataFusion's joins by the rule: the same rows as without it, for every kind, key, budget and number of partitions.

mod bed;
mod failures;
mod plans;
mod queries;
mod random;
