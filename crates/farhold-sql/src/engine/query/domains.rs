//! Functions of floats that fail where PostgreSQL's fail: outside their domain, and if a result overflows or underflows
//! its type. DataFusion's return NaN, infinity and zero.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion::prelude::SessionContext;

use super::checked::{self, Check};
use crate::{SqlError, SqlState};

/// Wraps DataFusion's functions in the check.
pub(super) fn register(context: &SessionContext) {
    checked::register(context, &["sqrt", "exp", "ln", "log", "log10", "power"], &Domains);
    checked::register(context, &["acos", "asin", "acosh", "atanh", "sin", "cos", "tan", "cot"], &Domains);
}

#[derive(Clone, Debug)]
struct Domains;

impl Check for Domains {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        let doubles = |value: &ColumnarValue| -> Result<ArrayRef> {
            Ok(arrow::compute::cast(&value.to_array(rows)?, &DataType::Float64)?)
        };
        let given = arguments.args.iter().map(doubles).collect::<Result<Vec<_>>>()?;
        let given: Vec<_> = given.iter().map(AsArray::as_primitive::<Float64Type>).collect();
        let refuse = |result: &dyn Fn(usize) -> Option<f64>| {
            let valid = (0..rows).filter(|&row| given.iter().all(|given| given.is_valid(row)));
            let mut found = valid.filter_map(|row| match given.as_slice() {
                [of] => wrong(inner.name(), of.value(row), result(row)),
                [a, b] => wrong_pair(inner.name(), a.value(row), b.value(row), result(row)),
                _ => None,
            });
            found.next().map_or(Ok(()), |(state, message)| {
                Err(DataFusionError::External(Box::new(SqlError::new(state, message))))
            })
        };
        refuse(&|_| None)?;
        let result = inner.invoke_with_args(arguments)?;
        let results = doubles(&result)?;
        refuse(&|row| Some(results.as_primitive::<Float64Type>().value(row)))?;
        Ok(result)
    }
}

const OUTSIDE: (SqlState, &str) = (SqlState::NUMERIC_OUT_OF_RANGE, "input is out of range");

/// The error of a function's argument, or of its result once that is known.
fn wrong(name: &str, of: f64, result: Option<f64>) -> Option<(SqlState, &'static str)> {
    match name {
        "sqrt" if of < 0.0 => Some((SqlState::INVALID_POWER_ARGUMENT, "cannot take square root of a negative number")),
        "ln" | "log" | "log10" if of == 0.0 => {
            Some((SqlState::INVALID_LOGARITHM_ARGUMENT, "cannot take logarithm of zero"))
        }
        "ln" | "log" | "log10" if of < 0.0 => {
            Some((SqlState::INVALID_LOGARITHM_ARGUMENT, "cannot take logarithm of a negative number"))
        }
        "exp" if of.is_finite() => out_of_range(result),
        "acos" | "asin" | "atanh" if of.abs() > 1.0 => Some(OUTSIDE),
        "acosh" if of < 1.0 => Some(OUTSIDE),
        "sin" | "cos" | "tan" | "cot" if of.is_infinite() => Some(OUTSIDE),
        _ => None,
    }
}

/// As [`wrong`], for two arguments.
fn wrong_pair(name: &str, a: f64, b: f64, result: Option<f64>) -> Option<(SqlState, &'static str)> {
    let power = |message| Some((SqlState::INVALID_POWER_ARGUMENT, message));
    match name {
        "log" if a.to_bits() == 1.0_f64.to_bits() && b > 0.0 => Some((SqlState::DIVISION_BY_ZERO, "division by zero")),
        "log" => wrong(name, a, None).or_else(|| wrong(name, b, None)),
        "power" if a == 0.0 && b < 0.0 => power("zero raised to a negative power is undefined"),
        "power" if a < 0.0 && b.is_finite() && b.fract() != 0.0 => {
            power("a negative number raised to a non-integer power yields a complex result")
        }
        "power" if a != 0.0 && a.is_finite() && b.is_finite() => out_of_range(result),
        _ => None,
    }
}

/// The error of a result that should be neither infinite nor zero.
fn out_of_range(result: Option<f64>) -> Option<(SqlState, &'static str)> {
    match result? {
        result if result.is_infinite() => Some((SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow")),
        0.0 => Some((SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: underflow")),
        _ => None,
    }
}
