//! `a[n]` and `a[m:n]`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, ListArray, UInt64Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, RawFieldAccessExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, GetFieldAccess, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, lit,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::super::added::on_arrays;
use super::super::coerce::is_untyped_literal;
use super::super::functions::{self, null_of};
use super::super::quantified::{leaf, with_leaf};
use super::{external, picked, places};
use crate::engine::ColumnType;
use crate::{SqlError, SqlState};

/// Plans subscripts of arrays, and `@>` and `<@` between arrays.
#[derive(Debug)]
pub(in crate::engine::query) struct Subscripts;

impl ExprPlanner for Subscripts {
    fn plan_field_access(
        &self,
        access: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        let RawFieldAccessExpr { expr, field_access } = access;
        let before = match &expr {
            Expr::ScalarFunction(call) => call.func.inner().downcast_ref::<Subscript>().map(|call| call.is_slice),
            _ => None,
        };
        let is_array = || expr.get_type(schema).is_ok_and(|data_type| leaf(&data_type).is_some());
        if before.is_none() && !is_array() {
            return Ok(PlannerResult::Original(RawFieldAccessExpr { expr, field_access }));
        }
        let call = |is_slice: bool, arguments: Vec<Expr>| {
            let signature = Signature::user_defined(Volatility::Immutable);
            Ok(PlannerResult::Planned(ScalarUDF::from(Subscript { is_slice, signature }).call(arguments)))
        };
        match (field_access, expr) {
            (GetFieldAccess::ListIndex { key }, Expr::ScalarFunction(mut inner)) if before == Some(false) => {
                inner.args.push(number(*key, schema)?);
                Ok(PlannerResult::Planned(Expr::ScalarFunction(inner)))
            }
            (GetFieldAccess::ListIndex { .. } | GetFieldAccess::ListRange { .. }, _) if before.is_some() => {
                Err(external(SqlError::unsupported("an array slice mixed with subscripts")))
            }
            (GetFieldAccess::ListIndex { key }, array) => call(false, vec![array, number(*key, schema)?]),
            (GetFieldAccess::ListRange { start, stop, stride }, array) => {
                if *stride != lit(1_i64) {
                    return Err(external(SqlError::syntax("an array slice requires two bounds")));
                }
                call(true, vec![array, number(*start, schema)?, number(*stop, schema)?])
            }
            (field_access, expr) => Ok(PlannerResult::Original(RawFieldAccessExpr { expr, field_access })),
        }
    }

    fn plan_binary_op(&self, mut binary: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        if !matches!(binary.op, BinaryOperator::AtArrow | BinaryOperator::ArrowAt) {
            return Ok(PlannerResult::Original(binary));
        }
        super::read_beside(&mut binary.left, &mut binary.right, schema)?;
        let is_array = |side: &Expr| side.get_type(schema).is_ok_and(|data_type| leaf(&data_type).is_some());
        if !is_array(&binary.left) || !is_array(&binary.right) {
            return Ok(PlannerResult::Original(binary));
        }
        let RawBinaryExpr { op, left, right } = binary;
        let (whole, part) = if op == BinaryOperator::AtArrow { (left, right) } else { (right, left) };
        Ok(PlannerResult::Planned(super::functions::contains(whole, part)))
    }
}

/// A subscript, converted to an integer as in an assignment.
fn number(key: Expr, schema: &DFSchema) -> Result<Expr> {
    match key.get_type(schema) {
        Ok(data_type) if data_type.is_numeric() && !data_type.is_integer() => Ok(functions::cast(key, ColumnType::Int)),
        Ok(data_type) if data_type.is_string() && !is_untyped_literal(&key) => Err(external(no_number())),
        _ => Ok(key),
    }
}

fn no_number() -> SqlError {
    SqlError::new(SqlState::DATATYPE_MISMATCH, "array subscript must have type integer")
}

/// `a[n]`, with one argument per subscript, or `a[m:n]`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Subscript {
    is_slice: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Subscript {
    fn name(&self) -> &'static str {
        if self.is_slice { "farhold_slice" } else { "farhold_element" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_number = |of: &DataType| of.is_integer() || of.is_string() || of.is_null();
        let [array, numbers @ ..] = arguments else { return Err(external(no_number())) };
        if !numbers.iter().all(is_number) {
            return Err(external(no_number()));
        }
        let array = leaf(array).map_or(DataType::Null, |element| with_leaf(array, element));
        Ok(std::iter::once(array).chain(numbers.iter().map(|_| DataType::Int64)).collect())
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let array = &arguments[0];
        Ok(match leaf(array) {
            Some(element) if self.is_slice => with_leaf(array, element),
            Some(element) => element.clone(),
            None => DataType::Null,
        })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        on_arrays(&arguments, |of| match of {
            [lists, from, to] if self.is_slice => {
                Ok(Arc::new(slices(lists.as_list(), from.as_primitive(), to.as_primitive())?))
            }
            [lists, numbers @ ..] => elements(lists, numbers, arguments.return_field.data_type()),
            [] => Err(external(no_number())),
        })
    }
}

/// The element of each row's array with the given subscripts, one per dimension; NULL if there is none.
fn elements(lists: &ArrayRef, numbers: &[ArrayRef], element: &DataType) -> Result<ArrayRef> {
    let rows = lists.len();
    let mut at: Vec<Option<u64>> = (0..rows as u64).map(Some).collect();
    let mut values = Arc::clone(lists);
    for numbers in numbers {
        if !matches!(values.data_type(), DataType::List(_)) {
            return Ok(new_null_array(element, rows));
        }
        let (lists, numbers) = (values.as_list::<i32>(), numbers.as_primitive::<Int64Type>());
        for (row, at) in at.iter_mut().enumerate() {
            *at = at.and_then(|list| {
                let list = usize::try_from(list).ok().filter(|list| lists.is_valid(*list))?;
                let number = numbers.is_valid(row).then(|| numbers.value(row))?;
                let place = u64::try_from(number.checked_sub(1)?).ok()?;
                let all = places(lists, list);
                all.start.checked_add(place).filter(|place| all.contains(place))
            });
        }
        let inner = Arc::clone(lists.values());
        values = inner;
    }
    if values.data_type() != element {
        return Ok(new_null_array(element, rows));
    }
    Ok(take(&values, &UInt64Array::from(at), None)?)
}

/// The elements of each row's array between two subscripts, both inclusive.
fn slices(lists: &ListArray, from: &Int64Array, to: &Int64Array) -> Result<ListArray> {
    let row = |row: usize| {
        if lists.is_null(row) || from.is_null(row) || to.is_null(row) {
            return None;
        }
        let all = places(lists, row);
        let skipped = u64::try_from(from.value(row).saturating_sub(1)).unwrap_or(0);
        let last = u64::try_from(to.value(row)).unwrap_or(0);
        Some((all.start.saturating_add(skipped)..all.end.min(all.start.saturating_add(last))).collect())
    };
    picked(lists.values(), (0..lists.len()).map(row))
}
