//! The common type of expressions that are compared or are alternatives of one result, and the conversion of an
//! expression to it.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::type_coercion::binary::type_union_coercion;
use datafusion::logical_expr::{Expr, ExprSchemable, lit};

use super::super::functions::{cast_value, type_of};
use super::super::quantified::leaf;
use super::super::{clocks, functions, intervals, scalars};
use super::casts::explicit_cast;
use super::external;
use super::set_operations::compared;
use crate::SqlError;
use crate::engine::types::{
    INTERVAL, TIMESTAMP, datum_at, from_arrow, from_field, is_timestamptz, timestamptz, to_arrow, to_scalar,
};
use crate::engine::{ColumnType, Datum};
use crate::value::parse_datum;

/// The type to which an untyped string literal is converted if it becomes a NUMERIC with its own digits.
pub(super) const ANY_DECIMAL: DataType = DataType::Decimal128(ColumnType::PRECISION_MAX, 0);

/// Why expressions need a common type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Common {
    /// They are compared.
    Comparison,
    /// They are compared, and the first one is the result.
    Equality,
    /// They are operands of arithmetic.
    Arithmetic,
    /// One of them is the result.
    Result,
}

pub(super) fn is_signed(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int16 | DataType::Int32 | DataType::Int64)
}

pub(super) fn is_decimal(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Decimal128(..))
}

/// A string literal without a type of its own.
pub(in crate::engine::query) fn is_untyped_literal(expression: &Expr) -> bool {
    matches!(
        expression,
        Expr::Literal(ScalarValue::Utf8(Some(_)) | ScalarValue::Utf8View(Some(_)) | ScalarValue::LargeUtf8(Some(_)), _)
    )
}

/// Whether an expression has no type of its own: NULL, or an untyped string literal. A parameter that is NULL has its type, except
/// that one of type TEXT may have been inferred. An array of such elements has the type TEXT[], whose blanks count beside a CHAR.
pub(super) fn is_untyped(element: &Expr) -> bool {
    let has_none = |of: &DataType| of.is_null() || of.is_string();
    is_untyped_literal(element)
        || matches!(element, Expr::Literal(value, _) if value.is_null() && has_none(&value.data_type()))
}

/// The type of an expression if it is CHAR(n) or VARCHAR(n).
pub(super) fn limited_text(expression: &Expr, schema: &DFSchema) -> Option<ColumnType> {
    // These have none. Computing the field of an expression computes the name of each of its parts, so for a long chain
    // of operators it takes long.
    match expression {
        Expr::BinaryExpr(_) | Expr::Negative(_) | Expr::Not(_) | Expr::Like(_) | Expr::Case(_) => return None,
        Expr::Cast(cast) if !cast.field.data_type().is_string() => return None,
        _ => {}
    }
    let (_, field) = expression.to_field(schema).ok()?;
    from_field(&field).filter(|of| matches!(of, ColumnType::Char(_) | ColumnType::Varchar(_)))
}

/// Whether an expression has the type CHAR(n).
pub(in crate::engine::query) fn is_char(expression: &Expr, schema: &DFSchema) -> bool {
    matches!(limited_text(expression, schema), Some(ColumnType::Char(_)))
}

/// Whether an expression has the type CHAR(n), or the first of its alternatives has.
pub(super) fn is_of_chars(expression: &Expr, schema: &DFSchema) -> bool {
    fn is_first<'a>(mut values: impl Iterator<Item = &'a Expr>, schema: &DFSchema) -> bool {
        values.find(|value| !is_untyped(value)).is_some_and(|first| is_of_chars(first, schema))
    }
    match expression {
        Expr::Case(case) => {
            let thens = case.when_then_expr.iter().map(|(_, then)| then.as_ref());
            is_first(case.else_expr.iter().map(AsRef::as_ref).chain(thens), schema)
        }
        Expr::ScalarFunction(call) if matches!(call.func.name(), "coalesce" | "greatest" | "least" | "nullif") => {
            is_first(call.args.iter(), schema)
        }
        Expr::ScalarSubquery(query) => {
            matches!(from_field(query.subquery.schema().field(0)), Some(ColumnType::Char(_)))
        }
        other => is_char(other, schema),
    }
}

/// Replaces an expression by its cast.
pub(super) fn become_cast(expression: &mut Expr, to: ColumnType) {
    let inner = std::mem::replace(expression, lit(ScalarValue::Null));
    *expression = functions::cast(inner, to);
}

/// Gives expressions that are compared, or are alternatives of one result, the type that PostgreSQL gives them.
/// Expressions that DataFusion resolves in the same way stay as they are.
pub(super) fn together(expressions: &mut [&mut Expr], schema: &DFSchema, common: Common) -> Result<()> {
    let is_compared = matches!(common, Common::Comparison | Common::Equality);
    if is_compared && expressions.iter().any(|e| !is_untyped_literal(e) && is_of_chars(e, schema)) {
        let types = expressions.iter().filter(|e| !is_untyped(e)).filter_map(|e| type_of(e, schema).ok());
        let types: Vec<DataType> = types.filter(|data_type| !data_type.is_null()).collect();
        if let Some((first, rest)) = types.split_first() {
            rest.iter().try_for_each(|other| compared(first, other))?;
        }
        return expressions.iter_mut().try_for_each(|expression| become_char(expression, schema));
    }
    let is_first_char = expressions.iter().find(|e| !is_untyped(e)).is_some_and(|first| is_of_chars(first, schema));
    if common == Common::Result && is_first_char {
        // As CHARs the others have no trailing blanks.
        for expression in expressions.iter_mut() {
            without_blanks(expression);
        }
        for expression in expressions.iter_mut().filter(|e| !is_untyped(e) && !is_of_chars(e, schema)) {
            if type_of(expression, schema)?.is_string() {
                become_cast(expression, ColumnType::Char(ColumnType::CHARACTERS_MAX));
                become_cast(expression, ColumnType::Text);
            }
        }
    }
    let mut known = Vec::with_capacity(expressions.len());
    for expression in expressions.iter().filter(|e| !is_untyped(e)) {
        match type_of(expression, schema) {
            Ok(DataType::Null) => {}
            Ok(data_type) => known.push(data_type),
            // A parameter whose type is not known yet.
            Err(_) => return Ok(()),
        }
    }
    if let Some((first, rest)) = known.split_first().filter(|_| is_compared) {
        rest.iter().try_for_each(|other| compared(first, other))?;
    }
    if let Some(float) = common_float(&known, common) {
        let float = if float == DataType::Float64 && common == Common::Comparison && all_exact(expressions, schema) {
            DataType::Float32
        } else {
            float
        };
        for expression in expressions.iter_mut() {
            become_type(expression, &float, schema)?;
        }
        return Ok(());
    }
    check_lists(known.iter())?;
    let moment = match common {
        Common::Comparison => compared_moment(expressions, &known, schema),
        _ => common_moment(&known),
    };
    if let Some(moment) = moment {
        for expression in expressions.iter_mut() {
            become_type(expression, &moment, schema)?;
        }
        return Ok(());
    }
    let Some(data_type) = widest(&known) else { return Ok(()) };
    for expression in expressions.iter_mut().filter(|e| is_untyped_literal(e)) {
        become_type(expression, &data_type, schema)?;
    }
    Ok(())
}

/// The common type of numbers of different types if one is a float.
pub(super) fn common_float(known: &[DataType], common: Common) -> Option<DataType> {
    let any = |data_type: &DataType| known.contains(data_type);
    let first = known.first()?;
    if !known.iter().all(DataType::is_numeric) || !(any(&DataType::Float32) || any(&DataType::Float64)) {
        return None;
    }
    if known.iter().all(|t| t == first) {
        return Some(first.clone());
    }
    Some(if any(&DataType::Float64) || common != Common::Result { DataType::Float64 } else { DataType::Float32 })
}

/// The common type of exact numbers of different types, as DataFusion will choose it.
pub(super) fn common_exact(known: &[DataType]) -> Option<DataType> {
    let (first, rest) = known.split_first()?;
    if !known.iter().all(|t| is_signed(t) || is_decimal(t)) || rest.iter().all(|t| t == first) {
        return None;
    }
    rest.iter().try_fold(first.clone(), |common, other| type_union_coercion(&common, other))
}

/// TEXT, if a column contains texts of different types.
pub(super) fn common_text<'a>(fields: impl Iterator<Item = &'a Field>) -> Option<DataType> {
    let types: Option<Vec<ColumnType>> = fields.map(from_field).collect();
    let types = types?;
    let is_mixed = types.iter().all(|t| t.is_text()) && types.iter().any(|t| t != &types[0]);
    is_mixed.then_some(DataType::Utf8View)
}

/// The common type of numbers, or of dates and timestamps, if one of them is the result.
pub(super) fn common_result(known: &[DataType]) -> Option<DataType> {
    common_float(known, Common::Result).or_else(|| common_moment(known)).or_else(|| common_exact(known))
}

/// The type of a parameter among expressions of these types, one of which is the result unchanged; `None` if they have
/// no common type.
pub(in crate::engine::query) fn common_type(known: &[DataType]) -> Option<DataType> {
    let (first, rest) = known.split_first()?;
    if rest.iter().all(|other| other == first) {
        return Some(first.clone());
    }
    common_result(known).or_else(|| known.iter().all(DataType::is_string).then_some(DataType::Utf8View))
}

/// The type of an expression with results of these types, before they get it by [`together`]; `None` is an untyped string literal.
pub(in crate::engine::query) fn type_of_results(types: &[Option<DataType>]) -> DataType {
    let known: Vec<DataType> = types.iter().flatten().filter(|of| !of.is_null()).cloned().collect();
    match known.as_slice() {
        [] if types.contains(&None) => DataType::Utf8,
        [] => DataType::Null,
        [first, ..] => common_type(&known).unwrap_or_else(|| first.clone()),
    }
}

/// The common type of dates and timestamps of different types: a timestamp with microseconds, and with a time zone if one of
/// them has one.
pub(super) fn common_moment(known: &[DataType]) -> Option<DataType> {
    let (first, rest) = known.split_first()?;
    let is_moment = |of: &DataType| matches!(of, DataType::Date32) || *of == TIMESTAMP || is_timestamptz(of);
    if !known.iter().all(is_moment) || rest.iter().all(|other| other == first) {
        return None;
    }
    Some(if known.iter().any(is_timestamptz) { timestamptz() } else { TIMESTAMP })
}

/// The type in which moments are compared. In a time zone that never changes timestamps with and without one have the same
/// order. Then the constants become the type of the columns beside them, which a scan can compare in place.
fn compared_moment(expressions: &[&mut Expr], known: &[DataType], schema: &DFSchema) -> Option<DataType> {
    let common = common_moment(known)?;
    let is_plain_column = |expression: &Expr| {
        matches!(expression, Expr::Column(_)) && expression.get_type(schema).is_ok_and(|of| of == TIMESTAMP)
    };
    let can_be_plain = is_timestamptz(&common)
        && clocks::zone().is_fixed()
        && expressions.iter().all(|e| is_plain_column(e) || e.column_refs().is_empty())
        && expressions.iter().any(|e| is_plain_column(e));
    Some(if can_be_plain { TIMESTAMP } else { common })
}

/// Refuses lists of timestamps of which some have a time zone: the planner would convert the others in UTC.
pub(super) fn check_lists<'a>(types: impl Iterator<Item = &'a DataType>) -> Result<()> {
    let (mut has_list, mut has_zone, mut has_none) = (false, false, false);
    for of in types {
        let element = leaf(of);
        has_list |= element.is_some();
        match element.unwrap_or(of) {
            of if is_timestamptz(of) => has_zone = true,
            DataType::Timestamp(..) | DataType::Date32 => has_none = true,
            _ => {}
        }
    }
    if has_list && has_zone && has_none {
        return Err(external(SqlError::unsupported("arrays of timestamps with and without time zone together")));
    }
    Ok(())
}

/// Whether all are REAL, or literals that REAL represents exactly. Then comparisons in REAL and in DOUBLE PRECISION
/// agree, and the rows of a table can be compared in place.
fn all_exact(expressions: &[&mut Expr], schema: &DFSchema) -> bool {
    expressions.iter().all(|expression| match expression {
        Expr::Literal(value, _) => {
            let double = literal(value).and_then(|datum| cast_value(datum, ColumnType::Double, clocks::zone()).ok());
            let exact = |v: f64| f64::from(v as f32).to_bits() == v.to_bits();
            matches!(double, Some(Datum::Double(v)) if exact(v))
        }
        other => other.get_type(schema).is_ok_and(|data_type| data_type == DataType::Float32),
    })
}

/// The type, among those known, to which an untyped string literal beside them is converted.
fn widest(known: &[DataType]) -> Option<DataType> {
    let first = known.first()?;
    if known.iter().all(|t| t == first) {
        return Some(first.clone());
    }
    if known.iter().all(is_signed) {
        return known.iter().max_by_key(|t| t.primitive_width()).cloned();
    }
    if known.iter().all(|t| is_signed(t) || is_decimal(t)) {
        return known.iter().find(|t| is_decimal(t)).cloned();
    }
    None
}

pub(in crate::engine::query) fn bare_string(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Literal(value, _) if is_untyped_literal(expression) => value.try_as_str().flatten().map(str::to_owned),
        _ => None,
    }
}

/// A literal's value, if its type has a column type.
pub(super) fn literal(value: &ScalarValue) -> Option<Datum> {
    from_arrow(&value.data_type())?;
    datum_at(&value.to_array().ok()?, 0, clocks::zone()).ok()
}

/// The literal of a value. A decimal keeps its own scale.
pub(super) fn literal_of(datum: &Datum, data_type: ColumnType) -> Result<Expr> {
    let scalar = match datum {
        Datum::Decimal { unscaled, scale } => decimal_scalar(*unscaled, *scale),
        datum => to_scalar(datum, data_type, clocks::zone()).map_err(external)?,
    };
    Ok(lit(scalar))
}

/// A decimal with the smallest sufficient precision.
pub(in crate::engine::query) fn decimal_scalar(unscaled: i128, scale: u8) -> ScalarValue {
    let digits = unscaled.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1);
    let precision = u8::try_from(digits).unwrap_or(ColumnType::PRECISION_MAX).max(scale);
    ScalarValue::Decimal128(Some(unscaled), precision.clamp(1, ColumnType::PRECISION_MAX), scale.cast_signed())
}

/// Removes the trailing blanks of an expression that is compared with a CHAR(n): of an untyped string literal or a
/// VARCHAR(n). Those of a TEXT count. A constant CHAR(n) then becomes TEXT, without blanks: DataFusion treats equal
/// constants as different if one of them has one of our types.
pub(super) fn become_char(expression: &mut Expr, schema: &DFSchema) -> Result<()> {
    if is_untyped_literal(expression) {
        without_blanks(expression);
    } else if matches!(limited_text(expression, schema), Some(ColumnType::Varchar(_)))
        && !scalars::become_char(expression)?
    {
        become_cast(expression, ColumnType::Char(ColumnType::CHARACTERS_MAX));
    }
    if is_char(expression, schema) && expression.column_refs().is_empty() {
        become_cast(expression, ColumnType::Text);
    }
    Ok(())
}

/// An untyped string literal as a CHAR without a length.
pub(super) fn without_blanks(expression: &mut Expr) {
    if let Some(text) = bare_string(expression) {
        *expression = lit(ScalarValue::Utf8View(Some(text.trim_end_matches(' ').to_owned())));
    }
}

/// Converts an expression to a type to which an implicit cast exists.
pub(super) fn become_type(expression: &mut Expr, data_type: &DataType, schema: &DFSchema) -> Result<()> {
    let from = match bare_string(expression) {
        Some(text) if *data_type == INTERVAL => {
            *expression = intervals::literal(&text)?;
            return Ok(());
        }
        Some(text) => {
            let Some(to) = from_arrow(data_type).filter(|to| !to.is_text() && to_arrow(*to) == *data_type) else {
                return Ok(());
            };
            let datum = parse_datum(&text, to, clocks::zone()).map_err(external)?;
            *expression = literal_of(&datum, to)?;
            return Ok(());
        }
        None => type_of(expression, schema)?,
    };
    if from == *data_type || from.is_null() {
        return Ok(());
    }
    let to = from_arrow(data_type);
    if let (Expr::Literal(value, _), Some(to)) = (&*expression, to)
        && let Some(datum) = literal(value)
    {
        let zone = clocks::zone();
        *expression = lit(to_scalar(&cast_value(datum, to, zone)?, to, zone).map_err(external)?);
        return Ok(());
    }
    let inner = std::mem::replace(expression, lit(ScalarValue::Null));
    *expression = match to {
        Some(to) if is_decimal(&from) && data_type.is_floating() => functions::cast(inner, to),
        // Arrow's casts of dates and timestamps are in UTC, and have no infinity.
        Some(to @ (ColumnType::Timestamp | ColumnType::Timestamptz)) if is_microseconds(&from) => {
            functions::cast(inner, to)
        }
        Some(to) if is_timestamptz(&from) => explicit_cast(inner, to, data_type, schema)?,
        _ => inner.cast_to(data_type, schema)?,
    };
    Ok(())
}

/// Whether it is a type of dates or timestamps of ours, and not one of DataFusion's functions.
fn is_microseconds(data_type: &DataType) -> bool {
    *data_type == DataType::Date32 || *data_type == TIMESTAMP || *data_type == timestamptz()
}

/// An integer as a decimal with the same number of digits.
pub(super) fn become_decimal(expression: &mut Expr, schema: &DFSchema) -> Result<()> {
    let digits = match type_of(expression, schema)? {
        DataType::Int16 => 5,
        DataType::Int32 => 10,
        DataType::Int64 => 19,
        _ => return Ok(()),
    };
    become_type(expression, &DataType::Decimal128(digits, 0), schema)
}
