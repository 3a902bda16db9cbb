//! Sets of nodes, and maps to them, that change while others read them.

use farhold_fabric::NodeId;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicU64};

/// The node number that stands for no node. A cluster has at most 255 nodes.
pub(crate) const NOBODY: u8 = 255;

/// A set of nodes that may change at any time.
#[derive(Debug, Default)]
pub(crate) struct NodeSet([AtomicU64; 4]);

impl NodeSet {
    pub fn contains(&self, node: NodeId) -> bool {
        self.0[usize::from(node.0 >> 6)].load(SeqCst) & 1 << (node.0 & 63) != 0
    }

    pub fn set(&self, nodes: impl Iterator<Item = NodeId>) {
        let mut words = [0; 4];
        nodes.for_each(|node| words[usize::from(node.0 >> 6)] |= 1_u64 << (node.0 & 63));
        for (word, value) in self.0.iter().zip(words) {
            word.store(value, SeqCst);
        }
    }
}

/// The server of each partition.
#[derive(Debug)]
pub(crate) struct ServingMap([AtomicU8; 256]);

impl ServingMap {
    pub fn new() -> Self {
        Self([const { AtomicU8::new(NOBODY) }; 256])
    }

    #[inline]
    pub fn of(&self, partition: NodeId) -> NodeId {
        NodeId(self.0[usize::from(partition.0)].load(Relaxed))
    }

    /// Of each partition in turn: the node, or [`NOBODY`].
    pub fn set(&self, nodes: impl Iterator<Item = u8>) {
        for (word, node) in self.0.iter().zip(nodes) {
            word.store(node, SeqCst);
        }
    }
}
