//! Simulated and real clusters under faults: one program, since each is compiled, linted and linked for itself.

mod bad_input;
mod columns;
mod failover;
mod fresh;
mod killed;
mod membership;
mod numbers;
mod planted;
mod power_cut;
mod power_cuts;
mod processes;
mod restart;
mod seeds;
mod serializability;
mod steps;
mod threads;

/// As in the program: seeds allocate much, and on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
