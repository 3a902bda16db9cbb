//! DataFusion's functions with changed types or values.

use std::sync::Arc;

use arrow::array::{AsArray, Int32Array};
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// DataFusion's `coalesce`, which finds no common type of strings and bytes.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Coalesce {
    pub inner: Arc<ScalarUDF>,
    pub signature: Signature,
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

/// Types to which an untyped string literal beside them is converted, and which have no common type with texts in
/// DataFusion.
fn is_read_of_bare_strings(data_type: &DataType) -> bool {
    use DataType as T;
    data_type.is_binary() || matches!(data_type, T::Boolean | T::Date32 | T::Timestamp(..) | T::Interval(_))
}

/// DataFusion's `array_length`, which returns 0 for an array without elements.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ArrayLength {
    pub inner: Arc<ScalarUDF>,
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
