//! The accumulators of the aggregates, and how they compute the results.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, Float64Type, Int64Type, IntervalMonthDayNanoType};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::super::intervals;
use super::{Kind, PRECISION_MAX, is_interval};
use crate::engine::scalar::{has_digits, quotient, wide_quotient};
use crate::{SqlError, SqlState};

/// Casts to another type, or fails.
fn cast(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(array, data_type, &options)?)
}

/// The arguments as the inner aggregates take them.
fn widened(values: &[ArrayRef], data_type: &DataType) -> Result<Vec<ArrayRef>> {
    let widen = |array: &ArrayRef| {
        if *data_type == DataType::Binary && is_interval(array.data_type()) {
            return Ok(intervals::to_order(array.as_primitive::<IntervalMonthDayNanoType>()));
        }
        if *data_type == DataType::Int64 && array.data_type().is_floating() {
            let doubles = cast(array, &DataType::Float64)?;
            return Ok(Arc::new(doubles.as_primitive::<Float64Type>().unary::<_, Int64Type>(to_order)) as ArrayRef);
        }
        cast(array, data_type)
    };
    values.iter().map(widen).collect()
}

/// Maps a float to an integer in PostgreSQL's order: all NaNs are equal and above all numbers. -0 comes just below 0,
/// though they are equal in PostgreSQL.
fn to_order(value: f64) -> i64 {
    let bits = (if value.is_nan() { f64::NAN.abs() } else { value }).to_bits().cast_signed();
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

/// The inverse of [`to_order`].
fn from_order(order: i64) -> f64 {
    f64::from_bits((if order < 0 { order ^ i64::MAX } else { order }).cast_unsigned())
}

/// The arguments that are counted: of floats those that are not finite, of other types all.
fn counted(values: &[ArrayRef]) -> Vec<ArrayRef> {
    let not_finite = |array: &ArrayRef| -> ArrayRef {
        match array.as_primitive_opt::<Float64Type>() {
            Some(floats) if floats.values().iter().all(|v| v.is_finite()) => {
                Arc::new(Float64Array::new_null(floats.len()))
            }
            Some(floats) => Arc::new(floats.iter().map(|v| v.filter(|v| !v.is_finite())).collect::<Float64Array>()),
            None => Arc::clone(array),
        }
    };
    values.iter().map(not_finite).collect()
}

/// A sum or average of floats, rounded to the aggregate's type. It is an error if the result is not finite while all
/// arguments are (not `is_special`).
fn finite(value: Option<f64>, is_special: bool, output: &DataType) -> Result<Option<f64>> {
    let result = |value: f64| if *output == DataType::Float32 { f64::from(value as f32) } else { value };
    match value.map(result) {
        Some(value) if !value.is_finite() && !is_special => Err(external_overflow("value out of range: overflow")),
        value => Ok(value),
    }
}

/// The result: the value in the aggregate's type, divided by the count if there is one.
fn finished(value: &ArrayRef, count: Option<&ArrayRef>, output: &DataType) -> Result<ArrayRef> {
    let counts = count.map(AsArray::as_primitive::<Int64Type>);
    if let (Some(counts), Some(values)) = (counts, value.as_primitive_opt::<Float64Type>()) {
        let specials = counts.iter().map(|count| count.unwrap_or(0) > 0);
        let results = values.iter().zip(specials).map(|(value, is_special)| finite(value, is_special, output));
        let results: Float64Array = results.collect::<Result<_>>()?;
        return cast(&(Arc::new(results) as ArrayRef), output);
    }
    if let (true, Some(orders)) = (is_interval(output), value.as_binary_opt::<i32>()) {
        return Ok(intervals::from_order(orders));
    }
    if let (true, Some(orders)) = (output.is_floating(), value.as_primitive_opt::<Int64Type>()) {
        return cast(&(Arc::new(orders.unary::<_, Float64Type>(from_order)) as ArrayRef), output);
    }
    let DataType::Decimal128(_, scale) = output else { return cast(value, output) };
    // The sums as decimals, starting from the type in which they were accumulated.
    let sums = match value.data_type() {
        DataType::Int64 => cast(value, &DataType::Decimal128(PRECISION_MAX, 0))?,
        _ => Arc::clone(value),
    };
    let summed = match sums.data_type() {
        DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale) => scale.unsigned_abs(),
        other => return Err(DataFusionError::Internal(format!("a sum of {other}"))),
    };
    let result = |row: usize| -> Result<Option<i128>> {
        let count = counts.map_or(1, |counts| counts.value(row));
        if sums.is_null(row) || count == 0 {
            return Ok(None);
        }
        let (count, to) = ((count.into(), 0), scale.unsigned_abs());
        let result = match sums.as_primitive_opt::<Decimal128Type>() {
            Some(sums) if counts.is_some() => quotient((sums.value(row), summed), count, to),
            Some(sums) => Some(sums.value(row)).filter(|sum| has_digits(*sum)),
            None => wide_quotient((sums.as_primitive::<Decimal256Type>().value(row), summed), count, to),
        };
        result.map(Some).ok_or_else(overflow)
    };
    let results: Decimal128Array = (0..sums.len()).map(result).collect::<Result<_>>()?;
    Ok(Arc::new(results.with_precision_and_scale(PRECISION_MAX, *scale)?))
}

/// Accumulators over a wider type, for one group or for many at once.
#[derive(Debug)]
pub(super) struct Widened<A: ?Sized> {
    pub value: Box<A>,
    pub count: Option<Box<A>>,
    /// The number of state columns of the value; those of the count follow.
    pub value_states: usize,
    pub input: DataType,
    pub output: DataType,
}

impl Accumulator for Widened<dyn Accumulator> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = widened(values, &self.input)?;
        self.value.update_batch(&values)?;
        self.count.as_mut().map_or(Ok(()), |count| count.update_batch(&counted(&values)))
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.value.evaluate()?.to_array()?;
        let count = self.count.as_mut().map(|count| count.evaluate()?.to_array()).transpose()?;
        ScalarValue::try_from_array(&finished(&value, count.as_ref(), &self.output)?, 0)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size() + self.count.as_ref().map_or(0, |count| count.size())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let mut states = self.value.state()?;
        if let Some(count) = &mut self.count {
            states.extend(count.state()?);
        }
        Ok(states)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let (value, count) = states.split_at(self.value_states);
        self.value.merge_batch(value)?;
        self.count.as_mut().map_or(Ok(()), |accumulator| accumulator.merge_batch(count))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = widened(values, &self.input)?;
        self.value.retract_batch(&values)?;
        self.count.as_mut().map_or(Ok(()), |count| count.retract_batch(&counted(&values)))
    }

    fn supports_retract_batch(&self) -> bool {
        self.value.supports_retract_batch() && self.count.as_ref().is_none_or(|count| count.supports_retract_batch())
    }
}

/// A sum or average of floats in a sliding frame: a queue of two stacks. The front stack has with each number the sum
/// of that number and all that leave later; the back stack is summed up as it grows. So no number is ever subtracted.
#[derive(Debug)]
pub(super) struct Sliding {
    kind: Kind,
    output: DataType,
    front: Vec<(f64, f64)>,
    back: Vec<f64>,
    back_sum: f64,
    /// The number of values in the frame that are not finite.
    specials: usize,
}

impl Sliding {
    pub fn new(kind: Kind, output: DataType) -> Self {
        Self { kind, output, front: Vec::new(), back: Vec::new(), back_sum: 0.0, specials: 0 }
    }

    fn values(values: &[ArrayRef]) -> Result<Float64Array> {
        Ok(cast(&values[0], &DataType::Float64)?.as_primitive::<Float64Type>().clone())
    }

    fn leave(&mut self) {
        if self.front.is_empty() {
            let mut sum = 0.0;
            while let Some(value) = self.back.pop() {
                sum += value;
                self.front.push((value, sum));
            }
            self.back_sum = 0.0;
        }
        if let Some((value, _)) = self.front.pop() {
            self.specials -= usize::from(!value.is_finite());
        }
    }
}

impl Accumulator for Sliding {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in Self::values(values)?.iter().flatten() {
            self.back.push(value);
            self.back_sum += value;
            self.specials += usize::from(!value.is_finite());
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = Self::values(values)?;
        (0..values.len() - values.null_count()).for_each(|_| self.leave());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let count = self.front.len() + self.back.len();
        let sum = self.front.last().map_or(0.0, |(_, sum)| *sum) + self.back_sum;
        #[allow(clippy::cast_precision_loss)]
        let value = if self.kind == Kind::Average { sum / count as f64 } else { sum };
        let value = finite((count > 0).then_some(value), self.specials > 0, &self.output)?;
        ScalarValue::Float64(value).cast_to(&self.output)
    }

    fn size(&self) -> usize {
        size_of_val(self) + size_of::<(f64, f64)>() * self.front.capacity() + size_of::<f64>() * self.back.capacity()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        Err(DataFusionError::Internal("a frame that slides has no state".to_owned()))
    }
}

impl GroupsAccumulator for Widened<dyn GroupsAccumulator> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        filter: Option<&BooleanArray>,
        groups: usize,
    ) -> Result<()> {
        let values = widened(values, &self.input)?;
        self.value.update_batch(&values, group_indices, filter, groups)?;
        match &mut self.count {
            Some(count) => count.update_batch(&counted(&values), group_indices, filter, groups),
            None => Ok(()),
        }
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let value = self.value.evaluate(emit_to)?;
        let count = self.count.as_mut().map(|count| count.evaluate(emit_to)).transpose()?;
        finished(&value, count.as_ref(), &self.output)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let mut states = self.value.state(emit_to)?;
        if let Some(count) = &mut self.count {
            states.extend(count.state(emit_to)?);
        }
        Ok(states)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], groups: usize) -> Result<()> {
        let (value, count) = states.split_at(self.value_states);
        self.value.merge_batch(value, group_indices, groups)?;
        match &mut self.count {
            Some(accumulator) => accumulator.merge_batch(count, group_indices, groups),
            None => Ok(()),
        }
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = widened(values, &self.input)?;
        let mut states = self.value.convert_to_state(&values, filter)?;
        if let Some(count) = &self.count {
            states.extend(count.convert_to_state(&counted(&values), filter)?);
        }
        Ok(states)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size() + self.count.as_ref().map_or(0, |count| count.size())
    }
}

fn overflow() -> DataFusionError {
    external_overflow(format!("numeric out of range: more than {PRECISION_MAX} digits"))
}

fn external_overflow(message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_order_as_integers() {
        let ordered = [f64::NEG_INFINITY, -1.5, -f64::MIN_POSITIVE, 0.0, f64::MIN_POSITIVE, 1.0, f64::INFINITY];
        assert!(ordered.windows(2).all(|pair| to_order(pair[0]) < to_order(pair[1])));
        assert!(ordered.iter().all(|value| from_order(to_order(*value)).to_bits() == value.to_bits()));
        assert!(to_order(-0.0) < to_order(0.0) && from_order(to_order(-0.0)).is_sign_negative());
        assert_eq!(to_order(-f64::NAN), to_order(f64::NAN));
        assert!(to_order(-f64::NAN) > to_order(f64::INFINITY) && from_order(to_order(f64::NAN)).is_nan());
    }
}
