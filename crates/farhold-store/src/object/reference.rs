//! References to objects, and the owners of their locks.

use farhold_fabric::object::ALIGN;
use farhold_fabric::{FarPtr, NodeId, RegionId};
use std::fmt;

/// The place of an object and the use of its slot: `unit:32 (24..56) | incarnation:24 (0..24)`.
///
/// The unit counts 16 bytes from the start of the region (64 GiB of them); the top byte is free for an index's tag. An index
/// entry is this word. While a reference has the slot's incarnation, it means the same row with the same keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ObjectRef(u64);

impl ObjectRef {
    /// No object: the first unit is the superblock.
    pub const NONE: Self = Self(0);
    /// The bits in use.
    pub const BITS: u64 = (1 << 56) - 1;
    /// The bits of an incarnation.
    pub const INCARNATION_BITS: u32 = (1 << 24) - 1;
    /// Longest region that units can name.
    pub const REGION_BYTES_MAX: u64 = ALIGN << 32;

    /// Puts a reference together.
    #[must_use]
    #[inline(always)]
    pub const fn new(offset: u64, incarnation: u32) -> Self {
        debug_assert!(offset.is_multiple_of(ALIGN) && offset < Self::REGION_BYTES_MAX);
        Self((offset / ALIGN) << 24 | (incarnation & Self::INCARNATION_BITS) as u64)
    }

    /// From the word an index holds; the top byte is dropped.
    #[must_use]
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & Self::BITS)
    }

    /// The word an index holds; the top byte is zero.
    #[must_use]
    #[inline(always)]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Bytes from the start of the region.
    #[must_use]
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        (self.0 >> 24) * ALIGN
    }

    /// Which use of the slot.
    #[must_use]
    #[inline(always)]
    pub const fn incarnation(self) -> u32 {
        self.0 as u32 & Self::INCARNATION_BITS
    }

    /// Is it [`Self::NONE`]?
    #[must_use]
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The same object for a far reader.
    #[must_use]
    pub const fn far(self, node: NodeId, region: RegionId) -> FarPtr {
        FarPtr::new(node, region, self.offset())
    }
}

impl fmt::Debug for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectRef({:#x}, incarnation {})", self.offset(), self.incarnation())
    }
}

/// The holder of a lock: `incarnation:16 | node:8 | worker:8 | transaction:31 | 1`, so never 0.
///
/// The incarnation is the owner node's ([`Superblock`](crate::Superblock) counts its starts), so locks of a node that
/// died can be told from those of its successor.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Owner(u64);

impl Owner {
    /// Holds the lock of a row with a writer that ended in the middle. It is no transaction's: there is no node 255.
    pub const DAMAGED: Self = Self(u64::MAX);

    /// Puts an owner together; the transaction number is taken modulo 2^31.
    #[must_use]
    #[inline(always)]
    pub const fn new(incarnation: u16, node: NodeId, worker: u8, transaction: u32) -> Self {
        Self(
            (incarnation as u64) << 48
                | (node.0 as u64) << 40
                | (worker as u64) << 32
                | ((transaction & 0x7fff_ffff) as u64) << 1
                | 1,
        )
    }

    /// From a lock word; `None` if it is free.
    #[must_use]
    #[inline(always)]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word == 0 { None } else { Some(Self(word)) }
    }

    /// The lock word.
    #[must_use]
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Which start of the owner's node.
    #[must_use]
    pub const fn incarnation(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// The owner's node.
    #[must_use]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 40) as u8)
    }

    /// The worker on that node.
    #[must_use]
    pub const fn worker(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// The worker's transaction.
    #[must_use]
    pub const fn transaction(self) -> u32 {
        (self.0 as u32) >> 1
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::DAMAGED {
            return f.write_str("Owner::DAMAGED");
        }
        write!(
            f,
            "Owner({}, start {}, worker {}, transaction {})",
            self.node(),
            self.incarnation(),
            self.worker(),
            self.transaction()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let reference = ObjectRef::new(ObjectRef::REGION_BYTES_MAX - 16, ObjectRef::INCARNATION_BITS);
        assert_eq!(reference.offset(), ObjectRef::REGION_BYTES_MAX - 16);
        assert_eq!(reference.incarnation(), ObjectRef::INCARNATION_BITS);
        assert_eq!(ObjectRef::from_bits(reference.to_bits() | 0xab << 56), reference);

        let owner = Owner::new(65_535, NodeId(254), 253, u32::MAX);
        assert_eq!((owner.incarnation(), owner.node(), owner.worker()), (65_535, NodeId(254), 253));
        assert_eq!(owner.transaction(), 0x7fff_ffff);
        assert_eq!(Owner::from_word(owner.word()), Some(owner));
        assert_eq!(Owner::from_word(0), None);
        assert_ne!(Owner::new(0, NodeId(0), 0, 0).word(), 0);
    }
}
