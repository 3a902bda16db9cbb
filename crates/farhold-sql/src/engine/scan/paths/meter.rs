//! The time of a scan of another node's part of a table, added up over its parts and threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use farhold_scan::model::Choice;
use farhold_txn::NodeId;

use super::{Paths, describe};

/// Reports to the model once all parts have been read. A scan that ends early, or that a filter of a join makes shorter, is not reported.
pub(in crate::engine::scan) struct Meter {
    pub(in crate::engine::scan) paths: Arc<Paths>,
    pub(in crate::engine::scan) choice: Choice,
    pub(in crate::engine::scan) node: NodeId,
    threads: usize,
    ns: AtomicU64,
    /// Parts that have not been read yet.
    left: AtomicUsize,
    is_shortened: AtomicBool,
}

impl Meter {
    /// A meter of a scan without parts, which reports nothing.
    pub(in crate::engine::scan) fn new(paths: &Arc<Paths>, choice: Choice, node: NodeId) -> Self {
        Self {
            paths: Arc::clone(paths),
            choice,
            node,
            threads: 1,
            ns: AtomicU64::new(0),
            left: AtomicUsize::new(0),
            is_shortened: AtomicBool::new(false),
        }
    }

    /// A meter for this number of parts, read by at most this number of threads.
    pub(in crate::engine::scan) fn of_parts(self, parts: usize, threads: usize) -> Self {
        Self { left: AtomicUsize::new(parts), threads: threads.min(parts).max(1), ..self }
    }

    /// Notes that the scan reads other rows than the choice was made for.
    pub(in crate::engine::scan) fn shorten(&self) {
        self.is_shortened.store(true, Relaxed);
    }

    /// The text in EXPLAIN.
    pub(in crate::engine::scan) fn describe(&self) -> String {
        let is_over = self.left.load(Relaxed) == 0 && self.ns.load(Relaxed) > 0;
        describe(&self.choice, self.node, &self.paths.settings, is_over.then(|| self.taken_ns()))
    }

    /// How long the scan took, as far as it has been read: what the prediction is of.
    fn taken_ns(&self) -> f64 {
        self.ns.load(Relaxed) as f64 / self.threads as f64
    }

    /// Notes that a part has been read, in this many nanoseconds of one thread.
    pub(in crate::engine::scan) fn add(&self, ns: u64) {
        self.ns.fetch_add(ns, Relaxed);
        // A plan that runs again has no parts left to report.
        let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if left == Ok(1) && !self.is_shortened.load(Relaxed) {
            self.paths.finished(&self.choice, self.taken_ns());
        }
    }
}
