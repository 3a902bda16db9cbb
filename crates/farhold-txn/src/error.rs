//! What can go wrong in a transaction, as far as a caller would act differently.

use crate::lower::{FabricError, NodeId, RowError};
use crate::table::{Index, TableId};
use std::fmt;

/// Why an operation did not happen. After [`DuplicateKey`](Self::DuplicateKey), [`TooLarge`](Self::TooLarge),
/// [`ReadOnly`](Self::ReadOnly), [`NotFound`](Self::NotFound) and [`Row`](Self::Row) the transaction stands where it stood
/// before the call; after any other it can only be dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TxnError {
    /// Another transaction came first. Running this one again may succeed.
    Conflict,
    /// A row with this key exists in a unique index.
    DuplicateKey {
        /// The table.
        table: TableId,
        /// Which of its indexes.
        index: Index,
    },
    /// There is no such table, index or row.
    NotFound {
        /// What was asked for, in words.
        what: Box<str>,
    },
    /// There is a table or index of this name already.
    AlreadyExists {
        /// Its name.
        name: Box<str>,
    },
    /// A key, a row or a transaction above a limit.
    TooLarge {
        /// What is too large, in words.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// What is allowed.
        bytes_max: usize,
    },
    /// A node that this transaction needs is dead, cut off or does not answer.
    NodeUnavailable {
        /// The node.
        node: NodeId,
        /// Only from `commit`: the commit point had been passed, so everything but that node's part has been written.
        committed: bool,
    },
    /// The region of a node is full.
    OutOfMemory {
        /// The node.
        node: NodeId,
    },
    /// A write in a read-only transaction.
    ReadOnly,
    /// The table was dropped while the transaction ran.
    SchemaChanged,
    /// The bytes do not fit the table's schema, or a definition makes no sense.
    Row(RowError),
    /// Something that no correct peer sends and no correct program leaves in memory.
    Corrupt {
        /// Which rule is broken.
        what: &'static str,
    },
    /// The fabric refused for a reason that is none of the above.
    Fabric(FabricError),
}

impl TxnError {
    /// Whether the same transaction may succeed when it is run again from its beginning.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict)
    }
}

impl fmt::Display for TxnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("another transaction changed what this one read or wrote; run it again"),
            Self::DuplicateKey { table, index } => write!(f, "a row with this key exists in {index} of {table}"),
            Self::NotFound { what } => write!(f, "there is no {what}"),
            Self::AlreadyExists { name } => write!(f, "\"{name}\" exists already"),
            Self::TooLarge { what, bytes, bytes_max } => write!(f, "{what} of {bytes} bytes, the limit is {bytes_max}"),
            Self::NodeUnavailable { node, committed: false } => write!(f, "node {} is unavailable; nothing was written", node.0),
            Self::NodeUnavailable { node, committed: true } => {
                write!(f, "node {} became unavailable after the commit point; its part of the transaction may be missing", node.0)
            }
            Self::OutOfMemory { node } => write!(f, "the region of node {} is full", node.0),
            Self::ReadOnly => f.write_str("the transaction is read-only"),
            Self::SchemaChanged => f.write_str("the table was dropped while the transaction ran"),
            Self::Row(error) => write!(f, "{error:?}"),
            Self::Corrupt { what } => write!(f, "corrupt: {what}"),
            Self::Fabric(error) => write!(f, "{error:?}"),
        }
    }
}

impl std::error::Error for TxnError {}

impl From<RowError> for TxnError {
    fn from(error: RowError) -> Self {
        Self::Row(error)
    }
}
