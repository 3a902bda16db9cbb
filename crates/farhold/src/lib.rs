//! Farhold: an in-memory database for far memory.

#[path = "cli/args.rs"]
pub mod args;
