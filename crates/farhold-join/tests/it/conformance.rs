//! Every algorithm, kind, key type and budget, on sides that try what is hard.

use arrow::compute::concat_batches;
use farhold_join::algorithm::available;
use farhold_join::{Join, JoinError, JoinKind, JoinOptions, JoinSpec, MemoryPool, Run};

use super::oracle::{KeyType, Side, actual, drive, expected, mix, residual, rows_of, run, spec};

const MIB: u64 = 1 << 20;

fn options(budget: u64) -> JoinOptions {
    JoinOptions { batch_rows_max: 1000, ..JoinOptions::new(MemoryPool::new(budget)) }
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

/// Sides of a few megabytes, and how many rounds they take at the least budget.
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
    ]
}

#[test]
fn rows_are_the_same_at_every_budget() {
    for (name, build, probe) in big_sides() {
        for kind in JoinKind::ALL {
            for with_residual in [false, true] {
                let mut spec = spec(&build, &probe, kind);
                spec.residual = with_residual.then(|| residual(&build, &probe));
                let expected = expected(&build, &probe, &spec);
                let mut spilled = Vec::new();
                for budget in [MIB, 2 * MIB, 64 * MIB] {
                    let options = options(budget);
                    let pool = options.pool.clone();
                    let (rows, report) = actual(&build, &probe, &spec, options).unwrap();
                    assert!(rows == expected, "{name}, {kind:?}, residual {with_residual}, {budget} bytes");
                    assert!(pool.used() == 0 && pool.peak() <= budget);
                    spilled.push(report.spilled_bytes);
                }
                assert!(
                    spilled[0] > 0 && spilled[0] >= spilled[1] && spilled[2] == 0,
                    "{name}, {kind:?}: spilled {spilled:?}"
                );
            }
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
            let options = JoinOptions { algorithm: Some(algorithm), run: Run::with_threads(2), ..options(MIB) };
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
    let join =
        || Join::new(spec.clone(), JoinOptions { batch_rows_max: 1000, ..JoinOptions::new(pool.clone()) }).unwrap();
    let joins = [join(), join(), join()];
    std::thread::scope(|scope| {
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
