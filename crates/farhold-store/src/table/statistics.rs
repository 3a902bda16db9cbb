//! The size of a table, and the memory that it costs.

use super::{Secondary, TableStore};
use crate::index::hash::HashIndex;
use crate::object::size_class::PAGE_BYTES;
use crate::object::{Object, RESERVED, Words};
use farhold_btree::KeyShape;
use farhold_fabric::Meta;

/// Counted by a walk over the pages, so it costs the hot paths nothing; exact while no thread writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Live rows.
    pub rows: u64,
    /// Bytes of their keys.
    pub key_bytes: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// Bytes of their slots: headers and the rest of the size class included.
    pub slot_bytes: u64,
    /// Older copies and deleted rows that snapshots hold, and reservations.
    pub held_slots: u64,
    /// Bytes of the pages, free slots included.
    pub page_bytes: u64,
    /// Bytes of the ordered indexes.
    pub ordered_bytes: u64,
    /// Bytes of the keys that the ordered indexes hold, packed: the primary's and the secondaries'.
    pub index_key_bytes: u64,
    /// Bytes of the hash index.
    pub hash_bytes: u64,
}

impl Statistics {
    /// Bytes of memory for each byte of keys and values; 0 without rows.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        let payload = self.key_bytes + self.value_bytes;
        if payload == 0 {
            0.0
        } else {
            (self.page_bytes + self.ordered_bytes + self.hash_bytes) as f64 / payload as f64
        }
    }

    /// The sum of two tables.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            key_bytes: self.key_bytes + other.key_bytes,
            value_bytes: self.value_bytes + other.value_bytes,
            slot_bytes: self.slot_bytes + other.slot_bytes,
            held_slots: self.held_slots + other.held_slots,
            page_bytes: self.page_bytes + other.page_bytes,
            ordered_bytes: self.ordered_bytes + other.ordered_bytes,
            index_key_bytes: self.index_key_bytes + other.index_key_bytes,
            hash_bytes: self.hash_bytes + other.hash_bytes,
        }
    }
}

impl TableStore {
    /// Entries of each index that writers keep, with its name: as many as there are live rows, while no thread writes.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, u64)> {
        let mut entries = vec![("the primary key".to_owned(), self.primary().len() as u64)];
        entries.extend(self.hash.iter().map(|index| ("the hash index".to_owned(), index.len())));
        let secondaries = self.secondaries().map(|(number, it)| (format!("index {number}"), it.index.len() as u64));
        entries.extend(secondaries);
        entries
    }

    /// Counts.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let mut found = Statistics { page_bytes: self.slab().run_count_pages() * PAGE_BYTES, ..Statistics::default() };
        let mut keys = IndexKeys::of(self);
        for run in self.pages() {
            for offset in run.slots() {
                let object = Object::at(self.store().memory(), offset);
                let meta = object.meta();
                match meta.state() {
                    Meta::FREE => {}
                    Meta::ROW | RESERVED if !object.version().is_absent() => {
                        found.rows += 1;
                        keys.add(&object, meta);
                        found.key_bytes += meta.key_len() as u64;
                        found.value_bytes += (meta.payload_len() - meta.key_len()) as u64;
                        found.slot_bytes += run.class.slot_bytes() as u64;
                    }
                    _ => found.held_slots += 1,
                }
            }
        }
        found.index_key_bytes = found.key_bytes + found.rows * keys.fixed_bytes + keys.other_bytes;
        found.ordered_bytes = self.primary().memory_bytes() as u64
            + self.secondaries().map(|(_, secondary)| secondary.index.memory_bytes() as u64).sum::<u64>();
        found.hash_bytes = self.hash.as_ref().map_or(0, HashIndex::bytes);
        found
    }
}

/// Bytes of the keys in secondary indexes, so far.
struct IndexKeys<'t> {
    /// Of every row.
    fixed_bytes: u64,
    other_bytes: u64,
    /// The indexes with keys of different lengths.
    others: Vec<&'t Secondary>,
    row: Vec<u8>,
    key: Vec<u8>,
}

impl<'t> IndexKeys<'t> {
    fn of(table: &'t TableStore) -> Self {
        let mut this = Self { fixed_bytes: 0, other_bytes: 0, others: vec![], row: vec![], key: vec![] };
        for (_, secondary) in table.secondaries() {
            match secondary.def.shape {
                KeyShape::Fixed(bytes) => this.fixed_bytes += bytes as u64,
                KeyShape::Short | KeyShape::Bytes => this.others.push(secondary),
            }
        }
        this
    }

    fn add(&mut self, object: &Object<'_>, meta: Meta) {
        if self.others.is_empty() {
            return;
        }
        self.row.resize(meta.payload_len(), 0);
        object.copy_out(&mut self.row);
        let (key, value) = self.row.split_at(meta.key_len());
        for secondary in &self.others {
            // A row that a writer is changing at this moment may make no key: it is not counted.
            if secondary.def.keys.make(key, value, &mut self.key).is_ok() {
                self.other_bytes += self.key.len() as u64;
            }
        }
    }
}
