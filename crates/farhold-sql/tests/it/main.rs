//! Tests of the engine through its sessions: one binary, since each binary links the planner.

mod bench_runs;
mod checks;
mod columns;
mod contradictions;
mod copy;
mod early;
mod errors;
mod far_aggregates;
mod harness;
mod joins;
mod sequences;
mod slt;
mod smoke;
mod tpcc;
mod transactions;
mod where_clauses;
mod zones;
