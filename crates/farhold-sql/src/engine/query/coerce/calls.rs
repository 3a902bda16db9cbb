//! Arguments of functions, and LIKE.

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Case, Like, ScalarFunction};
use datafusion::logical_expr::{Expr, lit};

use super::super::bounded::Bounds;
use super::super::functions::type_of;
use super::super::{
    added, arrays, assigned, at_zone, checked, clocks, dates, functions, intervals, listed, moments, parts, quantified,
    results, scalars,
};
use super::arithmetic::{chain_typed, difference, has_float_beside};
use super::casts::explicit_cast;
use super::common::{
    ANY_DECIMAL, Common, bare_string, become_decimal, become_type, check_lists, common_moment, is_char, is_decimal,
    is_signed, is_untyped, is_untyped_literal, together,
};
use super::external;
use super::set_operations::matched;
use crate::SqlError;
use crate::engine::ColumnType;
use crate::engine::scalar::is_kept_by_null_if;
use crate::engine::types::{INTERVAL, TIMESTAMP, from_arrow, is_timestamptz, timestamptz, to_arrow};
use crate::value::Zone;

pub(super) fn call_typed(mut function: ScalarFunction, schema: &DFSchema) -> Result<Expr> {
    if let Some(value) = listed::argument(&function) {
        return Ok(value.clone());
    }
    if let Some((value, to)) = assigned::taken(&function, schema)? {
        return explicit_cast(value, to, &to_arrow(to), schema);
    }
    if let Some(element) = quantified::type_of_elements(&function, schema)?
        && is_untyped_literal(&function.args[0])
    {
        become_type(&mut function.args[0], &element, schema)?;
    }
    let ScalarFunction { func, mut args } = function;
    if let Some(steps) = functions::steps_of(&func).filter(|_| has_float_beside(&args, schema)) {
        return chain_typed(steps, args, schema);
    }
    if intervals::is_difference(&func)
        && let [left, right] = args.as_slice()
    {
        // While it is planned, a column of a UNION has the type of the first query, which may lack the time zone.
        return difference(left.clone(), right.clone(), schema);
    }
    if func.name() == "nullif"
        && let [first, second] = args.as_slice()
        && type_of(first, schema).is_ok_and(|of| of == TIMESTAMP)
        && type_of(second, schema).is_ok_and(|of| is_timestamptz(&of))
    {
        return null_if_instant(first.clone(), second.clone(), schema);
    }
    if func.name() == moments::SERIES {
        let types = args.iter().map(|argument| type_of(argument, schema)).collect::<Result<Vec<_>>>()?;
        for (argument, of) in args.iter_mut().zip(moments::types_of_arguments(&types).iter().flatten()) {
            become_type(argument, of, schema)?;
        }
    }
    let common = match func.name() {
        "coalesce" | "greatest" | "least" => Some(Common::Result),
        "nullif" => Some(Common::Equality),
        _ => None,
    };
    let kept = if common == Some(Common::Equality) { kept_by_null_if(&args, schema) } else { None };
    if let Some(common) = common {
        together(&mut args.iter_mut().collect::<Vec<_>>(), schema, common)?;
        if common == Common::Result {
            matched(&func.name().to_ascii_uppercase(), args.iter(), schema)?;
        }
        if kept.is_some()
            && let [first, second] = args.as_mut_slice()
        {
            become_type(first, &type_of(second, schema)?, schema)?;
        }
    }
    let is_joined = |of: &Expr| is_char(of, schema) || type_of(of, schema).is_ok_and(|t| is_decimal(&t));
    let types: Vec<DataType> = args.iter().filter_map(|argument| type_of(argument, schema).ok()).collect();
    let is_joined_as_moments = common_moment(&types).is_some();
    if func.name() == "make_array" && (is_joined_as_moments || args.iter().any(is_joined)) {
        together(&mut args.iter_mut().collect::<Vec<_>>(), schema, Common::Result)?;
    }
    rounded(func.name(), &mut args, schema)?;
    if matches!(func.name(), "concat" | "concat_ws") {
        args.iter_mut().try_for_each(|argument| to_text(argument, schema))?;
    }
    if func.name() == "array_to_string"
        && let Some(array) = args.first_mut()
    {
        arrays::printed(array, schema);
    }
    untyped_read(func.name(), &mut args, schema)?;
    let types: Vec<DataType> = args.iter().filter_map(|argument| type_of(argument, schema).ok()).collect();
    check_lists(types.iter())?;
    with_zone(func.name(), &mut args, schema)?;
    let func = added::in_place_of(func, &args, schema)?;
    let func = checked::with_inner::<Bounds>(parts::in_place_of(func), moments::series_in_zone);
    let func = dates::truncation_in_zone(func);
    let func = quantified::in_zone(func);
    let func = results::unwrapped(scalars::in_place_of(func, &args));
    let call = Expr::ScalarFunction(ScalarFunction { func, args });
    match kept {
        Some(to) => explicit_cast(call, to, &to_arrow(to), schema),
        None => Ok(call),
    }
}

/// Functions of DataFusion that PostgreSQL lacks, and that would read a timestamp with time zone in UTC.
const OF_UTC: [&str; 9] = [
    "from_unixtime",
    "to_date",
    "to_local_time",
    "to_time",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    "to_unixtime",
];

/// Arguments of functions that know no time zone.
fn with_zone(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    let is_instant = |argument: &Expr| type_of(argument, schema).is_ok_and(|of| is_timestamptz(&of));
    match name {
        // Written as the local time.
        "to_char" => match arguments.first_mut() {
            Some(moment) if is_instant(moment) => become_type(moment, &TIMESTAMP, schema),
            _ => Ok(()),
        },
        "to_timestamp"
            if clocks::zone() != Zone::UTC
                && arguments.first().is_some_and(|text| type_of(text, schema).is_ok_and(|of| of.is_string())) =>
        {
            let error = SqlError::unsupported("to_timestamp of a text in a session whose time zone is not UTC");
            Err(external(error.with_hint("Cast the text to timestamptz.")))
        }
        name if OF_UTC.contains(&name) && arguments.iter().any(is_instant) => {
            Err(external(SqlError::unsupported(format!("{name} of a timestamp with time zone"))))
        }
        _ => Ok(()),
    }
}

/// LIKE whose pattern is not constant, ends with its escape, or has another escape than DataFusion's becomes a call of
/// our own function.
pub(super) fn like_typed(like: Like, schema: &DFSchema) -> Expr {
    let escape = like.escape_char.unwrap_or('\\');
    let is_plain = match like.pattern.as_ref() {
        Expr::Placeholder(_) => true,
        Expr::Literal(value, _) if value.is_null() => true,
        pattern => bare_string(pattern).is_some_and(|pattern| {
            let escapes = pattern.chars().rev().take_while(|c| *c == '\\').count();
            escape == '\\' && escapes % 2 == 0
        }),
    };
    let is_text = |expression: &Expr| type_of(expression, schema).is_ok_and(|t| t.is_string());
    if is_plain || !is_text(&like.expr) || !is_text(&like.pattern) {
        return Expr::Like(like);
    }
    let matched = functions::like(*like.expr, *like.pattern, like.case_insensitive, escape);
    if like.negated { Expr::Not(Box::new(matched)) } else { matched }
}

/// Functions that PostgreSQL defines for double precision (and decimals), and DataFusion also for single precision.
const OF_DOUBLES: [&str; 26] = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "cos", "cosh", "cot", "degrees", "exp",
    "floor", "ln", "log", "log10", "power", "radians", "round", "sin", "sqrt", "tan", "tanh", "trunc",
];

/// The arguments of mathematical functions. A REAL becomes DOUBLE PRECISION. So does an integer argument of a rounding
/// function; with a number of digits it becomes a decimal.
pub(super) fn rounded(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    if OF_DOUBLES.contains(&name) {
        let is_rounded = matches!(name, "ceil" | "floor" | "round" | "trunc");
        let digits = arguments.len() > 1;
        for argument in arguments.iter_mut().take(if is_rounded { 1 } else { usize::MAX }) {
            match type_of(argument, schema) {
                Ok(DataType::Float32) => become_type(argument, &DataType::Float64, schema)?,
                Ok(integer) if is_rounded && is_signed(&integer) && digits => become_decimal(argument, schema)?,
                Ok(integer) if is_rounded && is_signed(&integer) => become_type(argument, &DataType::Float64, schema)?,
                _ => {}
            }
        }
    }
    match (name, arguments) {
        // A number that is rounded up may gain a digit.
        ("ceil" | "floor", [argument]) => match type_of(argument, schema) {
            Ok(DataType::Decimal128(_, scale)) => {
                become_type(argument, &DataType::Decimal128(ColumnType::PRECISION_MAX, scale), schema)
            }
            _ => Ok(()),
        },
        // If the literal had another type than DataFusion's own, its later cast would change the type of the result.
        ("round", [_, places]) => {
            if let Expr::Literal(ScalarValue::Int64(Some(count)), _) = places
                && let Ok(count) = i32::try_from(*count)
            {
                *places = lit(count);
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Casts a date or a timestamp to the type of timestamps that a function takes, by our own cast: DataFusion's has no infinity,
/// and is in UTC.
fn moment_as(moment: &mut Expr, to: &DataType, schema: &DFSchema) -> Result<()> {
    let is_moment = |of: DataType| of == DataType::Date32 || of == TIMESTAMP || is_timestamptz(&of);
    if type_of(moment, schema).is_ok_and(is_moment) { become_type(moment, to, schema) } else { Ok(()) }
}

/// The types of arguments that have one.
fn known_types<'a>(arguments: impl Iterator<Item = &'a Expr>, schema: &DFSchema) -> Vec<DataType> {
    arguments.filter(|of| !is_untyped(of)).filter_map(|of| type_of(of, schema).ok()).collect()
}

/// Converts untyped string literals among the arguments of functions that take another type there. Texts are refused.
pub(super) fn untyped_read(name: &str, arguments: &mut [Expr], schema: &DFSchema) -> Result<()> {
    let read = |argument: &mut Expr, data_type: &DataType| {
        if is_untyped_literal(argument) {
            return become_type(argument, data_type, schema);
        }
        let is_text = type_of(argument, schema).is_ok_and(|data_type| data_type.is_string());
        if is_text { Err(added::not_taken(name)) } else { Ok(()) }
    };
    match (name, arguments) {
        ("encode", [bytes, _]) => read(bytes, &DataType::Binary),
        ("get_byte", [bytes, place]) => {
            read(bytes, &DataType::Binary)?;
            read(place, &DataType::Int32)
        }
        ("age", [a, b]) => {
            for moment in [a, b] {
                read(moment, &TIMESTAMP)?;
                // Between local times, whose fields PostgreSQL subtracts.
                moment_as(moment, &TIMESTAMP, schema)?;
            }
            Ok(())
        }
        (at_zone::NAME, [_, moment]) => {
            read(moment, &timestamptz())?;
            let is_date = type_of(moment, schema).is_ok_and(|of| of == DataType::Date32);
            if is_date { become_type(moment, &timestamptz(), schema) } else { Ok(()) }
        }
        ("array_remove" | "array_replace", [array, elements @ ..]) => {
            let array = type_of(array, schema);
            let element = array.as_ref().ok().and_then(quantified::leaf);
            match element.filter(|of| !of.is_string() && !of.is_null()) {
                Some(DataType::Decimal128(..)) => elements.iter_mut().try_for_each(|of| read(of, &ANY_DECIMAL)),
                Some(element) => elements.iter_mut().try_for_each(|of| read(of, element)),
                None => Ok(()),
            }
        }
        ("date_bin", [step, moments @ ..]) => {
            read(step, &INTERVAL)?;
            let common = added::common_of_moments(&known_types(moments.iter(), schema));
            moments.iter_mut().try_for_each(|moment| {
                read(moment, &common)?;
                moment_as(moment, &common, schema)
            })
        }
        ("date_trunc", [_, moment]) => {
            let common = added::common_of_moments(&known_types(std::iter::once(&*moment), schema));
            moment_as(moment, &common, schema)
        }
        ("date_trunc", [_, moment, _]) => {
            read(moment, &timestamptz())?;
            moment_as(moment, &timestamptz(), schema)
        }
        ("width_bucket", [_, thresholds]) if type_of(thresholds, schema).is_ok_and(|of| of.is_list()) => {
            Err(external(SqlError::unsupported("width_bucket of an array")))
        }
        ("width_bucket", [of, low, high, count]) => {
            let mut numbers = [of, low, high];
            let known = numbers.iter().filter(|of| !is_untyped(of)).filter_map(|of| type_of(of, schema).ok());
            // A string literal has its own precision and scale.
            let number = match added::number_of_buckets(&known.collect::<Vec<_>>()) {
                DataType::Decimal128(..) => ANY_DECIMAL,
                float => float,
            };
            numbers.iter_mut().try_for_each(|argument| read(argument, &number))?;
            read(count, &DataType::Int32)
        }
        ("substr" | "substring", [of, places @ ..]) => {
            let is = |argument: &Expr, is_one: fn(&DataType) -> bool| {
                type_of(argument, schema).is_ok_and(|data_type| is_one(&data_type))
            };
            let is_by_place = name == "substr"
                || is(of, DataType::is_binary)
                || places.iter().any(|place| is(place, DataType::is_integer));
            let mut places = places.iter_mut().filter(|_| is_by_place);
            places.try_for_each(|place| read(place, &DataType::Int32))
        }
        _ => Ok(()),
    }
}

/// A value's text in the format that clients receive; for a boolean this differs from a cast.
pub(super) fn to_text(argument: &mut Expr, schema: &DFSchema) -> Result<()> {
    // A parameter may not have a type yet.
    let Ok(data_type) = type_of(argument, schema) else { return Ok(()) };
    let from = from_arrow(&data_type);
    if from.is_some_and(ColumnType::is_text) {
        return Ok(());
    }
    let inner = std::mem::replace(argument, lit(ScalarValue::Null));
    *argument = match from {
        Some(ColumnType::Boolean) => {
            let word = |value: bool, word: &str| (Box::new(lit(value)), Box::new(lit(word)));
            let when_then_expr = vec![word(true, "t"), word(false, "f")];
            Expr::Case(Case { expr: Some(Box::new(inner)), when_then_expr, else_expr: None })
        }
        _ => explicit_cast(inner, ColumnType::Text, &DataType::Utf8View, schema)?,
    };
    Ok(())
}

/// NULLIF of a timestamp and one with time zone. Cast for the comparison and back, a local time that the clocks skip would be
/// another.
fn null_if_instant(first: Expr, second: Expr, schema: &DFSchema) -> Result<Expr> {
    let (mut left, mut right) = (first.clone(), second);
    together(&mut [&mut left, &mut right], schema, Common::Comparison)?;
    let null = lit(ScalarValue::TimestampMicrosecond(None, None));
    let when_then_expr = vec![(Box::new(left.eq(right)), Box::new(null))];
    Ok(Expr::Case(Case { expr: None, when_then_expr, else_expr: Some(Box::new(first)) }))
}

/// The type of NULLIF's first argument if it is cast only for the comparison, so that the result must be cast back.
/// PostgreSQL has `=` operators for integers of different sizes, for REAL with other numbers, and for DATE with
/// TIMESTAMP.
pub(super) fn kept_by_null_if(arguments: &[Expr], schema: &DFSchema) -> Option<ColumnType> {
    let [first, second] = arguments else { return None };
    let type_of = |of: &Expr| type_of(of, schema).ok().as_ref().and_then(from_arrow);
    let (first, second) = (type_of(first)?, type_of(second)?);
    is_kept_by_null_if(first, second).then_some(first)
}
