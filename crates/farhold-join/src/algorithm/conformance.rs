//! One suite over every algorithm: each must give the answers of the nested loop.

use super::{ALL, Algorithm, Columns, Cursor, Matches, Pairs, Shape, Sum, Table};
use crate::gpu::Driver;
use crate::{JoinError, Run, hash};

/// Fixed, so that a failure can be repeated.
const SEED: u64 = 0x0fed_cba9_8765_4321;

fn run(threads: usize) -> Run {
    Run { seed: SEED, ..Run::with_threads(threads) }
}

/// Build and probe keys. Payloads are made of row numbers.
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

/// The number whose product with an odd number is 1. Each of Newton's steps doubles the correct bits.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse))))
}

/// The key that has this hash under [`SEED`], as an attacker with the seed would compute it.
fn key_of_hash(wanted: u64) -> u64 {
    let folded = wanted.wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    (folded ^ folded >> 32).wrapping_mul(inverse(0x9e37_79b9_7f4a_7c15)) ^ SEED
}

/// The key with this digest in the GPU's kernels (`mix` in `kernels/tuple.cuh`), which uses no seed.
fn key_of_digest(wanted: u64) -> u64 {
    let multiplier = inverse(0xd6e8_feb8_6659_fd93);
    let key = (wanted ^ wanted >> 32).wrapping_mul(multiplier);
    let key = (key ^ key >> 32).wrapping_mul(multiplier);
    key ^ key >> 32
}

/// Different keys, in an order of their own, whose hashes have the top 48 bits in common. They share one partition at
/// any fan-out, one slot of any table, and one pattern of filter bits.
fn keys_of_one_slot(rows: u64, first: u64) -> Vec<u64> {
    (first..first + rows).map(|n| key_of_hash(0xbad0_bad1_bad2 << 16 | n.wrapping_mul(40_503) & 0xffff)).collect()
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
        case("one slot under the known seed", keys_of_one_slot(1200, 0), keys_of_one_slot(1200, 600)),
        case(
            "one partition of the GPU",
            (0..700).map(|n| key_of_digest(n << 40 | 0xbad)).collect(),
            (300..1000).map(|n| key_of_digest(n << 40 | 0xbad)).collect(),
        ),
        case(
            "one bucket of the GPU",
            (0..700).map(|n| key_of_digest(0xbad << 40 | n)).collect(),
            (300..1000).map(|n| key_of_digest(0xbad << 40 | n)).collect(),
        ),
        case("low bits equal", keys(2000, 13, |r| (r % 700) << 48), keys(2000, 14, |r| (r % 700) << 48)),
        case("high bits equal", keys(2000, 15, |r| r % 100_000), keys(2000, 16, |r| r % 100_000)),
    ]
}

/// Row numbers below, and a number in the bits above them.
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

/// `above` is the number that payloads have above row numbers, on either side: where it is 0, algorithms may use
/// smaller tuples.
fn check(algorithm: &dyn Algorithm, case: &Case, threads: usize, limits: &[usize], above: [u64; 2]) {
    let run = run(threads);
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
        // The emulation takes a hundred times as long, and asks the device for pairs in its own portions, not the
        // caller's.
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

/// There are keys enough for several partitions. The chosen keys all lie in one partition and there in one slot.
#[test]
fn keys_chosen_against_a_known_seed_are_joined_as_the_nested_loop_joins_them() {
    let chosen = keys_of_one_slot(1500, 0);
    let mut slots: Vec<usize> = chosen.iter().map(|&key| hash::top(hash::hash(key, SEED), 48)).collect();
    slots.dedup();
    assert_eq!(slots, [0xbad0_bad1_bad2], "the inverse of the hash is another one");
    let case = Case {
        name: "chosen keys among others".into(),
        build: [chosen, keys(40_000, 21, |r| r)].concat(),
        probe: [keys_of_one_slot(1500, 750), keys(300, 22, |r| r), keys(300, 21, |r| r)].concat(),
    };
    let is_gpu = |name: &str| Driver::ALL.iter().any(|driver| driver.name() == name);
    for algorithm in super::available().filter(|algorithm| !is_gpu(algorithm.name())) {
        for threads in [1, 3] {
            check(algorithm, &case, threads, &[1000], [1, 2]);
        }
    }
}

/// More tuples than the nested loop has time for: many partitions, hot partitions that several workers probe, and
/// several chunks for each worker.
#[test]
fn algorithms_agree_about_many_rows() {
    let (build_rows, probe_rows) = (150_000, 300_000);
    // Some 75 000 probe rows have one of three keys.
    let hot = |r: u64, domain: u64| if r.is_multiple_of(4) { r / 4 % 3 } else { r % domain };
    let case = |name: &str, build: Vec<u64>, probe: Vec<u64>| Case { name: name.into(), build, probe };
    let rows = build_rows as u64;
    let cases = [
        case("dense", (0..rows).rev().collect(), keys(probe_rows, 31, |r| hot(r, rows + 99))),
        case("sparse", (0..rows).map(mix).collect(), keys(probe_rows, 32, |r| mix(hot(r, rows + 99)))),
        case("duplicates", keys(build_rows, 33, |r| mix(r % (rows / 2))), keys(probe_rows, 34, |r| mix(hot(r, rows)))),
        case("dense duplicates", keys(build_rows, 35, |r| r % (rows / 2)), keys(probe_rows, 36, |r| r % (rows / 2))),
        case(
            "one slot under the known seed",
            [keys_of_one_slot(9000, 0), keys(build_rows, 37, |r| r)].concat(),
            [keys_of_one_slot(9000, 4500), keys(probe_rows, 37, |r| r)].concat(),
        ),
    ];
    for case in cases {
        for (threads, above) in [(1, [0, 0]), (3, [0, 0]), (4, [0, 2]), (4, [1, 0])] {
            let run = run(threads);
            let ids = [payloads(case.build.len(), above[0]), payloads(case.probe.len(), above[1])];
            let build = Columns::new(&case.build, &ids[0]).unwrap();
            let probe = Columns::new(&case.probe, &ids[1]).unwrap();
            let [one, other] = ["no_partition", "radix"].map(|name| {
                let table = super::by_name(name).unwrap().build(build, &run).unwrap();
                let pairs = every_pair(&*table, probe, Matches::All, 10_000, &run);
                (table.sum(probe, &run).unwrap(), pairs, every_pair(&*table, probe, Matches::First, 777, &run).len())
            });
            let sum = other.1.iter().fold(Sum::default(), |mut sum, pair| {
                sum.add(pair.0, pair.1);
                sum
            });
            assert!(one == other && sum == other.0, "{} on {threads} threads, payloads {above:?}", case.name);
        }
    }
}

#[test]
fn any_word_is_a_payload() {
    let keys: Vec<u64> = (0..500).collect();
    let run = run(2);
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
        let run = run(2);
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
