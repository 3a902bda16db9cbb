//! What can go wrong in a transaction, as far as a caller would act differently.

use crate::base::table::Index;
use farhold_fabric::{FabricError, NodeId};
use farhold_store::durable::DurableError;
use farhold_store::row::RowError;
use farhold_store::{StoreError, TableId};

/// The reason why an operation failed. After [`DuplicateKey`](Self::DuplicateKey), [`TooLarge`](Self::TooLarge),
/// [`ReadOnly`](Self::ReadOnly), [`NotFound`](Self::NotFound) and [`Row`](Self::Row) the transaction is as it was
/// before the call; after any other error it can only be dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// Another transaction came first. Running this one again may succeed.
    #[error("another transaction changed what this one read or wrote; run it again")]
    Conflict,
    /// A row with this key exists in a unique index.
    #[error("a row with this key exists in {index} of {table}")]
    DuplicateKey {
        /// The table.
        table: TableId,
        /// Which of its indexes.
        index: Index,
    },
    /// There is no such table, index or row.
    #[error("there is no {what}")]
    NotFound {
        /// What was asked for, in words.
        what: Box<str>,
    },
    /// There is a table or index of this name already.
    #[error("\"{name}\" exists already")]
    AlreadyExists {
        /// Its name.
        name: Box<str>,
    },
    /// A key, a row or a transaction above a limit.
    #[error("{what} has {bytes} bytes, and the limit is {bytes_max}")]
    TooLarge {
        /// What is too large, in words.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// What is allowed.
        bytes_max: usize,
    },
    /// A node that this transaction needs is dead, cut off or does not answer.
    #[error("{node} {}", match .committed {
        false => "is unavailable; nothing was written",
        true => "became unavailable after the commit point; its part of the transaction may be missing",
    })]
    NodeUnavailable {
        /// The node.
        node: NodeId,
        /// Only from `commit`: the commit point had been passed, so everything but that node's part has been written.
        committed: bool,
    },
    /// The region of a node is full.
    #[error("the memory of {node} is full")]
    OutOfMemory {
        /// The node.
        node: NodeId,
    },
    /// A limit on the number of something is reached.
    #[error("{}", too_many(what, *.limit))]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// A node that this transaction needs is gone or being replaced, or the cluster is changing its configuration. Nothing was
    /// written. Running the transaction again succeeds once other nodes have taken over.
    #[error("{node} is being replaced, or its cluster is changing; run the transaction again")]
    Recovering {
        /// The node.
        node: NodeId,
    },
    /// This node was expelled from its cluster, or lost its connection to it, while the transaction was being replicated. Only the other
    /// nodes know whether it has committed.
    #[error("this node lost its cluster during the commit; only the other nodes know whether it has committed")]
    OutcomeUnknown,
    /// The journal's disk is full. Nothing was written.
    #[error("nothing was written: {reason}")]
    DiskFull {
        /// What it has no room for, in words.
        reason: Box<str>,
    },
    /// The journal is not written: its disk is broken or too slow, or another node's journal has ended.
    #[error("{}: {reason}", if *.committed { "written in memory, and perhaps not on disk" } else { "nothing was written" })]
    NotDurable {
        /// Why, in words.
        reason: Box<str>,
        /// Only from `commit`: its writes are in memory, and whether a restart will find them is unknown. Else nothing was written.
        committed: bool,
    },
    /// Files of a journal that cannot be used.
    #[error(transparent)]
    Durable(Box<DurableError>),
    /// A write in a read-only transaction.
    #[error("the transaction is read-only")]
    ReadOnly,
    /// The table was dropped while the transaction ran.
    #[error("the table was dropped while the transaction ran")]
    SchemaChanged,
    /// The bytes do not fit the table's schema, or a definition makes no sense.
    #[error(transparent)]
    Row(#[from] RowError),
    /// Something that no correct peer sends and no correct program leaves in memory.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Which rule is broken.
        what: &'static str,
    },
    /// The directory or the register is of another cluster, or of other settings: as they are, nothing of it can be used.
    #[error("{reason}")]
    OtherCluster {
        /// What it is of, in words.
        reason: Box<str>,
    },
    /// Another node could not do what it was asked, in its words.
    #[error("{node}: {reason}")]
    Remote {
        /// The node.
        node: NodeId,
        /// Its words.
        reason: Box<str>,
    },
    /// A region that this node cannot use: another node's, damaged, or of another version.
    #[error(transparent)]
    Store(Box<StoreError>),
    /// The fabric refused for a reason that is none of the above.
    #[error(transparent)]
    Fabric(Box<FabricError>),
}

impl TxnError {
    /// A row that can no longer be read: its writer's process ended in the middle of a write, and no other node has a
    /// copy ([`Node::recovered`](crate::Node::recovered)). Running the transaction again fails again.
    pub const HALF_WRITTEN: Self = Self::Corrupt {
        what: "a row was half written when its node's process ended; that node names such rows at its start, and starts without them \
               with --forget-half-written",
    };

    /// Whether the same transaction may succeed when it is run again from its beginning.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict | Self::Recovering { .. })
    }

    /// Whether the transaction has committed although its commit says this.
    pub(crate) const fn is_committed(&self) -> bool {
        matches!(self, Self::NodeUnavailable { committed: true, .. } | Self::NotDurable { committed: true, .. })
    }

    /// The error that a transaction that has written nothing returns instead: a power cut may take back what it read,
    /// so the result is withheld.
    pub(crate) fn of_a_read(self) -> Self {
        match self {
            Self::NotDurable { reason, .. } => Self::NotDurable { reason, committed: false },
            other => other,
        }
    }

    /// Whether the transaction can go on after it.
    pub(crate) const fn leaves_transaction_whole(&self) -> bool {
        matches!(
            self,
            Self::DuplicateKey { .. } | Self::TooLarge { .. } | Self::ReadOnly | Self::NotFound { .. } | Self::Row(_)
        )
    }

    /// What the fabric's refusal to reach `node` means here.
    #[cold]
    pub(crate) fn far(error: FabricError, node: NodeId) -> Self {
        match error {
            FabricError::NodeUnavailable { .. }
            | FabricError::StaleKey { .. }
            | FabricError::NoSuchRegion { .. }
            | FabricError::NoSuchPort { .. }
            | FabricError::Timeout { .. } => Self::NodeUnavailable { node, committed: false },
            other => Self::Fabric(Box::new(other)),
        }
    }

    /// What the store's refusal means here.
    #[cold]
    pub(crate) fn store(error: StoreError, node: NodeId) -> Self {
        match error {
            StoreError::OutOfMemory { .. } => Self::OutOfMemory { node },
            StoreError::TooLarge { payload_bytes, payload_bytes_max } => {
                Self::TooLarge { what: "a row", bytes: payload_bytes, bytes_max: payload_bytes_max }
            }
            StoreError::KeyTooLong { key_bytes } => {
                Self::TooLarge { what: "a key", bytes: key_bytes, bytes_max: usize::from(u16::MAX) }
            }
            StoreError::TooManySnapshots { slots } => Self::TooMany { what: "open snapshots", limit: slots },
            StoreError::TooMany { what, limit } => Self::TooMany { what, limit },
            StoreError::Row(error) => Self::Row(error),
            StoreError::HalfWritten { .. } => Self::HALF_WRITTEN,
            other => Self::Store(Box::new(other)),
        }
    }
}

/// A limit of 0 is the system's.
fn too_many(what: &str, limit: usize) -> String {
    match limit {
        0 => format!("the system gives this process no more {what}"),
        limit => format!("there are {limit} {what} already, which is the limit"),
    }
}
