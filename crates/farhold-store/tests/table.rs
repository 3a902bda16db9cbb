//! The operations of transactions on a table, on one thread.

mod common;

use common::{ME, delete, fresh, insert, region, reserve, table, unique, value_of};
use farhold_btree::{KeyShape, OrderedIndex};
use farhold_fabric::NodeId;
use farhold_store::object::size_class::PAGE_BYTES;
use farhold_store::table::FillRoom;
use farhold_store::{
    AllocCache, Lookup, Moved, ObjectRef, Owner, Reserve, Run, Stamp, Store, StoreError, TableDef, TableId, TableStore,
    Version,
};
use std::sync::atomic::Ordering::SeqCst;

#[test]
fn a_row_lives_from_reserve_to_remove() {
    let (table, mut alloc) = fresh(vec![]);
    let Lookup { found: None, stamp } = table.lookup(&5_u64.to_be_bytes()) else { panic!() };
    assert!(table.validate(stamp));

    let Reserve::Reserved { reference, replaces: false } = reserve(&table, &mut alloc, 5, b"five before") else {
        panic!()
    };
    assert!(!table.validate(stamp), "a reservation is seen");
    assert_eq!(table.lookup(&5_u64.to_be_bytes()).found, Some(reference));
    assert_eq!(value_of(&table, reference), None, "not live yet");
    table.cancel(reference, &mut alloc);
    assert!(table.lookup(&5_u64.to_be_bytes()).found.is_none());

    let again = insert(&table, &mut alloc, 5, b"five again");
    assert_eq!(again.offset(), reference.offset(), "the slot is used again");
    assert_ne!(again.incarnation(), reference.incarnation());
    assert_eq!(value_of(&table, reference), None, "and the old reference is stale");
    assert_eq!(value_of(&table, again).as_deref(), Some(&b"five again"[..]));

    let object = table.store().object(again);
    let version = object.lock(again.incarnation(), ME).expect("free");
    object.write(b"changed", version.next(3));
    object.unlock();
    assert_eq!(object.version().epoch(), 3);
    assert_eq!(value_of(&table, again).as_deref(), Some(&b"changed"[..]));
    delete(&table, &mut alloc, again);
    assert!(table.lookup(&5_u64.to_be_bytes()).found.is_none());
}

#[test]
fn own_inserts_carry_own_stamps_on() {
    let (table, mut alloc) = fresh(vec![]);
    let Stamp::Leaf { leaf, .. } = table.lookup(&5_u64.to_be_bytes()).stamp else { panic!() };
    let mut stamps = vec![leaf];
    let mut follow = |moved| {
        if let Moved::Leaves { changes, .. } = moved {
            changes.apply(&mut stamps);
        }
    };
    let _ = table.reserve(&5_u64.to_be_bytes(), b"", &mut alloc, &|_| false, &mut follow).expect("room");
    assert!(stamps.iter().all(|leaf| table.validate(Stamp::Leaf { index: 0, leaf: *leaf })));
}

#[test]
fn a_taken_key_leaves_nothing_behind() {
    let (table, mut alloc) = fresh(vec![unique()]);
    let first = insert(&table, &mut alloc, 1, b"same key");
    let by_key = reserve(&table, &mut alloc, 1, b"otherkey");
    let by_unique = reserve(&table, &mut alloc, 2, b"same key");
    for (found, number) in [(by_key, 0), (by_unique, 1)] {
        assert!(matches!(found, Reserve::Exists { index, reference, .. } if index == number && reference == first));
    }
    assert!(table.lookup(&2_u64.to_be_bytes()).found.is_none());
    assert!(table.lookup_secondary(1, b"otherkey").expect("an index").found.is_none());
    assert_eq!(table.lookup_secondary(1, b"same key").expect("an index").found, Some(first));
}

/// The commit of a transaction that deletes `old` and has reserved `new` in its place.
fn commit_in_place_of(table: &TableStore, old: ObjectRef, new: ObjectRef, alloc: &mut AllocCache) {
    let (before, after) = (table.store().object(old), table.store().object(new));
    let old_version = before.lock(old.incarnation(), ME).expect("free");
    let new_version = after.lock(new.incarnation(), ME).expect("free");
    table.publish(new, &|reference| reference == old, alloc);
    after.restamp(new_version.next(1));
    before.restamp(old_version.next(1).with(Version::ABSENT));
    after.unlock();
    before.unlock();
    table.remove(old, 1, alloc);
}

#[test]
fn delete_and_insert_of_one_key_in_one_transaction() {
    let (table, mut alloc) = fresh(vec![unique()]);
    let old = insert(&table, &mut alloc, 1, b"unique 1 and short");
    let long = [b"unique 1".as_slice(), &[b'x'; 900]].concat();
    let mine = |reference| reference == old;
    let reserved = table.reserve(&1_u64.to_be_bytes(), &long, &mut alloc, &mine, &mut |_| ()).expect("room");
    let Reserve::Reserved { reference: new, replaces: true } = reserved else { panic!("{reserved:?}") };
    assert_eq!(table.lookup(&1_u64.to_be_bytes()).found, Some(old), "until the commit");

    commit_in_place_of(&table, old, new, &mut alloc);

    assert_eq!(table.lookup(&1_u64.to_be_bytes()).found, Some(new));
    assert_eq!(table.lookup_secondary(1, b"unique 1").expect("an index").found, Some(new));
    assert_eq!(value_of(&table, new), Some(long));
}

#[test]
fn a_full_region_is_an_error_with_numbers_and_deletes_make_room() {
    let store = Store::format(region(8 * (64 << 10)), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let table = table(&store, vec![]);
    let value = [7_u8; 1000];
    let mut rows = Vec::new();
    let error = loop {
        let key = rows.len() as u64;
        match table.reserve(&key.to_be_bytes(), &value, &mut alloc, &|_| false, &mut |_| ()) {
            Ok(Reserve::Reserved { reference, .. }) => rows.push(reference),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(
        error,
        StoreError::OutOfMemory {
            table: TableId(7),
            wanted_bytes: 16_384,
            free_bytes: 0,
            region_bytes: 8 * 65_536,
            file_system_bytes: None
        }
    );
    assert!(rows.len() >= 6 * 56, "{} rows of 1 KiB in 384 KiB", rows.len());
    let rows_max = rows.len() as u64;
    for reference in rows.drain(..) {
        table.cancel(reference, &mut alloc);
    }
    alloc.flush();
    let def = TableDef { id: TableId(8), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
    let other = TableStore::create(&store, def).expect("a table");
    // Pages must come back first, and hold rows of this size again.
    (0..rows_max).for_each(|key| _ = insert(&other, &mut alloc, key, &value));
    let too_large = table.reserve(&2_u64.to_be_bytes(), &vec![0; 65_600], &mut alloc, &|_| false, &mut |_| ());
    assert_eq!(too_large, Err(StoreError::TooLarge { payload_bytes: 65_608, payload_bytes_max: 65_504 }));
}

/// A transaction has reserved a row in place of its old one before a unique index began to be filled. What another
/// transaction has entered there since stays, and the filler finds both rows.
#[test]
fn a_reservation_older_than_an_index_takes_nothing_there_from_others() {
    let (table, mut alloc) = fresh(vec![]);
    let old = insert(&table, &mut alloc, 1, b"old key!");
    let mine = |reference| reference == old;
    let reserved = table.reserve(&1_u64.to_be_bytes(), b"same key", &mut alloc, &mine, &mut |_| ()).expect("room");
    let Reserve::Reserved { reference: new, replaces: true } = reserved else { panic!("{reserved:?}") };
    table.begin_index(1, unique()).expect("an index");
    let other = insert(&table, &mut alloc, 2, b"same key");

    commit_in_place_of(&table, old, new, &mut alloc);

    assert_eq!(table.index(1).expect("an index").get(b"same key").value, Some(other.to_bits()));
    assert_eq!(table.lookup(&1_u64.to_be_bytes()).found, Some(new));
    let mut room = FillRoom::default();
    let mut filled = table.pages().into_iter().flat_map(|run| run.slots().collect::<Vec<_>>());
    let refused = filled.find_map(|offset| table.fill_slot(1, offset, &mut room).err());
    assert!(matches!(refused, Some(StoreError::Duplicate { .. })), "{refused:?}");
}

/// While an index is filled, a run that the filler has in its list is given back, and taken by another table.
#[test]
fn an_index_gets_the_rows_of_its_own_table() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let table = table(&store, vec![]);
    let row = insert(&table, &mut alloc, 1, b"one's row");
    let runs = table.pages();
    delete(&table, &mut alloc, row);
    alloc.flush();
    assert!(store.release_empty_pages() > 0);
    let def = TableDef { id: TableId(8), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
    let other = TableStore::create(&store, def).expect("a table");
    let [there, locked] = [1, 2].map(|key| insert(&other, &mut alloc, key, b"other's row"));
    assert_eq!(there.offset(), runs[0].offset(), "it has the run");
    store.object(locked).lock(locked.incarnation(), ME).expect("free");
    table.begin_index(1, unique()).expect("an index");
    let mut room = FillRoom::default();
    for offset in runs.iter().flat_map(Run::slots) {
        assert_eq!(table.fill_slot(1, offset, &mut room), Ok(true), "there is nothing to wait for");
    }
    assert_eq!(table.index(1).map(OrderedIndex::len), Some(0));
}

/// A row of a run's next use is above all that was in the run before, whichever slot it has: mirrors rely on that.
#[test]
fn a_run_begins_its_next_use_above_all_that_was_in_it() {
    let store = Store::format(region(8 * (64 << 10)), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let table = table(&store, vec![]);
    let rows: Vec<ObjectRef> = (0..100).map(|key| insert(&table, &mut alloc, key, &[7; 1000])).collect();
    let object = store.object(rows[0]);
    for _ in 0..50 {
        let version = object.lock(rows[0].incarnation(), ME).expect("free");
        object.restamp(version.next(store.superblock().epoch()));
        object.unlock();
    }
    let highest = object.version();
    for row in &rows {
        delete(&table, &mut alloc, *row);
    }
    alloc.flush();
    assert!(store.release_empty_pages() > 0);
    let floors = store.floors();
    let floor_of = |row: ObjectRef| {
        let page = row.offset() / PAGE_BYTES;
        floors.iter().find(|(number, _)| u64::from(*number) == page).map(|(_, floor)| *floor)
    };
    assert!(rows.iter().all(|row| floor_of(*row).is_some()), "each page was given back");
    assert!(floor_of(rows[0]).is_some_and(|floor| floor > highest));
    let def = TableDef { id: TableId(8), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
    let other = TableStore::create(&store, def).expect("a table");
    for key in 0..100 {
        let row = insert(&other, &mut alloc, key, &[7; 1000]);
        let floor = floor_of(row).expect("a run that rests is taken first");
        assert!(store.object(row).version() > floor, "{:?} below {floor:?}", store.object(row).version());
    }
}

/// A transaction of another node has found a row, and locks it by one instruction later. By then the row has been deleted, and its page
/// given back because memory was short. The word that it locks must not be eight zero bytes of a row that has been placed there since.
#[test]
fn a_stale_reference_never_locks_what_is_no_lock() {
    let store = Store::format(region(8 * (64 << 10)), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let table = table(&store, vec![]);
    let fill = |table: &TableStore, alloc: &mut AllocCache, value: &[u8]| {
        let mut rows = Vec::new();
        loop {
            let key = (rows.len() as u64).to_be_bytes();
            match table.reserve(&key, value, alloc, &|_| false, &mut |_| ()) {
                Ok(Reserve::Reserved { reference, .. }) => rows.push(reference),
                Ok(other) => panic!("{other:?}"),
                Err(_) => return rows,
            }
        }
    };
    let stale = fill(&table, &mut alloc, &[7; 1000]);
    for reference in &stale {
        table.cancel(*reference, &mut alloc);
    }
    alloc.flush();
    let def = TableDef { id: TableId(8), primary: KeyShape::Fixed(8), hash: false, secondaries: vec![] };
    let other = TableStore::create(&store, def).expect("a table");
    let value = vec![0; 9_000];
    let large = fill(&other, &mut alloc, &value);
    let small = fill(&other, &mut alloc, &[0; 1000]);
    assert!(!large.is_empty() || !small.is_empty(), "the pages were given back, and are used again");
    for reference in stale {
        // As an instruction does it, which looks at nothing else.
        let word = store.memory().word(reference.offset()).expect("in the region");
        let _ = word.compare_exchange(0, ME.word(), SeqCst, SeqCst);
    }
    let whole = |rows: &[ObjectRef], value: &[u8]| {
        let mut room = vec![0; 9_100];
        rows.iter().all(|row| {
            let read = store.object(*row).read(row.incarnation(), &mut room).expect("a row");
            &room[read.key_len()..read.payload_len()] == value
        })
    };
    assert!(whole(&large, &value) && whole(&small, &[0; 1000]), "no row has an owner's word in it");
}

#[test]
fn readers_meet_whole_rows_and_writers_lose_nothing() {
    const TURNS: u64 = if cfg!(miri) { 60 } else { 20_000 };
    let (table, mut alloc) = fresh(vec![]);
    let row = |number: u64| vec![number as u8; 16 + number as usize % 300];
    let reference = insert(&table, &mut alloc, 1, &[0; 316]);
    let object = table.store().object(reference);
    let start = object.version();
    let writer = |worker: u8| {
        let me = Owner::new(1, NodeId(0), worker, 1);
        let mut done = 0;
        while done < TURNS {
            if let Ok(version) = object.lock(reference.incarnation(), me) {
                done += 1;
                object.write(&row(done * 7 + u64::from(worker)), version.next(1));
                object.unlock();
            } else {
                std::thread::yield_now();
            }
        }
    };
    let reader = || {
        let mut into = [0; 400];
        let (mut last, mut read_whole) = (start, 0);
        while read_whole < TURNS / 4 {
            let Ok(read) = object.read(reference.incarnation(), &mut into) else {
                std::thread::yield_now();
                continue;
            };
            let value = &into[8..read.payload_len()];
            assert!(value.iter().all(|byte| *byte == value[0]), "torn at {:?}", read.version);
            assert!(read.version == start || value.len() >= 16);
            assert!(read.version >= last, "versions grow");
            (last, read_whole) = (read.version, read_whole + 1);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| writer(1));
        scope.spawn(|| writer(2));
        scope.spawn(reader);
        scope.spawn(reader);
    });
    assert_eq!(object.version().0, start.0 + 2 * TURNS * Version::ONE, "one step a write");
}
