//! GREATEST, LEAST and NULLIF of floats and intervals.
//!
//! In PostgreSQL's order 0 equals -0, NaN equals NaN and is above all numbers, and a month has 30 days. Each function
//! returns one of its arguments unchanged, the first of several equal ones. DataFusion's functions compare floats by
//! bits, and months before days.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type, IntervalMonthDayNanoType};
use datafusion::common::{DFSchema, ScalarValue, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::floats::{has_key, key_of_interval};

/// The replacement of DataFusion's function, if it is one of these and has arguments of floats or intervals.
pub(super) fn in_place_of(function: &ScalarFunction, schema: &DFSchema) -> Option<Arc<ScalarUDF>> {
    let choice = match function.name() {
        "greatest" => Choice::Greatest,
        "least" => Choice::Least,
        "nullif" => Choice::NullIf,
        _ => return None,
    };
    let is_ours = function.func.inner().downcast_ref::<Choose>().is_some();
    let is_keyed = |argument: &Expr| argument.get_type(schema).is_ok_and(|data_type| has_key(&data_type));
    (!is_ours && function.args.iter().any(is_keyed)).then(|| Arc::new(ScalarUDF::from(Choose::new(choice))))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Choice {
    Greatest,
    Least,
    NullIf,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Choose {
    choice: Choice,
    signature: Signature,
}

impl Choose {
    fn new(choice: Choice) -> Self {
        Self { choice, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn chosen<T: ArrowPrimitiveType>(
        &self,
        arguments: &[ArrayRef],
        rows: usize,
        order: impl Fn(T::Native, T::Native) -> Ordering,
    ) -> ArrayRef {
        let arguments: Vec<&PrimitiveArray<T>> = arguments.iter().map(AsArray::as_primitive::<T>).collect();
        let choose = |row: usize| -> Option<T::Native> {
            let mut given = arguments.iter().map(|array| array.is_valid(row).then(|| array.value(row)));
            let best = |wanted: Ordering| {
                let order = &order;
                move |best: T::Native, next: T::Native| if order(next, best) == wanted { next } else { best }
            };
            match self.choice {
                Choice::Greatest => given.flatten().reduce(best(Ordering::Greater)),
                Choice::Least => given.flatten().reduce(best(Ordering::Less)),
                Choice::NullIf => {
                    let (value, other) = (given.next()??, given.next()?);
                    let is_equal = other.is_some_and(|other| order(value, other) == Ordering::Equal);
                    (!is_equal).then_some(value)
                }
            }
        };
        Arc::new((0..rows).map(choose).collect::<PrimitiveArray<T>>())
    }
}

fn order_of_floats<F: Into<f64>>(a: F, b: F) -> Ordering {
    let (a, b): (f64, f64) = (a.into(), b.into());
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

impl ScalarUDFImpl for Choose {
    fn name(&self) -> &'static str {
        match self.choice {
            Choice::Greatest => "greatest",
            Choice::Least => "least",
            Choice::NullIf => "nullif",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        Ok(arguments.to_vec())
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let Some(data_type) = arguments.iter().find(|data_type| has_key(data_type)) else {
            return internal_err!("{} of floats or intervals has none", self.name());
        };
        Ok(data_type.clone())
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let alike = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if alike { 1 } else { arguments.number_rows };
        let to = arguments.return_type();
        let given = arguments.args.iter().map(|argument| Ok(arrow::compute::cast(&argument.to_array(rows)?, to)?));
        let given = given.collect::<Result<Vec<_>>>()?;
        let chosen = match to {
            DataType::Float32 => self.chosen::<Float32Type>(&given, rows, order_of_floats),
            DataType::Float64 => self.chosen::<Float64Type>(&given, rows, order_of_floats),
            _ => self
                .chosen::<IntervalMonthDayNanoType>(&given, rows, |a, b| key_of_interval(a).cmp(&key_of_interval(b))),
        };
        Ok(if alike {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&chosen, 0)?)
        } else {
            ColumnarValue::Array(chosen)
        })
    }
}
