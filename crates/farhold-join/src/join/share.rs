//! A build side that several joins probe, each on a thread of its own.
//!
//! ```text
//!                  ┌─▶ join ─ its probe rows ─▶ their pairs ─┐
//!   build side ────┼─▶ join ─ its probe rows ─▶ their pairs ─┤ the last to end: build rows beyond pairs,
//!                  └─▶ join ─ its probe rows ─▶ their pairs ─┘ and the spilled partitions of all
//! ```
//!
//! No join waits for another: a join that is not the last is done when its own probe rows are. A join that is dropped
//! or fails never arrives, so that no join is the last, and nothing is handed out that might be wrong.

use std::sync::Mutex;

use crate::memory::Reservation;
use crate::spill::SpillFile;

/// Probe rows of spilled partitions, by partition: the files of every join.
pub type ProbeFiles = Vec<Vec<SpillFile>>;

/// The joins that share a build side.
pub struct Peers(Mutex<Inner>);

struct Inner {
    /// Joins that have not ended.
    probing: usize,
    files: ProbeFiles,
    /// The reservation of the build side, with which the last join continues.
    memory: Option<Reservation>,
}

impl Peers {
    pub fn new(count: usize, memory: Reservation) -> Self {
        Self(Mutex::new(Inner { probing: count, files: Vec::new(), memory: Some(memory) }))
    }

    /// Called when a join has no further probe rows, with its files. The last join gets the files of all, and the build
    /// side's memory.
    pub fn arrive(&self, files: ProbeFiles) -> Option<(ProbeFiles, Reservation)> {
        let mut inner = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if inner.files.len() < files.len() {
            inner.files.resize_with(files.len(), Vec::new);
        }
        for (all, more) in inner.files.iter_mut().zip(files) {
            all.extend(more);
        }
        inner.probing -= 1;
        if inner.probing > 0 {
            return None;
        }
        let files = std::mem::take(&mut inner.files);
        inner.memory.take().map(|memory| (files, memory))
    }
}
