//! What a node's rows cost: the bytes of rows and keys, and the bytes taken for them.

use crate::Node;

/// Bytes of a node's tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Live rows.
    pub rows: u64,
    /// Bytes of their keys and values, packed.
    pub data_bytes: u64,
    /// Bytes taken for them: whole pages (headers, free slots, old copies included), ordered and hash indexes.
    pub used_bytes: u64,
}

impl Node {
    /// Counts by a walk over all pages, so it costs the hot paths nothing; exact while nobody writes.
    #[must_use]
    pub fn memory(&self) -> MemoryUse {
        let mut sum = MemoryUse::default();
        for table in self.tables() {
            let found = table.0.store.statistics();
            sum.rows += found.rows;
            sum.data_bytes += found.key_bytes + found.value_bytes;
            sum.used_bytes += found.page_bytes + found.ordered_bytes + found.hash_bytes;
        }
        sum
    }
}
