//! `generate_series` of timestamps.
//!
//! DataFusion's (55) counts in nanoseconds, so it ends in 2262, and returns dates for dates. Here dates become timestamps
//! with time zone, as in PostgreSQL, whose steps are those of the session's zone. Series of integers are left to DataFusion.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, ListBuilder, TimestampMicrosecondBuilder};
use arrow::datatypes::{
    DataType, Field, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

use super::added::common_of_moments;
use super::clocks;
use super::dates::instant_plus;
use crate::engine::types::{INTERVAL, is_timestamptz};
use crate::value::Zone;
use crate::{SqlError, SqlState};

pub(super) const SERIES: &str = "generate_series";

/// Replaces DataFusion's function.
pub(super) fn register(context: &SessionContext) {
    let known = context.state().scalar_functions().get(SERIES).cloned();
    if let Some(integers) = known {
        context.register_udf(ScalarUDF::from(Series::new(integers, Zone::UTC)));
    }
}

/// The types of the arguments of a series of timestamps: from, to, step.
pub(super) fn types_of_arguments(arguments: &[DataType]) -> Option<[DataType; 3]> {
    let is_moment = |argument: &DataType| matches!(argument, DataType::Date32 | DataType::Timestamp(..));
    let is_series = arguments.len() == 3 && arguments[..2].iter().any(is_moment);
    is_series.then(|| {
        let moment = common_of_moments(&arguments[..2]);
        [moment.clone(), moment, INTERVAL]
    })
}

/// The function in the session's time zone.
pub(super) fn series_in_zone(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    let integers = function.inner().downcast_ref::<Series>().map(|series| Arc::clone(&series.integers));
    integers.map_or(function, |integers| Arc::new(ScalarUDF::from(Series::new(integers, clocks::zone()))))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Series {
    integers: Arc<ScalarUDF>,
    /// The zone of timestamps with time zone.
    zone: Zone,
    signature: Signature,
}

impl Series {
    fn new(integers: Arc<ScalarUDF>, zone: Zone) -> Self {
        Self { integers, zone, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Series {
    fn name(&self) -> &'static str {
        SERIES
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        if let Some(types) = types_of_arguments(arguments) {
            return Ok(types.to_vec());
        }
        if !matches!(arguments.len(), 2 | 3) {
            let message = format!("generate_series takes two or three arguments, not {}", arguments.len());
            return Err(external(SqlError::new(SqlState::UNDEFINED_FUNCTION, message)));
        }
        let is_integer = |argument: &DataType| argument.is_integer() || argument.is_null();
        if !arguments.iter().all(is_integer) {
            let message = "generate_series of types other than integers, and timestamps with an interval";
            return Err(external(SqlError::unsupported(message)));
        }
        Ok(vec![DataType::Int64; arguments.len()])
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if let Some(moment @ DataType::Timestamp(..)) = arguments.first() {
            return Ok(DataType::List(Arc::new(Field::new_list_field(moment.clone(), true))));
        }
        self.integers.return_type(arguments)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_alike = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if is_alike { 1 } else { arguments.number_rows };
        let [from, to, step] = arguments.args.as_slice() else { return self.integers.invoke_with_args(arguments) };
        if !matches!(from.data_type(), DataType::Timestamp(..)) {
            let (from, to, step) = (from.to_array(rows)?, to.to_array(rows)?, step.to_array(rows)?);
            if let Some(steps) = step.as_primitive_opt::<Int64Type>() {
                let has_no_step = |row| steps.is_valid(row) && steps.value(row) == 0;
                if (0..rows).any(|row| from.is_valid(row) && to.is_valid(row) && has_no_step(row)) {
                    return Err(external(no_step()));
                }
            }
            return self.integers.invoke_with_args(arguments);
        }
        let zone = is_timestamptz(&from.data_type()).then_some(self.zone);
        let series: ArrayRef = series(&from.to_array(rows)?, &to.to_array(rows)?, &step.to_array(rows)?, zone)?;
        Ok(if is_alike {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&series, 0)?)
        } else {
            ColumnarValue::Array(series)
        })
    }
}

fn no_step() -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, "step size cannot equal zero")
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// `zone` is that of timestamps with time zone.
fn series(from: &ArrayRef, to: &ArrayRef, step: &ArrayRef, zone: Option<Zone>) -> Result<ArrayRef> {
    let data_type = from.data_type().clone();
    let from = from.as_primitive::<TimestampMicrosecondType>();
    let to = to.as_primitive::<TimestampMicrosecondType>();
    let step = step.as_primitive::<IntervalMonthDayNanoType>();
    let values = TimestampMicrosecondBuilder::new().with_data_type(data_type);
    let mut lists = ListBuilder::new(values);
    for row in 0..from.len() {
        if from.is_null(row) || to.is_null(row) || step.is_null(row) {
            lists.append_null();
            continue;
        }
        let take = |moment| lists.values().append_value(moment);
        each_moment(from.value(row), to.value(row), step.value(row), zone, take).map_err(external)?;
        lists.append(true);
    }
    Ok(Arc::new(lists.finish()))
}

/// Each step starts from the previous timestamp. So if a month lacks a day, all later timestamps stay at the shorter
/// day.
fn each_moment(
    from: i64,
    to: i64,
    step: IntervalMonthDayNano,
    zone: Option<Zone>,
    mut take: impl FnMut(i64),
) -> Result<(), SqlError> {
    const DAY_NS: i128 = 86_400_000_000_000;
    let days = i128::from(step.months) * 30 + i128::from(step.days);
    let length_ns = days * DAY_NS + i128::from(step.nanoseconds);
    if length_ns == 0 {
        return Err(no_step());
    }
    if [from, to].iter().any(|moment| matches!(*moment, i64::MIN | i64::MAX)) {
        return Err(SqlError::unsupported("generate_series from or to an infinite timestamp"));
    }
    let utc: Tz = "+00:00".parse().map_err(|_| SqlError::internal("UTC is not known"))?;
    let mut moment = from;
    while if length_ns > 0 { moment <= to } else { moment >= to } {
        take(moment);
        let next = match zone {
            Some(zone) => instant_plus(moment, step, 1, zone),
            None => TimestampMicrosecondType::add_month_day_nano(moment, step, utc),
        };
        let next = next.ok_or_else(|| SqlError::new(SqlState::DATETIME_OVERFLOW, "timestamp out of range"))?;
        // A day less 23 hours is no step where the clocks go forward.
        if (length_ns > 0) != (next > moment) {
            return Err(no_step());
        }
        moment = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(from: i64, to: i64, step: (i32, i32, i64)) -> Result<Vec<i64>, SqlError> {
        let mut moments = Vec::new();
        let step = IntervalMonthDayNano::new(step.0, step.1, step.2);
        each_moment(from, to, step, None, |moment| moments.push(moment))?;
        Ok(moments)
    }

    #[test]
    fn series_go_up_and_down() {
        const DAY_US: i64 = 86_400_000_000;
        assert_eq!(moments(0, 2 * DAY_US, (0, 1, 0)).unwrap(), [0, DAY_US, 2 * DAY_US]);
        assert_eq!(moments(DAY_US, 1, (0, -1, 0)).unwrap(), [DAY_US]);
        assert!(moments(1, 0, (0, 1, 0)).unwrap().is_empty());
        // From January 31st the following months have day 28.
        assert_eq!(moments(30 * DAY_US, 90 * DAY_US, (1, 0, 0)).unwrap(), [30 * DAY_US, 58 * DAY_US, 86 * DAY_US]);
        assert!(moments(0, 1, (1, -30, 0)).is_err());
        assert!(moments(0, i64::MAX, (0, 1, 0)).is_err());
    }
}
