//! One suite over every algorithm: each must answer what the nested loop answers.

use super::{ALL, Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table};
use crate::gpu::Driver;
use crate::{JoinError, Run};

/// Build and probe keys; payloads are made of row numbers.
struct Case {
    name: String,
    build: Vec<u64>,
    probe: Vec<u64>,
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn keys(rows: usize, seed: u64, key: impl Fn(u64) -> u64) -> Vec<u64> {
    (0..rows as u64).map(|row| key(mix(row ^ seed << 32))).collect()
}

/// A key's rank follows 1 / rank: Zipf with exponent 1 over `domain` keys.
fn zipf(random: u64, domain: u64) -> u64 {
    let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
    ((domain as f64).powf(uniform) - 1.0) as u64
}

fn cases() -> Vec<Case> {
    let case = |name: &str, build: Vec<u64>, probe: Vec<u64>| Case { name: name.into(), build, probe };
    let shuffled = |rows: u64| {
        let mut all: Vec<u64> = (0..rows).collect();
        all.sort_by_key(|&key| mix(key));
        all
    };
    vec![
        case("both empty", vec![], vec![]),
        case("build empty", vec![], vec![1, 2, 3]),
        case("probe empty", vec![1, 2, 3], vec![]),
        case("one row", vec![7], vec![7]),
        case("extreme keys", vec![0, u64::MAX, 1, u64::MAX - 1], vec![u64::MAX, 0, 5, u64::MAX]),
        case("no key in common", keys(900, 1, |r| r << 1), keys(900, 2, |r| r << 1 | 1)),
        case("dense foreign keys", shuffled(3000), keys(4000, 3, |r| r % 3000)),
        case(
            "dense but far from zero",
            shuffled(2000).iter().map(|k| k + (1 << 60)).collect(),
            keys(2000, 4, |r| r % 4000 + (1 << 60)),
        ),
        case("dense with duplicates", keys(3000, 5, |r| r % 1500), keys(1000, 6, |r| r % 2000)),
        case(
            "dense with holes",
            shuffled(3000).iter().filter(|&&k| k % 7 > 0).copied().collect(),
            keys(3000, 7, |r| r % 3100),
        ),
        case("sparse foreign keys", shuffled(3000).iter().map(|&k| mix(k)).collect(), keys(4000, 8, |r| mix(r % 3500))),
        case("one key", vec![42; 600], vec![42; 500]),
        case(
            "one key among others",
            keys(3000, 9, |r| if r % 2 == 0 { 42 } else { r }),
            keys(300, 10, |r| if r % 3 == 0 { 42 } else { r }),
        ),
        case("zipf", keys(1500, 11, |r| zipf(r, 1000)), keys(1500, 12, |r| zipf(r, 1000))),
        case("low bits equal", keys(2000, 13, |r| (r % 700) << 48), keys(2000, 14, |r| (r % 700) << 48)),
        case("high bits equal", keys(2000, 15, |r| r % 100_000), keys(2000, 16, |r| r % 100_000)),
    ]
}

/// Row numbers, and a number above them.
fn payloads(rows: usize, above: u64) -> Vec<u64> {
    (0..rows as u64).map(|row| above << 60 | row).collect()
}

fn every_pair(table: &dyn Table, probe: Columns<'_>, matches: Matches, limit: usize, run: &Run) -> Vec<(u64, u64)> {
    let (mut cursor, mut pairs, mut all) = (Cursor::default(), Pairs::with_limit(limit), Vec::new());
    while !cursor.is_done {
        pairs.clear();
        table.pairs(probe, matches, &mut cursor, &mut pairs, run).expect("pairs");
        assert!(pairs.len() <= limit, "a call keeps to its limit");
        assert!(cursor.is_done || !pairs.is_empty(), "a call that is not the last finds something");
        all.extend(pairs.build.iter().copied().zip(pairs.probe.iter().copied()));
    }
    all.sort_unstable();
    all
}

/// `above` is what payloads have above row numbers, on either side: algorithms may have smaller tuples where there is nothing.
fn check(algorithm: &dyn Algorithm, case: &Case, threads: usize, limits: &[usize], above: [u64; 2]) {
    let run = Run::with_threads(threads);
    let (build_ids, probe_ids) = (payloads(case.build.len(), above[0]), payloads(case.probe.len(), above[1]));
    let build = Columns::new(&case.build, &build_ids).unwrap();
    let probe = Columns::new(&case.probe, &probe_ids).unwrap();
    let oracle = ALL[0].build(build, &run).unwrap();
    let table = algorithm.build(build, &run).unwrap();
    let context = format!("{} on {threads} threads, payloads {above:?}: {}", algorithm.name(), case.name);
    let shape = Shape { build_rows: build.len(), probe_rows: probe.len(), threads };
    assert!(table.memory_bytes() <= algorithm.memory_bytes(shape), "{context}: memory");

    assert_eq!(table.sum(probe, &run).unwrap(), oracle.sum(probe, &run).unwrap(), "{context}: sum");
    let expected = every_pair(&*oracle, probe, Matches::All, 1 << 20, &run);
    for &limit in limits {
        assert!(every_pair(&*table, probe, Matches::All, limit, &run) == expected, "{context}: pairs, {limit} a call");
    }

    let first = every_pair(&*table, probe, Matches::First, 777, &run);
    let mut matched: Vec<u64> = expected.iter().map(|pair| pair.1).collect();
    matched.sort_unstable();
    matched.dedup();
    let mut first_matched: Vec<u64> = first.iter().map(|pair| pair.1).collect();
    first_matched.sort_unstable();
    assert_eq!(first_matched, matched, "{context}: each matched probe row once");
    assert!(first.iter().all(|pair| expected.binary_search(pair).is_ok()), "{context}: first are pairs");
    let mut representative = std::collections::HashMap::new();
    for &(build, probe) in &first {
        let key = case.probe[(probe & u64::from(u32::MAX)) as usize];
        assert_eq!(*representative.entry(key).or_insert(build), build, "{context}: one representative a key");
    }
}

#[test]
fn every_algorithm_answers_as_the_nested_loop() {
    for algorithm in super::available() {
        // What is emulated takes a hundred times as long, and asks the device for pairs by its own measure, not the caller's.
        let is_gpu = Driver::ALL.iter().any(|driver| driver.name() == algorithm.name());
        let (threads, limits) =
            if is_gpu { ([2].as_slice(), [7].as_slice()) } else { ([1, 3].as_slice(), [1 << 20, 1000, 7].as_slice()) };
        for case in cases() {
            for &threads in threads {
                check(algorithm, &case, threads, limits, [1, 2]);
            }
            let widths = if is_gpu { [].as_slice() } else { [[0, 0], [0, 2], [1, 0]].as_slice() };
            for &above in widths {
                check(algorithm, &case, 2, &[1000, 7], above);
            }
        }
    }
}

#[test]
fn any_word_is_a_payload() {
    let keys: Vec<u64> = (0..500).collect();
    let run = Run::with_threads(2);
    for word in [u64::from(u32::MAX) - 1, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
        let mut payloads = keys.clone();
        payloads[77] = word;
        let columns = Columns::new(&keys, &payloads).unwrap();
        let expected: Vec<(u64, u64)> = payloads.iter().map(|&payload| (payload, payload)).collect();
        for algorithm in super::available() {
            let table = algorithm.build(columns, &run).unwrap();
            let mut pairs = every_pair(&*table, columns, Matches::All, 100, &run);
            pairs.sort_unstable_by_key(|pair| keys[payloads.iter().position(|payload| *payload == pair.0).unwrap()]);
            assert!(pairs == expected, "{}: {word}", algorithm.name());
            let sum = expected.iter().fold(0_u64, |sum, pair| sum.wrapping_add(pair.0));
            assert_eq!(
                table.sum(columns, &run).unwrap(),
                Sum { pairs: 500, build: sum, probe: sum },
                "{}",
                algorithm.name()
            );
        }
    }
}

#[test]
fn a_raised_token_ends_every_algorithm() {
    let (keys, ids) = (vec![1; 100_000], vec![0; 100_000]);
    let columns = Columns::new(&keys, &ids).unwrap();
    for algorithm in super::available() {
        let run = Run::with_threads(2);
        let table = algorithm.build(columns, &run).unwrap();
        run.cancel.cancel();
        assert!(matches!(algorithm.build(columns, &run), Err(JoinError::Cancelled)), "{}: build", algorithm.name());
        assert!(matches!(table.sum(columns, &run), Err(JoinError::Cancelled)), "{}: sum", algorithm.name());
        let mut pairs = Pairs::with_limit(10);
        let answer = table.pairs(columns, Matches::All, &mut Cursor::default(), &mut pairs, &run);
        assert!(matches!(answer, Err(JoinError::Cancelled)), "{}: pairs", algorithm.name());
    }
}

#[test]
fn names_are_unique() {
    for algorithm in ALL {
        assert_eq!(super::by_name(algorithm.name()).unwrap().name(), algorithm.name());
        assert_eq!(ALL.iter().filter(|other| other.name() == algorithm.name()).count(), 1);
    }
}

#[test]
fn columns_of_different_lengths_are_refused() {
    assert!(matches!(Columns::new(&[1, 2], &[1]), Err(JoinError::Invalid(_))));
}

#[test]
fn sums_wrap() {
    let sum: Sum =
        [Sum { pairs: 1, build: u64::MAX, probe: 2 }, Sum { pairs: 2, build: 2, probe: u64::MAX }].into_iter().sum();
    assert_eq!(sum, Sum { pairs: 3, build: 1, probe: 1 });
}
