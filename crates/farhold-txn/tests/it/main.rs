//! Transactions through their interface: one program, since each is compiled, linted and linked for itself.

mod columns;
mod common;
mod cut_off;
mod dropped;
mod far;
mod far_columns;
mod full;
mod index;
mod journal;
mod local;
mod numbers;
#[cfg(feature = "libfabric")]
mod over_libfabric;
mod replicated_columns;
mod shapes;
mod silent;
