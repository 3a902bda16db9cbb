//! Helpers that the suites share.
#![allow(dead_code, reason = "each suite uses a part of it")]

use farhold_btree::KeyShape;
use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};
use farhold_store::row::RowError;
use farhold_store::{
    AllocCache, IndexDef, KeyMaker, ObjectRef, Owner, Reserve, Store, TableDef, TableId, TableStore, Version,
};
use std::sync::Arc;

/// Bytes of a region that is large enough for anything; Miri clears every one of them.
const SPACE: u64 = if cfg!(miri) { 2 << 20 } else { 64 << 20 };

pub const ME: Owner = Owner::new(1, NodeId(0), 0, 1);

/// The first eight bytes of the value.
pub struct Prefix;

impl KeyMaker for Prefix {
    fn make(&self, _: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), RowError> {
        out.clear();
        out.extend_from_slice(&value[..8]);
        Ok(())
    }
}

pub fn region(bytes: u64) -> Arc<RegionMemory> {
    Arc::new(RegionMemory::anonymous(FarPtr::new(NodeId(0), RegionId(0), 0), bytes).expect("memory"))
}

pub fn unique() -> IndexDef {
    IndexDef { shape: KeyShape::Fixed(8), unique: true, keys: Arc::new(Prefix) }
}

pub fn table(store: &Arc<Store>, secondaries: Vec<IndexDef>) -> TableStore {
    let secondaries = secondaries.into_iter().map(Some).collect();
    let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: false, secondaries };
    TableStore::create(store, def).expect("a table")
}

pub fn fresh(secondaries: Vec<IndexDef>) -> (TableStore, AllocCache) {
    let store = Store::format(region(SPACE), NodeId(0)).expect("a store");
    let alloc = store.alloc_cache();
    (table(&store, secondaries), alloc)
}

pub fn reserve(table: &TableStore, alloc: &mut AllocCache, key: u64, value: &[u8]) -> Reserve {
    table.reserve(&key.to_be_bytes(), value, alloc, &|_| false, &mut |_| ()).expect("room")
}

/// Reserves and commits.
pub fn insert(table: &TableStore, alloc: &mut AllocCache, key: u64, value: &[u8]) -> ObjectRef {
    let Reserve::Reserved { reference, .. } = reserve(table, alloc, key, value) else { panic!("taken") };
    let object = table.store().object(reference);
    let version = object.lock(reference.incarnation(), ME).expect("a lock");
    object.restamp(version.next(table.store().superblock().epoch()));
    object.unlock();
    reference
}

pub fn delete(table: &TableStore, alloc: &mut AllocCache, reference: ObjectRef) {
    let object = table.store().object(reference);
    let version = object.lock(reference.incarnation(), ME).expect("a lock");
    let epoch = table.store().superblock().epoch();
    object.restamp(version.next(epoch).with(Version::ABSENT));
    object.unlock();
    table.remove(reference, epoch, alloc);
}

pub fn value_of(table: &TableStore, reference: ObjectRef) -> Option<Vec<u8>> {
    let mut into = vec![0; 70_000];
    let read = table.store().object(reference).read(reference.incarnation(), &mut into).ok()?;
    (!read.is_absent()).then(|| into[read.key_len()..read.payload_len()].to_vec())
}

pub fn fresh_with_hash() -> (TableStore, AllocCache) {
    let store = Store::format(region(SPACE), NodeId(0)).expect("a store");
    let alloc = store.alloc_cache();
    let def = TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: true, secondaries: vec![] };
    (TableStore::create(&store, def).expect("a table"), alloc)
}
