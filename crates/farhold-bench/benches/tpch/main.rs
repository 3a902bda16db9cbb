//! TPC-H's 22 queries over Parquet files, answers checked:
//! `cargo bench -p farhold-bench --features tpch --bench tpch -- [--scale 1] [--memory 4G] [--threads N] [--runs 3]
//! [--queries 1,5,9] [--engines farhold,plain] [--rival 'COMMAND'] [--folder F] [--json FILE] [--explain]
//! [--set NAME=VALUE]`
//!
//! The engines take turns, query by query and run by run. `plain` is DataFusion as it is, `farhold` is DataFusion with
//! Farhold's joins, `--rival` a program that reads one `{"sql": …}` a line and answers `{"seconds", "rows"}` or
//! `{"error"}` (`scripts/duckdb-queries` is one). All get the same files, threads and memory limit. Answers are compared
//! with each other, and at scale factor 1 with the specification's ([`answer`] says how); a wrong one ends the program
//! with an error. An engine that fails a query does not stop the others; that, too, is in the record.
#![allow(missing_docs)]

mod answer;
mod data;
mod engine;
mod rival;

use std::path::PathBuf;

use answer::Answer;
use clap::Parser;
use engine::{Engine, Joins};
use farhold_bench::allocator::{self, MiMalloc};
use farhold_bench::workload::tpch;
use rival::Rival;
use serde_json::{Value, json};

/// As in the `farhold` program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What to run.
#[derive(Parser)]
struct Args {
    /// TPC-H scale factor.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Memory limit of each engine: bytes, or with K, M or G.
    #[arg(long, default_value = "4G", value_parser = parse_bytes)]
    memory: usize,
    /// Threads of each engine; 0 = all processors.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Measured runs of each query; one run before them warms the file cache.
    #[arg(long, default_value_t = 3, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    runs: usize,
    /// Which queries; all by default.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=22))]
    queries: Vec<u8>,
    /// Which engines.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Joins::Plain])]
    engines: Vec<Joins>,
    /// A program to measure beside them.
    #[arg(long)]
    rival: Option<String>,
    /// Where the files are, or are made; a folder for each scale factor.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Write the record here.
    #[arg(long)]
    json: Option<PathBuf>,
    /// A setting of DataFusion's or of Farhold's joins, as NAME=VALUE; any number of them.
    #[arg(long)]
    set: Vec<String>,
    /// Print each engine's EXPLAIN ANALYZE instead of measuring.
    #[arg(long)]
    explain: bool,
    /// Scale factor 0.01, one run: what the tests run, without this flag, too.
    #[arg(long)]
    quick: bool,
    /// What `cargo bench` passes.
    #[arg(long, hide = true)]
    bench: bool,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    allocator::keep_free_memory();
    let mut args = Args::parse();
    if args.quick || !args.bench {
        (args.scale, args.runs) = (0.01, 1);
    }
    if args.threads == 0 {
        args.threads = std::thread::available_parallelism()?.get();
    }
    let root = args.folder.clone().unwrap_or_else(|| std::env::temp_dir().join("farhold-tpch"));
    let folder = data::folder(&root, args.scale)?;
    let mut contestants = Vec::new();
    for joins in &args.engines {
        contestants.push(Contestant::Engine(Engine::open(&folder, *joins, args.threads, args.memory, &args.set)?));
    }
    if let Some(command) = &args.rival {
        contestants.push(Contestant::Rival(Rival::start(command, &folder, args.threads, args.memory)?));
    }
    let numbers: Vec<usize> = if args.queries.is_empty() {
        (1..=22).collect()
    } else {
        args.queries.iter().copied().map(usize::from).collect()
    };

    if args.explain {
        return explain(&mut contestants, &numbers, args.scale);
    }
    println!(
        "TPC-H scale {}, {} threads, {} MiB, median of {} runs in milliseconds",
        args.scale,
        args.threads,
        args.memory >> 20,
        args.runs
    );
    let mut records = Vec::new();
    let mut wrong = Vec::new();
    for number in numbers {
        let outcomes = run_query(&mut contestants, number, &args);
        print!("Q{number:<3}");
        for outcome in &outcomes {
            match (&outcome.answer, &outcome.verdict) {
                (Err(error), _) => print!("  {} failed: {}", outcome.name, first_line(error)),
                (Ok(_), Some(difference)) => {
                    print!("  {} WRONG: {difference}", outcome.name);
                    wrong.push(format!("Q{number}, {}: {difference}", outcome.name));
                }
                (Ok(_), None) => print!("  {} {:>9.1}", outcome.name, outcome.median_ms()),
            }
        }
        println!();
        records.push(json!({
            "query": number,
            "engines": outcomes.iter().map(Outcome::record).collect::<Vec<Value>>(),
        }));
    }
    let record = json!({
        "scale": args.scale, "threads": args.threads, "memory_bytes": args.memory, "runs": args.runs,
        "official_answers": official_answers(args.scale), "queries": records,
    });
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&record)?)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("wrong answers:\n{}", wrong.join("\n")).into()) }
}

/// Prints the plans as they ran, with what each operator did; the second run's, with a warm file cache.
fn explain(contestants: &mut [Contestant], numbers: &[usize], scale: f64) -> Result<(), Failure> {
    for &number in numbers {
        let sql = format!("EXPLAIN ANALYZE {}", tpch::query(number, scale));
        for contestant in &mut *contestants {
            contestant.run(&sql)?;
            let (seconds, plan) = contestant.run(&sql)?;
            println!("Q{number}, {}, {:.1} ms\n{plan}", contestant.name(), seconds * 1e3);
        }
    }
    Ok(())
}

/// What a query made of one engine.
struct Outcome {
    name: String,
    milliseconds: Vec<f64>,
    answer: Result<Answer, String>,
    /// How the answer differs from what it must be.
    verdict: Option<String>,
}

impl Outcome {
    fn median_ms(&self) -> f64 {
        let mut sorted = self.milliseconds.clone();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    }

    fn record(&self) -> Value {
        match (&self.answer, &self.verdict) {
            (Err(error), _) => json!({ "engine": self.name, "error": first_line(error) }),
            (Ok(answer), verdict) => json!({
                "engine": self.name, "ms": self.milliseconds, "rows": answer.len(), "wrong": verdict,
            }),
        }
    }
}

/// Runs a query `1 + runs` times in every engine, in turns, and judges the answers.
fn run_query(contestants: &mut [Contestant], number: usize, args: &Args) -> Vec<Outcome> {
    let sql = tpch::query(number, args.scale);
    let mut outcomes: Vec<Outcome> = contestants
        .iter()
        .map(|c| Outcome { name: c.name(), milliseconds: Vec::new(), answer: Err(String::new()), verdict: None })
        .collect();
    let count = contestants.len();
    for run in 0..=args.runs {
        // Each engine is equally often the first after another: the caches that one leaves help or hinder the next.
        for turn in 0..count {
            let at = if run.is_multiple_of(2) { turn } else { count - 1 - turn };
            let (contestant, outcome) =
                (&mut contestants[(at + run / 2) % count], &mut outcomes[(at + run / 2) % count]);
            if run > 0 && outcome.answer.is_err() {
                continue;
            }
            outcome.answer = contestant.run(&sql).map(|(seconds, answer)| {
                if run > 0 {
                    outcome.milliseconds.push(seconds * 1e3);
                }
                answer
            });
        }
    }
    let official = official_answers(args.scale);
    for index in 0..outcomes.len() {
        let (before, rest) = outcomes.split_at_mut(index);
        let Ok(answer) = &rest[0].answer else { continue };
        let against_official = if official { answer.difference_from_official(number) } else { None };
        let right = before.iter().find(|o| o.verdict.is_none() && o.answer.is_ok());
        let against_others = right.and_then(|other| {
            let difference = answer.difference(other.answer.as_ref().ok()?)?;
            Some(format!("not as {}: {difference}", other.name))
        });
        rest[0].verdict = against_official.map(|d| format!("not as the specification: {d}")).or(against_others);
    }
    outcomes
}

enum Contestant {
    Engine(Engine),
    Rival(Rival),
}

impl Contestant {
    fn name(&self) -> String {
        match self {
            Self::Engine(engine) => engine.name().to_owned(),
            Self::Rival(rival) => rival.name().to_owned(),
        }
    }

    /// Seconds and rows.
    fn run(&mut self, sql: &str) -> Result<(f64, Answer), String> {
        match self {
            Self::Engine(engine) => engine.run(sql),
            Self::Rival(rival) => rival.run(sql),
        }
    }
}

/// Whether the specification has answers for this scale.
fn official_answers(scale: f64) -> bool {
    (scale - 1.0).abs() < 1e-9
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a size; write for example 512M or 4G"))?;
    match &text[digits.len()..] {
        "" => Ok(number),
        "K" => Ok(number << 10),
        "M" => Ok(number << 20),
        "G" => Ok(number << 30),
        unit => Err(format!("`{unit}` is not a unit of size; use K, M or G")),
    }
}
