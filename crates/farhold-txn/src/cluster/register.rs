//! Where the current configuration is written down: outside of any one member, changed by compare-and-set.

use crate::cluster::configuration::Configuration;
use farhold_fabric::NodeId;
use std::future::Future;
use std::pin::Pin;

/// What a register answers in its own time.
pub type RegisterFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, RegisterError>> + 'a>>;

/// What is written in a register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The configuration, if there has ever been one.
    pub configuration: Option<Configuration>,
    /// The number of the last configuration that all its nodes have installed. Until then no node joins, and nothing is
    /// handed over.
    pub settled: u64,
    /// For each node, its renewals.
    pub renewals: Vec<Renewals>,
}

/// What a node says with each renewal of its lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewals {
    /// How many there have been.
    pub count: u64,
    /// The nodes that it has not reached for long although they renew their leases.
    pub misses: Vec<NodeId>,
}

impl Renewals {
    /// Bytes of it in a register: the count, big-endian, and a bit for each node.
    pub const BYTES: usize = 8 + 32;

    /// For a register.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.count.to_be_bytes());
        for node in &self.misses {
            bytes[8 + usize::from(node.0 / 8)] |= 1 << (node.0 % 8);
        }
        bytes
    }

    /// The inverse of [`encode`](Self::encode); `None` for bytes of another length.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let (count, bits) = bytes.split_first_chunk::<8>()?;
        let is_missed = |node: &u8| bits[usize::from(node / 8)] & 1 << (node % 8) != 0;
        Some(Self { count: u64::from_be_bytes(*count), misses: (0..=u8::MAX).filter(is_missed).map(NodeId).collect() })
    }

    /// The next one.
    #[must_use]
    pub fn next(&self, misses: &[NodeId]) -> Self {
        Self { count: self.count + 1, misses: misses.to_vec() }
    }
}

/// Why a register did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// It does not answer. Whether it has done it is unknown.
    #[error("the register of the cluster does not answer: {reason}")]
    Unavailable {
        /// Why, in words.
        reason: Box<str>,
    },
    /// Its content was not written by this program, or was written by another version of it.
    #[error("the register is not this cluster's: {reason}")]
    Foreign {
        /// What is wrong.
        reason: Box<str>,
    },
}

/// A register. It is linearizable and outlives any member; it never decides anything itself. An answer may be lost, so each
/// call may be repeated.
pub trait Register {
    /// What is written there.
    fn load(&self) -> RegisterFuture<'_, Registered>;

    /// Writes `next` if the configuration there has the number `expected` (0: there is none). False: it has another.
    fn compare_and_set<'a>(&'a self, expected: u64, next: &'a Configuration) -> RegisterFuture<'a, bool>;

    /// Records that all nodes of the configuration with this number have installed it.
    fn settle(&self, number: u64) -> RegisterFuture<'_, ()>;

    /// Counts a renewal of this node's lease, and records which nodes it misses.
    fn renew<'a>(&'a self, node: NodeId, misses: &'a [NodeId]) -> RegisterFuture<'a, ()>;

    /// Records a node's status, for operators on other hosts. A lost status does no harm. A register in the nodes' own
    /// directory does not need it.
    fn tell<'a>(&'a self, _node: NodeId, _words: &'a str) -> RegisterFuture<'a, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Is it certain that this node's process has ended, whatever its lease says? False if that cannot be known.
    fn is_dead(&self, _node: NodeId) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_come_back_and_other_bytes_are_none() {
        let renewals = Renewals { count: 7, misses: vec![NodeId(0), NodeId(9), NodeId(255)] };
        assert_eq!(Renewals::decode(&renewals.encode()), Some(renewals.clone()));
        assert_eq!(Renewals::decode(&renewals.encode()[1..]), None);
        assert_eq!(renewals.next(&[]), Renewals { count: 8, misses: vec![] });
    }
}
