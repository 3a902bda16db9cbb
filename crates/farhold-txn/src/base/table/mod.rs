//! Tables: the handle through which transactions name one, and what of it lies on this node.

mod handle;
mod indexes;

use crate::base::definition::{KeptColumns, Placement, Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::route::Cluster;
use crate::base::route::Route;
use crate::base::threads::on_threads;
use farhold_btree::KeyShape;
use farhold_store::row::{self, RowError, Schema};
use farhold_store::table::Rebuilt;
use farhold_store::{Store, TableStore};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

pub use farhold_store::TableId;
pub use handle::TableIndex;
pub(crate) use indexes::Coordinator;
use indexes::{IndexSlot, IndexState, index_def, no_index, primary_shape, secondary_shape};

/// Which of a table's indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Index {
    /// The primary key's.
    #[default]
    Primary,
    /// The secondary index with this slot: see [`TableIndex::index`]. A slot keeps its meaning while the table lives, also
    /// when other indexes are dropped.
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

impl Index {
    /// The store's number: 0 is the primary.
    #[inline]
    pub(crate) fn number(self) -> usize {
        match self {
            Self::Primary => 0,
            Self::Secondary(slot) => usize::from(slot) + 1,
        }
    }

    /// Back from the store's number.
    pub(crate) fn from_number(number: u16) -> Self {
        match number {
            0 => Self::Primary,
            number => Self::Secondary(number - 1),
        }
    }
}

/// A table as transactions name it. Cheap to clone; stays valid after a drop, when every use says so.
#[derive(Clone, Debug)]
pub struct Table(pub(crate) Arc<TableShared>);

/// A table on this node.
pub(crate) struct TableShared {
    pub store: TableStore,
    pub name: String,
    pub schema: Schema,
    pub placement: Placement,
    pub hash: bool,
    columns: RwLock<KeptColumns>,
    attributes: RwLock<Arc<[u8]>>,
    /// Counts the changes of the attributes. It grows before a transaction can begin that commits in spite of the change.
    attributes_version: AtomicU64,
    pub route: Route,
    /// Every index it ever had: its slots. Writers need the store's list only.
    indexes: RwLock<Vec<IndexSlot>>,
    /// Slots of dropped indexes, including indexes that this node never knew: a message that adds one of these comes too late. Used under
    /// the lock of `indexes`.
    gone: Mutex<BTreeSet<u16>>,
    has_secondary: AtomicBool,
    /// The longest payload met so far on other nodes: the room that a far read asks for.
    payload_hint: AtomicU32,
    dropped: AtomicBool,
    /// This node has a column copy of it, or begins one: see [`Self::set_copied`].
    is_copied: AtomicBool,
    /// The node that the table belongs to: handles of one node's tables mean nothing to another's workers.
    pub owner: u64,
}

/// Room of a far read of a table whose row lengths are not known yet.
const PAYLOAD_HINT_FIRST: u32 = 256;

/// How a table comes to be on a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Open {
    /// Empty.
    Create,
    /// With the rows that are in the region.
    Attach {
        /// The number of threads.
        threads: usize,
        /// Rows that are half written are freed.
        forgets_damaged: bool,
    },
}

impl TableShared {
    pub fn open(
        store: &Arc<Store>,
        id: TableId,
        definition: TableDef,
        recorded: &[Recorded],
        open: Open,
        cluster: Cluster,
    ) -> Result<(Self, Rebuilt), TxnError> {
        let TableDef { name, schema, placement, hash, columns, indexes, attributes } = definition;
        let refused = |error| TxnError::store(error, store.node());
        let mut secondaries = Vec::with_capacity(indexes.len());
        let mut slots = Vec::with_capacity(indexes.len());
        for (index, recorded) in indexes.into_iter().zip(recorded) {
            let is_live = *recorded == Recorded::Live;
            let (def, keys) = index_def(&schema, &index)?;
            // A slot whose index was dropped, or never became complete, stays empty; those behind it keep their numbers.
            secondaries.push(is_live.then_some(def));
            let state = if is_live { IndexState::Ready } else { IndexState::Dropped };
            slots.push(IndexSlot { definition: index, keys, state, coordinator: None });
        }
        let def = farhold_store::TableDef { id, primary: primary_shape(&schema), hash, secondaries };
        let table = match open {
            Open::Create => TableStore::create(store, def).map(|table| (table, Rebuilt::default())),
            Open::Attach { threads, forgets_damaged } => {
                TableStore::attach_parallel(store, def, forgets_damaged, &|job| on_threads(threads, job))
            }
        };
        let (table, found) = table.map_err(refused)?;
        let owner = cluster.tag;
        let route = Route::new(placement, cluster, store.node(), &schema);
        let has_secondary = AtomicBool::new(recorded.contains(&Recorded::Live));
        let this = Self {
            store: table,
            name,
            schema,
            placement,
            hash,
            columns: RwLock::new(columns),
            attributes: RwLock::new(attributes.into()),
            attributes_version: AtomicU64::new(0),
            route,
            indexes: RwLock::new(slots),
            gone: Mutex::default(),
            has_secondary,
            payload_hint: AtomicU32::new(PAYLOAD_HINT_FIRST),
            dropped: AtomicBool::new(false),
            is_copied: AtomicBool::new(false),
            owner,
        };
        Ok((this, found))
    }

    #[inline]
    pub fn has_secondary(&self) -> bool {
        self.has_secondary.load(Relaxed)
    }

    #[inline]
    pub fn is_dropped(&self) -> bool {
        self.dropped.load(Relaxed)
    }

    pub fn mark_dropped(&self) {
        self.dropped.store(true, SeqCst);
        self.store.forget();
    }

    /// The key shape of an index.
    ///
    /// # Errors
    /// [`TxnError::Row`] for a key that the index cannot hold; [`TxnError::NotFound`] for an index that is not there.
    #[inline]
    pub fn check_key(&self, key: &[u8]) -> Result<(), TxnError> {
        match self.schema.key_shape() {
            row::KeyShape::Fixed(bytes) if key.len() == bytes => Ok(()),
            row::KeyShape::Variable { .. } if key.len() <= Schema::PART_BYTES_MAX => Ok(()),
            _ => Err(bad_key(key.len())),
        }
    }

    /// As [`Self::check_key`], for any index.
    pub fn check_index_key(&self, index: Index, key: &[u8]) -> Result<(), TxnError> {
        let Index::Secondary(slot) = index else { return self.check_key(key) };
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.get(usize::from(slot)).ok_or_else(|| no_index(&self.name, index))?;
        match secondary_shape(&self.schema, &slot.definition) {
            KeyShape::Fixed(bytes) if key.len() != bytes => Err(bad_key(key.len())),
            _ => Ok(()),
        }
    }

    /// An index that does not lead to this object although the object is a row. For checks, while nothing writes.
    pub fn missing_in(&self, object: farhold_store::Object<'_>) -> Option<String> {
        let meta = object.meta();
        let mut payload = vec![0; meta.payload_len()];
        let reference = farhold_store::ObjectRef::new(object.offset(), meta.incarnation());
        let read = object.read(meta.incarnation(), &mut payload).ok().filter(|read| !read.is_absent())?;
        let (key, value) = payload[..read.payload_len()].split_at(read.key_len());
        if self.store.lookup(key).found != Some(reference) {
            return Some("the hash index".to_owned());
        }
        if self.store.primary().get(key).value != Some(reference.to_bits()) {
            return Some(Index::Primary.to_string());
        }
        let mut made = Vec::new();
        self.all_keys().into_iter().find_map(|(index, keys)| {
            keys.make(&self.schema, key, value, &mut made).ok()?;
            let found = self.store.index(index.number())?.get(&made).value;
            (found != Some(reference.to_bits())).then(|| index.to_string())
        })
    }

    /// How much room a far read of a row asks for at first.
    pub fn payload_hint(&self) -> usize {
        self.payload_hint.load(Relaxed) as usize
    }

    /// A row was longer.
    pub fn hint_payload(&self, payload_len: usize) {
        self.payload_hint.fetch_max(payload_len as u32, Relaxed);
    }

    pub fn kept_columns(&self) -> KeptColumns {
        self.columns.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether a commit must leave a record of this table's rows. It asks after it has read its epoch.
    #[inline]
    pub fn is_copied(&self) -> bool {
        self.is_copied.load(SeqCst)
    }

    /// That a copy begins, before it does, or that there is none. Only the thread that begins copies says so.
    pub fn set_copied(&self, is_copied: bool) {
        // Most calls change nothing, and leave the line to those who read it.
        if self.is_copied() != is_copied {
            self.is_copied.store(is_copied, SeqCst);
        }
    }

    /// Takes over what is recorded of the columns that are kept as columns.
    pub fn keep_columns(&self, columns: KeptColumns) {
        *self.columns.write().unwrap_or_else(PoisonError::into_inner) = columns;
    }

    pub fn attributes(&self) -> Arc<[u8]> {
        self.attributes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn attributes_version(&self) -> u64 {
        self.attributes_version.load(SeqCst)
    }

    /// Takes over what is recorded of the attributes. True: they were others.
    pub fn set_attributes(&self, attributes: Vec<u8>) -> bool {
        let mut now = self.attributes.write().unwrap_or_else(PoisonError::into_inner);
        if **now == *attributes {
            return false;
        }
        *now = attributes.into();
        self.attributes_version.fetch_add(1, SeqCst);
        true
    }

    pub fn definition(&self) -> (TableDef, Vec<bool>) {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let definition = TableDef {
            name: self.name.clone(),
            schema: self.schema.clone(),
            placement: self.placement,
            hash: self.hash,
            columns: self.kept_columns(),
            indexes: slots.iter().map(|slot| slot.definition.clone()).collect(),
            attributes: self.attributes().to_vec(),
        };
        (definition, slots.iter().map(|slot| slot.state != IndexState::Dropped).collect())
    }
}

#[cold]
fn bad_key(bytes: usize) -> TxnError {
    let reason = format!("a key of {bytes} bytes is none of this table's");
    TxnError::Row(RowError::InvalidSchema { reason })
}

impl fmt::Debug for TableShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.store.id(), self.name)
    }
}
