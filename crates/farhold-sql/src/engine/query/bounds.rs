//! Gives bounds to functions in sort keys.
//!
//! To find the order of `f(a) <= 1`, DataFusion (55) compares the bounds of both sides. A function without bounds has
//! those of an untyped NULL, which differ in type from the other side. Then the order of the key is unknown, even if a
//! sort below has established it, and the plan is refused. So functions in keys get all values of their type as bounds.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// A key in which every function has bounds.
pub(super) fn with_bounds(key: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    key.transform_up(|expr| {
        let Some(returned) = without_bounds(&expr, schema) else { return Ok(Transformed::no(expr)) };
        Ok(match expr {
            Expr::ScalarFunction(ScalarFunction { func, args }) => {
                let func = Arc::new(ScalarUDF::from(Unbounded { inner: func, returned }));
                Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args }))
            }
            other => Transformed::no(other),
        })
    })
}

/// The return type of a function without bounds of that type; `None` for other expressions.
fn without_bounds(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    let Expr::ScalarFunction(function) = expr else { return None };
    if function.func.signature().volatility == Volatility::Volatile {
        return None;
    }
    let returned = expr.get_type(schema).ok()?;
    let all = |argument: &Expr| Interval::make_unbounded(&argument.get_type(schema).ok()?).ok();
    let arguments: Vec<Interval> = function.args.iter().map(all).collect::<Option<_>>()?;
    let bounds = function.func.evaluate_bounds(&arguments.iter().collect::<Vec<_>>());
    let has_bounds = bounds.is_ok_and(|bounds| bounds.data_type() == returned);
    (!has_bounds).then_some(returned)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Unbounded {
    inner: Arc<ScalarUDF>,
    returned: DataType,
}

impl ScalarUDFImpl for Unbounded {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        self.inner.schema_name(arguments)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arguments)
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.returned.clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(arguments)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        // Some functions exist only until they are simplified.
        self.inner.simplify(arguments, context)
    }

    fn evaluate_bounds(&self, _: &[&Interval]) -> Result<Interval> {
        Interval::make_unbounded(&self.returned)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(arguments)
    }
}
