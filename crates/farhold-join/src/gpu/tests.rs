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
            rows_host_max: 200,
        },
        ..GpuOptions::default()
    }
}

/// The device as the drivers take it, and as the test reads it.
fn shared(device: Emulation) -> (Arc<dyn Device>, Arc<Emulation>) {
    let device = Arc::new(device);
    (device.clone(), device)
}

fn join(
    driver: Driver,
    device: Emulation,
    build: Relation<'_>,
    probe: Relation<'_>,
    options: GpuOptions,
) -> Result<GpuAnswer, GpuError> {
    let (device, seen) = shared(device);
    let answer = driver.join(&device, build, probe, options, &Run::with_threads(2));
    assert_eq!(seen.live_allocations(), 0, "memory is left behind");
    answer
}

#[track_caller]
fn check(driver: Driver, build: &Data, probe: &Data, words: usize, options: GpuOptions, seed: u64) -> GpuAnswer {
    let device = Emulation::new(64 << 20, seed);
    let (sum, rows) = oracle(build, probe, words);
    let answer = join(driver, device, build.relation(), probe.relation(), options).unwrap();
    assert_eq!(answer.sum, sum, "{options:?} seed {seed}");
    if options.materialize {
        let mut found: Vec<Vec<u64>> = answer.rows.chunks(2 * words).map(<[u64]>::to_vec).collect();
        found.sort_unstable();
        assert!(found == rows, "{options:?} seed {seed}: the rows differ");
    }
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
                check(Driver::Triton, &build, &probe, 1, options, seed);
            }
        }
    }
    for scheme in schemes {
        for materialize in [false, true] {
            check(Driver::NoPartition, &build, &probe, 1, GpuOptions { scheme, materialize, ..small() }, 5);
            check(Driver::CpuPartitioned, &build, &probe, 1, GpuOptions { scheme, materialize, ..small() }, 6);
        }
    }
}

#[test]
fn every_cache_size_gives_the_same_rows() {
    let (build, probe) = foreign_keys(1200, 1800, 8);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    for (pages, seed) in [0, 1, 7, 20, 1000].into_iter().zip(1..) {
        let options = GpuOptions { cache_bytes_max: Some(pages * 1024), materialize: true, ..small() };
        let answer = check(Driver::Triton, &build, &probe, 1, options, seed);
        assert_eq!(answer.pages_cached == 0, pages == 0 || pages == 1, "{answer:?}");
        assert_eq!(answer.pages_spilled == 0, pages == 1000);
    }
}

#[test]
fn wide_tuples_and_row_numbers() {
    let (build, probe) = foreign_keys(900, 1100, 4);
    for words in [3, 7] {
        let (build, probe) = (Data::new(build.clone(), words, 0), Data::new(probe.clone(), words, 9));
        for driver in Driver::ALL {
            check(driver, &build, &probe, words, GpuOptions { materialize: true, ..small() }, words as u64);
        }
    }
    let numbers = |keys: &[u64]| Data { keys: keys.to_vec(), payloads: (0..keys.len() as u64).collect() };
    let (sum, _) = oracle(&numbers(&build), &numbers(&probe), 1);
    let relation = |keys| Relation { keys, payloads: &[], is_pinned: false };
    for driver in Driver::ALL {
        assert_eq!(
            join(driver, Emulation::new(64 << 20, 1), relation(&build), relation(&probe), small()).unwrap().sum,
            sum
        );
    }
}

#[test]
fn kernels_read_pinned_input_in_place() {
    let (build, probe) = foreign_keys(1000, 1500, 4);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let pinned = |data| Relation { is_pinned: true, ..Data::relation(data) };
    let sum = oracle(&build, &probe, 1).0;
    for feed in [Feed::Kernels, Feed::CopyEngine] {
        for driver in [Driver::Triton, Driver::NoPartition] {
            let device = Emulation::new(64 << 20, 9);
            assert_eq!(
                join(driver, device, pinned(&build), pinned(&probe), GpuOptions { feed, ..small() }).unwrap().sum,
                sum
            );
        }
    }
}

#[test]
fn skew_repeated_keys_and_the_largest_key() {
    let mut state = 5;
    // A third of both sides has one key: one pair of partitions is larger than every workspace, and so are its rows.
    let mut keys = |count: u64, one_in: u64| -> Vec<u64> {
        (0..count).map(|i| if i % one_in == 0 { u64::MAX } else { random(&mut state) % 100 }).collect()
    };
    let (build, probe) = (Data::new(keys(240, 3), 1, 0), Data::new(keys(300, 3), 1, 5));
    let tuning = Tuning { piece_tuples_max: 100, ..small().tuning };
    let small = || GpuOptions { tuning, ..small() };
    for scheme in [Scheme::Chaining, Scheme::Linear] {
        let answer = check(Driver::Triton, &build, &probe, 1, GpuOptions { scheme, materialize: true, ..small() }, 2);
        assert!(answer.pieces_halved > 0, "the rows of a piece have had no room");
        check(Driver::Triton, &build, &probe, 1, GpuOptions { scheme, ..small() }, 3);
        check(Driver::NoPartition, &build, &probe, 1, GpuOptions { scheme, ..small() }, 3);
    }
}

#[test]
fn tiny_and_empty_inputs() {
    for (build, probe) in [(0, 5), (5, 0), (1, 1), (1, 700), (33, 1)] {
        let (build, probe) = foreign_keys(build, probe, 1);
        let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
        for driver in Driver::ALL {
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
        for driver in Driver::ALL {
            let device = Emulation::new(64 << 20, 1);
            let all = join(driver, device, build.relation(), probe.relation(), GpuOptions { scheme, ..small() });
            assert_eq!(all, Err(GpuError::NotPerfect), "{:?}", build.keys);
        }
    }
}

#[test]
fn equal_keys_are_refused_by_open_slots_before_they_take_quadratic_time() {
    let probe = Data::new(vec![1, 7], 1, 0);
    for (count, expected) in [(200, Ok(200)), (100_000, Err(GpuError::Crowded))] {
        let build = Data::new(vec![7; count], 1, 0);
        let device = Emulation::new(64 << 20, 1);
        let answer = join(Driver::NoPartition, device, build.relation(), probe.relation(), small());
        assert_eq!(answer.map(|answer| answer.sum.pairs), expected);
    }
}

#[test]
fn different_widths_are_refused() {
    let data = Data::new(vec![1, 2], 1, 0);
    let wide = Data::new(vec![1, 2], 3, 0);
    let odd = Data { keys: vec![1, 2], payloads: vec![1, 2, 3] };
    for other in [&wide, &odd] {
        let device = Emulation::new(64 << 20, 1);
        let answer = join(Driver::Triton, device, data.relation(), other.relation(), small());
        assert!(matches!(answer, Err(GpuError::Invalid(_))));
    }
    let device: Arc<dyn Device> = Arc::new(Emulation::new(64 << 20, 1));
    let run = Run::default();
    for driver in Driver::ALL {
        let built = driver.build(&device, wide.relation(), 2, small(), &run).unwrap();
        for (probe, wanted) in [(&data, Wanted::Sum), (&odd, Wanted::Sum), (&wide, Wanted::Rows { max: 10 })] {
            let answer = built.probe(probe.relation(), wanted, &run);
            assert!(matches!(answer, Err(GpuError::Invalid(_))), "{driver:?}: {answer:?}");
        }
    }
}

/// The second table takes most of what the first one's probes were promised.
#[test]
fn a_probe_spills_what_the_device_has_no_room_for_any_more() {
    let (build, probe) = foreign_keys(1500, 2500, 3);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    let (run, device) = (Run::default(), Arc::new(Emulation::new(8 << 20, 1)));
    let shared: Arc<dyn Device> = device.clone();
    let built = Driver::Triton.build(&shared, build.relation(), 2500, small(), &run).unwrap();
    let whole = built.probe(probe.relation(), Wanted::Sum, &run).unwrap();
    let plan = Plan::new(&device.properties().unwrap(), &small(), 1, 1500, 2500).unwrap();
    let taken = device.properties().unwrap().free_bytes - plan.needed_bytes;
    let other = Buffer::new(&shared, Place::Device, taken).unwrap();
    let answer = built.probe(probe.relation(), Wanted::Sum, &run).unwrap();
    assert_eq!((whole.sum, answer.sum), (sum, sum));
    assert!(answer.pages_spilled > whole.pages_spilled, "{} {}", answer.pages_spilled, whole.pages_spilled);
    drop(other);
}

/// A device that fails at any call leaves a typed error, no memory and no work behind. It never gives a wrong answer.
#[test]
fn a_failure_at_any_call_is_a_typed_error() {
    let (build, probe) = foreign_keys(150, 200, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    let options = GpuOptions { materialize: true, cache_bytes_max: Some(3 << 10), layout: Layout::Mapped, ..small() };
    let device = || Emulation::new(64 << 20, 1).mapping();
    for driver in Driver::ALL {
        let (whole, seen) = shared(device());
        driver.join(&whole, build.relation(), probe.relation(), options, &Run::default()).unwrap();
        let calls = seen.calls();
        assert!(calls > 30, "{calls}");
        for (call, fault) in (0..calls).flat_map(|call| [(call, Fault::Lost), (call, Fault::Once)]) {
            let answer = join(driver, device().failing_at(call, fault), build.relation(), probe.relation(), options);
            assert!(matches!(answer, Err(GpuError::Failed { .. })), "{fault:?} at call {call} of {calls}: {answer:?}");
        }
        let past = join(driver, device().failing_at(calls, Fault::Lost), build.relation(), probe.relation(), options);
        assert_eq!(past.unwrap().sum, sum);
    }
}

#[test]
fn a_device_that_is_too_small_says_so_and_any_other_size_is_right() {
    let (build, probe) = foreign_keys(2000, 3000, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    let (mut right, mut refused) = (0, 0);
    for kib in [16, 200, 800, 1600, 3000, 6000, 20_000] {
        match join(Driver::Triton, Emulation::new(kib << 10, kib), build.relation(), probe.relation(), small()) {
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
    }
    assert!(right >= 2 && refused >= 2, "{right} {refused}");
}

#[test]
fn a_mapped_relation_gives_the_same_rows_and_a_device_that_cannot_map_has_a_directory() {
    let (build, probe) = foreign_keys(1200, 1800, 8);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let (sum, _) = oracle(&build, &probe, 1);
    for pages in [1, 9, 1000] {
        let options = GpuOptions { cache_bytes_max: Some(pages * 1024), layout: Layout::Mapped, ..small() };
        let answers = [Emulation::new(64 << 20, pages).mapping(), Emulation::new(64 << 20, pages)]
            .map(|device| join(Driver::Triton, device, build.relation(), probe.relation(), options).unwrap());
        assert!(answers.iter().all(|answer| answer.sum == sum && answer.pages_cached == answers[0].pages_cached));
    }
}

#[test]
fn a_build_side_is_probed_again_and_again_also_by_others_and_after_a_refusal() {
    let (build, probe) = foreign_keys(800, 3000, 6);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let (sum, rows) = oracle(&build, &probe, 1);
    let run = Run::default();
    for driver in Driver::ALL {
        let (device, seen) = shared(Emulation::new(64 << 20, 3));
        let options = GpuOptions { materialize: true, ..small() };
        let table = driver.build(&device, build.relation(), 800, options, &run).unwrap();
        let other = driver.build(&device, build.relation(), 800, options, &run).unwrap();
        let held = seen.live_allocations();
        std::thread::scope(|scope| {
            let probes = [&table, &other, &table]
                .map(|table| scope.spawn(|| table.probe(probe.relation(), Wanted::Sum, &Run::default()).unwrap().sum));
            assert!(probes.into_iter().all(|probe| probe.join().unwrap() == sum));
        });
        let few = Wanted::Rows { max: rows.len() as u64 - 1 };
        assert!(matches!(table.probe(probe.relation(), few, &run), Err(GpuError::TooManyRows { .. })));
        let cancelled = Run::default();
        cancelled.cancel.cancel();
        assert_eq!(table.probe(probe.relation(), Wanted::Sum, &cancelled), Err(GpuError::Cancelled));
        let enough = Wanted::Rows { max: rows.len() as u64 };
        assert_eq!(table.probe(probe.relation(), enough, &run).unwrap().rows.len(), rows.len() * 2);
        assert_eq!(seen.live_allocations(), held, "a probe leaves memory behind");
        drop((table, other));
        assert_eq!(seen.live_allocations(), 0);
    }
}

#[test]
fn a_profile_names_every_kernel_of_the_join() {
    let (build, probe) = foreign_keys(800, 900, 6);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let answer = check(Driver::Triton, &build, &probe, 1, GpuOptions { profile: true, ..small() }, 1);
    let kernels: Vec<&str> = answer.profile.iter().map(|(name, _)| name.as_str()).collect();
    for kernel in ["histogram_columns_w1", "prefix_sum", "partition_hierarchical_columns_w1", "schedule"] {
        assert!(kernels.contains(&kernel), "{kernel}: {kernels:?}");
    }
}

/// Streams do run in any order: a device that ignores events gives wrong answers, so a forgotten event is noticed.
#[test]
fn ignored_events_are_seen() {
    let (build, probe) = foreign_keys(3000, 3000, 2);
    let (build, probe) = (Data::new(build, 1, 0), Data::new(probe, 1, 7));
    let sum = oracle(&build, &probe, 1).0;
    // In the join without partitioning, what is read too early is data, never an address.
    let wrong = |device| {
        let answer = join(Driver::NoPartition, device, build.relation(), probe.relation(), small());
        answer.map(|answer| answer.sum) != Ok(sum)
    };
    assert!((0..8).any(|seed| wrong(Emulation::new(64 << 20, seed).ignoring_events())));
    assert!(!(0..8).any(|seed| wrong(Emulation::new(64 << 20, seed))));
}

#[test]
fn an_emulation_says_that_it_is_one() {
    assert!(Emulation::new(1, 1).properties().unwrap().name.contains("emulation"));
}
