//! The rows of a node: objects with versions in a region, slots for them, indexes to find them, older copies for snapshots.
//!
//! ```text
//!  TableStore ── OrderedIndex (primary, secondaries) ──┐
//!      │    └─── HashIndex (in the region) ────────────┤  ObjectRef
//!      │                                               ▼
//!      │   reserve, cancel, publish, remove       object: lock │ version │ meta │ prev │ key, value
//!      │                                               ▲
//!  AllocCache (a worker's) ── slots ── Store: pages, page table, superblock (epoch, snapshots) ── RegionMemory
//! ```
//!
//! Where to find what: the protocol that keeps a row whole, `object/protocol.rs`; memory, `slab/`; what a table does for
//! transactions, `table/`; other ways to read a row whole, measured beside this one, `atomicity/`; remote point lookups,
//! `index/hash/`; reading at an epoch, `snapshot/`; rows as bytes, `row/`; columns as bytes, `column/`.
//!
//! Invariants:
//! - A version of an address never comes back, and grows with every change, over all uses of that address.
//! - The index keys of an object do not change during one incarnation. So an index entry with the slot's incarnation is valid,
//!   and an entry can be removed by the keys that the object has now.
//! - An object in state `ROW` is in all indexes of its table, except between a commit's delete and its unlinking.
#![deny(missing_docs)]

pub mod atomicity;
pub mod column;
pub mod durable;
pub mod index;
pub mod log;
pub mod object;
pub mod row;
pub mod slab;
pub mod snapshot;
pub mod table;

#[doc(hidden)]
mod error;
mod store;
mod superblock;

pub use error::{StoreError, TableId};
pub use farhold_fabric::{Meta, Version};
pub use object::{LockError, Object, ObjectRef, Owner, Read, ReadError};
pub use slab::{AllocCache, PageTable, Run};
pub use snapshot::Snapshot;
pub use store::{Store, TABLES_MAX};
pub use superblock::{Found, Holder, LAYOUT_VERSION, REGION_BYTES_MIN, SNAPSHOT_SLOTS, SlotId, Superblock};
pub use table::{
    Damaged, IndexDef, KeyMaker, Lookup, Moved, Occupant, Rebuilt, Reserve, Stamp, Statistics, TableDef, TableStore,
};
