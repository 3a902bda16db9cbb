//! Converts the values of an INSERT's VALUES list to the types of their columns.
//!
//! A VALUES list has one type per column, so each value must be planned with the type of the table's column. A cast
//! would also convert what PostgreSQL does not assign without a cast, such as a text to a number. So the statement
//! calls [`ASSIGNED`]. Once types are known, [`coerce`](super::coerce) replaces the call by a cast, or refuses the
//! value.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast;

use super::functions::type_of;
use super::sql_type;
use super::subqueries::call;
use crate::engine::ColumnType;
use crate::engine::scalar::assignable;
use crate::engine::types::from_arrow;
use crate::{SqlError, SqlState};

/// The function: a value, a NULL of its column's type, and the column's name.
const ASSIGNED: &str = "farhold_assigned";

/// Registers the function.
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(Assigned { signature: Signature::any(3, Volatility::Immutable) }));
}

/// `value`, converted as an assignment to a column.
pub(crate) fn assigned(value: ast::Expr, column: &str, data_type: ColumnType) -> ast::Expr {
    let null = ast::Expr::Cast {
        kind: ast::CastKind::Cast,
        expr: Box::new(ast::Expr::value(ast::Value::Null)),
        data_type: sql_type(data_type),
        array: false,
        format: None,
    };
    call(ASSIGNED, vec![value, null, ast::Expr::value(ast::Value::SingleQuotedString(column.to_owned()))])
}

/// Whether it is a call of the function.
pub(super) fn is_assigned(call: &ast::Function) -> bool {
    matches!(call.name.0.as_slice(), [ast::ObjectNamePart::Identifier(name)] if name.value == ASSIGNED)
}

/// The value and the target type of a call; `None` for any other function. 42804 if the value cannot be assigned.
pub(super) fn taken(function: &ScalarFunction, schema: &DFSchema) -> Result<Option<(Expr, ColumnType)>> {
    if function.func.inner().downcast_ref::<Assigned>().is_none() {
        return Ok(None);
    }
    let [value, null, Expr::Literal(column, _)] = function.args.as_slice() else {
        return internal_err!("{ASSIGNED} takes a value, a type and a name");
    };
    let (from, to) = (from_arrow(&type_of(value, schema)?), from_arrow(&type_of(null, schema)?));
    let Some(to) = to else { return internal_err!("{ASSIGNED} takes a type of ours") };
    if let Some(from) = from.filter(|from| !assignable(*from, to)) {
        let column = column.try_as_str().flatten().unwrap_or_default();
        let message = format!("column \"{column}\" is of type {to} but expression is of type {from}");
        let error = SqlError::new(SqlState::DATATYPE_MISMATCH, message);
        let error = error.with_hint("You will need to rewrite or cast the expression.");
        return Err(DataFusionError::External(Box::new(error)));
    }
    Ok(Some((value.clone(), to)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Assigned {
    signature: Signature,
}

impl ScalarUDFImpl for Assigned {
    fn name(&self) -> &'static str {
        ASSIGNED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[1].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = arguments.arg_fields[1].as_ref().clone();
        Ok(Arc::new(field.with_name(ASSIGNED).with_nullable(true)))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{ASSIGNED} must be replaced before execution")
    }
}
