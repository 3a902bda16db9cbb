//! Tables: what is said of one when it is created, and the handle through which transactions name it.

use crate::lower::{Layout, NodeId, Schema, SecondaryIndex};
use std::fmt;

/// A table's number: never used again after a drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}", self.0)
    }
}

/// Which of a table's indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Index {
    /// The primary key's.
    #[default]
    Primary,
    /// The secondary index with this slot: its position in [`Table::indexes`]. A slot keeps its meaning while the table
    /// lives, also when other indexes are dropped.
    Secondary(u16),
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("the primary key"),
            Self::Secondary(slot) => write!(f, "secondary index {slot}"),
        }
    }
}

/// Which node a row lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On every node: read near, written everywhere.
    Replicated,
    /// By the first key column, an integer: its value minus one, modulo the number of nodes. So a warehouse 1 is on node 0.
    ByInteger,
    /// By a hash of the whole primary key.
    ByHash,
}

/// What a table is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableDef {
    /// Its name, unique in the database. Compared byte by byte.
    pub name: String,
    /// Its columns and primary key.
    pub schema: Schema,
    /// Where its rows live.
    pub placement: Placement,
    /// Whether it has a hash index for point reads beside the ordered one. Far point reads need it to be one-sided.
    pub hash: bool,
    /// Its secondary indexes. Each node indexes its own rows; a unique index is unique within each node, so of a table
    /// that is not replicated it must begin with the placement column or [`create_table`](crate::Worker::create_table)
    /// refuses it (unless there is one node alone).
    pub indexes: Vec<SecondaryIndex>,
    /// For the layer above: kept with the definition and given back, never read here.
    pub attributes: Vec<u8>,
}

/// A table as transactions name it. Cheap to clone; stays valid after a drop, when every use says so.
#[derive(Clone)]
pub struct Table;

/// One secondary index of a table.
#[derive(Clone, Debug)]
pub struct TableIndex {
    /// How scans name it.
    pub index: Index,
    /// What it is.
    pub definition: SecondaryIndex,
    /// Whether it may be read: false while it is being filled.
    pub ready: bool,
}

impl Table {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> TableId {
        unimplemented!()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        unimplemented!()
    }

    /// Its columns and primary key.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        unimplemented!()
    }

    /// Where each column lies in keys and values.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        unimplemented!()
    }

    /// Where its rows live.
    #[must_use]
    pub fn placement(&self) -> Placement {
        unimplemented!()
    }

    /// Its secondary indexes at this moment.
    #[must_use]
    pub fn indexes(&self) -> Vec<TableIndex> {
        unimplemented!()
    }

    /// The layer above's bytes from its definition.
    #[must_use]
    pub fn attributes(&self) -> &[u8] {
        unimplemented!()
    }

    /// The definition as it stands, indexes created since included.
    #[must_use]
    pub fn definition(&self) -> TableDef {
        unimplemented!()
    }

    /// The node where the row with this primary key lives; this node for a replicated table.
    #[must_use]
    pub fn home_of(&self, key: &[u8]) -> NodeId {
        let _ = key;
        unimplemented!()
    }

    /// Live rows of this node, about (exact when nobody writes).
    #[must_use]
    pub fn row_count(&self) -> u64 {
        unimplemented!()
    }
}
