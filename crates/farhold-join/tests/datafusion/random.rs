//! Random tables, queries, budgets and settings.

use proptest::prelude::*;

use super::bed::{Bed, MIB, Table, config, keys, on_runtime, plain, rows};
use super::queries::{CONDITIONS, KEYS, KINDS, query};

#[derive(Debug, Clone)]
struct Case {
    seed: u64,
    rows: [u64; 2],
    distinct: u64,
    nulls: u64,
    skew: bool,
    text_bytes: usize,
    table_partitions: [usize; 2],
    threads: usize,
    budget_mib: Option<u64>,
    kind: usize,
    on: usize,
    condition: usize,
    partitioning: usize,
    algorithm: usize,
}

fn cases() -> impl Strategy<Value = Case> {
    let tables =
        (any::<u64>(), [0..1500_u64, 0..1500], 1..2000_u64, 0..20_u64, any::<bool>(), 1..300_usize, [1..5_usize, 1..5]);
    let means = (1..9_usize, prop::option::weighted(0.8, 1..12_u64), 0..4_usize, 0..4_usize);
    let ask = (0..KINDS.len(), 0..KEYS.len(), 0..CONDITIONS.len());
    (tables, means, ask).prop_map(
        |(
            (seed, rows, distinct, nulls, skew, text_bytes, table_partitions),
            (threads, budget_mib, partitioning, algorithm),
            (kind, on, condition),
        )| Case {
            seed,
            rows,
            distinct,
            nulls,
            skew,
            text_bytes,
            table_partitions,
            threads,
            budget_mib,
            kind,
            on,
            condition,
            partitioning,
            algorithm,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_query_gives_the_rows_of_plain_datafusion(case in cases()) {
        let side = |number: usize, name| {
            // At most about 40 rows a key, so that pairs stay few.
            let distinct = case.distinct.max(case.rows[number] / 40).max(1);
            let key = |random: u64| {
                let uniform = random % distinct;
                if case.skew { uniform * uniform / distinct } else { uniform }
            };
            let keys = keys(case.rows[number], case.seed ^ number as u64, case.nulls, key);
            Table { name, keys, text_bytes: case.text_bytes, partitions: case.table_partitions[number] }
        };
        let tables = [side(0, "l"), side(1, "r")];
        let query = query(KINDS[case.kind].1, KEYS[case.on], CONDITIONS[case.condition]);
        let config = config(
            ["auto", "shared", "partitioned", "single"][case.partitioning],
            ["auto", "nested_loop", "no_partition", "radix"][case.algorithm],
        );
        on_runtime(async {
            let expected = rows(&plain(&tables, case.threads), &query).await.unwrap();
            let bed = Bed::new(&tables, case.threads, case.budget_mib.map(|mib| mib * MIB), config);
            match bed.rows(&query).await {
                Ok(answer) => assert!(answer == expected, "{query}"),
                // The least memory of a requested division may exceed 1 MiB. Without a request a division always fits.
                Err(error) => assert!(
                    case.partitioning > 0 && error.to_string().contains("a join needs at least"),
                    "{query}: {error}"
                ),
            }
            bed.assert_clean();
        });
    }
}
