//! Names of places: nodes, regions, far pointers, inboxes.

use std::fmt;

/// A member of the cluster. At most 256 of them: the number is one byte of every [`FarPtr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u8);

/// A registered region of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u8);

/// The right to access a region. It is issued when the region is registered, and differs after each registration. Zero is never a
/// key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey(pub u64);

/// A byte of a node's memory: `node:8 | region:8 | offset:48`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct FarPtr(u64);

impl FarPtr {
    /// Largest offset a far pointer can carry.
    pub const OFFSET_MAX: u64 = (1 << 48) - 1;

    /// Makes a far pointer.
    ///
    /// # Panics
    /// If `offset` needs more than 48 bits (a bug of the caller: no region is that long).
    #[must_use]
    #[inline]
    pub const fn new(node: NodeId, region: RegionId, offset: u64) -> Self {
        assert!(offset <= Self::OFFSET_MAX, "a far pointer's offset has 48 bits");
        Self((node.0 as u64) << 56 | (region.0 as u64) << 48 | offset)
    }

    /// The node whose memory it is.
    #[must_use]
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 56) as u8)
    }

    /// The region of that node.
    #[must_use]
    #[inline]
    pub const fn region(self) -> RegionId {
        RegionId((self.0 >> 48) as u8)
    }

    /// Bytes from the start of the region.
    #[must_use]
    #[inline]
    pub const fn offset(self) -> u64 {
        self.0 & Self::OFFSET_MAX
    }

    /// The same region, `bytes` further on.
    ///
    /// # Panics
    /// If the offset leaves its 48 bits.
    #[must_use]
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "it adds bytes, not another pointer")]
    pub const fn add(self, bytes: u64) -> Self {
        Self::new(self.node(), self.region(), self.offset() + bytes)
    }

    /// Do both point into the same region?
    #[must_use]
    #[inline]
    pub const fn is_with(self, other: Self) -> bool {
        (self.0 ^ other.0) >> 48 == 0
    }

    /// The pointer as one word, for storing it.
    #[must_use]
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Back from [`Self::to_bits`]. Every word is a far pointer; its use shows whether it points to something.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// Where messages go: an inbox of a node. Port 0 is the node's home inbox; each endpoint has a port of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The node of the inbox.
    pub node: NodeId,
    /// Which of its inboxes; 0 is the home inbox.
    pub port: u16,
}

impl Address {
    /// Port of the home inbox.
    pub const HOME_PORT: u16 = 0;

    /// The home inbox of a node.
    #[must_use]
    pub const fn home(node: NodeId) -> Self {
        Self { node, port: Self::HOME_PORT }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {}", self.0)
    }
}

impl fmt::Display for FarPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, offset {:#x}", self.node(), self.region(), self.offset())
    }
}

impl fmt::Debug for FarPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FarPtr({}:{}+{:#x})", self.node().0, self.region().0, self.offset())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, port {}", self.node, self.port)
    }
}
