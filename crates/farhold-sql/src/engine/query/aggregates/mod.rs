//! `sum` and `avg` with PostgreSQL's types and without wraparound; `min` and `max` of floats and intervals.
//!
//! | argument | `sum` | `avg` | accumulated in |
//! |---|---|---|---|
//! | smallint, integer | bigint | numeric(38, 16) | 64 bits |
//! | bigint | numeric(38, 0) | numeric(38, 16) | 128 bits |
//! | numeric(p, s), p ≤ 28 | numeric(38, s) | numeric(38, max(16, s)) | 128 bits |
//! | numeric(p, s) | the same | the same | 256 bits |
//! | real | real | double precision | double precision |
//! | double precision | double precision | double precision | double precision |
//! | interval | interval | interval | months, days and time separately ([`intervals`]) |
//!
//! A sum of floats that is infinite is an error (22003), unless one of its arguments was infinite. In sliding frames,
//! numbers are only added: subtracting one would leave its rounding error behind, and infinity cannot be subtracted.
//!
//! No sum can exceed the range of its accumulator: a table has fewer than 2^32 rows, which is below 10^10. A result of
//! more than 38 digits is an error (22003), but intermediate sums may be larger. So the answer does not depend on the
//! order of the rows, nor on how partitions and frames are combined.
//!
//! Both use DataFusion's aggregates over the wider type.

mod accumulators;

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::intervals::IntervalSum;
use crate::engine::ColumnType;
use crate::{SqlError, SqlState};
use accumulators::{Sliding, Widened};

/// Fractional digits of an average, unless its argument has more.
pub(super) const QUOTIENT_SCALE: u8 = 16;

/// Up to this precision the sum of any table fits in 128 bits.
const NARROW_PRECISION_MAX: u8 = 28;

const PRECISION_MAX: u8 = ColumnType::PRECISION_MAX;

/// Replaces DataFusion's `sum` and `avg`.
pub(super) fn register(context: &SessionContext) {
    context.register_udaf(AggregateUDF::from(Aggregate::new(Kind::Sum)));
    context.register_udaf(AggregateUDF::from(Aggregate::new(Kind::Average)));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Sum,
    Average,
    /// `min` of floats, with NaN above all numbers: if one of two values is NaN, DataFusion's returns the later one.
    /// Also of intervals, by their length.
    Least,
    Greatest,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Aggregate {
    kind: Kind,
    signature: Signature,
    aliases: Vec<String>,
}

/// `min` and `max` of floats or intervals, replacing DataFusion's.
pub(super) static LEAST: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| Arc::new(Aggregate::new(Kind::Least).into()));
pub(super) static GREATEST: LazyLock<Arc<AggregateUDF>> =
    LazyLock::new(|| Arc::new(Aggregate::new(Kind::Greatest).into()));

/// The accumulator's type for an argument, and the type of the sum.
fn sum_types(argument: &DataType) -> (DataType, DataType) {
    match argument {
        DataType::Int32 => (DataType::Int64, DataType::Int64),
        // 64-bit integers have at most 19 digits.
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

/// The type of an exact average; `None` where DataFusion's average is correct.
fn exact_average(argument: &DataType) -> Option<DataType> {
    match argument {
        DataType::Int32 | DataType::Int64 => Some(DataType::Decimal128(PRECISION_MAX, QUOTIENT_SCALE.cast_signed())),
        DataType::Decimal128(_, scale) => {
            Some(DataType::Decimal128(PRECISION_MAX, QUOTIENT_SCALE.cast_signed().max(*scale)))
        }
        _ => None,
    }
}

/// An aggregate over another type, and the field that it gets as its argument.
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

    /// The count that divides an exact average; for floats, the number of arguments that are not finite (see
    /// [`counted`]).
    fn count(argument: &FieldRef) -> Result<Self> {
        Self::new(count_udaf(), argument, &sum_types(argument.data_type()).0)
    }

    /// DataFusion's average, over double precision where it accepts no other floats.
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
        // All names of DataFusion's aggregate: a name left out would still refer to it.
        let aliases: &[&str] = match kind {
            Kind::Sum => &["sum"],
            Kind::Average => &["avg", "mean"],
            Kind::Least | Kind::Greatest => &[],
        };
        let aliases = aliases.iter().map(|&name| name.to_owned()).collect();
        Self { kind, signature: Signature::user_defined(Volatility::Immutable), aliases }
    }

    /// The inner aggregates: one for the value, and a count for exact averages and floats.
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

    /// The accumulators that `make` creates for the inner aggregates.
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

/// The type of the values' order-preserving representation.
fn order_type(argument: &DataType) -> DataType {
    if is_interval(argument) { DataType::Binary } else { DataType::Int64 }
}

fn is_interval(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(_))
}

/// The number of state columns of an aggregate.
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
    /// In capitals: the optimiser rewrites an aggregate called `sum` to sums of sums, which is wrong if its type
    /// differs from its argument's.
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
        // Two inner aggregates may use the same names for their states.
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
