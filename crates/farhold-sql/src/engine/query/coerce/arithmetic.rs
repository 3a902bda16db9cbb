//! Binary operators: the type in which they calculate, and the function that does.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, lit};

use super::super::functions::type_of;
use super::super::{arrays, clocks, dates, functions, intervals, quantified};
use super::casts::explicit_cast;
use super::common::{
    Common, become_decimal, become_type, is_char, is_decimal, is_signed, is_untyped, is_untyped_literal, together,
};
use crate::engine::ColumnType;
use crate::engine::scalar::{Arithmetic, Comparison};
use crate::engine::types::{TIMESTAMP, from_arrow, is_timestamptz, timestamptz};
use crate::value::Zone;

pub(super) fn binary_typed(binary: BinaryExpr, schema: &DFSchema) -> Result<Expr> {
    use Operator as O;
    let BinaryExpr { mut left, op, mut right } = binary;
    if quantified::take_mark(&mut left) && is_char(&left, schema) && is_untyped(&right) {
        return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
    }
    let arithmetic = match op {
        O::Eq | O::NotEq | O::Lt | O::LtEq | O::Gt | O::GtEq | O::IsDistinctFrom | O::IsNotDistinctFrom => {
            arrays::read_beside(&mut left, &mut right, schema)?;
            together(&mut [&mut left, &mut right], schema, Common::Comparison)?;
            let is_array = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type.is_list());
            return Ok(match order(op) {
                Some(comparison) if is_array(&left) && is_array(&right) => arrays::ordered(*left, comparison, *right),
                _ => Expr::BinaryExpr(BinaryExpr { left, op, right }),
            });
        }
        O::StringConcat => {
            concatenated(&mut [&mut left, &mut right], schema)?;
            return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }));
        }
        O::Plus => Arithmetic::Add,
        O::Minus => Arithmetic::Subtract,
        O::Multiply => Arithmetic::Multiply,
        O::Divide => Arithmetic::Divide,
        O::Modulo => Arithmetic::Remainder,
        _ => return Ok(Expr::BinaryExpr(BinaryExpr { left, op, right })),
    };
    if op == O::Minus && is_difference(&left, &right, schema) {
        return difference(*left, *right, schema);
    }
    let is_date = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type == DataType::Date32);
    let is_moment = |side: &Expr| {
        type_of(side, schema).is_ok_and(|t| t == DataType::Date32 || t == TIMESTAMP || t == timestamptz())
    };
    let is_interval = |side: &Expr| is_interval(side, schema);
    let is_days = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| data_type.is_integer());
    match op {
        O::Plus | O::Minus if is_date(&left) && is_days(&right) => {
            functions::check_chain(&left)?;
            return Ok(dates::plus_days(arithmetic, *left, *right));
        }
        O::Plus if is_days(&left) && is_date(&right) => return Ok(dates::plus_days(arithmetic, *right, *left)),
        O::Minus if is_date(&left) && is_date(&right) => return Ok(dates::days_between(*left, *right)),
        O::Plus | O::Minus if is_moment(&left) && is_interval(&right) => {
            functions::check_chain(&left)?;
            let zone = zone_of(&left, schema);
            return Ok(dates::plus_interval(arithmetic, *left, *right, zone));
        }
        O::Plus if is_interval(&left) && is_moment(&right) => {
            functions::check_chain(&right)?;
            let zone = zone_of(&right, schema);
            return Ok(dates::plus_interval(arithmetic, *right, *left, zone));
        }
        O::Multiply | O::Divide if is_scaled(arithmetic, &left, &right, schema) => {
            return scaled(arithmetic, *left, *right, schema);
        }
        _ => {}
    }
    let numbers = [&left, &right]
        .iter()
        .all(|e| is_untyped_literal(e) || type_of(e, schema).is_ok_and(|data_type| data_type.is_numeric()));
    if !numbers {
        let result = Expr::BinaryExpr(BinaryExpr { left, op, right });
        // The sum of a date and a time has nanoseconds there, and a zone is taken into account for our type alone.
        let is_theirs = matches!(type_of(&result, schema), Ok(of @ DataType::Timestamp(_, None)) if of != TIMESTAMP);
        return if is_theirs { result.cast_to(&TIMESTAMP, schema) } else { Ok(result) };
    }
    together(&mut [&mut left, &mut right], schema, Common::Arithmetic)?;
    for side in [&mut left, &mut right] {
        // Some functions of DataFusion return types that PostgreSQL does not have.
        let data_type = match type_of(side, schema)? {
            DataType::Int8 | DataType::UInt8 => DataType::Int16,
            DataType::UInt16 => DataType::Int32,
            DataType::UInt32 | DataType::UInt64 => DataType::Int64,
            _ => continue,
        };
        become_type(side, &data_type, schema)?;
    }
    let (a, b) = (type_of(&left, schema)?, type_of(&right, schema)?);
    let mut is_checked = a.is_floating() && a == b && arithmetic != Arithmetic::Remainder;
    if is_signed(&a) && is_signed(&b) {
        let wider = if a.primitive_width() >= b.primitive_width() { a } else { b };
        become_type(&mut left, &wider, schema)?;
        become_type(&mut right, &wider, schema)?;
        // Arrow's own division already reports errors as it should.
        is_checked = !matches!(arithmetic, Arithmetic::Divide | Arithmetic::Remainder);
    } else if arithmetic == Arithmetic::Divide && [&a, &b].into_iter().all(|t| is_signed(t) || is_decimal(t)) {
        for side in [&mut left, &mut right] {
            become_decimal(side, schema)?;
        }
        is_checked = true;
    } else if matches!(arithmetic, Arithmetic::Multiply | Arithmetic::Remainder) {
        is_checked |= arithmetic == Arithmetic::Multiply && is_long_product(&left, &right, schema);
        // DataFusion 55 simplifies `a * 0` and `a * 1` to a factor, whose type differs, and `a % 1` to 0.
        let are_decimals = [&a, &b].into_iter().all(|t| is_signed(t) || is_decimal(t));
        if are_decimals && [&left, &right].into_iter().any(|side| side.column_refs().is_empty()) {
            for side in [&mut left, &mut right] {
                become_decimal(side, schema)?;
            }
            is_checked = true;
        }
    }
    Ok(if is_checked {
        functions::checked(arithmetic, *left, *right)
    } else {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
    })
}

/// The comparisons that depend on the order of values.
fn order(op: Operator) -> Option<Comparison> {
    match op {
        Operator::Lt => Some(Comparison::Less),
        Operator::LtEq => Some(Comparison::LessEqual),
        Operator::Gt => Some(Comparison::Greater),
        Operator::GtEq => Some(Comparison::GreaterEqual),
        _ => None,
    }
}

/// Whether two factors are decimals whose product may have too many digits. Arrow's product is exact, and an error if
/// its digits do not fit.
pub(super) fn is_long_product(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    match (type_of(left, schema), type_of(right, schema)) {
        (Ok(DataType::Decimal128(p, s)), Ok(DataType::Decimal128(q, t))) => {
            p + q > ColumnType::PRECISION_MAX && s + t > functions::PRODUCT_SCALE.cast_signed()
        }
        _ => false,
    }
}

/// Whether one of these operands is a float, and another has another type: as they were planned, each was a decimal. While it is
/// planned, a column of a UNION has the type of the first query.
pub(super) fn has_float_beside(operands: &[Expr], schema: &DFSchema) -> bool {
    let mut types = operands.iter().filter_map(|operand| type_of(operand, schema).ok());
    let Some(first) = types.next() else { return false };
    let (mut has_float, mut has_other) = (first.is_floating(), false);
    for of in types {
        has_float |= of.is_floating();
        has_other |= of != first;
    }
    has_float && has_other
}

/// `a op b op c …` in the types of its operands.
pub(super) fn chain_typed(steps: &[Arithmetic], operands: Vec<Expr>, schema: &DFSchema) -> Result<Expr> {
    let mut operands = operands.into_iter();
    let first = operands.next().unwrap_or_else(|| lit(ScalarValue::Null));
    steps.iter().zip(operands).try_fold(first, |before, (step, operand)| {
        let op = match step {
            Arithmetic::Add => Operator::Plus,
            Arithmetic::Subtract => Operator::Minus,
            Arithmetic::Multiply => Operator::Multiply,
            Arithmetic::Divide => Operator::Divide,
            Arithmetic::Remainder => Operator::Modulo,
        };
        binary_typed(BinaryExpr { left: Box::new(before), op, right: Box::new(operand) }, schema)
    })
}

/// Gives an untyped parameter the type of the decimal beside it. DataFusion does so later, but by then their product
/// may have no type.
pub(super) fn parameter_beside(side: &mut Expr, other: &Expr, schema: &DFSchema) {
    if let Expr::Placeholder(Placeholder { field: field @ None, .. }) = side
        && let Ok((_, of)) = other.to_field(schema)
        && is_decimal(of.data_type())
    {
        *field = Some(Arc::new(of.as_ref().clone().with_nullable(true)));
    }
}

/// Whether the operands are a decimal and another exact number, and one contains a parameter. A parameter's value has
/// its own precision and scale. As soon as it is bound, DataFusion computes the type of the expression, and Arrow may
/// have none for so many digits.
pub(super) fn is_of_parameter(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_number = |side: &Expr| type_of(side, schema).is_ok_and(|of| is_decimal(&of) || is_signed(&of));
    let is_decimal = |side: &Expr| type_of(side, schema).is_ok_and(|data_type| is_decimal(&data_type));
    let has_parameter = |side: &Expr| side.exists(|part| Ok(matches!(part, Expr::Placeholder(_)))).unwrap_or(false);
    let has_decimal = is_decimal(left) && is_number(right) || is_number(left) && is_decimal(right);
    has_decimal && (has_parameter(left) || has_parameter(right))
}

/// The zone in which an interval is added to a moment, if that has a time zone.
fn zone_of(moment: &Expr, schema: &DFSchema) -> Option<Zone> {
    type_of(moment, schema).is_ok_and(|of| is_timestamptz(&of)).then(clocks::zone)
}

/// Whether one side is a timestamp, and the other one is a timestamp, a date, or a string literal that is converted to
/// one.
pub(super) fn is_difference(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_timestamp = |side: &Expr| matches!(type_of(side, schema), Ok(DataType::Timestamp(..)));
    let is_moment = |side: &Expr| is_untyped_literal(side) || matches!(type_of(side, schema), Ok(DataType::Date32));
    match (is_timestamp(left), is_timestamp(right)) {
        (true, true) => true,
        (true, false) => is_moment(right),
        (false, true) => is_moment(left),
        (false, false) => false,
    }
}

pub(super) fn is_interval(side: &Expr, schema: &DFSchema) -> bool {
    type_of(side, schema).is_ok_and(|data_type| matches!(data_type, DataType::Interval(_)))
}

/// Whether one side is an interval and the other one may be its factor.
pub(super) fn is_scaled(op: Arithmetic, left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let is_factor = |side: &Expr| {
        let is_number = |data_type: DataType| data_type.is_numeric() || data_type.is_null();
        is_untyped_literal(side) || is_untyped_parameter(side) || type_of(side, schema).is_ok_and(is_number)
    };
    is_interval(left, schema) && is_factor(right)
        || op == Arithmetic::Multiply && is_interval(right, schema) && is_factor(left)
}

fn is_untyped_parameter(side: &Expr) -> bool {
    matches!(side, Expr::Placeholder(parameter) if parameter.field.is_none())
}

/// The product of an interval and a number, or their quotient.
pub(super) fn scaled(op: Arithmetic, left: Expr, right: Expr, schema: &DFSchema) -> Result<Expr> {
    let (interval, mut factor) = if is_interval(&left, schema) { (left, right) } else { (right, left) };
    match &mut factor {
        Expr::Placeholder(Placeholder { field: field @ None, .. }) => {
            *field = Some(Arc::new(Field::new("factor", DataType::Float64, true)));
        }
        factor => become_type(factor, &DataType::Float64, schema)?,
    }
    Ok(intervals::scaled(op, interval, factor))
}

pub(super) fn difference(mut left: Expr, mut right: Expr, schema: &DFSchema) -> Result<Expr> {
    let has_zone = [&left, &right].iter().any(|side| type_of(side, schema).is_ok_and(|of| is_timestamptz(&of)));
    let common = if has_zone { timestamptz() } else { TIMESTAMP };
    for side in [&mut left, &mut right] {
        become_type(side, &common, schema)?;
    }
    Ok(intervals::difference(left, right))
}

/// The operands of `||`: bytes stay bytes if one operand is bytes, otherwise every operand becomes text.
fn concatenated(sides: &mut [&mut Expr; 2], schema: &DFSchema) -> Result<()> {
    if sides.iter().any(|side| type_of(side, schema).is_ok_and(|t| t.is_binary())) {
        return together(sides, schema, Common::Result);
    }
    let texts = sides.iter().filter(|side| type_of(side, schema).is_ok_and(|t| t.is_string())).count();
    for side in sides {
        let data_type = type_of(side, schema)?;
        let is_other = from_arrow(&data_type).is_none_or(|t| !t.is_text());
        // A list takes a text as an additional element.
        if texts == 1 && is_other && !data_type.is_null() && !data_type.is_list() {
            let inner = std::mem::replace(*side, lit(ScalarValue::Null));
            **side = explicit_cast(inner, ColumnType::Text, &DataType::Utf8View, schema)?;
        }
    }
    Ok(())
}
