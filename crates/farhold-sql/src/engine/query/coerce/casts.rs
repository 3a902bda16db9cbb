//! Casts.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::functions::core::expr_fn::nullif;
use datafusion::logical_expr::{Cast, Expr, lit};

use super::super::functions::{cast_value, type_of};
use super::super::{arrays, clocks, functions, intervals};
use super::common::{bare_string, become_decimal, is_decimal, is_signed, limited_text, literal, literal_of};
use super::external;
use super::planning::ANY_NUMERIC;
use crate::engine::ColumnType;
use crate::engine::types::{
    INTERVAL, TIMESTAMP, TYPE_KEY, castable, from_arrow, from_field, is_timestamptz, no_cast, timestamptz, to_arrow,
    to_scalar,
};
use crate::value::parse_datum;

pub(super) fn cast_typed(cast: Cast, schema: &DFSchema) -> Result<Expr> {
    let name = cast.field.metadata().get(TYPE_KEY);
    let digits = name.and_then(|name| name.strip_prefix("timestamp(")?.strip_suffix(')')?.parse().ok());
    let cast = any_cast_typed(cast, schema)?;
    Ok(match digits {
        Some(digits) => functions::with_digits(cast, digits),
        None => cast,
    })
}

fn any_cast_typed(cast: Cast, schema: &DFSchema) -> Result<Expr> {
    let Cast { expr: inner, field } = cast;
    let from = type_of(&inner, schema)?;
    let any_digits = field.metadata().get(TYPE_KEY).is_some_and(|name| name == ANY_NUMERIC);
    let plain = |inner: Box<Expr>, field: &Field| Ok(Expr::Cast(Cast::new(inner, field.data_type().clone())));
    if from.is_null() {
        return plain(inner, &field);
    }
    if let Some(cast) = arrays::cast_typed(&inner, &from, &field)? {
        return Ok(cast);
    }
    if *field.data_type() == INTERVAL && from.is_string() {
        return match bare_string(&inner) {
            Some(text) => intervals::literal(&text),
            None => Ok(intervals::read(*inner)),
        };
    }
    if any_digits {
        if is_decimal(&from) {
            return Ok(*inner);
        }
        if is_signed(&from) {
            let mut decimal = *inner;
            become_decimal(&mut decimal, schema)?;
            return Ok(decimal);
        }
        if let Some(text) = bare_string(&inner) {
            let to = ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale: 0 };
            return literal_of(&parse_datum(&text, to, clocks::zone()).map_err(external)?, to);
        }
    }
    if matches!(field.data_type(), DataType::Time32(_) | DataType::Time64(_))
        && (is_timestamptz(&from) || from == TIMESTAMP)
    {
        let local = explicit_cast(*inner, ColumnType::Timestamp, &TIMESTAMP, schema)?;
        return plain(Box::new(finite(local)), &field);
    }
    let to = if any_digits { from_arrow(field.data_type()) } else { from_field(&field) };
    match to.filter(|to| to_arrow(*to) == *field.data_type() || to.is_text()) {
        Some(to) => explicit_cast(*inner, to, field.data_type(), schema),
        None => plain(inner, &field),
    }
}

/// `CAST(inner AS to)`, by our own function where Arrow's cast gives another result.
pub(super) fn explicit_cast(inner: Expr, to: ColumnType, arrow_type: &DataType, schema: &DFSchema) -> Result<Expr> {
    use ColumnType as T;
    let plain = |inner: Expr| Ok(Expr::Cast(Cast::new(Box::new(inner), arrow_type.clone())));
    let mut data_type = type_of(&inner, schema)?;
    let mut inner = inner;
    if is_timestamptz(&data_type) && data_type != timestamptz() {
        // Of one of DataFusion's functions, in another unit.
        inner = Expr::Cast(Cast::new(Box::new(inner), timestamptz()));
        data_type = timestamptz();
    }
    let known = from_arrow(&data_type);
    if known.is_none() && to.is_text() {
        // Arrow formats lists, intervals and times differently from PostgreSQL.
        functions::check_chain(&inner)?;
        return Ok(functions::cast(inner, to));
    }
    if to.is_text() && matches!(data_type, DataType::Timestamp(..)) && data_type != TIMESTAMP {
        // Arrow writes a T before the time.
        functions::check_chain(&inner)?;
        return Ok(functions::cast(inner, to));
    }
    let Some(from) = known.filter(|from| from.is_text() || to_arrow(*from) == data_type) else {
        return plain(inner);
    };
    if !castable(from, to) {
        return Err(external(no_cast(from, to)));
    }
    #[expect(clippy::match_same_arms, reason = "they are asked in this order")]
    let arrow_is_right = match (from, to) {
        (from, T::Char(_) | T::Varchar(_)) if from.is_text() => false,
        // After this cast a CHAR(n) or VARCHAR(n) is compared as TEXT.
        (from, T::Text) if from.is_text() => limited_text(&inner, schema).is_none(),
        (from, to) if from.is_text() => to.is_text(),
        (T::Boolean | T::SmallInt | T::Int | T::BigInt, T::Text) => true,
        (_, to) if to.is_text() => false,
        (T::Real | T::Double | T::Decimal { .. }, T::SmallInt | T::Int | T::BigInt | T::Boolean) => false,
        (T::Real | T::Double, T::Decimal { .. }) | (T::Decimal { .. } | T::Double, T::Real) => false,
        (T::Decimal { .. }, T::Double) | (T::Date, T::Timestamp) | (T::Timestamp, T::Date) => false,
        (T::Timestamptz, to) => to == T::Timestamptz,
        (_, T::Timestamptz) => false,
        // DataFusion (55) replaces a comparison of a cast with a constant by a comparison of its argument, as if the
        // cast neither lost decimals nor failed.
        (T::Decimal { precision, scale }, T::Decimal { precision: most, scale: wanted }) => {
            wanted >= scale && most - wanted >= precision - scale
        }
        (from @ (T::SmallInt | T::Int | T::BigInt), T::Decimal { precision, scale }) => {
            precision - scale >= integer_digits(from)
        }
        (T::BigInt, T::Int | T::SmallInt) | (T::Int, T::SmallInt) => false,
        _ => true,
    };
    if arrow_is_right {
        return plain(inner);
    }
    match &inner {
        Expr::Literal(value, _) if !matches!(to, T::Char(_)) => match literal(value) {
            Some(datum) => match cast_value(datum, to, clocks::zone()) {
                Ok(datum) => Ok(lit(to_scalar(&datum, to, clocks::zone()).map_err(external)?)),
                // The cast may never be evaluated.
                Err(_) if !from.is_text() => Ok(functions::cast(inner, to)),
                Err(error) => Err(error),
            },
            None => plain(inner),
        },
        _ => {
            functions::check_chain(&inner)?;
            Ok(functions::cast(inner, to))
        }
    }
}

/// A timestamp, or NULL if it is infinite: then it has no time of day.
fn finite(timestamp: Expr) -> Expr {
    let infinity = |value| lit(ScalarValue::TimestampMicrosecond(Some(value), None));
    match &timestamp {
        Expr::ScalarFunction(call) if call.args.get(1).is_some_and(|last| *last == infinity(i64::MIN)) => timestamp,
        _ => nullif(nullif(timestamp, infinity(i64::MAX)), infinity(i64::MIN)),
    }
}

/// The maximum number of digits of an integer.
fn integer_digits(integer: ColumnType) -> u8 {
    match integer {
        ColumnType::SmallInt => 5,
        ColumnType::Int => 10,
        _ => 19,
    }
}
