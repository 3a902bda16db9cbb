//! An output partition: it probes its share of the join with its probe rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use arrow::array::{Array, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{filter_record_batch, is_not_null};
use arrow::datatypes::SchemaRef;
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::poll_fn;
use futures::{StreamExt, stream};

use super::batches::Batches;
use super::build::{Building, CancelOnDrop, panicked};
use super::describe::Description;
use super::error::to_datafusion;
use super::exec::Live;
use super::explain::Actual;
use crate::{CancelToken, Join, JoinKind, Step};

/// The facts about all probe rows that `NOT IN` needs.
#[derive(Debug, Default)]
pub struct ProbeSeen {
    any: AtomicBool,
    null: AtomicBool,
}

/// The inputs of an output partition.
pub struct Probe {
    pub description: Arc<Description>,
    pub partition: usize,
    pub building: Building,
    /// Build sides of joins below, which may begin at once.
    pub ahead: Vec<Building>,
    pub input: SendableRecordBatchStream,
    pub schema: SchemaRef,
    /// A batch of the output has at most this many rows, and ends with the row that brings it to `batch_bytes` bytes.
    pub batch_rows: usize,
    pub batch_bytes: usize,
    /// The most rows that are wanted.
    pub fetch: Option<usize>,
    pub cancel: CancelToken,
    pub seen: Arc<ProbeSeen>,
    pub metrics: Metrics,
    pub actual: Arc<Actual>,
    /// Dropped with the stream.
    pub _live: Live,
}

/// Figures of an output partition.
pub struct Metrics {
    pub baseline: BaselineMetrics,
    pub probe_rows: Count,
    pub spilled_bytes: Count,
    pub spilled_partitions: Count,
}

impl Probe {
    pub fn stream(self) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let output = Batches::new(Arc::clone(&schema), self.batch_rows, self.batch_bytes);
        let wanted = self.fetch.unwrap_or(usize::MAX);
        let running = Running { probe: self, join: None, output, wanted, is_done: false, silent_steps: 0 };
        let batches = stream::try_unfold(running, |mut running| async move {
            let batch = running.next().await?;
            Ok::<_, DataFusionError>(batch.map(|batch| (batch, running)))
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }
}

struct Running {
    /// Dropped before the probe, whose end gives the join's floor back to the plan.
    join: Option<Join>,
    probe: Probe,
    output: Batches,
    wanted: usize,
    is_done: bool,
    silent_steps: usize,
}

/// The most steps without a batch before the stream yields to the runtime.
const SILENT_STEPS_MAX: usize = 8;

impl Running {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.output.next_full() {
                let batch = if batch.num_rows() > self.wanted { batch.slice(0, self.wanted) } else { batch };
                self.wanted -= batch.num_rows();
                return Ok(Some(batch.record_output(&self.probe.metrics.baseline)));
            }
            if self.is_done || self.wanted == 0 {
                self.end();
                return Ok(None);
            }
            let Some(mut join) = self.join.take() else {
                self.begin().await?;
                continue;
            };
            let step = {
                let _timer = self.probe.metrics.baseline.elapsed_compute().timer();
                if join.next_is_long() {
                    let step;
                    (join, step) = step_aside(join, &self.probe.cancel).await?;
                    step
                } else {
                    join.step().map_err(to_datafusion)?
                }
            };
            match step {
                Step::Output(batch) => self.take(batch)?,
                Step::Working => self.breathe().await,
                Step::Hungry => self.feed(&mut join).await?,
                Step::Done => {
                    self.output.finish()?;
                    self.is_done = true;
                }
            }
            self.join = Some(join);
        }
    }

    /// Waits for the build side.
    async fn begin(&mut self) -> Result<()> {
        // This build side begins first, so that its readers come before those of the others.
        self.probe.building.begin();
        self.probe.ahead.drain(..).for_each(|other| other.begin());
        let built = self.probe.building.get().await?;
        let mut join = built.take(self.probe.partition)?;
        let kind = self.probe.description.spec.kind;
        let needs_match = !matches!(kind, JoinKind::Right | JoinKind::Full | JoinKind::RightAnti | JoinKind::RightMark);
        if built.is_empty && needs_match {
            // No probe row gives any output.
            join.finish_probe().map_err(to_datafusion)?;
            self.probe.input =
                Box::pin(datafusion::physical_plan::EmptyRecordBatchStream::new(self.probe.input.schema()));
        }
        self.join = Some(join);
        Ok(())
    }

    /// Yields to other tasks on this thread from time to time: a condition that never holds gives no batch for long.
    async fn breathe(&mut self) {
        self.silent_steps += 1;
        let mut is_due = self.silent_steps.is_multiple_of(SILENT_STEPS_MAX);
        poll_fn(move |context| {
            if !std::mem::take(&mut is_due) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    async fn feed(&mut self, join: &mut Join) -> Result<()> {
        // Inputs yield to the runtime themselves. Yielding here would uselessly wake another thread, and its processor would be late for the next task.
        self.silent_steps = 0;
        let Some(batch) = self.probe.input.next().await else {
            return join.finish_probe().map_err(to_datafusion);
        };
        let batch = batch?;
        let _timer = self.probe.metrics.baseline.elapsed_compute().timer();
        self.probe.metrics.probe_rows.add(batch.num_rows());
        let batch = self.probe.description.probe.with_keys(batch)?;
        if self.probe.description.null_aware && batch.num_rows() > 0 {
            let key = batch.column(self.probe.description.spec.on[0].1);
            self.probe.seen.any.store(true, Ordering::Relaxed);
            self.probe.seen.null.fetch_or(key.logical_null_count() > 0, Ordering::Relaxed);
        }
        join.push_probe(&batch).map_err(to_datafusion)
    }

    /// Turns rows of the join into rows of the plan.
    fn take(&mut self, batch: RecordBatch) -> Result<()> {
        let batch = if self.probe.description.null_aware { self.not_in(&batch)? } else { batch };
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns()[..self.probe.schema.fields().len()].to_vec();
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.probe.schema), columns, &options)?;
        self.output.push(batch)?;
        Ok(())
    }

    /// `x NOT IN (…)` for rows without a match: null, and therefore dropped, if there is a null in the list, or if x is
    /// null and the list is not empty. All probe rows have been seen: build rows come out last.
    fn not_in(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if self.probe.seen.null.load(Ordering::Relaxed) {
            return Ok(batch.slice(0, 0));
        }
        if !self.probe.seen.any.load(Ordering::Relaxed) {
            return Ok(batch.clone());
        }
        let is_key: BooleanArray = is_not_null(batch.column(batch.num_columns() - 1))?;
        Ok(filter_record_batch(batch, &is_key)?)
    }

    fn end(&mut self) {
        let Some(join) = self.join.take() else { return };
        let (report, metrics) = (join.report(), &self.probe.metrics);
        metrics.spilled_bytes.add(report.spilled_bytes as usize);
        metrics.spilled_partitions.add(report.spilled_partitions as usize);
        self.probe.actual.probed(&join.progress(), &report, metrics.baseline.elapsed_compute().value() as u64);
    }
}

/// Runs a step on a blocking thread. A join that reads its files waits for the disk, and must not hold a thread that
/// serves other queries.
async fn step_aside(mut join: Join, cancel: &CancelToken) -> Result<(Join, Step)> {
    let on_drop = CancelOnDrop::new(cancel.clone());
    let steps = move || loop {
        match join.step() {
            Ok(Step::Working) => {}
            step => return (join, step),
        }
    };
    let (join, step) = SpawnedTask::spawn_blocking(steps).join().await.map_err(panicked)?;
    on_drop.disarm();
    Ok((join, step.map_err(to_datafusion)?))
}
