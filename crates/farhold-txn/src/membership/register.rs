//! Where the current configuration is written down: outside of any one member, changed by compare-and-set.

use super::Configuration;
use crate::NodeId;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// What a register answers in its own time.
pub type RegisterFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RegisterError>> + 'a>>;

/// What is written in a register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The configuration, if there has ever been one.
    pub configuration: Option<Configuration>,
    /// The number of the last configuration that all its nodes have installed. Nobody comes in, and nothing is handed over, before.
    pub settled: u64,
    /// For each node, how often it has renewed its lease.
    pub renewals: Vec<u64>,
}

/// Why a register did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterError {
    /// It does not answer. Whether it has done it is unknown.
    Unavailable {
        /// Why, in words.
        reason: Box<str>,
    },
    /// What is written there is not of this program, or of another version of it.
    Foreign {
        /// What is wrong.
        reason: Box<str>,
    },
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { reason } => write!(f, "the register of the cluster does not answer: {reason}"),
            Self::Foreign { reason } => write!(f, "the register is not this cluster's: {reason}"),
        }
    }
}

impl std::error::Error for RegisterError {}

/// A register. It is linearizable and outlives any member; it never decides anything itself. A caller may lose its answer, so
/// each call may be made again.
pub trait Register {
    /// What is written there.
    fn load(&self) -> RegisterFuture<'_, Registered>;

    /// Writes `next` if the configuration there has the number `expected` (0: there is none). False: it has another.
    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool>;

    /// Says that all nodes of the configuration with this number have installed it.
    fn settle(&self, number: u64) -> RegisterFuture<'_, ()>;

    /// Counts a renewal of this node's lease.
    fn renew(&self, node: NodeId) -> RegisterFuture<'_, ()>;

    /// Is it certain that this node's process has ended, whatever its lease says? False if that cannot be known.
    fn is_dead(&self, _node: NodeId) -> bool {
        false
    }
}
