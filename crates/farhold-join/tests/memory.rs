//! What the process really takes: its resident memory grows by the budget, not by the inputs.
//!
//! Alone in its file, so that the process is nobody else's.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farhold_join::{Join, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

const MIB: u64 = 1 << 20;

/// A figure of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn batch(number: i64) -> RecordBatch {
    let ids = number * 8192..(number + 1) * 8192;
    let keys: ArrayRef =
        Arc::new(ids.clone().map(|id| id.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)).collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(ids.map(|id| format!("{id:0100}"))));
    RecordBatch::try_from_iter([("key", keys), ("text", texts)]).unwrap()
}

#[test]
fn resident_memory_stays_near_the_budget() {
    // 110 MiB a side.
    let (batches, budget) = (120, 24 * MIB);
    let schema = batch(0).schema();
    let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Full);
    let before = status("VmRSS");
    let run = Run { seed: 1, ..Run::default() };
    let mut join = Join::new(spec, JoinOptions { run, ..JoinOptions::new(MemoryPool::new(budget)) }).unwrap();
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
    assert_eq!(rows, batches as usize * 8192);
    let grown = status("VmHWM").saturating_sub(before);
    eprintln!("grown by {} MiB at a budget of {} MiB: {:?}", grown / MIB, budget / MIB, join.report());
    // The caller's batches, output, and what the allocator keeps are beside the budget.
    assert!(grown < budget + budget / 2 + 16 * MIB, "grown by {} MiB at a budget of {} MiB", grown / MIB, budget / MIB);
}
