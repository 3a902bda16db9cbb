//! The errors of a store. Two errors differ only if a caller would act differently.

use crate::object::ObjectRef;
use crate::object::size_class::PAYLOAD_BYTES_MAX;
use crate::row::RowError;
use farhold_fabric::{FabricError, NodeId};
use std::fmt;

/// Number of a table, the same on every node. The owner of the table chooses it, and never reuses it for another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// Why a store refused a call. Nothing was changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The region has no run of pages left, or its file system has no memory for one.
    #[error("no room for {wanted_bytes} more bytes of {table}: {}", room(*.free_bytes, *.region_bytes, *.file_system_bytes))]
    OutOfMemory {
        /// For which table.
        table: TableId,
        /// Bytes in one piece that were wanted.
        wanted_bytes: u64,
        /// Bytes of all free pages (in pieces that are too short, if more than wanted).
        free_bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
        /// If the file system below the region is full: the bytes that it has left.
        file_system_bytes: Option<u64>,
    },
    /// The fabric refused the region's memory, when the store was made in it.
    #[error(transparent)]
    Fabric(FabricError),
    /// The row is longer than the longest slot.
    #[error("a row of {payload_bytes} bytes is longer than the {payload_bytes_max} that a row can have")]
    TooLarge {
        /// Bytes of key and value.
        payload_bytes: usize,
        /// What fits.
        payload_bytes_max: usize,
    },
    /// The key is longer than a header can say.
    #[error("a key of {key_bytes} bytes is longer than the 65535 that a key can have")]
    KeyTooLong {
        /// Bytes of the key.
        key_bytes: usize,
    },
    /// The region is too short for a store, or longer than references can address.
    #[error("a region of {region_bytes} bytes cannot hold a store; it takes {bytes_min} to {bytes_max} bytes")]
    RegionLength {
        /// Its bytes.
        region_bytes: u64,
        /// The least a store takes.
        bytes_min: u64,
        /// The most.
        bytes_max: u64,
    },
    /// The region holds something else, or nothing.
    #[error("the region is not a Farhold store (it starts with {found:#018x}); nothing in it was touched")]
    Foreign {
        /// What stands where the magic number belongs.
        found: u64,
    },
    /// Another version of this program wrote the region.
    #[error(
        "the region has layout version {found}, this program writes {expected}; start the version that wrote it, \
         or export and load anew"
    )]
    LayoutVersion {
        /// Its version.
        found: u64,
        /// The version of this program.
        expected: u64,
    },
    /// The region is another node's.
    #[error("the region belongs to node {found}, not to {expected}; nothing in it was touched")]
    WrongNode {
        /// The node that it belongs to.
        found: u64,
        /// The node of the caller.
        expected: NodeId,
    },
    /// The region is shorter than when it was made.
    #[error(
        "{region} has {region_bytes} bytes but was made with {expected_bytes}, so rows are missing; nothing in \
         it was touched: put back a copy of the whole directory, or take another"
    )]
    Truncated {
        /// Its file, or which it is.
        region: Box<str>,
        /// Its bytes now.
        region_bytes: u64,
        /// Its bytes then.
        expected_bytes: u64,
    },
    /// The region's own accounts contradict each other.
    #[error("the region is damaged at offset {offset:#x}: {reason}")]
    Corrupt {
        /// Where, in bytes from its start.
        offset: u64,
        /// What is wrong there.
        reason: &'static str,
    },
    /// A row was being written when the process of its writer ended, and there is no replica of it.
    #[error("the row at offset {offset:#x} is half written")]
    HalfWritten {
        /// Where it is, in bytes from the region's start.
        offset: u64,
    },
    /// A key maker could not make a key of the row.
    #[error("no index key can be made of the row: {0}")]
    Row(RowError),
    /// Two live rows of one unique index have the same key.
    #[error("two rows have the same key in unique index {index}: {first:?} and {second:?}")]
    Duplicate {
        /// Which index of the table.
        index: usize,
        /// One of the rows.
        first: ObjectRef,
        /// The other.
        second: ObjectRef,
    },
    /// Every snapshot slot is taken.
    #[error("all {slots} snapshot slots are in use; close a snapshot, or wait")]
    TooManySnapshots {
        /// How many there are.
        slots: usize,
    },
    /// More tables in a store, or more indexes of a table, than there is room for.
    #[error("no more than {limit} {what} are possible")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there can be.
        limit: usize,
    },
    /// A table of that number is open, or its rows are still in the region.
    #[error("{0} exists already")]
    TableExists(TableId),
}

impl StoreError {
    pub(crate) fn too_large(payload_bytes: usize) -> Self {
        Self::TooLarge { payload_bytes, payload_bytes_max: PAYLOAD_BYTES_MAX }
    }
}

/// What there is room for, and how there could be more.
fn room(free_bytes: u64, region_bytes: u64, file_system_bytes: Option<u64>) -> String {
    match file_system_bytes {
        Some(left) => format!(
            "the file system of the region has {left} bytes left, while {free_bytes} of the region are free; delete rows, or give the file \
             system more room (docker: --shm-size)"
        ),
        None => format!(
            "{free_bytes} of the region's {region_bytes} bytes are free; delete rows, or start the node with a larger region"
        ),
    }
}
