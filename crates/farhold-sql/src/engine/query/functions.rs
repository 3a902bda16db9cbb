//! Operators and casts that fail where PostgreSQL's fail, and round as they do.
//!
//! DataFusion's own operators and casts wrap, truncate or return infinity. [`coerce`](super::coerce) replaces them
//! everywhere in a plan before it is optimised.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, Decimal128Array, PrimitiveArray, new_empty_array,
};
use arrow::compute::kernels::numeric::{add, mul, sub};
use arrow::compute::{CastOptions, cast_with_options, try_binary};
use arrow::datatypes::{
    DataType, Decimal128Type, Field, FieldRef, Float32Type, Float64Type, TimestampMicrosecondType, i256,
};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, expr,
};
use datafusion::physical_expr_common::datum::apply;

use super::aggregates::QUOTIENT_SCALE;
use super::{clocks, dates};
use crate::engine::scalar::{self, Arithmetic, cut_to, product, quotient};
use crate::engine::types::{
    TIMESTAMP, cast as cast_datum, datum_at, is_timestamptz, timestamptz, to_arrow, to_field, to_scalar,
};
use crate::engine::{ColumnType, Datum};
use crate::value::{Zone, round_timestamp};
use crate::{SqlError, SqlState};

/// Fractional digits of a product whose factors have more, so that eighteen digits are left before the point.
pub(super) const PRODUCT_SCALE: u8 = 20;

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// `a op b` for two integers or two floats of one type, or a quotient or product of two decimals. If `a` is such a call
/// already, `b` becomes another operand of it. In a chain of nested calls, names and types are computed again at each
/// level for all levels below, and 300 terms took 25 s to plan.
pub(super) fn checked(op: Arithmetic, a: Expr, b: Expr) -> Expr {
    let (mut steps, mut operands) = match a {
        Expr::ScalarFunction(call) => match call.func.inner().downcast_ref::<Checked>() {
            Some(before) => (before.steps.clone(), call.args),
            None => (Vec::new(), vec![Expr::ScalarFunction(call)]),
        },
        a => (Vec::new(), vec![a]),
    };
    steps.push(op);
    operands.push(b);
    let signature = Signature::any(operands.len(), Volatility::Immutable);
    ScalarUDF::from(Checked { steps, signature }).call(operands)
}

/// The operators of a function that [`checked`] has made.
pub(super) fn steps_of(function: &ScalarUDF) -> Option<&[Arithmetic]> {
    function.inner().downcast_ref::<Checked>().map(|chain| chain.steps.as_slice())
}

/// The type of an expression. For a chain of integers or floats it is the first operand's, so that the other operands
/// need not be visited at each step.
pub(super) fn type_of(expr: &Expr, schema: &DFSchema) -> Result<DataType> {
    if let Expr::ScalarFunction(call) = expr
        && call.func.inner().downcast_ref::<Checked>().is_some()
        && let [first, ..] = call.args.as_slice()
    {
        let data_type = first.get_type(schema)?;
        if !matches!(data_type, DataType::Decimal128(..)) {
            return Ok(data_type);
        }
    }
    expr.get_type(schema)
}

/// `CAST(a AS to)` in the session's time zone; a string is cut to the length of its type.
pub(super) fn cast(a: Expr, to: ColumnType) -> Expr {
    let function = Cast { to, zone: clocks::zone(), signature: Signature::any(1, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![a])
}

/// The limit on nested casts, and on nested sums of a date or timestamp with days or intervals. Names and types of such
/// a chain are computed again at each step for all steps below: in a debug build 50 took 0.5 s to plan, 300 took 72 s.
const CHAIN_MAX: usize = 64;

/// Refuses one more cast or sum around an expression that has reached the limit.
pub(super) fn check_chain(inner: &Expr) -> Result<()> {
    let (mut count, mut at) = (0, inner);
    loop {
        at = match at {
            Expr::Cast(cast) => &cast.expr,
            Expr::ScalarFunction(call)
                if call.func.inner().downcast_ref::<Cast>().is_some() || dates::is_sum(&call.func) =>
            {
                &call.args[0]
            }
            _ => break,
        };
        count += 1;
    }
    if count < CHAIN_MAX {
        return Ok(());
    }
    let error = SqlError::new(SqlState::STATEMENT_TOO_COMPLEX, "expressions are nested too deeply");
    let hint = format!("At most {CHAIN_MAX} casts and sums with intervals may be nested.");
    Err(external(error.with_hint(hint)))
}

/// Whether the expression is `CAST(CAST(a AS CHAR(n)) AS TEXT)` made by [`cast`].
pub(super) fn is_cast_from_char(expr: &Expr) -> bool {
    let cast_of = |expr: &Expr| match expr {
        Expr::ScalarFunction(call) => {
            let cast = call.func.inner().downcast_ref::<Cast>()?;
            Some((cast.to, call.args.first()?.clone()))
        }
        _ => None,
    };
    let inner = cast_of(expr).filter(|(to, _)| *to == ColumnType::Text);
    inner.and_then(|(_, inner)| cast_of(&inner)).is_some_and(|(to, _)| matches!(to, ColumnType::Char(_)))
}

/// `text LIKE pattern`.
pub(super) fn like(text: Expr, pattern: Expr, any_case: bool, escape: char) -> Expr {
    let function = Like { any_case, escape, signature: Signature::any(2, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![text, pattern])
}

/// A timestamp rounded to a number of fractional digits of the second.
pub(super) fn with_digits(moment: Expr, digits: u8) -> Expr {
    let function = TimestampDigits { digits, signature: Signature::any(1, Volatility::Immutable) };
    ScalarUDF::from(function).call(vec![moment])
}

/// The result of an explicit cast in a time zone. A CHAR has no trailing blanks, as in columns.
pub(super) fn cast_value(datum: Datum, to: ColumnType, zone: Zone) -> Result<Datum> {
    let datum = cut_to(cast_datum(datum, to, zone).map_err(external)?, to);
    Ok(match datum {
        Datum::Text(text) if matches!(to, ColumnType::Char(_)) => Datum::Text(text.trim_end_matches(' ').to_owned()),
        datum => datum,
    })
}

/// `a op b op c …`, evaluated from left to right.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    /// The operators; each precedes one operand.
    steps: Vec<Arithmetic>,
    signature: Signature,
}

/// The type of one step. A product was long when it was planned, but its factors may have fewer digits by now.
fn type_of_step(op: Arithmetic, a: &DataType, b: &DataType) -> DataType {
    match (a, b) {
        (DataType::Decimal128(digits, scale), DataType::Decimal128(other_digits, other_scale)) => {
            let both = scale + other_scale;
            let least = match op {
                Arithmetic::Multiply if digits + other_digits <= ColumnType::PRECISION_MAX => both,
                Arithmetic::Multiply => both.min(PRODUCT_SCALE.cast_signed()),
                Arithmetic::Remainder => 0,
                _ => QUOTIENT_SCALE.cast_signed(),
            };
            DataType::Decimal128(ColumnType::PRECISION_MAX, least.max(*scale).max(*other_scale))
        }
        _ => a.clone(),
    }
}

fn step(op: Arithmetic, a: &ColumnarValue, b: &ColumnarValue, rows: usize) -> Result<ColumnarValue> {
    match a.data_type() {
        DataType::Float32 => floats::<Float32Type>(a, b, rows, |a, b| op.real(a, b)),
        DataType::Float64 => floats::<Float64Type>(a, b, rows, |a, b| op.double(a, b)),
        data_type @ DataType::Decimal128(..) => decimals(op, a, b, rows, &type_of_step(op, &data_type, &b.data_type())),
        _ => apply(a, b, |a, b| match op {
            Arithmetic::Add => add(a, b),
            Arithmetic::Subtract => sub(a, b),
            _ => mul(a, b),
        }),
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &'static str {
        match self.steps.as_slice() {
            [Arithmetic::Add] => "checked_add",
            [Arithmetic::Subtract] => "checked_subtract",
            [Arithmetic::Multiply] => "checked_multiply",
            [Arithmetic::Divide] => "checked_divide",
            [Arithmetic::Remainder] => "checked_remainder",
            _ => "checked",
        }
    }

    fn schema_name(&self, operands: &[Expr]) -> Result<String> {
        let mut name = format!("{}({}", self.name(), operands[0].schema_name());
        for (op, operand) in self.steps.iter().zip(&operands[1..]) {
            write!(name, " {} {}", op.sign(), operand.schema_name())?;
        }
        name.push(')');
        Ok(name)
    }

    fn display_name(&self, operands: &[Expr]) -> Result<String> {
        self.schema_name(operands)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, operands: &[DataType]) -> Result<DataType> {
        let rest = self.steps.iter().zip(&operands[1..]);
        Ok(rest.fold(operands[0].clone(), |before, (op, operand)| type_of_step(*op, &before, operand)))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        let rows = arguments.number_rows;
        let mut operands = arguments.args.into_iter();
        let Some(first) = operands.next() else {
            return Err(DataFusionError::Internal("arithmetic takes operands".to_owned()));
        };
        self.steps.iter().zip(operands).try_fold(first, |before, (op, operand)| step(*op, &before, &operand, rows))
    }
}

/// Calculates on floats of one type.
fn floats<T: ArrowPrimitiveType>(
    a: &ColumnarValue,
    b: &ColumnarValue,
    rows: usize,
    calculate: impl Fn(T::Native, T::Native) -> Result<T::Native, SqlError>,
) -> Result<ColumnarValue> {
    both(a, b, rows, |a, b| {
        let calculate = |a, b| calculate(a, b).map_err(|e| ArrowError::from_external_error(Box::new(external(e))));
        let result: PrimitiveArray<T> = try_binary(a.as_primitive::<T>(), b.as_primitive::<T>(), calculate)?;
        Ok(Arc::new(result))
    })
}

/// The result of a strict function if one of its arguments is NULL, or NULL in every row. The optimiser evaluates
/// conditions for rows without a join partner, with NULLs that are untyped or of another type than the column (`abs`
/// turns them into floats).
pub(super) fn null_of(arguments: &ScalarFunctionArgs) -> Result<Option<ColumnarValue>> {
    let is_null = |argument: &ColumnarValue| match argument {
        ColumnarValue::Scalar(value) => value.is_null(),
        ColumnarValue::Array(values) => {
            values.data_type().is_null() || !values.is_empty() && values.null_count() == values.len()
        }
    };
    let null = arguments.args.iter().any(is_null).then(|| ScalarValue::try_from(arguments.return_field.data_type()));
    Ok(null.transpose()?.map(ColumnarValue::Scalar))
}

/// Calculates on arrays; on two scalars only once.
pub(super) fn both(
    a: &ColumnarValue,
    b: &ColumnarValue,
    rows: usize,
    calculate: impl Fn(&ArrayRef, &ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    if let (ColumnarValue::Scalar(a), ColumnarValue::Scalar(b)) = (a, b) {
        let one = calculate(&a.to_array()?, &b.to_array()?)?;
        return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?));
    }
    Ok(ColumnarValue::Array(calculate(&a.to_array(rows)?, &b.to_array(rows)?)?))
}

/// The remainder of a division, scaled to `scale`, which is at least the scale of both operands.
fn remainder((a, s): (i128, u8), (b, t): (i128, u8), scale: u8) -> Option<i128> {
    let wide = |unscaled: i128, from: u8| {
        let power = i256::from_i128(10).checked_pow(u32::from(scale - from))?;
        i256::from_i128(unscaled).checked_mul(power)
    };
    wide(a, s)?.checked_rem(wide(b, t)?)?.to_i128()
}

/// Quotients, remainders or products of decimals.
fn decimals(
    op: Arithmetic,
    a: &ColumnarValue,
    b: &ColumnarValue,
    rows: usize,
    output: &DataType,
) -> Result<ColumnarValue> {
    let scale_of = |data_type: &DataType| match data_type {
        DataType::Decimal128(_, scale) => u8::try_from(*scale).unwrap_or(0),
        _ => 0,
    };
    let (s, t, scale) = (scale_of(&a.data_type()), scale_of(&b.data_type()), scale_of(output));
    both(a, b, rows, |a, b| {
        let (a, b) = (a.as_primitive::<Decimal128Type>(), b.as_primitive::<Decimal128Type>());
        let calculate = |row: usize| -> Result<Option<i128>> {
            if a.is_null(row) || b.is_null(row) {
                return Ok(None);
            }
            let (a, b) = ((a.value(row), s), (b.value(row), t));
            let result = match op {
                Arithmetic::Multiply => product(a, b, scale),
                Arithmetic::Remainder if b.0 != 0 => remainder(a, b, scale),
                _ if b.0 == 0 => {
                    return Err(external(SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero")));
                }
                _ => quotient(a, b, scale),
            };
            result.map(Some).ok_or_else(|| {
                let message =
                    format!("numeric out of range: more than 38 digits, {scale} of them after the decimal point");
                external(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, message))
            })
        };
        let results: Decimal128Array = (0..a.len()).map(calculate).collect::<Result<_>>()?;
        Ok(Arc::new(results.with_data_type(output.clone())))
    })
}

/// Whether Arrow's cast gives the same values or fails.
fn is_exact(from: &DataType, to: ColumnType) -> bool {
    use ColumnType as T;
    from.is_signed_integer() && matches!(to, T::SmallInt | T::Int | T::BigInt | T::Decimal { .. })
}

/// The argument of a call made by [`cast`].
pub(super) fn cast_of(call: &expr::ScalarFunction) -> Option<&Expr> {
    call.func.inner().downcast_ref::<Cast>()?;
    call.args.first()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Cast {
    to: ColumnType,
    zone: Zone,
    signature: Signature,
}

impl ScalarUDFImpl for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(format!("CAST({} AS {})", arguments[0].schema_name(), self.to))
    }

    fn display_name(&self, arguments: &[Expr]) -> Result<String> {
        self.schema_name(arguments)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(to_arrow(self.to))
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let from = &arguments.arg_fields[0];
        let is_nullable = from.is_nullable() || !is_exact(from.data_type(), self.to);
        let field: Field = to_field(self.name(), self.to, is_nullable);
        Ok(Arc::new(field))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let convert = |array: &ArrayRef| -> Result<ArrayRef> {
            if array.is_empty() {
                return Ok(new_empty_array(&to_arrow(self.to)));
            }
            let or_fail = CastOptions { safe: false, ..CastOptions::default() };
            if is_exact(array.data_type(), self.to)
                && let Ok(values) = cast_with_options(array, &to_arrow(self.to), &or_fail)
            {
                return Ok(values);
            }
            // After a failed cast this path gives the right error message.
            let value = |row: usize| {
                let datum = datum_at(array, row, self.zone).map_err(external)?;
                to_scalar(&cast_value(datum, self.to, self.zone)?, self.to, self.zone).map_err(external)
            };
            let values = (0..array.len()).map(value).collect::<Result<Vec<_>>>()?;
            ScalarValue::iter_to_array(values)
        };
        match &arguments.args[0] {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(convert(array)?)),
            ColumnarValue::Scalar(scalar) => {
                let one = convert(&scalar.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?))
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TimestampDigits {
    digits: u8,
    signature: Signature,
}

impl ScalarUDFImpl for TimestampDigits {
    fn name(&self) -> &'static str {
        "timestamp_digits"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(if arguments.first().is_some_and(is_timestamptz) { timestamptz() } else { TIMESTAMP })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let moments = arguments.args[0].cast_to(arguments.return_type(), None)?;
        let rounded = |moments: &ArrayRef| -> ArrayRef {
            let data_type = moments.data_type().clone();
            let moments = moments.as_primitive::<TimestampMicrosecondType>();
            let moments = moments.unary::<_, TimestampMicrosecondType>(|moment| round_timestamp(moment, self.digits));
            Arc::new(moments.with_data_type(data_type))
        };
        Ok(match moments {
            ColumnarValue::Array(moments) => ColumnarValue::Array(rounded(&moments)),
            ColumnarValue::Scalar(moment) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&rounded(&moment.to_array()?), 0)?)
            }
        })
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Like {
    any_case: bool,
    escape: char,
    signature: Signature,
}

impl ScalarUDFImpl for Like {
    fn name(&self) -> &'static str {
        if self.any_case { "ilike" } else { "like" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [text, pattern] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal("LIKE takes two arguments".to_owned()));
        };
        both(text, pattern, arguments.number_rows, |text, pattern| {
            let text = arrow::compute::cast(text, &DataType::Utf8View)?;
            let pattern = arrow::compute::cast(pattern, &DataType::Utf8View)?;
            let rows = text.as_string_view().iter().zip(pattern.as_string_view().iter());
            let matched = rows.map(|(text, pattern)| match text.zip(pattern) {
                Some((text, pattern)) => {
                    scalar::like(text, pattern, self.any_case, Some(self.escape)).map(Some).map_err(external)
                }
                None => Ok(None),
            });
            Ok(Arc::new(matched.collect::<Result<BooleanArray>>()?))
        })
    }
}
