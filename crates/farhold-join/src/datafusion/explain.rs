//! The text of a join in EXPLAIN: which implementation runs it and why, the model's prediction, and the outcome.

use std::fmt;
use std::sync::Mutex;

use super::memory::lock;
use crate::cost::Machine;
use crate::model::{Choice, ProbeSide, Width, choose_for_batches};
use crate::{Algorithm, JoinReport, Progress};

/// The model's prediction for a join, from statistics.
#[derive(Debug, Clone)]
pub struct Prediction {
    pub build_rows: Option<u64>,
    pub probe_rows: Option<u64>,
    /// None without statistics of both sides.
    choice: Option<Choice>,
    /// The algorithm that the settings ask for.
    given: Option<Choice>,
    by: Circumstances,
}

/// The inputs of a prediction beside the numbers of rows.
#[derive(Debug, Clone)]
pub struct Circumstances {
    pub probe: Width,
    pub threads: usize,
    /// Threads that will probe one table at once.
    pub probers: usize,
    pub budget_bytes: u64,
    /// The algorithm, if the settings ask for one.
    pub given: Option<&'static dyn Algorithm>,
}

impl Prediction {
    pub fn new(build_rows: Option<u64>, probe_rows: Option<u64>, by: Circumstances) -> Self {
        let machine = Machine { budget_bytes: by.budget_bytes, ..Machine::detect() };
        let choice = build_rows.zip(probe_rows).map(|(build_rows, rows)| {
            let probe = ProbeSide { rows, width: by.probe, probers: by.probers };
            choose_for_batches(build_rows as usize, &probe, by.threads, &machine)
        });
        Self { build_rows, probe_rows, choice, given: by.given.map(Choice::given), by }
    }

    /// Whether the plan names a GPU.
    fn is_on_gpu(&self) -> bool {
        self.given.as_ref().or(self.choice.as_ref()).is_some_and(Choice::is_on_gpu)
    }

    /// The prediction for the same sides, when other columns of the probe side are handed out.
    pub fn with_width(&self, probe: Width) -> Self {
        if probe == self.by.probe {
            return self.clone();
        }
        Self::new(self.build_rows, self.probe_rows, Circumstances { probe, ..self.by.clone() })
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Choice { algorithm, device, reason, .. }) = self.given.as_ref().or(self.choice.as_ref()) else {
            return write!(f, "algorithm and device=chosen by the size of the build side, which no statistics tell");
        };
        write!(f, "algorithm={}, device={device}, reason={reason}", algorithm.name())?;
        let Some(choice) = &self.choice else { return Ok(()) };
        let ns = choice.predicted_ns.iter().find(|prediction| prediction.0 == algorithm.name());
        let rows = |rows: Option<u64>| rows.unwrap_or_default();
        write!(f, ", predicted=[{} x {} rows", rows(self.build_rows), rows(self.probe_rows))?;
        if let Some((_, ns)) = ns {
            write!(f, " in {}", Milliseconds(*ns))?;
        }
        f.write_str("]")
    }
}

/// The report of a join so far; empty before it runs.
#[derive(Debug, Default)]
pub struct Actual(Mutex<Figures>);

#[derive(Debug, Default)]
struct Figures {
    built: Option<Table>,
    build_rows: u64,
    build_ns: u64,
    probe_rows: u64,
    probe_ns: u64,
    output_rows: u64,
    spilled_bytes: u64,
    spilled_partitions: u64,
    rounds: u32,
    /// Why the table continued elsewhere than its algorithm says.
    fallback: Option<String>,
}

#[derive(Debug)]
struct Table {
    algorithm: &'static str,
    device: String,
    is_on_gpu: bool,
    scheme: &'static str,
}

impl Actual {
    /// Records that the build side is finished.
    pub fn built(&self, rows: u64, ns: u64, report: Option<&JoinReport>) {
        let mut figures = lock(&self.0);
        (figures.build_rows, figures.build_ns) = (rows, ns);
        figures.built = report.and_then(|report| {
            let choice = report.choice.as_ref()?;
            Some(Table {
                algorithm: choice.algorithm.name(),
                device: choice.device.clone(),
                is_on_gpu: choice.is_on_gpu(),
                scheme: report.scheme?,
            })
        });
    }

    /// Why the join continued elsewhere than its algorithm says.
    pub fn fallback(&self) -> Option<String> {
        lock(&self.0).fallback.clone()
    }

    /// Records that an output partition has ended; `ns` is the time in its share of the join.
    pub fn probed(&self, progress: &Progress, report: &JoinReport, ns: u64) {
        let mut figures = lock(&self.0);
        figures.probe_rows += progress.probe_rows;
        figures.output_rows += progress.output_rows;
        figures.probe_ns += ns;
        figures.spilled_bytes += report.spilled_bytes;
        figures.spilled_partitions += report.spilled_partitions;
        figures.rounds = figures.rounds.max(report.rounds);
        if figures.fallback.is_none() {
            figures.fallback.clone_from(&report.fallback);
        }
    }
}

/// The outcome of a join, next to its prediction.
pub struct Beside<'a>(pub &'a Actual, pub &'a Prediction);

impl fmt::Display for Beside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = lock(&self.0.0);
        let Some(table) = &figures.built else { return Ok(()) };
        // Where the join began, and why not on the GPU that the plan names.
        let device =
            if table.is_on_gpu || self.1.is_on_gpu() { format!(" on {}", table.device) } else { String::new() };
        write!(
            f,
            ", actual=[{}{device}/{}, {} x {} rows, built in {}, probed in {} of all threads, {} rows out, {} bytes spilled in {} \
             partitions, {} rounds",
            table.algorithm,
            table.scheme,
            figures.build_rows,
            figures.probe_rows,
            Milliseconds(figures.build_ns),
            Milliseconds(figures.probe_ns),
            figures.output_rows,
            figures.spilled_bytes,
            figures.spilled_partitions,
            figures.rounds,
        )?;
        if let Some(fallback) = &figures.fallback {
            write!(f, ", {fallback}")?;
        }
        f.write_str("]")
    }
}

struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 1e6)
    }
}
