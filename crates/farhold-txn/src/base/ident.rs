//! An object anywhere in the cluster, as one word.

use farhold_fabric::{FarPtr, NodeId, RegionId};
use farhold_store::ObjectRef;
use std::fmt;

/// The region of each node where its rows are.
pub(crate) const DATA: RegionId = RegionId(0);
/// The region of each node where others write records of their commits.
pub(crate) const LOG: RegionId = RegionId(1);
/// The region of each node with its column chunks, which others read.
pub(crate) const COLUMNS: RegionId = RegionId(2);

/// `node:8 | reference:56`. In ascending order: by node, then by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Ident(u64);

impl Ident {
    #[inline]
    pub fn new(node: NodeId, reference: ObjectRef) -> Self {
        Self(u64::from(node.0) << 56 | reference.to_bits())
    }

    #[inline]
    pub fn node(self) -> NodeId {
        NodeId((self.0 >> 56) as u8)
    }

    #[inline]
    pub fn reference(self) -> ObjectRef {
        ObjectRef::from_bits(self.0)
    }

    #[inline]
    pub fn far(self) -> FarPtr {
        self.reference().far(self.node(), DATA)
    }

    /// Spread over all bits (Fibonacci hashing: the golden ratio's fraction).
    #[inline]
    pub fn hash(self) -> usize {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
    }
}

impl fmt::Debug for Ident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.reference(), self.node())
    }
}
