//! What a program sees of a table.

use super::indexes::{IndexSlot, IndexState};
use super::{Index, Table};
use crate::base::definition::{KeptColumns, Placement, TableDef};
use crate::base::error::TxnError;
use farhold_fabric::NodeId;
use farhold_store::TableId;
use farhold_store::object::size_class::PAGE_BYTES;
use farhold_store::row::{Layout, Schema, SecondaryIndex, SecondaryKeys};
use std::sync::{Arc, PoisonError};

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
        self.0.store.id()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its columns and primary key.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.0.schema
    }

    /// Where each column lies in keys and values.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.0.schema.layout()
    }

    /// Where its rows live.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.0.placement
    }

    /// Its secondary indexes at this moment, those being filled included.
    #[must_use]
    pub fn indexes(&self) -> Vec<TableIndex> {
        let slots = self.0.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let live = (0_u16..).zip(slots.iter()).filter(|(_, slot)| slot.state != IndexState::Dropped);
        let index = |(slot, it): (u16, &IndexSlot)| TableIndex {
            index: Index::Secondary(slot),
            definition: it.definition.clone(),
            ready: it.state == IndexState::Ready,
        };
        live.map(index).collect()
    }

    /// The maker of an index's keys, for bounds of scans and keys of [`get_by`](crate::Txn::get_by).
    ///
    /// # Errors
    /// [`TxnError::NotFound`] for the primary key, whose maker is the [schema](Self::schema), and for a number that no index has had;
    /// [`TxnError::SchemaChanged`] for an index that is not ready or has been dropped.
    pub fn keys_of(&self, index: Index) -> Result<Arc<SecondaryKeys>, TxnError> {
        self.0.keys_of(index)
    }

    /// The layer above's bytes from its definition, as this node has them now: see
    /// [`change_attributes`](crate::Worker::change_attributes).
    #[must_use]
    pub fn attributes(&self) -> Arc<[u8]> {
        self.0.attributes()
    }

    /// A number that grows with each change of the [attributes](Self::attributes) on this node. A caller that reads it before them
    /// has them at this number or a later one.
    #[must_use]
    pub fn attributes_version(&self) -> u64 {
        self.0.attributes_version()
    }

    /// Which of its columns are kept as columns too, for scans.
    #[must_use]
    pub fn kept_columns(&self) -> KeptColumns {
        self.0.kept_columns()
    }

    /// The definition as it stands, indexes created since included, dropped ones not.
    #[must_use]
    pub fn definition(&self) -> TableDef {
        let (mut definition, live) = self.0.definition();
        let mut live = live.iter();
        definition.indexes.retain(|_| live.next() == Some(&true));
        definition
    }

    /// The node where the row with this primary key lives; this node for a replicated table.
    #[must_use]
    pub fn home_of(&self, key: &[u8]) -> NodeId {
        self.0.route.home(key)
    }

    /// Rows of this node, about: rows being inserted or deleted count while they are.
    #[must_use]
    pub fn row_count(&self) -> u64 {
        self.0.store.primary().len() as u64
    }

    /// Bytes of the pages that rows of this node are in, free slots included.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.0.store.page_count() * PAGE_BYTES
    }

    /// Whether it has been dropped.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.0.is_dropped()
    }
}
