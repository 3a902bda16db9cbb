//! Values of a VALUES list whose types only the planner knows, such as those of calls and of CASE.
//!
//! The planner's common type of a column is not PostgreSQL's: it has nanoseconds if dates and timestamps are combined, converts to
//! time zones in UTC, rounds strings to the scale of the decimals beside them, and knows none of a string and a date (DataFusion 55).
//! So the values are planned as arguments of calls, those of untyped string literals without a type. [`coerce`](super::coerce)
//! replaces each call, with the planner's cast around it, by the value, and then decides about the column.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::internal_err;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast;

use super::subqueries::call;

/// The function, of a value.
const LISTED: &str = "farhold_listed";

/// Registers the function.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Listed { signature: Signature::any(1, Volatility::Immutable) }));
}

/// The call with a value.
pub(super) fn listed(value: ast::Expr) -> ast::Expr {
    call(LISTED, vec![value])
}

/// The value of a call in a VALUES list, below the planner's cast; `None` for anything else.
pub(super) fn value_of(item: &Expr) -> Option<&Expr> {
    match item {
        Expr::Cast(Cast { expr, .. }) => match expr.as_ref() {
            Expr::ScalarFunction(call) => argument(call),
            _ => None,
        },
        Expr::ScalarFunction(call) => argument(call),
        _ => None,
    }
}

/// The argument of a call; `None` for any other function.
pub(super) fn argument(call: &ScalarFunction) -> Option<&Expr> {
    call.func.inner().downcast_ref::<Listed>()?;
    call.args.first()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Listed {
    signature: Signature,
}

impl ScalarUDFImpl for Listed {
    fn name(&self) -> &'static str {
        LISTED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("the type of {LISTED} depends on literals")
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let is_constant = arguments.scalar_arguments.iter().any(Option::is_some);
        let of = arguments.arg_fields[0].data_type();
        let of = if is_constant && of.is_string() { &DataType::Null } else { of };
        Ok(Arc::new(Field::new(LISTED, of.clone(), true)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{LISTED} must be replaced before execution")
    }
}
