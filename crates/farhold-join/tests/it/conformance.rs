//! Every algorithm, kind, key type and budget, on sides with difficult keys.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use farhold_join::algorithm::available;
use farhold_join::gpu::Driver;
use farhold_join::{
    Algorithm, Evaluate, Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, OnProgress, Progress, Residual,
    Run,
};

use super::oracle::{KeyType, SEED, Side, actual, drive, expected, mix, residual, rows_of, run, seeded, spec};

const MIB: u64 = 1 << 20;

/// With two MiB, freed memory returns to the kernel at once.
fn options(budget: u64) -> JoinOptions {
    let pool = if budget == 2 * MIB { MemoryPool::giving_back(budget) } else { MemoryPool::new(budget) };
    JoinOptions { batch_rows_max: 1000, ..seeded(pool) }
}

/// Keys of a shape; every 13th is null.
fn keys(rows: usize, seed: u64, key: impl Fn(u64) -> u64) -> Vec<Option<u64>> {
    (0..rows as u64)
        .map(|row| mix(row ^ seed << 40))
        .map(|random| (random % 13 > 0).then(|| key(random / 13)))
        .collect()
}

fn small_sides(kind: KeyType) -> Vec<(&'static str, Side, Side)> {
    let side = |keys: Vec<Option<u64>>| Side::new(keys, kind, 12, 97);
    vec![
        ("both empty", side(vec![]), side(vec![])),
        ("build empty", side(vec![]), side(keys(50, 1, |r| r % 9))),
        ("probe empty", side(keys(50, 2, |r| r % 9)), side(vec![])),
        ("only nulls", side(vec![None; 5]), side(vec![None; 7])),
        ("few of many", side(keys(300, 3, |r| r % 1000)), side(keys(400, 4, |r| r % 1000))),
        ("duplicates", side(keys(200, 5, |r| r % 40)), side(keys(300, 6, |r| r % 50))),
        ("one key", side(vec![Some(5); 60]), side(vec![Some(5); 70])),
    ]
}

#[test]
fn every_algorithm_and_kind_and_key_type_in_memory() {
    for key_type in KeyType::ALL {
        for (name, build, probe) in small_sides(key_type) {
            for kind in JoinKind::ALL {
                for variant in 0..4 {
                    let mut spec = spec(&build, &probe, kind);
                    spec.null_equals_null = variant % 2 == 1;
                    spec.residual = (variant / 2 == 1).then(|| residual(&build, &probe));
                    let expected = expected(&build, &probe, &spec);
                    for algorithm in available() {
                        let options = JoinOptions { algorithm: Some(algorithm), ..options(16 * MIB) };
                        let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
                        assert!(rows == expected, "{algorithm:?}, {key_type:?}, {name}, {kind:?}, variant {variant}");
                        assert_eq!((report.tables, report.spilled_partitions), (1, 0));
                    }
                }
            }
        }
    }
}

/// Sides of a few megabytes, and the rounds that they take at the least budget.
fn big_sides() -> Vec<(&'static str, Side, Side)> {
    let side = |keys: Vec<Option<u64>>, kind: KeyType| Side::new(keys, kind, 150, 1000);
    vec![
        (
            "uniform",
            side(keys(9000, 1, |r| r % 20_000), KeyType::Int64),
            side(keys(9000, 2, |r| r % 20_000), KeyType::Int64),
        ),
        ("texts", side(keys(6000, 3, |r| r % 9000), KeyType::Text), side(keys(6000, 4, |r| r % 9000), KeyType::Text)),
        (
            "half of them one key",
            side(keys(8000, 5, |r| if r % 2 == 0 { 7 } else { r % 9000 }), KeyType::Int64),
            side(keys(3000, 6, |r| if r % 500 == 0 { 7 } else { r % 9000 }), KeyType::Int64),
        ),
        ("one key", side(vec![Some(7); 7000], KeyType::TextAndDate), side(vec![Some(7); 12], KeyType::TextAndDate)),
        (
            "zipf",
            side(keys(8000, 7, |r| zipf(r, 20_000)), KeyType::Int64),
            side(keys(300, 8, |r| zipf(r, 20_000)), KeyType::Int64),
        ),
    ]
}

/// A key's rank follows 1 / rank: Zipf with exponent 1 over `domain` keys.
fn zipf(random: u64, domain: u64) -> u64 {
    let uniform = (mix(random) >> 11) as f64 / (1_u64 << 53) as f64;
    ((domain as f64).powf(uniform) - 1.0) as u64
}

fn is_emulated(algorithm: Option<&dyn Algorithm>) -> bool {
    algorithm.is_some_and(|algorithm| Driver::ALL.iter().any(|driver| driver.name() == algorithm.name()))
}

/// `None` is the model's choice.
#[test]
fn rows_of_every_algorithm_are_the_same_at_every_budget() {
    for (name, build, probe) in big_sides() {
        for algorithm in std::iter::once(None).chain(available().map(Some)) {
            let (kinds, residuals): (&[JoinKind], &[bool]) = match algorithm {
                None => (&JoinKind::ALL, &[false, true]),
                // The emulation takes a hundred times as long.
                Some(_) if is_emulated(algorithm) => (&[JoinKind::Full], &[true]),
                Some(_) => (&[JoinKind::Full, JoinKind::LeftMark, JoinKind::RightAnti], &[false, true]),
            };
            for &kind in kinds {
                for &with_residual in residuals {
                    let mut spec = spec(&build, &probe, kind);
                    spec.residual = with_residual.then(|| residual(&build, &probe));
                    let expected = expected(&build, &probe, &spec);
                    let context = format!("{name}, {algorithm:?}, {kind:?}, residual {with_residual}");
                    let mut spilled = Vec::new();
                    for budget in [MIB, 2 * MIB, 64 * MIB] {
                        let options = JoinOptions { algorithm, ..options(budget) };
                        let pool = options.pool.clone();
                        let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
                        assert!(rows == expected, "{context}, {budget} bytes");
                        assert!(pool.used() == 0 && pool.peak() <= budget, "{context}, {budget} bytes");
                        assert_eq!(report.rounds > 0, report.spilled_bytes > 0, "{context}, {budget} bytes");
                        spilled.push(report.spilled_bytes);
                    }
                    assert!(
                        spilled[0] > 0 && spilled[0] >= spilled[1] && spilled[2] == 0,
                        "{context}: spilled {spilled:?}"
                    );
                }
            }
        }
    }
}

/// The hash of `src/hash.rs`, as an attacker who chooses keys would compute it.
fn hash(key: u64, seed: u64) -> u64 {
    let product = (key ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product ^ product >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Different keys, chosen with the knowledge of [`SEED`]. The first `rounds` rounds of partitioning into 8 put all of
/// them into one partition (the seed of a round as in `src/join/partitions.rs`). After that they are all in one slot of
/// the table.
fn chosen_keys(rows: usize, rounds: u64) -> Vec<Option<u64>> {
    let inverse = |odd: u64| (0..6).fold(odd, |i, _| i.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(i))));
    let inverses = [inverse(0xbf58_476d_1ce4_e5b9), inverse(0x9e37_79b9_7f4a_7c15)];
    let key_of_hash = |wanted: u64| {
        let folded = wanted.wrapping_mul(inverses[0]);
        (folded ^ folded >> 32).wrapping_mul(inverses[1]) ^ SEED
    };
    let seeds: Vec<u64> = (0..rounds).map(|round| hash(round, SEED ^ 0x7269_6464_6c65_0001)).collect();
    let in_one_slot = (0..1 << 24).map(|n| key_of_hash(0xb_ad0b_ad0b << 24 | n));
    in_one_slot.filter(|&key| seeds.iter().all(|&seed| hash(key, seed) >> 61 == 0)).take(rows).map(Some).collect()
}

#[test]
fn every_algorithm_joins_keys_that_were_chosen_against_a_known_seed() {
    let keys = chosen_keys(12_000, 3);
    let slots: HashSet<u64> = keys.iter().flatten().map(|&key| hash(key, SEED) >> 24).collect();
    assert_eq!((keys.len(), slots.len()), (12_000, 1));
    let side = |keys: &[Option<u64>]| Side::new(keys.to_vec(), KeyType::Int64, 150, 1000);
    let (build, probe) = (side(&keys[..9000]), side(&keys[6000..]));
    for algorithm in std::iter::once(None).chain(available().map(Some)) {
        for kind in [JoinKind::Full, JoinKind::LeftAnti].into_iter().skip(usize::from(is_emulated(algorithm))) {
            let spec = spec(&build, &probe, kind);
            let expected = expected(&build, &probe, &spec);
            let mut rounds = Vec::new();
            for budget in [MIB, 64 * MIB] {
                let options = JoinOptions { algorithm, ..options(budget) };
                let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
                assert!(rows == expected, "{algorithm:?}, {kind:?}, {budget} bytes");
                rounds.push(report.rounds);
            }
            // The first three rounds have left the partition whole, and it does not fit: it is partitioned again at
            // least three times.
            assert!(rounds[0] >= 4 && rounds[1] == 0, "{algorithm:?}, {kind:?}: {rounds:?} rounds");
        }
    }
}

#[test]
fn partitions_that_fit_when_they_are_read_back_take_one_round() {
    let (_, build, probe) = big_sides().swap_remove(0);
    let (_, report) = actual(&build, &probe, &spec(&build, &probe, JoinKind::Inner), options(MIB)).unwrap();
    assert!(report.spilled_partitions > 1 && report.rounds == 1, "{report:?}");
}

#[test]
fn progress_never_goes_back_and_ends_at_the_whole() {
    let (_, build, probe) = big_sides().swap_remove(0);
    for (budget, spills) in [(MIB, true), (64 * MIB, false)] {
        for kind in JoinKind::ALL {
            let spec = spec(&build, &probe, kind);
            let told = Arc::new(Mutex::new(Vec::<Progress>::new()));
            let tell = Arc::clone(&told);
            let on_progress: Arc<OnProgress> = Arc::new(move |progress| tell.lock().unwrap().push(progress));
            let options = JoinOptions { on_progress: Some(on_progress), ..options(budget) };
            let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
            let told = told.lock().unwrap();
            let context = format!("{kind:?}, {budget} bytes");
            for pair in told.windows(2) {
                let parts = |p: &Progress| [p.build_rows, p.probe_rows, p.output_rows, p.spilled_bytes];
                let (before, after) = (parts(&pair[0]), parts(&pair[1]));
                assert!(before.iter().zip(&after).all(|(before, after)| before <= after), "{context}: {pair:?}");
            }
            // After every batch, of which there are several, and not only at the end.
            assert!(told.len() > build.batches.len() + probe.batches.len(), "{context}: {}", told.len());
            assert_eq!(told[0].build_rows, build.batches[0].num_rows() as u64, "{context}");
            let pending = told.iter().map(|progress| progress.pending_partitions).max();
            assert_eq!((pending > Some(0), report.spilled_bytes > 0), (spills, spills), "{context}: {report:?}");
            let whole = Progress {
                build_rows: build.keys.len() as u64,
                probe_rows: probe.keys.len() as u64,
                output_rows: rows.len() as u64,
                spilled_bytes: report.spilled_bytes,
                pending_partitions: 0,
            };
            assert_eq!(told.last(), Some(&whole), "{context}");
        }
    }
}

#[test]
fn joins_share_a_build_side() {
    for (name, build, probe) in big_sides().into_iter().chain(small_sides(KeyType::Text)) {
        for kind in JoinKind::ALL {
            let mut spec = spec(&build, &probe, kind);
            spec.residual = (kind == JoinKind::Full).then(|| residual(&build, &probe));
            let expected = expected(&build, &probe, &spec);
            for (budget, shares) in [(2 * MIB, 2), (2 * MIB, 4), (64 * MIB, 3)] {
                let options = JoinOptions { shares, ..options(budget) };
                let pool = options.pool.clone();
                let (rows, _) = actual(&build, &probe, &spec, options).unwrap();
                assert!(rows == expected, "{name}, {kind:?}, {budget} bytes, {shares} shares");
                assert!(pool.used() == 0 && pool.peak() <= budget);
            }
        }
    }
}

/// Sides that a budget of 4 MiB spills as pairs, of which several threads have their own. Some pairs are split again.
/// One pair has only one key, and is kept for the end.
fn wide_sides() -> Vec<(&'static str, Side, Side)> {
    let side = |keys: Vec<Option<u64>>, kind: KeyType| Side::new(keys, kind, 1000, 500);
    let often = |often: u64| move |r: u64| if r.is_multiple_of(often) { 7 } else { r % 9000 };
    vec![
        ("texts", side(keys(9000, 1, |r| r % 9000), KeyType::Text), side(keys(6000, 2, |r| r % 9000), KeyType::Text)),
        ("half", side(keys(12_000, 3, often(2)), KeyType::Int64), side(keys(3000, 4, often(500)), KeyType::Int64)),
    ]
}

#[test]
fn several_threads_read_back_what_was_spilled() {
    for (name, build, probe) in wide_sides() {
        for kind in JoinKind::ALL {
            for (budget, threads, shares) in [(4 * MIB, 2, 1), (4 * MIB, 3, 3), (6 * MIB, 4, 1)] {
                let readers = Arc::new(Mutex::new(HashSet::new()));
                let mut spec = spec(&build, &probe, kind);
                let Residual { build_columns, probe_columns, evaluate } = residual(&build, &probe);
                let seen = Arc::clone(&readers);
                let evaluate: Arc<Evaluate> = Arc::new(move |pairs| {
                    let thread = thread::current();
                    if thread.name() == Some("join-read-back") {
                        seen.lock().unwrap().insert(thread.id());
                    }
                    evaluate(pairs)
                });
                spec.residual = Some(Residual { build_columns, probe_columns, evaluate });
                let run = Run { seed: SEED, ..Run::with_threads(threads) };
                let options = JoinOptions { run, shares, ..options(budget) };
                let pool = options.pool.clone();
                let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
                let context = format!("{name}, {kind:?}, {budget} bytes, {threads} threads, {shares} shares");
                assert!(rows == expected(&build, &probe, &spec), "{context}");
                assert!(pool.used() == 0 && pool.peak() <= budget, "{context}");
                assert!(readers.lock().unwrap().len() > 1 && report.spilled_partitions > 2, "{context}: {report:?}");
                assert!(name != "half" || report.block_passes > 0, "{context}: {report:?}");
            }
        }
    }
}

#[test]
fn a_share_that_is_dropped_keeps_the_rest_back() {
    let (_, build, probe) = big_sides().swap_remove(0);
    let options = JoinOptions { shares: 2, ..options(2 * MIB) };
    let pool = options.pool.clone();
    let mut join = Join::new(spec(&build, &probe, JoinKind::LeftAnti), options).unwrap();
    build.batches.iter().for_each(|batch| join.push_build(batch).unwrap());
    join.finish_build().unwrap();
    let mut shares = join.split().unwrap();
    let mut last = shares.pop().unwrap();
    drop(shares);
    last.finish_probe().unwrap();
    assert!(last.next_output().unwrap().is_none() && last.is_done());
    drop(last);
    assert_eq!(pool.used(), 0);
}

#[test]
fn only_the_wanted_columns_come_out_and_in_their_order() {
    let (_, build, probe) = small_sides(KeyType::Int64).swap_remove(5);
    for kind in JoinKind::ALL {
        let all = spec(&build, &probe, kind);
        let width = all.output_schema().fields().len();
        for projection in [(0..width).rev().collect(), vec![width - 1], vec![1, 0, 1], vec![]] {
            let some = JoinSpec { projection: Some(projection.clone()), ..all.clone() };
            let collect = |spec: &JoinSpec| {
                let mut batches = Vec::new();
                run(&build, &probe, spec.clone(), options(MIB), |batch| batches.push(batch)).unwrap();
                concat_batches(&spec.output_schema(), &batches).unwrap()
            };
            assert_eq!(collect(&some), collect(&all).project(&projection).unwrap(), "{kind:?}, {projection:?}");
        }
        let wrong = JoinSpec { projection: Some(vec![width]), ..all };
        assert!(matches!(Join::new(wrong, options(MIB)), Err(JoinError::Invalid(_))));
    }
}

#[test]
fn every_algorithm_spills() {
    let (_, build, probe) = big_sides().swap_remove(2);
    for algorithm in available() {
        for kind in [JoinKind::Full, JoinKind::LeftMark] {
            let spec = spec(&build, &probe, kind);
            let options = JoinOptions {
                algorithm: Some(algorithm),
                run: Run { seed: SEED, ..Run::with_threads(2) },
                ..options(MIB)
            };
            let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
            assert!(rows == expected(&build, &probe, &spec), "{algorithm:?}, {kind:?}");
            assert!(report.rounds > 0 && report.spilled_partitions > 0);
        }
    }
}

#[test]
fn one_key_is_joined_block_by_block() {
    let (_, build, probe) = big_sides().swap_remove(3);
    let spec = spec(&build, &probe, JoinKind::RightMark);
    let (_, report) = actual(&build, &probe, &spec, options(MIB)).unwrap();
    assert!(report.block_passes > 1, "{report:?}");
}

#[test]
fn more_memory_spills_less() {
    let (_, build, probe) = big_sides().swap_remove(0);
    let spec = spec(&build, &probe, JoinKind::Inner);
    let spilled: Vec<u64> = (10..30)
        .map(|eighths| actual(&build, &probe, &spec, options(eighths * MIB / 8)).unwrap().1.spilled_bytes)
        .collect();
    assert!(spilled.windows(2).all(|pair| pair[1] <= pair[0] + spilled[0] / 4), "a slope: {spilled:?}");
    assert_eq!(spilled.last(), Some(&0), "{spilled:?}");
    assert!(spilled.iter().filter(|&&bytes| bytes > 0 && bytes < spilled[0]).count() >= 3, "no cliff: {spilled:?}");
}

#[test]
fn joins_share_a_pool() {
    let (_, build, probe) = big_sides().swap_remove(0);
    let spec = spec(&build, &probe, JoinKind::Full);
    let expected = expected(&build, &probe, &spec);
    let pool = MemoryPool::new(4 * MIB);
    let join = || Join::new(spec.clone(), JoinOptions { batch_rows_max: 1000, ..seeded(pool.clone()) }).unwrap();
    let joins = [join(), join(), join()];
    thread::scope(|scope| {
        for join in joins {
            scope.spawn(|| {
                let mut rows = Vec::new();
                drive(join, &build, &probe, &mut |batch| rows.extend(rows_of(&build, &probe, &spec, &batch))).unwrap();
                rows.sort_unstable();
                assert!(rows == expected);
            });
        }
    });
    assert!(pool.used() == 0 && pool.peak() <= 4 * MIB);
}

/// The first batch of each side allows no nulls in a column in which later batches have some, as batches of a UNION ALL
/// do.
#[test]
fn batches_that_allow_no_nulls_go_among_others() {
    let schema = |nullable| {
        Arc::new(Schema::new(vec![
            Field::new("key", DataType::Int64, false),
            Field::new("value", DataType::Int64, nullable),
        ]))
    };
    let batch = |number: i64| {
        let keys = number * 1000..(number + 1) * 1000;
        let values = keys.clone().map(|key| (number == 0 || key % 4 > 0).then_some(key));
        let columns: Vec<ArrayRef> =
            vec![Arc::new(Int64Array::from_iter_values(keys.clone())), Arc::new(values.collect::<Int64Array>())];
        RecordBatch::try_new(schema(number > 0), columns).unwrap()
    };
    for budget in [64 * MIB, MIB] {
        let spec = JoinSpec::new(schema(true), schema(true), vec![(0, 0)], JoinKind::Inner);
        let mut join = Join::new(spec, options(budget)).unwrap();
        (0..160).for_each(|number| join.push_build(&batch(number)).unwrap());
        join.finish_build().unwrap();
        let (mut rows, mut nulls) = (0, 0);
        let mut drain = |join: &mut Join| {
            while let Some(batch) = join.next_output().unwrap() {
                rows += batch.num_rows();
                nulls += batch.column(1).null_count() + batch.column(3).null_count();
            }
        };
        for number in 0..160 {
            join.push_probe(&batch(number)).unwrap();
            drain(&mut join);
        }
        join.finish_probe().unwrap();
        drain(&mut join);
        assert_eq!((rows, nulls), (160_000, 2 * 159 * 250), "{budget} bytes");
    }
}
