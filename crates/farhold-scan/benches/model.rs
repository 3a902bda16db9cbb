//! How well access paths are chosen, on a synthetic machine or on measured scans, beside a decision tree.
//!
//! ```text
//! cargo bench -p farhold-scan --bench model                          the synthetic machine, 8 seeds
//! cargo bench -p farhold-scan --bench model -- --quick               what the tests run: figures without meaning
//! cargo bench -p farhold-scan --bench model -- --json FILE
//! cargo bench -p farhold-scan --bench model -- --observations FILE   measured scans, as CSV or a JSON object a line
//! ```
//!
//! A measured scan has the fields `path`, `bytes`, `latency_ns`, `result_bytes`, `traffic_bytes_s`, `queue_bytes`, `time_ns` and
//! `configuration`. A CSV file names them in its first line. Scans of the same `configuration` are one question answered by several
//! paths, and repetitions; the median counts. Every fifth configuration is held out.
//!
//! Figures: `r2` is the share of the variance of times that a model explains, `r2_log` that of their logarithms. `sum` is the time
//! of all chosen paths over that of the best ones; `decile` is this ratio for the worst tenth of the scans; `accuracy` is the share of
//! scans whose fastest path is chosen. The paper has two paths; its precision, recall and F1 are those of `direct or offload`, where
//! **`offload` is the positive class**. Of measured scans, each path is also set against all others. A figure whose denominator is 0, such as
//! the precision of a path that is never chosen, is left out.
#![expect(clippy::disallowed_methods, reason = "a bench reads the real clock")]

mod synthetic;
mod tree;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use farhold_report::Report;
use farhold_scan::model::{Candidates, Features, Model, PATHS, PathKind, Settings};
use synthetic::{Configuration, Link, Random};
use tree::Tree;

/// A scan that could take several paths, and the time of each.
#[derive(Clone, Copy)]
struct Case {
    candidates: Candidates,
    ns: [Option<f64>; PATHS],
}

const TWO: [PathKind; 2] = [PathKind::Direct, PathKind::Offload];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let quick = arguments.iter().any(|argument| argument == "--quick") || !arguments.iter().any(|a| a == "--bench");
    let value =
        |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    let mut report = Report::new(quick);
    if let Some(path) = value("--observations") {
        let cases = read(Path::new(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let held = |at: &usize| at % 5 == 4;
        let of = |is_held: bool| (0..cases.len()).filter(|at| held(at) == is_held).map(|at| cases[at]).collect();
        let (training, test): (Vec<Case>, Vec<Case>) = (of(false), of(true));
        report.table(&format!("measured: {} configurations, {} of them held out", cases.len(), test.len()));
        let [fit, choice] = evaluate(&training, &test);
        print(&mut report, "measured", &[fit, choice, by_path(&training, &test)].concat());
    } else {
        synthetic_machine(&mut report, if quick { 1 } else { 8 }, if quick { 100 } else { 400 });
        drift(&mut report, if quick { 1 } else { 8 });
        costs(&mut report, if quick { 1000 } else { 1_000_000 });
    }
    if let Some(path) = value("--json") {
        report.write(&PathBuf::from(path)).expect("the file of the figures");
    }
}

/// Rows of a table: a name, and figures by name.
type Rows = Vec<(String, Vec<(&'static str, f64)>)>;

fn print(report: &mut Report, table: &str, rows: &Rows) {
    for (name, figures) in rows {
        report.row(table, name, figures);
    }
}

fn synthetic_machine(report: &mut Report, seeds: u64, training: usize) {
    let link = Link::default();
    let mut all: Vec<[Rows; 2]> = Vec::new();
    for seed in 0..seeds {
        let mut random = Random(seed);
        let trained: Vec<Case> = (0..training).map(|_| measured(&mut random, &link)).collect();
        let test: Vec<Case> = (0..300)
            .map(|_| {
                let it = Configuration::random(&mut random, &link);
                Case { candidates: it.candidates(), ns: link.true_ns(&it).map(Some) }
            })
            .collect();
        let more: Vec<Case> = (0..20 * training).map(|_| measured(&mut random, &link)).collect();
        let [fit, mut choice] = evaluate(&trained, &test);
        for (name, paths) in [("all paths", &PathKind::ALL[..]), ("direct or offload", &TWO)] {
            choice.push((format!("tree of 20 times the scans, {name}"), by_tree(&more, &test, paths)));
        }
        all.push([fit, choice]);
    }
    for (at, title) in ["fit", "choice"].into_iter().enumerate() {
        report.table(&format!("synthetic machine, 10 % noise, means of {seeds} seeds: {title}"));
        let mut rows = all[0][at].clone();
        for (row, (_, figures)) in rows.iter_mut().enumerate() {
            for (column, (_, value)) in figures.iter_mut().enumerate() {
                *value = all.iter().map(|run| run[at][row].1[column].1).sum::<f64>() / seeds as f64;
            }
        }
        print(report, title, &rows);
    }
}

/// A case with one measurement of each path.
fn measured(random: &mut Random, link: &Link) -> Case {
    let it = Configuration::random(random, link);
    Case { candidates: it.candidates(), ns: link.measured_ns(&it, random).map(Some) }
}

/// The choices of a tree that was grown on the training cases.
fn by_tree(training: &[Case], test: &[Case], paths: &[PathKind]) -> Vec<(&'static str, f64)> {
    let usable = |case: &Case| Some((inputs(&case.candidates), fastest(case, paths)?.0 as usize));
    let tree = Tree::grow(&training.iter().filter_map(usable).collect::<Vec<_>>());
    figures(&chosen(test, paths, |case| PathKind::ALL[tree.class(&inputs(&case))]))
}

/// Ratios, and with two paths the classes.
fn figures(chosen: &[Chosen]) -> Vec<(&'static str, f64)> {
    if chosen.is_empty() {
        return Vec::new();
    }
    let mut figures = ratios(chosen);
    if chosen.iter().all(|it| TWO.contains(&it.path) && TWO.contains(&it.fastest)) {
        figures.extend(classes(chosen, PathKind::Offload));
    }
    figures
}

/// The model's choices among all paths: each path set against the others.
fn by_path(training: &[Case], test: &[Case]) -> Rows {
    let model = calibrated(training);
    let chosen = chosen(test, &PathKind::ALL, |case| model.best(&case).expect("usable").path);
    let are_met = |path: PathKind| chosen.iter().any(|it| it.path == path || it.fastest == path);
    let met = PathKind::ALL.into_iter().filter(|path| are_met(*path));
    met.map(|path| (format!("model, {} against the rest", path.name()), classes(&chosen, path))).collect()
}

/// Fit of each path, and choices of model and tree.
fn evaluate(training: &[Case], test: &[Case]) -> [Rows; 2] {
    let model = calibrated(training);
    let fits = PathKind::ALL.into_iter().filter_map(|path| Some((path.name().to_string(), fit(&model, path, test)?)));
    let by_model = |paths: &[PathKind]| figures(&chosen(test, paths, |case| model.best(&case).expect("usable").path));
    let all = &PathKind::ALL[..];
    let rows = [
        ("model, all paths", by_model(all)),
        ("tree, all paths", by_tree(training, test, all)),
        ("model, direct or offload", by_model(&TWO)),
        ("tree, direct or offload", by_tree(training, test, &TWO)),
    ];
    let rows = rows.into_iter().filter(|(_, figures)| !figures.is_empty());
    let rows = rows.map(|(name, figures)| (name.to_string(), figures));
    [fits.collect(), rows.collect()]
}

fn calibrated(training: &[Case]) -> Model {
    let mut model = Model::new(Settings::default()).expect("valid settings");
    for path in PathKind::ALL {
        let at = path as usize;
        let observations: Vec<_> =
            training.iter().filter_map(|case| Some((case.candidates[at]?, case.ns[at]?))).collect();
        model.calibrate(path, &observations).expect("valid observations");
    }
    model
}

fn fit(model: &Model, path: PathKind, test: &[Case]) -> Option<Vec<(&'static str, f64)>> {
    let at = path as usize;
    let pairs: Vec<(f64, f64)> = test
        .iter()
        .filter_map(|case| Some((case.ns[at]?, model.path(path).predict_ns(&case.candidates[at]?)?)))
        .collect();
    if pairs.len() < 2 {
        return None;
    }
    let explained = |of: fn(f64) -> f64| {
        let mean = pairs.iter().map(|(ns, _)| of(*ns)).sum::<f64>() / pairs.len() as f64;
        let all: f64 = pairs.iter().map(|(ns, _)| (of(*ns) - mean).powi(2)).sum();
        1.0 - pairs.iter().map(|(ns, predicted)| (of(*ns) - of(*predicted)).powi(2)).sum::<f64>() / all
    };
    let mut errors: Vec<f64> = pairs.iter().map(|(ns, predicted)| (predicted / ns - 1.0).abs()).collect();
    errors.sort_by(f64::total_cmp);
    Some(vec![
        ("r2", explained(|ns| ns)),
        ("r2_log", explained(f64::ln)),
        ("error_median", errors[errors.len() / 2]),
        ("error_decile", errors[errors.len() * 9 / 10]),
    ])
}

/// A choice: the path, the fastest one, and their times.
struct Chosen {
    path: PathKind,
    fastest: PathKind,
    ns: f64,
    best_ns: f64,
}

fn fastest(case: &Case, paths: &[PathKind]) -> Option<(PathKind, f64)> {
    paths
        .iter()
        .filter_map(|&path| Some((path, case.ns[path as usize]?)))
        .min_by(|left, right| left.1.total_cmp(&right.1))
}

/// The choices in the cases where at least two of the paths have a time.
fn chosen(test: &[Case], paths: &[PathKind], choose: impl Fn(Candidates) -> PathKind) -> Vec<Chosen> {
    test.iter()
        .filter_map(|case| {
            let usable: Vec<_> = paths.iter().copied().filter(|&path| case.ns[path as usize].is_some()).collect();
            let mut candidates = [None; PATHS];
            for &path in &usable {
                candidates[path as usize] = case.candidates[path as usize];
            }
            let (fastest, best_ns) = fastest(case, &usable)?;
            let path = choose(candidates);
            // A tree may name a path that this case has not; it then takes the first.
            let path = if usable.contains(&path) { path } else { usable[0] };
            (usable.len() > 1).then(|| Chosen { path, fastest, ns: case.ns[path as usize].unwrap_or(best_ns), best_ns })
        })
        .collect()
}

fn ratios(chosen: &[Chosen]) -> Vec<(&'static str, f64)> {
    let mut ratios: Vec<f64> = chosen.iter().map(|it| it.ns / it.best_ns).collect();
    ratios.sort_by(f64::total_cmp);
    let worst = &ratios[ratios.len() * 9 / 10..];
    vec![
        ("sum", chosen.iter().map(|it| it.ns).sum::<f64>() / chosen.iter().map(|it| it.best_ns).sum::<f64>()),
        ("decile", worst.iter().sum::<f64>() / worst.len() as f64),
        ("worst", ratios[ratios.len() - 1]),
        ("accuracy", chosen.iter().filter(|it| it.path == it.fastest).count() as f64 / chosen.len() as f64),
    ]
}

/// Precision, recall and F1 of one path, as far as they have denominators, and the share of scans in which it is the fastest.
fn classes(chosen: &[Chosen], positive: PathKind) -> Vec<(&'static str, f64)> {
    let count = |path: bool, fastest: bool| {
        let is = |it: &&Chosen| (it.path == positive) == path && (it.fastest == positive) == fastest;
        chosen.iter().filter(is).count() as f64
    };
    let (hits, chosen_wrongly, missed) = (count(true, true), count(true, false), count(false, true));
    let figures = [
        ("precision", hits, hits + chosen_wrongly),
        ("recall", hits, hits + missed),
        ("f1", 2.0 * hits, 2.0 * hits + chosen_wrongly + missed),
        ("fastest", hits + missed, chosen.len() as f64),
    ];
    figures.into_iter().filter(|(_, _, of)| *of > 0.0).map(|(name, part, of)| (name, part / of)).collect()
}

/// What the tree sees: the features of the first path, and the queues of mover and agent.
fn inputs(candidates: &Candidates) -> tree::Inputs {
    let first = candidates.iter().skip(1).chain(&candidates[..1]).flatten().next().copied().unwrap_or_default();
    let queue = |path: PathKind| candidates[path as usize].map_or(0.0, |it| it.queue_bytes);
    [
        first.bytes,
        first.latency_ns,
        first.result_bytes,
        first.traffic_bytes_s,
        queue(PathKind::Offload),
        queue(PathKind::Pushdown),
    ]
}

/// The machine changes after the calibration; scans take the chosen paths.
fn drift(report: &mut Report, seeds: u64) {
    report.table(&format!(
        "the machine changes, means of {seeds} seeds: time of choices over the best, after so many scans"
    ));
    let before = Link::default();
    let changes = [
        ("nothing", before, before),
        ("latency doubled, agent 4 times slower", before, Link { latency_factor: 2.0, agent_factor: 4.0, ..before }),
        ("link of half the rate", before, Link { bytes_s: before.bytes_s / 2.0, ..before }),
        ("agent 15 times faster", Link { agent_factor: 3.0, ..before }, Link { agent_factor: 0.2, ..before }),
    ];
    for (name, before, after) in changes {
        for learns in [true, false] {
            let mut sums = [0.0; 4];
            for seed in 0..seeds {
                for (sum, ratio) in sums.iter_mut().zip(drifted(before, after, learns, seed)) {
                    *sum += ratio / seeds as f64;
                }
            }
            let updates = if learns { "updates" } else { "no updates" };
            let figures = [("at_0", sums[0]), ("at_200", sums[1]), ("at_600", sums[2]), ("at_2000", sums[3])];
            report.row("drift", &format!("{name}, {updates}"), &figures);
        }
    }
}

fn drifted(before: Link, after: Link, learns: bool, seed: u64) -> [f64; 4] {
    let mut random = Random(seed);
    let mut case = |link: &Link, is_true: bool| {
        let it = Configuration::random(&mut random, &before);
        let ns = if is_true { link.true_ns(&it) } else { link.measured_ns(&it, &mut random) };
        Case { candidates: it.candidates(), ns: ns.map(Some) }
    };
    let training: Vec<Case> = (0..400).map(|_| case(&before, false)).collect();
    let test: Vec<Case> = (0..300).map(|_| case(&after, true)).collect();
    let mut model = Model::new(Settings { learns, ..Settings::default() }).expect("valid settings");
    for path in PathKind::ALL {
        let at = path as usize;
        let observations: Vec<_> =
            training.iter().filter_map(|case| Some((case.candidates[at]?, case.ns[at]?))).collect();
        model.calibrate(path, &observations).expect("valid observations");
    }
    let mut scans = 0;
    [0, 200, 600, 2000].map(|upto| {
        while scans < upto {
            let it = case(&after, false);
            let choice = model.choose(&it.candidates, None).expect("usable");
            model.finished(&choice, it.ns[choice.path as usize].unwrap_or(1.0)).expect("valid");
            scans += 1;
        }
        ratios(&chosen(&test, &PathKind::ALL, |candidates| model.best(&candidates).expect("usable").path))[0].1
    })
}

fn costs(report: &mut Report, rounds: usize) {
    report.table("cost of the model, one core");
    let link = Link::default();
    let mut random = Random(1);
    let cases: Vec<(Candidates, [f64; PATHS])> = (0..400)
        .map(|_| {
            let it = Configuration::random(&mut random, &link);
            (it.candidates(), link.measured_ns(&it, &mut random))
        })
        .collect();
    let training: Vec<Case> =
        cases.iter().map(|(candidates, ns)| Case { candidates: *candidates, ns: ns.map(Some) }).collect();
    let started = Instant::now();
    let mut model = calibrated(&training);
    report.row("cost", "calibrate, 5 paths of 400 scans", &[("ms", started.elapsed().as_secs_f64() * 1e3)]);
    let path = PathKind::Offload;
    let scans: Vec<(Features, f64)> =
        cases.iter().filter_map(|(candidates, ns)| Some((candidates[path as usize]?, ns[path as usize]))).collect();
    let mut time = |name: &str, step: &mut dyn FnMut(usize)| {
        let started = Instant::now();
        for round in 0..rounds {
            step(round % 400);
        }
        report.row("cost", name, &[("ns", started.elapsed().as_secs_f64() * 1e9 / rounds as f64)]);
    };
    time("predict", &mut |at| {
        black_box(model.path(path).predict_ns(&scans[at].0));
    });
    time("choose among 5 paths", &mut |at| {
        black_box(model.best(&cases[at].0).expect("usable"));
    });
    time("update", &mut |at| model.observe(path, &scans[at].0, scans[at].1).expect("valid"));
}

/// The configurations of a file of measured scans, in the order of their first scans.
fn read(path: &Path) -> Result<Vec<Case>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_json = lines.first().is_some_and(|line| line.trim_start().starts_with('{'));
    let names: Vec<&str> =
        if is_json { Vec::new() } else { lines.first().ok_or("it is empty")?.split(',').map(str::trim).collect() };
    let mut found: BTreeMap<String, (usize, Candidates, [Vec<f64>; PATHS])> = BTreeMap::new();
    for (number, line) in lines.iter().enumerate().skip(usize::from(!is_json)) {
        let fields = if is_json {
            json_fields(line)
        } else {
            names.iter().copied().zip(line.split(',').map(str::trim)).collect()
        };
        let text = |name: &str| fields.get(name).copied().ok_or(format!("line {}: no {name}", number + 1));
        let value =
            |name: &str| text(name)?.parse::<f64>().map_err(|_| format!("line {}: {name} is no number", number + 1));
        let path = PathKind::named(text("path")?).ok_or(format!("line {}: no such path", number + 1))?;
        let features = Features {
            bytes: value("bytes")?,
            latency_ns: value("latency_ns")?,
            result_bytes: value("result_bytes")?,
            traffic_bytes_s: value("traffic_bytes_s")?,
            queue_bytes: value("queue_bytes")?,
        };
        let next = found.len();
        let case = found
            .entry(text("configuration")?.to_string())
            .or_insert_with(|| (next, [None; PATHS], Default::default()));
        case.1[path as usize] = Some(features);
        case.2[path as usize].push(value("time_ns")?);
    }
    let mut cases: Vec<_> = found.into_values().collect();
    cases.sort_by_key(|case| case.0);
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    Ok(cases.into_iter().map(|(_, candidates, times)| Case { candidates, ns: times.map(median) }).collect())
}

/// The fields of an object without nested ones, whose texts contain no comma, colon or quote.
fn json_fields(line: &str) -> BTreeMap<&str, &str> {
    let inside = line.trim().trim_start_matches('{').trim_end_matches([',', '}']);
    inside
        .split(',')
        .filter_map(|field| field.split_once(':'))
        .map(|(name, value)| (name.trim().trim_matches('"'), value.trim().trim_matches('"')))
        .collect()
}
