//! The test of the test: defects put in on purpose, each of which the checker has to notice within a few dozen seeds.
//!
//! The runs are in processes of their own: a defect may leave nothing in order that a tidy end could start from, and then an
//! assertion of the store ends the process.

use farhold_sim::cluster::{Setup, run};
use farhold_txn::{Defect, plant};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seeds tried with each defect.
const SEEDS: u64 = 24;
/// A seed takes some 50 ms; this long means for ever.
const STUCK: Duration = Duration::from_secs(1);
/// Seeds that the child has begun.
static DONE: AtomicU64 = AtomicU64::new(0);
/// How the child hears what to do: the defect's number and the first seed.
const TASK: &str = "FARHOLD_PLANTED";

#[test]
fn every_planted_defect_is_noticed() {
    let mut missed = Vec::new();
    for (number, defect) in Defect::ALL.into_iter().enumerate() {
        let mut noticed = Vec::new();
        let mut seed = 0;
        while seed < SEEDS {
            let (next, found) = run_child(number, seed);
            noticed.extend(found);
            seed = next;
        }
        println!("{defect:?}: noticed in {} of {SEEDS} seeds", noticed.len());
        println!("    {}", noticed.first().map_or("", String::as_str));
        if noticed.is_empty() {
            missed.push(defect);
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Runs seeds from `first` on in another process; the seed to go on with, and what was noticed.
fn run_child(defect: usize, first: u64) -> (u64, Vec<String>) {
    let this = std::env::current_exe().expect("this program");
    let child = Command::new(this)
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(TASK, format!("{defect} {first}"))
        .env("RUST_BACKTRACE", "0")
        .stderr(Stdio::null())
        .output()
        .expect("a child");
    let output = String::from_utf8_lossy(&child.stdout);
    let (mut next, mut noticed) = (first, Vec::new());
    for line in output.lines().filter_map(|line| line.strip_prefix("seed ")) {
        next += 1;
        noticed.extend(line.split_once(": ").map(|(_, what)| what.to_owned()));
    }
    if !child.status.success() && next < SEEDS {
        next += 1;
        noticed.push("an assertion of the store, or no end".to_owned());
    }
    (next, noticed)
}

#[test]
#[ignore = "what the other test runs in another process"]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let numbers: Vec<u64> = task.split(' ').filter_map(|number| number.parse().ok()).collect();
    // A defect may also leave a row that is being written for ever, at which the store spins.
    std::thread::spawn(|| {
        let mut last = u64::MAX;
        loop {
            std::thread::park_timeout(STUCK);
            let now = DONE.load(Ordering::Relaxed);
            if now == last {
                std::process::abort();
            }
            last = now;
        }
    });
    plant(Some(Defect::ALL[numbers[0] as usize]));
    for seed in numbers[1]..SEEDS {
        DONE.fetch_add(1, Ordering::Relaxed);
        match run(&Setup::small(seed)).check() {
            Ok(()) => println!("seed {seed}"),
            Err(what) => println!("seed {seed}: {}", what.trim_end().replace('\n', " / ")),
        }
    }
}
