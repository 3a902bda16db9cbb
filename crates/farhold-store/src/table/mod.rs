//! A table at its home node: the slots of its rows and its indexes, and the operations of transactions on them.
//!
//! The life of a row, and what a transaction calls:
//!
//! ```text
//!            reserve                commit: lock, [publish], write/restamp          commit: lock, restamp(ABSENT)
//!   nothing ─────────▶ RESERVED ──────────────────────────────────────────▶ ROW ─────────────────────────────────▶ deleted
//!      ▲               (ABSENT, in the indexes, unlocked)                    (live)        (ABSENT, in the indexes)     │
//!      └── cancel ─────────┘                                                                                            │
//!      └──────────────────────────────────────────── remove: unlink from the indexes, free the slot ───────────────────┘
//! ```
//!
//! Stamps: what a transaction did *not* find (or scanned) is covered by the stamps of the leaves or the bucket that it searched;
//! they are [validated](TableStore::validate) at commit. Its own inserts move stamps; [`Moved`] says from which stamp to which.

mod rebuild;
mod reserve;
mod statistics;

pub use rebuild::{Damaged, Rebuilt};
pub use reserve::{FillRoom, Reserve};
pub use statistics::Statistics;

use crate::error::{StoreError, TableId};
use crate::index::hash::{BucketStamp, HashIndex, Step, hash_key};
use crate::object::{ObjectRef, RESERVED};
use crate::row::RowError;
use crate::slab::{Run, TableSlab};
use crate::store::Store;
use farhold_btree::{Changes, KeyShape, LeafStamp, OrderedIndex};
use farhold_fabric::Meta;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How many secondary indexes a table can have at a time.
pub const SECONDARIES_MAX: usize = 32;
/// How many it can have over its life. A number is never reused: transactions may still name the index that had it, and other
/// threads look at it without a lock. Each number costs a table 16 bytes, and an insert a load.
pub const SECONDARIES_EVER_MAX: usize = 1024;

/// Makes the key of a row in one secondary index. The key must depend on these bytes alone; that of an index that is not
/// unique must contain the primary key, so that no two rows share it.
pub trait KeyMaker: Send + Sync {
    /// Writes the index key of the row (`key`, `value`) into `out`, which it clears first.
    ///
    /// # Errors
    /// If the bytes are no row of this table, or the key would be too long.
    fn make(&self, key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), RowError>;
}

/// A secondary index to be.
#[derive(Clone)]
pub struct IndexDef {
    /// What its keys look like.
    pub shape: KeyShape,
    /// Two rows with one key are an error of the user. (In an index that is not unique: of the key maker.)
    pub unique: bool,
    /// Makes its keys.
    pub keys: Arc<dyn KeyMaker>,
}

impl fmt::Debug for IndexDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexDef({:?}{})", self.shape, if self.unique { ", unique" } else { "" })
    }
}

/// A table to be.
#[derive(Clone, Debug)]
pub struct TableDef {
    /// Its number.
    pub id: TableId,
    /// What its primary keys look like.
    pub primary: KeyShape,
    /// With a hash index for point reads and far reads?
    pub hash: bool,
    /// Its secondary indexes: index 1, 2, ... (0 is the primary). `None`: a number that is not used again.
    pub secondaries: Vec<Option<IndexDef>>,
}

/// Covers a search: it is valid as long as what the search saw is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stamp {
    /// A leaf of an ordered index.
    Leaf {
        /// Which index: 0 the primary, then the secondaries.
        index: u16,
        /// The leaf and its version.
        leaf: LeafStamp,
    },
    /// A bucket of the hash index.
    Bucket(BucketStamp),
}

/// What one of the transaction's own writes did to stamps. The stamps from before must be replaced by those from after.
#[derive(Clone, Copy, Debug)]
pub enum Moved {
    /// Leaves of an ordered index; [`Changes::apply`] updates a list of that index's stamps.
    Leaves {
        /// Which index: 0 the primary, then the secondaries.
        index: u16,
        /// The steps.
        changes: Changes,
    },
    /// A bucket of the hash index.
    Bucket {
        /// As it was.
        before: BucketStamp,
        /// As it is.
        after: BucketStamp,
        /// The other half, if it has been split: a stamp from before becomes both.
        half: Option<BucketStamp>,
    },
}

impl From<Step> for Moved {
    fn from(Step { before, after, half }: Step) -> Self {
        Self::Bucket { before, after, half }
    }
}

/// What a point lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The row's object, if the key is in the index: live, reserved, or deleted a moment ago; reading it shows which.
    pub found: Option<ObjectRef>,
    /// Covers the answer. The caller must keep it when there is no object, and also when the object is absent: while the stamp is
    /// valid, no other object has taken the key over. (For a live row its version is enough.)
    pub stamp: Stamp,
}

/// A table's rows and indexes on one node. All of its threads share it.
pub struct TableStore {
    store: Arc<Store>,
    id: TableId,
    slab: Arc<TableSlab>,
    primary: OrderedIndex,
    hash: Option<HashIndex>,
    secondaries: Box<[OnceLock<Box<Secondary>>]>,
    secondary_count: AtomicUsize,
    /// Held while an index is added.
    growing: Mutex<()>,
    forget: AtomicBool,
}

pub(crate) struct Secondary {
    pub index: OrderedIndex,
    pub def: IndexDef,
    /// No transaction reads it any more.
    closed: AtomicBool,
    /// No write maintains it either.
    dropped: AtomicBool,
}

impl TableStore {
    /// An empty table.
    ///
    /// # Errors
    /// [`StoreError::TableExists`], [`StoreError::TooMany`], [`StoreError::OutOfMemory`].
    pub fn create(store: &Arc<Store>, def: TableDef) -> Result<Self, StoreError> {
        let slab = store.open_slab(def.id, false)?;
        Self::open(store, def, slab)
    }

    fn open(store: &Arc<Store>, def: TableDef, slab: Arc<TableSlab>) -> Result<Self, StoreError> {
        let count = def.secondaries.len();
        let hash = if def.secondaries.iter().flatten().count() > SECONDARIES_MAX {
            Err(StoreError::TooMany { what: "secondary indexes of a table", limit: SECONDARIES_MAX })
        } else if count > SECONDARIES_EVER_MAX {
            Err(Self::too_many_secondaries())
        } else {
            def.hash.then(|| HashIndex::create(store, def.id)).transpose()
        };
        let hash = hash.inspect_err(|_| store.close_slab(&slab, false))?;
        let this = Self {
            store: store.clone(),
            id: def.id,
            slab,
            primary: OrderedIndex::new(def.primary),
            hash,
            secondaries: std::iter::repeat_with(OnceLock::new).take(SECONDARIES_EVER_MAX).collect(),
            secondary_count: AtomicUsize::new(count),
            growing: Mutex::new(()),
            forget: AtomicBool::new(false),
        };
        for (place, def) in this.secondaries.iter().zip(def.secondaries) {
            def.map(|def| place.set(Box::new(Secondary::new(def))));
        }
        Ok(this)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> TableId {
        self.id
    }

    /// The store it lies in.
    #[must_use]
    #[inline(always)]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    pub(crate) fn slab(&self) -> &Arc<TableSlab> {
        &self.slab
    }

    /// An ordered index by number: 0 the primary, then the secondaries. `None` for one that was closed, or never made.
    /// Its values are [`ObjectRef`]s as words.
    #[must_use]
    #[inline]
    pub fn index(&self, index: usize) -> Option<&OrderedIndex> {
        if index == 0 { Some(&self.primary) } else { self.open_secondary(index).map(|secondary| &secondary.index) }
    }

    /// The primary index.
    #[must_use]
    #[inline(always)]
    pub fn primary(&self) -> &OrderedIndex {
        &self.primary
    }

    fn secondary(&self, index: usize) -> Option<&Secondary> {
        let secondary = self.secondaries.get(index.checked_sub(1)?)?.get()?;
        (!secondary.dropped.load(Ordering::Acquire)).then_some(secondary)
    }

    fn open_secondary(&self, index: usize) -> Option<&Secondary> {
        let secondary = self.secondaries.get(index.checked_sub(1)?)?.get()?;
        (!secondary.closed.load(Ordering::Acquire)).then_some(secondary)
    }

    /// The secondary indexes that writers keep, with their numbers.
    pub(crate) fn secondaries(&self) -> impl Iterator<Item = (u16, &Secondary)> {
        (1..=self.secondary_count.load(Ordering::Acquire))
            .filter_map(|index| self.secondary(index).map(|secondary| (index as u16, secondary)))
    }

    /// The object of a primary key, by the hash index if there is one.
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    #[must_use]
    #[inline]
    pub fn lookup(&self, key: &[u8]) -> Lookup {
        if let Some(hash) = &self.hash {
            let (found, stamp) = hash.lookup(hash_key(key), key);
            return Lookup { found, stamp: Stamp::Bucket(stamp) };
        }
        self.lookup_in(0, &self.primary, key)
    }

    /// Starts loading what [`Self::lookup`] of this key will read first: its bucket, or without a hash index its leaf.
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    #[inline]
    pub fn prefetch(&self, key: &[u8]) {
        match &self.hash {
            Some(hash) => hash.prefetch_bucket(hash_key(key)),
            None => self.primary.prefetch(key),
        }
    }

    /// Starts loading the first bytes of the row with this key, header included, once [`Self::prefetch`] has had time.
    ///
    /// # Panics
    /// If the key does not have the table's shape.
    #[inline]
    pub fn prefetch_row(&self, key: &[u8], bytes: u64) {
        if let Some(hash) = &self.hash {
            hash.prefetch_object(hash_key(key), bytes);
        } else if let Some(value) = self.primary.get(key).value {
            self.store.memory().prefetch(ObjectRef::from_bits(value).offset(), bytes);
        }
    }

    /// Does it have a hash index?
    #[must_use]
    pub fn has_hash(&self) -> bool {
        self.hash.is_some()
    }

    /// The object of a key in a secondary index (`None`: there is no such index).
    ///
    /// # Panics
    /// If the key does not have the index's shape.
    #[must_use]
    #[inline]
    pub fn lookup_secondary(&self, index: usize, key: &[u8]) -> Option<Lookup> {
        let secondary = self.open_secondary(index)?;
        Some(self.lookup_in(index as u16, &secondary.index, key))
    }

    #[inline(always)]
    #[allow(clippy::unused_self, reason = "reads well beside its callers")]
    fn lookup_in(&self, number: u16, index: &OrderedIndex, key: &[u8]) -> Lookup {
        let found = index.get(key);
        Lookup { found: found.value.map(ObjectRef::from_bits), stamp: Stamp::Leaf { index: number, leaf: found.leaf } }
    }

    /// Whether what the stamp covered is unchanged. It is asked at commit, after the transaction has locked what it writes.
    #[must_use]
    #[inline]
    pub fn validate(&self, stamp: Stamp) -> bool {
        match stamp {
            Stamp::Leaf { index, leaf } => self.index(index.into()).is_some_and(|index| index.validate(leaf)),
            Stamp::Bucket(bucket) => bucket.is_still(self.store.memory()),
        }
    }

    /// The runs of pages that hold its rows, for a scan ([`Run::slots`]).
    #[must_use]
    pub fn pages(&self) -> Vec<Run> {
        self.slab.runs()
    }

    /// How many pages hold its rows.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        self.slab.run_count_pages()
    }

    /// Adds an index and fills it from the existing rows. Inserts that run meanwhile enter it as well. The caller guarantees that
    /// every transaction that began before the call has ended (it might commit rows that are not seen here). Returns the index's
    /// number.
    ///
    /// # Errors
    /// [`StoreError::Duplicate`] if it is unique and the rows are not (it is then not added);
    /// [`StoreError::TooMany`], [`StoreError::Row`].
    pub fn add_index(&self, def: IndexDef) -> Result<usize, StoreError> {
        let _one = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.secondary_count.load(Ordering::Acquire) + 1;
        if index > SECONDARIES_EVER_MAX {
            return Err(Self::too_many_secondaries());
        }
        let _ = self.secondaries[index - 1].set(Box::new(Secondary::new(def)));
        self.secondary_count.store(index, Ordering::Release);
        let filled = self.fill(index);
        if filled.is_err() {
            self.drop_index(index);
        }
        filled.map(|()| index)
    }

    /// Adds an empty index under a number that the caller chooses, and that no index of this table has had. Inserts enter it from
    /// now on; [`Self::fill_slot`] enters the rows that were there before.
    ///
    /// # Errors
    /// [`StoreError::TooMany`], also for a number that is taken.
    pub fn begin_index(&self, index: usize, def: IndexDef) -> Result<(), StoreError> {
        let _one = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let place = index.checked_sub(1).and_then(|place| self.secondaries.get(place));
        let place = place.ok_or_else(Self::too_many_secondaries)?;
        place.set(Box::new(Secondary::new(def))).map_err(|_| Self::too_many_secondaries())?;
        self.secondary_count.fetch_max(index, Ordering::SeqCst);
        Ok(())
    }

    fn too_many_secondaries() -> StoreError {
        StoreError::TooMany { what: "secondary indexes of a table, dropped ones included", limit: SECONDARIES_EVER_MAX }
    }

    /// Lookups in an index find nothing from now on, and no stamp of it is valid. Inserts and deletes still keep it, including
    /// those of other nodes' transactions that do not know yet. It comes before [`Self::drop_index`] if other nodes read the
    /// index.
    pub fn close_index(&self, index: usize) {
        if let Some(secondary) = index.checked_sub(1).and_then(|place| self.secondaries.get(place)?.get()) {
            secondary.closed.store(true, Ordering::SeqCst);
        }
    }

    /// Takes an index out of use. Its number is not used again; its memory goes with the table.
    pub fn drop_index(&self, index: usize) {
        self.close_index(index);
        if let Some(secondary) = index.checked_sub(1).and_then(|place| self.secondaries.get(place)?.get()) {
            secondary.dropped.store(true, Ordering::SeqCst);
        }
    }

    /// When the last handle is dropped, the rows are freed as well: DROP TABLE. Without it a dropped `TableStore` leaves its rows
    /// in the region, to be attached again.
    pub fn forget(&self) {
        self.forget.store(true, Ordering::Relaxed);
    }

    /// Whether an object that an index names is a row for other transactions.
    fn occupant(&self, reference: ObjectRef) -> Occupant {
        let object = self.store.object(reference);
        let (version, meta) = (object.version(), object.meta());
        if meta.incarnation() != reference.incarnation() {
            return Occupant::Gone;
        }
        // A writer of an insert sets the object's state before its version: it is still absent, and no delete.
        // Written and not yet replicated: a row that is there or gone, but not for certain.
        if version.is_writing() || version.is_odd() || object.version() != version {
            return Occupant::Reserved;
        }
        match (meta.state(), version.is_absent()) {
            (Meta::ROW | RESERVED, false) => Occupant::Live,
            (RESERVED, true) => Occupant::Reserved,
            _ => Occupant::Gone,
        }
    }
}

/// What an index entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupant {
    /// A row.
    Live,
    /// An insert that has not committed.
    Reserved,
    /// A deleted row; its entry is removed at any moment.
    Gone,
}

impl Secondary {
    fn new(def: IndexDef) -> Self {
        Self {
            index: OrderedIndex::new(def.shape),
            def,
            closed: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        }
    }
}

impl Drop for TableStore {
    fn drop(&mut self) {
        self.store.close_slab(&self.slab, self.forget.load(Ordering::Relaxed));
    }
}

impl fmt::Debug for TableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TableStore({}, {} keys)", self.id, self.primary.len())
    }
}
