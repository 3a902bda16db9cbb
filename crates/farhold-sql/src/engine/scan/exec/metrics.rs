//! What EXPLAIN ANALYZE shows of a scan beyond its rows: the time by each access path, and the segments that keys of joins skip.

use std::time::Duration;

use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet, MetricBuilder, Time};
use farhold_scan::model::{PATHS, PathKind};

/// The metrics of a partition for each access path.
pub(super) struct PathMetrics {
    set: ExecutionPlanMetricsSet,
    partition: usize,
    times: [Option<Time>; PATHS],
    /// Segments of other nodes that were skipped by the keys of joins.
    skipped: Option<Count>,
}

impl PathMetrics {
    pub(super) fn new(set: ExecutionPlanMetricsSet, partition: usize) -> Self {
        Self { set, partition, times: Default::default(), skipped: None }
    }

    pub(super) fn add_time(&mut self, path: PathKind, ns: u64) {
        let metric = || MetricBuilder::new(&self.set).subset_time(format!("{}_time", path.name()), self.partition);
        self.times[path as usize].get_or_insert_with(metric).add_duration(Duration::from_nanos(ns));
    }

    pub(super) fn add_skipped(&mut self, segments: usize) {
        let metric = || MetricBuilder::new(&self.set).counter("far_segments_skipped", self.partition);
        self.skipped.get_or_insert_with(metric).add(segments);
    }
}
