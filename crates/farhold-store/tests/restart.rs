//! Regions found after a restart: what is taken over, and what is refused.

mod common;

use common::{ME, delete, fresh, insert, region, reserve, unique, value_of};
use farhold_btree::KeyShape;
use farhold_fabric::{Meta, NodeId, RegionMemory, Version};
use farhold_store::durable::power::Volatile;
use farhold_store::durable::{Identity, checkpoint};
use farhold_store::object::{RESERVED, Word, Words};
use farhold_store::table::Occupant;
use farhold_store::{
    Holder, IndexDef, LAYOUT_VERSION, ObjectRef, Owner, PageTable, Reserve, Snapshot, Store, StoreError, Superblock,
    TableDef, TableId, TableStore,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

fn def(secondaries: Vec<IndexDef>) -> TableDef {
    let secondaries = secondaries.into_iter().map(Some).collect();
    TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash: true, secondaries }
}

fn words(memory: &RegionMemory) -> Vec<u64> {
    (0..memory.len()).step_by(8).map(|at| memory.word(at).expect("inside").load(Relaxed)).collect()
}

#[test]
fn committed_rows_come_back_and_nothing_else() {
    let memory = region(8 << 20);
    let mut kept = Vec::new();
    let epoch;
    {
        let store = Store::format(memory.clone(), NodeId(3)).expect("a store");
        let table = TableStore::create(&store, def(vec![unique()])).expect("a table");
        let mut alloc = store.alloc_cache();
        for key in 0..2000_u64 {
            kept.push(insert(&table, &mut alloc, key, &key.to_le_bytes()));
        }
        // A deleted one, a reserved one, one with an older copy, one whose owner dies holding the lock.
        delete(&table, &mut alloc, kept.swap_remove(7));
        let _ = reserve(&table, &mut alloc, 9999, b"reserved");
        let snapshot = Snapshot::open(&store).expect("a slot");
        epoch = store.superblock().epoch();
        let object = store.object(kept[3]);
        let version = object.lock(kept[3].incarnation(), ME).expect("free");
        table.save_undo(kept[3], epoch, &mut alloc).expect("room");
        object.write_part(8, &[], version.next(epoch));
        object.unlock();
        let dying = store.object(kept[4]);
        dying.lock(kept[4].incarnation(), Owner::new(1, NodeId(9), 1, 1)).expect("free");
        std::mem::forget((snapshot, alloc)); // The process dies.
    }
    let (store, found) = Store::attach(memory.clone(), NodeId(3)).expect("the store");
    assert!(!found.clean);
    assert_eq!(found.incarnation, 2);
    assert!(!store.superblock().snapshots_open());
    assert_eq!(store.unclaimed(), [TableId(7)]);
    let new = TableStore::create(&store, def(vec![unique()])).map(|_| ());
    assert_eq!(new, Err(StoreError::TableExists(TableId(7))));

    let (table, rebuilt) = TableStore::attach(&store, def(vec![unique()])).expect("the table");
    assert_eq!((rebuilt.rows, rebuilt.freed, rebuilt.locks_released), (1999, 2, 1));
    assert_eq!((rebuilt.damaged.len(), rebuilt.epoch_max), (0, epoch));
    assert_eq!(store.superblock().epoch(), epoch);
    for reference in &kept {
        let value = value_of(&table, *reference).expect("a row");
        let key = u64::from_le_bytes(value[..8].try_into().expect("8 bytes")).to_be_bytes();
        assert_eq!(table.lookup(&key).found, Some(*reference));
        assert_eq!(table.primary().get(&key).value, Some(reference.to_bits()));
        assert_eq!(table.lookup_secondary(1, &value[..8]).expect("an index").found, Some(*reference));
        assert_eq!(store.object(*reference).lock_word(), 0);
    }
    assert_eq!(table.lookup(&9999_u64.to_be_bytes()).found, None);
    assert_eq!(table.statistics().rows, 1999);
    let mut alloc = store.alloc_cache();
    let before = table.statistics().page_bytes;
    for key in 10_000..10_040_u64 {
        insert(&table, &mut alloc, key, &key.to_le_bytes());
    }
    assert_eq!(table.statistics().page_bytes, before, "the free slots are used first");
}

#[test]
fn a_row_being_written_at_the_crash_is_reported() {
    let memory = region(1 << 20);
    let reference = {
        let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
        let table = TableStore::create(&store, def(vec![])).expect("a table");
        let mut alloc = store.alloc_cache();
        insert(&table, &mut alloc, 1, b"whole");
        let reference = insert(&table, &mut alloc, 2, b"half");
        let object = store.object(reference);
        let version = object.lock(reference.incarnation(), ME).expect("free");
        object.store(Word::Version, version.with(Version::WRITING).0, Relaxed);
        reference
    };
    let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
    let (_, rebuilt) = TableStore::attach(&store, def(vec![])).expect("the table");
    assert_eq!(rebuilt.rows, 1);
    let [damaged] = &rebuilt.damaged[..] else { panic!("{rebuilt:?}") };
    assert_eq!((damaged.reference, damaged.owner, &damaged.key[..]), (reference, Some(ME), &2_u64.to_be_bytes()[..]));
}

/// The same, of a start that is asked to forget: the key is free, and the next start has nothing to report.
#[test]
fn a_row_being_written_at_the_crash_is_forgotten_when_asked() {
    let memory = region(1 << 20);
    {
        let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
        let table = TableStore::create(&store, def(vec![])).expect("a table");
        let mut alloc = store.alloc_cache();
        insert(&table, &mut alloc, 1, b"whole");
        let reference = insert(&table, &mut alloc, 2, b"half");
        let object = store.object(reference);
        let version = object.lock(reference.incarnation(), ME).expect("free");
        object.store(Word::Version, version.with(Version::WRITING).0, Relaxed);
    }
    for (forgets, expected) in [(false, (1, 0)), (false, (1, 0)), (true, (0, 1)), (true, (0, 0))] {
        let (store, _) = Store::attach(memory.clone(), NodeId(0)).expect("the store");
        let attached = TableStore::attach_parallel(&store, def(vec![]), forgets, &|job| job(0));
        let (table, rebuilt) = attached.expect("the table");
        assert_eq!((rebuilt.rows, (rebuilt.damaged.len(), rebuilt.forgotten.len())), (1, expected));
        let found = table.lookup(&2_u64.to_be_bytes()).found;
        assert_eq!(found.is_none(), forgets);
        assert!(found.is_none_or(|row| store.object(row).is_damaged()));
        assert_eq!(store.inconsistencies(), Vec::<String>::new());
    }
}

/// Rows that a remote transaction was writing when their node died: in place, or as an insert that has taken the place of a
/// deleted row. None of their keys is free.
#[test]
fn a_row_being_written_at_the_crash_keeps_its_key() {
    for is_insert in [false, true] {
        let memory = region(1 << 20);
        let key = 2_u64.to_be_bytes();
        let reference = {
            let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
            let table = TableStore::create(&store, def(vec![unique()])).expect("a table");
            let mut alloc = store.alloc_cache();
            let reference = insert(&table, &mut alloc, 2, b"12345678");
            let object = store.object(reference);
            let version = object.lock(reference.incarnation(), ME).expect("free");
            let half = version.with(Version::WRITING);
            let half = if is_insert { half.with(Version::ABSENT) } else { half };
            object.store(Word::Version, half.0, Relaxed);
            object.store(Word::Meta, Meta::new(reference.incarnation(), Meta::ROW, 8, 16).0, Relaxed);
            reference
        };
        let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
        let (table, rebuilt) = TableStore::attach(&store, def(vec![unique()])).expect("the table");
        assert_eq!(rebuilt.damaged.len(), 1, "{rebuilt:?}");
        assert_eq!(table.lookup(&key).found, Some(reference));
        assert_eq!(table.primary().get(&key).value, Some(reference.to_bits()));
        let again = reserve(&table, &mut store.alloc_cache(), 2, b"87654321");
        let Reserve::Exists { reference: other, occupant, .. } = again else { panic!("{again:?}") };
        assert_eq!((other, occupant), (reference, Occupant::Reserved));
    }
}

/// The lock of a remote insert is gone, and its version has not come: the two are written together, after all else is there. The
/// old row is deleted, so freeing the new one would lose the row.
#[test]
fn an_insert_that_lacks_only_its_version_is_a_row() {
    let memory = region(1 << 20);
    let (key, value) = (2_u64.to_be_bytes(), b"12345678");
    let new = {
        let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
        let table = TableStore::create(&store, def(vec![unique()])).expect("a table");
        let mut alloc = store.alloc_cache();
        let old = insert(&table, &mut alloc, 2, value);
        let reserved = table.reserve(&key, value, &mut alloc, &|it| it == old, &mut |_| ());
        let Ok(Reserve::Reserved { reference, .. }) = reserved else { panic!("{reserved:?}") };
        let new = store.object(reference);
        new.store(Word::Meta, Meta::new(reference.incarnation(), Meta::ROW, 8, 16).0, Relaxed);
        new.store(Word::Version, new.version().with(Version::WRITING).0, Relaxed);
        let old = store.object(old);
        old.restamp(old.version().next(1).with(Version::ABSENT));
        reference
    };
    let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
    let (table, rebuilt) = TableStore::attach(&store, def(vec![unique()])).expect("the table");
    assert_eq!((rebuilt.rows, rebuilt.freed, &rebuilt.damaged[..]), (1, 1, &[][..]));
    assert_eq!(
        (table.lookup(&key).found, table.lookup_secondary(1, value).expect("there").found),
        (Some(new), Some(new))
    );
    let (mut into, object) = ([0; 16], store.object(new));
    let read = object.read(new.incarnation(), &mut into).expect("whole");
    assert!(!read.is_absent() && into[8..] == *value);
}

/// A commit moves the row of key 2 and gives its unique value to that of key 3, and the process ends between its writes, wherever
/// the rows lie and whatever their epochs: before the second new row is there, the old rows are there, and from then on the new
/// ones.
#[test]
fn rows_that_move_are_those_of_before_a_commit_or_those_of_behind_it() {
    let (a, b, x) = (b"value  a", b"value  b", b"value  x");
    for (new_at, is_whole) in [(0, false), (0, true), (2, false), (2, true)] {
        let memory = region(1 << 20);
        {
            let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
            let table = TableStore::create(&store, def(vec![unique()])).expect("a table");
            let mut alloc = store.alloc_cache();
            let rows: Vec<_> =
                (0..4).map(|key: u64| insert(&table, &mut alloc, 90 + key, &key.to_be_bytes())).collect();
            let fill = |reference: ObjectRef, key: u64, value: &[u8; 8], is_new: bool, is_there: bool| {
                let object = store.object(reference);
                object.copy_in(0, &key.to_be_bytes());
                object.copy_in(8, value);
                object.lock(reference.incarnation(), ME).expect("free");
                if is_new {
                    object.store(Word::Meta, Meta::new(reference.incarnation(), RESERVED, 8, 16).0, Relaxed);
                }
                if !is_there {
                    object.store(Word::Version, object.version().with(Version::ABSENT).0, Relaxed);
                }
            };
            let mut sorted = rows;
            sorted.sort_unstable_by_key(|row| row.offset());
            let (new, old) = (new_at, 2 - new_at);
            fill(sorted[old], 2, a, false, true);
            fill(sorted[old + 1], 3, b, false, true);
            fill(sorted[new], 2, b, true, true);
            fill(sorted[new + 1], 3, x, true, is_whole);
        }
        let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
        let (table, rebuilt) = TableStore::attach(&store, def(vec![unique()])).expect("the table");
        assert_eq!((rebuilt.rows, rebuilt.freed, &rebuilt.damaged[..]), (2, 2, &[][..]));
        let values = [2_u64, 3].map(|key| {
            let row = table.lookup(&key.to_be_bytes()).found.expect("a row");
            assert_eq!((store.object(row).lock_word(), store.object(row).meta().state()), (0, Meta::ROW));
            value_of(&table, row).expect("whole")
        });
        let expected = if is_whole { [b, x] } else { [a, b] };
        assert_eq!(values, expected.map(|value| value.to_vec()), "new at {new_at}, whole: {is_whole}");
        assert_eq!(store.inconsistencies(), Vec::<String>::new());
    }
}

/// What an earlier version has left of such a commit does not say which rows are new. The row of a key is there once, and a row
/// whose unique value another row has is reported.
#[test]
fn rows_of_both_sides_of_a_commit_are_no_duplicates() {
    for (new_key, damaged) in [(2_u64, 0), (3, 1)] {
        for is_new_first in [false, true] {
            let memory = region(1 << 20);
            {
                let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
                let table = TableStore::create(&store, def(vec![unique()])).expect("a table");
                let mut alloc = store.alloc_cache();
                let [one, other] = [2, 9].map(|key: u64| insert(&table, &mut alloc, key, &key.to_be_bytes()));
                insert(&table, &mut alloc, 5, b"not held");
                let (old, new) = if is_new_first { (other, one) } else { (one, other) };
                for (reference, key) in [(old, 2), (new, new_key)] {
                    let object = store.object(reference);
                    object.copy_in(0, &key.to_be_bytes());
                    object.copy_in(8, b"12345678");
                    object.lock(reference.incarnation(), ME).expect("free");
                }
            }
            let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
            let (table, rebuilt) = TableStore::attach(&store, def(vec![unique()])).expect("the table");
            assert_eq!((rebuilt.rows, rebuilt.damaged.len(), rebuilt.freed), (2, damaged, 1 - damaged as u64));
            let by_key = |key: u64| table.lookup(&key.to_be_bytes()).found;
            let by_name = table.lookup_secondary(1, b"12345678").expect("there").found;
            let there = [by_key(2), by_key(new_key)];
            assert!(there.iter().all(Option::is_some) && there.contains(&by_name), "{there:?}, {by_name:?}");
            assert_eq!(store.inconsistencies(), Vec::<String>::new());
        }
    }
}

/// A row grows out of its slot, and its node dies when the new one is there, and the old one half gone.
#[test]
fn a_row_whose_place_another_has_taken_is_no_damage() {
    let memory = region(1 << 20);
    let key = 2_u64.to_be_bytes();
    let new = {
        let store = Store::format(memory.clone(), NodeId(0)).expect("a store");
        let table = TableStore::create(&store, def(vec![])).expect("a table");
        let mut alloc = store.alloc_cache();
        let [old, new] = [2, 3].map(|key| insert(&table, &mut alloc, key, b"12345678"));
        store.object(new).copy_in(0, &key);
        let object = store.object(old);
        let version = object.lock(old.incarnation(), ME).expect("free");
        object.store(Word::Version, version.with(Version::WRITING).0, Relaxed);
        new
    };
    let (store, _) = Store::attach(memory, NodeId(0)).expect("the store");
    let (table, rebuilt) = TableStore::attach(&store, def(vec![])).expect("the table");
    assert_eq!((rebuilt.rows, &rebuilt.damaged[..]), (1, &[][..]));
    assert_eq!(table.lookup(&key).found, Some(new));
    let mut alloc = store.alloc_cache();
    let before = table.statistics().page_bytes;
    insert(&table, &mut alloc, 3, b"12345678");
    assert_eq!(table.statistics().page_bytes, before, "the slot of the old one is free");
}

#[test]
fn what_is_not_ours_is_refused_and_left_alone() {
    let memory = region(1 << 20);
    drop(Store::format(memory.clone(), NodeId(1)).expect("a store"));
    let attach = |memory: &Arc<RegionMemory>, node| {
        let before = words(memory);
        let refused = Store::attach(memory.clone(), NodeId(node)).map(|_| ()).expect_err("refused");
        assert_eq!(words(memory), before, "untouched");
        refused
    };
    assert_eq!(attach(&memory, 2), StoreError::WrongNode { found: 1, expected: NodeId(2) });
    let spoil = |at: u64, value: u64| memory.word(at).expect("inside").swap(value, Relaxed);

    let old = spoil(0, 0x1234);
    assert_eq!(attach(&memory, 1), StoreError::Foreign { found: 0x1234 });
    spoil(0, old);
    let old = spoil(8, 99);
    assert_eq!(attach(&memory, 1), StoreError::LayoutVersion { found: 99, expected: LAYOUT_VERSION });
    spoil(8, old);
    let old = spoil(24, 2 << 20);
    let truncated = attach(&memory, 1);
    let (region_bytes, expected_bytes) = (1 << 20, 2 << 20);
    assert_eq!(truncated, StoreError::Truncated { region: memory.file_name().into(), region_bytes, expected_bytes });
    assert!(truncated.to_string().starts_with(&format!("{} has 1048576 bytes", memory.file_name())), "{truncated}");
    spoil(24, old);
    for (at, value) in [(48, 7), (56, u64::MAX), (56, 3), (24, 100)] {
        let old = spoil(at, value);
        assert!(matches!(attach(&memory, 1), StoreError::Corrupt { .. }), "{at}");
        spoil(at, old);
    }
    // Page table entries: a kind, a class, a run that cannot be.
    let first = u64::from(PageTable::of(&memory).expect("good").first());
    let entry = (64 << 10) + first * 32;
    for word in [0x85, 0x81 | 200 << 8 | 1 << 16, 0x81 | 5 << 16, 0x82 | 0xffff << 16, 0x82] {
        let old = spoil(entry, word);
        assert!(matches!(attach(&memory, 1), StoreError::Corrupt { .. }), "{word:#x}");
        spoil(entry, old);
    }
    let empty = region(1 << 20);
    assert_eq!(attach(&empty, 1), StoreError::Foreign { found: 0 });
    let short = region(64 << 10);
    for at in [0, 8, 24] {
        let word = memory.word(at).expect("inside").load(Relaxed);
        short.word(at).expect("inside").store(word, Relaxed);
    }
    let (region_bytes, expected_bytes) = (64 << 10, 1 << 20);
    assert_eq!(
        attach(&short, 1),
        StoreError::Truncated { region: short.file_name().into(), region_bytes, expected_bytes }
    );
    let short = region(64 << 10);
    assert!(matches!(attach(&short, 1), StoreError::RegionLength { region_bytes: 65_536, .. }));
    assert!(matches!(Store::format(short, NodeId(1)).map(|_| ()), Err(StoreError::RegionLength { .. })));
    Store::attach(memory, NodeId(1)).expect("it was ours all the time");
}

#[test]
fn a_clean_end_is_seen_once() {
    let memory = region(1 << 20);
    Store::format(memory.clone(), NodeId(0)).expect("a store").close();
    assert!(Store::attach(memory.clone(), NodeId(0)).expect("the store").1.clean);
    assert!(!Store::attach(memory, NodeId(0)).expect("the store").1.clean);
}

#[test]
fn versions_and_incarnations_outlive_a_tables_pages() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let mut seen = Vec::new();
    for round in 0..3_u32 {
        let other = TableDef { id: TableId(100 + round), hash: false, ..def(vec![]) };
        let table = TableStore::create(&store, other).expect("a table");
        let mut alloc = store.alloc_cache();
        let reference = insert(&table, &mut alloc, 1, &vec![1; 20 + 200 * round as usize]);
        seen.push((reference, store.object(reference).version()));
        table.forget();
    }
    assert_eq!(seen[0].0.offset(), seen[1].0.offset(), "the page came back");
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].1), "{seen:?}");
    assert!(seen.windows(2).all(|pair| pair[0].0.incarnation() < pair[1].0.incarnation()), "{seen:?}");
}

#[test]
fn snapshot_slots_run_out_with_an_error() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let open: Vec<_> = (0..64).map(|_| Snapshot::open(&store).expect("a slot")).collect();
    assert_eq!(Snapshot::open(&store).map(|_| ()).expect_err("full"), StoreError::TooManySnapshots { slots: 64 });
    assert_eq!(Superblock::of(store.memory()).expect("good").oldest_snapshot(), open[0].epoch());
    drop(open);
    assert_eq!(store.superblock().oldest_snapshot(), u32::MAX);
}

/// A slot names its holder. When a node has died, at whichever step of taking or closing a snapshot, a surviving node releases
/// that node's slots once, and no other slots.
#[test]
fn snapshots_of_a_dead_node_are_released_and_no_others() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let superblock = store.superblock();
    let start = |node, incarnation| Holder { node: NodeId(node), incarnation };
    let (dead, reborn, living) = (start(5, 1), start(5, 2), start(6, 1));
    for round in 0..3 {
        let announced = superblock.announce(dead).expect("a slot");
        let confirmed = superblock.announce(dead).expect("a slot");
        assert!(superblock.confirm(confirmed, dead, superblock.advance_epoch()));
        let (kept, again) =
            (superblock.announce(living).expect("a slot"), superblock.announce(reborn).expect("a slot"));
        let epoch = superblock.advance_epoch();
        assert!(superblock.confirm(kept, living, epoch) && superblock.confirm(again, reborn, epoch));
        assert_eq!(superblock.oldest_snapshot(), 0, "round {round}: one is announced");
        assert_eq!(superblock.release_of(|holder| holder == dead), 2);
        assert_eq!(superblock.release_of(|holder| holder == dead), 0);
        assert_eq!(superblock.oldest_snapshot(), epoch, "round {round}");
        // A slot has a new holder: late words of the old holder do not affect it.
        let next = superblock.announce(living).expect("a slot");
        assert_eq!(next, announced);
        superblock.release(announced, dead);
        assert!(!superblock.confirm(announced, dead, epoch));
        assert_eq!(superblock.holders().filter(|holder| *holder == living).count(), 2);
        for (slot, holder) in [(next, living), (next, living), (kept, living), (again, reborn)] {
            superblock.release(slot, holder);
        }
        assert!(!superblock.snapshots_open(), "round {round}");
        assert_eq!(superblock.holders().count(), 0);
    }
    // One node had taken the slot, and died before its bit was set; another died after its bit was cleared and before its slot
    // was free.
    let word = |slot: usize| store.memory().word(128 + 8 * slot as u64).expect("a slot");
    let holder = (5 << 16 | 1) << 40;
    word(0).store(holder | 1, Relaxed);
    word(1).store(holder | 2, Relaxed);
    assert_eq!(superblock.release_of(|holder| holder == dead), 2);
    assert!(!superblock.snapshots_open());
    assert_eq!(superblock.holders().count(), 0);
}

/// Threads take and close snapshots while others release slots that they have no right to any more: no bit is lost, none stays.
#[test]
fn snapshots_are_closed_once_by_whomever() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let rounds = if cfg!(miri) { 50 } else { 20_000 };
    std::thread::scope(|scope| {
        for node in 1..=3 {
            let superblock = store.superblock();
            scope.spawn(move || {
                let me = Holder { node: NodeId(node), incarnation: 1 };
                let mut last = None;
                for _ in 0..rounds {
                    let slot = superblock.announce(me).expect("a slot");
                    assert!(superblock.confirm(slot, me, superblock.advance_epoch()));
                    assert!(superblock.snapshots_open(), "its own is open");
                    if let Some((slot, holder)) = last.replace((slot, me)) {
                        // Twice: the slot is another thread's, perhaps.
                        superblock.release(slot, holder);
                        superblock.release(slot, Holder { incarnation: 9, ..holder });
                    }
                }
                let (slot, holder) = last.expect("the last");
                superblock.release(slot, holder);
            });
        }
    });
    assert!(!store.superblock().snapshots_open());
    assert_eq!(store.superblock().holders().count(), 0);
}

#[test]
fn locks_of_a_dead_node_are_released_and_its_half_written_rows_kept_locked() {
    let (table, mut alloc) = common::fresh(vec![]);
    let rows: Vec<_> = (0..4).map(|key| insert(&table, &mut alloc, key, b"row")).collect();
    let owner = |node| Owner::new(1, NodeId(node), 0, 1);
    for (row, node) in rows.iter().zip([5, 6, 5]) {
        table.store().object(*row).lock(row.incarnation(), owner(node)).expect("free");
    }
    let half = table.store().object(rows[2]);
    half.store(Word::Version, half.version().0 | Version::WRITING, Relaxed);
    let found = table.release_locks(|owner| owner.node() == NodeId(5));
    assert_eq!((found.locks_released, found.damaged.len()), (1, 1));
    assert_eq!(found.damaged[0].reference, rows[2]);
    let locks: Vec<_> = rows.iter().map(|row| table.store().object(*row).lock_word()).collect();
    assert_eq!(locks, [0, owner(6).word(), Owner::DAMAGED.word(), 0]);
    assert!(table.release_locks(|_| true).damaged.is_empty(), "said once");
}

/// A node dies with the lock of a row that has been deleted meanwhile, and whose page rests. No table gets the page with the
/// lock, because no thread would look for the lock there.
#[test]
fn a_dead_node_s_lock_does_not_come_to_a_table_with_its_page() {
    let store = Store::format(region(1 << 20), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let [one, other, third] = [1, 2, 3].map(|id| {
        let def = TableDef { id: TableId(id), hash: false, ..def(vec![]) };
        TableStore::create(&store, def).expect("a table")
    });
    let row = insert(&one, &mut alloc, 1, b"row");
    delete(&one, &mut alloc, row);
    alloc.flush();
    assert!(store.release_empty_pages() > 0);
    let dead = Owner::new(1, NodeId(5), 0, 1);
    store.object(row).store(Word::Lock, dead.word(), Relaxed);
    assert_ne!(insert(&other, &mut alloc, 1, b"row").offset(), row.offset(), "not with the lock");
    store.release_resting_locks(|owner| owner.node() == NodeId(6));
    assert_eq!(store.object(row).lock_word(), dead.word(), "its owner lives");
    store.release_resting_locks(|owner| owner.node() == NodeId(5));
    assert_eq!(store.object(row).lock_word(), 0);
    assert_eq!(insert(&third, &mut alloc, 1, b"row").offset(), row.offset());
    assert_eq!(store.inconsistencies(), Vec::<String>::new());
}

/// A checkpoint lacks deleted rows, and is valid only once the deletes are durable. So it must know when they were deleted, also
/// for slots that are free by then, or reserved for other rows.
#[test]
fn a_checkpoint_knows_when_the_rows_that_it_lacks_were_deleted() {
    let (table, mut alloc) = fresh(vec![]);
    let store = table.store().clone();
    let kept = insert(&table, &mut alloc, 1, b"kept");
    let deleted = insert(&table, &mut alloc, 2, b"deleted");
    let disk = Volatile::default();
    let identity = Identity { cluster: 7, node: NodeId(0), nodes: 1 };
    let write = || {
        let written = checkpoint::write(&store, &disk, (identity, 1, 1), &mut || true).expect("a disk");
        let written = written.expect("no writer is at work");
        (written.rows, written.epoch_max)
    };
    assert_eq!(write(), (2, 1));
    store.superblock().raise_epoch(20);
    delete(&table, &mut alloc, deleted);
    assert_eq!(write(), (1, 20), "its slot is free");
    let Reserve::Reserved { reference, .. } = reserve(&table, &mut alloc, 3, b"another") else { panic!("taken") };
    assert_eq!(reference.offset(), deleted.offset());
    assert_eq!(write(), (1, 20), "its slot is reserved");
    assert_eq!(value_of(&table, kept), Some(b"kept".to_vec()));
}
