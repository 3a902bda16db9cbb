//! However a join ends, the process has as many threads and open files as before.
//!
//! Alone in its file, so that no other test runs in the process.

use std::fmt::Display;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use farhold_join::{CancelToken, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Residual, Run};

fn batch(number: i64) -> RecordBatch {
    let ids = number * 1000..(number + 1) * 1000;
    let keys: ArrayRef = Arc::new(ids.clone().collect::<Int64Array>());
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(ids.map(|id| format!("{id:0100}"))));
    RecordBatch::try_from_iter([("key", keys), ("text", texts)]).unwrap()
}

/// The numbers of threads and open files.
fn held() -> (usize, usize) {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    (count("/proc/self/task"), count("/proc/self/fd"))
}

/// The kernel tells who joins a thread that it has ended before it takes it from the list of threads.
#[track_caller]
fn assert_held(expected: (usize, usize), when: impl Display) {
    let back = (0..100_000).any(|_| {
        thread::yield_now();
        held() == expected
    });
    assert!(back, "{when}: {:?}, not {expected:?}", held());
}

/// The way in which a join ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// Cancelled after this many reports of progress.
    Cancelled(usize),
    /// Its condition panics at the call with this number.
    Panicked(usize),
    /// Dropped after this many batches of output.
    Dropped(usize),
    /// The disk takes no more than this many bytes of a file.
    DiskFull(u64),
}

/// While it lives, no file of the process grows beyond this many bytes: a full disk, for a test that has no right to
/// fill one.
struct FileLimit(libc::rlimit);

impl FileLimit {
    fn new(bytes: u64) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limits are read into a structure of this function, and set from another. An ignored signal runs
        // no code.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            assert_eq!(libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut before), 0);
            let limit = libc::rlimit { rlim_cur: bytes, ..before };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
        }
        Self(before)
    }
}

impl Drop for FileLimit {
    fn drop(&mut self) {
        // SAFETY: the structure is owned by `self`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const self.0) }, 0);
    }
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
        ..JoinOptions::new(pool(threads))
    };
    let pool = Arc::clone(&options.pool);
    let _limit = if let End::DiskFull(bytes) = end { Some(FileLimit::new(bytes)) } else { None };
    let answer = drive(Join::new(spec, options)?, end, batches(threads));
    assert_eq!(pool.used(), 0, "memory is back");
    answer
}

/// With three threads it is large enough for two of them to read back at once. With two it returns freed memory to the
/// kernel.
fn pool(threads: usize) -> Arc<MemoryPool> {
    match threads {
        2 => MemoryPool::giving_back(1 << 20),
        3 => MemoryPool::new(4 << 20),
        _ => MemoryPool::new(1 << 20),
    }
}

/// The number of batches of a side.
fn batches(threads: usize) -> i64 {
    if threads == 3 { 120 } else { 40 }
}

fn drive(mut join: Join, end: End, batches: i64) -> Result<(), JoinError> {
    (0..batches).try_for_each(|number| join.push_build(&batch(number)))?;
    join.finish_build()?;
    for number in batches / 2..batches + batches / 2 {
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
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some("planted") {
            told(panic);
        }
    }));
    run(End::Done, 2).unwrap();
    let before = held();
    for threads in [1, 2, 3] {
        // During the build, during the probe, and during the read-back.
        let through = batches(threads) as usize / 40;
        for after in [1, 5, 9, 14, 20].map(|after| after * through) {
            run(End::Done, threads).unwrap();
            assert_held(before, "done");
            assert!(matches!(run(End::Cancelled(after * 6), threads), Err(JoinError::Cancelled)), "{after}");
            assert_held(before, format_args!("cancelled after {after}"));
            assert!(matches!(run(End::Panicked(after), threads), Err(JoinError::WorkerPanicked(_))), "{after}");
            assert_held(before, format_args!("panicked after {after}"));
            run(End::Dropped(after), threads).unwrap();
            assert_held(before, format_args!("dropped after {after}"));
        }
        // In the build side's files, the probe side's, and those of later rounds.
        for bytes in [0, 20_000, 100_000, 300_000] {
            let answer = run(End::DiskFull(bytes), threads);
            assert!(
                matches!(&answer, Err(JoinError::Spill(error)) if error.raw_os_error() == Some(libc::EFBIG)),
                "{bytes}: {answer:?}"
            );
            assert_held(before, format_args!("the disk was full after {bytes}"));
        }
    }
    #[cfg(feature = "emulation")]
    gpu::nothing_is_left_behind(before);
}

/// The device is lost, or fails once, at some call of a join that also spills.
#[cfg(feature = "emulation")]
mod gpu {
    use farhold_join::algorithm::on_gpu::OnGpu;
    use farhold_join::gpu::{Driver, Emulation, Fault, Gpu};

    use super::*;

    /// Whether the join reports that it continued on the CPU, and the device's number of calls.
    fn run(driver: Driver, device: Emulation) -> (bool, u64) {
        let device = Arc::new(device);
        let gpu = Arc::new(Gpu::described(device.clone(), described()));
        let schema = batch(0).schema();
        let spec = JoinSpec::new(schema.clone(), schema, vec![(0, 0)], JoinKind::Full);
        let pool = MemoryPool::new(4 << 20);
        let options = JoinOptions {
            run: Run { seed: 1, ..Run::with_threads(2) },
            // A device lives as long as the process, and so does a test's algorithm on it.
            algorithm: Some(Box::leak(Box::new(OnGpu::new(driver, gpu)))),
            ..JoinOptions::new(Arc::clone(&pool))
        };
        let mut join = Join::new(spec, options).unwrap();
        let mut rows = 0;
        let mut take = |join: &mut Join| {
            while let Some(batch) = join.next_output().unwrap() {
                rows += batch.num_rows();
            }
        };
        (0..60).for_each(|number| join.push_build(&batch(number)).unwrap());
        join.finish_build().unwrap();
        for number in 20..80 {
            join.push_probe(&batch(number)).unwrap();
            take(&mut join);
        }
        join.finish_probe().unwrap();
        take(&mut join);
        assert_eq!(rows, 80_000);
        assert!(join.report().spilled_partitions > 0);
        let fell_back = join.report().fallback.is_some();
        drop(join);
        assert_eq!((pool.used(), device.live_allocations()), (0, 0), "memory is back, the device's too");
        (fell_back, device.calls())
    }

    fn described() -> farhold_join::gpu::Description {
        Gpu::new(Arc::new(Emulation::new(64 << 20, 1))).unwrap().describe().unwrap()
    }

    pub fn nothing_is_left_behind(before: (usize, usize)) {
        for driver in Driver::ALL {
            let (fell_back, calls) = run(driver, Emulation::new(64 << 20, 1));
            assert!(!fell_back && calls > 500, "{calls}");
            assert_held(before, format_args!("{driver:?}"));
            let faults = [Fault::Lost, Fault::Once].into_iter().cycle();
            for (at, fault) in (1..calls).step_by(calls as usize / 5).zip(faults) {
                let (fell_back, _) = run(driver, Emulation::new(64 << 20, 1).failing_at(at, fault));
                assert!(fell_back, "{driver:?}, {fault:?} at call {at} of {calls}");
                assert_held(before, format_args!("{driver:?}, {fault:?} at call {at} of {calls}"));
            }
        }
    }
}
