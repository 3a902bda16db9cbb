//! What a scan is to return.

use crate::base::table::Index;
use farhold_fabric::NodeId;
use std::ops::Bound;

/// Which nodes a scan asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// Those that the bounds leave possible: one, if the table is placed by an integer, the index begins with that column
    /// and both bounds agree in it; else all, their rows merged in key order. This node alone for a replicated table.
    #[default]
    Auto,
    /// This one.
    Node(NodeId),
}

/// What to scan. Bounds are encoded keys of the index, or the beginnings of such.
#[derive(Clone, Copy, Debug)]
pub struct ScanSpec<'a> {
    /// Which index.
    pub index: Index,
    /// Where keys begin.
    pub lo: Bound<&'a [u8]>,
    /// Where keys end.
    pub hi: Bound<&'a [u8]>,
    /// From the end to the beginning?
    pub descending: bool,
    /// Most rows to return. The scan is protected against phantoms as far as it went, no further.
    pub limit: usize,
    /// Which nodes.
    pub partition: Partition,
}

impl<'a> ScanSpec<'a> {
    /// All rows of the table, by primary key.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            index: Index::Primary,
            lo: Bound::Unbounded,
            hi: Bound::Unbounded,
            descending: false,
            limit: usize::MAX,
            partition: Partition::Auto,
        }
    }

    /// Keys from `lo` to before `hi`, by primary key.
    #[must_use]
    pub const fn range(lo: &'a [u8], hi: &'a [u8]) -> Self {
        Self { lo: Bound::Included(lo), hi: Bound::Excluded(hi), ..Self::all() }
    }

    /// By another index.
    #[must_use]
    pub const fn index(self, index: Index) -> Self {
        Self { index, ..self }
    }

    /// The last keys first.
    #[must_use]
    pub const fn descending(self) -> Self {
        Self { descending: true, ..self }
    }

    /// At most `limit` rows.
    #[must_use]
    pub const fn limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// Only the rows of one node.
    #[must_use]
    pub const fn on(self, node: NodeId) -> Self {
        Self { partition: Partition::Node(node), ..self }
    }

    /// Does the range contain this key?
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let after = match self.lo {
            Bound::Included(lo) => key >= lo,
            Bound::Excluded(lo) => key > lo,
            Bound::Unbounded => true,
        };
        let before = match self.hi {
            Bound::Included(hi) => key <= hi,
            Bound::Excluded(hi) => key < hi,
            Bound::Unbounded => true,
        };
        after && before
    }
}
