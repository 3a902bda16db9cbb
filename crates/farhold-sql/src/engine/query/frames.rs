//! Frames by RANGE whose distance is of another type than their key.
//!
//! A distance that has more decimals than a decimal key gives the key as many: DataFusion would round it.
//!
//! Dates and timestamps are intervals away from their row. DataFusion adds a distance to the row's key. There is no moment behind an infinite one, a date has no hours, and a negative distance makes a
//! frame that PostgreSQL refuses (22013). So the key becomes
//!
//! - microseconds, infinity further off than any interval reaches, where the distances are days and times;
//! - a timestamp, where there are months in them, which have no length. Infinity is refused then (0A000).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::compute::kernels::cast_utils::parse_interval_month_day_nano;
use arrow::datatypes::{DataType, Date32Type, IntervalMonthDayNano, TimestampMicrosecondType};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, WindowFrame,
    WindowFrameBound, lit,
};

use crate::engine::types::{DAY_MICROSECONDS, TIMESTAMP, exact_decimal};
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// Of a month, where intervals are compared.
const MONTH_DAYS: i128 = 30;
/// Any moment in microseconds, and any distance from it.
const MICROSECONDS: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);
/// More than any moment and any interval.
const INFINITY: i128 = 10_i128.pow(30);

/// Makes a frame's key and distances such that the one and the other can be added.
pub(super) fn over_moments(key: &mut Expr, frame: &mut WindowFrame) -> Result<()> {
    let is_done = matches!(&*key, Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Key>().is_some());
    let Some(distances) = distances(frame).filter(|_| !is_done) else { return Ok(()) };
    let mut has_months = false;
    for distance in distances.iter().flatten() {
        if microseconds(*distance) < 0 {
            let message = "invalid preceding or following size in window function";
            return Err(external(SqlError::new(SqlState::INVALID_PRECEDING_OR_FOLLOWING_SIZE, message)));
        }
        has_months |= distance.months != 0;
    }
    if !has_months {
        let bound = |bound: &WindowFrameBound, distance: Option<IntervalMonthDayNano>| {
            let distance = distance.map(microseconds);
            let distance = ScalarValue::Decimal128(distance, ColumnType::PRECISION_MAX, 0);
            match bound {
                WindowFrameBound::Preceding(_) => WindowFrameBound::Preceding(distance),
                WindowFrameBound::Following(_) => WindowFrameBound::Following(distance),
                WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
            }
        };
        let [start, end] = distances;
        *frame = WindowFrame::new_bounds(frame.units, bound(&frame.start_bound, start), bound(&frame.end_bound, end));
    }
    let function = Key { has_months, signature: Signature::any(1, Volatility::Immutable) };
    let moment = std::mem::replace(key, lit(ScalarValue::Null));
    *key = ScalarUDF::from(function).call(vec![moment]);
    Ok(())
}

/// The decimals of a frame's distances, where they are more than `scale`.
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

/// How far off a frame begins and ends; `None` unless all that it says are intervals.
fn distances(frame: &WindowFrame) -> Option<[Option<IntervalMonthDayNano>; 2]> {
    let distance = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) if !value.is_null() => {
            let interval = match value {
                ScalarValue::IntervalMonthDayNano(Some(interval)) => *interval,
                value => parse_interval_month_day_nano(value.try_as_str()??).ok()?,
            };
            Some(Some(interval))
        }
        _ => Some(None),
    };
    Some([distance(&frame.start_bound)?, distance(&frame.end_bound)?])
}

fn microseconds(interval: IntervalMonthDayNano) -> i128 {
    let days = i128::from(interval.months) * MONTH_DAYS + i128::from(interval.days);
    days * i128::from(DAY_MICROSECONDS) + i128::from(interval.nanoseconds / 1_000)
}

/// A date or timestamp as the key of a frame.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    /// Whether the frame has months in its distances.
    has_months: bool,
    signature: Signature,
}

impl Key {
    fn keys(&self, moments: &ArrayRef) -> Result<ArrayRef> {
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
        let keys = (0..moments.len()).map(of_row);
        if !self.has_months {
            return Ok(Arc::new(keys.collect::<Decimal128Array>().with_data_type(MICROSECONDS)));
        }
        let finite = |key: Option<i128>| match key.map(i64::try_from) {
            Some(Ok(key)) => Ok(Some(key)),
            None => Ok(None),
            Some(Err(_)) => {
                let error = SqlError::unsupported("RANGE with an interval of months from a moment this far off");
                Err(external(error.with_hint("Give the distance in days.")))
            }
        };
        let keys = keys.map(finite).collect::<Result<arrow::array::PrimitiveArray<TimestampMicrosecondType>>>()?;
        Ok(Arc::new(keys))
    }
}

impl ScalarUDFImpl for Key {
    fn name(&self) -> &'static str {
        if self.has_months { "frame_moment" } else { "frame_microseconds" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(if self.has_months { TIMESTAMP } else { MICROSECONDS })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match &arguments.args[0] {
            ColumnarValue::Array(moments) => ColumnarValue::Array(self.keys(moments)?),
            ColumnarValue::Scalar(moment) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&self.keys(&moment.to_array()?)?, 0)?)
            }
        })
    }
}
