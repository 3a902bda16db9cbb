//! Which node has a row: by its key, and by which node serves the partition of the key.

use crate::base::definition::Placement;
use crate::base::nodes::{NOBODY, ServingMap};
use farhold_fabric::NodeId;
use farhold_store::row::Schema;
use std::sync::Arc;

/// Where the rows of a table are.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    placement: Placement,
    nodes: u8,
    me: NodeId,
    /// Bytes of the first key column, for a placement by integer.
    width: u8,
    /// The server of each partition, if that may change.
    serving: Option<Arc<ServingMap>>,
}

/// What a table has to know of its cluster.
pub(crate) struct Cluster {
    pub nodes: u8,
    /// Of the node: tells its tables from those of other nodes in the same process.
    pub tag: u64,
    /// The server of each partition, if that may change.
    pub serving: Option<Arc<ServingMap>>,
}

impl Route {
    pub fn new(placement: Placement, cluster: Cluster, me: NodeId, schema: &Schema) -> Self {
        let first = schema.columns()[schema.key()[0]].data_type;
        let width = first.key_bytes().unwrap_or(0) as u8;
        Self { placement, nodes: cluster.nodes, me, width, serving: cluster.serving }
    }

    /// The node of a primary key; [`NOBODY`] while a partition has none.
    #[inline]
    pub fn home(&self, key: &[u8]) -> NodeId {
        if self.nodes == 1 || self.placement == Placement::Replicated {
            return self.me;
        }
        self.served(self.partition(key))
    }

    /// The node that serves a partition.
    #[inline]
    fn served(&self, partition: NodeId) -> NodeId {
        match &self.serving {
            None => partition,
            Some(serving) => serving.of(partition),
        }
    }

    /// Is there a partition that no node serves?
    pub fn has_unserved(&self) -> bool {
        self.serving.as_ref().is_some_and(|serving| (0..self.nodes).any(|it| serving.of(NodeId(it)).0 == NOBODY))
    }

    /// The partition of a primary key.
    #[inline]
    pub fn partition(&self, key: &[u8]) -> NodeId {
        match self.placement {
            Placement::Replicated => self.me,
            Placement::ByInteger => self.integer_partition(key),
            Placement::ByHash => NodeId((hash(key) % u64::from(self.nodes)) as u8),
        }
    }

    /// The node of all keys that begin with this integer column.
    #[inline]
    pub fn by_integer(&self, key: &[u8]) -> NodeId {
        self.served(self.integer_partition(key))
    }

    #[inline]
    #[allow(clippy::many_single_char_names, reason = "eight bytes")]
    fn integer_partition(&self, key: &[u8]) -> NodeId {
        // Big-endian with the sign bit turned over. A key that is too short is refused elsewhere.
        let value = match (self.width, key) {
            (2, [a, b, ..]) => i64::from((u16::from_be_bytes([*a, *b]) ^ 0x8000).cast_signed()),
            (4, [a, b, c, d, ..]) => i64::from((u32::from_be_bytes([*a, *b, *c, *d]) ^ 0x8000_0000).cast_signed()),
            (8, [a, b, c, d, e, f, g, h, ..]) => {
                (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]) ^ 1 << 63).cast_signed()
            }
            _ => 1,
        };
        NodeId(value.wrapping_sub(1).rem_euclid(i64::from(self.nodes)) as u8)
    }

    /// Bytes that decide a placement by integer; `None` for other placements.
    pub fn integer_bytes(&self) -> Option<usize> {
        (self.placement == Placement::ByInteger).then_some(usize::from(self.width))
    }

    /// Is every row on this node, or a copy of it?
    #[inline]
    pub fn is_local_only(&self) -> bool {
        self.nodes == 1 || self.placement == Placement::Replicated
    }

    /// Must writes go to every node?
    #[inline]
    pub fn writes_everywhere(&self) -> bool {
        self.nodes > 1 && self.placement == Placement::Replicated
    }
}

/// FNV-1a with a final mix. Part of the format: rows stay where it has put them.
fn hash(key: &[u8]) -> u64 {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}
