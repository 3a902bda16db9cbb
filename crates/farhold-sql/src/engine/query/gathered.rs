//! `array_agg` that counts the bytes of its texts.
//!
//! An aggregate reports its size, and the operator above reserves it in the queries' memory. DataFusion's `array_agg`
//! (55) counts only the 16 bytes of a text's view: 180 MB of texts were gathered under a limit of 60 MB. Here the bytes
//! of the texts are counted in addition. A view of a part of a text, as `left` makes it, keeps the whole text alive, so
//! such parts are copied.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::buffer::Buffer;
use arrow::compute::filter as kept;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature,
};
use datafusion::prelude::SessionContext;

use super::slices::value_bytes;

/// Replaces DataFusion's `array_agg`.
pub(super) fn register(context: &SessionContext) {
    context.register_udaf(AggregateUDF::from(Gathered(array_agg_udaf())));
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Gathered(Arc<AggregateUDF>);

impl AggregateUDFImpl for Gathered {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.0.return_type(arguments)
    }

    fn return_field(&self, arguments: &[FieldRef]) -> Result<FieldRef> {
        self.0.return_field(arguments)
    }

    fn is_nullable(&self) -> bool {
        self.0.is_nullable()
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.0.state_fields(arguments)
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        // Accumulators for DISTINCT and ORDER BY copy their values and count them.
        let counts = arguments.is_distinct || !arguments.order_bys.is_empty();
        let inner = self.0.accumulator(arguments)?;
        Ok(if counts { inner } else { Box::new(One { inner, texts: 0 }) })
    }

    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs<'_>) -> bool {
        self.0.groups_accumulator_supported(arguments)
    }

    fn create_groups_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(Groups { inner: self.0.create_groups_accumulator(arguments)?, texts: 0 }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }

    fn with_beneficial_ordering(self: Arc<Self>, is_ordered: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let inner = Arc::unwrap_or_clone(Arc::clone(&self.0)).with_beneficial_ordering(is_ordered)?;
        Ok(inner.map(|inner| Arc::new(Self(Arc::new(inner))) as _))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.0.reverse_udf() {
            ReversedUDAF::Reversed(inner) => ReversedUDAF::Reversed(Arc::new(AggregateUDF::from(Self(inner)))),
            other => other,
        }
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.0.supports_null_handling_clause()
    }
}

/// The bytes of texts outside their views, in an array and its lists. The aggregate itself counts texts that are stored
/// inline in an array.
fn text_bytes(array: &ArrayRef) -> usize {
    if !has_views(array.data_type()) {
        return 0;
    }
    (0..array.len()).map(|row| value_bytes(array, row)).sum()
}

fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::List(element) | DataType::LargeList(element) => has_views(element.data_type()),
        _ => false,
    }
}

/// The array with its texts copied to new buffers, if less than half of its buffers is in use.
fn compact(array: &ArrayRef) -> ArrayRef {
    let is_loose = |buffers: &[Buffer], used: usize| buffers.iter().map(Buffer::len).sum::<usize>() > 2 * used;
    match array.data_type() {
        DataType::Utf8View => {
            let texts = array.as_string_view();
            let is_loose = is_loose(texts.data_buffers(), texts.total_buffer_bytes_used());
            if is_loose { Arc::new(texts.gc()) } else { Arc::clone(array) }
        }
        DataType::BinaryView => {
            let texts = array.as_binary_view();
            let is_loose = is_loose(texts.data_buffers(), texts.total_buffer_bytes_used());
            if is_loose { Arc::new(texts.gc()) } else { Arc::clone(array) }
        }
        _ => Arc::clone(array),
    }
}

/// The arguments of an aggregate, compacted, and the bytes of their texts.
fn taken(values: &[ArrayRef]) -> (Vec<ArrayRef>, usize) {
    (values.iter().map(compact).collect(), values.iter().map(text_bytes).sum())
}

/// The accumulator of a single group.
#[derive(Debug)]
struct One {
    inner: Box<dyn Accumulator>,
    texts: usize,
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let (values, texts) = taken(values);
        self.texts += texts;
        self.inner.update_batch(&values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.texts = self.texts.saturating_sub(values.iter().map(text_bytes).sum());
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.texts += states.iter().map(text_bytes).sum::<usize>();
        self.inner.merge_batch(states)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
    }

    fn size(&self) -> usize {
        self.inner.size() + self.texts
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }
}

/// The accumulators of many groups.
struct Groups {
    inner: Box<dyn GroupsAccumulator>,
    texts: usize,
}

impl Groups {
    fn gives(&mut self, given: &[ArrayRef], emit: EmitTo) {
        self.texts = match emit {
            EmitTo::All => 0,
            EmitTo::First(_) => self.texts.saturating_sub(given.iter().map(text_bytes).sum()),
        };
    }
}

impl GroupsAccumulator for Groups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        groups_total: usize,
    ) -> Result<()> {
        let Some(filter) = filter else {
            let (values, texts) = taken(values);
            self.texts += texts;
            return self.inner.update_batch(&values, groups, None, groups_total);
        };
        // The inner accumulator would keep a batch with all its rows, including those that FILTER excludes.
        let passing = values.iter().map(|array| kept(array, filter)).collect::<std::result::Result<Vec<_>, _>>()?;
        let rows = filter.iter().zip(groups).filter(|(passes, _)| *passes == Some(true));
        let groups: Vec<usize> = rows.map(|(_, group)| *group).collect();
        let (values, texts) = taken(&passing);
        self.texts += texts;
        self.inner.update_batch(&values, &groups, None, groups_total)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], groups_total: usize) -> Result<()> {
        self.texts += values.iter().map(text_bytes).sum::<usize>();
        self.inner.merge_batch(values, groups, groups_total)
    }

    fn evaluate(&mut self, emit: EmitTo) -> Result<ArrayRef> {
        let given = self.inner.evaluate(emit)?;
        self.gives(std::slice::from_ref(&given), emit);
        Ok(given)
    }

    fn state(&mut self, emit: EmitTo) -> Result<Vec<ArrayRef>> {
        let given = self.inner.state(emit)?;
        self.gives(&given, emit);
        Ok(given)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.inner.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.inner.size() + self.texts
    }
}
