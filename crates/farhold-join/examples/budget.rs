//! A join of two made-up sides inside a budget: `cargo run --release -p farhold-join --example budget -- --budget-kib 65536
//! --build 1000 --probe 1000 [--threads 1] [--kind inner|full] [--skew]`, the sides in MiB.
//!
//! Batches are made when they are wanted and dropped afterwards. They are small beside the budget, as is the output, so
//! the memory of the process is the join's. The example prints what it did, the most memory that was resident, and the
//! time. `scripts/join-in-cgroup` runs it under a memory limit of the kernel.
#![allow(missing_docs)]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the real clock")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringBuilder};
use farhold_join::{Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

const MIB: u64 = 1 << 20;
const BATCH_ROWS_MAX: u64 = 8192;
/// A row is 8 bytes of key, 8 of number, and a text of 44 bytes with its offset of 4.
const ROW_BYTES: u64 = 64;
const TEXT_BYTES: usize = 44;

fn main() -> Result<(), JoinError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |flag: &str| args.iter().position(|arg| arg == flag).and_then(|at| args.get(at + 1));
    let number = |flag: &str, default: u64| value(flag).map_or(default, |text| text.parse().expect("a number"));
    let (budget, build_mib, probe_mib) =
        (number("--budget-kib", 65_536) << 10, number("--build", 256), number("--probe", 256));
    let kind = if value("--kind").is_some_and(|kind| kind == "full") { JoinKind::Full } else { JoinKind::Inner };
    let build_rows = build_mib * MIB / ROW_BYTES;
    let keys = if args.iter().any(|arg| arg == "--skew") { Keys::Skewed } else { Keys::Spread(build_rows.max(1)) };

    let batch_rows = (budget / 64 / ROW_BYTES).clamp(1, BATCH_ROWS_MAX);
    let batches =
        |rows: u64| (0..rows).step_by(batch_rows as usize).map(move |from| from..(from + batch_rows).min(rows));
    let schema = batch(0..1, &Keys::Row).schema();
    let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], kind);
    let options = JoinOptions {
        run: Run { seed: 1, ..Run::with_threads(number("--threads", 1) as usize) },
        batch_rows_max: batch_rows as usize,
        ..JoinOptions::new(MemoryPool::new(budget))
    };
    let started = Instant::now();
    let mut join = Join::new(spec, options)?;
    for rows in batches(build_rows) {
        join.push_build(&batch(rows, &Keys::Row))?;
    }
    join.finish_build()?;
    let mut rows = 0;
    for probe_rows in batches(probe_mib * MIB / ROW_BYTES) {
        join.push_probe(&batch(probe_rows, &keys))?;
        rows += drain(&mut join)?;
    }
    join.finish_probe()?;
    rows += drain(&mut join)?;
    let report = join.report();
    println!(
        "{rows} rows out; {} MiB spilled in {} partitions, {} rounds, {} tables; resident at most {} MiB; {:.2} s",
        report.spilled_bytes / MIB,
        report.spilled_partitions,
        report.rounds,
        report.tables,
        resident_max() / MIB,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn drain(join: &mut Join) -> Result<usize, JoinError> {
    let mut rows = 0;
    while let Some(batch) = join.next_output()? {
        rows += batch.num_rows();
    }
    Ok(rows)
}

/// Which keys a side has.
enum Keys {
    /// Row `n` has key `n`.
    Row,
    /// One of this many keys, uniformly.
    Spread(u64),
    /// Half of the rows have one of the first hundred keys.
    Skewed,
}

fn batch(rows: Range<u64>, keys: &Keys) -> RecordBatch {
    let key = |row: u64| match keys {
        Keys::Row => row,
        Keys::Spread(keys) => mix(row) % keys,
        Keys::Skewed => mix(row) % if row.is_multiple_of(2) { 100 } else { 1 << 40 },
    };
    let key_column: ArrayRef = Arc::new(rows.clone().map(|row| key(row) as i64).collect::<Int64Array>());
    let numbers: ArrayRef = Arc::new(rows.clone().map(|row| row as i64).collect::<Int64Array>());
    // The array has no more room than its rows: the join does not count room beyond them.
    let mut texts = StringBuilder::with_capacity(numbers.len(), numbers.len() * TEXT_BYTES);
    rows.for_each(|row| texts.append_value(format!("{row:0TEXT_BYTES$}")));
    RecordBatch::try_from_iter([("key", key_column), ("number", numbers), ("text", Arc::new(texts.finish()))])
        .expect("a batch")
}

/// Maps a number to one that looks random.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn resident_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}
