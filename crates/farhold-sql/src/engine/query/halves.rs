//! `round` of floats rounds half to even, as in PostgreSQL. DataFusion's rounds half away from zero, which is right for
//! decimals. Also, `round`, `ceil` and `floor` of a constant decimal panic in DataFusion 55 if the batch has no rows.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion::prelude::SessionContext;

use super::checked::{self, Check};

/// Wraps DataFusion's functions in the check.
pub(super) fn register(context: &SessionContext) {
    checked::register(context, &["round", "ceil", "floor"], &Halves);
}

#[derive(Clone, Debug)]
struct Halves;

impl Check for Halves {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        let rounds = inner.name() == "round";
        match arguments.args.as_slice() {
            [ColumnarValue::Array(values)] if rounds && values.data_type().is_floating() => {
                Ok(ColumnarValue::Array(rounded(values)))
            }
            [ColumnarValue::Scalar(value)] if rounds && value.data_type().is_floating() => {
                let one = rounded(&value.to_array()?);
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?))
            }
            // Scalars count as one row, even if the batch has none.
            _ => inner.invoke_with_args(ScalarFunctionArgs { number_rows: rows, ..arguments }),
        }
    }
}

fn rounded(values: &ArrayRef) -> ArrayRef {
    match values.data_type() {
        DataType::Float32 => {
            Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::round_ties_even))
        }
        _ => Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::round_ties_even)),
    }
}
