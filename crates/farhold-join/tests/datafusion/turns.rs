//! Tasks that a join has woken begin at once, also where the task that woke them continues without a pause: a runtime
//! leaves the task that was woken last to the thread that woke it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use arrow::datatypes::SchemaRef;
use datafusion::common::{JoinType, NullEquality, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{DynamicFilterPhysicalExpr, col, lit};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;
use farhold_join::datafusion::{JoinMemory, JoinRule};
use futures::stream;
use tokio::runtime::Runtime;

/// A place where threads wait for each other.
#[derive(Default)]
struct Meeting {
    here: Mutex<usize>,
    arrived: Condvar,
}

impl Meeting {
    /// Blocks the thread until `wanted` threads have come, or until `patience` has passed. Returns whether they have
    /// come.
    fn meet(&self, wanted: usize, patience: Duration) -> bool {
        let mut here = self.here.lock().unwrap();
        *here += 1;
        self.arrived.notify_all();
        let (here, _) = self.arrived.wait_timeout_while(here, patience, |here| *here < wanted).unwrap();
        *here >= wanted
    }
}

/// A partition that runs a function before its rows come.
struct Part {
    batch: RecordBatch,
    first: Arc<dyn Fn() -> Result<()> + Send + Sync>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.batch.fmt(f)
    }
}

impl PartitionStream for Part {
    fn schema(&self) -> &SchemaRef {
        self.batch.schema_ref()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (batch, first) = (self.batch.clone(), Arc::clone(&self.first));
        let batches = stream::once(async move { first().map(|()| batch) });
        Box::pin(RecordBatchStreamAdapter::new(self.batch.schema(), batches))
    }
}

/// Rows 0..100 of the column `k`, in each of the partitions.
fn table(partitions: usize, first: impl Fn() -> Result<()> + Send + Sync + 'static) -> Arc<dyn ExecutionPlan> {
    let batch = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from_iter_values(0..100)) as _)]).unwrap();
    let part = Arc::new(Part { batch: batch.clone(), first: Arc::new(first) });
    let parts = (0..partitions).map(|_| Arc::clone(&part) as Arc<dyn PartitionStream>).collect();
    Arc::new(StreamingTableExec::try_new(batch.schema(), parts, None, [], false, None).unwrap())
}

/// Runs `work` while tasks without work come from outside. While a runtime begins, a thread of it may go to sleep although a
/// task waits, and be woken only by a later task (tokio 1.54): of two tasks that wait for each other and keep their threads,
/// one would never begin.
fn waking<T>(runtime: &Runtime, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(runtime.spawn(async {}));
                thread::park_timeout(Duration::from_millis(2));
            }
        });
        let _over = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        work()
    })
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Rows of the join by `k`, run on two threads.
fn joined_rows(build: Arc<dyn ExecutionPlan>, probe: Arc<dyn ExecutionPlan>) -> Result<usize> {
    let on = vec![(col("k", &build.schema())?, col("k", &probe.schema())?)];
    let (mode, nulls) = (PartitionMode::CollectLeft, NullEquality::NullEqualsNothing);
    let join = HashJoinExec::try_new(build, probe, on, None, &JoinType::Inner, None, mode, nulls, false)?;
    let context = SessionContext::new();
    let rule = JoinRule::new(JoinMemory::new(&context.runtime_env().memory_pool, None));
    let mut options = ConfigOptions::default();
    options.execution.target_partitions = 2;
    let plan = rule.optimize(Arc::new(join), &options)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let batches = waking(&runtime, || runtime.block_on(collect(plan, context.task_ctx())))?;
    Ok(batches.iter().map(RecordBatch::num_rows).sum())
}

/// Each partition waits for the other, and keeps its thread meanwhile.
fn meeting() -> impl Fn() -> Result<()> + Send + Sync {
    let meeting = Meeting::default();
    move || {
        if meeting.meet(2, Duration::from_mins(2)) { Ok(()) } else { exec_err!("the other partition has not begun") }
    }
}

#[test]
fn partitions_of_a_build_side_are_read_at_once() {
    assert_eq!(joined_rows(table(2, meeting()), table(2, || Ok(()))).unwrap(), 400);
}

/// The build side uses a filter of another join, and so does not begin ahead. It takes long enough for both output
/// partitions to wait for it.
#[test]
fn output_partitions_begin_at_once() {
    let slow = || {
        Meeting::default().meet(2, Duration::from_millis(200));
        Ok(())
    };
    let filter: Arc<dyn PhysicalExpr> = Arc::new(DynamicFilterPhysicalExpr::new(Vec::new(), lit(true)));
    let build = Arc::new(FilterExec::try_new(filter, table(1, slow)).unwrap());
    assert_eq!(joined_rows(build, table(2, meeting())).unwrap(), 200);
}
