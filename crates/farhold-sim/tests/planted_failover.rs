//! The test of the test: defects of replication and recovery, put in on purpose, each of which some seed has to notice. Prints
//! how many seeds it takes.
//!
//! The runs are in processes of their own: a defect may leave nothing in order that a tidy end could start from.

use farhold_sim::failover::{Failover, run};
use farhold_txn::{Defect, plant};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seeds tried with each defect, until it is noticed often enough.
const SEEDS: u64 = 400;
/// Enough to say how many seeds it takes.
const NOTICED_MAX: usize = 4;
/// A seed takes some 50 ms, a few take seconds on a loaded machine; this long means for ever.
const STUCK: Duration = Duration::from_secs(20);
/// Seeds that the child has begun.
static DONE: AtomicU64 = AtomicU64::new(0);
/// How the child hears what to do: the defect's number and the first seed.
const TASK: &str = "FARHOLD_PLANTED_FAILOVER";

#[test]
#[ignore = "minutes: cargo test -p farhold-sim --test planted_failover -- --ignored --nocapture every"]
fn every_planted_defect_is_noticed() {
    let mut missed = Vec::new();
    println!("{:<16} {:>16}   first", "defect", "seeds until seen");
    for (number, defect) in Defect::OF_REPLICATION.into_iter().enumerate() {
        let (mut noticed, mut seed) = (Vec::new(), 0);
        while seed < SEEDS && noticed.len() < NOTICED_MAX {
            let (next, found) = run_child(number, seed, NOTICED_MAX - noticed.len());
            noticed.extend(found);
            seed = next;
        }
        let first = noticed.first().map_or("", String::as_str);
        let name = format!("{defect:?}");
        if noticed.is_empty() {
            println!("{name:<16} {:>16}", "never");
            missed.push(defect);
        } else {
            println!("{name:<16} {:>16.1}   {}", seed as f64 / noticed.len() as f64, &first[..first.len().min(110)]);
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Runs seeds from `first` on in another process; the seed to go on with, and what was noticed.
fn run_child(defect: usize, first: u64, enough: usize) -> (u64, Vec<String>) {
    let this = std::env::current_exe().expect("this program");
    let child = Command::new(this)
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(TASK, format!("{defect} {first} {enough}"))
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
    if !child.status.success() {
        next += 1;
        noticed.push("an assertion, or no end".to_owned());
    }
    (next, noticed)
}

#[test]
#[ignore = "what the other test runs in another process"]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let numbers: Vec<u64> = task.split(' ').filter_map(|number| number.parse().ok()).collect();
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
    plant(Some(Defect::OF_REPLICATION[numbers[0] as usize]));
    let mut noticed = 0;
    for seed in numbers[1]..SEEDS {
        DONE.fetch_add(1, Ordering::Relaxed);
        match run(&Failover::of_seed(seed)).check() {
            Ok(()) => println!("seed {seed}"),
            Err(what) => {
                println!("seed {seed}: {}", what.trim_end().replace('\n', " / "));
                noticed += 1;
            }
        }
        if noticed == numbers[2] {
            return;
        }
    }
}
