//! Settings that all nodes of a cluster share.

/// Settings of replication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// Copies of each row, the first included: 1 means no replication, and costs nothing. Acknowledged transactions
    /// survive the loss of `replicas - 1` nodes.
    pub replicas: u8,
    /// Whether near rows are visible while they are being replicated (DrTM+R's order); else only afterwards.
    pub optimistic: bool,
    /// Workers of a node that can write: each has a ring on every node.
    pub rings: u8,
    /// Bytes of a ring, a multiple of 4096. A transaction's record is at most half of it.
    pub ring_bytes: u64,
    /// How long a member may go unheard before the others go on without it.
    pub lease_ns: u64,
    /// How far the clocks of two members may drift apart during one lease.
    pub clock_skew_ns_max: u64,
}

impl Default for ReplicationConfig {
    fn default() -> Self {
        Self {
            replicas: 1,
            optimistic: true,
            rings: 8,
            ring_bytes: 2 << 20,
            lease_ns: 100_000_000,
            clock_skew_ns_max: 10_000_000,
        }
    }
}
