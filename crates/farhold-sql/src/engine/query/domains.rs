//! Functions of floats that are errors where PostgreSQL's are: outside of what they are defined for, and where a result is too large or too small
//! for its type. DataFusion's give NaN, infinity and zero.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::prelude::SessionContext;

use crate::{SqlError, SqlState};

/// Puts the functions in the place of DataFusion's.
pub(super) fn register(context: &SessionContext) {
    for name in ["sqrt", "exp", "ln", "log10"] {
        if let Some(inner) = context.state().scalar_functions().get(name).cloned() {
            context.register_udf(ScalarUDF::from(Checked { inner }));
        }
    }
}

/// One of DataFusion's functions of one number.
#[derive(Debug)]
struct Checked {
    inner: Arc<ScalarUDF>,
}

impl PartialEq for Checked {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Checked {}

impl Hash for Checked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arguments)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(arguments)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arguments)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let alike = matches!(arguments.args.as_slice(), [ColumnarValue::Scalar(_)]);
        let rows = if alike { 1 } else { arguments.number_rows };
        let doubles = |value: &ColumnarValue| -> Result<ArrayRef> {
            Ok(arrow::compute::cast(&value.to_array(rows)?, &DataType::Float64)?)
        };
        let given = match arguments.args.as_slice() {
            [given] => doubles(given)?,
            _ => return self.inner.invoke_with_args(arguments),
        };
        let given = given.as_primitive::<Float64Type>();
        let refuse = |result: &dyn Fn(usize) -> Option<f64>| {
            let valid = (0..rows).filter(|&row| given.is_valid(row));
            let mut found = valid.filter_map(|row| wrong(self.name(), given.value(row), result(row)));
            found.next().map_or(Ok(()), |(state, message)| {
                Err(DataFusionError::External(Box::new(SqlError::new(state, message))))
            })
        };
        refuse(&|_| None)?;
        let result = self.inner.invoke_with_args(arguments)?;
        let results = doubles(&result)?;
        refuse(&|row| Some(results.as_primitive::<Float64Type>().value(row)))?;
        Ok(result)
    }
}

/// What is wrong with a function's argument, or with its result once that is known.
fn wrong(name: &str, of: f64, result: Option<f64>) -> Option<(SqlState, &'static str)> {
    match name {
        "sqrt" if of < 0.0 => Some((SqlState::INVALID_POWER_ARGUMENT, "cannot take square root of a negative number")),
        "ln" | "log10" if of == 0.0 => Some((SqlState::INVALID_LOGARITHM_ARGUMENT, "cannot take logarithm of zero")),
        "ln" | "log10" if of < 0.0 => {
            Some((SqlState::INVALID_LOGARITHM_ARGUMENT, "cannot take logarithm of a negative number"))
        }
        "exp" if of.is_finite() && result.is_some_and(f64::is_infinite) => {
            Some((SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow"))
        }
        "exp" if of.is_finite() && result == Some(0.0) => {
            Some((SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: underflow"))
        }
        _ => None,
    }
}
