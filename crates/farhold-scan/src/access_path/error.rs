//! Why a scan failed.

use farhold_fabric::{FabricError, NodeId, RegionId};
use farhold_store::column::ChunkError;

use super::pushdown::{Refusal, WireError};

/// Why a scan ended before its last segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The path cannot be used here. The sink has received nothing, so another path may be taken.
    #[error("the access path {path} cannot be used: {why}; take another one")]
    Unusable {
        /// Its name.
        path: &'static str,
        /// Why.
        why: Why,
    },
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Bytes are not a chunk, or not a chunk of their column.
    #[error("column {column} of segment {segment}: {source}")]
    Chunk {
        /// The segment, by its place in the scan.
        segment: usize,
        /// The column.
        column: usize,
        /// What is wrong.
        source: ChunkError,
    },
    /// A segment does not fit this table, or is not kept by the pin.
    #[error("segment {segment}: {what}")]
    Segment {
        /// Its place in the scan.
        segment: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The home node's agent refused the request.
    #[error("the home node's agent refused: {0}")]
    Refused(Refusal),
    /// The agent's reply is not valid.
    #[error("the home node's agent sent an invalid reply: {0}")]
    Reply(#[from] WireError),
}

/// Why an access path cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The memory is not mapped.
    #[error("{region} of {node} is not mapped here")]
    NotMapped {
        /// The node.
        node: NodeId,
        /// The region.
        region: RegionId,
    },
    /// No mover copies mapped memory.
    #[error("{region} of {node} is mapped here, and no mover was started to copy from it")]
    NoMover {
        /// The node.
        node: NodeId,
        /// The region.
        region: RegionId,
    },
    /// There is no line to the home nodes' agents.
    #[error("there is no line to the home nodes' agents")]
    NoLine,
    /// A request does not fit into a message.
    #[error("a request for it has {bytes} bytes, more than the {bytes_max} of a message")]
    LongRequest {
        /// The request's number of bytes, or a lower bound.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// Chunks of one segment lie on several nodes.
    #[error("the chunks of segment {segment} lie on several nodes")]
    Scattered {
        /// Its place in the scan.
        segment: usize,
    },
}
