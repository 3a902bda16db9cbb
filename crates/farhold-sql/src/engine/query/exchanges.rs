//! Exchanges with what they hold counted.
//!
//! An exchange (`RepartitionExec`, DataFusion 55) deals rows out to its outputs, and gathers a batch of 8192 for each before it counts any: beside a
//! limit of 60 MB, 3,000 rows of 60 KB stood in two such batches. Here rows are taken from the queries' memory as they go in and given back as they
//! come out; the exchange itself has a pool without a limit, so that nothing is counted twice:
//!
//! ```text
//!   input ──▶ Enter: takes room ──▶ exchange: deals out, gathers ──▶ Leave: gives the room back
//! ```
//!
//! Rows that are dealt out whole batches at a time need not be gathered: DataFusion does not where its input says that it never ends.

use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::execution_plan::{Boundedness, ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use super::slices::{SliceExec, Step, may_be_long, value_bytes};
use crate::engine::cancel::CancelHandle;

/// The way through one exchange of a plan that runs once.
#[derive(Clone, Debug, Default)]
pub(super) struct Way(Arc<OnceLock<Begun>>);

#[derive(Debug)]
struct Begun {
    /// That of the query.
    outside: Arc<TaskContext>,
    /// Its pool has no limit.
    inside: Arc<TaskContext>,
    room: Arc<MemoryReservation>,
}

impl Way {
    /// How the exchange is to run, and the room of the rows within it.
    pub(super) fn begin(&self, outside: &Arc<TaskContext>) -> Result<(Arc<TaskContext>, Arc<MemoryReservation>)> {
        if self.0.get().is_none() {
            let runtime = RuntimeEnvBuilder::from_runtime_env(&outside.runtime_env())
                .with_memory_pool(Arc::new(UnboundedMemoryPool::default()))
                .build_arc()?;
            let inside = TaskContext::new(
                outside.task_id(),
                outside.session_id(),
                outside.session_config().clone(),
                outside.scalar_functions().clone(),
                outside.higher_order_functions().clone(),
                outside.aggregate_functions().clone(),
                outside.window_functions().clone(),
                runtime,
            );
            let room = Arc::new(MemoryConsumer::new("exchange").register(outside.memory_pool()));
            // Another partition may have been the first.
            let _ = self.0.set(Begun { outside: Arc::clone(outside), inside: Arc::new(inside), room });
        }
        let begun = self.0.wait();
        Ok((Arc::clone(&begun.inside), Arc::clone(&begun.room)))
    }

    /// How what stands before the exchange is to run, and the room; `None` before it has begun.
    pub(super) fn before(&self) -> Option<(Arc<TaskContext>, Arc<MemoryReservation>)> {
        self.0.get().map(|begun| (Arc::clone(&begun.outside), Arc::clone(&begun.room)))
    }
}

/// An exchange that counts its rows, if these can be long.
pub(super) fn counted(
    node: Arc<dyn ExecutionPlan>,
    cancel: &CancelHandle,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(exchange) = node.downcast_ref::<RepartitionExec>() else { return Ok(Transformed::no(node)) };
    let can_be_long = node.schema().fields().iter().any(|field| may_be_long(field.data_type()));
    // One that keeps an order merges its inputs, and counts.
    if !can_be_long || exchange.preserve_order() {
        return Ok(Transformed::no(node));
    }
    let way = Way::default();
    let mut properties = Arc::clone(exchange.input().properties());
    if matches!(exchange.partitioning(), Partitioning::RoundRobinBatch(_)) {
        let endless = Boundedness::Unbounded { requires_infinite_memory: false };
        properties = Arc::new(properties.as_ref().clone().with_boundedness(endless));
    }
    let input = SliceExec::with_properties(exchange.input(), Step::Enter(way.clone()), properties, cancel);
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let properties = Arc::clone(node.properties());
    let exchange = node.replace_children(vec![input], options)?;
    Ok(Transformed::yes(SliceExec::with_properties(&exchange, Step::Leave(way), properties, cancel)))
}

/// The bytes of a batch's values of any length. They are the same before and behind the exchange, however it puts rows together.
pub(super) fn long_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter().filter(|column| may_be_long(column.data_type()));
    columns.map(|column| (0..column.len()).map(|row| value_bytes(column, row)).sum::<usize>()).sum()
}
