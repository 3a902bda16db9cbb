//! The drivers on the emulated device, against a plain nested look-up on the host.

use std::collections::HashMap;

use super::*;

struct Data {
    keys: Vec<u64>,
    payloads: Vec<u64>,
}

impl Data {
    fn new(keys: Vec<u64>, words: usize, salt: u64) -> Self {
        let payloads = (0..keys.len() * words).map(|i| (i as u64 + 1) * 1_000_003 + salt).collect();
        Self { keys, payloads }
    }
    fn relation(&self) -> Relation<'_> {
        Relation { keys: &self.keys, payloads: &self.payloads, is_pinned: false }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state ^ *state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 7
}

/// Sum and sorted rows, by a table on the host.
fn oracle(build: &Data, probe: &Data, words: usize) -> (Sum, Vec<Vec<u64>>) {
    let payload = |data: &Data, row: usize| -> Vec<u64> {
        (0..words).map(|word| data.payloads[word * data.keys.len() + row]).collect()
    };
    let mut table: HashMap<u64, Vec<usize>> = HashMap::new();
    build.keys.iter().enumerate().for_each(|(row, &key)| table.entry(key).or_default().push(row));
    let (mut sum, mut rows) = (Sum::default(), Vec::new());
    for (row, key) in probe.keys.iter().enumerate() {
        for &found in table.get(key).into_iter().flatten() {
            let (b, p) = (payload(build, found), payload(probe, row));
            sum.add(b.iter().fold(0, |a, w| a.wrapping_add(*w)), p.iter().fold(0, |a, w| a.wrapping_add(*w)));
            rows.push([b, p].concat());
        }
    }
    rows.sort_unstable();
    (sum, rows)
}

/// Small sizes, so that a few thousand tuples take every path: many chunks, many pages, several pieces.
fn small() -> GpuOptions {
    GpuOptions {
        tuning: Tuning {
            chunk_tuples: 700,
            page_shift: 6,
            piece_tuples_max: 600,
            threads: 64,
            table_tuples: 48,
            probe_tuples_max: 100,
            result_rows_max: 700,
        },
        ..GpuOptions::default()
    }
}

type Driver = fn(&dyn Device, Relation<'_>, Relation<'_>, GpuOptions) -> Result<GpuAnswer, GpuError>;

#[track_caller]
fn check(driver: Driver, build: &Data, probe: &Data, words: usize, options: GpuOptions, seed: u64) -> GpuAnswer {
    let device = Emulation::new(64 << 20, seed);
    let (sum, rows) = oracle(build, probe, words);
    let answer = driver(&device, build.relation(), probe.relation(), options).unwrap();
    assert_eq!(answer.sum, sum, "{options:?} seed {seed}");
    if options.materialize {
        let mut found: Vec<Vec<u64>> = answer.rows.chunks(2 * words).map(<[u64]>::to_vec).collect();
        found.sort_unstable();
        assert!(found == rows, "{options:?} seed {seed}: the rows differ");
    }
    assert_eq!(device.live_allocations(), 0, "memory is left behind");
    answer
}

fn foreign_keys(build: u64, probe: u64, seed: u64) -> (Vec<u64>, Vec<u64>) {
    let mut state = seed;
    let mut keys: Vec<u64> = (1000..1000 + build).collect();
    (1..keys.len()).rev().for_each(|i| keys.swap(i, random(&mut state) as usize % (i + 1)));
    (keys, (0..probe).map(|_| 990 + random(&mut state) % (build + 20)).collect())
}

#[test]
fn every_partitioner_scheme_and_source_of_counts() {
    let (build, probe) = foreign_keys(1500, 2500, 3);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let schemes = [Scheme::Chaining, Scheme::Linear, Scheme::Perfect { key_min: 1000, key_max: 2499 }];
    let mut seed = 0;
    for partitioner in Partitioner::ALL {
        for scheme in schemes {
            for histogram in [Histogram::Device, Histogram::Host] {
                seed += 1;
                let materialize = seed % 2 == 0;
                let options = GpuOptions { partitioner, histogram, scheme, materialize, ..small() };
                check(triton, &build, &probe, 1, options, seed);
            }
        }
    }
    for scheme in schemes {
        for materialize in [false, true] {
            check(no_partition, &build, &probe, 1, GpuOptions { scheme, materialize, ..small() }, 5);
            check(cpu_partitioned, &build, &probe, 1, GpuOptions { scheme, materialize, ..small() }, 6);
        }
    }
}

#[test]
fn every_cache_size_gives_the_same_rows() {
    let (build, probe) = foreign_keys(1200, 1800, 8);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    for (pages, seed) in [0, 1, 7, 20, 1000].into_iter().zip(1..) {
        let options = GpuOptions { cache_bytes_max: Some(pages * 1024), materialize: true, ..small() };
        let answer = check(triton, &build, &probe, 1, options, seed);
        assert_eq!(answer.pages_cached == 0, pages == 0 || pages == 1, "{answer:?}");
        assert_eq!(answer.pages_spilled == 0, pages == 1000);
    }
}

#[test]
fn wide_tuples_and_row_numbers() {
    let (build, probe) = foreign_keys(900, 1100, 4);
    for words in [3, 7] {
        let (build, probe) = (Data::new(build.clone(), words, 0), Data::new(probe.clone(), words, 9));
        for driver in [triton as Driver, cpu_partitioned, no_partition] {
            check(driver, &build, &probe, words, GpuOptions { materialize: true, ..small() }, words as u64);
        }
    }
    let numbers = |keys: &[u64]| Data { keys: keys.to_vec(), payloads: (0..keys.len() as u64).collect() };
    let (sum, _) = oracle(&numbers(&build), &numbers(&probe), 1);
    let relation = |keys| Relation { keys, payloads: &[], is_pinned: false };
    for driver in [triton as Driver, cpu_partitioned, no_partition] {
        assert_eq!(driver(&Emulation::new(64 << 20, 1), relation(&build), relation(&probe), small()).unwrap().sum, sum);
    }
}

#[test]
fn kernels_read_pinned_input_in_place() {
    let (build, probe) = foreign_keys(1000, 1500, 4);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let pinned = |data| Relation { is_pinned: true, ..Data::relation(data) };
    let sum = oracle(&build, &probe, 1).0;
    for feed in [Feed::Kernels, Feed::CopyEngine] {
        for driver in [triton as Driver, no_partition] {
            let device = Emulation::new(64 << 20, 9);
            assert_eq!(
                driver(&device, pinned(&build), pinned(&probe), GpuOptions { feed, ..small() }).unwrap().sum,
                sum
            );
        }
    }
}

#[test]
fn skew_repeated_keys_and_the_largest_key() {
    let mut state = 5;
    // A third of both sides has one key: one pair of partitions is larger than every workspace, and its rows too.
    let mut keys = |count: u64, one_in: u64| -> Vec<u64> {
        (0..count).map(|i| if i % one_in == 0 { u64::MAX } else { random(&mut state) % 100 }).collect()
    };
    let (build, probe) = (Data::new(keys(240, 3), 1, 0), Data::new(keys(300, 3), 1, 5));
    let tuning = Tuning { piece_tuples_max: 100, ..small().tuning };
    let small = || GpuOptions { tuning, ..small() };
    for scheme in [Scheme::Chaining, Scheme::Linear] {
        let answer = check(triton, &build, &probe, 1, GpuOptions { scheme, materialize: true, ..small() }, 2);
        assert!(answer.pieces_halved > 0, "the rows of a piece have had no room");
        check(triton, &build, &probe, 1, GpuOptions { scheme, ..small() }, 3);
        check(no_partition, &build, &probe, 1, GpuOptions { scheme, ..small() }, 3);
    }
}

#[test]
fn tiny_and_empty_inputs() {
    for (build, probe) in [(0, 5), (5, 0), (1, 1), (1, 700), (33, 1)] {
        let (build, probe) = foreign_keys(build, probe, 1);
        let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
        for driver in [triton as Driver, cpu_partitioned, no_partition] {
            check(driver, &build, &probe, 1, GpuOptions { materialize: true, ..small() }, 1);
        }
    }
}

#[test]
fn perfect_hashing_refuses_what_it_cannot_hold() {
    let scheme = Scheme::Perfect { key_min: 10, key_max: 500 };
    let probe = Data::new((0..600).collect(), 1, 0);
    for bad in [vec![10, 11, 11], vec![10, 9], vec![5000]] {
        let build = Data::new(bad, 1, 0);
        for driver in [triton as Driver, cpu_partitioned, no_partition] {
            let device = Emulation::new(64 << 20, 1);
            let all = driver(&device, build.relation(), probe.relation(), GpuOptions { scheme, ..small() });
            assert_eq!(all, Err(GpuError::NotPerfect), "{:?}", build.keys);
        }
    }
}

#[test]
fn different_widths_are_refused() {
    let data = Data::new(vec![1, 2], 1, 0);
    let wide = Data::new(vec![1, 2], 3, 0);
    let odd = Data { keys: vec![1, 2], payloads: vec![1, 2, 3] };
    let device = Emulation::new(64 << 20, 1);
    for other in [&wide, &odd] {
        assert!(matches!(triton(&device, data.relation(), other.relation(), small()), Err(GpuError::Invalid(_))));
    }
}

/// A device that fails, at whichever call, leaves a typed error, no memory and no work behind; it never gives a wrong answer.
#[test]
fn a_failure_at_any_call_is_a_typed_error() {
    let (build, probe) = foreign_keys(150, 200, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    let options = GpuOptions { materialize: true, cache_bytes_max: Some(3 << 10), ..small() };
    for driver in [triton as Driver, cpu_partitioned, no_partition] {
        let whole = Emulation::new(64 << 20, 1);
        driver(&whole, build.relation(), probe.relation(), options).unwrap();
        let calls = whole.calls();
        assert!(calls > 30, "{calls}");
        // Every call near the ends, every third in between.
        for call in (0..calls).filter(|call| *call < 40 || *call + 20 > calls || call % 3 == 0) {
            let device = Emulation::new(64 << 20, 1).failing_at(call);
            let answer = driver(&device, build.relation(), probe.relation(), options);
            assert!(matches!(answer, Err(GpuError::Failed { .. })), "call {call} of {calls}: {answer:?}");
            assert_eq!(device.live_allocations(), 0, "call {call}");
        }
        let past = Emulation::new(64 << 20, 1).failing_at(calls);
        assert_eq!(driver(&past, build.relation(), probe.relation(), options).unwrap().sum, sum);
    }
}

#[test]
fn a_device_that_is_too_small_says_so_and_any_other_size_is_right() {
    let (build, probe) = foreign_keys(2000, 3000, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    let (mut right, mut refused) = (0, 0);
    for kib in [16, 200, 800, 1600, 3000, 6000, 20_000] {
        let device = Emulation::new(kib << 10, kib);
        match triton(&device, build.relation(), probe.relation(), small()) {
            Ok(answer) => {
                assert_eq!(answer.sum, sum);
                right += 1;
            }
            Err(GpuError::OutOfMemory { wanted_bytes, free_bytes }) => {
                assert!(wanted_bytes > free_bytes, "{wanted_bytes} {free_bytes}");
                refused += 1;
            }
            Err(other) => panic!("{kib} KiB: {other}"),
        }
        assert_eq!(device.live_allocations(), 0);
    }
    assert!(right >= 2 && refused >= 2, "{right} {refused}");
}

/// Streams really run in any order: a device that ignores events gives wrong answers, so a forgotten event is seen.
#[test]
fn ignored_events_are_seen() {
    let (build, probe) = foreign_keys(3000, 3000, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    // The join without partitioning: what it reads too early is data, never an address.
    let wrong =
        |device: &Emulation| no_partition(device, build.relation(), probe.relation(), small()).unwrap().sum != sum;
    assert!((0..8).any(|seed| wrong(&Emulation::new(64 << 20, seed).ignoring_events())));
    assert!(!(0..8).any(|seed| wrong(&Emulation::new(64 << 20, seed))));
}

#[test]
fn an_emulation_says_that_it_is_one() {
    assert!(Emulation::new(1, 1).properties().unwrap().name.contains("emulation"));
}
