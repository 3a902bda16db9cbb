//! Windows whose frames extend to the last row.
//!
//! Such a window (DataFusion 55) keeps all of its rows, computes all values at once and puts them into one batch, and
//! counts no memory for it. Here its rows and its long values are reserved in the queries' memory, and the batch is
//! passed on in slices:
//!
//! ```text
//!   input ──▶ ReserveWindow: each batch ──▶ window: reserves values ──▶ UnreserveWindow: slices; releases at the end
//! ```

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::window_state::WindowAggState;
use datafusion::logical_expr::{LimitEffect, PartitionEvaluator};
use datafusion::physical_expr::window::{StandardWindowExpr, StandardWindowFunctionExpr, WindowExpr};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::windows::WindowAggExec;

use super::slices::{CONSTANT_BYTES_MIN, SliceExec, Step, value_bytes};
use crate::engine::cancel::CancelHandle;

/// The reservations of a window's running partitions.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<HashMap<usize, Room>>>);

pub(super) type Room = Arc<MemoryReservation>;

impl Held {
    /// A reservation for a partition that begins.
    pub(super) fn begin(&self, partition: usize, pool: &Arc<dyn MemoryPool>) -> Begun {
        let room = Arc::new(MemoryConsumer::new("window").register(pool));
        self.lock().insert(partition, Arc::clone(&room));
        Begun { held: self.clone(), partition, room }
    }

    /// The reservation of a running partition.
    pub(super) fn of(&self, partition: usize) -> Option<Room> {
        self.lock().get(&partition).cloned()
    }

    /// The reservation of any partition: a value does not identify its partition.
    fn any(&self) -> Option<Room> {
        self.lock().values().next().cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Room>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running partition.
pub(super) struct Begun {
    held: Held,
    partition: usize,
    room: Room,
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut rooms = self.held.lock();
        // The partition may have begun again meanwhile.
        if rooms.get(&self.partition).is_some_and(|room| Arc::ptr_eq(room, &self.room)) {
            rooms.remove(&self.partition);
        }
    }
}

/// The bytes that a window keeps of a batch: it concatenates the columns of all batches, but the texts behind views are
/// not copied.
pub(super) fn kept_bytes(batch: &RecordBatch) -> usize {
    let kept = |column: &ArrayRef| {
        let texts = || (0..column.len()).map(|row| value_bytes(column, row)).sum::<usize>();
        match column.data_type() {
            DataType::Utf8View | DataType::BinaryView => 2 * size_of::<u128>() * column.len() + texts(),
            other => 2 * other.primitive_width().map_or_else(texts, |bytes| bytes * column.len()),
        }
    };
    batch.columns().iter().map(kept).sum()
}

/// A window that reserves the memory of the rows and values it keeps.
pub(super) fn counted(window: &WindowAggExec, cancel: &CancelHandle) -> Result<Arc<dyn ExecutionPlan>> {
    let held = Held::default();
    let input = SliceExec::over(window.input(), Step::ReserveWindow(held.clone()), cancel);
    let counted = |expression: &Arc<dyn WindowExpr>| -> Arc<dyn WindowExpr> {
        let Some(standard) = expression.as_any().downcast_ref::<StandardWindowExpr>() else {
            return Arc::clone(expression);
        };
        let inner = Arc::clone(standard.get_standard_func_expr());
        let function = Arc::new(Counted { inner, held: held.clone(), cancel: cancel.clone() });
        let frame = Arc::clone(standard.get_window_frame());
        Arc::new(StandardWindowExpr::new(function, standard.partition_by(), standard.order_by(), frame))
    };
    let expressions = window.window_expr().iter().map(counted).collect();
    let window = WindowAggExec::try_new(expressions, input, !window.partition_keys().is_empty())?;
    let window: Arc<dyn ExecutionPlan> = Arc::new(window);
    Ok(SliceExec::over(&window, Step::UnreserveWindow(held), cancel))
}

/// A window function that reserves its long values.
#[derive(Debug)]
struct Counted {
    inner: Arc<dyn StandardWindowFunctionExpr>,
    held: Held,
    cancel: CancelHandle,
}

impl StandardWindowFunctionExpr for Counted {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn field(&self) -> Result<FieldRef> {
        self.inner.field()
    }

    fn expressions(&self) -> Vec<Arc<dyn PhysicalExpr>> {
        self.inner.expressions()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn evaluate_args(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        self.inner.evaluate_args(batch)
    }

    fn create_evaluator(&self) -> Result<Box<dyn PartitionEvaluator>> {
        let inner = self.inner.create_evaluator()?;
        Ok(Box::new(Counting { inner, room: self.held.any(), cancel: self.cancel.clone() }))
    }

    fn reverse_expr(&self) -> Option<Arc<dyn StandardWindowFunctionExpr>> {
        self.inner.reverse_expr()
    }

    fn get_result_ordering(&self, schema: &SchemaRef) -> Option<PhysicalSortExpr> {
        self.inner.get_result_ordering(schema)
    }

    fn limit_effect(&self) -> LimitEffect {
        self.inner.limit_effect()
    }
}

#[derive(Debug)]
struct Counting {
    inner: Box<dyn PartitionEvaluator>,
    room: Option<Room>,
    cancel: CancelHandle,
}

impl PartitionEvaluator for Counting {
    fn memoize(&mut self, state: &mut WindowAggState) -> Result<()> {
        self.inner.memoize(state)
    }

    fn get_range(&self, index: usize, rows: usize) -> Result<Range<usize>> {
        self.inner.get_range(index, rows)
    }

    fn is_causal(&self) -> bool {
        self.inner.is_causal()
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        self.inner.evaluate_all(values, rows)
    }

    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        self.cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
        let value = self.inner.evaluate(values, range)?;
        let bytes = value.size();
        if let Some(room) = self.room.as_ref().filter(|_| bytes >= CONSTANT_BYTES_MIN) {
            // The value, and its copy in the column of all values.
            room.try_grow(bytes.saturating_mul(2))?;
        }
        Ok(value)
    }

    fn evaluate_all_with_rank(&self, rows: usize, ranks: &[Range<usize>]) -> Result<ArrayRef> {
        self.inner.evaluate_all_with_rank(rows, ranks)
    }

    fn supports_bounded_execution(&self) -> bool {
        self.inner.supports_bounded_execution()
    }

    fn uses_window_frame(&self) -> bool {
        self.inner.uses_window_frame()
    }

    fn include_rank(&self) -> bool {
        self.inner.include_rank()
    }
}
