//! `timezone(zone, moment)`, also written `moment AT TIME ZONE zone`: the local time of an instant, or the instant of a local
//! time. A zone is a name, or an interval to the east. DataFusion plans the operator as a cast, which has one direction.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, TimestampMicrosecondType};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

use super::added::{not_taken, on_arrays};
use super::functions::null_of;
use crate::engine::types::{INTERVAL, TIMESTAMP, instant_of, is_timestamptz, local_of, timestamptz};
use crate::value::{Zone, put_interval, written};
use crate::{SqlError, SqlState};

pub(super) const NAME: &str = "timezone";

/// Registers the function.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(AtZone { signature: Signature::user_defined(Volatility::Immutable) }));
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AtZone {
    signature: Signature,
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

impl ScalarUDFImpl for AtZone {
    fn name(&self) -> &'static str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// A date, or a text of no type, has become an instant before the function is called.
    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let [zone, moment] = arguments else { return Err(not_taken(NAME)) };
        let zone = match zone {
            DataType::Interval(_) => INTERVAL,
            zone if zone.is_string() || zone.is_null() => DataType::Utf8View,
            _ => return Err(not_taken(NAME)),
        };
        match moment {
            DataType::Timestamp(_, None) => Ok(vec![zone, TIMESTAMP]),
            DataType::Timestamp(..) | DataType::Date32 | DataType::Null => Ok(vec![zone, timestamptz()]),
            text if text.is_string() => Ok(vec![zone, timestamptz()]),
            _ => Err(not_taken(NAME)),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(if arguments.get(1).is_some_and(is_timestamptz) { TIMESTAMP } else { timestamptz() })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, |of| match of {
            [zones, moments] => moments_at(zones, moments),
            _ => Err(not_taken(NAME)),
        })
    }
}

fn moments_at(zones: &ArrayRef, moments: &ArrayRef) -> Result<ArrayRef> {
    let is_instant = is_timestamptz(moments.data_type());
    let moments = moments.as_primitive::<TimestampMicrosecondType>();
    // Most rows have the zone of the row before.
    let mut last: Option<(&str, Zone)> = None;
    let mut zone_of = |row: usize| -> Result<Zone, SqlError> {
        if let Some(intervals) = zones.as_primitive_opt::<IntervalMonthDayNanoType>() {
            return of_interval(intervals.value(row));
        }
        let name = zones.as_string_view().value(row);
        match last {
            Some((known, zone)) if known == name => Ok(zone),
            _ => {
                let zone = Zone::of_text(name)?;
                last = Some((name, zone));
                Ok(zone)
            }
        }
    };
    let mut at = |row: usize| -> Result<Option<i64>, SqlError> {
        if zones.is_null(row) || moments.is_null(row) {
            return Ok(None);
        }
        let zone = zone_of(row)?;
        let moment = moments.value(row);
        if is_instant { local_of(moment, zone).map(Some) } else { instant_of(moment, zone).map(Some) }
    };
    let results = (0..moments.len()).map(|row| at(row).map_err(external));
    let results = results.collect::<Result<TimestampMicrosecondArray>>()?;
    Ok(if is_instant { Arc::new(results) } else { Arc::new(results.with_data_type(timestamptz())) })
}

fn of_interval(interval: IntervalMonthDayNano) -> Result<Zone, SqlError> {
    if interval.months != 0 || interval.days != 0 {
        let text = written(|out| put_interval(interval, out));
        let message = format!("interval time zone \"{text}\" must not include months or days");
        return Err(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message));
    }
    Ok(Zone::ahead(interval.nanoseconds / 1_000_000_000))
}
