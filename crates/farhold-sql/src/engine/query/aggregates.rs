//! `sum` and `avg` with PostgreSQL's types, and without sums that wrap; `min` and `max` of floats and intervals.
//!
//! | argument | `sum` | `avg` | summed up as |
//! |---|---|---|---|
//! | smallint, integer | bigint | numeric(38, 16) | 64 bits |
//! | bigint | numeric(38, 0) | numeric(38, 16) | 128 bits |
//! | numeric(p, s), p ≤ 28 | numeric(38, s) | numeric(38, max(16, s)) | 128 bits |
//! | numeric(p, s) | the same | the same | 256 bits |
//! | real | real | double precision | double precision |
//! | double precision | double precision | double precision | double precision |
//! | interval | interval | interval | months, days and time, each by itself ([`intervals`]) |
//!
//! A sum of floats is an error (22003) if it is infinite and no number that went into it was. In frames that slide, numbers are only ever added:
//! taking one away again leaves its rounding behind, and of an infinity nothing can be taken.
//!
//! No sum can pass the end of what it is summed up in: a table has fewer than 2^32 rows, which is below 10^10. A result that
//! passes 38 digits is an error (22003); sums on the way to it may. So the answer does not depend on the order of the rows,
//! nor on how partitions and frames are put together.
//!
//! Both hand the work to DataFusion's aggregates over the wider type.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, Field, FieldRef, Float64Type, Int64Type, IntervalMonthDayNanoType,
    IntervalUnit,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::intervals::{self, IntervalSum};
use crate::engine::ColumnType;
use crate::engine::scalar::{has_digits, quotient, wide_quotient};
use crate::{SqlError, SqlState};

/// Digits behind the point of an average, unless its argument has more.
pub(super) const QUOTIENT_SCALE: u8 = 16;

/// Up to this precision a sum of any table fits 128 bits.
const NARROW_PRECISION_MAX: u8 = 28;

const PRECISION_MAX: u8 = ColumnType::PRECISION_MAX;

/// Puts both in the place of DataFusion's.
pub(super) fn register(context: &SessionContext) {
    context.register_udaf(AggregateUDF::from(Aggregate::new(Kind::Sum)));
    context.register_udaf(AggregateUDF::from(Aggregate::new(Kind::Average)));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Sum,
    Average,
    /// Of floats, NaN above all numbers: DataFusion's own take whichever comes last where one of two is NaN. Of intervals, by their length.
    Least,
    Greatest,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Aggregate {
    kind: Kind,
    signature: Signature,
    aliases: Vec<String>,
}

/// `min` or `max` of floats or intervals, in the place of DataFusion's.
pub(super) static LEAST: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| Arc::new(Aggregate::new(Kind::Least).into()));
pub(super) static GREATEST: LazyLock<Arc<AggregateUDF>> =
    LazyLock::new(|| Arc::new(Aggregate::new(Kind::Greatest).into()));

/// The type that an argument is summed up in, and the sum's type.
fn sum_types(argument: &DataType) -> (DataType, DataType) {
    match argument {
        DataType::Int32 => (DataType::Int64, DataType::Int64),
        // All 64-bit integers have at most 19 digits.
        DataType::Int64 => (DataType::Decimal128(19, 0), DataType::Decimal128(PRECISION_MAX, 0)),
        DataType::Decimal128(precision, scale) if *precision <= NARROW_PRECISION_MAX => {
            (argument.clone(), DataType::Decimal128(PRECISION_MAX, *scale))
        }
        DataType::Decimal128(precision, scale) => {
            (DataType::Decimal256(*precision, *scale), DataType::Decimal128(PRECISION_MAX, *scale))
        }
        DataType::Float32 => (DataType::Float64, DataType::Float32),
        other => (other.clone(), other.clone()),
    }
}

/// An exact average's type; `None` where DataFusion's average is the right one.
fn exact_average(argument: &DataType) -> Option<DataType> {
    match argument {
        DataType::Int32 | DataType::Int64 => Some(DataType::Decimal128(PRECISION_MAX, QUOTIENT_SCALE.cast_signed())),
        DataType::Decimal128(_, scale) => {
            Some(DataType::Decimal128(PRECISION_MAX, QUOTIENT_SCALE.cast_signed().max(*scale)))
        }
        _ => None,
    }
}

/// The arguments of an aggregate as another aggregate over another type gets them.
struct Inner {
    udaf: Arc<AggregateUDF>,
    input: FieldRef,
    output: FieldRef,
}

impl Inner {
    fn new(udaf: Arc<AggregateUDF>, argument: &FieldRef, data_type: &DataType) -> Result<Self> {
        let input: FieldRef = Arc::new(argument.as_ref().clone().with_data_type(data_type.clone()));
        let output = udaf.return_field(std::slice::from_ref(&input))?;
        Ok(Self { udaf, input, output })
    }

    /// The sum of `argument`.
    fn sum(argument: &FieldRef) -> Result<Self> {
        Self::new(sum_udaf(), argument, &sum_types(argument.data_type()).0)
    }

    /// What a result is divided by, or of floats how many are no numbers by themselves (see [`counted`]).
    fn count(argument: &FieldRef) -> Result<Self> {
        Self::new(count_udaf(), argument, &sum_types(argument.data_type()).0)
    }

    /// DataFusion's average, over double precision where it takes no other floats.
    fn average(argument: &FieldRef) -> Result<Self> {
        Self::new(avg_udaf(), argument, &sum_types(argument.data_type()).0)
    }

    fn arguments<'a>(&'a self, outer: &AccumulatorArgs<'a>) -> AccumulatorArgs<'a> {
        AccumulatorArgs {
            return_field: Arc::clone(&self.output),
            schema: outer.schema,
            ignore_nulls: outer.ignore_nulls,
            order_bys: outer.order_bys,
            is_reversed: outer.is_reversed,
            name: outer.name,
            is_distinct: outer.is_distinct,
            exprs: outer.exprs,
            expr_fields: std::slice::from_ref(&self.input),
        }
    }

    fn state_fields(&self, outer: &StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.udaf.state_fields(StateFieldsArgs {
            name: outer.name,
            input_fields: std::slice::from_ref(&self.input),
            return_field: Arc::clone(&self.output),
            ordering_fields: outer.ordering_fields,
            is_distinct: outer.is_distinct,
        })
    }
}

impl Aggregate {
    fn new(kind: Kind) -> Self {
        // All names of DataFusion's, which would come back under those that are left.
        let aliases: &[&str] = match kind {
            Kind::Sum => &["sum"],
            Kind::Average => &["avg", "mean"],
            Kind::Least | Kind::Greatest => &[],
        };
        let aliases = aliases.iter().map(|&name| name.to_owned()).collect();
        Self { kind, signature: Signature::user_defined(Volatility::Immutable), aliases }
    }

    /// What does the work: one aggregate, and for an exact average and for floats a count.
    fn inner(&self, argument: &FieldRef) -> Result<(Inner, Option<Inner>)> {
        let is_exact_average = self.kind == Kind::Average && exact_average(argument.data_type()).is_some();
        let value = match self.kind {
            Kind::Least => return Ok((Inner::new(min_udaf(), argument, &order_type(argument.data_type()))?, None)),
            Kind::Greatest => return Ok((Inner::new(max_udaf(), argument, &order_type(argument.data_type()))?, None)),
            Kind::Average if !is_exact_average => Inner::average(argument)?,
            Kind::Average | Kind::Sum => Inner::sum(argument)?,
        };
        let is_counted = is_exact_average || argument.data_type().is_floating();
        Ok((value, if is_counted { Some(Inner::count(argument)?) } else { None }))
    }

    fn sums_intervals(&self, arguments: &[FieldRef]) -> bool {
        let is_sum = matches!(self.kind, Kind::Sum | Kind::Average);
        is_sum && arguments.first().is_some_and(|argument| is_interval(argument.data_type()))
    }

    /// Over what `make` makes of each part.
    fn accumulators<A: ?Sized>(
        &self,
        arguments: &AccumulatorArgs<'_>,
        make: impl Fn(&Inner, AccumulatorArgs<'_>) -> Result<Box<A>>,
    ) -> Result<Widened<A>> {
        let (first, count) = self.inner(&arguments.expr_fields[0])?;
        Ok(Widened {
            value: make(&first, first.arguments(arguments))?,
            count: count.as_ref().map(|count| make(count, count.arguments(arguments))).transpose()?,
            value_states: state_count(&first, arguments)?,
            input: first.input.data_type().clone(),
            output: arguments.return_type().clone(),
        })
    }
}

/// The type of what stands for values in their order.
fn order_type(argument: &DataType) -> DataType {
    if is_interval(argument) { DataType::Binary } else { DataType::Int64 }
}

fn is_interval(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(_))
}

/// How many columns of state an aggregate has.
fn state_count(inner: &Inner, arguments: &AccumulatorArgs<'_>) -> Result<usize> {
    let fields = inner.state_fields(&StateFieldsArgs {
        name: arguments.name,
        input_fields: arguments.expr_fields,
        return_field: Arc::clone(&arguments.return_field),
        ordering_fields: &[],
        is_distinct: arguments.is_distinct,
    })?;
    Ok(fields.len())
}

impl AggregateUDFImpl for Aggregate {
    /// In capitals: the optimiser sums up sums of an aggregate called `sum`, which does not fit one whose type differs from
    /// its argument's.
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "SUM",
            Kind::Average => "AVG",
            Kind::Least => "MIN_BY_KEY",
            Kind::Greatest => "MAX_BY_KEY",
        }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        use DataType as T;
        if matches!(self.kind, Kind::Least | Kind::Greatest) {
            return Ok(arguments.to_vec());
        }
        let [argument] = arguments else {
            return Err(undefined(self.aliases[0].as_str(), "takes one argument"));
        };
        Ok(vec![match argument {
            T::Int8 | T::Int16 | T::UInt8 | T::UInt16 | T::Int32 => T::Int32,
            T::UInt32 | T::Int64 => T::Int64,
            T::UInt64 => T::Decimal128(20, 0),
            T::Decimal32(precision, scale) | T::Decimal64(precision, scale) => T::Decimal128(*precision, *scale),
            T::Float16 => T::Float32,
            T::Null => T::Float64,
            T::Decimal128(..) | T::Float32 | T::Float64 => argument.clone(),
            T::Interval(_) | T::Duration(_) => T::Interval(IntervalUnit::MonthDayNano),
            T::Dictionary(_, values) => return self.coerce_types(std::slice::from_ref(values)),
            other => return Err(undefined(self.aliases[0].as_str(), &format!("does not take {other}"))),
        }])
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match self.kind {
            Kind::Least | Kind::Greatest => Ok(arguments[0].clone()),
            Kind::Sum => Ok(sum_types(&arguments[0]).1),
            Kind::Average if is_interval(&arguments[0]) => Ok(arguments[0].clone()),
            Kind::Average => match exact_average(&arguments[0]) {
                Some(data_type) => Ok(data_type),
                None => avg_udaf().return_type(&[sum_types(&arguments[0]).0]),
            },
        }
    }

    fn accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if self.sums_intervals(arguments.expr_fields) {
            return Ok(Box::new(IntervalSum::new(self.kind == Kind::Average)));
        }
        let made = self.accumulators(&arguments, |inner, arguments| inner.udaf.accumulator(arguments))?;
        Ok(Box::new(made))
    }

    fn create_sliding_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        if self.sums_intervals(arguments.expr_fields) {
            return self.accumulator(arguments);
        }
        let is_sum = matches!(self.kind, Kind::Sum | Kind::Average);
        if is_sum && arguments.expr_fields[0].data_type().is_floating() && !arguments.is_distinct {
            return Ok(Box::new(Sliding::new(self.kind, arguments.return_type().clone())));
        }
        let made =
            self.accumulators(&arguments, |inner, arguments| inner.udaf.create_sliding_accumulator(arguments))?;
        Ok(Box::new(made))
    }

    fn state_fields(&self, arguments: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        if self.sums_intervals(arguments.input_fields) {
            return Ok(IntervalSum::state_fields());
        }
        let (first, count) = self.inner(&arguments.input_fields[0])?;
        let mut fields = first.state_fields(&arguments)?;
        if let Some(count) = count {
            fields.extend(count.state_fields(&arguments)?);
        }
        // Two parts may call their states the same.
        let numbered = fields.iter().enumerate().map(|(n, field)| {
            let name = format!("{}[{n}]", field.name());
            Arc::new(Field::clone(field).with_name(name)) as FieldRef
        });
        Ok(numbered.collect())
    }

    fn groups_accumulator_supported(&self, arguments: AccumulatorArgs<'_>) -> bool {
        if self.sums_intervals(arguments.expr_fields) {
            return false;
        }
        let Ok((first, count)) = self.inner(&arguments.expr_fields[0]) else { return false };
        let supported = |inner: &Inner| inner.udaf.groups_accumulator_supported(inner.arguments(&arguments));
        supported(&first) && count.as_ref().is_none_or(supported)
    }

    fn create_groups_accumulator(&self, arguments: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        let made = self.accumulators(&arguments, |inner, arguments| inner.udaf.create_groups_accumulator(arguments))?;
        Ok(Box::new(made))
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

fn undefined(name: &str, what: &str) -> DataFusionError {
    let error = SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} {what}"));
    DataFusionError::External(Box::new(error))
}

fn overflow() -> DataFusionError {
    external_overflow(format!("numeric out of range: more than {PRECISION_MAX} digits"))
}

fn external_overflow(message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message)))
}

/// As another type, or an error.
fn cast(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(array, data_type, &options)?)
}

/// The argument as the inner aggregates take it.
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

/// An integer for a float, in the order of PostgreSQL: all NaN are one and above all numbers. -0 is just below 0, which it equals there.
fn to_order(value: f64) -> i64 {
    let bits = (if value.is_nan() { f64::NAN.abs() } else { value }).to_bits().cast_signed();
    if bits < 0 { bits ^ i64::MAX } else { bits }
}

/// The float of an integer by [`to_order`].
fn from_order(order: i64) -> f64 {
    f64::from_bits((if order < 0 { order ^ i64::MAX } else { order }).cast_unsigned())
}

/// What is counted of the arguments: all, or of floats those that are not finite.
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

/// A sum or average of floats as the aggregate's type; an error if it is not finite, and `is_special` says of no argument that it was not.
fn finite(value: Option<f64>, is_special: bool, output: &DataType) -> Result<Option<f64>> {
    let result = |value: f64| if *output == DataType::Float32 { f64::from(value as f32) } else { value };
    match value.map(result) {
        Some(value) if !value.is_finite() && !is_special => Err(external_overflow("value out of range: overflow")),
        value => Ok(value),
    }
}

/// The result: the value as the type that the aggregate has, divided by the count if there is one.
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
    // As decimals, over what they are summed up in.
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

/// Accumulators over a wider type: of one group, or of many at once.
#[derive(Debug)]
struct Widened<A: ?Sized> {
    value: Box<A>,
    count: Option<Box<A>>,
    /// How many columns of the state are the value's; the count's follow.
    value_states: usize,
    input: DataType,
    output: DataType,
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

/// A sum or average of floats in a frame that slides: a queue of two stacks. The front one has with each number the sum of it and all that leave
/// later, the back one is summed up as it grows, so no number is ever subtracted.
#[derive(Debug)]
struct Sliding {
    kind: Kind,
    output: DataType,
    front: Vec<(f64, f64)>,
    back: Vec<f64>,
    back_sum: f64,
    /// Numbers in the frame that are not finite.
    specials: usize,
}

impl Sliding {
    fn new(kind: Kind, output: DataType) -> Self {
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
