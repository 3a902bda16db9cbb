//! The model beside a synthetic machine with knees, noise and changes; its files beside hostile ones.

use super::choice::EXTRA_NS_FREE;
use super::estimator::Estimator;
use super::file::{FILE_LEN, FileError, decode, encode, load, name, save};
use super::least_squares::{Row, Square, dot, solve};
use super::synthetic::{Configuration, Link, Random};
use super::{COLUMNS, Candidates, Features, Model, ModelError, OFF_MAX, PATHS, PathKind, Reason, Settings};
use farhold_fabric::NodeId;
use farhold_store::durable::files::Disk;
use farhold_store::durable::power::Volatile;
use proptest::prelude::*;

const SEEDS: std::ops::Range<u64> = 0..8;
const NODE: NodeId = NodeId(3);

/// Observations of each path in random configurations.
fn observed(count: usize, link: &Link, random: &mut Random) -> Vec<Vec<(Features, f64)>> {
    let mut observations = vec![Vec::new(); PATHS];
    for _ in 0..count {
        let configuration = Configuration::random(random, link);
        let ns = link.measured_ns(&configuration, random);
        for (path, features) in configuration.candidates().into_iter().enumerate() {
            observations[path].push((features.expect("each path is usable"), ns[path]));
        }
    }
    observations
}

fn calibrated(link: &Link, settings: Settings, seed: u64) -> Model {
    let observations = observed(400, link, &mut Random(seed));
    let mut model = Model::new(settings).expect("valid");
    for path in PathKind::ALL {
        model.calibrate(path, &observations[path.index()]).expect("valid");
    }
    model
}

fn held_out(link: &Link, seed: u64) -> Vec<Configuration> {
    let mut random = Random(seed ^ 0xFFFF_0000);
    (0..300).map(|_| Configuration::random(&mut random, link)).collect()
}

/// True time of the choices over that of the best ones, in sum.
fn over_best(model: &Model, link: &Link, configurations: &[Configuration]) -> f64 {
    let (mut chosen, mut best) = (0.0, 0.0);
    for configuration in configurations {
        let ns = link.true_ns(configuration);
        chosen += ns[model.best(&configuration.candidates()).expect("usable").path.index()];
        best += ns.into_iter().fold(f64::INFINITY, f64::min);
    }
    chosen / best
}

/// The median and the ninth decile of the relative errors of a path's predictions.
fn errors(model: &Estimator, path: PathKind, link: &Link, configurations: &[Configuration]) -> [f64; 2] {
    let mut errors: Vec<f64> = configurations
        .iter()
        .map(|it| (predicted(model, path, it) / link.true_ns(it)[path.index()] - 1.0).abs())
        .collect();
    errors.sort_by(f64::total_cmp);
    [errors[errors.len() / 2], errors[errors.len() * 9 / 10]]
}

fn predicted(model: &Estimator, path: PathKind, configuration: &Configuration) -> f64 {
    model.predict_ns(&features(path, configuration)).expect("it has observations")
}

fn features(path: PathKind, configuration: &Configuration) -> Features {
    configuration.candidates()[path.index()].expect("usable")
}

/// Only these paths.
fn only(candidates: Candidates, paths: &[PathKind]) -> Candidates {
    let mut left = [None; PATHS];
    for path in paths {
        left[path.index()] = candidates[path.index()];
    }
    left
}

#[test]
fn choices_are_nearly_the_best_where_times_have_knees() {
    let link = Link::default();
    for seed in SEEDS {
        let model = calibrated(&link, Settings::default(), seed);
        let configurations = held_out(&link, seed);
        let ratio = over_best(&model, &link, &configurations);
        assert!(ratio <= 1.01, "seed {seed}: choices take {ratio} of the best time");
        for path in PathKind::ALL {
            let times: Vec<f64> = configurations.iter().map(|it| link.true_ns(it)[path.index()]).collect();
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            let all: f64 = times.iter().map(|ns| (ns - mean).powi(2)).sum();
            let left: f64 = configurations
                .iter()
                .zip(&times)
                .map(|(it, ns)| (predicted(model.path(path), path, it) - ns).powi(2))
                .sum();
            let fit = 1.0 - left / all;
            assert!(fit >= 0.95, "seed {seed}: {} explains {fit} of the variance", path.name());
        }
    }
}

#[test]
fn short_scans_are_predicted_as_well_as_long_ones() {
    let link = Link::default();
    let model = calibrated(&link, Settings::default(), 1);
    let short: Vec<_> = held_out(&link, 1).into_iter().filter(|it| it.bytes < 100_000.0).collect();
    assert!(short.len() > 50);
    for path in [PathKind::Rows, PathKind::Direct, PathKind::Pushdown, PathKind::Relaxed] {
        let [median, _] = errors(model.path(path), path, &link, &short);
        assert!(median < 0.12, "{}: {median}", path.name());
    }
}

#[test]
fn updates_without_forgetting_are_the_batch_fit() {
    let link = Link::default();
    for (path, observations) in PathKind::ALL.into_iter().zip(observed(600, &link, &mut Random(7))) {
        let mut model = Estimator::fit(&observations[..200]).expect("valid");
        let shape = model.shape;
        for (features, ns) in &observations[200..] {
            let (_, target) = model.taken(features, *ns).row(&features.columns(&shape));
            assert!((target - 1.0).abs() < f64::EPSILON, "{}: an observation was limited", path.name());
            model.update(features, *ns, 1.0).expect("valid");
        }
        let batch = Estimator::fit_shape(&observations, shape);
        for (one, other) in model.sums.iter().flatten().zip(batch.sums.iter().flatten()) {
            assert!((one - other).abs() <= 1e-12 * other.abs(), "{}: {one} is not {other}", path.name());
        }
        for (one, other) in model.weights.iter().zip(batch.weights) {
            assert!((one - other).abs() <= 1e-8 * (1.0 + other), "{}: {one} is not {other}", path.name());
        }
    }
}

/// The constrained minimum by descent along one coordinate after the other.
fn solve_slowly(sums: &Square, moments: &Row) -> Row {
    let mut weights = [0.0; COLUMNS];
    for _ in 0..200_000 {
        for at in 0..COLUMNS {
            let others = dot(&sums[at], &weights) - sums[at][at] * weights[at];
            weights[at] = ((moments[at] - others) / sums[at][at]).max(0.0);
        }
    }
    weights
}

#[test]
fn the_solver_finds_the_minimum_from_any_start() {
    let mut random = Random(3);
    for _ in 0..20 {
        let mut sums = [[0.0; COLUMNS]; COLUMNS];
        for (at, row) in sums.iter_mut().enumerate() {
            row[at] = 0.05;
        }
        for _ in 0..15 {
            let row: Row = std::array::from_fn(|_| random.unit() - 0.4);
            for at in 0..COLUMNS {
                for other in 0..COLUMNS {
                    sums[at][other] += row[at] * row[other];
                }
            }
        }
        let moments: Row = std::array::from_fn(|_| random.unit() - 0.4);
        let right = solve_slowly(&sums, &moments);
        assert!(right.contains(&0.0), "no constraint holds");
        for mut weights in
            [[0.0; COLUMNS], [1.0; COLUMNS], std::array::from_fn(|at| if at % 2 == 0 { 0.0 } else { 3.0 })]
        {
            solve(&sums, &moments, &mut weights);
            for (one, other) in weights.iter().zip(right) {
                assert!((one - other).abs() < 1e-9, "{weights:?} is not {right:?}");
            }
        }
    }
}

#[test]
fn a_doubled_latency_is_followed_within_200_scans_and_only_with_updates() {
    let (before, after) = (Link::default(), Link { latency_factor: 2.0, ..Link::default() });
    for seed in SEEDS {
        for path in [PathKind::Rows, PathKind::Direct] {
            let far: Vec<_> = held_out(&after, seed).into_iter().filter(|it| it.latency_ns >= 500.0).collect();
            let fixed = calibrated(&before, Settings::default(), seed);
            let mut learning = fixed.path(path).clone();
            let mut random = Random(seed + 50);
            for _ in 0..200 {
                let it = Configuration::random(&mut random, &after);
                let ns = after.measured_ns(&it, &mut random)[path.index()];
                learning.update(&features(path, &it), ns, Settings::default().forget).expect("valid");
            }
            let [followed, _] = errors(&learning, path, &after, &far);
            let [stayed, _] = errors(fixed.path(path), path, &after, &far);
            // Updates do not move the knee of `rows`, which was at 500 ns and is at 250 ns of the measured latency.
            let limit = if path == PathKind::Rows { 0.25 } else { 0.1 };
            assert!(followed < limit, "seed {seed}: {} is off by {followed}", path.name());
            assert!(stayed > 0.3, "seed {seed}: {} is off by {stayed} without updates", path.name());
        }
    }
}

#[test]
fn choices_follow_a_change_of_the_machine_and_only_with_updates() {
    let before = Link::default();
    let after = Link { latency_factor: 2.0, agent_factor: 4.0, ..before };
    for seed in SEEDS {
        let mut ratios = [0.0; 2];
        for (learns, ratio) in [true, false].into_iter().zip(&mut ratios) {
            let mut model = calibrated(&before, Settings { learns, ..Settings::default() }, seed);
            let mut random = Random(seed + 99);
            for _ in 0..600 {
                let it = Configuration::random(&mut random, &after);
                let choice = model.choose(&it.candidates(), None).expect("usable");
                let ns = after.measured_ns(&it, &mut random)[choice.path.index()];
                model.finished(&choice, ns).expect("valid");
            }
            *ratio = over_best(&model, &after, &held_out(&after, seed));
        }
        let [learning, fixed] = ratios;
        assert!(learning < 1.05, "seed {seed}: {learning} of the best time with updates");
        assert!(fixed > learning + 0.05, "seed {seed}: {fixed} without updates, {learning} with them");
    }
}

#[test]
fn nothing_winds_up_while_features_stand_still() {
    let link = Link::default();
    let path = PathKind::Direct;
    let configurations = held_out(&link, 4);
    let mut model = calibrated(&link, Settings::default(), 4).path(path).clone();
    let [before, _] = errors(&model, path, &link, &configurations);
    let (still, other) = (configurations[0], configurations[1]);
    let mut random = Random(5);
    for _ in 0..50_000 {
        let ns = link.measured_ns(&still, &mut random)[path.index()];
        model.update(&features(path, &still), ns, 0.98).expect("valid");
    }
    assert!(model.is_sound(), "the sums are below the ridge, or without bound");
    let [after, _] = errors(&model, path, &link, &configurations);
    assert!(after < before + 0.1, "the other scans were forgotten: off by {after}, before by {before}");
    let of_still = predicted(&model, path, &still);
    model.update(&features(path, &other), 1000.0 * link.true_ns(&other)[path.index()], 0.98).expect("valid");
    let burst = predicted(&model, path, &other) / link.true_ns(&other)[path.index()];
    assert!(burst < 1.3 * OFF_MAX, "one observation threw the model {burst} times off");
    assert!((predicted(&model, path, &still) / of_still - 1.0).abs() < 0.15, "what stood still was forgotten");
}

#[test]
fn an_outlier_does_not_throw_the_model() {
    let link = Link::default();
    for (seed, factor) in SEEDS.flat_map(|seed| [1000.0, 0.001].map(|factor| (seed, factor))) {
        for path in PathKind::ALL {
            let configurations = held_out(&link, seed);
            let mut model = calibrated(&link, Settings::default(), seed).path(path).clone();
            let mut random = Random(seed + 3);
            for scan in 0..200 {
                let it = Configuration::random(&mut random, &link);
                let ns = link.measured_ns(&it, &mut random)[path.index()];
                let ns = if scan % 40 == 39 { (ns * factor).max(1.0) } else { ns };
                model.update(&features(path, &it), ns, 0.98).expect("valid");
            }
            // The 200th was an outlier.
            let [median, decile] = errors(&model, path, &link, &configurations);
            assert!(median < 0.25, "seed {seed}, times {factor}: {} is off by {median}, {decile}", path.name());
        }
    }
}

#[test]
fn outliers_do_not_throw_a_calibration() {
    let link = Link::default();
    for (path, mut observations) in PathKind::ALL.into_iter().zip(observed(400, &link, &mut Random(8))) {
        for (_, ns) in observations.iter_mut().step_by(40) {
            *ns *= 0.001;
        }
        let valid: Vec<_> = observations.into_iter().filter(|(_, ns)| *ns >= 1.0).collect();
        let model = Estimator::fit(&valid).expect("valid");
        let [median, _] = errors(&model, path, &link, &held_out(&link, 8));
        assert!(median < 0.3, "{} is off by {median}", path.name());
    }
}

#[test]
fn few_and_collinear_observations_suffice_for_a_prediction() {
    let scan = |bytes| Features { bytes, latency_ns: 300.0, result_bytes: bytes / 10.0, ..Features::default() };
    let one = Estimator::fit(&[(scan(1e6), 2e5)]).expect("valid");
    assert!((one.predict_ns(&scan(1e6)).expect("one") / 2e5 - 1.0).abs() < 0.05);
    let line: Vec<_> = [1e6, 1e7, 1e8].map(|bytes| (scan(bytes), 5e4 + bytes * 0.2)).into();
    let model = Estimator::fit(&line).expect("valid");
    for (bytes, tolerance) in [(5e6, 0.1), (5e7, 0.1), (1e10, 0.2)] {
        let ratio = model.predict_ns(&scan(bytes)).expect("three") / (5e4 + bytes * 0.2);
        assert!((ratio - 1.0).abs() < tolerance, "{bytes} bytes: {ratio}");
    }
}

/// A path that is much slower or faster than typical is predicted by its few observations, not by what is typical.
#[test]
fn few_observations_far_from_typical_suffice_for_a_prediction() {
    let scan = |bytes| Features { bytes, latency_ns: 300.0, result_bytes: bytes / 10.0, ..Features::default() };
    for (bytes, ns) in [(0.0, 1e9), (1e4, 1.5e8), (1e6, 2e9), (1e6, 50.0), (1e9, 1e15)] {
        let mut updated = Estimator::default();
        updated.update(&scan(bytes), ns, 0.98).expect("valid");
        for (model, name) in [(updated, "update"), (Estimator::fit(&[(scan(bytes), ns)]).expect("valid"), "fit")] {
            let ratio = model.predict_ns(&scan(bytes)).expect("one") / ns;
            assert!((0.5..2.0).contains(&ratio), "{name} of {bytes} bytes in {ns} ns: {ratio}");
        }
    }
    // Later ones are followed as fast as those of a path that is typical.
    let mut model = Estimator::default();
    for round in 0..40 {
        let bytes = [1e6, 1e7, 1e8][round % 3];
        model.update(&scan(bytes), 5e8 + bytes * 2e3, 0.98).expect("valid");
    }
    for bytes in [1e6, 1e7, 1e8] {
        let ratio = model.predict_ns(&scan(bytes)).expect("many") / (5e8 + bytes * 2e3);
        assert!((0.9..1.1).contains(&ratio), "{bytes} bytes: {ratio}");
    }
}

/// One scan of 100 ms beside a path of 20 us is enough.
#[test]
fn a_path_that_was_slow_once_is_not_chosen_again_at_once() {
    let it = Features { bytes: 1e4, latency_ns: 200.0, ..Features::default() };
    let both = only([Some(it); PATHS], &[PathKind::Direct, PathKind::Relaxed]);
    let mut model = Model::new(Settings::default()).expect("valid");
    model.observe(PathKind::Direct, &it, 2e4).expect("valid");
    model.observe(PathKind::Relaxed, &it, 1e8).expect("valid");
    for _ in 0..200 {
        let choice = model.choose(&both, None).expect("usable");
        assert_eq!(choice.path, PathKind::Direct, "{choice:?}");
        model.finished(&choice, 2e4).expect("valid");
    }
}

#[test]
fn settings_out_of_their_limits_are_refused() {
    let bytes = encode(&used_model_once(), 7);
    for forget in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1.0, 1.1] {
        let settings = Settings { forget, ..Settings::default() };
        assert!(matches!(Model::new(settings), Err(ModelError::Setting { name: "forget", .. })), "{forget}");
        assert!(matches!(decode(&bytes, 7, settings), Err(FileError::Settings(_))), "{forget}");
    }
    for explore_share in [f64::NAN, -0.1, 1.1] {
        let settings = Settings { explore_share, ..Settings::default() };
        assert!(matches!(Model::new(settings), Err(ModelError::Setting { name: "explore_share", .. })));
    }
}

/// A credit that nothing could ever spend, or a debt that nothing could ever pay.
#[test]
fn the_credit_of_exploring_is_bounded() {
    let long = Features { bytes: 1e18, latency_ns: 1e12, ..Features::default() };
    let mut model = Model::new(Settings::default()).expect("valid");
    model.observe(PathKind::Direct, &Features { bytes: 1e6, ..long }, 1e15).expect("valid");
    for _ in 0..100 {
        model.choose(&only([Some(long); PATHS], &[PathKind::Direct]), None).expect("usable");
    }
    assert!(model.credit_ns <= 1e15, "{}", model.credit_ns);
    for (written, read) in [(1e300, 1e15), (-1e300, -1e15), (5.0, 5.0)] {
        model.credit_ns = written;
        let decoded = decode(&encode(&model, 7), 7, Settings::default()).expect("sound");
        assert!((decoded.credit_ns - read).abs() < 1.0, "{written}");
    }
}

#[test]
fn invalid_observations_are_refused_and_change_nothing() {
    let link = Link::default();
    let mut model = calibrated(&link, Settings::default(), 2);
    let before = model.clone();
    let good = features(PathKind::Direct, &held_out(&link, 2)[0]);
    for ns in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e16] {
        let refused = model.observe(PathKind::Direct, &good, ns);
        assert!(matches!(refused, Err(ModelError::Time { .. })), "{ns}");
        assert!(Estimator::fit(&[(good, ns)]).is_err(), "{ns}");
    }
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300] {
        for (name, bad) in [
            ("bytes", Features { bytes: value, ..good }),
            ("latency_ns", Features { latency_ns: value, ..good }),
            ("result_bytes", Features { result_bytes: value, ..good }),
            ("traffic_bytes_s", Features { traffic_bytes_s: value, ..good }),
            ("queue_bytes", Features { queue_bytes: value, ..good }),
        ] {
            let named = |error: Option<ModelError>| matches!(error, Some(ModelError::Feature { name: found, .. }) if found == name);
            assert!(named(model.observe(PathKind::Direct, &bad, 1e6).err()), "{name} {value}");
            assert!(named(Estimator::fit(&[(bad, 1e6)]).err()), "{name} {value}");
            assert!(named(model.choose(&[Some(bad); PATHS], None).err()), "{name} {value}");
        }
    }
    assert_eq!(model, before);
}

#[test]
fn ties_unknown_models_and_forced_paths_are_defined() {
    let it = Features { bytes: 1e6, latency_ns: 200.0, ..Features::default() };
    let mut model = Model::new(Settings::default()).expect("valid");
    let unknown =
        model.choose(&only([Some(it); PATHS], &[PathKind::Relaxed, PathKind::Offload]), None).expect("usable");
    assert_eq!((unknown.path, unknown.reason), (PathKind::Offload, Reason::Unknown));
    assert_eq!(unknown.best_ns(), None);
    for path in [PathKind::Relaxed, PathKind::Direct, PathKind::Pushdown] {
        model.calibrate(path, &[(it, 1e5)]).expect("valid");
    }
    let tie = model.choose(&[Some(it); PATHS], None).expect("usable");
    assert_eq!((tie.path, tie.reason), (PathKind::Direct, Reason::Least), "a tie, and two paths without a model");
    let forced = model.choose(&[Some(it); PATHS], Some(PathKind::Rows)).expect("usable");
    assert_eq!((forced.path, forced.reason), (PathKind::Rows, Reason::Forced));
    let unusable = model.choose(&only([Some(it); PATHS], &[PathKind::Rows]), Some(PathKind::Pushdown));
    assert_eq!(unusable, Err(ModelError::Unusable { path: PathKind::Pushdown }));
    assert_eq!(model.choose(&[None; PATHS], None), Err(ModelError::NonePossible));
}

#[test]
fn exploring_finds_a_path_that_has_become_the_best_at_a_bounded_cost() {
    let slow = Link { agent_factor: 3.0, ..Link::default() };
    let link = Link { agent_factor: 0.2, ..slow };
    let mut sums = [0.0; 2];
    for seed in SEEDS {
        let taken = [0.005, 0.0].map(|explore_share| {
            let settings = Settings { explore_share, ..Settings::default() };
            let mut model = calibrated(&slow, settings, seed);
            let mut random = Random(seed + 20);
            let (mut explored_ns, mut all_ns, mut longest_ns) = (0.0, 0.0, 0.0_f64);
            for _ in 0..3000 {
                let it = Configuration::random(&mut random, &link);
                let choice = model.choose(&it.candidates(), None).expect("usable");
                let ns = link.measured_ns(&it, &mut random)[choice.path.index()];
                model.finished(&choice, ns).expect("valid");
                let best_ns = choice.best_ns().expect("calibrated");
                all_ns += best_ns;
                if choice.reason == Reason::Explored {
                    explored_ns += (ns - best_ns).max(0.0);
                    longest_ns = longest_ns.max(ns - best_ns);
                    let predicted_ns = choice.predicted_ns[choice.path.index()].expect("calibrated");
                    assert!(
                        predicted_ns - best_ns <= best_ns.max(EXTRA_NS_FREE),
                        "one scan explores at too high a cost"
                    );
                }
            }
            assert!(explored_ns <= explore_share * all_ns + longest_ns, "exploring cost {explored_ns} of {all_ns}");
            assert_eq!(explored_ns > 0.0, explore_share > 0.0);
            over_best(&model, &link, &held_out(&link, seed))
        });
        for (sum, ratio) in sums.iter_mut().zip(taken) {
            *sum += ratio;
        }
    }
    let [explored, not] = sums.map(|sum| sum / (SEEDS.end - SEEDS.start) as f64);
    // Seldom observed, the path is known less well than others. Without exploring, some seeds find it by chance.
    assert!(explored < 1.1, "{explored} of the best time with exploring");
    assert!(not > explored + 0.1, "{not} of the best time without exploring, {explored} with it");
}

/// A path that no scan of the calibration made the best one: without exploring it is never observed again.
#[test]
fn a_path_that_is_never_the_best_is_observed_again() {
    let it = Features { bytes: 1e6, latency_ns: 200.0, ..Features::default() };
    for (explore_share, expected) in [(0.005, PathKind::Relaxed), (0.0, PathKind::Direct)] {
        let mut model = Model::new(Settings { explore_share, ..Settings::default() }).expect("valid");
        model.calibrate(PathKind::Direct, &[(it, 1e5)]).expect("valid");
        model.calibrate(PathKind::Relaxed, &[(it, 2e5)]).expect("valid");
        let both = only([Some(it); PATHS], &[PathKind::Direct, PathKind::Relaxed]);
        for _ in 0..5000 {
            let choice = model.choose(&both, None).expect("usable");
            // It is now four times faster than the calibration found it.
            let ns = if choice.path == PathKind::Relaxed { 5e4 } else { 1e5 };
            model.finished(&choice, ns).expect("valid");
        }
        assert_eq!(model.best(&both).expect("usable").path, expected);
    }
}

#[test]
fn exploring_costs_at_most_its_share_and_one_surprise() {
    let it = Features { bytes: 1e6, latency_ns: 200.0, ..Features::default() };
    let both = only([Some(it); PATHS], &[PathKind::Direct, PathKind::Relaxed]);
    // The explored path takes what it is predicted to take, or 500 times as long.
    for real_ns in [2e5, 1e8] {
        let mut model = Model::new(Settings::default()).expect("valid");
        model.calibrate(PathKind::Direct, &[(it, 1e5)]).expect("valid");
        model.calibrate(PathKind::Relaxed, &vec![(it, 2e5); 100]).expect("valid");
        let (mut extra_ns, mut longest_ns, mut best_ns) = (0.0, 0.0_f64, 0.0);
        for _ in 0..20_000 {
            let choice = model.choose(&both, None).expect("usable");
            best_ns += choice.best_ns().expect("calibrated");
            let is_explored = choice.reason == Reason::Explored;
            model.finished(&choice, if is_explored { real_ns } else { 1e5 }).expect("valid");
            if is_explored {
                extra_ns += real_ns - 1e5;
                longest_ns = longest_ns.max(real_ns - 1e5);
            }
        }
        assert!(extra_ns > 0.0, "it never explored");
        let limit_ns = Settings::default().explore_share * best_ns + longest_ns;
        assert!(extra_ns <= 1.01 * limit_ns, "{extra_ns} extra, at most {limit_ns}");
    }
}

/// The change is too small for the faster forgetting.
#[test]
fn a_calibration_does_not_outweigh_later_scans() {
    let (before, after) = (Link::default(), Link { agent_factor: 1.18, ..Link::default() });
    let path = PathKind::Pushdown;
    for seed in SEEDS {
        let mut model = calibrated(&before, Settings::default(), seed);
        for (features, ns) in &observed(100, &after, &mut Random(seed + 70))[path.index()] {
            model.observe(path, features, *ns).expect("valid");
        }
        let [median, _] = errors(model.path(path), path, &after, &held_out(&after, seed));
        assert!(median < 0.06, "seed {seed}: off by {median}");
    }
}

#[test]
fn equal_models_make_equal_choices() {
    let link = Link::default();
    let run = || {
        let mut model = calibrated(&link, Settings::default(), 6);
        let mut random = Random(61);
        let choices: Vec<_> = (0..500)
            .map(|_| {
                let it = Configuration::random(&mut random, &link);
                let choice = model.choose(&it.candidates(), None).expect("usable");
                model.finished(&choice, link.measured_ns(&it, &mut random)[choice.path.index()]).expect("valid");
                choice
            })
            .collect();
        (choices, encode(&model, 0))
    };
    assert_eq!(run(), run());
}

/// A model after some scans, so that each field of its file has a value of its own.
fn used_model() -> Model {
    let link = Link::default();
    let mut model = calibrated(&link, Settings::default(), 9);
    let mut random = Random(10);
    for _ in 0..300 {
        let it = Configuration::random(&mut random, &link);
        let choice = model.choose(&it.candidates(), None).expect("usable");
        model.finished(&choice, link.measured_ns(&it, &mut random)[choice.path.index()]).expect("valid");
    }
    model
}

#[test]
fn a_file_gives_back_the_exact_model() {
    let (model, directory) = (used_model(), Volatile::default());
    assert!(matches!(load(&directory, NODE, 7, Settings::default()), Err(FileError::Absent)));
    save(&model, &directory, NODE, 7).expect("written");
    let read = load(&directory, NODE, 7, Settings::default()).expect("sound");
    assert_eq!(read, model);
    assert_eq!(encode(&read, 7), encode(&model, 7));
    assert!(matches!(load(&directory, NODE, 8, Settings::default()), Err(FileError::OtherMachine { found: 7 })));
}

/// A smaller result of one path may make it the best one, but never changes what was required or explores.
#[test]
fn a_choice_is_reconsidered() {
    let model = calibrated(&Link::default(), Settings::default(), 1);
    let link = Link::default();
    let (mut random, mut changed) = (Random(3), 0);
    for _ in 0..200 {
        let candidates = Configuration::random(&mut random, &link).candidates();
        let Some(of) = candidates[PathKind::Pushdown as usize] else { continue };
        let choice = model.best(&candidates).expect("usable");
        let small = Features { result_bytes: of.result_bytes / 1e6, ..of };
        let mut others = candidates;
        others[PathKind::Pushdown as usize] = Some(small);
        let again = model.reconsider(&choice, PathKind::Pushdown, small).expect("valid");
        let best = model.best(&others).expect("usable");
        assert_eq!((again.path, again.features, again.predicted_ns), (best.path, best.features, best.predicted_ns));
        changed += usize::from(again.path != choice.path);
        for reason in [Reason::Forced, Reason::Explored] {
            let mut choice = choice;
            choice.reason = reason;
            let again = model.reconsider(&choice, PathKind::Pushdown, small).expect("valid");
            assert_eq!((again.path, again.reason), (choice.path, reason));
        }
        let wrong = Features { bytes: f64::NAN, ..of };
        assert!(model.reconsider(&choice, PathKind::Pushdown, wrong).is_err());
    }
    assert!(changed > 0);
}

#[test]
fn a_crash_leaves_the_old_file_or_the_new_one() {
    let (old, new) = (calibrated(&Link::default(), Settings::default(), 1), used_model());
    let mut found = [0; 2];
    for operations in 1..12 {
        for seed in 0..8 {
            let directory = Volatile::default();
            save(&old, &directory, NODE, 7).expect("written");
            directory.cut_after(operations, seed);
            let _ = save(&new, &directory, NODE, 7);
            let Some(survivor) = directory.survivor() else { continue };
            let read = load(&survivor, NODE, 7, Settings::default()).expect("a file is there, and whole");
            assert!(read == old || read == new);
            found[usize::from(read == new)] += 1;
        }
    }
    assert!(found[0] > 0 && found[1] > 0, "{found:?}");
}

#[cfg(unix)]
#[test]
fn the_file_is_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("farhold-scan-model-{}", std::process::id()));
    let disk = Disk::open(&folder).expect("a folder");
    save(&used_model(), &disk, NODE, 7).expect("written");
    let mode = std::fs::metadata(folder.join(name(NODE))).expect("a file").permissions().mode();
    let names = std::fs::read_dir(&folder).expect("a folder").count();
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!((mode & 0o777, names), (0o600, 1));
}

/// Bytes with a right checksum.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 8;
    let mut digest = crc64fast::Digest::new();
    digest.write(&bytes[..body]);
    bytes[body..].copy_from_slice(&digest.sum64().to_le_bytes());
    bytes
}

/// A model that a file gave must work, whatever the file contained.
fn check_works(mut model: Model) {
    let link = Link::default();
    let mut random = Random(1);
    for _ in 0..60 {
        let it = Configuration::random(&mut random, &link);
        let choice = model.choose(&it.candidates(), None).expect("usable");
        for ns in choice.predicted_ns.iter().flatten() {
            assert!(ns.is_finite() && *ns > 0.0);
        }
        model.finished(&choice, link.measured_ns(&it, &mut random)[choice.path.index()]).expect("valid");
    }
}

proptest! {
    #[test]
    fn a_damaged_file_is_refused(at in 0..FILE_LEN, bits in 1_u8..=255, len in 0..FILE_LEN) {
        let good = encode(&used_model_once(), 7);
        let mut damaged = good.clone();
        damaged[at] ^= bits;
        prop_assert!(matches!(decode(&damaged, 7, Settings::default()), Err(FileError::Damaged(_))));
        prop_assert!(matches!(decode(&good[..len], 7, Settings::default()), Err(FileError::Damaged(_))));
        let longer = [&good[..], &[0]].concat();
        prop_assert!(matches!(decode(&longer, 7, Settings::default()), Err(FileError::Damaged(_))));
    }

    #[test]
    fn a_hostile_file_with_a_right_checksum_is_refused_or_works(
        changes in proptest::collection::vec((0..FILE_LEN / 8, prop_oneof![
            any::<u64>(), any::<f64>().prop_map(f64::to_bits), (0.0..1e12_f64).prop_map(f64::to_bits), Just(f64::NAN.to_bits()),
            Just((-0.0_f64).to_bits()), Just(0), Just(u64::MAX),
        ]), 1..6)
    ) {
        let mut bytes = encode(&used_model_once(), 7);
        for (word, value) in changes {
            bytes[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(model) = decode(&sealed(bytes), 7, Settings::default()) {
            check_works(model);
        }
    }

    #[test]
    fn bytes_that_are_no_file_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2 * FILE_LEN)) {
        prop_assert!(decode(&bytes, 7, Settings::default()).is_err());
    }

    #[test]
    fn predictions_are_positive_and_finite_whatever_was_observed(
        observations in proptest::collection::vec((features_of_any_size(), -1.0..16.0_f64), 1..80),
        asked in features_of_any_size(),
    ) {
        let mut model = Estimator::default();
        prop_assert!(model.predict_ns(&asked).is_none());
        for (features, exponent) in &observations {
            let ns = 10_f64.powf(*exponent);
            prop_assert_eq!(model.update(features, ns, 0.9).is_ok(), (1.0..=1e15).contains(&ns));
            prop_assert!(model.weights().iter().all(|weight| *weight >= 0.0 && weight.is_finite()));
        }
        if let Some(ns) = model.predict_ns(&asked) {
            prop_assert!(ns > 0.0 && ns.is_finite());
        }
        let valid: Vec<_> = observations.iter().map(|(it, exponent)| (*it, 10_f64.powf(*exponent).clamp(1.0, 1e15))).collect();
        let ns = Estimator::fit(&valid).expect("valid").predict_ns(&asked).expect("it has observations");
        prop_assert!(ns > 0.0 && ns.is_finite());
    }
}

fn used_model_once() -> Model {
    static ONCE: std::sync::LazyLock<Model> = std::sync::LazyLock::new(used_model);
    ONCE.clone()
}

fn features_of_any_size() -> impl Strategy<Value = Features> {
    let size = |greatest: f64| prop_oneof![Just(0.0), (0.0..=greatest).prop_map(|exponent| 10_f64.powf(exponent))];
    (size(18.0), size(12.0), size(18.0), size(15.0), size(18.0)).prop_map(
        |(bytes, latency_ns, result_bytes, traffic_bytes_s, queue_bytes)| Features {
            bytes,
            latency_ns,
            result_bytes,
            traffic_bytes_s,
            queue_bytes,
        },
    )
}
