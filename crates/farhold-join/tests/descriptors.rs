//! Joins on many threads spill with the descriptors that the process has.
//!
//! Alone in its file, so that no other test runs in the process.

use std::fs::{self, File};
use std::sync::Arc;
use std::thread;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farhold_join::{Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

/// The process's descriptors: a fifteenth of what its joins would take.
const DESCRIPTORS: u64 = 64;

fn batch(number: i64) -> RecordBatch {
    let ids = number * 1000..(number + 1) * 1000;
    let keys: ArrayRef = Arc::new(ids.clone().collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(ids.map(|id| format!("{id:0100}"))));
    RecordBatch::try_from_iter([("key", keys), ("text", texts)]).unwrap()
}

fn limit_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are read into a structure of this function, and set from it.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = DESCRIPTORS;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn begun(shares: usize) -> Join {
    let schema = batch(0).schema();
    let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Full);
    let pool = MemoryPool::new((1 << 20) + (shares as u64) * (256 << 10));
    let options = JoinOptions { run: Run { seed: 1, ..Run::with_threads(2) }, shares, ..JoinOptions::new(pool) };
    Join::new(spec, options).unwrap()
}

/// Probes with every `step`th batch, beginning with `first`. Returns the number of output rows.
fn probe(mut join: Join, batches: i64, first: usize, step: usize) -> Result<usize, JoinError> {
    let mut rows = 0;
    for number in (batches / 2..batches + batches / 2).skip(first).step_by(step) {
        join.push_probe(&batch(number))?;
        while let Some(batch) = join.next_output()? {
            rows += batch.num_rows();
        }
    }
    join.finish_probe()?;
    while let Some(batch) = join.next_output()? {
        rows += batch.num_rows();
    }
    Ok(rows)
}

/// One join whose build side is probed by `shares` threads.
fn shared(shares: usize) {
    let (batches, mut join) = (60, begun(shares));
    (0..batches).try_for_each(|number| join.push_build(&batch(number))).unwrap();
    join.finish_build().unwrap();
    assert!(join.is_spilled());
    let joins = join.split().unwrap();
    let rows: usize = thread::scope(|scope| {
        let threads = joins.into_iter().enumerate();
        let threads = threads.map(|(number, join)| scope.spawn(move || probe(join, batches, number, shares).unwrap()));
        threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(rows, batches as usize * 1500);
}

/// `count` joins at once, each on a thread.
fn side_by_side(count: usize) {
    let batches = 20;
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(move || {
                let mut join = begun(1);
                (0..batches).try_for_each(|number| join.push_build(&batch(number))).unwrap();
                join.finish_build().unwrap();
                assert!(join.is_spilled());
                assert_eq!(probe(join, batches, 0, 1).unwrap(), batches as usize * 1500);
            });
        }
    });
}

#[test]
fn joins_on_many_threads_share_the_files_that_there_are() {
    limit_descriptors();
    let before = open_files();
    shared(60);
    assert_eq!(open_files(), before);
    side_by_side(60);
    assert_eq!(open_files(), before);
    // Other code has taken more than half of the descriptors: the rest must suffice.
    let one = File::open("/dev/null").unwrap();
    let others: Vec<File> = std::iter::from_fn(|| one.try_clone().ok()).collect();
    let free = others.into_iter().skip(3);
    let taken: Vec<File> = free.collect();
    side_by_side(20);
    drop(taken);
}
