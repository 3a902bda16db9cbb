//! The memory that the process really takes. Its resident memory grows with the budget, not with the inputs, and the
//! allocator keeps less than a quarter of it.
//!
//! Alone in its file, so that no other test runs in the process.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringBuilder};
use farhold_join::{Join, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

const MIB: u64 = 1 << 20;

/// A figure of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

const BATCH_ROWS: i64 = 1024;

fn batch(number: i64) -> RecordBatch {
    let ids = number * BATCH_ROWS..(number + 1) * BATCH_ROWS;
    let keys: ArrayRef =
        Arc::new(ids.clone().map(|id| id.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect::<Int64Array>());
    let mut texts = StringBuilder::with_capacity(BATCH_ROWS as usize, 100 * BATCH_ROWS as usize);
    ids.for_each(|id| texts.append_value(format!("{id:0100}")));
    RecordBatch::try_from_iter([("key", keys), ("text", Arc::new(texts.finish()) as ArrayRef)]).unwrap()
}

/// Joins this many batches of 112 KiB with themselves, mostly in files.
fn join(batches: i64, budget: u64) {
    let schema = batch(0).schema();
    let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Full);
    let run = Run { seed: 1, ..Run::default() };
    let options =
        JoinOptions { run, batch_rows_max: BATCH_ROWS as usize, ..JoinOptions::new(MemoryPool::giving_back(budget)) };
    let mut join = Join::new(spec, options).unwrap();
    let (mut rows, drain) = (0, |join: &mut Join| {
        let mut rows = 0;
        while let Some(batch) = join.next_output().unwrap() {
            rows += batch.num_rows();
        }
        rows
    });
    (0..batches).for_each(|number| join.push_build(&batch(number)).unwrap());
    join.finish_build().unwrap();
    for number in 0..batches {
        join.push_probe(&batch(number)).unwrap();
        rows += drain(&mut join);
    }
    join.finish_probe().unwrap();
    rows += drain(&mut join);
    assert_eq!(rows as i64, batches * BATCH_ROWS);
    assert!(join.report().rounds > 1, "{:?}", join.report());
}

#[test]
fn resident_memory_stays_within_a_quarter_above_the_budget() {
    // The first join brings the program's own pages into memory.
    join(120, MIB);
    // 220 MiB a side, which are partitioned twice.
    let (budget, before) = (16 * MIB, status("VmRSS"));
    join(2000, budget);
    let grown = status("VmHWM").saturating_sub(before);
    eprintln!("grown by {} KiB at a budget of {} KiB", grown >> 10, budget >> 10);
    assert!(grown < budget / 4 * 5, "grown by {} KiB at a budget of {} KiB", grown >> 10, budget >> 10);
}
