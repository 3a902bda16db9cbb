//! Which access path a scan takes to the columns of another node, and what the node learns from each scan.
//!
//! ```text
//!   planning    features of each path ──► model ──► choice ──► parts of the scan, EXPLAIN
//!   running     each part ──► its time ──► meter ── all parts read ──► the model learns
//!   first scan  a grid of small scans on another thread ──► the model, and its file
//! ```

mod calibrate;
mod meter;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farhold_scan::access_path::{self, AccessPath};
use farhold_scan::model::{Candidates, Choice, Features, Model, ModelError, PathKind, Reason, Settings, file};
use farhold_scan::predicate::Predicate;
use farhold_txn::{FarColumns, Node, NodeId};

pub(super) use access_path::passes;
pub(super) use calibrate::Grid;
pub(super) use meter::Meter;

use crate::{SqlError, SqlState};

/// Scans between two times that the model is written to its file.
const SCANS_PER_FILE: u32 = 256;
/// The latency to a node whose latency has not been measured yet.
const LATENCY_NS: f64 = 1_000.0;
/// The shortest time over which traffic is measured.
const TRAFFIC_TIME: Duration = Duration::from_millis(20);
/// How much a newly measured latency counts beside those before.
const LATENCY_SHARE: f64 = 0.2;

/// The paths of a node to the columns of the others.
pub(crate) struct Paths {
    node: Arc<Node>,
    learned: Mutex<Learned>,
    /// Bytes of scans that the thread of far reads has been asked for.
    queued: AtomicU64,
    is_calibrating: AtomicBool,
    /// Nothing is measured any more.
    is_closed: AtomicBool,
    /// Held by the thread that writes the file.
    file: Mutex<()>,
    /// What may be tuned of the paths.
    pub(super) settings: access_path::Settings,
    /// Why the file gave no model.
    warning: Option<String>,
}

struct Learned {
    model: Model,
    /// Of a small read, by the node.
    latency_ns: HashMap<NodeId, f64>,
    /// Scans since the file was written.
    unsaved: u32,
    traffic: Traffic,
    /// Not before this time, because a calibration has failed.
    calibrate_after: Instant,
}

/// A scan of the part of a table that another node has, as a choice sees it.
#[derive(Clone, Copy)]
pub(super) struct FarPart<'a> {
    pub(super) far: &'a FarColumns,
    /// Its segments that may have a row that passes.
    pub(super) segments: &'a [usize],
    /// Bytes of the pages of all rows.
    pub(super) page_bytes: u64,
    /// The columns that are wanted.
    pub(super) columns: &'a [usize],
    pub(super) predicate: &'a Predicate,
    /// The threads that read it.
    pub(super) threads: usize,
}

impl Paths {
    /// The paths of a node, with what its file says of them.
    pub(crate) fn open(node: &Arc<Node>) -> Self {
        let settings = Settings::default();
        let unknown = || Model::new(settings).expect("the default settings");
        let read = node
            .config()
            .journal
            .as_ref()
            .map(|journal| file::load(&*journal.directory, node.id(), fingerprint(node), settings));
        let (model, warning) = match read {
            None | Some(Err(file::FileError::Absent)) => (unknown(), None),
            Some(Ok(model)) => (model, None),
            Some(Err(error)) => {
                let name = file::name(node.id());
                (unknown(), Some(format!("{name}: {error}; the access paths of scans are measured again")))
            }
        };
        Self {
            node: Arc::clone(node),
            learned: Mutex::new(Learned {
                model,
                latency_ns: HashMap::new(),
                unsaved: 0,
                traffic: Traffic::new(),
                calibrate_after: now(),
            }),
            queued: AtomicU64::new(0),
            is_calibrating: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            file: Mutex::new(()),
            settings: access_path::Settings {
                reply_ns_max: 2 * node.config().request_timeout_ns,
                ..access_path::Settings::default()
            },
            warning,
        }
    }

    /// Why the node's file gave no model, if it should have.
    pub(crate) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The path for a scan of another node's part of a table. `forced`: the one that the session requires.
    pub(super) fn choose(&self, part: FarPart<'_>, forced: Option<PathKind>) -> Result<Choice, SqlError> {
        let candidates = self.candidates(part);
        let mut learned = self.learned();
        let is_known = |path: PathKind| learned.model.path(path).observations() > 0;
        let is_any_known = PathKind::ALL.into_iter().any(|path| candidates[path as usize].is_some() && is_known(path));
        // Until there is a model, columns are read in place, or copied where they are not mapped.
        let forced_or_first = forced.or_else(|| {
            let first = if part.far.is_mapped() { PathKind::Direct } else { PathKind::Offload };
            (!is_any_known).then_some(first)
        });
        let mut choice = learned.model.choose(&candidates, forced_or_first).map_err(|error| match error {
            ModelError::Unusable { path } => {
                let node = part.far.pin().node();
                SqlError::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("the access path {} cannot be used: {}", path.name(), why(path, node)),
                )
                .with_hint("SET farhold.access_path = 'auto' lets each scan choose.")
            }
            other => SqlError::internal(other.to_string()),
        })?;
        if forced.is_none() && forced_or_first.is_some() {
            choice.reason = Reason::Unknown;
        }
        Ok(choice)
    }

    /// The choice again, if the home can compute aggregates of so many bytes; `None`: another path is better all the same.
    pub(super) fn with_aggregates(&self, choice: &Choice, part: FarPart<'_>, result_bytes: f64) -> Option<Choice> {
        let features = Features { result_bytes, ..self.features(part) };
        let again = self.learned().model.reconsider(choice, PathKind::Pushdown, features).ok()?;
        (again.path == PathKind::Pushdown).then_some(again)
    }

    /// The features of each path that can be used.
    fn candidates(&self, part: FarPart<'_>) -> Candidates {
        let mut candidates = Candidates::default();
        let of_columns = self.features(part);
        let threads = part.threads.max(1) as f64;
        for path in usable(part.far) {
            // One thread of the node reads what is not mapped, and all that is copied. The rest is shared by the query's threads.
            let features = match path {
                PathKind::Rows if part.far.is_mapped() => {
                    Features { bytes: part.page_bytes as f64 / threads, queue_bytes: 0.0, ..of_columns }
                }
                PathKind::Rows => Features { bytes: part.page_bytes as f64, ..of_columns },
                PathKind::Direct => Features { bytes: of_columns.bytes / threads, queue_bytes: 0.0, ..of_columns },
                _ => of_columns,
            };
            candidates[path as usize] = Some(features);
        }
        candidates
    }

    /// Of a path that copies columns. Results are decoded by all threads of the query.
    fn features(&self, part: FarPart<'_>) -> Features {
        let (first, late) = access_path::first_and_late(part.predicate, part.columns);
        let places = |columns: Vec<usize>| -> Vec<usize> {
            columns.into_iter().filter_map(|column| part.far.place_of(column)).collect()
        };
        let (first, late) = (places(first), places(late));
        let selectivity = part.predicate.selectivity().clamp(0.0, 1.0);
        let segments = part.segments.iter().map(|number| {
            let segment = &part.far.segments()[*number];
            let of = |places: &[usize]| places.iter().map(|at| f64::from(segment.chunks()[*at].bytes)).sum::<f64>();
            (segment.rows(), of(&first), of(&late))
        });
        let (bytes, result_bytes) = access_path::expected_bytes(selectivity, segments);
        let threads = part.threads.max(1) as f64;
        let mut learned = self.learned();
        let latency_ns = learned.latency_ns.get(&part.far.pin().node()).copied().unwrap_or(LATENCY_NS);
        let traffic_bytes_s = learned.traffic.rate(&self.node);
        drop(learned);
        Features {
            bytes,
            latency_ns,
            result_bytes: result_bytes / threads,
            traffic_bytes_s,
            queue_bytes: self.queued.load(Relaxed) as f64,
        }
    }

    /// A scan has finished.
    pub(super) fn finished(self: &Arc<Self>, choice: &Choice, ns: f64) {
        let mut learned = self.learned();
        // A time or a feature out of its limits teaches nothing.
        if learned.model.finished(choice, ns.max(1.0)).is_err() {
            return;
        }
        learned.unsaved += 1;
        if learned.unsaved >= SCANS_PER_FILE
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            learned.unsaved = 0;
            drop(learned);
            let paths = Arc::clone(self);
            runtime.spawn_blocking(move || paths.save());
        }
    }

    /// A run has been read: how long a small read took before it, and how many bytes the fabric has moved for it.
    pub(super) fn measured(&self, node: NodeId, ns: u64, bytes: u64) {
        let ns = ns as f64;
        let mut learned = self.learned();
        learned.traffic.of_scans += bytes;
        let known = learned.latency_ns.entry(node).or_insert(ns);
        *known += (ns - *known) * LATENCY_SHARE;
    }

    /// Counts bytes that the thread of far reads has been asked for, until the value is dropped.
    pub(super) fn queue(self: &Arc<Self>, bytes: u64) -> Queued {
        self.queued.fetch_add(bytes, Relaxed);
        Queued { paths: Arc::clone(self), bytes }
    }

    /// Writes the file. Without one, or if the disk does not take it, the next start measures again.
    fn save(&self) {
        let _file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let model = {
            let mut learned = self.learned();
            learned.unsaved = 0;
            learned.model.clone()
        };
        if let Some(journal) = &self.node.config().journal {
            let _ = file::save(&model, &*journal.directory, self.node.id(), fingerprint(&self.node));
        }
    }

    /// Measures nothing any more: the engine closes.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Paths {
    fn drop(&mut self) {
        let unsaved = self.learned().unsaved;
        if unsaved > 0 {
            self.save();
        }
    }
}

/// What other instructions of this node move: all of them, without those of scans.
struct Traffic {
    /// Bytes that the fabric has moved for scans.
    of_scans: u64,
    /// At this time, so many had been moved for others.
    since: (Instant, u64),
    bytes_s: f64,
}

impl Traffic {
    fn new() -> Self {
        Self { of_scans: 0, since: (now(), 0), bytes_s: 0.0 }
    }

    /// Bytes a second, of the time since the last look that was long enough ago.
    fn rate(&mut self, node: &Node) -> f64 {
        let (at, before) = self.since;
        let (now, moved) = (now(), node.fabric().bytes_moved().saturating_sub(self.of_scans));
        let passed = now - at;
        if passed >= TRAFFIC_TIME {
            self.bytes_s = moved.saturating_sub(before) as f64 / passed.as_secs_f64();
            self.since = (now, moved);
        }
        self.bytes_s
    }
}

/// Bytes that wait for the thread of far reads.
pub(super) struct Queued {
    paths: Arc<Paths>,
    bytes: u64,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.paths.queued.fetch_sub(self.bytes, Relaxed);
    }
}

/// The paths that queries may take to these columns.
fn usable(far: &FarColumns) -> Vec<PathKind> {
    let direct = far.is_mapped().then_some(PathKind::Direct);
    [PathKind::Rows, PathKind::Offload, PathKind::Pushdown, PathKind::Relaxed].into_iter().chain(direct).collect()
}

/// Why a path is none of the [usable] ones.
fn why(path: PathKind, node: NodeId) -> String {
    match path {
        PathKind::Direct => format!("the memory of node {} is not mapped here", node.0),
        _ => "queries do not use it".to_owned(),
    }
}

/// The clock by which scans are timed.
#[allow(
    clippy::disallowed_methods,
    reason = "query threads have no executor's clock, and nothing depends on the times but the choice of paths, and when threads are given up"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// The access path that copies columns, of a path that does.
pub(super) fn copying(path: PathKind) -> Option<&'static AccessPath> {
    match path {
        PathKind::Rows | PathKind::Direct => None,
        PathKind::Offload | PathKind::Pushdown | PathKind::Relaxed => access_path::by_name(path.name()),
    }
}

/// What all times depend on: the processor, the fabric, the build.
fn fingerprint(node: &Node) -> u64 {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let build = (env!("CARGO_PKG_VERSION"), cfg!(debug_assertions));
    // Another compiler may hash otherwise: then the times are measured again.
    let mut hasher = std::hash::DefaultHasher::new();
    (model, threads, node.fabric().provider(), build).hash(&mut hasher);
    hasher.finish()
}

/// The text in EXPLAIN: the path, what each path was predicted to take, why it is not the fastest of them, and how long the scan took, if it is over.
fn describe(choice: &Choice, node: NodeId, settings: &access_path::Settings, took_ns: Option<f64>) -> String {
    let mut text = format!("access_path={} of node {}", choice.path.name(), node.0);
    if choice.path == PathKind::Offload {
        let _ = write!(text, " in blocks of {} bytes", settings.block_bytes);
    }
    let predicted = PathKind::ALL.into_iter().zip(choice.predicted_ns);
    let predicted: Vec<String> =
        predicted.filter_map(|(path, ns)| ns.map(|ns| format!("{} {:.3} ms", path.name(), ns / 1e6))).collect();
    let predicted = if predicted.is_empty() { "not measured yet".to_owned() } else { predicted.join(", ") };
    let _ = write!(text, " (predicted: {predicted}");
    match choice.reason {
        Reason::Forced => text.push_str("; required"),
        Reason::Explored => text.push_str("; not observed for long"),
        Reason::Least | Reason::Unknown => {}
    }
    if let Some(ns) = took_ns {
        let _ = write!(text, "; took {:.3} ms", ns / 1e6);
    }
    text.push(')');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_says_why_and_how_long() {
        let choice = Choice::forced(PathKind::Offload);
        let settings = access_path::Settings { block_bytes: 4096, ..access_path::Settings::default() };
        let text = describe(&choice, NodeId(2), &settings, Some(1_500_000.0));
        let wanted = "access_path=offload of node 2 in blocks of 4096 bytes (predicted: not measured yet; required; took 1.500 ms)";
        assert_eq!(text, wanted);
        let mut explored = choice;
        explored.reason = Reason::Explored;
        assert!(
            describe(&explored, NodeId(0), &settings, None)
                .ends_with("(predicted: not measured yet; not observed for long)")
        );
    }
}
