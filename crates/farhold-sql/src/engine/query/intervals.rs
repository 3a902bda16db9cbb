//! Intervals: parsing, differences of timestamps, products, quotients, sums and averages, and their order.
//!
//! DataFusion's difference of timestamps is a duration, a type that PostgreSQL does not have. PostgreSQL's consists of
//! days of 24 hours and the remaining time. DataFusion has no products, quotients, sums and averages of intervals, and
//! does not parse `26:00:00`.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryArray, IntervalMonthDayNanoArray, PrimitiveArray};
use arrow::compute::try_binary;
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Float64Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    TimestampMicrosecondType,
};
use arrow::error::ArrowError;
use datafusion::common::{ScalarValue, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    Accumulator, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use super::floats::key_of_interval;
use super::functions::{both, null_of};
use crate::engine::ColumnType;
use crate::engine::scalar::Arithmetic;
use crate::engine::types::INTERVAL;
use crate::value::{DAY_MICROSECONDS, parse_interval};
use crate::{SqlError, SqlState};

fn out_of_range(message: &str) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(SqlState::DATETIME_OVERFLOW, message)))
}

/// `a - b` of two timestamps of microseconds.
pub(super) fn difference(a: Expr, b: Expr) -> Expr {
    let function = Difference { signature: Signature::any(2, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![a, b])
}

/// Whether [`difference`] has made a call of this function.
pub(super) fn is_difference(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<Difference>().is_some()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Difference {
    signature: Signature,
}

impl ScalarUDFImpl for Difference {
    fn name(&self) -> &'static str {
        "timestamp_difference"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [a, b] = arguments.args.as_slice() else {
            return internal_err!("a difference of two timestamps");
        };
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        both(a, b, arguments.number_rows, |a, b| {
            let (a, b) = (a.as_primitive::<TimestampMicrosecondType>(), b.as_primitive::<TimestampMicrosecondType>());
            let between = |a, b| between(a, b).map_err(|e| ArrowError::from_external_error(Box::new(e)));
            let differences: PrimitiveArray<IntervalMonthDayNanoType> = try_binary(a, b, between)?;
            Ok(Arc::new(differences))
        })
    }
}

/// The interval from `b` to `a`.
fn between(a: i64, b: i64) -> Result<IntervalMonthDayNano> {
    if [a, b].iter().any(|moment| matches!(*moment, i64::MAX | i64::MIN)) {
        return Err(out_of_range("cannot subtract infinite timestamps"));
    }
    let microseconds = a.checked_sub(b).ok_or_else(|| out_of_range("interval out of range"))?;
    Ok(IntervalMonthDayNano::new(0, (microseconds / DAY_MICROSECONDS) as i32, microseconds % DAY_MICROSECONDS * 1000))
}

/// `interval * factor`, or `interval / factor`; the factor is a double.
pub(super) fn scaled(op: Arithmetic, interval: Expr, factor: Expr) -> Expr {
    let function = Scaled { divides: op == Arithmetic::Divide, signature: Signature::any(2, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![interval, factor])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Scaled {
    divides: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Scaled {
    fn name(&self) -> &'static str {
        if self.divides { "divide_interval" } else { "multiply_interval" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [interval, factor] = arguments.args.as_slice() else {
            return internal_err!("an interval and a factor");
        };
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let scaled = |of: IntervalMonthDayNano, factor: f64| -> Result<IntervalMonthDayNano> {
            if self.divides && factor == 0.0 {
                return Err(ArrowError::DivideByZero.into());
            }
            let by = |part: f64| if self.divides { part / factor } else { part * factor };
            let microseconds = (of.nanoseconds / 1000) as f64;
            cascaded(by(f64::from(of.months)), by(f64::from(of.days)), by(microseconds))
                .ok_or_else(|| out_of_range("interval out of range"))
        };
        both(interval, factor, arguments.number_rows, |intervals, factors| {
            let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>().iter();
            let rows = intervals.zip(factors.as_primitive::<Float64Type>());
            let products = rows.map(|(interval, factor)| interval.zip(factor).map(|(i, f)| scaled(i, f)).transpose());
            Ok(Arc::new(products.collect::<Result<IntervalMonthDayNanoArray>>()?))
        })
    }
}

/// `CAST(text AS INTERVAL)`
pub(super) fn read(text: Expr) -> Expr {
    let function = Read { signature: Signature::any(1, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![text])
}

/// The interval literal of a string.
pub(super) fn literal(text: &str) -> Result<Expr> {
    let interval = parse_interval(text).map_err(|error| DataFusionError::External(Box::new(error)))?;
    Ok(lit(ScalarValue::IntervalMonthDayNano(Some(interval))))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Read {
    signature: Signature,
}

impl ScalarUDFImpl for Read {
    fn name(&self) -> &'static str {
        "read_interval"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let read = |texts: &ArrayRef| -> Result<ArrayRef> {
            let texts = arrow::compute::cast(texts, &DataType::Utf8View)?;
            let read = |text| parse_interval(text).map_err(|error| DataFusionError::External(Box::new(error)));
            let intervals = texts.as_string_view().iter().map(|text| text.map(read).transpose());
            Ok(Arc::new(intervals.collect::<Result<IntervalMonthDayNanoArray>>()?))
        };
        Ok(match &arguments.args[0] {
            ColumnarValue::Scalar(text) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&read(&text.to_array()?)?, 0)?)
            }
            ColumnarValue::Array(texts) => ColumnarValue::Array(read(texts)?),
        })
    }
}

/// Encodes intervals as bytes whose order is that of their lengths, followed by the intervals themselves.
pub(super) fn to_order(intervals: &IntervalMonthDayNanoArray) -> ArrayRef {
    let bytes = |months: i32, days: i32, nanoseconds: i64| {
        [months.to_be_bytes().as_slice(), days.to_be_bytes().as_slice(), nanoseconds.to_be_bytes().as_slice()].concat()
    };
    let bytes = |interval: IntervalMonthDayNano| {
        let key = key_of_interval(interval);
        // With the sign bit inverted, big-endian bytes compare like the numbers.
        let order = bytes(key.months ^ i32::MIN, key.days ^ i32::MIN, key.nanoseconds ^ i64::MIN);
        [order, bytes(interval.months, interval.days, interval.nanoseconds)].concat()
    };
    Arc::new(intervals.iter().map(|interval| interval.map(bytes)).collect::<BinaryArray>())
}

/// The intervals inside the output of [`to_order`].
pub(super) fn from_order(orders: &BinaryArray) -> ArrayRef {
    let interval = |bytes: &[u8]| {
        let (months, rest) = bytes.get(16..)?.split_first_chunk()?;
        let (days, rest) = rest.split_first_chunk()?;
        let (nanoseconds, _) = rest.split_first_chunk()?;
        let (months, days) = (i32::from_be_bytes(*months), i32::from_be_bytes(*days));
        Some(IntervalMonthDayNano::new(months, days, i64::from_be_bytes(*nanoseconds)))
    };
    Arc::new(orders.iter().map(|bytes| interval(bytes?)).collect::<IntervalMonthDayNanoArray>())
}

/// The sum or the average of intervals: months, days and time are summed separately.
#[derive(Debug)]
pub(super) struct IntervalSum {
    is_average: bool,
    months: i64,
    days: i64,
    nanoseconds: i128,
    count: i64,
}

impl IntervalSum {
    pub(super) fn new(is_average: bool) -> Self {
        Self { is_average, months: 0, days: 0, nanoseconds: 0, count: 0 }
    }

    pub(super) fn state_fields() -> Vec<FieldRef> {
        let fields = [
            ("months", DataType::Int64),
            ("days", DataType::Int64),
            ("nanoseconds", DataType::Decimal128(ColumnType::PRECISION_MAX, 0)),
            ("count", DataType::Int64),
        ];
        fields.into_iter().map(|(name, data_type)| Arc::new(Field::new(name, data_type, true)) as FieldRef).collect()
    }

    /// Adds intervals, or subtracts them if `sign` is -1.
    fn add(&mut self, values: &[ArrayRef], sign: i64) {
        for interval in values[0].as_primitive::<IntervalMonthDayNanoType>().iter().flatten() {
            self.months += sign * i64::from(interval.months);
            self.days += sign * i64::from(interval.days);
            self.nanoseconds += i128::from(sign) * i128::from(interval.nanoseconds);
            self.count += sign;
        }
    }

    fn average(&self) -> Option<IntervalMonthDayNano> {
        let count = self.count as f64;
        let microseconds = (self.nanoseconds / 1000) as f64;
        cascaded(self.months as f64 / count, self.days as f64 / count, microseconds / count)
    }
}

/// Carries fractions of units down as PostgreSQL does: fractions of months become days (30 per month), fractions of
/// days become time. `None` if the result does not fit.
fn cascaded(all_months: f64, all_days: f64, microseconds: f64) -> Option<IntervalMonthDayNano> {
    const SECONDS: f64 = 86_400.0;
    if ![all_months, all_days, microseconds].into_iter().all(f64::is_finite) {
        return None;
    }
    let to_microseconds = |seconds: f64| (seconds * 1e6).round_ties_even() / 1e6;
    let months = all_months.trunc();
    let days_of_months = to_microseconds((all_months - months) * 30.0);
    let mut days = all_days.trunc() + days_of_months.trunc();
    let mut seconds = to_microseconds((all_days.fract() + days_of_months.fract()) * SECONDS);
    if seconds.abs() >= SECONDS {
        let more = (seconds / SECONDS).trunc();
        days += more;
        seconds -= more * SECONDS;
    }
    let microseconds = (microseconds + seconds * 1e6).round_ties_even();
    interval(months as i64, days as i64, (microseconds as i128).checked_mul(1000)?)
}

/// `None` if it does not fit.
fn interval(months: i64, days: i64, nanoseconds: i128) -> Option<IntervalMonthDayNano> {
    let (months, days) = (i32::try_from(months).ok()?, i32::try_from(days).ok()?);
    Some(IntervalMonthDayNano::new(months, days, i64::try_from(nanoseconds).ok()?))
}

impl Accumulator for IntervalSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, 1);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, -1);
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.count == 0 {
            return Ok(ScalarValue::IntervalMonthDayNano(None));
        }
        let value = if self.is_average { self.average() } else { interval(self.months, self.days, self.nanoseconds) };
        let value = value.ok_or_else(|| out_of_range("interval out of range"))?;
        Ok(ScalarValue::IntervalMonthDayNano(Some(value)))
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![
            ScalarValue::Int64(Some(self.months)),
            ScalarValue::Int64(Some(self.days)),
            ScalarValue::Decimal128(Some(self.nanoseconds), ColumnType::PRECISION_MAX, 0),
            ScalarValue::Int64(Some(self.count)),
        ])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [months, days, nanoseconds, count] = states else {
            return internal_err!("a sum of intervals has four parts");
        };
        let sum = |of: &ArrayRef| of.as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        self.months += sum(months);
        self.days += sum(days);
        self.nanoseconds += nanoseconds.as_primitive::<Decimal128Type>().iter().flatten().sum::<i128>();
        self.count += sum(count);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;

    use super::*;

    fn array(intervals: &[(i32, i32, i64)]) -> IntervalMonthDayNanoArray {
        intervals.iter().map(|(months, days, time)| Some(IntervalMonthDayNano::new(*months, *days, *time))).collect()
    }

    #[test]
    fn bytes_of_intervals_have_the_order_of_their_lengths() {
        const HOUR: i64 = 3_600_000_000_000;
        let ordered =
            array(&[(-1, 0, 0), (0, -29, 0), (0, 0, -HOUR), (0, 0, 0), (0, 0, 25 * HOUR), (1, 0, 0), (0, 31, 0)]);
        let orders = to_order(&ordered);
        let orders = orders.as_binary::<i32>();
        assert!((1..orders.len()).all(|n| orders.value(n - 1) < orders.value(n)));
        assert_eq!(from_order(orders).as_primitive::<IntervalMonthDayNanoType>(), &ordered);
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn sums_and_averages_of_intervals() {
        let values: ArrayRef = Arc::new(array(&[(0, 1, 7_390_500_000_000), (0, 73_412, 86_399_999_999_000)]));
        let value = |is_average: bool| {
            let mut sum = IntervalSum::new(is_average);
            sum.update_batch(&[Arc::clone(&values)]).unwrap();
            sum.evaluate().unwrap()
        };
        let expected = |days, time| ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, days, time)));
        assert_eq!(value(false), expected(73_413, 93_790_499_999_000));
        assert_eq!(value(true), expected(36_706, 90_095_250_000_000));
    }
}
