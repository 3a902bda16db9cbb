//! A region on a file system that becomes full: an error with numbers, and everything goes on.
//!
//! Mounts a small file system of its own, which takes root.

mod common;

use common::{delete, insert, value_of};
use farhold_btree::KeyShape;
use farhold_fabric::{Address, Executor, Fabric, FabricError, NodeId, RegionId};
use farhold_store::{ObjectRef, Reserve, Store, StoreError, TableDef, TableId, TableStore};
use farhold_testkit::SmallDisk;

const FILE_SYSTEM_BYTES: u64 = 8 << 20;
const REGION: RegionId = RegionId(1);

fn disk() -> Option<SmallDisk> {
    SmallDisk::mount(&format!("size={FILE_SYSTEM_BYTES}"))
}

fn def(id: u32) -> TableDef {
    TableDef { id: TableId(id), primary: KeyShape::Fixed(8), hash: true, secondaries: vec![] }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no file mappings")]
fn a_full_file_system_is_an_error_and_the_store_goes_on() {
    let Some(disk) = disk() else { return };
    let fabric = Fabric::join_shm(disk.path().join("cluster"), NodeId(0)).expect("a member");
    // Eight times the available memory: touching bytes that were not reserved would end this process.
    let memory = fabric.create_region(REGION, 8 * FILE_SYSTEM_BYTES).expect("a sparse region");
    let store = Store::format(memory, NodeId(0)).expect("a store");
    let table = TableStore::create(&store, def(7)).expect("a table");
    let mut alloc = store.alloc_cache();
    let value = [5; 500];
    let mut rows: Vec<ObjectRef> = Vec::new();
    let fill = |rows: &mut Vec<ObjectRef>, alloc: &mut _| loop {
        let key = (rows.len() as u64).to_be_bytes();
        match table.reserve(&key, &value, alloc, &|_| false, &mut |_| ()) {
            Ok(Reserve::Reserved { reference, .. }) => {
                table.cancel(reference, alloc);
                rows.push(insert(&table, alloc, rows.len() as u64, &value));
            }
            other => return other,
        }
    };
    let refused = fill(&mut rows, &mut alloc).expect_err("it is full");
    let StoreError::OutOfMemory { wanted_bytes, free_bytes, file_system_bytes: Some(left), .. } = refused else {
        panic!("{refused:?}")
    };
    assert!(left < wanted_bytes && free_bytes > 6 * FILE_SYSTEM_BYTES, "{refused:?}");
    assert!(refused.to_string().contains("--shm-size"), "{refused}");
    let used = rows.len() as u64 * 500;
    assert!(used * 10 > FILE_SYSTEM_BYTES * 8, "{used} bytes of rows in {FILE_SYSTEM_BYTES}");

    // Nothing is lost; every row is read and found; the refused one left nothing behind.
    for (key, row) in rows.iter().enumerate() {
        assert_eq!(value_of(&table, *row).as_deref(), Some(&value[..]));
        assert_eq!(table.lookup(&(key as u64).to_be_bytes()).found, Some(*row));
    }
    assert_eq!(table.lookup(&(rows.len() as u64).to_be_bytes()).found, None);
    let counted = table.statistics();
    assert_eq!((counted.rows, counted.held_slots), (rows.len() as u64, 0));
    // No second table, by the same kind of error; and no other node's room is needed to say so.
    let other = TableStore::create(&store, def(8)).map(|_| ());
    assert!(matches!(other, Err(StoreError::OutOfMemory { file_system_bytes: Some(_), .. })), "{other:?}");

    // Deletes make room for the same rows, and for others of their size.
    for row in rows.split_off(rows.len() / 2) {
        delete(&table, &mut alloc, row);
    }
    let before = rows.len();
    assert!(matches!(fill(&mut rows, &mut alloc), Err(StoreError::OutOfMemory { .. })));
    assert!(rows.len() >= 2 * before - 1, "{} rows again after {before}", rows.len());
    rows.drain(..).for_each(|row| delete(&table, &mut alloc, row));
    alloc.flush();
    assert!(store.release_empty_pages() > 0);
    assert!(matches!(fill(&mut rows, &mut alloc), Err(StoreError::OutOfMemory { .. })));
    assert!(rows.len() + 1 >= before, "{} rows of {before} in pages that came back", rows.len());
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no file mappings")]
fn a_file_system_too_small_for_a_node_says_so() {
    let Some(disk) = disk() else { return };
    let is_full = |error: FabricError| {
        let text = error.to_string();
        assert!(matches!(error, FabricError::FileSystemFull(_)) && text.contains("--shm-size"), "{text}");
    };
    let cluster = disk.path().join("cluster");
    let fabric = Fabric::join_shm(&cluster, NodeId(0)).expect("a member");
    let executor = Executor::real(1);
    let sender = fabric.endpoint(&executor.handle()).expect("an endpoint");
    sender.send(Address::home(NodeId(0)), b"there is room for a lane").expect("sent");

    let memory = fabric.create_region(REGION, 2 * FILE_SYSTEM_BYTES).expect("a sparse region");
    is_full(memory.reserve(0, 2 * FILE_SYSTEM_BYTES).expect_err("more than there is"));
    memory.reserve(0, FILE_SYSTEM_BYTES / 2).expect("half is there");
    let mut at = FILE_SYSTEM_BYTES / 2;
    while memory.reserve(at, 4096).is_ok() {
        at += 4096; // To the last page, though the extents are longer.
    }
    assert!(at > FILE_SYSTEM_BYTES * 9 / 10, "{at} bytes of {FILE_SYSTEM_BYTES}");
    memory.reserve(0, at).expect("what was given stays");
    for at in (0..at).step_by(8) {
        memory.word(at).expect("inside").store(1, std::sync::atomic::Ordering::Relaxed);
    }
    // Neither another endpoint nor another lane works, but the existing lane goes on.
    is_full(fabric.endpoint(&executor.handle()).map(|_| ()).expect_err("no room for its inbox"));
    is_full(sender.send(sender.address(), b"a lane of its own").expect_err("no room for the lane"));
    is_full(Fabric::join_shm(&cluster, NodeId(1)).map(|_| ()).expect_err("no room for its entry"));
    for _ in 0..1000 {
        sender.send(Address::home(NodeId(0)), &[7; 200]).expect("sent");
    }
    // Another store in the region's file system: no room for its superblock.
    let second = fabric.create_region(RegionId(2), FILE_SYSTEM_BYTES).expect("a sparse region");
    let refused = Store::format(second, NodeId(0)).map(|_| ()).expect_err("no room");
    assert!(matches!(&refused, StoreError::Fabric(FabricError::FileSystemFull(_))), "{refused:?}");
}
