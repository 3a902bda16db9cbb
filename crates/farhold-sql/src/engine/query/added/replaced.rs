//! Functions that replace DataFusion's of the same name, whose results differ from PostgreSQL's.
//!
//! | function | DataFusion | here |
//! |---|---|---|
//! | `date_bin` | allows months, and steps below zero; ends in 2262 | steps above zero, without months |
//! | `factorial` | an integer | a decimal, up to 33 |
//! | `make_date` | the year -1 is the one before 1 BC, and there is a year 0 | the year -1 is 1 BC |
//! | `to_hex` of an INTEGER | of its 64 bits | of its 32 bits |
//! | `to_timestamp` | a timestamp without time zone; of a number it ends in 2262 | with time zone, in their range |
//! | `upper`, `lower`, `initcap` | a character may become several | each character becomes one |

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, StringViewArray, TimestampMicrosecondArray};
use arrow::datatypes::{
    DataType, Field, Float64Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType,
    TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::prelude::SessionContext;

use super::super::checked::{self, Check};
use super::super::functions::null_of;
use super::definition::{Definition, any, common_of_moments, function, is_bare, is_integer, is_moment, is_number};
use super::{WHOLE, external, not_taken, on_arrays};
use crate::SqlState;
use crate::engine::scalar::{lower, upper};
use crate::engine::types::{INTERVAL, is_timestamptz, timestamptz};
use crate::value::{DAY_MICROSECONDS, MICROSECONDS_TO_2000, timestamp_in_range};

/// Registers the functions.
pub(super) fn register(context: &SessionContext) {
    for definition in &REPLACED {
        context.register_udf(function(definition));
    }
    let inner = context.state().scalar_functions().get("to_timestamp").cloned();
    let signature = Signature::user_defined(Volatility::Immutable);
    context.register_udf(ScalarUDF::from(ToTimestamp { inner, signature }));
    checked::register(context, &["make_date"], &Years);
}

pub(super) static REPLACED: [Definition; 6] = [
    Definition {
        name: "date_bin",
        takes: |arguments| match arguments {
            [step, moments @ ..]
                if (*step == INTERVAL || is_bare(step))
                    && matches!(moments.len(), 1 | 2)
                    && moments.iter().all(|of| is_moment(of) || is_bare(of)) =>
            {
                Some([&[INTERVAL][..], &vec![common_of_moments(moments); moments.len()]].concat())
            }
            _ => None,
        },
        returns: |arguments| arguments[1].clone(),
        parameter: any,
        results: |of| bins(&of[0], &of[1], of.get(2)),
    },
    Definition {
        name: "factorial",
        takes: |arguments| match arguments {
            [number] if is_integer(number) => Some(vec![DataType::Int64]),
            _ => None,
        },
        returns: |_| WHOLE,
        parameter: any,
        results: |of| factorials(&of[0]),
    },
    Definition {
        name: "initcap",
        takes: text,
        returns: |_| DataType::Utf8View,
        parameter: any,
        results: |of| Ok(changed(&of[0], initcap)),
    },
    Definition {
        name: "lower",
        takes: text,
        returns: |_| DataType::Utf8View,
        parameter: any,
        results: |of| Ok(changed(&of[0], lower)),
    },
    Definition {
        name: "to_hex",
        takes: |arguments| match arguments {
            [DataType::Int8 | DataType::UInt8 | DataType::Int16] => Some(vec![DataType::Int16]),
            [DataType::UInt16 | DataType::Int32] => Some(vec![DataType::Int32]),
            [number] if is_integer(number) => Some(vec![DataType::Int64]),
            _ => None,
        },
        returns: |_| DataType::Utf8View,
        parameter: any,
        results: |of| Ok(hexadecimal(&of[0])),
    },
    Definition {
        name: "upper",
        takes: text,
        returns: |_| DataType::Utf8View,
        parameter: any,
        results: |of| Ok(changed(&of[0], upper)),
    },
];

fn text(arguments: &[DataType]) -> Option<Vec<DataType>> {
    match arguments {
        [text] if is_bare(text) => Some(vec![DataType::Utf8View]),
        _ => None,
    }
}

/// `to_timestamp`, which is DataFusion's for all but a number. DataFusion reads texts in UTC.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ToTimestamp {
    /// DataFusion's function, which parses texts.
    inner: Option<Arc<ScalarUDF>>,
    signature: Signature,
}

impl ToTimestamp {
    /// DataFusion's function, if it handles these arguments.
    fn left_to(&self, arguments: &[DataType]) -> Option<&Arc<ScalarUDF>> {
        self.inner.as_ref().filter(|_| !matches!(arguments, [number] if is_number(number)))
    }
}

impl ScalarUDFImpl for ToTimestamp {
    fn name(&self) -> &'static str {
        "to_timestamp"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        if self.left_to(arguments).is_some() {
            return match arguments {
                [first, formats @ ..] if is_bare(first) && formats.iter().all(is_bare) => Ok(arguments.to_vec()),
                [moment] if is_moment(moment) && !is_timestamptz(moment) => Ok(arguments.to_vec()),
                _ => Err(not_taken(self.name())),
            };
        }
        match arguments {
            [_] => Ok(vec![DataType::Float64]),
            _ => Err(not_taken(self.name())),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(timestamptz())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let types = arguments.args.iter().map(ColumnarValue::data_type).collect::<Vec<_>>();
        if let Some(inner) = self.left_to(&types) {
            let return_type = inner.return_type(&types)?;
            let return_field = Arc::new(Field::clone(&arguments.return_field).with_data_type(return_type));
            let moments = inner.invoke_with_args(ScalarFunctionArgs { return_field, ..arguments })?;
            return moments.cast_to(&timestamptz(), None);
        }
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, |of| match of {
            [seconds] => {
                let moments = seconds.as_primitive::<Float64Type>().iter().map(|of| of.map(moment).transpose());
                let moments = moments.collect::<Result<TimestampMicrosecondArray>>()?;
                Ok(Arc::new(moments.with_data_type(timestamptz())))
            }
            _ => Err(not_taken(self.name())),
        })
    }
}

fn factorials(numbers: &ArrayRef) -> Result<ArrayRef> {
    let factorials = numbers.as_primitive::<Int64Type>().iter().map(|of| of.map(factorial).transpose());
    Ok(Arc::new(factorials.collect::<Result<Decimal128Array>>()?.with_data_type(WHOLE)))
}

fn changed(texts: &ArrayRef, of: fn(&str) -> String) -> ArrayRef {
    Arc::new(texts.as_string_view().iter().map(|text| text.map(of)).collect::<StringViewArray>())
}

/// Each word with its first letter in upper case and the others in lower case.
fn initcap(text: &str) -> String {
    let mut is_in_word = false;
    let mut changed = String::with_capacity(text.len());
    for character in text.chars() {
        let character = character.encode_utf8(&mut [0; 4]).to_owned();
        changed.push_str(&if is_in_word { lower(&character) } else { upper(&character) });
        is_in_word = character.chars().all(char::is_alphanumeric);
    }
    changed
}

fn hexadecimal(numbers: &ArrayRef) -> ArrayRef {
    let texts: StringViewArray = match numbers.data_type() {
        DataType::Int16 => {
            let numbers = numbers.as_primitive::<Int16Type>();
            numbers.iter().map(|number| Some(format!("{:x}", i32::from(number?)))).collect()
        }
        DataType::Int32 => {
            numbers.as_primitive::<Int32Type>().iter().map(|number| Some(format!("{:x}", number?))).collect()
        }
        _ => numbers.as_primitive::<Int64Type>().iter().map(|number| Some(format!("{:x}", number?))).collect(),
    };
    Arc::new(texts)
}

fn factorial(number: i64) -> Result<i128> {
    if number < 0 {
        return Err(external(SqlState::NUMERIC_OUT_OF_RANGE, "factorial of a negative number is undefined"));
    }
    // The factorial of 34 has 39 digits.
    if number > 33 {
        return Err(external(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format"));
    }
    Ok((1..=i128::from(number)).product())
}

/// The timestamp of a number of seconds since 1970. PostgreSQL rounds the seconds since 2000.
fn moment(seconds: f64) -> Result<i64> {
    const SECONDS_TO_2000: f64 = (MICROSECONDS_TO_2000 / 1_000_000) as f64;
    if seconds.is_nan() {
        return Err(external(SqlState::DATETIME_OVERFLOW, "timestamp cannot be NaN"));
    }
    if seconds.is_infinite() {
        return Ok(if seconds > 0.0 { i64::MAX } else { i64::MIN });
    }
    // Beyond 64 bits the cast saturates. Then the addition overflows, or the result is infinity, which is out of range.
    let since_2000 = ((seconds - SECONDS_TO_2000) * 1e6).round_ties_even() as i64;
    let moment = since_2000.checked_add(MICROSECONDS_TO_2000).and_then(timestamp_in_range);
    moment.ok_or_else(|| external(SqlState::DATETIME_OVERFLOW, format!("timestamp out of range: \"{seconds}\"")))
}

/// The starts of the bins that contain the timestamps, counted from the origins.
fn bins(steps: &ArrayRef, moments: &ArrayRef, origins: Option<&ArrayRef>) -> Result<ArrayRef> {
    let steps = steps.as_primitive::<IntervalMonthDayNanoType>();
    let moments = moments.as_primitive::<TimestampMicrosecondType>();
    let origins = origins.map(AsArray::as_primitive::<TimestampMicrosecondType>);
    let bin_of = |row: usize| {
        if steps.is_null(row) || moments.is_null(row) || origins.is_some_and(|origins| origins.is_null(row)) {
            return Ok(None);
        }
        bin(steps.value(row), moments.value(row), origins.map_or(0, |origins| origins.value(row))).map(Some)
    };
    let bins = (0..moments.len()).map(bin_of).collect::<Result<TimestampMicrosecondArray>>()?;
    Ok(Arc::new(bins.with_data_type(moments.data_type().clone())))
}

fn bin(step: IntervalMonthDayNano, moment: i64, origin: i64) -> Result<i64> {
    let is_infinite = |of: i64| matches!(of, i64::MIN | i64::MAX);
    let out_of_range = |message: &str| external(SqlState::DATETIME_OVERFLOW, message);
    if is_infinite(moment) {
        return Ok(moment);
    }
    if is_infinite(origin) {
        return Err(out_of_range("origin out of range"));
    }
    if step.months != 0 {
        let message = "timestamps cannot be binned into intervals containing months or years";
        return Err(external(SqlState::FEATURE_NOT_SUPPORTED, message));
    }
    let step = i64::from(step.days)
        .checked_mul(DAY_MICROSECONDS)
        .and_then(|days| days.checked_add(step.nanoseconds / 1000))
        .ok_or_else(|| out_of_range("interval out of range"))?;
    if step <= 0 {
        return Err(out_of_range("stride must be greater than zero"));
    }
    let distance = moment.checked_sub(origin).ok_or_else(|| out_of_range("interval out of range"))?;
    let start = moment.checked_sub(distance.rem_euclid(step)).and_then(timestamp_in_range);
    start.ok_or_else(|| out_of_range("timestamp out of range"))
}

/// `make_date`: PostgreSQL counts the years before the year 1 from -1 down, DataFusion from 0.
#[derive(Clone, Debug)]
struct Years;

impl Check for Years {
    fn invoke(&self, inner: &ScalarUDF, mut arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let is_known = |row: usize| {
            arguments.args.iter().all(|argument| match argument {
                ColumnarValue::Scalar(value) => !value.is_null(),
                ColumnarValue::Array(values) => values.is_valid(row),
            })
        };
        let Some(years) = arguments.args.first() else { return inner.invoke_with_args(arguments) };
        let is_scalar = matches!(years, ColumnarValue::Scalar(_));
        let years = years.to_array(if is_scalar { 1 } else { rows })?;
        let years = years.as_primitive::<Int32Type>();
        for (row, year) in years.iter().enumerate() {
            if year == Some(0) && (is_scalar || is_known(row)) {
                return Err(external(SqlState::DATETIME_OVERFLOW, "date field value out of range"));
            }
        }
        let years: ArrayRef = Arc::new(years.unary::<_, Int32Type>(|year| if year < 0 { year + 1 } else { year }));
        arguments.args[0] = if is_scalar {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&years, 0)?)
        } else {
            ColumnarValue::Array(years)
        };
        inner.invoke_with_args(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_begin_before_what_is_in_them() {
        let day = IntervalMonthDayNano::new(0, 1, 0);
        assert_eq!(bin(day, DAY_MICROSECONDS, 3 * DAY_MICROSECONDS).unwrap(), DAY_MICROSECONDS);
        assert_eq!(bin(day, DAY_MICROSECONDS - 1, 3 * DAY_MICROSECONDS).unwrap(), 0);
        assert_eq!(bin(day, i64::MAX, 0).unwrap(), i64::MAX);
        for (step, origin) in [
            (IntervalMonthDayNano::new(1, 0, 0), 0),
            (IntervalMonthDayNano::new(0, -1, 0), 0),
            (IntervalMonthDayNano::new(0, 0, 0), 0),
            (day, i64::MIN),
        ] {
            assert!(bin(step, 0, origin).is_err());
        }
    }

    #[test]
    fn seconds_are_moments() {
        assert_eq!(moment(1.5).unwrap(), 1_500_000);
        assert_eq!(moment(f64::INFINITY).unwrap(), i64::MAX);
        for seconds in [1e15, -1e15, 1e300, f64::NAN] {
            assert!(moment(seconds).is_err());
        }
    }
}
