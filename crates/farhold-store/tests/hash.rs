//! The hash index: the same answers as the ordered one, while it grows, and for remote readers.

mod common;

use common::{fresh_with_hash, insert, reserve};
use farhold_btree::KeyShape;
use farhold_fabric::{NodeId, RegionId, RegionMemory};
use farhold_store::index::hash::{Directory, FarIndex, FarLookup, FarStep, hash_key};
use farhold_store::{Moved, Object, ObjectRef, Reserve, Stamp, Store, StoreError, TableDef, TableId, TableStore};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const STRESS: u64 = if cfg!(miri) { 30 } else { 15_000 };

/// A reader without the table: bytes of the region alone.
struct Far<'m> {
    memory: &'m RegionMemory,
    index: FarIndex,
    reads: u64,
}

impl<'m> Far<'m> {
    fn open(memory: &'m RegionMemory) -> Self {
        let mut directory = Directory::new(NodeId(0), RegionId(0), TableId(7));
        while let Some((at, bytes)) = directory.next() {
            let mut room = vec![0; bytes];
            memory.copy_out(at.offset(), &mut room).expect("inside");
            if let Some(index) = directory.learn(&room) {
                return Self { memory, index, reads: 0 };
            }
        }
        panic!("the table has a hash index");
    }

    fn get(&mut self, key: &[u8]) -> (Option<ObjectRef>, Option<Stamp>) {
        let (mut lookup, mut step) = FarLookup::start(&self.index, hash_key(key));
        loop {
            step = match step {
                FarStep::Read { at, bytes } => {
                    let mut room = vec![0; bytes];
                    self.memory.copy_out(at.offset(), &mut room).expect("inside");
                    self.reads += 1;
                    lookup.learn(&mut self.index, &room)
                }
                FarStep::Matches(matches) => {
                    let is_it = |found: &ObjectRef| Object::of(self.memory, *found).has_key(found.incarnation(), key);
                    if let Some(found) = matches.iter().find(is_it) {
                        return (Some(found), None);
                    }
                    lookup.no_match(&self.index)
                }
                FarStep::Missing(stamp) => return (None, Some(Stamp::Bucket(stamp))),
                FarStep::Gone => panic!("the index is there"),
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long for Miri")]
fn near_and_far_find_what_is_there_while_it_grows() {
    let (table, mut alloc) = fresh_with_hash();
    let mut far = Far::open(table.store().memory());
    let mut rows = BTreeMap::new();
    for key in 0..20_000_u64 {
        rows.insert(key, insert(&table, &mut alloc, key, b"value"));
        if key % 1000 == 0 {
            let other = key / 2;
            assert_eq!(far.get(&other.to_be_bytes()).0, rows.get(&other).copied());
            assert_eq!(far.get(&(key + 1).to_be_bytes()).0, None);
        }
    }
    for (key, reference) in &rows {
        assert_eq!(table.lookup(&key.to_be_bytes()).found, Some(*reference), "{key}");
    }
    far.get(&0_u64.to_be_bytes());
    far.reads = 0;
    for (key, reference) in &rows {
        assert_eq!(far.get(&key.to_be_bytes()).0, Some(*reference), "{key}");
    }
    let each = far.reads as f64 / rows.len() as f64;
    assert!(each < 1.25, "{each} reads of the index for a lookup");
    for key in 20_000..21_000_u64 {
        assert_eq!(table.lookup(&key.to_be_bytes()).found, None);
        let (found, stamp) = far.get(&key.to_be_bytes());
        assert!(found.is_none() && table.validate(stamp.expect("a miss has one")));
    }
}

/// At any size: what a row costs in the index, and how many reads a far lookup of it takes.
#[test]
#[cfg_attr(miri, ignore = "too long for Miri")]
fn a_row_costs_twelve_bytes_of_index_and_a_far_lookup_little_more_than_one_read() {
    let (table, mut alloc) = fresh_with_hash();
    let mut far = Far::open(table.store().memory());
    let (mut bytes, mut reads) = (Vec::new(), Vec::new());
    for key in 0..60_000_u64 {
        insert(&table, &mut alloc, key, b"value");
        let count = key + 1;
        if count >= 20_000 && count % 4_000 == 0 {
            far.get(&key.to_be_bytes());
            far.reads = 0;
            (0..count).for_each(|key| assert!(far.get(&key.to_be_bytes()).0.is_some()));
            bytes.push(table.statistics().hash_bytes as f64 / count as f64);
            reads.push(far.reads as f64 / count as f64);
        }
    }
    println!("bytes {bytes:.2?}, reads {reads:.3?}");
    assert!(bytes.iter().all(|bytes| *bytes <= 12.5), "{bytes:.2?}");
    assert!(bytes.iter().sum::<f64>() / bytes.len() as f64 <= 12.0, "{bytes:.2?}");
    assert!(reads.iter().all(|reads| *reads < 1.25), "{reads:.3?}");
}

#[test]
fn a_miss_holds_until_somebody_inserts_and_own_inserts_carry_it_on() {
    let (table, mut alloc) = fresh_with_hash();
    let missing = table.lookup(&1_u64.to_be_bytes()).stamp;
    assert!(table.validate(missing));
    let mut steps = Vec::new();
    let mut note = |moved| {
        if let Moved::Bucket { before, after, half: None } = moved {
            steps.push((before, after));
        }
    };
    let key = 1_u64.to_be_bytes();
    let reserved = table.reserve(&key, b"", &mut alloc, &|_| false, &mut note).expect("room");
    let Reserve::Reserved { reference, .. } = reserved else { panic!() };
    assert!(!table.validate(missing));
    let [(before, after)] = steps[..] else { panic!("one step") };
    assert_eq!(Stamp::Bucket(before), missing);
    assert!(table.validate(Stamp::Bucket(after)));
    table.cancel(reference, &mut alloc);
    assert!(!table.validate(Stamp::Bucket(after)));
    assert_eq!(table.lookup(&key).found, None);
}

#[test]
fn readers_never_miss_a_row_while_writers_grow_the_index() {
    let (table, _) = fresh_with_hash();
    let (known, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut far = Far::open(table.store().memory());
                let mut random = fastrand::Rng::with_seed(0);
                while !done.load(Ordering::Relaxed) {
                    let limit = known.load(Ordering::Acquire);
                    if limit > 0 {
                        let key = random.u64(..limit).to_be_bytes();
                        let near = table.lookup(&key).found;
                        assert!(near.is_some());
                        // A miss counts only while its stamp holds: the bucket may have been split between two of its words.
                        let far = loop {
                            match far.get(&key) {
                                (None, Some(stamp)) if !table.validate(stamp) => {}
                                (found, _) => break found,
                            }
                        };
                        assert_eq!(far, near);
                    }
                }
            });
        }
        let writers: Vec<_> = (1..=2_u64)
            .map(|writer| {
                let (table, known) = (&table, &known);
                scope.spawn(move || {
                    let mut alloc = table.store().alloc_cache();
                    for i in 0..STRESS {
                        if writer == 1 {
                            insert(table, &mut alloc, i, b"stays");
                            known.store(i + 1, Ordering::Release);
                        } else if let Reserve::Reserved { reference, .. } =
                            reserve(table, &mut alloc, (1 << 40) | (i % 500), b"comes and goes")
                        {
                            table.cancel(reference, &mut alloc);
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        for result in results {
            result.expect("a writer");
        }
    });
    assert_eq!(table.statistics().rows, STRESS);
}

#[test]
fn no_room_for_the_index_is_an_error_and_leaves_nothing() {
    let store = Store::format(common::region(128 << 10), NodeId(0)).expect("a store");
    let def = |hash| TableDef { id: TableId(7), primary: KeyShape::Fixed(8), hash, secondaries: vec![] };
    let other = |id| TableDef { id: TableId(id), ..def(true) };
    let first = TableStore::create(&store, def(true)).expect("one page of three");
    let _others = [8, 9].map(|id| TableStore::create(&store, other(id)).expect("the other two"));
    assert_eq!(store.free_bytes(), 0);
    assert!(matches!(TableStore::create(&store, other(10)), Err(StoreError::OutOfMemory { free_bytes: 0, .. })));
    first.forget();
    drop(first);
    assert_eq!(store.free_bytes(), 16 << 10);
    TableStore::create(&store, def(true)).expect("the page is back, and the number is free");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any order of inserts and removes: both indexes agree with a map.
    #[test]
    #[cfg_attr(miri, ignore = "too long for Miri")]
    fn agrees_with_a_map(steps in prop::collection::vec((0_u64..400, any::<bool>()), 1..3000)) {
        let (table, mut alloc) = fresh_with_hash();
        let mut oracle = BTreeMap::new();
        for (key, put) in steps {
            if put {
                oracle.entry(key).or_insert_with(|| insert(&table, &mut alloc, key, &key.to_le_bytes()));
            } else if let Some(reference) = oracle.remove(&key) {
                common::delete(&table, &mut alloc, reference);
            }
        }
        for key in 0..400_u64 {
            prop_assert_eq!(table.lookup(&key.to_be_bytes()).found, oracle.get(&key).copied());
            prop_assert_eq!(table.primary().get(&key.to_be_bytes()).value.map(ObjectRef::from_bits), oracle.get(&key).copied());
        }
    }
}

/// Inserts split buckets: stamps of misses that are carried on cover the same keys afterwards, as both halves.
#[test]
fn a_miss_is_carried_over_splits() {
    let (table, mut alloc) = fresh_with_hash();
    let absent: Vec<u64> = (1_000_000..1_000_100).collect();
    let mut stamps: Vec<_> = absent.iter().map(|key| vec![table.lookup(&key.to_be_bytes()).stamp]).collect();
    let mut halves = 0;
    for key in 0..5_000_u64 {
        let mut carry = |moved| {
            let Moved::Bucket { before, after, half } = moved else { return };
            halves += usize::from(half.is_some());
            for stamps in &mut stamps {
                if let Some(held) = stamps.iter_mut().find(|held| **held == Stamp::Bucket(before)) {
                    *held = Stamp::Bucket(after);
                    stamps.extend(half.map(Stamp::Bucket));
                }
            }
        };
        table.reserve(&key.to_be_bytes(), b"", &mut alloc, &|_| false, &mut carry).expect("room");
    }
    assert!(halves > 100, "{halves} splits");
    assert!(stamps.iter().flatten().all(|stamp| table.validate(*stamp)));
    for (key, stamps) in absent.iter().zip(&stamps) {
        assert!(stamps.contains(&table.lookup(&key.to_be_bytes()).stamp), "{key}");
    }
}
