//! The costs of the store's hot paths. One thread, rows of 300 bytes, in two sizes: a few rows that stay in the first-level
//! cache, and many that do not.

use farhold_btree::KeyShape;
use farhold_fabric::{FarPtr, NodeId, RegionId, RegionMemory};
use farhold_report::Report;
use farhold_store::snapshot::RunScan;
use farhold_store::{AllocCache, ObjectRef, Owner, Reserve, Snapshot, Store, TableDef, TableId, TableStore, Version};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const ROW_BYTES: usize = 300;
const KEY_BYTES: usize = 8;

struct Bench {
    table: TableStore,
    alloc: AllocCache,
    rows: Vec<ObjectRef>,
    turns: u64,
}

/// Runs the table of this file.
pub fn run(report: &mut Report) {
    let quick = report.quick;
    let (few, many, turns) = if quick { (16, 1000, 2000) } else { (16, 1_000_000, 20_000_000) };
    let mut results: Vec<(&str, Vec<f64>)> = Vec::new();
    for rows in [few, many] {
        let mut bench = Bench::new(rows, turns);
        for (place, (name, ns)) in bench.all().into_iter().enumerate() {
            if results.len() == place {
                results.push((name, Vec::new()));
            }
            results[place].1.push(ns);
        }
        if rows == many {
            let statistics = bench.table.statistics();
            println!("memory of {rows} rows: {:.3} bytes a byte; {statistics:?}", statistics.overhead());
            report.row("memory", "rows", &[("bytes a byte", statistics.overhead())]);
        }
    }
    report.table(&format!("Rows in place, {few} and {many} of them: ns an operation"));
    for (name, ns) in results {
        report.row("rows", name, &[("few", ns[0]), ("many", ns[1])]);
    }
}

impl Bench {
    fn new(rows: usize, turns: u64) -> Self {
        let bytes = (rows as u64 * 500).next_multiple_of(1 << 20) + (16 << 20);
        let origin = FarPtr::new(NodeId(0), RegionId(0), 0);
        let memory = Arc::new(RegionMemory::anonymous(origin, bytes).expect("memory"));
        let store = Store::format(memory, NodeId(0)).expect("a store");
        let def = TableDef { id: TableId(1), primary: KeyShape::Fixed(KEY_BYTES), hash: true, secondaries: vec![] };
        let table = TableStore::create(&store, def).expect("a table");
        let mut alloc = store.alloc_cache();
        let value = [7; ROW_BYTES - KEY_BYTES];
        let rows = (0..rows as u64).map(|key| insert(&table, &mut alloc, key, &value)).collect();
        Self { table, alloc, rows, turns }
    }

    fn measure(&self, share: u64, mut each: impl FnMut(usize)) -> f64 {
        let (turns, mut random) = (self.turns / share, fastrand::Rng::with_seed(1));
        let start = Instant::now();
        for _ in 0..turns {
            each(random.usize(..self.rows.len()));
        }
        start.elapsed().as_nanos() as f64 / turns as f64
    }

    fn all(&mut self) -> Vec<(&'static str, f64)> {
        let (store, rows) = (self.table.store().clone(), self.rows.clone());
        let mut room = [0; 512];
        let me = Owner::new(1, NodeId(0), 0, 1);
        let read = self.measure(1, |row| {
            let row = rows[row];
            black_box(store.object(row).read(row.incarnation(), &mut room).is_ok());
        });
        let value = [9; ROW_BYTES - KEY_BYTES];
        let write = self.measure(1, |row| {
            let object = store.object(rows[row]);
            if let Ok(version) = object.lock(rows[row].incarnation(), me) {
                object.write(&value, version.next(1));
                object.unlock();
            }
        });
        let part = self.measure(1, |row| {
            let object = store.object(rows[row]);
            if let Ok(version) = object.lock(rows[row].incarnation(), me) {
                object.write_part(16, &value[..8], version.next(1));
                object.unlock();
            }
        });
        let lock = self.measure(1, |row| {
            let object = store.object(rows[row]);
            if object.lock(rows[row].incarnation(), me).is_ok() {
                object.unlock();
            }
        });
        let check = self.measure(1, |row| {
            black_box(store.object(rows[row]).is_still(Version(0), me));
        });
        let hash = self.measure(2, |row| {
            black_box(self.table.lookup(&(row as u64).to_be_bytes()).found);
        });
        let ordered = self.measure(2, |row| {
            black_box(self.table.primary().get(&(row as u64).to_be_bytes()).value);
        });
        let scan = self.scan();
        let insert = self.insert_and_remove();
        vec![
            ("read 300 bytes", read),
            ("lock, write 292 bytes, unlock", write),
            ("lock, write 8 bytes, unlock", part),
            ("lock, unlock", lock),
            ("validate (version and lock)", check),
            ("hash lookup, key checked", hash),
            ("ordered lookup", ordered),
            ("snapshot scan, a row", scan),
            ("reserve, commit, delete, remove", insert),
        ]
    }

    fn scan(&self) -> f64 {
        let (mut seen, mut bytes, mut room) = (0_u64, 0, Vec::new());
        let start = Instant::now();
        while seen < self.turns / 20 {
            let snapshot = Snapshot::open(self.table.store()).expect("a slot");
            for run in self.table.pages() {
                let mut scan = RunScan::new(self.table.store().memory(), run, snapshot.epoch());
                let mut visit = |_: ObjectRef, _: &[u8], value: &[u8]| {
                    seen += 1;
                    bytes += value[0] as usize;
                };
                assert_eq!(scan.go_on(&mut room, &mut visit), Ok(Ok(())));
            }
        }
        black_box(bytes);
        start.elapsed().as_nanos() as f64 / seen as f64
    }

    fn insert_and_remove(&mut self) -> f64 {
        let turns = self.turns / 20;
        let value = [7; ROW_BYTES - KEY_BYTES];
        let start = Instant::now();
        for turn in 0..turns {
            let reference = insert(&self.table, &mut self.alloc, 1 << 40 | turn, &value);
            let object = self.table.store().object(reference);
            if let Ok(version) = object.lock(reference.incarnation(), Owner::new(1, NodeId(0), 0, 1)) {
                object.restamp(version.next(1).with(Version::ABSENT));
                object.unlock();
            }
            self.table.remove(reference, 1, &mut self.alloc);
        }
        start.elapsed().as_nanos() as f64 / turns as f64
    }
}

fn insert(table: &TableStore, alloc: &mut AllocCache, key: u64, value: &[u8]) -> ObjectRef {
    let reserved = table.reserve(&key.to_be_bytes(), value, alloc, &|_| false, &mut |_| ());
    let Ok(Reserve::Reserved { reference, .. }) = reserved else { panic!("{reserved:?}") };
    let object = table.store().object(reference);
    let version = object.lock(reference.incarnation(), Owner::new(1, NodeId(0), 0, 1)).expect("free");
    object.restamp(version.next(1));
    object.unlock();
    reference
}
