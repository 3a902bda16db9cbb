//! Type decisions made while a statement is planned, before a plan exists whose types could be changed.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr, TypePlanner};
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::sql::sqlparser::ast;

use super::super::{arrays, functions, stopped};
use super::arithmetic::{
    difference, is_difference, is_interval, is_long_product, is_of_parameter, is_scaled, parameter_beside, scaled,
};
use super::common::{Common, become_decimal, become_type, is_untyped_literal, together};
use super::external;
use crate::engine::scalar::Arithmetic;
use crate::engine::types::{INTERVAL, TYPE_KEY, from_sql, is_timestamptz, timestamp_digits, to_field};

/// The metadata of a cast to `NUMERIC` without digits.
pub(in crate::engine::query) const ANY_NUMERIC: &str = "numeric";

/// The types of casts, with metadata for what Arrow's types cannot express. [`PostgresTypes`](super::PostgresTypes)
/// removes the metadata.
#[derive(Debug)]
pub(in crate::engine::query) struct TypeNames(pub(in crate::engine::query) Option<Arc<dyn TypePlanner>>);

impl TypePlanner for TypeNames {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> Result<Option<FieldRef>> {
        use ast::DataType as T;
        use ast::ExactNumberInfo::None as AnyDigits;
        let column_type = match sql_type {
            T::Numeric(_)
            | T::Decimal(_)
            | T::Dec(_)
            | T::Char(_)
            | T::Character(_)
            | T::Varchar(Some(_))
            | T::CharacterVarying(Some(_))
            | T::CharVarying(Some(_))
            // DataFusion's type has nanoseconds, and ends in 2262.
            | T::Timestamp(..) => from_sql(sql_type),
            T::Custom(name, _) if is_own(name) => from_sql(sql_type),
            other => return self.0.as_ref().map_or(Ok(None), |inner| inner.plan_type_field(other)),
        };
        let field = to_field("", column_type.map_err(external)?, true);
        let name = match sql_type {
            T::Numeric(AnyDigits) | T::Decimal(AnyDigits) | T::Dec(AnyDigits) => Some(ANY_NUMERIC.to_owned()),
            other => timestamp_digits(other).map(|digits| format!("timestamp({digits})")),
        };
        Ok(Some(Arc::new(match name {
            Some(name) => field.with_metadata(HashMap::from([(TYPE_KEY.to_owned(), name)])),
            None => field,
        })))
    }
}

/// Whether it is a type that the parser does not know by this name, and the planner not at all.
fn is_own(name: &ast::ObjectName) -> bool {
    let name = name.to_string().to_lowercase();
    let name = name.strip_prefix("pg_catalog.").unwrap_or(&name);
    matches!(name, "bpchar" | "timestamp" | "timestamptz")
}

/// Plans differences of timestamps, products of decimals and of intervals, and comparisons with string literals.
/// DataFusion checks already while planning whether it can calculate with their types, and whether a string can be an
/// operand beside a timestamp.
#[derive(Debug)]
pub(in crate::engine::query) struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, mut binary: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        stopped::check()?;
        if binary.op == ast::BinaryOperator::Multiply && is_long_product(&binary.left, &binary.right, schema) {
            let product = functions::checked(Arithmetic::Multiply, binary.left, binary.right);
            return Ok(PlannerResult::Planned(product));
        }
        let arithmetic = match binary.op {
            ast::BinaryOperator::Multiply => Some(Arithmetic::Multiply),
            ast::BinaryOperator::Divide => Some(Arithmetic::Divide),
            _ => None,
        };
        if arithmetic.is_some() {
            parameter_beside(&mut binary.left, &binary.right, schema);
            parameter_beside(&mut binary.right, &binary.left, schema);
        }
        if let Some(arithmetic) = arithmetic
            && is_of_parameter(&binary.left, &binary.right, schema)
        {
            become_decimal(&mut binary.left, schema)?;
            become_decimal(&mut binary.right, schema)?;
            return Ok(PlannerResult::Planned(functions::checked(arithmetic, binary.left, binary.right)));
        }
        if let Some(arithmetic) = arithmetic
            && is_scaled(arithmetic, &binary.left, &binary.right, schema)
        {
            return scaled(arithmetic, binary.left, binary.right, schema).map(PlannerResult::Planned);
        }
        if matches!(binary.op, ast::BinaryOperator::Plus | ast::BinaryOperator::Minus) {
            let RawBinaryExpr { left, right, .. } = &mut binary;
            if is_interval(left, schema) && is_untyped_literal(right) {
                become_type(right, &INTERVAL, schema)?;
            } else if is_interval(right, schema) && is_untyped_literal(left) {
                become_type(left, &INTERVAL, schema)?;
            }
        }
        if is_comparison(&binary.op) {
            let RawBinaryExpr { left, right, .. } = &mut binary;
            read_beside(left, right, schema)?;
            read_beside(right, left, schema)?;
            arrays::read_beside(left, right, schema)?;
        }
        if binary.op != ast::BinaryOperator::Minus || !is_difference(&binary.left, &binary.right, schema) {
            return Ok(PlannerResult::Original(binary));
        }
        difference(binary.left, binary.right, schema).map(PlannerResult::Planned)
    }

    /// The planner finds no common type of an untyped literal and a timestamp with time zone.
    fn plan_array_literal(&self, mut elements: Vec<Expr>, schema: &DFSchema) -> Result<PlannerResult<Vec<Expr>>> {
        if elements.iter().any(|element| element.get_type(schema).is_ok_and(|of| is_timestamptz(&of))) {
            together(&mut elements.iter_mut().collect::<Vec<_>>(), schema, Common::Result)?;
        }
        Ok(PlannerResult::Original(elements))
    }
}

fn is_comparison(op: &ast::BinaryOperator) -> bool {
    use ast::BinaryOperator as O;
    matches!(op, O::Eq | O::NotEq | O::Lt | O::LtEq | O::Gt | O::GtEq)
}

/// Converts an untyped string literal beside a type that DataFusion does not compare with strings.
fn read_beside(side: &Expr, string: &mut Expr, schema: &DFSchema) -> Result<()> {
    match side.get_type(schema) {
        Ok(data_type @ (DataType::Boolean | DataType::Interval(_))) if is_untyped_literal(string) => {
            become_type(string, &data_type, schema)
        }
        _ => Ok(()),
    }
}
