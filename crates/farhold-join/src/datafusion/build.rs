//! The build side of a running join. A task for each left partition drains it, either into one join that is then split,
//! or into one join for each partition. It runs once for all output partitions.

use std::sync::{Arc, Mutex};

use arrow::array::{ArrayRef, RecordBatch};
use datafusion::common::runtime::SpawnedTask;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{Count, Time};
use futures::StreamExt;

use super::describe::Description;
use super::error::to_datafusion;
use super::explain::Actual;
use super::filter::{Filter, Seen};
use super::members::Members;
use super::memory::{Begun, PlanMemory, floor_bytes, lock};
use super::once::Once;
use crate::stopwatch::Stopwatch;
use crate::{CancelToken, Join, JoinError, JoinOptions};

/// The joins that probe, one for each output partition, whose stream takes it.
pub struct Built {
    joins: Vec<Mutex<Option<Join>>>,
    /// Whether there is no build row.
    pub is_empty: bool,
    /// Filters of the probe side use these while this value exists.
    _members: Vec<Option<Arc<Members>>>,
    /// Held until the last stream is dropped.
    _begun: Begun,
}

impl Built {
    pub fn take(&self, partition: usize) -> Result<Join> {
        let join = self.joins.get(partition).and_then(|join| lock(join).take());
        join.ok_or_else(|| DataFusionError::Execution(format!("partition {partition} of a join has been taken before")))
    }
}

/// The build side, finished once for every stream that waits for it.
pub type Building = Once<Built>;

/// The inputs of the build side.
pub struct Plan {
    pub description: Arc<Description>,
    pub memory: Arc<PlanMemory>,
    /// The floors, if there was room for them when the join was executed. Dropped when it has begun.
    pub reserved: Option<Begun>,
    /// Whether it waits for memory that joins of other plans hold.
    pub waits: bool,
    /// The options of every join, given the pool when the join begins.
    pub options: Box<dyn Fn(Arc<crate::MemoryPool>) -> JoinOptions + Send + Sync>,
    pub cancel: CancelToken,
    /// The left partitions.
    pub inputs: Vec<SendableRecordBatchStream>,
    /// A join for each input, or one for all.
    pub is_partitioned: bool,
    /// Output partitions.
    pub shares: usize,
    pub filter: Option<Filter>,
    pub rows: Count,
    pub time: Time,
    pub actual: Arc<Actual>,
}

impl Plan {
    pub async fn run(self) -> Result<Built> {
        let watch = Stopwatch::start();
        let on_drop = CancelOnDrop::new(self.cancel.clone());
        let shares = if self.is_partitioned { 1 } else { self.shares };
        let count = if self.is_partitioned { self.inputs.len() } else { 1 };
        let (pool, begun) =
            self.memory.begin(count as u64 * floor_bytes(shares), self.waits).await.map_err(to_datafusion)?;
        drop(self.reserved);
        let joins = (0..count).map(|_| Join::new(self.description.spec.clone(), (self.options)(Arc::clone(&pool))));
        let joins = joins.map(|join| join.map(|join| Arc::new(Mutex::new(Some(join))))).collect::<Result<Vec<_>, _>>();
        let joins = joins.map_err(to_datafusion)?;

        let mut drains = Vec::new();
        for (number, input) in self.inputs.into_iter().enumerate() {
            let join = Arc::clone(&joins[number % count]);
            let (description, filter, rows) = (Arc::clone(&self.description), self.filter.clone(), self.rows.clone());
            drains.push(drain(input, join, description, filter, rows));
        }
        // The runtime leaves the task that was spawned last to this thread. This thread therefore does not itself read one of several inputs. A single input
        // needs no task.
        let mut seen = Vec::new();
        if drains.len() == 1 {
            for drain in drains {
                seen.extend(drain.await?);
            }
        } else {
            let drains: Vec<_> = drains.into_iter().map(SpawnedTask::spawn).collect();
            for drain in drains {
                seen.extend(drain.join().await.map_err(panicked)??);
            }
        }

        let finish = move || -> Result<Vec<Join>, JoinError> {
            let mut finished = Vec::new();
            for join in joins {
                let mut join = Arc::into_inner(join)
                    .and_then(|join| join.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
                    .ok_or_else(|| JoinError::Invalid("a build side is still being drained".into()))?;
                join.finish_build()?;
                if shares > 1 {
                    finished.extend(join.split()?);
                } else {
                    finished.push(join);
                }
            }
            Ok(finished)
        };
        let finished = if self.rows.value() <= FINISHED_HERE_ROWS_MAX {
            finish()
        } else {
            SpawnedTask::spawn_blocking(finish).join().await.map_err(panicked)?
        };
        let finished = finished.map_err(to_datafusion)?;
        let mut members = Vec::new();
        if let Some(filter) = &self.filter {
            if filter.tests_rows {
                members = members_of(&finished, &self.description, &pool).map_err(to_datafusion)?;
            }
            filter.publish(seen, &members)?;
        }
        let build_rows: u64 = finished.iter().map(|join| join.progress().build_rows).sum();
        self.actual.built(build_rows, watch.ns(), finished.first().map(Join::report).as_ref());
        self.time.add_duration(std::time::Duration::from_nanos(watch.ns()));
        on_drop.disarm();
        let joins = finished.into_iter().map(|join| Mutex::new(Some(join))).collect();
        Ok(Built { joins, is_empty: build_rows == 0, _members: members, _begun: begun })
    }
}

/// The most build rows for which the table is made here: it is finished before another thread would have begun.
const FINISHED_HERE_ROWS_MAX: usize = 1 << 13;

/// The values of each key, if no build row is in a file. Joins that share a build side have the same rows.
fn members_of(
    joins: &[Join],
    description: &Description,
    pool: &Arc<crate::MemoryPool>,
) -> Result<Vec<Option<Arc<Members>>>, JoinError> {
    let mut batches: Vec<&RecordBatch> = Vec::new();
    for (number, join) in joins.iter().enumerate() {
        let Some(more) = join.build_batches() else { return Ok(Vec::new()) };
        let is_shared = number > 0 && joins[0].build_batches().is_some_and(|first| std::ptr::eq(first, more));
        batches.extend(more.iter().filter(|_| !is_shared));
    }
    let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
    let of_key = |&(key, _): &(usize, usize)| {
        let columns: Vec<ArrayRef> = batches.iter().map(|batch| Arc::clone(batch.column(key))).collect();
        Ok(Members::of(&columns, rows as u64, pool)?.map(Arc::new))
    };
    description.spec.on.iter().map(of_key).collect()
}

async fn drain(
    mut input: SendableRecordBatchStream,
    join: Arc<Mutex<Option<Join>>>,
    description: Arc<Description>,
    filter: Option<Filter>,
    rows: Count,
) -> Result<Option<Seen>> {
    let mut seen = filter.as_ref().map(Filter::begin).transpose()?;
    while let Some(batch) = input.next().await {
        let batch = batch?;
        rows.add(batch.num_rows());
        if let (Some(filter), Some(seen)) = (&filter, &mut seen) {
            filter.see(seen, &batch)?;
        }
        let batch = description.build.with_keys(batch)?;
        let mut slot = lock(&join);
        // Another drain has failed, and reports why.
        let Some(open) = slot.as_mut() else { break };
        if let Err(error) = open.push_build(&batch) {
            *slot = None;
            return Err(to_datafusion(error));
        }
    }
    Ok(seen)
}

/// The error for a task that panicked, or was dropped with its runtime.
pub fn panicked(error: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::External(Box::new(JoinError::WorkerPanicked(error.to_string())))
}

/// Raises a token unless the guarded work has ended.
pub struct CancelOnDrop(Option<CancelToken>);

impl CancelOnDrop {
    pub fn new(token: CancelToken) -> Self {
        Self(Some(token))
    }

    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(token) = &self.0 {
            token.cancel();
        }
    }
}

/// The number of threads, from a task's context, which every node of the plan is given.
pub fn threads(context: &TaskContext) -> usize {
    context.session_config().target_partitions().max(1)
}
