//! `date_trunc` over microseconds; sums of dates or timestamps with days and intervals; days between dates.
//!
//! On timestamps with time zone both calculate on the calendar of the session's zone.
//!
//! DataFusion's `date_trunc` calculates in nanoseconds, whose 64 bits end in 1677 and 2262. It converts days to
//! intervals, but only after the names of grouping keys are fixed. The sum of an interval and an infinite date
//! overflows. And it counts days between infinite dates as between any others.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Date32Array, Int64Array, TimestampMicrosecondArray};
use arrow::compute::kernels::numeric::{add, sub};
use arrow::compute::kernels::zip::zip;
use arrow::compute::{and, is_not_null, nullif};
use arrow::datatypes::{
    DataType, Date32Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::added::common_of_moments;
use super::clocks;
use super::functions::{both, null_of};
use crate::engine::scalar::Arithmetic;
use crate::engine::types::{TIMESTAMP, is_timestamptz, timestamptz};
use crate::value::{DAY_MICROSECONDS, Zone, civil_from_days, date_in_range, days_from_civil, timestamp_in_range};
use crate::{SqlError, SqlState};

/// Replaces DataFusion's `date_trunc`.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Truncate::new(Zone::UTC)));
}

/// `date + days`, or `date - days`.
pub(super) fn plus_days(op: Arithmetic, date: Expr, days: Expr) -> Expr {
    let function =
        PlusDays { subtracts: op == Arithmetic::Subtract, signature: Signature::any(2, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![date, days])
}

/// `moment + interval`, or `moment - interval`, for a date or a timestamp. `zone` is that of a timestamp with time zone.
pub(super) fn plus_interval(op: Arithmetic, moment: Expr, interval: Expr, zone: Option<Zone>) -> Expr {
    let (subtracts, signature) = (op == Arithmetic::Subtract, Signature::any(2, Volatility::Immutable));
    ScalarUDF::from(PlusInterval { subtracts, zone, signature }).call(vec![moment, interval])
}

/// `instant + interval`, or `instant - interval` with a sign of -1: months and days on the calendar of a time zone, and then the
/// exact time. Infinity stays the same.
pub(super) fn instant_plus(instant: i64, interval: IntervalMonthDayNano, sign: i64, zone: Zone) -> Option<i64> {
    if matches!(instant, i64::MIN | i64::MAX) {
        return Some(instant);
    }
    let (months, days) = (sign * i64::from(interval.months), sign * i64::from(interval.days));
    let mut instant = instant;
    if months != 0 {
        instant = zone.to_instant(months_later(zone.to_local(instant)?, months)?)?;
    }
    if days != 0 {
        instant = zone.to_instant(zone.to_local(instant)?.checked_add(days * DAY_MICROSECONDS)?)?;
    }
    instant.checked_add(sign * (interval.nanoseconds / 1_000)).and_then(timestamp_in_range)
}

/// The same time of the same day of another month, or of its last day if it is shorter.
fn months_later(local: i64, months: i64) -> Option<i64> {
    let (year, month, day) = civil_from_days(local.div_euclid(DAY_MICROSECONDS));
    let month = year * 12 + i64::from(month) - 1 + months;
    let first = |month: i64| days_from_civil(month.div_euclid(12), month.rem_euclid(12) as u32 + 1, 1);
    let length = first(month + 1)? - first(month)?;
    let day = first(month)? + i64::from(day).min(length) - 1;
    day.checked_mul(DAY_MICROSECONDS)?.checked_add(local.rem_euclid(DAY_MICROSECONDS))
}

/// `date_trunc` in the session's time zone.
pub(super) fn truncation_in_zone(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let is_truncation = function.inner().downcast_ref::<Truncate>().is_some();
    if is_truncation { Arc::new(ScalarUDF::from(Truncate::new(clocks::zone()))) } else { function }
}

/// Whether the function adds to a date or timestamp.
pub(super) fn is_sum(function: &ScalarUDF) -> bool {
    let function = function.inner();
    function.downcast_ref::<PlusDays>().is_some() || function.downcast_ref::<PlusInterval>().is_some()
}

/// `a - b`, of two dates.
pub(super) fn days_between(a: Expr, b: Expr) -> Expr {
    ScalarUDF::from(DaysBetween { signature: Signature::any(2, Volatility::Immutable) }).call(vec![a, b])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PlusDays {
    subtracts: bool,
    signature: Signature,
}

impl ScalarUDFImpl for PlusDays {
    fn name(&self) -> &'static str {
        if self.subtracts { "minus_days" } else { "plus_days" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Date32)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [date, days] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal("a sum has two sides".to_owned()));
        };
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let sum = |date: i32, days: i64| {
            // An infinite date stays the same.
            if matches!(date, i32::MIN | i32::MAX) {
                return Ok(date);
            }
            let sum =
                if self.subtracts { i64::from(date).checked_sub(days) } else { i64::from(date).checked_add(days) };
            let sum = sum.and_then(|sum| i32::try_from(sum).ok()).and_then(date_in_range);
            sum.ok_or_else(|| external(SqlState::DATETIME_OVERFLOW, "date out of range"))
        };
        both(date, days, arguments.number_rows, |dates, days| {
            let days = arrow::compute::cast(days, &DataType::Int64)?;
            let rows = dates.as_primitive::<Date32Type>().iter().zip(days.as_primitive::<Int64Type>());
            let sums = rows.map(|(date, days)| date.zip(days).map(|(date, days)| sum(date, days)).transpose());
            Ok(Arc::new(sums.collect::<Result<Date32Array>>()?))
        })
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct PlusInterval {
    subtracts: bool,
    /// That of a timestamp with time zone.
    zone: Option<Zone>,
    signature: Signature,
}

impl ScalarUDFImpl for PlusInterval {
    fn name(&self) -> &'static str {
        if self.subtracts { "minus_interval" } else { "plus_interval" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [moment, interval] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal("a sum has two sides".to_owned()));
        };
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        both(moment, interval, arguments.number_rows, |moments, intervals| {
            if let Some(zone) = self.zone {
                return self.instants(moments, intervals, zone);
            }
            let infinite: BooleanArray = if *moments.data_type() == DataType::Date32 {
                let is_infinite = |date| matches!(date, i32::MIN | i32::MAX);
                moments.as_primitive::<Date32Type>().iter().map(|date| date.map(is_infinite)).collect()
            } else {
                let is_infinite = |moment| matches!(moment, i64::MIN | i64::MAX);
                let moments = moments.as_primitive::<TimestampMicrosecondType>();
                moments.iter().map(|moment| moment.map(is_infinite)).collect()
            };
            let finite = nullif(moments, &infinite)?;
            let sum = if self.subtracts { sub(&finite, intervals) } else { add(&finite, intervals) };
            let sum = sum.map_err(|_| external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))?;
            // Infinite values stay the same.
            let stays = and(&infinite, &is_not_null(intervals)?)?;
            Ok(zip(&stays, moments, &sum)?)
        })
    }
}

impl PlusInterval {
    fn instants(&self, instants: &ArrayRef, intervals: &ArrayRef, zone: Zone) -> Result<ArrayRef> {
        let sign = if self.subtracts { -1 } else { 1 };
        let sum = |instant, interval| {
            let sum = instant_plus(instant, interval, sign, zone);
            sum.ok_or_else(|| external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))
        };
        let rows = instants.as_primitive::<TimestampMicrosecondType>().iter();
        let rows = rows.zip(intervals.as_primitive::<IntervalMonthDayNanoType>());
        let sums = rows.map(|(instant, interval)| instant.zip(interval).map(|(at, of)| sum(at, of)).transpose());
        let sums = sums.collect::<Result<TimestampMicrosecondArray>>()?;
        Ok(Arc::new(sums.with_data_type(timestamptz())))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DaysBetween {
    signature: Signature,
}

impl ScalarUDFImpl for DaysBetween {
    fn name(&self) -> &'static str {
        "days_between"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The same type as DataFusion's difference of dates.
    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [a, b] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal("a difference has two sides".to_owned()));
        };
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let between = |a: i32, b: i32| {
            if [a, b].iter().any(|date| matches!(*date, i32::MIN | i32::MAX)) {
                return Err(external(SqlState::DATETIME_OVERFLOW, "cannot subtract infinite dates"));
            }
            Ok(i64::from(a) - i64::from(b))
        };
        both(a, b, arguments.number_rows, |a, b| {
            let rows = a.as_primitive::<Date32Type>().iter().zip(b.as_primitive::<Date32Type>());
            let days = rows.map(|(a, b)| a.zip(b).map(|(a, b)| between(a, b)).transpose());
            Ok(Arc::new(days.collect::<Result<Int64Array>>()?))
        })
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Truncate {
    /// The zone of timestamps with time zone.
    zone: Zone,
    signature: Signature,
    /// Both names of DataFusion's function: a name left out would still refer to it.
    aliases: [String; 1],
}

impl Truncate {
    fn new(zone: Zone) -> Self {
        let signature = Signature::user_defined(Volatility::Immutable);
        Self { zone, signature, aliases: ["datetrunc".to_owned()] }
    }
}

fn external(state: SqlState, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(state, message)))
}

impl ScalarUDFImpl for Truncate {
    fn name(&self) -> &'static str {
        "date_trunc"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |argument: &DataType| argument.is_string() || argument.is_null();
        let is_moment = |argument: &DataType| matches!(argument, DataType::Timestamp(..) | DataType::Date32);
        match arguments {
            [unit, moment] if is_text(unit) && (is_moment(moment) || is_text(moment)) => {
                Ok(vec![DataType::Utf8View, common_of_moments(std::slice::from_ref(moment))])
            }
            [unit, moment, zone] if is_text(unit) && is_text(zone) && (is_moment(moment) || is_text(moment)) => {
                Ok(vec![DataType::Utf8View, timestamptz(), DataType::Utf8View])
            }
            _ => Err(external(SqlState::UNDEFINED_FUNCTION, "function date_trunc takes a text and a timestamp")),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(if arguments.get(1).is_some_and(is_timestamptz) { timestamptz() } else { TIMESTAMP })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (unit, moments, zone) = match arguments.args.as_slice() {
            [ColumnarValue::Scalar(unit), moments] => (unit, moments, None),
            [ColumnarValue::Scalar(unit), moments, ColumnarValue::Scalar(zone)] => (unit, moments, Some(zone)),
            _ => {
                return Err(external(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "date_trunc with a unit or a time zone that is not constant is not supported",
                ));
            }
        };
        let zone = zone.map(|zone| zone.try_as_str().flatten());
        let (Some(unit), false) = (unit.try_as_str().flatten(), zone == Some(None)) else {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from(arguments.return_type())?));
        };
        let unit = Unit::named(unit)?;
        let zone = match zone.flatten() {
            Some(name) => Zone::of_text(name).map_err(|error| DataFusionError::External(Box::new(error)))?,
            None => self.zone,
        };
        let truncated = |moments: &ArrayRef| -> Result<ArrayRef> {
            let data_type = moments.data_type().clone();
            let is_instant = is_timestamptz(&data_type);
            let moments = moments.as_primitive::<TimestampMicrosecondType>();
            let start = |moment| if is_instant { unit.start_in(moment, zone) } else { unit.start(moment) };
            let starts = moments.iter().map(|moment| moment.map(start).transpose());
            Ok(Arc::new(starts.collect::<Result<TimestampMicrosecondArray>>()?.with_data_type(data_type)))
        };
        Ok(match moments {
            ColumnarValue::Array(moments) => ColumnarValue::Array(truncated(moments)?),
            ColumnarValue::Scalar(moment) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&truncated(&moment.to_array()?)?, 0)?)
            }
        })
    }
}

/// The unit to which a timestamp is truncated.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Microseconds(i64),
    Week,
    /// A number of months, counted within the year.
    Months(u32),
    /// A number of years, counted from the year 0 or 1.
    Years(i64, i64),
}

impl Unit {
    fn named(name: &str) -> Result<Self> {
        let lower = name.to_lowercase();
        Ok(match lower.as_str() {
            "microsecond" | "microseconds" => Self::Microseconds(1),
            "millisecond" | "milliseconds" => Self::Microseconds(1_000),
            "second" | "seconds" => Self::Microseconds(1_000_000),
            "minute" | "minutes" => Self::Microseconds(60_000_000),
            "hour" | "hours" => Self::Microseconds(3_600_000_000),
            "day" | "days" => Self::Microseconds(DAY_MICROSECONDS),
            "week" | "weeks" => Self::Week,
            "month" | "months" => Self::Months(1),
            "quarter" => Self::Months(3),
            "year" | "years" => Self::Years(1, 0),
            "decade" | "decades" => Self::Years(10, 0),
            "century" | "centuries" => Self::Years(100, 1),
            "millennium" | "millennia" => Self::Years(1000, 1),
            "timezone" | "timezone_hour" | "timezone_minute" => {
                let message = format!("unit \"{name}\" not supported for timestamps");
                return Err(external(SqlState::FEATURE_NOT_SUPPORTED, message));
            }
            _ => {
                let message = format!("timestamp units \"{name}\" not recognized");
                return Err(external(SqlState::INVALID_PARAMETER_VALUE, message));
            }
        })
    }

    /// The start of the unit that contains the timestamp. Infinity stays the same.
    fn start(self, moment: i64) -> Result<i64> {
        if moment == i64::MAX || moment == i64::MIN {
            return Ok(moment);
        }
        let start = self.checked_start(moment).and_then(timestamp_in_range);
        start.ok_or_else(|| external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))
    }

    /// The start of the unit that contains the instant, on the calendar of a time zone. An hour or less begins at the offset
    /// of the instant itself.
    fn start_in(self, instant: i64, zone: Zone) -> Result<i64> {
        if instant == i64::MAX || instant == i64::MIN {
            return Ok(instant);
        }
        let start = zone.to_local(instant).and_then(|local| {
            let start = self.checked_start(local)?;
            match self {
                Self::Microseconds(count) if count < DAY_MICROSECONDS => instant.checked_sub(local - start),
                _ => zone.to_instant(start),
            }
        });
        let start = start.and_then(timestamp_in_range);
        start.ok_or_else(|| external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))
    }

    /// `None` if the start is out of the range of microseconds.
    fn checked_start(self, moment: i64) -> Option<i64> {
        let days = moment.div_euclid(DAY_MICROSECONDS);
        let (year, month, _) = civil_from_days(days);
        let first = |year, month| days_from_civil(year, month, 1)?.checked_mul(DAY_MICROSECONDS);
        match self {
            Self::Microseconds(count) => moment.checked_sub(moment.rem_euclid(count)),
            // 1970-01-01 was a Thursday.
            Self::Week => (days - (days + 3).rem_euclid(7)).checked_mul(DAY_MICROSECONDS),
            Self::Months(count) => first(year, month - (month - 1) % count),
            Self::Years(count, from) => first((year - from).div_euclid(count) * count + from, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_before_the_first_timestamp_is_refused() {
        for unit in [Unit::Microseconds(DAY_MICROSECONDS), Unit::Week, Unit::Months(1), Unit::Years(1000, 1)] {
            assert!(unit.start(i64::MIN + 1).is_err(), "{unit:?}");
            assert_eq!(unit.start(i64::MIN).unwrap(), i64::MIN);
            assert!(unit.start(i64::MAX - 1).is_ok_and(|start| start < i64::MAX), "{unit:?}");
        }
        assert_eq!(Unit::Months(3).start(DAY_MICROSECONDS * 100).unwrap(), DAY_MICROSECONDS * 90);
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn months_and_days_are_those_of_the_zone() {
        const HOUR: i64 = 3_600_000_000;
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let at =
            |year, month, day, hour: i64| days_from_civil(year, month, day).unwrap() * DAY_MICROSECONDS + hour * HOUR;
        for (instant, (months, days, hours), expected) in [
            // From 12:00 in winter to 12:00 in summer, and 24 hours later.
            (at(2026, 3, 28, 11), (0, 1, 0), at(2026, 3, 29, 10)),
            (at(2026, 3, 28, 11), (0, 0, 24), at(2026, 3, 29, 11)),
            (at(2026, 1, 31, 11), (1, 0, 0), at(2026, 2, 28, 11)),
            (at(2026, 1, 31, 11), (6, 0, 0), at(2026, 7, 31, 10)),
            // 02:30 does not exist on that day.
            (at(2026, 3, 28, 1) + HOUR / 2, (0, 1, 0), at(2026, 3, 29, 1) + HOUR / 2),
            (at(2026, 3, 29, 10), (-1, 0, 0), at(2026, 2, 28, 11)),
        ] {
            let interval = IntervalMonthDayNano::new(months, days, hours * HOUR * 1_000);
            assert_eq!(instant_plus(instant, interval, 1, berlin), Some(expected), "{interval:?}");
        }
        let day = IntervalMonthDayNano::new(0, 1, 0);
        assert_eq!(instant_plus(at(2026, 3, 29, 10), day, -1, berlin), Some(at(2026, 3, 28, 11)));
        assert_eq!(instant_plus(i64::MAX, day, 1, berlin), Some(i64::MAX));
        assert_eq!(instant_plus(i64::MAX - 1, day, 1, berlin), None);
    }

    /// The results are those of PostgreSQL 15.
    #[test]
    fn units_begin_on_the_calendar_of_the_zone() {
        const HOUR: i64 = 3_600_000_000;
        let at =
            |year, month, day, hour: i64| days_from_civil(year, month, day).unwrap() * DAY_MICROSECONDS + hour * HOUR;
        let berlin = Zone::named("Europe/Berlin").unwrap();
        let kolkata = Zone::named("Asia/Kolkata").unwrap();
        for (unit, zone, instant, expected) in [
            ("day", berlin, at(2026, 3, 29, 10), at(2026, 3, 28, 23)),
            ("month", berlin, at(2026, 3, 29, 10), at(2026, 2, 28, 23)),
            ("year", berlin, at(2026, 7, 1, 0), at(2025, 12, 31, 23)),
            // Both hours from two to three o'clock.
            ("hour", berlin, at(2026, 10, 25, 0) + HOUR / 2, at(2026, 10, 25, 0)),
            ("hour", berlin, at(2026, 10, 25, 1) + HOUR / 2, at(2026, 10, 25, 1)),
            ("hour", kolkata, at(2026, 1, 1, 0), at(2025, 12, 31, 23) + HOUR / 2),
        ] {
            assert_eq!(Unit::named(unit).unwrap().start_in(instant, zone).unwrap(), expected, "{unit}");
        }
    }
}
