//! Replays a seed of a cluster whose nodes die, and prints its events. Also measures how fast seeds run, and which planted defects the checks notice.

use farhold_fabric::Executor;
use farhold_sim::failover::{Aftermath, Compared, Failover, Scenario, run};
use farhold_sim::hiccups::Hiccups;
use farhold_sim::seeds::{jobs_max, run_each};
use farhold_sim::teeth::{self, Wrong};
use farhold_sim::threads;
use std::process::ExitCode;

/// Some forty clusters a second are made and dropped: the system's allocator would return memory to the kernel each time, which costs a tenth of the run time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: farhold-sim --seed N [--seeds COUNT] [--jobs J] [--quiet] [--planted DEFECT] [SCENARIO]
                                                        replays seeds, J at a time (all processors), with their stories
       farhold-sim scenarios                            the scenarios' flags
       farhold-sim rate [--seeds COUNT] [--jobs J]      simulated transactions a second, checks included
       farhold-sim threads [--seed N] [--seeds COUNT] [--planted DEFECT] [--power-cuts]
                                                        nodes on real threads, which stop in the middle of their sections
       farhold-sim teeth [--seeds MOST] [--times COUNT] how many seeds it takes to notice each planted defect";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value_of = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let jobs = value_of("--jobs").map_or_else(jobs_max, |jobs| jobs as usize);
    match arguments.first().map(String::as_str) {
        Some("scenarios") => {
            for scenario in Scenario::ALL {
                println!("{}", scenario.flag);
            }
            ExitCode::SUCCESS
        }
        Some("rate") => rate(value_of("--seeds").unwrap_or(200), jobs),
        Some("threads") => match planted_of(&arguments, |wrong| matches!(wrong, Wrong::Threads(_))) {
            Ok(planted) => {
                let has_cuts = arguments.iter().any(|argument| argument == "--power-cuts");
                run_threads(value_of("--seed").unwrap_or(0), value_of("--seeds").unwrap_or(1), planted, has_cuts)
            }
            Err(refused) => refused,
        },
        Some("teeth") => show_teeth(value_of("--seeds").unwrap_or(400), value_of("--times").unwrap_or(4)),
        Some("teeth-child") => {
            let numbers: Vec<u64> = arguments[1..].iter().filter_map(|word| word.parse().ok()).collect();
            teeth::child(&numbers);
            ExitCode::SUCCESS
        }
        _ => replay_seeds(&arguments, value_of("--seed"), value_of("--seeds").unwrap_or(1), jobs),
    }
}

/// Replays the seeds that the arguments name, or prints how to name them.
fn replay_seeds(arguments: &[String], first: Option<u64>, seeds: u64, jobs: usize) -> ExitCode {
    let (Some(first), Some(scenario)) = (first, scenario_of(arguments)) else {
        let flags: Vec<&str> = Scenario::ALL.iter().map(|it| it.flag).filter(|it| !it.is_empty()).collect();
        println!("{USAGE}\nSCENARIO is one of {}", flags.join(" "));
        return ExitCode::from(2);
    };
    let planted = match planted_of(arguments, |wrong| !matches!(wrong, Wrong::Threads(_) | Wrong::Clock)) {
        Ok(planted) => planted,
        Err(refused) => return refused,
    };
    let quiet = arguments.iter().any(|argument| argument == "--quiet");
    let one = |seed| {
        planted.inspect(|wrong| wrong.plant());
        let setup = (scenario.of_seed)(seed);
        let aftermath = run(&setup);
        let outcome = aftermath.check();
        (!quiet || outcome.is_err()).then_some((setup, aftermath, outcome))
    };
    replay(first..first + seeds, jobs, one)
}

/// The scenario of the arguments; `None` for a flag that is not known.
fn scenario_of(arguments: &[String]) -> Option<Scenario> {
    let is_other = |flag: &&String| ["--seed", "--seeds", "--jobs", "--quiet", "--planted"].contains(&flag.as_str());
    let mut flags = arguments.iter().filter(|it| it.starts_with("--")).filter(|flag| !is_other(flag));
    let named = Scenario::named(flags.next().map_or("", String::as_str));
    named.filter(|_| flags.next().is_none())
}

/// The defect that `--planted` names, one of those that the runs can have.
fn planted_of(arguments: &[String], can_have: impl Fn(&Wrong) -> bool) -> Result<Option<Wrong>, ExitCode> {
    let Some(at) = arguments.iter().position(|argument| argument == "--planted") else { return Ok(None) };
    let name = arguments.get(at + 1).map_or("", String::as_str);
    let possible: Vec<Wrong> = Wrong::all().into_iter().filter(can_have).collect();
    let found = possible.iter().copied().find(|wrong| wrong.name() == name);
    if found.is_none() {
        let names: Vec<String> = possible.into_iter().map(Wrong::name).collect();
        println!("no defect of these runs is called {name:?}, but {}", names.join(", "));
        return Err(ExitCode::from(2));
    }
    Ok(found)
}

/// A run that is to be printed.
type Told = (Failover, Aftermath, Result<(), String>);

fn replay(seeds: std::ops::Range<u64>, jobs: usize, one: impl Fn(u64) -> Option<Told> + Sync) -> ExitCode {
    let mut worst = ExitCode::SUCCESS;
    run_each(seeds, jobs, one, |seed, told| {
        let Some((setup, aftermath, outcome)) = told else { return };
        println!(
            "seed {seed}: {} nodes, {} copies of each row, {} order, {} clients, clocks off by {:?} ppm",
            setup.nodes,
            setup.replicas,
            if setup.optimistic { "optimistic" } else { "pessimistic" },
            setup.nodes as usize * setup.clients,
            setup.drift_ppm
        );
        println!("             {:?}", setup.load);
        if let Some(Hiccups { one_in, ns_max }) = setup.hiccups {
            let longer = ns_max / 1000;
            println!(
                "             one instruction, and one turn of a task, in {one_in} takes up to {longer} µs longer"
            );
        }
        aftermath.story.iter().for_each(|line| println!("{line}"));
        println!(
            "             {} transactions, configuration {}, trace {:016x}",
            aftermath.commits(),
            aftermath.configuration,
            aftermath.trace_hash
        );
        if aftermath.compared != Compared::default() {
            println!("             {:?}", aftermath.compared);
        }
        match outcome {
            Ok(()) => println!(
                "in order: a serial order explains what was seen, nothing acknowledged is lost, all copies are alike"
            ),
            Err(what) => {
                println!("NOT in order: {what}");
                aftermath.broken.iter().skip(1).for_each(|what| println!("              {what}"));
                tell_transactions(&aftermath, &what);
                worst = ExitCode::FAILURE;
            }
        }
    });
    worst
}

/// Prints the reads and writes of the transactions that a finding names.
fn tell_transactions(aftermath: &Aftermath, what: &str) {
    let mut records: Vec<_> =
        aftermath.history.records.iter().filter(|record| what.contains(&format!("T{} ", record.id))).collect();
    records.sort_by_key(|record| record.serial);
    for record in records {
        let doubt = if record.in_doubt { ", its outcome unknown to its client" } else { "" };
        println!("  T{} ({}): serial {}, epoch {}{doubt}", record.id, record.label, record.serial, record.epoch);
        for read in &record.reads {
            println!("     saw {:?} in {}", read.saw, read.key);
        }
        for range in &record.ranges {
            println!(
                "     saw {:?} in a range of table {} by {:?}, {}..={}",
                range.saw, range.table, range.by, range.lo, range.hi
            );
        }
        for write in &record.writes {
            println!("     wrote {:?} to {}", write.row, write.key);
        }
    }
}

/// Runs clusters of real threads one after the other: each has more threads than this machine is likely to have processors.
fn run_threads(first: u64, seeds: u64, planted: Option<Wrong>, has_cuts: bool) -> ExitCode {
    let planted = planted.and_then(|wrong| if let Wrong::Threads(defect) = wrong { Some(defect) } else { None });
    let mut worst = ExitCode::SUCCESS;
    for seed in first..first + seeds {
        let of_seed: fn(u64) -> threads::Setup =
            if has_cuts { threads::Setup::with_power_cuts } else { threads::Setup::of_seed };
        let setup = threads::Setup { planted, ..of_seed(seed) };
        let outcome = threads::run(&setup);
        let (commits, verdict) = (outcome.history.records.len(), outcome.check());
        match verdict {
            Ok(()) => println!("seed {seed}: in order, {commits} transactions"),
            Err(what) => {
                println!("seed {seed}: NOT in order, {setup:?}: {what}");
                worst = ExitCode::FAILURE;
            }
        }
    }
    worst
}

/// Prints one line of JSON.
fn rate(seeds: u64, jobs: usize) -> ExitCode {
    let clock = Executor::real(0).handle();
    let began_ns = clock.now_ns();
    let (mut commits, mut bad) = (0, 0);
    let one = |seed| {
        let aftermath = run(&Failover::of_seed(seed));
        (aftermath.check().is_err(), aftermath.commits())
    };
    run_each(0..seeds, jobs, one, |_, (is_bad, committed)| {
        bad += u64::from(is_bad);
        commits += committed;
    });
    let seconds = (clock.now_ns() - began_ns) as f64 / 1e9;
    println!(
        "{{\"seeds\": {seeds}, \"jobs\": {jobs}, \"not_in_order\": {bad}, \"transactions\": {commits}, \"seconds\": {seconds:.3}, \
         \"transactions_per_second\": {:.0}, \"seeds_per_second\": {:.1}}}",
        commits as f64 / seconds,
        seeds as f64 / seconds
    );
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a table in Markdown.
fn show_teeth(seeds: u64, times: u64) -> ExitCode {
    let Ok(program) = std::env::current_exe() else { return ExitCode::FAILURE };
    let mut worst = ExitCode::SUCCESS;
    println!("| planted | seeds until noticed, mean of {times} | noticed as, the first time |\n|---|---|---|");
    for wrong in Wrong::all() {
        let noticed = teeth::run_in_child(&program, wrong, seeds, times as usize);
        let name = wrong.name();
        if let (Some(each), Some(first)) = (noticed.seeds_each(), noticed.by.first()) {
            let words: String = first.chars().take(110).collect();
            println!("| {name} | {each:.1} | {} |", words.replace('|', "/"));
        } else {
            println!("| {name} | not within {seeds} | |");
            worst = ExitCode::FAILURE;
        }
    }
    worst
}
