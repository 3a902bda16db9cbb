//! Random sides, kinds, budgets and options against the oracle.

use farhold_join::algorithm::available;
use farhold_join::{JoinKind, JoinOptions, MemoryPool, Run};
use proptest::prelude::*;

use super::oracle::{KeyType, Side, actual, expected, mix, residual, spec};

#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    rows: [usize; 2],
    keys: u64,
    key_type: usize,
    kind: usize,
    algorithm: Option<usize>,
    null_equals_null: bool,
    residual: bool,
    text_bytes: usize,
    batch_rows: usize,
    budget_kib: u64,
    threads: usize,
    shares: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let sides = (any::<u64>(), [0..2500_usize, 0..2500], 1..3000_u64, 0..KeyType::ALL.len());
    let ask = (0..JoinKind::ALL.len(), prop::option::of(0..available().count()), any::<bool>(), any::<bool>());
    let means = (1..400_usize, 1..600_usize, 2048..6000_u64, 1..3_usize, 1..5_usize);
    (sides, ask, means).prop_map(
        |(
            (seed, rows, keys, key_type),
            (kind, algorithm, null_equals_null, residual),
            (text_bytes, batch_rows, budget_kib, threads, shares),
        )| {
            Case {
                seed,
                rows,
                keys,
                key_type,
                kind,
                algorithm,
                null_equals_null,
                residual,
                text_bytes,
                batch_rows,
                budget_kib,
                threads,
                shares,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_join_answers_as_the_oracle(case in cases()) {
        let side = |number: usize| {
            // Squares of uniform numbers: some keys are frequent, and one in a dozen is null. A key has at most about
            // 40 rows on average.
            let keys = case.keys.max((case.rows[number] / 40) as u64).max(1);
            let key = |row: u64| {
                let random = mix(row ^ case.seed ^ (number as u64) << 50);
                let uniform = random % keys;
                (!random.is_multiple_of(12)).then_some(uniform * uniform / keys)
            };
            Side::new((0..case.rows[number] as u64).map(key).collect(), KeyType::ALL[case.key_type], case.text_bytes, case.batch_rows)
        };
        let (build, probe) = (side(0), side(1));
        let mut spec = spec(&build, &probe, JoinKind::ALL[case.kind]);
        spec.null_equals_null = case.null_equals_null;
        spec.residual = case.residual.then(|| residual(&build, &probe));
        let options = JoinOptions {
            algorithm: case.algorithm.and_then(|algorithm| available().nth(algorithm)),
            run: Run { seed: case.seed, ..Run::with_threads(case.threads) },
            shares: case.shares,
            ..JoinOptions::new(MemoryPool::new(case.budget_kib << 10))
        };
        let pool = options.pool.clone();
        let (rows, _) = actual(&build, &probe, &spec, options).unwrap();
        prop_assert!(rows == expected(&build, &probe, &spec));
        prop_assert_eq!(pool.used(), 0);
    }
}
