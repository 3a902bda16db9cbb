//! Memory: workers that allocate side by side, and the cost of a byte of rows.

mod common;

use common::{fresh, insert, region};
use farhold_btree::KeyShape;
use farhold_fabric::NodeId;
use farhold_store::{Object, ObjectRef, Reserve, Statistics, Store, TableDef, TableId, TableStore};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

#[test]
fn workers_never_get_the_same_slot_and_give_all_back() {
    let (table, _) = fresh(vec![]);
    let all = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (table, all) = (&table, &all);
            scope.spawn(move || {
                let mut alloc = table.store().alloc_cache();
                let mut mine: Vec<ObjectRef> = Vec::new();
                let mut random = fastrand::Rng::with_seed(worker + 1);
                for turn in 0..8000_u64 {
                    if random.u8(..4) != 0 || mine.is_empty() {
                        let length = [10, 100, 100, 1000, 9000][random.usize(..5)];
                        let key = (worker << 40 | turn).to_be_bytes();
                        let reserved =
                            table.reserve(&key, &vec![worker as u8; length], &mut alloc, &|_| false, &mut |_| ());
                        let Reserve::Reserved { reference, .. } = reserved.expect("room") else { panic!("taken") };
                        assert!(all.lock().expect("sound").insert(reference), "a reference is given out once");
                        mine.push(reference);
                    } else {
                        let reference = mine.swap_remove(random.usize(..mine.len()));
                        let mut room = vec![0; 9100];
                        let object = table.store().object(reference);
                        let read = object.read(reference.incarnation(), &mut room).expect("ours");
                        assert!(room[8..read.payload_len()].iter().all(|byte| *byte == worker as u8));
                        table.cancel(reference, &mut alloc);
                    }
                    if mine.len() > 300 {
                        mine.drain(..).for_each(|reference| table.cancel(reference, &mut alloc));
                    }
                }
                mine.drain(..).for_each(|reference| table.cancel(reference, &mut alloc));
            });
        }
    });
    assert_eq!(table.statistics().held_slots, 0);
    let store = table.store().clone();
    store.release_empty_pages();
    assert_eq!(table.statistics().page_bytes, 0, "every page is empty and goes back");
}

/// Number, bytes of key and of value, and rows a warehouse, of TPC-C's nine tables: integers of 4 bytes, money of 8, dates of 8,
/// strings of the length the generator gives them on average, and their ends.
const TPCC: [(u32, usize, usize, u64); 9] = [
    (1, 4, 89, 1),        // warehouse
    (2, 8, 95, 10),       // district
    (3, 12, 560, 30_000), // customer
    (4, 8, 46, 30_000),   // history (numbered)
    (5, 12, 8, 9_000),    // new_order (it could be nothing but a key)
    (6, 12, 24, 30_000),  // orders
    (7, 16, 54, 300_000), // order_line
    (8, 4, 72, 100_000),  // item (once, not a warehouse)
    (9, 8, 306, 100_000), // stock
];

#[test]
fn tpcc_rows_cost_less_than_one_and_a_half_of_their_bytes() {
    let store = Store::format(region(256 << 20), NodeId(0)).expect("a store");
    let mut alloc = store.alloc_cache();
    let mut total = Statistics::default();
    let mut tables = Vec::new();
    for (id, key_bytes, value_bytes, rows) in TPCC {
        let (primary, hash) = (KeyShape::Fixed(key_bytes), false);
        let def = TableDef { id: TableId(id), primary, hash, secondaries: vec![] };
        let table = TableStore::create(&store, def).expect("a table");
        let value = vec![7; value_bytes];
        for row in 0..rows {
            let mut key = vec![0; key_bytes];
            key[..4].copy_from_slice(&((row >> 8) as u32).to_be_bytes());
            key[key_bytes - 4..].copy_from_slice(&(row as u32).to_be_bytes());
            let reserved = table.reserve(&key, &value, &mut alloc, &|_| false, &mut |_| ()).expect("room");
            let Reserve::Reserved { reference, .. } = reserved else { panic!("taken") };
            let object = store.object(reference);
            let version = object.lock(reference.incarnation(), common::ME).expect("free");
            object.restamp(version.next(1));
            object.unlock();
        }
        let found = table.statistics();
        assert_eq!(found.rows, rows);
        if rows >= 9_000 {
            let (slots, indexes) = (found.page_bytes / rows, found.ordered_bytes / rows);
            println!("table {id}: {:.2} bytes a byte; a row {slots} + {indexes}", found.overhead());
            total = total.plus(found);
        }
        tables.push(table);
    }
    println!("all: {:.3} bytes a byte", total.overhead());
    assert!(total.overhead() < 1.5, "{:.3} bytes a byte of key and value", total.overhead());
}

#[test]
fn rows_of_every_size_come_back() {
    let (table, mut alloc) = fresh(vec![]);
    for length in (0..300).chain([511, 512, 513, 4063, 4064, 4065, 33_000, 65_495, 65_496]) {
        let reference = insert(&table, &mut alloc, length, &vec![length as u8; length as usize]);
        assert_eq!(common::value_of(&table, reference), Some(vec![length as u8; length as usize]));
        assert!(table.store().payload_bytes_max(reference) >= length as usize + 8);
    }
    let runs: BTreeSet<_> = table.pages().iter().map(|run| run.pages).collect();
    assert!(runs.len() > 1, "large classes live in runs of several pages: {runs:?}");
}

/// What a hardware transaction needs of the pages that it writes. They get it from an object that has never been used before.
#[cfg(all(target_os = "linux", not(miri)))]
#[test]
fn touched_pages_are_present_and_as_they_were() {
    use std::os::unix::fs::FileExt;
    const PAGE: u64 = 4096;
    let memory = region(64 * PAGE);
    let map = std::fs::File::open("/proc/self/pagemap").expect("the kernel's table");
    let present = |page: u64| {
        let address = std::ptr::from_ref(memory.word(page * PAGE).expect("a word")).addr() as u64;
        let mut entry = [0; 8];
        map.read_exact_at(&mut entry, address / PAGE * 8).expect("an entry");
        u64::from_ne_bytes(entry) >> 63 == 1
    };
    // The header at the end of page 8, the payload on pages 9 to 11.
    let object = Object::at(&memory, 9 * PAGE - 32);
    assert!((8..12).all(|page| !present(page)), "fresh memory");
    object.touch(2 * PAGE as usize + 1);
    assert!((8..12).all(present) && !present(7) && !present(12));
    memory.word(9 * PAGE).expect("a word").store(77, Relaxed);
    object.touch(2 * PAGE as usize + 1);
    assert_eq!(memory.word(9 * PAGE).expect("a word").load(Relaxed), 77);
    assert_eq!((object.lock_word(), object.version().0), (0, 0));
    // Up to the last byte, and no further.
    object.touch_behind(3 * PAGE as usize);
    assert!(!present(12));
}
