//! A build side with a column that is longer than 32-bit offsets allow: no step may put it into one array.
//!
//! Alone in its file, since it takes 3 GiB of memory. The same batch of text comes again and again, so that the input
//! takes none.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use farhold_join::{Join, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

const TEXT_BYTES: usize = 300_000;
const ROWS: i64 = 14;
const BATCHES: i64 = 620;

/// Rows with numbers of their own and the same texts in every batch.
fn batch(number: i64, texts: &ArrayRef) -> RecordBatch {
    let numbers: ArrayRef = Arc::new((number * ROWS..(number + 1) * ROWS).collect::<Int64Array>());
    RecordBatch::try_from_iter([("number", numbers), ("text", Arc::clone(texts))]).unwrap()
}

#[test]
fn a_build_side_longer_than_offsets_allow_is_joined() {
    let text = |row| format!("{row:02}{}", "x".repeat(TEXT_BYTES - 2));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..ROWS).map(text)));
    assert!(BATCHES as usize * texts.get_array_memory_size() > i32::MAX as usize);
    let schema = batch(0, &texts).schema();
    // Joined by the text, where only the existence of a match is asked for: keys with equal codes are also compared
    // with each other.
    let spec = JoinSpec {
        projection: Some(vec![0]),
        ..JoinSpec::new(Arc::clone(&schema), schema, vec![(1, 1)], JoinKind::LeftSemi)
    };
    let options = JoinOptions {
        run: Run { seed: 1, ..Run::with_threads(2) },
        batch_bytes_max: 64 << 20,
        ..JoinOptions::new(MemoryPool::new(16 << 30))
    };
    let mut join = Join::new(spec, options).unwrap();
    (0..BATCHES).for_each(|number| join.push_build(&batch(number, &texts)).unwrap());
    join.finish_build().unwrap();
    assert!(!join.is_spilled());
    join.push_probe(&batch(0, &texts).slice(0, 3)).unwrap();
    let mut rows = 0;
    let mut take = |join: &mut Join| {
        while let Some(batch) = join.next_output().unwrap() {
            rows += batch.num_rows();
        }
    };
    take(&mut join);
    join.finish_probe().unwrap();
    take(&mut join);
    assert_eq!(rows, BATCHES as usize * 3);
}
