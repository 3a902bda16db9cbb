//! What a node's rows cost: the bytes of rows and keys, and the bytes taken for them.

use crate::base::table::Table;
use crate::node::Node;

/// Bytes of a table's part on this node, or of all tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Live rows.
    pub rows: u64,
    /// Bytes of their keys and values, packed.
    pub data_bytes: u64,
    /// Bytes of the keys that the ordered indexes hold, packed. (The primary's are also part of the rows.)
    pub key_bytes: u64,
    /// Bytes taken for them: whole pages (headers, free slots, old copies included), ordered and hash indexes.
    pub used_bytes: u64,
    /// The ordered indexes' part of [`Self::used_bytes`].
    pub ordered_bytes: u64,
    /// The hash index's part.
    pub hash_bytes: u64,
}

impl Table {
    /// Counts by a walk over the table's pages, so it costs the hot paths nothing; exact while nothing writes.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let found = self.0.store.statistics();
        MemoryUse {
            rows: found.rows,
            data_bytes: found.key_bytes + found.value_bytes,
            key_bytes: found.index_key_bytes,
            used_bytes: found.page_bytes + found.ordered_bytes + found.hash_bytes,
            ordered_bytes: found.ordered_bytes,
            hash_bytes: found.hash_bytes,
        }
    }
}

impl Node {
    /// The sum over its tables.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let mut sum = MemoryUse::default();
        for table in self.tables() {
            let found = table.memory();
            sum.rows += found.rows;
            sum.data_bytes += found.data_bytes;
            sum.key_bytes += found.key_bytes;
            sum.used_bytes += found.used_bytes;
            sum.ordered_bytes += found.ordered_bytes;
            sum.hash_bytes += found.hash_bytes;
        }
        sum
    }
}
