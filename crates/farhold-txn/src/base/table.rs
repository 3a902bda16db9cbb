//! Tables: the handle through which transactions name one, and what of it lies on this node.

use crate::base::definition::{KeptColumns, Placement, Recorded, TableDef};
use crate::base::error::TxnError;
use crate::base::route::Cluster;
use crate::base::route::Route;
use crate::base::threads::on_threads;
use farhold_btree::KeyShape;
use farhold_fabric::NodeId;
use farhold_store::object::size_class::PAGE_BYTES;
use farhold_store::row::{self, Layout, RowError, Schema, SecondaryIndex, SecondaryKeys};
use farhold_store::table::Rebuilt;
use farhold_store::{IndexDef, KeyMaker, Store, TableStore};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

pub use farhold_store::TableId;

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
    pub attributes: Vec<u8>,
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
    /// The node that the table belongs to: handles of one node's tables mean nothing to another's workers.
    pub owner: u64,
}

struct IndexSlot {
    definition: SecondaryIndex,
    keys: Arc<SecondaryKeys>,
    state: IndexState,
    coordinator: Option<Coordinator>,
}

/// The creator of an index: a node, and which start of it ([`system::start`](crate::system::start)).
pub(crate) type Coordinator = (NodeId, u64);

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum IndexState {
    /// When a row's key in this index changes, writers give the row another object. They maintain the index once
    /// [`TableShared::begin_filling`] has made it. It is not complete.
    Filling,
    /// Complete here, maybe not elsewhere.
    Filled,
    /// It cannot be complete.
    Refused(TxnError),
    Ready,
    /// Writers maintain it, because there may be readers on other nodes. No transaction of this node reads it.
    Closed,
    Dropped,
}

/// Room of a far read of a table whose row lengths are not known yet.
const PAYLOAD_HINT_FIRST: u32 = 256;

/// The rows' own [`SecondaryKeys`], as the store wants them.
struct Keys {
    schema: Schema,
    keys: Arc<SecondaryKeys>,
}

impl KeyMaker for Keys {
    fn make(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), RowError> {
        self.keys.make(&self.schema, key, value, out)
    }
}

/// The longest keys that lie in the ordered index itself.
const FIXED_KEY_BYTES_MAX: usize = 16;

fn primary_shape(schema: &Schema) -> KeyShape {
    match schema.key_shape() {
        row::KeyShape::Fixed(bytes @ 1..=FIXED_KEY_BYTES_MAX) => KeyShape::Fixed(bytes),
        _ => KeyShape::Bytes,
    }
}

/// All keys of one length? NULL is a marker alone, so no column may be nullable.
fn secondary_shape(schema: &Schema, index: &SecondaryIndex) -> KeyShape {
    let column = |i: &usize| {
        let column = &schema.columns()[*i];
        if column.nullable { None } else { column.data_type.key_bytes() }
    };
    let own: Option<usize> = index.columns.iter().map(column).sum();
    let appended = match schema.key_shape() {
        _ if index.unique => Some(0),
        row::KeyShape::Fixed(bytes) => Some(bytes),
        row::KeyShape::Variable { .. } => None,
    };
    match own.zip(appended).map(|(own, appended)| own + appended) {
        Some(bytes @ 1..=FIXED_KEY_BYTES_MAX) => KeyShape::Fixed(bytes),
        _ => KeyShape::Bytes,
    }
}

fn index_def(schema: &Schema, index: &SecondaryIndex) -> Result<(IndexDef, Arc<SecondaryKeys>), RowError> {
    let keys = Arc::new(SecondaryKeys::new(schema, index)?);
    let maker = Arc::new(Keys { schema: schema.clone(), keys: keys.clone() });
    Ok((IndexDef { shape: secondary_shape(schema, index), unique: index.unique, keys: maker }, keys))
}

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
            attributes,
            route,
            indexes: RwLock::new(slots),
            gone: Mutex::default(),
            has_secondary,
            payload_hint: AtomicU32::new(PAYLOAD_HINT_FIRST),
            dropped: AtomicBool::new(false),
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

    /// Announces a coming index to writers: from now on they change no key of it in place. The index itself is not made yet:
    /// writers of other nodes may not know of it, and would change rows without changing their entries.
    pub fn add_index(&self, slot: u16, definition: &TableDef, coordinator: Coordinator) -> Result<(), TxnError> {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let position = usize::from(slot);
        if position >= definition.indexes.len() {
            return Err(TxnError::Corrupt { what: "an index that its table's definition does not have" });
        }
        if self.gone().contains(&slot) {
            return Err(no_index(&self.name, Index::Secondary(slot)));
        }
        // Slots of other indexes that are being created at the same moment.
        for index in definition.indexes.iter().take(position + 1).skip(slots.len()) {
            let keys = Arc::new(SecondaryKeys::new(&self.schema, index)?);
            slots.push(IndexSlot { definition: index.clone(), keys, state: IndexState::Dropped, coordinator: None });
        }
        let definition = definition.indexes[position].clone();
        let keys = Arc::new(SecondaryKeys::new(&self.schema, &definition)?);
        let coordinator = Some(coordinator);
        slots[position] = IndexSlot { definition, keys, state: IndexState::Filling, coordinator };
        self.has_secondary.store(true, SeqCst);
        Ok(())
    }

    /// Makes the index, empty: inserts enter it from now on. The caller guarantees that every node's writers know of
    /// it.
    ///
    /// # Errors
    /// [`TxnError::NotFound`] if it has been taken away meanwhile, or is there.
    pub fn begin_filling(&self, slot: u16) -> Result<(), TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get(usize::from(slot)).filter(|slot| slot.state == IndexState::Filling);
        let found = found.ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?;
        let (def, _) = index_def(&self.schema, &found.definition)?;
        let begun = self.store.begin_index(Index::Secondary(slot).number(), def);
        begun.map_err(|error| TxnError::store(error, self.store.store().node()))
    }

    /// Notes how filling an index has ended.
    pub fn end_filling(&self, slot: u16, outcome: Result<(), TxnError>) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = slots.get_mut(usize::from(slot)).filter(|slot| slot.state == IndexState::Filling) {
            found.state = outcome.map_or_else(IndexState::Refused, |()| IndexState::Filled);
        }
    }

    /// Has the index been filled?
    pub fn is_filled(&self, slot: u16) -> Result<bool, TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get(usize::from(slot)).ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?;
        match &found.state {
            IndexState::Filling => Ok(false),
            IndexState::Filled | IndexState::Ready => Ok(true),
            IndexState::Refused(error) => Err(error.clone()),
            IndexState::Closed | IndexState::Dropped => Err(no_index(&self.name, Index::Secondary(slot))),
        }
    }

    /// Makes a filled index readable.
    ///
    /// # Errors
    /// [`TxnError::NotFound`]: there is none, because the node has started again or the index was dropped.
    pub fn open_index(&self, slot: u16) -> Result<(), TxnError> {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get_mut(usize::from(slot));
        let found = found.filter(|slot| matches!(slot.state, IndexState::Filled | IndexState::Ready));
        found.ok_or_else(|| no_index(&self.name, Index::Secondary(slot)))?.state = IndexState::Ready;
        Ok(())
    }

    /// No transaction of this node reads an index from now on; writers still keep it. An index that must not be read
    /// yet is never read.
    pub fn close_index(&self, slot: u16) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        let found = slots.get_mut(usize::from(slot));
        if let Some(found) = found.filter(|slot| matches!(slot.state, IndexState::Filled | IndexState::Ready)) {
            found.state = IndexState::Closed;
            self.store.close_index(usize::from(slot) + 1);
        }
    }

    /// Writers stop maintaining an index from now on. No node reads it.
    pub fn drop_index(&self, slot: u16) {
        let mut slots = self.indexes.write().unwrap_or_else(PoisonError::into_inner);
        self.gone().insert(slot);
        if let Some(found) = slots.get_mut(usize::from(slot)) {
            found.state = IndexState::Dropped;
            self.store.drop_index(usize::from(slot) + 1);
        }
        self.has_secondary.store(slots.iter().any(|slot| slot.state != IndexState::Dropped), Relaxed);
    }

    fn gone(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Indexes that are being created here and whose coordinators are gone.
    pub fn orphans(&self, is_there: &dyn Fn(Coordinator) -> bool) -> Vec<u16> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let is_orphan = |slot: &IndexSlot| {
            matches!(slot.state, IndexState::Filling | IndexState::Filled | IndexState::Refused(_))
                && slot.coordinator.is_some_and(|coordinator| !is_there(coordinator))
        };
        (0_u16..).zip(slots.iter()).filter(|(_, slot)| is_orphan(slot)).map(|(slot, _)| slot).collect()
    }

    /// Does what is recorded and the coordinators of indexes may not have told this node. Those of the `orphans` that are not recorded as
    /// complete are dropped. An index that is recorded as dropped is only closed, because there may still be readers on other nodes.
    pub fn follow(&self, recorded: &[Recorded], orphans: &[u16]) {
        for (slot, recorded) in (0_u16..).zip(recorded) {
            match recorded {
                // If this fails, the index is not complete here, and its coordinator will find that out.
                Recorded::Live => drop(self.open_index(slot)),
                Recorded::Dropped => self.close_index(slot),
                Recorded::Begun if orphans.contains(&slot) => self.drop_index(slot),
                Recorded::Begun => {}
            }
        }
    }

    /// Indexes that are recorded as dropped, and not gone here.
    pub fn closed_of(&self, recorded: &[Recorded]) -> Vec<u16> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let is_left = |(slot, recorded): (&IndexSlot, &Recorded)| {
            *recorded == Recorded::Dropped && slot.state != IndexState::Dropped
        };
        let left = (0_u16..).zip(slots.iter().zip(recorded)).filter(|(_, it)| is_left(*it));
        left.map(|(slot, _)| slot).collect()
    }

    /// Does every key of the index begin with the column that places its row?
    pub fn begins_with_placement(&self, index: Index) -> bool {
        let Index::Secondary(slot) = index else { return true };
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        slots.get(usize::from(slot)).is_some_and(|slot| slot.definition.columns.first() == self.schema.key().first())
    }

    /// May transactions read this index?
    ///
    /// # Errors
    /// As [`Self::keys_of`].
    pub fn check_readable(&self, index: Index) -> Result<(), TxnError> {
        let Index::Secondary(number) = index else { return Ok(()) };
        self.ready(&self.indexes.read().unwrap_or_else(PoisonError::into_inner), number).map(|_| ())
    }

    /// The maker of a ready index's keys.
    ///
    /// # Errors
    /// [`TxnError::SchemaChanged`] if it is not ready: a caller that knows its number has used it before it was
    /// dropped, here or on another node, and the number may belong to a new index by now. [`TxnError::NotFound`] if
    /// there never was one.
    pub fn keys_of(&self, index: Index) -> Result<Arc<SecondaryKeys>, TxnError> {
        let Index::Secondary(number) = index else { return Err(no_index(&self.name, index)) };
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        self.ready(&slots, number).map(|slot| slot.keys.clone())
    }

    fn ready<'a>(&self, slots: &'a [IndexSlot], number: u16) -> Result<&'a IndexSlot, TxnError> {
        let slot = slots.get(usize::from(number)).ok_or_else(|| no_index(&self.name, Index::Secondary(number)))?;
        if slot.state == IndexState::Ready { Ok(slot) } else { Err(TxnError::SchemaChanged) }
    }

    /// As [`Self::keys_of`], of an index that is being filled as well: for writers.
    pub fn any_keys_of(&self, index: Index) -> Result<Arc<SecondaryKeys>, TxnError> {
        let found = self.all_keys().into_iter().find(|(other, _)| *other == index);
        found.map(|(_, keys)| keys).ok_or(TxnError::SchemaChanged)
    }

    /// Makers of all keys that a writer must maintain, with their indexes.
    pub fn all_keys(&self) -> Vec<(Index, Arc<SecondaryKeys>)> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        let live = (0_u16..).zip(slots.iter()).filter(|(_, slot)| slot.state != IndexState::Dropped);
        live.map(|(slot, it)| (Index::Secondary(slot), it.keys.clone())).collect()
    }

    /// Does the row get other keys in some index by this change of value?
    ///
    /// # Errors
    /// [`TxnError::Row`] if a value is no value of this table.
    pub fn changes_keys(&self, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool, TxnError> {
        let slots = self.indexes.read().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter().filter(|slot| slot.state != IndexState::Dropped) {
            if !slot.keys.same(&self.schema, key, old, new)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub fn kept_columns(&self) -> KeptColumns {
        self.columns.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what is recorded of the columns that are kept as columns.
    pub fn keep_columns(&self, columns: KeptColumns) {
        *self.columns.write().unwrap_or_else(PoisonError::into_inner) = columns;
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
            attributes: self.attributes.clone(),
        };
        (definition, slots.iter().map(|slot| slot.state != IndexState::Dropped).collect())
    }
}

#[cold]
fn bad_key(bytes: usize) -> TxnError {
    let reason = format!("a key of {bytes} bytes is none of this table's");
    TxnError::Row(RowError::InvalidSchema { reason })
}

#[cold]
fn no_index(table: &str, index: Index) -> TxnError {
    TxnError::NotFound { what: format!("{index} of table \"{table}\"").into() }
}

impl fmt::Debug for TableShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.store.id(), self.name)
    }
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

    /// The layer above's bytes from its definition.
    #[must_use]
    pub fn attributes(&self) -> &[u8] {
        &self.0.attributes
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
