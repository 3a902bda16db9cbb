//! Writers move money between rows, and rows between slots; every snapshot must see the whole sum and every row once.

mod common;

use common::{fresh, insert, value_of};
use farhold_fabric::NodeId;
use farhold_store::snapshot::RunScan;
use farhold_store::{
    AllocCache, Holder, ObjectRef, Owner, REGION_BYTES_MIN, Reserve, Snapshot, Store, StoreError, TableStore, Version,
};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

const ROWS: u64 = if cfg!(miri) { 8 } else { 100 };
const EACH: u64 = 1000;

/// A balance, and filling that varies, so that a row's slot may differ from time to time.
fn row(balance: u64, length: usize) -> Vec<u8> {
    let mut value = balance.to_le_bytes().to_vec();
    value.resize(length.max(8), balance as u8);
    value
}

fn balance(value: &[u8]) -> u64 {
    assert!(value[8..].iter().all(|byte| *byte == value[0]), "one state, not a mixture");
    u64::from_le_bytes(value[..8].try_into().expect("8 bytes"))
}

/// Set by a writer that fails, so that no thread waits for its locks.
static FAILED: AtomicBool = AtomicBool::new(false);

struct Alarm;

impl Drop for Alarm {
    fn drop(&mut self) {
        FAILED.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

fn scan(table: &TableStore, snapshot: &Snapshot) -> BTreeMap<u64, u64> {
    let (mut room, mut rows) = (Vec::new(), BTreeMap::new());
    for run in table.pages() {
        let mut scan = RunScan::new(table.store().memory(), run, snapshot.epoch());
        let mut visit = |_: ObjectRef, key: &[u8], value: &[u8]| {
            let key = u64::from_be_bytes(key.try_into().expect("8 bytes"));
            assert_eq!(rows.insert(key, balance(value)), None, "row {key} twice");
        };
        while scan.go_on(&mut room, &mut visit).expect("a sound store").is_err() {
            assert!(!FAILED.load(Ordering::Relaxed), "a writer failed");
            std::thread::yield_now();
        }
    }
    rows
}

/// Takes from one row and gives to another; now and then the second row moves to another slot.
fn transfer(table: &TableStore, alloc: &mut AllocCache, rng: &mut Rng, me: Owner) -> bool {
    let store = table.store().clone();
    let keys = [rng.u64(..ROWS), rng.u64(..ROWS)];
    let found = keys.map(|key| table.lookup(&key.to_be_bytes()).found);
    let [Some(from), Some(to)] = found else { return false };
    if from == to {
        return false;
    }
    // A move begins with a reservation, before the epoch is read (see `TableStore::reserve`).
    let room = row(0, 8 + rng.u64(..if cfg!(miri) { 40 } else { 200 }) as usize);
    let mine = |reference| reference == to;
    let target = match rng.u64(..4) {
        0 => match table.reserve(&keys[1].to_be_bytes(), &room, alloc, &mine, &mut |_| ()).expect("room") {
            Reserve::Reserved { reference, replaces: true } => Some(reference),
            Reserve::Reserved { reference, .. } => {
                table.cancel(reference, alloc); // The row has moved since.
                return false;
            }
            Reserve::Exists { .. } => return false,
        },
        _ => None,
    };
    let mut order: Vec<_> = [from, to].into_iter().chain(target).collect();
    order.sort_unstable();
    let mut versions = BTreeMap::new();
    for reference in &order {
        match store.object(*reference).lock(reference.incarnation(), me) {
            Ok(version) if !version.is_absent() || Some(*reference) == target => versions.insert(*reference, version),
            other => {
                if other.is_ok() {
                    store.object(*reference).unlock();
                }
                for held in versions.keys() {
                    store.object(*held).unlock();
                }
                target.inspect(|target| table.cancel(*target, alloc));
                return false;
            }
        };
    }
    let epoch = store.superblock().epoch();
    for reference in &order {
        table.save_undo(*reference, epoch, alloc).expect("room");
    }
    let values = [from, to].map(|reference| value_of(table, reference).expect("locked, so it is there"));
    let amount = rng.u64(..=balance(&values[0])).min(10);
    let length = values[0].len();
    store.object(from).write(&row(balance(&values[0]) - amount, length), versions[&from].next(epoch));
    let new_to = balance(&values[1]) + amount;
    if let Some(target) = target {
        table.publish(target, &mine, alloc);
        store.object(target).write(&row(new_to, room.len()), versions[&target].next(epoch));
        store.object(to).restamp(versions[&to].next(epoch).with(Version::ABSENT));
    } else {
        store.object(to).write(&row(new_to, values[1].len()), versions[&to].next(epoch));
    }
    for reference in &order {
        store.object(*reference).unlock();
    }
    if target.is_some() {
        table.remove(to, epoch, alloc);
    }
    true
}

#[test]
fn snapshots_see_one_state_while_writers_move_money_and_rows() {
    let (table, mut alloc) = fresh(vec![]);
    for key in 0..ROWS {
        insert(&table, &mut alloc, key, &row(EACH, 40));
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for worker in 1..=3 {
            let (table, stop) = (&table, &stop);
            scope.spawn(move || {
                let _alarm = Alarm;
                let mut alloc = table.store().alloc_cache();
                let mut rng = Rng::with_seed(u64::from(worker));
                let me = Owner::new(1, table.store().node(), worker, 1);
                let mut done = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    done += u64::from(transfer(table, &mut alloc, &mut rng, me));
                    if done.is_multiple_of(64) {
                        alloc.collect();
                    }
                }
            });
        }
        let mut scans = Vec::new();
        for reader in 0..2 {
            let table = &table;
            scans.push(scope.spawn(move || {
                for turn in 0..if cfg!(miri) { 3 } else { 150 } {
                    let snapshot = Snapshot::open(table.store()).expect("a slot");
                    let first = scan(table, &snapshot);
                    assert_eq!(first.len() as u64, ROWS, "reader {reader}, turn {turn}");
                    assert_eq!(first.values().sum::<u64>(), ROWS * EACH, "reader {reader}, turn {turn}");
                    if turn % 10 == 0 {
                        // An old snapshot still sees what it saw, under newer ones.
                        let _newer = Snapshot::open(table.store()).expect("a slot");
                        assert_eq!(scan(table, &snapshot), first);
                    }
                }
            }));
        }
        for reader in scans {
            let result = reader.join();
            stop.store(true, Ordering::Relaxed);
            result.expect("a consistent snapshot");
        }
    });
    alloc.collect();
    let statistics = table.statistics();
    assert_eq!((statistics.rows, statistics.held_slots), (ROWS, 0), "nothing is held when no snapshot is open");
}

/// Updates by the protocol: locks, reads the epoch, saves, writes.
fn update(table: &TableStore, alloc: &mut AllocCache, reference: ObjectRef, value: u64) {
    let object = table.store().object(reference);
    let version = object.lock(reference.incarnation(), common::ME).expect("free");
    let epoch = table.store().superblock().epoch();
    table.save_undo(reference, epoch, alloc).expect("room");
    object.write(&row(value, 8), version.next(epoch));
    object.unlock();
}

/// The epoch rises under an old snapshot, by a journal or by snapshots that are closed again: the states between have no reader.
#[test]
fn states_newer_than_all_snapshots_are_not_copied() {
    let (table, mut alloc) = fresh(vec![]);
    let reference = insert(&table, &mut alloc, 1, &row(1, 8));
    let old = Snapshot::open(table.store()).expect("a slot");
    update(&table, &mut alloc, reference, 2);
    assert_eq!(alloc.held_back(), 1, "the old snapshot reads what was there");
    for value in 3..10 {
        let _ = table.store().superblock().advance_epoch();
        update(&table, &mut alloc, reference, value);
    }
    assert_eq!(alloc.held_back(), 1, "no snapshot reads the states of 2 to 8");
    let new = Snapshot::open(table.store()).expect("a slot");
    update(&table, &mut alloc, reference, 10);
    assert_eq!(alloc.held_back(), 2, "the new snapshot reads 9");
    assert_eq!(scan(&table, &old), BTreeMap::from([(1, 1)]));
    assert_eq!(scan(&table, &new), BTreeMap::from([(1, 9)]));
    drop(old);
    alloc.collect();
    assert_eq!((alloc.held_back(), scan(&table, &new)), (1, BTreeMap::from([(1, 9)])));
    // An announced snapshot may get any epoch from now on.
    let _ = table.store().superblock().advance_epoch();
    update(&table, &mut alloc, reference, 11);
    let _ = table.store().superblock().advance_epoch();
    let holder = Holder { node: NodeId(0), incarnation: 1 };
    let announced = table.store().superblock().announce(holder).expect("a slot");
    update(&table, &mut alloc, reference, 12);
    assert_eq!(alloc.held_back(), 2);
    table.store().superblock().release(announced, holder);
}

#[test]
fn without_the_undo_copy_the_check_above_fails() {
    let (table, mut alloc) = fresh(vec![]);
    let reference = insert(&table, &mut alloc, 1, &row(1, 8));
    for saved in [true, false] {
        let snapshot = Snapshot::open(table.store()).expect("a slot");
        let before = scan(&table, &snapshot);
        let object = table.store().object(reference);
        let version = object.lock(reference.incarnation(), common::ME).expect("free");
        let epoch = table.store().superblock().epoch();
        if saved {
            table.save_undo(reference, epoch, &mut alloc).expect("room");
        }
        object.write(&row(2, 8), version.next(epoch));
        object.unlock();
        assert_eq!(scan(&table, &snapshot) == before, saved);
    }
}

#[test]
fn deleted_rows_stay_for_those_who_may_see_them() {
    let (table, mut alloc) = fresh(vec![]);
    let reference = insert(&table, &mut alloc, 1, &row(5, 8));
    let old = Snapshot::open(table.store()).expect("a slot");
    let epoch = table.store().superblock().epoch();
    let object = table.store().object(reference);
    let version = object.lock(reference.incarnation(), common::ME).expect("free");
    let mut room = Vec::new();
    let mut held = RunScan::new(table.store().memory(), table.pages()[0], old.epoch());
    let blocked = held.go_on(&mut room, &mut |_, _, _| ()).expect("sound").expect_err("the row is locked");
    assert_eq!((blocked.offset, blocked.lock), (reference.offset(), common::ME.word()));
    table.save_undo(reference, epoch, &mut alloc).expect("room");
    object.restamp(version.next(epoch).with(Version::ABSENT));
    object.unlock();
    table.remove(reference, epoch, &mut alloc);
    let new = Snapshot::open(table.store()).expect("a slot");
    let inserted = insert(&table, &mut alloc, 1, &row(6, 8));
    assert_ne!(inserted.offset(), reference.offset(), "the old slot is still needed");
    assert_eq!(scan(&table, &old), BTreeMap::from([(1, 5)]));
    assert_eq!(scan(&table, &new), BTreeMap::new());
    assert_eq!(alloc.held_back(), 2);
    drop(old);
    alloc.collect();
    assert_eq!(alloc.held_back(), 0, "the newer snapshot does not need them");
    assert_eq!(scan(&table, &new), BTreeMap::new());
}

/// A commit of another node asks for a copy of a row, and gives up before the copy is made. A copy that is made then, while
/// others write, is no state of the row.
#[test]
fn no_copy_is_made_for_an_owner_that_has_unlocked_the_row() {
    let (table, mut alloc) = fresh(vec![]);
    let reference = insert(&table, &mut alloc, 1, &row(5, 8));
    let snapshot = Snapshot::open(table.store()).expect("a slot");
    let epoch = table.store().superblock().epoch();
    let object = table.store().object(reference);
    let [gone, other] = [1, 2].map(|number| Owner::new(1, NodeId(1), 0, number));
    let mut save_for = |owner: Owner| {
        table.save_undo_for(owner.word(), reference, epoch, &mut alloc).expect("room");
        !object.prev().is_none()
    };
    assert!(!save_for(gone), "nobody holds it");
    object.lock(reference.incarnation(), other).expect("free");
    assert!(!save_for(gone), "another holds it");
    assert!(save_for(other));
    let version = object.version();
    object.write(&row(6, 8), version.next(epoch));
    object.unlock();
    assert_eq!(scan(&table, &snapshot), BTreeMap::from([(1, 5)]));
}

/// States that a worker has overwritten under a snapshot are free when the snapshot is closed, even if the worker is idle, and
/// another has looked for garbage before.
#[test]
fn what_a_worker_that_rests_held_back_is_freed_by_others() {
    const UPDATES: usize = 200;
    let (table, mut rests) = fresh(vec![]);
    let reference = insert(&table, &mut rests, 1, &row(1, 8));
    let mut looks_early = table.store().alloc_cache();
    let mut looks_late = table.store().alloc_cache();
    let first = Snapshot::open(table.store()).expect("a slot");
    for value in 0..UPDATES {
        let _reads_this_state = Snapshot::open(table.store()).expect("a slot");
        update(&table, &mut rests, reference, value as u64);
    }
    assert_eq!(rests.held_back(), UPDATES);
    assert_eq!(looks_early.collect(), 0);
    drop(first);
    assert!(looks_late.collect() > 0);
    assert!(rests.held_back() < UPDATES / 3, "{}", rests.held_back());
}

/// Memory is full of states that a snapshot held back. As soon as it is closed they can be used again.
#[test]
fn memory_that_was_held_back_is_there_when_it_is_needed() {
    let store = Store::format(common::region(REGION_BYTES_MIN + (1 << 20)), NodeId(0)).expect("a store");
    let (table, mut alloc) = (common::table(&store, vec![]), store.alloc_cache());
    let reference = insert(&table, &mut alloc, 1, &row(1, 4_000));
    let mut snapshots = vec![Snapshot::open(&store).expect("a slot")];
    let full = loop {
        let object = store.object(reference);
        let version = object.lock(reference.incarnation(), common::ME).expect("free");
        let epoch = store.superblock().epoch();
        let saved = table.save_undo(reference, epoch, &mut alloc);
        if saved.is_ok() {
            object.write(&row(u64::from(epoch), 4_000), version.next(epoch));
        }
        object.unlock();
        if let Err(error) = saved {
            break error;
        }
        // The one before is held open beside the first, so that each state has a reader.
        snapshots.truncate(1);
        snapshots.push(Snapshot::open(&store).expect("a slot"));
    };
    assert!(matches!(full, StoreError::OutOfMemory { .. }), "{full}");
    drop(snapshots);
    insert(&table, &mut alloc, 2, &row(2, 4_000));
}
