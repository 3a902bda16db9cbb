//! The index beside scc's `TreeIndex` and ferntree's `Tree`, in one run, taking turns.
//!
//! ```text
//! cargo bench -p farhold-btree --bench ordered                    4 M keys, 4 threads, 3 rounds
//! cargo bench -p farhold-btree --bench ordered -- --quick         what the tests run: seconds, figures without meaning
//! cargo bench -p farhold-btree --bench ordered -- --ours          without the other two
//! cargo bench -p farhold-btree --bench ordered -- --latency       the single-thread latencies alone
//! ```
//!
//! Rates are millions a second over all threads, the best round of each; latencies are nanoseconds of one thread that
//! executes one operation after another on keys in random order.
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]
#![expect(clippy::cast_precision_loss, reason = "rates, not counts")]

use std::hint::black_box;
use std::ops::Bound::{self, Included, Unbounded};
use std::ops::ControlFlow;
use std::thread;
use std::time::Instant;

use farhold_btree::{Insert, KeyShape, OrderedIndex};

struct Size {
    keys: u64,
    threads: u64,
    rounds: usize,
    /// Keys of the tree whose single-thread latencies are taken.
    latency_keys: u64,
}

/// The operations of every index under test. Keys are the numbers `mix(0..n)`.
trait Contender: Sync {
    fn insert(&self, key: u64);
    fn get(&self, key: u64) -> bool;
    /// The number of rows.
    fn scan_all(&self) -> u64;
    /// Bytes, if the index can tell.
    fn bytes(&self) -> Option<usize>;
}

struct Ours {
    index: OrderedIndex,
    shape: KeyShape,
}

impl Ours {
    fn new(shape: KeyShape) -> Self {
        Self { index: OrderedIndex::new(shape), shape }
    }

    fn with_key<R>(&self, key: u64, use_key: impl FnOnce(&[u8]) -> R) -> R {
        match self.shape {
            KeyShape::Fixed(12) => use_key(bytes_of_line(key).as_slice()),
            KeyShape::Fixed(16) => use_key(bytes_of_pair(key).as_slice()),
            KeyShape::Bytes => use_key([&bytes_of_pair(key)[..], b"-and-some"].concat().as_slice()),
            _ => use_key(&key.to_be_bytes()),
        }
    }
}

/// As TPC-C's order lines: warehouse, district, order, number. Of a number `mix` makes, the parts of plausible size.
fn bytes_of_line(key: u64) -> [u8; 12] {
    line(key >> 60, key >> 44 & 0xffff, key >> 12 & 0xffff_ffff, key & 0xfff)
}

fn line(warehouse: u64, district: u64, order: u64, number: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&warehouse.to_be_bytes()[4..]);
    bytes[4..6].copy_from_slice(&district.to_be_bytes()[6..]);
    bytes[6..10].copy_from_slice(&order.to_be_bytes()[4..]);
    bytes[10..].copy_from_slice(&number.to_be_bytes()[6..]);
    bytes
}

/// A composite key: ids of low order first, so that the first word does not decide alone.
fn bytes_of_pair(key: u64) -> [u8; 16] {
    (u128::from(key >> 44) << 64 | u128::from(key)).to_be_bytes()
}

impl Contender for Ours {
    fn insert(&self, key: u64) {
        let inserted = self.with_key(key, |bytes| self.index.insert(bytes, key));
        assert!(matches!(inserted, Insert::Inserted { .. }));
    }

    fn get(&self, key: u64) -> bool {
        self.with_key(key, |bytes| self.index.get(bytes).value.is_some())
    }

    fn scan_all(&self) -> u64 {
        count_rows(&self.index, Unbounded, Unbounded)
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.index.memory_bytes())
    }
}

fn count_rows(index: &OrderedIndex, lo: Bound<&[u8]>, hi: Bound<&[u8]>) -> u64 {
    let (mut rows, mut leaves) = (0, Vec::new());
    let mut visit = |key: &[u8], value: u64| {
        black_box((key, value));
        rows += 1;
        ControlFlow::Continue(())
    };
    index.scan(lo, hi, &mut visit, &mut leaves);
    rows
}

struct Scc(scc::TreeIndex<u64, u64>);

impl Contender for Scc {
    fn insert(&self, key: u64) {
        self.0.insert_sync(key, key).expect("a new key");
    }

    fn get(&self, key: u64) -> bool {
        self.0.peek_with(&key, |_, value| *value).is_some()
    }

    fn scan_all(&self) -> u64 {
        let guard = scc::Guard::new();
        self.0.iter(&guard).inspect(|row| _ = black_box(*row)).count() as u64
    }

    fn bytes(&self) -> Option<usize> {
        None
    }
}

struct Fern(ferntree::Tree<u64, u64>);

impl Contender for Fern {
    fn insert(&self, key: u64) {
        assert!(self.0.insert(key, key).is_none());
    }

    fn get(&self, key: u64) -> bool {
        self.0.lookup(&key, |value| *value).is_some()
    }

    fn scan_all(&self) -> u64 {
        let mut rows = 0;
        let mut iter = self.0.raw_iter();
        iter.seek_to_first();
        while let Some(row) = iter.next() {
            black_box(row);
            rows += 1;
        }
        rows
    }

    fn bytes(&self) -> Option<usize> {
        None
    }
}

type Build = fn() -> Box<dyn Contender>;

/// Seconds that all threads together took, each with its share of the numbers below `count`.
fn timed(threads: u64, count: u64, work: impl Fn(std::ops::Range<u64>) + Sync) -> f64 {
    let share = count / threads;
    let start = Instant::now();
    thread::scope(|scope| {
        for mine in 0..threads {
            let work = &work;
            scope.spawn(move || work(mine * share..(mine + 1) * share));
        }
    });
    start.elapsed().as_secs_f64()
}

#[derive(Clone, Copy, Default)]
struct Rates {
    inserts: f64,
    gets: f64,
    rows: f64,
    bytes_a_key: Option<f64>,
}

fn measure(build: Build, size: &Size) -> Rates {
    let index = build();
    let millions = size.keys as f64 / 1e6;
    let inserts = timed(size.threads, size.keys, |range| range.for_each(|number| index.insert(mix(number))));
    // In another order than they came in.
    let gets = timed(size.threads, size.keys, |range| {
        range.for_each(|number| assert!(index.get(mix(number * 7919 % (size.keys / size.threads * size.threads)))));
    });
    let scans = timed(size.threads, size.threads, |range| {
        range.for_each(|_| assert_eq!(index.scan_all(), size.keys / size.threads * size.threads));
    });
    Rates {
        inserts: millions / inserts,
        gets: millions / gets,
        rows: millions * size.threads as f64 / scans,
        bytes_a_key: index.bytes().map(|bytes| bytes as f64 / size.keys as f64),
    }
}

/// Single-thread nanoseconds an operation of `count` of them.
fn nanoseconds(count: u64, work: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..count).for_each(work);
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// The best of five, for operations that can be repeated: the machine has other users.
fn least_nanoseconds(count: u64, mut work: impl FnMut(u64)) -> f64 {
    (0..5).map(|_| nanoseconds(count, &mut work)).fold(f64::INFINITY, f64::min)
}

fn latencies(shape: KeyShape, size: &Size) {
    let (ours, count) = (Ours::new(shape), size.latency_keys);
    let insert = nanoseconds(count, |number| ours.insert(mix(number)));
    let random = least_nanoseconds(count, |number| assert!(black_box(ours.get(mix(number * 7919 % count)))));
    // Each key depends on the last answer, as in a transaction that follows one row to the next.
    let mut last = 0;
    let chained = least_nanoseconds(count, |number| {
        last = u64::from(black_box(ours.get(mix((number * 7919 + (last & 2)) % count))));
    });
    let hot = least_nanoseconds(count, |number| assert!(black_box(ours.get(mix(number % 512)))));
    let mut leaves = Vec::new();
    let first = least_nanoseconds(count / 4, |number| {
        leaves.clear();
        let mut visit = |_: &[u8], value| {
            black_box(value);
            ControlFlow::Break(())
        };
        ours.with_key(mix(number * 7919 % count), |key| {
            ours.index.scan(Included(key), Unbounded, &mut visit, &mut leaves);
        });
    });
    let appended = append(shape, count);
    println!(
        "{:10} insert {insert:4.0}  get {random:4.0}  get, dependent {chained:4.0}  get, hot {hot:4.0}  first of range \
         {first:4.0}  append {:4.0} ns, {:.1} B a key, get {:4.0}",
        format!("{shape:?}"),
        appended.each,
        appended.bytes,
        appended.get,
    );
}

/// Ten runs that ascend: nanoseconds an insert, bytes a key, nanoseconds a get of a random key.
struct Appended {
    each: f64,
    bytes: f64,
    get: f64,
}

/// Ten districts, each appending, order lines by the ten where the key has the shape of one.
fn append(shape: KeyShape, count: u64) -> Appended {
    let index = OrderedIndex::new(shape);
    let with_key = |number: u64, use_key: &mut dyn FnMut(&[u8])| {
        let (district, order) = (number % 10, number / 10);
        match shape {
            KeyShape::Fixed(12) => use_key(&line(1, number / 10 % 10, number / 100, district)),
            KeyShape::Fixed(16) => use_key(&(u128::from(district) << 64 | u128::from(order)).to_be_bytes()),
            _ => use_key(&(district << 32 | order).to_be_bytes()),
        }
    };
    let each = nanoseconds(count, |number| with_key(number, &mut |key| _ = black_box(index.insert(key, number))));
    let get = least_nanoseconds(count, |number| {
        with_key(mix(number) % count, &mut |key| assert!(black_box(index.get(key)).value.is_some()));
    });
    Appended { each, bytes: index.memory_bytes() as f64 / count as f64, get }
}

fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    // `cargo test --benches` passes none of this bench's flags, but not `--bench` either.
    let size = if has("--quick") || !has("--bench") {
        Size { keys: 4000, threads: 4, rounds: 1, latency_keys: 4000 }
    } else {
        Size { keys: 4_000_000, threads: 4, rounds: 3, latency_keys: 1_000_000 }
    };
    let ours: [(&str, Build); 4] = [
        ("farhold u64", || Box::new(Ours::new(KeyShape::Fixed(8)))),
        ("farhold 12 bytes", || Box::new(Ours::new(KeyShape::Fixed(12)))),
        ("farhold 16 bytes", || Box::new(Ours::new(KeyShape::Fixed(16)))),
        ("farhold 25 bytes", || Box::new(Ours::new(KeyShape::Bytes))),
    ];
    let others: [(&str, Build); 2] = [
        ("scc u64", || Box::new(Scc(scc::TreeIndex::new()))),
        ("ferntree u64", || Box::new(Fern(ferntree::Tree::new()))),
    ];
    let contenders: Vec<_> = ours.iter().chain(others.iter().filter(|_| !has("--ours"))).collect();

    let mut best = vec![Rates::default(); contenders.len()];
    let rounds = if has("--latency") { 0 } else { size.rounds };
    for _ in 0..rounds {
        for (best, (_, build)) in best.iter_mut().zip(&contenders) {
            let rates = measure(*build, &size);
            best.inserts = best.inserts.max(rates.inserts);
            best.gets = best.gets.max(rates.gets);
            best.rows = best.rows.max(rates.rows);
            best.bytes_a_key = rates.bytes_a_key;
        }
    }
    println!("{} keys, {} threads: M/s            inserts    gets    rows  B a key", size.keys, size.threads);
    for ((name, _), rates) in contenders.iter().zip(&best) {
        let Rates { inserts, gets, rows, bytes_a_key } = rates;
        let bytes_a_key = bytes_a_key.map_or("-".into(), |bytes| format!("{bytes:.1}"));
        println!("{name:40} {inserts:8.2} {gets:7.2} {rows:7.0} {bytes_a_key:>8}");
    }
    println!("\n{} keys, one thread: ns", size.latency_keys);
    for shape in [KeyShape::Fixed(8), KeyShape::Fixed(12), KeyShape::Fixed(16), KeyShape::Bytes] {
        latencies(shape, &size);
    }
}
