//! Frames by RANGE whose distance has another type than their key.
//!
//! If a distance has more decimals than a decimal key, the key gets as many: DataFusion would round the distance.
//!
//! A distance from a date or timestamp is an interval, which DataFusion adds to the row's key. But nothing lies beyond
//! an infinite key, a date has no hours, and PostgreSQL refuses a negative distance (22013). So the key becomes
//!
//! - microseconds, with infinity beyond the reach of any interval, if the distances consist of days and times;
//! - a timestamp if they contain months, which have no fixed length.
//!
//! A timestamp with time zone has days of different lengths. Frames by days or months are refused (0A000) in a session whose
//! time zone changes its offset.
//!
//! Infinity plus or minus a distance is infinity, for dates, timestamps and floats. DataFusion treats no key like that
//! except NULL. So if neither end of a frame is UNBOUNDED, and one end lies on the other side of its row or a distance
//! has months, the infinite rows form a separate partition in which all keys are NULL. If one end is UNBOUNDED,
//! infinite rows are refused (0A000).
//!
//! An infinite distance from a float reaches all numbers, but not NaN. If neither end is UNBOUNDED, the numbers form a
//! separate partition, in which that end becomes UNBOUNDED. Otherwise the infinite keys become the greatest finite
//! numbers, since the distance to the opposite infinity would be NaN. A frame that starts or ends at an infinite
//! distance on the other side of its row, such as `'Infinity' PRECEDING` as the end, is refused (0A000).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Int64Array};
use arrow::datatypes::{DataType, Date32Type, Float64Type, IntervalMonthDayNano, TimestampMicrosecondType};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    WindowFrame, WindowFrameBound, lit,
};

use super::{added, clocks, functions};
use crate::engine::types::TIMESTAMP;
use crate::engine::{ColumnType, Datum};
use crate::value::{DAY_MICROSECONDS, Zone, exact_decimal, parse_datum, parse_interval};
use crate::{SqlError, SqlState};

/// The days of a month in comparisons of intervals.
const MONTH_DAYS: i128 = 30;
/// Holds any timestamp in microseconds, and any distance from it.
const MICROSECONDS: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);
/// Beyond any timestamp and any interval.
const INFINITY: i128 = 10_i128.pow(30);

/// Converts a frame's key and distances so that they can be added. Returns an additional partition key, if one is
/// needed.
pub(super) fn over_moments(key: &mut Expr, frame: &mut WindowFrame, has_zone: bool) -> Result<Option<Expr>> {
    if is_made(key) {
        return Ok(None);
    }
    let distances = distances(frame)?;
    let has_days = distances.iter().flatten().any(|distance| distance.months != 0 || distance.days != 0);
    if has_zone && has_days {
        if !clocks::zone().is_fixed() {
            let message = "RANGE with an offset of days over timestamps with a time zone whose offset changes";
            return Err(external(SqlError::unsupported(message).with_hint("Give the offset in hours.")));
        }
        *key = functions::cast(std::mem::replace(key, lit(ScalarValue::Null)), ColumnType::Timestamp);
    }
    let mut has_months = false;
    for distance in distances.iter().flatten() {
        if microseconds(*distance) < 0 {
            return Err(external(invalid_size()));
        }
        has_months |= distance.months != 0;
    }
    let infinity = match (is_bounded(frame), is_aside(frame)) {
        (true, is_aside) if is_aside || has_months => Infinity::Apart,
        (false, true) => Infinity::Refused,
        _ if has_months => Infinity::Refused,
        _ => Infinity::FarOff,
    };
    let apart = (infinity == Infinity::Apart).then(|| key_of(Kind::Class, key.clone()));
    let bound = |bound: &WindowFrameBound, distance: Option<IntervalMonthDayNano>| {
        let distance = if has_months {
            ScalarValue::IntervalMonthDayNano(distance)
        } else {
            ScalarValue::Decimal128(distance.map(microseconds), ColumnType::PRECISION_MAX, 0)
        };
        match bound {
            WindowFrameBound::Preceding(_) => WindowFrameBound::Preceding(distance),
            WindowFrameBound::Following(_) => WindowFrameBound::Following(distance),
            WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
        }
    };
    let [start, end] = distances;
    *frame = WindowFrame::new_bounds(frame.units, bound(&frame.start_bound, start), bound(&frame.end_bound, end));
    let moment = std::mem::replace(key, lit(ScalarValue::Null));
    *key = key_of(Kind::Moment { has_months, infinity }, moment);
    Ok(apart)
}

/// Converts the infinite distances of a frame over floats so that they exclude the same rows as in PostgreSQL. Returns
/// an additional partition key, if one is needed.
pub(super) fn over_floats(key: &mut Expr, frame: &mut WindowFrame, schema: &DFSchema) -> Result<Option<Expr>> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let is_infinite = |bound: &WindowFrameBound| match bound {
        Preceding(value) | Following(value) => distance_in_floats(value) == Some(f64::INFINITY),
        CurrentRow => false,
    };
    let (from_infinity, to_infinity) = (is_infinite(&frame.start_bound), is_infinite(&frame.end_bound));
    if !from_infinity && !to_infinity || is_made(key) {
        return Ok(None);
    }
    let starts_beyond = from_infinity && matches!(frame.start_bound, Following(_));
    if starts_beyond || to_infinity && matches!(frame.end_bound, Preceding(_)) {
        return Err(external(SqlError::unsupported(
            "RANGE that starts at infinity FOLLOWING or ends at infinity PRECEDING",
        )));
    }
    let number = std::mem::replace(key, lit(ScalarValue::Null)).cast_to(&DataType::Float64, schema)?;
    if !is_bounded(frame) {
        *key = key_of(Kind::Finite, number);
        return Ok(None);
    }
    let apart = key_of(Kind::Class, number.clone());
    *key = number;
    let start = if from_infinity { Preceding(ScalarValue::Null) } else { frame.start_bound.clone() };
    let end = if to_infinity { Following(ScalarValue::Null) } else { frame.end_bound.clone() };
    *frame = WindowFrame::new_bounds(frame.units, start, end);
    Ok(Some(apart))
}

fn distance_in_floats(value: &ScalarValue) -> Option<f64> {
    let text = value.try_as_str().flatten()?;
    match parse_datum(text, ColumnType::Double, Zone::UTC).ok()? {
        Datum::Double(distance) => Some(distance),
        _ => None,
    }
}

/// Refuses negative distances and NaN: the planner passes a distance on as text.
pub(super) fn check_distances(frame: &WindowFrame) -> Result<()> {
    for bound in [&frame.start_bound, &frame.end_bound] {
        let (WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value)) = bound else { continue };
        if distance_in_floats(value).is_some_and(|number| number < 0.0 || number.is_nan()) {
            return Err(external(invalid_size()));
        }
    }
    Ok(())
}

/// 22013: a distance is negative or NaN.
pub(super) fn invalid_size() -> SqlError {
    let message = "invalid preceding or following size in window function";
    SqlError::new(SqlState::INVALID_PRECEDING_OR_FOLLOWING_SIZE, message)
}

/// Whether neither end of a frame is UNBOUNDED.
fn is_bounded(frame: &WindowFrame) -> bool {
    let is_unbounded = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => value.is_null(),
        WindowFrameBound::CurrentRow => false,
    };
    !is_unbounded(&frame.start_bound) && !is_unbounded(&frame.end_bound)
}

/// Whether a frame may exclude its own row.
fn is_aside(frame: &WindowFrame) -> bool {
    matches!(&frame.start_bound, WindowFrameBound::Following(_))
        || matches!(&frame.end_bound, WindowFrameBound::Preceding(_))
}

fn key_of(kind: Kind, of: Expr) -> Expr {
    ScalarUDF::from(Key { kind, signature: Signature::any(1, Volatility::Immutable) }).call(vec![of])
}

/// Whether a key is already converted: types may be resolved again.
fn is_made(key: &Expr) -> bool {
    matches!(key, Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Key>().is_some())
}

/// The scale of a frame's distances, if it is larger than `scale`.
pub(super) fn longer_scale(frame: &WindowFrame, scale: i8) -> Option<i8> {
    let decimals = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => {
            match (value, value.try_as_str().flatten().and_then(exact_decimal)) {
                (ScalarValue::Decimal128(_, _, scale), _) => Some(*scale),
                (_, Some(Datum::Decimal { scale, .. })) => Some(scale.cast_signed()),
                _ => None,
            }
        }
        WindowFrameBound::CurrentRow => None,
    };
    let longest = [&frame.start_bound, &frame.end_bound].into_iter().filter_map(decimals).max();
    longest.filter(|longest| *longest > scale)
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The distances of a frame's start and end.
fn distances(frame: &WindowFrame) -> Result<[Option<IntervalMonthDayNano>; 2]> {
    let distance = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) if !value.is_null() => match value {
            ScalarValue::IntervalMonthDayNano(interval) => Ok(*interval),
            value => match value.try_as_str() {
                Some(text) => text.map(parse_interval).transpose().map_err(external),
                None => {
                    Err(external(SqlError::unsupported("RANGE over a date with an offset that is not an interval")))
                }
            },
        },
        _ => Ok(None),
    };
    Ok([distance(&frame.start_bound)?, distance(&frame.end_bound)?])
}

fn microseconds(interval: IntervalMonthDayNano) -> i128 {
    let days = i128::from(interval.months) * MONTH_DAYS + i128::from(interval.days);
    days * i128::from(DAY_MICROSECONDS) + i128::from(interval.nanoseconds / 1_000)
}

/// How an infinite date or timestamp is represented as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Infinity {
    /// Beyond any distance.
    FarOff,
    /// NULL, in a separate partition.
    Apart,
    Refused,
}

/// The function that is applied to a row's float, date or timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Whether a date or timestamp is finite, or which infinity it is; whether a float is NaN.
    Class,
    /// A float to which infinity can be added: infinite values become the greatest finite ones.
    Finite,
    /// The key of a frame whose distances consist of days and times, or of months.
    Moment { has_months: bool, infinity: Infinity },
}

/// Dates and timestamps in microseconds.
fn moments(moments: &ArrayRef) -> Vec<Option<i128>> {
    let is_date = *moments.data_type() == DataType::Date32;
    let of_row = |row: usize| -> Option<i128> {
        if moments.is_null(row) {
            return None;
        }
        Some(if is_date {
            match moments.as_primitive::<Date32Type>().value(row) {
                i32::MAX => INFINITY,
                i32::MIN => -INFINITY,
                days => i128::from(days) * i128::from(DAY_MICROSECONDS),
            }
        } else {
            match moments.as_primitive::<TimestampMicrosecondType>().value(row) {
                i64::MAX => INFINITY,
                i64::MIN => -INFINITY,
                microseconds => microseconds.into(),
            }
        })
    };
    (0..moments.len()).map(of_row).collect()
}

/// The keys of a frame over dates or timestamps.
fn keys(of: &ArrayRef, has_months: bool, infinity: Infinity) -> Result<ArrayRef> {
    let mut keys = moments(of);
    let is_infinite = |key: &Option<i128>| key.is_some_and(|key| key.abs() == INFINITY);
    match infinity {
        Infinity::Apart => {
            for key in keys.iter_mut().filter(|key| is_infinite(key)) {
                *key = None;
            }
        }
        // With months, such a timestamp is refused below.
        Infinity::Refused if !has_months && keys.iter().any(is_infinite) => {
            let error = SqlError::unsupported("RANGE with UNBOUNDED and an offset over infinite dates or timestamps");
            return Err(external(error.with_hint("Exclude the infinite values.")));
        }
        Infinity::FarOff | Infinity::Refused => {}
    }
    let keys = keys.into_iter();
    if !has_months {
        return Ok(Arc::new(keys.collect::<Decimal128Array>().with_data_type(MICROSECONDS)));
    }
    let moment = |key: Option<i128>| match key.map(i64::try_from) {
        Some(Ok(key)) => Ok(Some(key)),
        None => Ok(None),
        Some(Err(_)) => {
            let error = SqlError::unsupported("RANGE with an interval of months for a date this far from today");
            Err(external(error.with_hint("Give the offset in days.")))
        }
    };
    let keys = keys.map(moment).collect::<Result<arrow::array::PrimitiveArray<TimestampMicrosecondType>>>()?;
    Ok(Arc::new(keys))
}

/// The sign of each infinite date or timestamp, 0 for finite ones; 1 for a float that is NaN, otherwise 0.
fn classes(of: &ArrayRef) -> Int64Array {
    if let Some(floats) = of.as_primitive_opt::<Float64Type>() {
        return floats.iter().map(|float| float.map(|float| float.is_nan().into())).collect();
    }
    let side = |moment: i128| if moment.abs() == INFINITY { moment.signum() as i64 } else { 0 };
    moments(of).into_iter().map(|moment| moment.map(side)).collect()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for Key {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Class => "frame_class",
            Kind::Finite => "frame_number",
            Kind::Moment { has_months: true, .. } => "frame_moment",
            Kind::Moment { .. } => "frame_microseconds",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Class => DataType::Int64,
            Kind::Finite => DataType::Float64,
            Kind::Moment { has_months: true, .. } => TIMESTAMP,
            Kind::Moment { .. } => MICROSECONDS,
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        added::on_arrays(&arguments, |of| match self.kind {
            Kind::Class => Ok(Arc::new(classes(&of[0]))),
            Kind::Finite => {
                let floats = of[0].as_primitive::<Float64Type>();
                Ok(Arc::new(floats.unary::<_, Float64Type>(|float| float.clamp(f64::MIN, f64::MAX))))
            }
            Kind::Moment { has_months, infinity } => keys(&of[0], has_months, infinity),
        })
    }
}
