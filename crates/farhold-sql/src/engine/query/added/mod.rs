//! Functions of PostgreSQL that DataFusion lacks, and argument types that its own functions do not accept. A function of
//! ours is one [`Definition`] in [`ADDED`], or in [`replaced`].
//!
//! | function | implementation |
//! |---|---|
//! | `age` of local times (with one argument it counts from today: [`rewrite`](super::rewrite)), `get_byte`, `isfinite`, `width_bucket` | ours |
//! | `length`, `octet_length` and `bit_length` of bytes | ours; other functions of texts refuse bytes |
//! | `ceiling` | another name of `ceil` |
//! | `sign` of numbers, `div` and `scale` of decimals | ours |
//! | `string_agg` of bytes | refused: DataFusion treats them as texts |
//! | `date_bin`, `factorial`, `initcap`, `lower`, `make_date`, `to_hex`, `to_timestamp`, `upper` | ours, replacing DataFusion's ([`replaced`]) |
//! | `every` | another name of `bool_and` |
//! | `substring` of bytes, and of a text by a pattern | ours, around DataFusion's |
//! | `array_length` | DataFusion's, as an integer; NULL for an array without elements |
//! | `coalesce` of bytes, booleans, dates, timestamps or intervals with untyped string literals | DataFusion's, with their types |

mod buckets;
mod definition;
mod replaced;
mod substrings;
mod wrapped;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, IntervalMonthDayNanoArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, DecimalType, Float64Type, Int64Type, IntervalMonthDayNano,
    TimestampMicrosecondType, i256,
};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::bool_and_or::bool_and_udaf;
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::functions::type_of;
use crate::engine::ColumnType;
use crate::engine::types::{INTERVAL, TIMESTAMP, is_timestamptz, timestamptz};
use crate::value::{DAY_MICROSECONDS, DAYS_TO_2000, civil_from_days, days_from_civil};
use crate::{SqlError, SqlState};
use buckets::buckets;
use definition::{Definition, any, function, is_bare, is_integer, is_moment, is_number};
use substrings::Substring;
use wrapped::{ArrayLength, Coalesce};

pub(super) use buckets::number_of_buckets;
pub(super) use definition::common_of_moments;

/// Registers the functions.
pub(super) fn register(context: &SessionContext) {
    for definition in &ADDED {
        context.register_udf(function(definition));
    }
    context.register_udaf(AggregateUDF::clone(&bool_and_udaf()).with_aliases(["every"]));
    replaced::register(context);
    let known = |name: &str| context.state().scalar_functions().get(name).cloned();
    if let Some(ceil) = known("ceil") {
        context.register_udf(ScalarUDF::clone(&ceil).with_aliases(["ceiling"]));
    }
    let signature = || Signature::user_defined(Volatility::Immutable);
    if let Some(inner) = known("coalesce") {
        context.register_udf(ScalarUDF::from(Coalesce { inner, signature: signature() }));
    }
    if let Some(inner) = known("array_length") {
        context.register_udf(ScalarUDF::from(ArrayLength { inner }));
    }
    if let Some(inner) = known("substr") {
        for takes_patterns in [false, true] {
            let parameter_names = inner.signature().parameter_names.clone();
            let (inner, signature) = (Arc::clone(&inner), Signature { parameter_names, ..signature() });
            context.register_udf(ScalarUDF::from(Substring { inner, takes_patterns, signature }));
        }
    }
}

fn external(state: SqlState, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(state, message)))
}

/// 42883: a function does not accept the types of its arguments.
pub(in crate::engine::query) fn not_taken(name: &str) -> DataFusionError {
    let error = SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} does not take these arguments"));
    DataFusionError::External(Box::new(error.with_hint("You might need to add explicit type casts.")))
}

/// Functions of texts, which DataFusion would apply to bytes as if they were texts. A [`Definition`] refuses them itself.
const OF_TEXTS: [&str; 30] = [
    "ascii",
    "btrim",
    "contains",
    "ends_with",
    "find_in_set",
    "initcap",
    "left",
    "levenshtein",
    "lower",
    "lpad",
    "ltrim",
    "overlay",
    "regexp_count",
    "regexp_instr",
    "regexp_like",
    "regexp_match",
    "regexp_replace",
    "repeat",
    "replace",
    "reverse",
    "right",
    "rpad",
    "rtrim",
    "split_part",
    "starts_with",
    "string_to_array",
    "strpos",
    "substr_index",
    "translate",
    "upper",
];

/// Replaces a function by its variant for bytes.
///
/// # Errors
/// 42883 for a function that accepts only texts.
pub(super) fn in_place_of(func: Arc<ScalarUDF>, arguments: &[Expr], schema: &DFSchema) -> Result<Arc<ScalarUDF>> {
    let is_bytes = |argument: &Expr| type_of(argument, schema).is_ok_and(|data_type| data_type.is_binary());
    if !arguments.iter().any(is_bytes) {
        return Ok(func);
    }
    match func.name() {
        "character_length" => Ok(Arc::new(function(&BYTES_LENGTH))),
        name if OF_TEXTS.contains(&name) => Err(not_taken(name)),
        _ => Ok(func),
    }
}

/// Refuses `string_agg` of bytes, which DataFusion treats as texts, and DISTINCT of aggregates of pairs, which it
/// ignores.
pub(super) fn check_aggregate(name: &str, arguments: &[Expr], is_distinct: bool, schema: &DFSchema) -> Result<()> {
    let is_of_pairs = matches!(name, "corr" | "covar_pop" | "covar_samp") || name.starts_with("regr_");
    if is_distinct && is_of_pairs {
        return Err(DataFusionError::External(Box::new(SqlError::unsupported(format!("{name}(DISTINCT …)")))));
    }
    let is_bytes = |argument: &Expr| type_of(argument, schema).is_ok_and(|data_type| data_type.is_binary());
    if name == "string_agg" && arguments.iter().any(is_bytes) {
        return Err(DataFusionError::External(Box::new(SqlError::unsupported("string_agg of BYTEA"))));
    }
    Ok(())
}

/// Calculates on arrays with one element per row; if all arguments are scalars, only once.
pub(super) fn on_arrays(
    arguments: &ScalarFunctionArgs,
    of: impl Fn(&[ArrayRef]) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let rows = if is_scalar { 1 } else { arguments.number_rows };
    let arrays = arguments.args.iter().map(|argument| argument.to_array(rows)).collect::<Result<Vec<_>>>()?;
    let result = of(&arrays)?;
    Ok(if is_scalar {
        ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)
    } else {
        ColumnarValue::Array(result)
    })
}

/// The functions that DataFusion lacks, or that take other types here.
static ADDED: [Definition; 9] = [
    Definition {
        name: "age",
        takes: |arguments| match arguments {
            [a, b] if [a, b].into_iter().all(|of| is_moment(of) || is_bare(of)) => Some(vec![TIMESTAMP, TIMESTAMP]),
            _ => None,
        },
        returns: |_| INTERVAL,
        parameter: |count, _| (count == 2).then_some(ColumnType::Timestamp),
        results: |of| ages(&of[0], &of[1]),
    },
    Definition {
        name: "bit_length",
        takes: bytes_or_text,
        returns: |_| DataType::Int32,
        parameter: any,
        results: |of| Ok(Arc::new(lengths(&of[0], 8))),
    },
    Definition {
        name: "div",
        takes: |arguments| match arguments {
            [a, b] => Some(vec![exact(a)?, exact(b)?]),
            _ => None,
        },
        returns: |_| WHOLE,
        parameter: any,
        results: |of| whole_quotients(&of[0], &of[1]),
    },
    Definition {
        name: "get_byte",
        takes: |arguments| match arguments {
            [bytes, place] if (bytes.is_binary() || is_bare(bytes)) && (is_integer(place) || is_bare(place)) => {
                Some(vec![DataType::Binary, DataType::Int64])
            }
            _ => None,
        },
        returns: |_| DataType::Int32,
        parameter: |_, place| match place {
            0 => Some(ColumnType::Bytea),
            1 => Some(ColumnType::Int),
            _ => None,
        },
        results: |of| bytes_at(&of[0], &of[1]),
    },
    Definition {
        name: "isfinite",
        takes: |arguments| match arguments {
            [DataType::Date32] => Some(vec![DataType::Date32]),
            [of] if is_timestamptz(of) => Some(vec![timestamptz()]),
            [of] if is_moment(of) || of.is_null() => Some(vec![TIMESTAMP]),
            [DataType::Interval(_)] => Some(vec![INTERVAL]),
            _ => None,
        },
        returns: |_| DataType::Boolean,
        parameter: any,
        results: |of| Ok(Arc::new(are_finite(&of[0]))),
    },
    Definition {
        name: "octet_length",
        takes: bytes_or_text,
        returns: |_| DataType::Int32,
        parameter: any,
        results: |of| Ok(Arc::new(lengths(&of[0], 1))),
    },
    Definition {
        name: "scale",
        takes: |arguments| match arguments {
            [number] => Some(vec![exact(number)?]),
            _ => None,
        },
        returns: |_| DataType::Int32,
        parameter: any,
        results: |of| Ok(Arc::new(scales(&of[0]))),
    },
    Definition {
        name: "sign",
        takes: |arguments| match arguments {
            [DataType::Decimal128(..)] => Some(arguments.to_vec()),
            [number] if is_number(number) => Some(vec![DataType::Float64]),
            _ => None,
        },
        returns: |arguments| match arguments {
            [DataType::Decimal128(..)] => WHOLE,
            _ => DataType::Float64,
        },
        parameter: |count, _| (count == 1).then_some(ColumnType::Double),
        results: |of| Ok(signs(&of[0])),
    },
    Definition {
        name: "width_bucket",
        takes: |arguments| match arguments {
            [numbers @ .., count]
                if numbers.len() == 3
                    && numbers.iter().all(|of| is_number(of) || is_bare(of))
                    && (is_integer(count) || is_bare(count)) =>
            {
                let mut types = vec![number_of_buckets(numbers); 3];
                types.push(DataType::Int32);
                Some(types)
            }
            // Refused when its result type is determined.
            [_, thresholds] if thresholds.is_list() => Some(arguments.to_vec()),
            _ => None,
        },
        returns: |_| DataType::Int32,
        parameter: |_, place| (place == 3).then_some(ColumnType::Int),
        results: |of| Ok(Arc::new(buckets(of)?)),
    },
];

/// In place of DataFusion's `character_length`, for bytes.
static BYTES_LENGTH: Definition = Definition {
    name: "farhold_bytes_length",
    takes: |arguments| match arguments {
        [bytes] if bytes.is_binary() => Some(vec![DataType::Binary]),
        _ => None,
    },
    returns: |_| DataType::Int32,
    parameter: any,
    results: |of| Ok(Arc::new(lengths(&of[0], 1))),
};

/// The types of parameters without a type, by the number of arguments and the place among them, if the function is ours.
pub(super) fn types_of_parameters(name: &str) -> Option<fn(usize, usize) -> Option<ColumnType>> {
    let found = ADDED.iter().chain(&replaced::REPLACED).find(|definition| definition.name == name);
    found.map(|definition| definition.parameter)
}

fn bytes_or_text(arguments: &[DataType]) -> Option<Vec<DataType>> {
    match arguments {
        [bytes] if bytes.is_binary() => Some(vec![DataType::Binary]),
        [text] if is_bare(text) => Some(vec![DataType::Utf8View]),
        _ => None,
    }
}

/// A decimal without fractional digits.
const WHOLE: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);

/// The decimal type that holds all numbers of an exact type.
fn exact(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Some(DataType::Decimal128(19, 0)),
        DataType::Decimal128(..) => Some(data_type.clone()),
        DataType::Null => Some(WHOLE),
        _ => None,
    }
}

fn scale_of(data_type: &DataType) -> i8 {
    match data_type {
        DataType::Decimal128(_, scale) => *scale,
        _ => 0,
    }
}

fn scales(numbers: &ArrayRef) -> Int32Array {
    let scale = scale_of(numbers.data_type());
    numbers.as_primitive::<Decimal128Type>().iter().map(|number| number.map(|_| scale.into())).collect()
}

/// The byte lengths of bytes or texts, times `times`.
fn lengths(of: &ArrayRef, times: usize) -> Int32Array {
    let length = |bytes: usize| i32::try_from(bytes * times).ok();
    match of.data_type() {
        DataType::Binary => of.as_binary::<i32>().iter().map(|bytes| length(bytes?.len())).collect(),
        _ => of.as_string_view().iter().map(|text| length(text?.len())).collect(),
    }
}

/// The integer part of the quotient of two decimals.
fn whole_quotients(a: &ArrayRef, b: &ArrayRef) -> Result<ArrayRef> {
    let (scale, other_scale) = (scale_of(a.data_type()), scale_of(b.data_type()));
    let power = |scale: i8| i256::from_i128(10).wrapping_pow(u32::from(scale.unsigned_abs()));
    let (times, other_times) = (power(other_scale), power(scale));
    let quotient = |a: i128, b: i128| -> Result<i128> {
        // 38 digits, scaled by up to 38 more.
        let (a, b) = (i256::from_i128(a).wrapping_mul(times), i256::from_i128(b).wrapping_mul(other_times));
        let quotient = a.checked_div(b).ok_or(ArrowError::DivideByZero)?;
        let fits = |quotient: &i128| Decimal128Type::is_valid_decimal_precision(*quotient, ColumnType::PRECISION_MAX);
        let out_of_range = || external(SqlState::NUMERIC_OUT_OF_RANGE, "value overflows numeric format");
        quotient.to_i128().filter(fits).ok_or_else(out_of_range)
    };
    let rows = a.as_primitive::<Decimal128Type>().iter().zip(b.as_primitive::<Decimal128Type>());
    let quotients = rows.map(|(a, b)| a.zip(b).map(|(a, b)| quotient(a, b)).transpose());
    Ok(Arc::new(quotients.collect::<Result<Decimal128Array>>()?.with_data_type(WHOLE)))
}

/// -1, 0 or 1; 0 for NaN.
fn signs(numbers: &ArrayRef) -> ArrayRef {
    if matches!(numbers.data_type(), DataType::Decimal128(..)) {
        let signs = numbers.as_primitive::<Decimal128Type>().iter().map(|number| Some(number?.signum()));
        return Arc::new(signs.collect::<Decimal128Array>().with_data_type(WHOLE));
    }
    let sign = |number: f64| if number == 0.0 || number.is_nan() { 0.0 } else { number.signum() };
    let signs = numbers.as_primitive::<Float64Type>().iter().map(|number| number.map(sign));
    Arc::new(signs.collect::<Float64Array>())
}

fn ages(a: &ArrayRef, b: &ArrayRef) -> Result<ArrayRef> {
    let (a, b) = (a.as_primitive::<TimestampMicrosecondType>(), b.as_primitive::<TimestampMicrosecondType>());
    let ages = a.iter().zip(b).map(|(a, b)| a.zip(b).map(|(a, b)| age(a, b)).transpose());
    Ok(Arc::new(ages.collect::<Result<IntervalMonthDayNanoArray>>()?))
}

/// From `b` to `a` in years, months and days of the calendar. PostgreSQL 15 treats infinity as the timestamp that its
/// number represents, counted from 2000; the number of -infinity lies outside all years.
fn age(a: i64, b: i64) -> Result<IntervalMonthDayNano> {
    if [a, b].contains(&i64::MIN) {
        return Err(external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"));
    }
    let parts = |moment: i64| {
        let since_2000 = if moment == i64::MAX { DAYS_TO_2000.into() } else { 0 };
        let (year, month, day) = civil_from_days(moment.div_euclid(DAY_MICROSECONDS) + since_2000);
        (year, i64::from(month), i64::from(day), moment.rem_euclid(DAY_MICROSECONDS))
    };
    let (a_parts, b_parts) = (parts(a), parts(b));
    let sign = if a < b { -1 } else { 1 };
    let mut months = sign * ((a_parts.0 - b_parts.0) * 12 + a_parts.1 - b_parts.1);
    let mut days = sign * (a_parts.2 - b_parts.2);
    let mut time = sign * (a_parts.3 - b_parts.3);
    if time < 0 {
        (time, days) = (time + DAY_MICROSECONDS, days - 1);
    }
    // Missing days are borrowed from the month of the earlier timestamp.
    let (year, month, ..) = if a < b { a_parts } else { b_parts };
    let first = |month: i64| days_from_civil(year + (month - 1) / 12, ((month - 1) % 12 + 1) as u32, 1);
    let length = first(month + 1).zip(first(month)).map_or(30, |(next, first)| next - first);
    while days < 0 {
        (days, months) = (days + length, months - 1);
    }
    Ok(IntervalMonthDayNano::new((sign * months) as i32, (sign * days) as i32, sign * time * 1000))
}

fn bytes_at(bytes: &ArrayRef, places: &ArrayRef) -> Result<ArrayRef> {
    let rows = bytes.as_binary::<i32>().iter().zip(places.as_primitive::<Int64Type>());
    let found = rows.map(|(bytes, place)| bytes.zip(place).map(|(b, place)| byte(b, place)).transpose());
    Ok(Arc::new(found.collect::<Result<Int32Array>>()?))
}

fn byte(bytes: &[u8], place: i64) -> Result<i32> {
    let found = usize::try_from(place).ok().and_then(|place| bytes.get(place));
    found.map(|byte| i32::from(*byte)).ok_or_else(|| {
        let last = bytes.len() as i64 - 1;
        external(SqlState::ARRAY_SUBSCRIPT_ERROR, format!("index {place} out of valid range, 0..{last}"))
    })
}

fn are_finite(moments: &ArrayRef) -> BooleanArray {
    match moments.data_type() {
        DataType::Date32 => {
            let is_finite = |date| !matches!(date, i32::MIN | i32::MAX);
            moments.as_primitive::<Date32Type>().iter().map(|date| date.map(is_finite)).collect()
        }
        DataType::Timestamp(..) => {
            let is_finite = |moment| !matches!(moment, i64::MIN | i64::MAX);
            moments.as_primitive::<TimestampMicrosecondType>().iter().map(|moment| moment.map(is_finite)).collect()
        }
        // Intervals are never infinite.
        _ => (0..moments.len()).map(|row| moments.is_valid(row).then_some(true)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results are those of PostgreSQL 15.
    #[test]
    fn ages_take_days_from_the_month_of_the_earlier_moment() {
        let moment = |year, month, day| days_from_civil(year, month, day).unwrap() * DAY_MICROSECONDS;
        let days = |(months, days)| IntervalMonthDayNano::new(months, days, 0);
        for (a, b, expected) in [
            (moment(2024, 1, 31), moment(2023, 2, 28), (11, 3)),
            (moment(2024, 3, 1), moment(2024, 1, 31), (1, 1)),
            (moment(2024, 1, 31), moment(2024, 3, 1), (-1, -1)),
            (moment(2024, 1, 31), moment(2024, 1, 31), (0, 0)),
        ] {
            assert_eq!(age(a, b).unwrap(), days(expected));
        }
        let of_infinity = IntervalMonthDayNano::new(292_253 * 12, 8, 14_454_775_807_000);
        assert_eq!(age(i64::MAX, moment(2024, 1, 1)).unwrap(), of_infinity);
        assert!(age(i64::MIN, moment(2024, 1, 1)).is_err());
    }
}
