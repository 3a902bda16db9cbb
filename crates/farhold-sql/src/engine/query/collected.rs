//! `array_agg`, `string_agg`, `min` and `max` as window functions.
//!
//! Each row of the window has its own value. For `array_agg` this is an array of all elements of the row's frame: with
//! 100,000 rows in one order some 5 billion elements, which no operator accounts for. For `min` and `max` the longest
//! text of all rows may be copied to each row. So the results of these functions are reserved in the queries' memory
//! until the query ends, since it is not known here how long a batch of the window is kept.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, LogicalPlan, Signature, WindowFrame, WindowFunctionDefinition,
};

use super::slices::CONSTANT_BYTES_MIN;
use crate::engine::cancel::CancelHandle;

/// Gives the functions of a plan that is about to run their memory reservations, and the flag that stops them.
pub(super) fn attach(plan: LogicalPlan, pool: &Arc<dyn MemoryPool>, cancel: &CancelHandle) -> Result<LogicalPlan> {
    let attach_one = |mut expression: Expr| {
        if let Expr::WindowFunction(function) = &mut expression
            && let WindowFunctionDefinition::AggregateUDF(inner) = &function.fun
            && let Some(bytes_min) = counted_from(inner.name(), &function.params.window_frame)
        {
            let room = Arc::new(MemoryConsumer::new(inner.name()).register(pool));
            let counted = Counted { inner: Arc::clone(inner), bytes_min, room, cancel: cancel.clone() };
            function.fun = WindowFunctionDefinition::AggregateUDF(Arc::new(AggregateUDF::from(counted)));
            return Ok(Transformed::yes(expression));
        }
        Ok(Transformed::no(expression))
    };
    plan.transform_up_with_subqueries(|node| node.map_expressions(|e| e.transform_up(attach_one))).data()
}

/// The size in bytes from which a function's values are counted; `None` if they never are. Texts of frames that end
/// before the last row are made for one slice of rows at a time.
fn counted_from(function: &str, frame: &WindowFrame) -> Option<usize> {
    match function {
        "array_agg" | "string_agg" => Some(0),
        "min" | "max" if frame.end_bound.is_unbounded() => Some(CONSTANT_BYTES_MIN),
        _ => None,
    }
}

#[derive(Debug)]
struct Counted {
    inner: Arc<AggregateUDF>,
    bytes_min: usize,
    room: Arc<MemoryReservation>,
    cancel: CancelHandle,
}

impl PartialEq for Counted {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Counted {}

impl Hash for Counted {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl Counted {
    fn counted(&self, inner: Box<dyn Accumulator>) -> Box<dyn Accumulator> {
        let (room, cancel) = (Arc::clone(&self.room), self.cancel.clone());
        Box::new(Counting { inner, bytes_min: self.bytes_min, room, cancel, rows: 0 })
    }
}

impl AggregateUDFImpl for Counted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(arguments)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.counted(self.inner.accumulator(arguments)?))
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.counted(self.inner.create_sliding_accumulator(arguments)?))
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(arguments)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }
}

#[derive(Debug)]
struct Counting {
    inner: Box<dyn Accumulator>,
    bytes_min: usize,
    room: Arc<MemoryReservation>,
    cancel: CancelHandle,
    /// Rows since the last value. If the frame is the whole partition, each row gets the same value.
    rows: usize,
}

impl Accumulator for Counting {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows += values.first().map_or(0, |values| values.len());
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.cancel.check().map_err(|error| DataFusionError::External(Box::new(error)))?;
        let value = self.inner.evaluate()?;
        let rows = std::mem::take(&mut self.rows).max(1);
        let bytes = value.size();
        if bytes >= self.bytes_min {
            self.room.try_grow(bytes.saturating_mul(rows))?;
        }
        Ok(value)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}
