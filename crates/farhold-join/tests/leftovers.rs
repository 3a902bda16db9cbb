//! However a join ends, the process has as many threads and open files as before.
//!
//! Alone in its file, so that the process is nobody else's.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farhold_join::{CancelToken, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Residual, Run};

fn batch(number: i64) -> RecordBatch {
    let ids = number * 1000..(number + 1) * 1000;
    let keys: ArrayRef = Arc::new(ids.clone().collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(ids.map(|id| format!("{id:0100}"))));
    RecordBatch::try_from_iter([("key", keys), ("text", texts)]).unwrap()
}

/// Threads and open files.
fn held() -> (usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// How a join is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// Cancelled after so many reports of progress.
    Cancelled(usize),
    /// Its condition panics at the so many-th call.
    Panicked(usize),
    /// Dropped after so many batches of output.
    Dropped(usize),
}

fn run(end: End, threads: usize) -> Result<(), JoinError> {
    let schema = batch(0).schema();
    let mut spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Full);
    let calls = AtomicUsize::new(0);
    if let End::Panicked(after) = end {
        let evaluate = move |rows: &RecordBatch| {
            assert!(calls.fetch_add(1, Relaxed) < after, "planted");
            Ok(vec![true; rows.num_rows()].into())
        };
        spec.residual = Some(Residual { build_columns: vec![], probe_columns: vec![0], evaluate: Arc::new(evaluate) });
    }
    let (cancel, reports) = (CancelToken::default(), AtomicUsize::new(0));
    let token = cancel.clone();
    let on_progress = move |_| {
        if end == End::Cancelled(reports.fetch_add(1, Relaxed)) {
            token.cancel();
        }
    };
    let options = JoinOptions {
        run: Run { cancel, seed: 1, ..Run::with_threads(threads) },
        on_progress: Some(Arc::new(on_progress)),
        ..JoinOptions::new(MemoryPool::new(1 << 20))
    };
    let mut join = Join::new(spec, options)?;
    (0..40).try_for_each(|number| join.push_build(&batch(number)))?;
    join.finish_build()?;
    for number in 20..60 {
        join.push_probe(&batch(number))?;
        while join.next_output()?.is_some() {}
    }
    join.finish_probe()?;
    let mut handed_out = 0;
    while join.next_output()?.is_some() {
        handed_out += 1;
        if end == End::Dropped(handed_out) {
            return Ok(());
        }
    }
    assert!(join.report().spilled_partitions > 0, "a join that does not spill shows little");
    Ok(())
}

#[test]
fn no_thread_and_no_file_is_left_behind() {
    std::panic::set_hook(Box::new(|_| {}));
    run(End::Done, 2).unwrap();
    let before = held();
    for threads in [1, 3] {
        for after in [1, 5, 9, 14, 20] {
            run(End::Done, threads).unwrap();
            assert_eq!(held(), before, "done");
            assert!(matches!(run(End::Cancelled(after * 6), threads), Err(JoinError::Cancelled)), "{after}");
            assert_eq!(held(), before, "cancelled after {after}");
            assert!(matches!(run(End::Panicked(after), threads), Err(JoinError::WorkerPanicked(_))), "{after}");
            assert_eq!(held(), before, "panicked after {after}");
            run(End::Dropped(after), threads).unwrap();
            assert_eq!(held(), before, "dropped after {after}");
        }
    }
}
