//! Joins that the suite runs anyway notice every planted defect.

#[path = "it/oracle.rs"]
#[allow(dead_code, reason = "the suite uses the rest")]
mod oracle;

use std::panic::catch_unwind;

use farhold_join::{Columns, JoinKind, JoinOptions, MemoryPool, Run, by_name};
use farhold_planted::{Defect, plant};
use oracle::{KeyType, SEED, Side, actual, expected, mix, residual, seeded, spec};

/// Sides whose joins take every path: in memory, spilled, block by block.
fn sides() -> Vec<(Side, Side)> {
    let keys = |rows: u64, seed: u64, domain: u64| -> Vec<Option<u64>> {
        (0..rows)
            .map(|row| mix(row ^ seed << 40))
            .map(|random| (random % 13 > 0).then_some(random / 13 % domain))
            .collect()
    };
    let side = |keys: Vec<Option<u64>>, kind| Side::new(keys, kind, 150, 700);
    vec![
        (side(keys(300, 1, 90), KeyType::Int64), side(keys(300, 2, 100), KeyType::Int64)),
        (side(keys(80, 9, 90), KeyType::Int64), side(keys(300, 2, 100), KeyType::Int64)),
        (side(keys(300, 3, 90), KeyType::Text), side(keys(300, 4, 100), KeyType::Text)),
        (side(keys(8000, 5, 20_000), KeyType::Int64), side(keys(8000, 6, 20_000), KeyType::Int64)),
        (side(keys(8000, 7, 20_000), KeyType::Int64), side(vec![], KeyType::Int64)),
        (side(vec![Some(7); 6000], KeyType::Int64), side(keys(40, 8, 9), KeyType::Int64)),
    ]
}

/// Whether a radix join of enough tuples to be partitioned finds every one.
fn radix_is_well() -> bool {
    let keys: Vec<u64> = (0..40_000).map(mix).collect();
    let columns = Columns::new(&keys, &keys).unwrap();
    let run = Run { seed: SEED, ..Run::default() };
    let table = by_name("radix").unwrap().build(columns, &run).unwrap();
    table.sum(columns, &run).unwrap().pairs == 40_000
}

/// Whether threads that read back lose nothing. Half of the rows have one key, whose pair is kept for the end.
fn threads_are_well((build, probe): &(Side, Side)) -> bool {
    let spec = spec(build, probe, JoinKind::Full);
    let run = Run { seed: SEED, ..Run::with_threads(2) };
    let options = JoinOptions { run, batch_rows_max: 1000, ..seeded(MemoryPool::new(4 << 20)) };
    actual(build, probe, &spec, options).is_ok_and(|(rows, _)| rows == expected(build, probe, &spec))
}

fn wide_sides() -> (Side, Side) {
    let keys = |rows: u64| (0..rows).map(|row| Some(if row % 2 == 0 { 7 } else { mix(row) % 9000 })).collect();
    (Side::new(keys(7900), KeyType::Int64, 1000, 500), Side::new(keys(40), KeyType::Int64, 100, 40))
}

/// Whether all joins answer as the oracle does. Errors and panics count as noticed defects.
fn all_is_well(sides: &[(Side, Side)], wide: &(Side, Side)) -> bool {
    let check = |build: &Side, probe: &Side, kind, with_residual: bool, algorithm: &str| {
        let mut spec = spec(build, probe, kind);
        spec.residual = with_residual.then(|| residual(build, probe));
        let options =
            JoinOptions { algorithm: by_name(algorithm), batch_rows_max: 100, ..seeded(MemoryPool::new(1 << 20)) };
        catch_unwind(std::panic::AssertUnwindSafe(|| actual(build, probe, &spec, options)))
            .is_ok_and(|answer| answer.is_ok_and(|(rows, _)| rows == expected(build, probe, &spec)))
    };
    radix_is_well()
        && threads_are_well(wide)
        && sides.iter().all(|(build, probe)| {
            let kinds = [JoinKind::Full, JoinKind::LeftSemi, JoinKind::RightAnti, JoinKind::LeftMark];
            kinds.into_iter().all(|kind| {
                check(build, probe, kind, false, "no_partition")
                    && check(build, probe, kind, true, "no_partition")
                    && check(build, probe, kind, false, "radix")
            })
        })
}

#[test]
fn every_defect_is_noticed() {
    let (sides, wide) = (sides(), wide_sides());
    assert!(all_is_well(&sides, &wide), "sound before any mistake");
    plant(Some(Defect::WeakCodes));
    assert!(all_is_well(&sides, &wide), "keys that collide are told apart");
    let missed: Vec<Defect> = Defect::OF_JOINS
        .into_iter()
        .filter(|&defect| {
            plant(Some(defect));
            all_is_well(&sides, &wide)
        })
        .collect();
    plant(None);
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}
