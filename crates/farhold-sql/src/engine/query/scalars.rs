//! A subquery as a value is NULL if it has no row, even if its column is declared NOT NULL, and an error if it has two.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionContext;

use super::functions;
use crate::engine::ColumnType;
use crate::engine::types::{from_field, to_field};
use crate::{SqlError, SqlState};

/// A function that returns the value of a list with at most one element;
/// [`single_value`](super::subqueries::single_value) adds its calls.
pub(super) const SINGLE_VALUE: &str = "farhold_single_value";

/// A function around the `min` or `max` that represents all values of a query, as in `x < ALL (SELECT …)`. It keeps the
/// type of the values: `min` and `max` of a VARCHAR(n) are a TEXT.
pub(super) const EXTREME: &str = "farhold_extreme";

/// Registers [`SINGLE_VALUE`] and [`EXTREME`].
pub(super) fn register(context: &SessionContext) {
    context.register_udf(ScalarUDF::from(SingleValue::of(None)));
    context.register_udf(ScalarUDF::from(Extreme::of(None)));
}

/// Adds the type name to [`SINGLE_VALUE`] and [`EXTREME`] if the values are CHAR(n) or VARCHAR(n): lists and aggregates
/// lose it.
pub(super) fn in_place_of(function: Arc<ScalarUDF>, arguments: &[Expr]) -> Arc<ScalarUDF> {
    let is_extreme = function.inner().downcast_ref::<Extreme>().is_some();
    if !is_extreme && function.inner().downcast_ref::<SingleValue>().is_none() {
        return function;
    }
    let [Expr::ScalarSubquery(asked)] = arguments else { return function };
    let of = collected(&asked.subquery).filter(|of| matches!(of, ColumnType::Char(_) | ColumnType::Varchar(_)));
    match of {
        None => function,
        of if is_extreme => Arc::new(ScalarUDF::from(Extreme::of(of))),
        of => Arc::new(ScalarUDF::from(SingleValue::of(of))),
    }
}

/// Turns an [`EXTREME`] into one of CHAR values: trailing blanks must not affect the comparison, nor the choice of the
/// least value. Returns whether the expression is an [`EXTREME`].
pub(super) fn become_char(expression: &mut Expr) -> Result<bool> {
    let Expr::ScalarFunction(function) = expression else { return Ok(false) };
    let is_extreme = function.func.inner().downcast_ref::<Extreme>().is_some();
    let [Expr::ScalarSubquery(asked)] = function.args.as_mut_slice() else { return Ok(false) };
    if !is_extreme {
        return Ok(false);
    }
    let char = ColumnType::Char(ColumnType::CHARACTERS_MAX);
    let as_char = |expr: Expr| {
        expr.transform_down(|expr| match expr {
            Expr::AggregateFunction(mut function) => {
                function.params.args = function.params.args.into_iter().map(|of| functions::cast(of, char)).collect();
                Ok(Transformed::new(Expr::AggregateFunction(function), true, TreeNodeRecursion::Jump))
            }
            other => Ok(Transformed::no(other)),
        })
    };
    let plan = LogicalPlan::clone(&asked.subquery).transform_down(|plan| match plan {
        plan @ LogicalPlan::Aggregate(_) => {
            let names = NamePreserver::new(&plan);
            let changed = plan.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(as_char(expr)?.update_data(|expr| name.restore(expr)))
            })?;
            Ok(Transformed::new(changed.data.recompute_schema()?, true, TreeNodeRecursion::Stop))
        }
        other => Ok(Transformed::no(other)),
    })?;
    *asked = asked.with_plan(Arc::new(plan.data.recompute_schema()?));
    function.func = Arc::new(ScalarUDF::from(Extreme::of(Some(char))));
    Ok(true)
}

/// The type of the argument of the aggregate that fills the only column.
fn collected(plan: &LogicalPlan) -> Option<ColumnType> {
    match plan {
        LogicalPlan::Projection(projection) => collected(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => collected(&alias.input),
        LogicalPlan::Aggregate(aggregate) => match aggregate.aggr_expr.first()?.clone().unalias() {
            Expr::AggregateFunction(function) => {
                let (_, field) = function.params.args.first()?.to_field(aggregate.input.schema()).ok()?;
                from_field(&field)
            }
            _ => None,
        },
        _ => None,
    }
}

/// If a subquery may have no row, wraps its column in a function that the optimiser treats as nullable.
#[derive(Debug)]
pub(super) struct Nulls;

impl AnalyzerRule for Nulls {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        plan.transform_up_with_subqueries(|plan| plan.map_expressions(|expr| expr.transform_up(subquery))).data()
    }

    fn name(&self) -> &'static str {
        "scalar_nulls"
    }
}

fn subquery(expr: Expr) -> Result<Transformed<Expr>> {
    let Expr::ScalarSubquery(asked) = expr else { return Ok(Transformed::no(expr)) };
    let plan = asked.subquery.as_ref();
    if plan.schema().fields().iter().any(|field| field.is_nullable()) || has_one_row(plan) {
        return Ok(Transformed::no(Expr::ScalarSubquery(asked)));
    }
    let column = plan.schema().columns().remove(0);
    let value = NULLABLE.call(vec![Expr::Column(column.clone())]).alias(column.name);
    let plan = LogicalPlanBuilder::from(plan.clone()).project(vec![value])?.build()?;
    Ok(Transformed::yes(Expr::ScalarSubquery(asked.with_plan(Arc::new(plan)))))
}

/// Whether the query has a row for every database content.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(empty) => empty.produce_one_row,
        _ => false,
    }
}

/// Volatile, since the optimiser would evaluate it for a constant, and the result would not be nullable.
static NULLABLE: LazyLock<ScalarUDF> =
    LazyLock::new(|| ScalarUDF::from(Nullable(Signature::any(1, Volatility::Volatile))));

#[derive(Debug, PartialEq, Eq, Hash)]
struct Nullable(Signature);

impl ScalarUDFImpl for Nullable {
    fn name(&self) -> &'static str {
        "farhold_nullable"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::clone(&arguments.arg_fields[0]).with_nullable(true)))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.remove(0))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    /// The column type, if the Arrow type does not fully describe it.
    of: Option<ColumnType>,
    signature: Signature,
}

impl Extreme {
    fn of(of: Option<ColumnType>) -> Self {
        Self { of, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Extreme {
    fn name(&self) -> &'static str {
        EXTREME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    /// For a query without FROM, the argument is the value itself and already has its type.
    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let field = &arguments.arg_fields[0];
        Ok(match self.of {
            Some(of) => {
                let metadata = to_field(EXTREME, of, true).metadata().clone();
                Arc::new(Field::clone(field).with_metadata(metadata))
            }
            None => Arc::clone(field),
        })
    }

    fn simplify(&self, mut arguments: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(ExprSimplifyResult::Simplified(arguments.swap_remove(0)))
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(arguments.args.swap_remove(0))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SingleValue {
    /// The column type, if the Arrow type does not fully describe it.
    of: Option<ColumnType>,
    signature: Signature,
}

impl SingleValue {
    fn of(of: Option<ColumnType>) -> Self {
        Self { of, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for SingleValue {
    fn name(&self) -> &'static str {
        SINGLE_VALUE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [DataType::List(element)] => Ok(element.data_type().clone()),
            other => Err(DataFusionError::Internal(format!("{SINGLE_VALUE} of {other:?}"))),
        }
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        let data_type = self.return_type(&[arguments.arg_fields[0].data_type().clone()])?;
        let metadata = self.of.map(|of| to_field(SINGLE_VALUE, of, true).metadata().clone()).unwrap_or_default();
        Ok(Arc::new(Field::new(SINGLE_VALUE, data_type, true).with_metadata(metadata)))
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let lists = arguments.args[0].to_array(arguments.number_rows)?;
        let lists = lists.as_list::<i32>();
        let offsets = lists.value_offsets();
        let only = |row: usize| -> Result<Option<u64>> {
            let (start, end) = (offsets[row], offsets[row + 1]);
            let count = if lists.is_null(row) { 0 } else { end - start };
            match count {
                0 => Ok(None),
                1 => Ok(u64::try_from(start).ok()),
                _ => {
                    let message = "more than one row returned by a subquery used as an expression";
                    let error = SqlError::new(SqlState::CARDINALITY_VIOLATION, message);
                    Err(DataFusionError::External(Box::new(error)))
                }
            }
        };
        let places = (0..lists.len()).map(only).collect::<Result<UInt64Array>>()?;
        Ok(ColumnarValue::Array(arrow::compute::take(lists.values(), &places, None)?))
    }
}
