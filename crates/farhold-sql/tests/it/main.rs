//! The engine through its sessions: one binary, since each links the planner.

mod bench_runs;
mod copy;
mod errors;
mod harness;
mod joins;
mod sequences;
mod slt;
mod smoke;
mod tpcc;
mod transactions;
mod where_clauses;
