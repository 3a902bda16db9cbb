//! A GPU that is too small, busy, lost at any call, or fails once at any call: the CPU gives the same answers, and the
//! table reports why.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::util::display::array_value_to_string;

use super::*;
use crate::algorithm::nested_loop::NestedLoop;
use crate::gpu::{Emulation, Fault};
use crate::{Join, JoinKind, JoinOptions, JoinReport, JoinSpec, MemoryPool};

struct Sides {
    build: Side,
    probe: Side,
}

/// Build keys of which some occur twice, and probe keys of which some have no match.
fn sides(build: u64, probe: u64) -> Sides {
    let key = |row: u64, of: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40 & (of.next_power_of_two() - 1);
    let side = |rows: u64, of: u64, salt: u64| Side {
        keys: (0..rows).map(|row| key(row ^ salt, of)).collect(),
        payloads: (0..rows).map(|row| row + (salt << 32)).collect(),
    };
    Sides { build: side(build, build, 1), probe: side(probe, build, 2) }
}

/// An algorithm on an emulated device, whose calibration has been done, and the device.
fn on(driver: Driver, device: Emulation) -> Result<(OnGpu, Arc<Emulation>), GpuError> {
    let device = Arc::new(device);
    Ok((OnGpu::new(driver, Arc::new(Gpu::new(device.clone())?)), device))
}

fn emulation() -> Emulation {
    Emulation::new(64 << 20, 1)
}

fn all_pairs(table: &dyn Table, probe: Columns<'_>, matches: Matches, run: &Run) -> Vec<(u64, u64)> {
    let (mut cursor, mut pairs, mut all) = (Cursor::default(), Pairs::with_limit(64), Vec::new());
    while !cursor.is_done {
        pairs.clear();
        table.pairs(probe, matches, &mut cursor, &mut pairs, run).unwrap();
        all.extend(pairs.build.iter().copied().zip(pairs.probe.iter().copied()));
    }
    all.sort_unstable();
    all
}

/// The sum; first pairs, all pairs, first pairs again; the reason if the CPU took over.
type Answers = (Sum, [Vec<(u64, u64)>; 3], Option<String>);

/// Uses a table in every way.
fn use_of(algorithm: &dyn Algorithm, sides: &Sides) -> Answers {
    let run = Run { seed: 1, ..Run::with_threads(2) };
    let probe = sides.probe.columns().unwrap();
    let table = algorithm.build(sides.build.columns().unwrap(), &run).unwrap();
    let sum = table.sum(probe, &run).unwrap();
    let pairs = [Matches::First, Matches::All, Matches::First].map(|wanted| all_pairs(&*table, probe, wanted, &run));
    (sum, pairs, table.fallback().map(String::from))
}

/// The test on which the whole fallback rests. Every call of the driver to the device is made to fail: by a device that
/// is lost, and by one that continues afterwards. Many calls are made to fail by a device whose memory another process
/// has taken.
#[test]
fn whichever_call_fails_the_answers_are_right_and_the_table_says_so() {
    let sides = sides(20, 30);
    let oracle = use_of(&NestedLoop, &sides);
    for driver in Driver::ALL {
        let (whole, device) = on(driver, emulation()).unwrap();
        let calibration = device.calls();
        let (sum, pairs, fallback) = use_of(&whole, &sides);
        assert_eq!((sum, &pairs[1], fallback), (oracle.0, &oracle.1[1], None));
        assert_eq!(pairs[0], pairs[2], "representatives change");
        let calls = device.calls();
        assert!(calls > calibration + 100, "{calls} calls");
        for fault in [Fault::Lost, Fault::Once, Fault::Busy] {
            let (mut fell_back, mut finished) = (0, 0);
            // A busy device shows only at allocations, which are every few calls.
            let step = if fault == Fault::Busy { 5 } else { 1 };
            for call in (calibration..calls).step_by(step) {
                let (algorithm, device) = on(driver, emulation().failing_at(call, fault)).unwrap();
                let (sum, pairs, fallback) = use_of(&algorithm, &sides);
                let context = format!("{}, {fault:?} at call {call} of {calls}", driver.name());
                assert_eq!(sum, oracle.0, "{context}");
                assert!(pairs[1] == oracle.1[1], "{context}: all pairs");
                assert!(pairs[0] == pairs[2], "{context}: representatives change");
                assert_eq!(device.live_allocations(), 0, "{context}: memory is left in the device");
                match fallback {
                    Some(why) => {
                        let said = if fault == Fault::Busy { "no room" } else { "failed" };
                        assert!(why.contains("CPU") && why.contains(said), "{context}: {why}");
                        fell_back += 1;
                    }
                    None => finished += 1,
                }
                let is_lost = algorithm.check_available().is_err();
                assert_eq!(
                    is_lost,
                    fault != Fault::Busy,
                    "{context}: a device that failed is not used again, a busy one is"
                );
            }
            // A failed call is noticed at once; a busy device is noticed only by a call that wants more memory.
            assert!(fell_back > 10 && (fault == Fault::Busy || finished == 0), "{fell_back} {finished}");
        }
    }
}

#[test]
fn a_device_that_fails_while_it_is_calibrated_is_an_error() {
    let (_, device) = on(Driver::Triton, emulation()).unwrap();
    for call in 0..device.calls() {
        assert!(matches!(on(Driver::Triton, emulation().failing_at(call, Fault::Lost)), Err(GpuError::Failed { .. })));
    }
}

#[test]
fn a_device_that_is_too_small_is_left_alone() {
    let sides = sides(6000, 6000);
    let oracle = use_of(&NestedLoop, &sides);
    for driver in Driver::ALL {
        let (algorithm, device) = on(driver, Emulation::new(512 << 10, 1)).unwrap();
        let (sum, pairs, fallback) = use_of(&algorithm, &sides);
        assert_eq!((sum, &pairs[1]), (oracle.0, &oracle.1[1]));
        assert!(fallback.is_some_and(|why| why.contains("no room")), "{}", driver.name());
        assert_eq!(device.live_allocations(), 0);
    }
}

#[test]
fn a_row_with_more_matches_than_there_is_room_for_goes_to_the_cpu() {
    let keys = vec![7; ROWS_MIN + 10];
    let sides = Sides {
        build: Side { payloads: (0..keys.len() as u64).collect(), keys },
        probe: Side { keys: vec![7, 8, 7], payloads: vec![1, 2, 3] },
    };
    let (algorithm, _) = on(Driver::Triton, emulation()).unwrap();
    let (sum, pairs, fallback) = use_of(&algorithm, &sides);
    assert_eq!((sum.pairs, pairs[1].len()), (2 * (ROWS_MIN as u64 + 10), 2 * (ROWS_MIN + 10)));
    assert!(fallback.is_some_and(|why| why.contains("matches")));
}

#[test]
fn a_chunk_with_too_many_rows_is_made_smaller() {
    let keys: Vec<u64> = (0..6000).map(|row| row % 600).collect();
    let sides = Sides {
        build: Side { payloads: (0..6000).collect(), keys },
        probe: Side { keys: (0..2000).map(|row| row % 700).collect(), payloads: (0..2000).collect() },
    };
    for driver in Driver::ALL {
        let (algorithm, _) = on(driver, emulation()).unwrap();
        let (sum, pairs, fallback) = use_of(&algorithm, &sides);
        let oracle = use_of(&NestedLoop, &sides);
        assert_eq!((sum, &pairs[1], fallback), (oracle.0, &oracle.1[1], None));
    }
}

/// Two rows with many matches side by side need chunks of one row. Those behind them do not.
#[test]
fn chunks_grow_again_after_rows_with_many_matches() {
    let keys = |hot: usize, rows: u64| [vec![7; hot], (1000..1000 + rows).collect()].concat();
    let side = |hot, rows| {
        let keys = keys(hot, rows);
        Side { payloads: (0..keys.len() as u64).collect(), keys }
    };
    let calls = |hot_rows| {
        let sides = Sides { build: side(3000, 2000), probe: side(hot_rows, 4998) };
        let (algorithm, device) = on(Driver::Triton, emulation()).unwrap();
        let run = Run { seed: 1, ..Run::with_threads(2) };
        let table = algorithm.build(sides.build.columns().unwrap(), &run).unwrap();
        let before = device.calls();
        let pairs = all_pairs(&*table, sides.probe.columns().unwrap(), Matches::All, &run);
        assert_eq!((pairs.len(), table.fallback()), (3000 * hot_rows + 2000, None));
        device.calls() - before
    };
    let (one, two) = (calls(1), calls(2));
    assert!(two < 50 * one, "{two} calls, {one} without neighbours");
}

#[test]
fn host_memory_keeps_to_what_was_promised() {
    for (build, probe) in [(0, 10), (10, 10), (300, 300), (5000, 5000), (300, 9000), (20_000, 20_000)] {
        let sides = sides(build, probe);
        let shape = Shape { build_rows: build as usize, probe_rows: probe as usize, threads: 2 };
        for driver in Driver::ALL {
            let (algorithm, device) = on(driver, emulation()).unwrap();
            device.forget_peak();
            use_of(&algorithm, &sides);
            // Beside the pinned memory: the columns, and the rows of a chunk.
            let columns = 16 * build + 16 * probe.max(ROWS_MIN as u64);
            let promised = algorithm.memory_bytes(shape);
            let peak = device.host_bytes_peak();
            assert!(peak + columns <= promised, "{} {build} x {probe}: {peak} of {promised}", driver.name());
        }
    }
}

#[test]
fn a_device_that_this_machine_does_not_have_is_a_typed_error() {
    match TRITON.check_available() {
        Ok(()) => {
            let described = Gpu::of_this_machine().unwrap().describe().unwrap();
            assert_eq!(described.is_emulation, described.name.contains("emulation"), "{described:?}");
        }
        Err(error) => {
            assert!(matches!(&error, JoinError::Unavailable(why) if why.contains("no GPU")), "{error}");
            let build = TRITON.build(Columns::new(&[1], &[1]).unwrap(), &Run::default());
            assert!(matches!(build, Err(JoinError::Unavailable(_))));
        }
    }
}

fn batch(keys: impl Iterator<Item = i64>) -> RecordBatch {
    let keys: Int64Array = keys.map(|key| (key % 11 > 0).then_some(key)).collect();
    let rows: Int64Array = (0..keys.len() as i64).collect();
    RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef), ("row", Arc::new(rows) as ArrayRef)]).unwrap()
}

/// Rows of a join of Arrow batches as text, sorted, and the reports of its shares.
fn joined(kind: JoinKind, algorithm: &'static dyn Algorithm, shares: usize) -> (Vec<String>, Vec<JoinReport>) {
    let (build, probe) = (batch((0..300).map(|row| row % 90)), batch((0..400).map(|row| row % 120)));
    let spec = JoinSpec::new(build.schema(), probe.schema(), vec![(0, 0)], kind);
    let pool = MemoryPool::new(32 << 20);
    let options = JoinOptions {
        algorithm: Some(algorithm),
        shares,
        run: Run { seed: 1, ..Run::default() },
        ..JoinOptions::new(pool.clone())
    };
    let mut join = Join::new(spec, options).unwrap();
    join.push_build(&build).unwrap();
    join.finish_build().unwrap();
    let each = probe.num_rows() / shares;
    let drive = |mut join: Join, share: usize| {
        let mut rows = Vec::new();
        let mut take = |join: &mut Join| {
            while let Some(batch) = join.next_output().unwrap() {
                rows.extend((0..batch.num_rows()).map(|row| {
                    let values = batch.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
                    values.collect::<Vec<_>>().join("|")
                }));
            }
        };
        join.push_probe(&probe.slice(share * each, each)).unwrap();
        take(&mut join);
        join.finish_probe().unwrap();
        take(&mut join);
        (rows, join.report())
    };
    let joins = if shares > 1 { join.split().unwrap() } else { vec![join] };
    let ended: Vec<(Vec<String>, JoinReport)> = std::thread::scope(|scope| {
        let drive = &drive;
        let begun: Vec<_> =
            joins.into_iter().enumerate().map(|(share, join)| scope.spawn(move || drive(join, share))).collect();
        begun.into_iter().map(|share| share.join().unwrap()).collect()
    });
    let (rows, reports): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    let mut rows = rows.concat();
    rows.sort_unstable();
    assert_eq!(pool.used(), 0);
    (rows, reports)
}

/// The device fails at every `step`th call, beginning with the join's work on its build side.
fn goes_on_on_the_cpu(kind: JoinKind, driver: Driver, shares: usize, step: usize) {
    let (expected, _) = joined(kind, &NestedLoop, 1);
    let (whole, device) = on(driver, emulation()).unwrap();
    let calibration = device.calls();
    let (rows, reports) = joined(kind, Box::leak(Box::new(whole)), shares);
    let context = format!("{kind:?}, {driver:?}, {shares} shares");
    assert!(rows == expected && reports.iter().all(|report| report.fallback.is_none()), "{context}");
    let calls = device.calls();
    // The first call is that of `Join::new`, which asks whether the device can be used at all. Its failure is an error,
    // as for any algorithm.
    for (call, fault) in (calibration + 1..calls).step_by(step).zip([Fault::Lost, Fault::Once].into_iter().cycle()) {
        let (failing, device) = on(driver, emulation().failing_at(call, fault)).unwrap();
        let (rows, reports) = joined(kind, Box::leak(Box::new(failing)), shares);
        assert!(rows == expected, "{context}, {fault:?} at call {call} of {calls}");
        let said = reports.iter().filter_map(|report| report.fallback.as_ref()).any(|why| why.contains("CPU"));
        // Threads decide the order of shares, so they may need fewer calls than the first time.
        assert!(said || shares > 1 && device.calls() <= call, "{context}, call {call} of {calls}");
        assert_eq!(device.live_allocations(), 0);
    }
}

/// Also of a join of which no more than its first rows are wanted.
#[test]
fn a_report_tells_of_the_cpu_before_the_join_has_ended() {
    let (build, probe) = (batch((0..300).map(|row| row % 90)), batch((0..400).map(|row| row % 120)));
    let first_rows = |device| {
        let (algorithm, device) = on(Driver::Triton, device).unwrap();
        let spec = JoinSpec::new(build.schema(), probe.schema(), vec![(0, 0)], JoinKind::Inner);
        let options = JoinOptions {
            algorithm: Some(Box::leak(Box::new(algorithm))),
            run: Run { seed: 1, ..Run::default() },
            ..JoinOptions::new(MemoryPool::new(32 << 20))
        };
        let mut join = Join::new(spec, options).unwrap();
        join.push_build(&build).unwrap();
        join.finish_build().unwrap();
        let built = device.calls();
        join.push_probe(&probe).unwrap();
        join.finish_probe().unwrap();
        // A step that waits for the device does not belong on a thread of queries.
        #[cfg(feature = "datafusion")]
        assert!(join.next_is_long());
        assert!(join.next_output().unwrap().is_some() && !join.is_done());
        (built, join.report().fallback)
    };
    let (built, fallback) = first_rows(emulation());
    assert_eq!(fallback, None);
    let (_, fallback) = first_rows(emulation().failing_at(built + 1, Fault::Lost));
    assert!(fallback.is_some_and(|why| why.contains("CPU")));
}

#[test]
fn a_join_of_batches_goes_on_on_the_cpu_and_its_report_says_so() {
    for kind in [JoinKind::Full, JoinKind::LeftSemi, JoinKind::RightMark] {
        goes_on_on_the_cpu(kind, Driver::Triton, 1, 29);
    }
}

#[test]
fn shares_of_a_join_probe_one_table_on_the_device_and_go_on_on_the_cpu_together() {
    for kind in [JoinKind::Full, JoinKind::LeftSemi] {
        for driver in Driver::ALL {
            goes_on_on_the_cpu(kind, driver, 4, 53);
        }
    }
}
