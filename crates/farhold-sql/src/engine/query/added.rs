//! Functions of PostgreSQL's that DataFusion does not have, and arguments that its own functions do not take.
//!
//! | function | here |
//! |---|---|
//! | `age` (of one moment it is that of today: [`rewrite`](super::rewrite)), `get_byte`, `isfinite`, `width_bucket` | ours |
//! | `length`, `octet_length` and `bit_length` of bytes | ours; other functions of texts take none |
//! | `ceiling` | another name of `ceil` |
//! | `sign` of numbers, `div` and `scale` of decimals | ours |
//! | `string_agg` of bytes | refused: DataFusion takes them for texts |
//! | `every` | another name of `bool_and` |
//! | `substring` of bytes, and of a text by a pattern | ours, around DataFusion's |
//! | `array_length` | DataFusion's, an integer; an array without elements has none |
//! | `coalesce` of bytes, booleans, moments or intervals and of strings that are read as such | DataFusion's, with their types |

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int32Array,
    IntervalMonthDayNanoArray, StringViewArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, DecimalType, Field, FieldRef, Float64Type, Int32Type, Int64Type,
    IntervalMonthDayNano, TimestampMicrosecondType, i256,
};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::bool_and_or::bool_and_udaf;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    AggregateUDF, ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::prelude::SessionContext;
use regex::Regex;

use super::functions::{null_of, type_of};
use crate::engine::ColumnType;
use crate::engine::types::{DAY_MICROSECONDS, INTERVAL, TIMESTAMP, civil_from_days, days_from_civil};
use crate::{SqlError, SqlState};

/// From 1970-01-01 to 2000-01-01, where PostgreSQL's timestamps begin.
const DAYS_TO_2000: i64 = 10_957;

/// Makes them known.
pub(super) fn register(context: &SessionContext) {
    for kind in [
        Kind::Age,
        Kind::BitLength,
        Kind::Div,
        Kind::GetByte,
        Kind::IsFinite,
        Kind::OctetLength,
        Kind::Scale,
        Kind::Sign,
        Kind::WidthBucket,
    ] {
        context
            .register_udf(ScalarUDF::from(Added { kind, signature: Signature::user_defined(Volatility::Immutable) }));
    }
    context.register_udaf(AggregateUDF::clone(&bool_and_udaf()).with_aliases(["every"]));
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

/// The arguments of a function have types that it does not take.
pub(super) fn not_taken(name: &str) -> DataFusionError {
    let error = SqlError::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} does not take these arguments"));
    DataFusionError::External(Box::new(error.with_hint("You might need to add explicit type casts.")))
}

/// Functions of texts, which DataFusion would give bytes as if they were some.
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

/// A function of the same name for bytes.
///
/// # Errors
/// 42883 for one that takes texts alone.
pub(super) fn in_place_of(func: Arc<ScalarUDF>, arguments: &[Expr], schema: &DFSchema) -> Result<Arc<ScalarUDF>> {
    let is_bytes = |argument: &Expr| type_of(argument, schema).is_ok_and(|data_type| data_type.is_binary());
    if !arguments.iter().any(is_bytes) {
        return Ok(func);
    }
    match func.name() {
        "character_length" => {
            let signature = Signature::user_defined(Volatility::Immutable);
            Ok(Arc::new(ScalarUDF::from(Added { kind: Kind::BytesLength, signature })))
        }
        name if OF_TEXTS.contains(&name) => Err(not_taken(name)),
        _ => Ok(func),
    }
}

/// Refuses `string_agg` of bytes, which DataFusion takes for texts, and DISTINCT of pairs, which it overlooks.
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

/// Calculates on arrays of as many rows as there are; on scalars once.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Age,
    BitLength,
    BytesLength,
    Div,
    GetByte,
    IsFinite,
    OctetLength,
    Scale,
    Sign,
    WidthBucket,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Added {
    kind: Kind,
    signature: Signature,
}

impl ScalarUDFImpl for Added {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Age => "age",
            Kind::BitLength => "bit_length",
            Kind::BytesLength => "farhold_bytes_length",
            Kind::Div => "div",
            Kind::GetByte => "get_byte",
            Kind::IsFinite => "isfinite",
            Kind::OctetLength => "octet_length",
            Kind::Scale => "scale",
            Kind::Sign => "sign",
            Kind::WidthBucket => "width_bucket",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        // A bare string is read as another type, and a text refused, before the function is called.
        let is_bare = |argument: &DataType| argument.is_string() || argument.is_null();
        let is_moment = |argument: &DataType| matches!(argument, DataType::Date32 | DataType::Timestamp(..));
        let is_integer = |argument: &DataType| argument.is_integer() || argument.is_null();
        let is_number = |argument: &DataType| argument.is_numeric() || argument.is_null();
        match (self.kind, arguments) {
            (Kind::Age, [a, b]) if [a, b].into_iter().all(|of| is_moment(of) || is_bare(of)) => {
                Ok(vec![TIMESTAMP, TIMESTAMP])
            }
            (Kind::GetByte, [bytes, place])
                if (bytes.is_binary() || is_bare(bytes)) && (is_integer(place) || is_bare(place)) =>
            {
                Ok(vec![DataType::Binary, DataType::Int64])
            }
            (Kind::BytesLength | Kind::BitLength | Kind::OctetLength, [bytes]) if bytes.is_binary() => {
                Ok(vec![DataType::Binary])
            }
            (Kind::BitLength | Kind::OctetLength, [text]) if is_bare(text) => Ok(vec![DataType::Utf8View]),
            (Kind::Div, [a, b]) => match (exact(a), exact(b)) {
                (Some(a), Some(b)) => Ok(vec![a, b]),
                _ => Err(not_taken(self.name())),
            },
            (Kind::Scale, [number]) if exact(number).is_some() => Ok(exact(number).into_iter().collect()),
            (Kind::Sign, [DataType::Decimal128(..)]) => Ok(arguments.to_vec()),
            (Kind::Sign, [number]) if is_number(number) => Ok(vec![DataType::Float64]),
            (Kind::IsFinite, [of]) if is_moment(of) || of.is_null() => {
                Ok(vec![if *of == DataType::Date32 { DataType::Date32 } else { TIMESTAMP }])
            }
            (Kind::IsFinite, [DataType::Interval(_)]) => Ok(vec![INTERVAL]),
            (Kind::WidthBucket, [numbers @ .., count])
                if numbers.len() == 3
                    && numbers.iter().all(|of| is_number(of) || is_bare(of))
                    && (is_integer(count) || is_bare(count)) =>
            {
                let mut types = vec![number_of_buckets(numbers); 3];
                types.push(DataType::Int32);
                Ok(types)
            }
            // Refused when it is typed.
            (Kind::WidthBucket, [_, thresholds]) if thresholds.is_list() => Ok(arguments.to_vec()),
            _ => Err(not_taken(self.name())),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::Age => INTERVAL,
            Kind::BitLength
            | Kind::BytesLength
            | Kind::GetByte
            | Kind::OctetLength
            | Kind::Scale
            | Kind::WidthBucket => DataType::Int32,
            Kind::Div => WHOLE,
            Kind::IsFinite => DataType::Boolean,
            Kind::Sign if matches!(arguments, [DataType::Decimal128(..)]) => WHOLE,
            Kind::Sign => DataType::Float64,
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, |of| match (self.kind, of) {
            (Kind::Age, [a, b]) => {
                let (a, b) =
                    (a.as_primitive::<TimestampMicrosecondType>(), b.as_primitive::<TimestampMicrosecondType>());
                let ages = a.iter().zip(b).map(|(a, b)| a.zip(b).map(|(a, b)| age(a, b)).transpose());
                Ok(Arc::new(ages.collect::<Result<IntervalMonthDayNanoArray>>()?))
            }
            (Kind::GetByte, [bytes, places]) => {
                let rows = bytes.as_binary::<i32>().iter().zip(places.as_primitive::<Int64Type>());
                let found = rows.map(|(bytes, place)| bytes.zip(place).map(|(b, place)| byte(b, place)).transpose());
                Ok(Arc::new(found.collect::<Result<Int32Array>>()?))
            }
            (Kind::BytesLength | Kind::OctetLength, [of]) => Ok(Arc::new(lengths(of, 1))),
            (Kind::BitLength, [of]) => Ok(Arc::new(lengths(of, 8))),
            (Kind::Div, [a, b]) => whole_quotients(a, b),
            (Kind::Scale, [numbers]) => {
                let scale = scale_of(numbers.data_type());
                let scales = numbers.as_primitive::<Decimal128Type>().iter().map(|number| number.map(|_| scale.into()));
                Ok(Arc::new(scales.collect::<Int32Array>()))
            }
            (Kind::Sign, [numbers]) => Ok(signs(numbers)),
            (Kind::IsFinite, [moments]) => Ok(Arc::new(are_finite(moments))),
            (Kind::WidthBucket, of) => Ok(Arc::new(buckets(of)?)),
            _ => Err(not_taken(self.name())),
        })
    }
}

/// A decimal without places behind the point.
const WHOLE: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);

/// The decimal that holds all numbers of an exact type.
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

/// The bytes of bytes or texts, each `times`.
fn lengths(of: &ArrayRef, times: usize) -> Int32Array {
    let length = |bytes: usize| i32::try_from(bytes * times).ok();
    match of.data_type() {
        DataType::Binary => of.as_binary::<i32>().iter().map(|bytes| length(bytes?.len())).collect(),
        _ => of.as_string_view().iter().map(|text| length(text?.len())).collect(),
    }
}

/// How often a decimal is in another, without a rest.
fn whole_quotients(a: &ArrayRef, b: &ArrayRef) -> Result<ArrayRef> {
    let (scale, other_scale) = (scale_of(a.data_type()), scale_of(b.data_type()));
    let power = |scale: i8| i256::from_i128(10).wrapping_pow(u32::from(scale.unsigned_abs()));
    let (times, other_times) = (power(other_scale), power(scale));
    let quotient = |a: i128, b: i128| -> Result<i128> {
        // 38 digits and as many more.
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

/// -1, 0 or 1; 0 of what is no number.
fn signs(numbers: &ArrayRef) -> ArrayRef {
    if matches!(numbers.data_type(), DataType::Decimal128(..)) {
        let signs = numbers.as_primitive::<Decimal128Type>().iter().map(|number| Some(number?.signum()));
        return Arc::new(signs.collect::<Decimal128Array>().with_data_type(WHOLE));
    }
    let sign = |number: f64| if number == 0.0 || number.is_nan() { 0.0 } else { number.signum() };
    let signs = numbers.as_primitive::<Float64Type>().iter().map(|number| number.map(sign));
    Arc::new(signs.collect::<Float64Array>())
}

/// The number in which `width_bucket` counts: a decimal of as many digits as an argument has behind the point, where one is a decimal and none is a
/// float; otherwise, of integers as well, a float.
pub(super) fn number_of_buckets(arguments: &[DataType]) -> DataType {
    let scale = |argument: &DataType| match argument {
        DataType::Decimal128(_, scale) => Some(*scale),
        _ => None,
    };
    match arguments.iter().filter_map(scale).max() {
        Some(scale) if !arguments.iter().any(DataType::is_floating) => {
            DataType::Decimal128(ColumnType::PRECISION_MAX, scale)
        }
        _ => DataType::Float64,
    }
}

/// From `b` to `a` in years, months and days of the calendar. PostgreSQL 15 takes infinity for the moment that its number is, counted from 2000; that of
/// -infinity is in no year.
fn age(a: i64, b: i64) -> Result<IntervalMonthDayNano> {
    if [a, b].contains(&i64::MIN) {
        return Err(external(SqlState::DATETIME_OVERFLOW, "timestamp out of range"));
    }
    let parts = |moment: i64| {
        let since_2000 = if moment == i64::MAX { DAYS_TO_2000 } else { 0 };
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
    // What is missing is taken from the month of the earlier one.
    let (year, month, ..) = if a < b { a_parts } else { b_parts };
    let first = |month: i64| days_from_civil(year + (month - 1) / 12, ((month - 1) % 12 + 1) as u32, 1);
    let length = first(month + 1).zip(first(month)).map_or(30, |(next, first)| next - first);
    while days < 0 {
        (days, months) = (days + length, months - 1);
    }
    Ok(IntervalMonthDayNano::new((sign * months) as i32, (sign * days) as i32, sign * time * 1000))
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
        // There is no infinite interval.
        _ => (0..moments.len()).map(|row| moments.is_valid(row).then_some(true)).collect(),
    }
}

/// The parts of equal width between two bounds that values are in, from 1; 0 is before the first bound, one more than there are behind the second.
fn buckets(arguments: &[ArrayRef]) -> Result<Int32Array> {
    let [of, low, high, counts] = arguments else { return Err(not_taken("width_bucket")) };
    let counts = counts.as_primitive::<Int32Type>();
    let bucket = |row: usize| -> Result<Option<i32>> {
        if arguments.iter().any(|argument| argument.is_null(row)) {
            return Ok(None);
        }
        let count = counts.value(row);
        if count <= 0 {
            return Err(wrong_bucket("count must be greater than zero"));
        }
        let bucket = if of.data_type().is_floating() {
            let value = |of: &ArrayRef| of.as_primitive::<Float64Type>().value(row);
            bucket_of_floats(value(of), value(low), value(high), count)?
        } else {
            let value = |of: &ArrayRef| of.as_primitive::<Decimal128Type>().value(row);
            bucket_of_decimals(value(of), value(low), value(high), count)?
        };
        let bucket = i32::try_from(bucket);
        bucket.map(Some).map_err(|_| external(SqlState::NUMERIC_OUT_OF_RANGE, "integer out of range"))
    };
    (0..of.len()).map(bucket).collect()
}

fn wrong_bucket(message: &str) -> DataFusionError {
    external(SqlState::INVALID_WIDTH_BUCKET_ARGUMENT, message)
}

fn bucket_of_floats(of: f64, low: f64, high: f64, count: i32) -> Result<i64> {
    if of.is_nan() || low.is_nan() || high.is_nan() {
        return Err(wrong_bucket("operand, lower bound, and upper bound cannot be NaN"));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(wrong_bucket("lower and upper bounds must be finite"));
    }
    let (is_before, is_behind) = match low.partial_cmp(&high) {
        Some(Ordering::Less) => (of < low, of >= high),
        Some(Ordering::Greater) => (of > low, of <= high),
        _ => return Err(wrong_bucket("lower bound cannot equal upper bound")),
    };
    Ok(match (is_before, is_behind) {
        (true, _) => 0,
        (_, true) => i64::from(count) + 1,
        _ => {
            let (count, all) = (f64::from(count), high - low);
            let parts = count * (of - low);
            if all.is_finite() && parts.is_finite() {
                // In the order in which PostgreSQL rounds: by another one, 29 is the last of the 29th of 100 parts up to 100.
                return Ok((parts / all + 1.0) as i64);
            }
            // By halves, of which no difference is infinite.
            let part = (of / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
            // A part may be rounded up to all.
            (count * part).min(count - 1.0) as i64 + 1
        }
    })
}

fn bucket_of_decimals(of: i128, low: i128, high: i128, count: i32) -> Result<i64> {
    if low == high {
        return Err(wrong_bucket("lower bound cannot equal upper bound"));
    }
    let (is_before, is_behind) = if low < high { (of < low, of >= high) } else { (of > low, of <= high) };
    if is_before {
        return Ok(0);
    }
    if is_behind {
        return Ok(i64::from(count) + 1);
    }
    // Of 38 digits, times ten: 256 bits hold them.
    let between = |a: i128, b: i128| i256::from_i128(b).wrapping_sub(i256::from_i128(a));
    let parts = between(low, of).wrapping_mul(i256::from_i128(count.into()));
    let before = parts.checked_div(between(low, high)).and_then(i256::to_i128).and_then(|n| i64::try_from(n).ok());
    before.map(|before| before + 1).ok_or_else(|| external(SqlState::NUMERIC_OUT_OF_RANGE, "numeric out of range"))
}

/// DataFusion's, which knows no type that strings and bytes have in common.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Coalesce {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

impl ScalarUDFImpl for Coalesce {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        if let Some(known) = arguments.iter().find(|argument| is_read_of_bare_strings(argument))
            && arguments.iter().all(|argument| argument == known || argument.is_string() || argument.is_null())
        {
            return Ok(vec![known.clone(); arguments.len()]);
        }
        self.inner.coerce_types(arguments)
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(arguments)
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(arguments, context)
    }

    fn conditional_arguments<'a>(&self, arguments: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(arguments)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(arguments)
    }
}

/// Types that a bare string beside them is read as, and that DataFusion has no common type of with texts.
pub(super) fn is_read_of_bare_strings(data_type: &DataType) -> bool {
    use DataType as T;
    data_type.is_binary() || matches!(data_type, T::Boolean | T::Date32 | T::Timestamp(..) | T::Interval(_))
}

/// DataFusion's, which counts 0 elements.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ArrayLength {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ArrayLength {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int32)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let return_field = Arc::new(Field::clone(&arguments.return_field).with_data_type(DataType::UInt64));
        let lengths = self.inner.invoke_with_args(ScalarFunctionArgs { return_field, ..arguments })?;
        let lengths = lengths.cast_to(&DataType::Int32, None)?;
        let length = |length: Option<i32>| length.filter(|length| *length > 0);
        Ok(match lengths {
            ColumnarValue::Scalar(ScalarValue::Int32(of)) => ColumnarValue::Scalar(ScalarValue::Int32(length(of))),
            ColumnarValue::Scalar(other) => ColumnarValue::Scalar(other),
            ColumnarValue::Array(of) => {
                let lengths = of.as_primitive::<Int32Type>().iter().map(length);
                ColumnarValue::Array(Arc::new(lengths.collect::<Int32Array>()))
            }
        })
    }
}

/// DataFusion's, which takes a text and numbers: `substr`, and `substring`, which takes a pattern, too.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Substring {
    inner: Arc<ScalarUDF>,
    takes_patterns: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Substring {
    fn name(&self) -> &'static str {
        if self.takes_patterns { "substring" } else { "substr" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |argument: &DataType| argument.is_string() || argument.is_null();
        // A bare string is read as a number, and a text refused, before the function is called.
        let is_place = |argument: &DataType| is_text(argument) || argument.is_integer();
        match arguments {
            [text, patterns @ ..]
                if self.takes_patterns
                    && is_text(text)
                    && (1..=2).contains(&patterns.len())
                    && patterns.iter().all(DataType::is_string) =>
            {
                Ok(vec![DataType::Utf8View; arguments.len()])
            }
            [of, places @ ..] if !places.is_empty() && places.len() <= 2 && places.iter().all(is_place) => {
                let of = match of {
                    bytes if bytes.is_binary() => DataType::Binary,
                    text if text.is_string() => text.clone(),
                    DataType::Null => DataType::Utf8View,
                    _ => return Err(not_taken(self.name())),
                };
                Ok(std::iter::once(of).chain(places.iter().map(|_| DataType::Int64)).collect())
            }
            _ => Err(not_taken(self.name())),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if arguments.len() == 3 && arguments[1].is_string() {
            let error = SqlError::unsupported("substring with a pattern and an escape");
            return Err(DataFusionError::External(Box::new(error)));
        }
        Ok(arguments[0].clone())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        if arguments.args[0].data_type().is_binary() {
            return on_arrays(&arguments, parts_of_bytes);
        }
        if arguments.args[1].data_type().is_string() {
            return on_arrays(&arguments, parts_by_pattern);
        }
        self.inner.invoke_with_args(arguments)
    }
}

/// The most patterns of a batch that are kept compiled. One takes up to 10 MB.
const PATTERNS_MAX: usize = 16;

/// What a pattern's first parentheses find in a text, or, if it has none, the whole pattern. Parentheses that take no part find nothing.
fn parts_by_pattern(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let (texts, patterns) = (arguments[0].as_string_view(), arguments[1].as_string_view());
    let mut compiled: HashMap<&str, Regex> = HashMap::new();
    let mut part = |row: usize| -> Result<Option<&str>> {
        if texts.is_null(row) || patterns.is_null(row) {
            return Ok(None);
        }
        let (text, pattern) = (texts.value(row), patterns.value(row));
        if !compiled.contains_key(pattern) {
            if compiled.len() == PATTERNS_MAX {
                compiled.clear();
            }
            compiled.insert(pattern, Regex::new(pattern).map_err(|error| wrong_pattern(&error))?);
        }
        let regex = &compiled[pattern];
        let found = match regex.captures_len() {
            1 => regex.find(text),
            _ => regex.captures(text).and_then(|groups| groups.get(1)),
        };
        Ok(found.map(|found| found.as_str()))
    };
    Ok(Arc::new((0..texts.len()).map(&mut part).collect::<Result<StringViewArray>>()?))
}

fn wrong_pattern(error: &regex::Error) -> DataFusionError {
    let wrong = SqlError::new(SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression");
    DataFusionError::External(Box::new(wrong.with_detail(error.to_string())))
}

/// Bytes from a place on, which begins at 1, or so many of them.
fn parts_of_bytes(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let bytes = arguments[0].as_binary::<i32>();
    let number = |n: usize, row: usize| arguments[n].as_primitive::<Int64Type>().value(row);
    let part = |row: usize| -> Result<Option<&[u8]>> {
        if arguments.iter().any(|argument| argument.is_null(row)) {
            return Ok(None);
        }
        let (bytes, from) = (bytes.value(row), number(1, row));
        let end = match arguments.len() {
            2 => i64::MAX,
            _ if number(2, row) < 0 => {
                return Err(external(SqlState::SUBSTRING_ERROR, "negative substring length not allowed"));
            }
            _ => from.saturating_add(number(2, row)),
        };
        let place = |place: i64| usize::try_from(place.saturating_sub(1)).unwrap_or(0).min(bytes.len());
        Ok(Some(&bytes[place(from)..place(end).max(place(from))]))
    };
    Ok(Arc::new((0..bytes.len()).map(part).collect::<Result<BinaryArray>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What PostgreSQL 15 answers.
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
