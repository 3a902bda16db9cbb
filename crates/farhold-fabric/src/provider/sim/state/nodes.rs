//! Which nodes there are, which of them run, and until when one is paused.

use super::{Node, State};
use crate::address::NodeId;

impl State {
    #[inline]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(usize::from(node.0))
    }

    #[inline]
    pub fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(usize::from(node.0))
    }

    pub fn node_or_new(&mut self, node: NodeId) -> &mut Node {
        let needed = usize::from(node.0) + 1;
        if self.nodes.len() < needed {
            self.nodes.resize_with(needed, Node::default);
        }
        &mut self.nodes[usize::from(node.0)]
    }

    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.iter_mut()
    }

    #[inline]
    pub fn is_live(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|entry| entry.live)
    }

    #[inline]
    pub fn is_member(&self, node: NodeId, incarnation: u64) -> bool {
        self.node(node).is_some_and(|entry| entry.live && entry.incarnation == incarnation)
    }

    /// Until when a node is paused, if it is.
    #[inline]
    pub(super) fn paused_until(&self, node: NodeId) -> Option<u64> {
        let until_ns = self.node(node)?.paused_until_ns;
        (until_ns > self.now_ns).then_some(until_ns)
    }
}
