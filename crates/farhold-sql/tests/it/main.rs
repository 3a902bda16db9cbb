//! The engine through its sessions: one binary, since each links the planner.

mod harness;
mod slt;
mod smoke;
mod tpcc;
