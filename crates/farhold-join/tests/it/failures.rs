//! Joins that cannot run, cannot spill, are cancelled or panic: a typed error, and nothing left behind.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int32Array, Int64Array, RecordBatch};
use arrow::error::ArrowError;
use farhold_join::{
    BUDGET_BYTES_MIN, CancelToken, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Residual, Run, Shape,
    by_name,
};

use super::oracle::{KeyType, SEED, Side, actual, expected, run, seeded, spec};

const MIB: u64 = 1 << 20;

fn sides() -> (Side, Side) {
    let side = |step: u64| Side::new((0..8000).map(|row| Some(row * step % 9001)).collect(), KeyType::Int64, 120, 500);
    (side(17), side(29))
}

/// A directory and a pool, which must be unchanged afterwards.
struct Bed {
    directory: tempfile::TempDir,
    pool: Arc<MemoryPool>,
}

impl Bed {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), pool: MemoryPool::new(MIB) }
    }

    fn options(&self) -> JoinOptions {
        JoinOptions { spill_directory: self.directory.path().into(), ..seeded(self.pool.clone()) }
    }

    fn assert_clean(&self) {
        assert_eq!(self.pool.used(), 0, "memory is back");
        assert_eq!(fs::read_dir(self.directory.path()).unwrap().count(), 0, "no file is left");
        let here = self.directory.path().canonicalize().unwrap();
        let open = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        assert_eq!(open.filter(|path| path.starts_with(&here) && *path != here).count(), 0, "no unlinked file is open");
    }
}

#[test]
fn key_types_have_to_match() {
    let (build, _) = sides();
    let probe = Side::new(vec![Some(1)], KeyType::Text, 10, 10);
    let error = Join::new(spec(&build, &probe, JoinKind::Inner), Bed::new().options()).err().unwrap();
    assert!(matches!(&error, JoinError::KeyTypes { position: 0, .. }), "{error}");
    assert_eq!(error.to_string(), "join key 0 has type Int64 on the build side and Utf8 on the probe side");
}

#[test]
fn descriptions_that_make_no_sense_are_refused() {
    let (build, probe) = sides();
    let with_on = |on| JoinSpec { on, ..spec(&build, &probe, JoinKind::Inner) };
    for on in [vec![], vec![(99, 0)], vec![(0, 99)]] {
        assert!(matches!(Join::new(with_on(on), Bed::new().options()), Err(JoinError::Invalid(_))));
    }
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    let schema = RecordBatch::try_from_iter([("x", floats)]).unwrap().schema();
    let on_floats = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Inner);
    assert!(matches!(Join::new(on_floats, Bed::new().options()), Err(JoinError::KeyUnsupported(_))));
    let mut with_residual = spec(&build, &probe, JoinKind::Inner);
    with_residual.residual =
        Some(Residual { build_columns: vec![7], probe_columns: vec![], evaluate: Arc::new(|_| unreachable!()) });
    assert!(matches!(Join::new(with_residual, Bed::new().options()), Err(JoinError::Invalid(_))));
}

#[test]
fn calls_out_of_order_and_batches_of_another_side_are_refused() {
    let (build, probe) = sides();
    let bed = Bed::new();
    let join = || Join::new(spec(&build, &probe, JoinKind::Inner), bed.options()).unwrap();
    let number: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let other = RecordBatch::try_from_iter([("x", number)]).unwrap();
    assert!(matches!(join().push_build(&other), Err(JoinError::Invalid(_))));
    assert!(matches!(join().push_probe(&probe.batches[0]), Err(JoinError::Invalid(_))));
    assert!(matches!(join().finish_probe(), Err(JoinError::Invalid(_))));
    let mut running = join();
    running.push_build(&build.batches[0]).unwrap();
    running.finish_build().unwrap();
    running.push_probe(&probe.batches[0]).unwrap();
    assert!(
        matches!(running.push_probe(&probe.batches[0]), Err(JoinError::Invalid(_))),
        "output has to be taken first"
    );
    assert!(matches!(running.next_output(), Err(JoinError::Invalid(_))), "it has failed");
    drop(running);
    bed.assert_clean();
}

#[test]
fn a_budget_below_the_least_is_an_error() {
    let (build, probe) = sides();
    let options = seeded(MemoryPool::new(BUDGET_BYTES_MIN - 1));
    let error = Join::new(spec(&build, &probe, JoinKind::Inner), options).err().unwrap();
    assert!(matches!(error, JoinError::BudgetTooSmall { needed_bytes: BUDGET_BYTES_MIN, .. }), "{error}");
}

#[test]
fn an_unusable_spill_directory_is_an_error_only_for_who_spills() {
    let (build, probe) = sides();
    let bed = Bed::new();
    let missing = || JoinOptions { spill_directory: bed.directory.path().join("missing"), ..bed.options() };
    let spec = spec(&build, &probe, JoinKind::Inner);
    assert!(matches!(actual(&build, &probe, &spec, missing()), Err(JoinError::Spill(_))));
    // No user may create a file there, not even root.
    let unwritable = JoinOptions { spill_directory: "/proc/self".into(), ..bed.options() };
    assert!(matches!(actual(&build, &probe, &spec, unwritable), Err(JoinError::Spill(_))));
    let roomy = JoinOptions { pool: MemoryPool::new(64 * MIB), ..missing() };
    assert!(actual(&build, &probe, &spec, roomy).is_ok());
    bed.assert_clean();
}

#[test]
fn a_cancelled_join_stops_in_every_phase() {
    let (build, probe) = sides();
    // Cancelled after this many reports of progress: during the build, the probe, the spilled rounds.
    for after in [1, 12, 17, 25, 33, 40] {
        let bed = Bed::new();
        let (cancel, calls) = (CancelToken::default(), AtomicUsize::new(0));
        let on_progress = {
            let cancel = cancel.clone();
            move |_| {
                if calls.fetch_add(1, Relaxed) == after {
                    cancel.cancel();
                }
            }
        };
        let options = JoinOptions {
            run: Run { cancel, seed: SEED, ..Run::default() },
            on_progress: Some(Arc::new(on_progress)),
            ..bed.options()
        };
        let answer = actual(&build, &probe, &spec(&build, &probe, JoinKind::Full), options);
        assert!(matches!(answer, Err(JoinError::Cancelled)), "after {after}");
        bed.assert_clean();
    }
}

/// 2 M build rows and few probe rows. The model chooses the radix join for them if no column of the probe side is
/// wanted. The pool has room only for the no-partition join's table.
#[test]
fn a_smaller_algorithm_is_taken_before_a_file_is() {
    let rows = 2_000_000_u64;
    let keys: ArrayRef = Arc::new((0..rows).map(|row| super::oracle::mix(row) as i64).collect::<Int64Array>());
    let side = RecordBatch::try_from_iter([("key", keys)]).unwrap();
    let spec = JoinSpec {
        projection: Some(vec![0]),
        ..JoinSpec::new(side.schema(), side.schema(), vec![(0, 0)], JoinKind::Inner)
    };
    let probe_rows = rows / 4;
    let shape = Shape { build_rows: rows as usize, probe_rows: probe_rows as usize, threads: 1 };
    let bytes = |name| by_name(name).unwrap().memory_bytes(shape);
    let beside = (8 + 16) * rows + 4 * MIB;
    assert!(bytes("radix") > bytes("no_partition") + 8 * MIB, "else there is nothing to choose");
    let join_within = |pool: u64| {
        let options = JoinOptions { probe_rows_expected: Some(probe_rows), ..seeded(MemoryPool::new(pool)) };
        let mut join = Join::new(spec.clone(), options).unwrap();
        join.push_build(&side).unwrap();
        join.finish_build().unwrap();
        join.report()
    };
    let roomy = join_within(beside + bytes("radix") + 64 * MIB);
    let tight = join_within(beside + bytes("no_partition") + 4 * MIB);
    assert_eq!(roomy.choice.unwrap().algorithm.name(), "radix");
    let choice = tight.choice.unwrap();
    assert_eq!((choice.algorithm.name(), tight.spilled_partitions), ("no_partition", 0));
    assert!(choice.reason.contains("radix would cost less"), "{}", choice.reason);
}

/// An algorithm that rearranges the probe side holds memory for a probe. Each of several shares needs it.
#[test]
fn memory_for_probing_is_held_for_every_share() {
    let rows = 100_000_u64;
    let keys: ArrayRef = Arc::new((0..rows).map(|row| super::oracle::mix(row) as i64).collect::<Int64Array>());
    let side = RecordBatch::try_from_iter([("key", keys)]).unwrap();
    let held = |algorithm: &str, shares: usize| {
        let pool = MemoryPool::new(256 * MIB);
        let options = JoinOptions { algorithm: by_name(algorithm), shares, ..seeded(pool.clone()) };
        let spec = JoinSpec::new(side.schema(), side.schema(), vec![(0, 0)], JoinKind::Inner);
        let mut join = Join::new(spec, options).unwrap();
        join.push_build(&side).unwrap();
        join.finish_build().unwrap();
        assert!(!join.is_spilled());
        pool.used()
    };
    assert_eq!(held("no_partition", 1), held("no_partition", 4));
    let (one, four) = (held("radix", 1), held("radix", 4));
    assert!(four >= one + 3 * 16 * rows, "{one} bytes for one, {four} for four");
}

#[test]
fn a_dropped_join_leaves_nothing() {
    let (build, probe) = sides();
    let bed = Bed::new();
    let mut join = Join::new(spec(&build, &probe, JoinKind::Inner), bed.options()).unwrap();
    build.batches.iter().for_each(|batch| join.push_build(batch).unwrap());
    join.finish_build().unwrap();
    join.push_probe(&probe.batches[0]).unwrap();
    join.next_output().unwrap();
    assert!(bed.pool.used() > 0);
    drop(join);
    bed.assert_clean();
}

fn with_condition(
    evaluate: impl Fn(usize) -> Result<BooleanArray, ArrowError> + Send + Sync + 'static,
) -> Result<(), JoinError> {
    let (build, probe) = sides();
    let bed = Bed::new();
    let mut spec = spec(&build, &probe, JoinKind::Left);
    spec.residual = Some(Residual {
        build_columns: vec![],
        probe_columns: vec![],
        evaluate: Arc::new(move |batch| evaluate(batch.num_rows())),
    });
    let answer = run(&build, &probe, spec, bed.options(), drop);
    bed.assert_clean();
    answer.map(|_| ())
}

#[test]
fn a_condition_that_fails_panics_or_answers_too_little_is_an_error() {
    assert!(with_condition(|rows| Ok(BooleanArray::from(vec![true; rows]))).is_ok());
    let failed = with_condition(|_| Err(ArrowError::DivideByZero));
    assert!(matches!(failed, Err(JoinError::Residual(ArrowError::DivideByZero))));
    let panicked = with_condition(|_| panic!("planted"));
    assert!(matches!(panicked, Err(JoinError::WorkerPanicked(message)) if message == "planted"));
    assert!(matches!(with_condition(|_| Ok(BooleanArray::from(vec![true; 0]))), Err(JoinError::Invalid(_))));
}

#[test]
fn output_that_would_overflow_its_offsets_is_split() {
    // 200 matches of a probe row with 5000 bytes each, where a batch holds at most 20000 bytes.
    let build = Side::new(vec![Some(1); 200], KeyType::Int64, 5000, 50);
    let probe = Side::new(vec![Some(1), Some(2), None], KeyType::Int64, 100, 50);
    let bytes = |batch: &RecordBatch| -> usize {
        batch.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap()).sum()
    };
    for kind in JoinKind::ALL {
        let spec = spec(&build, &probe, kind);
        let options = || JoinOptions { batch_bytes_max: 20_000, ..seeded(MemoryPool::new(64 * MIB)) };
        let mut longest = 0;
        run(&build, &probe, spec.clone(), options(), |batch| longest = longest.max(bytes(&batch))).unwrap();
        assert!(longest <= 21_000, "{kind:?}: {longest}");
        assert!(actual(&build, &probe, &spec, options()).unwrap().0 == expected(&build, &probe, &spec), "{kind:?}");
        // The batches of a condition are limited, too: it reads all columns of both sides.
        let asked = Arc::new(AtomicUsize::new(0));
        let most = Arc::clone(&asked);
        let with_condition = JoinSpec {
            residual: Some(Residual {
                build_columns: vec![0, 1, 2],
                probe_columns: vec![0, 1, 2],
                evaluate: Arc::new(move |pairs| {
                    most.fetch_max(bytes(pairs), Relaxed);
                    Ok(BooleanArray::from(vec![true; pairs.num_rows()]))
                }),
            }),
            ..spec.clone()
        };
        run(&build, &probe, with_condition, options(), drop).unwrap();
        let asked = asked.load(Relaxed);
        assert!(asked > 5000 && asked <= 21_000, "{kind:?}: a condition is asked about {asked} bytes");
    }
}
