//! Memory accounting for exchanges.
//!
//! An exchange (`RepartitionExec`, DataFusion 55) distributes rows to its outputs. It gathers a batch of 8192 rows for
//! each before it counts any memory: under a limit of 60 MB, two such batches held 3,000 rows of 60 KB. Here rows are
//! reserved in the queries' memory when they enter and released when they leave. The exchange itself uses a pool
//! without a limit, so that nothing is counted twice:
//!
//! ```text
//!   input ──▶ ReserveExchange: reserves ──▶ exchange: distributes, gathers ──▶ UnreserveExchange: releases
//! ```
//!
//! If whole batches are distributed in turn, gathering is unnecessary. DataFusion skips it if the input is declared
//! unbounded.

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

/// The state of one exchange of a plan, which runs once.
#[derive(Clone, Debug, Default)]
pub(super) struct ExchangeState(Arc<OnceLock<Begun>>);

#[derive(Debug)]
struct Begun {
    /// The query's context.
    outside: Arc<TaskContext>,
    /// The exchange's context, whose pool has no limit.
    inside: Arc<TaskContext>,
    room: Arc<MemoryReservation>,
}

impl ExchangeState {
    /// The context of the exchange, and the reservation for the rows in it.
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
            // Another partition may have been first.
            let _ = self.0.set(Begun { outside: Arc::clone(outside), inside: Arc::new(inside), room });
        }
        let begun = self.0.wait();
        Ok((Arc::clone(&begun.inside), Arc::clone(&begun.room)))
    }

    /// The context of the exchange's input, and the reservation; `None` before the exchange has begun.
    pub(super) fn before(&self) -> Option<(Arc<TaskContext>, Arc<MemoryReservation>)> {
        self.0.get().map(|begun| (Arc::clone(&begun.outside), Arc::clone(&begun.room)))
    }
}

/// Adds accounting to an exchange whose rows may be long.
pub(super) fn counted(
    node: Arc<dyn ExecutionPlan>,
    cancel: &CancelHandle,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(exchange) = node.downcast_ref::<RepartitionExec>() else { return Ok(Transformed::no(node)) };
    let can_be_long = node.schema().fields().iter().any(|field| may_be_long(field.data_type()));
    // An exchange that preserves an order merges its inputs, and counts its memory.
    if !can_be_long || exchange.preserve_order() {
        return Ok(Transformed::no(node));
    }
    let exchange_state = ExchangeState::default();
    let mut properties = Arc::clone(exchange.input().properties());
    if matches!(exchange.partitioning(), Partitioning::RoundRobinBatch(_)) {
        let endless = Boundedness::Unbounded { requires_infinite_memory: false };
        properties = Arc::new(properties.as_ref().clone().with_boundedness(endless));
    }
    let input =
        SliceExec::with_properties(exchange.input(), Step::ReserveExchange(exchange_state.clone()), properties, cancel);
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let properties = Arc::clone(node.properties());
    let exchange = node.replace_children(vec![input], options)?;
    Ok(Transformed::yes(SliceExec::with_properties(
        &exchange,
        Step::UnreserveExchange(exchange_state),
        properties,
        cancel,
    )))
}

/// The bytes of a batch's variable-length values. The sum over all batches is the same before and after the exchange.
pub(super) fn long_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter().filter(|column| may_be_long(column.data_type()));
    columns.map(|column| (0..column.len()).map(|row| value_bytes(column, row)).sum::<usize>()).sum()
}
