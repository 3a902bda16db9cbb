//! Mutation tests: for each planted defect, some seed must notice it. Also counts how many seeds that takes.
//!
//! The runs are in processes of their own ([`run_in_child`], [`child`]): a defect may leave a state that cannot be
//! cleaned up, or a row that stays half written for ever, at which the store spins.

use crate::cluster;
use crate::failover::{Failover, Load, run};
use crate::threads;
use farhold_planted::{Defect, plant};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A defect that the checks must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// In the transactions, without replication.
    Transactions(Defect),
    /// In replication or recovery.
    Replication(Defect),
    /// In journals of a cluster with copies.
    Journals(Defect),
    /// In the columns of nodes.
    Columns(Defect),
    /// In the interaction of several threads of a node.
    Threads(Defect),
    /// In the environment: one node's clock is far slower than the configured bound on the skew allows.
    Clock,
}

impl Wrong {
    /// Everything.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let transactions = Defect::OF_TRANSACTIONS.into_iter().map(Self::Transactions);
        let replication = Defect::OF_REPLICATION.into_iter().map(Self::Replication);
        let journals = Defect::OF_JOURNALS_WITH_COPIES.into_iter().map(Self::Journals);
        let columns = Defect::OF_COLUMNS.into_iter().map(Self::Columns);
        let threads = Defect::OF_THREADS.into_iter().map(Self::Threads);
        transactions.chain(replication).chain(journals).chain(columns).chain(threads).chain([Self::Clock]).collect()
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Transactions(defect)
            | Self::Replication(defect)
            | Self::Journals(defect)
            | Self::Columns(defect)
            | Self::Threads(defect) => format!("{defect:?}"),
            Self::Clock => "ClockBeyondBound".to_owned(),
        }
    }

    /// Plants it in the runs of this thread. Defects of the world and of other threads are in the setups instead.
    pub fn plant(self) {
        if let Self::Transactions(defect) | Self::Replication(defect) | Self::Journals(defect) | Self::Columns(defect) =
            self
        {
            plant(Some(defect));
        }
    }

    /// Runs a seed with it and returns what the checks find.
    fn run(self, seed: u64) -> Result<(), String> {
        match self {
            Self::Transactions(_) => cluster::run(&cluster::Setup::small(seed)).check(),
            // It takes a register whose calls overlap.
            Self::Replication(Defect::LeaseNotWaitedFor) => run(&Failover::with_slow_register(seed)).check(),
            // It takes a node that learns of the founding after the first rows were written.
            Self::Replication(Defect::LateMirrors) => run(&Failover::with_slow_founding(seed)).check(),
            // It takes a death with rows on their way to other places.
            Self::Replication(Defect::DeletesFirst) => run(&Failover::with_moving_rows(seed)).check(),
            // It takes a death while most rows that are read are odd.
            Self::Replication(Defect::OddReadsForgotten) => run(&Failover::with_odd_reads(seed)).check(),
            // They take a host that never learns of its expulsion.
            Self::Replication(Defect::OddWaitedForEver | Defect::OutcomeWaitedFor | Defect::FenceBelieved) => {
                run(&Failover::with_lost_host(seed)).check()
            }
            // It takes a host that renews its lease and reaches no other node.
            Self::Replication(Defect::MissedUntold) => run(&Failover::with_lonely_host(seed)).check(),
            // It takes a machine that is stopped with its clock.
            Self::Replication(Defect::ClockTrusted) => run(&Failover::with_stopped_clocks(seed)).check(),
            // They take a death whose records are older than everything that others have done since.
            Self::Replication(Defect::ComesBackTheSame | Defect::NoTombstones) => {
                run(&Failover::with_old_records(seed)).check()
            }
            Self::Replication(_) => run(&Failover::of_seed(seed)).check(),
            // It takes a commit that has not reached its holders when its node is expelled.
            Self::Journals(Defect::TailCounts) => run(&Failover::with_zombie_keeper(seed)).check(),
            Self::Journals(_) => run(&Failover::with_power_cuts(seed)).check(),
            Self::Columns(_) => run(&Failover::with_columns(seed)).check(),
            Self::Threads(defect) => {
                let setup = match defect {
                    // They take a power failure.
                    Defect::OpenIgnored | Defect::LateRecord => threads::Setup::with_power_cuts(seed),
                    _ => threads::Setup::of_seed(seed),
                };
                threads::run(&threads::Setup { planted: Some(defect), ..setup }).check()
            }
            Self::Clock => {
                let setup = Failover::of_seed(seed);
                // The histories of mixed loads show stale reads; a bank may not.
                let load = Load::Mixed(crate::workload::Workload::of_seed(seed));
                let slow = (seed % 3) as usize;
                let drift_ppm = (0..3).map(|node| if node == slow { -800_000 } else { 0 }).collect();
                run(&Failover { drift_ppm, load, transactions: 80, ..setup }).check()
            }
        }
    }
}

/// How often a defect was noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Noticed {
    /// Seeds run.
    pub seeds: u64,
    /// The findings of the seeds that noticed it.
    pub by: Vec<String>,
}

impl Noticed {
    /// Seeds that it takes, on average.
    #[must_use]
    pub fn seeds_each(&self) -> Option<f64> {
        (!self.by.is_empty()).then(|| self.seeds as f64 / self.by.len() as f64)
    }
}

/// A seed takes some 10 ms; a few take seconds on a loaded machine. One that takes this long counts as stuck.
const STUCK: Duration = Duration::from_secs(10);
/// The same for a seed on real threads, which may take seconds on a quiet machine.
const STUCK_WITH_THREADS: Duration = Duration::from_mins(1);
/// Seeds that the child has begun.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Runs seeds with the defect until `enough` of them have noticed, or `seeds` have run, in processes of `program`, which is
/// this package's binary.
///
/// # Panics
/// If no process or directory can be had.
#[must_use]
pub fn run_in_child(program: &Path, wrong: Wrong, seeds: u64, enough: usize) -> Noticed {
    let number = Wrong::all().iter().position(|other| *other == wrong).unwrap_or(0);
    // A process that aborts leaves clusters behind, and libraries of fabrics leave a report in its working directory.
    let room = tempfile::tempdir().expect("a directory");
    let mut noticed = Noticed::default();
    while noticed.seeds < seeds && noticed.by.len() < enough {
        let child = Command::new(program)
            .args(["teeth-child", &number.to_string(), &noticed.seeds.to_string(), &seeds.to_string()])
            .arg((enough - noticed.by.len()).to_string())
            .env("RUST_BACKTRACE", "0")
            .env("TMPDIR", room.path())
            .current_dir(&room)
            .stderr(Stdio::null())
            .output()
            .expect("a child process");
        for line in String::from_utf8_lossy(&child.stdout).lines().filter_map(|line| line.strip_prefix("seed ")) {
            noticed.seeds += 1;
            noticed.by.extend(line.split_once(": ").map(|(_, what)| what.to_owned()));
        }
        if !child.status.success() {
            noticed.seeds += 1;
            noticed.by.push("an assertion, or no end".to_owned());
        }
    }
    noticed
}

/// The other side of [`run_in_child`]: prints one line per seed.
pub fn child(numbers: &[u64]) {
    let [number, first, seeds, enough] = *numbers else { return };
    let Some(wrong) = Wrong::all().get(number as usize).copied() else { return };
    let stuck = if matches!(wrong, Wrong::Threads(_)) { STUCK_WITH_THREADS } else { STUCK };
    std::thread::spawn(move || {
        let mut last = u64::MAX;
        loop {
            std::thread::park_timeout(stuck);
            let now = DONE.load(Ordering::Relaxed);
            if now == last {
                std::process::abort();
            }
            last = now;
        }
    });
    wrong.plant();
    let mut noticed = 0;
    for seed in first..seeds {
        DONE.fetch_add(1, Ordering::Relaxed);
        match wrong.run(seed) {
            Ok(()) => println!("seed {seed}"),
            Err(what) => {
                println!("seed {seed}: {}", what.trim_end().replace('\n', " / "));
                noticed += 1;
            }
        }
        if noticed == enough {
            return;
        }
    }
}
