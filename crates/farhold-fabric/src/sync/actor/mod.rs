//! The actors that execute word instructions, and the list of them.
//!
//! | actor | executes | costs |
//! |---|---|---|
//! | [`Agent`] | a thread of the home node, asked by message: the GRU's way, where the word never leaves its home's cache | a message there and back |
//! | [`Cpu`] | this thread, on mapped memory: a locked instruction | the word's cache line travels to each thread |
//! | [`Posted`] | what the provider has for it: see [`crate::provider::Kind::does`] | a batch of one |
//!
//! The default is [`Cpu`] where memory is mapped and [`Posted`] elsewhere: see `docs/design/0011-actors.md` for the figures.

mod agent;
mod cpu;
mod posted;

pub use agent::{Agent, WordAgent};
pub use cpu::Cpu;
pub use posted::Posted;

/// An actor, as configuration and documents name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it is, in one line.
    pub about: &'static str,
}

/// All actors, by name.
pub const ALL: &[Kind] = &[agent::KIND, cpu::KIND, posted::KIND];
